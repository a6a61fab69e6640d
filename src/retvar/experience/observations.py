"""What environments and data sets observe: states or vectors, their names, and experience."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.experience.moves import Chunk, describe_error
from retvar.experience.stream import Counts, Experience
from retvar.support.errors import InputError, RetvarError, SourceError

MOST_LABELS = 1_000_000
WRAP = (
    "is not supported; wrap the environment so that it gives a number or a vector, such as in "
    "gymnasium.wrappers.FlattenObservation"
)

NAMES: dict[str, tuple[str, ...]] = {  # of the numbers of an observation
    "MountainCar": ("position", "velocity"),
    "CartPole": ("position", "velocity", "angle", "spin"),
    "Pendulum": ("cos angle", "sin angle", "spin"),
}
PLACES = "RGYB"  # of Taxi: red, green, yellow and blue


class ObservationReader:
    """Reads the observations of a Gymnasium space as states, or as vectors of one width.

    Several whole numbers are one state, by mixed radix; its label is their tuple. A single one has
    a label only where the space does not count from 0.

    >>> from gymnasium.spaces import Box, Discrete, Tuple
    >>> ObservationReader(Box(-1, 1, (2, 3))).width
    6
    >>> reader = ObservationReader(Tuple((Discrete(3, start=1), Discrete(2))))
    >>> reader.states, reader.labels[:3], reader.read((3, 0))
    (6, [(1, 0), (1, 1), (2, 0)], 4)
    """

    states: int | None = None
    labels: list[Any] | None = None
    width: int | None = None
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None

    def __init__(self, space: Any) -> None:
        from gymnasium.spaces import Box, Discrete

        self._space, self._ranges = space, _ranges(space)
        if self._ranges:
            self.states = math.prod(map(len, self._ranges))
            if isinstance(space, Discrete):
                self.labels = list(self._ranges[0]) if space.start else None
            elif self.states > MOST_LABELS:
                raise InputError("observation_space", f"{self.states:,} combinations", WRAP)
            else:
                self.labels = list(itertools.product(*self._ranges))
        elif isinstance(space, Box) and space.dtype.kind in "fiub" and math.prod(space.shape):
            self.low = space.low.ravel().astype(np.float64)
            self.high = space.high.ravel().astype(np.float64)
            self.width = self.low.size
        else:
            raise InputError("observation_space", space, WRAP)

    def copy(self, observation: Any) -> Any:
        """A copy of an observation, which its environment may overwrite."""
        if self.width is None:
            return deepcopy(observation)
        with suppress(TypeError, ValueError):
            array = np.array(observation, dtype=self._space.dtype)
            if array.shape == self._space.shape and np.isfinite(array).all():
                return array
        raise ValueError(f"{observation!r} is not in the observation space")

    def read(self, observation: Any) -> Any:
        """The number of the observation's state; a vector as it is."""
        if self.width is not None:
            return observation
        numbers = [observation] if type(observation) is int else np.ravel(observation).tolist()
        state = 0
        try:
            for number, allowed in zip(numbers, self._ranges, strict=True):
                state = state * len(allowed) + allowed.index(number)
        except ValueError:
            raise ValueError(f"{observation!r} is not in the observation space") from None
        return state

    def column(self, read: Any) -> tuple[NDArray[Any], int]:
        """A column of states, or rows of numbers within the bounds, and how many lay outside."""
        if self.width is None:
            return np.array(read, dtype=np.int64), 0
        given = np.asarray(read, dtype=np.float64).reshape(len(read), self.width)
        found = np.clip(given, self.low, self.high)
        return found, int((found != given).any(axis=1).sum())


def _ranges(space: Any) -> list[range]:
    """The ranges of the whole numbers that an observation consists of, if it does."""
    from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete, Tuple

    if isinstance(space, Discrete):
        return [range(int(space.start), int(space.start + space.n))]
    if isinstance(space, MultiBinary):
        return [range(2)] * math.prod(space.shape)
    if isinstance(space, MultiDiscrete):
        starts, counts = space.start.ravel().tolist(), space.nvec.ravel().tolist()
        return [range(first, first + n) for first, n in zip(starts, counts, strict=True)]
    single = isinstance(space, Tuple) and all(isinstance(part, Discrete) for part in space)
    return [_ranges(part)[0] for part in space] if single else []


def experience_of(
    name: str, parts: Callable[[], Iterator[dict[str, Any]]], reader: ObservationReader,
    actions: Any, **about: Any,
) -> Experience:  # fmt: skip
    """Experience from parts of a source: columns of observations that were read, actions, ….

    Actions are used where their space numbers them; they count from 0, and have labels where the
    space does not. If the source fails or is interrupted, everything before is yielded first.
    """
    from gymnasium.spaces import Discrete

    numbered = isinstance(actions, Discrete)
    first, count = (int(actions.start), int(actions.n)) if numbered else (0, None)

    def source(counts: Counts, acting: bool = False) -> Iterator[Chunk]:
        try:
            for part in parts():
                given, (state, outside) = part.pop("action"), reader.column(part["state"])
                counts.out_of_bounds += outside
                read = part | {"state": state, "next_state": reader.column(part["next_state"])[0]}
                chunk = {name: np.asarray(column) for name, column in read.items()}
                if acting:
                    chunk["action"] = np.array(given, dtype=np.int64).reshape(-1) - first
                yield chunk
        except RetvarError:
            raise
        except Exception as error:  # an environment may raise anything
            raise SourceError(name, counts.transitions, describe_error(error)) from error

    return Experience(
        name=name, source=source, states=reader.states, fixed_states=reader.states is not None,
        labels=reader.labels, width=reader.width, low=reader.low, high=reader.high,
        with_actions=partial(source, acting=True) if numbered else None, action_count=count,
        actions=list(range(first, first + int(actions.n))) if first else None, **about,
    )  # fmt: skip


# ------------------------------------------------------------------ names


def environment_names(name: str, env: Any, reader: ObservationReader) -> dict[str, Any]:
    """What an experience says of an environment: names of states and numbers, and the map."""
    kind = re.split("[:-]", f"{name}-")[1].removesuffix("Continuous")
    shape = getattr(env, "shape", None) or (getattr(env, "nrow", 0), getattr(env, "ncol", 0))
    found: dict[str, Any] = {}
    if reader.states is not None and len(shape) == 2 and shape[0] * shape[1] == reader.states:
        found = {"grid": (int(shape[0]), int(shape[1])), "cells": _letters(env)}
    if kind == "Taxi" and hasattr(env, "decode"):
        found["state_names"] = [
            f"row {row}, col {column}, {(*PLACES, 'taxi')[passenger]} to {PLACES[destination]}"
            for row, column, passenger, destination in map(env.decode, range(reader.states or 0))
        ]
    if len(NAMES.get(kind, ())) == reader.width:
        found["names"] = list(NAMES[kind])
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
