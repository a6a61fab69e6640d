"""Deep critics: targets against loops, critics against worlds with known answers, honesty."""

from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.experience import Experience
from retvar.support.errors import InputError

torch = pytest.importorskip("torch", reason="torch: make test-deep")

from retvar.deep.fit_critic import error_share  # noqa: E402
from retvar.deep.fitting import Record  # noqa: E402

torch.set_num_threads(1)

QUICK = {"members": 1, "hidden": (32,), "sweeps": 8, "batches": 60, "batch_size": 256}


def experience(columns, name="by hand", **about):
    """A stream from columns; one state is one number."""
    columns = {k: np.asarray(v) for k, v in columns.items()}
    width = columns["state"].shape[1]
    return Experience(name, lambda counts: iter([columns]), width=width, **about)


def one_step(rng, n=8_000, scale=1.0):
    """Episodes of one step: the reward has mean 2x and standard deviation 0.5 + x."""
    x = rng.random((n, 1))
    reward = 2 * x[:, 0] + (0.5 + x[:, 0]) * rng.normal(size=n)
    return {"state": x, "next_state": x, "reward": scale * reward, "terminated": np.ones(n, bool)}


X = np.linspace(0.15, 0.85, 8)[:, None]


# ---------------------------------------------------------------------- targets


def test_targets_are_what_a_trace_would_have_moved_predictions_by():
    """The forward view as a double loop: w(δ + γκ·going·…), for the value and for δ²."""
    rng = np.random.default_rng(1)
    n, gamma, lam, kappa = 30, 0.9, 0.8, 0.7
    reward, value, after, variance, after_variance = rng.normal(size=(5, n)) ** 2
    ended, cut = rng.random(n) < 0.1, rng.random(n) < 0.1
    rho = rng.uniform(0.5, 1.5, n)
    tensors = [torch.from_numpy(a) for a in (reward, value, after, variance, after_variance)]
    found = rv.deep.spread_targets(
        *tensors, gamma=gamma, lam=lam, kappa=kappa, terminated=torch.from_numpy(ended),
        truncated=torch.from_numpy(cut), rho=torch.from_numpy(rho),
    )  # fmt: skip
    discount = gamma * ~ended
    delta = reward + discount * after - value
    second = delta**2 + (discount * lam) ** 2 * after_variance - variance
    for target, own, error, c in (
        (found[0], value, delta, discount), (found[1], variance, second, (discount * lam) ** 2)
    ):  # fmt: skip
        for t in range(n):
            moved, weight = 0.0, rho[t]
            for k in range(t, n):
                moved += weight * error[k]
                if ended[k] or cut[k] or k + 1 == n:
                    break
                weight *= c[k] * kappa * rho[k + 1]
            assert target[t] == pytest.approx(own[t] + moved, abs=1e-12)


# ---------------------------------------------------------------------- recorded transitions


def test_interleaved_streams_are_brought_into_their_own_order():
    rng = np.random.default_rng(3)
    x = rng.random((40, 2))
    rows = {
        "state": x, "next_state": rng.random((40, 2)), "reward": rng.random(40),
        "terminated": rng.random(40) < 0.1, "truncated": rng.random(40) < 0.1,
        "stream": np.arange(40) % 4,
    }  # fmt: skip
    mixed, apart = Record(0.9, 1.0), Record(0.9, 1.0)
    for k in range(0, 40, 7):
        mixed.add({name: column[k : k + 7] for name, column in rows.items()})
    for stream in range(4):
        apart.add({name: column[rows["stream"] == stream] for name, column in rows.items()})
    one, other = mixed.columns(), apart.columns()
    for name in ("observations", "follows", "reward", "gamma", "going", "block"):
        assert_array_equal(getattr(one, name), getattr(other, name))
    for t in range(40):  # where no row goes on, what follows is what the row itself says
        source = np.flatnonzero((x == one.left[t]).all(axis=1))[0]
        if not one.going[t] and one.gamma[t]:
            expected = rows["next_state"][source]
            assert_array_equal(one.observations[one.follows[t]], expected)


# ---------------------------------------------------------------------- known answers


@pytest.mark.parametrize("method", ["direct", "vtd", "centred"])
def test_one_step_has_the_mean_and_spread_of_its_reward(method):
    rng = np.random.default_rng(4)
    found = rv.deep.fit(experience(one_step(rng)), gamma=0.9, method=method, **QUICK)
    assert_allclose(found.value(X), 2 * X[:, 0], atol=0.15)
    error = np.abs(found.std(X) / (0.5 + X[:, 0]) - 1)
    assert error.mean() < (0.25 if method == "vtd" else 0.12)
    assert_allclose(found.variance(X), found.std(X) ** 2, rtol=1e-12)


