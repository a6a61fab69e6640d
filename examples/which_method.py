"""Which method when: direct, VTD and centred with all their step sizes free.

Small MDPs are solved exactly: the best constant steps of each method by ``rv.best_steps``, with no
simulation. Larger ones, traces and rules that need no tuning are simulated: one half of the runs
chooses the steps, the other half scores them. Each result is a file of its own in a folder, so that
an interrupted run goes on where it stopped::

    python examples/which_method.py --store study --out docs/figures
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import logging
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

import retvar as rv
from retvar.files import write_text
from retvar.format import duration
from retvar.plots.style import GRID, INK, LINE, METHODS, RC, SOFT, add_legend
from retvar.progress import Display
from retvar.sweep import Interval, bootstrap_interval, holm, signed_rank

Array = NDArray[np.float64]
KINDS = {"direct": rv.Direct, "vtd": rv.VTD, "centred": rv.Centred}
LEAST = 1e-3  # the smallest step size
MEAN_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of α_mean to α, in simulations
REST_STEPS = ((0.05, 0.05), (0.2, 0.05), (0.05, 0.2))  # α, ᾱ at rest
TOLERANCE = 0.03  # of the best steps; errors are then accurate to about 0.1%


@dataclass(frozen=True)
class Family:
    """A kind of MDP, of question and of comparison; MDPs of a family differ in their seeds."""

    name: str
    how: str = "tuned"  #: tuned, given (α), rest, or simulated
    gamma: float = 0.9
    lam: float = 0.9
    levels: tuple[float, ...] = (0.0, 5.0)  #: mean value, in standard deviations of the return
    start: str = "random"  #: of the value: random (truth plus one standard deviation) or zero
    question: str = "on"  #: on (policy), target_return or off_policy_return
    rewards: str = "mixed"  #: mixed, sparse or noisy
    loops: bool = False  #: whether a step may stay in its state
    states: int = 3
    steps: int = 1_000
    kappa: float = 0.0
    alpha: float = 0.1  #: where it is given
    centred: bool = True

    def label(self, **more: Any) -> str:
        """A unique name for the file of a result."""
        text = json.dumps(dataclasses.asdict(self) | more, sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


LAMBDAS = (0.0, 0.5, 0.9, 1.0)
GAMMAS = (0.5, 0.9, 0.99)


def families() -> list[Family]:
    """Everything that is compared."""
    found = [
        Family(f"main-{g}-{lam}", gamma=g, lam=lam, levels=(0.0, 1.0, 5.0))
        for g in GAMMAS
        for lam in LAMBDAS
    ]
    zero = {"start": "zero", "levels": (0.0, 1.0, 5.0)}
    found += [Family(f"zero-{lam}", lam=lam, **zero) for lam in LAMBDAS]  # type: ignore[arg-type]
    found += [
        Family("sparse", rewards="sparse"),
        Family("noisy", rewards="noisy"),
        Family("loops", loops=True),
        Family("target", question="target_return"),
        Family("return", question="off_policy_return"),
        Family("short", steps=200),
        Family("long", steps=5_000, centred=False),
        Family("long-zero", steps=5_000, centred=False, start="zero"),
        Family("five", states=5, centred=False),
    ]
    found += [
        Family(f"given-{alpha}-{lam}", "given", alpha=alpha, lam=lam)
        for alpha in (0.01, 0.1, 0.5)
        for lam in (0.0, 0.9, 1.0)
    ]
    found += [Family(f"rest-{lam}", "rest", lam=lam) for lam in (0.0, 0.9, 1.0)]
    return found + simulated_families()


def simulated_families() -> list[Family]:
    """Those with traces, with 20 states, and with rules that need no tuning."""
    large = functools.partial(Family, how="simulated", states=20, steps=5_000, start="zero")
    found = [
        large(f"large-{lam}-{kappa}", lam=lam, kappa=kappa)
        for lam in (0.0, 0.9, 1.0)
        for kappa in ((0.0, 0.9) if lam else (0.0,))
    ]
    for kappa in (0.0, 0.9):
        found += [
            large(f"large-far-{kappa}", gamma=0.99, kappa=kappa),
            large(f"large-target-{kappa}", question="target_return", kappa=kappa),
            large(f"large-return-{kappa}", question="off_policy_return", kappa=kappa),
        ]
    return [*found, large("large-sparse", rewards="sparse"), large("large-random", start="random")]


# ---------------------------------------------------------------------- MDPs


@dataclass(frozen=True)
class Case:
    """One MDP of a family with values at one level, and what learners on it start from."""

    mdp: rv.MDP
    weights: Array  #: the share of each state in the experience
    scale: float  #: mean square of the variance, to which errors are relative
    policies: dict[str, str]
    settings: dict[str, Any]  #: of every learner

    def learner(self, method: str, **steps: Any) -> Any:
        """A learner of this case."""
        return KINDS[method](**steps, **self.settings)


def make_case(family: Family, seed: int, level: float) -> Case:
    """Draw an MDP; a constant in all rewards moves its values to the level."""
    plain = _draw(family, seed, 0.0)
    target, behaviour = "target", "target" if family.question == "on" else "behaviour"
    weights = rv.stationary_distribution(plain, behaviour)
    centre = rv.solve(plain, target=target)
    spread = float(np.sqrt(weights @ centre.variance))
    shift = (level * spread - float(weights @ centre.value)) * (1 - family.gamma)
    mdp = _draw(family, seed, shift)
    estimand = "target_return" if family.question == "on" else family.question
    policies = {"target": target, "behaviour": behaviour}
    true = rv.solve(mdp, estimand=estimand, **policies)
    settings: dict[str, Any] = {"estimand": estimand}
    if family.start == "random":
        settings["value"] = rv.Noisy(true.value, normal=spread)
    return Case(mdp, weights, float(weights @ true.variance**2), policies, settings)


def _draw(family: Family, seed: int, shift: float) -> rv.MDP:
    """A random MDP with two actions, each of which leads to two (of 20 states: four) others."""
    n, actions, branching = family.states, 2, 2 if family.states < 10 else 4
    rng = np.random.default_rng([seed, n, family.loops])
    pairs = [(s, a) for s in range(n) for a in range(actions)]
    nexts = [
        rng.choice([t for t in range(n) if family.loops or t != s], branching, replace=False)
        for s, _ in pairs
    ]
    count = len(pairs) * branching
    reward, noise = rng.normal(size=count), rng.uniform(size=count)
    if family.rewards == "sparse":
        reward = np.where(rng.permutation(count) < count / 5, reward, 0.0)
        noise = np.zeros(count)
    if family.rewards == "noisy":
        noise = 1 + 2 * noise
    edges = (
        np.repeat([s for s, _ in pairs], branching),
        np.repeat([a for _, a in pairs], branching),
        np.concatenate(nexts),
        rng.dirichlet(np.ones(branching), len(pairs)).ravel(),
        reward + shift,
        noise,
        None,
    )
    target = rng.dirichlet(np.ones(actions), n)
    policies = {"target": target, "behaviour": (target + 1 / actions) / 2}
    sizes = {"states": n, "actions": actions}
    return rv.MDP(edges, gamma=family.gamma, lam=family.lam, policies=policies, **sizes)


# ---------------------------------------------------------------------- results of one MDP


def compute(family: Family, seed: int, runs: int) -> dict[str, Any]:
    """Errors of all methods at all levels, and the seconds that they took."""
    began = time.perf_counter()
    found: dict[str, Any] = {}
    for level in family.levels:
        case = make_case(family, seed, level)
        first = found.get(str(family.levels[0]))
        # Direct and centred learners do not see a constant that values and starts have in common.
        same = family.start == "random" and family.question != "off_policy_return"
        known = first if same and first and family.how != "simulated" else None
        methods = ["direct", "vtd", *(["centred"] if family.centred else [])]
        if family.how == "simulated":
            found[str(level)] = simulated(case, family, seed, runs)
        elif family.how == "rest":
            found[str(level)] = at_rest(case)
        else:
            found[str(level)] = tuned(case, family, methods, known)
    return {"levels": found, "seconds": time.perf_counter() - began}


def tuned(
    case: Case, family: Family, methods: Sequence[str], known: dict[str, Any] | None
) -> dict[str, Any]:
    """The least exact error of each method, relative, with its steps."""
    given = family.how == "given"
    found: dict[str, Any] = {}
    for method in methods:
        if known is not None and method != "vtd":
            found[method] = known[method]
            continue
        steps = {"alpha": family.alpha}
        if method == "centred":  # with α_mean = α it is direct, whose best steps are known
            best = {"alpha": family.alpha} | found["direct"]["steps"]
            steps = {**best, "alpha_mean": best["alpha"]}
        names = ["alpha_bar", *(["alpha_mean"] if method == "centred" else [])]
        best = rv.best_steps(
            case.mdp,
            case.learner(method, **steps),
            steps=family.steps,
            average=True,
            weights=case.weights,
            between=(LEAST, 1.0),
            points=3 if len(names) == 2 and not given else 6,
            tolerance=TOLERANCE,
            free=names if given else None,
            **case.policies,
        )
        found[method] = {"error": best.error / case.scale, "steps": best.steps}
        found[method]["at_edge"] = list(best.at_edge)
    return found


def at_rest(case: Case) -> dict[str, Any]:
    """Exact errors at rest with some steps, relative; α_mean = ᾱ."""
    learners = {
        f"{method}/{alpha}/{alpha_bar}": case.learner(method, alpha=alpha, alpha_bar=alpha_bar)
        for alpha, alpha_bar in REST_STEPS
        for method in KINDS
    }
    rest = rv.resting_error(case.mdp, learners, **case.policies)
    errors = rest.variance_mse.values @ case.weights / case.scale
    return {name: {"error": error} for name, error in zip(learners, errors.tolist(), strict=True)}


def simulated(case: Case, family: Family, seed: int, runs: int) -> dict[str, Any]:
    """Errors with steps chosen on half of the runs, without tuning, and of a grid for all MDPs.

    The grid that steps are chosen from is shifted at random for each MDP, so that the luck of
    having one's best step on the grid is part of the differences between MDPs.
    """
    shift = np.random.default_rng([seed, 1]).uniform()
    found: dict[str, Any] = {}
    for method in KINDS:
        runs_of = functools.partial(_mean_errors, case, family, seed, runs)
        own = runs_of(_grid(case, family, method, 9, shift))
        found[method] = {"error": _cross_fitted(own) / case.scale}
        shared = runs_of(_grid(case, family, method, 7, 0.5)).mean(axis=0) / case.scale
        found[method]["grid"] = np.minimum(shared, 1e30).tolist()
        rules = [rv.Averaged(), rv.Decay(power=0.7)]
        free = runs_of([_traced(case, family, method, alpha=rule) for rule in rules])
        averaged, decay = free.mean(axis=0) / case.scale
        found[method] |= {"averaged": float(averaged), "decay": float(decay)}
    return found


def _grid(case: Case, family: Family, method: str, count: int, shift: float) -> list[Any]:
    """Learners with steps on a logarithmic grid from 0.001 to 1, shifted within its spacing."""
    axis = LEAST ** (1 - (np.arange(count) + shift) / count)
    return [
        _traced(case, family, method, alpha=a, alpha_bar=b, **mean)
        for a in axis
        for b in axis
        for mean in ([{"alpha_mean": min(1.0, a * f)} for f in MEAN_FACTORS] if method == "centred" else [{}])
    ]


def _traced(case: Case, family: Family, method: str, **steps: Any) -> Any:
    return case.learner(method, **steps, kappa=family.kappa, kappa_bar=family.kappa)


def _mean_errors(case: Case, family: Family, seed: int, runs: int, learners: list[Any]) -> Array:
    """Mean squared error of the variance over time [run, learner]; infinite where it diverged."""
    every = max(1, family.steps // 20)
    data = rv.simulate(
        case.mdp,
        learners,
        steps=family.steps,
        runs=runs,
        seed=seed,
        threads=1,
        keep="runs",
        record=rv.Record(at=list(range(every, family.steps + 1, every)), rmse=True),
        **case.policies,
    )
    with np.errstate(over="ignore", invalid="ignore"):
        square = (data.variance_rmse**2).mean("step").transpose("run", "learner").values
    return np.where(np.isfinite(square), square, np.inf)


def _cross_fitted(errors: Array) -> float:
    """The error on one half of the runs of what the other half chooses, averaged over both."""
    half = len(errors) // 2
    parts = errors[:half].mean(axis=0), errors[half:].mean(axis=0)
    return float((parts[1][parts[0].argmin()] + parts[0][parts[1].argmin()]) / 2)


# ---------------------------------------------------------------------- the run


def run(chosen: list[Family], store: Path, mdps: int, runs: int, workers: int) -> None:
    """Compute what is not in the folder yet."""
    store.mkdir(parents=True, exist_ok=True)
    tasks = [(family, seed) for seed in range(mdps) for family in chosen]
    todo = [task for task in tasks if not _path(store, *task, runs).exists()]
    work = functools.partial(_compute_and_save, store, runs)
    with Display(sys.stderr, unit="cells", interval=60.0) as progress:
        progress.start(len(tasks), done=len(tasks) - len(todo))
        for done, _ in enumerate(_mapped(work, todo, workers), len(tasks) - len(todo) + 1):
            progress.advance(done)


def _mapped(work: Callable[[Any], None], todo: list[Any], workers: int) -> Iterator[None]:
    if workers == 1:
        yield from map(work, todo)
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap_unordered(work, todo)


def _path(store: Path, family: Family, seed: int, runs: int) -> Path:
    more = {"runs": runs} if family.how == "simulated" else {}
    return store / f"{family.label(**more)}-{seed}.json"


def _compute_and_save(store: Path, runs: int, task: tuple[Family, int]) -> None:
    logging.getLogger("retvar").setLevel(logging.ERROR)  # steps at an edge are in the results
    family, seed = task
    write_text(_path(store, family, seed, runs), json.dumps(compute(family, seed, runs)))


class Results:
    """All results of a run, by family."""

    def __init__(self, chosen: list[Family], store: Path, mdps: int, runs: int) -> None:
        self.families = {family.name: family for family in chosen}
        self.data = {
            family.name: [
                json.loads(_path(store, family, seed, runs).read_text()) for seed in range(mdps)
            ]
            for family in chosen
        }

    def errors(self, name: str, level: float, method: str, what: str = "error") -> Array:
        """The error of a method on each MDP of a family."""
        return np.array([one["levels"][str(level)][method][what] for one in self.data[name]])

    def ratio(self, name: str, level: float, pair: str, what: str = "error") -> Array:
        """Logarithms of the ratio of root mean squared errors of two methods, for each MDP."""
        a, b = (self.errors(name, level, method, what) for method in pair.split(" / "))
        return 0.5 * np.log(a / b)

    def shared(self, name: str, level: float, pair: str) -> Array:
        """The same with one setting for all MDPs, which the other half of the MDPs chooses."""
        found = []
        for method in pair.split(" / "):
            grid = np.log(self.errors(name, level, method, "grid"))
            scores = np.empty(len(grid))
            for part in (0, 1):
                own = np.arange(len(grid)) % 2 == part
                scores[own] = grid[own][:, grid[~own].mean(axis=0).argmin()]
            found.append(scores)
        return 0.5 * (found[0] - found[1])

    @property
    def seconds(self) -> float:
        """Seconds of work of one core."""
        return sum(one["seconds"] for many in self.data.values() for one in many)


# ---------------------------------------------------------------------- tables


@dataclass
class Row:
    """Ratios of one comparison over all MDPs."""

    table: str
    label: str
    column: str
    logs: Array
    p: float = 1.0

    @property
    def interval(self) -> Interval:
        """The geometric mean of the ratio, with its interval over MDPs."""
        return Interval(*np.exp(bootstrap_interval(self.logs, np.mean)))

    def text(self) -> str:
        """The ratio and its interval; bold where the difference is beyond doubt."""
        low, ratio, high = (f"{x:.3f}" for x in self.interval)
        shown = f"**{ratio}**" if self.p < 0.05 else ratio
        return f"{shown} [{low}, {high}]"


def rows_of(results: Results) -> list[Row]:
    """All comparisons, with p-values corrected for their number."""
    found: list[Row] = []
    for family in results.families.values():
        found += list(_rows(results, family))
    tested = [row for row in found if np.any(row.logs)]
    for row, p in zip(tested, holm([signed_rank(row.logs) for row in tested]), strict=True):
        row.p = float(p)
    return found


def _rows(results: Results, family: Family) -> Iterator[Row]:
    name = family.name
    for level in family.levels:
        at = f"level {level:g}"
        if family.how == "rest":
            for alpha, alpha_bar in REST_STEPS:
                steps = f"/{alpha}/{alpha_bar}"
                for pair in ("vtd / direct", "centred / direct"):
                    logs = results.ratio(
                        name, level, " / ".join(m + steps for m in pair.split(" / "))
                    )
                    yield Row("rest", f"{name}, α = {alpha:g}, ᾱ = {alpha_bar:g}", f"{pair}, {at}", logs)
            continue
        pairs = ["vtd / direct", *(["centred / direct"] if family.centred else [])]
        table = family.how if family.how != "tuned" else name.split("-")[0]
        for pair in pairs:
            yield Row(table, name, f"{pair}, {at}", results.ratio(name, level, pair))
            if family.how == "simulated":
                more = {what: results.ratio(name, level, pair, what) for what in ("averaged", "decay")}
                more["shared"] = results.shared(name, level, pair)
                for what, logs in more.items():
                    yield Row(f"simulated, {what}", name, f"{pair}, {at}", logs)


def tables(rows: list[Row]) -> str:
    """All comparisons as Markdown: a table for each kind, a row for each family."""
    parts = []
    for table in dict.fromkeys(row.table for row in rows):
        own = [row for row in rows if row.table == table]
        columns = list(dict.fromkeys(row.column for row in own))
        lines = [f"| {table} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for label in dict.fromkeys(row.label for row in own):
            texts = {row.column: row.text() for row in own if row.label == label}
            lines.append(f"| {label} | " + " | ".join(texts.get(c, "") for c in columns) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def main(*arguments: str) -> None:
    """Compute what is missing, print the tables and draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mdps", type=int, default=16, help="random MDPs of each family")
    parser.add_argument("--runs", type=int, default=32, help="of each simulation")
    parser.add_argument("--only", default="", help="families whose names begin with this")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", type=Path, default=Path("study"), help="folder of the results")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the figures")
    options = parser.parse_args(arguments or None)
    began = time.monotonic()
    chosen = [f for f in families() if f.name.startswith(options.only)]
    run(chosen, options.store, options.mdps, options.runs, options.workers)
    results = Results(chosen, options.store, options.mdps, options.runs)
    rows = rows_of(results)
    print(tables(rows))
    print(f"\n{duration(results.seconds)} of one core; now {duration(time.monotonic() - began)}")


if __name__ == "__main__":
    main()
