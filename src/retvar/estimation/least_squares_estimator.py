"""What the least-squares estimators share: questions, return intervals, the check, the split.

They have the methods of an online estimator, so that whatever asks one can ask the other. Episodes
are split at random into two parts. Both together give the estimates; the larger part alone gives
those that return intervals are calibrated with, on returns of the other part.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.estimation.monitor import CLOSED, OwnDiscounts
from retvar.estimation.return_intervals import Calibration, Held
from retvar.experience.stream import LARGEST_RATIO, LARGEST_REWARD
from retvar.format import literal
from retvar.jit import compiled
from retvar.learners import Learner, from_dict
from retvar.online.checkpoint import read_count, read_tensors, refusing
from retvar.online.columns import read_streams
from retvar.random import U, mix

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
NEEDED = ("state", "reward", "next_state")  # columns of transitions
REWARDS = f"must be a finite number of at most {LARGEST_REWARD:g} in size"
RATIOS = f"must be a finite number from 0 to {LARGEST_RATIO:g}"


class Split(NamedTuple):
    """Which part each transition belongs to."""

    part: Integers
    cut: Mask  #: where an endless episode is cut, so that the next rows may be of the other part
    late: Mask  #: so close before such a cut that a return which began here would be cut off


class LeastSquaresEstimator(OwnDiscounts):
    """Base of the least-squares estimators of states and of observations.

    >>> from retvar.estimation.tabular import TabularEstimator
    >>> issubclass(TabularEstimator, LeastSquaresEstimator)
    True
    """

    by = "least_squares"
    bootstrap_samples = 0
    has_intervals = True
    file_kind: ClassVar[str]  #: in the header of saved files
    file_of: ClassVar[str]  #: what they are, in words

    def __init__(self, learner: Learner) -> None:
        self.description = learner
        self.steps = 0  #: transitions added
        self.rejected = 0  #: transitions refused
        self.notes: dict[str, Any] = {}  #: plain data of your own, kept in saved files
        self.rewards = math.inf, -math.inf  # the smallest and the largest that were added
        self.off_policy = False  # returns of the target policy are not observed
        self.salt = 0  # of the split; pieces of a log are split in different ways
        self._part = np.zeros((0, 3), dtype=np.int64)  # of each stream: part, rows in it, episode

    # ------------------------------------------------------------------ what a kind provides

    @property
    def features(self) -> list[Any]:
        """Features of a state or observation."""
        raise NotImplementedError

    def update_many(self, chunk: Chunk, on_error: str = "raise") -> None:
        """Add transitions, as columns; bad ones are refused or, with ``"skip"``, left out."""
        raise NotImplementedError

    def predict(self, states: Any, what: str = "value") -> Array:
        """Estimates for a column of states; NaN where the log does not determine them."""
        raise NotImplementedError

    def _all_states(self) -> Any:
        """The states that are meant where none is named."""
        raise NotImplementedError

    def _ends(self, states: Any, what: str, level: float) -> tuple[Array, Array]:
        """Ends of the intervals of ``"value"`` or ``"std"`` for a column of states."""
        raise NotImplementedError

    def _fitted(self, states: Any) -> tuple[Array, Array]:
        """Value and std for a column of states, from the part that calibration does not use."""
        raise NotImplementedError

    def _calibration_returns(self) -> tuple[Array, Any]:
        """The returns that calibrate, completed with the fit's values, and where they began."""
        raise NotImplementedError

    def _cut_off(self) -> Mask:
        """Whether much of each return that calibrates was cut off."""
        raise NotImplementedError

    # ------------------------------------------------------------------ adding transitions

    def _assign(self, stream: Integers, flags: Integers, gamma: Array) -> Split:
        """The part that each transition belongs to, and where an endless episode is cut."""
        streams = int(stream.max()) + 1
        if streams > len(self._part):
            fresh = np.zeros((streams - len(self._part), 3), dtype=np.int64)
            self._part = np.concatenate([self._part, fresh])
            first = np.arange(streams - len(fresh), streams)
            words = (mix(U(self.salt) ^ (U(s) << U(32))) for s in first)
            self._part[first, 0] = [int(word % U(PARTS) == U(0)) for word in words]
        largest = float(gamma.max(initial=0.0))
        going = gamma[flags == 0]
        if largest >= 1.0 and going.size:  # some γ are 1: what γ is on average as episodes go on
            largest = float(going.mean())
        longest = late = 2**62
        if largest < 1.0:
            longest = math.ceil(HORIZONS / (1.0 - largest))
            late = longest - math.ceil(math.log(CLOSED) / math.log(max(largest, CLOSED)))
        return Split(*assign(stream, flags, longest, late, self._part, U(self.salt)))

    def _see(self, rewards: tuple[float, float] | Array) -> None:
        """Widen the range of rewards."""
        low, high = self.rewards
        self.rewards = min(low, float(np.min(rewards))), max(high, float(np.max(rewards)))

    @property
    def possible_returns(self) -> tuple[float, float]:
        """Bounds on returns made of rewards as small and large as those seen; infinite if γ is 1.

        >>> import retvar as rv
        >>> cart = rv.experience.from_gymnasium("CartPole-v1", steps=100, seed=1)
        >>> low, high = rv.estimate(cart, gamma=0.98).estimator.possible_returns
        >>> low, round(high, 9)
        (1.0, 50.0)
        """
        gamma, (low, high) = float(self.gammas.max()), self.rewards
        plain = self.description.estimand != "off_policy_return" and bool((self.lams == 1.0).all())
        if not (plain and gamma < 1.0 and low <= high):
            return -math.inf, math.inf
        horizon = 1.0 / (1.0 - gamma)
        return min(low, low * horizon), max(high, high * horizon)

    def _forget(self) -> None:
        """Discard what was computed from the transitions so far."""
        self.__dict__.pop("calibration", None)

    # ------------------------------------------------------------------ estimates

    def value(self, state: Any = None) -> Any:
        """Value of a state; of all states where none is named."""
        return self._ask("value", state)

    def mean(self, state: Any = None) -> Any:
        """Mean of the return: the value."""
        return self._ask("value", state)

    def variance(self, state: Any = None) -> Any:
        """Variance of the λ-return."""
        return self._ask("variance", state)

    def std(self, state: Any = None) -> Any:
        """Standard deviation of the λ-return."""
        return self._ask("std", state)

    def _ask(self, what: str, state: Any) -> Any:
        if state is None:
            return self.predict(self._all_states(), what)
        found = np.asarray(self.predict([state], what))
        if found.size != 1:
            raise InputError("state", literal(state), "must be one state; several go to predict")
        return float(found.ravel()[0])

    def interval(
        self, state: Any = None, what: str = "value", *, states: Any = None, level: float = 0.9
    ) -> tuple[Any, Any]:
        """Lower and upper end for one `state`, a column of `states`, or all."""
        level = arguments.level("level", level)
        refuse_unknown(what)
        low, high = self._ends(
            self._column(state, states), "value" if what in ("value", "mean") else "std", level
        )
        if what == "variance":
            low, high = low**2, high**2
        return (low, high) if state is None else (float(low[0]), float(high[0]))

    def _column(self, state: Any, states: Any) -> Any:
        if state is not None:
            self._ask("value", state)  # refuses several
            return [state]
        return self._all_states() if states is None else states

    # ------------------------------------------------------------------ return intervals

    @cached_property
    def calibration(self) -> Calibration:
        """Scores of the returns that the fit has not seen."""
        total, start = self._calibration_returns()
        value, std = self._fitted(start)
        return Calibration.of(total, value, std, self._cut_off())

    def return_interval(
        self, states: Any = None, level: float = 0.9, *, above: bool = False
    ) -> Any:
        """Lower and upper end for new returns; with `above`, a lower limit alone."""
        level = arguments.level("level", level)
        above = arguments.flag("above", above)
        if self.off_policy:
            raise InputError("experience", "off-policy", "returns of the target are not observed")
        needed, known = Calibration.needed(level, 1 if above else 2), self._cut_off().size
        if known < needed:
            remedy = f"needs {needed:,} calibration returns; there are {known:,}"
            raise InputError("level", level, remedy)
        value, std = self._fitted(self._column(None, states))
        if above:
            return np.clip(self.calibration.above(value, std, level), *self.possible_returns)
        ends = self.calibration.interval(value, std, level)
        return tuple(np.clip(end, *self.possible_returns) for end in ends)

    def return_interval_held(self, states: Any, level: float = 0.9) -> list[Held]:
        """How many of the calibration returns each return interval held."""
        return [self.calibration.held(level)] * len(states)

    def return_interval_note(self, level: float = 0.9) -> str:
        """Why return intervals of this level are missing, doubtful or hold more; otherwise empty.

        >>> import retvar as rv
        >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=100, seed=1)
        >>> rv.estimate(lake, gamma=0.9, by="least_squares").estimator.return_interval_note(0.99)
        'none: 99% needs 199 calibration returns; there are 3'
        """
        level = arguments.level("level", level)
        if self.off_policy:
            return "none: returns of the target policy are not observed"
        cut = self._cut_off()
        needed = Calibration.needed(level)
        if cut.size < needed:
            return (
                f"none: {100 * level:.4g}% needs {needed:,} calibration returns; there are "
                f"{cut.size:,}"
            )
        return Calibration(np.zeros(0), 0.0, float(cut.mean())).note

    # ------------------------------------------------------------------ files

    def _header(self) -> dict[str, Any]:
        """What every saved file says."""
        return {
            "format": FORMAT,
            "kind": self.file_kind,
            "learner": self.description.to_dict(),
            "steps": self.steps,
            "rejected": self.rejected,
            "notes": self.notes,
        }

    @classmethod
    def load(cls, path: Any) -> Self:
        """Read an estimator that :meth:`save` wrote; every number is checked.

        >>> import pathlib, tempfile, retvar as rv
        >>> from retvar.estimation.tabular import TabularEstimator
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "sums.safetensors"
        >>> TabularEstimator(rv.Direct(alpha=0.0, gamma=0.9, lam=1.0), 3).save(path)
        >>> TabularEstimator.load(path)
        <least squares: 0 steps, 0 rejected>
        """
        header, tensors = read_tensors(arguments.path("path", path))
        with refusing(path, f"a file of {cls.file_of}"):
            if header["kind"] != cls.file_kind or header["format"] != FORMAT:
                raise ValueError(f"kind {header['kind']!r}, format {header['format']!r}")
            steps, rejected = read_count(header["steps"]), read_count(header["rejected"])
            found = cls._restored(header, from_dict(header["learner"]), tensors)
            if found.steps != steps:
                raise ValueError(f"{steps} steps, but {found.steps} transitions")
            found.rejected, found.notes = rejected, dict(header["notes"])
        return found

    @classmethod
    def _restored(cls, header: dict[str, Any], learner: Learner, tensors: dict[str, Any]) -> Self:
        """The estimator of a saved file, with its `steps`; malformed ones raise errors."""
        raise NotImplementedError


