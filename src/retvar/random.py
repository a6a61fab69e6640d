"""Random words: a keyed hash of a counter, one definition for everything that is random.

The words of a run are a keyed hash of their numbers: word c is mix(mix(a + cφ) ^ b) with the run's
key (a, b), mix being the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), a bijection. For a
given seed a is a bijection of the run's number, so no two runs share a key; and since b enters
between the two rounds, runs whose counters happen to lie a shift apart still have other words.
"""

from __future__ import annotations

import numpy as np

from retvar.errors import InputError
from retvar.jit import inlined

__all__ = ["ULP", "U", "keys", "mix", "seed_of", "uniform", "word"]

U = np.uint64
GOLDEN = U(0x9E3779B97F4A7C15)  # 2⁶⁴/φ, odd
STATUS = U(0x6A09E667F3BCC909)  # √2: tells b from a
ULP = 2.0**-53


def seed_of(seed: object) -> np.uint64:
    """A seed as a word."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not whole or not 0 <= int(seed) < 2**64:  # type: ignore[call-overload]
        raise InputError("seed", repr(seed), "must be a whole number from 0 to 2⁶⁴ − 1")
    return U(int(seed))  # type: ignore[call-overload]


@inlined
def mix(z):
    """SplitMix64's finaliser: a bijection of 64-bit words in which every bit counts."""
    z = (z ^ (z >> U(30))) * U(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U(27))) * U(0x94D049BB133111EB)
    return z ^ (z >> U(31))


@inlined
def keys(seed, run):
    """The two halves of a run's key."""
    seed = mix(seed + GOLDEN)
    a = mix(seed + U(run) * GOLDEN)
    return a, mix((a ^ STATUS) + seed)


@inlined
def word(a, b, c):
    """Word c of the run with key (a, b)."""
    return mix(mix(a + c * GOLDEN) ^ b)


@inlined
def uniform(x):
    """A number in [0, 1) from a word."""
    return np.float64(x >> U(11)) * ULP
