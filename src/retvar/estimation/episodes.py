"""Transitions between observations, one episode after the other, and the returns along them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retvar.support.errors import InputError
from retvar.td.jit import compiled

if TYPE_CHECKING:
    from retvar.td.learners import Learner

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
Chunk = dict[str, NDArray[Any]]
BLOCK = 65_536  # rows that are looked at together
SEGMENTS = (5.0, 3.0)  # a segment is as long as its Σ(1 − γ) stays below this; or where they are
FEW = 50  # fewer than these
GAMMA = "must be given: how much a reward is worth one step later, such as 0.99"
LAM = "must be set in the learner, or be in the data; 1 is the return itself"
ROUNDING = 1e-10  # errors below this share of the largest value or return are none


def complete(learner: Learner, chunk: Chunk) -> Chunk:
    """All columns that estimates rest on; γ and λ are the chunk's, or else the learner's.

    At an end γ and λ are 0 and the next state is the state. The ratios of the off-policy return are
    factors of its rewards and discounts.
    """
    refuse_discounts(learner, chunk)
    state, no = np.asarray(chunk["state"]), np.zeros(len(chunk["reward"]), bool)
    rows = {name: np.asarray(chunk.get(name, no), bool) for name in ("terminated", "truncated")}
    rows |= {name: np.asarray(chunk.get(name, ~no), float) for name in ("reward", "rho")}
    ended = rows["terminated"]
    follows = np.where(ended.reshape(-1, *[1] * (state.ndim - 1)), state, chunk["next_state"])
    for name in ("gamma", "lam"):
        own = np.asarray(chunk.get(name, getattr(learner, name)), float)
        if own.size > 1 and name not in chunk:
            if own.size <= follows.max(initial=0):
                raise InputError(name, f"{own.size} numbers", "must be one, or one per state")
            own = own[follows]
        rows[name] = np.where(ended, 0.0, own)
    if learner.estimand == "off_policy_return":
        rows |= {name: rows["rho"] * rows[name] for name in ("reward", "gamma")}
        rows["rho"] = np.ones(no.size)
    return rows | {"state": state, "next_state": follows}


def refuse_discounts(learner: Learner, chunk: Chunk) -> None:
    """Refuse data without the γ or λ that the learner takes from it, or with another."""
    for name, remedy in (("gamma", GAMMA), ("lam", LAM)):
        given = getattr(learner, name)
        if given is None and name not in chunk:
            raise InputError(name, "not given", remedy)
        if given is None or name not in chunk:
            continue
        goes_on = ~np.asarray(chunk.get("terminated", False), dtype=bool)
        if np.ndim(given) or np.any((chunk[name] != given) & goes_on):
            remedy = "differs from the one of each transition in the data; leave it out"
            raise InputError(name, given, remedy)


@dataclass(frozen=True)
class EpisodeLog:
    """Transitions between points, one episode after the other.

    An episode ends where it is terminated or truncated. Long ones consist of several segments.
    """

    state: Array  #: [row, coordinate]
    next_state: Array
    reward: Array
    discount: Array  #: γ of what follows, 0 where the episode terminated
    lam: Array  #: λ of what follows
    rho: Array  #: importance ratios
    terminated: Mask
    cut: Mask  #: where the episode went on unseen
    segment: Integers  #: number of the segment

    @classmethod
    def of(cls, columns: Chunk) -> EpisodeLog:
        """The log of a table."""
        state, following, terminated = (columns[n] for n in ("state", "next_state", "terminated"))
        cut = np.asarray(columns["truncated"]) & ~terminated
        cut[-1] |= not terminated[-1]
        discount = np.where(terminated, 0.0, columns["gamma"])
        for longest in SEGMENTS:
            segment = number_segments(discount, terminated, cut, longest)
            if segment[-1] + 1 >= FEW:
                break
        ones = np.ones(len(state))
        lam, rho = columns.get("lam", ones), columns.get("rho", ones)
        return cls(
            state, following, columns["reward"], discount, lam, rho, terminated, cut, segment
        )

    def __len__(self) -> int:
        return len(self.reward)

    @cached_property
    def end_state(self) -> Array:
        """State that followed each cut."""
        return self.next_state[self.cut]

    segments = property(lambda self: int(self.segment[-1]) + 1)  #: how many there are
    off_policy = property(lambda self: bool((self.rho != 1.0).any()))  #: whether a ratio is not 1

    def only(self, rows: Mask) -> EpisodeLog:
        """These rows; episodes are cut where the next row is left out."""
        left = ~self.terminated & ~np.append(rows[1:], False)
        kept = {each.name: getattr(self, each.name)[rows] for each in fields(self)}
        kept["cut"] |= left[rows]
        kept["segment"] = np.unique(kept["segment"], return_inverse=True)[1]
        return EpisodeLog(**kept)


@compiled
def number_segments(discount: Any, terminated: Any, cut: Any, longest: Any) -> Any:
    """Number the segments: a new one with each episode, and after `longest` horizons 1/(1 − γ)."""
    segment, number, passed = np.empty(discount.size, np.int64), 0, 0.0
    for t in range(discount.size):
        segment[t] = number
        passed += 1.0 - discount[t]
        if terminated[t] or cut[t] or passed >= longest - 1e-9:
            number, passed = number + 1, 0.0
    return segment


def lambda_returns(log: EpisodeLog, value: Array, end_value: Array, lam: Any = 1.0) -> Array:
    """The λ-return of each row; where an episode was cut, the value of its end is taken."""
    return np.asarray(value + errors(log, value, end_value, lam)[0])


def missing(log: EpisodeLog, end: Array, power: int = 1, lam: Any = 1.0) -> Array:
    """What each return lacks where its episode was cut: (Πγλ)ⁿ times a number at the end."""
    nothing = np.zeros(len(log))
    return np.asarray(_scanned(log, nothing, (log.discount * lam) ** power, 1.0, nothing, end)[0])


def errors(
    log: EpisodeLog, value: Array, end_value: Array, lam: Any = 1.0
) -> tuple[Array, Array, Array]:
    """G − J of the rows for λ-returns G, what its square lacks of (G − J)², and weights.

    Off-policy, each TD error is multiplied by the ratios up to it, so that expectations are those
    of the target policy whatever J; the weights are those of a row's TD errors, on average.
    """
    error, square, weight = _scanned(log, log.reward, log.discount, lam, value, end_value)
    return error, square - error**2 if log.off_policy else np.zeros(len(log)), weight


def _scanned(
    log: EpisodeLog, reward: Array, discount: Array, lam: Any, value: Array, end_value: Array
) -> Array:
    lams = np.ascontiguousarray(np.broadcast_to(np.asarray(lam, np.float64), len(log)))
    size = max(float(np.abs(x).max(initial=0.0)) for x in (value, end_value, reward))
    found = np.empty((3, len(log)))
    error_scan(
        reward, discount, lams, log.rho, log.terminated, log.cut, value, end_value,
        ROUNDING * size, found,
    )  # fmt: skip
    return found


@compiled
def error_scan(
    reward: Any, discount: Any, lam: Any, rho: Any, terminated: Any, cut: Any, value: Any,
    end_value: Any, rounding: Any, found: Any,
) -> None:  # fmt: skip
    """Write the sums of TD errors after each row, of their square, and the mean weight."""
    error, square, weight, plain = 0.0, 0.0, 0.0, 0.0
    after, end = 0.0, end_value.size
    for t in range(reward.size - 1, -1, -1):
        if terminated[t] or cut[t]:
            error, square, weight, plain, after = 0.0, 0.0, 0.0, 0.0, 0.0
        if cut[t] and not terminated[t]:
            end -= 1
            after = end_value[end]
        step, decay = reward[t] + discount[t] * after - value[t], discount[t] * lam[t]
        square = rho[t] * (step * step + 2.0 * decay * step * error + decay * decay * square)
        error = rho[t] * (step + decay * error)
        weight, plain = rho[t] * (1.0 + decay * weight), 1.0 + decay * plain
        if abs(error) <= rounding:
            error = 0.0
        found[0, t], found[1, t], found[2, t] = error, square, weight / plain
        after = value[t]
