"""Which method is better where, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar.errors import InputError
from retvar.format import listed
from retvar.sweep import run_errors as c
from retvar.sweep.format import table_of
from retvar.sweep.run_errors import Array, Errors, Indices
from retvar.sweep.statistics import bootstrap_interval, holm, signed_rank, unit_level

if TYPE_CHECKING:
    import xarray

__all__ = ["Comparison", "compare", "paired_difference"]

SETTINGS = ("best", "shared", "typical")
ALL = "all"


def paired_difference(
    data: xarray.Dataset,
    a: str,
    b: str,
    what: str = "variance_rmse",
    at: int = -1,
    *,
    relative: bool = False,
    level: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> xarray.Dataset:
    """How much larger the error of one learner is than that of another, on common streams.

    Differences are taken run by run, so that what both owe to the stream falls out. A run in which
    one diverged is an infinite difference, one in which both did is none: the interquartile mean
    stays finite up to a quarter of such runs.

    Parameters
    ----------
    data
        What a sweep collected, or a simulation with ``keep="runs"``.
    a, b
        Labels of two learners.
    what, at
        Which error, and when: −1 is the end, otherwise a step or episode that was recorded.
    relative
        Tell how many times b's error a's is, in place of a difference.
    level, resamples, seed
        Of the intervals; see :func:`bootstrap_interval`.

    Returns
    -------
    xarray.Dataset
        By domain: ``difference`` (or ``ratio``) with ``low`` and ``high``; ``better``, the share of
        runs in which a errs less (equal ones count half); ``p`` of :func:`signed_rank`;
        ``diverged_a`` and ``diverged_b``, how many runs did.

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

    errors = c.errors_of(data, what, at)
    left, right = (errors.values[:, _index(errors, name, label)] for name, label in
                   (("a", a), ("b", b)))  # fmt: skip
    gaps = (c.log_ratio if relative else c.difference)(left, right)
    low, middle, high = bootstrap_interval(gaps, c.centre, level, resamples, seed)
    ends = [np.exp(x) if relative else x for x in (middle, low, high)]
    names = ("ratio" if relative else "difference", "low", "high")
    columns = dict(zip(names, ends, strict=True))
    columns["better"] = _won(gaps).mean(axis=-1)
    columns["p"] = np.array([signed_rank(row) for row in gaps])
    columns |= {f"diverged_{k}": np.isinf(x).sum(-1) for k, x in (("a", left), ("b", right))}
    told = {"a": a, "b": b, "what": what, "at": errors.moment, "level": level}
    return xarray.Dataset(
        {name: ("domain", column) for name, column in columns.items()},
        {"domain": errors.domains},
        told,
    )


@dataclass(frozen=True, eq=False)
class Comparison:
    """What :func:`compare` found; ``print(comparison.summary())`` tells it.

    ``data`` has a row for each question (λ, say), way of choosing settings (``best``, ``shared``,
    ``typical``), pair of methods and domain, and ``all`` over domains.

    >>> import retvar as rv
    >>> runs = rv.simulate(
    ...     rv.domains.complex_mdp(), rv.grid(rv.Direct, rv.VTD, alpha=[0.01, 0.1]), steps=100,
    ...     runs=20, seed=0, record=rv.Record(at=[100], rmse=True), keep="runs")
    >>> print(rv.sweep.compare(runs).summary().splitlines()[0])
    Variance RMSE at step 100: 1 domain, 20 runs (10 choose settings, 10 judge them)
    """

    data: xarray.Dataset

    def summary(self, domains: bool = False) -> str:
        """Say it as a table; with `domains`, also domain by domain."""
        return table_of(self.data, domains)

    def __str__(self) -> str:
        return self.summary()


