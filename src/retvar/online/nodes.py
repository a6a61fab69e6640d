"""One TD node of an online estimator: predict, err, extend the trace, move.

:func:`td_node` is the TD update, for every node of every method, with every step-size rule. What
the node is fed with comes from :mod:`retvar.td.feeds`, its steps from :mod:`retvar.td.steps`.
Lane 0, the estimator, is computed in registers; bootstrap replicates are the lanes after it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numpy import uintp as u

from retvar import rules
from retvar.jit import part
from retvar.networks import Reading
from retvar.online.lazy_traces import add_deferred_to_replicates, deferred_part, move_lazily
from retvar.online.memory_layout import (
    AGAIN,
    CODE,
    FAINT,
    FIRST,
    KIND,
    LAZY,
    LEARNER,
    LIMIT,
    OFFSET,
    PHI,
    ROWS,
    SECOND,
    STEP,
    TRACED,
)  # fmt: skip
from retvar.td.feeds import feed_replicates, reward_of
from retvar.td.steps import (
    accumulated,
    averages,
    counted,
    counts_visits,
    depends_on_errors,
    is_bounded,
    settled,
    step_at,
)  # fmt: skip

__all__ = ["Here", "here", "predict", "td_node"]

td_error = part(rules.td_error)
trace = part(rules.trace)
moved = part(rules.moved)
bounded_step = part(rules.bounded_step)


class Here(NamedTuple):
    """Where a node is in the arrays, and what this transition gives to it."""

    place: Any
    stream: Any
    offset: Any  #: its first weight
    kind: Any  #: its step-size rule
    begin: Any  #: features of the state being left, entries of the sparse rows
    end: Any
    begin_next: Any  #: features of the next state; none at the end of an episode
    end_next: Any
    discount: Any
    weight: Any  #: ρ or ρ̄


@part
def here(m, rows, place, stream, row, row_next, discount, weight):
    """Find the node at a place in the arrays."""
    begin, end = span(rows.indptr, m.plan[u(place), ROWS], row)
    begin_next, end_next = span(rows.indptr, m.plan[u(place), ROWS], row_next)
    return Here(
        place, stream, m.plan[u(place), OFFSET], m.plan[u(place), KIND], begin, end, begin_next,
        end_next, discount, weight,
    )  # fmt: skip


@part
def span(indptr, first, row):
    """Entries of the features of a row; none for row −1. Where it is None each row is one entry."""
    begin, end = 0, 0
    if row >= 0:
        begin, end = row, row + 1
        if indptr is not None:
            begin, end = indptr[u(first + row)], indptr[u(first + row + 1)]
    return begin, end


@part
def index(indices, k):
    """The weight of entry k of the features."""
    return k if indices is None else indices[u(k)]


@part
def entry(values, k):
    """Entry k of the features."""
    return 1.0 if values is None else values[u(k)]


@part
def predict(weights, rows, offset, begin, end):
    """w·φ of a row."""
    found = 0.0
    for k in range(begin, end):
        found += entry(rows.values, k) * weights[u(offset + index(rows.indices, k)), 0]
    return found


@part
def predict_truly(weights, m, rows, place, begin, end):
    """w·φ of a row, with the updates that lazy traces have deferred."""
    found = predict(weights, rows, m.plan[u(place), OFFSET], begin, end)
    return found + deferred_part(m.scales, m, rows, place, begin, end)


@part
def td_node(m, rows, x, h, decay, learns, read):
    """Update one TD node; return what it says, and whether its weights and trace are finite.

    `read` is what the nodes before it say. `learns` is False for a value held fixed.
    """
    averaged = averages(h.kind)
    fed = reward_of(h.place, m.plan[u(h.place), CODE], x, read)
    if averaged:  # predicts from the means, learns in the weights
        now = predict(m.weights, rows, h.offset, h.begin, h.end)
        after = predict(m.weights, rows, h.offset, h.begin_next, h.end_next)
        own = td_error(
            fed, h.discount,
            predict_truly(m.held, m, rows, h.place, h.begin_next, h.end_next),
            predict_truly(m.held, m, rows, h.place, h.begin, h.end),
        )  # fmt: skip
        error = td_error(fed, h.discount, after, now)
    else:
        now = predict_truly(m.weights, m, rows, h.place, h.begin, h.end)
        after = predict_truly(m.weights, m, rows, h.place, h.begin_next, h.end_next)
        error = own = td_error(fed, h.discount, after, now)
    m.report[u(h.place)] = error
    read_replicates(m.coins, m, rows, x, h)
    finite, updated = True, after
    if learns:
        finite = move_by_trace(m.scales, m, rows, h, decay, own)
    if m.plan[u(h.place), AGAIN] != 0:  # a later node reads the updated prediction
        if averaged:
            updated = predict(m.weights, rows, h.offset, h.begin_next, h.end_next)
        else:
            updated = predict_truly(m.weights, m, rows, h.place, h.begin_next, h.end_next)
        reread_replicates(m.coins, m, rows, h)
    return Reading(now, after, error, updated), finite


@part
def move_by_trace(scales, m, rows, h, decay, own):
    """Move the weights with an eager trace or a lazy one; return whether all is finite."""
    if scales is not None and m.plan[u(h.place), TRACED] == LAZY:
        return move_lazily(m, rows, h, decay, own)
    return move(m, rows, h, decay, own)


@part
def move(m, rows, h, decay, own):
    """W += αδE in all lanes, unless a weight of lane 0 would exceed LIMIT: then none moves."""
    traced = m.plan[u(h.place), TRACED] != 0
    learning = m.held if averages(h.kind) else m.weights
    count = h.end - h.begin if h.weight != 0.0 else 0
    if traced:
        count = activate(rows.indices, m, rows, h)
    step = find_steps(m, rows, h, decay)
    if traced:
        count, finite = extend_trace(m, rows, h, decay, count, step, own, learning)
    else:
        finite = stays_finite(m, rows, h, count, step, own, learning)
    report_step(m, rows, h, step)
    if finite:
        pull_lanes(m.coins, m.said, own)
        for k in range(count):
            at = reached(m, rows, h, k, traced)
            E = m.traces[u(h.stream), at] if traced else fresh_trace(rows, h, k)
            move_lanes(m.coins, m.said, learning, at, step_of(m, h, at, step), own, E)
        if averages(h.kind) and h.weight != 0.0:
            for k in range(h.begin, h.end):
                settle_lanes(m, u(h.offset + index(rows.indices, k)))
        if is_bounded(h.kind):
            m.steps[u(h.offset), FIRST] = step
    return finite


@part
def reached(m, rows, h, k, traced):
    """The k-th weight that this transition reaches."""
    if traced:
        return u(h.offset + m.live[u(h.stream), u(h.offset + k)])
    return u(h.offset + index(rows.indices, h.begin + k))


@part
def fresh_trace(rows, h, k):
    """E = wφ of the k-th active feature, where there is no trace."""
    return trace(0.0, 0.0, entry(rows.values, h.begin + k), h.weight)


# ---------------------------------------------------------------------- traces


@part
def activate(indices, m, rows, h):
    """Add the active features to the list of weights with a trace; return how many it has."""
    total, lane = m.steps.shape[0], u(h.stream)
    count = m.live[lane, u(2 * total + h.place)]
    for k in range(h.begin, h.end):
        i = index(indices, k)
        if m.live[lane, u(total + h.offset + i)] < 0:
            m.live[lane, u(total + h.offset + i)] = count
            m.live[lane, u(h.offset + count)] = i
            count += 1
        if indices is not None:
            m.steps[u(h.offset + i), PHI] = entry(rows.values, k)
    return count


@part
def phi(indices, m, h, i):
    """Feature i of the state being left."""
    if indices is None:
        return 1.0 if i == h.begin else 0.0
    return m.steps[u(h.offset + i), PHI]


@part
def extended(m, rows, h, decay, i):
    """E = w(γκE + φ) of weight i."""
    E = m.traces[u(h.stream), u(h.offset + i)]
    return trace(decay, E, phi(rows.indices, m, h, i), h.weight)


@part
def extend_trace(m, rows, h, decay, count, step, own, learning):
    """Extend the trace; return how many weights it reaches, and whether all will be finite."""
    total, lane, finite, kept = m.steps.shape[0], u(h.stream), math.isfinite(h.discount), 0
    for k in range(count):
        i = m.live[lane, u(h.offset + k)]
        at = u(h.offset + i)
        E = extended(m, rows, h, decay, i)
        if rows.indices is not None:
            m.steps[at, PHI] = 0.0
        if abs(E) < FAINT:
            m.traces[lane, at] = 0.0
            m.live[lane, u(total + h.offset + i)] = -1
        else:
            m.traces[lane, at] = E
            if kept != k:
                m.live[lane, u(total + h.offset + i)] = kept
                m.live[lane, u(h.offset + kept)] = i
            kept += 1
            fine = is_finite(m, h, at, step, own, E, learning)
            finite = finite and fine
    m.live[lane, u(2 * total + h.place)] = kept
    return kept, finite


@part
def stays_finite(m, rows, h, count, step, own, learning):
    """Whether the weights of the active features stay below LIMIT, where there is no trace."""
    finite = math.isfinite(h.discount)
    for k in range(count):
        at = reached(m, rows, h, k, False)
        fine = is_finite(m, h, at, step, own, fresh_trace(rows, h, k), learning)
        finite = finite and fine
    return finite


@part
def is_finite(m, h, at, common, own, E, learning):
    """Whether a weight of lane 0 stays below LIMIT. Adadelta's step is found here, from δE."""
    step = step_of(m, h, at, common)
    if depends_on_errors(h.kind):
        p, q = m.settings[u(h.place), 0], m.settings[u(h.place), 1]
        step, m.steps[at, FIRST], m.steps[at, SECOND] = accumulated(
            p, q, m.steps[at, FIRST], m.steps[at, SECOND], own * E
        )
        if step == step:
            m.steps[at, STEP] = step
    return abs(moved(learning[at, 0], step, own, E)) <= LIMIT


