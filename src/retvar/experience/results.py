"""Estimates as a labelled dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from retvar.experience.monitor import Seen, at_rows
from retvar.experience.regions import Regions, Visits
from retvar.experience.stream import Experience
from retvar.online import OnlineEstimator
from retvar.version import __version__

__all__ = ["dataset"]

Array = NDArray[np.float64]
QUESTIONS = ("value", "variance", "std")
REGIONS = 20  # told of
FINE = 60  # points of a map along each dimension


def dataset(experience: Experience, learner: OnlineEstimator, seen: Seen) -> xarray.Dataset:
    """Value, variance and std with their intervals, and what was observed."""
    if isinstance(seen.where, Regions):
        found = _by_region(experience, learner, seen, seen.where)
    else:
        found = _by_state(experience, learner, seen)
    _add_observed(found, learner, seen)
    found.attrs = _settings(experience, learner, seen) | found.attrs
    return found


def _answers(learner: OnlineEstimator, states: Any, level: float) -> dict[str, Array]:
    """Estimates and ends of intervals for a column of states."""
    out = {}
    for what in QUESTIONS:
        out[what] = learner.predict(states, what)
        if learner.bootstrap_samples:
            ends = learner.interval(what=what, states=states, level=level)
            out[f"{what}_low"], out[f"{what}_high"] = ends
    return out


def _by_state(experience: Experience, learner: OnlineEstimator, seen: Seen) -> xarray.Dataset:
    counts = seen.where.counts if isinstance(seen.where, Visits) else np.zeros(0, dtype=np.int64)
    n = max(experience.states or 0, counts.size)
    if experience.grid is not None and n < experience.grid[0] * experience.grid[1]:
        n = experience.grid[0] * experience.grid[1]  # cells that were never left
    visits = np.zeros(n, dtype=np.int64)
    visits[: counts.size] = counts
    states = np.flatnonzero(visits)
    data: dict[str, Any] = {"visits": ("state", visits)}
    for name, column in _answers(learner, states, seen.level).items():
        whole = np.full(n, np.nan)
        whole[states] = column
        data[name] = ("state", whole)
    labels = experience.labels
    label = [str(s if labels is None or s >= len(labels) else labels[s]) for s in range(n)]
    coords = {"state": np.arange(n), "label": ("state", np.array(label, dtype=str))}
    found = xarray.Dataset(data, coords)
    if experience.grid is not None:
        found.attrs["grid_rows"], found.attrs["grid_columns"] = experience.grid
        if experience.cells:
            found.attrs["cells"] = experience.cells
    return found


def _by_region(
    experience: Experience, learner: OnlineEstimator, seen: Seen, where: Regions
) -> xarray.Dataset:
    visits, centres = where.most_visited(REGIONS)
    axes = experience.names or [f"x{i}" for i in range(centres.shape[1])]
    data: dict[str, Any] = {"visits": ("region", visits), "centre": (("region", "axis"), centres)}
    for name, column in _answers(learner, centres, seen.level).items():
        data[name] = ("region", column)
    coords: dict[str, Any] = {"region": np.arange(visits.size), "axis": list(axes)}
    found = xarray.Dataset(data, coords)
    if centres.shape[1] == 2:
        _add_maps(found, learner, where, axes)
    return found


def _add_maps(
    found: xarray.Dataset, learner: OnlineEstimator, where: Regions, axes: list[str]
) -> None:
    """Value and std on a fine grid over two dimensions."""
    middles = (np.arange(FINE) + 0.5) / FINE
    x, y = (where.low[i] + middles * (where.high[i] - where.low[i]) for i in range(2))
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    found.coords["x"], found.coords["y"] = x, y
    for what in ("value", "std"):
        found[f"{what}_map"] = (("y", "x"), learner.predict(points, what).reshape(FINE, FINE))
    visited = where.map().ravel()[where.cells(points)].reshape(FINE, FINE)
    found["visited_map"] = (("y", "x"), visited)
    found.attrs["x_name"], found.attrs["y_name"] = axes[0], axes[1]


def _add_observed(found: xarray.Dataset, learner: OnlineEstimator, seen: Seen) -> None:
    """Returns that were really seen, beside what is now predicted where they began."""
    returns = seen.returns
    if returns is None or not returns.whole.any():
        return
    tabular = learner.features[0].states is not None
    whole = returns.whole
    begun = returns.begun[whole]
    found["observed"] = ("sample", returns.completed(at_rows(learner, "value"))[whole])
    found["predicted"] = ("sample", at_rows(learner, "value")(begun))
    found["predicted_std"] = ("sample", at_rows(learner, "std")(begun))
    state = begun[:, 0].astype(np.int64) if tabular else np.full(len(begun), -1, dtype=np.int64)
    found["sample_state"] = ("sample", state)


def _settings(experience: Experience, learner: OnlineEstimator, seen: Seen) -> dict[str, Any]:
    """What is worth knowing of how it came about; netCDF takes numbers and text."""
    d, counts = learner.description, experience.counts
    told = {name: getattr(d, name) for name in ("gamma", "lam", "kappa")}
    return {
        "source": experience.name,
        "policy": experience.policy,
        "method": d.method,
        "estimand": d.estimand,
        **{name: _told(given) for name, given in told.items()},
        "level": float(seen.level),
        "bootstrap_samples": int(learner.bootstrap_samples),
        "transitions": int(learner.steps),
        "episodes": int(counts.episodes),
        "rejected": int(sum(counts.rejected.values()) + learner.rejected),
        "cuts": int(sum(counts.cuts.values())),
        "outside": int(counts.outside),
        "effective_sample_size": float(counts.effective_sample_size),
        "largest_ratio": float(counts.largest_ratio),
        "retvar": __version__,
    }


def _told(given: Any) -> float | str:
    if given is None:
        return "in the data"
    return float(given) if np.ndim(given) == 0 else "one per state"
