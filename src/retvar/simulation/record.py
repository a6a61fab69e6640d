"""What a simulation records, and when: estimates, sums over a window, changes, divergence.

A row is one of ``ESTIMATES``: the prediction of a node, or that less the square of another. Its
slot is its position among the rows that a block has. Where only the state being left changes, sums
over a window are brought up to date when a state is left; otherwise all states are added at each
moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy import uintp as u
from numpy.typing import NDArray

from retvar.simulation.blocks import Shape
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import literal
from retvar.td.jit import called_part, in_turn, part
from retvar.td.networks import ESTIMATES, NETWORKS, NODES, THIRD, VARIANCE, Estimate, rests_on
from retvar.td.nodes import LIMIT, features_of
from retvar.td.step_sizes import averages

Integers = NDArray[np.int64]
POINTS = 100
MOST_POINTS = 100_000_000
LATEST = 2**62  # moment
SUMMED = ("squares", "frozen_squares", "changes")  # results that are summed over states too
COMPARED = (  # rows that are compared with the truth
    {ESTIMATES.index(Estimate(NODES[0])): 0}
    | {ESTIMATES.index(network.variance): 1 for network in NETWORKS.values()}
    | {ESTIMATES.index(Estimate(n)): n.place - VARIANCE + 1 for n in NODES if n.place >= THIRD}
)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What to record, and when; moments are steps, or episodes if the run is counted in episodes.

    Parameters
    ----------
    every
        Record every `every` moments.
    at
        Record at these moments; 0 is the beginning.
    points
        Number of moments to record, evenly spaced, or log-spaced with ``log=True``; default: 100.
    states
        Record the estimates of these states only (their indices or names); default: all.
    window
        Mean estimate and mean squared error over the last `window` moments.
    change
        Mean absolute change of each estimate at a moment, as in Table 1 of the paper.
    rmse
        Root of the squared error weighted by the stationary distribution, at each point.
    step_sizes
        Step size with which each state was last updated, at each point.

    Examples
    --------
    >>> import retvar as rv
    >>> rv.Record(points=5).moments(20)
    array([ 4,  8, 12, 16, 20])
    >>> rv.Record(points=4, log=True).moments(1_000)
    array([   1,   10,  100, 1000])
    """

    every: int | None = None
    at: Sequence[int] | None = None
    points: int | None = None
    log: bool = False
    states: Sequence[int | str] | None = None
    window: int = 0
    change: bool = False
    rmse: bool = False
    step_sizes: bool = False

    def __post_init__(self) -> None:
        ways = [name for name in ("every", "at", "points") if getattr(self, name) is not None]
        if len(ways) > 1:
            raise InputError("record", " and ".join(ways), "give one of every, at and points")
        for name in ("every", "points", "window"):
            if (given := getattr(self, name)) is not None:
                found = arguments.integer(f"record.{name}", given, int(name != "window"))
                object.__setattr__(self, name, found)
        for name in ("log", "change", "rmse", "step_sizes"):
            object.__setattr__(self, name, arguments.flag(f"record.{name}", getattr(self, name)))
        if self.log and ways not in ([], ["points"]):
            raise InputError("record.log", True, "goes with points")
        if self.at is not None:
            moments = arguments.entries("record.at", self.at, "a list of whole numbers")
            if not moments or not all(map(arguments.is_integer, moments)):
                raise InputError("record.at", self.at, "must be a list of whole numbers")
            arguments.integer("record.at", int(max(moments)), high=LATEST)
            object.__setattr__(self, "at", tuple(sorted({int(m) for m in moments})))

    def moments(self, total: int) -> Integers:
        """Return the moments at which a run of `total` moments is recorded."""
        total = arguments.integer("total", total, 1)
        if self.window > total:
            raise InputError("record.window", self.window, f"must be at most the end, {total:,}")
        if self.at is not None:
            moments = np.array(self.at, dtype=np.int64)
            if moments[0] < 0 or moments[-1] > total:
                bad = int(moments[0] if moments[0] < 0 else moments[-1])
                raise InputError("record.at", bad, f"must lie between 0 and the end, {total:,}")
            return moments
        if self.every is not None:
            if self.every > total:
                remedy = f"is beyond the end; must be at most {total:,}"
                raise InputError("record.every", self.every, remedy)
            if total // self.every > MOST_POINTS:
                found, most = f"{total // self.every:,} moments", f"{MOST_POINTS:,}"
                raise InputError("record", found, f"must be at most {most}; record less often")
            return np.arange(self.every, total + 1, self.every, dtype=np.int64)
        count = min(self.points or POINTS, total)
        if self.log and count > 1:
            spaced = np.logspace(0, np.log10(total), count)
        else:
            spaced = np.linspace(total / count, total, count)
        return np.unique(np.rint(spaced).astype(np.int64))


