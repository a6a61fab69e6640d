"""Random streams of experience, counter-based: any run can be computed alone.

Step t uses word 4t for the edge, 4t + 1 and 4t + 2 for the noise of the reward, and 4t + 3 for the
start state of the next episode. Word START draws the start state of a run; words from INITIAL on
draw its initial values. Normal variates use the Box–Muller method with polynomials for logarithm
and cosine, because the C library's functions differ between machines.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy import uintp as at
from numpy.typing import NDArray

from retvar.mdp import END, MDP
from retvar.mdp.weighted_edges import importance_ratio
from retvar.td.jit import compiled, inlined, read_only
from retvar.td.random import ULP, U, keys, seed_of, uniform, word

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
START = U(1 << 62)
INITIAL = U((1 << 62) + (2 << 50) + 4)


class Stream(NamedTuple):
    """The edges that experience is drawn from, in the order of their states.

    An edge of a state with k edges is drawn in constant time from one uniform number u (Walker's
    alias method): the integer part of k·u selects a slot, and the remainder decides between the
    slot's own edge and another.
    """

    first: Integers  #: first edge of each state
    fan: Array  #: number of edges of each state
    threshold: Array  #: share of a slot that belongs to its own edge
    other: Integers  #: edge that gets the rest of the slot
    next_state: Integers  #: the number of states where the episode ends
    reward: Array
    noise: Array  #: standard deviation of the reward
    rho: Array  #: importance ratio of the edge's action
    start_threshold: Array  #: alias table of the start states
    start_other: Integers
    key: NDArray[np.uint64]  #: the seed

    @property
    def noisy(self) -> bool:
        """Whether any reward is random."""
        return bool(self.noise.any())

    @property
    def weighted(self) -> bool:
        """Whether any importance ratio differs from 1."""
        return bool((self.rho != 1).any())


def stream_of(
    mdp: MDP, target: object = None, behaviour: object = None, seed: int = 0
) -> tuple[Stream, NDArray[np.intp]]:
    """Return the stream of `behaviour` in `mdp`, and the indices of the MDP's edges it uses."""
    pi = mdp.policy(target, "target")
    mu = pi if behaviour is None else mdp.policy(behaviour, "behaviour")
    e = mdp.edges
    probability = mu.probabilities[e.state, e.action] * e.probability
    used = np.flatnonzero(probability > 0)
    state = e.state[used]
    first = np.searchsorted(state, np.arange(mdp.n_states + 1))
    threshold, other = _slots(probability[used], first)
    start_threshold, start_other = _slots(mdp.start, np.array([0, mdp.n_states]))
    follows = e.next_state[used]
    stream = Stream(
        first[:-1].astype(np.int64),
        np.diff(first).astype(np.float64),
        threshold,
        other,
        np.where(follows == END, mdp.n_states, follows).astype(np.int64),
        e.reward[used].copy(),
        e.reward_std[used].copy(),
        importance_ratio(mdp, pi, mu)[e.state, e.action][used],
        start_threshold,
        start_other,
        np.array([seed_of(seed)]),
    )
    return stream, used


def _slots(probability: Array, first: Any) -> tuple[Array, Integers]:
    """Walker's alias tables, one for each range between two entries of `first`."""
    threshold = np.ones(probability.size)
    other = np.arange(probability.size, dtype=np.int64)
    given = read_only(probability), read_only(np.asarray(first, dtype=np.int64))
    fill_slots(*given, threshold, other)
    return threshold, other


@compiled
def fill_slots(probability, first, threshold, other):
    """Give each slot its own entry's share and fill it up with an entry of a larger share."""
    small = np.empty(probability.size, dtype=np.int64)
    large = np.empty(probability.size, dtype=np.int64)
    share = np.empty(probability.size)
    for s in range(first.size - 1):
        begin, end = first[s], first[s + 1]
        total = 0.0
        for i in range(begin, end):
            total += probability[i]
        few = many = 0
        for i in range(begin, end):
            share[i] = probability[i] * (end - begin) / total
            if share[i] < 1.0:
                small[few] = i
                few += 1
            else:
                large[many] = i
                many += 1
        while few and many:
            i, j = small[few - 1], large[many - 1]
            few -= 1
            threshold[i], other[i] = share[i], j
            share[j] -= 1.0 - share[i]
            if share[j] < 1.0:
                many -= 1
                small[few] = j
                few += 1


# ---------------------------------------------------------------------- random numbers


