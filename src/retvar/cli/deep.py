"""`retvar estimate --features deep`: what differs from other estimates."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import key_values
from retvar.cli.live import Watch
from retvar.cli.sources import load_policy, make_stoppable
from retvar.errors import InputError, RetvarError
from retvar.signals import Interrupted, Stop

if TYPE_CHECKING:
    from retvar.estimation.estimate import Estimate
    from retvar.experience import Experience

__all__ = ["deep_options", "finish", "prepare_any", "refuse_beside_deep", "saved_line"]

DEEP = "deep"
SAVED = "The estimator is saved; continue with --resume"
SAVED_DEEP = "The estimator is saved; rv.deep.Critic.load reads it:"
OWN = ("sweeps", "members", "hidden")  # options that only deep critics have
SETTINGS = ("gamma", "lam", "method", "estimand", "level", "seed")  # that a deep critic has
REFUSED = {
    "by": "is for other features",
    "bootstrap_samples": "a deep critic has an ensemble for its intervals",
    "actions": "are not known to deep critics",
    "cluster": "sums transitions of states",
    "follow": "needs a log that ends",
    "resume": "a deep critic is fitted to all its data at once",
}


def deep_options(command: Any) -> Any:
    """Add the options of deep critics."""
    for name, kind, text in (
        ("--hidden", str, "Units of the hidden layers with --features deep [default: 64,64]."),
        ("--members", click.IntRange(1), "Networks of the ensemble [default: 5; 1: no intervals]."),
        ("--sweeps", click.IntRange(1), "How long to fit [default: 25 to 100, by γ]."),
    ):
        command = click.option(name, type=kind, help=text)(command)
    return command


def saved_line(path: Path, args: dict[str, Any]) -> str:
    """Where the estimator is, and what to do with it."""
    return f"{SAVED_DEEP if args['features'] == DEEP else SAVED} {path}"


def refuse_beside_deep(args: dict[str, Any]) -> None:
    """Refuse options that a deep critic cannot have, and its own ones beside other features."""
    if args["features"] != DEEP:
        for name in OWN:
            if args[name] is not None:
                raise InputError(f"--{name}", args[name], "only with --features deep")
        return
    for name, why in REFUSED.items():
        if args[name]:
            option = f"--{name.replace('_', '-')}"
            raise InputError(option, args[name], f"{why}; leave it out beside --features deep")
    if args["order"] != 2:
        raise InputError("--order", args["order"], "deep critics know moments up to the variance")


def prepare_any(experience: Experience, settings: dict[str, Any], args: dict[str, Any]) -> Estimate:
    """The estimate that the settings ask for, before its first transition."""
    if settings.get("features") == DEEP:
        from retvar.deep import deep_estimates

        own = {name: settings[name] for name in SETTINGS}
        given = {name: args[name] for name in (*OWN, "kappa") if args[name] is not None}
        if "hidden" in given:
            given["hidden"] = _layers(given["hidden"])
        own |= given
        return deep_estimates.prepare(experience, **own)
    from retvar.estimation.estimate import prepare

    return prepare(experience, **settings)


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError("--hidden", text, "must be sizes of layers, such as 128,128") from None


def finish(
    found: Estimate,
    failure: BaseException | None,
    source: str,
    args: dict[str, Any],
    stop: Stop,
    watch: Watch,
) -> BaseException | None:
    """Fit a deep critic; return the error that ended it early, if there is something to save."""
    if args["features"] != DEEP:
        return failure
    from retvar.progress import Display

    estimator = found.estimator
    try:
        with Display(sys.stderr, stop.check, unit="sweeps") as progress:

            def told(done: float) -> None:
                if done == 1:  # how many there will be depends on the data
                    progress.start(estimator.sweeps)
                progress.advance(done)
                watch.sweeps(done, estimator.sweeps)

            estimator.progress, estimator.check = told, stop.check
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
