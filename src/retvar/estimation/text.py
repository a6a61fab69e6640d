"""Estimates as text: a table, and a description of the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray
from numpy.typing import NDArray

from retvar.experience.stream import Counts
from retvar.support.format import align, count, natural_key, number, reasons, visible
from retvar.td.networks import SHAPES

__all__ = ["TableRows", "describe_data", "reasons", "table", "table_rows"]

LONGEST = 40  # characters of a label


def table(data: xarray.Dataset, rows: int = 20) -> str:
    """Table of states or regions with value, std and their intervals.

    All states by label, numbers by size; where they are too many, the most visited ones first.
    Where they are known, the skewness and the excess kurtosis follow.

    >>> ends = {f"{what}_{end}": ("state", [1.0]) for what in ("value", "std")
    ...         for end in ("low", "high")}
    >>> one = {"visits": ("state", [7]), "value": ("state", [1.0]), "std": ("state", [1.0])}
    >>> coords = {"label": ("state", ["dock"])}
    >>> print(table(xarray.Dataset(one | ends, coords, {"level": 0.9})))
    state  visits  value          90%    std          90%
     dock       7   1.00  1.00 … 1.00   1.00  1.00 … 1.00
    """
    found = table_rows(data, rows)
    text = [line.rstrip() for line in align(found.lines)]
    if found.hidden > 0:
        kind = found.unit + ("s" if found.hidden > 1 else "")
        text.append(f"… and {found.hidden:,} more {kind}, less visited")
    return "\n".join(text)


class TableRows(NamedTuple):
    """Lines of a table, a heading first; how many rows are left out, and what a row is."""

    lines: list[list[str]]
    hidden: int
    unit: str


def table_rows(data: xarray.Dataset, rows: int) -> TableRows:
    """The cells of :func:`table`."""
    tabular = "state" in data.dims
    visits = data["visits"].values
    order = np.flatnonzero(visits > 0)
    if tabular:  # by label
        labels = data["label"].values
        order = np.array(sorted(order, key=lambda i: natural_key(labels[i])), dtype=np.intp)
    if not tabular or order.size > rows:  # the most visited ones, of equal visits by label
        order = order[np.argsort(-visits[order], kind="stable")]
    shown = order[:rows]
    level = f"{100 * data.attrs['level']:.4g}%"
    intervals, unit = "value_low" in data, _unit(data)
    places = {"state": "state", "pair": "state, action"}
    head = [places.get(unit) or ", ".join(map(str, data["axis"].values)), "visits"]
    head += ["value", level, "std", level] if intervals else ["value", "std"]
    shapes = [name for name in SHAPES.values() if name in data]
    names = _labels(data) if tabular else _centres(data["centre"].values)
    lines = [head + shapes]
    for i in shown:
        line = [names[i], f"{visits[i]:,}"]
        for what in ("value", "std", *shapes):
            ends = [f"{what}_low", f"{what}_high"] if intervals else []
            texts = _equal_decimals(*(float(data[name][i]) for name in (what, *ends)))
            line.append(texts[0])
            if intervals and what not in shapes:
                line.append(f"{texts[1]} … {texts[2]}")
        lines.append(line)
    notes = next((data[name].values for name in ("note", "moment_note") if name in data), None)
    if notes is not None:
        lines = [[*line, note] for line, note in zip(lines, ["", *notes[shown]], strict=True)]
    return TableRows(lines, order.size - shown.size, unit)


def _unit(data: xarray.Dataset) -> str:
    """What the rows of a table are: pairs of state and action, states, or regions."""
    if "state" not in data.dims:
        return "region"
    return "pair" if data.attrs.get("actions") else "state"


def _labels(data: xarray.Dataset) -> list[str]:
    """Labels on one line, shortened to fit a table."""
    texts = (" ".join(str(label).split()) or "''" for label in data["label"].values)
    return [text if len(text) <= LONGEST else text[: LONGEST - 1] + "…" for text in texts]


def _centres(centres: NDArray[np.float64]) -> list[str]:
    return [", ".join(number(x, 3) for x in row) for row in centres]


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


def describe_data(data: xarray.Dataset, counts: Counts) -> str:
    """Lines about source, settings, transitions and problems of the data."""
    a = data.attrs
    policy = f", {visible(a['policy'])} policy" if a["policy"] else ""
    gamma, lam = (x if isinstance(x, str) else f"{x:g}" for x in (a["gamma"], a["lam"]))
    episodes = count(a["episodes"], "segment" if counts.unmarked_ends else "episode")
    transitions = count(a["transitions"], "transition")
    understood = a.get("understood")
    lines = [
        f"{visible(a['source'])}{policy}: γ = {gamma}, λ = {lam}, {_method(a)}",
        f"{visible(understood)}; {transitions}" if understood else f"{transitions}, {episodes}",
    ]
    if a.get("reward"):
        lines.append(f"values are expected sums of costs ({a['reward']}), not of rewards")
    if "note" in data and a.get("by") == "least_squares":
        lines.append(_reliability(data))
    if a.get("remarks"):
        lines.append(str(a["remarks"]))
    if a.get("return_intervals") and not a["return_intervals"].endswith("not observed"):
        lines.append(f"return intervals: {a['return_intervals']}")
    if a["largest_ratio"] != 1.0 or a["effective_sample_size"] < a["transitions"]:
        lines.append(
            f"importance ratios: the largest is {number(a['largest_ratio'])}; the effective "
            f"sample size is {count(round(a['effective_sample_size']), 'transition')}"
        )
    if counts.rejected:
        lines.append(f"left out: {reasons(counts.rejected)}")
    if counts.missing_rewards and counts.where_missing not in a.get("warnings", ""):
        lines.append(f"rewards are missing: {counts.where_missing}")
    if counts.unmarked_ends:
        lines.append(f"truncated without a flag: {reasons(counts.unmarked_ends)}")
    lines += [f"WARNING: {each}" for each in a.get("warnings", "").splitlines()]
    if a["out_of_bounds"]:
        lines.append(
            f"{count(a['out_of_bounds'], 'observation')} outside the bounds: clipped to them"
        )
    if "self_check" in a:
        lines.append(f"the data's own returns: {a['self_check']}")
    return "\n".join(lines)


def _method(attributes: Mapping[str, Any]) -> str:
    if attributes.get("by") == "least_squares":
        return "least squares"
    kind = "deep critic, " if attributes.get("by") == "deep" else ""
    return f"{kind}{attributes['method']} method"


def _reliability(data: xarray.Dataset) -> str:
    """How many states or regions have intervals, and why the others have none."""
    kind = _unit(data)
    visited = data["visits"].values > 0
    both = np.isfinite(data["value_low"].values) & np.isfinite(data["std_low"].values)
    notes = Counter(str(note) for note in data["note"].values[visited] if note)
    parts = [count(int(visited.sum()), kind), f"{int(both.sum()):,} with both intervals"]
    return ", ".join([*parts, *(f"{times:,}: {note}" for note, times in notes.most_common())])
