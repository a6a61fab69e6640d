"""Deep critics on the linear-Gaussian world: how far std and value are from the exact ones.

python deep.py --device cuda --workers 8 --results results.jsonl

Fits run in processes, side by side. With --results, every finished fit is written to that file,
and fits that are in it are not repeated. Needs torch, but neither gymnasium nor a figure. On a CPU
the whole takes hours, most of it for the settings among which the quantile critic chooses; --quick
shows in a few minutes that everything works.

The settings of the quantile critic are chosen for each world by the error itself, on other data
than that reported.
"""

import argparse
import itertools
import json
import multiprocessing
import platform
import statistics
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import document
import quantile_critic
import retvar as rv
from quantile_critic import Lane
from retvar.deep.fitting import Columns, Record
from retvar.support.format import count

DIMENSIONS, GAMMAS = (2, 4), (0.95, 0.99)
STREAMS, STATES, LEVEL = 64, 4_000, 0.9
MEMBERS = 5
CRITIC, LANES, GRID, SECONDS = "critic", "lanes", "grid", "seconds"
METHODS = {"direct": "direct", "vtd": "VTD", "centred": "centred"}


class Plan(NamedTuple):
    """How much is measured."""

    steps: int = 200_000
    fewer: int = 50_000  #: transitions of a second measurement of intervals
    seeds: int = 5  #: of the errors
    datasets: int = 20  #: of the shares of intervals
    tuning: tuple[int, ...] = (1_000, 1_001)  #: seeds of the choice of settings
    sweeps: int = 25
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    averages: tuple[float, ...] = (0.99, 0.995, 0.999)
    hubers: tuple[float, ...] = (0.0, 0.1, 1.0)
    kappas: tuple[float, ...] = (0.0, 0.9, 0.95, 0.99, 1.0)
    threads: int = 2  #: of fits that are timed

    def sweeps_at(self, gamma: float) -> int:
        """As many as are the default there."""
        return round(self.sweeps * max(1.0, 0.02 / (1 - gamma)))

    @property
    def lanes(self) -> list[Lane]:
        return [
            Lane(*each)
            for each in itertools.product(self.rates, self.averages, self.hubers, self.kappas)
        ]


QUICK = Plan(
    steps=8_192, fewer=4_096, seeds=1, datasets=1, tuning=(1_000,), sweeps=1, rates=(3e-3,),
    averages=(0.99,), hubers=(0.0, 1.0), kappas=(0.95,), threads=1,
)  # fmt: skip


class Job(NamedTuple):
    """One fit."""

    kind: str
    dimension: int
    gamma: float
    steps: int
    sweeps: int
    seed: int
    method: str = "direct"  #: or "quantiles"
    members: int = MEMBERS
    threads: int = 1
    lanes: tuple[tuple[float, ...], ...] = ()  #: settings of quantile critics


@cache
def world(dimension: int, gamma: float) -> Any:
    F = np.random.default_rng(1).normal(size=(dimension, dimension))
    F *= 0.9 / np.abs(np.linalg.eigvals(F)).max()
    return rv.domains.linear_gaussian(F, 0.3 * np.eye(dimension), np.eye(dimension), gamma)


def experience(job: Job) -> Any:
    """Every stream starts from the stationary distribution."""
    given = world(job.dimension, job.gamma)
    return rv.experience.from_linear_gaussian(
        given, streams=STREAMS, steps=job.steps, seed=job.seed
    )


def columns(job: Job) -> Columns:
    record = Record(job.gamma, 1.0)
    for chunk in experience(job).chunks():
        record.add(chunk)
    return record.columns()


