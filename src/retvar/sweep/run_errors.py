"""What a sweep collected, as comparisons and figures take it: errors by domain, learner and run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.format import listed
from retvar.sweep.statistics import Interval, bootstrap_interval, interquartile_mean

if TYPE_CHECKING:
    import xarray

__all__ = ["Finished", "finished"]

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
ASKED = ("gamma", "lam", "estimand")  # settings that say what is asked, not how it is learned
OF_DOMAINS = ("gamma", "lam")  # where a learner has none of its own
NOT_SETTINGS = ("learner", "settings")
EQUAL = 1e-9  # relative; with equal step sizes direct and centred are one method but for rounding
DIGITS = 12  # of settings that count
NEAR = 1e-6  # relative; a value that people write may be rounded
MANY = 10  # domains from which one may generalise to others


@dataclass(frozen=True, eq=False)
class Errors:
    """Errors at one moment [domain, learner, run]; infinite where a run has diverged."""

    values: Array
    domains: list[str]
    learners: list[str]
    settings: dict[str, list[Any]]  #: those of each learner, by name
    moment: str

    def asked(self, names: Sequence[str] | None = None) -> dict[str, Indices]:
        """Learners by what they are asked, so that their errors can be compared."""
        taken = [name for name in ASKED if name in self.settings] if names is None else names
        varying = [name for name in taken if len(set(self.column(name))) > 1]
        return self.groups(varying)

    def groups(self, names: Sequence[str]) -> dict[str, Indices]:
        """Learners by what these settings are, in words; in their order."""
        columns = [self.column(name) for name in names]
        texts = [told(name, column) for name, column in zip(names, columns, strict=True)]
        found: dict[tuple[Any, ...], list[int]] = {}
        for k in range(len(self.learners)):
            found.setdefault(tuple(column[k] for column in columns), []).append(k)

        def words(key: tuple[Any, ...]) -> str:
            parts = zip(names, texts, key, strict=True)
            return ", ".join(f"{name} = {text[x]}" for name, text, x in parts)

        return {words(key): np.array(members) for key, members in found.items()}

    def column(self, name: str) -> list[Any]:
        """A setting of every learner; None where it has none of its own."""
        return column_of(self.settings, name)

    def methods(self, by: str) -> dict[str, Indices]:
        """Learners by method, in order of appearance."""
        column = self.column(by)
        return {
            text: np.array([k for k, x in enumerate(column) if x == value])
            for value, text in told(by, column).items()
        }

    def halves(self) -> tuple[slice, slice]:
        """Runs that choose settings, and those that judge what was chosen."""
        return slice(0, None, 2), slice(1, None, 2)

    def best(self, members: Indices) -> Indices:
        """By domain, which of these learners errs least in the choosing runs."""
        chosen = interquartile_mean(self.values[:, members, self.halves()[0]], axis=-1)
        return np.asarray(members[np.argmin(chosen, axis=1)])


def errors_of(
    data: xarray.Dataset, what: str, at: int, where: Mapping[str, Any] | None = None
) -> Errors:
    """Take the errors at a moment out of what was collected, or out of a simulation's runs."""
    table = _table(data, what)
    if table.sizes["run"] < 4:
        remedy = "must be at least 4: half of them choose settings, half judge them"
        raise InputError("data, runs", table.sizes["run"], remedy)
    table, moment = _at(table, at)
    settings = _settings(data)
    keep = _chosen(settings, data.sizes["learner"], where or {})
    values = _numbers(table, keep)
    missing = int(_missing(data, values, keep).sum())
    if missing:
        remedy = "finish the sweep, or take what is there: see retvar.sweep.finished"
        raise InputError(f"data.{what}", f"missing in {missing:,} runs", remedy)
    values[np.isnan(values)] = np.inf
    names = [str(x) for x in data.learner.values[keep]]
    settings = {name: [column[k] for k in keep] for name, column in settings.items()}
    return Errors(values, [str(x) for x in table.domain.values], names, settings, moment)


