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


def main(steps: int = 300_000) -> None:
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


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
