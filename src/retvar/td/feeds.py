"""What each node is fed with, compiled: the functions of :mod:`retvar.networks`, over lanes.

A lane is one learner among several that see the same transitions. `readings` holds what the nodes
have said about this transition: [place, what, lane].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy import uintp as u

from retvar import networks, rules
from retvar.jit import callable_from_compiled, inlined, switch
from retvar.networks import MEAN, NODES, PLACES, VALUE, Reading, Readings

__all__ = ["AFTER", "ERROR", "NOW", "UPDATED", "discount_of", "feed_replicates", "reward_of"]

NOW, AFTER, ERROR, UPDATED = range(4)  # of readings; the fields of networks.Reading

callable_from_compiled(*(getattr(rules, name) for name in rules.__all__))


@inlined
def reading(readings, place, lane):
    """What the node at a place says in one lane."""
    return Reading(
        readings[u(place), NOW, u(lane)], readings[u(place), AFTER, u(lane)],
        readings[u(place), ERROR, u(lane)], readings[u(place), UPDATED, u(lane)],
    )  # fmt: skip


def _in_replicates(node: networks.Node) -> Any:
    """A function that writes the reward of a node in every lane but the first."""
    reward = inlined(node.reward)

    @inlined
    def write(x, readings, fed):
        for lane in range(1, fed.size):
            read = Readings(reading(readings, VALUE, lane), reading(readings, MEAN, lane))
            fed[u(lane)] = reward(x, read)

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
feed_replicates = _by_place(_in_replicates)  #: (place, code, x, readings, fed)
