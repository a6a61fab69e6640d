"""best_steps(): the constant step sizes with the least exact error after a number of steps."""

from __future__ import annotations

import importlib
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import generate_binary_structure, minimum_filter

from retvar.mdp import MDP
from retvar.mdp.weighted_edges import check_mdp
from retvar.simulation.curve_recursion import Problem, Triangle, problems_of
from retvar.simulation.expected_curves import MOST_STEPS, STEP_NAMES, Readout, refuse_unstable
from retvar.simulation.question import Question
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import joined, number
from retvar.support.html import Shown, page, settings
from retvar.td.learners import Learner, learner_class
from retvar.td.networks import PLACES, VARIANCE

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

log = logging.getLogger("retvar")
Array = NDArray[np.float64]
POINTS = {1: 17, 2: 9, 3: 6}  # points of the grid for each step, by the number of steps
SIDE = 0.3  # of the first simplex around given steps, in their logarithm
PLOTS = "retvar.plots"  # lies above this module, and is looked up when a figure is asked for
EDGE = 1.001  # a factor: closer to the end of the range counts as the end


@dataclass(frozen=True, eq=False)
class BestSteps(Shown):
    """The best constant steps of a method, and the errors of all steps on a grid.

    Attributes
    ----------
    learner
        The learner with the best steps.
    error
        Its mean squared error, summed over states with their weights.
    errors
        The errors on a grid, an array with a dimension for each step.
    at_edge
        Names of the steps that lie at an end of the range.

    Examples
    --------
    >>> import retvar as rv
    >>> found = rv.best_steps(rv.domains.chain(length=1), rv.VTD, steps=5, minimise="value")
    >>> found.errors.dims, round(found.steps["alpha"], 2)
    (('alpha',), 0.25)
    """

    learner: Learner
    error: float
    errors: xarray.DataArray
    at_edge: tuple[str, ...]

    @property
    def steps(self) -> dict[str, float]:
        """The best steps by name."""
        return {str(name): float(getattr(self.learner, str(name))) for name in self.errors.dims}

    def __repr__(self) -> str:
        steps = ", ".join(f"{name}={number(step)}" for name, step in self.steps.items())
        return f"BestSteps({type(self.learner).__name__}: {steps}; error {number(self.error)})"

    def _html(self) -> str:
        shown = {name: number(step) for name, step in self.steps.items()}
        shown |= {"mean squared error": number(self.error), "at the edge": joined(self.at_edge)}
        return page(f"Best steps of {type(self.learner).__name__}", settings(shown))

    def plot(self) -> Figure:
        """Draw the error over α and ᾱ by :func:`retvar.plots.step_contours`.

        >>> import retvar as rv
        >>> best = rv.best_steps(rv.domains.chain(length=1), "direct", steps=5, points=3)
        >>> best.plot().axes[0].get_xlabel()
        'step size of the value, α'
        """
        figure: Figure = importlib.import_module(PLOTS).step_contours(self)
        return figure