@pytest.mark.parametrize(
    ("reward", "shift", "width", "centre", "tolerance"),
    [(1_000.0, 0.0, 50.0, 7.0, 0.01), (1.0, 1e4, 1.0, 0.0, 0.02), (1.0, 0.0, 60.0, 1.7e9, 0.08)],
)
def test_units_do_not_matter(reward, shift, width, centre, tolerance):
    """The same networks in other units; observations as far off as the seconds since 1970."""
    rows = one_step(np.random.default_rng(5))
    found = rv.deep.fit(experience(rows), gamma=0.9, **QUICK)
    other = {"reward": reward * rows["reward"] + shift, "state": width * rows["state"] + centre}
    scaled = rv.deep.fit(experience(rows | other), gamma=0.9, **QUICK)
    x = width * X + centre
    assert_allclose(scaled.std(x), reward * found.std(X), rtol=tolerance)
    assert_allclose(scaled.value(x) - shift, reward * found.value(X), atol=0.05 * reward)


def test_the_linear_gaussian_world_is_learned():
    world = rv.domains.linear_gaussian([[0.8]], [[0.3]], [[1.0]], gamma=0.9)
    stream = rv.experience.from_linear_gaussian(world, streams=32, steps=60_000, seed=1)
    found = rv.deep.fit(stream, gamma=0.9, members=1, sweeps=16, hidden=(32, 32), batch_size=512)
    x = np.linspace(-1.2, 1.2, 21)[:, None]
    assert_allclose(found.std(x), world.std(x), rtol=0.12)
    assert_allclose(found.value(x), world.value(x), atol=0.2 * world.std(x).max())
    assert abs(found.about.error_share) < 0.1


def test_networks_take_part_in_a_stack_as_far_as_held_out_returns_confirm_them():
    world = rv.domains.linear_gaussian([[0.8]], [[0.3]], [[1.0]], gamma=0.9)
    stream = rv.experience.from_linear_gaussian(world, streams=32, steps=20_000, seed=1)
    fitted, never = (
        rv.deep.Networks(hidden=(32,), sweeps=sweeps, batches=40, learning_rate=rate)
        for sweeps, rate in ((12, 3e-3), (1, 1e-9))
    )
    x, error = np.linspace(-1, 1, 9)[:, None], []
    for bases in (["tiles", fitted, never], ["tiles"], [fitted, never]):
        found = rv.estimate(stream, gamma=0.9, features=bases)
        error.append(np.abs(found.value(x) - world.value(x)).mean())
    assert error[0] <= 1.05 * error[1]
    assert found.estimator.solution.weights == pytest.approx([1.0, 0.0], abs=0.02)


def test_a_small_spread_is_learned_beside_a_large_one():
    """Spreads of one decade. If all squared errors counted alike, the calm would be 30% off."""
    rng, n = np.random.default_rng(1), 20_000
    x = rng.random((n, 1))
    reward = 10 ** -x[:, 0] * rng.normal(size=n)
    rows = {"state": x, "next_state": x, "reward": reward, "terminated": np.ones(n, bool)}
    how = {"members": 1, "sweeps": 10, "batches": 40, "batch_size": 512, "hidden": (32, 32)}
    found = rv.deep.fit(experience(rows), gamma=0.9, **how)
    places = np.linspace(0.05, 0.95, 19)[:, None]
    assert_allclose(found.std(places), 10 ** -places[:, 0], rtol=0.2)


def test_truncation_is_not_an_end():
    """A reward of 1 for ever, cut off at every step: 1/(1 − γ), whatever the cuts."""
    rng = np.random.default_rng(6)
    x = rng.random((4_000, 1))
    rows = {"state": x, "next_state": rng.random((4_000, 1)), "reward": np.ones(4_000)}
    cut = rows | {"truncated": np.ones(4_000, bool)}
    found = rv.deep.fit(experience(cut), gamma=0.8, **QUICK | {"sweeps": 20})
    assert_allclose(found.value(X), 5.0, rtol=0.02)
    ended = rv.deep.fit(experience(rows | {"terminated": cut["truncated"]}), gamma=0.8, **QUICK)
    assert_allclose(ended.value(X), 1.0, rtol=0.02)


