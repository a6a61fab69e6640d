"""Exact solutions: values, variances, fixed points, distributions and sampled checks."""

from retvar.exact.attribution import Attribution
from retvar.exact.fixed_points import (
    Estimates,
    FixedPoint,
    Node,
    expected_updates,
    fixed_point,
)
from retvar.exact.law import Law, law
from retvar.exact.sampling import MonteCarlo, monte_carlo
from retvar.exact.several import SeveralReturns
from retvar.exact.solution import Solution, StateSolution, solve
from retvar.exact.stationary import stationary_distribution

__all__ = [
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
]
