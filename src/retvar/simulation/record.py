"""What a simulation records, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import literal

__all__ = ["Record"]

Integers = NDArray[np.int64]
POINTS = 100
MOST_POINTS = 100_000_000
LATEST = 2**62  # moment


@dataclass(frozen=True, kw_only=True)
class Record:
    """What to record, and when; moments are steps, or episodes if the run is counted in episodes.

    Parameters
    ----------
    every
        Record every `every` moments.
    at
        Record at these moments; 0 is the beginning.
    points
        Number of moments to record, evenly spaced, or log-spaced with ``log=True``; default: 100.
    states
        Record the estimates of these states only (their indices or names); default: all.
    window
        Mean estimate and mean squared error over the last `window` moments.
    change
        Mean absolute change of each estimate at a moment, as in Table 1 of the paper.
    rmse
        Root of the squared error weighted by the stationary distribution, at each point.
    step_sizes
        Step size with which each state was last updated, at each point.

    Examples
    --------
    >>> import retvar as rv
    >>> rv.Record(points=5).moments(20)
    array([ 4,  8, 12, 16, 20])
    >>> rv.Record(points=4, log=True).moments(1_000)
    array([   1,   10,  100, 1000])
    """

    every: int | None = None
    at: Sequence[int] | None = None
    points: int | None = None
    log: bool = False
    states: Sequence[int | str] | None = None
    window: int = 0
    change: bool = False
    rmse: bool = False
    step_sizes: bool = False

    def __post_init__(self) -> None:
        ways = [name for name in ("every", "at", "points") if getattr(self, name) is not None]
        if len(ways) > 1:
            raise InputError("record", " and ".join(ways), "give one of every, at and points")
        for name in ("every", "points", "window"):
            if getattr(self, name) is not None:
                low = 0 if name == "window" else 1
                found = arguments.integer(f"record.{name}", getattr(self, name), low)
                object.__setattr__(self, name, found)
        for name in ("log", "change", "rmse", "step_sizes"):
            object.__setattr__(self, name, arguments.flag(f"record.{name}", getattr(self, name)))
        if self.log and ways not in ([], ["points"]):
            raise InputError("record.log", True, "goes with points")
        if self.at is not None:
            moments = arguments.entries("record.at", self.at, "a list of whole numbers")
            if not moments or not all(map(arguments.is_integer, moments)):
                raise InputError("record.at", self.at, "must be a list of whole numbers")
            arguments.integer("record.at", int(max(moments)), high=LATEST)
            object.__setattr__(self, "at", tuple(sorted({int(m) for m in moments})))

    def moments(self, total: int) -> Integers:
        """Return the moments at which a run of `total` moments is recorded."""
        total = arguments.integer("total", total, 1)
        if self.window > total:
            raise InputError("record.window", self.window, f"must be at most the end, {total:,}")
        if self.at is not None:
            moments = np.array(self.at, dtype=np.int64)
            if moments[0] < 0 or moments[-1] > total:
                bad = int(moments[0] if moments[0] < 0 else moments[-1])
                raise InputError("record.at", bad, f"must lie between 0 and the end, {total:,}")
            return moments
        if self.every is not None:
            if self.every > total:
                remedy = f"is beyond the end; must be at most {total:,}"
                raise InputError("record.every", self.every, remedy)
            if total // self.every > MOST_POINTS:
                found, most = f"{total // self.every:,} moments", f"{MOST_POINTS:,}"
                raise InputError("record", found, f"must be at most {most}; record less often")
            return np.arange(self.every, total + 1, self.every, dtype=np.int64)
        count = min(self.points or POINTS, total)
        if self.log and count > 1:
            spaced = np.logspace(0, np.log10(total), count)
        else:
            spaced = np.linspace(total / count, total, count)
        return np.unique(np.rint(spaced).astype(np.int64))


def record_of(given: Any) -> Record:
    """Return a Record: a number is `every`, a list is `at`, ``"log"`` is log-spaced."""
    if given is None or isinstance(given, Record):
        return Record() if given is None else given
    if isinstance(given, str) and given == "log":
        return Record(log=True)
    if arguments.is_integer(given):
        return Record(every=int(given))
    if isinstance(given, list | tuple | range) or (isinstance(given, np.ndarray) and given.ndim):
        return Record(at=list(given))
    raise InputError("record", literal(given), "must be 'log', a number, a list or a Record")
