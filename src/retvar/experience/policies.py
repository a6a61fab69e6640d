"""Select actions in environments: at random, from tables, by a function or by a model."""

from __future__ import annotations

import contextlib
import copy
import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from retvar.experience.observations import ObservationReader
from retvar.experience.sb3 import Predictor, is_model
from retvar.mdp import Policy
from retvar.simulation.streams import uniforms
from retvar.support.errors import InputError
from retvar.support.format import literal

__all__ = ["Acting", "Chooser", "action_selection"]

Selector = Callable[[Any], Any]  # returns the action for an observation
Chooser = Callable[[Sequence[Any], Sequence[int]], Iterable[Any]]
# from the current observations, and numbers of environments, to the actions of these
BLOCK = 4_096  # random numbers drawn at a time
POLICY = (
    "must be 'random', an array of actions [state] or of probabilities [state, action] where "
    "observations are states and actions are numbered, a function of the observation, an object "
    "with predict(observation), or sb3:ALGORITHM:FILE"
)


class Acting(NamedTuple):
    """A policy in environments, each with its own random numbers."""

    description: str
    chooser: Callable[[int], Chooser]  #: for so many environments


def action_selection(
    policy: Any, reader: ObservationReader, observation_space: Any, space: Any, seed: int,
    seeds: list[int], deterministic: bool | None = None,
) -> Acting:  # fmt: skip
    """Return the selection of actions by a policy, in environments with these spaces.

    `seeds` are those with which each environment's action space is sampled; `deterministic` is for
    a policy with ``predict``.
    """
    from gymnasium.spaces import Discrete

    discrete = isinstance(space, Discrete)
    if is_model(policy):
        model = Predictor(policy, deterministic, observation_space, space)
        valid = _validating(space)
        if model.batches:

            def chooser(_: int) -> Chooser:
                many = model.drawing(seeds[0])
                return lambda current, live: [
                    valid(each) for each in many(np.stack([current[i] for i in live]))
                ]

            return Acting(model.description, chooser)
        return _one_by_one(model.description, lambda i: _then(model.drawing(seeds[i]), valid))
    if deterministic is not None:
        raise InputError("deterministic", deterministic, "goes with a policy that has predict")
    if isinstance(policy, str):
        if policy != "random":
            raise InputError("policy", literal(policy), POLICY)
        if not discrete:
            return _one_by_one("random", lambda i: _sampling(space, seeds[i]))
        count, start = int(space.n), int(space.start)
        numbers = lambda block: (block * count).astype(np.int64) + start  # noqa: E731
        return _one_by_one("random", lambda i: _ignoring(_random_numbers(seed, i, numbers)))
    if callable(policy):
        name = getattr(policy, "__qualname__", type(policy).__qualname__)
        return _one_by_one(name, lambda _: _then(policy, _validating(space)))
    if reader.states is None or not discrete:
        raise InputError("policy", literal(policy), POLICY)
    kind, table = _table(policy, reader.states, space)
    return _one_by_one(f"an array of {kind}", _drawing(table, space, reader, seed))


def _one_by_one(description: str, selector: Callable[[int], Selector]) -> Acting:
    """A policy that is asked for each environment; `selector` is given its number."""

    def chooser(count: int) -> Chooser:
        selectors = [selector(i) for i in range(count)]
        return lambda current, live: (selectors[i](current[i]) for i in live)

    return Acting(description, chooser)


def _then(select: Selector, valid: Selector) -> Selector:
    return lambda observation: valid(select(observation))


def _ignoring(draw: Callable[[], Any]) -> Selector:
    return lambda _: draw()


def _sampling(space: Any, seed: int) -> Selector:
    """Samples from a copy of the space."""
    own = copy.deepcopy(space)
    own.seed(seed)
    return _ignoring(own.sample)


def _random_numbers(seed: int, i: int, change: Callable[[Any], Any]) -> Callable[[], Any]:
    """Draws one after the other from random numbers in [0, 1) of environment i, once changed."""

    def blocks() -> Iterator[list[Any]]:
        for first in itertools.count(0, BLOCK):
            out = np.empty((1, BLOCK))
            uniforms(np.uint64(seed), i, first, out)
            yield change(out[0]).tolist()

    return itertools.chain.from_iterable(blocks()).__next__


def _table(policy: Any, states: int, space: Any) -> tuple[str, Any]:
    """An array of actions [state] or of probabilities [state, action]: which, as the latter."""
    try:
        table = policy.probabilities if isinstance(policy, Policy) else np.asarray(policy)
    except Exception:  # no memory for it, or an error of its own
        table = np.zeros(0, dtype=object)
    if table.ndim == 2 and table.dtype.kind in "biuf":
        probabilities = Policy(table).probabilities
        if probabilities.shape != (states, int(space.n)):
            found = "{} states × {} actions".format(*probabilities.shape)
            raise InputError("policy", found, f"must be for {states} states × {space.n} actions")
        return "probabilities", probabilities
    if table.dtype.kind not in "iu" or table.shape != (states,):
        remedy = f"{POLICY}: here {states:,} numbers of actions"
        raise InputError("policy", literal(policy), remedy)
    for state, action in enumerate(table.tolist()):
        if not space.start <= action < space.start + space.n:
            raise _invalid_action(f"policy[{state}]", action, space)
    return "actions", np.eye(int(space.n))[table - space.start]


def _drawing(
    probabilities: Any, space: Any, reader: ObservationReader, seed: int
) -> Callable[[int], Selector]:
    """Selectors that draw from the cumulative probabilities of the state's row."""
    cumulative = np.cumsum(probabilities, axis=1)
    final = space.n - 1 - np.argmax(probabilities[:, ::-1] > 0, axis=1)
    cumulative[np.arange(int(space.n)) >= final[:, None]] = 1.0  # against rounding of the sum
    rows, start = cumulative.tolist(), int(space.start)
    number = {label: k for k, label in enumerate(reader.labels or ())}

    def state(observation: Any) -> Any:
        if not number:
            return observation
        return number[tuple(map(int, observation)) if np.ndim(observation) else int(observation)]

    def selector(i: int) -> Selector:
        draw = _random_numbers(seed, i, lambda block: block)
        return lambda observation: start + bisect_right(rows[state(observation)], draw())

    return selector


def _validating(space: Any) -> Selector:
    """Refuses actions that are not in the space."""
    from gymnasium.spaces import Box, Discrete

    def discrete(answer: Any) -> int:
        number = answer
        if not isinstance(answer, int | np.integer):
            array = np.asarray(answer)
            number = array.item() if array.size == 1 and array.dtype.kind in "iu" else None
        if number is None or isinstance(answer, bool) or number not in allowed:
            raise _invalid_action("action", literal(answer), space)
        return int(number)

    def general(given: Any) -> Any:
        answer = given
        if isinstance(space, Box):
            with contextlib.suppress(TypeError, ValueError):
                answer = np.asarray(given, dtype=space.dtype)
        if answer not in space:
            raise _invalid_action("action", literal(given), space)
        return answer

    if not isinstance(space, Discrete):
        return general
    allowed = range(int(space.start), int(space.start + space.n))
    return discrete


def _invalid_action(field: str, action: Any, space: Any) -> InputError:
    return InputError(field, action, f"the policy must return an action of {space}")
