"""A queue whose depth goes up and down: memory and files end as they began.

    QSTORE_SOAK_MESSAGES=5000000 pytest -m soak -s tests/system/test_broker_backlogs.py

Each message takes 1 KiB, three times; at 5,000,000 they take 6 GB of the disk of the temporary directory.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import pytest

from tests.bench.backlog import drain, files_below, fill, peak_bytes
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import BrokerMaker

_MESSAGES: Final = int(os.environ.get("QSTORE_SOAK_MESSAGES", "200000"))
_SIZE: Final = 1024
_PATIENCE_SECONDS: Final = 120.0
_MORE_MEMORY: Final = 16 << 20
"""Bytes of the allocator that a first backlog may leave behind; the following ones nothing more."""
_MORE_FILES: Final = 4
"""That a journal may keep ready (`live/expansion`)."""
_MORE_AGAIN: Final = 4 << 20


def settled_files(directories: list[Path], most: int) -> int:
    """Files in journals and paging files, when there are no more than `most`, or after a while."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while (found := files_in(directories)) > most and time.monotonic() < end:
        time.sleep(0.5)
    return found


def files_in(directories: list[Path]) -> int:
    """How many there are."""
    return sum(files_below(each)[0] for each in directories)


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
    memory: list[int] = []
    for _ in range(3):
        fill(broker.port, "q", count, _SIZE, durable=durable)
        out = files_below(broker.data_directory)[1]
        assert out > count * _SIZE // 2, "the messages are not on the disk"
        drain(broker.port, "q", count)
        files = settled_files(directories, first_files + _MORE_FILES)
        assert files <= first_files + _MORE_FILES
        memory.append(broker.resident_bytes())
        print(f"{files} files, {memory[-1] >> 20} MiB, peak {peak_bytes(broker.pid) >> 20} MiB")
    assert memory[0] - first_memory < _MORE_MEMORY + 40 * count
    assert memory[2] - memory[0] < _MORE_AGAIN
    assert broker.stop() == 0
