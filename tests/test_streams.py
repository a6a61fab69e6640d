"""Random streams: words compared with Python's integers, and their statistics."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from numba import njit
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.simulation import streams
from tests import oracle
from tests import reference_random as reference
from tests.fixed_cases import made_mdp

U = np.uint64
STRICT = 6.0  # standard errors: 2·10⁻⁹ for each of at most a hundred statistics a test


@pytest.fixture
def rng():
    seed = oracle.fresh_seed()
    print(f"RETVAR_SEED={seed}")  # noqa: T201
    return np.random.default_rng(seed)


def big(rng, count):
    """Random 64-bit words as Python's integers."""
    return [int(x) for x in rng.integers(0, 2**64, size=count, dtype=np.uint64)]


# ------------------------------------------------------------------------ words


def test_words_equal_integer_arithmetic(rng):
    """word(c) = mix(mix(a + cφ) ^ b) mod 2⁶⁴; a uniform number is its 53 leading bits."""
    corners = [0, 1, 2**63, 2**64 - 1]
    seeds = [*corners, *big(rng, 60)]
    runs = [0, 1, 2**40, 2**62, *(x >> 1 for x in big(rng, 60))]
    far = [0, reference.START, reference.START + 4 + (2 << 50), 2**62 - 8]
    counters = [*far, *(x >> 2 for x in big(rng, 60))]
    for seed, run, c in zip(seeds, runs, counters, strict=True):
        assert tuple(map(int, streams.keys(U(seed), run))) == reference.keys(seed, run)
        found = np.empty((2, 5))
        streams.draws(U(seed), run, c, False, found)
        expected = [
            [reference.uniform(reference.word(seed, run + r, c + i)) for i in range(5)]
            for r in range(2)
        ]
        assert found.tolist() == expected, (seed, run, c)


# ------------------------------------------------------------------------ correlations


@njit
def products(one, other, stride, length):
    """Σ (u − ½)(v − ½) over `length` numbers of pairs of streams: rows of (seed, run, first)."""
    out = np.zeros(one.shape[0])
    for i in range(out.size):
        a, b = streams.keys(one[i, 0], one[i, 1])
        c, d = streams.keys(other[i, 0], other[i, 1])
        for k in range(length):
            step = U(k) * stride[i]
            u = streams.uniform(streams.word(a, b, one[i, 2] + step))
            v = streams.uniform(streams.word(c, d, other[i, 2] + step))
            out[i] += (u - 0.5) * (v - 0.5)
    return out


def largest_product(length, cases):
    """What |Σxy| exceeds with probability 10⁻⁷ at most in so many cases: Chernoff's bound.

    For independent x and y, uniform in ±½: E exp(sxy) = E[sinh(sx/2)/(sx/2)]; that of a sum of n is
    its n-th power, and P(Σ > t) ≤ exp(−st)·E exp(sΣ) for every s.
    """
    x, weight = np.polynomial.legendre.leggauss(80)
    s = np.linspace(0.1, 40, 2_000)[:, None]
    z = s * x / 4
    log_mean = np.log((weight / 2 * np.sinh(z) / z).sum(axis=1))
    needed = math.log(2 * cases / 1e-7)
    return float(np.min((length * log_mean + needed) / s[:, 0]))


RELATIONS = {  # what is added to seed, run and word, and how far apart the words of a stream are
    "runs far apart": lambda lag: (0, lag << 50, 0, 1),
    "runs of a seed": lambda lag: (0, lag, 0, 1),
    "runs r and r + 1": lambda lag: (0, 1, 0, 1),
    "runs r and r + 1, lagged": lambda lag: (0, 1, lag, 1),
    "seeds s and s + 1": lambda lag: (1, 0, 0, 1),
    "one run, lagged": lambda lag: (0, 0, lag, 2 * lag),  # so that no number is in two products
    "the edges of one run": lambda lag: (0, 0, 4 * lag, 8 * lag),
    "seed and run exchanged": None,
}


def pairs_of_streams(rng, relation, count):
    """Rows (seed, run, first word) of `count` pairs, and how far apart their words are."""
    one = rng.integers(0, 2**60, size=(count, 3), dtype=np.uint64)
    if relation == "runs of a seed":
        one[:, 0], one[:, 1] = one[0, 0], np.arange(count)
    if relation == "seed and run exchanged":
        return one, one[:, [1, 0, 2]], np.ones(count, dtype=np.uint64)
    added = RELATIONS[relation](rng.integers(1, 65, size=count))
    *shift, stride = (np.broadcast_to(x, count).astype(np.uint64) for x in added)
    return one, one + np.stack(shift, axis=1), stride


