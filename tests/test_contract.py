"""The contract of a learner; a new one is tested by being in ``LEARNERS``."""

import copy
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import retvar as rv
from retvar.mdp import END
from retvar.mdp.domains import random_mdp
from retvar.online import Transition
from retvar.td.learners import LEARNERS
from retvar.td.networks import NETWORKS
from retvar.td.step_sizes import StepSize, depends_on_errors, is_bounded
from tests.streams import feed

N = 4
STEP_SIZES = ("alpha", "alpha_bar", "alpha_mean")
TRACE_DECAYS = ("kappa", "kappa_bar", "kappa_mean")
STARTS = ("value", "initial_variance", "initial_mean")
PER_STATE = ("gamma", "lam", *TRACE_DECAYS, *STARTS)
ORDERS = {"value": 1, "variance": 2, "third_moment": 3, "fourth_moment": 4}
SHAPES = {"skewness": (3, 1.5, 0.0), "kurtosis": (4, 2.0, 3.0)}  # order, power of V, of a normal


@dataclass
class Case:
    """A learner to check, and the source of its random experience."""

    learner: Any
    rng: np.random.Generator

    def changed(self, **changes):
        """The learner with new values for those of the settings that it has."""
        return self.learner.replace(
            **{k: v for k, v in changes.items() if hasattr(self.learner, k)}
        )

    def online(self, **changes):
        return self.changed(**changes).online(states=N)

    def after(self, columns, **changes):
        estimator = self.online(**changes)
        estimator.update_many(columns)
        return estimator

    def used(self):
        """An estimator amid an episode, with traces on two streams, and another that is equal."""
        before, now = self.stream(streams=2), self.stream(6, streams=2, ends=False)
        pair = self.after(before), self.after(before)
        for each in pair:
            each.update_many(now)
        return pair

    def open(self, value=0.9):
        """γ and λ, where they must come with each transition."""
        return {k: value for k in ("gamma", "lam") if getattr(self.learner, k) is None}

    def stream(self, steps=40, *, streams=1, ends=True):
        rng, chance = self.rng, 0.12 * ends
        columns = {
            "state": rng.integers(N, size=steps),
            "reward": rng.normal(size=steps),
            "next_state": rng.integers(N, size=steps),
            "terminated": rng.random(steps) < chance,
            "truncated": rng.random(steps) < chance,
            "rho": rng.choice([0.0, 0.5, 1.0, 1.25], size=steps),
            "stream": rng.integers(streams, size=steps),
        }
        return columns | {k: rng.choice([0.0, 0.5, 0.9, 1.0], size=steps) for k in self.open()}

    def step(self, estimator, state, reward, follows, **more):
        estimator.update(state, reward, follows, **{**self.open(), **more})

    def has_rule(self, kind) -> bool:
        rules = [getattr(self.learner, name, None) for name in STEP_SIZES]
        return any(isinstance(rule, StepSize) and kind(rule.kind) for rule in rules)

    @property
    def names(self):
        """What it estimates."""
        return [name for name, order in ORDERS.items() if order <= self.learner.order]

    @property
    def moves(self) -> bool:
        return self.learner.alpha != 0

    def expect_same(self, a, b, *without):
        """The same bits now and, in clones, after more experience."""
        same_answers(a, b, *without)
        futures, more = (a.clone(), b.clone()), self.stream(12, streams=2, ends=False)
        for each in futures:
            feed(each, more)
        same_answers(*futures, *without)


def answers_of(e):
    order = e.description.order
    moments = [name for name, k in ORDERS.items() if k <= order]
    shapes = [name for name, (k, *_) in SHAPES.items() if k <= order]
    found = {name: getattr(e, name)() for name in (*moments, *shapes, "std")}
    found |= {"td_error": e.td_error, "step_sizes": list(e.step_sizes.values())}
    return found | {"steps": e.steps, "rejected": e.rejected}


def same_answers(a, b, *without):
    first, second = answers_of(a), answers_of(b)
    for name in first.keys() - set(without):
        x, y = (np.asarray(each[name], dtype=float) for each in (first, second))
        assert x.tobytes() == y.tobytes(), f"{name} is {x} and {y}"


def unchanged(estimator, before, states):
    for name, x in answers_of(estimator).items():
        if name in ORDERS:
            y = answers_of(before)[name]
            assert x[states].tobytes() == y[states].tobytes(), f"{name} {y} → {x}"


def some(columns, which):
    return {name: column[which] for name, column in columns.items()}


# ------------------------------------------------------------------------ the checks


