"""The MDPs of the paper, a windy cliff, random MDPs, MDPs by name, and a continuous world."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.mdp import END, MDP, Edge
from retvar.mdp.linear_gaussian import LinearGaussian
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import listed, literal

__all__ = [
    "LinearGaussian", "chain", "complex_mdp", "find", "from_gymnasium",
    "random_mdp", "random_walk", "windy_cliff",
]  # fmt: skip

MOST_STATES = 1_000_000
from_gymnasium = MDP.from_gymnasium
linear_gaussian = LinearGaussian  # no MDP of edges: it answers itself, in place of `solve`


def chain(
    lam: ArrayLike = 0.9,
    length: int = 4,
    *,
    gamma: ArrayLike = 1.0,
    reward: float = 1.0,
    reward_std: float = 1.0,
) -> MDP:
    """The paper's chain: s0 → s1 → … → end, one action, normal rewards.

    >>> import retvar as rv
    >>> rv.solve(rv.domains.chain(lam=0.9)).variance
    array([2.997541, 2.4661  , 1.81    , 1.      ])
    """
    row = _row(length)
    names = row["states"]
    edges = [
        Edge(here, "go", there, 1.0, reward, reward_std)
        for here, there in zip(names, [*names[1:], "end"], strict=True)
    ]
    return MDP.from_edges(edges, gamma=gamma, lam=lam, name="chain", **row)


def complex_mdp() -> MDP:
    """The paper's complex MDP: continuing, with γ and λ per state; policies ``mu`` and ``pi``.

    Two actions may lead to the same state with different rewards.

    >>> import retvar as rv
    >>> rv.solve(rv.domains.complex_mdp()).value.round(6)
    array([-0.244176,  0.63956 ,  1.087791,  1.551165, -0.006654])
    """
    rows = [
        # from, to, μ, reward, π
        (0, 1, 1.0, -0.5, 1.0),
        (1, 0, 0.2, 0.0, 0.2),
        (1, 2, 0.2, -1.0, 0.4),
        (1, 2, 0.2, 1.0, 0.0),
        (1, 3, 0.2, -0.5, 0.3),
        (1, 3, 0.2, 0.5, 0.1),
        (2, 0, 0.1, 0.0, 0.4),
        (2, 4, 0.8, 1.0, 0.5),
        (2, 4, 0.1, 3.0, 0.1),
        (3, 1, 0.2, 1.0, 0.8),
        (3, 4, 0.3, 1.0, 0.18),
        (3, 4, 0.5, 2.0, 0.02),
        (4, 2, 0.5, 0.0, 0.2),
        (4, 0, 0.5, 0.0, 0.8),
    ]
    mu, pi = np.zeros((2, 5, 5))
    edges: list[Edge] = []
    for here, there, mu_probability, reward, pi_probability in rows:
        action = sum(edge.state == here for edge in edges)
        mu[here, action], pi[here, action] = mu_probability, pi_probability
        edges.append(Edge(here, action, there, 1.0, reward))
    return MDP.from_edges(
        edges,
        gamma=[0.5, 0.4, 0.1, 1.0, 0.0],
        lam=[1.0, 0.9, 0.0, 0.5, 0.1],
        states=[f"s{i}" for i in range(5)],
        policies={"mu": mu, "pi": pi},
        positions=[(0, 1), (1.6, 1), (0.8, 0), (3.2, 1), (2.4, 0)],
        name="complex-mdp",
    )


def random_walk(length: int = 30, *, right: float = 0.7, lam: ArrayLike = 1.0) -> MDP:
    """The random walk of the paper's conference version: reward −1 a step, 0 for the last.

    A step to the right from the last state ends the episode; a step to the left from s0 stays.

    >>> import retvar as rv
    >>> rv.solve(rv.domains.random_walk()).value[[0, -1]].round(4)
    array([-72.125,  -1.5  ])
    """
    row = _row(length)
    if not 0 < (right := arguments.number("right", right)) <= 1:
        raise InputError("right", right, "must be a probability above 0, or no walk ends")
    last = length - 1
    edges = [Edge(i, "walk", i + 1, right, -1.0) for i in range(last)]
    edges.append(Edge(last, "walk", END, right, 0.0))
    edges += [Edge(i, "walk", max(i - 1, 0), 1 - right, -1.0) for i in range(length) if right < 1]
    return MDP.from_edges(edges, gamma=1.0, lam=lam, name="random-walk", **row)


def windy_cliff(
    height: int = 4,
    width: int = 8,
    *,
    wind: float = 0.1,
    fall: float = -20.0,
    gamma: ArrayLike = 0.99,
    lam: ArrayLike = 1.0,
) -> MDP:
    """A walk along a cliff with wind: the short way is risky, the long way is safe.

    From the lower left to the lower right corner of a grid. The cells between them are a cliff: a
    fall costs `fall` and ends the episode. The last step to the goal costs nothing, every other
    step −1. With probability `wind` a move goes one row down instead. Walls hold. States are named
    by row and column, counted from the upper left; actions are up, right, down and left.

    >>> import retvar as rv
    >>> cliff = windy_cliff()
    >>> cliff
    MDP(windy-cliff: 25 states, 4 actions, 200 edges, 36 of them end an episode; γ = 0.99, λ = 1;
        policies: uniform)
    >>> start = rv.solve(cliff, "greedy")["r3c0"]
    >>> print(f"{start.mean:.3f} ± {start.std:.3f}")
    -11.868 ± 4.209
    """
    height, width = arguments.integer("height", height, 2), arguments.integer("width", width, 2)
    arguments.integer("height × width", height * width, 4, MOST_STATES)
    wind = float(arguments.unit_interval("wind", wind, 1)[0])
    fall = arguments.number("fall", fall)
    last = height - 1
    cells = [(row, column) for row in range(last) for column in range(width)] + [(last, 0)]
    moves = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}
    edges = [
        Edge(f"r{row}c{column}", name, *_cliff_step(row + up, column + right, last, width, p, fall))
        for row, column in cells
        for name, move in moves.items()
        for (up, right), p in ((move, 1 - wind), (moves["down"], wind))
        if p > 0
    ]
    return MDP.from_edges(
        edges,
        gamma=gamma,
        lam=lam,
        start=f"r{last}c0",
        states=[f"r{row}c{column}" for row, column in cells],
        actions=list(moves),
        positions=[(column, -row) for row, column in cells],
        name="windy-cliff",
    )


def _cliff_step(
    row: int, column: int, last: int, width: int, probability: float, fall: float
) -> tuple[str, float, float]:
    """Where a step ends, its probability and its reward."""
    row, column = min(max(row, 0), last), min(max(column, 0), width - 1)
    if row == last and column > 0:
        return "end", probability, 0.0 if column == width - 1 else fall
    return f"r{row}c{column}", probability, -1.0


def _row(length: int) -> dict[str, Any]:
    """Names and places of states in a row."""
    places = range(arguments.integer("length", length, 1, MOST_STATES))
    return {"states": [f"s{i}" for i in places], "positions": [(i, 0) for i in places]}


def random_mdp(
    states: int,
    actions: int = 2,
    branching: int = 3,
    seed: int = 0,
    *,
    gamma: float | Sequence[float] = (0.0, 1.0),
    lam: float | Sequence[float] = (0.0, 1.0),
    reward_std: float | Sequence[float] = (0.0, 1.0),
    reward_mean: float = 0.0,
    ends: float = 0.0,
    parallel: bool = False,
) -> MDP:
    """Draw a random MDP (Garnet) with policies ``target`` (the default) and ``behaviour``.

    Each action in each state leads to `branching` states with random probabilities and normal
    rewards around `reward_mean`. γ, λ and the noise of the rewards are numbers, or ranges to draw
    from for each state or edge. `ends` is the share of edges that end an episode. With
    `parallel`, next states are drawn with repetition, so that several edges of one action may join
    the same two states.

    >>> random_mdp(states=10, actions=2, branching=3, seed=0)
    MDP(random-mdp: 10 states, 2 actions, 60 edges; γ = 0.0927455 … 0.789666,
        λ = 0.182943 … 0.988695; policies: target, behaviour)
    """
    states = arguments.integer("states", states, 1)
    actions = arguments.integer("actions", actions, 1)
    branching = arguments.integer("branching", branching, 1)
    parallel = arguments.flag("parallel", parallel)
    if branching > states and not parallel:
        raise InputError("branching", branching, f"must not exceed the {states} states")
    ends = float(arguments.unit_interval("ends", ends, 1)[0])
    reward_mean = arguments.number("reward_mean", reward_mean)
    rng = arguments.generator("seed", seed)
    pairs = states * actions
    count = pairs * branching
    draw = rng.integers(states, size=(pairs, branching))
    next_state = (draw if parallel else _distinct(rng, draw, states)).ravel()
    if ends:
        next_state[rng.random(count) < ends] = END
    state, action = np.divmod(np.repeat(np.arange(pairs), branching), actions)
    chances, rewards = _simplex(rng, pairs, branching).ravel(), rng.normal(size=count)
    noise = _uniform("reward_std", rng, reward_std, count)
    edges = (state, action, next_state, chances, reward_mean + rewards, noise, None)
    return MDP(
        edges,
        gamma=_uniform("gamma", rng, gamma, states),
        lam=_uniform("lam", rng, lam, states),
        policies={name: _simplex(rng, states, actions) for name in ("target", "behaviour")},
        states=states,
        actions=actions,
        name="random-mdp",
    )


def find(name: str, /, *, gamma: float | None = None, **options: Any) -> MDP:
    """Return the MDP with this name; the command line uses the same names.

    Names are ``chain``, ``complex-mdp``, ``random-walk``, ``windy-cliff``, ``gymnasium:ID``
    (`gamma` is required; `options` are those of the environment) and paths of TOML files. `gamma`
    replaces the MDP's.

    >>> find("chain", length=3).n_states
    3
    """
    name = str(arguments.instance("name", name, str | PathLike, "a name, or the path of a file"))
    if name.startswith("gymnasium:"):
        if gamma is None:
            raise InputError("gamma", "nothing", "a Gymnasium table has none; give one, say 0.99")
        return from_gymnasium(name.removeprefix("gymnasium:"), gamma=gamma, **options)
    make: Callable[..., MDP] | None = BUILT_IN.get(name.replace("_", "-"))
    if name.lower().endswith(".toml"):
        make = partial(MDP.from_toml, name, gamma=gamma)
    if make is None:
        known = ", ".join([*BUILT_IN, "gymnasium:ID", "FILE.toml"])
        raise InputError("domain", name, f"unknown; give one of {known}")
    if unknown := [option for option in options if option not in signature(make).parameters]:
        raise InputError("option", listed(unknown), f"{name} does not have it")
    mdp = make(**options)
    return mdp if gamma is None else mdp.replace(gamma=gamma)


BUILT_IN: dict[str, Callable[..., MDP]] = {
    make.__name__.replace("_", "-"): make for make in (chain, complex_mdp, random_walk, windy_cliff)
}


def _simplex(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    """Rows of probabilities, drawn uniformly from the simplex."""
    share = rng.exponential(size=(rows, columns))
    return np.asarray(share / share.sum(axis=1, keepdims=True))


def _distinct(rng: np.random.Generator, draw: NDArray[np.int64], states: int) -> NDArray[np.int64]:
    """Redraw the rows that contain a state twice."""
    rows, columns = draw.shape
    if 2 * columns > states:
        return rng.permuted(np.tile(np.arange(states), (rows, 1)), axis=1)[:, :columns]
    while True:
        order = np.sort(draw, axis=1)
        repeated = np.flatnonzero(np.any(order[:, 1:] == order[:, :-1], axis=1))
        if repeated.size == 0:
            return draw
        draw[repeated] = rng.integers(states, size=(repeated.size, columns))


def _uniform(
    field: str, rng: np.random.Generator, limits: float | Sequence[float], count: int
) -> NDArray[np.float64]:
    bounds = arguments.floats(field, limits, "a number or a range (low, high)")
    if bounds.ndim == 0:
        return np.full(count, float(bounds))
    if bounds.shape != (2,) or not bounds[0] <= bounds[1] < np.inf:
        raise InputError(field, limits, "must be a number or a range (low, high)")
    return np.asarray(rng.uniform(float(bounds[0]), float(bounds[1]), size=count))


# ---------------------------------------------------------------------- Gymnasium

ACTIONS = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
}
ROWS = "{state: {action: [(probability, next state, reward, done)]}}"


def from_table(env: Any, *, gamma: float, lam: ArrayLike = 1.0, **options: Any) -> MDP:
    """Build an MDP from ``env.unwrapped.P``; a transition marked done ends the episode."""
    if isinstance(env, str):
        import gymnasium

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an outdated id raises an error below
                env = gymnasium.make(env, **options)
        except Exception as error:  # an environment may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError("environment", env, f"cannot be made: {reason}") from None
    elif options:
        raise InputError("options", sorted(options), "apply only to an environment given by its id")
    inner = getattr(env, "unwrapped", None)
    name = ""
    if inner is not None:
        name = env.spec.id if getattr(env, "spec", None) is not None else type(inner).__name__
    table = env if isinstance(env, Mapping) else getattr(inner, "P", None)
    if not isinstance(table, Mapping) or not table:
        remedy = "has no transition table; Gymnasium's toy-text environments have one"
        raise InputError("environment", name or literal(env), remedy)
    try:
        edges = [
            Edge(int(s), int(a), END if done else int(s_next), float(p), float(r))
            for s, actions in table.items()
            for a, outcomes in actions.items()
            for p, s_next, r, done in outcomes
        ]
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InputError("environment", literal(table), f"must be {ROWS}: {error}") from None
    start = getattr(inner, "initial_state_distrib", None)
    actions = len(next(iter(table.values())))
    names = ACTIONS.get(name.partition("-")[0], ())
    return MDP.from_edges(
        edges,
        gamma=gamma,
        lam=lam,
        start=0 if start is None else np.asarray(start),
        states=len(table),
        actions=names if len(names) == actions else actions,
        positions=_positions(inner, len(table)),
        name=name,
    )


def _positions(env: Any, states: int) -> NDArray[np.float64] | None:
    """Positions (x to the right, y upwards) of the cells of a grid world; None for others."""
    shape = getattr(env, "shape", None) or (getattr(env, "nrow", 0), getattr(env, "ncol", 0))
    if len(shape) != 2 or shape[0] * shape[1] != states:
        return None
    row, column = np.divmod(np.arange(states), shape[1])
    return np.stack([column, -row], axis=1).astype(float)
