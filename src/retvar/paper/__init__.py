"""The paper, reproduced: experiments, claims that can fail, and a report of both."""

from retvar.paper.declarations import Claim, Experiment, Finding, Simulation
from retvar.paper.experiments import all_experiments
from retvar.paper.outcome import Outcome, Reproduction
from retvar.paper.reproduce import SimulationCache, reproduce
from retvar.paper.selection import load_experiments, select

__all__ = [
    "Claim", "Experiment", "Finding", "Outcome", "Reproduction", "Simulation",
    "SimulationCache", "all_experiments", "load_experiments", "reproduce", "select",
]  # fmt: skip