@cache
def asked(dimension: int, gamma: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """On-policy states, and their exact value and std."""
    given = world(dimension, gamma)
    states = given.sample(STATES, 1, seed=12_345)[0][0]
    return states, given.value(states), given.std(states)


# ------------------------------------------------------------------ what a process does


def carry_out(job: Job, device: str) -> dict[str, Any]:
    """Fit, and compare with what is exact."""
    torch.set_num_threads(job.threads)
    work = {CRITIC: critic, LANES: lanes, GRID: lanes, SECONDS: seconds}[job.kind]
    return work(job, device)


def critic(job: Job, device: str) -> dict[str, Any]:
    fitted = fit_critic(job, device)
    states, value, std = asked(job.dimension, job.gamma)
    found = errors(fitted.value(states), fitted.std(states), value, std)
    if job.members > 1:
        for name, exact in (("value", value), ("std", std)):
            low, high = fitted.interval(states, name, level=LEVEL)
            found[f"{name}_held"] = float(((low <= exact) & (exact <= high)).mean())
            found[f"{name}_width"] = float(np.nanmedian((high - low) / std))
    return found


def fit_critic(job: Job, device: str) -> Any:
    return rv.deep.fit(
        experience(job), gamma=job.gamma, method=job.method, members=job.members,
        sweeps=job.sweeps, device=device, seed=job.seed,
    )  # fmt: skip


def lanes(job: Job, device: str) -> dict[str, Any]:
    """Errors of each lane, of the mean of all, and both with corrected tails."""
    fitted = fit_lanes(job, device)
    states, value, std = asked(job.dimension, job.gamma)
    values = fitted.value(states)
    found: dict[str, Any] = {}
    for corrected in (False, True):
        variances = fitted.variance(states, corrected)
        stds, name = np.sqrt(variances), "corrected" if corrected else "plain"
        found[name] = [errors(v, s, value, std) for v, s in zip(values, stds, strict=True)]
        mean = errors(values.mean(axis=0), np.sqrt(variances.mean(axis=0)), value, std)
        found[f"{name}_mean"] = mean
    return found


def fit_lanes(job: Job, device: str) -> quantile_critic.QuantileCritic:
    steps = quantile_critic.STEPS * job.sweeps // Plan().sweeps
    settings = [Lane(*lane) for lane in job.lanes]
    return quantile_critic.fit(columns(job), settings, steps=steps, device=device, seed=job.seed)


def seconds(job: Job, device: str) -> dict[str, Any]:
    """Seconds of a fit on two cores, data included; `device` does not matter."""
    before = time.perf_counter()
    if job.method == "quantiles":
        fit_lanes(job, "cpu")
    else:
        fit_critic(job, "cpu")
    return {"seconds": time.perf_counter() - before}


def errors(
    value: np.ndarray, std: np.ndarray, exact: np.ndarray, exact_std: np.ndarray
) -> dict[str, float]:
    """Relative errors of std, and errors of the value in std; unknown ones count as infinite."""
    off = np.nan_to_num(np.abs(std / exact_std - 1), nan=np.inf)
    away = np.nan_to_num(np.abs(value - exact) / exact_std, nan=np.inf)
    return {
        "median": float(np.median(off)), "high": float(np.quantile(off, 0.9)),
        "value": float(np.median(away)),
    }  # fmt: skip


# ------------------------------------------------------------------ all of them


class Fits:
    """Jobs in processes, and their results, which are kept in a file if there is one."""

    def __init__(self, workers: int, device: str, path: str) -> None:
        self.device, self.path = device, Path(path) if path else None
        self.found: dict[Job, dict[str, Any]] = {}
        if self.path is not None and self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                name, result = json.loads(line)
                self.found[job_of(name)] = result
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(workers, mp_context=context)
        self.waiting: dict[Future, Job] = {}
        self.began = time.perf_counter()

    def submit(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job not in self.found and job not in self.waiting.values():
                self.waiting[self.pool.submit(carry_out, job, self.device)] = job

    def wait(self, kind: str | None = None) -> None:
        """Until all, or all of a kind, are there."""
        for future in as_completed(list(self.waiting)):
            job = self.waiting.pop(future)
            self.found[job] = future.result()
            passed = time.perf_counter() - self.began
            left = f"{passed:5.0f} s, {len(self.waiting)} left"
            print(f"{left}: {job[:-1]}", file=sys.stderr, flush=True)
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([job, self.found[job]]) + "\n")
            if kind is not None and all(other.kind != kind for other in self.waiting.values()):
                return


def job_of(row: list[Any]) -> Job:
    return Job(*row[:-1], lanes=tuple(tuple(lane) for lane in row[-1]))


def critic_jobs(plan: Plan) -> dict[str, list[Job]]:
    """By use: errors of the methods, errors of one network, intervals from less data."""
    full = [
        Job(CRITIC, d, gamma, plan.steps, plan.sweeps_at(gamma), seed, method)
        for gamma, d, method in itertools.product(GAMMAS, DIMENSIONS, METHODS)
        for seed in range(plan.seeds)
    ]
    first = [job for job in full if job.gamma == GAMMAS[0] and job.method == "direct"]
    alone = [job._replace(members=1) for job in first]
    many = [
        Job(CRITIC, d, GAMMAS[0], steps, plan.sweeps, seed)
        for steps, d in itertools.product((plan.steps, plan.fewer), DIMENSIONS)
        for seed in range(plan.datasets)
    ]
    return {"errors": full, "alone": alone, "intervals": many}


def grid_jobs(plan: Plan) -> list[Job]:
    return [
        Job(
            GRID,
            d,
            gamma,
            plan.steps,
            plan.sweeps_at(gamma),
            seed,
            "quantiles",
            lanes=tuple(plan.lanes),
        )
        for gamma, d, seed in itertools.product(GAMMAS, DIMENSIONS, plan.tuning)
    ]


def timed_jobs(plan: Plan) -> list[Job]:
    first = Job(SECONDS, 2, GAMMAS[0], plan.steps, plan.sweeps, 0, threads=plan.threads)
    return [
        first, first._replace(members=1),
        first._replace(method="quantiles", members=1, lanes=(Lane(),)),
    ]  # fmt: skip


def choose(plan: Plan, fits: Fits) -> dict[tuple[int, float], tuple[Lane, bool]]:
    """For each world the settings, and the correction of tails, with the smallest error."""
    chosen = {}
    for gamma, d in itertools.product(GAMMAS, DIMENSIONS):
        jobs = [job for job in grid_jobs(plan) if (job.dimension, job.gamma) == (d, gamma)]
        ways = itertools.product(range(len(plan.lanes)), (False, True))
        scores = {
            (plan.lanes[k], corrected): statistics.mean(
                fits.found[job]["corrected" if corrected else "plain"][k]["median"] for job in jobs
            )
            for k, corrected in ways
        }
        chosen[d, gamma] = min(scores, key=lambda way: scores[way])
    return chosen


def lane_jobs(plan: Plan, chosen: dict[tuple[int, float], tuple[Lane, bool]]) -> list[Job]:
    return [
        Job(
            LANES, d, gamma, plan.steps, plan.sweeps_at(gamma), seed, "quantiles",
            lanes=(chosen[d, gamma][0],) * MEMBERS,
        )
        for gamma, d in itertools.product(GAMMAS, DIMENSIONS)
        for seed in range(plan.seeds)
    ]  # fmt: skip


# ------------------------------------------------------------------ the section


def row(name: str, d: int, gamma: float, found: list[dict[str, float]], goal: Any = None) -> str:
    """Of a table: means over seeds, and the worst seed."""
    parts = []
    for key in ("median", "high"):
        each = [result[key] for result in found]
        parts.append(f"{statistics.mean(each):.3f} ({max(each):.3f})")
    value = statistics.mean(result["value"] for result in found)
    verdict = "–"
    if goal is not None:
        limits = dict(zip(("median", "high"), goal, strict=False))
        met = all(result[key] <= limit for result in found for key, limit in limits.items())
        shown = ", ".join(f"{limit:g}" for limit in goal)
        verdict = f"{shown}: {'met' if met else 'missed'}"
    return f"| {name} | {d} | {gamma:g} | {parts[0]} | {parts[1]} | {value:.3f} | {verdict} |"


def goal_of(method: str, gamma: float) -> tuple[float, ...] | None:
    if method == "direct":
        return (0.03, 0.06) if gamma == GAMMAS[0] else (0.04,)
    return (0.05,) if gamma == GAMMAS[0] else None


def error_table(plan: Plan, fits: Fits, chosen: Any) -> list[str]:
    jobs = critic_jobs(plan)
    lines = [
        "| critic | dimensions | γ | error of std, median | 90% point | error of value | at most |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for gamma, d in itertools.product(GAMMAS, DIMENSIONS):

        def of(several: list[Job], d: int = d, gamma: float = gamma) -> list[Job]:
            return [job for job in several if (job.dimension, job.gamma) == (d, gamma)]

        for method, name in METHODS.items():
            found = [fits.found[job] for job in of(jobs["errors"]) if job.method == method]
            lines.append(row(name, d, gamma, found, goal_of(method, gamma)))
        if alone := of(jobs["alone"]):
            found = [fits.found[job] for job in alone]
            lines.append(row("direct, one network", d, gamma, found))
        results = [fits.found[job] for job in of(lane_jobs(plan, chosen))]
        way = "corrected" if chosen[d, gamma][1] else "plain"
        lines.append(row("quantiles", d, gamma, [each[f"{way}_mean"] for each in results]))
        single = [each[way][0] for each in results]
        lines.append(row("quantiles, one network", d, gamma, single))
    return lines


def choice_lines(plan: Plan, chosen: dict[tuple[int, float], tuple[Lane, bool]]) -> list[str]:
    """Settings of the quantile critic, world by world."""
    lines = [
        f"The quantile critic chose among {2 * len(plan.lanes)} settings: step size "
        f"{listed(plan.rates)}; decay of the mean of the weights {listed(plan.averages)}; Huber "
        f"loss up to {listed(plan.hubers)} std of the returns; κ {listed(plan.kappas)}; with and "
        "without a correction for the tails that quantiles lack. It chose, for each world by the "
        f"error of std on {count(len(plan.tuning), 'other data set')}:",
        "",
        "| dimensions | γ | step size | decay | Huber | κ | corrected |",
        "|---:|---:|---:|---:|---:|---:|---|",
    ]
    for (d, gamma), (lane, corrected) in chosen.items():
        numbers = " | ".join(f"{x:g}" for x in (d, gamma, *lane))
        lines.append(f"| {numbers} | {'yes' if corrected else 'no'} |")
    return lines


def interval_table(plan: Plan, fits: Fits) -> list[str]:
    lines = [
        f"Shares of {LEVEL:.0%} intervals (five networks, direct, γ = {GAMMAS[0]:g}) that hold the "
        f"exact value and std: means over states and {count(plan.datasets, 'data set')}, the range "
        "over data sets in brackets; median width in units of the exact std.",
        "",
        "| dimensions | transitions | value | width | std | width |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    jobs = critic_jobs(plan)["intervals"]
    for steps, d in itertools.product((plan.steps, plan.fewer), DIMENSIONS):
        found = [fits.found[job] for job in jobs if (job.steps, job.dimension) == (steps, d)]
        parts = []
        for name in ("value", "std"):
            held = [each[f"{name}_held"] for each in found]
            width = statistics.mean(each[f"{name}_width"] for each in found)
            parts += [
                f"{statistics.mean(held):.0%} ({min(held):.0%}–{max(held):.0%})", f"{width:.3f}"
            ]  # fmt: skip
        lines.append(f"| {d} | {steps:,} | {' | '.join(parts)} |")
    return lines


def time_lines(plan: Plan, fits: Fits) -> list[str]:
    found = [fits.found[job]["seconds"] for job in timed_jobs(plan)]
    verdict = "met" if found[0] <= 120 else "missed"
    return [
        f"A fit in two dimensions on two cores ({processor()}), data included: {found[0]:.0f} s "
        f"with five networks (at most 120 s: {verdict}), {found[1]:.0f} s with one; the quantile "
        f"critic with one network {found[2]:.0f} s."
    ]


def processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def listed(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{x:g}" for x in numbers[:-1]) + (
        f" or {numbers[-1]:g}" if len(numbers) > 1 else f"{numbers[0]:g}"
    )


def section(plan: Plan, fits: Fits, chosen: Any) -> str:
    where = torch.cuda.get_device_name() if fits.device.startswith("cuda") else processor()
    lines = [
        "## Deep critics",
        "",
        "`rv.deep.fit` with its defaults on a linear-Gaussian world (`benchmarks/deep.py`): "
        "F = 0.9 F₀/ρ(F₀) with F₀ ~ N(0, 1) from `default_rng(1)`, Q = I, S = 0.3 I, "
        f"{plan.steps:,} transitions in {STREAMS} streams that start from the stationary "
        f"distribution. Errors are |std/exact − 1| over {STATES:,} on-policy states, and "
        "|value − exact| in units of the exact std, its median; means over "
        f"{count(plan.seeds, 'data set')}, in brackets the worst. A goal is met if every data set "
        "meets it. Quantiles: a critic with 32 quantiles (`benchmarks/quantile_critic.py`), of the "
        "same size, with the same data and as many steps of Adam as the two networks of a critic "
        "take together. "
        "Unless it says one network, answers are means of five.",
        "",
        *error_table(plan, fits, chosen),
        "",
        *choice_lines(plan, chosen),
        "",
        *interval_table(plan, fits),
        "",
        *time_lines(plan, fits),
        f"All other fits: {where}, torch {torch.__version__.partition('+')[0]}.",
    ]
    return "\n".join(lines)


def measure(plan: Plan, given: argparse.Namespace) -> str:
    fits = Fits(given.workers, given.device, given.results)
    with fits.pool:
        try:
            fits.submit([*timed_jobs(plan), *grid_jobs(plan)])
            for jobs in critic_jobs(plan).values():
                fits.submit(jobs)
            fits.wait(GRID)
            chosen = choose(plan, fits)
            fits.submit(lane_jobs(plan, chosen))
            fits.wait()
        except BaseException:
            fits.pool.shutdown(cancel_futures=True)
            raise
    return section(plan, fits, chosen)


if __name__ == "__main__":
    given = document.options(
        __doc__,
        device=("cpu", "of torch, such as cuda"),
        workers=(2, "processes"),
        results=("", "file of finished fits, which are not repeated"),
        quick=(False, "little data and few steps, to see that it works"),
    )
    document.publish(measure(QUICK if given.quick else Plan(), given), given.out, given.append)
