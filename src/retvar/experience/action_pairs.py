"""Experience whose states are pairs of a state and an action: what action values come from.

The pair (s, a) is followed by the pair (s′, a′) of the next row of its stream. The return from a
pair is that of taking a in s and then doing as the policy does, and its value and variance are
those of a Markov chain of pairs. Off-policy, the ratio of a transition is that of a′, which is
drawn after the pair; the action of the pair itself is given, and its ratio plays no part. A row
that is cut off has no next action and is left out, and so ends the traces of the row before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from retvar.experience.moves import Chunk, Moves, selected
from retvar.experience.stream import NO_NEXT_ACTION, Counts, Experience
from retvar.experience.target_policy import plain
from retvar.support.errors import InputError

MOST_ACTIONS = 1_000
NO_ACTIONS = (
    "has no actions; name the column of a log with action=, or take an environment with numbered "
    "actions (Discrete)"
)
ENDLESS = "goes on for ever, and actions are linked at its end; end it after some transitions"
LAM = "action values are of the return itself: leave λ out, or make it 1"


def by_action(experience: Experience) -> Experience:
    """The same experience, each state being a pair with the label (state, action).

    Pairs are numbered in order of appearance. An observation has the number of its action as a
    last number.

    >>> from retvar.experience import from_table
    >>> log = from_table({"state": ["a", "b", "b"], "action": ["go", "stay", "go"],
    ...                   "reward": [1.0, 2.0, 3.0], "terminated": [False, False, True]})
    >>> pairs = by_action(log)
    >>> [(t.state, t.reward, t.next_state) for t in pairs], pairs.labels
    ([(0, 1.0, 1), (1, 2.0, 2), (2, 3.0, 2)], [('a', 'go'), ('b', 'stay'), ('b', 'go')])
    """
    inner, low, high = experience.with_actions, experience.low, experience.high
    if experience.pairs:
        return experience
    if inner is None:
        raise InputError("actions", experience.name, NO_ACTIONS)
    if experience.endless:
        raise InputError("actions", experience.name, ENDLESS)

    def source(counts: Counts) -> Iterator[Chunk]:
        given = inner(counts)
        rows = given if isinstance(given, Moves) else Moves()
        try:
            for chunk in given if rows is not given else ():
                rows.append(chunk)
        finally:  # what came before a failure is linked, too
            if len(rows):
                experience.acted = rows
                place = "rowid" if rows is given else "retvar_n"  # in the order of appearance
                linked = _linked(rows, place, experience, found)
                counts.rejected += Counter({NO_NEXT_ACTION: len(rows) - len(linked)})
                yield from linked.chunks()

    found = replace(
        experience, source=source, with_actions=None, pairs=True, states=None, fixed_states=False,
        grid=None, cells="", pieces=None, state_names=None,
        labels=[] if experience.width is None else None, counts=copy(experience.counts),
    )  # fmt: skip
    if experience.width is not None:
        found.width = experience.width + 1
        found.names = [*(experience.names or (f"x{i}" for i in range(experience.width))), "action"]
        if low is not None and high is not None:
            last = (experience.action_count or MOST_ACTIONS) - 0.5
            found.low, found.high = np.append(low, -0.5), np.append(high, last)
    return found


def _linked(rows: Moves, place: str, experience: Experience, found: Experience) -> Moves:
    """Transitions between pairs, weighted by the ratio of the next action; 1 at an end."""
    if "lam" in rows.columns and rows.count("lam <> 1"):
        raise InputError("lam", "below 1 in the data", LAM)
    work, table = rows.in_database()
    actions, width = int(work.one(f"SELECT max(action) FROM {table}")) + 1, found.width or 0
    if actions > MOST_ACTIONS:
        remedy = "are too many for action values; merge actions"
        raise InputError("action", f"{actions:,} different ones", remedy)
    found.action_count = experience.action_count or actions
    pair, join = [*(f"state_{k}" for k in range(width - 1)), "action::DOUBLE"], ""
    if not width:
        query = f"SELECT state, action FROM {table} GROUP BY ALL ORDER BY min({place})"
        codes = _numbered(work.all(query), experience, found)
        work.insert("CREATE OR REPLACE TABLE codes AS", codes)
        pair, join = ["code"], "JOIN codes USING (state, action)"
    names = [name for name in rows.columns if name != "action"]
    widths = {name: width * name.endswith("state") for name in names}
    columns = {name: [name] for name in names} | {
        "state": pair,
        "next_state": [f"CASE WHEN terminated THEN {x} ELSE lead({x}) OVER w END" for x in pair],
        "truncated": ["truncated OR NOT (terminated OR lead(terminated OR NOT truncated) OVER w)"],
    }  # fmt: skip
    if "rho" in names:
        columns["rho"] = ["CASE WHEN terminated THEN 1.0 ELSE lead(rho) OVER w END"]
    work.execute(
        f"""CREATE OR REPLACE TABLE pairs AS SELECT * EXCLUDE (kept, k) FROM (
        SELECT {selected(columns, widths)}, terminated OR NOT truncated AS kept, t.rowid AS k
        FROM {table} t {join} WINDOW w AS (ORDER BY t.rowid)) WHERE kept ORDER BY k"""
    )
    return Moves(work, "pairs", widths)


def _numbered(pairs: list[Any], experience: Experience, found: Experience) -> Chunk:
    """Pairs with their numbers; the labels of new ones are added."""
    assert found.labels is not None
    numbers, codes = {label: k for k, label in enumerate(found.labels)}, []
    for state, action in pairs:
        own = state if experience.labels is None else experience.labels[state]
        taken = action if experience.actions is None else plain(experience.actions[action])
        label = (*own, taken) if isinstance(own, tuple) else (own, taken)
        codes.append(numbers.setdefault(label, len(numbers)))
    found.labels[:] = numbers
    states, actions = np.array(pairs).T
    return {"state": states, "action": actions, "code": np.array(codes)}


def split_label(label: Any) -> tuple[Any, Any]:
    """State and action of the label of a pair.

    >>> split_label(("a", "go")), split_label((3, 1, 0))
    (('a', 'go'), ((3, 1), 0))
    """
    *state, action = label
    return (state[0] if len(state) == 1 else tuple(state)), action
