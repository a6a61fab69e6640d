"""Select actions in environments: at random, from tables, or by a function."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle, repeat
from typing import Any

import numpy as np

from retvar.engine.streams import uniforms
from retvar.errors import InputError
from retvar.experience.observations import ObservationReader
from retvar.experience.predictors import Predictor, is_model
from retvar.format import literal
from retvar.mdp import Policy

__all__ = ["ActionSelection", "action_selection"]

Selector = Callable[[Any], Any]  # returns the action for an observation
BatchSelector = Callable[[list[Any]], list[Any]]  # returns the actions for observations
BLOCK = 4_096  # random numbers drawn at a time
POLICY = (
    "must be 'random', an array of actions [state] or of probabilities [state, action], a function "
    "of the observation, an object with predict(observation), or sb3:ALGORITHM:FILE"
)


class ActionSelection:
    """A policy with one selector for each environment, each with its own random numbers.

    Where the policy takes batches, `batch` returns a function from a list of observations to their
    actions, and all environments are asked for at once.
    """

    def __init__(
        self,
        description: str,
        selector: Callable[[int], Selector],
        batch: Callable[[], BatchSelector] | None = None,
    ) -> None:
        self.description = description
        self.selector = selector  #: returns the selector of the environment of this number
        self.batch = batch

    def in_turn(self, current: Sequence[Any], active: Sequence[bool]) -> Iterator[tuple[int, Any]]:
        """Yield environment and action, round after round, of the environments that are active.

        `current` holds the current observations.
        """
        if self.batch is not None:
            actions = self.of_some(len(current))
            while True:
                live = [i for i, on in enumerate(active) if on]
                yield from zip(live, actions(current, live), strict=True)
        selectors = [self.selector(i) for i in range(len(current))]
        while True:
            for i, select in enumerate(selectors):
                if active[i]:
                    yield i, select(current[i])

    def of_some(self, count: int) -> Callable[[Sequence[Any], Sequence[int]], list[Any]]:
        """A function from observations and numbers of environments to the actions of these."""
        if self.batch is not None:
            choose = self.batch()
            return lambda current, live: choose([current[i] for i in live])
        selectors = [self.selector(i) for i in range(count)]
        return lambda current, live: [selectors[i](current[i]) for i in live]


class _UniformActions(ActionSelection):
    """Uniform over a Discrete space: random number t of environment i decides its step t."""

    def __init__(self, space: Any, seed: int) -> None:
        self.count, self.start, self.seed = int(space.n), int(space.start), seed
        super().__init__("random", self._uniform_selector)

    def _uniform_selector(self, i: int) -> Selector:
        draw = self._actions(i).__next__
        return lambda _: draw()

    def _actions(self, i: int) -> Iterator[int]:
        """The actions of environment i."""
        blocks = _uniform_blocks(self.seed, i)
        return chain.from_iterable(
            ((block * self.count).astype(np.int64) + self.start).tolist() for block in blocks
        )

    def in_turn(self, current: Sequence[Any], active: Sequence[bool]) -> Iterator[tuple[int, Any]]:
        """Yield environment and action; actions are drawn ahead, whatever the observations."""
        n = len(current)
        columns = [self._actions(i) for i in range(n)]
        if n == 1:
            return zip(repeat(0), columns[0], strict=False)
        every = zip(cycle(range(n)), chain.from_iterable(zip(*columns, strict=True)), strict=False)
        return (move for move in every if active[move[0]])


def _uniform_blocks(seed: int, i: int) -> Iterator[Any]:
    """Yield blocks of random numbers in [0, 1) for environment i."""
    first = 0
    while True:
        out = np.empty((1, BLOCK))
        uniforms(np.uint64(seed), i, first, out)
        yield out[0]
        first += BLOCK


def action_selection(
    policy: Any, reader: ObservationReader, space: Any, seed: int, seeds: Callable[[int], int],
    deterministic: bool | None = None,
) -> ActionSelection:  # fmt: skip
    """Return the selection of actions by a policy, in environments with this action space.

    `seeds` returns the seed with which an environment's action space is sampled; `deterministic`
    is for a policy with ``predict``.
    """
    from gymnasium.spaces import Discrete

    if deterministic is not None and not is_model(policy):
        raise InputError("deterministic", deterministic, "goes with a policy that has predict")
    discrete = isinstance(space, Discrete)
    if isinstance(policy, str):
        if policy != "random":
            raise InputError("policy", literal(policy), POLICY)
        if discrete:
            return _UniformActions(space, seed)
        return ActionSelection("random", _sampling(space, seeds))
    if is_model(policy):
        return _predicted(Predictor(policy, deterministic, space), space, seeds)
    if callable(policy):
        name = getattr(policy, "__qualname__", type(policy).__qualname__)
        return ActionSelection(f"{name}", lambda _: _validating(policy, space))
    table = _table(policy)
    if reader.states is None or not discrete:
        what = "observations that are states, and numbered actions"
        raise InputError("policy", "an array", f"needs {what}; give a function of the observation")
    number = _state_number(reader)
    if table.ndim == 1:
        selector = _deterministic(table, reader.states, space, number)
        return ActionSelection("an array of actions", selector)
    selector = _stochastic(table, reader.states, space, number, seed)
    return ActionSelection("an array of probabilities", selector)


def _predicted(predictor: Predictor, space: Any, seeds: Callable[[int], int]) -> ActionSelection:
    """Actions of a model, of all environments at once where it takes batches."""

    def selector(i: int) -> Selector:
        return _validating(drawing(predictor.one, predictor.random_numbers(seeds(i))), space)

    def batch() -> BatchSelector:
        many = drawing(predictor.many, predictor.random_numbers(seeds(0)))
        valid = _validating(lambda action: action, space)
        return lambda observations: [valid(action) for action in many(observations)]

    def drawing(ask: Selector, numbers: Any) -> Selector:
        def within(given: Any) -> Any:
            with numbers:
                return ask(given)

        return within

    return ActionSelection(predictor.description, selector, batch if predictor.batches else None)


def _table(policy: Any) -> Any:
    """A policy as an array of actions [state] or of probabilities [state, action]."""
    if isinstance(policy, Policy):
        return policy.probabilities
    try:
        table = np.asarray(policy)
        if table.dtype.kind not in "biuf" or table.ndim not in (1, 2):
            raise TypeError
    except Exception:  # no memory for it, or an error of its own
        raise InputError("policy", literal(policy), POLICY) from None
    return table


def _state_number(reader: ObservationReader) -> Selector | None:
    """Return the function from observations to states; None: they are the same."""
    if reader.labels is None:
        return None
    number = {label: k for k, label in enumerate(reader.labels)}

    def state(observation: Any) -> Any:
        return number[tuple(map(int, observation)) if np.ndim(observation) else int(observation)]

    return state


def _deterministic(
    table: Any, states: int, space: Any, number: Selector | None
) -> Callable[[int], Selector]:
    """Selectors for a table of actions."""
    if table.dtype.kind not in "iu":
        raise InputError("policy", f"an array of {table.dtype}", "must hold numbers of actions")
    if table.size != states:
        raise InputError("policy", f"{table.size:,} actions", f"must be one for each of {states:,}")
    actions = table.tolist()
    for state, action in enumerate(actions):
        if not space.start <= action < space.start + space.n:
            raise _invalid_action(f"policy[{state}]", action, space)
    if number is None:
        return lambda _: actions.__getitem__
    return lambda _: lambda observation: actions[number(observation)]


def _stochastic(
    table: Any, states: int, space: Any, number: Selector | None, seed: int
) -> Callable[[int], Selector]:
    """Selectors that draw from the cumulative probabilities of the state's row."""
    probabilities = Policy(table).probabilities
    if probabilities.shape != (states, int(space.n)):
        found = "{} states × {} actions".format(*probabilities.shape)
        raise InputError("policy", found, f"must be for {states} states × {space.n} actions")
    cumulative = np.cumsum(probabilities, axis=1)
    final = space.n - 1 - np.argmax(probabilities[:, ::-1] > 0, axis=1)
    cumulative[np.arange(int(space.n)) >= final[:, None]] = 1.0  # against rounding of the sum
    rows, start = cumulative.tolist(), int(space.start)

    def selector(i: int) -> Selector:
        draw = chain.from_iterable(block.tolist() for block in _uniform_blocks(seed, i)).__next__
        if number is None:
            return lambda state: start + bisect_right(rows[state], draw())
        return lambda observation: start + bisect_right(rows[number(observation)], draw())

    return selector


