"""`LinearGaussian`: value and variance in closed form, and batches of sampled walks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import count

Array = NDArray[np.float64]
BLOCK = 1_000_000  # numbers in the states of a block
ROUNDING = 1e-10  # relative asymmetry and negative eigenvalues that count as rounding
EPSILON = float(np.finfo(np.float64).eps)
MOST_DOUBLINGS = 60
MOST_ERROR = 1e-7  # of a solution, relative; a larger bound gives no solution


class Control(NamedTuple):
    """The parts of a world with actions: x′ = Ax + B(u + n) + w with u = −Kx.

    See :meth:`retvar.mdp.domains.LinearGaussian.controlled`.

    >>> world = LinearGaussian.controlled(1.0, 1.0, 0.5, S=0.1, Q=1.0, R=0.2, gamma=0.9)
    >>> world.control.K, world.control.R
    (array([[0.5]]), array([[0.2]]))
    """

    A: Array
    B: Array
    K: Array
    S: Array  #: covariance of w
    Q: Array  #: cost of the state
    R: Array  #: cost of the action
    noise: Array  #: covariance of n


class LinearGaussian:
    """x′ = Fx + w with normal noise w ~ N(0, S), and the reward −xᵀQx of the state left.

    Value and variance of the λ-return are quadratic functions of the state, V(x) = −(xᵀPx + c) and
    v(x) = xᵀMx + m; `P`, `c`, `M` and `m` are attributes. The return never ends and is discounted
    by γ; the λ-return bootstraps from V. In place of a matrix, a number is that many times the
    identity. ``domains.linear_gaussian`` is another name of it.

    Parameters
    ----------
    F
        How the state moves. γρ(F)² must be below 1; the stationary distribution, and what starts
        from it, need ρ(F) below 1.
    S
        Covariance of the noise; it may be singular, or 0.
    Q
        Cost of the state. Only its symmetric part (Q + Qᵀ)/2 counts, and is kept. It may have
        negative eigenvalues.
    gamma, lam
        γ in [0, 1) and λ in [0, 1].

    Examples
    --------
    >>> world = LinearGaussian(F=[[0.8, 0.3], [-0.3, 0.8]], S=0.3, Q=1.0, gamma=0.95)
    >>> world
    LinearGaussian(2 dimensions, γ = 0.95, λ = 1, ρ(F) = 0.8544)
    >>> print(f"{world.value([1.0, 0.0]):.3f} ± {world.std([1.0, 0.0]):.3f}")
    -40.457 ± 14.040
    >>> world.variance([[0.0, 0.0], [3.0, 0.0]]).round(2)
    array([172.47, 394.47])
    """

    control: Control | None = None  #: what was folded into F, S and Q, if there are actions
    F: Array
    S: Array
    Q: Array
    gamma: float
    lam: float
    P: Array  #: P = Q + γFᵀPF
    c: float  #: c = γ tr(PS)/(1 − γ)
    M: Array  #: M = 4γ²FᵀPSPF + (γλ)²FᵀMF
    m: float  #: m = (2γ² tr((PS)²) + (γλ)² tr(MS))/(1 − (γλ)²)

    def __init__(
        self, F: ArrayLike, S: ArrayLike, Q: ArrayLike, gamma: float, lam: float = 1.0
    ) -> None:
        self.F = square("F", F)
        self.S = covariance("S", S, self.width)
        self.Q = symmetric("Q", Q, self.width)
        self.gamma = float(arguments.unit_interval("gamma", gamma, 1)[0])
        if self.gamma == 1:
            raise InputError("gamma", "1", "must lie in [0, 1)")
        self.lam = float(arguments.unit_interval("lam", lam, 1)[0])
        self.radius = float(np.max(np.abs(np.linalg.eigvals(self.F))))  #: ρ(F)
        self._solve()
        for array in (self.F, self.S, self.Q, self.P, self.M):
            array.setflags(write=False)

    @classmethod
    def controlled(
        cls,
        A: ArrayLike,
        B: ArrayLike,
        K: ArrayLike,
        S: ArrayLike,
        Q: ArrayLike,
        R: ArrayLike = 0.0,
        noise: ArrayLike = 0.0,
        *,
        gamma: float,
        lam: float = 1.0,
    ) -> LinearGaussian:
        """The world of a policy u = −Kx that steers x′ = Ax + B(u + n) + w.

        The action is disturbed on its way by n ~ N(0, `noise`). The reward −xᵀQx − uᵀRu is paid for
        the action that was intended, u, not for u + n. So F = A − BK, S + B·noise·Bᵀ and Q + KᵀRK
        take the places of F, S and Q, exactly. B is [dimension, action] and K [action, dimension].

        >>> gentle, strict = (
        ...     LinearGaussian.controlled(1.0, 1.0, K, S=0.1, Q=1.0, R=5.0, gamma=0.95)
        ...     for K in (0.3, 0.6)
        ... )
        >>> [f"{world.value([0.0]):.2f} ± {world.std([0.0]):.2f}" for world in (gentle, strict)]
        ['-5.15 ± 1.88', '-6.27 ± 1.64']
        """
        motion = square("A", A)
        d = len(motion)
        inputs = arguments.floats("B", B, "a matrix of numbers")
        k = inputs.shape[1] if inputs.ndim == 2 else 1
        control = Control(
            A=motion, B=matrix("B", inputs, d, k), K=matrix("K", K, k, d),
            S=covariance("S", S, d), Q=symmetric("Q", Q, d),
            R=symmetric("R", R, k), noise=covariance("noise", noise, k),
        )  # fmt: skip
        world = cls(
            motion - control.B @ control.K,
            control.S + control.B @ control.noise @ control.B.T,
            control.Q + control.K.T @ control.R @ control.K,
            gamma,
            lam,
        )
        for array in control:
            array.setflags(write=False)
        world.control = control
        return world

    @property
    def width(self) -> int:
        """Numbers in a state."""
        return len(self.F)

    @property
    def names(self) -> list[str]:
        """Names of the numbers of a state: x0, x1, …."""
        return [f"x{i}" for i in range(self.width)]

    def value(self, x: ArrayLike) -> Any:
        """V(x) = −(xᵀPx + c): of one state, or of states [n, dimension] as an array.

        >>> LinearGaussian(F=0.5, S=1.0, Q=1.0, gamma=0.8).value([[0.0], [1.0]])
        array([-5.  , -6.25])
        """
        return self._quadratic(x, -self.P, -self.c)

    def variance(self, x: ArrayLike) -> Any:
        """v(x) = xᵀMx + m, the variance of the λ-return."""
        return self._quadratic(x, self.M, self.m, lowest=0.0)

    def std(self, x: ArrayLike) -> Any:
        """The standard deviation of the λ-return.

        >>> LinearGaussian(F=0.5, S=0.0, Q=1.0, gamma=0.8).std([3.0])
        0.0
        """
        found = np.sqrt(self.variance(x))
        return found if found.ndim else float(found)

    @cached_property
    def stationary(self) -> Array:
        """Covariance Σ = S + FΣFᵀ of the stationary distribution; its mean is 0.

        >>> LinearGaussian(F=0.6, S=0.64, Q=1.0, gamma=0.9).stationary.round(12)
        array([[1.]])
        """
        remedy = "has no stationary distribution: the spectral radius of F must be below 1"
        if self.radius >= 1:
            raise InputError("spectral radius of F", f"{self.radius:.6g}", remedy)
        found = solve_stein(self.F, self.S)
        if found is None:
            remedy = "so close to 1, or F so far from normal, that rounding decides; lower it"
            raise InputError("spectral radius of F", f"{self.radius:.12g}", remedy)
        found.setflags(write=False)
        return found

    def sample(
        self, streams: int, steps: int, seed: Any = 0, *, start: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Sample walks: states [steps + 1, streams, dimension] and rewards [steps, streams].

        They start from the stationary distribution, or all from `start`: one state, or one for
        each stream. :func:`retvar.experience.from_linear_gaussian` gives a stream of transitions.

        >>> world = LinearGaussian(F=0.6, S=0.64, Q=1.0, gamma=0.9)
        >>> states, rewards = world.sample(streams=4, steps=10_000)
        >>> states.shape, rewards.shape, bool(abs(states.var() - 1) < 0.05)
        ((10001, 4, 1), (10000, 4), True)
        """
        return next(self.walks(streams, steps, seed, start=start, block=steps))

    def walks(
        self,
        streams: int,
        steps: int,
        seed: Any = 0,
        *,
        start: ArrayLike | None = None,
        block: int | None = None,
    ) -> Iterator[tuple[Array, Array]]:
        """Yield what `sample` returns in blocks of steps; the last states begin the next block.

        >>> world = LinearGaussian(F=0.6, S=0.64, Q=1.0, gamma=0.9)
        >>> [rewards.shape for _, rewards in world.walks(streams=4, steps=10, block=4)]
        [(4, 4), (4, 4), (2, 4)]
        """
        streams = arguments.integer("streams", streams, 1)
        left = steps = arguments.integer("steps", steps, 1)
        size = max(BLOCK // (streams * self.width), 1) if block is None else block
        size = arguments.integer("block", size, 1)
        rng = arguments.generator("seed", seed)
        x = self._started(streams, rng, start)
        forward, noise = self.F.T, root(self.S).T
        while left:
            taken = min(size, left)
            states = np.empty((taken + 1, streams, self.width))
            states[0] = x
            pushes = rng.normal(size=(taken, streams, self.width)) @ noise
            with np.errstate(over="ignore", invalid="ignore"):
                for t in range(taken):
                    np.matmul(states[t], forward, out=states[t + 1])
                    states[t + 1] += pushes[t]
                rewards = -((states[:-1] @ self.Q) * states[:-1]).sum(axis=-1)
            if not (np.isfinite(states[-1]).all() and np.isfinite(rewards).all()):
                raise InputError(
                    "spectral radius of F", f"{self.radius:.6g}",
                    f"lets the state grow beyond all bounds within {steps:,} steps; take fewer",
                )  # fmt: skip
            left -= taken
            x = states[-1]
            yield states, rewards

    def _solve(self) -> None:
        """Find P, c, M and m."""
        F, S, gamma = self.F, self.S, self.gamma
        if gamma * self.radius**2 >= 1:
            raise InputError(
                "γρ(F)²", f"{gamma:.6g} × {self.radius:.6g}² = {gamma * self.radius**2:.6g}",
                "must be below 1, or values are infinite; lower γ, or the spectral radius of F",
            )  # fmt: skip
        with np.errstate(over="ignore", invalid="ignore"):
            P = self._accurate("P", solve_stein(np.sqrt(gamma) * F.T, self.Q))
            PS, traced = P @ S, gamma * self.lam
            M = solve_stein(traced * F.T, 4 * gamma**2 * (F.T @ PS @ P @ F))
            M = self._accurate("M", M)
            c = gamma * np.trace(PS) / (1 - gamma)
            m = 2 * gamma**2 * np.sum(PS * PS.T) + traced**2 * np.trace(M @ S)
            m /= (1 - traced) * (1 + traced)
        self._accurate("c and m", np.array([c, m]))
        self.P, self.c, self.M, self.m = P, float(c), M, max(float(m), 0.0)

    def _accurate(self, what: str, found: Array | None) -> Array:
        """What was found, or an InputError if there is nothing, or nothing finite."""
        if found is not None and np.isfinite(found).all():
            return found
        remedy = (
            f"rounding leaves too little of {what}: lower γ or the spectral radius of F, or use "
            "units in which its entries are alike"
        )
        shown = f"{self.width} × {self.width}, γρ(F)² = {self.gamma * self.radius**2:.12g}"
        raise InputError("F", shown, remedy)

    def _points(self, x: ArrayLike) -> Array:
        points = arguments.floats("x", x, "states: arrays of numbers")
        if points.ndim == 0 or points.shape[-1] != self.width:
            remedy = f"must be a state of {self.width}, or states [n, {self.width}]"
            raise InputError("x", f"an array of shape {points.shape}", remedy)
        if not np.isfinite(points).all():
            raise InputError("x", points[~np.isfinite(points)][0], "must be finite numbers")
        return points

    def _quadratic(self, x: ArrayLike, form: Array, offset: float, lowest: float = -np.inf) -> Any:
        points = self._points(x)
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.maximum(((points @ form) * points).sum(axis=-1) + offset, lowest)
        if not np.isfinite(found).all():
            raise InputError("x", f"up to {np.abs(points).max():.6g}", "too large for its square")
        return found if found.ndim else float(found)

    def _started(self, streams: int, rng: np.random.Generator, start: ArrayLike | None) -> Array:
        """The first state of each stream."""
        if start is None:
            spread = root(self.stationary).T
            return np.asarray(rng.normal(size=(streams, self.width)) @ spread)
        points = self._points(start)
        if points.shape not in ((self.width,), (streams, self.width)):
            remedy = f"must be one state of {self.width}, or one for each of {streams:,} streams"
            raise InputError("start", f"an array of shape {points.shape}", remedy)
        return np.array(np.broadcast_to(points, (streams, self.width)))

    def __repr__(self) -> str:
        width = count(self.width, "dimension")
        if self.control is not None:
            width += f", {count(len(self.control.K), 'action')}"
        settings = f"γ = {self.gamma:g}, λ = {self.lam:g}"
        return f"LinearGaussian({width}, {settings}, ρ(F) = {self.radius:.4g})"


# ---------------------------------------------------------------------- matrices


def matrix(field: str, given: Any, rows: int, columns: int) -> Array:
    """Return a matrix of this shape; of a single row or column also from a list of numbers."""
    found = arguments.floats(field, given, "a matrix of numbers")
    shape = found.shape
    if 1 in (rows, columns) and found.ndim < 2 and found.size == rows * columns:
        found = found.reshape(rows, columns)
    if found.shape != (rows, columns):
        remedy = f"must have shape {(rows, columns)}"
        raise InputError(field, f"an array of shape {shape}" if shape else float(found), remedy)
    for i, j in np.argwhere(~np.isfinite(found))[:1].tolist():
        raise InputError(f"{field}[{i},{j}]", f"{found[i, j]:g}", "must be a finite number")
    return found


def square(field: str, given: Any, size: int | None = None) -> Array:
    """Return a square matrix; a number is that many times the identity."""
    found = arguments.floats(field, given, "a matrix of numbers")
    if size is None:
        if found.ndim and (found.ndim != 2 or found.shape[0] != found.shape[1] or not found.size):
            raise InputError(field, f"an array of shape {found.shape}", "must be a square matrix")
        size = found.shape[0] if found.ndim else 1
    if found.ndim == 0:
        found = arguments.number(field, float(found)) * np.eye(size)
    return matrix(field, found, size, size)


def symmetric(field: str, given: Any, size: int) -> Array:
    """Return the symmetric part, (X + Xᵀ)/2, which is all that xᵀXx depends on."""
    found = square(field, given, size)
    return np.asarray((found + found.T) / 2)


def covariance(field: str, given: Any, size: int) -> Array:
    """Return a covariance: symmetric, without negative eigenvalues.

    >>> covariance("S", [[1.0, 2.0], [2.0, 1.0]], 2)
    Traceback (most recent call last):
    ...
    retvar.InputError: S = a matrix with eigenvalue -1: a covariance has none below 0
    """
    found = square(field, given, size)
    apart = np.abs(found - found.T)
    if apart.max() > ROUNDING * np.abs(found).max():
        i, j = np.unravel_index(int(np.argmax(apart)), apart.shape)
        shown = f"{found[i, j]:.12g} and {found[j, i]:.12g}"
        raise InputError(f"{field}[{i},{j}] and {field}[{j},{i}]", shown, "must be equal")
    found = symmetric(field, found, size)
    eigenvalues = np.linalg.eigvalsh(found)
    if eigenvalues[0] < -ROUNDING * abs(eigenvalues[-1]):
        shown = f"a matrix with eigenvalue {eigenvalues[0]:.6g}"
        raise InputError(field, shown, "a covariance has none below 0")
    return found


def root(covariance: Array) -> Array:
    """Return a matrix L with LLᵀ equal to the covariance, which may be singular."""
    eigenvalues, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(eigenvalues, 0.0)))


def solve_stein(A: Array, C: Array) -> Array | None:
    """Solve X = C + AXAᵀ for a symmetric C; None: not to a relative accuracy of 10⁻⁷.

    A residual E changes the solution by at most ‖Y‖‖E‖ with Y = I + AYAᵀ, since a positive map is
    largest at the identity.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        X, Y = _doubled(A, C), _doubled(A, np.eye(len(A)))
        if X is None or Y is None:
            return None
        residual = float(np.linalg.norm(X - C - A @ X @ A.T)) + EPSILON * float(np.linalg.norm(X))
        accurate = residual * np.linalg.norm(Y) <= MOST_ERROR * np.linalg.norm(X)
    return X if accurate else None


def _doubled(A: Array, C: Array) -> Array | None:
    """The sum of all AᵏC(Aᵏ)ᵀ, each time of twice as many; None if it does not converge."""
    X, power = C, A
    for _ in range(MOST_DOUBLINGS):
        X = X + power @ X @ power.T
        X = (X + X.T) / 2
        power = power @ power
        if np.linalg.norm(power) ** 2 <= EPSILON:
            return X if np.all(np.isfinite(X)) else None
    return None
