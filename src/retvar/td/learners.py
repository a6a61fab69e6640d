"""Learners: frozen descriptions, validated at construction; ``online()`` makes an estimator."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_args, overload

import numpy as np
from numpy.typing import ArrayLike

from retvar.mdp.weighted_edges import Estimand
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.html import Shown, page, settings
from retvar.td.features import States, features_of_nodes
from retvar.td.initial_values import InitialValues, Noisy, PerRun
from retvar.td.networks import NETWORKS, THIRD, VARIANCE, Network, network_of
from retvar.td.step_sizes import RULES, StepSize, step_size

if TYPE_CHECKING:
    from retvar.online import OnlineEstimator, SeveralEstimator


class NodeSettings(NamedTuple):
    """Settings of one TD node."""

    step: StepSize
    kappa: Any
    initial: Any
    initial_name: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Learner(Shown):
    """Base of all learners; use :class:`Direct`, :class:`VTD` or :class:`Centred`.

    Parameters
    ----------
    alpha
        Step size of the value node: a number or a rule (:class:`~retvar.td.step_sizes.Decay`, …).
    alpha_bar
        Step size of the variance node (for VTD of the second moment); default: `alpha`.
    gamma, lam
        γ and λ on arrival: a number, one per state, or None to give them with each transition.
    kappa, kappa_bar
        Trace decay of the value and variance node: a number or one per state.
    estimand
        ``"target_return"`` or ``"off_policy_return"``; sets η and ρ̄.
    value
        Initial value: a number, or one per state (with features: the weights); for `simulate` also
        :class:`~retvar.Noisy` or :class:`~retvar.PerRun`, which differ
        from run to run.
    learn_value
        False holds the value function fixed.
    initial_variance
        Initial variance: a number or one per state (with features the weights of the node).
    order
        2: up to the variance. 3 or 4: also the third, or the third and fourth central moment, with
        the variance's settings and features; they start from 0. Not for VTD.

    Examples
    --------
    >>> import retvar as rv
    >>> rv.Direct(alpha=0.1, gamma=0.9, lam=0.9) == rv.Direct(alpha=0.1, gamma=0.9, lam=0.9)
    True
    """

    alpha: float | StepSize
    alpha_bar: float | StepSize | None = None
    gamma: ArrayLike | None = None
    lam: ArrayLike | None = None
    kappa: ArrayLike = 0.0
    kappa_bar: ArrayLike = 0.0
    estimand: Estimand = "target_return"
    value: ArrayLike | InitialValues = 0.0
    learn_value: bool = True
    initial_variance: ArrayLike = 0.0
    order: int = 2

    method: ClassVar[str]

    def __post_init__(self) -> None:
        arguments.choice("estimand", self.estimand, get_args(Estimand))
        arguments.flag("learn_value", self.learn_value)
        order = arguments.integer("order", self.order, 2)
        if order > (own := NETWORKS[self.method].highest_order):
            remedy = f"{type(self).__name__} has moments up to order {own} only"
            raise InputError("order", order, remedy)
        object.__setattr__(self, "order", order)
        for field in dataclasses.fields(self):
            given = getattr(self, field.name)
            checked = given is not None or field.default is not None
            if checked and field.name not in ("estimand", "learn_value", "order"):
                object.__setattr__(self, field.name, _setting(field.name, given))

    def nodes(self, *, tabular: bool = True) -> list[NodeSettings]:
        """Settings of the nodes, by place; not `tabular`: initial numbers are weights."""
        alpha_bar = self.alpha if self.alpha_bar is None else self.alpha_bar
        start: Any = self.initial_variance
        if tabular and self.network.second_moment is not None:  # M = V + J²
            start = np.asarray(start, dtype=float) + np.asarray(self.value, dtype=float) ** 2
        value = NodeSettings(step_size("alpha", self.alpha), self.kappa, self.value, "value")
        step = step_size("alpha_bar", alpha_bar)
        variance = NodeSettings(step, self.kappa_bar, start, "initial_variance")
        moments = [variance._replace(initial=0.0)] * (self.network.place_count - THIRD)
        return [value, self._mean_node(value, variance), variance, *moments]

    def _mean_node(self, value: NodeSettings, variance: NodeSettings) -> NodeSettings:
        return value._replace(kappa=0.0)  # placeholder: there is no mean node

    @property
    def network(self) -> Network:
        """The TD nodes of the method, and what each is fed with."""
        return network_of(self)

    @overload
    def online(
        self,
        states: int | None = None,
        features: Any = None,
        value_features: Any = None,
        mean_features: Any = None,
        *,
        bootstrap_samples: int = 0,
        seed: int = 0,
    ) -> OnlineEstimator: ...

    @overload
    def online(
        self,
        states: int | None = None,
        features: Any = None,
        value_features: Any = None,
        mean_features: Any = None,
        *,
        rewards: int | Sequence[str],
    ) -> SeveralEstimator: ...

    def online(
        self,
        states: int | None = None,
        features: Any = None,
        value_features: Any = None,
        mean_features: Any = None,
        *,
        bootstrap_samples: int = 0,
        seed: int = 0,
        rewards: int | Sequence[str] | None = None,
    ) -> OnlineEstimator | SeveralEstimator:
        """Make an estimator that learns from a stream of transitions.

        Give the number of `states`, or `features`: a table [state, feature], the length of vectors
        that come with each transition, or :mod:`retvar.td.features`. The value node's features
        default to the variance node's, the mean node's to the value node's. Intervals need
        `bootstrap_samples` (such as 100); `seed` is the seed of their random multipliers.

        `rewards`: the number or the names of several rewards, of which each transition has a tuple.
        The estimator then has ``covariance``, ``correlation`` and ``combine``, too.

        >>> import retvar as rv
        >>> rv.VTD(alpha=0.1, gamma=0.9, lam=1.0).online(states=16)
        <VTD online: 0 steps, 0 rejected>
        """
        from retvar.online import OnlineEstimator, SeveralEstimator

        if (states is None) == (features is None):
            given = "both" if states is not None else "neither"
            raise InputError("states, features", given, "give one of the two")
        if isinstance(self.value, InitialValues):
            remedy = "differs from run to run; use it with simulate"
            raise InputError("value", type(self.value).__name__, remedy)
        if states is not None and not (value_features is None and mean_features is None):
            raise InputError("value_features", "with states", "use features instead of states")
        table = States(states) if states is not None else features
        kinds = features_of_nodes(table, value_features, mean_features)
        if len({kind.states for kind in kinds}) > 1:
            counts = ", ".join(str(kind.states) for kind in kinds)
            raise InputError("features", counts, "value, mean and variance need the same states")
        kinds += [kinds[VARIANCE]] * (self.network.place_count - THIRD)
        used = zip(self.nodes(), kinds, strict=False)
        for step, square in {(node.step, getattr(x, "largest_square", 1.0)) for node, x in used}:
            step.warn_of_overshoot(square)
        if rewards is not None:
            if bootstrap_samples:
                raise InputError("bootstrap_samples", bootstrap_samples, "goes with one reward")
            return SeveralEstimator(self, kinds, rewards)
        return OnlineEstimator(self, kinds, bootstrap_samples, seed)

    def replace(self, **changes: Any) -> Learner:
        """Return a learner with some settings changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of JSON data from which ``from_dict`` makes an equal learner."""
        fields = {f.name: _to_json(getattr(self, f.name)) for f in dataclasses.fields(self)}
        if self.order == 2:  # as in files written before there were others
            del fields["order"]
        return {"learner": type(self).__name__, **fields}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Learner):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(repr(self.to_dict()))

    def _html(self) -> str:
        rows = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        known = {name: str(given) for name, given in rows.items() if given is not None}
        return page(f"{type(self).__name__}, a learner", settings(known))


@dataclass(frozen=True, eq=False, kw_only=True)
class Direct(Learner):
    """Sherstan et al. (2018): the squared TD error of the value node is fed to a variance node.

    R̄ = (ηδ + (η−1)J(s))², γ̄′ = (ηγ′λ′)². See :class:`Learner` for the parameters.

    >>> import retvar as rv
    >>> risk = rv.Direct(alpha=0.1, gamma=1.0, lam=1.0).online(states=1)
    >>> for reward in (0.0, 2.0) * 500:
    ...     risk.update(0, reward, None, terminated=True)
    >>> 0.9 < risk.value(0) < 1.1, 0.9 < risk.std(0) < 1.1
    (True, True)
    """

    method = "direct"


@dataclass(frozen=True, eq=False, kw_only=True)
class VTD(Learner):
    """White and White (2016): a second-moment node; the variance is that minus the squared value.

    R̄ = η²(Ḡ² + 2γ′λ′ḠJ(s′)), Ḡ = R + γ′(1−λ′)J(s′). The variance may be negative, because the
    second moment lags behind the value; its standard deviation is then NaN. Without traces and with
    λ = 1 it is Tamar's TD(0). See :class:`Learner`.

    >>> import retvar as rv
    >>> rv.VTD(alpha=0.1, gamma=0.9, lam=1.0).method
    'vtd'
    """

    method = "vtd"


@dataclass(frozen=True, eq=False, kw_only=True)
class Centred(Learner):
    """A third node learns the mean of the λ-return, from which deviations are taken.

    Its fixed point is the variance for any value function. The mean node has reward
    η(R + γ′(1−λ′)H(s′)) and discount ηγ′λ′; its squared TD error goes to the variance node.

    Parameters
    ----------
    alpha_mean, kappa_mean, initial_mean
        Step size, trace decay and initial weights of the mean node; default: `alpha` (`alpha_bar`
        where the value is not learned), `kappa` and `value`. See :class:`Learner` for the others.

    Examples
    --------
    >>> import retvar as rv
    >>> rv.Centred(alpha=0.05, alpha_bar=0.02, gamma=0.99, lam=0.9).method
    'centred'
    """

    alpha_mean: float | StepSize | None = None
    kappa_mean: ArrayLike | None = None
    initial_mean: ArrayLike | None = None

    method = "centred"

    def _mean_node(self, value: NodeSettings, variance: NodeSettings) -> NodeSettings:
        step = value.step if self.learn_value else variance.step
        return NodeSettings(
            step if self.alpha_mean is None else step_size("alpha_mean", self.alpha_mean),
            self.kappa if self.kappa_mean is None else self.kappa_mean,
            self.value if self.initial_mean is None else self.initial_mean,
            "initial_mean",
        )


LEARNERS: dict[str, type[Learner]] = {c.__name__: c for c in (Direct, VTD, Centred)}


def learner_class(field: str, method: Any) -> type[Learner]:
    """The class of a method, which is given by its name or as the class.

    >>> learner_class("method", "vtd").__name__
    'VTD'
    """
    kinds = {kind.method: kind for kind in LEARNERS.values()}
    own = isinstance(method, type) and issubclass(method, Learner) and hasattr(method, "method")
    return method if own else kinds[arguments.choice(field, method, kinds)]


def grid(*learners: str | type[Learner] | Learner, **settings: Any) -> list[Learner]:
    """Return learners with every combination of settings: lists are varied, the rest is fixed.

    Give methods, as ``"direct"`` or as classes, or learners whose settings are changed. Step sizes
    may also be varied by an array; an array for another setting is one value per state.

    >>> import retvar as rv
    >>> len(rv.grid(rv.Direct, rv.VTD, alpha=[0.01, 0.1], alpha_bar=[0.001, 0.01, 0.1]))
    12
    >>> rv.grid(rv.Direct, alpha=0.1, lam=[0.0, 0.9])[1].lam
    0.9
    """
    if not learners:
        raise InputError("learners", "none", f"give at least one of {', '.join(NETWORKS)}")
    spans = {name: _span(name, given) for name, given in settings.items()}
    known = {f.name for each in LEARNERS.values() for f in dataclasses.fields(each)}
    unknown = sorted(set(spans) - known)
    if unknown:
        raise InputError("settings", unknown[0], f"unknown; settings are {sorted(known)}")
    found: list[Learner] = []
    for given in learners:
        kind: Any = given if isinstance(given, Learner) else learner_class("learners", given)
        own = {name: spans[name] for name in spans if name in kind.__dataclass_fields__}
        make = kind.replace if isinstance(kind, Learner) else kind
        for values in itertools.product(*own.values()):
            found.append(make(**dict(zip(own, values, strict=True))))
    return found


def _span(name: str, given: Any) -> list[Any]:
    """The values of a setting that are varied."""
    several = isinstance(given, tuple | np.ndarray | range) and np.ndim(given) > 0
    if not (isinstance(given, list) or (name.startswith("alpha") and several)):
        return [given]
    values = arguments.entries(name, given, "a list of values")
    if not values:
        raise InputError(name, "[]", "must hold at least one value")
    return values


def from_dict(data: dict[str, Any]) -> Learner:
    """Make a learner from the dictionary of :meth:`Learner.to_dict`."""
    settings = {name: _from_json(given) for name, given in data.items()}
    name = str(settings.pop("learner", None))
    kind = LEARNERS[arguments.choice("learner", name, LEARNERS)]
    known = {f.name for f in dataclasses.fields(kind)}
    unknown = set(settings) - known
    if unknown or "alpha" not in settings:
        raise InputError("learner", sorted(unknown) or "no alpha", f"settings are {sorted(known)}")
    return kind(**settings)


def _setting(field: str, given: Any) -> Any:
    """A setting as it is kept: checked, and an array copied, since the caller may change it."""
    if field.startswith("alpha"):
        found = np.array(step_size(field, given).parameters())
        if isinstance(given, StepSize):
            return given
    elif isinstance(given, InitialValues):
        if field == "value":
            return given
        raise InputError(field, given, "must not differ from run to run")
    elif field in ("value", "initial_variance", "initial_mean"):
        kind = getattr(given, "dtype", None)
        if kind is not None and kind.kind == "f" and kind != np.float64:
            remedy = "must be float64, or squared errors lose half of their digits"
            raise InputError(field, f"{kind} weights", remedy)
        found = arguments.numbers(field, given)
    else:
        found = arguments.unit_interval(field, given)
    if found.size == 0:
        raise InputError(field, "[]", "must be a number, or one for each state")
    if np.ndim(given) == 0:
        return given if isinstance(given, int | float) else float(found[0])
    found.flags.writeable = False
    return found


def _to_json(given: Any) -> Any:
    if isinstance(given, InitialValues):
        return given.to_dict()
    if isinstance(given, StepSize):
        return {"rule": type(given).__name__, **dataclasses.asdict(given)}
    if isinstance(given, np.ndarray | np.generic | list | tuple):
        return np.asarray(given).tolist()
    return given


def _from_json(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    settings = dict(given)
    if "initial" in settings:
        kinds: dict[str, Any] = {"Noisy": Noisy, "PerRun": PerRun}
        return kinds[arguments.choice("initial", settings.pop("initial"), kinds)](**settings)
    name = arguments.choice("rule", str(settings.pop("rule", None)), RULES)
    return RULES[name](**settings)
