"""Names of what well-known environments observe, from Gymnasium's documentation."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["documented_names", "label_names", "observation_names", "state_names"]

#: of the numbers of an observation, where the documentation has no table or long names
NAMES: dict[str, tuple[str, ...]] = {
    "MountainCar": ("position", "velocity"),
    "MountainCarContinuous": ("position", "velocity"),
    "CartPole": ("position", "velocity", "angle", "spin"),
    "Pendulum": ("cos angle", "sin angle", "spin"),
    "Acrobot": ("cos 1", "sin 1", "cos 2", "sin 2", "spin 1", "spin 2"),
    "LunarLander": (
        "x", "y", "x velocity", "y velocity", "angle", "spin", "leg 1 down", "leg 2 down",
    ),
    "LunarLanderContinuous": (
        "x", "y", "x velocity", "y velocity", "angle", "spin", "leg 1 down", "leg 2 down",
    ),
    "BipedalWalker": (
        "hull angle", "hull spin", "x velocity", "y velocity",
        "hip 1", "hip 1 speed", "knee 1", "knee 1 speed", "leg 1 down",
        "hip 2", "hip 2 speed", "knee 2", "knee 2 speed", "leg 2 down",
        *(f"lidar {k}" for k in range(1, 11)),
    ),
}  # fmt: skip
LABELS: dict[str, tuple[str, ...]] = {
    "Blackjack": ("player's sum", "dealer's card", "usable ace")
}  # of the parts of a state
PLACES = "RGYB"  # of Taxi: red, green, yellow and blue


def observation_names(name: str, env: Any, width: int | None) -> list[str] | None:
    """Names for the numbers of an observation; None where they are not documented.

    >>> observation_names("gymnasium:CartPole-v1", None, 4)
    ['position', 'velocity', 'angle', 'spin']
    """
    if width is None:
        return None
    own = getattr(env, "observation_names", None)
    own = own if isinstance(own, list) and all(isinstance(each, str) for each in own) else ()
    known = list(_entry(NAMES, name) or own or documented_names(getattr(env, "__doc__", None)))
    return known if len(known) == width else None


def _entry(table: dict[str, tuple[str, ...]], name: str) -> tuple[str, ...]:
    """The entry of an environment by its id, whatever the version."""
    found = (names for start, names in table.items() if name.startswith(f"gymnasium:{start}-"))
    return next(found, ())


def documented_names(text: str | None) -> list[str]:
    """Names of observations in the table that docstrings of Gymnasium's environments have.

    Names of joints where they tell the numbers apart, otherwise the descriptions.

    >>> documented_names('''
    ... | Num | Observation | Min  | Max | Name (in XML file) | Type (Unit)    |
    ... | --- | ----------- | ---- | --- | ------------------ | -------------- |
    ... | 0   | its angle   | -Inf | Inf | thigh_joint        | angle (rad)    |
    ... | 1   | its speed   | -Inf | Inf | thigh_joint        | velocity (m/s) |
    ... ''')
    ['thigh_joint', 'thigh_joint velocity']
    """
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in _table(text or "")]
    if not rows:
        return []
    head, rows = rows[0], [row for row in rows[1:] if row[0].isdecimal()]
    rows = [row for row in rows if len(row) == len(head)]
    described = [_plain(row[head.index("Observation")]) for row in rows]
    joint = next((k for k, title in enumerate(head) if title.startswith("Name")), None)
    if joint is None or not rows:
        return described
    moves = [" velocity" * ("velocity" in row[-1]) for row in rows]
    joints = [_plain(row[joint]) + move for row, move in zip(rows, moves, strict=True)]
    return joints if len(set(joints)) == len(joints) else described


def _table(text: str) -> list[str]:
    """The lines of the first table of observations."""
    lines = [line.strip() for line in text.splitlines()]
    heads = (
        k for k, line in enumerate(lines) if re.match(r"\|\s*Num\s*\|\s*Observation\s*\|", line)
    )
    first = next(heads, None)
    if first is None:
        return []
    rest = lines[first:]
    length = next((k for k, line in enumerate(rest) if not line.startswith("|")), len(rest))
    return rest[:length]


def _plain(cell: str) -> str:
    """The text of a cell without remarks in brackets."""
    bare = re.sub(r"\s*(?<![a-z])\([^)]*\)", "", cell.replace("`", ""))
    return " ".join(bare.split())


def label_names(name: str) -> tuple[str, ...]:
    """Names of the parts of states that are tuples; none where they are not documented.

    >>> label_names("gymnasium:Blackjack-v1")
    ("player's sum", "dealer's card", 'usable ace')
    """
    return _entry(LABELS, name)


def state_names(name: str, env: Any, states: int | None) -> list[str] | None:
    """Names of numbered states: of Taxi, where the taxi, the passenger and the destination are.

    >>> import gymnasium
    >>> taxi = gymnasium.make("Taxi-v4").unwrapped
    >>> state_names("gymnasium:Taxi-v4", taxi, 500)[314]
    'row 3, col 0, B to Y'
    """
    if not name.startswith("gymnasium:Taxi-") or not hasattr(env, "decode") or states != 500:
        return None
    found = []
    for row, column, passenger, destination in map(env.decode, range(states)):
        place = PLACES[passenger] if passenger < len(PLACES) else "taxi"
        found.append(f"row {row}, col {column}, {place} to {PLACES[destination]}")
    return found
