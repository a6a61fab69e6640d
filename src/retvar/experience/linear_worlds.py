"""Experience from linear-Gaussian worlds, sampled in batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from retvar.experience.moves import Chunk
from retvar.experience.stream import Counts, Experience
from retvar.mdp.linear_gaussian import LinearGaussian
from retvar.support import arguments

CHUNK = 8_192  # transitions, about


def from_linear_gaussian(
    world: LinearGaussian, *, streams: int = 64, steps: int = 200_000, seed: int = 0
) -> Experience:
    """Sample walks of a :class:`retvar.mdp.domains.LinearGaussian`, `steps` transitions in all.

    The streams are interleaved. Each starts from the stationary distribution, and its last
    transition is marked truncated.

    >>> import retvar as rv
    >>> world = rv.domains.linear_gaussian(F=[[0.8, 0.3], [-0.3, 0.8]], S=0.3, Q=1.0, gamma=0.95)
    >>> experience = from_linear_gaussian(world, streams=8, steps=1_000)
    >>> chunk = next(experience.chunks())
    >>> chunk["state"].shape, int(chunk["truncated"].sum())
    ((1000, 2), 8)
    """
    arguments.instance("world", world, LinearGaussian, "a LinearGaussian")
    streams = arguments.integer("streams", streams, 1)
    steps = arguments.integer("steps", steps, streams)
    arguments.generator("seed", seed)
    _ = world.stationary  # refuses a world that has none
    each, block = -(-steps // streams), max(CHUNK // streams, 1)

    def source(counts: Counts) -> Iterator[Chunk]:
        first = 0
        for states, rewards in world.walks(streams, each, seed, block=block):
            row = np.arange(first, min(first + rewards.size, steps))
            yield {
                "state": states[:-1].reshape(-1, world.width)[: len(row)],
                "reward": rewards.reshape(-1)[: len(row)],
                "next_state": states[1:].reshape(-1, world.width)[: len(row)],
                "terminated": np.zeros(len(row), dtype=bool),
                "truncated": row >= steps - streams,
                "stream": row % streams,
            }
            first += len(row)

    name = "linear-Gaussian world" + (f" × {streams}" if streams > 1 else "")
    return Experience(
        name, source, width=world.width, names=world.names, length=steps,
        policy="" if world.control is None else "u = −Kx",
    )  # fmt: skip
