"""Reproductions: experiments run, claims checked, figures drawn, a report written.

:func:`reproduce` (``job``) goes through these, a module each:

1. ``choice``: which experiments are meant;
2. ``folder``: where everything is kept, and that it is ours;
3. ``figures`` and ``table``: what is drawn, and Table 1;
4. ``outcome`` and ``summary``: what came out;
5. ``html`` and ``markdown``: the report; ``settings`` tells a declaration in words.

``watch`` shows how far it has come.
"""

from retvar.report.outcome import Outcome, Reproduction
from retvar.report.reproduce import reproduce
from retvar.report.selection import declared, select
from retvar.report.summary import text

__all__ = ["Outcome", "Reproduction", "declared", "reproduce", "select", "text"]
