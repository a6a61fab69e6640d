"""The MDP, its policies, and the edges as a policy walks them."""

from retvar.mdp.edges import Edges
from retvar.mdp.flow import Flow, ask, state_values
from retvar.mdp.model import MDP
from retvar.mdp.policy import Policy
from retvar.mdp.rows import END, Edge

__all__ = ["END", "MDP", "Edge", "Edges", "Flow", "Policy", "ask", "state_values"]
