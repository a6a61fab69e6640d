"""The least-squares estimator of a finite world: sums of transitions in, value and spread out.

The sums of the two parts of the episodes are kept apart, and added for the estimates.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.estimation.least_squares import (
    BLOCK,
    LeastSquares,
    Solver,
    least_squares,
    require_room,
)
from retvar.estimation.least_squares_estimator import (
    CALIBRATION,
    FIT,
    RATIOS,
    REWARDS,
    LeastSquaresEstimator,
    Split,
    read_column,
    refuse_unknown,
    row_count,
)
from retvar.estimation.monitor import CLOSED, PLENTY
from retvar.estimation.ratio_check import RatioCheck, check_sums
from retvar.estimation.return_intervals import Held, ReturnsByState
from retvar.estimation.returns import ELSEWHERE, NOWHERE, Returns
from retvar.estimation.transition_sums import TransitionSums
from retvar.experience.stream import LARGEST_RATIO, LARGEST_REWARD
from retvar.features import States
from retvar.format import literal
from retvar.jit import compiled, read_only
from retvar.learners import Learner
from retvar.online.checkpoint import check_array, write_tensors
from retvar.online.columns import MOST_STREAMS
from retvar.online.memory_layout import TERMINATED, TRUNCATED

__all__ = ["TabularEstimator"]

Array = NDArray[np.float64]
Chunk = dict[str, NDArray[Any]]
RETURNS = 20_000  # that are stored
KEYS = 64  # returns by state that may be open at once; a power of 2
MOST_STATES = 2**31
KIND = "least_squares"  # of saved files
NAMES, ARRAYS = ("fit", "calibration"), ("keys", "numbers", "sums", "rows")
TYPES = {
    "state": np.int64, "next_state": np.int64, "reward": np.float64, "terminated": np.bool_,
    "truncated": np.bool_, "stream": np.int64, "rho": np.float64,
}  # fmt: skip  # of columns


class TabularEstimator(LeastSquaresEstimator):
    """Value, variance and std of every state, by least squares.

    >>> import numpy as np, retvar as rv
    >>> rng = np.random.default_rng(0)
    >>> risk = TabularEstimator(rv.Direct(alpha=0.0, gamma=0.5, lam=1.0), states=1)
    >>> zero = np.zeros(10_000, dtype=int)
    >>> risk.update_many({"state": zero, "next_state": zero, "reward": rng.normal(3, 2, 10_000)})
    >>> round(risk.value(0)), round(risk.std(0), 1)
    (6, 2.3)
    >>> low, high = risk.interval(0, "std")
    >>> bool(low < (4 / 0.75) ** 0.5 < high)
    True
    """

    file_kind, file_of = KIND, "the least-squares estimator"

    def __init__(self, learner: Learner, states: int) -> None:
        super().__init__(learner)
        self.returns, self.placed = (  # that calibrate, in sequence and by state
            Returns(keys, 1, RETURNS, negligible=CLOSED, plenty=PLENTY) for keys in (1, KEYS)
        )
        self.sums = (TransitionSums(), TransitionSums())
        self._states = arguments.integer("states", states, 1, MOST_STATES)
        self._solver: Solver | None = None  # of many states: for standard errors of further ones

    # ------------------------------------------------------------------ adding transitions

    @property
    def features(self) -> list[Any]:
        """One weight for each state."""
        return [States(self._states)]

    def grow(self, states: int) -> None:
        """Make room for more states."""
        self._states = max(self._states, arguments.integer("states", states, 1, MOST_STATES))
        self._forget()

    def update_many(self, chunk: Chunk, on_error: str = "raise") -> None:
        """Add transitions, as columns; bad ones are refused or, with ``"skip"``, left out."""
        rows = _Rows(chunk, self)
        if rows.bad.any():
            if on_error != "skip":
                raise rows.problem()
            self.rejected += int(rows.bad.sum())
            rows = rows.without_bad()
        if len(rows) == 0:
            return
        self._forget()
        self._see(rows.reward)
        split = self._assign(rows.stream, rows.flags, rows.gamma)
        for which in (FIT, CALIBRATION):
            self._add(self.sums[which], rows, split.part, which)
        self.off_policy |= rows.off_policy
        if not self.off_policy:
            self._observe(rows, split)
        self.steps += len(rows)

    def _add(self, sums: TransitionSums, rows: _Rows, part: NDArray[np.int64], which: int) -> None:
        if rows.rho is None:
            columns = rows.state, rows.next_state, rows.reward, rows.gamma, rows.trace
            sums.add_part(*columns, part, which)
            return
        mine = part == which
        sums.add(
            rows.state[mine], rows.next_state[mine], rows.reward[mine], gamma=rows.gamma[mine],
            lam=rows.lam[mine], terminated=rows.terminated[mine], rho=rows.rho[mine],
            off_policy_return=self._weighted_return,
        )  # fmt: skip

    @property
    def _weighted_return(self) -> bool:
        return bool(self.description.estimand == "off_policy_return")

    def _observe(self, rows: _Rows, split: Split) -> None:
        """Collect returns of the part that calibrates."""
        mine = split.part == CALIBRATION
        if not mine.any():
            return
        eta = rows.rho if rows.rho is not None and self._weighted_return else None
        flags = rows.flags | np.where(split.cut, TRUNCATED, 0) if split.cut.any() else rows.flags
        ends = rows.state[:, None], rows.next_state[:, None]
        begins = np.where(mine, np.where(split.late, NOWHERE, 0), ELSEWHERE)
        by_state = np.where(begins == 0, rows.state & (KEYS - 1), begins)
        for returns, key in ((self.returns, begins), (self.placed, by_state)):
            returns.add(
                key, *ends, rows.reward, rows.gamma, rows.lam, eta, flags, rows.stream
            )  # fmt: skip

    def merge(self, other: TabularEstimator, number: NDArray[np.int64] | None = None) -> None:
        """Add what another estimator has seen; state s of its is ``number[s]`` here.

        >>> import numpy as np, retvar as rv
        >>> learner = rv.Direct(alpha=0.0, gamma=0.5, lam=1.0)
        >>> one, two = TabularEstimator(learner, states=1), TabularEstimator(learner, states=1)
        >>> for risk, reward in ((one, 1.0), (two, 3.0)):
        ...     risk.update_many({"state": np.zeros(2, dtype=int), "reward": np.full(2, reward),
        ...                       "next_state": np.zeros(2, dtype=int)})
        >>> one.merge(two)
        >>> one.steps, one.value(0)
        (4, 4.0)
        """
        self._forget()
        states = other._states if number is None else int(number.max(initial=0)) + 1
        self._states = max(self._states, states)
        for own, theirs in zip(self.sums, other.sums, strict=True):
            if number is not None:
                theirs.renumber(number)
            own.merge(theirs)
        self.returns.merge(other.returns, number)
        self.placed.merge(other.placed, number)
        self._see(other.rewards)
        self.steps += other.steps
        self.rejected += other.rejected
        self.off_policy |= other.off_policy

    # ------------------------------------------------------------------ estimates

    def _forget(self) -> None:
        """Discard solutions of the sums as they were."""
        super()._forget()
        self._solver = None
        for name in ("solution", "fit", "returns_by_state", "_whole"):
            self.__dict__.pop(name, None)

    @cached_property
    def solution(self) -> LeastSquares:
        """Estimates from all transitions."""
        whole = TransitionSums()
        for sums in self.sums:
            whole.merge(sums)
        solver = Solver(whole, self._states)
        found = solver.solution()
        self._solver = solver if found.probes else None
        return found

    @property
    def ratios(self) -> RatioCheck | None:
        """Mean importance ratios of the states, and which are not 1; None on-policy."""
        return check_sums(self.sums, self._states)

    def add_errors(self, states: Any) -> None:
        """Compute standard errors of these states, up to 512, where they are not known yet.

        Of many states, only the most visited have them from the start.
        """
        found, at = self.solution, self._index(states)
        if self._solver is None or at.size > BLOCK:
            return
        at = np.unique(at[np.isnan(found.value_df[at]) & np.isfinite(found.value[at])])
        if at.size:
            more = self._solver.solution(at)
            for name, column in vars(found).items():
                if isinstance(column, np.ndarray):
                    column[at] = getattr(more, name)[at]

    @cached_property
    def fit(self) -> LeastSquares:
        """Estimates from the part that return intervals are not calibrated on."""
        return least_squares(self.sums[FIT], self._states, at=np.zeros(0, dtype=np.intp))

    def predict(self, states: Any, what: str = "value") -> Array:
        """Estimates for a column of states: ``"value"``, ``"mean"``, ``"variance"`` or ``"std"``.

        NaN where the log does not determine them; :attr:`solution` has a note on why.
        """
        refuse_unknown(what)
        whole: Array = getattr(self.solution, "value" if what == "mean" else what)
        return whole[self._index(states)]

    def _all_states(self) -> NDArray[np.int64]:
        require_room(self._states)
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

    def _fitted(self, states: Any) -> tuple[Array, Array]:
        at = self._index(states)
        return self.fit.value[at], self.fit.std[at]

    def _calibration_returns(self) -> tuple[Array, Any]:
        return self._completed(self.returns)

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
        start = self.placed.start[:, 0]
        order = np.argsort(start, kind="stable")
        whole = self.placed.completed(_lookup(np.nan_to_num(self.fit.value)))
        for _ in range(2):
            whole = self._with_rest(self.placed, whole[order], start[order])
        return whole[order], start[order]

    def _with_rest(self, returns: Returns, whole: Array, start: Array) -> Array:
        """Returns, with a rest drawn from whole ones, which are sorted by the state they began in.

        The same draws each time it is asked.
        """
        value, variance = (np.nan_to_num(x) for x in (self.fit.value, self.fit.variance))
        total = returns.completed(_lookup(value))
        rest, end, scores = returns.rest, returns.end[:, 0], self._scores
        if not rest.any():
            return total
        rng = np.random.default_rng(0)
        first = np.searchsorted(start, end)
        known = np.searchsorted(start, end, "right") - first
        place = first + (rng.random(total.size) * known).astype(np.intp)
        drawn = np.append(whole, 0.0)[np.where(known, place, -1)] - _lookup(value)(returns.end)
        if scores.size:
            spread = np.sqrt(returns.missing_variance(_lookup(variance)))
            bent = np.clip(
                total + spread * rng.choice(scores, total.size), total.min(), total.max()
            )
        else:
            bent = total
        return np.where(rest == 0, total, np.where(known > 0, total + rest * drawn, bent))

    @property
    def _scores(self) -> Array:
        """Deviations of the returns in sequence, in std, centred."""
        start = self.returns.start[:, 0].astype(np.intp)
        total = self.returns.completed(_lookup(np.nan_to_num(self.fit.value)))
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = (total - self.fit.value[start]) / self.fit.std[start]
        scores = scores[np.isfinite(scores)]
        return scores - scores.mean() if scores.size else scores

    @cached_property
    def returns_by_state(self) -> ReturnsByState:
        """Returns that calibrate, of each state apart."""
        return ReturnsByState(*self._completed(self.placed))

    def return_interval(
        self, states: Any = None, level: float = 0.9, *, above: bool = False
    ) -> Any:
        """Lower and upper end for new returns; with `above`, a lower limit alone.

        In states with enough calibration returns it holds there, elsewhere on average over states.
        """
        pooled = super().return_interval(states, level, above=above)
        at = self._index(self._column(None, states))
        if above:
            own = self.returns_by_state.quantile(at, 1.0 - level)
            return np.where(np.isfinite(own), own, pooled)
        ends = self.returns_by_state.interval(at, level)
        return tuple(
            np.where(np.isfinite(ends[0]), mine, theirs)
            for mine, theirs in zip(ends, pooled, strict=True)
        )

    def return_interval_held(self, states: Any, level: float = 0.9) -> list[Held]:
        """How many of the calibration returns each return interval held."""
        own = zip(*self.returns_by_state.held(self._index(states), level), strict=True)
        pooled = self.calibration.held(level)
        return [pooled if np.isnan(share) else Held(share, excess) for share, excess in own]

    def return_interval_note(self, level: float = 0.9) -> str:
        """Why return intervals of this level are missing, doubtful or hold more; otherwise empty.

        >>> import retvar as rv
        >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=20_000, seed=1)
        >>> rv.estimate(lake, gamma=0.9).estimator.return_interval_note()
        'returns take few values: 90% intervals held 98% of the calibration returns'
        """
        return super().return_interval_note(level) or self._note_on_few_values(level)

    def _note_on_few_values(self, level: float) -> str:
        """A word where so many returns are equal that intervals hold more than their level."""
        start = self.placed.start[:, 0].astype(np.intp)
        total = self.placed.completed(lambda rows: np.zeros(len(rows)))
        whole = np.flatnonzero(self.placed.rest == 0)
        order = whole[np.lexsort((total[whole], start[whole]))]
        if not np.any((np.diff(total[order]) == 0) & (np.diff(start[order]) == 0)):
            return ""  # without a solution of the fit, which takes long for many states
        visited, times = np.unique(start, return_counts=True)
        share, excess = self.returns_by_state.held(visited, level)
        known = np.isfinite(share)
        if not known.any():
            return ""
        held = Held(*(float(np.average(x[known], weights=times[known])) for x in (share, excess)))
        if not held.note:
            return ""
        shares = f"{100 * level:.4g}% intervals held {held.share:.0%}"
        return f"returns take few values: {shares} of the calibration returns"

    def calibrated_here(self, states: Any, level: float) -> NDArray[np.bool_]:
        """Whether the return interval of each state rests on returns of this state."""
        return np.isfinite(self.returns_by_state.interval(self._index(states), level)[0])

    def _cut_off(self) -> NDArray[np.bool_]:
        return np.asarray(self.returns.truncated & (self.returns.missing_share > CLOSED))

    # ------------------------------------------------------------------ files

    def save(self, path: Any) -> None:
        """Write the sums to a file, from which :meth:`load` continues.

        Returns observed so far are not saved: a loaded estimator collects new ones.
        """
        header = self._header() | {"states": self._states, "off_policy": self.off_policy}
        header["rewards"] = list(self.rewards) if self.steps else []
        tensors = {
            f"{part}.{name}": array
            for part, sums in zip(NAMES, self.sums, strict=True)
            for name, array in sums.arrays().items()
        }
        write_tensors(path, header, tensors | {"part": self._part})

    @classmethod
    def _restored(cls, header: dict[str, Any], learner: Learner, tensors: dict[str, Any]) -> Self:
        found = cls(learner, header["states"])
        require_room(found._states)
        for name, own in (("gamma", found.gammas), ("lam", found.lams)):
            if own.size not in (1, found._states):
                raise InputError(name, f"{own.size} numbers", f"must be one or {found._states}")
        found.off_policy = arguments.flag("off_policy", header["off_policy"])
        if header.get("rewards"):
            low, high = (arguments.number("rewards", x) for x in header["rewards"])
            found.rewards = low, high
        found._part = np.array(tensors["part"])
        check_array("part", found._part, (len(found._part), 3), np.int64)
        if found._part.min(initial=0) < 0 or found._part[:, 0].max(initial=0) > CALIBRATION:
            raise InputError("part", "out of range", "must be 0 or 1, and counts")
        arguments.integer("streams", len(found._part), 0, MOST_STREAMS)
        largest = np.inf if found._weighted_return else 1.0
        found.sums = tuple(  # type: ignore[assignment]
            TransitionSums.restored(
                {n: tensors[f"{part}.{n}"] for n in ARRAYS}, found._states, largest
            )
            for part in NAMES
        )
        found.steps = sum(sums.rows for sums in found.sums)
        return found

    def __repr__(self) -> str:
        return f"<least squares: {self.steps:,} steps, {self.rejected:,} rejected>"


class _Rows:
    """The columns of a chunk as arrays, and which rows cannot be used."""

    def __init__(self, chunk: Chunk, estimator: TabularEstimator) -> None:
        n = row_count(chunk)
        self.state, follows, self.reward, self.terminated, truncated, self.stream, rho = (
            read_column(chunk, name, kind, n) for name, kind in TYPES.items()
        )
        self.rho = None if chunk.get("rho") is None else rho
        self._states = estimator.features[0].states
        gamma, lam = (
            self._discount(chunk, name, own, follows)
            for name, own in (("gamma", estimator.gammas), ("lam", estimator.lams))
        )
        columns = self.state, follows, self.reward, self.terminated, truncated, gamma, lam
        self.next_state, self.flags, self.gamma, self.lam, self.trace, good = prepared(
            *map(read_only, columns), self._states
        )
        if self.rho is not None:
            good &= bool(((self.rho >= 0) & (self.rho <= LARGEST_RATIO)).all())
        self.problems: dict[str, NDArray[np.bool_]] = {} if good else self._problems()
        self.bad: NDArray[np.bool_] = (
            np.zeros(n, dtype=bool) if good else np.any(list(self.problems.values()), axis=0)
        )
        weighted = self.rho is not None and bool((self.rho != 1.0).any())
        self.off_policy = weighted and estimator.description.estimand != "off_policy_return"

    def _problems(self) -> dict[str, NDArray[np.bool_]]:
        """What is wrong with each row, by column."""
        inside = [(s >= 0) & (s < self._states) for s in (self.state, self.next_state)]
        found = {
            "state": ~(inside[0] & inside[1]),
            "reward": ~(np.abs(self.reward) <= LARGEST_REWARD),
            "gamma": ~((self.gamma >= 0) & (self.gamma <= 1)),
            "lam": ~((self.lam >= 0) & (self.lam <= 1)),
        }
        if self.rho is not None:
            found["rho"] = ~((self.rho >= 0) & (self.rho <= LARGEST_RATIO))
        return found

    @staticmethod
    def _discount(chunk: Chunk, name: str, own: Array, follows: Any) -> Array:
        if name in chunk:
            return read_column(chunk, name, np.float64, follows.size)
        if own.size == 1:
            return own
        return own[np.where((follows >= 0) & (follows < own.size), follows, 0)]

    def __len__(self) -> int:
        return int(self.reward.size)

    def problem(self) -> InputError:
        """An error that names the first bad number."""
        name = next(name for name, bad in self.problems.items() if bad.any())
        row = int(np.argmax(self.problems[name]))
        column: Any = {"state": self.state, "reward": self.reward, "gamma": self.gamma,
                  "lam": self.lam, "rho": self.rho}[name]  # fmt: skip
        remedy = {
            "state": "and the next state must be known states",
            "reward": REWARDS,
            "rho": RATIOS,
        }.get(name, "must lie in [0, 1]; give it here or to the learner")
        return InputError(f"{name}[{row}]", column[row], remedy)

    def without_bad(self) -> _Rows:
        """The good rows."""
        good = ~self.bad
        for name in ("state", "next_state", "reward", "terminated", "flags", "stream", "gamma",
                     "lam", "trace", "rho"):  # fmt: skip
            column = getattr(self, name)
            setattr(self, name, None if column is None else column[good])
        self.bad = self.bad[good]
        return self


@compiled
def prepared(
    state: Any, follows: Any, reward: Any, terminated: Any, truncated: Any, gamma: Any, lam: Any,
    states: Any,
) -> Any:  # fmt: skip
    """The next state, flags, γ′, λ′ and γ′λ′ of each row, and whether all rows are good.

    A γ or λ for all rows has one entry. At an end the next state is the state, and they are 0.
    """
    n, good = state.size, True
    next_state, flags = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    discount, decay, trace = np.empty(n), np.empty(n), np.empty(n)
    for t in range(n):
        ended = terminated[t]
        next_state[t] = state[t] if ended else follows[t]
        flags[t] = (TERMINATED if ended else 0) | (TRUNCATED if truncated[t] else 0)
        g, decayed = gamma[t if gamma.size > 1 else 0], lam[t if lam.size > 1 else 0]
        discount[t], decay[t] = (0.0, 0.0) if ended else (g, decayed)
        trace[t] = discount[t] * decay[t]
        known = 0 <= state[t] < states and 0 <= next_state[t] < states
        proper = 0.0 <= discount[t] <= 1.0 and 0.0 <= decay[t] <= 1.0
        good &= known and proper and abs(reward[t]) <= LARGEST_REWARD
    return next_state, flags, discount, decay, trace, good


def _lookup(table: Array) -> Any:
    """A function that finds rows of states in a table."""
    return lambda rows: table[rows[:, 0].astype(np.intp)]
