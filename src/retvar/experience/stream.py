"""Experience: transitions from any source, as a table, in chunks, or one by one; and its counts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.experience.moves import Chunk, Moves
from retvar.experience.target_policy import never_taken
from retvar.online import Transition
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.files import require_writable, write_with
from retvar.support.format import count, listed, reasons, visible
from retvar.support.html import Shown, page, settings

__all__ = ["Chunk", "Counts", "Experience"]

Array = NDArray[np.float64]
Source = Callable[["Counts"], Iterable[Chunk]]
MOST = 0.5  # share of rows whose loss is an error
MISMATCH = "next state is not the state of the next row"
NO_NEXT = "no next state"
TRUTH = "is neither true nor false"
NO_NEXT_ACTION = "no next action"
DUPLICATE = "duplicate row"
MANY = 0.05  # share of rows whose loss is warned of
MANY_REWARDS = 0.01  # share of rewards whose loss is warned of
ABOUT = ("states", "labels", "names", "low", "high", "grid", "cells", "policy")  # in files


@dataclass
class Counts:
    """Counts of the transitions, episodes and problems of one reading so far.

    Rows that are left out have no place in the stream: where an estimate stops within a chunk, they
    cover everything read.

    >>> Counts(transitions=3).effective_sample_size
    3.0
    """

    transitions: int = 0
    episodes: int = 0  #: terminated or truncated
    ends: int = 0  #: terminated
    entities: int = 0  #: patients, users, devices, … of a log
    ties: int = 0  #: rows with the entity and time of the row before, kept in the order of the log
    duplicates: int = 0  #: rows equal to one before
    named: dict[str, str] = field(default_factory=dict)  #: columns of entity, time and episode
    unused: list[str] = field(default_factory=list)  #: columns of a log without a role
    suspicions: list[str] = field(default_factory=list)  #: warnings about the first rows of a log
    logs: Counter[str] = field(default_factory=Counter, compare=False)  #: files, and their rows
    rejected: Counter[str] = field(default_factory=Counter)  #: rows left out, by reason
    missing_rewards: Counter[Any] = field(default_factory=Counter)
    """Rows without a reward, by state; None where the state is missing, too."""
    unmarked_ends: Counter[str] = field(default_factory=Counter)
    """Rows marked truncated because the next row does not continue them, by reason."""
    out_of_bounds: int = 0  #: observations outside the bounds, clipped to them
    largest_ratio: float = 1.0
    ratio_sum: float = 0.0  #: sum of ρ, where the data has it
    squared_ratio_sum: float = 0.0  #: sum of ρ²
    weighted: int = 0  #: transitions with a ρ
    taken: Counter[Any] = field(default_factory=Counter)
    """Rows by state and action, where the target policy is listed, in the form it has there."""
    policy: dict[Any, dict[Any, float]] = field(default_factory=dict)  #: that target policy

    @property
    def effective_sample_size(self) -> float:
        """(Σρ)²/Σρ², the number of transitions of the target policy that are as informative."""
        if not self.weighted:
            return float(self.transitions)
        size = self.ratio_sum**2 / self.squared_ratio_sum if self.squared_ratio_sum else 0.0
        return min(size, float(self.weighted))

    @property
    def rows(self) -> int:
        """Rows read so far: transitions and those left out."""
        return self.transitions + self.rejected.total()

    @property
    def lost(self) -> int:
        """Rows left out that are no duplicates."""
        return self.rejected.total() - self.rejected[DUPLICATE]

    @property
    def where_missing(self) -> str:
        """The states in which most rewards are missing, and how many."""
        named = self.missing_rewards.most_common(3)
        more = len(self.missing_rewards) - len(named)
        parts = [f"{times:,} in {'no state' if s is None else repr(s)}" for s, times in named]
        return ", ".join(parts) + (f", … ({more} more states)" if more else "")

    @property
    def understood(self) -> str:
        """One line that says what a log was taken for.

        >>> log = Counts(transitions=29_945, episodes=3_000, ends=2_841, entities=3_000)
        >>> log.named["entity"] = "patient_id"
        >>> log.understood
        '3,000 patients, 29,945 rows, 2,841 ends, 159 cut off'
        >>> log.named["entity"] = "entity"
        >>> log.understood[:14]
        '3,000 entities'
        """
        parts = [count(self.rows, "row"), count(self.ends, "end")]
        parts.append(f"{self.episodes - self.ends:,} cut off")
        if "entity" in self.named:  # called as its column, where that is a word
            noun = re.sub(r"[_\- ]*id$", "", self.named["entity"].lower()).replace("_", " ")
            word = re.fullmatch(r"[^\W\d_]{3,}( [^\W\d_]{3,})*", noun)
            many = re.sub("(?<=[^aeiou])y$", "ie", noun.rstrip("s")) + "s"
            nouns = (noun, many) if word else ("entity", "entities")
            parts.insert(0, count(self.entities, *nouns))
        parts += [f"{count(self.ties, 'tie')} in time"] if self.ties else []
        parts += [count(self.duplicates, "duplicate row")] if self.duplicates else []
        parts += [f"not used: {listed(self.unused, most=8)}"] if self.unused else []
        return ", ".join(parts)

    def count(self, chunk: Chunk) -> None:
        """Add a chunk to the counts."""
        self.transitions += len(chunk["reward"])
        over = [chunk[name] for name in ("terminated", "truncated") if name in chunk]
        self.episodes += int(np.count_nonzero(np.any(over, axis=0))) if over else 0
        self.ends += int(np.count_nonzero(chunk.get("terminated", False)))
        if "rho" in chunk:
            rho = np.asarray(chunk["rho"], dtype=np.float64)
            self.largest_ratio = float(rho.max(initial=self.largest_ratio * bool(self.weighted)))
            self.weighted += rho.size
            self.ratio_sum += float(rho.sum())
            self.squared_ratio_sum += float((rho * rho).sum())

    def merge(self, other: Counts) -> None:
        """Add the counts of another part of the stream."""
        ratios = [each.largest_ratio for each in (self, other) if each.weighted]
        for name, theirs in vars(other).items():
            if isinstance(theirs, Counter | int | float):
                setattr(self, name, getattr(self, name) + theirs)
        self.largest_ratio = max(ratios, default=1.0)
        self.policy = self.policy or other.policy

    def doubts(self, rewards: str = "rewards") -> list[str]:
        """Warnings about what was counted in a log of rewards, or of costs."""
        rows, lost, missing = count(self.rows, "row"), self.lost, self.missing_rewards.total()
        broken = self.unmarked_ends[MISMATCH]
        kept = "left out" if self.rejected[DUPLICATE] else "kept"
        found = [
            (lost > MANY * self.rows,
             f"{lost:,} of {rows} {'is' if lost == 1 else 'are'} left out "
             f"({reasons(+self.rejected)}): {self.remedy}"),
            (0 < missing >= MANY_REWARDS * self.rows,
             f"{rewards} are missing in {missing:,} of {rows} ({self.where_missing}), and rarely "
             "at random: values there and before are biased"),
            (broken > MANY * max(self.transitions, 1),
             f"after {broken:,} of {count(self.transitions, 'row')} the next row does not go on in "
             f"the next state: {self._order_remedy}"),
            (self.ties > MANY * self.rows and not self.suspicions,
             f"{count(self.ties, 'row')} of {self.rows:,} have the time of the row before, so that "
             "their order is that of the log: name a finer column time="),
            (self.duplicates > 0,
             f"{count(self.duplicates, 'duplicate row')}, {kept}: export the log anew"),
            (self.logs and max(self.logs.values()) > 1,
             f"{max(self.logs, key=self.logs.__getitem__, default='')} was added before: its rows "
             "count twice"),
        ]  # fmt: skip
        coverage = never_taken(self.policy, self.taken, self.largest_ratio)
        return [*self.suspicions, *(text for holds, text in found if holds), *coverage]

    @property
    def remedy(self) -> str:
        """What to do about the most common reason of rows left out."""
        if self.suspicions:
            return self.suspicions[0]
        commonest = max(self.rejected, key=lambda reason: self.rejected[reason], default="")
        return {
            NO_NEXT: f"{self._order_remedy}; or name the column next_state=",
            NO_NEXT_ACTION: "estimate without actions, which need the row that follows, to use all",
        }.get(
            commonest, "write 0 in place of blanks" if TRUTH in commonest else "correct these rows"
        )

    @property
    def _order_remedy(self) -> str:
        """What to do where rows do not follow one another."""
        roles = [f"{role}=" for role in ("entity", "time", "episode") if role not in self.named]
        if not roles:
            return "check the columns entity=, time= and episode="
        return f"rows may be of several entities, or out of order; name {' or '.join(roles)}"


@dataclass(eq=False)
class Experience(Shown):
    """Transitions: :meth:`moves`, ``experience.chunks()`` or ``for t in experience``.

    A chunk is a mapping of columns that ``update_many`` takes: ``state``, ``reward``,
    ``next_state``, ``terminated``, ``truncated``, ``stream`` where there are several, and ``rho``,
    ``gamma``, ``lam`` where the source has them. States are whole numbers, or observations as rows
    of an array [transition, number]; after a terminal transition ``next_state`` has no meaning and
    repeats the state.

    >>> import numpy as np
    >>> column = {"state": np.array([0, 1]), "next_state": np.array([1, 0]),
    ...           "reward": np.array([1.0, 2.0])}
    >>> [t.reward for t in Experience("by hand", lambda counts: iter([column]), states=2)]
    [1.0, 2.0]
    """

    name: str  #: of the source, for messages and titles
    source: Source  #: yields the chunks, or gives the table of a log, and counts rejected rows
    states: int | None = None  #: number of states; None: observations, or not known in advance
    fixed_states: bool = False  #: whether `states` is fixed, as by a space, and cannot grow
    width: int | None = None  #: numbers in an observation; None: states
    low: Array | None = None  #: bounds of observations, where known; ±inf: unbounded
    high: Array | None = None
    names: list[str] | None = None  #: of the numbers of an observation
    labels: list[Any] | None = None  #: of the states; may grow while reading
    state_names: list[str] | None = None  #: of states that are numbers, for tables and figures
    grid: tuple[int, int] | None = None  #: rows and columns, where states lie on a map
    cells: str = ""  #: a letter for each state, to print on the map
    policy: str = ""  #: description of the policy
    endless: bool = False  #: whether it goes on for ever, as a machine does
    is_log: bool = False  #: whether it comes from a table of logged rows
    force: bool = False  #: go on where more than half of the rows are left out
    cost: str = ""  #: column of costs, where these stand in place of rewards
    rewards: tuple[str, ...] = ()  #: columns of rewards, where they are several
    length: int | None = None  #: transitions to come, where known, for a progress bar
    pieces: Callable[[], Any] | None = None  #: gives its pieces for workers, where it is files
    grown: Callable[[], Experience | None] | None = None
    """Waits for more of a log that grows, and gives it all anew; None where it has ended."""
    with_actions: Source | None = None
    """As `source`, with a column ``action`` of whole numbers; None: actions are not known."""
    actions: list[Any] | None = None  #: labels of actions that are not numbers; may grow
    action_count: int | None = None  #: how many actions there are, where that is known
    pairs: bool = False  #: whether its states are pairs of a state and an action
    command: str = ""  #: the command line that opened it, for reports
    counts: Counts = field(default_factory=Counts)
    columns: list[str] | None = None  #: of the state, in a log
    known: int = 0  #: labels of what is resumed
    before: Counts = field(default_factory=Counts)  #: of what is resumed, to which others are added
    acted: Moves | None = None  #: rows with actions that were read
    _table: Moves | None = field(default=None, repr=False, init=False)

    def moves(self, progress: Callable[[int], None] | None = None) -> Moves:
        """All transitions as a table, read once; `counts` then says what was found.

        `progress` is called with the number of transitions read. If the source fails or is
        interrupted, what came before stays: the next call returns it.

        >>> from retvar.experience import from_gymnasium
        >>> len(from_gymnasium("FrozenLake-v1", steps=100).moves())
        100
        """
        if self._table is None:
            given, found = self._begin(), self.counts
            before = found.transitions, found.episodes, found.ends  # of what is resumed
            table = self._table = given if isinstance(given, Moves) else Moves()
            try:
                for chunk in given if given is not table or "rho" in table.columns else ():
                    if table is not given:
                        table.append(chunk)
                    found.count(chunk)
                    if progress is not None:
                        progress(found.transitions)
            finally:  # episodes that were going on are cut off
                own = len(table), table.count(), table.count("terminated")
                found.transitions, found.episodes, found.ends = np.add(before, own).tolist()
            if self.pieces is not None:
                found.logs[f"{self.name} of {count(found.rows - self.before.rows, 'row')}"] += 1
            if self.is_log and progress is not None:
                progress(found.transitions)
            refused = self.is_log and not self.force and found.transitions
            if refused and found.lost > MOST * found.rows:
                why = f"{reasons(+found.rejected)}; {found.remedy}; force=True uses the rest"
                raise InputError("rows", f"{found.lost:,} of {found.rows:,} left out", why)
        return self._table

    def _begin(self) -> Iterable[Chunk]:
        """Begin to read, with counts of this reading alone, and of what is resumed."""
        numbers = {k: x for k, x in vars(Counts()).items() if isinstance(x, Counter | int | float)}
        vars(self.counts).update(numbers)
        self.counts.merge(self.before)
        return self.source(self.counts)

    def chunks(self) -> Generator[Chunk]:
        """Yield the stream in chunks of transitions; `counts` are those of this reading.

        Where the source fails, everything before the failure comes first, then the error. A log of
        which more than half of the rows had to be left out is an error at its end, unless `force`.
        """
        if self.is_log:
            yield from self.moves().chunks()
            return
        for chunk in self._begin():
            self.counts.count(chunk)
            yield chunk

    @property
    def warnings(self) -> list[str]:
        """Signs that a log was not read as it was meant, as far as it has been read."""
        sums = "costs" if self.cost and not self.rewards else "rewards"
        return self.counts.doubts(sums) if self.is_log else []

    @property
    def understood(self) -> str:
        """One line that says what a log was taken for, as far as it has been read."""
        if self.is_log and not self.counts.rows:
            return "not read yet"
        return self.counts.understood if self.is_log else ""

    def __iter__(self) -> Iterator[Transition]:
        for chunk in self.chunks():
            columns = [x.tolist() if x.ndim == 1 else list(x) for x in chunk.values()]
            for row in zip(*columns, strict=True):
                yield Transition(**dict(zip(chunk, row, strict=True)))

    def __repr__(self) -> str:
        policy = f", {visible(self.policy)} policy" if self.policy else ""
        read = count(self.counts.transitions, "transition")
        return f"Experience({visible(self.name)}{policy}: {self._kind}; {read} read)"

    @property
    def _kind(self) -> str:
        """What its states are, in words."""
        if self.width is not None:
            return f"observations of {count(self.width, 'number')}"
        known = len(self.labels or []) if self.states is None else self.states
        return count(known, "state") if known else "states not known yet"

    def _html(self) -> str:
        coming = "goes on for ever" if self.endless else self.length
        shown = {
            "source": self.name,
            "policy": self.policy,
            "states": self._kind,
            "names": listed(self.names or self.labels or [], most=12),
            "transitions in all": f"{coming:,}" if isinstance(coming, int) else coming or "",
            "transitions read": f"{self.counts.transitions:,}",
            "episodes read": f"{self.counts.episodes:,}",
            "understood as": self.understood,
            "left out": reasons(self.counts.rejected),
        }
        return page("Experience", settings(shown), notes=self.warnings)

    def save(self, path: str | Path) -> None:
        """Write all transitions to a Parquet file; those not read yet are read first.

        :func:`retvar.experience.from_table` reads the same transitions back, trajectory by
        trajectory, to the last bit. What an estimate has read is written as it was read, also after
        the source has failed; otherwise, if it fails now, everything before is written.

        >>> import pathlib, tempfile
        >>> from retvar.experience import from_gymnasium, from_table
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "lake.parquet"
        >>> from_gymnasium("FrozenLake-v1", steps=100).save(path)
        >>> again = from_table(path)
        >>> len(list(again)), again.states, again.grid
        (100, 16, (4, 4))
        """
        path = parquet_path(path)
        try:
            _ = self.acted or self.moves()
        finally:
            if table := self.acted or self._table or Moves():
                about = {name: getattr(self, name) for name in ABOUT}
                known = {name: x for name, x in about.items() if x is not None}
                text = json.dumps({"own": True, **known}, default=_simple)
                actions = None if self.actions is None else [str(each) for each in self.actions]
                write_with(path, lambda file: table.write(file, text, actions))
        if not table:
            raise InputError("experience", self.name, "has no transitions; nothing is written")


def parquet_path(path: str | Path) -> Path:
    """The path of a Parquet file that can be written."""
    path = arguments.path("path", path)
    if path.suffix.lower() != ".parquet":
        raise InputError("path", path, "must be the name of a .parquet file")
    require_writable("path", path.parent)
    return path


def _simple(x: Any) -> Any:
    """What JSON has in place of a NumPy array or number, or of another label."""
    return x.tolist() if hasattr(x, "tolist") else str(x)