def deterministic(case):
    """The same experience gives the same bits; other estimators and the input do not matter."""
    columns, learner = case.stream(streams=2), copy.deepcopy(case.learner)
    before, fresh = copy.deepcopy(columns), case.online()
    case.expect_same(case.after(columns), case.after(columns))
    assert all(np.array_equal(columns[name], before[name]) for name in columns)
    assert case.learner == learner
    case.expect_same(fresh, case.online())


def starts_as_described(case):
    """A fresh estimator has no steps and returns the initial estimates."""
    fresh = case.online()
    assert (fresh.steps, fresh.rejected) == (0, 0)
    value = np.broadcast_to(case.learner.value, N)
    assert np.array_equal(fresh.value(), value)
    variance = np.broadcast_to(case.learner.initial_variance, N)
    assert np.allclose(fresh.variance(), variance, rtol=1e-9, atol=1e-12 * (1 + value**2).max())


def answers_are_copies(case):
    """Neither a query nor writing into its answer changes anything."""
    estimator, before = case.used()
    for answer in answers_of(estimator).values():
        if isinstance(answer, np.ndarray):
            answer[:] = 7.0
    case.expect_same(estimator, before)


def clones_are_equal_and_independent(case):
    """A clone learns the same from then on; neither learns from the experience of the other."""
    estimator, control = case.used()
    clone, more = estimator.clone(), case.stream(streams=2)
    clone.update_many(more)
    same_answers(estimator, control)
    for each in (estimator, control):
        each.update_many(more)
    case.expect_same(estimator, clone)
    same_answers(control, clone)


def chunks_are_single_updates(case):
    """A stream one by one, whole, or split in any way gives the same bits."""
    columns = case.stream(60, streams=3)
    whole, single, split = case.after(columns), case.online(), case.online()
    feed(single, columns)
    edges = [0, *np.sort(case.rng.integers(0, 61, size=4)).tolist(), 60]
    for first, last in itertools.pairwise(edges):
        split.update_many(some(columns, slice(first, last)))
    case.expect_same(whole, single)
    case.expect_same(whole, split)


def gamma_and_lambda_of_a_transition_come_first(case):
    """γ and λ of a transition replace the learner's own."""
    own = {"gamma": 0.5, "lam": 0.25}
    columns = case.stream(20) | {name: np.full(20, x) for name, x in own.items()}
    bare = {name: column for name, column in columns.items() if name not in own}
    same_answers(case.after(columns), case.after(bare, **own))


def streams_do_not_mix(case):
    """Streams with separate states learn the same bits interleaved and one after the other."""
    columns = case.stream(60, streams=2)
    for name in ("state", "next_state"):
        columns[name] = columns[name] % 2 + 2 * columns["stream"]
    separate = case.online()
    for k in range(2):
        separate.update_many(some(columns, columns["stream"] == k))
    if not case.has_rule(is_bounded):
        same_answers(case.after(columns), separate, "td_error", "step_sizes")


def refuses_bad_transitions(case):
    """A bad state, reward, ratio, γ, λ or stream is named and counted; nothing else changes."""
    good = {"state": 0, "reward": 1.0, "next_state": 1}
    bad = {
        "state": (N, -1, 0.5, "x", None), "next_state": (N, -2, "x", None),
        "reward": (math.nan, math.inf, "much", 10**400), "rho": (-0.5, math.nan, math.inf, "x"),
        "gamma": (-0.1, 1.1, math.nan), "lam": (-1.0, 1.1, "x"), "stream": (-1, 0.5, 10**9, None),
        "terminated": ("False", 2), "truncated": (None,),
    }  # fmt: skip
    estimator, before = case.used()
    for count, (name, value) in enumerate((k, v) for k, values in bad.items() for v in values):
        with pytest.raises(rv.InputError) as caught:
            estimator.update(**{**good, **case.open(), name: value})
        assert caught.value.field == name, (name, value)
        assert estimator.rejected == before.rejected + count + 1, (name, value)
        same_answers(estimator, before, "rejected")
    case.expect_same(estimator, before, "rejected")


def refuses_bad_chunks_whole(case):
    """By default no row of a chunk with an invalid row is learned from."""
    for name, bad in (("state", N), ("reward", np.nan), ("rho", -1.0)):
        estimator, before = case.used()
        columns = case.stream(20)
        columns[name][13] = bad
        with pytest.raises(rv.InputError) as caught:
            estimator.update_many(columns)
        assert caught.value.field == f"row 13: {name}"
        assert estimator.rejected == before.rejected + 1
        case.expect_same(estimator, before, "rejected")