def record_of(given: Any) -> Record:
    """Return a Record: a number is `every`, a list is `at`, ``"log"`` is log-spaced."""
    if given is None or isinstance(given, Record):
        return Record() if given is None else given
    if isinstance(given, str) and given == "log":
        return Record(log=True)
    if arguments.is_integer(given):
        return Record(every=int(given))
    if isinstance(given, list | tuple | range) or (isinstance(given, np.ndarray) and given.ndim):
        return Record(at=list(given))
    raise InputError("record", literal(given), "must be 'log', a number, a list or a Record")


# ---------------------------------------------------------------------- rows and arrays


class Rows(NamedTuple):
    """The rows of a block as arrays, by slot."""

    node: Any  #: slot of the prediction of its node
    less: Any  #: slot of the prediction whose square is subtracted; −1: none
    of: Any  #: what it is compared with: a row of ``Wanted.truth``; −1: nothing
    moves: Any  #: False: that of a value held fixed
    rests: Any  #: whether it rests on each of ``ESTIMATES`` [slot, row]


class Wanted(NamedTuple):
    """What to record and when, and the truth to compare with."""

    points: Any  #: moments to record; the last is the end
    by_step: Any  #: whether moments are steps (otherwise episodes)
    states: Any  #: states whose estimates are recorded
    shares: Any  #: stationary distribution; empty: no RMSE
    since: Any  #: moment at which the window begins
    truth: Any  #: value, variance and higher moments [row, state]
    frozen: Any  #: variance for the frozen value [run or one for all, state, lane]; empty: none
    rows: Rows


class Batch(NamedTuple):
    """Results of some runs of a block; the first axis is the run, the last the lane."""

    estimates: Any  #: [run, point, slot, state, lane]
    rmse: Any  #: [run, point, slot, lane]
    steps: Any  #: [run, point, slot, state, lane]
    sums: Any  #: over the window [run, slot, state, lane]
    squares: Any  #: squared deviations from the truth
    frozen_squares: Any  #: … from the truth for the frozen value
    changes: Any
    diverged_at: Any  #: moment of divergence [run, row, lane], or −1

    def parts(self) -> dict[str, Any]:
        """Return the arrays of results by name."""
        return {name: x for name, x in self._asdict().items() if name != "diverged_at"}


class Scratch(NamedTuple):
    """What is remembered between steps."""

    found: Any  #: estimates of a state [slot, lane]
    previous: Any  #: estimates at the last step, for changes [slot, state, lane]
    counted: Any  #: moment up to which each state is in the sums


def slot_of(shape: Shape, code: int) -> int:
    """Slot of the prediction of a node."""
    return shape.rows.index(ESTIMATES.index(Estimate(NODES[code])))


def table_of(shape: Shape) -> Rows:
    """The rows of a shape as arrays."""
    rows = [(number, ESTIMATES[number]) for number in shape.rows]
    fixed = not shape.specs[0].learns
    less = [e.less_square_of for _, e in rows]
    rests = [[k in rests_on(number) for k in range(len(ESTIMATES))] for number, _ in rows]
    return Rows(
        np.array([slot_of(shape, e.node.code) for _, e in rows]),
        np.array([-1 if node is None else slot_of(shape, node.code) for node in less]),
        np.array([COMPARED.get(number, -1) for number, _ in rows]),
        np.array([e.node.code > 0 or not fixed for _, e in rows]),
        np.array(rests),
    )


# ---------------------------------------------------------------------- estimates


@called_part
def make_of_predictions(found, node, less):
    """Make the estimates that are not predictions of a node."""
    for slot in range(found.shape[0]):
        if less[slot] >= 0:
            for lane in range(found.shape[1]):
                other = found[less[slot], lane]
                found[slot, lane] = found[node[slot], lane] - other * other


