"""How long `qstore-recover` takes, against reading the same files and writing as many bytes; and its memory.

    python -m tests.bench.bench_recover [--messages N] [--body BYTES] [--queues N] [--rounds N] [--cold]

The command runs as a process of its own, start and the import of Python included, and ends with everything synced. The
reference reads every file of the journals and writes and syncs as many bytes, in pieces of 1 MiB, as a process that
does nothing else would. Of several rounds the fastest counts; the page cache holds the source for both,
unless `--cold` is given.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from qstore.formats.broker_records.topology import Queue, encode_queue
from qstore.formats.rhm.geometry import PAGE_SIZE, Geometry, padded
from qstore.formats.rhm.records import TAIL_SIZE
from qstore.store.journal.files import JournalFormat
from tests.bench.measuring import build_line, typical_message
from tests.support.journal_builder import JournalBuilder

ROOT: Final = Path(__file__).parents[2]
_FILES: Final = 16
_PIECE: Final = 1 << 20
_TIME_GOAL: Final = 3.0
_MEMORY_GOAL: Final = 300  # MiB


def build_rings(directory: Path, version: int, queues: int, count: int, data: bytes) -> None:
    """`queues` journals with `count` outstanding messages each, without a catalogue."""
    size = padded(32 + len(data) + TAIL_SIZE)
    needed = (count + count // 500 + 64) * size
    geometry = Geometry(_FILES, -(-needed * 5 // 4 // _FILES // PAGE_SIZE) * PAGE_SIZE)  # 80 % full
    for number in range(1, queues + 1):
        name = f"queue{number}"
        builder = JournalBuilder(version, geometry, queue_id=number, queue_name=name)
        if version == 2:
            builder.info = builder.info._replace(queue_record=encode_queue(Queue(name)))
        builder.next_rid = number << 40
        builder.enqueue_many(count, data)
        builder.seal()
        builder.write_to(directory / "rhm" / "jrnl" / (str(number) if version == 2 else f"{number:04x}/{name}"))


def build_lines(directory: Path, queues: int, count: int, data: bytes) -> None:
    """The same as linearstore journals: plain files in each journal's directory."""
    for number in range(1, queues + 1):
        journal = directory / "qls" / "jrnl2" / f"queue{number}"
        journal.mkdir(parents=True)
        build_line(journal, count, data)


def journal_files(directory: Path) -> Iterator[Path]:
    """The journals' files."""
    return (path for path in sorted(directory.rglob("*")) if path.suffix in (".jdat", ".jrnl"))


def copy_bytes(source: Path, target: Path) -> int:
    """Read all journal files, write as many bytes, sync each file; how many bytes."""
    target.mkdir()
    copied = 0
    for number, path in enumerate(journal_files(source)):
        with path.open("rb", buffering=0) as read, (target / str(number)).open("wb", buffering=0) as write:
            while piece := read.read(_PIECE):
                write.write(piece)
                copied += len(piece)
            os.fsync(write.fileno())
    return copied


#: Runs the command, and tells as it ends the most memory that the process had. (What the system tells a parent of it
#: begins with the parent's own.)
_RUNNER: Final = """
import atexit, os, sys
def tell():
    with open("/proc/self/status") as status:
        (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM"))
    times = os.times()
    print(peak, times.user + times.system, file=sys.stderr)
atexit.register(tell)
from qstore.tools.qstore_recover import main
main()
"""


class Used(NamedTuple):
    """What a run took: KiB of memory at most, seconds of the processor; and the last line of its report."""

    memory: int
    processor: float
    summary: str


def recover(source: Path, target: Path) -> Used:
    """Run the command."""
    command = [sys.executable, "-c", _RUNNER, str(source), str(target), "--json"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    assert finished.returncode in (0, 1), (finished.returncode, finished.stderr)
    memory, processor = finished.stderr.splitlines()[-1].split()
    return Used(int(memory), float(processor), finished.stdout.splitlines()[-1])


def forget(source: Path) -> None:
    """Have the system read the journal files from the disk the next time."""
    for path in journal_files(source):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fastest(rounds: int, source: Path, target: Path, work: Callable[[], object], *, cold: bool) -> float:
    """Seconds of the fastest round; what a round made at `target` is removed before the next."""
    best = float("inf")
    for _ in range(rounds):
        shutil.rmtree(target, ignore_errors=True)
        os.sync()
        if cold:
            forget(source)
        began = time.monotonic()
        work()
        best = min(best, time.monotonic() - began)
    return best


def bench_recover(
    journal_format: JournalFormat, directory: Path, queues: int, count: int, body: int, rounds: int, *, cold: bool
) -> None:
    """One format: time and memory."""
    data, source, target = typical_message(body), directory / "source", directory / "target"
    if journal_format is JournalFormat.LINEAR:
        build_lines(source, queues, count, data)
    else:
        build_rings(source, int(journal_format), queues, count, data)
    size = sum(path.stat().st_size for path in journal_files(source))
    reference = fastest(rounds, source, target, lambda: copy_bytes(source, target), cold=cold)
    runs: list[Used] = []
    took = fastest(rounds, source, target, lambda: runs.append(recover(source, target)), cold=cold)
    shutil.rmtree(target)
    shutil.rmtree(source)
    print(
        f"{journal_format.label}: {queues} × {count:,} messages of {body} bytes, {size / (1 << 30):.2f} GiB: "
        f"{took:.1f} s ({min(run.processor for run in runs):.1f} of the processor), "
        f"{took / reference:.1f} × reading and writing as much ({reference:.1f} s; goal {_TIME_GOAL:g} ×); "
        f"{max(run.memory for run in runs) / 1024:,.0f} MiB at most (goal {_MEMORY_GOAL})"
    )
    print(f"  {runs[-1].summary}")


@click.command()
@click.option("--messages", default=1_000_000, show_default=True, help="Outstanding messages, of all queues.")
@click.option("--body", default=1024, show_default=True, help="Bytes of each message's body.")
@click.option("--queues", default=8, show_default=True, help="How many queues they are in.")
@click.option("--rounds", default=3, show_default=True, help="The fastest of so many counts.")
@click.option("--format", "only", type=click.Choice(["1", "2", "linear"]), help="One format only.")
@click.option("--cold", is_flag=True, help="Both read from the disk, as after a crash, and not from the page cache.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where the stores are made.  [default: TMPDIR]")
def main(
    messages: int, body: int, queues: int, rounds: int, only: str | None, directory: Path | None, *, cold: bool
) -> None:
    """Print how fast stores are recovered, and in how much memory."""
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, fastest of {rounds} rounds, wall-clock time")
    chosen = {"1": JournalFormat.VERSION_1, "2": JournalFormat.VERSION_2, "linear": JournalFormat.LINEAR}
    for journal_format in [chosen[only]] if only else list(chosen.values()):
        with tempfile.TemporaryDirectory(prefix="qstore-bench-", dir=directory) as name:
            bench_recover(journal_format, Path(name), queues, messages // queues, body, rounds, cold=cold)


if __name__ == "__main__":
    main()