def skips_bad_rows(case):
    """With ``on_error="skip"`` an invalid row is counted and clears the trace of its stream."""
    columns = case.stream(20, ends=False) | {"rho": np.ones(20)}
    columns["reward"][7] = np.nan
    skipped, cleared = case.online(), case.after(some(columns, slice(0, 7)))
    skipped.update_many(columns, on_error="skip")
    assert (skipped.steps, skipped.rejected) == (19, 1)
    cleared.reset_traces(0)
    cleared.update_many(some(columns, slice(8, None)))
    case.expect_same(skipped, cleared, "rejected")


def terminated_does_not_look_ahead(case):
    """At a termination the next state, γ, λ and a truncation do not matter."""
    start, _ = case.used()
    ends = [{"next_state": s} for s in (None, 0, 1)]
    ends += [{"next_state": 1, "gamma": 1.0, "lam": 0.5}, {"next_state": 1, "truncated": True}]
    ended = [start.clone() for _ in ends]
    for end, estimator in zip(ends, ended, strict=True):
        estimator.update(0, 2.0, **end, terminated=True)
        case.expect_same(ended[0], estimator)


def truncated_bootstraps(case):
    """A truncated transition has the update of one that is not, and then clears the trace."""
    a, b = case.used()
    case.step(a, 0, 2.0, 1, truncated=True)
    case.step(b, 0, 2.0, 1)
    same_answers(a, b)
    b.reset_traces(0)
    case.expect_same(a, b)


def nothing_crosses_an_end(case):
    """States of an episode that has ended are not changed by the next episode."""
    for end in ("terminated", "truncated"):
        estimator = case.online()
        case.step(estimator, 0, 2.0, 1)
        case.step(estimator, 1, 2.0, 2, **{end: True})
        before = estimator.clone()
        case.step(estimator, 2, 5.0, 2)
        unchanged(estimator, before, [0, 1])


def traces_of_a_stream_are_reset_alone(case):
    """Clearing one stream's traces changes nothing for another; clearing all clears all."""
    estimator, cleared = case.used()
    for each in (estimator, cleared):
        case.step(each, 0, 2.0, 1)
    cleared.reset_traces(1)
    more = case.stream(10, ends=False) | {"rho": np.ones(10)}
    for each in (estimator, cleared):
        each.update_many(more)
    same_answers(estimator, cleared)
    estimator.reset_traces()
    before = estimator.clone()
    for stream in range(2):
        case.step(estimator, 1, 5.0, 2, stream=stream)
    unchanged(estimator, before, [0, 2, 3])


def first_step_is_step_size_times_error(case):
    """δ = R + γ′J(s′) − J(s) before the update; the first moves the value by αρδ."""
    estimator = case.online()
    J = estimator.value()
    case.step(estimator, 0, 37.0, 1, rho=0.75)
    gamma = 0.9 if case.learner.gamma is None else np.broadcast_to(case.learner.gamma, N)[1]
    assert estimator.td_error == pytest.approx(37.0 + gamma * J[1] - J[0], rel=1e-9)
    if case.learner.learn_value:
        moved = estimator.step_sizes["value"] * 0.75 * estimator.td_error
        assert estimator.value(0) == pytest.approx(J[0] + moved, rel=1e-9)
    assert (estimator.variance(0) != case.online().variance(0)) == case.moves


def answers_agree(case):
    """All states hold each state's; the std is the root, skewness and kurtosis are scaled."""
    for start in (0.0, -0.25, 4.0):
        estimator = case.after(case.stream(6), initial_variance=start)
        answers = answers_of(estimator)
        V = answers["variance"]
        for name in (*case.names, "std"):
            single = [getattr(estimator, name)(s) for s in range(N)]
            assert np.array_equal(answers[name], single, equal_nan=True), name
        assert np.array_equal(np.isnan(answers["std"]), V < 0)
        assert np.allclose(answers["std"][V >= 0] ** 2, V[V >= 0])
        for name, (order, power, normal) in SHAPES.items():
            if order <= case.learner.order:
                moment = answers[list(ORDERS)[order - 1]]
                wanted = moment[V > 0] / V[V > 0] ** power - normal
                assert np.allclose(answers[name][V > 0], wanted, rtol=1e-9), name
                assert np.isnan(answers[name][V <= 0]).all()


def traces_reach_back(case):
    """A reward changes the value of the state before it where κ > 0, and only there."""
    for kappa in (0.0, 0.5):
        a, b = (case.online(kappa=kappa, gamma=0.9, lam=0.9) for _ in range(2))
        for estimator, reward in ((a, 0.0), (b, 37.0)):
            estimator.update(0, 0.0, 1)
            estimator.update(1, reward, None, terminated=True)
        risen = b.value(0) > a.value(0)
        for estimator in (a, b) if kappa else ():  # averaged weights: at the next visit
            estimator.update(0, 0.0, None, terminated=True)
        risen |= b.value(0) > a.value(0)
        assert risen == (kappa > 0 and case.moves and case.learner.learn_value)


