"""The compiled update: transitions in, up to three TD nodes moved, every method and mode.

An estimator is a network of TD nodes (0 value, 1 mean, 2 secondary). :func:`advance` is the one TD
update: for each node it says what the node is fed with, and the rest is the same for all. It is one
flat function, since a call that takes arrays costs more here than a node's whole update.

Features come as rows of a sparse table (`indptr`, `indices`, `values`): a state is a row; a vector
given with a transition makes rows of its own. A trace is kept per stream, with a list of the
weights that it reaches. What the arrays hold:

    plan      [node]    first weight, step-size kind, first row of its features, its kind of
                        trace; then [3]: method, off-policy return, learn the value, rows
    settings  [node]    two numbers of its step-size rule; then κ, one or one per row
    cells     [weight]  weight, two numbers of its step size, room for its new weight; Averaged
                        predicts from the mean (the weight) and learns in the second number; with a
                        lazy trace the last is α, or 1 where α is common to all weights
    traces    [stream]  one per weight; then the discounts of the last transition, one per node
    live      [stream]  weights that the trace reaches; their places in that list; how many a node
    report              TD errors of the nodes, then the steps they last used

A trace is EAGER or LAZY. An eager one moves every weight that it reaches at every step. A
lazy one, of features given with each transition, costs what is active: all traces of a stream decay
alike and see the same error, so that E = s·e with one scale s, and what e has earned is α·e·A with
one sum A of all δ·s since. The true weight is

    w = base + α·Σe·A

over the streams, `base` being what stands in the cells. Where e or α changes, base is changed so
that w is not; where s leaves [SMALL, LARGE], what the trace reaches is folded: the base becomes the
weight, E the new e, s = 1 and A = 0. Streams from OPEN on are folded after each of their steps, so
that reading a weight does not cost what there are streams. None where there is no such trace:

    scales    [stream up to OPEN, node]  s and A

Replicates may ride along: learners that differ from this one only in that each takes every
transition as often as a coin says, not at all or twice. Features, traces and steps are common to
all of them; what is their own (None where there are none):

    copies    [weight, replicate]  weights; with Averaged the means
    learning  [weight, replicate]  with Averaged the weights that learn
    sums      [stream up to OPEN, node, replicate]  A; s and e are common
    room      [row, replicate]     for the numbers of one transition
    coins                          key of the coins (two words), then the number of the transition
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy import uintp as u

from retvar import rules
from retvar.jit import compiled, inlined
from retvar.step_sizes import ADADELTA, ALPHA_BOUND, AVERAGED, DECAY
from retvar.words import U, word

VALUE, MEAN, SECONDARY = range(3)
DIRECT, VTD, CENTRED = range(3)
OFFSET, KIND, ROWS, TRACED = range(4)  # of plan[node]
METHOD, OFF_POLICY, LEARN_VALUE, COUNT = range(4)  # of plan[3]
NONE, EAGER, LAZY = range(3)  # TRACED
WEIGHT, FIRST, SECOND, NEW = range(4)  # of cells
STEP = NEW  # of cells that a lazy trace reaches
SCALE, SUM = range(2)  # of scales
TERMINATED, TRUNCATED = 1, 2
LIMIT = 1e150  # weights beyond this have diverged
FAINT = 1e-100  # traces below this are dropped
SMALL, LARGE = 1e-3, 1e3  # scales of a lazy trace
OPEN = 8  # streams whose lazy traces stay unfolded

OK, STATE, NEXT_STATE, NO_NEXT, REWARD, RHO, GAMMA, LAM = range(8)
DIVERGED = 100  # plus the node
STOP, SKIP, TRUST = range(3)  # at a bad row; TRUST: all rows have been checked
TOSSED, FED, NOW, AFTER, DELTA, FOLLOWS, NOW_OWN, AFTER_OWN, OWN = range(9)  # of room
ROOM = 9
COINS = 64  # in a word


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


@compiled
def clear(stream, plan, traces, live):
    """Forget the traces of a stream and the discounts of its last transition."""
    total = traces.shape[1] - 3
    for node in range(3):
        offset = plan[node, OFFSET]
        for k in range(live[stream, 2 * total + node]):
            i = live[stream, offset + k]
            traces[stream, offset + i] = 0.0
            live[stream, total + offset + i] = -1
        live[stream, 2 * total + node] = 0
        traces[stream, total + node] = 0.0


@compiled
def inspect(row, row_next, ended, reward, rho, gamma, lam, rows, any_gamma, any_lam):
    """OK, or what is wrong with a transition; γ and λ below 0 mean: not given."""
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


@compiled
def check(state, next_state, flags, reward, rho, gamma, lam, plan, gammas, lams):
    """First bad row of a chunk and what is wrong with it; (−1, OK) where all are good."""
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


@njit
def toss(coins, room):
    """Whether each replicate takes this transition: 0 times or 2; the same for any number of them.

    The mean is 1 and the variance 1, which is all that a multiplier bootstrap asks for.
    """
    heads = U(0)
    for c in range(room.shape[1]):
        if c % COINS == 0:
            heads = word(coins[0], coins[1], (coins[2] << U(8)) + U(c // COINS))
        room[TOSSED, c] = np.float64((heads & U(1)) << U(1))
        heads >>= U(1)
    coins[2] += U(1)


@njit
def predict_copies(weights, offset, begin, end, indices, values, room, to):
    """w·φ of all replicates."""
    for c in range(room.shape[1]):
        room[to, c] = 0.0
    for k in range(begin, end):
        at = u(offset + (k if indices is None else indices[u(k)]))
        x = 1.0 if values is None else values[u(k)]
        for c in range(room.shape[1]):
            room[to, c] += x * weights[at, c]


@njit
def feed_copies(node, method, R, g, lm, eta, room):
    """What this node of each replicate is fed with, from what stands in the room of the last."""
    for c in range(room.shape[1]):
        if node == VALUE:
            room[FED, c] = R
        elif node == MEAN:
            room[FED, c] = mean_reward(R, g, lm, room[AFTER, c], eta)
        elif method == VTD:
            room[FED, c] = vtd_reward(R, g, lm, room[FOLLOWS, c], eta)
        elif method == CENTRED:
            room[FED, c] = room[DELTA, c] * room[DELTA, c]
        else:
            room[FED, c] = direct_reward(room[DELTA, c], room[NOW, c], eta)


@njit
def err_copies(room, discount, after, now, to):
    """TD errors of all replicates."""
    for c in range(room.shape[1]):
        room[to, c] = td_error(room[FED, c], discount, room[after, c], room[now, c])


@njit
def move_copies(weights, at, step, E, room):
    """Move one weight of all replicates, each as often as its coin says."""
    for c in range(room.shape[1]):
        weights[at, c] = moved(weights[at, c], step * room[TOSSED, c], room[OWN, c], E)


@njit
def average_copies(means, weights, at, visits, room):
    """Move the means of one weight of all replicates."""
    for c in range(room.shape[1]):
        means[at, c] = averaged(means[at, c], weights[at, c], visits)


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


@compiled
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
    counts = kind in (DECAY, AVERAGED)
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
        cells[at, u(column)], cells[at, FIRST], cells[at, STEP] = base, visits, step
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

    A weight beyond LIMIT is noticed at once where its feature is active or its stream is not kept
    open; otherwise when it is next folded, at the latest at the end of its episode. A trace beyond
    LIMIT is noticed likewise.
    """
    slot, offset, kind = min(stream, OPEN), plan[u(node), OFFSET], plan[u(node), KIND]
    s = trace(decay, scales[u(slot), u(node), SCALE], 0.0, weight)
    finite = math.isfinite(discount)
    scales[u(slot), u(node), SCALE] = s
    if not SMALL <= s <= LARGE:
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
    if stream >= OPEN:
        if copies is not None:
            sum_copies(slot, node, step, s, sums, room)
        finite = fold(stream, node, s, plan, cells, traces, live, scales, copies, learning, sums)
    else:
        for k in range(begin, end):
            at = u(offset + indices[u(k)])
            w = moved(cells[at, u(column)], cells[at, STEP], owed(node, at, traces, scales), 1.0)
            finite = finite and abs(w) <= LIMIT and abs(traces[u(stream), at]) <= LIMIT
        if not finite:
            scales[u(slot), u(node), SUM] = A
        elif copies is not None:
            sum_copies(slot, node, step, s, sums, room)
    if finite and kind == ALPHA_BOUND:
        cells[u(offset), FIRST] = step
    if finite and kind == AVERAGED:
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


