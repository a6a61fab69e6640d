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
from retvar.jit import inlined
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

td_error = inlined(rules.td_error)
trace = inlined(rules.trace)
moved = inlined(rules.moved)
bounded_step = inlined(rules.bounded_step)


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


@inlined
def here(m, rows, place, stream, row, row_next, discount, weight):
    """Find the node at a place in the arrays."""
    begin, end = span(rows.indptr, m.plan[u(place), ROWS], row)
    begin_next, end_next = span(rows.indptr, m.plan[u(place), ROWS], row_next)
    return Here(
        place, stream, m.plan[u(place), OFFSET], m.plan[u(place), KIND], begin, end, begin_next,
        end_next, discount, weight,
    )  # fmt: skip


@inlined
def span(indptr, first, row):
    """Entries of the features of a row; none for row −1. Where it is None each row is one entry."""
    begin, end = 0, 0
    if row >= 0:
        begin, end = row, row + 1
        if indptr is not None:
            begin, end = indptr[u(first + row)], indptr[u(first + row + 1)]
    return begin, end


@inlined
def index(indices, k):
    """The weight of entry k of the features."""
    return k if indices is None else indices[u(k)]


@inlined
def entry(values, k):
    """Entry k of the features."""
    return 1.0 if values is None else values[u(k)]


@inlined
def predict(weights, rows, offset, begin, end):
    """w·φ of a row."""
    found = 0.0
    for k in range(begin, end):
        found += entry(rows.values, k) * weights[u(offset + index(rows.indices, k)), 0]
    return found


@inlined
def predict_truly(weights, m, rows, place, begin, end):
    """w·φ of a row, with the updates that lazy traces have deferred."""
    found = predict(weights, rows, m.plan[u(place), OFFSET], begin, end)
    return found + deferred_part(m.scales, m, rows, place, begin, end)


@inlined
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


@inlined
def move_by_trace(scales, m, rows, h, decay, own):
    """Move the weights with an eager trace or a lazy one; return whether all is finite."""
    if scales is not None and m.plan[u(h.place), TRACED] == LAZY:
        return move_lazily(m, rows, h, decay, own)
    return move(m, rows, h, decay, own)


@inlined
def move(m, rows, h, decay, own):
    """W += αδE in all lanes, unless a weight of lane 0 would exceed LIMIT: then none moves."""
    traced = m.plan[u(h.place), TRACED] != 0
    count = h.end - h.begin if h.weight != 0.0 else 0
    if traced:
        count = extend_trace(m, rows, h, decay)
    step = m.settings[u(h.place), 0]
    if counts_visits(h.kind):
        for k in range(h.begin, h.end):
            m.steps[u(h.offset + index(rows.indices, k)), FIRST] += counted(h.kind, h.weight)
    if is_bounded(h.kind):
        step = bounded_step(m.steps[u(h.offset), FIRST], pull(m, rows, h))
    learning = m.held if averages(h.kind) else m.weights
    finite = find_weights(m, rows, h, step, count, own, learning)
    for k in range(count):
        at = reached(m, rows, h, k, traced)
        if finite:
            learning[at, 0] = m.steps[at, STEP]
        m.steps[at, STEP] = 0.0
    if finite and averages(h.kind) and h.weight != 0.0:
        for k in range(h.begin, h.end):
            at = u(h.offset + index(rows.indices, k))
            visits = m.steps[at, FIRST]
            m.weights[at, 0] = settled(m.weights[at, 0], m.held[at, 0], visits)
            settle_replicates(m.coins, m.weights, m.held, at, visits)
    if finite and is_bounded(h.kind):
        m.steps[u(h.offset), FIRST] = step
    return finite


@inlined
def extend_trace(m, rows, h, decay):
    """E = w(γκE + φ) over the weights where it is not 0; return how many there are."""
    total, lane = m.steps.shape[0], u(h.stream)
    count = m.live[lane, u(2 * total + h.place)]
    for k in range(h.begin, h.end):
        i = index(rows.indices, k)
        if m.live[lane, u(total + h.offset + i)] < 0:
            m.live[lane, u(total + h.offset + i)] = count
            m.live[lane, u(h.offset + count)] = i
            count += 1
        m.steps[u(h.offset + i), STEP] = entry(rows.values, k)
    kept = 0
    for k in range(count):
        i = m.live[lane, u(h.offset + k)]
        at = u(h.offset + i)
        E = trace(decay, m.traces[lane, at], m.steps[at, STEP], h.weight)
        m.steps[at, STEP] = 0.0
        if abs(E) < FAINT:
            m.traces[lane, at] = 0.0
            m.live[lane, u(total + h.offset + i)] = -1
        else:
            m.traces[lane, at] = E
            m.live[lane, u(total + h.offset + i)] = kept
            m.live[lane, u(h.offset + kept)] = i
            kept += 1
    m.live[lane, u(2 * total + h.place)] = kept
    return kept


