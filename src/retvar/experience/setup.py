"""How a learner is put on a stream: its settings, its features, and room for new states."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.stream import Chunk, Experience
from retvar.features import Features, Fourier, ObservationFeatures, Polynomial, TileCoding
from retvar.learners import LEARNERS, Learner
from retvar.online import OnlineEstimator
from retvar.step_sizes import Averaged

__all__ = [
    "begin", "completed", "described", "features_for", "make_room", "refuse_features",
    "refuse_no_answer", "refuse_two_answers", "refuse_two_sources", "trace_decay",
]  # fmt: skip

Array = NDArray[np.float64]
BASES: dict[str, type[ObservationFeatures]] = {
    "tiles": TileCoding, "fourier": Fourier, "polynomial": Polynomial,
}  # fmt: skip
REACH = 5  # horizons of a trace in one of the return
MOST_DECAY = 0.99
UNKNOWN_DECAY = 0.9
MEMORY = 2**16  # weights that the tiles of many dimensions are hashed into
GAMMA = "must be given: how much a reward is worth one step later, such as 0.99"
LAM = "must be given to the learner, or be in the data; 1 is the return itself"
NODES = 3  # of a learner
CELL = 40  # bytes of a weight with its step size and trace
MOST_ROOM = 4 * 2**30  # bytes


def described(
    gamma: Any = None,
    lam: Any = None,
    method: str = "direct",
    kappa: float | None = None,
    estimand: Any = "target_return",
) -> Learner:
    """A learner by its settings.

    >>> described(gamma=0.9, method="vtd").method
    'vtd'
    """
    kind = {each.method: each for each in LEARNERS.values()}.get(method)
    if kind is None:
        raise InputError("method", repr(method), "must be 'direct', 'centred' or 'vtd'")
    kappa = trace_decay(gamma) if kappa is None else kappa
    return kind(
        alpha=Averaged(), gamma=gamma, lam=lam, kappa=kappa, kappa_bar=kappa, estimand=estimand
    )


def completed(learner: Learner, chunk: Chunk, defaults: dict[str, float]) -> Learner:
    """The learner, with what neither it nor the data says; γ is never made up."""
    for name, remedy in (("gamma", GAMMA), ("lam", LAM)):
        if getattr(learner, name) is None and name not in chunk:
            if name not in defaults:
                raise InputError(name, "not given", remedy)
            learner = learner.replace(**{name: defaults[name]})
    return learner


def refuse_two_sources(learner: Learner, experience: Experience) -> None:
    """Refuse a γ or λ beside a column that was named for it, before that is read."""
    for name, column in experience.named.items():
        given = getattr(learner, name)
        if given is not None:
            raise InputError(
                name, given, f"is in the data, in the column {column!r}; give one of the two"
            )


def refuse_no_answer(learner: Learner, chunk: Chunk) -> None:
    """Refuse data without the γ or λ that the learner has taken from data so far."""
    for name in ("gamma", "lam"):
        if getattr(learner, name) is None and name not in chunk:
            raise InputError(name, "missing", "was in the data so far; here it is not")


def refuse_two_answers(learner: Learner, chunk: Chunk) -> None:
    """Refuse data with a γ or λ of its own that is not the one asked for."""
    for name in ("gamma", "lam"):
        given = getattr(learner, name)
        if given is None or name not in chunk:
            continue
        goes_on = ~np.asarray(chunk.get("terminated", False), dtype=bool)
        if np.ndim(given) or np.any((chunk[name] != given) & goes_on):
            raise InputError(
                name, given, "the data has another of its own in each transition; give none"
            )


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


def begin(
    experience: Experience,
    chunk: Chunk,
    learner: Learner,
    features: Any,
    bootstrap_samples: int,
    seed: int,
) -> OnlineEstimator:
    """Put the learner on the stream, with the features that its first chunk asks for."""
    if experience.width is None:
        count = experience.states or int(max(chunk["state"].max(), chunk["next_state"].max())) + 1
        _refuse_too_many(count, bootstrap_samples)
        return learner.online(states=count, bootstrap_samples=bootstrap_samples, seed=seed)
    kind = features_for(experience, chunk["state"], features)
    square = getattr(kind, "largest_square", 1.0)
    steps = {
        name: Averaged(rule.alpha / square, rule.power)
        for name in ("alpha", "alpha_bar", "alpha_mean")
        if isinstance(rule := getattr(learner, name, None), Averaged)
    }
    return learner.replace(**steps).online(
        features=kind, bootstrap_samples=bootstrap_samples, seed=seed
    )


def refuse_features(experience: Experience, given: Any) -> None:
    """Refuse features that are none, or that have nothing to look at."""
    if given is None:
        return
    if experience.width is None:
        raise InputError("features", given, f"are for observations; {experience.name} has states")
    if not isinstance(given, Features) and given not in BASES:
        choices = ", ".join(map(repr, BASES))
        raise InputError("features", repr(given), f"must be {choices}, or retvar.features")


def features_for(experience: Experience, observed: Array, given: Any = None) -> Features:
    """Features for observations: those given, or a basis between the bounds of the space.

    Where the space has no bounds, those of the first observations stand in.
    """
    if isinstance(given, Features):
        return given
    kind = BASES["tiles" if given is None else given]
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


def make_room(learner: OnlineEstimator, chunk: Chunk, experience: Experience) -> None:
    """Let a table grow where new states come; refuse those beyond what there can be."""
    if experience.width is not None:
        return
    state, follows = chunk["state"], chunk["next_state"]
    top = int(max(state.max(initial=0), follows.max(initial=0))) + 1
    if experience.states is not None and top > experience.states:
        raise InputError("state", top - 1, f"unknown; states are 0 to {experience.states - 1}")
    count = learner.features[0].states or 0
    if top > count:
        _refuse_too_many(top, learner.bootstrap_samples)
        learner.grow(experience.states or max(top, 2 * count))


def _refuse_too_many(states: int, bootstrap_samples: int) -> None:
    """Refuse what would not fit into memory, before it is asked for."""
    room = states * NODES * (CELL + 2 * 8 * bootstrap_samples)
    if room > MOST_ROOM:
        raise InputError(
            "state", f"numbers up to {states - 1:,}",
            f"need {room / 2**30:,.0f} GiB with {bootstrap_samples} bootstrap samples; take "
            "numbers with gaps as labels (states='labels'), or fewer bootstrap samples",
        )  # fmt: skip
