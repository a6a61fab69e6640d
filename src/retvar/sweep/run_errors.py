"""Errors of a sweep at one moment, by domain, learner and run, for comparisons and figures."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import listed, literal
from retvar.sweep.statistics import Array, Interval, bootstrap_interval, centre, interquartile_mean
from retvar.td.networks import error_names

if TYPE_CHECKING:
    import xarray

Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]
MIN_DOMAINS = 10  # from which intervals generalise to other domains by default
QUESTION_SETTINGS = ("gamma", "lam", "estimand")  # they define what is estimated, not how
DOMAIN_SETTINGS = ("gamma", "lam")  # those of the domain, unless a learner sets them
DIGITS = 12  # to which settings are compared
SELECTING, JUDGING = slice(0, None, 2), slice(1, None, 2)  # even runs select settings


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """Which errors are compared, and how intervals are computed: keywords of :func:`compare`.

    Parameters
    ----------
    what
        Which error: ``"variance_rmse"``, ``"value_rmse"``, or that of a higher moment.
    at
        When: a step or episode that was recorded, or −1 for the last one.
    where
        Settings to hold fixed, such as ``{"alpha": 0.1}``; a list means any of its values.
    over
        Over what intervals generalise: ``"runs"``, more runs on these domains, or ``"domains"``,
        more domains like these. Default: domains if there are at least ten.
    level, resamples, seed
        Of the intervals; see :func:`bootstrap_interval`.

    Examples
    --------
    >>> ComparisonOptions(where={"lam": 0.9}, level=0.9).what
    'variance_rmse'
    """

    what: str = "variance_rmse"
    at: int = -1
    where: Mapping[str, Any] | None = None
    over: str | None = None
    level: float = 0.95
    resamples: int = 2_000
    seed: int = 0

    def __post_init__(self) -> None:
        arguments.level("level", self.level)
        arguments.integer("resamples", self.resamples, 100)
        arguments.integer("seed", self.seed, 0)
        if self.over is not None:
            arguments.choice("over", self.over, ("runs", "domains"))

    def replace(self, **keywords: Any) -> ComparisonOptions:
        """Options with some fields replaced."""
        known = [field.name for field in dataclasses.fields(self)]
        if unknown := set(keywords) - set(known):
            raise InputError("options", listed(unknown), f"unknown; they are {', '.join(known)}")
        return dataclasses.replace(self, **keywords)

    def resolve(self, domains: int) -> ComparisonOptions:
        """The options with the default of `over` for this number of domains."""
        if self.over == "domains" and domains < 2:
            raise InputError("over", "'domains'", "there is one domain; give 'runs'")
        over = self.over or ("domains" if domains >= MIN_DOMAINS else "runs")
        return dataclasses.replace(self, over=over)

    def interval(self, data: Array, *, stratified: bool = False) -> Interval:
        """The interval of the centre of [..., run], or of [..., domain, run]."""
        return bootstrap_interval(
            data, centre, self.level, self.resamples, self.seed, stratified=stratified
        )

    def overall_interval(self, data: Array) -> Interval:
        """The interval of the centre of [..., domain, run], over runs or over domains."""
        if self.over == "domains":
            return self.interval(centre(data))
        return self.interval(data, stratified=True)


@dataclass(frozen=True, eq=False)
class RunErrors:
    """Errors at one moment [domain, learner, run]; infinite where a run has diverged."""

    values: Array
    domains: list[str]
    learners: list[str]
    settings: dict[str, list[Any]]  #: by name, one value for each learner
    moment: str
    options: ComparisonOptions  #: with the default of ``over`` filled in

    def questions(self, axis: str = "") -> dict[str, Indices]:
        """Learners grouped by what they estimate; only errors within a group are comparable.

        The setting along the axis of a figure tells no groups apart.
        """
        parts = []  # of those that vary: a text for each learner
        for name in QUESTION_SETTINGS:
            column = self.settings.get(name, [])
            texts = setting_texts(name, column)
            if len(texts) > 1 and name != axis:
                parts.append([f"{name} = {texts[x]}" for x in column])
        return _groups(", ".join(part[k] for part in parts) for k in range(len(self.learners)))

    def column(self, name: str) -> list[Any]:
        """A setting of every learner; None where it is not set."""
        if not isinstance(name, str) or name not in self.settings:
            known = listed(self.settings, most=12)
            raise InputError("setting", name, f"is not in the data; settings are {known}")
        return self.settings[name]

    def select(self, where: Mapping[str, Any] | None) -> RunErrors:
        """The learners with these settings; a list means any of its values."""
        where = {} if where is None else where
        arguments.instance("where", where, Mapping, "a mapping from settings to values")
        selected = np.ones(len(self.learners), dtype=bool)
        for name, given in where.items():
            values = [*given] if isinstance(given, list | tuple | set | np.ndarray) else [given]
            column = self.column(name)
            if not values:
                raise InputError(f"where[{name!r}]", given, "must have a value")
            selected &= np.any([_matches(name, column, value) for value in values], axis=0)
        if not selected.any():
            raise InputError("where", dict(where), "no learner has all of these settings")
        kept = np.flatnonzero(selected)
        settings = {name: [column[k] for k in kept] for name, column in self.settings.items()}
        learners, errors = [self.learners[k] for k in kept], self.values[:, kept]
        return dataclasses.replace(self, values=errors, learners=learners, settings=settings)

    def numbers(self, name: str) -> list[float]:
        """The numbers that a setting takes, ascending."""
        found = sorted({float(x) for x in self.column(name) if isinstance(x, float | int)})
        if len(found) < 2:
            raise InputError(name, f"{len(found)} numbers", "must be a setting that was varied")
        return found

    def methods(self, by: str) -> dict[str, Indices]:
        """Learners grouped by the setting `by`, in order of appearance."""
        texts = setting_texts(by, column := self.column(by))
        return _groups(texts[x] for x in column)

    def by_number(self, members: Indices, name: str) -> dict[float, Indices]:
        """These learners by the number that a setting has, ascending."""
        column = np.array([x if isinstance(x, float | int) else np.nan for x in self.column(name)])
        own = column[members]
        return {float(x): members[own == x] for x in np.unique(own[np.isfinite(own)])}

    def best(self, members: Indices) -> Indices:
        """For each domain the learner with the least error in the selecting runs."""
        errors = interquartile_mean(self.values[:, members, SELECTING], axis=-1)
        return np.asarray(members[np.argmin(errors, axis=1)])

    def best_errors(self, members: Indices) -> Array:
        """Errors [domain, run] of the best of these learners."""
        chosen = members if members.size == 1 else self.best(members)
        return np.asarray(self.values[np.arange(len(self.domains)), chosen])

    def relative(self, axis: str = "") -> RunErrors:
        """With several domains, multiples of the best error of each domain and question."""
        values = self.values.copy()
        for own in self.questions(axis).values() if len(self.domains) > 1 else ():
            least = centre(values[:, own]).min(axis=1)
            if not np.isfinite(least).all() or not least.all():
                raise InputError("data", "a domain without a best", "every learner diverged there")
            values[:, own] /= least[:, None, None]
        return dataclasses.replace(self, values=values)


def _groups(labels: Iterable[str]) -> dict[str, Indices]:
    """The places of each label."""
    found = defaultdict[str, list[int]](list)
    for k, label in enumerate(labels):
        found[label].append(k)
    return {label: np.array(places) for label, places in found.items()}


def errors_of(data: xarray.Dataset, options: ComparisonOptions) -> RunErrors:
    """The errors of a collected sweep, or of a simulation's runs, at one moment."""
    table, moment = _table(data, options.what, options.at)
    if table.sizes["run"] < 4:
        remedy = "must be at least 4: half of them select settings, half judge them"
        raise InputError("data, runs", table.sizes["run"], remedy)
    domains, learners = ([str(x) for x in table[dim].values] for dim in ("domain", "learner"))
    values = np.where(np.isnan(table.values) & _diverged(data, table), np.inf, table.values)
    how = options.resolve(len(domains))
    every = RunErrors(values, domains, learners, _settings(data), moment, how)
    found = every.select(options.where)
    if missing := int(np.isnan(found.values).sum()):
        remedy = "finish the sweep, or choose what is finished: domains, or learners by where"
        if options.what not in error_names(2):
            remedy += "; learners of a lower order have none: choose others by where, as in order=4"
        raise InputError(f"data.{options.what}", f"missing in {missing:,} runs", remedy)
    return found


