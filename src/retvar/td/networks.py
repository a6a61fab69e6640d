"""Estimators as data: each method is a small network of TD nodes, as in the paper's first figure.

A :class:`Node` says what it is fed with: its reward, its discount, and its weight, each a function
of the transition (:class:`Transition`) and of what other nodes have said about it
(:class:`Readings`). A :class:`Network` lists the nodes of a method in the order in which they
learn, and says which estimate is made of which node. Online estimators, simulations, results,
figures, exact answers and the command line read ``NETWORKS``; nothing else knows a method by name,
except what the paper claims about it.

To add an estimator, add its nodes here, with rewards from :mod:`retvar.td.rules`, and a class to
:mod:`retvar.td.learners`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from retvar.td import rules

__all__ = ["DEFAULT", "ESTIMATES", "NETWORKS", "NODES", "Estimate", "Network", "Node"]

VALUE, MEAN, VARIANCE, THIRD, FOURTH = range(5)  # places: each has settings and features
PLACES = ("value", "mean", "variance", "third_moment", "fourth_moment")
SHAPES = {"third_moment": "skewness", "fourth_moment": "kurtosis"}  # what each, scaled, is called


class Transition(NamedTuple):
    """What a transition gives to every node: R, γ′, λ′ and η."""

    reward: float
    gamma: float
    lam: float
    eta: float


class Reading(NamedTuple):
    """What a node says about a transition; all but the last before its update."""

    now: float  #: prediction of the state being left
    after: float  #: prediction of the next state
    error: float  #: TD error
    updated: float  #: prediction of the next state after the update


class Readings(NamedTuple):
    """What the nodes before this one say, by place."""

    value: Reading
    mean: Reading
    variance: Reading
    third_moment: Reading


# ---------------------------------------------------------------------- what nodes are fed with


def reward(x: Transition, read: Readings) -> float:
    """R: the reward of the value node."""
    return x.reward


def mean_reward(x: Transition, read: Readings) -> float:
    """η(R + γ′(1−λ′)J(s′)), with J before its update."""
    return rules.mean_reward(x.reward, x.gamma, x.lam, read.value.after, x.eta)


def direct_reward(x: Transition, read: Readings) -> float:
    """(ηδ + (η−1)J(s))², from the value node before its update."""
    return rules.direct_reward(read.value.error, read.value.now, x.eta)


def centred_reward(x: Transition, read: Readings) -> float:
    """The squared TD error of the mean node."""
    return read.mean.error * read.mean.error


def vtd_reward(x: Transition, read: Readings) -> float:
    """η²(Ḡ² + 2γ′λ′ḠJ(s′)), with J after its update."""
    return rules.vtd_reward(x.reward, x.gamma, x.lam, read.value.updated, x.eta)


def covariance_reward(x: Transition, read: Readings) -> float:
    """ζ_A ζ_B: what two returns deviate by, ζ² in the variance; their own networks have said it."""
    return x.reward


def direct_third_reward(x: Transition, read: Readings) -> float:
    """ε³ + 3c²εV(s′), ε = ηδ + (η−1)J(s), with J and V before their updates."""
    root = rules.direct_deviation(read.value.error, read.value.now, x.eta)
    c = rules.mean_discount(x.gamma, x.lam, x.eta)
    return rules.third_moment_reward(root, c, read.variance.after)


def centred_third_reward(x: Transition, read: Readings) -> float:
    """ε³ + 3c²εV(s′), ε the TD error of the mean node, with V before its update."""
    c = rules.mean_discount(x.gamma, x.lam, x.eta)
    return rules.third_moment_reward(read.mean.error, c, read.variance.after)


def direct_fourth_reward(x: Transition, read: Readings) -> float:
    """ε⁴ + 6c²ε²V(s′) + 4c³εM₃(s′), ε = ηδ + (η−1)J(s), all before their updates."""
    root = rules.direct_deviation(read.value.error, read.value.now, x.eta)
    c = rules.mean_discount(x.gamma, x.lam, x.eta)
    return rules.fourth_moment_reward(root, c, read.variance.after, read.third_moment.after)


def centred_fourth_reward(x: Transition, read: Readings) -> float:
    """ε⁴ + 6c²ε²V(s′) + 4c³εM₃(s′), ε the TD error of the mean node, V, M₃ before the updates."""
    error, c = read.mean.error, rules.mean_discount(x.gamma, x.lam, x.eta)
    return rules.fourth_moment_reward(error, c, read.variance.after, read.third_moment.after)


def value_discount(x: Transition) -> float:
    """γ′."""
    return x.gamma


def mean_discount(x: Transition) -> float:
    """ηγ′λ′."""
    return rules.mean_discount(x.gamma, x.lam, x.eta)


def variance_discount(x: Transition) -> float:
    """(ηγ′λ′)²."""
    return rules.variance_discount(rules.mean_discount(x.gamma, x.lam, x.eta))


def third_moment_discount(x: Transition) -> float:
    """(ηγ′λ′)³."""
    return rules.third_moment_discount(rules.mean_discount(x.gamma, x.lam, x.eta))


def fourth_moment_discount(x: Transition) -> float:
    """(ηγ′λ′)⁴."""
    return rules.fourth_moment_discount(rules.mean_discount(x.gamma, x.lam, x.eta))


# ---------------------------------------------------------------------- nodes


class Node(NamedTuple):
    """One TD node: what it predicts, where its settings are, and what it is fed with."""

    name: str  #: what it predicts
    place: int  #: which settings and features of the learner it uses
    reward: Callable[[Transition, Readings], float]
    discount: Callable[[Transition], float]
    reads: int | None = None  #: place of the last node that its reward reads; see `rests_on`
    reads_updated: bool = False  #: whether it reads that prediction after the update
    by_rho: bool = False  #: whether its trace is weighted by ρ; otherwise by ρ̄

    @property
    def title(self) -> str:
        """What it predicts, in words."""
        return self.name.replace("_", " ")

    @property
    def code(self) -> int:
        """Its number in ``NODES``, by which compiled code knows it."""
        return NODES.index(self)


_VALUE = Node("value", VALUE, reward, value_discount, by_rho=True)
_MEAN = Node("mean", MEAN, mean_reward, mean_discount, VALUE)
_DIRECT = Node("variance", VARIANCE, direct_reward, variance_discount, VALUE)
_CENTRED = Node("variance", VARIANCE, centred_reward, variance_discount, MEAN)
_MOMENT = Node("second_moment", VARIANCE, vtd_reward, variance_discount, VALUE, reads_updated=True)
_COVARIANCE = Node("covariance", VARIANCE, covariance_reward, variance_discount)
_DIRECT_MOMENTS = (
    Node("third_moment", THIRD, direct_third_reward, third_moment_discount, VARIANCE),
    Node("fourth_moment", FOURTH, direct_fourth_reward, fourth_moment_discount, THIRD),
)
_CENTRED_MOMENTS = (
    Node("third_moment", THIRD, centred_third_reward, third_moment_discount, VARIANCE),
    Node("fourth_moment", FOURTH, centred_fourth_reward, fourth_moment_discount, THIRD),
)
NODES = (  # a number for each, in compiled code
    _VALUE, _MEAN, _DIRECT, _MOMENT, _CENTRED, *_DIRECT_MOMENTS, *_CENTRED_MOMENTS, _COVARIANCE,
)  # fmt: skip


# ---------------------------------------------------------------------- networks


class Estimate(NamedTuple):
    """How an estimate is made: the prediction of a node, less the square of another's."""

    node: Node
    less_square_of: Node | None = None


