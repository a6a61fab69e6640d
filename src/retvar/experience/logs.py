"""Experience from logs: files, tables and data frames."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.experience.linking import Log
from retvar.experience.moves import Moves, Workspace
from retvar.experience.roles import Roles, find_roles
from retvar.experience.stream import Counts, Experience
from retvar.experience.suspicions import first_doubts
from retvar.experience.tables import Reading, open_table, paths_of
from retvar.experience.target_policy import TargetPolicy
from retvar.experience.target_policy import target_policy as make_policy
from retvar.support import arguments
from retvar.support.arguments import choice, flag, is_integer
from retvar.support.errors import InputError


@dataclass
class Growing:
    r"""A log that grows, as the source of :func:`from_table`: a CSV file, a folder or a pattern.

    ``experience.grown()`` waits until something was added, and reads everything again. A CSV file
    is read up to its last complete line.

    Parameters
    ----------
    source
        Path of a ``.csv`` file, a folder, or a pattern of ``.parquet`` or ``.csv`` files.
    every
        Seconds between looks.
    wait
        Called instead of sleeping; returns False to end the log.

    Examples
    --------
    >>> import tempfile, retvar as rv
    >>> path = Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = path.write_text("state,reward,next_state,terminated\n0,1,1,0\n1,2,0,1\n0,5")
    >>> log = rv.experience.from_table(Growing(path, wait=lambda: False))
    >>> [t.reward for t in log]
    [1.0, 2.0]
    """

    source: str | Path
    every: float = 1.0
    wait: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        self.every = arguments.seconds("every", self.every)

    def sizes(self) -> dict[Path, int]:
        """The files that are there now, and their sizes, which differ where something was added."""
        return {path: path.stat().st_size for path in paths_of(self.source)}

    def complete(self, work: Workspace) -> list[Path]:
        """The files; of one CSV file, a copy of its complete lines."""
        paths = list(self.sizes())
        if len(paths) > 1 or not paths[0].name.lower().endswith(".csv"):
            return paths
        copy = Path(work.folder) / paths[0].name
        with paths[0].open("rb") as old, copy.open("wb") as new:
            new.writelines(line for line in old if line.endswith(b"\n"))
        return [copy]

    def grown(self, seen: dict[Path, int], given: dict[str, Any]) -> Experience | None:
        """Wait until the log has grown, and read all of it; None where it has ended."""
        while self.wait is None or self.wait():
            if self.wait is None:
                clock.sleep(self.every)
            if self.sizes() != seen:
                return from_table(self, **given)
        return None


def from_table(
    source: Any,
    *,
    state: str | Sequence[str] = "state",
    action: str = "action",
    reward: str | Sequence[str] = "reward",
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
    on_error: str | None = None,
    duplicates: str = "drop",
    force: bool = False,
    states: int | str | None = None,
    encoding: str | None = None,
    decimal: str = ".",
    thousands: str = "",
    day_first: bool = False,
    memory: str | None = None,
) -> Experience:
    """Read logged transitions, one per row.

    Rows of an entity follow one another, in the order of the log or of `time`. Where they do not
    (another episode begins, a row is left out, the next state is not the next row's state), the row
    before is marked truncated. Columns of the transition itself, entity and episode are found under
    the names of the arguments; a column that is named must exist. γ, λ, ρ and probabilities change
    what is estimated: they are used only where they are named (or where retvar wrote the file).
    Rows are numbered from 1, without the header. ``experience.understood`` says in one line what
    was read, and ``experience.warnings`` lists signs that it was not what was meant.

    Parameters
    ----------
    source
        Path or pattern of ``.parquet``, ``.csv`` or ``.csv.gz`` files, a folder, a list of paths,
        or a table: a mapping of columns, a DataFrame of pandas or polars, a ``pyarrow.Table``.
    state, next_state
        One column: whole numbers are used as states, fractions are observations, everything else
        is a label and numbered in order of appearance. Several columns (or ``state_0``,
        ``state_1``, …): observations; where one holds text or dates, or with ``states="labels"``,
        their combinations are labels. Without `next_state` it is the state of the next row; the
        last row of an episode that did not terminate then has none and is left out.
    action
        For `target_policy` and for ``estimate(…, actions=True)``.
    reward, cost
        Columns of rewards, and of costs, in place of rewards: values are then expected sums of
        costs. Several rewards, or both: :func:`retvar.estimate` tells how they vary together.
    terminated, truncated
        Whether the episode terminated there, or was cut off. ``terminated=False`` where episodes
        never terminate.
    entity, episode
        Ids of the patient, user or device, and of its episode; rows of different entities may be
        mixed. False: there is none, whatever the columns are called.
    time
        Numbers, dates or times by which the rows of an entity are sorted; rows of one time keep
        their order. Without it, rows are taken in the order of the log.
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
        By default rows with missing or invalid entries are left out and counted by reason, and
        text where a number is needed is an error. ``"skip"`` leaves such rows out, too;
        ``"raise"`` stops at the first bad row.
    duplicates
        With `time`, rows that equal another in all columns: ``"drop"`` or ``"keep"``; counted in
        either case.
    force
        Go on where more than half of the rows are left out, which is an error otherwise.
    states
        Number of states, where they are numbers; ``"labels"`` to use numbers as labels, which
        negative and very large ones always are.
    encoding, decimal, thousands, day_first
        How text is written: ``"latin-1"``, ``","``, ``"."``, dates such as 31.01.2026.
    memory
        How much memory reading may take, such as ``"2GB"``; by default a quarter of the machine's.
        What is more goes to a temporary folder.

    Examples
    --------
    >>> log = from_table({"state": ["a", "b", "a"], "reward": [1.0, 2.0, float("nan")],
    ...                   "terminated": [False, True, False]})
    >>> [(t.state, t.reward, t.next_state, t.terminated) for t in log], log.labels
    ([(0, 1.0, 1, False), (1, 2.0, 1, True)], ['a', 'b'])
    >>> log.counts.rejected
    Counter({'reward is missing or not finite': 1})
    """
    given = {name: value for name, value in locals().items() if name != "source"}
    if on_error is not None:
        choice("on_error", on_error, ("skip", "raise"))
    choice("duplicates", duplicates, ("drop", "keep"))
    for name in ("decimal", "thousands"):
        if not isinstance(given[name], str) or len(given[name]) > 1:
            raise InputError(name, given[name], "must be one sign, such as ','")
    reading = Reading(encoding, decimal, thousands, flag("day_first", day_first))
    work = Workspace(memory)
    grows = source if isinstance(source, Growing) else None
    seen = grows.sizes() if grows else {}
    table = open_table(grows.complete(work) if grows else source, work, reading)
    roles, policy = find_roles(table, given, target_policy is not None), None
    if target_policy is not None:
        policy = make_policy(target_policy, roles.state, roles.action or "action")
    how = roles, policy, on_error, duplicates == "keep"
    found = _experience(Log(table, *how))
    found.fixed_states, found.force = is_integer(states), flag("force", force)
    found.cost = "" if roles.others else cost or ""
    found.rewards = (roles.reward, *roles.others) if roles.others else ()
    found.discount_columns = {name: given[name] for name in ("gamma", "lam") if given[name]}
    found.counts.suspicions = first_doubts(table, roles)
    if grows:
        found.grown = partial(grows.grown, seen, given)
    elif table.files:
        files = [str(Path(each).resolve()) for each in table.files]
        found.pieces = lambda: [Piece(file, memory, reading, *how) for file in files]
    return found


def _experience(log: Log) -> Experience:
    """A log as experience: it is read when the first transition is asked for."""
    roles, meta = log.roles, log.table.metadata
    vector, number = roles.kind == "vector", roles.kind == "number"
    recorded = [tuple(x) if isinstance(x, list) else x for x in meta.get("labels") or []]
    known = roles.states or (None if roles.highest is None else roles.highest + 1)
    tables: dict[bool, Moves] = {}

    def source(counts: Counts, acting: bool = False) -> Moves:
        if acting not in tables:
            tables[acting] = log.moves(counts, acting=acting)
        return tables[acting]

    low, high = (
        np.array(meta[name], dtype=np.float64)
        if vector and len(meta.get(name, ())) == len(roles.state) else None
        for name in ("low", "high")
    )  # fmt: skip
    found = Experience(
        name=log.table.name, source=source, is_log=True, length=log.table.rows,
        states=known if number else None, width=len(roles.state) if vector else None,
        labels=log.labels if roles.kind == "label" else (recorded or None if number else None),
        names=(meta.get("names") or list(roles.state)) if vector else None,
        low=low, high=high,
        grid=tuple(meta["grid"]) if "grid" in meta else None,
        cells=meta.get("cells", ""), policy=meta.get("policy", ""),
        with_actions=None if roles.action is None else partial(source, acting=True),
        actions=None if roles.action is None else log.actions,
    )  # fmt: skip
    places = {name: getattr(roles, name) for name in ("entity", "time", "episode")}
    found.counts.named = {name: column for name, column in places.items() if column}
    return found


# ------------------------------------------------------------------ pieces, for workers


class Piece(NamedTuple):
    """One file of a log, which a worker can read: its columns and states are decided already."""

    file: str
    memory: str | None
    reading: Reading
    roles: Roles
    policy: TargetPolicy | None
    on_error: str | None
    keep_duplicates: bool

    def open(self) -> tuple[Experience, NDArray[np.uint64]]:
        """The file as experience, with a number for each of its entities and episodes.

        Numbers that two pieces share are of an entity that spans files. Labels are numbered in
        each piece: ``experience.labels`` tells them.
        """
        log = Log(open_table(self.file, Workspace(self.memory), self.reading), *self[3:])
        return _experience(log), log.entities()


@dataclass
class SplitCheck:
    """Refuses an entity or episode that lies in two files, where that would lose transitions."""

    roles: Roles
    seen: dict[int, str] = field(default_factory=dict)  #: ids, and the files they are in

    def add(self, name: str, ids: NDArray[np.uint64]) -> None:
        """Compare the ids of the next piece with those before."""
        anywhere, own = bool(self.roles.entity), ids.tolist()
        shared = [] if self.roles.next_state else self.seen.keys() & (own if anywhere else own[:1])
        for each in shared:
            remedy = (
                f"in {self.seen[each]} and in {name}, which workers read apart; write each "
                "entity and episode into one file, or log next states (next_state)"
            )
            raise InputError("cluster", "an entity or episode", remedy)
        known = self.seen if anywhere else {}
        self.seen = known | dict.fromkeys(own if anywhere else own[1:], name)
