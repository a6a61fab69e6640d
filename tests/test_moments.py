"""Third and fourth moments in closed form, and in which states moments are finite."""

import itertools
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from tests import oracle
from tests.test_fixed_points import contracting
from tests.test_solve import QUESTIONS, acyclic_mdp, one_state

PARTS, DECIDED = (10, 500) if oracle.SOAK else (1, 120)  # MDPs whose finite moments are decided


# ---------------------------------------------------------------------- the numbers


def test_complex_mdp_has_the_skewness_and_kurtosis_of_the_specification():
    truth = rv.solve(rv.domains.complex_mdp(), "mu", order=4)
    skewness = [-0.141819, -0.141819, 1.349646, -0.317384, -1.207959]
    kurtosis = [-1.196910, -1.196910, 2.815726, -1.701393, 0.054544]
    assert_allclose(truth.skewness, skewness, atol=5e-7)
    assert_allclose(truth.kurtosis, kurtosis, atol=5e-7)


def test_a_normal_return_has_neither_skewness_nor_excess_kurtosis():
    truth = rv.solve(rv.domains.chain(lam=0.9, length=20), order=4)
    assert_allclose(truth.skewness, 0, atol=1e-12)
    assert_allclose(truth.kurtosis, 0, atol=1e-12)


@pytest.mark.parametrize("end", [0.05, 0.5, 0.9])
def test_a_geometric_return_has_the_moments_of_the_textbook(end):
    """Steps until an end of probability p: skewness (2−p)/√(1−p), excess kurtosis 6 + p²/(1−p)."""
    edges = [(0, 0, 0, 1 - end, 1.0), (0, 0, "end", end, 1.0)]
    truth = rv.solve(rv.MDP.from_edges(edges, gamma=1.0, lam=1.0), order=4)
    assert_allclose(truth.variance, (1 - end) / end**2)
    assert_allclose(truth.skewness, (2 - end) / np.sqrt(1 - end))
    assert_allclose(truth.kurtosis, 6 + end**2 / (1 - end))


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("bootstrap", ["true", "random"])
def test_moments_equal_those_of_all_paths_enumerated(question, bootstrap):
    """Acyclic MDPs have finitely many paths: their moments need no Bellman equation."""
    target, behaviour, estimand = question
    walked = None if estimand == "target_return" else behaviour
    for seed in range(5):
        mdp = acyclic_mdp(seed)
        value = None if bootstrap == "true" else np.random.default_rng(seed).normal(size=5)
        solution = rv.solve(mdp, *question, value=value, order=4)
        rows = oracle.transitions(mdp, target, walked, estimand)
        full = [(*row[:-1], 1.0) for row in rows]  # the true value is the mean for λ = 1
        true = [oracle.path_moments(mdp, s, full, np.zeros(5))[0] for s in range(5)]
        assert_allclose(solution.value, true, atol=1e-12)
        H = solution.value if value is None else value
        expected = np.array([oracle.path_moments(mdp, s, rows, H) for s in range(5)])
        found = (solution.mean, solution.variance, solution.third_moment, solution.fourth_moment)
        assert_allclose(np.stack(found, axis=1), expected, rtol=1e-10, atol=1e-11)


# ---------------------------------------------------------------------- learners in expectation


