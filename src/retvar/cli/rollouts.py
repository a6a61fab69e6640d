"""The command for Monte Carlo returns: rollouts."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import click

from retvar.cli import base, sources
from retvar.support.errors import InputError

if TYPE_CHECKING:
    from retvar.estimation.return_sample import ReturnSample

SHOWN = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles
OPTIONS: base.Options = {
    "gamma": (float, "Discount γ."),
    **sources.ACTING,
    "start": ("STATE", "Where all start: 14, or 0.0,0.1, or MODULE:FUNCTION [default: anywhere]."),
    "episodes": (click.IntRange(2), "Number of returns."),
    "max_steps": (base.ONE, "Cut episodes off after this many steps."),
    "within_limit": (bool, "The return up to the limit of steps: truncation counts as an end."),
    "precision": (float, "Run as many more episodes as the mean needs for an interval of ± this."),
    "below": (float, "Also give the probability of a return below this."),
    "level": (float, "Level of the intervals."),
    "seed": (base.COUNT, "Random seed."),
    **base.JSON,
}


@click.command(epilog="SOURCE is gymnasium:ID.")
@click.argument("source")
@base.options(OPTIONS, required=("gamma",), episodes=500, level=0.9, seed=0)
def rollouts(source: str, **args: Any) -> None:
    """Sample returns of a policy in SOURCE: mean, spread, quantiles and tail, with intervals."""
    if not source.startswith("gymnasium:"):
        raise InputError("SOURCE", source, "must be gymnasium:ID, such as gymnasium:CartPole-v1")
    sources.refuse_unknown_policy(args["policy"])
    start = _start(args["start"])
    import retvar as rv

    same = ("gamma", "episodes", "deterministic", "max_steps", "precision", "level", "seed")
    own, acting = {name: args[name] for name in same}, sources.acting(source, args, args["envs"])
    sample = rv.rollouts(
        *acting, start=start, **own,
        truncated="as_end" if args["within_limit"] else "cut_off",
    )  # fmt: skip
    below, text = args["below"], sample.summary()
    if below is not None:
        text += f"\nP(return < {below:g})  {sample.probability_below(below)}"
    base.show(args, _to_dict(sample, below), text)


def _start(text: str | None) -> Any:
    """A state, from a number or several with commas, or a function that puts it there."""
    if text is None:
        return None
    for form in (text, f"[{text}]"):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(form)
    if ":" in text:
        return sources.import_function("start", text)
    raise InputError("start", text, "must be a number, numbers such as 0.0, 0.1, or a function")


def _to_dict(sample: ReturnSample, below: float | None) -> dict[str, Any]:
    """The statistics for JSON, each as [estimate, low, high]."""
    tail = {} if below is None else {"probability_below": list(sample.probability_below(below))}
    return {
        "returns": sample.returns.tolist(),
        "cut_off": sample.cut_off,
        "within_limit": sample.within_limit,
        "largest_completed_part": sample.completed,
        "level": sample.level,
        **{name: list(getattr(sample, name)) for name in ("mean", "std", "skewness")},
        "quantiles": {f"{q:g}": list(sample.quantile(q)) for q in SHOWN},
        "cvar_0.05": list(sample.cvar(0.05)),
        **tail,
    }