class Finished(NamedTuple):
    """What is complete of a sweep, and the labels of what was left out.

    >>> Finished(None, ["chain"], []).domains
    ['chain']
    """

    data: Any
    domains: list[str]
    learners: list[str]


def finished(
    data: xarray.Dataset, what: str = "variance_rmse", where: Mapping[str, Any] | None = None
) -> Finished:
    """Leave out what is not finished of a sweep that was collected in part.

    Domains and learners of which nothing is there go; then the domains of which a part is missing,
    or the learners, if that keeps more.

    Parameters
    ----------
    data
        What :func:`collect` gave with ``partial=True``.
    what
        The error that is needed.
    where
        Only learners with these settings are needed, as in :func:`compare`.

    Returns
    -------
    Finished
        ``data``, and labels of the ``domains`` and ``learners`` that were left out.

    Examples
    --------
    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners, Store, Sweep, collect, run
    >>> sweep = Sweep(runs=4, steps=9, domains=[Domain(id="chain"), Domain(id="complex-mdp")],
    ...               learners=[Learners(method=["direct", "vtd"], alpha=0.1)])
    >>> out = tempfile.mkdtemp()
    >>> _ = run(sweep, out)
    >>> store = Store.opened(out)
    >>> store.path(store.plan.cells[0]).unlink()
    >>> finished(collect(store, partial=True)).domains
    ['chain']
    """
    table = _at(_table(data, what), -1)[0]
    keep = _chosen(_settings(data), data.sizes["learner"], where or {})
    gone: Any = _missing(data, _numbers(table, keep), keep).any(axis=-1)
    domains = gone.all(axis=1)
    learners = gone[~domains].all(axis=0)
    part = gone & ~domains[:, None] & ~learners
    some = part.any(axis=1), part.any(axis=0)
    size = int((~domains).sum()), int((~learners).sum())
    left = (size[0] - int(some[0].sum())) * size[1], size[0] * (size[1] - int(some[1].sum()))
    if left[0] >= left[1]:
        domains = domains | some[0]
    else:
        learners = learners | some[1]
    if domains.all() or learners.all():
        raise InputError("data", "nothing finished", "run the sweep on")
    out = keep[learners]
    rest = np.setdiff1d(np.arange(data.sizes["learner"]), out)
    found = data.isel(learner=rest)
    if "domain" in data.dims:
        found = found.isel(domain=np.flatnonzero(~domains))
    names = [str(x) for x in table.domain.values[domains]]
    return Finished(found, names, [str(x) for x in data.learner.values[out]])


def _table(data: xarray.Dataset, what: str) -> xarray.DataArray:
    """An error of every run, by domain."""
    if not hasattr(data, "data_vars"):
        raise InputError("data", type(data).__name__, "must be a dataset, as retvar sweep collects")
    if what not in data:
        raise InputError("what", what, "is not in the data; record it: see retvar.Record")
    table = data[what]
    for dim in ("learner", "run"):
        if dim not in table.dims:
            remedy = "is no dimension of the data; simulate with keep='runs'"
            raise InputError(f"data.{what}", dim, remedy)
    if "domain" not in table.dims:
        table = table.expand_dims(domain=[str(data.attrs.get("mdp", "domain"))])
    return table


def _numbers(table: xarray.DataArray, keep: Indices) -> Array:
    return np.array(table.isel(learner=keep).transpose("domain", "learner", "run"), dtype=float)


def _settings(data: xarray.Dataset) -> dict[str, list[Any]]:
    """Of each learner, by name; numbers as they are compared."""
    return {
        str(name): [_exact(x) for x in column.values.tolist()]
        for name, column in data.coords.items()
        if column.dims == ("learner",) and name not in NOT_SETTINGS
    }


