"""Estimates from experience: value ± spread of every state, and how sure that is."""
