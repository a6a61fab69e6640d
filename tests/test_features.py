"""Features of observations: tiles, polynomials, cosines; computed, learned with, saved."""

import itertools
import json
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from safetensors.numpy import load_file, save_file
from scipy.stats import chi2

import retvar as rv
from retvar.features import Fourier, Polynomial, TileCoding, from_dict
from retvar.online import estimator as estimators
from retvar.online.checkpoint import _digest
from tests import oracle
from tests.streams import feed, same, stream

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


@settings(max_examples=CASES)
@given(exact_spaces(), st.one_of(st.none(), st.integers(0, 100)))
def test_every_tiling_has_one_active_tile_in_its_own_share(space, extra):
    low, high, tiles, tilings, points = space
    memory = None if extra is None else tilings + extra
    features = TileCoding(low, high, tiles=tiles, tilings=tilings, memory=memory)
    rows = features.rows(points)
    share = features.size // tilings
    assert rows.indptr.tolist() == [r * tilings for r in range(len(points) + 1)]
    assert (rows.indices // share).tolist() == list(range(tilings)) * len(points)
    assert rows.values.tolist() == [1.0] * rows.indices.size


def test_moving_by_a_whole_tile_moves_every_tiling_by_one():
    features = TileCoding([0.0, -1.0, 2.0], [8.0, 3.0, 18.0], tiles=(8, 4, 16), tilings=8)
    rng = np.random.default_rng(0)
    point = [0.0, -1.0, 2.0] + rng.random((100, 3)) * [7.0, 3.0, 15.0]
    for j, stride in enumerate((5 * 17, 17, 1)):
        moved = point + np.eye(3)[j]
        assert (tiles_of(features, moved) - tiles_of(features, point) == stride).all()


@pytest.mark.parametrize("tilings", [1, 2, 4, 8, 16])
def test_moving_by_a_slice_moves_one_tiling_and_all_in_turn(tilings):
    """A slice is 1/tilings of a tile: tilings, a power of 2, are shifted by different numbers."""
    for j in range(3):
        features = TileCoding([0.0] * 3, [4.0] * 3, tiles=4, tilings=tilings)
        middles = np.full((tilings + 1, 3), 2.0 + 0.5 / tilings)
        middles[:, j] += np.arange(tilings + 1) / tilings
        moved = np.diff(tiles_of(features, middles), axis=0) != 0
        assert (moved.sum(axis=1) == 1).all()
        assert (moved.sum(axis=0) == 1).all()


def test_points_of_the_same_slices_look_the_same_and_others_do_not():
    features = TileCoding([0.0, 0.0], [4.0, 4.0], tiles=4, tilings=4)
    rng = np.random.default_rng(1)
    slices = np.array(list(itertools.product(range(16), repeat=2)))
    seen = {tuple(active) for active in tiles_of(features, (slices + 0.5) / 4)}
    assert len(seen) == len(slices)
    inside = (slices + rng.uniform(0.01, 0.99, slices.shape)) / 4
    assert (tiles_of(features, inside) == tiles_of(features, (slices + 0.5) / 4)).all()


def test_no_two_tilings_lie_alike():
    """Even where the number of tilings is no power of 2, and some dimensions coincide."""
    for tilings in range(1, 20):
        features = TileCoding([0.0, 0.0], [2.0, 2.0], tiles=2, tilings=tilings)
        grid = list(itertools.product((np.arange(2 * tilings) + 0.5) / tilings, repeat=2))
        tile = tiles_of(features, grid) - 9 * np.arange(tilings)
        assert len({tuple(column) for column in tile.T}) == tilings


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


def test_a_great_space_fits_into_a_small_memory():
    """21⁴⁰ tiles."""
    rng = np.random.default_rng(4)
    points = rng.random((500, 40))
    features = TileCoding([0.0] * 40, [1.0] * 40, tiles=20, tilings=8, memory=8 << 16)
    active = tiles_of(features, points)
    assert active.min() >= 0
    assert active.max() < features.size
    assert len({tuple(a) for a in active}) == 500
    nudged = points.copy()
    nudged[:, 39] = (nudged[:, 39] + 0.5) % 1.0
    assert (tiles_of(features, nudged) != active).mean() > 0.99


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


def test_polynomials_stand_by_degree_then_by_dimension():
    x, y, z = 0.3, -0.7, 0.9
    values = Polynomial([-1.0] * 3, [1.0] * 3, degree=2).rows([[x, y, z]]).values
    expected = [1, x, y, z, x * x, x * y, x * z, y * y, y * z, z * z]
    assert_allclose(values, expected, rtol=1e-15)


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


def test_bounds_come_from_a_space():
    space = gymnasium.make("MountainCar-v0").observation_space
    features = TileCoding.from_space(space, tiles=4, tilings=2)
    assert_allclose([features.low, features.high], CAR, rtol=1e-6)
    assert (features.tiles, features.tilings) == ((4, 4), 2)
    square = gymnasium.spaces.Box(0, 255, shape=(2, 2), dtype=np.uint8)
    seen = Fourier.from_space(square, order=1)
    assert seen.width == 4
    assert_allclose(
        seen.rows(np.full((3, 2, 2), 255, np.uint8)).values,
        seen.rows(np.full((3, 4), 255.0)).values,
    )


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gymnasium.spaces.Box(-np.inf, 1.0, (2,)), r"space\[0\] = -inf to 1.0: has no bounds"),
        (gymnasium.spaces.Box(-1.0, np.finfo(np.float32).max, (2,)), r"space\[0\] = -1.0 to 3.4"),
        (gymnasium.spaces.Discrete(4), r"space = Discrete\(4\): must be a Box"),
    ],
    ids=["infinite", "the largest number there is", "no box"],
)
def test_a_space_without_bounds_is_refused(space, message):
    with pytest.raises(rv.InputError, match=message):
        Polynomial.from_space(space)


