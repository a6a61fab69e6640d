"""Networks: an ensemble of small multilayer perceptrons, a variance head, the loss."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ONE = math.log(math.e - 1)  # softplus of it is 1
FORGET = 9.0  # after n steps the mean reaches back n/9 of them, until its decay is reached
ROWS = 16_384  # that are computed at once


class VarianceHead(nn.Module):
    """A last layer that predicts a variance: linear, then softplus, so that it is positive.

    `typical` is what it begins with, and its unit: about the variance to be expected.

    >>> head = VarianceHead(8, typical=100.0)
    >>> head(torch.randn(2, 8))
    tensor([100., 100.], grad_fn=<...>)
    """

    def __init__(self, features: int, typical: float = 1.0) -> None:
        super().__init__()
        self.typical = typical
        self.linear = nn.Linear(features, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.constant_(self.linear.bias, ONE)

    def forward(self, features: Tensor) -> Tensor:
        """Variances of rows of features."""
        return self.typical * functional.softplus(self.linear(features)).squeeze(-1)


def spread_loss(predicted: Tensor, target: Tensor, weight: Tensor | float | None = None) -> Tensor:
    """Mean squared error, whose minimum is the conditional mean: for values and for variances.

    `weight` is one of each row, or of all: 1/v² brings variances of typical size v to the size 1.

    >>> spread_loss(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(2.)
    """
    squared = (predicted - target) ** 2
    return (squared if weight is None else weight * squared).mean()


class Ensemble(nn.Module):
    """Members of the same shape that learn apart from each other, computed together.

    Tanh between layers. The last layer is linear, or softplus for what is `positive`; members begin
    with the prediction 0, or 1.

    >>> generator = torch.Generator().manual_seed(0)
    >>> Ensemble(3, 2, (8, 8), generator, positive=True)(torch.zeros(5, 2)).shape
    torch.Size([3, 5])
    """

    def __init__(
        self,
        members: int,
        width: int,
        hidden: tuple[int, ...],
        generator: torch.Generator,
        positive: bool,
    ) -> None:
        super().__init__()
        self.positive = positive
        sizes = (width, *hidden, 1)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for k, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            w, bias = torch.zeros(members, inputs, outputs), torch.zeros(members, 1, outputs)
            if k < len(hidden):
                w.normal_(0.0, math.sqrt(1.0 / inputs), generator=generator)
            elif positive:
                bias.fill_(ONE)
            self.weights.append(nn.Parameter(w))
            self.biases.append(nn.Parameter(bias))

    def forward(self, x: Tensor) -> Tensor:
        """Predictions [member, row] for rows of observations, the same for all members."""
        h = x.expand(len(self.weights[0]), *x.shape)
        for k, (w, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, h if k == 0 else torch.tanh(h), w)
        found = h.squeeze(-1)
        return functional.softplus(found) if self.positive else found

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Predictions of many rows, part by part, without gradients."""
        return torch.cat([self(part) for part in x.split(ROWS)], dim=1)


class Averaged:
    """An ensemble that learns, and the exponential mean of its weights: the one that answers."""

    def __init__(self, learning: Ensemble, decay: float) -> None:
        self.learning, self.decay = learning, decay
        self.mean = copy.deepcopy(learning).requires_grad_(False)
        self._pairs = list(zip(self.mean.parameters(), learning.parameters(), strict=True))
        self._adam, self._steps = torch.optim.Adam(learning.parameters()), 0

    def step(self, loss: Tensor, rate: float) -> None:
        """A step of Adam; the mean follows, faster at first: its beginning is forgotten."""
        self._adam.param_groups[0]["lr"] = rate
        self._adam.zero_grad(set_to_none=True)
        loss.backward()
        self._adam.step()
        self._steps += 1
        share = max(1 - self.decay, FORGET / (FORGET + self._steps))
        with torch.no_grad():
            for mean, weights in self._pairs:
                mean.lerp_(weights, share)


class SpreadModule(nn.Module):
    """Observations in, value and variance of the return out, in the units of the rewards.

    The ``module`` of a :class:`retvar.deep.Critic`, an ordinary torch module, differentiable.

    >>> generator = torch.Generator().manual_seed(0)
    >>> nets = {name: Ensemble(2, 1, (4,), generator, name == "variance")
    ...         for name in ("value", "variance")}
    >>> units = {"centre": [0.0], "width": [1.0], "shift": 3.0, "scale": 2.0}
    >>> value, variance = SpreadModule(nets, units, less_square=False)(torch.zeros(1, 1))
    >>> round(value.item(), 3), round(variance.item(), 3)
    (3.0, 4.0)
    """

    def __init__(
        self, nets: dict[str, Ensemble], scales: dict[str, Any], less_square: bool
    ) -> None:
        super().__init__()
        self.nets = nn.ModuleDict(nets)
        self.less_square = less_square
        for name, given in scales.items():
            self.register_buffer(name, torch.as_tensor(given, dtype=torch.float64))

    def members(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Value and variance by each member, [member, row]."""
        x = ((observations - self.centre) / self.width).float()
        value, second = self.nets["value"](x).double(), self.nets["variance"](x).double()
        if self.less_square:
            second = second - value**2
        return self.shift + self.scale * value, self.scale**2 * second

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Value and variance of rows of observations: the means over the members."""
        value, variance = self.members(observations)
        return value.mean(0), variance.mean(0)
