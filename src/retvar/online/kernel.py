"""The compiled update of an online estimator: columns of transitions, and the network's nodes.

:func:`advance` reads transitions and hands each to :func:`learn`, which goes through the nodes of
the network in order; :mod:`retvar.online.nodes` has the update of a node. Everything is inlined
into one loop, because passing arrays to another function costs more than a node's whole update.
:mod:`retvar.online.memory_layout` describes the arrays.
"""

from __future__ import annotations

import math

from numpy import uintp as u

from retvar import networks
from retvar.jit import called_part, compiled, part, wide_noalias
from retvar.networks import MEAN, THIRD, VALUE, VARIANCE, Reading, Readings, Transition
from retvar.online import lazy_traces, memory_layout, nodes

# isort: off
from retvar.online.memory_layout import (
    BY_RHO, CODE, COLUMNS, COUNT, DIVERGED, GAMMA, LAM, LEARNER, LEARN_VALUE, NEXT_STATE, NO_NEXT,
    OFFSET, OFF_POLICY, OK, PLACE_COUNT, PLAN, REWARD, RHO, ROWS, STATE, STOP, STREAM, TERMINATED,
    TRUST, WORD_BITS, Arrays, FeatureRows, Transitions,
)  # fmt: skip

# isort: on
from retvar.online.lazy_traces import clear_trace, flush_all
from retvar.online.nodes import entry, here, index, span, td_node
from retvar.random import U, word
from retvar.td import feeds, steps
from retvar.td.feeds import discount_of

ENDS = PLAN[0] * PLAN[1]  # of ints: where the plan ends, and the ends of the parts of floats begin
COUNTS = ENDS + 6  # of ints: transitions learned from and skipped
INPUT = COUNTS + 2  # of ints, the last: state, next state, flags and stream of one transition
INTS = INPUT + 4


def _compiled(function):
    modules = (memory_layout, lazy_traces, nodes, networks, feeds, steps)
    return compiled(function, *(str(module.__file__) for module in modules), _nrt=False)


@part
def inspect(x, t, row, row_next, ended, rows, any_gamma, any_lam):
    """Return OK or the error code of a transition; γ and λ below 0 mean "not given"."""
    if row < 0 or row >= rows:
        return STATE
    if row_next >= rows or row_next < -1:
        return NEXT_STATE
    if row_next < 0 and not ended:
        return NO_NEXT
    if not math.isfinite(x.reward[u(t)]):
        return REWARD
    rho = x.rho[u(t if x.rho.size > 1 else 0)]
    if not (math.isfinite(rho) and rho >= 0.0):
        return RHO
    gamma = x.gamma[u(t if x.gamma.size > 1 else 0)]
    if not (gamma <= 1.0) or (gamma < 0.0 and not (any_gamma or ended)):
        return GAMMA
    lam = x.lam[u(t if x.lam.size > 1 else 0)]
    if not (lam <= 1.0) or (lam < 0.0 and not (any_lam or ended)):
        return LAM
    return OK


@part
def inspect_row(columns, t, plan, gammas, lams):
    """Return OK or the error code of row t."""
    flag = columns.flags[u(t if columns.flags.size > 1 else 0)]
    return inspect(
        columns, t, columns.state[u(t)], columns.next_state[u(t)], (flag & TERMINATED) != 0,
        plan[LEARNER, COUNT], gammas.size > 0, lams.size > 0,
    )  # fmt: skip


@_compiled
def check(columns, plan, gammas, lams):
    """Return the first invalid row of a chunk and its error code; (−1, OK) if all are valid."""
    for t in range(columns.state.size):
        code = inspect_row(columns, t, plan, gammas, lams)
        if code != OK:
            return t, code
    return -1, OK


