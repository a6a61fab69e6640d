"""Command-line options and output that the benchmark scripts share."""

import argparse
from pathlib import Path

from retvar.files import write_text


def options(description: str | None, **numbers: tuple[int, str]) -> argparse.Namespace:
    """Parse --out, --append and one option for each (default, help) in `numbers`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, help="file to write; default: only print")
    parser.add_argument("--append", action="store_true", help="append to the file")
    for name, (default, text) in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    return parser.parse_args()


def publish(section: str, out: Path | None, append: bool) -> None:
    """Print a section of the benchmark page, and write or append it to `out`."""
    print(section)
    if out:
        before = out.read_text(encoding="utf-8").rstrip("\n") + "\n\n" if append else ""
        write_text(out, before + section.strip("\n") + "\n")
