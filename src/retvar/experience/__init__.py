"""Experience from environments, data sets and logs: one table of linked transitions."""

from retvar.experience.environments import from_gymnasium, from_linear_gaussian
from retvar.experience.logs import Growing, from_table
from retvar.experience.minari import from_minari
from retvar.experience.moves import Moves
from retvar.experience.stream import Counts, Experience

__all__ = [
    "Counts",
    "Experience",
    "Growing",
    "Moves",
    "from_gymnasium",
    "from_linear_gaussian",
    "from_minari",
    "from_table",
]
