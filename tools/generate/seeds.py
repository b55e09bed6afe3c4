"""Where a fleet's random numbers come from."""

from __future__ import annotations

import random


def seeded(*purpose: int | str) -> random.Random:
    """The random numbers for one purpose: the fleet's seed, and what they are for. The same ones for the same."""
    return random.Random("/".join(map(str, purpose)))  # noqa: S311 (nothing here is a secret)
