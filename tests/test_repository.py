"""Promises of the repository itself."""

import doctest
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import retvar as rv

ROOT = Path(__file__).parent.parent
PUBLIC = [name for name in rv.__all__ if not inspect.ismodule(getattr(rv, name))]
MODULES = [name for name in rv.__all__ if inspect.ismodule(getattr(rv, name))]


def documented() -> str:
    return "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_in_the_reference_and_has_an_example(name):
    assert re.search(rf"auto\w+:: retvar\.{name}\b", documented())
    thing = getattr(rv, name)
    if callable(thing):
        finder = doctest.DocTestFinder(recurse=inspect.isclass(thing))
        module = sys.modules[thing.__module__]
        assert any(t.examples for t in finder.find(thing, module=module)), f"{name}: no doctest"


@pytest.mark.parametrize("module", MODULES)
def test_every_function_of_a_public_module_has_an_example(module):
    loaded = importlib.import_module(f"retvar.{module}")
    for name in loaded.__all__:
        thing = getattr(loaded, name)
        assert f"retvar.{module}" in documented()
        assert ">>>" in (inspect.getdoc(thing) or ""), f"{module}.{name}: no doctest"


def test_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert project["version"] == rv.__version__
    assert re.search(rf"^version: {re.escape(rv.__version__)}$", citation, re.MULTILINE)
    assert rv.__version__ in changes or "[Unreleased]" in changes


def test_constraints_are_plain_pins_for_every_dependency():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.]+", line) for line in lines)
    pinned = {re.split("==", line)[0].lower().replace("_", "-") for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [d for group in extras.values() for d in group]
    assert {re.split(r"[\[<>=!~ ]", d)[0].lower() for d in wanted} <= pinned


def test_the_wheel_builds_installs_and_carries_its_types(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "retvar/py.typed" in names
    assert not [n for n in names if n.startswith("tests")]
    target = tmp_path / "installed"
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run(
        [sys.executable, *install, str(target), str(wheel)], check=True, capture_output=True
    )
    script = "import retvar; print(retvar.__file__); print(retvar.solve(retvar.domains.chain()))"
    out = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(target)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert out.startswith(str(target))
    assert "2.99754" in out


def test_nothing_tracked_names_a_machine_or_a_registry():
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not files:
        pytest.skip("not a git checkout")
    bad = re.compile(r"(?<![.\w])/(root|home|work)/\w|files\.pythonhosted|pypi\.org")
    for name in files:
        path = ROOT / name
        if (
            path.suffix in {".png", ".pdf", ".safetensors"}
            or not path.is_file()
            or path == Path(__file__)
        ):
            continue
        assert not bad.search(path.read_text(encoding="utf-8")), name


def test_unknown_attributes_are_told_as_python_does():
    with pytest.raises(AttributeError, match="no attribute 'sovle'"):
        _ = rv.sovle
    assert set(rv.__all__) <= set(dir(rv))