def test_bounds_come_from_data():
    data = [[0.0, 5.0, -200.0], [10.0, 5.0, -200.0], [4.0, 5.0, -200.0]]
    wide = Fourier.from_data(data, order=1)
    assert wide.low == (-0.5, 2.5, -300.0)
    assert wide.high == (10.5, 7.5, -100.0)
    exact = TileCoding.from_data(np.array(data)[:, :1], margin=0, tiles=2)
    assert (exact.low, exact.high, exact.tiles) == ((0.0,), (10.0,), (2,))
    assert Polynomial.from_data([1.0, 2.0], margin=1.0).high == (3.0,)


@pytest.mark.parametrize(
    ("data", "margin", "message"),
    [
        ([[0.0, np.nan]], 0.05, "observations = not finite: must hold finite numbers only"),
        ([], 0.05, "observations = none"),
        ([[0.0], [1.0, 2.0]], 0.05, "observations = no array of numbers"),
        (["a"], 0.05, "observations = no array of numbers"),
        ([[0.0], [1.0]], -0.1, "margin = -0.1: must be a finite number of at least 0"),
        ([[0.0], [1.0]], np.nan, "margin = nan"),
        ([[-1e308], [1e308]], 0.05, "must hold finite numbers only"),
    ],
)
def test_data_that_give_no_bounds_are_refused(data, margin, message):
    with pytest.raises(rv.InputError, match=message):
        TileCoding.from_data(data, margin=margin)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: TileCoding([0.0, 1.0], [1.0, 1.0]),
            r"high\[1\] = 1.0: must be above low",
        ),
        (lambda: TileCoding([0.0], [-1.0]), r"high\[0\] = -1.0: must be above"),
        (lambda: TileCoding([np.nan], [1.0]), r"low = \[nan\]: must hold finite numbers only"),
        (lambda: TileCoding([0.0], [np.inf]), r"high = \[inf\]: must hold finite numbers only"),
        (lambda: TileCoding([0.0], [1.0, 2.0]), "high = 2 numbers: must have 1, as low has"),
        (lambda: TileCoding([], []), r"low = an array of shape \(0,\)"),
        (lambda: TileCoding([[0.0]], [[1.0]]), r"low = an array of shape \(1, 1\)"),
        (lambda: TileCoding("low", [1.0]), "low = no array of numbers"),
        (lambda: TileCoding([1 + 2j], [1.0]), "low = no array of numbers"),
        (lambda: TileCoding([0.0], [1e-310]), "too close"),
        (lambda: TileCoding([-1e308], [1e308]), "or too far"),
        (lambda: TileCoding(*CAR, tiles=0), "tiles = 0: must be a whole number from 1"),
        (lambda: TileCoding(*CAR, tiles=2.5), "tiles = 2.5"),
        (lambda: TileCoding(*CAR, tiles=True), "tiles = True"),
        (lambda: TileCoding(*CAR, tiles=[1, 2, 3]), "tiles = 3 numbers: must be one, or 2"),
        (lambda: TileCoding(*CAR, tiles=[1, 0]), "tiles = 0"),
        (lambda: TileCoding(*CAR, tiles=[[1], [2]]), r"tiles = \[1\]"),
        (lambda: TileCoding(*CAR, tilings=0), "tilings = 0: must be a whole number from 1"),
        (lambda: TileCoding(*CAR, tilings=10**9), "tilings = 1000000000"),
        (lambda: TileCoding(*CAR, tiles=2_000), "weights: more than 10,000,000; .*memory="),
        (lambda: TileCoding([0.0] * 30, [1.0] * 30), "weights: more than 10,000,000; .*memory="),
        (lambda: TileCoding(*CAR, memory=0), "memory = 0"),
        (
            lambda: TileCoding(*CAR, memory=7),
            "memory = 7: must be at least 8, one weight",
        ),
        (lambda: TileCoding(*CAR, memory=1e4), "memory = 10000.0: must be a whole number"),
        (lambda: Polynomial(*CAR, degree=0), "degree = 0"),
        (lambda: Polynomial([0.0] * 99, [1.0] * 99, degree=9), "degree = .* weights: more than"),
        (lambda: Fourier(*CAR, order=-1), "order = -1"),
        (lambda: Fourier([0.0] * 20, [1.0] * 20), "order = .* weights: more than 10,000,000"),
    ],
)
def test_settings_that_make_no_features_are_refused(make, message):
    with pytest.raises(rv.InputError, match=message):
        make()


