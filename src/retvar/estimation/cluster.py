"""Estimates of finite worlds on a dask cluster: each worker sums files of the log.

The sums are added in the order of the files, so the answer does not depend on the number of
workers. A file whose worker dies is summed by another. With the values found, the files are read a
second time for their returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from retvar.cluster import connected
from retvar.estimation.returns import Monitor
from retvar.estimation.settings import TD, with_lam
from retvar.estimation.states import StateEstimator
from retvar.experience.logs import Piece, refuse_split
from retvar.support.errors import InputError, RetvarError
from retvar.td.learners import Learner


def sum_piece(piece: Piece, states: int | None, learner: Learner) -> tuple[Any, ...]:
    """Sum a file.

    Returns its estimator, or None where it has no transition, its counts, the labels that it has
    numbered, and the ids of its entities and episodes.
    """
    (experience, ids), found = piece.open(), None
    for chunk in experience.moves().chunks():
        if found is None:
            learner = with_lam(learner, chunk)
            found = StateEstimator(learner, states or 1)
        found.add(chunk)
    return found, experience.counts, experience.labels, ids


def observe_piece(piece: Piece, names: Any, estimator: StateEstimator) -> Monitor:
    """Visits and returns of a file whose state s is ``names[s]`` among all."""
    monitor = Monitor()
    for chunk in piece.open()[0].moves().chunks():
        if names is not None:
            chunk |= {name: names[chunk[name]] for name in ("state", "next_state")}
        monitor.add(estimator, chunk)
    return monitor


def learn_on_cluster(
    found: Any, cluster: str, workers: int | None, progress: Callable[[int], None] | None
) -> None:
    """Learn from all files of the experience of an estimate, beside what it knows before."""
    experience, estimator, labels = found.experience, found._estimator, found.experience.labels
    if found._by == TD:
        raise InputError("by", TD, "learns from one stream; a cluster needs least squares")
    if experience.width is not None or experience.pairs or experience.pieces is None:
        remedy = f"sums states of files; {experience.name} has none, or actions"
        raise InputError("cluster", cluster, remedy)
    learner: Learner = (estimator or found._create).description
    for name in ("gamma", "lam"):
        if labels is not None and np.ndim(getattr(learner, name)):
            raise InputError(name, "one per state", "files number labels anew; use a column")
    pieces: list[Piece] = experience.pieces()
    states = experience.states if labels is None else None
    seen_in, names = dict[int, str](), list[Any]()
    with connected(cluster, workers) as client:

        def mapped(task: Any, *columns: Any, **same: Any) -> Iterator[Any]:
            """Results of a function of every file, in their order."""
            for future in client.map(task, pieces, *columns, **same, pure=False):
                try:
                    yield future.result()
                except RetvarError:
                    raise
                except Exception as error:
                    problem = f"a worker failed: {type(error).__name__}: {error}"
                    raise RetvarError(f"{problem}; it needs the same retvar[cluster]") from None
                future.release()

        sums = mapped(sum_piece, states=states, learner=learner)
        for piece, (own, counts, theirs, ids) in zip(pieces, sums, strict=True):
            refuse_split(seen_in, piece.file, ids)
            names.append(None)
            if labels is not None and theirs is not None:
                number = {label: k for k, label in enumerate(dict.fromkeys([*labels, *theirs]))}
                labels[:] = number  # new ones are added in order
                names[-1] = np.array([number[label] for label in theirs], dtype=np.int64)
            experience.counts.merge(counts)
            if own is not None:
                estimator = estimator or StateEstimator(own.description, 1)
                estimator.merge(own, names[-1])
            if progress is not None:
                progress(experience.counts.transitions)
        if estimator is not None:
            _ = estimator.solution
            whole = client.scatter(estimator, broadcast=True)
            for seen in mapped(observe_piece, names, estimator=whole):
                found._monitor.merge(seen)
    found._estimator = estimator
