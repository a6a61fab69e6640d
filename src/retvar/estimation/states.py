"""Least-squares estimators: what those of states and of observations share, and that of states.

They have the methods of an online estimator, so that whatever asks one can ask the other.
"""

from __future__ import annotations

from functools import cached_property, partialmethod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.episodes import Chunk, complete
from retvar.estimation.least_squares import BLOCK, LeastSquares, Solver
from retvar.estimation.return_intervals import Calibration, ReturnsByState
from retvar.estimation.returns import Predictor, Returns, predict_rows
from retvar.estimation.sums import RatioCheck, Sums, check_sums
from retvar.experience.moves import Moves
from retvar.online.checkpoint import write_tensors
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.td.features import States
from retvar.td.learners import Learner

Array = NDArray[np.float64]
Integers = NDArray[np.intp]
QUANTITIES = ("value", "variance", "std")
FORMAT = 2  # of saved files
MOST_STATES = 2**31


class LeastSquaresEstimator:
    """Base of the least-squares estimators of states and of observations."""

    by = "least_squares"
    bootstrap_samples = 0
    has_intervals = True
    rejected = 0  # transitions: none, since sources leave bad ones out
    file_kind: ClassVar[str]  #: in the header of saved files
    computed: ClassVar[tuple[str, ...]]  #: cached properties that rest on the transitions so far
    # what a kind provides
    features: Any  # of a state or observation, as a list
    add: Any  # a method that adds the transitions of a chunk, one trajectory after the other
    _all_states: Any  # the states that are meant where none is named
    _look_up: Any  # everything that is known, and where a column of states is in it
    calibrated: Any  # what return intervals rest on, from observed returns
    _saved: Any  # header and arrays of a file
    restored: Any  # an estimator with this learner, from header and arrays

    def __init__(self, learner: Learner) -> None:
        self.description = learner
        self.steps = 0  #: transitions added
        self.notes: dict[str, Any] = {}  #: plain data of your own, kept in saved files

    def _rows(self, chunk: Chunk) -> Chunk:
        """All columns of a chunk, which must be finite."""
        rows = complete(self.description, chunk)
        for name, column in rows.items():
            if column.dtype.kind == "f" and not np.isfinite(column).all():
                raise InputError(name, "not finite", "must be finite numbers; leave such rows out")
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
        """Write to a file, from which :func:`retvar.load` continues.

        Of states, the sums are saved; of observations, all transitions, since the spread at a place
        comes from those around it. Return intervals and checks then rest on new transitions.
        """
        header, arrays = self._saved()
        about = {
            "format": FORMAT, "kind": self.file_kind, "learner": self.description.to_dict(),
            "notes": self.notes, "steps": self.steps,
        }  # fmt: skip
        write_tensors(path, about | header, arrays)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.steps:,} steps>"


class StateEstimator(LeastSquaresEstimator):
    """Value, variance and std of every state, by least squares.

    The sums of all transitions give the estimates; sums of several logs can be added.

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

    @property
    def features(self) -> list[Any]:
        """One weight for each state."""
        return [States(self._states)]

    def add(self, chunk: Chunk) -> None:
        """Add transitions, one trajectory after the other."""
        rows = self._rows(chunk)
        del rows["truncated"], rows["terminated"]
        largest = max(int(rows[name].max(initial=0)) for name in ("state", "next_state"))
        self.grow(max(self._states, largest + 1))
        self.sums.add(**rows)
        self._count(len(chunk["reward"]))

    def merge(self, other: StateEstimator, number: Integers | None = None) -> None:
        """Add what another estimator has seen; state s of its is ``number[s]`` here."""
        states = other._states if number is None else int(number.max(initial=0)) + 1
        self.grow(max(self._states, states))
        self.sums.merge(other.sums, number)
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
        return check_sums(self.sums, self._states)

    def add_errors(self, states: Any) -> None:
        """Compute standard errors of these states, up to 512; of many, few have them at first."""
        found, at = self._look_up(states)
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
        return self.solution, arguments.indices("state", states, 0, self._states)

    def calibrated(self, returns: Returns) -> tuple[Calibration, ReturnsByState]:
        """Scores of observed returns, and these returns by the state in which they began.

        The rest of a return that was cut off is the value of the last state, and a deviation drawn
        from those of the others.
        """

        def known(what: str) -> Predictor:
            return lambda rows: np.nan_to_num(predict_rows(self, what, rows))

        start, total = returns.start[:, 0].astype(np.intp), returns.completed(known("value"))
        value, std = self.solution.value[start], self.solution.std[start]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = (total - value) / std
        scores = scores[np.isfinite(scores)]
        if scores.size:
            drawn = np.random.default_rng(0).choice(scores - scores.mean(), total.size)
            whole = total + np.sqrt(returns.missing_variance(known("variance"))) * drawn
            total = np.clip(whole, total.min(), total.max())
        return Calibration.of(total, value, std), ReturnsByState(total, start)

    # ------------------------------------------------------------------ files

    def _saved(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"states": self._states}, self.sums.arrays()

    @classmethod
    def restored(cls, learner: Learner, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The estimator that was saved."""
        found = cls(learner, header["states"])
        found.sums = Sums(**arrays)
        found._count(header["steps"])
        return found
