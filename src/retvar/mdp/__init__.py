"""The MDP, its policies, and the edges as a policy walks them."""

from retvar.mdp.flow import Flow, ask, state_values
from retvar.mdp.model import END, MDP, Edge, Edges
from retvar.mdp.policy import Policy

__all__ = ["END", "MDP", "Edge", "Edges", "Flow", "Policy", "ask", "state_values"]
