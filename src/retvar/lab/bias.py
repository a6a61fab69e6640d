"""The view of the bias: the value is frozen with an error, and learners go where theory says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.exact import FixedPoint, fixed_point
from retvar.format import joined, minus, number
from retvar.lab import svg
from retvar.lab.learning import METHODS, POINTS, Played, learner_class
from retvar.lab.problem import Problem
from retvar.networks import NETWORKS
from retvar.simulation import simulate

if TYPE_CHECKING:
    import xarray

    from retvar.learners import Learner

__all__ = ["ERRORS", "Bias", "BiasSettings"]

Array = NDArray[np.float64]

ERRORS = tuple(float(f"{e:.3g}") for e in np.linspace(-0.5, 0.5, 41))
"""Errors at which the slider stops, as parts of the largest value."""
NEGLIGIBLE = 1e-9  # of the variance


@dataclass(frozen=True)
class BiasSettings:
    """What the sliders set.

    Attributes
    ----------
    error
        Error of the frozen value, as a part of the largest |value|.
    where
        The state whose value is wrong; None: all are, by the same.
    alpha_bar
        Step size of variance, second moment and mean.
    steps, runs, seed
        Length and number of the runs, and the seed of their experience.

    Examples
    --------
    >>> BiasSettings(error=0.25).where is None
    True
    """

    error: float = 0.25
    where: int | None = None
    alpha_bar: float = 0.01
    steps: int = 4_000
    runs: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        runs = arguments.integer("runs", self.runs, 2, 1_000)
        steps = arguments.integer("steps", self.steps, POINTS, 1_000_000)
        object.__setattr__(self, "runs", runs)
        object.__setattr__(self, "steps", steps)

    @property
    def record(self) -> int:
        """Steps between moments that are recorded."""
        return -(-self.steps // POINTS)


def _frozen(problem: Problem, error: float, where: int | None) -> Array:
    """The value with its error."""
    exact = problem.solution.value
    size = error * float(np.max(np.abs(exact)))
    return exact + (size if where is None else size * (np.arange(exact.size) == where))


@lru_cache(maxsize=2_000)
def _point(problem: Problem, method: str, error: float, where: int | None) -> FixedPoint:
    return fixed_point(method, problem.mdp, value=_frozen(problem, error, where))  # type: ignore[arg-type]


@lru_cache(maxsize=8)
def _simulated(problem: Problem, settings: BiasSettings) -> xarray.Dataset:
    at = [0, *range(settings.record, settings.steps + 1, settings.record)]
    return simulate(
        problem.mdp,
        Bias(problem, settings).learners(),
        steps=settings.steps,
        runs=settings.runs,
        seed=settings.seed,
        record=at,
        truth=False,
    )


class Bias(Played[BiasSettings]):
    """Learners with a frozen value that is wrong, after some steps, and their fixed points.

    Parameters
    ----------
    problem
        The MDP.
    settings
        The error, the step size and the like.
    step
        Steps taken so far.

    Examples
    --------
    >>> view = Bias(Problem.named("chain"), BiasSettings(error=0.25))  # 1, where values are 4 to 1
    >>> float(view.bias("direct")[3]), float(view.bias("vtd")[3])  # e², −e² − 2je
    (1.0, -3.0)
    """

    def __init__(
        self, problem: Problem, settings: BiasSettings | None = None, step: int = 0
    ) -> None:
        super().__init__(problem, settings or BiasSettings(), step)

    def learners(self) -> dict[str, Learner]:
        """The learners by the names of their methods: all that there are."""
        step, value = self.settings.alpha_bar, self.value
        return {
            name: learner_class(name)(alpha=0.0, alpha_bar=step, learn_value=False, value=value)
            for name in METHODS
        }

    # ------------------------------------------------------------------ numbers

    @property
    def value(self) -> Array:
        """The frozen value, with its error."""
        return _frozen(self.problem, self.settings.error, self.settings.where)

    def point(self, method: str, error: float | None = None) -> FixedPoint:
        """The fixed point of a method, with this or another error."""
        chosen = self.settings.error if error is None else error
        return _point(self.problem, method, chosen, self.settings.where)

    def bias(self, method: str) -> Array:
        """Error of a method at its fixed point, by state."""
        return self.point(method).bias

    @property
    def truth(self) -> Array:
        """Variance of the λ-return that bootstraps from the frozen value."""
        return self.point(METHODS[0]).truth.variance

    @property
    def data(self) -> xarray.Dataset:
        """The simulation: means over runs, and their standard deviations."""
        return _simulated(self.problem, self.settings)

    def variance(self, method: str) -> Array:
        """Mean over runs of the estimates at this step, by state."""
        chosen = self.data.variance.sel(learner=method).values[self.moment]
        return np.asarray(chosen, dtype=float)

    # ------------------------------------------------------------------ words

    def sentences(self, state: int) -> list[str]:
        """What one sees, in words that follow the numbers."""
        name, s = self.problem.states[state], self.settings
        size = s.error * float(np.max(np.abs(self.problem.solution.value)))
        place = "every state" if s.where is None else self.problem.states[s.where]
        if s.error == 0:
            return [
                "The value is frozen at its exact answer: all methods go to the variance.",
                "Drag the error.",
            ]
        first, *rest = (self._goal(method, state) for method in METHODS)
        going = joined([first.replace(" to ", " goes to ", 1), *rest])
        said = [
            f"The value is frozen, and wrong by {number(size)} in {place}.",
            f"In {name} the variance is {number(float(self.truth[state]))}; by theory {going}.",
        ]
        if self.step:
            now = joined(
                f"{NETWORKS[m].label} {number(float(self.variance(m)[state]), 2)}" for m in METHODS
            )
            said.append(f"After {self.step:,} steps the learners are at: {now}.")
        return [*map(minus, said), *self._reasons()]

    def _goal(self, method: str, state: int) -> str:
        """A method, and where it goes."""
        bias, label = float(self.bias(method)[state]), NETWORKS[method].label
        if abs(bias) < NEGLIGIBLE * max(1.0, abs(float(self.truth[state]))):
            return f"{label} to {number(float(self.truth[state]))}, the variance itself"
        side = "high" if bias > 0 else "low"
        goal = number(float(self.point(method).variance[state]))
        return f"{label} to {goal} ({number(abs(bias))} too {side})"

    def _reasons(self) -> list[str]:
        """Why, from how each method is made."""
        plain = [n for n in NETWORKS.values() if n.mean.name == "value" and not n.second_moment]
        square = [n for n in NETWORKS.values() if n.second_moment]
        own = [n for n in NETWORKS.values() if n.mean.name != "value"]
        said = []
        if plain and square:
            said.append(
                f"{_upper(plain[0].label)} squares deviations from the frozen value, and a wrong "
                "centre adds to them; "
                f"{square[0].label} subtracts the square of the frozen value, which is then the "
                "wrong square."
            )
        if own:
            said.append(f"{_upper(own[0].label)} learns the mean itself, and needs no right value.")
        return said

    # ------------------------------------------------------------------ charts

    def charts(self, state: int) -> list[str]:
        """All charts, as SVG."""
        return [self.against_error(state), self.by_step(state), self.by_state()]

    def against_error(self, state: int) -> str:
        """Where each method goes, against the error of the value, and where it is now."""
        lines, marks = [], []
        truth = [self.point(METHODS[0], e).truth.variance[state] for e in ERRORS]
        for method in METHODS:
            goal = [float(self.point(method, e).variance[state]) for e in ERRORS]
            look, label = svg.method_colour(method), NETWORKS[method].label
            lines.append(svg.Line(label, ERRORS, goal, look, svg.method_dash(method)))
            if self.step:
                now = float(self.variance(method)[state])
                marks.append(svg.Mark("learned so far", self.settings.error, now, look))
        lines.append(svg.Line("exact", ERRORS, truth, svg.INK, "5 4", width=1.2))
        levels = [svg.Level("", self.settings.error, svg.SOFT, "2 3", vertical=True)]
        return svg.line_chart(
            f"Where each method goes: variance of {self.problem.states[state]}",
            lines, levels, marks, x_label="error of the frozen value / largest |value|",
            description="fixed points by theory; dots are learners",
        )  # fmt: skip

    def by_step(self, state: int) -> str:
        """The variance of one state against steps, with the fixed point of each method."""
        x = self.data.step.values[: self.moment + 1] if self.step else np.zeros(0)
        lines, levels = [], [svg.Level("exact", float(self.truth[state]))]
        for method in METHODS:
            chosen = self.data.sel(learner=method).isel(state=state)
            mean, spread = chosen.variance.values, chosen.variance_std.values
            mean, spread = mean[: len(x)], spread[: len(x)]
            look = svg.method_colour(method)
            lines.append(
                svg.Line(NETWORKS[method].label, x, mean, look, "", mean - spread, mean + spread)
            )
            levels.append(svg.Level("", float(self.point(method).variance[state]), look, "3 3"))
        return svg.line_chart(
            f"On the way: variance of {self.problem.states[state]}", lines, levels,
            x_label="steps", x_range=(0, self.settings.steps),
            description="lines: mean over runs with a band of one standard deviation; dashed "
            "levels: fixed points",
        )  # fmt: skip

    def by_state(self) -> str:
        """Estimates and fixed points, state by state."""
        dots = []
        for k, method in enumerate(METHODS):
            label, look = NETWORKS[method].label, svg.method_colour(method)
            now = self.variance(method) if self.step else np.full(self.truth.size, np.nan)
            dots.append(svg.Dots(label, now, look))
            goal, name = self.point(method).variance, "" if k else "theory"
            dots.append(svg.Dots(name, goal, look, shape="ring", over=True))
        return svg.dot_chart(
            "State by state", self.problem.states, dots, self.truth, y_label="variance"
        )


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
