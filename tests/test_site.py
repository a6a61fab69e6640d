"""The pages: nothing from a network, commands and colours in step with the code."""

import importlib.util
import re
from pathlib import Path

import click
import pytest

from retvar.cli import main
from retvar.networks import NETWORKS
from retvar.plots.style import METHODS, css_colours

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def offline():
    return module(ROOT / "tools" / "offline.py")


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://cdn.example/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/a.css">',
        '<img src="HTTP://example/a.png">',
        '<img srcset="a.png 1x, https://example/b.png 2x">',
        '<iframe src="https://example"></iframe>',
        "<style>@import 'https://example/a.css';</style>",
        '<p style="background: url(https://example/a.png)"></p>',
    ],
)
def test_a_page_that_would_fetch_something_is_found(tmp_path, capsys, offline, page):
    (tmp_path / "index.html").write_text(f"<html><body>{page}</body></html>")
    assert offline.main(str(tmp_path)) == 1
    assert "example" in capsys.readouterr().out.lower()


def test_links_and_files_beside_the_page_are_no_fault(tmp_path, offline):
    page = '<script src="_static/a.js"></script><a href="https://example">x</a><p>https://example'
    (tmp_path / "index.html").write_text(page)
    (tmp_path / "a.css").write_text("/* https://example */ a { background: url(data:x) }")
    assert offline.main(str(tmp_path)) == 0


def test_a_font_from_elsewhere_is_found_in_a_style_sheet(tmp_path, offline):
    (tmp_path / "a.css").write_text('@font-face { src: url("https://example/a.woff2") }')
    assert offline.main(str(tmp_path)) == 1


def test_a_folder_without_pages_does_not_pass(tmp_path, offline):
    with pytest.raises(SystemExit, match="no pages"):
        offline.main(str(tmp_path))


def commands(context):
    for name in context.command.list_commands(context):
        inner = click.Context(context.command.get_command(context, name), context, name)
        yield inner
        if isinstance(inner.command, click.Group):
            yield from commands(inner)


def test_every_command_and_option_is_in_the_reference_with_its_help_and_default():
    pytest.importorskip("sphinx")
    made = module(DOCS / "_extensions" / "command_reference.py")
    top = click.Context(main, info_name="retvar")
    pages = {part["names"][0]: part for s in made.subcommands(top) for part in [made.section(s)]}
    for context in commands(top):
        part = pages[" ".join(context.command_path.split()[:2])].astext()
        assert context.command_path in part
        for option in context.command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert max(option.opts, key=len) in part, context.command_path
                words = re.sub(r"\s*\[default:.*?\]|`", "", option.help).split()
                assert " ".join(words) in part, option.help
                if default := option.get_help_extra(context).get("default"):
                    assert f"Default: {default}" in part


def test_styles_of_pages_have_the_colours_of_the_figures():
    found = dict(re.findall(r"--method-(\w+): (#\w{6})", css_colours()))
    assert found == {name: style.colour for name, style in METHODS.items()}
    assert list(found) == list(NETWORKS)


def test_no_colour_of_a_method_is_written_in_a_style_sheet():
    sheets = [*DOCS.glob("_static/*.css"), *(ROOT / "src").rglob("*.css")]
    colours = {style.colour for style in METHODS.values()}
    for sheet in sheets:
        assert not colours & set(re.findall(r"#\w{6}", sheet.read_text().lower())), sheet


def test_every_page_is_in_the_contents_once():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = []
    for tree in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL):
        listed += [x for x in tree.splitlines() if x and not x.startswith(":")]
    assert sorted(listed) == sorted({p.stem for p in DOCS.glob("*.md")} - {"index"})


def test_make_docs_checks_the_pages_that_it_built():
    rule = re.search(r"^docs:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    built = re.search(r"sphinx-build .*-W.* docs (\S+)", rule)[1]
    assert f"tools/offline.py {built}" in rule
