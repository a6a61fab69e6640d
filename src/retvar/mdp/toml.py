"""MDPs in TOML files: the same edges, names and policies, readable and writable by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from retvar.errors import InputError
from retvar.files import write_text
from retvar.mdp.parsing import END, Edge

if TYPE_CHECKING:
    from retvar.mdp.model import MDP
    from retvar.mdp.policy import Policy

__all__ = ["mdp_of", "read_bytes", "read_toml", "told", "write_toml"]

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


def read_bytes(path: Path) -> bytes:
    """What is in a file that somebody named."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError("file", path, "does not exist; check the path") from None
    except OSError as error:
        raise InputError("file", path, f"cannot be read: {error.strerror}") from None


def told(error: msgspec.ValidationError) -> tuple[str, str]:
    """The path of the field that is wrong, and what is wrong with it."""
    problem, _, where = str(error).partition(" - at `$")
    return where.rstrip("`").lstrip("."), problem


def read_toml(path: Path, gamma: Any = None) -> MDP:
    """Read the file at `path`; what is wrong with it is told with the path of the field."""
    return mdp_of(read_bytes(path), path.name, gamma)


def mdp_of(text: bytes | str, name: str, gamma: Any = None) -> MDP:
    """The MDP that a file called `name` holds."""
    from retvar.mdp.model import MDP

    try:
        file = msgspec.toml.decode(text, type=_File)
    except msgspec.ValidationError as error:
        field, problem = told(error)
        raise InputError(f"{name}: {field or 'top level'}", "malformed", problem) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(name, "not TOML", str(error)) from None
    own = gamma is None  # otherwise the γ given takes the place of the edges'
    rows = [
        Edge(
            *(r.state, r.action, r.next_state, r.probability, r.reward, r.reward_std),
            r.gamma if own else None,
        )
        for r in file.edges
    ]
    settings: dict[str, Any] = {
        field: getattr(file, field)
        for field in ("name", "states", "actions", "gamma", "lam", "start", "positions", "policies")
        if getattr(file, field) is not None
    }
    if not own:
        settings["gamma"] = gamma
    try:
        return MDP.from_edges(rows, **settings)
    except InputError as error:
        raise InputError(f"{name}: {error.field}", error.value, error.remedy) from None


def write_toml(mdp: MDP, path: Path) -> None:
    """Write `mdp`, with its policies, so that reading gives an equal MDP."""
    write_text(path, "\n".join(_lines(mdp)) + "\n")


def _lines(mdp: MDP) -> Iterator[str]:
    e = mdp.edges
    gamma = mdp.gamma
    if mdp.name:
        yield f"name = {_string(mdp.name)}"
    yield f"states = {_names(mdp.state_names, mdp.n_states)}"
    yield f"actions = {_names(mdp.action_names, mdp.n_actions)}"
    if gamma is not None:
        yield f"gamma = {_numbers(gamma, gamma)}"
    yield f"lam = {_numbers(mdp.lam, mdp.lam)}"
    starts = np.flatnonzero(mdp.start)
    yield f"start = {_table(mdp.state_name(int(s)) for s in starts)(mdp.start[starts])}"
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
        yield f"[policies.{_bare(name)}]"
        yield from _policy_lines(mdp, policy)


def _policy_lines(mdp: MDP, policy: Policy) -> Iterator[str]:
    for state, row in enumerate(policy.probabilities):
        taken = np.flatnonzero(row)
        cells = _table(mdp.action_name(int(a)) for a in taken)(row[taken])
        yield f"{_bare(mdp.state_name(state))} = {cells}"


def _table(keys: Iterator[str]) -> Any:
    names = [_bare(key) for key in keys]
    return lambda values: (
        "{ " + ", ".join(f"{k} = {v!r}" for k, v in zip(names, values.tolist(), strict=True)) + " }"
    )


def _names(names: tuple[str, ...] | None, count: int) -> str:
    return str(count) if names is None else f"[{', '.join(map(_string, names))}]"


def _numbers(used: Any, values: Any) -> str:
    """One number where all that matter agree, otherwise a list."""
    if used.size and np.all(used == used[0]):
        return repr(float(used[0]))
    return repr(values.tolist())


def _reference(names: tuple[str, ...] | None, index: int) -> str:
    if index == END:
        return '"end"'
    return str(index) if names is None else _string(names[index])


def _bare(text: str) -> str:
    """Quote a key only where it needs it."""
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _string(text)


def _string(text: str) -> str:
    """Quote as a TOML basic string: JSON's, but for the one control character it leaves."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
