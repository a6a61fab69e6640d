"""Names of what well-known environments observe, from Gymnasium's documentation."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from retvar.experience.observations import ObservationReader

#: of the numbers of an observation, where the documentation has no table or long names
NAMES: dict[str, tuple[str, ...]] = {
    "MountainCar": ("position", "velocity"),
    "CartPole": ("position", "velocity", "angle", "spin"),
    "Pendulum": ("cos angle", "sin angle", "spin"),
    "Acrobot": ("cos 1", "sin 1", "cos 2", "sin 2", "spin 1", "spin 2"),
    "LunarLander": (
        "x", "y", "x velocity", "y velocity", "angle", "spin", "leg 1 down", "leg 2 down",
    ),
}  # fmt: skip
BLACKJACK = ("player's sum", "dealer's card", "usable ace")  # parts of a state
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
    kind = re.split("[:-]", f"{name}-")[1].removesuffix("Continuous")
    shape = getattr(env, "shape", None) or (getattr(env, "nrow", 0), getattr(env, "ncol", 0))
    found: dict[str, Any] = {}
    if reader.states is not None and len(shape) == 2 and shape[0] * shape[1] == reader.states:
        found = {"grid": (int(shape[0]), int(shape[1])), "cells": _letters(env)}
    if kind == "Blackjack" and reader.labels is not None:
        found["label_names"] = BLACKJACK
    if kind == "Taxi" and hasattr(env, "decode"):
        found["state_names"] = [
            f"row {row}, col {column}, {(*PLACES, 'taxi')[passenger]} to {PLACES[destination]}"
            for row, column, passenger, destination in map(env.decode, range(reader.states or 0))
        ]
    if reader.width is not None:
        own = getattr(env, "observation_names", None)
        known = NAMES.get(kind) or own or documented_names(getattr(env, "__doc__", None))
        found["names"] = list(known) if len(known) == reader.width else None
    return found


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
    form = r"^\s*\|\s*Num\s*\|\s*Observation\s*\|.*(\n\s*\|.*)*"
    table = re.search(form, text or "", re.MULTILINE)
    lines = table[0].strip().splitlines() if table else []
    plain = (re.sub(r"\s*(?<![a-z])\([^)|]*\)", "", each.replace("`", "")) for each in lines)
    head, *rows = [[" ".join(x.split()) for x in each.split("|")[1:-1]] for each in plain] or [[]]
    rows = [row for row in rows if row[0].isdecimal() and len(row) == len(head)]
    if not rows:
        return []
    joint = next((k for k, title in enumerate(head) if title.startswith("Name")), None)
    if joint is not None:
        joints = [row[joint] + " velocity" * ("velocity" in row[-1]) for row in rows]
        if len(set(joints)) == len(joints):
            return joints
    return [row[head.index("Observation")] for row in rows]
