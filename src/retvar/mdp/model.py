"""The MDP: a list of edges, validated once, immutable ever after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.errors import InputError, listed
from retvar.mdp import checks, rows
from retvar.mdp.policy import Policy
from retvar.mdp.rows import END, END_NAMES, Edge

__all__ = ["END", "MDP", "Edge", "Edges"]

Array = NDArray[np.float64]
Integers = NDArray[np.intp]


class Edges(NamedTuple):
    """All edges of an MDP as columns, sorted by state and action; read-only arrays.

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


class MDP:
    """A finite Markov decision process, stored as edges; parallel edges stay apart.

    Parameters
    ----------
    edges
        Columns (see :class:`Edges`; ``gamma`` may be None) or use :meth:`from_edges`.
    gamma
        Discount on arriving in a state: a number or one per state. Where it depends on the edge,
        leave it out and give the edges' own.
    lam
        λ on arriving in a state: a number or one per state.
    start
        Where episodes start: a state, a mapping from states to probabilities, or all of them.
    policies
        Name → :class:`Policy`, array, or callable; the first is the default. Without any, there
        is one: ``uniform``.
    states, actions
        How many, or their names. Names are used in every print and plot.
    positions
        Where to draw the states: one (x, y) each, optional.
    name
        What the MDP is called in prints.

    Examples
    --------
    >>> import retvar as rv
    >>> coin = rv.MDP.from_edges(
    ...     [("toss", "go", "toss", 0.5, 1.0), ("toss", "go", "end", 0.5, 0.0)], gamma=1.0)
    >>> coin
    MDP(1 state, 1 action, 2 edges, 1 of them ends an episode; γ = 1, λ = 1; policies: uniform)
    >>> rv.solve(coin).variance
    array([2.])
    """

    def __init__(
        self,
        edges: Edges | tuple[ArrayLike | None, ...],
        *,
        gamma: ArrayLike | None = None,
        lam: ArrayLike = 1.0,
        start: object = 0,
        policies: Mapping[str, object] | None = None,
        states: int | Sequence[str] | None = None,
        actions: int | Sequence[str] | None = None,
        positions: ArrayLike | None = None,
        name: str = "",
    ) -> None:
        columns = Edges(*edges)  # type: ignore[arg-type]
        self.name = name
        self.state_names, self.n_states = rows.names("states", states, columns.state)
        self.action_names, self.n_actions = rows.names("actions", actions, columns.action)
        self.edges = self._checked_edges(columns, gamma)
        self.lam = _frozen(checks.unit_interval("lam", lam, self.n_states, self.state_name))
        self.start = _frozen(self._start(start))
        self.positions = None if positions is None else _frozen(self._positions(positions))
        given = policies or {"uniform": Policy.uniform(self)}
        self.policies: Mapping[str, Policy] = MappingProxyType(
            {str(key): self._policy(policy, str(key)) for key, policy in given.items()}
        )
        self._sealed = True

    def __setattr__(self, attribute: str, value: object) -> None:
        if getattr(self, "_sealed", False):
            raise AttributeError(f"an MDP is immutable; build another to change {attribute}")
        super().__setattr__(attribute, value)

    # ------------------------------------------------------------------ constructors

    @classmethod
    def from_edges(cls, edges: Iterable[Edge | tuple[Any, ...]], **settings: Any) -> MDP:
        """Build from :class:`Edge` rows (or tuples in that order); see :class:`MDP` for the rest.

        Where states or actions are named and no list is given, they are numbered as they appear.

        >>> MDP.from_edges([("a", "x", "b"), ("b", "x", "end")], gamma=0.9).state_names
        ('a', 'b')
        """
        parsed = [rows.edge(i, row) for i, row in enumerate(edges)]
        if not parsed:
            raise InputError("edges", "[]", "must hold at least one edge")
        ends = {r.next_state for r in parsed} & set(END_NAMES)
        state_keys = [k for r in parsed for k in (r.state, r.next_state) if k not in ends]
        states = settings.setdefault("states", rows.found(state_keys))
        actions = settings.setdefault("actions", rows.found([r.action for r in parsed]))
        state_of = rows.lookup("states", states, dict.fromkeys(END_NAMES, END))
        action_of = rows.lookup("actions", actions, {})
        columns = Edges(
            np.array([state_of(f"edges[{i}].state", r.state) for i, r in enumerate(parsed)]),
            np.array([action_of(f"edges[{i}].action", r.action) for i, r in enumerate(parsed)]),
            np.array(
                [state_of(f"edges[{i}].next_state", r.next_state) for i, r in enumerate(parsed)]
            ),
            *(
                np.array(
                    [rows.number(f"edges[{i}].{f}", getattr(r, f)) for i, r in enumerate(parsed)]
                )
                for f in ("probability", "reward", "reward_std")
            ),
            rows.edge_gammas(parsed),
        )
        return cls(columns, **settings)

    @classmethod
    def from_dense(
        cls,
        P: ArrayLike,
        R: ArrayLike,
        *,
        reward_std: ArrayLike = 0.0,
        **settings: Any,
    ) -> MDP:
        """Build from P[s, a, s′] and R[s, a, s′] (or R[s, a], or R[s]).

        An action whose row of P is all zero is not available in that state. To end episodes, use
        γ = 0 on arrival in a state, or edges.

        >>> MDP.from_dense([[[0, 1]], [[1, 0]]], [0.0, 1.0], gamma=0.5).n_states
        2
        """
        table = np.asarray(P, dtype=np.float64)
        if table.ndim != 3 or table.shape[0] != table.shape[2]:
            raise InputError("P", f"an array of shape {table.shape}", "must be P[s, a, s′]")
        bad = ~np.isfinite(table) | (table < 0)
        if np.any(bad):
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            raise InputError(f"P{list(where)}", table[where], "must be a probability")
        state, action, next_state = np.nonzero(table)
        columns = Edges(
            state,
            action,
            next_state,
            table[state, action, next_state],
            rows.spread("R", R, table.shape)[state, action, next_state],
            rows.spread("reward_std", reward_std, table.shape)[state, action, next_state],
            None,  # type: ignore[arg-type]
        )
        settings.setdefault("states", table.shape[0])
        settings.setdefault("actions", table.shape[1])
        return cls(columns, **settings)

    @classmethod
    def from_gymnasium(cls, env: Any, *, gamma: float, lam: ArrayLike = 1.0, **options: Any) -> MDP:
        """Build from the table of a Gymnasium toy-text environment, given by id or as an object.

        ``options`` go to ``gymnasium.make``. γ is never assumed: the table has none.

        >>> lake = MDP.from_gymnasium("FrozenLake-v1", gamma=0.99, is_slippery=False)
        >>> lake.n_states, lake.n_actions
        (16, 4)
        """
        from retvar.mdp import tables

        return tables.from_gymnasium(env, gamma=gamma, lam=lam, **options)

    @classmethod
    def from_toml(cls, source: str | Path) -> MDP:
        """Read an MDP from a TOML file; the format is that of :meth:`to_toml`.

        >>> import pathlib, tempfile, retvar as rv
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "chain.toml"
        >>> rv.domains.chain().to_toml(path)
        >>> rv.MDP.from_toml(path) == rv.domains.chain()
        True
        """
        from retvar.mdp import toml

        return toml.read_toml(Path(source))

    def to_toml(self, path: str | Path) -> None:
        """Write the MDP, with its policies, to a TOML file that gives the same MDP back."""
        from retvar.mdp import toml

        toml.write_toml(self, Path(path))

    # ------------------------------------------------------------------ names and policies

    def state_name(self, index: int) -> str:
        """Name of a state; its number where states have no names."""
        return self.state_names[index] if self.state_names else str(index)

    def action_name(self, index: int) -> str:
        """Name of an action; its number where actions have no names."""
        return self.action_names[index] if self.action_names else str(index)

    def state_index(self, state: int | str) -> int:
        """Index of a state given by name or index.

        >>> import retvar as rv
        >>> rv.domains.chain().state_index("s2")
        2
        """
        return self._state_of("state", state)

    def action_index(self, action: int | str) -> int:
        """Index of an action given by name or index."""
        return self._action_of("action", action)

    def policy(self, policy: object = None) -> Policy:
        """Return a policy that fits this MDP.

        `policy` is a name, a :class:`Policy`, an array, or a callable; None is the default.
        ``"uniform"`` and ``"greedy"`` are always known.

        >>> import retvar as rv
        >>> rv.domains.complex_mdp().policy("pi").probabilities[0]
        array([1., 0., 0., 0., 0.])
        """
        return self._policy(next(iter(self.policies)) if policy is None else policy, "policy")

    @property
    def gamma(self) -> Array | None:
        """γ on arriving in each state, NaN where nothing arrives; None if edges into one differ."""
        e = self.edges
        enters = e.next_state != END
        gamma = np.full(self.n_states, np.nan)
        gamma[e.next_state[enters]] = e.gamma[enters]
        return gamma if np.array_equal(gamma[e.next_state[enters]], e.gamma[enters]) else None

    @cached_property
    def available(self) -> NDArray[np.bool_]:
        """Which actions each state has: an array [state, action]."""
        table = np.zeros((self.n_states, self.n_actions), dtype=bool)
        table[self.edges.state, self.edges.action] = True
        return _frozen(table)

    @property
    def episodic(self) -> bool:
        """Whether some edge ends an episode."""
        return bool(np.any(self.edges.next_state == END))

    # ------------------------------------------------------------------ Python's own

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MDP):
            return NotImplemented
        return (
            (self.name, self.state_names, self.action_names, list(self.policies))
            == (other.name, other.state_names, other.action_names, list(other.policies))
            and (self.n_states, self.n_actions) == (other.n_states, other.n_actions)
            and all(map(np.array_equal, self.edges, other.edges))
            and np.array_equal(self.lam, other.lam)
            and np.array_equal(self.start, other.start)
            and _same(self.positions, other.positions)
            and all(self.policies[key] == other.policies[key] for key in self.policies)
        )

    def __hash__(self) -> int:
        return hash((self.name, self.n_states, self.n_actions, self.edges.reward.tobytes()))

    def __repr__(self) -> str:
        e = self.edges
        ends = int(np.sum(e.next_state == END))
        gamma = e.gamma[e.next_state != END]
        return (
            f"MDP({self.name + ': ' if self.name else ''}{_count(self.n_states, 'state')}, "
            f"{_count(self.n_actions, 'action')}, {_count(e.state.size, 'edge')}"
            + (f", {ends} of them end{'s' if ends == 1 else ''} an episode" if ends else "")
            + f"; γ = {_range(gamma)}, λ = {_range(self.lam)}; policies: {listed(self.policies)})"
        )

    def __reduce__(self) -> tuple[Callable[..., MDP], tuple[Any, ...]]:
        settings = {
            "lam": self.lam,
            "start": self.start,
            "policies": dict(self.policies),
            "states": self.state_names or self.n_states,
            "actions": self.action_names or self.n_actions,
            "positions": self.positions,
            "name": self.name,
        }
        return _rebuild, (tuple(self.edges), settings)

    # ------------------------------------------------------------------ validation

    def _checked_edges(self, given: Edges, gamma: ArrayLike | None) -> Edges:
        n, k = self.n_states, self.n_actions
        state = checks.indices("edges.state", given.state, 0, n)
        count = state.size
        if count == 0:
            raise InputError("edges", "none", "must hold at least one edge")
        action = checks.indices("edges.action", given.action, 0, k)
        next_state = checks.indices("edges.next_state", given.next_state, END, n)
        for field, column in (("action", action), ("next_state", next_state)):
            if column.size != count:
                raise InputError(
                    f"edges.{field}", f"{column.size} entries", f"must have {count}, as edges.state"
                )
        label = self._edge_label(state, action, next_state)
        probability = checks.numbers("probability", given.probability, count, label)
        checks.refuse("probability", probability, probability < 0, "must not be negative", label)
        reward = checks.numbers("reward", given.reward, count, label)
        std = checks.numbers("reward_std", given.reward_std, count, label)
        checks.refuse("reward_std", std, std < 0, "must not be negative", label)
        edge_gamma = self._edge_gamma(given.gamma, gamma, next_state, label)
        order = np.lexsort((action, state))
        columns = (state, action, next_state, probability, reward, std, edge_gamma)
        edges = Edges(*(column[order] for column in columns))
        edges = edges._replace(probability=self._normalised(edges))
        return Edges(*map(_frozen, edges))

    def _edge_gamma(
        self, given: ArrayLike | None, gamma: ArrayLike | None, next_state: Integers, label: Any
    ) -> Array:
        """One γ per edge, from those of the states arrived in or from the edges' own."""
        ends = next_state == END
        if (given is None) == (gamma is None):
            raise InputError(
                "gamma",
                "nothing" if gamma is None else "given twice",
                "give γ once: a number, one per state, or one per edge",
            )
        if gamma is not None:
            per_state = checks.unit_interval("gamma", gamma, self.n_states, self.state_name)
            return np.where(ends, 0.0, per_state[next_state])
        per_edge = checks.unit_interval("gamma", given, next_state.size, label)  # type: ignore[arg-type]
        checks.refuse(
            "gamma",
            per_edge,
            ends & (per_edge != 0),
            "must be 0 where the episode ends; name a state to go on in, or give 0",
            label,
        )
        return per_edge

    def _normalised(self, edges: Edges) -> Array:
        """Probabilities that sum to 1 over the edges of each state and action, to rounding."""
        pair = edges.state * self.n_actions + edges.action
        starts = np.flatnonzero(np.r_[True, pair[1:] != pair[:-1]])
        sizes = np.diff(np.r_[starts, pair.size])
        totals = np.add.reduceat(edges.probability, starts)
        wrong = np.abs(totals - 1) > checks.TOLERANCE
        if np.any(wrong):
            i = starts[np.argmax(wrong)]
            where = f"{self.state_name(edges.state[i])}, {self.action_name(edges.action[i])}"
            raise InputError(
                f"sum of probability[{where}]",
                f"{totals[np.argmax(wrong)]:.12g}",
                "the edges of a state and action must sum to 1",
            )
        stuck = np.bincount(edges.state, minlength=self.n_states) == 0
        if np.any(stuck):
            raise InputError(
                "states",
                listed(self.state_name(int(s)) for s in np.flatnonzero(stuck)),
                "must have an edge that leaves them; where an episode ends, use next state 'end'",
            )
        keep = np.abs(totals - 1) <= checks.EXACT * sizes
        return edges.probability / np.repeat(np.where(keep, 1.0, totals), sizes)

    def _edge_label(self, state: Integers, action: Integers, next_state: Integers) -> Any:
        def label(i: int) -> str:
            to = "end" if next_state[i] == END else self.state_name(int(next_state[i]))
            return f"{self.state_name(int(state[i]))}, {self.action_name(int(action[i]))} → {to}"

        return label

    def _start(self, start: object) -> Array:
        if isinstance(start, int | np.integer | str):
            start = {start: 1.0}
        if isinstance(start, Mapping):
            table = np.zeros(self.n_states)
            for state, probability in start.items():
                table[self._state_of("start", state)] = rows.number(f"start[{state}]", probability)
            start = table
        return checks.distribution("start", start, self.n_states, self.state_name)  # type: ignore[arg-type]

    def _positions(self, positions: ArrayLike) -> Array:
        flat = checks.numbers("positions", np.ravel(positions), 2 * self.n_states)
        return flat.reshape(self.n_states, 2)

    def _policy(self, policy: object, field: str) -> Policy:
        if isinstance(policy, str):
            known = getattr(self, "policies", {})
            if policy in known:
                return known[policy]
            made = {"uniform": Policy.uniform, "greedy": Policy.greedy}.get(policy)
            if made is None:
                names = listed(dict.fromkeys([*known, "uniform", "greedy"]), most=20)
                raise InputError(field, repr(policy), f"unknown policy; known are {names}")
            return made(self)
        if isinstance(policy, Policy):
            return policy.fitting(self, field)
        if isinstance(policy, Mapping):
            return Policy.from_callable(self, rows.by_state(self, policy, field))
        if callable(policy):
            return Policy.from_callable(self, policy)
        return Policy(policy).fitting(self, field)  # type: ignore[arg-type]

    @cached_property
    def _state_of(self) -> Callable[[str, object], int]:
        return rows.lookup("states", self.state_names or self.n_states, {})

    @cached_property
    def _action_of(self) -> Callable[[str, object], int]:
        return rows.lookup("actions", self.action_names or self.n_actions, {})


def _rebuild(edges: tuple[Any, ...], settings: dict[str, Any]) -> MDP:
    return MDP(edges, **settings)


def _frozen(array: Any) -> Any:
    array = np.ascontiguousarray(array)
    if array.flags.writeable:
        array = array.copy() if array.base is not None else array
        array.flags.writeable = False
    return array


def _same(a: Array | None, b: Array | None) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _range(values: Array) -> str:
    if values.size == 0:
        return "0"
    low, high = float(values.min()), float(values.max())
    return f"{low:g}" if low == high else f"{low:g} … {high:g}"
