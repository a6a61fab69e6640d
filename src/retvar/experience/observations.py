"""Rows of environments and data sets: observations as columns, checked, and linked in time."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.experience.moves import Chunk, describe_error
from retvar.experience.stream import LARGEST_REWARD, Counts
from retvar.support.errors import InputError, RetvarError, SourceError

__all__ = ["SourceEnded", "acting_fields", "linked", "observation_reader", "validated"]

MOST_LABELS = 1_000_000
WRAP = "is not supported; wrap the environment so that it gives a number or a vector, such as in {}"
FLAT = WRAP.format("gymnasium.wrappers.FlattenObservation")


@dataclass
class ObservationReader:
    """Converts the observations of a space to states, or to vectors of one width."""

    column: Callable[[Any], NDArray[Any]]
    """From observations to a column of states (−1: not in the space) or rows of numbers."""
    copy: Callable[[Any], Any]  #: of an observation, which its environment may overwrite
    states: int | None = None
    labels: list[Any] | None = None
    width: int | None = None
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None

    def fields(self) -> dict[str, Any]:
        """What an experience says of its states."""
        names = ("states", "labels", "width", "low", "high")
        known = {name: getattr(self, name) for name in names}
        return known | {"fixed_states": self.states is not None}


def observation_reader(space: Any) -> ObservationReader:
    """Return the reader for the observations of a Gymnasium space.

    >>> from gymnasium.spaces import Box, Discrete, Tuple
    >>> observation_reader(Box(-1, 1, (2, 3))).width
    6
    >>> reader = observation_reader(Tuple((Discrete(3, start=1), Discrete(2))))
    >>> reader.states, reader.labels[:3], reader.column([(1, 1), (3, 0), (0, 0)])
    (6, [(1, 0), (1, 1), (2, 0)], array([ 1,  4, -1]))
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return _of_integers([int(space.n)], [int(space.start)])
    if isinstance(space, spaces.MultiDiscrete):
        return _of_integers(space.nvec.ravel().tolist(), space.start.ravel().tolist(), np.array)
    if isinstance(space, spaces.MultiBinary):
        size = math.prod(space.shape)
        return _of_integers([2] * size, [0] * size, np.array)
    if isinstance(space, spaces.Tuple) and space.spaces:
        parts: Any = space.spaces
        if all(isinstance(part, spaces.Discrete) for part in parts):
            return _of_integers([int(p.n) for p in parts], [int(p.start) for p in parts], tuple)
    if isinstance(space, spaces.Box) and space.dtype.kind in "fiub" and math.prod(space.shape):
        return _of_vectors(space)
    raise InputError("observation_space", space, FLAT)


def _of_integers(
    counts: list[int], starts: list[int], copy: Callable[[Any], Any] | None = None
) -> ObservationReader:
    """One or several integers per observation, combined to one number by mixed radix.

    The label of a state is their tuple; single ones (without a `copy`) have labels only if they do
    not start at 0.
    """
    labels: list[Any] | None = None
    states = math.prod(counts)
    ranges = [range(first, first + n) for first, n in zip(starts, counts, strict=True)]
    if copy is not None:
        if states > MOST_LABELS:
            raise InputError("observation_space", f"{states:,} combinations", FLAT)
        labels = list(itertools.product(*ranges))
    elif starts[0]:
        labels = list(ranges[0])

    def column(given: Any) -> NDArray[np.int64]:
        try:
            digits = np.asarray(given, dtype=np.float64).reshape(len(given), len(counts)) - starts
        except (TypeError, ValueError):  # one of them is none of the space's
            one = len(given) == 1
            return np.array([-1]) if one else np.concatenate([column([each]) for each in given])
        good = ((digits >= 0) & (digits < counts) & (digits == np.floor(digits))).all(axis=1)
        whole = np.where(good[:, None], digits, 0.0).astype(np.int64)
        return np.where(good, np.ravel_multi_index(tuple(whole.T), counts), -1)

    return ObservationReader(column, copy or (lambda observation: observation), states, labels)


def _of_vectors(space: Any) -> ObservationReader:
    """Vectors of a Box, flattened."""
    width, dtype, shape = math.prod(space.shape), space.dtype, space.shape

    def copy(given: Any) -> NDArray[Any]:
        array = np.array(given, dtype=dtype)
        if array.shape != shape:
            raise ValueError(f"an observation of shape {array.shape}, not {shape}")
        return array

    def column(given: Any) -> NDArray[np.float64]:
        return np.asarray(given, dtype=np.float64).reshape(len(given), width)

    low, high = (np.asarray(x, dtype=np.float64).ravel() for x in (space.low, space.high))
    return ObservationReader(column, copy, width=width, low=low, high=high)