def finding(shape: Shape) -> Any:
    """An inlined function that writes all estimates of a state into `found` [slot, lane]."""

    def of_node(K: int) -> Any:
        spec = shape.specs[K]
        SLOT, ONE = slot_of(shape, spec.code), int(not spec.common)
        predict = features_of(spec.shared).predict

        @part
        def find(m, s, found):
            for lane in range(found.shape[1]):
                found[u(SLOT), u(lane)] = predict(m, m.w, s, lane * ONE)

        return find

    find_each = in_turn([of_node(K) for K in range(len(shape.specs))], True)

    @part
    def find_all(m, s, wanted, scratch):
        find_each(m, s, scratch.found)
        make_of_predictions(scratch.found, wanted.rows.node, wanted.rows.less)

    return find_all


# ---------------------------------------------------------------------- sums on the way


@part
def add_to_window(found, wanted, batch, r, s, times, still):
    """Add estimates of a state to the window, `times` times; those that stay as they are, `still`.

    Squares are of deviations from the truth, and from that for the frozen value.
    """
    for slot in range(found.shape[0]):
        count = times if wanted.rows.moves[slot] else still
        if count > 0 and wanted.rows.of[slot] >= 0:
            sums, squares = batch.sums[r, slot, s], batch.squares[r, slot, s]
            truth = wanted.truth[wanted.rows.of[slot], s]
            for lane in range(found.shape[1]):
                gap = found[slot, lane] - truth
                sums[lane] += count * found[slot, lane]
                squares[lane] += count * (gap * gap)
            if wanted.frozen.size:
                frozen = wanted.frozen[r if wanted.frozen.shape[0] > 1 else 0, s]
                others = batch.frozen_squares[r, slot, s]
                for lane in range(found.shape[1]):
                    gap = found[slot, lane] - frozen[lane]
                    others[lane] += count * (gap * gap)


@part
def add_changes(scratch, batch, r, s):
    """Add the absolute changes of the estimates of a state, and remember these."""
    for slot in range(scratch.found.shape[0]):
        changes, previous = batch.changes[r, slot, s], scratch.previous[slot, s]
        for lane in range(scratch.found.shape[1]):
            found = scratch.found[slot, lane]
            changes[lane] += abs(found - previous[lane])
            previous[lane] = found


# ---------------------------------------------------------------------- points


@called_part
def note_divergence(w, diverged_at, clock):
    """Note the moment by which a weight of a lane has diverged; common weights are of all lanes."""
    for lane in range(diverged_at.size):
        at, bad = min(lane, w.shape[1] - 1), False
        for i in range(w.shape[0]):
            bad |= not (abs(w[i, at]) <= LIMIT)
        if bad and diverged_at[lane] < 0:
            diverged_at[lane] = clock


def at_nodes(shape: Shape) -> tuple[Any, Any]:
    """Inlined functions for all nodes at a point: note divergence; record step sizes."""

    def of_node(K: int) -> tuple[Any, Any]:
        spec = shape.specs[K]
        SLOT, STEPS, LEARNS = slot_of(shape, spec.code), spec.steps, spec.learns
        ROW, AVERAGES = shape.rows[SLOT], averages(spec.kind)

        @part
        def note(m, batch, r, clock):
            if LEARNS:
                w = m.held if AVERAGES else m.w
                note_divergence(w, batch.diverged_at[r, ROW], clock)

        @part
        def record(m, wanted, batch, r, point):
            if STEPS:
                used, out = m.used, batch.steps[r, point, SLOT]
                for j in range(wanted.states.size):
                    for lane in range(out.shape[1]):
                        out[j, lane] = used[wanted.states[j], min(lane, used.shape[1] - 1)]

        return note, record

    made = [of_node(K) for K in range(len(shape.specs))]
    return in_turn([note for note, _ in made], True), in_turn([record for _, record in made], True)


@called_part
def is_lost(rests, diverged_at, slot, lane):
    """Whether a node that an estimate rests on has diverged."""
    gone = False
    for row in range(rests.shape[1]):
        gone |= rests[slot, row] and diverged_at[row, lane] >= 0
    return gone


@called_part
def record_estimates(found, lost, rests, diverged_at, estimates, j):
    """Record the estimates of a state; `lost`: whether any lane may have diverged."""
    for slot in range(found.shape[0]):
        for lane in range(found.shape[1]):
            gone = lost and is_lost(rests, diverged_at, slot, lane)
            estimates[slot, j, lane] = math.nan if gone else found[slot, lane]


