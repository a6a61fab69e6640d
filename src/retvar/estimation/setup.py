"""Set up an estimator for a stream: its settings, its features, and growth for new states."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import ConvergenceError, InputError
from retvar.estimation.feature_estimator import FeatureEstimator
from retvar.estimation.tabular import TabularEstimator
from retvar.experience.stream import Chunk, Experience
from retvar.features import (
    Features,
    Fourier,
    ObservationFeatures,
    PerAction,
    Polynomial,
    TileCoding,
)
from retvar.format import literal, number
from retvar.learners import LEARNERS, Learner
from retvar.linear import spectral_radius
from retvar.networks import DEFAULT, NETWORKS
from retvar.online import OnlineEstimator
from retvar.step_sizes import Averaged

__all__ = [
    "LEAST_SQUARES",
    "TD",
    "Estimator",
    "Setup",
    "features_for",
    "grow_table",
    "make_learner",
    "refuse_conflicting_discounts",
    "refuse_discounts_given_twice",
    "refuse_features",
    "refuse_missing_discounts",
    "trace_decay",
]  # fmt: skip

Array = NDArray[np.float64]
Estimator = OnlineEstimator | TabularEstimator | FeatureEstimator
LEAST_SQUARES, TD = "least_squares", "td"
BASES: dict[str, type[ObservationFeatures]] = {
    "tiles": TileCoding, "fourier": Fourier, "polynomial": Polynomial,
}  # fmt: skip
REACH = 5  # horizon of the return over that of the traces
MOST_DECAY = 0.99
UNKNOWN_DECAY = 0.9  # where γ comes with the data
LARGEST_RADIUS = 0.9  # of the second moment of traces
HASHED_WEIGHTS = 2**16  # for tiles of many dimensions
GAMMA = "must be given: how much a reward is worth one step later, such as 0.99"
LAM = "must be set in the learner, or be in the data; 1 is the return itself"
CELL = 40  # bytes of a weight with its step size and trace
MOST_BYTES = 4 * 2**30
ACTIONS = 'actions of observations are learned with by="td"; or make the states labels'
MANY_STATES, GAP = 1_000_000, 10  # more states than these, and than so many for each transition


def make_learner(
    gamma: Any = None,
    lam: Any = None,
    method: str = DEFAULT,
    kappa: float | None = None,
    estimand: Any = "target_return",
    order: int = 2,
) -> Learner:
    """Return the learner with these settings.

    >>> make_learner(gamma=0.9, method="vtd").method
    'vtd'
    """
    kinds = {each.method: each for each in LEARNERS.values()}
    kind = kinds[arguments.choice("method", method, NETWORKS)]
    kappa = trace_decay(gamma) if kappa is None else kappa
    return kind(
        alpha=Averaged(), gamma=gamma, lam=lam, kappa=kappa, kappa_bar=kappa, estimand=estimand,
        order=order,
    )  # fmt: skip


def with_defaults(learner: Learner, chunk: Chunk, defaults: dict[str, float]) -> Learner:
    """Return the learner with defaults for the γ and λ that neither it nor the data has."""
    for name, remedy in (("gamma", GAMMA), ("lam", LAM)):
        if getattr(learner, name) is None and name not in chunk:
            if name not in defaults:
                raise InputError(name, "not given", remedy)
            learner = learner.replace(**{name: defaults[name]})
    return learner


def refuse_discounts_given_twice(learner: Learner, experience: Experience) -> None:
    """Refuse a γ or λ of the learner if a column was named for it."""
    for name, column in experience.discount_columns.items():
        given = getattr(learner, name)
        if given is not None:
            raise InputError(
                name, given, f"is in the data, in the column {column!r}; give one of the two"
            )


def refuse_missing_discounts(learner: Learner, chunk: Chunk) -> None:
    """Refuse a chunk without the γ or λ that the learner takes from the data."""
    for name in ("gamma", "lam"):
        if getattr(learner, name) is None and name not in chunk:
            raise InputError(name, "missing", "column missing from this chunk; earlier data had it")


def refuse_conflicting_discounts(learner: Learner, chunk: Chunk) -> None:
    """Refuse data whose own γ or λ differs from the learner's."""
    for name in ("gamma", "lam"):
        given = getattr(learner, name)
        if given is None or name not in chunk:
            continue
        goes_on = ~np.asarray(chunk.get("terminated", False), dtype=bool)
        if np.ndim(given) or np.any((chunk[name] != given) & goes_on):
            raise InputError(
                name, given, "differs from the one of each transition in the data; leave it out"
            )


