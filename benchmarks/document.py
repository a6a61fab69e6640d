"""Command-line options and output that the benchmark scripts share."""

import argparse
from pathlib import Path
from typing import Any

from retvar.support.files import write_text


def options(description: str | None, **others: tuple[Any, str]) -> argparse.Namespace:
    """Parse --out, --append and one option for each (default, help) in `others`.

    An option has the type of its default; a default of False makes it a switch.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, help="file to write; default: only print")
    parser.add_argument("--append", action="store_true", help="append to the file")
    for name, (default, text) in others.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true", help=text)
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    return parser.parse_args()


def publish(section: str, out: Path | None, append: bool) -> None:
    """Print a section of the benchmark page, and write or append it to `out`."""
    print(section)
    if out:
        before = out.read_text(encoding="utf-8").rstrip("\n") + "\n\n" if append else ""
        write_text(out, before + section.strip("\n") + "\n")