class Nodes:
    """The expected updates of a learner in plain NumPy, from raw edges.

    Normal rewards are averaged over the four points of Gauss–Hermite quadrature, exact for
    polynomials up to degree 7.
    """

    def __init__(self, mdp, question, method):
        rows = np.array(oracle.transitions(mdp, *question))
        points, weights = np.polynomial.hermite_e.hermegauss(4)
        s, s_next, p, rho, eta, rho_bar, r, sd, g, lm = np.repeat(rows, 4, axis=0).T
        self.n, self.method = mdp.n_states, method
        self.s, self.s_next = s.astype(int), s_next.astype(int)
        self.p = p * np.tile(weights / weights.sum(), len(rows))
        self.r = r + sd * np.tile(points, len(rows))
        self.rho, self.eta, self.rho_bar, self.g, self.lm = rho, eta, rho_bar, g, lm

    def mean(self, x):
        return np.bincount(self.s, self.p * x, self.n)

    def step(self, alpha, alpha_bar, J, G, V, M3, M4):
        """One sweep; all nodes see the predictions of the sweep before."""
        s, t, c = self.s, self.s_next, self.eta * self.g * self.lm
        delta = self.r + self.g * J[t] - J[s]
        short = self.eta * (self.r + self.g * (1 - self.lm) * J[t])
        around = epsilon = short + c * G[t] - G[s]
        if self.method == "direct":
            epsilon = self.eta * (self.r + self.g * J[t]) - J[s]
        fed, old = epsilon**2, V
        if self.method == "vtd":  # V is the second moment, until the end
            fed, old = short**2 + 2 * c * short * J[t], V + J**2
        third = epsilon**3 + 3 * c**2 * epsilon * V[t]
        fourth = epsilon**4 + 6 * c**2 * epsilon**2 * V[t] + 4 * c**3 * epsilon * M3[t]
        new_J = J + alpha * self.mean(self.rho * delta)
        second = old + alpha_bar * self.mean(self.rho_bar * (fed + c**2 * old[t] - old[s]))
        return (
            new_J,
            G + alpha_bar * self.mean(self.rho_bar * around),
            second - new_J**2 if self.method == "vtd" else second,
            M3 + alpha_bar * self.mean(self.rho_bar * (third + c**3 * M3[t] - M3[s])),
            M4 + alpha_bar * self.mean(self.rho_bar * (fourth + c**4 * M4[t] - M4[s])),
        )


@pytest.mark.parametrize("method", ["direct", "vtd", "centred"])
def test_expected_updates_are_those_in_plain_numpy(method):
    """Sweep by sweep from a random start, and none of the nodes waits for another."""
    rng = np.random.default_rng(3)
    for question, sweeps in itertools.product(QUESTIONS, (1, 5)):
        target, behaviour, estimand = question
        (mdp,) = contracting(rng, question, 1, np.inf, 4)
        now, (alpha, alpha_bar) = tuple(rng.normal(size=(5, mdp.n_states))), rng.uniform(0.2, 1, 2)
        J, G, V, M3, M4 = now
        found = rv.expected_updates(
            method, mdp, rv.Estimates(J, V, G, M3, M4), alpha=alpha, alpha_bar=alpha_bar,
            sweeps=sweeps, target=target, behaviour=behaviour, estimand=estimand,
            order=2 if method == "vtd" else 4,
        )  # fmt: skip
        for _ in range(sweeps):
            now = Nodes(mdp, question, method).step(alpha, alpha_bar, *now)
        wanted = dict(zip(("value", "mean", "variance", "third_moment", "fourth_moment"), now,
                          strict=True))  # fmt: skip
        if method == "vtd":
            wanted = {name: wanted[name] for name in ("value", "variance")}
        for name, x in wanted.items():
            assert_allclose(getattr(found, name), x, rtol=1e-10, atol=1e-10, err_msg=name)


# ---------------------------------------------------------------------- finite or not


def gambler(**settings) -> rv.MDP:
    """`s1` has E[ρ²γ²] = 1.48, `s0` leads there, `s3` is like `s1` but without rewards.

    `s2` is left often enough for a variance (E[c²] = 0.73), but not for a third moment (1.25). `s4`
    leads to `s3`, and to the end with a reward of 3.
    """
    edges = [
        ("s0", 0, "s1", 1.0, 0.0), ("s0", 1, "s2", 1.0, 0.0),
        ("s1", 0, "s1", 1.0, 1.0), ("s1", 1, "s1", 1.0, 0.0),
        ("s2", 0, "end", 0.5, 1.0), ("s2", 0, "s2", 0.5, 0.0), ("s2", 1, "end", 1.0, 2.0),
        ("s3", 0, "s3", 1.0, 0.0), ("s3", 1, "s3", 1.0, 0.0),
        ("s4", 0, "s3", 0.5, 0.0), ("s4", 0, "end", 0.5, 3.0), ("s4", 1, "end", 1.0, 3.0),
    ]  # fmt: skip
    policies = {"pi": np.tile([0.9, 0.1], (5, 1)), "mu": np.full((5, 2), 0.5)}
    return rv.MDP.from_edges(edges, **{"gamma": 0.95, "policies": policies, **settings})


