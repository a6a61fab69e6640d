"""Statistics over runs on a GPU: Welford's recursion in the order of the runs, so as on the CPU.

Also the kernels that fill arrays before a launch.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import cuda

from retvar.engine import cuda_device
from retvar.engine.cuda_device import Device
from retvar.engine.runner import Moments

__all__ = ["DeviceMoments", "clear", "clear_lists", "expand"]

THREADS = 64
AHEAD = 8  # runs that are fetched at a time


def fold(batch, runs, moments):
    """Add runs to counts, means and squared deviations; batch is [run, part, state, lane].

    A thread has the sum over states of one part and lane; where it is not wanted, states are 1.
    """
    i = cuda.grid(1)
    x = cuda.local.array(AHEAD, np.float64)
    lanes, states = batch.shape[3], batch.shape[2]
    while i < moments.shape[1]:
        part, lane = i // lanes, i % lanes
        n, m, q = moments[0, i], moments[1, i], moments[2, i]
        for first in range(0, runs, AHEAD):
            for k in range(AHEAD):
                x[k] = math.nan
                if first + k < runs:
                    x[k] = batch[first + k, part, 0, lane]
                    for s in range(1, states):
                        x[k] += batch[first + k, part, s, lane]
            for k in range(AHEAD):
                if x[k] == x[k]:
                    n += 1
                    gap = x[k] - m
                    m += gap / n
                    q += gap * (x[k] - m)
        moments[0, i], moments[1, i], moments[2, i] = n, m, q
        i += cuda.gridsize(1)


def fill(x, value):
    """Set all numbers to a value."""
    i = cuda.grid(1)
    while i < x.size:
        x[i] = value
        i += cuda.gridsize(1)


def empty_lists(live):
    """No weight has a trace; live is [block, number, thread]."""
    i = cuda.grid(1)
    threads, last = live.shape[2], live.shape[1] - 1
    while i < live.size:
        row = i // threads
        number, block = row % live.shape[1], row // live.shape[1]
        live[block, number, i % threads] = 0 if number == last else -1
        i += cuda.gridsize(1)


def repeat(tables, which, out):
    """out[run, weight, lane] = tables[which[lane], run or one for all, weight]."""
    i = cuda.grid(1)
    while i < out.size:
        lane = i % out.shape[2]
        row = i // out.shape[2]
        weight, run = row % out.shape[1], row // out.shape[1]
        run = min(run, tables.shape[1] - 1)
        out[row // out.shape[1], weight, lane] = tables[which[lane], run, weight]
        i += cuda.gridsize(1)


@functools.cache
def _kernel(function: Any) -> Any:
    return cuda_device.kernel(function)


def _launch(function: Any, size: int, *args: Any, most: int = 4_096) -> None:
    threads = 4 if cuda_device.SIMULATED else THREADS
    blocks = 1 if cuda_device.SIMULATED else max(1, min(-(-size // threads), most))
    with cuda_device.without_contraction():
        _kernel(function)[blocks, threads](*args)


def clear(x: Any, value: float = 0.0) -> None:
    """Set an array on the GPU to 0, or another value."""
    _launch(fill, x.size, x.reshape(-1), value)


def clear_lists(live: Any) -> None:
    """Empty the lists of weights with a trace [block, number, thread]."""
    _launch(empty_lists, live.size, live)


def expand(tables: Any, which: Any, out: Any) -> None:
    """Copy tables [distinct, run or one for all, weight] to the lanes of out."""
    _launch(repeat, out.size, tables, which, out)


class DeviceMoments:
    """Mean and standard deviation over runs on the GPU; `shape` is [part, lane]."""

    def __init__(self, device: Device, parts: int, lanes: int) -> None:
        self.device = device
        self.sums = device.put(np.zeros((3, parts * lanes)))

    def add(self, batch: Any, runs: int) -> None:
        """Add the first runs of a batch [run, part, state, lane], summed over states."""
        size = self.sums.shape[1]
        _launch(fold, size, batch, runs, self.sums, most=size)

    def moments(self, shape: tuple[int, ...]) -> Moments:
        """The same on the CPU."""
        found = Moments(shape)
        count, mean, squares = self.device.get(self.sums).reshape(3, *shape)
        found.count[:], found.mean[:], found.squares[:] = count, mean, squares
        return found
