"""Deep critics of PPO on CartPole, against roll-outs: a row of a markdown table for each training.

    pip install "retvar[sb3]"
    python benchmarks/deep_cartpole.py --seeds 5

Each seed trains a policy, fits a critic to fresh experience of it with drawn actions, and compares
it with roll-outs from states that it visits: with all of them, and with the first few, which are
as far from all as the last column says. CartPole is computed here for all roll-outs at once; first
of all this is compared with Gymnasium's.
"""

import argparse
import time
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO

import retvar as rv

GAMMA = 0.98
HORIZON = 400  # steps, after which γᵏ is 3e-4 and returns count as over
CLOSE, TYPICAL, HELD = 0.10, 0.15, (0.92, 0.97)  # what is expected
HEAD = """| seed | episode | std | ratio | error | within 2 std | | few: ratio | error | their own |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


@dataclass
class Settings:
    """How much of everything."""

    training: int = 16_000  # much longer, and the policy hardly ever fails: then there is no spread
    steps: int = 300_000
    places: int = 60
    episodes: int = 2_000  # from each place
    few: int = 200  # of them, which are judged as well
    members: int = 5


def move(state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One step of CartPole for rows of states; which of them are over."""
    x, v, angle, w = state.T
    force = np.where(action == 1, 10.0, -10.0)
    cos, sin = np.cos(angle), np.sin(angle)
    part = (force + 0.05 * w**2 * sin) / 1.1
    turn = (9.8 * sin - cos * part) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    push = part - 0.05 * turn * cos / 1.1
    after = np.stack([x + 0.02 * v, v + 0.02 * push, angle + 0.02 * w, w + 0.02 * turn], axis=1)
    over = (np.abs(after[:, 0]) > 2.4) | (np.abs(after[:, 2]) > 12 * 2 * np.pi / 360)
    return after, over


def verify(episodes: int = 200) -> None:
    """Compare with Gymnasium's CartPole, with random actions."""
    env, rng = gymnasium.make("CartPole-v1").unwrapped, np.random.default_rng(0)
    for seed in range(episodes):
        env.reset(seed=seed)
        over = False
        while not over:
            action = int(rng.integers(2))
            own, ended = move(np.array(env.state, dtype=np.float64)[None], np.array([action]))
            _, _, over, _, _ = env.step(action)
            assert np.abs(own[0] - np.array(env.state)).max() < 1e-12
            assert bool(ended[0]) == over


def probability(model: PPO, state: np.ndarray) -> np.ndarray:
    """Of the action 1, in rows of states."""
    with torch.no_grad():
        found = model.policy.get_distribution(torch.from_numpy(state.astype(np.float32)))
        return found.distribution.probs[:, 1].numpy()


def roll_out(model: PPO, start: np.ndarray, episodes: int, seed: int) -> np.ndarray:
    """Returns [state, episode] of the policy with drawn actions."""
    rng, state = np.random.default_rng(seed), np.repeat(start.astype(np.float64), episodes, axis=0)
    total, alive = np.zeros(len(state)), np.arange(len(state))
    for k in range(HORIZON):
        total[alive] += GAMMA**k
        state, over = move(state, rng.random(len(state)) < probability(model, state))
        state, alive = state[~over], alive[~over]
        if not alive.size:
            break
    return total.reshape(len(start), episodes)


def compare(seed: int, s: Settings) -> str:
    """Train, fit, roll out; a row of the table."""
    began = time.perf_counter()
    model = PPO("MlpPolicy", "CartPole-v1", seed=seed, device="cpu").learn(s.training)
    how = {"deterministic": False, "envs": 16}
    stream = rv.experience.from_gymnasium("CartPole-v1", model, steps=s.steps, seed=1, **how)
    critic = rv.deep.fit(stream, gamma=GAMMA, hidden=(128, 128), members=s.members)
    other = rv.experience.from_gymnasium("CartPole-v1", model, steps=16_384, seed=2, **how)
    seen = np.concatenate([chunk["state"] for chunk in other.chunks()])
    places = seen[np.random.default_rng(0).choice(len(seen), s.places, replace=False)]
    returns = roll_out(model, places, s.episodes, seed=3)
    value, std = critic.value(places), critic.std(places)
    truth, rough = spread(returns), spread(returns[:, : s.few])
    held = np.mean(np.abs(returns - value[:, None]) <= 2 * std[:, None])
    ratio, error = distance(std, truth)
    right = (abs(ratio - 1) <= CLOSE, error <= TYPICAL, HELD[0] <= held <= HELD[1])
    few_ratio, few_error = distance(std, rough)
    length = s.steps / max(critic.about.episodes, 1)
    verdict = "holds" if all(right) else "fails"
    return (
        f"| {seed} | {length:.0f} | {truth.mean():.2f} | {ratio:.3f} | {error:.3f} | {held:.3f} | "
        f"{verdict}, {time.perf_counter() - began:.0f} s | {few_ratio:.3f} | {few_error:.3f} | "
        f"{distance(rough, truth)[1]:.3f} |"
    )


def spread(returns: np.ndarray) -> np.ndarray:
    """Standard deviation of the returns from each place."""
    return returns.std(axis=1, ddof=1)


def distance(std: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Ratio of the means, and the median relative error; a place without spread counts as wrong."""
    error = np.full(len(truth), np.inf)
    np.divide(np.abs(std - truth), truth, out=error, where=truth > 0)
    return float(std.mean() / truth.mean()), float(np.median(error))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    for name, default in vars(Settings()).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = vars(parser.parse_args())
    seeds, first = given.pop("seeds"), given.pop("first")
    torch.set_num_threads(1)
    verify()
    print(HEAD)
    for seed in range(first, first + seeds):
        print(compare(seed, Settings(**given)), flush=True)


if __name__ == "__main__":
    main()
