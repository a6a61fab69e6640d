"""The figure of docs/simulate.md: how a million runs of two methods are distributed.

python million_runs.py ../docs/figures/million_runs.png

Needs an NVIDIA GPU. Prints the time that it took, and quantiles of the estimates.
"""

import sys
import time
from typing import Any

import matplotlib
import numpy as np

import retvar as rv

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RUNS, STEPS, STATE = 1_000_000, 80_000, 0
ERRORS = (0.0, 0.2, 0.4)  # of the value that is held fixed, as a share of max |j|
QUANTILES = (1e-6, 1e-4, 0.5, 1 - 1e-4, 1 - 1e-6)


def data(runs: int = RUNS, **settings: Any) -> Any:
    """Final estimates of every run [run, learner]."""
    mdp = rv.domains.complex_mdp()
    j = rv.solve(mdp).value
    starts = [rv.Noisy(j, uniform=error * float(np.abs(j).max())) for error in ERRORS]
    learners = rv.grid(
        rv.Direct, rv.VTD, alpha=0.0, alpha_bar=0.01, value=starts, learn_value=False
    )
    record = rv.Record(points=1, states=[STATE])
    return rv.simulate(
        mdp, learners, steps=STEPS, runs=runs, seed=0, record=record, keep="runs", **settings
    )


def draw(found: Any, path: str) -> None:
    """Densities on a logarithmic scale: the tails are visible down to one run in a million."""
    estimates = found.variance.values[:, :, 0, 0]
    truth = float(found.true_variance[0, 0])
    figure, axes = plt.subplots(
        1, len(ERRORS), figsize=(10, 3.2), sharey=True, layout="constrained"
    )
    for k, (axis, error) in enumerate(zip(axes, ERRORS, strict=True)):
        pair = estimates[:, [k, k + len(ERRORS)]]
        bins = np.linspace(pair.min(), pair.max(), 200)
        for column, (label, colour) in enumerate((("Direct", "C0"), ("VTD", "C1"))):
            axis.hist(
                pair[:, column], bins, histtype="step", label=label, color=colour,
                weights=np.full(len(pair), 1 / len(pair)),
            )  # fmt: skip
        axis.axvline(truth, color="0.5", linewidth=0.8)
        axis.set(yscale="log", xlabel="estimated variance", title=f"value error {error:g} max|j|")
    axes[0].set_ylabel("share of runs")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    data(runs=100, device="cuda")  # compiles
    before = time.perf_counter()
    found = data(device="cuda")
    print(f"{RUNS:,} runs × {STEPS:,} steps × {found.sizes['learner']} learners:", end=" ")
    print(f"{time.perf_counter() - before:.1f} s")
    few = 200
    data(runs=few)
    before = time.perf_counter()
    data(runs=few)
    seconds = time.perf_counter() - before
    print(f"{few} runs on the CPU: {seconds:.2f} s, so {seconds * RUNS / few:,.0f} s for all")
    for i, label in enumerate(found.learner.values):
        print(label, np.quantile(found.variance.values[:, i, 0, 0], QUANTILES))
    draw(found, sys.argv[1])
