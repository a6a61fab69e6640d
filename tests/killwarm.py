"""Preloaded by the server that forks the processes of `tests.killing`."""

from tests import killing

killing.warm()
