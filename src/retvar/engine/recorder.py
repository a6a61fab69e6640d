"""What a simulation records: estimates at points, sums over a window, changes, divergence.

A row is one of ``ESTIMATES``: the prediction of a node, or that less the square of another. Its
slot is its position among the rows that a block has. In the local form only the state being left
changes, so sums over a window are brought up to date when a state is left; otherwise all states are
added at each moment.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numpy import uintp as u

from retvar.engine.lane_nodes import cell_of, predict_lanes, predicting
from retvar.engine.shapes import DENSE, LOCAL, SPREAD, Shape, Update
from retvar.jit import called_part, in_step, in_turn, part
from retvar.networks import ESTIMATES, NETWORKS, NODES, THIRD, VARIANCE, Estimate, rests_on
from retvar.online.memory_layout import LIMIT

__all__ = ["Batch", "Recorder", "Row", "Rows", "Scratch", "Wanted", "recorder_of", "rows_of"]

COMPARED = (  # rows that are compared with the truth
    {ESTIMATES.index(Estimate(NODES[0])): 0}
    | {ESTIMATES.index(network.variance): 1 for network in NETWORKS.values()}
    | {ESTIMATES.index(Estimate(n)): n.place - VARIANCE + 1 for n in NODES if n.place >= THIRD}
)


class Row(NamedTuple):
    """How an estimate is made of the nodes of a shape."""

    number: int  #: in ``ESTIMATES``
    slot: int
    node: int
    less: int  #: node whose square is subtracted; −1: none
    of: int  #: what it is compared with: a row of ``Wanted.truth``; −1: nothing
    moves: bool  #: False: that of a value held fixed


class Rows(NamedTuple):
    """The rows of a block as arrays, by slot."""

    node: Any  #: slot of the prediction of its node
    less: Any  #: slot of the prediction whose square is subtracted; −1: none
    of: Any
    moves: Any
    rests: Any  #: whether it rests on each of ``ESTIMATES`` [slot, row]


class Wanted(NamedTuple):
    """What to record and when, and the truth to compare with."""

    points: Any  #: moments to record; the last is the end
    by_step: Any  #: whether moments are steps (otherwise episodes)
    states: Any  #: states whose estimates are recorded
    shares: Any  #: stationary distribution; empty: no RMSE
    since: Any  #: moment at which the window begins
    truth: Any  #: value, variance and higher moments [row, state, lane]
    frozen: Any  #: variance for the frozen value [run or one for all, state, lane]
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


class Recorder(NamedTuple):
    """The compiled functions that record."""

    begin: Any  #: at the start of a run
    leave: Any  #: before each step
    change: Any  #: after each step
    moment: Any  #: after each moment
    point: Any  #: at each point


def rows_of(shape: Shape) -> list[Row]:
    """The rows of a shape, in the order of their slots."""
    there = [(k, each) for k, each in enumerate(ESTIMATES) if shape.number_of(each.node) >= 0]
    found = []
    for slot, (number, each) in enumerate(there):
        node, less = shape.number_of(each.node), shape.number_of(each.less_square_of)
        moves = node > 0 or shape.learns_value
        found.append(Row(number, slot, node, less, COMPARED.get(number, -1), moves))
    return found


def table_of(rows: list[Row]) -> Rows:
    """The rows as arrays."""
    slot_of = {row.node: row.slot for row in reversed(rows) if row.less < 0} | {-1: -1}
    rests = [[k in rests_on(row.number) for k in range(len(ESTIMATES))] for row in rows]
    return Rows(
        np.array([slot_of[row.node] for row in rows]),
        np.array([slot_of[row.less] for row in rows]),
        np.array([row.of for row in rows]),
        np.array([row.moves for row in rows]),
        np.array(rests),
    )


def recorder_of(shape: Shape, frozen: bool = False) -> Recorder:
    """The functions that record what learners of one shape estimate.

    `frozen`: whether there is a truth for the frozen value, where lanes are literal.
    """
    find = finding_all(shape)
    return Recorder(
        beginning(shape, find), leaving(shape, frozen), changing(shape, find),
        counting(shape, find), pointing(shape, find),
    )  # fmt: skip


# ---------------------------------------------------------------------- estimates


@functools.cache
def writing(update: Update, shared: bool) -> Any:
    """A function that writes the predictions of a node for a state in all lanes."""
    predict = predicting(*update.reads)
    SHARED, WIDTH = shared, update.width

    def local(table, w, share, s, out):
        for lane in range(out.size):
            out[lane] = predict(table, w, s, 0, share[lane] if SHARED else lane)

    def dense(table, w, share, s, out):
        for c in range(out.size // WIDTH):
            for v in range(WIDTH):
                out[u(c * WIDTH + v)] = predict(table, w, s, c, v)

    def spread(table, w, share, s, out):
        if SHARED:
            for lane in range(out.size):
                out[u(lane)] = 0.0
            for k in range(table.indptr[u(s)], table.indptr[u(s + 1)]):
                i, x = u(table.indices[u(k)]), table.values[u(k)]
                for lane in range(out.size):
                    out[u(lane)] += x * w[i, u(share[u(lane)])]
        else:
            predict_lanes(table, w, s, out)

    return called_part({LOCAL: local, DENSE: dense, SPREAD: spread}[update.form])


@called_part
def make_of_predictions(found, node, less):
    """Make the estimates that are not predictions of a node."""
    for slot in range(found.shape[0]):
        if less[slot] >= 0:
            for lane in range(found.shape[1]):
                other = found[less[slot], lane]
                found[slot, lane] = found[node[slot], lane] - other * other


def finding_all(shape: Shape) -> Any:
    """An inlined function that writes all estimates of a state into `scratch.found`."""

    def finding_node(number: int) -> Any:
        slot = next(r.slot for r in rows_of(shape) if r.node == number and r.less < 0)
        write = writing(
            shape.update(number), number == 0 and (shape.shared or shape.form == SPREAD)
        )

        @part
        def find(node, share, s, found):
            write(node.table, node.w, share, s, found[slot])

        return find

    find_each = in_step([finding_node(number) for number in range(len(shape.nodes))])

    @part
    def find_all(nodes, share, s, wanted, scratch):
        find_each(nodes, share, s, scratch.found)
        make_of_predictions(scratch.found, wanted.rows.node, wanted.rows.less)

    return find_all


@functools.cache
def finding_one(shared: bool, shared_other: bool, less: bool) -> Any:
    """An inlined function: an estimate of a state in one lane, in the local form.

    `source` and `other` are the weights of the node and of the one whose square is subtracted.
    """
    SHARED, SHARED_OTHER, LESS = shared, shared_other, less

    @part
    def find(source, other, s, lane):
        found = source[u(s), u(0 if SHARED else lane)]
        if LESS:
            square = other[u(s), u(0 if SHARED_OTHER else lane)]
            found -= square * square
        return found

    return find


def of_rows(shape: Shape, make: Any) -> Any:
    """An inlined function that calls what is made for each row that moves, in the local form."""

    def of_row(row: Row) -> Any:
        shared, node, less, slot = shape.shared, row.node, max(row.less, 0), row.slot
        find = finding_one(shared and node == 0, shared and less == 0, row.less >= 0)
        act = make(find, shape.lanes)

        @part
        def call(nodes, *args):
            act(nodes[node].w, nodes[less].w, slot, *args)

        return call

    return [(row, of_row(row)) for row in rows_of(shape) if row.moves]


# ---------------------------------------------------------------------- sums on the way


@functools.cache
def adding(find: Any, lanes: int = 0) -> Any:
    """An inlined function that adds an estimate of a state to the window, `times` times."""

    @part
    def add(source, other, slot, wanted, batch, r, s, times):
        sums, squares = batch.sums[r, slot, s], batch.squares[r, slot, s]
        truth = wanted.truth[wanted.rows.of[slot], s]
        for lane in range(sums.size):
            found = find(source, other, s, lane)
            gap = found - truth[lane]
            sums[lane] += times * found
            squares[lane] += times * (gap * gap)
        if wanted.frozen.size:
            frozen = wanted.frozen[r if wanted.frozen.shape[0] > 1 else 0, s]
            others = batch.frozen_squares[r, slot, s]
            for lane in range(others.size):
                gap = find(source, other, s, lane) - frozen[lane]
                others[lane] += times * (gap * gap)

    return add


@functools.cache
def differing(find: Any, lanes: int = 0) -> Any:
    """An inlined function that adds the absolute change of an estimate of a state."""
    LANES = lanes

    @part
    def differ(source, other, slot, scratch, batch, r, s):
        changes, previous = batch.changes[r, slot, s], scratch.previous[slot, s]
        for lane in range(LANES if LANES else changes.size):
            found = find(source, other, s, lane)
            changes[lane] += abs(found - previous[lane])
            previous[lane] = found

    return differ


@part
def found_before(found, other, s, lane):
    """An estimate that is in `scratch.found`."""
    return found[u(lane)]


def beginning(shape: Shape, find: Any) -> Any:
    """An inlined function that prepares the records of a run."""
    CHANGE, SAFE = shape.change, shape.safe

    @part
    def begin(nodes, share, wanted, scratch, batch, r):
        if not SAFE:
            batch.diverged_at[r] = -1
        scratch.counted[:] = wanted.since
        if CHANGE:
            for s in range(scratch.counted.size):
                find(nodes, share, s, wanted, scratch)
                for slot in range(scratch.found.shape[0]):
                    for lane in range(scratch.found.shape[1]):
                        scratch.previous[slot, s, lane] = scratch.found[slot, lane]

    return begin


@part
def _nothing_to_add(nodes, wanted, batch, r, s, times):
    """Add nothing."""


def adding_at_once(shape: Shape, frozen: bool, cells: list[tuple[Row, int]]) -> Any:
    """Like `adding`, of some rows and lanes: all that is read of memory is read before any write.

    On a GPU the reads then wait for each other, not one after another.
    """
    if not cells:
        return _nothing_to_add
    (row, lane), *more = cells
    others, FROZEN = adding_at_once(shape, frozen, more), frozen
    shared, slot, of, node, less = shape.shared, row.slot, row.of, row.node, max(row.less, 0)
    find = finding_one(shared and node == 0, shared and less == 0, row.less >= 0)

    @part
    def add(nodes, wanted, batch, r, s, times):
        before, squared = batch.sums[r, slot, s, lane], batch.squares[r, slot, s, lane]
        truth, other_squared, other_truth = wanted.truth[of, s, lane], 0.0, 0.0
        if FROZEN:
            other_squared = batch.frozen_squares[r, slot, s, lane]
            run = u(r if wanted.frozen.shape[0] > 1 else 0)
            other_truth = wanted.frozen[run, s, lane]
        others(nodes, wanted, batch, r, s, times)
        found = find(nodes[node].w, nodes[less].w, s, lane)
        gap, other_gap = found - truth, found - other_truth
        batch.sums[r, slot, s, lane] = before + times * found
        batch.squares[r, slot, s, lane] = squared + times * (gap * gap)
        if FROZEN:
            other_squared += times * (other_gap * other_gap)
            batch.frozen_squares[r, slot, s, lane] = other_squared

    return add


def leaving(shape: Shape, frozen: bool) -> Any:
    """An inlined function that brings the sums of a state up to date before it changes."""
    IS_LOCAL = shape.form == LOCAL
    if IS_LOCAL and shape.lanes:
        rows = [row for row in rows_of(shape) if row.moves and row.of >= 0]
        cells = [(row, lane) for row in rows for lane in range(shape.lanes)]
        add = adding_at_once(shape, frozen, cells)
    else:
        add = in_turn([call for row, call in of_rows(shape, adding) if row.of >= 0])

    @part
    def leave(nodes, wanted, scratch, batch, r, s, clock):
        if IS_LOCAL and clock > scratch.counted[s]:
            times = clock - scratch.counted[s]
            scratch.counted[s] = clock
            add(nodes, wanted, batch, r, s, times)

    return leave


def changing(shape: Shape, find: Any) -> Any:
    """An inlined function that adds the changes of a step: of one state, or of all."""
    CHANGE, IS_LOCAL = shape.change, shape.form == LOCAL
    differ = in_turn([call for _, call in of_rows(shape, differing)])
    differ_found = differing(found_before, shape.lanes)

    @part
    def change(nodes, share, wanted, scratch, batch, r, s):
        if CHANGE:
            if IS_LOCAL:
                differ(nodes, scratch, batch, r, s)
            else:
                for each in range(scratch.counted.size):
                    find(nodes, share, each, wanted, scratch)
                    for slot in range(scratch.found.shape[0]):
                        differ_found(scratch.found[slot], None, slot, scratch, batch, r, each)

    return change


def counting(shape: Shape, find: Any) -> Any:
    """An inlined function that adds a moment of the window; locally, at its end, what is left."""
    IS_LOCAL, add_found = shape.form == LOCAL, adding(found_before)

    @part
    def moment(nodes, share, wanted, scratch, batch, r, clock):
        last = clock == wanted.points[-1]
        if clock > wanted.since and (last or not IS_LOCAL):
            for s in range(scratch.counted.size):
                find(nodes, share, s, wanted, scratch)
                for slot in range(scratch.found.shape[0]):
                    times = clock - scratch.counted[s] if IS_LOCAL else 1
                    if not wanted.rows.moves[slot]:
                        times = clock - wanted.since if last else 0
                    if times > 0 and wanted.rows.of[slot] >= 0:
                        add_found(scratch.found[slot], None, slot, wanted, batch, r, s, times)

    return moment


# ---------------------------------------------------------------------- points


@functools.cache
def noting_divergence(update: Update, shared: bool) -> Any:
    """A function that notes the moment at which a weight of a lane exceeds LIMIT."""
    cell, SIZE, LANES = cell_of(update.form, update.size, update.width), update.size, update.lanes
    SHARED, GROUP = shared, update.width if update.form == DENSE else 0

    @called_part
    def note_divergence(w, peak, share, diverged_at, clock):
        for lane in range(LANES if LANES else diverged_at.size):
            at = share[lane] if SHARED else lane
            c = at // GROUP if GROUP else 0
            bad = not (peak[at] <= LIMIT)
            for i in range(SIZE if SIZE else w.shape[0]):
                bad |= not (abs(w[cell(c, at - c * GROUP, i)]) <= LIMIT)
            if bad and diverged_at[lane] < 0:
                diverged_at[lane] = clock

    return note_divergence


def noting(shape: Shape, number: int) -> Any:
    """An inlined function that notes which lanes of a node have diverged; None: none can."""
    row, update = ESTIMATES.index(Estimate(shape.nodes[number].node)), shape.update(number)
    shared = number == 0 and (shape.shared or shape.form == SPREAD)
    note_divergence = noting_divergence(update, shared)

    @part
    def note(node, share, diverged_at, clock):
        note_divergence(node.w, node.peak, share, diverged_at[row], clock)

    return note if update.checked else None


@functools.cache
def losing(safe: bool) -> Any:
    """A function: whether a node that an estimate rests on has diverged."""

    def lost(rests, diverged_at, slot, lane):
        gone = False
        for row in range(rests.shape[1]):
            gone |= rests[slot, row] and diverged_at[row, lane] >= 0
        return gone

    def never(rests, diverged_at, slot, lane):
        return False

    return part(never) if safe else called_part(lost)


@functools.cache
def recording_estimates(safe: bool) -> Any:
    """A function that records the estimates of a state."""
    lost = losing(safe)

    @called_part
    def record_estimates(found, rests, diverged_at, estimates, j):
        for slot in range(found.shape[0]):
            for lane in range(found.shape[1]):
                gone = lost(rests, diverged_at, slot, lane)
                estimates[slot, j, lane] = math.nan if gone else found[slot, lane]

    return record_estimates


@called_part
def add_errors(found, of, truth, share, rmse, s):
    """Add the squared errors of a state with its share of the stationary distribution."""
    for slot in range(found.shape[0]):
        if of[slot] >= 0:
            for lane in range(found.shape[1]):
                gap = found[slot, lane] - truth[of[slot], s, lane]
                rmse[slot, lane] += share * (gap * gap)


@functools.cache
def finishing_errors(safe: bool) -> Any:
    """A function that takes the roots of the mean squared errors."""
    lost = losing(safe)

    @called_part
    def finish_errors(rests, diverged_at, rmse):
        for slot in range(rmse.shape[0]):
            for lane in range(rmse.shape[1]):
                gone = lost(rests, diverged_at, slot, lane)
                rmse[slot, lane] = math.nan if gone else math.sqrt(rmse[slot, lane])

    return finish_errors


def recording_steps(shape: Shape, number: int) -> Any:
    """An inlined function that records the step sizes of a node at a point."""
    slot = next(row.slot for row in rows_of(shape) if row.node == number and row.less < 0)
    SHARED = number == 0 and (shape.shared or shape.form == SPREAD)

    @part
    def record(node, share, states, steps):
        for j in range(states.size):
            for lane in range(steps.shape[2]):
                at = share[lane] if SHARED else lane
                steps[slot, j, lane] = node.used[states[j], at]

    return record


def pointing(shape: Shape, find: Any) -> Any:
    """An inlined function that records a point."""
    numbers, STEPS, SAFE = range(len(shape.nodes)), shape.steps, shape.safe
    note = in_step([noting(shape, number) for number in numbers])
    record_steps = in_step([recording_steps(shape, number) for number in numbers])
    record_estimates, finish_errors = recording_estimates(shape.safe), finishing_errors(shape.safe)

    @part
    def at_point(nodes, share, wanted, scratch, batch, r, point, clock):
        rests, diverged_at = wanted.rows.rests, batch.diverged_at[0 if SAFE else r]
        note(nodes, share, diverged_at, clock)
        for j in range(wanted.states.size):
            find(nodes, share, wanted.states[j], wanted, scratch)
            record_estimates(scratch.found, rests, diverged_at, batch.estimates[r, point], j)
        if wanted.shares.size:
            rmse = batch.rmse[r, point]
            for s in range(wanted.shares.size):
                if wanted.shares[s] > 0.0:
                    find(nodes, share, s, wanted, scratch)
                    add_errors(
                        scratch.found, wanted.rows.of, wanted.truth, wanted.shares[s], rmse, s
                    )
            finish_errors(rests, diverged_at, rmse)
        if STEPS:
            record_steps(nodes, share, wanted.states, batch.steps[r, point])

    return at_point
