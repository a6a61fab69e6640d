"""The view of learning: estimates move towards the exact answer, state by state.

A view is a function of its settings and of how many steps have been taken. Every change of a
setting repeats the same experience with it, so that what one sees is what the setting does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.curves import expected_curve
from retvar.errors import InputError
from retvar.format import joined, number
from retvar.lab import learning_words, svg
from retvar.lab.problem import Problem
from retvar.learners import LEARNERS, Learner
from retvar.networks import NETWORKS
from retvar.simulation import simulate

if TYPE_CHECKING:
    import xarray

__all__ = ["ALPHAS", "METHODS", "POINTS", "Learning", "Played", "Settings"]

Array = NDArray[np.float64]

METHODS = tuple(NETWORKS)
ALPHAS = tuple(float(f"{a:.3g}") for a in np.geomspace(0.001, 1.0, 31))
"""Step sizes at which a slider stops."""
POINTS = 200  # moments that are recorded
SCANNED = ALPHAS  # step sizes at which all errors are shown at once
DIVERGED = 1e6  # times the largest variance: an estimate beyond that has diverged
MOST_STATES = 6  # of MDPs whose exact curves come while one waits


@dataclass(frozen=True)
class Settings:
    """What the sliders set.

    Attributes
    ----------
    methods
        Names of methods.
    alpha, alpha_bar
        Step sizes of the value, and of the variance or second moment.
    kappa
        Trace decay of all nodes.
    value
        Initial value of every state.
    steps, runs, seed
        Length and number of the runs, and the seed of their experience.

    Examples
    --------
    >>> Settings(alpha=0.1).alpha_bar
    0.02
    """

    methods: tuple[str, ...] = METHODS[:2]
    alpha: float = 0.02
    alpha_bar: float = 0.02
    kappa: float = 0.0
    value: float = 0.0
    steps: int = 2_000
    runs: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.methods:
            raise InputError("methods", "none", "choose at least one")
        for name in self.methods:
            arguments.choice("methods", name, METHODS)
        runs = arguments.integer("runs", self.runs, 2, 1_000)
        steps = arguments.integer("steps", self.steps, POINTS, 1_000_000)
        object.__setattr__(self, "runs", runs)
        object.__setattr__(self, "steps", steps)

    def learners(self) -> dict[str, Learner]:
        """The learners by the names of their methods.

        >>> list(Settings().learners())
        ['direct', 'vtd']
        """
        kappas = {"kappa": self.kappa, "kappa_bar": self.kappa} if self.kappa else {}
        given: dict[str, Any] = {"alpha": self.alpha, "alpha_bar": self.alpha_bar, **kappas}
        if self.value:
            given["value"] = self.value
        return {name: learner_class(name)(**given) for name in self.methods}

    @property
    def record(self) -> int:
        """Steps between moments that are recorded."""
        return -(-self.steps // POINTS)


def learner_class(method: str) -> type[Learner]:
    """The class of a method's learners.

    >>> learner_class("vtd").__name__
    'VTD'
    """
    return LEARNERS[NETWORKS[method].title]


class Error(NamedTuple):
    """Root mean squared error of the variance over states, measured and expected."""

    measured: float
    expected: float  #: NaN where there is no exact curve


@lru_cache(maxsize=8)
def _simulated(problem: Problem, settings: Settings) -> xarray.Dataset:
    at = [0, *range(settings.record, settings.steps + 1, settings.record)]
    return simulate(
        problem.mdp,
        settings.learners(),
        steps=settings.steps,
        runs=settings.runs,
        seed=settings.seed,
        keep="runs",
        record=at,
    )


@lru_cache(maxsize=64)
def _expected(problem: Problem, method: str, settings: Settings) -> xarray.Dataset | str:
    """The exact curve of a method, or why there is none."""
    if problem.mdp.n_states > MOST_STATES:
        return f"exact curves take too long here with more than {MOST_STATES} states"
    if settings.kappa:
        return "there are no exact curves with traces (κ > 0)"
    at = [0, *range(settings.record, settings.steps + 1, settings.record)]
    learner = replace(settings, methods=(method,)).learners()
    return expected_curve(problem.mdp, learner, steps=settings.steps, record=at).isel(learner=0)


@lru_cache(maxsize=16)
def _scanned(problem: Problem, settings: Settings) -> dict[str, Array]:
    """Error over the second half of the run for each of many α, by method."""
    learners = {
        f"{name} {alpha}": learner.replace(alpha=alpha)
        for name, learner in settings.learners().items()
        for alpha in SCANNED
    }
    at = np.linspace(settings.steps // 2, settings.steps, 40).astype(int)
    data = simulate(
        problem.mdp,
        learners,
        steps=settings.steps,
        runs=settings.runs,
        seed=settings.seed,
        keep="runs",
        record=at.tolist(),
    )
    errors = _rmse(data.variance.values - data.true_variance.values[None, :, None], (0, 2, 3))
    return dict(zip(settings.methods, errors.reshape(-1, len(SCANNED)), strict=True))


def _rmse(errors: Array, axis: tuple[int, ...]) -> Array:
    """Root mean square; of runs that diverged only what is finite, NaN if nothing is."""
    known = np.isfinite(errors)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        total = np.sum(np.where(known, errors, 0.0) ** 2, axis=axis)
        return np.asarray(np.sqrt(total / np.sum(known, axis=axis)))


class _Long(Protocol):
    @property
    def steps(self) -> int: ...
    @property
    def record(self) -> int: ...


S = TypeVar("S", bound=_Long)


class Played(Generic[S]):
    """Runs with settings, of which some steps have been taken.

    >>> runs = Played(Problem.named("chain"), Settings(steps=1_000), step=200)
    >>> runs.advance(900), runs.done
    (1000, True)
    """

    def __init__(self, problem: Problem, settings: S, step: int = 0) -> None:
        self.problem, self.settings = problem, settings
        self.step = min(max(step, 0), settings.steps)

    def advance(self, steps: int) -> int:
        """Take some steps; returns how many have been taken since the start."""
        self.step = min(self.step + steps, self.settings.steps)
        return self.step

    @property
    def done(self) -> bool:
        """Whether the run has reached its end."""
        return self.step >= self.settings.steps

    @property
    def data(self) -> xarray.Dataset:
        """The simulation."""
        raise NotImplementedError

    @property
    def moment(self) -> int:
        """Number of the last recorded moment that has been reached."""
        return min(self.step // self.settings.record, len(self.data.step) - 1)


class Learning(Played[Settings]):
    """Learners on an MDP, after some steps of the same experience.

    Parameters
    ----------
    problem
        The MDP.
    settings
        Methods, step sizes and the like.
    step
        Steps taken so far.

    Examples
    --------
    >>> view = Learning(Problem.named("chain"), Settings(alpha=0.2, alpha_bar=0.02, runs=4))
    >>> view.advance(1_000)
    1000
    >>> view.error("vtd").measured > 3 * view.error("direct").measured
    True
    """

    def __init__(self, problem: Problem, settings: Settings | None = None, step: int = 0) -> None:
        super().__init__(problem, settings or Settings(), step)

    # ------------------------------------------------------------------ numbers

    @property
    def data(self) -> xarray.Dataset:
        """The simulation, with every run."""
        return _simulated(self.problem, self.settings)

    def expected(self, method: str) -> xarray.Dataset | None:
        """The exact learning curve of a method, where there is one."""
        found = _expected(self.problem, method, self.settings)
        return None if isinstance(found, str) else found

    def why_no_curve(self) -> str:
        """Why there is no exact curve; empty where there is one."""
        found = _expected(self.problem, self.settings.methods[0], self.settings)
        return found if isinstance(found, str) else ""

    def variance(self, method: str) -> Array:
        """Estimates of the variance, [run, state], at this step."""
        chosen = self.data.variance.sel(learner=method)
        return np.asarray(chosen.values[:, self.moment], dtype=float)

    def errors(self, method: str) -> Array:
        """Root mean squared error over states and runs, at each recorded moment."""
        chosen = self.data.sel(learner=method)
        return _rmse(chosen.variance.values - chosen.true_variance.values, (0, 2))

    def expected_errors(self, method: str) -> Array | None:
        """What :meth:`errors` tends to with more and more runs, where that is known."""
        curve = self.expected(method)
        return None if curve is None else np.sqrt(curve.variance_mse.values.mean(axis=1))

    def error(self, method: str) -> Error:
        """The error of a method at this step."""
        exact = self.expected_errors(method)
        found = float(self.errors(method)[self.moment])
        return Error(found, np.nan if exact is None else float(exact[self.moment]))

    def scan(self) -> dict[str, Array]:
        """Errors over the second half of the run by α, at this ᾱ; see `SCANNED`."""
        return _scanned(self.problem, replace(self.settings, alpha=SCANNED[0]))

    def push(self, state: int) -> float:
        """What one TD error adds to M − J² in a state beyond direct's update: 2|ᾱ − α||J|·|δ|."""
        apart = abs(self.settings.alpha_bar - self.settings.alpha)
        found = self.problem.solution.value[state] * self.problem.error_size[state]
        return float(2 * apart * abs(found))

    def diverged(self) -> dict[str, int]:
        """In how many runs each method has diverged by this step, where it has."""
        limit = DIVERGED * max(1.0, float(np.nanmax(self.problem.solution.variance, initial=0.0)))
        found = {}
        for method in self.settings.methods:
            inside = np.abs(self.variance(method)) < limit  # not so of NaN
            found[method] = int(np.sum(~inside.all(axis=1)))
        return {name: times for name, times in found.items() if times}

    def mean_and_spread(self, method: str, state: int) -> tuple[float, float]:
        """Mean and standard deviation over runs of the variance of a state, at this step."""
        runs = self.variance(method)
        return float(_mean(runs)[state]), float(_spread(runs)[state])

    # ------------------------------------------------------------------ words

    def sentences(self, state: int) -> list[str]:
        """What one sees, in words that follow the numbers."""
        return learning_words.sentences(self, state)

    def split(self) -> tuple[list[str], list[str]]:
        """Methods that subtract the square of the value, and the others."""
        squares = [m for m in self.settings.methods if NETWORKS[m].second_moment is not None]
        return squares, [m for m in self.settings.methods if m not in squares]

    def pair(self) -> tuple[str, str] | None:
        """A method that subtracts the square and one that does not, to compare; None if not both.

        >>> Learning(Problem.named("chain")).pair()
        ('vtd', 'direct')
        """
        squares, others = self.split()
        return (squares[0], others[0]) if squares and others else None

    # ------------------------------------------------------------------ charts

    def _seen(self, values: Array) -> Array:
        """A curve up to now."""
        shown = values[: self.moment + 1]
        return shown if self.step else shown[:0]

    def charts(self, state: int) -> list[str]:
        """All charts, as SVG."""
        drawn = [self.by_state(), self.by_step(state), self.error_chart(), self.scan_chart()]
        if self.split()[0]:
            drawn.insert(2, self.cancelling(state))
        return [*drawn, self.values()]

    def by_state(self) -> str:
        """The variance of each state: mean over runs, ± standard deviation, and exact marks."""
        truth = self.problem.solution.variance
        dots = []
        for method in self.settings.methods:
            runs = self.variance(method)
            mean, spread = _mean(runs), _spread(runs)
            dots.append(_dots(method, mean, spread))
        top = 1.7 * float(np.nanmax(truth, initial=0.0)) or 1.0
        limits = (min(0.0, -0.35 * top), top)
        return svg.dot_chart(
            "Variance, state by state", self.problem.states, dots, truth, y_range=limits,
            y_label="variance", description=self._described(),
        )  # fmt: skip

    def _described(self) -> str:
        parts = (f"{NETWORKS[m].label} {_digits(self.error(m).measured)}"
                 for m in self.settings.methods)  # fmt: skip
        return f"After {self.step} steps the error is: {joined(parts)}"

    def by_step(self, state: int) -> str:
        """The variance of one state against steps, with exact mean and band."""
        lines = []
        x = self.data.step.values
        for method in self.settings.methods:
            runs = self.data.variance.sel(learner=method).values[:, :, state]
            look = svg.method_colour(method)
            curve = self.expected(method)
            if curve is not None:
                mean, spread = curve.variance.values[:, state], curve.variance_std.values[:, state]
                lines.append(svg.Line("", x, mean, look, "3 3", mean - spread, mean + spread, 1.2))
            mean = _mean(runs)
            lines.append(
                svg.Line(NETWORKS[method].label, self._seen(x), self._seen(mean), look, width=2.2)
            )
            lines.append(
                svg.Line("", self._seen(x), self._seen(runs[0]), look, width=0.8, opacity=0.6)
            )
        truth = float(self.problem.solution.variance[state])
        return svg.line_chart(
            f"Variance of {self.problem.states[state]}", lines, [svg.Level("exact", truth)],
            x_label="steps", x_range=(0, self.settings.steps), y_range=_around(truth, lines),
            description="thick: mean over runs; thin: one run; dashed, with a band of one standard "
            "deviation: what is expected exactly",
        )  # fmt: skip

    def cancelling(self, state: int) -> str:
        """M and J² of one run: their difference is the estimate."""
        method = self.split()[0][0]
        run = self.data.sel(learner=method).isel(run=0, state=state)
        x, look = self._seen(self.data.step.values), svg.method_colour(method)
        with np.errstate(over="ignore"):
            M, J2 = self._seen(run.second_moment.values), self._seen(run.value.values**2)
        exact = float(self.problem.solution.value[state]) ** 2
        variance = float(self.problem.solution.variance[state])
        lines = [
            svg.Line("J²", x, J2, svg.SOFT, low=J2, high=M),
            svg.Line("M", x, M, look),
        ]
        levels = [svg.Level("exact", exact + variance), svg.Level("", exact)]
        return svg.line_chart(
            f"Inside {NETWORKS[method].label}: variance = M − J², one run of "
            f"{self.problem.states[state]}",
            lines, levels, x_label="steps", x_range=(0, self.settings.steps),
            y_range=(0.0, 1.6 * (exact + variance) or 1.0),
            description="the estimate is the gap between the two lines",
        )  # fmt: skip

    def error_chart(self) -> str:
        """Error against steps, measured and expected."""
        lines, x = [], self.data.step.values
        for method in self.settings.methods:
            look = svg.method_colour(method)
            exact = self.expected_errors(method)
            if exact is not None:
                lines.append(svg.Line("", x, exact, look, "3 3", width=1.2))
            found = self._seen(self.errors(method))
            lines.append(svg.Line(NETWORKS[method].label, self._seen(x), found, look, width=2.2))
        top = 1.5 * float(np.sqrt(np.nanmean(self.problem.solution.variance**2))) or 1.0
        return svg.line_chart(
            "Error over all states", lines, x_label="steps", y_label="root mean square",
            x_range=(0, self.settings.steps), y_range=(0.0, top), description=self._described(),
        )  # fmt: skip

    def scan_chart(self) -> str:
        """Error in the second half of the run against α, with ᾱ as it is."""
        found, s = self.scan(), self.settings
        lines = [
            svg.Line(NETWORKS[m].label, SCANNED, errors, svg.method_colour(m), svg.method_dash(m))
            for m, errors in found.items()
        ]
        known = [errors[np.isfinite(errors)] for errors in found.values()]
        least = float(np.concatenate(known).min(initial=np.inf))
        least = least if np.isfinite(least) else 1.0
        levels = [
            svg.Level("ᾱ", s.alpha_bar, svg.SOFT, "2 3", vertical=True),
            svg.Level("α now", s.alpha, svg.INK, "", vertical=True),
        ]
        return svg.line_chart(
            f"Error against α, steps {s.steps // 2:,} to {s.steps:,}", lines, levels,
            x_label="α", log_x=True, y_label="root mean square",
            y_range=(0.0, max(8 * least, 1e-9)),
            description="errors in the second half of the run, each α with the same experience",
        )  # fmt: skip

    def values(self) -> str:
        """The value of each state, and exact marks."""
        dots = []
        for method in self.settings.methods:
            runs = self.data.value.sel(learner=method).values[:, self.moment]
            dots.append(_dots(method, _mean(runs), _spread(runs)))
        exact = self.problem.solution.value
        return svg.dot_chart(
            "Value, state by state", self.problem.states, dots, exact, y_label="value",
            y_range=_beside(exact),
        )  # fmt: skip


