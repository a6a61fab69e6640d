"""The examples of deep critics run, in small versions, and print what they promise."""

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

FILE = Path(__file__).resolve().parent.parent / "examples" / "deep_contours.py"


def test_learned_contours_are_drawn_beside_the_exact_ones(capsys, tmp_path):
    """In small: 20,000 steps and 4 sweeps; the error, of fixed seeds, is 0.093 then."""
    spec = importlib.util.spec_from_file_location(FILE.stem, FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(20_000, str(tmp_path / "contours.png"), 4)
    assert float(re.search(r"median ([\d.]+)", capsys.readouterr().out)[1]) < 0.2
    assert (tmp_path / "contours.png").stat().st_size > 10_000
