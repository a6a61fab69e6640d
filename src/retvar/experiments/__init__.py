"""Experiments: one declaration per figure or table, with its claims."""

from retvar.experiments.definitions import Claim, Experiment, Finding, Simulation
from retvar.experiments.paper import all_experiments
from retvar.experiments.results import SimulationCache

__all__ = ["Claim", "Experiment", "Finding", "Simulation", "SimulationCache", "all_experiments"]
