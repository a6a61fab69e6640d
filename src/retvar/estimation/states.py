"""The least-squares estimator of a finite world.

The sums of all transitions give the estimates; sums of several logs can be added.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.least_squares import BLOCK, LeastSquares, Solver
from retvar.estimation.least_squares_estimator import LeastSquaresEstimator
from retvar.estimation.ratio_check import RatioCheck, check_sums
from retvar.estimation.return_intervals import Calibration
from retvar.estimation.returns import CLOSED, Returns
from retvar.estimation.sums import Sums
from retvar.experience.moves import Chunk, Moves
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.files import free_memory
from retvar.support.format import literal
from retvar.td.features import States
from retvar.td.learners import Learner

Array = NDArray[np.float64]
Integers = NDArray[np.intp]
Mask = NDArray[np.bool_]
MOST_STATES = 2**31
BYTES = 350  # of the estimates of a state
MANY_STATES, GAP = 1_000_000, 10  # more states than these, and than so many for each transition


def refuse_many(states: int, transitions: int | None = None, each: int = BYTES) -> None:
    """Refuse numbers that are hardly those of states, or need more memory than there is.

    `each` is how many bytes a state needs.
    """
    why = ""
    if states * each > free_memory():
        why = "do not fit in memory"
    elif transitions is not None and states > max(MANY_STATES, GAP * transitions):
        why = f"are many more than there are transitions ({transitions:,} so far)"
    if why:
        remedy = f"{why}; use numbers with gaps as labels (states='labels')"
        raise InputError("state", f"numbers up to {states - 1:,}", remedy)


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
    computed = ("solution",)

    def __init__(self, learner: Learner, states: int) -> None:
        super().__init__(learner)
        self.sums, self.moves = Sums(), Moves()  # the rows that were read last
        self.grow(states)
        self._solver: Solver | None = None  # for standard errors of more states

    def grow(self, states: int) -> None:
        """Make room for so many states."""
        self._states = arguments.integer("states", states, 1, MOST_STATES)
        refuse_many(states)
        self.state_limits = 0, states - 1

    @property
    def features(self) -> list[Any]:
        """One weight for each state."""
        return [States(self._states)]

    def read(self, moves: Moves) -> None:
        """Add the transitions of a table, which is kept for the law of the return."""
        self.moves = moves
        super().read(moves)

    def add(self, chunk: Chunk) -> None:
        """Add transitions, one trajectory after the other."""
        rows = self._rows(chunk)
        self.off_policy |= "rho" in rows and bool((rows["rho"] != 1.0).any())
        self.sums.add(**_summed(rows))
        self._count(len(chunk["reward"]))

    def _rows(self, chunk: Chunk) -> Chunk:
        rows = super()._rows(chunk)
        if "rho" in rows and self.description.estimand == "off_policy_return":
            eta = rows.pop("rho")  # which multiplies the return itself
            rows |= {name: eta * rows[name] for name in ("reward", "gamma")}
        return rows

    def merge(self, other: StateEstimator, number: Integers | None = None) -> None:
        """Add what another estimator has seen; state s of its is ``number[s]`` here."""
        states = other._states if number is None else int(number.max(initial=0)) + 1
        self.grow(max(self._states, states))
        self.sums.merge(other.sums, number)
        self.off_policy |= other.off_policy
        self._count(other.steps)

    # ------------------------------------------------------------------ estimates

    @cached_property
    def solution(self) -> LeastSquares:
        """Estimates from all transitions."""
        solver = Solver(self.sums, self._states)
        found = solver.solution()
        self._solver = solver if found.probes else None  # otherwise it has nothing to add
        return found

    @property
    def remarks(self) -> list[str]:
        """How standard errors were computed."""
        probes = "standard errors rest on random probes, for the most visited states only"
        return [probes] if self.solution.probes else []

    @property
    def ratios(self) -> RatioCheck | None:
        """Mean importance ratios of the states, and which are not 1; None on-policy."""
        return check_sums([self.sums], self._states)

    def add_errors(self, states: Any) -> None:
        """Compute standard errors of these states, up to 512; of many, few have them at first."""
        found, at = self.solution, self._index(states)
        if self._solver is None or at.size > BLOCK:
            return
        at = np.unique(at[np.isnan(found.value_df[at]) & np.isfinite(found.value[at])])
        more = vars(self._solver.solution(at)) if at.size else {}
        for name, column in more.items():
            if isinstance(column, np.ndarray):
                getattr(found, name)[at] = column[at]

    def _all_states(self) -> Integers:
        return np.arange(self._states)

    def _look_up(self, states: Any) -> tuple[LeastSquares, Integers]:
        return self.solution, self._index(states)

    def _index(self, states: Any) -> Integers:
        column = arguments.array("state", states, "whole numbers")
        if column.ndim != 1 or (column.dtype.kind not in "iu" and column.size):
            raise InputError("state", literal(states), "must be whole numbers")
        known = (column >= 0) & (column < self._states)
        if not known.all():
            wrong = int(column[~known][0])
            raise InputError("state", wrong, f"unknown; states are 0 to {self._states - 1}")
        return column.astype(np.intp)

    def calibrated(self, returns: Returns) -> tuple[Calibration, Array, Integers]:
        """Scores of observed returns, these returns, and the states in which they began.

        The rest of a return that was cut off is the value of the last state, and a deviation drawn
        from those of the others.
        """
        value, variance = _lookup(self.solution.value), _lookup(self.solution.variance)
        start, total = returns.start[:, 0].astype(np.intp), returns.completed(value)
        known = self.solution.value[start], self.solution.std[start]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = (total - known[0]) / known[1]
        scores = scores[np.isfinite(scores)]
        if scores.size:
            drawn = np.random.default_rng(0).choice(scores - scores.mean(), total.size)
            whole = total + np.sqrt(returns.missing_variance(variance)) * drawn
            total = np.clip(whole, total.min(), total.max())
        cut = returns.missing_share > CLOSED
        return Calibration.of(total, *known, cut), total, start

    # ------------------------------------------------------------------ files

    def _saved(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"states": self._states, "off_policy": self.off_policy}, self.sums.arrays()

    @classmethod
    def _restore(cls, learner: Learner, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        found = cls(learner, header["states"])
        found.off_policy, found.sums = header["off_policy"], Sums.restored(arrays)
        found._count(header["steps"])
        return found


def _summed(rows: Chunk) -> Chunk:
    """The columns that are added up."""
    return {name: column for name, column in rows.items() if name != "truncated"}


def _lookup(table: Array) -> Any:
    """A function that finds rows of states in a table, 0 where it has NaN."""
    return lambda rows: np.nan_to_num(table)[rows[:, 0].astype(np.intp)]
