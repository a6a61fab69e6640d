"""Experience from Gymnasium environments: one, several in turn, or a vector environment."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from retvar.experience.moves import LARGEST_REWARD, describe_error
from retvar.experience.observations import ObservationReader, environment_names, experience_of
from retvar.experience.policies import Chooser, action_selection
from retvar.experience.stream import Experience
from retvar.support.arguments import integer
from retvar.support.errors import InputError
from retvar.support.format import listed
from retvar.td.random import seed_of

ENVIRONMENT = (
    "must be an id, a Gymnasium environment, a vector environment, a list of single ones, or a "
    "function that makes one"
)
Row = tuple[int, Any, Any, float, Any, bool, bool]
# environment, observation, action, reward, next observation, terminated, truncated


def from_gymnasium(
    env: Any,
    policy: Any = "random",
    *,
    steps: int | None = None,
    episodes: int | None = None,
    envs: int | None = None,
    deterministic: bool | None = None,
    seed: int = 0,
    chunk: int = 4_096,
    **options: Any,
) -> Experience:
    """Roll out a policy in an environment, for so many steps or episodes.

    Several environments, as copies, a list or a vector environment in any autoreset mode, are
    interleaved: the first transition of each, the second of each, …, each with the number of its
    environment as ``stream`` and a seed of its own. Truncation is not termination; the last
    transition of each environment is marked truncated if its episode was not over. A reward or an
    observation that is not finite is an error, which comes after the transitions before it.

    Parameters
    ----------
    env
        An id (`options` then go to ``gymnasium.make``), a ``gymnasium.Env``, a vector environment,
        a list of single environments, or a function that makes one.
    policy
        ``"random"``; an array of actions [state] or of probabilities [state, action]; a
        :class:`retvar.Policy`; a function of a single observation; or an object with
        ``predict(observation)``, as Stable-Baselines3's models are: these choose the actions of all
        environments in one call, from normalised observations where they learned from these.
        ``"sb3:PPO:model.zip"`` loads such a model, which can run code in the file.
    steps, episodes
        Total number: give one of them. Each environment runs the same number of episodes (the first
        ones one more where they do not divide), so that short ones are not preferred.
    envs
        Number of copies that run side by side.
    deterministic
        Whether a model's actions are its most probable ones (the default) or drawn at random: two
        policies with different returns. The result says which one it was.
    seed, chunk
        Seed of environments and actions; transitions per chunk.

    Examples
    --------
    >>> lake = from_gymnasium("FrozenLake-v1", steps=1_000, seed=1)
    >>> sum(len(part["reward"]) for part in lake.chunks()), lake.states, lake.grid
    (1000, 16, (4, 4))
    """
    if (steps is None) == (episodes is None):
        found = "neither" if steps is None else "both"
        raise InputError("steps, episodes", found, "give one of them: how long to go on")
    most = sys.maxsize if steps is None else integer("steps", steps, 1)
    in_all = sys.maxsize if episodes is None else integer("episodes", episodes, 1)
    chunk = integer("chunk", chunk, 1)
    make, vector = make_copies(env, envs, options), is_vector(env)
    opened = make() if make else list(env) if isinstance(env, list | tuple) else [env]
    spaces = _spaces(opened, vector)
    reader, n = ObservationReader(spaces[0]), int(env.num_envs) if vector else len(opened)
    children = np.random.SeedSequence(int(seed_of(seed))).spawn(n)
    seeds = [[int(word) >> 1 for word in child.generate_state(2)] for child in children]
    described, begin = action_selection(
        policy, spaces, reader, seed, [own for _, own in seeds], deterministic
    )

    def parts() -> Iterator[list[Row]]:
        if make and not opened:
            opened.extend(make())
        left = [in_all // n + (i < in_all % n) for i in range(n)]
        step = _vector if vector else _singles
        rows = step(opened, begin(), reader, [first for first, _ in seeds], left)
        try:
            yield from _parts(_in_turn(rows, left, most, reader), chunk)
        finally:
            while make and opened:
                opened.pop().close()

    def columns(part: list[Row]) -> dict[str, Any]:
        stream, state, action, reward, after, ended, cut = map(list, zip(*part, strict=True))
        return {
            "state": reader.column(state), "action": action, "reward": np.array(reward),
            "next_state": reader.column(after), "terminated": np.array(ended),
            "truncated": np.array(cut), **({"stream": np.array(stream)} if n > 1 else {}),
        }  # fmt: skip

    name, inner = _name(opened[0], vector)
    name += f" × {n}" if n > 1 else ""
    about = environment_names(name, inner, reader)
    return experience_of(
        name, parts, columns, reader, spaces[1], policy=described, length=steps, **about
    )


# ------------------------------------------------------------------ making


def is_vector(env: Any) -> bool:
    """Whether an environment is a vector environment."""
    import gymnasium

    return isinstance(env, gymnasium.vector.VectorEnv)


def make_copies(
    env: Any, copies: int | None, options: dict[str, Any]
) -> Callable[[], list[Any]] | None:
    """A function that makes environments from an id or a function; None for a given environment."""
    number = 1 if copies is None else integer("envs", copies, 1)
    if isinstance(env, str):
        return lambda: [_make_environment(env, options) for _ in range(number)]
    if options:
        raise InputError("options", listed(sorted(options)), "go with the id of an environment")
    if callable(env):
        return lambda: [env() for _ in range(number)]
    if copies is not None:
        raise InputError("envs", copies, "needs an id, or a function that makes an environment")
    return None


def _make_environment(name: str, options: dict[str, Any]) -> Any:
    import gymnasium

    try:
        return gymnasium.make(name, **options)
    except Exception as error:  # an environment may raise anything
        remedy = f"cannot be made: {describe_error(error)}"
        raise InputError("environment", name, remedy) from None


def _spaces(envs: list[Any], vector: bool) -> list[Any]:
    """The spaces of single observations and actions, which environments have in common."""
    import gymnasium

    for env in envs or ["an empty list"]:
        if not (vector or isinstance(env, gymnasium.Env)):
            raise InputError("environment", env, ENVIRONMENT)
    if len(set(map(id, envs))) < len(envs):
        raise InputError("environment", "one of them twice", "each must be a separate object")
    names = [f"{'single_' * vector}{kind}_space" for kind in ("observation", "action")]
    found = [[getattr(env, name) for name in names] for env in envs]
    for each in found:
        if each != found[0]:
            raise InputError("environment", each, "must have the spaces of the first one")
    return found[0]


def _name(env: Any, vector: bool) -> tuple[str, Any]:
    """The name of an environment, and what is inside all wrappers, as far as it can be reached."""
    inner = env.unwrapped
    if vector and getattr(inner, "envs", None):
        inner = inner.envs[0].unwrapped
    spec = getattr(env, "spec", None) or getattr(inner, "spec", None)
    return f"gymnasium:{type(inner).__name__ if spec is None else spec.id}", inner


# ------------------------------------------------------------------ stepping


def _in_turn(
    rows: Iterator[Row], left: list[int], most: int, reader: ObservationReader
) -> Iterator[Row]:
    """Rows in turn, read: first one of each environment, then another of each, `most` in all.

    `left` are the numbers of episodes wanted of each, and of those still to come.
    """
    queues = [deque[Row]() for _ in left]
    for turn, queue in itertools.cycle(enumerate(queues)):
        while left[turn] and not queue:
            new = next(rows)
            if left[new[0]]:
                queues[new[0]].append(new)
        if left[turn]:
            i, state, action, reward, after, ended, cut = queue.popleft()
            if not abs(reward) <= LARGEST_REWARD:
                raise ValueError(f"the reward is {reward}")
            state = reader.read(state)
            after = state if ended else reader.read(after)
            last = most <= len(left) and not ended
            yield i, state, action, reward, after, ended, cut or last
            most -= 1
            left[turn] -= ended or cut
            if not most or not any(left):
                return


def _parts(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    """Rows in lists of `size`; those before an error come before it."""
    while True:
        part: list[Row] = []
        try:
            part.extend(itertools.islice(rows, size))
        finally:
            if part:
                yield part
        if len(part) < size:
            return


def _singles(
    envs: list[Any], act: Chooser, reader: ObservationReader, seeds: list[int], left: list[int]
) -> Iterator[Row]:
    """Step single environments in turn, each as long as episodes of it are `left`."""
    current = [reader.copy(env.reset(seed=s)[0]) for env, s in zip(envs, seeds, strict=True)]
    while True:
        actions = act({i: current[i] for i, n in enumerate(left) if n})
        for i, action in actions.items():
            after, reward, ended, cut, _ = envs[i].step(action)
            after = reader.copy(after)
            yield i, current[i], action, float(reward), after, bool(ended), bool(cut)
            over = (ended or cut) and left[i]
            current[i] = reader.copy(envs[i].reset()[0]) if over else after


def _vector(
    envs: list[Any], act: Chooser, reader: ObservationReader, seeds: list[int], _: Any
) -> Iterator[Row]:
    """Step a vector environment; steps that only reset are left out."""
    from gymnasium.vector import AutoresetMode
    from gymnasium.vector.utils import concatenate, create_empty_array, iterate

    def split(batch: Any) -> list[Any]:
        return [reader.copy(part) for part in iterate(env.observation_space, batch)]

    env, n, space = envs[0], len(seeds), envs[0].single_action_space
    mode, over = AutoresetMode(env.metadata.get("autoreset_mode")), np.zeros(n, dtype=bool)
    single = hasattr(env.unwrapped, "env_fns") or hasattr(env.unwrapped, "envs")
    current = split(env.reset(seed=seeds if single else seeds[0])[0])
    actions: list[Any] = [None] * n
    while True:
        if mode is AutoresetMode.DISABLED and over.any():
            current = split(env.reset(options={"reset_mask": over})[0])
        resets = over & (mode is AutoresetMode.NEXT_STEP)
        chosen = act({i: current[i] for i in np.flatnonzero(~resets).tolist()})
        for i, action in chosen.items():
            actions[i] = action  # a step that only resets ignores its action
        batch = concatenate(space, actions, create_empty_array(space, n))
        observations, rewards, ends, cuts, infos = env.step(batch)
        observations, over = split(observations), np.logical_or(ends, cuts)
        for i, action in chosen.items():
            final = over[i] and mode is AutoresetMode.SAME_STEP
            after = reader.copy(infos["final_obs"][i]) if final else observations[i]
            yield i, current[i], action, float(rewards[i]), after, bool(ends[i]), bool(cuts[i])
        current = observations
