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
import itertools
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
import scipy.stats
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

import retvar as rv
from retvar.plots.style import COLOURS, GRID, INK, LINE, RC, add_legend
from retvar.support.files import write_text
from retvar.support.format import duration
from retvar.support.progress import Display
from retvar.sweep import Interval, bootstrap_interval, holm

Array = NDArray[np.float64]
KINDS = {"direct": rv.Direct, "vtd": rv.VTD, "centred": rv.Centred}
LEAST = 1e-3  # the smallest step size
MEAN_FACTORS = (0.3, 1.0, 3.0)  # of α_mean to α, in simulations
REST_STEPS = ((0.05, 0.05), (0.2, 0.05), (0.05, 0.2))  # α, ᾱ at rest
TOLERANCE = 0.1  # of the best steps; errors are then accurate to about 0.1%


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
    steps: int = 500
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
        Family(f"main-{g}-{lam}", gamma=g, lam=lam, centred=g == 0.9)
        for g in GAMMAS
        for lam in LAMBDAS
    ]
    found += [Family(f"zero-{lam}", lam=lam, start="zero") for lam in (0.0, 0.9)]
    other = functools.partial(Family, centred=False)
    found += [
        other("sparse", rewards="sparse"),
        other("noisy", rewards="noisy"),
        other("loops", loops=True),
        other("target", question="target_return"),
        Family("return", question="off_policy_return"),
        other("short", steps=100),
        other("long", steps=2_500),
        other("long-zero", steps=2_500, start="zero"),
        other("four", states=4),
    ]
    found += [
        Family(f"given-{alpha}-{lam}", "given", alpha=alpha, lam=lam)
        for alpha in (0.1, 0.5)
        for lam in (0.0, 0.9)
    ]
    found += [Family(f"rest-{lam}", "rest", lam=lam) for lam in (0.0, 0.9)]
    return found + simulated_families()


def simulated_families() -> list[Family]:
    """Those with traces, with 20 states, and with rules that need no tuning."""
    large = functools.partial(Family, how="simulated", states=20, steps=3_000, start="zero")
    return [
        large("large-0.9", lam=0.9),
        large("large-0.9-traces", lam=0.9, kappa=0.9),
        large("large-1", lam=1.0),
        large("large-1-traces", lam=1.0, kappa=0.9),
        large("large-0.99-traces", gamma=0.99, kappa=0.9),
        large("large-target", question="target_return"),
        large("large-return", question="off_policy_return"),
        large("large-random", start="random"),
    ]


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
        exact = family.how != "simulated"
        start = _starts(true.value, spread) if exact else rv.Noisy(true.value, normal=spread)
        settings["value"] = start
    return Case(mdp, weights, float(weights @ true.variance**2), policies, settings)


def _starts(value: Array, spread: float) -> rv.PerRun:
    """Values plus errors with the moments of normal numbers up to order 5: six points each."""
    errors = spread * np.sqrt(3) * np.array([-1, 0, 0, 0, 0, 1])
    return rv.PerRun(value + np.array(list(itertools.product(errors, repeat=value.size))))


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
    began = time.process_time()
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
    return {"levels": found, "seconds": time.process_time() - began}


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
            points=(3 if method == "centred" else 6),
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
        own = runs_of(_grid(case, family, method, 7, shift))
        found[method] = {"error": _cross_fitted(own) / case.scale}
        shared = runs_of(_grid(case, family, method, 5, 0.5)).mean(axis=0) / case.scale
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
        for mean in (
            [{"alpha_mean": min(1.0, a * f)} for f in MEAN_FACTORS] if method == "centred" else [{}]
        )
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
    with Display(sys.stderr, unit="cells") as progress:
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

COLUMNS = {"vtd / direct": "VTD / direct", "centred / direct": "centred / direct"}
KINDS_OF_CHOICE = {
    "error": "tuned",
    "shared": "one setting",
    "averaged": "`Averaged()`",
    "decay": "`Decay(power=0.7)`",
}
TITLES = {
    "zero-0.0": "starts at 0, λ = 0",
    "zero-0.9": "starts at 0",
    "sparse": "sparse rewards",
    "noisy": "noisy rewards",
    "loops": "with steps that stay in their state",
    "target": "off-policy, the target's return",
    "return": "off-policy, the off-policy return",
    "short": "100 steps",
    "long": "2,500 steps",
    "long-zero": "2,500 steps, starts at 0",
    "four": "4 states",
    "large-0.9": "λ = 0.9",
    "large-0.9-traces": "λ = 0.9, traces",
    "large-1": "λ = 1",
    "large-1-traces": "λ = 1, traces",
    "large-0.99-traces": "γ = 0.99, λ = 0.9, traces",
    "large-target": "off-policy, the target's return",
    "large-return": "off-policy, the off-policy return",
    "large-random": "random starts",
}