# ---------------------------------------------------------------------- learning


def experience(rng, rows, streams=2):
    """Observations of two numbers, some outside the bounds, with all other columns."""
    columns = stream(rng, rows, streams=streams)
    low, high = np.array(CAR)
    for name in ("state", "next_state"):
        columns[name] = low + rng.uniform(-0.1, 1.1, (rows, 2)) * (high - low)
    columns["rho"] = np.minimum(columns["rho"], 1.25)
    return columns


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


@kinds
def test_a_chunk_of_observations_gives_the_bits_of_one_by_one(kind, monkeypatch):
    """As arrays, as lists, with gaps where nothing follows, and in blocks of any size."""
    columns = experience(np.random.default_rng(7), 150)
    one, whole, listed, gaps, narrow = (learner(kind) for _ in range(5))
    feed(one, columns)
    whole.update_many(columns)
    listed.update_many({name: column.tolist() for name, column in columns.items()})
    follows = list(columns["next_state"])
    for t in np.flatnonzero(columns["terminated"]):
        follows[t] = None
    gaps.update_many(columns | {"next_state": follows})
    monkeypatch.setattr(estimators, "ENTRIES", 7 * kind.entries)
    narrow.update_many(columns)
    for other in (whole, listed, gaps, narrow):
        assert same(one, other)
    clone = one.clone()
    feed(clone, columns)
    assert not same(clone, one)


def test_nodes_may_have_different_features_of_an_observation():
    columns = experience(np.random.default_rng(8), 60)
    value, variance = KINDS[0], KINDS[3]
    mixed = rv.Direct(alpha=0.02, gamma=0.9, lam=0.9, kappa=0.5)
    many, one = (mixed.online(features=variance, value_features=value) for _ in range(2))
    many.update_many(columns)
    feed(one, columns)
    assert same(many, one)
    assert many.weights["value"].size == value.size
    expected = found(value, columns["state"][:1])[0] @ many.weights["value"]
    assert many.value(columns["state"][0]) == pytest.approx(expected, abs=1e-14)
    seen = found(variance, columns["state"][:1])[0]
    assert many.variance(columns["state"][0]) == pytest.approx(seen @ many.weights["variance"])


@kinds
def test_a_constant_reward_is_worth_itself_over_one_minus_gamma(kind):
    """A stream without end and without chance: value 1/(1 − γ), no variance."""
    rng = np.random.default_rng(9)
    low, high = np.array(CAR)
    path = rng.uniform(low, high, (30_001, 2))
    step = 0.3 / kind.largest_square
    online = rv.Direct(alpha=step, gamma=0.8, lam=0.9, kappa=0.5).online(features=kind)
    columns = {"state": path[:-1], "reward": np.ones(30_000), "next_state": path[1:]}
    online.update_many(columns)
    for point in path[:20]:
        assert online.value(point) == pytest.approx(5.0, abs=1e-3)
        assert online.variance(point) == pytest.approx(0.0, abs=0.01)


