"""The report of an estimate: one page with table, map, calibration, checks and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from retvar.estimation.answers import answers_table
from retvar.estimation.files import PAGE
from retvar.estimation.results import table_rows, tell
from retvar.estimation.verdicts import AGREES, DISAGREES
from retvar.support.files import write_text
from retvar.support.format import count, number
from retvar.web import Embedded, embed, environment, today, versions

if TYPE_CHECKING:
    import xarray

    from retvar.estimation.answers import Answer
    from retvar.estimation.check import Check
    from retvar.estimation.estimate import Estimate
    from retvar.experience.stream import Counts

MOST_ROWS = 300  # of the table; the files have all
TITLES = {  # of figures, in order, and what one sees
    "map": ("Map", "Expected return and spread of each cell."),
    "heat_map": ("Map", "Expected return and spread over the observations; grey: not visited."),
    "states": ("States", "Expected return and spread, with their intervals."),
    "observed": ("Observed returns", "Returns of the data beside what was predicted for them."),
    "calibration": (
        "Calibration",
        "How often observed returns fell where they were predicted to fall; the diagonal is right.",
    ),
    "check": ("Check on fresh data", "Means and spreads of fresh returns beside the estimates."),
}
FIRST = ("map", "heat_map")  # figures before the table
LABELS = {
    "gamma": "γ", "lam": "λ", "kappa": "κ", "by": "estimated by", "bootstrap_samples":
    "bootstrap samples", "level": "level of the intervals", "grid_rows": "rows of the map",
    "grid_columns": "columns of the map", "effective_sample_size": "effective sample size",
    "largest_ratio": "largest importance ratio", "understood": "read as",
}  # fmt: skip
UNSAID = (  # attributes that stand elsewhere in the page
    "warnings", "remarks", "self_check", "cells", "retvar", "rejected", "unmarked_ends",
    "out_of_bounds", "actions", "observed_note", "return_intervals",
)  # fmt: skip
KINDS = {AGREES: "good", DISAGREES: "bad"}


def write_page(
    out: Path, found: Estimate, data: xarray.Dataset, figures: Mapping[str, Any], **more: Any
) -> Path:
    """Write ``index.html`` into a folder and return its path; `more` is for `estimate_page`."""
    embedded = {name: embed(figure) for name, figure in figures.items()}
    write_text(out / PAGE, estimate_page(found, data, embedded, **more))
    return out / PAGE


def estimate_page(
    found: Estimate,
    data: xarray.Dataset,
    figures: Mapping[str, Embedded],
    *,
    checked: Check | None = None,
    asked: Sequence[Answer] = (),
    files: Sequence[str] = (),
) -> str:
    """The page of an estimate as HTML.

    `figures` are those of :func:`retvar.plots.estimate_figures`, `checked` is the check on fresh
    data, `asked` are answers for single states, `files` names of the files beside the page.

    >>> import retvar as rv
    >>> found = rv.estimate(rv.experience.from_gymnasium("FrozenLake-v1", steps=100), gamma=0.9)
    >>> estimate_page(found, found.data, {}).startswith("<!DOCTYPE html>")
    True
    """
    a = data.attrs
    rows, counts = table_rows(data, MOST_ROWS), found.experience.counts
    _, remarks, left_out = tell(data, counts)
    shown, hidden = len(rows.lines) - 1, rows.hidden
    policy = f", {a['policy']} policy" if a["policy"] else ""
    spread = "of each action" if a.get("actions") else ""
    sums = "cost" if a.get("reward") else "return"
    page = {
        "title": f"{_bare(a['source'])}: value and spread of the {sums} {spread}".rstrip(),
        "subtitle": f"{a['source']}{policy}",
        "warnings": [each for each in a.get("warnings", "").splitlines() if each],
        "facts": _facts(data, rows.unit, shown + hidden),
        "remarks": [f"{each[0].upper()}{each[1:]}." for each in remarks],
        "checks": _checks(found, checked),
        "reading": str(a.get("observed_note", "")) and f"Observed returns: {a['observed_note']}.",
        "asked": answers_table(list(asked)) if asked else "",
        "figures": [_picture(x, figures[x], files, sums) for x in TITLES if x in figures],
        "table": _table(rows.lines),
        "table_note": _table_note(shown, hidden, rows.unit, data, files),
        "left_out": left_out + _not_answered(data, counts),
        "command": found.experience.command,
        "settings": _settings(data),
        "files": files,
    }
    template = environment().get_template("estimate.html")
    return template.render(page=page, today=today(), versions=versions()).lstrip()


def _bare(source: str) -> str:
    return source.removeprefix("gymnasium:").removeprefix("minari:")


def _table(lines: list[list[str]]) -> dict[str, Any]:
    """Heading and rows, without a column of notes where there is none."""
    heading, *rows = lines
    if not heading[-1] and not any(row[-1] for row in rows):
        heading, rows = heading[:-1], [row[:-1] for row in rows]
    return {"heading": heading, "rows": rows}


def _picture(name: str, figure: Embedded, files: Sequence[str], sums: str) -> dict[str, Any]:
    words = (text.replace("return", sums) for text in TITLES[name])
    title, caption = (text.replace("Return", sums.capitalize()) for text in words)
    file = next((file for file in files if Path(file).stem == name), "")
    place = {"file": quote(file), "first": name in FIRST}  # before the table
    return {"name": name, "title": title, "caption": caption, **figure._asdict(), **place}


def _facts(data: xarray.Dataset, unit: str, places: int) -> list[tuple[str, str]]:
    """Numbers to see first."""
    a = data.attrs
    by = {"least_squares": "least squares", "deep": "deep critic"}.get(str(a["by"]), "TD learning")
    found = [
        ("transitions", f"{int(a['transitions']):,}"),
        ("episodes", f"{int(a['episodes']):,}"),
        (f"{unit}s in the table" if unit == "region" else f"{unit}s visited", f"{places:,}"),
        ("discount γ", _shown(a["gamma"])),
        ("λ", _shown(a["lam"])),
        (f"{a['method']} method" if a["by"] != "least_squares" else "estimated by", by),
    ]
    visited = data["visits"].values > 0
    if "value_low" in data and visited.any():
        known = np.isfinite(data["value_low"].values) & np.isfinite(data["std_low"].values)
        found.append(("with both intervals", f"{int((known & visited).sum()):,}"))
    return found


def _checks(found: Estimate, checked: Check | None) -> list[dict[str, Any]]:
    """The check against the data's own returns, and the one on fresh data."""
    rows = [("The data's own returns", found.self_check)]
    if checked is not None:
        rows.append(("Fresh returns", checked))
    return [
        {"title": title, "verdict": str(each.kind), "mark": KINDS.get(str(each.kind), ""),
         "lines": each.summary().splitlines()}
        for title, each in rows
    ]  # fmt: skip


