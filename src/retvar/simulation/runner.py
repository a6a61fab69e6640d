"""Run batches of runs on threads and accumulate their results in the order of the runs.

Rounding depends on the order of summation. Results are accumulated run by run in order of the run
number, so statistics are the same for any number of threads and any batch size.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.simulation.blocks import Block, Recording, Shape, initial_draws
from retvar.simulation.kernel import Given, Task, kernel_of
from retvar.simulation.question import Question
from retvar.simulation.record import Batch, Book, table_of
from retvar.td.block import aligned_zeros, arrays_of
from retvar.td.jit import compiled, log_slow_compilation

Array = NDArray[np.float64]
BATCH_BYTES = 16_000_000  # results of one batch
Progress = Callable[[float], None]  # receives the number of finished runs
_compiled: set[Shape] = set()  # in this process
_kernel_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class Simulation:
    """Everything needed to run a simulation."""

    question: Question
    blocks: list[Block]
    recording: Recording
    runs: int
    first: int  #: number of the first run
    threads: int
    batch: int | None


def result_shapes(block: Block, simulation: Simulation) -> Batch:
    """Shapes of the results of a run, but for lanes; None: not wanted."""
    rec, states, shape = simulation.recording, simulation.question.mdp.n_states, block.shape
    slots, points = len(shape.rows), rec.points.size
    window = (slots, states) if shape.window else None
    return Batch(
        estimates=(points, slots, rec.states.size),
        rmse=(points, slots) if shape.rmse else None,
        steps=(points, slots, rec.states.size) if rec.steps else None,
        sums=window,
        squares=window,
        frozen_squares=window if shape.frozen else None,
        changes=(slots, states) if shape.change else None,
        diverged_at=(len(shape.specs),),
    )


def bytes_of_a_run(block: Block, simulation: Simulation) -> int:
    """Size of the results of one run of a block."""
    wanted = result_shapes(block, simulation).parts().values()
    return 8 * block.lanes * sum(map(math.prod, wanted))


class Lanes:
    """What the lanes of a block are given, and what is recorded of them."""

    def __init__(self, simulation: Simulation, block: Block) -> None:
        self.simulation, self.block = simulation, block
        numbers = range(len(block.owners))
        members = [[simulation.question.setups[i] for i in block.learners(k)] for k in numbers]
        self.owned = list(zip((place for _, place in block.owners), members, strict=True))
        self.nodes = [each[0].template.nodes[place] for place, each in self.owned]
        self.p, self.q = self._settings(0), self._settings(1)
        self.differs = any(m.template.start for each in members for m in each)
        self.states, template = simulation.question.mdp.n_states, members[0][0].template
        self.truth, self.rows = simulation.question.of_lanes(block), table_of(block.shape)
        self.shapes = result_shapes(block, simulation)
        self._given = Given(template.gamma, template.lam, self.p, (), ())

    def _settings(self, which: int) -> Array:
        """One of the two parameters of the step-size rules [node, lane]."""
        rows = [[m.settings[place, which] for m in members] for place, members in self.owned]
        return np.stack([np.broadcast_to(row, self.block.lanes) for row in rows])

    def given(self, runs: range) -> Given:
        """What lanes are given, with the initial values of these runs."""
        if self.differs or not self._given.starts:
            draws, found = initial_draws(self.simulation.question.seed), {}
            for template in {m.template for _, members in self.owned for m in members}:
                if template.start_key not in found:
                    found[template.start_key] = template.weights(runs, draws)
            starts, which = [], []
            for place, members in self.owned:
                keys = [m.template.start_key for m in members]
                distinct = list(dict.fromkeys(keys))
                tables = [found[key][place] for key in distinct]
                if all(x.strides[0] == 0 for x in tables):  # one row for all runs
                    tables = [x[:1] for x in tables]
                starts.append(np.stack(np.broadcast_arrays(*tables)))
                which.append(np.array([distinct.index(key) for key in keys]))
            given = self._given._replace(starts=tuple(starts), which=tuple(which))
            self._given = given
            return given  # other threads may have replaced it meanwhile
        return self._given

    def book(self, runs: range) -> Book:
        """What is recorded of these runs, the truth, and what is remembered."""
        rec, shape, frozen, lanes = (
            self.simulation.recording,
            self.block.shape,
            None,
            self.block.lanes,
        )
        if shape.frozen:
            held = [setup.template for setup in self.owned[0][1]]
            tables = self.simulation.question.frozen(held, runs)
            frozen = aligned_zeros(max(map(len, tables)), self.states, lanes)
            for lane in range(lanes):
                frozen[..., lane] = tables[lane % len(tables)]
        slots = len(shape.rows)
        return Book(
            rec.points, rec.by_step, rec.states, rec.shares if shape.rmse else None,
            int(rec.points[-1]) - rec.window, self.truth, frozen, self.rows,
            found=aligned_zeros(slots, lanes),
            previous=aligned_zeros(slots, self.states, lanes) if shape.change else None,
            counted=np.zeros(self.states, dtype=np.int64) if shape.window else None,
        )  # fmt: skip


class Worker:
    """Runs batches of one block, one at a time."""

    def __init__(self, simulation: Simulation, block: Block) -> None:
        self.lanes, self.block = Lanes(simulation, block), block
        self.stream = simulation.question.stream
        x, shape = self.lanes, block.shape
        both = zip(shape.specs, x.nodes, x.p, x.q, strict=True)
        self.m = tuple(
            arrays_of(spec, node.features, p, q, node.kappa, x.states) for spec, node, p, q in both
        )
        with _kernel_lock:  # shared by all threads
            self.kernel = kernel_of(shape)

    def run(self, runs: range, stop: Any, tick: Any) -> Batch | None:
        """Run a batch; return None if it was stopped."""
        found: dict[str, Any] = {
            name: shape if shape is None else aligned_zeros(len(runs), *shape, self.block.lanes)
            for name, shape in self.lanes.shapes._asdict().items()
        }
        found["diverged_at"] = found["diverged_at"].astype(np.int64)
        out, given, book = Batch(**found), self.lanes.given(runs), self.lanes.book(runs)

        def start(count: int) -> bool:
            task = Task(runs.start, count, stop, tick)
            done: bool = self.kernel(self.stream, task, self.m, given, book, out)
            return done

        if self.block.shape not in _compiled:
            with log_slow_compilation("the update for these learners"):
                start(0)
            _compiled.add(self.block.shape)
        return out if start(len(runs)) else None


def run(simulation: Simulation, targets: list[Any], progress: Progress | None = None) -> None:
    """Run a simulation; `targets` add the results of the blocks, in order of the runs.

    An interrupt stops the workers quickly and is re-raised.
    """
    stop = np.zeros(1, dtype=np.int64)
    local = threading.local()
    ticks: list[Array] = []

    def work(number: int, runs: range) -> Batch | None:
        if not hasattr(local, "workers"):
            local.workers, local.tick = {}, np.zeros(8)
            ticks.append(local.tick)
        if number not in local.workers:
            local.workers = {number: Worker(simulation, simulation.blocks[number])}
        batch: Batch | None = local.workers[number].run(runs, stop, local.tick)
        local.tick[0] = 0.0
        return batch

    done, reported, tasks = 0, 0.0, _tasks(simulation)
    ahead: deque[tuple[int, range, Future[Batch | None]]] = deque()
    with ThreadPoolExecutor(simulation.threads, thread_name_prefix="retvar") as pool:
        try:
            while True:
                for number, runs in islice(tasks, simulation.threads + 1 - len(ahead)):
                    ahead.append((number, runs, pool.submit(work, number, runs)))
                if not ahead:
                    break
                number, runs, future = ahead[0]
                if wait([future], timeout=0.1).done:
                    batch = future.result()
                    assert batch is not None
                    targets[number].add(runs, batch)
                    done += len(runs)
                    ahead.popleft()
                if progress is not None:
                    finished = sum(len(runs) for _, runs, each in ahead if each.done())
                    now = done + finished + sum(float(t[0]) for t in ticks)
                    reported = max(reported, now / len(simulation.blocks))
                    progress(reported)
        except BaseException:
            stop[0] = 1
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _tasks(simulation: Simulation) -> Iterator[tuple[int, range]]:
    """Yield block numbers and batches of runs, in order."""
    end = simulation.first + simulation.runs
    for number, block in enumerate(simulation.blocks):
        size = simulation.batch
        if size is None:
            fitting = BATCH_BYTES // max(bytes_of_a_run(block, simulation), 1)
            size = min(-(-simulation.runs // (4 * simulation.threads)), max(1, fitting), 256)
        for first in range(simulation.first, end, size):
            yield number, range(first, min(first + size, end))


def usable_threads() -> int:
    """Number of CPUs that this process may use."""
    known = hasattr(os, "sched_getaffinity")  # not on every system
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


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
