"""retvar: value and variance of returns in reinforcement learning.

>>> import retvar as rv
>>> truth = rv.solve(rv.domains.complex_mdp())
>>> truth.std.round(3)
array([0.376, 1.045, 0.722, 0.487, 0.176])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from retvar.version import __version__ as __version__

if TYPE_CHECKING:  # loaded on first use, so that `retvar --help` is fast
    from retvar import deep as deep
    from retvar import experience as experience
    from retvar import plots as plots
    from retvar import sweep as sweep
    from retvar.estimation.check import Check as Check
    from retvar.estimation.check import check as check
    from retvar.estimation.estimate import Estimate as Estimate
    from retvar.estimation.estimate import estimate as estimate
    from retvar.estimation.estimate import follow as follow
    from retvar.estimation.files import load as load
    from retvar.estimation.rollouts import rollouts as rollouts
    from retvar.exact.attribution import Attribution as Attribution
    from retvar.exact.fixed_points import Estimates as Estimates
    from retvar.exact.fixed_points import FixedPoint as FixedPoint
    from retvar.exact.fixed_points import Node as Node
    from retvar.exact.fixed_points import expected_updates as expected_updates
    from retvar.exact.fixed_points import fixed_point as fixed_point
    from retvar.exact.frontiers import Frontier as Frontier
    from retvar.exact.frontiers import FrontierPoint as FrontierPoint
    from retvar.exact.frontiers import frontier as frontier
    from retvar.exact.gradient import PolicyGradient as PolicyGradient
    from retvar.exact.gradient import policy_gradient as policy_gradient
    from retvar.exact.law import Law as Law
    from retvar.exact.law import law as law
    from retvar.exact.sampling import MonteCarlo as MonteCarlo
    from retvar.exact.sampling import monte_carlo as monte_carlo
    from retvar.exact.several import SeveralReturns as SeveralReturns
    from retvar.exact.solution import Solution as Solution
    from retvar.exact.solution import StateSolution as StateSolution
    from retvar.exact.solution import solve as solve
    from retvar.exact.stationary import stationary_distribution as stationary_distribution
    from retvar.mdp import END as END
    from retvar.mdp import MDP as MDP
    from retvar.mdp import Edge as Edge
    from retvar.mdp import Edges as Edges
    from retvar.mdp import Policy as Policy
    from retvar.mdp import domains as domains
    from retvar.online import OnlineEstimator as OnlineEstimator
    from retvar.online import Transition as Transition
    from retvar.online.actor_critic import ActorCritic as ActorCritic
    from retvar.simulation import Record as Record
    from retvar.simulation import replay as replay
    from retvar.simulation import simulate as simulate
    from retvar.simulation.expected_curves import expected_curve as expected_curve
    from retvar.simulation.expected_curves import resting_error as resting_error
    from retvar.simulation.step_search import best_steps as best_steps
    from retvar.support.errors import ConvergenceError as ConvergenceError
    from retvar.support.errors import DeviceError as DeviceError
    from retvar.support.errors import DivergenceError as DivergenceError
    from retvar.support.errors import InfiniteVarianceError as InfiniteVarianceError
    from retvar.support.errors import InputError as InputError
    from retvar.support.errors import RetvarError as RetvarError
    from retvar.support.errors import SourceError as SourceError
    from retvar.support.errors import ThreadError as ThreadError
    from retvar.support.errors import WriteError as WriteError
    from retvar.td import features as features
    from retvar.td import rules as rules
    from retvar.td import step_sizes as step_sizes
    from retvar.td.initial_values import InitialValues as InitialValues
    from retvar.td.initial_values import Noisy as Noisy
    from retvar.td.initial_values import PerRun as PerRun
    from retvar.td.learners import VTD as VTD
    from retvar.td.learners import Centred as Centred
    from retvar.td.learners import Direct as Direct
    from retvar.td.learners import Learner as Learner
    from retvar.td.learners import grid as grid
    from retvar.td.step_sizes import Adadelta as Adadelta
    from retvar.td.step_sizes import AlphaBound as AlphaBound
    from retvar.td.step_sizes import Averaged as Averaged
    from retvar.td.step_sizes import Constant as Constant
    from retvar.td.step_sizes import Decay as Decay

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
    "retvar.exact.attribution": ["Attribution"],
    "retvar.exact.fixed_points": [
        "Estimates",
        "FixedPoint",
        "Node",
        "expected_updates",
        "fixed_point",
    ],
    "retvar.exact.law": ["Law", "law"],
    "retvar.exact.sampling": ["MonteCarlo", "monte_carlo"],
    "retvar.exact.several": ["SeveralReturns"],
    "retvar.exact.solution": ["Solution", "StateSolution", "solve"],
    "retvar.exact.stationary": ["stationary_distribution"],
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
    "experience": "retvar.experience",
    "features": "retvar.td.features",
    "plots": "retvar.plots",
    "rules": "retvar.td.rules",
    "step_sizes": "retvar.td.step_sizes",
    "sweep": "retvar.sweep",
}

__all__ = [*_MODULES, *_HOME_OF]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'retvar' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
