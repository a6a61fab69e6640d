"""The least-squares estimator of a finite world.

Episodes are split at random into two parts, and the sums of both are kept. Both together give the
estimates; the larger part alone gives those that return intervals are calibrated with, on returns
of the other part. These are collected when they are asked for, in a second reading.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.least_squares import BLOCK, LeastSquares, Solver
from retvar.estimation.least_squares_estimator import LeastSquaresEstimator
from retvar.estimation.ratio_check import RatioCheck, check_sums
from retvar.estimation.return_intervals import Calibration, ReturnsByState
from retvar.estimation.returns import (
    CLOSED,
    KEYS,
    NOWHERE,
    Returns,
    rows_of,
    whole_trajectories,
)
from retvar.estimation.sums import Sums
from retvar.experience.moves import Moves
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.files import free_memory
from retvar.support.format import literal
from retvar.td.features import States
from retvar.td.jit import compiled
from retvar.td.learners import Learner
from retvar.td.random import U, mix

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Chunk = dict[str, NDArray[Any]]
FIT, CALIBRATION = 0, 1
NAMES = ("fit.", "calibration.")  # of the parts in files
PARTS = 3  # one in three episodes calibrates return intervals
HORIZONS = 10.0  # of an episode that does not end; then the next one may belong to the other part
RETURNS = 20_000  # that are stored
MOST_STATES = 2**31
BYTES = 350  # of the estimates of a state
MANY_STATES, GAP = 1_000_000, 10  # more states than these, and than so many for each transition


def refuse_gaps(states: int, transitions: int) -> None:
    """Refuse numbers that are hardly those of states, which would fill the memory."""
    if states > max(MANY_STATES, GAP * transitions):
        remedy = (
            f"are many more than there are transitions ({transitions:,} so far); use numbers with "
            "gaps as labels (states='labels')"
        )
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
    computed = ("solution", "fit", "observed", "returns_by_state", "_scores", "_whole")
    state_limits = 0, MOST_STATES

    def __init__(self, learner: Learner, states: int, fixed: bool = False) -> None:
        super().__init__(learner)
        self.sums = Sums(), Sums()
        self.moves = Moves()  # that were read last, for checks and return intervals
        self._states = arguments.integer("states", states, 1, MOST_STATES)
        if states * BYTES > free_memory():
            raise InputError("states", f"{states:,}", "do not fit in memory; use fewer, or labels")
        self._fixed = fixed  # whether there are no more
        self._solver: Solver | None = None  # for standard errors of more states
        self.begin()

    @property
    def features(self) -> list[Any]:
        """One weight for each state."""
        return [States(self._states)]

    def begin(self, piece: int = 0) -> None:
        """Begin a piece of a log; each splits its episodes in a way of its own."""
        episode = piece << 40
        self._part = np.array(
            [int(mix(U(episode)) % U(PARTS) == U(0)), 0, episode]
        )  # of the next row: its part, rows
        self._began = self._part.copy()  # of the episode before; the same where `moves` begins

    def read(self, moves: Moves) -> None:
        """Add the transitions of a table, which checks and return intervals read again."""
        self.moves, self._began = moves, self._part.copy()
        super().read(moves)

    def add(self, chunk: Chunk) -> None:
        """Add transitions, one trajectory after the other."""
        if not (count := len(chunk["reward"])):
            return
        self._grow(chunk)
        rows = self._rows(chunk)
        self._see(rows["reward"], count)
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
        top = max(int(np.max(chunk[name], initial=0)) for name in ("state", "next_state")) + 1
        if top > self._states and self._fixed:
            raise InputError("state", top - 1, f"unknown; states are 0 to {self._states - 1}")
        if top > self._states:
            refuse_gaps(top, self.steps + len(chunk["reward"]))
            self._states = arguments.integer("states", top, 1, MOST_STATES)

    def _split(self, rows: Chunk, state: Integers) -> tuple[Integers, Mask, Mask]:
        """The part that each transition belongs to, and where an endless episode is cut.

        The last says which are so late before such a cut that a return from there is cut off.
        """
        ends, gamma = rows["terminated"] | rows["truncated"], rows["gamma"]
        largest = float(gamma.max(initial=0.0))
        if largest >= 1.0 and not ends.all():  # what γ is on average as episodes go on
            largest = float(gamma[~ends].mean())
        longest = late = 2**62
        if largest < 1.0:
            longest = math.ceil(HORIZONS / (1.0 - largest))
            late = longest - math.ceil(math.log(CLOSED) / math.log(max(largest, CLOSED)))
        part, cut, too_late = assign(ends, longest, late, state)
        return part, cut, too_late

    def merge(self, other: StateEstimator, number: Integers | None = None) -> None:
        """Add what another estimator has seen; state s of its is ``number[s]`` here."""
        states = other._states if number is None else int(number.max(initial=0)) + 1
        self._states = max(self._states, states)
        for own, theirs in zip(self.sums, other.sums, strict=True):
            own.merge(theirs, number)
        self._see(other.rewards, other.steps)
        self.off_policy |= other.off_policy

    # ------------------------------------------------------------------ estimates

    @cached_property
    def solution(self) -> LeastSquares:
        """Estimates from all transitions."""
        whole = Sums()
        for sums in self.sums:
            whole.merge(sums)
        solver = Solver(whole, self._states)
        found = solver.solution()
        self._solver = solver if found.probes else None  # otherwise it has nothing to add
        return found

    @cached_property
    def fit(self) -> LeastSquares:
        """Estimates from the part that return intervals are not calibrated on."""
        return Solver(self.sums[FIT], self._states).solution(np.zeros(0, dtype=np.intp))

    @property
    def remarks(self) -> list[str]:
        """How standard errors were computed."""
        probes = "standard errors rest on random probes, for the most visited states only"
        return [probes] if self.solution.probes else []

    @property
    def ratios(self) -> RatioCheck | None:
        """Mean importance ratios of the states, and which are not 1; None on-policy."""
        return check_sums(self.sums, self._states)

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

    def _look_up(self, states: Any) -> tuple[LeastSquares, NDArray[np.intp]]:
        return self.solution, self._index(states)

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
    def observed(self) -> tuple[Returns, Returns]:
        """Returns of the part that calibrates, in sequence and by state."""
        one, each = (Returns(1, RETURNS) for _ in range(2))
        state, weighted = self._began.copy(), self.description.estimand == "off_policy_return"
        for chunk in () if self.off_policy else whole_trajectories(self.moves):
            rows = self._rows(chunk)
            part, cut, late = self._split(rows, state)
            rows["truncated"] = rows["truncated"] | cut
            bent = bool((rows["lam"][~rows["terminated"]] < 1.0).any())
            value = np.nan_to_num(self.fit.value)[rows["next_state"]] if bent else 0.0
            eta = rows.get("rho", 1.0) if weighted else 1.0
            columns = rows_of(rows, rows["gamma"], rows["lam"], eta, value)
            begins = (part == CALIBRATION) & ~late
            one.add(np.where(begins, 0, NOWHERE), columns)
            each.add(np.where(begins, rows["state"] & (KEYS - 1), NOWHERE), columns)
        return one, each

    def add_returns(self, observed: tuple[Returns, Returns]) -> None:
        """Add returns that calibrate, which were collected elsewhere."""
        if self.__dict__.setdefault("observed", observed) is not observed:
            for own, theirs in zip(self.observed, observed, strict=True):
                own.merge(theirs)

    def _fitted(self, states: Any) -> tuple[Array, Array]:
        at = self._index(states)
        return self.fit.value[at], self.fit.std[at]

    @cached_property
    def calibration(self) -> Calibration:
        """Scores of the returns that the fit has not seen."""
        total, start = self._completed(self.observed[0])
        return Calibration.of(total, *self._fitted(start), self._cut_off())

    @cached_property
    def returns_by_state(self) -> ReturnsByState:
        """Returns that calibrate, of each state apart."""
        return ReturnsByState(*self._completed(self.observed[1]))

    def _cut_off(self) -> Mask:
        return np.asarray(self.observed[0].missing_share > CLOSED)

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

    # ------------------------------------------------------------------ files

    def _saved(self) -> tuple[dict[str, Any], dict[str, Any]]:
        rewards = list(self.rewards) if self.steps else []
        header = {"states": self._states, "off_policy": self.off_policy, "rewards": rewards}
        fit, rest = (sums.arrays(name) for sums, name in zip(self.sums, NAMES, strict=True))
        return header, {"part": self._part} | fit | rest

    @classmethod
    def _restore(cls, learner: Learner, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        found = cls(learner, header["states"])
        found.off_policy = header["off_policy"]
        if header["rewards"]:
            found._see(header["rewards"], header["steps"])
        found._part, found._began = arrays["part"].copy(), arrays["part"].copy()
        fit, rest = (Sums.restored(arrays, name) for name in NAMES)
        found.sums = fit, rest
        return found


def _lookup(table: Array) -> Any:
    """A function that finds rows of states in a table, 0 where it has NaN."""
    return lambda rows: np.nan_to_num(table)[rows[:, 0].astype(np.intp)]


@compiled
def assign(ends: Any, longest: Any, late: Any, state: Any) -> Any:
    """Give each transition to a part; a new episode, or a long one, draws again."""
    part = np.zeros(ends.size, dtype=np.int64)
    cut, too_late = np.zeros((2, ends.size), dtype=np.bool_)
    for t in range(ends.size):
        part[t] = state[0]
        too_late[t] = state[1] > late
        state[1] += 1
        over = state[1] >= longest
        if ends[t] or over:
            cut[t] = over and not ends[t]
            state[1] = 0
            state[2] += 1
            state[0] = 1 if mix(U(state[2])) % U(PARTS) == U(0) else 0
    return part, cut, too_late
