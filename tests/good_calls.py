"""Calls of everything public that succeed: what `tests.fuzzing` begins with.

`Good` makes the objects once. `by_name` has an argument for each name of a parameter, `own` what
single targets need beside or instead of it, `makers` objects whose methods are called too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box

import retvar as rv
from retvar.experiments import Claim, Experiment, Finding, Simulation
from retvar.report import load_experiments, reproduce
from retvar.sweep import Local, Store
from tests.sweeping import small

Makers = dict[str, Callable[[], Any]]
CHUNK = {"state": [0, 1], "reward": [1.0, 0.0], "next_state": [1, 0], "terminated": [False, True]}
SMALL = Path(__file__).parent / "data" / "small.py"


def log_of(folder: Path) -> Path:
    """Enough rows for every interval."""
    path = folder / "log.csv"
    rows = "a,l,1.0,b,0\nb,r,2.0,a,0\na,r,0.5,b,1\n" * 60
    path.write_text(f"state,action,reward,next_state,terminated\n{rows}")
    return path


def windows(folder: Path) -> Path:
    """A log of observations."""
    path, rng = folder / "seen.csv", np.random.default_rng(0)
    at = np.round(rng.random((301, 2)), 3)
    rows = (f"{a[0]},{a[1]},1.0,{b[0]},{b[1]},{int(k % 10 == 9)}\n"
            for k, (a, b) in enumerate(pairwise(at)))  # fmt: skip
    path.write_text("x,y,reward,next_x,next_y,terminated\n" + "".join(rows))
    return path


def grid(learners: Any = (rv.Direct,), alpha: Any = 0.1, **settings: Any) -> list[rv.Learner]:
    """:func:`retvar.grid`, whose parameters have no names."""
    return rv.grid(*learners, alpha=alpha, **settings)


def find(name: str = "chain", **options: Any) -> rv.MDP:
    """:func:`retvar.domains.find`, whose parameter has no name."""
    return rv.domains.find(name, **options)


NOT_FUZZED_MODULES = {"rules", "deep"}  # formulas, as compiled code has them; needs torch
REFUSED = {  # calls that no argument makes good: features do not grow; no dataset is installed
    "linear.grow", "rv.experience.from_minari", "rv.grid", "rv.domains.find"
}  # fmt: skip


class Calls:
    """What can be called, and arguments with which it succeeds."""

    modules: Mapping[str, Any]  #: by the beginning of their targets' names
    functions: Mapping[str, Callable[..., Any]] = {}  #: other targets
    makers: Makers  #: objects with public methods
    documented: Mapping[str, Sequence[str]] = {}  #: their methods, where not all are public
    by_name: Mapping[str, Any]  #: an argument for each name of a parameter
    own: Mapping[str, Makers]  #: what single targets need, made anew

    def arguments(self, target: str, required: Iterable[str]) -> dict[str, Any]:
        """Arguments with which the target succeeds."""
        named = {name: self.by_name.get(name, 1.0) for name in required}
        return named | {name: make() for name, make in self.own.get(target, {}).items()}


class Good(Calls):
    """Everything that needs no extra."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules = {"rv": rv} | {
            f"rv.{name}": getattr(rv, name)
            for name in rv.__all__
            if name not in NOT_FUZZED_MODULES and inspect.ismodule(getattr(rv, name))
        }
        self.mdp = rv.domains.complex_mdp()
        self.log = log_of(folder)
        self.table = rv.experience.from_table(self.log)
        self.found = rv.estimate(self.table, gamma=0.9, actions=True)
        names = {"check_mean": "value", "check_std": "std", "check_count": "visits"}
        data = self.found.data
        self.checked = data.assign({to: data[name] for to, name in names.items()})
        seen = rv.experience.from_table(
            windows(folder), state=["x", "y"], next_state=["next_x", "next_y"]
        )
        tiles = rv.features.TileCoding([0.0, 0.0], [1.0, 1.0], tiles=2, tilings=2)
        self.tiles = tiles
        self.seen = rv.estimate(seen, gamma=0.9, features=tiles)
        self.solution = rv.solve(self.mdp)
        self.learner = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9)
        self.curves = rv.simulate(
            self.mdp,
            {"direct": self.learner, "vtd": rv.VTD(alpha=0.1), "centred": rv.Centred(alpha=0.1)},
            steps=6, runs=3, seed=1,
            record=rv.Record(every=2, window=2, change=True, rmse=True, step_sizes=True),
        )  # fmt: skip
        self.wrong = rv.simulate(
            self.mdp, {"direct error=0.1": self.learner, "vtd error=0.1": rv.VTD(alpha=0.1)},
            steps=6, runs=2, seed=1, record=rv.Record(at=[6], window=2),
        )  # fmt: skip
        lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=500, seed=1)
        self.grid = rv.estimate(lake, gamma=0.9).data
        chain = rv.domains.chain(reward_std=1.0)
        self.best = rv.best_steps(chain, rv.Direct, steps=4)
        self.cliff = rv.domains.windy_cliff(3, 2)
        self.frontier = rv.frontier(self.cliff, penalties=[0.0, 0.1], restarts=0)
        sweep = small(count=2, runs=4, learners=self._sweep_learners())
        rv.sweep.run(sweep, folder / "store", Local(threads=1))
        self.store = Store.open(folder / "store")
        self.swept = rv.sweep.collect(self.store)
        self.sweep = sweep
        (folder / "sweep.toml").write_text(
            'runs = 2\nsteps = 5\ndomains = [{ id = "chain" }]\n'
            'learners = [{ method = "direct", alpha = 0.1 }]\n'
        )
        self.mdp.to_toml(folder / "mdp.toml")
        self.learner.online(states=3).save(folder / "online.safetensors")
        self.found.estimator.save(folder / "tabular.safetensors")
        self.seen.estimator.save(folder / "seen.safetensors")
        self.world = rv.domains.linear_gaussian([[0.8]], [[0.3]], [[1.0]], gamma=0.9)
        self.simulation = Simulation("one", self.mdp, {"direct": self.learner}, steps=5, runs=2)
        self.figure = rv.plots.draw_mdp(chain)
        self.sample = rv.rollouts("FrozenLake-v1", gamma=0.9, episodes=60)
        self.by_name = self._by_name()
        self.own = self._own()
        self.makers = self._makers()
        self.functions = {
            "report.reproduce": reproduce, "report.load_experiments": load_experiments,
            "experiments.Experiment": Experiment, "experiments.Simulation": Simulation,
            "experiments.Claim": Claim, "grid": grid, "find": find,
        }  # fmt: skip

    documented = {  # noqa: RUF012
        "tabular": ("value", "std", "interval", "return_interval", "save", "load"),
        "seen": ("value", "std", "interval", "spread", "return_interval", "return_interval_note",
                 "save", "load"),
        "store": ("create", "open", "read", "is_finished", "failed"),
        "simulation": ("run",),
        "table": ("chunks", "save"),
        "tiles": ("rows", "to_dict", "from_data", "from_space"),
        "found": ("at", "action_values", "summary", "plot", "save", "interval", "return_interval",
                  "std", "value", "learn", "update", "refuse_nothing"),
    }  # fmt: skip

    @staticmethod
    def _sweep_learners() -> list[rv.sweep.Learners]:
        return [rv.sweep.Learners(method=["direct", "vtd"], alpha=[0.05, 0.4], lam=[0.5, 0.9])]

    def _by_name(self) -> dict[str, Any]:
        return {
            "mdp": self.mdp, "gamma": 0.9, "lam": 0.5, "alpha": 0.1, "alpha_bar": 0.1,
            "alpha_mean": 0.1, "kappa": 0.0, "kappa_bar": 0.0, "kappa_mean": 0.0, "value": 0.0,
            "seed": 1, "order": 2, "target": "pi", "behaviour": "mu", "estimand": "target_return",
            "reward": 1.0, "mean": 0.0, "learners": self.learner, "learner": self.learner,
            "episodes": None, "steps": 5, "power": 0.6, "learn_value": True, "method": "direct",
            "states": 5, "initial_variance": 0.0, "initial_mean": 0.0, "state": 0, "next_state": 1,
            "experience": self.table, "variance": 1.0, "name": "chain", "progress": None,
            "policy": None, "path": self.folder / "out.png", "decay": 0.9, "epsilon": 0.1,
            "reward_std": 0.1, "at": -1, "source": self.log, "by": None, "level": 0.9, "count": 5,
            "what": "variance", "x": [1.0, 2.0, 3.0], "points": 3, "length": 3,
            "env": "FrozenLake-v1", "record": 2, "visits": 3.0, "delta": 1.0, "runs": 2,
            "samples": 5, "bootstrap_samples": 0, "values": [1.0, 2.0], "every": 2, "log": False,
            "terminated": False, "truncated": False, "rho": 1.0, "stream": 0, "ends": 0.0,
            "envs": 1, "deterministic": None, "chunk": 100, "given": 5, "max_steps": 100, "w": 0.1,
            "threads": 1, "resamples": 100, "data": [1.0, 2.0, 3.0, 4.0], "found": self.found,
            "fresh": self.table, "branching": 2, "actions": 2, "parallel": False,
            "reward_mean": 0.0, "minimise": "variance", "average": False, "degree": 2,
            "low": [0.0], "high": [1.0], "tiles": 2, "tilings": 2, "memory": None, "axis": 0,
            "differences": [1.0, -2.0, 3.0], "p": [0.1, 0.2], "center": 0.0, "uniform": 0.1,
            "normal": 0.1, "covariance": [[1.0]], "window": 0, "change": False, "rmse": False,
            "step_sizes": False, "keep": "stats", "batch": None, "first_run": 0, "truth": True,
            "rows": 3, "transitions": [(0, 1.0, 1)], "solution": self.solution,
            "on_error": "error", "probabilities": [[0.5, 0.5]], "edges": [(0, 0, 1), (1, 0, 0)],
            "start": None, "table": [[1.0, 0.0], [0.0, 1.0]], "observation": [0.5],
            "relative": False, "statistic": np.mean, "stratified": False, "reward_range": None,
            "field": "alpha", "P": [[[0.0, 1.0]], [[1.0, 0.0]]], "R": [0.0, 1.0],
            "quantity": "value", "most": 3, "penalties": [0.0, 0.1], "restarts": 0, "height": 3,
            "width": 3, "wind": 0.1, "fall": -5.0, "world": self.world, "store": self.store,
            "plan": self.sweep.plan(), "sweep": self.sweep, "basis": self.tiles,
            "figure": self.figure, "best": self.best, "penalty": 0.1, "share": 0.1, "limit": 0.5,
        }  # fmt: skip

    def _own(self) -> dict[str, Makers]:
        """What single targets need, made for each call."""
        folder, cells = self.folder, list(self.store.plan.cells)
        numbers = iter(range(10**9))
        gamma: Makers = {"gamma": lambda: 0.9}
        steps: Makers = {"steps": lambda: 5}
        state: Makers = {"state": lambda: 0}
        estimates: Makers = {"data": lambda: self.found.data}
        curves: Makers = {"data": lambda: self.curves}
        swept: Makers = {"data": lambda: self.swept}
        cell: Makers = {"cell": lambda: cells[0]}
        x: Makers = {"x": lambda: [[0.5]]}
        row: Makers = {"state": lambda: [0.5, 0.5, 0.0]}
        seen: Makers = {"state": lambda: [0.5, 0.5]}
        moments = ("third_moment", "fourth_moment", "skewness", "kurtosis")
        own: dict[str, Makers] = {
            "rv.ActorCritic": {"critic": lambda: rv.Direct(alpha=0.1, gamma=0.9, lam=1.0),
                               "states": lambda: 5},
            "rv.MDP": {"edges": lambda: self.mdp.edges},
            "rv.Normal": {"mean": lambda: [0.0]},
            "rv.PerRun": {"values": lambda: [[1.0, 2.0]]},
            "rv.best_steps": {"mdp": lambda: rv.domains.chain(), "method": lambda: rv.Direct},
            "rv.estimate": gamma, "rv.follow": gamma, "rv.rollouts": {"episodes": lambda: 20},
            "rv.expected_curve": steps, "rv.replay": steps, "rv.simulate": steps,
            "rv.experience.from_minari": {"dataset": lambda: "none"},
            "rv.load": {"path": lambda: folder / "online.safetensors"},
                        "rv.features.from_dict": {"described": self.tiles.to_dict},
            "rv.features.PerAction": {"actions": lambda: 2},
            "rv.experience.from_gymnasium": steps,
            "rv.experience.from_linear_gaussian": {"steps": lambda: 64},
            "rv.experience.recorded": {"path": lambda: folder / f"{next(numbers)}.parquet"},
            "rv.experience.write_table": {"path": lambda: folder / "log.parquet"},
            "rv.sweep.compare": swept | {"resamples": lambda: 100},
            "rv.sweep.finished": swept,
            "rv.sweep.paired_difference": swept | {"a": lambda: str(self.swept.learner[0].item()),
                                                   "b": lambda: str(self.swept.learner[1].item()),
                                                   "resamples": lambda: 100},
            "rv.sweep.run": {"sweep": lambda: folder / "sweep.toml",
                             "out": lambda: folder / "swept"},
            "rv.sweep.save": {"path": lambda: folder / "sweep.nc"},
            "rv.sweep.Sweep": {"domains": lambda: self.sweep.domains,
                               "learners": lambda: self.sweep.learners,
                               "steps": lambda: 5},
            "rv.sweep.Range": {"linear": lambda: (0.0, 1.0)},
            "rv.testing.check_learner": {"description": lambda: self.learner},
            "rv.plots.comparison": swept | {"resamples": lambda: 100},
            "rv.plots.sensitivity_curves": swept | {"resamples": lambda: 100},
            "rv.plots.sweep_heat_map": swept | {"resamples": lambda: 100},
            "rv.plots.frontier": {"found": lambda: self.frontier, "samples": lambda: 100},
            "rv.plots.mdp": {"data": lambda: None},
            "rv.plots.check": {"data": lambda: self.checked},
            "rv.plots.estimate_maps": {"data": lambda: self.grid},
            "rv.plots.estimate_heat_maps": {"data": lambda: self.seen.data},
            "rv.plots.large_returns": {"means": lambda: [1.0], "data": lambda: {
                "a/frozen/1": self.curves, "a/learned/1": self.curves}},
            "rv.plots.table_1": {"data": lambda: {"mine": self.curves},
                                 "published": lambda: {"mine": ("0.1", "0.1", "0.1", "0.1")}},
            "rv.plots.value_error_spread": {"data": lambda: self.wrong, "ratios": lambda: [0.1]},
            "rv.plots.value_error_best_step": {"data": lambda: self.wrong, "ratios": lambda: [0.1]},
            "Direct.online": {"states": lambda: 5}, "VTD.online": {"states": lambda: 5},
            "mdp.action_index": {"action": lambda: self.mdp.action_name(0)},
            "mdp.action_name": {"index": lambda: 0}, "mdp.state_name": {"index": lambda: 0},
            "mdp.from_dense": gamma, "mdp.from_edges": gamma,
            "mdp.from_toml": {"source": lambda: folder / "mdp.toml"},
            "policy.from_array": {"array": lambda: self.mdp.policy("pi").probabilities},
            "policy.from_callable": {"choose": lambda: lambda state: 0},
            "found.at": {"state": lambda: ("a", "l")},
            "found.update": {"chunk": lambda: next(iter(self.table.chunks()))},
            "found.save": {"path": lambda: folder / "saved"},
            "found.return_interval": {"level": lambda: 0.8},
            "record.moments": {"total": lambda: 5},
            "actor.act": state,
            "actor.update": {"action": lambda: 0, "next_state": lambda: 1},
            "actor.train": {"world": lambda: self.cliff, "episodes": lambda: 2},
            "world.policy": x, "world.value": x, "world.variance": x, "world.std": x,
            "world.sample": {"streams": lambda: 2},
            "tabular.load": {"path": lambda: folder / "tabular.safetensors"},
            "tabular.save": {"path": lambda: folder / "a.safetensors"},
            "tabular.interval": {"state": lambda: 0}, "tabular.return_interval": {},
            "seen.load": {"path": lambda: folder / "seen.safetensors"},
            "seen.save": {"path": lambda: folder / "b.safetensors"},
            "seen.spread": {"states": lambda: [[0.5, 0.5]]},
            "seen.interval": seen, "seen.value": seen, "seen.std": seen,
            "seen.return_interval": {"states": lambda: [[0.5, 0.5]], "level": lambda: 0.5},
            "store.create": {"folder": lambda: folder / f"store {next(numbers)}"},
            "store.open": {"folder": lambda: folder / "store"},
            "store.read": cell, "store.is_finished": cell,
            "sweeping.from_dict": {"data": self.sweep.to_dict},
            "sweeping.from_toml": {"path": lambda: folder / "sweep.toml"},
            "table.save": {"path": lambda: folder / "table.parquet"},
            "tiles.rows": {"given": lambda: [[0.5, 0.5]]},
            "tiles.from_data": {"observations": lambda: [[0.0, 0.0], [1.0, 2.0]]},
            "tiles.from_space": {"space": lambda: Box(0.0, 1.0, (2,))},
            "sample.whole": {"returns": lambda: np.arange(20.0)},
            "monte_carlo.z": {"solution": lambda: rv.solve(rv.domains.chain(reward_std=1.0))},
            "report.reproduce": {"ids": lambda: ["networks"], "out": lambda: folder / "report"},
            "report.load_experiments": {"file": lambda: SMALL},
            "experiments.Experiment": {"id": lambda: "a", "title": lambda: "b"},
            "experiments.Simulation": {"learners": lambda: {"direct": self.learner}} | steps,
            "experiments.Claim": {"check": lambda: lambda data: Finding(True, "1")},
        }  # fmt: skip
        for name in ("calibration", "estimate", "estimate_figures", "estimate_states",
                     "observed_returns"):  # fmt: skip
            own[f"rv.plots.{name}"] = estimates
        for name in ("learning_curves", "rmse_curves", "step_sizes", "final_estimates",
                     "sensitivity", "step_size_ratio"):  # fmt: skip
            own[f"rv.plots.{name}"] = curves
        for kind, given in (("online", state), ("linear", row), ("growing", state)):
            for name in ("value", "variance", "std", "mean", "second_moment", "note", *moments):
                own[f"{kind}.{name}"] = given
            own[f"{kind}.interval"] = own[f"{kind}.bootstrap_estimates"] = given
            own[f"{kind}.save"] = {"path": lambda: folder / "c.safetensors"}
        for kind in ("online", "growing"):
            own[f"{kind}.update"] = {"state": lambda: 0, "reward": lambda: 1.0,
                                     "next_state": lambda: 1}  # fmt: skip
            own[f"{kind}.update_many"] = {"arrays": lambda: dict(CHUNK)}
            own[f"{kind}.predict"] = {"states": lambda: [0, 1]}
        ones = [0.1, 0.2, 0.3]
        own["linear.update"] = {"state": lambda: ones, "reward": lambda: 1.0,
                                "next_state": lambda: ones}  # fmt: skip
        own["linear.update_many"] = {
            "arrays": lambda: CHUNK | {"state": [ones, ones], "next_state": [ones, ones]}
        }
        own["linear.predict"] = {"states": lambda: [ones]}
        return own

    def _makers(self) -> Makers:
        """Objects with public methods; those that a call changes are made anew."""
        carlo = rv.monte_carlo(rv.domains.chain(reward_std=1.0), samples=20, seed=1)
        gradient = rv.policy_gradient(self.mdp)
        check = rv.check(self.found, self.table)
        compared = rv.sweep.compare(self.swept, resamples=100)
        return {
            "Direct": lambda: rv.Direct(alpha=0.1, gamma=0.9, lam=0.9),
            "VTD": lambda: rv.VTD(alpha=0.1, gamma=0.9),
            "online": lambda: rv.Direct(alpha=0.1, gamma=0.9, lam=0.9, order=4).online(
                states=5, bootstrap_samples=10
            ),
            "linear": lambda: rv.Centred(alpha=0.1, gamma=0.9, lam=0.9, order=4).online(
                features=3, bootstrap_samples=10
            ),
            "growing": lambda: rv.Direct(alpha=0.1, gamma=0.9, lam=0.5, order=4).online(
                states=2, bootstrap_samples=10
            ),
            "mdp": lambda: self.mdp,
            "policy": lambda: self.mdp.policy("pi"),
            "solution": lambda: self.solution,
            "fixed_point": lambda: rv.fixed_point("direct", self.mdp),
            "found": lambda: self.found,
            "record": lambda: rv.Record(every=2),
            "actor": lambda: rv.ActorCritic(
                rv.Direct(alpha=0.1, gamma=0.9, lam=1.0),
                actions=self.cliff.n_actions,
                states=self.cliff.n_states,
            ),
            "world": lambda: self.world,
            "tabular": lambda: self.found.estimator,
            "seen": lambda: self.seen.estimator,
            "sample": lambda: self.sample,
            "frontier": lambda: self.frontier,
            "point": lambda: self.frontier.points[0],
            "gradient": lambda: gradient,
            "best": lambda: self.best,
            "monte_carlo": lambda: carlo,
            "check": lambda: check,
            "agreement": lambda: check.verdicts,
            "compared": lambda: compared,
            "store": lambda: self.store,
            "sweeping": lambda: self.sweep,
            "range": lambda: rv.sweep.Range(3, linear=(0.0, 1.0)),
            "table": lambda: self.table,
            "tiles": lambda: self.tiles,
            "simulation": lambda: self.simulation,
        }
