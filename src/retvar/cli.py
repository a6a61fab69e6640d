"""The command line. Only this module prints; heavy imports wait until a command needs them."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar import __version__
from retvar.errors import InputError, RetvarError
from retvar.signals import Interrupted, Stop

if TYPE_CHECKING:
    from retvar.exact import MonteCarlo, Solution
    from retvar.mdp import MDP
    from retvar.report.folder import Folder
    from retvar.report.watch import Watch

__all__ = ["main"]

ROWS = 60  # of a table for people; all are in --json
DOMAIN_HELP = "DOMAIN is chain, complex-mdp, random-walk, gymnasium:ID or FILE.toml."
KEPT = "What is finished is kept; the same command goes on from there."
FILE_HELP = "Python file with EXPERIMENTS = [...], in place of the paper's."


class _Commands(click.Group):
    """Tells expected errors in one line: exit status 2 for bad input, 1 for the rest."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RetvarError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(2 if isinstance(error, InputError) else 1)
        except Interrupted as error:
            click.echo("Interrupted.", err=True)
            sys.exit(error.status)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="retvar %(version)s")
def main() -> None:
    """How much return to expect, and how far it may stray."""


def _domain_options(command: Any) -> Any:
    """Attach what every command that takes a domain understands."""
    for option in (
        click.option(
            "--option",
            "options",
            multiple=True,
            metavar="KEY=VALUE",
            help="Setting of the domain, such as is_slippery=false or length=10; may be repeated.",
        ),
        click.option("--gamma", type=float, help="Discount; required for Gymnasium tables."),
        click.argument("domain"),
    ):
        command = option(command)
    return command


@main.command(epilog=DOMAIN_HELP)
@_domain_options
@click.option("--policy", help="Policy to follow: uniform, greedy or a NAME of the domain's.")
@click.option("--target", help="Policy asked about, if experience comes from another.")
@click.option("--behaviour", help="Policy that experience comes from.")
@click.option(
    "--estimand",
    default="target-return",
    show_default=True,
    help="target-return, the target's own; or off-policy-return, weighted by importance ratios.",
)
@click.option("--lam", type=float, help="λ in place of the domain's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, all states.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw value ± std: PNG, SVG or PDF.")
@click.option("--check", is_flag=True, help="Compare with sampled returns, 10,000 from each state.")
def solve(
    domain: str,
    gamma: float | None,
    options: tuple[str, ...],
    policy: str | None,
    target: str | None,
    behaviour: str | None,
    estimand: str,
    lam: float | None,
    as_json: bool,
    plot: Path | None,
    check: bool,
) -> None:
    """Exact value and variance of the λ-return in every state of DOMAIN."""
    import retvar as rv

    if policy is not None and target is not None:
        raise InputError("policy", policy, "is the target; give --policy or --target, not both")
    mdp = rv.domains.find(domain, gamma=gamma, **_parsed(options))
    if lam is not None:
        mdp = mdp.replace(lam=lam)
    question: dict[str, Any] = {
        "target": target if policy is None else policy,
        "behaviour": behaviour,
        "estimand": estimand.replace("-", "_"),
    }
    solution = rv.solve(mdp, **question)
    sampled = rv.monte_carlo(mdp, **question) if check else None
    if plot is not None:
        rv.plots.save(rv.plots.solution(solution), plot)
    if as_json:
        click.echo(json.dumps(_as_dict(domain, question, solution, sampled), ensure_ascii=False))
    else:
        click.echo(_report(question, solution, sampled))


@main.command(epilog=DOMAIN_HELP)
@_domain_options
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--policy", help="Show the probabilities of this policy only.")
def draw(
    domain: str, gamma: float | None, options: tuple[str, ...], out: Path, policy: str | None
) -> None:
    """Draw DOMAIN as a graph into OUT (PNG, SVG or PDF)."""
    import retvar as rv

    mdp = rv.domains.find(domain, gamma=gamma, **_parsed(options))
    rv.plots.save(rv.plots.draw_mdp(mdp, policy), out)


