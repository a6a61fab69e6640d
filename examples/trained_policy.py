"""Value and spread of a policy that Stable-Baselines3 has trained, against roll-outs.

    pip install "retvar[sb3]"
    python examples/trained_policy.py

PPO learns CartPole and Pendulum for a short time. Its returns are estimated from 100,000 steps,
with its most probable actions and with random ones: two different questions. From some of the
visited places, roll-outs give the truth. Last comes the gain of asking the model for all
environments at once.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from stable_baselines3 import PPO

import retvar as rv
from retvar.estimation.rollouts import observed

WORLDS = {"CartPole-v1": (0.98, 700, 30_000), "Pendulum-v1": (0.95, 280, 60_000)}
# γ, the step from which on nothing counts, steps of training
ENVS = 32  # side by side
LEAST, DIGITS = 0.05, 1e-3  # true std from which on ratios are taken; differences that do not count


def train(name: str, steps: int) -> Any:
    """A policy, trained briefly."""
    settings = {"n_steps": 1_024, "gae_lambda": 0.95, "gamma": 0.9} if "Pend" in name else {}
    return PPO("MlpPolicy", name, seed=0, device="cpu", **settings).learn(steps)


def compare(
    name: str, model: Any, deterministic: bool, steps: int, places: int, episodes: int
) -> np.ndarray:
    """Print how far estimates are from roll-outs; stds of estimates and of roll-outs."""
    gamma, horizon, _ = WORLDS[name]
    how = {"envs": ENVS, "deterministic": deterministic}
    stream = rv.experience.from_gymnasium(name, model, steps=steps, seed=1, **how)
    found = rv.estimate(stream, gamma=gamma, by="least_squares")
    other = rv.experience.from_gymnasium(name, model, steps=4_096, seed=2, **how)
    seen = np.concatenate([chunk["state"] for chunk in other.chunks()])
    rows = []
    for row in np.random.default_rng(0).choice(len(seen), places, replace=False):
        state = seen[row].tolist()
        sample = rv.rollouts(
            name, model, gamma=gamma, start=observed(state), max_episode_steps=horizon,
            episodes=2 if deterministic else episodes, seed=3, truncated="as_end",
            **how | {"envs": 1 if deterministic else ENVS},
        )  # fmt: skip
        answer = found.at(state)
        low, mean, high = (
            answer.value.low - DIGITS,
            sample.returns.mean(),
            answer.value.high + DIGITS,
        )
        rows.append([answer.value.estimate, mean, answer.std.estimate,
                     sample.returns.std(ddof=1), low <= mean <= high])  # fmt: skip
    value, mean, std, spread, inside = np.array(rows, dtype=float).T
    known = np.isfinite(value) & np.isfinite(std)
    varied = known & (spread > LEAST)
    ratios = std[varied] / spread[varied]
    text = f"median std {np.median(std[known]):.2f} for {np.median(spread[known]):.2f}"
    if ratios.size:
        low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95])
        text += f", std/truth {middle:.2f} ({low:.2f}–{high:.2f})"
    print(f"{name}, {stream.policy}: {text}")
    print(
        f"  value: median {np.median(mean):.1f}, median error "
        f"{np.median(np.abs(value - mean)[known]):.2f}; {int(inside.sum())} of {places} intervals "
        f"hold the mean; {places - int(known.sum())} places without an answer"
    )
    return np.array([std, spread])


def draw(found: dict[str, dict[str, np.ndarray]]) -> Figure:
    """Estimated std at some places against that of roll-outs from there."""
    figure = Figure(figsize=(6.6, 3.2), layout="constrained")
    styles = {"most probable actions": ("s", "0.45"), "drawn actions": ("o", "#0072B2")}
    for axes, (name, kinds) in zip(figure.subplots(1, 2), found.items(), strict=True):
        for kind, (std, spread) in kinds.items():
            marker, colour = styles[kind]
            axes.plot(spread, std, marker, color=colour, ms=5, alpha=0.8, label=kind)
        axes.axline((0, 0), slope=1, color="0.5", lw=0.8, ls="--", zorder=0)
        axes.set(title=name, xlabel="std of roll-outs from a place")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("estimated std")
    figure.axes[0].legend(frameon=False)
    return figure


def speed(model: Any, steps: int) -> None:
    """Print how much faster batches are."""
    seconds = []
    for envs in (1, ENVS):
        start = time.perf_counter()
        stream = rv.experience.from_gymnasium("CartPole-v1", model, envs=envs, steps=steps)
        for _ in stream.chunks():
            pass
        seconds.append(time.perf_counter() - start)
    print(f"{steps:,} steps of CartPole: {ENVS} environments are {seconds[0] / seconds[1]:.1f} "
          "times as fast as one")  # fmt: skip


def main(
    steps: int = 100_000,
    places: int = 20,
    episodes: int = 200,
    training: int = 0,
    plot: str | None = None,
) -> None:
    """Train, estimate, roll out."""
    torch.set_num_threads(1)
    models = {name: train(name, training or WORLDS[name][2]) for name in WORLDS}
    kinds = {"most probable actions": True, "drawn actions": False}
    found = {
        name: {
            kind: compare(name, model, how, steps, places, episodes) for kind, how in kinds.items()
        }
        for name, model in models.items()
    }
    speed(models["CartPole-v1"], steps // 5)
    if plot is not None:
        rv.plots.save(draw(found), plot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--places", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--training", type=int, default=0)
    parser.add_argument("--plot", help="a file for the figure")
    main(**vars(parser.parse_args()))
