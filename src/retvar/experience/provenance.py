"""Where a learner began: what is kept of its first experience, and whether another one fits."""

from __future__ import annotations

import logging
import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.stream import Experience
from retvar.features import ObservationFeatures
from retvar.format import listed
from retvar.online import OnlineEstimator

__all__ = ["Origin"]

log = logging.getLogger("retvar")
Array = NDArray[np.float64]
MOST = 12  # columns that are named


@dataclass(frozen=True)
class Origin:
    """What a source says of itself.

    >>> Origin.of(Experience("gymnasium:Robot-v0 × 4", lambda counts: iter(()), policy="random"))
    Origin(name='gymnasium:Robot-v0', policy='random', states=None, names=None, low=None, high=None)
    """

    name: str  # without how many run side by side
    policy: str = ""
    states: int | None = None  # where there can be no others
    names: list[str] | None = None  # of the numbers of an observation
    low: list[float] | None = None  # bounds of observations
    high: list[float] | None = None

    @classmethod
    def of(cls, experience: Experience) -> Origin:
        """That of an experience."""
        low, high = (
            None if bound is None else bound.tolist() for bound in (experience.low, experience.high)
        )
        return cls(
            re.sub(r" × \d+$", "", experience.name),
            experience.policy,
            experience.states if experience.closed else None,
            None if experience.names is None else list(experience.names),
            low,
            high,
        )

    @classmethod
    def restored(cls, plain: dict[str, Any]) -> Origin:
        """From what `to_dict` gave."""
        return cls(**plain)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a checkpoint."""
        return asdict(self)

    def compare(
        self, path: Any, learner: OnlineEstimator, experience: Experience, visited: int
    ) -> None:
        """Refuse experience that does not fit; note where it does, but is called otherwise.

        `visited` is one more than the largest state that was.
        """
        here = Origin.of(experience)
        wrong = (
            self._other_states(here, experience, visited)
            or self._other_order(here)
            or self._beyond(here, learner)
        )
        if wrong:
            raise InputError("resume", path, wrong)
        if self.states is not None:  # a log need not know them all
            experience.states = self.states
        differ = [
            name for name in ("policy", "names", "low", "high")
            if getattr(self, name) and getattr(here, name)
            and getattr(self, name) != getattr(here, name)
        ]  # fmt: skip
        if differ or self.name != here.name:
            told = (each.in_words(differ) for each in (self, here))
            log.warning("goes on from %s, which began with %s; here is %s", path, *told)

    def _other_states(self, here: Origin, experience: Experience, visited: int) -> str:
        if experience.labels is not None:  # which are compared by name
            return ""
        known = visited if self.states is None else self.states
        if here.states is None:
            fits = self.states is None or (experience.states or 0) <= known
        else:
            fits = here.states == known if self.states is not None else known <= here.states
        return "" if fits else (
            f"was learned from {known:,} states; {experience.name} has {experience.states:,}"
        )  # fmt: skip

    def _other_order(self, here: Origin) -> str:
        ours, theirs = self.names or [], here.names or []
        if ours == theirs or sorted(ours) != sorted(theirs):
            return ""
        words = (listed(names, most=MOST) for names in (ours, theirs))
        return "was learned from the columns {}, in this order; here they are {}".format(*words)

    def _beyond(self, here: Origin, learner: OnlineEstimator) -> str:
        """Features that lie between bounds cannot tell apart what lies beyond them."""
        if not isinstance(learner.features[0], ObservationFeatures) or not (self.low and here.low):
            return ""
        inside = np.all(np.array(here.low) >= self.low) and np.all(np.array(here.high) <= self.high)
        if inside:
            return ""
        return f"its observations lie {_between(self)}; those of {here.name} reach beyond"

    def in_words(self, differ: list[str]) -> str:
        """The name, and what else is asked for."""
        words = [self.name]
        if "policy" in differ:
            words.append(f"{self.policy} policy")
        if "names" in differ:
            words.append(f"columns {listed(self.names or (), most=MOST)}")
        if "low" in differ or "high" in differ:
            words.append(f"observations {_between(self)}")
        return ", ".join(words)


def _between(origin: Origin) -> str:
    low, high = (
        listed((f"{x:g}" for x in bound or ()), most=MOST) for bound in (origin.low, origin.high)
    )
    return f"between {low} and {high}"
