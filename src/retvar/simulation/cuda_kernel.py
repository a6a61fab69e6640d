"""The driver of a simulation on a GPU: a thread has one run, and a few lanes of a block.

A thread walks through the MDP and lets its lanes learn with the functions of the CPU
(:func:`retvar.simulation.kernel.functions_of`): the same nodes, rules and order of sums, hence the
same bits. Weights of tables without traces are in shared memory, a column for each thread, or in
global memory if they are many; those of up to FEW weights with features or traces are the thread's
own. A group of threads has the lanes of one run: they visit the same states, and each draws the
random numbers of some steps for all. The next step is drawn while one is learned.
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
from retvar.simulation.kernel import Given, functions_of, period
from retvar.simulation.record import Batch, Scratch, Wanted
from retvar.simulation.streams import START, Stream, edge, slot, start
from retvar.td.jit import part
from retvar.td.nodes import NONE, Block
from retvar.td.random import U, keys, uniform, word
from retvar.td.step_sizes import averages, counts_visits, depends_on_errors

SHARED_BYTES = 48 * 1024  # static shared memory of a thread block
PER_PROCESSOR = 224 * 1024  # shared memory of a multiprocessor
FEWEST_LANES = 400  # on a multiprocessor; with fewer, weights are in global memory
MOST_EDGES = 64  # of the stream in shared memory
THREADS = 128  # of a block, at most
WARP = 32
SPLITS = ((2, 3), (2, 4), (4, 2), (2, 2), (2, 1), (1, 1))  # threads of a group, lanes of a thread
WINDOW_SPLITS = SPLITS[2:]  # … whose sums in global memory lie side by side
i4, i8, u4, f8 = np.int32, np.int64, np.uint32, np.float64


class Plan(NamedTuple):
    """What a kernel for a GPU is made for."""

    shape: Shape
    group: int  #: threads of a group, a power of 2: lane (part·lanes + lane)·group + member
    lanes: int  #: of a thread
    threads: int  #: of a block
    rows: int  #: of weights in shared memory; 0: they are in global memory, or the thread's own
    sizes: tuple[int, ...]  #: numbers of weights of the nodes if they are the thread's own
    edges: int  #: of the stream in shared memory; 0: it is in global memory
    ends: bool  #: whether there are episodes
    by_step: bool
    window: bool
    counted: bool  #: whether moments up to which states are in its sums are in shared memory
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
    """Runs of a launch, and memory of its threads."""

    first_run: Any
    runs: Any
    parts: Any  #: groups of threads of a run
    home: Any  #: weights in global memory [block, weight, field, lane, thread of the block]
    used: Any  #: [state, node, lane, thread]
    previous: Any  #: [slot, state, lane, thread]
    counted: Any  #: [state, thread]


class At(NamedTuple):
    """The place of a thread."""

    block: Any
    thread: Any  #: of the block
    member: Any  #: of the group
    run: Any
    first: Any  #: lane


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


def plan_of(shape: Shape, sizes: list[int], count: int, rec: Recording, stream: Stream) -> Plan:
    """The plan of `count` lanes whose nodes have so many weights."""
    n, window = stream.first.size, rec.window > 0
    group, each, threads, rows = _split(count, WINDOW_SPLITS if window else SPLITS)
    if shape.local:
        threads, rows = _in_shared(len(fields_of(shape)) * each, each, sizes[0], window)
    if not rows:
        each, threads = 2 - count % 2 if count < WARP else 2, THREADS
        group = min(WARP, 1 << (-(-count // each) - 1).bit_length())
    if cuda_device.SIMULATED:
        threads = 2 * group
    specs = tuple(spec._replace(alone=each == 1, tabled=True) for spec in shape.specs)
    return Plan(
        shape=shape._replace(specs=specs), group=group, lanes=each, threads=threads, rows=rows,
        sizes=() if shape.local else tuple(sizes),
        edges=rounded(stream.reward.size) if stream.reward.size <= MOST_EDGES else 0,
        ends=int(stream.next_state.max()) == n, by_step=rec.by_step, window=window,
        counted=window and rows > 0 and int(rec.points[-1]) < 2**31,
        frozen=window and not shape.specs[0].learns, rmse=rec.shares.size > 0,
    )  # fmt: skip


def _split(count: int, splits: tuple[tuple[int, int], ...]) -> tuple[int, int, int, int]:
    """Threads of a group and lanes of a thread: the first split that leaves few lanes idle."""

    def padded(split: tuple[int, int]) -> int:
        return -(-count // (split[0] * split[1])) * split[0] * split[1]

    fitting = (split for split in splits if padded(split) <= 1.1 * count)
    return *next(fitting, min(splits, key=padded)), THREADS, 0


def _in_shared(fields: int, lanes: int, weights: int, window: bool) -> tuple[int, int]:
    """Threads of a block, and rows of weights in shared memory; 0: too few threads would fit."""
    rows, threads = rounded(weights + 1), THREADS if window else THREADS // 2
    thread = 8 * rows * fields
    while threads > WARP and thread * threads > SHARED_BYTES * 2 // 3:
        threads //= 2
    others = (16 + 4 * rows) * threads + 8 * (6 * MOST_EDGES)
    in_flight = PER_PROCESSOR // (thread * threads) * threads * lanes
    if thread * threads + others > SHARED_BYTES or in_flight < FEWEST_LANES:
        return THREADS, 0
    return threads, rows


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

        def own(cells, thread):
            return (cells[F, :SIZE, :LANES],)

        def own_flat(cells, thread):
            return (cells[F, :SIZE, 0],)

        def column(cells, thread):
            return (cells[:, F, :LANES, thread],)

        def flat_column(cells, thread):
            return (cells[:, F, 0, thread],)

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
    SIZES, LANES, GROUP, NODES = plan.sizes, plan.lanes, plan.group, len(plan.shape.specs)

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
    def make(cells, lines, numbers, last, loaded, launch, at, i):
        for k in range(NODES):
            for lane in range(LANES):
                numbers[0, k, lane] = loaded.given.p[k, at.first + lane * GROUP]
                numbers[1, k, lane] = loaded.q[k, at.first + lane * GROUP]
        none, c = nothing(), at.thread
        return Block(
            w(cells, c), held(cells, c), first(cells, c), second(cells, c), taken(cells, c),
            used(launch.used, i), traces(lines), none, visits(cells, c), rates(cells, c), none,
            features(loaded.phi), none, none, None, numbers[0], numbers[1], numbers[2], None, None,
            None, None, loaded.kappa, last, None, powers(loaded.powers),
        )  # fmt: skip

    return make


def viewing(plan: Plan) -> tuple[Any, Any, Any]:
    """Inlined functions: the thread's view of settings, records and results."""
    GROUP, SPAN, FROZEN, RMSE = plan.group, plan.lanes * plan.group, plan.frozen, plan.rmse
    slots = len(plan.shape.rows)
    ERRORS, STEPS = slots if plan.rmse else 0, slots if plan.shape.specs[0].steps else 0
    SUMS, CHANGES = slots if plan.window else 0, slots if plan.shape.change else 0

    def number(k: int) -> Any:
        COMMON = plan.shape.specs[k].common
        return lambda which, a: (which[k][:1] if COMMON else which[k][a : a + SPAN : GROUP],)

    numbers = of_nodes(plan, lambda s: True, number)

    @part
    def given(x, gammas, lams, at):
        a = at.first
        return Given(gammas, lams, x.p[:, a : a + SPAN : GROUP], x.starts, numbers(x.which, a))

    @part
    def wanted(x, at):
        frozen, shares = x.frozen[:, :, at.first : at.first + SPAN : GROUP], x.shares
        return Wanted(
            x.points, x.by_step, x.states, shares if RMSE else shares[:0], x.since, x.truth,
            frozen if FROZEN else frozen[:0], x.rows,
        )  # fmt: skip

    @part
    def batch(x, at):
        a, b = at.first, at.first + SPAN
        return Batch(
            x.estimates[:, :, :, :, a:b:GROUP], x.rmse[:, :, :ERRORS, a:b:GROUP],
            x.steps[:, :, :STEPS, :, a:b:GROUP], x.sums[:, :SUMS, :, a:b:GROUP],
            x.squares[:, :SUMS, :, a:b:GROUP], x.frozen_squares[:, :SUMS, :, a:b:GROUP],
            x.changes[:, :CHANGES, :, a:b:GROUP], x.diverged_at[:, :, a:b:GROUP],
        )  # fmt: skip

    return given, wanted, batch


