"""Set-up: the pins hold for every Python that retvar runs on, and make says what is missing."""

import importlib.metadata
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.oracle import SOAK

ROOT = Path(__file__).parent.parent
PYTHONS = ["3.11.0", "3.11.2", "3.12.0", "3.13.0"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def wanted(*extras):
    """What the project asks for by name, and its build."""
    project = PROJECT["project"]
    groups = [project["optional-dependencies"][e] for e in extras]
    build = [*PROJECT["build-system"]["requires"], "editables"]
    return [*build, *project["dependencies"], *(line for group in groups for line in group)]


def pins(path=ROOT / "constraints.txt"):
    lines = (line.split("==") for line in path.read_text(encoding="utf-8").split())
    return {canonicalize_name(name): version for name, version in lines}


def installed():
    """Name → version, Requires-Python, requirements; of all that is installed here."""
    return {
        canonicalize_name(d.name): (
            d.version,
            d.metadata.get("Requires-Python", ""),
            d.requires or [],
        )
        for d in importlib.metadata.distributions()
    }


def faults(pinned, known, python, lines):
    """What is wrong with pins on a Python: from the metadata of packages, without a network."""
    marks = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    found, seen, queue = [], set(), [(Requirement(line), "retvar") for line in lines]
    while queue:
        need, asks = queue.pop()
        name = canonicalize_name(need.name)
        if name not in pinned:
            found.append(f"{name}, which {asks} needs, is not pinned")
        elif not need.specifier.contains(pinned[name], prereleases=True):
            found.append(f"{asks} needs {need}, pinned is {pinned[name]}")
        if (name, *need.extras) in seen or name not in known:
            continue
        seen.add((name, *need.extras))
        version, pythons, more = known[name]
        if version.partition("+")[0] != pinned.get(name, version.partition("+")[0]):  # any build
            found.append(f"{name} {version} is installed, pinned is {pinned[name]}")
        if not SpecifierSet(pythons).contains(python):
            found.append(f"{name} {version} needs Python {pythons}, not {python}")
        for requirement in map(Requirement, more or []):
            if requirement.marker is None or any(
                requirement.marker.evaluate({**marks, "extra": extra})
                for extra in ("", *need.extras)
            ):
                queue.append((requirement, name))
    return sorted(set(found))


@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_is_pinned_and_every_pin_admits_every_python(python):
    lines = wanted("dev", "docs", "data", "cluster")
    assert faults(pins(), installed(), python, lines) == []


def test_a_pin_that_wants_a_newer_python_is_found():
    """Soupsieve 4.1 wants 3.11.5: the set-up failed on Debian's 3.11.2."""
    known = installed()
    known["soupsieve"] = ("4.1", ">=3.11.5", [])
    pinned = pins() | {"soupsieve": "4.1"}
    told = {p: faults(pinned, known, p, wanted("docs")) for p in PYTHONS}
    assert told["3.11.0"] == ["soupsieve 4.1 needs Python >=3.11.5, not 3.11.0"]
    assert [p for p in PYTHONS if told[p]] == ["3.11.0", "3.11.2"]


def test_a_package_that_is_not_pinned_is_found():
    pinned = pins()
    del pinned["soupsieve"], pinned["numpy"]
    told = faults(pinned, installed(), "3.12.0", wanted("docs"))
    assert "soupsieve, which beautifulsoup4 needs, is not pinned" in told
    assert "numpy, which retvar needs, is not pinned" in told
    pinned = pins() | {"numpy": "1.0"}
    assert "retvar needs numpy>=2.0, pinned is 1.0" in faults(
        pinned, installed(), "3.12.0", wanted()
    )


def test_zipp_and_others_that_only_some_pythons_need_are_pinned():
    """Dask wants importlib_metadata before 3.12: seen from any Python that runs this test."""
    pinned = pins()
    del pinned["importlib-metadata"]
    told = {p: faults(pinned, installed(), p, wanted("cluster")) for p in PYTHONS}
    assert [p for p in PYTHONS if told[p]] == ["3.11.0", "3.11.2"]


# ---- the same by pip, which asks the index ----


def resolved(constraints, lines, python=None, interpreter=sys.executable):
    """Pip's answer: what it would install, or what it says; None where it reaches no index."""
    command = [interpreter, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--disable-pip-version-check", "--retries", "1", "--report", "-"]
    command += ["--only-binary=:all:", "-c", str(constraints)]
    if python is not None:
        command += ["--python-version", python, "--target", "nowhere"]
    done = subprocess.run([*command, *lines], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr
    install = json.loads(done.stdout[done.stdout.index("{") :])["install"]
    found = (i["metadata"] for i in install)
    return {canonicalize_name(m["name"]): m["version"] for m in found}


def has_index():
    one = f"iniconfig=={pins()['iniconfig']}"
    return not isinstance(resolved(os.devnull, [one]), str)


def test_pip_finds_the_pins_of_the_docs_for_the_oldest_python_and_not_the_one_that_failed(tmp_path):
    if not has_index():
        pytest.skip("pip reaches no index")
    docs = PROJECT["project"]["optional-dependencies"]["docs"]
    found = resolved(ROOT / "constraints.txt", docs, "3.11.0")
    assert isinstance(found, dict), found
    assert found == {name: version for name, version in pins().items() if name in found}
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    copy = tmp_path / "constraints.txt"
    copy.write_text(re.sub(r"(?m)^soupsieve==.*$", "soupsieve==4.1", text), encoding="utf-8")
    refused = resolved(copy, docs, "3.11.0")
    assert isinstance(refused, str)
    assert re.search(r"soupsieve|conflicting dependencies", refused)  # pip's versions differ


def interpreters():
    """Pythons at hand: what runs under the usual names; pyenv's names often do not."""
    found = {}
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        for folder in os.get_exec_path():
            path = shutil.which(name, path=folder)
            if path is None:
                continue
            script = "import sys, ensurepip; print('%d.%d.%d' % sys.version_info[:3])"
            done = subprocess.run([path, "-c", script], capture_output=True, text=True, check=False)
            if done.returncode == 0 and tuple(map(int, done.stdout.split("."))) >= (3, 11):
                found.setdefault(done.stdout.strip(), path)
    return found


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="run by make soak")
def test_pip_resolves_the_constraints_with_each_python_at_hand(tmp_path):
    """About 20 s for each; with its own markers, which `--python-version` leaves out."""
    if not has_index():
        pytest.skip("pip reaches no index")
    lines = wanted("dev", "docs", "data", "cluster", "bench")
    answers = {p: resolved(ROOT / "constraints.txt", lines, p) for p in PYTHONS}
    for version, path in interpreters().items():
        subprocess.run([path, "-m", "venv", tmp_path / version], check=True)
        python = str(tmp_path / version / "bin" / "python")
        answers[version] = resolved(ROOT / "constraints.txt", lines, interpreter=python)
    for version, found in answers.items():
        assert isinstance(found, dict), (version, found)
        unpinned = {name: v for name, v in found.items() if pins().get(name) != v}
        assert unpinned == {}, version


# ---- make ----


def made(folder, *arguments, **variables):
    """`make` in a folder of its own, with the set-up of this one; uv is not looked for."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tools/venv.sh"):
        if not (folder / name).exists():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    of_make = {"MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "PYTHON", "UV"}  # around this
    settings = {n: x for n, x in os.environ.items() if n not in of_make}
    return subprocess.run(
        ["make", *arguments, *(f"{n}={x}" for n, x in ({"UV": ""} | variables).items())],
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )


def fake(path, version, *, lacks="nothing"):
    """A Python of another version, or without a module, played by this one."""
    path.write_text(
        f"#!{sys.executable}\n"
        "import collections, sys\n"
        f"sys.version_info = {version!r}\n"
        f"sys.modules[{lacks!r}] = None\n"
        "exec(sys.argv[2])\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
@pytest.mark.parametrize("target", ["reproduce", "test", "test-deep", "setup", "bench"])
def test_make_says_in_one_line_what_is_wrong_with_a_python(tmp_path, target):
    bare = tmp_path / "bare"
    bare.mkdir()
    for python, told in (
        (fake(tmp_path / "old", (3, 10, 13)), "needs Python 3.11 or newer"),
        ("no-such-python", "no-such-python does not run; retvar needs Python 3.11 or newer"),
        (fake(tmp_path / "a", (3, 12, 1), lacks="ensurepip"), "apt install python3-venv"),
    ):
        done = made(bare, target, PYTHON=python)
        assert done.returncode == 2
        (line,) = (done.stdout + done.stderr).splitlines()
        assert told in line
        assert not (bare / ".venv").exists()
    assert "3.10.13" in made(bare, target, PYTHON=str(tmp_path / "old")).stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
def test_an_environment_is_kept_unless_another_python_is_asked_for(tmp_path):
    assert made(tmp_path, ".venv/made", PYTHON=sys.executable).returncode == 0
    stamp, mark = tmp_path / ".venv" / "made", tmp_path / ".venv" / "mark"
    mark.touch()
    when = stamp.stat().st_mtime_ns
    for variables in (
        {},
        {"PYTHON": sys.executable},
        {"PYTHON": str(tmp_path / ".venv/bin/python")},
    ):
        done = made(tmp_path, ".venv/made", **variables)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert mark.exists()
    assert stamp.stat().st_mtime_ns == when
    (tmp_path / ".venv/bin/python").unlink()  # what it was made with has gone
    done = made(tmp_path, ".venv/made", PYTHON=sys.executable)
    assert "is rebuilt" in done.stdout
    assert not mark.exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
def test_the_main_job_installs_no_extras_and_all_stamps_follow_the_pins(tmp_path):
    (tmp_path / "src").mkdir()

    def installs(*targets):
        done = made(tmp_path, *targets, PYTHON=sys.executable, INSTALL="echo @pip")
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith("@pip")]

    assert ".[" not in made(tmp_path, "-n", "reproduce", PYTHON=sys.executable).stdout
    main = ["@pip hatchling editables", "@pip --no-build-isolation -e ."]
    more = {
        "dev": "@pip --no-build-isolation -e .[dev,docs,data,cluster]",
        "bench": "@pip --no-build-isolation -e .[bench,data,cluster]",
        "deep": "@pip --no-build-isolation -e .[dev,data,sb3]",
        "browser": "@pip --no-build-isolation -e .[dev,lab,browser]",
    }
    assert installs(".venv/ready-main") == main
    assert installs(".venv/ready-dev") == [more["dev"]]
    assert installs(".venv/ready-bench", ".venv/ready-dev") == [more["bench"]]
    assert installs(".venv/ready-bench", ".venv/ready-dev") == []
    assert installs(".venv/ready-deep") == [more["deep"]]
    assert installs(".venv/ready-browser") == [more["browser"]]
    for name in ("pyproject.toml", "constraints.txt"):
        os.utime(tmp_path / name)
        stamps = (f".venv/ready-{each}" for each in more)
        assert installs(*stamps) == [*main, *more.values()], name


@pytest.mark.parametrize("script", ["deep", "browser"])
@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("ERROR: No matching distribution found for torch==2.13.0", 0),
        ("  Because torch was not found in the package registry and …", 0),
        ("OSError: [Errno 28] No space left on device", 0),
        ("ERROR: Cannot install torch and numpy==2.4.6: conflicting dependencies", 1),
    ],
)
def test_packages_that_no_index_has_are_no_failure_of_tests_with_extras(
    tmp_path, said, status, script
):
    """One line says so; a conflict of pins is a failure, and so is a failing test."""
    make = tmp_path / "make"
    make.write_text(f"#!/bin/sh\necho 'installing'\necho '{said}' >&2\nexit 2\n")
    make.chmod(0o755)
    words = ["sh", ROOT / "tools" / f"{script}.sh", make, tmp_path]
    chromium = tmp_path / "chromium"
    chromium.write_text("#!/bin/sh\n")
    chromium.chmod(0o755)
    paths = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = partial(subprocess.run, words, capture_output=True, text=True, check=False, env=paths)
    done = run()
    assert (done.returncode, done.stdout) == (status, "")
    assert said.strip() in done.stderr
    assert len(done.stderr.splitlines()) == (1 if status == 0 else 2)
    make.write_text("#!/bin/sh\nexit 0\n")
    runner = tmp_path / "pytest"
    runner.write_text("#!/bin/sh\necho '1 failed in 0.1s'\nexit 1\n")
    runner.chmod(0o755)
    done = run()
    assert (done.returncode, done.stdout) == (1, "1 failed in 0.1s\n")


def test_without_a_browser_one_line_says_so(tmp_path):
    words = [shutil.which("sh"), ROOT / "tools" / "browser.sh", "make", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("browser: not run, since there is no Chromium on the PATH")
    assert len(done.stderr.splitlines()) == 1
