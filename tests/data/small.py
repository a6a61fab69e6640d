"""Experiments of one's own: a few short simulations of one shape, two of them shared."""

import retvar as rv
from retvar.paper import Claim, Experiment, Finding, Simulation


def curve(data, **options):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 2))
    ax = figure.add_subplot()
    for name, found in data.items():
        ax.plot(found.variance.isel(learner=0, state=0), label=name, **options)
    return figure


def end(data):
    (found,) = data.values()
    last = float(found.variance.isel(learner=0, state=0, episode=-1))
    return Finding(last > 0, f"<{last:.3f}>")


def simulation(number, episodes):
    mdp = rv.domains.chain(reward_std=float(number))
    learners = {"direct": rv.Direct(alpha=0.01)}
    return Simulation(f"own/{number}", mdp, learners, episodes=episodes, runs=20)


SIMULATIONS = [simulation(number, 1_000) for number in range(1, 6)]
EXPERIMENTS = [
    Experiment(
        f"own/{number}",
        f"Own <{number}> & more",
        "Learned, with “quotes” | pipes.",
        (one,),
        curve,
        {"color": "black"},
        (Claim("the variance is <positive>", end, ("direct",), "by <design>"),),
    )
    for number, one in enumerate(SIMULATIONS, 1)
]
EXPERIMENTS.append(Experiment("together", "Together", "", tuple(SIMULATIONS[:2]), curve))
EXPERIMENTS.append(Experiment("nothing", "Nothing to draw"))
