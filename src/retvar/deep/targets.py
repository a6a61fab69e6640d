"""TD(κ) targets along a stream, for networks that are fitted: whole columns at once, on any device.

A node's targets are its predictions plus what its trace would have moved them by: Σ (γκ)ᵏδ. Rewards
and discounts of the nodes are those of :mod:`retvar.td.networks`, applied to tensors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.td import networks, rules
from retvar.td.networks import VALUE, VARIANCE, Network, Reading, Readings, Transition


def discounted_sums(x: Tensor, decay: Tensor) -> Tensor:
    """yₜ = xₜ + decayₜ yₜ₊₁ along the first dimension, by doubling: log₂ of the reach in passes.

    >>> discounted_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.5, 0.5, 0.5]))
    tensor([3., 4., 4.])
    """
    total, reach, step = x.clone(), decay[:-1], 1
    while step < len(total) and bool((reach != 0).any()):
        total[:-step] += reach * total[step:]
        reach = reach[:-step] * reach[step:]
        step *= 2
    return total


class Step(NamedTuple):
    """What is known of transitions besides predictions, each a tensor [time, …]."""

    transition: Any  #: R, γ′ (0 at an end), λ′ and η, as a :class:`retvar.td.Transition`
    going: Tensor  #: 1 where the next row goes on from here, otherwise 0
    rho: Tensor  #: weight of the value node's trace
    rho_bar: Tensor  #: weight of the other nodes' traces


def node_targets(
    network: Network, place: int, step: Step, read: dict[int, Reading], kappa: float
) -> tuple[Reading, Tensor]:
    """What the node at a place says of the transitions, and what it is to be fitted to.

    ``read[place]`` has its predictions (`now`, `after`), and that of the nodes before it their
    TD errors as well.
    """
    node = network.at(place)
    assert node is not None
    x, own = step.transition, read[place]
    nothing = read[VALUE]
    readings = Readings(*(read.get(k, nothing) for k in range(len(Readings._fields))))
    discount: Any = node.discount(x)
    error: Any = rules.td_error(node.reward(x, readings), discount, own.after, own.now)  # type: ignore[type-var]
    weight: Any = step.rho if node.by_rho else step.rho_bar
    moved = discounted_sums(weight * error, weight * discount * kappa * step.going)
    return own._replace(error=error, updated=own.after), own.now + moved


def spread_targets(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    variance: Tensor,
    next_variance: Tensor,
    *,
    gamma: float | Tensor,
    terminated: Tensor,
    truncated: Tensor | None = None,
    lam: float | Tensor = 1.0,
    kappa: float = 0.95,
    rho: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Targets for a value network and a variance network of your own, by the direct method.

    All tensors are [time] or [time, environment]; predictions carry no gradient into the result.
    Fit both networks to their targets by :func:`retvar.deep.spread_loss`.

    Parameters
    ----------
    reward, value, next_value, variance, next_variance
        Of each transition: its reward; what the networks say of the observation and of the one
        that follows. After an end what follows has no meaning; after a truncation it is the last
        observation of the episode, not the first of the next.
    gamma, lam
        γ and λ of the return: numbers, or one for each transition.
    terminated, truncated
        Whether the episode ended there; whether it was cut off there. The last row counts as cut.
    kappa
        How far targets reach: 0 is TD(0), 1 is Monte Carlo.
    rho
        Importance ratios, off-policy: the targets are those of the target policy.

    Examples
    --------
    >>> one, none = torch.ones(3), torch.zeros(3)
    >>> value, variance = spread_targets(one, none, none, none, none, gamma=0.5, kappa=1.0,
    ...                                  terminated=torch.tensor([0, 0, 1]))
    >>> value, variance
    (tensor([1.7500, 1.5000, 1.0000]), tensor([1.3125, 1.2500, 1.0000]))
    """
    given = {
        "value": value, "next_value": next_value, "variance": variance, "terminated": terminated,
        "next_variance": next_variance, "truncated": truncated, "rho": rho,
    }  # fmt: skip
    factors = {"gamma": gamma, "lam": lam, "kappa": kappa}
    for name, column in (given | factors).items():
        if isinstance(column, Tensor) and column.shape not in (reward.shape, ()):
            remedy = f"must have the shape of reward, {tuple(reward.shape)}"
            raise InputError(name, tuple(column.shape), remedy)
    gamma, lam, kappa = (
        x if isinstance(x, Tensor) else float(arguments.unit_interval(name, x, 1)[0])
        for name, x in factors.items()
    )
    with torch.no_grad():
        ends = terminated.to(reward.dtype)
        going = 1 - ends if truncated is None else (1 - ends) * (1 - truncated.to(reward.dtype))
        one = torch.ones_like(reward)
        weight = one if rho is None else rho
        transition: Any = Transition(reward, gamma * (1 - ends), lam * one, one)  # type: ignore[arg-type]
        step = Step(transition, going, weight, weight)
        network, read = networks.NETWORKS[networks.DEFAULT], {}
        found = []
        pairs = {VALUE: (value, next_value), VARIANCE: (variance, next_variance)}
        for place, (now, after) in pairs.items():
            read[place] = Reading(now, after, 0.0, after)  # its TD error comes next
            read[place], target = node_targets(network, place, step, read, kappa)
            found.append(target)
    return found[0], found[1]
