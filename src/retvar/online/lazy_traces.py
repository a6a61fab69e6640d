"""Lazy traces: a step costs what the active features cost, and not what the trace reaches.

For features that come with each transition. All traces of a stream decay alike and meet the same
errors, so that E = s·e with one scale s, and what e has earned is α·e·A with one sum A of all δ·s
since (of all αδs where α is common to all weights). The true weight is

    w = base + α·Σe·A

over the streams, `base` being what stands in the cells. Where e or α changes, the base is changed
so that w is not. Where s leaves [SMALL, LARGE], what the trace reaches is folded: the weight
becomes the base, E becomes e, s = 1 and A = 0. So it is before a feature beyond LARGE is added,
for the digits of w would be lost in e·A. At the end of an episode it is folded and forgotten.
Streams from OPEN on are folded after each of their steps: the cost of reading a weight must not
grow with the number of streams.
"""

from __future__ import annotations

import math

from numba import njit
from numpy import uintp as u

from retvar import rules
from retvar.jit import compiled, inlined
from retvar.online import memory_layout

# isort: off
from retvar.online.memory_layout import (
    DIVERGED, FAINT, FIRST, KIND, LARGE, LAZY, LIMIT, OFFSET, OK, OPEN, OWN, SCALE, SECOND, SMALL,
    STEP, SUM, TOSSED, TRACED, WEIGHT,
)  # fmt: skip

# isort: on
from retvar.step_sizes import ALPHA_BOUND, AVERAGED, DECAY

trace = njit(rules.trace)
moved = njit(rules.moved)
decayed_step = njit(rules.decayed_step)
averaged = njit(rules.averaged)
bounded_step = njit(rules.bounded_step)


def _compiled(function):
    return compiled(function, memory_layout.__file__)


@inlined
def reach(stream, offset, begin, end, indices, values, cells, traces):
    """Σ αeφ over the features of a row: what its prediction moves by when A grows by 1."""
    found = 0.0
    for k in range(begin, end):
        at = u(offset + indices[u(k)])
        found += values[u(k)] * cells[at, STEP] * traces[u(stream), at]
    return found


@inlined
def earned(node, begin, end, plan, indices, values, cells, traces, scales):
    """What lazy traces add to the prediction for a row, beyond its bases."""
    found, offset = 0.0, plan[u(node), OFFSET]
    for stream in range(min(OPEN, traces.shape[0])):
        A = scales[u(stream), u(node), SUM]
        if A != 0.0:
            found += A * reach(stream, offset, begin, end, indices, values, cells, traces)
    return found


@njit
def earned_copies(node, begin, end, plan, indices, values, cells, traces, sums, room, to):
    """The same for all replicates, added to what stands in their room."""
    offset = plan[u(node), OFFSET]
    for stream in range(min(OPEN, traces.shape[0])):
        x = reach(stream, offset, begin, end, indices, values, cells, traces)
        if x != 0.0:
            for c in range(room.shape[1]):
                room[to, c] += sums[u(stream), u(node), c] * x


@inlined
def owed(node, at, traces, scales):
    """Σ eA over the streams: times α, what a weight is beyond its base."""
    found = 0.0
    for stream in range(min(OPEN, traces.shape[0])):
        found += traces[u(stream), at] * scales[u(stream), u(node), SUM]
    return found


@njit
def shift_copies(weights, node, at, step, traces, sums):
    """Move the bases of one weight of all replicates by step·Σ eA."""
    for stream in range(min(OPEN, traces.shape[0])):
        e = traces[u(stream), at]
        if step * e != 0.0:
            earn_copies(weights, stream, node, at, step, e, sums)


@njit
def earn_copies(weights, slot, node, at, step, e, sums):
    """Move the bases of one weight of all replicates by step·eA of one stream."""
    for c in range(weights.shape[1]):
        weights[at, c] = moved(weights[at, c], step, sums[u(slot), u(node), c], e)


