"""Experience from Gymnasium environments: one, several in turn, or a vector environment."""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from retvar.arguments import integer
from retvar.errors import InputError
from retvar.experience.environment_names import label_names, observation_names, state_names
from retvar.experience.episodes import RowLinker, linked, source_error
from retvar.experience.observations import acting_fields, observation_reader
from retvar.experience.policies import action_selection
from retvar.experience.predictors import Predictor, is_model, load_model
from retvar.experience.recipes import recorded_call
from retvar.experience.stepping import (
    RolloutLimit,
    autoreset_mode,
    step_in_turn,
    step_vector,
    to_columns,
)
from retvar.experience.stream import Chunk, Counts, Experience
from retvar.experience.vec_envs import is_vec_env, refuse_normalised
from retvar.format import listed, literal
from retvar.random import seed_of

__all__ = ["from_gymnasium"]

ENVIRONMENT = (
    "must be an id, a Gymnasium environment, a vector environment, a list of single ones, or a "
    "function that makes one"
)
MOST_COPIES = 10_000
COPIES = "needs an id, or a function that makes an environment"


@recorded_call
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
    second of each, …, each with the number of its environment as ``stream``. Each has a seed of its
    own, derived from `seed`. Truncation is not termination; the last transition of each environment
    is marked truncated if its episode was not over.

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
        Whether the model's actions are its most probable ones (the default) or drawn at random, for
        a ``predict`` that has this parameter. These are two policies with different returns; the
        result says which one it was.
    seed
        Of environments and actions.
    chunk
        Transitions per chunk.

    Examples
    --------
    >>> lake = from_gymnasium("FrozenLake-v1", steps=1_000, seed=1)
    >>> sum(len(part["reward"]) for part in lake.chunks()), lake.states, lake.grid
    (1000, 16, (4, 4))
    >>> from_gymnasium("FrozenLake-v7", steps=10)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: environment = FrozenLake-v7: unknown to Gymnasium; did you mean
    FrozenLake-v1, FrozenLake8x8-v1...?
    """
    limit = RolloutLimit.of(steps, episodes)
    chunk = integer("chunk", chunk, 1)
    several = _Environments(env, envs, options)
    observation_space, action_space = several.spaces
    reader = observation_reader(observation_space)
    children = np.random.SeedSequence(int(seed_of(seed))).spawn(several.count)
    seeds = [[int(word) >> 1 for word in child.generate_state(2)] for child in children]
    model = load_model(policy)
    refuse_normalised(env, model)
    if is_model(model):
        Predictor(model, deterministic).refuse_spaces(observation_space, action_space)
    actions = action_selection(
        model, reader, action_space, seed, lambda i: seeds[i][1], deterministic
    )
    name, count, env_seeds = several.name, several.count, [pair[0] for pair in seeds]

    def source(counts: Counts, acting: bool = False) -> Iterator[Chunk]:
        if several.vector is None:
            buffers = step_in_turn(several.open(), actions, reader, env_seeds, limit, chunk)
        else:
            buffers = step_vector(several.vector, actions, reader, env_seeds, limit, chunk)
        rows = to_columns(buffers, count, reader, counts, acting)
        try:
            yield from linked(rows, RowLinker(counts), source_error(name, counts))
        finally:
            several.close()

    return Experience(
        name=name, source=source, states=reader.states, fixed_states=reader.states is not None,
        width=reader.width, low=reader.low, high=reader.high, labels=reader.labels,
        names=observation_names(name, several.inner, reader.width),
        state_names=state_names(name, several.inner, reader.states),
        label_names=label_names(name) if reader.labels is not None else (),
        grid=_grid(several.inner, reader.states),
        cells=_letters(several.inner, reader.states), policy=actions.description, length=steps,
        **acting_fields(action_space, source),
    )  # fmt: skip


class _Environments:
    """A list of single environments, or a vector environment; only those made here are closed."""

    def __init__(self, env: Any, copies: int | None, options: dict[str, Any]) -> None:
        import gymnasium

        self.vector: Any = None
        self._make: Callable[[], list[Any]] | None = None
        made = make_copies(env, copies, options)
        if made is not None:
            self._make = made
            self.singles = made()
        elif is_vector(env):
            if not is_vec_env(env):
                autoreset_mode(env)
            self.vector, self.singles = env, []
        else:
            self.singles = list(env) if isinstance(env, list | tuple) else [env]
        for single in self.singles:
            if not isinstance(single, gymnasium.Env):
                raise InputError("environment", single, ENVIRONMENT)
        if not self.singles and self.vector is None:
            raise InputError("environment", "an empty list", ENVIRONMENT)
        if len({id(single) for single in self.singles}) < len(self.singles):
            raise InputError("environment", "one of them twice", "each must be a separate object")
        self._require_equal_spaces()

    def _require_equal_spaces(self) -> None:
        for single in self.singles[1:]:
            for name in ("observation_space", "action_space"):
                found, first = getattr(single, name), getattr(self.singles[0], name)
                if found != first:
                    raise InputError(name, found, f"must be that of the first one, {first}")

    @property
    def count(self) -> int:
        return len(self.singles) if self.vector is None else int(self.vector.num_envs)

    @property
    def spaces(self) -> tuple[Any, Any]:
        """Spaces of a single observation and action."""
        if is_vec_env(self.vector):
            return self.vector.observation_space, self.vector.action_space
        if self.vector is not None:
            return self.vector.single_observation_space, self.vector.single_action_space
        return self.singles[0].observation_space, self.singles[0].action_space

    @property
    def inner(self) -> Any:
        """The first environment without its wrappers, if it can be reached."""
        if self.vector is None:
            return self.singles[0].unwrapped
        inside = getattr(self.vector.unwrapped, "envs", None) or [None]
        return getattr(inside[0], "unwrapped", None)

    @property
    def name(self) -> str:
        env = self.singles[0] if self.vector is None else self.vector
        spec = getattr(env, "spec", None) or getattr(self.inner, "spec", None)
        word = spec.id if spec is not None else type(self.inner or env.unwrapped).__name__
        return f"gymnasium:{word}" + (f" × {self.count}" if self.count > 1 else "")

    def open(self) -> list[Any]:
        """The single environments, made again if they have been closed."""
        if not self.singles and self._make is not None:
            self.singles = self._make()
        return self.singles

    def close(self) -> None:
        if self._make is not None:
            for single in self.singles:
                single.close()
            self.singles = []


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
        return lambda: [make_environment(env, options) for _ in range(number)]
    if options:
        raise InputError("options", listed(sorted(options)), "go with the id of an environment")
    if callable(env):
        return lambda: [_checked(env()) for _ in range(number)]
    if copies is not None:
        raise InputError("envs", copies, COPIES)
    return None


def _checked(env: Any) -> Any:
    """An environment that a function has made."""
    if not (hasattr(env, "step") and hasattr(env, "reset")):
        raise InputError("env", literal(env), "must make environments, with reset and step")
    return env


def make_environment(name: str, options: dict[str, Any]) -> Any:
    """Call ``gymnasium.make``; the error for an unknown id suggests similar ones."""
    import gymnasium

    if name.startswith("retvar/"):
        importlib.import_module("retvar.linear_gaussian.environment")  # registers it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error names outdated versions
            return gymnasium.make(name, **options)
    except Exception as error:  # an environment may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        if name in gymnasium.registry:
            raise InputError("environment", name, f"cannot be made: {reason}") from None
        near = difflib.get_close_matches(name, gymnasium.registry, n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else f": {reason}"
        raise InputError("environment", name, f"unknown to Gymnasium{hint}") from None


def _grid(inner: Any, states: int | None) -> tuple[int, int] | None:
    """Rows and columns of the map that the states lie on, if there is one."""
    shape = getattr(inner, "shape", None) or (getattr(inner, "nrow", 0), getattr(inner, "ncol", 0))
    if states is None or len(shape) != 2 or shape[0] * shape[1] != states:
        return None
    return int(shape[0]), int(shape[1])


def _letters(inner: Any, states: int | None) -> str:
    """A letter for each cell of the map: start, frozen, hole, cliff, goal."""
    if _grid(inner, states) is None:
        return ""
    if hasattr(inner, "desc"):
        return b"".join(np.asarray(inner.desc).ravel().tolist()).decode()
    if not hasattr(inner, "_cliff") or not hasattr(inner, "start_state_index"):
        return ""
    letters = np.where(np.asarray(inner._cliff).ravel(), "C", " ")
    letters[inner.start_state_index], letters[-1] = "S", "G"
    return "".join(letters)
