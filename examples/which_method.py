"""Which method to choose when: direct, VTD and centred compared on random MDPs.

The sweep is that of ``which_method.toml`` in this folder; options make it smaller. Its results are
saved in a folder and not computed again. There are four step sizes a decade: with two, differences
of up to 15% between methods at their best settings depend on which method happens to have its best
step size on the grid.
"""

import argparse
from pathlib import Path

import msgspec
import numpy as np
import xarray

import retvar as rv
from retvar.sweep import Points, Range, Store, Sweep, collect, compare, run

SPEC = Path(__file__).with_suffix(".toml")


def sweep(mdps: int, runs: int, steps: int, sizes: int, shift: float) -> Sweep:
    """The sweep of the specification, with other numbers."""
    spec = Sweep.from_toml(SPEC)
    random = {**spec.domains[0].random, "reward_mean": shift} if shift else spec.domains[0].random
    alphas = Range(log=(1e-3, 1.0), count=sizes)
    replace = msgspec.structs.replace
    return replace(
        spec,
        runs=runs,
        steps=steps,
        record=Points(at=sorted({max(1, steps // 100), max(1, steps // 10), steps})),
        domains=[replace(spec.domains[0], random=random, seeds={"first": 0, "count": mdps})],
        learners=[replace(spec.learners[0], alpha=alphas, alpha_bar=alphas)],
    )


def answer(data: xarray.Dataset, alpha: float, folder: Path) -> None:
    """Print the comparisons of the methods, and draw figures."""
    found = {
        "free": ("Both step sizes free", compare(data)),
        "given": (
            f"The value's step size given, α = {alpha:g}",
            compare(data, where={"alpha": alpha}),
        ),
        "equal": ("Both step sizes equal", compare(data.sel(learner=data.alpha == data.alpha_bar))),
    }
    for name, (title, comparison) in found.items():
        print(f"{title}\n{comparison.summary()}\n")
        rv.plots.save(rv.plots.comparison(comparison), folder / f"which-method-{name}.png")
    figures = {
        "alpha": rv.plots.sensitivity_curves(data, x="alpha"),
        "alpha_bar": rv.plots.sensitivity_curves(data, x="alpha_bar", where={"alpha": alpha}),
        "maps": rv.plots.sweep_heat_map(data, x="alpha", y="alpha_bar"),
    }
    for name, figure in figures.items():
        rv.plots.save(figure, folder / f"which-method-{name}.png")


def main(*arguments: str) -> None:
    """Sweep the methods over step sizes and λ on random MDPs, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mdps", type=int, default=100)
    parser.add_argument("--runs", type=int, default=40, help="half select settings, half judge")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--sizes", type=int, default=13, help="step sizes from 0.001 to 1")
    parser.add_argument("--shift", type=float, default=0.0, help="added to every reward")
    parser.add_argument("--store", type=Path, default=Path("which"), help="folder of the sweep")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the figures")
    options = parser.parse_args(arguments or None)
    smaller = sweep(options.mdps, options.runs, options.steps, options.sizes, options.shift)
    run(smaller, options.store)
    data = collect(Store.open(options.store))
    sizes = np.unique(data.alpha)
    answer(data, float(sizes[2 * (sizes.size - 1) // 3]), options.out)


if __name__ == "__main__":
    main()
