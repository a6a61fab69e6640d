"""Small tables as HTML, for notebooks: escaped, in the colours of the page, long ones collapsed."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Mapping, Sequence

from retvar.support.format import count, visible

OPEN = 20  # rows that are seen at once
MOST = 200  # rows altogether; the others are counted
LONGEST = 60  # characters of a cell
TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
CELL = "padding:2px 10px;white-space:nowrap;border:0 solid transparent"
HEAD = f"{CELL};border-bottom:1px solid currentColor;font-weight:600"


class Shown:
    """Base of classes that notebooks show as HTML, which `_html` makes; else as what is printed."""

    def _html(self) -> str:
        return preformatted(str(self))

    def _repr_html_(self) -> str:
        return self._html()


def escaped(text: object, most: int | None = None) -> str:
    r"""Text that means itself in HTML; after `most` characters it is cut off."""
    plain = str(text)
    if most is not None and len(plain) > most:
        plain = f"{plain[: most - 1]}…"
    return html.escape(visible(plain))


def page(title: str, *parts: str, notes: Iterable[str] = ()) -> str:
    """A heading, parts that are HTML already, and notes."""
    told = (f"<div>{escaped(note)}</div>" for note in notes)
    heading = f"<div><strong>{escaped(title)}</strong></div>"
    return f'<div style="overflow-x:auto">{heading}{"".join([*parts, *told])}</div>'


def preformatted(text: str) -> str:
    """Lines of text as they are."""
    return f"<pre>{html.escape(visible(text, lines=True))}</pre>"


def table(
    heading: Sequence[str],
    rows: Iterable[Sequence[str]],
    total: int | None = None,
    *,
    unit: str = "state",
    text: Sequence[int] = (0,),
) -> str:
    """A table of the first 20 rows; up to 200 are there when one opens the rest.

    `rows` is read no further than it is shown; `total` says how many there are, `unit` what they
    are. The columns `text` are aligned left, those of numbers right.
    """
    shown = [list(row) for row in itertools.islice(rows, MOST)]
    total = len(shown) if total is None else total
    whole = _table(heading, shown[:OPEN], text)
    if total <= OPEN:
        return whole
    rest = f"<summary>{count(total - OPEN, f'more {unit}')}</summary>"
    rest += _table(heading, shown[OPEN:], text)
    if total > len(shown):
        rest += f"<div>… and {count(total - len(shown), f'more {unit}')}</div>"
    return f"{whole}<details>{rest}</details>"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]], text: Sequence[int]) -> str:
    sides = ["left" if k in text else "right" for k in range(len(heading))]
    head = _row("th", heading, sides, HEAD) if any(heading) else ""
    body = "".join(_row("td", row, sides, CELL) for row in rows)
    return f'<table style="{TABLE}"><tbody>{head}{body}</tbody></table>'


def _row(tag: str, cells: Sequence[str], sides: Sequence[str], style: str) -> str:
    made = (
        f'<{tag} style="text-align:{side};{style}">{escaped(cell, LONGEST)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{''.join(made)}</tr>"


def settings(given: Mapping[str, object]) -> str:
    """A table of names and what they stand for; without those that are None or empty."""
    known = [[name, str(x)] for name, x in given.items() if x is not None and x != ""]
    return table(["", ""], known, unit="setting", text=(0, 1))
