"""Exact derivatives of mean and variance, against complex steps through the closed forms.

The oracle builds dense complex matrices from raw edges and shares no code with the package. A
complex step has no rounding from differences: f(π + ihΔ) has the derivative along Δ as imaginary
part, up to h² = 10⁻⁶⁰.
"""

import numpy as np
import pytest

import retvar as rv
from tests.oracle import END, SOAK, fresh_seed

STEP = 1e-30
CASES = 1_000 if SOAK else 60
CLOSE = 1e-12  # of max(|derivative|, variance)
ROUNDING = 1e-14  # of values times their derivatives, in the oracle


def mean_and_variance(mdp, pi, mu, estimand, lam, start):
    """Mean and variance of the return from a start distribution, for complex probabilities π.

    Also the scale of rounding, a value times its derivative, and ‖(I − B)⁻¹‖, which amplifies it.
    """
    n = mdp.n_states
    PG, B = np.zeros((2, n, n), dtype=complex)
    reward = np.zeros(n, dtype=complex)
    rows = []
    for s, a, s_next, p, r, sd, g in zip(*mdp.edges, strict=True):
        off = estimand == "off_policy_return" and mu is not None
        if off and mu[s, a] == 0:
            continue
        b, eta = (mu[s, a] * p, pi[s, a] / mu[s, a]) if off else (pi[s, a] * p, 1.0)
        rows.append((s, s_next, b, eta, r, sd, g))
        reward[s] += b * eta * r
        if s_next != END:
            PG[s, s_next] += b * eta * g
            B[s, s_next] += b * (eta * g * lam[s_next]) ** 2
    j = np.linalg.solve(np.eye(n) - PG, reward)
    source = np.zeros(n, dtype=complex)
    for s, s_next, b, eta, r, sd, g in rows:
        after = 0.0 if s_next == END else g * j[s_next]
        source[s] += b * ((eta * (r + after) - j[s]) ** 2 + (eta * sd) ** 2)
    v = np.linalg.solve(np.eye(n) - B, source)
    mean = start @ j
    size = np.max(np.abs(j.real)) * (1 + np.max(np.abs(j.imag)) / STEP)
    amplified = np.linalg.norm(np.linalg.inv(np.eye(n) - B.real), np.inf)
    return mean, start @ (v + (j - mean) ** 2), size, amplified


def random_case(rng):
    """An MDP, policies, an estimand, λ and a start: parallel edges, noise, γ and λ by state."""
    n, k = int(rng.integers(1, 9)), int(rng.integers(2, 5))
    ends = float(rng.choice([0.0, 0.3]))
    mdp = rv.domains.random_mdp(
        n, k, int(rng.integers(1, 4)), rng,
        gamma=1.0 if ends and rng.random() < 0.5 else (0.0, 0.99),
        lam=1.0 if rng.random() < 0.5 else (0.0, 1.0),
        reward_std=(0.0, 1.0) if rng.random() < 0.5 else 0.0,
        reward_mean=float(rng.choice([0.0, 3.0])), ends=ends, parallel=True,
    )  # fmt: skip
    pi = rng.dirichlet(np.ones(k), n)
    if rng.random() < 0.4:  # some actions are never taken, some always
        pi[rng.random((n, k)) < 0.4] = 0
        pi[pi.sum(axis=1) == 0, 0] = 1
        pi /= pi.sum(axis=1, keepdims=True)
    mu = 0.5 * pi + 0.5 * rng.dirichlet(np.ones(k), n) if rng.random() < 0.6 else None
    estimand = str(rng.choice(["target_return", "off_policy_return"]))
    lam = rng.random(n) if rng.random() < 0.3 else None
    start = rng.dirichlet(np.ones(n)) if rng.random() < 0.5 else np.eye(n)[rng.integers(n)]
    return mdp, pi, mu, estimand, lam, start


def finite(case):
    """The gradient; None if the policy never ends, or the variance is infinite close by."""
    mdp, pi, mu, estimand, lam, start = case
    try:
        gradient = rv.policy_gradient(mdp, pi, mu, estimand, lam, start=start)
    except rv.InputError:
        return None
    return None if np.isinf(gradient.variance).any() else gradient


def random_direction(rng, allowed):
    """A change of a policy whose rows sum to 0, with entries where it is allowed."""
    direction = np.where(allowed, rng.normal(size=allowed.shape), 0.0)
    return direction - allowed * (direction.sum(1) / allowed.sum(1))[:, None]


