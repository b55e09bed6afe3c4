"""Distributions of body sizes, and of content over queues: given as a word and numbers.

1024, fixed:1024        every body has 1,024 bytes
uniform:100-4096        every size in the range is equally likely
lognormal:1024,0.8      half of the bodies are smaller than 1,024 bytes, and a few are much larger: the logarithm of
                        the size has the standard deviation 0.8; like most real traffic

zipf:1.1                the nth queue gets a share in proportion to 1 / n^1.1
equal                   each the same
5,3,1                   in these proportions, repeated for further queues
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from qstore.tools.size.amounts import parse_amount

MAX_BODY: Final = 16 << 20  # bytes
_MAX_SIGMA: Final = 5.0
_MAX_EXPONENT: Final = 10.0


@dataclass(frozen=True, slots=True)
class BodySizes:
    """A distribution of sizes.

    Attributes:
        kind: "fixed", "uniform" or "lognormal".
        first: the size, the minimum, or the median, in bytes.
        last: the maximum, in bytes.
        sigma: for lognormal, the standard deviation of the logarithm.
    """

    kind: str
    first: int
    last: int
    sigma: float = 0.0

    @property
    def mean(self) -> float:
        """The mean size in bytes, ignoring that a lognormal distribution is truncated at its maximum."""
        if self.kind == "uniform":
            return (self.first + self.last) / 2
        return self.first * math.exp(self.sigma**2 / 2)

    def sampler(self, source: random.Random) -> Callable[[], int]:
        """Returns a function that draws sizes with the random numbers of `source`."""
        first, last, sigma = self.first, self.last, self.sigma
        if self.kind == "fixed":
            return lambda: first
        if self.kind == "uniform":
            span, uniform = last - first + 1, source.random
            return lambda: first + int(uniform() * span)
        normal = source.gauss
        return lambda: min(last, int(first * math.exp(normal(0.0, sigma))))


def parse_sizes(text: str) -> BodySizes:
    """Parse a distribution of sizes.

    Raises:
        ValueError: `text` is not one.
    """
    kind, colon, rest = text.partition(":")
    if not colon:
        kind, rest = "fixed" if text[:1].isdigit() else "", text
    if kind == "fixed":
        size = _body(rest)
        return BodySizes("fixed", size, size)
    if kind == "uniform":
        low, dash, high = rest.partition("-")
        if dash and _body(low) <= _body(high):
            return BodySizes("uniform", _body(low), _body(high))
    if kind == "lognormal":
        median, comma, sigma = rest.partition(",")
        deviation = _number(sigma, _MAX_SIGMA) if comma else 1.0
        return BodySizes("lognormal", _body(median), MAX_BODY, deviation)
    raise ValueError(f"{text!r} is not a distribution of sizes; examples: 1024, uniform:100-4096, lognormal:1024,0.8")


def parse_spread(text: str) -> tuple[float, ...] | float:
    """Parse a distribution over queues: the proportions, or the exponent of a Zipf-like law; 0 means equal shares.

    Raises:
        ValueError: `text` is neither.
    """
    if text == "equal":
        return 0.0
    kind, colon, rest = text.partition(":")
    if colon and kind == "zipf":
        return _number(rest, _MAX_EXPONENT)
    try:
        proportions = tuple(float(each) for each in text.split(","))
    except ValueError:
        proportions = ()
    if not proportions or not all(0 < each < math.inf for each in proportions):
        raise ValueError(f"{text!r} is not a distribution over queues; examples: zipf:1.1, equal, 5,3,1")
    return proportions


def shares(spread: Sequence[float] | float, count: int) -> list[float]:
    """The share of each of `count` queues; the sum is 1."""
    if isinstance(spread, float):
        weights = [number**-spread for number in range(1, count + 1)]
    else:
        assert not isinstance(spread, int)
        weights = [spread[number % len(spread)] for number in range(count)]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _body(text: str) -> int:
    size = parse_amount(text)
    if size > MAX_BODY:
        raise ValueError(f"{text!r} is more than {MAX_BODY >> 20} MiB, the largest body that is supported")
    return size


def _number(text: str, maximum: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= maximum:
        raise ValueError(f"{text!r} is not a number from 0 to {maximum:g}")
    return number
