"""Shared by all tests."""

from hypothesis import settings

settings.register_profile("retvar", deadline=None, print_blob=True)
settings.load_profile("retvar")
