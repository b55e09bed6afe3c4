"""Bodies of runs, from lists of them."""

from __future__ import annotations

from array import array

from qstore.formats.kernels.bodies import Bodies


def joined(bodies: list[bytes], gap: int = 1, before: int = 0, base: int = 0, after: int = 0) -> Bodies:
    """These bodies in a buffer, with bytes before, between and after them; their starts count from `base`."""
    starts, data = array("I"), b"<" * before
    for body in bodies:
        starts.append(len(data) - base)
        data += body + b"-" * gap
    starts.append(len(data) - base)
    sizes = [*map(len, bodies)] or [0]
    return Bodies(data[: len(data) - gap] + b">" * after, base, starts.tobytes(), gap, min(sizes), max(sizes))