def nothing_moves_without_steps(case):
    """Steps of 0 move nothing; a held value and states that were never left stay, too."""
    still = case.online(**dict.fromkeys(STEP_SIZES, 0.0))
    still.update_many(case.stream(streams=2))
    unchanged(still, case.online(), range(N))
    value = case.rng.normal(size=N)
    held = case.after(case.stream(), value=value, learn_value=False)
    assert np.array_equal(held.value(), value)
    columns = case.stream() | {"state": case.rng.integers(2, size=40)}
    unchanged(case.after(columns), case.online(), [2, 3])


def ratio_of_zero_stops_the_value(case):
    """What the target would never do changes no value, and clears the target return's traces."""
    estimator, before = case.used()
    case.step(estimator, 0, 5.0, 1, rho=0.0)
    assert np.array_equal(estimator.value(), before.value())
    if case.learner.estimand == "target_return":
        before = estimator.clone()
        case.step(estimator, 2, 5.0, 2)
        unchanged(estimator, before, [0, 1, 3])


def rewards_scale(case):
    """Rewards times c give exactly c times the value and cᵏ times the moment of order k."""
    columns, zero = case.stream(), dict.fromkeys(STARTS, 0.0)
    for factor in (-1, 0) if case.has_rule(depends_on_errors) else (-1, 0, 8):
        given = {**columns, "reward": factor * columns["reward"]}
        one, other = case.after(columns, **zero), case.after(given, **zero)
        for name in case.names:
            expected = factor ** ORDERS[name] * getattr(one, name)()
            assert np.array_equal(getattr(other, name)(), expected), (name, factor)


def state_order_does_not_matter(case):
    """States in another order, with their settings, give the answers in that order."""
    columns, order = case.stream(), case.rng.permutation(N)  # old state order[k] becomes state k
    given = {name: getattr(case.learner, name, None) for name in PER_STATE}
    moved = {n: np.asarray(x)[order] for n, x in given.items() if x is not None and np.size(x) > 1}
    new = {name: np.argsort(order)[columns[name]] for name in ("state", "next_state")}
    a, b = case.after(columns), case.after({**columns, **new}, **moved)
    for name in case.names:
        assert np.array_equal(getattr(a, name)()[order], getattr(b, name)()), name


def lambda_defines_the_variance_alone(case):
    """The value is the same for any λ; with γ = 0 everything is."""
    columns = {k: v for k, v in case.stream().items() if k != "lam"}
    values = [case.after(columns, lam=lam).value() for lam in (0.0, 0.5, 1.0)]
    assert np.array_equal(values[0], values[1])
    assert np.array_equal(values[0], values[2])
    columns.pop("gamma", None)
    same_answers(*(case.after(columns, gamma=0.0, lam=lam) for lam in (0.0, 1.0)))


def fixed_points_are_stationary(case):
    """Mean updates over all transitions of an MDP vanish at exact values and fixed points."""
    mdp, question = finite_problem(case)
    truth, wrong = rv.solve(mdp, **question), case.rng.normal(size=N)
    value = rv.solve(mdp, "target").value  # for either estimand: the ratio weighs its updates
    expect_stationary(case, mdp, "value", value=value, learn_value=True)
    for held, point in (
        (truth.value, truth),
        (wrong, rv.fixed_point(case.learner.method, mdp, **question, value=wrong)),
    ):
        means = rv.solve(mdp, **question, value=held).mean
        start = {"value": held, "initial_variance": point.variance, "initial_mean": means}
        expect_stationary(case, mdp, "variance", **start, learn_value=False)


CHECKS = (
    deterministic, starts_as_described, answers_are_copies,
    clones_are_equal_and_independent, chunks_are_single_updates,
    gamma_and_lambda_of_a_transition_come_first, streams_do_not_mix, refuses_bad_transitions,
    refuses_bad_chunks_whole, skips_bad_rows, terminated_does_not_look_ahead, truncated_bootstraps,
    nothing_crosses_an_end, traces_of_a_stream_are_reset_alone,
    first_step_is_step_size_times_error, answers_agree,
    traces_reach_back, nothing_moves_without_steps, ratio_of_zero_stops_the_value, rewards_scale,
    state_order_does_not_matter, lambda_defines_the_variance_alone, fixed_points_are_stationary,
)  # fmt: skip


