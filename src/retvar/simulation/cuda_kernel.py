"""The driver of a simulation on a GPU: a thread has one run, and a few lanes of a block.

A thread walks through the MDP and lets its lanes learn with the functions of the CPU
(:func:`retvar.simulation.kernel.functions_of`): the same nodes, rules and order of sums, hence the
same bits. Weights of tables without traces are in shared memory, a column for each thread, or in
global memory if they are many; those of up to FEW weights with features or traces are in memory of
the thread's own. Threads side by side have the lanes of one run: they visit the same states.
"""

from __future__ import annotations

import functools
import types
from typing import Any, NamedTuple

import numpy as np
from numba import cuda
from numpy import uintp as u

from retvar.simulation import cuda_device
from retvar.simulation.blocks import Recording, Shape
from retvar.simulation.kernel import LOOK_EVERY, Given, functions_of
from retvar.simulation.record import Batch, Scratch, Wanted
from retvar.simulation.streams import START, edge, start
from retvar.td.jit import part
from retvar.td.nodes import NONE, Block
from retvar.td.random import U, keys
from retvar.td.step_sizes import averages, counts_visits, depends_on_errors

SHARED_BYTES = 48 * 1024  # static shared memory of a thread block
THREADS = 128  # of a block, at most
WARP = 32
i8, f8 = np.int64, np.float64


class Plan(NamedTuple):
    """What a kernel for a GPU is made for."""

    shape: Shape  #: with `lanes` of a thread
    lanes: int
    threads: int  #: of a block
    rows: int  #: of weights in shared memory; 0: they are in global memory, or the thread's own
    sizes: tuple[int, ...]  #: numbers of weights of the nodes if they are the thread's own
    by_step: bool
    window: bool
    frozen: bool  #: compare with the variance for the frozen value
    rmse: bool


class Loaded(NamedTuple):
    """What nodes are given on a GPU."""

    given: Given
    q: Any
    kappa: Any
    phi: Any
    powers: Any


class Launch(NamedTuple):
    """Runs of a launch, and memory of its threads, whose number is the last axis."""

    first_run: Any
    runs: Any
    parts: Any  #: threads of a run
    home: Any  #: weights in global memory [weight, field, lane, thread]
    used: Any  #: [state, node, lane, thread]
    previous: Any  #: [slot, state, lane, thread]
    counted: Any  #: [state, thread]


def fields_of(shape: Shape) -> dict[tuple[str, int], int]:
    """Numbers of what each weight of a node has, by name and node."""
    found: list[tuple[str, int]] = []
    for k, spec in enumerate(shape.specs):
        kind, names = spec.kind if spec.learns else -1, ["w"]
        names += ["held"] if averages(kind) else []
        names += ["first", "second"] if depends_on_errors(kind) else []
        names += ["taken"] if depends_on_errors(kind) and spec.steps else []
        names += ["visits", "rates"] if counts_visits(kind) else []
        found += [(name, k) for name in names]
    return {field: number for number, field in enumerate(found)}


