"""The TD update of all nodes of a network in all lanes: begin, say, move.

Lanes see the same transitions with the same features, γ, λ and κ. So visits and traces of a node
are common to all lanes: [weight]. What lanes have of their own is weights [weight, lane], settings
and multipliers [lane]. A simulated learner is a lane; so is a bootstrap replicate of an online
estimator, whose own lane is the first. A block is a tuple with the :class:`Arrays` of each node.
:func:`learning` makes ``learn``, which takes a transition in three steps:

    begin   once for all lanes: count visits, extend traces
    say     in each lane: the TD nodes of Figure 1, from predictions to TD errors, in registers
    move    w += αδE of every weight that a trace reaches, lanes innermost

A table without traces has one weight to move, so `say` moves it at once. Traces of features that
come with each transition are lazy (:mod:`retvar.td.lazy`). Functions are made for the
:class:`Spec` of each node, whose fields are literals in them: what a node lacks costs nothing.
Nodes that differ only in what they are fed with share all but `begin` and `say`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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

__all__ = ["KEPT", "Arrays", "Spec", "Step", "learning"]

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
    learns: bool  #: False: a value held fixed, without steps and traces
    trace: int  #: NONE, EAGER or LAZY
    size: int  #: number of weights where all are visited at each step, or ALL; 0: they are listed
    features: int  #: TABLE, DENSE or SPARSE
    alone: bool = False  #: whether there is one lane
    common: bool = False  #: whether one node serves all lanes; the first alone can
    coins: bool = False  #: whether lanes have multipliers
    steps: bool = False  #: whether the step of the state being left is noted
    checked: bool = False  #: whether it is noted when the first lane diverges
    tabled: bool = False  #: whether rates are in a table, as on a GPU, whose powers have other bits

    @property
    def local(self) -> bool:
        """Whether a transition changes the weight of the state being left alone."""
        return self.features == TABLE and not self.trace

    @property
    def shared(self) -> Spec:
        """The same for all nodes that differ only in what they are fed with."""
        return self._replace(code=0 if NODES[self.code].by_rho else 1)


class Arrays(NamedTuple):
    """What a node keeps in all lanes; what it does not need, by ``KEPT``, is None.

    There is one weight more than a node has, always 0: that of the end of an episode in a table.
    """

    w: Any  #: what predictions are made of
    held: Any  #: Averaged: what learns, and `w` its mean
    first: Any  #: Adadelta's accumulators
    second: Any
    taken: Any  #: Adadelta's last step
    used: Any  #: step with which a state was last updated
    E: Any  #: traces
    live: Any  #: weights with a trace; their positions; their number
    visits: Any
    rates: Any  #: what the visits divide the step by
    fresh: Any  #: features of the state being left, 0 between steps
    sums: Any  #: lazy traces: A …
    scales: Any  #: … and s
    now: Any  #: lazy traces: what learns predicts before the update
    after: Any
    own: Any  #: what pulls the weights: α × multiplier × TD error
    error: Any  #: TD error of the last transition
    last: Any  #: discount of the last transition
    lost: Any  #: [0] whether the first lane has diverged
    coins: Any  #: multipliers of all nodes; those of replicates in words of 64
    p: Any  #: [lane] settings of the step-size rule
    q: Any
    kappa: Any  #: [state, or one for all]
    phi: Any  #: [state, weight] of DENSE features
    rows: Any  #: (indptr, indices, values) of SPARSE ones
    powers: Any  #: rates after 0, 1, 2 … visits, if they are in a table


KEPT: dict[str, tuple[str, Callable[[Spec], bool]]] = {  # its axes, and the nodes that need it
    "w": ("weight lane", lambda s: True),
    "held": ("weight lane", lambda s: averages(s.kind)),
    "first": ("weight lane", lambda s: depends_on_errors(s.kind)),
    "second": ("weight lane", lambda s: depends_on_errors(s.kind)),
    "taken": ("weight lane", lambda s: s.steps and depends_on_errors(s.kind)),
    "used": ("state lane", lambda s: s.steps),
    "E": ("stream weight", lambda s: s.trace != NONE),
    "live": ("stream list", lambda s: s.size == 0 and s.trace != NONE),
    "visits": ("weight", lambda s: counts_visits(s.kind)),
    "rates": ("weight", lambda s: counts_visits(s.kind)),
    "fresh": ("weight", lambda s: s.features == SPARSE),
    "sums": ("slot lane", lambda s: s.trace == LAZY),
    "scales": ("slot", lambda s: s.trace == LAZY),
    "now": ("lane", lambda s: s.trace == LAZY),
    "after": ("lane", lambda s: s.trace == LAZY),
    "own": ("lane", lambda s: s.learns and not s.local),
    "error": ("lane", lambda s: s.checked),
    "last": ("stream", lambda s: s.trace != NONE),
    "lost": ("one", lambda s: s.checked),
    "coins": ("word", lambda s: s.coins and s.code == 0),
}


class Step(NamedTuple):
    """A transition as nodes see it."""

    s: Any
    s2: Any  #: the number of states at the end of an episode
    t: Transition  #: R, γ′, λ′, η
    rho: Any
    rho_bar: Any
    stream: Any  #: whose traces
    stays: Any  #: whether s2 is s
    coins: Any  #: [lane] multipliers, or None


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

    def __init__(self, spec: Spec) -> None:
        IS_TABLE, IS_DENSE = spec.features == TABLE, spec.features == DENSE
        SIZE, ALONE = spec.size, spec.alone or spec.common
        SELECTS = spec.tabled and IS_TABLE and SIZE > 0  # weights that a GPU holds in registers

        @part
        def size(m):
            """Number of weights."""
            return SIZE if SIZE > 0 else m.w.shape[0] - 1

        @part
        def lanes(m):
            """Number of lanes."""
            return 1 if ALONE else m.w.shape[1]

        @part
        def active(m, s):
            """Entries of the features of a state."""
            if IS_TABLE:
                return s, s + 1
            if IS_DENSE:
                return 0, SIZE
            return m.rows[0][u(s)], m.rows[0][u(s + 1)]

        @part
        def entry(m, s, j):
            """The weight of an entry, and its feature."""
            if IS_TABLE:
                return u(j), 1.0
            if IS_DENSE:
                return u(j), m.phi[u(s), u(j)]
            return u(m.rows[1][u(j)]), m.rows[2][u(j)]

        @part
        def feature(m, s, i):
            """The feature of a weight, of the state being left."""
            if IS_TABLE:
                return 1.0 if u(i) == u(s) else 0.0
            if IS_DENSE:
                return m.phi[u(s), i]
            return m.fresh[i]

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


features_of = functools.cache(FeatureCode)


class StepCode(FeatureCode):
    """Inlined functions: ρ or ρ̄, visits, the step of a weight, and how a trace decays."""

    def __init__(self, spec: Spec) -> None:
        vars(self).update(vars(features_of(spec)))
        active, entry, KIND, COINS, STEPS = (
            self.active,
            self.entry,
            spec.kind,
            spec.coins,
            spec.steps,
        )
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
            m.visits[i] += counted(KIND, weight)
            n = m.visits[i]
            if TABLED and n < m.powers.size:
                m.rates[i] = m.powers[u(n)]
            else:
                m.rates[i] = rate_at(KIND, m.q[0], n)

        @part
        def step_of(m, i, lane):
            """The step of a weight that counts visits; replicates have the same."""
            return decayed_step(m.p[0 if COINS else lane], 1.0, m.rates[i])

        @part
        def note_step(m, x):
            """Note the step of the state being left: of its last feature, if each has its own."""
            first, last = active(m, x.s)
            if IS_DENSE:  # its last feature that is not 0
                while STEPS and last > 0 and m.phi[u(x.s), u(last - 1)] == 0.0:
                    last -= 1
            if STEPS and (BOUNDED or (last > first and weigh(x) != 0.0)):
                i = u(0)
                if last > first:
                    i, _ = entry(m, x.s, last - 1)
                at = u(x.s if m.used.shape[0] > 1 else 0)
                for lane in range(1 if ONE else m.used.shape[1]):
                    step = m.p[u(lane)]
                    if COUNTS:
                        step = step_of(m, i, u(lane))
                    if ERRORS:
                        step = m.taken[i, u(lane)]
                    m.used[at, u(lane)] = step

        @part
        def check(m, sound):
            """Note that weights of the first lane are lost."""
            if CHECKED and not sound:
                m.lost[0] = 1.0

        @part
        def decayed(m, x, c):
            """γκ, by which the trace decays; remembers this discount."""
            decay = m.last[x.stream] * m.kappa[u(x.s if m.kappa.size > 1 else 0)]
            m.last[x.stream] = c
            return decay

        @part
        def spread(m, x):
            """Write the features of the state being left where weights find them."""
            first, last = active(m, x.s)
            for j in range(first, last):
                i, m.fresh[i] = entry(m, x.s, j)

        @part
        def unspread(m, x):
            first, last = active(m, x.s)
            for j in range(first, last):
                i, _ = entry(m, x.s, j)
                m.fresh[i] = 0.0

        self.weigh, self.visit, self.step_of, self.note_step = weigh, visit, step_of, note_step
        self.check, self.decayed, self.spread, self.unspread = check, decayed, spread, unspread


class WeightCode(StepCode):
    """Inlined functions: visits and the eager trace of a node, and how its weights move.

    All but `expect`, `learned` and `pull` are None where they have nothing to do.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        active, entry, feature, predict = self.active, self.entry, self.feature, self.predict
        size, lanes, weigh, visit = self.size, self.lanes, self.weigh, self.visit
        step_of, note_step, check, decayed = self.step_of, self.note_step, self.check, self.decayed
        spread, unspread = self.spread, self.unspread
        KIND, LEARNS, COINS, CHECKED = spec.kind, spec.learns, spec.coins, spec.checked
        TRACED, LISTED, AT_ONCE = spec.trace != NONE, spec.size == 0, spec.local
        FRESH, STEPS, ERRORS = spec.features == SPARSE, spec.steps, depends_on_errors(KIND)
        COUNTS, BOUNDED, AVERAGES = counts_visits(KIND), is_bounded(KIND), averages(KIND)

        @part
        def extend(m, x, decay, weight):
            """E = w(γκE + φ) of all weights."""
            for i in range(size(m)):
                E = trace(decay, m.E[x.stream, u(i)], feature(m, x.s, i), weight)
                m.E[x.stream, u(i)] = 0.0 if abs(E) < FAINT else E

        @part
        def extend_listed(m, x, decay, weight):
            """The same of the weights that are listed; those whose trace has faded leave."""
            live, E, n = m.live[x.stream], m.E[x.stream], u(size(m))
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
                pull += c * phi * m.E[x.stream, i]
            first, last = active(m, x.s)
            for j in range(first, last):
                i, phi = entry(m, x.s, j)
                pull -= phi * m.E[x.stream, i]
            for lane in range(lanes(m)):
                m.p[u(lane)] = bounded_step(m.p[u(lane)], pull)

        @part
        def begin(m, x, c):
            weight = weigh(x)
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
        def clear(m, stream):
            m.last[stream] = 0.0
            if LISTED:
                live, E, n = m.live[stream], m.E[stream], u(size(m))
                for k in range(live[u(2) * n]):
                    i = u(live[u(k)])
                    live[n + i], E[i] = -1, 0.0
                live[u(2) * n] = 0
            else:
                for at in range(size(m)):
                    m.E[stream, u(at)] = 0.0

        @part
        def moved_weight(m, i, lane, own, E):
            """W + αδE, α and ADADELTA's sums, not yet written; `own` is δ, or αδ if α is common."""
            learns, step, G, D = m.held if AVERAGES else m.w, 1.0, 0.0, 0.0
            if COUNTS:
                step = step_of(m, i, lane)
            if ERRORS:
                G, D = m.first[i, lane], m.second[i, lane]
                step, G, D = accumulated(m.p[lane], m.q[lane], G, D, own * E)
            return moved(learns[i, lane], step, own, E), step, G, D

        @part
        def settled_weight(m, x, i, lane, new):
            """What predicts once a weight is `new`: Averaged: its mean."""
            if AVERAGES:
                mean = m.w[i, lane]
                return averaged(mean, new, m.visits[i]) if weigh(x) != 0.0 else mean
            return new

        @part
        def write(m, i, lane, own, E):
            learns = m.held if AVERAGES else m.w
            learns[i, lane], step, G, D = moved_weight(m, i, lane, own, E)
            if ERRORS:
                m.first[i, lane] = G if E != 0.0 else m.first[i, lane]
                m.second[i, lane] = D if E != 0.0 else m.second[i, lane]
                if STEPS:
                    m.taken[i, lane] = step if E != 0.0 else m.taken[i, lane]
            return learns[i, lane]

        @part
        def predicted(m, x, lane):
            """Predictions of the state being left and of the next."""
            return predict(m, m.w, x.s, lane), predict(m, m.w, x.s2, lane)

        @part
        def learned(m, x, lane):
            """The same by the weights that learn, of which those that predict are means."""
            return predict(m, m.held, x.s, lane), predict(m, m.held, x.s2, lane)

        @part
        def expect(m, x, lane):
            """The prediction of the next state after the update, before a weight is written."""
            found, own = 0.0, m.own[lane]
            first, last = active(m, x.s2)
            for j in range(first, last):
                i, phi = entry(m, x.s2, j)
                w, here = m.w[i, lane], feature(m, x.s, i)
                E = m.E[x.stream, i] if TRACED else trace(0.0, 0.0, here, weigh(x))
                new, _, _, _ = moved_weight(m, i, lane, own, E)
                if AVERAGES:
                    new = settled_weight(m, x, i, lane, new) if here != 0.0 else w
                found += phi * new
            return found

        @part
        def pull(m, x, lane, own, after):
            """Take what pulls the weights; the prediction of the next state after that."""
            if AT_ONCE:
                i = u(x.s)
                new = write(m, i, lane, own, trace(0.0, 0.0, 1.0, weigh(x)))
                new = settled_weight(m, x, i, lane, new)
                m.w[i, lane] = new
                return new if x.stays else after
            m.own[lane] = own
            return after

        @part
        def look(m, i):
            """Look whether a weight of the first lane has diverged."""
            if CHECKED:
                check(m, abs((m.held if AVERAGES else m.w)[i, 0]) <= LIMIT)

        @part
        def write_lanes(m, i, E):
            for lane in range(lanes(m)):
                write(m, i, u(lane), m.own[u(lane)], E)
            look(m, i)

        @part
        def move_weights(m, x):
            """Move all weights that the trace reaches, in all lanes."""
            if TRACED and LISTED:
                live, E = m.live[x.stream], m.E[x.stream]
                for k in range(live[u(2 * size(m))]):
                    write_lanes(m, u(live[u(k)]), E[u(live[u(k)])])
            elif TRACED and COINS:
                for i in range(size(m)):
                    if m.E[x.stream, u(i)] != 0.0:
                        write_lanes(m, u(i), m.E[x.stream, u(i)])
            elif TRACED:
                for lane in range(lanes(m)):
                    for i in range(size(m)):
                        write(m, u(i), u(lane), m.own[u(lane)], m.E[x.stream, u(i)])
                        look(m, u(i))
            else:
                first, last = active(m, x.s)
                for j in range(first, last):
                    i, phi = entry(m, x.s, j)
                    write_lanes(m, i, trace(0.0, 0.0, phi, weigh(x)))

        @part
        def settle(m, x):
            """Averaged: move the means of the weights of the state being left."""
            first, last = active(m, x.s)
            for j in range(first, last):
                i, phi = entry(m, x.s, j)
                if phi != 0.0:
                    for lane in range(lanes(m)):
                        held = m.held[i, u(lane)]
                        m.w[i, u(lane)] = settled_weight(m, x, i, u(lane), held)

        @part
        def move(m, x):
            if LEARNS and AT_ONCE:
                look(m, u(x.s))
            elif LEARNS:
                move_weights(m, x)
                if AVERAGES:
                    settle(m, x)
            if LEARNS and STEPS:
                note_step(m, x)
            if FRESH:
                unspread(m, x)

        moves = (LEARNS and not AT_ONCE) or CHECKED or STEPS or FRESH
        self.begin = begin if FRESH or COUNTS or TRACED else None
        self.move, self.clear = move if moves else None, clear if TRACED else None
        self.predicted, self.learned, self.pull, self.expect = predicted, learned, pull, expect


