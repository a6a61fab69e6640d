"""Lazy traces: a step costs as much as its active features, not as the whole trace.

Used for features that come with each transition. All traces of a stream decay alike and see the
same errors. So E = s·e with one scale s, and the updates not yet applied to the weights are α·e·A,
where A is the sum of all δ·s since (the sum of all αδs if α is common to all weights). The true
weight is

    w = base + α·Σe·A

summed over the streams; `base` is what is stored. When e or α changes, the base is changed so
that w stays the same. When s leaves [SMALL, LARGE], the deferred updates are flushed: the true
weight becomes the base, E becomes e, s = 1 and A = 0. They are also flushed before a feature larger
than LARGE is added, because e·A would lose the digits of w, and at the end of an episode, where the
trace is cleared as well. Streams from DEFERRED_STREAMS on are flushed after every step, so that
reading a weight does not get slower with the number of streams.
"""

from __future__ import annotations

import math
from typing import Any

from numpy import uintp as u

from retvar import rules
from retvar.jit import called_part, compiled, part
from retvar.online import memory_layout

# isort: off
from retvar.online.memory_layout import (
    DEFERRED_STREAMS, DIVERGED, FAINT, FIRST, KIND, LARGE, LAZY, LEARNER, LIMIT, OFFSET, OK,
    SMALL, STEP, TRACED,
)  # fmt: skip

# isort: on
from retvar.td import steps
from retvar.td.steps import averages, counted, counts_visits, is_bounded, settled, step_at

trace = part(rules.trace)
moved = part(rules.moved)
bounded_step = part(rules.bounded_step)


def _compiled(function):
    return compiled(function, memory_layout.__file__, steps.__file__)


@part
def clear_trace(stream, m):
    """Clear the traces of a stream and the discounts of its last transition."""
    total = m.steps.shape[0]
    for place in range(m.settings.shape[0]):
        offset = m.plan[u(place), OFFSET]
        for k in range(m.live[u(stream), u(2 * total + place)]):
            i = m.live[u(stream), u(offset + k)]
            m.traces[u(stream), u(offset + i)] = 0.0
            m.live[u(stream), u(total + offset + i)] = -1
        m.live[u(stream), u(2 * total + place)] = 0
        m.traces[u(stream), u(total + place)] = 0.0


@part
def sensitivity(m, rows, stream, offset, begin, end):
    """Σ αeφ over the features of a row: the change of its prediction when A grows by 1."""
    found = 0.0
    for k in range(begin, end):
        at = u(offset + rows.indices[u(k)])
        found += rows.values[u(k)] * m.steps[at, STEP] * m.traces[u(stream), at]
    return found


@part
def deferred_part(scales, m, rows, place, begin, end):
    """What deferred updates add to the prediction of a row from its bases."""
    found = 0.0
    if scales is not None:
        offset = m.plan[u(place), OFFSET]
        for stream in range(min(DEFERRED_STREAMS, m.traces.shape[0])):
            A = m.sums[u(stream), u(place), 0]
            if A != 0.0:
                found += A * sensitivity(m, rows, stream, offset, begin, end)
    return found


@part
def add_deferred_to_replicates(scales, m, rows, place, begin, end, out):
    """Add the deferred part to the predictions of all replicates."""
    if scales is not None:
        offset = m.plan[u(place), OFFSET]
        for stream in range(min(DEFERRED_STREAMS, m.traces.shape[0])):
            x = sensitivity(m, rows, stream, offset, begin, end)
            if x != 0.0:
                for lane in range(1, out.size):
                    out[u(lane)] += m.sums[u(stream), u(place), u(lane)] * x


@part
def deferred_sum(m, place, at):
    """Σ eA over the streams; times α it is the difference of a weight from its base."""
    found = 0.0
    for stream in range(min(DEFERRED_STREAMS, m.traces.shape[0])):
        found += m.traces[u(stream), at] * m.sums[u(stream), u(place), 0]
    return found


@part
def move_bases(m, learning, place, at, step):
    """Move the bases of one weight of all replicates by step·Σ eA."""
    for stream in range(min(DEFERRED_STREAMS, m.traces.shape[0])):
        e = m.traces[u(stream), at]
        if step * e != 0.0:
            move_bases_for_stream(m.coins, m, learning, stream, place, at, step, e)


@part
def move_bases_for_stream(coins, m, learning, slot, place, at, step, e):
    """Move the bases of one weight of all replicates by step·eA of one stream."""
    if coins is not None:
        for lane in range(1, coins.size):
            A = m.sums[u(slot), u(place), u(lane)]
            learning[at, u(lane)] = moved(learning[at, u(lane)], step, A, e)


