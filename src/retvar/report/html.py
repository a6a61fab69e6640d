"""The report as one page that needs nothing else: no network, no other file."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from html import escape
from importlib import resources

from retvar.format import digits, duration, minus, z_text
from retvar.report import summary
from retvar.report.outcome import Checked, Outcome, Reproduction
from retvar.report.settings import described
from retvar.report.table1 import Row

__all__ = ["page"]

TITLE = "The variance of the return, reproduced"
HEADINGS = {"value": "value", "second_moment": "second moment", "vtd": "VTD", "direct": "direct"}
FIGURES = ("published", "measured", "std. error", "z")
FAR = 4.0  # standard errors
WIDE = 6.0  # inches; on a phone such a figure is scrolled


def page(found: Reproduction) -> str:
    """The whole page.

    >>> from retvar.report.outcome import Asked
    >>> page(Reproduction((), Asked())).startswith("<!DOCTYPE html>")
    True
    """
    css = resources.files("retvar.report").joinpath("page.css").read_text(encoding="utf-8")
    today = datetime.datetime.now(datetime.UTC).strftime("%d %B %Y").lstrip("0")
    body = "\n".join(_section(found, outcome) for outcome in found.outcomes)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<style>
{css}</style>
</head>
<body>
<header>
<h1>{TITLE}</h1>
<p class="soft">{escape(summary.versions())}<br>{escape(summary.run_with(found))} · {today}</p>
</header>
<main>
{_summary(found)}
{_contents(found)}
{body}
</main>
<footer>Made by <code>retvar reproduce</code>. The data are beside this page in <code>data/</code>
(netCDF), the figures in <code>figures/</code>.</footer>
</body>
</html>
"""


def _anchor(name: str) -> str:
    return name.replace("/", "--")


def _link(outcome: Outcome) -> str:
    return f'<a href="#{_anchor(outcome.id)}">{escape(outcome.experiment.title)}</a>'


def _summary(found: Reproduction) -> str:
    parts = [
        f'<section id="summary"><h2>Summary</h2><p class="verdict">{summary.verdict(found)}</p>'
    ]
    failed = summary.failures(found)
    if failed:
        parts.append("<h3>What does not hold</h3>" + _claims(failed))
    centred = summary.on_centred(found)
    if centred:
        parts.append("<h3>The centred estimator: when it wins</h3>" + _claims(centred))
    if any(outcome.rows for outcome in found.outcomes):
        where = next(outcome for outcome in found.outcomes if outcome.rows)
        parts.append(f"<p>Published and measured figures side by side: {_link(where)}.</p>")
    lines = "".join(
        f"<tr><th scope=row>{escape(what)}</th><td>{took}</td><td>{plain}</td></tr>"
        for what, took, plain in summary.times(found)
    )
    parts.append(
        '<h3>Time</h3><div class="box"><table class="grid times"><thead><tr><th></th>'
        "<th scope=col>here</th><th scope=col>plain loop</th></tr></thead>"
        f"<tbody>{lines}</tbody></table></div>"
        f'<p class="soft">{escape(summary.reckoning(found))}</p></section>'
    )
    return "\n".join(parts)


def _claims(pairs: Iterable[tuple[Outcome | None, Checked]]) -> str:
    return '<ul class="claims">' + "".join(_claim(*pair) for pair in pairs) + "</ul>"


def _claim(outcome: Outcome | None, each: Checked) -> str:
    holds = each.finding.holds
    mark, word = ("✓", "holds") if holds else ("✗", "does not hold")
    where = ""
    if outcome is not None:
        where = f'<a href="#{_anchor(outcome.id)}"><code>{escape(outcome.id)}</code></a>: '
    why = each.claim.explained if not holds else ""
    return (
        f'<li class="{"good" if holds else "bad"}"><span class="mark" role="img" '
        f'aria-label="{word}">{mark}</span>{where}{escape(each.claim.name)}'
        f'<span class="measured">measured: {escape(minus(each.finding.measured))}</span>'
        + (f'<span class="why">{escape(why)}</span>' if why else "")
        + "</li>"
    )


