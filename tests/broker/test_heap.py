"""Freed memory goes back to the system: when, how often, and where the allocator cannot do it."""

from __future__ import annotations

import re
import resource
import zlib
from pathlib import Path

import pytest

from qstore.broker.model import heap as heap_module
from qstore.broker.model.heap import STEP, Allocated, Heap
from qstore.broker.model.memory import resident_bytes

MIB = 1 << 20


class Process:
    """A process with memory in use, and free memory that is resident until it is returned."""

    def __init__(self, *, has_figures: bool = True, helps: bool = True) -> None:
        self.has_figures, self.helps = has_figures, helps
        self.used, self.free, self.returned, self.others = 30 * MIB, 0, 0, 0
        self.now = self.spent = 0.0
        self.asked = self.trims = 0
        self.heap = Heap(self.resident, self.told, self.trim, lambda: self.now, lambda: self.spent)

    def resident(self) -> int:
        return self.others + self.used + self.free - self.returned

    def told(self) -> Allocated:
        self.asked += 1
        self.spent += 0.0001
        return Allocated(fordblks=self.free, uordblks=self.used, hblkhd=0) if self.has_figures else Allocated()

    def trim(self) -> None:
        self.trims += 1
        self.spent += 0.01
        if self.helps:
            self.returned = self.free

    def takes(self, size: int) -> None:
        """Memory comes into use, first what was returned."""
        reused = min(size, self.free)
        self.free -= reused
        self.returned = min(self.returned, self.free)
        self.used += size

    def frees(self, size: int) -> None:
        self.used -= size
        self.free += size

    def look(self, seconds: float = 60.0) -> bool:
        self.now += seconds
        return self.heap.look()


def test_a_backlog_that_is_gone_leaves_nothing() -> None:
    process = Process()
    for _ in range(3):
        process.takes(200 * MIB)
        assert not process.look()
        process.frees(200 * MIB)
        assert process.look()
        assert process.resident() == 30 * MIB
        assert not process.look()
    assert process.trims == 3


def test_a_process_that_has_not_grown_is_not_asked() -> None:
    process = Process()
    process.takes(STEP - 1)
    process.frees(STEP - 1)
    asked = process.asked
    assert not process.look()
    assert process.asked == asked


def test_memory_that_is_in_use_stays() -> None:
    process = Process()
    process.takes(500 * MIB)
    for _ in range(10):
        assert not process.look()
    process.frees(STEP - 1)
    assert not process.look()
    process.frees(1)
    assert process.look()


def test_memory_reused_and_freed_is_returned_again() -> None:
    process = Process()
    process.takes(300 * MIB)
    process.frees(200 * MIB)
    assert process.look()
    process.takes(50 * MIB)
    assert not process.look()
    process.frees(50 * MIB)
    assert process.look()
    assert process.resident() == 130 * MIB


def test_trimming_takes_little_time() -> None:
    process = Process()
    process.takes(1000 * MIB)
    process.frees(100 * MIB)
    assert process.look(0.5)
    looks = 0
    while process.trims == 1:
        process.frees(1 * MIB)
        process.look(0.05)
        looks += 1
    assert looks * 0.05 >= 3.0  # 0.01 s, 300 times
    asked, began = process.asked, process.now
    process.frees(STEP // 2)
    while process.now < began + 20:
        process.look(0.05)
    assert process.asked - asked <= 20 / 0.5 + 1  # 0.0001 s, 5,000 times


def test_a_trim_that_does_not_help_is_not_repeated_soon() -> None:
    process = Process(helps=False)
    process.takes(1000 * MIB)
    process.frees(400 * MIB)
    assert process.look(0.5)
    process.takes(100 * MIB)
    assert not process.look(0.5)
    process.takes(500 * MIB)
    process.frees(600 * MIB)
    assert not process.look(45.0)
    assert process.look(10.0)


def test_free_pages_that_were_returned_and_are_used_instead_of_others() -> None:
    """The allocator need not use first what is resident: as much is free as before, and more of it resident."""
    process = Process()
    process.takes(300 * MIB)
    process.frees(200 * MIB)
    assert process.look()
    process.returned -= 50 * MIB
    assert process.look()
    assert process.resident() == 130 * MIB


def test_memory_of_others_is_not_returned() -> None:
    """Python takes that of small objects from the system itself."""
    process = Process()
    process.takes(300 * MIB)
    process.others = 100 * MIB
    assert not process.look()
    process.frees(STEP)
    assert process.look()
    assert not process.look()


def test_an_allocator_without_figures() -> None:
    process = Process(has_figures=False)
    process.takes(100 * MIB)
    process.frees(100 * MIB)
    for _ in range(5):
        assert not process.look()
    assert process.trims == 0


def test_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_module.ctypes, "CDLL", lambda _name: object())
    heap_module.trim()
    heap_module.leave_code()


def code_resident() -> int:
    """Bytes of code in files that this process has mapped."""
    total, is_code = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            is_code = " r-xp " in line and "/" in line
        elif is_code and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


def test_code_that_only_the_start_has_run_leaves_the_process() -> None:
    before = code_resident()
    heap_module.leave_code()
    assert code_resident() < before - MIB
    assert zlib.decompress(zlib.compress(bytes(1000))) == bytes(1000)  # what is run again comes back


@pytest.mark.skipif(heap_module.allocated().fordblks is None, reason="the C library does not tell")
def test_free_memory_of_this_process_is_returned() -> None:
    heap_module.trim()  # what other tests have left
    heap = Heap()
    blocks = [bytes(4000 + number % 64) for number in range(30_000)]
    kept = blocks[::100]
    full = resident_bytes()
    del blocks
    assert heap.look()
    assert resident_bytes() < full - 60 * MIB
    assert len(kept) == 300


def test_resident_bytes_are_known_when_no_descriptor_is_free() -> None:
    """Else the broker's timer, and each message when memory is short, would fail with an unhandled exception."""
    before, limits = resident_bytes(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        found = resident_bytes()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert before - MIB < found < 1 << 40
