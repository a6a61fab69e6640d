"""Read and write MDPs as TOML files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from retvar.mdp.edges import END, Edge
from retvar.support.errors import InputError
from retvar.support.files import parse_toml

if TYPE_CHECKING:
    from retvar.mdp.model import MDP

Key = int | str


class _EdgeRow(msgspec.Struct, forbid_unknown_fields=True):
    state: Key
    next_state: Key
    action: Key = 0
    probability: float = 1.0
    reward: float = 0.0
    reward_std: float = 0.0
    gamma: float | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    edges: list[_EdgeRow]
    name: str = ""
    states: int | list[str] | None = None
    actions: int | list[str] | None = None
    gamma: float | list[float] | None = None
    lam: float | list[float] = 1.0
    start: Key | dict[str, float] = 0
    positions: list[tuple[float, float]] | None = None
    policies: dict[str, dict[str, Key | dict[str, float]]] = {}


def field_and_problem(error: msgspec.ValidationError) -> tuple[str, str]:
    """Split a validation error into the path of the field and the problem."""
    problem, _, where = str(error).partition(" - at `$")
    return where.rstrip("`").lstrip("."), problem


def parse_mdp(text: bytes | str, name: str, gamma: Any = None) -> MDP:
    """The MDP described by TOML `text`; errors begin with `name`, the file's name."""
    from retvar.mdp.model import MDP

    try:
        file = parse_toml(text, name, _File)
    except msgspec.ValidationError as error:
        field, problem = field_and_problem(error)
        raise InputError(f"{name}: {field or 'top level'}", "malformed", problem) from None
    rows = [Edge(**{f: getattr(r, f) for f in Edge._fields}) for r in file.edges]
    settings = {
        field: getattr(file, field)
        for field in _File.__struct_fields__
        if field != "edges" and getattr(file, field) is not None
    }
    if gamma is not None:
        rows = [row._replace(gamma=None) for row in rows]
        settings["gamma"] = gamma
    try:
        return MDP.from_edges(rows, **settings)
    except InputError as error:
        raise InputError(f"{name}: {error.field}", error.value, error.remedy) from None


def toml_text(mdp: MDP) -> str:
    """The text of the TOML file of an MDP.

    >>> import retvar as rv
    >>> toml_text(rv.domains.chain()).splitlines()[0]
    'name = "chain"'
    """
    settings = {
        "name": mdp.name or None,
        "states": mdp.state_names or mdp.n_states,
        "actions": mdp.action_names or mdp.n_actions,
        "gamma": None if mdp.gamma is None else _once(mdp.gamma),
        "lam": _once(mdp.lam),
        "start": _probabilities(mdp.state_labels, mdp.start),
        "positions": None if mdp.positions is None else mdp.positions.tolist(),
    }
    lines = [f"{name} = {_value(given)}" for name, given in settings.items() if given is not None]
    lines += ["edges = [", *(f"    {_value(edge)}," for edge in _edges(mdp)), "]"]
    for name, policy in mdp.policies.items():
        lines += ["", f"[policies.{_key(name)}]"]
        for state, row in zip(mdp.state_labels, policy.probabilities, strict=True):
            lines.append(f"{_key(state)} = {_value(_probabilities(mdp.action_labels, row))}")
    return "\n".join(lines) + "\n"


def _edges(mdp: MDP) -> Iterator[dict[str, Any]]:
    states, actions = [*mdp.state_labels, "end"], mdp.action_labels
    columns = zip(*(column.tolist() for column in mdp.edges), strict=True)
    for state, action, after, probability, reward, std, gamma in columns:
        row = {"state": states[state], "action": actions[action], "next_state": states[after]}
        row |= {"probability": probability, "reward": reward}
        row |= {"reward_std": std} if std else {}
        yield row | ({"gamma": gamma} if mdp.gamma is None and after != END else {})


def _probabilities(labels: list[Any], given: Any) -> dict[Any, float]:
    """Those above 0, by their labels."""
    return {label: p for label, p in zip(labels, given.tolist(), strict=True) if p}


def _once(numbers: Any) -> Any:
    """One number if all are equal, otherwise a list."""
    return float(numbers[0]) if np.all(numbers == numbers[0]) else numbers.tolist()


def _value(given: Any) -> str:
    """A TOML value: that of JSON, in which DEL is escaped too; a mapping is an inline table."""
    if isinstance(given, dict):
        return "{ " + ", ".join(f"{_key(name)} = {_value(x)}" for name, x in given.items()) + " }"
    return json.dumps(given, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(label: object) -> str:
    """A TOML key, quoted only if necessary."""
    text = str(label)
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _value(text)
