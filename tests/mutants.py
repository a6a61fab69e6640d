"""45 classic bugs of TD code, inserted one at a time, each with a test that must then fail.

    python tests/mutants.py              all of them
    python tests/mutants.py NAME …       these

A bug is an exact replacement of text in a scratch copy of the package, which runs as plain Python;
tests/mutants.txt lists them.
The exit status is 1 if one survives or crashes, or if the text that it replaces no longer exists.
docs/bugs.md says what each does to the numbers.
"""

# ruff: noqa: T201
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Bug(NamedTuple):
    """A bug: where, what text becomes what, and the test that must fail."""

    name: str
    file: str  # below src/retvar
    old: str
    new: str
    test: str  # below tests/


def read_bugs() -> list[Bug]:
    """The bugs in mutants.txt: ``# name | file | test``, then lines with − and + as in a diff."""
    found = []
    for part in (ROOT / "tests/mutants.txt").read_text("utf-8").removeprefix("# ").split("\n# "):
        heading, *lines = part.rstrip("\n").split("\n")
        name, file, test = heading.split(" | ")
        old, new = ("\n".join(x[1:] for x in lines if x[0] == sign) for sign in "-+")
        found.append(Bug(name, file, old, new, test))
    return found


BUGS = read_bugs()


def stale() -> list[str]:
    """Bugs whose text is not found exactly once any more.

    >>> stale()
    []
    """
    text = {bug.file: (ROOT / "src/retvar" / bug.file).read_text("utf-8") for bug in BUGS}
    return [bug.name for bug in BUGS if text[bug.file].count(bug.old) != 1]


def tested(folder: Path, test: str) -> tuple[int, str]:
    """Exit status and output of a test in a scratch copy."""
    paths = f"{folder / 'src'}{os.pathsep}{folder}"
    settings = {**os.environ, "PYTHONPATH": paths, "NUMBA_DISABLE_JIT": "1", "COLUMNS": "500"}
    words = ["-q", "-x", "--tb=short", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, f"tests/{test}"],
        cwd=folder, env=settings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def verdict(bug: Bug, folder: Path) -> str:
    """Whether a test notices a bug; an exception other than a failed assertion does not count."""
    path = folder / "src/retvar" / bug.file
    right = path.read_text("utf-8")
    path.write_text(right.replace(bug.old, bug.new), "utf-8")
    status, output = tested(folder, bug.test)
    path.write_text(right, "utf-8")
    asserted = re.search(r"^FAILED \S.*? - (assert|AssertionError|Failed: DID NOT)", output, re.M)
    return "SURVIVES" if status == 0 else "caught" if asserted else f"CRASHES\n{output[-800:]}"


def main(*names: str) -> int:
    """Insert bugs and run their tests."""
    chosen = [bug for bug in BUGS if not names or bug.name in names]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.pyc"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        found = {}
        for bug in chosen:
            found[bug.name] = "TEXT NOT FOUND" if bug.name in stale() else verdict(bug, folder)
            print(f"{bug.name:34} {found[bug.name]}", flush=True)
        for test in sorted({bug.test for bug in chosen}):
            if tested(folder, test)[0]:
                found[test] = print(f"{test} fails without any bug")
    caught = [said == "caught" for said in found.values()]
    print(f"{sum(caught)} of {len(chosen)} caught")
    return int(not all(caught))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