def test_episodes_that_end_at_random():
    """A reward of 1 until an end, which comes with probability p: G = (1 − γᵀ)/(1 − γ)."""
    rng = np.random.default_rng(18)
    n, p, gamma = 20_000, 0.3, 0.9
    x = rng.random((n + 1, 1))
    rows = {"state": x[:-1], "next_state": x[1:], "reward": np.ones(n),
            "terminated": rng.random(n) < p}  # fmt: skip
    found = rv.deep.fit(experience(rows), gamma=gamma, **QUICK)
    first, second = (p * c / (1 - c * (1 - p)) for c in (gamma, gamma**2))  # E γᵀ, E γ²ᵀ
    assert_allclose(found.value(X), (1 - first) / (1 - gamma), rtol=0.04)
    assert_allclose(found.variance(X), (second - first**2) / (1 - gamma) ** 2, rtol=0.2)


def test_the_difference_of_two_policies_is_no_error_of_the_value():
    """Reward 10a + noise, a = 1 with probability 0.2, under the target 0.8: std √(16 + 1)."""
    rng = np.random.default_rng(19)
    n = 20_000
    x, action = rng.random((n, 1)), rng.random(n) < 0.2
    rows = {
        "state": x, "next_state": x, "reward": 10.0 * action + rng.normal(size=n),
        "terminated": np.ones(n, bool), "rho": np.where(action, 4.0, 0.25),
    }  # fmt: skip
    found = rv.deep.fit(experience(rows), gamma=0.9, **QUICK)
    assert found.about.error_share < 0.1
    assert_allclose(found.std(X), np.sqrt(17.0), rtol=0.15)


@pytest.mark.parametrize("estimand", ["target_return", "off_policy_return"])
def test_both_off_policy_questions(estimand):
    """Reward 0 or 1 by a fair coin, 1 with probability 0.8 under the target: ρ = 1.6 or 0.4."""
    rng = np.random.default_rng(7)
    n = 20_000
    x, reward = rng.random((n, 1)), (rng.random(n) < 0.5).astype(float)
    rho = np.where(reward == 1, 1.6, 0.4)
    rows = {"state": x, "next_state": x, "reward": reward, "terminated": np.ones(n, bool),
            "rho": rho}  # fmt: skip
    found = rv.deep.fit(experience(rows), gamma=0.9, estimand=estimand, **QUICK)
    variance = 0.8 * 0.2 if estimand == "target_return" else 0.5 * 1.6**2 - 0.8**2
    assert_allclose(found.value(X), 0.8, atol=0.07)
    assert_allclose(found.variance(X), variance, rtol=0.15)


# ---------------------------------------------------------------------- as a tool


@pytest.fixture(scope="module")
def critic():
    rng = np.random.default_rng(9)
    return rv.deep.fit(experience(one_step(rng)), gamma=0.9, **QUICK | {"members": 3})


def test_the_same_seed_gives_the_same_bits_and_leaves_random_numbers_alone(critic):
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    again = rv.deep.fit(
        experience(one_step(np.random.default_rng(9))), gamma=0.9, **QUICK | {"members": 3}
    )
    assert_array_equal(again.std(X), critic.std(X))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()  # noqa: NPY002


def test_answers_of_one_observation_or_many_and_none_far_from_the_data(critic):
    assert critic.value(X[0]) == critic.value(X)[0]
    low, high = critic.interval(X, "std")
    assert ((low <= critic.std(X)) & (critic.std(X) <= high)).all()
    assert critic.interval(X[0], "std") == (low[0], high[0])
    assert (critic.interval(X, level=0.5)[0] > critic.interval(X, level=0.99)[0]).all()
    assert np.isnan(critic.value([[5.0]])).all()
    assert np.isfinite(critic.value([[0.5], [5.0]])).tolist() == [True, False]
    x = torch.from_numpy(X).requires_grad_(True)
    value, variance = critic.module(x)
    assert_allclose(value.detach(), critic.value(X))
    variance.sum().backward()
    assert bool((x.grad > 0).all())  # the spread grows with x


def test_a_saved_critic_answers_alike_and_damage_is_refused(critic, tmp_path):
    path = tmp_path / "critic.safetensors"
    critic.save(path)
    again = rv.deep.Critic.load(path)
    for what in ("value", "variance", "std"):
        assert_array_equal(again.predict(X, what), critic.predict(X, what))
    assert again.about.steps == critic.about.steps
    assert again.warnings == critic.warnings
    with pytest.raises(InputError, match=r"rv\.deep\.Critic\.load"):
        rv.load(path)
    whole = bytearray(path.read_bytes())
    whole[-3] ^= 1
    path.write_bytes(whole)
    with pytest.raises(InputError):
        rv.deep.Critic.load(path)
    other = tmp_path / "risk.safetensors"
    rv.Direct(alpha=0.1, gamma=0.9, lam=1.0).online(states=2).save(other)
    with pytest.raises(InputError, match="not a file of a deep critic"):
        rv.deep.Critic.load(other)


