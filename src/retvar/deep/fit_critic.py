"""Fit a critic to experience; an estimate by it is one of :func:`retvar.estimate`.

:class:`Networks` are value networks for its stack.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from retvar.deep.critic import About, Critic, Encoder, encoded
from retvar.deep.fitting import Columns, Fitting, Record, Scales, Settings, usual_sweeps
from retvar.deep.modules import ROWS
from retvar.estimation.bases import Folds
from retvar.estimation.episodes import EpisodeLog, refuse_discounts
from retvar.estimation.estimate import Estimate
from retvar.estimation.returns import Monitor
from retvar.estimation.settings import make_learner, with_lam
from retvar.experience.stream import Experience
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import count, literal
from retvar.td import rules
from retvar.td.learners import Learner
from retvar.td.networks import DEFAULT, NETWORKS, VALUE

Array = NDArray[np.float64]
log = logging.getLogger("retvar")
FEWEST, HORIZONS = 200, 5  # transitions at least, and horizons
SAMPLES = 64  # observations that a critic remembers
PAIRS = 16_000  # of neighbours
SEARCHED = 200_000  # among which neighbours are searched
NEIGHBOURS = 16  # that are looked at to find one of another episode
WIDEST = 1_024  # numbers of an observation that needs no encoder
STATES = "are numbered states: deep critics are for observations; take rv.estimate"
IMAGES = "look like images: give an encoder, from a tensor of such rows to rows of features"


def fit(
    experience: Experience,
    *,
    gamma: float | None = None,
    lam: float | None = None,
    method: str = DEFAULT,
    estimand: Any = "target_return",
    encoder: Encoder | None = None,
    progress: Callable[[int], None] | None = None,
    **fitting: Any,
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
        Networks of the ensemble (5), each fitted to a bootstrap sample of the episodes. One is
        fastest, and has no intervals.
    hidden
        Units of the hidden layers (64, 64), with tanh.
    sweeps, batches, batch_size, learning_rate
        Number of times that targets are computed (by default 25 to 100, by 1/(1 − γ));
        steps of Adam in each, for each network (80), with batches of this size (1,024) and a step
        size (0.003) that falls to 0.
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
    if progress is not None and not callable(progress):
        raise InputError("progress", literal(progress), "must be a function of a number of sweeps")
    arguments.instance("experience", experience, Experience, "experience: rv.experience.from_…")
    settings = Settings(**fitting)
    refuse_observations(experience.name, experience.width, encoder)
    learner = make_learner(gamma, lam, method, kappa=settings.kappa, estimand=estimand)
    learner, columns = _read(experience, learner, encoder)
    off_policy = learner.estimand == "off_policy_return"
    scales = Scales.of(columns, centred=not off_policy)
    fitted = Fitting(NETWORKS[learner.method], settings, scales, off_policy)
    wanted, counts = settings.sweeps or usual_sweeps(columns.usual_gamma), experience.counts
    with contextlib.suppress(KeyboardInterrupt):
        fitted.run(columns, wanted, progress)
    if not fitted.sweep:
        raise KeyboardInterrupt
    critic = make_critic(
        fitted, columns, learner, encoder, source=experience.name, policy=experience.policy,
        episodes=counts.episodes, complete=fitted.sweep == wanted,
        rejected=counts.rejected.total(),
    )  # fmt: skip
    for each in critic.warnings:
        log.warning("%s: %s", experience.name, each)
    return critic


def estimate(experience: Experience, *, level: float = 0.9, **settings: Any) -> Estimate:
    """Estimate by a deep critic: the result of :func:`retvar.estimate`, with its checks and plots.

    The arguments are those of :func:`retvar.deep.fit`, and the `level` of the intervals. The
    estimator is the critic.

    >>> import retvar as rv
    >>> cart = rv.experience.from_gymnasium("CartPole-v1", steps=2_000, seed=1)
    >>> found = rv.deep.estimate(cart, gamma=0.9, members=2, sweeps=4, batches=20)
    >>> found.data.attrs["by"], found.estimator.steps
    ('deep', 2000)
    """
    monitor, critic = Monitor(level), fit(experience, **settings)
    return Estimate(experience, critic, monitor, moves=experience.moves())


class Networks:
    """Value networks as a base of a stack: as far as held-out returns confirm them, they count.

    The settings are those of :func:`fit`; one network is fitted without each fold of the episodes.

    >>> import retvar as rv
    >>> cart = rv.experience.from_gymnasium("CartPole-v1", steps=2_000, seed=1)
    >>> bases = ["tiles", "waves", "neighbours", rv.deep.Networks(sweeps=4, batches=20)]
    >>> found = rv.estimate(cart, gamma=0.9, features=bases)
    >>> len(found.estimator.solution.weights)
    4
    """

    def __init__(self, members: int = 1, **settings: Any) -> None:
        self.settings = Settings(members=members, **settings)

    def fit(self, moves: EpisodeLog, folds: Folds) -> None:
        """Fit a network without each fold."""
        self._fits = [self._fit(moves.only(rows)) for rows in folds.others()]

    def _fit(self, log: EpisodeLog) -> tuple[Scales, Any]:
        record = Record(gamma=None, lam=None)
        record.add(vars(log) | {"gamma": log.discount, "truncated": log.cut})
        columns, direct = record.columns(), NETWORKS[DEFAULT]
        scales = Scales.of(columns, centred=True)
        fitting = Fitting(direct._replace(nodes=direct.nodes[:1]), self.settings, scales)
        fitting.run(columns, self.settings.sweeps or usual_sweeps(columns.usual_gamma))
        return scales, fitting.nets[VALUE].mean

    def predict(self, points: Array) -> Array:
        """Values [fold, place]."""
        found = []
        for scales, net in self._fits:
            x = torch.from_numpy((points - scales.centre) / scales.width).float()
            value = net.predict(x.to(self.settings.device)).double().mean(0).cpu().numpy()
            found.append(scales.shift + scales.scale * value)
        return np.stack(found)


def fewest_rows(gamma: float) -> int:
    """Transitions that a fit needs at least: some horizons 1/(1 − γ)."""
    return max(FEWEST, math.ceil(HORIZONS / (1 - gamma)) if gamma < 1 else 0)


def refuse_observations(name: str, width: int | None, encoder: Any) -> None:
    """Refuse states, and images without an encoder."""
    if width is None:
        raise InputError("experience", name, STATES)
    if encoder is None and width > WIDEST:
        raise InputError("observations", f"{width:,} numbers each", IMAGES)
    if encoder is not None and not callable(encoder):
        raise InputError("encoder", literal(encoder), "must be a function, such as a torch module")


def _read(
    experience: Experience, learner: Learner, encoder: Encoder | None
) -> tuple[Learner, Columns]:
    """All transitions, and the learner with defaults for what neither it nor the data says."""
    moves = experience.moves()
    first = next(moves.chunks(1), None)
    if first is None:
        raise InputError("experience", experience.name, "has no usable transition")
    learner = with_lam(learner, first)
    for name in ("gamma", "lam"):
        if np.ndim(getattr(learner, name)):
            raise InputError(name, "one per state", "must be one number, or in the data")
    record = Record(learner.gamma, learner.lam)
    for chunk in moves.chunks():
        refuse_discounts(learner, chunk)
        record.add(encoded(encoder, chunk))
    columns = record.columns()
    fewest = fewest_rows(float(columns.gamma.max(initial=0.0)))
    if len(columns) < fewest:
        remedy = f"a deep critic needs {count(fewest, 'transition')} at least, better 50,000"
        raise InputError("experience", count(len(columns), "transition"), remedy)
    return learner, columns


def make_critic(
    fitting: Fitting, columns: Columns, learner: Learner, encoder: Encoder | None, **known: Any
) -> Critic:
    """The critic of networks as they are, and how much of its spread is error of the value."""
    module, left, n = copy.deepcopy(fitting.module), columns.left, len(columns)
    x = torch.from_numpy(columns.observations).to(module.centre.device)
    with torch.no_grad():
        value = torch.cat([module(part)[0] for part in x.split(ROWS)]).cpu().numpy()
    errors = rules.td_error(columns.reward, columns.gamma, value[columns.follows], value[:n])
    errors = columns.rho * errors  # of the target policy: its mean is 0 where the value is right
    points = (left - left.mean(axis=0)) / np.maximum(left.std(axis=0), 1e-9)
    share, noise = error_share(points, errors, columns.block)
    about = About(
        steps=n, blocks=int(columns.block[-1]) + 1, sweeps=fitting.sweep, low=left.min(axis=0),
        high=left.max(axis=0), samples=left[:: max(1, n // SAMPLES)][:SAMPLES],
        error_share=share, error_share_noise=noise, **known,
    )  # fmt: skip
    return Critic(module, learner, about, encoder)


def error_share(
    points: Array, errors: Array, block: NDArray[np.int64], seed: int = 0
) -> tuple[float, float]:
    """The share of mean δ² that neighbours in other blocks explain, and its standard error.

    The reward of the variance node is δ². Where neither world nor policy is random, δ is a function
    of the observation: the error of the value, and nothing else. Two transitions that leave nearly
    the same observation in different episodes share it, while their noise is independent; so the
    mean of δᵢδⱼ over such pairs, beside that of δ², is the share of δ² that is error of the value.
    Where outcomes are rare and large, a few pairs decide. NaN without such neighbours.

    >>> rng = np.random.default_rng(0)
    >>> x, block = rng.random((20_000, 1)), np.arange(20_000) // 2
    >>> round(error_share(x, np.sin(9 * x[:, 0]), block)[0], 2)
    1.0
    >>> abs(error_share(x, rng.normal(size=20_000), block)[0]) < 0.1
    True
    """
    rng = np.random.default_rng(seed)
    if len(errors) > SEARCHED:
        kept = np.sort(rng.choice(len(errors), SEARCHED, replace=False))
        points, errors, block = points[kept], errors[kept], block[kept]
    asked = rng.choice(len(errors), min(PAIRS, len(errors)), replace=False)
    _, near = cKDTree(points).query(points[asked], k=range(1, 1 + min(NEIGHBOURS, len(errors))))
    elsewhere = np.abs(block[near] - block[asked][:, None]) > 1
    found = elsewhere.any(axis=1)
    own = asked[found]
    other = near[found, np.argmax(elsewhere[found], axis=1)]
    if not own.size:
        return float("nan"), 0.0
    squares, products = errors[own] ** 2, errors[own] * errors[other]
    mean = float(squares.mean())
    if mean == 0.0:
        return 0.0, 0.0
    share = float(products.mean()) / mean
    return share, float((products - share * squares).std()) / mean / own.size**0.5
