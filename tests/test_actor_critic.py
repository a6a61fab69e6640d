"""The actor–critic: its expected direction is the exact gradient, and its policies are calmer.

Expectations are sums over all episodes of an MDP without cycles, each fed to the learner with its
probability, or sums over steps and transitions where there are too many. There is no chance in
them, so the direction agrees with ``policy_gradient`` to rounding.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retvar as rv
from retvar.risk.worlds import MDPWorld
from tests.oracle import END, fresh_seed

CLOSE = 1e-11


def layered(rng, layers=3, width=2, actions=2):
    """A random MDP whose episodes have `layers` steps or fewer, with parallel edges."""
    n = layers * width
    edges = []
    for s in range(n):
        below = range((s // width + 1) * width, (s // width + 2) * width)
        for a in range(actions):
            follows = rng.choice([*below, END] if s < n - width else [END], size=2)
            for s_next, p in zip(follows, rng.dirichlet([1.0, 1.0]), strict=True):
                edges.append((s, a, int(s_next), p, float(rng.normal())))
    columns = [np.array(column) for column in zip(*edges, strict=True)]
    start = np.zeros(n)
    start[:width] = rng.dirichlet(np.ones(width))
    return rv.MDP(
        (*columns, np.zeros(len(edges)), None), gamma=rng.uniform(0.5, 1.0, n), start=start
    )


def episodes(mdp, pi, state, probability=1.0):
    """All episodes from a state, with their probabilities."""
    for s, a, s_next, p, r, _, g in zip(*mdp.edges, strict=True):
        chance = probability * pi[s, a] * p
        if s == state and chance > 0:
            step = (int(s), int(a), float(r), int(s_next), float(g))
            if s_next == END:
                yield chance, [step]
            else:
                yield from ((q, [step, *rest]) for q, rest in episodes(mdp, pi, s_next, chance))


def informed(mdp, pi, penalty, features=None):
    """A learner that knows the true value and variance, and never moves."""
    truth = rv.solve(mdp, pi)
    exact = truth.value, truth.variance
    known = dict(zip(("value", "initial_variance"), exact, strict=True))
    kinds = {"states": mdp.n_states, "policy": pi}
    if features is not None:
        known = {name: np.linalg.solve(features, x) for name, x in known.items()}
        kinds = {"features": features}
    critic = rv.Direct(alpha=0.0, lam=1.0, **known)
    agent = rv.ActorCritic(critic, mdp.n_actions, penalty=penalty, alpha=0.0, **kinds)
    if features is not None:
        agent.preferences = np.linalg.solve(features, np.log(pi))
    mean = float(mdp.start @ truth.value)
    agent.starts = rv.Direct(alpha=0.0, value=mean).online(states=1)
    return agent


def expected_direction(agent, mdp, pi):
    """The sum over all episodes of their probability times the learner's direction."""
    total = np.zeros_like(agent.direction)
    for start in np.flatnonzero(mdp.start):
        for chance, steps in episodes(mdp, pi, start, mdp.start[start]):
            for s, a, r, s_next, g in steps:
                ends = s_next == END
                agent.update(s, a, r, None if ends else s_next, terminated=ends, gamma=g)
            total += chance * agent.direction
    return total


def exact_gradient(mdp, pi, penalty):
    """Of mean − penalty × variance, with respect to softmax parameters."""
    exact = rv.policy_gradient(mdp, pi).softmax
    return exact.mean - penalty * exact.variance


def cosine(x, y):
    return float(np.sum(x * y) / np.linalg.norm(x) / np.linalg.norm(y))


@pytest.mark.parametrize("penalty", [0.0, 0.5, -1.0])
@pytest.mark.parametrize("linear", [False, True], ids=["table", "features"])
def test_the_expected_direction_is_the_exact_gradient(penalty, linear):
    """From a start distribution, over all episodes; with features θ, by the chain rule."""
    rng = np.random.default_rng(fresh_seed())
    mdp = layered(rng)
    pi = rng.dirichlet(np.ones(mdp.n_actions), mdp.n_states)
    phi = np.eye(mdp.n_states) + 0.3 * rng.normal(size=(mdp.n_states,) * 2) / mdp.n_states
    agent = informed(mdp, pi, penalty, phi if linear else None)
    found = expected_direction(agent, mdp, pi)
    wanted = exact_gradient(mdp, pi, penalty)
    wanted = phi.T @ wanted if linear else wanted
    assert_allclose(found, wanted, atol=CLOSE * max(1.0, np.abs(wanted).max()))


