"""What figures of sweeps share: errors by setting, in the middle of domains and runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from retvar.errors import InputError
from retvar.format import short_number
from retvar.plots import series as s
from retvar.plots.style import Array
from retvar.sweep import run_errors as c
from retvar.sweep.effects import centre
from retvar.sweep.format import error_name
from retvar.sweep.options import ComparisonOptions

if TYPE_CHECKING:
    import xarray

__all__: list[str] = []  # taken by name

LETTERS = {
    "alpha": "step size of the value, α",
    "alpha_bar": "step size of the variance, ᾱ",
    "alpha_mean": "step size of the mean",
    "lam": "λ",
    "gamma": "γ",
    "kappa": "trace decay of the value, κ",
    "kappa_bar": "trace decay of the variance, κ̄",
}
DEFAULTS = ComparisonOptions(resamples=1_000)
SHORT = {"lam": "λ", "gamma": "γ", "alpha": "α", "alpha_bar": "ᾱ", "kappa": "κ", "kappa_bar": "κ̄"}


@dataclass(frozen=True, eq=False)
class Sweep:
    """A dataset, ready to be drawn."""

    errors: c.RunErrors
    by: str
    options: ComparisonOptions
    known: dict[bytes, Array] = field(default_factory=dict)

    @property
    def relative(self) -> bool:
        """Whether errors are told as multiples of the best of each domain."""
        return len(self.errors.domains) > 1

    @property
    def label(self) -> str:
        """What is drawn."""
        name = error_name(self.options.what)
        return f"{name}, times the best of each domain" if self.relative else name

    def cell(self, members: c.Indices, split: bool) -> Array:
        """Errors [domain, run] of the best of these learners, chosen by one half of the runs."""
        return self.judging(self.runs(members), split)

    def runs(self, members: c.Indices) -> Array:
        """Errors [domain, run] of the best of these learners, in all runs."""
        chosen = members[:1] if members.size == 1 else self.errors.best(members)
        return np.asarray(self.errors.values[np.arange(len(self.errors.domains)), chosen])

    def judging(self, runs: Array, split: bool) -> Array:
        """Of runs [..., run] those that have chosen no settings."""
        return runs[..., self.errors.halves()[1]] if split else runs

    def logs(self, cells: Array, question: c.Indices) -> Array:
        """Logarithms of errors [..., domain, run], against the best learner of each domain."""
        with np.errstate(divide="ignore"):
            found = np.log(cells)
            if not self.relative:
                return found
            return np.asarray(found - np.log(self._least(question))[:, None])

    def _least(self, question: c.Indices) -> Array:
        """The error of the best learner of each domain; slow, and asked for by every cell."""
        key = question.tobytes()
        if key not in self.known:
            best = centre(self.errors.values[:, question]).min(axis=1)
            if not np.isfinite(best).all() or not best.all():
                raise InputError("data", "a domain without a best", "every learner diverged there")
            self.known[key] = best
        return self.known[key]


def sweep_of(data: xarray.Dataset, by: str, options: ComparisonOptions) -> Sweep:
    """Check what is to be drawn, before anything is."""
    errors = c.errors_of(data, options)
    errors.column(by)
    return Sweep(errors, by, options.resolve(len(errors.domains)))


def axis_values(errors: c.RunErrors, name: str) -> list[float]:
    """The numbers that a setting takes, ascending."""
    column = errors.column(name)
    values = sorted({float(x) for x in column if isinstance(x, float | int) and x == x})
    if len(values) < 2:
        raise InputError(name, f"{len(values)} numbers", "must be a setting that was varied")
    return values


def having(errors: c.RunErrors, name: str, value: float) -> c.Indices:
    """Learners with a number as a setting."""
    column = errors.column(name)
    return np.array([k for k, x in enumerate(column) if x == value], dtype=np.intp)


def questions_without(errors: c.RunErrors, *names: str) -> dict[str, c.Indices]:
    """Learners by what they are asked, save what an axis shows."""
    return errors.questions(
        [name for name in c.QUESTION_SETTINGS if name in errors.settings and name not in names]
    )


def question_title(words: str) -> str:
    """A question with the letters of the paper.

    >>> question_title("gamma = 0.9, lam = 1")
    'γ = 0.9, λ = 1'
    """
    parts = (part.partition(" = ") for part in words.split(", "))
    return ", ".join(f"{SHORT.get(name, name)} = {value}" for name, _, value in parts if name)


def look_of(method: str, k: int) -> s.Look:
    """That of a method, whatever its capitals."""
    return s.look_of(method.lower(), k)


def method_title(method: str) -> str:
    """A method's name in a figure."""
    return s.title(method.lower()) if method.lower() in s.METHODS else method


def spaced_by_factors(values: Sequence[float]) -> bool:
    """Whether numbers are for a logarithmic axis: positive, and apart by factors, not by steps.

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


def ticks_of(values: Sequence[float], log: bool, most: int = 6) -> tuple[list[float], list[str]]:
    """Where ticks go and what they say: at the values, or at round numbers where those are long.

    >>> ticks_of([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0], True)
    ([0.01, 0.1, 1.0, 10.0], ['0.01', '0.1', '1', '10'])
    >>> ticks_of([0.00707, 0.0354, 0.177], True)
    ([0.01, 0.1], ['0.01', '0.1'])
    """
    taken = list(values)
    short = all(float(f"{x:.2g}") == x for x in taken)
    if log and (len(taken) > most or not short):
        taken = _round(taken, most)
    while len(taken) > most:
        taken = taken[::2]
    digits = c.digits_of(taken)
    if digits > 3:
        return taken, [f"{x:.{digits}g}".replace("-", "−") for x in taken]
    return taken, [short_number(float(f"{x:.3g}")) for x in taken]


def _round(values: Sequence[float], most: int) -> list[float]:
    """Powers of ten between the ends, or 1, 2 and 5 times such; the values if both are few."""
    low, high = min(values) * (1 - 1e-6), max(values) * (1 + 1e-6)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for steps in ((1,), (1, 2, 5)):
        ticks = [float(f"{k}e{power}") for power in powers for k in steps]
        ticks = [t for t in ticks if low <= t <= high]
        if len(ticks) > 1:
            return ticks[:: -(-len(ticks) // most)]
    return list(values)


def told_intervals(sweep: Sweep, split: bool) -> str:
    """What the bands are, for a legend."""
    domains, runs = len(sweep.errors.domains), sweep.errors.values.shape[-1]
    over = (
        f"{domains} domains" if sweep.options.over == "domains" else f"{runs // (1 + split)} runs"
    )
    return f"interquartile mean, {sweep.options.level:.0%} interval over {over}"
