"""What the figures of estimates from experience share: their columns, titles and words."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import numpy as np
import xarray

from retvar.plots.style import Array, Flags, shown
from retvar.support.errors import InputError
from retvar.support.format import listed, short_number

TINY = 1e-150  # smaller numbers are drawn as 0, so that others can be divided by them
TITLES = {"value": "expected return", "std": "spread (standard deviation)"}
NEGATIVE_VARIANCE = "the variance was estimated below zero"  # then the std is unknown
NEED_ESTIMATES = "must have the value and the std of each state or region"


def require_columns(data: Any, *names: str, remedy: str) -> None:
    """Raise an InputError unless this is a dataset with these variables or attributes."""
    if not hasattr(data, "data_vars"):
        raise InputError("data", type(data).__name__, "must be a dataset of estimates")
    missing = [name for name in names if name not in data and name not in data.attrs]
    if missing:
        raise InputError("data", f"no {listed(missing)}", remedy)


def unit_name(data: xarray.Dataset) -> str:
    """``"state"`` or ``"region"``, by the dimension of the value."""
    dims = data["value"].dims if "value" in data else ()
    if dims not in (("state",), ("region",)):
        raise InputError("data", f"value over {dims}", "must have a value for each state or region")
    return str(dims[0])


def column(data: xarray.Dataset, name: str) -> Array:
    """A variable as numbers, NaN if there is none; NaN replaces infinities, 0 tiny numbers."""
    if name not in data:
        return np.full(data["value"].shape, np.nan)
    found = np.asarray(data[name].values, dtype=float)
    found = np.where(np.isfinite(found), found, np.nan)
    return np.where(np.abs(found) < TINY, 0.0, found)


def visited(data: xarray.Dataset) -> Flags:
    """Whether each state or region was visited; without visits, whether it has a value."""
    known = np.isfinite(column(data, "value"))
    return np.asarray(column(data, "visits") > 0) if "visits" in data and known.any() else known


def why_unknown(data: xarray.Dataset, cells: Any) -> str:
    """Why the std of these states or regions is unknown, in the words of their notes."""
    notes: Any = data["note"].values[cells] if "note" in data else []
    found = sorted({str(note).partition(":")[0] for note in notes if note})
    return " or ".join(found) or NEGATIVE_VARIANCE


def figure_title(data: xarray.Dataset, question: str) -> str:
    """The source and settings of the estimates, followed by the question of the figure.

    >>> import xarray
    >>> about = {"source": "gymnasium:CliffWalking-v1", "policy": "random", "gamma": 0.9, "lam": 1}
    >>> figure_title(xarray.Dataset(attrs=about), "what return to expect")
    'CliffWalking-v1, random policy, γ = 0.9: what return to expect'
    """
    source, policy = str(data.attrs.get("source", "")), str(data.attrs.get("policy", ""))
    kind, colon, name = source.partition(":")
    name = name if colon and len(kind) > 1 else PurePath(source.replace("\\", "/")).name
    words = f"policy {shown(policy, 48)}" if policy else ""
    parts = [shown(name, 48), f"{policy} policy" if policy.isalpha() else words]
    gamma, lam = data.attrs.get("gamma", ""), data.attrs.get("lam", 1.0)
    parts += [f"γ {_setting_text(gamma)}"] if gamma != "" else []
    parts += [f"λ {_setting_text(lam)}"] if np.any(lam != 1) else []
    about = ", ".join(filter(None, parts))
    return f"{about}: {question}" if about else question[:1].upper() + question[1:]


def _setting_text(setting: Any) -> str:
    """A number in full (0.9999 must not read as 1), or a text such as "in the data"."""
    try:
        return f"= {float(setting):g}"
    except (TypeError, ValueError):
        return shown(str(setting), 48)


def interval_name(data: xarray.Dataset) -> str:
    """The name of the intervals of a dataset."""
    percent = short_number(round(100 * float(data.attrs.get("level", np.nan)), 6))
    return f"{percent}% interval" if "level" in data.attrs else "interval"
