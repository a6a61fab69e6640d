"""Direct, VTD or centred: which method to choose when, on random MDPs, with intervals.

Step sizes are four a decade: with two a decade, differences of up to 15% between methods at their
best settings come from which of them happens to have its best step size on the grid.
"""

import argparse
from pathlib import Path

import numpy as np
import xarray

import retvar as rv
from retvar.sweep import compare

LAMBDAS = [0.0, 0.5, 0.9, 1.0]
SIZES = 20, 3, 4  # states, actions, next states an action may lead to
GAMMA = 0.9


def collected(mdps: int, runs: int, steps: int, sizes: int, shift: float = 0.0) -> xarray.Dataset:
    """Every method × step sizes × λ on every MDP, on common streams; errors run by run."""
    alphas = np.logspace(-3, 0, sizes).tolist()
    methods = (rv.Direct, rv.VTD, rv.Centred)
    learners = rv.grid(*methods, alpha=alphas, alpha_bar=alphas, lam=LAMBDAS, gamma=GAMMA)
    moments = sorted({max(1, steps // 100), max(1, steps // 10), steps})
    record = rv.Record(at=moments, rmse=True, states=[0])
    found = []
    for seed in range(mdps):
        mdp = shifted(rv.domains.random_mdp(*SIZES, seed=seed, gamma=GAMMA), shift)
        data = rv.simulate(
            mdp, learners, steps=steps, runs=runs, seed=seed, record=record, keep="runs"
        )
        errors = data[["value_rmse", "variance_rmse"]].drop_vars("settings")
        diverged = data.diverged_by.notnull().drop_vars("settings")
        found.append(errors.assign(diverged=diverged).transpose("learner", "step", "run"))
    return xarray.concat(found, xarray.Variable("domain", [f"random-{k}" for k in range(mdps)]))


def shifted(mdp: rv.MDP, shift: float) -> rv.MDP:
    """The same MDP with so much added to every reward: variances stay, values move."""
    if shift == 0:
        return mdp
    edges = mdp.edges._replace(reward=mdp.edges.reward + shift)
    return rv.MDP(edges, policies=mdp.policies, states=mdp.n_states, name=mdp.name)


def answer(data: xarray.Dataset, given: float, folder: Path) -> None:
    """Say which method is better when, and draw it."""
    found = {
        "free": ("Both step sizes free", compare(data)),
        "given": (
            f"The value's step size given, α = {given:g}",
            compare(data, where={"alpha": given}),
        ),
        "equal": ("Both step sizes equal", compare(data.sel(learner=data.alpha == data.alpha_bar))),
    }
    for name, (title, comparison) in found.items():
        print(f"{title}\n{comparison.text()}\n")
        rv.plots.save(rv.plots.comparison(comparison), folder / f"which-method-{name}.png")
    figures = {
        "alpha": rv.plots.sensitivity_curves(data, x="alpha"),
        "alpha_bar": rv.plots.sensitivity_curves(data, x="alpha_bar", where={"alpha": given}),
        "maps": rv.plots.sweep_heat_map(data, x="alpha", y="alpha_bar"),
    }
    for name, figure in figures.items():
        rv.plots.save(figure, folder / f"which-method-{name}.png")


def main(*arguments: str) -> None:
    """Sweep the methods over step sizes and λ on random MDPs, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mdps", type=int, default=100)
    parser.add_argument("--runs", type=int, default=40, help="half choose settings, half judge")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--sizes", type=int, default=13, help="step sizes from 0.001 to 1")
    parser.add_argument("--shift", type=float, default=0.0, help="added to every reward")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the figures")
    given = parser.parse_args(arguments or None)
    data = collected(given.mdps, given.runs, given.steps, given.sizes, given.shift)
    sizes = np.unique(data.alpha)
    answer(data, float(sizes[2 * (sizes.size - 1) // 3]), given.out)


if __name__ == "__main__":
    main()
