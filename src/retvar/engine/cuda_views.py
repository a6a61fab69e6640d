"""What a thread of a GPU sees: its lanes of every array, its columns of memory.

Arrays with lanes end in [part, lane, member] (see :mod:`retvar.engine.cuda_layout`); memory that
belongs to threads is [block, …, thread], so that threads side by side read side by side. The
functions made here put views of these into the tuples that the CPU's functions take, which then
work on the lanes of one thread: :class:`retvar.engine.lane_nodes.Lanes` and those of
:mod:`retvar.engine.recorder`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from retvar.engine.cuda_layout import Plan
from retvar.engine.lane_nodes import Discounts, Lanes, Spread, Table
from retvar.engine.recorder import Batch, Scratch, Wanted
from retvar.engine.shapes import DENSE, LOCAL, SPREAD, NodeShape
from retvar.engine.streams import Stream
from retvar.jit import part
from retvar.td.steps import averages, counts_visits, depends_on_errors, is_bounded

__all__ = [
    "At",
    "Columns",
    "Given",
    "Has",
    "counts_in_shared",
    "looks_up_discounts",
    "making_nodes",
    "sharing_stream",
    "table_sizes",
    "viewing_batch",
    "viewing_scratch",
    "viewing_wanted",
]

P, Q, BOUND, PEAK, LAST, KAPPA, CARRIED, AHEAD = range(8)  # numbers of each lane, in registers
SAID = 8  # … from here on what the spread form remembers within a step
NUMBERS = 17
W, HELD, ERRORS, UPDATES, TRACE = range(5)  # of the weights of the dense form, in registers


class At(NamedTuple):
    """The place of a thread."""

    block: Any
    thread: Any
    run: Any  #: within the batch
    part: Any  #: group of lanes
    member: Any


class Given(NamedTuple):
    """What a node is given; see :class:`retvar.engine.lane_nodes.Lanes`."""

    p: Any
    q: Any
    kappa: Any
    initial: Any
    features: Any
    indptr: Any
    indices: Any
    values: Any
    reported: Any
    powers: Any


class Columns(NamedTuple):
    """Memory of a node [block, …, thread]."""

    w: Any
    held: Any
    first: Any
    second: Any
    trace: Any
    visits: Any
    rates: Any
    used: Any
    phi: Any
    live: Any


class Has(NamedTuple):
    """Which fields the lanes of a node have."""

    learns: bool
    averages: bool
    by_errors: bool
    counts: bool
    bounded: bool
    traced: bool
    checked: bool
    steps: bool

    @classmethod
    def of(cls, spec: NodeShape, safe: bool, steps: bool) -> Has:
        """Those of a node of a shape."""
        learns, kind = spec.learns, spec.kind
        return cls(
            learns, learns and averages(kind), learns and depends_on_errors(kind),
            learns and counts_visits(kind), learns and is_bounded(kind), spec.traced,
            learns and not safe, steps,
        )  # fmt: skip


# Views are returned in tuples of one: compiled code may return no other arrays than arguments.


def _nothing(*args):
    return (None,)


def chosen(there: bool, function: Any) -> Any:
    """An inlined function that returns a tuple of one view, or of None."""
    return part(function if there else _nothing)


def _of_lanes(x, at):
    return (x[at.part, :, at.member],)


def _of_all_lanes(x, at):
    return (x[0, :, 0],)


def _of_rows(x, at, numbers):
    return (x[:, at.part, :, at.member],)


def _of_all_rows(x, at, numbers):
    return (x[:, 0, :, 0],)


def _of_registers(x, at, numbers):
    return (numbers[KAPPA : KAPPA + 1],)


def _of_runs(x, at):
    return (x[:, :, at.part, :, at.member],)


def _of_all_runs(x, at):
    return (x[:, :, 0, :, 0],)


def _column(x, at):
    return (x[at.block, :, at.thread],)


def _columns(x, at):
    return (x[at.block, :, :, at.thread],)


def _whole(x):
    return (x,)


def making_table(plan: Plan, number: int) -> Any:
    """An inlined function: the features of a node."""
    spec, form = plan.shape.nodes[number], plan.shape.form
    dense = chosen(form == DENSE and not spec.tabular, _whole)
    sparse = chosen(form == SPREAD, _whole)

    @part
    def table(given):
        return Table(
            dense(given.features)[0], sparse(given.indptr)[0], sparse(given.indices)[0],
            sparse(given.values)[0],
        )  # fmt: skip

    return table


def making_weights(plan: Plan, number: int, field: int, there: bool) -> Any:
    """An inlined function: the weights, accumulators or traces of a node, by form."""
    SIZE = (plan.shape.nodes[number].size + 1) * plan.shape.lanes
    form, local_weights = plan.shape.form, plan.shape.form == LOCAL and field == W

    def home(column, rows, registers, at):
        return (rows[:, number, :, at.thread],)

    def of_registers(column, rows, registers, at):
        return (registers[number, field, :SIZE],)

    def of_columns(column, rows, registers, at):
        return (column[at.block, :, :, at.thread],)

    if form == DENSE:
        return chosen(there, of_registers)
    return chosen(there, home if local_weights else of_columns)


def making_spread(plan: Plan, number: int) -> Any:
    """An inlined function: what the spread form of a node remembers."""
    spec, shape = plan.shape.nodes[number], plan.shape
    has = Has.of(spec, shape.safe, shape.steps)
    reread, own = (
        chosen(shape.is_reread(number), _whole), chosen(has.averages, _whole),
    )  # fmt: skip
    column = chosen(has.traced, _column)

    def spread(columns, numbers, at):
        x = numbers[number]
        said = Spread(
            x[SAID], x[SAID + 1], x[SAID + 2], x[SAID + 3], x[SAID + 4], x[SAID + 5],
            reread(x[SAID + 6])[0], own(x[SAID + 7])[0], own(x[SAID + 8])[0],
            column(columns.phi, at)[0], column(columns.live, at)[0],
        )  # fmt: skip
        return (said,)

    return chosen(shape.form == SPREAD, spread)


def making_node(plan: Plan, number: int) -> Any:
    """An inlined function: one node in the lanes of a thread."""
    shape, spec = plan.shape, plan.shape.nodes[number]
    has = Has.of(spec, shape.safe, shape.steps)
    ALL, numbers_of = shape.shared and number == 0, chosen
    table, spread = making_table(plan, number), making_spread(plan, number)
    w, held, errors, updates, trace = (
        making_weights(plan, number, field, there)
        for field, there in (
            (W, True), (HELD, has.averages), (ERRORS, has.by_errors),
            (UPDATES, has.by_errors), (TRACE, has.traced),
        )
    )  # fmt: skip
    p, q = numbers_of(has.learns, _whole), numbers_of(has.counts or has.by_errors, _whole)
    bound, peak, last = (numbers_of(x, _whole) for x in (has.bounded, has.checked, has.traced))
    visits, powers = chosen(has.counts, _column), chosen(has.counts, _whole)
    used, reported = chosen(has.steps, _columns), chosen(has.steps, _whole)
    rows_of_kappa = _of_all_rows if ALL else _of_rows
    kappa = chosen(has.traced, rows_of_kappa if plan.by_state else _of_registers)
    initial = part(_of_all_runs if ALL else _of_runs)
    carried = chosen(shape.update(number).carried, _whole)

    @part
    def node(given, columns, rows, numbers, registers, at):
        x = numbers[number]
        return Lanes(
            table(given), w(columns.w, rows, registers, at)[0],
            held(columns.held, rows, registers, at)[0], p(x[P])[0], q(x[Q])[0],
            errors(columns.first, rows, registers, at)[0],
            updates(columns.second, rows, registers, at)[0],
            visits(columns.visits, at)[0], visits(columns.rates, at)[0], powers(given.powers)[0],
            bound(x[BOUND])[0], peak(x[PEAK])[0], used(columns.used, at)[0],
            reported(given.reported)[0], None, None, trace(columns.trace, rows, registers, at)[0],
            kappa(given.kappa, at, x)[0], last(x[LAST])[0], spread(columns, numbers, at)[0],
            initial(given.initial, at)[0], carried(x[CARRIED])[0], carried(x[AHEAD])[0],
        )  # fmt: skip

    return node


def loading_numbers(plan: Plan, number: int) -> Any:
    """An inlined function that loads the settings of a node's steps into registers."""
    has = Has.of(plan.shape.nodes[number], plan.shape.safe, plan.shape.steps)
    LEARNS, LANES = has.learns, plan.shape.update(number).lanes
    KEEPS_KAPPA = has.traced and not plan.by_state
    settings = part(_of_all_lanes if plan.shape.shared and number == 0 else _of_lanes)

    @part
    def load(given, numbers, at):
        if LEARNS:
            p, q = settings(given.p, at)[0], settings(given.q, at)[0]
            for lane in range(LANES):
                numbers[number, P, lane] = p[lane]
                numbers[number, Q, lane] = q[lane]
        if KEEPS_KAPPA:
            kappa = settings(given.kappa[0], at)[0]
            for lane in range(LANES):
                numbers[number, KAPPA, lane] = kappa[lane]

    return load