@called_part
def flush(stream, place, s, m):
    """Apply the deferred updates of a lazy trace to the bases, and rescale the trace.

    `s` is its present scale, or 0 to clear it. Returns whether all is finite; a weight that would
    leave [−LIMIT, LIMIT] stays at its base.
    """
    total, slot = m.steps.shape[0], min(stream, DEFERRED_STREAMS)
    offset, learning = (
        m.plan[u(place), OFFSET],
        m.held if averages(m.plan[u(place), KIND]) else m.weights,
    )
    A = m.sums[u(slot), u(place), 0]
    finite, kept = True, 0
    for k in range(m.live[u(stream), u(2 * total + place)]):
        i = m.live[u(stream), u(offset + k)]
        at = u(offset + i)
        e, step = m.traces[u(stream), at], m.steps[at, STEP]
        if e == 0.0:  # cancelled; a checkpoint would not list it
            m.live[u(stream), u(total + offset + i)] = -1
            continue
        new = moved(learning[at, 0], step, A, e)
        if abs(new) <= LIMIT:
            learning[at, 0] = new
        else:
            finite = False
        move_bases_for_stream(m.coins, m, learning, slot, place, at, step, e)
        E = s * e if s != 0.0 else 0.0
        if abs(E) < FAINT:
            m.traces[u(stream), at] = 0.0
            m.live[u(stream), u(total + offset + i)] = -1
        else:
            m.traces[u(stream), at] = E
            m.live[u(stream), u(offset + kept)] = i
            kept += 1
            finite = finite and abs(E) <= LIMIT
    m.live[u(stream), u(2 * total + place)] = kept
    m.scales[u(slot), u(place)] = 1.0
    for lane in range(m.sums.shape[2]):
        m.sums[u(slot), u(place), u(lane)] = 0.0
    return finite


@part
def flush_all(scales, stream, m):
    """Flush and clear the lazy traces of a stream; return OK, or DIVERGED plus a place."""
    code = OK
    if scales is not None:
        for place in range(m.settings.shape[0]):
            if m.plan[u(place), TRACED] == LAZY:
                fine = flush(stream, place, 0.0, m)
                if not fine and code == OK:
                    code = DIVERGED + place
    return code


@part
def visit(m, rows, h, learning):
    """Add the features of a row to a lazy trace and count the visit, without changing a weight.

    Returns whether all is finite.
    """
    total, slot = m.steps.shape[0], min(h.stream, DEFERRED_STREAMS)
    A, inverse = m.sums[u(slot), u(h.place), 0], 1.0 / m.scales[u(slot), u(h.place)]
    reached, counts = m.live[u(h.stream), u(2 * total + h.place)], counted(h.kind, h.weight) != 0.0
    finite = True
    for k in range(h.begin, h.end):
        i = rows.indices[u(k)]
        at = u(h.offset + i)
        base, step, change = learning[at, 0], m.steps[at, STEP], 0.0
        visits = m.steps[at, FIRST]
        if counts:
            visits += 1.0
            p, q = m.settings[u(h.place), 0], m.settings[u(h.place), 1]
            step = step_at(h.kind, p, q, visits)
            change = m.steps[at, STEP] - step
            base = moved(base, change, deferred_sum(m, h.place, at), 1.0)
        e = trace(0.0, 0.0, rows.values[u(k)], h.weight) * inverse
        base = moved(base, -step, A, e)
        if not (abs(e) <= LIMIT and abs(base) <= LIMIT):
            finite = False
            continue
        learning[at, 0] = base
        if counts:
            m.steps[at, FIRST], m.steps[at, STEP] = visits, step
        move_bases(m, learning, h.place, at, change)
        move_bases_for_stream(m.coins, m, learning, slot, h.place, at, -step, e)
        if e != 0.0:
            m.traces[u(h.stream), at] += e
            if m.live[u(h.stream), u(total + h.offset + i)] < 0:
                m.live[u(h.stream), u(total + h.offset + i)] = reached
                m.live[u(h.stream), u(h.offset + reached)] = i
                reached += 1
    m.live[u(h.stream), u(2 * total + h.place)] = reached
    return finite


@part
def begin_step(m, rows, h, decay, learning):
    """Let a lazy trace decay, flush it where that is due, and add the features of a row.

    Returns its scale, and whether all is finite.
    """
    slot = min(h.stream, DEFERRED_STREAMS)
    s = trace(decay, m.scales[u(slot), u(h.place)], 0.0, h.weight)
    finite = math.isfinite(h.discount)
    m.scales[u(slot), u(h.place)] = s
    largest = 0.0
    for k in range(h.begin, h.end):
        largest = max(largest, abs(rows.values[u(k)]))
    if not (SMALL <= s <= LARGE and h.weight * largest <= LARGE):
        fine = flush(h.stream, h.place, s, m)
        finite, s = finite and fine, 1.0
    fine = visit(m, rows, h, learning)
    return s, finite and fine


