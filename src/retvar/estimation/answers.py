"""The answer for one state or observation: value, spread, and where the return will fall."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from retvar.estimation.results import label_text
from retvar.estimation.return_sample import Interval, ReturnSample
from retvar.estimation.states import LeastSquaresEstimator
from retvar.experience.stream import Experience
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import align, count, listed, literal, number
from retvar.support.html import Shown

UNKNOWN = math.nan, math.nan
NEVER = "never visited"
NO_VISIT_NEAR = "no visit in this region"
ON_AVERAGE = "the share of returns holds on average over visited places, not in each"


@dataclass(frozen=True, eq=False)
class Answer(Shown):
    """Estimates for one state or observation; NaN where nothing is known, and `note` says why.

    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=20_000, seed=1)
    >>> found = rv.estimate(lake, gamma=0.9, by="least_squares").at(14)
    >>> print(found.value, found.return_interval)
    0.369 [0.290, 0.447] (0.0, 1.0)
    >>> found.note
    'returns take few values here: this interval held 100% of the calibration returns'
    """

    state: Any  #: a label or number, or an observation
    value: Interval
    std: Interval
    return_interval: tuple[float, float]  #: where the return will fall; NaN where that is not known
    level: float  #: of all intervals
    note: str = ""
    holds_here: bool = False  #: whether `return_interval` holds in this state, not on average only
    rollouts: ReturnSample | None = None  #: Monte Carlo returns from there, where there are some
    beside: dict[str, Any] = field(default_factory=dict)  #: law of the return, and why it varies

    def __str__(self) -> str:
        return answers_table([self])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; each estimate as [estimate, low, high]."""
        plain = isinstance(self.state, int | str | list)
        found: dict[str, Any] = {
            "state": self.state if plain else label_text(self.state), "value": list(self.value),
            "std": list(self.std), "return_interval": list(self.return_interval),
            "level": self.level, "note": self.note,
        }  # fmt: skip
        if (sample := self.rollouts) is not None:
            found["rollouts"] = {
                "episodes": sample.size, "cut_off": sample.cut_off,
                "completed": sample.completed > 0.0, "mean": list(sample.mean),
                "std": list(sample.std), "return_interval": list(sample.middle),
            }  # fmt: skip
        return found | {name: each.to_dict() for name, each in self.beside.items()}


def find_state(experience: Experience, state: Any, known: int | None = None) -> Any:
    """The number of a state, from its label, or where there are none its number; or an observation.

    Text is understood, too: a label, a number, or numbers separated by commas. `known` is the
    number of states, where the experience does not say.

    >>> weather = Experience("log", lambda counts: iter([]), labels=["rain", "sun"])
    >>> find_state(weather, "sun")
    1
    """
    if experience.width is not None:
        return _observation(experience, state)
    labels, text = experience.labels, _loose(state)
    if labels is not None and state in labels:
        return labels.index(state)
    names = [_loose(name) for name in labels or experience.state_names or ()]
    if text in names and (labels is not None or isinstance(state, str)):
        return names.index(text)
    if labels is not None:
        remedy = f"is not a state of {experience.name}; they are {listed(labels)}"
        raise InputError("state", state, remedy)
    state = int(text) if isinstance(state, str) and text.isdecimal() else state
    return arguments.integer("state", state, 0, max(experience.states or 0, known or 0) - 1)


def _observation(experience: Experience, state: Any) -> Any:
    """An observation as a row of numbers."""
    names = f" ({', '.join(experience.names)})" if experience.names else ""
    what = f"{count(experience.width or 0, 'finite number')}{names}"
    if isinstance(state, str):
        with contextlib.suppress(ValueError):
            state = [float(x) for x in _loose(state).split(",")]
    if experience.pairs and isinstance(state, list | tuple) and len(state) == 2:
        state = [*np.ravel(state[0]), state[1]]  # (observation, action)
    row = arguments.floats("state", state, what).reshape(-1)
    if row.size != experience.width or not np.isfinite(row).all():
        raise InputError("state", state, f"must hold {what}")
    if experience.pairs and row[-1] not in range(actions := experience.action_count or 0):
        raise InputError("state", state, f"must end with an action from 0 to {actions - 1}")
    return row


