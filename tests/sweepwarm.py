"""Preloaded by the process that others are forked from: see tests/sweeping.py."""

from tests.sweeping import warm

warm()
