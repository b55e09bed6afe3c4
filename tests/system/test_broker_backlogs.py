"""A queue whose depth goes up and down: memory and files end as they began.

    QSTORE_SOAK_MESSAGES=5000000 pytest -m soak -s tests/system/test_broker_backlogs.py

Each message takes 1 KiB, three times; at 5,000,000 they take 8 GB of the disk of the temporary directory. They are read
back from the disk, as they are when they are more than the system's page cache holds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import pytest

from qstore.broker.model.heap import STEP
from tests.bench.backlog import drain, files_below, fill, peak_bytes
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import BrokerMaker, RunningBroker

_MESSAGES: Final = int(os.environ.get("QSTORE_SOAK_MESSAGES", "1000000"))
_SIZE: Final = 1024
_PATIENCE_SECONDS: Final = 60.0 + _MESSAGES / 20_000  # files are given back little by little
_MORE_FILES: Final = 4
"""That a journal may keep ready (`live/growth`)."""
_MORE_MEMORY: Final = STEP + (16 << 20)
"""Bytes that stay, however long the backlog was: what is not worth returning, and what a first one brings into use."""
_INDEX_BYTES: Final = 40
"""For each message that is out of memory."""
_MORE_AT_MOST: Final = 64 << 20
"""Bytes that a drain may need besides the index: messages that are on their way, and shared pages."""


def settled_files(directories: list[Path], most: int) -> int:
    """Files in journals and paging files, when there are no more than `most`, or after a while."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while (found := files_in(directories)) > most and time.monotonic() < end:
        time.sleep(0.5)
    return found


def files_in(directories: list[Path]) -> int:
    """How many there are."""
    return sum(files_below(each)[0] for each in directories)


def settled_memory(broker: RunningBroker, most: int) -> int:
    """The broker's memory, when it is no more than `most`, or after a while."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while (found := broker.resident_bytes()) > most and time.monotonic() < end:
        time.sleep(0.5)
    return found


def forget_pages(directory: Path) -> None:
    """Have the system drop what its page cache has of the files there, if that is on the disk."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@pytest.mark.soak
@pytest.mark.parametrize("durable", [pytest.param(True, id="durable"), pytest.param(False, id="transient")])
def test_depth_goes_up_and_down(make_broker: BrokerMaker, durable: bool) -> None:
    count = _MESSAGES
    broker = make_broker("--default-queue-limit", "0", "--queue-memory", "8M").start()
    with RawPeer(broker.port) as peer:
        peer.declare("q", durable=durable)
    fill(broker.port, "q", 100, _SIZE, durable=durable)
    drain(broker.port, "q", 100)
    directories = [broker.data_directory / "rhm" / "jrnl", broker.data_directory / "paging"]
    first_files = files_in(directories)
    first_memory = broker.resident_bytes()
    for _ in range(3):
        fill(broker.port, "q", count, _SIZE, durable=durable)
        out = files_below(broker.data_directory)[1]
        assert out > count * _SIZE // 2, "the messages are not on the disk"
        forget_pages(broker.data_directory)
        drain(broker.port, "q", count, is_checked=True)
        memory = settled_memory(broker, first_memory + _MORE_MEMORY)
        files = settled_files(directories, first_files + _MORE_FILES)
        peak = peak_bytes(broker.pid)
        print(f"{files} files, {memory >> 20} MiB, peak {peak >> 20} MiB, first {first_memory >> 20} MiB")
        assert memory <= first_memory + _MORE_MEMORY
        assert files <= first_files + _MORE_FILES
        assert peak <= first_memory + _INDEX_BYTES * count + _MORE_AT_MOST
    assert broker.stop() == 0
