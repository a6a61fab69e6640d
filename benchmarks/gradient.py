"""Time of `policy_gradient`, compared with `solve`, and of a frontier.

The two are timed alternately; the ratio is that of the medians.
"""

import statistics
import time

import numpy as np

import document
import exact
import retvar as rv

SIZES = (1_000, 10_000, 100_000)
POINTS = 11


def discounted(n: int) -> rv.MDP:
    return rv.domains.random_mdp(n, 2, 3, seed=0, gamma=(0.9, 0.99), lam=(0.5, 1.0))


def episodic(n: int) -> rv.MDP:
    return rv.domains.random_mdp(n, 2, 3, seed=0, gamma=1.0, lam=1.0, ends=0.05)


CASES = {
    "discounted": (discounted, (), "two actions, three random edges each, γ 0.9–0.99, λ 0.5–1"),
    "episodic": (episodic, (), "the same with γ = λ = 1, 5% of the edges end the episode"),
    "off-policy": (exact.off_policy, exact.OFF_POLICY, exact.CASES["off-policy"][2]),
    "walk": (exact.walk, (), exact.CASES["walk"][2]),
}


def measure(case: str, n: int) -> dict:
    make, policies, _ = CASES[case]
    mdp = make(n)
    times: dict[str, list[float]] = {"solve": [], "gradient": []}
    for _ in range(max(3, min(15, 100_000 // n))):
        for kind, run in (("solve", rv.solve), ("gradient", rv.policy_gradient)):
            before = time.perf_counter()
            run(mdp, *policies)
            times[kind].append(time.perf_counter() - before)
    solve, gradient = (statistics.median(times[kind]) for kind in times)
    return {"solve": solve, "gradient": gradient, "ratio": gradient / solve}


def frontier_seconds() -> float:
    cliff, penalties = rv.domains.windy_cliff(), np.linspace(0, 0.5, POINTS)
    taken = []
    for _ in range(5):
        before = time.process_time()
        rv.frontier(cliff, penalties=penalties)
        taken.append(time.process_time() - before)
    return min(taken)


def main() -> None:
    options = document.options(__doc__, most=(SIZES[-1], "largest number of states"))
    lines = [
        "## Policy gradients",
        "",
        "`policy_gradient`, with the derivatives of mean and variance in every state and action, "
        "compared with `solve`.",
        "",
        "| | states | solve | gradient | ratio |",
        "|---|---:|---:|---:|---:|",
    ]
    worst = 0.0
    for case in CASES:
        for n in (size for size in SIZES if size <= options.most):
            r = measure(case, n)
            worst = max(worst, r["ratio"])
            lines.append(
                f"| {case} | {n:,} | {r['solve'] * 1e3:,.1f} ms | {r['gradient'] * 1e3:,.1f} ms "
                f"| {r['ratio']:.2f} |"
            )
    lines += ["", *(f"**{case}**: {text}." for case, (_, _, text) in CASES.items())]
    lines += [
        "",
        f"The largest ratio is {worst:.2f}. A frontier of {POINTS} points of the windy cliff "
        f"(25 states, 4 actions) takes {frontier_seconds():.1f} s of processor time, "
        "the least of five.",
        "",
    ]
    document.publish("\n".join(lines), options.out, options.append)


if __name__ == "__main__":
    main()
