"""retvar: value and variance of returns in reinforcement learning.

>>> import retvar as rv
>>> truth = rv.solve(rv.domains.complex_mdp())
>>> truth.std.round(3)
array([0.376, 1.045, 0.722, 0.487, 0.176])
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from retvar.version import __version__ as __version__

if TYPE_CHECKING:  # loaded on first use, so that `retvar --help` is fast
    from retvar import deep, experience, plots, sweep
    from retvar.estimation.check import Check, check
    from retvar.estimation.estimate import Estimate, estimate, follow
    from retvar.estimation.files import load
    from retvar.estimation.rollouts import rollouts
    from retvar.exact import (
        Attribution,
        Estimates,
        FixedPoint,
        Law,
        MonteCarlo,
        Node,
        SeveralReturns,
        Solution,
        StateSolution,
        expected_updates,
        fixed_point,
        law,
        monte_carlo,
        solve,
        stationary_distribution,
    )
    from retvar.exact.frontiers import Frontier, FrontierPoint, frontier
    from retvar.exact.gradient import PolicyGradient, policy_gradient
    from retvar.mdp import END, MDP, Edge, Edges, Policy, domains
    from retvar.online import OnlineEstimator, Transition
    from retvar.online.actor_critic import ActorCritic
    from retvar.simulation import Record, replay, simulate
    from retvar.simulation.expected_curves import expected_curve, resting_error
    from retvar.simulation.step_search import best_steps
    from retvar.support.errors import (
        ConvergenceError,
        DeviceError,
        DivergenceError,
        InfiniteVarianceError,
        InputError,
        RetvarError,
        SourceError,
        ThreadError,
        WriteError,
    )
    from retvar.td import features, rules, step_sizes
    from retvar.td.initial_values import InitialValues, Noisy, PerRun
    from retvar.td.learners import VTD, Centred, Direct, Learner, grid
    from retvar.td.step_sizes import Adadelta, AlphaBound, Averaged, Constant, Decay

_HOMES = {
    "retvar.support.errors": [
        "ConvergenceError",
        "DeviceError",
        "DivergenceError",
        "InfiniteVarianceError",
        "InputError",
        "RetvarError",
        "SourceError",
        "ThreadError",
        "WriteError",
    ],
    "retvar.exact": [
        "Attribution",
        "Estimates",
        "FixedPoint",
        "Law",
        "MonteCarlo",
        "Node",
        "SeveralReturns",
        "Solution",
        "StateSolution",
        "expected_updates",
        "fixed_point",
        "law",
        "monte_carlo",
        "solve",
        "stationary_distribution",
    ],
    "retvar.simulation.expected_curves": ["expected_curve", "resting_error"],
    "retvar.simulation.step_search": ["best_steps"],
    "retvar.estimation.check": ["Check", "check"],
    "retvar.estimation.rollouts": ["rollouts"],
    "retvar.estimation.estimate": ["Estimate", "estimate", "follow"],
    "retvar.estimation.files": ["load"],
    "retvar.td.initial_values": ["InitialValues", "Noisy", "PerRun"],
    "retvar.td.learners": ["VTD", "Centred", "Direct", "Learner", "grid"],
    "retvar.mdp": ["END", "MDP", "Edge", "Edges", "Policy"],
    "retvar.online": ["OnlineEstimator", "Transition"],
    "retvar.exact.frontiers": ["Frontier", "FrontierPoint", "frontier"],
    "retvar.exact.gradient": ["PolicyGradient", "policy_gradient"],
    "retvar.online.actor_critic": ["ActorCritic"],
    "retvar.simulation": ["Record", "replay", "simulate"],
    "retvar.td.step_sizes": ["Adadelta", "AlphaBound", "Averaged", "Constant", "Decay"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {
    "deep": "retvar.deep",
    "domains": "retvar.mdp.domains",
    "estimation": "retvar.estimation",
    "experience": "retvar.experience",
    "features": "retvar.td.features",
    "plots": "retvar.plots",
    "rules": "retvar.td.rules",
    "step_sizes": "retvar.td.step_sizes",
    "sweep": "retvar.sweep",
}

__all__ = [  # noqa: RUF022
    "deep",
    "domains",
    "experience",
    "features",
    "plots",
    "rules",
    "step_sizes",
    "sweep",
    "ActorCritic",
    "Adadelta",
    "AlphaBound",
    "Attribution",
    "Averaged",
    "Centred",
    "Check",
    "Constant",
    "ConvergenceError",
    "Decay",
    "DeviceError",
    "Direct",
    "DivergenceError",
    "END",
    "Edge",
    "Edges",
    "Estimate",
    "Estimates",
    "FixedPoint",
    "Frontier",
    "FrontierPoint",
    "InfiniteVarianceError",
    "InitialValues",
    "InputError",
    "Law",
    "Learner",
    "MDP",
    "MonteCarlo",
    "Node",
    "Noisy",
    "OnlineEstimator",
    "PerRun",
    "Policy",
    "PolicyGradient",
    "Record",
    "RetvarError",
    "SeveralReturns",
    "Solution",
    "SourceError",
    "StateSolution",
    "ThreadError",
    "Transition",
    "VTD",
    "WriteError",
    "best_steps",
    "check",
    "estimate",
    "expected_curve",
    "expected_updates",
    "fixed_point",
    "follow",
    "frontier",
    "grid",
    "law",
    "load",
    "monte_carlo",
    "policy_gradient",
    "replay",
    "resting_error",
    "rollouts",
    "simulate",
    "solve",
    "stationary_distribution",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'retvar' has no attribute {name!r}")


if "gymnasium" in sys.modules:  # registers the environments of retvar
    importlib.import_module("retvar.mdp.linear_gaussian.environment")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
