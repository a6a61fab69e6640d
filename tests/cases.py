"""Simulations that Hypothesis chooses, and the online estimators on the same streams.

:func:`check` is the theorem: each run of each learner of a simulation has the bits of the online
learner that is fed the replayed stream, and whatever else is recorded follows from those bits. It
holds for compiled code and for plain Python (tests/test_engine.py), which can try more
kinds of learners, because it compiles nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from tests import oracle
from tests.fixed_cases import Case, bits, digest, made_mdp
from tests.streams import METHODS, rows

NAMES = {
    "direct": ("value", "variance"),
    "vtd": ("value", "variance", "second_moment"),
    "centred": ("value", "variance", "mean"),
}


# ------------------------------------------------------------------------ what should come out


@dataclass
class Life:
    """One learner in one run, moment by moment (from 0), from the online learner."""

    estimates: dict  # [moment, state]
    steps: dict  # step size with which each state was last updated [moment, state]
    change: dict  # sum of absolute changes [state]
    died: int | None = None  # the moment in which it did
    node: str = ""


def live(case: Case, learner: rv.Learner, run: int) -> Life:
    """Feed the replayed stream to the online learner."""
    alone, n, total = case.online(learner), case.mdp.n_states, case.total
    columns = case.replay(run)
    for own in ("gamma", "lam"):
        if getattr(learner, own) is not None:
            columns.pop(own)
    names, nodes = NAMES[learner.method], list(alone.step_sizes)
    life = Life(
        {name: np.full((total + 1, n), np.nan) for name in names},
        {node: np.full((total + 1, n), np.nan) for node in nodes},
        {name: np.zeros(n) for name in names},
    )
    last = {name: getattr(alone, name)() for name in names}
    used = {node: np.full(n, np.nan) for node in nodes}
    for name in names:
        life.estimates[name][0] = last[name]
    moment = 0
    for row in rows(columns):
        s, ended, rho = row.pop("state"), row["terminated"], row["rho"]
        try:
            alone.update(s, row.pop("reward"), row.pop("next_state"), **row)
        except rv.DivergenceError as death:
            life.died, life.node = moment + 1, death.node
            return life
        for node, step in alone.step_sizes.items():
            target = learner.estimand == "target_return"
            weight = rho if node == "value" or target else 1.0
            rule = rule_of(learner, node)
            moves = isinstance(rule, rv.AlphaBound) or (weight != 0 and case.rows_of(node)[s].any())
            if moves and (node != "value" or learner.learn_value):
                used[node][s] = step
        for name in names:
            now = getattr(alone, name)()
            life.change[name] += abs(now - last[name])
            last[name] = now
        if case.unit == "step" or ended:
            moment += 1
            for name in names:
                life.estimates[name][moment] = last[name]
            for node in nodes:
                life.steps[node][moment] = used[node]
    assert moment == total
    return life


def rule_of(learner: rv.Learner, node: str) -> Any:
    alpha_bar = learner.alpha if learner.alpha_bar is None else learner.alpha_bar
    if node == "value":
        return learner.alpha
    if node == "mean" and (learner.alpha_mean is not None or learner.learn_value):
        return learner.alpha if learner.alpha_mean is None else learner.alpha_mean
    return alpha_bar


def life_of(case: Case, learner: rv.Learner, run: int) -> Life:
    """The same; nodes that do not depend on a diverged node continue."""
    life = live(case, learner, run)
    if life.died is None:
        return life
    unknown = np.full(case.mdp.n_states, np.nan)
    life.change = dict.fromkeys(life.change, unknown)
    if life.node == "value":
        return life
    quiet = {"alpha_bar": 0.0, "kappa_bar": 0.0}
    if learner.method == "centred":
        means = 0.0 if life.node == "mean" else rule_of(learner, "mean")
        quiet |= {"alpha_mean": means}
        if life.node == "mean":
            quiet |= {"kappa_mean": 0.0}
    rest = life_of(case, learner.replace(**quiet), run)
    assert rest.node in ("", "value", "mean"), "steps of 0 do not diverge"
    lives_on = ["value", "mean"] if life.node != "mean" else ["value"]
    for name in lives_on:
        if name in life.estimates:
            life.estimates[name], life.change[name] = rest.estimates[name], rest.change[name]
    return life


def starts_of(case: Case, number: int, run: int, data: Any) -> dict:
    """Initial values of a run; random ones as recorded at moment 0."""
    given = case.learners[number].value
    if isinstance(given, rv.PerRun):
        return {"value": np.asarray(given.values)[run]}
    return {"value": data.value.values[run, number, 0]} if isinstance(given, rv.Noisy) else {}


def truth_of(case: Case, learner: rv.Learner, value: Any = None) -> tuple:
    """Value and variance by `solve`; NaN where the variance is infinite."""
    mdp = case.mdp if learner.gamma is None else case.mdp.replace(gamma=learner.gamma)
    question = {**case.policies, "estimand": learner.estimand}
    try:
        found = rv.solve(mdp, **question, value=value, lam=learner.lam)
    except rv.InfiniteVarianceError:
        return rv.solve(mdp, **question, lam=0.0).value, np.full(mdp.n_states, np.nan)
    return found.value, found.variance


# ------------------------------------------------------------------------ the theorem


def check(case: Case, **changes: Any) -> Any:
    """Every run of every learner: the online learner's bits, and what follows from them."""
    data = case.simulate(**changes)
    unit, points = case.unit, data[case.unit].values
    states = [
        case.mdp.state_index(s) for s in case.record.get("states") or range(case.mdp.n_states)
    ]
    window, total = case.record.get("window", 0), case.total
    assert dict(data.sizes) == {
        "learner": len(case.learners), unit: points.size, "state": len(states), "run": case.runs,
    }  # fmt: skip
    looks = np.union1d(points, [total])
    acting = case.policies.get("behaviour") or case.policies.get("target")
    shares = oracle.time_shares(case.mdp, acting) if case.record.get("rmse") else None
    for i, description in enumerate(case.learners):
        value, variance = truth_of(case, description)
        assert_array_equal(data.true_value[i], value[states])
        assert_array_equal(data.true_variance[i], variance[states])
        for run in range(case.runs):
            starts = starts_of(case, i, run, data)
            learner = description.replace(**starts)
            life = life_of(case, learner, run)
            one = data.isel(learner=i, run=run)
            where = f"run {run} of {learner!r}"
            _estimates(case, one, life, points, states, where)
            if case.record.get("step_sizes"):
                _step_sizes(one, life, points, states, where)
            if case.record.get("change"):
                for name, change in life.change.items():
                    close(one[f"{name}_change"], change[states] / total, where)
            truth = {"value": value, "variance": variance}
            if window:
                if not description.learn_value:
                    held = case.rows_of("value") @ np.broadcast_to(
                        learner.value, case.rows_of("value").shape[1]
                    )
                    truth["frozen"] = truth_of(case, description, held)[1]
                _window(one, life, truth, window, states, where)
            if shares is not None:
                for name in ("value", "variance"):
                    gaps = life.estimates[name][points] - truth[name]
                    with np.errstate(over="ignore"):
                        expected = np.sqrt((shares * gaps**2)[:, shares > 0].sum(axis=1))
                    close(one[f"{name}_rmse"], expected, where)
            by = float(one.diverged_by)
            if life.died is None:
                assert np.isnan(by), where
            else:
                assert by == looks[looks >= life.died][0], where
    died = np.isfinite(data.diverged_by.values).sum(axis=0)
    assert_array_equal(data.diverged, died)
    return data


