"""Stein's equation X = C + AXAᵀ, solved by doubling, with a bound on the error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["solve_stein"]

Array = NDArray[np.float64]
EPSILON = float(np.finfo(np.float64).eps)
MOST_DOUBLINGS = 60
MOST_ERROR = 1e-7  # of the solution, relative; a larger bound gives no solution


def solve_stein(A: Array, C: Array) -> Array | None:
    """Solve X = C + AXAᵀ for a symmetric C; None: not to a relative accuracy of 10⁻⁷.

    X is the sum of AᵏC(Aᵏ)ᵀ. Each doubling adds as many terms as there are already. With the
    power A₂ₖ at hand, the terms that are still missing are at most ‖A₂ₖ‖²/(1 − ‖A₂ₖ‖²) times the
    sum. A residual E changes the solution by at most ‖Y‖‖E‖ with Y = I + AYAᵀ, since a positive
    map is largest at the identity.

    >>> solve_stein(np.array([[0.5]]), np.array([[3.0]]))
    array([[4.]])
    >>> solve_stein(np.array([[1.0]]), np.array([[3.0]])) is None
    True
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        X, Y = _doubled(A, C), _doubled(A, np.eye(len(A)))
        if X is None or Y is None:
            return None
        residual = float(np.linalg.norm(X - C - A @ X @ A.T)) + EPSILON * float(np.linalg.norm(X))
        error = residual * float(np.linalg.norm(Y))
        accurate = error <= MOST_ERROR * float(np.linalg.norm(X))
    return X if accurate else None


def _doubled(A: Array, C: Array) -> Array | None:
    """The sum of all AᵏC(Aᵏ)ᵀ; None if it does not converge."""
    X, power = C, A
    for _ in range(MOST_DOUBLINGS):
        X = X + power @ X @ power.T
        X = (X + X.T) / 2
        power = power @ power
        size = float(np.linalg.norm(power))
        if not np.isfinite(size):
            return None
        if size * size <= EPSILON:
            return X if np.all(np.isfinite(X)) else None
    return None
