"""Declarations of the paper's figures and table."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from retvar.exact.solution import solve
from retvar.mdp import domains
from retvar.paper import claims as c
from retvar.paper.declarations import Experiment, Simulation
from retvar.paper.sentences import said
from retvar.simulation import Record
from retvar.td.initial_values import Noisy
from retvar.td.learners import LEARNERS, VTD, Centred, Direct, Learner, grid
from retvar.td.step_sizes import Adadelta

_paper = partial(Experiment, source="paper")
METHODS: dict[str, type[Learner]] = {kind.method: kind for kind in LEARNERS.values()}
CURVES = Record(points=200, change=True, window=10_000)
STEPS = [0.05, 0.04, 0.03, 0.02, 0.01, 0.007, 0.005, 0.003, 0.001]  # as in the paper
SMALLER = [5e-4, 2e-4, 1e-4, 5e-5, 2e-5, 1e-5]  # so that the best step is not the least
WALKED = [*range(1_000, 40_000, 1_000), *range(40_000, 3_000_001, 20_000)]
RATIOS = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
RETURNS = [0, 1, 10, 100, 1_000, 1_000_000]


def all_methods(**settings: Any) -> dict[str, Learner]:
    """The three methods with the same settings; centred's mean learns with ᾱ."""
    made = {name: kind(**settings) for name, kind in METHODS.items()}
    mean = settings.get("alpha_bar", settings["alpha"])
    return made | {"centred": made["centred"].replace(alpha_mean=mean)}


def chain_curves(name: str, learners: dict[str, Learner], **more: Any) -> Simulation:
    """20,000 episodes of the chain."""
    settings = {"episodes": 20_000, "record": CURVES, **more}
    return Simulation(name, domains.chain(), learners, **settings)


def complex_curves(
    name: str, policies: dict[str, Any] | None = None, **settings: Any
) -> Simulation:
    """20,000 steps of the complex MDP."""
    return Simulation(
        name, domains.complex_mdp(), all_methods(alpha=0.01, alpha_bar=0.01, **settings),
        steps=20_000, record=CURVES, **(policies or {}),
    )  # fmt: skip


# ---------------------------------------------------------------------- the chain


def step_sizes() -> list[Experiment]:
    """Equal, smaller and larger step sizes of the variance."""
    cases = {
        "equal": ("Equal step sizes", 0.001, 0.001),
        "smaller": ("Variance step size smaller", 0.01, 0.001),
        "larger": ("Variance step size larger", 0.001, 0.01),
    }
    simulations = {
        name: chain_curves(f"chain-step-size/{name}", all_methods(alpha=alpha, alpha_bar=alpha_bar))
        for name, (_, alpha, alpha_bar) in cases.items()
    }
    equal, smaller, larger = simulations.values()
    claims = {
        "equal": (
            *said("purpose", c.exact_means(equal)),
            *said("equal-steps", c.alike(0.005, equal)),
            *said("purpose", c.near_truth(0.01)),
        ),
        "smaller": (
            *said("purpose", c.exact_means(smaller)),
            *said("smaller-step", c.dips(smaller, "vtd", 1.0), c.smooth("direct", 1.05)),
            *said("unequal-steps", c.more_spread(0, 9.0)),
        ),
        "larger": (
            *said("purpose", c.exact_means(larger)),
            *said("larger-step", c.overshoots(larger, "direct"), c.overshoots(larger, "vtd")),
            *said("larger-step", c.overshoots_more(1.4)),
            *said("unequal-steps", c.more_spread(0, 3.0)),
        ),
    }  # fmt: skip
    return [
        _paper(
            f"chain-step-size/{name}",
            f"Chain: {title.lower()}",
            f"α = {alpha:g} for the value, ᾱ = {alpha_bar:g} for variance and second moment.",
            (simulations[name],),
            "learning_curves",
            {},
            claims[name],
        )
        for name, (title, alpha, alpha_bar) in cases.items()
    ]


