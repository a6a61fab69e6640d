"""The repository itself: reference, documents, packaging and names of modules."""

import ast
import collections
import doctest
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import retvar as rv
from retvar.networks import NETWORKS

ROOT = Path(__file__).parent.parent
PUBLIC = [name for name in rv.__all__ if not inspect.ismodule(getattr(rv, name))]
MODULES = [name for name in rv.__all__ if inspect.ismodule(getattr(rv, name))]
PACKAGE = ROOT / "src" / "retvar"
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"])
COMMON = {"base", "kernel", "results", "format", "__init__"}  # names that several modules may have


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
    if module == "deep":
        pytest.importorskip("torch", reason="torch: make test-deep")
    for name in loaded.__all__:
        thing = getattr(loaded, name)
        assert f"retvar.{module}" in documented()
        if not isinstance(thing, dict):  # a table of checks
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
            path.suffix in {".png", ".pdf", ".safetensors", ".npz"}
            or not path.is_file()
            or path == Path(__file__)
        ):
            continue
        assert not bad.search(path.read_text(encoding="utf-8")), name


def test_unknown_attributes_raise_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'sovle'"):
        _ = rv.sovle
    assert set(rv.__all__) <= set(dir(rv))


def modules_in(folder: Path) -> set[str]:
    """Names of the modules and packages in a folder, without ``__init__`` and ``__main__``."""
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    return packages | {path.stem for path in folder.glob("*.py") if path.stem[:2] != "__"}


def tables(page: str) -> dict[str, list[str]]:
    """First cells of the tables of modules in a document, by the heading above them."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.strip("#` ")
        elif cell := re.match(r"\| `(\w+)` \|", line):
            found.setdefault(heading, []).append(cell[1])
    return found


def layers() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    (contract,) = settings["importlinter"]["contracts"]
    return [layer.strip("()") for layer in contract["layers"]]


def test_every_module_is_in_the_layers_and_in_the_tables_of_the_documents():
    assert set(layers()) == modules_in(PACKAGE)
    assert tables("docs/architecture.md")["Modules"] == layers()
    assert tables("CONTRIBUTING.md")["Modules"] == layers()


@pytest.mark.parametrize("package", sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py")))
def test_every_module_of_a_package_is_in_the_architecture(package):
    listed = tables("docs/architecture.md")[f"retvar.{package}"]
    assert listed == sorted(modules_in(PACKAGE / package))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_and_files_that_documents_mention_exist(page):
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"(?:src/retvar|tests|docs|examples|benchmarks)/[\w/.-]*\w", text):
        assert (ROOT / path).exists(), path
    for name in sorted(set(re.findall(r"(?<![\w./-])retvar(?:\.\w+)+", text))):
        looked_up(name)


def test_names_in_code_font_in_the_architecture_occur_in_the_code():
    """Anywhere in the code, its tests, settings or other documents, as whole words."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = [p for folder in ("src", "tests") for p in (ROOT / folder).rglob("*.py")]
    files += [p for p in (ROOT / "docs").glob("*.md") if p.name != "architecture.md"]
    files += [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "README.md"]
    known = {word for p in files for word in re.findall(r"\w+", p.read_text(encoding="utf-8"))}
    known |= {part for p in files for part in p.relative_to(ROOT).with_suffix("").parts}
    named = {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", code)}
    assert sorted(named - known) == []


def test_names_that_the_architecture_places_in_a_file_occur_there():
    """“`NAMES` in `src/retvar/experiments/claims.py`”."""
    text = " ".join((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split())
    placed = re.findall(r"`([\w-]+)` in `((?:src|tests)/[\w/]+\.py)`", text)
    assert len(placed) > 3
    for name, path in placed:
        words = re.findall(r"[\w-]+", (ROOT / path).read_text(encoding="utf-8"))
        assert name in words, (name, path)


def looked_up(name: str) -> object:
    """The object with a dotted name: a module, or an attribute of a module, class or dataclass."""
    found, parts = rv, name.split(".")[1:]
    if name.startswith("retvar.deep.") and find_spec("torch") is None:  # make test-deep looks in
        assert parts[1] in rv.deep.__all__ or (PACKAGE / "deep" / f"{parts[1]}.py").exists(), name
        return None
    for i, part in enumerate(parts):
        fields = getattr(found, "__dataclass_fields__", {})
        if inspect.ismodule(found) and not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        assert part in fields or hasattr(found, part), name
        found = fields[part] if part in fields else getattr(found, part)
        path = PACKAGE.joinpath(*parts[: i + 1])
        if not inspect.ismodule(found) and i + 1 < len(parts) and path.with_suffix(".py").exists():
            found = sys.modules[".".join(["retvar", *parts[: i + 1]])]  # hidden by its function
    return found


def test_no_unusual_word_names_two_modules():
    """Modules of ``cli`` are named after their commands, and may repeat a name."""
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "cli"]
    times = collections.Counter(path.stem for path in paths)
    assert {name for name, count in times.items() if count > 1} <= COMMON


def reference() -> dict[str, list[str]]:
    """Objects with a directive in docs/reference.md, and the members that it documents."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "docs" / "reference.md").read_text(encoding="utf-8").splitlines():
        if directive := re.match(r"\.\. (auto\w+):: (retvar[\w.]*)", line):
            name = directive[2]
            found[name] = []
        elif members := re.match(r"   :members:(.*)", line):
            listed = [member.strip() for member in members[1].split(",") if member.strip()]
            found[name] = listed or list(getattr(looked_up(name), "__all__", []))
    return found


def test_the_reference_names_only_what_exists():
    for name, members in reference().items():
        for member in members:
            looked_up(f"{name}.{member}")


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_a_public_module_is_in_the_reference(module):
    found = reference()
    documented = {*found, *(f"{name}.{member}" for name in found for member in found[name])}
    public = {
        f"retvar.{module}.{name}" for name in importlib.import_module(f"retvar.{module}").__all__
    }
    at_the_top = {f"retvar.{module}.{name}" for name in rv.__all__}
    assert public - documented - at_the_top == set()


# ---------------------------------------------------------------------- methods and functions

KNOWS_METHODS = (  # the registry, the descriptions, the closed forms, and what the paper claims
    "networks.py", "learners.py", "__init__.py", "exact/", "experiments/", "report/table1.py",
    "report/summary.py", "plots/paper_figures.py",
)  # fmt: skip
LONG = {  # the options of a command; a cell, which takes what other cells return
    "cli/solve.py": {"solve"},
    "lab/app.py": {"screen"},
}


def syntax_trees():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def test_only_the_registry_knows_a_method_by_name():
    """Everything else reads ``NETWORKS``; docstrings may name what they like."""
    found = []
    for name, tree in syntax_trees():
        if not name.startswith(KNOWS_METHODS):
            for node in ast.walk(tree):
                text = node.value if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and text.lower() in NETWORKS:
                    found.append(f"{name}:{node.lineno} {text}")
    assert not found


def test_functions_are_short_and_take_few_arguments():
    """At most 80 lines of body and 10 parameters; public keywords are documented ones."""
    found = []
    for name, tree in syntax_trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name not in LONG.get(name, ()):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                count = len(node.args.posonlyargs) + len(node.args.args)
                count -= bool(node.args.args) and node.args.args[0].arg in ("self", "cls")
                count += len(node.args.kwonlyargs) if node.name.startswith("_") else 0
                if lines > 80 or count > 10:
                    found.append(f"{name} {node.name}: {lines} lines, {count} parameters")
    assert not found
