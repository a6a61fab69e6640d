"""What one sees in the view of learning, in words that follow the numbers.

An error has two parts: bias, how far the mean over runs is from the exact variance, and noise, how
far runs spread around that mean. Which of them is larger decides what is said of its cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.format import count, joined, minus, number, short_number
from retvar.networks import NETWORKS

if TYPE_CHECKING:
    from retvar.lab.learning import Learning

__all__ = ["Parts", "parts", "sentences"]

Array = NDArray[np.float64]

ALIKE = 1.15  # ratio of errors that one does not see
LEFT = 0.1  # of the bias or of initial values: as much as one sees
SURE = 4.0  # standard errors of a move that is more than noise
FAR = 0.25  # of the value: an error of its mean with which it has not arrived


class Parts(NamedTuple):
    """The parts of an error, as root mean squares over states.

    >>> Parts(3.0, 4.0, True).biased
    False
    """

    bias: float  #: of the mean over runs
    noise: float  #: standard deviation over runs
    moving: bool  #: whether the mean is still on its way

    @property
    def biased(self) -> bool:
        """Whether the error is mostly bias."""
        return self.bias > self.noise


def _size(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def parts(view: Learning, method: str) -> Parts:
    """Bias and noise of a method at this step; NaN where runs have diverged.

    The square of a mean over runs holds some noise, which is taken off.
    """
    runs = view.data.variance.sel(learner=method).values
    now, half = runs[:, view.moment], runs[:, view.moment // 2]
    with np.errstate(all="ignore"):
        bias = _size(_true(now - view.problem.solution.variance))
        noise = _size(now.std(axis=0, ddof=1))
        moved, sure = _size((now - half).mean(axis=0)), _size(_error_of_mean(now - half))
    still = moved > LEFT * bias + SURE * sure
    return Parts(bias, noise, bool(still or _first_share(view) > LEFT or _value_off(view) > FAR))


def _first_share(view: Learning) -> float:
    """The weight that initial values still have in a state of the usual number of visits."""
    slow = min(view.settings.alpha, view.settings.alpha_bar)
    return float((1 - slow) ** (view.step / view.problem.mdp.n_states))


def _error_of_mean(runs: Array) -> Array:
    return np.asarray(runs.std(axis=0, ddof=1) / np.sqrt(len(runs)))


def _true(runs: Array) -> Array:
    """The mean over runs, less what its noise adds to its square."""
    squares = np.mean(runs, axis=0) ** 2 - _error_of_mean(runs) ** 2
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def sentences(view: Learning, state: int) -> list[str]:
    """What one sees in a state after the steps taken."""
    gone = view.diverged()
    said = [_compared(view)]
    if view.step and not gone:
        said += [*_why_smaller(view), *_not_there(view)]
    for name, times in gone.items():
        runs = f"{count(times, 'run')} of {view.settings.runs}"
        label = _upper(NETWORKS[name].label)
        said.append(f"{label} has diverged in {runs}: its estimates grow without end. Smaller "
                    "steps, or a smaller κ, would help.")  # fmt: skip
    said += _explained(view, state)
    if why := view.why_no_curve():
        said.append(f"Dashed lines are missing: {why}.")
    return [minus(sentence) for sentence in said if sentence]


def _compared(view: Learning) -> str:
    """The errors, and how they compare."""
    if not view.step:
        return (
            "Press play: estimates move towards the exact variance of each state. Then drag α "
            "away from ᾱ."
        )
    pair = view.pair()
    if gone := view.diverged():
        fine = [m for m in view.settings.methods if m not in gone]
        rest = joined(f"{NETWORKS[m].label} {_digits(view.error(m).measured)}" for m in fine)
        return f"After {view.step:,} steps the error is: {rest}." if fine else ""
    if pair is None:
        found = joined(f"{NETWORKS[m].label} {_digits(view.error(m).measured)}"
                       for m in view.settings.methods)  # fmt: skip
        return f"After {view.step:,} steps the error is: {found}."
    names = [NETWORKS[name].label for name in pair]
    told = joined(_digits(view.error(name).measured) for name in pair)
    start = f"After {view.step:,} steps the errors of {joined(names)} are {told}"
    ratio = _ratio(view)
    if not np.isfinite(ratio):
        return f"{start}."
    if 1 / ALIKE < ratio < ALIKE:
        return f"{start}: nearly the same."
    size, side = (ratio, "larger") if ratio > 1 else (1 / ratio, "smaller")
    return f"{start}: {names[0]}'s is {_large(size)} times {side}."


def _ratio(view: Learning) -> float:
    """The error of the method that subtracts a square / that of the other; NaN if unknown."""
    pair = view.pair()
    if pair is None:
        return np.nan
    above, below = (view.error(name).measured for name in pair)
    return above / below if below > 0 else np.nan


def _value_off(view: Learning) -> float:
    """Error of the mean value over runs, as a part of the exact one's size."""
    found = view.data.value.sel(learner=view.settings.methods[0]).values[:, view.moment]
    exact = view.problem.solution.value
    with np.errstate(all="ignore"):
        return _size(found.mean(axis=0) - exact) / max(_size(exact), 1e-300)


