"""Step-size rules of TD nodes: descriptions, and what compiled code asks of each.

Each rule is a frozen description with two parameters. Compiled code knows it by its number
(``kind``); in code made for one rule the comparisons vanish. The formulas are in
:mod:`retvar.td.rules`. To add a rule, add it here, to the functions that it takes part in:

    Constant    α
    Decay       counts visits n; α/nᵖ
    Averaged    counts visits of weight ≠ 0; α/nᵖ; predicts from a running mean of what it learns
    Adadelta    two accumulators for each weight; √(D+ε)/√(G+ε)
    AlphaBound  one step for all weights, which shrinks; needs a trace
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.td import rules
from retvar.td.jit import callable_from_compiled, inlined

__all__ = ["Adadelta", "AlphaBound", "Averaged", "Constant", "Decay", "StepSize", "step_size"]

log = logging.getLogger("retvar")
CONSTANT, DECAY, ADADELTA, ALPHA_BOUND, AVERAGED = range(5)
MOST_STEP = 2.0  # over 1/Σφ²: a larger one leaves a larger error behind
NUMBER = "must be a finite number of at least 0"


@dataclass(frozen=True)
class StepSize:
    """Base of all step-size rules.

    >>> issubclass(Constant, StepSize)
    True
    """

    kind: ClassVar[int]

    def __post_init__(self) -> None:
        for field in fields(self):
            found = arguments.number(field.name, getattr(self, field.name), NUMBER)
            if found < 0:
                raise InputError(field.name, found, NUMBER)
            object.__setattr__(self, field.name, found)

    def parameters(self) -> tuple[float, float]:
        """The two numbers that the update needs: the settings, and 0 where there is but one."""
        return (*(getattr(self, field.name) for field in fields(self)), 0.0)[:2]

    def divided(self, square: float) -> StepSize:
        """The rule for features with Σφ² up to `square`, where it is made for one of a state."""
        return (
            replace(self, alpha=self.alpha / square) if isinstance(self, Decay | Averaged) else self
        )

    def warn_of_overshoot(self, square: float) -> None:
        """Warn of a rule whose first steps make errors larger, perhaps beyond all numbers."""
        if isinstance(self, Decay | Averaged) and self.alpha * square > MOST_STEP:
            text = "%r overshoots with features whose Σφ² is up to %g: divide α by that"
            log.warning(text, self, square)


@dataclass(frozen=True)
class Constant(StepSize):
    """A constant step size; a plain number means this rule.

    >>> Constant(0.1)
    Constant(alpha=0.1)
    """

    alpha: float
    kind = CONSTANT


@dataclass(frozen=True)
class Decay(StepSize):
    """α/nᵖ at the n-th visit, counted separately for each state (each weight).

    With power 1 and α = 1 the estimate is the mean of its targets; a power in (½, 1) forgets early
    targets sooner. With features divide α by their ``largest_square``.

    >>> Decay(power=0.6)
    Decay(alpha=1.0, power=0.6)
    """

    alpha: float = 1.0
    power: float = 1.0
    kind = DECAY

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.power <= 1:
            raise InputError("power", self.power, "must lie in [0, 1]; 1 gives α/n")


@dataclass(frozen=True)
class Averaged(StepSize):
    """α/nᵖ at the n-th visit, and predictions from a running mean of the weights.

    Weights learn with the step α/nᵖ. Predictions, and the input of the next node, use a running
    mean of the weights in which the k-th visit counts in proportion to k³, so that early weights
    are soon forgotten. With features divide α by their ``largest_square``. Transitions with ratio 0
    do not count as visits. Bootstrap intervals have about their nominal coverage.
    ``retvar.estimate(…, by="td")`` uses this rule.

    >>> Averaged()
    Averaged(alpha=1.0, power=0.6)
    """

    alpha: float = 1.0
    power: float = 0.6
    kind = AVERAGED

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.5 < self.power < 1:
            raise InputError("power", self.power, "must lie between ½ and 1 for the mean to settle")


@dataclass(frozen=True)
class Adadelta(StepSize):
    """ADADELTA (Zeiler, 2012): steps from running means of squared errors and of squared updates.

    The accumulators of a weight change only when it does.

    >>> Adadelta()
    Adadelta(decay=0.99, epsilon=1e-06)
    """

    decay: float = 0.99
    epsilon: float = 1e-6
    kind = ADADELTA

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.decay < 1:
            raise InputError("decay", self.decay, "must lie in [0, 1)")
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise InputError("epsilon", self.epsilon, "must be a positive number")


@dataclass(frozen=True)
class AlphaBound(StepSize):
    """AlphaBound (Dabney and Barto, 2012): a step that shrinks until no update can overshoot.

    α ← min(α, 1/abs(x)) whenever x = E·(γ′φ′ − φ) is negative. It is made for features. In a
    table without traces abs(x) is at most the importance ratio, so that on-policy α never shrinks:
    ``AlphaBound()`` then keeps only the last target. Use another rule there.

    >>> AlphaBound()
    AlphaBound(alpha=1.0)
    """

    alpha: float = 1.0
    kind = ALPHA_BOUND


RULES = {rule.__name__: rule for rule in StepSize.__subclasses__()}


def step_size(field: str, given: Any) -> StepSize:
    """Return a step-size rule; a number means a constant step.

    >>> step_size("alpha", 0.1)
    Constant(alpha=0.1)
    """
    if isinstance(given, StepSize):
        return given
    try:
        return Constant(given)
    except InputError as error:
        raise InputError(field, error.value, f"{NUMBER}, or a step-size rule") from None


# ---------------------------------------------------------------------- compiled

LARGEST = 1e150  # larger errors cannot be squared

slowed = inlined(rules.slowed)
running_mean_square = inlined(rules.running_mean_square)
adadelta_step = inlined(rules.adadelta_step)


def averages(kind: int) -> bool:
    """Whether predictions come from a mean of the weights that learn."""
    return kind == AVERAGED


def counts_visits(kind: int) -> bool:
    """Whether the step depends on the number of visits."""
    return kind in (DECAY, AVERAGED)


def depends_on_errors(kind: int) -> bool:
    """Whether the step depends on the errors of its weight."""
    return kind == ADADELTA


def is_bounded(kind: int) -> bool:
    """Whether one step for all weights is bounded by E·(γ′φ′ − φ)."""
    return kind == ALPHA_BOUND


def may_be_lazy(kind: int) -> bool:
    """Whether it can be used with lazy traces."""
    return not depends_on_errors(kind)


def common_parameters(kind: int) -> tuple[int, ...]:
    """Which of its two parameters lanes of a block have in common."""
    return (1,) if counts_visits(kind) else ()


callable_from_compiled(averages, counts_visits, depends_on_errors, is_bounded)


@inlined
def counted(kind, weight):
    """What a visit adds to the count: Averaged skips visits of weight 0."""
    return 1.0 if kind == DECAY or (kind == AVERAGED and weight != 0.0) else 0.0


@inlined
def rate_at(kind, q, visits):
    """By what the step α/nᵖ is divided after n visits, once for all lanes; then q = 1."""
    if counts_visits(kind):
        return slowed(q, max(visits, 1.0))
    return 1.0


@inlined
def accumulated(decay, epsilon, errors, updates, error):
    """ADADELTA's step after an error, and its accumulators; a step of NaN if it is too large."""
    if not abs(error) <= LARGEST:
        return math.nan, errors, updates
    errors = running_mean_square(decay, errors, error)
    step = adadelta_step(epsilon, errors, updates)
    return step, errors, running_mean_square(decay, updates, step * error)
