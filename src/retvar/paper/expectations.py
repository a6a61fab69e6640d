"""Exact expectations of simulated means, and the z-scores of simulations against them.

With constant steps and without traces, what a simulation tends to with infinitely many runs is
known (:func:`retvar.expected_curve`), and so is the standard deviation over runs.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr

from retvar.exact.fixed_points import fixed_point
from retvar.paper.declarations import Simulation
from retvar.plots.lines import time_of
from retvar.simulation.expected_curves import expected_curve, resting_error
from retvar.td.initial_values import Noisy, PerRun

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]
LIMIT = 6.0  # the largest |z| allowed; see docs/reproduce.md for the rate of false alarms
EARLIEST = 0.05  # share of a run before which too few updates are summed for z to be normal
CHEBYSHEV = np.array([-0.794654472, -0.187592474, 0.187592474, 0.794654472])  # as uniform in ±1
MOMENTS = 8  # of a learning curve that are compared


def exactly(simulation: Simulation, labels: tuple[str, ...]) -> dict[str, Any]:
    """Arguments for exact answers; a random error of the value is four points of equal share."""
    learners: dict[str, Any] = {label: simulation.learners[label] for label in labels}
    for label, learner in learners.items():
        if isinstance(start := learner.value, Noisy):
            errors = itertools.product(start.uniform * CHEBYSHEV, repeat=simulation.mdp.n_states)
            value = PerRun(start.center + np.array(list(errors)))
            learners[label] = replace(learner, value=value)
    world = {name: getattr(simulation, name) for name in ("mdp", "target", "behaviour")}
    return {**world, "learners": learners}


@cache
def curves(
    simulation: Simulation, moments: tuple[int, ...], labels: tuple[str, ...] = ("direct", "vtd")
) -> xarray.Dataset:
    """The exact curves of some learners of a simulation; computed once."""
    unit = "steps" if simulation.steps is not None else "episodes"
    settings = exactly(simulation, labels) | {unit: moments[-1]}
    return expected_curve(**settings, record=list(moments))


@cache
def rest(simulation: Simulation, labels: tuple[str, ...]) -> xarray.Dataset:
    """Exact estimates at rest of some learners of a simulation; computed once."""
    return resting_error(**exactly(simulation, labels))


def of_data(simulation: Simulation, data: xarray.Dataset) -> xarray.Dataset:
    """The exact curves at the moments at which data were recorded."""
    return curves(simulation, tuple(data[time_of(data)].values.tolist()))


@cache
def mean_errors(simulation: Simulation, episodes: int, labels: tuple[str, ...]) -> Array:
    """Exact squared errors averaged over all episodes and summed over states, by learner.

    The errors of the first episodes are computed one by one, the others interpolated.
    """
    first = min(episodes, 100)
    at = np.unique(np.r_[1 : first + 1, np.linspace(first, episodes, 100).astype(np.int64)])
    mse = curves(simulation, tuple(at.tolist()), labels).variance_mse.sum("state")
    everywhere = np.arange(1, episodes + 1)
    return np.array([np.interp(everywhere, at, row).mean() for row in np.asarray(mse)])


@cache
def fixed(simulation: Simulation, label: str) -> Array:
    """The fixed point of a learner of a simulation; computed once."""
    learner: Any = simulation.learners[label]
    kappas = {"kappa": learner.kappa, "kappa_bar": learner.kappa_bar}
    found = fixed_point(learner.method, simulation.mdp, **kappas, **simulation.features)
    return np.asarray(found.variance)


def standard_score(deviation: Array, stderr: Array, runs: int) -> Array:
    """Deviations over standard errors that were measured from `runs` runs, as normal z-scores."""
    t = np.abs(deviation) / stderr
    found: Array = np.abs(ndtri(stdtr(max(runs - 1, 1), -t)))
    return found


def z_scores(simulation: Simulation, data: xarray.Dataset) -> Array:
    """z-scores of the means of both methods at a few times, with the exact standard deviation."""
    unit = time_of(data)
    last = data.sizes[unit]
    chosen = np.unique(np.geomspace(max(1, EARLIEST * last), last, MOMENTS).astype(int)) - 1
    exact = of_data(simulation, data).isel({unit: chosen})
    found = data.isel({unit: chosen}).sel(learner=exact.learner)
    stderr = exact.variance_std / math.sqrt(data.attrs["runs"])
    return np.asarray((found.variance - exact.variance) / stderr)


def z_of_window(simulation: Simulation, data: xarray.Dataset) -> Array:
    """z-scores of the means of both methods over the window at the end."""
    unit, runs = time_of(data), int(data.attrs["runs"])
    exact = of_data(simulation, data)
    within = exact[unit] > int(exact[unit][-1]) - int(data.attrs["window"])
    expected = exact.variance.isel({unit: np.flatnonzero(within)}).mean(unit)
    found = data.sel(learner=exact.learner)
    return standard_score(
        np.asarray(found.variance_window) - np.asarray(expected),
        np.asarray(found.variance_window_std) / math.sqrt(runs),
        runs,
    )
