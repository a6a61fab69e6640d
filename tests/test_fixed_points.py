"""Fixed points: closed form against iteration, bias formulas, linear features."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retvar as rv
from retvar.td import networks
from tests import oracle
from tests.test_solve import QUESTIONS, one_state

METHODS = ("direct", "vtd", "centred")
MOMENTS = ("variance", "third_moment", "fourth_moment")
BATCHES, BATCH = (40, 250) if oracle.SOAK else (1, 150)  # make nightly: 10,000 MDPs


def drawn_mdp(rng: np.random.Generator) -> rv.MDP:
    """A small random MDP that has everything: parallel edges, noise, ends, γ and λ of 0 and 1."""
    states = int(rng.integers(2, 8))
    mdp = rv.domains.random_mdp(
        states,
        int(rng.integers(1, 4)),
        int(rng.integers(1, 4)),
        seed=rng,
        parallel=True,
        ends=float(rng.choice([0.0, 0.2])),
    )
    special = [
        np.where(rng.random(states) < 0.2, rng.integers(0, 2, states), x)
        for x in (rng.random(states), mdp.lam)
    ]
    return mdp.replace(gamma=special[0], lam=special[1])


def contraction(mdp: rv.MDP, question, order=2) -> float:
    target, behaviour, estimand = question
    try:
        rv.solve(mdp, target)
    except rv.InputError:  # some states never reach γ < 1
        return np.inf
    orders = range(2, order + 1)
    radii = (oracle.radius(mdp, target, behaviour, estimand, order=k) for k in orders)
    return max(oracle.value_radius(mdp, target), *radii)


def contracting(rng, question, count, most, order=2) -> list[rv.MDP]:
    found = []
    while len(found) < count:
        mdp = drawn_mdp(rng)
        if contraction(mdp, question, order) < most:
            found.append(mdp)
    return found


def side_by_side(mdps: list[rv.MDP]) -> rv.MDP:
    """One MDP made of all of them, without links between them, so that one sweep updates all."""
    shifts = np.cumsum([0, *(m.n_states for m in mdps)])
    columns = []
    for field in range(7):
        parts = [m.edges[field] for m in mdps]
        if field == 0:
            parts = [p + k for p, k in zip(parts, shifts, strict=False)]
        if field == 2:
            parts = [np.where(p < 0, p, p + k) for p, k in zip(parts, shifts, strict=False)]
        columns.append(np.concatenate(parts))
    actions = max(m.n_actions for m in mdps)
    widths = [((0, 0), (0, actions - m.n_actions)) for m in mdps]
    policies = {
        name: np.concatenate(
            [np.pad(m.policy(name).probabilities, w) for m, w in zip(mdps, widths, strict=True)]
        )
        for name in ("target", "behaviour")
    }
    lam = np.concatenate([m.lam for m in mdps])
    return rv.MDP(tuple(columns), lam=lam, policies=policies, actions=actions)


def converged(method, mdp, question, H, moments):
    """Iterate the expected updates to convergence; with H = None the value node learns too."""
    target, behaviour, estimand = question
    zero = np.zeros(mdp.n_states)
    now = rv.Estimates(zero if H is None else H, zero, zero)
    for _ in range(60):
        new = rv.expected_updates(
            method, mdp, now, sweeps=100, learn_value=H is None, target=target,
            behaviour=behaviour, estimand=estimand, order=1 + len(moments),
        )  # fmt: skip
        pairs = ((getattr(new, k), getattr(now, k)) for k in moments)
        settled = all(y is not None and np.allclose(x, y, rtol=0, atol=1e-13) for x, y in pairs)
        now = new
        if settled:
            break
    return [getattr(now, name) for name in moments]


@pytest.mark.soak
@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("batch", range(BATCHES))
def test_iterated_expected_updates_reach_the_fixed_point(batch, order):
    """Every method, all three questions, learned and random value functions, on fresh MDPs.

    `make test` takes 150, `make nightly` 10,000; a quarter of that with moments up to order 4. The
    two sides share no formula: the updates average the learner's own rules over edges and
    quadrature points, the fixed point is closed. Centred has no bias.
    """
    seed = [oracle.fresh_seed(), batch, order]
    rng = np.random.default_rng(seed)
    moments = MOMENTS[: order - 1]
    count, most = (BATCH, 0.98) if order == 2 else (BATCH // 4, 0.85)
    for question in QUESTIONS:
        mdps = contracting(rng, question, count, most, order)
        together = side_by_side(mdps)
        cuts = np.cumsum([m.n_states for m in mdps])[:-1]
        wrong = rng.normal(scale=2.0, size=together.n_states)
        for H in (None, wrong):
            values = [None] * count if H is None else np.split(H, cuts)
            for method in METHODS if order == 2 else ("direct", "centred"):
                reached = converged(method, together, question, H, moments)
                for number, (mdp, value) in enumerate(zip(mdps, values, strict=True)):
                    point = rv.fixed_point(method, mdp, *question, value=value, order=order)
                    truth = rv.solve(mdp, *question, value=value, order=order)
                    highest = np.abs(getattr(truth, moments[-1])).max()
                    scale = max(1.0, highest ** (2 / order), (point.value**2).max())
                    for k, (name, all_of_it) in enumerate(zip(moments, reached, strict=True), 2):
                        found = getattr(point, name)
                        gap = np.max(np.abs(np.split(all_of_it, cuts)[number] - found))
                        where = f"{method} {question} {name} seed {seed}"
                        assert gap <= 1e-10 * scale ** (k / 2), f"{where}: off by {gap:.1e}"
                        bias = np.max(np.abs(found - getattr(truth, name)))
                        if method == "centred":
                            assert bias <= 1e-10 * scale ** (k / 2), f"{where}: bias {bias:.1e}"


def pieces(mdp, question):
    """Dense matrices of the theory, from raw edges: S, PG, P2γ², and edge rows for E[·]."""
    rows = oracle.transitions(mdp, *question)
    n = mdp.n_states
    B, PG, P2 = np.zeros((3, n, n))
    for s, s_next, p, rho, eta, rho_bar, _, _, g, lm in rows:
        B[s, s_next] += p * rho_bar * (eta * g * lm) ** 2
        PG[s, s_next] += p * rho * g
        P2[s, s_next] += p * rho_bar * (eta * g) ** 2
    return rows, np.linalg.inv(np.eye(n) - B), PG, P2, B


@pytest.mark.parametrize("question", QUESTIONS)
def test_bias_of_direct_and_vtd_is_what_the_theory_says(question):
    """V_d − v = D² − 2Sc and V_v − v = D² + 2S(Hδ̂ − c), with D = g − H."""
    rng = np.random.default_rng(oracle.fresh_seed())
    for _ in range(50):
        mdp = drawn_mdp(rng)
        if contraction(mdp, question) >= 0.98:
            continue
        H = rng.normal(size=mdp.n_states)
        truth = rv.solve(mdp, *question, value=H)
        rows, S, _, _, _ = pieces(mdp, question)
        D = truth.mean - H
        c, expected_delta = np.zeros((2, mdp.n_states))
        for s, s_next, p, rho, eta, rho_bar, r, _, g, lm in rows:
            inside = eta * (r + g * H[s_next]) - H[s]
            c[s] += p * rho_bar * inside * eta * g * lm * D[s_next]
            expected_delta[s] += p * rho * (r + g * H[s_next])
        expected_delta -= H
        scale = max(1.0, truth.variance.max(), (H**2).max())
        direct = rv.fixed_point("direct", mdp, *question, value=H)
        vtd = rv.fixed_point("vtd", mdp, *question, value=H)
        assert_allclose(direct.bias, D**2 - 2 * S @ c, atol=1e-10 * scale)
        assert_allclose(vtd.bias, D**2 + 2 * S @ (H * expected_delta - c), atol=1e-10 * scale)


def test_corrected_bound_of_theorem_1_holds_and_the_printed_one_fails():
    """|v − E[δ² + γ²λ²v′]| ≤ 3ε with (Ĵ − g)² and the covariance bounded by ε over all states.

    As printed, with j in place of g and state by state, it fails in about a quarter of the cases.
    """
    rng = np.random.default_rng(oracle.fresh_seed())
    printed_fails = cases = 0
    while cases < 300:
        mdp = drawn_mdp(rng)
        question = ("target", None, "target_return")
        if contraction(mdp, question) >= 0.98:
            continue
        cases += 1
        H = rng.normal(size=mdp.n_states)
        truth = rv.solve(mdp, value=H)
        rows, *_, B = pieces(mdp, question)
        delta_squared, with_g, with_j = np.zeros((3, mdp.n_states))
        for s, s_next, p, *_, r, sd, g, lm in rows:
            delta = r + g * H[s_next] - H[s]
            delta_squared[s] += p * (delta**2 + sd**2)
            with_g[s] += p * g * lm * delta * (truth.mean[s_next] - H[s_next])
            with_j[s] += p * g * lm * delta * (truth.value[s_next] - H[s_next])
        residual = np.abs(truth.variance - delta_squared - B @ truth.variance)
        eps = max(np.max((H - truth.mean) ** 2), np.max(np.abs(with_g)))
        assert np.all(residual <= 3 * eps + 1e-9)
        printed = np.maximum((H - truth.value) ** 2, np.abs(with_j))
        printed_fails += bool(np.any(residual > 3 * printed + 1e-9))
    assert printed_fails > 0.05 * cases


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_one_hot_features_give_the_table_whatever_the_traces(method, question):
    mdp = rv.domains.random_mdp(7, 2, 3, seed=8, gamma=(0.1, 0.8), lam=(0.0, 0.7))
    rng = np.random.default_rng(1)
    kappa, kappa_bar = rng.random((2, 7))
    for value in (None, rng.normal(size=7)):
        table = rv.fixed_point(method, mdp, *question, value=value)
        traces = {"kappa": kappa, "kappa_bar": kappa_bar}
        linear = rv.fixed_point(method, mdp, *question, value=value, features=np.eye(7), **traces)
        assert_allclose(linear.variance, table.variance, atol=1e-10)
        assert linear.stable


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_linear_fixed_points_solve_the_system_of_the_expected_traces(method, question):
    """A and b built by iterating the expected trace, edge by edge, from the update equations."""
    mdp = rv.domains.random_mdp(8, 2, 2, seed=5, gamma=(0.2, 0.7), lam=(0.2, 0.9), ends=0.1)
    rng = np.random.default_rng(2)
    X, Y, Phi = (rng.normal(size=(8, k)) for k in (2, 3, 4))
    kappa, kappa_mean, kappa_bar = rng.random((3, 8))
    features = {"features": Phi, "value_features": X, "mean_features": Y}
    traces = {"kappa": kappa, "kappa_bar": kappa_bar, "kappa_mean": kappa_mean}
    moments = MOMENTS[:1] if method == "vtd" else MOMENTS
    order = 1 + len(moments)
    point = rv.fixed_point(method, mdp, *question, **features, **traces, order=order)
    rows = oracle.transitions(mdp, *question)
    shares = oracle.time_shares(mdp, question[1] or question[0])

    def rest(features, decay, discount, weight, reward):
        A, b = oracle.mean_trace_system(features, rows, decay, discount, weight, reward, shares)
        return features @ np.linalg.solve(A, b), A

    S, S_NEXT, _P, RHO, ETA, RHO_BAR, R, SD, G, L = range(10)

    def c(e):
        return e[ETA] * e[G] * e[L]

    def mean_reward(e):
        return e[ETA] * (e[R] + e[G] * (1 - e[L]) * J[e[S_NEXT]])

    J, _ = rest(X, kappa, lambda e: e[G], lambda e: e[RHO], lambda e: e[R])
    assert_allclose(point.value, J, atol=1e-9)
    mean = J
    if method == "centred":
        mean, _ = rest(Y, kappa_mean, c, lambda e: e[RHO_BAR], mean_reward)
        assert_allclose(point.mean, mean, atol=1e-9)
    below = {}

    def fed(e, order):
        noise = (e[ETA] * e[SD]) ** 2
        if method == "vtd":
            longer = 2 * c(e) * mean_reward(e) * J[e[S_NEXT]]
            return mean_reward(e) ** 2 + longer + noise
        if method == "direct":
            off = e[ETA] * (e[R] + e[G] * J[e[S_NEXT]]) - J[e[S]]
        else:
            off = mean_reward(e) + c(e) * mean[e[S_NEXT]] - mean[e[S]]
        V, M3 = (below[k][e[S_NEXT]] if k in below else 0.0 for k in (2, 3))
        return {
            2: off**2 + noise,
            3: off**3 + 3 * off * noise + 3 * c(e) ** 2 * off * V,
            4: off**4 + 6 * off**2 * noise + 3 * noise**2
            + 6 * c(e) ** 2 * (off**2 + noise) * V + 4 * c(e) ** 3 * off * M3,
        }[order]  # fmt: skip

    for k, name in enumerate(moments, 2):
        settings = kappa_bar, lambda e, k=k: c(e) ** k, lambda e: e[RHO_BAR]
        below[k], A = rest(Phi, *settings, lambda e, k=k: fed(e, k))
        own = below[k] - J**2 if method == "vtd" else below[k]
        assert_allclose(getattr(point, name), own, rtol=1e-7, atol=1e-7)
        node = point.nodes["second_moment" if method == "vtd" else name]
        spectra = np.sort_complex(node.spectrum), np.sort_complex(np.linalg.eigvals(A))
        assert_allclose(*spectra, atol=1e-10)


def test_unstable_off_policy_linear_td_is_reported():
    """The θ → 2θ example: one feature (1, 2), the target always goes to the second state."""
    edges = [
        (0, "back", 0, 1.0, 1.0),
        (0, "on", 1, 1.0, 0.0),
        (1, "back", 0, 1.0, 0.0),
        (1, "on", 1, 1.0, 0.0),
    ]
    policies = {"on": [[0.0, 1.0], [0.0, 1.0]], "mostly-back": [[0.9, 0.1], [0.9, 0.1]]}
    mdp = rv.MDP.from_edges(edges, gamma=0.99, lam=0.5, policies=policies)
    X = np.array([[1.0], [2.0]])
    off = rv.fixed_point("direct", mdp, "on", "mostly-back", features=X)
    on = rv.fixed_point("direct", mdp, "on", features=X)
    assert not off.nodes["value"].stable
    assert not off.stable
    assert on.stable


@pytest.mark.parametrize(
    ("estimand", "moment"), [("off_policy_return", 5.2496), ("target_return", 1.64)]
)
def test_traces_without_a_second_moment_are_reported(estimand, moment):
    """E[ρ⁴](γλ)⁴κ̄² for the off-policy return and E[ρ²](γλ)⁴κ̄² for the target's: 1 is the limit."""
    mdp = one_state(0.95, 0.8)
    for kappa_bar in (0.5, 1.0):
        point = rv.fixed_point("direct", mdp, "pi", "mu", estimand, kappa_bar=kappa_bar)
        radius = moment * 0.76**4 * kappa_bar**2
        assert point.nodes["variance"].trace_radius.value == pytest.approx(radius)
        assert point.traces_finite == (radius < 1)


