"""Data for figures, as simulate, estimate and collect would return them; some of it odd."""

from __future__ import annotations

from itertools import product

import numpy as np
import xarray

import retvar as rv
from retvar import plots
from retvar.simulation.step_search import BestSteps

METHODS = ("direct", "vtd", "centred")
RATIOS = [0.0, 0.1, 0.2, 0.3]
STEPS = [1e-3, 1e-2]
ALPHAS = [0.0, 1e-4, 1e-2]


def table(labels, states=4, points=40, runs=30, unit="step", **coords):
    """What simulate would return: estimates that approach the truth, and everything recorded."""
    labels = list(labels)
    size, shape = (len(labels), states), (len(labels), points, states)
    random = np.random.default_rng(0)
    truth = np.broadcast_to(np.arange(1.0, states + 1), size)
    rise = 1 - np.exp(-np.linspace(0, 5, points))
    curves, flat = ("learner", unit, "state"), ("learner", "state")
    variables = {
        "value": (curves, 2 * truth[:, None] * rise[:, None] * np.ones(shape)),
        "variance": (curves, truth[:, None] * rise[:, None] + 0.01 * random.normal(size=shape)),
        "value_step_size": (curves, random.uniform(0.01, 0.02, shape)),
        "variance_step_size": (curves, random.uniform(0.001, 0.003, shape)),
        "variance_rmse": (curves[:2], random.uniform(1, 9, shape[:2])),
        "variance_window": (flat, truth + random.normal(size=size)),
        "variance_window_mse": (flat, random.uniform(0.1, 10, size)),
        "variance_window_mse_frozen": (flat, random.uniform(0.1, 10, size)),
        "value_change_total": ("learner", np.full(len(labels), 0.1)),
        "variance_change_total": ("learner", [0.4 - 0.1 * ("vtd" in x) for x in labels]),
        "second_moment_change_total": ("learner", np.full(len(labels), 0.2)),
    }
    spread = np.nan if runs == 1 else 0.1
    variables |= {f"{n}_std": (d, np.full(np.shape(v), spread)) for n, (d, v) in variables.items()}
    variables |= {"true_value": (flat, 2 * truth), "true_variance": (flat, truth)}
    variables["diverged"] = ("learner", np.zeros(len(labels), dtype=int))
    moments = 500 * np.arange(1, points + 1)
    coordinates = {"learner": labels, unit: moments, "state": [f"s{k}" for k in range(states)]}
    settings = {name: ("learner", values) for name, values in coords.items()}
    return xarray.Dataset(variables, {**coordinates, **settings}, {"runs": runs})


def swept(methods, runs=30, first=ALPHAS, name="α"):
    """Learners with every combination of two settings."""
    rows = list(product(methods, first, STEPS))
    labels = [f"{m} {name}={a:g} ᾱ={b:g}" for m, a, b in rows]
    alpha, alpha_bar = [a for _, a, _ in rows], [b for *_, b in rows]
    return table(labels, 5, 3, runs, alpha=alpha, alpha_bar=alpha_bar)


def sensitive(methods, runs=30):
    """A sweep over ᾱ in which large ones diverge, some in part."""
    rows = list(product(methods, range(-6, 1)))
    steps = [2.0**k for _, k in rows]
    data = table([f"{m} ᾱ=2^{k}" for m, k in rows], 4, 1, runs, alpha_bar=steps)
    large = data.alpha_bar > 0.3
    data["diverged"] = xarray.where(large, runs, xarray.where(data.alpha_bar > 0.2, 1, 0))
    data["variance_rmse"] = data.variance_rmse.where(~large)
    return data


def errors_of_steps(method):
    """What best_steps would return, with some infinite errors."""
    axis = np.geomspace(1e-3, 1.0, 6)
    log = np.log10(axis)
    errors = 0.1 + (log[:, None] + 1.5) ** 2 + (log - log[:, None]) ** 2 * (method == "vtd")
    errors[-1, 0] = np.inf
    kind = {"direct": rv.Direct, "vtd": rv.VTD, "centred": rv.Centred}[method]
    grid = xarray.DataArray(errors, {"alpha": axis, "alpha_bar": axis}, ["alpha", "alpha_bar"])
    return BestSteps(kind(alpha=0.03, alpha_bar=0.02), 0.1, grid, ())


