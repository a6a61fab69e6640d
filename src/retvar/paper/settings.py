"""The settings of an experiment as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from retvar.paper.declarations import Experiment, Simulation
from retvar.support.format import count, joined, listed, short_number
from retvar.td.initial_values import InitialValues
from retvar.td.learners import Learner
from retvar.td.networks import label_of
from retvar.td.step_sizes import StepSize, step_size

MAX_VALUES = 16  # longer lists are shortened


def describe_settings(experiment: Experiment) -> list[tuple[str, str]]:
    """Settings as pairs of a label and a text; texts of several simulations are joined."""
    pairs: dict[str, list[str]] = {}
    for simulation in experiment.simulations:
        for label, text in _settings(simulation).items():
            if text not in pairs.setdefault(label, []):
                pairs[label].append(text)
    several = len(experiment.simulations)
    found = [("simulations", str(several))] if several > 1 else []
    return found + [(label, " · ".join(texts)) for label, texts in pairs.items() if any(texts)]


def _settings(simulation: Simulation) -> dict[str, str]:
    mdp, learners = simulation.mdp, list(simulation.learners.values())
    unit = "steps" if simulation.steps is not None else "episodes"
    length = simulation.steps if simulation.steps is not None else simulation.episodes
    methods = joined(dict.fromkeys(label_of(d.method) for d in learners))
    several = f"{len(learners)}: " if len(learners) > len({d.method for d in learners}) else ""
    return {
        "domain": f"{mdp.name or 'MDP'} ({count(mdp.n_states, 'state')})",
        "γ": _discounts(simulation),
        "λ": _table(mdp.lam),
        "policy": _policies(simulation),
        "learners": several + methods,
        "step sizes": _step_sizes(learners),
        "traces": _traces(learners),
        "estimand": joined(dict.fromkeys(d.estimand.replace("_", " ") for d in learners)),
        "value": _value(learners),
        "features": _features(simulation),
        "length": f"{length:,} {unit}, {count(simulation.runs, 'run')}",
    }


def _policies(simulation: Simulation) -> str:
    if simulation.mdp.n_actions == 1:
        return ""
    target = simulation.target or next(iter(simulation.mdp.policies), "")
    behaviour = simulation.behaviour or target
    return target if behaviour == target else f"target {target}, behaviour {behaviour}"


def _discounts(simulation: Simulation) -> str:
    """γ by arrival state; transitions that end an episode are left out."""
    edges = simulation.mdp.edges
    inside = edges.next_state >= 0
    arriving = [np.unique(edges.gamma[inside & (edges.next_state == s)])
                for s in range(simulation.mdp.n_states)]  # fmt: skip
    known = [values for values in arriving if values.size]
    if any(values.size > 1 for values in known):
        return f"of each transition, {_range(edges.gamma)}"
    return _table([float(values[0]) for values in known])


def _table(values: Any) -> str:
    """One number for all states, or one for each."""
    table = np.asarray(values, dtype=float).ravel()
    if table.size and (table == table[0]).all():
        return short_number(float(table[0]))
    if table.size <= MAX_VALUES:
        return ", ".join(short_number(float(x)) for x in table) + " (by state)"
    return f"{_range(table)} (by state)"


def _range(values: Any) -> str:
    return f"{short_number(float(np.min(values)))} to {short_number(float(np.max(values)))}"


def _step_sizes(learners: Sequence[Learner]) -> str:
    parts = [
        ("α", [d.alpha for d in learners]),
        ("ᾱ", [d.alpha if d.alpha_bar is None else d.alpha_bar for d in learners]),
        ("α of the mean", [m for d in learners if (m := getattr(d, "alpha_mean", None))]),
    ]
    rules = [(name, _one_or_set(map(_step_size, values))) for name, values in parts if values]
    if len({text for _, text in rules}) == 1 and not rules[0][1][0].isdigit():
        return rules[0][1]
    return ", ".join(
        f"{name} {'∈' if text.startswith('{') else '='} {text}" for name, text in rules
    )


def _step_size(value: float | StepSize) -> str:
    rule = step_size("alpha", value)
    if type(rule).__name__ == "Constant":
        return _power(rule.parameters()[0])
    settings = ", ".join(f"{name} {value:g}" for name, value in vars(rule).items())
    return f"{type(rule).__name__} ({settings})"


def _power(value: float) -> str:
    """A constant step size; small powers of two are written as such."""
    exponent = np.log2(value) if value > 0 else 0.0
    if exponent == round(exponent) and exponent < -3:
        return "2" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return short_number(value)


def _one_or_set(texts: Iterable[str]) -> str:
    unique = list(dict.fromkeys(texts))
    return unique[0] if len(unique) == 1 else "{" + listed(unique, MAX_VALUES) + "}"


def _traces(learners: Sequence[Learner]) -> str:
    kappa = _one_or_set(_table(d.kappa) for d in learners)
    kappa_bar = _one_or_set(_table(d.kappa_bar) for d in learners)
    if kappa == kappa_bar == "0":
        return "none (κ = κ̄ = 0)"
    return f"κ = {kappa} for the value, κ̄ = {kappa_bar} for the variance"


def _value(learners: Sequence[Learner]) -> str:
    """The initial value, and whether it is learned."""
    frozen = not any(d.learn_value for d in learners)
    values = [d.value for d in learners]
    if any(isinstance(value, InitialValues) for value in values):
        start = "values drawn for each run"
    elif all(np.all(np.asarray(value) == 0) for value in values):
        start = "0"
    else:
        start = _one_or_set(_table(value) for value in values)
    return f"held at {start}" if frozen else f"learned, from {start}"


def _features(simulation: Simulation) -> str:
    if not simulation.features:
        return ""
    sizes = [
        f"{np.shape(table)[1]} for the {name.removesuffix('features').rstrip('_') or 'variance'}"
        for name, table in simulation.features.items()
    ]
    return f"linear: {joined(sizes)}"
