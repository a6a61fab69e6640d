"""Experience from tables: Parquet and CSV files, read one after the other, or from memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from retvar.arguments import choice, flag, integer, is_integer
from retvar.errors import InputError, RetvarError, SourceError
from retvar.experience.arrangement import arranged, as_streams
from retvar.experience.column_roles import MOST_STATES, ColumnFinder, Roles, find_roles
from retvar.experience.decoder import Decoder
from retvar.experience.episodes import RowLinker, SourceEnded, describe_error, linked
from retvar.experience.pieces import Pieces, plan_pieces
from retvar.experience.readers import Reader, all_readers, open_readers
from retvar.experience.recipes import recorded_call
from retvar.experience.row_order import order_suspicions, resent_rows
from retvar.experience.stream import Chunk, Counts, Experience
from retvar.experience.target_policy import TargetPolicy
from retvar.experience.target_policy import target_policy as make_policy
from retvar.files import kind_of

__all__ = ["from_table"]


@recorded_call
def from_table(
    source: Any,
    *,
    state: str | Sequence[str] = "state",
    action: str = "action",
    reward: str = "reward",
    cost: str | None = None,
    next_state: str | Sequence[str] = "next_state",
    terminated: str | bool = "terminated",
    truncated: str = "truncated",
    entity: str | bool | None = None,
    time: str | None = None,
    episode: str | bool | None = None,
    gamma: str | None = None,
    lam: str | None = None,
    behaviour: str | None = None,
    target: str | None = None,
    target_policy: Any = None,
    rho: str | None = None,
    on_error: str = "skip",
    duplicates: str = "drop",
    force: bool = False,
    states: int | str | None = None,
    chunk: int = 65_536,
    stream: Any = None,
) -> Experience:
    """Read logged transitions, one per row, in chunks.

    Rows of an entity follow one another, in the order of the log or of `time`. Where they do not
    (another episode begins, a row is left out, the next state is not the next row's state), the row
    before is marked truncated. Columns of the transition itself, entity and episode are found under
    the names of the arguments unless other names are given; a column that is named must exist. γ,
    λ, ρ and probabilities change what is estimated: they are used only where they are named (or
    where retvar wrote the file), and a warning is logged where columns of these names are not used.
    Rows are numbered from 1, without the header. ``experience.understood`` says in one line what
    was read, and ``experience.warnings`` lists signs that it was not what was meant.

    Parameters
    ----------
    source
        Path or pattern of ``.parquet``, ``.csv`` or ``.csv.gz`` files, a list of them, or a table:
        a mapping of columns, a ``pyarrow.Table``, a DataFrame.
    state, next_state
        One column: whole numbers are used as states, fractions are observations, everything else
        is a label and numbered in order of appearance. Several columns: observations (``state_0``,
        ``state_1``, … are found automatically); where one holds text or dates, or with
        ``states="labels"``, their combinations are labels. Without `next_state` it is the
        state of the next row; the last row of an episode that did not terminate then has none and
        is left out.
    action
        For `target_policy` and for ``estimate(…, actions=True)``.
    cost
        Column of costs, in place of rewards: a reward is a negated cost.
    terminated, truncated
        Whether the episode terminated there, or was cut off. ``terminated=False`` where episodes
        never terminate.
    entity
        Id of the patient, user or device that a row belongs to; rows of different entities may be
        mixed. False: there is none, whatever the columns are called.
    time
        Numbers, dates or times that order the rows of an entity; they are sorted, outside memory if
        need be. Rows of one time keep their order. Without it, rows are taken in the order of the
        log.
    episode
        Id of the episode; tells the episodes of an entity apart. False: there is none.
    gamma, lam, rho
        γ and λ of the transition, importance ratio.
    behaviour, target
        Probability of the action under either policy, which give ρ. Missing probabilities are left
        out and counted; invalid ones raise an error whatever `on_error` is.
    target_policy
        In place of `target`: an array of probabilities [state, action] or of actions, a table (or
        file) with state, action and probability, a function of a state and an action, or a function
        of an array of states that returns either kind of array.
    on_error
        ``"skip"`` leaves bad rows out and counts them, by reason, in ``counts``; ``"raise"`` stops
        at the first.
    duplicates
        With `time`, rows that equal another in all columns: ``"drop"`` or ``"keep"``; counted in
        either case. Without `time` they cannot be told from repetitions, and are kept.
    force
        Go on where more than half of the rows are left out, which is an error otherwise.
    states
        Number of states, where they are numbers; ``"labels"`` to use numbers as labels, which
        negative and very large ones always are.
    chunk
        Rows read at a time.
    stream
        Refused: it is called `entity`.

    Examples
    --------
    >>> log = from_table({"state": ["a", "b", "a"], "reward": [1.0, 2.0, float("nan")],
    ...                   "terminated": [False, True, False]})
    >>> [(t.state, t.reward, t.next_state, t.terminated) for t in log], log.labels
    ([(0, 1.0, 1, False), (1, 2.0, 1, True)], ['a', 'b'])
    >>> log.counts.rejected
    Counter({'reward is missing or not finite': 1})
    """
    if stream is not None:
        raise InputError("stream", stream, "is called entity; name the column with entity=")
    for name, given, allowed in (
        ("on_error", on_error, ("skip", "raise")),
        ("duplicates", duplicates, ("drop", "keep")),
    ):
        choice(name, given, allowed)
    chunk = integer("chunk", chunk, 1)
    readers = open_readers(source)
    finder = ColumnFinder(readers)
    acted = finder.default("action", action)
    state_names, next_names = finder.state_columns(state, next_state)
    policy = None
    if target_policy is not None:
        policy = make_policy(target_policy, state_names, acted or "action")
    columns = {
        "state": state_names,
        "next_state": next_names,
        "reward": finder.reward(reward, cost),
        "cost": bool(cost),
        "terminated": finder.terminated(terminated),
        "truncated": finder.default("truncated", truncated),
        "entity": finder.optional("entity", entity),
        "time": None if time is None else finder.required("time", time),
        "episode": finder.optional("episode", episode),
        "stream": finder.own("stream"),
        "gamma": finder.optional("gamma", gamma),
        "lam": finder.optional("lam", lam),
        "rho": finder.optional("rho", rho),
        "behaviour": finder.optional("behaviour", behaviour),
        "target": finder.optional("target", target),
        "action": acted if policy is not None else None,
        "identity": finder.simple_columns() if time is not None else (),
    }
    roles = find_roles(finder, columns, states, policy is not None)
    found = _experience(
        readers, roles, policy, on_error == "raise", duplicates == "keep", chunk, acted
    )
    found.fixed_states, found.force = is_integer(states), flag("force", force)
    found.cost = roles.reward if roles.cost else ""
    if kind_of("source", Path(readers[0].name)) == "file" and readers[-1].growth is None:
        again = partial(
            _experience, roles=roles, policy=policy, strict=on_error == "raise",
            keep_duplicates=duplicates == "keep", chunk=chunk,
        )  # fmt: skip
        found.pieces = lambda: Pieces(plan_pieces(readers, roles), roles, again)
    found.discount_columns = {name: col for name, col in (("gamma", gamma), ("lam", lam)) if col}
    found.counts.named = {
        name: column for name in ("entity", "time", "episode") if (column := getattr(roles, name))
    }
    found.counts.suspicions = order_suspicions(readers[0], roles)
    if roles.time and duplicates == "drop":
        found.counts.resent = resent_rows(readers[0], roles)
    return found


def _experience(
    readers: list[Reader],
    roles: Roles,
    policy: TargetPolicy | None,
    strict: bool,
    keep_duplicates: bool,
    chunk: int,
    acted: str | None = None,
) -> Experience:
    meta = readers[0].metadata
    actions: list[Any] | None = None if acted is None else []
    labels: list[Any] | None = [] if roles.kind == "label" else _recorded_labels(meta, roles)
    name = readers[0].name + (f" and {len(readers) - 1} more" if len(readers) > 1 else "")

    def locate(file: int, row: int) -> str:
        return f"{readers[file].name}, row {row + 1:,}"

    def source(counts: Counts, acting: bool = False) -> Iterator[Chunk]:
        known = labels if roles.kind == "label" else None
        decoder = Decoder(roles, known, counts, strict, policy)
        if acting:
            own = replace(roles, action=acted)
            decoder = Decoder(own, known, counts, strict, policy, actions)
        infer = roles.next_state is None
        linker = RowLinker(
            counts, infer_next=infer, keep_last=acting, check_next=not infer,
            count_repeats=not roles.time, locate=locate if strict else None,
        )  # fmt: skip
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

        rows = parts()
        if readers[-1].growth is not None and roles.entity:
            rows = as_streams(rows)  # there is no last row after which they could be sorted
        elif roles.entity or roles.time:
            rows = arranged(rows, counts, chunk=chunk, keep_duplicates=keep_duplicates)
        return linked(rows, linker, to_error)

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
        is_log=True,
        with_actions=None if acted is None else partial(source, acting=True),
        actions=actions,
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
