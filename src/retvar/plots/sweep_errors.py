"""Errors of a sweep by setting, for its figures; the only module here that uses ``run_errors``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.format import short_number
from retvar.plots.style import METHODS, Array, LineStyle, learner_name, learner_style, shown
from retvar.sweep import effects, run_errors
from retvar.sweep.format import error_name
from retvar.sweep.options import ComparisonOptions

if TYPE_CHECKING:
    import xarray

__all__: list[str] = []  # names are imported one by one

Indices = NDArray[np.intp]
MAX_TICKS = 6
DEFAULTS = ComparisonOptions(resamples=1_000)
LONG_NAMES = {
    "alpha": "step size of the value, α",
    "alpha_bar": "step size of the variance, ᾱ",
    "alpha_mean": "step size of the mean",
    "lam": "λ",
    "gamma": "γ",
    "kappa": "trace decay of the value, κ",
    "kappa_bar": "trace decay of the variance, κ̄",
}
SYMBOLS = {"lam": "λ", "gamma": "γ", "alpha": "α", "alpha_bar": "ᾱ", "kappa": "κ", "kappa_bar": "κ̄"}


@dataclass(frozen=True, eq=False)
class SweepErrors:
    """Errors [domain, learner, run] of a sweep at one moment, and how their intervals are made."""

    errors: run_errors.RunErrors
    by: str
    options: ComparisonOptions
    _least: dict[bytes, Array] = field(default_factory=dict)

    @property
    def relative(self) -> bool:
        """Whether errors are multiples of the best of each domain, as with several domains."""
        return len(self.errors.domains) > 1

    @property
    def label(self) -> str:
        """Label of an axis of errors."""
        name = error_name(self.options.what)
        return f"{name}, times the best of each domain" if self.relative else name

    def method_learners(self) -> dict[str, Indices]:
        """Learners by method."""
        return self.errors.methods(self.by)

    def learners_with(self, setting: str, value: float) -> Indices:
        """Learners whose setting has this value."""
        column = self.errors.column(setting)
        return np.array([k for k, x in enumerate(column) if x == value], dtype=np.intp)

    def axis_values(self, setting: str) -> list[float]:
        """The numbers that a setting takes, ascending."""
        column = self.errors.column(setting)
        values = sorted({float(x) for x in column if isinstance(x, float | int) and x == x})
        if len(values) < 2:
            raise InputError(setting, f"{len(values)} numbers", "must be a setting that was varied")
        return values

    def is_question(self, setting: str) -> bool:
        """Whether a setting defines what is estimated, not how."""
        return setting in run_errors.QUESTION_SETTINGS

    def questions(self, *axes: str) -> dict[str, Indices]:
        """Learners by what they estimate, apart from settings along an axis."""
        names = [
            n for n in run_errors.QUESTION_SETTINGS if n in self.errors.settings and n not in axes
        ]
        return self.errors.questions(names)

    def best_errors(self, members: Indices) -> Array:
        """Errors [domain, run] of the best of these learners, chosen by half of the runs."""
        chosen = members[:1] if members.size == 1 else self.errors.best(members)
        return np.asarray(self.errors.values[np.arange(len(self.errors.domains)), chosen])

    def judging_runs(self, errors: Array, split: bool) -> Array:
        """Errors [..., run] of the runs that chose no settings; all of them without `split`."""
        return errors[..., self.errors.halves()[1]] if split else errors

    def log_errors(self, errors: Array, question: Indices) -> Array:
        """Logarithms of errors [..., domain, run], relative to the best learner of each domain."""
        with np.errstate(divide="ignore"):
            found = np.log(errors)
            if not self.relative:
                return found
            return np.asarray(found - np.log(self._least_errors(question))[:, None])

    def _least_errors(self, question: Indices) -> Array:
        """The error of the best learner of each domain; cached, since it is slow."""
        key = question.tobytes()
        if key not in self._least:
            best = effects.centre(self.errors.values[:, question]).min(axis=1)
            if not np.isfinite(best).all() or not best.all():
                raise InputError("data", "a domain without a best", "every learner diverged there")
            self._least[key] = best
        return self._least[key]

    def centre(self, log_errors: Array) -> Array:
        """The error in the middle of [..., domain, run]."""
        return np.exp(effects.centre(log_errors, (-2, -1)))

    def intervals(self, log_errors: Array) -> tuple[Array, Array, Array]:
        """The error in the middle of [..., domain, run], and the ends of its interval."""
        found = effects.overall_interval(log_errors, self.options)
        return np.exp(found.estimate), np.exp(found.low), np.exp(found.high)

    def contenders(self, errors: Array, split: bool) -> NDArray[np.bool_]:
        """Which settings [setting, domain, run] are not surely worse than the best."""
        return effects.contenders(errors, self.options, split=split)

    def interval_text(self, split: bool) -> str:
        """Description of the lines and bands, for a legend."""
        domains, runs = len(self.errors.domains), self.errors.values.shape[-1]
        over = (
            f"{domains} domains"
            if self.options.over == "domains"
            else f"{runs // (1 + split)} runs"
        )
        return f"interquartile mean, {self.options.level:.0%} interval over {over}"

    def contender_text(self) -> str:
        """Description of stars and outlines, for a caption."""
        domains, _, runs = self.errors.values.shape
        over = f"{domains // 2} domains" if self.options.over == "domains" else f"{runs // 2} runs"
        return (
            f"star: best; outline: not surely worse ({self.options.level:.0%} interval of the "
            f"ratio to the best, over {over}, holds 1)"
        )


def load_errors(
    data: xarray.Dataset, by: str, options: ComparisonOptions | None, **keywords: Any
) -> SweepErrors:
    """Validate the options of a figure of a sweep, and take its errors out of the dataset."""
    options = ComparisonOptions.of(DEFAULTS if options is None else options, **keywords)
    errors = run_errors.errors_of(data, options)
    errors.column(by)
    return SweepErrors(errors, by, options.resolve(len(errors.domains)))


# ---------------------------------------------------------------------- names


def question_title(text: str) -> str:
    """Settings with the letters of the paper.

    >>> question_title("gamma = 0.9, lam = 1")
    'γ = 0.9, λ = 1'
    """
    parts = (part.partition(" = ") for part in text.split(", "))
    return shown(
        ", ".join(f"{SYMBOLS.get(name, name)} = {value}" for name, _, value in parts if name)
    )


def method_style(method: str, k: int) -> LineStyle:
    """The style of a method, in capitals or not, or the k-th style for other names."""
    return learner_style(method.lower(), k)


def method_name(method: str) -> str:
    """The name of a method in a figure.

    >>> method_name("Direct"), method_name("Mine")
    ('direct', 'Mine')
    """
    return learner_name(method.lower()) if method.lower() in METHODS else shown(method)


# ---------------------------------------------------------------------- ticks


def spaced_by_factors(values: Sequence[float]) -> bool:
    """Whether numbers suit a logarithmic axis: positive and evenly spaced by factors, not steps.

    >>> spaced_by_factors([0.01, 0.1, 1.0]), spaced_by_factors([0.0, 0.5, 0.9, 1.0])
    (True, False)
    """
    x = np.asarray(values)
    if (x <= 0).any() or x.size < 2:
        return False
    factors, steps = np.diff(np.log(x)), np.diff(x)
    return bool(
        np.ptp(factors) / factors.mean() < np.ptp(steps) / steps.mean() or x[-1] > 50 * x[0]
    )


def axis_ticks(values: Sequence[float], log: bool) -> tuple[list[float], list[str]]:
    """Ticks and their labels: at the values, or at round numbers where those are long.

    >>> axis_ticks([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0], True)
    ([0.01, 0.1, 1.0, 10.0], ['0.01', '0.1', '1', '10'])
    >>> axis_ticks([0.00707, 0.0354, 0.177], True)
    ([0.01, 0.1], ['0.01', '0.1'])
    """
    ticks = list(values)
    short = all(float(f"{x:.2g}") == x for x in ticks)
    if log and (len(ticks) > MAX_TICKS or not short):
        ticks = _round_numbers(ticks)
    while len(ticks) > MAX_TICKS:
        ticks = ticks[::2]
    digits = run_errors.digits_of(ticks)
    if digits > 3:
        return ticks, [f"{x:.{digits}g}".replace("-", "−") for x in ticks]
    return ticks, [short_number(float(f"{x:.3g}")) for x in ticks]


def _round_numbers(values: Sequence[float]) -> list[float]:
    """Powers of ten between the ends, or also 2 and 5 times these; the values if both are few."""
    low, high = min(values) * (1 - 1e-6), max(values) * (1 + 1e-6)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for multiples in ((1,), (1, 2, 5)):
        ticks = [float(f"{k}e{power}") for power in powers for k in multiples]
        ticks = [t for t in ticks if low <= t <= high]
        if len(ticks) > 1:
            return ticks[:: -(-len(ticks) // MAX_TICKS)]
    return list(values)
