"""Comparisons of methods, pair by pair, with intervals and tests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import align, count
from retvar.support.html import Shown
from retvar.sweep.run_errors import (
    JUDGING,
    SELECTING,
    ComparisonOptions,
    Indices,
    RunErrors,
    errors_of,
)
from retvar.sweep.statistics import Array, centre, holm, log_ratio, signed_rank

if TYPE_CHECKING:
    import xarray

TITLES = {
    "best": "each at its best settings",
    "shared": "both at the same settings, the best ones for both",
    "typical": "both at the same settings, the median over all",
}
ALL = "all"


def compare(data: xarray.Dataset, by: str = "algorithm", **options: Any) -> Comparison:
    """Compare methods pair by pair, on each domain and over all domains, paired by run.

    They are compared separately for each γ, λ and estimand, which define what is estimated.

    There are three comparisons: each method at its ``best`` settings on the domain; both at the
    ``shared`` settings at which the larger of the two errors is least; and ``typical``, the median
    over all settings that both have. If the settings of two methods cannot be matched, only the
    first is made. Even runs select settings and odd runs judge them, so that the selection does not
    bias the result.

    The effect is the ratio of errors, a's over b's: the interquartile mean of its logarithm over
    runs, then over domains. A run that diverged is worse than all that did not, and equal to others
    that did; such runs are also counted. Errors with a relative difference below 1e-9 are equal.

    Parameters
    ----------
    data
        A collected sweep, or a simulation with ``keep="runs"``.
    by
        The setting whose values are compared.
    options
        Fields of :class:`ComparisonOptions`: ``what``, ``at``, ``where``, ``over``, ``level``,
        ``resamples``, ``seed``.

    Returns
    -------
    Comparison
        ``ratio`` with ``low`` and ``high``, ``better`` (the share of runs in which a has the
        smaller error), ``p`` (Wilcoxon's signed ranks), ``p_holm`` (adjusted by Holm's method among
        the rows over all domains, and among those of single domains), ``winner`` (if ``p_holm`` is
        below 1 − level and 1 is outside the interval), the shares of runs that diverged, and the
        selected settings; ``least_p``, the smallest possible ``p_holm``: if it is above 1 − level,
        there can be no winner, and the summary says "too few".

    Examples
    --------
    >>> import retvar as rv
    >>> learners = rv.grid(rv.Direct, rv.VTD, alpha=[0.01, 0.1], alpha_bar=[0.01, 0.1])
    >>> how = {"steps": 100, "runs": 20, "seed": 0, "keep": "runs"}
    >>> record = rv.Record(at=[100], rmse=True)
    >>> runs = rv.simulate(rv.domains.complex_mdp(), learners, record=record, **how)
    >>> print(compare(runs).summary().splitlines()[0])
    Variance RMSE at step 100: 1 domain, 20 runs (10 select settings, 10 judge them)
    """
    import xarray

    errors = errors_of(data, ComparisonOptions().replace(**options))
    how = errors.options
    groups, methods = errors.questions(), errors.methods(by)
    pairs = list(combinations(methods, 2))
    if not pairs:
        raise InputError("by", by, "has one value, and nothing to compare it with")
    matches = [
        [_match(errors, by, members, methods, pair) for pair in pairs]
        for members in groups.values()
    ]
    unmatched = next((m.problem for group in matches for m in group if m.problem), "")
    selections = ["best"] if unmatched else list(TITLES)
    rows = [
        _row(errors, match, selection)
        for group in matches for selection in selections for match in group
    ]  # fmt: skip
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    logs = columns.pop("logs")
    columns |= _effects(logs, how)
    a, b = (np.tile(names, len(rows) // len(pairs))[:, None] for names in zip(*pairs, strict=True))
    ahead = np.where(columns["high"] < 1, a, np.where(columns["low"] > 1, b, ""))
    won = np.where(columns["p_holm"] < 1 - how.level, ahead, "")
    columns["winner"] = np.array(won.tolist())
    shape = (len(groups), len(selections), len(pairs), len(errors.domains) + 1)
    dims = ("question", "settings", "pair", "domain")
    labels = (list(groups), selections, [f"{a} / {b}" for a, b in pairs], [*errors.domains, ALL])
    found = xarray.Dataset(
        {name: (dims, column.reshape(shape)) for name, column in columns.items()},
        dict(zip(dims, labels, strict=True)),
        {
            "by": by, "what": how.what, "at": errors.moment, "level": how.level,
            "over": how.over, "runs": errors.values.shape[-1], "judging": logs.shape[-1],
            "unmatched": unmatched,
        },
    )  # fmt: skip
    return Comparison(found.assign(least_p=("domain", _least_p(logs.shape, how))))


class _Match(NamedTuple):
    """The learners of two methods for one question: all of them, and those of equal settings."""

    all: list[Indices]
    same: list[Indices]
    problem: str  # why they cannot be compared at the same settings; empty if they can


def _match(
    errors: RunErrors, by: str, members: Indices, methods: dict[str, Indices], pair: tuple[str, str]
) -> _Match:
    sides = [np.intersect1d(methods[name], members) for name in pair]
    for name, side in zip(pair, sides, strict=True):
        if not side.size:
            remedy = "every method must have learners for each question"
            raise InputError("data", f"no {name}", remedy)
    columns = [column for name, column in errors.settings.items() if name != by]
    columns = [c for c in columns if all(any(c[k] is not None for k in side) for side in sides)]
    known = [{tuple(c[k] for c in columns): int(k) for k in side} for side in sides]
    both = [key for key in known[0] if key in known[1]]
    problem, names = "", " and ".join(pair)
    if not both:
        problem = f"{names} have no setting in common"
    elif any(len(keys) < side.size for keys, side in zip(known, sides, strict=True)):
        problem = f"{names} have learners that differ in a setting of only one method"
    same = [np.array([keys[key] for key in both], dtype=np.intp) for keys in known]
    return _Match(sides, same, problem)


def _row(errors: RunErrors, match: _Match, selection: str) -> dict[str, Any]:
    """One pair of methods at settings that were selected in one way, by domain and for all."""
    here = np.arange(len(errors.domains))[:, None]
    row: dict[str, Any] = {}
    judged = []  # [domain, setting, run]
    for side, chosen in zip("ab", _selected(errors, match, selection), strict=True):
        judged.append(errors.values[:, :, JUDGING][here, chosen])
        row[f"diverged_{side}"] = _with_mean(np.isinf(judged[-1]).mean(axis=(1, 2)))
        names = [errors.learners[x[0]] if x.size == 1 else "" for x in chosen]
        row[f"setting_{side}"] = [*names, ""]
    with np.errstate(invalid="ignore"):
        logs = np.median(log_ratio(*judged), axis=1)  # over settings
    return row | {"logs": np.where(np.isnan(logs), 0.0, logs)}  # NaN: between −∞ and ∞


def _selected(errors: RunErrors, match: _Match, selection: str) -> list[Indices]:
    """The learners of both methods that are compared on each domain [domain, setting]."""
    if selection == "best":
        return [errors.best(side)[:, None] for side in match.all]
    if selection == "typical":
        every = np.zeros((len(errors.domains), 1), dtype=np.intp)
        return [every + side for side in match.same]
    selecting = errors.values[:, :, SELECTING]
    larger = np.maximum(*(centre(selecting[:, side]) for side in match.same))
    best = np.argmin(larger, axis=1)[:, None]
    return [side[best] for side in match.same]


def _with_mean(shares: Array) -> Array:
    """Shares [..., domain], followed by their mean: that of all domains."""
    return np.concatenate([shares, shares.mean(axis=-1, keepdims=True)], axis=-1)


def _effects(logs: Array, options: ComparisonOptions) -> dict[str, Array]:
    """Effects [row, domain and all] from logarithms of ratios [row, domain, run]."""
    intervals = zip(options.interval(logs), options.overall_interval(logs), strict=True)
    low, ratio, high = (np.exp(np.column_stack(both)) for both in intervals)
    p_each = np.array([[signed_rank(runs) for runs in row] for row in logs])
    units = centre(logs) if options.over == "domains" else logs
    p_all = np.array([signed_rank(row) for row in units])
    return {
        "low": low,
        "ratio": ratio,
        "high": high,
        "better": _with_mean(((logs < 0) + 0.5 * (logs == 0)).mean(axis=-1)),
        "p": np.column_stack([p_each, p_all]),
        "p_holm": np.column_stack([holm(p_each), holm(p_all)]),
    }


def _least_p(shape: tuple[int, ...], options: ComparisonOptions) -> Array:
    """The least possible p-value after Holm's correction, of each domain and of all."""
    rows, domains, runs = shape
    signs = domains * (1 if options.over == "domains" else runs)  # all of which agree
    each = rows * domains * 0.5 ** (runs - 1)
    return np.array([each] * domains + [rows * 0.5 ** (signs - 1)])


