"""The law of the return: every bracket contains the truth, and is as narrow as it says."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

import retvar as rv
from retvar.exact.law_bounds import Refinement
from retvar.exact.sampling import _Walk

SEEDS = range(12)


def world(seed, most=12):
    """A random MDP and a question: discounts, λ and noise by state, episodes, off-policy."""
    rng = np.random.default_rng(seed)
    states = int(rng.integers(2, most))
    noise = (0.0, 1.0) if seed % 3 else 0.0
    common = {"branching": int(rng.integers(1, min(states, 4) + 1)), "seed": seed}
    if seed % 4 == 2:
        episodes = {"gamma": 1.0, "lam": (0.5, 1.0), "ends": float(rng.uniform(0.2, 0.5))}
        return rv.domains.random_mdp(states, reward_std=noise, **episodes, **common), {}
    mdp = rv.domains.random_mdp(states, reward_std=noise, **common)
    estimand = "off_policy_return" if seed % 8 < 4 else "target_return"
    asked = {"behaviour": "behaviour", "estimand": estimand} if seed % 4 == 3 else {}
    return mdp, asked


def contains(bracket, truth, rounding=1e-9):
    low, high = bracket
    return np.all(low - rounding <= truth) and np.all(truth <= high + rounding)


def enumerated(rewards, gamma, steps):
    """Atoms and probabilities of Σ γᵗRₜ over so many steps, with independent rewards."""
    atoms = {Fraction(0): Fraction(1)}
    for t in range(steps):
        moved = {}
        for (x, p), (r, q) in itertools.product(atoms.items(), rewards.items()):
            y = x + Fraction(gamma) ** t * r
            moved[y] = moved.get(y, 0) + p * q
        atoms = moved
    x = np.array(sorted(atoms), dtype=object)
    return x.astype(float), np.array([float(atoms[a]) for a in x])


def tail_mean(x, p, share):
    taken = np.clip(share - np.append(0.0, np.cumsum(p)[:-1]), 0.0, p)
    return float(taken @ x / share)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_exact_std_lies_in_the_bracket_of_every_state(seed):
    mdp, asked = world(seed)
    exact, law = rv.solve(mdp, **asked), rv.law(mdp, **asked)
    assert contains(law.std, exact.std, 0.0)
    assert np.all(law.std.high - law.std.low <= law.width * exact.std + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_brackets_contain_the_law_from_the_first_step_on(seed):
    mdp, asked = world(seed)
    refinement = Refinement(rv.solve(mdp, **asked), 1e-3)
    *_, last = refinement.iterates()
    limit = np.linspace(-1, 1, mdp.n_states) * refinement.solution.std

    def answers(bounds):
        return [
            bounds.std(), bounds.worst(0.05), bounds.best(0.05), bounds.quantile(0.3),
            bounds.below(limit),
        ]  # fmt: skip

    for bounds in itertools.islice(refinement.iterates(every=1), 3):
        for (low, high), (least, most) in zip(answers(bounds), answers(last), strict=True):
            assert np.all(low <= most + 1e-12)  # both contain the truth, so they meet
            assert np.all(least <= high + 1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_sampled_returns_agree_with_cvar_quantiles_and_probabilities(seed):
    """60,000 returns from one state; alarms from five standard errors on, 1e-5 over all cases."""
    mdp, asked = world(seed)
    exact = rv.solve(mdp, **asked)
    state, n = seed % mdp.n_states, 60_000
    walk = _Walk(exact._edges, exact.value, np.random.default_rng(seed), 100_000)
    x = np.sort(walk.returns(np.array([state]), n)[0])
    found = exact.law()[state]
    size = 1e-9 * max(1.0, float(np.abs(x).max()))
    for share in (0.05, 0.3):
        limit = x[int(share * n)]
        worst = np.minimum(x - limit, 0.0) / share + limit
        reach = 5 * worst.std() / np.sqrt(n) + size
        low, high = found.cvar(share)
        assert low - reach <= worst.mean() <= high + reach
        low, high = found.quantile(share)
        reach = 5 * np.sqrt(n * share * (1 - share))
        ranks = np.searchsorted(x, [low - size, high + size])
        assert ranks[0] - reach <= share * n <= ranks[1] + reach
    for limit in (exact.mean[state], x[n // 10] + 1e-6):
        low, high = found.probability_below(limit)
        reach = 5 * np.sqrt(max(low, 1 / n) / n) + 0.1 * (high - low)
        assert low - reach <= np.mean(x < limit - size)
        assert np.mean(x < limit + size) <= high + 5 * np.sqrt(max(high, 1 / n) / n)


@pytest.mark.parametrize("gamma", [0.5, 0.75, 1.0])
def test_laws_of_few_atoms_are_those_of_enumerated_paths(gamma):
    rewards = {Fraction(-3): Fraction(1, 4), Fraction(2): Fraction(3, 4)}
    steps = 6
    edges = [
        (t, 0, t + 1 if t + 1 < steps else "end", float(q), float(r), 0.0, gamma * (t + 1 < steps))
        for t in range(steps) for r, q in rewards.items()
    ]  # fmt: skip
    law = rv.law(rv.MDP.from_edges(edges, lam=1.0))
    for state in range(steps):
        x, p = enumerated(rewards, Fraction(gamma), steps - state)
        found, mean = law[state], float(p @ x)
        std = float(np.sqrt(p @ (x - mean) ** 2))
        assert contains(found.std, std)
        assert found.std.high - found.std.low <= 1e-3 * std
        for share in (0.05, 0.31):
            truth = tail_mean(x, p, share)
            assert contains(found.cvar(share), truth)
            assert contains(found.quantile(share), x[np.searchsorted(np.cumsum(p), share)])
        upper = -tail_mean(-x[::-1], p[::-1], 0.05)
        assert contains(found.cvar(tail="upper"), upper)
        assert max(np.diff(found.cvar())[0], np.diff(found.cvar(tail="upper"))[0]) <= 1e-3 * std
        for limit in (*x[:: max(1, x.size // 5)], mean + 0.01):
            assert contains(found.probability_below(limit), p[x < limit].sum(), 1e-12)


def loop(reward, gamma, *, noise=0.0, rare=0.0):
    """One state, left to itself or, rarely, with a reward of 100 more."""
    usual = (0, 0, 0, 1 - rare, reward, noise)
    return rv.MDP.from_edges([usual, (0, 0, 0, rare, reward + 100, noise)], gamma=gamma, lam=1.0)


@pytest.mark.parametrize("reward", [0.0, 1.0, -1e120, 1e-120])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.999])
def test_a_return_without_noise_is_one_atom(reward, gamma):
    edges = [(0, 0, 1, 1.0, reward), (1, 0, 1, 1.0, reward)]
    law = rv.law(rv.MDP.from_edges(edges, gamma=gamma, lam=1.0))
    truth = reward / (1 - gamma)
    rounding = 1e-8 * abs(truth) + 1e-300
    assert contains(law.std, 0.0)
    assert np.all(law.std.high <= rounding)
    for bracket in (law.cvar(), law.cvar(tail="upper"), law.quantile(0.5)):
        assert contains(bracket, truth, 1e-15 * abs(truth))
        assert np.all(bracket.high - bracket.low <= 4 * rounding)
    below, above = truth - 2 * rounding, truth + 2 * rounding
    assert contains(law.probability_below(below), 0.0)
    assert contains(law.probability_below(above), 1.0)


@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e100])
def test_brackets_scale_with_rewards(scale):
    edges = [(0, 0, 1, 0.3, 1.0 * scale), (0, 0, 1, 0.7, -2.0 * scale), (1, 0, 0, 1.0, 0.5 * scale)]
    law = rv.law(rv.MDP.from_edges(edges, gamma=0.9, lam=1.0))
    plain = rv.law(rv.MDP.from_edges([(*e[:4], e[4] / scale) for e in edges], gamma=0.9, lam=1.0))
    assert law.reached
    for a, b in ((law.std, plain.std), (law.cvar(), plain.cvar()), (law.quantile(0.4),) * 2):
        factor = 1.0 if a is b else scale
        assert np.all(a.low <= b.high * factor * (1 + 1e-12) + 1e-12 * scale)
        assert np.all(b.low * factor <= a.high * (1 + 1e-12) + 1e-12 * scale)


def test_of_rare_large_rewards_the_law_is_found_where_first_grids_miss_its_lower_tail():
    rare = [(0, 0, 0, 1e-3, 1e3), (0, 0, 0, 1 - 1e-3, 0.0)]
    assert rv.law(rv.MDP.from_edges(rare, gamma=0.9), tolerance=0.01).reached


def test_rare_and_nearly_equal_rewards_stay_inside():
    rare = rv.law(loop(1.0, 0.9, rare=1e-12))
    assert contains(rare.std, rare.solution.std, 0.0)
    near = rv.law(rv.MDP.from_edges([(0, 0, 0, 0.5, 1e6), (0, 0, 0, 0.5, 1e6 + 1e-6)], gamma=0.9))
    assert contains(near.std, near.solution.std, 0.0)
    slow = rv.law(loop(0.0, 0.99, noise=1.0), tolerance=1e-2)
    normal = np.sqrt(1 / (1 - 0.99**2))
    assert slow.reached
    assert contains(slow.cvar(), -2.0627128 * normal)
    assert contains(slow.probability_below(-normal), 0.15865525)


def test_heavy_off_policy_tails_are_told_and_infinite_variances_are_nan():
    edges = [(0, 0, 0, 1.0, 1.0, 0.0, 0.9), (0, 1, "end", 1.0, 0.0, 0.0, 0.0)]
    policies = {"pi": [[0.9, 0.1]], "mu": [[0.75, 0.25]]}
    mdp = rv.MDP.from_edges(edges, policies=policies, lam=1.0)
    law = rv.law(mdp, "pi", "mu", "off_policy_return")
    assert contains(law.std, law.solution.std, 0.0)
    assert law.reached or "not to 0.001" in law.summary()
    states = [*edges, (1, 0, "end", 1.0, 1.0, 1.0, 0.0), (1, 1, "end", 1.0, 2.0, 0.0, 0.0)]
    wild = {"pi": [[0.9, 0.1]] * 2, "mu": [[0.3, 0.7]] * 2}
    some = rv.law(
        rv.MDP.from_edges(states, policies=wild, lam=1.0), "pi", "mu", "off_policy_return"
    )
    assert np.isnan([some.cvar().low[0], some.std.high[0]]).all()
    assert some.notes
    assert contains(some["1"].std, some.solution.std[1], 0.0)


def test_small_rewards_beside_large_ones_stay_inside_or_are_refused():
    """Squares of the smallest vanish; whether a variance beside 1e9 is infinite cannot be told."""
    for small in (1e-100, 1e-155, 1e-165):
        edges = [(s, 0, "end", 0.5, r) for s, x in enumerate((small, 1.0)) for r in (0.0, x)]
        law = rv.law(rv.MDP.from_edges(edges, gamma=1.0))
        assert contains(law.std, [small / 2, 0.5], 0.0)
        assert law.std.high[0] - law.std.low[0] < 1e-9 * small + 1e-140
    rows = [(0, 0, 0, 1.0, 1e-4), (0, 1, "end"), (1, 0, "end", 0.5, 1e9), (1, 0, "end", 0.5)]
    policies = {"pi": [[0.9, 0.1], [1, 0]], "mu": [[0.5, 0.5], [1, 0]]}
    mdp = rv.MDP.from_edges(rows, gamma=0.9, lam=1.0, policies=policies)
    with pytest.raises(rv.InputError) as caught:
        rv.law(mdp, "pi", "mu", "off_policy_return")
    assert caught.value.field == "reward"


def test_a_budget_that_is_spent_is_told(monkeypatch):
    monkeypatch.setattr("retvar.exact.law_bounds.BUDGET", 1e5)
    endless = rv.MDP.from_edges([(0, 0, 0, 0.5, 1.0), (0, 0, 0, 0.5, -1.0)], gamma=1 - 1e-9)
    far = rv.law(endless)
    assert not far.reached
    assert contains(far.std, far.solution.std, 0.0)
    law = rv.law(rv.MDP.from_gymnasium("CliffWalking-v1", gamma=0.9), tolerance=1e-6)
    assert not law.reached
    assert "not to 1e-06" in str(law)
    assert contains(law.std, law.solution.std, 0.0)


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda law: law.cvar(0.0), "share"),
        (lambda law: law.quantile(1.0), "share"),
        (lambda law: law.cvar(0.1, tail="left"), "tail"),
        (lambda law: law.probability_below([1.0, 2.0]), "limit"),
        (lambda law: law["s0"].probability_below(np.nan), "limit"),
        (lambda law: law["nowhere"], "state"),
        (lambda law: rv.law(law.mdp, tolerance=0.0), "tolerance"),
        (lambda law: rv.law(law.mdp, tolerance=1e-12), "tolerance"),
    ],
)
def test_bad_input_names_the_field(ask, field):
    law = rv.law(rv.domains.chain())
    with pytest.raises(rv.InputError) as caught:
        ask(law)
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize("p", [0.25, 0.5, 1e-3])
def test_the_mean_of_tiny_shares_is_inside_its_bracket(p):
    """Two atoms, 0 and 0.8; 1 − share is rounded, and must not be divided by the share."""
    mdp = rv.MDP.from_edges([("s", "go", "end", 1 - p, 0.0), ("s", "go", "end", p, 0.8)], gamma=1.0)
    found = rv.law(mdp)["s"]
    for share in np.geomspace(1e-13, 0.9, 60):
        best, worst = found.cvar(share, "upper"), found.cvar(share)
        high, low = 0.8 * min(1.0, p / share), 0.8 * max(0.0, 1 - (1 - p) / share)
        assert best.low <= high * (1 + 1e-15)
        assert best.high >= high * (1 - 1e-15)
        assert worst.low <= low + 1e-16 <= worst.high + 2e-16


@pytest.mark.parametrize("p", [1.0, 1 - 2**-53, 1 + 2**-52])
def test_no_rewards_are_inside_where_probabilities_are_rounded(p):
    found = rv.law(rv.MDP.from_edges([("s", "go", "end", p)], gamma=1.0))["s"]
    for share in (1e-9, 0.05, 0.5):
        for bracket in (found.cvar(share), found.cvar(share, "upper"), found.quantile(share)):
            assert contains(bracket, 0.0, 0.0)


def test_a_grid_may_be_finer_than_numbers():
    """Points gather at atoms, and coincide while another state needs more of them."""
    coins = [("a", "b", 1.0), ("b", "c", 2.0), ("c", "end", 1.0), ("d", "d", 1.0)]
    rows = [(s, "go", t, 0.5, r, 0.0, 0.6 * (s == "d") + (s < "c"))
            for s, t, x in coins for r in (0.0, x)]  # fmt: skip
    exact = rv.solve(rv.MDP.from_edges(rows, lam=1.0))
    for bounds in Refinement(exact, 1e-13).iterates():
        assert np.isfinite(bounds.width()).all()
        if bounds.points.shape[1] > 1e6:
            break
    assert np.any(np.diff(bounds.points) == 0)
    assert np.all(bounds.std()[0] <= exact.std)
    assert np.all(exact.std <= bounds.std()[1])


def test_the_law_of_one_state_is_not_asked_for_another():
    found = rv.law(rv.domains.chain(lam=1))["s0"]
    with pytest.raises(rv.InputError) as refused:
        found["s3"]
    assert refused.value.field == "state"