def _loose(label: Any) -> str:
    """A label without brackets, quotes and spaces."""
    return re.sub(r"[\s()\[\]'\"]", "", str(label))


def find_states(experience: Experience, given: Any, known: int | None) -> tuple[Any, bool]:
    """A column of numbers of states, or rows of observations; and whether it is one that was named.

    Each is named as for :func:`find_state`.
    """
    vector, labels = experience.width is not None, experience.labels
    several = isinstance(given, list | tuple) or getattr(given, "ndim", 0) > 0
    if vector and not isinstance(given, str):
        several = several and all(isinstance(x, list | tuple) or np.ndim(x) for x in given)
    elif isinstance(given, tuple):
        several = not (labels and isinstance(labels[0], tuple))
    parts = given if several else [given]
    if labels is not None and isinstance(parts, np.ndarray):
        parts = parts.tolist()
    if vector or not isinstance(parts, np.ndarray):
        numbers = {} if labels is None else {label: k for k, label in enumerate(labels)}
        parts = [
            numbers[x] if numbers and isinstance(x, Hashable) and x in numbers
            else find_state(experience, x, known) for x in parts
        ]  # fmt: skip
    column = np.asarray(parts)
    if column.ndim != (2 if vector else 1) and column.size:
        remedy = "must be a column of states, or rows of numbers of one length"
        raise InputError("states", literal(given), remedy)
    return column, not several


def answer_at(found: Any, state: Any, level: float | None = None) -> Answer:
    """The answer of an estimate for one state, by label or number, or for one observation."""
    experience, estimator, visits = found.experience, found.estimator, found.monitor.visits
    level = found.monitor.level if level is None else arguments.level("level", level)
    at = find_state(experience, state, len(getattr(visits, "counts", ())))
    labels, row = experience.labels, np.array([at])
    name = at.tolist() if row.ndim > 1 else at if labels is None else labels[at]
    fitted, known_ends = isinstance(estimator, LeastSquaresEstimator), estimator.has_intervals
    note = str(estimator.note(row[0]) if fitted else getattr(estimator, "intervals", ""))
    if not (row.ndim > 1 and fitted) and not visits.known(row)[0]:
        note = NO_VISIT_NEAR if row.ndim > 1 else NEVER
    value, std = (
        Interval(ask(name), *(found.interval(name, what, level=level) if known_ends else UNKNOWN))
        for what, ask in (("value", found.value), ("std", found.std))
    )
    known, ends, doubt, here = not math.isnan(value.estimate), UNKNOWN, "", False
    if known and fitted:
        ends, doubt, here = found.return_intervals.at(at, level)
    wrong = found.self_check.warning if known else ""
    notes = "; ".join(filter(None, (note, doubt, wrong)))
    return Answer(name, value, std, ends, level, notes, here)


def answers_table(answers: list[Answer]) -> str:
    """Answers as a table, roll-outs below the estimates."""
    share = f"{100 * answers[0].level:.4g}%"
    lines = [["at", f"value, {share}", f"std, {share}", f"{share} of returns"]]
    notes = [""]
    for each in answers:
        name = each.state
        name = ", ".join(map(number, name)) if isinstance(name, list) else label_text(name)
        lines.append([name, *map(_text, (each.value, each.std, each.return_interval))])
        notes.append(each.note)
        if (sample := each.rollouts) is not None:
            lines.append(["roll-outs", *map(_text, (sample.mean, sample.std, sample.middle))])
            note = count(sample.size, "return")
            if sample.cut_off:
                how = sample.remark().replace("value function", "estimate")
                note += f", {sample.cut_off:,} {how}"
            notes.append(note)
    text = [f"{line}  {note}".rstrip() for line, note in zip(align(lines), notes, strict=True)]
    if any(not each.holds_here and not math.isnan(each.return_interval[0]) for each in answers):
        text.append(ON_AVERAGE)
    beside = [str(part) for each in answers for part in each.beside.values()]
    return "\n\n".join(["\n".join(text), *beside])


def _text(given: tuple[float, ...]) -> str:
    if all(map(math.isnan, given)):
        return number(math.nan)
    return str(given) if isinstance(given, Interval) else " … ".join(map(number, given))
