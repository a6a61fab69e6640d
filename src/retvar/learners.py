"""Learners: frozen descriptions, validated at construction; ``online()`` makes an estimator."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from retvar import arguments
from retvar.errors import InputError
from retvar.features import Features, States, features_of
from retvar.format import literal
from retvar.html import Shown, page, settings
from retvar.initial_values import InitialValues, Noisy, Normal, PerRun
from retvar.mdp.weighted_edges import Estimand
from retvar.networks import NETWORKS, THIRD, Network, network_of
from retvar.step_sizes import RULES, StepSize, step_size

if TYPE_CHECKING:
    from retvar.online import OnlineEstimator

__all__ = ["VTD", "Centred", "Direct", "Learner", "grid", "load"]


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
        Step size of the value node: a number or a rule (:class:`~retvar.step_sizes.Decay`, …).
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
        :class:`~retvar.Noisy`, :class:`~retvar.Normal` or :class:`~retvar.PerRun`, which differ
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
    initial_variance: ArrayLike | InitialValues = 0.0
    order: int = 2

    method: ClassVar[str]

    def __post_init__(self) -> None:
        arguments.choice("estimand", self.estimand, get_args(Estimand))
        if not isinstance(self.learn_value, bool):
            raise InputError("learn_value", literal(self.learn_value), "must be True or False")
        self._check_order()
        for field in dataclasses.fields(self):
            given = getattr(self, field.name)
            if isinstance(given, np.ndarray):  # the caller may change the original
                given = given.copy()
                given.flags.writeable = False
                object.__setattr__(self, field.name, given)
            if given is None and field.default is None:
                continue
            found = None
            if field.name.startswith("alpha"):
                found = np.array(step_size(field.name, given).parameters())
            elif field.name in ("gamma", "lam") or field.name.startswith("kappa"):
                found = arguments.unit_interval(field.name, given)
            elif isinstance(given, InitialValues):
                if not field.name.startswith(("value", "initial")):
                    raise InputError(field.name, given, "must not differ from run to run")
            elif field.name in ("value", "initial_variance", "initial_mean"):
                _refuse_float32(field.name, given)
                found = arguments.numbers(field.name, given)
            if found is not None and not isinstance(given, StepSize):
                _refuse_empty(field.name, found)
                object.__setattr__(self, field.name, _plain(given, found))

    def _check_order(self) -> None:
        highest = max(network.highest_order for network in NETWORKS.values())
        order = arguments.integer("order", self.order, 2, highest)
        own = NETWORKS[self.method].highest_order
        if order > own:
            able = (n.title for n in NETWORKS.values() if n.highest_order >= order)
            name, others = type(self).__name__, " or ".join(able)
            remedy = f"{name} has moments up to order {own} only; use {others}, or order={own}"
            raise InputError("order", order, remedy)
        object.__setattr__(self, "order", order)

    def nodes(self, *, tabular: bool = True) -> list[NodeSettings]:
        """Return settings of the nodes, by place; initial weights with features."""
        tabular = arguments.flag("tabular", tabular)
        alpha_bar = self.alpha if self.alpha_bar is None else self.alpha_bar
        value = NodeSettings(step_size("alpha", self.alpha), self.kappa, self.value, "value")
        secondary = NodeSettings(
            step_size("alpha_bar", alpha_bar),
            self.kappa_bar,
            self._initial_variance_node() if tabular else self.initial_variance,
            "initial_variance",
        )
        moment = secondary._replace(initial=0.0)
        moments = [moment] * (self.network.place_count - THIRD)
        return [value, self._mean_node(value, secondary), secondary, *moments]

    def _mean_node(self, value: NodeSettings, secondary: NodeSettings) -> NodeSettings:
        return value._replace(kappa=0.0)  # placeholder: there is no mean node

    def _initial_variance_node(self) -> Any:
        """V, or M = V + J² where the node learns the second moment."""
        if self.network.second_moment is None:
            return self.initial_variance
        return np.asarray(self.initial_variance, dtype=float) + np.asarray(self.value, float) ** 2

    @property
    def network(self) -> Network:
        """The TD nodes of the method, and what each is fed with.

        >>> import retvar as rv
        >>> [node.name for node in rv.VTD(alpha=0.1).network.nodes]
        ['value', 'second_moment']
        """
        return network_of(self)

    def online(
        self,
        states: int | None = None,
        features: Any = None,
        value_features: Any = None,
        mean_features: Any = None,
        *,
        bootstrap_samples: int = 0,
        seed: int = 0,
    ) -> OnlineEstimator:
        """Make an estimator that learns from a stream of transitions.

        Give the number of `states`, or `features`: a table [state, feature], the length of vectors
        that come with each transition, or :mod:`retvar.features`. The value node's features
        default to the variance node's, the mean node's to the value node's. Intervals need
        `bootstrap_samples` (such as 100); `seed` is the seed of their random multipliers.

        >>> import retvar as rv
        >>> rv.VTD(alpha=0.1, gamma=0.9, lam=1.0).online(states=16)
        <VTD online: 0 steps, 0 rejected>
        """
        from retvar.online import OnlineEstimator

        if (states is None) == (features is None):
            given = "both" if states is not None else "neither"
            raise InputError("states, features", given, "give one of the two")
        for field in dataclasses.fields(self):
            if isinstance(getattr(self, field.name), InitialValues):
                kind = type(getattr(self, field.name)).__name__
                raise InputError(field.name, kind, "differs from run to run; use it with simulate")
        variance: Features
        if states is not None:
            if value_features is not None or mean_features is not None:
                raise InputError("value_features", "with states", "use features instead of states")
            variance = States(states)
        else:
            variance = features_of("features", features)
        value = (
            variance if value_features is None else features_of("value_features", value_features)
        )
        mean = value if mean_features is None else features_of("mean_features", mean_features)
        kinds = [value, mean, variance]
        if len({kind.states for kind in kinds}) > 1:
            counts = ", ".join(str(kind.states) for kind in kinds)
            raise InputError("features", counts, "value, mean and variance need the same states")
        kinds += [variance] * (self.network.place_count - THIRD)
        return OnlineEstimator(self, kinds, bootstrap_samples, seed)

    def replace(self, **changes: Any) -> Learner:
        """Return a learner with some settings changed.

        >>> import retvar as rv
        >>> rv.Direct(alpha=0.1).replace(alpha_bar=0.2).alpha_bar
        0.2
        """
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of JSON data from which ``from_dict`` makes an equal learner.

        >>> import retvar as rv
        >>> rv.Direct(alpha=0.1).to_dict()["learner"]
        'Direct'
        """
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
        given = {f.name: _brief(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return page(f"{type(self).__name__}, a learner", settings(given))


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
    second moment lags behind the value; its standard deviation is then NaN. See :class:`Learner`.

    >>> import retvar as rv
    >>> rv.VTD.tamar(alpha=0.1, gamma=0.9).lam
    1.0
    """

    method = "vtd"

    @classmethod
    def tamar(cls, alpha: float | StepSize, **settings: Any) -> VTD:
        """Tamar's TD(0): λ = 1 and no traces.

        >>> import retvar as rv
        >>> rv.VTD.tamar(alpha=0.1) == rv.VTD(alpha=0.1, lam=1.0, kappa=0.0, kappa_bar=0.0)
        True
        """
        return cls(alpha=alpha, **{"lam": 1.0, "kappa": 0.0, "kappa_bar": 0.0, **settings})


@dataclass(frozen=True, eq=False, kw_only=True)
class Centred(Learner):
    """A third node learns the mean of the λ-return, from which deviations are taken.

    Its fixed point is the variance for any value function. The mean node has reward
    η(R + γ′(1−λ′)H(s′)) and discount ηγ′λ′; its squared TD error goes to the variance node.

    Parameters
    ----------
    alpha_mean, kappa_mean, initial_mean
        Step size, trace decay and initial weights of the mean node; default: `alpha_bar`,
        `kappa` and `value`. See :class:`Learner` for the others.

    Examples
    --------
    >>> import retvar as rv
    >>> rv.Centred(alpha=0.05, alpha_bar=0.02, gamma=0.99, lam=0.9).method
    'centred'
    """

    alpha_mean: float | StepSize | None = None
    kappa_mean: ArrayLike | None = None
    initial_mean: ArrayLike | InitialValues | None = None

    method = "centred"

    def _mean_node(self, value: NodeSettings, secondary: NodeSettings) -> NodeSettings:
        return NodeSettings(
            secondary.step if self.alpha_mean is None else step_size("alpha_mean", self.alpha_mean),
            self.kappa if self.kappa_mean is None else self.kappa_mean,
            self.value if self.initial_mean is None else self.initial_mean,
            "initial_mean",
        )


LEARNERS: dict[str, type[Learner]] = {c.__name__: c for c in (Direct, VTD, Centred)}


def grid(*learners: type[Learner] | Learner, **settings: Any) -> list[Learner]:
    """Return learners with every combination of settings: lists are varied, the rest is fixed.

    Give classes, or learners whose settings are changed. Step sizes may also be varied by an array;
    an array for another setting is one value per state.

    >>> import retvar as rv
    >>> len(rv.grid(rv.Direct, rv.VTD, alpha=[0.01, 0.1], alpha_bar=[0.001, 0.01, 0.1]))
    12
    >>> rv.grid(rv.Direct, alpha=0.1, lam=[0.0, 0.9])[1].lam
    0.9
    """
    if not learners:
        raise InputError("learners", "none", "give at least one class: Direct, VTD or Centred")
    spans: dict[str, list[Any]] = {}
    for name, given in settings.items():
        spanned = isinstance(given, list) or (
            name.startswith("alpha")
            and isinstance(given, tuple | np.ndarray | range)
            and getattr(given, "ndim", 1) > 0
        )
        spans[name] = arguments.entries(name, given, "a list of values") if spanned else [given]
        if not spans[name]:
            raise InputError(name, "[]", "must hold at least one value")
    found = []
    for kind in learners:
        if not isinstance(kind, Learner) and not (
            isinstance(kind, type) and issubclass(kind, Learner)
        ):
            raise InputError(
                "learners", literal(kind), "must be Direct, VTD, Centred, or one of them"
            )
        owner = type(kind) if isinstance(kind, Learner) else kind
        known = {f.name for f in dataclasses.fields(owner)}
        anywhere = {f.name for each in LEARNERS.values() for f in dataclasses.fields(each)}
        unknown = sorted(set(spans) - anywhere)
        if unknown:
            raise InputError("settings", unknown[0], f"unknown; settings are {sorted(anywhere)}")
        own = {name: span for name, span in spans.items() if name in known}
        for values in itertools.product(*own.values()):
            chosen = dict(zip(own, values, strict=True))
            found.append(kind.replace(**chosen) if isinstance(kind, Learner) else kind(**chosen))
    return found


def from_dict(data: dict[str, Any]) -> Learner:
    """Make a learner from the dictionary of :meth:`Learner.to_dict`."""
    settings = {name: _from_json(given) for name, given in data.items()}
    kind = LEARNERS.get(str(settings.pop("learner", None)))
    if kind is None:
        raise InputError("learner", data.get("learner"), f"must be one of {', '.join(LEARNERS)}")
    known = {f.name for f in dataclasses.fields(kind)}
    unknown = set(settings) - known
    if unknown or "alpha" not in settings:
        raise InputError("learner", sorted(unknown) or "no alpha", f"settings are {sorted(known)}")
    return kind(**settings)


def load(path: Any) -> OnlineEstimator:
    """Load an online estimator that ``save`` wrote; it continues exactly where it was.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "risk.safetensors"
    >>> Direct(alpha=0.1, gamma=0.9, lam=0.9).online(states=4).save(path)
    >>> load(path)
    <Direct online: 0 steps, 0 rejected>
    """
    from retvar.online import restore

    return restore(path, from_dict)


def _plain(given: Any, found: Any) -> Any:
    """Numbers as they were `given`, or as they were `found` where their type is a rare one.

    >>> from fractions import Fraction
    >>> _plain(Fraction(1, 2), np.array([0.5])), _plain(np.int8(1), np.array([1.0]))
    (0.5, 1)
    """
    if isinstance(given, int | float):
        return given
    if np.ndim(given) == 0:
        return int(given) if arguments.is_integer(given) else float(found[0])
    if isinstance(given, np.ndarray):
        usual = given.dtype.kind in "iu" or given.dtype == np.float64
    else:
        usual = isinstance(given, list | tuple) and all(isinstance(x, int | float) for x in given)
    if usual:
        return given
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


def _brief(given: Any) -> str:
    """A setting in few words.

    >>> _brief(0.10), _brief(np.zeros(5)), _brief(None)
    ('0.1', '5 numbers, 0 … 0', '')
    """
    if isinstance(given, np.ndarray | list | tuple) and np.size(given) > 1:
        return f"{np.size(given):,} numbers, {np.min(given):g} … {np.max(given):g}"
    return "" if given is None else str(given)


def _from_json(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    settings = dict(given)
    if "initial" in settings:
        kinds: dict[str, Any] = {"Noisy": Noisy, "Normal": Normal, "PerRun": PerRun}
        kind = kinds.get(str(settings.pop("initial")))
        if kind is None:
            raise InputError("initial", given["initial"], "must be Noisy, Normal or PerRun")
        return kind(**settings)
    name = str(settings.pop("rule", None))
    if name not in RULES:
        raise InputError("rule", name, f"must be one of {', '.join(RULES)}")
    return RULES[name](**settings)


def _refuse_empty(field: str, array: Any) -> None:
    if array.size == 0:
        raise InputError(field, "[]", "must be a number, or one for each state")


def _refuse_float32(field: str, given: Any) -> None:
    dtype = getattr(given, "dtype", None)
    if dtype is not None and np.issubdtype(dtype, np.floating) and dtype != np.float64:
        raise InputError(
            field,
            f"{dtype} weights",
            "must be float64: squared errors lose their last half in float32; convert with "
            ".astype(float)",
        )