def dipping(methods):
    """Exact curves, VTD's far below 0: three entries in the legend."""
    kinds = {kind.method: kind for kind in (rv.Direct, rv.VTD, rv.Centred)}
    learners = {m: kinds[m](alpha=0.1, alpha_bar=0.05) for m in methods}
    return rv.expected_curve(rv.domains.chain(), learners, steps=200)


LEARNERS = ("Direct", "VTD", "Centred")
GRID = np.logspace(-3, 0, 7).tolist()
LAMBDAS = [0.0, 0.5, 0.9, 1.0]


def sweep(methods=LEARNERS, domains=3, runs=8, lambdas=LAMBDAS, first=GRID, second=GRID):
    """Errors that are least where both steps are 0.1, all else equal; VTD twice as large."""
    rows = list(product(methods, first, second, lambdas))
    random = np.random.default_rng(0)
    level = [
        (1 + (m == "VTD")) * np.exp(np.log10(a / 0.1) ** 2 + np.log10(b / 0.1) ** 2)
        for m, a, b, _ in rows
    ]
    noise = random.lognormal(0, 0.02, (domains, len(rows), 1, runs))
    scale = random.uniform(1, 9, (domains, 1, 1, 1))
    return collected(rows, np.array(level)[:, None, None] * noise * scale)


def collected(rows, errors, label="d"):
    """What collect would return, of rows of settings and errors [domain, learner, step, run]."""
    names = ("algorithm", "alpha", "alpha_bar", "lam")
    columns = zip(names, zip(*rows, strict=True), strict=False)
    coords = {name: ("learner", list(column)) for name, column in columns}
    coords["domain"] = [f"{label}{k}" for k in range(len(errors))]
    coords |= {"learner": [" ".join(map(str, row)) for row in rows], "step": [1000]}
    died = ("domain", "learner", "run"), np.zeros(errors[:, :, 0].shape, dtype=bool)
    dims = ("domain", "learner", "step", "run")
    return xarray.Dataset({"variance_rmse": (dims, errors), "diverged": died}, coords)


def broken(data, which):
    """The same, with runs that diverged."""
    at = data.variance_rmse.where(~which)
    return data.assign(variance_rmse=at, diverged=data.diverged | which)


def ratios(reach, domains=3, label="d"):
    """A comparison in which VTD errs `reach` times as much on the last domain, equally else."""
    errors = np.ones((domains, 3, 1, 8))
    errors[-1, 1] = reach
    return collected([(name, 0.1) for name in LEARNERS], errors, label)


LAKE = "SFFFFHFHFFFHHFFG"
CLIFF = " " * 36 + "SCCCCCCCCCCG"
ABOUT = {"source": "gymnasium:Some-v1", "policy": "random", "gamma": 0.9, "lam": 1.0, "level": 0.9}


def estimates(place, value, std, half, visits):
    """Value and std of each state or region, with their intervals and visits."""
    value, std, half = (np.asarray(x, dtype=float) for x in (value, std, half))
    low = np.maximum(std - half, 0)
    columns = {"value": value, "value_low": value - half, "value_high": value + half}
    columns |= {"std": std, "std_low": low, "std_high": std + half, "visits": np.asarray(visits)}
    return {name: (place, column) for name, column in columns.items()}


def samples(count, seed=0, scale=1.0, wrong=1.0):
    """Returns, normal about their predictions; the std predicted is `wrong` times theirs."""
    random = np.random.default_rng(seed)
    predicted, std = random.normal(size=count) * 5 * scale, random.uniform(1, 4, count) * scale
    observed = predicted + std * random.normal(size=count)
    columns = {"observed": observed, "predicted": predicted, "predicted_std": wrong * std}
    return {name: ("sample", column) for name, column in columns.items()}


def rolled(place, value, std, count=25):
    columns = {"check_mean": value + std / 9, "check_std": 1.1 * std}
    columns["check_count"] = np.full(len(value), count)
    return {name: (place, column) for name, column in columns.items()}


