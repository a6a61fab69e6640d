"""The command for exact learning curves: curve."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import (
    DOMAIN_HELP,
    ESTIMAND,
    JSON,
    OPTION,
    PATH,
    find_domain,
    print_result,
    to_json,
)
from retvar.errors import InputError
from retvar.networks import DEFAULT, NETWORKS
from retvar.progress import Display

if TYPE_CHECKING:
    import xarray

    from retvar.curves import BestSteps

__all__ = ["curve"]

ROWS = 10  # moments in the printed table; JSON has all
STEPS = ("alpha", "alpha_bar", "alpha_mean")


@click.command(epilog=DOMAIN_HELP)
@click.argument("domain")
@click.option(
    "--method", "methods", multiple=True, type=click.Choice(list(NETWORKS)),
    help=f"Method; may be repeated [default: {DEFAULT}].",
)  # fmt: skip
@click.option("--alpha", type=float, help="Step size of the value.")
@click.option("--alpha-bar", type=float, help="Step size of the variance [default: --alpha].")
@click.option("--alpha-mean", type=float, help="Centred: of the mean [default: --alpha-bar].")
@click.option("--steps", type=int, help="Number of steps.")
@click.option("--episodes", type=int, help="Number of episodes, instead of steps.")
@click.option("--rest", is_flag=True, help="The error that remains for ever, instead of a curve.")
@click.option("--best", is_flag=True, help="The step sizes with the least error after --steps.")
@click.option("--gamma", type=float, help="Discount γ; required for Gymnasium tables.")
@click.option("--lam", type=float, help="λ of the return [default: the domain's].")
@click.option("--target", help="Target policy.")
@click.option("--behaviour", help="Behaviour policy [default: the target policy].")
@ESTIMAND
@OPTION
@JSON
@click.option("--plot", type=PATH, help="Draw the curves (--best: contours) to a PNG, SVG or PDF.")
def curve(domain: str, **args: Any) -> None:
    """Compute the exact mean squared error of learners over time in DOMAIN, without simulation.

    For constant step sizes and no traces.
    """
    _refuse(args)
    mdp = find_domain(domain, args["gamma"], args["options"])
    import retvar as rv

    if args["lam"] is not None:
        mdp = mdp.replace(lam=args["lam"])
    policies = {"target": args["target"], "behaviour": args["behaviour"]}
    learners = _learners(args)
    with Display(sys.stderr) as display:
        display.start(len(learners))
        if args["best"]:
            found = {}
            for k, (name, learner) in enumerate(learners.items()):
                report = partial(_report, display, k, 1)
                found[name] = rv.best_steps(
                    mdp, learner, steps=args["steps"], progress=report, **policies
                )
            return _show_best(found, args)
        report = partial(_report, display, 0, len(learners))
        if args["rest"]:
            data = rv.resting_error(mdp, learners, **policies)
        else:
            length = {"steps": args["steps"], "episodes": args["episodes"]}
            data = rv.expected_curve(mdp, learners, progress=report, **length, **policies)
    if args["plot"] is not None:
        rv.plots.save(rv.plots.learning_curves(data), args["plot"])
    return print_result(to_json(_to_dict(data)) if args["as_json"] else _summary(data))


def _report(display: Display, before: int, learners: int, share: float) -> None:
    display.advance(before + learners * share)


def _refuse(args: dict[str, Any]) -> None:
    """Raise an InputError for options that do not go together."""
    if args["rest"] and args["best"]:
        raise InputError("best", "with --rest", "give one of the two")
    if args["best"] and args["steps"] is None:
        raise InputError("--steps", "missing", "--best needs the number of steps")
    if args["best"] and args["episodes"] is not None:
        raise InputError("episodes", args["episodes"], "--best takes --steps")
    if args["rest"] and (args["steps"] is not None or args["episodes"] is not None):
        raise InputError("rest", "with a length", "give --rest, --steps or --episodes")
    if args["rest"] and args["plot"] is not None:
        raise InputError("plot", args["plot"], "goes with --steps, --episodes or --best")
    given = [name for name in STEPS if args[name] is not None]
    if args["best"] and given:
        raise InputError(given[0], args[given[0]], "is found by --best; leave it out")
    if not args["best"] and args["alpha"] is None:
        raise InputError("--alpha", "missing", "give the step size of the value, such as 0.1")


def _learners(args: dict[str, Any]) -> dict[str, Any]:
    from retvar.learners import LEARNERS

    found = {}
    for method in args["methods"] or (DEFAULT,):
        kind = LEARNERS[NETWORKS[method].title]
        steps = {name: args[name] for name in STEPS if args[name] is not None} or {"alpha": 0.1}
        if not hasattr(kind, "alpha_mean"):
            steps.pop("alpha_mean", None)
        found[method] = kind(estimand=args["estimand"].replace("-", "_"), **steps)
    return found


def _to_dict(data: xarray.Dataset) -> dict[str, Any]:
    """Coordinates and variables as lists."""
    unit = next((name for name in ("step", "episode") if name in data.dims), None)
    names = ["learner", *([unit] if unit else []), "state", *map(str, data.data_vars)]
    return {**data.attrs, **{name: data[name].values.tolist() for name in names}}


def _summary(data: xarray.Dataset) -> str:
    """Mean squared errors over time, summed over states, or by state at rest."""
    from retvar.format import align, number

    errors = {"value": data.value_mse, "variance": data.variance_mse}
    labels = [str(label) for label in data.learner.values]
    columns = [(label, name) for label in labels for name in errors]
    rows = [["", *(f"{label} {name}" for label, name in columns)]]
    unit = next((name for name in ("step", "episode") if name in data.dims), "state")
    if unit != "state":
        errors = {name: each.sum("state", skipna=False) for name, each in errors.items()}
    points = data[unit].values
    chosen = points[:: max(1, len(points) // ROWS)] if unit != "state" else points
    for point in dict.fromkeys([*chosen.tolist(), points[-1].item()]):
        own = [float(errors[name].sel({"learner": label, unit: point})) for label, name in columns]
        text = f"{point:,}" if unit != "state" else str(point)
        rows.append([text, *(number(x, 5) for x in own)])
    rows[0][0] = unit
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
    from retvar.format import align, number

    if args["plot"] is not None:
        rv.plots.save(rv.plots.step_contours(found), args["plot"])
    if args["as_json"]:
        answer = {
            name: {**best.steps, "error": best.error, "at_edge": list(best.at_edge)}
            for name, best in found.items()
        }
        return print_result(to_json(answer))
    names = [name for name in STEPS if any(name in best.steps for best in found.values())]
    rows = [["method", *names, "error"]]
    for method, best in found.items():
        own = [number(best.steps[name]) if name in best.steps else "" for name in names]
        rows.append([method, *own, number(best.error)])
    lines = [f"least mean squared error of the variance after {args['steps']:,} steps"]
    lines[0] += ", summed over states"
    return print_result("\n".join([*lines, *align(rows)]))
