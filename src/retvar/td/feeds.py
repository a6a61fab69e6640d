"""What each node is fed with, compiled: the functions of :mod:`retvar.networks`, over lanes.

A lane is one learner among several that see the same transitions; :class:`Said` is what their
nodes have said about this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy import uintp as u

from retvar import networks
from retvar.jit import inlined, switch
from retvar.networks import MEAN, NODES, PLACES, THIRD, VALUE, VARIANCE, Reading, Readings

__all__ = ["NOTHING", "Said", "discount_of", "feed_replicates", "reward_of", "telling"]


class Said(NamedTuple):
    """What the nodes say about a transition [place, lane]; separate arrays, so that loops are fast.

    See :class:`retvar.networks.Reading`.
    """

    now: Any
    after: Any
    error: Any
    updated: Any
    fed: Any  #: reward of the present node [lane]
    own: Any  #: with Averaged the TD error of the weights that learn [lane] …
    now_own: Any  #: … and their predictions
    after_own: Any


@inlined
def reading(said, place, lane):
    """What the node at a place says in one lane."""
    return Reading(
        said.now[u(place), u(lane)], said.after[u(place), u(lane)],
        said.error[u(place), u(lane)], said.updated[u(place), u(lane)],
    )  # fmt: skip


def _in_replicates(node: networks.Node) -> Any:
    """A function that writes the reward of a node in every lane but the first."""
    reward, place = inlined(node.reward), node.place

    @inlined
    def write(x, said):
        for lane in range(1, said.fed.size):
            third = reading(said, THIRD if place > THIRD else VALUE, lane)  # if there is one
            read = Readings(
                reading(said, VALUE, lane), reading(said, MEAN, lane),
                reading(said, VARIANCE, lane), third,
            )  # fmt: skip
            said.fed[u(lane)] = reward(x, read)

    return write


def _by_place(function: Callable[[networks.Node], Any]) -> Any:
    """A function of a place, a code and arguments, made of one function for each node."""
    at = [[node for node in NODES if node.place == place] for place in range(len(PLACES))]
    return switch(
        range(len(PLACES)),
        [switch([node.code for node in nodes], [function(n) for n in nodes]) for nodes in at],
    )


reward_of = _by_place(lambda node: inlined(node.reward))  #: (place, code, x, read)
discount_of = _by_place(lambda node: inlined(node.discount))  #: (place, code, x)
feed_replicates = _by_place(_in_replicates)  #: (place, code, x, said)

NOTHING = (Reading(0.0, 0.0, 0.0, 0.0),) * len(Readings._fields)  #: what is said before any node


def telling(place: int) -> Any:
    """An inlined function of what is said and of what the node at a place says; puts it there.

    What is said is a tuple of the fields of :class:`retvar.networks.Readings`; a place that no node
    reads is left out.
    """
    after = place + 1

    def tell(said, reading):
        return said[:place] + (reading,) + said[after:]  # noqa: RUF005 (compiled)

    def ignore(said, reading):
        return said

    return inlined(tell if place < len(Readings._fields) else ignore)