@main.command()
@click.option("--file", type=click.Path(path_type=Path), help=FILE_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the claims.")
def experiments(file: Path | None, as_json: bool) -> None:
    """List the experiments that `retvar reproduce` runs."""
    from retvar import report

    found = report.declared(file)
    if as_json:
        listed = [
            {
                "id": experiment.id,
                "title": experiment.title,
                "source": experiment.source,
                "claims": [claim.name for claim in experiment.claims],
            }
            for experiment in found
        ]
        click.echo(json.dumps({"experiments": listed}, ensure_ascii=False))
        return
    width = max(len(experiment.id) for experiment in found)
    for experiment in found:
        click.echo(f"{experiment.id:{width}}  {experiment.title}")


@main.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="reproduction",
    show_default=True,
    help="Folder of the report, its figures and data; made if it is not there.",
)
@click.option("--runs", type=click.IntRange(1), help="Runs in place of those declared.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed.")
@click.option("--methods", help="Some of direct,vtd,centred; default: all.")
@click.option(
    "--format", "formats", default="png", show_default=True, help="Of figures: png,svg,pdf."
)
@click.option("--json", "as_json", is_flag=True, help="Print claims, and rows of table-1, as JSON.")
@click.option("--force", is_flag=True, help="Compute again what is already there.")
@click.option("--file", type=click.Path(path_type=Path), help=FILE_HELP)
@click.option("--threads", type=click.IntRange(1), help="How many; default: all there are.")
def reproduce(
    ids: tuple[str, ...],
    out: Path,
    runs: int | None,
    seed: int,
    methods: str | None,
    formats: str,
    as_json: bool,
    force: bool,
    file: Path | None,
    threads: int | None,
) -> None:
    """Rerun experiments: all of them, or those with these IDs or below them.

    Writes index.html (a page that needs nothing else), report.md, figures and data. What is
    finished is kept: the same command goes on after an interruption.
    """
    with Stop() as stop:
        from retvar import report
        from retvar.report.folder import Folder
        from retvar.report.watch import compiling_told, watching

        with watching(sys.stderr, stop.check) as watch, compiling_told(watch):
            stop.last = functools.partial(_abandon, watch, Folder(out))
            try:
                found = report.reproduce(
                    ids, out, runs=runs, seed=seed, methods=_words(methods),
                    formats=_words(formats) or (), force=force, file=file, threads=threads,
                    watch=watch,
                )  # fmt: skip
            except Interrupted:
                watch.note(KEPT)
                raise
    if as_json:
        click.echo(json.dumps(found.plain(), ensure_ascii=False, allow_nan=False))
    else:
        click.echo(report.text(found, out))
    if found.problems:
        sys.exit(1)


def _abandon(watch: Watch, folder: Folder) -> None:
    watch.abandon()
    folder.tidy()
    click.echo(f"{KEPT}\nInterrupted.", err=True)


def _words(given: str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    return tuple(word.strip() for word in given.split(",") if word.strip())


def _parsed(options: tuple[str, ...]) -> dict[str, Any]:
    """``KEY=VALUE`` pairs; values are read as JSON where they can be."""
    parsed: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not key or not equals:
            raise InputError("option", option, "must be KEY=VALUE")
        if key == "gamma":
            raise InputError("option", option, "γ has a flag of its own: --gamma")
        try:
            parsed[key] = json.loads(value)
        except json.JSONDecodeError:
            parsed[key] = value
    return parsed


def _as_dict(
    domain: str, question: dict[str, Any], solution: Solution, sampled: MonteCarlo | None
) -> dict[str, Any]:
    from retvar.exact import StateSolution

    mdp = solution.mdp
    answer = {
        "domain": domain,
        **_asked(question, solution.mdp),
        "lam": solution.mdp.lam.tolist(),
        "state": list(mdp.state_names or range(mdp.n_states)),
        **{field: getattr(solution, field).tolist() for field in StateSolution._fields},
        "spectral_radius": solution.spectral_radius,
        "spectral_radius_kind": solution.radius_kind,
        "residual": solution.residual,
        "error": solution.error,
        "means": list(solution.means),
    }
    if sampled is not None:
        fields = ("mean", "mean_stderr", "variance", "variance_stderr")
        answer["sampled"] = {field: getattr(sampled, field).tolist() for field in fields}
    return answer


def _asked(question: dict[str, Any], mdp: MDP) -> dict[str, str]:
    target = question["target"] or next(iter(mdp.policies))
    behaviour = question["behaviour"] or target
    return {"target": target, "behaviour": behaviour, "estimand": question["estimand"]}


def _report(question: dict[str, Any], solution: Solution, sampled: MonteCarlo | None) -> str:
    from retvar.exact.solution import radius_text

    mdp = solution.mdp
    bound = "" if solution.radius_kind == "exact" else "at most "
    asked = _asked(question, mdp)
    return_of = {"target_return": "the target's return", "off_policy_return": "off-policy return"}
    lines = [
        repr(mdp),
        f"target {asked['target']}, behaviour {asked['behaviour']}: {return_of[asked['estimand']]}",
        "",
        solution.text(ROWS),
        "",
        f"spectral radius of B: {bound}{radius_text(solution.spectral_radius)} (below 1: the "
        "variance is finite)",
        f"solved by {', '.join(dict.fromkeys(solution.means))}; residual {solution.residual:.1e}, "
        f"relative error at most {solution.error:.0e}",
    ]
    if sampled is not None:
        z_mean, z_variance = (abs(z).max() for z in sampled.z(solution))
        lines.append(
            f"{sampled.samples:,} sampled returns from each state: largest deviation {z_mean:.1f} "
            f"standard errors in the mean, {z_variance:.1f} in the variance "
            f"(among {2 * mdp.n_states:,} comparisons)"
        )
    return "\n".join(lines)
