"""The linear-Gaussian world: closed forms, sampling, experience, and its environment."""

import importlib
import itertools
import json
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
import scipy.linalg
from click.testing import CliRunner
from gymnasium.utils.env_checker import check_env
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.cli import main
from tests import oracle

ID = "retvar/LinearGaussian-v0"
MODULE = "retvar.linear_gaussian.environment"
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


def summed(F, S, Q, gamma, terms=400):
    """P and c from the definition: the sum of the discounted expected costs of all steps."""
    P, c, power, spread = np.zeros_like(Q), 0.0, np.eye(len(F)), np.zeros_like(S)
    for k in range(terms):
        P = P + gamma**k * power.T @ Q @ power
        c += gamma**k * np.sum(Q * spread)
        spread = F @ spread @ F.T + S
        power = F @ power
    return P, c


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


@pytest.mark.parametrize("d", [1, 3])
def test_the_value_is_the_sum_of_discounted_expected_rewards(d):
    rng = np.random.default_rng(oracle.fresh_seed())
    F, S, Q = world_matrices(rng, d, 0.9)
    P, c = summed(F, S, Q, 0.9)
    world = rv.domains.linear_gaussian(F, S, Q, 0.9)
    scale = np.abs(P).max()
    assert_allclose(world.P, P, atol=1e-9 * scale)
    assert world.c == pytest.approx(c, abs=1e-9 * scale * np.abs(S).max())


def test_sampled_lambda_returns_have_this_mean_and_variance():
    """Walks and V from definitions; 100,000 returns of 60 steps, γ = 0.8 (0.8⁶⁰ = 10⁻⁶).

    Beyond 6.5 standard errors: the squares of deviations have skewness 13, by which the studentised
    error reaches as far as a normal one of 6.0, probability 10⁻⁹; six numbers. Seen: a mean off by
    0.02 std, a variance off by 6%.
    """
    rng = np.random.default_rng(oracle.fresh_seed())
    F = np.array([[0.7, 0.5], [-0.4, 0.8]])
    S = np.array([[0.5, 0.2], [0.2, 0.3]])
    Q = np.array([[1.0, 0.3], [0.3, 0.5]])
    start, gamma, count = np.array([1.0, -0.5]), 0.8, 100_000
    P, c = summed(F, S, Q, gamma)
    walk = [np.tile(start, (count, 1))]
    for _ in range(60):
        push = rng.normal(size=(count, 2)) @ np.linalg.cholesky(S).T
        walk.append(walk[-1] @ F.T + push)
    reward = [-((x @ Q) * x).sum(axis=1) for x in walk]
    value = [-((x @ P) * x).sum(axis=1) - c for x in walk]
    for lam in (1.0, 0.7, 0.0):
        found = value[-1]
        for t in range(59, -1, -1):
            found = reward[t] + gamma * ((1 - lam) * value[t + 1] + lam * found)
        world = rv.domains.linear_gaussian(F, S, Q, gamma, lam)
        squares = (found - found.mean()) ** 2
        for sample, truth in ((found, world.value(start)), (squares, world.variance(start))):
            assert abs(sample.mean() - truth) < 6.5 * sample.std() / np.sqrt(count)


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


def test_with_lambda_0_the_variance_is_that_of_the_td_error():
    rng = np.random.default_rng(oracle.fresh_seed())
    F, S, Q = world_matrices(rng, 3, 0.9)
    world = rv.domains.linear_gaussian(F, S, Q, 0.9, lam=0.0)
    x = rng.normal(size=3)
    noise, weight = nodes(S)
    delta = -(x @ Q @ x) + 0.9 * world.value(F @ x + noise) - world.value(x)
    assert world.variance(x) == pytest.approx(weight @ delta**2, rel=1e-9)


@pytest.mark.parametrize(("S", "gamma"), [(0.0, 0.95), (0.3, 0.0)])
def test_without_noise_or_without_a_future_the_variance_is_0(S, gamma):
    rng = np.random.default_rng(oracle.fresh_seed())
    F = 0.5 * scipy.linalg.orth(rng.normal(size=(3, 3)))
    world = rv.domains.linear_gaussian(F, S, np.eye(3), gamma)
    x = rng.normal(size=(5, 3))
    assert_array_equal(world.variance(x), np.zeros(5))
    assert_array_equal(world.std(x), np.zeros(5))


