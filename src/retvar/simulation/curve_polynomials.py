"""Polynomials of the weights of a learner, and all monomials up to a weighted degree.

A monomial is known by its key: the sum of the keys of its factors, modulo 2⁶⁴. Keys of variables
are random multiples of 8, so that different monomials have different keys (which is checked), a
product of monomials has the sum of their keys, and the last three bits are free for the power of
the noise of the reward.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import comb
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from retvar.support.errors import ConvergenceError

Array = NDArray[np.float64]
Keys: TypeAlias = NDArray[np.uint64]
Integers = NDArray[np.int64]

DEGREE = 4  # weighted degree of the square of a variance
NOISE = np.uint64(1)  # key of the noise
NOISE_BITS = np.uint64(7)
NOISE_MOMENTS = np.array([1.0, 0.0, 1.0, 0.0, 3.0, 0.0, 15.0, 0.0])  # E[Zᵏ] of a normal Z


class Polynomial:
    """A polynomial of the variables and of the noise Z of a reward, with + − and ×.

    >>> x = Polynomial.of([8], [1.0])
    >>> (2 * x + 1) * (2 * x - 1)
    Polynomial({0: -1.0, 16: 4.0})
    """

    __slots__ = ("coefficients", "keys")
    __array_ufunc__ = None  # NumPy's numbers leave the arithmetic to this class

    def __init__(self, keys: Keys, coefficients: Array) -> None:
        self.keys, self.coefficients = keys, coefficients

    @classmethod
    def of(cls, keys: Any, coefficients: Any) -> Polynomial:
        """Sum terms with the same key, and leave out those with coefficient 0."""
        keys = np.asarray(keys, dtype=np.uint64)
        order = keys.argsort(kind="stable")
        keys = keys[order]
        first = np.ones(keys.size, dtype=bool)
        np.not_equal(keys[1:], keys[:-1], out=first[1:])
        places = first.nonzero()[0]
        coefficients = np.asarray(coefficients, dtype=np.float64)[order]
        total = np.add.reduceat(coefficients, places) if keys.size else coefficients
        used = total != 0
        return cls(keys[places][used], total[used])

    @classmethod
    def constant(cls, number: float) -> Polynomial:
        """A polynomial of degree 0."""
        return cls.of([0], [number])

    @property
    def expected(self) -> Polynomial:
        """The expectation over the noise, which is standard normal."""
        power = self.keys & NOISE_BITS
        if not power.any():
            return self
        moments = NOISE_MOMENTS[power.astype(np.int64)]
        return Polynomial.of(self.keys - power, self.coefficients * moments)

    def __add__(self, other: Any) -> Polynomial:
        other = _polynomial(other)
        keys = np.concatenate([self.keys, other.keys])
        return Polynomial.of(keys, np.concatenate([self.coefficients, other.coefficients]))

    def __mul__(self, other: Any) -> Polynomial:
        if not isinstance(other, Polynomial):
            return Polynomial(self.keys, self.coefficients * float(other)) if other else NOTHING
        keys = self.keys[:, None] + other.keys
        return Polynomial.of(keys.ravel(), np.outer(self.coefficients, other.coefficients).ravel())

    def __neg__(self) -> Polynomial:
        return Polynomial(self.keys, -self.coefficients)

    def __sub__(self, other: Any) -> Polynomial:
        return self + -_polynomial(other)

    def __rsub__(self, other: Any) -> Polynomial:
        return _polynomial(other) - self

    __radd__ = __add__
    __rmul__ = __mul__

    def __repr__(self) -> str:
        terms = dict(zip(self.keys.tolist(), self.coefficients.tolist(), strict=True))
        return f"Polynomial({terms})"


NOTHING = Polynomial.of([], [])


def _polynomial(given: Any) -> Polynomial:
    return given if isinstance(given, Polynomial) else Polynomial.constant(float(given))


class Monomials:
    """All monomials of weighted degree up to 4, of variables of degrees 1 and 2.

    >>> found = Monomials(np.array([1, 2]))
    >>> found.count, found.degree.tolist()
    (9, [0, 1, 2, 2, 3, 3, 4, 4, 4])

    Attributes
    ----------
    factors
        Variables of each monomial with repetitions, padded with the number of variables.
    degree
        Weighted degree of each monomial.
    """

    def __init__(self, degrees: Integers) -> None:
        self.variables = degrees.size
        one, two = np.flatnonzero(degrees == 1), np.flatnonzero(degrees == 2)
        parts = [
            _products(one, d - 2 * k, two, k, self.variables)
            for d in range(DEGREE + 1)
            for k in range(d // 2 + 1)
        ]
        self.factors = np.concatenate(parts)
        self.degree: Integers = np.append(degrees, 0)[self.factors].sum(axis=1)
        random = np.random.default_rng(0).integers(0, 1 << 61, self.variables, dtype=np.uint64)
        self.variable_keys = np.append(random << np.uint64(3), np.uint64(0))
        self.keys = self.variable_keys[self.factors].sum(axis=1, dtype=np.uint64)
        self._order = np.argsort(self.keys)
        self._sorted = self.keys[self._order]
        if np.any(self._sorted[1:] == self._sorted[:-1]):
            raise ConvergenceError("two monomials have the same key")  # once in 10¹⁰ lists

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.keys.size)

    def positions(self, keys: Keys) -> Integers:
        """Positions of monomials in the list, by their keys."""
        place = np.minimum(np.searchsorted(self._sorted, keys), self.count - 1)
        if not np.array_equal(self._sorted[place], keys):
            raise ConvergenceError("an update raises the degree")  # no update does
        return np.asarray(self._order[place], dtype=np.int64)

    def affine(self, constant: float, variables: Integers, coefficients: Array) -> Polynomial:
        """Return constant + Σ coefficient × variable."""
        keys = np.append(self.variable_keys[variables], np.uint64(0))
        return Polynomial.of(keys, np.append(coefficients, constant))

    def at(self, points: Array) -> Array:
        """Each monomial at each of some points [point, variable]."""
        padded = np.concatenate([points, np.ones((points.shape[0], 1))], axis=1)
        found = padded[:, self.factors[:, 0]]
        for factor in self.factors.T[1:]:
            found = found * padded[:, factor]
        return found

    def powers(self, chosen: NDArray[np.bool_]) -> Integers:
        """Number of factors of each monomial among the variables that are chosen."""
        return np.asarray(np.append(chosen, False)[self.factors].sum(axis=1), dtype=np.int64)


def count_monomials(linear: int, quadratic: int) -> int:
    """Number of monomials of `linear` variables of degree 1 and `quadratic` of degree 2.

    >>> [n * count_monomials(n, n) for n in (5, 10, 20)]
    [1230, 17160, 309120]
    >>> [n * count_monomials(2 * n, n) for n in (5, 10, 20)]
    [6730, 129910, 3063620]
    """
    pairs = comb(quadratic + 1, 2)
    return comb(linear + 4, 4) + quadratic * comb(linear + 2, 2) + pairs


def _products(one: Integers, first: int, two: Integers, second: int, nothing: int) -> Integers:
    """Factors of all products of `first` variables of one list and `second` of another."""
    some, others = _choices(one, first), _choices(two, second)
    pairs = [np.repeat(some, len(others), axis=0), np.tile(others, (len(some), 1))]
    padding = np.full((len(pairs[0]), DEGREE - first - second), nothing, dtype=np.int64)
    return np.concatenate([*pairs, padding], axis=1)


def _choices(variables: Integers, number: int) -> Integers:
    """All choices of a number of variables, with repetitions."""
    found = list(combinations_with_replacement(variables.tolist(), number))
    return np.array(found, dtype=np.int64).reshape(len(found), number)
