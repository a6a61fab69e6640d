"""Vector environments of Stable-Baselines3: recognised, refused where normalised, and stepped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from retvar.errors import InputError
from retvar.experience.observations import ObservationReader
from retvar.experience.policies import ActionSelection

__all__ = ["is_vec_env", "queue_vec_env_steps", "refuse_normalised"]

REWARDS = (
    "normalised rewards are not the rewards, and neither are their returns; set norm_reward = False"
)
TRAINING = "observations would change their meaning from step to step; set training = False"
OBSERVATIONS = (
    "the model knows normalised observations only: give its VecNormalize as the environment, with "
    "training = False and norm_reward = False"
)


def is_vec_env(env: Any) -> bool:
    """Whether an object is a ``VecEnv`` of Stable-Baselines3, which is not imported here.

    >>> is_vec_env("CartPole-v1")
    False
    """
    library = sys.modules.get("stable_baselines3.common.vec_env")
    return library is not None and isinstance(env, library.VecEnv)


def refuse_normalised(env: Any, model: Any) -> None:
    """Refuse normalised rewards, and a model that was trained on normalised observations.

    >>> refuse_normalised("CartPole-v1", None)
    """
    own = _normalisation(env) if is_vec_env(env) else None
    if own is not None:
        if own.norm_reward:
            raise InputError("norm_reward", True, REWARDS)
        if own.training:
            raise InputError("training", True, TRAINING)
    get = getattr(model, "get_vec_normalize_env", None)
    trained = get() if callable(get) else None
    if trained is not None and trained.norm_obs and (own is None or not own.norm_obs):
        raise InputError("policy", type(model).__name__, OBSERVATIONS)


def _normalisation(env: Any) -> Any:
    """The ``VecNormalize`` around an environment, if there is one."""
    kind = sys.modules["stable_baselines3.common.vec_env"].VecNormalize
    while env is not None and not isinstance(env, kind):
        env = getattr(env, "venv", None)
    return env


def queue_vec_env_steps(
    env: Any, selection: ActionSelection, reader: ObservationReader, seeds: list[int],
    queues: list[Any],
) -> Iterator[None]:  # fmt: skip
    """Step the environment again and again, and queue the transitions of each.

    A finished episode is reset within its last step, which brings the observation before the reset,
    and whether a limit of time has cut it off, as information.
    """
    env.seed(seeds[0])  # environment i has this seed + i
    every = list(range(int(env.num_envs)))
    current = _split(reader, env.reset())
    act = selection.of_some(len(every))
    while True:
        actions = act(current, every)
        batch, rewards, dones, infos = env.step(np.array(actions))
        observations = _split(reader, batch)
        for i in every:
            after, over = observations[i], bool(dones[i])
            cut = over and bool(infos[i].get("TimeLimit.truncated", False))
            if over:
                (after,) = _split(reader, [infos[i]["terminal_observation"]])
            moved = current[i], actions[i], float(rewards[i]), after
            queues[i].append((*moved, over and not cut, cut))
        current = observations
        yield


def _split(reader: ObservationReader, batch: Any) -> list[Any]:
    """Split a batch into observations."""
    return list(batch) if reader.copy is None else [reader.copy(each) for each in batch]
