"""The operator of a recursion as a polynomial of the step sizes.

An update multiplies its error by the step once, so that the entries of the operator are polynomials
of the steps. A few operators determine them, and any other is then a sum of these.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from retvar.curves.problems import Problem
from retvar.curves.recursion import Recursion, Sparse
from retvar.jit import compiled
from retvar.networks import MEAN, VALUE, VARIANCE

__all__ = ["StepPolynomial"]

Array = NDArray[np.float64]
POWERS = {VALUE: 4, MEAN: 4, VARIANCE: 2}  # largest power of each step in any product of degree 4
NODES = (0.93, 0.07, 0.5, 0.26, 0.74)  # steps at which operators are made
CHECK = (0.61, 0.37, 0.17)  # steps at which the polynomial is compared with an operator
TOLERANCE = 1e-11  # largest deviation there, relative to the largest entry


class StepPolynomial:
    """Operators of one problem for any steps of the nodes that are free.

    Attributes
    ----------
    holds
        Whether the polynomial agrees with an operator that it was not made from.
    """

    def __init__(self, problem: Problem, free: list[int]) -> None:
        self.problem, self.free = problem, free
        ranges = [range(POWERS[place] + 1) for place in free]
        reads_after = problem.learner.network.second_moment is not None
        degrees = [2 if place == VARIANCE else 1 for place in free]
        self.powers = np.array(
            [
                powers
                for powers in itertools.product(*ranges)
                if reads_after or np.dot(powers, degrees) <= POWERS[VALUE]
            ]
        )
        nodes = np.array(NODES)[self.powers]
        made = [self._recursion(steps).operator for steps in nodes]
        self._shape, places = _common_pattern(made)
        entries = np.array([_entries(operator, places) for operator in made])
        self.coefficients = np.linalg.solve(self._terms(nodes), entries)
        keys = places // self._shape[1], places % self._shape[1]
        self._indptr = np.searchsorted(keys[0], np.arange(self._shape[0] + 1)).astype(np.int32)
        self._columns = keys[1].astype(np.int32)
        self.holds = self._agrees()

    def operator(self, steps: Array) -> Sparse:
        """The operator with some steps of the nodes that are free."""
        data = self._terms(np.asarray(steps)[None])[0] @ self.coefficients
        return scipy.sparse.csr_array((data, self._columns, self._indptr), shape=self._shape)

    def walked(self, steps: Array, x: Array, count: int) -> tuple[Array, Array]:
        """The unknowns after `count` steps from x, and their sum over these steps."""
        data = self._terms(np.asarray(steps)[None])[0] @ self.coefficients
        now, total = x.copy(), np.zeros_like(x)
        _walk()(self._indptr, self._columns, data, now, np.empty_like(x), total, count)
        return now, total

    def _terms(self, steps: Array) -> Array:
        """Products of powers of the steps [point, term]."""
        return np.asarray((steps[:, None, :] ** self.powers).prod(axis=2))

    def _recursion(self, given: Array) -> Recursion:
        steps = self.problem.steps
        steps[self.free] = given
        recursion, _ = self.problem.with_steps(steps).recursion()
        return recursion

    def _agrees(self) -> bool:
        steps = np.array(CHECK[: len(self.free)])
        right = self._recursion(steps).operator
        off = abs(self.operator(steps) - right)
        return bool(off.max() <= TOLERANCE * abs(right).max())


def _walk_rows(
    indptr: Any, columns: Any, data: Any, now: Any, after: Any, total: Any, count: Any
) -> None:
    """Multiply a vector by a sparse matrix many times, and sum all the products."""
    for _ in range(count):
        for i in range(now.size):
            x = 0.0
            for k in range(indptr[i], indptr[i + 1]):
                x += data[k] * now[columns[k]]
            after[i] = x
        for i in range(now.size):
            now[i] = after[i]
            total[i] += after[i]


@cache
def _walk() -> Any:
    return compiled(_walk_rows, nogil=True)


def _common_pattern(operators: list[Sparse]) -> tuple[tuple[int, int], NDArray[np.int64]]:
    """The shape of operators, and the places (row × columns + column) of all their entries."""
    shape = operators[0].shape
    return shape, np.unique(np.concatenate([_places(operator) for operator in operators]))


def _places(operator: Sparse) -> NDArray[np.int64]:
    found = operator.tocoo()
    return np.asarray(found.row.astype(np.int64) * operator.shape[1] + found.col, dtype=np.int64)


def _entries(operator: Sparse, places: NDArray[np.int64]) -> Array:
    """Entries of an operator at some places."""
    found = np.zeros(places.size)
    found[np.searchsorted(places, _places(operator))] = operator.tocoo().data
    return found
