"""Estimates as an xarray.Dataset."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from retvar.estimation.least_squares import NEVER_LEFT, LeastSquares
from retvar.estimation.least_squares_estimator import LeastSquaresEstimator
from retvar.estimation.monitor import Monitor, Regions, Visits, predict_rows
from retvar.estimation.observations import ObservationEstimator
from retvar.estimation.ratio_check import check_counts, ratio_warning
from retvar.estimation.states import StateEstimator
from retvar.exact.moments import notes_on
from retvar.experience.action_pairs import split_label
from retvar.experience.stream import Experience
from retvar.online import OnlineEstimator
from retvar.support.errors import InputError
from retvar.support.format import listed, natural_key
from retvar.version import __version__

__all__ = ["brief_dataset", "dataset", "to_action_values", "warnings"]

Array = NDArray[np.float64]
QUANTITIES = ("value", "variance", "std")
REGIONS = 20  # most visited ones in the dataset
MOST_LACKING = 0.3  # share of a return that may be cut off where it is shown as observed
FEW = 0.05  # share of returns that may be left out without a word
CUT = "returns of which much is cut off are left out, and so some of the long ones"
ASSUMED = 0.05  # share of the values that may rest on states without a row
MAP_POINTS = 60  # of a map along each dimension


def dataset(experience: Experience, estimator: Any, monitor: Monitor) -> xarray.Dataset:
    """Value, variance and std with their intervals, visits, and observed returns."""
    found = brief_dataset(experience, estimator, monitor)
    if isinstance(monitor.visits, Regions) and found.sizes["axis"] == 2 and not experience.pairs:
        _add_maps(found, estimator, monitor.visits)
    _add_observed(found, estimator, monitor)
    if isinstance(estimator, LeastSquaresEstimator):
        found.attrs["return_intervals"] = estimator.return_interval_note(monitor.level)
    return found


def brief_dataset(experience: Experience, estimator: Any, monitor: Monitor) -> xarray.Dataset:
    """The part of :func:`dataset` that a table shows, without maps and observed returns."""
    make = _by_region if isinstance(monitor.visits, Regions) else _by_state
    found = make(experience, estimator, monitor)
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
    cells = experience.grid[0] * experience.grid[1] if experience.grid else 0  # never visited, too
    n = max(experience.states or 0, counts.size, cells)
    visits = np.pad(counts, (0, n - counts.size))
    states = np.flatnonzero(visits)
    data: dict[str, Any] = {"visits": visits}
    for name, column in _estimates(estimator, states, monitor.level).items():
        data[name] = np.full(n, np.nan)
        data[name][states] = column
    if isinstance(estimator, StateEstimator):
        data |= _reliability(estimator.solution, n)
        if (ratios := estimator.ratios) is not None:
            data["mean_ratio"] = _padded(ratios.mean, n)
    data |= _doubts(data)
    known: list[Any] = experience.labels or experience.state_names or []
    label = [label_text(x) for x in [*known, *range(len(known), n)][:n]]
    if experience.pairs and experience.labels is not None:
        own = [split_label(each) for each in experience.labels[:n]]
        for k, name in enumerate(("of_state", "action")):
            data[name] = np.array([label_text(pair[k]) for pair in own], dtype=str)
    coords = {"state": np.arange(n), "label": ("state", np.array(label, dtype=str))}
    found = xarray.Dataset({name: ("state", x) for name, x in data.items()}, coords)
    if experience.label_names:
        found.attrs["label_names"] = "; ".join(experience.label_names)
    if experience.grid is not None:
        found.attrs["grid_rows"], found.attrs["grid_columns"] = experience.grid
        if experience.cells:
            found.attrs["cells"] = experience.cells
    return found


def _padded(column: NDArray[Any], n: int) -> NDArray[Any]:
    """A column of n states: the table may have room for more than are known, or for fewer."""
    nothing = "" if column.dtype.kind == "U" else np.nan
    return np.pad(column[:n], (0, max(0, n - column.size)), constant_values=nothing)


def label_text(label: Any) -> str:
    """A label as text."""
    return ", ".join(map(str, label)) if isinstance(label, tuple) else str(label)


def _reliability(found: LeastSquares, n: int) -> dict[str, Any]:
    """What the estimates rest on, and notes on those that are missing or weak."""
    return {
        "effective_visits": _padded(found.effective_visits, n),
        "value_events": _padded(found.value_events, n),
        "std_events": _padded(found.variance_events, n),
        "note": _padded(found.note, n),
    }


def _doubts(data: dict[str, Any]) -> dict[str, Any]:
    """Notes on a skewness or kurtosis that is missing or cannot be."""
    if "skewness" not in data:
        return {}
    note = notes_on(data["variance"], data["skewness"], data.get("kurtosis"))
    return {"moment_note": np.where(np.isnan(data["variance"]), "", note)}


def _by_region(experience: Experience, estimator: Any, monitor: Monitor) -> xarray.Dataset:
    visits, centres = monitor.visits.most_visited(REGIONS)
    axes = experience.names or [f"x{i}" for i in range(centres.shape[1])]
    data = {"visits": visits, **_estimates(estimator, centres, monitor.level)}
    if isinstance(estimator, ObservationEstimator):
        spread = estimator.spread(centres)
        data |= {"note": spread.note, "distance": spread.distance}
    data |= _doubts(data)
    columns: dict[str, Any] = {name: ("region", x) for name, x in data.items()}
    columns["centre"] = ("region", "axis"), centres
    return xarray.Dataset(columns, {"region": np.arange(visits.size), "axis": list(axes)})


def _add_maps(found: xarray.Dataset, estimator: Any, regions: Regions) -> None:
    """Add maps of value and std over two dimensions."""
    middles, shape = (np.arange(MAP_POINTS) + 0.5) / MAP_POINTS, (MAP_POINTS, MAP_POINTS)
    x, y = (regions.low[i] + middles * (regions.high[i] - regions.low[i]) for i in range(2))
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    found.coords["x"], found.coords["y"] = x, y
    for what in ("value", "std"):
        found[f"{what}_map"] = (("y", "x"), estimator.predict(points, what).reshape(shape))
    visited = regions.map().ravel()[regions.cells(points)].reshape(shape)
    found["visited_map"] = (("y", "x"), visited)
    found.attrs["x_name"], found.attrs["y_name"] = (str(x) for x in found["axis"].values)


def _add_observed(found: xarray.Dataset, estimator: Any, monitor: Monitor) -> None:
    """Add observed returns and the predictions for the states in which they began."""
    returns = monitor.returns
    if returns is None or not returns.count:
        off_policy = "returns of the target policy are not observed in off-policy data"
        none = "no return was observed to its end"
        found.attrs["observed_note"] = off_policy if monitor.off_policy else none
        return
    value = partial(predict_rows, estimator, "value")
    observed, share = returns.completed(value), returns.missing_share
    early = returns.early(most=MOST_LACKING)
    shown = early & (share <= MOST_LACKING) & np.isfinite(observed)  # NaN: far from all data
    if not shown.any():
        found.attrs["observed_note"] = "of all observed returns a large part is cut off"
        return
    if np.mean(share[early] > MOST_LACKING) > FEW:
        found.attrs["observed_note"] = CUT
    start = returns.start[shown]
    found["observed"] = ("sample", observed[shown])
    found["predicted"] = ("sample", value(start))
    found["predicted_std"] = ("sample", predict_rows(estimator, "std", start))
    tabular = isinstance(monitor.visits, Visits)
    state = monitor.visits.cells(start) if tabular else np.full(len(start), -1, dtype=np.int64)
    found["sample_state"] = ("sample", state)


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
        "remarks": "; ".join([*monitor.remarks, *_remarks(experience, estimator)]),
        **({"understood": experience.understood} if experience.is_log else {}),
        **({"reward": experience.cost} if experience.is_log and experience.cost else {}),
        "warnings": "\n".join(warnings(experience, estimator)),
        "retvar": __version__,
        **({"actions": 1} if experience.pairs else {}),
    }


def _remarks(experience: Experience, estimator: Any) -> list[str]:
    """What readers of the intervals should know, and what the numbers of actions mean."""
    found = []
    if (own := getattr(estimator, "remarks", None)) is not None:
        found = list(own)
    elif isinstance(estimator, ObservationEstimator):
        found = ["spread from neighbours in other episodes; intervals are approximate"]
    elif isinstance(estimator, StateEstimator):
        if estimator.solution.probes:
            found = ["standard errors rest on random probes, for the most visited states only"]
    elif estimator.features[0].states is None:
        found = ["with features the spread tends to be too large; intervals are approximate"]
    if experience.pairs and experience.width is not None and experience.actions:
        names = (f"{k} = {label}" for k, label in enumerate(experience.actions))
        found.append(f"actions: {listed(names, most=12)}")
    return found


def warnings(experience: Experience, estimator: Any) -> list[str]:
    """Signs that a log was not read as it was meant, or that its importance ratios are wrong."""
    by_state = estimator.ratios if isinstance(estimator, StateEstimator) else None
    ratios = check_counts(experience.counts) if by_state is None else by_state
    wrong = "" if ratios is None else ratio_warning(ratios, experience.labels, by_state is None)
    holes = _never_left(experience, estimator) if isinstance(estimator, StateEstimator) else ""
    found = [*experience.warnings, wrong, holes, *getattr(estimator, "warnings", ())]
    return [each for each in found if each]


def _never_left(experience: Experience, estimator: StateEstimator) -> str:
    """A warning where much of the values rests on states from which no row can be used."""
    fit = estimator.solution
    if not fit.assumed > ASSUMED:
        return ""
    holes = np.flatnonzero(fit.note == NEVER_LEFT)
    labels = experience.labels or range(fit.note.size)
    names = listed((repr(labels[s]) for s in holes), most=3)
    return (
        f"{fit.assumed:.0%} of the values is that of states that were entered but have no row that "
        f"can be used ({names}), and is taken to be the mean of the others: log these states, or "
        "do not trust the values"
    )


def _to_attribute(given: Any) -> float | str:
    if given is None:
        return "in the data"
    return float(given) if np.ndim(given) == 0 else "one per state"


def to_action_values(experience: Experience, data: xarray.Dataset) -> xarray.Dataset:
    """Columns of pairs as arrays [state, action]."""
    if not experience.pairs:
        raise InputError("actions", False, "not estimated; ask estimate(…, actions=True) for them")
    if experience.width is not None:
        remedy = "has observations; ask at([…, action]) for one of them"
        raise InputError("action_values", experience.name, remedy)
    own = [split_label(label) for label in (experience.labels or [])[: data.sizes["state"]]]
    names, at = [], []
    for part in zip(*own, strict=True):  # states, then actions, in natural order
        distinct = sorted(dict.fromkeys(part), key=lambda label: natural_key(str(label)))
        place = {label: k for k, label in enumerate(distinct)}
        names.append(distinct)
        at.append(np.array([place[label] for label in part], dtype=np.intp))

    def coordinate(labels: list[Any]) -> list[Any]:
        whole = all(isinstance(label, int | np.integer) for label in labels)
        return labels if whole else [label_text(label) for label in labels]

    columns: dict[str, Any] = {}
    for name, column in data.data_vars.items():
        if column.dims != ("state",) or name in ("of_state", "action"):
            continue
        blank: Any = {"f": np.nan, "i": 0}.get(column.dtype.kind, "")
        whole = np.full([len(each) for each in names], blank, dtype=column.dtype)
        whole[tuple(at)] = column.values
        columns[str(name)] = (("state", "action"), whole)
    coords = dict(zip(("state", "action"), map(coordinate, names), strict=True))
    return xarray.Dataset(columns, coords, data.attrs)