OFF = ("pi", "mu", "off_policy_return")


def test_states_that_cannot_reach_an_expanding_part_keep_their_variance():
    mdp = gambler()
    found = rv.solve(mdp, *OFF)
    assert np.isnan(found.variance).tolist() == [True, True, False, False, False]
    assert found.finite_order.tolist() == [1, 1, 2, 2, 2]
    assert found.variance[3] == 0
    # s4: ρ = 1.8 or 0.2, 3/4 of all ends; E[G] = 3(0.9/2 + 0.1), E[G²] = 9(1.62/2 + 0.02)
    assert found.variance[4] == pytest.approx(9 * (0.81 + 0.02) - (3 * 0.55) ** 2)
    alone = gambler(lam=[1.0, 0.0, 1.0, 1.0, 1.0])  # λ = 0 on arrival in s1 ends its return
    assert_allclose(found.variance[2:], rv.solve(alone, *OFF).variance[2:])
    assert np.isfinite(rv.solve(alone, *OFF).variance).all()


def test_without_noise_the_variance_is_zero_whatever_the_radius():
    """All rewards 0: every return is 0."""
    mdp = gambler()
    policies = {name: mdp.policy(name).probabilities for name in mdp.policies}
    silent = mdp.edges._replace(reward=0 * mdp.edges.reward)
    zero = rv.MDP(silent, lam=mdp.lam, policies=policies)
    found = rv.solve(zero, *OFF, order=4)
    assert found.spectral_radius == pytest.approx(0.9025 * 1.64)
    for moment in (found.variance, found.third_moment, found.fourth_moment):
        assert np.array_equal(moment, np.zeros(5))
    assert np.isnan(found.kurtosis).all()
    wrong = rv.solve(zero, *OFF, value=np.ones(5), lam=0.9)  # ρH is noise
    assert np.isnan(wrong.variance).any()


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1.0, 1.1, 3.3])
def test_rewards_that_make_up_for_every_ratio_leave_no_noise_but_rounding(value):
    """G = ρ(R + γG′) with R = J/ρ − γJ is J for certain; 1/ρ = ½ or 3/2, so that E[c²] = 1.08."""
    edges = [(0, str(inverse), 0, 1.0, inverse * value - 0.9 * value) for inverse in (0.5, 1.5)]
    edges += [(1, "0.5", "end", 1.0, 0.0, 1.0), (1, "1.5", "end", 1.0, 0.0, 1.0)]
    mdp = rv.MDP.from_edges(edges, gamma=0.9, lam=1.0)
    pi, mu = np.full((2, 2), 0.5), [[0.25, 0.75], [0.5, 0.5]]
    found = rv.solve(mdp, pi, mu, "off_policy_return")
    assert_allclose(found.spectral_radius, 1.08)
    assert_array_equal(found.variance, [0.0, 1.0])


@pytest.mark.parametrize(("order", "moment"), [(2, 1.64), (3, 2.92), (4, 5.2496)])
def test_a_moment_exists_if_and_only_if_its_own_radius_is_below_one(order, moment):
    limit = moment ** (-1 / order)
    rv.solve(one_state(limit * (1 - 1e-9)), *OFF, order=order)
    for gamma in (limit, limit * (1 + 1e-9)):
        with pytest.raises(rv.InfiniteVarianceError) as caught:
            rv.solve(one_state(gamma), *OFF, order=order)
        assert caught.value.order == order
        assert caught.value.radius == pytest.approx(1)
        if order > 2:
            assert rv.solve(one_state(gamma), *OFF, order=order - 1).finite_order == [order - 1]
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.order) == (str(caught.value), order)