@part
def find_step(m, rows, h, s):
    """The step of a node with a lazy trace: 1 where each weight has its own. It is reported."""
    step, reported = m.settings[u(h.place), 0], m.report[u(LEARNER + h.place)]
    if is_bounded(h.kind):  # E·(γ′φ′ − φ)
        pull = h.discount * s * sensitivity(
            m, rows, h.stream, h.offset, h.begin_next, h.end_next
        ) - s * sensitivity(m, rows, h.stream, h.offset, h.begin, h.end)
        step = bounded_step(m.steps[u(h.offset), FIRST], pull)
    if counts_visits(h.kind):
        step = 1.0
        if h.end > h.begin and h.weight != 0.0:
            reported = m.steps[u(h.offset + rows.indices[u(h.end - 1)]), STEP]
    else:
        reported = step
    m.report[u(LEARNER + h.place)] = reported
    return step


@part
def stays_finite(m, rows, h, learning, new):
    """Whether the weights of the active features stay below LIMIT once A is `new`."""
    finite = True
    for k in range(h.begin, h.end):
        at = u(h.offset + rows.indices[u(k)])
        e, deferred = m.traces[u(h.stream), at], deferred_sum(m, h.place, at)
        if h.stream >= DEFERRED_STREAMS:
            deferred += e * new
        w = moved(learning[at, 0], m.steps[at, STEP], deferred, 1.0)
        finite = finite and abs(w) <= LIMIT and abs(e) <= LIMIT
    return finite


@part
def move_lazily(m, rows, h, decay, own):
    """Update a node with a lazy trace; return whether its weights and trace are finite.

    A weight beyond LIMIT is noticed at once if its feature is active, and then no weight moves.
    Other weights are checked when they are flushed: when the trace has shrunk or grown by a factor
    of 1,000, when the episode ends or the trace is cleared, and at every step in streams from
    DEFERRED_STREAMS on. Such a weight stays at its base while the others move. The same holds for
    a trace beyond LIMIT.
    """
    slot, learning = u(min(h.stream, DEFERRED_STREAMS)), m.held if averages(h.kind) else m.weights
    s, finite = begin_step(m, rows, h, decay, learning)
    step, place = find_step(m, rows, h, s), u(h.place)
    A = m.sums[slot, place, 0]
    new = moved(A, step, own, s)
    if not (finite and abs(new) <= LIMIT):
        return False
    m.sums[slot, place, 0] = new
    if not stays_finite(m, rows, h, learning, new):
        m.sums[slot, place, 0] = A
        return False
    add_to_sums(m.coins, m.said, m.sums[slot, place], step, s)
    if h.stream >= DEFERRED_STREAMS:
        finite = flush(h.stream, h.place, s, m)
    if finite and is_bounded(h.kind):
        m.steps[u(h.offset), FIRST] = step
    if finite and averages(h.kind) and h.weight != 0.0:
        for k in range(h.begin, h.end):
            settle(m, h.place, u(h.offset + rows.indices[u(k)]))
    return finite


@part
def add_to_sums(coins, said, sums, step, s):
    """Add to A of all replicates, each times its multiplier."""
    if coins is not None:
        for lane in range(1, sums.size):
            sums[u(lane)] = moved(sums[u(lane)], step, said.own[u(lane)], s)


@called_part
def settle(m, place, at):
    """Move the mean of one weight towards its true value, in all lanes."""
    w = moved(m.held[at, 0], m.steps[at, STEP], deferred_sum(m, place, at), 1.0)
    m.weights[at, 0] = settled(m.weights[at, 0], w, m.steps[at, FIRST])
    settle_replicates(m.coins, m, place, at)


@part
def settle_replicates(coins, m, place, at):
    """The same in all replicates."""
    if coins is None:
        return
    visits, true = m.steps[at, FIRST], m.said.own
    for lane in range(1, true.size):
        true[u(lane)] = m.held[at, u(lane)]
    for stream in range(min(DEFERRED_STREAMS, m.traces.shape[0])):
        x = m.steps[at, STEP] * m.traces[u(stream), at]
        if x != 0.0:
            for lane in range(1, true.size):
                true[u(lane)] += x * m.sums[u(stream), u(place), u(lane)]
    for lane in range(1, true.size):
        m.weights[at, u(lane)] = settled(m.weights[at, u(lane)], true[u(lane)], visits)


def fill_steps(plan: Any, settings: Any, state: Any) -> None:
    """Store α of each weight; 1 where it is common to all weights."""
    places = len(settings)
    for place in range(places):
        last = plan[place + 1, OFFSET] if place + 1 < places else state.shape[0]
        fill_node(plan[place, OFFSET], last, plan[place, KIND], settings, place, state)


@_compiled
def fill_node(first, last, kind, settings, place, state):
    """Store α of one node."""
    for at in range(first, last):
        step = 1.0
        if counts_visits(kind):
            step = step_at(kind, settings[place, 0], settings[place, 1], state[at, FIRST])
        state[at, STEP] = step
