"""What a learner has seen on its way: where it was, and which returns came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.regions import Regions, Visits
from retvar.experience.returns import Returns
from retvar.experience.stream import Chunk, Experience
from retvar.features import Observed
from retvar.online import Online
from retvar.online.replicates import half_width

__all__ = ["Discounts", "Seen"]

Array = NDArray[np.float64]
KEYS = 64  # returns that may be open at once
CARRIED = ("transitions", "episodes", "outside", "largest_ratio", "ratios", "squares", "weighted")


@dataclass
class Discounts:
    """γ, λ, η and the value that follows, of each transition of a chunk: what a return is made of.

    `known` is False where the returns of the target policy cannot be seen: off-policy.
    """

    gamma: Array
    lam: Array
    eta: Array
    next_value: Array
    next_variance: Array
    known: bool

    @classmethod
    def of(cls, learner: Online, chunk: Chunk) -> Discounts:
        """Those of the chunk, or else the learner's."""
        n, m, follows = len(chunk["reward"]), learner.memory, chunk["next_state"]
        gamma, lam = (
            np.asarray(chunk[name], dtype=np.float64)
            if name in chunk
            else np.broadcast_to(own[follows] if own.size > 1 else own, n)
            for name, own in (("gamma", m.gammas), ("lam", m.lams))
        )
        rho = np.asarray(chunk.get("rho", np.ones(n)), dtype=np.float64)
        weighted = learner.description.estimand == "off_policy_return"
        next_value, next_variance = np.zeros(n), np.zeros(n)
        if np.any(lam < 1):
            next_value = learner.predict("value", follows)
        cut = np.flatnonzero(chunk.get("truncated", ()))
        if cut.size:  # the rest of the return is not seen
            next_value[cut] = learner.predict("value", follows[cut])
            next_variance[cut] = np.maximum(learner.predict("variance", follows[cut]), 0.0)
        return cls(
            gamma,
            lam,
            rho if weighted else np.ones(n),
            next_value,
            next_variance,
            weighted or bool((rho == 1).all()),
        )


class Seen:
    """Visits, and returns that were really seen; filled as a stream goes by."""

    def __init__(self, level: float = 0.9) -> None:
        half_width(level)
        self.level = level
        self.where: Visits | Regions | None = None
        self.returns: Returns | None = None
        self.earlier: dict[str, Any] = {}  # the tally of streams before a resumed one
        self.labels: list[Any] | None = None

    def watch(self, learner: Online, chunk: Chunk) -> None:
        """Note what a chunk holds, before it is learned from."""
        state = chunk["state"]
        if self.where is None:
            self.where = _places(learner, state)
        if self.returns is None:
            self.returns = Returns(KEYS, 1 if state.ndim == 1 else state.shape[1])
        self.where.add(state)
        found = Discounts.of(learner, chunk)
        if found.known:
            self.collect(self.returns, chunk, self._keys(state) % KEYS, found)
        else:
            self.returns.forget()

    def _keys(self, state: Any) -> NDArray[np.int64]:
        return self.where.cells(state) if isinstance(self.where, Regions) else state

    @staticmethod
    def collect(returns: Returns, chunk: Chunk, keys: Any, found: Discounts) -> None:
        """Let returns be collected from a chunk."""
        n, state = len(chunk["reward"]), chunk["state"]
        none = np.zeros(n, dtype=np.int64)
        flags = chunk.get("terminated", none) + 2 * np.asarray(chunk.get("truncated", none), int)
        returns.add(
            np.ascontiguousarray(keys, dtype=np.int64),
            np.ascontiguousarray(state.reshape(n, -1), dtype=np.float64),
            np.asarray(chunk["reward"], dtype=np.float64),
            np.ascontiguousarray(found.gamma), np.ascontiguousarray(found.lam),
            found.next_value, found.next_variance, found.eta,
            np.asarray(flags, dtype=np.int64),
            np.asarray(chunk.get("stream", none), dtype=np.int64),
        )  # fmt: skip

    def to_dict(self, experience: Experience) -> dict[str, Any]:
        """Plain data for a checkpoint: where it was, and what has gone by."""
        tally = {name: getattr(experience.tally, name) for name in CARRIED}
        return {
            "level": self.level,
            "labels": None if experience.labels is None else list(experience.labels),
            "visits": self.where.to_dict() if self.where is not None else None,
            "tally": tally,
        }

    @classmethod
    def restored(cls, path: Any, learner: Online, experience: Experience) -> Seen:
        """Go on from a checkpoint; the experience must be of the same kind."""
        notes = learner.notes.get("estimate")
        if not isinstance(notes, dict):
            raise InputError("resume", path, "was not written by estimate")
        width = learner.features[0].states is None and getattr(learner.features[0], "width", None)
        if (experience.width or False) != (width or False):
            saved = f"observations of {width} numbers" if width else "states"
            raise InputError("resume", path, f"was learned from {saved}; {experience.name} differs")
        seen = cls(float(notes["level"]))
        if notes["visits"] is not None:
            seen.where = _places(learner, None)
            seen.where.restore(notes["visits"])
        if notes["labels"] is not None:
            if experience.labels is None:
                raise InputError("resume", path, "has names for its states; here are numbers")
            experience.labels[:] = notes["labels"]
        for name, given in notes["tally"].items():
            if name in CARRIED:
                setattr(experience.tally, name, given)
        return seen


def _places(learner: Online, state: Any) -> Visits | Regions:
    kind = learner.features[0]
    if kind.states is not None:
        return Visits()
    if isinstance(kind, Observed):
        return Regions(np.array(kind.low), np.array(kind.high))
    low, high = state.min(axis=0), state.max(axis=0)
    return Regions(low, np.where(high > low, high, low + 1.0))
