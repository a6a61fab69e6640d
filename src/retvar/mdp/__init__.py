"""The MDP, its policies, and the edges as a policy walks them."""

from retvar.mdp.edges import Edges
from retvar.mdp.model import MDP
from retvar.mdp.parsing import END, Edge
from retvar.mdp.policy import Policy
from retvar.mdp.weighted_edges import WeightedEdges, ask, state_values

__all__ = ["END", "MDP", "Edge", "Edges", "Policy", "WeightedEdges", "ask", "state_values"]
