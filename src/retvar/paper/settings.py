"""The settings of an experiment as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from retvar.paper.declarations import Experiment, Simulation
from retvar.support.format import count, joined, listed, short_number
from retvar.td.initial_values import InitialValues
from retvar.td.networks import label_of
from retvar.td.step_sizes import StepSize

MAX_VALUES = 16  # longer lists are shortened
OF_LEARNERS = {
    "alpha": "α",
    "alpha_bar": "ᾱ",
    "alpha_mean": "α of the mean",
    "kappa": "κ",
    "kappa_bar": "κ̄",
    "estimand": "estimand",
    "value": "first value",
    "learn_value": "value is learned",
}


def describe_settings(experiment: Experiment) -> list[tuple[str, str]]:
    """Settings as pairs of a label and a text; texts of several simulations are joined."""
    pairs: dict[str, list[str]] = {}
    for simulation in experiment.simulations:
        for label, text in _settings(simulation).items():
            if text not in pairs.setdefault(label, []):
                pairs[label].append(text)
    several = len(experiment.simulations)
    found = [("simulations", str(several))] if several > 1 else []
    joins = ((label, " · ".join(filter(None, texts))) for label, texts in pairs.items())
    return found + [(label, text) for label, text in joins if text]


def _settings(simulation: Simulation) -> dict[str, str]:
    mdp, learners = simulation.mdp, list(simulation.learners.values())
    methods = joined(dict.fromkeys(label_of(d.method) for d in learners))
    several = f"{len(learners)}: " if len(learners) > len({d.method for d in learners}) else ""
    target = simulation.target or next(iter(mdp.policies), "")
    behaviour = simulation.behaviour or target
    policies = target if behaviour == target else f"target {target}, behaviour {behaviour}"
    gamma = np.unique(mdp.edges.gamma) if mdp.gamma is None else mdp.gamma[~np.isnan(mdp.gamma)]
    features = [f"{name}: {np.shape(x)[1]}" for name, x in simulation.features.items()]
    ((unit, length),) = simulation.length.items()
    return {
        "domain": f"{mdp.name or 'MDP'} ({count(mdp.n_states, 'state')})",
        "γ": _text(gamma),
        "λ": _text(mdp.lam),
        "policy": policies if mdp.n_actions > 1 else "",
        "learners": several + methods,
        **{text: _all(getattr(d, n, None) for d in learners) for n, text in OF_LEARNERS.items()},
        "numbers of features": joined(features),
        "length": f"{length:,} {unit}, {count(simulation.runs, 'run')}",
    }


def _all(given: Iterable[Any]) -> str:
    """The different values of a setting, without those that are not set."""
    return listed(dict.fromkeys(_text(x) for x in given if x is not None), MAX_VALUES)


def _text(given: Any) -> str:
    """A rule with its numbers, words, one number for all states, or one for each."""
    if isinstance(given, StepSize | InitialValues):
        numbers = {name: x for name, x in vars(given).items() if np.ndim(x) == 0}
        settings = ", ".join(f"{name} {x:g}" for name, x in numbers.items())
        return f"{type(given).__name__} ({settings})"
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, str):
        return given.replace("_", " ")
    table = np.ravel(given).astype(float)
    if table.size and (table == table[0]).all():
        return _number(float(table[0]))
    if table.size > MAX_VALUES:
        return f"{_number(table.min())} to {_number(table.max())}"
    return f"({', '.join(_number(float(x)) for x in table)})"


def _number(value: float) -> str:
    """A number with few digits; small powers of two are written as such."""
    exponent = np.log2(value) if value > 0 else 0.0
    if exponent == round(exponent) and exponent < -3:
        return "2" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return short_number(value)
