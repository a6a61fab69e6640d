"""Shares of a variance add to 1, and are those of sampled returns."""

from __future__ import annotations

import json

import numpy as np
import pytest

import retvar as rv
from tests.oracle import transitions

ESTIMANDS = ("target_return", "off_policy_return")


def random_world(rng):
    """An MDP with γ and λ by state, noise, ends and parallel edges; a target and a behaviour."""
    n, k = rng.integers(3, 8), rng.integers(2, 4)
    rows = []
    for s in range(n):
        for a in range(k):
            for p in rng.dirichlet(np.ones(rng.integers(1, 4))):
                after = int(rng.integers(-1, n))
                noise = float(rng.choice([0.0, 0.5]))
                rows.append((s, a, None if after < 0 else after, p, rng.normal(), noise))
    settings = {"gamma": rng.uniform(0.3, 0.8, n), "lam": rng.uniform(0, 1, n)}
    mdp = rv.MDP.from_edges(rows, states=int(n), actions=int(k), **settings)
    pi = rng.dirichlet(np.ones(k), n)
    return mdp, rv.Policy(pi), rv.Policy(0.8 * pi + 0.2 / k)


def sampled_terms(mdp, pi, mu, estimand, solution, paths, rng):
    """Σ D_t ε_t 1{S_t = s} [path, state] of paths from state 0, from raw edges."""
    behaviour = pi if estimand == "target_return" else mu  # the return is sampled from
    rows = np.array(transitions(mdp, pi, behaviour, estimand))
    state, H = np.zeros(paths, dtype=int), solution.value
    D, terms = np.ones(paths), np.zeros((paths, mdp.n_states))
    while D.any():
        edge = np.zeros(paths, dtype=int)
        for s in range(mdp.n_states):
            own = np.flatnonzero(rows[:, 0] == s)
            here = state == s
            edge[here] = rng.choice(own, here.sum(), p=rows[own, 2] / rows[own, 2].sum())
        _, after, _, _, eta, _, r, std, g, lm = rows[edge].T
        after = after.astype(int)
        inside = r + std * rng.normal(size=paths) + g * H[after]
        terms[np.arange(paths), state] += D * (eta * inside - H[state])
        D, state = D * eta * g * lm, after
        D[np.abs(D) < 1e-9] = 0.0
    return terms


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_a_share_is_the_variance_of_what_sampled_paths_add_in_a_state(seed, estimand):
    """At most 60 comparisons with |z| < 5.6: false alarms below 1.3 in a million."""
    rng = np.random.default_rng(seed)
    mdp, pi, mu = random_world(rng)
    solution = rv.solve(mdp, pi, mu, estimand)
    found = solution.attribution(0)
    terms = sampled_terms(mdp, pi, mu, estimand, solution, 20_000, rng)
    for shares in (found.by_edge, found.by_action, found.by_state):
        assert abs(shares.sum() - 1) < 1e-12
    squares = terms**2 / found.variance
    often = (terms != 0).mean(axis=0) > 0.05
    error = squares.std(axis=0) / np.sqrt(len(terms))
    assert np.all(np.abs(squares.mean(axis=0) - found.by_state)[often] < 5.6 * error[often])
    assert np.all((found.noise >= 0) & (found.noise <= found.by_edge + 1e-12))


def test_noise_of_the_reward_is_told_apart():
    chain = rv.solve(rv.domains.chain(lam=1)).attribution("s0")
    assert chain.by_state == pytest.approx([0.25] * 4)
    assert chain.noise == pytest.approx(chain.by_edge)
    assert rv.solve(rv.domains.complex_mdp()).attribution("s1").noise.max() == 0


def test_an_edge_that_is_not_taken_has_no_share():
    mdp = rv.domains.complex_mdp()
    found = rv.solve(mdp, "pi").attribution("s1")
    never = mdp.policy("pi").probabilities[mdp.edges.state, mdp.edges.action] == 0
    assert never.any()
    assert not found.by_edge[never].any()


def test_without_a_finite_variance_above_0_shares_are_nan_with_a_word():
    quiet = rv.MDP.from_edges([("a", "x", "end", 1.0, 3.0)], gamma=1.0)
    edges = [("a", "x", "a", 0.5, 1.0), ("a", "x", "end", 0.5), ("b", "x", "end", 0.5, 1.0)]
    split = rv.MDP.from_edges(
        [*edges, ("b", "x", "end", 0.5), ("a", "y", "end")], gamma=1.0, start="b"
    )
    wide = rv.solve(split, {"a": "x", "b": "x"}, {"a": {"x": 0.3, "y": 0.7}, "b": "x"},
                    "off_policy_return")  # fmt: skip
    assert np.isnan(wide.variance[0])
    assert wide.attribution("b").by_edge.sum() == pytest.approx(1)
    for found in (rv.solve(quiet).attribution("a"), wide.attribution("a")):
        assert found.note
        assert np.isnan(found.by_state).all()
        assert found.top() == []
        assert found.note in str(found)
        assert found.plot().texts  # the note
    with pytest.raises(rv.InputError) as caught:
        wide.attribution("c")
    assert caught.value.field == "state"


def test_half_of_the_variance_of_cliff_walking_arises_in_one_step(capsys, tmp_path):
    from retvar.cli import main

    solution = rv.solve(rv.MDP.from_gymnasium("CliffWalking-v1", gamma=0.9))
    found = solution.attribution(36)
    assert found.by_state[36] == pytest.approx(0.798, abs=5e-4)
    assert found.top(1)[0][:3] == ("36", "right", "36")
    assert found.top(1)[0].share == pytest.approx(0.531, abs=5e-4)
    figure = tmp_path / "why.svg"
    asked = ["solve", "gymnasium:CliffWalking-v1", "--gamma", "0.9", "--why", "36", "--json"]
    main([*asked, "--plot", str(figure)], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)["why"]
    assert told["by_state"] == found.by_state.tolist()
    assert figure.exists()
