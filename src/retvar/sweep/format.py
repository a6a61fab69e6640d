"""A comparison in words: a table that says which method is better where, and how sure that is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray

__all__ = ["field_name", "possible", "table_of"]

TITLES = {
    "best": "each at its best settings",
    "shared": "both at the same settings, the best for the two",
    "typical": "both at the same settings, the median over all",
}
FIELDS = {"variance_rmse": "variance RMSE", "value_rmse": "value RMSE"}


def field_name(what: str) -> str:
    """What an error is called.

    >>> field_name("variance_rmse"), field_name("mine")
    ('variance RMSE', 'mine')
    """
    return FIELDS.get(what, what)


def table_of(data: xarray.Dataset, domains: bool) -> str:
    """The whole table of a comparison; with `domains`, also domain by domain."""
    lines = [*_heading(data.attrs, data.sizes["domain"] - 1), *_undecided(data), ""]
    rows: list[list[str]] = []
    for question in data.question.values:
        rows += [[f"{question}"]] if question else []
        for how in data.settings.values:
            rows.append([f"  {TITLES[str(how)]}"])
            for pair in data.pair.values:
                one = data.sel(question=question, settings=how, pair=pair)
                rows += _pair(one, domains)
    return "\n".join(lines + _aligned(rows))


def _heading(told: dict[str, Any], domains: int) -> list[str]:
    what = field_name(told["what"])
    choosing = told["runs"] - told["judging"]
    level = told["level"]
    over = "domains like these" if told["over"] == "domains" else "runs on these domains"
    alone = [f"{told['unmatched']}: each at its best only"] if told["unmatched"] else []
    return [
        f"{what[0].upper()}{what[1:]} at {told['at']}: {domains} domain{'s' * (domains != 1)}, "
        f"{told['runs']} runs ({choosing} choose settings, {told['judging']} judge them)",
        f"a / b: ratio of errors, below 1 where a is better; {level:.0%} intervals over {over};",
        f"who is better: where p < {1 - level:.3g} after Holm's correction and 1 is not in the "
        "interval",
        *alone,
    ]


def _undecided(data: xarray.Dataset) -> list[str]:
    """Where nobody can win, however much better: the test has too few signs to go by."""
    told, least, domains = data.attrs, data.least_p.values, data.sizes["domain"] - 1
    found = []
    if not possible(data.isel(domain=0)):
        more = math.floor(math.log2(least[0] / (1 - told["level"]))) + 1
        runs = 2 * (told["judging"] + more)
        found.append(f"too few runs to decide on single domains; {runs} would do")
    if domains > 1 and not possible(data.isel(domain=-1)):
        found.append(f"too few {told['over']} to decide over all domains")
    return found


def possible(row: xarray.Dataset) -> bool:
    """Whether anybody could win on a domain, or over all of them.

    >>> import xarray
    >>> possible(xarray.Dataset({"least_p": 0.06}, attrs={"level": 0.95}))
    False
    """
    return bool(row.least_p < 1 - row.attrs["level"])


def _pair(one: xarray.Dataset, domains: bool) -> list[list[str]]:
    """The row over all domains, and those of each."""
    single = one.isel(domain=slice(None, -1))
    alone = single.sizes["domain"] == 1
    last = _cells(one.isel(domain=0 if alone else -1))
    if not alone:
        a, b = str(one.pair.item()).split(" / ")
        won = [int((single.winner == name).sum()) for name in (a, b)]
        if possible(single.isel(domain=0)):
            last.append(f"on {won[0]} and {won[1]} of {single.sizes['domain']} domains")
    rows = [[f"    {one.pair.item()}", *last]]
    if domains and not alone:
        names = single.domain.values
        rows += [[f"      {name}", *_cells(single.sel(domain=name))] for name in names]
    return rows


def _cells(row: xarray.Dataset) -> list[str]:
    few = row.attrs["over"] if row.domain.item() == "all" else "runs"
    ratio, low, high, better, p = (
        float(row[name]) for name in ("ratio", "low", "high", "better", "p_holm")
    )
    died = [float(row[f"diverged_{side}"]) for side in "ab"]
    told = f"diverged: {died[0]:.0%}, {died[1]:.0%}" if any(died) else ""
    winner = str(row.winner.item())
    return [
        f"{_times(ratio)} [{_times(low)}, {_times(high)}]",
        f"a in {better:.0%} of runs",
        "p < 1e-6" if p < 1e-6 else f"p = {p:.2g}",
        winner or ("nobody" if possible(row) else f"too few {few}"),
        told,
    ]


def _times(ratio: float) -> str:
    """A ratio in few digits.

    >>> _times(0.98765), _times(12.345), _times(float("inf")), _times(1e30)
    ('0.988', '12.3', '∞', '1e+30')
    """
    return "∞" if np.isinf(ratio) else f"{ratio:.3f}" if ratio < 10 else f"{ratio:.3g}"


def _aligned(rows: list[list[str]]) -> list[str]:
    """Rows with their columns below each other; headings run on."""
    count = max(len(row) for row in rows)
    widths = [max((len(row[k]) for row in rows if len(row) > max(k, 1)), default=0)
              for k in range(count)]  # fmt: skip
    widths = [width + 2 * (width > 0) for width in widths]
    return [
        "".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    ]
