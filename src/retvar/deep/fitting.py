"""Fitted TD(κ): targets are computed along the streams, networks are fitted to them, and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retvar.deep.modules import Averaged, Ensemble, SpreadModule, spread_loss
from retvar.deep.targets import Step, discounted_sums, node_targets, reading
from retvar.deep.transition_columns import Columns
from retvar.errors import DivergenceError
from retvar.networks import MEAN, VALUE, VARIANCE, Network, Reading, Transition

__all__ = ["Fitting", "Settings"]

LEAST, KEPT = 0.95, 0.8  # κ at least; share of a common error that a sweep may leave
FEWEST, USUAL, MOST = 25, 50, 100  # sweeps
SMALL = 1e-4  # variance, in normalised units, below which relative errors count no more
ROUNDING, FAR = 1e-9, 1e-3  # std of returns at least, as a share of them
NAMES = {VALUE: "value", MEAN: "mean", VARIANCE: "variance"}
Progress = Callable[[int], None]


class LossDivergenceError(DivergenceError):
    """The loss of a network is no longer a number.

    >>> print(LossDivergenceError("value", 160, 0.5))
    the loss of the value network diverged after step 160 of Adam: lower learning_rate (0.5), or
    kappa, or clip the importance ratios of the data
    """

    def __init__(self, node: str, step: int, step_size: float) -> None:
        super().__init__(node, step, "", step_size)

    def __reduce__(self) -> Any:
        return type(self), (self.node, self.step, self.step_size)

    def __str__(self) -> str:
        return (
            f"the loss of the {self.node} network diverged after step {self.step} of Adam: lower "
            f"learning_rate ({self.step_size:g}), or kappa, or clip the importance ratios of the "
            "data"
        )


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


def reach(columns: Columns) -> float:
    """κ = 0.95, or so much that a sweep removes a fifth of an error that all values share.

    Such an error goes on into the next targets as γ(1 − κ)/(1 − γκ) of itself.

    >>> from retvar.deep.transition_columns import Record
    >>> record = Record(gamma=0.999, lam=1.0)
    >>> x = np.zeros((3, 1))
    >>> record.add({"state": x, "next_state": x, "reward": np.ones(3)})
    >>> round(reach(record.columns()), 3)
    0.996
    """
    gamma = _usual_discount(columns)
    return max(LEAST, (gamma - KEPT) / ((1 - KEPT) * gamma)) if gamma else LEAST


def usual_sweeps(columns: Columns) -> int:
    """As many as a return is long, 1/(1 − γ), from 25 to 50; half as many, to 100, if it is longer.

    >>> from retvar.deep.transition_columns import Record
    >>> record = Record(gamma=0.99, lam=1.0)
    >>> x = np.zeros((3, 1))
    >>> record.add({"state": x, "next_state": x, "reward": np.ones(3)})
    >>> usual_sweeps(record.columns())
    50
    """
    horizon = 1 / max(1 - _usual_discount(columns), 1e-9)
    return round(min(max(FEWEST, min(horizon, USUAL), horizon / 2), MOST))


def _usual_discount(columns: Columns) -> float:
    going = columns.gamma[columns.gamma > 0]
    return float(going.mean()) if going.size else 0.0


def relative_weight(variance: Tensor) -> Tensor:
    """1/v for the loss of predicted variances v, as if constant.

    Variances of one world span orders of magnitude; without it the large ones are all that counts.
    The gradient is that of the Poisson deviance, v − x log v, whose minimum is the conditional
    mean as well.

    >>> relative_weight(torch.tensor([0.4999, 9.9999]))
    tensor([2.0000, 0.1000])
    """
    return 1 / (variance.detach() + SMALL)


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
    check: Callable[[], None] = lambda: None  #: called often; may raise, to stop
    losses: list[dict[str, float]] = field(default_factory=list)  #: of each sweep, by node

    def __post_init__(self) -> None:
        s, width = self.settings, len(self.scales.centre)
        own = torch.Generator().manual_seed(s.seed)
        self.nets = {
            place: Averaged(
                Ensemble(s.members, width, s.hidden, own, place == VARIANCE).to(s.device), s.average
            )
            for place in self.network.places
        }
        self.optimisers = {
            place: torch.optim.Adam(net.learning.parameters(), lr=s.learning_rate)
            for place, net in self.nets.items()
        }
        self._random = np.random.default_rng([s.seed, 1])

    @property
    def module(self) -> SpreadModule:
        """The networks that answer, in the units of observations and rewards."""
        scales = {
            name: getattr(self.scales, name) for name in ("centre", "width", "shift", "scale")
        }
        nets = {NAMES[place]: net.mean for place, net in self.nets.items()}
        less_square = self.network.variance.less_square_of is not None
        found = SpreadModule(nets, scales, less_square)
        found.to(self.settings.device)
        return found

    def run(self, columns: Columns, sweeps: int, progress: Progress | None = None) -> None:
        """Fit for so many sweeps; the step size falls from beginning to end."""
        data = _Tensors.of(columns, self)
        kappa = reach(columns) if self.settings.kappa is None else self.settings.kappa
        total = sweeps * self.settings.batches
        for k in range(sweeps):
            read: dict[int, Reading] = {}
            losses = {}
            for place in self.network.places:
                net = self.nets[place]
                predicted = net.mean.predict(data.observations, self.check).double().T
                read[place] = reading(predicted[: data.rows], predicted[data.follows])
                read[place], target = node_targets(self.network, place, data.step, read, kappa)
                losses[NAMES[place]] = self._fit(place, data, target.T.float(), k, total)
            self.losses.append(losses)
            self.sweep += 1
            if progress is not None:
                progress(k + 1)

    def _fit(self, place: int, data: _Tensors, target: Tensor, sweep: int, total: int) -> float:
        """Steps of Adam towards the targets; the mean loss."""
        s, net, optimiser = self.settings, self.nets[place], self.optimisers[place]
        sum_of_losses = 0.0
        for k in range(s.batches):
            self.check()
            done = (sweep * s.batches + k) / total
            for group in optimiser.param_groups:
                group["lr"] = s.learning_rate * (1 - done)
            rows = torch.from_numpy(self._random.integers(data.rows, size=s.batch_size))
            rows = rows.to(target.device)
            found = net.learning(data.observations[rows])
            weight = data.weight[:, data.block[rows]]
            if place == VARIANCE and self.network.variance.less_square_of is None:
                weight = weight * relative_weight(found)
            loss = spread_loss(found, target[:, rows], weight)
            optimiser.zero_grad(set_to_none=True)
            (loss * s.members).backward()
            optimiser.step()
            net.follow()
            sum_of_losses += float(loss.detach()) if k % 8 == 0 else 0.0
        mean = 8 * sum_of_losses / s.batches
        if not np.isfinite(mean):
            raise LossDivergenceError(NAMES[place], self.sweep * s.batches, s.learning_rate)
        return mean


@dataclass
class _Tensors:
    """Columns in normalised units, on the device."""

    observations: Tensor
    follows: Tensor
    step: Step
    block: Tensor
    weight: Tensor  #: of each block, for each member

    @property
    def rows(self) -> int:
        return len(self.follows)

    @classmethod
    def of(cls, columns: Columns, own: Fitting) -> _Tensors:
        device, scales = own.settings.device, own.scales

        def put(array: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        x = put(((columns.observations - scales.centre) / scales.width).astype(np.float32))
        gamma, rho = columns.gamma, columns.rho
        reward = (columns.reward + (gamma - 1) * scales.shift) / scales.scale
        one = np.ones_like(rho)
        eta, rho_bar = (rho, one) if own.off_policy_return else (one, rho)
        transition: Any = Transition(*(put(a[:, None]) for a in (reward, gamma, columns.lam, eta)))  # type: ignore[arg-type]
        going = put(columns.going[:, None].astype(np.float64))
        step = Step(transition, going, put(rho[:, None]), put(rho_bar[:, None]))
        random = np.random.default_rng([own.settings.seed, 2])
        weight = random.exponential(size=(own.settings.members, columns.blocks))
        if own.settings.members == 1:
            weight[:] = 1.0
        return cls(
            x, put(columns.follows), step, put(columns.block), put(weight.astype(np.float32))
        )