def _chosen(settings: dict[str, list[Any]], count: int, where: Mapping[str, Any]) -> Indices:
    """Which learners have these settings; of several values of one, any."""
    keep = np.ones(count, dtype=bool)
    for name, given in where.items():
        wanted = _several(given)
        if not wanted:
            raise InputError(f"where[{name!r}]", given, "must have a value")
        column = column_of(settings, name)
        keep &= np.any([_hits(name, column, value) for value in wanted], axis=0)
    if not keep.any():
        raise InputError("where", dict(where), "no learner has all of these settings")
    return np.flatnonzero(keep)


def column_of(settings: dict[str, list[Any]], name: str) -> list[Any]:
    """A setting of every learner."""
    if name not in settings:
        known = listed(settings, most=12)
        raise InputError("setting", name, f"is none of this dataset's, which are {known}")
    return settings[name]


def _at(table: xarray.DataArray, at: Any) -> tuple[xarray.DataArray, str]:
    """The table at a moment, and the moment in words."""
    unit = next((dim for dim in ("step", "episode") if dim in table.dims), None)
    if unit is None:
        return table, "the end"
    moment = recorded(table[unit].values, unit, at)
    return table.sel({unit: moment}), f"{unit} {moment:,}"


def recorded(moments: Any, unit: str, at: Any) -> int:
    """The moment that is asked for: −1 is the end.

    >>> recorded(np.array([10, 20]), "step", -1)
    20
    """
    if not isinstance(at, int | np.integer) or isinstance(at, bool):
        raise InputError("at", repr(at), f"must be −1 (the end) or a {unit} that was recorded")
    if at < 0 and -at <= moments.size:
        at = moments[at]
    if at not in moments:
        raise InputError("at", at, f"was not recorded; {unit}s are {listed(moments, most=12)}")
    return int(at)


def _missing(data: xarray.Dataset, values: Array, keep: Indices) -> NDArray[np.bool_]:
    """What was not computed: a missing error is no divergence, so NaN in runs without one."""
    died = data.diverged if "diverged" in data and "run" in data.diverged.dims else None
    if died is None and "diverged_by" in data and "run" in data.diverged_by.dims:
        died = data.diverged_by.notnull()
    if died is None:
        return np.zeros(values.shape, dtype=bool)
    if "domain" not in died.dims:
        died = died.expand_dims(domain=values.shape[0])
    known = died.isel(learner=keep).transpose("domain", "learner", "run").values.astype(bool)
    return np.asarray(np.isnan(values) & ~known)


def log_ratio(a: Array, b: Array) -> Array:
    """How many times as large a's errors are, as logarithms; equal ones, also infinite, give 0.

    >>> log_ratio(np.array([1.0, np.inf, np.inf]), np.array([1.0, 1.0, np.inf])).tolist()
    [0.0, inf, 0.0]
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(_equal(a, b), 0.0, np.log(a) - np.log(b))


def difference(a: Array, b: Array) -> Array:
    """How much larger a's errors are; equal ones, also infinite, give 0."""
    with np.errstate(invalid="ignore"):
        return np.where(_equal(a, b), 0.0, a - b)


def _equal(a: Array, b: Array) -> NDArray[np.bool_]:
    """Whether errors are the same save for rounding, which would otherwise win or lose runs."""
    return np.isclose(a, b, rtol=EQUAL, atol=0.0)


def centre(x: Array, axis: Any = -1) -> Array:
    """The interquartile mean, over runs and then over domains; 0 where infinities face each other.

    >>> centre(np.array([-np.inf, np.inf])).item()
    0.0
    """
    for _ in np.atleast_1d(axis):  # the last axis, or the last two
        found = np.asarray(interquartile_mean(x, axis=-1))
        x = np.where(np.isnan(found), 0.0, found)
    return x


def over_domains(x: Array, over: str, level: float, resamples: int, seed: int) -> Interval:
    """Interval of the centre of [..., domain, run]: for these domains, or for such domains."""
    if over == "domains":
        return bootstrap_interval(centre(x), centre, level, resamples, seed)
    return bootstrap_interval(x, centre, level, resamples, seed, stratified=True)


