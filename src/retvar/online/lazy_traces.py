"""Lazy traces: a step costs as much as its active features, not as the whole trace.

Used for features that come with each transition. All traces of a stream decay alike and see the
same errors. So E = s·e with one scale s, and the updates not yet applied to the weights are α·e·A,
where A is the sum of all δ·s since (the sum of all αδs if α is common to all weights). The true
weight is

    w = base + α·Σe·A

summed over the streams; `base` is stored in the cells. When e or α changes, the base is changed so
that w stays the same. When s leaves [SMALL, LARGE], the deferred updates are flushed: the true
weight becomes the base, E becomes e, s = 1 and A = 0. They are also flushed before a feature larger
than LARGE is added, because e·A would lose the digits of w, and at the end of an episode, where the
trace is cleared as well. Streams from DEFERRED_STREAMS on are flushed after every step, so that
reading a weight does not get slower with the number of streams.
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
    DEFERRED_STREAMS, DIVERGED, FAINT, FIRST, KIND, LARGE, LAZY, LIMIT, MULTIPLIER, OFFSET, OK, OWN,
    SCALE, SECOND, SMALL, STEP, SUM, TRACED, WEIGHT,
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
def sensitivity(stream, offset, begin, end, indices, values, cells, traces):
    """Σ αeφ over the features of a row: the change of its prediction when A grows by 1."""
    found = 0.0
    for k in range(begin, end):
        at = u(offset + indices[u(k)])
        found += values[u(k)] * cells[at, STEP] * traces[u(stream), at]
    return found


@inlined
def deferred_part(node, begin, end, plan, indices, values, cells, traces, scales):
    """What deferred updates add to the prediction of a row from its bases."""
    found, offset = 0.0, plan[u(node), OFFSET]
    for stream in range(min(DEFERRED_STREAMS, traces.shape[0])):
        A = scales[u(stream), u(node), SUM]
        if A != 0.0:
            found += A * sensitivity(stream, offset, begin, end, indices, values, cells, traces)
    return found


@njit
def add_deferred_part(node, begin, end, plan, indices, values, cells, traces, sums, scratch, to):
    """Add the deferred part of all replicates to a scratch row."""
    offset = plan[u(node), OFFSET]
    for stream in range(min(DEFERRED_STREAMS, traces.shape[0])):
        x = sensitivity(stream, offset, begin, end, indices, values, cells, traces)
        if x != 0.0:
            for c in range(scratch.shape[1]):
                scratch[to, c] += sums[u(stream), u(node), c] * x


@inlined
def deferred_sum(node, at, traces, scales):
    """Σ eA over the streams; times α it is the difference of a weight from its base."""
    found = 0.0
    for stream in range(min(DEFERRED_STREAMS, traces.shape[0])):
        found += traces[u(stream), at] * scales[u(stream), u(node), SUM]
    return found


@njit
def move_bases(weights, node, at, step, traces, sums):
    """Move the bases of one weight of all replicates by step·Σ eA."""
    for stream in range(min(DEFERRED_STREAMS, traces.shape[0])):
        e = traces[u(stream), at]
        if step * e != 0.0:
            move_bases_for_stream(weights, stream, node, at, step, e, sums)


@njit
def move_bases_for_stream(weights, slot, node, at, step, e, sums):
    """Move the bases of one weight of all replicates by step·eA of one stream."""
    for c in range(weights.shape[1]):
        weights[at, c] = moved(weights[at, c], step, sums[u(slot), u(node), c], e)


@njit
def flush(stream, node, s, plan, cells, traces, live, scales, replicates, learning, sums):
    """Apply the deferred updates of a lazy trace to the bases, and rescale the trace.

    `s` is its present scale, or 0 to clear it. Returns whether all is finite; a weight that would
    leave [−LIMIT, LIMIT] stays at its base.
    """
    total, slot = traces.shape[1] - 3, min(stream, DEFERRED_STREAMS)
    offset, averages = plan[u(node), OFFSET], plan[u(node), KIND] == AVERAGED
    column = SECOND if averages else WEIGHT
    A = scales[u(slot), u(node), SUM]
    finite, kept = True, 0
    for k in range(live[u(stream), u(2 * total + node)]):
        i = live[u(stream), u(offset + k)]
        at = u(offset + i)
        e, step = traces[u(stream), at], cells[at, STEP]
        if e == 0.0:  # cancelled; a checkpoint would not list it
            live[u(stream), u(total + offset + i)] = -1
            continue
        new = moved(cells[at, u(column)], step, A, e)
        if abs(new) <= LIMIT:
            cells[at, u(column)] = new
        else:
            finite = False
        if replicates is not None:
            if averages:
                move_bases_for_stream(learning, slot, node, at, step, e, sums)
            else:
                move_bases_for_stream(replicates, slot, node, at, step, e, sums)
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
    if replicates is not None:
        for c in range(sums.shape[2]):
            sums[u(slot), u(node), c] = 0.0
    return finite


@_compiled
def flush_all(stream, plan, cells, traces, live, scales, replicates, learning, sums):
    """Flush and clear the lazy traces of a stream; return OK, or DIVERGED plus a node."""
    code = OK
    for node in range(3):
        if plan[node, TRACED] == LAZY:
            fine = flush(
                stream, node, 0.0, plan, cells, traces, live, scales, replicates, learning, sums
            )
            if not fine and code == OK:
                code = DIVERGED + node
    return code


@inlined
def visit(
    stream, node, begin, end, weight, plan, settings, indices, values,
    cells, traces, live, scales, replicates, learning, sums,
):  # fmt: skip
    """Add the features of a row to a lazy trace and count the visit, without changing a weight.

    Returns whether all is finite.
    """
    total, slot = traces.shape[1] - 3, min(stream, DEFERRED_STREAMS)
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
            base = moved(base, change, deferred_sum(node, at, traces, scales), 1.0)
        e = trace(0.0, 0.0, values[u(k)], weight) * inverse
        base = moved(base, -step, A, e)
        if not (abs(e) <= LIMIT and abs(base) <= LIMIT):
            finite = False
            continue
        cells[at, u(column)] = base
        if counts:
            cells[at, FIRST], cells[at, STEP] = visits, step
        if replicates is not None:
            if kind == AVERAGED:
                move_bases(learning, node, at, change, traces, sums)
                move_bases_for_stream(learning, slot, node, at, -step, e, sums)
            else:
                move_bases(replicates, node, at, change, traces, sums)
                move_bases_for_stream(replicates, slot, node, at, -step, e, sums)
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
    replicates, learning, sums, scratch,
):  # fmt: skip
    """Update a node with a lazy trace; return whether its weights and trace are finite.

    A weight beyond LIMIT is noticed at once if its feature is active, and then no weight moves.
    Other weights are checked when they are flushed: when the trace has shrunk or grown by a factor
    of 1,000, when the episode ends or the trace is cleared, and at every step in streams from
    DEFERRED_STREAMS on. Such a weight stays at its base while the others move. The same holds for
    a trace beyond LIMIT.
    """
    slot, offset, kind = min(stream, DEFERRED_STREAMS), plan[u(node), OFFSET], plan[u(node), KIND]
    s = trace(decay, scales[u(slot), u(node), SCALE], 0.0, weight)
    finite = math.isfinite(discount)
    scales[u(slot), u(node), SCALE] = s
    largest = 0.0
    for k in range(begin, end):
        largest = max(largest, abs(values[u(k)]))
    if not (SMALL <= s <= LARGE and weight * largest <= LARGE):
        fine = flush(stream, node, s, plan, cells, traces, live, scales, replicates, learning, sums)
        finite, s = finite and fine, 1.0
    fine = visit(
        stream, node, begin, end, weight, plan, settings, indices, values,
        cells, traces, live, scales, replicates, learning, sums,
    )  # fmt: skip
    finite = finite and fine

    step, reported = settings[u(node), 0], report[u(3 + node)]
    if kind == ALPHA_BOUND:  # E·(γ′φ′ − φ)
        pull = discount * s * sensitivity(
            stream, offset, begin_next, end_next, indices, values, cells, traces
        ) - s * sensitivity(stream, offset, begin, end, indices, values, cells, traces)
        step = bounded_step(cells[u(offset), FIRST], pull)
    if kind in (DECAY, AVERAGED):
        step = 1.0  # each weight has its own
        if end > begin and weight != 0.0:
            reported = cells[u(offset + indices[u(end - 1)]), STEP]
    else:
        reported = step
    report[u(3 + node)] = reported

    A = scales[u(slot), u(node), SUM]
    new = moved(A, step, delta, s)
    finite = finite and abs(new) <= LIMIT
    if not finite:
        return False
    scales[u(slot), u(node), SUM] = new
    column = SECOND if kind == AVERAGED else WEIGHT
    for k in range(begin, end):
        at = u(offset + indices[u(k)])
        e, deferred = traces[u(stream), at], deferred_sum(node, at, traces, scales)
        if stream >= DEFERRED_STREAMS:
            deferred += e * new
        w = moved(cells[at, u(column)], cells[at, STEP], deferred, 1.0)
        finite = finite and abs(w) <= LIMIT and abs(e) <= LIMIT
    if not finite:
        scales[u(slot), u(node), SUM] = A
        return False
    if replicates is not None:
        add_to_sums(slot, node, step, s, sums, scratch)
    if stream >= DEFERRED_STREAMS:
        finite = flush(
            stream, node, s, plan, cells, traces, live, scales, replicates, learning, sums
        )
    if finite and kind == ALPHA_BOUND:
        cells[u(offset), FIRST] = step
    if finite and kind == AVERAGED and weight != 0.0:
        for k in range(begin, end):
            at = u(offset + indices[u(k)])
            w = moved(
                cells[at, SECOND], cells[at, STEP], deferred_sum(node, at, traces, scales), 1.0
            )
            cells[at, WEIGHT] = averaged(cells[at, WEIGHT], w, cells[at, FIRST])
            if replicates is not None:
                average_lazy_replicates(
                    replicates, learning, node, at, cells, traces, sums, scratch
                )
    return finite


@inlined
def add_to_sums(slot, node, step, s, sums, scratch):
    """Add to A of all replicates, each times its multiplier."""
    for c in range(scratch.shape[1]):
        sums[u(slot), u(node), c] = moved(
            sums[u(slot), u(node), c], step * scratch[MULTIPLIER, c], scratch[OWN, c], s
        )


@njit
def average_lazy_replicates(means, weights, node, at, cells, traces, sums, scratch):
    """Move the means of one weight of all replicates towards its true values."""
    for c in range(scratch.shape[1]):
        scratch[OWN, c] = weights[at, c]
    for stream in range(min(DEFERRED_STREAMS, traces.shape[0])):
        x = cells[at, STEP] * traces[u(stream), at]
        if x != 0.0:
            for c in range(scratch.shape[1]):
                scratch[OWN, c] += x * sums[u(stream), u(node), c]
    for c in range(scratch.shape[1]):
        means[at, c] = averaged(means[at, c], scratch[OWN, c], cells[at, FIRST])


@_compiled
def fill_steps(plan, settings, cells):
    """Store α in the cells of nodes with lazy traces: 1 where it is common to all weights."""
    for node in range(3):
        last = plan[node + 1, OFFSET] if node < 2 else cells.shape[0]
        if plan[node, TRACED] == LAZY:
            for at in range(plan[node, OFFSET], last):
                step = 1.0
                if plan[node, KIND] in (DECAY, AVERAGED):
                    visits = max(cells[at, FIRST], 1.0)
                    step = decayed_step(settings[node, 0], settings[node, 1], visits)
                cells[at, STEP] = step