def test_the_mean_of_the_starts_matters():
    """Without the spread between starts the direction is another one."""
    rng = np.random.default_rng(3)
    mdp = layered(rng)
    pi = rng.dirichlet(np.ones(mdp.n_actions), mdp.n_states)
    agent = informed(mdp, pi, 0.5)
    agent.starts = rv.Direct(alpha=0.0, value=2.0).online(states=1)
    found = expected_direction(agent, mdp, pi)
    assert np.abs(found - exact_gradient(mdp, pi, 0.5)).max() > 0.01


def by_steps(mdp, pi, penalty, *, cross=True, steps=3_000):
    """The expected direction by :func:`rules.actor_error`, summed over steps and transitions.

    The rule is linear in Y, so its mean in each state and step is all that counts. γ is the same
    everywhere. Noise of rewards adds to the variance of δ.
    """
    truth = rv.solve(mdp, pi)
    e = mdp.edges
    (gamma,) = set(e.gamma[e.next_state != END])
    ends = e.next_state == END
    j_next, v_next = (np.where(ends, 0.0, x[e.next_state]) for x in (truth.value, truth.variance))
    delta = e.reward + gamma * j_next - truth.value[e.state]
    delta_bar = delta**2 + e.reward_std**2 + gamma**2 * v_next - truth.variance[e.state]
    chance = pi[e.state, e.action] * e.probability
    there, ahead, weight = mdp.start.copy(), mdp.start * (truth.value - mdp.start @ truth.value), 1
    taken = np.zeros(pi.shape)
    for _ in range(steps):
        Y = np.divide(ahead, there, out=np.zeros_like(ahead), where=there > 0)[e.state]
        error = rv.rules.actor_error(delta, delta_bar, weight, Y if cross else 0 * Y, penalty)
        flow = there[e.state] * chance
        np.add.at(taken, (e.state, e.action), flow * error)
        moves = [flow, flow * (Y + weight * delta)]
        there, ahead = (np.bincount(e.next_state[~ends], x[~ends], mdp.n_states) for x in moves)
        weight *= gamma
        if weight * there.sum() < 1e-15:
            break
    return taken - pi * taken.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("world", [0, 3, 4, 6, "cliff"])
def test_without_the_cross_term_the_direction_is_not_the_gradient(world):
    """With it the cosine is 1, without it below .99: random MDPs with cycles, the windy cliff."""
    if world == "cliff":
        mdp, penalty = rv.domains.windy_cliff(), 0.1
        pi = rv.Policy.epsilon_greedy(mdp, 0.2).probabilities
    else:
        mdp, penalty = rv.domains.random_mdp(5, 2, 3, world, gamma=0.9, lam=1.0), 0.5
        pi = np.random.default_rng(world).dirichlet([1.0, 1.0], 5)
    exact = exact_gradient(mdp, pi, penalty)
    assert cosine(by_steps(mdp, pi, penalty), exact) > 1 - 1e-9
    assert cosine(by_steps(mdp, pi, penalty, cross=False), exact) < 0.99


def test_on_the_windy_cliff_a_penalty_makes_the_policy_calmer():
    """From −16.1 ± 5.8, ε-greedy, towards the best found, −12.924 ± 2.300; the seed is fixed."""
    mdp = rv.domains.windy_cliff()
    begin = rv.Policy.epsilon_greedy(mdp, 0.2)
    agent = rv.ActorCritic(
        rv.Direct(alpha=0.1, gamma=0.99, lam=1.0), mdp.available, states=mdp.n_states,
        policy=begin, penalty=0.5, alpha=0.2, seed=0,
    )  # fmt: skip
    assert np.allclose(agent.policy.probabilities, begin.probabilities)
    agent.train(mdp, 1_500)
    exact = rv.policy_gradient(mdp, agent.policy)
    assert exact.return_variance**0.5 < 3.2
    assert exact.return_mean > -13.5