@dataclass
class Row:
    """Ratios of one comparison over all MDPs."""

    table: str
    label: str
    column: str
    logs: Array
    p: float = 1.0  #: corrected for the number of comparisons

    @functools.cached_property
    def interval(self) -> Interval:
        """The geometric mean of the ratio, with its interval over MDPs."""
        return Interval(*np.exp(bootstrap_interval(self.logs, np.mean)))

    def text(self) -> str:
        """The ratio and its interval; bold where the difference is beyond doubt."""
        low, ratio, high = (f"{x:.2f}" for x in self.interval)
        if np.abs(self.logs).max() < 1e-9:
            return "1"
        return f"{f'**{ratio}**' if self.p < 0.05 else ratio} [{low}, {high}]"


def rows_of(results: Results) -> list[Row]:
    """All comparisons, with p-values of t-tests corrected for their number."""
    found = [row for family in results.families.values() for row in _rows(results, family)]
    tested = [row for row in found if np.abs(row.logs).max() > 1e-9]
    p = holm([scipy.stats.ttest_1samp(row.logs, 0.0).pvalue for row in tested])
    for row, corrected in zip(tested, p, strict=True):
        row.p = float(corrected)
    return found


def _rows(results: Results, family: Family) -> Iterator[Row]:
    name, pairs = family.name, list(COLUMNS)[: 2 if family.centred else 1]
    for level in family.levels:
        where = "near 0" if level == 0 else "far"
        for pair in pairs:
            column = f"{COLUMNS[pair]}, {where}"
            logs = functools.partial(results.ratio, name, level)
            if name.startswith("main"):
                if pair == "vtd / direct":
                    label = f"γ = {family.gamma:g}, values {'near' if level == 0 else 'far from'} 0"
                    yield Row("main", label, f"λ = {family.lam:g}", logs(pair))
                else:
                    yield Row("others", f"γ = 0.9, λ = {family.lam:g}", column, logs(pair))
            elif family.how == "rest":
                for alpha, alpha_bar in REST_STEPS:
                    steps = f"/{alpha}/{alpha_bar}"
                    label = f"λ = {family.lam:g}, α = {alpha:g}, ᾱ = {alpha_bar:g}"
                    of = " / ".join(method + steps for method in pair.split(" / "))
                    yield Row("rest", label, column, logs(of))
            elif family.how == "given":
                label = f"α = {family.alpha:g}, λ = {family.lam:g}"
                yield Row("given", label, column, logs(pair))
            elif family.how == "simulated":
                for what, title in KINDS_OF_CHOICE.items():
                    found = (
                        results.shared(name, level, pair) if what == "shared" else logs(pair, what)
                    )
                    yield Row("simulated", f"{TITLES[name]}: {title}", column, found)
            else:
                yield Row("others", TITLES[name], column, logs(pair))


def tables(rows: list[Row]) -> dict[str, str]:
    """All comparisons as tables in Markdown, by name."""
    found = {}
    for table in dict.fromkeys(row.table for row in rows):
        own = [row for row in rows if row.table == table]
        columns = list(dict.fromkeys(row.column for row in own))
        if table != "main":
            columns.sort(key=lambda column: ("centred" in column, "far" in column))
        lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for label in dict.fromkeys(row.label for row in own):
            texts = {row.column: row.text() for row in own if row.label == label}
            lines.append(f"| {label} | " + " | ".join(texts.get(c, "") for c in columns) + " |")
        found[table] = "\n".join(lines)
    return found


def update_page(page: Path, found: dict[str, str]) -> None:
    """Replace the tables of a page: between two comments, or in files that it includes."""
    text = page.read_text()
    for name, table in found.items():
        begin, end = f"<!-- table {name} -->", f"<!-- end {name} -->"
        if begin in text:
            before, rest = text.split(begin)
            text = f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
        else:
            write_text(page.parent / "tables" / f"which_method_{name}.txt", f"{table}\n")
    write_text(page, text)


# ---------------------------------------------------------------------- figures