@pytest.mark.soak
def test_derivatives_along_the_simplex_agree_with_complex_steps():
    """To 10⁻¹² of max(|derivative|, variance), also by softmax parameters.

    The oracle's rounding comes on top: its values have a relative error of 10⁻¹⁶, and it multiplies
    them with their derivatives; this is amplified as the variance is. In 10,000 cases no error
    exceeded 6% of the bound, and 4 exceeded 10⁻¹² of max(|derivative|, variance).
    """
    rng = np.random.default_rng(fresh_seed())
    done = off_policy = 0
    while done < CASES:
        case = random_case(rng)
        gradient = finite(case)
        if gradient is None:
            continue
        mdp, pi, mu, estimand, lam, start = case
        weighted = mu is not None and estimand == "off_policy_return"
        direction = random_direction(rng, mu > 0 if weighted else np.ones(pi.shape, dtype=bool))
        softmax = pi * (direction - (pi * direction).sum(axis=1, keepdims=True))
        for way, parts in (
            (direction, (gradient.mean, gradient.variance)),
            (softmax, gradient.softmax),
        ):
            arriving = mdp.lam if lam is None else lam
            m, s, size, amplified = mean_and_variance(
                mdp, pi + 1j * STEP * way, mu, estimand, arriving, start
            )
            if amplified > 100:  # the variance is close to infinite, and so is rounding
                break
            dm, ds = m.imag / STEP, s.imag / STEP
            rounding = ROUNDING * size * amplified
            found = [float(np.sum(part * direction)) for part in parts]
            assert abs(found[0] - dm) <= CLOSE * max(abs(dm), abs(m.real)) + rounding
            assert abs(found[1] - ds) <= CLOSE * max(abs(ds), s.real) + rounding
        if amplified > 100:
            continue
        assert gradient.return_mean == pytest.approx(m.real, rel=1e-10, abs=1e-10)
        assert gradient.return_variance == pytest.approx(s.real, rel=1e-10, abs=1e-10)
        done += 1
        off_policy += weighted
    assert off_policy > CASES / 10


def test_rows_are_centred_and_actions_that_cannot_be_taken_are_zero():
    mdp = rv.domains.complex_mdp()
    gradient = rv.policy_gradient(mdp, "pi", "mu", "off_policy_return")
    pi = mdp.policy("pi").probabilities
    for part in (gradient.mean, gradient.variance):
        assert np.abs((pi * part).sum(axis=1)).max() < 1e-15
        assert not part[~mdp.available].any()
    only = rv.policy_gradient(mdp, "pi", "pi", "off_policy_return")
    assert pi[1, 2] == 0
    assert only.variance[1, 2] == 0  # the behaviour never does this
    assert rv.policy_gradient(mdp, "pi").variance[1, 2] != 0


def test_the_variance_of_a_start_distribution_includes_the_spread_between_its_states():
    """Two certain rewards, 0 and 2, each from one of two starts; moving one moves the spread."""
    edges = [(0, 0, "end", 1.0, 0.0), (1, 0, "end", 1.0, 2.0), (1, 1, "end", 1.0, 4.0)]
    mdp = rv.MDP.from_edges(edges, gamma=1.0)
    half = rv.policy_gradient(mdp, [[1, 0], [1, 0]], start=[0.5, 0.5])
    assert half.return_variance == pytest.approx(1.0)
    # with probability p of 4, the return is 0, 2 or 4: variance 2 + 6p − (1 + p)², less 0 at p = 0
    assert half.variance[1, 1] == pytest.approx(6 - 2)
    assert rv.policy_gradient(mdp, [[1, 0], [1, 0]], start=1).return_variance == 0


def test_an_action_not_taken_that_makes_the_variance_infinite_has_an_infinite_derivative():
    """From the loop ηγ = 0.9 · 0.95/0.5 > 1; the coin beside it is safe."""
    edges = [("loop", a, "loop", 1.0, 1.0 - a) for a in (0, 1)]
    edges += [("coin", 0, "end", 1.0, 1.0), ("coin", 1, "loop", 1.0, 0.0)]
    mdp = rv.MDP.from_edges(edges, gamma=0.95)
    pi, mu = [[0.9, 0.1], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]
    gradient = rv.policy_gradient(mdp, pi, mu, "off_policy_return", start="coin")
    assert gradient.variance[1].tolist() == [0.0 + gradient.variance[1, 0], np.inf]
    assert np.isfinite(gradient.mean).all()
    assert not gradient.softmax.variance[1, 1]
    with pytest.raises(rv.InputError) as caught:
        rv.policy_gradient(mdp, pi, mu, "off_policy_return", start="loop")
    assert caught.value.field == "start"


def test_an_action_where_no_episode_comes_has_a_derivative_of_zero():
    """The side room leads to an infinite variance; from the start it is never reached."""
    edges = [("start", 0, "end", 1.0, 1.0, 1.0), ("start", 1, "end", 1.0, 0.0)]
    edges += [("side", 0, "end", 1.0, 1.0, 1.0), ("side", 1, "loop", 1.0, 0.0, 1.0)]
    edges += [("loop", a, "loop", 1.0, 0.5 * a, 1.0) for a in (0, 1)]
    mdp = rv.MDP.from_edges(edges, gamma=0.9, lam=1.0)
    pi, mu = [[0.5, 0.5], [1.0, 0.0], [0.9, 0.1]], [[0.5, 0.5], [0.5, 0.5], [0.1, 0.9]]
    gradient = rv.policy_gradient(mdp, pi, mu, "off_policy_return", start="start")
    assert gradient.variance[1].tolist() == [0.0, 0.0]