def frozen_value() -> Experiment:
    """The value held at the truth; the second moment starts at 0, so VTD's variance at −j²."""
    j = np.asarray(solve(domains.chain()).value)
    learners = all_methods(alpha=0.0, alpha_bar=0.001, value=j, learn_value=False)
    learners["vtd"] = learners["vtd"].replace(initial_variance=-(j**2))
    simulation = chain_curves("chain-frozen-value", learners)
    return _paper(
        "chain-frozen-value",
        "Chain: value held at the truth",
        "J = j and α = 0, ᾱ = 0.001. The second moment starts at 0, as all estimates do, so VTD's "
        "variance starts at −j².",
        (simulation,),
        "learning_curves",
        {},
        (
            *said("purpose", c.exact_means(simulation)),
            *said("frozen-value", c.more_spread(0, 2.5), c.most_excess_in(0)),
        ),
    )


def step_size_ratio() -> Experiment:
    """The error over 2,000 episodes against both step sizes; estimates start at the truth."""
    mdp = domains.chain()
    truth = solve(mdp)
    learners = {
        f"{learner.method} α={learner.alpha:g} ᾱ={learner.alpha_bar:g}": (
            learner.replace(alpha_mean=learner.alpha_bar)
            if isinstance(learner, Centred)
            else learner
        )
        for learner in grid(
            Direct, VTD, Centred,
            alpha=[0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1],
            alpha_bar=[1e-5, 1e-4, 1e-3, 1e-2, 1e-1],
            value=np.asarray(truth.value), initial_variance=np.asarray(truth.variance),
        )
    }  # fmt: skip
    simulation = Simulation(
        "chain-step-size-ratio", mdp, learners, episodes=2_000,
        record=Record(at=[2_000], window=2_000),
    )  # fmt: skip
    return _paper(
        "chain-step-size-ratio",
        "Chain: error against the ratio of step sizes",
        "Everything starts at the truth; squared error of the variance averaged over 2,000 "
        "episodes and all runs, summed over states.",
        (simulation,),
        "step_size_ratio",
        {},
        (
            *said("insensitive", c.exact_errors(simulation), c.insensitive_to_alpha()),
            *said("insensitive", c.rises_at_largest_alpha(), c.vtd_worse_but_on_the_diagonal()),
            *said("very-small-steps", c.alike_for_very_small_steps()),
        ),
    )


def adadelta() -> list[Experiment]:
    """Step sizes set by ADADELTA for each node."""
    rule = Adadelta(decay=0.99, epsilon=1e-6)
    record = Record(points=200, change=True, step_sizes=True)
    simulation = chain_curves("chain-adadelta", all_methods(alpha=rule), record=record)
    return [
        _paper(
            "chain-adadelta",
            "Chain: step sizes by ADADELTA",
            "Decay 0.99, ε = 1e-6, for each learner and state apart.",
            (simulation,),
            "learning_curves",
            {},
            (
                *said("adadelta", c.more_spread(0, 5.0)),
                *said("purpose", c.rests_between("direct", 0.96, 1.015)),
            ),
        ),
        _paper(
            "chain-adadelta/step-sizes",
            "Chain: the step sizes that ADADELTA found",
            "Mean over runs of the step with which each state was last updated.",
            (simulation,),
            "step_sizes",
            {},
            said("adadelta-steps", c.steps_differ(0.7)),
        ),
    ]


# ---------------------------------------------------------------------- the complex MDP


def complex_on_policy() -> list[Experiment]:
    """On-policy, without traces."""
    simulation = complex_curves("complex-on-policy")
    return [
        _paper(
            "complex-on-policy", "Complex MDP: on-policy",
            "State-dependent γ and λ, α = ᾱ = 0.01.",
            (simulation,), "learning_curves", {},
            (
                *said("purpose", c.exact_means(simulation)),
                *said("complex-alike", c.alike(0.02, simulation)),
                *said("purpose", c.near_truth(0.02)),
            ),
        ),
    ]  # fmt: skip