def _estimates(case: Case, one: Any, life: Life, points: Any, states: list, where: str) -> None:
    for name in ("value", "variance", "mean", "second_moment"):
        if name in life.estimates:
            expected = life.estimates[name][points][:, states]
            assert bits(one[name]) == bits(expected), f"{name} of {where}"
        elif name in one:
            assert np.isnan(one[name]).all(), f"{name} of {where}"


def _step_sizes(one: Any, life: Life, points: Any, states: list, where: str) -> None:
    alive = points < (np.inf if life.died is None else life.died)
    for node, steps in life.steps.items():
        name = "variance" if node == "second_moment" else node
        found = one[f"{name}_step_size"].values[alive]
        assert bits(found) == bits(steps[points[alive]][:, states]), f"step of {name}, {where}"


def _window(one: Any, life: Life, truth: dict, window: int, states: list, where: str) -> None:
    for name in ("value", "variance"):
        last = life.estimates[name][-window:]
        close(one[f"{name}_window"], last.mean(axis=0)[states], where)
        with np.errstate(over="ignore"):
            squares = ((last - truth[name]) ** 2).mean(axis=0)
        close(one[f"{name}_window_mse"], squares[states], where)
    if "variance_window_mse_frozen" in one:
        frozen = truth.get("frozen", np.nan)
        with np.errstate(over="ignore"):
            squares = ((life.estimates["variance"][-window:] - frozen) ** 2).mean(axis=0)
        close(one["variance_window_mse_frozen"], squares[states], where)


