"""The TD update of all nodes of a network in all lanes: begin, say, move.

Lanes see the same transitions with the same features, γ, λ and κ. So visits and traces of a node
are common to all lanes: [weight]. What lanes have of their own is weights [weight, lane], settings
and multipliers [lane]. A simulated learner is a lane; so is a bootstrap replicate of an online
estimator, whose own lane is the first. :func:`learning` makes ``learn``, which takes a transition
in three steps:

    begin   once for all lanes: count visits, extend traces
    say     in each lane: the TD nodes of Figure 1, from predictions to TD errors, in registers
    move    w += αδE of every weight that a trace reaches, lanes innermost

A table without traces has one weight to move, so `say` moves it at once. Traces of features that
come with each transition are lazy (:mod:`retvar.td.lazy`). Functions are made for the
:class:`Spec` of each node, whose fields are literals in them: what a node lacks costs nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy import uintp as u

from retvar.td import rules
from retvar.td.jit import in_turn, part
from retvar.td.networks import NODES, Reading, Readings, Transition
from retvar.td.step_sizes import (
    accumulated,
    averages,
    counted,
    counts_visits,
    depends_on_errors,
    is_bounded,
    rate_at,
)

__all__ = ["Block", "Spec", "Step", "learning"]

td_error, trace, moved = part(rules.td_error), part(rules.trace), part(rules.moved)
bounded_step, decayed_step = part(rules.bounded_step), part(rules.decayed_step)
averaged = part(rules.averaged)

FAINT = 1e-100  # smaller traces are set to 0
LIMIT = 1e150  # larger weights have diverged
FEW = 16  # weights that are all visited at each step; more are in a list
ALL = -1  # so many, but the functions of a node do not depend on how many
TABLE, DENSE, SPARSE = range(3)  # features: a weight for each state; few, all of them; rows
NONE, EAGER, LAZY = range(3)  # traces
NOTHING = (Reading(0.0, 0.0, 0.0, 0.0),)


class Spec(NamedTuple):
    """What the functions of a node are made for."""

    code: int  #: its number in ``NODES``
    kind: int  #: step-size rule
    learns: bool  #: False: a value held fixed
    trace: int  #: NONE, EAGER or LAZY
    size: int  #: number of weights where all are visited at each step, or ALL; 0: they are listed
    features: int  #: TABLE, DENSE or SPARSE
    alone: bool  #: whether there is one lane
    common: bool = False  #: whether one node serves all lanes; the first alone can
    coins: bool = False  #: whether lanes have multipliers
    steps: bool = False  #: whether the step of the state being left is noted
    checked: bool = False  #: whether it is noted when the first lane diverges
    tabled: bool = False  #: whether rates are in a table, as on a GPU, whose powers have other bits

    @property
    def local(self) -> bool:
        """Whether a transition changes the weight of the state being left alone."""
        return self.features == TABLE and not (self.trace and self.learns)


class Block(NamedTuple):
    """Arrays of a block of lanes; tuples have an entry for each node.

    There is one weight more than a node has, always 0: that of the end of an episode in a table.
    What no node needs is None.
    """

    w: Any  #: [weight, lane] what predictions are made of
    held: Any  #: [weight, lane] Averaged: what learns, and `w` its mean
    first: Any  #: [weight, lane] Adadelta's accumulators
    second: Any
    taken: Any  #: [weight, lane] Adadelta's last step
    used: Any  #: [state or one, lane] step with which a state was last updated
    E: Any  #: [stream, weight] traces
    live: Any  #: [stream, 2 size + 1] weights with a trace; their positions; their number
    visits: Any  #: [weight]
    rates: Any  #: [weight] what the visits divide the step by
    fresh: Any  #: [weight] features of the state being left, 0 between steps
    phi: Any  #: [state, weight] of DENSE features
    rows: Any  #: (indptr, indices, values) of SPARSE ones
    sums: Any  #: [slot, lane] lazy traces: A
    scales: Any  #: [slot, node] … and s
    p: Any  #: [node, lane] settings of the step-size rule
    q: Any
    own: Any  #: [node, lane] what pulls the weights: α × multiplier × TD error
    errors: Any  #: [node, lane] TD errors of the last transition
    now: Any  #: [node, lane] lazy traces: what learns predicts before the update
    after: Any
    coins: Any  #: [lane] multipliers; those of replicates in words of 64
    kappa: Any  #: [node, state or one for all]
    last: Any  #: [stream, node] discount of the last transition
    lost: Any  #: [0] 1 + number of a node whose first lane has diverged, or 0
    powers: Any  #: rates after 0, 1, 2 … visits, if they are in a table


class Step(NamedTuple):
    """A transition as nodes see it."""

    s: Any
    s2: Any  #: the number of states at the end of an episode
    t: Transition  #: R, γ′, λ′, η
    rho: Any
    rho_bar: Any
    stream: Any  #: whose traces
    stays: Any  #: whether s2 is s


def heard(specs: tuple[Spec, ...], number: int, place: int) -> int:
    """1 + number of the node at a place that a node's reward may read; 0: none."""
    node = NODES[specs[number].code]
    while node.reads is not None:
        found = [i for i in range(number) if NODES[specs[i].code].place == node.reads]
        if not found or node.reads == place:
            return found[-1] + 1 if found else 0
        node, number = NODES[specs[found[-1]].code], found[-1]
    return 0


