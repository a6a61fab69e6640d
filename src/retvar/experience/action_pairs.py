"""A stream whose states are pairs of a state and an action: what action values are learned from.

The pair (s, a) is followed by the pair (s′, a′) of the next row of its stream. The return from a
pair is that of taking a in s and then doing as the policy does, and its value and variance are
those of a Markov chain of pairs. Off-policy, the ratio of a transition is that of a′, which is
drawn after the pair; the action of the pair itself is given, and its ratio plays no part. A row
that is cut off has no next action and is left out, and so ends the traces of the row before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.arrow_columns import plain
from retvar.experience.episodes import RowLinker
from retvar.experience.stream import NO_NEXT, NO_NEXT_ACTION, Chunk, Counts, Experience

__all__ = ["by_action", "split_label"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_ACTIONS = 1_000
NO_ACTIONS = (
    "has no actions; name the column of a log with action=, or take an environment with numbered "
    "actions (Discrete)"
)
LAM = "action values are of the return itself: leave λ out, or make it 1"


def by_action(experience: Experience) -> Experience:
    """The same stream, each state being a pair with the label (state, action).

    Pairs are numbered in order of appearance. An observation has the number of its action as a
    last number. Transitions are counted in the counts of the given experience.

    >>> from retvar.experience import from_table
    >>> log = from_table({"state": ["a", "b", "b"], "action": ["go", "stay", "go"],
    ...                   "reward": [1.0, 2.0, 3.0], "terminated": [False, False, True]})
    >>> pairs = by_action(log)
    >>> [(t.state, t.reward, t.next_state) for t in pairs], pairs.labels
    ([(0, 1.0, 1), (1, 2.0, 2), (2, 3.0, 2)], [('a', 'go'), ('b', 'stay'), ('b', 'go')])
    """
    if experience.pairs:
        return experience
    if experience.with_actions is None:
        raise InputError("actions", experience.name, NO_ACTIONS)
    if "lam" in experience.discount_columns:
        raise InputError("lam", experience.discount_columns["lam"], LAM)
    labels: list[Any] = []
    tabular = experience.width is None
    inner = experience.with_actions

    def source(counts: Counts) -> Iterator[Chunk]:
        encoder: Any = _PairEncoder(labels, experience).encode
        if not tabular:
            encoder = _Appender(experience.action_count)
        linker = RowLinker(Counts(), infer_next=True)
        for chunk in inner(counts):
            if "state" not in chunk:  # a source that grows has nothing new
                yield chunk
                continue
            yield from _followed(linker.feed(_rows(chunk, encoder)), linker, counts, tabular)
        yield from _followed(linker.finish(), linker, counts, tabular)

    own: dict[str, Any] = {"labels": labels} if tabular else _wider(experience)
    return replace(
        experience, source=source, with_actions=None, pairs=True, states=None, fixed_states=False,
        grid=None, cells="", pieces=None, label_names=(), state_names=None, **own,
    )  # fmt: skip


def _wider(experience: Experience) -> dict[str, Any]:
    """Width, bounds and names of observations with an action."""
    width = experience.width or 0
    names = experience.names or [f"x{i}" for i in range(width)]
    low, high = experience.low, experience.high
    if low is not None and high is not None:
        last = MOST_ACTIONS if experience.action_count is None else experience.action_count
        low, high = np.append(low, -0.5), np.append(high, last - 0.5)
    return {"width": width + 1, "low": low, "high": high, "names": [*names, "action"]}


def split_label(label: Any) -> tuple[Any, Any]:
    """State and action of the label of a pair.

    >>> split_label(("a", "go")), split_label((3, 1, 0))
    (('a', 'go'), ((3, 1), 0))
    """
    *state, action = label
    return (state[0] if len(state) == 1 else tuple(state)), action


class _PairEncoder:
    """Numbers pairs in order of appearance."""

    def __init__(self, labels: list[Any], experience: Experience) -> None:
        self._labels, self._experience = labels, experience
        self._numbers = {label: k for k, label in enumerate(labels)}
        self._known: dict[tuple[int, int], int] = {}  # by the numbers of state and action

    def encode(self, state: Integers, action: Integers) -> Integers:
        """The number of each pair."""
        width = int(action.max(initial=0)) + 1
        _refuse_many(width)
        codes, first, inverse = np.unique(
            state * width + action, return_index=True, return_inverse=True
        )
        table = np.zeros(codes.size, dtype=np.int64)
        for k in np.argsort(first, kind="stable"):
            s, a = divmod(int(codes[k]), width)
            table[k] = self._number(s, a)
        return np.asarray(table[inverse.reshape(state.shape)])

    def _number(self, state: int, action: int) -> int:
        number = self._known.get((state, action))
        if number is None:
            label = self._label(state, action)
            number = self._numbers.setdefault(label, len(self._labels))
            if number == len(self._labels):
                self._labels.append(label)
            self._known[state, action] = number
        return number

    def _label(self, state: int, action: int) -> tuple[Any, ...]:
        states, actions = self._experience.labels, self._experience.actions
        own = state if states is None else states[state]
        taken = action if actions is None else plain(actions[action])
        return (*own, taken) if isinstance(own, tuple) else (own, taken)


class _Appender:
    """Appends the action to observations."""

    def __init__(self, known: int | None) -> None:
        self._known = known  # how many actions there are; the first rows decide

    def __call__(self, state: Array, action: Integers) -> Array:
        top = int(action.max(initial=0)) + 1
        if self._known is None:
            self._known = top
            _refuse_many(top)
        if top > self._known:
            remedy = "does not occur in the first rows; features need all actions: put some first"
            raise InputError("action", f"number {top - 1}", remedy)
        return np.column_stack([state, action.astype(np.float64)])


def _refuse_many(actions: int) -> None:
    if actions > MOST_ACTIONS:
        remedy = "are too many for action values; merge actions"
        raise InputError("action", f"{actions:,} different ones", remedy)


def _rows(chunk: Chunk, encoder: Any) -> Chunk:
    """Rows to be linked: their state is a pair and the ratio of its action."""
    if "action" not in chunk:
        raise InputError("action", "missing", "column missing from this chunk")
    if "lam" in chunk and bool((np.asarray(chunk["lam"]) != 1.0).any()):
        raise InputError("lam", "below 1 in the data", LAM)
    rows = {name: chunk[name] for name in chunk if name not in ("action", "next_state", "rho")}
    none = np.zeros(len(chunk["reward"]), dtype=bool)
    for name in ("terminated", "truncated"):
        rows.setdefault(name, none)
    pair = encoder(np.asarray(chunk["state"]), np.asarray(chunk["action"], dtype=np.int64))
    rho = np.asarray(chunk.get("rho", np.ones(none.size)), dtype=np.float64)
    rows["state"] = rows["next_state"] = np.column_stack([pair.astype(np.float64), rho])
    if "rho" in chunk:
        rows["rho"] = rho  # replaced by that of the next action
    return rows


def _followed(
    chunks: Iterator[Chunk], linker: RowLinker, counts: Counts, tabular: bool
) -> Iterator[Chunk]:
    """Transitions between pairs, weighted by the ratio of the next action; 1 at an end."""
    for chunk in chunks:
        if "rho" in chunk:
            chunk["rho"] = np.where(chunk["terminated"], 1.0, chunk["next_state"][:, -1])
        for name in ("state", "next_state"):
            pair = np.ascontiguousarray(chunk[name][:, :-1])
            chunk[name] = pair[:, 0].astype(np.int64) if tabular else pair
        yield chunk
    if left_out := linker.counts.rejected.pop(NO_NEXT, 0):
        counts.rejected[NO_NEXT_ACTION] += left_out
