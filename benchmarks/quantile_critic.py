"""A quantile critic, to compare deep critics with: quantile regression TD of the same size.

One network gives 32 quantiles of the return. They learn by the quantile Huber loss from n-step
targets, r₁ + γr₂ + … + γⁿθⱼ(x′), whose θⱼ are the quantiles of a target network. n is drawn anew
for every row of every batch, geometrically with the parameter κ: the targets are those of a
distributional TD(κ), κ = 0 is one step, and κ = 1 is Monte Carlo to the end of the stream. The
exponential mean of the weights is target network and answer. Observations and returns are in the
units in which deep critics see them. Lanes are networks that learn at the same time, each with
settings of its own.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from retvar.deep.fitting import Columns, Scales
from retvar.deep.modules import FORGET
from retvar.deep.targets import discounted_sums

QUANTILES = 32
LEVELS = (np.arange(QUANTILES) + 0.5) / QUANTILES
NORMAL = norm.ppf(LEVELS)
STEPS, BATCH, HIDDEN = 4_000, 1_024, (64, 64)  # 4,000: as many as two networks of a critic take
FIRST, SECOND, SMALL = 0.9, 0.999, 1e-8  # of Adam


class Lane(NamedTuple):
    """Settings of one network."""

    learning_rate: float = 3e-3  #: at the beginning; it falls to 0
    average: float = 0.995  #: decay of the exponential mean of the weights
    huber: float = 0.0  #: where the loss becomes linear, in std of the returns; 0: everywhere
    kappa: float = 0.95  #: how far targets reach


@dataclass
class QuantileCritic:
    """Networks of all lanes, flat: [lane, weight]."""

    weights: Tensor
    sizes: tuple[int, ...]
    scales: Scales

    @torch.no_grad()
    def quantiles(self, observations: Any) -> np.ndarray:
        """Quantiles of the return [lane, row, quantile]."""
        x = (np.asarray(observations, dtype=np.float64) - self.scales.centre) / self.scales.width
        rows = torch.from_numpy(x.astype(np.float32)).to(self.weights.device)
        rows = rows.expand(len(self.weights), *rows.shape)
        found = forward(self.weights, self.sizes, rows).double().cpu().numpy()
        return np.asarray(self.scales.shift + self.scales.scale * found)

    def value(self, observations: Any) -> np.ndarray:
        """Mean of the quantiles [lane, row]."""
        return np.asarray(self.quantiles(observations).mean(axis=-1))

    def variance(self, observations: Any, corrected: bool = False) -> np.ndarray:
        """Variance of the quantiles [lane, row].

        They lack the tails; corrected: divided by what 32 quantiles of the normal distribution
        have of its variance.
        """
        found = self.quantiles(observations).var(axis=-1)
        return np.asarray(found / (NORMAL**2).mean() if corrected else found)


def forward(weights: Tensor, sizes: tuple[int, ...], x: Tensor) -> Tensor:
    """Quantiles [lane, row, quantile] of rows [lane, row, number]."""
    begin = 0
    for k, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        middle, end = begin + inputs * outputs, begin + (inputs + 1) * outputs
        matrix = weights[:, begin:middle].view(-1, inputs, outputs)
        bias = weights[:, middle:end].view(-1, 1, outputs)
        x = torch.baddbmm(bias, x if k == 0 else torch.tanh(x), matrix)
        begin = end
    return x


def first_weights(lanes: int, sizes: tuple[int, ...], seed: int) -> Tensor:
    """Random hidden layers; the last predicts the quantiles of the normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for inputs, outputs in itertools.pairwise(sizes):
        parts.append(torch.randn(lanes, inputs * outputs, generator=generator) / math.sqrt(inputs))
        parts.append(torch.zeros(lanes, outputs))
    parts[-2].zero_()
    parts[-1][:] = torch.from_numpy(NORMAL)
    return torch.cat(parts, dim=1)


