"""The package: the wheel, the public names and their reference."""

import inspect
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import retvar as rv

ROOT = Path(__file__).parent.parent
MODULES = [name for name in rv.__all__ if inspect.ismodule(getattr(rv, name))]


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


@pytest.mark.parametrize("module", [rv, *MODULES], ids=lambda m: getattr(m, "__name__", m))
def test_every_public_name_is_in_the_reference_and_has_an_example(module):
    if module == "deep":
        pytest.importorskip("torch", reason="torch: make test-deep")
    loaded = getattr(rv, module) if isinstance(module, str) else module
    found, whole = reference()
    for name in {*loaded.__all__} - {*MODULES}:
        thing = getattr(loaded, name)
        if loaded.__name__ not in whole and (loaded is rv or name not in rv.__all__):
            assert f"{loaded.__name__}.{name}" in found
        if callable(thing) and not (inspect.isclass(thing) and issubclass(thing, Exception)):
            assert has_example(thing) or (loaded is not rv and has_example(loaded)), name


def test_unknown_attributes_raise_an_attribute_error():
    with pytest.raises(AttributeError, match="sovle"):
        _ = rv.sovle
    assert set(rv.__all__) <= set(dir(rv))
