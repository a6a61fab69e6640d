"""Select actions in environments: at random, from tables, by a function or by a model."""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from retvar.experience.moves import describe_error
from retvar.experience.observations import ObservationReader
from retvar.mdp import Policy
from retvar.support.arguments import array, indices
from retvar.support.errors import InputError
from retvar.support.format import literal

Chooser = Callable[[dict[int, Any]], dict[int, Any]]
# from observations to actions, both by the number of the environment
Selector = Callable[[Any], Any]  # from the observation in one environment to its action
BLOCK = 4_096  # random numbers drawn at a time
POLICY = (
    "'random', an array of actions [state] or of probabilities [state, action] where "
    "observations are states and actions are numbered, a function of the observation, an object "
    "with predict(observation), or sb3:ALGORITHM:FILE"
)
ONE = "the policy gets one observation at a time, and must return one of"
LIBRARIES = ("stable_baselines3", "sb3_contrib")
FORM = "loading it can run any code in it: if you trust it, say sb3:ALGORITHM:FILE, as sb3:PPO:{}"


def action_selection(
    policy: Any, space: Any, reader: ObservationReader, seed: int, seeds: list[int],
    deterministic: bool | None = None,
) -> tuple[str, Callable[[], Chooser]]:  # fmt: skip
    """The name of a policy, and how it begins to select actions from a space.

    Each environment has random numbers of its own: `seeds` are those with which its action space is
    sampled; `deterministic` is for a policy with ``predict``.
    """
    policy, batches, n = _loaded(policy), False, len(seeds)
    select: Callable[[int], Selector]  # of the environment of a number
    if callable(getattr(policy, "predict", None)):
        name, batches, select = _from_model(policy, deterministic, seeds)
    elif deterministic is not None:
        raise InputError("deterministic", deterministic, "goes with a policy that has predict")
    elif isinstance(policy, str) and policy == "random":
        name, select = "random", lambda i: _at_random(space, seed, i, seeds[i])
    elif callable(policy):
        name = getattr(policy, "__qualname__", type(policy).__qualname__)
        select = lambda _: policy  # noqa: E731
    else:
        name, select = _from_table(policy, space, reader, seed)

    def begin() -> Chooser:
        selectors, valid = [select(i) for i in range(1 if batches else n)], _validating(space)

        def choose(current: dict[int, Any]) -> dict[int, Any]:
            if not batches:
                return {i: valid(selectors[i](x)) for i, x in current.items()}
            actions = selectors[0](np.stack(list(current.values()))) if current else ()
            return dict(zip(current, map(valid, actions), strict=True))

        return choose

    return name, begin


def _validating(space: Any) -> Selector:
    """Refuses actions that are not in the space; numbered ones become integers."""
    from gymnasium.spaces import Box, Discrete

    box, numbered = isinstance(space, Box), isinstance(space, Discrete)
    numbers = range(int(space.start), int(space.start + space.n)) if numbered else ()

    def valid(action: Any) -> Any:
        if type(action) is int and action in numbers:  # what the space would say, faster
            return action
        given = np.asarray(action, dtype=space.dtype) if box else action
        if given not in space:
            raise InputError("action", literal(action), f"{ONE} {space}")
        return int(given) if numbered else given

    return valid


def _at_random(space: Any, seed: int, i: int, own_seed: int) -> Selector:
    """Uniform actions; where they are not numbered, samples from a copy of the space."""
    from gymnasium.spaces import Discrete

    if isinstance(space, Discrete):
        draw, count, start = _random_numbers(seed, i), int(space.n), int(space.start)
        return lambda _: start + int(next(draw) * count)
    own = deepcopy(space)
    own.seed(own_seed)
    return lambda _: own.sample()


def _random_numbers(seed: int, i: int) -> Iterator[float]:
    """Random numbers in [0, 1) of environment i."""
    from retvar.simulation.streams import draws  # slow to import

    for first in itertools.count(0, BLOCK):
        block = np.empty((1, BLOCK))
        draws(np.uint64(seed), i, first, False, block)
        yield from block[0].tolist()


