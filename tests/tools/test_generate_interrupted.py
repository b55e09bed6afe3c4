"""`qstore-generate` that is interrupted: one line, no process left, and no list of a whole fleet."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from click.testing import Result

from qstore.tools.generate.make import MANIFEST
from tests.support.forked import Forked
from tests.support.generated_fleet import generate
from tests.support.processes import PATIENCE_SECONDS
from tests.support.profiles import today

ROOT: Final = Path(__file__).parent.parent.parent
STORES: Final = 5000  # more than anybody waits for


def parents() -> dict[int, int]:
    """Process id -> that of its parent, of all processes."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return found


def children(parent: int) -> set[int]:
    return {child for child, its in parents().items() if its == parent}


def workers(parent: int) -> set[int]:
    """The processes that make stores: not the one that looks after what multiprocessing shares."""
    return {
        child for child in children(parent) if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes()
    }


def await_(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@contextmanager
def running(out: Path, jobs: int) -> Iterator[Forked]:
    options = ["--stores", str(STORES), "--queues", "1", "--messages", "200", "--jobs", str(jobs)]
    command = [sys.executable, "-m", "qstore.tools.qstore_generate", str(out), *options]
    pipe = subprocess.PIPE
    with Forked(command, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        try:
            yield process
        finally:
            for number in (*children(process.pid), process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)


def stores(out: Path) -> int:
    return len(list(out.glob("STORE-*"))) if out.exists() else 0


WAYS = [*product([1, 2], ["workers are starting", "stores are made"], [signal.SIGINT, signal.SIGTERM])]


@pytest.mark.parametrize(("jobs", "moment", "sent"), today(WAYS, 4))
def test_an_interruption_is_one_line(tmp_path: Path, jobs: int, moment: str, sent: signal.Signals) -> None:
    out = tmp_path / "fleet"
    with running(out, jobs) as process:
        if moment == "stores are made":
            await_("no store was made", lambda: stores(out) > 2)
        else:
            await_("nothing was begun", out.exists)
        started = children(process.pid)
        if sent is signal.SIGINT:
            os.killpg(process.pid, sent)  # as a terminal does
        else:
            process.send_signal(sent)
        said = process.communicate(timeout=PATIENCE_SECONDS)[1].decode()
        assert process.returncode == 128 + sent
        assert said.startswith("\nqstore-generate: interrupted; ")
        assert said.count("\n") == 2
        assert f"{out}" in said
        assert (f"has no {MANIFEST}" in said) == (stores(out) > 0)
        await_("a process is left", lambda: not started & set(parents()))
    assert not (out / MANIFEST).exists()


def test_the_processes_end_with_the_command(tmp_path: Path) -> None:
    out = tmp_path / "fleet"
    with running(out, 2) as process:
        await_("no store was made", lambda: stores(out) > 2)
        started = workers(process.pid)
        assert len(started) == 2
        process.kill()
        await_("a process is left", lambda: not started & set(parents()))
    assert not (out / MANIFEST).exists()


def test_a_process_that_is_killed_is_reported(tmp_path: Path) -> None:
    out = tmp_path / "fleet"
    with running(out, 2) as process:
        await_("no store was made", lambda: stores(out) > 2)
        os.kill(min(workers(process.pid)), signal.SIGKILL)
        said = process.communicate(timeout=PATIENCE_SECONDS)[1].decode()
        assert process.returncode == 2
        assert said == (
            "qstore-generate: a process that was creating a store was killed, or ran out of memory; "
            f"{out} has no {MANIFEST}, so the fleet is incomplete: remove it, or choose another directory\n"
        )


def test_a_fleet_that_is_not_whole_is_recognized_later(tmp_path: Path) -> None:
    (tmp_path / "fleet" / "STORE-0001").mkdir(parents=True)
    done = generate(tmp_path / "fleet", "--messages", "5")
    assert done.exit_code == 2
    assert f"not empty; name a directory that does not exist, or is empty; {tmp_path}/fleet has no" in done.stderr


# ---- a disk that is full ----


@pytest.fixture
def small_files() -> None:
    """Here files are allocated in full."""


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(place)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_full_disk_is_reported_in_a_line(full: Path, jobs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.tools.generate.make._PER_STORE", 0)  # so that it is begun
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1 << 40}))
    done: Result = generate(full / "fleet", "--stores", "20", "--queues", "2", "--messages", "300", "--jobs", jobs)
    assert done.exit_code == 2
    assert "No space left on device" in done.stderr
    assert "free some space on that disk" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (full / "fleet").exists()
    again = generate(full / "fleet", "--stores", "1", "--queues", "1", "--messages", "30", "--jobs", jobs)
    assert again.exit_code == 0, "the room is there again"
