"""Which actions of the target policy a log takes: those that it never takes are named."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from retvar.format import count, listed

__all__ = ["ActionCoverage"]

Row = dict[Any, float]
RARER = 10.0  # a behaviour that takes an action as many times less often than the target is right
ALPHA = 1e-5  # probability that such a behaviour is warned of, in a log
SIMILAR = 0.75  # of spellings


@dataclass
class ActionCoverage:
    """How often a log takes each action in each state, beside what a target policy does.

    >>> policy = {"worn": {"run": 0.4, "Service": 0.6}}
    >>> log = ActionCoverage(policy.get, Counter({("worn", "run"): 700, ("worn", "service"): 300}))
    >>> print(*log.warnings())
    the log never takes action 'Service' of the target policy, which does not list 'service' (300
    rows): spell them alike
    """

    policy: Callable[[Any], Row | None]  #: probabilities of the actions in a state
    taken: Counter[tuple[Any, Any]] = field(default_factory=Counter)  #: by state and action

    def warnings(self, largest_ratio: float = 1.0) -> list[str]:
        """Actions of the target policy that the log never takes, where that is no chance.

        It could be chance where a behaviour takes an action much less often than the target. How
        much is taken from the largest ratio of the log.
        """
        rows: Counter[Any] = Counter()
        for (state, _), times in self.taken.items():
            rows[state] += times
        asked = [(state, n, self.policy(state) or {}) for state, n in rows.items()]
        pairs = sum(len(row) for _, _, row in asked)
        enough = max(RARER, 2.0 * largest_ratio) * math.log(max(pairs, 1) / ALPHA)
        absent, everywhere = self._absent(asked, enough)
        missing = [
            (n * p, f"{action!r} in state {state!r} (probability {p:.2g}, {count(n, 'row')})")
            for state, n, row in asked
            for action, p in row.items()
            if n * p > enough and not self.taken[state, action] and action not in everywhere
        ]
        if missing:
            names = [text for _, text in sorted(missing, reverse=True)]
            absent.append(
                f"the log never takes these actions of the target policy: {listed(names)}; "
                "there, and in states that lead there, the answer is not that of the target policy"
            )
        return absent

    def _absent(
        self, asked: list[tuple[Any, int, Row]], enough: float
    ) -> tuple[list[str], set[Any]]:
        """Warnings about actions that the log takes in no state, and these actions."""
        expected: Counter[Any] = Counter()
        for _, n, row in asked:
            for action, p in row.items():
                expected[action] += n * p  # type: ignore[assignment]
        logged: Counter[Any] = Counter()
        for (_, action), times in self.taken.items():
            logged[action] += times
        never = [action for action, n in expected.items() if n > 0 and not logged[action]]
        unlisted = {str(a): (a, n) for a, n in logged.items() if a not in expected}
        found = []
        for action in never:
            alike, certain = _nearest(str(action), list(unlisted))
            if alike and (certain or expected[action] > enough):
                meant, times = unlisted[alike]
                found.append(
                    f"the log never takes action {action!r} of the target policy, which does not "
                    f"list {meant!r} ({count(times, 'row')}): spell them alike"
                )
            elif expected[action] > enough:
                found.append(
                    f"the log never takes action {action!r} of the target policy; "
                    f"it takes {listed(map(repr, logged))}"
                )
        return found, set(never)


def _nearest(name: str, among: list[str]) -> tuple[str | None, bool]:
    """The most similar name, and whether only case and blanks differ."""
    same = next((each for each in among if _loose(each) == _loose(name)), None)
    if same is not None:
        return same, True
    close = difflib.get_close_matches(name, among, 1, SIMILAR)
    return (close[0] if close else None), False


def _loose(name: str) -> str:
    return "".join(name.split()).casefold()