def _mean(runs: Array) -> Array:
    """Mean over runs, without those that diverged."""
    known = np.isfinite(runs)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.asarray(np.sum(np.where(known, runs, 0.0), axis=0) / np.sum(known, axis=0))


def _spread(runs: Array) -> Array:
    """Standard deviation over runs, without those that diverged."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.sqrt(np.maximum(_mean((runs - _mean(runs)) ** 2), 0.0))


def _dots(method: str, mean: Array, spread: Array) -> svg.Dots:
    shape = "s" if NETWORKS[method].look.marker == "s" else "o"
    label, look = NETWORKS[method].label, svg.method_colour(method)
    return svg.Dots(label, mean, look, mean - spread, mean + spread, shape)


def _around(truth: float, lines: Sequence[svg.Line]) -> tuple[float, float]:
    """Limits that hold the exact answer and the bands, but not the wildest of them."""
    ends = [np.asarray(end, dtype=float) for line in lines for end in (line.low, line.high, line.y)
            if end is not None]  # fmt: skip
    known = np.concatenate([*ends, [0.0, truth]])
    known = known[np.isfinite(known)]
    size = max(abs(truth), 1e-9)
    low, high = max(float(known.min()), -1.5 * size), min(float(known.max()), 3.5 * size)
    return min(low, 0.0) - 0.05 * size, max(high, 1.3 * size)


def _beside(exact: Array) -> tuple[float, float]:
    """Limits that hold 0, exact answers, and as much again on both sides."""
    low, high = min(float(np.min(exact)), 0.0), max(float(np.max(exact)), 0.0)
    span = (high - low) or 1.0
    return low - 0.5 * span, high + 0.5 * span


def _digits(x: float) -> str:
    """Two digits."""
    return number(x, 2)
