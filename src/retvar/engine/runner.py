"""Runs in batches on threads, folded in the order of the runs.

The bits of a statistic depend on the order of its sums; since results are folded run by run in the
order of the runs' numbers, they are the same for any number of threads and any size of batches.
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

from retvar.engine import kernel as k
from retvar.engine.kernel import Shape, Window, kernel_of
from retvar.engine.lanes import Block, Lane, Recording, Room, aligned
from retvar.engine.streams import Stream
from retvar.jit import compiled, log_slow_compilation

__all__ = ["Batch", "Job", "Moments", "run"]

Array = NDArray[np.float64]
BATCH_BYTES = 16_000_000  # results of a batch that has not been folded
NEVER = 2**62
Progress = Callable[[float], None]  # told how many runs are done
_compiled: set[Shape] = set()  # in this process
_making = threading.Lock()


@dataclass(frozen=True, eq=False)
class Job:
    """Everything that a simulation computes."""

    lanes: list[Lane]
    blocks: list[Block]
    stream: Stream
    seed: int
    runs: int
    recording: Recording
    truth: Callable[[Block], Array]  #: value and variance [2, state, lane]
    frozen: Callable[[Block, range], Array]  #: variance for the frozen value [run, state, lane]
    threads: int
    batch: int | None = None
    first: int = 0  #: number of the first run


@dataclass(frozen=True, eq=False)
class Batch:
    """What some runs of a block gave; the first axis is the run, the last the lane."""

    estimates: Array  #: [run, point, slot, state, lane]
    rmse: Array  #: [run, point, slot, lane]
    steps: Array  #: [run, point, slot, state, lane]
    sums: Array  #: [run, slot, state, lane]
    squares: Array
    frozen_squares: Array
    changes: Array
    died: NDArray[np.int64]  #: [run, row, lane], −1 where it has not

    def parts(self) -> dict[str, Array]:
        """The arrays of numbers, by name."""
        names = ("estimates", "rmse", "steps", "sums", "squares", "frozen_squares", "changes")
        return {name: getattr(self, name) for name in names}


def bytes_of_a_run(block: Block, recording: Recording, states: int) -> int:
    """How much one run of a block gives."""
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

    def __init__(self, job: Job, block: Block) -> None:
        self.job, self.block = job, block
        self.room = Room(block, job.lanes, job.stream, job.seed)
        with _making:  # one for all threads
            self.kernel = kernel_of(block.shape)
        self.truth = job.truth(block)
        slots, states, lanes = len(block.rows), job.stream.first.size, block.lanes
        rec = job.recording
        self.previous = aligned(slots if rec.change else 0, states, lanes)
        self.used = np.full((k.ROWS, states if rec.steps else 0, lanes), np.nan)
        self.seen = np.zeros(states, dtype=np.int64)

    def run(self, runs: range, stop: Any, tick: Any) -> Batch | None:
        """Run them; None where it was stopped."""
        rec, block, room = self.job.recording, self.block, self.room
        slots, states, lanes = len(block.rows), self.seen.size, block.lanes
        count, points = len(runs), rec.points.size
        window = slots if rec.window else 0
        frozen = aligned(1, 0, 0)
        if rec.window and not block.shape.learn:
            frozen = self.job.frozen(block, runs)
        out = Batch(
            estimates=aligned(count, points, slots, rec.states.size, lanes),
            rmse=aligned(count, points, slots if rec.shares.size else 0, lanes),
            steps=aligned(count, points, slots if rec.steps else 0, rec.states.size, lanes),
            sums=aligned(count, window, states, lanes),
            squares=aligned(count, window, states, lanes),
            frozen_squares=aligned(count, window, states, lanes),
            changes=aligned(count, slots if rec.change else 0, states, lanes),
            died=np.full((count, k.ROWS, lanes), -1, dtype=np.int64),
        )
        tallied = Window(
            out.sums, out.squares, out.frozen_squares, self.truth, frozen,
            *room.rows(),
        )  # fmt: skip
        total = int(rec.points[-1])

        nodes = room.nodes_for(runs)

        def start(count: int) -> bool:
            done: bool = self.kernel(
                self.job.stream, runs.start, count, rec.points, rec.by_step,
                total - rec.window if rec.window else NEVER, stop, tick,
                room.gammas, room.lams, room.value_gammas, room.slot, room.share,
                *nodes, *room.scratch, rec.states, rec.shares, tallied, self.seen,
                out.estimates, out.rmse, out.changes, self.previous, out.steps, self.used, out.died,
            )  # fmt: skip
            return done

        if block.shape not in _compiled:
            with log_slow_compilation("the update for these learners"):
                start(0)
            _compiled.add(block.shape)
        if not start(count):
            return None
        self._mask(out)
        return out

    def _mask(self, out: Batch) -> None:
        """NaN for what is summed over a run in which the lane diverged."""
        if (out.died < 0).all():
            return
        for slot, row in enumerate(self.block.rows):
            rests_on = {row, k.VALUE_}
            rests_on |= {k.MOMENT_} if row == k.VTD_ else set()
            rests_on |= {k.MEAN_} if row == k.CENTRED_ else set()
            lost = np.any(out.died[:, sorted(rests_on)] >= 0, axis=1)[:, None]
            for name in ("sums", "squares", "frozen_squares", "changes"):
                part = getattr(out, name)
                if part.size:
                    part[:, slot] = np.where(lost, np.nan, part[:, slot])


def run(
    job: Job, fold: Callable[[int, range, Batch], None], progress: Progress | None = None
) -> None:
    """Run everything; `fold` gets the number of a block, runs and results, in order of the runs.

    An interrupt stops the workers within moments and is then passed on.
    """
    stop = np.zeros(1, dtype=np.int64)
    local = threading.local()
    ticks: list[Array] = []
    done, told = 0, 0.0

    def work(number: int, runs: range) -> Batch | None:
        if not hasattr(local, "workers"):
            local.workers, local.tick = {}, np.zeros(8)
            ticks.append(local.tick)
        if number not in local.workers:
            local.workers = {number: Worker(job, job.blocks[number])}
        batch: Batch | None = local.workers[number].run(runs, stop, local.tick)
        local.tick[0] = 0.0
        return batch

    tasks = _tasks(job)
    waiting: dict[tuple[int, int], tuple[range, Batch]] = {}
    due = dict.fromkeys(range(len(job.blocks)), job.first)
    flying: dict[Future[Batch | None], tuple[int, range]] = {}
    with ThreadPoolExecutor(job.threads, thread_name_prefix="retvar") as pool:
        try:
            while True:
                while len(flying) + len(waiting) < job.threads + 1:
                    task = next(tasks, None)
                    if task is None:
                        break
                    flying[pool.submit(work, *task)] = task
                if not flying:
                    break
                finished, _ = wait(flying, timeout=0.1, return_when=FIRST_COMPLETED)
                for future in finished:
                    number, runs = flying.pop(future)
                    batch = future.result()
                    assert batch is not None
                    done += len(runs)
                    waiting[number, runs.start] = (runs, batch)
                    while (number, due[number]) in waiting:
                        runs, batch = waiting.pop((number, due[number]))
                        fold(number, runs, batch)
                        due[number] = runs.stop
                if progress is not None:  # never less than before: a task ends before it is counted
                    told = max(told, (done + sum(float(t[0]) for t in ticks)) / len(job.blocks))
                    progress(told)
        except BaseException:
            stop[0] = 1
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _tasks(job: Job) -> Iterator[tuple[int, range]]:
    """Blocks and batches of runs, in order."""
    for number, block in enumerate(job.blocks):
        size = job.batch
        if size is None:
            each = bytes_of_a_run(block, job.recording, job.stream.first.size)
            size = min(-(-job.runs // (4 * job.threads)), max(1, BATCH_BYTES // max(each, 1)), 256)
        end = job.first + job.runs
        for first in range(job.first, end, size):
            yield number, range(first, min(first + size, end))


def usable_threads() -> int:
    """How many threads this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system can tell
        return os.cpu_count() or 1


class Moments:
    """Mean and standard deviation over runs, entry by entry; runs that are NaN are left out."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = np.zeros(shape, dtype=np.int32)
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)

    def fold(self, batch: Array) -> None:
        """Take in more runs, in their order."""
        fold_moments(
            batch.reshape(batch.shape[0], -1),
            self.count.reshape(-1), self.mean.reshape(-1), self.squares.reshape(-1),
        )  # fmt: skip

    @property
    def std(self) -> Array:
        """Unbiased; NaN where there are fewer than two runs."""
        return np.sqrt(self.squares / np.where(self.count > 1, self.count - 1, np.nan))

    @property
    def average(self) -> Array:
        """The mean; NaN where there is no run."""
        return np.where(self.count > 0, self.mean, np.nan)


@functools.partial(compiled, nogil=True)
def fold_moments(batch, count, mean, squares):
    """Welford's recursion, run by run."""
    for r in range(batch.shape[0]):
        for i in range(batch.shape[1]):
            x = batch[r, i]
            if x == x:
                count[i] += 1
                gap = x - mean[i]
                mean[i] += gap / count[i]
                squares[i] += gap * (x - mean[i])