@called_part
def draw_multipliers(coins, draws):
    """Draw the bootstrap multiplier of each replicate for this transition: 0 or 2.

    Mean and variance are 1, as a multiplier bootstrap requires. The draws of a replicate do not
    depend on how many replicates there are. Lane 0 is the estimator; its multiplier stays 1.
    """
    if coins is not None:
        for first in range(1, coins.size, WORD_BITS):
            bits = word(draws[0], draws[1], (draws[2] << U(8)) + U(first // WORD_BITS))
            for k in range(min(WORD_BITS, coins.size - first)):
                coins[u(first + k)] = 2.0 if (bits >> U(k)) & U(1) != U(0) else 0.0
        draws[2] += U(1)


@part
def step_node(m, rows, x, ratio, stream, row, row_next, place, read):
    """Let the node at a place learn; return what it says and OK or an error code."""
    total = m.steps.shape[0]
    kappa = 2 + (row if m.settings.shape[1] > 3 else 0)
    rho_bar = 1.0 if m.plan[LEARNER, OFF_POLICY] != 0 else ratio
    weight = ratio if m.plan[u(place), BY_RHO] != 0 else rho_bar
    discount = discount_of(place, m.plan[u(place), CODE], x)
    h = here(m, rows, place, stream, row, row_next, discount, weight)
    decay = m.traces[u(stream), u(total + place)] * m.settings[u(place), u(kappa)]
    m.traces[u(stream), u(total + place)] = discount
    learns = place != VALUE or m.plan[LEARNER, LEARN_VALUE] != 0
    said, finite = td_node(m, rows, x, h, decay, learns, read)
    code = OK
    if not finite:
        m.report[u(place)] = 0.0
        m.traces[u(stream), u(total + place)] = 0.0
        code = DIVERGED + place
    return said, code


@part
def learn(m, rows, x, ratio, stream, row, row_next):
    """Learn from one transition: each node of the network in turn; return OK or an error code."""
    draw_multipliers(m.coins, m.draws)
    nothing = Reading(0.0, 0.0, 0.0, 0.0)
    before = Readings(nothing, nothing, nothing, nothing)
    value, code = step_node(m, rows, x, ratio, stream, row, row_next, VALUE, before)
    if code != OK:
        return code
    mean = nothing
    if m.plan[MEAN, CODE] >= 0:
        before = Readings(value, nothing, nothing, nothing)
        mean, code = step_node(m, rows, x, ratio, stream, row, row_next, MEAN, before)
        if code != OK:
            return code
    before = Readings(value, mean, nothing, nothing)
    variance, code = step_node(m, rows, x, ratio, stream, row, row_next, VARIANCE, before)
    if code != OK:
        return code
    before = Readings(value, mean, variance, nothing)
    return learn_moments(m.moments, m, rows, x, ratio, stream, row, row_next, before)


@part
def learn_moments(moments, m, rows, x, ratio, stream, row, row_next, before):
    """Let the nodes of the third and fourth moment learn, if there are any; return a code."""
    code = OK
    if moments is not None:
        for place in range(THIRD, m.settings.shape[0]):
            third, code = step_node(m, rows, x, ratio, stream, row, row_next, place, before)
            if code != OK:
                return code
            before = Readings(before.value, before.mean, before.variance, third)
    return code


@part
def end_episode(stream, m):
    """Apply deferred updates and clear the traces of a stream; return OK or an error code."""
    code = flush_all(m.scales, stream, m)
    clear_trace(stream, m)
    return code


@_compiled
def end_traces(stream, m):
    """Like :func:`end_episode`, called from Python."""
    return end_episode(stream, m)


@part
def advance_rows(columns, mode, m, gammas, lams, rows):
    """Learn from the rows of a chunk; see :func:`advance`."""
    by_ratio, by_gamma = 1 if columns.rho.size > 1 else 0, 1 if columns.gamma.size > 1 else 0
    by_lam, by_stream = 1 if columns.lam.size > 1 else 0, 1 if columns.stream.size > 1 else 0
    by_flag = 1 if columns.flags.size > 1 else 0
    for t in range(columns.state.size):
        row, row_next = columns.state[u(t)], columns.next_state[u(t)]
        stream, flag = columns.stream[u(t * by_stream)], columns.flags[u(t * by_flag)]
        code = OK
        if mode != TRUST:
            code = inspect_row(columns, t, m.plan, gammas, lams)
        if code != OK:
            if mode == STOP:
                return t, code
            code = end_episode(stream, m)
            if code != OK:
                return t, code
            m.counts[1] += 1
            continue
        # Only a terminated transition has no next state and γ′ = 0; truncated ones bootstrap.
        ratio, g, lm = (
            columns.rho[u(t * by_ratio)], columns.gamma[u(t * by_gamma)],
            columns.lam[u(t * by_lam)],
        )  # fmt: skip
        ended = (flag & TERMINATED) != 0
        if ended:
            row_next, g, lm = -1, 0.0, 0.0
        else:
            if g < 0.0:
                g = gammas[row_next if gammas.size > 1 else 0]
            if lm < 0.0:
                lm = lams[row_next if lams.size > 1 else 0]
        eta = ratio if m.plan[LEARNER, OFF_POLICY] != 0 else 1.0
        x = Transition(columns.reward[u(t)], g, lm, eta)
        code = learn(m, rows, x, ratio, stream, row, row_next)
        if code != OK:
            end_episode(stream, m)
            return t, code
        if flag != 0:  # both kinds of end clear the traces
            code = end_episode(stream, m)
            if code != OK:
                return t, code
        m.counts[0] += 1
    return columns.state.size, OK


@_compiled
def advance(columns, mode, m, gammas, lams, rows):
    """Learn from the rows of a chunk.

    Returns the row at which it stopped (or the number of rows), and OK or an error code; it counts
    the rows learned from and skipped. With mode SKIP an invalid row clears the traces of its
    stream.
    """
    wide_noalias()
    return advance_rows(columns, mode, m, gammas, lams, rows)


@part
def unpacked(ints, floats, traces, live, scales, sums, moments):
    """Views of packed arrays; see :class:`retvar.online.memory.Memory`."""
    places = ints[LEARNER * PLAN[1] + PLACE_COUNT]
    a, b, c = ints[ENDS], ints[ENDS + 1], ints[ENDS + 2]
    d, e, f = ints[ENDS + 3], ints[ENDS + 4], ints[ENDS + 5]
    m = Arrays(
        ints[0:ENDS].reshape(PLAN), floats[4:a].reshape((places, (a - 4) // places)),
        floats[c:d].reshape((d - c, 1)), floats[d:e].reshape((e - d, 1)),
        floats[e:f].reshape(((f - e) // COLUMNS, COLUMNS)), traces, live, scales, sums, floats[f:],
        None, None, None, ints[COUNTS:INPUT], moments,
    )  # fmt: skip
    return m, floats[a:b], floats[b:c]


@part
def first_transition(ints, floats):
    """Views of the transition at the front of the packed arrays, as columns of one row."""
    return Transitions(
        ints[INPUT : INPUT + 1], ints[INPUT + 1 : INPUT + 2], ints[INPUT + 2 : INPUT + 3],
        floats[0:1], floats[1:2], floats[2:3], floats[3:4], ints[INPUT + 3 : INPUT + 4],
    )  # fmt: skip


@part
def is_stream(ints, traces):
    """Whether there is a trace for the stream of the packed transition."""
    return 0 <= ints[INPUT + 3] < traces.shape[0]


@part
def advance_packed(ints, floats, rows, traces, live, scales, sums, moments):
    """Learn from the one transition stored at the front of the packed arrays."""
    if not is_stream(ints, traces):
        return STREAM
    m, gammas, lams = unpacked(ints, floats, traces, live, scales, sums, moments)
    return advance_rows(first_transition(ints, floats), STOP, m, gammas, lams, rows)[1]


@_compiled
def advance_one(ints, floats, rows, traces, live, scales, sums):
    """Learn from the one transition stored at the front of the packed arrays.

    The cost of a call from Python grows with the number of arrays; with packed arrays one
    transition takes about a microsecond.
    """
    return advance_packed(ints, floats, rows, traces, live, scales, sums, None)


@_compiled
def advance_one_state(ints, floats, traces, live):
    """Like :func:`advance_one`, where every state has its own weight."""
    rows = FeatureRows(None, None, None)
    return advance_packed(ints, floats, rows, traces, live, None, None, None)


@_compiled
def advance_one_moments(ints, floats, rows, traces, live, scales, sums):
    """Like :func:`advance_one`, with nodes of higher moments."""
    return advance_packed(ints, floats, rows, traces, live, scales, sums, True)


@_compiled
def advance_one_state_moments(ints, floats, traces, live):
    """Like :func:`advance_one_state`, with nodes of higher moments."""
    rows = FeatureRows(None, None, None)
    return advance_packed(ints, floats, rows, traces, live, None, None, True)


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
def predict_rows(place, first, plan, rows, weights, out):
    """w·φ of the estimator for the rows from `first` on, without deferred updates."""
    for row in range(out.size):
        begin, end = span(rows.indptr, plan[place, ROWS], first + row)
        for k in range(begin, end):
            at = plan[place, OFFSET] + index(rows.indices, k)
            out[row] += entry(rows.values, k) * weights[at, 0]
