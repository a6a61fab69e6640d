"""Experience from Minari data sets, episode by episode."""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from retvar.arguments import is_integer
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
from retvar.reading import read_json

__all__ = ["from_minari"]

ROWS = 4_096  # episodes are concatenated to chunks of at least this length
METADATA = "metadata.json"
MOST_METADATA = 1 << 24  # bytes
MOST_EPISODES = 10_000_000
MOST_STEPS = 10**15
PACKED = 100  # how many times larger than its bytes in the file an array may be
SPARE = 1 << 24  # bytes that it may have beyond that
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
    with _readable(dataset):
        spec, length = data.spec, int(data.total_steps)
    name = f"minari:{spec.dataset_id}"
    reader = observation_reader(spec.observation_space)

    def source(counts: Counts, acting: bool = False) -> Iterator[Chunk]:
        rows = _merge_short(_episodes(data, reader, counts, acting))
        return linked(rows, RowLinker(counts), source_error(name, counts))

    return Experience(
        name=name, source=source, states=reader.states, fixed_states=reader.states is not None,
        width=reader.width, low=reader.low, high=reader.high, labels=reader.labels,
        policy="as recorded", length=length,
        **acting_fields(spec.action_space, source),
    )  # fmt: skip


def _open(dataset: Any) -> Any:
    try:
        import minari
        from minari.storage.datasets_root_dir import get_dataset_path
    except ImportError:
        remedy = 'reads its data sets; install it: pip install "retvar[data]"'
        raise InputError("minari", "missing", remedy) from None
    if isinstance(dataset, minari.MinariDataset):
        return dataset
    if not isinstance(dataset, str | Path):
        raise InputError("dataset", type(dataset).__name__, DATASET)
    with _readable(dataset):
        folder = Path(dataset)
        if not folder.is_dir():
            folder = Path(get_dataset_path(str(dataset)))
        inner = folder if (folder / METADATA).exists() else folder / "data"
        if not inner.exists():
            remedy = f"is not on this disk; {_suggestion(str(dataset))}"
            raise InputError("dataset", dataset, remedy)
        _require_sizes(inner / METADATA)
        return minari.MinariDataset(inner)


@contextlib.contextmanager
def _readable(dataset: Any) -> Iterator[None]:
    """A block that reads a data set; whatever is wrong with it is an InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # a broken folder may raise anything
        shown = str(dataset) if isinstance(dataset, str | Path) else type(dataset).__name__
        raise InputError("dataset", shown, f"cannot be read: {describe_error(error)}") from None


def _require_sizes(path: Path) -> None:
    """Refuse metadata that are too large, or have numbers that cannot be those of a data set."""
    try:
        metadata = read_json(path, "dataset", MOST_METADATA)
    except InputError as error:
        raise InputError("dataset", path, f"cannot be read: {error.remedy}") from None
    if not isinstance(metadata, dict):
        raise InputError("dataset", path, "is no description of a data set")
    for name, most in ("total_episodes", MOST_EPISODES), ("total_steps", MOST_STEPS):
        found = metadata.get(name)
        if not is_integer(found) or not 0 <= found <= most:
            raise InputError(f"{name} of {path}", found, f"must be a number from 0 to {most:,}")


def _suggestion(name: str) -> str:
    """Similar names on this disk, or how to download the data set."""
    from minari.storage.datasets_root_dir import get_dataset_path

    root = Path(get_dataset_path())
    found = [path.parent.relative_to(root).as_posix() for path in root.rglob("data")]
    near = difflib.get_close_matches(name, found, n=3)
    return f"did you mean {', '.join(near)}?" if near else f"get it: minari download {name}"


def _stored(data: Any) -> Iterator[Any]:
    """The episodes; of an HDF5 file, none whose arrays are far larger than what is stored."""
    path, episodes = Path(data.storage.data_path) / "main_data.hdf5", data.iterate_episodes()
    if not path.exists():
        yield from episodes
        return
    import h5py

    def compare(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset):
            size = math.prod(found.shape or ()) * found.dtype.itemsize
            if size > PACKED * found.id.get_storage_size() + SPARE:
                raise SourceEnded(f"{name} of an episode has {size:,} bytes, but few are stored")

    with h5py.File(path, "r") as file:
        for index in data.episode_indices:
            file[f"episode_{index}"].visititems(compare)
            yield next(episodes)


def _episodes(
    data: Any, reader: ObservationReader, counts: Counts, acting: bool
) -> Iterator[Chunk]:
    for episode in _stored(data):
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
