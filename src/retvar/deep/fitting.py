"""Fitted TD(κ): recorded transitions in the order of their streams, and networks fitted to them.

Targets are computed along the streams, the networks are fitted to them, and again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retvar.deep.modules import Averaged, Ensemble, SpreadModule, spread_loss
from retvar.deep.targets import Step, discounted_sums, node_targets
from retvar.experience.stream import Chunk
from retvar.support import arguments
from retvar.support.errors import DivergenceError, InputError
from retvar.td.networks import MEAN, VALUE, VARIANCE, Network, Reading, Transition

Array = NDArray[np.float64]
HORIZONS = 5.0  # of a block of a stream that does not end, for the bootstrap
SMALL_BATCH = 2_048  # rows times members, up to which one thread is fastest
LEAST, KEPT = 0.95, 0.8  # κ at least; share of a common error that a sweep may leave
FEWEST, USUAL, MOST = 25, 50, 100  # sweeps
MOST_ROWS = 10_000_000  # of a batch, and steps
SMALL = 1e-4  # variance, in normalised units, below which relative errors count no more
ROUNDING, FAR = 1e-9, 1e-3  # std of returns at least, as a share of them
NAMES = {VALUE: "value", MEAN: "mean", VARIANCE: "variance"}


@dataclass(frozen=True)
class Columns:
    """Transitions, stream by stream in the order of time.

    `observations` has the observation left by each transition, then those that follow where no row
    goes on from there; `follows` is the row of the observation that follows, its own after an end.
    """

    observations: Array  #: [row, number]
    follows: NDArray[np.int64]
    reward: Array
    gamma: Array  #: 0 at an end
    lam: Array
    rho: Array
    going: NDArray[np.bool_]  #: whether the next row goes on from here
    block: NDArray[np.int64]  #: number of the episode, or of a part of a long one

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def usual_gamma(self) -> float:
        """Mean γ of transitions that go on; 0 where none does."""
        going = self.gamma[self.gamma > 0]
        return float(going.mean()) if going.size else 0.0

    @property
    def left(self) -> Array:
        """The observation that each transition leaves."""
        return self.observations[: len(self)]


class Record:
    """Collects chunks of moves.

    >>> record = Record(gamma=0.9, lam=1.0)
    >>> x = np.arange(3.0)[:, None]
    >>> record.add({"state": x, "next_state": x + 1, "reward": np.ones(3),
    ...             "terminated": np.array([False, True, False])})
    >>> columns = record.columns()
    >>> columns.follows, columns.gamma, columns.going, columns.block
    (array([1, 1, 3]), array([0.9, 0. , 0.9]), array([ True, False, False]), array([0, 0, 1]))
    """

    def __init__(self, gamma: Any, lam: Any, most: int | None = None) -> None:
        self.gamma, self.lam = gamma, lam
        self.most = most  #: transitions that are kept, the newest; None: all
        self.rows = 0
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        """Add a chunk of moves, which is copied."""
        n = len(chunk["reward"])
        none = np.zeros(n, bool)
        ended, cut = (np.array(chunk.get(k, none), bool) for k in ("terminated", "truncated"))
        given = {"gamma": self.gamma, "lam": self.lam, "rho": None if "rho" in chunk else 1.0}
        rows = {
            name: np.array(chunk[name] if x is None else np.full(n, x), dtype=np.float64)
            for name, x in {"state": None, "next_state": None, "reward": None, **given}.items()
        }
        for name, column in rows.items():
            if not np.isfinite(column[~ended] if name == "next_state" else column).all():
                raise InputError(name, "not finite", "must hold finite numbers; mend these rows")
        rows["gamma"][ended] = 0.0
        rows |= {"over": ended | cut, "ended": ended}
        rows["stream"] = np.array(chunk.get("stream", none), dtype=np.int64)
        self._chunks.append(rows)
        self.rows += n
        while self.most is not None and self.rows - len(self._chunks[0]["reward"]) >= self.most:
            self.rows -= len(self._chunks.pop(0)["reward"])

    def columns(self) -> Columns:
        """All transitions, stream by stream."""
        order = np.argsort(np.concatenate([c["stream"] for c in self._chunks]), kind="stable")
        names = self._chunks[0]
        rows = {k: np.concatenate([c[k] for c in self._chunks])[order] for k in names}
        last = np.append(rows["stream"][1:] != rows["stream"][:-1], True)
        going = ~(rows["over"] | last)
        n, cut = len(going), ~going & ~rows["ended"]
        follows = np.arange(n) + going
        follows[cut] = n + np.arange(int(cut.sum()))
        observations = np.concatenate([rows["state"], rows["next_state"][cut]])
        return Columns(
            observations, follows, rows["reward"], rows["gamma"], rows["lam"], rows["rho"], going,
            _blocks(going, rows["gamma"] * rows["lam"]),
        )  # fmt: skip


def _blocks(going: NDArray[np.bool_], discount: Array) -> NDArray[np.int64]:
    """Number of the block of each row: episodes, long ones cut into parts of some horizons.

    A horizon is 1/(1 − c), with c the mean discount of transitions that go on.
    """
    first = np.append(True, ~going[:-1])
    start = np.flatnonzero(first)
    age = np.arange(going.size) - np.repeat(start, np.diff(np.append(start, going.size)))
    used = discount[discount > 0]
    mean = float(used.mean()) if used.size else 0.0
    if mean < 1:
        first |= age % max(1, round(HORIZONS / (1 - mean))) == 0
    return np.asarray(np.cumsum(first) - 1, dtype=np.int64)


class LossDivergenceError(DivergenceError):
    """The loss of a network is no longer a number."""

    def __str__(self) -> str:
        where = f"the loss of the {self.node} network diverged after step {self.step} of Adam"
        return f"{where}: lower learning_rate ({self.step_size:g}) or kappa, or clip ratios"


@dataclass(frozen=True)
class Settings:
    """How networks are fitted; the defaults are those that docs/deep.md reports on."""

    hidden: tuple[int, ...] = (64, 64)  #: units of the hidden layers
    members: int = 5  #: of the ensemble
    sweeps: int | None = None  #: times that targets are computed; None: :func:`usual_sweeps`
    batches: int = 80  #: steps of Adam for each network in a sweep
    batch_size: int = 1_024
    learning_rate: float = 3e-3  #: at the beginning; it falls to 0
    kappa: float | None = None  #: how far targets reach; None: see :func:`reach`
    average: float = 0.995  #: decay of the exponential mean of the weights, per step
    device: str = "cpu"  #: of torch
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise an InputError for settings that make no sense."""
        for name in ("members", "batches", "batch_size"):
            arguments.integer(name, getattr(self, name), 1, MOST_ROWS)
        if self.sweeps is not None:
            arguments.integer("sweeps", self.sweeps, 1, MOST_ROWS)
        if arguments.number("learning_rate", self.learning_rate) <= 0:
            raise InputError("learning_rate", self.learning_rate, "must be positive")
        for k, size in enumerate(arguments.entries("hidden", self.hidden, "sizes of layers")):
            arguments.integer(f"hidden[{k}]", size, 1, 65_536)
        arguments.integer("seed", self.seed, 0)
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, TypeError, AssertionError) as error:
            reason = f"is not a device of torch here: {str(error).splitlines()[0]}"
            raise InputError("device", self.device, reason) from None