def row_count(chunk: Chunk) -> int:
    """The rows of a chunk, as many as it has rewards.

    >>> row_count({"reward": np.zeros(3)})
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: state = missing: give the columns state, reward, next_state
    """
    for name in NEEDED:
        if name not in chunk:
            raise InputError(name, "missing", f"give the columns {', '.join(NEEDED)}")
    try:
        return len(chunk["reward"])
    except TypeError:
        raise InputError("reward", literal(chunk["reward"]), "must be a column") from None


def read_column(chunk: Chunk, name: str, kind: Any, *shape: int) -> NDArray[Any]:
    """A column as an array of this shape, zeros where it is missing; compiled code does not check.

    >>> read_column({"reward": np.zeros(3)}, "reward", np.float64, 2)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: reward = a column: must be numbers of shape (2,)
    """
    if name == "stream":
        return np.ascontiguousarray(np.broadcast_to(read_streams(chunk.get(name), *shape), shape))
    if name not in chunk:
        return np.zeros(shape, dtype=kind)
    try:
        given = np.asarray(chunk[name])
        if given.dtype.kind in "biufO" and given.shape in (shape, (), (1,)):
            found = given.astype(kind, copy=False)
            return found if given.shape == shape else np.broadcast_to(found, shape)
    except (OverflowError, TypeError, ValueError):
        pass
    raise InputError(name, "a column", f"must be numbers of shape {shape}")


def refuse_unknown(what: str) -> None:
    """Refuse quantities that are not estimated."""
    arguments.choice("what", what, QUANTITIES)


@compiled
def assign(stream: Any, flags: Any, longest: Any, late: Any, state: Any, salt: Any) -> Any:
    """Give each transition to a part; a new episode, or a long one, draws again."""
    part = np.zeros(stream.size, dtype=np.int64)
    cut = np.zeros(stream.size, dtype=np.bool_)
    too_late = np.zeros(stream.size, dtype=np.bool_)
    for t in range(stream.size):
        at = stream[t]
        part[t] = state[at, 0]
        too_late[t] = state[at, 1] > late
        state[at, 1] += 1
        over = state[at, 1] >= longest
        if flags[t] != 0 or over:
            cut[t] = over and flags[t] == 0
            state[at, 1] = 0
            state[at, 2] += 1
            word = mix(salt ^ ((U(at) << U(32)) + U(state[at, 2])))
            state[at, 0] = 1 if word % U(PARTS) == U(0) else 0
    return part, cut, too_late
