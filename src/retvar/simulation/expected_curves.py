"""Exact learning curves over time and at rest, in the form of a simulation's dataset."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order

from retvar.exact.stationary import stationary_distribution, transitions
from retvar.mdp import MDP
from retvar.simulation.curve_recursion import (
    MOST_UNKNOWNS,
    Problem,
    Recursion,
    Triangle,
    problems_of,
)
from retvar.simulation.question import Question, length_of
from retvar.simulation.record import record_of
from retvar.support.errors import InputError
from retvar.support.format import number
from retvar.td.learners import Learner
from retvar.td.networks import MEAN, VALUE, VARIANCE

if TYPE_CHECKING:
    import xarray

log = logging.getLogger("retvar")
Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_SOLVED = 20_000  # unknowns of the linear system of an episode
MOST_STEPS = 10_000_000
ROUNDING = 1e-13  # share of the terms of a mean square below which a variance is rounding
CLOCK = 64  # steps between two looks at the progress
STEP_NAMES = {VALUE: "alpha", MEAN: "alpha_mean", VARIANCE: "alpha_bar"}
MOST_RESTING = 150_000  # unknowns at rest


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
    total, by_step = length_of(mdp, steps, episodes)
    recorded = record_of(record)
    for name in ("window", "change", "rmse", "step_sizes"):
        if given := getattr(recorded, name):
            raise InputError(f"record.{name}", given, "is recorded by simulate only")
    if by_step and total > MOST_STEPS:
        remedy = f"must be at most {MOST_STEPS:,}; use resting_error"
        raise InputError("steps", f"{total:,}", remedy)
    tables = features, value_features, mean_features
    question = Question(mdp, learners, (target, behaviour), tables, truth)
    moments, states = recorded.moments(total), question.recorded_states(recorded)
    if not by_step:
        question.refuse_endless(episodes)
    problems, curves = problems_of(question), []
    for k, problem in enumerate(problems):

        def report(share: float, k: int = k) -> None:
            if progress is not None:
                progress((k + share) / len(problems))

        found = _curve(problem, moments, by_step, report)
        curves.append({name: curve[:, states] for name, curve in found.items()})
    unit = "step" if by_step else "episode"
    data = dataset_of(question, curves, states, [unit])
    return data.assign_coords({unit: moments}).assign_attrs({f"{unit}s": total, "exact": 1})


def dataset_of(
    question: Question, found: list[dict[str, Array]], states: Integers, times: Sequence[str] = ()
) -> xarray.Dataset:
    """What was found for each learner [time, state] by name; NaN where it has no such node."""
    import xarray

    known = dict.fromkeys(name for one in found for name in one)
    names = sorted(known, key=lambda name: not name.startswith("va"))
    nothing, dims = np.full_like(found[0]["value"], np.nan), ("learner", *times, "state")
    variables: dict[str, Any] = {
        name: (dims, np.stack([one.get(name, nothing) for one in found])) for name in names
    }
    variables |= question.exact_answers(states)
    return xarray.Dataset(variables, question.coords(states), question.attributes)


class Readout:
    """Mean, standard deviation and mean squared error of all estimates, from moments."""

    def __init__(self, problem: Problem, recursion: Recursion, states: Integers) -> None:
        truth = problem.question.truth(problem.setup.template)
        value, variance = truth["value"][states], truth["variance"][states]
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
    recursion, initial = problem.recursion(most=MOST_UNKNOWNS if by_step else MOST_SOLVED)
    readout = Readout(problem, recursion, np.arange(recursion.states))
    rows = []
    last = int(moments[-1])
    with np.errstate(over="ignore", invalid="ignore"):
        path = (_by_step if by_step else _by_episode)(recursion, initial, last)
        wanted = set(moments.tolist())
        for t, now in enumerate(itertools.islice(path, last + 1)):
            if t in wanted:
                rows.append(readout.of(now()))
            if t % CLOCK == 0:
                report(t / last if last else 1.0)
    found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    spreads = [found[f"{name}_std"] for name in readout.rows]
    finite = np.isfinite(spreads).all(axis=(0, 2))
    if not finite.all():
        first = int(moments[np.argmin(finite)])
        log.warning("the mean square is too large for a number from moment %s on", f"{first:,}")
        for array in found.values():
            array[~finite] = np.nan
    return found


def _by_step(recursion: Recursion, initial: Array, _: int) -> Iterator[Callable[[], Array]]:
    """Moments after each step, from step 0 on."""
    operator, x = recursion.operator, recursion.begin(initial)
    while True:
        yield lambda: recursion.moments(x)  # noqa: B023
        x = operator @ x


def _by_episode(recursion: Recursion, initial: Array, last: int) -> Iterator[Callable[[], Array]]:
    """Moments after each episode: at its end, summed over all its lengths.

    An episode is a linear map; of many episodes its matrix is made first.
    """
    stay, end = np.split(np.arange(recursion.walked.shape[0]), [recursion.unknowns])
    within, ends = Triangle(recursion, recursion.walked[stay]), recursion.walked[end]
    if within.radius >= 1:
        remedy = "the mean square at the end of an episode is infinite; use smaller steps"
        raise InputError("episodes", f"a radius of {within.radius:.6g}", remedy)

    def episode(now: Array) -> Array:
        return np.asarray(ends @ within.solve(recursion.begin(now)))

    step: Callable[[Array], Array] = episode
    if initial.size < last:
        step = np.stack([episode(x) for x in np.eye(initial.size)], axis=1).__matmul__
    now = initial
    while True:
        yield lambda: now  # noqa: B023
        now = step(now)


# ---------------------------------------------------------------------- at rest


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
        If the mean square is unstable (a radius of 1 or more).

    Examples
    --------
    >>> import retvar as rv
    >>> learners = [M(alpha=0.1, alpha_bar=0.05) for M in (rv.Direct, rv.VTD)]
    >>> rest = rv.resting_error(rv.domains.chain(lam=1.0), learners)
    >>> rest.variance.sel(state="s3").values  # 1 ± α/(2−α)
    array([1.05263158, 0.94736842])
    """
    tables = features, value_features, mean_features
    question = Question(mdp, learners, (target, behaviour), tables, truth)
    share = stationary_distribution(mdp, question.actor)
    problems = problems_of(question)
    found, radii = zip(*(_rest(problem, share) for problem in problems), strict=True)
    data = dataset_of(question, list(found), np.arange(mdp.n_states))
    data = data.assign_attrs(period=_period(mdp, question.actor, share))
    return data.assign(radius=("learner", np.array(radii)))


