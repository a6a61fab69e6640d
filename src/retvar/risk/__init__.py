"""Risk of a policy: exact gradients of mean and variance, and the mean–variance frontier."""

from retvar.risk.gradient import PolicyGradient, SoftmaxGradient, policy_gradient

__all__ = ["PolicyGradient", "SoftmaxGradient", "policy_gradient"]
