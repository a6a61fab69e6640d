"""Pages that are run from top to bottom in an empty folder, as a newcomer would."""

import contextlib
import doctest
import io
import re
import runpy
import shlex
import sys
from pathlib import Path

from click.testing import CliRunner

from retvar.cli import main

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"^(`{3,})([^\n]*)\n(.*?)^\1 *$", re.MULTILINE | re.DOTALL)
CHECKER, FLAGS = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(text):
    """Fenced blocks: (what the fence says, lines of options as a mapping, the rest)."""
    for _, said, body in BLOCK.findall(text):
        options = {}
        if said.startswith("{"):
            while found := re.match(r":([\w-]+): *(.*)\n", body):
                options[found[1]], body = found[2], body[found.end() :]
        yield said.strip(), options, body.lstrip("\n")


def write_files(text, folder):
    """Write the files that the page shows: blocks with a caption, and included ones."""
    for said, options, body in blocks(text):
        if said.startswith("{literalinclude}"):
            source = DOCS / said.partition("}")[2].strip()
            (folder / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
        elif "caption" in options:
            (folder / options["caption"]).write_text(body, encoding="utf-8")


def commands(body):
    """Commands of a console block, each with the output that is shown."""
    body = re.sub(r"\\\n *", "", body)  # lines that go on
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def run_command(command, folder):
    """Exit status, and what a command prints; `python FILE` and `head -N FILE` are understood."""
    program, *arguments = shlex.split(command)
    if program == "retvar":
        result = CliRunner().invoke(main, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr
    if program == "head":
        lines = (folder / arguments[1]).read_text().splitlines()[: -int(arguments[0])]
        return 0, "\n".join(lines), ""
    assert program == "python", command
    printed, before = io.StringIO(), sys.argv
    sys.argv = arguments
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        sys.argv = before
    return 0, printed.getvalue(), ""


def agree(shown, printed, warned):
    """Whether the output is the one shown; lines of warnings may be in either stream.

    On a terminal a warning stands within the summary, otherwise on stderr.
    """
    warnings = re.findall(r"^WARNING: .*\n", shown, re.MULTILINE)
    rest = re.sub(r"^WARNING: .*\n", "", shown, flags=re.MULTILINE)
    rest = re.sub(r"(\.\.\.\n)+", "...\n", rest)
    missing = [w for w in warnings if w.strip() not in warned + printed]
    return not missing and CHECKER.check_output(rest, printed, FLAGS)


def run_page(text, folder, compare=True, statuses=(0,)):
    """Run all blocks of a page in `folder`; says what went otherwise than shown."""
    write_files(text, folder)
    known, parser = {"__name__": "__main__"}, doctest.DocTestParser()
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    told = []
    for said, _, body in blocks(text):
        if said == "console":
            for command, shown in commands(body):
                status, printed, warned = run_command(command, folder)
                if status not in statuses or (compare and not agree(shown, printed, warned)):
                    told.append(
                        f"$ {command}\n{printed}{warned}\n(status {status})\nshown:\n{shown}"
                    )
        elif said == "python" and ">>>" in body:
            test = parser.get_doctest(body, known, "page", None, 0)
            report = io.StringIO()
            runner.run(test, out=report.write, clear_globs=False)
            known = test.globs
            told += [report.getvalue()] if report.getvalue() else []
    return "\n".join(told)
