"""Sampled returns agree with the closed forms."""

import numpy as np
import pytest

import retvar as rv
from tests import oracle
from tests.test_solve import QUESTIONS

# Deviations are compared in standard errors. 20,000 repetitions with N = 2,000 returns, on seven
# questions like those below, gave statistics with a skew between -0.75 (the random walk) and 0.2;
# skew shrinks with √N, to below 0.08 in size at N = 200,000. At 7 standard errors a normal variate
# with that skew is exceeded with probability below 2e-10 (Edgeworth), and there are fewer than 300
# comparisons: a false alarm once in 10⁷ runs. A bias of 2.2% in the variance of a normal return, or
# of 1.6% of a standard deviation in its mean, would be detected.
SAMPLES = 200_000
THRESHOLD = 7.0


def near(seed: int, off: float) -> rv.MDP:
    """A target near the behaviour: off-policy returns have the moments that the threshold needs."""
    mdp = rv.domains.random_mdp(5, 2, 3, seed=seed, gamma=(0.0, 0.9), parallel=True, ends=0.1)
    half = np.full((5, 2), 0.5)
    return mdp.replace(policies={"target": half + np.array([off, -off]), "behaviour": half})


CASES = {
    "chain": (rv.domains.chain(), ()),
    "walk": (rv.domains.random_walk(8), ()),
    "on-policy": (rv.domains.complex_mdp(), ("mu",)),
    "target": (rv.domains.complex_mdp(), ("pi", "mu")),
    "off-policy": (rv.domains.complex_mdp(), ("pi", "mu", "off_policy_return")),
} | {f"random-{k}": (near(k, 0.25), QUESTIONS[k]) for k in range(3)}


@pytest.mark.parametrize("bootstrap", ["true", "wrong"])
@pytest.mark.parametrize("case", CASES)
def test_sampled_returns_agree_with_the_closed_form(case, bootstrap):
    mdp, question = CASES[case]
    seed = oracle.fresh_seed()
    wrong = np.random.default_rng(seed).normal(size=mdp.n_states)
    value = None if bootstrap == "true" else wrong
    sampled = rv.monte_carlo(mdp, *question, samples=SAMPLES, seed=seed, value=value)
    z = sampled.z(rv.solve(mdp, *question, value=value))
    assert np.abs(z).max() < THRESHOLD, f"seed {seed}: {z}"


def test_another_lambda_is_detected():
    """The comparison can fail: a bias of two percent in the variance is seen, the mean is right."""
    chain = rv.domains.chain(lam=0.9)
    sampled = rv.monte_carlo(chain, samples=SAMPLES, seed=1)
    z_mean, z_variance = sampled.z(rv.solve(chain, lam=0.88))
    assert np.abs(z_mean).max() < THRESHOLD < np.abs(z_variance).max()


def test_without_randomness_the_sample_is_exact():
    certain = rv.domains.chain(reward_std=0.0)
    sampled = rv.monte_carlo(certain, samples=10)
    assert np.allclose(sampled.mean, [4, 3, 2, 1])
    assert np.allclose(sampled.std, 0)
    for z in sampled.z(rv.solve(certain)):
        assert np.all(z == 0)


def test_standard_errors_are_calibrated():
    """Z over 2,000 small samples has variance 1: an inflated error would let everything pass.

    Mean of 8,000 z² (4 states × 2,000): 1 ± 7 standard errors of √(2/8000), and skew adds little.
    With N = 400 normal returns the variance's z has a spread of 1.02.
    """
    chain = rv.domains.chain()
    truth = rv.solve(chain)
    rng = np.random.default_rng(oracle.fresh_seed())
    z = [rv.monte_carlo(chain, samples=400, seed=rng).z(truth) for _ in range(2_000)]
    for k in range(2):
        spread = np.mean([np.square(pair[k]) for pair in z])
        assert 0.87 < spread < 1.16, ("mean", "variance")[k]
