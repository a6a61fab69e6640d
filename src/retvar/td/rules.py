"""The update equations: small pure functions of scalars (or elementwise of arrays).

The letters are the paper's: γ′ = ``gamma`` and λ′ = ``lam`` belong to the state arrived in, η =
``eta`` is the weight of the importance ratio in the return. An estimator is a small network of TD
nodes; each node is :func:`td_error` with its own reward and discount. A step of the direct method,
with J(s) = 2, J(s′) = 4, V(s) = 1, V(s′) = 8:

>>> delta = td_error(1.0, 0.5, 4.0, 2.0)
>>> c = mean_discount(gamma=0.5, lam=1.0, eta=1.0)
>>> delta_bar = td_error(direct_reward(delta, 2.0, 1.0), variance_discount(c), 8.0, 1.0)
>>> moved(2.0, 0.5, delta, 1.0), moved(1.0, 0.5, delta_bar, 1.0)
(2.5, 2.0)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "actor_error", "adadelta_step", "averaged", "bounded_step", "decayed_step", "direct_deviation",
    "direct_reward", "fourth_moment_discount", "fourth_moment_reward", "mean_discount",
    "mean_reward", "moved", "running_mean_square", "slowed", "td_error", "third_moment_discount",
    "third_moment_reward", "trace", "variance_discount", "vtd_reward",
]  # fmt: skip

T = TypeVar("T", float, "NDArray[np.float64]")


def td_error(reward: T, discount: T, next_prediction: T, prediction: T) -> T:
    """δ = R + γ′ J(s′) − J(s): the TD error of every node."""
    return reward + discount * next_prediction - prediction


def trace(decay: T, E: T, phi: T, weight: T) -> T:
    """E = w(γκE + φ): the accumulating trace; w is ρ or ρ̄.

    `decay` is κ of the state being left times the discount of the transition that arrived there.
    """
    return weight * (decay * E + phi)


def moved(w: T, alpha: T, delta: T, E: T) -> T:
    """Return w + αδE: the update of every weight of every node."""
    return w + alpha * delta * E


def decayed_step(alpha: float, power: float, visits: float) -> float:
    """α/nᵖ at the n-th visit."""
    return alpha / slowed(power, visits)


def slowed(power: float, visits: float) -> float:
    """nᵖ, by which a decaying step is divided at the n-th visit."""
    return visits if power == 1.0 else float(visits**power)


def averaged(mean: T, w: T, visits: float) -> T:
    """Move a mean by 4/(n+3) towards a weight at its n-th visit: later weights count for more.

    The mean after n visits holds the k-th weight with a share of about 4k³/n⁴.
    """
    return mean + 4 / (visits + 3) * (w - mean)


def running_mean_square(decay: float, mean: float, x: float) -> float:
    """decay·mean + (1−decay)·x²: ADADELTA's accumulators, of errors and of updates."""
    return decay * mean + (1 - decay) * (x * x)


def adadelta_step(epsilon: float, errors: float, updates: float) -> float:
    """√(D+ε)/√(G+ε), from the accumulated squares of errors (G) and of updates (D)."""
    return math.sqrt(updates + epsilon) / math.sqrt(errors + epsilon)


def bounded_step(alpha: float, pull: float) -> float:
    """AlphaBound: min(α, 1/abs(pull)) where pull = E·(γ′φ′ − φ) is negative."""
    if pull < 0 and alpha * -pull > 1:
        return 1 / -pull
    return alpha


def direct_deviation(delta: T, J: T, eta: T) -> T:
    """ε = ηδ + (η−1)J(s), the root of the direct method's R̄, with J before the update."""
    return eta * delta + (eta - 1) * J


def direct_reward(delta: T, J: T, eta: T) -> T:
    """R̄ = (ηδ + (η−1)J(s))², with J before this transition's update; on-policy (η = 1) it is δ²."""
    root = direct_deviation(delta, J, eta)
    return root * root


def vtd_reward(reward: T, gamma: T, lam: T, J_next: T, eta: T) -> T:
    """R̄ = η²(Ḡ² + 2γ′λ′ḠJ(s′)), Ḡ = R + γ′(1−λ′)J(s′): VTD's reward, for the second moment."""
    G = reward + gamma * (1 - lam) * J_next
    return eta * eta * (G * G + 2 * gamma * lam * G * J_next)


def variance_discount(discount: T) -> T:
    """γ̄′ = (ηγ′λ′)², from ηγ′λ′: the discount of the variance node and of the second moment's."""
    return discount * discount


def mean_reward(reward: T, gamma: T, lam: T, H_next: T, eta: T) -> T:
    """η(R + γ′(1−λ′)H(s′)): the reward of the centred estimator's mean node."""
    return eta * (reward + gamma * (1 - lam) * H_next)


def mean_discount(gamma: T, lam: T, eta: T) -> T:
    """ηγ′λ′: the discount of the centred estimator's mean node."""
    return eta * gamma * lam


def third_moment_reward(epsilon: T, discount: T, V_next: T) -> T:
    """ε³ + 3c²εV(s′), c = ηγ′λ′ = `discount`: the reward of the third moment, discount c³."""
    return epsilon * (epsilon * epsilon + 3 * discount * discount * V_next)


def third_moment_discount(discount: T) -> T:
    """(ηγ′λ′)³, from ηγ′λ′: the discount of the third moment."""
    return discount * discount * discount


def fourth_moment_reward(epsilon: T, discount: T, V_next: T, M3_next: T) -> T:
    """ε⁴ + 6c²ε²V(s′) + 4c³εM₃(s′): the reward of the fourth moment; its discount is c⁴."""
    squared, c2 = epsilon * epsilon, discount * discount
    return squared * (squared + 6 * c2 * V_next) + 4 * c2 * discount * epsilon * M3_next


def fourth_moment_discount(discount: T) -> T:
    """(ηγ′λ′)⁴, from ηγ′λ′: the discount of the fourth moment."""
    squared = discount * discount
    return squared * squared


def actor_error(delta: T, delta_variance: T, weight: T, ahead: T, penalty: float) -> T:
    """Γ((1 − 2cY)δ − cΓδ̄): what multiplies the score of an action, for mean − c × variance.

    δ and δ̄ are the TD errors of value and variance node, Γ = `weight` is the product of the
    discounts of an episode so far, and Y = `ahead` the sum of its Γδ so far.
    """
    return weight * ((1 - 2 * penalty * ahead) * delta - penalty * weight * delta_variance)