def sharing_stream(plan: Plan) -> Any:
    """An inlined function: the stream, γ and λ of its edges; in shared memory if they are few."""
    EDGES, THREADS = plan.edges, plan.threads

    @part
    def share(stream, given, table, indices, at):
        for s in range(at.thread, stream.first.size, THREADS):
            table[0, s], indices[0, s] = stream.fan[s], u4(stream.first[s])
        for e in range(at.thread, stream.reward.size, THREADS):
            table[1, e], table[2, e] = stream.threshold[e], stream.reward[e]
            table[3, e], table[4, e] = given.gammas[e], given.lams[e]
            indices[1, e], indices[2, e] = u4(stream.other[e]), u4(stream.next_state[e])
        near = Stream(
            indices[0], table[0], table[1], indices[1], indices[2], table[2],
            stream.noise, stream.rho, stream.start_threshold, stream.start_other, stream.key,
        )  # fmt: skip
        return near, table[3], table[4]

    def leave(stream, given, table, indices, at):
        return stream, given.gammas, given.lams

    return share if EDGES else part(leave)


def choosing(plan: Plan) -> tuple[Any, Any]:
    """Inlined functions: draw a number for the group; the edge of step t."""
    GROUP, SHIFT = plan.group, plan.group.bit_length() - 1

    @part
    def draw(a, b, t, drawn, at):
        half = i4(t >> SHIFT) & 1
        drawn[half, at.thread] = uniform(word(a, b, U(4) * U(t + at.member)))

    def alone(a, b, t, s, stream, drawn, at):
        return edge(a, b, t, s, stream)

    def together(a, b, t, s, stream, drawn, at):
        x = drawn[i4(t >> SHIFT) & 1, at.thread - at.member + (i4(t) & (GROUP - 1))]
        return slot(x, stream.first[u(s)], stream.fan[u(s)], stream.threshold, stream.other)

    return draw, part(together if shared_out(plan) else alone)