class Network(NamedTuple):
    """A method: its nodes in the order in which they learn, and what is estimated by which.

    >>> [node.name for node in NETWORKS["centred"].nodes]
    ['value', 'mean', 'variance']
    >>> NETWORKS["vtd"].variance.less_square_of.name
    'value'
    """

    method: str
    title: str  #: name of the learner's class
    label: str  #: its name within a sentence
    nodes: tuple[Node, ...]
    variance: Estimate
    moments: tuple[Node, ...] = ()  #: nodes of the third and fourth moment that it may have
    order: int = 2  #: of the highest moment that its nodes estimate

    def up_to(self, order: int) -> Network:
        """The network with nodes for the moments up to an order."""
        nodes = tuple(node for node in self.nodes if node not in self.moments)
        return self._replace(nodes=(*nodes, *self.moments[: order - 2]), order=order)

    @property
    def highest_order(self) -> int:
        """Of the highest moment that the method can estimate."""
        return 2 + len(self.moments)

    @property
    def higher(self) -> tuple[str, ...]:
        """Names of what it estimates beyond the variance."""
        names = [node.name for node in self.nodes if node.place > VARIANCE]
        return (*names, *(SHAPES[name] for name in names))

    @property
    def place_count(self) -> int:
        """Number of places up to that of its last node; arrays have so many rows."""
        return 1 + max(self.places)

    @property
    def mean(self) -> Node:
        """The node that estimates the mean of the λ-return."""
        return next((node for node in self.nodes if node.place == MEAN), self.nodes[VALUE])

    @property
    def second_moment(self) -> Node | None:
        """The node that estimates the second moment; None: it is variance + mean²."""
        return self.variance.node if self.variance.less_square_of is not None else None

    @property
    def places(self) -> tuple[int, ...]:
        """Places of its nodes."""
        return tuple(node.place for node in self.nodes)

    def at(self, place: int) -> Node | None:
        """The node at a place, or None."""
        return next((node for node in self.nodes if node.place == place), None)

    def rests_on(self, node: Node) -> tuple[Node, ...]:
        """A node and all nodes that it is fed by, first those that learn first."""
        read = None if node.reads is None else self.up_to(self.highest_order).at(node.reads)
        return (node,) if read is None else (*self.rests_on(read), node)


