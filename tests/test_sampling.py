"""Sampled returns agree with the closed forms."""

import numpy as np
import pytest

import retvar as rv
from retvar.exact.sampling import _moments
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


def deviations(mdp, question, order=2, **value):
    """Deviations from the closed form in standard errors, the largest of each moment."""
    seed = oracle.fresh_seed()
    sampled = rv.monte_carlo(mdp, *question, samples=SAMPLES, seed=seed, order=order, **value)
    return [np.abs(z).max() for z in sampled.z(rv.solve(mdp, *question, order=order, **value))]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("bootstrap", ["true", "wrong"])
def test_sampled_returns_of_random_mdps_agree_with_the_closed_form(question, bootstrap):
    seed = oracle.fresh_seed()
    for k in range(3):
        value = None if bootstrap == "true" else np.random.default_rng(seed).normal(size=5)
        found = deviations(near(seed + k, 0.25), question, value=value)
        assert max(found) < THRESHOLD, f"seed {seed + k}: {found}"


# Third and fourth moments. 1,500 repetitions with N = 2,000 returns gave statistics with a skew
# between -0.7 and 0.55 on the questions below (with heavier tails, as on the random walk or for the
# off-policy return of the complex MDP, it is beyond 1, and these are left out): below 0.08 in size
# at N = 200,000. As above, a false alarm has a probability below 1e-8. A bias of 8% in the fourth
# moment of a normal return would be detected.
OFF = ("target", "behaviour", "off_policy_return")
CASES = {
    "chain": (rv.domains.chain(), (), 4),
    "walk": (rv.domains.random_walk(8), (), 2),
    "on-policy": (rv.domains.complex_mdp(), ("mu",), 4),
    "target": (rv.domains.complex_mdp(), ("pi", "mu"), 4),
    "off-policy": (rv.domains.complex_mdp(), ("pi", "mu", "off_policy_return"), 2),
    "calm-0": (near(0, 0.05), OFF, 4),
    "calm-1": (near(1, 0.05), ("target",), 4),
    "calm-2": (near(2, 0.05), OFF, 4),
}


@pytest.mark.parametrize("case", CASES)
def test_sampled_moments_agree_with_the_closed_form(case):
    mdp, question, order = CASES[case]
    found = deviations(mdp, question, order)
    assert len(found) == order
    assert max(found) < THRESHOLD, found


def test_moments_of_another_lambda_are_detected():
    """The comparison can fail: a bias of two percent in the variance is seen, the mean is right."""
    chain, mdp = rv.domains.chain(lam=0.9), rv.domains.complex_mdp()
    sampled = rv.monte_carlo(chain, samples=SAMPLES, seed=1)
    z_mean, z_variance = sampled.z(rv.solve(chain, lam=0.88))
    assert np.abs(z_mean).max() < THRESHOLD < np.abs(z_variance).max()
    sampled = rv.monte_carlo(mdp, samples=SAMPLES, seed=1, order=4)
    _, _, *z = sampled.z(rv.solve(mdp, lam=0.9 * mdp.lam, order=4))
    assert min(np.abs(each).max() for each in z) > THRESHOLD


def test_without_randomness_the_sample_is_exact():
    certain = rv.domains.chain(reward_std=0.0)
    sampled = rv.monte_carlo(certain, samples=10)
    assert np.allclose(sampled.mean, [4, 3, 2, 1])
    assert np.allclose(sampled.std, 0)
    assert np.allclose(sampled.second_moment, [16, 9, 4, 1])
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


def test_sampled_moments_are_unbiased():
    """Over all 2⁵ samples of five draws from {0, 1}, weighted by their probability."""
    p = 0.3
    samples = np.array(np.meshgrid(*[[0.0, 1.0]] * 5)).reshape(5, -1).T
    weight = np.prod(np.where(samples == 1, p, 1 - p), axis=1)
    found = _moments(samples, 4)
    for k, field in enumerate(("variance", "third_moment", "fourth_moment"), start=2):
        exact = p * (1 - p) ** k + (1 - p) * (-p) ** k
        assert weight @ found[field] == pytest.approx(exact), field
