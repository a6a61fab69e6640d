"""Estimates of a log that grows: a new one whenever something was added."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from retvar.estimation.estimate import Estimate, prepare
from retvar.experience.stream import Experience

__all__ = ["follow", "updates"]


def follow(experience: Experience, learner: Any = None, **settings: Any) -> Iterator[Estimate]:
    r"""Estimate from a log that grows; yield the estimate whenever it has changed.

    It is the same object each time, which goes on learning. Leave the loop to stop.

    Parameters
    ----------
    experience
        ``from_table(Growing("log.csv"), …)``: see :class:`retvar.experience.Growing`.
    learner, settings
        As in :func:`retvar.estimate`.

    Examples
    --------
    >>> import pathlib, tempfile, retvar as rv
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = path.write_text("state,reward,next_state,terminated\n0,1,0,1\n")
    >>> log = rv.experience.from_table(rv.experience.Growing(path, every=0.01))
    >>> for found in rv.follow(log, gamma=0.9, by="least_squares"):
    ...     print(found.estimator.steps, found.value(0))
    ...     if found.estimator.steps == 2:
    ...         break
    ...     with path.open("a") as file:
    ...         _ = file.write("0,3,0,1\n")
    1 1.0
    2 2.0
    """
    found = prepare(experience, learner, **settings)
    yield from updates(found)
    found.refuse_nothing()


def updates(found: Estimate) -> Iterator[Estimate]:
    """Learn from the experience; yield the estimate where nothing new is there, and at the end.

    An error that stops it has the estimate as its attribute.
    """
    changed = False
    try:
        for chunk in found.experience.chunks():
            if chunk["reward"].size:
                found.update(chunk)
                changed = True
            elif changed:
                yield found
                changed = False
    except BaseException as error:
        error.estimate = None if found.estimator_or_none is None else found  # type: ignore[attr-defined]
        raise
    if changed:
        yield found
