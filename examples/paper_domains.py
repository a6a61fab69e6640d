"""Solve the MDPs of the paper exactly and compare the solutions with sampled returns."""

import sys

import numpy as np
from matplotlib.figure import Figure

import retvar as rv

CASES = {
    "chain, λ = 0.9": (rv.domains.chain(), {}),
    "complex MDP, on-policy (μ)": (rv.domains.complex_mdp(), {"target": "mu"}),
    "complex MDP, return of π from samples of μ": (
        rv.domains.complex_mdp(),
        {"target": "pi", "behaviour": "mu"},
    ),
    "complex MDP, off-policy return (π weighted, μ sampled)": (
        rv.domains.complex_mdp(),
        {"target": "pi", "behaviour": "mu", "estimand": "off_policy_return"},
    ),
    "random walk, λ = 1": (rv.domains.random_walk(), {}),
}


def draw(solutions: dict[str, rv.Solution]) -> Figure:
    """Value ± std of every state in each case."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    panels = figure.subplots(2, 3).ravel()
    for axes, (title, solution) in zip(panels, solutions.items(), strict=False):
        states = np.arange(solution.value.size)
        axes.errorbar(states, solution.value, solution.std, fmt="o", color="#0072B2", ms=4, lw=1.4)
        axes.set_title(title.replace(", ", ",\n", 1).replace(" (", "\n("), fontsize=8.5)
        axes.set_xlabel("state", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("value ± std")
    panels[-1].remove()
    return figure


def main(plot: str | None = None) -> None:
    """Print the exact solution of each case, and its distance from sampled returns."""
    solutions = {}
    for title, (mdp, policies) in CASES.items():
        solution = solutions[title] = rv.solve(mdp, **policies)
        sampled = rv.monte_carlo(mdp, **policies, samples=20_000)
        z = max(abs(deviation).max() for deviation in sampled.z(solution))
        print(f"\n{title}\n{'-' * len(title)}\n{solution}")
        print(
            f"spectral radius {solution.spectral_radius:.6g} ({solution.radius_kind}), residual "
            f"{solution.residual:.1e}; 20,000 sampled returns from each state deviate by at most "
            f"{z:.1f} standard errors"
        )
    if plot is not None:
        rv.plots.save(draw(solutions), plot)


if __name__ == "__main__":
    main(*sys.argv[1:])
