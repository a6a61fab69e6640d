"""What the least-squares estimators share: questions, the split of episodes, return intervals.

They have the methods of an online estimator, so that whatever asks one can ask the other. Episodes
are split at random into two parts. Both together give the estimates; the larger part alone gives
those that return intervals are calibrated with, on returns of the other part.
"""

from __future__ import annotations

import math
from functools import cached_property, partialmethod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.monitor import OwnDiscounts
from retvar.estimation.return_intervals import Calibration
from retvar.estimation.returns import CLOSED
from retvar.experience.moves import Moves
from retvar.experience.stream import LARGEST_RATIO, LARGEST_REWARD
from retvar.online.checkpoint import read_tensors, write_tensors
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.td.jit import compiled
from retvar.td.learners import Learner, from_dict
from retvar.td.random import U, mix

__all__ = ["LeastSquaresEstimator"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Chunk = dict[str, NDArray[Any]]
QUANTITIES = ("value", "mean", "variance", "std")
FIT, CALIBRATION = 0, 1
PARTS = 3  # one in three episodes calibrates return intervals
HORIZONS = 10.0  # of an episode that does not end; then the next one may belong to the other part
FORMAT = 1  # of saved files
LIMITS = {
    "reward": (-LARGEST_REWARD, LARGEST_REWARD), "gamma": (0.0, 1.0), "lam": (0.0, 1.0),
    "rho": (0.0, LARGEST_RATIO),
}  # fmt: skip  # beyond which a row is bad


class LeastSquaresEstimator(OwnDiscounts):
    """Base of the least-squares estimators of states and of observations."""

    by = "least_squares"
    bootstrap_samples = 0
    has_intervals = True
    file_kind: ClassVar[str]  #: in the header of saved files
    computed: ClassVar[tuple[str, ...]]  #: cached properties that rest on the transitions so far
    state_limits: tuple[float, float]  #: beyond which a state is bad
    # what a kind provides
    features: Any  #: features of a state or observation, as a list
    add: Any  #: adds the transitions of a chunk, one trajectory after the other; not bad ones
    predict: Any  #: estimates for a column of states; NaN where the log does not determine them
    _all_states: Any  # the states that are meant where none is named
    _ends: Any  # ends of the intervals of "value" or "std" for a column of states
    _fitted: Any  # value and std for a column of states, from the part that does not calibrate
    _calibration_returns: Any  # returns that calibrate, completed, and where they began
    _cut_off: Any  # whether much of each of them was cut off
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
        rows: Chunk = {
            name: np.asarray(chunk.get(name, np.zeros(n)), bool)
            for name in ("terminated", "truncated")
        }
        for name in ("reward", "rho"):
            if name in chunk:
                rows[name] = np.asarray(chunk[name], np.float64)
        ended = rows["terminated"]
        at_end = ended.reshape(n, *[1] * (state.ndim - 1))
        follows = np.where(at_end, state, np.asarray(chunk["next_state"]))
        for name, own in (("gamma", self.gammas), ("lam", self.lams)):
            if own.size > 1 and name not in chunk:
                if own.size <= follows.max(initial=0):
                    remedy = "must be one number, or one per state"
                    raise InputError(name, f"{own.size} numbers", remedy)
                own = own[follows]
            rows[name] = np.where(ended, 0.0, np.asarray(chunk.get(name, own), np.float64))
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
        """Lower and upper end for new returns; with `above`, a lower limit alone."""
        level, above = arguments.level("level", level), arguments.flag("above", above)
        if lacking := self._lacking(level, 1 if above else 2):
            field, given = ("experience", "off-policy") if self.off_policy else ("level", level)
            raise InputError(field, given, lacking)
        value, std = self._fitted(self._all_states() if states is None else states)
        if above:
            return np.clip(self.calibration.above(value, std, level), *self.possible_returns)
        ends = self.calibration.interval(value, std, level)
        return tuple(np.clip(end, *self.possible_returns) for end in ends)

    def few_values(self, state: Any, level: float = 0.9) -> str:
        """A word where the return interval of a state holds more than its level."""
        return self.calibration.few_values(level)

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
