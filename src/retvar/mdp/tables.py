"""MDPs from the transition tables of Gymnasium's toy-text environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.errors import InputError
from retvar.mdp.rows import END, Edge

if TYPE_CHECKING:
    from retvar.mdp.model import MDP

__all__ = ["from_gymnasium"]

ACTIONS = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
}


def from_gymnasium(env: Any, *, gamma: float, lam: ArrayLike = 1.0, **options: Any) -> MDP:
    """Read ``env.unwrapped.P``; a transition that is done ends the episode, wherever it leads."""
    from retvar.mdp.model import MDP

    env = _environment(env, options)
    table = getattr(env.unwrapped, "P", None)
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    if table is None:
        raise InputError(
            "environment", name, "has no transition table; those of Gymnasium's toy text have one"
        )
    edges = [
        Edge(int(s), int(a), END if done else int(s_next), float(p), float(r))
        for s, actions in table.items()
        for a, outcomes in actions.items()
        for p, s_next, r, done in outcomes
    ]
    start = getattr(env.unwrapped, "initial_state_distrib", None)
    actions = len(next(iter(table.values())))
    names = ACTIONS.get(name.partition("-")[0], ())
    return MDP.from_edges(
        edges,
        gamma=gamma,
        lam=lam,
        start=0 if start is None else np.asarray(start),
        states=len(table),
        actions=names if len(names) == actions else actions,
        positions=_positions(env.unwrapped, len(table)),
        name=name,
    )


def _environment(env: Any, options: dict[str, Any]) -> Any:
    if not isinstance(env, str):
        if options:
            raise InputError("options", sorted(options), "go with the id of an environment only")
        return env
    import gymnasium

    try:
        return gymnasium.make(env, **options)
    except (gymnasium.error.Error, TypeError, ModuleNotFoundError) as error:
        raise InputError("environment", env, f"cannot be made: {error}") from None


def _positions(env: Any, states: int) -> NDArray[np.float64] | None:
    """Rows and columns of a grid world, as x to the right and y upwards."""
    shape = getattr(env, "shape", None) or (getattr(env, "nrow", 0), getattr(env, "ncol", 0))
    if len(shape) != 2 or shape[0] * shape[1] != states:
        return None
    row, column = np.divmod(np.arange(states), shape[1])
    return np.stack([column, -row], axis=1).astype(float)