def close(found: Any, expected: Any, where: str) -> None:
    """Equal to what rounding leaves of sums."""
    expected = np.asarray(expected)
    scale = np.max(np.abs(expected), initial=1e-9, where=np.isfinite(expected))
    assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * scale, err_msg=where)


# ------------------------------------------------------------------------ what Hypothesis chooses


RULES = {
    "constant": [0.0, 0.01, 0.1, 0.5, 1.0, rv.Constant(0.2)],
    "wild": [0.1, 1e20, 1e60, 1e90, 1e151],
    "1/n": [rv.Decay(), rv.Decay(0.7)],
    "slower": [rv.Decay(0.7, 0.6), rv.Decay(0.9, 0.6), rv.Decay(1.5, 0.6)],
    "averaged": [rv.Averaged(), rv.Averaged(0.7, 0.6), rv.Averaged(1.5, 0.6)],
    "adadelta": [rv.Adadelta(), rv.Adadelta(0.9, 1e-2), rv.Adadelta(0.5, 10.0)],
    "bounded": [rv.AlphaBound(), rv.AlphaBound(0.5), rv.AlphaBound(2.0)],
}


@dataclass(frozen=True)
class Sort:
    """What learners of one block have in common."""

    rules: tuple  # names of the step-size rules of value, mean and variance node
    traced: tuple  # whether they have traces
    estimand: str
    learn_value: bool


@st.composite
def sorts(draw: Any, local: bool) -> Sort:
    """A sort of learners: `local` ones have no traces."""
    kinds = ["constant", "constant", "1/n", "slower", "adadelta"]
    kind = st.sampled_from(kinds if local else [*kinds, "bounded"])
    rules = list(draw(st.tuples(kind, kind, kind)))
    if draw(st.integers(0, 3)) == 0:
        rules[draw(st.integers(0, 2))] = "wild"
    return Sort(
        tuple(rules),
        (False,) * 3 if local else draw(st.tuples(*[st.booleans()] * 3)),
        draw(st.sampled_from(["target_return", "off_policy_return"])),
        draw(st.sampled_from([True, True, False])),
    )


