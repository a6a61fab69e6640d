"""Conditions under which a check applies to a learner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from retvar.exact.updates import Method
from retvar.step_sizes import StepSize
from retvar.td.steps import depends_on_errors, is_bounded
from retvar.testing.case import STEP_SIZES, Case

__all__ = [
    "always", "estimates_target_return", "has_known_method", "has_moments", "has_value_trace",
    "learns_value", "moves", "steps_are_local", "steps_ignore_rewards",
]  # fmt: skip


def always(case: Case) -> bool:
    """Every learner."""
    return True


def moves(case: Case) -> bool:
    """No step size is 0."""
    alphas = [getattr(r, "alpha", 1.0) if isinstance(r, StepSize) else r for r in _rules(case)]
    return all(alpha > 0 for alpha in alphas)


def learns_value(case: Case) -> bool:
    """The value is learned."""
    return moves(case) and bool(getattr(case.description, "learn_value", True))


def has_value_trace(case: Case) -> bool:
    """The value is learned with a trace that never vanishes."""
    return learns_value(case) and bool(
        case.per_state("kappa", 0.0).min() > 0 and case.per_state("gamma", 0.9).min() > 0
    )


def steps_ignore_rewards(case: Case) -> bool:
    """Step sizes do not depend on the size of the rewards."""
    return _no_rule(case, depends_on_errors)


def steps_are_local(case: Case) -> bool:
    """The step size of a state does not depend on other states."""
    return _no_rule(case, is_bounded)


def estimates_target_return(case: Case) -> bool:
    """The estimand is the target policy's return."""
    return bool(getattr(case.description, "estimand", "target_return") == "target_return")


def has_known_method(case: Case) -> bool:
    """The exact fixed point of the method is known."""
    return getattr(case.description, "method", None) in get_args(Method)


def has_moments(case: Case) -> bool:
    """It estimates moments beyond the variance."""
    return bool(case.moments)


def _rules(case: Case) -> list[Any]:
    given = (getattr(case.description, name, None) for name in STEP_SIZES)
    return [rule for rule in given if rule is not None]


def _no_rule(case: Case, has: Callable[[int], bool]) -> bool:
    """Every rule is known, and none has this property."""
    rules = _rules(case)
    known = all(isinstance(rule, int | float | StepSize) for rule in rules)
    return known and not any(has(rule.kind) for rule in rules if isinstance(rule, StepSize))
