"""Features of states: one weight per state, rows of a table, or features of each transition.

Every kind provides rows of a sparse table for the compiled update.

>>> import retvar as rv
>>> tiles = rv.features.TileCoding([0.0], [1.0], tiles=4, tilings=2)
>>> tiles.size, tiles.rows([[0.3]]).indices
(10, array([1, 6]))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retvar.support.errors import InputError
from retvar.td.features.base import (
    Active,
    Features,
    Rows,
    States,
    Table,
    TransitionFeatures,
    Vector,
    features_of,
    features_of_nodes,
)
from retvar.td.features.basis_functions import Fourier, Polynomial
from retvar.td.features.bounds import ObservationFeatures, PerAction
from retvar.td.features.tile_coding import TileCoding

__all__ = [
    "Active", "Features", "Fourier", "ObservationFeatures", "PerAction", "Polynomial", "Rows",
    "States", "Table", "TileCoding", "TransitionFeatures", "Vector", "features_of",
    "features_of_nodes", "from_dict",
]  # fmt: skip

KINDS: dict[str, type[Any]] = {
    each.kind: each for each in (States, Vector, Active, TileCoding, Polynomial, Fourier, PerAction)
}


def from_dict(described: Mapping[str, Any]) -> Features:
    """Make features from the dictionary that ``to_dict`` returns.

    >>> waves = Fourier([0.0], [1.0], order=5)
    >>> from_dict(waves.to_dict()) == waves
    True
    """
    kind = described.get("kind") if isinstance(described, Mapping) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError("features", described, f"its kind must be one of {', '.join(KINDS)}")
    settings = {("count" if k == "size" else k): x for k, x in described.items() if k != "kind"}
    if isinstance(settings.get("basis"), Mapping):
        settings["basis"] = from_dict(settings["basis"])
    try:
        made: Features = KINDS[kind](**settings)
    except TypeError:
        found = ", ".join(map(str, settings))
        raise InputError("features", found, f"are not the settings of {kind}") from None
    return made
