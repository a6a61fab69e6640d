"""Experience from Gymnasium environments: one, several in turn, or a vector environment."""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from retvar.experience.environment_names import environment_names
from retvar.experience.moves import Chunk, describe_error
from retvar.experience.observations import ObservationReader, experience_of, observation_reader
from retvar.experience.policies import Chooser, action_selection, is_vec_env
from retvar.experience.stream import Experience
from retvar.support.arguments import integer
from retvar.support.errors import InputError
from retvar.support.format import did_you_mean, listed
from retvar.td.random import seed_of

ENVIRONMENT = (
    "must be an id, a Gymnasium environment, a vector environment, a list of single ones, or a "
    "function that makes one"
)
MOST_COPIES = 10_000
UNLIMITED = 2**63 - 1
Copy = Callable[[Any], Any]  # of an observation
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

    Several environments, as copies, a list or a vector environment (Gymnasium's in any autoreset
    mode, or a ``VecEnv`` of Stable-Baselines3), are interleaved: the first transition of each, the
    second of each, …, each with the number of its environment as ``stream`` and a seed of its own.
    Truncation is not termination; the last transition of each environment is marked truncated if
    its episode was not over.

    Parameters
    ----------
    env
        An id (`options` then go to ``gymnasium.make``), a ``gymnasium.Env``, a vector environment,
        a list of single environments, or a function that makes one.
    policy
        ``"random"``; an array of actions [state] or of probabilities [state, action]; a
        :class:`retvar.Policy`; a function of a single observation; or an object with
        ``predict(observation)``, as Stable-Baselines3's models are: these choose the actions of all
        environments in one call. ``"sb3:PPO:model.zip"`` loads such a model; loading can run code
        in the file, so name only files that you trust.
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
    >>> from_gymnasium("FrozenLake-v7", steps=10)
    Traceback (most recent call last):
    ...
    retvar.InputError: environment = FrozenLake-v7: unknown to Gymnasium; did you mean
    FrozenLake-v1? cannot be made:...
    """
    if (steps is None) == (episodes is None):
        found = "neither" if steps is None else "both"
        raise InputError("steps, episodes", found, "give one of them: how long to go on")
    most = UNLIMITED if steps is None else integer("steps", steps, 1)
    in_all = UNLIMITED if episodes is None else integer("episodes", episodes, 1)
    chunk = integer("chunk", chunk, 1)
    several = _Environments(env, envs, options)
    reader, n = observation_reader(several.spaces[0]), several.count
    children = np.random.SeedSequence(int(seed_of(seed))).spawn(n)
    seeds = [[int(word) >> 1 for word in child.generate_state(2)] for child in children]
    described, chooser = action_selection(
        policy, env, several.spaces, reader, seed, [own for _, own in seeds], deterministic
    )

    def rows(acting: bool) -> Iterator[Chunk]:
        left = [in_all // n + (i < in_all % n) for i in range(n)]
        rounds = several.rounds(chooser(), reader.copy, [own for own, _ in seeds], left)
        names = {name for name, on in (("stream", n > 1), ("action", acting)) if on}
        try:
            yield from _columns(_in_turn(rounds, left, most), chunk, reader, names)
        finally:
            several.close()

    names = environment_names(several.name, several.inner, reader)
    return experience_of(
        several.name, rows, reader, several.spaces[1], policy=described, length=steps, **names
    )


class _Environments:
    """A list of single environments, or a vector environment; only those made here are closed."""

    def __init__(self, env: Any, copies: int | None, options: dict[str, Any]) -> None:
        import gymnasium

        self._make, self.vector = make_copies(env, copies, options), is_vector(env)
        given = list(env) if isinstance(env, list | tuple) else [env]
        self.envs = self._make() if self._make else given
        wrong = [x for x in self.envs if not (self.vector or isinstance(x, gymnasium.Env))]
        if wrong or not self.envs:
            raise InputError("environment", [*wrong, "an empty list"][0], ENVIRONMENT)
        if len(set(map(id, self.envs))) < len(self.envs):
            raise InputError("environment", "one of them twice", "each must be a separate object")
        first, several = self.envs[0], self.vector and not is_vec_env(env)
        self.spaces: list[Any] = []
        for name in ("observation_space", "action_space"):
            for other in self.envs:
                if getattr(other, name) != getattr(first, name):
                    raise InputError(name, getattr(other, name), "must be that of the first one")
            self.spaces.append(getattr(first, f"{'single_' * several}{name}"))
        self.count = int(env.num_envs) if self.vector else len(self.envs)
        inside = (getattr(env.unwrapped, "envs", None) or [None]) if self.vector else [first]
        self.inner = getattr(inside[0], "unwrapped", None)  # without wrappers, if it can be reached
        spec = getattr(first, "spec", None) or getattr(self.inner, "spec", None)
        word = spec.id if spec is not None else type(self.inner or first.unwrapped).__name__
        self.name = f"gymnasium:{word}" + (f" × {self.count}" if self.count > 1 else "")
        if several:
            _autoreset_mode(env)

    def rounds(self, act: Chooser, copy: Copy, seeds: list[int], left: list[int]) -> Iterator[Row]:
        """Transitions, for ever; environments are made again if they have been closed."""
        if not self.vector:
            self.envs = self.envs or (self._make() if self._make else [])
            return _singles(self.envs, act, copy, seeds, left)
        return (_vec_env if is_vec_env(self.envs[0]) else _vector)(self.envs[0], act, copy, seeds)

    def close(self) -> None:
        while self._make is not None and self.envs:
            self.envs.pop().close()


def is_vector(env: Any) -> bool:
    """Whether an environment is a vector environment, of either kind."""
    import gymnasium

    return isinstance(env, gymnasium.vector.VectorEnv) or is_vec_env(env)


def make_copies(
    env: Any, copies: int | None, options: dict[str, Any]
) -> Callable[[], list[Any]] | None:
    """A function that makes environments from an id or a function; None for a given environment.

    >>> [type(env.unwrapped).__name__ for env in make_copies("CartPole-v1", 2, {})()]
    ['CartPoleEnv', 'CartPoleEnv']
    """
    number = 1 if copies is None else integer("envs", copies, 1, MOST_COPIES)
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
    """Call ``gymnasium.make``; the error for an unknown id suggests a similar one."""
    import gymnasium

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error names outdated versions
            return gymnasium.make(name, **options)
    except Exception as error:  # an environment may raise anything
        remedy = f"cannot be made: {describe_error(error)}"
        if name not in gymnasium.registry:
            remedy = f"unknown to Gymnasium; {did_you_mean(name, gymnasium.registry)}{remedy}"
        raise InputError("environment", name, remedy) from None


# ------------------------------------------------------------------ stepping


def _in_turn(rows: Iterator[Row], left: list[int], most: int) -> Iterator[Row]:
    """Rows in turn: first one of each environment, then another of each, `most` in all.

    `left` are the numbers of episodes wanted of each, and of those still to come.
    """
    turn, queues = 0, [deque[Row]() for _ in left]
    for new in rows:
        if left[new[0]]:
            queues[new[0]].append(new)
        while queues[turn]:
            row = queues[turn].popleft()
            yield row
            most -= 1
            left[turn] -= row[5] or row[6]
            if not left[turn]:
                queues[turn].clear()  # its later steps are not asked for
            if not most or not any(left):
                return
            turn = next(k % len(left) for k in itertools.count(turn + 1) if left[k % len(left)])


def _singles(
    envs: list[Any], act: Chooser, copy: Copy, seeds: list[int], left: list[int]
) -> Iterator[Row]:
    """Step single environments in turn, each as long as episodes of it are `left`."""
    current = [copy(env.reset(seed=seed)[0]) for env, seed in zip(envs, seeds, strict=True)]
    while True:
        live = [i for i, n in enumerate(left) if n]
        for i, action in zip(live, act(current, live), strict=True):
            after, reward, ended, cut, _ = envs[i].step(action)
            after, reward = copy(after), np.nan if reward is None else float(reward)
            yield i, current[i], action, reward, after, bool(ended), bool(cut)
            over = (ended or cut) and left[i]
            current[i] = copy(envs[i].reset()[0]) if over else after


def _vector(env: Any, act: Chooser, copy: Copy, seeds: list[int]) -> Iterator[Row]:
    """Step a vector environment of Gymnasium; steps that only reset are left out."""
    from gymnasium.vector import AutoresetMode
    from gymnasium.vector.utils import concatenate, create_empty_array, iterate

    def split(batch: Any) -> list[Any]:
        return [copy(part) for part in iterate(env.observation_space, batch)]

    mode, n, space = _autoreset_mode(env), int(env.num_envs), env.single_action_space
    single = hasattr(env.unwrapped, "env_fns") or hasattr(env.unwrapped, "envs")
    current = split(env.reset(seed=seeds if single else seeds[0])[0])
    actions, over = [None] * n, np.zeros(n, dtype=bool)
    while True:
        if mode is AutoresetMode.DISABLED and over.any():
            fresh = split(env.reset(options={"reset_mask": over.copy()})[0])
            current = [fresh[i] if over[i] else current[i] for i in range(n)]
        resets = over & (mode is AutoresetMode.NEXT_STEP)
        live = np.flatnonzero(~resets).tolist()  # a step that only resets ignores its action
        for i, action in zip(live, act(current, live), strict=True):
            actions[i] = action
        batch = concatenate(space, actions, create_empty_array(space, n))
        observations, rewards, ends, cuts, infos = env.step(batch)
        observations, over = split(observations), np.logical_or(ends, cuts)
        for i in live:
            final = over[i] and mode is AutoresetMode.SAME_STEP
            after = copy(infos["final_obs"][i]) if final else observations[i]
            yield i, current[i], actions[i], float(rewards[i]), after, bool(ends[i]), bool(cuts[i])
        current = observations


def _vec_env(env: Any, act: Chooser, copy: Copy, seeds: list[int]) -> Iterator[Row]:
    """Step a vector environment of Stable-Baselines3.

    A finished episode is reset within its last step, which brings the observation before the reset,
    and whether a limit of time has cut it off, as information.
    """
    env.seed(seeds[0])  # environment i has this seed + i
    current = list(map(copy, env.reset()))
    while True:
        actions = list(act(current, range(len(current))))
        batch, rewards, dones, infos = env.step(np.array(actions))
        observations = list(map(copy, batch))
        for i, (over, info) in enumerate(zip(map(bool, dones), infos, strict=True)):
            after = copy(info["terminal_observation"]) if over else observations[i]
            cut = over and bool(info.get("TimeLimit.truncated", False))
            yield i, current[i], actions[i], float(rewards[i]), after, over and not cut, cut
        current = observations


def _autoreset_mode(env: Any) -> Any:
    """The autoreset mode of a vector environment, which must be in its metadata."""
    from gymnasium.vector import AutoresetMode

    given, modes = env.metadata.get("autoreset_mode"), {mode.value: mode for mode in AutoresetMode}
    if given not in {*modes, *AutoresetMode}:
        remedy = f"must say how it resets: one of {', '.join(modes)}"
        raise InputError('metadata["autoreset_mode"]', given, remedy)
    return AutoresetMode(given)


def _columns(
    rows: Iterator[Row], size: int, reader: ObservationReader, names: set[str]
) -> Iterator[Chunk]:
    """Rows as columns, with those of `names`; rows before an error come before it."""

    def read(row: Row) -> Row:
        i, state, action, reward, after, *over = row
        state = reader.read(state)
        return i, state, action, reward, state if over[0] else reader.read(after), *over

    def columns(part: list[Row]) -> Chunk:
        stream, state, action, reward, after, ended, cut = map(list, zip(*part, strict=True))
        found: Chunk = {
            "state": reader.column(state), "reward": np.array(reward),
            "next_state": reader.column(after), "terminated": np.array(ended),
            "truncated": np.array(cut),
        }  # fmt: skip
        if "stream" in names:
            found["stream"] = np.array(stream, dtype=np.int64)
        if "action" in names:
            found["action"] = np.array(action, dtype=np.int64).reshape(len(part))
        return found

    while True:
        part: list[Row] = []
        try:
            part.extend(itertools.islice(map(read, rows), size))
        finally:
            if part:
                try:
                    found = columns(part)
                except KeyboardInterrupt:  # the rows come all the same
                    yield columns(part)
                    raise
                yield found
        if len(part) < size:
            return