@called_part
def add_errors(found, of, truth, share, rmse, s):
    """Add the squared errors of a state with its share of the stationary distribution."""
    for slot in range(found.shape[0]):
        if of[slot] >= 0:
            for lane in range(found.shape[1]):
                gap = found[slot, lane] - truth[of[slot], s]
                rmse[slot, lane] += share * (gap * gap)


@called_part
def finish_errors(rests, diverged_at, rmse):
    """Take the roots of the mean squared errors."""
    for slot in range(rmse.shape[0]):
        for lane in range(rmse.shape[1]):
            gone = is_lost(rests, diverged_at, slot, lane)
            rmse[slot, lane] = math.nan if gone else math.sqrt(rmse[slot, lane])


# ---------------------------------------------------------------------- all of it


def recorder_of(shape: Shape) -> dict[str, Any]:
    """The inlined functions that record what learners of one shape estimate, by name."""
    CHANGE, LOCAL = shape.change, shape.local
    find, (note, record_steps) = finding(shape), at_nodes(shape)

    @part
    def begin(m, wanted, scratch, batch, r):
        """At the start of a run."""
        batch.diverged_at[r] = -1
        scratch.counted[:] = wanted.since
        if CHANGE:
            for s in range(scratch.counted.size):
                find(m, s, wanted, scratch)
                for slot in range(scratch.found.shape[0]):
                    for lane in range(scratch.found.shape[1]):
                        scratch.previous[slot, s, lane] = scratch.found[slot, lane]

    @part
    def leave(m, wanted, scratch, batch, r, s, clock):
        """Before each step: bring the sums of a state up to date before it changes."""
        if LOCAL and clock > scratch.counted[s]:
            times = clock - scratch.counted[s]
            scratch.counted[s] = clock
            find(m, s, wanted, scratch)
            add_to_window(scratch.found, wanted, batch, r, s, times, 0)

    @part
    def change(m, wanted, scratch, batch, r, s):
        """After each step: add the changes of one state, or of all."""
        if CHANGE:
            first, last = (s, s + 1) if LOCAL else (0, scratch.counted.size)
            for each in range(first, last):
                find(m, each, wanted, scratch)
                add_changes(scratch, batch, r, each)

    @part
    def moment(m, wanted, scratch, batch, r, clock):
        """After each moment: add it to the window; locally, at its end, what is left."""
        last = clock == wanted.points[-1]
        if clock > wanted.since and (last or not LOCAL):
            still = clock - wanted.since if last else 0
            for s in range(scratch.counted.size):
                times = clock - scratch.counted[s] if LOCAL else 1
                find(m, s, wanted, scratch)
                add_to_window(scratch.found, wanted, batch, r, s, times, still)

    @part
    def record_point(m, wanted, scratch, batch, r, point, lost):
        rests, diverged_at, found = wanted.rows.rests, batch.diverged_at[r], scratch.found
        record_steps(m, wanted, batch, r, point)
        for j in range(wanted.states.size):
            find(m, wanted.states[j], wanted, scratch)
            record_estimates(found, lost, rests, diverged_at, batch.estimates[r, point], j)
        if wanted.shares.size:
            rmse = batch.rmse[r, point]
            for s in range(wanted.shares.size):
                if wanted.shares[s] > 0.0:
                    find(m, s, wanted, scratch)
                    add_errors(found, wanted.rows.of, wanted.truth, wanted.shares[s], rmse, s)
            finish_errors(rests, diverged_at, rmse)

    return {
        "begin": begin, "leave": leave, "change": change, "moment": moment, "note": note,
        "record_point": record_point, "finish": finish_run,
    }  # fmt: skip


@part
def finish_run(wanted, scratch, batch, r):
    """Sums of a run in which the lane diverged are NaN."""
    for slot in range(scratch.found.shape[0]):
        for lane in range(scratch.found.shape[1]):
            if is_lost(wanted.rows.rests, batch.diverged_at[r], slot, lane):
                for sums in (batch.sums, batch.squares, batch.frozen_squares, batch.changes):
                    if sums.shape[1] > slot:
                        sums[r, slot, :, lane] = math.nan
