"""A comparison of methods as a table of text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar.format import align, count

if TYPE_CHECKING:
    import xarray

__all__ = ["can_decide", "comparison_table", "error_name"]

TITLES = {
    "best": "each at its best settings",
    "shared": "both at the same settings, the best ones for both",
    "typical": "both at the same settings, the median over all",
}


def error_name(what: str) -> str:
    """The name of an error for text and figures.

    >>> error_name("variance_rmse"), error_name("third_moment_rmse")
    ('variance RMSE', 'third moment RMSE')
    """
    return what.replace("_rmse", " RMSE").replace("_", " ")


def comparison_table(data: xarray.Dataset, domains: bool) -> str:
    """The table of a comparison; with `domains`, also domain by domain."""
    headings: list[tuple[int, str]] = []  # with the number of rows before each
    rows: list[list[str]] = []
    for question in data.question.values:
        headings += [(len(rows), str(question))] if question else []
        for settings in data.settings.values:
            headings.append((len(rows), f"  {TITLES[str(settings)]}"))
            for pair in data.pair.values:
                one = data.sel(question=question, settings=settings, pair=pair)
                rows += _pair_rows(one, domains)
    lines = align(rows, left=True)
    for number, heading in reversed(headings):
        lines.insert(number, heading)
    notes = [*_legend(data.attrs, data.sizes["domain"] - 1), *_undecidable(data)]
    return "\n".join([*notes, "", *lines])


def _legend(attributes: dict[str, Any], domains: int) -> list[str]:
    what, level, over = (attributes[name] for name in ("what", "level", "over"))
    runs, judging, unmatched = (attributes[name] for name in ("runs", "judging", "unmatched"))
    name = error_name(what)
    population = "domains like these" if over == "domains" else "runs on these domains"
    return [
        f"{name[0].upper()}{name[1:]} at {attributes['at']}: {count(domains, 'domain')}, "
        f"{runs} runs ({runs - judging} select settings, {judging} judge them)",
        f"a / b: ratio of errors, below 1 if a is better; {level:.0%} intervals over {population};",
        f"better: if p < {1 - level:.3g} after Holm's correction and 1 is outside the interval",
        *([f"{unmatched}: each at its best only"] if unmatched else []),
    ]


def _undecidable(data: xarray.Dataset) -> list[str]:
    """Notes if there are too few runs or domains for any significant difference."""
    attributes, domains = data.attrs, data.sizes["domain"] - 1
    found = []
    if not can_decide(data.isel(domain=0)):
        more = math.floor(math.log2(data.least_p.values[0] / (1 - attributes["level"]))) + 1
        runs = 2 * (attributes["judging"] + more)
        found.append(f"too few runs to decide on single domains; {runs} would suffice")
    if domains > 1 and not can_decide(data.isel(domain=-1)):
        found.append(f"too few {attributes['over']} to decide over all domains")
    return found


def can_decide(row: xarray.Dataset) -> bool:
    """Whether a difference on a domain, or over all of them, could be significant.

    >>> import xarray
    >>> can_decide(xarray.Dataset({"least_p": 0.06}, attrs={"level": 0.95}))
    False
    """
    return bool(row.least_p < 1 - row.attrs["level"])


def _pair_rows(one: xarray.Dataset, domains: bool) -> list[list[str]]:
    """The row of a pair over all domains, and with `domains` those of each domain."""
    single = one.isel(domain=slice(None, -1))
    alone = single.sizes["domain"] == 1
    last = _cells(one.isel(domain=0 if alone else -1))
    if not alone:
        a, b = str(one.pair.item()).split(" / ")
        wins = [int((single.winner == name).sum()) for name in (a, b)]
        if can_decide(single.isel(domain=0)):
            last.append(f"on {wins[0]} and {wins[1]} of {single.sizes['domain']} domains")
    rows = [[f"    {one.pair.item()}", *last]]
    if domains and not alone:
        names = single.domain.values
        rows += [[f"      {name}", *_cells(single.sel(domain=name))] for name in names]
    return rows


def _cells(row: xarray.Dataset) -> list[str]:
    unit = row.attrs["over"] if row.domain.item() == "all" else "runs"
    ratio, low, high, better, p = (
        float(row[name]) for name in ("ratio", "low", "high", "better", "p_holm")
    )
    diverged = [float(row[f"diverged_{side}"]) for side in "ab"]
    winner = str(row.winner.item())
    return [
        f"{_ratio(ratio)} [{_ratio(low)}, {_ratio(high)}]",
        f"a in {better:.0%} of runs",
        "p < 1e-6" if p < 1e-6 else f"p = {p:.2g}",
        winner or ("undecided" if can_decide(row) else f"too few {unit}"),
        f"diverged: {diverged[0]:.0%}, {diverged[1]:.0%}" if any(diverged) else "",
    ]


def _ratio(ratio: float) -> str:
    """A ratio with few digits.

    >>> _ratio(0.98765), _ratio(12.345), _ratio(float("inf")), _ratio(1e30)
    ('0.988', '12.3', '∞', '1e+30')
    """
    return "∞" if np.isinf(ratio) else f"{ratio:.3f}" if ratio < 10 else f"{ratio:.3g}"