def is_reread(specs: tuple[Spec, ...], number: int) -> bool:
    """Whether a node reads the prediction of this one after its update."""
    place = NODES[specs[number].code].place
    return any(
        NODES[spec.code].reads_updated and heard(specs, k, place) == number + 1
        for k, spec in enumerate(specs)
    )


class FeatureCode:
    """Inlined functions: the features of a state, and predictions."""

    def __init__(self, spec: Spec, K: int) -> None:
        IS_TABLE, IS_DENSE = spec.features == TABLE, spec.features == DENSE
        SIZE, ALONE = spec.size, spec.alone or spec.common
        SELECTS = spec.tabled and IS_TABLE and SIZE > 0  # weights that a GPU holds in registers

        @part
        def size(m):
            """Number of weights."""
            return SIZE if SIZE > 0 else m.w[K].shape[0] - 1

        @part
        def lanes(m):
            """Number of lanes."""
            return 1 if ALONE else m.w[K].shape[1]

        @part
        def active(m, s):
            """Entries of the features of a state."""
            if IS_TABLE:
                return s, s + 1
            if IS_DENSE:
                return 0, SIZE
            return m.rows[K][0][u(s)], m.rows[K][0][u(s + 1)]

        @part
        def entry(m, s, j):
            """The weight of an entry, and its feature."""
            if IS_TABLE:
                return u(j), 1.0
            if IS_DENSE:
                return u(j), m.phi[K][u(s), u(j)]
            return u(m.rows[K][1][u(j)]), m.rows[K][2][u(j)]

        @part
        def feature(m, s, i):
            """The feature of a weight, of the state being left."""
            if IS_TABLE:
                return 1.0 if u(i) == u(s) else 0.0
            if IS_DENSE:
                return m.phi[K][u(s), i]
            return m.fresh[K][i]

        @part
        def predict(m, w, s, lane):
            """w·φ of a state; 0 after the end of an episode."""
            found = 0.0
            if SELECTS:
                for i in range(SIZE):
                    x = w[u(i), u(lane)]  # read in any case: that needs no branch
                    found = x if i == s else found
                return found
            if IS_TABLE:
                return w[u(s), u(lane)]
            first, last = active(m, s)
            for j in range(first, last):
                i, phi = entry(m, s, j)
                found += phi * w[i, u(lane)]
            return found

        self.size, self.lanes, self.active, self.entry = size, lanes, active, entry
        self.feature, self.predict = feature, predict


class StepCode:
    """Inlined functions: ρ or ρ̄, visits, and the step of a weight."""

    def __init__(self, spec: Spec, K: int, f: FeatureCode) -> None:
        active, entry, KIND, COINS, STEPS = f.active, f.entry, spec.kind, spec.coins, spec.steps
        COUNTS, ERRORS, BOUNDED = counts_visits(KIND), depends_on_errors(KIND), is_bounded(KIND)
        TABLED, CHECKED = spec.tabled, spec.checked
        BY_RHO, IS_DENSE = NODES[spec.code].by_rho, spec.features == DENSE
        ONE = spec.alone or COINS  # step for all lanes

        @part
        def weigh(x):
            """What a trace is weighted by."""
            return x.rho if BY_RHO else x.rho_bar

        @part
        def visit(m, i, weight):
            """Count a visit of a weight."""
            m.visits[K][i] += counted(KIND, weight)
            n = m.visits[K][i]
            if TABLED and n < m.powers[K].size:
                m.rates[K][i] = m.powers[K][u(n)]
            else:
                m.rates[K][i] = rate_at(KIND, m.q[K, 0], n)

        @part
        def step_of(m, i, lane):
            """The step of a weight that counts visits; replicates have the same."""
            return decayed_step(m.p[K, 0 if COINS else lane], 1.0, m.rates[K][i])

        @part
        def note_step(m, x):
            """Note the step of the state being left: of its last feature, if each has its own."""
            first, last = active(m, x.s)
            if IS_DENSE:  # its last feature that is not 0
                while STEPS and last > 0 and m.phi[K][u(x.s), u(last - 1)] == 0.0:
                    last -= 1
            if STEPS and (BOUNDED or (last > first and weigh(x) != 0.0)):
                i = u(0)
                if last > first:
                    i, _ = entry(m, x.s, last - 1)
                at = u(x.s if m.used[K].shape[0] > 1 else 0)
                for lane in range(1 if ONE else m.used[K].shape[1]):
                    step = m.p[K, u(lane)]
                    if COUNTS:
                        step = step_of(m, i, u(lane))
                    if ERRORS:
                        step = m.taken[K][i, u(lane)]
                    m.used[K][at, u(lane)] = step

        @part
        def check(m, lost):
            """Note that weights of the first lane are lost, unless those of a node before are."""
            if CHECKED and lost > 0:
                m.lost[0] = m.lost[0] if m.lost[0] > 0.0 else 1.0 + K

        self.weigh, self.visit, self.step_of, self.note_step = weigh, visit, step_of, note_step
        self.check = check


