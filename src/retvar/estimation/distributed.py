"""Estimates of finite worlds on a dask cluster: each worker sums pieces of the log.

The pieces depend on the files alone, and their sums are added in the order of the log, so the
answer does not depend on the number of workers. A piece whose worker dies is summed by another.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retvar.cluster import TIMEOUT, connected, refuse_address
from retvar.errors import InputError, RetvarError
from retvar.estimation.monitor import Monitor
from retvar.estimation.tabular import TabularEstimator
from retvar.experience.pieces import Ids, Pieces, SplitCheck
from retvar.experience.stream import Counts
from retvar.random import U, mix

if TYPE_CHECKING:
    from retvar.estimation.estimate import Estimate

__all__ = ["PieceSums", "learn_on_cluster", "refuse_cluster", "sum_piece"]

MODULE = "retvar.estimation.distributed"
CALL = f"__import__('importlib').import_module({MODULE!r})._sum_pickled(*arguments)"
AHEAD = 2  # pieces that wait for each thread of the workers
PAUSE = 0.1  # seconds between looks at the cluster
RETRIES = 10  # times that a piece may be lost


@dataclass
class PieceSums:
    """What a worker found in a piece; `error` ended it early, where there is one."""

    estimator: TabularEstimator | None
    monitor: Monitor
    counts: Counts
    labels: list[Any] | None  #: of the states, where the piece has numbered them
    ids: Ids
    error: Exception | None = None


def sum_piece(
    pieces: Pieces, number: int, states: int | None, settings: dict[str, Any]
) -> PieceSums:
    """Read a piece and sum its transitions; `settings` are those of :func:`retvar.estimate`."""
    from retvar.estimation.estimate import prepare

    experience, ids = pieces.open(number, states)
    found = prepare(experience, by="least_squares", **settings)
    create = found._create
    assert create is not None

    def salted(chunk: Any) -> Any:
        estimator = create(chunk)
        estimator.salt = int(mix(U(number)))  # type: ignore[union-attr]
        return estimator

    found._create = salted
    error: Exception | None = None
    try:
        for chunk in experience.chunks():
            found.update(chunk)
    except RetvarError as failure:
        error = failure
    labels = experience.labels if pieces.roles.kind == "label" else None
    return PieceSums(found._estimator, found.monitor, experience.counts, labels, ids, error)  # type: ignore[arg-type]


def _sum_pickled(task: bytes) -> bytes:
    """`sum_piece` on a worker; called through text, as a worker without retvar cannot unpickle."""
    pieces, *rest = pickle.loads(task)
    try:
        found = sum_piece(pieces, *rest)
    except InputError as error:  # such as a file that is not there
        here = f"{error.remedy} (on worker process {os.getpid()})"
        failure = InputError(error.field, error.value, here)
        found = PieceSums(None, Monitor(), Counts(), None, Ids(pieces.roles), failure)
    return pickle.dumps(found)


def learn_on_cluster(
    found: Estimate,
    cluster: str,
    *,
    workers: int | None = None,
    timeout: float = TIMEOUT,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Learn from all pieces of the experience, on the workers of a cluster."""
    experience = found.experience
    _refuse(found, cluster)
    assert experience.pieces is not None
    pieces: Pieces = experience.pieces()
    settings = _settings(found, pieces)
    report = progress or (lambda done: None)
    check = SplitCheck(pieces.roles)

    def look() -> None:
        report(experience.counts.transitions)

    try:
        with connected(cluster, workers, timeout, look) as client:
            tasks = [
                pickle.dumps((pieces, number, experience.states, settings))
                for number in range(len(pieces.plan))
            ]
            for number, part in enumerate(_in_order(client, tasks, look)):
                check.add(str(pieces.plan[number][0]), part.ids)
                add_piece(found, part)
                look()
                if part.error is not None:
                    raise part.error
    except BaseException as error:
        error.estimate = None if found._estimator is None else found  # type: ignore[attr-defined]
        raise
    found.refuse_nothing()


def add_piece(found: Estimate, part: PieceSums) -> None:
    """Add what was found in the next piece of the log."""
    experience, number = found.experience, None
    if part.labels is not None and experience.labels is not None:
        number = _renumbered(experience.labels, part.labels)
    experience.counts.merge(part.counts)
    found.monitor.merge(part.monitor, number)
    if part.estimator is None:
        return
    if found._estimator is None:
        first = part.estimator
        found._estimator = TabularEstimator(first.description, 1)
    assert isinstance(found._estimator, TabularEstimator)
    found._estimator.merge(part.estimator, number)


