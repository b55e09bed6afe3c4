"""How fast a journal is read: recovery analysis, its memory, and a dump as JSON lines.

    python -m tests.bench.bench_read [--records N] [--messages N] [--rounds N]

Two references run side by side with each figure, over the same bytes in the same process: a bare `unpack_from` for
each record header, and one CRC-32C pass. Machines are noisy, so the ratio to the reference says more than the
microseconds; of several rounds the fastest counts, in CPU time of this process.
"""

from __future__ import annotations

import gc
import os
import struct
import sys
import tempfile
import time
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path

import click

from formats.amqp_0_10.maps import typed_map
from formats.broker_records.messages import encode_message
from formats.checksum import extend_crc32c
from formats.rhm.geometry import PAGE_SIZE, Geometry, padded
from formats.rhm.records import TAIL_SIZE
from store.disk import OsDisk
from store.journal.directory import open_journal
from store.journal.recovery import JournalRecovery
from store.offline import open_store
from tests.support.journal_builder import JournalBuilder
from tools.dump.dump import RecoveryDump
from tools.dump.json_lines import JsonLines
from tools.dump.selection import BodyForm, Selection

_FILES = 16
_HEADER = struct.Struct("<QQQQ")


def _fastest(rounds: int, work: Callable[[], object]) -> float:
    """CPU seconds of the fastest of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best


def _build(directory: Path, version: int, count: int, data: bytes) -> int:
    """A journal of `count` outstanding records; the bytes that one takes."""
    size = padded(32 + len(data) + TAIL_SIZE)
    data_size = -(-(count + count // 500 + 64) * size // _FILES // PAGE_SIZE) * PAGE_SIZE
    builder = JournalBuilder(version, Geometry(_FILES, data_size))
    builder.enqueue_many(count, data)
    builder.flush()
    builder.write_to(directory)
    return size


def _typical_message() -> bytes:
    """As the messages of the fixtures: a message id, a header, an exchange, a routing key, 100 bytes."""
    return encode_message(
        b"y" * 100,
        destination="amq.direct",
        delivery_properties={"delivery_mode": 2, "exchange": "amq.direct", "routing_key": "orders"},
        message_properties={"message_id": uuid.uuid4(), "application_headers": typed_map({"sn": 5})},
    )


def _recover(directory: Path) -> JournalRecovery:
    journal = open_journal(OsDisk(), str(directory))
    recovery = JournalRecovery()
    journal.walk(recovery)
    journal.close()
    assert not recovery.damage, recovery.damage
    return recovery


def _bytes_of(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.jdat")))


def _unpack_all(content: bytes, size: int) -> None:
    unpack = _HEADER.unpack_from
    for offset in range(0, len(content) - size, size):
        unpack(content, offset)


def _references(directory: Path, size: int, rounds: int) -> tuple[float, float]:
    """CPU seconds of a bare `unpack_from` for each record, and of one CRC pass, over a journal's bytes."""
    content = _bytes_of(directory)
    return _fastest(rounds, lambda: _unpack_all(content, size)), _fastest(rounds, lambda: extend_crc32c(0, content))


def bench_recovery(version: int, count: int, rounds: int) -> None:
    """Recovery analysis of `count` outstanding 100-byte records."""
    with tempfile.TemporaryDirectory(prefix="qstore-bench-") as name:
        directory = Path(name)
        size = _build(directory, version, count, b"x" * 100)
        unpack, crc = _references(directory, size, rounds)
        took = _fastest(rounds, lambda: _recover(directory))
        tracemalloc.start()
        recovery = _recover(directory)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(recovery.messages) == count
    print(
        f"recovery, version {version}: {count:,} records of 100 bytes in {took:.2f} s, "
        f"{took / count * 1e6:.2f} µs each (goal 1.8); index {held / count:.1f} bytes each (goal 48); "
        f"{took / unpack:.1f} × bare unpack_from, {took / crc:.1f} × CRC pass"
    )


def bench_dump(version: int, count: int, rounds: int) -> None:
    """`--outstanding --json --body none` over `count` typical messages, without starting Python."""
    with tempfile.TemporaryDirectory(prefix="qstore-bench-") as name:
        directory = Path(name)
        size = _build(directory, version, count, _typical_message())
        unpack, crc = _references(directory, size, rounds)

        def dump() -> None:
            store = open_store(OsDisk(), str(directory))
            with Path(os.devnull).open("wb") as sink:
                output = JsonLines(sink)
                shown = RecoveryDump(store, output, Selection(), BodyForm.NONE, None)
                recovered = store.recover()
                shown.messages(recovered)
                output.flush()
            store.close()

        took = _fastest(rounds, dump)
    print(
        f"dump, version {version}: {count:,} messages in {took:.2f} s, {count / took:,.0f} a second (goal 100,000); "
        f"{took / unpack:.1f} × bare unpack_from, {took / crc:.1f} × CRC pass"
    )


@click.command()
@click.option("--records", default=1_000_000, show_default=True, help="Outstanding records for recovery.")
@click.option("--messages", default=200_000, show_default=True, help="Messages for the dump.")
@click.option("--rounds", default=5, show_default=True, help="The fastest of so many counts.")
def main(records: int, messages: int, rounds: int) -> None:
    """Print how fast journals are read."""
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, fastest of {rounds} rounds, CPU time")
    for version in (1, 2):
        bench_recovery(version, records, rounds)
    for version in (1, 2):
        bench_dump(version, messages, rounds)


if __name__ == "__main__":
    main()
