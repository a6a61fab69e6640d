"""Solve the MDPs of the paper exactly and compare the solutions with sampled returns."""

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


def main() -> None:
    """Print the exact solution of each case, and its distance from sampled returns."""
    for title, (mdp, policies) in CASES.items():
        solution = rv.solve(mdp, **policies)
        sampled = rv.monte_carlo(mdp, **policies, samples=20_000)
        z = max(abs(deviation).max() for deviation in sampled.z(solution))
        print(f"\n{title}\n{'-' * len(title)}\n{solution}")
        print(
            f"spectral radius {solution.spectral_radius:.6g} ({solution.radius_kind}), residual "
            f"{solution.residual:.1e}; 20,000 sampled returns from each state deviate by at most "
            f"{z:.1f} standard errors"
        )


if __name__ == "__main__":
    main()
