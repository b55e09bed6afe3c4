"""How many messages a second `qstore-export` writes and `qstore-import` reads, in how much memory.

    python -m tests.bench.bench_export [--messages 300000] [--body 1000] [--rounds 2]

The store has one queue of messages with a message id, a header and a body. Each format is exported and, where it can be
read again, imported into a new store. Beside them a plain copy of the store's files, as a measure of the disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click

from qstore.formats.rhm.geometry import Geometry
from qstore.store.environment import tool_environment
from tests.bench.bench_recover import copy_bytes
from tests.bench.measuring import typical_message
from tests.support.opened_store import OpenedStore

ROOT: Final = Path(__file__).parents[2]
_FILE_PAGES: Final = 1024  # 64 MiB
_TOGETHER: Final = 256
FORMATS: Final = {"JSON lines": "jsonl", "compressed": "jsonl.zst", "Parquet": "parquet", "archive": "tar.zst"}


def fill(path: Path, messages: int, body: int) -> None:
    """A store with one queue."""
    content = typical_message(body)
    files = max(4, int(messages * (len(content) + 256) * 1.3 / (_FILE_PAGES << 16)) + 2)
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("orders", geometry=Geometry.from_pages(files, _FILE_PAGES))
    for number in range(messages):
        opened.enqueue(journal, content)
        if number % _TOGETHER == 0:
            opened.flush(journal)
    opened.flush(journal)
    opened.store.close()


def run(module: str, *arguments: object) -> tuple[float, int]:
    """Run a command: seconds, KiB of memory at most."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", f"qstore.tools.{module}", *map(str, arguments)], cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{module} exits with {process.returncode}"
    return time.monotonic() - began, usage.ru_maxrss


def describe(name: str, messages: int, runs: list[tuple[float, int]]) -> str:
    """The fastest of several runs, in words."""
    took = min(each[0] for each in runs)
    return f"{name}: {messages / took:,.0f} messages/s ({took:.1f} s), {max(each[1] for each in runs) / 1024:.0f} MiB"


def bench(directory: Path, messages: int, body: int, rounds: int) -> None:
    """Each format, out and in."""
    source, copied = directory / "source", directory / "copied"
    fill(source, messages, body)
    began = time.monotonic()
    copy_bytes(source, copied)
    print(f"plain copy of the files: {messages / (time.monotonic() - began):,.0f} messages/s", flush=True)
    shutil.rmtree(copied)
    for name, ending in FORMATS.items():
        exported, target = directory / f"messages.{ending}", directory / "target"
        out, back = [], []
        for _ in range(rounds):
            exported.unlink(missing_ok=True)
            out.append(run("qstore_export", "--quiet", source, exported))
            shutil.rmtree(target, ignore_errors=True)
            back.append(run("qstore_import", "--quiet", exported, target))
        print(describe(f"{name}, export", messages, out) + (" (goal 50,000/s)" if ending == "jsonl" else ""))
        print(describe(f"{name}, import", messages, back), flush=True)


@click.command()
@click.option("--messages", default=300_000, show_default=True, help="How many.")
@click.option("--body", default=1000, show_default=True, help="Bytes of each body.")
@click.option("--rounds", default=2, show_default=True, help="How often; the fastest counts.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where the stores are made.  [default: TMPDIR]")
def main(messages: int, body: int, rounds: int, directory: Path | None) -> None:
    """Print what exports and imports cost."""
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, wall-clock time")
    with tempfile.TemporaryDirectory(prefix="qstore-bench-", dir=directory) as name:
        bench(Path(name), messages, body, rounds)


if __name__ == "__main__":
    main()
