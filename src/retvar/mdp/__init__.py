"""Finite MDPs, policies, and edges weighted by a policy."""

from retvar.mdp.edges import END, Edge, Edges
from retvar.mdp.model import MDP
from retvar.mdp.policy import Policy
from retvar.mdp.weighted_edges import WeightedEdges, state_values, weigh_edges

__all__ = ["END", "MDP", "Edge", "Edges", "Policy", "WeightedEdges", "state_values", "weigh_edges"]
