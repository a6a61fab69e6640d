"""Run batches of runs on threads and accumulate their results in the order of the runs.

Rounding depends on the order of summation. Results are accumulated run by run in order of the run
number, so statistics are the same for any number of threads and any batch size.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.engine.blocks import Block, Recording
from retvar.engine.kernel import Task, kernel_of
from retvar.engine.learner_setup import LearnerSetup
from retvar.engine.recorder import Batch, Scratch, Wanted, rows_of, table_of
from retvar.engine.shapes import Shape
from retvar.engine.streams import Stream
from retvar.engine.workspace import Workspace, aligned_zeros, stack_lanes
from retvar.jit import compiled, log_slow_compilation
from retvar.networks import ESTIMATES, rests_on

__all__ = ["Batch", "Moments", "Simulation", "run"]

Array = NDArray[np.float64]
BATCH_BYTES = 16_000_000  # results of one batch
NEVER = 2**62
Progress = Callable[[float], None]  # receives the number of finished runs
_compiled: set[Shape] = set()  # in this process
_kernel_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class Simulation:
    """Everything needed to run a simulation."""

    setups: list[LearnerSetup]
    blocks: list[Block]
    stream: Stream
    seed: int
    runs: int
    recording: Recording
    truth: Callable[[Block], Array]  #: value and variance [2, state, lane]
    frozen: Callable[[Block, range], list[Array]]  #: variance for the frozen value, by lane
    threads: int
    batch: int | None = None
    first: int = 0  #: number of the first run


def bytes_of_a_run(block: Block, recording: Recording, states: int) -> int:
    """Size of the results of one run of a block."""
    slots, lanes = len(block.rows), block.lanes
    points = recording.points.size * slots * lanes
    per_state = slots * states * lanes
    count = points * recording.states.size * (2 if recording.steps else 1)
    count += points if recording.shares.size else 0
    count += 3 * per_state if recording.window else 0
    count += per_state if recording.change else 0
    return 8 * count


class Worker:
    """Runs batches of one block, one at a time."""

    def __init__(self, simulation: Simulation, block: Block) -> None:
        self.simulation, self.block = simulation, block
        self.workspace = Workspace(block, simulation.setups, simulation.stream, simulation.seed)
        with _kernel_lock:  # shared by all threads
            self.kernel = kernel_of(block.shape)
        self.truth = simulation.truth(block)
        slots, states, lanes = len(block.rows), simulation.stream.first.size, block.lanes
        self.rows = table_of(rows_of(block.shape))
        self.scratch = Scratch(
            aligned_zeros(slots, lanes),
            aligned_zeros(slots if simulation.recording.change else 0, states, lanes),
            np.zeros(states, dtype=np.int64),
        )

    def _results(self, runs: range) -> Batch:
        """Empty results of some runs."""
        rec, block, count = self.simulation.recording, self.block, len(runs)
        slots, states, lanes = len(block.rows), self.scratch.counted.size, block.lanes
        points, window = rec.points.size, len(block.rows) if rec.window else 0
        return Batch(
            estimates=aligned_zeros(count, points, slots, rec.states.size, lanes),
            rmse=aligned_zeros(count, points, slots if rec.shares.size else 0, lanes),
            steps=aligned_zeros(count, points, slots if rec.steps else 0, rec.states.size, lanes),
            sums=aligned_zeros(count, window, states, lanes),
            squares=aligned_zeros(count, window, states, lanes),
            frozen_squares=aligned_zeros(count, window, states, lanes),
            changes=aligned_zeros(count, slots if rec.change else 0, states, lanes),
            diverged_at=np.full((count, len(ESTIMATES), lanes), -1, dtype=np.int64),
        )

    def run(self, runs: range, stop: Any, tick: Any) -> Batch | None:
        """Run a batch; return None if it was stopped."""
        rec, block, workspace = self.simulation.recording, self.block, self.workspace
        frozen = aligned_zeros(1, 0, 0)
        if rec.window and not block.shape.learns_value:
            frozen = stack_lanes(self.simulation.frozen(block, runs))
        since = int(rec.points[-1]) - rec.window if rec.window else NEVER
        wanted = Wanted(
            rec.points, rec.by_step, rec.states, rec.shares, since, self.truth, frozen, self.rows
        )  # fmt: skip
        out, nodes = self._results(runs), workspace.nodes_for(runs)

        def start(count: int) -> bool:
            done: bool = self.kernel(
                self.simulation.stream, Task(runs.start, count, stop, tick), nodes, workspace.share,
                workspace.discounts, workspace.value_discounts, wanted, self.scratch, out,
            )  # fmt: skip
            return done

        if block.shape not in _compiled:
            with log_slow_compilation("the update for these learners"):
                start(0)
            _compiled.add(block.shape)
        if not start(len(runs)):
            return None
        self._mask(out)
        return out

    def _mask(self, out: Batch) -> None:
        """Set sums over runs in which the lane diverged to NaN."""
        if (out.diverged_at < 0).all():
            return
        for slot, row in enumerate(self.block.rows):
            diverged = np.any(out.diverged_at[:, rests_on(row)] >= 0, axis=1)[:, None]
            for name in ("sums", "squares", "frozen_squares", "changes"):
                part = getattr(out, name)
                if part.size:
                    part[:, slot] = np.where(diverged, np.nan, part[:, slot])


def run(
    simulation: Simulation,
    accumulate: Callable[[int, range, Batch], None],
    progress: Progress | None = None,
) -> None:
    """Run a simulation; call `accumulate(block number, runs, results)` in order of the runs.

    An interrupt stops the workers quickly and is re-raised.
    """
    stop = np.zeros(1, dtype=np.int64)
    local = threading.local()
    ticks: list[Array] = []
    done, reported = 0, 0.0

    def work(number: int, runs: range) -> Batch | None:
        if not hasattr(local, "workers"):
            local.workers, local.tick = {}, np.zeros(8)
            ticks.append(local.tick)
        if number not in local.workers:
            local.workers = {number: Worker(simulation, simulation.blocks[number])}
        batch: Batch | None = local.workers[number].run(runs, stop, local.tick)
        local.tick[0] = 0.0
        return batch

    tasks = _tasks(simulation)
    waiting: dict[tuple[int, int], tuple[range, Batch]] = {}
    next_run = dict.fromkeys(range(len(simulation.blocks)), simulation.first)
    running: dict[Future[Batch | None], tuple[int, range]] = {}
    with ThreadPoolExecutor(simulation.threads, thread_name_prefix="retvar") as pool:
        try:
            while True:
                while len(running) + len(waiting) < simulation.threads + 1:
                    task = next(tasks, None)
                    if task is None:
                        break
                    running[pool.submit(work, *task)] = task
                if not running:
                    break
                finished, _ = wait(running, timeout=0.1, return_when=FIRST_COMPLETED)
                for future in finished:
                    number, runs = running.pop(future)
                    batch = future.result()
                    assert batch is not None
                    done += len(runs)
                    waiting[number, runs.start] = (runs, batch)
                    while (number, next_run[number]) in waiting:
                        runs, batch = waiting.pop((number, next_run[number]))
                        accumulate(number, runs, batch)
                        next_run[number] = runs.stop
                if progress is not None:  # never decreases: a task ends before it is counted
                    reported = max(
                        reported, (done + sum(float(t[0]) for t in ticks)) / len(simulation.blocks)
                    )
                    progress(reported)
        except BaseException:
            stop[0] = 1
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _tasks(simulation: Simulation) -> Iterator[tuple[int, range]]:
    """Yield block numbers and batches of runs, in order."""
    for number, block in enumerate(simulation.blocks):
        size = simulation.batch
        if size is None:
            each = bytes_of_a_run(block, simulation.recording, simulation.stream.first.size)
            size = min(
                -(-simulation.runs // (4 * simulation.threads)),
                max(1, BATCH_BYTES // max(each, 1)),
                256,
            )
        end = simulation.first + simulation.runs
        for first in range(simulation.first, end, size):
            yield number, range(first, min(first + size, end))


def usable_threads() -> int:
    """Number of CPUs that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not available on every system
        return os.cpu_count() or 1


class Moments:
    """Mean and standard deviation over runs per entry; NaN is left out."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = np.zeros(shape, dtype=np.int32)
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)

    def add(self, batch: Array) -> None:
        """Add a batch of runs."""
        add_to_moments(
            batch.reshape(batch.shape[0], -1),
            self.count.reshape(-1), self.mean.reshape(-1), self.squares.reshape(-1),
        )  # fmt: skip

    @property
    def std(self) -> Array:
        """Unbiased standard deviation; NaN with fewer than two runs."""
        return np.sqrt(self.squares / np.where(self.count > 1, self.count - 1, np.nan))

    @property
    def average(self) -> Array:
        """Mean; NaN without runs."""
        return np.where(self.count > 0, self.mean, np.nan)


@functools.partial(compiled, nogil=True)
def add_to_moments(batch, count, mean, squares):
    """Update means and squared deviations with Welford's recursion, run by run."""
    for r in range(batch.shape[0]):
        for i in range(batch.shape[1]):
            x = batch[r, i]
            if x == x:
                count[i] += 1
                gap = x - mean[i]
                mean[i] += gap / count[i]
                squares[i] += gap * (x - mean[i])