# ---------------------------------------------------------------------- steps


@part
def find_steps(m, rows, h, decay):
    """Count the visits of the active features; return the step common to all weights."""
    p, q = m.settings[u(h.place), 0], m.settings[u(h.place), 1]
    if counts_visits(h.kind):
        for k in range(h.begin, h.end):
            at = u(h.offset + index(rows.indices, k))
            m.steps[at, FIRST] += counted(h.kind, h.weight)
            m.steps[at, STEP] = step_at(h.kind, p, q, m.steps[at, FIRST])
    if is_bounded(h.kind):
        return bounded_step(m.steps[u(h.offset), FIRST], pull(m, rows, h, decay))
    return p


@part
def step_of(m, h, at, common):
    """The step of a weight: its own, or the common one."""
    if counts_visits(h.kind) or depends_on_errors(h.kind):
        return m.steps[at, STEP]
    return common


@part
def report_step(m, rows, h, common):
    """Report the step of the state being left: of its last feature, where each has its own."""
    if not (counts_visits(h.kind) or depends_on_errors(h.kind)):
        m.report[u(LEARNER + h.place)] = common
    elif h.end > h.begin and h.weight != 0.0:
        at = u(h.offset + index(rows.indices, h.end - 1))
        m.report[u(LEARNER + h.place)] = m.steps[at, STEP]


