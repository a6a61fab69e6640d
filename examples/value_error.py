"""The exact effect of an error of the value function on each method: the figure of the README."""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import retvar as rv

COLOURS = {"direct": "#0072B2", "vtd": "#D55E00", "centred": "#009E73"}
NAMES = {"direct": "direct", "vtd": "VTD", "centred": "centred"}
MARKS = {"direct": "o", "vtd": "s", "centred": "D"}


def corners(n: int) -> np.ndarray:
    """All sign patterns; their mean equals that over independent errors, since V is quadratic."""
    return np.array(np.meshgrid(*[[-1.0, 1.0]] * n)).reshape(n, -1).T


def mean_bias(method: str, mdp: rv.MDP, ratio: float) -> np.ndarray:
    """Mean bias of a method if J is fixed at j plus a uniform error of ±ratio·max|j|."""
    truth = rv.solve(mdp)
    error = ratio * np.abs(truth.value).max() / np.sqrt(3) * corners(mdp.n_states)
    points = [rv.fixed_point(method, mdp, value=truth.value + e) for e in error]
    return np.mean([point.bias for point in points], axis=0)


def main() -> None:
    """Draw the mean bias of the three methods against the error of the value function."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("value_error.png"))
    out = parser.parse_args().out
    mdp = rv.domains.complex_mdp()
    ratios = np.linspace(0, 0.5, 11)
    figure = Figure(figsize=(9.0, 3.1), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    for axes, state in zip(panels, ("s1", "s2", "s3"), strict=True):
        s = mdp.state_index(state)
        for method, colour in COLOURS.items():
            bias = [mean_bias(method, mdp, ratio)[s] for ratio in ratios]
            axes.plot(
                ratios, bias, color=colour, marker=MARKS[method], ms=4, lw=1.6, label=NAMES[method]
            )
        axes.set_title(f"state {state}", fontsize=10)
        axes.axhline(0, color="0.6", lw=0.8, ls="--", zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
    panels[1].set_xlabel("error of the value function, relative to its largest value")
    panels[0].set_ylabel("mean bias of the\nvariance estimate")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=3, loc="outside upper center")
    rv.plots.save(figure, out)


if __name__ == "__main__":
    main()