@kinds
def test_many_observations_are_predicted_at_once(kind):
    online = learner(kind, rv.VTD)
    columns = experience(np.random.default_rng(15), 100)
    online.update_many(columns)
    x = columns["state"][:20]
    for what in ("value", "mean", "variance"):
        one_by_one = [getattr(online, what)(point) for point in x]
        assert_allclose(online.predict(x, what), one_by_one, rtol=1e-12, atol=1e-14)
    with pytest.raises(rv.InputError, match="not finite"):
        online.predict([[0.0, 0.0], [0.0, np.nan]], "value")


@kinds
def test_observations_work_with_replicates(kind):
    columns = experience(np.random.default_rng(16), 60)
    described = learner(kind).description
    one, many = (described.online(features=kind, bootstrap_samples=5, seed=1) for _ in range(2))
    feed(one, columns)
    many.update_many(columns)
    assert same(one, many)
    x = columns["state"][:7]
    assert one.bootstrap_estimates(what="value", states=x).shape == (7, 5)
    assert (
        one.bootstrap_estimates(what="value", states=x)
        == many.bootstrap_estimates(what="value", states=x)
    ).all()


def test_the_step_over_the_largest_square_reaches_the_target_in_one_step():
    tiles = KINDS[0]
    online = rv.Direct(alpha=1 / tiles.largest_square, gamma=0.9, lam=0.9).online(features=tiles)
    online.update([0.1, 0.01], 7.0, None, terminated=True)
    assert online.value([0.1, 0.01]) == 7.0


# ---------------------------------------------------------------------- bad observations


@kinds
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["state", "next_state"])
def test_observations_that_are_not_finite_are_refused_and_counted(kind, bad, field):
    columns = experience(np.random.default_rng(10), 20, streams=1)
    columns["terminated"][:] = columns["truncated"][:] = False
    online, skipping, without = (learner(kind) for _ in range(3))
    spoiled = columns[field].copy()
    spoiled[12, 1] = bad
    chunk = columns | {field: spoiled}
    fresh = online.clone()
    with pytest.raises(rv.InputError, match="state = not finite"):
        online.update_many(chunk)
    now, after = (chunk[name][12] for name in ("state", "next_state"))
    with pytest.raises(rv.InputError, match="state = not finite"):
        online.update(now, 1.0, after)
    with pytest.raises(rv.InputError, match="state = not finite"):
        online.value(spoiled[12])
    assert (online.steps, online.rejected) == (0, 2)
    assert all((online.weights[n] == fresh.weights[n]).all() for n in online.weights)
    skipping.update_many(chunk, on_error="skip")
    assert (skipping.steps, skipping.rejected) == (19, 1)
    without.update_many({name: column[:12] for name, column in columns.items()})
    without.reset_traces()
    without.update_many({name: column[13:] for name, column in columns.items()})
    for node, weights in skipping.weights.items():
        assert weights.tobytes() == without.weights[node].tobytes()


@kinds
def test_observations_of_the_wrong_width_are_refused_or_skipped(kind):
    online = learner(kind, rv.Direct)
    for bad in ([0.0], [0.0] * 3, 0.0, "ab", ["a", "b"], None, [[0.0], [1.0, 2.0]], [1j, 0.0]):
        with pytest.raises(rv.InputError, match=r"state = (an observation|no array) of"):
            online.update(bad, 1.0, [0.0, 0.0])
    with pytest.raises(rv.InputError, match="must be 2 numbers"):
        online.update([0.0, 0.0], 1.0, [0.0] * 3)
    with pytest.raises(rv.InputError, match=r"shape \(\): must be 2 numbers"):
        online.update_many({"state": np.zeros(4), "reward": [1.0] * 4, "next_state": np.zeros(4)})
    wide = {"state": np.zeros((4, 2)), "reward": np.ones(4), "next_state": np.zeros((4, 3))}
    with pytest.raises(rv.InputError, match="state = no array of numbers: must be 2 numbers"):
        online.update_many(wide)
    assert (online.steps, online.rejected) == (0, 11)
    chunk = {"state": [[0.0, 0.0], [1.0], [np.nan, 1.0], [0.1, 0.0]], "reward": [1.0] * 4}
    chunk |= {"next_state": [None] * 4, "terminated": [True] * 4}
    online.update_many(chunk, on_error="skip")
    assert (online.steps, online.rejected) == (2, 13)
    online.update_many({"state": [[1.0]], "reward": [1.0], "next_state": [[1.0]]}, on_error="skip")
    assert (online.steps, online.rejected) == (2, 14)