@st.composite
def learners_of(
    draw: Any, sort: Sort, rng: np.random.Generator, sizes: dict | None, states: int, runs: int
) -> rv.Learner:
    """A learner of this sort; `sizes` says how many weights its nodes have, None: one per state."""

    def initial(node: str) -> Any:
        size = states if sizes is None else sizes[node]
        forms = ["zero", "table"] + ["number"] * (sizes is None)
        if node == "value":
            forms += ["per run"] + ["noisy"] * (sizes is None)
        form = draw(st.sampled_from(forms))
        return {
            "zero": 0.0,
            "number": float(rng.normal()),
            "table": rng.normal(size=size),
            "per run": rv.PerRun(rng.normal(size=(runs + 1, size))),
            "noisy": rv.Noisy(rng.normal(size=size), uniform=0.5, normal=0.2),
        }[form]

    method = draw(st.sampled_from(list(METHODS)))
    alphas = [draw(st.sampled_from(RULES[rule])) for rule in sort.rules]
    traces = st.sampled_from([0.5, 1.0, rng.random(states)])
    kappas = [draw(traces) if traced else 0.0 for traced in sort.traced]
    settings = {
        "alpha": alphas[0],
        "alpha_bar": alphas[2],
        "kappa": kappas[0],
        "kappa_bar": kappas[2],
        "estimand": sort.estimand,
        "value": initial("value"),
        "initial_variance": initial("variance"),
        "learn_value": sort.learn_value,
        "gamma": draw(st.sampled_from([None, None, 0.5, rng.uniform(0, 0.95, states)])),
        "lam": draw(st.sampled_from([None, None, 1.0, rng.random(states)])),
    }
    if method == "centred":
        settings |= {"alpha_mean": alphas[1], "kappa_mean": kappas[1]}
        if draw(st.booleans()):
            settings["initial_mean"] = initial("mean")
    if draw(st.integers(0, 4)) == 0:  # one that leaves its variance's steps to the value's
        settings["alpha_bar"] = None
    return METHODS[method](**settings)


@st.composite
def relatives(draw: Any, learner: rv.Learner) -> rv.Learner:
    """Another learner with the same value node."""
    kept = ("alpha", "gamma", "lam", "kappa", "estimand", "value", "learn_value", "alpha_bar")
    settings = {name: getattr(learner, name) for name in kept}
    if isinstance(learner.alpha_bar, float):
        settings["alpha_bar"] = draw(st.sampled_from(RULES["constant"]))
    return METHODS[draw(st.sampled_from(list(METHODS)))](**settings)


