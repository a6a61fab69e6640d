"""The least-squares estimators: what they share, and that of a finite world.

They have the methods of an online estimator, so that whatever asks one can ask the other. Episodes
are split at random into two parts. Both together give the estimates; the larger part alone gives
those that return intervals are calibrated with, on returns of the other part. Of a finite world the
sums of both parts are kept. Returns that calibrate are collected when they are asked for, in a
second reading.
"""

from __future__ import annotations

import math
from functools import cached_property, partialmethod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.least_squares import BLOCK, LeastSquares, Solver
from retvar.estimation.ratio_check import RatioCheck, check_sums
from retvar.estimation.return_intervals import Calibration, ReturnsByState
from retvar.estimation.returns import (
    CLOSED,
    KEYS,
    NOWHERE,
    OwnDiscounts,
    Returns,
    discounts,
    rows_of,
    whole_trajectories,
)
from retvar.estimation.sums import Sums
from retvar.experience.moves import Moves
from retvar.experience.stream import LARGEST_RATIO, LARGEST_REWARD
from retvar.online.checkpoint import read_tensors, write_tensors
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.files import free_memory
from retvar.support.format import literal
from retvar.td.features import States
from retvar.td.jit import compiled
from retvar.td.learners import Learner, from_dict
from retvar.td.random import U, mix

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Chunk = dict[str, NDArray[Any]]
Observed = tuple[Returns, Returns]  # of the part that calibrates: in sequence, and by state
QUANTITIES = ("value", "mean", "variance", "std")
FIT, CALIBRATION = 0, 1
PARTS = 3  # one in three episodes calibrates return intervals
HORIZONS = 10.0  # of an episode that does not end; then the next one may belong to the other part
FORMAT = 1  # of saved files
LIMITS = {
    "reward": (-LARGEST_REWARD, LARGEST_REWARD), "gamma": (0.0, 1.0), "lam": (0.0, 1.0),
    "rho": (0.0, LARGEST_RATIO),
}  # fmt: skip  # beyond which a row is bad
RETURNS = 20_000  # that are stored
MOST_STATES = 2**31
BYTES = 350  # of the estimates of a state
MANY_STATES, GAP = 1_000_000, 10  # more states than these, and than so many for each transition
NAMES = ("fit", "calibration")  # of the parts in files


def refuse_discounts(learner: Learner, chunk: Chunk) -> None:
    """Refuse data without the γ or λ that the learner takes from it, or with another."""
    for name in ("gamma", "lam"):
        given = getattr(learner, name)
        if given is None and name not in chunk:
            raise InputError(name, "missing", "column missing from this chunk; earlier data had it")
        if given is None or name not in chunk:
            continue
        goes_on = ~np.asarray(chunk.get("terminated", False), dtype=bool)
        if np.ndim(given) or np.any((chunk[name] != given) & goes_on):
            remedy = "differs from the one of each transition in the data; leave it out"
            raise InputError(name, given, remedy)


