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
from functools import cache
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
from retvar.td.nodes import LIMIT, Spec, features_of
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


# ---------------------------------------------------------------------- arrays


class Rows(NamedTuple):
    """The rows of a block as arrays, by slot."""

    node: Any  #: number of the node whose prediction it is
    less: Any  #: number of the node the square of whose prediction is subtracted; −1: none
    of: Any  #: what it is compared with: a row of ``Book.truth``; −1: nothing
    moves: Any  #: False: that of a value held fixed
    rests: Any  #: whether it rests on each node [slot, node]


class Book(NamedTuple):
    """What to record and when, the truth, and what is remembered; what is not wanted is None."""

    points: Any  #: moments to record; the last is the end
    by_step: Any  #: whether moments are steps (otherwise episodes)
    states: Any  #: states whose estimates are recorded
    shares: Any  #: stationary distribution, for the RMSE
    since: Any  #: moment at which the window begins
    truth: Any  #: value, variance and higher moments [row, state]
    frozen: Any  #: variance for the frozen value [run or one for all, state, lane]
    rows: Rows
    found: Any  #: estimates of a state [slot, lane]
    previous: Any  #: estimates at the last step, for changes [slot, state, lane]
    counted: Any  #: moment up to which each state is in the sums


class Batch(NamedTuple):
    """Results of some runs of a block: the first axis is the run, the last the lane.

    What is not wanted is None.
    """

    estimates: Any  #: [run, point, slot, state, lane]
    rmse: Any  #: [run, point, slot, lane]
    steps: Any  #: [run, point, slot, state, lane]
    sums: Any  #: over the window [run, slot, state, lane]
    squares: Any  #: squared deviations from the truth
    frozen_squares: Any  #: … from the truth for the frozen value
    changes: Any
    diverged_at: Any  #: moment of divergence [run, node, lane], or −1

    def parts(self) -> dict[str, Any]:
        """Return the arrays of results by name."""
        found = self._asdict().items()
        return {name: x for name, x in found if x is not None and name != "diverged_at"}


def table_of(shape: Shape) -> Rows:
    """The rows of a shape as arrays."""
    codes, estimates = [spec.code for spec in shape.specs], [ESTIMATES[k] for k in shape.rows]
    less = [e.less_square_of for e in estimates]
    beneath = [rests_on(row) for row in shape.rows]
    return Rows(
        np.array([codes.index(e.node.code) for e in estimates]),
        np.array([-1 if node is None else codes.index(node.code) for node in less]),
        np.array([COMPARED.get(row, -1) for row in shape.rows]),
        np.array([e.node.code > 0 or shape.specs[0].learns for e in estimates]),
        np.array([[row in found for row in shape.rows[: len(codes)]] for found in beneath]),
    )


# ---------------------------------------------------------------------- estimates


@called_part
def make_of_predictions(found, first, node, less):
    """Make the estimates that are not predictions of a node."""
    for slot in range(first, found.shape[0]):
        for lane in range(found.shape[1]):
            other = found[less[slot], lane]
            found[slot, lane] = found[node[slot], lane] - other * other


def finding(shape: Shape) -> Any:
    """An inlined function that writes all estimates of a state into ``Book.found``."""

    def of_node(spec: Spec) -> Any:
        ONE, predict = int(not spec.common), features_of(spec.shared).predict

        @part
        def find(m, found, s):
            for lane in range(found.size):
                found[u(lane)] = predict(m, m.w, s, lane * ONE)

        return find

    of_node, FIRST = cache(of_node), len(shape.specs)
    find_each = in_turn([of_node(spec.shared) for spec in shape.specs], own=2)
    DERIVES = len(shape.rows) > FIRST

    @part
    def find(m, book, s):
        find_each(m, book.found, s)
        if DERIVES:
            make_of_predictions(book.found, FIRST, book.rows.node, book.rows.less)

    return find


# ---------------------------------------------------------------------- sums on the way


def summing(shape: Shape) -> Any:
    """An inlined function: add estimates of a state to the window, `times` times.

    Those that stay as they are, `still` times. Squares are of deviations from the truth, and from
    that for the frozen value.
    """
    FROZEN = shape.frozen

    @part
    def add(book, out, r, s, times, still):
        for slot in range(book.found.shape[0]):
            count = times if book.rows.moves[slot] else still
            if count > 0 and book.rows.of[slot] >= 0:
                found, truth = book.found[slot], book.truth[book.rows.of[slot], s]
                sums, squares = out.sums[r, slot, s], out.squares[r, slot, s]
                for lane in range(found.size):
                    gap = found[lane] - truth
                    sums[lane] += count * found[lane]
                    squares[lane] += count * (gap * gap)
                if FROZEN:
                    frozen = book.frozen[r if book.frozen.shape[0] > 1 else 0, s]
                    others = out.frozen_squares[r, slot, s]
                    for lane in range(found.size):
                        gap = found[lane] - frozen[lane]
                        others[lane] += count * (gap * gap)

    return add


