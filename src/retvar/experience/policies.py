"""How actions are chosen in environments: at random, from tables, or by somebody's function."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle
from typing import Any

import numpy as np

from retvar.engine.streams import uniforms
from retvar.errors import InputError
from retvar.experience.spaces import Reading
from retvar.mdp import Policy

__all__ = ["Acting", "acting_of"]

Choose = Callable[[Any], Any]  # of an observation, an action
BLOCK = 4_096  # numbers drawn at a time
KNOWN = (
    "must be 'random', an array of actions [state] or of probabilities [state, action], a function "
    "of the observation, or an object with predict(observation)"
)


class Acting:
    """A policy at work: one way to choose for each environment, each with its own numbers."""

    def __init__(self, words: str, choosers: Callable[[int], Choose]) -> None:
        self.words = words  #: for people
        self.chooser = choosers  #: of an environment's number, how actions are chosen there

    def in_turn(self, current: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Environment and action, in turn; `current` holds what they show at that moment."""
        choosers = [self.chooser(i) for i in range(len(current))]
        while True:
            for i, choose in enumerate(choosers):
                yield i, choose(current[i])


class _Random(Acting):
    """Every action of a Discrete space alike: word t of environment i decides its step t."""

    def __init__(self, space: Any, seed: int) -> None:
        self.count, self.start, self.seed = int(space.n), int(space.start), seed
        super().__init__("random", self._chooser)

    def _chooser(self, i: int) -> Choose:
        draw = self._actions(i).__next__
        return lambda _: draw()

    def _actions(self, i: int) -> Iterator[int]:
        """The actions of environment i."""
        blocks = _numbers(self.seed, i)
        return chain.from_iterable(
            ((block * self.count).astype(np.int64) + self.start).tolist() for block in blocks
        )

    def in_turn(self, current: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Environment and action, drawn ahead: nothing here looks at what they show."""
        n = len(current)
        columns = [self._actions(i) for i in range(n)]
        actions = columns[0] if n == 1 else chain.from_iterable(zip(*columns, strict=True))
        return zip(cycle(range(n)), actions, strict=False)


def _numbers(seed: int, i: int) -> Iterator[Any]:
    """Numbers in [0, 1) of environment i, in blocks."""
    first = 0
    while True:
        out = np.empty((1, BLOCK))
        uniforms(np.uint64(seed), i, first, out)
        yield out[0]
        first += BLOCK


def acting_of(
    policy: Any, reading: Reading, space: Any, seed: int, seeds: Callable[[int], int]
) -> Acting:
    """Put a policy to work in environments with this space of actions.

    `seeds` gives, for an environment, the seed of its own sampling of actions.
    """
    from gymnasium.spaces import Discrete

    discrete = isinstance(space, Discrete)
    if isinstance(policy, str):
        if policy != "random":
            raise InputError("policy", repr(policy), KNOWN)
        return _Random(space, seed) if discrete else Acting("random", _sampling(space, seeds))
    if callable(getattr(policy, "predict", None)):
        return Acting(type(policy).__name__, lambda _: _asked(_predicting(policy, space), space))
    if callable(policy):
        name = getattr(policy, "__qualname__", type(policy).__qualname__)
        return Acting(f"{name}", lambda _: _asked(policy, space))
    table = _table(policy)
    if reading.states is None or not discrete:
        what = "observations that are states, and numbered actions"
        raise InputError("policy", "an array", f"needs {what}; give a function of the observation")
    number = _numbering(reading)
    if table.ndim == 1:
        return Acting("an array of actions", _fixed(table, reading.states, space, number))
    return Acting("an array of probabilities", _drawn(table, reading.states, space, number, seed))


def _table(policy: Any) -> Any:
    if isinstance(policy, Policy):
        return policy.probabilities
    try:
        table = np.asarray(policy)
        if table.dtype.kind not in "biuf" or table.ndim not in (1, 2):
            raise TypeError
    except (TypeError, ValueError):
        raise InputError("policy", repr(policy), KNOWN) from None
    return table


def _numbering(reading: Reading) -> Choose | None:
    """How an observation becomes a state; None: it is one."""
    if reading.labels is None:
        return None
    number = {label: k for k, label in enumerate(reading.labels)}

    def state(observation: Any) -> Any:
        return number[tuple(map(int, observation)) if np.ndim(observation) else int(observation)]

    return state


def _fixed(table: Any, states: int, space: Any, number: Choose | None) -> Callable[[int], Choose]:
    if table.dtype.kind not in "iu":
        raise InputError("policy", f"an array of {table.dtype}", "must hold numbers of actions")
    if table.size != states:
        raise InputError("policy", f"{table.size:,} actions", f"must be one for each of {states:,}")
    actions = table.tolist()
    for state, action in enumerate(actions):
        if not space.start <= action < space.start + space.n:
            raise _outside(f"policy[{state}]", action, space)
    if number is None:
        return lambda _: actions.__getitem__
    return lambda _: lambda observation: actions[number(observation)]


def _drawn(
    table: Any, states: int, space: Any, number: Choose | None, seed: int
) -> Callable[[int], Choose]:
    """Actions drawn by one number a step from the cumulative probabilities of the state's row."""
    probabilities = Policy(table).probabilities
    if probabilities.shape != (states, int(space.n)):
        found = "{} states × {} actions".format(*probabilities.shape)
        raise InputError("policy", found, f"must be for {states} states × {space.n} actions")
    rising = np.cumsum(probabilities, axis=1)
    final = space.n - 1 - np.argmax(probabilities[:, ::-1] > 0, axis=1)
    rising[np.arange(int(space.n)) >= final[:, None]] = 1.0  # whatever the rounding of the sum
    rows, start = rising.tolist(), int(space.start)

    def chooser(i: int) -> Choose:
        draw = chain.from_iterable(block.tolist() for block in _numbers(seed, i)).__next__
        if number is None:
            return lambda state: start + bisect_right(rows[state], draw())
        return lambda seen: start + bisect_right(rows[number(seen)], draw())

    return chooser


def _sampling(space: Any, seeds: Callable[[int], int]) -> Callable[[int], Choose]:
    """Sample from a copy of the space, seeded for each environment."""

    def chooser(i: int) -> Choose:
        own = copy.deepcopy(space)
        own.seed(seeds(i))
        return lambda _: own.sample()

    return chooser


def _predicting(model: Any, space: Any) -> Choose:
    """``predict`` gives an action, or an action and the state of a recurrent policy."""
    from gymnasium.spaces import Tuple

    def choose(observation: Any) -> Any:
        answer = model.predict(observation)
        pair = isinstance(answer, tuple) and not (isinstance(space, Tuple) and answer in space)
        return answer[0] if pair and answer else answer

    return choose


def _asked(choose: Choose, space: Any) -> Choose:
    """Ask for an action, and see that it is one."""
    from gymnasium.spaces import Box, Discrete

    low, high = (
        (int(space.start), int(space.start + space.n)) if isinstance(space, Discrete) else (0, 0)
    )

    def whole(observation: Any) -> int:
        answer = choose(observation)
        if not isinstance(answer, int | np.integer):
            array = np.asarray(answer)
            if array.size != 1 or array.dtype.kind not in "iu":
                raise _outside("action", repr(answer), space)
            answer = array.item()
        if not low <= answer < high or isinstance(answer, bool):
            raise _outside("action", answer, space)
        return int(answer)

    def any_other(observation: Any) -> Any:
        answer = choose(observation)
        if isinstance(space, Box):
            try:
                answer = np.asarray(answer, dtype=space.dtype)
            except (TypeError, ValueError):
                raise _outside("action", repr(answer), space) from None
        if answer not in space:
            raise _outside("action", repr(answer), space)
        return answer

    return whole if isinstance(space, Discrete) else any_other


def _outside(field: str, action: Any, space: Any) -> InputError:
    return InputError(field, action, f"the policy must give an action of {space}")
