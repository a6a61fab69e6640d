"""The MDP: a list of edges, validated once, immutable ever after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.format import listed
from retvar.mdp import parsing
from retvar.mdp.edges import Edges, Validation
from retvar.mdp.parsing import END, END_NAMES, Edge
from retvar.mdp.policy import Policy

__all__ = ["END", "MDP", "Edge", "Edges"]

Array = NDArray[np.float64]
MOST_PAIRS = 500_000_000  # states × actions: a policy is a dense table
Integers = NDArray[np.intp]


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
        self.name = str(name)
        self.state_names, self.n_states = parsing.names("states", states, edges[0])
        self.action_names, self.n_actions = parsing.names("actions", actions, edges[1])
        self._refuse_unused(np.size(edges[0]))
        columns = Validation(self.n_states, self.n_actions, self.state_name, self.action_name)
        self.edges = Edges(*map(_frozen, columns.edges(edges, gamma)))
        self.gamma: Array | None = self._arrival(gamma)
        self.lam = _frozen(arguments.unit_interval("lam", lam, self.n_states, self.state_name))
        self.start = _frozen(self._start(start))
        self.positions = None if positions is None else _frozen(self._positions(positions))
        given = policies or {"uniform": Policy.uniform(self)}
        if not isinstance(given, Mapping):
            raise InputError("policies", given, "must be a mapping from names to policies")
        self.policies: Mapping[str, Policy] = MappingProxyType(
            {str(key): self._policy(policy, f"policies.{key}") for key, policy in given.items()}
        )
        self._sealed = True

    def __setattr__(self, attribute: str, value: object) -> None:
        if getattr(self, "_sealed", False):
            raise AttributeError(f"an MDP is immutable; build another to change {attribute}")
        super().__setattr__(attribute, value)

    def __delattr__(self, attribute: str) -> None:
        raise AttributeError(f"an MDP is immutable; {attribute} cannot be deleted")

    # ------------------------------------------------------------------ constructors

    @classmethod
    def from_edges(cls, edges: Iterable[Edge | tuple[Any, ...]], **settings: Any) -> MDP:
        """Build from :class:`Edge` rows (or tuples in that order); see :class:`MDP` for the rest.

        Where states or actions are named and no list is given, they are numbered as they appear.

        >>> MDP.from_edges([("a", "x", "b"), ("b", "x", "end")], gamma=0.9).state_names
        ('a', 'b')
        """
        if not isinstance(edges, Iterable):
            raise InputError("edges", repr(edges), "must be a list of edges")
        parsed = [parsing.edge(i, row) for i, row in enumerate(edges)]
        if not parsed:
            raise InputError("edges", "[]", "must hold at least one edge")
        keys = [k for r in parsed for k in (r.state, r.next_state) if k not in END_NAMES]
        states = settings.setdefault("states", parsing.found("states", keys))
        actions = settings.setdefault(
            "actions", parsing.found("actions", [r.action for r in parsed])
        )
        for field, given in (("states", states), ("actions", actions)):
            parsing.names(field, given, ())
        state_of = parsing.lookup("states", states)
        next_of = parsing.lookup("states", states, dict.fromkeys(END_NAMES, END))
        columns = (
            parsing.column(parsed, "state", state_of),
            parsing.column(parsed, "action", parsing.lookup("actions", actions)),
            parsing.column(parsed, "next_state", next_of),
            *(
                parsing.column(parsed, f, parsing.number)
                for f in ("probability", "reward", "reward_std")
            ),
            parsing.edge_gammas(parsed),
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
        table = arguments.floats("P", P, "an array P[s, a, s′] of numbers")
        if table.ndim != 3 or table.shape[0] != table.shape[2]:
            raise InputError("P", f"an array of shape {table.shape}", "must be P[s, a, s′]")
        bad = ~np.isfinite(table) | (table < 0)
        if np.any(bad):
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            raise InputError(f"P{list(where)}", table[where], "must be a probability")
        state, action, next_state = np.nonzero(table)
        columns = (
            state,
            action,
            next_state,
            table[state, action, next_state],
            parsing.spread("R", R, table.shape)[state, action, next_state],
            parsing.spread("reward_std", reward_std, table.shape)[state, action, next_state],
            None,
        )
        settings.setdefault("states", table.shape[0])
        settings.setdefault("actions", table.shape[1])
        return cls(columns, **settings)

    @classmethod
    def from_gymnasium(cls, env: Any, *, gamma: float, lam: ArrayLike = 1.0, **options: Any) -> MDP:
        """Build from the table of a Gymnasium toy-text environment: its id, itself, or its ``P``.

        ``options`` go to ``gymnasium.make``. γ is never assumed: the table has none.

        >>> lake = MDP.from_gymnasium("FrozenLake-v1", gamma=0.99, is_slippery=False)
        >>> lake.n_states, lake.n_actions
        (16, 4)
        """
        from retvar.mdp import toy_text

        return toy_text.from_gymnasium(env, gamma=gamma, lam=lam, **options)

    @classmethod
    def from_toml(cls, source: str | Path, *, gamma: ArrayLike | None = None) -> MDP:
        """Read an MDP from a TOML file; the format is that of :meth:`to_toml`.

        `gamma` takes the place of the file's, which then need not have any.

        >>> import pathlib, tempfile, retvar as rv
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "chain.toml"
        >>> rv.domains.chain().to_toml(path)
        >>> rv.MDP.from_toml(path) == rv.domains.chain()
        True
        """
        from retvar.mdp import toml

        return toml.read_toml(Path(source), gamma)

    def to_toml(self, path: str | Path) -> None:
        """Write the MDP, with its policies, to a TOML file that gives the same MDP back."""
        from retvar.mdp import toml

        toml.write_toml(self, Path(path))

    def replace(self, **changes: Any) -> MDP:
        """Return another MDP with some settings changed: those of the constructor but the edges.

        >>> import retvar as rv
        >>> rv.domains.chain().replace(gamma=0.5, name="short-sighted")
        MDP(short-sighted: 4 states, 1 action, 4 edges, 1 of them ends an episode; γ = 0.5, λ = 0.9;
            policies: uniform)
        """
        edges, settings = self._parts()
        unknown = set(changes) - set(settings)
        if unknown:
            known = ", ".join(settings)
            raise InputError("change", listed(sorted(unknown)), f"unknown; settings are {known}")
        if "gamma" in changes:
            edges = (*edges[:-1], None)
        return MDP(edges, **{**settings, **changes})

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

    def policy(self, policy: object = None, field: str = "policy") -> Policy:
        """Return a policy that fits this MDP; errors speak of it as `field`.

        `policy` is a name, a :class:`Policy`, an array, a callable, or a mapping from states; None
        is the default. ``"uniform"`` and ``"greedy"`` are always known.

        >>> import retvar as rv
        >>> rv.domains.complex_mdp().policy("pi").probabilities[0]
        array([1., 0., 0., 0., 0.])
        """
        return self._policy(next(iter(self.policies)) if policy is None else policy, field)

    @cached_property
    def available(self) -> NDArray[np.bool_]:
        """Which actions each state has, as an array [state, action]."""
        table = np.zeros((self.n_states, self.n_actions), dtype=bool)
        table[self.edges.state, self.edges.action] = True
        table.flags.writeable = False
        return table

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
        return _rebuild, self._parts()

    def _parts(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the constructor needs to make an equal MDP."""
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

    def _refuse_unused(self, edges: int) -> None:
        """Every state has an edge: refuse before room is made for states that cannot be."""
        if self.n_states > 10 * edges + 1_000:  # fewer are named later
            remedy = f"must have an edge that leaves each; there are only {edges} edges"
            raise InputError("states", f"{self.n_states:,}", remedy)
        if self.n_states * self.n_actions > MOST_PAIRS:
            pairs = f"{self.n_states:,} × {self.n_actions:,}"
            raise InputError("states × actions", pairs, f"must not exceed {MOST_PAIRS:,}")

    def _arrival(self, given: ArrayLike | None) -> Array | None:
        """γ on arriving in each state, 1 where nothing arrives; None if edges into one differ."""
        e = self.edges
        enters = e.next_state != END
        gamma = arguments.numbers("gamma", 1.0 if given is None else given, self.n_states)
        gamma[e.next_state[enters]] = e.gamma[enters]
        same = np.array_equal(gamma[e.next_state[enters]], e.gamma[enters])
        return _frozen(gamma) if same else None

    def _start(self, start: object) -> Array:
        if isinstance(start, int | np.integer | str):
            start = {start: 1.0}
        if isinstance(start, Mapping):
            table = np.zeros(self.n_states)
            for state, probability in start.items():
                table[self._state_of("start", state)] = parsing.number(
                    f"start[{state}]", probability
                )
            start = table
        return arguments.distribution("start", start, self.n_states, self.state_name)  # type: ignore[arg-type]

    def _positions(self, positions: ArrayLike) -> Array:
        table = arguments.floats("positions", positions, "one (x, y) for each state")
        if table.shape != (self.n_states, 2) or not np.isfinite(table).all():
            found = f"an array of shape {table.shape}"
            raise InputError("positions", found, f"must be {self.n_states} finite pairs (x, y)")
        return table

    def _policy(self, policy: object, field: str) -> Policy:
        if isinstance(policy, str):
            known: Mapping[str, Policy] = getattr(self, "policies", {})
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
            return Policy.from_callable(self, parsing.by_state(self, policy, field), field)
        if callable(policy):
            return Policy.from_callable(self, policy, field)
        return Policy.from_array(self, policy, field)

    @cached_property
    def _state_of(self) -> Callable[[str, object], int]:
        return parsing.lookup("states", self.state_names or self.n_states)

    @cached_property
    def _action_of(self) -> Callable[[str, object], int]:
        return parsing.lookup("actions", self.action_names or self.n_actions)


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
