"""The command for Monte Carlo returns: rollouts."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import JSON, OPTION, key_values, print_result, to_json
from retvar.cli.sources import (
    acting_options,
    load_policy,
    make_stoppable,
    option_names,
    refuse_unknown_policy,
    with_options,
)
from retvar.errors import InputError, RetvarError
from retvar.reading import parse_json
from retvar.signals import current

if TYPE_CHECKING:
    from retvar.estimation.return_sample import ReturnSample

__all__ = ["rollouts"]

EPISODES = 500
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@click.command(epilog="SOURCE is gymnasium:ID.")
@click.argument("source")
@click.option("--gamma", type=float, required=True, help="Discount γ.")
@acting_options
@click.option(
    "--start", metavar="STATE",
    help="State that every episode starts in, such as 14 or 0.0,0.1 "
    "[default: where the environment starts].",
)  # fmt: skip
@click.option(
    "--episodes", type=click.IntRange(2), default=EPISODES, show_default=True,
    help="Number of returns.",
)  # fmt: skip
@click.option("--max-steps", type=click.IntRange(1), help="Cut episodes off after this many steps.")
@click.option(
    "--within-limit", is_flag=True,
    help="The return up to the limit of steps, as evaluation scripts report it: truncation counts "
    "as an end.",
)  # fmt: skip
@click.option("--below", type=float, help="Also give the probability of a return below this.")
@click.option("--level", type=float, default=0.9, show_default=True, help="Level of the intervals.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed.")
@OPTION
@JSON
def rollouts(source: str, **args: Any) -> None:
    """Sample returns of a policy in SOURCE: mean, spread, quantiles and tail, with intervals."""
    kind, colon, name = source.partition(":")
    if kind != "gymnasium" or not colon:
        raise InputError("SOURCE", source, "must be gymnasium:ID, such as gymnasium:CartPole-v1")
    refuse_unknown_policy(args["policy"])
    start = _start(args["start"])
    with current().graceful() as stop, option_names():
        import retvar as rv

        options = key_values(args["options"])
        envs = make_stoppable(name, args["envs"], options, stop)
        policy = load_policy(args["policy"] or "random", name, args["gamma"], options)
        try:
            sample = rv.rollouts(
                envs, policy, gamma=args["gamma"], start=start, episodes=args["episodes"],
                deterministic=args["deterministic"], max_steps=args["max_steps"],
                truncated="as_end" if args["within_limit"] else "cut_off",
                level=args["level"], seed=args["seed"],
            )  # fmt: skip
        except RetvarError:
            stop.check()
            raise
    below = args["below"]
    if args["as_json"]:
        return print_result(to_json(_to_dict(sample, below)))
    lines = [with_options(sample.summary())]
    if below is not None:
        lines.append(f"P(return < {below:g})  {sample.probability_below(below)}")
    return print_result("\n".join(lines))


def _start(text: str | None) -> Any:
    """A state, from a number, a list of numbers, or numbers separated by commas."""
    if text is None:
        return None
    for form in (text, f"[{text}]"):
        with contextlib.suppress(InputError):
            return parse_json(form, "--start")
    raise InputError("--start", text, "must be a number, or numbers such as 0.0, 0.1")


def _to_dict(sample: ReturnSample, below: float | None) -> dict[str, Any]:
    """The statistics for JSON, each as [estimate, low, high]."""
    found: dict[str, Any] = {
        "returns": sample.returns.tolist(),
        "cut_off": sample.cut_off,
        "within_limit": sample.within_limit,
        "largest_missing_part": sample.missing,
        "level": sample.level,
        "mean": list(sample.mean),
        "std": list(sample.std),
        "skewness": list(sample.skewness),
        "quantiles": {f"{q:g}": list(sample.quantile(q)) for q in QUANTILES},
        "cvar_0.05": list(sample.cvar(0.05)),
    }
    if below is not None:
        found["probability_below"] = list(sample.probability_below(below))
    return found
