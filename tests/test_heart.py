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
@pytest.mark.parametrize("module", PLAIN)
def test_in_plain_python(module):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2" if SOAK else "0",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-W", "ignore::RuntimeWarning", f"tests/{module}.py"]
    plain = {"NUMBA_DISABLE_JIT": "1"} | (
        {"NUMBA_ENABLE_CUDASIM": "1"} if module == "test_gpu" else {}
    )
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **plain}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8_000:]
