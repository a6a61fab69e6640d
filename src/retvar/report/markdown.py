"""The report as Markdown, with the figures as files beside it."""

from __future__ import annotations

from collections.abc import Iterable

from retvar.format import digits, duration, minus, z_text
from retvar.report import summary
from retvar.report.html import FIGURES, HEADINGS, TITLE
from retvar.report.outcome import Checked, Outcome, Reproduction
from retvar.report.settings import described
from retvar.report.table1 import Row

__all__ = ["page"]


def page(found: Reproduction) -> str:
    """The whole report.

    >>> from retvar.report.outcome import Asked
    >>> page(Reproduction((), Asked())).splitlines()[0]
    '# The variance of the return, reproduced'
    """
    parts = [f"# {TITLE}", f"{summary.versions()}; {summary.run_with(found)}.", *_summary(found)]
    parts += [part for outcome in found.outcomes for part in _section(found, outcome)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _plain(text: str) -> str:
    r"""Text in which nothing is markup.

    >>> print(_plain("a*b | c_d <e>"))
    a\*b \| c\_d \<e>
    """
    for sign in "\\`*_|<[":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def _summary(found: Reproduction) -> list[str]:
    parts = ["## Summary", f"**{summary.verdict(found)}**"]
    failed, centred = summary.failures(found), summary.on_centred(found)
    if failed:
        parts += ["What does not hold:", _claims(failed)]
    if centred:
        parts += ["The centred estimator, when it wins:", _claims(centred)]
    lines = ["| | here | plain loop |", "| --- | ---: | ---: |"]
    lines += [f"| {what} | {took} | {plain} |" for what, took, plain in summary.times(found)]
    return [*parts, "\n".join(lines), summary.reckoning(found)]


def _claims(pairs: Iterable[tuple[Outcome | None, Checked]]) -> str:
    lines = []
    for outcome, each in pairs:
        where = f"`{outcome.id}`: " if outcome is not None else ""
        mark = "✓" if each.finding.holds else "✗"
        measured = _plain(minus(each.finding.measured))
        lines.append(f"- {mark} {where}{_plain(each.claim.name)}; measured: {measured}")
        if each.claim.explained and not each.finding.holds:
            lines[-1] += f". {_plain(each.claim.explained)}"
    return "\n".join(lines)


def _section(found: Reproduction, outcome: Outcome) -> list[str]:
    experiment = outcome.experiment
    source = summary.SOURCES.get(experiment.source, experiment.source)
    settings = "\n".join(f"- {label}: {_plain(text)}" for label, text in described(experiment))
    return [
        f"## {_plain(experiment.title)}",
        f"`{outcome.id}`, {source}. {_plain(experiment.about)}",
        _table(outcome.rows) if outcome.rows else "",
        _figure(outcome),
        _claims((None, each) for each in outcome.checked),
        f"Settings:\n\n{settings}" if settings else "",
        f"{duration(outcome.seconds)}; rerun just this one: `{found.asked.command(outcome.id)}`",
    ]


def _figure(outcome: Outcome) -> str:
    if outcome.drawn is None:
        return f"The figure {_plain(outcome.problem)}." if outcome.problem else ""
    files = outcome.drawn.files
    shown = next((files[kind] for kind in ("png", "svg") if kind in files), None)
    others = [f"[{kind.upper()}]({file})" for kind, file in files.items() if file != shown]
    image = f"![{_plain(outcome.experiment.title)}]({shown})" if shown else ""
    also = f"{'Also as' if shown else 'The figure as'} {', '.join(others)}." if others else ""
    return "\n\n".join(part for part in (image, also) if part)


def _table(rows: tuple[Row, ...]) -> str:
    heads = ("experiment", "estimate", *FIGURES)
    lines = [f"| {' | '.join(heads)} |", "| --- | --- |" + " ---: |" * len(FIGURES)]
    for row in rows:
        for column, cell in row.cells.items():
            texts = (cell.printed, digits(cell.measured), digits(cell.stderr, 2), z_text(cell.z))
            lines.append(f"| `{row.experiment}` | {HEADINGS[column]} | {' | '.join(texts)} |")
    return "\n".join(lines)