def making_nodes(plan: Plan) -> Any:
    """An inlined function: all nodes in the lanes of a thread."""

    def from_number(number: int) -> Any:
        node, load = making_node(plan, number), loading_numbers(plan, number)
        others: Any = from_number(number + 1) if number + 1 < len(plan.shape.nodes) else None

        def last(given, columns, rows, numbers, registers, at):
            load(given[number], numbers, at)
            return (node(given[number], columns[number], rows, numbers, registers, at),)

        def more(given, columns, rows, numbers, registers, at):
            load(given[number], numbers, at)
            mine = (node(given[number], columns[number], rows, numbers, registers, at),)
            return mine + others(given, columns, rows, numbers, registers, at)

        return part(last if others is None else more)

    return from_number(0)


# ---------------------------------------------------------------------- records


def viewing_wanted(plan: Plan) -> Any:
    """An inlined function: what to record, for the lanes of a thread."""
    FROZEN, RMSE = plan.frozen, plan.rmse

    @part
    def view(wanted, at):
        frozen, shares = wanted.frozen[:, :, at.part, :, at.member], wanted.shares
        return Wanted(
            wanted.points, wanted.by_step, wanted.states, shares if RMSE else shares[:0],
            wanted.since, wanted.truth[:, :, at.part, :, at.member],
            frozen if FROZEN else frozen[:0], wanted.rows,
        )  # fmt: skip

    return view


