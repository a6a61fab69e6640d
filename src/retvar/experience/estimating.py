"""From experience to value ± spread: one pass of a learner with replicates over a stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from retvar.errors import InputError, RetvarError
from retvar.experience.results import dataset
from retvar.experience.seen import Seen
from retvar.experience.stream import Chunk, Experience
from retvar.experience.words import behind, table
from retvar.features import Features, Fourier, Observed, Polynomial, TileCoding
from retvar.learners import LEARNERS, Learner, load
from retvar.online import Online
from retvar.step_sizes import Averaged

__all__ = ["Estimate", "estimate"]

Array = NDArray[np.float64]
Progress = Callable[[int], None]  # told how many transitions are done
BASES: dict[str, type[Observed]] = {
    "tiles": TileCoding, "fourier": Fourier, "polynomial": Polynomial,
}  # fmt: skip
REACH = 5  # horizons of a trace in one of the return
MOST_DECAY = 0.99
UNKNOWN_DECAY = 0.9
MEMORY = 2**16  # weights that the tiles of many dimensions are hashed into
GAMMA = "must be given: how much a reward is worth one step later, such as 0.99"


class Estimate:
    """What :func:`estimate` found: a learner, what it has seen, and how sure it is.

    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=5_000, seed=1)
    >>> found = rv.estimate(lake, gamma=0.9)
    >>> found.learner.steps, found.data["value"].dims
    (5000, ('state',))
    """

    def __init__(self, experience: Experience, learner: Online | None, seen: Seen) -> None:
        self.experience = experience
        self._learner = learner
        self.seen = seen

    @property
    def learner(self) -> Online:
        """The learner, which can go on learning."""
        if self._learner is None:
            raise InputError("experience", self.experience.name, "no transition has come yet")
        return self._learner

    @property
    def data(self) -> xarray.Dataset:
        """Value, variance and std with intervals, of each state or of the regions most visited."""
        return dataset(self.experience, self.learner, self.seen)

    def text(self, rows: int = 20) -> str:
        """A table for people: the states (or regions) most visited, and what it rests on."""
        data = self.data
        return f"{behind(data, self.experience.tally.rejected)}\n\n{table(data, rows)}"

    def save(self, path: str | Path) -> None:
        """Write the learner, from which ``estimate(…, resume=path)`` goes on with other data."""
        self.learner.notes = {"estimate": self.seen.to_dict(self.experience)}
        self.learner.save(path)


def estimate(
    experience: Experience,
    learner: Learner | None = None,
    *,
    gamma: Any = None,
    lam: Any = 1.0,
    method: str = "direct",
    kappa: float | None = None,
    estimand: Any = "target_return",
    features: Any = None,
    replicates: int = 100,
    level: float = 0.9,
    seed: int = 0,
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> Estimate:
    """Learn how much return to expect, how far it may stray, and how sure that is.

    One pass over the stream. Where experience stops coming in the middle, or the learner diverges,
    the error that is raised has an attribute ``estimate`` with all that was learned before.

    Parameters
    ----------
    experience
        From :mod:`retvar.experience`.
    learner
        A description of your own; the other settings of the learner are then not given.
    gamma
        Discount; it is never assumed. None where the data has it, one per transition.
    lam
        λ of the return whose variance is meant; 1 is the return itself.
    method
        ``"direct"``, ``"centred"`` or ``"vtd"``.
    kappa
        Trace decay of all nodes. By default traces reach a fifth of the horizon, 1/(1 − γ): enough
        to carry news to states that are seldom visited, few enough to keep estimates quiet.
    estimand
        Off-policy: ``"target_return"`` or ``"off_policy_return"``.
    features
        For observations: ``"tiles"`` (the default), ``"fourier"``, ``"polynomial"``, or
        :mod:`retvar.features`.
    replicates, level, seed
        Of the intervals: bootstrap replicates, confidence, coins.
    resume
        A file that :meth:`Estimate.save` wrote: go on from there; then nothing else is given.
    progress
        Called with the number of transitions done.

    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=20_000, seed=1)
    >>> found = rv.estimate(lake, gamma=0.9)
    >>> low, high = found.learner.interval("value", 0)
    >>> truth = rv.solve(rv.MDP.from_gymnasium("FrozenLake-v1", gamma=0.9)).value[0]
    >>> bool(low < truth < high)
    True
    """
    seen = Seen(level=level)
    live: Online | None = None
    if resume is not None:
        live = load(resume)
        seen = Seen.restored(resume, live, experience)
    elif learner is None:
        kind = {each.method: each for each in LEARNERS.values()}.get(method)
        if kind is None:
            raise InputError("method", repr(method), "must be 'direct', 'centred' or 'vtd'")
        kappa = trace_decay(gamma) if kappa is None else kappa
        learner = kind(
            alpha=Averaged(), gamma=gamma, lam=lam, kappa=kappa, kappa_bar=kappa, estimand=estimand
        )
    elif gamma is not None:
        raise InputError("gamma", gamma, "is the learner's; give it there")
    found = Estimate(experience, live, seen)
    try:
        for chunk in experience.chunks():
            if found._learner is None:
                assert learner is not None
                found._learner = _begin(experience, chunk, learner, features, replicates, seed)
            take(found.learner, seen, chunk, experience)
            if progress is not None:
                progress(experience.tally.transitions)
        if found._learner is None:
            raise InputError("experience", experience.name, "held no transition that could be used")
    except (RetvarError, KeyboardInterrupt) as error:
        error.estimate = found if found._learner is not None else None  # type: ignore[union-attr]
        raise
    return found


def trace_decay(gamma: Any) -> float:
    """κ for which a trace reaches a fifth of the horizon: 1/(1 − γκ) = 1/(5(1 − γ)).

    >>> round(trace_decay(0.9), 3), round(trace_decay(0.99), 3), trace_decay(0.5)
    (0.556, 0.96, 0.0)
    """
    if gamma is None:  # it is in the data
        return UNKNOWN_DECAY
    try:
        largest = float(np.max(gamma))
    except (TypeError, ValueError):
        return 0.0  # what is wrong with γ is told by the learner
    if not 0 < largest <= 1:
        return 0.0
    return float(np.clip((1 - REACH * (1 - largest)) / largest, 0.0, MOST_DECAY))


def _begin(
    experience: Experience,
    chunk: Chunk,
    learner: Learner,
    features: Any,
    replicates: int,
    seed: int,
) -> Online:
    """Put the learner on the stream, with the features that its first chunk asks for."""
    if learner.gamma is None and "gamma" not in chunk:
        raise InputError("gamma", "not given", GAMMA)
    if experience.width is None:
        if features is not None:
            raise InputError("features", features, "are for observations; here are states")
        count = experience.states or int(max(chunk["state"].max(), chunk["next_state"].max())) + 1
        return learner.online(states=count, replicates=replicates, seed=seed)
    kind = features_for(experience, chunk["state"], features)
    square = getattr(kind, "largest_square", 1.0)
    steps = {
        name: Averaged(rule.alpha / square, rule.power)
        for name in ("alpha", "alpha_bar", "alpha_mean")
        if isinstance(rule := getattr(learner, name, None), Averaged)
    }
    return learner.replace(**steps).online(features=kind, replicates=replicates, seed=seed)


def features_for(experience: Experience, observed: Array, given: Any = None) -> Features:
    """Features for observations: those given, or a basis between the bounds of the space.

    Where the space has no bounds, those of the first observations stand in.
    """
    if isinstance(given, Features):
        return given
    kind = BASES.get("tiles" if given is None else str(given))
    if kind is None:
        choices = ", ".join(map(repr, BASES))
        raise InputError("features", repr(given), f"must be {choices}, or retvar.features")
    around = Polynomial.from_data(observed, degree=1)
    low, high = np.array(around.low), np.array(around.high)
    if experience.low is not None and experience.high is not None:
        wide = 1e6 * np.maximum(high - low, 1.0)  # bounds beyond all that is seen are none
        bounded = (experience.high - experience.low) < wide
        low = np.where(bounded, experience.low, low)
        high = np.where(bounded, experience.high, high)
    if kind is not TileCoding:
        return kind(low, high)
    small = low.size <= 4
    tiles = {1: 32, 2: 20, 3: 8, 4: 6}.get(low.size, 4)
    return TileCoding(low, high, tiles=tiles, tilings=16, memory=None if small else MEMORY)


def take(learner: Online, seen: Seen, chunk: Chunk, experience: Experience) -> None:
    """Learn from a chunk, and note where it went and which returns were seen."""
    tabular = experience.width is None
    state, follows = chunk["state"], chunk["next_state"]
    if tabular:
        top = int(max(state.max(initial=0), follows.max(initial=0))) + 1
        count = learner.features[0].states
        if top > count:  # type: ignore[operator]
            if experience.states is not None:
                raise InputError("state", top - 1, f"unknown; states are 0 to {count - 1}")  # type: ignore[operator]
            learner.grow(max(top, 2 * count))  # type: ignore[operator]
    seen.watch(learner, chunk)
    learner.update_many(chunk, on_error="skip")
