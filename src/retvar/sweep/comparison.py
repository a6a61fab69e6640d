"""Comparisons of methods, pair by pair, with intervals and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar import arguments
from retvar.errors import InputError
from retvar.format import listed
from retvar.html import Shown, preformatted
from retvar.sweep.effects import centre, difference, log_ratio, overall_interval
from retvar.sweep.format import comparison_table
from retvar.sweep.options import ComparisonOptions
from retvar.sweep.run_errors import Array, Indices, RunErrors, errors_of
from retvar.sweep.statistics import holm, signed_rank

if TYPE_CHECKING:
    import xarray

__all__ = ["Comparison", "compare", "paired_difference"]

SETTINGS = ("best", "shared", "typical")
ALL = "all"


def paired_difference(
    data: xarray.Dataset,
    a: str,
    b: str,
    options: ComparisonOptions | None = None,
    *,
    relative: bool = False,
    **keywords: Any,
) -> xarray.Dataset:
    """The difference between the errors of two learners, paired by run on common streams.

    A run in which one learner diverged is an infinite difference, one in which both did is 0; the
    interquartile mean stays finite for up to a quarter of such runs.

    Parameters
    ----------
    data
        A collected sweep, or a simulation with ``keep="runs"``.
    a, b
        Labels of two learners.
    options
        :class:`ComparisonOptions`; its fields may also be given as keywords. `over` has no effect:
        domains are compared one by one.
    relative
        Compute the ratio of the errors, a's over b's, instead of the difference.

    Returns
    -------
    xarray.Dataset
        For each domain ``difference`` (or ``ratio``) with ``low`` and ``high``; ``better``, the
        share of runs in which a has the smaller error (equal ones count half); ``p`` of
        :func:`signed_rank`; ``diverged_a`` and ``diverged_b``, the numbers of runs that diverged.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"slow": rv.Direct(alpha=0.001), "quick": rv.Direct(alpha=0.01)}
    >>> record = rv.Record(at=[500], rmse=True)
    >>> mdp = rv.domains.complex_mdp()
    >>> runs = rv.simulate(
    ...     mdp, learners, steps=500, runs=20, seed=0, record=record, keep="runs")
    >>> found = paired_difference(runs, "slow", "quick")
    >>> bool(found.low.item() > 0), found.better.item()
    (True, 0.0)
    """
    import xarray

    relative = arguments.flag("relative", relative)
    options = ComparisonOptions.of(options, **keywords)
    errors = errors_of(data, options)
    left, right = (errors.values[:, _index(errors, name, label)] for name, label in
                   (("a", a), ("b", b)))  # fmt: skip
    gaps = (log_ratio if relative else difference)(left, right)
    low, middle, high = options.interval(gaps, centre)
    ends = [np.exp(x) if relative else x for x in (middle, low, high)]
    names = ("ratio" if relative else "difference", "low", "high")
    columns = dict(zip(names, ends, strict=True))
    columns["better"] = _wins(gaps).mean(axis=-1)
    columns["p"] = np.array([signed_rank(row) for row in gaps])
    columns |= {f"diverged_{k}": np.isinf(x).sum(-1) for k, x in (("a", left), ("b", right))}
    return xarray.Dataset(
        {name: ("domain", column) for name, column in columns.items()},
        {"domain": errors.domains},
        {"a": a, "b": b, "what": options.what, "at": errors.moment, "level": options.level},
    )


@dataclass(frozen=True, eq=False)
class Comparison(Shown):
    """The result of :func:`compare`; ``print(comparison.summary())`` shows it as a table.

    ``data`` has the dimensions question (such as λ), settings (``best``, ``shared``, ``typical``),
    pair (of methods) and domain, with ``all`` for all domains together.

    >>> import retvar as rv
    >>> runs = rv.simulate(
    ...     rv.domains.complex_mdp(), rv.grid(rv.Direct, rv.VTD, alpha=[0.01, 0.1]), steps=100,
    ...     runs=20, seed=0, record=rv.Record(at=[100], rmse=True), keep="runs")
    >>> print(rv.sweep.compare(runs).summary().splitlines()[0])
    Variance RMSE at step 100: 1 domain, 20 runs (10 select settings, 10 judge them)
    """

    data: xarray.Dataset

    def summary(self, domains: bool = False) -> str:
        """A table as text; with `domains`, also domain by domain."""
        return comparison_table(self.data, arguments.flag("domains", domains))

    def __str__(self) -> str:
        return self.summary()

    def _html(self) -> str:
        return preformatted(self.summary())


def compare(
    data: xarray.Dataset,
    by: str = "algorithm",
    options: ComparisonOptions | None = None,
    *,
    questions: Sequence[str] | None = None,
    **keywords: Any,
) -> Comparison:
    """Compare methods pair by pair, on each domain and over all domains, paired by run.

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
        :class:`ComparisonOptions`; its fields (``what``, ``at``, ``where``, ``over``, ``level``,
        ``resamples``, ``seed``) may also be given as keywords.
    questions
        Settings that define what is estimated, not how: methods are compared separately for each of
        their values. Default: ``gamma``, ``lam`` and ``estimand``.

    Returns
    -------
    Comparison
        ``ratio`` with ``low`` and ``high``, ``better`` (the share of runs in which a has the
        smaller error), ``p`` (Wilcoxon's signed ranks), ``p_holm`` (adjusted by Holm's method among
        the rows over all domains, and among those of single domains), ``winner`` (if ``p_holm`` is
        below 1 − level and 1 is outside the interval), the shares of runs that diverged, and the
        selected settings; ``least_p``, the smallest possible ``p_holm``: if it is above 1 − level,
        there can be no winner, and the summary says so.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = rv.grid(rv.Direct, rv.VTD, alpha=[0.01, 0.1], alpha_bar=[0.01, 0.1])
    >>> record = rv.Record(at=[1_000], rmse=True)
    >>> mdp = rv.domains.complex_mdp()
    >>> runs = rv.simulate(
    ...     mdp, learners, steps=1_000, runs=20, seed=0, record=record, keep="runs")
    >>> found = compare(runs)
    >>> found.data.pair.values.tolist()
    ['Direct / VTD']
    >>> print(found.summary().splitlines()[0])
    Variance RMSE at step 1,000: 1 domain, 20 runs (10 select settings, 10 judge them)
    """
    options = ComparisonOptions.of(options, **keywords)
    errors = errors_of(data, options)
    options = options.resolve(len(errors.domains))
    groups = errors.questions(questions)
    pairs = list(combinations(errors.methods(by), 2))
    if not pairs:
        raise InputError("by", by, "has one value, and nothing to compare it with")
    unmatched = _unmatched(errors, by, groups, pairs)
    selections = SETTINGS[:1] if unmatched else SETTINGS
    rows = [_row(errors, by, members, a, b, selection) for members in groups.values()
            for selection in selections for a, b in pairs]  # fmt: skip
    shape = (len(groups), len(selections), len(pairs))
    logs = np.array([row.logs for row in rows])
    columns = _effects(logs, options)
    for name in ("diverged_a", "diverged_b", "setting_a", "setting_b"):
        columns[name] = np.array([getattr(row, name) for row in rows])
    coords = {
        "question": list(groups),
        "settings": list(selections),
        "pair": [f"{a} / {b}" for a, b in pairs],
        "domain": [*errors.domains, ALL],
    }
    columns["winner"] = _winners(columns, pairs, options.level)
    least_p = _least_p(len(rows), len(errors.domains), logs.shape[-1], options)
    attributes = {
        "by": by, "what": options.what, "at": errors.moment, "level": options.level,
        "over": options.over, "runs": errors.values.shape[-1], "judging": logs.shape[-1],
        "unmatched": unmatched,
    }  # fmt: skip
    found = _dataset(columns, shape, coords, attributes)
    return Comparison(found.assign(least_p=("domain", least_p)))


@dataclass(frozen=True, eq=False)
class _Row:
    """One pair of methods at settings that were selected in one way."""

    logs: Array  # of the ratio of errors [domain, judging run]
    diverged_a: Array  # shares of runs, for each domain and for all
    diverged_b: Array
    setting_a: list[str]
    setting_b: list[str]


def _unmatched(
    errors: RunErrors, by: str, groups: dict[str, Indices], pairs: list[tuple[str, str]]
) -> str:
    """Why methods cannot be compared at the same settings; empty if they can."""
    for members in groups.values():
        for a, b in pairs:
            left, right = _sides(errors, by, members, a, b)
            keys = _keys(errors, by, left, right)
            if not set(keys[0]) & set(keys[1]):
                return f"{a} and {b} have no setting in common"
            if len(keys[0]) < left.size or len(keys[1]) < right.size:
                return f"{a} and {b} have learners that differ in a setting of only one method"
    return ""


def _sides(errors: RunErrors, by: str, members: Indices, a: str, b: str) -> tuple[Indices, Indices]:
    """Learners of two methods among those of a question."""
    methods = errors.methods(by)
    left, right = (np.intersect1d(methods[name], members) for name in (a, b))
    if not left.size or not right.size:
        missing = b if left.size else a
        raise InputError(
            "data", f"no {missing}", "every method must have learners for each question"
        )
    return left, right


def _row(errors: RunErrors, by: str, members: Indices, a: str, b: str, selection: str) -> _Row:
    left, right = _sides(errors, by, members, a, b)
    if selection == "best":
        left, right = errors.best(left)[:, None], errors.best(right)[:, None]
    else:
        left, right = _matched(errors, by, left, right)
        if selection == "shared":
            left, right = _shared(errors, left, right)
        else:
            left, right = (np.tile(x, (len(errors.domains), 1)) for x in (left, right))
    here = np.arange(len(errors.domains))[:, None]
    judged = errors.values[:, :, errors.halves()[1]]
    one, other = judged[here, left], judged[here, right]  # [domain, setting, run]
    names = [[errors.learners[x[0]] if x.size == 1 else "" for x in side] + [""]
             for side in (left, right)]  # fmt: skip
    diverged_a, diverged_b = (_with_all(np.isinf(x).mean(axis=(1, 2))) for x in (one, other))
    return _Row(_median(log_ratio(one, other)), diverged_a, diverged_b, *names)


def _matched(errors: RunErrors, by: str, left: Indices, right: Indices) -> tuple[Indices, Indices]:
    """Learners of both methods with the same settings."""
    keys = _keys(errors, by, left, right)
    both = [key for key in keys[0] if key in keys[1]]
    return np.array([keys[0][key] for key in both]), np.array([keys[1][key] for key in both])


def _keys(errors: RunErrors, by: str, *sides: Indices) -> list[dict[tuple[Any, ...], int]]:
    """Learners by the values of the settings that both methods have."""
    names = [name for name in errors.settings if name != by]
    common = [name for name in names if all(_has(errors, name, side) for side in sides)]
    return [{tuple(errors.column(n)[k] for n in common): int(k) for k in side}
            for side in sides]  # fmt: skip


def _has(errors: RunErrors, name: str, members: Indices) -> bool:
    """Whether any of these learners sets a setting."""
    column = errors.column(name)
    return any(column[k] is not None for k in members)


def _shared(errors: RunErrors, left: Indices, right: Indices) -> tuple[Indices, Indices]:
    """For each domain the settings at which the larger of two errors is least."""
    selecting = errors.values[:, :, errors.halves()[0]]
    larger = np.maximum(centre(selecting[:, left]), centre(selecting[:, right]))
    best = np.argmin(larger, axis=1)
    return left[best][:, None], right[best][:, None]


def _median(logs: Array) -> Array:
    """The median over settings [domain, setting, run] → [domain, run]; 0 for −∞ and ∞."""
    ordered = np.sort(logs, axis=1)
    n = logs.shape[1]
    with np.errstate(invalid="ignore"):
        found = (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2
    return np.where(np.isnan(found), 0.0, found)


def _wins(gaps: Array) -> Array:
    """1 where a has the smaller error, ½ where both are equal."""
    return np.asarray((gaps < 0) + 0.5 * (gaps == 0))


def _effects(logs: Array, options: ComparisonOptions) -> dict[str, Array]:
    """Effects [row, domain and all] from logarithms of ratios [row, domain, run]."""
    each = options.interval(logs, centre)
    whole = overall_interval(logs, options)
    ends = {name: np.exp(np.concatenate([x, y[:, None]], axis=1))
            for name, x, y in zip(("low", "ratio", "high"), each, whole, strict=True)}  # fmt: skip
    p_each = np.array([[signed_rank(runs) for runs in row] for row in logs])
    units = centre(logs) if options.over == "domains" else logs
    p_all = np.array([signed_rank(row) for row in units])
    return {
        **ends,
        "better": np.array([_with_all(row.mean(axis=-1)) for row in _wins(logs)]),
        "p": np.column_stack([p_each, p_all]),
        "p_holm": np.column_stack([holm(p_each), holm(p_all)]),
    }


def _least_p(rows: int, domains: int, runs: int, options: ComparisonOptions) -> Array:
    """The least possible p-value after Holm's correction, of each domain and of all.

    >>> _least_p(3, 2, 5, ComparisonOptions(over="runs")).tolist()
    [0.375, 0.375, 0.005859375]
    """
    signs = domains * (1 if options.over == "domains" else runs)  # all of which agree
    each = rows * domains * 0.5 ** (runs - 1)
    return np.array([each] * domains + [rows * 0.5 ** (signs - 1)])


def _with_all(shares: Array) -> Array:
    return np.append(shares, shares.mean())


def _winners(columns: dict[str, Array], pairs: list[tuple[str, str]], level: float) -> Any:
    """The better method where test and interval agree, otherwise an empty text."""
    names = np.tile(np.array(pairs, dtype=object), (len(columns["p"]) // len(pairs), 1))
    significant = columns["p_holm"] < 1 - level
    found = np.where(columns["high"] < 1, names[:, :1], "")
    found = np.where(columns["low"] > 1, names[:, 1:], found)
    return np.where(significant, found, "").astype(str)


def _dataset(
    columns: dict[str, Any], shape: tuple[int, ...], coords: dict[str, list[str]], attributes: Any
) -> xarray.Dataset:
    import xarray

    dims = tuple(coords)
    full = {name: (dims, x.reshape(*shape, x.shape[-1])) for name, x in columns.items()}
    return xarray.Dataset(full, coords, attributes)


def _index(errors: RunErrors, field: str, label: str) -> int:
    if not isinstance(label, str) or label not in errors.learners:
        raise InputError(field, label, f"is none of the learners: {listed(errors.learners)}")
    return errors.learners.index(label)
