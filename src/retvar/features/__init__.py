"""What a state looks like to a node: a state's own weight, a row of a table, or features given.

Every kind ends up as rows of one sparse table, which is all that the update knows of.
"""

from retvar.features.base import (
    Active,
    Features,
    Given,
    Rows,
    States,
    Table,
    Vector,
    features_of,
)

__all__ = ["Active", "Features", "Given", "Rows", "States", "Table", "Vector", "features_of"]
