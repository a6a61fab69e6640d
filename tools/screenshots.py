"""Photographs every built page at two widths, light and dark, and names pages that are too wide.

Needs playwright (the extra browser) and Chromium. Ends with status 1 if a page scrolls sideways or
is cut off, if a formula was not understood, or if a page asked for something that is not on this
machine:

    python tools/screenshots.py docs/_build/html screenshots [PAGE …]
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

WIDTHS = {1400: 900, 400: 800}
TALLEST = 12_000  # pixels of a picture
LOOK = """() => {
  const scrolls = e => e && e.tagName !== 'ARTICLE' &&
    (['auto', 'scroll'].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  const cut = [...document.querySelectorAll('article *')].filter(
    e => e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e.parentElement));
  return {
    over: document.scrollingElement.scrollWidth - innerWidth,
    cut: cut.slice(0, 3).map(e => e.outerHTML.slice(0, 80)),
    errors: [...document.querySelectorAll('[data-mjx-error]')].map(e => e.textContent),
  };
}"""


def chromium() -> str:
    """Where the browser is."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    return found or sys.exit("no chromium on the PATH")


def faults(page: Page, path: Path, asked: list[str]) -> list[str]:
    """Open a page, and say what is wrong with it."""
    asked.clear()
    page.goto(path.resolve().as_uri())
    page.evaluate("() => window.MathJax?.startup?.promise")
    found = page.evaluate(LOOK)
    told = [f"asks for {url}" for url in asked if not url.startswith(("file:", "data:"))]
    told += [f"formula: {error}" for error in found["errors"]]
    if found["over"] > 0:
        told.append(f"{found['over']} px too wide")
    told += [f"cut off: {element}" for element in found["cut"]]
    return told


def main() -> int:
    """All pages, or those named."""
    built, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    pages = [built / name for name in sys.argv[3:]] or sorted(built.glob("*.html"))
    bad = 0
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for width, height in WIDTHS.items():
            for scheme in ("light", "dark"):
                size = {"width": width, "height": height}
                page = browser.new_page(viewport=size, color_scheme=scheme)
                asked: list[str] = []
                page.on("request", lambda request, asked=asked: asked.append(request.url))
                for path in pages:
                    told = faults(page, path, asked)
                    bad += bool(told)
                    for line in told:
                        print(f"{path.name} at {width} px, {scheme}: {line}")
                    tall = min(page.evaluate("document.scrollingElement.scrollHeight"), TALLEST)
                    clip = {"x": 0, "y": 0, "width": width, "height": tall}
                    name = f"{path.stem}-{width}-{scheme}.png"
                    page.screenshot(path=out / name, clip=clip, full_page=True)
                page.close()
        browser.close()
    print(f"{len(pages)} pages, {bad} faults: {out}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
