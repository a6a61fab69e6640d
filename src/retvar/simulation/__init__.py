"""Simulations: an MDP × learners × runs → a labelled dataset."""

from retvar.simulation.record import Record
from retvar.simulation.run import replay, simulate

__all__ = ["Record", "replay", "simulate"]
