"""The answer for one state or observation: value, spread, and where the return will fall."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from retvar import arguments
from retvar.errors import InputError
from retvar.estimation.feature_estimator import FeatureEstimator
from retvar.estimation.monitor import Monitor
from retvar.estimation.results import higher_moments, label_text
from retvar.estimation.return_sample import Interval, ReturnSample
from retvar.estimation.tabular import TabularEstimator
from retvar.estimation.visits import Regions
from retvar.experience.stream import Experience
from retvar.format import align, count, listed, number
from retvar.html import Shown, preformatted
from retvar.networks import SHAPES
from retvar.online.bootstrap import half_width

__all__ = ["Answer", "answer_at", "answers_table", "find_state"]

UNKNOWN = math.nan, math.nan
NEVER = "never visited"
NO_VISIT_NEAR = "no visit in this region"
SURE = 0.99  # level beyond which roll-outs contradict an estimate
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
    shapes: dict[str, Interval] = field(default_factory=dict)  #: skewness and excess kurtosis

    @property
    def contradicted(self) -> list[str]:
        """What the roll-outs contradict, of value and std: differences beyond both 99% intervals.

        >>> sample = ReturnSample.whole(np.random.default_rng(0).normal(5.0, 1.0, 400))
        >>> value, std = Interval(3.0, 2.8, 3.2), Interval(1.0, 0.9, 1.1)
        >>> Answer(0, value, std, (0.0, 9.0), 0.9, rollouts=sample).contradicted
        ['value']
        """
        if self.rollouts is None:
            return []
        wider = half_width(SURE) / half_width(self.level)
        pairs = {"value": (self.value, self.rollouts.mean), "std": (self.std, self.rollouts.std)}
        return [name for name, (own, sampled) in pairs.items() if _apart(own, sampled, wider)]

    def __str__(self) -> str:
        return answers_table([self])

    def _html(self) -> str:
        return preformatted(str(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; each estimate as [estimate, low, high]."""
        found: dict[str, Any] = {
            "state": self.state
            if isinstance(self.state, int | str | list)
            else label_text(self.state),
            "value": list(self.value),
            "std": list(self.std),
            **{name: list(given) for name, given in self.shapes.items()},
            "return_interval": list(self.return_interval),
            "level": self.level,
            "note": self.note,
        }
        if self.rollouts is not None:
            sample = self.rollouts
            low, high = _tails(sample)
            found["rollouts"] = {
                "episodes": sample.size, "cut_off": sample.cut_off, "completed": sample.completed,
                "mean": list(sample.mean), "std": list(sample.std), "return_interval": [low, high],
                "contradict": self.contradicted,
            }  # fmt: skip
        return found


def _apart(own: Interval, sampled: Interval, wider: float) -> bool:
    """Whether two estimates differ by more than their intervals, widened, allow together."""
    if not np.isfinite([*own, *sampled[1:]]).all():
        return False
    if math.isnan(sampled.estimate):  # bounds
        reach = wider * (own.high - own.low) / 2.0
        return not sampled.low - reach <= own.estimate <= sampled.high + reach
    below = own.estimate < sampled.estimate
    one, other = (own, sampled) if below else (sampled, own)
    reach = wider * math.hypot(one.high - one.estimate, other.estimate - other.low)
    return other.estimate - one.estimate > reach


def find_state(experience: Experience, state: Any, known: int | None = None) -> Any:
    """The number of a state, from its label or number, or an observation as an array.

    Text is understood, too: a label, a number, or numbers separated by commas. `known` is the
    number of states, where the experience does not say.

    >>> weather = Experience("log", lambda counts: iter([]), labels=["rain", "sun"])
    >>> find_state(weather, "sun")
    1
    """
    if experience.width is not None:
        return _observation(experience, state)
    labels, size = experience.labels, max(experience.states or 0, known or 0)
    if labels is not None:
        for form in (lambda x: x, str, _loose):
            try:
                wanted = form(state)
            except Exception:  # what cannot be shown is no label
                continue
            found = next((k for k, label in enumerate(labels) if _same(form(label), wanted)), None)
            if found is not None:
                return found
        remedy = f"is not a state of {experience.name}; they are {listed(labels)}"
        raise InputError("state", state, remedy)
    if experience.state_names is not None and isinstance(state, str):
        loose = [_loose(name) for name in experience.state_names]
        state = loose.index(_loose(state)) if _loose(state) in loose else state
    try:
        number = int(state) if isinstance(state, str) else state
    except ValueError:
        number = None
    if not arguments.is_integer(number) or not 0 <= number < size:
        raise InputError("state", state, f"must be the number of a state, 0 to {size - 1}")
    return int(number)


def _same(label: Any, wanted: Any) -> bool:
    return type(label) is type(wanted) and bool(label == wanted)


def _loose(label: Any) -> str:
    """A label without brackets, quotes and spaces."""
    return re.sub(r"[\s()\[\]'\"]", "", str(label))


