"""The least-squares estimator for observations: values with features, spread from neighbours.

It has the methods of an online estimator. Transitions are stored; the fit is made at the first
question after an update.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.estimation.feature_values import FeatureValues, feature_values
from retvar.estimation.neighbours import LocalSpread, Neighbours, neighbours_of
from retvar.features import Features
from retvar.learners import Learner

__all__ = ["FeatureEstimator"]

Array = NDArray[np.float64]
Chunk = dict[str, NDArray[Any]]
QUANTITIES = ("value", "mean", "variance", "std")
COLUMNS = ("state", "next_state", "reward", "terminated", "truncated", "stream")
REMEDY = 'least squares with features needs {}; take by="td"'


class FeatureEstimator:
    """Value, variance and std of observations; intervals are approximate.

    >>> import numpy as np, retvar as rv
    >>> rng = np.random.default_rng(0)
    >>> x = rng.random((2_000, 1))
    >>> risk = FeatureEstimator(rv.Direct(alpha=0.0, gamma=0.9, lam=1.0),
    ...                         rv.features.Polynomial([0.0], [1.0], degree=2))
    >>> risk.update_many({"state": x, "next_state": x, "terminated": np.ones(2_000, bool),
    ...                   "reward": x[:, 0] + rng.normal(0.0, 0.5, 2_000)})
    >>> round(float(risk.value([0.5])), 1), round(float(risk.std([0.5])), 1)
    (0.5, 0.5)
    """

    bootstrap_samples = 0
    has_intervals = True

    def __init__(self, learner: Learner, features: Features) -> None:
        lam = learner.lam
        if lam is not None and not np.all(np.asarray(lam) == 1.0):
            raise InputError("lam", lam, REMEDY.format("λ = 1"))
        self.description = learner
        self.features = [features]
        self.steps = 0  #: transitions added
        self.rejected = 0  #: transitions refused
        self.notes: dict[str, Any] = {}
        self._stored: list[Chunk] = []
        self._last: tuple[bytes, LocalSpread] | None = None

    @property
    def gammas(self) -> Array:
        """γ; NaN where it is in the data."""
        given = self.description.gamma
        return np.atleast_1d(np.asarray(np.nan if given is None else given, dtype=np.float64))

    @property
    def lams(self) -> Array:
        """λ, which is 1."""
        return np.ones(1)

    # ------------------------------------------------------------------ adding transitions

    def update_many(self, chunk: Chunk, on_error: str = "raise") -> None:
        """Store transitions; bad ones are refused or, with ``"skip"``, left out."""
        n = len(chunk["reward"])
        if "rho" in chunk and bool((np.asarray(chunk["rho"]) != 1.0).any()):
            raise InputError("rho", "not 1", REMEDY.format("on-policy data"))
        if "lam" in chunk and bool((np.asarray(chunk["lam"]) != 1.0).any()):
            raise InputError("lam", "below 1", REMEDY.format("λ = 1"))
        rows = {
            name: np.array(chunk[name]) if name in chunk else np.zeros(n, dtype=bool)
            for name in COLUMNS
            if name in chunk or name in ("terminated", "truncated")
        }
        gamma = chunk.get("gamma", np.broadcast_to(self.gammas, n))
        rows["gamma"] = np.where(rows["terminated"], 0.0, gamma)
        bad = ~np.isfinite(rows["reward"]) | ~np.isfinite(rows["state"]).all(axis=1)
        bad |= ~np.isfinite(rows["next_state"]).all(axis=1) & ~rows["terminated"]
        bad |= ~((rows["gamma"] >= 0) & (rows["gamma"] <= 1))
        if bad.any():
            if on_error != "skip":
                row = int(np.argmax(bad))
                raise InputError("row", row, "must hold finite numbers, and γ in [0, 1]")
            self.rejected += int(bad.sum())
            if not bad[:-1].any() and bad.all():
                return
            rows["truncated"][:-1] |= bad[1:] & ~rows["terminated"][:-1]  # episodes break there
            rows = {name: column[~bad] for name, column in rows.items()}
        if len(rows["reward"]):
            self._stored.append(rows)
            self.steps += len(rows["reward"])
            for name in ("fit", "neighbours"):
                self.__dict__.pop(name, None)
            self._last = None

    def chunks(self) -> Iterator[Chunk]:
        """The stored transitions."""
        yield from self._stored

    # ------------------------------------------------------------------ estimates

    @cached_property
    def fit(self) -> FeatureValues:
        """The values."""
        if not self._stored:
            raise InputError("experience", "no transition", "there is nothing to estimate from")
        return feature_values(self, self.features[0])

    @cached_property
    def neighbours(self) -> Neighbours:
        """The neighbours from which the spread is estimated."""
        return neighbours_of(self.fit)

    def spread(self, states: Any) -> LocalSpread:
        """Spread, errors, distances and notes at some observations."""
        points = self._points(states)
        key = points.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = key, self.neighbours.at(points)
        return self._last[1]

    def predict(self, states: Any, what: str = "value") -> Array:
        """Estimates for rows of observations; NaN far from all data."""
        if what not in QUANTITIES:
            known = ", ".join(map(repr, QUANTITIES))
            raise InputError("what", repr(what), f"must be one of {known}")
        points, spread = self._points(states), self.spread(states)
        if what in ("variance", "std"):
            return np.asarray(getattr(spread, what))
        far = np.char.startswith(spread.note, "far")
        return np.where(far, np.nan, self.fit.value(points))

    def value(self, state: Any) -> Any:
        """Value of an observation."""
        return float(self.predict([state])[0])

    def mean(self, state: Any) -> Any:
        """Mean of the return: the value."""
        return self.value(state)

    def variance(self, state: Any) -> Any:
        """Variance of the return from an observation."""
        return float(self.predict([state], "variance")[0])

    def std(self, state: Any) -> Any:
        """Standard deviation of the return from an observation."""
        return float(self.predict([state], "std")[0])

    def interval(
        self, state: Any = None, what: str = "value", *, states: Any = None, level: float = 0.9
    ) -> tuple[Any, Any]:
        """Lower and upper end for one observation or a column of them; approximate."""
        arguments.level("level", level)
        if state is None and states is None:
            raise InputError("state", None, "must be given: there is no list of all states")
        column = [state] if state is not None else states
        spread = self.spread(column)
        if what in ("value", "mean"):
            ends = spread.value_interval(self.predict(column), level)
        elif what in ("std", "variance"):
            ends = spread.std_interval(level)
            ends = (ends[0] ** 2, ends[1] ** 2) if what == "variance" else ends
        else:
            raise InputError("what", repr(what), "must be 'value', 'mean', 'variance' or 'std'")
        return ends if state is None else (float(ends[0][0]), float(ends[1][0]))

    @staticmethod
    def _points(states: Any) -> Array:
        try:
            points = np.asarray(states, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError("state", repr(states), "must hold numbers") from None
        if points.ndim != 2 or not np.isfinite(points).all():
            raise InputError("state", f"shape {points.shape}", "must be rows of finite numbers")
        return points

    def save(self, path: Any) -> None:
        """Refuse: observations are not saved with the estimator."""
        raise InputError(
            "path", path, "an estimate with features is not saved; record the experience instead"
        )

    def __repr__(self) -> str:
        return f"<least squares with features: {self.steps:,} steps>"
