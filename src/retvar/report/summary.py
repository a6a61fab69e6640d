"""What the report says at its head: claims, the centred estimator, times and versions."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

from retvar.format import count, duration, joined
from retvar.report.outcome import PLAIN_LOOP, Checked, Outcome, Reproduction
from retvar.version import __version__

__all__ = ["SOURCES", "failures", "on_centred", "run_with", "text", "times", "verdict", "versions"]

SOURCES = {
    "paper": "first version of the paper",
    "conference": "conference version",
    "own": "beyond the paper",
}
LIBRARIES = ("numpy", "scipy", "numba", "xarray", "matplotlib")


def verdict(found: Reproduction) -> str:
    """How many claims hold.

    >>> from retvar.report.outcome import Asked
    >>> verdict(Reproduction((), Asked()))
    'Nothing is claimed here.'
    """
    total, held = len(found.checked), sum(each.finding.holds for each in found.checked)
    if not total:
        return "Nothing is claimed here."
    if held == total:
        return "The claim holds." if total == 1 else f"All {total} claims hold."
    explained = sum(bool(c.claim.explained) for c in found.checked if not c.finding.holds)
    rest = total - held
    why = "" if not explained else f", {'which' if explained == rest else explained} explained"
    if explained == rest:
        why = " and is explained" if rest == 1 else " and are explained"
    fails = "does not" if rest == 1 else "do not"
    return f"{held} of {total} claims hold; {rest} {fails}{why}."


def text(found: Reproduction, out: Path) -> str:
    """What is told at the end, in a few lines.

    >>> from retvar.report.outcome import Asked
    >>> print(text(Reproduction((), Asked(), elapsed=2.5), Path("mine")))
    Nothing is claimed here.
    0 experiments in 2.5 s; see mine/index.html
    """
    lines = [verdict(found)]
    for outcome, each in failures(found):
        why = " (explained in the report)" if each.claim.explained else ""
        lines.append(f"  ✗ {outcome.id}: {each.claim.name}: {each.finding.measured}{why}")
    lines += [f"  {name}: the figure {problem}" for name, problem in found.problems.items()]
    done = count(len(found.outcomes), "experiment")
    return "\n".join([*lines, f"{done} in {duration(found.elapsed)}; see {out / 'index.html'}"])


def failures(found: Reproduction) -> list[tuple[Outcome, Checked]]:
    """Claims that do not hold."""
    return [(o, each) for o in found.outcomes for each in o.checked if not each.finding.holds]


def on_centred(found: Reproduction) -> list[tuple[Outcome, Checked]]:
    """Claims that speak of the centred estimator: when it wins, and when it is like the others."""
    return [(o, c) for o in found.outcomes for c in o.checked if "centred" in c.claim.methods]


def times(found: Reproduction) -> list[tuple[str, str, str]]:
    """What, the time it took, and that of a plain loop."""
    lines = []
    present = {outcome.experiment.source for outcome in found.outcomes}
    for source in SOURCES:
        if source in present and len(present) > 1:
            what = f"Everything from the {SOURCES[source]}"
            if source == "own":
                what = f"What goes {SOURCES[source]}"
            lines.append((what, found.seconds(source), found.plain_loop(source)))
    if len(present) == 1 and present == {"paper"}:
        lines.append(("Everything here, all of it from the first version of the paper",
                      found.seconds(), found.plain_loop()))  # fmt: skip
    else:
        lines.append(("The whole", found.seconds(), found.plain_loop()))
    return [(what, duration(took), duration(plain)) for what, took, plain in lines]


def reckoning(found: Reproduction) -> str:
    """How the times were reckoned."""
    new, kept = found.computed, len(found.unique) - found.computed
    now = f"{count(new, 'simulation')} computed now"
    if not found.unique:
        now = "nothing to simulate"
    elif kept:
        now += f", {kept} kept from before (with the times they took then)"
    return (
        f"Simulating, compiling, checking and drawing; what several experiments share is counted "
        f"once. This run took {duration(found.elapsed)}: {now}. A plain Python loop is reckoned "
        f"at {PLAIN_LOOP * 1e6:.0f} µs an update, for {found.updates():,.0f} updates of a learner "
        "(runs × steps × learners; an episode of the chain has 4 steps)."
    )


def run_with(found: Reproduction) -> str:
    """Seed, runs and methods."""
    asked = found.asked
    parts = [f"seed {asked.seed}"]
    parts += [count(asked.runs, "run")] if asked.runs is not None else ["runs as declared"]
    parts += [f"methods {joined(asked.methods)}"] if asked.methods is not None else []
    parts += [f"declared in {asked.file}"] if asked.file else []
    return ", ".join(parts)


def versions() -> str:
    """What it was computed with.

    >>> versions().startswith(f"retvar {__version__}, Python ")
    True
    """
    found = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    return ", ".join([f"retvar {__version__}", f"Python {platform.python_version()}", *found])
