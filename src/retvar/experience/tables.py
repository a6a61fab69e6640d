"""Experience from tables: Parquet and CSV files, one after the other, or columns in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from retvar.errors import InputError, RetvarError, SourceError, listed
from retvar.experience.cells import is_number, is_text, numbers, wholes
from retvar.experience.chaining import Chain, handed_over, in_words
from retvar.experience.decoding import MOST_STATES, Decoder, Roles
from retvar.experience.readers import Reader, arrow, readers_of
from retvar.experience.stream import Chunk, Experience, Tally

__all__ = ["from_table"]

OWN = ("gamma", "lam", "rho")  # taken without being named from files of our own only


def from_table(
    source: Any,
    *,
    state: str | Sequence[str] = "state",
    action: str = "action",
    reward: str = "reward",
    next_state: str | Sequence[str] = "next_state",
    terminated: str | bool = "terminated",
    truncated: str = "truncated",
    episode: str | bool | None = None,
    gamma: str | None = None,
    lam: str | None = None,
    behaviour: str | None = None,
    target: str | None = None,
    rho: str | None = None,
    stream: str | bool | None = None,
    on_error: str = "skip",
    states: int | str | None = None,
    chunk: int = 65_536,
) -> Experience:
    """Read logged transitions, a row each, in chunks.

    Rows of a stream follow one another; where they do not (another episode begins, a row is left
    out, the next state is not the next row's state), the row before is marked truncated. Columns
    that are not named are looked for under the names of the arguments; those that are named must
    be there. Rows are numbered from 1, the header not counted.

    Parameters
    ----------
    source
        Path or pattern of ``.parquet``, ``.csv`` or ``.csv.gz`` files, a list of them, or a table:
        a mapping of columns, a ``pyarrow.Table``, a DataFrame.
    state, next_state
        One column: whole numbers are states as they are, anything else is a label and numbered as
        it comes; fractions are observations. Several columns: observations (``state_0``,
        ``state_1``, … are found by themselves). Without `next_state` it is the state of the next
        row; the last row of a piece that did not end then has none and is left out.
    action
        Is not used.
    terminated, truncated
        Whether the episode ended there, or was cut off. ``terminated=False`` where none ever ends.
    episode, stream
        Id of the episode; number of the stream, where several are mixed. False: there is none.
    gamma, lam, rho
        γ and λ of the transition, importance ratio.
    behaviour, target
        Probability of the action under either policy, which give ρ. Whatever is wrong with one is
        refused.
    on_error
        ``"skip"`` leaves bad rows out and counts them, by reason, in ``tally``; ``"raise"`` stops
        at the first.
    states
        How many there are, where they are numbers; ``"labels"`` to take numbers as labels, as
        negative and very large ones are anyway.
    chunk
        Rows read at a time.

    >>> log = from_table({"state": ["a", "b", "a"], "reward": [1.0, 2.0, float("nan")],
    ...                   "terminated": [False, True, False]})
    >>> [(t.state, t.reward, t.next_state, t.terminated) for t in log], log.labels
    ([(0, 1.0, 1, False), (1, 2.0, 1, True)], ['a', 'b'])
    >>> log.tally.rejected
    Counter({'reward is missing or not finite': 1})
    """
    if on_error not in ("skip", "raise"):
        raise InputError("on_error", repr(on_error), "must be 'skip' or 'raise'")
    if not isinstance(chunk, int | np.integer) or isinstance(chunk, bool) or chunk < 1:
        raise InputError("chunk", repr(chunk), "must be a whole number of at least 1")
    readers = readers_of(source)
    search = _Search(readers)
    search.named("action", action)
    near = search.beside(state, next_state)
    roles = {
        "state": near[0],
        "next_state": near[1],
        "reward": search.needed("reward", reward),
        "terminated": _terminated(search, terminated),
        "truncated": search.named("truncated", truncated),
        "episode": search.optional("episode", episode),
        "stream": search.optional("stream", stream),
        "gamma": search.optional("gamma", gamma),
        "lam": search.optional("lam", lam),
        "rho": search.optional("rho", rho),
        "behaviour": search.optional("behaviour", behaviour),
        "target": search.optional("target", target),
    }
    _propensities(roles)
    return _experience(readers, _plan(search, roles, states), on_error == "raise", chunk)


def _experience(readers: list[Reader], roles: Roles, strict: bool, chunk: int) -> Experience:
    told = readers[0].told
    labels: list[Any] | None = [] if roles.kind == "label" else _told_labels(told, roles)
    name = readers[0].name + (f" and {len(readers) - 1} more" if len(readers) > 1 else "")

    def source(tally: Tally) -> Iterator[Chunk]:
        decoder = Decoder(roles, labels if roles.kind == "label" else None, tally, strict)
        lookup = roles.next_state is None
        chain = Chain(tally, lookup=lookup, check=not lookup, strict=strict)
        at = [readers[0].name]

        def pieces() -> Iterator[Chunk]:
            for file, reader in enumerate(readers):
                at[0] = reader.name
                yield from decoder.rows(reader, file if len(readers) > 1 else None, chunk)

        def failed(error: Exception) -> RetvarError:
            if tally.transitions:
                return SourceError(at[0], tally.transitions, in_words(error))
            return InputError("source", at[0], f"cannot be read: {in_words(error)}")

        return handed_over(pieces(), chain, failed)

    counts = [reader.rows for reader in readers]
    vector = roles.kind == "vector"
    return Experience(
        name=name,
        source=source,
        states=_how_many(readers, roles, told),
        width=len(roles.state) if vector else None,
        low=_bounds(told.get("low"), roles),
        high=_bounds(told.get("high"), roles),
        names=told.get("names") or list(roles.state) if vector else None,
        labels=labels,
        grid=_pair(told.get("grid")),
        policy=str(told.get("policy", "")),
        length=sum(c or 0 for c in counts) if None not in counts else None,
    )


# ---------------------------------------------------------------------- which columns


class _Search:
    """Looks columns up by name, in all files alike."""

    def __init__(self, readers: list[Reader]) -> None:
        self.readers = readers
        self.types = readers[0].types
        for reader in readers[1:]:
            if reader.text != readers[0].text:
                raise InputError("source", reader.name, "files must be of one kind")

    def has(self, name: str) -> bool:
        return name in self.types

    def column(self, role: str, name: Any) -> str:
        """A column that must be there, in every file."""
        if not isinstance(name, str):
            raise InputError(role, repr(name), "must be the name of a column")
        for reader in self.readers:
            if name not in reader.types:
                there = listed(reader.types, most=12)
                raise InputError(role, name, f"{reader.name} has no such column; it has {there}")
        return name

    def needed(self, role: str, name: Any) -> str:
        return self._typed(role, self.column(role, name))

    def named(self, role: str, name: Any) -> str | None:
        """A column with a name of its own by default: there, or absent under that name."""
        if name is None or name is False or (name == role and not self.has(role)):
            return None
        found = self.column(role, name)
        return found if role == "action" else self._typed(role, found)

    def optional(self, role: str, name: Any) -> str | None:
        """A column that is looked for where none was named, unless that would be a surprise."""
        if name is None:
            own = role not in (*OWN, "behaviour", "target") or (
                role in OWN and self.readers[0].told.get("own")
            )
            return self._typed(role, self.column(role, role)) if own and self.has(role) else None
        return None if name is False else self._typed(role, self.column(role, name))

    def beside(self, state: Any, next_state: Any) -> tuple[list[str], list[str] | None]:
        """Columns of the state and of the next state."""
        names = [state] if isinstance(state, str) else list(state)
        if state == "state" and not self.has("state"):
            names = []
            while self.has(f"state_{len(names)}"):
                names.append(f"state_{len(names)}")
            names = names or [state]
        names = [self.column("state", name) for name in names]
        if not names or len(set(names)) < len(names):
            raise InputError("state", names, "must be names of different columns")
        self.many = not isinstance(state, str) or names != [state]
        if next_state is None or next_state is False:
            return names, None
        if next_state == "next_state":
            guess = [f"next_{name}" for name in names]
            if not self.many and self.has("next_state"):
                guess = ["next_state"]
            if not any(self.has(name) for name in guess):
                return names, None
            next_state = guess
        after = [next_state] if isinstance(next_state, str) else list(next_state)
        after = [self.column("next_state", name) for name in after]
        if len(after) != len(names):
            found = f"{len(after)} columns"
            raise InputError("next_state", found, f"must be as many as for state: {len(names)}")
        return names, after

    def _typed(self, role: str, name: str) -> str:
        for reader in self.readers:
            kind = reader.types[name]
            if not (is_number(kind) or reader.text or role == "episode"):
                if role == "stream" and is_text(kind):
                    continue
                self.wrong(role, name, kind, reader)
            if role == "episode" and arrow().types.is_nested(kind):
                self.wrong(role, name, kind, reader)
        return name

    def wrong(self, role: str, name: str, kind: Any, reader: Reader) -> None:
        need = {
            "terminated": "true and false, or 0 and 1",
            "truncated": "true and false, or 0 and 1",
            "stream": "whole numbers from 0 on",
            "episode": "one number or text a row",
        }.get(role, "numbers")
        raise InputError(f"column {name!r} of {reader.name}", str(kind), f"must hold {need}")


def _terminated(search: _Search, given: Any) -> str | None:
    if given is False:
        return None
    if given == "terminated" and not search.has("terminated"):
        there = listed(search.types, most=12)
        raise InputError(
            "terminated", "missing",
            f"name the column that says where episodes end (there are {there}), or pass "
            "terminated=False where they never do",
        )  # fmt: skip
    return search.needed("terminated", given)


def _propensities(roles: dict[str, Any]) -> None:
    pair = [name for name in ("behaviour", "target") if roles[name]]
    if len(pair) == 1:
        other = "target" if pair == ["behaviour"] else "behaviour"
        raise InputError(other, "missing", f"{pair[0]} is given; the ratio needs both")
    if pair and roles["rho"]:
        raise InputError("rho", roles["rho"], "give ρ, or the two probabilities, not both")


# ---------------------------------------------------------------------- what states are


def _plan(search: _Search, roles: dict[str, Any], states: Any) -> Roles:
    """Decide, by types and by the first rows, what the states are."""
    if not (states is None or states == "labels"):
        whole = isinstance(states, int | np.integer) and not isinstance(states, bool)
        if not whole or states < 1:
            raise InputError("states", repr(states), "must be how many there are, or 'labels'")
        roles["states"] = int(states)
    columns = [*roles["state"], *(roles["next_state"] or [])]
    for reader in search.readers:
        for name in columns:
            if arrow().types.is_nested(reader.types[name]):
                kind, need = str(reader.types[name]), "must hold one number or text a row"
                raise InputError(f"column {name!r} of {reader.name}", kind, need)
    plan = Roles(**roles, kind="vector")
    if search.many:
        if states is not None:
            raise InputError("states", states, "observations are no states; name one column")
        _must_be_numbers(search, columns)
    else:
        plan = Roles(**roles, kind=_kind(search, columns, states))
    sample = _sample(search.readers[0], plan)
    _must_parse(search.readers[0], plan, sample)
    return plan


def _kind(search: _Search, columns: list[str], states: Any) -> str:
    types = arrow().types
    if states == "labels":
        return "label"
    kinds = [reader.types[name] for reader in search.readers for name in columns]
    if isinstance(states, int | np.integer):
        _must_be_numbers(search, columns)
        return "number"
    if search.readers[0].text:
        return _kind_of_text(search, columns)
    if all(types.is_integer(kind) or types.is_boolean(kind) for kind in kinds):
        spans = [r.span(name) for r in search.readers for name in columns]
        spans = [_sampled_span(search, columns)] if None in spans else spans
        low = min((s[0] for s in spans if s and s[0] is not None), default=0)
        high = max((s[1] for s in spans if s and s[1] is not None), default=0)
        return "number" if low >= 0 and high < MOST_STATES else "label"
    if all(is_number(kind) for kind in kinds):
        return _kind_of_numbers([numbers(c) for c in _first(search.readers[0], columns)])
    if any(is_number(kind) for kind in kinds):
        return _kinds_differ(columns, kinds)
    return "label"


def _kinds_differ(columns: list[str], kinds: list[Any]) -> str:
    found = ", ".join(str(kind) for kind in kinds)
    raise InputError(f"columns {listed(columns)}", found, "must be of one kind")


def _kind_of_numbers(found: list[Any]) -> str:
    value = np.concatenate(found)
    value = value[np.isfinite(value)]
    if np.any(value != np.trunc(value)):
        return "vector"
    inside = not value.size or (value.min() >= 0 and value.max() < MOST_STATES)
    return "number" if inside else "vector"


def _kind_of_text(search: _Search, columns: list[str]) -> str:
    """Text that is numbers throughout is taken as such."""
    pa = arrow()
    found = [column.drop_null() for column in _first(search.readers[0], columns)]
    try:
        return _kind_of_whole([wholes(column.cast(pa.int64()))[0] for column in found])
    except pa.ArrowInvalid:
        pass
    value = [numbers(column) for column in found]
    return "label" if any(np.isnan(each).any() for each in value) else _kind_of_numbers(value)


def _kind_of_whole(found: list[Any]) -> str:
    value = np.concatenate(found)
    inside = not value.size or (value.min() >= 0 and value.max() < MOST_STATES)
    return "number" if inside else "label"


def _sampled_span(search: _Search, columns: list[str]) -> tuple[int, int]:
    value = np.concatenate([wholes(c)[0] for c in _first(search.readers[0], columns)])
    return int(value.min()), int(value.max())


def _first(reader: Reader, columns: list[str]) -> list[Any]:
    """The first rows of some columns."""
    try:
        batch = next(iter(reader.batches(columns, 65_536)))
    except StopIteration:
        raise InputError("source", reader.name, "has no rows") from None
    except RetvarError:
        raise
    except Exception as error:  # whatever the bytes of a broken file lead to
        raise InputError("source", reader.name, f"cannot be read: {in_words(error)}") from None
    return [batch[name] for name in columns]


def _sample(reader: Reader, roles: Roles) -> dict[str, Any]:
    return dict(zip(roles.columns, _first(reader, roles.columns), strict=True))


def _must_be_numbers(search: _Search, columns: list[str]) -> None:
    for reader in search.readers:
        for name in columns:
            if not (is_number(reader.types[name]) or reader.text):
                search.wrong("state", name, reader.types[name], reader)


def _must_parse(reader: Reader, roles: Roles, sample: dict[str, Any]) -> None:
    """Text of which nothing is a number does not belong where numbers are needed."""
    if not reader.text:
        return
    single = [roles.reward, roles.gamma, roles.lam, roles.rho, roles.behaviour, roles.target]
    vector = [*roles.state, *(roles.next_state or [])] if roles.kind != "label" else []
    for name in (*single, *vector):
        if name is None:
            continue
        column = sample[name].drop_null()
        if len(column) and np.isnan(numbers(column)).all():
            shown = repr(column[0].as_py())
            raise InputError(f"column {name!r} of {reader.name}", shown, "must hold numbers")


def _how_many(readers: list[Reader], roles: Roles, told: dict[str, Any]) -> int | None:
    """How many states there are, where the files know it."""
    if roles.kind != "number":
        return None
    if roles.states is not None:
        return roles.states
    spans = [r.span(name) for r in readers for name in (*roles.state, *(roles.next_state or []))]
    largest = [span[1] for span in spans if span is not None and _finite(span[1])]
    if not largest or len(largest) < len(spans):
        return None
    most = min(int(max(largest)) + 1, MOST_STATES)
    said = told.get("states")
    return max(most, said) if isinstance(said, int) and 0 < said <= MOST_STATES else max(most, 1)


def _finite(given: Any) -> bool:
    return isinstance(given, int | float) and bool(np.isfinite(float(given)))


def _told_labels(told: dict[str, Any], roles: Roles) -> list[Any] | None:
    given = told.get("labels")
    if roles.kind != "number" or not isinstance(given, list):
        return None
    return [tuple(each) if isinstance(each, list) else each for each in given]


def _bounds(given: Any, roles: Roles) -> Any:
    try:
        array = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return array if roles.kind == "vector" and array.shape == (len(roles.state),) else None


def _pair(given: Any) -> tuple[int, int] | None:
    pair = isinstance(given, list) and len(given) == 2 and all(isinstance(x, int) for x in given)
    return (given[0], given[1]) if pair else None