def test_one_number_may_be_given_as_it_is():
    features = Fourier(0.0, 1.0, order=2)
    one, column = learner(features), learner(features)
    x = np.random.default_rng(11).random(11)
    for t in range(10):
        one.update(x[t], 1.0, x[t + 1])
    column.update_many({"state": x[:-1], "reward": np.ones(10), "next_state": x[1:]})
    assert same(one, column)


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


def test_features_are_equal_where_their_settings_are():
    assert TileCoding(*CAR, tiles=8) == TileCoding(*np.array(CAR), tiles=[8, 8])
    assert TileCoding(*CAR, tiles=8) != TileCoding(*CAR, tiles=7)
    assert TileCoding(*CAR, memory=999) != TileCoding(*CAR)
    assert Polynomial(*CAR, 2) != Fourier(*CAR, 2)
    for kind in (rv.features.States(3), rv.features.Vector(4), rv.features.Active(5)):
        assert from_dict(kind.to_dict()) == kind


@pytest.mark.parametrize(
    "data",
    [
        None, {}, {"kind": "tiles"}, {"kind": ["vector"]}, {"kind": "vector"},
        {"kind": "vector", "size": "3"}, {"kind": "vector", "size": 3, "low": 1},
        {"kind": "fourier", "low": [0.0]}, {"kind": "fourier", "low": [0.0], "high": ["a"]},
        {"kind": "fourier", "low": [0.0], "high": [None]},
        {"kind": "fourier", "low": [0.0], "high": [1.0], "order": 10**30},
        {"kind": "polynomial", "low": [0.0], "high": [1.0], "degree": [1]},
        {"kind": "tile_coding", "low": [0.0], "high": [1.0], "tiles": {"a": 1}},
        {"kind": "tile_coding", "low": [0.0], "high": [1.0], "tilings": None},
    ],
    ids=repr,
)  # fmt: skip
def test_dictionaries_of_no_features_are_refused(data):
    with pytest.raises(rv.InputError):
        from_dict(data)


@kinds
def test_a_learner_saved_and_loaded_goes_on_to_the_bit(kind, tmp_path):
    columns = experience(np.random.default_rng(13), 100)
    whole, stopped = learner(kind), learner(kind)
    feed(whole, columns)
    feed(stopped, {name: column[:37] for name, column in columns.items()})
    stopped.save(tmp_path / "a.safetensors")
    resumed = rv.load(tmp_path / "a.safetensors")
    assert same(resumed, stopped)
    assert resumed.features == [kind] * 3
    assert resumed.features[0] is resumed.features[2]
    feed(resumed, {name: column[37:] for name, column in columns.items()})
    assert same(resumed, whole)
    resumed.save(tmp_path / "b.safetensors")
    rv.load(tmp_path / "b.safetensors").save(tmp_path / "c.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "c.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tilings": 5}, "value.weights = an array of shape"),
        ({"low": [0.0, "a"]}, "low = no array of numbers"),
        ({"low": [9.0, 9.0]}, r"high\[0\] = 0.6: must be above"),
        ({"low": [0.0]}, "high = 2 numbers"),
        ({"tiles": 10**12}, "tiles = 1000000000000"),
        ({"memory": -4}, "memory = -4"),
        ({"memory": 10**8}, "value.weights = an array of shape"),
        ({"kind": "fourier"}, "features = .*: are not the settings of fourier"),
        ({"kind": 7}, "features = "),
        ({"more": 1}, "features = .*: are not the settings of tile_coding"),
    ],
)
def test_a_file_with_damaged_settings_is_refused(change, message, tmp_path):
    """Found by the settings, not by the digest, which is that of the damaged settings."""
    path = tmp_path / "a.safetensors"
    learner(KINDS[0]).save(path)
    header, tensors = header_of(path), load_file(path)
    header["features"]["value"] |= change
    header.pop("digest")
    header["digest"] = _digest(header, tensors)
    save_file(tensors, path, {"retvar": json.dumps(header)})
    with pytest.raises(rv.InputError, match=message):
        rv.load(path)


def header_of(path):
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(json.loads(raw[8 : 8 + length])["__metadata__"]["retvar"])


def bits_of_rows():
    """Digest of everything that is compiled."""
    x = np.random.default_rng(14).uniform(-2, 2, (40, 2))
    x[3, 1] = np.nan
    rows = [kind.rows(x) for kind in KINDS]
    return "".join((r.indices.tobytes() + r.values.tobytes()).hex() for r in rows)


def test_compiled_and_plain_python_give_the_same_bits():
    script = "from tests.test_features import bits_of_rows; print(bits_of_rows())"
    done = subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning", "-c", script],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == bits_of_rows()