@njit
def fold(stream, node, s, plan, cells, traces, live, scales, copies, learning, sums):
    """Make bases of the weights that a lazy trace reaches, and measure the trace anew.

    `s` is its scale from now on, 0 to forget it. Returns whether all is finite: a weight that would
    leave [−LIMIT, LIMIT] stays at its base.
    """
    total, slot = traces.shape[1] - 3, min(stream, OPEN)
    offset, averages = plan[u(node), OFFSET], plan[u(node), KIND] == AVERAGED
    column = SECOND if averages else WEIGHT
    A = scales[u(slot), u(node), SUM]
    finite, kept = True, 0
    for k in range(live[u(stream), u(2 * total + node)]):
        i = live[u(stream), u(offset + k)]
        at = u(offset + i)
        e, step = traces[u(stream), at], cells[at, STEP]
        if e == 0.0:  # cancelled; a file would not list it
            live[u(stream), u(total + offset + i)] = -1
            continue
        new = moved(cells[at, u(column)], step, A, e)
        if abs(new) <= LIMIT:
            cells[at, u(column)] = new
        else:
            finite = False
        if copies is not None:
            if averages:
                earn_copies(learning, slot, node, at, step, e, sums)
            else:
                earn_copies(copies, slot, node, at, step, e, sums)
        E = s * e if s != 0.0 else 0.0
        if abs(E) < FAINT:
            traces[u(stream), at] = 0.0
            live[u(stream), u(total + offset + i)] = -1
        else:
            traces[u(stream), at] = E
            live[u(stream), u(offset + kept)] = i
            kept += 1
            finite = finite and abs(E) <= LIMIT
    live[u(stream), u(2 * total + node)] = kept
    scales[u(slot), u(node), SCALE] = 1.0
    scales[u(slot), u(node), SUM] = 0.0
    if copies is not None:
        for c in range(sums.shape[2]):
            sums[u(slot), u(node), c] = 0.0
    return finite


@_compiled
def fold_all(stream, plan, cells, traces, live, scales, copies, learning, sums):
    """Fold and forget the lazy traces of a stream; OK, or DIVERGED plus a node."""
    code = OK
    for node in range(3):
        if plan[node, TRACED] == LAZY:
            fine = fold(
                stream, node, 0.0, plan, cells, traces, live, scales, copies, learning, sums
            )
            if not fine and code == OK:
                code = DIVERGED + node
    return code


@inlined
def visit(
    stream, node, begin, end, weight, plan, settings, indices, values,
    cells, traces, live, scales, copies, learning, sums,
):  # fmt: skip
    """Add the features of a row to a lazy trace, and count the visit; no weight is changed by it.

    Returns whether all is finite.
    """
    total, slot = traces.shape[1] - 3, min(stream, OPEN)
    offset, kind = plan[u(node), OFFSET], plan[u(node), KIND]
    column = SECOND if kind == AVERAGED else WEIGHT
    counts = kind == DECAY or (kind == AVERAGED and weight != 0.0)
    A, inverse = scales[u(slot), u(node), SUM], 1.0 / scales[u(slot), u(node), SCALE]
    reached = live[u(stream), u(2 * total + node)]
    finite = True
    for k in range(begin, end):
        i = indices[u(k)]
        at = u(offset + i)
        base, step, change = cells[at, u(column)], cells[at, STEP], 0.0
        visits = cells[at, FIRST]
        if counts:
            visits += 1.0
            step = decayed_step(settings[u(node), 0], settings[u(node), 1], visits)
            change = cells[at, STEP] - step
            base = moved(base, change, owed(node, at, traces, scales), 1.0)
        e = trace(0.0, 0.0, values[u(k)], weight) * inverse
        base = moved(base, -step, A, e)
        if not (abs(e) <= LIMIT and abs(base) <= LIMIT):
            finite = False
            continue
        cells[at, u(column)] = base
        if counts:
            cells[at, FIRST], cells[at, STEP] = visits, step
        if copies is not None:
            if kind == AVERAGED:
                shift_copies(learning, node, at, change, traces, sums)
                earn_copies(learning, slot, node, at, -step, e, sums)
            else:
                shift_copies(copies, node, at, change, traces, sums)
                earn_copies(copies, slot, node, at, -step, e, sums)
        if e != 0.0:
            traces[u(stream), at] += e
            if live[u(stream), u(total + offset + i)] < 0:
                live[u(stream), u(total + offset + i)] = reached
                live[u(stream), u(offset + reached)] = i
                reached += 1
    live[u(stream), u(2 * total + node)] = reached
    return finite