def parts_mdp(rng) -> rv.MDP:
    """A random MDP of several parts: few ways, some without rewards, λ = 0 here and there."""
    n = int(rng.integers(3, 8))
    edges = []
    for s in range(n):
        pays = rng.random() < 0.4
        for a in range(2):
            low = int(rng.choice([0, s]))  # half of the ways lead onwards
            ends = rng.random() < 0.15
            ways = ["end"] if ends else [int(rng.integers(low, n)) for _ in range(2)]
            for to in ways:
                r, sd = (rng.normal(), rng.choice([0.0, 1.0])) if pays else (0.0, 0.0)
                edges.append(rv.Edge(s, a, to, 1 / len(ways), r, sd))
    pi = rng.dirichlet([0.8, 0.8], n)
    lam = np.where(rng.random(n) < 0.15, 0.0, rng.uniform(0.7, 1.0, n))
    policies = {"pi": 0.98 * pi + 0.01, "mu": np.full((n, 2), 0.5)}
    gamma = np.where(rng.random(n) < 0.1, 0.0, rng.uniform(0.7, 0.99, n))
    return rv.MDP.from_edges(edges, states=n, gamma=gamma, lam=lam, policies=policies)


def truncated_moments(mdp, steps):
    """V, M₃, M₄ of the return whose deviations end after so many steps, and after half of them.

    (1, V, M₃, M₄) of n + 1 steps is a matrix times that of n steps. Values are sums over
    paths, so that those of states without rewards are exactly 0.
    """
    n, rows = mdp.n_states, oracle.transitions(mdp, *OFF)
    PG, j = np.zeros((n, n)), np.zeros(n)
    for s, t, p, _, eta, _, r, _, g, _ in rows:
        PG[s, t] += p * eta * g
        j[s] += p * eta * r
    for _ in range(14):  # the values of 1, 2, 4, … steps
        j, PG = j + PG @ j, PG @ PG
    T = np.zeros((1 + 3 * n, 1 + 3 * n))
    T[0, 0] = 1
    for s, t, p, _, eta, _, r, sd, g, lm in rows:
        e, c, w = eta * (r + g * j[t]) - j[s], eta * g * lm, (eta * sd) ** 2
        V, M3, M4 = (1 + k * n for k in range(3))
        T[V + s, 0] += p * (e**2 + w)
        T[V + s, V + t] += p * c**2
        T[M3 + s, 0] += p * (e**3 + 3 * e * w)
        T[M3 + s, V + t] += p * 3 * c**2 * e
        T[M3 + s, M3 + t] += p * c**3
        T[M4 + s, 0] += p * (e**4 + 6 * e**2 * w + 3 * w**2)
        T[M4 + s, V + t] += p * 6 * c**2 * (e**2 + w)
        T[M4 + s, M3 + t] += p * 4 * c**3 * e
        T[M4 + s, M4 + t] += p * c**4
    z, half = np.eye(1 + 3 * n)[0], None
    for step in range(steps):
        if step == steps // 2:
            half = z
        z = np.clip(T @ z, -1e200, 1e200)
    return half[1:].reshape(3, n), z[1:].reshape(3, n)


def near_one(mdp) -> bool:
    """Whether a part has a radius too close to 1 for a truncated series to tell."""
    n, rows = mdp.n_states, oracle.transitions(mdp, *OFF)
    for k in (2, 3, 4):
        M = np.zeros((n, n))
        for s, t, p, _, eta, _, _, _, g, lm in rows:
            M[s, t] += p * (eta * g * lm) ** k
        sizes = np.abs(np.linalg.eigvals(M))
        if np.any((sizes > 0.97) & (sizes < 1.03)):
            return True
    return False


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_moments_are_finite_where_the_truncated_series_converges(part):
    """The deviations of longer and longer returns are a martingale: E|X|ᵏ grows to its limit.

    So V and M₄ of the first 2ⁿ steps tell whether the limit is finite; M₃ converges where it is.
    """
    seed = [oracle.fresh_seed(), part]
    rng = np.random.default_rng(seed)
    seen = dict.fromkeys(["all", "some", "none", "silent"], 0)
    for _ in range(DECIDED):
        mdp = parts_mdp(rng)
        if near_one(mdp):
            continue
        short, long = truncated_moments(mdp, 4_096)
        settled = np.isclose(short, long, rtol=1e-9, atol=1e-9) & (np.abs(long) < 1e50)
        if not settled[2].any():
            with pytest.raises(rv.InfiniteVarianceError):
                rv.solve(mdp, *OFF, order=4)
            seen["none"] += 1
            continue
        found = rv.solve(mdp, *OFF, order=4)
        assert np.array_equal(found.finite_order >= 2, settled[0]), seed
        assert np.array_equal(found.finite_order >= 4, settled[2]), seed
        assert np.all(settled[1][found.finite_order >= 3]), seed
        for row, moment in zip(long, (found.variance, found.third_moment, found.fourth_moment),
                               strict=True):  # fmt: skip
            known = np.isfinite(moment)
            size = np.max(np.abs(row[known]), initial=1.0)
            assert_allclose(moment[known], row[known], atol=1e-8 * size, err_msg=str(seed))
        seen["all" if settled.all() else "some"] += 1
        seen["silent"] += bool(found.spectral_radius >= 1 and settled[0].any())
    assert not oracle.SOAK or min(seen.values()) > 0, seen


