"""The command for pictures of MDPs: draw."""

from __future__ import annotations

from typing import Any

import click

from retvar.cli import base


@click.command(epilog=base.DOMAIN_HELP)
@click.argument("domain")
@click.argument("out", type=base.PATH)
@base.options(base.DOMAIN | {"policy": (None, "Draw the probabilities of this policy only.")})
def draw(domain: str, out: Any, policy: str | None, **args: Any) -> None:
    """Draw DOMAIN as a graph into OUT (PNG, SVG or PDF); many states as a matrix."""
    mdp = base.find_domain(domain, args)
    import retvar as rv

    rv.plots.save(rv.plots.draw_mdp(mdp, policy), out)
