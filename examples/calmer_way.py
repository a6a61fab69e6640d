"""What does a calmer policy cost? A delivery along a cliff with wind.

A robot carries parcels from one corner to the other. The direct way leads along a cliff, and now
and then the wind blows a robot over it: 20 points lost instead of some 10 steps. `frontier` finds
other ways for several penalties on the variance, `solve` says what they earn and how far a single
delivery may be from that, and sampled deliveries say how often one goes badly wrong.
"""

import sys

import numpy as np

import retvar as rv
from retvar.exact.sampling import sample_returns

WIND = 0.1
BAD = -20.0  # a delivery that earns less went badly wrong: as a rule, the robot fell


def main(deliveries: int = 20_000, plot: str | None = None) -> None:
    """Print what each way earns, how much it varies, and how often it goes badly wrong."""
    found = rv.frontier(rv.domains.windy_cliff(wind=WIND), penalties=[0, 0.03, 0.1, 0.5])
    fast = found[0]
    print(f"wind {WIND:.0%}; fall −20, each step −1; {deliveries:,} deliveries sampled\n")
    print("penalty   earns  ± one delivery  badly wrong")
    for point in found:
        returns = sample_returns(found.mdp, point.policy, samples=deliveries, seed=1)
        wrong = np.mean(returns < BAD)
        print(f"{point.penalty:7g}  {point.mean:6.2f}  {point.std:14.2f}  {wrong:11.1%}")
    calm = found[len(found) - 1]
    print(
        f"\nThe calmest way found costs {calm.mean / fast.mean - 1:.0%} more than the fastest, and "
        f"varies {1 - calm.std / fast.std:.0%} less."
    )
    if plot is not None:
        rv.plots.save(rv.plots.frontier(found), plot)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3])