def shared_out(plan: Plan) -> bool:
    """Whether threads draw numbers for each other: all of a warp must be at the same step."""
    return plan.by_step and plan.group > 1


# ---------------------------------------------------------------------- the kernel


def run_threads(stream, launch, loaded, wanted, batch):
    """Simulate one run in some lanes. :func:`kernel_of` gives it the functions of a plan."""
    block, thread = i4(cuda.blockIdx.x), i4(cuda.threadIdx.x)
    number = (block * THREADS + thread) // GROUP
    r, member = i4(number // launch.parts), i4(thread & (GROUP - 1))
    first = i4(number - r * launch.parts) * LANES * GROUP + member
    at = At(block, thread, member, r, first)
    cells = cuda.local.array(CELLS, f8)
    rows = cuda.shared.array(ROWS, f8)
    lines = cuda.local.array(LINES, f8)
    numbers = cuda.local.array(NUMBERS, f8)
    last = cuda.local.array(LAST, f8)
    found = cuda.local.array(FOUND, f8)
    drawn = cuda.shared.array(DRAWN, f8)
    table = cuda.shared.array(TABLE, f8)
    indices = cuda.shared.array(INDICES, u4)
    counts = cuda.shared.array(COUNTS, i4)
    near, gammas, lams = share(stream, loaded.given, table, indices, at)
    if IN_TABLE:
        cuda.syncthreads()
    if r < launch.runs:
        m, given = begin_thread(cells, rows, lines, numbers, last, loaded, launch, gammas, lams, at)
        wanted, batch = view_wanted(wanted, at), view_batch(batch, at)
        scratch = view_scratch(found, launch, counts, at)
        n, points = stream.first.size, wanted.points
        key, other = keys(stream.key[0], launch.first_run + r)
        begin_run(m, given, r)
        begin(m, wanted, scratch, batch, r)
        every, t = period(n), i8(0)
        clock = t
        if SHARED_OUT:
            draw(key, other, t, drawn, at)
            if SIMULATED:
                cuda.syncthreads()
            else:
                cuda.syncwarp()  # a group is in one warp
        s = u4(start(key, other, START, stream))
        x = step_along(key, other, t, s, choose(key, other, t, s, near, drawn, at), near, given)
        for point in range(points.size):
            until = points[point]
            while clock < until:
                if t & (every - 1) == 0:
                    look(m)
                after, ended = u4(x.s2), ENDS and x.s2 == n
                if ended:
                    after = u4(start(key, other, U(4) * U(t) + U(3), stream))
                t += 1
                if SHARED_OUT and t & (GROUP - 1) == 0:
                    draw(key, other, t, drawn, at)
                    if SIMULATED:
                        cuda.syncthreads()
                    else:
                        cuda.syncwarp()  # a group is in one warp
                e = choose(key, other, t, after, near, drawn, at)
                ahead = step_along(key, other, t, after, e, near, given)
                if WINDOW and clock > wanted.since:
                    leave(m, wanted, scratch, batch, r, x.s, clock)
                learn(m, x)
                change(m, wanted, scratch, batch, r, x.s)
                if ended:
                    clear(m, u(0))
                x = ahead
                if BY_STEP or ended:
                    clock += 1
                    if WINDOW and not LOCAL:
                        moment(m, wanted, scratch, batch, r, clock)
            if WINDOW and LOCAL and point == points.size - 1:
                moment(m, wanted, scratch, batch, r, clock)
            look(m)
            record_point(m, wanted, scratch, batch, r, point, clock)
        finish(wanted, scratch, batch, r)


_LATER: Any = None  # functions and numbers of a plan
begin_thread = view_wanted = view_batch = view_scratch = begin_run = step_along = look = _LATER
learn = clear = begin = leave = change = moment = record_point = finish = _LATER
share = draw = choose = SIMULATED = _LATER
GROUP = CELLS = ROWS = LINES = NUMBERS = LAST = FOUND = DRAWN = TABLE = INDICES = COUNTS = _LATER
LANES = IN_TABLE = SHARED_OUT = ENDS = LOCAL = WINDOW = BY_STEP = _LATER


def beginning(plan: Plan, view_given: Any) -> tuple[Any, Any]:
    """Inlined functions: the block of a thread with what it is given; what it remembers."""
    make, IN_SHARED, OWN = making_block(plan), plan.rows > 0, len(plan.sizes) > 0
    THREADS = plan.threads

    def near(far, counts, i, at):
        return (counts[: far.shape[0], at.thread],)

    def far(far, counts, i, at):
        return (far[:, i],)

    counted = part(near if plan.counted else far)

    @part
    def begin_thread(cells, rows, lines, numbers, last, loaded, launch, gammas, lams, at):
        home = rows if IN_SHARED else launch.home[0 if OWN else at.block]
        if OWN:
            cells[:] = 0.0
            lines[:] = 0.0
        else:
            home[:, :, :, at.thread] = 0.0
        i = at.block * THREADS + at.thread
        m = make(cells if OWN else home, lines, numbers, last, loaded, launch, at, i)
        return m, view_given(loaded.given, gammas, lams, at)

    @part
    def scratch(found, launch, counts, at):
        i = at.block * THREADS + at.thread
        return Scratch(
            found, launch.previous[:, :, :, i], counted(launch.counted, counts, i, at)[0]
        )

    return begin_thread, scratch


@functools.cache
def kernel_of(plan: Plan) -> Any:
    """The kernel of a plan; compiled at its first launch."""
    return cuda_device.kernel(function_of(plan))


def function_of(plan: Plan) -> Any:
    """The function that a kernel is compiled of."""
    given, wanted, batch = viewing(plan)
    begin_thread, scratch = beginning(plan, given)
    draw, choose = choosing(plan)
    nodes, fields = len(plan.shape.specs), len(fields_of(plan.shape))
    size, own, table = max(plan.sizes, default=0) + 1, len(plan.sizes) > 0, max(1, plan.edges)
    made = {
        "begin_thread": begin_thread, "view_wanted": wanted, "view_batch": batch,
        "view_scratch": scratch, "share": sharing_stream(plan), "draw": draw, "choose": choose,
        "SIMULATED": cuda_device.SIMULATED,
        **functions_of(plan.shape), "LANES": plan.lanes, "GROUP": plan.group,
        "THREADS": plan.threads, "CELLS": (fields, size, plan.lanes) if own else (1, 1, 1),
        "LINES": (nodes, 1, size),
        "ROWS": (plan.rows, fields, plan.lanes, plan.threads) if plan.rows else (1, 1, 1, 1),
        "NUMBERS": (3, nodes, plan.lanes), "LAST": (1, nodes),
        "FOUND": (len(plan.shape.rows), plan.lanes), "DRAWN": (2, plan.threads),
        "TABLE": (5, table), "INDICES": (3, table),
        "COUNTS": (plan.rows, plan.threads) if plan.counted else (1, 1),
        "IN_TABLE": plan.edges > 0, "SHARED_OUT": shared_out(plan), "ENDS": plan.ends,
        "LOCAL": plan.shape.local, "WINDOW": plan.window, "BY_STEP": plan.by_step,
    }  # fmt: skip
    copy = types.FunctionType(run_threads.__code__, globals() | made, "run_threads")
    copy.__module__ = __name__
    return copy
