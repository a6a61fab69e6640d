"""The driver of a simulation: a random walk through the MDP, from which all lanes of a block learn.

At each step :func:`run_block` draws an edge, makes a ``Step`` of it, lets every lane learn from it
(:func:`retvar.td.nodes.learning`), and records what is wanted (:mod:`retvar.simulation.record`).
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from numpy import uintp as u

from retvar.simulation import record, streams
from retvar.simulation.blocks import Shape
from retvar.simulation.record import recorder_of
from retvar.simulation.streams import START, edge, reward_of, start
from retvar.td.jit import called_part, in_turn, part, specialised, wide_noalias
from retvar.td.networks import Transition
from retvar.td.nodes import LIMIT, Spec, Step, learning
from retvar.td.random import U, keys
from retvar.td.step_sizes import averages, counts_visits, depends_on_errors, is_bounded

OFTEN = 64  # steps, a power of 2: look whether to stop, and for weights that have diverged
NAN = math.nan


class Task(NamedTuple):
    """Which runs to simulate, and how to tell how far it is."""

    first_run: Any
    runs: Any
    stop: Any  #: not 0: stop
    ticks: Any  #: [0]: number of finished runs


class Given(NamedTuple):
    """What lanes are given, which learning does not change."""

    gammas: Any  #: γ′ of each edge
    lams: Any  #: λ′
    p: Any  #: [node, lane] settings of the step-size rule at the start
    starts: Any  #: of each node: initial weights [start, run or one for all, weight] …
    which: Any  #: … and the number of the start of each lane


def stepping(shape: Shape) -> Any:
    """An inlined function: step t along edge e, as nodes see it."""
    OFF_POLICY, WEIGHTED, NOISY = shape.off_policy, shape.weighted, shape.noisy

    @part
    def step_along(a, b, t, s, e, stream, given):
        reward = reward_of(a, b, t, e, stream) if NOISY else stream.reward[u(e)]
        ratio = stream.rho[u(e)] if WEIGHTED else 1.0
        eta, rho_bar = (ratio, 1.0) if OFF_POLICY else (1.0, ratio)
        x = Transition(reward, given.gammas[u(e)], given.lams[u(e)], eta)
        s2 = stream.next_state[u(e)]
        return Step(s, s2, x, ratio, rho_bar, u(0), s == s2, None)

    return step_along


def beginning(specs: tuple[Spec, ...], clear: Any) -> Any:
    """An inlined function that sets a block to the start of a run."""

    @functools.cache
    def of_node(spec: Spec) -> Any:
        kind, STEPS = spec.kind, spec.steps
        AVERAGES, ERRORS = averages(kind), depends_on_errors(kind)
        COUNTS, BOUNDED = counts_visits(kind), is_bounded(kind)

        @part
        def begin(m, starts, which, p, r):
            at = r if starts.shape[1] > 1 else 0
            for i in range(starts.shape[2]):
                for lane in range(which.size):
                    w = starts[which[lane], at, i]
                    m.w[i, lane] = w
                    if AVERAGES:
                        m.held[i, lane] = w
                    if ERRORS:
                        m.first[i, lane] = m.second[i, lane] = 0.0
                    if ERRORS and STEPS:
                        m.taken[i, lane] = NAN
                if COUNTS:
                    m.visits[i], m.rates[i] = 0.0, 1.0
            if BOUNDED:
                for lane in range(which.size):
                    m.p[lane] = p[lane]
            if STEPS:
                m.used[:] = NAN

        return begin

    begin_nodes = in_turn([of_node(spec.shared) for spec in specs], 4)

    @part
    def begin_run(m, given, r):
        begin_nodes(m, given.starts, given.which, given.p, r)
        clear(m, u(0))

    return begin_run


@called_part
def lose(w):
    """Weights beyond LIMIT have diverged: they become NaN, which they then stay."""
    for i in range(w.shape[0]):
        for lane in range(w.shape[1]):
            w[u(i), u(lane)] = w[u(i), u(lane)] if abs(w[u(i), u(lane)]) <= LIMIT else NAN


def looking(specs: tuple[Spec, ...]) -> Any:
    """An inlined function that looks for weights that have diverged."""

    @functools.cache
    def of_node(AVERAGES: bool) -> Any:
        @part
        def look(m):
            lose(m.held if AVERAGES else m.w)

        return look

    return in_turn([of_node(averages(s.kind)) if s.learns else None for s in specs], 1)


@part
def period(states):
    """Steps between looks for diverged weights: they must not cost more than the learning."""
    every = OFTEN
    while every < 4 * states:
        every *= 2
    return every


_LATER: Any = None  # functions of a shape
learn = clear = look = begin_run = step_along = _LATER
begin = leave = change = moment = note = record_point = finish = _LATER
WINDOW = CHANGE = LOCAL = _LATER


def run_block(stream, task, m, given, book, out):
    """Simulate some runs; False: stopped. :func:`kernel_of` gives it the functions of a shape."""
    wide_noalias()
    n, points = stream.first.size, book.points
    every = period(n)
    for r in range(task.runs):
        a, b = keys(stream.key[0], task.first_run + r)
        begin_run(m, given, r)
        begin(m, book, out, r)
        s = start(a, b, START, stream)
        x = step_along(a, b, 0, s, edge(a, b, 0, s, stream), stream, given)
        t = clock = 0
        for point in range(points.size):
            while clock < points[point]:
                if t & (every - 1) == 0:
                    look(m)
                if t & (OFTEN - 1) == 0:
                    task.ticks[0] = r + clock / points[-1]
                    if task.stop[0] != 0:
                        return False
                s, ended = x.s2, x.s2 == n
                if ended:
                    s = start(a, b, U(4) * U(t) + U(3), stream)
                t += 1  # the next step is drawn while one is learned
                ahead = step_along(a, b, t, s, edge(a, b, t, s, stream), stream, given)
                if WINDOW and LOCAL:
                    leave(m, book, out, r, x.s, clock)
                learn(m, x)
                if CHANGE:
                    change(m, book, out, r, x.s)
                if ended:
                    clear(m, u(0))
                x = ahead
                if book.by_step or ended:
                    clock += 1
                    if WINDOW:
                        moment(m, book, out, r, clock)
            look(m)
            note(m, out.diverged_at[r], clock)
            record_point(m, book, out, r, point, True)
        finish(book, out, r)
    return True


def functions_of(shape: Shape) -> dict[str, Any]:
    """The functions of a shape by name, for the drivers on CPU and GPU."""
    learn, clear = learning(shape.specs)
    return {
        "learn": learn, "clear": clear, "look": looking(shape.specs),
        "begin_run": beginning(shape.specs, clear), "step_along": stepping(shape),
        **recorder_of(shape),
    }  # fmt: skip


@functools.cache
def kernel_of(shape: Shape) -> Any:
    """Return the loop for learners of one shape; compiled at its first call."""
    sources = [str(module.__file__) for module in (streams, record)]
    return specialised(run_block, functions_of(shape), *sources, key=repr(shape))
