"""The driver of a simulation on a GPU: a thread has one run, and a few lanes of a block.

A thread walks through the MDP and lets its lanes learn with the functions of the CPU
(:func:`retvar.simulation.kernel.functions_of`): the same nodes, rules and order of sums, hence the
same bits. A group of threads has the lanes of one run: they visit the same states, and each draws
the random numbers of some steps for all. The next step is drawn while one is learned.

    registers  what a step changes, so that no lane waits until another has written: of a table
               without traces two rows, those of the state being left, which then goes home, and of
               the next; otherwise all weights, up to FEW, which go home to be recorded
    shared     the home of weights where many threads fit, a column for each; a small stream
    global     the home of other weights, those of a group side by side, since a warp reads whole
               lines; all results
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
from retvar.simulation.kernel import Given, functions_of, period, stepping
from retvar.simulation.record import Batch, Book, table_of
from retvar.simulation.streams import START, Stream, normal, slot, start
from retvar.td.jit import in_turn, part
from retvar.td.networks import Transition
from retvar.td.nodes import DENSE, KEPT, LIMIT, NONE, Arrays, Spec, Step, learning
from retvar.td.random import U, keys, uniform, word
from retvar.td.step_sizes import averages, counts_visits

SHARED_BYTES = 48 * 1024  # static shared memory of a thread block
PER_PROCESSOR = 224 * 1024  # shared memory of a multiprocessor
FEWEST_LANES = 400  # on a multiprocessor; with fewer, weights are in global memory
MOST_EDGES = 64  # of the stream in shared memory
THREADS = 128  # of a block, at most
WARP = 32
FAR_GROUP = 8  # threads of a group whose weights are in global memory, at most …
FAR_NUMBERS = 42  # … and numbers of weights that each has in registers: many loads at a time
REGISTERS = {1: 80, 2: 168}  # of a thread, at most, by lanes, where weights are in shared memory:
# with more fewer threads run, with fewer numbers of a step go to memory
SPLITS = ((2, 3), (2, 4), (4, 2), (2, 2), (2, 1), (1, 1))  # threads of a group, lanes of a thread
WINDOW_SPLITS = SPLITS[2:]  # … whose sums in global memory lie side by side
i4, i8, u4, f8 = np.int32, np.int64, np.uint32, np.float64


class Plan(NamedTuple):
    """What a kernel for a GPU is made for."""

    shape: Shape
    group: int  #: threads of a group, a power of 2: lane (part·lanes + lane)·group + member
    lanes: int  #: of a thread
    threads: int  #: of a block
    rows: int  #: of weights in shared memory; 0: they are in global memory
    size: int  #: rows of weights in registers
    edges: int  #: of the stream in shared memory; 0: it is in global memory
    ends: bool  #: whether there are episodes
    by_step: bool
    counted: bool  #: whether moments up to which states are in its sums are in shared memory


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
    home: Any  #: weights in global memory [group, weight, field, lane, member] …
    lines: Any  #: … the same as [group, weight, all else]
    used: Any  #: [state, node, lane, thread] with features or traces
    previous: Any  #: [slot, state, lane, thread]
    counted: Any  #: [state, thread]


class At(NamedTuple):
    """The place of a thread."""

    block: Any
    thread: Any  #: of the block
    member: Any  #: of the group
    run: Any
    first: Any  #: lane
    place: Any  #: of its weights at home: the thread in shared memory, the member in global


def fields_of(shape: Shape) -> dict[tuple[str, int], int]:
    """Numbers of what each weight of a node has, by name and node."""
    found = [
        (name, k)
        for k, spec in enumerate(shape.specs)
        for name, (axes, is_needed) in KEPT.items()
        if is_needed(spec) and (axes.startswith("weight") or (name == "used" and shape.local))
    ]
    return {field: number for number, field in enumerate(found)}


def plan_of(shape: Shape, sizes: list[int], count: int, rec: Recording, stream: Stream) -> Plan:
    """The plan of `count` lanes whose nodes have so many weights."""
    n, window, fields = stream.first.size, shape.window, len(fields_of(shape))
    size = 2 if shape.local else max(sizes) + 1
    group, each = _split(count, WINDOW_SPLITS if window else SPLITS)
    threads = rows = 0
    if shape.local:
        threads, rows = _in_shared(fields * each, each, sizes[0], window)
    if not rows:
        threads = THREADS // 2 if shape.local else THREADS
        group = min(FAR_GROUP, 1 << (count - 1).bit_length())
        most = group * max(1, FAR_NUMBERS // (fields * size))
        each = -(-count // (-(-count // most) * group))
    if cuda_device.SIMULATED:
        threads = 2 * group
    specs = tuple(spec._replace(alone=each == 1, tabled=True) for spec in shape.specs)
    return Plan(
        shape=shape._replace(specs=specs), group=group, lanes=each, threads=threads, rows=rows,
        size=size, edges=rounded(stream.reward.size) if stream.reward.size <= MOST_EDGES else 0,
        ends=int(stream.next_state.max()) == n, by_step=rec.by_step,
        counted=window and rows > 0 and int(rec.points[-1]) < 2**31,
    )  # fmt: skip


def _split(count: int, splits: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Threads of a group and lanes of a thread: the first split that leaves few lanes idle."""
    padded = [-(-count // (group * each)) * group * each for group, each in splits]
    few = [number for number, lanes in enumerate(padded) if lanes <= 1.1 * count]
    return splits[few[0] if few else int(np.argmin(padded))]


def _in_shared(fields: int, lanes: int, weights: int, window: bool) -> tuple[int, int]:
    """Threads of a block, and rows of weights in shared memory; 0: too few threads would fit."""
    rows, threads = rounded(weights + 1), THREADS if window else THREADS // 2
    thread = 8 * rows * fields
    while threads > WARP and thread * threads > SHARED_BYTES * 2 // 3:
        threads //= 2
    others = (16 + 4 * rows) * threads + 8 * (6 * MOST_EDGES)
    in_flight = PER_PROCESSOR // (thread * threads) * threads * lanes
    if thread * threads + others > SHARED_BYTES or in_flight < FEWEST_LANES:
        return 0, 0
    return threads, rows


def rounded(rows: int) -> int:
    """One number of rows for several, so that kernels serve them all.

    >>> [rounded(n) for n in (5, 8, 9, 40)]
    [5, 8, 10, 40]
    """
    step = 1 if rows <= 8 else 2 ** max(1, rows.bit_length() - 3)
    return -(-rows // step) * step


# ---------------------------------------------------------------------- what a thread sees


def making_block(plan: Plan) -> Any:
    """An inlined function: the block of a thread's lanes, of weights at home or in registers.

    `rows` are [weight, field, lane, thread], of which the thread is `c`.
    """
    fields = fields_of(plan.shape)

    def arrays(k: int, spec: Spec) -> str:
        count = 1 if spec.common else plan.lanes
        found = {
            "p": f"numbers[0, {k}]", "q": f"numbers[1, {k}]", "own": f"numbers[2, {k}]",
            "kappa": f"loaded.kappa[{k}]",
        }  # fmt: skip
        for name, (axes, is_needed) in KEPT.items():
            if (name, k) in fields:
                lanes = "0" if axes == "weight" else f":{count}"
                found[name] = f"rows[:, {fields[name, k]}, {lanes}, c]"
            elif name == "used" and is_needed(spec):
                found[name] = f"launch.used[:, {k}, :{count}, i]"
        if spec.trace != NONE:
            found |= {"E": f"traces[{k}]", "last": f"last[{k}]"}
        if spec.features == DENSE:
            found["phi"] = f"loaded.phi[{k}]"
        if counts_visits(spec.kind):
            found["powers"] = f"loaded.powers[{k}]"
        return f"Arrays({', '.join(found.get(name, 'None') for name in Arrays._fields)})"

    nodes = ", ".join(arrays(k, spec) for k, spec in enumerate(plan.shape.specs))
    given = "rows, c, traces, numbers, last, loaded, launch, i"
    return part(eval(f"lambda {given}: ({nodes},)", {"Arrays": Arrays}))


def fetching(plan: Plan) -> dict[str, Any]:
    """Inlined functions that take rows of weights into registers and put them home, by name.

    In global memory, where compilers do not know how long axes are, rows are flat: no products.
    """
    places: list[tuple[int, int]] = []  # field and lane
    moving: list[tuple[int, int]] = []  # of nodes that learn
    learning: list[tuple[int, int]] = []  # what learns in them
    for (name, k), field in fields_of(plan.shape).items():
        spec = plan.shape.specs[k]
        once = spec.common or name in ("visits", "rates")
        own = [(field, lane) for lane in range(1 if once else plan.lanes)]
        places += own
        moving += own if spec.learns else []
        learning += own if spec.learns and name == ("held" if averages(spec.kind) else "w") else []
    PLACES, MOVING, LEARNING = tuple(places), tuple(moving), tuple(learning)
    LOCAL, FLAT = plan.shape.local, plan.rows == 0
    SIZE, LANES, GROUP = plan.size, plan.lanes, plan.group

    @part
    def place(field, lane, at):
        if FLAT:
            return (field * LANES + lane) * GROUP + at.place
        return field, lane, at.place

    @part
    def take(cells, to, home, row, at):
        line = home[u(row)]
        for field, lane in PLACES:
            cells[to, field, lane, 0] = line[place(field, lane, at)]

    @part
    def put(cells, of, home, row, at):
        line = home[u(row)]
        for field, lane in MOVING:
            line[place(field, lane, at)] = cells[of, field, lane, 0]

    @part
    def shift(cells, stays):
        """The next state becomes that being left."""
        for field, lane in PLACES:
            left, after = cells[0, field, lane, 0], cells[1, field, lane, 0]
            cells[0, field, lane, 0] = left if stays else after

    @part
    def take_all(cells, home, x, at):
        if LOCAL:
            take(cells, 0, home, x.s, at)
        else:
            for row in range(SIZE):
                take(cells, row, home, row, at)

    @part
    def put_all(cells, home, at):
        if not LOCAL:
            for row in range(SIZE):
                put(cells, row, home, row, at)

    @part
    def is_sound(cells):
        """Whether no weight that learns has diverged: of the state being left, or of all."""
        found = True
        for row in range(1 if LOCAL else SIZE):
            for field, lane in LEARNING:
                found &= abs(cells[row, field, lane, 0]) <= LIMIT
        return found

    return {
        "take": take, "put": put, "shift": shift, "take_all": take_all, "put_all": put_all,
        "is_sound": is_sound,
    }  # fmt: skip


def facing(plan: Plan) -> Any:
    """An inlined function: a step as nodes in registers see it; ratios of 1 are literals."""
    OFF_POLICY, WEIGHTED = plan.shape.off_policy, plan.shape.weighted
    LOCAL = plan.shape.local

    @part
    def face(x):
        ratio = x.rho if WEIGHTED else 1.0
        eta, rho_bar = (ratio, 1.0) if OFF_POLICY else (1.0, ratio)
        t = Transition(x.t.reward, x.t.gamma, x.t.lam, eta)
        if LOCAL:
            return Step(u4(0), u4(1), t, ratio, rho_bar, u(0), x.s == x.s2, None)
        return Step(u4(x.s), u4(x.s2), t, ratio, rho_bar, u(0), False, None)

    return face


def adding(plan: Plan) -> Any:
    """An inlined function: bring the sums of a state in registers up to date before it changes.

    All sums are read before any is written.
    """
    table, specs, LANES = table_of(plan.shape), plan.shape.specs, plan.lanes
    FROZEN = plan.shape.frozen

    def of_slot(SLOT: int) -> tuple[Any, Any]:
        K, L, OF = int(table.node[SLOT]), int(table.less[SLOT]), table.of[SLOT]
        SQUARED, ONE, OTHER = L >= 0, int(not specs[K].common), int(not specs[L].common)

        @part
        def read(book, out, frozen, r, s, old):
            for lane in range(LANES):
                old[0, SLOT, lane] = out.sums[r, SLOT, s, lane]
                old[1, SLOT, lane] = out.squares[r, SLOT, s, lane]
                old[2, SLOT, lane] = book.truth[OF, s]
                if FROZEN:
                    old[3, SLOT, lane] = out.frozen_squares[r, SLOT, s, lane]
                    old[4, SLOT, lane] = book.frozen[frozen, s, lane]

        @part
        def write(m, out, r, s, times, old):
            for lane in range(LANES):
                found = m[K].w[0, lane * ONE]
                if SQUARED:
                    less = m[L].w[0, lane * OTHER]
                    found -= less * less
                gap = found - old[2, SLOT, lane]
                out.sums[r, SLOT, s, lane] = old[0, SLOT, lane] + times * found
                out.squares[r, SLOT, s, lane] = old[1, SLOT, lane] + times * (gap * gap)
                if FROZEN:
                    gap = found - old[4, SLOT, lane]
                    frozen = old[3, SLOT, lane] + times * (gap * gap)
                    out.frozen_squares[r, SLOT, s, lane] = frozen

        return read, write

    slots = [slot for slot in range(table.of.size) if table.of[slot] >= 0 and table.moves[slot]]
    made = [of_slot(slot) for slot in slots]
    read_all, write_all = (in_turn([pair[which] for pair in made]) for which in (0, 1))

    @part
    def add(m, book, out, r, s, clock, old):
        times = clock - book.counted[s]
        if times > 0:
            book.counted[s] = clock
            at = (r if book.frozen.shape[0] > 1 else 0) if FROZEN else 0
            read_all(book, out, at, r, s, old)
            write_all(m, out, r, s, times, old)

    return add


def beginning(plan: Plan) -> Any:
    """An inlined function: a thread's block at home and in registers, and what it is given."""
    make, THREADS, LOCAL = making_block(plan), plan.threads, plan.shape.local
    NODES, LANES, GROUP, SIZE = len(plan.shape.specs), plan.lanes, plan.group, plan.size
    SPAN = LANES * GROUP
    own = f"a : a + {SPAN} : {GROUP}"
    which = [f"which[{k}][{':1' if s.common else own}], " for k, s in enumerate(plan.shape.specs)]
    starts_of = part(eval(f"lambda which, a: ({''.join(which)})"))

    @part
    def prepare(cells, home, traces, numbers, last, loaded, launch, discounts, at):
        x, a, i = loaded.given, at.first, at.block * THREADS + at.thread
        home[x.starts[0].shape[2] if LOCAL else 0 :, :, :, at.place] = 0.0
        for k in range(NODES):
            for row in range(SIZE):
                traces[k, 0, row] = 0.0
            for lane in range(LANES):
                numbers[0, k, lane] = x.p[k, a + lane * GROUP]
                numbers[1, k, lane] = loaded.q[k, a + lane * GROUP]
        m = make(home, at.place, traces, numbers, last, loaded, launch, i)
        own = make(cells, 0, traces, numbers, last, loaded, launch, i)
        p, which = x.p[:, a : a + SPAN : GROUP], starts_of(x.which, a)
        return m, own, Given(discounts[0], discounts[1], p, x.starts, which)

    return prepare


def viewing(plan: Plan) -> Any:
    """An inlined function: the thread's view of what is wanted, and of results."""
    own, shape = f"a : a + {plan.lanes * plan.group} : {plan.group}", plan.shape
    wanted = {name: f"book.{name}" for name in Book._fields}
    wanted |= {
        "frozen": f"book.frozen[:, :, {own}]" if shape.frozen else "None",
        "found": "found", "previous": "launch.previous[:, :, :, i]" if shape.change else "None",
        "counted": "counted",
    }  # fmt: skip
    there = dict.fromkeys(("estimates", "diverged_at"), True) | {
        "rmse": shape.rmse, "steps": shape.specs[0].steps, "sums": shape.window,
        "squares": shape.window, "frozen_squares": shape.frozen, "changes": shape.change,
    }  # fmt: skip
    results = (f"out.{name}[..., {own}]" if there[name] else "None" for name in Batch._fields)
    text = f"Book({', '.join(wanted.values())}), Batch({', '.join(results)})"
    given = "book, out, launch, found, counted, i, a"
    return part(eval(f"lambda {given}: ({text})", {"Book": Book, "Batch": Batch}))


def sharing_stream(plan: Plan) -> Any:
    """An inlined function: the stream, γ and λ of its edges; in shared memory if they are few."""
    FAR, THREADS = plan.edges == 0, plan.threads

    @part
    def share(stream, given, table, indices, at):
        if FAR:
            return stream, (given.gammas, given.lams)
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
        return near, (table[3], table[4])

    return share


def stepping_on(plan: Plan) -> dict[str, Any]:
    """Inlined functions: draw random numbers for the group; step t from a state."""
    GROUP, SHIFT, NOISY = plan.group, plan.group.bit_length() - 1, plan.shape.noisy
    TOGETHER, FAR = shared_out(plan), plan.edges == 0
    follow = stepping(plan.shape._replace(noisy=NOISY and not TOGETHER))

    @part
    def draw(a, b, t, drawn, at):
        half, c = i4(t >> SHIFT) & 1, U(4) * U(t + at.member)
        drawn[half, at.thread] = uniform(word(a, b, c))
        if NOISY:
            drawn[2 + half, at.thread] = normal(word(a, b, c + U(1)), word(a, b, c + U(2)))

    @part
    def step_on(a, b, t, s, first, fan, stream, given, drawn, at):
        """`first` and `fan` are the state's, fetched early since memory may be far."""
        half, thread = i4(t >> SHIFT) & 1, at.thread - at.member + (i4(t) & (GROUP - 1))
        number = drawn[half, thread] if TOGETHER else uniform(word(a, b, U(4) * U(t)))
        if not FAR:
            first, fan = stream.first[u(s)], stream.fan[u(s)]
        e = slot(number, first, fan, stream.threshold, stream.other)
        step = follow(a, b, t, s, e, stream, given)
        if NOISY and TOGETHER:
            reward = step.t.reward + stream.noise[u(e)] * drawn[2 + half, thread]
            noisy = Transition(reward, step.t.gamma, step.t.lam, step.t.eta)
            return Step(s, step.s2, noisy, step.rho, step.rho_bar, step.stream, step.stays, None)
        return step

    return {"draw": draw, "step_on": step_on}


def shared_out(plan: Plan) -> bool:
    """Whether threads draw numbers for each other: all of a warp must be at the same step."""
    return plan.by_step and plan.group > 1


# ---------------------------------------------------------------------- the kernel


def run_threads(stream, launch, loaded, book, out):
    """Simulate one run in some lanes. :func:`kernel_of` gives it the functions of a plan."""
    block, thread = i4(cuda.blockIdx.x), i4(cuda.threadIdx.x)
    number = (block * THREADS + thread) // GROUP
    r, member = i4(number // launch.parts), i4(thread & (GROUP - 1))
    first = i4(number - r * launch.parts) * LANES * GROUP + member
    at = At(block, thread, member, r, first, thread if IN_SHARED else member)
    cells = cuda.local.array(CELLS, f8)
    rows = cuda.shared.array(ROWS, f8)
    traces = cuda.local.array(TRACES, f8)
    numbers = cuda.local.array(NUMBERS, f8)
    last = cuda.local.array(LAST, f8)
    found = cuda.local.array(FOUND, f8)
    old = cuda.local.array(OLD, f8)
    drawn = cuda.shared.array(DRAWN, f8)
    table = cuda.shared.array(TABLE, f8)
    indices = cuda.shared.array(INDICES, u4)
    counts = cuda.shared.array(COUNTS, i4)
    near, discounts = share(stream, loaded.given, table, indices, at)
    if IN_TABLE:
        cuda.syncthreads()
    if r < launch.runs:
        home = rows if IN_SHARED else launch.lines[u(number)]
        far = rows if IN_SHARED else launch.home[u(number)]
        m, own, given = prepare(cells, far, traces, numbers, last, loaded, launch, discounts, at)
        n, points, i = stream.first.size, book.points, block * THREADS + thread
        counted = counts[:n, thread] if COUNTED else launch.counted[:, i]
        book, out = view(book, out, launch, found, counted, i, first)
        key, other = keys(stream.key[0], launch.first_run + r)
        begin_run(m, given, r)
        begin(m, book, out, r)
        meet = cuda.syncthreads if SIMULATED else cuda.syncwarp  # a group is in one warp
        every, t, sound = period(n), i8(0), LOCAL and not IN_SHARED
        clock = t
        if SHARED_OUT:
            draw(key, other, t, drawn, at)
            meet()
        s = u4(start(key, other, START, stream))
        edges, fan = near.first[u(s)], near.fan[u(s)]
        x = step_on(key, other, t, s, edges, fan, near, given, drawn, at)
        for point in range(points.size):
            until = points[point]
            take_all(cells, home, x, at)
            while clock < until:
                if t & (every - 1) == 0 and not (sound if LOCAL else is_sound(cells)):
                    put_all(cells, home, at)
                    look(m)
                    take_all(cells, home, x, at)
                if LOCAL:
                    take(cells, 1, home, x.s2, at)
                after, ended = u4(x.s2), ENDS and x.s2 == n
                if ended:
                    after = u4(start(key, other, U(4) * U(t) + U(3), stream))
                edges, fan = near.first[u(after)], near.fan[u(after)]
                t += 1
                if SHARED_OUT and t & (GROUP - 1) == 0:
                    draw(key, other, t, drawn, at)
                    meet()
                ahead = step_on(key, other, t, after, edges, fan, near, given, drawn, at)
                if WINDOW and LOCAL and clock > book.since:
                    add(own, book, out, r, x.s, clock, old)
                learn(own, face(x))
                if LOCAL:
                    sound &= IN_SHARED or is_sound(cells)
                    put(cells, 0, home, x.s, at)
                    shift(cells, x.s == x.s2)
                    if CHANGE:
                        change(m, book, out, r, x.s)
                elif CHANGE:
                    change(own, book, out, r, x.s)
                if ended:
                    clear(own, u(0))
                    if LOCAL:
                        take(cells, 0, home, after, at)
                x = ahead
                if BY_STEP or ended:
                    clock += 1
                    if WINDOW and not LOCAL:
                        moment(own, book, out, r, clock)
            if WINDOW and LOCAL and point == points.size - 1:
                moment(m, book, out, r, clock)
            put_all(cells, home, at)
            lost = not (sound if LOCAL else is_sound(cells))
            if lost:
                look(m)
                note(m, out.diverged_at[r], clock)
            record_point(m, book, out, r, point, lost)
        finish(book, out, r)


_LATER: Any = None  # functions and numbers of a plan
prepare = view = begin_run = step_on = look = _LATER
learn = clear = begin = change = moment = note = record_point = finish = face = add = _LATER
share = draw = take = take_all = put = put_all = shift = is_sound = _LATER
GROUP = CELLS = ROWS = TRACES = NUMBERS = LAST = FOUND = OLD = DRAWN = TABLE = INDICES = _LATER
COUNTS = LANES = IN_TABLE = SHARED_OUT = ENDS = LOCAL = WINDOW = CHANGE = _LATER
COUNTED = IN_SHARED = BY_STEP = SIMULATED = _LATER


@functools.cache
def kernel_of(plan: Plan) -> Any:
    """The kernel of a plan; compiled at its first launch."""
    registers = REGISTERS.get(plan.lanes) if plan.rows else None if plan.shape.local else 128
    return cuda_device.kernel(function_of(plan), registers)


def function_of(plan: Plan) -> Any:
    """The function that a kernel is compiled of."""
    specs, slots, table = plan.shape.specs, len(plan.shape.rows), max(1, plan.edges)
    fields, nodes = len(fields_of(plan.shape)), len(specs)
    if plan.shape.local:
        specs = tuple(spec._replace(size=2) for spec in specs)
    learn, clear = learning(specs)  # in registers, where a table has two rows
    made = {
        **functions_of(plan.shape), **fetching(plan), **stepping_on(plan), "view": viewing(plan),
        "learn": learn, "clear": clear, "prepare": beginning(plan),
        "share": sharing_stream(plan), "face": facing(plan), "add": adding(plan),
        "CELLS": (plan.size, fields, plan.lanes, 1), "TRACES": (nodes, 1, plan.size),
        "ROWS": (plan.rows, fields, plan.lanes, plan.threads) if plan.rows else (1, 1, 1, 1),
        "NUMBERS": (3, nodes, plan.lanes), "LAST": (nodes, 1), "FOUND": (slots, plan.lanes),
        "OLD": (5, slots, plan.lanes) if plan.shape.window else (1, 1, 1),
        "DRAWN": (4 if plan.shape.noisy else 2, plan.threads),
        "TABLE": (5, table), "INDICES": (3, table),
        "COUNTS": (plan.rows, plan.threads) if plan.counted else (1, 1),
        "GROUP": plan.group, "THREADS": plan.threads, "LANES": plan.lanes,
        "IN_SHARED": plan.rows > 0, "IN_TABLE": plan.edges > 0,
        "COUNTED": plan.counted, "SHARED_OUT": shared_out(plan), "ENDS": plan.ends,
        "BY_STEP": plan.by_step,
        "SIMULATED": cuda_device.SIMULATED,
    }  # fmt: skip
    copy = types.FunctionType(run_threads.__code__, globals() | made, "run_threads")
    copy.__module__ = __name__
    return copy
