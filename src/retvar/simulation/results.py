"""Accumulate the results of runs, and make a labelled dataset of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retvar.exact.moments import shape
from retvar.simulation.blocks import Block
from retvar.simulation.record import SUMMED, Batch
from retvar.simulation.runner import Moments, Simulation, bytes_of_a_run
from retvar.support.errors import InputError
from retvar.support.files import free_memory
from retvar.td import networks
from retvar.td.networks import ESTIMATES, NETWORKS, VALUE, Estimate, Node

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]
SHARE_OF_MEMORY = 0.8
ROW = {method: ESTIMATES.index(network.variance) for method, network in NETWORKS.items()}


class Accumulator:
    """Results of the runs of a block: mean and standard deviation, or all runs."""

    def __init__(self, block: Block, simulation: Simulation, keep: str) -> None:
        self.block, self.simulation, self.keep = block, simulation, keep
        self.parts: dict[str, Any] = {}
        runs = simulation.runs if keep == "runs" else 0
        methods = list(block.columns[0])
        self.diverged = {m: np.full((runs, block.lanes), np.nan) for m in methods}  # when
        self.counts = {m: np.zeros(block.lanes, dtype=np.int64) for m in methods}
        self.earliest = {m: np.full(block.lanes, np.nan) for m in methods}

    def _slice(self, runs: range) -> slice:
        return slice(runs.start - self.simulation.first, runs.stop - self.simulation.first)

    def note_divergence(self, runs: range, diverged_at: Any) -> None:
        """Note in which of the next runs lanes diverged, and when [run, node, lane]."""
        for method in self.counts:
            owners = enumerate(self.block.owners)
            own = [k for k, (owner, place) in owners if owner == method or place == VALUE]
            moments = np.where(diverged_at < 0, np.inf, diverged_at)[:, own].min(axis=1)
            moments[np.isinf(moments)] = np.nan
            self.counts[method] += np.isfinite(moments).sum(axis=0)
            self.earliest[method] = np.fmin(self.earliest[method], np.fmin.reduce(moments, axis=0))
            if self.keep == "runs":
                self.diverged[method][self._slice(runs)] = moments

    def add(self, runs: range, batch: Batch) -> None:
        """Add the next runs."""
        self.note_divergence(runs, batch.diverged_at)
        parts = batch.parts()
        parts |= {f"{name}_total": sum_in_order(parts[name]) for name in SUMMED if name in parts}
        for name, part in parts.items():
            if self.keep == "runs":
                if name not in self.parts:
                    self.parts[name] = np.empty((self.simulation.runs, *part.shape[1:]))
                self.parts[name][self._slice(runs)] = part
            else:
                self.parts.setdefault(name, Moments(part.shape[1:])).add(part)

    @cached_property
    def arrays(self) -> dict[str, dict[str, Array]]:
        """Arrays of each part by suffix: mean and standard deviation, or all runs."""
        if self.keep == "runs":
            return {name: {"": part} for name, part in self.parts.items()}
        return {name: {"": part.average, "_std": part.std} for name, part in self.parts.items()}


def sum_in_order(x: Array) -> Array:
    """The sum over states of [run, slot, state, lane], in their order with any number of lanes.

    >>> sum_in_order(np.ones((1, 1, 3, 1))).tolist()
    [[[3.0]]]
    """
    total = np.zeros((*x.shape[:2], x.shape[3]))
    for state in range(x.shape[2]):
        total += x[:, :, state]
    return total


def refuse_too_large(simulation: Simulation, keep: str) -> None:
    """Raise an InputError if the results would not fit in memory."""
    one = sum(bytes_of_a_run(block, simulation) for block in simulation.blocks)
    needed = one * (2 * simulation.runs if keep == "runs" else 5)
    available = free_memory()
    if needed > SHARE_OF_MEMORY * available:
        size, free = f"{needed / 1e9:,.1f} GB", f"{available / 1e9:,.1f} GB are free"
        if keep == "runs":
            remedy = f"{free}; keep='stats' needs {one * 5 / 1e9:,.2g} GB"
            raise InputError("keep", f"'runs', {size}", remedy)
        raise InputError("record", size, f"{free}; record fewer points or states")


class Results:
    """What a simulation has found."""

    def __init__(
        self,
        simulation: Simulation,
        keep: str,
        moments: NDArray[np.int64],
        attributes: dict[str, Any],
    ) -> None:
        self.simulation, self.moments = simulation, moments
        self.question = simulation.question
        self.attributes = self.question.attributes | attributes
        self.accumulators = [Accumulator(block, simulation, keep) for block in simulation.blocks]
        self.run = ["run"] if keep == "runs" else []
        self.unit = "step" if simulation.recording.by_step else "episode"

    def dataset(self) -> xarray.Dataset:
        """Return all results as a labelled dataset."""
        import xarray

        variables: dict[str, Any] = {}
        for name, part, rows, dims, scale in self._wanted():
            for suffix, array in self._gather(part, rows, dims, scale).items():
                named = ["state" if dim == "all" else dim for dim in dims]
                variables[name + suffix] = (named, array)
        for moment in self._higher():
            name, (dims, V) = networks.SHAPES[moment], variables["variance"]
            variables[name] = (dims, shape(name, V, variables[moment][1]))
        variables |= self.exact | self._divergence()
        return xarray.Dataset(variables, self.coords, self.attributes)

    def _higher(self) -> dict[str, dict[str, int]]:
        """Rows of the higher moments, by name."""
        places = range(networks.THIRD, self.question.order + 1)
        return {networks.PLACES[place]: rows_of(place) for place in places}

    def _wanted(self) -> Iterator[tuple[str, str, dict[str, int], list[str], float]]:
        """Name, part, rows of the methods, dimensions and scale of what was recorded."""
        rec, learners = self.simulation.recording, list(self.question.learners.values())
        one = [*self.run, "learner"]
        each, points = [*one, "all"], [*one, self.unit, "state"]
        value, higher = rows_of(networks.VALUE), self._higher()
        compared = {"value": value, "variance": ROW, **higher}
        second = {m: n.second_moment for m, n in NETWORKS.items() if n.second_moment is not None}
        own = {"mean": rows_of(networks.MEAN), "second_moment": _rows(second)}
        methods = {learner.method for learner in learners}
        own = {name: rows for name, rows in own.items() if methods & set(rows)}
        nodes = {"value": value, "variance": ROW, **own, **higher}
        for name, rows in nodes.items():
            yield name, "estimates", rows, points, 1.0
        if rec.shares.size:
            for name, rows in compared.items():
                yield f"{name}_rmse", "rmse", rows, points[:-1], 1.0
        if rec.steps:
            for name, rows in {**nodes, "variance": rows_of(networks.VARIANCE)}.items():
                if name != "second_moment":
                    yield f"{name}_step_size", "steps", rows, points, 1.0
        if rec.change:
            scale = 1.0 / rec.points[-1]
            for name, rows in nodes.items():
                yield f"{name}_change", "changes", rows, each, scale
                yield f"{name}_change_total", "changes_total", rows, one, scale
        if rec.window:
            scale = 1.0 / rec.window
            for name, rows in compared.items():
                yield f"{name}_window", "sums", rows, each, scale
                yield f"{name}_window_mse", "squares", rows, each, scale
                yield f"{name}_window_mse_total", "squares_total", rows, one, scale
            if not all(learner.learn_value for learner in learners):
                yield "variance_window_mse_frozen", "frozen_squares", ROW, each, scale

    def _learners_of_blocks(self) -> Iterator[tuple[Accumulator, str, list[int]]]:
        """Yield the learners of each block and method in the order of their lanes."""
        for accumulator in self.accumulators:
            for method in accumulator.block.columns[0]:
                yield accumulator, method, [column[method] for column in accumulator.block.columns]

    def _gather(
        self, part: str, rows: dict[str, int], dims: list[str], scale: float
    ) -> dict[str, Array]:
        """Return arrays [(run,) learner, …] from the slots and lanes of the blocks."""
        states, points = self.simulation.recording.states, self.moments.size  # the end is one more
        sizes = {"run": self.simulation.runs, "learner": len(self.question.learners)}
        sizes |= {self.unit: points, "state": states.size, "all": states.size}
        axis = dims.index("learner")
        out = {
            suffix: np.full([sizes[dim] for dim in dims], np.nan)
            for suffix in ([""] if self.run else ["", "_std"])
        }
        whole: tuple[Any, ...] = (slice(None),) * axis
        whole += (slice(points),) if self.unit in dims else ()
        for accumulator, method, numbers in self._learners_of_blocks():
            block = accumulator.block
            known = method in rows and rows[method] in block.shape.rows
            known &= part != "frozen_squares" or not block.shape.specs[0].learns
            for suffix, found in accumulator.arrays[part].items() if known else ():
                slot = block.shape.rows.index(rows[method])
                piece = np.moveaxis(found[(*whole, slot)], -1, 0)[: len(numbers)]
                piece = piece[..., states] if dims[-1] == "all" else piece
                np.moveaxis(out[suffix], axis, 0)[numbers] = scale * piece
        return out

    def _divergence(self) -> dict[str, Any]:
        """Return in how many runs each learner diverged, and the first moment."""
        counts = np.zeros(len(self.question.learners), dtype=np.int64)
        by = np.empty((*([self.simulation.runs] if self.run else []), counts.size))
        for accumulator, method, numbers in self._learners_of_blocks():
            moments = (accumulator.diverged if self.run else accumulator.earliest)[method]
            counts[numbers] = accumulator.counts[method][: len(numbers)]
            by[..., numbers] = moments[..., : len(numbers)]
        return {"diverged": ("learner", counts), "diverged_by": ([*self.run, "learner"], by)}

    def prepare(self) -> None:
        """Make what does not depend on the outcome, while a GPU is at work."""
        _ = self.exact, self.coords

    @cached_property
    def exact(self) -> dict[str, Any]:
        """The exact answers."""
        return self.question.exact_answers(self.simulation.recording.states)

    @cached_property
    def coords(self) -> dict[str, Any]:
        """Learners, moments, states and runs."""
        coords = self.question.coords(self.simulation.recording.states)
        first, runs = self.simulation.first, self.simulation.runs
        run = {"run": np.arange(first, first + runs)} if self.run else {}
        return {**coords, self.unit: self.moments, **run}


def _rows(nodes: dict[str, Node]) -> dict[str, int]:
    """Rows of the predictions of nodes, by method."""
    return {method: ESTIMATES.index(Estimate(node)) for method, node in nodes.items()}


def rows_of(place: int) -> dict[str, int]:
    """Row of the node at a place, for the methods that have one."""
    nodes = {m: n.up_to(n.highest_order).at(place) for m, n in NETWORKS.items()}
    return _rows({method: node for method, node in nodes.items() if node is not None})
