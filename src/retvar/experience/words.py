"""Estimates in words: a table for people, and what should be known of the data behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray

__all__ = ["behind", "table"]


def table(data: xarray.Dataset, rows: int = 20) -> str:
    """States, or regions, with value and std and their intervals; the most visited first."""
    tabular = "state" in data.dims
    visits = data["visits"].values
    order = np.argsort(-visits, kind="stable")
    order = order[visits[order] > 0]
    shown = np.sort(order[:rows]) if tabular and order.size <= rows else order[:rows]
    level = f"{data.attrs['level']:.0%}"
    sure = "value_low" in data
    head = ["state" if tabular else ", ".join(map(str, data["axis"].values)), "visits"]
    head += ["value", level, "std", level] if sure else ["value", "std"]
    lines = [head]
    for i in shown:
        if tabular:
            name = str(data["label"].values[i])
        else:
            name = ", ".join(f"{x:.3g}" for x in data["centre"].values[i])
        line = [name, f"{visits[i]:,}"]
        for what in ("value", "std"):
            digits = _digits(data, what, int(i))
            line.append(f"{float(data[what][i]):.{digits}f}")
            if sure:
                low, high = (float(data[f"{what}_{end}"][i]) for end in ("low", "high"))
                line.append(f"{low:.{digits}f} … {high:.{digits}f}")
        lines.append(line)
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    text = [
        "  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines
    ]
    left = order.size - shown.size
    if left > 0:
        kind = "states" if tabular else "regions"
        text.append(f"… and {left:,} more {kind}, less visited")
    return "\n".join(text)


def _digits(data: xarray.Dataset, what: str, i: int) -> int:
    """Decimals worth telling: two digits of the uncertainty, or three of the number."""
    size = abs(float(data[what][i]))
    if f"{what}_low" in data:
        size = 10 * (float(data[f"{what}_high"][i]) - float(data[f"{what}_low"][i])) / 2
    if not np.isfinite(size) or size == 0:
        return 3
    return int(np.clip(2 - np.floor(np.log10(size)), 0, 9))


def behind(data: xarray.Dataset, rejected: Any = ()) -> str:
    """What the estimates rest on."""
    a = data.attrs
    policy = f", {a['policy']} policy" if a["policy"] else ""
    gamma = a["gamma"] if isinstance(a["gamma"], str) else f"{a['gamma']:g}"
    lam = a["lam"] if isinstance(a["lam"], str) else f"{a['lam']:g}"
    lines = [
        f"{a['source']}{policy}: γ = {gamma}, λ = {lam}, {a['method']} method",
        f"{a['transitions']:,} transitions, {a['episodes']:,} episodes",
    ]
    if a["largest_ratio"] != 1.0 or a["effective_sample_size"] < a["transitions"]:
        lines.append(
            f"importance ratios: the largest is {a['largest_ratio']:.3g}; as good as "
            f"{a['effective_sample_size']:,.0f} transitions of the target policy"
        )
    if rejected:
        reasons = ", ".join(f"{count:,} × {reason}" for reason, count in sorted(rejected.items()))
        lines.append(f"left out: {reasons}")
    if a["outside"]:
        lines.append(f"{a['outside']:,} observations lay outside the bounds: moved to the edge")
    return "\n".join(lines)