def _rest(problem: Problem, share: Array) -> tuple[dict[str, Array], float]:
    """Estimates at rest of one learner, by name, and the radius."""
    kept = np.flatnonzero(share > 0)
    recursion, initial = problem.recursion(kept, MOST_RESTING)
    triangle = Triangle(recursion, recursion.operator)
    refuse_unstable(problem, triangle.radius)
    known = np.outer(share[kept], initial).ravel()  # right where nothing learns
    x = triangle.solve(np.zeros(recursion.unknowns), known)
    found = {}
    for name, array in Readout(problem, recursion, kept).of(recursion.moments(x)).items():
        found[name] = np.full(share.size, np.nan)
        found[name][kept] = array
    return found, triangle.radius


def refuse_unstable(problem: Problem, radius: float) -> None:
    """Raise an InputError if the mean square grows."""
    if radius >= 1:
        places = [p for p in problem.learner.network.places if problem.steps[p] > 0]
        steps = ", ".join(f"{STEP_NAMES[p]}={number(problem.steps[p])}" for p in places)
        remedy = f"the mean square is unstable (radius {radius:.6g}); take smaller steps, or use "
        remedy += "expected_curve for a finite time"
        raise InputError("learner", f"{type(problem.learner).__name__}({steps})", remedy)


def _period(mdp: MDP, policy: object, share: Array) -> int:
    """The greatest common divisor of the lengths of all cycles of recurrent states."""
    P, n = transitions(mdp, policy).tocoo(), mdp.n_states
    reached, before = breadth_first_order(P.tocsr(), int(np.argmax(share)))
    time = (np.arange(n + 1) < n).astype(np.int64)  # the end of an episode takes none
    level = np.zeros(n + 1, dtype=np.int64)
    for s in reached[1:]:
        level[s] = level[before[s]] + time[before[s]]
    differ = level[P.row] + time[P.row] - level[P.col]
    return int(np.gcd.reduce(differ[np.isin(P.row, reached)]))
