"""Names of what well-known environments observe, from Gymnasium's documentation."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from retvar.experience.observations import ObservationReader

__all__ = ["documented_names", "environment_names"]

LANDER = ("x", "y", "x velocity", "y velocity", "angle", "spin", "leg 1 down", "leg 2 down")
#: of the numbers of an observation, where the documentation has no table or long names
NAMES: dict[str, tuple[str, ...]] = {
    "MountainCar": ("position", "velocity"),
    "MountainCarContinuous": ("position", "velocity"),
    "CartPole": ("position", "velocity", "angle", "spin"),
    "Pendulum": ("cos angle", "sin angle", "spin"),
    "Acrobot": ("cos 1", "sin 1", "cos 2", "sin 2", "spin 1", "spin 2"),
    "LunarLander": LANDER,
    "LunarLanderContinuous": LANDER,
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


def environment_names(name: str, env: Any, reader: ObservationReader) -> dict[str, Any]:
    """What an experience says of an environment: names of states and numbers, and the map.

    >>> import gymnasium
    >>> from retvar.experience.observations import observation_reader
    >>> taxi = gymnasium.make("Taxi-v4").unwrapped
    >>> reader = observation_reader(taxi.observation_space)
    >>> environment_names("gymnasium:Taxi-v4", taxi, reader)["state_names"][314]
    'row 3, col 0, B to Y'
    """
    kind = re.split("[:-]", f"{name}-")[1]
    found: dict[str, Any] = {"grid": _grid(env, reader.states)}
    if found["grid"] is not None:
        found["cells"] = _letters(env)
    if reader.labels is not None:
        found["label_names"] = LABELS.get(kind, ())
    if reader.width is not None:
        own = getattr(env, "observation_names", None)
        known = NAMES.get(kind) or own or documented_names(getattr(env, "__doc__", None))
        found["names"] = list(known) if len(known) == reader.width else None
    if kind == "Taxi" and hasattr(env, "decode"):
        found["state_names"] = [
            f"row {row}, col {column}, {(*PLACES, 'taxi')[passenger]} to {PLACES[destination]}"
            for row, column, passenger, destination in map(env.decode, range(reader.states or 0))
        ]
    return found


def _grid(env: Any, states: int | None) -> tuple[int, int] | None:
    """Rows and columns of the map that the states lie on, if there is one."""
    shape = getattr(env, "shape", None) or (getattr(env, "nrow", 0), getattr(env, "ncol", 0))
    if states is None or len(shape) != 2 or shape[0] * shape[1] != states:
        return None
    return int(shape[0]), int(shape[1])


def _letters(env: Any) -> str:
    """A letter for each cell of the map: start, frozen, hole, cliff, goal."""
    if hasattr(env, "desc"):
        return b"".join(np.asarray(env.desc).ravel().tolist()).decode()
    if not hasattr(env, "_cliff") or not hasattr(env, "start_state_index"):
        return ""
    letters = np.where(np.asarray(env._cliff).ravel(), "C", " ")
    letters[env.start_state_index], letters[-1] = "S", "G"
    return "".join(letters)


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
    table = re.search(
        r"^\s*\|\s*Num\s*\|\s*Observation\s*\|.*(\n\s*\|.*)*", text or "", re.MULTILINE
    )
    lines = table[0].strip().splitlines() if table else []
    rows = [[cell.strip() for cell in line.strip().split("|")[1:-1]] for line in lines]
    if not rows:
        return []
    head, rows = rows[0], [row for row in rows[1:] if row[0].isdecimal()]
    rows = [row for row in rows if len(row) == len(head)]
    described = [_plain(row[head.index("Observation")]) for row in rows]
    joint = next((k for k, title in enumerate(head) if title.startswith("Name")), None)
    if joint is None or not rows:
        return described
    joints = [_plain(row[joint]) + " velocity" * ("velocity" in row[-1]) for row in rows]
    return joints if len(set(joints)) == len(joints) else described


def _plain(cell: str) -> str:
    """The text of a cell without remarks in brackets."""
    bare = re.sub(r"\s*(?<![a-z])\([^)]*\)", "", cell.replace("`", ""))
    return " ".join(bare.split())