# ---------------------------------------------------------------------- as text


@dataclass(frozen=True, eq=False)
class Comparison(Shown):
    """The result of :func:`compare`; ``print(comparison.summary())`` shows it as a table.

    ``data`` has the dimensions question (such as λ), settings (``best``, ``shared``, ``typical``),
    pair (of methods) and domain, with ``all`` for all domains together.
    """

    data: xarray.Dataset

    def summary(self, domains: bool = False) -> str:
        """A table as text; with `domains`, also domain by domain."""
        domains = arguments.flag("domains", domains)
        headings: list[tuple[int, str]] = []  # with the number of rows before each
        rows: list[list[str]] = []
        for question in self.data.question.values:
            headings += [(len(rows), str(question))] if question else []
            for settings in self.data.settings.values:
                headings.append((len(rows), f"  {TITLES[str(settings)]}"))
                one = self.data.sel(question=question, settings=settings)
                for pair in self.data.pair.values:
                    rows += _pair_rows(one.sel(pair=pair), domains)
        lines = align(rows, left=True)
        for number, heading in reversed(headings):
            lines.insert(number, heading)
        return "\n".join([*_legend(self.data), "", *lines])

    __str__ = summary


def error_name(what: str) -> str:
    """The name of an error for text and figures."""
    return what.replace("_rmse", " RMSE").replace("_", " ")