def test_calibration_and_check_can_fail(critic):
    def fresh():
        return experience(one_step(np.random.default_rng(10), 6_000))

    right = critic.calibration(fresh())
    assert right.within(2) == pytest.approx(0.954, abs=0.02)
    assert right.ratio == pytest.approx(1.0, abs=0.06)
    assert rv.check(critic, fresh()).agrees
    narrow = copy.deepcopy(critic)
    members = critic.module.members
    narrow.module.members = lambda x: (members(x)[0], 0.25 * members(x)[1])
    narrow.about = dataclasses.replace(narrow.about, held_out=0)
    assert "uncalibrated" in repr(narrow)
    assert narrow.calibration(fresh()).within(2) < 0.75
    assert "uncalibrated" not in repr(narrow)
    assert rv.check(narrow, fresh()).disagrees
    with pytest.raises(InputError, match=r"found = int: must be an estimate"):
        rv.check(3, fresh())


def test_an_encoder_stands_between_observations_and_networks():
    """Images of 40 × 40: the encoder takes the mean brightness."""
    rng = np.random.default_rng(11)
    rows = one_step(rng, 2_000)
    images = np.repeat(rows["state"], 1_600, axis=1)
    given = rows | {"state": images, "next_state": images}
    found = rv.deep.fit(
        experience(given), gamma=0.9, encoder=lambda x: x.mean(1, keepdim=True), **QUICK
    )
    assert_allclose(found.value(np.repeat(X, 1_600, axis=1)), 2 * X[:, 0], atol=0.4)
    with pytest.raises(InputError, match="a row of finite numbers"):
        rv.deep.fit(experience(given), gamma=0.9, encoder=lambda x: x.mean(1), **QUICK)


def test_interrupted_it_returns_the_critic_so_far():
    rows = one_step(np.random.default_rng(12), 2_000)

    def interrupt(sweep):
        if sweep == 3:
            raise KeyboardInterrupt

    found = rv.deep.fit(experience(rows), gamma=0.9, progress=interrupt, **QUICK)
    assert not found.about.complete
    assert found.about.sweeps == 3
    assert "interrupted after 3 sweeps" in found.warnings[0]
    assert np.isfinite(found.std(X)).all()


# ---------------------------------------------------------------------- honesty


def test_a_deterministic_world_has_no_spread():
    """x′ = 0.9x, r = −x²: what looks like spread is error of the value; noise is not."""
    rng = np.random.default_rng(13)
    x = np.empty((40, 200, 1))
    x[0] = rng.uniform(-1, 1, (200, 1))
    for t in range(39):
        x[t + 1] = 0.9 * x[t]
    rows = {
        "state": x[:-1].reshape(-1, 1), "next_state": x[1:].reshape(-1, 1),
        "reward": -(x[:-1].reshape(-1) ** 2), "stream": np.tile(np.arange(200), 39),
    }  # fmt: skip
    found = rv.deep.fit(experience(rows), gamma=0.9, **QUICK)
    assert found.about.error_share > 0.9
    assert np.isnan(found.std([[0.3]])).all()
    assert np.isfinite(found.value([[0.3]])).all()
    assert "no spread is given" in found.warnings[0]
    noisy = rows | {"reward": rows["reward"] + rng.normal(0.0, 1.0, len(rows["reward"]))}
    other = rv.deep.fit(experience(noisy), gamma=0.9, **QUICK)
    assert other.about.error_share < 0.2
    assert np.isfinite(other.std([[0.3]])).all()


def test_the_share_of_error_is_that_of_what_neighbours_share():
    """f(x) + noise with equal variances: one half; blocks that are the same do not count."""
    rng = np.random.default_rng(14)
    x, block = rng.random((40_000, 1)), np.arange(40_000) // 2
    f = np.sqrt(2) * np.sin(2 * np.pi * x[:, 0])
    assert error_share(x, f + rng.normal(size=40_000), block)[0] == pytest.approx(0.5, abs=0.08)
    assert np.isnan(error_share(x, f, np.zeros(40_000, dtype=np.int64))[0])