def _table_note(
    shown: int, hidden: int, unit: str, data: xarray.Dataset, files: Sequence[str]
) -> str:
    """Which rows the table has, and where the others are."""
    csv = next((file for file in files if file.endswith(".csv")), "the dataset")
    parts = [count(shown, unit)]
    if hidden:
        parts = [f"The {shown:,} most visited of {count(shown + hidden, unit)}; {csv} has all"]
    elif unit == "region":
        parts = [f"The {count(shown, 'most visited region')}"]
    parts.append("std is the standard deviation of the return")
    if "value_low" in data and "intervals" not in data.attrs:
        level = f"{100 * data.attrs['level']:.4g}%"
        parts.append(f"{level}: the confidence interval of the column before it")
    return ". ".join([*parts, "A click on a heading sorts."])


def _not_answered(data: xarray.Dataset, counts: Counts) -> list[str]:
    """Episodes without an end, and states without a visit."""
    cut, never = counts.episodes - counts.ends, int((data["visits"].values == 0).sum())
    lines = [f"{count(cut, 'episode')} cut off before the end"] if cut else []
    return lines + ([f"{count(never, 'state')} without a visit, and so unknown"] if never else [])


def _settings(data: xarray.Dataset) -> list[tuple[str, str]]:
    """Attributes of the dataset as labels and texts."""
    found = []
    for name, value in data.attrs.items():
        if name in UNSAID or (isinstance(value, str) and not value):
            continue
        found.append((LABELS.get(name, name.replace("_", " ")), _shown(value)))
    return found


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer):
        return f"{int(value):,}"
    return f"{value:g}" if 1e-4 <= abs(value) < 1e6 or not value else number(float(value))
