"""What the least-squares estimators of states and of observations share.

They have the methods of an online estimator, so that whatever asks one can ask the other.
"""

from __future__ import annotations

import math
from functools import partialmethod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.return_intervals import Calibration, ReturnsByState, few_values
from retvar.estimation.returns import OwnDiscounts, discounts
from retvar.experience.moves import LARGEST_RATIO, LARGEST_REWARD, Chunk, Moves
from retvar.online.checkpoint import read_tensors, write_tensors
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.td.learners import Learner, from_dict

Array = NDArray[np.float64]
QUANTITIES = ("value", "variance", "std")
FORMAT = 2  # of saved files
RANGE = "returns take few values: the interval is their range"
OFF_POLICY = "returns of the target policy are not observed"
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
    calibrated: Any  # what return intervals rest on, from observed returns
    _saved: Any  # header and arrays of a file
    _restore: Any  # takes them from there

    def __init__(self, learner: Learner) -> None:
        self.description = learner
        self.steps = 0  #: transitions added
        self.notes: dict[str, Any] = {}  #: plain data of your own, kept in saved files
        self.off_policy = False  # returns of the target policy are not observed

    def read(self, moves: Moves) -> None:
        """Add the transitions of a table."""
        for chunk in moves.chunks():
            self.add(chunk)

    def _rows(self, chunk: Chunk) -> Chunk:
        """The columns that are used: at an end the next state is the state, and γ and λ are 0."""
        refuse_discounts(self.description, chunk)
        state, none = np.asarray(chunk["state"]), np.zeros(len(chunk["reward"]), dtype=bool)
        rows: Chunk = {n: np.asarray(chunk.get(n, none), bool) for n in ("terminated", "truncated")}
        rows |= {n: np.asarray(chunk[n], np.float64) for n in ("reward", "rho") if n in chunk}
        ended = rows["terminated"]
        at_end = ended.reshape(-1, *[1] * (state.ndim - 1))
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

    def _count(self, rows: int) -> None:
        """Count rows that were added, and discard what was computed without them."""
        self.steps += rows
        for name in self.computed:
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
        low, high = (end[at] ** (2 if what == "variance" else 1) for end in ends)
        return (low, high) if state is None else (float(low[0]), float(high[0]))

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


class ReturnIntervals:
    """Where returns will fall, by the returns that were observed.

    A state with enough of its own gets their quantiles, which hold there. Elsewhere value and std
    are scaled by the scores of all returns, so that the intervals hold on average over places;
    where returns take few values these say little, and the interval is the range of all returns.
    """

    def __init__(self, estimator: LeastSquaresEstimator, monitor: Any) -> None:
        self._estimator, self._off_policy = estimator, monitor.off_policy
        self.calibration, self.by_state = Calibration(np.zeros(0), 0.0), None
        if not self._off_policy:
            self.calibration, *known = estimator.calibrated(monitor.returns)
            self.by_state = ReturnsByState(*known) if known else None
            self._range = [end(x) for x in known[:1] for end in (np.nanmin, np.nanmax)]

    def interval(self, states: Any, level: float = 0.9, above: bool = False) -> list[Array]:
        """Ends between which new returns fall with this probability; `above`: the lower one."""
        level, above = arguments.level("level", level), arguments.flag("above", above)
        if self._off_policy:
            raise InputError("experience", "off-policy", OFF_POLICY)
        value, std = (self._estimator.predict(states, what) for what in ("value", "std"))
        ends = self.calibration.interval(value, std, level, above)
        if self.by_state is None:
            return ends
        if few_values(self.calibration.scores, level):
            wide = zip(ends, self._range, strict=False)
            ends = [np.where(np.isnan(end), end, limit) for end, limit in wide]
        own = self.by_state.interval(np.asarray(states, dtype=np.intp), level, above)
        return [np.where(np.isfinite(own[0]), *pair) for pair in zip(own, ends, strict=True)]

    def at(self, state: Any, level: float) -> tuple[tuple[float, float], str, bool]:
        """Ends for one state; a word on them; and whether they rest on its own returns."""
        try:
            low, high = (float(end[0]) for end in self.interval([state], level))
        except InputError as error:
            return (math.nan, math.nan), f"no interval of returns: {error.remedy}", False
        own, here, word = self.by_state, False, few_values(self.calibration.scores, level)
        if own is not None:
            here = bool(np.isfinite(own.interval(np.array([state]), level)[0][0]))
            word = few_values(own.of(state), level) if here else word and RANGE
        if self.calibration.note:
            word = f"interval of returns {self.calibration.note}"
        return (low, high), word, here

    def note(self, level: float) -> str:
        """Why intervals of this level are missing or doubtful; otherwise empty."""
        if self._off_policy:
            return f"none: {OFF_POLICY}"
        try:
            self.calibration.interval(np.zeros(0), np.zeros(0), level)
        except InputError as error:
            return f"none: {100 * level:.4g}% {error.remedy}"
        return self.calibration.note
