"""A deep critic for policies that Stable-Baselines3 has trained: CartPole, Pendulum, Hopper.

    pip install "retvar[sb3]"                  # and gymnasium[mujoco] with mujoco<4 for Hopper
    python examples/deep_policies.py CartPole-v1 Pendulum-v1 Hopper-v5

PPO learns for a short time. A critic is fitted to 100,000 steps of the policy with random actions,
and compared with fresh returns. Where the environment can be put into a state, roll-outs from
some visited observations give the truth.
"""

import argparse
import time
from typing import Any

import gymnasium
import numpy as np
from matplotlib.figure import Figure
from stable_baselines3 import PPO

import retvar as rv
from retvar.estimation.rollouts import observed

WORLDS = {  # γ, steps of training, settings of PPO
    "CartPole-v1": (0.98, 30_000, {}),
    "Pendulum-v1": (0.95, 60_000, {"n_steps": 1_024, "gae_lambda": 0.95, "gamma": 0.9}),
    "Hopper-v5": (0.98, 100_000, {}),
}
ENVS = 32  # side by side


def truth(name: str, model: Any, gamma: float, place: Any, episodes: int) -> tuple[float, float]:
    """Mean and standard deviation of returns from a place; NaN where it cannot be put there."""
    try:
        sample = rv.rollouts(
            name, model, gamma=gamma, start=observed(place), episodes=episodes, envs=ENVS,
            deterministic=False, seed=3, max_episode_steps=int(np.log(1e-3) / np.log(gamma)),
            truncated="as_end",
        )  # fmt: skip
    except rv.InputError:
        return np.nan, np.nan
    return float(sample.returns.mean()), float(sample.returns.std(ddof=1))


def show(name: str, training: int | None, steps: int, places: int, episodes: int) -> np.ndarray:
    """Train, fit, compare; std with its interval and std of roll-outs [place, 4]."""
    gamma, usual, settings = WORLDS[name]
    training = usual if training is None else training
    model = PPO("MlpPolicy", name, seed=0, device="cpu", **settings).learn(training)

    def stream(n: int, seed: int) -> rv.experience.Experience:
        how = {"envs": ENVS, "deterministic": False}
        return rv.experience.from_gymnasium(name, model, steps=n, seed=seed, **how)

    before = time.perf_counter()
    critic = rv.deep.fit(stream(steps, 1), gamma=gamma, hidden=(128, 128), members=3)
    print(f"\n{critic}", *critic.warnings, sep="\n")
    print(f"steps and fit took {time.perf_counter() - before:.0f} s")
    print(f"fresh returns: {critic.calibration(stream(steps // 2, 2))}")
    seen = critic.about.samples[:places]
    print("value      roll-outs   std   roll-outs   (intervals: how far the networks may be wrong)")
    rows = []
    for place, value, std in zip(seen, critic.value(seen), critic.std(seen), strict=True):
        mean, spread = truth(name, model, gamma, place, episodes)
        low, high = critic.interval(place, "std")
        print(f"{value:7.2f}   {mean:7.2f}   {std:7.2f} [{low:.2f}, {high:.2f}]   {spread:7.2f}")
        rows.append((std, low, high, spread))
    return np.array(rows)


def draw(found: dict[str, np.ndarray]) -> Figure:
    """Std of the critic, with intervals, against that of roll-outs from the same place."""
    figure = Figure(figsize=(3.4 * len(found), 3.2), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(found)))
    for axes, (name, rows) in zip(panels, found.items(), strict=True):
        std, low, high, spread = rows.T
        axes.vlines(spread, low, high, color="#0072B2", lw=4, alpha=0.35)
        axes.plot(spread, std, "o", color="#0072B2", ms=5)
        axes.axline((0, 0), slope=1, color="0.5", lw=0.8, ls="--", zorder=0)
        axes.set(title=name, xlabel="std of roll-outs from a place", xlim=(0, None), ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("std of the critic, 90%")
    return figure


def main(
    *names: str,
    training: int | None = None,
    steps: int = 100_000,
    places: int = 8,
    episodes: int = 200,
    plot: str | None = None,
) -> None:
    """Show each environment."""
    found = {}
    for name in names or ("CartPole-v1", "Pendulum-v1"):
        gymnasium.spec(name)
        found[name] = show(name, training, steps, places, episodes)
    if plot is not None:
        rv.plots.save(draw(found), plot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--training", type=int, help="steps of PPO")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--places", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--plot", help="a file for the figure")
    given = vars(parser.parse_args())
    main(*given.pop("names"), **given)