@pytest.mark.parametrize("lam", [1.0, 0.6])
def test_units_and_coordinates_do_not_matter(lam):
    rng = np.random.default_rng(oracle.fresh_seed())
    F, S, Q = world_matrices(rng, 3, 0.9)
    x = rng.normal(size=(4, 3))
    world = rv.domains.linear_gaussian(F, S, Q, 0.9, lam)
    value, variance = world.value(x), world.variance(x)
    in_cents = rv.domains.linear_gaussian(F, S, 100 * Q, 0.9, lam)
    assert_allclose(in_cents.value(x), 100 * value, rtol=1e-10)
    assert_allclose(in_cents.std(x), 100 * np.sqrt(variance), rtol=1e-10)
    T = scipy.linalg.orth(rng.normal(size=(3, 3))) * [1.0, 3.0, 0.2]
    back = np.linalg.inv(T)
    turned = rv.domains.linear_gaussian(T @ F @ back, T @ S @ T.T, back.T @ Q @ back, 0.9, lam)
    scale = np.abs(x @ world.P).max() * np.abs(x).max() + abs(world.c)
    assert_allclose(turned.value(x @ T.T), value, atol=1e-9 * scale)
    assert_allclose(turned.variance(x @ T.T), variance, rtol=1e-8)


def test_worlds_that_do_not_touch_each_other_add_up():
    rng = np.random.default_rng(oracle.fresh_seed())
    parts = [world_matrices(rng, d, 0.9) for d in (1, 2)]
    one, two = (rv.domains.linear_gaussian(*part, 0.9, 0.8) for part in parts)
    both = rv.domains.linear_gaussian(
        *(scipy.linalg.block_diag(*pair) for pair in zip(*parts, strict=True)), 0.9, 0.8
    )
    x = rng.normal(size=(5, 3))
    apart = one.variance(x[:, :1]) + two.variance(x[:, 1:])
    assert_allclose(both.variance(x), apart, rtol=1e-10)
    scale = 1 + np.abs(one.value(x[:, :1])) + np.abs(two.value(x[:, 1:]))
    assert_allclose(
        (both.value(x) - one.value(x[:, :1]) - two.value(x[:, 1:])) / scale, 0, atol=1e-10
    )


def test_only_the_symmetric_part_of_the_cost_counts():
    F, S = [[0.5, 0.2], [0.0, 0.7]], 0.3
    slanted = rv.domains.linear_gaussian(F, S, [[1.0, 0.8], [0.2, 2.0]], 0.9)
    upright = rv.domains.linear_gaussian(F, S, [[1.0, 0.5], [0.5, 2.0]], 0.9)
    assert_array_equal(slanted.P, upright.P)
    assert_array_equal(slanted.M, upright.M)
    assert slanted.m == upright.m


def test_one_state_gives_a_number_and_several_an_array():
    world = rv.domains.linear_gaussian(0.5 * np.eye(2), 0.3, 1.0, 0.9)
    x = np.arange(12.0).reshape(2, 3, 2)
    for ask in (world.value, world.variance, world.std):
        assert isinstance(ask([1.0, 2.0]), float)
        assert ask(x).shape == (2, 3)
        assert ask(x)[1, 2] == ask(x[1, 2])
        assert ask(np.zeros((0, 2))).shape == (0,)
    with pytest.raises(ValueError, match="read-only"):
        world.P[0, 0] = 1.0


# ---------------------------------------------------------------------- bad and extreme input

GOOD = {"F": [[0.5, 0.1], [0.0, 0.4]], "S": 0.3, "Q": 1.0, "gamma": 0.9}
BAD = [
    ({"F": [[0.5, 0.1]]}, "F", "square"),
    ({"F": []}, "F", "square"),
    ({"F": "walk"}, "F", "matrix of numbers"),
    ({"F": [[np.nan, 0.0], [0.0, 0.1]]}, "F[0,0]", "finite"),
    ({"F": np.inf}, "F", "finite"),
    ({"F": np.zeros((1_001, 1_001))}, "F", "at most 1,000"),
    ({"F": [[0.0, 1e61], [0.0, 0.0]]}, "largest entry of F", "units"),
    ({"S": np.eye(3)}, "S", "shape (2, 2)"),
    ({"S": [0.3, 0.3]}, "S", "shape (2, 2)"),
    ({"S": [[1.0, 0.5], [0.4, 1.0]]}, "S[0,1] and S[1,0]", "equal"),
    ({"S": [[1.0, 2.0], [2.0, 1.0]]}, "S", "none below 0"),
    ({"S": -0.1}, "S", "none below 0"),
    ({"S": 1e-70}, "largest entry of S", "units"),
    ({"Q": None}, "Q", "matrix of numbers"),
    ({"Q": 1e70}, "largest entry of Q", "units"),
    ({"gamma": 1.0}, "gamma", "[0, 1)"),
    ({"gamma": -0.1}, "gamma", "[0, 1)"),
    ({"gamma": np.nan}, "gamma", "[0, 1)"),
    ({"gamma": [0.9]}, "gamma", "[0, 1)"),
    ({"lam": 1.1}, "lam", "[0, 1]"),
    ({"F": 1.1 * np.eye(2)}, "γρ(F)²", "lower γ"),
    ({"F": [[0.9, 1e12], [0.0, 0.9]]}, "F", "rounding"),
    ({"F": [[0.0, 1e60], [0.0, 0.0]], "Q": 1e60, "S": 1e60}, "F", "rounding"),
]


