"""Preloaded by the fork server; see tests/sweeping.py."""

from tests.sweeping import warm

warm()
