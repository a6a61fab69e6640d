"""The columns of an MDP's edges, and their validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.format import listed
from retvar.mdp.parsing import END

__all__ = ["EdgeValidator", "Edges"]

Array = NDArray[np.float64]
Integers = NDArray[np.intp]


class Edges(NamedTuple):
    """The edges of an MDP as read-only columns, sorted by state and action.

    >>> import retvar as rv
    >>> rv.domains.chain().edges.next_state
    array([ 1,  2,  3, -1])
    """

    state: Integers
    action: Integers
    next_state: Integers  #: ``END`` (−1) where the episode ends
    probability: Array  #: of this edge, given state and action
    reward: Array  #: mean
    reward_std: Array
    gamma: Array  #: discount on arrival; 0 where the episode ends


@dataclass(frozen=True)
class EdgeValidator:
    """Checks columns of edges and normalises their probabilities."""

    n_states: int
    n_actions: int
    state_name: Callable[[int], str]
    action_name: Callable[[int], str]

    def validate(self, columns: tuple[Any, ...], gamma: ArrayLike | None) -> Edges:
        """Return valid columns, sorted by state and action, or raise an InputError."""
        if len(columns) != len(Edges._fields):
            fields = ", ".join(Edges._fields)
            raise InputError("edges", f"{len(columns)} columns", f"must be the columns {fields}")
        state = arguments.indices("edges.state", columns[0], 0, self.n_states)
        action = arguments.indices("edges.action", columns[1], 0, self.n_actions)
        next_state = arguments.indices("edges.next_state", columns[2], END, self.n_states)
        count = state.size
        if count == 0:
            raise InputError("edges", "none", "must hold at least one edge")
        for field, column in (("action", action), ("next_state", next_state)):
            if column.size != count:
                remedy = f"must have {count}, as edges.state has"
                raise InputError(f"edges.{field}", f"{column.size} entries", remedy)

        def label(i: int) -> str:
            to = "end" if next_state[i] == END else self.state_name(int(next_state[i]))
            return f"{self.state_name(int(state[i]))}, {self.action_name(int(action[i]))} → {to}"

        probability = arguments.numbers("probability", columns[3], count, label)
        reward = arguments.numbers("reward", columns[4], count, label)
        std = arguments.numbers("reward_std", columns[5], count, label)
        for field, amount in (("probability", probability), ("reward_std", std)):
            arguments.refuse(field, amount, amount < 0, "must not be negative", label)
        discount = self._discount(columns[6], gamma, next_state, label)
        order = np.lexsort((action, state))
        state, action, probability = state[order], action[order], probability[order]
        return Edges(
            state,
            action,
            next_state[order],
            self._normalised(state, action, probability),
            reward[order],
            std[order],
            discount[order],
        )

    def _discount(
        self,
        per_edge: ArrayLike | None,
        per_state: ArrayLike | None,
        next_state: Integers,
        label: Callable[[int], str],
    ) -> Array:
        """One γ per edge, from `per_edge` or from γ on arrival in each state."""
        ends = next_state == END
        once = "give γ once: a number, one per state, or one per edge"
        if per_state is not None:
            if per_edge is not None:
                raise InputError("gamma", "given per state and per edge", once)
            arriving = arguments.unit_interval("gamma", per_state, self.n_states, self.state_name)
            return np.where(ends, 0.0, arriving[next_state])
        if per_edge is None:
            raise InputError("gamma", "nothing", once)
        discount = arguments.unit_interval("gamma", per_edge, next_state.size, label)
        remedy = "must be 0 where the episode ends; name a state to go on in, or give 0"
        arguments.refuse("gamma", discount, ends & (discount != 0), remedy, label)
        return discount

    def _normalised(self, state: Integers, action: Integers, probability: Array) -> Array:
        """Probabilities divided by their sum over each state and action, if it is not 1."""
        pair = state * self.n_actions + action
        starts = np.flatnonzero(np.concatenate([[True], pair[1:] != pair[:-1]]))
        sizes = np.diff(np.append(starts, pair.size))
        with np.errstate(over="ignore"):
            totals = np.add.reduceat(probability, starts)
        wrong = np.abs(totals - 1) > arguments.TOLERANCE
        if np.any(wrong):
            first = int(np.argmax(wrong))
            s, a = int(state[starts[first]]), int(action[starts[first]])
            raise InputError(
                f"sum of probability[{self.state_name(s)}, {self.action_name(a)}]",
                f"{totals[first]:.12g}",
                "the edges of a state and action must sum to 1",
            )
        without_edge = np.flatnonzero(np.bincount(state, minlength=self.n_states) == 0)
        if without_edge.size:
            raise InputError(
                "states",
                listed(self.state_name(int(s)) for s in without_edge),
                "must have an edge that leaves them; where an episode ends, use next state 'end'",
            )
        exact = np.abs(totals - 1) <= arguments.EXACT * sizes
        return np.asarray(probability / np.repeat(np.where(exact, 1.0, totals), sizes))