def complex_traces() -> list[Experiment]:
    """On-policy, with traces for the variance or for the value."""
    return [
        _paper(
            "complex-traces/variance", "Complex MDP: traces for the variance",
            "κ = 0, κ̄ = 1, steps 0.01.",
            (complex_curves("complex-traces/variance", kappa=0.0, kappa_bar=1.0),),
            "learning_curves", {},
            (
                *said("variance-traces", c.alike(0.11), c.spread_ratio_within(0.9, 1.7)),
                *said("purpose", c.near_truth(0.02)),
            ),
        ),
        _paper(
            "complex-traces/value", "Complex MDP: traces for the value",
            "κ = 1, κ̄ = 0, steps 0.01.",
            (complex_curves("complex-traces/value", kappa=1.0, kappa_bar=0.0),),
            "learning_curves", {},
            (
                *said("value-traces", c.more_spread(0, 1.3), c.more_spread(3, 4.0)),
                *said("value-traces", c.most_excess_in(0, 3, times=1.2, ratio=True)),
                *said("purpose", c.near_truth(0.02)),
            ),
        ),
    ]  # fmt: skip


def complex_off_policy() -> list[Experiment]:
    """Off-policy samples: the target's return, and the return weighted by importance ratios."""
    policies = {"target": "pi", "behaviour": "mu"}
    target = complex_curves("complex-off-policy/target", policies)
    weighted = complex_curves(
        "complex-off-policy/return", policies, estimand="off_policy_return"
    )  # fmt: skip
    return [
        _paper(
            "complex-off-policy/target", "Complex MDP: the target's return from off-policy samples",
            "η = 1, ρ̄ = ρ, steps 0.01.",
            (target,), "learning_curves", {},
            (
                *said("purpose", c.exact_means(target)),
                *said("off-policy-target", c.alike(0.04, target)),
                *said("off-policy-target", c.spread_ratio_within(0.95, 0.9999)),
                *said("purpose", c.near_truth(0.03)),
            ),
        ),
        _paper(
            "complex-off-policy/return", "Complex MDP: the off-policy return",
            "η = ρ, ρ̄ = 1, steps 0.01.",
            (weighted,), "learning_curves", {},
            (
                *said("off-policy-return", c.exact_means(weighted), c.near_truth(0.015)),
                *said("off-policy-spread", c.more_spread(3, 1.3), c.most_excess_in(3)),
            ),
        ),
    ]  # fmt: skip


def value_error() -> list[Experiment]:
    """The value held at the truth plus an error that is drawn for each run."""
    mdp = domains.complex_mdp()
    j = np.asarray(solve(mdp).value)
    learners = {}
    for ratio in RATIOS:
        start = Noisy(j, uniform=ratio * float(np.abs(j).max()))
        for alpha_bar in STEPS + SMALLER:
            for name, kind in METHODS.items():
                mean: dict[str, Any] = {"alpha_mean": 0.01} if issubclass(kind, Centred) else {}
                learners[f"{name} error={ratio:g} ᾱ={alpha_bar:g}"] = kind(
                    alpha=0.0, alpha_bar=alpha_bar, value=start, learn_value=False, **mean
                )
    simulation = Simulation(
        "complex-value-error", mdp, learners, steps=80_000, runs=120,
        record=Record(at=list(range(70_000, 80_001, 100)), window=10_000),
    )  # fmt: skip
    return [
        _paper(
            "complex-value-error/spread",
            "Complex MDP: estimates against the error of the value function",
            "J frozen at j + ε, ε uniform in ± ratio × max|j|, drawn for each run and state; best "
            "ᾱ of the paper's for each state and ratio; mean and standard deviation over 120 runs "
            "in the last 10,000 of 80,000 steps. Centred (α of its mean node 0.01) has no bias "
            "against the variance for the value that the return bootstraps from.",
            (simulation,),
            "value_error_spread",
            {"ratios": RATIOS},
            (
                *said("value-error-bias", c.exact_biases(simulation, RATIOS[-1], 0.005)),
                *said("value-error-bias", c.error_biases_direct_up()),
                *said("value-error-mean", c.error_leaves_vtd_nearer(simulation, RATIOS[-1], 0.005)),
                *said("value-error-mean", c.error_spreads_vtd(simulation, RATIOS[-1], 0.005)),
                *said("value-error-bias", c.error_drifts_vtd_down()),
                *said("centred", c.centred_wins_on_error(simulation, RATIOS[-1], 0.001)),
            ),
        ),
        _paper(
            "complex-value-error/best-step",
            "Complex MDP: least error against the error of the value function",
            "Squared error against the variance for the true value, summed over states, in the "
            "last 10,000 steps; the best ᾱ is written at each point. Here ᾱ goes down to 1e-5, "
            "below the paper's least, 0.001. With large errors the best ᾱ is one with which "
            "learning is not finished: that draws the estimate towards 0, where it began.",
            (simulation,),
            "value_error_best_step",
            {"ratios": RATIOS},
            said("less-affected", c.direct_less_affected(2.0)),
        ),
    ]


