"""Lazy traces: features that come with each transition are learned as with eager traces.

The oracles are the dense learner typed in anew for replicates, and tables of features, whose traces
are eager.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retvar as rv
from retvar.features import Active, Fourier, Polynomial, TileCoding, Vector
from retvar.online import memory_layout
from tests import oracle, streams
from tests.streams import METHODS, feed, same, stored, stream
from tests.test_bootstrap import RULES, Replicate, multipliers

TIMES = 5 if oracle.SOAK else 1
MANY = memory_layout.DEFERRED_STREAMS + 3  # streams: with and without deferred updates


def close(found, wanted, tolerance=1e-9):
    """Equal, as numbers of the size of the largest."""
    scale = np.abs(wanted).max() + 1e-12
    assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * scale)


def sparse(rng, states, size):
    return rng.choice([-0.5, 0.3, 0.7], size=(states, size)) * (rng.random((states, size)) < 0.5)


def as_features(columns, table):
    """The same experience with the features in place of states."""
    return columns | {name: table[columns[name]] for name in ("state", "next_state")}


class Shared(Replicate):
    """The dense learner with traces for each stream."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.traces = {}

    def update(self, stream, *transition):
        for k, node in enumerate((self.J, self.G, self.V)):
            node.E, node.last = self.traces.get((stream, k), (0 * node.w, 0.0))
        super().update(*transition)
        for k, node in enumerate((self.J, self.G, self.V)):
            self.traces[stream, k] = node.E, node.last


