"""Figures: an MDP as a graph, its solution, and how to save them."""

from retvar.plots.answers import solution
from retvar.plots.graph import draw_mdp
from retvar.plots.style import save

__all__ = ["draw_mdp", "save", "solution"]
