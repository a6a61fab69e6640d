"""From experience to value ± spread: one pass of a learner with replicates over a stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import xarray

from retvar.errors import InputError
from retvar.experience.format import behind, reasons, table
from retvar.experience.monitor import Seen
from retvar.experience.results import dataset
from retvar.experience.setup import (
    begin,
    completed,
    described,
    make_room,
    refuse_features,
    refuse_no_answer,
    refuse_two_answers,
    refuse_two_sources,
)
from retvar.experience.stream import Chunk, Experience, first_rows
from retvar.features import Features
from retvar.learners import Direct, Learner, load
from retvar.online import OnlineEstimator
from retvar.step_sizes import Averaged

__all__ = ["Estimate", "estimate"]

Progress = Callable[[int], None]  # told how many transitions are done


class Estimate:
    """What :func:`estimate` found: a learner, what it has seen, and how sure it is.

    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=5_000, seed=1)
    >>> found = rv.estimate(lake, gamma=0.9)
    >>> found.estimator.steps, found.data["value"].dims
    (5000, ('state',))
    """

    def __init__(
        self,
        experience: Experience,
        learner: OnlineEstimator | None,
        seen: Seen,
        begin: Callable[[Chunk], OnlineEstimator] | None = None,
    ) -> None:
        self.experience = experience
        self.seen = seen
        self.at_rest = True  #: False while a chunk is being learned from
        self._estimator = learner
        self._begin = begin

    @property
    def estimator(self) -> OnlineEstimator:
        """The learner, which can go on learning."""
        if self._estimator is None:
            raise InputError("experience", self.experience.name, "no transition has come yet")
        return self._estimator

    @property
    def data(self) -> xarray.Dataset:
        """Value, variance and std with intervals, of each state or of the regions most visited."""
        return dataset(self.experience, self.estimator, self.seen)

    def summary(self, rows: int = 20) -> str:
        """A table for people: the states (or regions) most visited, and what it rests on."""
        data = self.data
        return f"{behind(data, self.experience.counts)}\n\n{table(data, rows)}"

    def save(self, path: str | Path) -> None:
        """Write the learner, from which ``estimate(…, resume=path)`` goes on with other data."""
        self.estimator.notes = {"estimate": self.seen.to_dict(self.experience)}
        self.estimator.save(path)

    def learn(self, progress: Progress | None = None) -> None:
        """Go through the stream; whatever stops it on the way carries this estimate."""
        try:
            for chunk in self.experience.chunks():
                self._take(chunk)
                if progress is not None:
                    progress(self.experience.counts.transitions)
            if self._estimator is None:
                name = self.experience.name
                why = reasons(self.experience.counts.rejected)
                remedy = "held no transition that could be used"
                raise InputError("experience", name, f"{remedy}: {why}" if why else remedy)
        except BaseException as error:
            error.estimate = None if self._estimator is None else self  # type: ignore[attr-defined]
            raise

    def _take(self, chunk: Chunk) -> None:
        """Learn from a chunk, and note where it went and which returns were seen.

        Where that stops on the way, what is noted is the part that was learned from.
        """
        learner = self._estimator
        if learner is None:
            assert self._begin is not None
            learner = self._begin(chunk)
        before = learner.steps + learner.rejected
        try:
            refuse_no_answer(learner.description, chunk)
            refuse_two_answers(learner.description, chunk)
            make_room(learner, chunk, self.experience)
            self._estimator, self.at_rest = learner, False
            learner.update_many(chunk, on_error="skip")
        except BaseException as error:
            done = learner.steps + learner.rejected - before
            chunk = first_rows(chunk, 0 if isinstance(error, InputError) else done)
            self.experience.counts.recount(chunk)
            raise
        finally:
            if len(chunk["reward"]):
                self.seen.watch(learner, chunk)
            self.at_rest = True


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
    """Learn how much return to expect, how far it may stray, and how sure that is.

    One pass over the stream. Where experience stops coming in the middle, or the learner diverges,
    the error that is raised has an attribute ``estimate`` with all that was learned before.

    Parameters
    ----------
    experience
        From :mod:`retvar.experience`.
    learner
        A description of your own; the other settings of the learner are then not given.
    gamma
        Discount; it is never assumed. None where the data has it, one per transition.
    lam
        λ of the return whose variance is meant; by default that of the data where it has one for
        each transition, and otherwise 1, which is the return itself.
    method
        ``"direct"``, ``"centred"`` or ``"vtd"``.
    kappa
        Trace decay of all nodes. By default traces reach a fifth of the horizon, 1/(1 − γ): enough
        to carry news to states that are seldom visited, few enough to keep estimates quiet.
    estimand
        Off-policy: ``"target_return"`` or ``"off_policy_return"``.
    features
        For observations: ``"tiles"`` (the default), ``"fourier"``, ``"polynomial"``, or
        :mod:`retvar.features`.
    bootstrap_samples, level, seed
        Of the intervals: bootstrap samples, confidence, coins.
    resume
        A file that :meth:`Estimate.save` wrote: go on from there; then nothing else is given.
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
    found = prepared(
        experience, learner, gamma=gamma, lam=lam, method=method, kappa=kappa, estimand=estimand,
        features=features, bootstrap_samples=bootstrap_samples, level=level, seed=seed,
        resume=resume,
    )  # fmt: skip
    found.learn(progress)
    return found


def prepared(
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
    """An estimate before the first transition: everything that can be checked is.

    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=100)
    >>> rv.experience.estimation.prepared(lake, gamma=0.9, level=90)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: level = 90: must lie between 0 and 1, such as 0.9
    """
    if resume is not None:
        own = {"learner": learner, "features": features, **settings}
        _refuse(own, "comes from the saved learner; leave it out")
        live = load(resume)
        refuse_two_sources(live.description, experience)
        return Estimate(experience, live, Seen.restored(resume, live, experience))
    if learner is None:
        learner = described(**settings)
        defaults = {"lam": 1.0}
    else:
        _refuse(settings, "is the learner's; give it there")
        defaults = {}
    refuse_two_sources(learner, experience)
    refuse_features(experience, features)
    Direct(alpha=Averaged(), gamma=0.0, lam=0.0).online(  # which refuses what cannot be
        states=1, bootstrap_samples=bootstrap_samples, seed=seed
    )

    def first(chunk: Chunk) -> OnlineEstimator:
        whole = completed(learner, chunk, defaults)
        return begin(experience, chunk, whole, features, bootstrap_samples, seed)

    return Estimate(experience, None, Seen(level), first)


def _refuse(given: dict[str, Any], why: str) -> None:
    """Refuse settings that are not what they are by default."""
    usual = {"method": "direct", "estimand": "target_return"}
    for name, value in given.items():
        if value is not None and not (isinstance(value, str) and value == usual.get(name)):
            shown = type(value).__name__ if isinstance(value, Learner | Features) else value
            raise InputError(name, shown, why)
