"""Interpretations of ambiguous passages of the paper, compared with its Table 1.

Two passages: which J is in the direct method's reward off-policy, and which variant of ADADELTA was
used. Computes the mean absolute change of each estimate, as in Table 1, in plain NumPy, since the
package implements only one of the interpretations.
"""

import argparse
from dataclasses import dataclass, replace

import numpy as np

import retvar as rv

PUBLISHED = np.array([0.0212, 0.0306, 0.0752, 0.00884])  # value, second moment, VTD, direct
LAM, STATES = 0.9, 4


@dataclass(frozen=True)
class Reading:
    """An interpretation of ADADELTA."""

    decay: float = 0.99
    epsilon: float = 1e-6
    fade: bool = False  # accumulators of all states decay at each step, not only of the visited one
    outside: bool = False  # √x + ε instead of √(x + ε)
    late: bool = False  # the step is computed before the error is accumulated
    common: bool = False  # one pair of accumulators for a learner, not one for each state
    doubled: bool = False  # the gradient of δ² instead of ½δ²
    corrected: bool = False  # running means divided by 1 − decayⁿ, as Adam does


class Steps:
    """ADADELTA's accumulators for one learner in many runs."""

    def __init__(self, reading: Reading, runs: int) -> None:
        self.r = reading
        self.G = np.zeros((runs, STATES))
        self.D = np.zeros((runs, STATES))
        self.visits = np.zeros(STATES)

    def change(self, s: int, d: np.ndarray) -> np.ndarray:
        """Δ for the TD error d in state s."""
        r, at = self.r, 0 if self.r.common else s
        d = 2 * d if r.doubled else d
        if r.fade:
            self.G *= r.decay
            self.D *= r.decay
        decay = 1.0 if r.fade else r.decay
        self.visits[at] += 1
        grown = decay * self.G[:, at] + (1 - r.decay) * d**2
        scale = 1 - r.decay ** self.visits[at] if r.corrected else 1.0
        G, D = (self.G[:, at] if r.late else grown) / scale, self.D[:, at] / scale
        if r.outside:
            step = (np.sqrt(D) + r.epsilon) / (np.sqrt(G) + r.epsilon)
        else:
            step = np.sqrt(D + r.epsilon) / np.sqrt(G + r.epsilon)
        delta = step * d
        self.G[:, at] = grown
        self.D[:, at] = decay * self.D[:, at] + (1 - r.decay) * delta**2
        return delta


def changes(reading: Reading, runs: int, episodes: int, seed: int = 0) -> np.ndarray:
    """Mean absolute change per episode: value, second moment, VTD, direct."""
    rng = np.random.default_rng(seed)
    J, M, V = (np.zeros((runs, STATES + 1)) for _ in range(3))
    steps = [Steps(reading, runs) for _ in range(3)]
    total = np.zeros(4)
    for _ in range(episodes):
        rewards = rng.normal(1.0, 1.0, (STATES, runs))
        for s in range(STATES):
            R, n = rewards[s], s + 1
            lam = LAM if n < STATES else 0.0
            gamma = 1.0 if n < STATES else 0.0
            before = J[:, s], M[:, s], M[:, s] - J[:, s] ** 2, V[:, s]
            before = [x.copy() for x in before]
            delta = R + gamma * J[:, n] - J[:, s]
            J[:, s] += steps[0].change(s, delta)
            G = R + gamma * (1 - lam) * J[:, n]
            reward = G**2 + 2 * gamma * lam * G * J[:, n]
            discount = (gamma * lam) ** 2
            M[:, s] += steps[1].change(s, reward + discount * M[:, n] - M[:, s])
            V[:, s] += steps[2].change(s, delta**2 + discount * V[:, n] - V[:, s])
            after = J[:, s], M[:, s], M[:, s] - J[:, s] ** 2, V[:, s]
            total += [np.abs(a - b).mean() for a, b in zip(after, before, strict=True)]
    return total / episodes


