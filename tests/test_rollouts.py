"""Monte Carlo returns: from the start asked for, unbiased, and honest about what was cut off."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose

import retvar as rv
from retvar.cli import main
from retvar.estimation.rollouts import Observed
from tests.oracle import fresh_seed

Z = 4.9  # standard errors: false alarms below one in a million


def circle(angle):
    return math.cos(angle), math.sin(angle)


def z_score(sample, exact):
    return (sample.returns.mean() - exact) / (sample.returns.std(ddof=1) / math.sqrt(sample.size))


class Lengths(gymnasium.Env):
    """Each episode has 1 or 100 steps, as a coin decides; every reward is 1."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.choice([1, 100]))
        return 0, {}

    def step(self, action):
        self.left -= 1
        return 1, 1.0, self.left == 0, False, {}


def test_returns_from_each_state_have_the_exact_mean_and_spread():
    """FrozenLake: a bias of 0.06 in the mean would be noticed."""
    truth = rv.solve(rv.MDP.from_gymnasium("FrozenLake-v1", gamma=0.95))
    for start in (9, 10, 14):  # from which the goal is not rare
        sample = rv.rollouts(
            "FrozenLake-v1", gamma=0.95, start=start, episodes=1_500, seed=fresh_seed()
        )
        assert abs(z_score(sample, truth.value[start])) < Z
        assert sample.std.estimate == pytest.approx(truth.std[start], abs=0.1)


def test_several_environments_do_not_prefer_short_episodes():
    """The mean of 1 and 100 is 50.5; the first episodes to end would have a mean near 10."""
    envs = [Lengths() for _ in range(8)]
    sample = rv.rollouts(envs, gamma=1.0, episodes=400, seed=fresh_seed())
    assert sample.size == 400
    assert abs(z_score(sample, 50.5)) < Z


def test_cut_off_returns_are_completed_or_refused():
    """CartPole cut after 5 steps: 1 + γ + … + γ⁴ so far, and γ⁵ times the value to come."""
    so_far, share = sum(0.9**t for t in range(5)), 0.9**5
    how = {"gamma": 0.9, "episodes": 20, "max_steps": 5}
    completed = rv.rollouts("CartPole-v1", value=lambda observation: 3.0, **how)
    assert completed.cut_off == 20
    assert completed.returns == pytest.approx(np.full(20, so_far + share * 3.0))
    with pytest.raises(rv.InputError) as error:
        rv.rollouts("CartPole-v1", **how)
    assert error.value.field == "truncated"


def test_a_range_of_rewards_bounds_the_worst_returns():
    how = {"gamma": 0.9, "episodes": 20, "max_steps": 5, "truncated": "as_end"}
    assert math.isnan(rv.rollouts("CartPole-v1", **how).cvar().low)  # too few returns
    bounded = rv.rollouts("CartPole-v1", reward_range=(-1.0, 1.0), **how)
    assert bounded.cvar().low == pytest.approx(-10.0)  # 20 returns say nothing of a 20th


def test_the_return_up_to_the_limit_is_a_question_of_its_own():
    """CartPole cut after 5 steps, γ = 1: 5 within the limit."""
    how = {"gamma": 1.0, "episodes": 20, "max_steps": 5}
    within = rv.rollouts("CartPole-v1", truncated="as_end", **how)
    assert within.mean == (5.0, 5.0, 5.0)
    assert within.std == (0.0, 0.0, 0.0)
    assert within.cut_off == 20


@pytest.mark.parametrize(("world", "gamma"), [("MountainCar-v0", 0.9), ("Pendulum-v1", 0.95)])
def test_what_no_longer_counts_is_not_cut_off(world, gamma):
    """Of what follows 200 steps γ²⁰⁰ is left: 7e-10, or a 28,000th; no value is asked for."""
    sample = rv.rollouts(world, gamma=gamma, episodes=20, value=lambda _: math.nan)
    assert sample.cut_off == 0
    assert_allclose(sample.returns, rv.rollouts(world, gamma=gamma, episodes=20).returns)
    assert math.isfinite(sample.std.high)


