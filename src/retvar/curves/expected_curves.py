"""expected_curve(): exact learning curves, in the form of a simulation's dataset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retvar.curves.problems import Problem, problems_of
from retvar.curves.recursion import Recursion
from retvar.curves.triangular import Triangle
from retvar.errors import InputError
from retvar.format import literal
from retvar.learners import Learner
from retvar.mdp import MDP
from retvar.mdp.weighted_edges import check_mdp
from retvar.simulation.record import Record, record_of
from retvar.simulation.results import exact_answers, settings_of
from retvar.simulation.run import (
    features_of_nodes,
    labelled_learners,
    length_of,
    policy_name,
    recorded_states,
    refuse_endless,
)
from retvar.version import __version__

if TYPE_CHECKING:
    import xarray

__all__ = ["Readout", "expected_curve"]

log = logging.getLogger("retvar")
Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_SOLVED = 20_000  # unknowns of the linear system of an episode
MOST_STEPS = 10_000_000
ROUNDING = 1e-13  # share of the terms of a mean square below which a variance is rounding
CLOCK = 64  # steps between two looks at the progress
MOST_DENSE = 400  # monomials of which the map from episode to episode is made once


def expected_curve(
    mdp: MDP,
    learners: Learner | Sequence[Learner] | Mapping[str, Learner],
    *,
    steps: int | None = None,
    episodes: int | None = None,
    record: Any = None,
    target: object = None,
    behaviour: object = None,
    features: Any = None,
    value_features: Any = None,
    mean_features: Any = None,
    truth: bool = True,
    progress: Callable[[float], None] | None = None,
) -> xarray.Dataset:
    """Compute the exact mean, spread and mean squared error of each estimate over time.

    What :func:`~retvar.simulate` tends to with infinitely many runs: with constant steps and
    without traces, expectations of products of weights obey a closed linear recursion.

    Parameters
    ----------
    mdp, learners, target, behaviour, features, value_features, mean_features, truth
        As in :func:`~retvar.simulate`. Steps must be constant and traces off.
    steps, episodes
        Length of a run: give one of the two. Episodes need a linear system for each, of at most
        20,000 unknowns.
    record
        When: a number, a list, ``"log"`` or a :class:`~retvar.Record`, as in `simulate`.
    progress
        A function that receives the fraction done.

    Returns
    -------
    xarray.Dataset
        ``value`` and ``variance``, ``mean`` for centred learners and ``second_moment`` for VTD: the
        expectation, with ``_std``, the standard deviation over runs, and ``_mse``, the mean squared
        error; ``true_value`` and ``true_variance``. The mean and the second moment are compared
        with those of the λ-return that bootstraps from true values.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = [M(alpha=0.1, alpha_bar=0.05) for M in (rv.Direct, rv.VTD)]
    >>> data = rv.expected_curve(rv.domains.chain(), learners, steps=2_000, record=[20, 2_000])
    >>> data.variance_mse.sum("state").values.round(4)
    array([[12.4641,  0.4465],
           [14.8264,  2.7905]])
    """
    import xarray

    check_mdp(mdp)
    labelled = labelled_learners(learners)
    total, by_step = length_of(mdp, steps, episodes)
    recorded = record_of(record)
    _refuse_options(recorded)
    moments, states = recorded.moments(total), recorded_states(mdp, recorded)
    if by_step and total > MOST_STEPS:
        remedy = f"must be at most {MOST_STEPS:,}; use resting_error"
        raise InputError("steps", f"{total:,}", remedy)
    actor = target if behaviour is None else behaviour
    if not by_step:
        refuse_endless(mdp, actor, episodes)
    if progress is not None and not callable(progress):
        raise InputError("progress", literal(progress), "must be a function of the share done")
    nodes = features_of_nodes(mdp, features, value_features, mean_features)
    problems = problems_of(mdp, list(labelled.values()), nodes, (target, behaviour), truth)
    curves = []
    for number, problem in enumerate(problems):

        def report(share: float, number: int = number) -> None:
            if progress is not None:
                progress((number + share) / len(problems))

        curves.append(_curve(problem, moments, by_step, report))
    unit = "step" if by_step else "episode"
    variables = _variables(problems, curves, unit, states)
    coords = {
        "learner": list(labelled),
        unit: moments,
        "state": [mdp.state_name(int(s)) for s in states] if mdp.state_names else states,
        **settings_of(list(labelled.values())),
    }
    attributes = {
        "mdp": mdp.name or repr(mdp),
        "steps" if by_step else "episodes": total,
        "target": policy_name(mdp, target),
        "behaviour": policy_name(mdp, actor),
        "exact": 1,
        "retvar": __version__,
    }
    return xarray.Dataset(variables, coords, attributes)


class Readout:
    """Mean, standard deviation and mean squared error of all estimates, from moments."""

    def __init__(self, problem: Problem, recursion: Recursion, states: Integers) -> None:
        value, variance = (x[states] for x in problem.truth.of(problem.setup.template))
        truths = {"value": value, "mean": value, "second_moment": variance + value**2}
        self.truths, self.rows = {}, {}
        for name, polynomials in recursion.estimates().items():
            true = truths.get(name, variance)
            reference = np.nan_to_num(true, posinf=0.0)
            off = [p - float(r) for p, r in zip(polynomials, reference, strict=True)]
            self.truths[name] = (true, reference)
            self.rows[name] = recursion.rows(off), recursion.rows([p * p for p in off])

    def of(self, moments: Array) -> dict[str, Array]:
        """Mean, std and mse of each estimate, by name."""
        found = {}
        for name, (first, second) in self.rows.items():
            true, reference = self.truths[name]
            off, square = first @ moments, second @ moments
            spread = square - off**2
            spread[spread < ROUNDING * (abs(second) @ np.abs(moments))] = 0.0
            found[name] = off + reference
            found[f"{name}_std"] = np.sqrt(spread)
            found[f"{name}_mse"] = np.where(np.isfinite(true), square, np.nan)
        return found


def _curve(
    problem: Problem, moments: Integers, by_step: bool, report: Callable[[float], None]
) -> dict[str, Array]:
    """Estimates [moment, state] of one learner, by name."""
    recursion, initial = problem.recursion()
    _warn_if_unstable(problem, recursion)
    readout = Readout(problem, recursion, np.arange(recursion.states))
    rows = []
    last = int(moments[-1])
    with np.errstate(over="ignore", invalid="ignore"):
        if not by_step and initial.size <= MOST_DENSE:
            rows = [readout.of(now) for now in _leaps(recursion, initial, moments)]
        else:
            path = _stepped(recursion, initial) if by_step else _by_episode(recursion, initial)
            wanted = set(moments.tolist())
            for t, now in enumerate(path):
                if t in wanted:
                    rows.append(readout.of(now()))
                if t % CLOCK == 0:
                    report(t / last if last else 1.0)
                if t == last:
                    break
    found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    spreads = [found[f"{name}_std"] for name in readout.rows]
    finite = np.isfinite(spreads).all(axis=(0, 2))
    if not finite.all():
        first = int(moments[np.argmin(finite)])
        log.warning("the mean square is too large for a number from moment %s on", f"{first:,}")
        for array in found.values():
            array[~finite] = np.nan
    return found


def _stepped(recursion: Recursion, initial: Array) -> Iterator[Callable[[], Array]]:
    """Moments after each step, from step 0 on."""
    operator, x = recursion.operator, recursion.begin(initial)
    while True:
        yield lambda: recursion.moments(x)  # noqa: B023
        x = operator @ x


def _by_episode(recursion: Recursion, initial: Array) -> Iterator[Callable[[], Array]]:
    """Moments after each episode."""
    after, now = _episode(recursion), initial
    while True:
        yield lambda: now  # noqa: B023
        now = after(now)


def _leaps(recursion: Recursion, initial: Array, moments: Integers) -> Iterator[Array]:
    """Moments after some numbers of episodes: powers of the map from episode to episode."""
    after, now = _episode(recursion), initial
    whole = np.stack([after(unit) for unit in np.eye(initial.size)], axis=1)
    powers: dict[int, Array] = {}
    for gap in np.diff(moments, prepend=0).tolist():
        if gap not in powers:
            powers[gap] = np.linalg.matrix_power(whole, gap)
        now = powers[gap] @ now
        yield now


def _episode(recursion: Recursion) -> Callable[[Array], Array]:
    """The moments at the end of an episode, summed over all its lengths, from those before it."""
    if recursion.unknowns > MOST_SOLVED:
        raise InputError(
            "episodes",
            f"{recursion.unknowns:,} unknowns",
            f"must be at most {MOST_SOLVED:,} for a linear system in each episode; give steps",
        )
    stay, end = np.split(np.arange(recursion.walked.shape[0]), [recursion.unknowns])
    within = Triangle(recursion, recursion.walked[stay])
    if within.radius >= 1:
        remedy = "the mean square at the end of an episode is infinite; use smaller steps"
        raise InputError("episodes", f"a radius of {within.radius:.6g}", remedy)
    last = recursion.walked[end]
    return lambda now: np.asarray(last @ within.solve(recursion.begin(now)))


def _warn_if_unstable(problem: Problem, recursion: Recursion) -> None:
    """Warn if the mean square of the weights grows without bound."""
    if contracts(recursion):
        return
    radius = Triangle(recursion, recursion.operator).radius
    if radius > 1 + 1e-9:
        log.warning(
            "%s is unstable: its mean square grows by a factor of %.6g a step in the long run",
            type(problem.learner).__name__,
            radius,
        )


def contracts(recursion: Recursion) -> bool:
    """Whether no update of a table moves a weight beyond its target: a cheap sign of stability."""
    for node in recursion.network.nodes:
        own = recursion.nodes[node.place]
        if np.any((own.table != 0).sum(axis=1) > 1) or np.any((own.table != 0) & (own.table != 1)):
            return False
        for edge in recursion.edges:
            weight = edge.rho if node.by_rho else edge.rho_bar
            discount = edge.eta * edge.gamma * edge.lam
            if own.step * weight > 1 or discount > 1:
                return False
    return True


def _variables(
    problems: list[Problem], curves: list[dict[str, Array]], unit: str, states: Integers
) -> dict[str, Any]:
    """All variables of the dataset; NaN where a learner has no such node."""
    names = list(dict.fromkeys(name for curve in curves for name in curve))
    shape = (len(curves), *next(iter(curves[0].values())).shape)
    found: dict[str, Any] = {}
    for name in sorted(names, key=lambda name: (not name.startswith("va"), names.index(name))):
        table = np.full(shape, np.nan)
        for k, curve in enumerate(curves):
            if name in curve:
                table[k] = curve[name]
        found[name] = (("learner", unit, "state"), table[..., states])
    templates = [problem.setup.template for problem in problems]
    return found | exact_answers(problems[0].truth, templates, states)


def _refuse_options(record: Record) -> None:
    """Raise an InputError for what only a simulation records."""
    for name in ("window", "change", "rmse", "step_sizes"):
        if getattr(record, name):
            remedy = "is recorded by simulate only"
            raise InputError(f"record.{name}", getattr(record, name), remedy)
