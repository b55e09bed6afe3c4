"""Cost of unused durable queues: to create them, on the disk, in memory, and at a start."""

from __future__ import annotations

import time
from statistics import median

from tests.bench.backlog import files_below, peak_bytes
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import RunningBroker

_PATIENCE_SECONDS = 600.0


def idle_queues(broker: RunningBroker, count: int) -> dict[str, float | int | str]:
    """Create so many durable queues on a broker that is running, one after the other; stop it, and start it again.

    Returns what was measured, with units in the names.
    """
    before, used = broker.resident_bytes(), files_below(broker.data_directory)[1]
    took: list[float] = []
    cpu = broker.cpu_seconds()
    with RawPeer(broker.port) as peer:
        for number in range(count):
            began = time.perf_counter()
            peer.declare(f"q{number}", durable=True)
            took.append(time.perf_counter() - began)
    cpu = broker.cpu_seconds() - cpu
    resident = broker.resident_bytes()
    files, size = files_below(broker.data_directory)
    began = time.perf_counter()
    assert broker.stop() == 0, broker.log_text()
    stopped = time.perf_counter() - began
    began = time.perf_counter()
    broker.launch()
    broker.wait_for_port(_PATIENCE_SECONDS)
    up = time.perf_counter() - began
    took.sort()
    found: dict[str, float | int | str] = {
        "queues": count,
        "created_ms_median": median(took) * 1e3,
        "created_ms_mean": sum(took) / count * 1e3,
        "created_ms_p99": took[count * 99 // 100] * 1e3,
        "created_cpu_ms": cpu / count * 1e3,
        "files": files,
        "disk_mib": (size - used) / 2**20,
        "memory_kib_each": (resident - before) / count / 1024,
        "stopped_s": stopped,
        "up_s": up,
        "up_cpu_s": broker.cpu_seconds(),
        "up_peak_mib": peak_bytes(broker.pid) / 2**20,
        "up_resident_mib": broker.resident_bytes() / 2**20,
    }
    with RawPeer(broker.port) as peer:
        assert peer.message_count(f"q{count - 1}") == 0
    return found
