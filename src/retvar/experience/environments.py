"""Experience from environments: Gymnasium's, alone or side by side, and linear-Gaussian worlds."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from retvar.experience.moves import LARGEST_REWARD, Chunk, describe_error
from retvar.experience.observations import ObservationReader, environment_names, experience_of
from retvar.experience.policies import Chooser, action_selection
from retvar.experience.stream import Counts, Experience
from retvar.mdp.linear_gaussian import LinearGaussian
from retvar.support.arguments import generator, instance, integer
from retvar.support.errors import InputError
from retvar.support.format import listed
from retvar.td.random import seed_of

ENVIRONMENT = (
    "must be an id, a Gymnasium environment, a vector environment, a list of single ones, or a "
    "function that makes one"
)
WALKED = 8_192  # transitions of a linear-Gaussian world at a time, about
COLUMNS = ("state", "action", "reward", "next_state", "terminated", "truncated", "stream")
Row = tuple[Any, Any, float, Any, bool, bool, int]  # of these columns


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

    Several environments are interleaved: the first transition of each, the second of each, …, with
    the number of the environment as ``stream``. Truncation is not termination; the last transition
    of each environment is marked truncated if its episode was not over. A reward or an observation
    that is not finite is an error, which comes after the transitions before it.

    Parameters
    ----------
    env
        An id (`options` then go to ``gymnasium.make``), a ``gymnasium.Env``, a vector environment
        in any autoreset mode, a list of single environments, or a function that makes one.
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
    with opened(env, envs, options) as used:
        vector, (observed, acted) = is_vector(used), _spaces(used)
        reader, n = ObservationReader(observed), used[0].num_envs if vector else len(used)
        name, inner = _name(used[0])
    children = np.random.SeedSequence(int(seed_of(seed))).spawn(n)
    seeds, own = np.array([child.generate_state(2) >> 1 for child in children]).T.tolist()
    described, begin = action_selection(policy, acted, reader, seed, own, deterministic)

    def parts() -> Iterator[dict[str, Any]]:
        left = [in_all // n + (i < in_all % n) for i in range(n)]
        with opened(env, envs, options) as used:
            rows = (_vector if vector else _singles)(used, begin(), reader, seeds, left)
            for part in _parts(_in_turn(rows, left, most, reader), chunk):
                yield dict(zip(COLUMNS[: 6 + (n > 1)], zip(*part, strict=True), strict=False))

    name += f" × {n}" if n > 1 else ""
    about = environment_names(name, inner, reader)
    return experience_of(name, parts, reader, acted, policy=described, length=steps, **about)


# ------------------------------------------------------------------ making


@contextmanager
def opened(env: Any, copies: int | None, options: dict[str, Any]) -> Iterator[list[Any]]:
    """The environments that are meant; those that are made for this are closed at the end."""
    number = 1 if copies is None else integer("envs", copies, 1)
    made = isinstance(env, str) or callable(env)
    if options and not isinstance(env, str):
        raise InputError("options", listed(sorted(options)), "go with the id of an environment")
    if copies is not None and not made:
        raise InputError("envs", copies, "needs an id, or a function that makes an environment")
    found = [] if made else list(env) if isinstance(env, list | tuple) else [env]
    with ExitStack() as after:
        while made and len(found) < number:
            found.append(env() if callable(env) else _made(env, options))
            after.callback(found[-1].close)
        yield found


def _made(name: str, options: dict[str, Any]) -> Any:
    import gymnasium

    try:
        return gymnasium.make(name, **options)
    except Exception as error:  # an environment may raise anything
        remedy = f"cannot be made: {describe_error(error)}"
        raise InputError("environment", name, remedy) from None


def is_vector(envs: list[Any]) -> bool:
    """Whether this is a single vector environment."""
    return len(envs) == 1 and hasattr(envs[0], "single_action_space")


def _spaces(envs: list[Any]) -> list[Any]:
    """The spaces of single observations and actions, which environments have in common."""
    import gymnasium

    single = "single_" if is_vector(envs) else ""
    for env in envs or ["an empty list"]:
        if not (single or isinstance(env, gymnasium.Env)):
            raise InputError("environment", env, ENVIRONMENT)
    if len(set(map(id, envs))) < len(envs):
        raise InputError("environment", "one of them twice", "each must be a separate object")
    names = [f"{single}{kind}_space" for kind in ("observation", "action")]
    first, *others = ([getattr(env, name) for name in names] for env in envs)
    for each in others:
        if each != first:
            raise InputError("environment", each, "must have the spaces of the first one")
    return first


def _name(env: Any) -> tuple[str, Any]:
    """The name of an environment, and what is inside all wrappers, as far as it can be reached."""
    inner = env.unwrapped
    if is_vector([env]) and getattr(inner, "envs", None):
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
            if left[new[-1]]:
                queues[new[-1]].append(new)
        if left[turn]:
            state, action, reward, after, ended, cut, _ = queue.popleft()
            if not abs(reward) <= LARGEST_REWARD:
                raise ValueError(f"the reward is {reward}")
            state = reader.read(state)
            after = state if ended else reader.read(after)
            cut |= most <= len(left) and not ended
            yield state, action, reward, after, ended, cut, turn
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
            yield current[i], action, _number(reward), after, bool(ended), bool(cut), i
            over = (ended or cut) and left[i]
            current[i] = reader.copy(envs[i].reset()[0]) if over else after


def _number(reward: Any) -> float:
    try:
        return float(reward)
    except (TypeError, ValueError):
        raise ValueError(f"the reward is {reward!r}, not a number") from None


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
            yield current[i], action, float(rewards[i]), after, bool(ends[i]), bool(cuts[i]), i
        current = observations


# ------------------------------------------------------------------ linear-Gaussian worlds


def from_linear_gaussian(
    world: LinearGaussian, *, streams: int = 64, steps: int = 200_000, seed: int = 0
) -> Experience:
    """Sample walks of a :class:`retvar.mdp.domains.LinearGaussian`, `steps` transitions in all.

    The streams are interleaved. Each starts from the stationary distribution, and its last
    transition is marked truncated.

    >>> import retvar as rv
    >>> world = rv.domains.linear_gaussian(F=[[0.8, 0.3], [-0.3, 0.8]], S=0.3, Q=1.0, gamma=0.95)
    >>> experience = from_linear_gaussian(world, streams=8, steps=1_000)
    >>> chunk = next(experience.chunks())
    >>> chunk["state"].shape, int(chunk["truncated"].sum())
    ((1000, 2), 8)
    """
    instance("world", world, LinearGaussian, "a LinearGaussian")
    streams = integer("streams", streams, 1)
    steps = integer("steps", steps, streams)
    generator("seed", seed)
    _ = world.stationary  # refuses a world that has none
    each, block = -(-steps // streams), max(WALKED // streams, 1)

    def source(counts: Counts) -> Iterator[Chunk]:
        first = 0
        for states, rewards in world.walks(streams, each, seed, block=block):
            row = np.arange(first, min(first + rewards.size, steps))
            yield {
                "state": states[:-1].reshape(-1, world.width)[: len(row)],
                "reward": rewards.reshape(-1)[: len(row)],
                "next_state": states[1:].reshape(-1, world.width)[: len(row)],
                "terminated": np.zeros(len(row), dtype=bool),
                "truncated": row >= steps - streams,
                "stream": row % streams,
            }
            first += len(row)

    name = "linear-Gaussian world" + (f" × {streams}" if streams > 1 else "")
    return Experience(
        name, source, width=world.width, names=world.names, length=steps,
        policy="" if world.control is None else "u = −Kx",
    )  # fmt: skip
