"""MDPs from the transition tables of Gymnasium's toy-text environments."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.errors import InputError
from retvar.format import literal
from retvar.mdp.parsing import END, Edge

if TYPE_CHECKING:
    from retvar.mdp.model import MDP

__all__ = ["from_gymnasium"]

ACTIONS = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
}


def from_gymnasium(env: Any, *, gamma: float, lam: ArrayLike = 1.0, **options: Any) -> MDP:
    """Build an MDP from ``env.unwrapped.P``; a transition marked done ends the episode."""
    from retvar.mdp.model import MDP

    table, name, inner = _table(env, options)
    if not table:
        raise InputError("env", "{}", "must be a table with at least one state")
    try:
        edges = [
            Edge(int(s), int(a), END if done else int(s_next), float(p), float(r))
            for s, actions in table.items()
            for a, outcomes in actions.items()
            for p, s_next, r, done in outcomes
        ]
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        rows = "{state: {action: [(probability, next state, reward, done)]}}"
        remedy = f"must be {rows}: {error}"
        raise InputError("env", literal(table), remedy) from None
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


def _table(env: Any, options: dict[str, Any]) -> tuple[dict[Any, Any], str, Any]:
    """The table, its name, and its environment (None for a bare table)."""
    if isinstance(env, str):
        env = _make_environment(env, options)
    elif options:
        raise InputError("options", sorted(options), "apply only to an environment given by its id")
    if isinstance(env, Mapping):
        return dict(env), "", None
    inner = getattr(env, "unwrapped", None)
    name = env.spec.id if getattr(env, "spec", None) is not None else type(inner).__name__
    table = getattr(inner, "P", None)
    if not isinstance(table, Mapping):
        shown = literal(env) if inner is None else name
        remedy = "has no transition table; Gymnasium's toy-text environments have one"
        raise InputError("environment", shown, remedy)
    return dict(table), name, inner


def _make_environment(name: str, options: dict[str, Any]) -> Any:
    import gymnasium

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an outdated id raises an error below
            return gymnasium.make(name, **options)
    except Exception as error:  # an environment may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError("environment", name, f"cannot be made: {reason}") from None


def _positions(env: Any, states: int) -> NDArray[np.float64] | None:
    """Positions (x to the right, y upwards) of the cells of a grid world; None for others."""
    shape = getattr(env, "shape", None) or (getattr(env, "nrow", 0), getattr(env, "ncol", 0))
    if len(shape) != 2 or shape[0] * shape[1] != states:
        return None
    row, column = np.divmod(np.arange(states), shape[1])
    return np.stack([column, -row], axis=1).astype(float)
