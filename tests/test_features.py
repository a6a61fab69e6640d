"""Features of observations: tiles, polynomials, cosines; computed, learned with, saved."""

import itertools
import json
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.stats import chi2

import retvar as rv
from retvar.td.features import Fourier, Polynomial, TileCoding, from_dict
from tests import oracle
from tests.streams import stream

CASES = 2_000 if oracle.SOAK else 200
ROOT = Path(__file__).parent.parent
CAR = ([-1.2, -0.07], [0.6, 0.07])  # the mountain car's bounds
KINDS = [
    TileCoding(*CAR, tiles=(3, 4), tilings=4),
    TileCoding(*CAR, tiles=5, tilings=3, memory=50),
    Polynomial(*CAR, degree=3),
    Fourier(*CAR, order=2),
]
kinds = pytest.mark.parametrize("kind", KINDS, ids=repr)


def found(features, points):
    """Features as a dense array [point, feature]."""
    points = np.asarray(points, dtype=float)
    rows = features.rows(points)
    dense = np.zeros((len(points), features.size))
    for r in range(len(points)):
        for k in range(rows.indptr[r], rows.indptr[r + 1]):
            dense[r, rows.indices[k]] += rows.values[k]
    return dense


def tiles_of(features, points):
    """Active indices [point, tiling]."""
    return features.rows(np.asarray(points, dtype=float)).indices.reshape(-1, features.tilings)


# ---------------------------------------------------------------------- tile coding


def tile_by_looking(x, low, high, tiles, offset):
    """The only tile of one dimension of one tiling whose edges lie around x."""
    x = min(max(x, low), high)
    width = (high - low) / tiles
    edges = [(low + (i - offset) * width, low + (i + 1 - offset) * width) for i in range(tiles + 1)]
    around = [i for i, (a, b) in enumerate(edges) if a <= x < b]
    if x == high and offset == 0:  # the last tile has its upper edge
        around = [tiles - 1]
    (tile,) = around
    return tile


def tiles_by_looking(x, low, high, tiles, tilings):
    """Indices of the active tiles, with exact fractions."""
    active = []
    for t in range(tilings):
        index = t
        for j in range(len(x)):
            offset = Fraction(t * (2 * j + 1) % tilings, tilings)
            bounds = Fraction(low[j]), Fraction(high[j])
            tile = tile_by_looking(Fraction(x[j]), *bounds, tiles[j], offset)
            index = index * (tiles[j] + 1) + tile
        active.append(index)
    return active


@st.composite
def exact_spaces(draw):
    """Spaces and points whose arithmetic has no rounding."""
    width = draw(st.integers(1, 4))
    low = [float(draw(st.integers(-8, 8))) for _ in range(width)]
    high = [a + 2.0 ** draw(st.integers(-2, 3)) for a in low]
    tiles = [draw(st.integers(1, 6)) for _ in range(width)]
    place = st.integers(-200, 1_224).map(lambda k: k / 1024)
    points = draw(st.lists(st.lists(place, min_size=width, max_size=width), min_size=1, max_size=5))
    x = [[a + p * (b - a) for a, b, p in zip(low, high, each, strict=True)] for each in points]
    return low, high, tiles, draw(st.integers(1, 9)), x


@settings(max_examples=CASES)
@given(exact_spaces())
def test_tiles_are_those_whose_edges_lie_around_the_point(space):
    low, high, tiles, tilings, points = space
    features = TileCoding(low, high, tiles=tiles, tilings=tilings)
    expected = [tiles_by_looking(x, low, high, tiles, tilings) for x in points]
    assert tiles_of(features, points).tolist() == expected
    assert features.size == tilings * math.prod(n + 1 for n in tiles)


def test_outside_the_bounds_is_the_nearest_point_within():
    rng = np.random.default_rng(2)
    low, high = np.array(CAR)
    points = np.concatenate([low + rng.uniform(-2, 3, (200, 2)) * (high - low), [[1e308, -1e308]]])
    for kind in KINDS:
        within = np.clip(points, low, high)
        assert_allclose(found(kind, points), found(kind, within), rtol=0, atol=0)


