"""One TD node of a simulation, in all lanes: predict, err, extend the trace, move.

A lane is a learner, or several that share a value node. What a node is fed with comes from
:mod:`retvar.networks`, its steps from :mod:`retvar.td.steps`. The update has three forms. In the
first two the whole network of a lane is updated before the next lane (:func:`fused_node`), with
everything in registers, and several lanes at once in vectors.

LOCAL   a weight for each state, without traces: only the state being left changes.
DENSE   few weights: every step goes through all weights of a node, in loops of literal length.
SPREAD  many weights: node by node, over the weights of the features or of the trace, lanes
        innermost (:func:`spread_node`).

Arrays of weights are [weight, lane]. In the dense form they are flat, ordered by group of `width`
lanes, then weight, then lane, so that distances are literal and loops are vectorised; a single lane
is a group, and its numbers stay scalar.
Functions made here are inlined into the kernel of a :class:`retvar.engine.shapes.Shape`, in which
properties of the shape are literals: what it lacks costs nothing.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from numpy import uintp as u

from retvar import rules
from retvar.engine.shapes import DENSE, LOCAL, SPREAD, Shape, Update
from retvar.jit import called_part, copy_numbers, part
from retvar.networks import Reading, Readings, Transition
from retvar.online.memory_layout import FAINT, LIMIT
from retvar.td.feeds import NOTHING, telling
from retvar.td.steps import (
    accumulated,
    averages,
    counted,
    counts_visits,
    depends_on_errors,
    is_bounded,
    rate_at,
    settled,
    step_at,
)  # fmt: skip

__all__ = ["Discounts", "Here", "Lanes", "Table", "fused_node", "predicting", "spread_node"]

INFINITE = math.inf
MANY = 64  # look for faded traces every so many steps; spread form: above so many live weights

td_error = part(rules.td_error)
trace = part(rules.trace)
moved = part(rules.moved)
bounded_step = part(rules.bounded_step)


class Table(NamedTuple):
    """Features of the states of a node; those of `features`, or sparse rows. None: tabular."""

    features: Any  #: dense form: [state, weight], with a row of 0 for the end of an episode
    indptr: Any  #: spread form
    indices: Any
    values: Any


class Lanes(NamedTuple):
    """TD nodes of one kind, one in each lane; fields that a shape does not need are None."""

    table: Table
    w: Any  #: weights; with Averaged the means that predictions use
    held: Any  #: Averaged: the weights that learn
    p: Any  #: settings of the step-size rule [lane]
    q: Any
    first: Any  #: accumulators of rules that depend on errors, for each weight and lane
    second: Any
    visits: Any  #: visits of each weight, and what their number divides the step by
    rates: Any
    powers: Any  #: on a GPU the rates after 0, 1, 2 … visits, because its powers have other bits
    bound: Any  #: the step of a rule that is bounded [lane]
    peak: Any  #: largest absolute weight so far [lane]; None: proved to be small
    used: Any  #: step with which each state was last updated [state, lane]
    reported: Any  #: the weight of each state whose step that is; −1: none
    now: Any  #: predictions of both states [lane]; see :func:`looking_up`
    after: Any
    trace: Any
    kappa: Any  #: [state or one for all, lane]
    last: Any  #: discount of the last transition [lane]
    spread: Any  #: see :class:`Spread`
    initial: Any  #: [run or one for all, weight, lane]
    carried: Any  #: predictions of the state being left [lane]; see :class:`Update`
    ahead: Any  #: … and of the next state, all fetched before any weight changes


class Spread(NamedTuple):
    """What the spread form remembers within a step [lane], and which weights have a trace."""

    fed: Any
    discount: Any
    decay: Any
    now: Any
    after: Any
    error: Any
    updated: Any
    own: Any  #: Averaged: the TD error of the weights that learn
    own_after: Any
    phi: Any  #: features of one state
    live: Any  #: weights with a trace; their positions in this list; their number


class Here(NamedTuple):
    """A transition as the nodes of all lanes see it."""

    s: Any
    s2: Any  #: the number of states at the end of an episode
    edge: Any
    reward: Any
    ratio: Any  #: ρ
    eta: Any
    rho_bar: Any


class Discounts(NamedTuple):
    """γ′ and λ′ of each edge [edge, lane or one for all], for the lanes of a node."""

    gammas: Any
    lams: Any


@functools.cache
def transition_of(own: bool) -> Any:
    """An inlined function: the transition as one lane sees it."""
    OWN = own

    @part
    def transition(here, discounts, lane):
        at = u(lane if OWN else 0)
        gamma, lam = discounts.gammas[u(here.edge), at], discounts.lams[u(here.edge), at]
        return Transition(here.reward, gamma, lam, here.eta)

    return transition


@functools.cache
def weight_of(by_rho: bool) -> Any:
    """An inlined function: ρ or ρ̄, by which a node weighs a transition."""
    BY_RHO = by_rho

    @part
    def weight(here):
        return here.ratio if BY_RHO else here.rho_bar

    return weight


@functools.cache
def learning(kind: int, checked: bool, carried: bool = False, marked: bool = False) -> Any:
    """An inlined function that moves weight i of one lane, at `k`, and returns its step."""
    MARKED, CARRIED, KIND, ERRORS, COUNTS = (
        marked, carried, kind, depends_on_errors(kind), counts_visits(kind),
    )  # fmt: skip
    AVERAGES, CHECKED = averages(kind), checked

    @part
    def learn(node, k, i, lane, step, delta, E):
        if COUNTS:
            step = step_at(KIND, step, 1.0, node.rates[u(i)])
        if ERRORS:
            before, after = node.first[k], node.second[k]
            step, errors, updates = accumulated(step, node.q[lane], before, after, delta * E)
            node.first[k] = errors if E != 0.0 else before
            node.second[k] = updates if E != 0.0 else after
        learns = node.w
        if AVERAGES:
            learns = node.held
        new = moved(node.carried[lane] if CARRIED else learns[k], step, delta, E)
        learns[k] = new
        if CHECKED:
            size, largest = abs(new), node.peak[lane]
            if MARKED:  # it is enough to know whether it is too large
                node.peak[lane] = INFINITE if size > LIMIT else largest
            else:
                node.peak[lane] = size if size > largest else largest
        return step

    return learn


@functools.cache
def counting_visits(tabled: bool) -> Any:
    """An inlined function that counts a visit of weight i; `tabled`: rates are in a table."""
    TABLED = tabled

    @part
    def visit(node, kind, i, weight):
        node.visits[u(i)] += counted(kind, weight)
        n = node.visits[u(i)]
        if TABLED and n < node.powers.size:
            node.rates[u(i)] = node.powers[u(n)]
        else:
            node.rates[u(i)] = rate_at(kind, node.q[0], n)

    return visit


# ---------------------------------------------------------------------- lane by lane


@functools.cache
def cell_of(form: int, size: int, width: int) -> Any:
    """An inlined function: where weight i of lane v of group c is; locally there is one group."""
    ROWS, WIDTH = size + 1, width

    def local(c, v, i):
        return i, v

    def dense(c, v, i):
        return u((c * ROWS + i) * WIDTH + v)

    return part(dense if form == DENSE else local)


@functools.cache
def feature_of(size: int, tabular: bool) -> Any:
    """An inlined function: feature i of a state, in the dense form."""
    SIZE = size

    def of_table(table, s, i):
        return 1.0 if i == s else 0.0

    def of_features(table, s, i):
        return table.features[u(s * SIZE + i)]

    return part(of_table if tabular else of_features)


@functools.cache
def predicting(form: int, size: int, width: int, tabular: bool, endless: bool) -> Any:
    """An inlined function: the prediction of a state in lane v of group c; 0 after the end."""
    cell, feature, SIZE = cell_of(form, size, width), feature_of(size, tabular), size
    ENDLESS = endless

    def local(table, w, s, c, v):
        return w[cell(c, v, s)]

    def of_table(table, w, s, c, v):
        found = w[cell(c, v, 0)] if ENDLESS else 0.0
        for i in range(1 if ENDLESS else 0, SIZE):
            x = w[cell(c, v, i)]  # read in any case: that needs no branch
            found = x if i == s else found
        return found

    def of_features(table, w, s, c, v):
        found = 0.0
        for i in range(SIZE):
            found += feature(table, s, i) * w[cell(c, v, i)]
        return found

    if form == LOCAL:
        return part(local)
    return part(of_table if tabular else of_features)


def looking_up(update: Update) -> Any:
    """An inlined function that notes the predictions of a node before it learns; None: no need.

    In the dense form of a table a read of one state among writes of all keeps loops over lanes from
    being vectorised.
    """
    cell, WIDTH = cell_of(DENSE, update.size, update.width), update.width

    @part
    def look_up(node, here):
        for c in range(node.now.size // WIDTH):
            copy_numbers(node.now, c * WIDTH, node.w, cell(c, 0, here.s), WIDTH)
            copy_numbers(node.after, c * WIDTH, node.w, cell(c, 0, here.s2), WIDTH)

    return look_up if update.form == DENSE and update.tabular and not update.lanes else None


@functools.cache
def expecting(update: Update) -> Any:
    """An inlined function: the predictions of both states in lane v of group c, before learning."""
    predict = predicting(*update.reads)
    WIDTH = update.width

    def noted(node, here, c, v):
        lane = u(c * WIDTH + v)
        return node.now[lane], node.after[lane]

    def carried(node, here, c, v):
        return node.carried[v], node.ahead[v]

    def computed(node, here, c, v):
        now = predict(node.table, node.w, here.s, c, v)
        return now, predict(node.table, node.w, here.s2, c, v)

    if update.carried:
        return part(carried)
    return part(noted if looking_up(update) is not None else computed)


@functools.cache
def fused_node(update: Update) -> Any:
    """An inlined function: update a node in lane v of group c; return what it says."""
    LEARNS, AVERAGES, CARRIED = update.learns, averages(update.kind), update.carried
    predict = predicting(*update.reads)
    move = moving_one(update) if update.form == LOCAL else moving_all(update)
    expect = expecting(update)

    @part
    def td_node(node, here, fed, discount, c, v):
        table = node.table
        now, after = expect(node, here, c, v)
        error = td_error(fed, discount, after, now)
        updated = after
        if LEARNS:
            own = error
            if AVERAGES:  # predicts from the means, learns in the weights
                held = predict(table, node.held, here.s, c, v)
                own = td_error(fed, discount, predict(table, node.held, here.s2, c, v), held)
            updated = move(node, here, discount, own, after, c, v)
        if CARRIED:
            node.carried[v] = updated
        return Reading(now, after, error, updated)

    return td_node


def moving_one(update: Update) -> Any:
    """An inlined function: move the weight of the state being left; return the new J(s′)."""
    learn = learning(update.kind, update.checked, update.carried, update.lanes > 0)
    cell, AVERAGES, STEPS = cell_of(LOCAL, 0, 0), averages(update.kind), update.steps
    weigh = weight_of(update.by_rho)

    @part
    def move(node, here, discount, own, after, c, v):
        weight, lane, k = weigh(here), u(v), cell(c, v, here.s)
        E = trace(0.0, 0.0, 1.0, weight)
        step = learn(node, k, here.s, lane, node.p[lane], own, E)
        if AVERAGES:
            mean = node.w[k]
            new = settled(mean, node.held[k], node.visits[u(here.s)])
            node.w[k] = new if weight != 0.0 else mean
        if STEPS:
            before = node.used[u(here.s), lane]
            node.used[u(here.s), lane] = step if weight != 0.0 else before
        return node.w[k] if here.s == here.s2 else after

    return move


def moving_all(update: Update) -> Any:
    """An inlined function: move all weights of a node by its trace; return the new J(s′)."""
    size, width, tabular, kind = update.size, update.width, update.tabular, update.kind
    cell, feature = cell_of(DENSE, size, width), feature_of(size, tabular)
    predict = predicting(*update.reads)
    learn = learning(kind, update.checked, marked=update.lanes > 0)
    decaying, extend, bounded = decaying_by(update), extending(update), bounding_one(update)
    AVERAGES, STEPS, SIZE, WIDTH = averages(kind), update.steps, size, width
    BOUNDED, weigh = is_bounded(kind), weight_of(update.by_rho)

    @part
    def move(node, here, discount, own, after, c, v):
        weight, lane, table = weigh(here), u(c * WIDTH + v), node.table
        decay, step = decaying(node, here, discount, lane), node.p[lane]
        if BOUNDED:
            step = bounded(node, here, discount, decay, c, v)
        for i in range(SIZE):
            k = cell(c, v, i)
            E = node.trace[k] if BOUNDED else extend(node, here, decay, k, i)
            taken = learn(node, k, i, lane, step, own, E)
            if AVERAGES:
                mean, phi = node.w[k], feature(table, here.s, i)
                new = settled(mean, node.held[k], node.visits[u(i)])
                node.w[k] = new if phi != 0.0 and weight != 0.0 else mean
            if STEPS and not BOUNDED:
                before = node.used[u(here.s), lane]
                on = i == node.reported[u(here.s)] and E != 0.0
                node.used[u(here.s), lane] = taken if on else before
        if STEPS and BOUNDED:
            node.used[u(here.s), lane] = step
        return predict(table, node.w, here.s2, c, v)

    return move


@functools.cache
def decaying_by(update: Update) -> Any:
    """An inlined function: γκ, by which the trace of a lane decays; remembers this discount."""

    def decaying(node, here, discount, lane):
        decay = node.last[lane] * node.kappa[u(here.s if node.kappa.shape[0] > 1 else 0), lane]
        node.last[lane] = discount
        return decay

    def nothing(node, here, discount, lane):
        return 0.0

    return part(decaying if update.traced else nothing)


@functools.cache
def extending(update: Update) -> Any:
    """An inlined function: E = w(γκE + φ) of weight i, at `k`; without traces wφ.

    Faded traces are set to 0 now and then (:func:`fading`), but at once for rules that ask whether
    a weight has a trace.
    """
    feature, weigh = feature_of(update.size, update.tabular), weight_of(update.by_rho)
    AT_ONCE = depends_on_errors(update.kind)

    def extend(node, here, decay, k, i):
        E = trace(decay, node.trace[k], feature(node.table, here.s, i), weigh(here))
        if AT_ONCE:
            E = 0.0 if abs(E) < FAINT else E
        node.trace[k] = E
        return E

    def features(node, here, decay, k, i):
        return trace(0.0, 0.0, feature(node.table, here.s, i), weigh(here))

    return part(extend if update.traced else features)


def bounding_one(update: Update) -> Any:
    """An inlined function: extend the trace of a lane and bound its step by E·(γ′φ′ − φ)."""
    SIZE, WIDTH, extend = update.size, update.width, extending(update)
    cell, feature = cell_of(DENSE, SIZE, WIDTH), feature_of(SIZE, update.tabular)

    @part
    def bounded(node, here, discount, decay, c, v):
        pull, lane = 0.0, u(c * WIDTH + v)
        for i in range(SIZE):
            E = extend(node, here, decay, cell(c, v, i), i)
            pull += discount * feature(node.table, here.s2, i) * E
        for i in range(SIZE):
            pull -= feature(node.table, here.s, i) * node.trace[cell(c, v, i)]
        node.bound[lane] = bounded_step(node.bound[lane], pull)
        return node.bound[lane]

    return bounded


def visiting(update: Update) -> Any:
    """An inlined function that counts the visits of a node; None: they are not counted."""
    weigh, feature = weight_of(update.by_rho), feature_of(update.size, update.tabular)
    KIND, SIZE, visit = update.kind, update.size, counting_visits(update.lanes > 0)

    def local(node, here):
        visit(node, KIND, here.s, weigh(here))

    def dense(node, here):
        for i in range(SIZE):
            if feature(node.table, here.s, i) != 0.0:
                visit(node, KIND, i, weigh(here))

    if not (update.learns and counts_visits(update.kind)):
        return None
    return part(local if update.form == LOCAL else dense)


# ---------------------------------------------------------------------- node by node


@part
def predict_lanes(table, w, s, out):
    """Predictions of a state in all lanes of a node; 0 after the end of an episode."""
    for lane in range(out.size):
        out[u(lane)] = 0.0
    if s < table.indptr.size - 1:
        for k in range(table.indptr[u(s)], table.indptr[u(s + 1)]):
            i, x = u(table.indices[u(k)]), table.values[u(k)]
            for lane in range(out.size):
                out[u(lane)] += x * w[i, u(lane)]


def hearing(shape: Shape, earlier: tuple[int, ...]) -> Any:
    """An inlined function: what the `earlier` nodes of a network say in one lane."""
    if not earlier:
        return part(lambda nodes, share, lane: NOTHING)
    number = earlier[-1]
    before, tell = hearing(shape, earlier[:-1]), telling(shape.nodes[number].node.place)
    VALUE, REREAD = number == 0, shape.is_reread(number)

    @part
    def hear(nodes, share, lane):
        said, at = nodes[number].spread, u(share[lane] if VALUE else lane)
        updated = said.after[at]
        if REREAD:
            updated = said.updated[at]
        reading = Reading(said.now[at], said.after[at], said.error[at], updated)
        return tell(before(nodes, share, lane), reading)

    return hear


def spread_node(shape: Shape, number: int, earlier: tuple[int, ...]) -> Any:
    """An inlined function: feed and update a node in all lanes."""
    node_of_registry = shape.nodes[number].node
    reward, discounted = part(node_of_registry.reward), part(node_of_registry.discount)
    hear, transition = hearing(shape, earlier), transition_of(shape.own)
    update = updating_lanes(shape.update(number), shape.is_reread(number))

    @part
    def td_nodes(nodes, here, discounts, share):
        said = nodes[number].spread
        for lane in range(said.fed.size):
            x = transition(here, discounts, lane)
            said.fed[u(lane)] = reward(x, Readings(*hear(nodes, share, lane)))
            said.discount[u(lane)] = discounted(x)
        update(nodes[number], here)

    return td_nodes


@part
def find_errors(node, w, here, now, after, error):
    """Predictions of both states and TD errors, in all lanes."""
    predict_lanes(node.table, w, here.s, now)
    predict_lanes(node.table, w, here.s2, after)
    x = node.spread
    for lane in range(error.size):
        at = u(lane)
        error[at] = td_error(x.fed[at], x.discount[at], after[at], now[at])


@functools.cache
def updating_lanes(update: Update, reread: bool) -> Any:
    """An inlined function: update a node in all lanes, from what it is fed with."""
    LEARNS, AVERAGES, REREAD = update.learns, averages(update.kind), reread
    move, weigh = moving_lanes(update), weight_of(update.by_rho)

    @part
    def td_node(node, here):
        said = node.spread
        find_errors(node, node.w, here, said.now, said.after, said.error)
        if LEARNS:
            errors = said.error
            if AVERAGES:
                find_errors(node, node.held, here, said.own, said.own_after, said.own)
                errors = said.own
            move(node, here, errors, weigh(here))
        if REREAD:
            predict_lanes(node.table, node.w, here.s2, said.updated)

    return td_node


def moving_lanes(update: Update) -> Any:
    """An inlined function: move the weights that a trace or the features reach, in all lanes."""
    KIND, COUNTS, AVERAGES = update.kind, counts_visits(update.kind), averages(update.kind)
    TRACED, BOUNDED, STEPS = update.traced, is_bounded(update.kind), update.steps
    learn, bound = learning(KIND, update.checked, marked=update.lanes > 0), bounding(STEPS)
    visit = counting_visits(update.lanes > 0)

    @part
    def move_weight(node, here, errors, i, E, reported):
        for lane in range(errors.size):
            at, k = u(lane), (u(i), u(lane))
            reach = node.trace[k] if TRACED else E
            common = node.bound[at] if BOUNDED else node.p[at]
            step = learn(node, k, i, at, common, errors[at], reach)
            if STEPS and not BOUNDED:
                before = node.used[u(here.s), at]
                node.used[u(here.s), at] = step if reported and reach != 0.0 else before

    @part
    def move(node, here, errors, weight):
        table, s = node.table, here.s
        begin, end = table.indptr[u(s)], table.indptr[u(s + 1)]
        reported = table.indices[u(end - 1)] if end > begin else -1
        if COUNTS:
            for k in range(begin, end):
                visit(node, KIND, table.indices[u(k)], weight)
        if TRACED:
            count = extend_traces(node, here, weight)
            if BOUNDED:
                bound(node, here)
            for k in range(count):
                i = node.spread.live[u(k)]
                move_weight(node, here, errors, i, 0.0, i == reported)
        else:
            for k in range(begin, end):
                i, E = table.indices[u(k)], trace(0.0, 0.0, table.values[u(k)], weight)
                move_weight(node, here, errors, i, E, i == reported)
        if AVERAGES and weight != 0.0:
            for k in range(begin, end):
                settle_lanes(node, table.indices[u(k)])

    return move


@part
def settle_lanes(node, i):
    """Move the means of weight i in all lanes."""
    for lane in range(node.p.size):
        k = u(i), u(lane)
        node.w[k] = settled(node.w[k], node.held[k], node.visits[u(i)])


@part
def extend_traces(node, here, weight):
    """E = w(γκE + φ) in all lanes, over the weights with a trace; return how many there are."""
    table, said, lanes = node.table, node.spread, node.last.size
    row = u(here.s if node.kappa.shape[0] > 1 else 0)
    for lane in range(lanes):
        at = u(lane)
        said.decay[at] = node.last[at] * node.kappa[row, at]
        node.last[at] = said.discount[at]
    live, size = said.live, said.phi.size
    count = live[u(2 * size)]
    for k in range(table.indptr[u(here.s)], table.indptr[u(here.s + 1)]):
        i = table.indices[u(k)]
        said.phi[u(i)] = table.values[u(k)]
        if live[u(size + i)] < 0:
            live[u(size + i)] = count
            live[u(count)] = i
            count += 1
    live[u(2 * size)] = count
    for k in range(count):
        i = live[u(k)]
        x = said.phi[u(i)]
        said.phi[u(i)] = 0.0
        for lane in range(lanes):
            E = trace(said.decay[u(lane)], node.trace[u(i), u(lane)], x, weight)
            node.trace[u(i), u(lane)] = 0.0 if abs(E) < FAINT else E
    return count


@functools.cache
def bounding(steps: bool) -> Any:
    """An inlined function: bound the step of each lane by E·(γ′φ′ − φ)."""
    STEPS = steps

    @part
    def bound(node, here):
        table, said, pull = node.table, node.spread, node.spread.decay
        for lane in range(pull.size):
            pull[u(lane)] = 0.0
        if here.s2 < table.indptr.size - 1:
            for k in range(table.indptr[u(here.s2)], table.indptr[u(here.s2 + 1)]):
                i, x = u(table.indices[u(k)]), table.values[u(k)]
                for lane in range(pull.size):
                    pull[u(lane)] += said.discount[u(lane)] * x * node.trace[i, u(lane)]
        for k in range(table.indptr[u(here.s)], table.indptr[u(here.s + 1)]):
            i, x = u(table.indices[u(k)]), table.values[u(k)]
            for lane in range(pull.size):
                pull[u(lane)] -= x * node.trace[i, u(lane)]
        for lane in range(pull.size):
            at = u(lane)
            node.bound[at] = bounded_step(node.bound[at], pull[at])
            if STEPS:
                node.used[u(here.s), at] = node.bound[at]

    return bound


# ---------------------------------------------------------------------- runs and episodes


def fetching(update: Update) -> Any:
    """An inlined function that fetches what is carried, after a jump to a state; None: nothing."""
    LANES = update.lanes

    @part
    def fetch(node, s):
        for lane in range(LANES):
            node.carried[lane] = node.w[u(s), u(lane)]

    return fetch if update.carried else None


def looking(update: Update) -> Any:
    """An inlined function that fetches the predictions of the next state; None: nothing."""
    LANES = update.lanes

    @part
    def look(node, s):
        for lane in range(LANES):
            node.ahead[lane] = node.w[u(s), u(lane)]

    return look if update.carried else None


@functools.cache
def beginning(update: Update) -> Any:
    """A function that resets a node to the start of a run."""
    cell, TRACED = cell_of(update.form, update.size, update.width), update.traced
    clear, zero = clearing(update), zeroing(update)
    LEARNS, KIND = update.learns, update.kind
    AVERAGES, ERRORS = LEARNS and averages(KIND), LEARNS and depends_on_errors(KIND)
    COUNTS, BOUNDED = LEARNS and counts_visits(KIND), LEARNS and is_bounded(KIND)
    CHECKED, STEPS, SIZE, LANES = update.checked, update.steps, update.size, update.lanes
    GROUP = update.width if update.form == DENSE else 0

    zero_lanes = zeroing(update, lanes=True)

    @called_part
    def begin(node, run):
        at = run if node.initial.shape[0] > 1 else 0
        for i in range(SIZE if SIZE else node.initial.shape[1]):
            for lane in range(LANES if LANES else node.initial.shape[2]):
                c = lane // GROUP if GROUP else 0
                k = cell(c, lane - c * GROUP, i)
                node.w[k] = node.initial[at, i, lane]
                if AVERAGES:
                    node.held[k] = node.initial[at, i, lane]
        if ERRORS:
            zero(node.first)
            zero(node.second)
        if COUNTS:
            node.visits[:] = 0.0
        if BOUNDED:
            for lane in range(LANES if LANES else node.p.size):
                node.bound[lane] = node.p[lane]
        if CHECKED:
            zero_lanes(node.peak)
        if STEPS:
            node.used[:] = math.nan
        if TRACED:
            clear(node)

    return begin


def zeroing(update: Update, lanes: bool = False) -> Any:
    """An inlined function that sets the numbers of a node for each lane, or each weight, to 0."""
    rows = 1 if lanes else update.size + 1 if update.form == DENSE else 0
    COUNT = update.lanes * rows  # 0: not a literal

    def all_of_them(x):
        x[:] = 0.0

    def each(x):
        for k in range(COUNT):
            x[k] = 0.0

    return part(each if COUNT else all_of_them)


@functools.cache
def clearing(update: Update) -> Any:
    """A function that clears the traces of a node at the end of an episode; None: it has none."""
    zero, zero_lanes = zeroing(update), zeroing(update, lanes=True)

    def all_weights(node):
        zero_lanes(node.last)
        zero(node.trace)

    def listed_weights(node):
        zero_lanes(node.last)
        live, size = node.spread.live, node.spread.phi.size
        for k in range(live[2 * size]):
            i = live[k]
            live[size + i] = -1
            node.trace[i] = 0.0
        live[2 * size] = 0

    if not update.traced:
        return None
    return called_part(all_weights if update.form == DENSE else listed_weights)


@called_part
def drop_faded(traces, live):
    """Remove weights whose traces are 0 in all lanes from the list, if it is long."""
    size = live.size // 2
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


@called_part
def clear_faded(traces):
    """Set traces that have faded to 0, before they become subnormal numbers, which are slow.

    From 1e-100 that takes a trace more than ``MANY`` steps, unless γκ is below 6e-4; then it is
    subnormal for at most 5 steps before it is 0.
    """
    for k in range(traces.size):
        traces[k] = 0.0 if abs(traces[k]) < FAINT else traces[k]


def fading(update: Update) -> Any:
    """An inlined function that looks for faded traces; None: none are left to it."""
    COUNT = update.lanes * (update.size + 1)

    def listed_weights(node):
        drop_faded(node.trace, node.spread.live)

    def each_weight(node):
        for k in range(COUNT):
            node.trace[k] = 0.0 if abs(node.trace[k]) < FAINT else node.trace[k]

    def all_weights(node):
        clear_faded(node.trace)

    at_once = update.form == DENSE and depends_on_errors(update.kind)
    if not update.traced or at_once:
        return None
    if update.form == SPREAD:
        return part(listed_weights)
    return part(each_weight if update.lanes else all_weights)
