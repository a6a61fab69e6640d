"""The operator of a recursion in block triangular form: linear systems and eigenvalues by block.

A monomial depends on monomials of lower degree, and of the same degree on those with fewer factors
of the variance and then of the mean. So the operator is block triangular, a block for each number
of factors of each node. Blocks are nonnegative where no step overshoots its target.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg
from numpy.typing import NDArray

from retvar.curves.recursion import Recursion, Sparse
from retvar.errors import ConvergenceError
from retvar.linear import Resolvent
from retvar.networks import MEAN, VALUE, VARIANCE

__all__ = ["Triangle"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MAX_DENSE = 40  # most unknowns for which all eigenvalues are computed
TOLERANCE = 1e-11  # of eigenvalues of larger matrices
RESIDUAL = 1e-10  # relative; a larger one raises a ConvergenceError


class Block(NamedTuple):
    """Unknowns with the same numbers of factors."""

    unknowns: Integers
    learns: bool  #: whether a factor is a weight that learns
    rows: Sparse  #: rows of the operator
    own: Sparse  #: those columns of it that belong to the block


class Triangle:
    """A matrix over the unknowns of a recursion, in block triangular form."""

    def __init__(self, recursion: Recursion, matrix: Sparse) -> None:
        self.recursion, self.matrix = recursion, matrix
        self._solvers: dict[int, Any] = {}

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks, each after those that it depends on."""
        r = self.recursion
        powers = r.monomials.powers(r.place_of)
        missing = VARIANCE + 1 - powers.shape[1]
        powers = np.pad(powers, ((0, 0), (0, missing)))
        columns = [powers[:, VALUE], powers[:, MEAN], powers[:, VARIANCE], r.monomials.degree]
        signature, group = np.unique(np.stack(columns[::-1], 1), axis=0, return_inverse=True)
        learns = [r.nodes[p].step > 0 if p in r.nodes else False for p in (VARIANCE, MEAN, VALUE)]
        found = []
        for k, counts in enumerate(signature):
            members = np.flatnonzero(group.ravel() == k)
            offsets = np.arange(r.states)[:, None] * r.monomials.count
            unknowns = (offsets + members).ravel()
            rows = self.matrix[unknowns]
            moving = bool(np.any((counts[1:] > 0) & np.array(learns)))
            found.append(Block(unknowns, moving, rows, rows[:, unknowns].tocsr()))
        return found

    @cached_property
    def radius(self) -> float:
        """The largest modulus of an eigenvalue of the blocks with weights that learn."""
        return max((_radius(block.own) for block in self.blocks if block.learns), default=0.0)

    def solve(self, b: Array, known: Array | None = None) -> Array:
        """Solve x = Mx + b by block; `known` gives x where nothing learns."""
        x = np.zeros_like(b)
        for k, block in enumerate(self.blocks):
            if known is not None and not block.learns:
                x[block.unknowns] = known[block.unknowns]
                continue
            right = b[block.unknowns] + block.rows @ x
            if k not in self._solvers:
                self._solvers[k] = _solver(block.own)
            x[block.unknowns] = self._solvers[k](right)
        return x


def _radius(M: Sparse) -> float:
    """The spectral radius of a block: the largest of its strongly connected parts.

    Whole blocks may have many equal eigenvalues with few eigenvectors, as those of chains do.
    """
    if not np.isfinite(M.data).all():  # steps whose powers overflow
        return np.inf
    _, part = scipy.sparse.csgraph.connected_components(M, connection="strong")
    sizes = np.bincount(part)
    alone = sizes[part] == 1
    largest = float(np.abs(M.diagonal()[alone]).max(initial=0.0))
    order = np.argsort(part, kind="stable")
    for members in np.split(order, np.cumsum(sizes)[:-1]):
        if members.size > 1:
            own = M[members][:, members]
            if _norm(own) > largest:
                largest = max(largest, _radius_of_part(own))
    return largest


def _norm(M: Sparse) -> float:
    """A bound on the spectral radius: the largest sum of a row or of a column."""
    size = abs(M)
    return float(min(size.sum(axis=1).max(), size.sum(axis=0).max()))


def _radius_of_part(M: Sparse) -> float:
    """The spectral radius of a matrix that is strongly connected."""
    if M.shape[0] <= MAX_DENSE:
        return float(np.abs(np.linalg.eigvals(M.toarray())).max())
    which = "LR" if M.data.min() >= 0 else "LM"  # M ≥ 0: its radius is an eigenvalue
    first = np.linspace(1.0, 1.1, M.shape[0])
    try:
        found = scipy.sparse.linalg.eigs(
            M, k=1, which=which, v0=first, ncv=40, maxiter=1_000, tol=TOLERANCE,
            return_eigenvectors=False,
        )  # fmt: skip
    except scipy.sparse.linalg.ArpackNoConvergence:
        message = f"the largest eigenvalue of {M.shape[0]:,} unknowns was not found"
        raise ConvergenceError(message) from None
    return float(np.abs(found[0]))


def _solver(M: Sparse) -> Any:
    """A function that solves (I − M)x = b."""
    if M.nnz == 0 or M.data.min() >= 0:
        resolvent = Resolvent(M)
        return lambda b: resolvent.solve(b).x
    factors = scipy.sparse.linalg.splu((scipy.sparse.eye_array(M.shape[0]) - M).tocsc())

    def solve(b: Array) -> Array:
        x = factors.solve(b)
        x = x + factors.solve(b - (x - M @ x))
        left = np.abs(b - (x - M @ x)).max(initial=0.0)
        if not left <= RESIDUAL * max(np.abs(b).max(initial=0.0), np.abs(x).max(initial=0.0)):
            raise ConvergenceError(f"a system of {M.shape[0]:,} unknowns was not solved")
        return np.asarray(x)

    return solve
