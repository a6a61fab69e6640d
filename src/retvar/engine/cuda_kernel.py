"""The simulation on a GPU: the CPU's functions, on the lanes of each thread.

:func:`kernel_of` makes a kernel for a :class:`retvar.engine.cuda_layout.Plan` of what
:mod:`retvar.engine.kernel` and :mod:`retvar.engine.recorder` make for its shape: the same nodes,
rules and order of sums, hence the same bits. Weights without traces are in shared memory, a column
for each thread, so no thread waits for another; those of the dense form are in registers; others in
global memory. The threads of a group draw the uniform numbers of as many steps at once and pass
them on through shared memory.
"""

from __future__ import annotations

import functools
import types
from typing import Any, NamedTuple

import numpy as np
from numba import cuda
from numpy import uintp as u

from retvar.engine import cuda_device, kernel
from retvar.engine.cuda_layout import Plan
from retvar.engine.cuda_single import in_single_precision
from retvar.engine.cuda_views import (
    NUMBERS,
    At,
    counts_in_shared,
    looks_up_discounts,
    making_nodes,
    sharing_stream,
    table_sizes,
    viewing_batch,
    viewing_scratch,
    viewing_wanted,
)  # fmt: skip
from retvar.engine.lane_nodes import (
    MANY,
    Discounts,
    beginning,
    clearing,
    fading,
    fetching,
    looking,
)
from retvar.engine.recorder import losing, recorder_of, rows_of
from retvar.engine.shapes import DENSE, LOCAL, SPREAD
from retvar.engine.streams import START, edge, slot, start
from retvar.jit import in_step, part
from retvar.random import U, keys, uniform, word

__all__ = ["Start", "kernel_of"]

ONE = (1, 1)
i4, i8, u4, f8 = np.int32, np.int64, np.uint32, np.float64


class Start(NamedTuple):
    """What a launch begins with."""

    first_run: Any
    parts: Any  #: groups of threads of a run
    home: Any  #: weights of the local form in global memory [block, row, node, lane, thread]
    share: Any  #: index of the value node of each lane of a thread


def placing(plan: Plan) -> Any:
    """An inlined function: the place of a thread."""
    THREADS, GROUP = plan.layout.threads, plan.layout.group

    @part
    def place(block, thread, parts):
        group = (block * THREADS + thread) // GROUP
        run = group // parts
        return At(block, thread, run, group - run * parts, thread & (GROUP - 1))

    return place


def is_shared_out(plan: Plan) -> bool:
    """Whether the threads of a group draw numbers for each other: all must be at the same step."""
    return plan.by_step and plan.layout.group > 1


def choosing(plan: Plan) -> tuple[Any, Any]:
    """Inlined functions: draw a number for the group; the edge of step t."""
    THREADS, GROUP = plan.layout.threads, plan.layout.group

    SHIFT = GROUP.bit_length() - 1

    @part
    def place_of(t, at):
        return u((((t >> SHIFT) & 1) * THREADS) + at.thread)

    @part
    def draw(a, b, t, numbers, at):
        numbers[place_of(t, at)] = uniform(word(a, b, U(4) * U(t + at.member)))

    def alone(a, b, t, s, stream, numbers, at):
        return edge(a, b, t, s, stream)

    def together(a, b, t, s, stream, numbers, at):
        x = numbers[place_of(t, at) - u(at.member) + u(t & (GROUP - 1))]
        return slot(x, stream.first[s], stream.fan[s], stream.threshold, stream.other)

    return draw, part(together if is_shared_out(plan) else alone)


def number_of(plan: Plan) -> Any:
    """The type of numbers."""
    return np.float32 if plan.layout.bytes < 8 else np.float64


class Step(NamedTuple):
    """What a step needs of its edge."""

    s2: Any
    edge: Any
    reward: Any
    ratio: Any
    gamma: Any
    lam: Any


def arriving(plan: Plan) -> tuple[Any, Any, Any]:
    """Inlined functions: a step along an edge; the transition as nodes see it; its discounts.

    Where all lanes have the same discounts, these are in registers, as of edge 0; set once and for
    all where all edges have the same too.
    """
    follow, see, OWN = kernel.following(plan.shape), kernel.seeing(plan.shape), plan.shape.own
    CONSTANT, LOOKS = plan.constant, looks_up_discounts(plan)
    F = number_of(plan)

    @part
    def arrive(a, b, t, e, stream, discounts):
        reward, ratio = follow(a, b, t, e, stream)
        gamma = lam = F(0.0)
        if LOOKS:
            gamma, lam = F(discounts.gammas[e]), F(discounts.lams[e])
        return Step(stream.next_state[e], e, F(reward), F(ratio), gamma, lam)

    @part
    def face(s, step, common):
        if OWN:
            return see(s, step.s2, step.edge, step.reward, step.ratio)
        if LOOKS:
            common.gammas[0, 0], common.lams[0, 0] = step.gamma, step.lam
        return see(s, step.s2, 0, step.reward, step.ratio)

    @part
    def own(discounts, common, at):
        if CONSTANT:
            common.gammas[0, 0], common.lams[0, 0] = discounts.gammas[0], discounts.lams[0]
        if OWN:
            gammas, lams = discounts.gammas, discounts.lams
            return Discounts(gammas[:, at.part, :, at.member], lams[:, at.part, :, at.member])
        return common

    return arrive, face, own


