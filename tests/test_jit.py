"""Compiling, from many threads at once."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numba

from retvar.jit import compiled


def test_threads_that_compile_at_once_use_the_right_cache(tmp_path, monkeypatch):
    """Numba takes the folder from a global setting, which each of them changes for a moment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before, patience = numba.config.CACHE_DIR, sys.getswitchinterval()

    def make(_):
        def function(x):
            return x + 1

        return compiled(function)._cache.cache_path

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            folders = set(threads.map(make, range(400)))
    finally:
        sys.setswitchinterval(patience)
    home = before or str(tmp_path)
    assert len(folders) == 1
    assert os.path.dirname(os.path.dirname(folders.pop())) == os.path.join(home, "retvar")
    assert before == numba.config.CACHE_DIR
