"""Experience from Minari data sets, episode by episode."""

from __future__ import annotations

from typing import Any

import numpy as np

from retvar.experience.moves import LARGEST_REWARD, describe_error
from retvar.experience.observations import ObservationReader, experience_of
from retvar.experience.stream import Experience
from retvar.support import arguments
from retvar.support.errors import InputError


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
    reader = ObservationReader(spec.observation_space)
    return experience_of(
        f"minari:{spec.dataset_id}",
        lambda: (_columns(reader, episode) for episode in data.iterate_episodes()),
        reader, spec.action_space, policy="as recorded", length=length,
    )  # fmt: skip


def _open(dataset: Any) -> Any:
    try:
        import minari
    except ImportError:
        remedy = 'reads its data sets; install it: pip install "retvar[data]"'
        raise InputError("minari", "missing", remedy) from None
    if isinstance(dataset, minari.MinariDataset):
        return dataset
    folder = arguments.path("dataset", dataset)
    if folder.is_dir():
        inner = folder / "data"
        return minari.MinariDataset(inner if inner.exists() else folder)
    try:
        return minari.load_dataset(str(dataset))
    except FileNotFoundError:
        remedy = f"is not on this disk: minari download {dataset}"
        raise InputError("dataset", dataset, remedy) from None


def _columns(reader: ObservationReader, episode: Any) -> dict[str, Any]:
    """The rows of an episode."""
    given = episode.observations
    given = np.stack(given, axis=1) if isinstance(given, tuple) else given
    seen = np.asarray(given if reader.width else [*map(reader.read, given)])
    reward = np.asarray(episode.rewards, dtype=np.float64)
    ended, cut = (np.array(x, dtype=bool) for x in (episode.terminations, episode.truncations))
    if not (np.isfinite(seen).all() and (np.abs(reward) <= LARGEST_REWARD).all()):
        raise ValueError(f"episode {episode.id} has numbers that are not finite")
    cut[-1:] |= ~ended[-1:]
    after = seen[1:].copy()
    after[ended] = seen[:-1][ended]
    return {
        "state": seen[:-1], "action": episode.actions, "reward": reward,
        "next_state": after, "terminated": ended, "truncated": cut,
    }  # fmt: skip
