"""Runs of messages beside single ones: processor time a message, in kernels and in a journal's writer.

    python -m tests.bench.bench_runs [--rounds N]

`plain` is the kernel in Python, and `picked` what the broker uses: in `build/compiled` the compiled form, else that.
The writer of a journal gets the messages of socket reads of 256 KiB, one by one or in runs of so many. Nothing is
written to a disk. Of several rounds the fastest counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

import click
from rich.console import Console
from rich.table import Table

import qstore.formats.kernels as picked
import qstore.formats.kernels.plain as plain
from qstore.formats.checksum import extend_crc32c
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.rhm.geometry import Geometry
from qstore.store.journal.write.flushes import PLAIN_MESSAGE, JournalOwner
from qstore.store.journal.write.version_2_writer import Version2Writer, new_state, open_writer
from tests.bench.measuring import fastest

_READ: Final = 256 << 10
_READS: Final = 8
_BEFORE: Final = bytes(50)  # of each message: its method and header frames
_HEAD: Final = bytes(60)  # what precedes a body in the journal
_FIELD: Final = SizeField(20, 8)
_CRC: Final = extend_crc32c(0, _HEAD)
_SALT: Final = b"saltsalt"
_LENGTHS: Final = (4, 16, 64, 1 << 20)


def _run(sizes: list[int]) -> tuple[bytes, Bodies]:
    """Messages as they are read, with bodies of these sizes, and where these are."""
    data = b"".join(map(_message, sizes))
    starts, smallest, largest = plain.find_run(data, 0, len(data), _BEFORE, (_FIELD,), 0xCE, 1 << 20, len(sizes))
    return data, Bodies(data, 0, starts, len(_BEFORE) + 1, smallest, largest)


def _message(size: int) -> bytes:
    return _FIELD.set_in(_BEFORE, size) + bytes(size) + b"\xce"


def _turns(count: int) -> list[int]:
    return [number % 20 for number in range(count)]


def _columns(bodies: Bodies) -> tuple[bytes, int, bytes, int, int, int]:
    return bodies.data, bodies.at, bodies.starts, bodies.gap, 0, bodies.count


def _kernels(size: int, count: int) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Name -> the kernel on a run of `count` messages, plain and picked."""
    data, bodies = _run([size] * count)
    spread = [size // 2 + number * 37 % (size + 1) for number in range(count)]
    mixed, uneven = _run(spread)
    found = (data, 0, len(data), _BEFORE, (_FIELD,), 0xCE, 1 << 20, count)
    found_uneven = (mixed, 0, len(mixed), _BEFORE, (_FIELD,), 0xCE, 1 << 20, count)
    lead, lead_field = bytes(11), SizeField(3, 4, 4)
    in_turns = b"".join([lead_field.set_in(lead, 2) + number.to_bytes(2) + _message(size) for number in _turns(count)])
    to_sort = (
        in_turns, 0, len(in_turns), lead, lead_field, _BEFORE, (_FIELD,), 0xCE, 1 << 20, count
    )  # fmt: skip
    records = (PLAIN_MESSAGE, 5000, 7, _HEAD, None, *_columns(bodies), _SALT)
    records_uneven = (PLAIN_MESSAGE, 5000, 7, _HEAD, _FIELD, *_columns(uneven), _SALT)
    places = (uneven.starts, uneven.gap, 0, count, len(_HEAD), 0, 1 << 32, 1 << 32, 1 << 20, 24)
    dequeues = (PLAIN_MESSAGE, 5000, 7, 100, count, _SALT)
    deliveries = (bytes(40), 13, 5000, (), *_columns(bodies), b"\xce")
    deliveries_uneven = (bytes(40), 13, 5000, (_FIELD,), *_columns(uneven), b"\xce")
    return {
        "find_run": (lambda: plain.find_run(*found), lambda: picked.find_run(*found)),
        "find_run, sizes differ": (lambda: plain.find_run(*found_uneven), lambda: picked.find_run(*found_uneven)),
        "sort_messages, 20 kinds in turns": (
            lambda: plain.sort_messages(*to_sort),
            lambda: picked.sort_messages(*to_sort),
        ),
        "place_records, sizes differ": (lambda: plain.place_records(*places), lambda: picked.place_records(*places)),
        "encode_records, sizes differ": (
            lambda: plain.encode_records(*records_uneven),
            lambda: picked.encode_records(*records_uneven),
        ),
        "write_deliveries, sizes differ": (
            lambda: plain.write_deliveries(*deliveries_uneven),
            lambda: picked.write_deliveries(*deliveries_uneven),
        ),
        "encode_records": (lambda: plain.encode_records(*records), lambda: picked.encode_records(*records)),
        "encode_dequeues": (lambda: plain.encode_dequeues(*dequeues), lambda: picked.encode_dequeues(*dequeues)),
        "write_deliveries": (lambda: plain.write_deliveries(*deliveries), lambda: picked.write_deliveries(*deliveries)),
    }


def _writer() -> Version2Writer:
    """Of a journal that has been written to."""
    geometry = Geometry.from_pages(64, 128)
    writer = open_writer(
        JournalOwner("bench", 1, 1),
        geometry,
        alignment=512,
        page=_READ,
        state=new_state(),
        read=lambda _place, size: bytes(size),
        salt=lambda: 7,
        clock=lambda: 1,
    )
    writer.enqueue(1, (_HEAD,), len(_HEAD), _CRC)
    _flush(writer)
    return writer


def _flush(writer: Version2Writer) -> None:
    while writer.next_flush() is not None:
        writer.flushed()


def _in_writer(size: int, length: int) -> tuple[float, float]:
    """Nanoseconds to enqueue, and to dequeue, each message of some socket reads, in runs of `length`; 0: one by one."""
    count = _READ // (len(_BEFORE) + size + 1)
    _, bodies = _run([size] * count)
    stored = len(_HEAD) + size
    writer, total = _writer(), _READS * count

    def enqueue() -> None:
        for first in range(2, 2 + total, count):
            for number in range(count):
                body = bodies.body(number)
                writer.enqueue(first + number, (_HEAD, body), stored, extend_crc32c(_CRC, body))

    def enqueue_runs() -> None:
        for first in range(2, 2 + total, count):
            done = 0
            while done < count:
                most = min(length, count - done)
                done += writer.enqueue_run(first + done, _HEAD, None, bodies, done, most)

    def dequeue() -> None:
        for number in range(2, 2 + total):
            writer.dequeue(total + number, number)

    def dequeue_runs() -> None:
        number = 2
        while number < 2 + total:
            number += writer.dequeue_run(total + number, number, min(length, 2 + total - number))

    enqueued = fastest(1, enqueue_runs if length else enqueue)
    _flush(writer)
    dequeued = fastest(1, dequeue_runs if length else dequeue)
    return enqueued / total * 1e9, dequeued / total * 1e9


@click.command()
@click.option("--rounds", default=7, show_default=True, help="The fastest of so many counts.")
def main(rounds: int) -> None:
    """Print nanoseconds a message."""
    form = picked.find_run.__module__.rpartition(".")[2]
    table = Table(title=f"Python {sys.version.split()[0]}: ns a message; picked is {form}")
    for column in ("what", "messages", "16 B", "1 KiB"):
        table.add_column(column, justify="right" if column != "what" else "left")
    for name in _kernels(16, 1):
        for length in (1, 4, 64, 0):
            cells = []
            for size in (16, 1024):
                count = length or _READ // (len(_BEFORE) + size + 1)
                repeats = max(1, 4000 // count)
                pair = _kernels(size, count)[name]
                times = [_repeated(rounds, repeats, work) / count * 1e9 for work in pair]
                cells.append(f"{times[0]:.0f} → {times[1]:.0f}")
            table.add_row(f"{name}, plain → picked", str(length or "all"), *cells)
    for length in (0, *_LENGTHS):
        found = {
            size: [min(each) for each in zip(*(_in_writer(size, length) for _ in range(rounds)), strict=True)]
            for size in (16, 1024)
        }
        shown = {0: "single", _LENGTHS[-1]: "all"}.get(length, f"{length}")
        for number, name in enumerate(("enqueue", "dequeue")):
            table.add_row(f"{name} in the writer", shown, *(f"{found[size][number]:.0f}" for size in (16, 1024)))
    Console(width=100).print(table)


def _repeated(rounds: int, repeats: int, work: Callable[[], object]) -> float:
    def several() -> None:
        for _ in range(repeats):
            work()

    return fastest(rounds, several) / repeats


if __name__ == "__main__":
    main()
