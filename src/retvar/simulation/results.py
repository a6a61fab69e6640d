"""Accumulate the results of runs, and make a labelled dataset of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from itertools import compress
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retvar import networks
from retvar.engine.blocks import Block
from retvar.engine.learner_setup import Template
from retvar.engine.runner import Batch, Moments, Simulation, bytes_of_a_run
from retvar.errors import InputError
from retvar.learners import Learner
from retvar.mdp import MDP
from retvar.networks import ESTIMATES, NETWORKS, Estimate, rests_on
from retvar.online.higher_moments import shape
from retvar.reading import free_memory
from retvar.simulation.truth import Truth
from retvar.step_sizes import StepSize

if TYPE_CHECKING:
    import xarray

__all__ = ["Accumulator", "Results", "refuse_too_large"]

Array = NDArray[np.float64]
SHARE_OF_MEMORY = 0.8
SUMMED = ("squares", "frozen_squares", "changes")  # also summed over states
ROW = {method: ESTIMATES.index(network.variance) for method, network in NETWORKS.items()}


class Accumulator:
    """Results of the runs of a block: mean and standard deviation, or all runs."""

    def __init__(self, block: Block, simulation: Simulation, keep: str) -> None:
        self.block, self.simulation, self.keep = block, simulation, keep
        self.parts: dict[str, Any] = {}
        self.diverged: dict[str, Array] = {  # moment of divergence or NaN [run, lane]
            method: np.full((simulation.runs if keep == "runs" else 0, block.lanes), np.nan)
            for method in block.columns[0]
        }
        self.counts = {method: np.zeros(block.lanes, dtype=np.int64) for method in self.diverged}
        self.earliest = {method: np.full(block.lanes, np.nan) for method in self.diverged}

    def note_divergence(self, runs: range, diverged_at: Any) -> None:
        """Note in which of the next runs lanes diverged, and when [run, row, lane]."""
        here = slice(runs.start - self.simulation.first, runs.stop - self.simulation.first)
        for method in self.diverged:
            rows = diverged_at[:, rows_beneath(self.block, method)]
            moments = np.where(rows < 0, np.inf, rows).min(axis=1)
            moments[np.isinf(moments)] = np.nan
            self.counts[method] += np.isfinite(moments).sum(axis=0)
            self.earliest[method] = np.fmin(self.earliest[method], np.fmin.reduce(moments, axis=0))
            if self.keep == "runs":
                self.diverged[method][here] = moments

    def put(self, parts: dict[str, Moments]) -> None:
        """Take the statistics of all runs."""
        self.parts = dict(parts)

    def add(self, runs: range, batch: Batch) -> None:
        """Add the next runs."""
        here = slice(runs.start - self.simulation.first, runs.stop - self.simulation.first)
        self.note_divergence(runs, batch.diverged_at)
        parts = batch.parts()
        parts |= {f"{name}_total": sum_in_order(parts[name]) for name in SUMMED}
        for name, part in parts.items():
            if part.size == 0:
                continue
            if self.keep == "runs":
                if name not in self.parts:
                    self.parts[name] = np.empty((self.simulation.runs, *part.shape[1:]))
                self.parts[name][here] = part
            else:
                if name not in self.parts:
                    self.parts[name] = Moments(part.shape[1:])
                self.parts[name].add(part)

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
    states = simulation.stream.first.size
    one = sum(bytes_of_a_run(block, simulation.recording, states) for block in simulation.blocks)
    needed = one * (2 * simulation.runs if keep == "runs" else 5)
    available = free_memory()
    if needed > SHARE_OF_MEMORY * available:
        size, free = f"{needed / 1e9:,.1f} GB", f"{available / 1e9:,.1f} GB are free"
        if keep == "runs":
            raise InputError(
                "keep", f"'runs', {size}", f"{free}; keep='stats' needs {one * 5 / 1e9:,.2g} GB"
            )
        raise InputError("record", size, f"{free}; record fewer points or states")


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """A finished simulation."""

    mdp: MDP
    learners: Mapping[str, Learner]
    simulation: Simulation
    accumulators: list[Accumulator]
    truth: Truth
    moments: NDArray[np.int64]
    attributes: dict[str, Any]

    def dataset(self) -> xarray.Dataset:
        """Return all results as a labelled dataset."""
        import xarray

        rec, unit = (
            self.simulation.recording,
            "step" if self.simulation.recording.by_step else "episode",
        )
        run = ["run"] if self.accumulators[0].keep == "runs" else []
        points, chosen = [*run, "learner", unit, "state"], [*run, "learner", "all"]
        variables: dict[str, Any] = {}

        def add(name: str, part: str, rows: dict[str, int], dims: list[str], scale: float) -> None:
            for suffix, array in self._gather(part, rows, dims, scale).items():
                variables[name + suffix] = (_dims(dims), array)

        methods = {learner.method for learner in self.learners.values()}
        value, by_node = rows_of(networks.VALUE), rows_of(networks.VARIANCE)
        own = {"mean": rows_of(networks.MEAN), "second_moment": rows_of_second_moments()}
        own = {name: rows for name, rows in own.items() if methods & set(rows)}
        highest = max(learner.order for learner in self.learners.values())
        higher = {networks.PLACES[p]: rows_of(p) for p in range(networks.THIRD, highest + 1)}
        own |= higher
        nodes, compared = (
            {"value": value, "variance": ROW, **own}, {"value": value, "variance": ROW, **higher},
        )  # fmt: skip
        for name, rows in nodes.items():
            add(name, "estimates", rows, points, 1.0)
        if rec.shares.size:
            for name, rows in compared.items():
                add(f"{name}_rmse", "rmse", rows, points[:-1], 1.0)
        if rec.steps:
            steps = {"value": value, "variance": by_node, **own}
            steps.pop("second_moment", None)
            for name, rows in steps.items():
                add(f"{name}_step_size", "steps", rows, points, 1.0)
        if rec.change:
            for name, rows in nodes.items():
                add(f"{name}_change", "changes", rows, chosen, 1.0 / rec.points[-1])
                add(
                    f"{name}_change_total", "changes_total", rows, chosen[:-1], 1.0 / rec.points[-1]
                )
        if rec.window:
            for name, rows in compared.items():
                add(f"{name}_window", "sums", rows, chosen, 1.0 / rec.window)
                add(f"{name}_window_mse", "squares", rows, chosen, 1.0 / rec.window)
                total = f"{name}_window_mse_total"
                add(total, "squares_total", rows, chosen[:-1], 1.0 / rec.window)
            if not all(learner.learn_value for learner in self.learners.values()):
                add("variance_window_mse_frozen", "frozen_squares", ROW, chosen, 1.0 / rec.window)
                learned = [learner.learn_value for learner in self.learners.values()]
                for suffix in ("", "_std"):
                    if "variance_window_mse_frozen" + suffix in variables:
                        variables["variance_window_mse_frozen" + suffix][1][..., learned, :] = (
                            np.nan
                        )
        for moment in higher:
            name = networks.SHAPES[moment]
            V, M = variables["variance"][1], variables[moment][1]
            variables[name] = (_dims(points), shape(name, V, M))
        variables |= self.exact | self._divergence(run)
        return xarray.Dataset(variables, self.coords, self.attributes)

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
        sizes = {"run": self.simulation.runs, "learner": len(self.learners)}
        sizes |= {"step": points, "episode": points, "state": states.size, "all": states.size}
        shape, axis = [sizes[dim] for dim in dims], dims.index("learner")
        out = {suffix: np.full(shape, np.nan) for suffix in self.accumulators[0].arrays[part]}
        whole: tuple[Any, ...] = (slice(None),) * axis
        if "step" in dims or "episode" in dims:
            whole += (slice(points),)
        for accumulator, method, numbers in self._learners_of_blocks():
            known = method in rows and rows[method] in accumulator.block.rows
            for suffix, found in accumulator.arrays[part].items() if known else ():
                slot = accumulator.block.rows.index(rows[method])
                piece = np.moveaxis(found[(*whole, slot)], -1, 0)[: len(numbers)]
                piece = piece[..., states] if dims[-1] == "all" else piece
                np.moveaxis(out[suffix], axis, 0)[numbers] = scale * piece
        return out

    def _divergence(self, run: list[str]) -> dict[str, Any]:
        """Return in how many runs each learner diverged, and the first moment."""
        counts = np.zeros(len(self.learners), dtype=np.int64)
        by = np.empty((*([self.simulation.runs] if run else []), counts.size))
        for accumulator, method, numbers in self._learners_of_blocks():
            moments = (accumulator.diverged if run else accumulator.earliest)[method]
            counts[numbers] = accumulator.counts[method][: len(numbers)]
            by[..., numbers] = moments[..., : len(numbers)]
        return {"diverged": ("learner", counts), "diverged_by": ([*run, "learner"], by)}

    def prepare(self) -> None:
        """Make what does not depend on the outcome, while a GPU is at work."""
        _ = self.exact, self.coords

    @cached_property
    def exact(self) -> dict[str, Any]:
        """The exact answers."""
        templates = [setup.template for setup in self.simulation.setups]
        return exact_answers(self.truth, templates, self.simulation.recording.states)

    @cached_property
    def coords(self) -> dict[str, Any]:
        """Learners, moments, states and runs."""
        rec, first = self.simulation.recording, self.simulation.first
        states = [self.mdp.state_name(int(s)) for s in rec.states]
        coords: dict[str, Any] = {
            "learner": list(self.learners),
            "step" if rec.by_step else "episode": self.moments,
            "state": states if self.mdp.state_names else rec.states,
        }
        if self.accumulators[0].keep == "runs":
            coords["run"] = np.arange(first, first + self.simulation.runs)
        return coords | settings_of(list(self.learners.values()))


def exact_answers(truth: Truth, templates: list[Template], at: Any) -> dict[str, Any]:
    """Exact value and variance in some states; the variance for a fixed value, where it is."""
    if not truth.enabled:
        return {}
    found, dims = [truth.of(template) for template in templates], ("learner", "state")
    exact: dict[str, Any] = {
        "true_value": (dims, np.array([value[at] for value, _ in found])),
        "true_variance": (dims, np.array([variance[at] for _, variance in found])),
    }
    for name in truth.higher:
        tables = [truth.moments(template)[name][at] for template in templates]
        exact[f"true_{name}"] = (dims, np.array(tables))
    fixed = [
        not template.learns_value and "value" not in template.initial for template in templates
    ]
    if any(fixed):
        frozen = np.full((len(templates), at.size), np.nan)
        held = truth.frozen(list(compress(templates, fixed)), range(1))
        frozen[fixed] = [table[0, at] for table in held]
        exact["frozen_variance"] = (dims, frozen)
    return exact


def settings_of(learners: list[Learner]) -> dict[str, Any]:
    """Coordinates of learners: their class, the settings that differ, and all settings."""
    coords: dict[str, Any] = {
        "algorithm": ("learner", [type(learner).__name__ for learner in learners])
    }
    for name, column in _varying(learners).items():
        coords[name] = ("learner", column)
    coords["settings"] = ("learner", [json.dumps(_without_tables(d.to_dict())) for d in learners])
    return coords


def rows_of(place: int) -> dict[str, int]:
    """Row of the node at a place, for the methods that have one."""
    nodes = {m: n.up_to(n.highest_order).at(place) for m, n in NETWORKS.items()}
    return {m: ESTIMATES.index(Estimate(node)) for m, node in nodes.items() if node is not None}


def rows_beneath(block: Block, method: str) -> list[int]:
    """Rows of all that the estimates of a method in a block rest on."""
    moments = (ESTIMATES.index(Estimate(node)) for node in NETWORKS[method].moments)
    return [*rests_on(ROW[method]), *(row for row in moments if row in block.rows)]


def rows_of_second_moments() -> dict[str, int]:
    """Row of the node that learns the second moment, for the methods that have one."""
    nodes = {method: network.second_moment for method, network in NETWORKS.items()}
    return {m: ESTIMATES.index(Estimate(node)) for m, node in nodes.items() if node is not None}


def _dims(dims: list[str]) -> list[str]:
    return ["state" if dim == "all" else dim for dim in dims]


def _fields(learners: list[Learner]) -> list[str]:
    kinds = dict.fromkeys(type(d) for d in learners)
    return list(dict.fromkeys(f.name for kind in kinds for f in dataclasses.fields(kind)))


def _varying(learners: list[Learner]) -> dict[str, Any]:
    """Return settings that differ between learners (step sizes always) as columns."""
    columns = {}
    for name in _fields(learners):
        given = [getattr(d, name, None) for d in learners]
        if name == "alpha_bar":
            given = [d.alpha if x is None else x for d, x in zip(learners, given, strict=True)]
        texts = _short_texts(given)
        if len(set(texts)) > 1 or name in ("alpha", "alpha_bar"):
            plain = all(
                x is None or (isinstance(x, Real) and not isinstance(x, bool)) for x in given
            )
            columns["initial_value" if name == "value" else name] = (
                np.array([np.nan if x is None else float(x) for x in given]) if plain else texts
            )
    return columns


def _short_texts(given: list[Any]) -> list[str]:
    """Return settings as short texts; a shared object is formatted once."""
    found = {id(x): x for x in given}
    texts = {key: _short_text(x) for key, x in found.items()}
    return [texts[id(x)] for x in given]


def _short_text(x: Any) -> str:
    """Return a setting as a short text."""
    if isinstance(x, StepSize):
        settings = ", ".join(f"{v:g}" for v in dataclasses.asdict(x).values())
        return f"{type(x).__name__}({settings})"
    if isinstance(x, bool) or x is None or isinstance(x, str):
        return str(x)
    if isinstance(x, Real):
        return f"{float(x):g}"
    plain = x.to_dict() if hasattr(x, "to_dict") else np.asarray(x).tolist()
    if hasattr(x, "uniform"):
        return f"Noisy({x.uniform:g}, {x.normal:g})"
    text = json.dumps(plain)
    return text if len(text) < 40 else f"{text[:24]}…#{sha256(text.encode()).hexdigest()[:6]}"


def labels_of(learners: list[Learner]) -> list[str]:
    """Return unique labels: the class, and the settings that differ.

    >>> import retvar as rv
    >>> labels_of([rv.Direct(alpha=0.1), rv.VTD(alpha=0.1)])
    ['Direct', 'VTD']
    >>> labels_of([rv.Direct(alpha=0.1), rv.Direct(alpha=0.2)])
    ['Direct alpha=0.1', 'Direct alpha=0.2']
    """
    columns = {}
    for name in _fields(learners):
        texts = _short_texts([getattr(d, name, None) for d in learners])
        if len(set(texts)) > 1 and len({type(d) for d in learners if hasattr(d, name)}) == len(
            {type(d) for d in learners}
        ):
            columns[name] = texts
    labels = [
        " ".join([type(d).__name__, *(f"{name}={column[i]}" for name, column in columns.items())])
        for i, d in enumerate(learners)
    ]
    seen: dict[str, int] = {}
    for i, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] > 1:
            labels[i] = f"{label} ({seen[label]})"
    return labels


def _without_tables(plain: Any) -> Any:
    """Return settings without long tables."""
    if isinstance(plain, dict):
        return {name: _without_tables(given) for name, given in plain.items()}
    if isinstance(plain, list) and np.size(plain) > 1_000:
        return f"{np.shape(plain)} numbers"
    return plain
