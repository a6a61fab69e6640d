"""Experience from Gymnasium environments: one, several in turn, or a vector of them."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from retvar.errors import InputError
from retvar.experience.episodes import Chain, handed_over, stopped
from retvar.experience.policies import acting_of
from retvar.experience.spaces import reading_of
from retvar.experience.stepping import Limit, columns, in_turn, mode_of, side_by_side
from retvar.experience.stream import Chunk, Counts, Experience
from retvar.format import listed
from retvar.random import seed_of

__all__ = ["from_gymnasium"]

ENVIRONMENT = (
    "must be an id, a Gymnasium environment, a vector environment, or a list of single ones"
)
NAMES = {  # Gymnasium has none
    "MountainCar": ("position", "velocity"),
    "MountainCarContinuous": ("position", "velocity"),
    "CartPole": ("position", "velocity", "angle", "spin"),
    "Pendulum": ("cos angle", "sin angle", "spin"),
    "Acrobot": ("cos 1", "sin 1", "cos 2", "sin 2", "spin 1", "spin 2"),
}


def from_gymnasium(
    env: Any,
    policy: Any = "random",
    *,
    steps: int | None = None,
    episodes: int | None = None,
    seed: int = 0,
    chunk: int = 4_096,
    **options: Any,
) -> Experience:
    """Let a policy act in an environment, for so many steps or episodes, and watch.

    Several environments, as a list or a vector environment in any autoreset mode, are watched in
    turn: the first transition of each, the second of each, …, every one with its number as
    ``stream``. Each has a seed of its own, made from `seed`. Truncation is not termination; the
    last transition of each environment is marked truncated where its episode was still going on.

    Parameters
    ----------
    env
        An id (`options` then go to ``gymnasium.make``), a ``gymnasium.Env``, a vector environment,
        or a list of single environments.
    policy
        ``"random"``; an array of actions [state] or of probabilities [state, action]; a
        :class:`retvar.Policy`; a function of a single observation; or an object with
        ``predict(observation)``, as Stable-Baselines3's are.
    steps, episodes
        How many in all: give one of them.
    seed
        Of environments and actions.
    chunk
        Transitions handed over at a time.

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
    limit = Limit.of(steps, episodes)
    whole = isinstance(chunk, int | np.integer) and not isinstance(chunk, bool)
    if not whole or chunk < 1:
        raise InputError("chunk", repr(chunk), "must be a whole number of at least 1")
    crowd = _Crowd(env, options)
    observed, acted = crowd.spaces
    reading = reading_of(observed)
    children = np.random.SeedSequence(int(seed_of(seed))).spawn(crowd.count)
    seeds = [[int(word) >> 1 for word in child.generate_state(2)] for child in children]
    acting = acting_of(policy, reading, acted, seed, lambda i: seeds[i][1])
    name, count, own = crowd.name, crowd.count, [pair[0] for pair in seeds]

    def source(counts: Counts) -> Iterator[Chunk]:
        if crowd.vector is None:
            raw = in_turn(crowd.opened(), acting, reading, own, limit, chunk)
        else:
            raw = side_by_side(crowd.vector, acting, reading, own, limit, chunk)
        pieces = columns(raw, count, reading, counts)
        try:
            yield from handed_over(pieces, Chain(counts), stopped(name, counts))
        finally:
            crowd.close()

    return Experience(
        name=name, source=source, states=reading.states, closed=reading.states is not None,
        width=reading.width, low=reading.low, high=reading.high, labels=reading.labels,
        names=_names(crowd.name, reading.width), grid=_grid(crowd.inner, reading.states),
        cells=_letters(crowd.inner, reading.states), policy=acting.words, length=steps,
    )  # fmt: skip


class _Crowd:
    """The environments meant: a list of single ones, or a vector; those made here are closed."""

    def __init__(self, env: Any, options: dict[str, Any]) -> None:
        import gymnasium

        self.vector: Any = None
        self._make: Callable[[], Any] | None = None
        if isinstance(env, str):
            self._make = lambda: made(env, options)
            self.singles = [self._make()]
        elif options:
            raise InputError("options", listed(sorted(options)), "go with the id of an environment")
        elif isinstance(env, gymnasium.vector.VectorEnv):
            mode_of(env)
            self.vector, self.singles = env, []
        else:
            self.singles = list(env) if isinstance(env, list | tuple) else [env]
        for single in self.singles:
            if not isinstance(single, gymnasium.Env):
                raise InputError("environment", single, ENVIRONMENT)
        if not self.singles and self.vector is None:
            raise InputError("environment", "an empty list", ENVIRONMENT)
        if len({id(single) for single in self.singles}) < len(self.singles):
            raise InputError(
                "environment", "one of them twice", "each must be an object of its own"
            )
        self._agree()

    def _agree(self) -> None:
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
        if self.vector is not None:
            return self.vector.single_observation_space, self.vector.single_action_space
        return self.singles[0].observation_space, self.singles[0].action_space

    @property
    def inner(self) -> Any:
        """What is within the wrappers of the first one, if it can be reached."""
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

    def opened(self) -> list[Any]:
        """The single environments, made anew where they have been closed."""
        if not self.singles and self._make is not None:
            self.singles = [self._make()]
        return self.singles

    def close(self) -> None:
        if self._make is not None:
            for single in self.singles:
                single.close()
            self.singles = []


def made(name: str, options: dict[str, Any]) -> Any:
    """``gymnasium.make``, with a word about what might have been meant."""
    import gymnasium

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is out of date is told by the error
            return gymnasium.make(name, **options)
    except Exception as error:  # an environment may raise anything
        told = " ".join(str(error).split()) or type(error).__name__
        if name in gymnasium.registry:
            raise InputError("environment", name, f"cannot be made: {told}") from None
        near = difflib.get_close_matches(name, gymnasium.registry, n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else f": {told}"
        raise InputError("environment", name, f"unknown to Gymnasium{hint}") from None


def _grid(inner: Any, states: int | None) -> tuple[int, int] | None:
    shape = getattr(inner, "shape", None) or (getattr(inner, "nrow", 0), getattr(inner, "ncol", 0))
    if states is None or len(shape) != 2 or shape[0] * shape[1] != states:
        return None
    return int(shape[0]), int(shape[1])


def _letters(inner: Any, states: int | None) -> str:
    """What stands in each cell of a map: start, frozen, hole, cliff, goal."""
    if _grid(inner, states) is None:
        return ""
    if hasattr(inner, "desc"):
        return b"".join(np.asarray(inner.desc).ravel().tolist()).decode()
    if not hasattr(inner, "_cliff") or not hasattr(inner, "start_state_index"):
        return ""
    letters = np.where(np.asarray(inner._cliff).ravel(), "C", " ")
    letters[inner.start_state_index], letters[-1] = "S", "G"
    return "".join(letters)


def _names(name: str, width: int | None) -> list[str] | None:
    """What the numbers of an observation are, in environments that everyone knows."""
    known = next((n for start, n in NAMES.items() if name.startswith(f"gymnasium:{start}-")), ())
    return list(known) if width is not None and len(known) == width else None