class LeastSquaresEstimator(OwnDiscounts):
    """Base of the least-squares estimators of states and of observations."""

    by = "least_squares"
    bootstrap_samples = 0
    has_intervals = True
    file_kind: ClassVar[str]  #: in the header of saved files
    computed: ClassVar[tuple[str, ...]]  #: cached properties that rest on the transitions so far
    state_limits: tuple[float, float]  #: beyond which a state is bad
    # what a kind provides: features of a state or observation, as a list; a method that adds the
    # transitions of a chunk, those of one trajectory after the other; estimates for a column of
    # states, NaN where the log does not determine them
    features: Any
    add: Any
    predict: Any
    _all_states: Any  # the states that are meant where none is named
    _ends: Any  # ends of the intervals of "value" or "std" for a column of states
    _fitted: Any  # value and std for a column of states, from the part that does not calibrate
    _calibration_returns: Any  # returns that calibrate, completed, and where they began
    _cut_off: Any  # whether much of each of them was cut off
    returns_by_state: ReturnsByState | None = None  # returns that calibrate, where there are states
    _saved: Any  # header and arrays of a file
    _restore: Any  # takes them from there

    def __init__(self, learner: Learner) -> None:
        self.description = learner
        self.steps = 0  #: transitions added
        self.rejected = 0  #: transitions refused
        self.notes: dict[str, Any] = {}  #: plain data of your own, kept in saved files
        self.rewards = math.inf, -math.inf  # the smallest and the largest that were added
        self.off_policy = False  # returns of the target policy are not observed
        self.moves: Moves | None = None  # that were read last, for checks and return intervals
        self.begin()

    def begin(self, piece: int = 0) -> None:
        """Begin a piece of a log; each splits its episodes in a way of its own."""
        self._part = first_part(piece << 40)  # of the next row: part, rows of it before, episode
        self._began = self._part.copy()  # the same where `moves` begins

    def read(self, moves: Moves) -> None:
        """Add the transitions of a table, which checks and return intervals read again."""
        self.moves, self._began = moves, self._part.copy()
        for chunk in moves.chunks():
            self.add(chunk)

    def _rows(self, chunk: Chunk) -> Chunk:
        """The columns that are used: at an end the next state is the state, and γ and λ are 0.

        Bad rows are left out, and the row before one is cut off.
        """
        n, state = len(chunk["reward"]), np.asarray(chunk["state"])
        none = np.zeros(n, dtype=bool)
        rows: Chunk = {n: np.asarray(chunk.get(n, none), bool) for n in ("terminated", "truncated")}
        rows |= {n: np.asarray(chunk[n], np.float64) for n in ("reward", "rho") if n in chunk}
        ended = rows["terminated"]
        at_end = ended.reshape(n, *[1] * (state.ndim - 1))
        follows = np.where(at_end, state, np.asarray(chunk["next_state"]))
        for name, own in zip(("gamma", "lam"), discounts(self, chunk, follows), strict=True):
            rows[name] = np.where(ended, 0.0, own)
        rows |= {"state": state, "next_state": follows}
        good = np.ones(n, dtype=bool)
        for name, column in rows.items():
            low, high = LIMITS.get(name, self.state_limits if "state" in name else (0, 1))
            inside = (column >= low) & (column <= high)
            good &= inside.reshape(n, -1).all(axis=1)
        if good.all():
            return rows
        rows["truncated"] = rows["truncated"] | (np.append(~good[1:], False) & ~ended)
        return {name: column[good] for name, column in rows.items()}

    def _count(self, rows: Chunk, given: int) -> bool:
        """Count the rows of a chunk of `given` ones; whether there are any."""
        n = len(rows["reward"])
        self.steps, self.rejected = self.steps + n, self.rejected + given - n
        if n:
            self._see(rows["reward"])
        return n > 0

    def _see(self, rewards: Any) -> None:
        """Widen the range of rewards, and discard what was computed without them."""
        low, high = self.rewards
        self.rewards = min(low, float(np.min(rewards))), max(high, float(np.max(rewards)))
        for name in ("calibration", *self.computed):
            self.__dict__.pop(name, None)

    def _split(self, rows: Chunk, state: Integers) -> tuple[Integers, Mask, Mask]:
        """The part that each transition belongs to, and where an endless episode is cut.

        The last says which are so late before such a cut that a return from there is cut off.
        """
        ends, gamma = rows["terminated"] | rows["truncated"], rows["gamma"]
        largest = float(gamma.max(initial=0.0))
        going = gamma[~ends]
        if largest >= 1.0 and going.size:  # some γ are 1: what γ is on average as episodes go on
            largest = float(going.mean())
        longest = late = 2**62
        if largest < 1.0:
            longest = math.ceil(HORIZONS / (1.0 - largest))
            late = longest - math.ceil(math.log(CLOSED) / math.log(max(largest, CLOSED)))
        part, cut, too_late = assign(ends, longest, late, state)
        return part, cut, too_late

    @property
    def possible_returns(self) -> tuple[float, float]:
        """Bounds on returns made of rewards like those seen; infinite if γ is 1."""
        gamma, (low, high) = float(self.gammas.max()), self.rewards
        plain = self.description.estimand != "off_policy_return" and bool((self.lams == 1.0).all())
        if not (plain and gamma < 1.0 and low <= high):
            return -math.inf, math.inf
        horizon = 1.0 / (1.0 - gamma)
        return min(low, low * horizon), max(high, high * horizon)

    # ------------------------------------------------------------------ estimates

    def _ask(self, what: str, state: Any = None) -> Any:
        """An estimate for a state; for all states where none is named."""
        if state is None:
            return self.predict(self._all_states(), what)
        return float(self.predict([state], what)[0])

    value = mean = partialmethod(_ask, "value")
    variance = partialmethod(_ask, "variance")
    std = partialmethod(_ask, "std")

    def interval(
        self, state: Any = None, what: str = "value", *, states: Any = None, level: float = 0.9
    ) -> tuple[Any, Any]:
        """Lower and upper end for one `state`, a column of `states`, or all."""
        level = arguments.level("level", level)
        arguments.choice("what", what, QUANTITIES)
        if states is None or state is not None:
            states = self._all_states() if state is None else [state]
        low, high = self._ends(states, "value" if what in ("value", "mean") else "std", level)
        if what == "variance":
            low, high = low**2, high**2
        return (low, high) if state is None else (float(low[0]), float(high[0]))

    # ------------------------------------------------------------------ return intervals

    @cached_property
    def calibration(self) -> Calibration:
        """Scores of the returns that the fit has not seen."""
        total, start = self._calibration_returns()
        value, std = self._fitted(start)
        return Calibration.of(total, value, std, self._cut_off())

    def _lacking(self, level: float, sides: int = 2) -> str:
        """Why there are no return intervals of this level; empty where there are."""
        if self.off_policy:
            return "returns of the target policy are not observed"
        needed, known = Calibration.needed(level, sides), self._cut_off().size
        few = f"{100 * level:.4g}% needs {needed:,} calibration returns; there are {known:,}"
        return few if known < needed else ""

    def return_interval(
        self, states: Any = None, level: float = 0.9, *, above: bool = False
    ) -> Any:
        """Lower and upper end for new returns; with `above`, a lower limit alone.

        In states with enough calibration returns it holds there, elsewhere on average over states.
        Where many returns are equal their scores say little of another state, whose interval then
        reaches at least as far as its own returns.
        """
        level, above = arguments.level("level", level), arguments.flag("above", above)
        if lacking := self._lacking(level, 1 if above else 2):
            field, given = ("experience", "off-policy") if self.off_policy else ("level", level)
            raise InputError(field, given, lacking)
        states = self._all_states() if states is None else states
        value, std = self._fitted(states)
        ends = self.calibration.interval(value, std, level, above)
        ends = [np.clip(end, *self.possible_returns) for end in ends]
        if (by_state := self.returns_by_state) is not None:
            at = np.asarray(states, dtype=np.intp)
            own, wider = by_state.interval(at, level, above), ends
            if self.calibration.few_values(level):
                pairs = zip((np.fmin, np.fmax), ends, by_state.extremes(at), strict=False)
                wider = [end(pooled, extreme) for end, pooled, extreme in pairs]
            ends = [np.where(np.isfinite(own[0]), *pair) for pair in zip(own, wider, strict=True)]
        return ends[0] if above else tuple(ends)

    def calibrated(self, state: Any, level: float) -> tuple[bool, str]:
        """Whether the return interval of a state rests on its own returns; a word if it is wide."""
        own = self.returns_by_state
        if own is not None and np.isfinite(own.interval(np.array([state]), level)[0][0]):
            return True, own.note(state, level)
        return False, self.calibration.few_values(level)

    def return_interval_note(self, level: float = 0.9) -> str:
        """Why return intervals of this level are missing or doubtful; otherwise empty."""
        if lacking := self._lacking(arguments.level("level", level)):
            return f"none: {lacking}"
        return Calibration(np.zeros(0), 0.0, float(self._cut_off().mean())).note

    # ------------------------------------------------------------------ files

    def save(self, path: Any) -> None:
        """Write to a file, from which :meth:`load` continues.

        Of states, the sums are saved; of observations, all transitions, since the spread at a place
        comes from those around it. Return intervals and checks then rest on new transitions.
        """
        header, arrays = self._saved()
        about = {
            "format": FORMAT, "kind": self.file_kind, "learner": self.description.to_dict(),
            "rejected": self.rejected, "notes": self.notes, "steps": self.steps,
        }  # fmt: skip
        write_tensors(path, about | header, arrays)

    @classmethod
    def load(cls, path: Any) -> Self:
        """Read an estimator that :meth:`save` wrote."""
        header, arrays = read_tensors(arguments.path("path", path))
        if (header.get("kind"), header.get("format")) != (cls.file_kind, FORMAT):
            raise InputError("file", path, f"is not a file of {cls.__name__}, format {FORMAT}")
        found = cls._restore(from_dict(header["learner"]), header, arrays)
        found.rejected, found.notes = header["rejected"], header["notes"]
        return found  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.steps:,} steps, {self.rejected:,} rejected>"


