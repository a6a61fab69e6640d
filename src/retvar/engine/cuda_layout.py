"""How a block of learners is laid out on a GPU: threads of a run, lanes of a thread, memory.

A run has one or more groups of threads, and each thread some of its lanes. Lane
(part·lanes + lane)·group + member of a block is the thread `member` of group `part` of each run.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from retvar.engine import cuda_device
from retvar.engine.blocks import Block, Recording
from retvar.engine.shapes import LOCAL, Shape
from retvar.engine.streams import Stream
from retvar.engine.workspace import Workspace

__all__ = ["Layout", "Plan", "lay_out", "plan_of"]

SHARED_BYTES = 48 * 1024  # static shared memory of a thread block
MOST_EDGES = 64  # of the stream, in shared memory; more are in global memory
TABLE_BYTES = 4 * 1024  # of shared memory, at most, for the tables of the stream
PER_PROCESSOR = 224 * 1024  # shared memory of a multiprocessor
FEWEST_LANES = 400  # on a multiprocessor; with fewer, weights are in global memory
SPLITS = ((2, 3), (2, 4), (4, 2), (2, 2), (2, 1), (1, 1))  # threads of a group, lanes of a thread
WINDOW_SPLITS = ((4, 2), (2, 2), (2, 1), (1, 1))  # … whose sums in global memory lie side by side
WARP = 32
THREADS = 128  # of a block, with weights in global memory


class Layout(NamedTuple):
    """Threads and lanes; the weights' memory."""

    group: int  #: threads of a group, a power of 2 up to a warp
    lanes: int  #: lanes of a thread
    threads: int  #: of a thread block
    rows: int  #: rows of weights in shared memory; 0: weights are in global memory
    bytes: int = 8  #: of a number: 4 in single precision


class Plan(NamedTuple):
    """What a kernel for a GPU is specialised for."""

    shape: Shape
    layout: Layout
    by_step: bool
    window: bool
    frozen: bool  #: compare with the variance for the frozen value
    rmse: bool
    states: int  #: in the tables of the stream in shared memory …
    edges: int  #: … 0: the tables are in global memory
    constant: bool  #: whether all edges have the same γ and λ, in all lanes
    by_state: bool  #: whether κ differs between states
    short: bool  #: whether moments are short integers


def rows_for(states: int) -> int:
    """Rows of shared memory for so many: one number for several, so that kernels serve them all.

    >>> [rows_for(n) for n in (5, 8, 9, 40)]
    [5, 8, 10, 40]
    """
    step = 1 if states <= 8 else 2 ** max(1, states.bit_length() - 3)
    return -(-states // step) * step


def layout_of(
    shape: Shape, lanes: int, weights: int, window: bool = False, number: int = 8
) -> Layout:
    """The layout of a block with so many lanes, and weights of a node in each.

    `number`: bytes of a number.
    """
    nodes, rows = len(shape.nodes), rows_for(weights)
    if shape.form == LOCAL:
        group, each = _split(lanes, WINDOW_SPLITS if window else SPLITS)
        threads = THREADS if window else 64
        thread = number * rows * nodes * each
        others = 16 + 4 * rows  # bytes of a thread for numbers and counts
        while threads > WARP and thread * threads > (SHARED_BYTES * 2) // 3:
            threads //= 2
        in_flight = PER_PROCESSOR // (thread * threads) * threads * each
        fits = (thread + others) * threads + TABLE_BYTES <= SHARED_BYTES
        if fits and in_flight >= FEWEST_LANES:
            return _small(Layout(group, each, threads, rows, number))
    each = 2 if shape.form == LOCAL and lanes > 1 else 1
    group = _power_of_2(-(-lanes // each), WARP)
    return _small(Layout(group, each, THREADS, 0, number))


def _split(lanes: int, splits: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """The first split that leaves few threads idle, or else the one that leaves fewest."""
    best = min(splits, key=lambda split: _padded(lanes, *split))
    return next((split for split in splits if _padded(lanes, *split) <= 1.1 * lanes), best)


def _padded(lanes: int, group: int, each: int) -> int:
    """Number of lanes with those that fill the last group of threads."""
    return -(-lanes // (group * each)) * group * each


def _power_of_2(number: int, most: int) -> int:
    """The smallest power of 2 that is not below a number, but at most `most`."""
    return min(most, 1 << max(0, number - 1).bit_length())


def _small(layout: Layout) -> Layout:
    """In the simulator, where a thread costs much, few threads."""
    if cuda_device.SIMULATED:
        return layout._replace(threads=layout.group * 2)
    return layout


def plan_of(workspace: Workspace, recording: Recording) -> Plan:
    """The plan of a block that is laid out."""
    block, stream, window = workspace.block, workspace.stream, recording.window > 0
    edges, states = rows_for(stream.reward.size), rows_for(stream.first.size)
    if edges > MOST_EDGES:
        states = edges = 0
    own = block.shape.own
    return Plan(
        block.shape, block.layout, recording.by_step, window,
        window and not block.shape.learns_value, recording.shares.size > 0,
        states, edges, not own and all(np.ptp(x) == 0 for x in workspace.discounts),
        any(node.kappa is not None and len(node.kappa) > 1 for node in workspace.nodes),
        int(recording.points[-1]) < 2**31,
    )  # fmt: skip


def lay_out(
    block: Block,
    stream: Stream,
    window: bool = False,
    layout: Layout | None = None,
    number: int = 8,
) -> Block:
    """A block padded to whole groups of threads, with literal lanes and a layout."""
    count, states = len(block.columns), stream.first.size
    rows = max(states, int(stream.next_state.max()) + 1)  # with one for the end, if there is one
    if layout is None:
        layout = layout_of(block.shape, count, rows, window, number)
    whole = layout.group * layout.lanes
    width = -(-count // whole) * whole
    if block.shape.shared:
        value_lanes, share = [0], np.zeros(width, dtype=np.int64)
    else:
        value_lanes = [lane if lane < count else 0 for lane in range(width)]
        share = np.arange(width, dtype=np.int64)
    shape = block.shape._replace(lanes=layout.lanes, width=1, endless=rows == states)
    if number < 8:
        shape = shape._replace(safe=False)  # proved for double precision alone
    return dataclasses.replace(
        block, shape=shape, value_lanes=value_lanes, share=share, layout=layout
    )