class Targets:
    """Draws n-step targets from columns, in normalised units."""

    def __init__(self, columns: Columns, scales: Scales, lanes: list[Lane], device: str) -> None:
        def put(array: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        n = len(columns)
        x = (columns.observations - scales.centre) / scales.width
        self.observations = put(x.astype(np.float32))
        self.follows, self.gamma = put(columns.follows), put(columns.gamma)
        base = columns.gamma[columns.gamma > 0]
        if base.size and np.ptp(base) > 0:
            raise ValueError("γ must be one number")
        self.base = float(base[0]) if base.size else 0.0
        going = columns.going
        ends = np.flatnonzero(~going)
        self.last = put(ends[np.searchsorted(ends, np.arange(n))])  # of the episode of each row
        reward = put((columns.reward + (columns.gamma - 1) * scales.shift) / scales.scale)
        sums = discounted_sums(reward, self.gamma * put(going))
        self.sums = torch.cat([sums, sums.new_zeros(1)])
        self.going = put(going)
        with np.errstate(divide="ignore"):
            rate = -1 / np.log([lane.kappa for lane in lanes])
        self.rate = put(np.clip(rate, 0.0, 1e9)[:, None])

    def draw(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return, discount and observation to bootstrap from, for rows [lane, row]."""
        waits = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
        further = (waits.exponential_(generator=generator) * self.rate).long()
        end = torch.minimum(rows + further, self.last[rows])
        discount = self.base ** (end - rows).double() * self.gamma[end]
        reward = self.sums[rows] - discount * self.going[end] * self.sums[end + 1]
        return reward.float(), discount.float(), self.observations[self.follows[end]]


def descent(found: Tensor, target: Tensor, levels: Tensor, huber: Tensor) -> Tensor:
    """The gradient of the quantile Huber loss by the quantiles found [lane, row, quantile]."""
    ahead = target[:, :, None, :] - found[:, :, :, None]
    slope = torch.where(ahead < 0, levels[:, None] - 1, levels[:, None]).abs()
    slope *= (ahead / huber[:, None, None, None]).clamp_(-1, 1)
    return -slope.mean(dim=-1) / found.shape[1]


def fit(
    columns: Columns,
    lanes: list[Lane],
    *,
    hidden: tuple[int, ...] = HIDDEN,
    steps: int = STEPS,
    batch_size: int = BATCH,
    device: str = "cpu",
    seed: int = 0,
) -> QuantileCritic:
    """Fit one network for each lane; all of them see batches of their own."""
    scales = Scales.of(columns, centred=True)
    sizes = (len(scales.centre), *hidden, QUANTILES)
    targets = Targets(columns, scales, lanes, device)
    weights = first_weights(len(lanes), sizes, seed).to(device).requires_grad_()
    mean = weights.detach().clone()
    moments = torch.zeros_like(mean), torch.zeros_like(mean)
    rates, averages, huber = (
        torch.tensor([getattr(lane, name) for lane in lanes], device=device)[:, None]
        for name in ("learning_rate", "average", "huber")
    )
    huber = huber[:, 0].clamp(min=1e-6)
    levels = torch.from_numpy(LEVELS.astype(np.float32)).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    shape = (len(lanes), batch_size)
    for k in range(steps):
        rows = torch.randint(len(columns), shape, device=device, generator=generator)
        with torch.no_grad():
            reward, discount, after = targets.draw(rows, generator)
            bootstrapped = discount[..., None] * forward(mean, sizes, after)
            target = reward[..., None] + bootstrapped
        found = forward(weights, sizes, targets.observations[rows])
        gradient = descent(found.detach(), target, levels, huber)
        (slope,) = torch.autograd.grad(found, weights, gradient)
        with torch.no_grad():
            adam(weights, slope, moments, k, rates * (1 - k / steps))
            mean.lerp_(weights, (1 - averages).clamp(min=FORGET / (FORGET + k + 1)))
    return QuantileCritic(mean, sizes, scales)


def adam(
    weights: Tensor, slope: Tensor, moments: tuple[Tensor, Tensor], k: int, rate: Tensor
) -> None:
    """A step of Adam, with a step size for each lane."""
    first, second = moments
    first.lerp_(slope, 1 - FIRST)
    second.lerp_(slope**2, 1 - SECOND)
    size = (second / (1 - SECOND ** (k + 1))).sqrt_().add_(SMALL)
    weights -= rate / (1 - FIRST ** (k + 1)) * first / size