def _contents(found: Reproduction) -> str:
    lines = "\n".join(f"<li>{_link(outcome)}{_score(outcome)}</li>" for outcome in found.outcomes)
    return f'<nav aria-label="Contents"><h2>Contents</h2><ol>\n{lines}\n</ol></nav>'


def _score(outcome: Outcome) -> str:
    if not outcome.checked:
        return ""
    missing = len(outcome.checked) - outcome.held
    return f' <span class="soft">{"✓" * outcome.held}{"✗" * missing}</span>'


def _section(found: Reproduction, outcome: Outcome) -> str:
    experiment = outcome.experiment
    source = summary.SOURCES.get(experiment.source, experiment.source)
    parts = [
        f'<section id="{_anchor(outcome.id)}"><h2>{escape(experiment.title)}</h2>',
        f'<p class="id"><code>{escape(outcome.id)}</code> · {escape(source)}</p>',
        f"<p>{escape(experiment.about)}</p>" if experiment.about else "",
        _table(outcome.rows) if outcome.rows else "",
        _figure(outcome),
        "<h3>Claims</h3>" + _claims((None, each) for each in outcome.checked)
        if outcome.checked
        else "",
        _settings(outcome),
        f'<p class="soft">{duration(outcome.seconds)} · rerun just this one: '
        f"<code>{escape(found.asked.command(outcome.id))}</code></p></section>",
    ]
    return "\n".join(part for part in parts if part)


def _figure(outcome: Outcome) -> str:
    if outcome.problem:
        return f'<p class="problem">The figure {escape(outcome.problem)}.</p>'
    if outcome.drawn is None:
        return ""
    alt = escape(f"{outcome.experiment.title}. {outcome.experiment.about}".strip(), quote=True)
    width, height = (round(96 * inches) for inches in outcome.drawn.inches)
    wide = ' class="wide"' if outcome.drawn.inches[0] > WIDE else ""
    return (
        f'<figure><div class="sheet"><img{wide} width="{width}" height="{height}" '
        f'src="{outcome.drawn.uri}" alt="{alt}"></div></figure>'
    )


def _settings(outcome: Outcome) -> str:
    pairs = described(outcome.experiment)
    if not pairs:
        return ""
    lines = "".join(
        f"<tr><th scope=row>{escape(label)}</th><td>{escape(text)}</td></tr>"
        for label, text in pairs
    )
    return f'<h3>Settings</h3><div class="box"><table class="settings">{lines}</table></div>'


def _table(rows: tuple[Row, ...]) -> str:
    """A group of lines for each experiment, narrow enough for a phone."""
    heads = "".join(f"<th scope=col>{name}</th>" for name in ("estimate", *FIGURES))
    groups = "\n".join(_group(row) for row in rows)
    return (
        '<div class="box"><table class="grid table-1"><thead>'
        f"<tr>{heads}</tr></thead>\n{groups}</table></div>"
        '<p class="soft">z: measured minus published, in standard errors of that difference; what '
        "is published has the error of 30 runs, and is rounded to the digits shown, which alone "
        "can make |z| large where the standard error is small.</p>"
    )


def _group(row: Row) -> str:
    lines = [
        f'<tbody><tr><th colspan="{1 + len(FIGURES)}" scope=rowgroup>'
        f"<code>{escape(row.experiment)}</code></th></tr>"
    ]
    for column, cell in row.cells.items():
        far = "bad" if abs(cell.z) > FAR else "good" if math.isfinite(cell.z) else ""
        lines.append(
            f"<tr><th scope=row>{HEADINGS[column]}</th><td>{cell.printed}</td>"
            f"<td>{digits(cell.measured)}</td><td>{digits(cell.stderr, 2)}</td>"
            f'<td class="z {far}">{z_text(cell.z)}</td></tr>'
        )
    return "\n".join([*lines, "</tbody>"])
