"""Read and write MDPs as TOML files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from retvar.errors import InputError
from retvar.files import write_text
from retvar.mdp.parsing import END, Edge
from retvar.reading import parse_toml, read_bytes

if TYPE_CHECKING:
    from retvar.mdp.model import MDP
    from retvar.mdp.policy import Policy

__all__ = ["field_and_problem", "parse_mdp", "read_toml", "toml_text", "write_toml"]

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


def read_toml(path: Path, gamma: Any = None) -> MDP:
    """Read the MDP in the file at `path`; errors name the path of the field."""
    return parse_mdp(read_bytes(path), path.name, gamma)


def parse_mdp(text: bytes | str, name: str, gamma: Any = None) -> MDP:
    """The MDP described by TOML `text`; errors begin with `name`, the file's name."""
    from retvar.mdp.model import MDP

    try:
        file = parse_toml(text, name, _File)
    except msgspec.ValidationError as error:
        field, problem = field_and_problem(error)
        raise InputError(f"{name}: {field or 'top level'}", "malformed", problem) from None
    rows = [
        Edge(
            *(r.state, r.action, r.next_state, r.probability, r.reward, r.reward_std),
            r.gamma if gamma is None else None,
        )
        for r in file.edges
    ]
    settings: dict[str, Any] = {
        field: getattr(file, field)
        for field in ("name", "states", "actions", "gamma", "lam", "start", "positions", "policies")
        if getattr(file, field) is not None
    }
    if gamma is not None:
        settings["gamma"] = gamma
    try:
        return MDP.from_edges(rows, **settings)
    except InputError as error:
        raise InputError(f"{name}: {error.field}", error.value, error.remedy) from None


def write_toml(mdp: MDP, path: Path) -> None:
    """Write `mdp` and its policies to a TOML file; reading it gives an equal MDP."""
    write_text(path, toml_text(mdp))


def toml_text(mdp: MDP) -> str:
    """The text of the TOML file of an MDP.

    >>> import retvar as rv
    >>> toml_text(rv.domains.chain()).splitlines()[0]
    'name = "chain"'
    """
    return "\n".join(_lines(mdp)) + "\n"


def _lines(mdp: MDP) -> Iterator[str]:
    e = mdp.edges
    gamma = mdp.gamma
    if mdp.name:
        yield f"name = {_string(mdp.name)}"
    yield f"states = {_names(mdp.state_names, mdp.n_states)}"
    yield f"actions = {_names(mdp.action_names, mdp.n_actions)}"
    if gamma is not None:
        yield f"gamma = {_numbers(gamma)}"
    yield f"lam = {_numbers(mdp.lam)}"
    yield f"start = {_inline_table(mdp.start, mdp.state_name)}"
    if mdp.positions is not None:
        yield f"positions = [{', '.join(f'[{x!r}, {y!r}]' for x, y in mdp.positions.tolist())}]"
    yield "edges = ["
    columns = zip(*(column.tolist() for column in e), strict=True)
    for state, action, next_state, probability, reward, std, discount in columns:
        cells = [
            f"state = {_reference(mdp.state_names, state)}",
            f"action = {_reference(mdp.action_names, action)}",
            f"next_state = {_reference(mdp.state_names, next_state)}",
            f"probability = {probability!r}",
            f"reward = {reward!r}",
        ]
        cells += [f"reward_std = {std!r}"] if std else []
        cells += [f"gamma = {discount!r}"] if gamma is None and next_state != END else []
        yield f"    {{ {', '.join(cells)} }},"
    yield "]"
    for name, policy in mdp.policies.items():
        yield ""
        yield f"[policies.{_key(name)}]"
        yield from _policy_lines(mdp, policy)


def _policy_lines(mdp: MDP, policy: Policy) -> Iterator[str]:
    for state, row in enumerate(policy.probabilities):
        yield f"{_key(mdp.state_name(state))} = {_inline_table(row, mdp.action_name)}"


def _inline_table(probabilities: Any, name: Callable[[int], str]) -> str:
    """The positive probabilities as ``{ name = probability, … }``."""
    used = enumerate(probabilities.tolist())
    return "{ " + ", ".join(f"{_key(name(i))} = {p!r}" for i, p in used if p) + " }"


def _names(names: tuple[str, ...] | None, count: int) -> str:
    return str(count) if names is None else f"[{', '.join(map(_string, names))}]"


def _numbers(values: Any) -> str:
    """One number if all are equal, otherwise a list."""
    if values.size and np.all(values == values[0]):
        return repr(float(values[0]))
    return repr(values.tolist())


def _reference(names: tuple[str, ...] | None, index: int) -> str:
    if index == END:
        return '"end"'
    return str(index) if names is None else _string(names[index])


def _key(text: str) -> str:
    """A TOML key, quoted only if necessary."""
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _string(text)


def _string(text: str) -> str:
    """A TOML basic string: a JSON string in which DEL is escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
