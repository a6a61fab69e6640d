"""Estimate value and spread of returns from experience, by least squares or by TD learning."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray

from retvar import arguments
from retvar.errors import InputError
from retvar.estimation.actions import (
    has_actions,
    refuse_beside_actions,
    refuse_cluster_of_actions,
    to_action_values,
)
from retvar.estimation.agreement import Agreement, self_check
from retvar.estimation.answers import Answer, answer_at, find_state
from retvar.estimation.distributed import learn_on_cluster, refuse_cluster
from retvar.estimation.folder import estimator_file, means_folder, save_folder
from retvar.estimation.format import describe_data, reasons, table, table_rows
from retvar.estimation.least_squares_estimator import LeastSquaresEstimator
from retvar.estimation.monitor import Monitor
from retvar.estimation.provenance import restore_monitor, to_notes
from retvar.estimation.results import brief_dataset, dataset, warnings
from retvar.estimation.saved_estimators import load
from retvar.estimation.setup import (
    LEAST_SQUARES,
    TD,
    Estimator,
    Setup,
    grow_table,
    make_learner,
    refuse_conflicting_discounts,
    refuse_discounts_given_twice,
    refuse_features,
    refuse_missing_discounts,
)
from retvar.estimation.tabular import TabularEstimator
from retvar.estimation.visits import Regions
from retvar.experience.action_pairs import by_action
from retvar.experience.recipes import same
from retvar.experience.stream import Chunk, Experience, first_rows
from retvar.features import Features
from retvar.format import count, literal, visible
from retvar.html import MOST, Shown, page
from retvar.html import table as html_table
from retvar.learners import Learner
from retvar.networks import DEFAULT
from retvar.online import OnlineEstimator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Estimate", "estimate"]

log = logging.getLogger("retvar")
PLOTS = "retvar.plots"  # lies above this module, and is looked up when a figure is asked for
DEFAULTS = {"method": DEFAULT, "order": 2, "estimand": "target_return"}
Progress = Callable[[int], None]  # called with the number of transitions done


class Estimate(Shown):
    """The result of :func:`estimate`: the estimator, its visits, returns and intervals.

    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=5_000, seed=1)
    >>> found = rv.estimate(lake, gamma=0.9)
    >>> found.estimator.steps, found.data["value"].dims
    (5000, ('state',))
    """

    def __init__(
        self,
        experience: Experience,
        estimator: Estimator | None,
        monitor: Monitor,
        create: Callable[[Chunk], Estimator] | None = None,
        learner: Learner | None = None,
        asked: Mapping[str, Any] | None = None,
    ) -> None:
        self.experience = experience
        self.asked = dict(asked or {})  #: settings that differ from their defaults
        self.monitor = monitor
        self.updating = False  #: True while the estimator learns from a chunk
        self._estimator = estimator
        self._create = create
        self._checked: tuple[int, Agreement] | None = None  # after so many steps
        self._learner = learner

    @property
    def estimator(self) -> Any:
        """The :class:`OnlineEstimator` or least-squares estimator; both can be updated further."""
        if self._estimator is None:
            raise InputError("experience", self.experience.name, "has no transition yet")
        return self._estimator

    @property
    def estimator_or_none(self) -> Any:
        """The estimator, or None before the first transition."""
        return self._estimator

    @property
    def description(self) -> Learner:
        """The settings: those given, completed once there is a transition."""
        learner = self._learner if self._estimator is None else self._estimator.description
        assert learner is not None
        return learner

    @property
    def data(self) -> xarray.Dataset:
        """Value, variance and std with intervals, of each state or of the most visited regions."""
        data = dataset(self.experience, self.estimator, self.monitor)
        data.attrs["self_check"] = str(self.self_check)
        if self.warnings:
            data.attrs["warnings"] = "\n".join(self.warnings)
        return data

    def value(self, state: Any = None) -> Any:
        """Value of a state; of all states where none is named. NaN where nothing is known.

        Here and below a state is named by its number, or by its label where that is text. A list or
        an array of states, or an array [k, number] of observations, gives an array.

        >>> import retvar as rv
        >>> log = {"state": ["rain", "sun"], "reward": [2.0, 1.0], "terminated": [False, True]}
        >>> rv.estimate(rv.experience.from_table(log), gamma=1.0).value(["sun", "rain"])
        array([1., 3.])
        """
        self._look()
        return self._ask("value", state)

    def std(self, state: Any = None) -> Any:
        """Standard deviation of the return from a state; of all states where none is named."""
        self._look()
        return self._ask("std", state)

    def interval(
        self, state: Any = None, what: str = "value", *, states: Any = None, level: Any = None
    ) -> tuple[Any, Any]:
        """Lower and upper end for one `state`, a column of `states`, or all."""
        self._look()
        if states is None and self._several(state):
            state, states = None, state
        level = self.monitor.level if level is None else level
        state, states = self._number(state), self._numbers(states)
        ends = self.estimator.interval(state, what, states=states, level=level)
        if states is not None and state is None:
            asked = self._column(states)
            return tuple(np.where(self._visited(asked), end, np.nan) for end in ends)  # type: ignore[return-value]
        low, high = (self._known(state, end) for end in ends)
        return low, high

    def _ask(self, what: str, state: Any) -> Any:
        """An estimate of one state, of several, or of all."""
        if not self._several(state):
            state = self._number(state)
            return self._known(state, getattr(self.estimator, what)(state))
        several = state if isinstance(state, list | tuple) else np.asarray(state)
        column = self._column(self._numbers(several))
        if not len(column):
            return np.zeros(0)
        return np.where(self._visited(column), self.estimator.predict(column, what), np.nan)

    def _several(self, state: Any) -> bool:
        """Whether this is a column of states, or rows of observations, and not one of them."""
        if self.experience.width is not None:
            nested = isinstance(state, list | tuple) and any(np.ndim(part) for part in state)
            return nested or getattr(state, "ndim", 0) > 1
        if isinstance(state, tuple):  # a label, where labels are tuples
            labels = self.experience.labels
            return not (labels and isinstance(labels[0], tuple))
        return isinstance(state, list) or getattr(state, "ndim", 0) > 0

    def _column(self, states: Any) -> Any:
        """States as a column, observations as rows."""
        try:
            column = np.asarray(states)
        except ValueError:  # rows of different lengths
            column = np.zeros(())
        if column.ndim != (1 if self.experience.width is None else 2):
            remedy = "must be a column of states, or rows of numbers of one length"
            raise InputError("states", literal(states), remedy)
        return column if len(column) else column.astype(np.int64)

    def _number(self, state: Any) -> Any:
        """The number of a state that is named by a label of text; anything else as it is."""
        named = isinstance(state, str | tuple) and self.experience.width is None
        if not named or self.experience.labels is None:
            return state
        return find_state(self.experience, state)

    def _numbers(self, states: Any) -> Any:
        """The same for a column of states, or one state."""
        if isinstance(states, str) or arguments.is_integer(states):
            states = [states]
        text = isinstance(states, np.ndarray) and states.dtype.kind in "OU" and states.ndim > 0
        if not (text or isinstance(states, list | tuple)):
            return states
        found = [self._number(state) for state in states]
        return (
            found if any(new is not old for new, old in zip(found, states, strict=True)) else states
        )

    def _known(self, state: Any, found: Any) -> Any:
        """An answer, or answers for all states, without those of places never visited."""
        if state is None:
            return np.where(self._visited(np.arange(len(found))), found, np.nan)
        return found if self._visited(np.asarray([state]))[0] else math.nan

    def _visited(self, states: Any) -> Any:
        """Whether states were visited; least squares itself says what it does not know."""
        visits, states = self.monitor.visits, np.atleast_1d(np.asarray(states))
        if visits is None or not isinstance(self.estimator, OnlineEstimator):
            return np.ones(len(states), dtype=bool)
        return visits.known(states)

    def at(self, state: Any, *, level: float | None = None) -> Answer:
        """Value, std and where the return will fall, for one state or observation; see `note`.

        A state is named by its label where states have labels, otherwise by its number; an
        observation is a sequence of numbers.
        """
        found = answer_at(self.experience, self.estimator, self.monitor, state, level)
        word = self.self_check.warning_at(self._place(state)) if self.self_check.disagrees else ""
        if math.isnan(found.value.estimate) or not word:
            return found
        return replace(found, note="; ".join(filter(None, (found.note, word))))

    def _place(self, state: Any) -> int:
        """Number of the state, or of the region of an observation, in which the check has it."""
        visits = self.monitor.visits
        found = find_state(self.experience, state, len(getattr(visits, "counts", ())))
        return int(visits.cells(found[None])[0] if isinstance(visits, Regions) else found)

    def _look(self) -> None:
        """Check the estimates of states, so that a contradiction is in the log; it costs little."""
        if isinstance(self._estimator, TabularEstimator):
            _ = self.self_check

    def return_interval(
        self, states: Any = None, level: float = 0.9, *, above: bool = False
    ) -> Any:
        """Where the return from each of `states` (default: all) will fall with this probability.

        Calibrated on returns that the fit has not seen, so that it holds on average over visited
        states. With `above`, the number that the return exceeds with this probability. Needs
        ``by="least_squares"`` and on-policy data.
        """
        estimator = self._least_squares("return intervals")
        return estimator.return_interval(self._numbers(states), level, above=above)

    @property
    def self_check(self) -> Agreement:
        """Whether value and std agree with the data's own returns; not off-policy.

        They disagree where states are not Markov, or where the estimates have not converged.
        """
        steps = self.estimator.steps
        if self._checked is None or self._checked[0] != steps:
            self._checked = steps, self_check(self.estimator, self.monitor, self.experience)
            if self._checked[1].warning:
                log.warning("%s: %s", self.experience.name, self._checked[1].warning)
        return self._checked[1]

    def _least_squares(self, what: str) -> LeastSquaresEstimator:
        if not isinstance(self.estimator, LeastSquaresEstimator):
            raise InputError("by", "'td'", f'{what} need by="least_squares"')
        return self.estimator

    @property
    def warnings(self) -> list[str]:
        """Signs that a log was misread, that ratios are wrong, or that returns contradict this.

        Each names the probable remedy.
        """
        doubt = self.self_check.warning
        return [*warnings(self.experience, self.estimator), *([doubt] if doubt else [])]

    def action_values(self) -> xarray.Dataset:
        """Estimates of each action as arrays [state, action]; NaN where it was never taken.

        Needs ``estimate(…, actions=True)``. The variables are those of `data`.

        >>> import retvar as rv
        >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=20_000, seed=1)
        >>> found = rv.estimate(lake, gamma=0.9, actions=True).action_values()
        >>> found["std"].sel(state=14).round(2).values
        array([0.33, 0.47, 0.46, 0.48])
        """
        return to_action_values(self.experience, self.data)

    def summary(self, rows: int = 20) -> str:
        """Text: a description of the data and a table of the most visited states or regions."""
        data, rows = self.data, arguments.integer("rows", rows, 0)
        return f"{describe_data(data, self.experience.counts)}\n\n{table(data, rows)}"

    def __repr__(self) -> str:
        steps = 0 if self._estimator is None else self._estimator.steps
        by = "" if self._estimator is None else f"; {self._estimator!r}"
        return f"Estimate({visible(self.experience.name)}: {count(steps, 'transition')}{by})"

    def _html(self) -> str:
        if self._estimator is None:
            return page(repr(self), notes=["no transition yet: nothing is known"])
        data = brief_dataset(self.experience, self._estimator, self.monitor)
        told = describe_data(data, self.experience.counts).splitlines()
        found = table_rows(data, MOST)
        heading, *rows = found.lines
        text = [k for k, name in enumerate(heading) if k == 0 or not name]  # of notes: no name
        shown = html_table(heading, rows, len(rows) + found.hidden, unit=found.unit, text=text)
        return page(told[0], shown, notes=[*told[1:], *self._told])

    @property
    def _told(self) -> list[str]:
        """What the check of itself found, unless it would have to be made and takes long."""
        self._look()
        current = self._checked is not None and self._checked[0] == self.estimator.steps
        return [f"the data's own returns: {self.self_check}"] if current else []

    def plot(self) -> Figure:
        """Draw what to expect and how far it may stray, by :func:`retvar.plots.estimate`.

        >>> import retvar as rv
        >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=5_000, seed=1)
        >>> [ax.get_title("left") for ax in rv.estimate(lake, gamma=0.9).plot().axes[:2]]
        ['expected return', 'spread (standard deviation)']
        """
        figure: Figure = importlib.import_module(PLOTS).estimate(self.data)
        return figure

    def save(self, path: str | Path) -> None:
        """Write to a folder what ``retvar estimate --out`` writes, or the estimator to a file.

        A path without a suffix is a folder, for the estimator, the estimates as netCDF and the
        figures. ``estimate(…, resume=path)`` continues with other data, from either.

        >>> import pathlib, tempfile, retvar as rv
        >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=500)
        >>> folder = pathlib.Path(tempfile.mkdtemp()) / "lake"
        >>> rv.estimate(lake, gamma=0.9).save(folder)
        >>> rv.estimate(lake, resume=folder).estimator.steps
        1000
        """
        path = arguments.path("path", path)
        if means_folder(path):
            return save_folder(self, path)
        self.estimator.notes = {"estimate": to_notes(self.monitor, self.experience)}
        self.estimator.save(path)
        return None

    def learn(self, progress: Progress | None = None) -> None:
        """Learn from the stream; an error that stops it has this estimate as its attribute."""
        if progress is not None and not callable(progress):
            raise InputError(
                "progress", literal(progress), "must be a function of a number of rows"
            )
        try:
            for chunk in self.experience.chunks():
                self.update(chunk)
                if progress is not None:
                    progress(self.experience.counts.transitions)
            self.refuse_nothing()
        except BaseException as error:
            known = self._estimator is not None and self._estimator.steps > 0
            error.estimate = self if known else None  # type: ignore[attr-defined]
            raise

    def refuse_nothing(self) -> None:
        """Raise an error where the experience had no usable transition."""
        if self._estimator is None:
            name = self.experience.name
            why = reasons(self.experience.counts.rejected)
            remedy = "has no usable transition"
            raise InputError("experience", name, f"{remedy}: {why}" if why else remedy)

    def update(self, chunk: Chunk) -> None:
        """Learn from a chunk and monitor it; after an error, only the part learned from counts."""
        if not isinstance(chunk, Mapping) or "reward" not in chunk:
            raise InputError("chunk", type(chunk).__name__, "must be columns with a reward")
        estimator = self._estimator
        if estimator is None:
            assert self._create is not None
            estimator = self._create(chunk)
        before = estimator.steps + estimator.rejected
        try:
            refuse_missing_discounts(estimator.description, chunk)
            refuse_conflicting_discounts(estimator.description, chunk)
            grow_table(estimator, chunk, self.experience)
            self._estimator, self.updating = estimator, True
            estimator.update_many(chunk, on_error="skip")
        except BaseException as error:
            done = estimator.steps + estimator.rejected - before
            chunk = first_rows(chunk, 0 if isinstance(error, InputError) else done)
            self.experience.counts.recount(chunk)
            raise
        finally:
            if len(chunk["reward"]):
                self.monitor.update(estimator, chunk)
            self.updating = False


def estimate(
    experience: Experience,
    learner: Learner | None = None,
    *,
    by: str | None = None,
    gamma: Any = None,
    lam: Any = None,
    method: str = DEFAULT,
    order: int = 2,
    kappa: float | None = None,
    estimand: Any = "target_return",
    features: Any = None,
    bootstrap_samples: int | None = None,
    level: float = 0.9,
    seed: int = 0,
    resume: str | Path | None = None,
    progress: Progress | None = None,
    cluster: str | None = None,
    workers: int | None = None,
    actions: bool = False,
) -> Estimate:
    """Estimate expected return, variance and standard deviation of each state, with intervals.

    One pass over the stream. If the source fails or the estimator diverges, the error has an
    attribute ``estimate`` with everything learned before.

    Parameters
    ----------
    experience
        From :mod:`retvar.experience`.
    learner
        A learner of your own, in place of the settings gamma, lam, method, order, kappa and
        estimand.
    by
        ``"least_squares"``, the default for data that ends: the solution that the nodes of the
        direct method would reach if they could replay the data for ever; for observations, values
        by least squares with features and the spread from neighbours in other episodes (λ = 1,
        on-policy). It has no step size, no trace and no start, and answers NaN with a note where
        the data does not determine an answer. ``"td"``: an online estimator, for streams without
        an end and worlds that change; `learner`, `kappa`, `bootstrap_samples`, an `order` above 2
        and other methods than ``"direct"`` imply it.
    gamma
        Discount; there is no default. None where the data has one per transition.
    lam
        λ of the return whose variance is estimated; by default that of the data, if it has one per
        transition, and otherwise 1, the return itself.
    method
        ``"direct"``, ``"centred"`` or ``"vtd"``.
    order
        2: up to the variance. 3 also gives the third moment and the skewness, 4 the fourth moment
        and the excess kurtosis too; both methods but ``"vtd"``.
    kappa
        Trace decay of all nodes, with ``by="td"``. By default traces reach a fifth of the horizon,
        1/(1 − γ): long enough to update rarely visited states, short enough to keep the variance
        of estimates low.
    estimand
        Off-policy: ``"target_return"`` or ``"off_policy_return"``.
    features
        For observations: ``"tiles"`` (the default), ``"fourier"``, ``"polynomial"``, or
        :mod:`retvar.features`.
    bootstrap_samples, level, seed
        Of the intervals: number of bootstrap samples (``by="td"``; default 100), confidence level,
        seed.
    resume
        A file or folder that :meth:`Estimate.save` wrote, to continue from; no other setting is
        given then.
    progress
        Called with the number of transitions done.
    cluster, workers
        Sum the files of a log of states on dask workers: ``"local"`` processes, as many as
        `workers` says, or the address of a scheduler whose workers see the same files. The answer
        does not depend on the number of workers. Implies ``by="least_squares"``.
    actions
        Estimate the return of each action of each state: of taking it and then doing as the policy
        does. A state is then a pair (state, action); :meth:`Estimate.action_values` has arrays.

    Examples
    --------
    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=20_000, seed=1)
    >>> found = rv.estimate(lake, gamma=0.9)
    >>> low, high = found.interval(0)
    >>> truth = rv.solve(rv.MDP.from_gymnasium("FrozenLake-v1", gamma=0.9)).value[0]
    >>> bool(low < truth < high)
    True
    """
    by = refuse_cluster(cluster, workers, by)
    found = prepare(
        experience, learner, by=by, gamma=gamma, lam=lam, method=method, order=order, kappa=kappa,
        estimand=estimand, features=features, bootstrap_samples=bootstrap_samples, level=level,
        seed=seed, resume=resume, actions=actions,
    )  # fmt: skip
    if cluster is None:
        found.learn(progress)
    else:
        refuse_cluster_of_actions(found.experience, cluster)
        learn_on_cluster(found, cluster, workers=workers, progress=progress)
    for each in warnings(found.experience, found.estimator):  # the check warns when it is made
        log.warning("%s: %s", experience.name, each)
    return found


def prepare(
    experience: Experience,
    learner: Learner | None = None,
    *,
    by: str | None = None,
    features: Any = None,
    bootstrap_samples: int | None = None,
    level: float = 0.9,
    seed: int = 0,
    resume: str | Path | None = None,
    actions: bool = False,
    **settings: Any,
) -> Estimate:
    """Return an estimate before its first transition, with all settings checked.

    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=100)
    >>> rv.estimation.estimate.prepare(lake, gamma=0.9, level=90)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: level = 90: must lie between 0 and 1, such as 0.9
    """
    arguments.instance("experience", experience, Experience, "experience: rv.experience.from_…")
    if learner is not None:
        arguments.instance("learner", learner, Learner, "Direct, VTD or Centred")
    actions = arguments.flag("actions", actions)
    if resume is not None:
        own = {"by": by, "learner": learner, "features": features, **settings}
        _refuse(own | {"actions": actions or None}, "comes from the saved estimator; leave it out")
        resume = estimator_file(arguments.path("resume", resume))
        saved = load(resume)
        if has_actions(saved):
            experience = by_action(experience)
        refuse_discounts_given_twice(saved.description, experience)
        monitor = restore_monitor(resume, saved, experience)
        return Estimate(experience, saved, monitor, asked={"resume": resume.parent})
    td_only = {"learner": learner, "bootstrap_samples": bootstrap_samples}
    td_only |= {name: settings.get(name) for name in ("method", "kappa", "order")}
    chosen = _choose(by, experience, **td_only)
    given_learner = learner
    if learner is None:
        learner = make_learner(**settings)
        defaults = {"lam": 1.0}
    else:
        _refuse(settings, "is a setting of the learner; set it there")
        defaults = {}
    if actions:
        refuse_beside_actions(learner)
        experience = by_action(experience)
    refuse_discounts_given_twice(learner, experience)
    refuse_features(experience, features)
    level = arguments.level("level", level)
    samples = 100 if bootstrap_samples is None else bootstrap_samples
    make_learner(gamma=0.0, lam=0.0).online(  # refuses invalid settings
        states=1, bootstrap_samples=samples, seed=seed
    )
    samples = int(samples)
    monitor = Monitor(level)
    if by is None and chosen == TD and learner.order > 2:
        why = "least squares has no moments beyond the variance"
        monitor.remarks.append(f"TD learning, since {why} (order = {learner.order})")
    setup = Setup(
        experience, learner, chosen, features=features, bootstrap_samples=samples, seed=seed,
        defaults=defaults, insists=by is not None, remarks=monitor.remarks,
        own_kappa=td_only["kappa"] is None and td_only["learner"] is None,
    )  # fmt: skip
    asked = _asked(
        learner=given_learner, by=by, features=features, bootstrap_samples=bootstrap_samples,
        level=level, seed=seed, actions=actions, **settings,
    )  # fmt: skip
    return Estimate(experience, None, monitor, setup.create, learner, asked)


def _asked(**settings: Any) -> dict[str, Any]:
    """The settings that differ from their defaults."""
    defaults = {"level": 0.9, "seed": 0, "actions": False, **DEFAULTS}
    order = ("gamma", "lam", *settings)
    known = {name: settings[name] for name in order if settings.get(name) is not None}
    return {name: x for name, x in known.items() if not same(x, defaults.get(name))}


def _choose(by: str | None, experience: Experience, **td_only: Any) -> str:
    """How to estimate; settings of TD learning imply it, or are refused beside least squares."""
    if by is not None:
        arguments.choice("by", by, (LEAST_SQUARES, TD))
    given = {
        name: value
        for name, value in td_only.items()
        if value is not None and not (name in DEFAULTS and _equal(value, DEFAULTS[name]))
    }
    if by is None:
        return TD if given or experience.endless else LEAST_SQUARES
    if by == LEAST_SQUARES:
        for name, value in given.items():
            shown = type(value).__name__ if isinstance(value, Learner | Features) else value
            raise InputError(name, shown, 'goes with by="td"; leave one of them out')
    return by


def _equal(one: Any, default: Any) -> bool:
    """Whether this is a default; arrays never are."""
    return isinstance(one, str | int | float) and one == default


def _refuse(given: dict[str, Any], why: str) -> None:
    """Refuse settings that differ from their defaults."""
    for name, value in given.items():
        plain = isinstance(value, str | int) and not isinstance(value, bool)
        if value is not None and not (plain and value == DEFAULTS.get(name)):
            shown = type(value).__name__ if isinstance(value, Learner | Features) else value
            raise InputError(name, shown, why)