def plan_of(shape: Shape, sizes: list[int], count: int, rec: Recording) -> Plan:
    """The plan of `count` lanes whose nodes have so many weights."""
    each = next((n for n in (4, 3, 2) if -(-count // n) * n <= 1.1 * count), 2 - count % 2)
    specs = tuple(spec._replace(alone=each == 1, tabled=True) for spec in shape.specs)
    shape, threads, rows = shape._replace(specs=specs), THREADS, 0
    if shape.local:
        rows = rounded(sizes[0] + 1)
        thread = 8 * rows * len(fields_of(shape)) * each
        while threads > WARP and thread * threads > SHARED_BYTES:
            threads //= 2
        if thread * threads > SHARED_BYTES:
            threads, rows = THREADS, 0
    if cuda_device.SIMULATED:
        threads = 2
    own = () if shape.local else tuple(sizes)
    window = rec.window > 0
    frozen = window and not shape.specs[0].learns
    return Plan(
        shape, each, threads, rows, own, rec.by_step, window, frozen, rec.shares.size > 0
    )  # fmt: skip


def rounded(rows: int) -> int:
    """One number of rows for several, so that kernels serve them all.

    >>> [rounded(n) for n in (5, 8, 9, 40)]
    [5, 8, 10, 40]
    """
    step = 1 if rows <= 8 else 2 ** max(1, rows.bit_length() - 3)
    return -(-rows // step) * step


# ---------------------------------------------------------------------- what a thread sees


def joined(makers: list[Any]) -> Any:
    """An inlined function that puts the tuples of some functions together."""
    if len(makers) == 1:
        return makers[0]
    first, others = makers[0], joined(makers[1:])
    return part(lambda *args: first(*args) + others(*args))


@part
def absent(*args):
    """Stands for what a node does not need."""
    return (None,)


def of_weights(plan: Plan, name: str) -> Any:
    """An inlined function: views of what the weights of each node have, [weight, lane]."""
    fields, OWN = fields_of(plan.shape), len(plan.sizes) > 0
    FLAT = name in ("visits", "rates")

    def of_node(k: int) -> Any:
        F, SIZE = fields.get((name, k), -1), plan.sizes[k] + 1 if OWN else 0
        LANES = 1 if plan.shape.specs[k].common else plan.lanes

        def own(cells, at):
            return (cells[F, :SIZE, :LANES],)

        def own_flat(cells, at):
            return (cells[F, :SIZE, 0],)

        def column(cells, at):
            return (cells[:, F, :LANES, at],)

        def flat_column(cells, at):
            return (cells[:, F, 0, at],)

        if F < 0:
            return absent
        if OWN:
            return part(own_flat if FLAT else own)
        return part(flat_column if FLAT else column)

    return joined([of_node(k) for k in range(len(plan.shape.specs))])


def of_nodes(plan: Plan, there: Any, make: Any) -> Any:
    """An inlined function: what `make` gives for each node that has it."""
    specs = plan.shape.specs
    return joined([part(make(k)) if there(specs[k]) else absent for k in range(len(specs))])


def making_block(plan: Plan) -> Any:
    """An inlined function: the block of a thread's lanes."""
    w, held, first, second, taken, visits, rates = (
        of_weights(plan, name)
        for name in ("w", "held", "first", "second", "taken", "visits", "rates")
    )
    SIZES, LANES, NODES = plan.sizes, plan.lanes, len(plan.shape.specs)

    def trace(k: int) -> Any:
        SIZE = SIZES[k] + 1
        return lambda lines: (lines[k, :, :SIZE],)

    def steps(k: int) -> Any:
        COUNT = 1 if plan.shape.specs[k].common else LANES
        return lambda used, i: (used[:, k, :COUNT, i],)

    def one(k: int) -> Any:
        return lambda x: (x[k],)

    traces = of_nodes(plan, lambda s: s.trace != NONE and s.learns, trace)
    used = of_nodes(plan, lambda s: s.steps, steps)
    features = of_nodes(plan, lambda s: s.size > 0 and s.features > 0, one)
    powers = of_nodes(plan, lambda s: s.learns and counts_visits(s.kind), one)
    nothing = joined([absent] * NODES)

    @part
    def make(cells, lines, numbers, last, loaded, launch, at, a, i):
        for k in range(NODES):
            for lane in range(LANES):
                numbers[0, k, lane] = loaded.given.p[k, a + lane]
                numbers[1, k, lane] = loaded.q[k, a + lane]
        none = nothing()
        return Block(
            w(cells, at), held(cells, at), first(cells, at), second(cells, at), taken(cells, at),
            used(launch.used, i), traces(lines), none, visits(cells, at), rates(cells, at), none,
            features(loaded.phi), none, none, None, numbers[0], numbers[1], numbers[2], None, None,
            None, None, None, None, loaded.kappa, last, None, powers(loaded.powers),
        )  # fmt: skip

    return make


def viewing(plan: Plan) -> tuple[Any, Any, Any, Any]:
    """Inlined functions: the thread's view of settings, records, results and scratch."""
    LANES, FROZEN, RMSE = plan.lanes, plan.frozen, plan.rmse
    slots = len(plan.shape.rows)
    ERRORS, STEPS = slots if plan.rmse else 0, slots if plan.shape.specs[0].steps else 0
    SUMS, CHANGES = slots if plan.window else 0, slots if plan.shape.change else 0

    def number(k: int) -> Any:
        COMMON = plan.shape.specs[k].common
        return lambda which, a: (which[k][:1] if COMMON else which[k][a : a + LANES],)

    numbers = of_nodes(plan, lambda s: True, number)

    @part
    def given(x, a):
        return Given(x.gammas, x.lams, x.p[:, a : a + LANES], x.starts, numbers(x.which, a))

    @part
    def wanted(x, a):
        frozen, shares = x.frozen[:, :, a : a + LANES], x.shares
        return Wanted(
            x.points, x.by_step, x.states, shares if RMSE else shares[:0], x.since, x.truth,
            frozen if FROZEN else frozen[:0], x.rows,
        )  # fmt: skip

    @part
    def batch(x, a):
        b = a + LANES
        return Batch(
            x.estimates[:, :, :, :, a:b], x.rmse[:, :, :ERRORS, a:b], x.steps[:, :, :STEPS, :, a:b],
            x.sums[:, :SUMS, :, a:b], x.squares[:, :SUMS, :, a:b],
            x.frozen_squares[:, :SUMS, :, a:b], x.changes[:, :CHANGES, :, a:b],
            x.diverged_at[:, :, a:b],
        )  # fmt: skip

    @part
    def scratch(found, launch, i):
        return Scratch(found, launch.previous[:, :, :, i], launch.counted[:, i])

    return given, wanted, batch, scratch


# ---------------------------------------------------------------------- the kernel


def run_threads(stream, launch, loaded, wanted, batch):
    """Simulate one run in some lanes. :func:`kernel_of` gives it the functions of a plan."""
    i = i8(cuda.grid(1))
    r = i // launch.parts
    a = (i - r * launch.parts) * LANES
    cells = cuda.local.array(CELLS, f8)
    rows = cuda.shared.array(ROWS, f8)
    lines = cuda.local.array(LINES, f8)
    numbers = cuda.local.array(NUMBERS, f8)
    last = cuda.local.array(LAST, f8)
    found = cuda.local.array(FOUND, f8)
    if r < launch.runs:
        at = i8(cuda.threadIdx.x) if IN_SHARED else i
        m, given = begin_thread(cells, rows, lines, numbers, last, loaded, launch, at, a, i)
        wanted, batch = view_wanted(wanted, a), view_batch(batch, a)
        scratch = view_scratch(found, launch, i)
        n, points = stream.first.size, wanted.points
        key, other = keys(stream.key[0], launch.first_run + r)
        begin_run(m, given, r)
        begin(m, wanted, scratch, batch, r)
        s = i8(start(key, other, START, stream))
        t = clock = i8(0)
        for point in range(points.size):
            while clock < points[point]:
                if t & (LOOK_EVERY - 1) == 0:
                    look(m)
                x = step_along(key, other, t, s, edge(key, other, t, s, stream), stream, given)
                if WINDOW and clock > wanted.since:
                    leave(m, wanted, scratch, batch, r, s, clock)
                learn(m, x)
                change(m, wanted, scratch, batch, r, s)
                s = i8(x.s2)
                ended = s == n
                if ended:
                    s = i8(start(key, other, U(4) * U(t) + U(3), stream))
                    clear(m, u(0))
                t += 1
                if BY_STEP or ended:
                    clock += 1
                    if WINDOW:
                        moment(m, wanted, scratch, batch, r, clock)
            look(m)
            record_point(m, wanted, scratch, batch, r, point, clock)
        finish(wanted, scratch, batch, r)


_LATER: Any = None  # functions and numbers of a plan
begin_thread = view_wanted = view_batch = view_scratch = begin_run = step_along = look = _LATER
learn = clear = begin = leave = change = moment = record_point = finish = _LATER
LANES = CELLS = ROWS = LINES = NUMBERS = LAST = FOUND = IN_SHARED = WINDOW = BY_STEP = _LATER


def beginning(plan: Plan, view_given: Any) -> Any:
    """An inlined function: the block of a thread, weights and traces 0, and what it is given."""
    make, IN_SHARED, OWN = making_block(plan), plan.rows > 0, len(plan.sizes) > 0

    @part
    def begin_thread(cells, rows, lines, numbers, last, loaded, launch, at, a, i):
        home = rows if IN_SHARED else launch.home
        if OWN:
            cells[:] = 0.0
            lines[:] = 0.0
        else:
            home[:, :, :, at] = 0.0
        m = make(cells if OWN else home, lines, numbers, last, loaded, launch, at, a, i)
        return m, view_given(loaded.given, a)

    return begin_thread


@functools.cache
def kernel_of(plan: Plan) -> Any:
    """The kernel of a plan; compiled at its first launch."""
    return cuda_device.kernel(function_of(plan))


def function_of(plan: Plan) -> Any:
    """The function that a kernel is compiled of."""
    given, wanted, batch, scratch = viewing(plan)
    nodes, fields = len(plan.shape.specs), len(fields_of(plan.shape))
    size = max(plan.sizes, default=0) + 1
    made = {
        "begin_thread": beginning(plan, given), "view_wanted": wanted, "view_batch": batch,
        "view_scratch": scratch, **functions_of(plan.shape), "LANES": plan.lanes,
        "CELLS": (fields if plan.sizes else 1, size, plan.lanes), "LINES": (nodes, 1, size),
        "ROWS": (plan.rows, fields, plan.lanes, plan.threads) if plan.rows else (1, 1, 1, 1),
        "NUMBERS": (3, nodes, plan.lanes), "LAST": (1, nodes),
        "FOUND": (len(plan.shape.rows), plan.lanes), "IN_SHARED": plan.rows > 0,
        "WINDOW": plan.window, "BY_STEP": plan.by_step,
    }  # fmt: skip
    copy = types.FunctionType(run_threads.__code__, globals() | made, "run_threads")
    copy.__module__ = __name__
    return copy