def masking(plan: Plan) -> Any:
    """An inlined function: NaN for the sums of a run in which the lane diverged."""
    lost, LANES, WINDOW, CHANGE = losing(False), plan.shape.lanes, plan.window, plan.shape.change
    SAFE, FROZEN = plan.shape.safe, plan.frozen

    @part
    def mask(wanted, scratch, batch, r):
        if not SAFE:
            for slot_ in range(scratch.found.shape[0]):
                for lane in range(LANES):
                    if lost(wanted.rows.rests, batch.diverged_at[r], slot_, lane):
                        for s in range(scratch.counted.size):
                            if WINDOW:
                                batch.sums[r, slot_, s, lane] = np.nan
                                batch.squares[r, slot_, s, lane] = np.nan
                            if FROZEN:
                                batch.frozen_squares[r, slot_, s, lane] = np.nan
                            if CHANGE:
                                batch.changes[r, slot_, s, lane] = np.nan

    return mask


def run_threads(stream, task, given, columns, discounts, wanted, scratch, batch):
    """Simulate one run in some lanes. :func:`kernel_of` gives it the functions of a plan."""
    at = place(i4(cuda.blockIdx.x), i4(cuda.threadIdx.x), task.parts)
    in_lanes = cuda.local.array(IN_LANES, F)
    registers = cuda.local.array(REGISTERS, F)
    found = cuda.local.array(FOUND, F)
    common = Discounts(cuda.local.array(ONE, F), cuda.local.array(ONE, F))
    numbers = cuda.shared.array(DRAWN, f8)
    table = cuda.shared.array(TABLE, f8)
    indices = cuda.shared.array(INDICES, u4)
    counts = cuda.shared.array(COUNTS, i4)
    rows = cuda.shared.array(ROWS, F) if IN_SHARED else task.home[at.block if IS_LOCAL else 0]
    if IS_LOCAL:
        clear_rows(rows, at)
    nodes = make_nodes(given, columns, rows, in_lanes, registers, at)
    wanted, batch = view_wanted(wanted, at), viewing_batch(batch, at)
    r, n, points, share = at.run, stream.first.size, wanted.points, task.share
    scratch, mine = view_scratch(found, scratch, counts, n, at), own(discounts, common, at)
    walk, rates = share_stream(stream, discounts, table, indices, at)
    if IN_TABLE:
        cuda.syncthreads()
    a, b = keys(stream.key[0], task.first_run + r)
    begin_nodes(nodes, r)
    begin(nodes, share, wanted, scratch, batch, r)
    t = clock = i8(0)
    s = u4(start(a, b, START, stream))
    fetch(nodes, s)
    if SHARED_OUT:
        draw(a, b, t, numbers, at)
        if SIMULATED:
            cuda.syncthreads()
        else:
            cuda.syncwarp()  # a group is in one warp
    e = u4(choose(a, b, t, s, walk, numbers, at))
    step = arrive(a, b, t, e, walk, rates)
    for point in range(points.size):
        until = points[point]
        while clock < until:
            look(nodes, step.s2)
            if FADES and t & (MANY - 1) == 0:
                fade(nodes)
            after, ended = u4(step.s2), ENDS and step.s2 == n
            if ended:
                after = u4(start(a, b, U(4) * U(t) + U(3), stream))
            t += 1
            if SHARED_OUT and t & (GROUP - 1) == 0:
                draw(a, b, t, numbers, at)
                if SIMULATED:
                    cuda.syncthreads()
                else:
                    cuda.syncwarp()
            here = face(s, step, common)
            e = u4(choose(a, b, t, after, walk, numbers, at))  # while this one is learned
            step = arrive(a, b, t, e, walk, rates)
            if WINDOW and clock > wanted.since:
                leave(nodes, wanted, scratch, batch, r, s, clock)
            learn(nodes, here, mine, mine, share, LANES)
            change(nodes, share, wanted, scratch, batch, r, s)
            if ended:
                clear(nodes)
                fetch(nodes, after)
            s = after
            if BY_STEP or ended:
                clock = t if BY_STEP else clock + 1
                if WINDOW and not IS_LOCAL:
                    moment(nodes, share, wanted, scratch, batch, r, clock)
        if WINDOW and IS_LOCAL and point == points.size - 1:
            moment(nodes, share, wanted, scratch, batch, r, clock)
        record_point(nodes, share, wanted, scratch, batch, r, point, clock)
    mask(wanted, scratch, batch, r)


