"""Sweeps: many learners on many domains, computed once, wherever, whatever happens."""

from retvar.sweep.spec import Cut, Domain, Learners, Points, Range, Sweep

__all__ = ["Cut", "Domain", "Learners", "Points", "Range", "Sweep"]
