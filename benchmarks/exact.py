"""Time and memory of `solve`, compared with solving for the value alone.

Each size runs in a separate process, so that its peak memory can be measured. The two are timed
alternately; the ratio is that of the medians.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import retvar as rv
from retvar.exact.solution import format_radius
from retvar.mdp import state_values, weigh_edges
from retvar.support.files import write_text

SIZES = (1_000, 10_000, 100_000, 1_000_000)
OFF_POLICY = ("target", "behaviour", "off_policy_return")


def discounted(n: int) -> rv.MDP:
    return rv.domains.random_mdp(n, 1, 5, seed=0, gamma=(0.9, 0.99), lam=(0.5, 1.0))


def episodic(n: int) -> rv.MDP:
    return rv.domains.random_mdp(n, 1, 5, seed=0, gamma=1.0, lam=1.0, ends=0.05)


def off_policy(n: int) -> rv.MDP:
    mdp = rv.domains.random_mdp(n, 5, 1, seed=0, gamma=0.95, lam=0.9)
    rng = np.random.default_rng(1)
    behaviour = 0.5 / 5 + 0.5 * rng.dirichlet(np.ones(5), n)
    target = 0.5 * behaviour + 0.5 / 5
    return mdp.replace(policies={"target": target, "behaviour": behaviour})


def walk(n: int) -> rv.MDP:
    return rv.domains.random_walk(n)


CASES = {
    "discounted": (discounted, (), "five random edges, γ 0.9–0.99, λ 0.5–1"),
    "episodic": (episodic, (), "five random edges, γ = λ = 1, 5% of them end the episode"),
    "off-policy": (off_policy, OFF_POLICY, "five actions, off-policy return, γ = 0.95, λ = 0.9"),
    "walk": (walk, (), "the random walk of that length, γ = λ = 1"),
}


def peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024**2 if sys.platform == "darwin" else 1024)


def measure(case: str, n: int) -> dict:
    make, policies, _ = CASES[case]
    before = time.perf_counter()
    mdp = make(n)
    construction = time.perf_counter() - before
    times: dict[str, list[float]] = {"value": [], "all": []}
    for _ in range(max(3, min(15, 300_000 // n))):
        for kind, run in (
            ("value", lambda: state_values(weigh_edges(mdp, *policies))),
            ("all", lambda: rv.solve(mdp, *policies)),
        ):
            before = time.perf_counter()
            solution = run()
            times[kind].append(time.perf_counter() - before)
    value, everything = (statistics.median(times[kind]) for kind in ("value", "all"))
    return {
        "case": case,
        "n": n,
        "build": construction,
        "value": value,
        "all": everything,
        "ratio": everything / value,
        "memory": peak_mib(),
        "solver": solution.solvers[-1],
        "residual": solution.residual,
        "radius": f"{format_radius(solution.spectral_radius)} ({solution.radius_kind})",
    }


def page(rows: list[dict]) -> str:
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`. Times are medians on one machine. Ratios compare programs timed "
        "alternately in one run, and depend less on the machine.",
        "",
        f"Machine: {platform.machine()}, Python {platform.python_version()}, numpy "
        f"{np.__version__}, retvar {rv.__version__}.",
        "",
        "## Exact solution",
        "",
        "`value` solves for the value alone; `all` is `retvar.solve`: value, variance and the "
        "certificate that the variance is finite. Memory is the peak of the whole process, "
        "including the construction of the MDP.",
        "",
    ]
    for case, (_, _, text) in CASES.items():
        lines += [
            f"**{case}**: {text}.",
            "",
            "| states | value | all | ratio | peak memory | solver | residual | radius of B |",
            "|---:|---:|---:|---:|---:|---|---:|---|",
            *(
                f"| {r['n']:,} | {r['value'] * 1e3:,.1f} ms | {r['all'] * 1e3:,.1f} ms "
                f"| {r['ratio']:.2f} | {r['memory']:,.0f} MiB | {r['solver']} "
                f"| {r['residual']:.0e} | {r['radius']} |"
                for r in rows
                if r["case"] == case
            ),
            "",
        ]
    worst = max(rows, key=lambda r: r["ratio"])
    lines += [
        f"The largest ratio is {worst['ratio']:.2f} ({worst['case']}, {worst['n']:,} states); the "
        f"largest peak is {max(r['memory'] for r in rows):,.0f} MiB.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks.md"))
    parser.add_argument("--one", nargs=2, metavar=("CASE", "STATES"), help="measure only this")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="largest number of states")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return
    rows = []
    for case in CASES:
        for n in (size for size in SIZES if size <= options.most):
            command = [sys.executable, __file__, "--one", case, str(n)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            rows.append(json.loads(out))
            r = rows[-1]
            print(f"{case} {n:,}: ratio {r['ratio']:.2f}, {r['memory']:,.0f} MiB", flush=True)
    write_text(options.out, page(rows))


if __name__ == "__main__":
    main()
