"""Policies, greedy policies and policy iteration."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.mdp.edges import parse_number
from retvar.mdp.weighted_edges import check_mdp, state_values, sum_by_action, weigh_edges
from retvar.support import arguments
from retvar.support.errors import ConvergenceError, InputError
from retvar.support.format import count
from retvar.support.html import MOST, Shown, page, table

if TYPE_CHECKING:
    from retvar.mdp.model import MDP

Array = NDArray[np.float64]
TIE = 1e-10  # actions within this relative distance of the best count as equally good
MOST_COLUMNS = 8  # actions that have a column each in a notebook
MAX_ITERATIONS = 1_000  # of policy iteration, which usually needs about ten
SOLVER = "retvar.exact.solution"  # lies above this module, and is looked up when it is needed


class Policy(Shown):
    """Probabilities of actions in every state: an immutable array [state, action].

    >>> Policy([[0.5, 0.5], [1, 0]])
    Policy(2 states, 2 actions, 1 deterministic)
    >>> Policy([[0.5, 0.6]])
    Traceback (most recent call last):
    ...
    retvar.InputError: sum of policy[0] = 1.1: must be 1
    """

    def __init__(self, probabilities: ArrayLike | Policy, *, field: str = "policy") -> None:
        given = probabilities.probabilities if isinstance(probabilities, Policy) else probabilities
        table = arguments.floats(field, given, "an array [state, action]") + 0.0  # no −0
        if table.ndim != 2:
            shape = f"an array of shape {table.shape}"
            raise InputError(field, shape, "must be an array [state, action]")
        for s, a in np.argwhere(~(np.isfinite(table) & (table >= 0)))[:1].tolist():
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
        """The policy that takes every available action with the same probability.

        >>> import retvar as rv
        >>> Policy.uniform(rv.domains.chain()).probabilities.ravel()
        array([1., 1., 1., 1.])
        """
        check_mdp(mdp)
        available = mdp.available
        return cls(available / available.sum(axis=1, keepdims=True))

    @classmethod
    def greedy(cls, mdp: MDP, value: ArrayLike | None = None) -> Policy:
        """The policy that is greedy for `value`; by default for the optimal value function.

        Ties are broken in favour of the first action, so that the policy, and with it the
        variance, does not depend on rounding. If γ = 1 and these actions never end an episode, the
        tied actions that can end it in the fewest steps are taken.

        >>> import retvar as rv
        >>> lake = rv.domains.from_gymnasium("FrozenLake-v1", gamma=0.9, is_slippery=False)
        >>> Policy.greedy(lake).probabilities[0]  # left, down, right, up
        array([0., 1., 0., 0.])
        """
        check_mdp(mdp)
        if value is not None:
            value = arguments.numbers("value", value, mdp.n_states, mdp.state_name)
            return cls(_first(_best(*_scores(mdp, value))))
        return _optimal_policy(mdp)

    @classmethod
    def epsilon_greedy(cls, mdp: MDP, epsilon: float, value: ArrayLike | None = None) -> Policy:
        """The policy that takes a random action with probability ε, otherwise the greedy one.

        >>> import retvar as rv
        >>> walk = rv.domains.random_walk(5)
        >>> Policy.epsilon_greedy(walk, 0.1) == Policy.uniform(walk)
        True
        """
        weight = float(arguments.unit_interval("epsilon", epsilon, 1)[0])
        greedy, uniform = cls.greedy(mdp, value), cls.uniform(mdp)
        return cls((1 - weight) * greedy.probabilities + weight * uniform.probabilities)

    @classmethod
    def cautious(cls, mdp: MDP, penalty: float, policy: object = None) -> Policy:
        """The policy that is greedy in q − penalty·variance of the actions of another policy.

        q and variance are :attr:`Solution.q <retvar.Solution.q>` and ``q_variance`` of `policy`, by
        default of the greedy one; without a penalty this is the greedy policy. A negative penalty
        seeks risk. The new policy may be worse than the old one, since its return has other moments
        than its actions had before, and where γ = 1 it may never end; see :func:`frontier`. Ties go
        to the first action, as for :meth:`greedy`. An infinite variance is the worst that a
        penalty above 0 can meet, the best below 0, and without effect at 0.

        >>> import retvar as rv
        >>> coin = [("s", "toss", "end", 0.5, 0.0), ("s", "toss", "end", 0.5, 3.0)]
        >>> bet = rv.MDP.from_edges([*coin, ("s", "keep", "end", 1.0, 1.0)], gamma=1.0)
        >>> bet.action_names, Policy.cautious(bet, 0.1).probabilities.tolist()
        (('toss', 'keep'), [[1.0, 0.0]])
        >>> Policy.cautious(bet, 0.3).probabilities.tolist()
        [[0.0, 1.0]]
        """
        check_mdp(mdp)
        weight = arguments.number("penalty", penalty)
        followed = _optimal_policy(mdp) if policy is None else mdp.policy(policy)
        found = importlib.import_module(SOLVER).solve(mdp, followed)
        score, scale = _scores(mdp, found.value)
        if weight:
            unit = max(1.0, abs(weight))  # of the scores, so that a large penalty does not overflow
            weight, score, scale = weight / unit, score / unit, scale / unit
            cost = np.where(mdp.available & np.isnan(found.q_variance), np.inf, found.q_variance)
            score = np.where(mdp.available, score - weight * cost, -np.inf)
            finite = np.where(np.isfinite(cost), cost, 0.0)
            scale = scale + abs(weight) * finite.max(axis=1)
        return cls(_first(_best(score, scale)))

    @classmethod
    def from_array(cls, mdp: MDP, array: object, field: str = "policy") -> Policy:
        """A policy from probabilities [state, action], or from one action for each state.

        >>> import retvar as rv
        >>> Policy.from_array(rv.domains.complex_mdp(), [0, 3, 1, 0, 1]).probabilities[1]
        array([0., 0., 0., 1., 0.])
        """
        check_mdp(mdp)
        given: Any = array.toarray() if hasattr(array, "toarray") else array  # sparse
        if np.ndim(given) == 1:
            given = np.eye(mdp.n_actions)[arguments.indices(field, given, 0, mdp.n_actions)]
        return cls(given, field=field).validate(mdp, field)

    @classmethod
    def from_callable(
        cls, mdp: MDP, choose: Callable[[int], object], field: str = "policy"
    ) -> Policy:
        """A policy from `choose(state)`: an action, {action: probability}, or all probabilities.

        >>> import retvar as rv
        >>> complex_mdp = rv.domains.complex_mdp()
        >>> Policy.from_callable(complex_mdp, lambda s: 0).probabilities[1]
        array([1., 0., 0., 0., 0.])
        """
        check_mdp(mdp)
        rows = [_row(mdp, s, choose(s), field) for s in range(mdp.n_states)]
        return cls(rows, field=field).validate(mdp, field)

    def validate(self, mdp: MDP, field: str) -> Policy:
        """Return this policy if `mdp` has its states and actions; otherwise raise an InputError."""
        expected = (mdp.n_states, mdp.n_actions)
        if self.probabilities.shape != expected:
            found = "{} states × {} actions".format(*self.probabilities.shape)
            raise InputError(field, found, "must be for {} states × {} actions".format(*expected))
        for s, a in np.argwhere((self.probabilities > 0) & ~mdp.available)[:1].tolist():
            where = f"{field}[{mdp.state_name(s)}, {mdp.action_name(a)}]"
            remedy = "must be 0, since this state does not have this action"
            raise InputError(where, f"{self.probabilities[s, a]:g}", remedy)
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
        return f"Policy({count(n, 'state')}, {count(k, 'action')}, {fixed:,} deterministic)"

    def _html(self) -> str:
        n, k = self.probabilities.shape
        shown, rest = np.split(self.probabilities[:MOST], [MOST_COLUMNS], axis=1)
        heading = ["state", *(f"action {a}" for a in range(shown.shape[1]))]
        if k > MOST_COLUMNS:
            heading.append("others")
            shown = np.hstack([shown, rest.sum(axis=1, keepdims=True)])
        rows = [[str(s), *(f"{p:.4g}" for p in row)] for s, row in enumerate(shown.tolist())]
        return page(repr(self), table(heading, rows, n))


def _row(mdp: MDP, state: int, choice: Any, field: str) -> Array:
    """The probabilities of a choice: an action, {action: probability}, or all of them."""
    name = mdp.state_name(state)
    if isinstance(choice, int | np.integer | str):
        choice = {choice: 1.0}
    if isinstance(choice, Mapping):
        row = np.zeros(mdp.n_actions)
        for action, probability in choice.items():
            where = f"{field}.{name}"
            row[mdp._action_of(where, action)] = parse_number(f"{where}.{action}", probability)
        return row
    what = f"an action, a mapping from actions, or {mdp.n_actions} probabilities"
    row = arguments.floats(f"{field}[{name}]", choice, what)
    if row.shape != (mdp.n_actions,):
        raise InputError(f"{field}[{name}]", choice, f"must be {what}")
    return row


def _scores(mdp: MDP, value: Array) -> tuple[Array, Array]:
    """q[s, a] = E[r + γ′ value(s′)], −∞ where s has no a; and the size of its terms in s."""
    e = mdp.edges
    after = e.gamma * value[e.next_state]
    q = sum_by_action(mdp, e.probability * (e.reward + after))
    terms = e.probability * (np.abs(e.reward) + np.abs(after))
    scale = np.bincount(e.state, weights=terms, minlength=mdp.n_states).astype(np.float64)
    return np.where(mdp.available, q, -np.inf), scale


def _best(score: Array, scale: Array) -> NDArray[np.bool_]:
    """Which actions of each state have a score within rounding of the best."""
    return np.asarray(score >= score.max(axis=1, keepdims=True) - TIE * scale[:, None])


def _first(actions: NDArray[np.bool_]) -> Array:
    """Probabilities of the policy that takes the first of some actions of each state."""
    return np.asarray(np.eye(actions.shape[1])[np.argmax(actions, axis=1)])


def _optimal_policy(mdp: MDP) -> Policy:
    """Howard's policy iteration, started from the uniform policy.

    The uniform policy ends episodes wherever any policy does. A state keeps its actions while they
    are as good as the best, so every following policy ends episodes too, also with γ = 1.
    """
    policy = Policy.uniform(mdp)
    for _ in range(MAX_ITERATIONS):
        value = state_values(weigh_edges(mdp, policy)).x
        best = _best(*_scores(mdp, value))
        unchanged = ~np.any((policy.probabilities > 0) & ~best, axis=1)
        if unchanged.all():
            break
        policy = Policy(np.where(unchanged[:, None], policy.probabilities, _first(best)))
    else:
        raise ConvergenceError(f"policy iteration needs more than {MAX_ITERATIONS} iterations")
    first = Policy(_first(best))
    try:
        weigh_edges(mdp, first)
    except InputError:
        return _fewest_steps(mdp, best)
    return first


def _fewest_steps(mdp: MDP, best: NDArray[np.bool_]) -> Policy:
    """The first of the best actions of each state that can reach γ < 1 in the fewest steps."""
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
