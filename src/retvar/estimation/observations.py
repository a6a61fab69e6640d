"""The least-squares estimator for observations: a stack of value functions, fitted at first asking.

The transitions are kept; the fit comes from them alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.bases import Base, Linear, Returns, Waves
from retvar.estimation.episodes import EpisodeLog
from retvar.estimation.return_intervals import Calibration
from retvar.estimation.settings import DEEP, NAMES, networks
from retvar.estimation.stack import Place, Stack
from retvar.estimation.states import LeastSquaresEstimator
from retvar.experience.moves import Moves
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.td.features import Features, TileCoding, from_dict
from retvar.td.learners import Learner

__all__ = ["ObservationEstimator"]

Array = NDArray[np.float64]
Chunk = dict[str, NDArray[Any]]
COLUMNS = ("state", "next_state", "reward", "gamma", "lam", "rho", "terminated", "truncated")
MANY = 20_000  # transitions whose fit takes a while
logger = logging.getLogger("retvar")
TOO_NARROW = "with one family of features intervals of the value are too narrow on average"


class ObservationEstimator(LeastSquaresEstimator):
    """Value, variance and std of observations, by a stack of `bases`.

    Of these "tiles" (or other `features`), "waves", "neighbours" and "deep" are known by name;
    others are objects with ``fit`` and ``predict``, see :class:`retvar.estimation.bases.Base`.
    """

    file_kind = "least_squares_features"
    computed = ("solution", "_answered")

    def __init__(
        self, learner: Learner, features: Features, bases: Sequence[str | Base] = NAMES
    ) -> None:
        super().__init__(learner)
        if learner.gamma is not None and np.ndim(learner.gamma):
            remedy = 'least squares with features needs one γ; take by="td"'
            raise InputError("gamma", "several numbers", remedy)
        self.features, self.bases = [features], list(bases)
        self.moves = Moves()  # transitions, as they are used

    def add(self, chunk: Chunk) -> None:
        """Add transitions, one trajectory after the other."""
        if not (count := len(chunk["reward"])):
            return
        rows = self._rows(chunk)
        self._count(count)
        self.moves.append({name: rows[name] for name in COLUMNS})

    # ------------------------------------------------------------------ estimates

    @cached_property
    def solution(self) -> Stack:
        """The fit."""
        if not self.steps:
            raise InputError("experience", "no transition", "there is nothing to estimate from")
        if self.steps >= MANY:
            logger.info("%s transitions are read, and fitted now", f"{self.steps:,}")
        log = EpisodeLog.of(next(self.moves.chunks(self.steps)))
        own = Linear(self.features[0]), Waves(), Returns()
        known, bases = dict[str, Base](zip(NAMES, own, strict=True)), dict[str, Base]()
        for k, base in enumerate(self.bases, start=1):
            if isinstance(base, str):
                tiles = base != NAMES[0] or isinstance(self.features[0], TileCoding)
                name = base if tiles else type(self.features[0]).__name__
                bases[name] = networks() if base == DEEP else known[base]
            else:
                bases[f"{type(base).__name__} ({k})"] = base
        return Stack(log, bases)

    @cached_property
    def _answered(self) -> list[tuple[bytes, Place]]:
        """The last question and its answer: value and spread are asked in turn."""
        return []

    def spread(self, states: Any) -> Place:
        """Value, spread, errors, distances and notes at some observations."""
        points = arguments.floats("state", states, "rows of numbers")
        if points.ndim != 2 or not np.isfinite(points).all():
            raise InputError("state", f"shape {points.shape}", "must be rows of finite numbers")
        key = points.tobytes()
        if not self._answered or self._answered[0][0] != key:
            self._answered[:] = [(key, self.solution.at(points))]
        return self._answered[0][1]

    def _look_up(self, states: Any) -> tuple[Place, slice]:
        return self.spread(states), slice(None)

    def _all_states(self) -> Any:
        raise InputError("state", None, "must be given: there is no list of all observations")

    @property
    def remarks(self) -> list[str]:
        """How the estimates were made, and what was measured on held-out returns."""
        return self.solution.remarks() + ([TOO_NARROW] if len(self.bases) == 1 else [])

    # ------------------------------------------------------------------ return intervals

    def calibrated(self, returns: Any) -> tuple[Calibration, None]:
        """Scores of returns that the fits have not seen, which stand for the observed ones."""
        return self.solution.held_out.calibration(), None

    def held_out(self) -> tuple[Array, Array, Array, Array]:
        """Returns that the fits have not seen: G − Ĵ, Ĵ, σ̂, and the share of σ̂² that they lack."""
        held = self.solution.held_out
        some = np.isfinite(held.value) & np.isfinite(held.std)
        return held.error[some], held.value[some], held.std[some], held.missing[some]

    # ------------------------------------------------------------------ files

    def _saved(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if not all(isinstance(x, str) for x in self.bases):
            raise InputError("bases", "of your own", "cannot be saved: save the transitions")
        header = {"features": self.features[0].to_dict(), "bases": self.bases}
        return header, next(self.moves.chunks(max(1, self.steps)), {})

    @classmethod
    def restored(cls, learner: Learner, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The estimator that was saved."""
        found = cls(learner, from_dict(header["features"]), header.get("bases", NAMES[:1]))
        if arrays:
            found.add(arrays)
        return found