# ---------------------------------------------------------------------- out of a dataset


def _table(data: xarray.Dataset, what: str, at: int) -> tuple[xarray.DataArray, str]:
    """The errors [domain, learner, run] at a moment, and the moment as text."""
    if not hasattr(data, "data_vars"):
        raise InputError("data", type(data).__name__, "must be a dataset; see retvar.sweep.collect")
    if not isinstance(what, str) or what not in data:
        raise InputError("what", what, "is not in the data; record it: see retvar.Record")
    table, text = data[what], "the end"
    for dim in ("learner", "run"):
        if dim not in table.dims:
            remedy = "is no dimension of the data; simulate with keep='runs'"
            raise InputError(f"data.{what}", dim, remedy)
    for unit in {"step", "episode"} & set(table.dims):
        moment = recorded(table[unit].values, str(unit), at)
        table, text = table.sel({unit: moment}), f"{unit} {moment:,}"
    return _by_domain(table, str(data.attrs.get("mdp", "domain"))), text


def _by_domain(table: xarray.DataArray, name: str) -> xarray.DataArray:
    """A table [domain, learner, run]; the one domain of a simulation has this name."""
    table = table if "domain" in table.dims else table.expand_dims(domain=[name])
    return table.transpose("domain", "learner", "run")


def recorded(moments: Any, unit: str, at: Any) -> int:
    """The recorded moment `at`; −1 is the last."""
    if not arguments.is_integer(at):
        raise InputError("at", literal(at), f"must be −1 (the last) or a {unit} that was recorded")
    if at < 0 and -at <= moments.size:
        at = moments[at]
    if at not in moments:
        raise InputError("at", at, f"was not recorded; {unit}s are {listed(moments, most=12)}")
    return int(at)


