"""Counter-based random 64-bit words: a keyed hash of a counter.

Word c of a run is mix(mix(a + cφ) ^ b), where (a, b) is the key of the run and mix the finaliser of
SplitMix64 (Steele, Lea and Flood, 2014), a bijection. For a given seed, a is a bijection of the run
number, so no two runs share a key. Because b enters between the two rounds, runs whose counters are
shifted against each other have different words.

`mix` is also the hash of tile coding, and it samples the observed returns that are stored. A change
of it changes the features of estimators with hashed tiles, of saved ones too.
"""

from __future__ import annotations

import numpy as np

from retvar.support.arguments import integer
from retvar.td.jit import inlined

U = np.uint64
GOLDEN = U(0x9E3779B97F4A7C15)  # 2⁶⁴/φ, odd
SQRT2 = U(0x6A09E667F3BCC909)  # √2; makes b differ from a
ULP = 2.0**-53


def seed_of(seed: object) -> np.uint64:
    """Return a seed as a 64-bit word."""
    return U(integer("seed", seed, 0, 2**64 - 1))


@inlined
def mix(z):
    """SplitMix64's finaliser: a bijection of 64-bit words."""
    z = (z ^ (z >> U(30))) * U(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U(27))) * U(0x94D049BB133111EB)
    return z ^ (z >> U(31))


@inlined
def keys(seed, run):
    """The two halves of a run's key."""
    seed = mix(seed + GOLDEN)
    a = mix(seed + U(run) * GOLDEN)
    return a, mix((a ^ SQRT2) + seed)


@inlined
def word(a, b, c):
    """Word c of the run with key (a, b)."""
    return mix(mix(a + c * GOLDEN) ^ b)


@inlined
def uniform(x):
    """A number in [0, 1) from a word."""
    return np.float64(x >> U(11)) * ULP