def best_steps(
    mdp: MDP,
    method: str | type[Learner] | Learner,
    *,
    steps: int,
    minimise: str = "variance",
    free: Sequence[str] | None = None,
    average: bool = False,
    weights: ArrayLike = 1.0,
    between: tuple[float, float] = (1e-3, 1.0),
    points: int | None = None,
    tolerance: float = 1e-3,
    target: object = None,
    behaviour: object = None,
    features: Any = None,
    value_features: Any = None,
    mean_features: Any = None,
    progress: Callable[[float], None] | None = None,
) -> BestSteps:
    """Find the constant step sizes with the least exact mean squared error after `steps` steps.

    No simulation and no noise: errors on a logarithmic grid of steps are computed as by
    :func:`~retvar.expected_curve`, and each of the grid's minima is refined.

    Parameters
    ----------
    mdp, target, behaviour, features, value_features, mean_features
        As in :func:`~retvar.expected_curve`.
    method
        ``"direct"``, ``"vtd"``, ``"centred"`` or its class, or a learner, whose other settings are
        kept and whose steps are refined too. Free are α, ᾱ and, for centred learners, α_mean, as
        far as the error depends on them.
    steps
        Number of steps after which the error is taken.
    minimise
        The estimate whose error is minimised: ``"variance"``, ``"value"``, or another.
    free
        Names of the steps to find, such as ``["alpha_bar"]``; the others stay as they are in the
        learner. Default: all that the error depends on.
    average
        Whether to minimise the mean error over all steps instead of that after the last.
    weights
        Weight of each state's mean squared error in the sum.
    between
        The least and the largest step size to try.
    points
        Points of the grid for each step; default: 17, 9 or 6 for one, two or three steps.
    tolerance
        Relative accuracy of the steps; that of the error is about its square.
    progress
        A function that receives the share of the grid that is done.

    Raises
    ------
    InputError
        If the best steps are unstable in mean square.

    Examples
    --------
    >>> import retvar as rv
    >>> rv.best_steps(rv.domains.chain(length=1), "direct", steps=100, points=5, average=True)
    BestSteps(Direct: alpha=0.0380, alpha_bar=0.0450; error 0.0955)
    """
    import xarray

    check_mdp(mdp)
    steps = arguments.integer("steps", steps, 1, MOST_STEPS)
    shares = arguments.numbers("weights", weights, mdp.n_states, mdp.state_name)
    arguments.refuse("weights", shares, shares < 0, "must not be negative", mdp.state_name)
    low, high = arguments.numbers("between", between, 2).tolist()
    if not 0 < low < high or np.ndim(between) != 1:
        raise InputError("between", between, "must be two step sizes above 0, the least first")
    given = method if isinstance(method, Learner) else None
    learner = given or learner_class("method", method)(alpha=0.1)
    tables = features, value_features, mean_features
    (problem,) = problems_of(Question(mdp, learner, (target, behaviour), tables))
    places = _free(learner, minimise, free)
    count = POINTS[len(places)] if points is None else arguments.integer("points", points, 3, 1_000)
    axis = np.geomspace(low, high, count)
    exactness = arguments.between("tolerance", tolerance, 1.0, "must lie between 0 and 1")
    search = _Search(problem, places, minimise, steps, arguments.flag("average", average), shares)
    errors = search.grid(axis, progress)
    own = None if given is None else problem.steps[places]
    found, error = search.refined(axis, errors, own, exactness)
    best = problem.with_steps(found)
    recursion, _ = best.recursion()
    radius = Triangle(recursion, recursion.operator).radius
    if radius > 1 + 1e-9:  # 1: weights of states that are left for ever
        refuse_unstable(best, radius)
    names = [STEP_NAMES[place] for place in places]
    chosen = {name: float(found[place]) for name, place in zip(names, places, strict=True)}
    edges = [name for name, x in chosen.items() if x < EDGE * low or x * EDGE > high]
    if edges:
        log.warning("the best %s lies at the end of the range", " and ".join(edges))
    grid = xarray.DataArray(errors, dict.fromkeys(names, axis), names, "error")
    return BestSteps(learner.replace(**chosen), error, grid, tuple(edges))


