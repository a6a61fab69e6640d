"""The paper's value-error experiment, which several benchmarks measure, and it in JAX."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import retvar as rv
from retvar.simulation.streams import stream_of

RATIOS = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]  # error of the frozen value, as a share of max |j|
ALPHAS = [0.05, 0.04, 0.03, 0.02, 0.01, 0.007, 0.005, 0.003, 0.001]
SEED = 0


def frozen(mdp: rv.MDP, alphas: list[float] = ALPHAS) -> list[rv.Learner]:
    """Direct learners of a value that is held fixed, then VTD with the same settings."""
    j = rv.solve(mdp).value
    starts = [rv.Noisy(j, uniform=ratio * float(np.abs(j).max())) for ratio in RATIOS]
    return rv.grid(rv.Direct, rv.VTD, alpha=0.0, value=starts, alpha_bar=alphas, learn_value=False)


@functools.cache
def experiment() -> tuple[rv.MDP, list[rv.Learner]]:
    """The MDP and the learners."""
    mdp = rv.domains.complex_mdp()
    return mdp, frozen(mdp)


@functools.cache
def jax_program(rows: bool, runs: int, steps: int) -> Callable[[], Any]:
    """The experiment in JAX: vmap over runs and lanes, scan over steps; compiled when first run.

    With `rows` the lanes are the last axis of the weights instead of a vmap, and eight steps are
    unrolled. Uniform numbers are drawn before the scan, which was faster than in it.
    """
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    mdp, _ = experiment()
    stream, used = stream_of(mdp, seed=SEED)
    e = mdp.edges
    lam = np.broadcast_to(mdp.lam, mdp.n_states)[e.next_state[used]]
    first, fan, threshold, other, follows, rewards, gammas, lams = (
        jnp.asarray(column)
        for column in (
            stream.first, stream.fan, stream.threshold, stream.other, stream.next_state,
            stream.reward, e.gamma[used], lam,
        )
    )  # fmt: skip

    def edge(u: Any, s: Any) -> Any:
        scaled = u * fan[s]
        k = scaled.astype(int)
        i = first[s] + k
        return jnp.where(scaled - k < threshold[i], i, other[i])

    def update(alpha, J, V, M, s, s2, R, gamma, lam):
        delta = R + gamma * J[s2] - J[s]
        G = R + gamma * (1 - lam) * J[s2]
        discount = (gamma * lam) ** 2
        direct = delta * delta + discount * V[s2] - V[s]
        vtd = G * G + 2 * gamma * lam * G * J[s2] + discount * M[s2] - M[s]
        return V.at[s].add(alpha * direct), M.at[s].add(alpha * vtd)

    lanes = update if rows else jax.vmap(update, (0,) * 4 + (None,) * 5)

    def one_run(key: Any, J: Any, alpha: Any) -> Any:
        def step(carry: Any, u: Any) -> Any:
            s, V, M = carry
            i = edge(u, s)
            V, M = lanes(alpha, J, V, M, s, follows[i], rewards[i], gammas[i], lams[i])
            return (follows[i], V, M), None

        uniforms = jax.random.uniform(key, (steps,), dtype=jnp.float64)
        begin = (jnp.zeros((), int), jnp.zeros_like(J), J * J)
        return jax.lax.scan(step, begin, uniforms, unroll=8 if rows else 1)[0]

    j = rv.solve(mdp).value
    error = np.random.default_rng(SEED).uniform(-1, 1, (runs, 1, mdp.n_states)) * np.abs(j).max()
    J = j + np.repeat(RATIOS, len(ALPHAS))[:, None] * error  # [run, lane, state]
    keys = jax.random.split(jax.random.key(SEED), runs)
    values = jnp.asarray(J.transpose(0, 2, 1) if rows else J)
    alphas = jnp.asarray(np.tile(ALPHAS, len(RATIOS)))
    program = jax.jit(jax.vmap(one_run, (0, 0, None)))
    return lambda: jax.block_until_ready(program(keys, values, alphas))
