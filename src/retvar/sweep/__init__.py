"""Sweeps: many learners on many domains, and what can be said when they are compared."""
