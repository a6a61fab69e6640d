"""Reproductions: run experiments, check their claims, draw their figures, write a report.

- ``reproduce``: the function :func:`reproduce`, which runs everything;
- ``selection``: the experiments of the paper or of a file, selected by id;
- ``output_folder``: the folder with data, figures and report;
- ``figures`` and ``table1``: the figures, and Table 1 with published numbers;
- ``outcome``: the results;
- ``summary`` and ``settings``: texts of the report;
- ``pages``: the report as HTML and Markdown, from ``templates/``.
"""

from retvar.report.outcome import Outcome, Reproduction
from retvar.report.reproduce import reproduce
from retvar.report.selection import load_experiments, select

__all__ = ["Outcome", "Reproduction", "load_experiments", "reproduce", "select"]
