"""A clinic's log: what a stay costs from each state, and how far a single one may stray.

Patients are mild, severe or critical. Every day one of two treatments is chosen, and costs. The
log has the probability with which it was chosen. Some patients are transferred before they are
discharged, some costs are missing, some rows were sent twice, and rows come in the order of the
days, not of the patients. A small MDP makes it, so that the exact answer is known::

    python examples/clinic.py visits.csv clinic.png
"""

import csv
import sys

import numpy as np
from matplotlib.figure import Figure

import retvar as rv

CHOSEN = {"mild": 0.1, "severe": 0.5, "critical": 0.9}  # probability of the intensive treatment
PRICE = {"standard": 1.0, "intensive": 3.0}  # a day, in thousands; it varies by a quarter
CARE = {"mild": 0.0, "severe": 1.0, "critical": 4.0}  # what else a day costs
NEXT = {  # probabilities of mild, severe, critical, discharged
    ("mild", "standard"): (0.55, 0.10, 0.00, 0.35),
    ("mild", "intensive"): (0.50, 0.05, 0.00, 0.45),
    ("severe", "standard"): (0.25, 0.50, 0.25, 0.00),
    ("severe", "intensive"): (0.50, 0.40, 0.10, 0.00),
    ("critical", "standard"): (0.00, 0.30, 0.60, 0.10),
    ("critical", "intensive"): (0.00, 0.50, 0.45, 0.05),
}


def clinic() -> rv.MDP:
    """The MDP behind the log; its reward is the negated cost."""
    edges = []
    for (state, treatment), chances in NEXT.items():
        price = PRICE[treatment] + CARE[state]
        for after, chance in zip([*CARE, "end"], chances, strict=True):
            if chance:
                edges.append((state, treatment, after, chance, -price, price / 4))
    return rv.MDP.from_edges(edges, gamma=1.0, states=list(CARE), actions=list(PRICE))


def as_policy(intensive: dict[str, float]) -> dict[str, dict[str, float]]:
    """A policy, from the probability of the intensive treatment in each state."""
    return {s: {"standard": 1 - p, "intensive": p} for s, p in intensive.items()}


def visits(patients: int, seed: int) -> list[list]:
    """Rows of the log: patient, day, state, treatment, its probability, cost, discharged."""
    rng, rows = np.random.default_rng(seed), []
    for patient in range(patients):
        state, day = str(rng.choice(list(CARE), p=(0.5, 0.4, 0.1))), int(rng.integers(300))
        while state != "end":
            p = CHOSEN[state]
            treatment = "intensive" if rng.random() < p else "standard"
            p = p if treatment == "intensive" else 1 - p
            price = PRICE[treatment] + CARE[state]
            cost = f"{rng.normal(price, price / 4):.3f}" if rng.random() > 0.01 else ""
            after = str(rng.choice([*CARE, "end"], p=NEXT[state, treatment]))
            row = [f"P{patient:04}", day, state, treatment, f"{p:.1f}", cost, int(after == "end")]
            rows += [row] * (2 if rng.random() < 0.005 else 1)
            if rng.random() < 0.03:
                break  # transferred: nobody knows how it went on
            state, day = after, day + 1
    return sorted(rows, key=lambda row: row[1])


def write(path: str, patients: int, seed: int = 1) -> None:
    """Write the log as a CSV file."""
    rows = visits(patients, seed)
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["patient", "day", "state", "treatment", "p", "cost", "discharged"])
        table.writerows(rows)
    print(f"{path}: {len(rows):,} rows of {patients:,} patients")


def draw(found: rv.Estimate, truth: rv.Solution) -> Figure:
    """Cost of a stay from each state: learned with 90% intervals, and exact."""
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, what, sign in zip(panels, ("value", "std"), (-1, 1), strict=True):
        for i, state in enumerate(CARE):
            number = getattr(found.at(state), what)
            low, high = sorted((sign * number.low, sign * number.high))
            axes.plot([i, i], [low, high], color="#0072B2", lw=6, alpha=0.35, solid_capstyle="butt")
            axes.plot(i, sign * number.estimate, "o", color="#0072B2", ms=5)
        exact = sign * getattr(truth, what)
        axes.plot(range(len(CARE)), exact, "_", color="#D55E00", ms=22, mew=1.8)
        axes.set_xticks(range(len(CARE)), list(CARE))
        axes.set_xlim(-0.5, len(CARE) - 0.5)
        axes.set_ylim(0, None)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("thousands")
    panels[0].set_title("expected cost of the rest of the stay", fontsize=10)
    panels[1].set_title("its standard deviation", fontsize=10)
    figure.supxlabel("Dot and bar: from the log, 90%. Orange: exact.", fontsize=8)
    return figure


def main(path: str = "visits.csv", plot: str | None = None, patients: int = 1_500) -> None:
    """Write the log; with `plot`, estimate from it, and compare with the exact answer."""
    write(path, patients)
    if plot is None:
        return
    log = rv.experience.from_table(
        path, entity="patient", time="day", cost="cost", terminated="discharged"
    )
    found, truth = rv.estimate(log, gamma=1.0), rv.solve(clinic(), as_policy(CHOSEN))
    print(found.summary())
    print("\nexact value:", truth.value.round(2), "\nexact std:  ", truth.std.round(2))
    rv.plots.save(draw(found, truth), plot)


if __name__ == "__main__":
    main(*sys.argv[1:])