@pytest.mark.parametrize(("change", "field", "remedy"), BAD)
def test_bad_worlds_are_refused_with_field_and_remedy(change, field, remedy):
    with pytest.raises(rv.InputError) as error:
        rv.domains.linear_gaussian(**(GOOD | change))
    assert error.value.field == field
    assert remedy in error.value.remedy


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"B": np.ones((3, 1))}, "B"),
        ({"K": [[1.0, 0.0], [0.0, 1.0]]}, "K"),
        ({"R": np.eye(2)}, "R"),
        ({"noise": -1.0}, "noise"),
        ({"K": [9.0, 0.0]}, "γρ(F)²"),
    ],
)
def test_bad_control_is_refused(change, field):
    good = {"A": np.eye(2), "B": [1.0, 0.5], "K": [0.5, 0.1], "S": 0.1, "Q": 1.0, "gamma": 0.9}
    assert LinearGaussian.controlled(**good).width == 2
    with pytest.raises(rv.InputError) as error:
        LinearGaussian.controlled(**(good | change))
    assert error.value.field == field


@pytest.mark.parametrize("x", [[1.0], 1.0, [np.nan, 0.0], [1e200, 0.0], "origin"])
def test_bad_states_are_refused(x):
    world = rv.domains.linear_gaussian(**GOOD)
    for ask in (world.value, world.variance, world.std):
        with pytest.raises(rv.InputError) as error:
            ask(x)
        assert error.value.field == "x"


def test_extreme_worlds_are_solved_or_refused():
    """Near instability, far from normal, singular, large and small: never NaN, never a warning.

    What is solved satisfies its Bellman equations, to the accuracy that is promised.
    """
    rng = np.random.default_rng(oracle.fresh_seed())
    solved = 0
    for _ in range(400):
        d, gamma = int(rng.integers(1, 4)), 1 - 10.0 ** rng.uniform(-12, 0)
        radius = np.sqrt((1 - 10.0 ** rng.uniform(-14, 0)) / max(gamma, 1e-3))
        F = np.triu(rng.normal(size=(d, d)), 1) * 10.0 ** rng.uniform(-5, 12)
        F += np.diag(rng.choice([-1, 0.5, 1], size=d)) * radius
        S = np.diag(10.0 ** rng.uniform(-20, 20, size=d))
        Q = symmetric(rng, d) * 10.0 ** rng.uniform(-50, 50)
        try:
            world = rv.domains.linear_gaussian(F, S, Q, gamma, rng.choice([0.0, 0.5, 1.0]))
        except rv.InputError:
            continue
        solved += 1
        x = rng.normal(size=d)
        assert np.isfinite([world.value(x), world.variance(x), world.std(x)]).all()
        residual = world.Q + gamma * F.T @ world.P @ F - world.P
        assert np.linalg.norm(residual) <= 1e-7 * np.linalg.norm(world.P)
    assert solved > 40


