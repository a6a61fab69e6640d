"""The paper's experiments, so short that plain Python runs them all in seconds."""

import dataclasses

from retvar.paper import all_experiments

TOTAL = 40


def short(simulation):
    record = simulation.record
    if record.at is not None:
        record = dataclasses.replace(record, at=[TOTAL - 10, TOTAL])
    if record.window:
        record = dataclasses.replace(record, window=10)
    length = dict.fromkeys(simulation.length, TOTAL)
    return dataclasses.replace(simulation, record=record, **length)


def shrunk(experiment):
    simulations = tuple(short(simulation) for simulation in experiment.simulations)
    return dataclasses.replace(experiment, simulations=simulations)


EXPERIMENTS = [shrunk(experiment) for experiment in all_experiments()]
