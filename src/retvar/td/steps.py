"""Step-size rules, compiled: what each does at a visit, its step, and how its weights settle.

A rule is a number (``kind`` of :mod:`retvar.step_sizes`), so that one kernel serves all rules; in
kernels made for one rule the comparisons vanish. The formulas are those of :mod:`retvar.rules`.
To add a rule, add it to the functions here that it takes part in.

    Constant    α
    Decay       counts visits n; α/nᵖ
    Averaged    counts visits of weight ≠ 0; α/nᵖ; predicts from a running mean of what it learns
    Adadelta    two accumulators for each weight; √(D+ε)/√(G+ε)
    AlphaBound  one step for all weights, which shrinks; needs a trace
"""

from __future__ import annotations

import math

from retvar import rules
from retvar.jit import callable_from_compiled, inlined
from retvar.step_sizes import ADADELTA, ALPHA_BOUND, AVERAGED, DECAY

__all__ = [
    "accumulated", "averages", "counted", "counts_visits", "depends_on_errors", "is_bounded",
    "rate_at", "settled", "step_at",
]  # fmt: skip

LARGEST = 1e150  # larger errors cannot be squared

decayed_step = inlined(rules.decayed_step)
slowed = inlined(rules.slowed)
averaged = inlined(rules.averaged)
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


callable_from_compiled(averages, counts_visits, depends_on_errors, is_bounded)


@inlined
def counted(kind, weight):
    """What a visit adds to the count: Averaged skips visits of weight 0."""
    return 1.0 if kind == DECAY or (kind == AVERAGED and weight != 0.0) else 0.0


@inlined
def step_at(kind, p, q, visits):
    """The step of a weight with so many visits; for rules that do not depend on errors."""
    if counts_visits(kind):
        return decayed_step(p, q, max(visits, 1.0))
    return p


@inlined
def rate_at(kind, q, visits):
    """By what the step α/nᵖ is divided after n visits; simulations find it once for all learners.

    They ask `step_at` with q = 1 and this number in place of n, which must give the same bits.
    """
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


@inlined
def settled(mean, w, visits):
    """Where the prediction of a weight settles after a visit that counts, with Averaged."""
    return averaged(mean, w, visits)
