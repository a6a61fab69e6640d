"""The MDPs of the paper, a windy cliff, random MDPs, MDPs by name, and a continuous world."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.format import listed
from retvar.linear_gaussian import LinearGaussian
from retvar.mdp import END, MDP, Edge, Policy

__all__ = [
    "LinearGaussian",
    "chain",
    "complex_mdp",
    "find",
    "from_gymnasium",
    "linear_gaussian",
    "random_mdp",
    "random_walk",
    "windy_cliff",
]

from_gymnasium = MDP.from_gymnasium
MOST_STATES, MOST_EDGES = 1_000_000, 1_000_000_000  # of chains, of random MDPs


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
    _check_length(length)
    names = [f"s{i}" for i in range(length)]
    edges = [
        Edge(here, "go", there, 1.0, reward, reward_std)
        for here, there in zip(names, [*names[1:], "end"], strict=True)
    ]
    positions = [(i, 0) for i in range(length)]
    return MDP.from_edges(
        edges, gamma=gamma, lam=lam, states=names, positions=positions, name="chain"
    )


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
    _check_length(length)
    remedy = "must be a probability above 0, or no walk ends"
    if not 0 < (right := float(arguments.numbers("right", right, 1)[0])) <= 1:
        raise InputError("right", right, remedy)
    last = length - 1
    edges = [
        Edge(i, "walk", END if i == last else i + 1, right, 0.0 if i == last else -1.0)
        for i in range(length)
    ]
    edges += [Edge(i, "walk", max(i - 1, 0), 1 - right, -1.0) for i in range(length) if right < 1]
    return MDP.from_edges(
        edges,
        gamma=1.0,
        lam=lam,
        states=[f"s{i}" for i in range(length)],
        positions=[(i, 0) for i in range(length)],
        name="random-walk",
    )


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
    _check_states("height × width", height * width)
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


def _check_states(field: str, states: int) -> None:
    if states > MOST_STATES:
        raise InputError(field, f"{states:,}", f"must be at most {MOST_STATES:,}")


def _check_length(length: int) -> None:
    _check_states("length", arguments.integer("length", length, 1))


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
    if states * actions * branching > MOST_EDGES:
        found = f"{states:,} × {actions:,} × {branching:,}"
        raise InputError("states", found, f"must be at most {MOST_EDGES:,} edges")
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
    edges = (
        np.repeat(np.arange(states), actions * branching),
        np.tile(np.repeat(np.arange(actions), branching), states),
        next_state,
        _simplex(rng, pairs, branching).ravel(),
        reward_mean + rng.normal(size=count),
        _uniform("reward_std", rng, reward_std, count),
        None,
    )
    return MDP(
        edges,
        gamma=_uniform("gamma", rng, gamma, states),
        lam=_uniform("lam", rng, lam, states),
        policies={
            "target": Policy(_simplex(rng, states, actions)),
            "behaviour": Policy(_simplex(rng, states, actions)),
        },
        states=states,
        actions=actions,
        name="random-mdp",
    )


def linear_gaussian(
    F: ArrayLike, S: ArrayLike, Q: ArrayLike, gamma: float, lam: float = 1.0
) -> LinearGaussian:
    """Make a continuous world with an exact answer: x′ = Fx + w, w ~ N(0, S), reward −xᵀQx.

    See :class:`LinearGaussian`, and :meth:`LinearGaussian.controlled` for one with actions. It is
    no MDP of edges: it answers itself, in place of ``solve``.

    >>> world = linear_gaussian(F=[[0.8, 0.3], [-0.3, 0.8]], S=0.3, Q=1.0, gamma=0.95, lam=0.9)
    >>> print(f"{world.value([1.0, 0.0]):.3f} ± {world.std([1.0, 0.0]):.3f}")
    -40.457 ± 7.767
    """
    return LinearGaussian(F, S, Q, gamma, lam)


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
    if name.lower().endswith(".toml"):
        _check_options(name, options, ())
        return MDP.from_toml(name, gamma=gamma)
    make = BUILT_IN.get(name.replace("_", "-"))
    if make is None:
        known = ", ".join([*BUILT_IN, "gymnasium:ID", "FILE.toml"])
        raise InputError("domain", name, f"unknown; give one of {known}")
    _check_options(name, options, inspect.signature(make).parameters)
    mdp = make(**options)
    return mdp if gamma is None else mdp.replace(gamma=gamma)


def _check_options(name: str, options: dict[str, Any], known: Iterable[str]) -> None:
    unknown = [option for option in options if option not in known]
    if unknown:
        has = f"has {', '.join(known)}" if known else "has none"
        raise InputError("option", listed(unknown), f"{name} does not have it; it {has}")


BUILT_IN: dict[str, Callable[..., MDP]] = {
    "chain": chain,
    "complex-mdp": complex_mdp,
    "random-walk": random_walk,
    "windy-cliff": windy_cliff,
}


def _simplex(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    """Rows of probabilities, drawn uniformly from the simplex."""
    share = rng.exponential(size=(rows, columns))
    share /= share.sum(axis=1, keepdims=True)
    return np.asarray(share)


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