def finite_problem(case):
    """A small random MDP of finite variance, and the arguments of `solve`."""
    question = {"target": "target", "behaviour": "behaviour", "estimand": case.learner.estimand}
    while True:
        seed = int(case.rng.integers(2**31))
        mdp = random_mdp(N, 2, 2, seed=seed, gamma=(0.0, 0.9), lam=(0.0, 0.9), ends=0.2)
        try:
            rv.solve(mdp, **question)
        except rv.InfiniteVarianceError:
            continue
        return mdp, question


def expect_stationary(case, mdp, answer, **settings):
    """Updates with step size 1 leave an answer unchanged on average: Gauss–Hermite rewards."""
    zero = {**dict.fromkeys(PER_STATE, 0.0), "gamma": None, "lam": None}
    start = case.online(**{**zero, **dict.fromkeys(STEP_SIZES, 1.0), **settings})
    pi, mu = (mdp.policy(name).probabilities for name in ("target", "behaviour"))
    change, size = np.zeros(N), np.zeros(N)
    for s, a, t, p, r, sd, gamma in zip(*(c.tolist() for c in mdp.edges), strict=True):
        ahead = {"next_state": None, "terminated": True}
        if t != END:
            ahead = {"next_state": t, "gamma": gamma, "lam": float(mdp.lam[t])}
        for x, weight in ((-math.sqrt(3), 1 / 6), (0.0, 2 / 3), (math.sqrt(3), 1 / 6)):
            estimator = start.clone()
            estimator.update(Transition(s, r + x * sd, **ahead, rho=float(pi[s, a] / mu[s, a])))
            moved = getattr(estimator, answer)(s) - getattr(start, answer)(s)
            change[s] += mu[s, a] * p * weight * moved
            size[s] += mu[s, a] * p * weight * abs(moved)
    assert (abs(change) <= 1e-10 * (1 + size)).all(), f"{answer} would change by {change}"


# ------------------------------------------------------------------------ learners without a fault

SETTINGS = {
    "plain": {"alpha": 0.1, "gamma": 0.9, "lam": 0.9},
    "open": {"alpha": 0.1, "alpha_bar": 0.05, "estimand": "off_policy_return"},
    "traces": {"alpha": 0.1, "gamma": 0.9, "lam": 0.8, "kappa": 0.7, "kappa_bar": 0.6},
    "full traces": {"alpha": 0.05, "kappa": 1.0, "kappa_bar": 1.0, "estimand": "off_policy_return"},
    "decay": {"alpha": rv.Decay(), "alpha_bar": rv.Decay(0.5, 0.6), "kappa": 0.5},
    "averaged": {"alpha": rv.Averaged(), "alpha_bar": rv.Averaged(0.5, 0.8), "kappa": 0.5},
    "adadelta": {"alpha": rv.Adadelta(), "kappa": 0.5, "kappa_bar": 0.5},
    "alpha bound": {"alpha": rv.AlphaBound(), "alpha_bar": rv.AlphaBound(0.5), "kappa": 0.9},
    "held": {"alpha": 0.1, "value": [1.0, -2.0, 3.0, 0.5], "learn_value": False},
    "per state": {
        "alpha": 0.1, "gamma": [0.1, 0.5, 0.9, 0.2], "lam": [1.0, 0.0, 0.5, 0.1],
        "kappa": [0.2, 0.9, 1.0, 0.3], "kappa_bar": [1.0, 0.0, 0.3, 0.1], "value": [1.0, 2.0, 3, 4],
        "initial_variance": [0.5, 1.0, 2.0, 3.0], "estimand": "off_policy_return",
    },
    "no steps": {"alpha": 0.0, "gamma": 0.9, "lam": 0.9, "kappa": 0.7},
}  # fmt: skip


def run_checks(learner, seed=0):
    """Run every check; a failure names the check."""
    for number, check in enumerate(CHECKS):
        try:
            check(Case(learner, np.random.default_rng([seed, number])))
        except (Exception, pytest.fail.Exception) as error:
            raise AssertionError(f"{check.__name__}: {error}") from error


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_keeps_the_contract(name, settings):
    run_checks(LEARNERS[name](**SETTINGS[settings]))


@pytest.mark.parametrize("settings", ["traces", "averaged", "per state"])
@pytest.mark.parametrize(
    "name", [n for n, kind in LEARNERS.items() if NETWORKS[kind.method].highest_order > 2]
)
def test_learners_of_higher_moments_keep_it(name, settings):
    run_checks(LEARNERS[name](**SETTINGS[settings], order=4))
