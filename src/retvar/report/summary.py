"""Texts of the report's summary: run times, settings and versions."""

from __future__ import annotations

from retvar.format import count, duration, joined
from retvar.report.outcome import PLAIN_LOOP, CheckedClaim, Outcome, Reproduction
from retvar.web.rendering import versions

__all__ = ["SOURCES", "claims_about_centred", "run_times", "settings", "timing_note", "versions"]

SOURCES = {
    "paper": "first version of the paper",
    "conference": "conference version",
    "own": "beyond the paper",
}


def claims_about_centred(found: Reproduction) -> list[tuple[Outcome, CheckedClaim]]:
    """Claims about the centred method, with their experiments."""
    return [(o, c) for o in found.outcomes for c in o.checked if "centred" in c.claim.methods]


def run_times(found: Reproduction) -> list[tuple[str, str, str]]:
    """Rows of a table: what was run, its time, and that of a plain Python loop."""
    rows = []
    present = {outcome.experiment.source for outcome in found.outcomes}
    for source in SOURCES:
        if source in present and len(present) > 1:
            what = f"Everything from the {SOURCES[source]}"
            if source == "own":
                what = SOURCES[source].capitalize()
            rows.append((what, found.seconds(source), found.plain_loop(source)))
    what = "Total"
    if present == {"paper"}:
        what = "Everything here, all of it from the first version of the paper"
    rows.append((what, found.seconds(), found.plain_loop()))
    return [(what, duration(took), duration(plain)) for what, took, plain in rows]


def timing_note(found: Reproduction) -> str:
    """How the run times were measured."""
    reused = len(found.unique) - found.computed
    now = f"{count(found.computed, 'simulation')} computed now"
    if not found.unique:
        now = "nothing to simulate"
    elif reused:
        now += f", {reused} reused from earlier runs (with the times of those)"
    return (
        "Times include simulation, compilation, checks and drawing; simulations that several "
        f"experiments share are counted once. This run took {duration(found.elapsed)}: {now}. A "
        f"plain Python loop is assumed to take {PLAIN_LOOP * 1e6:.0f} µs an update, for "
        f"{found.updates():,.0f} updates of a learner (runs × steps × learners; an episode of the "
        "chain has 4 steps)."
    )


def settings(found: Reproduction) -> str:
    """Seed, runs, methods and file."""
    request = found.request
    parts = [f"seed {request.seed}"]
    parts += [count(request.runs, "run")] if request.runs is not None else ["runs as declared"]
    parts += [f"methods {joined(request.methods)}"] if request.methods is not None else []
    parts += [f"declared in {request.file}"] if request.file else []
    return ", ".join(parts)