@part
def pull(m, rows, h, decay):
    """E·(γ′φ′ − φ), by which AlphaBound bounds its step."""
    found = 0.0
    for k in range(h.begin_next, h.end_next):
        E = extended(m, rows, h, decay, index(rows.indices, k))
        found += h.discount * entry(rows.values, k) * E
    for k in range(h.begin, h.end):
        found -= entry(rows.values, k) * extended(m, rows, h, decay, index(rows.indices, k))
    return found


# ---------------------------------------------------------------------- lanes


@part
def pull_lanes(coins, said, own):
    """Complete what pulls the weights, multiplier times TD error: the estimator is lane 0."""
    if coins is not None:
        said.own[0] = own


@part
def move_lanes(coins, said, learning, at, step, own, E):
    """Move one weight in all lanes."""
    if coins is None:
        learning[at, 0] = moved(learning[at, 0], step, own, E)
    else:
        for lane in range(coins.size):
            learning[at, u(lane)] = moved(learning[at, u(lane)], step, said.own[u(lane)], E)


@part
def settle_lanes(m, at):
    """Move the means of one weight in all lanes."""
    visits = m.steps[at, FIRST]
    for lane in range(m.weights.shape[1]):
        m.weights[at, u(lane)] = settled(m.weights[at, u(lane)], m.held[at, u(lane)], visits)


