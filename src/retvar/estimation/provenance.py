"""Provenance of an estimate: what is saved with it, and whether other experience fits it."""

from __future__ import annotations

import logging
import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from retvar import arguments
from retvar.errors import InputError
from retvar.estimation.monitor import Monitor
from retvar.estimation.visits import Regions, Visits
from retvar.experience.stream import Counts, Experience
from retvar.features import ObservationFeatures
from retvar.format import listed, literal
from retvar.online import OnlineEstimator
from retvar.online.checkpoint import MALFORMED, read_count

__all__ = ["Provenance", "restore_monitor", "to_notes"]

log = logging.getLogger("retvar")
MOST = 12  # columns that are named in messages
NUMBERS = (  # fields of Counts that are saved
    "transitions", "episodes", "out_of_bounds", "largest_ratio", "ratio_sum", "squared_ratio_sum",
    "weighted", "ends", "entities", "ties", "duplicates",
)  # fmt: skip
LATER = ("ends", "entities", "ties", "duplicates")  # not in files of earlier versions
REASONS = ("rejected", "unmarked_ends")  # fields that count by reason


@dataclass(frozen=True)
class Provenance:
    """Properties of a source.

    >>> source = Experience("gymnasium:Robot-v0 × 4", lambda counts: iter(()), policy="random")
    >>> Provenance.of(source)
    Provenance(name='gymnasium:Robot-v0', policy='random', states=None, names=None, low=None,
    high=None)
    """

    name: str  # without the number of environments
    policy: str = ""
    states: int | None = None  # where it is fixed
    names: list[str] | None = None  # of the numbers of an observation
    low: list[float] | None = None  # bounds of observations
    high: list[float] | None = None

    @classmethod
    def of(cls, experience: Experience) -> Provenance:
        """The provenance of an experience."""
        low, high = (
            None if bound is None else bound.tolist() for bound in (experience.low, experience.high)
        )
        return cls(
            re.sub(r" × \d+$", "", experience.name),
            experience.policy,
            experience.states if experience.fixed_states else None,
            None if experience.names is None else list(experience.names),
            low,
            high,
        )

    def compare(
        self, path: Any, estimator: OnlineEstimator, experience: Experience, visited: int
    ) -> None:
        """Refuse experience that does not fit; log a warning if it fits but has another origin.

        `visited` is the largest visited state plus one.
        """
        here = Provenance.of(experience)
        problem = (
            self._other_states(here, experience, visited)
            or self._other_order(here)
            or self._out_of_bounds(here, estimator)
        )
        if problem:
            raise InputError("resume", path, problem)
        if self.states is not None:  # a log need not contain them all
            experience.states = self.states
        differ = [
            name for name in ("policy", "names", "low", "high")
            if getattr(self, name) and getattr(here, name)
            and getattr(self, name) != getattr(here, name)
        ]  # fmt: skip
        if differ or self.name != here.name:
            texts = (each.describe(differ) for each in (self, here))
            log.warning("%s was learned from %s; it is resumed with %s", path, *texts)

    def _other_states(self, here: Provenance, experience: Experience, visited: int) -> str:
        if experience.labels is not None:  # labels are compared instead
            return ""
        known = visited if self.states is None else self.states
        if here.states is None:
            fits = self.states is None or (experience.states or 0) <= known
        else:
            fits = here.states == known if self.states is not None else known <= here.states
        return "" if fits else (
            f"was learned from {known:,} states; {experience.name} has {experience.states:,}"
        )  # fmt: skip

    def _other_order(self, here: Provenance) -> str:
        saved, found = self.names or [], here.names or []
        if saved == found or sorted(saved) != sorted(found):
            return ""
        texts = (listed(names, most=MOST) for names in (saved, found))
        return "was learned from the columns {}, in this order; here they are {}".format(*texts)

    def _out_of_bounds(self, here: Provenance, estimator: OnlineEstimator) -> str:
        """Bounded features cannot distinguish observations outside their bounds."""
        if not isinstance(estimator.features[0], ObservationFeatures) or not (
            self.low and here.low
        ):
            return ""
        inside = np.all(np.array(here.low) >= self.low) and np.all(np.array(here.high) <= self.high)
        if inside:
            return ""
        return f"its observations lie {self._bounds()}; those of {here.name} exceed these bounds"

    def describe(self, fields: list[str]) -> str:
        """The name and the fields listed, as text."""
        texts = [self.name]
        if "policy" in fields:
            texts.append(f"{self.policy} policy")
        if "names" in fields:
            texts.append(f"columns {listed(self.names or (), most=MOST)}")
        if "low" in fields or "high" in fields:
            texts.append(f"observations {self._bounds()}")
        return ", ".join(texts)

    def _bounds(self) -> str:
        low, high = (
            listed((f"{x:g}" for x in bound or ()), most=MOST) for bound in (self.low, self.high)
        )
        return f"between {low} and {high}"


