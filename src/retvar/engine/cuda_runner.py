"""Run a simulation on a GPU, in batches of runs that fit its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from retvar.engine import cuda_device, cuda_fold
from retvar.engine.blocks import Block
from retvar.engine.cuda_arrays import BlockArrays, batch_shapes, shortened
from retvar.engine.cuda_device import Device, without_contraction
from retvar.engine.cuda_fold import DeviceMoments
from retvar.engine.cuda_kernel import Start, kernel_of
from retvar.engine.cuda_layout import lay_out, plan_of
from retvar.engine.lane_nodes import Discounts
from retvar.engine.recorder import Batch, Wanted, rows_of, table_of
from retvar.engine.runner import NEVER, Moments, Progress, Simulation
from retvar.engine.shapes import LOCAL
from retvar.engine.streams import Stream
from retvar.engine.workspace import Workspace
from retvar.errors import DeviceError, InputError
from retvar.jit import log_slow_compilation
from retvar.networks import ESTIMATES

__all__ = ["BlockRunner", "Target", "device_blocks", "run"]

SHARE_OF_MEMORY = 0.6  # of the GPU's free memory, for the arrays of a batch
UPDATES = 3e11  # of a launch, so that it takes less than a second …
SLOW_UPDATES = 1e10  # … in the forms that go through all weights
SUMMED = ("squares", "frozen_squares", "changes")  # also summed over states


class Target(Protocol):
    """What takes the results of a block; see :class:`retvar.simulation.results.Accumulator`."""

    keep: str

    def add(self, runs: range, batch: Batch) -> None:
        """Take the next runs."""

    def note_divergence(self, runs: range, diverged_at: Any) -> None:
        """Take the moments at which lanes diverged."""

    def put(self, parts: dict[str, Moments]) -> None:
        """Take the statistics over all runs."""


def device_blocks(
    blocks: list[Block], stream: Stream, window: bool, number: int = 8
) -> list[Block]:
    """The blocks, laid out for a GPU; `number`: bytes of a number."""
    return [lay_out(block, stream, window, number=number) for block in blocks]


class BlockRunner:
    """Runs one block of learners."""

    def __init__(self, simulation: Simulation, block: Block, device: Device) -> None:
        self.simulation, self.block, self.device = simulation, block, device
        self.recording = simulation.recording
        workspace = Workspace(block, simulation.setups, simulation.stream, simulation.seed)
        self.plan = plan_of(workspace, self.recording)
        one = BlockArrays(device, self.plan, workspace, 1)
        self.arrays = BlockArrays(device, self.plan, workspace, self._most_runs(one))
        self.kernel = kernel_of(self.plan)
        self._make_constants()
        self.moments = {  # made before a launch, since copies wait for kernels
            name: DeviceMoments(device, x.shape[1], x.shape[3]) for name, x in self._folded()
        }

    def _most_runs(self, one: BlockArrays) -> int:
        """Number of runs of a launch: what fits the memory, and takes less than a second."""
        each, free = one.bytes_of_a_run(self.recording), self.device.free_bytes()
        fitting = int(SHARE_OF_MEMORY * free / each) - one.runs + 1  # thread blocks are whole
        if fitting < 1:
            needed = f"{each * one.runs / 1e9:,.2g} GB for one run"
            remedy = f"{free / 1e9:,.2g} GB of the GPU are free; record less, or device='cpu'"
            raise InputError("device", f"'cuda', {needed}", remedy)
        threads = one.parts * self.plan.layout.group
        whole = -(-2_048 * self.device.processors() // threads)  # runs that fill the GPU
        limit = UPDATES if self.plan.shape.form == LOCAL else SLOW_UPDATES
        work = int(self.recording.points[-1]) * self.block.lanes * len(self.plan.shape.nodes)
        most = max(whole, int(limit / work) // whole * whole)
        if self.simulation.batch is not None:
            most = self.simulation.batch
        return max(1, min(self.simulation.runs, most, fitting))

    def _make_constants(self) -> None:
        arrays, rec, shape = self.arrays, self.recording, self.plan.shape
        numbers = range(len(shape.nodes))
        last = int(rec.points[-1])
        given = [arrays.given(number, last, rec.by_step) for number in numbers]
        self.columns = tuple(arrays.columns(number) for number in numbers)
        self.home, self.scratch = arrays.scratch()
        self.batch = arrays.results(rec)
        own = arrays.lanes if shape.own else ()
        number = arrays.number
        discounts = Discounts(*(
            x.reshape(-1, *own).astype(number) for x in arrays.workspace.discounts
        ))  # fmt: skip
        share = (np.zeros if shape.shared else np.arange)(shape.lanes, dtype=np.int64)
        truth = self.simulation.truth(self.block)
        wanted = Wanted(
            points=rec.points, by_step=rec.by_step, states=rec.states,
            shares=rec.shares if rec.shares.size else np.zeros(1),
            since=np.int64(last - rec.window if rec.window else NEVER),
            truth=truth.reshape(len(truth), -1, *arrays.lanes).astype(number),
            frozen=np.zeros((1, 1, *arrays.lanes), dtype=number), rows=table_of(rows_of(shape)),
        )  # fmt: skip
        self.stream, self.given, self.discounts, self.share, self.wanted = self.device.put_all(
            (shortened(self.simulation.stream), given, discounts, share, wanted)
        )
        self.settled = False  # whether initial values are the same in all runs, and set

    def _prepare(self, runs: range) -> None:
        """Set initial values, the truth for frozen values, and sums to 0."""
        arrays, workspace = self.arrays, self.arrays.workspace
        if workspace.differs or not self.settled:
            initial = arrays.initial_weights(runs)
            pairs = zip(self.given, initial, strict=True)
            self.given = [given._replace(initial=weights) for given, weights in pairs]
        if self.plan.frozen and (workspace.differs or not self.settled):
            frozen = arrays.per_run(self.simulation.frozen(self.block, runs))
            self.wanted = self.wanted._replace(frozen=frozen)
        self.settled = True
        shapes = batch_shapes(self.block, self.recording, arrays.states)
        for name in ("rmse", "sums", "squares", "frozen_squares", "changes"):
            if shapes[name]:
                cuda_fold.clear(getattr(self.batch, name))

    def launch(self, first_run: int) -> None:
        """Start the kernel for the runs of a batch."""
        start = Start(np.int64(first_run), np.int32(self.arrays.parts), self.home, self.share)
        with without_contraction():
            self.kernel[self.arrays.blocks, self.plan.layout.threads](
                self.stream, start, tuple(self.given), self.columns, self.discounts, self.wanted,
                self.scratch, self.batch,
            )  # fmt: skip

    def run(self, runs: range, target: Target, meanwhile: Callable[[], None]) -> None:
        """Run a batch and give its results to `target`; call `meanwhile` while the GPU works."""
        self._prepare(runs)
        with log_slow_compilation("the GPU's update for these learners"):
            self.launch(runs.start)
        meanwhile()
        if target.keep == "runs":
            self.device.wait()
            target.add(runs, self._on_host(len(runs)))
            return
        self._fold(len(runs))
        self.device.wait()
        if not self.plan.shape.safe:
            target.note_divergence(runs, self._host(self.batch.diverged_at, len(runs)))

    def _host(self, x: Any, runs: int) -> Any:
        """Results on the CPU [run, …, lane]."""
        x = self.device.get(x)[:runs]
        return x.reshape(*x.shape[:-3], -1)

    def _on_host(self, runs: int) -> Batch:
        shapes = batch_shapes(self.block, self.recording, self.arrays.states)
        found: dict[str, Any] = {}
        for name, shape in shapes.items():
            if shape:
                found[name] = self._host(getattr(self.batch, name), runs)
            else:
                found[name] = np.zeros((runs, 0))
        lanes = self.block.lanes
        if self.plan.shape.safe:
            found["diverged_at"] = np.full((runs, len(ESTIMATES), lanes), -1, dtype=np.int64)
        if self.plan.window and not self.plan.frozen:
            found["frozen_squares"] = np.zeros_like(found["squares"])
        for name in SUMMED:
            if not found[name].size:
                found[name] = np.zeros((runs, 0, self.arrays.states, lanes))
        return Batch(**found)

    def _folded(self) -> Iterator[tuple[str, Any]]:
        """Names and results [run, part, state, lane] whose statistics are wanted."""
        lanes = self.block.lanes
        for name, shape in batch_shapes(self.block, self.recording, self.arrays.states).items():
            if not shape or name == "diverged_at":
                continue
            x, count = getattr(self.batch, name), int(np.prod(shape))
            yield name, x.reshape(self.arrays.runs, count, 1, lanes)
            if name in SUMMED:
                yield f"{name}_total", x.reshape(self.arrays.runs, *shape, lanes)

    def _fold(self, runs: int) -> None:
        """Add the results of a batch to the statistics on the GPU."""
        for name, x in self._folded():
            self.moments[name].add(x, runs)

    def statistics(self, runs: int) -> dict[str, Moments]:
        """Mean and standard deviation over all runs, by name."""
        shapes = batch_shapes(self.block, self.recording, self.arrays.states)
        lanes, found = self.block.lanes, {}
        for name, moments in self.moments.items():
            shape = shapes[name.removesuffix("_total")]
            shape = shape[:1] if name.endswith("_total") else shape
            found[name] = moments.moments((*shape, lanes))
        if self.plan.window and not self.plan.frozen:  # nothing is compared, as on the CPU
            for name in ("squares", "squares_total"):
                empty = Moments(found[name].mean.shape)
                empty.count[:] = found[name].count
                found[f"frozen_{name}"] = empty
        return found


def batches(simulation: Simulation, size: int) -> Iterator[range]:
    """Batches of runs, in order."""
    end = simulation.first + simulation.runs
    for first in range(simulation.first, end, size):
        yield range(first, min(first + size, end))


def run(
    simulation: Simulation,
    targets: list[Any],
    progress: Progress | None,
    meanwhile: Callable[[], None],
) -> None:
    """Run a simulation whose blocks are laid out for a GPU; `targets` take the results."""
    try:
        run_blocks(simulation, targets, progress, meanwhile)
    except cuda_device.failures() as error:
        cuda_device.note_failure(str(error))
        raise DeviceError(str(error)) from None


def run_blocks(
    simulation: Simulation,
    targets: list[Any],
    progress: Progress | None,
    meanwhile: Callable[[], None],
) -> None:
    """Run the blocks, one after another."""
    device, done, count = Device(), 0, len(simulation.blocks)
    for block, target in zip(simulation.blocks, targets, strict=True):
        runner = BlockRunner(simulation, block, device)
        for runs in batches(simulation, runner.arrays.runs_at_once):
            runner.run(runs, target, meanwhile)
            done += len(runs)
            if progress is not None:
                progress(done / count)
        if target.keep != "runs":
            target.put(runner.statistics(simulation.runs))