class TraceCode:
    """Inlined functions, once for all lanes: visits and the eager trace of a node."""

    def __init__(self, spec: Spec, K: int, f: FeatureCode, steps: StepCode) -> None:
        active, entry, feature, size, lanes = f.active, f.entry, f.feature, f.size, f.lanes
        weigh, visit, KIND = steps.weigh, steps.visit, spec.kind
        COUNTS, BOUNDED = counts_visits(KIND) and spec.learns, is_bounded(KIND)
        TRACED, LISTED = spec.trace == EAGER and spec.learns, spec.size == 0
        FRESH, discount = spec.features == SPARSE, part(NODES[spec.code].discount)

        @part
        def spread(m, x):
            """Write the features of the state being left where weights find them."""
            first, last = active(m, x.s)
            for j in range(first, last):
                i, m.fresh[K][i] = entry(m, x.s, j)

        @part
        def decayed(m, x, c):
            """γκ, by which the trace decays; remembers this discount."""
            decay = m.last[x.stream, K] * m.kappa[K, u(x.s if m.kappa.shape[1] > 1 else 0)]
            m.last[x.stream, K] = c
            return decay

        @part
        def extend(m, x, decay, weight):
            """E = w(γκE + φ) of all weights."""
            for i in range(size(m)):
                E = trace(decay, m.E[K][x.stream, u(i)], feature(m, x.s, i), weight)
                m.E[K][x.stream, u(i)] = 0.0 if abs(E) < FAINT else E

        @part
        def extend_listed(m, x, decay, weight):
            """The same of the weights that are listed; those whose trace has faded leave."""
            live, E, n = m.live[K][x.stream], m.E[K][x.stream], u(size(m))
            count, kept = live[u(2) * n], 0
            first, last = active(m, x.s)
            for j in range(first, last):
                i, _ = entry(m, x.s, j)
                if live[n + i] < 0:
                    live[n + i], live[u(count)] = count, i
                    count += 1
            for k in range(count):
                i = u(live[u(k)])
                new = trace(decay, E[i], feature(m, x.s, i), weight)
                gone = abs(new) < FAINT
                E[i], live[n + i], live[u(kept)] = 0.0 if gone else new, -1 if gone else kept, i
                kept += 0 if gone else 1
            live[u(2) * n] = kept

        @part
        def bound(m, x, c):
            """AlphaBound: E·(γ′φ′ − φ) bounds the step of every lane."""
            pull = 0.0
            first, last = active(m, x.s2)
            for j in range(first, last):
                i, phi = entry(m, x.s2, j)
                pull += c * phi * m.E[K][x.stream, i]
            first, last = active(m, x.s)
            for j in range(first, last):
                i, phi = entry(m, x.s, j)
                pull -= phi * m.E[K][x.stream, i]
            for lane in range(lanes(m)):
                m.p[K, u(lane)] = bounded_step(m.p[K, u(lane)], pull)

        @part
        def begin(m, x):
            c, weight = discount(x.t), weigh(x)
            if FRESH:
                spread(m, x)
            if COUNTS:
                first, last = active(m, x.s)
                for j in range(first, last):
                    i, phi = entry(m, x.s, j)
                    if phi != 0.0:
                        visit(m, i, weight)
            if TRACED:
                if LISTED:
                    extend_listed(m, x, decayed(m, x, c), weight)
                else:
                    extend(m, x, decayed(m, x, c), weight)
                if BOUNDED:
                    bound(m, x, c)

        @part
        def finish(m, x):
            if FRESH:
                first, last = active(m, x.s)
                for j in range(first, last):
                    i, _ = entry(m, x.s, j)
                    m.fresh[K][i] = 0.0

        @part
        def clear(m, stream):
            m.last[stream, K] = 0.0
            if TRACED and LISTED:
                live, E, n = m.live[K][stream], m.E[K][stream], u(size(m))
                for k in range(live[u(2) * n]):
                    i = u(live[u(k)])
                    live[n + i], E[i] = -1, 0.0
                live[u(2) * n] = 0
            elif TRACED:
                for at in range(size(m)):
                    m.E[K][stream, u(at)] = 0.0

        self.begin, self.finish, self.clear, self.decayed = begin, finish, clear, decayed
        self.spread = spread


