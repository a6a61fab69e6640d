"""The command line. Only this package prints; heavy imports wait until a command needs them."""

from __future__ import annotations

import click

from retvar import __version__
from retvar.cli import curve, estimate, frontier, lab, reproduce, rollouts, solve, sweep
from retvar.cli.base import EXIT_STATUSES, Commands

__all__ = ["main"]

HELP = {"help_option_names": ["-h", "--help"]}


@click.group(cls=Commands, context_settings=HELP, epilog=EXIT_STATUSES)
@click.version_option(__version__, message="retvar %(version)s")
def main() -> None:
    """Mean and variance of returns: exact, simulated, or estimated from experience."""


for command in (
    solve.solve,
    solve.draw,
    curve.curve,
    frontier.frontier,
    estimate.estimate,
    rollouts.rollouts,
    reproduce.experiments,
    reproduce.reproduce,
    sweep.sweep,
    lab.lab,
):
    main.add_command(command)
