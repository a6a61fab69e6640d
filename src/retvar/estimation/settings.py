"""The settings of an estimate: the learner, how to estimate, and features that fit the data."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from retvar.estimation.states import StateEstimator
from retvar.experience.action_pairs import LAM as ONE_LAM
from retvar.experience.action_pairs import by_action
from retvar.experience.stream import Chunk, Experience
from retvar.online.memory import replicates_of
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import literal, number
from retvar.td.features import (
    Features,
    Fourier,
    ObservationFeatures,
    PerAction,
    Polynomial,
    TileCoding,
)
from retvar.td.learners import LEARNERS, Learner
from retvar.td.networks import DEFAULT, NETWORKS
from retvar.td.step_sizes import Averaged, StepSize

LEAST_SQUARES, TD = "least_squares", "td"
NAMES = ("tiles", "waves", "neighbours")  # of the bases of a stack
DEEP = "deep"  # name of the base that retvar.deep adds
DEFAULTS = {"estimand": "target_return", "level": 0.9, "actions": False}  # that are not None
STEP_SIZES = ("alpha", "alpha_bar", "alpha_mean")
FAMILIES: dict[str, type[ObservationFeatures]] = {
    "tiles": TileCoding, "fourier": Fourier, "polynomial": Polynomial,
}  # fmt: skip
REACH = 5  # horizon of the return over that of the traces
MOST_DECAY = 0.99
UNKNOWN_DECAY = 0.9  # where γ comes with the data
LARGEST_SQUARE = 0.9  # of the decay of traces with their ratios, on average
TILES = {1: 32, 2: 20, 3: 8, 4: 6}  # along each dimension, by their number; 4 for more
HASHED_WEIGHTS = 2**16  # for tiles of many dimensions
ONE_GAMMA = "must be one number with actions, or a column of the data"
TARGET_RETURN = "action values are of the target policy's return; leave the estimand out"
ACTIONS = 'actions of observations are learned with by="td"; or make the states labels'


def make_learner(
    gamma: Any = None,
    lam: Any = None,
    method: str = DEFAULT,
    kappa: float | None = None,
    estimand: Any = "target_return",
) -> Learner:
    """The learner with these settings; by default its traces reach a fifth of the horizon.

    That is 1/(1 − γκ) = 1/(5(1 − γ)).
    """
    kind = {each.method: each for each in LEARNERS.values()}[
        arguments.choice("method", method, NETWORKS)
    ]
    found = kind(alpha=Averaged(), gamma=gamma, lam=lam, estimand=estimand)
    if kappa is None and gamma is None:
        kappa = UNKNOWN_DECAY
    elif kappa is None:
        largest = max(float(np.max(gamma)), 1e-9)
        kappa = float(np.clip((1 - REACH * (1 - largest)) / largest, 0.0, MOST_DECAY))
    return found.replace(kappa=kappa, kappa_bar=kappa)


def with_lam(learner: Learner, chunk: Chunk) -> Learner:
    """The learner with λ = 1, the return itself, where neither it nor the data has a λ."""
    return learner.replace(lam=1.0) if learner.lam is None and "lam" not in chunk else learner


def refuse(why: str, given: dict[str, Any]) -> None:
    """Refuse settings that differ from their defaults."""
    for name, own in given.items():
        plain = isinstance(own, str | int | float)
        if own is not None and not (plain and own == DEFAULTS.get(name)):
            raise InputError(name, own, why)


class Settings:
    """The settings of an estimate, checked; they make the estimator once first rows are known.

    The arguments are those of :func:`retvar.estimate`.
    """

    def __init__(
        self, experience: Experience, learner: Learner | None = None, *, by: str | None = None,
        features: Any = None, bootstrap_samples: int | None = None, level: float = 0.9,
        seed: int = 0, actions: bool = False, **of_learner: Any,
    ) -> None:  # fmt: skip
        of_td = {"learner": learner, "bootstrap_samples": bootstrap_samples}
        if by is not None and arguments.choice("by", by, (LEAST_SQUARES, TD)) == LEAST_SQUARES:
            refuse('goes with by="td"; leave one of them out', of_td)
        if learner is not None:
            arguments.instance("learner", learner, Learner, "Direct, VTD or Centred")
            refuse("is a setting of the learner; set it there", of_learner)
        self.description = make_learner(**of_learner) if learner is None else learner
        self.level = arguments.level("level", level)
        if arguments.flag("actions", actions):
            own: Any = self.description
            for name, wrong, why in (
                ("lam", own.lam is not None and np.any(np.asarray(own.lam) != 1.0), ONE_LAM),
                ("gamma", np.ndim(own.gamma), ONE_GAMMA),
                ("estimand", own.estimand != "target_return", TARGET_RETURN),
            ):
                if wrong:
                    raise InputError(name, getattr(own, name), why)
            experience = by_action(experience)
        self.experience, observed = experience, experience.width is not None
        if features is not None and not observed:
            remedy = f"are for observations; {experience.name} has states"
            raise InputError("features", features, remedy)
        self.family, self.bases = family_and_bases(features)
        samples = 100 if bootstrap_samples is None else bootstrap_samples
        self._samples = {"bootstrap_samples": samples, "seed": arguments.integer("seed", seed, 0)}
        self._default = learner is None  # the learner
        self.remarks: list[str] = []  #: what was decided for the caller
        pairs = experience.pairs and observed
        if by == LEAST_SQUARES and pairs:
            raise InputError("by", by, ACTIONS)
        td = pairs or experience.endless or any(each is not None for each in of_td.values())
        self.by = by or (TD if td else LEAST_SQUARES)
        if self.by == TD:
            if features is not None and list(self.bases) != [NAMES[0]]:
                raise InputError("features", literal(features), "a mixture needs least squares")
            replicates_of(self.description, samples)  # refuses wrong numbers of them
        if by is None and pairs:
            self.remarks.append("TD learning, since actions with features; approximate")

    def __call__(self, chunk: Chunk, states: int | None) -> Any:
        """The estimator of so many states, or with features that fit the chunk."""
        learner = with_lam(self.description, chunk) if self._default else self.description
        if self.by == TD and self._default and "rho" in chunk:
            learner = self._bound_traces(learner, chunk)
        if states is not None:
            if self.by == LEAST_SQUARES:
                return StateEstimator(learner, states)
            return learner.online(states=states, **self._samples)
        built = features_for(self.experience, chunk["state"], self.family)
        if self.by == LEAST_SQUARES:
            from retvar.estimation.observations import ObservationEstimator  # slow to import

            return ObservationEstimator(learner, built, self.bases)
        square = getattr(built, "largest_square", 1.0)
        for name in STEP_SIZES:
            if isinstance(rule := getattr(learner, name, None), StepSize):
                learner = learner.replace(**{name: rule.divided(square)})
        return learner.online(features=built, **self._samples)

    def _bound_traces(self, learner: Learner, chunk: Chunk) -> Learner:
        """Lower κ to where the second moment of the traces stays finite under the ratios."""
        gamma = chunk.get("gamma", 1.0 if learner.gamma is None else np.max(learner.gamma))
        square = float(np.mean((chunk["rho"] * gamma) ** 2))
        most = float(np.sqrt(LARGEST_SQUARE / square)) if square else 1.0
        if (chunk["rho"] == 1.0).all() or float(np.max(learner.kappa)) <= most:
            return learner
        self.remarks.append(f"traces decay by κ = {number(most)}: importance ratios allow no more")
        return learner.replace(kappa=most, kappa_bar=most)


# ---------------------------------------------------------------------- features


def family_and_bases(given: Any) -> tuple[Any, Sequence[Any]]:
    """The features, or the name of their family, and the bases of a stack."""
    given = [*NAMES, DEEP] if isinstance(given, str) and given == DEEP else given
    own: Any = "tiles" if given is None else given
    bases: list[Any] = list(NAMES if given is None else NAMES[:1])
    if isinstance(given, list | tuple):
        own = next((x for x in given if isinstance(x, Features)), "tiles")
        bases = [NAMES[0] if isinstance(x, Features) else x for x in given]
    names = *NAMES, DEEP
    known = isinstance(own, Features) or (isinstance(own, str) and own in FAMILIES)
    for x in bases:
        known &= x in names if isinstance(x, str) else hasattr(x, "fit") and hasattr(x, "predict")
    if not (known and bases):
        families, more = (", ".join(map(repr, x)) for x in ([*FAMILIES, DEEP], NAMES[1:]))
        remedy = f"must be {families}, rv.features, or a list of these, {more} and bases"
        raise InputError("features", literal(given), remedy)
    if DEEP in bases:
        networks()  # or an error that says what is to be installed
    return own, bases


def networks() -> Any:
    """Networks as a base; they lie above this module, and are looked up when they are asked for."""
    return importlib.import_module(f"retvar.{DEEP}").Networks()


def features_for(experience: Experience, observed: Any, family: Any) -> Features:
    """Features for observations: those given, or a family between the bounds of the space.

    Where the space has no bounds, those of the first observations are used. With actions, the last
    number of an observation is one.
    """
    pairs = experience.pairs and not isinstance(family, PerAction)
    width = observed.shape[1] - pairs
    basis = family
    if not isinstance(family, Features):
        basis = _between(experience.low, experience.high, observed[:, :width], FAMILIES[family])
    if not pairs:
        return basis  # type: ignore[no-any-return]
    if not isinstance(basis, ObservationFeatures):
        remedy = "actions need TileCoding, Fourier, Polynomial, or PerAction of one of them"
        raise InputError("features", type(basis).__name__, remedy)
    return PerAction(basis, experience.action_count or int(observed[:, -1].max()) + 1)


def _between(low: Any, high: Any, observed: Any, kind: type[ObservationFeatures]) -> Features:
    """Features between the bounds, or the first observations where there are none."""
    around, width = Polynomial.from_data(observed, degree=1), observed.shape[1]
    first, last = np.array(around.low), np.array(around.high)
    if low is not None and high is not None:
        low, high = low[:width], high[:width]
        bounded = (high - low) < 1e6 * np.maximum(last - first, 1.0)  # wider bounds count as none
        first, last = np.where(bounded, low, first), np.where(bounded, high, last)
    if kind is not TileCoding:
        return kind(first, last)
    memory = None if width in TILES else HASHED_WEIGHTS
    return TileCoding(first, last, tiles=TILES.get(width, 4), tilings=16, memory=memory)
