"""A continuous world whose value and variance are known: linear motion, normal noise."""

from retvar.mdp.linear_gaussian.world import Control, LinearGaussian

__all__ = ["Control", "LinearGaussian"]
