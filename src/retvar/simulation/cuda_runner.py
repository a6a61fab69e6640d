"""Run a simulation on a GPU, in batches of runs that fit its memory.

Statistics over runs are made there too: Welford's recursion in the order of the runs, so as on the
CPU.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
from numba import cuda

from retvar.simulation import cuda_device
from retvar.simulation.blocks import Block, Recording
from retvar.simulation.cuda_device import Device, without_contraction
from retvar.simulation.cuda_kernel import Launch, Loaded, Plan, fields_of, kernel_of, plan_of
from retvar.simulation.kernel import Given
from retvar.simulation.question import Question
from retvar.simulation.record import SUMMED, Batch
from retvar.simulation.runner import Lanes, Moments, Progress, Simulation
from retvar.support.errors import DeviceError, InputError
from retvar.td.block import dense
from retvar.td.jit import compiled, log_slow_compilation
from retvar.td.nodes import DENSE
from retvar.td.step_sizes import counts_visits, rate_at

SHARE_OF_MEMORY = 0.6  # of the GPU's free memory, for the arrays of a batch
UPDATES = 1e11  # of a launch, so that it takes about a second
MOST_POWERS = 1 << 22  # visits whose powers are in a table
FEWEST_POWERS = 1 << 20  # … where runs are counted in episodes
THREADS = 64  # of a block of the kernels below
AHEAD = 8  # runs that are fetched at a time
PIECE = 512  # runs whose initial weights are made at a time


# ---------------------------------------------------------------------- statistics over runs


def fold(batch, runs, moments):
    """Add runs to counts, means and squared deviations; batch is [run, part, state, lane].

    A thread has the sum over states of one part and lane; where it is not wanted, states are 1.
    """
    i = cuda.grid(1)
    x = cuda.local.array(AHEAD, np.float64)
    lanes, states = batch.shape[3], batch.shape[2]
    while i < moments.shape[1]:
        part, lane = i // lanes, i % lanes
        n, m, q = moments[0, i], moments[1, i], moments[2, i]
        for first in range(0, runs, AHEAD):
            for k in range(AHEAD):
                x[k] = math.nan
                if first + k < runs:
                    x[k] = batch[first + k, part, 0, lane]
                    for s in range(1, states):
                        x[k] += batch[first + k, part, s, lane]
            for k in range(AHEAD):
                if x[k] == x[k]:
                    n += 1
                    gap = x[k] - m
                    m += gap / n
                    q += gap * (x[k] - m)
        moments[0, i], moments[1, i], moments[2, i] = n, m, q
        i += cuda.gridsize(1)


def clear(x):
    """Set all numbers to 0."""
    i = cuda.grid(1)
    while i < x.size:
        x[i] = 0.0
        i += cuda.gridsize(1)


@functools.cache
def _kernel(function: Any) -> Any:
    return cuda_device.kernel(function)


def _launch(function: Any, size: int, *args: Any) -> None:
    """Run one of the kernels above, a thread for each of `size` numbers."""
    blocks, threads = (1, 4) if cuda_device.SIMULATED else (-(-size // THREADS), THREADS)
    with cuda_device.without_contraction():
        _kernel(function)[blocks, threads](*args)


# ---------------------------------------------------------------------- blocks of learners


@compiled
def fill_rates(kind, q, out):
    """By what a step is divided after 0, 1, 2 … visits."""
    for n in range(out.size):
        out[n] = rate_at(kind, q, float(n))


def laid_out(question: Question, rec: Recording, block: Block) -> tuple[Block, Plan]:
    """A block with lanes for whole threads, and the plan of its kernel."""
    firsts = [question.setups[block.learners(k)[0]].template for k in range(len(block.owners))]
    sizes = [x.features[place].size for x, (_, place) in zip(firsts, block.owners, strict=True)]
    plan = plan_of(block.shape, sizes, len(block.columns), rec, question.stream)
    whole = plan.lanes * plan.group
    lanes = -(-len(block.columns) // whole) * whole
    return dataclasses.replace(block, shape=plan.shape, lanes=lanes), plan


class BlockRunner:
    """Runs one block of learners."""

    def __init__(self, simulation: Simulation, block: Block, device: Device) -> None:
        self.simulation, self.device, self.recording = simulation, device, simulation.recording
        self.block, self.plan = laid_out(simulation.question, self.recording, block)
        self.lanes = Lanes(simulation, self.block)
        self.parts = self.block.lanes // (self.plan.lanes * self.plan.group)
        self.threads = self.parts * self.plan.group  # of a run
        self.runs_at_once = self._most_runs()
        self.blocks = -(-self.runs_at_once * self.threads // self.plan.threads)
        self.kernel = kernel_of(self.plan)
        self.stream = device.put_all(simulation.question.stream)
        self.batch = self._results()
        self.memory = self._memory()
        self.moments = {  # counts, means and squares; made now, since copies wait for kernels
            name: device.put(np.zeros((3, x.shape[1] * x.shape[3]))) for name, x in self._folded()
        }
        self.loaded = self.book = None  # until the first launch

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the memory of a thread."""
        plan, states, slots = self.plan, self.lanes.states, len(self.block.shape.rows)
        nodes, local, lanes = len(plan.shape.specs), plan.shape.local, plan.lanes
        weights = (states + 1 if local else plan.size, len(fields_of(plan.shape)), lanes)
        notes = plan.shape.specs[0].steps and not local
        return {
            "home": (1, 1, 1) if plan.rows else weights,
            "used": (states, nodes, lanes) if notes else (1, 1, 1),
            "previous": (slots, states, lanes) if plan.shape.change else (1, 1, 1),
            "counted": (states,),
        }

    def _most_runs(self) -> int:
        """Number of runs of a launch: what fits the memory, and takes about a second."""
        free, shapes = self.device.free_bytes(), self.lanes.shapes
        each = self.block.lanes * sum(
            map(math.prod, (*shapes.parts().values(), shapes.diverged_at))
        )
        each += self.threads * sum(map(math.prod, self._shapes().values()))
        if self.lanes.differs:
            each += sum(node.initial.size for node in self.lanes.nodes)
        each += self.lanes.states * self.block.lanes if self.plan.shape.frozen else 0
        fitting = int(SHARE_OF_MEMORY * free / (8 * each))
        if fitting < 1:
            needed = f"{8 * each / 1e9:,.2g} GB for one run"
            remedy = f"{free / 1e9:,.2g} GB of the GPU are free; record less, or device='cpu'"
            raise InputError("device", f"'cuda', {needed}", remedy)
        whole = -(-2_048 * self.device.processors() // self.threads)  # runs that fill the GPU
        work = int(self.recording.points[-1]) * self.block.lanes * len(self.plan.shape.specs)
        most = self.simulation.batch or max(whole, int(UPDATES / work) // whole * whole)
        return max(1, min(self.simulation.runs, most, fitting))

    def _memory(self) -> list[Any]:
        """Memory of all threads."""
        empty, shapes, each = self.device.empty, self._shapes(), self.plan.threads
        groups = 1 if self.plan.rows else self.blocks * each // self.plan.group
        home = empty(groups, *shapes["home"], self.plan.group)
        lines = home.reshape(*home.shape[:2], math.prod(home.shape[2:]))
        used, previous = (empty(*shapes[x], self.blocks * each) for x in ("used", "previous"))
        counted = empty(*shapes["counted"], self.blocks * each, dtype=np.int64)
        return [home, lines, used, previous, counted]

    def _results(self) -> Batch:
        """Results of the runs of a launch, not initialised."""
        found = {}
        for name, shape in self.lanes.shapes._asdict().items():
            dtype = np.int64 if name == "diverged_at" else np.float64
            whole = (self.runs_at_once, *(shape or ()), self.block.lanes)
            found[name] = None if shape is None else self.device.empty(*whole, dtype=dtype)
        return Batch(**found)

    def _load(self, runs: range) -> None:
        """Put what lanes are given, and the truth, on the GPU."""
        given, phi, powers = self._given(runs), [], []
        last = int(self.recording.points[-1])
        most = min(last + 2, MOST_POWERS) if self.recording.by_step else FEWEST_POWERS
        for k, (spec, node) in enumerate(zip(self.plan.shape.specs, self.lanes.nodes, strict=True)):
            is_dense, counts = spec.features == DENSE, spec.learns and counts_visits(spec.kind)
            phi.append(dense(node.features, self.lanes.states) if is_dense else np.zeros((1, 1)))
            powers.append(np.zeros(most if counts else 1))
            if counts:
                fill_rates(spec.kind, float(self.lanes.q[k, 0]), powers[-1])
        book = self.lanes.book(runs)._replace(found=None, previous=None, counted=None)
        kappas = tuple(node.kappa for node in self.lanes.nodes)
        loaded = Loaded(given, self.lanes.q, kappas, tuple(phi), tuple(powers))
        self.loaded, self.book = self.device.put_all((loaded, book))

    def _given(self, runs: range) -> Given:
        """What lanes are given; initial weights are on the GPU, made by threads piece by piece."""
        pieces = [range(k, min(k + PIECE, runs.stop)) for k in range(runs.start, runs.stop, PIECE)]
        there: list[Any] = []
        with ThreadPoolExecutor(self.simulation.threads) as pool:
            for first, given in zip(count(0, PIECE), pool.map(self.lanes.given, pieces)):
                for x in [] if there else given.starts:
                    rows = len(runs) if x.shape[1] > 1 else 1
                    there.append(self.device.empty(len(x), rows, x.shape[2]))
                for x, found in zip(there, given.starts, strict=True):
                    for k in range(len(found) if first < x.shape[1] else 0):
                        self.device.write(x[k, first : first + found.shape[1]], found[k])
        return given._replace(starts=tuple(there))

    def launch(self, runs: range) -> None:
        """Start the kernel for the runs of a batch."""
        task = Launch(np.int64(runs.start), np.int64(len(runs)), np.int64(self.parts), *self.memory)
        with without_contraction():
            self.kernel[self.blocks, self.plan.threads](
                *map(launchable, (self.stream, task, self.loaded, self.book, self.batch))
            )

    def run(self, runs: range, target: Any, meanwhile: Callable[[], None]) -> None:
        """Run a batch and give its results to `target`; call `meanwhile` while the GPU works."""
        if self.loaded is None or self.lanes.differs:
            self._load(runs)
        for name in ("rmse", "sums", "squares", "frozen_squares", "changes"):
            if (x := getattr(self.batch, name)) is not None:
                _launch(clear, x.size, x.reshape(-1))
        with log_slow_compilation("the GPU's update for these learners"):
            self.launch(runs)
        meanwhile()
        if target.keep != "runs":
            for name, x in self._folded():
                sums = self.moments[name]
                _launch(fold, sums.shape[1], x, len(runs), sums)
        self.device.wait()
        if target.keep == "runs":
            target.add(runs, Batch(*(self._host(name, len(runs)) for name in Batch._fields)))
        else:
            target.note_divergence(runs, self._host("diverged_at", len(runs)))

    def _host(self, name: str, runs: int) -> Any:
        """Results on the CPU [run, …, lane]; None if they are not wanted."""
        x = getattr(self.batch, name)
        return None if x is None else self.device.get(x)[:runs]

    def _folded(self) -> Iterator[tuple[str, Any]]:
        """Names and results [run, part, state, lane] whose statistics are wanted."""
        lanes = self.block.lanes
        for name, x in self.batch.parts().items():
            shape = getattr(self.lanes.shapes, name)
            yield name, x.reshape(self.runs_at_once, math.prod(shape), 1, lanes)
            if name in SUMMED:
                yield f"{name}_total", x.reshape(self.runs_at_once, *shape, lanes)

    def statistics(self) -> dict[str, Moments]:
        """Mean and standard deviation over all runs, by name."""
        found = {}
        for name, sums in self.moments.items():
            shape = getattr(self.lanes.shapes, name.removesuffix("_total"))
            shape = (*(shape[:1] if name.endswith("_total") else shape), self.block.lanes)
            count, mean, squares = self.device.get(sums).reshape(3, *shape)
            found[name] = Moments(shape)
            found[name].count[:], found[name].mean[:], found[name].squares[:] = count, mean, squares
        return found


def launchable(x: Any) -> Any:
    """An argument of a kernel, which takes no None: 0 stands there, and is not looked at.

    >>> launchable((1.0, (None, 2.0)))
    (1.0, (0.0, 2.0))
    """
    if not isinstance(x, tuple):
        return 0.0 if x is None else x
    parts = map(launchable, x)
    return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)


def run(
    simulation: Simulation,
    targets: list[Any],
    progress: Progress | None,
    meanwhile: Callable[[], None],
) -> None:
    """Run a simulation on a GPU; `targets` take the results of the blocks."""
    try:
        device, done, end = Device(), 0, simulation.first + simulation.runs
        for block, target in zip(simulation.blocks, targets, strict=True):
            runner = BlockRunner(simulation, block, device)
            for first in range(simulation.first, end, runner.runs_at_once):
                runs = range(first, min(first + runner.runs_at_once, end))
                runner.run(runs, target, meanwhile)
                done += len(runs)
                if progress is not None:
                    progress(done / len(simulation.blocks))
            if target.keep != "runs":
                target.parts = runner.statistics()
    except cuda_device.failures() as error:
        raise DeviceError(str(error)) from None