def _sampling(space: Any, seeds: Callable[[int], int]) -> Callable[[int], Selector]:
    """Selectors that sample from a copy of the space, seeded for each environment."""

    def selector(i: int) -> Selector:
        own = copy.deepcopy(space)
        own.seed(seeds(i))
        return lambda _: own.sample()

    return selector


def _validating(select: Selector, space: Any) -> Selector:
    """Refuse selected actions that are not in the space."""
    from gymnasium.spaces import Box, Discrete

    low, high = (
        (int(space.start), int(space.start + space.n)) if isinstance(space, Discrete) else (0, 0)
    )

    def discrete(observation: Any) -> int:
        answer = select(observation)
        if not isinstance(answer, int | np.integer):
            array = np.asarray(answer)
            if array.size != 1 or array.dtype.kind not in "iu":
                raise _invalid_action("action", literal(answer), space)
            answer = array.item()
        if not low <= answer < high or isinstance(answer, bool):
            raise _invalid_action("action", answer, space)
        return int(answer)

    def general(observation: Any) -> Any:
        answer = select(observation)
        if isinstance(space, Box):
            try:
                answer = np.asarray(answer, dtype=space.dtype)
            except (TypeError, ValueError):
                raise _invalid_action("action", literal(answer), space) from None
        if answer not in space:
            raise _invalid_action("action", literal(answer), space)
        return answer

    return discrete if isinstance(space, Discrete) else general


def _invalid_action(field: str, action: Any, space: Any) -> InputError:
    return InputError(field, action, f"the policy must return an action of {space}")
