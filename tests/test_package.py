"""The package: pins for every Python, the wheel, the public names and their reference."""

import importlib.metadata
import inspect
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import retvar as rv

ROOT = Path(__file__).parent.parent
PYTHONS = ["3.11.0", "3.11.2", "3.12.0", "3.13.0"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PUBLIC = [name for name in rv.__all__ if not inspect.ismodule(getattr(rv, name))]
MODULES = [name for name in rv.__all__ if inspect.ismodule(getattr(rv, name))]


# ------------------------------------------------------------------------ pins


def wanted(*extras):
    """What the project asks for by name, and its build."""
    project = PROJECT["project"]
    groups = [project["optional-dependencies"][e] for e in extras]
    build = [*PROJECT["build-system"]["requires"], "editables"]
    return [*build, *project["dependencies"], *(line for group in groups for line in group)]


def pins():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in text.split())
    return {canonicalize_name(a): b for a, b in (line.split("==") for line in text.split())}


def installed():
    """Name → version, Requires-Python, requirements; of all that is installed here."""
    return {
        canonicalize_name(d.name): (d.version, d.metadata.get("Requires-Python", ""), d.requires)
        for d in importlib.metadata.distributions()
    }


def faults(python, lines):
    """What is wrong with the pins on a Python: from the metadata of packages, without a network."""
    marks = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    known, pinned, found, seen = installed(), pins(), set(), set()
    queue = [(Requirement(line), "retvar") for line in lines]
    while queue:
        need, asks = queue.pop()
        name = canonicalize_name(need.name)
        if name not in pinned or not need.specifier.contains(pinned[name], prereleases=True):
            found.add(f"{asks} needs {need}, pinned is {pinned.get(name)}")
        if (name, *need.extras) in seen or name not in known:
            continue
        seen.add((name, *need.extras))
        version, pythons, more = known[name]
        if not SpecifierSet(pythons).contains(python):
            found.add(f"{name} {version} needs Python {pythons}, not {python}")
        queue += [
            (each, name)
            for each in map(Requirement, more or [])
            if each.marker is None
            or any(each.marker.evaluate({**marks, "extra": x}) for x in ("", *need.extras))
        ]
    return found


@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_is_pinned_and_every_pin_admits_every_python(python):
    assert faults(python, wanted("dev", "docs", "data", "cluster")) == set()


# ------------------------------------------------------------------------ what is shipped


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(rv.__version__)}$", citation, re.MULTILINE)
    assert rv.__version__ in changes or "[Unreleased]" in changes


def test_the_wheel_builds_installs_and_carries_its_types(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "retvar/py.typed" in names
    assert not [name for name in names if name.startswith("tests")]
    target = tmp_path / "installed"
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([sys.executable, *install, target, wheel], check=True, capture_output=True)
    script = "import retvar; print(retvar.__file__); print(retvar.solve(retvar.domains.chain()))"
    out = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(target)}, cwd=tmp_path, check=True,
        capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert out.startswith(str(target))
    assert "2.99754" in out


# ------------------------------------------------------------------------ public names


def has_example(thing):
    members = vars(thing).values() if inspect.isclass(thing) else ()
    return any(">>>" in (inspect.getdoc(each) or "") for each in (thing, *members))


def reference():
    """What docs/reference.md documents; a module without a list of members with all of them."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    found, whole, name = set(), set(), ""
    for line in text.splitlines():
        if directive := re.match(r"\.\. auto\w+:: (retvar[\w.]*)", line):
            name = directive[1]
            found.add(name)
        elif members := re.match(r"   :members:(.*)", line):
            found |= {f"{name}.{each.strip()}" for each in members[1].split(",")}
            whole |= {name} if not members[1].strip() else set()
    return found, whole


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_in_the_reference_and_has_an_example(name):
    assert f"retvar.{name}" in reference()[0]
    thing = getattr(rv, name)
    if callable(thing) and not (inspect.isclass(thing) and issubclass(thing, Exception)):
        assert has_example(thing)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_a_public_module_is_in_the_reference_and_has_an_example(module):
    if module == "deep":
        pytest.importorskip("torch", reason="torch: make test-deep")
    loaded = getattr(rv, module)
    found, whole = reference()
    for name in loaded.__all__:
        if loaded.__name__ not in whole and name not in rv.__all__:
            assert f"{loaded.__name__}.{name}" in found
        if callable(getattr(loaded, name)):
            assert has_example(getattr(loaded, name)) or has_example(loaded), name


def test_unknown_attributes_raise_an_attribute_error():
    with pytest.raises(AttributeError, match="sovle"):
        _ = rv.sovle
    assert set(rv.__all__) <= set(dir(rv))
