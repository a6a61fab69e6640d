"""`retvar estimate --features deep`: what differs from other estimates."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from retvar.cli.base import key_values
from retvar.cli.sources import load_policy, make_stoppable
from retvar.errors import InputError, RetvarError
from retvar.signals import Interrupted, Stop

if TYPE_CHECKING:
    from retvar.estimation.estimate import Estimate
    from retvar.experience import Experience

__all__ = ["finish", "prepare_any", "refuse_beside_deep"]

DEEP = "deep"
SETTINGS = ("gamma", "lam", "method", "estimand", "level", "seed")  # that a deep critic has
REFUSED = {
    "by": "is for other features",
    "bootstrap_samples": "a deep critic has an ensemble for its intervals",
    "actions": "are not known to deep critics",
    "cluster": "sums transitions of states",
    "follow": "needs a log that ends",
    "resume": "a deep critic is fitted to all its data at once",
}


def refuse_beside_deep(args: dict[str, Any]) -> None:
    """Refuse options that a deep critic cannot have."""
    if args["features"] != DEEP:
        return
    for name, why in REFUSED.items():
        if args[name]:
            option = f"--{name.replace('_', '-')}"
            raise InputError(option, args[name], f"{why}; leave it out beside --features deep")
    if args["order"] != 2:
        raise InputError("--order", args["order"], "deep critics know moments up to the variance")


def prepare_any(experience: Experience, settings: dict[str, Any]) -> Estimate:
    """The estimate that the settings ask for, before its first transition."""
    if settings.get("features") == DEEP:
        from retvar.deep import deep_estimates

        own = {name: settings[name] for name in SETTINGS}
        if settings["kappa"] is not None:
            own["kappa"] = settings["kappa"]
        return deep_estimates.prepare(experience, **own)
    from retvar.estimation.estimate import prepare

    return prepare(experience, **settings)


def finish(
    found: Estimate,
    failure: BaseException | None,
    source: str,
    args: dict[str, Any],
    stop: Stop,
) -> BaseException | None:
    """Fit a deep critic; return the error that ended it early, if there is something to save."""
    if args["features"] != DEEP:
        return failure
    from retvar.progress import Display

    estimator = found.estimator
    try:
        with Display(sys.stderr, stop.check, unit="sweeps") as progress:
            progress.start(None)
            estimator.progress, estimator.check = progress.advance, stop.check
            estimator.finish()
    except (RetvarError, Interrupted) as error:
        if not estimator.steps:
            raise
        return error
    if source.startswith("gymnasium:") and args["gamma"] is not None:
        _repeat(found, source, args, stop)
    return failure


def _repeat(found: Estimate, source: str, args: dict[str, Any], stop: Stop) -> None:
    """Roll out again from some observations: where all returns are the same, there is no spread."""
    name, options = source.partition(":")[2], key_values(args["options"])
    policy = load_policy(args["policy"] or "random", name, args["gamma"], options)
    envs = make_stoppable(name, 1, options, stop)
    found.estimator.critic.repeat(
        envs, policy, deterministic=args["deterministic"], seed=(args["seed"] or 0) + 3
    )