# ---------------------------------------------------------------------- replicates: lanes from 1 on


@part
def read_replicates(coins, m, rows, x, h):
    """What a node says in all replicates: rewards, predictions and TD errors."""
    if coins is not None:
        said, place = m.said, u(h.place)
        now, after, error = said.now[place], said.after[place], said.error[place]
        feed_replicates(h.place, m.plan[place, CODE], x, said)
        if averages(h.kind):
            find_errors(rows.indices, None, m.weights, m, rows, h, now, after, error)
            now, after, error = said.now_own, said.after_own, said.own
            find_errors(rows.indices, m.scales, m.held, m, rows, h, now, after, error)
        else:
            find_errors(rows.indices, m.scales, m.weights, m, rows, h, now, after, error)
        for lane in range(1, coins.size):
            said.own[u(lane)] = coins[u(lane)] * error[u(lane)]


@part
def reread_replicates(coins, m, rows, h):
    """Predictions of the next state after the update, in all replicates."""
    if coins is not None:
        updated = m.said.updated[u(h.place)]
        predict_replicates(
            rows.indices, m.weights, rows.values, h.offset, h.begin_next, h.end_next, updated
        )
        if not averages(h.kind):
            add_deferred_to_replicates(
                m.scales, m, rows, h.place, h.begin_next, h.end_next, updated
            )


@part
def find_errors(indices, scales, weights, m, rows, h, now, after, error):
    """Predictions of both states and TD errors, in all replicates, from their rewards."""
    fed = m.said.fed
    if indices is None:
        at, follows = u(h.offset + h.begin), u(h.offset + h.begin_next)
        ends = h.end_next == h.begin_next
        for lane in range(1, error.size):
            after[u(lane)] = 0.0 if ends else weights[follows, u(lane)]
            now[u(lane)] = weights[at, u(lane)]
            error[u(lane)] = td_error(fed[u(lane)], h.discount, after[u(lane)], now[u(lane)])
    else:
        predict_replicates(indices, weights, rows.values, h.offset, h.begin, h.end, now)
        predict_replicates(indices, weights, rows.values, h.offset, h.begin_next, h.end_next, after)
        add_deferred_to_replicates(scales, m, rows, h.place, h.begin, h.end, now)
        add_deferred_to_replicates(scales, m, rows, h.place, h.begin_next, h.end_next, after)
        for lane in range(1, error.size):
            error[u(lane)] = td_error(fed[u(lane)], h.discount, after[u(lane)], now[u(lane)])


@part
def predict_replicates(indices, weights, values, offset, begin, end, out):
    """w·φ of a row in all replicates."""
    if indices is None:
        for lane in range(1, out.size):
            out[u(lane)] = weights[u(offset + begin), u(lane)] if end > begin else 0.0
    else:
        for lane in range(1, out.size):
            out[u(lane)] = 0.0
        for k in range(begin, end):
            at, x = u(offset + indices[u(k)]), values[u(k)]
            for lane in range(1, out.size):
                out[u(lane)] += x * weights[at, u(lane)]
