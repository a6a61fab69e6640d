"""The commands for known MDPs: solve and draw."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import (
    DOMAIN_HELP,
    ESTIMAND,
    JSON,
    PATH,
    domain_options,
    find_domain,
    options_of,
    print_note,
    print_result,
    to_json,
)
from retvar.errors import InputError
from retvar.format import visible

if TYPE_CHECKING:
    from retvar.exact import MonteCarlo, Solution
    from retvar.mdp import MDP

__all__ = ["draw", "solve"]

ROWS = 60  # of the printed table; JSON has all


@click.command(epilog=DOMAIN_HELP)
@domain_options
@click.option("--policy", help="Policy to follow: uniform, greedy or a NAME of the domain's.")
@click.option("--target", help="Target policy, if it differs from the behaviour policy.")
@click.option("--behaviour", help="Behaviour policy [default: the target policy].")
@ESTIMAND
@click.option("--lam", type=float, help="λ of the return [default: the domain's].")
@click.option(
    "--order", type=int, default=2, show_default=True,
    help="Highest moment: 3 gives the skewness, 4 also the excess kurtosis.",
)  # fmt: skip
@JSON
@click.option("--plot", type=PATH, help="Draw value ± std to a PNG, SVG or PDF file.")
@click.option("--check", is_flag=True, help="Compare with 10,000 sampled returns from each state.")
def solve(
    domain: str,
    gamma: float | None,
    options: tuple[str, ...],
    policy: str | None,
    target: str | None,
    behaviour: str | None,
    estimand: str,
    lam: float | None,
    order: int,
    as_json: bool,
    plot: Path | None,
    check: bool,
) -> None:
    """Compute the exact value and variance of the λ-return in every state of DOMAIN."""
    if policy is not None and target is not None:
        raise InputError("--policy", policy, "is the target; give --policy or --target, not both")
    mdp = find_domain(domain, gamma, options)
    import retvar as rv

    if lam is not None:
        mdp = mdp.replace(lam=lam)
    question: dict[str, Any] = {
        "target": target if policy is None else policy,
        "behaviour": behaviour,
        "estimand": estimand.replace("-", "_"),
    }
    asked = "--target" if policy is None else "--policy"
    with options_of(target=asked, behaviour="--behaviour", estimand="--estimand"):
        solution = rv.solve(mdp, **question, order=order)
    sampled = rv.monte_carlo(mdp, **question, order=order) if check else None
    if plot is not None:
        rv.plots.save(rv.plots.solution(solution), plot)
    if as_json:
        print_result(to_json(_to_dict(domain, question, solution, sampled)))
    else:
        print_result(_summary(question, solution, sampled))


@click.command(epilog=DOMAIN_HELP)
@domain_options
@click.argument("out", type=PATH)
@click.option("--policy", help="Draw the probabilities of this policy only.")
def draw(
    domain: str, gamma: float | None, options: tuple[str, ...], out: Path, policy: str | None
) -> None:
    """Draw DOMAIN as a graph into OUT (PNG, SVG or PDF)."""
    mdp = find_domain(domain, gamma, options)
    import retvar as rv
    from retvar.plots.graph import how_drawn

    with options_of(policy="--policy"):
        figure = rv.plots.draw_mdp(mdp, policy)
    rv.plots.save(figure, out)
    if note := how_drawn(mdp.n_states):
        print_note(note)


def _to_dict(
    domain: str, question: dict[str, Any], solution: Solution, sampled: MonteCarlo | None
) -> dict[str, Any]:
    mdp = solution.mdp
    answer = {
        "domain": domain,
        **_policies(question, solution.mdp),
        "lam": solution.mdp.lam.tolist(),
        "state": list(mdp.state_names or range(mdp.n_states)),
        "order": solution.order,
        **{field: getattr(solution, field).tolist() for field in (*solution.fields, "note")},
        "spectral_radius": solution.spectral_radius,
        "spectral_radius_kind": solution.radius_kind,
        "residual": solution.residual,
        "error": solution.error,
        "solvers": list(solution.solvers),
    }
    if sampled is not None:
        fields = {"mean", *solution.fields} - {"value", "std", "second_moment"}
        answer["sampled"] = {
            name: getattr(sampled, name).tolist()
            for field in solution.fields
            if field in fields
            for name in (field, f"{field}_stderr")
        }
    return answer


def _policies(question: dict[str, Any], mdp: MDP) -> dict[str, str]:
    """The policies by name, the defaults filled in, and the estimand."""
    target = question["target"] or next(iter(mdp.policies))
    behaviour = question["behaviour"] or target
    return {"target": target, "behaviour": behaviour, "estimand": question["estimand"]}


def _summary(question: dict[str, Any], solution: Solution, sampled: MonteCarlo | None) -> str:
    from retvar.exact.solution import format_radius

    mdp = solution.mdp
    bound = {"exact": "", "upper bound": "at most ", "lower bound": "at least "}
    used = _policies(question, mdp)
    return_of = {"target_return": "the target's return", "off_policy_return": "off-policy return"}
    below = " (below 1: the variance is finite)" if solution.spectral_radius < 1 else ""
    lines = [
        repr(mdp),
        f"target {visible(used['target'])}, behaviour {visible(used['behaviour'])}: "
        f"{return_of[used['estimand']]}",
        "",
        solution.summary(ROWS),
        "",
        f"spectral radius of B: {bound[solution.radius_kind]}"
        f"{format_radius(solution.spectral_radius)}{below}",
        f"solved by {', '.join(dict.fromkeys(solution.solvers))}; "
        f"residual {solution.residual:.1e}, "
        f"relative error at most {solution.error:.0e}",
    ]
    if sampled is not None:
        lines.append(_comparison(solution, sampled))
    return "\n".join(lines)


def _comparison(solution: Solution, sampled: MonteCarlo) -> str:
    """How far sampled returns are from the solution, over all states with finite moments."""
    names = ("mean", "variance", "third moment", "fourth moment")
    largest, compared = [], 0
    for name, z in zip(names, sampled.z(solution), strict=False):
        finite = abs(z[z == z])
        largest.append(
            f"{finite.max():.1f} in the {name}" if finite.size else f"none in the {name}"
        )
        compared += finite.size
    first, *rest = largest
    first = first.replace(" in the", " standard errors in the", 1)
    return (
        f"{sampled.samples:,} sampled returns from each state: largest deviation "
        f"{', '.join([first, *rest])} (among {compared:,} comparisons)"
    )
