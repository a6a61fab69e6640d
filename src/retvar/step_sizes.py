"""Step-size rules of TD nodes.

Each rule is a frozen description. The compiled update reads three numbers of it (``kind`` and two
parameters) and stores two numbers per weight; the formulas are in :mod:`retvar.rules`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, ClassVar

from retvar import arguments
from retvar.errors import InputError
from retvar.format import literal

__all__ = ["Adadelta", "AlphaBound", "Averaged", "Constant", "Decay", "StepSize", "step_size"]

CONSTANT, DECAY, ADADELTA, ALPHA_BOUND, AVERAGED = range(5)


@dataclass(frozen=True)
class StepSize:
    """Base of all step-size rules.

    >>> issubclass(Constant, StepSize)
    True
    """

    kind: ClassVar[int]

    def parameters(self) -> tuple[float, float]:
        """Return the two numbers that the update needs."""
        raise NotImplementedError

    def initial(self) -> tuple[float, float]:
        """Return the two numbers that each weight starts with."""
        return 0.0, 0.0


@dataclass(frozen=True)
class Constant(StepSize):
    """A constant step size; a plain number means this rule.

    >>> Constant(0.1)
    Constant(alpha=0.1)
    """

    alpha: float
    kind = CONSTANT

    def __post_init__(self) -> None:
        _to_floats(self)

    def parameters(self) -> tuple[float, float]:
        """Return α."""
        return float(self.alpha), 0.0


@dataclass(frozen=True)
class Decay(StepSize):
    """α/nᵖ at the n-th visit, counted separately for each state (each weight).

    With power 1 and α = 1 the estimate is the mean of its targets; a power in (½, 1) forgets early
    targets sooner.

    >>> Decay(power=0.6)
    Decay(alpha=1.0, power=0.6)
    """

    alpha: float = 1.0
    power: float = 1.0
    kind = DECAY

    def __post_init__(self) -> None:
        _to_floats(self)
        if not 0 <= self.power <= 1:
            raise InputError("power", self.power, "must lie in [0, 1]; 1 gives α/n")

    def parameters(self) -> tuple[float, float]:
        """Return α and the power."""
        return float(self.alpha), float(self.power)


@dataclass(frozen=True)
class Averaged(StepSize):
    """α/nᵖ at the n-th visit, and predictions from a running mean of the weights.

    Weights learn with the step α/nᵖ. Predictions, and the input of the next node, use a running
    mean of the weights in which the k-th visit counts in proportion to k³, so that early weights
    are soon forgotten. Transitions with ratio 0 do not count as visits. Bootstrap intervals have
    about their nominal coverage. ``retvar estimate`` uses this rule.

    >>> Averaged()
    Averaged(alpha=1.0, power=0.6)
    """

    alpha: float = 1.0
    power: float = 0.6
    kind = AVERAGED

    def __post_init__(self) -> None:
        _to_floats(self)
        if not 0.5 < self.power < 1:
            raise InputError("power", self.power, "must lie between ½ and 1 for the mean to settle")

    def parameters(self) -> tuple[float, float]:
        """Return α and the power."""
        return float(self.alpha), float(self.power)


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
        _to_floats(self)
        if not 0 <= self.decay < 1:
            raise InputError("decay", self.decay, "must lie in [0, 1)")
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise InputError("epsilon", self.epsilon, "must be a positive number")

    def parameters(self) -> tuple[float, float]:
        """Return decay and ε."""
        return float(self.decay), float(self.epsilon)


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

    def __post_init__(self) -> None:
        _to_floats(self)

    def parameters(self) -> tuple[float, float]:
        """Return the initial α."""
        return float(self.alpha), 0.0

    def initial(self) -> tuple[float, float]:
        """Return the present step size."""
        return float(self.alpha), 0.0


RULES = {rule.__name__: rule for rule in StepSize.__subclasses__()}


def step_size(field: str, given: Any) -> StepSize:
    """Return a step-size rule; a number means a constant step.

    >>> step_size("alpha", 0.1)
    Constant(alpha=0.1)
    """
    if isinstance(given, StepSize):
        return given
    if not arguments.is_real(given):
        raise InputError(field, literal(given), "must be a number or a step-size rule")
    return _constant(_at_least_0(field, given))


@functools.lru_cache(1_024)
def _constant(alpha: float) -> Constant:
    """A constant step; grids have many learners with the same."""
    return Constant(alpha)


def _to_floats(rule: StepSize) -> None:
    """Validate every setting and store it as a float."""
    for field in fields(rule):
        given: Any = getattr(rule, field.name)
        if not arguments.is_real(given):
            raise InputError(field.name, literal(given), "must be a number")
        object.__setattr__(rule, field.name, _at_least_0(field.name, given))


def _at_least_0(field: str, given: Real) -> float:
    remedy = "must be a finite number of at least 0"
    if not (found := arguments.number(field, given, remedy)) >= 0:
        raise InputError(field, given, remedy)
    return found
