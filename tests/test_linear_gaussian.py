"""The linear-Gaussian world: closed forms, sampling and experience."""

import itertools

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from tests import oracle

LinearGaussian = rv.domains.LinearGaussian


def symmetric(rng, d):
    root = rng.normal(size=(d, d))
    return root + root.T


def world_matrices(rng, d, gamma, radius=None):
    """F with γρ(F)² below 1, a covariance, and a symmetric Q that may be indefinite.

    F is not too far from normal, and S not too small, so that rounding stays below 10⁻¹⁰.
    """
    while True:
        F = rng.normal(size=(d, d))
        F /= np.max(np.abs(np.linalg.eigvals(F)))
        if np.linalg.norm(F, 2) < 30:
            break
    F *= rng.uniform(0.1, 0.95) / np.sqrt(max(gamma, 0.3)) if radius is None else radius
    root = rng.normal(size=(d, d))
    return F, root @ root.T + 0.3 * np.eye(d), symmetric(rng, d)


def nodes(S):
    """Points and weights that integrate polynomials of degree 5 against N(0, S) exactly."""
    d = len(S)
    each, weight = (-np.sqrt(3), 0.0, np.sqrt(3)), (1 / 6, 2 / 3, 1 / 6)
    grid = np.array(list(itertools.product(each, repeat=d)))
    weights = np.array([np.prod(w) for w in itertools.product(weight, repeat=d)])
    return grid @ np.linalg.cholesky(S).T, weights


def bellman_errors(world, F, S, Q, gamma, lam, x):
    """How far V and v are from their Bellman equations at x, relative to their parts."""
    noise, weight = nodes(S)
    after = F @ x + noise
    target = -(x @ Q @ x) + gamma * world.value(after)
    value = weight @ target
    delta = target - world.value(x)
    variance = weight @ (delta**2 + (gamma * lam) ** 2 * world.variance(after))
    scale = abs(x @ Q @ x) + gamma * (weight @ np.abs(world.value(after))) + 1e-300
    return (world.value(x) - value) / scale, (world.variance(x) - variance) / variance


# ---------------------------------------------------------------------- closed forms


