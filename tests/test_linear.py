"""Linear systems: all solvers agree, or raise; spectral radii are certified."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from retvar.mdp import linear
from retvar.mdp.linear import Resolvent, expanding, reaching, spectral_radius
from retvar.support.errors import ConvergenceError


def walk_matrix(n: int, order=None, gamma: float = 1.0) -> scipy.sparse.csr_array:
    """A walk with drift that ends on the right; its states in any order."""
    M = scipy.sparse.diags_array([0.7 * np.ones(n - 1), 0.3 * np.ones(n - 1)], offsets=[1, -1])
    M = gamma * M.tocsr()
    return M if order is None else M[order][:, order].tocsr()


def ring(n: int, odd: float, even: float) -> scipy.sparse.csr_array:
    """Each state leads to the next, with one of two weights in turn."""
    index = np.arange(n)
    weights = np.where(index % 2, odd, even)
    return scipy.sparse.csr_array((weights, (index, (index + 1) % n)), shape=(n, n))


def garnet(n: int, gamma: float = 0.99, seed: int = 0) -> scipy.sparse.csr_array:
    rng = np.random.default_rng(seed)
    rows, columns = np.repeat(np.arange(n), 5), rng.integers(n, size=5 * n)
    weights = gamma * rng.dirichlet(np.ones(5), n).ravel()
    return scipy.sparse.csr_array((weights, (rows, columns)), shape=(n, n))


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("n", [100, 800, 4_000])
def test_all_sizes_solve_to_rounding(n, transpose):
    M = garnet(n)
    x = np.random.default_rng(1).normal(size=(n, 2))
    b = x - (M.T if transpose else M) @ x
    solved = Resolvent(M).solve(b, transpose=transpose)
    assert_allclose(solved.x, x, atol=1e-10)
    assert solved.residual <= linear.TARGET_RESIDUAL


def test_a_long_walk_in_order_is_factorised():
    n = 200_000
    solved = Resolvent(walk_matrix(n)).solve(np.ones(n))
    assert solved.solver == "sparse LU"
    inside = slice(n // 2, n - 100)  # drift 0.4: 2.5 steps for each state, the wall aside
    assert_allclose(np.diff(solved.x[inside]), -2.5, rtol=1e-6)


@pytest.mark.parametrize("transpose", [False, True])
def test_a_long_shuffled_walk_is_reordered(transpose):
    """Krylov methods need about n steps here; reverse Cuthill–McKee finds the band."""
    n = 6_000
    order = np.random.default_rng(0).permutation(n)
    b = np.random.default_rng(1).normal(size=n)
    straight = Resolvent(walk_matrix(n)).solve(b, transpose=transpose)
    shuffled = Resolvent(walk_matrix(n, order)).solve(b[order], transpose=transpose)
    assert shuffled.solver == "sparse LU"
    assert_allclose(shuffled.x, straight.x[order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", [5, 64, 65, 300])
@pytest.mark.parametrize("seed", range(3))
def test_radius_is_on_the_right_side_of_one(n, seed):
    rng = np.random.default_rng(seed)
    M = garnet(n, 1.0, seed)
    M.data = M.data * rng.uniform(0, 2, M.nnz)
    exact = float(np.max(np.abs(np.linalg.eigvals(M.toarray()))))
    for wanted in (0.5, 0.97, 1.03, 2.0):
        scaled = M * (wanted / exact)
        radius = spectral_radius(scaled)
        assert radius.below_one == (wanted < 1)
        if radius.kind == "exact":
            assert radius.value == pytest.approx(wanted)
        elif radius.kind == "upper bound":
            assert wanted * (1 - 1e-9) <= radius.value < 1
        else:
            assert 1 <= radius.value <= wanted * (1 + 1e-9)


def test_powers_certify_what_row_sums_do_not():
    """Row sums up to 2, but M² has row sums 0.5: the radius is √0.5, and the bound must hold."""
    n = 200
    M = ring(n, 2.0, 0.25)
    radius = spectral_radius(M)
    assert radius.kind == "upper bound"
    assert np.sqrt(0.5) * (1 - 1e-12) <= radius.value < 1
    assert Resolvent(M).inverse_norm >= np.max(np.linalg.inv(np.eye(n) - M.toarray()).sum(axis=1))


def test_a_solution_without_correct_digits_raises():
    n = 60
    M = np.zeros((n, n))
    for i in range(n):
        M[i, max(i - 1, 0)] += 0.75
        if i + 1 < n:
            M[i, i + 1] += 0.25
    with pytest.raises(ConvergenceError):
        Resolvent(scipy.sparse.csr_array(M)).solve(np.ones(n))


def test_reaching_and_expanding_equal_what_powers_of_the_matrix_say():
    """Paths by repeated squaring of the graph; parts by mutual reach; radii by all eigenvalues."""
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(300):
        n = int(rng.integers(1, 9))
        dense = np.where(rng.random((n, n)) < 0.25, rng.uniform(0.2, 2.0, (n, n)), 0.0)
        M = scipy.sparse.csr_array(dense)
        paths = np.linalg.matrix_power(np.eye(n, dtype=int) + (dense > 0), n) > 0
        goal = rng.random(n) < 0.3
        np.testing.assert_array_equal(reaching(M, goal), (paths & goal).any(axis=1))
        same = paths & paths.T
        grows = [np.abs(np.linalg.eigvals(dense[np.ix_(row, row)])).max() >= 1 for row in same]
        np.testing.assert_array_equal(expanding(M), grows)
        seen += 0 < sum(grows) < n
    assert seen > 50


def test_parts_that_weak_links_join_have_a_radius_too():
    """The eigenvector has entries of 1e-14, of which LAPACK knows no digit."""
    M = np.array([[1.2, 1e-7, 0.0], [1e-7, 0.3, 1e-7], [1e-7, 0.0, 0.2]])
    radius = spectral_radius(scipy.sparse.csr_array(M))
    assert radius.kind == "exact"
    assert radius.value == pytest.approx(1.2)


def test_the_error_of_a_badly_scaled_system_is_that_of_its_states():
    """Large weights of edges that lead to small numbers amplify nothing."""
    M = scipy.sparse.csr_array([[0.0, 1e9, 0.0], [0.0, 0.0, 1e9], [0.0, 0.0, 0.5]])
    b = np.array([1.0, 1.0, 0.0])
    with pytest.raises(ConvergenceError):
        Resolvent(M).solve(b)
    solved = Resolvent(M).solve(b, by_state=True)
    assert_allclose(solved.x, [1 + 1e9, 1, 0])
    assert solved.error < 1e-12