def trace_decay(gamma: Any) -> float:
    """κ for which traces reach a fifth of the horizon: 1/(1 − γκ) = 1/(5(1 − γ)).

    >>> round(trace_decay(0.9), 3), round(trace_decay(0.99), 3), trace_decay(0.5)
    (0.556, 0.96, 0.0)
    """
    if gamma is None:  # in the data
        return UNKNOWN_DECAY
    try:
        largest = float(np.max(arguments.floats("gamma", gamma, "numbers")))
    except (InputError, ValueError):
        return 0.0  # the learner refuses such a γ
    if not 0 < largest <= 1:
        return 0.0
    return float(np.clip((1 - REACH * (1 - largest)) / largest, 0.0, MOST_DECAY))


@dataclass
class Setup:
    """How to make the estimator of a stream from its first chunk."""

    experience: Experience
    learner: Learner
    by: str  #: "least_squares" or "td"
    features: Any = None
    bootstrap_samples: int = 100
    seed: int = 0
    defaults: dict[str, float] = field(default_factory=dict)  #: of γ and λ, unless in the data
    insists: bool = False  #: whether the caller chose `by`
    own_kappa: bool = False  #: whether the trace decay is a default, which ratios may lower
    remarks: list[str] = field(default_factory=list)  #: what was decided for the caller

    def create(self, chunk: Chunk) -> Estimator:
        """The estimator, with features that fit the chunk."""
        learner = with_defaults(self.learner, chunk, self.defaults)
        if self.by == LEAST_SQUARES and not self._needs_td(learner, chunk):
            if self.experience.width is None:
                return TabularEstimator(learner, self.experience.states or first_states(chunk))
            observed = chunk["state"]
            return FeatureEstimator(learner, features_for(self.experience, observed, self.features))
        if self.own_kappa:
            learner = self._bound_traces(learner, chunk)
        return self._online(learner, chunk)

    def _needs_td(self, learner: Learner, chunk: Chunk) -> bool:
        """Whether least squares cannot do it with features, and the caller leaves the choice."""
        if self.experience.width is None:
            return False
        if self.experience.pairs:
            if self.insists:
                raise InputError("by", "least_squares", ACTIONS)
            self.remarks.append("TD learning, since actions with features; approximate")
            return True
        if self.insists:
            return False
        off_policy = "rho" in chunk and bool((np.asarray(chunk["rho"]) != 1.0).any())
        shorter = bool(np.any(np.asarray(chunk.get("lam", learner.lam)) != 1.0))
        if off_policy or shorter:
            why = "off-policy data" if off_policy else "λ below 1"
            self.remarks.append(f"TD learning, since {why} with features; approximate")
        return off_policy or shorter

    def _bound_traces(self, learner: Learner, chunk: Chunk) -> Learner:
        """Lower κ to where the second moment of the traces stays finite under the ratios."""
        most = largest_decay(chunk, learner.gamma, by_state=self.experience.width is None)
        if not most < float(np.max(learner.kappa)):
            return learner
        self.remarks.append(f"traces decay by κ = {number(most)}: importance ratios allow no more")
        return learner.replace(kappa=most, kappa_bar=most)

    def _online(self, learner: Learner, chunk: Chunk) -> OnlineEstimator:
        samples = self.bootstrap_samples
        if self.experience.width is None:
            count = self.experience.states or first_states(chunk)
            _refuse_too_many(count, samples, learner)
            return learner.online(states=count, bootstrap_samples=samples, seed=self.seed)
        built = features_for(self.experience, chunk["state"], self.features)
        square = getattr(built, "largest_square", 1.0)
        steps = {
            name: Averaged(rule.alpha / square, rule.power)
            for name in ("alpha", "alpha_bar", "alpha_mean")
            if isinstance(rule := getattr(learner, name, None), Averaged)
        }
        return learner.replace(**steps).online(
            features=built, bootstrap_samples=samples, seed=self.seed
        )


def largest_decay(chunk: Chunk, gamma: Any, by_state: bool = True) -> float:
    """The largest κ for which traces have a second moment: κ²·radius of E[(ργ)²] is below 1.

    >>> two = np.zeros(4, dtype=int)
    >>> chunk = {"state": two, "next_state": two, "rho": np.array([1.8, 0.2, 1.8, 0.2])}
    >>> round(largest_decay(chunk, 1.0), 2), largest_decay(chunk | {"rho": np.ones(4)}, 0.9)
    (0.74, 1.0)
    """
    if "rho" not in chunk or bool((np.asarray(chunk["rho"]) == 1.0).all()):
        return 1.0
    rho, follows = np.asarray(chunk["rho"], dtype=np.float64), chunk["next_state"]
    own = np.asarray(chunk.get("gamma", 1.0 if gamma is None else gamma), dtype=np.float64)
    if own.ndim and "gamma" not in chunk:
        own = own[follows]
    goes_on = ~np.asarray(chunk.get("terminated", np.zeros(rho.size)), dtype=bool)
    squares = np.where(goes_on, (rho * own) ** 2, 0.0)
    if not by_state:
        radius = float(squares.mean())
    else:
        n = first_states(chunk)
        visits = np.maximum(np.bincount(chunk["state"], minlength=n), 1)
        place = chunk["state"], np.where(goes_on, follows, chunk["state"])
        mean = scipy.sparse.coo_array((squares / visits[place[0]], place), shape=(n, n)).tocsr()
        try:
            radius = spectral_radius(mean).value
        except ConvergenceError:  # too close to 1 to tell
            radius = 1.0
    return float(min(1.0, np.sqrt(LARGEST_RADIUS / radius))) if radius > 0 else 1.0


