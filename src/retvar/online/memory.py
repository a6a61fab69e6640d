"""Everything that a live estimator holds, packed as the compiled update wants it.

    ints     0–15 plan; 16–19 where the parts of floats end; 20–23 state, next state, flags, stream
    floats   0–3 reward, ρ, γ, λ; then settings, gammas, lams, cells, report

The two lie in one buffer, so that a transition is written into it by one call.

Only `cells`, `traces` and `report` change as it learns; the rest follows from the description. The
list of weights that a trace reaches (`live`) follows from the traces.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retvar.features import Features
from retvar.online import kernel

__all__ = ["Memory"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


class Memory:
    """Packed arrays, and named views of them."""

    def __init__(
        self,
        plan: Integers,
        settings: Array,
        gammas: Array,
        lams: Array,
        cells: Array,
    ) -> None:
        parts = [np.zeros(4), settings.ravel(), gammas, lams, cells.ravel(), np.zeros(6)]
        ends = np.cumsum([part.size for part in parts])
        self.buffer: Array = np.concatenate([np.zeros(24), *parts])
        self.floats = self.buffer[24:]
        self.ints: Integers = self.buffer[:24].view(np.int64)
        self.ints[:16] = plan.ravel()
        self.ints[16:20] = ends[1:5]
        self.plan = self.ints[:16].reshape(4, 4)
        self.settings = self.floats[ends[0] : ends[1]].reshape(settings.shape)
        self.gammas = self.floats[ends[1] : ends[2]]
        self.lams = self.floats[ends[2] : ends[3]]
        self.cells = self.floats[ends[3] : ends[4]].reshape(-1, 4)
        self.report = self.floats[ends[4] :]
        self.traces = np.zeros((0, self.cells.shape[0] + 3))
        self.live = np.zeros((0, 2 * self.cells.shape[0] + 3), dtype=np.int64)
        self.grow(1)

    @property
    def streams(self) -> int:
        """How many streams have traces."""
        return int(self.traces.shape[0])

    def grow(self, streams: int) -> None:
        """Make room for the traces of more streams; those that are there stay as they are."""
        total = self.cells.shape[0]
        fresh = streams - self.streams
        live = np.full((fresh, 2 * total + 3), -1, dtype=np.int64)
        live[:, 2 * total :] = 0
        self.live = np.concatenate([self.live, live])
        self.traces = np.concatenate([self.traces, np.zeros((fresh, total + 3))])

    def adopt(self, traces: Array) -> None:
        """Take over the traces of another, and list the weights that they reach."""
        self.traces = np.zeros((0, traces.shape[1]))
        self.live = self.live[:0]
        self.grow(traces.shape[0])
        self.traces[:] = traces
        total = self.cells.shape[0]
        ends = [*self.plan[1:3, kernel.OFFSET], total]
        for stream in range(self.streams):
            for node, end in enumerate(ends):
                offset = self.plan[node, kernel.OFFSET]
                reached = np.flatnonzero(self.traces[stream, offset:end])
                self.live[stream, offset : offset + reached.size] = reached
                self.live[stream, total + offset + reached] = np.arange(reached.size)
                self.live[stream, 2 * total + node] = reached.size

    def weights(self, node: int) -> Array:
        """A view of the weights of a node."""
        ends = [*self.plan[1:3, kernel.OFFSET], self.cells.shape[0]]
        return self.cells[self.plan[node, kernel.OFFSET] : ends[node], kernel.WEIGHT]


def plan_of(
    method: int, off_policy: bool, learn_value: bool, features: list[Features], rules: list[int]
) -> Integers:
    """Where each node's weights begin, and what it does; see :mod:`retvar.online.kernel`."""
    plan = np.zeros((4, 4), dtype=np.int64)
    plan[:3, kernel.OFFSET] = np.cumsum([0, *(f.size for f in features[:2])])
    plan[:3, kernel.KIND] = rules
    plan[3] = method, off_policy, learn_value, 0
    return plan
