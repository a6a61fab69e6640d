"""The update equations: small pure functions of scalars (or elementwise of arrays).

The letters are the paper's: γ′ = ``gamma`` and λ′ = ``lam`` belong to the state arrived in, η =
``eta`` is the weight of the importance ratio in the return. An estimator is a small network of TD
nodes; each node is :func:`td_error` with its own reward and discount.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "actor_error",
    "adadelta_step",
    "averaged",
    "bounded_step",
    "decayed_step",
    "direct_deviation",
    "direct_reward",
    "fourth_moment_discount",
    "fourth_moment_reward",
    "greedy_lam",
    "mean_discount",
    "mean_reward",
    "moved",
    "running_mean_square",
    "slowed",
    "td_error",
    "third_moment_discount",
    "third_moment_reward",
    "trace",
    "variance_discount",
    "vtd_reward",
]

T = TypeVar("T", float, "NDArray[np.float64]")


def td_error(reward: T, discount: T, next_prediction: T, prediction: T) -> T:
    """δ = R + γ′ J(s′) − J(s): the TD error of every node.

    >>> td_error(1.0, 0.5, 4.0, 2.0)
    1.0
    """
    return reward + discount * next_prediction - prediction


def trace(decay: T, E: T, phi: T, weight: T) -> T:
    """E = w(γκE + φ): the accumulating trace; w is ρ or ρ̄.

    `decay` is κ of the state being left times the discount of the transition that arrived there.

    >>> trace(0.5, 2.0, 1.0, 1.0)
    2.0
    """
    return weight * (decay * E + phi)


def moved(w: T, alpha: T, delta: T, E: T) -> T:
    """Return w + αδE: the update of every weight of every node.

    >>> moved(1.0, 0.5, 2.0, 1.0)
    2.0
    """
    return w + alpha * delta * E


def decayed_step(alpha: float, power: float, visits: float) -> float:
    """α/nᵖ at the n-th visit.

    >>> decayed_step(1.0, 1.0, 4.0)
    0.25
    """
    return alpha / slowed(power, visits)


def slowed(power: float, visits: float) -> float:
    """nᵖ, by which a decaying step is divided at the n-th visit.

    >>> slowed(0.5, 4.0)
    2.0
    """
    return visits if power == 1.0 else float(visits**power)


def averaged(mean: T, w: T, visits: float) -> T:
    """Move a mean by 4/(n+3) towards a weight at its n-th visit: later weights count for more.

    The mean after n visits holds the k-th weight with a share of about 4k³/n⁴.

    >>> averaged(0.0, 3.0, 1.0), averaged(3.0, 7.0, 5.0)
    (3.0, 5.0)
    """
    return mean + 4 / (visits + 3) * (w - mean)


def running_mean_square(decay: float, mean: float, x: float) -> float:
    """decay·mean + (1−decay)·x²: ADADELTA's accumulators, of errors and of updates.

    >>> running_mean_square(0.5, 2.0, 2.0)
    3.0
    """
    return decay * mean + (1 - decay) * (x * x)


def adadelta_step(epsilon: float, errors: float, updates: float) -> float:
    """√(D+ε)/√(G+ε), from the accumulated squares of errors (G) and of updates (D).

    >>> adadelta_step(1.0, 3.0, 0.0)
    0.5
    """
    return math.sqrt(updates + epsilon) / math.sqrt(errors + epsilon)


def bounded_step(alpha: float, pull: float) -> float:
    """AlphaBound: min(α, 1/abs(pull)) where pull = E·(γ′φ′ − φ) is negative.

    >>> bounded_step(1.0, -4.0), bounded_step(1.0, 4.0)
    (0.25, 1.0)
    """
    if pull < 0 and alpha * -pull > 1:
        return 1 / -pull
    return alpha


def direct_reward(delta: T, J: T, eta: T) -> T:
    """R̄ = (ηδ + (η−1)J(s))², with J before this transition's update; on-policy (η = 1) it is δ².

    >>> direct_reward(3.0, 10.0, 1.0)
    9.0
    """
    root = eta * delta + (eta - 1) * J
    return root * root


def vtd_reward(reward: T, gamma: T, lam: T, J_next: T, eta: T) -> T:
    """R̄ = η²(Ḡ² + 2γ′λ′ḠJ(s′)), Ḡ = R + γ′(1−λ′)J(s′): VTD's reward, for the second moment.

    >>> vtd_reward(1.0, 1.0, 1.0, 2.0, 1.0)
    5.0
    """
    G = reward + gamma * (1 - lam) * J_next
    return eta * eta * (G * G + 2 * gamma * lam * G * J_next)


def variance_discount(discount: T) -> T:
    """γ̄′ = (ηγ′λ′)², from ηγ′λ′: the discount of the variance node and of the second moment's.

    >>> variance_discount(mean_discount(0.5, 0.5, 2.0))
    0.25
    """
    return discount * discount


def mean_reward(reward: T, gamma: T, lam: T, H_next: T, eta: T) -> T:
    """η(R + γ′(1−λ′)H(s′)): the reward of the centred estimator's mean node.

    >>> mean_reward(1.0, 0.5, 0.5, 4.0, 1.0)
    2.0
    """
    return eta * (reward + gamma * (1 - lam) * H_next)


def mean_discount(gamma: T, lam: T, eta: T) -> T:
    """ηγ′λ′: the discount of the centred estimator's mean node.

    >>> mean_discount(0.5, 0.5, 2.0)
    0.5
    """
    return eta * gamma * lam


def direct_deviation(delta: T, J: T, eta: T) -> T:
    """ε = ηδ + (η−1)J(s), the root of the direct method's R̄, with J before the update.

    >>> direct_deviation(3.0, 10.0, 1.0)
    3.0
    """
    return eta * delta + (eta - 1) * J


def third_moment_reward(epsilon: T, discount: T, V_next: T) -> T:
    """ε³ + 3c²εV(s′), c = ηγ′λ′ = `discount`: the reward of the third moment; its discount is c³.

    >>> third_moment_reward(2.0, 0.5, 4.0)
    14.0
    """
    return epsilon * (epsilon * epsilon + 3 * discount * discount * V_next)


def third_moment_discount(discount: T) -> T:
    """(ηγ′λ′)³, from ηγ′λ′: the discount of the third moment.

    >>> third_moment_discount(0.5)
    0.125
    """
    return discount * discount * discount


def fourth_moment_reward(epsilon: T, discount: T, V_next: T, M3_next: T) -> T:
    """ε⁴ + 6c²ε²V(s′) + 4c³εM₃(s′): the reward of the fourth moment; its discount is c⁴.

    >>> fourth_moment_reward(2.0, 0.5, 4.0, 1.0)
    41.0
    """
    squared, c2 = epsilon * epsilon, discount * discount
    return squared * (squared + 6 * c2 * V_next) + 4 * c2 * discount * epsilon * M3_next


def fourth_moment_discount(discount: T) -> T:
    """(ηγ′λ′)⁴, from ηγ′λ′: the discount of the fourth moment.

    >>> fourth_moment_discount(0.5)
    0.0625
    """
    squared = discount * discount
    return squared * squared


def actor_error(delta: T, delta_variance: T, weight: T, ahead: T, penalty: float) -> T:
    """Γ((1 − 2cY)δ − cΓδ̄): what multiplies the score of an action, for mean − c × variance.

    δ and δ̄ are the TD errors of value and variance node, Γ = `weight` is the product of the
    discounts of an episode so far, and Y = `ahead` the sum of its Γδ so far.

    >>> actor_error(2.0, 3.0, 0.5, 1.0, 0.25)
    0.3125
    """
    return weight * ((1 - 2 * penalty * ahead) * delta - penalty * weight * delta_variance)


def greedy_lam(error: T, variance: T) -> T:
    """λ = e²/(e² + V), which makes ((1 − λ)e)² + λ²V least (White and White, 2016).

    A target that weighs the value of a state by 1 − λ and the return from it by λ has this mean
    squared error, if e is the error of the value and V the variance of the return.

    >>> greedy_lam(1.0, 3.0)
    0.25
    """
    squared = error * error
    return squared / (squared + variance)
