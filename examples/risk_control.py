"""An actor–critic that learns calmer policies, on a windy cliff and in four rooms."""

import argparse

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize

import retvar as rv

MOVES = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}
ROOMS = (
    "###########",
    "#    #    #",
    "#  S      #",
    "#    #    #",
    "#    #    #",
    "## #### ###",
    "#    #    #",
    "#    #    #",
    "#         #",
    "#    #   G#",
    "###########",
)
DOOR, HARM, CHANCE, SLIP = (2, 5), -15.0, 0.1, 0.1


def four_rooms() -> rv.MDP:
    """Four rooms, −1 a step; the short way leads through a door that may cost 15 more."""
    free = [(r, c) for r, row in enumerate(ROOMS) for c, x in enumerate(row) if x != "#"]
    (start,) = (cell for cell in free if ROOMS[cell[0]][cell[1]] == "S")
    name = {cell: f"{cell[0]},{cell[1]}" for cell in free}
    goal = next(cell for cell in free if ROOMS[cell[0]][cell[1]] == "G")
    edges = []
    for cell in free:
        if cell == goal:
            continue
        for action in MOVES:
            for move, (up, right) in MOVES.items():
                p = SLIP / 4 + (1 - SLIP) * (move == action)
                there = (cell[0] + up, cell[1] + right)
                there = there if there in name else cell
                outcomes = [(p, -1.0)]
                if there == DOOR != cell:
                    outcomes = [(p * (1 - CHANCE), -1.0), (p * CHANCE, -1.0 + HARM)]
                ends = "end" if there == goal else name[there]
                edges += [(name[cell], action, ends, q, r) for q, r in outcomes]
    states = [name[cell] for cell in free if cell != goal]
    return rv.MDP.from_edges(
        edges, gamma=0.99, start=name[start], states=states, actions=list(MOVES)
    )


def learned(mdp: rv.MDP, begin: rv.Policy, penalty: float, episodes: int, seed: int) -> rv.Policy:
    """The policy after some episodes from `begin`; nothing but experience is used."""
    critic = rv.Direct(alpha=0.1, gamma=0.99, lam=1.0)
    agent = rv.ActorCritic(
        critic, mdp.available, states=mdp.n_states, policy=begin, penalty=penalty, alpha=0.2,
        seed=seed,
    )  # fmt: skip
    agent.train(mdp, episodes)
    return agent.policy


def climbed(mdp: rv.MDP, begin: rv.Policy, penalty: float) -> rv.Policy:
    """Where the exact gradient leads from the same policy, by L-BFGS on softmax parameters."""

    def policy(x: np.ndarray) -> np.ndarray:
        theta = x.reshape(mdp.n_states, mdp.n_actions)
        weights = np.exp(theta - theta.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = rv.policy_gradient(mdp, policy(x))
        slope = at.softmax.mean - penalty * at.softmax.variance
        return penalty * at.return_variance - at.return_mean, -slope.ravel()

    found = minimize(loss, np.log(begin.probabilities).ravel(), jac=True, method="L-BFGS-B")
    return rv.Policy(policy(found.x))


def exactly(mdp: rv.MDP, policy: rv.Policy) -> tuple[float, float]:
    """Mean and std of the return from the start."""
    found = rv.policy_gradient(mdp, policy)
    return found.return_mean, found.return_variance**0.5


def shown(mdp: rv.MDP, policies: list[rv.Policy], penalty: float) -> str:
    """Mean ± std, exactly, of the policy with the median score, and the range of scores."""
    found = [rv.policy_gradient(mdp, policy) for policy in policies]
    scores = [x.return_mean - penalty * x.return_variance for x in found]
    middle = found[int(np.argsort(scores)[len(scores) // 2])]
    text = f"{middle.return_mean:8.3f} ± {middle.return_variance**0.5:.3f}"
    return f"{text}  [{min(scores):.2f} … {max(scores):.2f}]"


def draw(worlds: dict[str, dict[str, list[tuple[float, float]]]]) -> Figure:
    """Mean against spread, exactly, of all policies in each world."""
    styles = {"begin": ("X", "0.4"), "learned": ("o", "#0072B2"), "best found": ("D", "#D55E00")}
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    for axes, (name, kinds) in zip(figure.subplots(1, 2), worlds.items(), strict=True):
        for kind, points in kinds.items():
            mean, std = np.array(points).T
            marker, colour = styles[kind]
            axes.plot(std, mean, marker, color=colour, ms=6, alpha=0.8, label=kind)
        axes.set(title=name, xlabel="standard deviation of the return")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("mean of the return")
    figure.axes[0].legend(frameon=False)
    return figure


def main(
    episodes: int = 4_000,
    seeds: int = 3,
    penalties: tuple[float, ...] = (0, 0.1, 0.5),
    plot: str | None = None,
) -> None:
    """Print what is learned for each penalty, what exact ascent reaches, and the frontier."""
    drawn = {}
    for name, mdp in (("windy cliff", rv.domains.windy_cliff()), ("four rooms", four_rooms())):
        begin = rv.Policy.epsilon_greedy(mdp, 0.2)
        print(f"{name}: mean ± std from the start  [mean − c × variance, {seeds} seeds]")
        best = rv.frontier(mdp, penalties=penalties)
        print(f"begin, 0.2-greedy    {shown(mdp, [begin], 0.0)}")
        kinds = {"begin": [exactly(mdp, begin)], "learned": [], "best found": []}
        drawn[name] = kinds
        for c, point in zip(penalties, best.points, strict=True):
            policies = [learned(mdp, begin, c, episodes, seed) for seed in range(seeds)]
            print(f"c = {c:<5g} learned      {shown(mdp, policies, c)}")
            print(f"c = {c:<5g} exact ascent {shown(mdp, [climbed(mdp, begin, c)], c)}")
            print(f"c = {c:<5g} best found   {shown(mdp, [point.policy], c)}", flush=True)
            kinds["learned"] += [exactly(mdp, policy) for policy in policies]
            kinds["best found"].append(exactly(mdp, point.policy))
    if plot is not None:
        rv.plots.save(draw(drawn), plot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("episodes", type=int, nargs="?", default=4_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plot", help="a file for the figure")
    given = parser.parse_args()
    main(given.episodes, given.seeds, plot=given.plot)
