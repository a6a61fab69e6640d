"""Estimates of actions: what they refuse, and their arrays [state, action]."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray

from retvar.errors import InputError
from retvar.experience.action_pairs import LAM, split_label
from retvar.experience.stream import Experience
from retvar.format import natural_key
from retvar.learners import Learner

__all__ = ["has_actions", "refuse_beside_actions", "refuse_cluster_of_actions", "to_action_values"]

ONE_GAMMA = "must be one number with actions, or a column of the data"
TARGET_RETURN = "action values are of the target policy's return; leave the estimand out"


def refuse_beside_actions(learner: Learner) -> None:
    """Refuse settings that action values do not have.

    >>> import retvar as rv
    >>> refuse_beside_actions(rv.Direct(alpha=0.1, gamma=0.9, lam=0.5))
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: lam = 0.5: action values are of the return itself: leave λ out, or
    make it 1
    """
    if learner.lam is not None and bool(np.any(np.asarray(learner.lam) != 1.0)):
        raise InputError("lam", learner.lam, LAM)
    if learner.gamma is not None and np.ndim(learner.gamma):
        raise InputError("gamma", "one per state", ONE_GAMMA)
    if learner.estimand != "target_return":
        raise InputError("estimand", learner.estimand, TARGET_RETURN)


def refuse_cluster_of_actions(experience: Experience, cluster: str) -> None:
    """Refuse to sum pairs on workers, which number states apart from each other."""
    if experience.pairs:
        raise InputError("cluster", cluster, "does not go with actions; leave one of them out")


def has_actions(estimator: Any) -> bool:
    """Whether a saved estimator is one of actions."""
    notes = estimator.notes.get("estimate")
    return isinstance(notes, dict) and bool(notes.get("actions"))


def to_action_values(experience: Experience, data: xarray.Dataset) -> xarray.Dataset:
    """Columns of pairs as arrays [state, action]."""
    if not experience.pairs:
        raise InputError("actions", False, "not estimated; ask estimate(…, actions=True) for them")
    if experience.width is not None:
        remedy = "has observations; ask at([…, action]) for one of them"
        raise InputError("action_values", experience.name, remedy)
    own = [split_label(label) for label in (experience.labels or [])[: data.sizes["state"]]]
    states, actions = (_sorted([pair[k] for pair in own]) for k in (0, 1))
    at = tuple(
        np.array([names[pair[k]] for pair in own], dtype=np.intp)
        for k, names in enumerate((states, actions))
    )
    columns: dict[str, Any] = {}
    for name, column in data.data_vars.items():
        if column.dims != ("state",) or name in ("of_state", "action"):
            continue
        blank: Any = {"f": np.nan, "i": 0}.get(column.dtype.kind, "")
        whole = np.full((len(states), len(actions)), blank, dtype=column.dtype)
        whole[at] = column.values
        columns[str(name)] = (("state", "action"), whole)
    coords = {"state": _names(states), "action": _names(actions)}
    return xarray.Dataset(columns, coords, data.attrs)


def _sorted(labels: list[Any]) -> dict[Any, int]:
    """The place of each label in natural order."""
    distinct = sorted(dict.fromkeys(labels), key=lambda label: natural_key(str(label)))
    return {label: k for k, label in enumerate(distinct)}


def _names(labels: dict[Any, int]) -> list[Any]:
    """Labels of a coordinate: numbers, or text."""
    if all(isinstance(label, int | np.integer) for label in labels):
        return list(labels)
    return [", ".join(map(str, x)) if isinstance(x, tuple) else str(x) for x in labels]
