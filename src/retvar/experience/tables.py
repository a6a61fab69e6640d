"""Experience from tables: Parquet and CSV files, read one after the other, or from memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from retvar.arguments import integer, is_integer
from retvar.errors import InputError, RetvarError, SourceError
from retvar.experience.column_roles import MOST_STATES, ColumnFinder, Roles, find_roles
from retvar.experience.decoder import Decoder
from retvar.experience.episodes import RowLinker, SourceEnded, describe_error, linked
from retvar.experience.pieces import Pieces, plan_pieces
from retvar.experience.readers import Reader, all_readers, open_readers
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
    """Read logged transitions, one per row, in chunks.

    Rows of a stream follow one another. Where they do not (another episode begins, a row is left
    out, the next state is not the next row's state), the row before is marked truncated. Columns of
    the transition itself, episode and stream are found under the names of the arguments unless
    other names are given; a column that is named must exist. γ, λ, ρ and probabilities change what
    is estimated: they are used only where they are named (or where retvar wrote the file), and a
    warning is logged where columns of these names are not used. Rows are numbered from 1, without
    the header.

    Parameters
    ----------
    source
        Path or pattern of ``.parquet``, ``.csv`` or ``.csv.gz`` files, a list of them, or a table:
        a mapping of columns, a ``pyarrow.Table``, a DataFrame.
    state, next_state
        One column: whole numbers are used as states, fractions are observations, everything else
        is a label and numbered in order of appearance. Several columns: observations (``state_0``,
        ``state_1``, … are found automatically). Without `next_state` it is the state of the next
        row; the last row of an episode that did not terminate then has none and is left out.
    action
        Not used.
    terminated, truncated
        Whether the episode terminated there, or was cut off. ``terminated=False`` where episodes
        never terminate.
    episode, stream
        Id of the episode; number of the stream, where several are mixed. False: there is none.
    gamma, lam, rho
        γ and λ of the transition, importance ratio.
    behaviour, target
        Probability of the action under either policy, which give ρ. Invalid probabilities raise an
        error whatever `on_error` is.
    on_error
        ``"skip"`` leaves bad rows out and counts them, by reason, in ``counts``; ``"raise"`` stops
        at the first.
    states
        Number of states, where they are numbers; ``"labels"`` to use numbers as labels, which
        negative and very large ones always are.
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
    integer("chunk", chunk, 1)
    readers = open_readers(source)
    finder = ColumnFinder(readers)
    finder.default("action", action)
    state_names, next_names = finder.state_columns(state, next_state)
    columns = {
        "state": state_names,
        "next_state": next_names,
        "reward": finder.required("reward", reward),
        "terminated": finder.terminated(terminated),
        "truncated": finder.default("truncated", truncated),
        "episode": finder.optional("episode", episode),
        "stream": finder.optional("stream", stream),
        "gamma": finder.optional("gamma", gamma),
        "lam": finder.optional("lam", lam),
        "rho": finder.optional("rho", rho),
        "behaviour": finder.optional("behaviour", behaviour),
        "target": finder.optional("target", target),
    }
    roles = find_roles(finder, columns, states)
    found = _experience(readers, roles, on_error == "raise", chunk)
    found.fixed_states = is_integer(states)
    if Path(readers[0].name).is_file() and readers[-1].growth is None:
        again = partial(_experience, roles=roles, strict=on_error == "raise", chunk=chunk)
        found.pieces = lambda: Pieces(plan_pieces(readers, roles), roles, again)
    found.discount_columns = {name: col for name, col in (("gamma", gamma), ("lam", lam)) if col}
    return found


def _experience(readers: list[Reader], roles: Roles, strict: bool, chunk: int) -> Experience:
    meta = readers[0].metadata
    labels: list[Any] | None = [] if roles.kind == "label" else _recorded_labels(meta, roles)
    name = readers[0].name + (f" and {len(readers) - 1} more" if len(readers) > 1 else "")

    def locate(file: int, row: int) -> str:
        return f"{readers[file].name}, row {row + 1:,}"

    def source(counts: Counts) -> Iterator[Chunk]:
        decoder = Decoder(roles, labels if roles.kind == "label" else None, counts, strict)
        infer = roles.next_state is None
        linker = RowLinker(
            counts, infer_next=infer, check_next=not infer, locate=locate if strict else None
        )
        current = [readers[0].name]

        def parts() -> Iterator[Chunk]:
            several, file = len(readers) > 1 or readers[-1].growth is not None, -1
            for reader in all_readers(readers):
                if reader is None:
                    yield {"reward": np.zeros(0)}  # nothing new: whoever follows can look
                    continue
                current[0] = reader.name
                file += not reader.continues
                yield from decoder.rows(reader, file if several else None, chunk)

        def to_error(error: Exception) -> RetvarError:
            if counts.transitions:
                ended = isinstance(error, SourceEnded)
                reason = str(error) if ended else describe_error(error)
                return SourceError(current[0], counts.transitions, reason)
            return InputError("source", current[0], f"cannot be read: {describe_error(error)}")

        return linked(parts(), linker, to_error)

    counts = [reader.rows for reader in readers]
    vector = roles.kind == "vector"
    return Experience(
        name=name,
        source=source,
        states=_state_count(readers, roles),
        width=len(roles.state) if vector else None,
        low=_bounds(meta.get("low"), roles),
        high=_bounds(meta.get("high"), roles),
        names=meta.get("names") or list(roles.state) if vector else None,
        labels=labels,
        grid=_pair(meta.get("grid")),
        cells=str(meta.get("cells", "")),
        policy=str(meta.get("policy", "")),
        length=sum(c or 0 for c in counts) if None not in counts else None,
    )


def _state_count(readers: list[Reader], roles: Roles) -> int | None:
    """Number of states, where it can be read from the files."""
    if roles.kind != "number":
        return None
    if roles.states is not None:
        return roles.states
    columns = (*roles.state, *(roles.next_state or []))
    ranges = [] if readers[0].text else [r.value_range(name) for r in readers for name in columns]
    largest = [each[1] for each in ranges if each is not None]
    return min(max(largest) + 1, MOST_STATES) if largest and max(largest) >= 0 else None


def _recorded_labels(meta: dict[str, Any], roles: Roles) -> list[Any] | None:
    """Labels of the states that retvar wrote into the file."""
    given = meta.get("labels")
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