def states(count=16, scale=1.0, seed=0, observed=200, unvisited=(5, 7, 11, 12, 15), **attrs):
    """Tabular estimates; some states were never visited."""
    random = np.random.default_rng(seed)
    value, std = random.normal(size=count) * 10 * scale, random.uniform(0, 5, count) * abs(scale)
    half, visits = random.uniform(0, 1, count) * abs(scale), random.permutation(count) + 1
    visits[[k for k in unvisited if k < count - 1]] = 0
    value, std = (np.where(visits, x, np.nan) for x in (value, std))
    columns = estimates("state", value, std, half, visits) | rolled("state", value, std)
    labels = {"label": ("state", [f"s{k}" for k in range(count)])}
    return xarray.Dataset(columns | samples(observed, seed, abs(scale)), labels, ABOUT | attrs)


def grid(rows=4, columns=4, **more):
    return states(rows * columns, grid_rows=rows, grid_columns=columns, **more)


def regions(axes=2, count=12, side=9, scale=1.0):
    """Estimates over observations; those of two numbers have maps."""
    random = np.random.default_rng(1)
    value, std = random.normal(size=count) * scale, random.uniform(0, 1, count) * scale
    data = estimates("region", value, std, 0.1 * std, np.arange(count) + 1)
    data |= rolled("region", value, std) | samples(100, 1, scale)
    data["centre"] = (("region", "axis"), random.normal(size=(count, axes)))
    names = ["position", "velocity", "angle", "spin"][:axes]
    found = xarray.Dataset(data, {"axis": names}, ABOUT)
    if axes != 2:
        return found
    x, y = np.linspace(-1.2, 0.6, side), np.linspace(-0.07, 0.07, side + 1)
    height = scale * (x[None, :] ** 2 - 30 * y[:, None])
    maps = {"value_map": height, "std_map": abs(height), "visited_map": height > -1.5 * scale}
    found = found.assign({name: (("y", "x"), table) for name, table in maps.items()})
    return found.assign_coords(x=x, y=y).assign_attrs(x_name="position", y_name="velocity")


def same(data):
    """All estimates equal, none uncertain."""
    names = [
        n for n in data.data_vars if str(n).startswith(("value", "std", "check", "pred", "obs"))
    ]
    return data.assign({name: xarray.zeros_like(data[name]) + 3.0 for name in names})


def heavy(data):
    """Some observed returns are a million times as far as the others."""
    observed = data.observed.copy()
    observed[::500] = observed[::500] * 1e6
    return data.assign(observed=observed)


def below(data):
    """Some variances were estimated below zero, so that there is no std."""
    place = data.value.dims[0]
    gone = xarray.DataArray(np.arange(data.sizes[place]) == 2, dims=place)
    data = data.assign(std=data["std"].where(~gone))
    return data.assign(std_map=data.std_map.where(data.x < 0.5)) if "std_map" in data else data


def alone(data):
    """Estimates only: nothing observed, nothing checked."""
    checked = ["check_mean", "check_std", "check_count"]
    return data.drop_dims("sample", errors="ignore").drop_vars(checked, errors="ignore")


def bare(data):
    """No intervals, no visits, no attributes but those of a grid."""
    names = [n for n in data.data_vars if str(n).endswith(("_low", "_high", "visits"))]
    grid_attrs = {k: v for k, v in data.attrs.items() if k.startswith("grid")}
    return data.drop_vars(names).drop_attrs().assign_attrs(grid_attrs)