def first_states(chunk: Chunk) -> int:
    """The largest state of a chunk plus one."""
    return int(max(chunk["state"].max(), chunk["next_state"].max())) + 1


def refuse_features(experience: Experience, given: Any) -> None:
    """Refuse unknown features, and features for states."""
    if given is None:
        return
    if experience.width is None:
        raise InputError("features", given, f"are for observations; {experience.name} has states")
    if not isinstance(given, Features) and given not in BASES:
        choices = ", ".join(map(repr, BASES))
        if given == "deep":
            raise InputError("features", "'deep'", "deep critics are made by rv.deep.estimate(…)")
        raise InputError("features", literal(given), f"must be {choices}, or retvar.features")


def features_for(experience: Experience, observed: Array, given: Any = None) -> Features:
    """Features for observations: those given, or a basis between the bounds of the space.

    Where the space has no bounds, those of the first observations are used.
    """
    if experience.pairs and not isinstance(given, PerAction):
        return _features_per_action(experience, observed, given)
    if isinstance(given, Features):
        return given
    kind = BASES["tiles" if given is None else given]
    around = Polynomial.from_data(observed, degree=1)
    low, high = np.array(around.low), np.array(around.high)
    if experience.low is not None and experience.high is not None:
        wide = 1e6 * np.maximum(high - low, 1.0)  # wider bounds count as none
        bounded = (experience.high - experience.low) < wide
        low = np.where(bounded, experience.low, low)
        high = np.where(bounded, experience.high, high)
    if kind is not TileCoding:
        return kind(low, high)
    small = low.size <= 4
    tiles = {1: 32, 2: 20, 3: 8, 4: 6}.get(low.size, 4)
    return TileCoding(low, high, tiles=tiles, tilings=16, memory=None if small else HASHED_WEIGHTS)


def _features_per_action(experience: Experience, observed: Array, given: Any) -> Features:
    """Features of an observation and an action, which is its last number."""
    bounds = (None if x is None else x[:-1] for x in (experience.low, experience.high))
    low, high = bounds
    inside = replace(experience, pairs=False, low=low, high=high)
    basis = features_for(inside, observed[:, :-1], given)
    if not isinstance(basis, ObservationFeatures):
        remedy = "actions need TileCoding, Fourier, Polynomial, or PerAction of one of them"
        raise InputError("features", type(basis).__name__, remedy)
    return PerAction(basis, experience.action_count or int(observed[:, -1].max()) + 1)


def grow_table(estimator: Any, chunk: Chunk, experience: Experience) -> None:
    """Grow a tabular estimator for new states; refuse states that cannot exist."""
    if experience.width is not None:
        return
    state, follows = chunk["state"], chunk["next_state"]
    top = int(max(state.max(initial=0), follows.max(initial=0))) + 1
    if experience.states is not None and top > experience.states:
        raise InputError("state", top - 1, f"unknown; states are 0 to {experience.states - 1}")
    count = estimator.features[0].states or 0
    if isinstance(estimator, TabularEstimator):
        _refuse_gaps(top, estimator.steps + len(state))
    elif top > count:
        _refuse_too_many(top, estimator.bootstrap_samples, estimator.description)
    if top > count:
        estimator.grow(experience.states or max(top, 2 * count))


def _refuse_gaps(states: int, transitions: int) -> None:
    """Refuse numbers that are hardly those of states, which would fill the memory."""
    if states > max(MANY_STATES, GAP * transitions):
        raise InputError(
            "state", f"numbers up to {states - 1:,}",
            f"are many more than there are transitions ({transitions:,} so far); use numbers with "
            "gaps as labels (states='labels')",
        )  # fmt: skip


def _refuse_too_many(states: int, bootstrap_samples: int, learner: Learner) -> None:
    """Refuse numbers of states that would not fit into memory."""
    size = states * learner.network.place_count * (CELL + 2 * 8 * bootstrap_samples)
    if size > MOST_BYTES:
        raise InputError(
            "state", f"numbers up to {states - 1:,}",
            f"need {size / 2**30:,.0f} GiB with {bootstrap_samples} bootstrap samples; use "
            "numbers with gaps as labels (states='labels'), or fewer bootstrap samples",
        )  # fmt: skip
