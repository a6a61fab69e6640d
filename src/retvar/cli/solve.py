"""The commands that know an MDP: solve and draw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import options_of
from retvar.errors import InputError

if TYPE_CHECKING:
    from retvar.exact import MonteCarlo, Solution
    from retvar.mdp import MDP

__all__ = ["draw", "solve"]

ROWS = 60  # of a table for people; all are in --json
DOMAIN_HELP = "DOMAIN is chain, complex-mdp, random-walk, gymnasium:ID or FILE.toml."


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


@click.command(epilog=DOMAIN_HELP)
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
    mdp = rv.domains.find(domain, gamma=gamma, **options_of(options))
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


@click.command(epilog=DOMAIN_HELP)
@_domain_options
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--policy", help="Show the probabilities of this policy only.")
def draw(
    domain: str, gamma: float | None, options: tuple[str, ...], out: Path, policy: str | None
) -> None:
    """Draw DOMAIN as a graph into OUT (PNG, SVG or PDF)."""
    import retvar as rv

    mdp = rv.domains.find(domain, gamma=gamma, **options_of(options))
    rv.plots.save(rv.plots.draw_mdp(mdp, policy), out)


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
        "solvers": list(solution.solvers),
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
    from retvar.exact.solution import format_radius

    mdp = solution.mdp
    bound = "" if solution.radius_kind == "exact" else "at most "
    asked = _asked(question, mdp)
    return_of = {"target_return": "the target's return", "off_policy_return": "off-policy return"}
    lines = [
        repr(mdp),
        f"target {asked['target']}, behaviour {asked['behaviour']}: {return_of[asked['estimand']]}",
        "",
        solution.summary(ROWS),
        "",
        f"spectral radius of B: {bound}{format_radius(solution.spectral_radius)} (below 1: the "
        "variance is finite)",
        f"solved by {', '.join(dict.fromkeys(solution.solvers))}; "
        f"residual {solution.residual:.1e}, "
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
