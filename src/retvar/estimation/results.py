"""Estimates as an xarray.Dataset and as text: a table, and a description of the data."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.least_squares import NEVER_LEFT
from retvar.estimation.returns import Visits, predict_rows
from retvar.estimation.states import QUANTITIES, LeastSquaresEstimator, StateEstimator
from retvar.estimation.sums import check_counts, ratio_warning
from retvar.exact.moments import notes_on
from retvar.experience.action_pairs import split_label
from retvar.experience.stream import Counts
from retvar.online import OnlineEstimator
from retvar.support.errors import InputError
from retvar.support.format import align, count, listed, natural_key, number, reasons, visible
from retvar.support.html import MOST, page, table
from retvar.td.networks import SHAPES
from retvar.version import __version__

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]
RELIABILITY = {  # columns of a dataset: what estimates of states rest on
    "effective_visits": "effective_visits", "value_events": "value_events",
    "std_events": "variance_events", "note": "note",
}  # fmt: skip
BLANK = {"f": np.nan, "i": 0}  # of the places without an entry, by the kind of numbers
REGIONS = 20  # most visited ones in the dataset
MOST_LACKING = 0.3  # share of a return that may be cut off where it is shown as observed
MOST_SHOWN = 4_000  # returns, about
FEW = 0.05  # share of returns that may be left out without a word
CUT = "returns of which much is cut off are left out, and so some of the long ones"
ASSUMED = 0.05  # share of the values that may rest on states without a row
MAP_POINTS = 60  # of a map along each dimension
LONGEST = 40  # characters of a label


def dataset(found: Any) -> xarray.Dataset:
    """Value, variance and std of an estimate with their intervals, visits, and observed returns."""
    estimator, monitor = found.estimator, found.monitor
    data = (_by_region if monitor.visits.regions else _by_state)(found)
    data.attrs = _settings(found) | data.attrs
    if data.sizes.get("axis") == 2 and not found.experience.pairs:
        _add_maps(data, estimator, monitor.visits)
    _add_observed(data, estimator, monitor)
    if isinstance(estimator, LeastSquaresEstimator):
        data.attrs["return_intervals"] = found.return_intervals.missing(monitor.level)
    return data


def estimates(estimator: Any, states: Any, level: float) -> dict[str, Any]:
    """Estimates and ends of their intervals for a column of states; notes on higher moments."""
    online, data = isinstance(estimator, OnlineEstimator), dict[str, Any]()
    for what in (*QUANTITIES, *(estimator.description.network.higher if online else ())):
        data[what] = estimator.predict(states, what)
        if estimator.has_intervals:
            ends = estimator.interval(what=what, states=states, level=level)
            data[f"{what}_low"], data[f"{what}_high"] = ends
    if "skewness" in data:
        note = notes_on(data["variance"], data["skewness"], data.get("kurtosis"))
        data["moment_note"] = np.where(np.isnan(data["variance"]), "", note)
    return data


def _by_state(found: Any) -> xarray.Dataset:
    e, estimator, counts = found.experience, found.estimator, found.monitor.visits.counts
    cells = e.grid[0] * e.grid[1] if e.grid else 0  # never visited, too
    entered = estimator.features[0].states if isinstance(estimator, StateEstimator) else 0
    n, states = max(e.states or 0, counts.size, cells, entered), np.flatnonzero(counts)
    data: dict[str, Any] = {"visits": _placed(counts, n)}
    for name, column in estimates(estimator, states, found.monitor.level).items():
        data[name] = _placed(column, n, states)
    if isinstance(estimator, StateEstimator):
        for name, own in RELIABILITY.items():
            data[name] = _placed(getattr(estimator.solution, own), n)
        if (ratios := estimator.ratios) is not None:
            data["mean_ratio"] = _placed(ratios.mean, n)
    known: list[Any] = e.labels or e.state_names or []
    if e.pairs:
        for k, name in enumerate(("of_state", "action")):
            data[name] = np.array([label_text(split_label(x)[k]) for x in known], dtype=str)
    label = np.array([label_text(x) for x in [*known, *range(len(known), n)][:n]], dtype=str)
    coords = {"state": np.arange(n), "label": ("state", label)}
    import xarray  # slow to import

    made = xarray.Dataset({name: ("state", x) for name, x in data.items()}, coords)
    if e.grid is not None:
        made.attrs["grid_rows"], made.attrs["grid_columns"] = e.grid
        made.attrs |= {"cells": e.cells} if e.cells else {}
    return made


def _placed(column: NDArray[Any], size: int, at: Any = None) -> NDArray[Any]:
    """A column of so many places, with these numbers first or at some places."""
    whole = np.full(size, BLANK.get(column.dtype.kind, ""), dtype=column.dtype)
    whole[np.arange(column.size) if at is None else at] = column
    return whole


def label_text(label: Any) -> str:
    """A label as text."""
    return ", ".join(map(str, label)) if isinstance(label, tuple) else str(label)


def _by_region(found: Any) -> xarray.Dataset:
    estimator, monitor = found.estimator, found.monitor
    visits, centres = monitor.visits.most_visited(REGIONS)
    axes = found.experience.names or [f"x{i}" for i in range(centres.shape[1])]
    data = {"visits": visits, **estimates(estimator, centres, monitor.level)}
    if hasattr(estimator, "spread"):
        spread = estimator.spread(centres)
        data |= {"note": spread.note, "distance": spread.distance}
    import xarray

    columns: dict[str, Any] = {name: ("region", x) for name, x in data.items()}
    columns["centre"] = ("region", "axis"), centres
    return xarray.Dataset(columns, {"region": np.arange(visits.size), "axis": list(axes)})


def _add_maps(data: xarray.Dataset, estimator: Any, regions: Visits) -> None:
    """Add maps of value and std over two dimensions."""
    middles, shape = (np.arange(MAP_POINTS) + 0.5) / MAP_POINTS, (MAP_POINTS, MAP_POINTS)
    x, y = (regions.low[i] + middles * (regions.high[i] - regions.low[i]) for i in range(2))
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    data.coords["x"], data.coords["y"] = x, y
    for what in ("value", "std"):
        data[f"{what}_map"] = (("y", "x"), estimator.predict(points, what).reshape(shape))
    data["visited_map"] = (("y", "x"), regions.at(points).reshape(shape))
    data.attrs["x_name"], data.attrs["y_name"] = (str(x) for x in data["axis"].values)


def _add_observed(data: xarray.Dataset, estimator: Any, monitor: Any) -> None:
    """Add observed returns and the predictions for the states in which they began."""
    returns = monitor.returns
    if returns is None or not returns.count:
        off_policy = "returns of the target policy are not observed in off-policy data"
        none = "no return was observed to its end"
        data.attrs["observed_note"] = off_policy if monitor.off_policy else none
        return
    value = partial(predict_rows, estimator, "value")
    observed, share = returns.completed(value), returns.missing_share
    shown = (share <= MOST_LACKING) & np.isfinite(observed)  # NaN: far from all data
    shown = np.flatnonzero(shown)[:: 1 + int(shown.sum() / MOST_SHOWN)]
    if not shown.size:
        data.attrs["observed_note"] = "of all observed returns a large part is cut off"
        return
    if np.mean(share > MOST_LACKING) > FEW:
        data.attrs["observed_note"] = CUT
    start, tabular = returns.start[shown], not monitor.visits.regions
    data["observed"], data["predicted"] = ("sample", observed[shown]), ("sample", value(start))
    data["predicted_std"] = "sample", predict_rows(estimator, "std", start)
    place = monitor.visits.cells(start) if tabular else np.full(len(start), -1)
    data["sample_state"] = "sample", place


def _settings(found: Any) -> dict[str, Any]:
    """Settings and counts as attributes; netCDF takes numbers and text."""
    e, estimator, monitor = found.experience, found.estimator, found.monitor
    d, counts = estimator.description, e.counts
    attributes = {
        "source": e.name, "policy": e.policy, "by": estimator.by, "method": d.method,
        "order": d.order, "estimand": d.estimand,
    }  # fmt: skip
    for name in ("gamma", "lam", "kappa"):
        given = getattr(d, name)
        several = "in the data" if given is None else "one per state"
        attributes[name] = several if given is None or np.ndim(given) else float(given)
    remarks = [*monitor.remarks, *getattr(estimator, "remarks", ())]
    if isinstance(estimator, OnlineEstimator) and e.width is not None:
        remarks.append("with features the spread tends to be too large; intervals are approximate")
    if e.pairs and e.width is not None and e.actions:
        names = (f"{k} = {label}" for k, label in enumerate(e.actions))
        remarks.append(f"actions: {listed(names, most=12)}")
    attributes |= {
        "level": float(monitor.level),
        "bootstrap_samples": int(estimator.bootstrap_samples),
        "transitions": int(estimator.steps),
        "episodes": int(counts.episodes),
        "rejected": int(sum(counts.rejected.values()) + estimator.rejected),
        "unmarked_ends": int(sum(counts.unmarked_ends.values())),
        "out_of_bounds": int(counts.out_of_bounds),
        "effective_sample_size": float(counts.effective_sample_size),
        "largest_ratio": float(counts.largest_ratio),
        "remarks": "; ".join(remarks),
    }
    if e.is_log:
        attributes["understood"] = e.understood
    if e.is_log and e.cost:
        attributes["reward"] = e.cost
    if e.pairs:
        attributes["actions"] = 1
    if estimator.has_intervals and hasattr(estimator, "intervals"):
        attributes["intervals"] = estimator.intervals  # which are no confidence intervals
    warned, checked = "\n".join(found.warnings), str(found.self_check)
    return attributes | {"retvar": __version__, "self_check": checked, "warnings": warned}


def warnings(found: Any) -> list[str]:
    """Signs that a log was not read as it was meant, or that its importance ratios are wrong."""
    experience, estimator = found.experience, found.estimator
    by_state = estimator.ratios if isinstance(estimator, StateEstimator) else None
    ratios = check_counts(experience.counts) if by_state is None else by_state
    wrong = "" if ratios is None else ratio_warning(ratios, experience.labels, by_state is None)
    holes = _never_left(experience, estimator) if isinstance(estimator, StateEstimator) else ""
    told = [*experience.warnings, wrong, holes, _strangers(experience)]
    told += getattr(estimator, "warnings", ())
    return [each for each in told if each]


def _strangers(experience: Any) -> str:
    """A warning where a log has none of the states of the estimate that it is added to."""
    rows = experience.moves().chunks() if experience.known else ()
    if not experience.known or min(chunk["state"].min() for chunk in rows) < experience.known:
        return ""
    new = listed(map(repr, experience.labels[experience.known :]), most=3)
    return f"none of the states was known before; new ones are {new}: are they written otherwise?"


def _never_left(experience: Any, estimator: StateEstimator) -> str:
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


def to_action_values(experience: Any, data: xarray.Dataset) -> xarray.Dataset:
    """Columns of pairs as arrays [state, action]."""
    if not experience.pairs:
        raise InputError("actions", False, "not estimated; ask estimate(…, actions=True) for them")
    if experience.width is not None:
        remedy = "has observations; ask at([…, action]) for one of them"
        raise InputError("action_values", experience.name, remedy)
    own = [split_label(label) for label in (experience.labels or [])[: data.sizes["state"]]]
    coords, at = dict[str, list[Any]](), list[Any]()
    for dim, part in zip(("state", "action"), zip(*own, strict=True), strict=True):
        distinct = sorted(dict.fromkeys(part), key=lambda label: natural_key(str(label)))
        place = {label: k for k, label in enumerate(distinct)}
        at.append(np.array([place[label] for label in part], dtype=np.intp))
        whole = all(isinstance(label, int | np.integer) for label in distinct)
        coords[dim] = distinct if whole else [label_text(label) for label in distinct]
    shape, columns = tuple(map(len, coords.values())), {}
    at = np.ravel_multi_index(tuple(at), shape)
    for name, column in data.data_vars.items():
        if column.dims == ("state",) and name not in ("of_state", "action"):
            matrix = _placed(column.values, math.prod(shape), at).reshape(shape)
            columns[str(name)] = (("state", "action"), matrix)
    import xarray

    return xarray.Dataset(columns, coords, data.attrs)


# ------------------------------------------------------------------ text


class TableRows(NamedTuple):
    """Lines of a table, a heading first; how many rows are left out, and what a row is."""

    lines: list[list[str]]
    hidden: int
    unit: str

    def __str__(self) -> str:
        more = f"… and {count(self.hidden, f'more {self.unit}')}, less visited"
        text = [*map(str.rstrip, align(self.lines)), more]
        return "\n".join(text if self.hidden > 0 else text[:-1])


def table_rows(data: xarray.Dataset, rows: int = 20) -> TableRows:
    """Table of states or regions with value, std and their intervals.

    All states by label, numbers by size; where they are too many, the most visited ones first.
    Where they are known, the skewness and the excess kurtosis follow.

    >>> import xarray
    >>> ends = {f"{what}_{end}": ("state", [1.0]) for what in ("value", "std")
    ...         for end in ("low", "high")}
    >>> one = {"visits": ("state", [7]), "value": ("state", [1.0]), "std": ("state", [1.0])}
    >>> coords = {"label": ("state", ["dock"])}
    >>> print(table_rows(xarray.Dataset(one | ends, coords, {"level": 0.9})))
    state  visits  value          90%    std          90%
     dock       7   1.00  1.00 … 1.00   1.00  1.00 … 1.00
    """
    visits, unit = data["visits"].values, _unit(data)
    order = np.flatnonzero(visits > 0)
    if unit == "region":
        head = ", ".join(map(str, data["axis"].values))
        names = [", ".join(number(x, 3) for x in row) for row in data["centre"].values]
    else:  # labels on one line, shortened to fit a table
        head, labels = {"pair": "state, action"}.get(unit, unit), data["label"].values
        names = [" ".join(str(label).split()) or "''" for label in labels]
        names = [x if len(x) <= LONGEST else x[: LONGEST - 1] + "…" for x in names]
        order = np.array(sorted(order, key=lambda i: natural_key(labels[i])), dtype=np.intp)
    if unit == "region" or order.size > rows:  # the most visited first, of equal visits by label
        order = order[np.argsort(-visits[order], kind="stable")]
    shown = order[:rows]
    percent = f"{100 * data.attrs['level']:.4g}%"
    level = [data.attrs.get("intervals", percent)] if "value_low" in data else []
    shapes = [name for name in SHAPES.values() if name in data]
    lines = [[head, "visits", "value", *level, "std", *level, *shapes]]
    for i in shown:
        line = [names[i], f"{visits[i]:,}"]
        for what in ("value", "std", *shapes):
            ends = [f"{what}_low", f"{what}_high"] if level else []
            texts = _equal_decimals(*(float(data[name][i]) for name in (what, *ends)))
            line.append(texts[0])
            if level and what not in shapes:
                line.append(f"{texts[1]} … {texts[2]}")
        lines.append(line)
    notes = next((data[name].values for name in ("note", "moment_note") if name in data), None)
    if notes is not None:
        lines = [[*line, note] for line, note in zip(lines, ["", *notes[shown]], strict=True)]
    return TableRows(lines, order.size - shown.size, unit)


def to_html(data: xarray.Dataset, counts: Counts) -> str:
    """The same as HTML."""
    title, *told = describe_data(data, counts).splitlines()
    found = table_rows(data, MOST)
    heading, *rows = found.lines
    text = [k for k, name in enumerate(heading) if k == 0 or not name]  # of notes: no name
    shown = table(heading, rows, len(rows) + found.hidden, unit=found.unit, text=text)
    return page(title, shown, notes=told)


def _unit(data: xarray.Dataset) -> str:
    """What the rows of a table are: pairs of state and action, states, or regions."""
    if "state" not in data.dims:
        return "region"
    return "pair" if data.attrs.get("actions") else "state"


def _equal_decimals(estimate: float, *ends: float) -> list[str]:
    """An estimate and the ends of its interval, to two digits of its uncertainty.

    >>> _equal_decimals(0.123456, 0.11, 0.13), _equal_decimals(5.0), _equal_decimals(0.0, 0.0, 0.0)
    (['0.123', '0.110', '0.130'], ['5.00'], ['0', '0', '0'])
    >>> _equal_decimals(float("nan"), 0.0, 0.02)
    ['–', '0.000', '0.020']
    """
    numbers = [estimate, *ends]
    largest = max((abs(x) for x in numbers if np.isfinite(x)), default=0.0)
    if largest == 0:
        return [number(x) for x in numbers]
    width = (ends[1] - ends[0]) / 2 if len(ends) == 2 else 0.0
    magnitude = int(np.floor(np.log10(largest)))
    last = magnitude - 2  # power of ten of the last digit
    if np.isfinite(width) and width > 0:
        last = int(np.clip(np.floor(np.log10(width)) - 1, magnitude - 8, magnitude - 1))
    return [number(x, magnitude=magnitude, last=last) for x in numbers]


def tell(data: xarray.Dataset, counts: Counts) -> list[list[str]]:
    """Lines about the data: source and size; settings and remarks; what was left out."""
    a = data.attrs
    policy = f", {visible(a['policy'])} policy" if a["policy"] else ""
    gamma, lam = (x if isinstance(x, str) else f"{x:g}" for x in (a["gamma"], a["lam"]))
    by, method = a["by"], f"{a['method']} method"
    kinds = {"least_squares": "least squares", "deep": f"deep critic, {method}"}
    read, transitions = visible(a.get("understood", "")), count(a["transitions"], "transition")
    episodes = count(a["episodes"], "segment" if counts.unmarked_ends else "episode")
    limits, size = a.get("return_intervals", ""), a["effective_sample_size"]
    weighted = a["largest_ratio"] != 1.0 or size < a["transitions"]
    ratios = f"{number(a['largest_ratio'])}; the effective sample size is "
    ratios += count(round(size), "transition")
    kept = counts.where_missing if counts.missing_rewards else ""
    sums = "costs" if a.get("reward") else "rewards"
    outside = count(a["out_of_bounds"], "observation") if a["out_of_bounds"] else ""
    heading = [
        f"{visible(a['source'])}{policy}: γ = {gamma}, λ = {lam}, {kinds.get(by, method)}",
        f"{read}; {transitions}" if read else f"{transitions}, {episodes}",
    ]
    remarks: list[tuple[str, Any]] = [
        ("values are expected sums of costs ({}), not of rewards", a.get("reward")),
        ("{}", _reliability(data) if "note" in data and by == "least_squares" else ""),
        ("{}", a["remarks"]),
        ("return intervals: {}", "" if limits.endswith("not observed") else limits),
    ]
    left_out = [
        ("importance ratios: the largest is {}", ratios if weighted else ""),
        ("left out: {}", reasons(counts.rejected)),
        (f"{sums} are missing: {{}}", "" if kept in a["warnings"] else kept),
        ("truncated without a flag: {}", reasons(counts.unmarked_ends)),
        ("{} outside the bounds: clipped to them", outside),
    ]
    lines = ([text.format(x) for text, x in part if x] for part in (remarks, left_out))
    return [heading, *lines]


def describe_data(data: xarray.Dataset, counts: Counts) -> str:
    """The same as text, with warnings and the self-check."""
    warned = (f"WARNING: {each}" for each in data.attrs["warnings"].splitlines())
    checked = data.attrs.get("self_check")
    last = [f"the data's own returns: {checked}"] if checked else []
    return "\n".join([*itertools.chain(*tell(data, counts)), *warned, *last])


def _reliability(data: xarray.Dataset) -> str:
    """How many states or regions have intervals, and why the others have none."""
    visited = data["visits"].values > 0
    both = np.isfinite(data["value_low"].values) & np.isfinite(data["std_low"].values)
    notes = Counter(str(note) for note in data["note"].values[visited] if note)
    parts = [count(int(visited.sum()), _unit(data)), f"{int(both.sum()):,} with both intervals"]
    return ", ".join([*parts, *(f"{times:,}: {note}" for note, times in notes.most_common())])