@part
def viewing_batch(batch, at):
    """The results of the lanes of a thread."""
    k, g = at.part, at.member
    return Batch(
        batch.estimates[:, :, :, :, k, :, g], batch.rmse[:, :, :, k, :, g],
        batch.steps[:, :, :, :, k, :, g], batch.sums[:, :, :, k, :, g],
        batch.squares[:, :, :, k, :, g], batch.frozen_squares[:, :, :, k, :, g],
        batch.changes[:, :, :, k, :, g], batch.diverged_at[:, :, k, :, g],
    )  # fmt: skip


def viewing_scratch(plan: Plan) -> Any:
    """An inlined function: what a thread remembers between steps."""

    def before(x, at):
        return (x[at.block, :, :, :, at.thread],)

    def in_shared(scratch, counts, n, at):
        return (counts[:n, at.thread],)

    def in_global(scratch, counts, n, at):
        return (scratch.counted[at.block, :, at.thread],)

    previous = chosen(plan.shape.change, before)
    counted = part(in_shared if counts_in_shared(plan) else in_global)

    @part
    def view(found, scratch, counts, n, at):
        return Scratch(
            found, previous(scratch.previous, at)[0], counted(scratch, counts, n, at)[0]
        )  # fmt: skip

    return view


def counts_in_shared(plan: Plan) -> bool:
    """Whether the moments up to which states are in the sums are in shared memory."""
    return plan.window and plan.short and plan.layout.rows > 0


# ---------------------------------------------------------------------- the stream


def table_sizes(plan: Plan) -> tuple[int, int]:
    """Numbers and integers of the tables of the stream in shared memory."""
    columns = 4 if looks_up_discounts(plan) else 2
    return plan.states + columns * plan.edges, plan.states + 2 * plan.edges


def looks_up_discounts(plan: Plan) -> bool:
    """Whether γ and λ are those of an edge, in all lanes."""
    return not (plan.constant or plan.shape.own)


def sharing_stream(plan: Plan) -> Any:
    """An inlined function: the stream and its discounts, the tables in shared memory if small."""
    STATES, EDGES, THREADS = plan.states, plan.edges, plan.layout.threads
    LOOKS = looks_up_discounts(plan)
    THRESHOLD, REWARD, GAMMA, LAM, END = (plan.states + k * plan.edges for k in range(5))
    OTHER, NEXT = plan.states, plan.states + plan.edges

    @part
    def share(stream, discounts, numbers, integers, at):
        for s in range(at.thread, stream.first.size, THREADS):
            numbers[s], integers[s] = stream.fan[s], stream.first[s]
        for e in range(at.thread, stream.reward.size, THREADS):
            numbers[THRESHOLD + e], numbers[REWARD + e] = stream.threshold[e], stream.reward[e]
            integers[OTHER + e], integers[NEXT + e] = stream.other[e], stream.next_state[e]
            if LOOKS:
                numbers[GAMMA + e], numbers[LAM + e] = discounts.gammas[e], discounts.lams[e]
        shared = Stream(
            integers[:STATES], numbers[:STATES], numbers[THRESHOLD:REWARD],
            integers[OTHER:NEXT], integers[NEXT : NEXT + EDGES], numbers[REWARD:GAMMA],
            stream.noise, stream.rho, stream.start_threshold, stream.start_other, stream.key,
        )  # fmt: skip
        return shared, Discounts(numbers[GAMMA:LAM], numbers[LAM:END])

    def share_edges(stream, discounts, numbers, integers, at):
        return share(stream, discounts, numbers, integers, at)[0], discounts

    def leave(stream, discounts, numbers, integers, at):
        return stream, discounts

    if not plan.edges:
        return part(leave)
    return share if LOOKS else part(share_edges)
