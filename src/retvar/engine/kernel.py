"""The compiled simulation loop: one stream, many learners in lanes, one kernel per shape.

A lane is one column of the network of TD nodes: a value node and, for each method of the block, a
secondary node (and a mean node for the centred method); what each is fed with comes from
:mod:`retvar.networks`. At each step all lanes are in the same
state, so every update is a plain loop over contiguous memory. :func:`kernel_of` makes the loop for
a :class:`Shape`; what the shape lacks (traces, ratios, noise, adaptive steps) costs nothing.

A step has two implementations. Where each state has its own weight and there are no traces, only
the state being left changes, and one loop over the lanes updates the whole network (``LOCAL``).
Otherwise :func:`td_node` updates the weights of each node's features or trace. Both change weights
with :func:`learn` and use the formulas of :mod:`retvar.rules`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from retvar import networks, rules
from retvar.engine import streams
from retvar.engine.streams import START, edge, reward_of, start
from retvar.jit import called, compiled, inlined, wide_noalias
from retvar.networks import NODES, Reading, Readings, Transition
from retvar.online import memory_layout as online
from retvar.online.memory_layout import FAINT, LIMIT
from retvar.random import U, keys
from retvar.step_sizes import AVERAGED, DECAY
from retvar.td import feeds  # lets compiled code call the rules

__all__ = ["Node", "Shape", "kernel_of"]

STOP_CHECK_EVERY = 4_096  # steps, a power of 2
VALUE_, MEAN_, DIRECT_, MOMENT_, VTD_, CENTRED_ = range(6)  # rows of what is recorded
ROWS = 6
WIDTH = 8  # lanes are padded to a multiple of this, the doubles in the widest registers
NOTHING = Reading(0.0, 0.0, 0.0, 0.0)  # what a node says that is not read
MANY = 64  # search for faded traces above so many live weights, every so many steps

td_error = inlined(rules.td_error)
trace = inlined(rules.trace)
moved = inlined(rules.moved)
decayed_step = inlined(rules.decayed_step)
running_mean_square = inlined(rules.running_mean_square)
adadelta_step = inlined(rules.adadelta_step)
bounded_step = inlined(rules.bounded_step)
averaged = inlined(rules.averaged)
mean_reward, direct_reward, moment_reward, centred_reward = (
    inlined(node.reward) for node in NODES[1:5]
)
value_discount, mean_discount, variance_discount = (inlined(node.discount) for node in NODES[:3])


class Shape(NamedTuple):
    """Properties that a kernel is specialised for."""

    nodes: tuple[bool, ...]  #: which of ``NODES`` there are
    learn: bool  #: whether the value is learned
    off_policy: bool  #: estimand: the ρ-weighted return
    weighted: bool  #: whether ratios differ from 1
    noisy: bool  #: whether rewards are random
    local: bool  #: a weight for each state, no traces
    shared: bool  #: local only: all lanes have the same value node
    own: bool  #: whether γ and λ differ between lanes
    safe: bool  #: proved that no weight can exceed LIMIT, so it is not checked
    kind: tuple[int, int, int]  #: step-size rules of value, mean and secondary nodes
    traced: tuple[bool, bool, bool]
    change: bool  #: record the mean absolute change of each estimate
    steps: bool  #: record step sizes


class Node(NamedTuple):
    """TD nodes of one kind, one in each lane; fields that a shape does not need are None.

    The functions below take the fields one by one, and numba removes code that handles None.
    """

    w: Any  #: weights [weight, lane]; the last row stays 0, for the end of an episode. With
    #: Averaged the means that predictions use
    p: Any  #: settings of the step-size rule [lane]; None: does not learn
    q: Any
    first: Any  #: ADADELTA's accumulators [weight, lane]
    second: Any
    visits: Any  #: visits of each weight, for Decay and Averaged
    bound: Any  #: AlphaBound's step [lane]
    peak: Any  #: largest absolute weight so far [lane]; None: proved to be small
    iterates: Any  #: Averaged: the weights before averaging [weight, lane]
    trace: Any  #: [weight, lane]
    live: Any  #: weights with a trace; their positions in this list; their number
    phi: Any  #: scratch for one state's features
    kappa: Any  #: [state or one for all, lane]
    last: Any  #: discount of the last transition [lane]
    now: Any  #: prediction of the state being left [lane]
    after: Any  #: prediction of the next state
    delta: Any  #: TD error
    own: Any  #: Averaged: predictions of `iterates` [2, lane], then their TD error
    indptr: Any  #: features as sparse rows; None: a weight for each state
    indices: Any
    values: Any
    initial: Any  #: [run or one for all, weight, lane]


LEARNING, STEPPING = 9, 21  # number of fields that `learn` and `td_node` take


class Window(NamedTuple):
    """Sums over the last moments of a run: [run, slot, state, lane]."""

    sums: Any  #: sum of the estimate
    squares: Any  #: squared deviation from the truth
    frozen_squares: Any  #: squared deviation from the truth for the frozen value
    truth: Any  #: value and variance [2, state, lane]
    frozen: Any  #: [run or one for all, state, lane]
    indptr: Any  #: features of the variance nodes
    indices: Any
    values: Any


@inlined
def learn(w, p, q, first, second, visits, bound, peak, iterates, i, lane, delta, E, on):
    """Apply the TD update to one weight of one lane; return the step size."""
    step = p[lane]
    if visits is not None:
        step = decayed_step(p[lane], q[0], max(visits[i], 1.0))
    if bound is not None:
        step = bound[lane]
    if second is not None:
        error = delta * E
        G, D = first[i, lane], second[i, lane]
        errors = running_mean_square(p[lane], G, error)
        step = adadelta_step(q[lane], errors, D)
        updates = running_mean_square(p[lane], D, step * error)
        first[i, lane] = errors if on else G
        second[i, lane] = updates if on else D
        size, before = abs(error), peak[lane]
        peak[lane] = size if size > before else before
    learning = w
    if iterates is not None:  # the means follow at each visit
        learning = iterates
    new = moved(learning[i, lane], step, delta, E)
    learning[i, lane] = new
    if peak is not None:
        size, before = abs(new), peak[lane]
        peak[lane] = size if size > before else before
    return step


@inlined
def own_error(w, iterates, s, s2, lane, fed, discount):
    """TD error that a tabular node learns from; with Averaged that of the iterates."""
    learning = w
    if iterates is not None:
        learning = iterates
    return td_error(fed, discount, learning[s2, lane], learning[s, lane])


@inlined
def move_mean(w, iterates, visits, i, lane, on):
    """Move the mean of a weight towards it if the visit counts."""
    if iterates is not None:
        mean = w[i, lane]
        w[i, lane] = averaged(mean, iterates[i, lane], visits[i]) if on else mean


@inlined
def tabular_step(
    w, p, q, first, second, visits, bound, peak, iterates, s, s2, lane, fed, discount, E, on
):  # fmt: skip
    """Update one node on a tabular step; return its step size."""
    delta = own_error(w, iterates, s, s2, lane, fed, discount)
    step = learn(w, p, q, first, second, visits, bound, peak, iterates, s, lane, delta, E, on)
    move_mean(w, iterates, visits, s, lane, on)
    return step


@inlined
def value_lane(
    w, p, q, first, second, visits, bound, peak, iterates, s, s2, lane, reward, gamma, E, on
):  # fmt: skip
    """Update one value node on a tabular step; return J(s), J(s′), δ, new J(s′), step size."""
    J, after = w[s, lane], w[s2, lane]
    delta = td_error(reward, gamma, after, J)
    J_next, step = after, 0.0
    if p is not None:
        step = tabular_step(
            w, p, q, first, second, visits, bound, peak, iterates, s, s2, lane, reward, gamma, E, on
        )
        J_next = w[s, lane] if s == s2 else after
    return J, after, delta, J_next, step


@inlined
def predict(w, indptr, indices, values, s, out):
    """Predictions of a state in all lanes; 0 after the end of an episode."""
    if indptr is None:
        for lane in range(out.size):
            out[lane] = w[s, lane]
    else:
        for lane in range(out.size):
            out[lane] = 0.0
        if s < indptr.size - 1:
            for k in range(indptr[s], indptr[s + 1]):
                i, x = indices[k], values[k]
                for lane in range(out.size):
                    out[lane] += x * w[i, lane]


@inlined
def td_node(
    w, p, q, first, second, visits, bound, peak, iterates, traces, live, phi, kappa, last, now,
    after, delta, own, indptr, indices, values, used, s, s2, fed, discount, decay, weight,
):  # fmt: skip
    """Update the nodes of one kind, with traces and features."""
    lanes, size = fed.size, w.shape[0] - 1
    row = s if kappa.shape[0] > 1 else 0
    predict(w, indptr, indices, values, s, now)
    predict(w, indptr, indices, values, s2, after)
    for lane in range(lanes):
        delta[lane] = td_error(fed[lane], discount[lane], after[lane], now[lane])
        decay[lane] = last[lane] * kappa[row, lane]
        last[lane] = discount[lane]
    errors = delta
    if own is not None:  # Averaged learns from the errors of its iterates
        predict(iterates, indptr, indices, values, s, own[0])
        predict(iterates, indptr, indices, values, s2, own[1])
        errors = own[0]
        for lane in range(lanes):
            errors[lane] = td_error(fed[lane], discount[lane], own[1, lane], own[0, lane])
    if p is not None:
        begin, end = indptr[s], indptr[s + 1]
        reported = indices[end - 1] if end > begin else -1
        if visits is not None:
            counts = 1.0
            if own is not None:  # Averaged skips visits of ratio 0
                counts = 1.0 if weight != 0.0 else 0.0
            for k in range(begin, end):
                visits[indices[k]] += counts
        if traces is None:
            on = weight != 0.0
            for k in range(begin, end):
                i, E = indices[k], trace(0.0, 0.0, values[k], weight)
                for lane in range(lanes):
                    step = learn(
                        w,
                        p,
                        q,
                        first,
                        second,
                        visits,
                        bound,
                        peak,
                        iterates,
                        i,
                        lane,
                        errors[lane],
                        E,
                        on,
                    )
                    if used is not None:
                        used[s, lane] = step if i == reported and on else used[s, lane]
        else:
            count = live[2 * size]
            for k in range(begin, end):
                i = indices[k]
                phi[i] = values[k]
                if live[size + i] < 0:
                    live[size + i] = count
                    live[count] = i
                    count += 1
            live[2 * size] = count
            for k in range(count):
                i = live[k]
                x = phi[i]
                phi[i] = 0.0
                for lane in range(lanes):
                    E = trace(decay[lane], traces[i, lane], x, weight)
                    E = 0.0 if abs(E) < FAINT else E
                    traces[i, lane] = E
                    if bound is None:
                        on = E != 0.0
                        step = learn(
                            w, p, q, first, second, visits, bound, peak, iterates, i, lane,
                            errors[lane], E, on,
                        )  # fmt: skip
                        if used is not None:
                            used[s, lane] = step if i == reported and on else used[s, lane]
            if bound is not None:
                pull = decay  # E·(γ′φ′ − φ)
                for lane in range(lanes):
                    pull[lane] = 0.0
                if s2 < indptr.size - 1:
                    for k in range(indptr[s2], indptr[s2 + 1]):
                        i, x = indices[k], values[k]
                        for lane in range(lanes):
                            pull[lane] += discount[lane] * x * traces[i, lane]
                for k in range(begin, end):
                    i, x = indices[k], values[k]
                    for lane in range(lanes):
                        pull[lane] -= x * traces[i, lane]
                for lane in range(lanes):
                    bound[lane] = bounded_step(bound[lane], pull[lane])
                    if used is not None:
                        used[s, lane] = bound[lane]
                for k in range(count):
                    i = live[k]
                    for lane in range(lanes):
                        E = traces[i, lane]
                        learn(
                            w, p, q, first, second, visits, bound, peak, iterates, i, lane,
                            errors[lane], E, True,
                        )  # fmt: skip
        if own is not None:
            for k in range(begin, end):
                for lane in range(lanes):
                    move_mean(w, iterates, visits, indices[k], lane, weight != 0.0)


@called
def clear_traces(traces, live, last):
    """Clear traces and last discounts at the end of an episode."""
    if traces is not None:
        size = traces.shape[0]
        for k in range(live[2 * size]):
            i = live[k]
            live[size + i] = -1
            for lane in range(last.size):
                traces[i, lane] = 0.0
        live[2 * size] = 0
    if last is not None:
        for lane in range(last.size):
            last[lane] = 0.0


@called
def drop_faded(traces, live):
    """Remove weights whose traces are 0 in all lanes from the list."""
    if traces is not None:
        size = traces.shape[0]
        if live[2 * size] > MANY:
            kept = 0
            for k in range(live[2 * size]):
                i = live[k]
                alive = False
                for lane in range(traces.shape[1]):
                    alive |= traces[i, lane] != 0.0
                live[size + i] = kept if alive else -1
                if alive:
                    live[kept] = i
                    kept += 1
            live[2 * size] = kept


@called
def begin(w, p, q, first, second, visits, bound, peak, iterates, traces, live, last, initial, run):
    """Reset a node to the start of a run."""
    at = run if initial.shape[0] > 1 else 0
    for i in range(initial.shape[1]):
        for lane in range(w.shape[1]):
            w[i, lane] = initial[at, i, lane]
    if second is not None:
        first[:] = 0.0
        second[:] = 0.0
    if iterates is not None:
        for i in range(initial.shape[1]):
            for lane in range(w.shape[1]):
                iterates[i, lane] = initial[at, i, lane]
    if visits is not None:
        visits[:] = 0.0
    if bound is not None:
        for lane in range(bound.size):
            bound[lane] = p[lane]
    if peak is not None:
        peak[:] = 0.0
    clear_traces(traces, live, last)


@called
def note_divergence(w, peak, diverged_at, row, clock, share):
    """Record the moment at which weights of a lane exceed LIMIT."""
    if peak is not None:
        for lane in range(diverged_at.shape[1]):
            at = lane
            if share is not None and row == VALUE_:
                at = share[lane]
            bad = not (peak[at] <= LIMIT)
            if not bad:
                for i in range(w.shape[0] - 1):
                    bad |= not (abs(w[i, at]) <= LIMIT)
            if bad and diverged_at[row, lane] < 0:
                diverged_at[row, lane] = clock


@inlined
def has_diverged(diverged_at, row, lane):
    """Whether a node that an estimate depends on has diverged."""
    return (
        diverged_at[VALUE_, lane] >= 0
        or diverged_at[row, lane] >= 0
        or (row == VTD_ and diverged_at[MOMENT_, lane] >= 0)
        or (row == CENTRED_ and diverged_at[MEAN_, lane] >= 0)
    )


@called
def estimate(
    row, value, mean, direct, vtd, centred, J_indptr, J_indices, J_values, G_indptr, G_indices,
    G_values, V_indptr, V_indices, V_values, share, x, J, s,
):  # fmt: skip
    """Write estimate `row` of a state in all lanes into `x`."""
    if row in (VALUE_, VTD_):
        predict(value, J_indptr, J_indices, J_values, s, J)
    if row == VALUE_:
        for lane in range(x.size):
            x[lane] = J[lane] if share is None else J[share[lane]]
    if mean is not None:
        if row == MEAN_:
            predict(mean, G_indptr, G_indices, G_values, s, x)
        if row == CENTRED_:
            predict(centred, V_indptr, V_indices, V_values, s, x)
    if direct is not None and row == DIRECT_:
        predict(direct, V_indptr, V_indices, V_values, s, x)
    if vtd is not None and row in (MOMENT_, VTD_):
        predict(vtd, V_indptr, V_indices, V_values, s, x)
        if row == VTD_:
            for lane in range(x.size):
                value_now = J[lane] if share is None else J[share[lane]]
                x[lane] -= value_now * value_now


@inlined
def add_sums(window, r, to, of, s, since, x, i, J, share):
    """Add row i of `x` (minus J² if J is given) to the window, `since` times."""
    at = r if window.frozen.shape[0] > 1 else 0
    sums, squares, truth = window.sums[r, to, s], window.squares[r, to, s], window.truth[of, s]
    for lane in range(sums.size):
        found = x[i, lane]
        if J is not None:
            value = J[i, lane] if share is None else J[i, 0]
            found -= value * value
        gap = found - truth[lane]
        sums[lane] += since * found
        squares[lane] += since * (gap * gap)
    if window.frozen.size:
        frozen, others = window.frozen[at, s], window.frozen_squares[r, to, s]
        for lane in range(sums.size):
            found = x[i, lane]
            if J is not None:
                value = J[i, lane] if share is None else J[i, 0]
                found -= value * value
            gap = found - frozen[lane]
            others[lane] += since * (gap * gap)


@inlined
def add_change(changes, previous, x, i, J, share):
    """Add the absolute change of row i of `x` (minus J² if J is given)."""
    for lane in range(changes.size):
        found = x[i, lane]
        if J is not None:
            value = J[i, lane] if share is None else J[i, 0]
            found -= value * value
        changes[lane] += abs(found - previous[lane])
        previous[lane] = found


@functools.cache
def kernel_of(shape: Shape) -> Any:
    """Return the loop for learners of one shape; compiled at its first call."""
    _, _, DIRECT, VTD, CENTRED = shape.nodes[:5]
    _, LEARN, OFF_POLICY, WEIGHTED, NOISY, LOCAL, SHARED, OWN = shape[:8]
    CHANGE, STEPS = shape.change, shape.steps
    DECAY_J, DECAY_G, DECAY_V = (kind in (DECAY, AVERAGED) for kind in shape.kind)
    ALWAYS_J, ALWAYS_G, ALWAYS_V = (kind == DECAY for kind in shape.kind)  # count every visit

    def run_block(
        stream, first_run, runs, points, by_step, window, stop, ticks,
        gammas, lams, value_gammas, slot, share, value, mean, direct, vtd, centred,
        value_fed, value_discount, value_decay, J_row, fed, discount, decay, x,
        states, shares, totals, counted,
        estimates, rmse, changes, previous, steps, used, diverged_at,
    ):  # fmt: skip
        wide_noalias()
        lanes, n = x.size, stream.first.size
        x_table = x.reshape(1, lanes)
        used_J = used[VALUE_] if STEPS else None
        used_G = used[MEAN_] if STEPS else None
        used_D = used[DIRECT_] if STEPS else None
        used_M = used[VTD_] if STEPS else None
        used_C = used[CENTRED_] if STEPS else None
        nodes = (
            value.w, mean.w if CENTRED else None, direct.w if DIRECT else None,
            vtd.w if VTD else None, centred.w if CENTRED else None,
            value.indptr, value.indices, value.values,
            mean.indptr if CENTRED else None, mean.indices if CENTRED else None,
            mean.values if CENTRED else None,
            totals.indptr, totals.indices, totals.values, share, x, J_row,
        )  # fmt: skip
        for r in range(runs):
            a, b = keys(stream.key[0], first_run + r)
            begin(*value[:11], value.last, value.initial, r)
            if DIRECT:
                begin(*direct[:11], direct.last, direct.initial, r)
            if VTD:
                begin(*vtd[:11], vtd.last, vtd.initial, r)
            if CENTRED:
                begin(*mean[:11], mean.last, mean.initial, r)
                begin(*centred[:11], centred.last, centred.initial, r)
            diverged_at[r] = -1
            counted[:] = window
            if STEPS:
                used[:] = np.nan
            if CHANGE:
                for row in range(ROWS):
                    if slot[row] >= 0:
                        for q in range(n):
                            estimate(row, *nodes, q)
                            for lane in range(lanes):
                                previous[slot[row], q, lane] = x[lane]
            s = start(a, b, START, stream)
            t = clock = 0
            for point in range(points.size):
                while clock < points[point]:
                    if t & (STOP_CHECK_EVERY - 1) == 0:
                        ticks[0] = r + clock / points[-1]
                        if stop[0] != 0:
                            return False
                    if not LOCAL and t & (MANY - 1) == 0:
                        drop_faded(value.trace, value.live)
                        if CENTRED:
                            drop_faded(mean.trace, mean.live)
                            drop_faded(centred.trace, centred.live)
                        if DIRECT:
                            drop_faded(direct.trace, direct.live)
                        if VTD:
                            drop_faded(vtd.trace, vtd.live)
                    e = edge(a, b, t, s, stream)
                    s2 = stream.next_state[e]
                    R = reward_of(a, b, t, e, stream) if NOISY else stream.reward[e]
                    ratio = stream.rho[e] if WEIGHTED else 1.0
                    eta = ratio if OFF_POLICY else 1.0
                    rho_bar = 1.0 if OFF_POLICY else ratio

                    if LOCAL:
                        if clock > counted[s]:  # in the window: add the old estimates
                            since = clock - counted[s]
                            counted[s] = clock
                            if LEARN and not SHARED:
                                to = slot[VALUE_]
                                add_sums(totals, r, to, 0, s, since, value.w, s, None, None)
                            if LEARN and SHARED:
                                estimate(VALUE_, *nodes, s)
                                to = slot[VALUE_]
                                add_sums(totals, r, to, 0, s, since, x_table, 0, None, None)
                            if DIRECT:
                                to = slot[DIRECT_]
                                add_sums(totals, r, to, 1, s, since, direct.w, s, None, None)
                            if VTD:
                                to = slot[VTD_]
                                add_sums(totals, r, to, 1, s, since, vtd.w, s, value.w, share)
                            if CENTRED:
                                to = slot[CENTRED_]
                                add_sums(totals, r, to, 1, s, since, centred.w, s, None, None)
                        E, E_bar = trace(0.0, 0.0, 1.0, ratio), trace(0.0, 0.0, 1.0, rho_bar)
                        on, on_bar = ratio != 0.0, rho_bar != 0.0
                        if DECAY_J:
                            value.visits[s] += 1.0 if ALWAYS_J or on else 0.0
                        if CENTRED and DECAY_G:
                            mean.visits[s] += 1.0 if ALWAYS_G or on_bar else 0.0
                        if DECAY_V:
                            counts = 1.0 if ALWAYS_V or on_bar else 0.0
                            if DIRECT:
                                direct.visits[s] += counts
                            if VTD:
                                vtd.visits[s] += counts
                            if CENTRED:
                                centred.visits[s] += counts
                        if SHARED:
                            J, after, delta, J_next, step_J = value_lane(
                                *value[:LEARNING], s, s2, 0, R, gammas[e, 0], E, on
                            )
                        for lane in range(lanes):
                            g = gammas[e, lane] if OWN else gammas[e, 0]
                            lm = lams[e, lane] if OWN else lams[e, 0]
                            if not SHARED:
                                J, after, delta, J_next, step_J = value_lane(
                                    *value[:LEARNING], s, s2, lane, R, g, E, on
                                )
                            if STEPS and LEARN:
                                used[VALUE_, s, lane] = step_J if on else used[VALUE_, s, lane]
                            transition = Transition(R, g, lm, eta)
                            read = Readings(
                                Reading(J, after, delta, J_next), NOTHING, NOTHING, NOTHING
                            )
                            gamma_bar = variance_discount(transition)
                            if DIRECT:
                                reward_bar = direct_reward(transition, read)
                                step = tabular_step(
                                    *direct[:LEARNING], s, s2, lane, reward_bar, gamma_bar, E_bar,
                                    on_bar,
                                )  # fmt: skip
                                if STEPS:
                                    before = used[DIRECT_, s, lane]
                                    used[DIRECT_, s, lane] = step if on_bar else before
                            if VTD:
                                reward_bar = moment_reward(transition, read)
                                step = tabular_step(
                                    *vtd[:LEARNING], s, s2, lane, reward_bar, gamma_bar, E_bar,
                                    on_bar,
                                )  # fmt: skip
                                if STEPS:
                                    before = used[VTD_, s, lane]
                                    used[VTD_, s, lane] = step if on_bar else before
                            if CENTRED:
                                G, G_next = mean.w[s, lane], mean.w[s2, lane]
                                root = mean_discount(transition)
                                reward_mean = mean_reward(transition, read)
                                delta_mean = td_error(reward_mean, root, G_next, G)
                                read_mean = Reading(G, G_next, delta_mean, G_next)
                                reward_bar = centred_reward(
                                    transition, Readings(read.value, read_mean, NOTHING, NOTHING)
                                )
                                step = tabular_step(
                                    *mean[:LEARNING], s, s2, lane, reward_mean, root, E_bar, on_bar
                                )
                                if STEPS:
                                    before = used[MEAN_, s, lane]
                                    used[MEAN_, s, lane] = step if on_bar else before
                                step = tabular_step(
                                    *centred[:LEARNING], s, s2, lane, reward_bar, gamma_bar,
                                    E_bar, on_bar,
                                )  # fmt: skip
                                if STEPS:
                                    before = used[CENTRED_, s, lane]
                                    used[CENTRED_, s, lane] = step if on_bar else before
                    else:
                        for v in range(value_fed.size):
                            value_fed[v] = R
                            value_discount[v] = value_gammas[e, v] if OWN else value_gammas[e, 0]
                        td_node(
                            *value[:STEPPING], used_J, s, s2,
                            value_fed, value_discount, value_decay, ratio,
                        )  # fmt: skip
                        if CENTRED:
                            for lane in range(lanes):
                                g = gammas[e, lane] if OWN else gammas[e, 0]
                                lm = lams[e, lane] if OWN else lams[e, 0]
                                transition, after = (
                                    Transition(R, g, lm, eta),
                                    value.after[share[lane]],
                                )
                                read = Readings(
                                    Reading(0.0, after, 0.0, 0.0), NOTHING, NOTHING, NOTHING
                                )
                                fed[lane] = mean_reward(transition, read)
                                discount[lane] = mean_discount(transition)
                            td_node(
                            *mean[:STEPPING], used_G, s, s2,
                            fed, discount, decay, rho_bar,
                            )  # fmt: skip
                        for lane in range(lanes):
                            g = gammas[e, lane] if OWN else gammas[e, 0]
                            lm = lams[e, lane] if OWN else lams[e, 0]
                            discount[lane] = variance_discount(Transition(R, g, lm, eta))
                        if CENTRED:
                            for lane in range(lanes):
                                read_mean = Reading(0.0, 0.0, mean.delta[lane], 0.0)
                                read = Readings(NOTHING, read_mean, NOTHING, NOTHING)
                                fed[lane] = centred_reward(Transition(R, 0.0, 0.0, eta), read)
                            td_node(
                            *centred[:STEPPING], used_C, s, s2,
                            fed, discount, decay, rho_bar,
                            )  # fmt: skip
                        if DIRECT:
                            for lane in range(lanes):
                                v = share[lane]
                                said = Reading(value.now[v], 0.0, value.delta[v], 0.0)
                                read = Readings(said, NOTHING, NOTHING, NOTHING)
                                fed[lane] = direct_reward(Transition(R, 0.0, 0.0, eta), read)
                            td_node(
                            *direct[:STEPPING], used_D, s, s2,
                            fed, discount, decay, rho_bar,
                            )  # fmt: skip
                        if VTD:  # reads the value after its update
                            predict(value.w, value.indptr, value.indices, value.values, s2, J_row)
                            for lane in range(lanes):
                                g = gammas[e, lane] if OWN else gammas[e, 0]
                                lm = lams[e, lane] if OWN else lams[e, 0]
                                said = Reading(0.0, 0.0, 0.0, J_row[share[lane]])
                                read = Readings(said, NOTHING, NOTHING, NOTHING)
                                fed[lane] = moment_reward(Transition(R, g, lm, eta), read)
                            td_node(
                            *vtd[:STEPPING], used_M, s, s2,
                            fed, discount, decay, rho_bar,
                            )  # fmt: skip

                    if CHANGE and LOCAL:
                        if LEARN and not SHARED:
                            to = slot[VALUE_]
                            add_change(changes[r, to, s], previous[to, s], value.w, s, None, None)
                        if LEARN and SHARED:
                            to = slot[VALUE_]
                            estimate(VALUE_, *nodes, s)
                            add_change(changes[r, to, s], previous[to, s], x_table, 0, None, None)
                        if DIRECT:
                            to = slot[DIRECT_]
                            add_change(changes[r, to, s], previous[to, s], direct.w, s, None, None)
                        if VTD:
                            to = slot[MOMENT_]
                            add_change(changes[r, to, s], previous[to, s], vtd.w, s, None, None)
                            to = slot[VTD_]
                            add_change(changes[r, to, s], previous[to, s], vtd.w, s, value.w, share)
                        if CENTRED:
                            to = slot[MEAN_]
                            add_change(changes[r, to, s], previous[to, s], mean.w, s, None, None)
                            to = slot[CENTRED_]
                            add_change(changes[r, to, s], previous[to, s], centred.w, s, None, None)
                    if CHANGE and not LOCAL:
                        for row in range(ROWS):
                            to = slot[row]
                            if to >= 0:
                                for q in range(n):
                                    estimate(row, *nodes, q)
                                    add_change(
                                        changes[r, to, q], previous[to, q], x_table, 0, None, None
                                    )
                    ended = s2 == n
                    s = s2
                    if ended:
                        s = start(a, b, U(4) * U(t) + U(3), stream)
                        if not LOCAL:
                            clear_traces(value.trace, value.live, value.last)
                            if CENTRED:
                                clear_traces(mean.trace, mean.live, mean.last)
                                clear_traces(centred.trace, centred.live, centred.last)
                            if DIRECT:
                                clear_traces(direct.trace, direct.live, direct.last)
                            if VTD:
                                clear_traces(vtd.trace, vtd.live, vtd.last)
                    t += 1
                    if by_step or ended:
                        clock += 1
                        last = clock == points[-1]
                        if clock > window and (last or not LOCAL):
                            for row in range(ROWS):  # one moment, or the rest of the window
                                if slot[row] >= 0 and row != MEAN_ and row != MOMENT_:
                                    for q in range(n):
                                        since = clock - counted[q] if LOCAL else 1
                                        if row == VALUE_ and not LEARN:
                                            since = clock - window if last else 0
                                        if since > 0:
                                            estimate(row, *nodes, q)
                                            of = 0 if row == VALUE_ else 1
                                            add_sums(
                                                totals, r, slot[row], of, q, since, x_table, 0,
                                                None, None,
                                            )  # fmt: skip

                # record this point
                note_divergence(value.w, value.peak, diverged_at[r], VALUE_, clock, share)
                if DIRECT:
                    note_divergence(direct.w, direct.peak, diverged_at[r], DIRECT_, clock, share)
                if VTD:
                    note_divergence(vtd.w, vtd.peak, diverged_at[r], MOMENT_, clock, share)
                if CENTRED:
                    note_divergence(mean.w, mean.peak, diverged_at[r], MEAN_, clock, share)
                    note_divergence(centred.w, centred.peak, diverged_at[r], CENTRED_, clock, share)
                for row in range(ROWS):
                    if slot[row] >= 0:
                        of = 0 if row == VALUE_ else 1
                        for j in range(states.size):
                            estimate(row, *nodes, states[j])
                            for lane in range(lanes):
                                lost = has_diverged(diverged_at[r], row, lane)
                                estimates[r, point, slot[row], j, lane] = (
                                    np.nan if lost else x[lane]
                                )
                        if shares.size and row != MEAN_ and row != MOMENT_:
                            for lane in range(lanes):
                                fed[lane] = 0.0
                            for q in range(n):
                                if shares[q] > 0.0:
                                    estimate(row, *nodes, q)
                                    for lane in range(lanes):
                                        gap = x[lane] - totals.truth[of, q, lane]
                                        fed[lane] += shares[q] * (gap * gap)
                            for lane in range(lanes):
                                lost = has_diverged(diverged_at[r], row, lane)
                                rmse[r, point, slot[row], lane] = (
                                    np.nan if lost else np.sqrt(fed[lane])
                                )
                        if STEPS and row != VTD_:
                            at_row = VTD_ if row == MOMENT_ else row
                            for j in range(states.size):
                                for lane in range(lanes):
                                    at = lane if LOCAL or row != VALUE_ else share[lane]
                                    steps[r, point, slot[row], j, lane] = used[
                                        at_row, states[j], at
                                    ]
        return True

    sources = streams, online, networks, feeds
    return compiled(run_block, *(str(m.__file__) for m in sources), nogil=True, _nrt=False)
