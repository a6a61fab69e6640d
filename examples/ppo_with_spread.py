"""PPO in one file, with a variance head: value ± standard deviation of the return.

    pip install "retvar[deep]"
    python examples/ppo_with_spread.py --steps 40000

Proximal policy optimisation on CartPole as in single-file implementations, and three parts of
`retvar.deep` for networks of one's own. `spread_targets` gives the targets of the value and of the
variance, both along the rollout; with κ = GAE's λ the former less the value is GAE's advantage.
`VarianceHead` is the last layer of the variance network, `spread_loss` is what both are fitted by.
The variance network has an optimiser of its own, so that PPO learns as it does without.

Each line: the mean length of recent episodes, and value ± std of the return from the start. Last
come fresh returns of the policy as it is then, and how many are within two std of the value.
"""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.distributions import Categorical

import retvar as rv
from retvar.deep import VarianceHead, spread_loss, spread_targets

GAMMA, KAPPA = 0.98, 0.95
ENVS, LENGTH = 4, 256  # environments side by side, steps of a rollout
EPOCHS, BATCH, RATE, CLIP, ENTROPY = 8, 256, 1e-3, 0.2, 0.01
TYPICAL = 100.0  # variance that the head begins with


def body(width: int) -> list[nn.Module]:
    """Hidden layers."""
    return [nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]


class Agent(nn.Module):
    """A policy, a value network and a variance network."""

    def __init__(self, width: int, actions: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(*body(width), nn.Linear(64, actions))
        self.critic = nn.Sequential(*body(width), nn.Linear(64, 1), nn.Flatten(-2))
        self.spread = nn.Sequential(*body(width), VarianceHead(64, TYPICAL))

    def policy(self, x: torch.Tensor) -> Categorical:
        """The distribution of actions."""
        return Categorical(logits=self.actor(x))


def make_envs() -> gym.vector.SyncVectorEnv:
    """Environments that are reset within the last step of an episode."""
    made = [lambda: gym.make("CartPole-v1")] * ENVS
    return gym.vector.SyncVectorEnv(made, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def rollout(
    envs: gym.vector.SyncVectorEnv, agent: Agent, x: np.ndarray, steps: int
) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Columns [time, environment] of what happens in so many steps, and where it ends."""
    rows = []
    for _ in range(steps):
        now = torch.as_tensor(x)
        with torch.no_grad():
            action = agent.policy(now).sample()
        x, reward, terminated, truncated, info = envs.step(action.numpy())
        after = x.copy()
        for i in np.flatnonzero(terminated | truncated):
            after[i] = info["final_obs"][i]  # not the first observation of the next episode
        rest = (torch.as_tensor(np.array(a)) for a in (after, reward, terminated, truncated))
        rows.append((now, action, *rest))
    names = ("x", "action", "after", "reward", "terminated", "truncated")
    return dict(zip(names, map(torch.stack, zip(*rows, strict=True)), strict=True)), x


def targets(agent: Agent, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What PPO, the value and the variance are to be fitted to."""
    with torch.no_grad():
        value, variance = agent.critic(data["x"]), agent.spread(data["x"])
        next_value, next_variance = agent.critic(data["after"]), agent.spread(data["after"])
        log_prob = agent.policy(data["x"]).log_prob(data["action"])
    value_target, variance_target = spread_targets(
        data["reward"].float(), value, next_value, variance, next_variance, gamma=GAMMA,
        terminated=data["terminated"], truncated=data["truncated"], kappa=KAPPA,
    )  # fmt: skip
    found = {
        "x": data["x"], "action": data["action"], "log_prob": log_prob, "value": value_target,
        "variance": variance_target, "advantage": value_target - value,
    }  # fmt: skip
    return {name: column.flatten(0, 1) for name, column in found.items()}


def update(agent: Agent, data: dict[str, torch.Tensor], optimisers: list[torch.optim.Adam]) -> None:
    """Some epochs of steps towards the targets."""
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(data["x"])).split(BATCH):
            part = {name: column[rows] for name, column in data.items()}
            advantage = part["advantage"]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy = agent.policy(part["x"])
            ratio = torch.exp(policy.log_prob(part["action"]) - part["log_prob"])
            gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            loss = -gain.mean() - ENTROPY * policy.entropy().mean()
            loss = loss + 0.5 * spread_loss(agent.critic(part["x"]), part["value"])
            spread = agent.spread(part["x"])
            relative = 1 / (TYPICAL * (spread.detach() + 1e-3 * TYPICAL))
            loss = loss + spread_loss(spread, part["variance"], relative)
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*agent.actor.parameters(), *agent.critic.parameters()], 0.5)
            for optimiser in optimisers:
                optimiser.step()


