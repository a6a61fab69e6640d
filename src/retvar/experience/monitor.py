"""What a learner has seen on its way: where it was, and which returns came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.bootstrap_terms import Value
from retvar.experience.provenance import Origin
from retvar.experience.regions import Regions, Visits
from retvar.experience.returns import Returns
from retvar.experience.stream import Chunk, Counts, Experience
from retvar.features import ObservationFeatures
from retvar.online import OnlineEstimator
from retvar.online.bootstrap import half_width

__all__ = ["Discounts", "Seen", "at_rows"]

Array = NDArray[np.float64]
KEYS = 64  # returns that may be open at once
CARRIED = ("transitions", "episodes", "outside", "largest_ratio", "ratios", "squares", "weighted")
COUNTED = ("rejected", "cuts")


@dataclass
class Discounts:
    """γ, λ and η of each transition of a chunk: what a return is made of.

    `next_value` is the value that follows, where it is known for good. `known` is False where the
    returns of the target policy cannot be seen: off-policy.
    """

    gamma: Array
    lam: Array
    eta: Array
    next_value: Array | None
    known: bool

    @classmethod
    def of(cls, learner: OnlineEstimator, chunk: Chunk, at_rest: bool = False) -> Discounts:
        """Those of the chunk, or else the learner's; `at_rest`: it learns no more."""
        n, m, follows = len(chunk["reward"]), learner.memory, chunk["next_state"]
        gamma, lam = (
            np.asarray(chunk[name], dtype=np.float64)
            if name in chunk
            else np.broadcast_to(own[follows] if own.size > 1 else own, n)
            for name, own in (("gamma", m.gammas), ("lam", m.lams))
        )
        rho = np.asarray(chunk.get("rho", np.ones(n)), dtype=np.float64)
        weighted = learner.description.estimand == "off_policy_return"
        next_value = None
        if at_rest:
            values = np.any(lam < 1)
            next_value = learner.predict(follows, "value") if values else np.zeros(n)
        eta = rho if weighted else np.ones(n)
        return cls(gamma, lam, eta, next_value, weighted or bool((rho == 1).all()))


def at_rows(learner: OnlineEstimator, what: str) -> Value:
    """How a learner answers for rows as returns keep them: states, or observations."""
    tabular = learner.features[0].states is not None

    def answer(rows: Array) -> Array:
        return learner.predict(rows[:, 0].astype(np.int64) if tabular else rows, what)

    return answer


class Seen:
    """Visits, and returns that were really seen; filled as a stream goes by."""

    def __init__(self, level: float = 0.9) -> None:
        half_width(level)
        self.level = level
        self.where: Visits | Regions | None = None
        self.returns: Returns | None = None
        self.off_policy = False  # returns of the target policy are not seen
        self.began: Origin | None = None  # where, if not with what is being watched

    def watch(self, learner: OnlineEstimator, chunk: Chunk) -> None:
        """Note what a chunk holds."""
        state = chunk["state"]
        if self.where is None:
            self.where = _places(learner, state)
        if self.returns is None:
            self.returns = Returns(KEYS, 1 if state.ndim == 1 else state.shape[1])
        self.where.add(state)
        found = Discounts.of(learner, chunk)
        self.off_policy |= not found.known  # from then on: a chunk of ratios 1 is no fair sample
        if not self.off_policy:
            self.collect(self.returns, chunk, self._keys(state) % KEYS, found)

    def _keys(self, state: Any) -> NDArray[np.int64]:
        return self.where.cells(state) if isinstance(self.where, Regions) else state

    @staticmethod
    def collect(returns: Returns, chunk: Chunk, keys: Any, found: Discounts) -> None:
        """Let returns be collected from a chunk."""
        n = len(chunk["reward"])
        seen, reached = (
            np.ascontiguousarray(chunk[name].reshape(n, -1), dtype=np.float64)
            for name in ("state", "next_state")
        )
        none = np.zeros(n, dtype=np.int64)
        flags = chunk.get("terminated", none) + 2 * np.asarray(chunk.get("truncated", none), int)
        returns.add(
            np.ascontiguousarray(keys, dtype=np.int64), seen, reached,
            np.asarray(chunk["reward"], dtype=np.float64), found.gamma, found.lam, found.eta,
            np.asarray(flags, dtype=np.int64),
            np.asarray(chunk.get("stream", none), dtype=np.int64), found.next_value,
        )  # fmt: skip

    def to_dict(self, experience: Experience) -> dict[str, Any]:
        """Plain data for a checkpoint: where it was, and what has gone by."""
        counts = {name: getattr(experience.counts, name) for name in CARRIED}
        counted = {name: dict(getattr(experience.counts, name)) for name in COUNTED}
        labels, grid = experience.labels, experience.grid
        return {
            "level": self.level,
            "began": (self.began or Origin.of(experience)).to_dict(),
            "labels": None if labels is None else [plain_label(each) for each in labels],
            "grid": None if grid is None else list(grid),
            "visits": self.where.to_dict() if self.where is not None else None,
            "off_policy": self.off_policy,
            "counts": counts | counted,
        }

    @classmethod
    def restored(cls, path: Any, learner: OnlineEstimator, experience: Experience) -> Seen:
        """Go on from a checkpoint; the experience must be of the same kind."""
        notes = learner.notes.get("estimate")
        if not isinstance(notes, dict):
            raise InputError("resume", path, "was not written by estimate")
        try:
            _refuse_another_kind(path, learner, notes, experience)
            seen = cls(float(notes["level"]))
            seen.off_policy = bool(notes["off_policy"])
            if notes["visits"] is not None:
                kind = Visits if learner.features[0].states is not None else Regions
                seen.where = kind.restored(notes["visits"])
            if "began" in notes:  # files of earlier versions do not say
                visited = seen.where.counts.size if isinstance(seen.where, Visits) else 0
                seen.began = Origin.restored(notes["began"])
                seen.began.compare(path, learner, experience, visited)
            if notes["labels"] is not None:
                _adopt_labels(path, notes["labels"], experience)
            _adopt_counts(notes["counts"], experience.counts)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError("resume", path, f"its notes cannot be read: {error!r}") from None
        return seen


