"""Risk of a policy: exact gradients of mean and variance, and the mean–variance frontier."""

from retvar.exact.risk.frontiers import Frontier, FrontierPoint, frontier
from retvar.exact.risk.gradient import PolicyGradient, SoftmaxGradient, policy_gradient

__all__ = [
    "Frontier",
    "FrontierPoint",
    "PolicyGradient",
    "SoftmaxGradient",
    "frontier",
    "policy_gradient",
]
