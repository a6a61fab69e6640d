"""A stream of transitions from any source: chunks of columns, or one by one."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.action_coverage import ActionCoverage
from retvar.experience.recipes import Call
from retvar.format import count, listed, reasons, visible
from retvar.html import Shown, page, settings
from retvar.online import Transition

__all__ = [
    "DUPLICATE", "LARGEST_RATIO", "LARGEST_REWARD", "MISMATCH", "NO_NEXT", "NO_NEXT_ACTION",
    "Counts", "Experience", "first_rows",
]  # fmt: skip

Array = NDArray[np.float64]
Chunk = dict[str, NDArray[Any]]
BY_CHUNK = (
    "transitions", "episodes", "ends", "largest_ratio", "ratio_sum", "squared_ratio_sum",
    "weighted",
)  # fmt: skip
LARGEST_REWARD = 1e24  # its eighth power is summed, times that of the ratio, and stays finite
LARGEST_RATIO = 1e12
MISMATCH = "next state is not the state of the next row"
NO_NEXT = "no next state"
NO_NEXT_ACTION = "no next action"
DUPLICATE = "duplicate row"
MANY, MOST = 0.05, 0.5  # shares of rows whose loss is warned of, and is an error
FEW_ENDS = 0.02  # share of ends whose loss matters
OFTEN = 1.5  # times as many ends among rows left out as among all
CERTAIN = math.log(1e6)  # evidence against chance
MOST_COMPARED = 100_000  # labels
MIXED = "rows may be of several entities, or out of order"


def first_rows(chunk: Chunk, n: int) -> Chunk:
    """The first rows of a chunk.

    >>> first_rows({"reward": np.array([1.0, 2.0, 3.0])}, 2)
    {'reward': array([1., 2.])}
    """
    return {name: column[:n] for name, column in chunk.items()}


@dataclass
class Counts:
    """Counts of the transitions, episodes and problems of a stream so far.

    Where an estimate stops within a chunk, transitions, episodes and ratios count only what it
    learned from. What a source counts while it reads (`rejected`, `unmarked_ends`,
    `out_of_bounds`) covers everything read: rejected rows have no position in the stream.

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
    suspicions: list[str] = field(default_factory=list)  #: warnings from the first rows of a log
    rejected: Counter[str] = field(default_factory=Counter)  #: rows left out, by reason
    resent: str = ""  #: a warning about rows that seem to be sent twice
    padded: Counter[str] = field(default_factory=Counter)  #: states such as 010, read as numbers
    ends_left_out: int = 0  #: rows left out that say that an episode ends there
    unmarked_ends: Counter[str] = field(default_factory=Counter)
    """Rows marked truncated because the next row does not continue them, by reason."""
    out_of_bounds: int = 0  #: observations outside the bounds, clipped to them
    largest_ratio: float = 1.0
    ratio_sum: float = 0.0  #: sum of ρ, where the data has it
    squared_ratio_sum: float = 0.0  #: sum of ρ²
    weighted: int = 0  #: transitions with a ρ
    actions: ActionCoverage | None = None  #: beside the target policy, where one is listed
    _before: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @property
    def effective_sample_size(self) -> float:
        """(Σρ)²/Σρ², the number of transitions of the target policy that are as informative."""
        if not self.weighted:
            return float(self.transitions)
        if not np.isfinite(self.squared_ratio_sum):  # overflow: one ratio outweighs all others
            return 1.0
        squares = self.squared_ratio_sum
        size = self.ratio_sum * self.ratio_sum / squares if squares else 0.0
        return min(size, float(self.weighted))

    @property
    def rows(self) -> int:
        """Rows read so far: transitions and those left out."""
        return self.transitions + self.rejected.total()

    @property
    def understood(self) -> str:
        """One line that says what a log was taken for.

        >>> log = Counts(transitions=29_945, episodes=3_000, ends=2_841, entities=3_000)
        >>> log.named["entity"] = "patient_id"
        >>> log.understood
        '3,000 patients, 29,945 rows, 2,841 ends, 159 cut off'
        """
        parts = [count(self.rows, "row"), count(self.ends, "end")]
        parts.append(f"{self.episodes - self.ends:,} cut off")
        if "entity" in self.named:
            parts.insert(0, count(self.entities, *_nouns(self.named["entity"])))
        if self.ties:
            parts.append(f"{count(self.ties, 'tie')} in time")
        if self.duplicates:
            parts.append(count(self.duplicates, "duplicate row"))
        return ", ".join(parts)

    @property
    def warnings(self) -> list[str]:
        """Signs that a log was not read as it was meant, with probable remedies.

        >>> Counts(transitions=9, rejected=Counter({"reward is missing": 1})).warnings
        ['1 of 10 rows is left out (1 × reward is missing): correct these rows']
        """
        found = [*self.suspicions, *filter(None, [self.resent])]
        lost = self.rejected.total() - self.rejected[DUPLICATE]
        if lost > MANY * self.rows:
            verb = "is" if lost == 1 else "are"
            found.append(
                f"{lost:,} of {count(self.rows, 'row')} {verb} left out "
                f"({reasons(+self.rejected)}): {self._remedy()}"
            )
        if self.padded:
            example = next(iter(self.padded))
            found.append(
                f"{count(self.padded.total(), 'state')} with leading zeros, such as {example!r}, "
                f"{'is' if self.padded.total() == 1 else 'are'} read as numbers, "
                f"{example!r} as {int(example)}: name states='labels' if these are codes"
            )
        if self._ends_are_lost(lost):
            found.append(
                f"{self.ends_left_out:,} of {count(self.ends + self.ends_left_out, 'end')} are "
                f"among the {count(lost, 'row')} left out: values of states before an end are "
                "biased; correct these rows"
            )
        broken = self.unmarked_ends[MISMATCH]
        if broken > MANY * max(self.transitions, 1):
            found.append(
                f"after {broken:,} of {count(self.transitions, 'row')} the next row does not go on "
                f"in the next state: {self._order()}"
            )
        if self.ties > MANY * self.rows and not self.resent:
            found.append(
                f"{count(self.ties, 'row')} of {self.rows:,} have the time of the row before, so "
                "that their order is that of the log: name a finer column time="
            )
        if self.duplicates:
            kept = "left out" if self.rejected[DUPLICATE] else "kept"
            found.append(f"{count(self.duplicates, 'duplicate row')}, {kept}: export the log anew")
        if self.actions is not None:
            found += self.actions.warnings(self.largest_ratio)
        return found

    def _ends_are_lost(self, lost: int) -> bool:
        """Whether rows at ends are left out more often than others, and not by chance.

        By Chernoff's bound of the hypergeometric distribution.
        """
        ends = self.ends + self.ends_left_out
        lost -= self.rejected[NO_NEXT] + self.rejected[NO_NEXT_ACTION]  # no ends by themselves
        if not 0 < self.ends_left_out > FEW_ENDS * ends or lost < self.ends_left_out:
            return False
        among, overall = self.ends_left_out / lost, ends / (self.transitions + lost)
        if among < OFTEN * overall:
            return False
        evidence = among * math.log(among / overall)
        if among < 1.0:
            evidence += (1.0 - among) * math.log((1.0 - among) / (1.0 - overall))
        return lost * evidence > CERTAIN

    def _remedy(self) -> str:
        """What to do about the most common reason of rows left out."""
        if self.suspicions:
            return self.suspicions[0]
        commonest = self.rejected.most_common(1)[0][0]
        if commonest == NO_NEXT:
            return f"{self._order()}; or name the column next_state="
        if commonest == NO_NEXT_ACTION:
            return "action values need the row that follows; estimate without actions to use all"
        return "correct these rows"

    def _order(self) -> str:
        """What to do where rows do not follow one another."""
        open_roles = [
            f"{role}=" for role in ("entity", "time", "episode") if role not in self.named
        ]
        if not open_roles:
            return "check the columns entity=, time= and episode="
        return f"{MIXED}; name {' or '.join(open_roles)}"

    def refuse_losses(self) -> None:
        """Raise an error if more than half of the rows were left out."""
        lost = self.rejected.total() - self.rejected[DUPLICATE]
        if self.transitions and lost > MOST * self.rows:
            raise InputError(
                "rows", f"{lost:,} of {self.rows:,} left out",
                f"{reasons(+self.rejected)}; {self._remedy()}; force=True uses the rest",
            )  # fmt: skip

    def count(self, chunk: Chunk) -> None:
        """Add a chunk to the counts."""
        self._before = tuple(getattr(self, name) for name in BY_CHUNK)
        rows = len(chunk["reward"])
        self.transitions += rows
        flags = [chunk[name] for name in ("terminated", "truncated") if name in chunk]
        if flags:
            self.episodes += int(np.count_nonzero(np.any(flags, axis=0)))
        if "terminated" in chunk:
            self.ends += int(np.count_nonzero(chunk["terminated"]))
        if "rho" in chunk and rows:
            rho = np.asarray(chunk["rho"], dtype=np.float64)
            first = self.weighted == 0
            self.weighted += rows
            with np.errstate(over="ignore"):
                self.ratio_sum += float(rho.sum())
                self.squared_ratio_sum += float((rho * rho).sum())
            largest = float(rho.max())
            self.largest_ratio = largest if first else max(self.largest_ratio, largest)

    def merge(self, other: Counts) -> None:
        """Add the counts of another part of the stream.

        >>> counts = Counts(transitions=3)
        >>> counts.merge(Counts(transitions=2, episodes=1))
        >>> counts.transitions, counts.episodes
        (5, 1)
        """
        both = self.weighted > 0 and other.weighted > 0
        largest = max(self.largest_ratio, other.largest_ratio) if both else None
        if largest is None:
            largest = (other if other.weighted else self).largest_ratio
        for name in (*BY_CHUNK, "out_of_bounds", "ends_left_out"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest_ratio = largest
        self.rejected.update(other.rejected)
        self.padded.update(other.padded)
        self.unmarked_ends.update(other.unmarked_ends)
        if other.actions is not None:
            self.actions = self.actions or ActionCoverage(other.actions.policy)
            self.actions.taken.update(other.actions.taken)

    def recount(self, part: Chunk) -> None:
        """Count a part of the last chunk in place of the whole.

        >>> counts, chunk = Counts(), {"reward": np.ones(5)}
        >>> counts.count(chunk)
        >>> counts.recount(first_rows(chunk, 3))
        >>> counts.transitions
        3
        """
        for name, number in zip(BY_CHUNK, self._before, strict=True):
            setattr(self, name, number)
        self.count(part)


def _nouns(column: str) -> tuple[str, str]:
    """What the entities of a column are called, one and many.

    >>> _nouns("patient_id"), _nouns("DeviceID"), _nouns("id"), _nouns("x7")[1]
    (('patient', 'patients'), ('device', 'devices'), ('entity', 'entities'), 'entities')
    """
    noun = (
        re.sub(r"(?<=[a-z])I[dD]$|[_\- ]*\bid$|_id$", "", column).replace("_", " ").strip().lower()
    )
    if not re.fullmatch(r"[^\W\d_]{3,}( [^\W\d_]{3,})*", noun):
        noun = "entity"
    if noun.endswith("s"):
        return noun, noun
    return noun, noun[:-1] + "ies" if re.search("[^aeiou]y$", noun) else noun + "s"


def _alike(labels: list[Any]) -> list[list[str]]:
    """Labels of two letters or more that differ in case or blanks only; of pairs, their parts.

    >>> _alike(["broken", "a", "A", "broken ", "fresh"])
    [['broken', 'broken ']]
    >>> _alike([("worn", "run"), ("worn", "Run"), ("new", "run")])
    [['run', 'Run']]
    """
    groups: dict[str, list[str]] = {}
    parts = (part for label in labels for part in (label if isinstance(label, tuple) else (label,)))
    for label in dict.fromkeys(islice(parts, MOST_COMPARED)):
        if isinstance(label, str) and len(label.strip()) > 1:
            groups.setdefault("".join(label.split()).casefold(), []).append(label)
    return [each for each in groups.values() if len(each) > 1]


@dataclass(eq=False)
class Experience(Shown):
    """A stream of transitions: ``for t in experience`` or, much faster, ``experience.chunks()``.

    It is read once. A chunk is a mapping of columns that ``update_many`` takes: ``state``,
    ``reward``, ``next_state``, ``terminated``, ``truncated``, ``stream`` where there are several,
    and ``rho``, ``gamma``, ``lam`` where the source has them. States are whole numbers, or
    observations as rows of an array [transition, number]; after a terminal transition
    ``next_state`` has no meaning and repeats the state.

    >>> import numpy as np
    >>> column = {"state": np.array([0, 1]), "next_state": np.array([1, 0]),
    ...           "reward": np.array([1.0, 2.0])}
    >>> [t.reward for t in Experience("by hand", lambda counts: iter([column]), states=2)]
    [1.0, 2.0]
    """

    name: str  #: of the source, for messages and titles
    source: Callable[[Counts], Iterator[Chunk]]  #: yields the chunks and counts rejected rows
    states: int | None = None  #: number of states; None: observations, or not known in advance
    fixed_states: bool = False  #: whether `states` is fixed, as by a space, and cannot grow
    width: int | None = None  #: numbers in an observation; None: states
    low: Array | None = None  #: bounds of observations, where known; ±inf: unbounded
    high: Array | None = None
    names: list[str] | None = None  #: of the numbers of an observation
    labels: list[Any] | None = None  #: of the states; may grow while reading
    label_names: tuple[str, ...] = ()  #: of the parts of labels that are tuples
    state_names: list[str] | None = None  #: of states that are numbers, for tables and figures
    grid: tuple[int, int] | None = None  #: rows and columns, where states lie on a map
    cells: str = ""  #: a letter for each state, to print on the map
    policy: str = ""  #: description of the policy
    discount_columns: dict[str, str] = field(default_factory=dict)
    """Columns that the caller named for γ and λ."""
    endless: bool = False  #: whether it goes on for ever, as a machine does
    is_log: bool = False  #: whether it comes from a table of logged rows
    force: bool = False  #: go on where more than half of the rows are left out
    cost: str = ""  #: column of costs, where rewards are negated costs
    length: int | None = None  #: transitions to come, where known, for a progress bar
    pieces: Callable[[], Any] | None = None  #: gives its pieces for workers, where it is files
    with_actions: Callable[[Counts], Iterator[Chunk]] | None = None
    """As `source`, with a column ``action`` of whole numbers; None: actions are not known."""
    actions: list[Any] | None = None  #: labels of actions that are not numbers; may grow
    action_count: int | None = None  #: how many actions there are, where that is known
    pairs: bool = False  #: whether its states are pairs of a state and an action
    recipe: Call | None = None  #: how it was made, where that is known
    counts: Counts = field(default_factory=Counts)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the stream in chunks of transitions, and count them in `counts`.

        Where the source fails, everything before the failure comes first, then the error. A log of
        which more than half of the rows had to be left out is an error at its end, unless `force`.
        """
        for chunk in self.source(self.counts):
            self.counts.count(chunk)
            yield chunk
        if self.is_log and not self.force:
            self.counts.refuse_losses()

    @property
    def warnings(self) -> list[str]:
        """Signs that a log was not read as it was meant, as far as it has been read."""
        if not self.is_log:
            return []
        alike = _alike(self.labels or [])
        if not alike:
            return self.counts.warnings
        names = [" and ".join(map(repr, each)) for each in alike]
        text = f"labels of states differ in case or blanks only: {listed(names, most=3)}"
        return [*self.counts.warnings, f"{text}; write them alike if they are one state"]

    @property
    def understood(self) -> str:
        """One line that says what a log was taken for, as far as it has been read."""
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
        coming = "" if self.length is None else f"{self.length:,}"
        labels = self.labels or []
        shown = {
            "source": self.name,
            "policy": self.policy,
            "states": self._kind,
            "numbers": listed(self.names or [], most=12),
            "names": ", ".join(map(str, labels[:12])) + ("…" if len(labels) > 12 else ""),
            "transitions in all": "goes on for ever" if self.endless else coming,
            "transitions read": f"{self.counts.transitions:,}",
            "episodes read": f"{self.counts.episodes:,}",
            "understood as": self.understood,
            "left out": reasons(self.counts.rejected),
        }
        return page("Experience", settings(shown), notes=self.warnings)

    def save(self, path: str | Path) -> None:
        """Read the whole stream and write it to a Parquet file.

        See :func:`retvar.experience.write_table`.
        """
        from retvar.experience.recording import write_table

        write_table(self, path)
