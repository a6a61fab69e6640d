"""The commands for known MDPs: solve and draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from retvar.cli import base
from retvar.support.format import visible

if TYPE_CHECKING:
    from retvar.exact.sampling import MonteCarlo
    from retvar.exact.solution import Solution

ROWS = 60  # of the printed table; JSON has all
RETURNS = {"target_return": "the target's return", "off_policy_return": "off-policy return"}
BOUNDS = {"exact": "", "upper bound": "at most ", "lower bound": "at least "}
OPTIONS: base.Options = {
    **base.DOMAIN,
    **base.QUESTION,
    "order": (int, "Highest moment: 3 gives the skewness, 4 also the excess kurtosis."),
    **base.JSON,
    "plot": (base.PATH, "Draw value ± std to a PNG, SVG or PDF file."),
    "law": (
        "STATE",
        "Bracket the law of the return of this STATE: quantiles, CVaR, probabilities.",
    ),
    "check": (bool, "Compare with 10,000 sampled returns from each state."),
    "why": ("STATE", "Show where the variance from this state arises; --plot draws that."),
}


@click.command(epilog=base.DOMAIN_HELP)
@click.argument("domain")
@base.options(OPTIONS, order=2)
def solve(domain: str, **args: Any) -> None:
    """Compute the exact value and variance of the λ-return in every state of DOMAIN."""
    question = base.question_of(args)
    mdp = base.find_domain(domain, args, args["lam"])
    import retvar as rv

    solution = rv.solve(mdp, **question, order=args["order"])
    sampled = rv.monte_carlo(mdp, **question) if args["check"] else None
    target = question["target"] or next(iter(mdp.policies))  # with the defaults filled in
    used = {**question, "target": target, "behaviour": question["behaviour"] or target}
    plain = {"domain": domain, **used, **_to_dict(solution, sampled)}
    text = _summary(used, solution, sampled)
    figure: Any = solution.plot
    if args["why"] is not None:
        why = solution.attribution(args["why"])
        plain["why"], text, figure = why.to_dict(), f"{text}\n\n{why}", why.plot
    if args["law"] is not None:
        found = solution.law()[base.state_of(args["law"], mdp)]
        plain["law"], text = found.to_dict(), f"{text}\n\n{found}"
        figure = found.plot
    base.show(args, plain, text, figure)


@click.command(epilog=base.DOMAIN_HELP)
@click.argument("domain")
@click.argument("out", type=base.PATH)
@base.options(base.DOMAIN | {"policy": (None, "Draw the probabilities of this policy only.")})
def draw(domain: str, out: Any, policy: str | None, **args: Any) -> None:
    """Draw DOMAIN as a graph into OUT (PNG, SVG or PDF); many states as a matrix."""
    mdp = base.find_domain(domain, args)
    import retvar as rv

    rv.plots.save(rv.plots.draw_mdp(mdp, policy), out)


def _to_dict(solution: Solution, sampled: MonteCarlo | None) -> dict[str, Any]:
    mdp = solution.mdp
    answer = {
        "lam": mdp.lam.tolist(),
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
        fields = ("mean", "mean_stderr", "variance", "variance_stderr")
        answer["sampled"] = {name: getattr(sampled, name).tolist() for name in fields}
    return answer


def _summary(used: dict[str, str], solution: Solution, sampled: MonteCarlo | None) -> str:
    from retvar.exact.solution import format_radius

    below = " (below 1: the variance is finite)" if solution.spectral_radius < 1 else ""
    lines = [
        repr(solution.mdp),
        f"target {visible(used['target'])}, behaviour {visible(used['behaviour'])}: "
        f"{RETURNS[used['estimand']]}",
        "",
        solution.summary(ROWS),
        "",
        f"spectral radius of B: {BOUNDS[solution.radius_kind]}"
        f"{format_radius(solution.spectral_radius)}{below}",
        f"solved by {', '.join(dict.fromkeys(solution.solvers))}; "
        f"residual {solution.residual:.1e}, relative error at most {solution.error:.0e}",
    ]
    if sampled is not None:
        lines.append(_comparison(solution, sampled))
    return "\n".join(lines)


def _comparison(solution: Solution, sampled: MonteCarlo) -> str:
    """How far sampled returns are from the solution, over all states with finite variance."""
    found = [abs(z[z == z]) for z in sampled.z(solution)]
    largest = [
        f"{z.max():.1f} in the {name}" if z.size else f"none in the {name}"
        for name, z in zip(("mean", "variance"), found, strict=True)
    ]
    return (
        f"{sampled.samples:,} sampled returns from each state: largest deviations in standard "
        f"errors {', '.join(largest)} (among {sum(z.size for z in found):,} comparisons)"
    )
