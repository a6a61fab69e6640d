"""Transitions as environments give them: what cannot be learned from is marked and counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.experience.episodes import Stop
from retvar.experience.spaces import Reading
from retvar.experience.stream import Chunk, Counts

__all__ = ["checked"]

Array = NDArray[np.float64]


def checked(
    rows: Chunk, reading: Reading, counts: Counts, seen: Any, seen_next: Any
) -> Iterator[Chunk]:
    """Mark rows whose observation or reward is not finite; bring observations within their bounds.

    `seen` and `seen_next` are the observations as they came. A state that is none ends the stream,
    after what came before it.

    >>> from gymnasium.spaces import Box
    >>> from retvar.experience.spaces import reading_of
    >>> state = np.array([[0.5], [2.0]])
    >>> rows = {"state": state, "next_state": state, "reward": np.array([1.0, np.nan]),
    ...         "terminated": np.zeros(2, dtype=bool), "truncated": np.zeros(2, dtype=bool)}
    >>> counts = Counts()
    >>> next(checked(rows, reading_of(Box(0, 1, (1,))), counts, state, state))["bad"]
    array([False,  True])
    >>> counts.rejected, counts.outside
    (Counter({'reward not finite': 1}), 1)
    """
    state, after, ended = rows["state"], rows["next_state"], rows["terminated"]
    finite = np.isfinite(rows["reward"])
    legible = np.ones_like(finite)
    if reading.width is None:
        none = (state < 0) | ((after < 0) & ~ended)
        if none.any():
            at = int(np.argmax(none))
            before = {name: column[:at] for name, column in rows.items()}
            yield from checked(before, reading, counts, seen, seen_next)
            given = (seen if state[at] < 0 else seen_next)[at]
            raise Stop(f"the observation {given!r} is not in the observation space")
    else:
        legible = np.isfinite(state).all(axis=1) & (np.isfinite(after).all(axis=1) | ended)
        rows["state"] = _within(state, reading, legible, counts)
        rows["next_state"] = _within(after, reading, legible & rows["truncated"] & ~ended, counts)
    reasons = {"observation not finite": ~legible, "reward not finite": legible & ~finite}
    for reason, bad in reasons.items():
        if bad.any():
            counts.rejected[reason] += int(np.count_nonzero(bad))
    good = legible & finite
    if not good.all():
        rows["bad"] = ~good
    yield rows


def _within(column: Array, reading: Reading, counted: NDArray[np.bool_], counts: Counts) -> Array:
    """Observations, those beyond the bounds at the nearest point within."""
    clipped = np.clip(column, reading.low, reading.high)
    counts.outside += int(np.count_nonzero((clipped != column).any(axis=1) & counted))
    return np.asarray(clipped)