NETWORKS = {
    network.method: network
    for network in (
        Network(
            "direct", "Direct", "direct", (_VALUE, _DIRECT), Estimate(_DIRECT),
            _DIRECT_MOMENTS,
        ),
        Network("vtd", "VTD", "VTD", (_VALUE, _MOMENT), Estimate(_MOMENT, _VALUE)),
        Network(
            "centred", "Centred", "centred", (_VALUE, _MEAN, _CENTRED), Estimate(_CENTRED),
            _CENTRED_MOMENTS,
        ),
    )
}  # fmt: skip
DEFAULT = "direct"
# of two returns, beside a network of one of the methods for each; see :mod:`retvar.online.several`
COVARIANCE = Network("covariance", "", "covariance", (_COVARIANCE,), Estimate(_COVARIANCE))
ESTIMATES = tuple(  # of all networks: the prediction of each node, then what is made of it
    estimate
    for node in NODES
    if node is not _COVARIANCE
    for estimate in dict.fromkeys(
        [Estimate(node), *(n.variance for n in NETWORKS.values() if n.variance.node is node)]
    )
)


def rests_on(row: int) -> list[int]:
    """Numbers of the estimates that one of ``ESTIMATES`` is made of, directly or not.

    >>> vtd = ESTIMATES.index(NETWORKS["vtd"].variance)
    >>> [ESTIMATES[row].node.name for row in rests_on(vtd)]
    ['value', 'second_moment']
    """
    node = ESTIMATES[row].node
    owners = (n for n in NETWORKS.values() if node in n.up_to(n.highest_order).nodes)
    network = next(owners)
    return [ESTIMATES.index(Estimate(each)) for each in network.rests_on(node)]


def network_of(learner: Any) -> Network:
    """The network of a learner, with nodes for the moments up to its order.

    >>> import retvar as rv
    >>> network_of(rv.VTD(alpha=0.1)).label
    'VTD'
    """
    if learner.method == COVARIANCE.method:
        return COVARIANCE
    network = NETWORKS[learner.method]
    order = getattr(learner, "order", 2)
    return network if order == 2 else network.up_to(order)


def error_names(order: int) -> tuple[str, ...]:
    """Names of the errors of learners with moments up to an order."""
    return tuple(f"{name}_rmse" for name in (PLACES[VALUE], *PLACES[VARIANCE : order + 1]))


def label_of(method: str) -> str:
    """The name of a method within a sentence; other names are returned as they are."""
    return NETWORKS[method].label if method in NETWORKS else method