@part
def add_changes(found, previous, changes, s):
    """Add the absolute changes of the estimates of a state, and remember these."""
    for slot in range(found.shape[0]):
        for lane in range(found.shape[1]):
            now = found[slot, lane]
            changes[slot, s, lane] += abs(now - previous[slot, s, lane])
            previous[slot, s, lane] = now


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


def noting(shape: Shape) -> Any:
    """An inlined function: note at a point which nodes have diverged in which lanes."""

    def of_node(AVERAGES: bool) -> Any:
        @part
        def note(m, diverged_at, clock):
            note_divergence(m.held if AVERAGES else m.w, diverged_at, clock)

        return note

    of_node = cache(of_node)
    return in_turn([of_node(averages(s.kind)) if s.learns else None for s in shape.specs], own=2)


@part
def record_steps(m, steps, states):
    """Record the step sizes of a node."""
    for j in range(states.size):
        for lane in range(steps.shape[1]):
            steps[j, lane] = m.used[states[j], min(lane, m.used.shape[1] - 1)]


@called_part
def is_lost(rests, diverged_at, slot, lane):
    """Whether a node that an estimate rests on has diverged."""
    gone = False
    for node in range(rests.shape[1]):
        gone |= rests[slot, node] and diverged_at[node, lane] >= 0
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


@called_part
def lose_sums(rests, diverged_at, sums):
    """Sums of a run in which the lane diverged are NaN."""
    for slot in range(sums.shape[0]):
        for lane in range(sums.shape[2]):
            if is_lost(rests, diverged_at, slot, lane):
                sums[slot, :, lane] = math.nan


# ---------------------------------------------------------------------- all of it


def recorder_of(shape: Shape) -> dict[str, Any]:
    """The inlined functions that record what learners of one shape estimate, by name."""
    CHANGE, WINDOW, FROZEN, LOCAL = shape.change, shape.window, shape.frozen, shape.local
    RMSE, STEPS = shape.rmse, shape.specs[-1].steps
    find, note, add = finding(shape), noting(shape), summing(shape)
    record_all = in_turn([record_steps if s.steps else None for s in shape.specs], own=2)

    @part
    def begin(m, book, out, r):
        """At the start of a run."""
        out.diverged_at[r] = -1
        if WINDOW:
            book.counted[:] = book.since
        if CHANGE:
            for s in range(book.previous.shape[1]):
                find(m, book, s)
                for slot in range(book.found.shape[0]):
                    for lane in range(book.found.shape[1]):
                        book.previous[slot, s, lane] = book.found[slot, lane]

    @part
    def leave(m, book, out, r, s, clock):
        """Before each step: bring the sums of a state up to date before it changes."""
        times = clock - book.counted[s]
        if times > 0:
            book.counted[s] = clock
            find(m, book, s)
            add(book, out, r, s, times, 0)

    @part
    def change(m, book, out, r, s):
        """After each step: add the changes of one state, or of all."""
        first, last = (s, s + 1) if LOCAL else (0, book.previous.shape[1])
        for each in range(first, last):
            find(m, book, each)
            add_changes(book.found, book.previous, out.changes[r], each)

    @part
    def moment(m, book, out, r, clock):
        """After each moment: add it to the window; locally, at its end, what is left."""
        last = clock == book.points[-1]
        if clock > book.since and (last or not LOCAL):
            still = clock - book.since if last else 0
            for s in range(book.counted.size):
                times = clock - book.counted[s] if LOCAL else 1
                find(m, book, s)
                add(book, out, r, s, times, still)

    @part
    def record_point(m, book, out, r, point, lost):
        rests, diverged_at, found = book.rows.rests, out.diverged_at[r], book.found
        if STEPS:
            record_all(m, out.steps[r, point], book.states)
        for j in range(book.states.size):
            find(m, book, book.states[j])
            record_estimates(found, lost, rests, diverged_at, out.estimates[r, point], j)
        if RMSE:
            rmse = out.rmse[r, point]
            for s in range(book.shares.size):
                if book.shares[s] > 0.0:
                    find(m, book, s)
                    add_errors(found, book.rows.of, book.truth, book.shares[s], rmse, s)
            finish_errors(rests, diverged_at, rmse)

    @part
    def finish(book, out, r):
        rests, diverged_at = book.rows.rests, out.diverged_at[r]
        if WINDOW:
            lose_sums(rests, diverged_at, out.sums[r])
            lose_sums(rests, diverged_at, out.squares[r])
        if FROZEN:
            lose_sums(rests, diverged_at, out.frozen_squares[r])
        if CHANGE:
            lose_sums(rests, diverged_at, out.changes[r])

    return {
        "begin": begin, "leave": leave, "change": change, "moment": moment, "note": note,
        "record_point": record_point, "finish": finish, "WINDOW": WINDOW, "CHANGE": CHANGE,
        "LOCAL": LOCAL,
    }  # fmt: skip