STARTS = {  # a state, and what is observed there
    "CartPole-v1": ([0.1, 0.0, 0.05, 0.0], [0.1, 0.0, 0.05, 0.0]),
    "MountainCar-v0": ([-0.5, 0.01], [-0.5, 0.01]),
    "Pendulum-v1": ([1.0, 0.5], [math.cos(1), math.sin(1), 0.5]),
    "Acrobot-v1": ([0.1, 0.2, 0, 0], [*circle(0.1), *circle(0.2), 0, 0]),
    "Taxi-v4": (123, 123),
    "CliffWalking-v1": (25, 25),
}


@pytest.mark.parametrize("name", STARTS)
def test_episodes_start_where_they_are_told_to(name):
    """In a state, or in one that shows an observation."""
    state, shown = STARTS[name]
    for start in (state, Observed(shown)):
        env, seen = gymnasium.make(name), []

        def policy(observation, space=env.action_space, seen=seen):
            seen.append(observation)
            return space.sample()

        rv.rollouts(env, policy, gamma=0.9, episodes=2, max_steps=1, start=start,
                    truncated="as_end")  # fmt: skip
        assert_allclose(seen, [shown, shown], atol=1e-6)


class Slider(gymnasium.Env):
    """A world with positions and velocities, as MuJoCo's are."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = gymnasium.spaces.Discrete(1)
    model = SimpleNamespace(nq=2, nv=2)

    def reset(self, **settings):
        super().reset(**settings)
        self.set_state(np.zeros(2), np.zeros(2))
        return self._get_obs(), {}

    def set_state(self, position, velocity):
        self.now = np.concatenate([position, velocity])

    def _get_obs(self):
        return self.now.copy()

    def step(self, action):
        return self._get_obs(), float(self.now[1]), True, False, {}


@pytest.mark.parametrize("start", [(0, 0.05, 0, 0), ([0, 0.05], [0, 0])])
def test_positions_and_velocities_are_two_lists_or_one(start):
    assert_allclose(rv.rollouts(Slider(), gamma=1.0, start=start, episodes=3).returns, 0.05)


class Walk(gymnasium.Env):
    """A walk in two dimensions that starts anywhere."""

    observation_space = gymnasium.spaces.Box(-20, 20, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.own = self.state = self.np_random.uniform(0, 1, 2)
        return self.shown(), {}

    def step(self, action):
        self.own = self.state = self.walked() + self.np_random.normal(0, 0.1, 2)
        return self.shown(), float(self.own[0]), False, False, {}

    def walked(self):
        return np.asarray(self.state)

    def shown(self):
        return self.state.astype(np.float32)


class Distance(Walk):
    """It shows the distance from 10."""

    def shown(self):
        return (10 - self.state).astype(np.float32)


class Copied(Walk):
    """Its state is a copy for display."""

    def walked(self):
        return self.own


def test_a_state_that_is_another_or_only_shown_is_no_start():
    """A start elsewhere would give the return of another place."""
    how = {"gamma": 0.5, "episodes": 20, "max_steps": 15}
    for start in ([5, 1], Observed([5, 1])):
        assert rv.rollouts(Walk(), start=start, **how).mean.estimate == pytest.approx(10, abs=0.2)
        for world in (Distance, Copied):
            with pytest.raises(rv.InputError) as error:
                rv.rollouts(world(), start=start, **how)
            assert error.value.field == "start"

    def put(inner):
        inner.own = np.array([5.0, 1.0])
        return np.array([5, 1], np.float32)

    assert rv.rollouts(Copied(), start=put, **how).mean.estimate == pytest.approx(10, abs=0.2)


REFUSED = [
    ({"gamma": 1.2}, "gamma"),
    ({"episodes": 1}, "episodes"),
    ({"level": 90}, "level"),
    ({"max_steps": 0}, "max_steps"),
    ({"start": 99}, "start"),
    ({"start": lambda inner: "nowhere"}, "start"),
    ({"reward_range": (1.0, 0.0)}, "reward_range"),
    ({"policy": "greedyy"}, "policy"),
    ({"max_steps": 2, "value": lambda _: math.nan}, "value"),
    ({"truncated": "as_end", "value": lambda _: 0.0}, "value"),
    ({"env": "vector", "start": [0, 0, 0, 0]}, "start"),
    ({"env": Slider(), "start": (0, 0.05, 0)}, "start"),
]


@pytest.mark.parametrize(("settings", "field"), REFUSED)
def test_bad_settings_are_refused(settings, field):
    given = {"env": "FrozenLake-v1", "gamma": 0.9, "episodes": 3} | settings
    if given["env"] == "vector":
        given["env"] = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with pytest.raises(rv.InputError) as error:
        rv.rollouts(**given)
    assert error.value.field == field


# ------------------------------------------------------------------------ the command


def command(*words):
    return CliRunner().invoke(main, ["rollouts", *map(str, words)])


def test_the_command_gives_the_same_numbers_as_the_function():
    done = command(
        "gymnasium:FrozenLake-v1", "--gamma", 0.9, "--start", 14, "--episodes", 50, "--json",
        "--below", 0.5,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    sample = rv.rollouts("FrozenLake-v1", gamma=0.9, start=14, episodes=50)
    assert found["returns"] == sample.returns.tolist()
    assert found["mean"] == list(sample.mean)
    assert found["probability_below"] == list(sample.probability_below(0.5))


def test_the_command_asks_for_the_return_within_the_limit():
    words = ("gymnasium:CartPole-v1", "--gamma", 1, "--max-steps", 5, "--episodes", 9)
    found = json.loads(command(*words, "--within-limit", "--json").stdout)
    assert (found["mean"], found["within_limit"]) == ([5.0, 5.0, 5.0], True)


def near_the_goal(inner):
    inner.s = 14
    return 14


def test_the_command_starts_where_a_function_puts_the_environment():
    words = ("gymnasium:FrozenLake-v1", "--gamma", 0.9, "--episodes", 50, "--json")
    put = command(*words, "--start", f"{__name__}:near_the_goal")
    assert put.output == command(*words, "--start", 14).output


class Broken(gymnasium.Env):
    """Episodes of three steps; the second one of the last episode has an odd reward."""

    observation_space = action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, reward, bad=4):
        self.reward, self.bad, self.episode = reward, bad, 0

    def reset(self, **_):
        self.at, self.episode = 0, self.episode + 1
        return 0, {}

    def step(self, action):
        self.at += 1
        odd = self.episode == self.bad and self.at == 2
        return self.at % 3, self.reward if odd else 1.0, self.at == 3, False, {}


@pytest.mark.parametrize("reward", [math.nan, -1e308])
def test_an_episode_with_a_step_that_cannot_be_used_has_no_return(reward):
    """Its pieces must not be taken for episodes, nor may it be left out."""
    assert rv.rollouts(Broken(reward, bad=9), gamma=1.0, episodes=4, seed=0).mean.estimate == 3.0
    with pytest.raises(rv.SourceError):
        rv.rollouts(Broken(reward), gamma=1.0, episodes=4, seed=0)


def test_more_episodes_are_run_until_the_mean_has_the_precision_asked_for():
    found = rv.rollouts("FrozenLake-v1", gamma=0.9, start=14, episodes=100, precision=0.04)
    assert found.size > 200
    assert (found.mean.high - found.mean.low) / 2 == pytest.approx(0.04, rel=0.25)
    enough = rv.rollouts("FrozenLake-v1", gamma=0.9, start=14, episodes=100, precision=1.0)
    assert enough.size == 100
    assert_allclose(enough.returns, found.returns[:100])