def test_without_a_stationary_distribution_there_are_values_but_no_walks_from_it():
    rng = np.random.default_rng(oracle.fresh_seed())
    F, S, Q = world_matrices(rng, 2, 0.8, radius=1.05)
    world = rv.domains.linear_gaussian(F, S, Q, 0.8)
    errors = bellman_errors(world, F, S, Q, 0.8, 1.0, rng.normal(size=2))
    assert np.abs(errors).max() < 1e-9
    experience = rv.experience.from_linear_gaussian
    for ask in (world.sample, lambda *_: world.stationary, lambda *_: world.environment(),
                lambda *_: experience(world)):  # fmt: skip
        with pytest.raises(rv.InputError, match="spectral radius of F"):
            ask(2, 10)
    assert world.sample(2, 10, start=[1.0, 0.0])[0].shape == (11, 2, 2)
    with pytest.raises(rv.InputError, match="beyond all bounds"):
        world.sample(1, 20_000, start=[1.0, 0.0])
    near = rv.domains.linear_gaussian(1 - 1e-12, 1.0, 1.0, 0.9)
    with pytest.raises(rv.InputError, match="rounding decides"):
        _ = near.stationary


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"streams": 0, "steps": 5}, "streams"),
        ({"streams": 2, "steps": 0}, "steps"),
        ({"streams": 10**6, "steps": 10**6}, "steps × streams"),
        ({"streams": 2, "steps": 5, "seed": "lucky"}, "seed"),
        ({"streams": 2, "steps": 5, "start": [[0.0, 0.0]] * 3}, "start"),
    ],
)
def test_bad_samples_are_refused(arguments, field):
    with pytest.raises(rv.InputError) as error:
        rv.domains.linear_gaussian(**GOOD).sample(**arguments)
    assert error.value.field == field


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


def test_samples_are_repeatable_and_the_same_in_blocks():
    world = rv.domains.linear_gaussian(**GOOD)
    states, rewards = world.sample(5, 23, seed=7)
    again = world.sample(5, 23, seed=7)
    assert_array_equal(states, again[0])
    assert not np.array_equal(states, world.sample(5, 23, seed=8)[0])
    parts = list(world.walks(5, 23, seed=7, block=4))
    assert_array_equal(np.concatenate([part[1] for part in parts]), rewards)
    assert_array_equal(np.concatenate([part[0][:-1] for part in parts]), states[:-1])
    assert_array_equal(parts[-1][0][-1], states[-1])


def test_singular_noise_moves_only_where_there_is_noise():
    S = np.diag([1.0, 0.0])
    world = rv.domains.linear_gaussian([[0.5, 0.0], [0.0, 0.5]], S, 1.0, 0.9)
    states, _ = world.sample(10, 50)
    assert np.abs(states[:, :, 1]).max() == 0
    assert states[:, :, 0].std() > 0.5


# ---------------------------------------------------------------------- experience


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


def test_experience_refuses_what_is_no_world_or_too_short():
    world = rv.domains.linear_gaussian(**GOOD)
    with pytest.raises(rv.InputError, match="world"):
        rv.experience.from_linear_gaussian(rv.domains.chain())
    with pytest.raises(rv.InputError, match="steps = 63"):
        rv.experience.from_linear_gaussian(world, steps=63)
    with pytest.raises(rv.InputError, match="seed"):
        rv.experience.from_linear_gaussian(world, seed="lucky")


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
        u = world.policy(x)
        after = A @ x + (u + noise[:, 2:]) @ B.T + noise[:, :2]
        target = -(x @ Q @ x) - u @ R @ u + 0.9 * world.value(after)
        assert world.value(x) == pytest.approx(weight @ target, rel=1e-9)
        delta = target - world.value(x)
        second = weight @ (delta**2 + 0.63**2 * world.variance(after))
        assert world.variance(x) == pytest.approx(second, rel=1e-9)
        assert_allclose(u, -K @ x)


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


# ---------------------------------------------------------------------- the environment


def test_the_environment_keeps_the_contract_of_gymnasium():
    for options in ({}, controlled().control._asdict()):
        env = gymnasium.make(ID, **options).unwrapped
        with warnings.catch_warnings():  # advice to bound and normalise spaces
            warnings.simplefilter("ignore")
            check_env(env, skip_render_check=True)
        assert env.observation_space.dtype == np.float64


