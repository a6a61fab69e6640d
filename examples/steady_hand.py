"""How firmly should a controller correct? Mean against spread of the return, exactly.

A camera hangs on a motor. Gusts turn it away, the motor turns it back with a force u = −Kx, and
trembles a little; deviations and forces cost. The gain with the best mean is that of the Riccati
equation. A firmer one costs more on average, and a single flight strays less from that average:
`LinearGaussian` knows both numbers for every gain, so that one can be traded for the other.
"""

import sys

import numpy as np
import scipy.linalg
import scipy.optimize
from matplotlib.figure import Figure

import retvar as rv

GAMMA, STEP = 0.98, 0.2
MOTION = np.array([[1.0, STEP], [0.0, 1.0]])  # angle and its speed
FORCE = np.array([[STEP**2 / 2], [STEP]])
GUSTS, TREMBLING = np.diag([0.0, 0.05]), 0.2
ANGLE_COST, FORCE_COST = np.diag([1.0, 0.0]), 1.0
FACTORS = np.linspace(0.6, 2.2, 33)
MARKED = (0.7, 1.0, 1.3, 1.6, 2.0)
PENALTIES = (0.0, 0.05, 0.1, 0.2, 0.5)
CENTRE = np.zeros(2)


def camera(gain: np.ndarray) -> rv.domains.LinearGaussian:
    """The world of the policy u = −gain·x."""
    return rv.domains.LinearGaussian.controlled(
        MOTION, FORCE, gain.reshape(1, 2), S=GUSTS, Q=ANGLE_COST, R=FORCE_COST, noise=TREMBLING,
        gamma=GAMMA,
    )  # fmt: skip


def best_gain() -> np.ndarray:
    """The gain with the largest mean, from every state: the Riccati equation."""
    A, B, R = np.sqrt(GAMMA) * MOTION, np.sqrt(GAMMA) * FORCE, np.array([[FORCE_COST]])
    X = scipy.linalg.solve_discrete_are(A, B, ANGLE_COST, R)
    return np.linalg.solve(R + B.T @ X @ B, B.T @ X @ A).ravel()


def calm_gain(penalty: float, start: np.ndarray) -> np.ndarray:
    """The gain with the largest mean − penalty × variance found, from the centre."""

    def loss(gain: np.ndarray) -> float:
        try:
            world = camera(gain)
        except rv.InputError:  # not stable
            return np.inf
        return penalty * world.variance(CENTRE) - world.value(CENTRE)

    return scipy.optimize.minimize(loss, start, method="Nelder-Mead").x


def returns(world: rv.domains.LinearGaussian, walks: int, steps: int = 400) -> np.ndarray:
    """Sampled returns from the centre; the value stands for what comes after the last step."""
    states, rewards = world.sample(walks, steps, seed=1, start=CENTRE)
    return GAMMA ** np.arange(steps) @ rewards + GAMMA**steps * world.value(states[-1])


def draw(
    sweep: np.ndarray, calm: np.ndarray, samples: dict[str, np.ndarray], means: list[float]
) -> Figure:
    """Mean against spread, and sampled returns of two gains."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(
        sweep[:, 2], sweep[:, 1], color="0.6", lw=1.6, label="k times the gain with the best mean"
    )
    for k in MARKED:
        _, mean, std = sweep[np.argmin(np.abs(sweep[:, 0] - k))]
        left.plot(std, mean, "o", color="0.4", ms=4)
        left.annotate(f"k = {k:g}", (std, mean), (8, 3), textcoords="offset points", color="0.3")
    left.plot(calm[:, 2], calm[:, 1], "s-", color="#d55e00", ms=4, label="best found for a penalty")
    left.set_xlabel("standard deviation of the return")
    left.set_ylabel("mean of the return")
    left.legend(frameon=False, loc="lower right")
    low = min(np.quantile(sample, 0.001) for sample in samples.values())
    edges = np.linspace(low, 0.0, 45)
    colours = ("0.4", "#d55e00")
    for (name, sample), colour, mean in zip(samples.items(), colours, means, strict=True):
        right.hist(sample, edges, density=True, histtype="step", color=colour, lw=1.6, label=name)
        right.axvline(mean, color=colour, lw=1, ls="--")
    right.set_xlabel("return of one flight (dashed: exact mean)")
    right.set_yticks([])
    right.legend(frameon=False, loc="upper left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(walks: int = 20_000, plot: str | None = None) -> None:
    """Print what each gain earns and how much it varies, and draw it."""
    best = best_gain()
    sweep = np.array([(k, w.value(CENTRE), w.std(CENTRE))
                      for k in FACTORS for w in [camera(k * best)]])  # fmt: skip
    gains = [calm_gain(penalty, best) for penalty in PENALTIES]
    worlds = [camera(gain) for gain in gains]
    calm = np.array([(c, w.value(CENTRE), w.std(CENTRE))
                     for c, w in zip(PENALTIES, worlds, strict=True)])  # fmt: skip
    print(f"from the centre, γ = {GAMMA:g}; {walks:,} flights sampled\n")
    print("penalty           gain    mean    std  sampled mean, std   worst 1%")
    sampled = [returns(world, walks) for world in worlds]
    for (c, mean, std), gain, found in zip(calm, gains, sampled, strict=True):
        print(
            f"{c:7g}  {gain[0]:5.3f}, {gain[1]:5.3f}  {mean:6.2f}  {std:5.2f}"
            f"      {found.mean():6.2f}, {found.std():5.2f}  {np.quantile(found, 0.01):9.1f}"
        )
    (_, fast, wide), (_, slow, narrow) = calm[0], calm[-1]
    print(
        f"\nThe calmest gain found costs {slow / fast - 1:.0%} more than the best on average, and "
        f"varies {1 - narrow / wide:.0%} less."
    )
    if plot is not None:
        shown = {"best mean": sampled[0], f"penalty {PENALTIES[-1]:g}": sampled[-1]}
        rv.plots.save(draw(sweep, calm, shown, [fast, slow]), plot)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3])