_LATER: Any = None  # functions and numbers of a plan
place = clear_rows = make_nodes = view_wanted = view_scratch = own = begin_nodes = begin = _LATER
fetch = look = fade = draw = choose = arrive = face = leave = learn = change = clear = _LATER
moment = record_point = mask = share_stream = _LATER
LANES = IN_LANES = REGISTERS = FOUND = DRAWN = ROWS = _LATER
IN_SHARED = IS_LOCAL = FADES = WINDOW = ENDS = BY_STEP = SHARED_OUT = GROUP = SIMULATED = _LATER
TABLE = INDICES = COUNTS = IN_TABLE = F = _LATER


def clearing_rows(plan: Plan) -> Any:
    """An inlined function: weights that are not set, such as those after an end, are 0."""
    NODES, LANES = len(plan.shape.nodes), plan.shape.lanes

    @part
    def clear_rows(rows, at):
        for s in range(rows.shape[0]):
            for number in range(NODES):
                for lane in range(LANES):
                    rows[s, number, lane, at.thread] = 0.0

    return clear_rows


def literals_of(plan: Plan) -> dict[str, Any]:
    """The numbers and flags of a plan."""
    shape, layout = plan.shape, plan.layout
    nodes, lanes, threads = len(shape.nodes), shape.lanes, layout.threads
    size = max(node.size for node in shape.nodes) if shape.form == DENSE else 0
    table, indices = table_sizes(plan)
    counts = (layout.rows, threads) if counts_in_shared(plan) else (1, 1)
    return {
        "LANES": lanes, "IN_LANES": (nodes, NUMBERS, lanes), "FOUND": (len(rows_of(shape)), lanes),
        "REGISTERS": (nodes, 5, (size + 1) * lanes), "DRAWN": 2 * threads,
        "IN_SHARED": layout.rows > 0, "ROWS": (max(1, layout.rows), nodes, lanes, threads),
        "IS_LOCAL": shape.form == LOCAL, "WINDOW": plan.window, "ENDS": not shape.endless,
        "FADES": any(fading(shape.update(k)) is not None for k in range(nodes)),
        "BY_STEP": plan.by_step, "SHARED_OUT": is_shared_out(plan), "GROUP": layout.group,
        "SIMULATED": cuda_device.SIMULATED, "COUNTS": counts, "IN_TABLE": plan.edges > 0,
        "TABLE": max(1, table), "INDICES": max(1, indices), "F": number_of(plan),
    }  # fmt: skip


@functools.cache
def kernel_of(plan: Plan) -> Any:
    """The kernel of a plan; compiled at its first launch."""
    shape = plan.shape
    updates = [shape.update(number) for number in range(len(shape.nodes))]
    begin_nodes, clear, fade, fetch, look = (
        in_step([make(update) for update in updates])
        for make in (beginning, clearing, fading, fetching, looking)
    )
    learning = kernel.learning_nodes if shape.form == SPREAD else kernel.learning_lanes
    begin, leave, change, moment, record_point = recorder_of(shape, plan.frozen)
    arrive, face, own = arriving(plan)
    draw, choose = choosing(plan)
    made = {
        "place": placing(plan), "clear_rows": clearing_rows(plan),
        "make_nodes": making_nodes(plan), "view_wanted": viewing_wanted(plan), "own": own,
        "view_scratch": viewing_scratch(plan), "share_stream": sharing_stream(plan),
        "begin_nodes": begin_nodes, "begin": begin, "fade": fade, "fetch": fetch, "draw": draw,
        "choose": choose, "arrive": arrive, "face": face, "look": look, "leave": leave,
        "learn": learning(shape), "change": change,
        "clear": clear, "moment": moment, "record_point": record_point, "mask": masking(plan),
    }  # fmt: skip
    function = with_names(run_threads, made | literals_of(plan))
    return cuda_device.kernel(in_single_precision(function) if plan.layout.bytes < 8 else function)


def with_names(function: Any, names: dict[str, Any]) -> Any:
    """A copy of a function in which global names stand for what a plan needs."""
    copy = types.FunctionType(function.__code__, globals() | names, function.__name__)
    copy.__module__ = function.__module__
    return copy