def test_the_environment_samples_the_same_world():
    """4,000 episodes of 5 steps: starts, moves and rewards; 12 numbers.

    Each lies beyond 6.5 with probability below 10⁻⁹: that of a normal number, 10⁻¹⁰, times 8 for
    the skewness of χ². Seen: a covariance of starts off by 15%, of moves by 7%.
    """
    world = controlled()
    _, _, _, S, _, _, N = world.control
    env = world.environment(steps=5)
    stream = rv.experience.from_gymnasium(env, world.policy, steps=20_000, seed=oracle.fresh_seed())
    chunks = list(stream.chunks())
    column = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    assert stream.names == ["x0", "x1"]
    assert_array_equal(column["truncated"], np.arange(20_000) % 5 == 4)
    assert not column["terminated"].any()
    state, after = column["state"], column["next_state"]
    B = np.array([[0.05], [0.4]])
    spread = S + B @ N @ B.T
    F = np.array([[1.0, 0.2], [0.0, 1.0]]) - B @ [[0.4, 0.9]]
    start = scipy.linalg.solve_discrete_lyapunov(F, spread)
    assert np.abs(whitened_z(state[::5], start)).max() < 6.5
    assert np.abs(whitened_z(after - state @ F.T, spread)).max() < 6.5
    u = -state @ [0.4, 0.9]
    reward = -(state**2) @ [1.0, 0.1] - 0.3 * u**2
    assert_allclose(column["reward"], reward, rtol=1e-10, atol=1e-14)
    assert_allclose(reward, -np.einsum("ni,ij,nj->n", state, world.Q, state), rtol=1e-9, atol=1e-12)


def test_the_reward_is_for_the_action_that_was_intended():
    env = controlled().environment()
    x, _ = env.reset(seed=oracle.fresh_seed())
    _, reward, *_ = env.step(np.array([2.0]))
    assert reward == pytest.approx(-(x**2) @ [1.0, 0.1] - 0.3 * 4.0, rel=1e-12)


def test_the_environment_can_be_made_by_its_id_wherever_retvar_is_known(monkeypatch):
    def forget():
        monkeypatch.delitem(gymnasium.registry, ID, raising=False)
        monkeypatch.delitem(sys.modules, MODULE, raising=False)

    forget()
    stream = rv.experience.from_gymnasium(ID, steps=10, F=0.5, S=0.1)
    assert (stream.width, stream.name) == (1, f"gymnasium:{ID}")
    forget()
    assert gymnasium.make(f"{MODULE}:{ID}").observation_space.shape == (2,)
    monkeypatch.undo()
    importlib.import_module(MODULE)
    script = f"import gymnasium, retvar; print(gymnasium.make({ID!r}, max_episode_steps=3))"
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert "LinearGaussianEnv" in shown


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"F": 1.0}, "spectral radius of F = 1:"),
        ({"A": 1.0}, "give A, B and K"),
        ({"B": 1.0}, "give A, B and K"),
        ({"F": 0.5, "A": 1.0, "B": 1.0, "K": 0.5}, "give one of them"),
        ({"S": -1.0}, "none below 0"),
    ],
)
def test_an_environment_that_cannot_be_made_says_why(options, remedy):
    with pytest.raises(rv.InputError, match="cannot be made") as error:
        rv.experience.from_gymnasium(ID, steps=10, **options)
    assert remedy in str(error.value)


def test_a_policy_that_lets_the_state_grow_ends_the_stream_with_a_reason():
    world = LinearGaussian.controlled(3.0, 1.0, 2.5, S=0.1, Q=1.0, gamma=0.5)
    stream = rv.experience.from_gymnasium(world.environment(), lambda x: [0.0], steps=1_000)
    with pytest.raises(rv.InputError, match="beyond all bounds"):
        list(stream.chunks())
    counts = stream.counts  # the reward is beyond 10²⁴ long before the state is
    assert 300 < counts.transitions + counts.rejected["reward beyond 1e+24 in size"] < 1_000
    env = world.environment().unwrapped
    env.reset(seed=0)
    with pytest.raises(rv.InputError, match="action"):
        env.step([1.0, 2.0])


def test_the_command_line_estimates_it(tmp_path, monkeypatch):
    """F = ½: the mean value is −Σ/(1 − γ) = −1; its standard error is 0.03, so 0.3 is far off."""
    monkeypatch.chdir(tmp_path)
    options = ("--gamma=0.6", "--steps=4000", "--option=F=0.5", "--json", "--formats=none")
    result = CliRunner().invoke(main, ["estimate", f"gymnasium:{ID}", *options])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert np.average(found["value"], weights=found["visits"]) == pytest.approx(-1.0, abs=0.3)


def test_rewards_that_no_sum_can_hold_are_refused_where_they_are_sampled():
    """Least squares would leave out these rows alone, and be wrong about the others."""
    world = rv.domains.linear_gaussian(0.5, 1.0, 1e24, 0.9)
    with pytest.raises(rv.InputError, match=r"reward = .*must be at most 1e\+24 in size"):
        rv.estimate(rv.experience.from_linear_gaussian(world, streams=2, steps=100), gamma=0.9)