def test_fixed_points_of_the_random_walk_have_the_known_errors():
    """RMSE 5.32 for direct; centred 13.35 with κ_mean = 0 and 5.32 with 0.95, features as J's."""
    walk = rv.domains.random_walk()
    x = np.arange(1, 31) / 30
    line, curve = np.stack([x**0, x], axis=1), np.stack([x**0, x, x**2], axis=1)
    shared = {"features": curve, "value_features": line, "mean_features": line}
    shared |= {"kappa": 0.95, "kappa_bar": 0.95}
    assert rv.fixed_point("direct", walk, **shared).rmse == pytest.approx(5.32, abs=0.005)
    assert rv.fixed_point("centred", walk, **shared).rmse == pytest.approx(5.32, abs=0.005)
    cold = rv.fixed_point("centred", walk, **shared, kappa_mean=0.0)
    assert cold.rmse == pytest.approx(13.35, abs=0.005)


@pytest.mark.parametrize("question", QUESTIONS)
def test_trace_radii_of_all_nodes_follow_from_the_second_moment_of_the_trace(question):
    """E[E²] obeys a linear recursion whose matrix, built edge by edge, has these radii.

    Per transition a trace is multiplied by its discount, its κ and its weight: for the value ργκ,
    for the mean ρ̄(ηγλ)κ_mean, for the variance ρ̄(ηγλ)²κ̄; the square of that, on average.
    """
    mdp = rv.domains.random_mdp(6, 2, 3, seed=9, gamma=(0.5, 1.0), lam=(0.5, 1.0), ends=0.1)
    rng = np.random.default_rng(4)
    kappas = rng.random((3, 6))
    if question[2] == "off_policy_return":  # or the variance is infinite
        mdp = mdp.replace(lam=mdp.lam / 3)
    traces = dict(zip(("kappa", "kappa_mean", "kappa_bar"), kappas, strict=True))
    point = rv.fixed_point("centred", mdp, *question, **traces)
    second = np.zeros((3, 6, 6))
    for s, s_next, p, rho, eta, rho_bar, _, _, g, lm in oracle.transitions(mdp, *question):
        factors = (rho * g, rho_bar * eta * g * lm, rho_bar * (eta * g * lm) ** 2)
        for node in range(3):
            second[node, s, s_next] += p * (factors[node] * kappas[node, s_next]) ** 2
    for node, name in enumerate(("value", "mean", "variance")):
        expected = np.max(np.abs(np.linalg.eigvals(second[node])))
        assert point.nodes[name].trace_radius.value == pytest.approx(expected), name