class NodeCode:
    """Inlined functions of a node: what it is fed with, and what it says in a lane."""

    def __init__(self, specs: tuple[Spec, ...], K: int, weights: Any) -> None:
        spec, node = specs[K], NODES[specs[K].code]
        weigh_begin, predicted, learned = weights.begin, weights.predicted, weights.learned
        pull, expect = weights.pull, weights.expect
        LEARNS, COINS, CHECKED = spec.learns, spec.coins, spec.checked
        AVERAGES, REREAD = averages(spec.kind), is_reread(specs, K) and not spec.local
        SCALED = not (counts_visits(spec.kind) or depends_on_errors(spec.kind))
        VALUE, MEAN, VARIANCE, THIRD = (heard(specs, K, place) for place in range(4))
        reward, discount = part(node.reward), part(node.discount)

        @part
        def begin(m, x):
            weigh_begin(m, x, discount(x.t))

        @part
        def say(m, x, lane, said):
            """The TD node: predictions, reward, TD error, and what follows from it in a lane."""
            c, at = discount(x.t), u(lane)
            now, after = predicted(m, x, at)
            fed = reward(x.t, Readings(said[VALUE], said[MEAN], said[VARIANCE], said[THIRD]))
            error = td_error(fed, c, after, now)
            updated = after
            if CHECKED:
                m.error[at] = error
            if LEARNS:
                own = error
                if AVERAGES:  # predicts from the means, learns in the weights
                    old, new = learned(m, x, at)
                    own = td_error(fed, c, new, old)
                if COINS:
                    own = x.coins[at] * own
                if SCALED:
                    own = m.p[at] * own
                updated = pull(m, x, at, own, after)
                if REREAD:
                    updated = expect(m, x, at)
            return Reading(now, after, error, updated)

        self.begin, self.say = begin if weigh_begin is not None else None, say


