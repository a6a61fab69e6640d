"""Online estimators: against the reference, by identities, and with invalid input."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retvar as rv
from tests import oracle
from tests.patience import at_work
from tests.reference import Reference
from tests.streams import METHODS, feed, rows, same, stored, stream, traces

TIMES = 10 if oracle.SOAK else 1
ROOT = Path(__file__).parents[1]
MODES = ["target_return", "off_policy_return"]


def pair(rng, method, estimand, size=4):
    """The same learner twice, with all moments that it has: the package's, and the reference."""
    settings = {
        "alpha": rng.uniform(0, 0.3), "alpha_bar": rng.uniform(0, 0.3),
        "kappa": rng.random(), "kappa_bar": rng.random(), "order": 2 if method == "vtd" else 4,
        "estimand": estimand, "learn_value": bool(rng.random() < 0.8),
    }  # fmt: skip
    if method == "centred":
        settings |= {"alpha_mean": rng.uniform(0, 0.3), "kappa_mean": rng.random()}
    J, V = rng.normal(size=size), rng.random(size)
    ours = METHODS[method](**settings, value=J, initial_variance=V)
    return ours, Reference(method, size, **settings, J=J, V=V)


def assert_equal_estimates(estimator, asked, theirs, X):
    """Compare what is found for states with the reference for their features X."""
    wanted = {"value": theirs.J, "second_moment": theirs.V}
    if estimator.description.order == 4:
        wanted = {"value": theirs.J, "variance": theirs.V}
        wanted |= {"third_moment": theirs.M3, "fourth_moment": theirs.M4}
    for name, weights in wanted.items():
        scale = max(1.0, np.abs(weights).max(), np.abs(theirs.V).max() ** 2)
        found = estimator.predict(asked, name)
        assert_allclose(found, X @ weights, rtol=1e-9, atol=1e-10 * scale, err_msg=name)


def teach(reference, columns, features):
    for row in rows(columns):
        reference.update(
            features[row["state"]], row["reward"], features[row["next_state"]], row["gamma"],
            row["lam"], row["rho"], row["terminated"], row["truncated"],
        )  # fmt: skip


@pytest.mark.parametrize("estimand", MODES)
@pytest.mark.parametrize("method", METHODS)
def test_learners_equal_the_reference(method, estimand):
    """Random streams with ends, cuts, ratios, γ and λ of each transition, and traces.

    States; features as a table, whose traces are eager; and as vectors, whose traces are lazy.
    """
    rng = np.random.default_rng(oracle.fresh_seed())
    for k in range(36 * TIMES):
        linear, columns = k % 3 == 0, stream(rng, 40)
        X = rng.normal(size=(4, 3)) * (rng.random((4, 3)) < 0.7) if linear else np.eye(4)
        ours, theirs = pair(rng, method, estimand, size=X.shape[1])
        if method == "vtd" and linear:  # its initial variance is weights of the second moment
            theirs.V = ours.initial_variance
        teach(theirs, columns, X)
        table = ours.online(features=X) if linear else ours.online(states=4)
        feed(table, columns)
        assert_equal_estimates(table, range(4), theirs, X)
        if linear:
            vectors = ours.online(features=3)
            vectors.update_many({**columns, **{s: X[columns[s]] for s in ("state", "next_state")}})
            assert_equal_estimates(vectors, X, theirs, X)
        else:
            scale = max(1.0, np.abs(theirs.V).max())
            assert_allclose(table.variance(), theirs.variance, atol=1e-10 * scale)


def trace_of(learner, place, stream=0):
    return traces(learner, learner._memory.places[place])[stream]


def test_gamma_in_the_trace_is_that_of_the_state_being_left():
    """Two steps, 0 → 1 → 2: E(0) = γ(1)κ(1), the γ of arriving in 1, the κ of leaving it."""
    learner = rv.Direct(
        alpha=0.1, gamma=[0.1, 0.5, 0.9], lam=[0.2, 0.6, 1.0], kappa=[0.3, 0.7, 0.8],
        kappa_bar=[0.4, 0.25, 0.6],
    ).online(states=3)  # fmt: skip
    learner.update(0, 1.0, 1)
    learner.update(1, 1.0, 2)
    assert_allclose(trace_of(learner, 0), [0.5 * 0.7, 1, 0])
    assert_allclose(trace_of(learner, 2), [(0.5 * 0.6) ** 2 * 0.25, 1, 0])


