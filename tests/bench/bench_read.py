"""How fast a journal is read: recovery analysis, its memory, and a dump as JSON lines.

    python -m tests.bench.bench_read [--records N] [--messages N] [--rounds N]

Two references run side by side with each figure, over the same bytes in the same process: a bare `unpack_from` for
each record header, and one CRC-32C pass. Machines are noisy, so the ratio to the reference says more than the
microseconds; of several rounds the fastest counts, in CPU time of this process.
"""

from __future__ import annotations

import os
import sys
import tempfile
import tracemalloc
from pathlib import Path

import click

from qstore.store.disk import OsDisk
from qstore.store.inspect.offline import open_store
from qstore.store.journal.directory import open_journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.tools.console.rows import JsonLines
from qstore.tools.dump.dump import RecoveryDump
from qstore.tools.dump.messages import BodyForm, Selection
from tests.bench.measuring import build_ring, fastest, references, typical_message


def _recover(directory: Path) -> JournalRecovery:
    journal = open_journal(OsDisk(), str(directory))
    recovery = JournalRecovery()
    journal.walk(recovery)
    journal.close()
    assert not recovery.damage, recovery.damage
    return recovery


def bench_recovery(version: int, count: int, rounds: int) -> None:
    """Recovery analysis of `count` outstanding 100-byte records."""
    with tempfile.TemporaryDirectory(prefix="qstore-bench-") as name:
        directory = Path(name)
        size = build_ring(directory, version, count, b"x" * 100)
        unpack, crc = references(directory, size, rounds)
        took = fastest(rounds, lambda: _recover(directory))
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
        size = build_ring(directory, version, count, typical_message(100))
        unpack, crc = references(directory, size, rounds)

        def dump() -> None:
            store = open_store(OsDisk(), str(directory))
            with Path(os.devnull).open("wb") as sink:
                output = JsonLines(sink)
                shown = RecoveryDump(store, output, Selection(), BodyForm.NONE, None)
                recovered = store.recover()
                shown.messages(recovered)
                output.flush()
            store.close()

        took = fastest(rounds, dump)
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
