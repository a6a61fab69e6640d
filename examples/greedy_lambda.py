"""λ-greedy on a ring world: λ per state from value and variance, against every constant λ."""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import retvar as rv

GAMMA = 0.99
LAMBDAS = (0.0, 0.4, 0.8, 0.9, 0.95, 1.0)
ALPHAS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
GREEDY = "λ-greedy"
INFORMED = "λ-greedy, truth known"


def ring(size: int, right: float) -> rv.MDP:
    """A ring with two ends side by side, +1 and −1; walks start on the opposite side."""
    edges = []
    for i in range(size):
        edges.append((i, "walk", "end" if i == size - 1 else i + 1, right, float(i == size - 1)))
        edges.append((i, "walk", "end" if i == 0 else i - 1, 1 - right, -float(i == 0)))
    return rv.MDP.from_edges(edges, gamma=GAMMA, states=size, start=size // 2)


def walk(size: int, right: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """One episode as columns."""
    states = [size // 2]
    while 0 <= states[-1] < size:
        states.append(states[-1] + (1 if rng.random() < right else -1))
    state, after = np.array(states[:-1]), np.array(states[1:])
    reward = (after == size).astype(float) - (after < 0)
    ended = (after == size) | (after < 0)
    next_state = np.where(ended, -1, after)
    return {"state": state, "reward": reward, "next_state": next_state, "terminated": ended}


def learn(how: float | str, alpha: float, truth: rv.Solution, walks: list) -> np.ndarray:
    """Values after each episode, with a constant λ, or with one chosen before each episode."""
    n = truth.value.size
    learner = rv.Direct(alpha=alpha, gamma=GAMMA, lam=1.0, kappa=0.0, kappa_bar=1.0)
    constant = how if isinstance(how, float) else None
    value = learner.replace(kappa=constant or 0.0).online(n)
    returns = learner.replace(kappa=1.0).online(n)  # mean and variance of the return
    values = np.full((len(walks), n), np.inf)
    for i, columns in enumerate(walks):
        if constant is None:  # weights go on, with other traces, which are empty between episodes
            known = (returns.value(), returns.variance())
            known = known if how == GREEDY else (truth.value, truth.variance)
            lam = rv.greedy_lam(value.value(), *known)
            value = learner.replace(kappa=lam, value=value.value()).online(n)
        try:
            value.update_many(columns)
            if how == GREEDY:
                returns.update_many(columns)
        except rv.DivergenceError:
            break
        values[i] = value.value()
    return values


def compare(size: int, right: float, runs: int, episodes: int) -> dict[str, tuple[float, float]]:
    """Mean error over states visited, episodes and runs, for the best step size of each."""
    mdp = ring(size, right)
    truth = rv.solve(mdp)
    rng = np.random.default_rng(0)
    streams = [[walk(size, right, rng) for _ in range(episodes)] for _ in range(runs)]
    visits = np.bincount(np.concatenate([w["state"] for s in streams for w in s]), minlength=size)
    share = visits / visits.sum()
    best = {}
    for how in (*LAMBDAS, GREEDY, INFORMED):
        errors = {}
        for alpha in ALPHAS:
            each = [learn(how, alpha, truth, s) - truth.value for s in streams]
            errors[alpha] = np.mean([np.sqrt(x**2 @ share).mean() for x in each])
        alpha = min(errors, key=errors.get)
        best[f"λ = {how:g}" if isinstance(how, float) else how] = errors[alpha], alpha
    return best


def main(runs: int = 20, episodes: int = 100, out: str | None = None) -> None:
    """Print a table of the errors, and draw them."""
    worlds = [(10, 0.95), (50, 0.95), (10, 0.6), (50, 0.6)]
    found = {w: compare(*w, runs, episodes) for w in worlds}
    names = list(next(iter(found.values())))
    print("error of the value, mean over", episodes, "episodes and", runs, "runs (best step size)")
    print(" " * 22, *(f"{n} states, {p:.0%} right".rjust(22) for n, p in worlds))
    for name in names:
        cells = (f"{found[w][name][0]:.4f} (α = {found[w][name][1]:g})".rjust(22) for w in worlds)
        print(name.ljust(22), *cells)
    if out:
        draw(found, names, Path(out))


def draw(found: dict, names: list[str], out: Path) -> None:
    """Errors of each world against λ."""
    figure = Figure(figsize=(9, 2.9), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True)
    for axes, ((n, p), errors) in zip(panels, found.items(), strict=True):
        constant = [errors[name][0] for name in names[: len(LAMBDAS)]]
        axes.plot(range(len(LAMBDAS)), constant, "o-", color="0.3", ms=4, label="constant λ")
        axes.set_xticks(range(len(LAMBDAS)), [f"{x:g}" for x in LAMBDAS], fontsize=8)
        for name, colour, style in ((GREEDY, "#0072B2", "-"), (INFORMED, "#D55E00", "--")):
            axes.axhline(errors[name][0], color=colour, ls=style, lw=1.6, label=name)
        axes.set_title(f"{n} states, {p:.0%} right", fontsize=10)
        axes.set_xlabel("λ")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("error of the value")
    panels[0].set_ylim(bottom=0)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=3, loc="outside upper center")
    rv.plots.save(figure, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", default="greedy_lambda.png")
    main(out=parser.parse_args().out)