def readings() -> dict[str, Reading]:
    """The interpretations that are tried."""
    plain = Reading()
    found = {
        "as published, visited state only": plain,
        "all states decay at each step": replace(plain, fade=True),
        "ε outside the roots": replace(plain, outside=True),
        "step before the error is taken in": replace(plain, late=True),
        "one pair of accumulators a learner": replace(plain, common=True),
        "gradient of δ² (errors doubled)": replace(plain, doubled=True),
        "running means corrected as in Adam": replace(plain, corrected=True),
    }
    for decay in (0.9, 0.95, 0.98, 0.995, 0.999):
        found[f"decay {decay:g}"] = replace(plain, decay=decay)
    for epsilon in (1e-8, 1e-7, 5e-7, 2e-6, 1e-5):
        found[f"ε = {epsilon:g}"] = replace(plain, epsilon=epsilon)
    for decay, epsilon in ((0.995, 5e-7), (0.995, 1e-6), (0.998, 5e-7)):
        found[f"decay {decay:g}, ε = {epsilon:g}"] = replace(plain, decay=decay, epsilon=epsilon)
        found[f"decay {decay:g}, ε = {epsilon:g}, all decay"] = replace(
            plain, decay=decay, epsilon=epsilon, fade=True
        )
    return found


def off_policy_direct(new_value: bool, runs: int, steps: int, seed: int = 0) -> np.ndarray:
    """Direct's mean absolute change [run] for the off-policy return of the complex MDP."""
    mdp, rng = rv.domains.complex_mdp(), np.random.default_rng(seed)
    e, pi, mu = mdp.edges, *(mdp.policy(name).probabilities for name in ("pi", "mu"))
    cumulative = np.cumsum(mu[e.state, e.action] * e.probability)  # s + share of the edges of s
    first = np.searchsorted(e.state, np.arange(5))
    rho = pi[e.state, e.action] / mu[e.state, e.action]
    lam = np.asarray(mdp.lam)[e.next_state]
    J, V, s, run = np.zeros((runs, 5)), np.zeros((runs, 5)), np.zeros(runs, int), np.arange(runs)
    total = np.zeros(runs)
    for _ in range(steps):
        edge = np.searchsorted(cumulative, s + rng.random(runs), side="right")
        edge = np.minimum(np.maximum(edge, first[s]), len(cumulative) - 1)
        t, eta = e.next_state[edge], rho[edge]
        delta = e.reward[edge] + e.gamma[edge] * J[run, t] - J[run, s]
        old = J[run, s]
        J[run, s] += 0.01 * eta * delta
        at = J[run, s] if new_value else old
        error = (eta * delta + (eta - 1) * at) ** 2
        error += (eta * e.gamma[edge] * lam[edge]) ** 2 * V[run, t] - V[run, s]
        V[run, s] += 0.01 * error
        total += np.abs(0.01 * error)
        s = t
    return total / steps


def main() -> None:
    """Print both tables; interpretations of ADADELTA are sorted by agreement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--episodes", type=int, default=20_000)
    options = parser.parse_args()
    print("| J in the direct reward, complex-off-policy/return | direct | s.e. |\n|---|---:|---:|")
    print("| **printed** | 0.00838 | |")
    for name, new in (("before this step's update", False), ("after it", True)):
        found = off_policy_direct(new, 10 * options.runs, options.episodes)
        error = found.std(ddof=1) / np.sqrt(found.size)
        print(f"| {name} | {found.mean():.6f} | {error:.6f} |")
    rows = []
    for name, reading in readings().items():
        found = changes(reading, options.runs, options.episodes)
        rows.append((float(np.abs(found / PUBLISHED - 1).max()), name, found))
    print("\n| interpretation | value | second moment | VTD | direct | largest deviation |")
    print("|---|---:|---:|---:|---:|---:|")
    print("| **printed** | " + " | ".join(f"{x:g}" for x in PUBLISHED) + " | |")
    for worst, name, found in sorted(rows, key=lambda row: row[0]):
        print(f"| {name} | " + " | ".join(f"{x:.3g}" for x in found) + f" | {worst:.0%} |")


if __name__ == "__main__":
    main()