def test_a_network_that_is_registered_has_a_fixed_point_of_its_own(monkeypatch):
    """A fourth method: a node of the squared return without bootstrapping, less the square of J."""
    vtd = networks.NETWORKS["vtd"]

    def squared(x, read):
        target = x.reward + x.gamma * read.value.after
        return target * target - (x.gamma * x.lam * read.value.after) ** 2

    node = vtd.variance.node._replace(name="square", reward=squared)
    value = vtd.nodes[0]
    fourth = vtd._replace(
        method="fourth", nodes=(value, node), variance=networks.Estimate(node, value)
    )
    monkeypatch.setitem(networks.NETWORKS, "fourth", fourth)
    mdp, wrong = rv.domains.complex_mdp(), [1.0, -1.0, 2.0, 0.5, 3.0]
    for value in (None, wrong):
        found = rv.fixed_point("fourth", mdp, value=value)
        assert_allclose(
            found.variance, rv.fixed_point("vtd", mdp, value=value).variance, atol=1e-12
        )
        assert set(found.nodes) == ({"value", "square"} if value is None else {"square"})
    swept = rv.expected_updates("fourth", mdp, sweeps=2_000, alpha=0.5, alpha_bar=0.5)
    assert_allclose(swept.variance, rv.solve(mdp).variance, atol=1e-9)


@pytest.mark.parametrize(
    "reward", [np.abs, np.exp, lambda error: error**6, lambda error: np.minimum(error**2, 4.0)]
)
def test_rewards_that_are_no_polynomials_of_the_noise_are_refused(monkeypatch, reward):
    """Their expectation is not that of three points; without noise every reward has one."""
    direct = networks.NETWORKS["direct"]
    node = direct.variance.node._replace(reward=lambda x, read: reward(read.value.error))
    other = direct._replace(
        method="other", nodes=(direct.nodes[0], node), variance=networks.Estimate(node)
    )
    monkeypatch.setitem(networks.NETWORKS, "other", other)
    for compute in (rv.fixed_point, rv.expected_updates):
        with pytest.raises(rv.InputError) as caught:
            compute("other", rv.domains.random_mdp(5, 2, 3, seed=1))
        assert caught.value.field == "method"
        compute("other", rv.domains.complex_mdp())
