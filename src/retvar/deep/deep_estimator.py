"""Fit a critic to experience, and the estimator by which commands ask it."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from retvar import arguments, rules
from retvar.deep.critic import About, Critic, Encoder, encode
from retvar.deep.fitting import Fitting, Scales, Settings, usual_sweeps
from retvar.deep.transition_columns import Columns, Record
from retvar.deep.value_error import ErrorShare, error_share
from retvar.errors import InputError
from retvar.estimation.monitor import OwnDiscounts
from retvar.estimation.setup import (
    make_learner,
    refuse_conflicting_discounts,
    refuse_discounts_given_twice,
    with_defaults,
)
from retvar.experience.stream import Experience
from retvar.format import count, literal
from retvar.learners import Learner
from retvar.networks import DEFAULT, NETWORKS

__all__ = ["DeepEstimator", "fit", "make_critic", "make_settings", "refuse_observations"]

Array = NDArray[np.float64]
Chunk = dict[str, NDArray[Any]]
Progress = Callable[[int], None]
log = logging.getLogger("retvar")
FEWEST, HORIZONS = 200, 5  # transitions at least, and horizons
SAMPLES = 64  # observations that a critic remembers
WIDEST = 1_024  # numbers of an observation that needs no encoder
MOST_MEMBERS, MOST_STEPS, MOST_ROWS = 1_000, 10_000_000, 10_000_000
STATES = "are numbered states: deep critics are for observations; take rv.estimate"
IMAGES = (
    "look like images: give an encoder, a function from a tensor of rows of {:,} numbers to rows "
    "of features, such as that of your policy"
)


def fit(
    experience: Experience,
    *,
    gamma: float | None = None,
    lam: float | None = None,
    method: str = DEFAULT,
    estimand: Any = "target_return",
    members: int = 5,
    hidden: tuple[int, ...] = (64, 64),
    sweeps: int | None = None,
    batches: int = 80,
    batch_size: int = 1_024,
    learning_rate: float = 3e-3,
    kappa: float | None = None,
    device: str = "cpu",
    encoder: Encoder | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Critic:
    """Fit networks for value and variance of the return to experience.

    Fitted TD(κ): targets are computed along the streams, the networks are fitted to them by Adam,
    and again. An exponential mean of the weights is what targets are computed with, and what
    answers. Ctrl-C during the fit ends it early, with the critic so far (`about.complete` is False
    then).

    Parameters
    ----------
    experience
        Observations from :mod:`retvar.experience`: environments, logs, data sets. All of it is
        read first, into memory.
    gamma, lam
        γ and λ of the return; by default those of the data, if it has them, and λ = 1 otherwise.
        γ has no default.
    method
        ``"direct"``, ``"vtd"`` or ``"centred"``.
    estimand
        Off-policy, where the data has importance ratios: ``"target_return"``, the return of the
        target policy, or ``"off_policy_return"``.
    members
        Networks of the ensemble, each fitted to a bootstrap sample of the episodes. One is fastest,
        and has no intervals.
    hidden
        Units of the hidden layers (tanh).
    sweeps, batches, batch_size, learning_rate
        Number of times that targets are computed (by default 25 to 100, by 1/(1 − γ));
        steps of Adam in each, for each network, with batches of this size and a step size that
        falls to 0.
    kappa
        How far targets reach: 0 is TD(0), 1 is Monte Carlo; by default 0.95, or more where γ is
        above 0.988, so that the sweeps suffice.
    device
        Of torch, such as ``"cuda"``.
    encoder
        For images and the like: a function from a tensor of rows of observations, flat, to rows of
        features, which stays as it is.
    seed, progress
        Of all random numbers, torch's own are left alone; called with the number of sweeps done.

    Examples
    --------
    >>> import retvar as rv
    >>> world = rv.domains.linear_gaussian([[0.8]], [[0.3]], [[1.0]], gamma=0.9)
    >>> critic = rv.deep.fit(rv.experience.from_linear_gaussian(world, streams=16, steps=20_000),
    ...                      gamma=0.9, members=1, sweeps=10, batches=40, batch_size=256)
    >>> abs(critic.std([0.5]) / world.std([0.5]) - 1) < 0.15
    True
    """
    settings = make_settings(
        members=members, hidden=hidden, sweeps=sweeps, batches=batches, batch_size=batch_size,
        learning_rate=learning_rate, kappa=kappa, device=device, seed=seed,
    )  # fmt: skip
    arguments.instance("experience", experience, Experience, "experience: rv.experience.from_…")
    if progress is not None and not callable(progress):
        raise InputError("progress", literal(progress), "must be a function of a number of sweeps")
    learner = make_learner(gamma=gamma, lam=lam, method=method, kappa=kappa, estimand=estimand)
    estimator: DeepEstimator | None = None
    refuse_observations(experience, encoder)
    for chunk in experience.chunks():
        if estimator is None:
            estimator = DeepEstimator.create(experience, learner, settings, chunk, encoder)
        estimator.update_many(chunk)
    if estimator is None:
        raise InputError("experience", experience.name, "has no usable transition")
    estimator.progress = progress
    with contextlib.suppress(KeyboardInterrupt):
        estimator.finish()
    return estimator.critic


def make_settings(
    *,
    members: Any = 5,
    hidden: Any = (64, 64),
    sweeps: Any = None,
    batches: Any = 80,
    batch_size: Any = 1_024,
    learning_rate: Any = 3e-3,
    kappa: Any = None,
    device: Any = "cpu",
    seed: Any = 0,
    encoder: Any = None,
) -> Settings:
    """The settings of :func:`fit`, checked."""
    return Settings(
        hidden=_layers(hidden), members=arguments.integer("members", members, 1, MOST_MEMBERS),
        sweeps=None if sweeps is None else arguments.integer("sweeps", sweeps, 1, MOST_STEPS),
        batches=arguments.integer("batches", batches, 1, MOST_STEPS),
        batch_size=arguments.integer("batch_size", batch_size, 1, MOST_ROWS),
        learning_rate=_positive("learning_rate", learning_rate),
        kappa=None if kappa is None else float(arguments.unit_interval("kappa", kappa, 1)[0]),
        device=_device(device),
        seed=arguments.integer("seed", seed, 0),
    )  # fmt: skip


def refuse_observations(experience: Experience, encoder: Encoder | None) -> None:
    """Refuse states, and images without an encoder."""
    if experience.width is None:
        raise InputError("experience", experience.name, STATES)
    if encoder is None and experience.width > WIDEST:
        what = f"{experience.width:,} numbers each"
        raise InputError("observations", what, IMAGES.format(experience.width))
    if encoder is not None and not callable(encoder):
        raise InputError("encoder", literal(encoder), "must be a function, such as a torch module")


class DeepEstimator(OwnDiscounts):
    """Records transitions, then fits a critic to them, and asks it.

    It has the methods of other estimators, so that :class:`retvar.Estimate` can ask it.
    """

    by = Critic.by
    bootstrap_samples = 0

    def __init__(
        self,
        experience: Experience,
        learner: Learner,
        settings: Settings,
        encoder: Encoder | None = None,
    ) -> None:
        self.experience, self.description = experience, learner
        self.settings, self.encoder = settings, encoder
        self.rejected = 0
        self.notes: dict[str, Any] = {}
        self.progress: Progress | None = None
        self.check: Callable[[], None] = lambda: None  #: called often while fitting; may raise
        self.record = Record(_scalar(learner.gamma), _scalar(learner.lam))
        self.sweeps = 0  # of the fit
        self._critic: Critic | None = None

    @classmethod
    def create(
        cls,
        experience: Experience,
        learner: Learner,
        settings: Settings,
        chunk: Chunk,
        encoder: Encoder | None = None,
    ) -> DeepEstimator:
        """The estimator of an experience, from its first chunk."""
        learner = with_defaults(learner, chunk, {"lam": 1.0})
        for name in ("gamma", "lam"):
            if np.ndim(getattr(learner, name)):
                raise InputError(name, "one per state", "must be one number, or in the data")
        refuse_discounts_given_twice(learner, experience)
        return cls(experience, learner, settings, encoder)

    @property
    def steps(self) -> int:
        """Transitions that the critic was fitted to; 0 before there is one."""
        return 0 if self._critic is None else self._critic.steps

    def update_many(self, chunk: Chunk, on_error: str = "raise") -> None:
        """Record transitions."""
        refuse_conflicting_discounts(self.description, chunk)
        if self.encoder is not None:
            encoded = {k: encode(self.encoder, chunk[k]) for k in ("state", "next_state")}
            chunk = chunk | encoded
        self.record.add(chunk)
        self._critic = None

    def finish(self) -> None:
        """Fit the critic; an error or Ctrl-C after the first sweep leaves the critic so far."""
        columns = self.record.columns()
        _refuse_few(columns)
        eta = self.description.estimand == "off_policy_return"
        fitting = Fitting(
            NETWORKS[self.description.method], self.settings, Scales.of(columns, not eta), eta
        )
        fitting.check = self.check
        self.sweeps = self.settings.sweeps or usual_sweeps(columns)
        try:
            fitting.run(columns, self.sweeps, self.progress)
        finally:
            if fitting.sweep:
                self._critic = self._make(fitting, columns)
        for each in self.critic.warnings:
            log.warning("%s: %s", self.experience.name, each)

    def _make(self, fitting: Fitting, columns: Columns) -> Critic:
        found = make_critic(fitting, columns, self.description, self.encoder)
        counts = self.experience.counts
        found.about = replace(
            found.about, source=self.experience.name, policy=self.experience.policy,
            episodes=counts.episodes, complete=fitting.sweep == self.sweeps,
            rejected=counts.rejected.total(),
        )  # fmt: skip
        return found

    @property
    def critic(self) -> Critic:
        """The critic of all transitions so far."""
        if self._critic is None:
            self.finish()
        assert self._critic is not None
        return self._critic

    # ------------------------------------------------------------------ as other estimators

    @property
    def features(self) -> list[Any]:
        """Of observations."""
        return [SimpleNamespace(states=None)]

    @property
    def has_intervals(self) -> bool:
        """Whether there are several members."""
        return self.settings.members > 1

    @property
    def remarks(self) -> list[str]:
        """What readers of intervals should know."""
        return self.critic.remarks

    @property
    def warnings(self) -> list[str]:
        """What a reader of the numbers should know."""
        return self.critic.warnings

    def value(self, state: Any) -> Any:
        """Value of an observation."""
        return self.critic.value(state)

    def std(self, state: Any) -> Any:
        """Standard deviation of the return from an observation."""
        return self.critic.std(state)

    def predict(self, states: Any, what: str = "value") -> Array:
        """Estimates for rows of observations."""
        return self.critic.predict(states, what)

    def interval(
        self, state: Any = None, what: str = "value", *, states: Any = None, level: float = 0.9
    ) -> tuple[Any, Any]:
        """Ends of the intervals of the critic."""
        return self.critic.interval(state, what, states=states, level=level)

    def save(self, path: Any) -> None:
        """Write the critic to a file; :meth:`Critic.load` reads it."""
        self.critic.notes = self.notes
        self.critic.save(path)


def make_critic(
    fitting: Fitting, columns: Columns, learner: Learner, encoder: Encoder | None = None
) -> Critic:
    """The critic of networks as they are, and how much of its spread is error of the value."""
    module = fitting.module
    left, error = columns.left, _value_error(module, columns)
    about = About(
        steps=len(columns), blocks=columns.blocks, sweeps=fitting.sweep, low=left.min(axis=0),
        high=left.max(axis=0), samples=left[:: max(1, len(left) // SAMPLES)][:SAMPLES],
        error_share=error.share, error_share_noise=error.standard_error,
    )  # fmt: skip
    return Critic(module, learner, about, encoder)


def _value_error(module: Any, columns: Columns) -> ErrorShare:
    """The share of mean δ² that is a function of the observation."""
    x = torch.from_numpy(columns.observations).to(module.centre.device)
    with torch.no_grad():
        value = torch.cat([module(part)[0] for part in x.double().split(16_384)]).cpu().numpy()
    n = len(columns)
    errors = rules.td_error(columns.reward, columns.gamma, value[columns.follows], value[:n])
    errors = columns.rho * errors  # of the target policy: its mean is 0 where the value is right
    points = (columns.left - columns.left.mean(axis=0)) / np.maximum(columns.left.std(axis=0), 1e-9)
    return error_share(points, errors, columns.block)


def _refuse_few(columns: Columns) -> None:
    """Refuse data that is too short to say anything."""
    largest = float(columns.gamma.max(initial=0.0))
    horizon = 1 / (1 - largest) if largest < 1 else 0.0
    fewest = max(FEWEST, math.ceil(HORIZONS * horizon))
    if len(columns) < fewest:
        remedy = f"a deep critic needs {count(fewest, 'transition')} at least, better 50,000"
        raise InputError("experience", count(len(columns), "transition"), remedy)


def _scalar(given: Any) -> float | None:
    return None if given is None else float(given)


def _positive(field: str, given: Any) -> float:
    found = arguments.number(field, given)
    if found <= 0:
        raise InputError(field, given, "must be positive")
    return found


def _layers(hidden: Any) -> tuple[int, ...]:
    sizes = arguments.entries("hidden", hidden, "sizes of layers, such as (64, 64)")
    return tuple(arguments.integer(f"hidden[{k}]", size, 1, 65_536) for k, size in enumerate(sizes))


def _device(given: Any) -> str:
    try:
        torch.empty(0, device=given)
    except (RuntimeError, TypeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError("device", given, f"is not a device of torch here: {reason}") from None
    return str(given)
