"""Names of what well-known environments observe, and their maps."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from retvar.experience.observations import ObservationReader

NAMES: dict[str, tuple[str, ...]] = {  # of the numbers of an observation
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
        known = NAMES.get(kind) or getattr(env, "observation_names", None) or ()
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
