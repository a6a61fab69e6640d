"""What a kernel is specialised for: the nodes of a block's lanes, their rules, what is recorded."""

from __future__ import annotations

from typing import Any, NamedTuple

from retvar.networks import NODES, Node
from retvar.td.steps import averages

__all__ = ["DENSE", "LOCAL", "MOST_WEIGHTS", "SPREAD", "WIDTH", "NodeShape", "Shape", "Update"]

WIDTH = 8  # lanes in a group, at most: the doubles in the widest registers
MOST_WEIGHTS = 16  # of a node in the dense form
LOCAL, DENSE, SPREAD = range(3)  # forms of the update; see retvar.engine.lane_nodes


class NodeShape(NamedTuple):
    """Properties of one node of all lanes."""

    code: int  #: its number in ``NODES``
    kind: int  #: step-size rule
    learns: bool  #: False: a value held fixed
    traced: bool
    size: int  #: number of weights in the dense form, otherwise 0
    tabular: bool  #: a weight for each state

    @property
    def node(self) -> Node:
        """The node of the registry.

        >>> NodeShape(0, 0, True, False, 0, True).node.name
        'value'
        """
        return NODES[self.code]


class Update(NamedTuple):
    """What the update of a node depends on; nodes with equal ones share compiled code."""

    form: int
    width: int
    kind: int
    learns: bool
    traced: bool
    size: int
    tabular: bool
    by_rho: bool  #: whether it is weighted by ρ; otherwise by ρ̄
    checked: bool  #: whether its largest weight is noted
    steps: bool  #: whether its steps are noted
    lanes: int = 0  #: see :class:`Shape`
    endless: bool = False

    @property
    def reads(self) -> tuple[int, int, int, bool, bool]:
        """What predictions depend on."""
        return self.form, self.size, self.width, self.tabular, self.endless

    @property
    def carried(self) -> bool:
        """Whether predictions of the state being left are carried in registers from the last step.

        Only on a GPU, without traces: there the next state's are those of the state left next.
        """
        return self.lanes > 0 and self.form == LOCAL and not (self.learns and averages(self.kind))


class Shape(NamedTuple):
    """Properties that a kernel is specialised for."""

    networks: tuple[tuple[int, ...], ...]  #: of each learner of a lane, numbers of its `nodes`
    nodes: tuple[NodeShape, ...]  #: the value node first, which all learners share
    form: int  #: LOCAL, DENSE or SPREAD
    width: int  #: lanes in a group; lanes are padded to a multiple of it
    off_policy: bool  #: estimand: the ρ-weighted return
    weighted: bool  #: whether ratios differ from 1
    noisy: bool  #: whether rewards are random
    shared: bool  #: local only: all lanes have the same value node
    own: bool  #: whether γ and λ differ between lanes
    safe: bool  #: proved that no weight can exceed LIMIT, so it is not checked
    change: bool  #: record the mean absolute change of each estimate
    steps: bool  #: record step sizes
    lanes: int = 0  #: number of lanes if it is a literal too, as on a GPU; they have no groups then
    endless: bool = False  #: on a GPU: whether no episode ends

    @property
    def learns_value(self) -> bool:
        """Whether the value is learned."""
        return self.nodes[0].learns

    def update(self, number: int) -> Update:
        """What the update of a node depends on."""
        spec = self.nodes[number]
        checked = spec.learns and not self.safe
        lanes = min(self.lanes, 1) if self.shared and number == 0 else self.lanes
        checks = spec.node.by_rho, checked, self.steps
        return Update(self.form, self.width, *spec[1:], *checks, lanes, self.endless)

    def number_of(self, node: Any) -> int:
        """Number of a node of the registry among `nodes`; −1: none."""
        codes = [each.code for each in self.nodes]
        return -1 if node is None or node.code not in codes else codes.index(node.code)

    def is_reread(self, number: int) -> bool:
        """Whether a node reads the prediction of this one after its update."""
        place = self.nodes[number].node.place
        return any(
            number in network and self.nodes[k].node.reads_updated
            and self.nodes[k].node.reads == place
            for network in self.networks
            for k in network
        )  # fmt: skip