def _why_smaller(view: Learning) -> list[str]:
    """Why the method that subtracts a square does better, where it does."""
    pair = view.pair()
    if pair is None or not _ratio(view) < 1 / ALIKE:
        return []
    square, other = (NETWORKS[name].label for name in pair)
    own, others = (parts(view, name) for name in pair)
    runs = [view.variance(name) for name in pair]
    s = view.settings
    if _value_off(view) > FAR:
        return [
            f"That is the start, and not the method: the run is short and J has not arrived, its "
            f"mean over runs is off by {_value_off(view):.0%}. What is left of the initial values "
            f"happens to put {square} nearer to the exact variance."
        ]
    if s.alpha == s.alpha_bar and np.allclose(runs[0], (1 - s.alpha) * runs[1], rtol=1e-6):
        if s.alpha == 1:
            return [f"With α = ᾱ = 1, M is always J²: {square} says 0, whatever the variance is."]
        left = short_number(round(1 - s.alpha, 6))
        return [
            f"With equal steps {square}'s estimate is 1 − α = {left} times {other}'s in every run. "
            f"With so large an α, δ holds the noise of J, and {other}'s is too high."
        ]
    return [
        f"The bias of {square} is {_digits(own.bias)} and that of {other} {_digits(others.bias)}; "
        f"the noise is {_digits(own.noise)} and {_digits(others.noise)}."
    ]


def _not_there(view: Learning) -> list[str]:
    """Which errors are mostly bias, and whether more steps would help."""
    found = {m: parts(view, m) for m in view.settings.methods}
    biased = {m: p for m, p in found.items() if p.biased}
    said = []
    for moving in (True, False):
        names = [NETWORKS[m].label for m, p in biased.items() if p.moving == moving]
        if not names:
            continue
        told = joined(_digits(p.bias) for p in biased.values() if p.moving == moving)
        spread = joined(_digits(p.noise) for p in biased.values() if p.moving == moving)
        start = (
            f"The error of {joined(names)} is mostly bias: over all states the mean over runs is "
            f"off by {told}, and runs spread by {spread}"
        )
        if moving:
            said.append(f"{start}. Not there yet: play longer, or take larger steps.")
        else:
            said.append(f"{start}. It no longer moves: more steps do not help, other α and ᾱ may.")
    return said


def _explained(view: Learning, state: int) -> list[str]:
    """How the estimate that subtracts a square is made, and what that does here."""
    squares, others = view.split()
    if not squares:
        return []
    s, name = view.settings, NETWORKS[squares[0]].label
    said = [
        f"{name} estimates the second moment M and takes J² away. A TD error δ moves J² by "
        "about 2αJδ and M by about 2ᾱJδ: the two cancel in M − J² only if α = ᾱ."
    ]
    value = short_number(float(f"{view.problem.solution.value[state]:.3g}"))
    if s.alpha == s.alpha_bar:
        said.append("Here α = ᾱ, and they cancel.")
    else:
        said.append(f"Here α is {_times(s.alpha / s.alpha_bar)} ᾱ.")
        said += _one_sided(view, squares[0], state)
        share = view.push(state) / max(view.problem.solution.variance[state], 1e-300)
        said.append(
            f"Noise: what does not cancel, 2(ᾱ − α)Jδ, pushes the estimate up or down by about "
            f"{_digits(view.push(state))} at each visit to {view.problem.states[state]}, where J "
            f"is {value}: {_large(100 * share)}% of the variance there."
        )
    if others:
        label = NETWORKS[others[0]].label
        said.append(f"For {label} nothing has to cancel: its variance learns from δ² itself.")
    return said


def _one_sided(view: Learning, method: str, state: int) -> list[str]:
    """The bias of M − J² in a state from one of the two being behind, where that is seen."""
    now = view.data.sel(learner=method).isel(step=view.moment, state=state)
    with np.errstate(all="ignore"):
        moments, squares = now.second_moment.values, now.value.values**2
        runs = moments - squares
        spread, off = runs.std(), runs.mean() - view.problem.solution.variance[state]
    if not view.step or method in view.diverged() or abs(off) <= spread:
        return []
    square = float(view.problem.solution.value[state]) ** 2
    exact = square + float(view.problem.solution.variance[state])
    behind = {"J²": square - squares.mean(), "M": exact - moments.mean()}
    slow = max(behind, key=lambda name: behind[name])
    fast = "M" if slow == "J²" else "J²"
    side = "large" if off > 0 else "small"
    told = (
        f"Bias: in {view.problem.states[state]} the mean over runs is {_three(runs.mean())}, and "
        f"the variance {_three(view.problem.solution.variance[state])}. "
    )
    if behind[slow] <= 0:
        return [f"{told}M − J² is too {side} in the mean over runs, and not by chance alone."]
    return [
        f"{told}{slow} is still behind {fast}: J² has come to {_three(squares.mean())} of "
        f"{_three(square)}, M to {_three(moments.mean())} of {_three(exact)}. Until both have "
        f"arrived, M − J² is too {side}."
    ]


# ---------------------------------------------------------------------- numbers


def _digits(x: float) -> str:
    """Two digits."""
    return number(x, 2)


def _three(x: float) -> str:
    return number(float(x), 3)


def _large(x: float) -> str:
    """A ratio, with as many digits as one reads.

    >>> _large(2.345), _large(48.21), _large(1_000.0), _large(0.0042)
    ('2.3', '48', '1,000', '0.0042')
    """
    return number(float(f"{x:.3g}"), 2)


def _times(ratio: float) -> str:
    """A ratio in words.

    >>> _times(1_000.0), _times(10.0), _times(0.2), _times(1.26)
    ('1,000 times', '10 times', '1/5 of', '1.26 times')
    """
    size = float(f"{max(ratio, 1 / ratio):.3g}")
    told = f"{size:,.0f}" if size == int(size) else f"{size:,g}"
    return f"{told} times" if ratio > 1 else f"1/{told} of"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