def reach(gamma: float) -> float:
    """κ = 0.95, or so much that a sweep removes a fifth of an error that all values share.

    Such an error goes on into the next targets as γ(1 − κ)/(1 − γκ) of itself.

    >>> round(reach(0.999), 3)
    0.996
    """
    return max(LEAST, (gamma - KEPT) / ((1 - KEPT) * gamma)) if gamma else LEAST


def usual_sweeps(gamma: float) -> int:
    """As many as a return is long, 1/(1 − γ), from 25 to 50; half as many, to 100, if it is longer.

    >>> usual_sweeps(0.9), usual_sweeps(0.99)
    (25, 50)
    """
    horizon = 1 / max(1 - gamma, 1e-9)
    return round(min(max(FEWEST, min(horizon, USUAL), horizon / 2), MOST))


@dataclass
class Scales:
    """The units of observations and returns."""

    centre: Any  #: mean observation
    width: Any  #: its standard deviation, number by number
    shift: float  #: mean return
    scale: float  #: standard deviation of returns

    @classmethod
    def of(cls, columns: Columns, centred: bool) -> Scales:
        """From the data: returns are those observed, completed by their mean where cut off.

        Rewards may be shifted, so that the mean return is 0, only where η is 1 (`centred`).
        """
        x = columns.left.astype(np.float64)
        width = x.std(axis=0)
        constant = width <= 1e-6 * np.abs(x).max(axis=0, initial=0.0)
        reward, decay = (torch.from_numpy(a) for a in (columns.reward, columns.gamma))
        going = torch.from_numpy(columns.going)
        seen = discounted_sums(reward, decay * going)
        missing = discounted_sums(decay * ~going, decay * going)  # share of what follows a cut
        shift = float(seen.mean() / torch.clamp(1 - missing.mean(), min=1e-3))
        returns = seen + missing * shift
        deviation = float(returns.std()) if len(returns) > 1 else 0.0
        typical = max(abs(shift), float(reward.abs().mean()))
        least = ROUNDING if centred else FAR  # networks know a mean of so many std themselves
        scale = max(deviation, least * typical) or 1.0
        return cls(x.mean(axis=0), np.where(constant, 1.0, width), shift if centred else 0.0, scale)