def _refuse_another_kind(
    path: Any, learner: OnlineEstimator, notes: Any, experience: Experience
) -> None:
    """Refuse experience whose states are not those of the checkpoint."""
    kind = learner.features[0]
    width = None if kind.states is not None else getattr(kind, "width", experience.width)
    if experience.width != width:
        saved, here = (f"observations of {w} numbers" if w else "states" for w in
                       (width, experience.width))  # fmt: skip
        raise InputError("resume", path, f"was learned from {saved}; {experience.name} has {here}")
    if (notes["labels"] is None) != (experience.labels is None):
        saved, here = ("names", "numbers") if experience.labels is None else ("numbers", "names")
        raise InputError("resume", path, f"has {saved} for its states; here are {here}")
    grid = experience.grid
    if grid is not None and notes["grid"] is not None and list(grid) != notes["grid"]:
        saved, here = ("{} × {}".format(*size) for size in (notes["grid"], grid))
        raise InputError("resume", path, f"was learned on a map of {saved}; here is one of {here}")


def _adopt_labels(path: Any, saved: list[Any], experience: Experience) -> None:
    """Number states as they were numbered before."""
    labels = [tuple(each) if isinstance(each, list) else each for each in saved]
    for label in labels:
        if isinstance(label, dict):
            remedy = f"names its states by {label['kind']}, which does not come back; use text"
            raise InputError("resume", path, remedy)
    assert experience.labels is not None
    if experience.states is not None and experience.labels != labels:
        raise InputError("resume", path, f"has other states than {experience.name}")
    experience.labels[:] = labels


def _adopt_counts(saved: dict[str, Any], counts: Counts) -> None:
    for name in CARRIED:
        setattr(counts, name, type(getattr(counts, name))(saved[name]))
    for name in COUNTED:
        getattr(counts, name).update(saved[name])


def plain_label(label: Any) -> Any:
    """A label as it can be written as JSON, with its type where it would not come back.

    >>> import datetime
    >>> plain_label("a"), plain_label((1, 2)), plain_label(datetime.date(2026, 1, 31))
    ('a', [1, 2], {'kind': 'date', 'text': '2026-01-31'})
    """
    if isinstance(label, tuple):
        return [plain_label(each) for each in label]
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, str | int | float | bool | None):
        return label
    return {"kind": type(label).__name__, "text": str(label)}


def _places(learner: OnlineEstimator, state: Any) -> Visits | Regions:
    kind = learner.features[0]
    if kind.states is not None:
        return Visits()
    if isinstance(kind, ObservationFeatures):
        return Regions(np.array(kind.low), np.array(kind.high))
    low, high = state.min(axis=0), state.max(axis=0)
    return Regions(low, np.where(high > low, high, low + 1.0))
