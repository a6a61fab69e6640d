"""The MDP class: a validated, immutable list of edges."""

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
from retvar.format import count, did_you_mean, listed, literal, visible
from retvar.html import MOST, Shown, page, table
from retvar.mdp import parsing
from retvar.mdp.edges import Edges, EdgeValidator
from retvar.mdp.parsing import END, END_NAMES, Edge
from retvar.mdp.policy import Policy

__all__ = ["END", "MDP", "Edge", "Edges"]

Array = NDArray[np.float64]
MAX_PAIRS = 500_000_000  # states × actions; a policy is a dense table
PAIRS, PAIRS_PER_EDGE = 1_000_000, 10_000  # most pairs: so many, and more for each edge
Integers = NDArray[np.intp]


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
        self.state_names, self.n_states = parsing.parse_names("states", states, edges[0])
        self.action_names, self.n_actions = parsing.parse_names("actions", actions, edges[1])
        self._check_size(np.size(edges[0]))
        validator = EdgeValidator(self.n_states, self.n_actions, self.state_name, self.action_name)
        self.edges = Edges(*map(_read_only, validator.validate(edges, gamma)))
        self.gamma: Array | None = self._gamma_on_arrival(gamma)
        self.lam = _read_only(arguments.unit_interval("lam", lam, self.n_states, self.state_name))
        self.start = _read_only(self._distribution(start))
        self.positions = None if positions is None else _read_only(self._positions(positions))
        policies = {} if policies is None else policies
        arguments.instance("policies", policies, Mapping, "a mapping from names to policies")
        policies = policies or {"uniform": Policy.uniform(self)}
        self.policies: Mapping[str, Policy] = MappingProxyType(
            {
                arguments.text("policies", key): self._policy(policy, f"policies.{key}")
                for key, policy in policies.items()
            }
        )
        self._immutable = True

    def __setattr__(self, attribute: str, value: object) -> None:
        if getattr(self, "_immutable", False):
            raise AttributeError(f"an MDP is immutable; build another to change {attribute}")
        super().__setattr__(attribute, value)

    def __delattr__(self, attribute: str) -> None:
        raise AttributeError(f"an MDP is immutable; {attribute} cannot be deleted")

    # ------------------------------------------------------------------ constructors

    @classmethod
    def from_edges(cls, edges: Iterable[Edge | tuple[Any, ...]], **settings: Any) -> MDP:
        """Build from :class:`Edge` rows or such tuples; `settings` are those of :class:`MDP`.

        Named states and actions are numbered as they appear, unless `settings` lists them.

        >>> MDP.from_edges([("a", "x", "b"), ("b", "x", "end")], gamma=0.9).state_names
        ('a', 'b')
        """
        if not isinstance(edges, Iterable) or getattr(edges, "ndim", 1) == 0:
            raise InputError("edges", literal(edges), "must be a list of edges")
        parsed = [parsing.parse_edge(i, row) for i, row in enumerate(edges)]
        if not parsed:
            raise InputError("edges", "[]", "must hold at least one edge")
        keys = [k for r in parsed for k in (r.state, r.next_state) if k not in END_NAMES]
        states = settings.setdefault("states", parsing.infer_names("states", keys))
        actions = settings.setdefault(
            "actions", parsing.infer_names("actions", [r.action for r in parsed])
        )
        for field, names in (("states", states), ("actions", actions)):
            parsing.parse_names(field, names, ())
        state_of = parsing.index_lookup("states", states)
        next_of = parsing.index_lookup("states", states, dict.fromkeys(END_NAMES, END))
        columns = (
            parsing.parse_column(parsed, "state", state_of),
            parsing.parse_column(parsed, "action", parsing.index_lookup("actions", actions)),
            parsing.parse_column(parsed, "next_state", next_of),
            *(
                parsing.parse_column(parsed, f, parsing.parse_number)
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

        An action whose row of P is all zero is not available in that state. Arrays cannot express
        the end of an episode: set γ = 0 on arrival in a state, or use :meth:`from_edges`.

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
            parsing.expand("R", R, table.shape)[state, action, next_state],
            parsing.expand("reward_std", reward_std, table.shape)[state, action, next_state],
            None,
        )
        settings.setdefault("states", table.shape[0])
        settings.setdefault("actions", table.shape[1])
        return cls(columns, **settings)

    @classmethod
    def from_gymnasium(cls, env: Any, *, gamma: float, lam: ArrayLike = 1.0, **options: Any) -> MDP:
        """Build from a Gymnasium toy-text environment, given as its id, itself, or its table ``P``.

        `options` are passed to ``gymnasium.make``. γ is required, since the table has none.

        >>> lake = MDP.from_gymnasium("FrozenLake-v1", gamma=0.99, is_slippery=False)
        >>> lake.n_states, lake.n_actions
        (16, 4)
        """
        from retvar.mdp import toy_text

        return toy_text.from_gymnasium(env, gamma=gamma, lam=lam, **options)

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

        return toml.read_toml(arguments.path("source", source), gamma)

    def to_toml(self, path: str | Path) -> None:
        """Write the MDP and its policies to a TOML file; reading it gives an equal MDP."""
        from retvar.mdp import toml

        toml.write_toml(self, arguments.path("path", path))

    def replace(self, **changes: Any) -> MDP:
        """Return a copy with some settings of the constructor changed; edges cannot be.

        >>> import retvar as rv
        >>> rv.domains.chain().replace(gamma=0.5, name="short-sighted")
        MDP(short-sighted: 4 states, 1 action, 4 edges, 1 of them ends an episode; γ = 0.5, λ = 0.9;
            policies: uniform)
        """
        edges, settings = self._constructor_arguments()
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
        if not arguments.is_integer(index) or not 0 <= index < self.n_states:
            raise InputError("state", literal(index), f"must lie between 0 and {self.n_states - 1}")
        return self.state_names[index] if self.state_names else str(index)

    def action_name(self, index: int) -> str:
        """Name of an action; its number where actions have no names."""
        if not arguments.is_integer(index) or not 0 <= index < self.n_actions:
            raise InputError(
                "action", literal(index), f"must lie between 0 and {self.n_actions - 1}"
            )
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
        """Return a policy for this MDP; error messages call it `field`.

        `policy` is a name, a :class:`Policy`, an array, a callable, or a mapping from states; None
        stands for the default. The names ``"uniform"`` and ``"greedy"`` always exist.

        >>> import retvar as rv
        >>> rv.domains.complex_mdp().policy("pi").probabilities[0]
        array([1., 0., 0., 0., 0.])
        """
        arguments.instance("field", field, str, "a text")
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
        table.flags.writeable = False
        return table

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
            and _equal(self.positions, other.positions)
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
        varies = self.gamma is None or bool(np.any(self.gamma != self.gamma[0]))
        heading = ["state", "action", "next state", "probability", "reward"]
        heading += ["γ"] if varies else []
        columns = (e.state, e.action, e.next_state, e.probability, e.reward, e.gamma)
        rows = []
        for s, a, t, *rest in zip(*(column[:MOST].tolist() for column in columns), strict=True):
            names = [self.state_name(s), self.action_name(a)]
            names += ["end" if t == END else self.state_name(t)]
            rows.append([*names, *(f"{x:g}" for x in (rest if varies else rest[:2]))])
        return page(repr(self), table(heading, rows, e.state.size, unit="edge", text=(0, 1, 2)))

    def __reduce__(self) -> tuple[Callable[..., MDP], tuple[Any, ...]]:
        return _rebuild, self._constructor_arguments()

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

    def _check_size(self, edges: int) -> None:
        """Raise before allocating arrays for far more states or actions than edges."""
        if self.n_states > 10 * edges + 1_000:  # the edge validator names the states otherwise
            remedy = f"must have an edge that leaves each; there are only {edges} edges"
            raise InputError("states", f"{self.n_states:,}", remedy)
        most = min(MAX_PAIRS, PAIRS + PAIRS_PER_EDGE * edges)
        if self.n_states * self.n_actions > most:
            pairs = f"{self.n_states:,} × {self.n_actions:,}"
            remedy = f"must not exceed {most:,} with {count(edges, 'edge')}"
            hint = "leave out actions without edges, or number the actions of each state from 0"
            raise InputError("states × actions", pairs, f"{remedy}; {hint}")

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
                table[self._state_of("start", state)] = parsing.parse_number(
                    f"start[{state}]", probability
                )
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
                hint = did_you_mean(policy, names)
                known_are = f"{'Known' if hint else 'known'} are {listed(names, most=20)}"
                raise InputError(field, literal(policy), f"unknown policy; {hint}{known_are}")
            return make(self)
        if isinstance(policy, Policy):
            return policy.validate(self, field)
        if isinstance(policy, Mapping):
            return Policy.from_callable(self, parsing.choice_by_state(self, policy, field), field)
        if callable(policy):
            return Policy.from_callable(self, policy, field)
        return Policy.from_array(self, policy, field)

    @cached_property
    def _state_of(self) -> Callable[[str, object], int]:
        return parsing.index_lookup("states", self.state_names or self.n_states)

    @cached_property
    def _action_of(self) -> Callable[[str, object], int]:
        return parsing.index_lookup("actions", self.action_names or self.n_actions)


def _rebuild(edges: tuple[Any, ...], settings: dict[str, Any]) -> MDP:
    return MDP(edges, **settings)


def _read_only(array: Any) -> Any:
    array = np.ascontiguousarray(array)
    if array.flags.writeable:
        array = array.copy() if array.base is not None else array
        array.flags.writeable = False
    return array


def _equal(a: Array | None, b: Array | None) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def _range(values: Array) -> str:
    if values.size == 0:
        return "0"
    low, high = float(values.min()), float(values.max())
    return f"{low:g}" if low == high else f"{low:g} … {high:g}"
