"""Estimates in words: a table for people, and what should be known of the data behind it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray
from numpy.typing import NDArray

from retvar.experience.stream import Counts
from retvar.format import align, count, number

__all__ = ["behind", "reasons", "table"]

LONGEST = 40  # letters of a label


def table(data: xarray.Dataset, rows: int = 20) -> str:
    """States, or regions, with value and std and their intervals; the most visited first.

    >>> ends = {f"{what}_{end}": ("state", [1.0]) for what in ("value", "std")
    ...         for end in ("low", "high")}
    >>> one = {"visits": ("state", [7]), "value": ("state", [1.0]), "std": ("state", [1.0])}
    >>> coords = {"label": ("state", ["dock"])}
    >>> print(table(xarray.Dataset(one | ends, coords, {"level": 0.9})))
    state  visits  value          90%    std          90%
     dock       7   1.00  1.00 … 1.00   1.00  1.00 … 1.00
    """
    tabular = "state" in data.dims
    visits = data["visits"].values
    order = np.argsort(-visits, kind="stable")
    order = order[visits[order] > 0]
    shown = np.sort(order[:rows]) if tabular and order.size <= rows else order[:rows]
    level = f"{100 * data.attrs['level']:.4g}%"
    sure = "value_low" in data
    head = ["state" if tabular else ", ".join(map(str, data["axis"].values)), "visits"]
    head += ["value", level, "std", level] if sure else ["value", "std"]
    names = _labels(data) if tabular else _centres(data["centre"].values)
    lines = [head]
    for i in shown:
        line = [names[i], f"{visits[i]:,}"]
        for what in ("value", "std"):
            ends = [f"{what}_low", f"{what}_high"] if sure else []
            told = _together(*(float(data[name][i]) for name in (what, *ends)))
            line += [told[0], f"{told[1]} … {told[2]}"] if sure else told
        lines.append(line)
    text = align(lines)
    left = order.size - shown.size
    if left > 0:
        kind = ("state" if tabular else "region") + ("s" if left > 1 else "")
        text.append(f"… and {left:,} more {kind}, less visited")
    return "\n".join(text)


def _labels(data: xarray.Dataset) -> list[str]:
    """Labels on one line, and not too long for a table."""
    words = (" ".join(str(label).split()) or "''" for label in data["label"].values)
    return [word if len(word) <= LONGEST else word[: LONGEST - 1] + "…" for word in words]


def _centres(centres: NDArray[np.float64]) -> list[str]:
    return [", ".join(number(x, 3) for x in row) for row in centres]


def _together(estimate: float, *ends: float) -> list[str]:
    """An estimate and its ends with as many decimals as its uncertainty is worth: two digits.

    >>> _together(0.123456, 0.11, 0.13), _together(5.0), _together(0.0, 0.0, 0.0)
    (['0.123', '0.110', '0.130'], ['5.00'], ['0', '0', '0'])
    >>> _together(float("nan"), 0.0, 0.02)
    ['–', '0.000', '0.020']
    """
    numbers = [estimate, *ends]
    largest = max((abs(x) for x in numbers if np.isfinite(x)), default=0.0)
    if largest == 0:
        return [number(x) for x in numbers]
    reach = (ends[1] - ends[0]) / 2 if len(ends) == 2 else 0.0
    magnitude = int(np.floor(np.log10(largest)))
    last = magnitude - 2  # the power of ten of the last digit told
    if np.isfinite(reach) and reach > 0:
        last = int(np.clip(np.floor(np.log10(reach)) - 1, magnitude - 8, magnitude - 1))
    return [number(x, magnitude=magnitude, last=last) for x in numbers]


def behind(data: xarray.Dataset, counts: Counts) -> str:
    """What the estimates rest on."""
    a = data.attrs
    policy = f", {a['policy']} policy" if a["policy"] else ""
    gamma, lam = (given if isinstance(given := a[name], str) else f"{given:g}"
                  for name in ("gamma", "lam"))  # fmt: skip
    lines = [
        f"{a['source']}{policy}: γ = {gamma}, λ = {lam}, {a['method']} method",
        f"{count(a['transitions'], 'transition')}, "
        f"{count(a['episodes'], 'piece' if counts.cuts else 'episode')}",
    ]
    if a["largest_ratio"] != 1.0 or a["effective_sample_size"] < a["transitions"]:
        lines.append(
            f"importance ratios: the largest is {number(a['largest_ratio'])}; as good as "
            f"{count(round(a['effective_sample_size']), 'transition')} of the target policy"
        )
    if counts.rejected:
        lines.append(f"left out: {reasons(counts.rejected)}")
    if counts.cuts:
        lines.append(f"cut, with no end told: {reasons(counts.cuts)}")
    if a["outside"]:
        lines.append(
            f"{count(a['outside'], 'observation')} lay outside the bounds: moved to the edge"
        )
    return "\n".join(lines)


def reasons(counted: Mapping[str, int]) -> str:
    """How often what happened.

    >>> reasons({"reward is missing": 2, "does not chain": 1})
    '1 × does not chain, 2 × reward is missing'
    """
    return ", ".join(f"{times:,} × {reason}" for reason, times in sorted(counted.items()))
