"""Errors of a sweep at one moment, by domain, learner and run, for comparisons and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.format import listed, literal
from retvar.networks import error_names
from retvar.sweep.options import ComparisonOptions
from retvar.sweep.statistics import interquartile_mean

if TYPE_CHECKING:
    import xarray

__all__ = ["Finished", "RunErrors", "errors_of", "finished", "recorded"]

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
QUESTION_SETTINGS = ("gamma", "lam", "estimand")  # they define what is estimated, not how
DOMAIN_SETTINGS = ("gamma", "lam")  # those of the domain, unless a learner sets them
NOT_SETTINGS = ("learner", "settings")
DIGITS = 12  # to which settings are compared
NEAR = 1e-6  # relative; values in `where` may be rounded


@dataclass(frozen=True, eq=False)
class RunErrors:
    """Errors at one moment [domain, learner, run]; infinite where a run has diverged."""

    values: Array
    domains: list[str]
    learners: list[str]
    settings: dict[str, list[Any]]  #: by name, one value for each learner
    moment: str

    def questions(self, names: Sequence[str] | None = None) -> dict[str, Indices]:
        """Learners grouped by what they estimate; only errors within a group are comparable."""
        if names is None:
            names = [name for name in QUESTION_SETTINGS if name in self.settings]
        names = arguments.texts("questions", names)
        varying = [name for name in names if len(set(self.column(name))) > 1]
        return self.groups(varying)

    def groups(self, names: Sequence[str]) -> dict[str, Indices]:
        """Learners grouped by the values of these settings, which name the groups."""
        columns = [self.column(name) for name in names]
        texts = [setting_texts(name, column) for name, column in zip(names, columns, strict=True)]
        found: dict[tuple[Any, ...], list[int]] = {}
        for k in range(len(self.learners)):
            found.setdefault(tuple(column[k] for column in columns), []).append(k)

        def label(key: tuple[Any, ...]) -> str:
            parts = zip(names, texts, key, strict=True)
            return ", ".join(f"{name} = {text[x]}" for name, text, x in parts)

        return {label(key): np.array(members) for key, members in found.items()}

    def column(self, name: str) -> list[Any]:
        """A setting of every learner; None where it is not set."""
        return _column(self.settings, name)

    def methods(self, by: str) -> dict[str, Indices]:
        """Learners grouped by the setting `by`, in order of appearance."""
        column = self.column(by)
        return {
            text: np.array([k for k, x in enumerate(column) if x == value])
            for value, text in setting_texts(by, column).items()
        }

    def halves(self) -> tuple[slice, slice]:
        """The even runs, which select settings, and the odd ones, which judge them."""
        return slice(0, None, 2), slice(1, None, 2)

    def best(self, members: Indices) -> Indices:
        """For each domain the learner with the least error in the selecting runs."""
        errors = interquartile_mean(self.values[:, members, self.halves()[0]], axis=-1)
        return np.asarray(members[np.argmin(errors, axis=1)])


def errors_of(data: xarray.Dataset, options: ComparisonOptions) -> RunErrors:
    """The errors of a collected sweep, or of a simulation's runs, at one moment."""
    table = _table(data, options.what)
    if table.sizes["run"] < 4:
        remedy = "must be at least 4: half of them select settings, half judge them"
        raise InputError("data, runs", table.sizes["run"], remedy)
    table, moment = _at(table, options.at)
    settings = _settings(data)
    learners = _select(settings, data.sizes["learner"], options.where or {})
    values = _values(table, learners)
    missing = int(_missing(data, values, learners).sum())
    if missing:
        remedy = "finish the sweep, or leave out what is missing: see retvar.sweep.finished"
        if options.what not in error_names(2):
            remedy += "; learners of a lower order have none: choose others by where, as in order=4"
        raise InputError(f"data.{options.what}", f"missing in {missing:,} runs", remedy)
    values[np.isnan(values)] = np.inf
    names = [str(x) for x in data.learner.values[learners]]
    settings = {name: [column[k] for k in learners] for name, column in settings.items()}
    return RunErrors(values, [str(x) for x in table.domain.values], names, settings, moment)


class Finished(NamedTuple):
    """The finished part of a sweep, and the labels of what was left out.

    >>> Finished(None, ["chain"], []).domains
    ['chain']
    """

    data: Any
    domains: list[str]
    learners: list[str]


