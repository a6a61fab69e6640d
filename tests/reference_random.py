"""Reference implementation of the random numbers with Python's integers."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

M = 2**64
GOLDEN = 0x9E3779B97F4A7C15
SQRT_2 = 0x6A09E667F3BCC909
START = 2**62


def mix(z: int) -> int:
    """SplitMix64's finaliser."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % M
    z = (z ^ z >> 27) * 0x94D049BB133111EB % M
    return z ^ z >> 31


def keys(seed: int, run: int) -> tuple[int, int]:
    """The two halves of a run's key."""
    seed = mix((seed + GOLDEN) % M)
    a = mix((seed + run * GOLDEN) % M)
    return a, mix(((a ^ SQRT_2) + seed) % M)


def word(seed: int, run: int, c: int) -> int:
    """Word c of a run."""
    a, b = keys(seed, run)
    return mix(mix((a + c * GOLDEN) % M) ^ b)


def uniform(x: int) -> float:
    """The 53 leading bits of a word as a number in [0, 1)."""
    return (x >> 11) / 2**53


PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")


def cosine(u: float) -> Decimal:
    """The cosine of 2πu to 50 digits, by its series."""
    with localcontext() as context:
        context.prec = 60
        exact = Fraction(u)
        x = 2 * PI * Decimal(exact.numerator) / Decimal(exact.denominator)
        term, total, k = Decimal(1), Decimal(1), 0
        while abs(term) > Decimal("1e-55"):
            k += 2
            term *= -x * x / (k * (k - 1))
            total += term
        return total


def logarithm(x: float) -> Decimal:
    """The natural logarithm to 50 digits."""
    with localcontext() as context:
        context.prec = 50
        return Decimal(x).ln()
