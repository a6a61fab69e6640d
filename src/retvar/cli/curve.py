"""The command for exact learning curves: curve."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from retvar.cli import base
from retvar.support.errors import InputError
from retvar.support.format import align, number
from retvar.support.progress import Display
from retvar.td.networks import DEFAULT, NETWORKS

if TYPE_CHECKING:
    import xarray

    from retvar.simulation.step_search import BestSteps

ROWS = 10  # moments in the printed table; JSON has all
STEPS = ("alpha", "alpha_bar", "alpha_mean")
REFUSED = {"rest": ("best", "steps", "episodes", "plot"), "best": ("episodes", *STEPS)}
OPTIONS: base.Options = {
    **base.DOMAIN,
    "method": ([click.Choice(list(NETWORKS))], "Method."),
    "alpha": (float, "Step size of the value."),
    "alpha_bar": (float, "Step size of the variance [default: --alpha]."),
    "alpha_mean": (float, "Centred: of the mean [default: --alpha]."),
    "steps": (int, "Number of steps."),
    "episodes": (int, "Number of episodes, instead of steps."),
    "rest": (bool, "The error that remains for ever, instead of a curve."),
    "best": (bool, "The step sizes with the least error after --steps."),
    **base.QUESTION,
    **base.JSON,
    "plot": (base.PATH, "Draw the curves (--best: contours) to a PNG, SVG or PDF."),
}


@click.command(epilog=base.DOMAIN_HELP)
@click.argument("domain")
@base.options(OPTIONS, method=[DEFAULT])
def curve(domain: str, **args: Any) -> None:
    """Compute the exact mean squared error of learners over time in DOMAIN, without simulation.

    For constant step sizes and no traces.
    """
    _refuse(args)
    question = base.question_of(args)
    mdp = base.find_domain(domain, args, args["lam"])
    import retvar as rv

    learners = _learners(args, question.pop("estimand"))
    with Display(sys.stderr) as display:
        display.start(1.0)
        if args["best"]:
            steps = {"steps": args["steps"]}
            found = {
                name: rv.best_steps(mdp, learner, **steps, **question, progress=display.advance)
                for name, learner in learners.items()
            }
            _show_best(found, args)
            return
        if args["rest"]:
            data = rv.resting_error(mdp, learners, **question)
        else:
            length = {name: args[name] for name in ("steps", "episodes")}
            data = rv.expected_curve(mdp, learners, **length, **question, progress=display.advance)
    base.show(args, _to_dict(data), _summary(data), lambda: rv.plots.learning_curves(data))


def _refuse(args: dict[str, Any]) -> None:
    """Raise an InputError for options that do not go together."""
    mode = "rest" if args["rest"] else "best" if args["best"] else ""
    for name in REFUSED.get(mode, ()):
        if args[name]:
            raise InputError(name, args[name], f"goes without --{mode}")
    if args["best"] and args["steps"] is None:
        raise InputError("steps", "missing", "--best needs the number of steps")
    if not args["best"] and args["alpha"] is None:
        raise InputError("alpha", "missing", "give the step size of the value, such as 0.1")


def _learners(args: dict[str, Any], estimand: Any) -> dict[str, Any]:
    from retvar.td.learners import LEARNERS

    found = {}
    for method in args["method"]:
        kind = LEARNERS[NETWORKS[method].title]
        steps = {name: args[name] for name in STEPS if args[name] is not None} or {"alpha": 0.1}
        if not hasattr(kind, "alpha_mean"):
            steps.pop("alpha_mean", None)
        found[method] = kind(estimand=estimand, **steps)
    return found


def _to_dict(data: xarray.Dataset) -> dict[str, Any]:
    """Coordinates and variables as lists."""
    unit = [name for name in ("step", "episode") if name in data.dims]
    names = ["learner", *unit, "state", *map(str, data.data_vars)]
    return {**data.attrs, **{name: data[name].values.tolist() for name in names}}


def _summary(data: xarray.Dataset) -> str:
    """Mean squared errors over time, summed over states, or by state at rest."""
    unit = next((name for name in ("step", "episode") if name in data.dims), "state")
    errors = {"value": data.value_mse, "variance": data.variance_mse}
    if unit != "state":
        errors = {name: each.sum("state", skipna=False) for name, each in errors.items()}
    labels = [str(label) for label in data.learner.values]
    columns = [(label, name) for label in labels for name in errors]
    rows = [[unit, *(f"{label} {name}" for label, name in columns)]]
    points = data[unit].values.tolist()
    chosen = points[:: max(1, len(points) // ROWS)] if unit != "state" else points
    for point in dict.fromkeys([*chosen, points[-1]]):
        own = [float(errors[name].sel({"learner": label, unit: point})) for label, name in columns]
        text = f"{point:,}" if unit != "state" else str(point)
        rows.append([text, *(number(x, 5) for x in own)])
    over = ", summed over states" if unit != "state" else ""
    lines = [f"mean squared error{over}", *align(rows)]
    if unit == "state":
        radii = zip(labels, data.radius.values, strict=True)
        lines += ["", *(f"{label}: mean-square radius {radius:.6f}" for label, radius in radii)]
        if data.period > 1:
            lines.append(f"averages over the period of {data.period} steps")
    return "\n".join(lines)


def _show_best(found: dict[str, BestSteps], args: dict[str, Any]) -> None:
    import retvar as rv

    plain = {
        name: {**best.steps, "error": best.error, "at_edge": list(best.at_edge)}
        for name, best in found.items()
    }
    names = [name for name in STEPS if any(name in best.steps for best in found.values())]
    rows = [["method", *names, "error"]]
    for method, best in found.items():
        own = [number(best.steps[name]) if name in best.steps else "" for name in names]
        rows.append([method, *own, number(best.error)])
    heading = f"least mean squared error of the variance after {args['steps']:,} steps"
    text = "\n".join([f"{heading}, summed over states", *align(rows)])
    base.show(args, plain, text, lambda: rv.plots.step_contours(found))