@pytest.mark.parametrize("lam", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_value_and_variance_satisfy_their_bellman_equations(d, lam):
    """By quadrature that is exact for polynomials of degree 5; V is of degree 2, δ² of degree 4."""
    rng = np.random.default_rng(oracle.fresh_seed())
    for gamma in (0.05, 0.6, 0.95, 0.99):
        F, S, Q = world_matrices(rng, d, gamma)
        world = rv.domains.linear_gaussian(F, S, Q, gamma, lam)
        for x in rng.normal(size=(d * (d + 1) // 2 + 2, d)) * 3:
            assert np.abs(bellman_errors(world, F, S, Q, gamma, lam, x)).max() < 1e-9


def test_in_one_dimension_the_numbers_are_those_worked_out_by_hand():
    """F = ½, S = Q = 1, γ = 4/5: P = 1/(1 − ⅕) = 5/4, c = 4/5·5/4·5 = 5, M = 1/0.84, …."""
    world = rv.domains.linear_gaussian(0.5, 1.0, 1.0, 0.8)
    assert_allclose(world.P, [[1.25]], rtol=1e-14)
    assert_allclose(world.M, [[1 / 0.84]], rtol=1e-14)
    assert world.c == pytest.approx(5.0, rel=1e-14)
    assert world.m == pytest.approx((2 + 0.64 / 0.84) / 0.36, rel=1e-14)
    assert world.value([2.0]) == pytest.approx(-10.0, rel=1e-14)
    half = rv.domains.linear_gaussian(0.5, 1.0, 1.0, 0.8, lam=0.5)
    assert half.M[0, 0] == pytest.approx(1 / 0.96, rel=1e-14)
    assert half.m == pytest.approx((2 + 0.16 / 0.96) / 0.84, rel=1e-14)


# ---------------------------------------------------------------------- sampling


def whitened_z(sample, covariance):
    """Errors of mean and covariance of normal samples, in standard errors."""
    n, d = sample.shape
    white = np.linalg.solve(np.linalg.cholesky(covariance), sample.T)
    product = white @ white.T / n - np.eye(d)
    spread = np.sqrt((1 + np.eye(d)) / n)
    return np.concatenate([white.mean(axis=1) * np.sqrt(n), (product / spread).ravel()])


def test_walks_start_and_stay_in_the_stationary_distribution():
    """40,000 walks; 36 numbers, each beyond 6.5 with probability below 10⁻⁹.

    The skewness of χ² raises that of a normal number, 10⁻¹⁰, by a factor of 2. Seen: a covariance
    off by 5%.
    """
    rng = np.random.default_rng(oracle.fresh_seed())
    F, S, Q = world_matrices(rng, 3, 0.9, radius=0.9)
    world = rv.domains.linear_gaussian(F, S, Q, 0.9)
    truth = scipy.linalg.solve_discrete_lyapunov(F, S)
    assert_allclose(world.stationary, truth, atol=1e-10 * np.abs(truth).max())
    states, rewards = world.sample(40_000, 6, seed=oracle.fresh_seed())
    for t in (0, 6):
        assert np.abs(whitened_z(states[t], truth)).max() < 6.5
    moves = states[1] - states[0] @ F.T
    assert np.abs(whitened_z(moves, S)).max() < 6.5
    assert_allclose(rewards, -np.einsum("tni,ij,tnj->tn", states[:-1], Q, states[:-1]), rtol=1e-9,
                    atol=1e-9 * np.abs(rewards).max())  # fmt: skip


# ---------------------------------------------------------------------- experience

GOOD = {"F": [[0.5, 0.1], [0.0, 0.4]], "S": 0.3, "Q": 1.0, "gamma": 0.9}


@pytest.mark.parametrize(("streams", "steps"), [(7, 50), (1, 20), (64, 20_000)])
def test_experience_is_the_sample_with_interleaved_streams(streams, steps):
    world = rv.domains.linear_gaussian(**GOOD)
    experience = rv.experience.from_linear_gaussian(world, streams=streams, steps=steps, seed=3)
    chunks = list(experience.chunks())
    column = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    states, rewards = world.sample(streams, -(-steps // streams), seed=3)
    assert_array_equal(column["state"], states[:-1].reshape(-1, 2)[:steps])
    assert_array_equal(column["next_state"], states[1:].reshape(-1, 2)[:steps])
    assert_array_equal(column["reward"], rewards.ravel()[:steps])
    assert_array_equal(column["stream"], np.arange(steps) % streams)
    assert not column["terminated"].any()
    last = [np.flatnonzero(column["stream"] == s)[-1] for s in range(streams)]
    assert_array_equal(np.flatnonzero(column["truncated"]), np.sort(last))
    assert (experience.width, experience.names) == (2, ["x0", "x1"])
    assert experience.counts.transitions == experience.length == steps


# ---------------------------------------------------------------------- control


def controlled(K=((0.4, 0.9),), gamma=0.9, lam=1.0):
    """A cart: position and velocity, pushed by one force."""
    return LinearGaussian.controlled(
        A=[[1.0, 0.2], [0.0, 1.0]], B=[[0.05], [0.4]], K=K, S=np.diag([0.01, 0.05]),
        Q=np.diag([1.0, 0.1]), R=0.3, noise=0.2, gamma=gamma, lam=lam,
    )  # fmt: skip


def test_a_policy_is_folded_into_motion_noise_and_cost():
    """Bellman equations over the noise of action and state apart, in three dimensions."""
    rng = np.random.default_rng(oracle.fresh_seed())
    world = controlled(lam=0.7)
    A, B, K, S, Q, R, N = world.control
    noise, weight = nodes(scipy.linalg.block_diag(S, N))
    for x in rng.normal(size=(5, 2)):
        u = -K @ x
        after = A @ x + (u + noise[:, 2:]) @ B.T + noise[:, :2]
        target = -(x @ Q @ x) - u @ R @ u + 0.9 * world.value(after)
        assert world.value(x) == pytest.approx(weight @ target, rel=1e-9)
        delta = target - world.value(x)
        second = weight @ (delta**2 + 0.63**2 * world.variance(after))
        assert world.variance(x) == pytest.approx(second, rel=1e-9)


def test_the_gain_with_the_best_mean_is_that_of_the_riccati_equation():
    """And a stronger one has less spread: there is something to trade."""
    A, B, _, _, Q, R, _ = controlled().control
    root = np.sqrt(0.9)
    X = scipy.linalg.solve_discrete_are(root * A, root * B, Q, R)
    K = np.linalg.solve(R + 0.9 * B.T @ X @ B, 0.9 * B.T @ X @ A)
    x = [0.5, 0.0]
    best = controlled(K).value(x)
    rng = np.random.default_rng(oracle.fresh_seed())
    for _ in range(20):
        assert controlled(K + 0.1 * rng.normal(size=K.shape)).value(x) < best
    assert controlled(1.5 * K).std(x) < controlled(K).std(x)