def compare(
    data: xarray.Dataset,
    by: str = "algorithm",
    at: int = -1,
    *,
    what: str = "variance_rmse",
    where: Mapping[str, Any] | None = None,
    asked: Sequence[str] | None = None,
    over: str | None = None,
    level: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> Comparison:
    """Compare methods pair by pair, on every domain and over all, run by run on common streams.

    Three comparisons: each method at its ``best`` settings on the domain; both at the same
    settings, those ``shared`` ones at which the larger of their errors is least; and ``typical``,
    the median over all settings that both have. Where methods cannot be matched like that, there is
    the first alone. Settings are chosen by the runs of even number and
    judged by those of odd number, so that choosing does not flatter.

    The effect is the ratio of errors, a's over b's: the interquartile mean of its logarithm over
    runs, and over domains the interquartile mean of theirs. A run that diverged is worse than all
    that did not, and equal to others that did; such runs are also counted. Errors that differ by
    less than 1e-9 of their size are equal.

    Parameters
    ----------
    data
        What a sweep collected, or a simulation with ``keep="runs"``.
    by
        The setting that is compared.
    at, what
        When (−1 is the end, otherwise a step or episode that was recorded), and which error.
    where
        Settings to hold fixed, like ``{"alpha": 0.1}`` where the value's learner is given; of a
        list of values, any.
    asked
        Settings that say what is asked, not how it is learned: methods are compared for each of
        their values. Default: ``gamma``, ``lam`` and ``estimand``.
    over
        What the intervals over all domains speak of: ``"runs"``, more runs on these domains, or
        ``"domains"``, more domains like these. Default: domains if there are at least ten.
    level, resamples, seed
        Of the intervals; see :func:`bootstrap_interval`.

    Returns
    -------
    Comparison
        ``ratio`` with ``low`` and ``high``, ``better`` (the share of runs in which a errs less),
        ``p`` (Wilcoxon's signed ranks), ``p_holm`` (corrected for the number of rows: of those over
        all domains, and of those of single domains), ``winner`` (where ``p_holm`` is below 1 −
        level and the interval does not hold 1), shares that diverged, and the settings chosen;
        ``least_p``, what ``p_holm`` would be were a better in every run, in all rows: where even
        that is above 1 − level, nobody can win, and the text says so.

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
    Variance RMSE at step 1,000: 1 domain, 20 runs (10 choose settings, 10 judge them)
    """
    unit_level("level", level)
    errors = c.errors_of(data, what, at, where)
    over = c.over_what(over, len(errors.domains))
    questions = errors.asked(asked)
    pairs = list(combinations(errors.methods(by), 2))
    if not pairs:
        remedy = "there is one of it, and nothing to compare it with"
        raise InputError("by", by, remedy)
    refused = _unmatched(errors, by, questions, pairs)
    ways = SETTINGS[:1] if refused else SETTINGS
    rows = [_row(errors, by, members, a, b, how) for members in questions.values()
            for how in ways for a, b in pairs]  # fmt: skip
    shape = (len(questions), len(ways), len(pairs))
    logs = np.array([row.logs for row in rows])
    columns = _judged(logs, over, level, resamples, seed)
    for name in ("diverged_a", "diverged_b", "setting_a", "setting_b"):
        columns[name] = np.array([getattr(row, name) for row in rows])
    coords = {
        "question": list(questions),
        "settings": list(ways),
        "pair": [f"{a} / {b}" for a, b in pairs],
        "domain": [*errors.domains, ALL],
    }
    columns["winner"] = _winners(columns, pairs, level)
    least = _least(len(rows), errors.domains, logs.shape[-1], over)
    runs = {"runs": errors.values.shape[-1], "judging": logs.shape[-1]}
    told = {"by": by, "what": what, "at": errors.moment, "level": level, "over": over, **runs}
    told["unmatched"] = refused
    return Comparison(_dataset(columns, shape, coords, told).assign(least_p=("domain", least)))


@dataclass(frozen=True, eq=False)
class _Row:
    """One pair, at settings chosen in one way: what the judging runs say [domain, run]."""

    logs: Array
    diverged_a: Array  # shares, with that of all domains last
    diverged_b: Array
    setting_a: list[str]
    setting_b: list[str]


def _unmatched(
    errors: Errors, by: str, questions: dict[str, Indices], pairs: list[tuple[str, str]]
) -> str:
    """Why methods cannot be compared at the same settings; empty where they can."""
    for members in questions.values():
        for a, b in pairs:
            left, right = _sides(errors, by, members, a, b)
            keys = _keys(errors, by, left, right)
            if not set(keys[0]) & set(keys[1]):
                return f"{a} and {b} have no setting in common"
            if len(keys[0]) < left.size or len(keys[1]) < right.size:
                return f"{a} and {b} have learners that differ in what only one of them has"
    return ""


def _sides(errors: Errors, by: str, members: Indices, a: str, b: str) -> tuple[Indices, Indices]:
    """Learners of two methods that answer a question."""
    methods = errors.methods(by)
    left, right = (np.intersect1d(methods[name], members) for name in (a, b))
    if not left.size or not right.size:
        raise InputError("data", f"no {b if left.size else a}", "must answer every question asked")
    return left, right


def _row(errors: Errors, by: str, members: Indices, a: str, b: str, how: str) -> _Row:
    left, right = _sides(errors, by, members, a, b)
    if how == "best":
        left, right = errors.best(left)[:, None], errors.best(right)[:, None]
    else:
        left, right = _matched(errors, by, left, right)
        if how == "shared":
            left, right = _shared(errors, left, right)
        else:
            left, right = (np.tile(x, (len(errors.domains), 1)) for x in (left, right))
    here = np.arange(len(errors.domains))[:, None]
    judged = errors.values[:, :, errors.halves()[1]]
    one, other = judged[here, left], judged[here, right]  # [domain, setting, run]
    names = [[errors.learners[x[0]] if x.size == 1 else "" for x in side] + [""]
             for side in (left, right)]  # fmt: skip
    died = [_with_all(np.isinf(x).mean(axis=(1, 2))) for x in (one, other)]
    return _Row(_middle(c.log_ratio(one, other)), died[0], died[1], names[0], names[1])


def _matched(errors: Errors, by: str, left: Indices, right: Indices) -> tuple[Indices, Indices]:
    """Learners of both methods with the same settings."""
    keys = _keys(errors, by, left, right)
    both = [key for key in keys[0] if key in keys[1]]
    return np.array([keys[0][key] for key in both]), np.array([keys[1][key] for key in both])


def _keys(errors: Errors, by: str, *sides: Indices) -> list[dict[tuple[Any, ...], int]]:
    """Learners by those of their settings that all of these methods have."""
    names = [name for name in errors.settings if name != by]
    own = [name for name in names if all(_has(errors, name, side) for side in sides)]
    return [{tuple(errors.column(n)[k] for n in own): int(k) for k in side}
            for side in sides]  # fmt: skip


def _has(errors: Errors, name: str, members: Indices) -> bool:
    """Whether a setting is one of the method's: set by any of its learners."""
    column = errors.column(name)
    return any(column[k] is not None for k in members)


def _shared(errors: Errors, left: Indices, right: Indices) -> tuple[Indices, Indices]:
    """By domain, the setting at which the larger of two errors is least."""
    choosing = errors.values[:, :, errors.halves()[0]]
    worse = np.maximum(c.centre(choosing[:, left]), c.centre(choosing[:, right]))
    at = np.argmin(worse, axis=1)
    return left[at][:, None], right[at][:, None]


def _middle(logs: Array) -> Array:
    """The median over settings [domain, setting, run] → [domain, run]; opposite infinities tie."""
    ordered = np.sort(logs, axis=1)
    n = logs.shape[1]
    with np.errstate(invalid="ignore"):
        found = (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2
    return np.where(np.isnan(found), 0.0, found)


def _won(gaps: Array) -> Array:
    """1 where a errs less, a half where both err alike."""
    return np.asarray((gaps < 0) + 0.5 * (gaps == 0))


def _judged(logs: Array, over: str, level: float, resamples: int, seed: int) -> dict[str, Array]:
    """Effects [row, domain and all] of what the judging runs say [row, domain, run]."""
    each = bootstrap_interval(logs, c.centre, level, resamples, seed)
    whole = c.over_domains(logs, over, level, resamples, seed)
    ends = {name: np.exp(np.concatenate([x, y[:, None]], axis=1))
            for name, x, y in zip(("low", "ratio", "high"), each, whole, strict=True)}  # fmt: skip
    p_each = np.array([[signed_rank(runs) for runs in row] for row in logs])
    units = c.centre(logs) if over == "domains" else logs
    p_all = np.array([signed_rank(row) for row in units])
    return {
        **ends,
        "better": np.array([_with_all(row.mean(axis=-1)) for row in _won(logs)]),
        "p": np.column_stack([p_each, p_all]),
        "p_holm": np.column_stack([holm(p_each), holm(p_all)]),
    }


def _least(rows: int, domains: list[str], runs: int, over: str) -> Array:
    """The least p after Holm's correction that there can be, of each domain and of all.

    >>> _least(3, ["a", "b"], 5, "runs").tolist()
    [0.375, 0.375, 0.005859375]
    """
    signs = len(domains) * (1 if over == "domains" else runs)  # that all agree
    each = rows * len(domains) * 0.5 ** (runs - 1)
    return np.array([each] * len(domains) + [rows * 0.5 ** (signs - 1)])


def _with_all(shares: Array) -> Array:
    return np.append(shares, shares.mean())


def _winners(columns: dict[str, Array], pairs: list[tuple[str, str]], level: float) -> Any:
    """Who is surely better, or nobody: by the test, and by the interval, which must agree."""
    names = np.tile(np.array(pairs, dtype=object), (len(columns["p"]) // len(pairs), 1))
    sure = columns["p_holm"] < 1 - level
    found = np.where(columns["high"] < 1, names[:, :1], "")
    found = np.where(columns["low"] > 1, names[:, 1:], found)
    return np.where(sure, found, "").astype(str)


def _dataset(
    columns: dict[str, Any], shape: tuple[int, ...], coords: dict[str, list[str]], told: Any
) -> xarray.Dataset:
    import xarray

    dims = tuple(coords)
    full = {name: (dims, x.reshape(*shape, x.shape[-1])) for name, x in columns.items()}
    return xarray.Dataset(full, coords, told)


def _index(errors: Errors, field: str, label: str) -> int:
    if label not in errors.learners:
        raise InputError(field, label, f"is none of the learners: {listed(errors.learners)}")
    return errors.learners.index(label)
