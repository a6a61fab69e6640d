"""The search for a policy with a large mean − penalty × variance.

From a policy, single states are switched to another action as long as that helps; then L-BFGS on
softmax parameters looks for a better mixture near by; then single states are switched again. Where
a policy never ends and so has no mean or variance, there is a barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retvar.risk import lbfgs
from retvar.risk.landscape import Landscape, Spot

__all__ = ["Candidate", "search"]

Array = NDArray[np.float64]
Tick = Callable[[], None]  # called for every policy; may raise to stop
MIXED = 0.05  # share of the uniform policy in the start of L-BFGS
RARE = (0.05, 1e-3)  # actions that are less likely are left out, if nothing is lost
TOLERANCE = 1e-10  # relative; smaller gains are rounding
MAX_ROUNDS = 1_000  # of switches
MAX_ITERATIONS = 100  # of L-BFGS


@dataclass(frozen=True, eq=False)
class Candidate:
    """A policy, with the mean and variance of its return."""

    pi: Array
    spot: Spot

    def objective(self, penalty: float) -> float:
        """Mean − penalty × variance."""
        return self.spot.objective(penalty)


def search(landscape: Landscape, pi: Array, penalty: float, tick: Tick) -> Candidate | None:
    """The best policy found from `pi`; None if `pi` never ends."""
    spot = landscape.at(pi)
    if spot is None:
        return None
    found = _climb(landscape, Candidate(pi, spot), penalty, tick)
    while True:
        mixture = _polish(landscape, found, penalty, tick)
        mixture = _without_rare_actions(landscape, mixture, penalty)
        better = _climb(landscape, mixture, penalty, tick)
        gain = better.objective(penalty) - found.objective(penalty)
        if gain <= _rounding(found.spot, penalty):
            return found
        found = better


def _rounding(spot: Spot, penalty: float) -> float:
    """Differences of objectives that are too small to count."""
    return TOLERANCE * (abs(spot.mean) + abs(penalty) * spot.variance + 1e-300)


def _climb(landscape: Landscape, at: Candidate, penalty: float, tick: Tick) -> Candidate:
    """Switch states to single actions, the most promising half of them at a time."""
    for _ in range(MAX_ROUNDS):
        tick()
        gain = _gains(landscape, at, penalty)
        action = np.argmax(gain, axis=1)
        best = np.max(gain, axis=1)
        least = _rounding(at.spot, penalty)
        order = np.argsort(-best)[: int(np.sum(best > least))]
        while order.size:
            pi = at.pi.copy()
            pi[order] = np.eye(pi.shape[1])[action[order]]
            spot = landscape.at(pi)
            if spot is not None and spot.objective(penalty) > at.objective(penalty) + least:
                at = Candidate(pi, spot)
                break
            order = order[: order.size // 2]
        else:
            return at
    return at


def _gains(landscape: Landscape, at: Candidate, penalty: float) -> Array:
    """What each switch gains: exactly in small MDPs, to first order in large ones."""
    switched = landscape.switches(at.pi)
    with np.errstate(invalid="ignore"):
        if switched is not None:
            means, variances = switched
            gain = means - penalty * variances - at.objective(penalty)
            gain = np.where(np.isfinite(means), gain, -np.inf)
        else:
            slope = landscape.slope(at.pi)
            if slope is None:
                return np.full(at.pi.shape, -np.inf)
            gain = slope.mean - penalty * slope.variance
            gain = gain - np.sum(at.pi * gain, axis=1, keepdims=True)
    return np.where(landscape.mdp.available & ~np.isnan(gain), gain, -np.inf)


def _polish(landscape: Landscape, at: Candidate, penalty: float, tick: Tick) -> Candidate:
    """L-BFGS on softmax parameters, from a policy with a little of every action."""
    available = landscape.mdp.available
    uniform = available / available.sum(axis=1, keepdims=True)
    first = np.log(((1 - MIXED) * at.pi + MIXED * uniform)[available])
    scale = abs(at.spot.mean) + abs(penalty) * at.spot.variance or 1.0
    best = at

    def policy(theta: Array) -> Array:
        table = np.full(available.shape, -np.inf)
        table[available] = theta
        pi = np.exp(table - table.max(axis=1, keepdims=True))
        return np.asarray(pi / pi.sum(axis=1, keepdims=True))

    def scaled(theta: Array) -> tuple[float, Array] | None:
        nonlocal best
        tick()
        pi = policy(theta)
        slope = landscape.slope(pi)
        if slope is None or not np.isfinite(slope.spot).all():
            return None
        if slope.spot.objective(penalty) > best.objective(penalty):
            best = Candidate(pi, slope.spot)
        ascent = slope.mean - penalty * slope.variance
        ascent = pi * (ascent - np.sum(pi * ascent, axis=1, keepdims=True))
        return slope.spot.objective(penalty) / scale, ascent[available] / scale

    lbfgs.maximise(scaled, first, iterations=MAX_ITERATIONS)
    return best


def _without_rare_actions(landscape: Landscape, at: Candidate, penalty: float) -> Candidate:
    """Leave out actions that are rarely taken, if nothing is lost."""
    for share in RARE:
        pi = np.where(at.pi < share, 0.0, at.pi)
        pi /= pi.sum(axis=1, keepdims=True)
        spot = landscape.at(pi)
        least = at.objective(penalty) - _rounding(at.spot, penalty)
        if spot is not None and spot.objective(penalty) >= least:
            return Candidate(pi, spot)
    return at