def finished(
    data: xarray.Dataset, what: str = "variance_rmse", where: Mapping[str, Any] | None = None
) -> Finished:
    """Leave out the unfinished domains or learners of a sweep that was collected in part.

    Domains and learners without any result are left out. Of the rest, either the domains or the
    learners with missing results are left out, whichever leaves more.

    Parameters
    ----------
    data
        The dataset of :func:`collect` with ``partial=True``.
    what
        The error that must not be missing.
    where
        Check only learners with these settings, as in :class:`ComparisonOptions`.

    Examples
    --------
    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners, Store, Sweep, collect, run
    >>> sweep = Sweep(runs=4, steps=9, domains=[Domain(id="chain"), Domain(id="complex-mdp")],
    ...               learners=[Learners(method=["direct", "vtd"], alpha=0.1)])
    >>> out = tempfile.mkdtemp()
    >>> _ = run(sweep, out)
    >>> store = Store.open(out)
    >>> store.path(store.plan.cells[0]).unlink()
    >>> finished(collect(store, partial=True)).domains
    ['chain']
    """
    table = _at(_table(data, what), -1)[0]
    chosen = _select(_settings(data), data.sizes["learner"], {} if where is None else where)
    missing: Any = _missing(data, _values(table, chosen), chosen).any(axis=-1)
    domains = missing.all(axis=1)
    learners = missing[~domains].all(axis=0)
    partly = missing & ~domains[:, None] & ~learners
    some = partly.any(axis=1), partly.any(axis=0)
    size = int((~domains).sum()), int((~learners).sum())
    left = (size[0] - int(some[0].sum())) * size[1], size[0] * (size[1] - int(some[1].sum()))
    if left[0] >= left[1]:
        domains = domains | some[0]
    else:
        learners = learners | some[1]
    if domains.all() or learners.all():
        raise InputError("data", "nothing finished", "run the sweep first")
    out = chosen[learners]
    rest = np.setdiff1d(np.arange(data.sizes["learner"]), out)
    found = data.isel(learner=rest)
    if "domain" in data.dims:
        found = found.isel(domain=np.flatnonzero(~domains))
    names = [str(x) for x in table.domain.values[domains]]
    return Finished(found, names, [str(x) for x in data.learner.values[out]])


def _table(data: xarray.Dataset, what: str) -> xarray.DataArray:
    """The errors of all runs, with a dimension for domains."""
    if not hasattr(data, "data_vars"):
        raise InputError("data", type(data).__name__, "must be a dataset; see retvar.sweep.collect")
    if not isinstance(what, str) or what not in data:
        raise InputError("what", what, "is not in the data; record it: see retvar.Record")
    table = data[what]
    for dim in ("learner", "run"):
        if dim not in table.dims:
            remedy = "is no dimension of the data; simulate with keep='runs'"
            raise InputError(f"data.{what}", dim, remedy)
    if "domain" not in table.dims:
        table = table.expand_dims(domain=[str(data.attrs.get("mdp", "domain"))])
    return table


def _values(table: xarray.DataArray, learners: Indices) -> Array:
    return np.array(table.isel(learner=learners).transpose("domain", "learner", "run"), dtype=float)


def _settings(data: xarray.Dataset) -> dict[str, list[Any]]:
    """The settings of all learners, by name, ready to be compared."""
    return {
        str(name): [_comparable(x) for x in column.values.tolist()]
        for name, column in data.coords.items()
        if column.dims == ("learner",) and name not in NOT_SETTINGS
    }


def _select(settings: dict[str, list[Any]], count: int, where: Mapping[str, Any]) -> Indices:
    """The learners with these settings; a list means any of its values."""
    arguments.instance("where", where, Mapping, "a mapping from settings to values")
    selected = np.ones(count, dtype=bool)
    for name, given in where.items():
        values = [*given] if isinstance(given, list | tuple | set | np.ndarray) else [given]
        if not values:
            raise InputError(f"where[{name!r}]", given, "must have a value")
        column = _column(settings, name)
        selected &= np.any([_matches(name, column, value) for value in values], axis=0)
    if not selected.any():
        raise InputError("where", dict(where), "no learner has all of these settings")
    return np.flatnonzero(selected)