def to_notes(monitor: Monitor, experience: Experience) -> dict[str, Any]:
    """JSON data to save with an estimator: provenance, visits and counts."""
    counts, labels, grid = experience.counts, experience.labels, experience.grid
    numbers = {name: getattr(counts, name) for name in NUMBERS}
    reasons = {name: dict(getattr(counts, name)) for name in REASONS}
    return {
        "level": monitor.level,
        "began": asdict(monitor.provenance or Provenance.of(experience)),
        "labels": None if labels is None else [_label_to_json(each) for each in labels],
        "grid": None if grid is None else list(grid),
        "actions": experience.pairs,
        "visits": monitor.visits.to_dict() if monitor.visits is not None else None,
        "off_policy": monitor.off_policy,
        "remarks": list(monitor.remarks),
        "counts": numbers | reasons,
    }


def restore_monitor(path: Any, estimator: OnlineEstimator, experience: Experience) -> Monitor:
    """Restore a monitor from the notes of a saved estimator; refuse experience of another kind."""
    notes = estimator.notes.get("estimate")
    if not isinstance(notes, dict):
        raise InputError("resume", path, "was not written by estimate")
    try:
        _refuse_another_kind(path, estimator, notes, experience)
        monitor = Monitor(float(notes["level"]))
        monitor.off_policy = bool(notes["off_policy"])
        monitor.remarks[:] = [str(remark) for remark in notes.get("remarks", ())]
        if notes["visits"] is not None:
            kind = Visits if estimator.features[0].states is not None else Regions
            monitor.visits = kind.from_dict(notes["visits"])
        if "began" in notes:  # not in files of earlier versions
            visited = monitor.visits.counts.size if isinstance(monitor.visits, Visits) else 0
            monitor.provenance = _restore_provenance(notes["began"])
            monitor.provenance.compare(path, estimator, experience, visited)
        if notes["labels"] is not None:
            _restore_labels(path, notes["labels"], experience)
        _restore_counts(notes["counts"], experience.counts)
    except InputError:
        raise
    except MALFORMED as error:
        raise InputError("resume", path, f"its notes cannot be read: {error!r}") from None
    return monitor


def _refuse_another_kind(
    path: Any, estimator: OnlineEstimator, notes: Any, experience: Experience
) -> None:
    """Refuse experience whose states are of another kind than the saved ones."""
    features = estimator.features[0]
    width = None if features.states is not None else getattr(features, "width", experience.width)
    if experience.width != width:
        saved, here = (f"observations of {w} numbers" if w else "states" for w in
                       (width, experience.width))  # fmt: skip
        raise InputError("resume", path, f"was learned from {saved}; {experience.name} has {here}")
    if (notes["labels"] is None) != (experience.labels is None):
        saved, here = ("labels", "numbers") if experience.labels is None else ("numbers", "labels")
        problem = f"has {saved} for its states; {experience.name} has {here}"
        raise InputError("resume", path, problem)
    grid = experience.grid
    if grid is not None and notes["grid"] is not None and list(grid) != notes["grid"]:
        saved, here = ("{} × {}".format(*size) for size in (notes["grid"], grid))
        problem = f"was learned on a map of {saved}; {experience.name} has one of {here}"
        raise InputError("resume", path, problem)


def _restore_labels(path: Any, saved: list[Any], experience: Experience) -> None:
    """Number states as before."""
    labels = [_label_from_json(path, each) for each in saved]
    assert experience.labels is not None
    if experience.states is not None and experience.labels != labels:
        raise InputError("resume", path, f"has other states than {experience.name}")
    experience.labels[:] = labels


def _restore_provenance(saved: dict[str, Any]) -> Provenance:
    """Each field with its type."""
    found = Provenance(**saved)
    for name, text in (("name", found.name), ("policy", found.policy)):
        arguments.instance(name, text, str, "a text")
    if found.states is not None:
        read_count(found.states)
    if found.names is not None:
        arguments.texts("names", found.names)
    for bound in (found.low, found.high):
        for number in bound or ():
            arguments.instance("bounds", number, int | float, "numbers")  # or infinite
    return found


def _restore_counts(saved: dict[str, Any], counts: Counts) -> None:
    for name in NUMBERS:
        if name in saved or name not in LATER:
            whole = isinstance(getattr(counts, name), int)
            setattr(counts, name, (read_count if whole else _sum_of_ratios)(saved[name]))
    for name in REASONS:
        own = getattr(counts, name)
        own.update({str(reason): read_count(times) for reason, times in saved[name].items()})


def _sum_of_ratios(given: Any) -> float:
    """A sum of importance ratios, which may have overflowed."""
    if not isinstance(given, int | float) or not given >= 0:
        raise InputError("counts", literal(given), "must be a number of at least 0")
    return float(given)


def _label_from_json(path: Any, saved: Any) -> Any:
    if isinstance(saved, dict):
        remedy = f"has labels of type {saved['kind']}, which cannot be restored; use text"
        raise InputError("resume", path, remedy)
    return tuple(_label_from_json(path, x) for x in saved) if isinstance(saved, list) else saved


def _label_to_json(label: Any) -> Any:
    """A label for JSON; with its type where it cannot be restored.

    >>> import datetime
    >>> _label_to_json("a"), _label_to_json((1, 2)), _label_to_json(datetime.date(2026, 1, 31))
    ('a', [1, 2], {'kind': 'date', 'text': '2026-01-31'})
    """
    if isinstance(label, tuple):
        return [_label_to_json(each) for each in label]
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, str | int | float | bool | None):
        return label
    return {"kind": type(label).__name__, "text": str(label)}