@inlined
def reached(m, rows, h, k, traced):
    """The k-th weight that this transition reaches."""
    if traced:
        return u(h.offset + m.live[u(h.stream), u(h.offset + k)])
    return u(h.offset + index(rows.indices, h.begin + k))


@inlined
def pull(m, rows, h):
    """E·(γ′φ′ − φ), by which AlphaBound bounds its step."""
    found = 0.0
    for k in range(h.begin_next, h.end_next):
        at = u(h.offset + index(rows.indices, k))
        found += h.discount * entry(rows.values, k) * m.traces[u(h.stream), at]
    for k in range(h.begin, h.end):
        found -= entry(rows.values, k) * m.traces[u(h.stream), u(h.offset + index(rows.indices, k))]
    return found


@inlined
def find_weights(m, rows, h, common, count, delta, learning):
    """Find the new weights of lane 0, and move the replicates; return whether all are finite."""
    traced, finite = m.plan[u(h.place), TRACED] != 0, math.isfinite(h.discount)
    own = u(m.steps.shape[0])  # weight of the state being left; its step is reported
    if h.end > h.begin:
        own = u(h.offset + index(rows.indices, h.end - 1))
    p, q = m.settings[u(h.place), 0], m.settings[u(h.place), 1]
    by_weight = counts_visits(h.kind) or depends_on_errors(h.kind)
    reported = m.report[u(LEARNER + h.place)] if by_weight else common
    for k in range(count):
        at, step = reached(m, rows, h, k, traced), common
        if traced:
            E = m.traces[u(h.stream), at]
        else:
            E = trace(0.0, 0.0, entry(rows.values, h.begin + k), h.weight)
        if depends_on_errors(h.kind):
            step, m.steps[at, FIRST], m.steps[at, SECOND] = accumulated(
                p, q, m.steps[at, FIRST], m.steps[at, SECOND], delta * E
            )
        elif by_weight:
            step = step_at(h.kind, p, q, m.steps[at, FIRST])
        if at == own and step == step:
            reported = step
        new = moved(learning[at, 0], step, delta, E)
        m.steps[at, STEP] = new
        finite = finite and abs(new) <= LIMIT
        move_replicates(m.coins, m.said, h, learning, at, step, E)
    m.report[u(LEARNER + h.place)] = reported
    return finite


# ---------------------------------------------------------------------- replicates: lanes from 1 on


@inlined
def read_replicates(coins, m, rows, x, h):
    """What a node says in all replicates: rewards, predictions and TD errors."""
    if coins is not None:
        said, place = m.said, u(h.place)
        now, after, error = said.now[place], said.after[place], said.error[place]
        feed_replicates(h.place, m.plan[place, CODE], x, said)
        if averages(h.kind):
            find_errors(rows.indices, None, m.weights, m, rows, h, now, after, error)
            now, after = said.now_own, said.after_own
            find_errors(rows.indices, m.scales, m.held, m, rows, h, now, after, said.own)
        else:
            find_errors(rows.indices, m.scales, m.weights, m, rows, h, now, after, error)


@inlined
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


@inlined
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


@inlined
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


@inlined
def move_replicates(coins, said, h, learning, at, step, E):
    """Move one weight of all replicates, each times its multiplier."""
    if coins is not None:
        own = said.own if averages(h.kind) else said.error[u(h.place)]
        for lane in range(1, own.size):
            alpha = step * coins[u(lane)]
            learning[at, u(lane)] = moved(learning[at, u(lane)], alpha, own[u(lane)], E)


@inlined
def settle_replicates(coins, weights, held, at, visits):
    """Move the means of one weight in all replicates."""
    if coins is not None:
        for lane in range(1, coins.size):
            weights[at, u(lane)] = settled(weights[at, u(lane)], held[at, u(lane)], visits)