# ---------------------------------------------------------------------- hashing


def hashed(points, share, tilings=4, width=5):
    features = TileCoding([0.0] * width, [20.0] * width, 20, tilings, memory=tilings * share + 3)
    return features, tiles_of(features, points) - share * np.arange(tilings)


@pytest.mark.compiled
@pytest.mark.parametrize("where", ["random", "a block", "a line"])
def test_hashing_spreads_tiles_evenly_and_differently_in_each_tiling(where):
    """Chi-square of tiles over weights, alone and in pairs of tilings; false alarm below 1e-7."""
    if where == "random":
        tiles = np.random.default_rng(3).integers(20, size=(40_000, 5))
        tiles = np.unique(tiles, axis=0)
    elif where == "a block":
        tiles = np.array(list(itertools.product(range(8), repeat=5)))
    else:
        tiles = np.array([[a, a, b, 3, c] for a, b, c in itertools.product(range(20), repeat=3)])
    share = 256
    features, place = hashed(tiles + 0.01, share)
    assert features.size == 4 * share + 3
    for t in range(4):
        assert chi_square(place[:, t], share) < chi2.isf(1e-8, share - 1)
        other = place[:, (t + 1) % 4] % 16 * 16 + place[:, t] % 16
        assert chi_square(other, 256) < chi2.isf(1e-8, 255)


def chi_square(place, cells):
    counts, expected = np.bincount(place, minlength=cells), place.size / cells
    return float(((counts - expected) ** 2).sum() / expected)


def test_hashing_does_not_change_between_versions():
    """Saved estimators depend on it."""
    features = TileCoding([0.0] * 3, [1.0] * 3, tiles=100, tilings=4, memory=1_000_000)
    assert tiles_of(features, [[0.1, 0.2, 0.3], [0.9, 0.5, 0.0]]).tolist() == [
        [81926, 468639, 642434, 764241],
        [80948, 437976, 602165, 830117],
    ]


# ---------------------------------------------------------------------- bases


@settings(max_examples=CASES)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10_000))
def test_polynomials_are_all_products_of_powers(width, degree, seed):
    rng = np.random.default_rng(seed)
    low, high = -rng.random(width), rng.random(width) + 0.1
    x = rng.uniform(low, high)
    scaled = 2 * (x - low) / (high - low) - 1
    powers = [p for p in itertools.product(range(degree + 1), repeat=width) if sum(p) <= degree]
    expected = [math.prod(s**p for s, p in zip(scaled, each, strict=True)) for each in powers]
    values = Polynomial(low, high, degree=degree).rows([x]).values
    assert_allclose(sorted(values), sorted(expected), rtol=1e-10, atol=1e-13)


@settings(max_examples=CASES)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10_000))
def test_waves_are_cosines_of_all_whole_frequencies(width, order, seed):
    rng = np.random.default_rng(seed)
    low, high = -rng.random(width), rng.random(width) + 0.1
    x = rng.uniform(low, high)
    c = np.array(list(itertools.product(range(order + 1), repeat=width)))
    expected = np.cos(np.pi * c @ ((x - low) / (high - low)))
    assert_allclose(found(Fourier(low, high, order=order), [x])[0], expected, atol=1e-12)


@kinds
def test_no_sum_of_squares_exceeds_the_largest_square(kind):
    rng = np.random.default_rng(5)
    squares = (found(kind, rng.uniform(-2, 2, (300, 2))) ** 2).sum(axis=1)
    corner = (found(kind, [kind.low]) ** 2).sum()
    assert squares.max() <= kind.largest_square * (1 + 1e-12)
    assert corner == pytest.approx(kind.largest_square, rel=1e-12)


# ---------------------------------------------------------------------- bounds


