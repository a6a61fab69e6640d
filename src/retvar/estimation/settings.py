"""The settings of an estimate: the learner, how to estimate, and features that fit the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from retvar.estimation.observations import NAMES, ObservationEstimator
from retvar.estimation.states import StateEstimator
from retvar.experience.action_pairs import LAM as ONE_LAM
from retvar.experience.action_pairs import by_action
from retvar.experience.stream import Chunk, Experience
from retvar.mdp.linear import spectral_radius
from retvar.online import OnlineEstimator
from retvar.support import arguments
from retvar.support.errors import ConvergenceError, InputError
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
from retvar.td.step_sizes import Averaged

Estimator = OnlineEstimator | StateEstimator | ObservationEstimator
LEAST_SQUARES, TD = "least_squares", "td"
DEFAULTS = {
    "method": DEFAULT, "order": 2, "estimand": "target_return", "level": 0.9, "actions": False,
}  # fmt: skip  # that are not None
STEP_SIZES = ("alpha", "alpha_bar", "alpha_mean")
TD_ONLY = ("learner", "method", "order", "kappa", "bootstrap_samples")
FAMILIES: dict[str, type[ObservationFeatures]] = {
    "tiles": TileCoding, "fourier": Fourier, "polynomial": Polynomial,
}  # fmt: skip
REACH = 5  # horizon of the return over that of the traces
MOST_DECAY = 0.99
UNKNOWN_DECAY = 0.9  # where γ comes with the data
LARGEST_RADIUS = 0.9  # of the second moment of traces
TILES = {1: 32, 2: 20, 3: 8, 4: 6}  # along each dimension, by their number; 4 for more
HASHED_WEIGHTS = 2**16  # for tiles of many dimensions
CELL = 40  # bytes of a weight with its step size and trace
MOST_BYTES = 4 * 2**30
GAMMA = "must be given: how much a reward is worth one step later, such as 0.99"
LAM = "must be set in the learner, or be in the data; 1 is the return itself"
ONE_GAMMA = "must be one number with actions, or a column of the data"
TARGET_RETURN = "action values are of the target policy's return; leave the estimand out"
ACTIONS = 'actions of observations are learned with by="td"; or make the states labels'


def make_learner(
    gamma: Any = None,
    lam: Any = None,
    method: str = DEFAULT,
    kappa: float | None = None,
    estimand: Any = "target_return",
    order: int = 2,
) -> Learner:
    """The learner with these settings; by default its traces reach a fifth of the horizon.

    That is 1/(1 − γκ) = 1/(5(1 − γ)).
    """
    kinds = {each.method: each for each in LEARNERS.values()}
    kind = kinds[arguments.choice("method", method, NETWORKS)]
    own = 0.0 if kappa is None else kappa
    traces: dict[str, Any] = {"kappa": own, "kappa_bar": own}
    found = kind(alpha=Averaged(), gamma=gamma, lam=lam, **traces, estimand=estimand, order=order)
    if kappa is not None:
        return found
    largest = 0.0 if gamma is None else float(np.max(gamma))
    own = UNKNOWN_DECAY if gamma is None else 0.0
    if largest > 0:
        own = float(np.clip((1 - REACH * (1 - largest)) / largest, 0.0, MOST_DECAY))
    return found.replace(kappa=own, kappa_bar=own)


def with_defaults(learner: Learner, chunk: Chunk, defaults: dict[str, float]) -> Learner:
    """The learner with defaults for the γ and λ that neither it nor the data has."""
    for name, remedy in (("gamma", GAMMA), ("lam", LAM)):
        if getattr(learner, name) is None and name not in chunk:
            if name not in defaults:
                raise InputError(name, "not given", remedy)
            learner = learner.replace(**{name: defaults[name]})
    return learner


def refuse(why: str, given: dict[str, Any]) -> None:
    """Refuse settings that differ from their defaults."""
    for name, own in given.items():
        if _differs(name, own):
            shown = type(own).__name__ if isinstance(own, Learner | Features) else own
            raise InputError(name, shown, why)


def _differs(name: str, given: Any) -> bool:
    """Whether a setting is not its default; arrays always differ."""
    plain = isinstance(given, str | int | float)
    return given is not None and not (plain and given == DEFAULTS.get(name))


class Settings:
    """The settings of an estimate, checked; they make the estimator once first rows are known.

    The arguments are those of :func:`retvar.estimate`.
    """

    def __init__(
        self, experience: Experience, learner: Learner | None = None, *, by: str | None = None,
        features: Any = None, bootstrap_samples: int | None = None, level: float = 0.9,
        seed: int = 0, actions: bool = False, **of_learner: Any,
    ) -> None:  # fmt: skip
        given = {"learner": learner, "bootstrap_samples": bootstrap_samples, **of_learner}
        td_only = {name: given.get(name) for name in TD_ONLY}
        if by is not None and arguments.choice("by", by, (LEAST_SQUARES, TD)) == LEAST_SQUARES:
            refuse('goes with by="td"; leave one of them out', td_only)
        if learner is not None:
            arguments.instance("learner", learner, Learner, "Direct, VTD or Centred")
            refuse("is a setting of the learner; set it there", of_learner)
        self.description = make_learner(**of_learner) if learner is None else learner
        td = experience.endless or any(_differs(name, own) for name, own in td_only.items())
        self.by = by or (TD if td else LEAST_SQUARES)
        self.level = arguments.level("level", level)
        if arguments.flag("actions", actions):
            _refuse_beside_actions(self.description)
            experience = by_action(experience)
        self.experience = experience
        if features is not None and experience.width is None:
            remedy = f"are for observations; {experience.name} has states"
            raise InputError("features", features, remedy)
        self.family, self.bases = family_and_bases(features)
        samples = 100 if bootstrap_samples is None else bootstrap_samples
        self._samples = {"bootstrap_samples": samples, "seed": seed}
        make_learner(gamma=0.0, lam=0.0).online(states=1, **self._samples)  # refuses invalid ones
        self.remarks: list[str] = []  #: what was decided for the caller
        if by is None and self.description.order > 2:
            why = "least squares has no moments beyond the variance"
            self.remarks.append(f"TD learning, since {why} (order = {self.description.order})")
        self._defaults = {"lam": 1.0} if learner is None else {}  # of γ and λ, unless in the data
        self._insists = by is not None  # the caller
        self._own_kappa = learner is None and of_learner.get("kappa") is None

    def __call__(self, chunk: Chunk) -> Estimator:
        """The estimator, with features that fit the chunk."""
        learner = with_defaults(self.description, chunk, self._defaults)
        known = self.experience.states
        tabular = self.experience.width is None
        td = self.by == TD or (not tabular and self._needs_td())
        if not td and tabular:
            return StateEstimator(learner, known or 1, known is not None)
        if td and self._own_kappa:
            learner = self._bound_traces(learner, chunk)
        if tabular:
            states = known or first_states(chunk)
            _refuse_too_many(states, self._samples["bootstrap_samples"], learner)
            return learner.online(states=states, **self._samples)
        built = features_for(self.experience, chunk["state"], self.family)
        if not td:
            return ObservationEstimator(learner, built, self.bases)
        square = getattr(built, "largest_square", 1.0)
        rules = {name: getattr(learner, name, None) for name in STEP_SIZES}
        steps = {
            name: Averaged(rule.alpha / square, rule.power)
            for name, rule in rules.items()
            if isinstance(rule, Averaged)
        }
        return learner.replace(**steps).online(features=built, **self._samples)

    def _needs_td(self) -> bool:
        """Whether least squares cannot do it with features, and the caller leaves the choice."""
        pairs = self.experience.pairs
        if pairs and self._insists:
            raise InputError("by", "least_squares", ACTIONS)
        if pairs:
            self.remarks.append("TD learning, since actions with features; approximate")
        return pairs

    def _bound_traces(self, learner: Learner, chunk: Chunk) -> Learner:
        """Lower κ to where the second moment of the traces stays finite under the ratios."""
        most = largest_decay(chunk, learner.gamma, by_state=self.experience.width is None)
        if not most < float(np.max(learner.kappa)):
            return learner
        self.remarks.append(f"traces decay by κ = {number(most)}: importance ratios allow no more")
        return learner.replace(kappa=most, kappa_bar=most)


def _refuse_beside_actions(learner: Learner) -> None:
    """Refuse settings that action values do not have."""
    if learner.lam is not None and bool(np.any(np.asarray(learner.lam) != 1.0)):
        raise InputError("lam", learner.lam, ONE_LAM)
    if learner.gamma is not None and np.ndim(learner.gamma):
        raise InputError("gamma", "one per state", ONE_GAMMA)
    if learner.estimand != "target_return":
        raise InputError("estimand", learner.estimand, TARGET_RETURN)


def largest_decay(chunk: Chunk, gamma: Any, by_state: bool = True) -> float:
    """The largest κ for which traces have a second moment: κ²·radius of E[(ργ)²] is below 1.

    >>> two = np.zeros(4, dtype=int)
    >>> chunk = {"state": two, "next_state": two, "rho": np.array([1.8, 0.2, 1.8, 0.2])}
    >>> round(largest_decay(chunk, 1.0), 2), largest_decay(chunk | {"rho": np.ones(4)}, 0.9)
    (0.74, 1.0)
    """
    rho, follows = np.asarray(chunk.get("rho", 1.0), dtype=np.float64), chunk["next_state"]
    if bool((rho == 1.0).all()):
        return 1.0
    own = np.asarray(chunk.get("gamma", 1.0 if gamma is None else gamma), dtype=np.float64)
    if own.ndim and "gamma" not in chunk:
        own = own[follows]
    goes_on = ~np.asarray(chunk.get("terminated", np.zeros(rho.size)), dtype=bool)
    squares = np.where(goes_on, (rho * own) ** 2, 0.0)
    radius = float(squares.mean())
    if by_state:
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
    return int(max(chunk["state"].max(initial=0), chunk["next_state"].max(initial=0))) + 1


def family_and_bases(given: Any) -> tuple[Any, Sequence[Any]]:
    """The features, or the name of their family, and the bases of a stack."""
    own: Any = "tiles" if given is None else given
    bases: list[Any] = list(NAMES if given is None else NAMES[:1])
    if isinstance(given, list | tuple):
        own = next((x for x in given if isinstance(x, Features)), "tiles")
        bases = [NAMES[0] if isinstance(x, Features) else x for x in given]
    known = isinstance(own, Features) or (isinstance(own, str) and own in FAMILIES)
    if not (known and all(x in NAMES if isinstance(x, str) else _is_base(x) for x in bases)):
        families, more = (", ".join(map(repr, x)) for x in (FAMILIES, NAMES[1:]))
        remedy = f"must be {families}, rv.features, or a list of these, {more} and bases"
        raise InputError("features", literal(given), f"{remedy}; for 'deep' see rv.deep.estimate")
    return own, bases


def _is_base(given: Any) -> bool:
    return hasattr(given, "fit") and hasattr(given, "predict")


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


def grow_table(estimator: Any, chunk: Chunk, experience: Experience) -> None:
    """Grow the table of an online estimator for new states; refuse states that cannot exist."""
    if experience.width is not None:
        return
    top, count = first_states(chunk), estimator.features[0].states or 0
    if experience.states is not None and top > experience.states:
        raise InputError("state", top - 1, f"unknown; states are 0 to {experience.states - 1}")
    if top > count:
        _refuse_too_many(top, estimator.bootstrap_samples, estimator.description)
        estimator.grow(experience.states or max(top, 2 * count))


def _refuse_too_many(states: int, bootstrap_samples: int, learner: Learner) -> None:
    """Refuse numbers of states that would not fit into memory."""
    size = states * learner.network.place_count * (CELL + 2 * 8 * bootstrap_samples)
    if size > MOST_BYTES:
        raise InputError(
            "state", f"numbers up to {states - 1:,}",
            f"need {size / 2**30:,.0f} GiB with {bootstrap_samples} bootstrap samples; use "
            "numbers with gaps as labels (states='labels'), or fewer bootstrap samples",
        )  # fmt: skip
