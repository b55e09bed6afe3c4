"""Command numbers as the ranges of a command."""

from __future__ import annotations

from collections.abc import Iterable

from qstore.broker.protocols.amqp_0_10.session import Ranges, wrap_ranges


def number_ranges(numbers: Iterable[int]) -> Ranges:
    """Ascending numbers as ranges of first and last."""
    ranges: list[tuple[int, int]] = []
    first = last = -1
    for number in numbers:
        if number == last + 1 and ranges:
            ranges[-1] = (first, number)
        else:
            first = number
            ranges.append((first, number))
        last = number
    return wrap_ranges(ranges)