class NodeCode:
    """Inlined functions: what a node says in a lane, and how its weights move."""

    def __init__(self, specs: tuple[Spec, ...], K: int) -> None:
        spec, node = specs[K], NODES[specs[K].code]
        f = FeatureCode(spec, K)
        steps = StepCode(spec, K, f)
        traces = TraceCode(spec, K, f, steps)
        active, entry, feature, predict = f.active, f.entry, f.feature, f.predict
        size, lanes, weigh, step_of = f.size, f.lanes, steps.weigh, steps.step_of
        KIND, LEARNS, COINS, CHECKED = spec.kind, spec.learns, spec.coins, spec.checked
        TRACED, LISTED, AT_ONCE = spec.trace == EAGER and LEARNS, spec.size == 0, spec.local
        COUNTS, ERRORS, STEPS = counts_visits(KIND), depends_on_errors(KIND), spec.steps
        AVERAGES, REREAD = averages(KIND) and LEARNS, is_reread(specs, K)
        VALUE, MEAN, VARIANCE, THIRD = (heard(specs, K, place) for place in range(4))
        reward, discount = part(node.reward), part(node.discount)
        note_step, check, finish = steps.note_step, steps.check, traces.finish

        @part
        def moved_weight(m, i, lane, own, E):
            """W + αδE, α and ADADELTA's sums, not yet written; `own` is δ, or αδ if α is common."""
            learns, step, G, D = m.held[K] if AVERAGES else m.w[K], 1.0, 0.0, 0.0
            if COUNTS:
                step = step_of(m, i, lane)
            if ERRORS:
                G, D = m.first[K][i, lane], m.second[K][i, lane]
                step, G, D = accumulated(m.p[K, lane], m.q[K, lane], G, D, own * E)
            return moved(learns[i, lane], step, own, E), step, G, D

        @part
        def settled_weight(m, x, i, lane, new):
            """What predicts once a weight is `new`: Averaged: its mean."""
            if AVERAGES:
                mean = m.w[K][i, lane]
                return averaged(mean, new, m.visits[K][i]) if weigh(x) != 0.0 else mean
            return new

        @part
        def write(m, i, lane, own, E):
            learns = m.held[K] if AVERAGES else m.w[K]
            learns[i, lane], step, G, D = moved_weight(m, i, lane, own, E)
            if ERRORS:
                m.first[K][i, lane] = G if E != 0.0 else m.first[K][i, lane]
                m.second[K][i, lane] = D if E != 0.0 else m.second[K][i, lane]
                if STEPS:
                    m.taken[K][i, lane] = step if E != 0.0 else m.taken[K][i, lane]
            return learns[i, lane]

        @part
        def expect(m, x, lane, own):
            """The prediction of the next state after the update, before a weight is written."""
            found = 0.0
            first, last = active(m, x.s2)
            for j in range(first, last):
                i, phi = entry(m, x.s2, j)
                w, here = m.w[K][i, lane], feature(m, x.s, i)
                E = m.E[K][x.stream, i] if TRACED else trace(0.0, 0.0, here, weigh(x))
                new, _, _, _ = moved_weight(m, i, lane, own, E)
                if AVERAGES:
                    new = settled_weight(m, x, i, lane, new) if here != 0.0 else w
                found += phi * new
            return found

        @part
        def say(m, x, lane, said):
            """The TD node: predictions, reward, TD error, and what follows from it in a lane."""
            c, at = discount(x.t), u(lane)
            now, after = predict(m, m.w[K], x.s, lane), predict(m, m.w[K], x.s2, lane)
            fed = reward(x.t, Readings(said[VALUE], said[MEAN], said[VARIANCE], said[THIRD]))
            error = td_error(fed, c, after, now)
            updated = after
            if CHECKED:
                m.errors[K, at] = error
            if LEARNS:
                own = error
                if AVERAGES:  # predicts from the means, learns in the weights
                    held = m.held[K]
                    own = td_error(
                        fed, c, predict(m, held, x.s2, lane), predict(m, held, x.s, lane)
                    )
                if COINS:
                    own = m.coins[at] * own
                if not (COUNTS or ERRORS):
                    own = m.p[K, at] * own
                if AT_ONCE:
                    i = u(x.s)
                    new = write(m, i, at, own, trace(0.0, 0.0, 1.0, weigh(x)))
                    new = settled_weight(m, x, i, at, new)
                    m.w[K][i, at] = new
                    updated = new if x.stays else after
                else:
                    m.own[K, at] = own
                    if REREAD:
                        updated = expect(m, x, at, own)
            return Reading(now, after, error, updated)

        @part
        def lost(m, i):
            """1 where a weight of the first lane has diverged, otherwise 0."""
            learns = m.held[K] if AVERAGES else m.w[K]
            return 0 if not CHECKED or abs(learns[i, 0]) <= LIMIT else 1

        @part
        def write_lanes(m, i, E):
            for lane in range(lanes(m)):
                write(m, i, u(lane), m.own[K, u(lane)], E)
            check(m, lost(m, i))

        @part
        def move_weights(m, x):
            """Move all weights that the trace reaches, in all lanes."""
            if TRACED and LISTED:
                live, E = m.live[K][x.stream], m.E[K][x.stream]
                for k in range(live[u(2 * size(m))]):
                    write_lanes(m, u(live[u(k)]), E[u(live[u(k)])])
            elif TRACED and COINS:
                for i in range(size(m)):
                    if m.E[K][x.stream, u(i)] != 0.0:
                        write_lanes(m, u(i), m.E[K][x.stream, u(i)])
            elif TRACED:
                for lane in range(lanes(m)):
                    for i in range(size(m)):
                        write(m, u(i), u(lane), m.own[K, u(lane)], m.E[K][x.stream, u(i)])
                        check(m, lost(m, u(i)))
            else:
                first, last = active(m, x.s)
                for j in range(first, last):
                    i, phi = entry(m, x.s, j)
                    write_lanes(m, i, trace(0.0, 0.0, phi, weigh(x)))

        @part
        def move(m, x):
            first, last = active(m, x.s)
            if LEARNS and AT_ONCE:
                check(m, lost(m, u(x.s)))
            elif LEARNS:
                move_weights(m, x)
                if AVERAGES:
                    for j in range(first, last):
                        i, phi = entry(m, x.s, j)
                        if phi != 0.0:
                            for lane in range(lanes(m)):
                                held = m.held[K][i, u(lane)]
                                m.w[K][i, u(lane)] = settled_weight(m, x, i, u(lane), held)
            if LEARNS:
                note_step(m, x)
            finish(m, x)

        self.say, self.move, self.begin, self.clear = say, move, traces.begin, traces.clear
        self.features, self.steps, self.traces = f, steps, traces


