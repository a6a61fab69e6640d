"""Policies: a probability for every action in every state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar import arguments
from retvar.errors import ConvergenceError, InputError
from retvar.mdp import parsing
from retvar.mdp.weighted_edges import ask, must_be_mdp, state_values

if TYPE_CHECKING:
    from retvar.mdp.model import MDP

__all__ = ["Policy"]

Array = NDArray[np.float64]
TIE = 1e-10  # actions this close to the best, relative to the values, count as equally good
ROUNDS = 1_000  # of policy iteration; it needs about ten


class Policy:
    """A probability for every action in every state: an immutable array [state, action].

    >>> Policy([[0.5, 0.5], [1, 0]])
    Policy(2 states, 2 actions, 1 deterministic)
    >>> Policy([[0.5, 0.6]])
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: sum of policy[0] = 1.1: must be 1
    """

    def __init__(self, probabilities: ArrayLike | Policy, *, field: str = "policy") -> None:
        given = probabilities.probabilities if isinstance(probabilities, Policy) else probabilities
        table = arguments.floats(field, given, "an array [state, action]") + 0.0  # no −0
        if table.ndim != 2:
            found = f"an array of shape {table.shape}"
            raise InputError(field, found, "must be an array [state, action]")
        bad = ~np.isfinite(table) | (table < 0)
        if np.any(bad):
            s, a = (int(i) for i in np.argwhere(bad)[0])
            raise InputError(f"{field}[{s}, {a}]", table[s, a], "must be a probability")
        totals = table.sum(axis=1)
        off = np.abs(totals - 1)
        if np.any(off > arguments.TOLERANCE):
            s = int(np.argmax(off > arguments.TOLERANCE))
            raise InputError(f"sum of {field}[{s}]", f"{totals[s]:.12g}", "must be 1")
        table /= np.where(off <= arguments.EXACT * table.shape[1], 1.0, totals)[:, None]
        table.flags.writeable = False
        self._probabilities = table

    @property
    def probabilities(self) -> Array:
        """π[state, action], read-only."""
        return self._probabilities

    @classmethod
    def uniform(cls, mdp: MDP) -> Policy:
        """Every available action alike.

        >>> import retvar as rv
        >>> Policy.uniform(rv.domains.chain()).probabilities.ravel()
        array([1., 1., 1., 1.])
        """
        must_be_mdp(mdp)
        available = mdp.available
        return cls(available / available.sum(axis=1, keepdims=True))

    @classmethod
    def greedy(cls, mdp: MDP, value: ArrayLike | None = None) -> Policy:
        """The best action for a value function; without one, for the optimal value function.

        Of equally good actions the first is taken, so that the policy, and with it the variance,
        does not depend on rounding. Where γ = 1 and the first ones would never end, those that may
        end soonest are taken.

        >>> import retvar as rv
        >>> lake = rv.domains.from_gymnasium("FrozenLake-v1", gamma=0.9, is_slippery=False)
        >>> Policy.greedy(lake).probabilities[0]  # left, down, right, up
        array([0., 1., 0., 0.])
        """
        if value is not None:
            return _first_best(mdp, arguments.numbers("value", value, mdp.n_states, mdp.state_name))
        return _optimal(mdp)

    @classmethod
    def epsilon_greedy(cls, mdp: MDP, epsilon: float, value: ArrayLike | None = None) -> Policy:
        """With probability ε an action at random, otherwise the greedy one.

        >>> import retvar as rv
        >>> walk = rv.domains.random_walk(5)
        >>> Policy.epsilon_greedy(walk, 0.1) == Policy.uniform(walk)
        True
        """
        weight = float(arguments.unit_interval("epsilon", epsilon, 1)[0])
        greedy, uniform = cls.greedy(mdp, value), cls.uniform(mdp)
        return cls((1 - weight) * greedy.probabilities + weight * uniform.probabilities)

    @classmethod
    def from_array(cls, mdp: MDP, given: object, field: str = "policy") -> Policy:
        """Probabilities [state, action], or one action for each state.

        >>> import retvar as rv
        >>> Policy.from_array(rv.domains.complex_mdp(), [0, 3, 1, 0, 1]).probabilities[1]
        array([0., 0., 0., 1., 0.])
        """
        table = given.toarray() if hasattr(given, "toarray") else given  # sparse
        if not isinstance(table, Policy) and np.ndim(table) == 1:  # type: ignore[arg-type]
            actions = arguments.indices(field, table, 0, mdp.n_actions)  # type: ignore[arg-type]
            table = np.eye(mdp.n_actions)[actions]
        return cls(table, field=field).fitting(mdp, field)  # type: ignore[arg-type]

    @classmethod
    def from_callable(
        cls, mdp: MDP, choose: Callable[[int], object], field: str = "policy"
    ) -> Policy:
        """Ask `choose(state)` in every state: for an action, {action: probability}, or all of them.

        >>> import retvar as rv
        >>> complex_mdp = rv.domains.complex_mdp()
        >>> Policy.from_callable(complex_mdp, lambda s: 0).probabilities[1]
        array([1., 0., 0., 0., 0.])
        """
        table = np.zeros((mdp.n_states, mdp.n_actions))
        for state in range(mdp.n_states):
            answer = choose(state)
            if isinstance(answer, int | np.integer | str):
                answer = {answer: 1.0}
            if isinstance(answer, Mapping):
                for action, probability in answer.items():
                    where = f"{field}.{mdp.state_name(state)}"
                    a = mdp._action_of(where, action)
                    table[state, a] = parsing.number(f"{where}.{action}", probability)
                continue
            what = f"an action, a mapping from actions, or {mdp.n_actions} probabilities"
            row = arguments.floats(f"{field}[{mdp.state_name(state)}]", answer, what)
            if row.shape != (mdp.n_actions,):
                raise InputError(f"{field}[{mdp.state_name(state)}]", answer, f"must be {what}")
            table[state] = row
        return cls(table, field=field).fitting(mdp, field)

    def fitting(self, mdp: MDP, field: str) -> Policy:
        """Return this policy if `mdp` has its states and actions; otherwise say what is wrong."""
        expected = (mdp.n_states, mdp.n_actions)
        if self.probabilities.shape != expected:
            raise InputError(
                field,
                "{} states × {} actions".format(*self.probabilities.shape),
                "must be for {} states × {} actions".format(*expected),
            )
        missing = (self.probabilities > 0) & ~mdp.available
        if np.any(missing):
            s, a = (int(i) for i in np.argwhere(missing)[0])
            raise InputError(
                f"{field}[{mdp.state_name(s)}, {mdp.action_name(a)}]",
                f"{self.probabilities[s, a]:g}",
                "must be 0, since this state does not have this action",
            )
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Policy):
            return NotImplemented
        return np.array_equal(self.probabilities, other.probabilities)

    def __hash__(self) -> int:
        return hash(self.probabilities.tobytes())

    def __repr__(self) -> str:
        n, k = self.probabilities.shape
        fixed = int(np.sum(self.probabilities.max(axis=1) == 1))
        states = f"{n:,} state{'' if n == 1 else 's'}"
        return f"Policy({states}, {k:,} action{'' if k == 1 else 's'}, {fixed:,} deterministic)"


def action_values(mdp: MDP, value: Array) -> Array:
    """q[s, a] = E[r + γ′ value(s′)]; −∞ where an action is not available."""
    e = mdp.edges
    outcome = e.probability * (e.reward + e.gamma * value[e.next_state])
    pair = e.state * mdp.n_actions + e.action
    q = np.bincount(pair, weights=outcome, minlength=mdp.n_states * mdp.n_actions)
    return np.where(mdp.available, q.reshape(mdp.n_states, mdp.n_actions), -np.inf)


def _first_best(mdp: MDP, value: Array) -> Policy:
    return Policy(np.eye(mdp.n_actions)[np.argmax(_best(mdp, value), axis=1)])


def _best(mdp: MDP, value: Array) -> NDArray[np.bool_]:
    """Which actions are as good as the best, to within the rounding of what they are made of."""
    q = action_values(mdp, value)
    e = mdp.edges
    terms = e.probability * (np.abs(e.reward) + e.gamma * np.abs(value[e.next_state]))
    scale = np.bincount(e.state, weights=terms, minlength=mdp.n_states)
    return np.asarray(q >= q.max(axis=1, keepdims=True) - TIE * scale[:, None])


def _optimal(mdp: MDP) -> Policy:
    """Howard's policy iteration from the uniform policy, which ends wherever any policy does.

    An action is kept while it is as good as the best: a policy that ends is then followed by one
    that ends, also with γ = 1.
    """
    policy = Policy.uniform(mdp)
    for _ in range(ROUNDS):
        value = state_values(ask(mdp, policy)).x
        best = _best(mdp, value)
        settled = ~np.any((policy.probabilities > 0) & ~best, axis=1)
        if settled.all():
            break
        improved = np.eye(mdp.n_actions)[np.argmax(best, axis=1)]
        policy = Policy(np.where(settled[:, None], policy.probabilities, improved))
    else:
        raise ConvergenceError(f"policy iteration did not settle within {ROUNDS} rounds")
    first = _first_best(mdp, value)
    try:
        ask(mdp, first)
    except InputError:
        return _soonest(mdp, best)
    return first


def _soonest(mdp: MDP, best: NDArray[np.bool_]) -> Policy:
    """Of the best actions, in each state the first that may lead to γ < 1 in the fewest steps."""
    e = mdp.edges
    good = best[e.state, e.action] & (e.probability > 0)
    choice = np.full(mdp.n_states, -1)
    leads = good & (e.gamma < 1)
    while leads.any():
        state, first = np.unique(e.state[leads], return_index=True)
        choice[state] = e.action[leads][first]
        decided = choice >= 0
        leads = good & ~decided[e.state] & decided[e.next_state]
    return Policy(np.eye(mdp.n_actions)[choice])
