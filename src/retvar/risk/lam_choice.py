"""A λ for each state from the error of its value and the variance of its return."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar import arguments, rules
from retvar.errors import InputError

__all__ = ["greedy_lam"]


def greedy_lam(value: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> NDArray[np.float64]:
    """λ of each state that trades the error of its value for the variance of its return.

    λ-greedy (White and White, 2016): λ = e²/(e² + V) with e = mean − value. A TD update that
    arrives in a state uses (1 − λ) value + λ return; this λ makes the mean squared error of that
    least, as if all later states had λ = 1. It is near 1 where the value is wrong by more than
    returns vary, and near 0 where it is right. A negative variance counts as 0; 0/0 is 0.

    Parameters
    ----------
    value
        Value of each state, to bootstrap from.
    mean, variance
        Mean and variance of the return from each state, such as those of a second learner with
        λ = κ = 1.

    Examples
    --------
    >>> import retvar as rv
    >>> chain = rv.domains.chain(lam=1.0)
    >>> truth = rv.solve(chain)
    >>> rv.greedy_lam([0.0, 3.0, 1.0, 1.0], truth.value, truth.variance)
    array([0.8       , 0.        , 0.33333333, 0.        ])
    """
    values = np.atleast_1d(arguments.floats("value", value, "a number or a list of numbers"))
    values = arguments.numbers("value", values)
    means = arguments.numbers("mean", mean, values.size)
    spread = np.maximum(arguments.numbers("variance", variance, values.size), 0.0)
    with np.errstate(over="ignore"):
        largest = np.maximum(np.abs(means - values), np.sqrt(spread))  # the unit: nothing overflows
    if not np.isfinite(largest).all():
        raise InputError("value", float(values[~np.isfinite(largest)][0]), "is too far from mean")
    chosen = np.zeros(values.size)
    some = largest > 0
    unit = largest[some]
    chosen[some] = rules.greedy_lam(
        (means - values)[some] / unit, (np.sqrt(spread)[some] / unit) ** 2
    )
    return chosen
