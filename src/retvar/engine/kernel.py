"""The compiled simulation: a random walk through the MDP, from which all lanes of a block learn.

:func:`kernel_of` makes the loop for a :class:`retvar.engine.shapes.Shape`. At each step it draws an
edge, lets every lane learn from it (:func:`learning_lanes`: the network of TD nodes of the paper's
first figure) and records what is wanted (:mod:`retvar.engine.recorder`).
"""

from __future__ import annotations

import functools
import types
from typing import Any, NamedTuple

from numpy import uintp as u

from retvar import networks
from retvar.engine import lane_nodes, recorder, shapes, streams
from retvar.engine.lane_nodes import (
    MANY,
    Here,
    beginning,
    clearing,
    fading,
    fused_node,
    looking_up,
    spread_node,
    transition_of,
    visiting,
)  # fmt: skip
from retvar.engine.recorder import recorder_of
from retvar.engine.shapes import DENSE, SPREAD, Shape
from retvar.engine.streams import START, edge, reward_of, start
from retvar.jit import compiled, in_step, in_turn, part, wide_noalias
from retvar.networks import Readings
from retvar.online import memory_layout
from retvar.random import U, keys
from retvar.td import feeds, steps
from retvar.td.feeds import NOTHING, telling

__all__ = ["Task", "kernel_of"]

STOP_CHECK_EVERY = 4_096  # steps, a power of 2


class Task(NamedTuple):
    """Which runs to simulate, and how to tell how far it is."""

    first_run: Any
    runs: Any
    stop: Any  #: not 0: stop
    ticks: Any  #: [0]: number of finished runs


def chain(shape: Shape, network: tuple[int, ...]) -> Any:
    """An inlined function: the nodes of a network in turn; each hears what those before it say."""
    number, spec, MORE = network[0], shape.nodes[network[0]].node, len(network) > 1
    reward, discount = part(spec.reward), part(spec.discount)
    td_node, tell = fused_node(shape.update(number)), telling(spec.place)
    others: Any = chain(shape, network[1:]) if MORE else None

    @part
    def network_of_lane(nodes, here, x, said, c, v):
        fed = reward(x, Readings(*said))
        reading = td_node(nodes[number], here, fed, discount(x), c, v)
        if MORE:
            others(nodes, here, x, tell(said, reading), c, v)

    return network_of_lane