def _column(settings: dict[str, list[Any]], name: str) -> list[Any]:
    """A setting of every learner."""
    if not isinstance(name, str) or name not in settings:
        known = listed(settings, most=12)
        raise InputError("setting", name, f"is not in the data; settings are {known}")
    return settings[name]


def _at(table: xarray.DataArray, at: Any) -> tuple[xarray.DataArray, str]:
    """The table at a moment, and the moment as text."""
    unit = next((dim for dim in ("step", "episode") if dim in table.dims), None)
    if unit is None:
        return table, "the end"
    moment = recorded(table[unit].values, unit, at)
    return table.sel({unit: moment}), f"{unit} {moment:,}"


def recorded(moments: Any, unit: str, at: Any) -> int:
    """The recorded moment `at`; −1 is the last.

    >>> recorded(np.array([10, 20]), "step", -1)
    20
    """
    if not arguments.is_integer(at):
        raise InputError("at", literal(at), f"must be −1 (the last) or a {unit} that was recorded")
    if at < 0 and -at <= moments.size:
        at = moments[at]
    if at not in moments:
        raise InputError("at", at, f"was not recorded; {unit}s are {listed(moments, most=12)}")
    return int(at)


def _missing(data: xarray.Dataset, values: Array, learners: Indices) -> NDArray[np.bool_]:
    """Errors that were not computed: NaN in runs that have not diverged."""
    diverged = data.diverged if "diverged" in data and "run" in data.diverged.dims else None
    if diverged is None and "diverged_by" in data and "run" in data.diverged_by.dims:
        diverged = data.diverged_by.notnull()
    if diverged is None:
        return np.zeros(values.shape, dtype=bool)
    if "domain" not in diverged.dims:
        diverged = diverged.expand_dims(domain=values.shape[0])
    known = (
        diverged.isel(learner=learners).transpose("domain", "learner", "run").values.astype(bool)
    )
    return np.asarray(np.isnan(values) & ~known)


def setting_texts(name: str, column: Iterable[Any]) -> dict[Any, str]:
    """The values of a setting as text; numbers have the fewest digits that distinguish them.

    >>> setting_texts("lam", [0.9997, 1.0, 0.123456]), setting_texts("lam", [None, 0.123456])
    ({0.9997: '0.9997', 1.0: '1', 0.123456: '0.1235'}, {None: "the domain's", 0.123456: '0.123'})
    """
    values = list(dict.fromkeys(column))
    digits = digits_of([x for x in values if isinstance(x, float)])
    unset = "the domain's" if name in DOMAIN_SETTINGS else "not set"
    return {x: f"{x:.{digits}g}" if isinstance(x, float) else unset if x is None else str(x)
            for x in values}  # fmt: skip


def digits_of(values: Iterable[float]) -> int:
    """How many significant digits, at least 3, distinguish these numbers.

    >>> digits_of([0.01, 0.0316, 0.1]), digits_of([0.9997, 1.0])
    (3, 4)
    """
    distinct = set(values)
    enough = (d for d in range(3, 18) if len({f"{x:.{d}g}" for x in distinct}) == len(distinct))
    return next(enough, 17)


def _comparable(x: Any) -> Any:
    """A setting as it is compared: None for NaN, and numbers without rounding errors."""
    if not isinstance(x, float):
        return x
    return None if x != x else float(f"{x:.{DIGITS}g}")


def _matches(name: str, column: list[Any], given: Any) -> NDArray[np.bool_]:
    """Which learners have a value: exactly, or if none does, to six digits."""
    texts = setting_texts(name, column)
    real = isinstance(given, float | int | np.number) and not isinstance(given, bool)
    value = _comparable(float(given)) if real else given
    text = str(value)
    found = np.array([x == value or (not isinstance(x, float) and texts[x] == text)
                      for x in column])  # fmt: skip
    if not found.any() and isinstance(value, float):
        found = np.array([isinstance(x, float) and bool(np.isclose(x, value, rtol=NEAR, atol=0.0))
                          for x in column])  # fmt: skip
    if not found.any():
        known = listed(texts.values(), most=12)
        raise InputError(f"where[{name!r}]", given, f"is not in the data; values are {known}")
    return found
