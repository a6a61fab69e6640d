"""Estimators as data: each method is a small network of TD nodes, as in the paper's first figure.

A :class:`Node` says what it is fed with: its reward, its discount, and its weight, each a function
of the transition (:class:`Transition`) and of what other nodes have said about it
(:class:`Readings`). A :class:`Network` lists the nodes of a method in the order in which they
learn, and says which estimate is made of which node. Online estimators, simulations, results,
figures and the command line read ``NETWORKS``; nothing else knows a method by name, except the
closed forms of :mod:`retvar.exact`, which state the rewards again as an independent check, and what
the paper claims about a method.

To add an estimator, add its nodes here, with rewards from :mod:`retvar.rules`, and a class to
:mod:`retvar.learners`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from retvar import rules

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


class Drawing(NamedTuple):
    """How a node appears in Figure 1."""

    symbol: str  #: its prediction
    discount: str
    takes: str = ""  #: what it takes of the node before it: its "error" or its "prediction"
    error: str = ""  #: that error
    operation: str = ""  #: what is done with it
    fed: str = ""  #: the result


class Node(NamedTuple):
    """One TD node: what it predicts, where its settings are, and what it is fed with."""

    name: str  #: what it predicts
    place: int  #: which settings and features of the learner it uses
    reward: Callable[[Transition, Readings], float]
    discount: Callable[[Transition], float]
    drawing: Drawing
    reads: int | None = None  #: place of the last node that its reward reads; see `rests_on`
    reads_updated: bool = False  #: whether it reads that prediction after the update
    by_rho: bool = False  #: whether its trace is weighted by ρ; otherwise by ρ̄

    @property
    def title(self) -> str:
        """What it predicts, in words.

        >>> NETWORKS["vtd"].nodes[-1].title
        'second moment'
        """
        return self.name.replace("_", " ")

    @property
    def code(self) -> int:
        """Its number in ``NODES``, by which compiled code knows it.

        >>> NETWORKS["direct"].nodes[0].code
        0
        """
        return NODES.index(self)


_VALUE = Node("value", VALUE, reward, value_discount, Drawing("J", "γ′"), by_rho=True)
_MEAN = Node(
    "mean", MEAN, mean_reward, mean_discount,
    Drawing("g", "γ′λ′", "prediction", operation="R + γ′(1 − λ′) J(s′)"), VALUE,
)  # fmt: skip
_DIRECT = Node(
    "variance", VARIANCE, direct_reward, variance_discount,
    Drawing("V", "(γ′λ′)²", "error", "δ", "( · )²", "δ²"), VALUE,
)  # fmt: skip
_CENTRED = Node(
    "variance", VARIANCE, centred_reward, variance_discount,
    Drawing("V", "(γ′λ′)²", "error", "δᵍ", "( · )²", "(δᵍ)²"), MEAN,
)  # fmt: skip
_MOMENT = Node(
    "second_moment", VARIANCE, vtd_reward, variance_discount,
    Drawing("M", "(γ′λ′)²", "prediction", operation="(R + γ′J(s′))²\n− (γ′λ′)² J(s′)²"),
    VALUE, reads_updated=True,
)  # fmt: skip
_THIRD = Drawing("M₃", "(γ′λ′)³", "prediction", operation="ε³ + 3(γ′λ′)² ε V(s′)")
_FOURTH = Drawing(
    "M₄", "(γ′λ′)⁴", "prediction", operation="ε⁴ + 6(γ′λ′)² ε² V(s′)\n+ 4(γ′λ′)³ ε M₃(s′)"
)
_DIRECT_MOMENTS = (
    Node("third_moment", THIRD, direct_third_reward, third_moment_discount, _THIRD, VARIANCE),
    Node("fourth_moment", FOURTH, direct_fourth_reward, fourth_moment_discount, _FOURTH, THIRD),
)
_CENTRED_MOMENTS = (
    Node("third_moment", THIRD, centred_third_reward, third_moment_discount, _THIRD, VARIANCE),
    Node("fourth_moment", FOURTH, centred_fourth_reward, fourth_moment_discount, _FOURTH, THIRD),
)
NODES = (  # a number for each, in compiled code
    _VALUE, _MEAN, _DIRECT, _MOMENT, _CENTRED, *_DIRECT_MOMENTS, *_CENTRED_MOMENTS,
)  # fmt: skip


# ---------------------------------------------------------------------- networks


class Estimate(NamedTuple):
    """How an estimate is made: the prediction of a node, less the square of another's."""

    node: Node
    less_square_of: Node | None = None