def learning_lanes(shape: Shape) -> Any:
    """An inlined function: all lanes learn from a transition, one after another."""
    value, SHARED = shape.nodes[0].node, shape.shared
    GROUPED, WIDTH = shape.form == DENSE, shape.width
    reward, discount = part(value.reward), part(value.discount)
    td_node, tell, transition = (
        fused_node(shape.update(0)), telling(value.place), transition_of(shape.own),
    )  # fmt: skip
    network = in_turn([chain(shape, network[1:]) for network in shape.networks])
    updates = [shape.update(k) for k in range(len(shape.nodes))]
    visit, look_up = (in_step([make(each) for each in updates]) for make in (visiting, looking_up))

    @part
    def value_node(nodes, here, x, c, v):
        fed = reward(x, Readings(*NOTHING))
        return tell(NOTHING, td_node(nodes[0], here, fed, discount(x), c, v))

    @part
    def learn_one(nodes, here, discounts, c, v):
        x = transition(here, discounts, c * WIDTH + v)
        network(nodes, here, x, value_node(nodes, here, x, c, v), c, v)

    @part
    def learn(nodes, here, discounts, value_discounts, share, lanes):
        look_up(nodes, here)
        visit(nodes, here)
        if GROUPED:
            for c in range(lanes // WIDTH):
                for v in range(WIDTH):
                    learn_one(nodes, here, discounts, c, v)
        elif SHARED:
            said = value_node(nodes, here, transition(here, discounts, 0), 0, 0)
            for lane in range(lanes):
                network(nodes, here, transition(here, discounts, lane), said, 0, lane)
        else:
            for lane in range(lanes):
                learn_one(nodes, here, discounts, 0, lane)

    return learn


def learning_nodes(shape: Shape) -> Any:
    """An inlined function: all lanes learn from a transition, node by node."""
    value_nodes = spread_node(shape, 0, ())
    others = in_turn([
        spread_node(shape, network[k], network[:k])
        for network in shape.networks
        for k in range(1, len(network))
    ])  # fmt: skip

    @part
    def learn(nodes, here, discounts, value_discounts, share, lanes):
        value_nodes(nodes, here, value_discounts, share)
        others(nodes, here, discounts, share)

    return learn


def drawing(shape: Shape) -> Any:
    """An inlined function: the transition of step t from state s."""
    follow, see = following(shape), seeing(shape)

    @part
    def draw(a, b, t, s, stream):
        e = edge(a, b, t, s, stream)
        reward, ratio = follow(a, b, t, e, stream)
        return see(s, stream.next_state[u(e)], e, reward, ratio)

    return draw


def following(shape: Shape) -> Any:
    """An inlined function: the reward of step t along edge e, and ρ."""
    NOISY, WEIGHTED = shape.noisy, shape.weighted

    @part
    def follow(a, b, t, e, stream):
        reward = reward_of(a, b, t, e, stream) if NOISY else stream.reward[u(e)]
        ratio = stream.rho[u(e)] if WEIGHTED else 1.0
        return reward, ratio

    return follow


def seeing(shape: Shape) -> Any:
    """An inlined function: a transition as the nodes see it."""
    WEIGHTED, OFF_POLICY = shape.weighted, shape.off_policy

    @part
    def see(s, s2, e, reward, rho):
        ratio = rho if WEIGHTED else 1.0
        eta, rho_bar = (ratio, 1.0) if OFF_POLICY else (1.0, ratio)
        return Here(s, s2, e, reward, ratio, eta, rho_bar)

    return see


_LATER: Any = None  # functions of a shape
begin_nodes = clear = fade = learn = draw = begin = leave = change = moment = record_point = _LATER


def run_block(stream, task, nodes, share, discounts, value_discounts, wanted, scratch, batch):
    """Simulate some runs; False: stopped. :func:`kernel_of` gives it the functions of a shape."""
    wide_noalias()
    n, lanes, points = stream.first.size, scratch.found.shape[1], wanted.points
    for r in range(task.runs):
        a, b = keys(stream.key[0], task.first_run + r)
        begin_nodes(nodes, r)
        begin(nodes, share, wanted, scratch, batch, r)
        s = start(a, b, START, stream)
        t = clock = 0
        for point in range(points.size):
            while clock < points[point]:
                if t & (STOP_CHECK_EVERY - 1) == 0:
                    task.ticks[0] = r + clock / points[-1]
                    if task.stop[0] != 0:
                        return False
                if t & (MANY - 1) == 0:
                    fade(nodes)
                here = draw(a, b, t, s, stream)
                leave(nodes, wanted, scratch, batch, r, s, clock)
                learn(nodes, here, discounts, value_discounts, share, lanes)
                change(nodes, share, wanted, scratch, batch, r, s)
                s = here.s2
                ended = s == n
                if ended:
                    s = start(a, b, U(4) * U(t) + U(3), stream)
                    clear(nodes)
                t += 1
                if wanted.by_step or ended:
                    clock += 1
                    moment(nodes, share, wanted, scratch, batch, r, clock)
            record_point(nodes, share, wanted, scratch, batch, r, point, clock)
    return True


@functools.cache
def kernel_of(shape: Shape) -> Any:
    """Return the loop for learners of one shape; compiled at its first call."""
    updates = [shape.update(number) for number in range(len(shape.nodes))]
    begin_nodes, clear, fade = (
        in_step([make(update) for update in updates]) for make in (beginning, clearing, fading)
    )
    learn = learning_nodes(shape) if shape.form == SPREAD else learning_lanes(shape)
    begin, leave, change, moment, record_point = recorder_of(shape)
    made = {
        "begin_nodes": begin_nodes, "clear": clear, "fade": fade, "learn": learn,
        "draw": drawing(shape), "begin": begin, "leave": leave, "change": change,
        "moment": moment, "record_point": record_point,
    }  # fmt: skip
    # As globals: numba's cache takes functions in a closure for new ones in each process.
    function = types.FunctionType(run_block.__code__, globals() | made, "run_block")
    function.__qualname__, function.__module__ = "run_block", __name__
    modules = (streams, shapes, lane_nodes, recorder, memory_layout, networks, feeds, steps)
    sources = [str(module.__file__) for module in modules]
    return compiled(function, *sources, key=repr(shape), nogil=True, _nrt=False)
