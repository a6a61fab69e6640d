"""What the least-squares estimators of states and of observations share.

They have the methods of an online estimator, so that whatever asks one can ask the other.
"""

from __future__ import annotations

import math
from functools import partialmethod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.return_intervals import Calibration, few_values
from retvar.estimation.returns import OwnDiscounts, discounts
from retvar.experience.moves import Moves
from retvar.experience.stream import LARGEST_RATIO, LARGEST_REWARD
from retvar.online.checkpoint import read_tensors, write_tensors
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.td.learners import Learner, from_dict

Array = NDArray[np.float64]
Chunk = dict[str, NDArray[Any]]
QUANTITIES = ("value", "variance", "std")
FORMAT = 1  # of saved files
LIMITS = {
    "reward": (-LARGEST_REWARD, LARGEST_REWARD), "gamma": (0.0, 1.0), "lam": (0.0, 1.0),
    "rho": (0.0, LARGEST_RATIO),
}  # fmt: skip


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
    rejected = 0  # transitions: none, since sources leave bad ones out
    file_kind: ClassVar[str]  #: in the header of saved files
    computed: ClassVar[tuple[str, ...]]  #: cached properties that rest on the transitions so far
    state_limits: tuple[float, float]  #: beyond which a state is bad
    # what a kind provides: features of a state or observation, as a list; a method that adds the
    # transitions of a chunk, those of one trajectory after the other
    features: Any
    add: Any
    _all_states: Any  # the states that are meant where none is named
    _look_up: Any  # everything that is known, and where a column of states is in it
    _fitted: Any  # value and std for a column of states, from the part that does not calibrate
    calibration: Any  # scores of the returns that the fit has not seen
    _cut_off: Any  # whether much of each of them was cut off
    returns_by_state: Any = None  # returns that calibrate, where there are states
    _saved: Any  # header and arrays of a file
    _restore: Any  # takes them from there

    def __init__(self, learner: Learner) -> None:
        self.description = learner
        self.steps = 0  #: transitions added
        self.notes: dict[str, Any] = {}  #: plain data of your own, kept in saved files
        self.rewards = math.inf, -math.inf  # the smallest and the largest that were added
        self.off_policy = False  # returns of the target policy are not observed

    def read(self, moves: Moves) -> None:
        """Add the transitions of a table."""
        for chunk in moves.chunks():
            self.add(chunk)

    def _rows(self, chunk: Chunk) -> Chunk:
        """The columns that are used: at an end the next state is the state, and γ and λ are 0."""
        refuse_discounts(self.description, chunk)
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
        for name in rows.keys() - {"terminated", "truncated"}:
            low, high = LIMITS.get(name, self.state_limits)
            bad = rows[name][~((rows[name] >= low) & (rows[name] <= high))]
            if bad.size:
                remedy = f"must lie between {low:g} and {high:g}; leave this row out"
                raise InputError(name, bad.flat[0], remedy)
        return rows

    def _see(self, rewards: Any, rows: int) -> None:
        """Count rows, widen the range of rewards, and discard what was computed without them."""
        low, high = self.rewards
        self.steps += rows
        self.rewards = min(low, float(np.min(rewards))), max(high, float(np.max(rewards)))
        for name in ("calibration", *self.computed):
            self.__dict__.pop(name, None)

    # ------------------------------------------------------------------ estimates

    def _ask(self, what: str, state: Any = None) -> Any:
        """An estimate for a state; for all states where none is named."""
        if state is None:
            return self.predict(self._all_states(), what)
        return float(self.predict([state], what)[0])

    value = partialmethod(_ask, "value")
    variance = partialmethod(_ask, "variance")
    std = partialmethod(_ask, "std")

    def predict(self, states: Any, what: str = "value") -> Array:
        """``"value"``, ``"variance"`` or ``"std"`` for a column of states or rows of observations.

        NaN where the log does not determine it; :meth:`note` says why.
        """
        arguments.choice("what", what, QUANTITIES)
        found, at = self._look_up(states)
        return np.array(getattr(found, what)[at])

    def add_errors(self, states: Any) -> None:
        """Compute standard errors of these states, where they are not known yet."""

    def note(self, state: Any) -> str:
        """A word where an estimate is missing or weak."""
        self.add_errors([state])
        found, at = self._look_up([state])
        return str(found.note[at][0])

    def interval(
        self, state: Any = None, what: str = "value", *, states: Any = None, level: float = 0.9
    ) -> tuple[Any, Any]:
        """Lower and upper end for one `state`, a column of `states`, or all."""
        level, what = arguments.level("level", level), arguments.choice("what", what, QUANTITIES)
        if states is None or state is not None:
            states = self._all_states() if state is None else [state]
        self.add_errors(states)
        found, at = self._look_up(states)
        ends = found.value_interval(level) if what == "value" else found.std_interval(level)
        low, high = (end[at] for end in ends)
        if what == "variance":
            low, high = low**2, high**2
        return (low, high) if state is None else (float(low[0]), float(high[0]))

    # ------------------------------------------------------------------ return intervals

    @property
    def possible_returns(self) -> tuple[float, float]:
        """Bounds on returns made of rewards like those seen; infinite if γ is 1."""
        gamma, (low, high) = float(self.gammas.max()), self.rewards
        plain = self.description.estimand != "off_policy_return" and bool((self.lams == 1.0).all())
        if not (plain and gamma < 1.0 and low <= high):
            return -math.inf, math.inf
        horizon = 1.0 / (1.0 - gamma)
        return min(low, low * horizon), max(high, high * horizon)

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
            own = by_state.interval(at, level, above)
            ends = [np.where(np.isfinite(own[0]), *pair) for pair in zip(own, ends, strict=True)]
        return ends[0] if above else tuple(ends)

    def calibrated(self, state: Any, level: float) -> tuple[str, bool]:
        """A word on the return interval of a state; and whether it rests on its own returns."""
        own, doubt = self.returns_by_state, ""
        if self.calibration.note:
            doubt = "interval of returns doubtful: many were cut off"
        if own is not None and np.isfinite(own.interval(np.array([state]), level)[0][0]):
            return doubt or few_values(own.of(state), level), True
        return doubt or few_values(self.calibration.scores, level), False

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
            "notes": self.notes, "steps": self.steps,
        }  # fmt: skip
        write_tensors(path, about | header, arrays)

    @classmethod
    def load(cls, path: Any) -> Self:
        """Read an estimator that :meth:`save` wrote."""
        header, arrays = read_tensors(arguments.path("path", path))
        if (header.get("kind"), header.get("format")) != (cls.file_kind, FORMAT):
            raise InputError("file", path, f"is not a file of {cls.__name__}, format {FORMAT}")
        found = cls._restore(from_dict(header["learner"]), header, arrays)
        found.notes = header["notes"]
        return found  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.steps:,} steps>"