# ---------------------------------------------------------------------- random walk


def random_walk() -> list[Experiment]:
    """Linear features: from the conference version of the paper."""
    mdp = domains.random_walk()
    x = (np.arange(mdp.n_states) + 1) / mdp.n_states
    features = {
        "features": np.stack([x**0, x, x**2], axis=1),
        "value_features": np.stack([x**0, x], axis=1),
    }
    settings: dict[str, Any] = {"alpha": 2**-11, "kappa": 0.95, "kappa_bar": 0.95}
    learning = Simulation(
        "random-walk", mdp, all_methods(alpha_bar=2**-9, **settings), steps=3_000_000, runs=100,
        record=Record(at=WALKED, rmse=True), features=features,
    )  # fmt: skip
    swept = {
        f"{name} ᾱ=2^{power}": learner
        for power in range(-15, 1)
        for name, learner in all_methods(alpha_bar=2.0**power, **settings).items()
    }
    sensitivity = Simulation(
        "random-walk/sensitivity", mdp, swept, steps=3_000_000, runs=30,
        record=Record(at=[3_000_000], rmse=True, window=100_000), features=features,
    )  # fmt: skip
    about = (
        "30 states, quadratic features for the variance and linear ones for the value, λ = 1, "
        "κ = κ̄ = 0.95, α = 2⁻¹¹. Error: root of the squared error weighted by the stationary "
        "distribution."
    )
    return [
        Experiment(
            "random-walk/learning", "Random walk: learning curves",
            about + " ᾱ = 2⁻⁹. The errors peak at the left edge, before 20,000 steps.",
            (learning,), "rmse_curves", {},
            said("walk-better", c.errors_peak(10_000, 30_000), c.much_better_in_the_end()),
            "conference",
        ),
        Experiment(
            "random-walk/final", "Random walk: final estimate of each state", about + " ᾱ = 2⁻⁹.",
            (learning,), "final_estimates", {},
            said(
                "walk-better",
                c.better_in_the_end_per_state(), c.ends_at_fixed_point(learning, 0.04),
            ),
            "conference",
        ),
        Experiment(
            "random-walk/sensitivity", "Random walk: sensitivity to ᾱ", about,
            (sensitivity,), "sensitivity", {},
            (*said("walk-sensitive", c.less_sensitive()), *said("walk-better", c.better_at_best())),
            "conference",
        ),
    ]  # fmt: skip


# ---------------------------------------------------------------------- large returns