def _renumbered(labels: list[Any], theirs: list[Any]) -> NDArray[np.int64]:
    """The number of each label of a piece among all labels; new ones are added in order."""
    known = {label: k for k, label in enumerate(labels)}
    for label in theirs:
        if label not in known:
            known[label] = len(labels)
            labels.append(label)
    return np.array([known[label] for label in theirs], dtype=np.int64)


def refuse_cluster(cluster: str | None, workers: int | None, by: str | None) -> str | None:
    """Refuse settings that a cluster cannot have; return how to estimate.

    >>> refuse_cluster("local", 2, None), refuse_cluster(None, None, "td")
    ('least_squares', 'td')
    """
    if cluster is None:
        if workers is not None:
            raise InputError("workers", workers, "is for a local cluster; leave it out")
        return by
    refuse_address(cluster, workers)
    if by == "td":
        raise InputError("by", "'td'", "learns from one stream; a cluster needs least squares")
    return "least_squares"


def _settings(found: Estimate, pieces: Pieces) -> dict[str, Any]:
    """Settings of the estimate of each piece."""
    learner = found.description
    named = {name: getattr(learner, name) for name in ("gamma", "lam", "estimand")}
    for name in ("gamma", "lam"):
        if pieces.roles.kind == "label" and np.ndim(named[name]):
            remedy = "pieces number their labels anew; use a column of the log"
            raise InputError(name, "one per state", remedy)
    return {**named, "level": found.monitor.level}


def _refuse(found: Estimate, cluster: str) -> None:
    """Refuse what cannot be summed in pieces."""
    experience = found.experience
    if not isinstance(found._estimator, TabularEstimator | None):
        raise InputError("resume", "by td", "a cluster continues least squares only")
    if experience.width is not None:
        raise InputError("cluster", cluster, f"sums states; {experience.name} has observations")
    if experience.pieces is None:
        raise InputError("cluster", cluster, f"reads files; {experience.name} is none")


def _in_order(client: Any, tasks: list[bytes], look: Callable[[], None]) -> Iterator[PieceSums]:
    """Submit tasks, a few more than there are threads, and yield their results in order."""
    submitted: dict[int, Any] = {}
    done: dict[int, PieceSums] = {}
    lost = [0] * len(tasks)
    following = 0
    try:
        for wanted in range(len(tasks)):
            while wanted not in done:
                room = AHEAD * max(1, sum(client.nthreads().values()))
                while following < len(tasks) and following < wanted + 2 * room:
                    submitted[following] = _submit(client, tasks[following])
                    following += 1
                look()
                for number, result in _completed(submitted):
                    if result is not None:
                        done[number] = result
                        continue
                    lost[number] += 1
                    if client.status != "running" or lost[number] > RETRIES:
                        raise RetvarError(f"the cluster lost piece {number} of the log")
                    submitted[number] = _submit(client, tasks[number])
            yield done.pop(wanted)
    except OSError as error:
        raise RetvarError(f"lost the scheduler ({type(error).__name__})") from None
    finally:
        with contextlib.suppress(Exception):
            client.cancel(list(submitted.values()), force=True)


def _submit(client: Any, task: bytes) -> Any:
    names = {"arguments": (task,)}
    return client.submit(eval, CALL, names, key=f"piece-{uuid.uuid4().hex}", pure=False)


def _completed(submitted: dict[int, Any]) -> list[tuple[int, PieceSums | None]]:
    """Results that have come, removed from the submitted; None where the cluster lost one."""
    from distributed import wait

    with contextlib.suppress(TimeoutError, CancelledError):
        wait(list(submitted.values()), timeout=PAUSE, return_when="FIRST_COMPLETED")
    found: list[tuple[int, PieceSums | None]] = []
    for number, future in list(submitted.items()):
        if future.status == "finished":
            found.append((number, pickle.loads(future.result())))
        elif future.status == "error":
            raise _worker_error(future.exception())
        elif future.status in ("lost", "cancelled"):
            found.append((number, None))
        else:
            continue
        del submitted[number]
    return found


def _worker_error(error: BaseException) -> RetvarError:
    """What to say where the worker itself failed."""
    if isinstance(error, ImportError):
        remedy = f'a worker cannot load retvar ({error}): pip install "retvar[cluster]" there'
        return RetvarError(remedy)
    return RetvarError(f"a worker failed: {type(error).__name__}: {' '.join(str(error).split())}")
