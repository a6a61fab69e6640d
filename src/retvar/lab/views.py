"""The views of the lab, as the page shows them: controls, and for given settings a page.

A view knows nothing of the page. It lists its controls as data, and makes a :class:`Screen` of
their values: charts as SVG, sentences, a table of numbers, and the Python that makes them.
``app`` turns controls into elements of the page, so that a new view is a class in ``VIEWS``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from retvar.format import minus, number, short_number
from retvar.lab.bias import ERRORS, Bias, BiasSettings
from retvar.lab.code import bias_code, learning_code
from retvar.lab.learning import ALPHAS, METHODS, Learning, Settings
from retvar.lab.problem import DOMAINS, Problem
from retvar.mdp import END
from retvar.networks import NETWORKS

__all__ = [
    "TICK",
    "VIEWS",
    "BiasView",
    "Control",
    "LearningView",
    "Screen",
    "Shelf",
    "View",
    "frame",
]

STEPS = (1_000, 2_000, 5_000, 20_000)
RUNS = (5, 20, 100)
TENTHS = tuple(round(k / 20, 2) for k in range(21))
TICK, FILM = 0.25, 10.0  # seconds between frames, and of a run from start to end
OWN = "the domain's"


class Control(NamedTuple):
    """One thing that people set.

    >>> Control("alpha", "slider", "α", (0.1, 0.2), 0.1).value
    0.1
    """

    name: str  #: key in the values that a view gets
    kind: str  #: slider (over options), choice (one of options), many (of options), number, text
    label: str
    options: Sequence[Any] | Mapping[str, Any] = ()  #: a mapping shows its keys, gives its values
    value: Any = None
    help: str = ""
    more: bool = False  #: whether it waits behind “more settings”


@dataclass(frozen=True)
class Screen:
    """What a view shows.

    Attributes
    ----------
    charts
        SVG texts.
    sentences
        What one sees, in words.
    heading, rows
        A table of the numbers.
    code
        The Python that makes it.
    note
        How to read the charts.
    exports
        Files that hold what one sees: name → text.

    Examples
    --------
    >>> Screen(charts=["<svg/>"]).rows
    []
    """

    charts: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    heading: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    code: str = ""
    note: str = ""
    exports: dict[str, str] = field(default_factory=dict)


class Shelf:
    """Problems that views of one page share, by name: the domains, and those that were edited.

    >>> Shelf().names()[0]
    'chain'
    """

    def __init__(self) -> None:
        self.problems: dict[str, Problem] = {}
        self._first: set[str] = set()
        self._domains: dict[str, Problem] = {}
        self._made: dict[int, dict[Any, Problem]] = {}

    def names(self) -> list[str]:
        """Names of all problems; views begin with the first."""
        first = [name for name in self.problems if name in self._first]
        return [*first, *DOMAINS, *(name for name in self.problems if name not in first)]

    def put(self, name: str, problem: Problem, first: bool = True) -> None:
        """Offer a problem under a name, unless the one that is there is equal; first, or last.

        >>> shelf = Shelf()
        >>> shelf.put("mine", Problem.named("chain"))
        >>> shelf.names()[0]
        'mine'
        """
        (self._first.add if first else self._first.discard)(name)
        old = self.problems.get(name)
        if old is None or old.mdp != problem.mdp:
            self._made.pop(id(old), None)
            self.problems[name] = problem

    def find(self, name: str, gamma: float | None = None, lam: float | None = None) -> Problem:
        """A problem with its own γ and λ, or with others; the same object for the same words."""
        own = self.problems.get(name) or self._domains.setdefault(name, Problem.named(name))
        mdp = own.mdp
        if gamma is not None and np.all(mdp.edges.gamma[mdp.edges.next_state != END] == gamma):
            gamma = None
        if lam is not None and np.all(mdp.lam == lam):
            lam = None
        made = self._made.setdefault(id(own), {None: own})  # problems stay, and so do their ids
        return made.setdefault((gamma, lam), own.discounted(gamma, lam))


class View(Protocol):
    """What the page needs of a view."""

    title: str

    def sources(self) -> list[Control]:
        """Controls on which other controls depend, such as the domain."""

    def controls(self, source: Mapping[str, Any]) -> list[Control]:
        """The other controls, for the values of the sources."""

    def length(self, values: Mapping[str, Any]) -> int:
        """Steps from start to end; 0 if nothing moves."""

    def show(self, values: Mapping[str, Any], step: int) -> Screen:
        """The page after some steps; an InputError is shown in its place."""


def _step_sizes(name: str, label: str, value: float, told: str) -> Control:
    return Control(name, "slider", label, ALPHAS, value, told)


def _discounts(problem: Problem) -> list[Control]:
    """λ and γ: sliders from the domain's own; choices where these differ from state to state."""
    mdp = problem.mdp
    arriving = mdp.edges.gamma[mdp.edges.next_state != END]
    return [
        _discount("lam", "λ", np.unique(mdp.lam), "bootstrapping: 1 is the full return"),
        _discount("gamma", "γ", np.unique(arriving), "discount")._replace(more=True),
    ]