def test_training_in_an_mdp_samples_its_returns():
    """A policy that does not move: mean and variance of 4,000 returns, seeded, within 4 errors."""
    mdp = rv.domains.random_mdp(4, 2, 3, 5, gamma=0.8, lam=1.0, ends=0.3)
    agent = rv.ActorCritic(rv.Direct(alpha=0.1, gamma=0.8, lam=1.0), 2, states=4, alpha=0.0)
    done = agent.train(mdp, 4_000, start=[0.5, 0.5, 0.0, 0.0])
    exact = rv.policy_gradient(mdp, agent.policy, start=[0.5, 0.5, 0.0, 0.0])
    G, error = done.returns, exact.return_variance**0.5 / 4_000**0.5
    assert abs(G.mean() - exact.return_mean) < 4 * error
    squares = (G - exact.return_mean) ** 2
    assert abs(squares.mean() - exact.return_variance) < 4 * squares.std() / 4_000**0.5
    assert done.terminated.mean() > 0.99
    assert agent.critic.steps == done.lengths.sum()


def test_edges_are_drawn_with_their_probabilities():
    mdp = rv.domains.random_mdp(3, 2, 3, 1, gamma=0.9, reward_std=0.0, parallel=True)
    world = MDPWorld(mdp, None, np.random.default_rng(0))
    drawn = dict.fromkeys(mdp.edges.reward.tolist(), 0)
    for _ in range(3_000):
        world._state = 1
        _, reward, *_ = world.step(1)
        drawn[reward] += 1
    e = mdp.edges
    mine = (e.state == 1) & (e.action == 1)
    for s, r, p in zip(mine, e.reward.tolist(), e.probability, strict=True):
        p = p if s else 0.0
        assert abs(drawn[r] - 3_000 * p) <= 5 * (3_000 * p * (1 - p)) ** 0.5