def large_returns() -> Experiment:
    """The chain with larger and larger rewards, where VTD subtracts large squares."""
    simulations = []
    for mean in RETURNS:
        mdp = domains.chain(reward=float(mean))
        truth = solve(mdp)
        j, v = np.asarray(truth.value), np.asarray(truth.variance)
        frozen = all_methods(
            alpha=0.0, alpha_bar=0.001, value=j, learn_value=False, initial_variance=v
        )
        learned = all_methods(alpha=0.001, alpha_bar=0.001, value=j, initial_variance=v)
        record = Record(at=[20_000], window=20_000, change=True)
        for name, learners in (("frozen", frozen), ("learned", learned)):
            simulations.append(
                Simulation(
                    f"large-returns/{name}/{mean:g}", mdp, learners, episodes=20_000, record=record
                )
            )
    known = {simulation.name: simulation for simulation in simulations}
    return Experiment(
        "large-returns",
        "Chain: error against the size of the return",
        "Rewards with mean c and standard deviation 1; all estimates start at the truth, "
        "ᾱ = 0.001. Left: the value held at the truth. Right: α = ᾱ.",
        tuple(simulations),
        "large_returns",
        {"means": RETURNS},
        said(
            "large-returns",
            c.vtd_error_grows_with_the_return(known),
            c.others_stay_flat(known),
            c.alike_if_learned(known),
        ),
        "own",
    )


# ---------------------------------------------------------------------- table and drawings

PUBLISHED = {
    "chain-step-size/equal": ("0.00332", "0.0157", "0.00415", "0.00415"),
    "chain-step-size/smaller": ("0.0322", "0.0165", "0.143", "0.00387"),
    "chain-step-size/larger": ("0.00332", "0.156", "0.142", "0.0419"),
    "chain-frozen-value": ("0.0", "0.0166", "0.0166", "0.00381"),
    "chain-adadelta": ("0.0212", "0.0306", "0.0752", "0.00884"),
    "complex-on-policy": ("0.00362", "0.00675", "0.00381", "0.00385"),
    "complex-off-policy/target": ("0.00362", "0.00461", "0.00303", "0.00307"),
    "complex-off-policy/return": ("0.00362", "0.0110", "0.0116", "0.00838"),
}
ALIKE = ("chain-step-size/equal", "complex-on-policy", "complex-off-policy/target")


def table(experiments: list[Experiment]) -> Experiment:
    """Table 1: mean absolute change of each estimate, from the other experiments' data."""
    known = {s.name: s for e in experiments for s in e.simulations}
    return _paper(
        "table-1",
        "Table 1: mean absolute change of each estimate",
        "Chain: a sum over states for each episode; complex MDP: for each step.",
        tuple(known[name] for name in PUBLISHED),
        claims=tuple(
            claim
            for name in PUBLISHED
            for claim in said(
                "alike-updates" if name in ALIKE else "larger-updates",
                c.row_agrees(name, PUBLISHED[name], name in ALIKE),
            )
        ),
        published=PUBLISHED,
    )


def drawings() -> list[Experiment]:
    """Drawings of networks and MDPs."""
    return [
        _paper(
            "networks", "Networks of TD nodes",
            "Each method is a small network of TD nodes: one node's output feeds the next.",
            plot="networks",
        ),
        _paper(
            "chain-mdp", "The chain", "Rewards are normal with mean 1 and variance 1; λ = 0.9.",
            plot="mdp", options={"mdp": domains.chain()},
        ),
        _paper(
            "complex-mdp", "The complex MDP",
            "State-dependent γ and λ; two actions may lead to the same state with other rewards.",
            plot="mdp", options={"mdp": domains.complex_mdp()},
        ),
    ]  # fmt: skip


@cache
def all_experiments() -> tuple[Experiment, ...]:
    """All experiments, in the order of the report."""
    figures = [
        *step_sizes(),
        frozen_value(),
        step_size_ratio(),
        *adadelta(),
        *complex_on_policy(),
        *complex_traces(),
        *complex_off_policy(),
        *value_error(),
    ]
    return (*drawings(), *figures, table(figures), large_returns(), *random_walk())
