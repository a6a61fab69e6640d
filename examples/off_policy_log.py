"""Estimate one policy from the log of another: the paper's complex MDP as a Parquet file.

The log has the probability of each action under the policy that acted (behaviour) and under the one
to evaluate (target). Their ratio weights every transition.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure

import retvar as rv


def write_log(path: Path, steps: int) -> rv.MDP:
    """Simulate the behaviour policy and write a log."""
    mdp = rv.domains.complex_mdp()
    log = rv.replay(mdp, target="pi", behaviour="mu", steps=steps, seed=3)
    behaviour = np.full(steps, 0.25)  # as a system that logs its propensities would know
    columns = {
        "where": log["state"], "got": log["reward"], "next": log["next_state"],
        "gamma": log["gamma"], "lambda": log["lam"],
        "p_behaviour": behaviour, "p_target": behaviour * log["rho"],
    }  # fmt: skip
    pq.write_table(pa.table(columns), path)
    return mdp


def draw(found: rv.Estimate, truth: rv.Solution) -> Figure:
    """Value and std of the target policy in each state: from the log with intervals, and exact."""
    figure = Figure(figsize=(6.6, 3.0), layout="constrained")
    states = np.arange(truth.value.size)
    for axes, what in zip(figure.subplots(1, 2), ("value", "std"), strict=True):
        low, high = (found.data[f"{what}_{end}"].values for end in ("low", "high"))
        axes.vlines(states, low, high, color="#0072B2", lw=7, alpha=0.35)
        axes.plot(states, found.data[what], "o", color="#0072B2", ms=4)
        axes.plot(states, getattr(truth, what), "_", color="#D55E00", ms=18, mew=1.6)
        axes.set(title=what, xlabel="state", xticks=states)
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("Dot and bar: from the log of another policy, 90%. Orange: exact.", fontsize=8)
    return figure


def main(steps: int = 300_000, plot: str | None = None) -> None:
    """Print the estimates, the effective sample size and the exact answer."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        mdp = write_log(path, steps)
        log = rv.experience.from_table(
            path, state="where", reward="got", next_state="next", terminated=False,
            gamma="gamma", lam="lambda", behaviour="p_behaviour", target="p_target",
        )  # fmt: skip
        found = rv.estimate(log, lam=None)
    truth = rv.solve(mdp, target="pi", behaviour="mu")
    print(found.summary())
    print("\nexact value:", truth.value.round(3), "\nexact std:  ", truth.std.round(3))
    if plot is not None:
        rv.plots.save(draw(found, truth), plot)


if __name__ == "__main__":
    main(*(int(x) if x.isdigit() else x for x in sys.argv[1:]))