class Corridor:
    """An environment whose observations are vectors: right ends with 1, left with 0 or 3."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        return np.array([1.0, self.rng.random()]), {}

    def step(self, action):
        reward = 1.0 if action else float(self.rng.choice([0.0, 3.0]))
        return np.array([1.0, 0.0]), reward, True, False, {}


def test_features_of_an_environment_are_enough():
    """With a penalty of 1 the certain 1 is better than 1.5 ± 1.5; the seed is fixed."""
    for penalty, right in ((0.0, False), (1.0, True)):
        critic = rv.Direct(alpha=0.05, gamma=1.0, lam=1.0)
        agent = rv.ActorCritic(critic, 2, features=2, penalty=penalty, alpha=0.1)
        agent.train(Corridor(), 1_500)
        chances = agent.probabilities([1.0, 0.5])
        assert (chances[1] > 0.8) == right
        assert (chances[0] > 0.8) == (not right)


def test_one_by_one_updates_are_the_training():
    """`act` and `update` by hand give the bits of `train` in a world with the same numbers."""
    make = lambda: rv.ActorCritic(  # noqa: E731
        rv.Direct(alpha=0.05, gamma=1.0, lam=1.0), 2, features=2, penalty=1.0, seed=4
    )
    trained, by_hand = make(), make()
    trained.train(Corridor(), 50)
    by_hand._rng.integers(2**31)  # the seed of the environment
    world = Corridor()
    for _ in range(50):
        state, _ = world.reset()
        action = by_hand.act(state)
        _, reward, *_ = world.step(action)
        by_hand.update(state, action, reward, terminated=True)
    assert np.array_equal(trained.preferences, by_hand.preferences)


def test_the_first_step_has_the_length_of_alpha():
    """The first direction is of typical length, whatever the reward."""
    for reward in (0.01, 3.0):
        agent = rv.ActorCritic(
            rv.Direct(alpha=0.1, gamma=1.0, lam=1.0), actions=2, states=1, alpha=0.25
        )
        agent.update(0, 1, reward, terminated=True)
        assert_allclose(np.linalg.norm(agent.preferences), 0.25, rtol=1e-9)


def direct(**settings):
    return rv.Direct(alpha=0.1, **{"gamma": 0.9, "lam": 1.0, **settings})


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("critic", lambda: rv.ActorCritic(rv.VTD(alpha=0.1, gamma=1.0, lam=1.0), 2, states=3)),
        ("critic.lam", lambda: rv.ActorCritic(direct(lam=0.9), 2, states=3)),
        ("critic.lam", lambda: rv.ActorCritic(direct(lam=None), 2, states=3)),
        ("states, features", lambda: rv.ActorCritic(direct(), 2)),
        ("actions", lambda: rv.ActorCritic(direct(), 0, states=3)),
        ("actions", lambda: rv.ActorCritic(direct(), [True, False], states=3)),
        ("actions", lambda: rv.ActorCritic(direct(), np.ones((2, 2), dtype=bool), states=3)),
        ("actions[1]", lambda: rv.ActorCritic(direct(), [[True], [False]], states=2)),
        ("penalty", lambda: rv.ActorCritic(direct(), 2, states=3, penalty=np.nan)),
        ("alpha", lambda: rv.ActorCritic(direct(), 2, states=3, alpha=-1)),
        ("alpha", lambda: rv.ActorCritic(direct(), 2, states=3, alpha=rv.Adadelta())),
        ("policy", lambda: rv.ActorCritic(direct(), 2, states=1, policy=[[1.0, 0.0]])),
        ("policy", lambda: rv.ActorCritic(direct(), 2, states=2, policy=[[0.5, 0.5]])),
        ("policy", lambda: rv.ActorCritic(direct(), 2, features=2, policy=[[0.5, 0.5]])),
        ("policy", lambda: rv.ActorCritic(direct(), 2, features=2).policy),
        ("state", lambda: rv.ActorCritic(direct(), 2, states=3).act(3)),
        ("state", lambda: rv.ActorCritic(direct(), 2, states=3).act(0.5)),
        ("action", lambda: rv.ActorCritic(direct(), 2, states=3).update(0, 2, 1.0, 1)),
        ("action", lambda: rv.ActorCritic(direct(), [[True, False]], states=1).update(0, 1, 1, 0)),
        ("reward", lambda: rv.ActorCritic(direct(), 2, states=3).update(0, 0, np.nan, 1)),
        ("gamma", lambda: rv.ActorCritic(direct(gamma=None), 2, states=3).update(0, 0, 1.0, 1)),
        ("world", lambda: rv.ActorCritic(direct(), 2, states=3).train(None, 1)),
        ("world", lambda: rv.ActorCritic(direct(), 1, states=3).train(rv.domains.chain(), 1)),
        ("actions", lambda: rv.ActorCritic(direct(), 2, states=4).train(rv.domains.chain(), 1)),
        ("episodes", lambda: rv.ActorCritic(direct(), 1, states=4).train(rv.domains.chain(), 0)),
        ("start", lambda: rv.ActorCritic(direct(), 2, features=2).train(Corridor(), 1, start=0)),
    ],
)  # fmt: skip
def test_bad_input_is_refused(field, make):
    with pytest.raises(rv.InputError) as error:
        make()
    assert error.value.field == field


def test_a_refused_transition_changes_nothing():
    agent = rv.ActorCritic(direct(), 2, states=2, penalty=0.5)
    agent.update(0, 0, 1.0, 1)
    before = agent.direction.copy(), agent._weight, agent._ahead, agent.critic.steps
    for bad in ((0, 0, np.inf, 1), (0, 5, 1.0, 1), (0, 0, 1.0, 7)):
        with pytest.raises(rv.InputError):
            agent.update(*bad)
    after = agent.direction, agent._weight, agent._ahead, agent.critic.steps
    assert np.array_equal(before[0], after[0])
    assert before[1:] == after[1:]


# ---------------------------------------------------------------------- λ from value and variance


def test_greedy_lam_makes_the_error_of_the_target_least():
    """((1 − λ)e)² + λ²V, against a grid of λ."""
    rng = np.random.default_rng(fresh_seed())
    value, mean, variance = rng.normal(size=50), rng.normal(size=50), rng.exponential(size=50)
    lam = rv.greedy_lam(value, mean, variance)
    error = lambda x: ((1 - x) * (mean - value)) ** 2 + x**2 * variance  # noqa: E731
    for other in np.linspace(0, 1, 101):
        assert np.all(error(lam) <= error(other) + 1e-12)


def test_greedy_lam_is_one_without_variance_and_zero_without_error():
    assert_allclose(rv.greedy_lam([1, 1, 2, 0], [2, 1, 2, 1], [0, 0, 3, -1]), [1, 0, 0, 1])


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("value", ("a", 1.0, 1.0)),
        ("mean", ([1.0, 2.0], [1.0, 2.0, 3.0], 1.0)),
        ("variance[1]", ([1.0, 2.0], 1.0, [1.0, np.nan])),
    ],
)
def test_greedy_lam_refuses_what_it_cannot_use(field, arguments):
    with pytest.raises(rv.InputError) as error:
        rv.greedy_lam(*arguments)
    assert error.value.field == field