def first_part(episode: int = 0) -> Integers:
    """The part of an episode, before its first row."""
    return np.array([int(mix(U(episode)) % U(PARTS) == U(0)), 0, episode])


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
        self._states = arguments.integer("states", states, 1, MOST_STATES)
        if states * BYTES > free_memory():
            raise InputError("states", f"{states:,}", "do not fit in memory; use fewer, or labels")
        self._fixed = fixed  # whether there are no more
        self._solver: Solver | None = None  # for standard errors of more states

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
        if self.__dict__.setdefault("observed", observed) is not observed:
            for own, theirs in zip(self.observed, observed, strict=True):
                own.merge(theirs)

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
        more = vars(self._solver.solution(at)) if at.size else {}
        for name, column in more.items():
            if isinstance(column, np.ndarray):
                getattr(found, name)[at] = column[at]

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
        found = Returns(1, RETURNS, CLOSED), Returns(1, RETURNS, CLOSED)
        state = self._began.copy()
        weighted = self.description.estimand == "off_policy_return"
        moves = Moves() if self.moves is None or self.off_policy else self.moves
        for chunk in whole_trajectories(moves):
            rows = self._rows(chunk)
            part, cut, late = self._split(rows, state)
            rows["truncated"] = rows["truncated"] | cut
            value: Any = 0.0
            if bool((rows["lam"][~rows["terminated"]] < 1.0).any()):
                value = np.nan_to_num(self.fit.value)[rows["next_state"]]
            eta = rows.get("rho", 1.0) if weighted else 1.0
            columns = rows_of(rows, rows["gamma"], rows["lam"], eta, value)
            begins = (part == CALIBRATION) & ~late
            found[0].add(np.where(begins, 0, NOWHERE), columns)
            found[1].add(np.where(begins, rows["state"] & (KEYS - 1), NOWHERE), columns)
        return found

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
    def returns_by_state(self) -> ReturnsByState:  # type: ignore[override]
        """Returns that calibrate, of each state apart."""
        return ReturnsByState(*self._completed(self.observed[1]))

    def _cut_off(self) -> NDArray[np.bool_]:
        return np.asarray(self.observed[0].missing_share > CLOSED)

    # ------------------------------------------------------------------ files

    def _saved(self) -> tuple[dict[str, Any], dict[str, Any]]:
        rewards = list(self.rewards) if self.steps else []
        header = {"states": self._states, "off_policy": self.off_policy, "rewards": rewards}
        arrays = {"part": self._part}
        for part, sums in zip(NAMES, self.sums, strict=True):
            arrays |= {f"{part}.{name}": array for name, array in sums.arrays().items()}
        return header, arrays

    @classmethod
    def _restore(cls, learner: Learner, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        found = cls(learner, header["states"])
        found.off_policy, found.steps = header["off_policy"], header["steps"]
        if header["rewards"]:
            found._see(header["rewards"])
        found._part, found._began = arrays["part"].copy(), arrays["part"].copy()
        fit, rest = (Sums.restored(arrays, f"{part}.") for part in NAMES)
        found.sums = fit, rest
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
