"""Estimate value and spread of returns in one pass over a stream of experience."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import xarray

from retvar.errors import InputError
from retvar.experience.format import describe_data, reasons, table
from retvar.experience.monitor import Monitor
from retvar.experience.provenance import restore_monitor, to_notes
from retvar.experience.results import dataset
from retvar.experience.setup import (
    create_estimator,
    grow_table,
    make_learner,
    refuse_conflicting_discounts,
    refuse_discounts_given_twice,
    refuse_features,
    refuse_missing_discounts,
    with_defaults,
)
from retvar.experience.stream import Chunk, Experience, first_rows
from retvar.features import Features
from retvar.learners import Direct, Learner, load
from retvar.online import OnlineEstimator
from retvar.step_sizes import Averaged

__all__ = ["Estimate", "estimate"]

Progress = Callable[[int], None]  # called with the number of transitions done


class Estimate:
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
        estimator: OnlineEstimator | None,
        monitor: Monitor,
        create: Callable[[Chunk], OnlineEstimator] | None = None,
    ) -> None:
        self.experience = experience
        self.monitor = monitor
        self.updating = False  #: True while the estimator learns from a chunk
        self._estimator = estimator
        self._create = create

    @property
    def estimator(self) -> OnlineEstimator:
        """The online estimator, which can be updated further."""
        if self._estimator is None:
            raise InputError("experience", self.experience.name, "has no transition yet")
        return self._estimator

    @property
    def data(self) -> xarray.Dataset:
        """Value, variance and std with intervals, of each state or of the most visited regions."""
        return dataset(self.experience, self.estimator, self.monitor)

    def summary(self, rows: int = 20) -> str:
        """Text: a description of the data and a table of the most visited states or regions."""
        data = self.data
        return f"{describe_data(data, self.experience.counts)}\n\n{table(data, rows)}"

    def save(self, path: str | Path) -> None:
        """Write the estimator to a file; ``estimate(…, resume=path)`` continues with other data."""
        self.estimator.notes = {"estimate": to_notes(self.monitor, self.experience)}
        self.estimator.save(path)

    def learn(self, progress: Progress | None = None) -> None:
        """Learn from the stream; an error that stops it has this estimate as its attribute."""
        try:
            for chunk in self.experience.chunks():
                self._update(chunk)
                if progress is not None:
                    progress(self.experience.counts.transitions)
            if self._estimator is None:
                name = self.experience.name
                why = reasons(self.experience.counts.rejected)
                remedy = "has no usable transition"
                raise InputError("experience", name, f"{remedy}: {why}" if why else remedy)
        except BaseException as error:
            error.estimate = None if self._estimator is None else self  # type: ignore[attr-defined]
            raise

    def _update(self, chunk: Chunk) -> None:
        """Learn from a chunk and monitor it; after an error, only the part learned from counts."""
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
    gamma: Any = None,
    lam: Any = None,
    method: str = "direct",
    kappa: float | None = None,
    estimand: Any = "target_return",
    features: Any = None,
    bootstrap_samples: int = 100,
    level: float = 0.9,
    seed: int = 0,
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> Estimate:
    """Estimate expected return, variance and standard deviation of each state, with intervals.

    One pass over the stream. If the source fails or the estimator diverges, the error has an
    attribute ``estimate`` with everything learned before.

    Parameters
    ----------
    experience
        From :mod:`retvar.experience`.
    learner
        A learner of your own, in place of the settings gamma, lam, method, kappa and estimand.
    gamma
        Discount; there is no default. None where the data has one per transition.
    lam
        λ of the return whose variance is estimated; by default that of the data, if it has one per
        transition, and otherwise 1, the return itself.
    method
        ``"direct"``, ``"centred"`` or ``"vtd"``.
    kappa
        Trace decay of all nodes. By default traces reach a fifth of the horizon, 1/(1 − γ): long
        enough to update rarely visited states, short enough to keep the variance of estimates low.
    estimand
        Off-policy: ``"target_return"`` or ``"off_policy_return"``.
    features
        For observations: ``"tiles"`` (the default), ``"fourier"``, ``"polynomial"``, or
        :mod:`retvar.features`.
    bootstrap_samples, level, seed
        Of the intervals: number of bootstrap samples, confidence level, seed.
    resume
        A file that :meth:`Estimate.save` wrote, to continue from; no other setting is given then.
    progress
        Called with the number of transitions done.

    Examples
    --------
    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=20_000, seed=1)
    >>> found = rv.estimate(lake, gamma=0.9)
    >>> low, high = found.estimator.interval(0, "value")
    >>> truth = rv.solve(rv.MDP.from_gymnasium("FrozenLake-v1", gamma=0.9)).value[0]
    >>> bool(low < truth < high)
    True
    """
    found = prepare(
        experience, learner, gamma=gamma, lam=lam, method=method, kappa=kappa, estimand=estimand,
        features=features, bootstrap_samples=bootstrap_samples, level=level, seed=seed,
        resume=resume,
    )  # fmt: skip
    found.learn(progress)
    return found


def prepare(
    experience: Experience,
    learner: Learner | None = None,
    *,
    features: Any = None,
    bootstrap_samples: int = 100,
    level: float = 0.9,
    seed: int = 0,
    resume: str | Path | None = None,
    **settings: Any,
) -> Estimate:
    """Return an estimate before its first transition, with all settings checked.

    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=100)
    >>> rv.experience.estimation.prepare(lake, gamma=0.9, level=90)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: level = 90: must lie between 0 and 1, such as 0.9
    """
    if resume is not None:
        own = {"learner": learner, "features": features, **settings}
        _refuse(own, "comes from the saved estimator; leave it out")
        saved = load(resume)
        refuse_discounts_given_twice(saved.description, experience)
        return Estimate(experience, saved, restore_monitor(resume, saved, experience))
    if learner is None:
        learner = make_learner(**settings)
        defaults = {"lam": 1.0}
    else:
        _refuse(settings, "is a setting of the learner; set it there")
        defaults = {}
    refuse_discounts_given_twice(learner, experience)
    refuse_features(experience, features)
    Direct(alpha=Averaged(), gamma=0.0, lam=0.0).online(  # refuses invalid settings
        states=1, bootstrap_samples=bootstrap_samples, seed=seed
    )

    def create(chunk: Chunk) -> OnlineEstimator:
        complete = with_defaults(learner, chunk, defaults)
        return create_estimator(experience, chunk, complete, features, bootstrap_samples, seed)

    return Estimate(experience, None, Monitor(level), create)


def _refuse(given: dict[str, Any], why: str) -> None:
    """Refuse settings that differ from their defaults."""
    defaults = {"method": "direct", "estimand": "target_return"}
    for name, value in given.items():
        if value is not None and not (isinstance(value, str) and value == defaults.get(name)):
            shown = type(value).__name__ if isinstance(value, Learner | Features) else value
            raise InputError(name, shown, why)
