"""The MDP class: a validated, immutable list of edges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.mdp import edges as edge_columns
from retvar.mdp.edges import END, Edge, Edges
from retvar.mdp.policy import Policy
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.files import read_bytes, write_text
from retvar.support.format import count, did_you_mean, listed, literal, visible
from retvar.support.html import MOST, Shown, page, table

Array = NDArray[np.float64]
PAIRS, PAIRS_PER_EDGE = 1_000_000, 10_000  # most states × actions: so many, and more for each edge


class MDP(Shown):
    """A finite Markov decision process, stored as edges; parallel edges are not merged.

    Parameters
    ----------
    edges
        Columns, as in :class:`Edges`; ``gamma`` may be None. For rows use :meth:`from_edges`.
    gamma
        Discount on arriving in a state: a number or one per state. Leave it out if every edge has
        its own.
    lam
        λ on arriving in a state: a number or one per state.
    start
        Start of episodes: a state, a mapping from states to probabilities, or an array of them.
    policies
        Name → :class:`Policy`, array, or callable; the first is the default. Defaults to one
        policy, ``uniform``.
    states, actions
        Their number or their names. Names appear in texts and plots.
    positions
        Where to draw the states: one (x, y) each; optional.
    name
        Name of the MDP in texts.

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
        edges: Edges | tuple[Any, ...],
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
        if not isinstance(edges, tuple) or len(edges) != len(Edges._fields):
            remedy = "must be the seven columns of Edges; for rows use MDP.from_edges"
            raise InputError("edges", type(edges).__name__, remedy)
        self.name = arguments.text("name", name)
        self.state_names, self.n_states = edge_columns.parse_names("states", states, edges[0])
        self.action_names, self.n_actions = edge_columns.parse_names("actions", actions, edges[1])
        if self.n_states * self.n_actions > PAIRS + PAIRS_PER_EDGE * np.size(edges[0]):
            pairs = f"{self.n_states:,} × {self.n_actions:,}"
            remedy = "are far more than edges; number the states, and the actions of each, from 0"
            raise InputError("states × actions", pairs, remedy)
        self._as_given = True  # whether edges are in the order in which they were given
        self.edges = Edges(*map(_read_only, edge_columns.validated(self, edges, gamma)))
        self.gamma: Array | None = self._gamma_on_arrival(gamma)
        self.lam = _read_only(arguments.unit_interval("lam", lam, self.n_states, self.state_name))
        self.start = _read_only(self._distribution(start))
        self.positions = None if positions is None else _read_only(self._positions(positions))
        policies = policies or {"uniform": Policy.uniform(self)}
        arguments.instance("policies", policies, Mapping, "a mapping from names to policies")
        named = {arguments.text("policies", key): policy for key, policy in policies.items()}
        found = {key: self._policy(policy, f"policies.{key}") for key, policy in named.items()}
        self.policies: Mapping[str, Policy] = MappingProxyType(found)
        self._immutable = True

    def __setattr__(self, attribute: str, value: object) -> None:
        if getattr(self, "_immutable", False):
            raise AttributeError(f"an MDP is immutable; build another to change {attribute}")
        super().__setattr__(attribute, value)

    # ------------------------------------------------------------------ constructors

    @classmethod
    def from_edges(cls, edges: Iterable[Edge | tuple[Any, ...]], **settings: Any) -> MDP:
        """Build from :class:`Edge` rows or such tuples; `settings` are those of :class:`MDP`.

        Named states and actions are numbered as they appear, unless `settings` lists them. The
        edges are then sorted by the numbers of state and action, see ``mdp.edges``.

        >>> MDP.from_edges([("a", "x", "b"), ("b", "x", "end")], gamma=0.9).state_names
        ('a', 'b')
        """
        return cls(edge_columns.columns_of(edges, settings), **settings)

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

        An action whose row of P is all zero is not available in that state. Arrays cannot express
        the end of an episode: set γ = 0 on arrival in a state, or use :meth:`from_edges`.

        >>> MDP.from_dense([[[0, 1]], [[1, 0]]], [0.0, 1.0], gamma=0.5).n_states
        2
        """
        table = arguments.floats("P", P, "an array P[s, a, s′] of numbers")
        if table.ndim != 3 or table.shape[0] != table.shape[2]:
            raise InputError("P", f"an array of shape {table.shape}", "must be P[s, a, s′]")
        state, action, next_state = np.nonzero(table)
        found = state, action, next_state
        rewards = (
            expanded(field, given, table.shape)[found]
            for field, given in (("R", R), ("reward_std", reward_std))
        )
        settings.setdefault("states", table.shape[0])
        settings.setdefault("actions", table.shape[1])
        return cls((*found, table[found], *rewards, None), **settings)

    @classmethod
    def from_gymnasium(cls, env: Any, *, gamma: float, lam: ArrayLike = 1.0, **options: Any) -> MDP:
        """Build from a Gymnasium toy-text environment, given as its id, itself, or its table ``P``.

        `options` are passed to ``gymnasium.make``. γ is required, since the table has none.

        >>> lake = MDP.from_gymnasium("FrozenLake-v1", gamma=0.99, is_slippery=False)
        >>> lake.n_states, lake.n_actions
        (16, 4)
        """
        from retvar.mdp import domains

        return domains.from_table(env, gamma=gamma, lam=lam, **options)

    @classmethod
    def from_toml(cls, source: str | Path, *, gamma: ArrayLike | None = None) -> MDP:
        """Read an MDP from a TOML file; the format is that of :meth:`to_toml`.

        `gamma` replaces the file's, which may then be missing.

        >>> import pathlib, tempfile, retvar as rv
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "chain.toml"
        >>> rv.domains.chain().to_toml(path)
        >>> rv.MDP.from_toml(path) == rv.domains.chain()
        True
        """
        from retvar.mdp import toml

        path = arguments.path("source", source)
        return toml.parse_mdp(read_bytes(path), path.name, gamma)

    def to_toml(self, path: str | Path) -> None:
        """Write the MDP and its policies to a TOML file; reading it gives an equal MDP."""
        from retvar.mdp import toml

        write_text(arguments.path("path", path), toml.toml_text(self))

    def replace(self, **changes: Any) -> MDP:
        """Return a copy with some settings of the constructor changed; edges cannot be.

        >>> import retvar as rv
        >>> rv.domains.chain().replace(gamma=0.5, name="short-sighted")
        MDP(short-sighted: 4 states, 1 action, 4 edges, 1 of them ends an episode; γ = 0.5, λ = 0.9;
            policies: uniform)
        """
        edges, settings = self._constructor_arguments()
        if "gamma" in changes:
            edges = (*edges[:-1], None)
        return MDP(edges, **{**settings, **changes})

    # ------------------------------------------------------------------ names and policies

    def state_name(self, index: int) -> str:
        """Name of a state; its number where states have no names."""
        return _name("state", self.state_names, self.n_states, index)

    def action_name(self, index: int) -> str:
        """Name of an action; its number where actions have no names."""
        return _name("action", self.action_names, self.n_actions, index)

    @property
    def state_labels(self) -> list[int | str]:
        """Names of all states, or their numbers."""
        return list(self.state_names or range(self.n_states))

    @property
    def action_labels(self) -> list[int | str]:
        """Names of all actions, or their numbers."""
        return list(self.action_names or range(self.n_actions))

    def state_index(self, state: int | str) -> int:
        """Index of a state given by name or index.

        >>> import retvar as rv
        >>> rv.domains.chain().state_index("s2")
        2
        """
        return self._state_of("state", state)

    def policy(self, policy: object = None, field: str = "policy") -> Policy:
        """Return a policy for this MDP; error messages call it `field`.

        `policy` is a name, a :class:`Policy`, an array, a callable, or a mapping from states; None
        stands for the default. The names ``"uniform"`` and ``"greedy"`` always exist.

        >>> import retvar as rv
        >>> rv.domains.complex_mdp().policy("pi").probabilities[0]
        array([1., 0., 0., 0., 0.])
        """
        return self._policy(next(iter(self.policies)) if policy is None else policy, field)

    def start_distribution(self, start: object = None) -> Array:
        """Probabilities of the states in which episodes start.

        `start` is a state, a mapping from states to probabilities, or an array of them; None
        stands for the MDP's own.

        >>> import retvar as rv
        >>> rv.domains.chain().start_distribution("s2")
        array([0., 0., 1., 0.])
        """
        chosen = self.start if start is None else self._distribution(start)
        return np.asarray(_read_only(chosen))

    @cached_property
    def available(self) -> NDArray[np.bool_]:
        """Whether each state has each action, as an array [state, action]."""
        table = np.zeros((self.n_states, self.n_actions), dtype=bool)
        table[self.edges.state, self.edges.action] = True
        return np.asarray(_read_only(table))

    @property
    def episodic(self) -> bool:
        """Whether some edge ends an episode."""
        return bool(np.any(self.edges.next_state == END))

    # ------------------------------------------------------------------ special methods

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
            and np.array_equal(self.positions, other.positions)  # type: ignore[arg-type]
            and all(self.policies[key] == other.policies[key] for key in self.policies)
        )

    def __hash__(self) -> int:
        return hash((self.name, self.n_states, self.n_actions, self.edges.reward.tobytes()))

    def __repr__(self) -> str:
        e = self.edges
        ends = int(np.sum(e.next_state == END))
        gamma = e.gamma[e.next_state != END]
        return (
            f"MDP({visible(self.name) + ': ' if self.name else ''}{count(self.n_states, 'state')}, "
            f"{count(self.n_actions, 'action')}, {count(e.state.size, 'edge')}"
            + (f", {ends} of them end{'s' if ends == 1 else ''} an episode" if ends else "")
            + f"; γ = {_range(gamma)}, λ = {_range(self.lam)}; policies: {listed(self.policies)})"
        )

    def _html(self) -> str:
        e = self.edges
        heading = ["state", "action", "next state", "probability", "reward", "γ"]
        columns = (e.state, e.action, e.next_state, e.probability, e.reward, e.gamma)
        rows = []
        for s, a, t, *numbers in zip(*(column[:MOST].tolist() for column in columns), strict=True):
            to = "end" if t == END else self.state_name(t)
            names = (self.state_name(s), self.action_name(a), to)
            rows.append([*names, *(f"{x:g}" for x in numbers)])
        return page(repr(self), table(heading, rows, e.state.size, unit="edge", text=(0, 1, 2)))

    def __reduce__(self) -> tuple[Callable[..., MDP], tuple[Any, ...]]:
        edges, settings = self._constructor_arguments()
        return partial(MDP, **settings), (edges,)

    def _constructor_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of the constructor that make an equal MDP."""
        settings = {
            "gamma": self.gamma,
            "lam": self.lam,
            "start": self.start,
            "policies": dict(self.policies),
            "states": self.state_names or self.n_states,
            "actions": self.action_names or self.n_actions,
            "positions": self.positions,
            "name": self.name,
        }
        edges = (*self.edges[:-1], self.edges.gamma if self.gamma is None else None)
        return edges, settings

    # ------------------------------------------------------------------ validation

    def _gamma_on_arrival(self, default: ArrayLike | None) -> Array | None:
        """γ on arrival in each state, 1 if no edge leads there; None if γ depends on the edge."""
        e = self.edges
        enters = e.next_state != END
        gamma = arguments.numbers("gamma", 1.0 if default is None else default, self.n_states)
        gamma[e.next_state[enters]] = e.gamma[enters]
        per_state = np.array_equal(gamma[e.next_state[enters]], e.gamma[enters])
        return _read_only(gamma) if per_state else None

    def _distribution(self, start: object) -> Array:
        if isinstance(start, int | np.integer | str):
            start = {start: 1.0}
        if isinstance(start, Mapping):
            table = np.zeros(self.n_states)
            for state, probability in start.items():
                share = edge_columns.parse_number(f"start[{state}]", probability)
                table[self._state_of("start", state)] = share
            start = table
        return arguments.distribution("start", start, self.n_states, self.state_name)  # type: ignore[arg-type]

    def _positions(self, positions: ArrayLike) -> Array:
        table = arguments.floats("positions", positions, "one (x, y) for each state")
        if table.shape != (self.n_states, 2) or not np.isfinite(table).all():
            shape = f"an array of shape {table.shape}"
            raise InputError("positions", shape, f"must be {self.n_states} finite pairs (x, y)")
        return table

    def _policy(self, policy: object, field: str) -> Policy:
        if isinstance(policy, str):
            known: Mapping[str, Policy] = getattr(self, "policies", {})
            if policy in known:
                return known[policy]
            make = {"uniform": Policy.uniform, "greedy": Policy.greedy}.get(policy)
            if make is None:
                names = dict.fromkeys([*known, "uniform", "greedy"])
                remedy = (
                    f"unknown policy; {did_you_mean(policy, names)}known are {listed(names, 20)}"
                )
                raise InputError(field, literal(policy), remedy)
            return make(self)
        if isinstance(policy, Policy):
            return policy.validate(self, field)
        if isinstance(policy, Mapping):
            choices = {self._state_of(f"{field}.{s}", s): choice for s, choice in policy.items()}
            missing = [self.state_name(s) for s in range(self.n_states) if s not in choices]
            if missing:
                remedy = "must have an entry for every state"
                raise InputError(field, f"nothing for {listed(missing)}", remedy)
            return Policy.from_callable(self, choices.__getitem__, field)
        if callable(policy):
            return Policy.from_callable(self, policy, field)
        return Policy.from_array(self, policy, field)

    @cached_property
    def _state_of(self) -> Callable[[str, object], int]:
        return edge_columns.index_lookup("states", self.state_names or self.n_states)

    @cached_property
    def _action_of(self) -> Callable[[str, object], int]:
        return edge_columns.index_lookup("actions", self.action_names or self.n_actions)


def _name(field: str, names: Sequence[str] | None, count: int, index: int) -> str:
    if not arguments.is_integer(index) or not 0 <= index < count:
        raise InputError(field, literal(index), f"must lie between 0 and {count - 1}")
    return names[index] if names else str(index)


def expanded(field: str, given: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Broadcast R[s], R[s, a] or R[s, a, s′] to R[s, a, s′]."""
    array = arguments.floats(field, given, "an array of numbers")
    if not np.isfinite(array).all():
        raise InputError(field, "not finite", "must hold finite numbers only")
    if array.shape != shape[: array.ndim]:
        remedy = f"must be {field}[s, a, s′] of shape {shape}, or leave out s′, or a and s′"
        raise InputError(field, f"an array of shape {array.shape}", remedy)
    return np.broadcast_to(array.reshape(array.shape + (1,) * (3 - array.ndim)), shape)


def _read_only(array: Any) -> Any:
    array = np.ascontiguousarray(array)
    if array.flags.writeable:
        array = array.copy() if array.base is not None else array
        array.flags.writeable = False
    return array


def _range(values: Array) -> str:
    if values.size == 0:
        return "0"
    low, high = float(values.min()), float(values.max())
    return f"{low:g}" if low == high else f"{low:g} … {high:g}"