def contenders(
    errors: Array, over: str, split: bool, level: float, resamples: int, seed: int
) -> NDArray[np.bool_]:
    """Which settings [setting, domain, run] are not surely worse than the best of them.

    One half of the runs (of the domains, if it is for such domains) says which seems the best; the
    other half says which are worse than that one. So the truly best is left out only if the
    interval of its ratio is wholly above 1, though in truth it is at most 1. With `split`, the
    runs of even number have chosen other settings before, and judge nothing.

    >>> errors = np.array([1.0, 1.0, 2.0])[:, None, None] * np.ones((1, 8))
    >>> contenders(errors, "runs", False, 0.95, 100, 0).tolist()
    [True, True, False]
    """
    if over == "runs":
        choosing, judging = errors[..., ::2], errors[..., 1::2]
    elif errors.shape[1] < 4:
        raise InputError("over", "'domains'", "needs at least 4 of them here; say 'runs'")
    else:
        runs = errors[..., 1::2] if split else errors
        choosing, judging = runs[:, ::2], runs[:, 1::2]
    with np.errstate(divide="ignore"):
        first = int(np.argmin(centre(np.log(choosing), (-2, -1))))
    gaps = log_ratio(judging, judging[first])
    return np.asarray(over_domains(gaps, over, level, resamples, seed).low <= 0)


def over_what(over: str | None, domains: int) -> str:
    """What intervals generalise over: ``"domains"`` from ten of them, otherwise ``"runs"``."""
    if over is None:
        return "domains" if domains >= MANY else "runs"
    if over not in ("runs", "domains"):
        raise InputError("over", repr(over), "must be 'runs' or 'domains'")
    if over == "domains" and domains < 2:
        raise InputError("over", "'domains'", "there is one domain; say 'runs'")
    return over


def told(name: str, column: Iterable[Any]) -> dict[Any, str]:
    """The values of a setting in words: numbers in the fewest digits that tell them apart.

    >>> told("lam", [0.9997, 1.0, 0.123456]), told("lam", [None, 0.123456])
    ({0.9997: '0.9997', 1.0: '1', 0.123456: '0.1235'}, {None: "the domain's", 0.123456: '0.123'})
    """
    values = list(dict.fromkeys(column))
    digits = digits_of([x for x in values if isinstance(x, float)])
    own = "the domain's" if name in OF_DOMAINS else "not set"
    return {x: f"{x:.{digits}g}" if isinstance(x, float) else own if x is None else str(x)
            for x in values}  # fmt: skip


def digits_of(values: Iterable[float]) -> int:
    """How many digits, three or more, tell all these numbers apart.

    >>> digits_of([0.01, 0.0316, 0.1]), digits_of([0.9997, 1.0])
    (3, 4)
    """
    distinct = set(values)
    enough = (d for d in range(3, 18) if len({f"{x:.{d}g}" for x in distinct}) == len(distinct))
    return next(enough, 17)


def _exact(x: Any) -> Any:
    """A setting as it is compared: NaN is none, and numbers that differ by rounding are one."""
    if not isinstance(x, float):
        return x
    return None if x != x else float(f"{x:.{DIGITS}g}")


def _several(given: Any) -> list[Any]:
    """The values that one setting may have."""
    return [*given] if isinstance(given, list | tuple | set | np.ndarray) else [given]


def _hits(name: str, column: list[Any], given: Any) -> NDArray[np.bool_]:
    """Which learners have a value: exactly, or otherwise to six digits, as people write it."""
    texts = told(name, column)
    value = _exact(float(given)) if _is_number(given) else given
    words = str(value)
    hit = np.array([x == value or (not isinstance(x, float) and texts[x] == words) for x in column])
    if not hit.any() and isinstance(value, float):
        hit = np.array([isinstance(x, float) and bool(np.isclose(x, value, rtol=NEAR, atol=0.0))
                        for x in column])  # fmt: skip
    if not hit.any():
        known = listed(texts.values(), most=12)
        raise InputError(f"where[{name!r}]", given, f"is not there; there are {known}")
    return hit


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int | np.number) and not isinstance(value, bool)
