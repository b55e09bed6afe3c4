"""The random numbers of a fleet."""

from __future__ import annotations

import random


def seeded(*purpose: int | str) -> random.Random:
    """The random numbers for one purpose, determined by the fleet's seed and the purpose."""
    return random.Random("/".join(map(str, purpose)))  # noqa: S311 (nothing here is a secret)
