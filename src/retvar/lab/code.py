"""The Python that makes a view: runs as it is, and gives the numbers that one sees."""

from __future__ import annotations

from collections.abc import Mapping

from retvar.lab.bias import Bias
from retvar.lab.learning import Learning
from retvar.learners import Learner

__all__ = ["bias_code", "learning_code"]

LEARNING = """\
import retvar as rv

{problem}
learners = {{
{learners}
}}
data = rv.simulate(
    mdp, learners, steps={steps}, runs={runs}, seed={seed}, keep="runs", record={record}
)
now = data.sel(step={now})
variance = now.variance.mean("run")
error = ((now.variance - now.true_variance) ** 2).mean(["run", "state"]) ** 0.5
print(variance.to_pandas())
print(error.to_pandas())
"""
CURVE = """
curve = rv.expected_curve(mdp, learners, steps={steps}, record={record})  # without any run
expected = curve.sel(step={now}).variance_mse.mean("state") ** 0.5
print(expected.to_pandas())
rv.plots.save(rv.plots.learning_curves(curve), "learning.png")
"""
BIAS = """\
import numpy as np
import retvar as rv

{problem}
exact = rv.solve(mdp)
value = exact.value + {error} * abs(exact.value).max(){where}
learners = {{
{learners}
}}
for name, learner in learners.items():  # where each goes
    point = rv.fixed_point(learner.method, mdp, value=value)
    print(name, point.variance, point.bias)
data = rv.simulate(mdp, learners, steps={steps}, runs={runs}, seed={seed}, record={record})
variance = data.sel(step={now}).variance
print(variance.to_pandas())
"""


def _lines(learners: Mapping[str, Learner], *extra: str) -> str:
    """A line for each learner, with the settings that are not the default."""
    return "\n".join(
        f'    "{name}": rv.{type(learner).__name__}({", ".join([*_settings(learner), *extra])}),'
        for name, learner in learners.items()
    )


def _settings(learner: Learner) -> list[str]:
    plain = type(learner)(alpha=0.5)
    names = ("alpha", "alpha_bar", "kappa", "kappa_bar", "value")
    given = {name: getattr(learner, name) for name in names}
    return [
        f"{name}={x!r}"
        for name, x in given.items()
        if isinstance(x, float) and x != getattr(plain, name)
    ]


def _record(view: Learning | Bias) -> str:
    """When to record, so that the moment that is shown is among it."""
    s = view.settings
    return str(s.record) if view.moment else f"[0, *range({s.record}, {s.steps + 1}, {s.record})]"


def learning_code(view: Learning) -> str:
    """The simulation of the view of learning, and its exact curve where there is one.

    >>> from retvar.lab.problem import Problem
    >>> learning_code(Learning(Problem.named("chain"), step=100)).splitlines()[2]
    'mdp = rv.domains.find("chain")'
    """
    s = view.settings
    given = {"steps": s.steps, "record": _record(view), "now": view.moment * s.record}
    code = LEARNING.format(
        problem=view.problem.code, learners=_lines(s.learners()), runs=s.runs, seed=s.seed, **given
    )
    return code if view.why_no_curve() else code + CURVE.format(**given)


def bias_code(view: Bias) -> str:
    """The fixed points of the view of the bias, and its simulation.

    >>> from retvar.lab.problem import Problem
    >>> "rv.fixed_point" in bias_code(Bias(Problem.named("chain")))
    True
    """
    s = view.settings
    one = "" if s.where is None else f" * (np.arange(mdp.n_states) == {s.where})"
    plain = {name: learner.replace(value=0.0) for name, learner in view.learners().items()}
    code = BIAS.format(
        problem=view.problem.code, error=s.error, where=one, steps=s.steps, runs=s.runs,
        learners=_lines(plain, "learn_value=False", "value=value"), seed=s.seed,
        record=_record(view), now=view.moment * s.record,
    )  # fmt: skip
    return code if one else code.replace("import numpy as np\n", "", 1)
