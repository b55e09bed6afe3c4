"""Bodies of runs, from lists of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from qstore.formats.kernels.bodies import Bodies, SizeField


def joined(bodies: list[bytes], gap: int = 1, before: int = 0, base: int = 0, after: int = 0) -> Bodies:
    """These bodies in a buffer, with bytes before, between and after them; their starts count from `base`."""
    starts, data = array("I"), b"<" * before
    for body in bodies:
        starts.append(len(data) - base)
        data += body + b"-" * gap
    starts.append(len(data) - base)
    sizes = [*map(len, bodies)] or [0]
    return Bodies(data[: len(data) - gap] + b">" * after, base, starts.tobytes(), gap, min(sizes), max(sizes))


def read_runs(
    rids: Sequence[int],
    load: Callable[[int], bytes],
    decode: Callable[[bytes, int, int], Any],
    alike: Callable[[Any, bytes, int, int], tuple[bytes, SizeField | None, int] | None],
    least: int,
) -> Iterator[Any]:
    """As a store reads runs of at least so many messages; an error in the place of each that cannot be loaded."""
    at = 0
    while at < len(rids):
        data: bytes | None = None
        try:
            data = b"before " + load(rids[at]) + b" after"
            first = decode(data, 7, len(data) - 6)
        except Exception as error:
            yield error
            at += 1
            continue
        bodies = _bodies_alike(rids[at:], load, alike(first, data, 7, len(data) - 6))
        if len(bodies) >= least:
            yield first, joined(bodies)
            at += len(bodies)
        else:
            yield first
            at += 1


def _bodies_alike(
    rids: Sequence[int], load: Callable[[int], bytes], common: tuple[bytes, SizeField | None, int] | None
) -> list[bytes]:
    bodies: list[bytes] = []
    if common is None:
        return bodies
    head, field, largest = common
    for number, rid in enumerate(rids):
        try:
            data = load(rid)
        except Exception:
            break
        body = data[len(head) :]
        before = head if field is None else field.set_in(head, len(body))
        if rid != rids[0] + number or not data.startswith(before) or not 0 < len(body) <= largest:
            break
        bodies.append(body)
    return bodies
