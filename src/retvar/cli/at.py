"""The option ``--at`` of `retvar estimate`: answers for single states, with roll-outs beside."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import key_values
from retvar.cli.sources import load_policy, make_stoppable
from retvar.errors import InputError

if TYPE_CHECKING:
    from retvar.estimation.answers import Answer
    from retvar.estimation.estimate import Estimate
    from retvar.experience import Experience
    from retvar.signals import Stop

__all__ = ["answers", "at_options", "refuse_unknown"]

EPISODES = 300
FIRST = "roll-outs do not begin with an action"


def at_options(command: Any) -> Any:
    """Add the options for answers at single states."""
    rollouts = click.option(
        "--rollouts", type=click.IntRange(0), metavar="N",
        help="Number of roll-outs from each --at, where the environment can start there; 0 for "
        f"none [default: {EPISODES}].",
    )  # fmt: skip
    at = click.option(
        "--at", multiple=True, metavar="STATE",
        help="Also answer for this state (label or number), observation (numbers separated by "
        "commas) or, with --actions, STATE,ACTION; may be repeated. Labels of a log are known once "
        "it has been read.",
    )  # fmt: skip
    return at(rollouts(command))


def refuse_unknown(experience: Experience, args: dict[str, Any]) -> None:
    """Refuse a wrong ``--at`` before anything is learned, where the states are known."""
    from retvar.estimation.answers import find_state

    if args["rollouts"] == 1:
        raise InputError("--rollouts", 1, "must be 0 or at least 2")
    if args["rollouts"] is not None and not args["at"]:
        raise InputError("--rollouts", args["rollouts"], "needs --at: where to start")
    if args["actions"]:  # pairs are known once they have been read
        if args["rollouts"]:
            raise InputError("--rollouts", args["rollouts"], f"{FIRST}; leave it out")
        return
    for text in args["at"]:
        if experience.width is not None or experience.fixed_states:
            find_state(experience, text)
        elif experience.labels is None and not text.strip().isdecimal():  # how many is not known
            raise InputError("state", text, "must be the number of a state, 0 or more")


def answers(found: Estimate, source: str, args: dict[str, Any], stop: Stop) -> list[Answer]:
    """An answer for each ``--at``, with roll-outs where SOURCE is an environment."""
    answered = [found.at(text) for text in args["at"]]
    episodes = EPISODES if args["rollouts"] is None else args["rollouts"]
    if not source.startswith("gymnasium:") or not episodes:
        return answered
    return [_with_rollouts(each, found, source, episodes, args, stop) for each in answered]


def _with_rollouts(
    answer: Answer, found: Estimate, source: str, episodes: int, args: dict[str, Any], stop: Stop
) -> Answer:
    """The answer with roll-outs, or a word on why there are none."""
    import retvar as rv
    from retvar.estimation.rollouts import observed

    why = ""
    if found.experience.pairs:
        why = FIRST
    elif args["gamma"] is None:
        why = "γ is not one number"
    elif any(lam != 1.0 for lam in found.estimator.lams):
        why = "they are of the return, λ = 1"
    else:
        name, options = source.partition(":")[2], key_values(args["options"])
        envs = make_stoppable(name, args["envs"], options, stop)
        policy = load_policy(args["policy"] or "random", name, args["gamma"], options)
        settings = {
            "gamma": args["gamma"], "start": observed(answer.state), "episodes": episodes,
            "deterministic": args["deterministic"], "level": answer.level,
            "seed": (args["seed"] or 0) + 2,
        }  # fmt: skip
        try:
            try:
                sample = rv.rollouts(envs, policy, value=_known_value(found), **settings)
            except _Unknown:
                sample = rv.rollouts(envs, policy, **settings)
            return dataclasses.replace(answer, rollouts=sample)
        except InputError as error:
            if error.field != "start":
                raise
            why = error.remedy.partition(";")[0]  # the rest is for Python
    note = "; ".join(filter(None, (answer.note, f"no roll-outs: {why}")))
    return dataclasses.replace(answer, note=note)


class _Unknown(Exception):
    """The estimate does not know the value of an observation."""


def _known_value(found: Estimate) -> Any:
    """The value of an observation, which completes returns that were cut off."""

    def value(observation: Any) -> float:
        number = float(found.value(observation))
        if math.isnan(number):
            raise _Unknown
        return number

    return value
