"""Checks that built pages fetch nothing from a network: scripts, styles, pictures, fonts, frames.

    python tools/offline.py docs/_build/html

Links that a reader may follow are no fault. MathJax is trusted as a whole: of its addresses it
asks none unless its menu or its speech is switched on, and both are off.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

REMOTE = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^'")\s;]+)""", re.IGNORECASE)
FETCHED = {"link": ("href",), "object": ("data",), "use": ("href", "xlink:href")}
ANY = ("src", "srcset", "poster")


class Fetches(HTMLParser):
    """Collects remote addresses that a browser would fetch to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Look at what the tag loads, and at its style."""
        self.in_style = tag == "style"
        for name, value in attributes:
            if value and name in (*ANY, *FETCHED.get(tag, ())):
                self.found += [part for part in value.split(",") if REMOTE.match(part)]
            elif value and name == "style":
                self.found += IN_STYLE.findall(value)

    def handle_data(self, data: str) -> None:
        """Look at style sheets within the page."""
        if self.in_style:
            self.found += IN_STYLE.findall(data)


def fetched(path: Path) -> list[str]:
    """Remote addresses in an HTML, SVG or CSS file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".css":
        return IN_STYLE.findall(re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
    parser = Fetches()
    parser.feed(text)
    return parser.found


def main(folder: str) -> int:
    """Name all of them; 1 if there are any."""
    paths = [p for p in sorted(Path(folder).rglob("*")) if p.suffix in {".html", ".css", ".svg"}]
    if not paths:
        sys.exit(f"{folder}: no pages")
    told = [f"{path}: {url}" for path in paths for url in fetched(path)]
    print("\n".join(told), end="\n" if told else "")
    return int(bool(told))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
