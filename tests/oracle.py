"""Independent computations of the same numbers: loops over raw edges, no code of the package.

All functions start from ``mdp.edges`` and policy arrays, and follow the definitions (paths,
update equations), not the closed forms.
"""

from __future__ import annotations

import os
import zlib

import numpy as np

END = -1
SOAK = bool(os.environ.get("RETVAR_SOAK"))  # in `make nightly`
SEEDS: list[int] = []  # of the test that is running; shown if it fails


def fresh_seed() -> int:
    """A seed that differs from night to night, and otherwise from test to test.

    RETVAR_SEED replays one.
    """
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    drawn = np.random.SeedSequence().entropy if SOAK else zlib.crc32(test.encode()) + len(SEEDS)
    SEEDS.append(int(os.environ.get("RETVAR_SEED", drawn % 2**32)))
    return SEEDS[-1]


def transitions(mdp, target, behaviour=None, estimand="target_return", lam=None):
    """(s, s′, probability under the behaviour, ρ, η, ρ̄, r, σ, γ′, λ′) of every edge it takes."""
    pi = mdp.policy(target).probabilities
    mu = pi if behaviour is None else mdp.policy(behaviour).probabilities
    lam = np.broadcast_to(mdp.lam if lam is None else lam, (mdp.n_states,))
    rows = []
    for s, a, s_next, p, r, sd, g in zip(*mdp.edges, strict=True):
        if mu[s, a] * p == 0:
            continue
        rho = pi[s, a] / mu[s, a]
        eta, rho_bar = (1.0, rho) if estimand == "target_return" else (rho, 1.0)
        arriving = 0.0 if s_next == END else lam[s_next]
        rows.append((s, max(s_next, 0), mu[s, a] * p, rho, eta, rho_bar, r, sd, g, arriving))
    return rows


def radius(mdp, target, behaviour, estimand, lam=None, order=2) -> float:
    """Spectral radius of B = E[c²], or of E[cᵏ], from its definition and the whole spectrum."""
    B = np.zeros((mdp.n_states, mdp.n_states))
    for s, s_next, p, _, eta, rho_bar, _, _, g, lm in transitions(
        mdp, target, behaviour, estimand, lam
    ):
        B[s, s_next] += p * rho_bar * (eta * g * lm) ** order
    return float(np.max(np.abs(np.linalg.eigvals(B))))


def value_radius(mdp, target) -> float:
    PG = np.zeros((mdp.n_states, mdp.n_states))
    for s, s_next, p, *_, g, _ in transitions(mdp, target):
        PG[s, s_next] += p * g
    return float(np.max(np.abs(np.linalg.eigvals(PG))))


def path_moments(mdp, state, rows, H):
    """Mean and central moments 2, 3, 4 of the λ-return, by walking every path of an acyclic MDP.

    The return is a mixture of normal variables, one for each path.
    """
    outcomes = []  # (probability, return, variance of its reward noise)

    def walk(s, probability, total, noise, weight):
        for s0, s_next, p, _, eta, _, r, sd, g, lm in rows:
            if s0 != s:
                continue
            step = weight * eta
            here = total + step * (r + g * (1 - lm) * H[s_next])
            spread = noise + (step * sd) ** 2
            if g * lm * eta == 0:
                outcomes.append((probability * p, here, spread))
            else:
                walk(s_next, probability * p, here, spread, step * g * lm)

    walk(state, 1.0, 0.0, 0.0, 1.0)
    mean = sum(p * x for p, x, _ in outcomes)
    around = [(p, x - mean, w) for p, x, w in outcomes]
    second = sum(p * (d * d + w) for p, d, w in around)
    third = sum(p * (d**3 + 3 * d * w) for p, d, w in around)
    fourth = sum(p * (d**4 + 6 * d * d * w + 3 * w * w) for p, d, w in around)
    return mean, second, third, fourth


def time_shares(mdp, policy) -> np.ndarray:
    """Stationary distribution by averaging a lazy walk; an end leads to the starts at once."""
    n = mdp.n_states
    P = np.zeros((n, n))
    probabilities = mdp.policy(policy).probabilities
    for s, a, s_next, p, *_ in zip(*mdp.edges, strict=True):
        if s_next == END:
            P[s] += probabilities[s, a] * p * mdp.start
        else:
            P[s, s_next] += probabilities[s, a] * p
    lazy = (P + np.eye(n)) / 2
    for _ in range(60):  # 2⁶⁰ steps, by squaring
        lazy = lazy @ lazy
        lazy /= lazy.sum(axis=1, keepdims=True)
    return mdp.start @ lazy


def mean_trace_system(features, rows, decay, discount, weight, reward, shares):
    """A and b of a linear TD node, from the expected trace, iterated until it rests.

    `discount(row)`, `weight(row)` and `reward(row)` say what the node is fed on a transition.
    """
    trace = shares[:, None] * features
    for _ in range(20_000):
        new = shares[:, None] * features
        for row in rows:
            s, s_next, p = row[:3]
            new[s_next] += decay[s_next] * p * weight(row) * discount(row) * trace[s]
        settled = np.max(np.abs(new - trace)) <= 1e-16 * np.max(np.abs(new))
        trace = new
        if settled:
            break
    A = np.zeros((features.shape[1],) * 2)
    b = np.zeros(features.shape[1])
    for row in rows:
        s, s_next, p = row[:3]
        pull = p * weight(row) * trace[s]
        A += np.outer(pull, features[s] - discount(row) * features[s_next])
        b += pull * reward(row)
    return A, b