def episodes(data: dict[str, torch.Tensor]) -> tuple[torch.Tensor, np.ndarray]:
    """First observations and returns of the episodes that begin and end in a rollout."""
    found = []
    over = (data["terminated"] | data["truncated"]).numpy()
    for i in range(over.shape[1]):
        ends = np.flatnonzero(over[:, i])
        for first, last in zip(ends[:-1] + 1, ends[1:], strict=True):
            reward = data["reward"][first : last + 1, i].numpy()
            total = float((reward * GAMMA ** np.arange(len(reward))).sum())
            found.append((data["x"][first, i], total))
    return torch.stack([x for x, _ in found]), np.array([total for _, total in found])


def draw(history: list[tuple[int, float, float]], returns: np.ndarray) -> Figure:
    """Value ± std of the start during the training, and fresh returns at its end."""
    figure = Figure(figsize=(6.6, 3.0), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    steps, value, std = np.array(history).T
    left.fill_between(steps, value - std, value + std, color="#0072B2", alpha=0.2, lw=0)
    left.plot(steps, value, "o-", color="#0072B2", ms=4, lw=1.6)
    left.set(xlabel="steps of training", ylabel="value ± std from the start")
    right.hist(returns, np.linspace(0, 1 / (1 - GAMMA), 26), orientation="horizontal", color="0.6")
    right.errorbar(
        right.get_xlim()[1] / 2, value[-1], std[-1], fmt="o", color="#0072B2", lw=2, capsize=4
    )
    right.set(xlabel="fresh returns", xticks=[])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(steps: int = 40_000, seed: int = 0, plot: str | None = None) -> None:
    """Train, and compare with fresh returns."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    envs, began = make_envs(), time.perf_counter()
    x, _ = envs.reset(seed=seed)
    agent = Agent(x.shape[1], int(envs.single_action_space.n))
    optimisers = [
        torch.optim.Adam([*agent.actor.parameters(), *agent.critic.parameters()], lr=RATE),
        torch.optim.Adam(agent.spread.parameters(), lr=3 * RATE),
    ]
    start = torch.zeros(1, x.shape[1])
    updates, history = steps // (ENVS * LENGTH), []
    for k in range(1, updates + 1):
        data, x = rollout(envs, agent, x, LENGTH)
        update(agent, targets(agent, data), optimisers)
        if k % max(1, updates // 10) == 0 or k == updates:
            over = int((data["terminated"] | data["truncated"]).sum())
            with torch.no_grad():
                value, std = float(agent.critic(start)), float(agent.spread(start).sqrt())
            history.append((k * ENVS * LENGTH, value, std))
            print(f"{k * ENVS * LENGTH:7,} steps, {ENVS * LENGTH / max(over, 1):5.0f} an episode: "
                  f"value {value:.1f} ± {std:.1f}")  # fmt: skip
    fresh, _ = rollout(envs, agent, x, max(8 * LENGTH, steps // 8))
    first, returns = episodes(fresh)
    with torch.no_grad():
        value, std = agent.critic(first).numpy(), agent.spread(first).sqrt().numpy()
    within = np.mean(np.abs(returns - value) <= 2 * std)
    print(f"{len(returns)} fresh returns: {returns.mean():.1f} ± {returns.std():.1f}, {within:.0%} "
          f"within two std of the value ({time.perf_counter() - began:.0f} s)")  # fmt: skip
    if plot is not None:
        rv.plots.save(draw(history, returns), plot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", help="a file for the figure")
    given = parser.parse_args()
    main(given.steps, given.seed, given.plot)