@compiled
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


@compiled
def advance(
    state, next_state, flags, reward, rho, gamma, lam, stream, mode,
    plan, settings, gammas, lams, indptr, indices, values, cells, traces, live, scales, report,
    copies, learning, sums, room, coins,
):  # fmt: skip
    """Learn from the rows of a chunk; flags, ρ, γ, λ and stream may be one for all of them.

    Returns the row at which it stopped (or the number of rows), OK or why it stopped, and how many
    bad rows were skipped: where `mode` is SKIP a bad row cuts the trace of its stream.
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
                code = fold_all(lane, plan, cells, traces, live, scales, copies, learning, sums)
            clear(lane, plan, traces, live)
            if scales is not None and code != OK:
                return t, code, skipped
            skipped += 1
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
        if copies is not None:
            toss(coins, room)

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

            # what the node is fed with
            if node == VALUE:
                fed, discount, weight = R, g, ratio
            elif node == MEAN:
                fed = mean_reward(R, g, lm, J_next, eta)
                discount, weight = mean_discount(g, lm, eta), rho_bar
            else:
                if method == VTD:  # which reads the value after its update
                    J_next = 0.0
                    for k in range(begin_value, end_value):
                        i = k if indices is None else indices[u(k)]
                        x = 1.0 if values is None else values[u(k)]
                        J_next += x * cells[u(i), WEIGHT]
                    if scales is not None and plan[VALUE, KIND] != AVERAGED:
                        J_next += earned(
                            VALUE, begin_value, end_value, plan, indices, values,
                            cells, traces, scales,
                        )  # fmt: skip
                    reward_bar = vtd_reward(R, g, lm, J_next, eta)
                    if copies is not None:
                        predict_copies(
                            copies, 0, begin_value, end_value, indices, values, room, FOLLOWS
                        )
                        if scales is not None and plan[VALUE, KIND] != AVERAGED:
                            earned_copies(
                                VALUE, begin_value, end_value, plan, indices, values,
                                cells, traces, sums, room, FOLLOWS,
                            )  # fmt: skip
                fed, weight = reward_bar, rho_bar
                discount = variance_discount(mean_discount(g, lm, eta))

            # its TD error, and what that gives to the next node
            now = after = 0.0
            for k in range(begin, end):
                i = k if indices is None else indices[u(k)]
                x = 1.0 if values is None else values[u(k)]
                now += x * cells[u(offset + i), WEIGHT]
            for k in range(begin_next, end_next):
                i = k if indices is None else indices[u(k)]
                x = 1.0 if values is None else values[u(k)]
                after += x * cells[u(offset + i), WEIGHT]
            kind = plan[u(node), KIND]
            if scales is not None:
                now_earned = earned(node, begin, end, plan, indices, values, cells, traces, scales)
                after_earned = earned(
                    node, begin_next, end_next, plan, indices, values, cells, traces, scales
                )
                if kind != AVERAGED:
                    now += now_earned
                    after += after_earned
            delta = own_delta = td_error(fed, discount, after, now)
            report[u(node)] = delta
            if kind == AVERAGED:  # which predicts from the means and learns with the weights
                now_own = after_own = 0.0
                for k in range(begin, end):
                    i = k if indices is None else indices[u(k)]
                    x = 1.0 if values is None else values[u(k)]
                    now_own += x * cells[u(offset + i), SECOND]
                for k in range(begin_next, end_next):
                    i = k if indices is None else indices[u(k)]
                    x = 1.0 if values is None else values[u(k)]
                    after_own += x * cells[u(offset + i), SECOND]
                if scales is not None:
                    now_own += now_earned
                    after_own += after_earned
                own_delta = td_error(fed, discount, after_own, now_own)
            if copies is not None:
                feed_copies(node, method, R, g, lm, eta, room)
                predict_copies(copies, offset, begin, end, indices, values, room, NOW)
                predict_copies(copies, offset, begin_next, end_next, indices, values, room, AFTER)
                if scales is not None and kind != AVERAGED:
                    earned_copies(
                        node, begin, end, plan, indices, values, cells, traces, sums, room, NOW
                    )
                    earned_copies(
                        node, begin_next, end_next, plan, indices, values, cells, traces,
                        sums, room, AFTER,
                    )  # fmt: skip
                err_copies(room, discount, AFTER, NOW, DELTA)
                if kind == AVERAGED:
                    predict_copies(learning, offset, begin, end, indices, values, room, NOW_OWN)
                    predict_copies(
                        learning, offset, begin_next, end_next, indices, values, room, AFTER_OWN
                    )
                    if scales is not None:
                        earned_copies(
                            node, begin, end, plan, indices, values, cells, traces,
                            sums, room, NOW_OWN,
                        )  # fmt: skip
                        earned_copies(
                            node, begin_next, end_next, plan, indices, values, cells, traces,
                            sums, room, AFTER_OWN,
                        )  # fmt: skip
                    err_copies(room, discount, AFTER_OWN, NOW_OWN, OWN)
                else:
                    err_copies(room, discount, AFTER, NOW, OWN)
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
                    report, copies, learning, sums, room,
                )  # fmt: skip
                if finite:
                    continue
                report[u(node)] = 0.0
                fold_all(lane, plan, cells, traces, live, scales, copies, learning, sums)
                clear(lane, plan, traces, live)
                return t, DIVERGED + node, skipped

            # its trace, E = w(γκE + φ), over the weights that it reaches
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

            # its step
            p, q = settings[u(node), 0], settings[u(node), 1]
            step, column = p, SECOND if kind == AVERAGED else WEIGHT
            if kind in (DECAY, AVERAGED):
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

            # its weights, w += αδE, unless one of them would leave the finite numbers
            finite = math.isfinite(discount)
            own = u(cells.shape[0])  # the weight of the state being left, whose step is reported
            if end > begin:
                own = u(offset + (row if indices is None else indices[u(end - 1)]))
            told = report[u(3 + node)] if kind in (DECAY, ADADELTA, AVERAGED) else step
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
                    if not abs(error) <= LIMIT:  # its square would poison the accumulators
                        finite = False
                        continue
                    cells[at, FIRST] = running_mean_square(p, cells[at, FIRST], error)
                    step = adadelta_step(q, cells[at, FIRST], cells[at, SECOND])
                    cells[at, SECOND] = running_mean_square(p, cells[at, SECOND], step * error)
                if at == own:
                    told = step
                new = moved(cells[at, u(column)], step, own_delta, E)
                cells[at, NEW] = new
                if copies is not None:
                    if kind == AVERAGED:
                        move_copies(learning, at, step, E, room)
                    else:
                        move_copies(copies, at, step, E, room)
                finite = finite and abs(new) <= LIMIT
            report[u(3 + node)] = told
            for k in range(count):
                if traced:
                    at = u(offset + live[u(lane), u(offset + k)])
                else:
                    at = u(offset + (begin + k if indices is None else indices[u(begin + k)]))
                if finite:
                    cells[at, u(column)] = cells[at, NEW]
                cells[at, NEW] = 0.0
            if kind == AVERAGED and finite:
                for k in range(begin, end):
                    at = u(offset + (k if indices is None else indices[u(k)]))
                    visits = cells[at, FIRST]
                    cells[at, WEIGHT] = averaged(cells[at, WEIGHT], cells[at, SECOND], visits)
                    if copies is not None:
                        average_copies(copies, learning, at, visits, room)
            if kind == ALPHA_BOUND and finite:
                cells[u(offset), FIRST] = step
            if not finite:
                report[u(node)] = 0.0
                traces[u(lane), u(total + node)] = 0.0
                if scales is not None:
                    fold_all(lane, plan, cells, traces, live, scales, copies, learning, sums)
                clear(lane, plan, traces, live)
                return t, DIVERGED + node, skipped
        if flag != 0:
            if scales is not None:
                code = fold_all(lane, plan, cells, traces, live, scales, copies, learning, sums)
            clear(lane, plan, traces, live)
            if scales is not None and code != OK:
                return t, code, skipped
    return state.size, OK, skipped


@compiled
def advance_one(ints, floats, indptr, indices, values, traces, live, scales):
    """Learn from the one transition that stands in front of the packed arrays.

    A call from Python costs by the array; packed, one transition costs about a microsecond.
    See :class:`retvar.online.memory.Memory` for what is packed where.
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


@compiled
def advance_one_state(ints, floats, traces, live):
    """The same where every state has its own weight."""
    return advance_one(ints, floats, None, None, None, traces, live, None)


@compiled
def lay_out(x, x_next, indptr, indices, values):
    """Two vectors as sparse rows without their zeros; whether all entries are finite."""
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


@compiled
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