class Look(NamedTuple):
    """How a method appears in figures: numbers of its colour and of its dashes, its marker."""

    colour: int
    marker: str
    dash: int
    rank: int  #: its turn in legends
    lift: float  #: see :class:`retvar.plots.style.LineStyle`


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
    look: Look
    moments: tuple[Node, ...] = ()  #: nodes of the third and fourth moment that it may have
    order: int = 2  #: of the highest moment that its nodes estimate

    def up_to(self, order: int) -> Network:
        """The network with nodes for the moments up to an order.

        >>> [node.name for node in NETWORKS["direct"].up_to(4).nodes]
        ['value', 'variance', 'third_moment', 'fourth_moment']
        """
        nodes = tuple(node for node in self.nodes if node not in self.moments)
        return self._replace(nodes=(*nodes, *self.moments[: order - 2]), order=order)

    @property
    def highest_order(self) -> int:
        """Of the highest moment that the method can estimate.

        >>> NETWORKS["centred"].highest_order, NETWORKS["vtd"].highest_order
        (4, 2)
        """
        return 2 + len(self.moments)

    @property
    def higher(self) -> tuple[str, ...]:
        """Names of what it estimates beyond the variance.

        >>> NETWORKS["direct"].up_to(4).higher
        ('third_moment', 'fourth_moment', 'skewness', 'kurtosis')
        """
        names = [node.name for node in self.nodes if node.place > VARIANCE]
        return (*names, *(SHAPES[name] for name in names))

    @property
    def place_count(self) -> int:
        """Number of places up to that of its last node; arrays have so many rows.

        >>> NETWORKS["vtd"].place_count, NETWORKS["direct"].up_to(4).place_count
        (3, 5)
        """
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
        """A node and all nodes that it is fed by, first those that learn first.

        >>> network = NETWORKS["centred"]
        >>> [node.name for node in network.rests_on(network.variance.node)]
        ['value', 'mean', 'variance']
        """
        read = None if node.reads is None else self.up_to(self.highest_order).at(node.reads)
        return (node,) if read is None else (*self.rests_on(read), node)


NETWORKS = {
    network.method: network
    for network in (
        Network(
            "direct", "Direct", "direct", (_VALUE, _DIRECT), Estimate(_DIRECT),
            Look(0, "o", 0, 1, 0.3), _DIRECT_MOMENTS,
        ),
        Network(
            "vtd", "VTD", "VTD", (_VALUE, _MOMENT), Estimate(_MOMENT, _VALUE),
            Look(4, "s", 1, 0, 0.4),
        ),
        Network(
            "centred", "Centred", "centred", (_VALUE, _MEAN, _CENTRED), Estimate(_CENTRED),
            Look(2, "^", 2, 2, 0.5), _CENTRED_MOMENTS,
        ),
    )
}  # fmt: skip
DEFAULT = "direct"
ESTIMATES = tuple(  # of all networks: the prediction of each node, then what is made of it
    estimate
    for node in NODES
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
    network = NETWORKS[learner.method]
    order = getattr(learner, "order", 2)
    return network if order == 2 else network.up_to(order)


def error_names(order: int) -> tuple[str, ...]:
    """Names of the errors of learners with moments up to an order.

    >>> error_names(3)
    ('value_rmse', 'variance_rmse', 'third_moment_rmse')
    """
    return tuple(f"{name}_rmse" for name in (PLACES[VALUE], *PLACES[VARIANCE : order + 1]))


def label_of(method: str) -> str:
    """The name of a method within a sentence; other names are returned as they are.

    >>> label_of("vtd"), label_of("mine")
    ('VTD', 'mine')
    """
    return NETWORKS[method].label if method in NETWORKS else method