@pytest.mark.soak
@pytest.mark.parametrize("relation", RELATIONS)
def test_pairs_of_streams_are_uncorrelated(rng, relation):
    """10⁶ pairs (make test: 20,000) of 128 numbers each.

    Three statistics of S = Σ(u − ½)(v − ½), of mean 0 and variance n/144. The largest |S| is held
    against Chernoff's bound: it finds a single pair with a correlation above 0.75. The mean of S,
    to 6 standard errors, finds a correlation of 6/√(128·N) common to all pairs: 0.0005. The mean of
    S² finds pairs whose correlations differ in sign: 0.02 each, or 0.5 in one pair of 700. A shift
    or a lag shared by two streams would make S = n/12 in every pair.
    """
    length, count = 128, 1_000_000 if oracle.SOAK else 20_000
    S = products(*pairs_of_streams(rng, relation, count), length)
    variance = length / 144
    fourth = length / 80**2 + 3 * length * (length - 1) / 144**2  # E S⁴
    assert abs(S).max() < largest_product(length, count)
    assert abs(S.mean()) < STRICT * math.sqrt(variance / count)
    spread = math.sqrt((fourth - variance**2) / count)
    assert abs((S**2).mean() - variance) < STRICT * spread


# ------------------------------------------------------------------------ distributions


