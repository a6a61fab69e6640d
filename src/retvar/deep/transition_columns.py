"""Recorded transitions, brought into the order of their streams, as columns for fitting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError

__all__ = ["Columns", "Record"]

Array = NDArray[np.float64]
Chunk = dict[str, NDArray[Any]]
HORIZONS = 5.0  # of a block of a stream that does not end, for the bootstrap


@dataclass(frozen=True)
class Columns:
    """Transitions, stream by stream in the order of time.

    `observations` has the observation left by each transition, then those that follow where no row
    goes on from there; `follows` is the row of the observation that follows, its own after an end.
    """

    observations: Array  #: [row, number]
    follows: NDArray[np.int64]
    reward: Array
    gamma: Array  #: 0 at an end
    lam: Array
    rho: Array
    going: NDArray[np.bool_]  #: whether the next row goes on from here
    block: NDArray[np.int64]  #: number of the episode, or of a part of a long one

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return int(self.block[-1]) + 1

    @property
    def left(self) -> Array:
        """The observation that each transition leaves."""
        return self.observations[: len(self)]


class Record:
    """Collects chunks of transitions.

    >>> record = Record(gamma=0.9, lam=1.0)
    >>> x = np.arange(3.0)[:, None]
    >>> record.add({"state": x, "next_state": x + 1, "reward": np.ones(3),
    ...             "terminated": np.array([False, True, False])})
    >>> columns = record.columns()
    >>> columns.follows, columns.gamma, columns.going, columns.block
    (array([1, 1, 3]), array([0.9, 0. , 0.9]), array([ True, False, False]), array([0, 0, 1]))
    """

    def __init__(self, gamma: float | None, lam: float | None, most: int | None = None) -> None:
        self.gamma, self.lam = gamma, lam
        self.most = most  #: transitions that are kept, the newest; None: all
        self.rows = 0
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        """Add a chunk, as :meth:`retvar.experience.Experience.chunks` gives them."""
        n = len(chunk["reward"])
        if not n:
            return
        ended = _flag(chunk, "terminated", n)
        gamma = self._discount("gamma", chunk, n)
        rows: Chunk = {
            "state": np.array(chunk["state"], dtype=np.float64).reshape(n, -1),
            "next_state": np.array(chunk["next_state"], dtype=np.float64).reshape(n, -1),
            "reward": np.array(chunk["reward"], dtype=np.float64),
            "gamma": np.where(ended, 0.0, gamma),
            "lam": np.array(self._discount("lam", chunk, n)),
            "rho": np.array(chunk.get("rho", np.ones(n)), dtype=np.float64),
            "over": ended | _flag(chunk, "truncated", n),
            "ended": ended,
            "stream": np.array(chunk.get("stream", np.zeros(n)), dtype=np.int64),
        }
        rows["next_state"][ended] = rows["state"][ended]
        for name in ("state", "next_state", "reward", "gamma", "lam", "rho"):
            if not np.isfinite(rows[name]).all():
                raise InputError(name, "not finite", "must hold finite numbers; mend these rows")
        self._chunks.append(rows)
        self.rows += n
        while self.most is not None and self.rows - len(self._chunks[0]["reward"]) >= self.most:
            self.rows -= len(self._chunks.pop(0)["reward"])

    def _discount(self, name: str, chunk: Chunk, n: int) -> Array:
        own = getattr(self, name)
        return np.asarray(chunk[name] if own is None else np.full(n, own), dtype=np.float64)

    def columns(self) -> Columns:
        """All transitions, stream by stream."""
        if not self.rows:
            raise InputError("experience", "no transition", "there is nothing to fit")
        rows = {
            name: np.concatenate([chunk[name] for chunk in self._chunks])
            for name in self._chunks[0]
        }
        order = np.argsort(rows["stream"], kind="stable")
        rows = {name: column[order] for name, column in rows.items()}
        last = np.append(rows["stream"][1:] != rows["stream"][:-1], True)
        going = ~(rows["over"] | last)
        n, cut = len(going), ~going & ~rows["ended"]
        follows = np.arange(n) + going
        follows[cut] = n + np.arange(int(cut.sum()))
        observations = np.concatenate([rows["state"], rows["next_state"][cut]])
        return Columns(
            observations, follows, rows["reward"], rows["gamma"], rows["lam"], rows["rho"], going,
            _blocks(going, _horizon(rows["gamma"] * rows["lam"])),
        )  # fmt: skip


def _flag(chunk: Chunk, name: str, n: int) -> NDArray[np.bool_]:
    return np.asarray(chunk.get(name, np.zeros(n)), dtype=bool)


def _horizon(discount: Array) -> float:
    """1/(1 − c), of the discounts c of transitions that go on."""
    going = discount[discount > 0]
    mean = float(going.mean()) if going.size else 0.0
    return float("inf") if mean >= 1 else 1 / (1 - mean)


def _blocks(going: NDArray[np.bool_], horizon: float) -> NDArray[np.int64]:
    """Number of the block of each row: episodes, long ones cut into parts of some horizons."""
    first = np.append(True, ~going[:-1])
    start = np.flatnonzero(first)
    age = np.arange(going.size) - np.repeat(start, np.diff(np.append(start, going.size)))
    if np.isfinite(horizon):
        first |= age % max(1, round(HORIZONS * horizon)) == 0
    return np.asarray(np.cumsum(first) - 1, dtype=np.int64)