@dataclass
class Fitting:
    """Networks for the nodes of a method, being fitted to recorded transitions."""

    network: Network
    settings: Settings
    scales: Scales
    off_policy_return: bool = False  #: η = ρ; otherwise η = 1
    sweep: int = 0  #: sweeps done

    def __post_init__(self) -> None:
        s, width = self.settings, len(self.scales.centre)
        own = torch.Generator().manual_seed(s.seed)
        self.nets = {}
        for place in self.network.places:
            net = Ensemble(s.members, width, s.hidden, own, place == VARIANCE).to(s.device)
            self.nets[place] = Averaged(net, s.average)
        self._random = np.random.default_rng([s.seed, 1])

    @property
    def module(self) -> SpreadModule:
        """The networks that answer, in the units of observations and rewards."""
        nets = {NAMES[place]: net.mean for place, net in self.nets.items()}
        less_square = self.network.variance.less_square_of is not None
        found = SpreadModule(nets, vars(self.scales), less_square)
        return found.to(self.settings.device)  # type: ignore[no-any-return]

    def run(
        self, columns: Columns, sweeps: int, progress: Callable[[int], None] | None = None
    ) -> None:
        """Fit for so many sweeps; the step size falls from beginning to end."""
        s, threads = self.settings, torch.get_num_threads()
        if s.batch_size * s.members <= SMALL_BATCH:
            torch.set_num_threads(1)  # more would only wait for one another
        try:
            data = self._tensors(columns)
            for k in range(sweeps):
                self._sweep(data, k, sweeps * s.batches)
                if progress is not None:
                    progress(k + 1)
        finally:
            torch.set_num_threads(threads)

    def _sweep(self, data: _Tensors, k: int, total: int) -> None:
        """Targets of each node, and its fit to them."""
        read: dict[int, Reading] = {}
        for place in self.network.places:
            predicted = self.nets[place].mean.predict(data.observations).double().T
            now, after = predicted[: len(data.follows)], predicted[data.follows]
            read[place] = Reading(now, after, 0.0, after)  # its TD error comes next
            read[place], target = node_targets(self.network, place, data.step, read, data.kappa)
            self._fit(place, data, target.T.float(), k, total)
        self.sweep += 1

    def _fit(self, place: int, data: _Tensors, target: Tensor, sweep: int, total: int) -> None:
        """Steps of Adam towards the targets."""
        s, net = self.settings, self.nets[place]
        for k in range(s.batches):
            done = (sweep * s.batches + k) / total
            rows = torch.from_numpy(self._random.integers(len(data.follows), size=s.batch_size))
            rows = rows.to(target.device)
            found = net.learning(data.observations[rows])
            weight = data.weight[:, data.block[rows]]
            if place == VARIANCE and self.network.variance.less_square_of is None:
                # as the Poisson deviance, v − x log v: else large variances are all that counts
                weight = weight / (found.detach() + SMALL)
            loss = spread_loss(found, target[:, rows], weight)
            net.step(loss * s.members, s.learning_rate * (1 - done))
        if not bool(torch.isfinite(loss)):
            raise LossDivergenceError(NAMES[place], self.sweep * s.batches, "", s.learning_rate)

    def _tensors(self, columns: Columns) -> _Tensors:
        s, scales = self.settings, self.scales

        def put(array: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(s.device)

        x = put(((columns.observations - scales.centre) / scales.width).astype(np.float32))
        gamma, rho = columns.gamma, columns.rho
        reward = (columns.reward + (gamma - 1) * scales.shift) / scales.scale
        one = np.ones_like(rho)
        eta, rho_bar = (rho, one) if self.off_policy_return else (one, rho)
        transition: Any = Transition(*(put(a[:, None]) for a in (reward, gamma, columns.lam, eta)))  # type: ignore[arg-type]
        going = put(columns.going[:, None].astype(np.float64))
        step = Step(transition, going, put(rho[:, None]), put(rho_bar[:, None]))
        size = s.members, columns.block[-1] + 1
        weight = np.random.default_rng([s.seed, 2]).exponential(size=size)
        weight = put((weight if s.members > 1 else np.ones_like(weight)).astype(np.float32))
        kappa = reach(columns.usual_gamma) if s.kappa is None else s.kappa
        return _Tensors(x, put(columns.follows), step, put(columns.block), weight, kappa)


class _Tensors(NamedTuple):
    """Columns in normalised units, on the device."""

    observations: Tensor
    follows: Tensor
    step: Step
    block: Tensor
    weight: Tensor  #: of each block, for each member
    kappa: float  #: how far targets reach
