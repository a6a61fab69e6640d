"""Experience from Minari's data sets, episode after episode."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from retvar.errors import InputError
from retvar.experience.episodes import Chain, Stop, handed_over, in_words, joined, stopped
from retvar.experience.spaces import Reading, reading_of
from retvar.experience.stream import Chunk, Counts, Experience
from retvar.experience.validate import checked

__all__ = ["from_minari"]

ROWS = 4_096  # episodes are put together until they have as many
DATASET = "must be a data set of Minari, its id, or the path of its folder"


def from_minari(dataset: Any) -> Experience:
    """Read the episodes of a Minari data set, in order.

    An episode that neither terminated nor was truncated counts as cut off.

    Parameters
    ----------
    dataset
        A ``MinariDataset``, the id of one that has been downloaded, or the path of its folder.

    Examples
    --------
    >>> from_minari("nobody/knows-v0")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: dataset = nobody/knows-v0: is not on this disk...
    """
    data = _opened(dataset)
    name = f"minari:{data.spec.dataset_id}"
    reading = reading_of(data.spec.observation_space)

    def source(counts: Counts) -> Iterator[Chunk]:
        pieces = _together(_episodes(data, reading, counts))
        return handed_over(pieces, Chain(counts), stopped(name, counts))

    return Experience(
        name=name, source=source, states=reading.states, closed=reading.states is not None,
        width=reading.width, low=reading.low, high=reading.high, labels=reading.labels,
        policy="as recorded", length=int(data.total_steps),
    )  # fmt: skip


def _opened(dataset: Any) -> Any:
    try:
        import minari
    except ImportError:
        remedy = 'reads its data sets; install it: pip install "retvar[data]"'
        raise InputError("minari", "missing", remedy) from None
    if isinstance(dataset, minari.MinariDataset):
        return dataset
    if not isinstance(dataset, str | Path):
        raise InputError("dataset", type(dataset).__name__, DATASET)
    folder = Path(dataset)
    try:
        if folder.is_dir():
            inner = folder if (folder / "metadata.json").is_file() else folder / "data"
            return minari.MinariDataset(inner)
        return minari.load_dataset(str(dataset))
    except FileNotFoundError:
        raise InputError("dataset", dataset, f"is not on this disk{_near(str(dataset))}") from None
    except Exception as error:  # whatever a broken folder leads to
        raise InputError("dataset", dataset, f"cannot be read: {in_words(error)}") from None


def _near(name: str) -> str:
    import minari

    try:
        near = difflib.get_close_matches(name, minari.list_local_datasets(), n=3)
    except Exception:  # a broken folder beside it
        near = []
    return f"; did you mean {', '.join(near)}?" if near else f"; get it: minari download {name}"


def _episodes(data: Any, reading: Reading, counts: Counts) -> Iterator[Chunk]:
    for episode in data.iterate_episodes():
        rewards = np.asarray(episode.rewards, dtype=np.float64)
        n = rewards.size
        if not n:
            continue
        given = episode.observations
        given = np.stack(given, axis=1) if isinstance(given, tuple) else given
        seen = reading.column(given)
        ends, cuts = (np.asarray(x, bool) for x in (episode.terminations, episode.truncations))
        if seen.shape[0] != n + 1 or ends.size != n or cuts.size != n:
            raise Stop(f"episode {episode.id} has {seen.shape[0]} observations for {n} rewards")
        if not ends[-1]:
            cuts = cuts.copy()
            cuts[-1] = True
        rows: Chunk = {
            "state": seen[:-1], "reward": rewards, "next_state": seen[1:],
            "terminated": ends, "truncated": cuts,
        }  # fmt: skip
        yield from checked(rows, reading, counts, given[:-1], given[1:])


def _together(episodes: Iterator[Chunk]) -> Iterator[Chunk]:
    """Short episodes put together."""
    parts: list[Chunk] = []
    problem: Exception | None = None
    while problem is None:
        try:
            parts.append(next(episodes))
        except StopIteration:
            break
        except Exception as error:  # told after what came before it
            problem = error
        if sum(part["reward"].size for part in parts) >= ROWS:
            yield joined(parts)
            parts = []
    if parts:
        yield joined(parts)
    if problem is not None:
        raise problem