def test_the_share_of_error_lies_within_its_standard_errors_where_a_few_outcomes_decide():
    """One outcome in a thousand is a hundred times as large: no share, and none is claimed."""
    rng = np.random.default_rng(8)
    far = []
    for _ in range(20):
        x, block = rng.random((20_000, 1)), np.arange(20_000) // 2
        rare = np.where(rng.random(20_000) < 1e-3, 100.0, 1.0) * rng.normal(size=20_000)
        share, noise = error_share(x, rare, block)
        far.append(abs(share) / noise)
        assert share - 2 * noise < 0.1
    assert 0.3 < np.median(far) < 1.3  # 0.67 for normal errors


@pytest.mark.parametrize(("policy", "same"), [(np.array([0, 1]), True), ("random", False)])
def test_rollouts_from_one_state_tell_whether_anything_is_random(policy, same):
    """CartPole, pushed to the side that it leans to: no randomness; random pushes: some."""
    choose = (lambda x: int(x[2] > 0)) if same else policy
    stream = rv.experience.from_gymnasium("CartPole-v1", choose, steps=1_000, seed=1)
    found = rv.deep.fit(stream, gamma=0.9, **QUICK)
    assert found.repeat("CartPole-v1", choose) is same
    assert found.has_no_spread is same
    if same:
        assert "the same return each time" in found.warnings[0]


ROWS = one_step(np.random.default_rng(15), 300) | {"terminated": np.arange(300) % 2 == 0}


def fitted(rows=None, **settings):
    return lambda critic: rv.deep.fit(experience(ROWS | (rows or {})), **{"gamma": 0.9, **settings})


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("gamma", fitted(gamma=None)),
        ("gamma", fitted(gamma=[0.9, 0.8])),
        ("members", fitted(members=0)),
        ("hidden", fitted(hidden=64)),
        ("learning_rate", fitted(learning_rate=0.0)),
        ("device", fitted(device="abacus")),
        ("method", fitted(method="indirect")),
        ("progress", fitted(progress=3)),
        ("encoder", fitted(encoder=3)),
        ("experience", fitted(gamma=0.999)),  # needs 5,000 transitions
        ("state", fitted({"state": np.full((300, 1), np.nan)})),
        ("observations", fitted({"state": np.zeros((300, 2_000))})),
        ("obs", lambda critic: critic.value([[np.nan]])),
        ("obs", lambda critic: critic.value([[1.0, 2.0]])),
        ("obs", lambda critic: critic.value("x")),
    ],
)
def test_what_makes_no_sense_is_refused(critic, field, call):
    with pytest.raises(InputError) as refused:
        call(critic)
    assert refused.value.field == field


def test_a_loss_that_diverges_is_an_error():
    with pytest.raises(rv.DivergenceError, match="of Adam: lower"):
        rv.deep.fit(experience(ROWS | {"rho": np.full(300, 1e150)}), gamma=0.9, **QUICK)


# ---------------------------------------------------------------------- the command line


def test_the_command_adds_networks_to_the_mixture_as_the_library_does(tmp_path, monkeypatch):
    """With the same numbers; and what it saves answers alike."""
    from retvar.cli import main

    monkeypatch.setattr("retvar.deep.fit_critic.usual_sweeps", lambda gamma: 1)
    command = ["estimate", "gymnasium:CartPole-v1", "--gamma", "0.9", "--features", "deep"]
    told = ["--steps", "1000", "--out", str(tmp_path), "--at", "0,0,0,0", "--json"]
    result = CliRunner().invoke(main, [*command, *told, "--rollouts", "20", "--formats", "none"])
    assert result.exit_code == 0, result.output
    stream = rv.experience.from_gymnasium("CartPole-v1", steps=1_000)
    found = rv.estimate(stream, gamma=0.9, features="deep")
    assert len(found.estimator.solution.weights) == 4
    assert json.loads(result.stdout)["at"][0]["value"] == list(found.at([0, 0, 0, 0]).value)
    x = np.zeros((1, 4))
    saved = rv.load(tmp_path / "estimator.safetensors")
    assert_array_equal(saved.value(x), found.value(x))


def test_intervals_of_a_critic_alone_are_called_a_disagreement(critic):
    stream = experience(one_step(np.random.default_rng(9), 2_000))
    found = rv.deep.estimate(stream, gamma=0.9, **QUICK | {"members": 2})
    assert found.data.attrs["intervals"] == critic.intervals
    assert critic.intervals in found.summary()
    assert "90%" not in found.summary()


def test_without_torch_the_extra_is_named(monkeypatch):
    import sys

    for name in [n for n in sys.modules if n.startswith("retvar.deep.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r'pip install "retvar\[deep\]"; rv\.deep\.fit needs it'):
        _ = rv.deep.fit