def drawn(rng, normals):
    """A million numbers (soak: 30 million), half of one run, half from the beginnings of many."""
    count = 15_000_000 if oracle.SOAK else 500_000
    seed, run = int(rng.integers(2**63)), int(rng.integers(2**40))
    long, many = np.empty((1, count)), np.empty((count // 10, 10))
    streams.draws(U(seed), run, 0, normals, long)
    streams.draws(U(seed), 0, 0, normals, many)
    return np.concatenate([long.ravel(), many.ravel()])


@pytest.mark.soak
def test_uniform_numbers_are_uniform(rng):
    """Moments to 6 standard errors; the empirical distribution to Massart's bound for 10⁻⁷.

    P(sup|F̂ − F| > ε) ≤ 2exp(−2Nε²): a million find a bias of 0.003 in any quantile, of 0.0017 in
    the mean.
    """
    u = drawn(rng, normals=False)
    assert u.min() >= 0
    assert u.max() < 1
    for k in range(1, 5):
        error = math.sqrt((1 / (2 * k + 1) - 1 / (k + 1) ** 2) / u.size)
        assert abs((u**k).mean() - 1 / (k + 1)) < STRICT * error, k
    assert distance(u, lambda x: x) < massart(u.size)


@pytest.mark.soak
def test_normal_numbers_are_normal(rng):
    """Four moments, the distribution, and how many lie beyond 4: 63 of a million.

    The fourth moment finds a kurtosis off by 0.06, the tail a probability off by a factor of 2.
    """
    z = drawn(rng, normals=True)
    for k, (mean, variance) in enumerate([(0, 1), (1, 2), (0, 15), (3, 96)], start=1):
        assert abs((z**k).mean() - mean) < STRICT * math.sqrt(variance / z.size), k
    assert distance(z, scipy.stats.norm.cdf) < massart(z.size)
    beyond = 2 * scipy.stats.norm.sf(4)
    low, high = scipy.stats.binom.interval(1 - 1e-8, z.size, beyond)
    assert low <= np.sum(abs(z) > 4) <= high
    assert abs(z).max() < 8.6
    pairs = z[: z.size // 2].reshape(-1, 2)
    assert abs((pairs[:, 0] * pairs[:, 1]).mean()) < STRICT / math.sqrt(len(pairs))


def distance(x, cdf):
    """Kolmogorov and Smirnov's."""
    F = cdf(np.sort(x))
    k = np.arange(x.size + 1) / x.size
    return max(np.max(F - k[:-1]), np.max(k[1:] - F))


def massart(count):
    return math.sqrt(math.log(2 / 1e-7) / (2 * count))


def test_logarithm_and_cosine_are_right_to_four_units_in_the_last_place(rng):
    """Against series of 50 digits; the C library's would differ between machines."""
    edges = [2.0**-k for k in range(54)] + [1 - 2.0**-53, math.sqrt(0.5), math.sqrt(0.125)]
    near = [np.nextafter(x, d) for x in edges for d in (0.0, 1.0)]
    points = [*edges, *near, *rng.random(1_000), *(2.0 ** -rng.uniform(0, 53, 500))]
    for x in map(float, points):
        exact = reference.logarithm(x)
        found = Decimal(float(streams.logarithm(x)))
        assert abs(found - exact) <= 4 * Decimal(math.ulp(float(exact))), x
    turns = [k / 16 for k in range(16)]
    near = [abs(np.nextafter(x, d)) for x in turns for d in (-1.0, 1.0)]
    for u in map(float, [*turns, *near, 1 - 2.0**-53, *rng.random(1_000)]):
        found = Decimal(float(streams.cosine(u)))
        assert abs(found - reference.cosine(u)) <= 4 * Decimal(2.0**-53), u
        assert abs(found) <= 1, u


def test_a_normal_number_is_box_and_mullers():
    """√(−2 ln(u + 2⁻⁵³)) cos 2πv from two words; finite for the least and the largest word."""
    rng = np.random.default_rng(oracle.fresh_seed())
    for x, y in [(0, 0), (2**64 - 1, 2**64 - 1), *zip(big(rng, 200), big(rng, 200), strict=True)]:
        u, v = reference.uniform(x), reference.uniform(y)
        expected = math.sqrt(-2 * math.log(u + 2.0**-53)) * float(reference.cosine(v))
        assert streams.normal(U(x), U(y)) == pytest.approx(expected, rel=1e-13, abs=1e-14)


# ------------------------------------------------------------------------ edges and starts


def implied(threshold, other):
    """Probability of each entry of one alias table, exactly."""
    count = len(threshold)
    found = [Fraction(0)] * count
    for i, (own, rest) in enumerate(zip(threshold, other, strict=True)):
        assert 0 <= own <= 1
        found[i] += Fraction(float(own)) / count
        found[int(rest)] += (1 - Fraction(float(own))) / count
    return found


def test_alias_tables_have_the_probabilities_of_the_edges(rng):
    """p(e) = Σ over slots (own share, if it is e's, or the rest) / slots, to 10⁻¹⁵; no sampling."""
    for _ in range(300):
        mdp = made_mdp(
            rng, int(rng.integers(1, 12)), int(rng.integers(1, 5)), bool(rng.integers(2)), False
        )
        mu = mdp.policy("pi").probabilities
        stream, used = streams.stream_of(mdp, "pi")
        e = mdp.edges
        weight = mu[e.state, e.action] * e.probability
        assert_array_equal(used, np.flatnonzero(weight > 0))
        for s, (first, count) in enumerate(zip(stream.first, stream.fan, strict=True)):
            mine = slice(first, first + int(count))
            assert (e.state[used[mine]] == s).all()
            found = implied(stream.threshold[mine], stream.other[mine] - first)
            assert_allclose([float(p) for p in found], weight[used[mine]], rtol=0, atol=1e-15)
        starts = implied(stream.start_threshold, stream.start_other)
        assert_allclose([float(p) for p in starts], mdp.start, rtol=0, atol=1e-15)
        for s in np.flatnonzero(mdp.start == 0):
            assert starts[s] == 0


def test_a_replayed_run_is_drawn_from_its_words(rng):
    """Word 4t chooses the edge, 4t + 1 and 4t + 2 the noise, 4t + 3 the next start."""
    for _ in range(10):
        mdp = made_mdp(rng, 5, 2, True, True)
        seed, run = int(rng.integers(2**63)), int(rng.integers(2**40))
        found = rv.replay(mdp, run=run, seed=seed, steps=60, target="pi", behaviour="mu")
        stream, used = streams.stream_of(mdp, "pi", "mu", seed)
        pi, mu = (mdp.policy(name).probabilities for name in ("pi", "mu"))
        e, n = mdp.edges, mdp.n_states

        def draw(c, first, count, threshold, other, seed=seed, run=run):
            scaled = reference.uniform(reference.word(seed, run, c)) * count
            i = first + int(scaled)
            return int(i if scaled - int(scaled) < threshold[i] else other[i])

        state = draw(reference.START, 0, n, stream.start_threshold, stream.start_other)
        for t in range(60):
            assert found["state"][t] == state
            k = draw(
                4 * t, int(stream.first[state]), stream.fan[state], stream.threshold, stream.other
            )
            edge = used[k]
            x, y = (reference.uniform(reference.word(seed, run, 4 * t + i)) for i in (1, 2))
            z = math.sqrt(-2 * math.log(x + 2.0**-53)) * float(reference.cosine(y))
            assert found["reward"][t] == pytest.approx(
                e.reward[edge] + e.reward_std[edge] * z, rel=1e-12
            )
            assert found["next_state"][t] == e.next_state[edge]
            assert (
                found["rho"][t]
                == pi[e.state[edge], e.action[edge]] / mu[e.state[edge], e.action[edge]]
            )
            state = int(e.next_state[edge])
            if state == rv.END:
                state = draw(4 * t + 3, 0, n, stream.start_threshold, stream.start_other)


def test_a_longer_replay_starts_with_the_shorter(rng):
    """In steps and in episodes, which end where their number does."""
    for _ in range(20):
        mdp = made_mdp(rng, 4, 2, True, bool(rng.integers(2)))
        run, seed = int(rng.integers(100)), int(rng.integers(2**63))
        long = rv.replay(mdp, run=run, seed=seed, steps=3_000)
        short = rv.replay(mdp, run=run, seed=seed, steps=int(rng.integers(1, 3_000)))
        count = int(rng.integers(1, 60))
        whole = rv.replay(mdp, run=run, seed=seed, episodes=count)
        assert whole["terminated"].sum() == count
        assert whole["terminated"][-1]
        for columns in (short, whole):
            size = columns["state"].size
            for name, column in columns.items():
                assert column[: min(size, 3_000)].tobytes() == long[name][:size].tobytes(), name
