"""Estimates as an xarray.Dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from retvar.estimation.feature_estimator import FeatureEstimator
from retvar.estimation.least_squares import LeastSquares
from retvar.estimation.least_squares_estimator import LeastSquaresEstimator
from retvar.estimation.monitor import Monitor, row_predictor
from retvar.estimation.ratio_check import check_counts, ratio_warning
from retvar.estimation.tabular import TabularEstimator
from retvar.estimation.visits import Regions, Visits
from retvar.experience.action_pairs import split_label
from retvar.experience.stream import Experience
from retvar.format import listed
from retvar.online import OnlineEstimator
from retvar.online.higher_moments import notes_on
from retvar.version import __version__

__all__ = ["brief_dataset", "dataset", "warnings"]

Array = NDArray[np.float64]
QUANTITIES = ("value", "variance", "std")
REGIONS = 20  # most visited ones in the dataset
CUT = "episodes are cut off at any time, as by missing rewards: long returns are left out"
MAP_POINTS = 60  # of a map along each dimension


def dataset(experience: Experience, estimator: Any, monitor: Monitor) -> xarray.Dataset:
    """Value, variance and std with their intervals, visits, and observed returns."""
    if isinstance(monitor.visits, Regions):
        found = _by_region(experience, estimator, monitor, monitor.visits)
        if found.sizes["axis"] == 2 and not experience.pairs:
            _add_maps(found, estimator, monitor.visits, [str(x) for x in found["axis"].values])
    else:
        found = _by_state(experience, estimator, monitor)
    _add_observed(found, estimator, monitor)
    found.attrs = _settings(experience, estimator, monitor) | found.attrs
    if isinstance(estimator, LeastSquaresEstimator):
        found.attrs["return_intervals"] = estimator.return_interval_note(monitor.level)
    return found


def brief_dataset(experience: Experience, estimator: Any, monitor: Monitor) -> xarray.Dataset:
    """The part of :func:`dataset` that a table shows, without maps and observed returns."""
    if isinstance(monitor.visits, Regions):
        found = _by_region(experience, estimator, monitor, monitor.visits)
    else:
        found = _by_state(experience, estimator, monitor)
    found.attrs = _settings(experience, estimator, monitor) | found.attrs
    return found


def _estimates(estimator: Any, states: Any, level: float) -> dict[str, Array]:
    """Estimates and ends of their intervals for a column of states."""
    found = {}
    for what in (*QUANTITIES, *higher_moments(estimator)):
        found[what] = estimator.predict(states, what)
        if estimator.has_intervals:
            ends = estimator.interval(what=what, states=states, level=level)
            found[f"{what}_low"], found[f"{what}_high"] = ends
    return found


def higher_moments(estimator: Any) -> tuple[str, ...]:
    """Names of what an estimator knows beyond the variance."""
    return estimator.description.network.higher if isinstance(estimator, OnlineEstimator) else ()


def _by_state(experience: Experience, estimator: Any, monitor: Monitor) -> xarray.Dataset:
    counts = (monitor.visits if isinstance(monitor.visits, Visits) else Visits()).counts
    n = max(experience.states or 0, counts.size)
    if experience.grid is not None and n < experience.grid[0] * experience.grid[1]:
        n = experience.grid[0] * experience.grid[1]  # cells that no transition started in
    visits = np.zeros(n, dtype=np.int64)
    visits[: counts.size] = counts
    states = np.flatnonzero(visits)
    data: dict[str, Any] = {"visits": ("state", visits)}
    for name, column in _estimates(estimator, states, monitor.level).items():
        whole = np.full(n, np.nan)
        whole[states] = column
        data[name] = ("state", whole)
    if isinstance(estimator, TabularEstimator):
        _add_reliability(data, estimator.solution, n)
        if (ratios := estimator.ratios) is not None:
            mean = np.full(n, np.nan)
            mean[: ratios.mean.size] = ratios.mean[:n]
            data["mean_ratio"] = ("state", mean)
    _add_doubts(data, "state")
    labels = experience.labels
    known: list[Any] = (experience.state_names if labels is None else labels) or []
    names = [*known, *range(len(known), n)][:n]
    label = [label_text(x) for x in names]
    coords = {"state": np.arange(n), "label": ("state", np.array(label, dtype=str))}
    if experience.pairs and labels is not None:
        own = [split_label(each) for each in labels[:n]]
        for k, name in enumerate(("of_state", "action")):
            data[name] = ("state", np.array([label_text(pair[k]) for pair in own], dtype=str))
    found = xarray.Dataset(data, coords)
    if experience.label_names:
        found.attrs["label_names"] = "; ".join(experience.label_names)
    if experience.grid is not None:
        found.attrs["grid_rows"], found.attrs["grid_columns"] = experience.grid
        if experience.cells:
            found.attrs["cells"] = experience.cells
    return found


def label_text(label: Any) -> str:
    """A label as text.

    >>> label_text(("a", 1)), label_text(7)
    ('a, 1', '7')
    """
    return ", ".join(map(str, label)) if isinstance(label, tuple) else str(label)


def _add_reliability(data: dict[str, Any], found: LeastSquares, n: int) -> None:
    """Add what the estimates rest on, and notes on those that are missing or weak."""
    found = found[np.arange(min(n, found.value.size))]  # the table may have room for more
    for name in ("effective_visits", "value_events", "variance_events"):
        column = np.full(n, np.nan)
        column[: found.value.size] = getattr(found, name)
        data["std_events" if name == "variance_events" else name] = ("state", column)
    note = np.full(n, "", dtype=found.note.dtype)
    note[: found.value.size] = found.note
    data["note"] = ("state", note)


def _add_doubts(data: dict[str, Any], dim: str) -> None:
    """Add notes on a skewness or kurtosis that is missing or cannot be."""
    if "skewness" in data:
        kurtosis = data["kurtosis"][1] if "kurtosis" in data else None
        note = notes_on(data["variance"][1], data["skewness"][1], kurtosis)
        data["moment_note"] = (dim, np.where(np.isnan(data["variance"][1]), "", note))


def _by_region(
    experience: Experience, estimator: Any, monitor: Monitor, regions: Regions
) -> xarray.Dataset:
    visits, centres = regions.most_visited(REGIONS)
    axes = experience.names or [f"x{i}" for i in range(centres.shape[1])]
    data: dict[str, Any] = {"visits": ("region", visits), "centre": (("region", "axis"), centres)}
    for name, column in _estimates(estimator, centres, monitor.level).items():
        data[name] = ("region", column)
    if isinstance(estimator, FeatureEstimator):
        spread = estimator.spread(centres)
        data["note"], data["distance"] = ("region", spread.note), ("region", spread.distance)
    _add_doubts(data, "region")
    coords: dict[str, Any] = {"region": np.arange(visits.size), "axis": list(axes)}
    return xarray.Dataset(data, coords)


def _add_maps(found: xarray.Dataset, estimator: Any, regions: Regions, axes: list[str]) -> None:
    """Add maps of value and std over two dimensions."""
    middles, shape = (np.arange(MAP_POINTS) + 0.5) / MAP_POINTS, (MAP_POINTS, MAP_POINTS)
    x, y = (regions.low[i] + middles * (regions.high[i] - regions.low[i]) for i in range(2))
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    found.coords["x"], found.coords["y"] = x, y
    for what in ("value", "std"):
        found[f"{what}_map"] = (("y", "x"), estimator.predict(points, what).reshape(shape))
    visited = regions.map().ravel()[regions.cells(points)].reshape(shape)
    found["visited_map"] = (("y", "x"), visited)
    found.attrs["x_name"], found.attrs["y_name"] = axes[0], axes[1]


def _add_observed(found: xarray.Dataset, estimator: Any, monitor: Monitor) -> None:
    """Add observed returns and the predictions for the states in which they began."""
    returns = monitor.returns
    if returns is None or not returns.nearly_complete.any():
        found.attrs["observed_note"] = _why_unobserved(monitor)
        return
    if returns.cut_at_any_age:
        found.attrs["observed_note"] = CUT
    tabular = estimator.features[0].states is not None
    value = row_predictor(estimator, "value")
    observed = returns.completed(value)
    complete = returns.nearly_complete & np.isfinite(observed)  # completed far from all data: NaN
    start = returns.start[complete]
    found["observed"] = ("sample", observed[complete])
    found["predicted"] = ("sample", value(start))
    found["predicted_std"] = ("sample", row_predictor(estimator, "std")(start))
    state = start[:, 0].astype(np.int64) if tabular else np.full(len(start), -1, dtype=np.int64)
    found["sample_state"] = ("sample", state)


def _why_unobserved(monitor: Monitor) -> str:
    """Why there are no observed returns to compare with."""
    if monitor.off_policy:
        return "returns of the target policy are not observed in off-policy data"
    if monitor.returns is None or not monitor.returns.count:
        return "no return was observed to its end"
    return "of all observed returns a large part is cut off"


def _settings(experience: Experience, estimator: Any, monitor: Monitor) -> dict[str, Any]:
    """Settings and counts as attributes; netCDF takes numbers and text."""
    d, counts = estimator.description, experience.counts
    settings = {name: getattr(d, name) for name in ("gamma", "lam", "kappa")}
    return {
        "source": experience.name,
        "policy": experience.policy,
        "by": estimator.by,
        "method": d.method,
        "order": d.order,
        "estimand": d.estimand,
        **{name: _to_attribute(given) for name, given in settings.items()},
        "level": float(monitor.level),
        "bootstrap_samples": int(estimator.bootstrap_samples),
        "transitions": int(estimator.steps),
        "episodes": int(counts.episodes),
        "rejected": int(sum(counts.rejected.values()) + estimator.rejected),
        "unmarked_ends": int(sum(counts.unmarked_ends.values())),
        "out_of_bounds": int(counts.out_of_bounds),
        "effective_sample_size": float(counts.effective_sample_size),
        "largest_ratio": float(counts.largest_ratio),
        "remarks": "; ".join([*monitor.remarks, *_remarks(estimator), *_actions(experience)]),
        **_log_attributes(experience),
        "warnings": "\n".join(warnings(experience, estimator)),
        "retvar": __version__,
        **({"actions": 1} if experience.pairs else {}),
    }


def _remarks(estimator: Any) -> list[str]:
    """What readers of the intervals should know."""
    if isinstance(estimator, TabularEstimator) and estimator.solution.probes:
        return ["standard errors rest on random probes, for the most visited states only"]
    if isinstance(estimator, FeatureEstimator):
        return ["spread from neighbours in other episodes; intervals are approximate"]
    if (own := getattr(estimator, "remarks", None)) is not None:
        return list(own)
    if estimator.features[0].states is None:
        return ["with features the spread tends to be too large; intervals are approximate"]
    return []


def _actions(experience: Experience) -> list[str]:
    """What the numbers of actions mean, where they are part of observations."""
    if not experience.pairs or experience.width is None or not experience.actions:
        return []
    names = (f"{k} = {label}" for k, label in enumerate(experience.actions))
    return [f"actions: {listed(names, most=12)}"]


def warnings(experience: Experience, estimator: Any) -> list[str]:
    """Signs that a log was not read as it was meant, or that its importance ratios are wrong."""
    ratios = estimator.ratios if isinstance(estimator, TabularEstimator) else None
    whole = ratios is None
    ratios = check_counts(experience.counts) if ratios is None else ratios
    wrong = "" if ratios is None else ratio_warning(ratios, experience.labels, whole)
    own = getattr(estimator, "warnings", ())
    return [*experience.warnings, *filter(None, [wrong]), *own]


def _log_attributes(experience: Experience) -> dict[str, str]:
    """What a log was taken for."""
    found = {"understood": experience.understood}
    if experience.cost:
        found["reward"] = f"negated {experience.cost}"
    return found if experience.is_log else {}


def _to_attribute(given: Any) -> float | str:
    if given is None:
        return "in the data"
    return float(given) if np.ndim(given) == 0 else "one per state"