def _from_table(
    policy: Any, space: Any, reader: ObservationReader, seed: int
) -> tuple[str, Callable[[int], Selector]]:
    """Actions from an array of them [state], or drawn from probabilities [state, action]."""
    from gymnasium.spaces import Discrete

    states = reader.states
    if isinstance(policy, str) or states is None or not isinstance(space, Discrete):
        raise InputError("policy", literal(policy), f"must be {POLICY}")
    table = policy.probabilities if isinstance(policy, Policy) else array("policy", policy, POLICY)
    start, count = int(space.start), int(space.n)
    if table.dtype.kind in "iu" and table.shape == (states,):
        kind, actions = "actions", indices("policy", table, start, start + count)
        table = np.eye(count)[actions - start]
    else:
        kind, table = "probabilities", Policy(table).probabilities
    if table.shape != (states, count):
        found = f"an array of shape {table.shape}"
        raise InputError("policy", found, f"must be for {states:,} states × {count:,} actions")
    cumulative = np.cumsum(table, axis=1)
    cumulative[cumulative == cumulative[:, -1:]] = 1.0  # against rounding of the sum
    rows = cumulative.tolist()

    def selector(i: int) -> Selector:
        draw = _random_numbers(seed, i)
        return lambda observation: start + bisect_right(rows[reader.read(observation)], next(draw))

    return f"an array of {kind}", selector


# ------------------------------------------------------------------ models


def _loaded(policy: Any) -> Any:
    """The model of a text ``sb3:ALGORITHM:FILE``; another policy is returned as it is."""
    text = str(policy) if isinstance(policy, str | Path) else ""
    kind, name, file = [*text.split(":", 2), "", ""][:3]
    if kind != "sb3" and not text.endswith(".zip"):
        return policy
    if kind != "sb3" or not name or not file:
        raise InputError("policy", text, FORM.format(Path(text).name))
    algorithm: Any = None
    for library in LIBRARIES:
        with suppress(ImportError):
            algorithm = algorithm or getattr(importlib.import_module(library), name, None)
    if not hasattr(algorithm, "load"):
        remedy = (
            'is no algorithm of Stable-Baselines3, or that is missing: pip install "retvar[sb3]"'
        )
        raise InputError("policy", text, f"{name} {remedy}")
    try:
        return algorithm.load(file, device="cpu")
    except Exception as error:  # a damaged file may raise anything
        raise InputError("policy", text, f"cannot be loaded: {describe_error(error)}") from None


def _from_model(
    model: Any, deterministic: bool | None, seeds: list[int]
) -> tuple[str, bool, Callable[[int], Selector]]:
    """A model's name, whether it takes batches, and how to ask it for actions.

    Models of Stable-Baselines3, known by the parameters of their ``predict``, take batches. Their
    actions are those of ``deterministic=True`` unless told otherwise, as in Stable-Baselines3's own
    evaluation; drawn ones are the same for the same seed, and leave no trace in the global
    generators. A ``VecNormalize`` in which they learned normalises what they are shown.
    """
    name, parameters = type(model).__name__, inspect.signature(model.predict).parameters
    how = {"deterministic": deterministic is not False} if "deterministic" in parameters else {}
    if how:
        name += " (deterministic)" if how["deterministic"] else " (stochastic)"
    elif deterministic is not None:
        remedy = f"{name}.predict has no such parameter"
        raise InputError("deterministic", deterministic, remedy)
    drawn = how == {"deterministic": False}
    explores = drawn and hasattr(model, "exploration_rate")  # as DQN's: one coin for a batch
    learned_in: Any = getattr(model, "get_vec_normalize_env", lambda: None)()
    normalised = learned_in is not None and learned_in.norm_obs

    def select(i: int) -> Selector:
        torch: Any = sys.modules.get("torch")
        own: list[list[Any]] = []  # how to get and set each setting, and what it is
        if torch:  # small networks are slower with more threads
            own.append([torch.get_num_threads, torch.set_num_threads, 1])
        if drawn:
            numbers = np.random.RandomState(seeds[i]).get_state()
            own.append([np.random.get_state, np.random.set_state, numbers])
        if drawn and torch:
            numbers = torch.Generator().manual_seed(seeds[i]).get_state()
            own.append([torch.get_rng_state, torch.set_rng_state, numbers])
        if explores:
            model.action_space.seed(seeds[i])

        def ask(given: Any) -> Any:
            shown = learned_in.normalize_obs(given) if normalised else given
            with _alone(own):
                answer = model.predict(shown, **how)
            if how and isinstance(answer, tuple) and answer[1] is not None:
                remedy = "has a memory, so that its returns are not a function of the observation"
                raise InputError("policy", name, remedy)
            return answer[0] if isinstance(answer, tuple) else answer

        return ask

    return name, "episode_start" in parameters and not explores, select


@contextmanager
def _alone(own: list[list[Any]]) -> Iterator[None]:
    """A block under settings of its own, kept for the next one; others find theirs again."""
    outer = [get() for get, _, _ in own]
    for _, put, new in own:
        put(new)
    try:
        yield
    finally:
        for setting, before in zip(own, outer, strict=True):
            setting[2] = setting[0]()
            setting[1](before)