def learning(specs: tuple[Spec, ...]) -> tuple[Any, Any]:
    """Inlined functions: all lanes of a block learn from a transition; all traces are cleared."""
    weights = [weights_of(spec.shared) for spec in specs]
    nodes = [NodeCode(specs, K, each) for K, each in enumerate(weights)]
    begin, move = in_turn([x.begin for x in nodes], 1), in_turn([x.move for x in weights], 1)
    ALONE, COMMON, value = specs[-1].alone, specs[0].common, nodes[0].say
    names = {f"say{K}": node.say for K, node in enumerate(nodes)}
    calls = (f"said = said + (say{K}(m[{K}], x, lane, said),)" for K in range(COMMON, len(specs)))
    exec(f"def network(m, x, lane, said): {'; '.join(calls)}", names)
    say = part(names["network"])  # Figure 1: each node hears what those before it say

    @part
    def learn(m, x):
        begin(m, x)
        said: Any = NOTHING
        if COMMON:
            said = NOTHING + (value(m[0], x, 0, NOTHING),)  # noqa: RUF005 (compiled)
        for lane in range(1 if ALONE else m[0].p.size):
            say(m, x, lane, said)
        move(m, x)

    return learn, in_turn([each.clear for each in weights], 1)


@functools.cache
def weights_of(spec: Spec) -> Any:
    """The functions of the weights of a node."""
    from retvar.td.lazy import LazyCode

    return (LazyCode if spec.trace == LAZY else WeightCode)(spec)