def in_a_lane(nodes: list[Any]) -> Any:
    """Figure 1: the nodes of a lane, one after another; each hears what those before it say."""
    say, MORE = nodes[0].say, len(nodes) > 1
    others: Any = in_a_lane(nodes[1:]) if MORE else None

    @part
    def network(m, x, lane, said):
        reading = say(m, x, lane, said)
        if MORE:
            others(m, x, lane, said + (reading,))  # noqa: RUF005 (compiled)

    return network


def learning(specs: tuple[Spec, ...]) -> tuple[Any, Any]:
    """Inlined functions: all lanes of a block learn from a transition; all traces are cleared."""
    from retvar.td.lazy import LazyCode

    lazy = [spec.trace == LAZY and spec.learns for spec in specs]
    nodes: list[Any] = [(LazyCode if x else NodeCode)(specs, k) for k, x in enumerate(lazy)]
    ALONE, COMMON = specs[-1].alone, specs[0].common
    begin, move, clear = (
        in_turn([getattr(node, what) for node in nodes]) for what in ("begin", "move", "clear")
    )
    value, say = nodes[0].say, in_a_lane(nodes[1:] if COMMON else nodes)

    @part
    def learn(m, x):
        begin(m, x)
        said: Any = NOTHING
        if COMMON:
            said = NOTHING + (value(m, x, 0, NOTHING),)  # noqa: RUF005 (compiled)
        for lane in range(1 if ALONE else m.p.shape[1]):
            say(m, x, lane, said)
        move(m, x)

    return learn, clear
