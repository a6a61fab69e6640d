"""The compiled TD update of an online estimator, for all methods and modes.

An estimator is a network of TD nodes (0 value, 1 mean, 2 secondary). :func:`advance` computes the
reward, discount and weight of each node and then applies the same TD update to all nodes. It is one
flat function, because passing arrays to another function costs more than a node's whole update.

:mod:`retvar.online.memory_layout` describes the arrays. Eager traces are updated here. Lazy traces,
used where features come with each transition, are in :mod:`retvar.online.lazy_traces`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy import uintp as u

from retvar import rules
from retvar.jit import compiled, inlined
from retvar.online import lazy_traces, memory_layout

# isort: off
from retvar.online.memory_layout import (
    AFTER, AFTER_OWN, CENTRED, COUNT, DELTA, DIVERGED, FAINT, FED, FIRST, GAMMA, KIND, LAM,
    LAZY, LEARN_VALUE, LIMIT, MEAN, METHOD, MULTIPLIER, NEW, NEXT_STATE, NEXT_VALUE, NOW,
    NOW_OWN, NO_NEXT, OFFSET, OFF_POLICY, OK, OWN, REWARD, RHO, ROWS, SECOND, STATE, STOP,
    TERMINATED, TRACED, TRUST, VALUE, VTD, WEIGHT, WORD_BITS,
)  # fmt: skip

# isort: on
from retvar.online.lazy_traces import add_deferred_part, deferred_part, flush_all, move_lazily
from retvar.random import U, word
from retvar.step_sizes import ADADELTA, ALPHA_BOUND, AVERAGED, DECAY

td_error = njit(rules.td_error)
trace = njit(rules.trace)
direct_reward = njit(rules.direct_reward)
vtd_reward = njit(rules.vtd_reward)
mean_reward = njit(rules.mean_reward)
mean_discount = njit(rules.mean_discount)
variance_discount = njit(rules.variance_discount)
moved = njit(rules.moved)
decayed_step = njit(rules.decayed_step)
averaged = njit(rules.averaged)
running_mean_square = njit(rules.running_mean_square)
adadelta_step = njit(rules.adadelta_step)
bounded_step = njit(rules.bounded_step)


def _compiled(function):
    return compiled(function, memory_layout.__file__, lazy_traces.__file__)


@_compiled
def clear(stream, plan, traces, live):
    """Clear the traces of a stream and the discounts of its last transition."""
    total = traces.shape[1] - 3
    for node in range(3):
        offset = plan[node, OFFSET]
        for k in range(live[stream, 2 * total + node]):
            i = live[stream, offset + k]
            traces[stream, offset + i] = 0.0
            live[stream, total + offset + i] = -1
        live[stream, 2 * total + node] = 0
        traces[stream, total + node] = 0.0


@_compiled
def inspect(row, row_next, ended, reward, rho, gamma, lam, rows, any_gamma, any_lam):
    """Return OK or the error code of a transition; γ and λ below 0 mean "not given"."""
    if row < 0 or row >= rows:
        return STATE
    if row_next >= rows or row_next < -1:
        return NEXT_STATE
    if row_next < 0 and not ended:
        return NO_NEXT
    if not math.isfinite(reward):
        return REWARD
    if not (math.isfinite(rho) and rho >= 0.0):
        return RHO
    if not (gamma <= 1.0) or (gamma < 0.0 and not (any_gamma or ended)):
        return GAMMA
    if not (lam <= 1.0) or (lam < 0.0 and not (any_lam or ended)):
        return LAM
    return OK


@_compiled
def check(state, next_state, flags, reward, rho, gamma, lam, plan, gammas, lams):
    """Return the first invalid row of a chunk and its error code; (−1, OK) if all are valid."""
    for t in range(state.size):
        code = inspect(
            state[t], next_state[t],
            (flags[t if flags.size > 1 else 0] & TERMINATED) != 0, reward[t],
            rho[t if rho.size > 1 else 0], gamma[t if gamma.size > 1 else 0],
            lam[t if lam.size > 1 else 0],
            plan[3, COUNT], gammas.size > 0, lams.size > 0,
        )  # fmt: skip
        if code != OK:
            return t, code
    return -1, OK


@inlined
def dot(cells, column, offset, begin, end, indices, values):
    """w·φ of a row, where w is a column of the cells."""
    found = 0.0
    for k in range(begin, end):
        i = k if indices is None else indices[u(k)]
        x = 1.0 if values is None else values[u(k)]
        found += x * cells[u(offset + i), u(column)]
    return found


@njit
def draw_multipliers(draws, scratch):
    """Draw the bootstrap multiplier of each replicate for this transition: 0 or 2.

    Mean and variance are 1, as a multiplier bootstrap requires. The draws of a replicate do not
    depend on how many replicates there are.
    """
    bits = U(0)
    for c in range(scratch.shape[1]):
        if c % WORD_BITS == 0:
            bits = word(draws[0], draws[1], (draws[2] << U(8)) + U(c // WORD_BITS))
        scratch[MULTIPLIER, c] = np.float64((bits & U(1)) << U(1))
        bits >>= U(1)
    draws[2] += U(1)


@njit
def predict_all(weights, offset, begin, end, indices, values, scratch, to):
    """w·φ of all replicates."""
    for c in range(scratch.shape[1]):
        scratch[to, c] = 0.0
    for k in range(begin, end):
        at = u(offset + (k if indices is None else indices[u(k)]))
        x = 1.0 if values is None else values[u(k)]
        for c in range(scratch.shape[1]):
            scratch[to, c] += x * weights[at, c]


@njit
def feed_replicates(node, method, R, g, lm, eta, scratch):
    """Reward of this node in each replicate, from the scratch rows of the previous node."""
    for c in range(scratch.shape[1]):
        if node == VALUE:
            scratch[FED, c] = R
        elif node == MEAN:
            scratch[FED, c] = mean_reward(R, g, lm, scratch[AFTER, c], eta)
        elif method == VTD:
            scratch[FED, c] = vtd_reward(R, g, lm, scratch[NEXT_VALUE, c], eta)
        elif method == CENTRED:
            scratch[FED, c] = scratch[DELTA, c] * scratch[DELTA, c]
        else:
            scratch[FED, c] = direct_reward(scratch[DELTA, c], scratch[NOW, c], eta)


@njit
def td_errors_of_replicates(scratch, discount, after, now, to):
    """TD errors of all replicates."""
    for c in range(scratch.shape[1]):
        scratch[to, c] = td_error(scratch[FED, c], discount, scratch[after, c], scratch[now, c])


@njit
def td_errors_of_states(means, weights, kind, at, follows, discount, scratch):
    """Predictions and TD errors of all replicates where each state has its own weight.

    At the end of an episode `follows` may be any weight, because the discount is 0.
    """
    for c in range(scratch.shape[1]):
        now, after = means[at, c], means[follows, c]
        scratch[NOW, c], scratch[AFTER, c] = now, after
        scratch[DELTA, c] = td_error(scratch[FED, c], discount, after, now)
    if kind == AVERAGED:
        for c in range(scratch.shape[1]):
            now, after = weights[at, c], weights[follows, c]
            scratch[OWN, c] = td_error(scratch[FED, c], discount, after, now)
    else:
        for c in range(scratch.shape[1]):
            scratch[OWN, c] = scratch[DELTA, c]


@njit
def move_replicates(weights, at, step, E, scratch):
    """Move one weight of all replicates, each times its multiplier."""
    for c in range(scratch.shape[1]):
        weights[at, c] = moved(weights[at, c], step * scratch[MULTIPLIER, c], scratch[OWN, c], E)


@njit
def average_replicates(means, weights, at, visits, scratch):
    """Move the means of one weight of all replicates."""
    for c in range(scratch.shape[1]):
        means[at, c] = averaged(means[at, c], weights[at, c], visits)


@_compiled
def advance(
    state, next_state, flags, reward, rho, gamma, lam, stream, mode,
    plan, settings, gammas, lams, indptr, indices, values, cells, traces, live, scales, report,
    replicates, learning, sums, scratch, draws,
):  # fmt: skip
    """Learn from the rows of a chunk; flags, ρ, γ, λ and stream may have one entry for all rows.

    Returns the row at which it stopped (or the number of rows), OK or an error code, and the number
    of skipped rows. With mode SKIP an invalid row clears the traces of its stream.
    """
    total = traces.shape[1] - 3
    method, learn_value = plan[3, METHOD], plan[3, LEARN_VALUE] != 0
    skipped = 0
    by_ratio, by_gamma = 1 if rho.size > 1 else 0, 1 if gamma.size > 1 else 0
    by_lam, by_lane = 1 if lam.size > 1 else 0, 1 if stream.size > 1 else 0
    by_flag = 1 if flags.size > 1 else 0
    for t in range(state.size):
        row, row_next, flag, R = state[u(t)], next_state[u(t)], flags[u(t * by_flag)], reward[u(t)]
        lane, ratio = stream[u(t * by_lane)], rho[u(t * by_ratio)]
        g, lm = gamma[u(t * by_gamma)], lam[u(t * by_lam)]
        # Only a terminated transition has no next state and γ′ = 0; truncated ones bootstrap.
        ended = (flag & TERMINATED) != 0
        code = OK
        if mode != TRUST:
            code = inspect(
                row, row_next, ended, R, ratio, g, lm, plan[3, COUNT],
                gammas.size > 0, lams.size > 0,
            )  # fmt: skip
        if code != OK:
            if mode == STOP:
                return t, code, skipped
            if scales is not None:
                code = flush_all(
                    lane, plan, cells, traces, live, scales, replicates, learning, sums
                )
                if code != OK:
                    clear(lane, plan, traces, live)
                    return t, code, skipped
            skipped += 1
            clear(lane, plan, traces, live)
            continue
        if ended:
            row_next, g, lm = -1, 0.0, 0.0
        else:
            if g < 0.0:
                g = gammas[row_next if gammas.size > 1 else 0]
            if lm < 0.0:
                lm = lams[row_next if lams.size > 1 else 0]
        eta, rho_bar = 1.0, ratio
        if plan[3, OFF_POLICY] != 0:
            eta, rho_bar = ratio, 1.0
        kappa = 2 + (row if settings.shape[1] > 3 else 0)
        J_next = reward_bar = 0.0
        begin_value = end_value = 0
        if replicates is not None:
            draw_multipliers(draws, scratch)

        for node in range(3):
            if node == MEAN and method != CENTRED:
                continue
            offset = plan[u(node), OFFSET]
            begin, end, begin_next, end_next = row, row + 1, 0, 0
            if row_next >= 0:
                begin_next, end_next = row_next, row_next + 1
            if indptr is not None:
                first = plan[u(node), ROWS]
                begin, end = indptr[u(first + row)], indptr[u(first + row + 1)]
                if row_next >= 0:
                    first += row_next
                    begin_next, end_next = indptr[u(first)], indptr[u(first + 1)]

            # reward, discount and weight of the node
            if node == VALUE:
                fed, discount, weight = R, g, ratio
            elif node == MEAN:
                fed = mean_reward(R, g, lm, J_next, eta)
                discount, weight = mean_discount(g, lm, eta), rho_bar
            else:
                if method == VTD:  # reads the value after its update
                    J_next = dot(cells, WEIGHT, 0, begin_value, end_value, indices, values)
                    if scales is not None and plan[VALUE, KIND] != AVERAGED:
                        J_next += deferred_part(
                            VALUE, begin_value, end_value, plan, indices, values,
                            cells, traces, scales,
                        )  # fmt: skip
                    reward_bar = vtd_reward(R, g, lm, J_next, eta)
                    if replicates is not None:
                        predict_all(
                            replicates, 0, begin_value, end_value, indices, values,
                            scratch, NEXT_VALUE,
                        )  # fmt: skip
                        if scales is not None and plan[VALUE, KIND] != AVERAGED:
                            add_deferred_part(
                                VALUE, begin_value, end_value, plan, indices, values,
                                cells, traces, sums, scratch, NEXT_VALUE,
                            )  # fmt: skip
                fed, weight = reward_bar, rho_bar
                discount = variance_discount(mean_discount(g, lm, eta))

            # TD error, and what the next node needs
            now = dot(cells, WEIGHT, offset, begin, end, indices, values)
            after = dot(cells, WEIGHT, offset, begin_next, end_next, indices, values)
            kind = plan[u(node), KIND]
            if scales is not None:
                now_deferred = deferred_part(
                    node, begin, end, plan, indices, values, cells, traces, scales
                )
                after_deferred = deferred_part(
                    node, begin_next, end_next, plan, indices, values, cells, traces, scales
                )
                if kind != AVERAGED:
                    now += now_deferred
                    after += after_deferred
            delta = own_delta = td_error(fed, discount, after, now)
            report[u(node)] = delta
            if kind == AVERAGED:  # predicts from the means, learns in the weights
                now_own = dot(cells, SECOND, offset, begin, end, indices, values)
                after_own = dot(cells, SECOND, offset, begin_next, end_next, indices, values)
                if scales is not None:
                    now_own += now_deferred
                    after_own += after_deferred
                own_delta = td_error(fed, discount, after_own, now_own)
            if replicates is not None:
                feed_replicates(node, method, R, g, lm, eta, scratch)
                if indices is None:
                    at, follows = u(offset + begin), u(offset + max(begin_next, 0))
                    td_errors_of_states(replicates, learning, kind, at, follows, discount, scratch)
                else:
                    predict_all(replicates, offset, begin, end, indices, values, scratch, NOW)
                    predict_all(
                        replicates, offset, begin_next, end_next, indices, values, scratch, AFTER
                    )
                    if scales is not None and kind != AVERAGED:
                        add_deferred_part(
                            node, begin, end, plan, indices, values, cells, traces,
                            sums, scratch, NOW,
                        )  # fmt: skip
                        add_deferred_part(
                            node, begin_next, end_next, plan, indices, values, cells, traces,
                            sums, scratch, AFTER,
                        )  # fmt: skip
                    td_errors_of_replicates(scratch, discount, AFTER, NOW, DELTA)
                    if kind == AVERAGED:
                        predict_all(learning, offset, begin, end, indices, values, scratch, NOW_OWN)
                        predict_all(
                            learning, offset, begin_next, end_next, indices, values,
                            scratch, AFTER_OWN,
                        )  # fmt: skip
                        if scales is not None:
                            add_deferred_part(
                                node, begin, end, plan, indices, values, cells, traces,
                                sums, scratch, NOW_OWN,
                            )  # fmt: skip
                            add_deferred_part(
                                node, begin_next, end_next, plan, indices, values, cells, traces,
                                sums, scratch, AFTER_OWN,
                            )  # fmt: skip
                        td_errors_of_replicates(scratch, discount, AFTER_OWN, NOW_OWN, OWN)
                    else:
                        td_errors_of_replicates(scratch, discount, AFTER, NOW, OWN)
            if node == VALUE:
                J_next, begin_value, end_value = after, begin_next, end_next
                reward_bar = direct_reward(delta, now, eta)
            elif node == MEAN:
                reward_bar = delta * delta
            decay = traces[u(lane), u(total + node)] * settings[u(node), u(kappa)]
            traces[u(lane), u(total + node)] = discount
            if node == VALUE and not learn_value:
                continue
            if scales is not None and plan[u(node), TRACED] == LAZY:
                finite = move_lazily(
                    lane, node, begin, end, begin_next, end_next, weight, decay, discount,
                    own_delta, plan, settings, indices, values, cells, traces, live, scales,
                    report, replicates, learning, sums, scratch,
                )  # fmt: skip
                if finite:
                    continue
                report[u(node)] = 0.0
                flush_all(lane, plan, cells, traces, live, scales, replicates, learning, sums)
                clear(lane, plan, traces, live)
                return t, DIVERGED + node, skipped

            # trace, E = w(γκE + φ), over the weights where it is not 0
            traced = plan[u(node), TRACED] != 0
            count = end - begin if weight != 0.0 else 0
            if traced:
                count = live[u(lane), u(2 * total + node)]
                for k in range(begin, end):
                    i = k if indices is None else indices[u(k)]
                    if live[u(lane), u(total + offset + i)] < 0:
                        live[u(lane), u(total + offset + i)] = count
                        live[u(lane), u(offset + count)] = i
                        count += 1
                    cells[u(offset + i), NEW] = 1.0 if values is None else values[u(k)]
                kept = 0
                for k in range(count):
                    i = live[u(lane), u(offset + k)]
                    at = u(offset + i)
                    E = trace(decay, traces[u(lane), at], cells[at, NEW], weight)
                    cells[at, NEW] = 0.0
                    if abs(E) < FAINT:
                        traces[u(lane), at] = 0.0
                        live[u(lane), u(total + offset + i)] = -1
                    else:
                        traces[u(lane), at] = E
                        live[u(lane), u(total + offset + i)] = kept
                        live[u(lane), u(offset + kept)] = i
                        kept += 1
                count = kept
                live[u(lane), u(2 * total + node)] = count

            # step size
            p, q = settings[u(node), 0], settings[u(node), 1]
            step, column = p, SECOND if kind == AVERAGED else WEIGHT
            if kind == DECAY or (kind == AVERAGED and weight != 0.0):
                for k in range(begin, end):
                    i = k if indices is None else indices[u(k)]
                    cells[u(offset + i), FIRST] += 1.0
            elif kind == ALPHA_BOUND:
                pull = 0.0  # E·(γ′φ′ − φ)
                for k in range(begin_next, end_next):
                    i = k if indices is None else indices[u(k)]
                    x = 1.0 if values is None else values[u(k)]
                    pull += discount * x * traces[u(lane), u(offset + i)]
                for k in range(begin, end):
                    i = k if indices is None else indices[u(k)]
                    x = 1.0 if values is None else values[u(k)]
                    pull -= x * traces[u(lane), u(offset + i)]
                step = bounded_step(cells[u(offset), FIRST], pull)

            # weights, w += αδE, unless one of them would exceed LIMIT
            finite = math.isfinite(discount)
            own = u(cells.shape[0])  # weight of the state being left; its step is reported
            if end > begin:
                own = u(offset + (row if indices is None else indices[u(end - 1)]))
            reported = report[u(3 + node)] if kind in (DECAY, ADADELTA, AVERAGED) else step
            for k in range(count):
                if traced:
                    at = u(offset + live[u(lane), u(offset + k)])
                    E = traces[u(lane), at]
                else:
                    at = u(offset + (begin + k if indices is None else indices[u(begin + k)]))
                    x = 1.0 if values is None else values[u(begin + k)]
                    E = trace(0.0, 0.0, x, weight)
                if kind in (DECAY, AVERAGED):
                    step = decayed_step(p, q, max(cells[at, FIRST], 1.0))
                elif kind == ADADELTA:
                    error = delta * E
                    if not abs(error) <= LIMIT:  # its square would overflow the accumulators
                        finite = False
                        continue
                    cells[at, FIRST] = running_mean_square(p, cells[at, FIRST], error)
                    step = adadelta_step(q, cells[at, FIRST], cells[at, SECOND])
                    cells[at, SECOND] = running_mean_square(p, cells[at, SECOND], step * error)
                if at == own:
                    reported = step
                new = moved(cells[at, u(column)], step, own_delta, E)
                cells[at, NEW] = new
                if replicates is not None:
                    if kind == AVERAGED:
                        move_replicates(learning, at, step, E, scratch)
                    else:
                        move_replicates(replicates, at, step, E, scratch)
                finite = finite and abs(new) <= LIMIT
            report[u(3 + node)] = reported
            for k in range(count):
                if traced:
                    at = u(offset + live[u(lane), u(offset + k)])
                else:
                    at = u(offset + (begin + k if indices is None else indices[u(begin + k)]))
                if finite:
                    cells[at, u(column)] = cells[at, NEW]
                cells[at, NEW] = 0.0
            if kind == AVERAGED and finite and weight != 0.0:
                for k in range(begin, end):
                    at = u(offset + (k if indices is None else indices[u(k)]))
                    visits = cells[at, FIRST]
                    cells[at, WEIGHT] = averaged(cells[at, WEIGHT], cells[at, SECOND], visits)
                    if replicates is not None:
                        average_replicates(replicates, learning, at, visits, scratch)
            if kind == ALPHA_BOUND and finite:
                cells[u(offset), FIRST] = step
            if not finite:
                report[u(node)] = 0.0
                traces[u(lane), u(total + node)] = 0.0
                if scales is not None:
                    flush_all(lane, plan, cells, traces, live, scales, replicates, learning, sums)
                clear(lane, plan, traces, live)
                return t, DIVERGED + node, skipped
        if scales is not None and flag != 0:
            code = flush_all(lane, plan, cells, traces, live, scales, replicates, learning, sums)
            if code != OK:
                clear(lane, plan, traces, live)
                return t, code, skipped
        # Both kinds of end clear the traces.
        if flag != 0:
            clear(lane, plan, traces, live)
    return state.size, OK, skipped


@_compiled
def advance_one(ints, floats, indptr, indices, values, traces, live, scales):
    """Learn from the one transition stored at the front of the packed arrays.

    The cost of a call from Python grows with the number of arrays; with packed arrays one
    transition takes about a microsecond. See :class:`retvar.online.memory.Memory`.
    """
    a, b, c, d = ints[16], ints[17], ints[18], ints[19]
    _, code, _ = advance(
        ints[20:21], ints[21:22], ints[22:23], floats[0:1], floats[1:2], floats[2:3], floats[3:4],
        ints[23:24], STOP, ints[0:16].reshape(4, 4), floats[4:a].reshape(3, (a - 4) // 3),
        floats[a:b], floats[b:c], indptr, indices, values,
        floats[c:d].reshape((d - c) // 4, 4), traces, live, scales, floats[d:],
        None, None, None, None, None,
    )  # fmt: skip
    return code


@_compiled
def advance_one_state(ints, floats, traces, live):
    """Like :func:`advance_one`, where every state has its own weight."""
    return advance_one(ints, floats, None, None, None, traces, live, None)


@_compiled
def write_rows(x, x_next, indptr, indices, values):
    """Write two vectors as sparse rows without zeros; return whether all entries are finite."""
    k = 0
    finite = True
    for vector, row in ((x, 0), (x_next, 1)):
        for i in range(vector.size):
            if vector[i] != 0.0:
                indices[k] = i
                values[k] = vector[i]
                finite = finite and math.isfinite(vector[i])
                k += 1
        indptr[row + 1] = k
    return finite


@_compiled
def predict(node, first, last, plan, indptr, indices, values, cells):
    """w·φ of the rows from `first` to `last` (excluded)."""
    out = np.zeros(last - first)
    for row in range(first, last):
        if indptr is None:
            out[row - first] = cells[plan[node, OFFSET] + row, WEIGHT]
        else:
            at = plan[node, ROWS] + row
            for k in range(indptr[at], indptr[at + 1]):
                out[row - first] += values[k] * cells[plan[node, OFFSET] + indices[k], WEIGHT]
    return out