@pytest.mark.parametrize("estimand", ["target_return", "off_policy_return"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", METHODS)
def test_estimator_and_replicates_equal_the_reference(method, rule, estimand):
    """Vectors, traces in all nodes, more streams than are deferred, each replicate separately."""
    rng = np.random.default_rng(oracle.fresh_seed())
    steps, count = 200, 5
    columns = stream(rng, steps, states=6, streams=MANY)
    columns["rho"] = np.minimum(columns["rho"], 1.25)
    columns["terminated"] &= rng.random(steps) < 0.2
    columns["truncated"] &= rng.random(steps) < 0.2
    table = sparse(rng, 6, 5)
    kappas = dict(zip(("kappa", "kappa_mean", "kappa_bar"), rng.random(3), strict=True))
    settings = kappas if method == "centred" else {k: kappas[k] for k in ("kappa", "kappa_bar")}
    estimator = METHODS[method](alpha=RULES[rule][0], estimand=estimand, **settings).online(
        features=5, bootstrap_samples=count, seed=5
    )
    estimator.update_many(as_features(columns, table))
    times = np.concatenate([np.ones((steps, 1)), multipliers(5, count, steps)], axis=1)
    points = np.eye(5)
    for c in range(count + 1):
        twin = Shared(method, 5, rule, list(kappas.values()), estimand)
        for t in range(steps):
            twin.update(
                columns["stream"][t], table[columns["state"][t]], columns["reward"][t],
                table[columns["next_state"][t]], columns["gamma"][t], columns["lam"][t],
                columns["rho"][t], columns["terminated"][t], columns["truncated"][t], times[t, c],
            )  # fmt: skip
        estimate = (
            (lambda what: estimator.predict(points, what))
            if c == 0
            else (
                lambda what, c=c: estimator.bootstrap_estimates(what=what, states=points)[:, c - 1]
            )
        )
        close(estimate("value"), twin.J.predicting)
        if method == "vtd":
            close(estimate("variance") + estimate("value") ** 2, twin.V.predicting)
        else:
            close(estimate("variance"), twin.V.predicting)


def pair(description, table, **settings):
    """The same learner with a table, whose traces are eager, and with vectors."""
    size = table.shape[1]
    start = {"value": np.linspace(-1, 1, size), "initial_variance": np.ones(size)}
    description = description.replace(**start, **settings)
    return description.online(features=table), description.online(features=size)


@pytest.mark.soak
@pytest.mark.parametrize("batch", range(10 if oracle.SOAK else 1))
def test_vectors_learn_what_tables_do(batch):
    """Any learner, any step sizes, any number of streams: 40 cases a batch, 200 steps each."""
    rng = np.random.default_rng([oracle.fresh_seed(), batch])
    for _ in range(40):
        table = sparse(rng, 5, 4)
        eager, lazy = pair(
            streams.learner(rng), table, kappa=float(rng.random()), kappa_bar=float(rng.random())
        )
        columns = stream(rng, 200, states=5, streams=int(rng.integers(1, MANY)))
        columns["rho"] = np.minimum(columns["rho"], 1.25)
        columns["terminated"] &= rng.random(200) < 0.3
        eager.update_many(columns)
        lazy.update_many(as_features(columns, table))
        for node, wanted in eager.weights.items():
            close(lazy.weights[node], wanted)
        close(list(lazy.td_errors.values()), list(eager.td_errors.values()))
        close(list(lazy.step_sizes.values()), list(eager.step_sizes.values()))


TINY = [rv.Constant(1e-60), rv.Decay(1e-60, 0.7), rv.Averaged(1e-60), rv.AlphaBound(1e-60)]


@pytest.mark.parametrize("rule", TINY, ids=repr)
def test_scales_may_leave_their_range_at_every_step(rule):
    """Ratios of 10⁻⁵ to 10⁵ between steps, and of 0: flushed again and again, in both directions.

    With steps so small that no error feeds on the weights.
    """
    rng = np.random.default_rng(oracle.fresh_seed())
    for _ in range(20 * TIMES):
        table = sparse(rng, 5, 4)
        description = rv.Direct(alpha=rule, gamma=1.0, lam=1.0, kappa=0.9, kappa_bar=0.9)
        eager, lazy = description.online(features=table), description.online(features=4)
        columns = stream(rng, 60, states=5, streams=2)
        size = rng.permutation(np.repeat([1e-5, 1.0, 1e5, 1e-2, 1e2], 12))
        columns["rho"] = np.where(columns["stream"] == 0, size, columns["rho"])
        for name in ("gamma", "lam", "terminated"):
            columns.pop(name)
        eager.update_many(columns)
        lazy.update_many(as_features(columns, table))
        for node, wanted in eager.weights.items():
            close(lazy.weights[node] * 1e60, wanted * 1e60)


def test_a_long_stream_without_end_does_not_drift():
    """10⁵ steps (10⁶ in `make soak`), no end, flushed thousands of times: error below 10⁻¹⁰."""
    rng = np.random.default_rng(oracle.fresh_seed())
    steps = 1_000_000 if oracle.SOAK else 100_000
    table = np.abs(sparse(rng, 30, 12))
    for rule in (rv.Constant(0.01), rv.Averaged(0.3)):
        eager, lazy = pair(rv.Direct(alpha=rule, gamma=0.95, lam=0.9, kappa=0.9), table)
        path = rng.integers(30, size=steps + 1)
        columns = {"state": path[:-1], "reward": rng.normal(size=steps), "next_state": path[1:]}
        eager.update_many(columns)
        lazy.update_many(as_features(columns, table))
        for node, wanted in eager.weights.items():
            close(lazy.weights[node], wanted, 1e-10)


# ---------------------------------------------------------------------- the same bits


KINDS = [
    Vector(2), Active(2), TileCoding([-3.0, -3.0], [3.0, 3.0], tiles=3, tilings=4),
    Polynomial([-3.0, -3.0], [3.0, 3.0], degree=2), Fourier([-3.0, -3.0], [3.0, 3.0], order=1),
]  # fmt: skip
STEPS = [rv.Constant(0.05), rv.Decay(), rv.Averaged(), rv.AlphaBound(0.5)]


def observed(rng, kind, steps, numbers=MANY):
    columns = stream(rng, steps, streams=numbers)
    columns["rho"] = np.minimum(columns["rho"], 1.25)
    for name in ("state", "next_state"):
        columns[name] = rng.normal(size=(steps, 2)).clip(-2, 2)
        if isinstance(kind, Active):
            columns[name] = rng.integers(2, size=(steps, 1))
    return columns


def held(learner):
    """The bits of everything that an estimator stores."""
    return [*stored(learner), learner._memory.live.tobytes()]


@pytest.mark.parametrize("replicates", [0, 4])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_chunks_one_by_one_clones_and_files_give_the_same_bits(kind, replicates, tmp_path):
    rng = np.random.default_rng(oracle.fresh_seed())
    for method, step in zip([*METHODS, "direct"], STEPS, strict=True):
        description = METHODS[method](alpha=step, kappa=0.8, kappa_bar=0.6)
        columns = observed(rng, kind, 120)
        single, whole, cut = (
            description.online(features=kind, bootstrap_samples=replicates) for _ in range(3)
        )
        whole.update_many(columns)
        for t in range(120):
            row = {name: c[t] for name, c in columns.items()}
            single.update(row.pop("state"), row.pop("reward"), row.pop("next_state"), **row)
        assert same(single, whole), (method, step)
        edge = int(rng.integers(121))
        cut.update_many({name: c[:edge] for name, c in columns.items()})
        cut.save(tmp_path / "cut.safetensors")
        for twin in (rv.load(tmp_path / "cut.safetensors"), cut.clone(), cut):
            twin.update_many({name: c[edge:] for name, c in columns.items()})
            assert same(twin, whole), (method, step, edge)
            assert whole.weights.keys() == twin.weights.keys()


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_reading_changes_nothing_and_all_answers_agree(step):
    rng = np.random.default_rng(oracle.fresh_seed())
    for method, kind in METHODS.items():
        estimator = kind(alpha=step, kappa=0.8, kappa_bar=0.6).online(
            features=3, bootstrap_samples=4
        )
        columns = as_features(stream(rng, 100, states=5, streams=3), sparse(rng, 5, 3))
        columns["rho"] = np.minimum(columns["rho"], 1.25)
        estimator.update_many({n: c for n, c in columns.items() if n not in ("terminated",)})
        before = held(estimator)
        points = rng.normal(size=(7, 3))
        weights, name = estimator.weights, "second_moment" if method == "vtd" else "variance"
        close([estimator.value(x) for x in points], points @ weights["value"])
        close([estimator.second_moment(x) for x in points] if method == "vtd" else
              [estimator.variance(x) for x in points], points @ weights[name])  # fmt: skip
        for what in ("value", "variance", "mean"):
            close(estimator.predict(points, what), [getattr(estimator, what)(x) for x in points])
            each = estimator.bootstrap_estimates(what=what, states=points)
            close(each, [estimator.bootstrap_estimates(x, what) for x in points])
            low, high = estimator.interval(what=what, states=points)
            close((low + high) / 2, estimator.predict(points, what))
        estimator.std(points[0])
        assert estimator.td_error == estimator.td_errors["value"]
        assert held(estimator) == before, (method, step)


def test_replicates_do_not_change_the_estimator():
    rng = np.random.default_rng(oracle.fresh_seed())
    for step in STEPS:
        description = rv.Centred(alpha=step, kappa=0.8, kappa_bar=0.6)
        columns = observed(rng, KINDS[2], 200)
        alone, with_replicates = (
            description.online(features=KINDS[2], bootstrap_samples=n) for n in (0, 3)
        )
        alone.update_many(columns)
        with_replicates.update_many(columns)
        assert same(alone, with_replicates), step


def test_a_bad_row_cuts_the_trace_of_its_stream():
    rng = np.random.default_rng(oracle.fresh_seed())
    for numbers in (1, 3):
        columns = observed(rng, KINDS[0], 60, numbers)
        columns["stream"][30] = 0
        columns["state"][30, 0] = np.nan
        skipping, cutting = (
            rv.Direct(alpha=rv.Decay(), kappa=0.9, kappa_bar=0.9).online(features=2)
            for _ in range(2)
        )
        skipping.update_many(columns, on_error="skip")
        feed(cutting, {n: c[:30] for n, c in columns.items()})
        cutting.reset_traces(0)
        assert not cutting._memory.traces[0].any()
        cutting.update_many({n: c[31:] for n, c in columns.items()})
        cutting.rejected = 1
        assert same(skipping, cutting)


def test_resetting_traces_changes_no_weight():
    rng = np.random.default_rng(oracle.fresh_seed())
    for step in STEPS:
        estimator = rv.Direct(alpha=step, kappa=0.9, kappa_bar=0.9).online(
            features=KINDS[2], bootstrap_samples=3
        )
        estimator.update_many(observed(rng, KINDS[2], 100))
        points = rng.normal(size=(9, 2))
        before = estimator.weights, estimator.bootstrap_estimates(what="variance", states=points)
        estimator.reset_traces()
        assert not estimator._memory.traces.any()
        assert not estimator._memory.sums.any()
        for name, wanted in before[0].items():
            close(estimator.weights[name], wanted, 1e-12)
        close(estimator.bootstrap_estimates(what="variance", states=points), before[1], 1e-12)


def test_faint_traces_are_dropped():
    estimator = rv.Direct(alpha=0.1, gamma=0.5, lam=0.5, kappa=0.5, kappa_bar=0.5).online(
        features=Active(1_000)
    )
    states = np.arange(1_001)[:, None]
    estimator.update_many(
        {"state": states[:-1], "reward": np.ones(1_000), "next_state": states[1:] % 1_000}
    )
    m = estimator._memory
    reached = m.live[0, 2 * m.steps.shape[0] :]
    assert 100 < reached[0] < 250
    assert reached[2] < reached[0]
    assert reached.sum() == np.count_nonzero(m.traces[0, :-3])


# ---------------------------------------------------------------------- divergence


def finite(learner):
    m = learner._memory
    numbers = [*learner.weights.values(), m.w, m.held, m.steps, m.traces, m.scales, m.sums]
    return all(np.isfinite(x).all() and (np.abs(x) <= memory_layout.LIMIT).all() for x in numbers)


@pytest.mark.parametrize("stream_number", [0, memory_layout.DEFERRED_STREAMS])
@pytest.mark.parametrize("wild", [(1.0, 1e200), (1e70, 1e100)], ids=["error", "feature"])
@pytest.mark.parametrize("step", [*STEPS[:3], rv.Constant(0.5)], ids=repr)
def test_divergence_of_an_active_weight_is_noticed_at_once(step, wild, stream_number):
    """The weights are those before that transition, and learning can continue."""
    estimator = rv.Direct(alpha=step, gamma=0.9, lam=0.9, kappa=0.9).online(features=2)
    given = {"stream": stream_number}
    estimator.update([1.0, 0.5], 1.0, [0.5, 1.0], **given)
    before = estimator.weights
    with pytest.raises(rv.DivergenceError, match="value node diverged at step 2"):
        estimator.update([0.5, wild[0]], wild[1], [0.0, 0.0], **given)
    for name, wanted in before.items():
        close(estimator.weights[name], wanted, 1e-12)
    assert finite(estimator)
    assert not estimator._memory.traces.any()
    estimator.update([1.0, 0.5], 1.0, [0.5, 1.0], **given)
    assert finite(estimator)


@pytest.mark.parametrize("how", ["terminated", "truncated", "cut", "bad row", "fold"])
def test_divergence_of_another_weight_is_noticed_when_it_is_flushed(how):
    """A trace of 10⁹⁰ is moved by an error of 10⁸⁰, while only another weight is active."""
    learner = rv.Direct(
        alpha=0.1, alpha_bar=0.0, gamma=0.9, lam=0.9, kappa=0.9, value=[0.0, 0.0, 2.0]
    ).online(features=3)
    learner.update([1e90, 0.0, 0.0], 0.0, [0.0, 0.0, 0.0])
    learner.update([0.0, 1.0, 0.0], 1e70, [0.0, 0.0, 0.0])
    small = {"state": [[0.0, 0.0, 1.0]], "reward": [2.0], "next_state": [[0.0, 0.0, 0.0]]}
    act = {
        "cut": learner.reset_traces,
        "bad row": lambda: learner.update_many({**small, "reward": [np.nan]}, on_error="skip"),
        "fold": lambda: learner.update_many({n: c * 100 for n, c in small.items()}),
    }.get(how, lambda: learner.update_many({**small, how: [True]}))
    with pytest.raises(rv.DivergenceError, match="value node"):
        act()
    assert finite(learner)
    assert learner.weights["value"][0] == 0.0
    assert not learner._memory.traces.any()
    learner.update([0.0, 0.0, 1.0], 1.0, [0.0, 0.0, 0.0])


def test_whatever_diverges_nothing_becomes_nan():
    rng = np.random.default_rng(oracle.fresh_seed())
    diverged = 0
    for _ in range(60 * TIMES):
        learner = streams.learner(rng, states=3).replace(
            kappa=float(rng.random()), kappa_bar=float(rng.random())
        ).online(features=3)  # fmt: skip
        columns = observed(rng, KINDS[0], 100)
        for name in ("state", "next_state"):
            power = rng.uniform(-80, 80, size=(100, 3)) * (rng.random((100, 1)) < 0.1)
            columns[name] = rng.normal(size=(100, 3)) * 10.0**power
        columns["rho"] *= 10.0 ** rng.integers(0, 9)
        for t in range(0, 100, 10):
            try:
                learner.update_many({n: c[t : t + 10] for n, c in columns.items()})
            except rv.DivergenceError:
                diverged += 1
            m = learner._memory
            for numbers in (m.w, m.held, m.steps, m.traces, m.scales, m.sums):
                assert numbers is None or np.isfinite(numbers).all()
            assert (np.abs(m.w) <= memory_layout.LIMIT).all()
            assert all(np.isfinite(w).all() for w in learner.weights.values())
    assert diverged > 100
