"""The least-squares estimator of a finite world: sums of transitions in, value and spread out.

It has the methods of an online estimator, so that whatever asks one can ask the other. Episodes are
split at random into two parts. Both together give the estimates; the larger part alone gives those
that return intervals are calibrated with, on returns of the other part.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.estimation.least_squares import LeastSquares, least_squares
from retvar.estimation.return_intervals import Calibration
from retvar.estimation.returns import Returns
from retvar.estimation.transition_sums import TransitionSums
from retvar.estimation.verdicts import DISAGREES, Verdict, judge_std, judge_value
from retvar.features import States
from retvar.jit import compiled
from retvar.learners import Learner, from_dict
from retvar.online.checkpoint import read_tensors, write_tensors
from retvar.random import U, mix

__all__ = ["SelfCheck", "TabularEstimator"]

Array = NDArray[np.float64]
Chunk = dict[str, NDArray[Any]]
QUANTITIES = ("value", "mean", "variance", "std")
FIT, CALIBRATION = 0, 1
PARTS = 3  # one in three episodes calibrates return intervals
HORIZONS = 10.0  # of an episode that does not end; then the next one may belong to the other part
CLOSED = 0.05  # discount at which a return that is checked counts as over
RETURNS = 20_000  # that are stored
MOST_STATES = 2**31
MOST_MISSING = 0.2  # share of the variance that a checked return may lack
FORMAT, KIND = 1, "least_squares"  # of saved files
NAMES, ARRAYS = ("fit", "calibration"), ("keys", "numbers", "sums", "rows")


class SelfCheck(NamedTuple):
    """Verdicts on value and std; None where there is no way to check, with the reason."""

    value: Verdict | None
    std: Verdict | None
    reason: str

    @property
    def disagrees(self) -> bool:
        """Whether a verdict contradicts the estimates, as with states that are not Markov."""
        return any(v is not None and v.kind == DISAGREES for v in (self.value, self.std))

    def __str__(self) -> str:
        if self.value is None or self.std is None:
            return self.reason
        text = f"value {self.value}; std {self.std}"
        return text + (": the states may not be Markov" if self.disagrees else "")


class TabularEstimator:
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

    bootstrap_samples = 0
    has_intervals = True

    def __init__(self, learner: Learner, states: int) -> None:
        self.description = learner
        self.steps = 0  #: transitions added
        self.rejected = 0  #: transitions refused
        self.notes: dict[str, Any] = {}  #: plain data of your own, kept in saved files
        self.sums = (TransitionSums(), TransitionSums())
        self.returns = Returns(2, 1, RETURNS, negligible=CLOSED)
        self.off_policy = False  # returns of the target policy are not observed
        self._states = arguments.integer("states", states, 1, MOST_STATES)
        self._part = np.zeros((0, 3), dtype=np.int64)  # of each stream: part, rows in it, episode
        self.salt = 0  # of the split; pieces of a log are split in different ways

    # ------------------------------------------------------------------ adding transitions

    @property
    def features(self) -> list[Any]:
        """One weight for each state."""
        return [States(self._states)]

    @property
    def gammas(self) -> Array:
        """γ of each state, or of all; NaN where it is in the data."""
        return _numbers(self.description.gamma)

    @property
    def lams(self) -> Array:
        """λ of each state, or of all; NaN where it is in the data."""
        return _numbers(self.description.lam)

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
        part, cut = self._assign(rows)
        for which in (FIT, CALIBRATION):
            self._add(self.sums[which], rows, part == which)
        self.off_policy |= rows.off_policy
        if not self.off_policy:
            self._observe(rows, part, cut)
        self.steps += len(rows)

    def _assign(self, rows: _Rows) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The part that each transition belongs to, and where an endless episode is cut."""
        streams = int(rows.stream.max()) + 1
        if streams > len(self._part):
            fresh = np.zeros((streams - len(self._part), 3), dtype=np.int64)
            self._part = np.concatenate([self._part, fresh])
            first = np.arange(streams - len(fresh), streams)
            self._part[first, 0] = [
                int(mix(U(self.salt) ^ (U(s) << U(32))) % U(PARTS) == U(0)) for s in first
            ]
        largest = float(rows.gamma.max(initial=0.0))
        longest = math.ceil(HORIZONS / (1.0 - largest)) if largest < 1.0 else 2**62
        part, cut = assign(rows.stream, rows.flags, longest, self._part, U(self.salt))
        return part, cut

    def _add(self, sums: TransitionSums, rows: _Rows, mine: NDArray[np.bool_]) -> None:
        whole = bool(mine.all())
        if not whole and not mine.any():
            return

        def of(column: NDArray[Any]) -> NDArray[Any]:
            return column if whole else column[mine]

        sums.add(
            of(rows.state), of(rows.next_state), of(rows.reward), gamma=of(rows.gamma),
            lam=of(rows.lam), terminated=of(rows.terminated),
            rho=None if rows.rho is None else of(rows.rho),
            off_policy_return=self._weighted_return,
        )  # fmt: skip

    @property
    def _weighted_return(self) -> bool:
        return bool(self.description.estimand == "off_policy_return")

    def _observe(self, rows: _Rows, part: NDArray[np.int64], cut: NDArray[np.bool_]) -> None:
        """Collect returns that do not overlap."""
        eta = rows.rho if rows.rho is not None and self._weighted_return else np.ones(len(rows))
        flags = rows.flags | np.where(cut, 2, 0)
        self.returns.add(
            part, rows.state[:, None].astype(np.float64),
            rows.next_state[:, None].astype(np.float64), rows.reward, rows.gamma, rows.lam, eta,
            flags, rows.stream,
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
        self.steps += other.steps
        self.rejected += other.rejected
        self.off_policy |= other.off_policy

    # ------------------------------------------------------------------ estimates

    def _forget(self) -> None:
        """Discard solutions of the sums as they were."""
        for name in ("solution", "fit", "calibration"):
            self.__dict__.pop(name, None)

    @cached_property
    def solution(self) -> LeastSquares:
        """Estimates from all transitions."""
        whole = TransitionSums()
        for sums in self.sums:
            whole.merge(sums)
        return least_squares(whole, self._states)

    @cached_property
    def fit(self) -> LeastSquares:
        """Estimates from the part that return intervals are not calibrated on."""
        return least_squares(self.sums[FIT], self._states, at=np.zeros(0, dtype=np.intp))

    def predict(self, states: Any, what: str = "value") -> Array:
        """Estimates for a column of states: ``"value"``, ``"mean"``, ``"variance"`` or ``"std"``.

        NaN where the log does not determine them; :attr:`solution` has a note on why.
        """
        return _quantity(self.solution, what)[self._index(states)]

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

    def interval(
        self, state: Any = None, what: str = "value", *, states: Any = None, level: float = 0.9
    ) -> tuple[Any, Any]:
        """Lower and upper end for one `state`, a column of `states`, or all."""
        arguments.level("level", level)
        quantity = "value" if what == "mean" else what
        found = self.solution
        if quantity == "value":
            ends = found.value_interval(level)
        elif quantity in ("std", "variance"):
            ends = found.std_interval(level)
            ends = (ends[0] ** 2, ends[1] ** 2) if quantity == "variance" else ends
        else:
            raise _unknown(what)
        if state is not None:
            one = self._index([state])[0]
            return float(ends[0][one]), float(ends[1][one])
        at = slice(None) if states is None else self._index(states)
        return ends[0][at], ends[1][at]

    def _ask(self, what: str, state: Any) -> Any:
        whole = _quantity(self.solution, what)
        return whole if state is None else float(whole[self._index([state])[0]])

    def _index(self, states: Any) -> NDArray[np.intp]:
        column = np.asarray(states)
        if column.dtype.kind not in "iu" and not (column.size == 0):
            raise InputError("state", repr(states), "must be whole numbers")
        known = (column >= 0) & (column < self._states)
        if not known.all():
            wrong = int(column[~known][0])
            raise InputError("state", wrong, f"unknown; states are 0 to {self._states - 1}")
        return column.astype(np.intp)

    # ------------------------------------------------------------------ return intervals

    @cached_property
    def calibration(self) -> Calibration:
        """Scores of the returns that the fit has not seen."""
        found, returns = self.fit, self.returns
        own = returns.key == CALIBRATION
        value = np.nan_to_num(found.value)
        total = returns.completed(lambda rows: value[rows[:, 0].astype(np.intp)])
        start = returns.start[:, 0].astype(np.intp)
        cut = returns.truncated & (returns.missing_share > CLOSED)
        return Calibration.of(total[own], found.value[start[own]], found.std[start[own]], cut[own])

    def return_interval(
        self, states: Any = None, level: float = 0.9, *, above: bool = False
    ) -> Any:
        """Lower and upper end for new returns; with `above`, a lower limit alone."""
        if self.off_policy:
            raise InputError("experience", "off-policy", "returns of the target are not observed")
        at = np.arange(self._states) if states is None else self._index(states)
        value, std = self.fit.value[at], self.fit.std[at]
        if above:
            return self.calibration.above(value, std, level)
        return self.calibration.interval(value, std, level)

    @property
    def self_check(self) -> SelfCheck:
        """Whether value and std agree with the observed returns, which do not overlap."""
        if self.off_policy:
            return SelfCheck(None, None, "cannot be checked on this log: it is off-policy")
        found, returns = self.solution, self.returns
        value, variance = np.nan_to_num(found.value), np.nan_to_num(found.variance)

        def at(table: Array) -> Any:
            return lambda rows: table[rows[:, 0].astype(np.intp)]

        start = returns.start[:, 0].astype(np.intp)
        missing = returns.missing_variance(at(variance))
        usable = (found.variance[start] > 0) & (missing <= MOST_MISSING * variance[start])
        error = (returns.completed(at(value)) - value[start])[usable]
        own = variance[start][usable]
        return SelfCheck(
            judge_value(error / np.sqrt(own)), judge_std((error**2 + missing[usable]) / own), ""
        )

    # ------------------------------------------------------------------ files

    def save(self, path: Any) -> None:
        """Write the sums to a file, from which :meth:`load` continues.

        Returns observed so far are not saved: a loaded estimator collects new ones.
        """
        header = {
            "format": FORMAT,
            "kind": KIND,
            "learner": self.description.to_dict(),
            "states": self._states,
            "steps": self.steps,
            "rejected": self.rejected,
            "off_policy": self.off_policy,
            "notes": self.notes,
        }
        tensors = {
            f"{part}.{name}": array
            for part, sums in zip(NAMES, self.sums, strict=True)
            for name, array in sums.arrays().items()
        }
        write_tensors(path, header, tensors | {"part": self._part})

    @classmethod
    def load(cls, path: Any) -> TabularEstimator:
        """Read an estimator that :meth:`save` wrote.

        >>> import pathlib, tempfile, retvar as rv
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "sums.safetensors"
        >>> TabularEstimator(rv.Direct(alpha=0.0, gamma=0.9, lam=1.0), 3).save(path)
        >>> TabularEstimator.load(path)
        <least squares: 0 steps, 0 rejected>
        """
        header, tensors = read_tensors(Path(path))
        try:
            if header["kind"] != KIND or header["format"] != FORMAT:
                raise ValueError(f"kind {header['kind']!r}, format {header['format']!r}")
            found = cls(from_dict(header["learner"]), header["states"])
            found.steps, found.rejected = int(header["steps"]), int(header["rejected"])
            found.off_policy, found.notes = bool(header["off_policy"]), dict(header["notes"])
            found._part = np.array(tensors["part"]).reshape(-1, 3)
            found.sums = tuple(  # type: ignore[assignment]
                TransitionSums.restored({n: tensors[f"{part}.{n}"] for n in ARRAYS})
                for part in NAMES
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            remedy = f"is not a file of the least-squares estimator: {error!r}"
            raise InputError("file", path, remedy) from None
        return found

    def __repr__(self) -> str:
        return f"<least squares: {self.steps:,} steps, {self.rejected:,} rejected>"


class _Rows:
    """The columns of a chunk as arrays, and which rows cannot be used."""

    def __init__(self, chunk: Chunk, estimator: TabularEstimator) -> None:
        n = len(chunk["reward"])
        self.state = np.asarray(chunk["state"], dtype=np.int64)
        self.reward = np.asarray(chunk["reward"], dtype=np.float64)
        self.terminated = np.asarray(chunk.get("terminated", np.zeros(n)), dtype=bool)
        truncated = np.asarray(chunk.get("truncated", np.zeros(n)), dtype=bool)
        self.flags = self.terminated + 2 * truncated.astype(np.int64)
        follows = np.asarray(chunk["next_state"], dtype=np.int64)
        self.next_state = np.where(self.terminated, self.state, follows)
        self.stream = np.asarray(chunk.get("stream", np.zeros(n)), dtype=np.int64)
        rho = chunk.get("rho")
        self.rho = None if rho is None else np.asarray(rho, dtype=np.float64)
        n_states = estimator.features[0].states
        known = (self.state >= 0) & (self.state < n_states)
        known &= (self.next_state >= 0) & (self.next_state < n_states)
        safe = np.where(known, self.next_state, 0)
        self.gamma, self.lam = (
            np.where(self.terminated, 0.0, self._discount(chunk, name, own, safe))
            for name, own in (("gamma", estimator.gammas), ("lam", estimator.lams))
        )
        self.problems = {
            "state": ~known,
            "reward": ~np.isfinite(self.reward),
            "gamma": ~((self.gamma >= 0) & (self.gamma <= 1)),
            "lam": ~((self.lam >= 0) & (self.lam <= 1)),
        }
        if self.rho is not None:
            self.problems["rho"] = ~(np.isfinite(self.rho) & (self.rho >= 0))
        self.bad: NDArray[np.bool_] = np.any(list(self.problems.values()), axis=0)
        weighted = self.rho is not None and bool((self.rho != 1.0).any())
        self.off_policy = weighted and estimator.description.estimand != "off_policy_return"

    @staticmethod
    def _discount(chunk: Chunk, name: str, own: Array, follows: Any) -> Array:
        if name in chunk:
            return np.asarray(chunk[name], dtype=np.float64)
        return np.broadcast_to(own[follows] if own.size > 1 else own, len(chunk["reward"]))

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
            "reward": "must be a finite number",
            "rho": "must be a finite number of at least 0",
        }.get(name, "must lie in [0, 1]; give it here or to the learner")
        return InputError(f"{name}[{row}]", column[row], remedy)

    def without_bad(self) -> _Rows:
        """The good rows."""
        good = ~self.bad
        for name in ("state", "next_state", "reward", "terminated", "flags", "stream", "gamma",
                     "lam", "rho"):  # fmt: skip
            column = getattr(self, name)
            setattr(self, name, None if column is None else column[good])
        self.bad = self.bad[good]
        return self


def _numbers(given: Any) -> Array:
    return np.atleast_1d(np.asarray(np.nan if given is None else given, dtype=np.float64))


def _quantity(found: LeastSquares, what: str) -> Array:
    if what not in QUANTITIES:
        raise _unknown(what)
    whole: Array = getattr(found, "value" if what == "mean" else what)
    return whole


def _unknown(what: str) -> InputError:
    return InputError("what", repr(what), f"must be one of {', '.join(map(repr, QUANTITIES))}")


@compiled
def assign(stream, flags, longest, state, salt):
    """Give each transition to a part; a new episode, or a long one, draws again."""
    part = np.zeros(stream.size, dtype=np.int64)
    cut = np.zeros(stream.size, dtype=np.bool_)
    for t in range(stream.size):
        at = stream[t]
        part[t] = state[at, 0]
        state[at, 1] += 1
        over = state[at, 1] >= longest
        if flags[t] != 0 or over:
            cut[t] = over and flags[t] == 0
            state[at, 1] = 0
            state[at, 2] += 1
            word = mix(salt ^ ((U(at) << U(32)) + U(state[at, 2])))
            state[at, 0] = 1 if word % U(PARTS) == U(0) else 0
    return part, cut