def offline(description, episode, kappa_states=3):
    """What each node would add over an episode if its weights moved only at the end."""
    estimator = description.online(states=kappa_states)
    weights = [node.w for node in estimator._memory.block]
    places = list(estimator._memory.places)
    start, total = [w.copy() for w in weights], np.zeros((3, kappa_states))
    for t, (s, R, gamma, lam, rho) in enumerate(episode):
        last = t == len(episode) - 1
        s_next = None if last else episode[t + 1][0]
        estimator.update(s, R, s_next, terminated=last, gamma=gamma, lam=lam, rho=rho)
        for place, w, before in zip(places, weights, start, strict=True):
            total[place] += (w - before)[:-1, 0]
            w[:] = before
    return total


@pytest.mark.soak
@pytest.mark.parametrize("batch", range(10 if oracle.SOAK else 1))
def test_offline_updates_equal_the_forward_view(batch):
    """The package's own nodes, with weights restored after each step. 1,000 cases a batch.

    Backward: Σ δ_tE_t(s). Forward, from the end: A_t = ρ_t(δ_t + γ_{t+1}κ(s_{t+1})A_{t+1}) added
    to s_t; for the variance node with ρ̄, δ̄, γ̄ and κ̄. With κ = 1 on-policy A_t is the return minus
    the value: Monte Carlo.
    """
    rng = np.random.default_rng([oracle.fresh_seed(), batch])
    for case in range(1_000):
        n = int(rng.integers(1, 7))
        on_policy = case % 2 == 0
        rho = np.ones(n) if on_policy else rng.uniform(0, 2, n)
        states, R = rng.integers(3, size=n), rng.normal(size=n)
        gamma, lam = rng.random(n), rng.random(n)
        kappa = np.ones(3) if on_policy else rng.random(3)
        kappa_bar, J, V = rng.random(3), rng.normal(size=3), rng.random(3)
        estimand = MODES[case % 4 // 2]
        description = rv.Direct(
            alpha=1.0, kappa=kappa, kappa_bar=kappa_bar, value=J, initial_variance=V,
            estimand=estimand,
        )  # fmt: skip
        changes = offline(
            description,
            list(zip(*map(np.ndarray.tolist, (states, R, gamma, lam, rho)), strict=True)),
        )
        g, lm = np.append(gamma[:-1], 0.0), np.append(lam[:-1], 0.0)
        J_next, V_next = (np.append(x[states[1:]], 0.0) for x in (J, V))
        eta, rho_bar = (np.ones(n), rho) if estimand == MODES[0] else (rho, np.ones(n))
        delta = R + g * J_next - J[states]
        gamma_bar = (eta * g * lm) ** 2
        reward_bar = (eta * delta + (eta - 1) * J[states]) ** 2
        delta_bar = reward_bar + gamma_bar * V_next - V[states]
        A, B, G = 0.0, 0.0, 0.0
        forward = np.zeros((2, 3))
        for t in range(n - 1, -1, -1):
            after = states[t + 1] if t + 1 < n else 0
            A = rho[t] * (delta[t] + g[t] * kappa[after] * A)
            B = rho_bar[t] * (delta_bar[t] + gamma_bar[t] * kappa_bar[after] * B)
            G = R[t] + g[t] * G
            forward[0, states[t]] += A
            forward[1, states[t]] += B
            if on_policy:
                assert pytest.approx(G - J[states[t]], abs=1e-9) == A
        scale = max(1.0, np.abs(forward).max())
        assert_allclose(changes[0], forward[0], atol=1e-10 * scale)
        assert_allclose(changes[2], forward[1], atol=1e-10 * scale)


def test_decaying_steps_give_the_mean_of_the_targets():
    """1/n gives the mean of the targets; the step used is reported."""
    estimator = rv.Direct(alpha=rv.Decay(), gamma=1.0, lam=1.0).online(states=2)
    rewards = np.random.default_rng(0).normal(size=50)
    for r in rewards:
        estimator.update(0, r, None, terminated=True)
    assert estimator.value(0) == pytest.approx(rewards.mean())
    assert estimator.step_sizes["value"] == pytest.approx(1 / 50)
    estimator.update(1, 3.0, None, terminated=True)
    assert estimator.step_sizes["value"] == 1.0


def test_adadelta_follows_its_equations():
    decay, epsilon = 0.9, 1e-4
    estimator = rv.Direct(alpha=rv.Adadelta(decay, epsilon), gamma=1.0, lam=1.0).online(states=1)
    J = G = D = 0.0
    for r in np.random.default_rng(0).normal(size=30):
        d = r - J
        G = decay * G + (1 - decay) * d**2
        step = np.sqrt(D + epsilon) / np.sqrt(G + epsilon)
        D = decay * D + (1 - decay) * (step * d) ** 2
        J += step * d
        estimator.update(0, r, None, terminated=True)
        assert estimator.value(0) == pytest.approx(J)
        assert estimator.step_sizes["value"] == pytest.approx(step)


def test_alpha_bound_never_overshoots():
    """After an update the same transition's error has not changed its sign."""
    rng = np.random.default_rng(oracle.fresh_seed())
    for _ in range(50):
        X = rng.normal(size=(3, 2), scale=3)
        estimator = rv.Direct(alpha=rv.AlphaBound(10.0), gamma=0.5, lam=0.5).online(features=X)
        before = np.inf
        for s, t, r in zip(
            rng.integers(3, size=20), rng.integers(3, size=20), rng.normal(size=20), strict=True
        ):
            estimator.update(s, r, t)
            delta = estimator.td_error
            after = r + 0.5 * estimator.value(int(t)) - estimator.value(int(s))
            pull = X[s] @ (0.5 * X[t] - X[s])
            if pull < 0:
                assert after * delta >= -1e-9 * delta**2
            assert estimator.step_sizes["value"] <= before
            before = estimator.step_sizes["value"]


def test_each_node_bounds_its_step_by_its_own_discount():
    """One state that leads to itself: 1/(1 − γ) for the value, 1/(1 − (γλ)²) for the variance."""
    estimator = rv.Direct(alpha=rv.AlphaBound(10.0), gamma=0.5, lam=0.5).online(states=1)
    estimator.update(0, 1.0, 0)
    assert estimator.step_sizes == {"value": 1 / (1 - 0.5), "variance": 1 / (1 - 0.25**2)}


SQUARE = """
from retvar.td.jit import compiled
from retvar.td.rules import direct_reward
def square(x):
    return direct_reward(x, 0.0, 1.0)
print(compiled(square)(2.0))
"""


@pytest.mark.compiled
def test_changing_a_rule_changes_what_is_compiled_of_it(tmp_path):
    """Compiled code is cached under a digest of all its source files."""
    (tmp_path / "square.py").write_text(SQUARE)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    rules = tmp_path / "src/retvar/td/rules.py"
    env = {"PYTHONPATH": str(tmp_path / "src"), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    words, found = [sys.executable, tmp_path / "square.py"], []
    for new in ("return root * root", "return 100 * root * root"):
        rules.write_text(rules.read_text("utf-8").replace("return root * root", new), "utf-8")
        out = subprocess.run(words, env={**os.environ, **env}, capture_output=True, check=True)
        found.append(float(out.stdout))
    assert found == [4.0, 400.0]
    assert list((tmp_path / "cache").rglob("*.nbc"))


def test_columns_may_be_a_record_array():
    columns = stream(np.random.default_rng(3), 20)
    record = np.zeros(20, dtype=[(n, c.dtype) for n, c in columns.items()])
    for name, column in columns.items():
        record[name] = column
    one, other = (rv.Direct(alpha=0.1).online(states=4) for _ in range(2))
    one.update_many(columns)
    other.update_many(record)
    assert same(one, other)


def test_divergence_raises_and_leaves_the_last_finite_weights():
    settings = {"alpha": 0.1, "alpha_bar": 30.0, "gamma": 0.9, "lam": 0.9}
    estimator = rv.Direct(**settings).online(states=1)
    still = np.zeros(999, dtype=int)
    with pytest.raises(rv.DivergenceError) as caught:
        feed(estimator, {"state": still, "reward": np.ones(999), "next_state": still})
    assert caught.value.step == estimator.steps + 1 == 155
    assert (caught.value.node, caught.value.state) == ("variance", 0)
    assert caught.value.step_size == 30.0
    assert np.isfinite(estimator.variance(0))
    assert np.isfinite(estimator.value(0))
    chunk = rv.Direct(**settings).online(states=1)
    many = {"state": [0] * 999, "reward": [1.0] * 999, "next_state": [0] * 999}
    with pytest.raises(rv.DivergenceError) as again:
        chunk.update_many(many)
    assert again.value.step == caught.value.step
    assert same(chunk, estimator)


def test_descriptions_do_not_follow_the_arrays_they_were_made_from():
    gamma = np.array([0.5, 0.5])
    learner = rv.Direct(alpha=0.1, gamma=gamma, lam=1.0)
    before = hash(learner)
    gamma[0] = 9.0
    assert hash(learner) == before
    assert learner.gamma[0] == 0.5


# ---------------------------------------------------------------------- threads and interruption


def test_while_one_thread_learns_another_gets_an_error_that_names_the_fact(tmp_path):
    learner, row = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9, kappa=0.5), {"reward": [1.0]}
    states, vectors = learner.online(states=2), learner.online(features=2)
    for estimator, s, t in ((states, 0, 1), (vectors, [1.0, 0.0], [0.0, 1.0])):
        estimator.update(s, 1.0, t)
        twin = estimator.clone()
        estimator._owner = -1  # as if another thread were learning
        for call in (
            lambda e, s=s, t=t: e.update(s, 1.0, t),
            lambda e, s=s, t=t: e.update_many({"state": [s], "next_state": [t], **row}),
            lambda e: e.reset_traces(),
            lambda e: e.grow(3),
            lambda e: e.clone(),
            lambda e: e.save(tmp_path / "estimator.safetensors"),
        ):
            with pytest.raises(rv.ThreadError):
                call(estimator)
        assert not list(tmp_path.iterdir())
        estimator._owner = 0
        for each in (estimator, twin):
            each.update(t, 1.0, s)
            assert each.steps == 2
        assert same(estimator, twin)


LONG_CALL = """
import signal, numpy as np, retvar as rv
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
n, t = 3_000_000, np.arange(3_000_000)
columns = {"state": t % 5, "reward": t % 7 / 3.0, "next_state": (t + 1) % 5}
learner = rv.Direct(alpha=rv.Averaged(), gamma=0.9, lam=0.9, kappa=0.9, kappa_bar=0.9)
estimator, same_rows = (learner.online(states=5, bootstrap_samples=500) for _ in range(2))
for each in (estimator, same_rows):  # compiled beforehand
    each.update_many({name: column[:5] for name, column in columns.items()})
print("ready", flush=True)
try:
    estimator.update_many(columns)
except KeyboardInterrupt:
    learned = estimator.steps - 5
    assert 0 < learned < n, learned
    same_rows.update_many({name: column[:learned] for name, column in columns.items()})
    assert np.array_equal(estimator.variance(), same_rows.variance())
    print("the same")
"""


@pytest.mark.compiled
def test_an_interrupt_stops_a_long_call_and_what_was_learned_is_counted():
    """In a process of its own, which gets the signal when it has computed for 0.3 s."""
    with subprocess.Popen(
        [sys.executable, "-c", LONG_CALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout.readline() == "ready\n", running.stderr.read()
        at_work(running.pid, 0.3)
        running.send_signal(signal.SIGINT)
        assert running.stdout.read() == "the same\n", running.stderr.read()


# ---------------------------------------------------------------------- features


def test_unreadable_features_are_skipped_or_leave_nothing_behind():
    estimator = rv.Direct(alpha=0.5, gamma=0.9, lam=0.9).online(features=2)
    chunk = {"state": [[1.0, 0.0], [1.0], [0.0, np.inf], [0.0, 1.0]], "reward": [1.0] * 4}
    chunk |= {"next_state": [None] * 4, "terminated": [True] * 4}
    estimator.update_many(chunk, on_error="skip")
    assert (estimator.steps, estimator.rejected) == (2, 2)
    assert estimator.weights["value"].tolist() == [0.5, 0.5]
    twin = estimator.clone()
    with pytest.raises(rv.InputError):
        estimator.update_many(chunk)
    assert (estimator.steps, estimator.rejected) == (2, 3)
    for each in (estimator, twin):
        each.update(np.ones(2, dtype=np.float32), 1.0, [0.0, 1.0])
    assert stored(estimator) == stored(twin)


def test_nodes_may_have_features_of_their_own():
    """Other tables, or other features of the same observation."""
    rng = np.random.default_rng(0)
    kinds = rv.features.Polynomial([0.0], [1.0], degree=1), rv.features.Fourier([0.0], [1.0])
    columns, points = stream(rng, 40), rng.random((4, 1))
    learner = rv.Centred(alpha=0.05, kappa=0.5, order=4)
    X, Phi = (kind.rows(points).values.reshape(4, -1) for kind in kinds)
    tables = learner.online(features=Phi, value_features=X)
    tables.update_many(columns)
    given = learner.online(features=kinds[1], value_features=kinds[0])
    feed(given, {**columns, **{name: points[columns[name]] for name in ("state", "next_state")}})
    for node, weights in tables.weights.items():
        assert_allclose(given.weights[node], weights, rtol=1e-9, atol=1e-12)
    assert (tables.weights["mean"].size, tables.weights["fourth_moment"].size) == (2, 4)
    assert_allclose(given.predict(points, "kurtosis"), tables.kurtosis(), rtol=1e-8)
