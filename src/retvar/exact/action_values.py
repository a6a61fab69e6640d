"""Value and variance of the return of every action: taken first, the policy followed after.

Nothing weights the first step: the action is given. Its λ-return and the deviation of its first
step are, with C = γ′λ′ and G′ the λ-return from the next state,

    G(s, a) = R + γ′((1−λ′)H′ + λ′G′)        ε = R + γ′((1−λ′)H′ + λ′g′) − q(s, a)

so that, over the reward and the next state that follow s and a,

    q = E[R + γ′((1−λ′)H′ + λ′g′)]           Var = E[ε²] + E[C²v′].

Off-policy, only what follows the first step is weighted by importance ratios, which are in v′.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.mdp import MDP

__all__ = ["ActionMoments", "StateMoments"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StateMoments:
    """What is known of the return from each state, and what its λ-return bootstraps from."""

    value: Array
    mean: Array
    std: Array  #: NaN where it is infinite
    bootstrap: Array  #: H
    lam: Array  #: λ on arrival in each state


class ActionMoments:
    """Arrays [state, action]; NaN where a state does not have an action.

    >>> import retvar as rv
    >>> mdp, zero = rv.domains.chain(lam=1), np.zeros(4)
    >>> ActionMoments(mdp, StateMoments(zero, zero, zero, zero, np.ones(4))).std.ravel()
    array([1., 1., 1., 1.])
    """

    def __init__(self, mdp: MDP, after: StateMoments) -> None:
        e, shape = mdp.edges, (mdp.n_states, mdp.n_actions)
        pair = e.state * mdp.n_actions + e.action

        def expect(x: Array) -> Array:
            total = np.bincount(pair, weights=e.probability * x, minlength=shape[0] * shape[1])
            return np.where(mdp.available, total.reshape(shape), np.nan)

        lam, s2 = after.lam[e.next_state], e.next_state  # γ is 0 where an episode ends
        inside = e.reward + e.gamma * ((1 - lam) * after.bootstrap[s2] + lam * after.mean[s2])
        self.mean = expect(inside)  #: of the λ-return
        same = after.mean is after.value and after.bootstrap is after.value
        self.value = self.mean if same else expect(e.reward + e.gamma * after.value[s2])
        epsilon = inside - self.mean[e.state, e.action]
        c = e.gamma * lam
        rest = np.where((c > 0) & (e.probability > 0), c * after.std[s2], 0.0)
        scale = _power_of_two(epsilon, e.reward_std, rest)
        squares = sum((x / scale) ** 2 for x in (epsilon, e.reward_std, rest))
        root = np.sqrt(expect(np.asarray(squares)))
        self.std = root * scale  #: NaN where it is infinite, too
        with np.errstate(over="ignore"):
            self.variance = self.std**2
        if np.isinf(self.variance).any() or np.isinf(self.value).any():
            remedy = "a power of it overflows; scale them down"
            raise InputError("reward or value", "too large", remedy)
        for array in (self.value, self.mean, self.std, self.variance):
            array.flags.writeable = False


def _power_of_two(*sizes: Array) -> float:
    """The power of 2 next to the largest number: dividing by it changes no digit."""
    largest = max(float(np.nanmax(np.abs(x), initial=0.0)) for x in sizes)
    return float(np.ldexp(1.0, int(np.frexp(largest)[1]))) if 0 < largest < np.inf else 1.0
