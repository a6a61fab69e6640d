"""Learn value and standard deviation of the return on FrozenLake online; compare with the truth.

The policy is uniformly random, and a centred estimator is updated with every transition. Gymnasium
distinguishes termination (a hole, the goal) from truncation (the time limit), and so does retvar.
"""

import sys

import gymnasium
import numpy as np
from matplotlib.figure import Figure

import retvar as rv

GAMMA, LAM = 0.95, 0.9
STEPS = 800_000


def draw(estimator: rv.OnlineEstimator, truth: rv.Solution, visits: list[int]) -> Figure:
    """Value ± std of each visited state, learned and exact."""
    figure = Figure(figsize=(6.6, 2.9), layout="constrained")
    axes = figure.subplots()
    states = np.flatnonzero(visits)
    places = np.arange(states.size)
    for shift, colour, name, source in (
        (-0.14, "#0072B2", "learned online", (estimator.value(), estimator.std())),
        (0.14, "#D55E00", "exact", (truth.value, truth.std)),
    ):
        value, std = (np.asarray(numbers)[states] for numbers in source)
        axes.errorbar(places + shift, value, std, fmt="o", color=colour, ms=4, lw=1.4, label=name)
    axes.axhline(0, color="0.7", lw=0.8, zorder=0)
    axes.set_xticks(places, [str(s) for s in states])
    axes.set(xlabel="state", ylabel="return, ± one standard deviation")
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(steps: int = STEPS, plot: str | None = None) -> None:
    """Print the estimate and the exact solution of each visited state."""
    env = gymnasium.make("FrozenLake-v1", is_slippery=True)
    truth = rv.solve(rv.MDP.from_gymnasium(env, gamma=GAMMA, lam=LAM), "uniform")
    estimator = rv.Centred(alpha=rv.Decay(power=0.7), gamma=GAMMA, lam=LAM).online(
        states=int(env.observation_space.n)
    )
    env.action_space.seed(1)
    visits = [0] * len(truth.value)
    state, _ = env.reset(seed=1)
    for _ in range(steps):
        next_state, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        estimator.update(state, reward, next_state, terminated=terminated, truncated=truncated)
        visits[state] += 1
        state = env.reset()[0] if terminated or truncated else next_state

    print(estimator)
    print("state   visits       learned value ± std             exact value ± std")
    for s, count in enumerate(visits):
        if count:
            learned = f"{estimator.value(s):.5f} ± {estimator.std(s):.5f}"
            exact = f"{truth.value[s]:.5f} ± {truth.std[s]:.5f}"
            print(f"{s:5}  {count:7,}  {learned:>26}  {exact:>28}")
    if plot is not None:
        rv.plots.save(draw(estimator, truth, visits), plot)


if __name__ == "__main__":
    main(*(int(x) if x.isdigit() else x for x in sys.argv[1:]))
