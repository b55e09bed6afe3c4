"""The memory ceiling: what is counted, when publishers are stopped and refused, and when an allocation fails."""

from __future__ import annotations

import errno
import logging
import mmap
from pathlib import Path

import pytest

from qstore.broker.log.logs import NOTICE
from qstore.broker.model import memory
from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.model.memory import MESSAGE_OVERHEAD, MemoryCeiling, State, default_ceiling, resident_bytes
from qstore.broker.settings import BrokerSettings
from tests.support.compiled import replaces
from tests.support.fake_store import Model

LIMIT = 1_000_000


class Ceiling:
    """A ceiling of LIMIT bytes, of which `percent` are held."""

    def __init__(self, *, resident: int = 1 << 40) -> None:
        self.percent = 0
        self.resident = resident
        self.changes: list[State] = []
        self.ceiling = MemoryCeiling(LIMIT, lambda: LIMIT * self.percent // 100, lambda: self.resident)
        self.ceiling.changed = lambda: self.changes.append(self.ceiling.state)

    def at(self, percent: int) -> State:
        self.percent = percent
        self.ceiling.count()
        return self.ceiling.state


def test_the_states_and_the_ways_between_them() -> None:
    held = Ceiling()
    steps = [
        (0, State.AMPLE), (89, State.AMPLE), (90, State.SHORT), (81, State.SHORT), (99, State.SHORT), (100, State.FULL),
        (95, State.FULL), (85, State.SHORT), (79, State.AMPLE), (85, State.AMPLE), (120, State.FULL), (10, State.AMPLE),
    ]  # fmt: skip
    assert [held.at(percent) for percent, _ in steps] == [state for _, state in steps]
    assert held.changes == [State.SHORT, State.AMPLE, State.FULL, State.AMPLE]


def test_only_a_full_ceiling_refuses() -> None:
    held = Ceiling()
    for percent in (0, 95):
        held.at(percent)
        held.ceiling.check()
    held.at(100)
    with pytest.raises(ResourceLimitExceededError, match=r"1000000 of 1000000 bytes \(--broker-memory\)"):
        held.ceiling.check()


def test_double_counting_is_capped_by_the_process_size() -> None:
    held = Ceiling(resident=LIMIT // 2)
    assert held.at(5000) is State.AMPLE
    held.resident = LIMIT
    assert held.at(5000) is State.FULL


def test_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    held = Ceiling()
    for percent in (50, 91, 95, 100, 130, 50, 60):
        held.at(percent)
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING, logging.CRITICAL, NOTICE]
    assert all("--broker-memory" in record.getMessage() for record in caplog.records)


def test_without_a_ceiling_nothing_is_counted() -> None:
    def held() -> int:
        raise AssertionError("it is counted")

    ceiling = MemoryCeiling(0, held)
    ceiling.grown = 1 << 60
    ceiling.count()
    ceiling.check()


def test_an_allocation_that_fails_refuses_until_there_is_memory_again(caplog: pytest.LogCaptureFixture) -> None:
    held = Ceiling()
    for _ in range(3):
        held.ceiling.exhausted("Client x")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["Client x"]
    with pytest.raises(ResourceLimitExceededError):
        held.ceiling.check()
    assert held.at(10) is State.AMPLE
    assert held.changes == [State.FULL, State.AMPLE]


@replaces
def test_the_reserve_is_taken_only_when_as_much_is_left_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the next client would find nothing, and it would have to be freed again at once."""
    held = Ceiling()
    held.ceiling.exhausted("Client x")
    free = memory._RESERVE * 3 // 2
    mapped = mmap.mmap

    def allocate(descriptor: int, size: int, **options: int) -> mmap.mmap:
        if size > free:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return mapped(descriptor, size, **options)

    monkeypatch.setattr(memory.mmap, "mmap", allocate)
    assert held.at(10) is State.FULL
    free = memory._RESERVE * 2
    assert held.at(10) is State.AMPLE
    assert not held.ceiling.is_exhausted


def test_the_reserve_takes_no_memory() -> None:
    before = resident_bytes()
    ceilings = [MemoryCeiling(0, lambda: 0) for _ in range(16)]
    assert resident_bytes() - before < 16 * memory._RESERVE // 2
    assert not any(ceiling.is_exhausted for ceiling in ceilings)


@replaces
@pytest.mark.parametrize("limit", [0, LIMIT])
def test_a_process_that_can_get_no_more_memory_is_full_until_it_can(
    limit: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = 0

    class Mapping:
        def __init__(self, _descriptor: int, size: int, **_options: int) -> None:
            if size > free:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")

        def close(self) -> None:
            pass

    ceiling = MemoryCeiling(limit, lambda: 0)
    changes: list[State] = []
    ceiling.changed = lambda: changes.append(ceiling.state)
    monkeypatch.setattr(memory.mmap, "mmap", Mapping)
    ceiling.probe()
    ceiling.probe()
    ceiling.count()
    assert [record.getMessage().partition(".")[0] for record in caplog.records] == [
        "Memory: the process is nearly out of memory: it cannot get 8 MiB more"
    ]
    with pytest.raises(ResourceLimitExceededError, match="the system gives its process no more"):
        ceiling.check()
    assert not ceiling.has_room(1, 1.0)
    free = memory._HEADROOM
    ceiling.count()
    ceiling.check()
    assert ceiling.has_room(1, 1.0)
    assert changes == [State.FULL, State.AMPLE]


def test_without_a_ceiling_it_refuses_no_longer_than_that(caplog: pytest.LogCaptureFixture) -> None:
    ceiling = MemoryCeiling(0, lambda: 0)
    ceiling.exhausted("Client x")
    with pytest.raises(ResourceLimitExceededError):
        ceiling.check()
    ceiling.count()
    ceiling.check()


def test_queues_transactions_and_unfinished_messages_are_held() -> None:
    model = Model(BrokerSettings(memory_bytes=LIMIT))
    queue = model.queue("q")
    model.publish("q", b"123", b"")
    transaction = model.broker.begin_transaction(0)
    transaction.publish(model.message("q", b"4567"), model.broker.default_host.exchanges[""])
    model.broker.unfinished_bytes = lambda: 1000
    assert model.broker.held_memory() == 3 * MESSAGE_OVERHEAD + 3 + 4 + 1000
    results: list[object] = []
    model.broker.end_transaction(transaction)
    transaction.commit(results.append)
    queue.purge(1)
    assert model.broker.held_memory() == 2 * MESSAGE_OVERHEAD + 4 + 1000


def test_growth_is_counted_in_steps_and_without_freed_memory() -> None:
    model = Model(BrokerSettings(memory_bytes=LIMIT))
    ceiling = model.broker.memory
    ceiling._resident = lambda: 1 << 40
    queue = model.queue("q")
    for _ in range(100):  # a steady flow of a tenth of the ceiling
        model.publish("q", bytes(LIMIT // 10), persistent=False)
        model.run()
        queue.purge()
    assert ceiling.state is State.AMPLE
    for _ in range(10):
        model.publish("q", bytes(LIMIT // 10), persistent=False)
        model.run()
    assert ceiling.state is State.FULL


def test_a_transaction_grows_too() -> None:
    model = Model(BrokerSettings(memory_bytes=LIMIT))
    ceiling = model.broker.memory
    ceiling._resident = lambda: 1 << 40
    model.queue("q")
    transaction = model.broker.begin_transaction(0)
    with pytest.raises(ResourceLimitExceededError, match="--broker-memory"):  # noqa: PT012 – whichever it is
        for _ in range(12):
            transaction.publish(model.message("q", bytes(LIMIT // 10)), model.broker.default_host.exchanges[""])
            ceiling.check()
    assert transaction.memory >= LIMIT


@replaces
def test_the_default_is_half_of_the_smallest_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    group = tmp_path / "outer" / "inner"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (tmp_path / "outer" / "memory.max").write_text(f"{LIMIT}\n")
    file = tmp_path / "cgroup"
    file.write_text("1:name=systemd:/elsewhere\n0::/outer/inner\n")
    monkeypatch.setattr(memory, "_CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(memory, "_CGROUP_OF_PROCESS", file)
    assert default_ceiling() == LIMIT // 2
    (tmp_path / "memory" / "box").mkdir(parents=True)
    (tmp_path / "memory" / "box" / "memory.limit_in_bytes").write_text(f"{LIMIT // 4}\n")
    file.write_text("7:cpu,memory:/box\n0::/outer\n")
    assert default_ceiling() == LIMIT // 8
    monkeypatch.setattr(memory.resource, "getrlimit", lambda kind: (4096, memory.resource.RLIM_INFINITY))
    assert default_ceiling() == 2048


@replaces
def test_the_reserve_is_freed_without_memory() -> None:
    failing = pytest.importorskip("_testcapi", reason="CPython's tests of its C API are not installed")
    ceiling = MemoryCeiling(0, lambda: 0)
    free, works_again = ceiling.free_reserve, failing.remove_mem_hooks
    failing.set_nomemory(0)
    try:
        free()
    finally:
        works_again()
    assert ceiling.is_exhausted