def test_bounds_come_from_data():
    data = [[0.0, 5.0, -200.0], [10.0, 5.0, -200.0], [4.0, 5.0, -200.0]]
    wide = Fourier.from_data(data, order=1)
    assert wide.low == (-0.5, 2.5, -300.0)
    assert wide.high == (10.5, 7.5, -100.0)
    exact = TileCoding.from_data(np.array(data)[:, :1], margin=0, tiles=2)
    assert (exact.low, exact.high, exact.tiles) == ((0.0,), (10.0,), (2,))
    assert Polynomial.from_data([1.0, 2.0], margin=1.0).high == (3.0,)


# ---------------------------------------------------------------------- learning


def experience(rng, rows, streams=2):
    """Observations of two numbers, some outside the bounds, with all other columns."""
    columns = stream(rng, rows, streams=streams)
    low, high = np.array(CAR)
    for name in ("state", "next_state"):
        columns[name] = low + rng.uniform(-0.1, 1.1, (rows, 2)) * (high - low)
    columns["rho"] = np.minimum(columns["rho"], 1.25)
    return columns


@pytest.mark.parametrize("rule", [rv.Averaged(), rv.Decay(), rv.Averaged(0.5)])
def test_steps_made_for_one_state_are_divided_by_the_active_features(rule, caplog):
    """16 tiles each move by the whole error: warned of online, divided by `estimate`."""
    tiles = rv.features.TileCoding(*CAR, tilings=16)
    own = rv.Direct(alpha=rule, gamma=0.9, lam=1.0, kappa=0.5)
    own.online(features=tiles)
    assert len(caplog.records) == 1
    caplog.clear()
    car = rv.experience.from_gymnasium("MountainCar-v0", steps=200)
    found = rv.estimate(car, own, features=tiles, bootstrap_samples=0)  # −1 a step, for ever
    assert -10.5 < found.value([-0.5, 0.0]) < -2.0
    own.replace(alpha=type(rule)(rule.alpha / 16)).online(features=tiles)
    assert not caplog.records


def learner(kind, method=rv.Centred, **changes):
    step = 0.1 / kind.largest_square
    described = method(alpha=step, kappa=0.9, kappa_bar=0.8, gamma=0.9, lam=0.9, **changes)
    return described.online(features=kind)


@kinds
@pytest.mark.parametrize("method", [rv.Direct, rv.VTD, rv.Centred])
def test_an_observation_learns_what_its_features_learn(kind, method):
    """The same as with its features as vectors, for every kind."""
    columns = experience(np.random.default_rng(6), 200)
    seen = learner(kind, method)
    vectors = seen.description.online(features=kind.size)
    seen.update_many(columns)
    dense = {name: found(kind, columns[name]) for name in ("state", "next_state")}
    vectors.update_many(columns | dense)
    for node, weights in seen.weights.items():
        assert_allclose(weights, vectors.weights[node], rtol=1e-12, atol=1e-14)


# ---------------------------------------------------------------------- plain data and files


@kinds
def test_dictionaries_make_equal_features(kind):
    data = json.loads(json.dumps(kind.to_dict()))
    again = from_dict(data)
    assert again == kind
    assert hash(again) == hash(kind)
    assert again.to_dict() == data
    x = np.random.default_rng(12).uniform(*CAR, size=(50, 2))
    assert found(again, x).tobytes() == found(kind, x).tobytes()


def bits_of_rows():
    """Digest of everything that is compiled."""
    x = np.random.default_rng(14).uniform(-2, 2, (40, 2))
    x[3, 1] = np.nan
    rows = [kind.rows(x) for kind in KINDS]
    return "".join((r.indices.tobytes() + r.values.tobytes()).hex() for r in rows)


@pytest.mark.compiled
def test_compiled_and_plain_python_give_the_same_bits():
    script = "from tests.test_features import bits_of_rows; print(bits_of_rows())"
    done = subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning", "-c", script],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == bits_of_rows()