@inlined
def logarithm(x):
    """Natural logarithm of x in (0, 1]: 2·artanh((m−1)/(m+1)) + k·ln 2 where x = m·2ᵏ."""
    k = 0.0
    while x < 0.005524271728019903:  # √½·2⁻⁷
        x *= 256.0
        k -= 8.0
    if x * 16.0 < 1.4142135623730951:
        x *= 16.0
        k -= 4.0
    if x * 4.0 < 1.4142135623730951:
        x *= 4.0
        k -= 2.0
    if x * 2.0 < 1.4142135623730951:
        x *= 2.0
        k -= 1.0
    s = (x - 1.0) / (x + 1.0)
    y = s * s
    tail = 1 / 11 + y * (1 / 13 + y * (1 / 15 + y * (1 / 17 + y * (1 / 19 + y * (1 / 21)))))
    tail = y * (1 / 3 + y * (1 / 5 + y * (1 / 7 + y * (1 / 9 + y * tail))))
    return 2.0 * s * (1.0 + tail) + k * 0.6931471805599453


@inlined
def cosine(u):
    """Cosine of 2πu for u in [0, 1): the series of the cosine on a quarter turn."""
    v = abs(u - 0.5)  # cos 2πu = −cos 2πv
    y = 6.283185307179586 * (0.5 - v if v > 0.25 else v)  # in [0, π/2]
    y = -y * y
    tail = 1 + y * (1 / 306) * (1 + y * (1 / 380) * (1 + y * (1 / 462)))
    tail = 1 + y * (1 / 90) * (1 + y * (1 / 132) * (1 + y * (1 / 182) * (1 + y * (1 / 240) * tail)))
    tail = 1 + y * (1 / 2) * (1 + y * (1 / 12) * (1 + y * (1 / 30) * (1 + y * (1 / 56) * tail)))
    return tail if v > 0.25 else -tail


@inlined
def normal(x, y):
    """A normal variate from two words; its absolute value is at most 8.6."""
    radius = math.sqrt(-2.0 * logarithm(uniform(x) + ULP))
    return radius * cosine(uniform(y))


@inlined
def slot(u, first, fan, threshold, other):
    """Return the entry that a uniform number draws."""
    scaled = u * fan
    k = np.int32(scaled)
    i = np.uint32(first + k)
    return i if scaled - np.float64(k) < threshold[i] else other[i]


@inlined
def edge(a, b, t, s, stream):
    """The edge taken from state s at step t."""
    u = uniform(word(a, b, U(4) * U(t)))
    return slot(u, stream.first[at(s)], stream.fan[at(s)], stream.threshold, stream.other)


@inlined
def reward_of(a, b, t, e, stream):
    """The reward of step t along edge e."""
    x, y = word(a, b, U(4) * U(t) + U(1)), word(a, b, U(4) * U(t) + U(2))
    return stream.reward[e] + stream.noise[e] * normal(x, y)


@inlined
def start(a, b, c, stream):
    """Start state of an episode, drawn with word c."""
    n = stream.start_other.size
    return slot(
        uniform(word(a, b, c)), 0, np.float64(n), stream.start_threshold, stream.start_other
    )


@compiled
def draws(seed, run, first, normals, out):
    """Fill `out` [run, number] from run `run` and word `first` on: in [0, 1), or `normals`."""
    for r in range(out.shape[0]):
        a, b = keys(U(seed), run + r)
        for i in range(out.shape[1]):
            c = U(first) + U(2 if normals else 1) * U(i)
            x = word(a, b, c)
            out[r, i] = normal(x, word(a, b, c + U(1))) if normals else uniform(x)


class Path(NamedTuple):
    """The steps of a walk."""

    edge: Any
    state: Any
    reward: Any


@compiled
def walk(stream, run, steps, by_step, noisy, state, t, path):
    """Continue a run until `steps` steps or episodes are done or the arrays of `path` are full."""
    a, b = keys(stream.key[0], run)
    n, done, k = stream.first.size, 0, 0
    if t == 0:
        state = start(a, b, START, stream)
    while done < steps and k < path.edge.size:
        e = edge(a, b, t, state, stream)
        path.edge[k], path.state[k] = e, state
        path.reward[k] = reward_of(a, b, t, e, stream) if noisy else stream.reward[e]
        state = stream.next_state[e]
        done += by_step
        if state == n:
            state = start(a, b, U(4) * U(t) + U(3), stream)
            done += 1 - by_step
        t += 1
        k += 1
    return k, done, state