def by_lambda(rows: list[Row]) -> Figure:
    """VTD against direct for each γ and λ, near and far from zero, with single MDPs."""
    own = [row for row in rows if row.table == "main"]
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(7.6, 2.9), layout="constrained")
        axes = figure.subplots(1, len(GAMMAS), sharey=True)
        for ax, gamma in zip(axes, GAMMAS, strict=True):
            for k, (where, style) in enumerate(_levels().items()):
                label = f"γ = {gamma:g}, values {where} 0"
                line = [row for row in own if row.label == label]
                x = np.arange(len(line)) + 0.2 * k - 0.1
                for place, row in zip(x, line, strict=True):
                    ax.plot(np.full(row.logs.size, place), np.exp(row.logs), color=LINE, **STROKE)
                    ax.plot([place] * 2, row.interval[::2], color=style["color"], lw=2, zorder=3)
                ax.plot(x, [row.interval.estimate for row in line], ls="none", zorder=4, **style)
            ax.set_xticks(range(len(LAMBDAS)), [f"{lam:g}" for lam in LAMBDAS])
            ax.set_title(f"γ = {gamma:g}")
            ax.set_xlabel("λ")
            ax.grid(axis="y", **GRID)
            ax.axhline(1, color=INK, lw=0.8)
        axes[0].set_ylabel("RMSE of VTD / RMSE of direct")
        _legend(figure)
        return figure


def forest(rows: list[Row]) -> Figure:
    """Every other comparison as a point with its interval, a panel for each pair of methods."""
    own = [row for row in rows if row.table in ("others", "given", "simulated")]
    groups = {"others": "", "given": "given ", "simulated": "20 states, "}
    labels = list(dict.fromkeys((row.table, row.label) for row in own))
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(8.6, 0.7 + 0.17 * len(labels)), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for ax, title in zip(axes, COLUMNS.values(), strict=True):
            for row in own:
                if not row.column.startswith(title):
                    continue
                far = row.column.endswith("far")
                style = _levels()["far from" if far else "near"]
                y = labels.index((row.table, row.label)) + (0.15 if far else -0.15)
                low, ratio, high = np.clip(row.interval, *REACH)
                ax.plot([low, high], [y, y], color=style["color"], lw=2, zorder=3)
                ax.plot(ratio, y, ls="none", zorder=4, **style)
            ax.axvline(1, color=INK, lw=0.8)
            ax.set_xscale("log")
            ax.set_xlim(*REACH)
            ax.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
            ax.minorticks_off()
            ax.grid(axis="x", **GRID)
            ax.set_xlabel(f"RMSE of {title.replace(' / ', ' / RMSE of ')}")
        names = [f"{groups[table]}{label}".replace("`", "") for table, label in labels]
        axes[0].set_yticks(range(len(labels)), names)
        axes[0].set_ylim(len(labels) - 0.4, -0.6)
        _legend(figure)
        return figure


STROKE: dict[str, Any] = {
    "marker": "_",
    "ms": 6,
    "mew": 0.7,
    "alpha": 0.6,
    "ls": "none",
    "zorder": 1,
}
REACH, TICKS = (0.2, 5.0), (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)  # points beyond are at the edge


def _levels() -> dict[str, dict[str, Any]]:
    """Colour and marker of values near and far from zero."""
    near, far = COLOURS[0], COLOURS[4]
    return {
        "near": {"color": near, "marker": "o", "ms": 5},
        "far from": {"color": far, "marker": "s", "ms": 5},
    }


def _legend(figure: Figure) -> None:
    entries = [
        (Line2D([], [], ls="-", lw=2, **style), f"values {where} 0")
        for where, style in _levels().items()
    ]
    add_legend(figure, entries)


def main(*arguments: str) -> None:
    """Compute what is missing, print the tables and draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mdps", type=int, default=10, help="random MDPs of each family")
    parser.add_argument("--runs", type=int, default=16, help="of each simulation")
    parser.add_argument("--only", default="", help="names of families, with commas")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", type=Path, default=Path("study"), help="folder of the results")
    parser.add_argument("--out", type=Path, help="folder for the figures")
    parser.add_argument("--page", type=Path, help="a page in which to replace the tables")
    options = parser.parse_args(arguments or None)
    began = time.monotonic()
    chosen = [f for f in families() if not options.only or f.name in options.only.split(",")]
    run(chosen, options.store, options.mdps, options.runs, options.workers)
    results = Results(chosen, options.store, options.mdps, options.runs)
    rows = rows_of(results)
    found = tables(rows)
    for name, table in found.items():
        print(f"{name}\n\n{table}\n")
    if options.page is not None:
        update_page(options.page, found)
    if options.out is not None:
        rv.plots.save(by_lambda(rows), options.out / "which_method_exact.png")
        rv.plots.save(forest(rows), options.out / "which_method_all.png")
    total, now = duration(results.seconds), duration(time.monotonic() - began)
    print(f"{len(rows)} comparisons; {total} of one core in all, {now} now")


if __name__ == "__main__":
    main()
