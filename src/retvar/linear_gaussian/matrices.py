"""Validate matrices: shapes, finite entries, covariances, spectral radii."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError

__all__ = ["covariance", "matrix", "root", "spectral_radius", "square", "symmetric"]

Array = NDArray[np.float64]
MOST_ROWS = 1_000
LARGEST, SMALLEST = 1e60, 1e-60  # of the largest entry, unless it is 0
ROUNDING = 1e-10  # relative asymmetry and negative eigenvalues that count as rounding


def matrix(field: str, given: Any, rows: int, columns: int) -> Array:
    """Return a matrix of this shape; of a single row or column also from a list of numbers.

    >>> matrix("K", [1.0, 2.0], 1, 2)
    array([[1., 2.]])
    >>> matrix("K", [1.0, 2.0], 2, 2)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: K = an array of shape (2,): must have shape (2, 2)
    """
    found = arguments.floats(field, given, "a matrix of numbers")
    shape = found.shape
    if 1 in (rows, columns) and found.ndim < 2 and found.size == rows * columns:
        found = found.reshape(rows, columns)
    if found.shape != (rows, columns):
        remedy = f"must have shape {(rows, columns)}"
        raise InputError(field, f"an array of shape {shape}" if shape else float(found), remedy)
    for where in np.argwhere(~np.isfinite(found))[:1].tolist():
        remedy = "must be a finite number"
        raise InputError(f"{field}{where}".replace(" ", ""), f"{found[tuple(where)]:g}", remedy)
    _refuse_scale(field, found)
    return found


def square(field: str, given: Any, size: int | None = None) -> Array:
    """Return a square matrix; a number is that many times the identity.

    >>> square("Q", 2.0, size=2)
    array([[2., 0.],
           [0., 2.]])
    >>> square("F", [[0.5, 0.1]])
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: F = an array of shape (1, 2): must be a square matrix
    """
    found = arguments.floats(field, given, "a matrix of numbers")
    if size is None:
        if found.ndim and (found.ndim != 2 or found.shape[0] != found.shape[1] or not found.size):
            raise InputError(field, f"an array of shape {found.shape}", "must be a square matrix")
        size = found.shape[0] if found.ndim else 1
    if size > MOST_ROWS:
        raise InputError(field, f"{size:,} rows", f"must have at most {MOST_ROWS:,}")
    if found.ndim == 0:
        found = float(arguments.numbers(field, found, 1)[0]) * np.eye(size)
    return matrix(field, found, size, size)


def symmetric(field: str, given: Any, size: int) -> Array:
    """Return the symmetric part, (X + Xᵀ)/2, which is all that xᵀXx depends on.

    >>> symmetric("Q", [[1.0, 2.0], [0.0, 1.0]], 2)
    array([[1., 1.],
           [1., 1.]])
    """
    found = square(field, given, size)
    return np.asarray((found + found.T) / 2)


def covariance(field: str, given: Any, size: int) -> Array:
    """Return a covariance: symmetric, without negative eigenvalues.

    >>> covariance("S", [[1.0, 2.0], [2.0, 1.0]], 2)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: S = a matrix with eigenvalue -1: a covariance has none below 0
    """
    found = square(field, given, size)
    apart = np.abs(found - found.T)
    if apart.max() > ROUNDING * np.abs(found).max():
        i, j = np.unravel_index(int(np.argmax(apart)), apart.shape)
        shown = f"{found[i, j]:.12g} and {found[j, i]:.12g}"
        raise InputError(f"{field}[{i},{j}] and {field}[{j},{i}]", shown, "must be equal")
    found = (found + found.T) / 2
    eigenvalues = np.linalg.eigvalsh(found)
    if eigenvalues[0] < -ROUNDING * abs(eigenvalues[-1]):
        shown = f"a matrix with eigenvalue {eigenvalues[0]:.6g}"
        raise InputError(field, shown, "a covariance has none below 0")
    return np.asarray(found)


def root(covariance: Array) -> Array:
    """Return a matrix L with LLᵀ equal to the covariance, which may be singular.

    >>> root(np.array([[4.0, 0.0], [0.0, 0.0]])).round(6)
    array([[0., 2.],
           [0., 0.]])
    """
    eigenvalues, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(eigenvalues, 0.0)))


def spectral_radius(given: Array) -> float:
    """The largest absolute eigenvalue.

    >>> round(spectral_radius(np.array([[0.0, 0.5], [-0.5, 0.0]])), 12)
    0.5
    """
    return float(np.max(np.abs(np.linalg.eigvals(given))))


def _refuse_scale(field: str, found: Array) -> None:
    """Refuse numbers whose products leave the range of double precision."""
    largest = float(np.max(np.abs(found)))
    if largest and not SMALLEST <= largest <= LARGEST:
        remedy = f"must lie between {SMALLEST:g} and {LARGEST:g}, or be 0; use other units"
        raise InputError(f"largest entry of {field}", f"{largest:.6g}", remedy)