SIMULATED = {  # of the methods and the number of runs
    "learning_curves": lambda m, n: plots.learning_curves({"a": table(m, runs=n)}),
    "exact_curves": lambda m, n: plots.learning_curves(dipping(m)),
    "step_sizes": lambda m, n: plots.step_sizes({"a": table(m, runs=n, unit="episode")}),
    "step_size_ratio": lambda m, n: plots.step_size_ratio({"a": swept(m, n)}),
    "value_error_spread": lambda m, n: plots.value_error_spread(
        swept(m, n, RATIOS, "error"), RATIOS
    ),
    "value_error_best_step": lambda m, n: plots.value_error_best_step(
        swept(m, n, RATIOS, "error"), RATIOS
    ),
    "rmse_curves": lambda m, n: plots.rmse_curves({"a": table(m, runs=n)}),
    "final_estimates": lambda m, n: plots.final_estimates({"a": table(m, 30, 3, n)}),
    "step_contours": lambda m, _n: plots.step_contours({k: errors_of_steps(k) for k in m}),
    "sensitivity": lambda m, n: plots.sensitivity({"a": sensitive(m, n)}),
    "large_returns": lambda m, n: plots.large_returns(
        {f"x/{case}/{c}": table(m, 4, 1, n) for case in ("frozen", "learned") for c in (0, 1, 1e6)},
        [0, 1, 1e6],
    ),
    "networks": lambda _m, _n: plots.networks({}),
}
SHOWN = [(METHODS, 30), (("direct",), 1), (("vtd", "centred"), 30)]
SWEEPS = {
    "whole": {"second": GRID[::3]},
    "one domain": {"domains": 1},
    "many domains": {"domains": 12, "second": GRID[::3]},
    "few steps": {"first": [0.1, 0.2], "second": [0.1]},
}
SWEPT = ("sensitivity_curves", "comparison")
LONG = {"source": "gymnasium:" + "Long" * 40, "policy": "module.with.long.name:function"}
ODD = {
    "lake": lambda: grid(cells=LAKE),
    "cliff": lambda: alone(grid(4, 12, cells=CLIFF, unvisited=range(37, 47))),
    "a long row": lambda: alone(grid(1, 40)),
    "one cell": lambda: grid(1, 1),
    "large": lambda: alone(grid(30, 30)),
    "huge": lambda: grid(scale=1e12),
    "no std at all": lambda: alone(grid().assign(std=("state", np.full(16, np.nan)))),
    "equal": lambda: same(grid()),
    "bare": lambda: bare(grid()),
    "below zero": lambda: below(grid(cells=LAKE)),
    "states below zero": lambda: below(states(9)),
    "regions below zero": lambda: below(regions()),
    "one state": lambda: states(1),
    "five states": lambda: states(5),
    "many states": lambda: states(300, scale=1000.0),
    "heavy tails": lambda: heavy(states(9, observed=2000)),
    "one region": lambda: regions(count=1, side=1),
    "two numbers": regions,
    "four numbers": lambda: regions(4),
    "long names": lambda: states(9, gamma="column g", **LONG).assign_coords(
        label=("state", ["the state with a name of many words " * 4] * 9)
    ),
}
DRAWN = {
    "chain": rv.domains.chain,
    "complex-mdp": rv.domains.complex_mdp,
    "random-walk": lambda: rv.domains.random_walk(6),
    "random-mdp": lambda: rv.domains.random_mdp(5, 2, 2),
    "lake": lambda: rv.domains.from_gymnasium("FrozenLake-v1", gamma=0.99),
    "loop": lambda: rv.MDP.from_edges([("a", "x", "a")], gamma=0.5),
    "end": lambda: rv.MDP.from_edges([("a", "x", "end")], gamma=0.5),
    "apart": lambda: rv.MDP.from_edges([("a", "x", "a"), ("b", "x", "b")], gamma=0.5),
    "one place": lambda: rv.MDP.from_edges(
        [("a", "x", "b"), ("b", "x", "a")], gamma=0.5, positions=[(0, 0)] * 2
    ),
}


def cliff_frontier():
    return rv.frontier(rv.domains.windy_cliff(), penalties=[0, 0.5])


def every_figure():
    """A maker of each case, by the name of a function of retvar.plots and the case."""
    for (name, draw), (methods, runs) in product(SIMULATED.items(), SHOWN):
        yield name, f"{len(methods)} {runs}", lambda d=draw, m=methods, n=runs: d(m, n)
    for name, (case, how) in product(SWEPT, SWEEPS.items()):
        yield name, case, lambda n=name, h=how: getattr(plots, n)(sweep(**h), resamples=200)
    for case, make in ODD.items():
        yield "estimate_figures", case, lambda m=make: plots.estimate_figures(m())
    for case, mdp in DRAWN.items():
        yield "draw_mdp", case, lambda m=mdp: plots.draw_mdp(m())
        yield "solution", case, lambda m=mdp: plots.solution(rv.solve(m(), order=4))
        yield "attribution", case, lambda m=mdp: plots.attribution(rv.solve(m()).attribution(0))
    yield "draw_mdp", "40 states", lambda: plots.draw_mdp(rv.domains.random_mdp(40, 2, 2))
    yield "solution", "300 states", lambda: plots.solution(rv.solve(rv.domains.random_walk(300)))
    yield "mdp", "chain", lambda: plots.mdp({}, rv.domains.chain())
    yield "law", "chain", lambda: plots.law(rv.law(rv.domains.chain())["s0"])
    yield "frontier", "cliff", lambda: plots.frontier(cliff_frontier(), samples=500)
