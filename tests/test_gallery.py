"""The gallery has every example, with its picture, and is what its script would write."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "tools" / "gallery.py")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["gallery"] = loaded  # dataclasses look it up
    spec.loader.exec_module(loaded)
    return loaded


def test_every_example_is_in_the_gallery(gallery):
    assert set(gallery.ALL) == {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert sum(map(len, gallery.SECTIONS.values())) == len(gallery.ALL)


def test_the_page_is_what_the_script_writes_from_its_recorded_results(gallery):
    assert gallery.PAGE.read_text(encoding="utf-8") == gallery.page(gallery.recorded())


def test_every_example_has_a_small_picture_or_says_why_not(gallery):
    shown = re.findall(r"^```\{image\} (\S+)", gallery.PAGE.read_text(), re.MULTILINE)
    files = {gallery.PAGE.parent / name for name in shown}
    assert files == {gallery.picture(e) for e in gallery.ALL.values() if not e.no_picture}
    assert files == set(gallery.PICTURES.glob("*.png"))
    sizes = [path.stat().st_size for path in files]
    assert min(sizes) > 5_000
    assert max(sizes) < 60_000
    assert sum(sizes) < 1_500_000


def test_every_example_says_how_long_it_takes(gallery):
    timed = set(json.loads(gallery.TIMES.read_text()))
    assert timed == {name for name, example in gallery.ALL.items() if not example.takes}
    assert gallery.PAGE.read_text().count("Takes about ") == len(gallery.ALL)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "5 s"), (21, "20 s"), (57, "55 s"), (58, "1 minute"), (80, "1.5 minutes")],
)
def test_times_are_round(gallery, seconds, shown):
    assert gallery.rounded(seconds) == f"about {shown}"


def test_a_picture_is_kept_small(gallery, tmp_path):
    from PIL import Image

    noisy = Image.effect_noise((1_800, 900), 60)
    noisy.save(tmp_path / "large.png")
    gallery.shrink(tmp_path / "large.png", tmp_path / "new" / "small.png")
    with Image.open(tmp_path / "new" / "small.png") as small:
        assert small.size == (900, 450)
        assert len(small.getcolors()) <= 64


def test_an_example_runs_in_a_folder_of_its_own_and_leaves_its_picture(
    gallery, tmp_path, monkeypatch
):
    monkeypatch.setattr(gallery, "EXAMPLES", tmp_path)
    monkeypatch.setattr(gallery, "PICTURES", tmp_path / "pictures")
    monkeypatch.setattr(gallery, "TIMES", tmp_path / "pictures" / "times.json")
    monkeypatch.setattr(gallery, "PAGE", tmp_path / "gallery.md")
    draws = "import sys; from PIL import Image; Image.new('RGB', (9, 9)).save(sys.argv[1])"
    (tmp_path / "tiny.py").write_text(draws)
    torn = gallery.Example("torn", "Torn", "None.", modules=("no_such_module",))
    examples = {"tiny": gallery.Example("tiny", "Tiny", "Black."), "torn": torn}
    monkeypatch.setattr(gallery, "ALL", examples)
    monkeypatch.setattr(gallery, "SECTIONS", {"All": tuple(examples.values())})
    assert gallery.main() == 0
    assert (tmp_path / "pictures" / "tiny.png").exists()
    page = (tmp_path / "gallery.md").read_text()
    assert "python examples/tiny.py tiny.png" in page
    assert list(gallery.recorded()) == ["tiny"]
    with pytest.raises(SystemExit):
        gallery.main("huge")
