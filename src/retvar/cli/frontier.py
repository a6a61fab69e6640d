"""The command for policies that trade mean for variance: frontier."""

from __future__ import annotations

import sys
from typing import Any

import click

from retvar.cli import base
from retvar.support.errors import InputError
from retvar.support.files import write_text
from retvar.support.progress import Display

OPTIONS: base.Options = {
    **base.DOMAIN,
    "start": (None, "Start state, a name or a number [default: the domain's]."),
    "penalties": (None, "Penalties c, separated by commas; a negative one is risk-seeking."),
    "restarts": (int, "Random policies to search from [default: 5; 1 beyond 150 states]."),
    "seed": (int, "Of the random policies."),
    **base.JSON,
    "out": (base.PATH, "Write everything, policies too, to a JSON file."),
    "plot": (base.PATH, "Draw means, policies and returns to a PNG, SVG or PDF."),
}


@click.command(epilog=base.DOMAIN_HELP)
@click.argument("domain")
@base.options(OPTIONS, penalties="0,0.03,0.1,0.5", seed=0)
def frontier(domain: str, **args: Any) -> None:
    """Find policies for DOMAIN with a large mean − c·variance of the return, for each penalty c.

    The variance is that of the whole return (λ = 1), whatever λ the domain has. Policies are the
    best found. The problem is NP-hard, so better ones may exist.
    """
    mdp = base.find_domain(domain, args, lam=1.0)
    import retvar as rv

    with Display(sys.stderr) as display:
        display.start(1.0)
        found = rv.frontier(
            mdp,
            start=base.state_of(args["start"], mdp),
            penalties=_numbers(args["penalties"]),
            restarts=args["restarts"],
            seed=args["seed"],
            progress=display.advance,
        )
    plain = {"domain": domain, "lam": 1.0, **found.to_dict()}
    if args["out"] is not None:
        write_text(args["out"], base.to_json(plain) + "\n")
    heading = f"{mdp!r}\nmean and std of the whole return (λ = 1)"
    base.show(args, plain, f"{heading}\n\n{found}", lambda: rv.plots.frontier(found))


def _numbers(text: str) -> list[float]:
    """Numbers between commas."""
    try:
        return [float(part) for part in base.split_commas(text) or ()]
    except ValueError:
        raise InputError("penalties", text, "must be numbers separated by commas") from None
