"""The command for policies that trade mean for variance: frontier."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from retvar.cli.base import (
    DOMAIN_HELP,
    JSON,
    PATH,
    domain_options,
    find_domain,
    print_result,
    split_commas,
    to_json,
)
from retvar.errors import InputError
from retvar.progress import Display

__all__ = ["frontier"]


@click.command(epilog=DOMAIN_HELP)
@domain_options
@click.option("--start", help="Start state, a name or a number [default: the domain's].")
@click.option(
    "--penalties", default="0,0.03,0.1,0.5", show_default=True,
    help="Penalties c, separated by commas; a negative one is risk-seeking.",
)  # fmt: skip
@click.option(
    "--restarts", type=int, default=1, show_default=True,
    help="Random policies to search from, beside greedy and uniform ones.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random policies.")
@JSON
@click.option("--out", type=PATH, help="Write everything, policies too, to a JSON file.")
@click.option("--plot", type=PATH, help="Draw means, policies and returns to a PNG, SVG or PDF.")
def frontier(
    domain: str,
    gamma: float | None,
    options: tuple[str, ...],
    start: str | None,
    penalties: str,
    restarts: int,
    seed: int,
    as_json: bool,
    out: Path | None,
    plot: Path | None,
) -> None:
    """Find policies for DOMAIN with a large mean − c·variance of the return, for each penalty c.

    They are the best found. The problem is NP-hard, so better ones may exist.
    """
    mdp = find_domain(domain, gamma, options)
    import retvar as rv
    from retvar.files import write_text

    with Display(sys.stderr) as display:
        display.start(1.0)
        found = rv.frontier(
            mdp,
            start=_state(start, mdp.state_names),
            penalties=_numbers(penalties),
            restarts=restarts,
            seed=seed,
            progress=display.advance,
        )
    text = to_json({"domain": domain, **found.to_dict()})
    if plot is not None:
        rv.plots.save(rv.plots.frontier(found), plot)
    if out is not None:
        write_text(out, text + "\n")
    print_result(text if as_json else f"{mdp!r}\n\n{found}")


def _state(text: str | None, names: tuple[str, ...] | None) -> object:
    """A state by name, or by number if that is no name."""
    if text is None or (names and text in names):
        return text
    try:
        return int(text)
    except ValueError:
        return text


def _numbers(text: str) -> list[float]:
    """Numbers between commas."""
    try:
        return [float(part) for part in split_commas(text) or ()]
    except ValueError:
        raise InputError("penalties", text, "must be numbers separated by commas") from None
