"""Properties of the heart in plain Python: numba's compiler is off, so that any shape is quick.

Tests of these modules that are marked `compiled` run as all others do, and not here.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PLAIN, compiling
from tests.oracle import SOAK

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not compiling(), reason="this is plain Python already")
@pytest.mark.parametrize("group", PLAIN)
def test_in_plain_python(group):
    words = f"-m pytest -q -n {2 * SOAK} -p no:cacheprovider -W ignore::RuntimeWarning"
    modules = [f"tests/test_{name}.py" for name in PLAIN[group]]
    command = [sys.executable, *words.split(), *modules]
    simulator = {"NUMBA_ENABLE_CUDASIM": "1"} if group == "gpu" else {}
    plain = {"NUMBA_DISABLE_JIT": "1", **simulator}
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **plain}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8_000:]
