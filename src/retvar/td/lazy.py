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
trace is cleared as well. Streams from DEFERRED on are flushed after every step, so that reading a
weight does not get slower with the number of streams.
"""

from __future__ import annotations

from numpy import uintp as u

from retvar.td import rules
from retvar.td.jit import called_part, part
from retvar.td.nodes import FAINT, LIMIT, Spec, StepCode
from retvar.td.step_sizes import averages, counted, counts_visits, is_bounded

SMALL, LARGE = 1e-3, 1e3  # limits of the scale of a lazy trace
DEFERRED = 8  # streams whose updates are deferred

trace, moved, averaged = part(rules.trace), part(rules.moved), part(rules.averaged)
bounded_step = part(rules.bounded_step)


class LazyCode(StepCode):
    """Inlined functions of a node with a lazy trace; the same as :class:`.nodes.WeightCode` has."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        active, entry, feature, predict = self.active, self.entry, self.feature, self.predict
        size, lanes, weigh, visit = self.size, self.lanes, self.weigh, self.visit
        step_of, note_step, check, decayed = self.step_of, self.note_step, self.check, self.decayed
        spread, unspread, KIND = self.spread, self.unspread, spec.kind
        COUNTS, AVERAGES, BOUNDED = counts_visits(KIND), averages(KIND), is_bounded(KIND)

        @part
        def slot_of(stream):
            """Where the sums of a stream are."""
            return u(min(stream, DEFERRED))

        @part
        def step(m, i):
            """α of a weight; 1 where it is common to all and in A."""
            return step_of(m, i, 0) if COUNTS else 1.0

        @part
        def deferred(m, i, lane):
            """Σ eA over the streams; times α it is the difference of a weight from its base."""
            found = 0.0
            for stream in range(min(DEFERRED, m.E.shape[0])):
                found += m.E[u(stream), i] * m.sums[u(stream), lane]
            return found

        @part
        def sensitivity(m, stream, s):
            """Σ αeφ of a state: the change of its prediction when A grows by 1."""
            found = 0.0
            first, last = active(m, s)
            for j in range(first, last):
                i, phi = entry(m, s, j)
                found += phi * step(m, i) * m.E[u(stream), i]
            return found

        @called_part
        def recall(m, s, out):
            """w·φ of a state in all lanes, of the weights that learn with what is deferred."""
            n, w = lanes(m), m.held if AVERAGES else m.w
            for lane in range(n):
                out[u(lane)] = m.own[u(lane)] = 0.0
            first, last = active(m, s)
            for j in range(first, last):
                i, phi = entry(m, s, j)
                for lane in range(n):
                    out[u(lane)] += phi * w[i, u(lane)]
            for stream in range(min(DEFERRED, m.E.shape[0])):
                x = sensitivity(m, stream, s)
                for lane in range(n):
                    m.own[u(lane)] += m.sums[u(stream), u(lane)] * x
            for lane in range(n):
                out[u(lane)] += m.own[u(lane)]

        @called_part
        def flush(m, stream, s):
            """Apply the deferred updates of a stream and rescale its trace by `s`; 0 clears it."""
            slot, n, kept = slot_of(stream), u(size(m)), 0
            live, e, w = m.live[stream], m.E[stream], m.held if AVERAGES else m.w
            for k in range(live[u(2) * n]):
                i = u(live[u(k)])
                for lane in range(lanes(m)):
                    A = m.sums[slot, u(lane)]
                    w[i, u(lane)] = moved(w[i, u(lane)], step(m, i), A, e[i])
                E = s * e[i] if s != 0.0 else 0.0
                gone = abs(E) < FAINT
                check(m, abs(w[i, 0]) <= LIMIT and abs(E) <= LIMIT)
                e[i], live[n + i], live[u(kept)] = 0.0 if gone else E, -1 if gone else kept, i
                kept += 0 if gone else 1
            live[u(2) * n], m.scales[slot] = kept, 1.0
            m.sums[slot] = 0.0

        @called_part
        def add_feature(m, x, i, phi, weight, inverse):
            """Add a feature to the trace and count the visit, without changing a true weight."""
            slot, before, n = slot_of(x.stream), step(m, i), size(m)
            w = m.held if AVERAGES else m.w
            counts = COUNTS and counted(KIND, weight) != 0.0
            if counts:
                visit(m, i, weight)
            e, live = trace(0.0, 0.0, phi, weight) * inverse, m.live[x.stream]
            for lane in range(lanes(m)):
                base = w[i, u(lane)]
                if counts:
                    base = moved(base, before - step(m, i), deferred(m, i, u(lane)), 1.0)
                w[i, u(lane)] = moved(base, -step(m, i), m.sums[slot, u(lane)], e)
            if e != 0.0:
                m.E[x.stream, i] += e
                if live[u(n) + i] < 0:
                    count = live[u(2 * n)]
                    live[u(n) + i], live[u(count)], live[u(2 * n)] = count, i, count + 1

        @part
        def begin(m, x, c):
            """Predict; let the trace decay, flush it where that is due, and add the features."""
            recall(m, x.s, m.now)
            recall(m, x.s2, m.after)
            spread(m, x)
            weight, slot = weigh(x), slot_of(x.stream)
            s, largest = trace(decayed(m, x, c), m.scales[slot], 0.0, weight), 0.0
            m.scales[slot] = s
            first, last = active(m, x.s)
            for j in range(first, last):
                _, phi = entry(m, x.s, j)
                largest = max(largest, abs(phi))
            if not (SMALL <= s <= LARGE and weight * largest <= LARGE):
                flush(m, x.stream, s)
                s = 1.0
            for j in range(first, last):
                i, phi = entry(m, x.s, j)
                add_feature(m, x, i, phi, weight, 1.0 / s)
            if BOUNDED:
                pull = c * s * sensitivity(m, x.stream, x.s2) - s * sensitivity(m, x.stream, x.s)
                for lane in range(lanes(m)):
                    m.p[u(lane)] = bounded_step(m.p[u(lane)], pull)

        @part
        def undeferred(m, x, w, i, lane):
            """A weight with what is deferred of a stream that is about to be flushed."""
            if x.stream >= DEFERRED:
                w = moved(w, step(m, i), m.sums[DEFERRED, lane], m.E[x.stream, i])
            return w

        @part
        def true_weight(m, x, i, lane):
            """A weight with all that is deferred."""
            w = m.held if AVERAGES else m.w
            return undeferred(
                m, x, moved(w[i, lane], step(m, i), deferred(m, i, lane), 1.0), i, lane
            )

        @called_part
        def expect(m, x, lane):
            """The prediction of the next state after the update."""
            found, late = 0.0, 0.0
            first, last = active(m, x.s2)
            for j in range(first, last):
                i, phi = entry(m, x.s2, j)
                w = m.w[i, lane]
                if not AVERAGES:
                    w = undeferred(m, x, w, i, lane)
                elif feature(m, x.s, i) != 0.0 and weigh(x) != 0.0:
                    w = averaged(w, true_weight(m, x, i, lane), m.visits[i])
                found += phi * w
            if not AVERAGES:
                for stream in range(min(DEFERRED, m.E.shape[0])):
                    late += m.sums[u(stream), lane] * sensitivity(m, stream, x.s2)
            return found + late

        @part
        def predicted(m, x, lane):
            if AVERAGES:  # by the means; the weights learn
                return predict(m, m.w, x.s, lane), predict(m, m.w, x.s2, lane)
            return m.now[lane], m.after[lane]

        @part
        def learned(m, x, lane):
            return m.now[lane], m.after[lane]

        @part
        def pull(m, x, lane, own, after):
            slot = slot_of(x.stream)
            m.sums[slot, lane] = moved(m.sums[slot, lane], 1.0, own, m.scales[slot])
            return after

        @part
        def move(m, x):
            """Look for divergence, settle the means, and flush streams that are not deferred."""
            first, last = active(m, x.s)
            for j in range(first, last):
                i, _ = entry(m, x.s, j)
                kept = abs(true_weight(m, x, i, 0)) <= LIMIT
                check(m, kept and abs(m.E[x.stream, i]) <= LIMIT)
                if AVERAGES and weigh(x) != 0.0:
                    for lane in range(lanes(m)):
                        w = true_weight(m, x, i, u(lane))
                        m.w[i, u(lane)] = averaged(m.w[i, u(lane)], w, m.visits[i])
            if x.stream >= DEFERRED:
                flush(m, x.stream, m.scales[DEFERRED])
            note_step(m, x)
            unspread(m, x)

        @part
        def clear(m, stream):
            flush(m, stream, 0.0)
            m.last[stream] = 0.0

        self.begin, self.move, self.clear = begin, move, clear
        self.predicted, self.learned, self.pull, self.expect = predicted, learned, pull, expect
