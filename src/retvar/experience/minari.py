"""Experience from Minari data sets, episode by episode."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from retvar.errors import InputError
from retvar.experience.episodes import (
    RowLinker,
    SourceEnded,
    concatenate,
    describe_error,
    linked,
    source_error,
)
from retvar.experience.observations import (
    ObservationReader,
    acting_fields,
    observation_reader,
    validated,
)
from retvar.experience.recipes import recorded_call
from retvar.experience.stream import Chunk, Counts, Experience

__all__ = ["from_minari"]

ROWS = 4_096  # episodes are concatenated to chunks of at least this length
DATASET = "must be a Minari data set, its id, or the path of its folder"


@recorded_call
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
    data = _open(dataset)
    name = f"minari:{data.spec.dataset_id}"
    reader = observation_reader(data.spec.observation_space)

    def source(counts: Counts, acting: bool = False) -> Iterator[Chunk]:
        rows = _merge_short(_episodes(data, reader, counts, acting))
        return linked(rows, RowLinker(counts), source_error(name, counts))

    return Experience(
        name=name, source=source, states=reader.states, fixed_states=reader.states is not None,
        width=reader.width, low=reader.low, high=reader.high, labels=reader.labels,
        policy="as recorded", length=int(data.total_steps),
        **acting_fields(data.spec.action_space, source),
    )  # fmt: skip


def _open(dataset: Any) -> Any:
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
        remedy = f"is not on this disk; {_suggestion(str(dataset))}"
        raise InputError("dataset", dataset, remedy) from None
    except Exception as error:  # a broken folder may raise anything
        raise InputError("dataset", dataset, f"cannot be read: {describe_error(error)}") from None


def _suggestion(name: str) -> str:
    """Similar names on this disk, or how to download the data set."""
    import minari

    try:
        near = difflib.get_close_matches(name, minari.list_local_datasets(), n=3)
    except Exception:  # another folder may be broken
        near = []
    return f"did you mean {', '.join(near)}?" if near else f"get it: minari download {name}"


def _episodes(
    data: Any, reader: ObservationReader, counts: Counts, acting: bool
) -> Iterator[Chunk]:
    for episode in data.iterate_episodes():
        rewards = np.asarray(episode.rewards, dtype=np.float64)
        n = rewards.size
        if not n:
            continue
        given = episode.observations
        given = np.stack(given, axis=1) if isinstance(given, tuple) else given
        column = reader.column(given)
        ended = np.asarray(episode.terminations, bool)
        truncated = np.asarray(episode.truncations, bool)
        if column.shape[0] != n + 1 or ended.size != n or truncated.size != n:
            found = f"{column.shape[0]} observations for {n} rewards"
            raise SourceEnded(f"episode {episode.id} has {found}")
        if not ended[-1]:
            truncated = truncated.copy()
            truncated[-1] = True
        rows: Chunk = {
            "state": column[:-1], "reward": rewards, "next_state": column[1:],
            "terminated": ended, "truncated": truncated,
        }  # fmt: skip
        if acting:
            rows["action"] = np.asarray(episode.actions, dtype=np.int64).reshape(-1)
            if rows["action"].size != n:
                found = f"{rows['action'].size} actions for {n} rewards"
                raise SourceEnded(f"episode {episode.id} has {found}")
        yield from validated(rows, reader, counts, given[:-1], given[1:])


def _merge_short(episodes: Iterator[Chunk]) -> Iterator[Chunk]:
    """Concatenate short episodes; those before an error are yielded before it."""
    parts: list[Chunk] = []
    failure: Exception | None = None
    while failure is None:
        try:
            parts.append(next(episodes))
        except StopIteration:
            break
        except Exception as error:  # raised after the episodes before it
            failure = error
        if sum(part["reward"].size for part in parts) >= ROWS:
            yield concatenate(parts)
            parts = []
    if parts:
        yield concatenate(parts)
    if failure is not None:
        raise failure