@dataclass(eq=False)
class _Search:
    """Errors of one learner with different steps."""

    problem: Problem
    free: list[int]  # places of the nodes whose steps are free
    minimise: str
    steps: int
    average: bool
    weights: Array

    def __post_init__(self) -> None:
        self.recursion, self.initial = self.problem.recursion()
        readout = Readout(self.problem, self.recursion, np.arange(self.recursion.states))
        self.readout = readout.rows[self.minimise][1], readout.truths[self.minimise][0]

    def with_free(self, given: Sequence[float]) -> Array:
        """Steps of all nodes, from those that are free."""
        found = self.problem.steps
        found[self.free] = given
        return found

    @np.errstate(over="ignore", invalid="ignore")
    def error(self, given: Sequence[float]) -> float:
        """The error with some steps; infinite if it is too large for a number."""
        operator = self.recursion.with_steps(self.with_free(given).tolist()).operator
        x = self.recursion.begin(self.initial)
        total = np.zeros_like(x)
        for _ in range(self.steps):
            x = operator @ x
            if self.average:
                total += x
        x = total / self.steps if self.average else x
        squares, true = self.readout
        mse = np.where(np.isfinite(true), squares @ self.recursion.moments(x), np.nan)
        if np.isfinite(x).all() and np.isnan(mse).any():
            remedy = f"the true {self.minimise} is infinite or unknown in some state"
            raise InputError("minimise", self.minimise, remedy)
        error = float(self.weights @ mse)
        return error if np.isfinite(error) else np.inf

    def grid(self, axis: Array, progress: Callable[[float], None] | None) -> Array:
        """Errors of all combinations."""
        errors = np.empty((axis.size,) * len(self.free))
        for done, index in enumerate(itertools.product(range(axis.size), repeat=len(self.free))):
            errors[index] = self.error(axis[list(index)].tolist())
            if progress is not None:
                progress((done + 1) / errors.size)
        return errors

    def refined(
        self, axis: Array, errors: Array, own: Array | None, tolerance: float
    ) -> tuple[Array, float]:
        """The best steps near one of the minima of the grid or some others, and their error."""
        ends = axis[[0, -1]]
        if not np.isfinite(errors).any():
            remedy = "all errors are too large; take smaller steps"
            raise InputError("between", f"{ends[0]:g} to {ends[1]:g}", remedy)
        bounds = [tuple(np.log(ends))] * len(self.free)
        starts = [(_simplex(np.log(axis), index), errors[index]) for index in _minima(errors)]
        if own is not None and np.all(own > 0):
            corner = np.clip(np.log(own), *np.log(ends))
            sides = np.where(corner > np.log(ends).mean(), -SIDE, SIDE) * np.eye(corner.size)
            scale = self.error(np.exp(corner).tolist())
            starts.append((np.vstack([corner, corner + sides]), scale))
        found = []
        for simplex, scale in starts:
            near = {"xatol": tolerance, "fatol": 0.1 * tolerance**2 * scale}
            found.append(
                scipy.optimize.minimize(
                    lambda x: self.error(np.exp(x).tolist()), simplex[0], method="Nelder-Mead",
                    bounds=bounds, options={**near, "initial_simplex": simplex},
                )
            )  # fmt: skip
        best = min(found, key=lambda each: float(each.fun))
        return self.with_free(np.clip(np.exp(best.x), *ends).tolist()), float(best.fun)


def _simplex(axis: Array, index: tuple[int, ...]) -> Array:
    """A point of the grid and points halfway to a neighbour along each axis."""
    corners = [axis[list(index)]]
    for k, i in enumerate(index):
        corner = corners[0].copy()
        corner[k] = (axis[i] + axis[i - 1 if i else 1]) / 2
        corners.append(corner)
    return np.array(corners)


def _minima(errors: Array) -> list[tuple[int, ...]]:
    """Points of a grid that are not above their neighbours along any axis, at most three."""
    cross = generate_binary_structure(errors.ndim, 1)
    least = errors == minimum_filter(errors, footprint=cross, mode="constant", cval=np.inf)
    found = map(tuple, np.argwhere(least & np.isfinite(errors)).tolist())
    return sorted(found, key=lambda index: float(errors[index]))[:3]


def _free(learner: Learner, minimise: str, wanted: Sequence[str] | None) -> list[int]:
    """Places of the nodes whose steps the error depends on, or of those that are wanted."""
    network = learner.network
    known = {node.name: node for node in network.nodes}
    known[PLACES[VARIANCE]] = network.variance.node
    node = known[arguments.choice("minimise", minimise, known)]
    places = [each.place for each in network.rests_on(node)]
    free = {STEP_NAMES[place]: place for place in places if place or learner.learn_value}
    if not free:
        raise InputError("minimise", minimise, "depends on no step, since the value is fixed")
    chosen = list(free) if wanted is None else [arguments.choice("free", x, free) for x in wanted]
    if not chosen:
        raise InputError("free", wanted, f"must name some of {', '.join(free)}")
    return sorted({free[x] for x in chosen}, key=lambda place: (place != 0, place != VARIANCE))
