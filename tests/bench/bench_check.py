"""How fast a store is checked, in each of the three formats.

    python -m tests.bench.bench_check [--messages N] [--body BYTES] [--rounds N]

Two references run side by side with each figure, over the same bytes in the same process: a bare `unpack_from` for
each record header, and one CRC-32C pass. Of several rounds the fastest counts, in CPU time of this process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click

from qstore.store.disk import OsDisk
from qstore.store.inspect.check import check_store
from qstore.store.inspect.offline import open_store
from qstore.store.journal.files import JournalFormat
from tests.bench.measuring import build_line, build_ring, fastest, references, typical_message


def _check(directory: Path, count: int, *, paranoid: bool) -> None:
    disk = OsDisk()
    store = open_store(disk, str(directory))
    checked = check_store(disk, store, paranoid=paranoid)
    store.close()
    assert not checked.damage, checked.damage
    assert checked.records == count


def bench_check(journal_format: JournalFormat, count: int, body: int, rounds: int) -> None:
    """A check of `count` outstanding messages."""
    data = typical_message(body)
    with tempfile.TemporaryDirectory(prefix="qstore-bench-") as name:
        directory = Path(name)
        if journal_format is JournalFormat.LINEAR:
            size = build_line(directory, count, data)
        else:
            size = build_ring(directory, journal_format, count, data)
        unpack, crc = references(directory, size, rounds)
        took = fastest(rounds, lambda: _check(directory, count, paranoid=False))
        twice = fastest(1, lambda: _check(directory, count, paranoid=True))
    print(
        f"{journal_format.label}: {count:,} messages of {body} bytes in {took:.2f} s, {count / took:,.0f} a second "
        f"(goal 250,000), {took / unpack:.1f} × bare unpack_from, {took / crc:.1f} × CRC pass; "
        f"--paranoid {count / twice:,.0f} a second"
    )


@click.command()
@click.option("--messages", default=100_000, show_default=True, help="Outstanding messages.")
@click.option("--body", default=1024, show_default=True, help="Bytes of each message's body.")
@click.option("--rounds", default=5, show_default=True, help="The fastest of so many counts.")
def main(messages: int, body: int, rounds: int) -> None:
    """Print how fast stores are checked."""
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, fastest of {rounds} rounds, CPU time")
    for journal_format in JournalFormat:
        bench_check(journal_format, messages, body, rounds)


if __name__ == "__main__":
    main()