def acting_fields(space: Any, source: Callable[..., Iterator[Chunk]]) -> dict[str, Any]:
    """What an experience says of its actions, where they are numbered.

    >>> from gymnasium.spaces import Box, Discrete
    >>> acting_fields(Discrete(3, start=1), iter)["actions"], acting_fields(Box(0, 1), iter)
    ([1, 2, 3], {})
    """
    from gymnasium.spaces import Discrete

    if not isinstance(space, Discrete):
        return {}
    first, count = int(space.start), int(space.n)

    def acting(counts: Counts) -> Iterator[Chunk]:
        for chunk in source(counts, acting=True):
            yield chunk | {"action": chunk["action"] - first}

    labels = list(range(first, first + count)) if first else None
    return {"with_actions": acting, "actions": labels, "action_count": count}


class SourceEnded(Exception):
    """A source cannot continue, for the reason in the message."""


def linked(parts: Iterator[Chunk], name: str, counts: Counts) -> Iterator[Chunk]:
    """Leave out rows that are ``bad``; truncate a row whose next one is, or never comes.

    If the source fails, everything before is yielded, then a SourceError is raised, or a
    RetvarError or an interruption as it is.
    """
    held: Chunk = {}
    failure: BaseException | None = None
    try:
        for new in parts:
            rows = {k: np.concatenate([held[k], x]) if held else x for k, x in new.items()}
            found, held = _decided(rows, last=False)
            if len(found["reward"]):
                yield found
    except (Exception, KeyboardInterrupt) as error:  # an environment may raise anything
        failure = error
    if held:
        yield _decided(held, last=True)[0]
    if isinstance(failure, RetvarError | KeyboardInterrupt):
        raise failure
    if failure is not None:
        ended = isinstance(failure, SourceEnded)
        reason = str(failure) if ended else describe_error(failure)
        raise SourceError(name, counts.transitions, reason) from failure


def _decided(rows: Chunk, *, last: bool) -> tuple[Chunk, Chunk]:
    """Rows up to the first one whose next row is not known yet, without bad ones; and the rest."""
    n, bad = len(rows["reward"]), rows["bad"]
    follows = np.arange(1, n + 1)  # the next row of the same stream; n: there is none
    if "stream" in rows:
        order = np.argsort(rows["stream"], kind="stable")
        same = np.diff(rows["stream"][order]) == 0
        follows[:] = n
        follows[order[:-1][same]] = order[1:][same]
    goes_on = ~(rows["terminated"] | rows["truncated"] | bad)
    waits = goes_on & (follows == n) & (not last)
    end = int(np.argmax(waits)) if waits.any() else n
    cut = goes_on & np.append(bad, True)[follows]
    ended = rows["terminated"].reshape(-1, *[1] * (rows["state"].ndim - 1))
    after = np.where(ended, rows["state"], rows["next_state"])
    found = rows | {"truncated": rows["truncated"] | cut, "next_state": after}
    kept = np.flatnonzero(~bad[:end])
    rest = {name: x[end:] for name, x in rows.items()} if end < n else {}
    return {name: x[kept] for name, x in found.items() if name != "bad"}, rest


def validated(
    rows: Chunk, reader: ObservationReader, counts: Counts, before: Any, after: Any
) -> Iterator[Chunk]:
    """Mark rows whose observation or reward cannot be used; clip observations to their bounds.

    `before` and `after` are the raw observations. One that is not in the space ends the stream:
    the rows before it are yielded, then :class:`SourceEnded` is raised.
    """
    state, follows, ended = rows["state"], rows["next_state"], rows["terminated"]
    readable, wrong = np.ones(len(ended), dtype=bool), np.zeros(len(ended), dtype=bool)
    if reader.width is None:
        wrong = (state < 0) | ((follows < 0) & ~ended)
    else:
        readable = np.isfinite(state).all(axis=1) & (np.isfinite(follows).all(axis=1) | ended)
        last = readable & rows["truncated"] & ~ended
        for name, counted in (("state", readable), ("next_state", last)):
            clipped = np.clip(rows[name], reader.low, reader.high)
            counts.out_of_bounds += int(((clipped != rows[name]).any(axis=1) & counted).sum())
            rows[name] = clipped
    size = np.abs(rows["reward"])
    finite, usable = readable & np.isfinite(size), size <= LARGEST_REWARD
    rows["bad"] = ~(finite & usable)
    stop = int(np.argmax(wrong)) if wrong.any() else len(size)
    for reason, bad in {
        "observation not finite": ~readable,
        "reward not finite": readable & ~finite,
        f"reward beyond {LARGEST_REWARD:g} in size": finite & ~usable,
    }.items():
        counts.rejected += Counter({reason: int(np.count_nonzero(bad[:stop]))})
    yield {name: column[:stop] for name, column in rows.items()}
    if stop < len(size):
        given = (before if state[stop] < 0 else after)[stop]
        raise SourceEnded(f"the observation {given!r} is not in the observation space")