def _diverged(data: xarray.Dataset, table: xarray.DataArray) -> Flags:
    """Which runs [domain, learner, run] diverged; if that was not recorded, all that have NaN."""
    found = data.diverged if "diverged" in data else data.get("diverged_by")
    if found is None or "run" not in found.dims:
        return np.ones(table.shape, dtype=bool)
    found = found.notnull() if found.name == "diverged_by" else found
    return np.asarray(_by_domain(found, "").values, dtype=bool)


# ---------------------------------------------------------------------- settings


def _settings(data: xarray.Dataset) -> dict[str, list[Any]]:
    """The settings of all learners, by name, ready to be compared."""
    return {
        str(name): [_comparable(x) for x in column.values.tolist()]
        for name, column in data.coords.items()
        if column.dims == ("learner",) and name not in ("learner", "settings")
    }


def _comparable(x: Any) -> Any:
    """A setting as it is compared: None for NaN, and numbers without rounding errors."""
    if not isinstance(x, float):
        return x
    return None if x != x else float(f"{x:.{DIGITS}g}")


def setting_texts(name: str, column: Iterable[Any]) -> dict[Any, str]:
    """The values of a setting as text; numbers have the fewest digits that distinguish them.

    >>> setting_texts("lam", [0.9997, 1.0, None])
    {0.9997: '0.9997', 1.0: '1', None: "the domain's"}
    """
    values = list(dict.fromkeys(column))
    reals = {x for x in values if isinstance(x, float)}
    digits = next(d for d in range(3, 18) if len({f"{x:.{d}g}" for x in reals}) == len(reals))
    unset = "the domain's" if name in DOMAIN_SETTINGS else "not set"
    return {x: f"{x:.{digits}g}" if isinstance(x, float) else unset if x is None else str(x)
            for x in values}  # fmt: skip


def _matches(name: str, column: list[Any], given: Any) -> Flags:
    """Which learners have a value."""
    texts = setting_texts(name, column)
    value = _comparable(float(given)) if arguments.is_real(given) else given
    found = [x == value or (not isinstance(x, float) and texts[x] == str(value)) for x in column]
    if not any(found):
        known = listed(texts.values(), most=12)
        raise InputError(f"where[{name!r}]", given, f"is not in the data; values are {known}")
    return np.array(found)
