"""Reading pages: that tags are closed in order, where links lead, and that nothing is fetched."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """Parses a page; checks that tags are closed in order, and collects links and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[dict] = []
        self.texts: list[str] = []
        self.inside: dict[str, list[str]] = {}  # links by the innermost id around them
        self._around: list[str | None] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        links = [found[name] for name in ("src", "href", "srcset", "data") if name in found]
        self.links += links
        self.images += [found] if tag == "img" else []
        assert tag not in {"link", "iframe", "object", "embed", "form", "base"}
        assert tag != "script" or not found
        assert not any(name.startswith("on") or name == "style" for name in found)
        around = next((each for each in reversed(self._around) if each), "")
        self.inside.setdefault(found.get("id") or around, []).extend(links)
        if tag not in VOID:
            self.open.append(tag)
            self._around.append(found.get("id"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self._around.pop()

    def handle_data(self, data):
        self.texts.append(data)


def read_offline(path: Path) -> Page:
    """A page that is well-formed and needs nothing but its folder, if that."""
    text = path.read_text(encoding="utf-8")
    read = Page(text)
    assert not read.open
    assert len(set(read.ids)) == len(read.ids)
    for link in read.links:
        if link.startswith("#"):
            assert link[1:] in read.ids, link
        elif not link.startswith("data:image/"):
            assert not Path(unquote(link)).is_absolute()
            assert (path.parent / unquote(link)).is_file(), link
    assert all(image["src"].startswith("data:image/") for image in read.images)
    assert all(image["alt"] for image in read.images)
    assert "url(" not in text
    assert "@import" not in text
    assert 'name="viewport" content="width=device-width' in text
    assert "Content-Security-Policy" in text
    assert "default-src &#39;none&#39;" in text
    return read
