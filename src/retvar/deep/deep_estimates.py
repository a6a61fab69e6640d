"""Estimates by deep critics: as :func:`retvar.estimate`, for observations of any kind."""

from __future__ import annotations

from typing import Any

from retvar import arguments
from retvar.deep.deep_estimator import DeepEstimator, make_settings, refuse_observations
from retvar.estimation.estimate import Estimate
from retvar.estimation.monitor import Monitor
from retvar.estimation.setup import make_learner
from retvar.experience.recipes import same
from retvar.experience.stream import Chunk, Experience
from retvar.networks import DEFAULT

__all__ = ["estimate", "prepare"]

KNOWN = {"method": DEFAULT, "estimand": "target_return", "level": 0.9, "seed": 0}  # defaults


def prepare(
    experience: Experience,
    *,
    gamma: float | None = None,
    lam: float | None = None,
    method: str = DEFAULT,
    estimand: Any = "target_return",
    level: float = 0.9,
    **settings: Any,
) -> Estimate:
    """An estimate by a deep critic before its first transition, with all settings checked."""
    arguments.instance("experience", experience, Experience, "experience: rv.experience.from_…")
    own, encoder = make_settings(**settings), settings.get("encoder")
    learner = make_learner(
        gamma=gamma, lam=lam, method=method, kappa=own.kappa, estimand=estimand
    )  # fmt: skip
    refuse_observations(experience, encoder)

    def create(chunk: Chunk) -> Any:
        return DeepEstimator.create(experience, learner, own, chunk, encoder)

    asked = {"gamma": gamma, "lam": lam, "method": method, "estimand": estimand, "level": level}
    asked = {name: x for name, x in (asked | settings).items() if not same(x, KNOWN.get(name))}
    return Estimate(experience, None, Monitor(level), create, learner, asked)


def estimate(experience: Experience, **settings: Any) -> Estimate:
    """Estimate by a deep critic: the result of :func:`retvar.estimate`, with its checks and plots.

    The arguments are those of :func:`retvar.deep.fit`, and the `level` of the intervals. The critic
    is ``found.estimator.critic``.

    >>> import retvar as rv
    >>> cart = rv.experience.from_gymnasium("CartPole-v1", steps=2_000, seed=1)
    >>> found = rv.deep.estimate(cart, gamma=0.9, members=2, sweeps=4, batches=20)
    >>> found.data.attrs["by"], found.estimator.critic.steps
    ('deep', 2000)
    """
    found = prepare(experience, **settings)
    found.learn()
    found.estimator.finish()
    return found
