"""Compile the code that the paper's experiments need, on all cores.

``python -m retvar.experiments.precompile`` fills the compile cache. Otherwise each combination
of learners is compiled when an experiment first uses it.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import sys
from collections.abc import Iterable

from retvar.engine.runner import usable_threads
from retvar.experiments.definitions import Simulation
from retvar.experiments.paper import all_experiments

__all__ = ["precompile", "shortest"]


def shortest(simulation: Simulation) -> Simulation:
    """The same simulation with one step, which needs the same compiled code.

    >>> import retvar as rv
    >>> mdp, learners = rv.domains.chain(), {"direct": rv.Direct(alpha=0.1)}
    >>> shortest(Simulation("long", mdp, learners, episodes=10_000, runs=100)).runs
    1
    """
    record = dataclasses.replace(
        simulation.record,
        at=(1,),
        every=None,
        points=None,
        log=False,
        window=min(simulation.record.window, 1),
    )
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
    sys.exit(0)
