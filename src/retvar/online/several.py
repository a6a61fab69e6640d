"""Online estimators of several returns of one stream, with their covariances.

Each return has a network of its own. For each pair there is one more node: it is fed the product of
what both deviate by, where a variance node is fed the square, and is the variance's node otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partialmethod
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.exact.several import Combination, SeveralReturns
from retvar.online.estimator import OnlineEstimator
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import listed, literal
from retvar.td import rules
from retvar.td.features import Features
from retvar.td.networks import COVARIANCE, MEAN, VALUE, VARIANCE

__all__ = ["SeveralEstimator"]

Array = NDArray[np.float64]
MOMENTS = "several rewards need Direct or Centred, up to the variance"


class CovarianceNode:
    """Description of a node that learns a covariance: the settings of a learner's variance node."""

    method, learn_value = COVARIANCE.method, True

    def __init__(self, learner: Any) -> None:
        self.gamma, self.lam, self.estimand = learner.gamma, learner.lam, learner.estimand
        self._learner = learner

    def nodes(self, *, tabular: bool = True) -> list[Any]:
        """Settings by place; a covariance starts from 0."""
        found: list[Any] = self._learner.nodes(tabular=tabular)
        return [*found[:VARIANCE], found[VARIANCE]._replace(initial=0.0)]


class SeveralEstimator:
    """Learns several returns from transitions with several rewards: ``online(…, rewards=2)``.

    Values, variances and standard deviations are [reward] of a state, or [reward, state] of
    all states; covariances and correlations are tables [reward, reward] or [reward, reward, state].

    >>> import retvar as rv
    >>> learner = rv.Direct(alpha=0.5, gamma=0.9, lam=0.9)
    >>> risk = learner.online(states=1, rewards=["profit", "energy"])
    >>> risk.update(0, (2.0, 1.0), None, terminated=True)
    >>> risk.value(0).tolist(), risk.covariance(0).tolist()
    ([1.0, 0.5], [[2.0, 1.0], [1.0, 0.5]])
    >>> risk.combine({"profit": 1, "energy": -1}).mean.tolist()
    [0.5]
    """

    def __init__(
        self, description: Any, features: list[Features], rewards: int | Sequence[str]
    ) -> None:
        if arguments.is_integer(rewards):
            rewards = [str(k) for k in range(arguments.integer("rewards", rewards, 2))]
        self.names = arguments.texts("rewards", rewards)  #: of the rewards
        if len(set(self.names)) < max(2, len(self.names)):
            raise InputError("rewards", literal(rewards), "must be two or more different names")
        if description.order > 2 or description.network.second_moment is not None:
            raise InputError("learner", type(description).__name__, MOMENTS)
        self.description = description
        #: the estimator of each return
        self.each = [OnlineEstimator(description, features) for _ in self.names]
        self._pairs = {
            pair: OnlineEstimator(CovarianceNode(description), features)
            for pair in combinations(range(len(self.names)), 2)
        }

    @property
    def steps(self) -> int:
        """Transitions learned from."""
        return self.each[0].steps

    # ------------------------------------------------------------------ learning

    def update(
        self, state: Any, reward: Sequence[float], next_state: Any = None, **others: Any
    ) -> None:
        """Learn from one transition with a tuple of rewards.

        Other arguments are those of :meth:`OnlineEstimator.update`.
        """
        given = arguments.numbers("reward", reward)
        if given.size != len(self.names):
            raise InputError("reward", literal(reward), f"must be of {listed(self.names)}")
        weighted = self.description.estimand == "off_policy_return"
        eta = others.get("rho", 1.0) if weighted else 1.0
        before = [each.predict([state], "value")[0] if eta != 1.0 else 0.0 for each in self.each]
        deviations = []
        for each, own, J in zip(self.each, given.tolist(), before, strict=True):
            each.update(state, own, next_state, **others)
            errors = [float(node.error[0]) for node in each._memory.block]
            direct = MEAN not in self.description.network.places
            own = rules.direct_deviation(errors[VALUE], J, eta) if direct else errors[MEAN]
            deviations.append(own)
        for (a, b), pair in self._pairs.items():
            pair.update(state, deviations[a] * deviations[b], next_state, **others)

    # ------------------------------------------------------------------ estimates

    def returns(self, states: Any = None) -> SeveralReturns:
        """All that is known of a column of states, or of all, as from :func:`retvar.solve`."""
        value = np.array([each._combine("value", states) for each in self.each])
        table = np.empty((len(value), *value.shape))
        own = {(k, k): each for k, each in enumerate(self.each)}
        for (a, b), each in (own | self._pairs).items():
            table[a, b] = table[b, a] = each._combine("variance", states)
        labels = list(range(value.shape[1]) if states is None else states)
        return SeveralReturns(self.names, labels, value, table, np.diagonal(table).T > 0)

    def _of(self, what: str, state: Any = None) -> Array:
        """One of the columns of :meth:`returns`, of a state or of all."""
        found: Array = getattr(self.returns(None if state is None else [state]), what)
        return found if state is None else found[..., 0]

    value = partialmethod(_of, "value")
    variance = partialmethod(_of, "variance")
    std = partialmethod(_of, "std")
    covariance = partialmethod(_of, "covariance")
    correlation = partialmethod(_of, "correlation")

    def combine(self, weights: Mapping[str, float], states: Any = None) -> Combination:
        """Mean and variance of a weighted sum of the returns, of a column of states or of all."""
        return self.returns(states).combine(weights)

    def __repr__(self) -> str:
        name, names = type(self.description).__name__, listed(self.names)
        return f"<{name} online, {names}: {self.steps:,} steps>"
