"""Latencies as counts: a bucket has the latencies that differ by 1.6 % at most, or by a microsecond.

The counts are a sequence of 64-bit numbers, so that they can lie in shared memory, and those of several processes and
times can be added and subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

_BITS: Final = 6  # a bucket of 2^n µs or more has the size 2^(n - 6) µs
_MAX_BITS: Final = 36
_MAX: Final = (1 << _MAX_BITS) - 1  # µs: what takes longer counts as this
_NS: Final = 1000
BUCKETS: Final = (_MAX_BITS - _BITS + 1) << _BITS
PERCENTILES: Final = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
_ROWS: Final = 12
_BAR: Final = 40
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"


def bucket_of(nanoseconds: int) -> int:
    """The number of a latency's bucket."""
    value = min(max(nanoseconds // _NS, 0), _MAX)
    shift = max(0, value.bit_length() - _BITS - 1)
    return (shift << _BITS) + (value >> shift)


def bounds_of(bucket: int) -> tuple[float, float]:
    """The latencies of a bucket in milliseconds: from the first up to the second."""
    shift = max(0, (bucket >> _BITS) - 1)
    low = (bucket - (shift << _BITS)) << shift
    return low / 1000, (low + (1 << shift)) / 1000


def middle_of(bucket: int) -> float:
    """The latency of a bucket in milliseconds, as a percentile or an average has it."""
    low, high = bounds_of(bucket)
    return (low + high) / 2


def percentile(counts: Sequence[int], share: float) -> float:
    """The latency in milliseconds that `share` percent do not exceed; 0 of none."""
    total = sum(counts)
    wanted = max(1, -(-total * share // 100))
    for bucket, so_far in enumerate(accumulate(counts)):
        if so_far >= wanted:
            return middle_of(bucket)
    return 0.0


def summary(counts: Sequence[int]) -> dict[str, Any]:
    """Latencies in milliseconds by name, with the number of them; empty of none."""
    used = [(bucket, count) for bucket, count in enumerate(counts) if count]
    if not used:
        return {}
    total = sum(count for _, count in used)
    found: dict[str, Any] = {"latency_count": total, "latency_min_ms": round(bounds_of(used[0][0])[0], 4)}
    for share in PERCENTILES:
        name = "median" if share == 50 else f"p{share:g}".replace(".", "")
        found[f"latency_{name}_ms"] = round(percentile(counts, share), 4)
    found["latency_max_ms"] = round(bounds_of(used[-1][0])[1], 4)
    found["latency_mean_ms"] = round(sum(middle_of(bucket) * count for bucket, count in used) / total, 4)
    return found


def picture(counts: Sequence[int]) -> Iterator[str]:
    """The latencies as lines of text: ranges that double or less, each with a bar, its share and all up to it."""
    used = [bucket for bucket, count in enumerate(counts) if count]
    if not used:
        return
    first, last, total = used[0], used[-1], sum(counts)
    step = max(1, -(-(last + 1 - first) // _ROWS))
    groups = [(begin, sum(counts[begin : begin + step])) for begin in range(first, last + 1, step)]
    most, so_far = max(count for _, count in groups), 0
    for begin, count in groups:
        so_far += count
        low, high = bounds_of(begin)[0], bounds_of(min(begin + step, BUCKETS) - 1)[1]
        yield (
            f"{low:>10.3f} – {high:>9.3f} ms  {_bar(count, most):<{_BAR}}  "
            f"{100 * count / total:5.1f} %  {100 * so_far / total:6.2f} %"
        )


def _bar(count: int, most: int) -> str:
    eighths = -(-count * _BAR * 8 // most) if count else 0
    return _BLOCKS[-1] * (eighths // 8) + (_BLOCKS[eighths % 8] if eighths % 8 else "")
