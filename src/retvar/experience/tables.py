"""Experience from tables: Parquet and CSV files, one after the other, or columns in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from retvar.errors import InputError, RetvarError, SourceError
from retvar.experience.column_roles import Search, refuse_half_a_ratio, tell_unused, terminated_of
from retvar.experience.decoder import MOST_STATES, Decoder, Roles
from retvar.experience.episodes import Chain, handed_over, in_words
from retvar.experience.readers import Reader, readers_of
from retvar.experience.state_types import roles_of
from retvar.experience.stream import Chunk, Counts, Experience

__all__ = ["from_table"]


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
    out, the next state is not the next row's state), the row before is marked truncated. The
    columns of the transition itself, episode and stream are looked for under the names of the
    arguments where they are not named; those that are named must be there. γ, λ, ρ and
    probabilities change the question: they are used where they are named (or where retvar wrote the
    file), and a warning is logged where columns of these names lie unused. Rows are numbered from
    1, the header not counted.

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
        ``"skip"`` leaves bad rows out and counts them, by reason, in ``counts``; ``"raise"`` stops
        at the first.
    states
        How many there are, where they are numbers; ``"labels"`` to take numbers as labels, as
        negative and very large ones are anyway.
    chunk
        Rows read at a time.

    Examples
    --------
    >>> log = from_table({"state": ["a", "b", "a"], "reward": [1.0, 2.0, float("nan")],
    ...                   "terminated": [False, True, False]})
    >>> [(t.state, t.reward, t.next_state, t.terminated) for t in log], log.labels
    ([(0, 1.0, 1, False), (1, 2.0, 1, True)], ['a', 'b'])
    >>> log.counts.rejected
    Counter({'reward is missing or not finite': 1})
    """
    if on_error not in ("skip", "raise"):
        raise InputError("on_error", repr(on_error), "must be 'skip' or 'raise'")
    if not isinstance(chunk, int | np.integer) or isinstance(chunk, bool) or chunk < 1:
        raise InputError("chunk", repr(chunk), "must be a whole number of at least 1")
    readers = readers_of(source)
    search = Search(readers)
    search.named("action", action)
    near = search.beside(state, next_state)
    roles = {
        "state": near[0],
        "next_state": near[1],
        "reward": search.needed("reward", reward),
        "terminated": terminated_of(search, terminated),
        "truncated": search.named("truncated", truncated),
        "episode": search.optional("episode", episode),
        "stream": search.optional("stream", stream),
        "gamma": search.optional("gamma", gamma),
        "lam": search.optional("lam", lam),
        "rho": search.optional("rho", rho),
        "behaviour": search.optional("behaviour", behaviour),
        "target": search.optional("target", target),
    }
    refuse_half_a_ratio(roles)
    tell_unused(search, roles)
    found = _experience(readers, roles_of(search, roles, states), on_error == "raise", chunk)
    found.closed = isinstance(states, int | np.integer)
    found.named = {name: col for name, col in (("gamma", gamma), ("lam", lam)) if col}
    return found


def _experience(readers: list[Reader], roles: Roles, strict: bool, chunk: int) -> Experience:
    told = readers[0].told
    labels: list[Any] | None = [] if roles.kind == "label" else _told_labels(told, roles)
    name = readers[0].name + (f" and {len(readers) - 1} more" if len(readers) > 1 else "")

    def where(file: int, row: int) -> str:
        return f"{readers[file].name}, row {row + 1:,}"

    def source(counts: Counts) -> Iterator[Chunk]:
        decoder = Decoder(roles, labels if roles.kind == "label" else None, counts, strict)
        lookup = roles.next_state is None
        chain = Chain(counts, lookup=lookup, check=not lookup, where=where if strict else None)
        at = [readers[0].name]

        def pieces() -> Iterator[Chunk]:
            for file, reader in enumerate(readers):
                at[0] = reader.name
                yield from decoder.rows(reader, file if len(readers) > 1 else None, chunk)

        def failed(error: Exception) -> RetvarError:
            if counts.transitions:
                return SourceError(at[0], counts.transitions, in_words(error))
            return InputError("source", at[0], f"cannot be read: {in_words(error)}")

        return handed_over(pieces(), chain, failed)

    counts = [reader.rows for reader in readers]
    vector = roles.kind == "vector"
    return Experience(
        name=name,
        source=source,
        states=_how_many(readers, roles),
        width=len(roles.state) if vector else None,
        low=_bounds(told.get("low"), roles),
        high=_bounds(told.get("high"), roles),
        names=told.get("names") or list(roles.state) if vector else None,
        labels=labels,
        grid=_pair(told.get("grid")),
        cells=str(told.get("cells", "")),
        policy=str(told.get("policy", "")),
        length=sum(c or 0 for c in counts) if None not in counts else None,
    )


def _how_many(readers: list[Reader], roles: Roles) -> int | None:
    """How many states there are, where the files know it."""
    if roles.kind != "number":
        return None
    if roles.states is not None:
        return roles.states
    columns = (*roles.state, *(roles.next_state or []))
    spans = [] if readers[0].text else [r.span(name) for r in readers for name in columns]
    largest = [span[1] for span in spans if span is not None]
    return min(max(largest) + 1, MOST_STATES) if largest and max(largest) >= 0 else None


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