@st.composite
def cases(draw: Any, longest: int = 40) -> Case:
    """Any simulation, small enough for plain Python."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    domain = draw(st.sampled_from(["complex", "chain", "made", "made", "made"]))
    ends, noisy, policies = False, False, {}
    if domain == "chain":
        mdp, ends = rv.domains.chain(), True
    elif domain == "complex":
        mdp = rv.domains.complex_mdp()
    else:
        ends, noisy = draw(st.booleans()), draw(st.booleans())
        mdp = made_mdp(rng, draw(st.integers(1, 6)), draw(st.integers(1, 3)), ends, noisy)
    if domain != "chain":
        policies = draw(
            st.sampled_from([{}, {"behaviour": "mu"}] + [{"target": "pi", "behaviour": "mu"}] * 2)
        )
    n, runs = mdp.n_states, draw(st.sampled_from([2, 2, 1]))
    features, sizes = {}, None
    kind = draw(st.sampled_from(["states"] * 3 + ["one table", "own tables"]))
    if kind != "states":
        variance, value = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
        tables = [
            rng.normal(size=(n, k)) * (rng.random((n, k)) < 0.8) for k in (variance, value, value)
        ]
        features = {"features": tables[0]}
        if kind == "own tables":
            features |= {"value_features": tables[1], "mean_features": tables[2]}
        shell = Case(mdp, [], {}, features=features)
        sizes = {node: shell.rows_of(node).shape[1] for node in ("value", "mean", "variance")}
    learners = []
    for _ in range(draw(st.integers(1, 2))):
        sort = draw(sorts(draw(st.booleans())))
        first = len(learners)
        learners.append(draw(learners_of(sort, rng, sizes, n, runs)))
        for _ in range(draw(st.integers(0, 4))):
            if draw(st.booleans()):
                learners.append(draw(relatives(draw(st.sampled_from(learners[first:])))))
            else:
                learners.append(draw(learners_of(sort, rng, sizes, n, runs)))
    length = {"steps": draw(st.integers(1, longest))}
    if ends and draw(st.booleans()):
        length = {"episodes": draw(st.integers(1, max(1, longest // 10)))}
    total, mostly = next(iter(length.values())), st.sampled_from([True, True, True, False])
    record = {
        "at": [0, *sorted(draw(st.sets(st.integers(0, total))))],
        "window": draw(st.sampled_from([total, (total + 1) // 2, 1, 0])),
        "change": draw(mostly),
        "step_sizes": draw(mostly),
        "rmse": draw(mostly),
    }
    noise = any(isinstance(d.value, rv.Noisy) for d in learners)
    if not noise and draw(st.booleans()):
        record["states"] = rng.permutation(n)[: rng.integers(1, n + 1)].tolist()
    seed = draw(st.integers(0, 2**64 - 1))
    return Case(mdp, learners, length, runs, seed, policies, features, record)


# ------------------------------------------------------------------------ orders and shares


def check_invariance(case: Case, draw: Any) -> None:
    """Threads, batches, order, other learners: each learner's runs have the same bits."""
    plain = case.simulate()
    expected = digest(plain)
    threads, batch = draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([None, 1, 3]))
    assert digest(case.simulate(threads=threads, batch=batch)) == expected, (threads, batch)
    order = draw(st.permutations(range(len(case.learners))))
    back = np.argsort(order)
    moved = case.simulate(learners=[case.learners[k] for k in order], threads=threads)
    assert digest(moved.isel(learner=back)) == expected, order
    chosen = sorted(draw(st.sets(st.sampled_from(order), min_size=1)))
    few = case.simulate(learners=[case.learners[k] for k in chosen])
    part = plain.isel(learner=chosen)
    for name in few.data_vars:
        assert bits(few[name]) == bits(part[name]), (name, chosen)
    more = replace(case, runs=case.runs + 1).simulate(batch=batch)
    for name in set(plain.data_vars) - {"diverged"}:
        first = more[name].isel(run=slice(case.runs)) if "run" in more[name].dims else more[name]
        assert bits(first) == bits(plain[name]), name
    for stats in (case.simulate(keep="stats"), case.simulate(keep="stats", threads=8, batch=1)):
        check_statistics(plain, stats)


def check_statistics(runs: Any, stats: Any) -> None:
    """Mean and standard deviation over the runs that have not diverged."""
    for name in runs.data_vars:
        if name == "diverged_by":
            first = np.fmin.reduce(runs[name].values, axis=0)
            assert_array_equal(stats[name], first)
        elif "run" not in runs[name].dims:
            assert bits(stats[name]) == bits(runs[name]), name
        else:
            x = runs[name].values
            count = (~np.isnan(x)).sum(axis=0)
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                mean = np.where(count > 0, np.nansum(x, axis=0) / count, np.nan)
                std = np.sqrt(np.nansum((x - mean) ** 2, axis=0) / (count - 1))
            std = np.where(count > 1, std, np.nan)
            scale = np.max(np.abs(x), initial=1e-300, where=~np.isnan(x), axis=0)
            good = scale < 1e70  # squares of more would overflow
            assert_array_equal(np.isnan(stats[name].values)[good], (count == 0)[good])
            with np.errstate(invalid="ignore"):
                gap = np.where(good & (count > 0), abs(stats[name].values - mean) / scale, 0)
                off = abs(stats[f"{name}_std"].values - std) / scale
            assert gap.max() <= 1e-12, name
            gap = np.where(good & (count > 1), off, 0)
            assert gap.max() <= 1e-7, name  # √ of what rounding leaves where all runs are equal