def can_decide(row: xarray.Dataset) -> bool:
    """Whether a difference on a domain, or over all of them, could be significant."""
    return bool(row.least_p < 1 - row.attrs["level"])


def _legend(data: xarray.Dataset) -> list[str]:
    """What the numbers mean."""
    runs, judging, level = (data.attrs[name] for name in ("runs", "judging", "level"))
    name, unmatched = error_name(data.attrs["what"]), data.attrs["unmatched"]
    over = "domains like these" if data.attrs["over"] == "domains" else "runs on these domains"
    return [
        f"{name[0].upper()}{name[1:]} at {data.attrs['at']}: "
        f"{count(data.sizes['domain'] - 1, 'domain')}, "
        f"{runs} runs ({runs - judging} select settings, {judging} judge them)",
        f"a / b: ratio of errors, below 1 if a is better; {level:.0%} intervals over {over};",
        f"better: if p < {1 - level:.3g} after Holm's correction and 1 is outside the interval",
        *([f"{unmatched}: each at its best only"] if unmatched else []),
    ]


def _pair_rows(one: xarray.Dataset, domains: bool) -> list[list[str]]:
    """The row of a pair over all domains, and with `domains` those of each domain."""
    single, pair = one.isel(domain=slice(None, -1)), str(one.pair.item())
    if single.sizes["domain"] == 1:
        return [[f"    {pair}", *_cells(single.isel(domain=0))]]
    row = [f"    {pair}", *_cells(one.isel(domain=-1))]
    if can_decide(single.isel(domain=0)):
        wins = (int((single.winner == name).sum()) for name in pair.split(" / "))
        row.append(f"on {' and '.join(map(str, wins))} of {single.sizes['domain']} domains")
    each = [[f"      {name}", *_cells(single.sel(domain=name))] for name in single.domain.values]
    return [row, *(each if domains else [])]


def _cells(row: xarray.Dataset) -> list[str]:
    unit = row.attrs["over"] if row.domain.item() == ALL else "runs"
    ratio, low, high = (_ratio(float(row[name])) for name in ("ratio", "low", "high"))
    p, diverged = float(row.p_holm), [float(row.diverged_a), float(row.diverged_b)]
    return [
        f"{ratio} [{low}, {high}]",
        f"a in {float(row.better):.0%} of runs",
        "p < 1e-6" if p < 1e-6 else f"p = {p:.2g}",
        str(row.winner.item()) or ("undecided" if can_decide(row) else f"too few {unit}"),
        f"diverged: {diverged[0]:.0%}, {diverged[1]:.0%}" if any(diverged) else "",
    ]


def _ratio(ratio: float) -> str:
    """A ratio with few digits."""
    return "∞" if np.isinf(ratio) else f"{ratio:.3f}" if ratio < 10 else f"{ratio:.3g}"
