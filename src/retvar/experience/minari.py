"""Experience from Minari data sets, episode by episode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from retvar.experience.moves import Chunk, describe_error
from retvar.experience.observations import SourceEnded, experience_of, observation_reader
from retvar.experience.stream import Experience
from retvar.support.errors import InputError
from retvar.support.format import did_you_mean

DATASET = "must be a Minari data set, its id, or the path of its folder"


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
    retvar.InputError: dataset = nobody/knows-v0: is not on this disk...
    """
    try:
        data = _open(dataset)
        spec, length = data.spec, int(data.total_steps)
    except InputError:
        raise
    except Exception as error:  # a broken folder may raise anything
        raise InputError("dataset", dataset, f"cannot be read: {describe_error(error)}") from None
    reader = observation_reader(spec.observation_space)
    return experience_of(
        f"minari:{spec.dataset_id}", lambda acting: _episodes(data, reader, acting), reader,
        spec.action_space, policy="as recorded", length=length,
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
    folder = Path(dataset)
    folder = folder if folder.is_dir() else Path(get_dataset_path(str(dataset)))
    inner = folder if (folder / "metadata.json").exists() else folder / "data"
    if inner.exists():
        return minari.MinariDataset(inner)
    root = Path(get_dataset_path())
    found = [path.parent.relative_to(root).as_posix() for path in root.rglob("data")]
    hint = did_you_mean(str(dataset), found) or f"minari download {dataset}"
    raise InputError("dataset", dataset, f"is not on this disk; {hint}")


def _episodes(data: Any, reader: Any, acting: bool) -> Iterator[Chunk]:
    for episode in data.iterate_episodes():
        rewards = np.asarray(episode.rewards, dtype=np.float64)
        n = rewards.size
        if not n:
            continue
        given = episode.observations
        given = np.stack(given, axis=1) if isinstance(given, tuple) else given
        column = reader.column(given if reader.width else [reader.read(each) for each in given])
        ended, cut = (np.array(x, dtype=bool) for x in (episode.terminations, episode.truncations))
        actions = np.asarray(episode.actions)
        if {len(column) - 1, ended.size, cut.size, len(actions)} != {n}:
            found = f"{len(column)} observations and {len(actions)} actions for {n} rewards"
            raise SourceEnded(f"episode {episode.id} has {found}")
        cut[-1] |= not ended[-1]
        rows: Chunk = {
            "state": column[:-1], "reward": rewards, "next_state": column[1:],
            "terminated": ended, "truncated": cut,
        }  # fmt: skip
        if acting:
            rows["action"] = actions.astype(np.int64).reshape(-1)
        yield rows