@inlined
def move_lazily(
    stream, node, begin, end, begin_next, end_next, weight, decay, discount, delta,
    plan, settings, indices, values, cells, traces, live, scales, report,
    copies, learning, sums, room,
):  # fmt: skip
    """Trace, step and weights of a node with a lazy trace; whether it is finite.

    A weight beyond LIMIT is noticed at once where its feature is active, and then none is moved.
    Any other is noticed when it is folded: when the trace has faded (or grown) by a factor of
    1,000, when the episode ends or the trace is cut, and at once in streams that are not kept open;
    it then stays at its base, while the others move. So it is with a trace beyond LIMIT.
    """
    slot, offset, kind = min(stream, OPEN), plan[u(node), OFFSET], plan[u(node), KIND]
    s = trace(decay, scales[u(slot), u(node), SCALE], 0.0, weight)
    finite = math.isfinite(discount)
    scales[u(slot), u(node), SCALE] = s
    largest = 0.0
    for k in range(begin, end):
        largest = max(largest, abs(values[u(k)]))
    if not (SMALL <= s <= LARGE and weight * largest <= LARGE):
        fine = fold(stream, node, s, plan, cells, traces, live, scales, copies, learning, sums)
        finite, s = finite and fine, 1.0
    fine = visit(
        stream, node, begin, end, weight, plan, settings, indices, values,
        cells, traces, live, scales, copies, learning, sums,
    )  # fmt: skip
    finite = finite and fine

    step, told = settings[u(node), 0], report[u(3 + node)]
    if kind == ALPHA_BOUND:  # E·(γ′φ′ − φ)
        pull = discount * s * reach(
            stream, offset, begin_next, end_next, indices, values, cells, traces
        ) - s * reach(stream, offset, begin, end, indices, values, cells, traces)
        step = bounded_step(cells[u(offset), FIRST], pull)
    if kind in (DECAY, AVERAGED):
        step = 1.0  # each weight has its own
        if end > begin and weight != 0.0:
            told = cells[u(offset + indices[u(end - 1)]), STEP]
    else:
        told = step
    report[u(3 + node)] = told

    A = scales[u(slot), u(node), SUM]
    new = moved(A, step, delta, s)
    finite = finite and abs(new) <= LIMIT
    if not finite:
        return False
    scales[u(slot), u(node), SUM] = new
    column = SECOND if kind == AVERAGED else WEIGHT
    for k in range(begin, end):
        at = u(offset + indices[u(k)])
        e, due = traces[u(stream), at], owed(node, at, traces, scales)
        if stream >= OPEN:
            due += e * new
        w = moved(cells[at, u(column)], cells[at, STEP], due, 1.0)
        finite = finite and abs(w) <= LIMIT and abs(e) <= LIMIT
    if not finite:
        scales[u(slot), u(node), SUM] = A
        return False
    if copies is not None:
        sum_copies(slot, node, step, s, sums, room)
    if stream >= OPEN:
        finite = fold(stream, node, s, plan, cells, traces, live, scales, copies, learning, sums)
    if finite and kind == ALPHA_BOUND:
        cells[u(offset), FIRST] = step
    if finite and kind == AVERAGED and weight != 0.0:
        for k in range(begin, end):
            at = u(offset + indices[u(k)])
            w = moved(cells[at, SECOND], cells[at, STEP], owed(node, at, traces, scales), 1.0)
            cells[at, WEIGHT] = averaged(cells[at, WEIGHT], w, cells[at, FIRST])
            if copies is not None:
                average_lazy_copies(copies, learning, node, at, cells, traces, sums, room)
    return finite


@inlined
def sum_copies(slot, node, step, s, sums, room):
    """A of all replicates, each as often as its coin says."""
    for c in range(room.shape[1]):
        sums[u(slot), u(node), c] = moved(
            sums[u(slot), u(node), c], step * room[TOSSED, c], room[OWN, c], s
        )


@njit
def average_lazy_copies(means, weights, node, at, cells, traces, sums, room):
    """Move the means of one weight of all replicates towards what its base and the traces give."""
    for c in range(room.shape[1]):
        room[OWN, c] = weights[at, c]
    for stream in range(min(OPEN, traces.shape[0])):
        x = cells[at, STEP] * traces[u(stream), at]
        if x != 0.0:
            for c in range(room.shape[1]):
                room[OWN, c] += x * sums[u(stream), u(node), c]
    for c in range(room.shape[1]):
        means[at, c] = averaged(means[at, c], room[OWN, c], cells[at, FIRST])


@_compiled
def lay_steps(plan, settings, cells):
    """What stands in the cells of lazy traces for α: 1 where it is common to all weights."""
    for node in range(3):
        last = plan[node + 1, OFFSET] if node < 2 else cells.shape[0]
        if plan[node, TRACED] == LAZY:
            for at in range(plan[node, OFFSET], last):
                step = 1.0
                if plan[node, KIND] in (DECAY, AVERAGED):
                    visits = max(cells[at, FIRST], 1.0)
                    step = decayed_step(settings[node, 0], settings[node, 1], visits)
                cells[at, STEP] = step
