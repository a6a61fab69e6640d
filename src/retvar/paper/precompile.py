"""Compile what the paper's experiments need, on all cores: python -m retvar.paper.precompile."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Iterable
from typing import Any

from retvar.paper.declarations import Simulation
from retvar.paper.experiments import all_experiments
from retvar.simulation.runner import usable_threads


def shortest(simulation: Simulation) -> Simulation:
    """The same simulation with one step, which needs the same compiled code."""
    when: dict[str, Any] = {"at": (1,), "every": None, "points": None, "log": False}
    window = min(simulation.record.window, 1)
    record = dataclasses.replace(simulation.record, **when, window=window)
    steps = None if simulation.steps is None else 1
    episodes = None if simulation.episodes is None else 1
    return dataclasses.replace(simulation, steps=steps, episodes=episodes, runs=1, record=record)


def _compile(simulation: Simulation) -> str:
    simulation.run(0, threads=1)
    return simulation.name


def precompile(simulations: Iterable[Simulation], processes: int | None = None) -> None:
    """Compile the code for these simulations, in parallel processes."""
    unique = {simulation.name: shortest(simulation) for simulation in simulations}
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes or usable_threads()) as pool:
        for _ in pool.imap_unordered(_compile, unique.values(), chunksize=1):
            pass


if __name__ == "__main__":
    precompile(s for e in all_experiments() for s in e.simulations)