def _observation(experience: Experience, state: Any) -> Any:
    """An observation as a row of numbers."""
    width = experience.width or 0
    names = f" ({', '.join(experience.names)})" if experience.names else ""
    remedy = f"must hold {count(width, 'number')}{names}"
    try:
        given = _loose(state).split(",") if isinstance(state, str) else state
        row = np.asarray(given, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise InputError("state", state, remedy) from None
    if row.size != width or not np.isfinite(row).all():
        raise InputError("state", state, remedy)
    return row


def answer_at(
    experience: Experience, estimator: Any, monitor: Monitor, state: Any, level: float | None = None
) -> Answer:
    """The answer for one state, by label or number, or for one observation."""
    level = monitor.level if level is None else arguments.level("level", level)
    visits = getattr(monitor.visits, "counts", np.zeros(0, dtype=np.int64))
    found = find_state(experience, state, visits.size)
    if experience.width is not None:
        name: Any = found.tolist()
        note = _note_on_observation(experience, estimator, monitor, found)
    else:
        labels = experience.labels
        name = found if labels is None else labels[found]
        if isinstance(estimator, TabularEstimator) and found < visits.size:
            estimator.add_errors(np.array([found]))
        note = _note_on_state(estimator, visits, found)
    if note in (NEVER, NO_VISIT_NEAR):
        nothing = Interval(math.nan, *UNKNOWN)
        return Answer(name, nothing, nothing, UNKNOWN, level, note)
    value, std = (_estimate(estimator, found, what, level) for what in ("value", "std"))
    ends, doubt = _return_interval(estimator, found, level)
    if math.isnan(value.estimate):
        ends, doubt = UNKNOWN, ""
    here = isinstance(estimator, TabularEstimator) and not math.isnan(ends[0])
    here = here and bool(estimator.calibrated_here(np.array([found]), level)[0])
    known = [what for what in higher_moments(estimator) if what in SHAPES.values()]
    shapes = {what: _estimate(estimator, found, what, level) for what in known}
    if shapes:
        doubt = estimator.note(found)
    notes = "; ".join(filter(None, (note, doubt)))
    return Answer(name, value, std, ends, level, notes, here, shapes=shapes)


def _note_on_state(estimator: Any, visits: Any, state: int) -> str:
    if state >= visits.size or not visits[state]:
        return NEVER
    return str(estimator.solution.note[state]) if isinstance(estimator, TabularEstimator) else ""


def _note_on_observation(experience: Experience, estimator: Any, monitor: Monitor, row: Any) -> str:
    if isinstance(estimator, FeatureEstimator):
        return str(estimator.spread(row[None]).note[0])
    regions = monitor.visits
    outside = any(
        end is not None and bool((sign * (row - end) > 0).any())
        for end, sign in ((experience.low, -1), (experience.high, 1))
    )
    seen = isinstance(regions, Regions) and not outside and regions.known(row[None])[0]
    return "" if seen else NO_VISIT_NEAR


def _estimate(estimator: Any, state: Any, what: str, level: float) -> Interval:
    column = np.array([state])
    found = float(estimator.predict(column, what)[0])
    if not estimator.has_intervals:
        return Interval(found, *UNKNOWN)
    low, high = estimator.interval(what=what, states=column, level=level)
    return Interval(found, float(low[0]), float(high[0]))


def _return_interval(estimator: Any, state: Any, level: float) -> tuple[tuple[float, float], str]:
    """Ends, and a word where there are none, they are doubtful or hold more."""
    ask = getattr(estimator, "return_interval", None)
    if ask is None:
        return UNKNOWN, ""
    try:
        low, high = ask(np.array([state]), level)
    except InputError as error:
        return UNKNOWN, f"no interval of returns: {error.remedy}"
    doubtful = getattr(getattr(estimator, "calibration", None), "doubtful", False)
    word = "interval of returns doubtful: many were cut off" if doubtful else ""
    word = word or estimator.return_interval_held(np.array([state]), level)[0].note
    return (float(low[0]), float(high[0])), word


def _tails(sample: ReturnSample) -> tuple[float, float]:
    """Quantiles between which the share `level` of returns lies; bounds where some are bounds."""
    tail = (1.0 - sample.level) / 2.0
    low, high = (
        float(np.quantile(ends, q, method="inverted_cdf"))
        for ends, q in ((sample.low, tail), (sample.high, 1.0 - tail))
    )
    return low, high


def answers_table(answers: list[Answer]) -> str:
    """Answers as a table, roll-outs below the estimates."""
    share = f"{100 * answers[0].level:.4g}%"
    shapes = list(dict.fromkeys(name for each in answers for name in each.shapes))
    heads = [f"{name}, {share}" for name in shapes]
    lines = [["at", f"value, {share}", f"std, {share}", f"{share} of returns", *heads]]
    notes = [""]
    for each in answers:
        lines.append([_name(each.state), *_texts(each.value, each.std, each.return_interval)])
        lines[-1] += [_shape(each.shapes.get(name)) for name in shapes]
        notes.append(each.note)
        if each.rollouts is not None:
            sample = each.rollouts
            lines.append(["roll-outs", *_texts(sample.mean, sample.std, _tails(sample))])
            notes.append(_size(sample) + _contradiction(each))
    text = [f"{line}  {note}".rstrip() for line, note in zip(align(lines), notes, strict=True)]
    if any(not each.holds_here and not math.isnan(each.return_interval[0]) for each in answers):
        text.append(ON_AVERAGE)
    return "\n".join(text)


def _contradiction(answer: Answer) -> str:
    wrong = " and ".join(answer.contradicted)
    return f"; they disagree with the {wrong} above: trust the roll-outs" if wrong else ""


def _name(state: Any) -> str:
    return ", ".join(map(number, state)) if isinstance(state, list) else label_text(state)


def _texts(value: Interval, std: Interval, ends: tuple[float, float]) -> list[str]:
    shown = [str(x) if not all(map(math.isnan, x)) else number(math.nan) for x in (value, std)]
    known = not math.isnan(ends[0])
    return [*shown, f"{number(ends[0])} … {number(ends[1])}" if known else number(math.nan)]


def _shape(given: Interval | None) -> str:
    unknown = given is None or all(map(math.isnan, given))
    return number(math.nan) if unknown else str(given)


def _size(sample: ReturnSample) -> str:
    text = count(sample.size, "return")
    if not sample.cut_off:
        return text
    how = sample.remark().replace("value function", "estimate")
    return f"{text}, {sample.cut_off:,} cut off{how}"
