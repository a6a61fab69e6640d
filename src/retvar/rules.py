"""The update equations, each once: small pure functions of scalars (or of arrays, elementwise).

The letters are the paper's: γ′ = ``gamma`` and λ′ = ``lam`` belong to the state arrived in, η =
``eta`` is the weight of the importance ratio in the return. An estimator is a small network of TD
nodes; each node is :func:`td_error` fed with another reward and another discount.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "direct_reward",
    "mean_discount",
    "mean_reward",
    "td_error",
    "variance_discount",
    "vtd_reward",
]

T = TypeVar("T", float, NDArray[np.float64])


def td_error(reward: T, discount: T, next_prediction: T, prediction: T) -> T:
    """δ = R + γ′ J(s′) − J(s): the one TD error, of every node.

    >>> td_error(1.0, 0.5, 4.0, 2.0)
    1.0
    """
    return reward + discount * next_prediction - prediction


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


def variance_discount(gamma: T, lam: T, eta: T) -> T:
    """γ̄′ = (ηγ′λ′)²: the discount of the variance node and of the second-moment node.

    >>> variance_discount(0.5, 1.0, 2.0)
    1.0
    """
    root = mean_discount(gamma, lam, eta)
    return root * root


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
