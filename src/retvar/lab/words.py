"""What one sees in the lab, in words that follow the numbers.

An error has two parts: bias, how far the mean over runs is from the exact variance, and noise, how
far runs spread around that mean. Which of them is larger decides what is said of its cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from retvar.support.format import count, joined, listed, minus, number, plus_minus, short_number
from retvar.td.networks import NETWORKS

if TYPE_CHECKING:
    from retvar.exact.fixed_points import FixedPoint

__all__ = ["Parts", "bias", "choice", "learning", "parts"]

ALIKE = 1.15  # ratio of errors that one does not see
LARGE = 1e6  # times the largest variance: an estimate beyond that has diverged


class Parts(NamedTuple):
    """The parts of an error, as root mean squares over states.

    >>> Parts(3.0, 4.0).error, Parts(3.0, 4.0, diverged=2).error
    (5.0, nan)
    """

    bias: float  #: of the mean over runs
    noise: float  #: standard deviation over runs
    diverged: int = 0  #: number of runs

    @property
    def error(self) -> float:
        """Both together."""
        return float("nan") if self.diverged else float(np.hypot(self.bias, self.noise))


def parts(runs: Any, truth: Any) -> Parts:
    """Bias and noise of estimates [run, state].

    >>> parts([[1.0], [3.0]], [2.0])
    Parts(bias=0.0, noise=1.0, diverged=0)
    """
    found, exact = np.asarray(runs, dtype=float), np.asarray(truth, dtype=float)
    inside = np.abs(found) < LARGE * max(1.0, float(np.max(exact)))  # not so of NaN
    if lost := int(np.sum(~inside.all(axis=1))):
        return Parts(np.nan, np.nan, lost)
    size = np.sqrt(np.mean(np.square([found.mean(axis=0) - exact, found.std(axis=0)]), axis=1))
    return Parts(float(size[0]), float(size[1]))


def learning(
    now: dict[str, Parts], step: int, runs: int, alpha: float, alpha_bar: float
) -> list[str]:
    """What one sees after some steps: errors, their causes, and what VTD's steps do.

    >>> learning({"direct": Parts(0.1, 0.2), "vtd": Parts(0.1, 0.2)}, 100, 20, 0.1, 0.1)[0]
    'After 100 steps the errors of direct and VTD are 0.22 and 0.22: nearly the same.'
    """
    fine = {m: each for m, each in now.items() if not each.diverged}
    said = [_compared(fine, step)] if fine else []
    for method, each in now.items():
        if each.diverged:
            said.append(
                f"{_upper(NETWORKS[method].label)} has diverged in {count(each.diverged, 'run')} "
                f"of {runs}: smaller steps, or a smaller κ, would help."
            )
    biased = [NETWORKS[m].label for m, each in fine.items() if each.bias > each.noise]
    if biased:
        said.append(
            f"The error of {joined(biased)} is mostly bias: the mean over runs is off, as it is "
            "until the initial values are forgotten. More steps or larger ones may help."
        )
    squares = [NETWORKS[m].label for m in now if NETWORKS[m].second_moment is not None]
    return [minus(each) for each in (*said, *_cancelling(squares, alpha, alpha_bar))]


def _compared(found: dict[str, Parts], step: int) -> str:
    names, errors = zip(*((NETWORKS[m].label, p.error) for m, p in found.items()), strict=True)
    told = joined([number(e, 2) for e in errors])
    if len(errors) == 1:
        return f"After {step:,} steps the error of {names[0]} is {told}."
    start = f"After {step:,} steps the errors of {joined(names)} are {told}"
    least, most = int(np.argmin(errors)), int(np.argmax(errors))
    ratio = errors[most] / max(errors[least], 1e-300)
    if ratio < ALIKE:
        return f"{start}: nearly the same."
    return f"{start}: {names[most]}'s is {number(ratio, 2)} times {names[least]}'s."


def _cancelling(squares: Sequence[str], alpha: float, alpha_bar: float) -> list[str]:
    """How an estimate that subtracts a square is made, and what that does here."""
    if not squares:
        return []
    told = (
        f"{squares[0]} learns the second moment M and takes J² away. A TD error δ moves J² by "
        "about 2αJδ and M by about 2ᾱJδ: in M − J² the two cancel only if α = ᾱ."
    )
    if alpha == alpha_bar:
        return [f"{told} Here they do: its estimate is 1 − α times direct's in every run."]
    ratio = float(f"{max(alpha / alpha_bar, alpha_bar / alpha):.3g}")
    here = f"{ratio:,g} times" if alpha > alpha_bar else f"1/{ratio:,g} of"
    return [f"{told} Here α is {here} ᾱ, and what is left shakes the estimate at each visit."]


def bias(points: dict[str, FixedPoint], state: int, name: str, error: float) -> list[str]:
    """Where methods with a wrong frozen value go, and why."""
    if error == 0:
        return ["The value is frozen at its exact answer: all methods go to the variance."]
    goals = []
    for method, point in points.items():
        goal, off = float(point.variance[state]), float(point.bias[state])
        side = f"{number(abs(off))} too {'high' if off > 0 else 'low'}"
        exact = abs(off) < 1e-6 * max(1.0, abs(goal))
        told = "the variance itself" if exact else side
        goals.append(f"{NETWORKS[method].label} to {number(goal)} ({told})")
    return [
        minus(f"The value is frozen, and wrong by {number(error)}. In {name} theory says that "
              f"learners go: {joined(goals)}."),
        "Direct squares deviations from the frozen value, and a wrong centre adds to them. VTD "
        "subtracts the square of the frozen value, which is then the wrong square. Centred learns "
        "the mean itself, and needs no right value.",
    ]  # fmt: skip


def choice(chosen: Any, neutral: Any, changed: Sequence[str]) -> str:
    """What a policy of the frontier earns, what that costs, and where it differs."""
    earns = plus_minus(chosen.mean, chosen.std)
    if chosen is neutral:
        return minus(f"The largest mean: {earns}.")
    less, cost = 1 - chosen.std / neutral.std, float(f"{neutral.mean - chosen.mean:.2g}")
    where = f"It acts differently in {count(len(changed), 'state')}: {listed(changed)}."
    return minus(
        f"The return is {earns}: {less:.0%} less spread for {short_number(cost)} less on average. "
        f"{where}"
    )


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