def _discount(name: str, label: str, found: NDArray[np.float64], told: str) -> Control:
    if found.size == 1:
        own = float(found[0])
        return Control(name, "slider", label, sorted({own, *TENTHS}), own, told)
    options = {OWN: None, **{short_number(x): x for x in TENTHS}}
    return Control(name, "choice", label, options, None, told)


def _runs(steps: int) -> list[Control]:
    return [
        Control(
            "steps", "choice", "steps of a run", {f"{n:,}": n for n in STEPS}, steps, more=True
        ),
        Control("runs", "choice", "runs", {str(n): n for n in RUNS}, 20, more=True),
        Control("seed", "number", "seed", (0, 999_999), 0, more=True),
    ]


class _RunsOnDomain:
    """A view of runs on a domain that one chooses."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def sources(self) -> list[Control]:
        """The domain."""
        names = self.shelf.names()
        return [Control("domain", "choice", "domain", names, names[0])]

    def length(self, values: Mapping[str, Any]) -> int:
        """The length of the runs."""
        return int(values["steps"])


class LearningView(_RunsOnDomain):
    """Learning: estimates move towards the exact answer.

    >>> view = LearningView(Shelf())
    >>> [control.name for control in view.sources()]
    ['domain']
    """

    title = "Two step sizes"

    def controls(self, source: Mapping[str, Any]) -> list[Control]:
        """Step sizes, methods, discounts, and the runs."""
        problem = self.shelf.find(source["domain"])
        states = {name: k for k, name in enumerate(problem.states)}
        labels = {NETWORKS[m].label: m for m in METHODS}
        return [
            _step_sizes("alpha", "α", 0.02, "step size of the value J"),
            _step_sizes("alpha_bar", "ᾱ", 0.02, "step size of the variance, or of VTD's M"),
            Control("state", "choice", "state to look at", states, problem.telling()),
            Control("methods", "many", "methods", labels, METHODS[:2]),
            *_discounts(problem),
            Control("kappa", "slider", "κ", TENTHS, 0.0, "trace decay of the learners"),
            Control("value", "number", "J starts at", (-1e6, 1e6), 0.0, more=True),
            *_runs(2_000),
        ]

    def model(self, values: Mapping[str, Any], step: int) -> Learning:
        """The learners, for values of the controls."""
        settings = Settings(
            methods=tuple(m for m in METHODS if m in values["methods"]),
            alpha=values["alpha"],
            alpha_bar=values["alpha_bar"],
            kappa=values["kappa"],
            value=float(values["value"]),
            steps=values["steps"],
            runs=values["runs"],
            seed=int(values["seed"]),
        )
        problem = self.shelf.find(values["domain"], values["gamma"], values["lam"])
        return Learning(problem, settings, step)

    def show(self, values: Mapping[str, Any], step: int) -> Screen:
        """Charts, sentences, errors and code."""
        model, state = self.model(values, step), values["state"]
        rows = []
        for method in model.settings.methods:
            error = model.error(method)
            cells = [*model.mean_and_spread(method, state), error.measured]
            told = ["diverged"] * 3 if method in model.diverged() else map(_cell, cells)
            rows.append([NETWORKS[method].label, *told, _cell(error.expected)])
        name = model.problem.states[state]
        exact = _cell(model.problem.solution.variance[state])
        rows.append(["exact", exact, "", "", ""])
        return Screen(
            charts=model.charts(state),
            sentences=model.sentences(state),
            heading=["", f"variance of {name}", "± over runs", "error now", "error expected"],
            rows=rows,
            code=learning_code(model),
            note=f"Thick lines: mean over {model.settings.runs} runs. Thin: one run. Dashed, with "
            "a band of one standard deviation over runs: what is expected exactly, without runs. "
            "Every change of a slider repeats the same experience with it.",
        )


class BiasView(_RunsOnDomain):
    """The bias of methods whose value is frozen and wrong.

    >>> BiasView(Shelf()).title
    'A wrong value'
    """

    title = "A wrong value"

    def controls(self, source: Mapping[str, Any]) -> list[Control]:
        """The error, where it is, and the runs."""
        problem = self.shelf.find(source["domain"])
        states = {name: k for k, name in enumerate(problem.states)}
        last = problem.mdp.n_states - 1
        return [
            Control("error", "slider", "error", ERRORS, 0.25, "of the value, / largest |value|"),
            Control("where", "choice", "error in", {"every state": None, **states}, None),
            Control("state", "choice", "state to look at", states, last),
            _step_sizes("alpha_bar", "ᾱ", 0.01, "step size of the variance"),
            *_discounts(problem),
            *_runs(5_000),
        ]

    def model(self, values: Mapping[str, Any], step: int) -> Bias:
        """The learners, for values of the controls."""
        settings = BiasSettings(
            error=values["error"],
            where=values["where"],
            alpha_bar=values["alpha_bar"],
            steps=values["steps"],
            runs=values["runs"],
            seed=int(values["seed"]),
        )
        problem = self.shelf.find(values["domain"], values["gamma"], values["lam"])
        return Bias(problem, settings, step)

    def show(self, values: Mapping[str, Any], step: int) -> Screen:
        """Charts, sentences, fixed points and code."""
        model, state = self.model(values, step), values["state"]
        rows = []
        for method in METHODS:
            point = model.point(method)
            now = _cell(model.variance(method)[state]) if step else ""
            goal, bias = (_cell(x[state]) for x in (point.variance, point.bias))
            rows.append([NETWORKS[method].label, now, goal, bias])
        rows.append(["exact", "", _cell(model.truth[state]), "0"])
        return Screen(
            charts=model.charts(state),
            sentences=model.sentences(state),
            heading=["", "learned so far", "theory: goes to", "bias"],
            rows=rows,
            code=bias_code(model),
            note="The value J does not learn here: it is the exact one plus the error. The exact "
            "variance is that of the λ-return that bootstraps from this J.",
        )


def _cell(x: float) -> str:
    """A number in a table."""
    return minus(number(float(x)))


def frame(view: View, values: Mapping[str, Any], seconds: float = TICK) -> int:
    """Steps of one frame, while a view plays, after the seconds since the one before.

    A machine that is slow shows fewer frames, and not a longer film.

    >>> view = BiasView(Shelf())
    >>> frame(view, {"steps": 5_000}), frame(view, {"steps": 5_000}, seconds=1.0)
    (125, 500)
    """
    steps = view.length(values) * TICK / FILM
    return max(1, math.ceil(steps * max(1, round(seconds / TICK))))


VIEWS: list[Any] = [LearningView, BiasView]
"""Classes of the views, in the order of their tabs."""
