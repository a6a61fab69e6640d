"""The least-squares estimator of a finite world: sums of transitions in, value and spread out.

The sums of the two parts of the episodes are kept apart, and added for the estimates. Returns that
calibrate return intervals are collected when they are asked for, in a second reading.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.least_squares import (
    BLOCK,
    LeastSquares,
    Solver,
    least_squares,
)
from retvar.estimation.least_squares_estimator import (
    CALIBRATION,
    FIT,
    QUANTITIES,
    LeastSquaresEstimator,
)
from retvar.estimation.monitor import KEYS, PLENTY
from retvar.estimation.ratio_check import RatioCheck, check_sums
from retvar.estimation.return_intervals import ReturnsByState
from retvar.estimation.returns import CLOSED, ELSEWHERE, NOWHERE, Returns, rows_of
from retvar.estimation.sums import Sums
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.files import free_memory
from retvar.support.format import literal
from retvar.td.features import States
from retvar.td.learners import Learner

__all__ = ["StateEstimator", "refuse_gaps"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Chunk = dict[str, NDArray[Any]]
Observed = tuple[Returns, Returns]  # of the part that calibrates: in sequence, and by state
RETURNS = 20_000  # that are stored
MOST_STATES = 2**31
BYTES = 350  # of the estimates of a state
MANY_STATES, GAP = 1_000_000, 10  # more states than these, and than so many for each transition
NAMES, ARRAYS = ("fit", "calibration"), ("keys", "numbers", "sums", "rows")


class StateEstimator(LeastSquaresEstimator):
    """Value, variance and std of every state, by least squares.

    >>> import numpy as np, retvar as rv
    >>> rng = np.random.default_rng(0)
    >>> risk = StateEstimator(rv.Direct(alpha=0.0, gamma=0.5, lam=1.0), states=1)
    >>> zero = np.zeros(10_000, dtype=int)
    >>> risk.add({"state": zero, "next_state": zero, "reward": rng.normal(3, 2, 10_000)})
    >>> round(risk.value(0)), round(risk.std(0), 1)
    (6, 2.3)
    """

    file_kind = "least_squares"
    computed = ("_solver", "solution", "fit", "observed", "returns_by_state", "_scores", "_whole")
    state_limits = 0, MOST_STATES

    def __init__(self, learner: Learner, states: int, fixed: bool = False) -> None:
        super().__init__(learner)
        self.sums = Sums(), Sums()
        self._states = arguments.integer("states", states, 1, MOST_STATES)
        if states * BYTES > free_memory():
            raise InputError("states", f"{states:,}", "do not fit in memory; use fewer, or labels")
        self._fixed = fixed  # whether there are no more

    @property
    def features(self) -> list[Any]:
        """One weight for each state."""
        return [States(self._states)]

    def add(self, chunk: Chunk) -> None:
        """Add transitions, one trajectory after the other; bad ones are left out."""
        self._grow(chunk)
        rows = self._rows(chunk)
        if not self._count(rows, len(chunk["reward"])):
            return
        part = self._split(rows, self._part)[0]
        if "rho" in rows and self.description.estimand == "off_policy_return":
            eta = rows.pop("rho")  # which multiplies the return itself
            rows |= {name: eta * rows[name] for name in ("reward", "gamma")}
        self.off_policy |= "rho" in rows and bool((rows["rho"] != 1.0).any())
        del rows["truncated"]
        for which, sums in enumerate(self.sums):
            sums.add(**{name: column[part == which] for name, column in rows.items()})

    def _grow(self, chunk: Chunk) -> None:
        """Make room for new states; refuse those that cannot be."""
        ends = (np.asarray(chunk[name]) for name in ("state", "next_state"))
        top = max(int(x.max(initial=0)) for x in ends) + 1
        if top > self._states and self._fixed:
            raise InputError("state", top - 1, f"unknown; states are 0 to {self._states - 1}")
        if top > self._states:
            refuse_gaps(top, self.steps + len(chunk["reward"]))
            self._states = arguments.integer("states", top, 1, MOST_STATES)

    def merge(self, other: StateEstimator, number: Integers | None = None) -> None:
        """Add what another estimator has seen; state s of its is ``number[s]`` here."""
        states = other._states if number is None else int(number.max(initial=0)) + 1
        self._states = max(self._states, states)
        for own, theirs in zip(self.sums, other.sums, strict=True):
            own.merge(theirs, number)
        self._see(other.rewards)
        self.steps, self.rejected = self.steps + other.steps, self.rejected + other.rejected
        self.off_policy |= other.off_policy

    def add_returns(self, observed: Observed) -> None:
        """Add returns that calibrate, which were collected elsewhere."""
        if "observed" not in self.__dict__:
            self.__dict__["observed"] = observed
            return
        for own, theirs in zip(self.observed, observed, strict=True):
            own.merge(theirs)

    # ------------------------------------------------------------------ estimates

    @cached_property
    def _solver(self) -> Solver:
        whole = Sums()
        for sums in self.sums:
            whole.merge(sums)
        return Solver(whole, self._states)

    @cached_property
    def solution(self) -> LeastSquares:
        """Estimates from all transitions."""
        found = self._solver.solution()
        if not found.probes:
            del self._solver  # it has nothing to add
        return found

    @cached_property
    def fit(self) -> LeastSquares:
        """Estimates from the part that return intervals are not calibrated on."""
        return least_squares(self.sums[FIT], self._states, at=np.zeros(0, dtype=np.intp))

    @property
    def ratios(self) -> RatioCheck | None:
        """Mean importance ratios of the states, and which are not 1; None on-policy."""
        return check_sums(self.sums, self._states)

    def add_errors(self, states: Any) -> None:
        """Compute standard errors of these states, up to 512, where they are not known yet.

        Of many states, only the most visited have them from the start.
        """
        found, at = self.solution, self._index(states)
        if not found.probes or at.size > BLOCK:
            return
        at = np.unique(at[np.isnan(found.value_df[at]) & np.isfinite(found.value[at])])
        if at.size:
            more = self._solver.solution(at)
            for name, column in vars(found).items():
                if isinstance(column, np.ndarray):
                    column[at] = getattr(more, name)[at]

    def predict(self, states: Any, what: str = "value") -> Array:
        """Estimates for a column of states: ``"value"``, ``"mean"``, ``"variance"`` or ``"std"``.

        NaN where the log does not determine them; :attr:`solution` has a note on why.
        """
        arguments.choice("what", what, QUANTITIES)
        whole: Array = getattr(self.solution, "value" if what == "mean" else what)
        return whole[self._index(states)]

    def _all_states(self) -> NDArray[np.int64]:
        return np.arange(self._states)

    def _ends(self, states: Any, what: str, level: float) -> tuple[Array, Array]:
        self.add_errors(states)
        found, at = self.solution, self._index(states)
        low, high = found.value_interval(level) if what == "value" else found.std_interval(level)
        return low[at], high[at]

    def _index(self, states: Any) -> NDArray[np.intp]:
        column = arguments.array("state", states, "whole numbers")
        if column.ndim != 1 or (column.dtype.kind not in "iu" and column.size):
            raise InputError("state", literal(states), "must be whole numbers")
        known = (column >= 0) & (column < self._states)
        if not known.all():
            wrong = int(column[~known][0])
            raise InputError("state", wrong, f"unknown; states are 0 to {self._states - 1}")
        return column.astype(np.intp)

    # ------------------------------------------------------------------ return intervals

    @cached_property
    def observed(self) -> Observed:
        """Returns of the part that calibrates, in sequence and by state."""
        found = tuple(Returns(k, 1, RETURNS, negligible=CLOSED, plenty=PLENTY) for k in (1, KEYS))
        state = self._began.copy()
        weighted = self.description.estimand == "off_policy_return"
        for chunk in [] if self.moves is None or self.off_policy else self.moves.chunks():
            rows = self._rows(chunk)
            part, cut, late = self._split(rows, state)
            rows["truncated"] = rows["truncated"] | cut
            value = None
            if bool((rows["lam"][~rows["terminated"]] < 1.0).any()):
                value = np.nan_to_num(self.fit.value)[rows["next_state"]]
            eta = rows.get("rho") if weighted else None
            columns = rows_of(rows, rows["gamma"], rows["lam"], eta, value)
            begins = np.where(part == CALIBRATION, np.where(late, NOWHERE, 0), ELSEWHERE)
            found[0].add(begins, columns)
            found[1].add(np.where(begins == 0, rows["state"] & (KEYS - 1), begins), columns)
        return found[0], found[1]

    def _fitted(self, states: Any) -> tuple[Array, Array]:
        at = self._index(states)
        return self.fit.value[at], self.fit.std[at]

    def _calibration_returns(self) -> tuple[Array, NDArray[np.intp]]:
        return self._completed(self.observed[0])

    def _completed(self, returns: Returns) -> tuple[Array, NDArray[np.intp]]:
        """Returns with a rest where they were closed, and the states in which they began.

        The rest is drawn from the returns that began where this one was closed; so it varies as
        they do. Where there are none, a deviation in std is drawn from those of other returns.
        """
        return self._with_rest(returns, *self._whole), returns.start[:, 0].astype(np.intp)

    @cached_property
    def _whole(self) -> tuple[Array, Array]:
        """Returns by state, their rest drawn from themselves, and the states in which they began.

        Drawn twice, what is missing has a discount of 0.05³.
        """
        placed = self.observed[1]
        start, whole = placed.start[:, 0], placed.completed(_lookup(self.fit.value))
        order = np.argsort(start, kind="stable")
        for _ in range(2):
            whole = self._with_rest(placed, whole[order], start[order])
        return whole[order], start[order]

    def _with_rest(self, returns: Returns, whole: Array, start: Array) -> Array:
        """Returns, with a rest drawn from whole ones, sorted by the state they began in."""
        value, rest = _lookup(self.fit.value), returns.rest
        total, rng = returns.completed(value), np.random.default_rng(0)  # the same draws each time
        if not rest.any():
            return total
        first, end = (np.searchsorted(start, returns.end[:, 0], side) for side in ("left", "right"))
        known = end - first
        place = first + (rng.random(total.size) * known).astype(np.intp)
        drawn = np.append(whole, 0.0)[np.where(known, place, -1)] - value(returns.end)
        bent = total
        if self._scores.size:
            spread = np.sqrt(returns.missing_variance(_lookup(self.fit.variance)))
            bent = total + spread * rng.choice(self._scores, total.size)
            bent = np.clip(bent, total.min(), total.max())
        return np.where(rest == 0, total, np.where(known > 0, total + rest * drawn, bent))

    @cached_property
    def _scores(self) -> Array:
        """Deviations of the returns in sequence, in std, centred."""
        sequence = self.observed[0]
        value, std = self._fitted(sequence.start[:, 0].astype(np.intp))
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = (sequence.completed(_lookup(self.fit.value)) - value) / std
        scores = scores[np.isfinite(scores)]
        return scores - scores.mean() if scores.size else scores

    @cached_property
    def returns_by_state(self) -> ReturnsByState:
        """Returns that calibrate, of each state apart."""
        return ReturnsByState(*self._completed(self.observed[1]))

    def return_interval(
        self, states: Any = None, level: float = 0.9, *, above: bool = False
    ) -> Any:
        """Lower and upper end for new returns; with `above`, a lower limit alone.

        In states with enough calibration returns it holds there, elsewhere on average over states.
        Where many returns are equal their scores say little of another state, whose interval then
        reaches at least as far as its own returns.
        """
        pooled = super().return_interval(states, level, above=above)
        at, own = (
            self._index(self._all_states() if states is None else states),
            self.returns_by_state,
        )
        low = high = np.full(at.size, np.nan)
        if self.calibration.few_values(level):
            low, high = own.extremes(at)
        if above:
            limit = own.quantile(at, 1.0 - level)
            return np.where(np.isfinite(limit), limit, np.fmin(pooled, low))
        ends = own.interval(at, level)
        wider = np.fmin(pooled[0], low), np.fmax(pooled[1], high)
        return tuple(
            np.where(np.isfinite(ends[0]), *pair) for pair in zip(ends, wider, strict=True)
        )

    def few_values(self, state: Any, level: float = 0.9) -> str:
        """A word where the return interval of a state holds more than its level."""
        if self.calibrated_here(state, level):
            return self.returns_by_state.note(int(self._index([state])[0]), level)
        return super().few_values(state, level)

    def calibrated_here(self, state: Any, level: float) -> bool:
        """Whether the return interval of a state rests on returns of this state."""
        return bool(np.isfinite(self.returns_by_state.interval(self._index([state]), level)[0][0]))

    def _cut_off(self) -> NDArray[np.bool_]:
        return np.asarray(self.observed[0].missing_share > CLOSED)

    # ------------------------------------------------------------------ files

    def _saved(self) -> tuple[dict[str, Any], dict[str, Any]]:
        rewards = list(self.rewards) if self.steps else []
        header = {"states": self._states, "off_policy": self.off_policy, "rewards": rewards}
        arrays = {
            f"{part}.{name}": array
            for part, sums in zip(NAMES, self.sums, strict=True)
            for name, array in sums.arrays().items()
        }
        return header, arrays | {"part": self._part}

    @classmethod
    def _restore(cls, learner: Learner, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        found = cls(learner, header["states"])
        found.off_policy, found.steps = header["off_policy"], header["steps"]
        if header["rewards"]:
            found._see(header["rewards"])
        found._part, found._began = arrays["part"].copy(), arrays["part"].copy()
        fit, rest = ({name: arrays[f"{part}.{name}"] for name in ARRAYS} for part in NAMES)
        found.sums = Sums.restored(fit), Sums.restored(rest)
        return found


def refuse_gaps(states: int, transitions: int) -> None:
    """Refuse numbers that are hardly those of states, which would fill the memory."""
    if states > max(MANY_STATES, GAP * transitions):
        remedy = (
            f"are many more than there are transitions ({transitions:,} so far); use numbers with "
            "gaps as labels (states='labels')"
        )
        raise InputError("state", f"numbers up to {states - 1:,}", remedy)


def _lookup(table: Array) -> Any:
    """A function that finds rows of states in a table, 0 where it has NaN."""
    return lambda rows: np.nan_to_num(table)[rows[:, 0].astype(np.intp)]
