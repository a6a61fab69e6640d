"""resting_error(): the error that learners with constant steps keep for ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retvar.curves.expected_curves import Readout
from retvar.curves.problems import Problem, problems_of
from retvar.curves.recursion import Recursion
from retvar.curves.triangular import Triangle
from retvar.errors import InputError
from retvar.exact import stationary_distribution
from retvar.exact.stationary import transitions
from retvar.format import number
from retvar.learners import Learner
from retvar.mdp import MDP
from retvar.mdp.weighted_edges import check_mdp
from retvar.networks import MEAN, VALUE, VARIANCE
from retvar.simulation.results import exact_answers, settings_of
from retvar.simulation.run import features_of_nodes, labelled_learners, policy_name
from retvar.version import __version__

if TYPE_CHECKING:
    import xarray

__all__ = ["refuse_unstable", "resting_error"]

Array = NDArray[np.float64]
STEP_NAMES = {VALUE: "alpha", MEAN: "alpha_mean", VARIANCE: "alpha_bar"}
MOST_UNKNOWNS = 150_000
LEAST_SCALE = 1e-4  # of the steps, in the search for the largest stable ones
DIGITS = 1e-3  # relative accuracy of that search


def resting_error(
    mdp: MDP,
    learners: Learner | Sequence[Learner] | Mapping[str, Learner],
    *,
    target: object = None,
    behaviour: object = None,
    features: Any = None,
    value_features: Any = None,
    mean_features: Any = None,
    truth: bool = True,
) -> xarray.Dataset:
    """Compute the exact mean, spread and mean squared error of learners at rest.

    With constant steps the estimates never settle; their distribution does. If the chain of states
    is periodic (episodes of equal length, say), it settles only at equal times of the period, and
    the averages over a period are given.

    Parameters
    ----------
    mdp, learners, target, behaviour, features, value_features, mean_features, truth
        As in :func:`~retvar.expected_curve`.

    Returns
    -------
    xarray.Dataset
        As from :func:`~retvar.expected_curve`, without time, and ``radius``: the mean-square
        radius, the largest modulus of an eigenvalue of the recursion beside those of the chain of
        states. Below 1, what the start has left fades by this factor a step in the long run.
        States that are not visited for ever have NaN. The attribute ``period`` is that of the
        chain of states.

    Raises
    ------
    InputError
        If the mean square is unstable (a radius of 1 or more), with the largest stable steps.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = [M(alpha=0.1, alpha_bar=0.05) for M in (rv.Direct, rv.VTD)]
    >>> rest = rv.resting_error(rv.domains.chain(lam=1.0), learners)
    >>> rest.variance.sel(state="s3").values  # 1 ± α/(2−α)
    array([1.05263158, 0.94736842])
    """
    import xarray

    check_mdp(mdp)
    labelled = labelled_learners(learners)
    actor = target if behaviour is None else behaviour
    share = stationary_distribution(mdp, actor)
    nodes = features_of_nodes(mdp, features, value_features, mean_features)
    problems = problems_of(mdp, list(labelled.values()), nodes, (target, behaviour), truth)
    found = [_rest(problem, share) for problem in problems]
    names = list(dict.fromkeys(name for rest in found for name in rest))
    dims = ("learner", "state")
    variables: dict[str, Any] = {
        name: (dims, np.array([rest.get(name, np.full(mdp.n_states, np.nan)) for rest in found]))
        for name in names
        if name != "radius"
    }
    variables["radius"] = ("learner", np.array([rest["radius"] for rest in found]))
    templates = [problem.setup.template for problem in problems]
    variables |= exact_answers(problems[0].truth, templates, np.arange(mdp.n_states))
    states = mdp.state_names or range(mdp.n_states)
    coords = {"learner": list(labelled), "state": list(states)}
    attributes = {
        "mdp": mdp.name or repr(mdp),
        "target": policy_name(mdp, target),
        "behaviour": policy_name(mdp, actor),
        "period": _period(mdp, actor, share),
        "retvar": __version__,
    }
    return xarray.Dataset(variables, coords | settings_of(list(labelled.values())), attributes)


def _rest(problem: Problem, share: Array) -> dict[str, Any]:
    """Estimates at rest of one learner, by name, and the radius."""
    kept = np.flatnonzero(share > 0)
    recursion, initial = problem.recursion(kept)
    if recursion.unknowns > MOST_UNKNOWNS:
        remedy = f"must be at most {MOST_UNKNOWNS:,} at rest; use expected_curve with many steps"
        raise InputError("unknowns", f"{recursion.unknowns:,}", remedy)
    triangle = Triangle(recursion, recursion.operator)
    refuse_unstable(problem, recursion, triangle.radius)
    known = np.outer(share[kept], initial).ravel()  # right where nothing learns
    x = triangle.solve(np.zeros(recursion.unknowns), known)
    found: dict[str, Any] = {}
    for name, array in Readout(problem, recursion, kept).of(recursion.moments(x)).items():
        found[name] = np.full(share.size, np.nan)
        found[name][kept] = array
    return {**found, "radius": triangle.radius}


def refuse_unstable(problem: Problem, recursion: Recursion, radius: float) -> None:
    """Raise an InputError with the largest stable steps if the mean square grows."""
    if radius < 1:
        return
    places = [p for p in recursion.network.places if problem.steps[p] > 0]
    steps = ", ".join(f"{STEP_NAMES[p]}={number(problem.steps[p])}" for p in places)
    scale = _stable_scale(problem, recursion)
    remedy = "no smaller steps in this proportion are stable either"
    if scale > 0:
        largest = ", ".join(f"{STEP_NAMES[p]}={number(scale * problem.steps[p])}" for p in places)
        remedy = f"in this proportion the largest stable steps are about {largest}"
    raise InputError(
        "learner",
        f"{type(problem.learner).__name__}({steps})",
        f"the mean square is unstable (radius {radius:.6g}); {remedy}; use expected_curve for a "
        "finite time",
    )


def _stable_scale(problem: Problem, recursion: Recursion) -> float:
    """The largest factor of all steps with which the mean square is stable, 0 if there is none."""

    def stable(scale: float) -> bool:
        nodes = {
            place: type(node)(scale * node.step, node.table, node.offset, node.basis, node.shift)
            for place, node in recursion.nodes.items()
        }
        scaled = Recursion(recursion.network, nodes, recursion.edges, recursion.start)
        return Triangle(scaled, scaled.operator).radius < 1

    low, high = LEAST_SCALE, 1.0
    if not stable(low):
        return 0.0
    while high / low > 1 + DIGITS:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if stable(middle) else (low, middle)
    return low


def _period(mdp: MDP, policy: object, share: Array) -> int:
    """The greatest common divisor of the lengths of all cycles of recurrent states."""
    P = transitions(mdp, policy)
    n = mdp.n_states
    starts = np.flatnonzero(P[[n]].toarray().ravel())
    follows = []
    for s in range(n):
        direct = P.indices[P.indptr[s] : P.indptr[s + 1]]
        follows.append([*direct[direct < n].tolist(), *(starts.tolist() if n in direct else ())])
    first = int(np.argmax(share))
    level, ahead, period = {first: 0}, [first], 0
    while ahead:
        s = ahead.pop()
        for after in follows[s]:
            if after in level:
                period = int(np.gcd(period, abs(level[s] + 1 - level[after])))
            else:
                level[after] = level[s] + 1
                ahead.append(after)
    return period