@pytest.mark.parametrize("method", ["direct", "vtd", "centred"])
def test_fixed_points_are_finite_where_the_moments_are(method):
    mdp = gambler()
    truth = rv.solve(mdp, *OFF)
    order = 2 if method == "vtd" else 4
    point = rv.fixed_point(method, mdp, *OFF, order=order)
    assert np.isnan(point.variance).tolist() == [True, True, False, False, False]
    assert_allclose(point.variance[2:], truth.variance[2:], atol=1e-12)
    if order == 4:
        assert_allclose(point.kurtosis[4], rv.solve(mdp, *OFF, order=4).kurtosis[4])
        assert np.isnan(point.fourth_moment).tolist() == [True, True, True, False, False]
    with pytest.raises(rv.InfiniteVarianceError):
        rv.fixed_point(method, one_state(0.95), *OFF)


def test_a_table_is_not_stable_where_a_moment_is_infinite():
    """A = I − E[c²] of one state is negative if E[c²] > 1."""
    calm, wild = one_state(0.7), gambler(lam=[1.0, 1.0, 1.0, 0.0, 1.0])
    assert rv.fixed_point("direct", calm, *OFF).stable
    point = rv.fixed_point("direct", wild, *OFF)
    assert not point.stable
    assert point.nodes["value"].stable


def test_features_ignore_an_expanding_part_that_is_left_for_ever():
    """s0 repeats itself with E[c²] > 1 before it goes on to s1 and s2, which the start is not."""
    edges = [(0, a, 0, 0.9, 1.0) for a in (0, 1)] + [(0, a, 1, 0.1, 0.0) for a in (0, 1)]
    edges += [(1, a, 2, 1.0, 0.0) for a in (0, 1)] + [(2, a, 1, 0.5, 1.0 + a) for a in (0, 1)]
    edges += [(2, a, "end", 0.5, 0.0) for a in (0, 1)]
    policies = {"pi": np.tile([0.9, 0.1], (3, 1)), "mu": np.full((3, 2), 0.5)}
    mdp = rv.MDP.from_edges(edges, gamma=0.95, lam=0.9, policies=policies, start=[0.0, 1.0, 0.0])
    rest = [(s - 1, a, t if t == "end" else t - 1, p, r) for s, a, t, p, r in edges if s > 0]
    alone = rv.MDP.from_edges(
        rest,
        gamma=0.95,
        lam=0.9,
        start=[1.0, 0.0],
        policies={k: v[1:] for k, v in policies.items()},
    )
    assert np.isnan(rv.solve(mdp, *OFF).variance).tolist() == [True, False, False]
    X = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 3.0]])
    whole = rv.fixed_point("direct", mdp, *OFF, features=X[:, :1], kappa_bar=0.5, kappa=0.2)
    part = rv.fixed_point("direct", alone, *OFF, features=X[1:, :1], kappa_bar=0.5, kappa=0.2)
    assert_allclose(whole.variance[1:], part.variance, rtol=1e-10)
    assert_allclose(whole.rmse, part.rmse, rtol=1e-10)
