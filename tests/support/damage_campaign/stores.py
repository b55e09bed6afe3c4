"""The stores that are damaged: of each format, crashed and closed cleanly, with copies of their own past.

Some lived here, so that every file has a past which it can go back to; the others are those of real qpidds
(`tests/fixtures`). A life of version 2 is one store, copied at five moments:

    first     queues, bindings, messages and a transaction in doubt; a copy made while it was open is a crashed store
    crashed   a queue deleted, another one, an exchange and bindings made, and a ring that went round
    closed    closed cleanly after that
    again     opened again, used, and crashed
    ended     closed cleanly for the second time
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.broker_records.topology import Binding, Exchange, GeneralObject, Queue
from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.formats.values import typed_map
from qstore.store.builders.version_1_build import encode_databases
from qstore.store.environment import Environment, tool_environment
from qstore.store.live.transactions import Enqueue
from tests.support.fixtures import LEGACY_STORES, LINEAR_STORES, StoreOpener
from tests.support.opened_store import GEOMETRY, Calls, OpenedStore, enqueued
from tests.support.planted_damage import BILLS, QUEUES, UNPAID, linear_store, version_1_store, version_2_store

QSTORE, LEGACYSTORE, LINEARSTORE = "qstore", "legacystore", "linearstore"
FORMATS: Final = (QSTORE, LEGACYSTORE, LINEARSTORE)
CLOSED: Final = "closed"
"""The moment of a clean close after which its life went on."""
_FIRST_SECOND: Final = 1_750_000_000
_BODY: Final = 3000  # bytes of a message of the queue whose ring goes round ...
_ROUND: Final = 110  # ... after so many of them


class CampaignStore(NamedTuple):
    """An undamaged store.

    Attributes:
        name: what it is.
        format: of `FORMATS`.
        clean: whether it was closed cleanly.
        path: the store directory. Nothing in it may be written to.
        older: the same store at earlier moments, the earliest first.
    """

    name: str
    format: str
    clean: bool
    path: Path
    older: tuple[Path, ...] = ()


def campaign_stores(directory: Path, open_fixture: StoreOpener) -> dict[str, list[CampaignStore]]:
    """Format -> its stores, made in `directory`."""
    return {
        QSTORE: _version_2(directory),
        LEGACYSTORE: [*_legacy(directory), *(_of_qpidd(open_fixture, LEGACYSTORE, name) for name in LEGACY_STORES)],
        LINEARSTORE: [*_linear(directory), *(_of_qpidd(open_fixture, LINEARSTORE, name) for name in LINEAR_STORES)],
    }


def _of_qpidd(open_fixture: StoreOpener, format_: str, name: str) -> CampaignStore:
    return CampaignStore(name, format_, name.endswith("clean"), open_fixture(name).path)


# ---- version 2 ----


def seeded_environment(seed: int) -> Environment:
    """A tool's, but for chance and time."""
    ticks = count(_FIRST_SECOND * 10**9, 10**6)
    return tool_environment()._replace(random_bits=random.Random(seed).getrandbits, clock=partial(next, ticks))


def _version_2(directory: Path) -> list[CampaignStore]:
    moments = _life(directory / "qstore")
    names = list(moments)
    lived = [
        CampaignStore(
            f"{name} (version 2)", QSTORE, name in (CLOSED, "ended"), moments[name],
            tuple(moments[older] for older in names[: names.index(name)]),
        )
        for name in names[1:]
    ]  # fmt: skip
    left, closed = (version_2_store(directory / f"told-{name}", clean=False).path for name in ("left", "closed"))
    _Life(closed, seeded_environment(4)).close()
    reported = [
        CampaignStore("told, left (version 2)", QSTORE, False, left),
        CampaignStore("told, closed (version 2)", QSTORE, True, closed),
    ]
    return [*lived, *reported]


def _message(queue: str, number: int, size: int) -> bytes:
    body = f"{queue} {number} ".encode().ljust(size, b".")
    properties = {"routing_key": queue, "delivery_mode": 2}
    return encode_message(body, destination="amq.direct", delivery_properties=properties)


class _Life:
    """A store that is used, once it is made or opened again."""

    def __init__(self, path: Path, environment: Environment) -> None:
        self.path = path
        self._opened = OpenedStore(environment, path)
        recovered = self._opened.recovered()
        self._rids = {name: [each.rid for each in found if each.xid is None] for name, found in recovered.items()}
        self._sent = count(1000 * len(self._rids))

    def close(self) -> None:
        assert self._opened.store.close()

    def _do(self, change: Callable[..., Any], *arguments: Any) -> Any:
        calls = Calls()
        change(*arguments, calls)
        self._opened.wait(calls)
        made, error = calls[0]
        assert error is None
        return made

    def queue(self, record: Queue) -> None:
        self._rids[record.name] = []
        self._do(self._opened.store.changes.create_queue, record, GEOMETRY)

    def delete(self, name: str) -> None:
        self._do(self._opened.store.changes.delete_queue, self._opened.journal(name))

    def exchange(self, record: Exchange, *bound: str) -> None:
        changes = self._opened.store.changes
        number = self._do(changes.create_exchange, record)
        for name in bound:
            self._do(changes.create_binding, number, Binding(self._opened.journal(name).queue_id, name, f"{name}.key"))

    def general(self, record: GeneralObject) -> None:
        self._do(self._opened.store.changes.create_general, record)

    def send(self, name: str, messages: int, size: int = 200) -> None:
        for _ in range(messages):
            journal = self._opened.journal(name)
            data = _message(name, next(self._sent), size)
            self._rids[name].append(self._opened.enqueue(journal, data))
            if len(self._rids[name]) % 3 == 0:
                self._opened.flush(journal)
        self._opened.flush(self._opened.journal(name))

    def take(self, name: str, messages: int) -> None:
        journal = self._opened.journal(name)
        for _ in range(messages):
            self._opened.store.append.dequeue(journal, self._rids[name].pop(0))
        self._opened.flush(journal)

    def transaction(self, xid: bytes, *names: str) -> None:
        """One message into each queue, and one out of it: committed, or prepared where there is an xid."""
        journals = [self._opened.journal(name) for name in names]
        enqueues: list[Enqueue] = [enqueued(each, _message(each.name, next(self._sent), 100)) for each in journals]
        dequeues = [(each, self._rids[each.name].pop(0)) for each in journals]
        calls, transactions = Calls(), self._opened.store.transactions
        if xid:
            transactions.prepare(xid, enqueues, dequeues, calls)
        else:
            rids = transactions.commit(enqueues, dequeues, calls)
            for name, rid in zip(names, rids, strict=True):
                self._rids[name].append(rid)
        self._opened.wait(calls)
        assert calls == [None]

    def note(self) -> None:
        """Name new journals, and record how far the store is synced, as a broker does about every second."""
        self._opened.store._stock.name_all()
        self._opened.store._synced.record()

    def copy(self, path: Path) -> Path:
        shutil.copytree(self.path, path)
        return path


def _life(directory: Path) -> Mapping[str, Path]:
    """The moments of a life by name, in their order."""
    directory.mkdir()
    life = _Life(directory / "store", seeded_environment(5))
    moments: dict[str, Path] = {}

    def moment(name: str) -> None:
        moments[name] = life.copy(directory / name)

    _begin(life)
    life.note()
    moment("first")
    _go_on(life)
    life.note()
    moment("crashed")
    life.close()
    moment(CLOSED)
    life = _Life(directory / "store", seeded_environment(6))
    _end(life)
    life.note()
    moment("again")
    life.close()
    moment("ended")
    return moments


def _begin(life: _Life) -> None:
    for record in (Queue("orders", typed_map({"qpid.max_count": 9000})), Queue("bills"), Queue("gone"), Queue("idle")):
        life.queue(record)
    life.exchange(Exchange("trade", True, "topic"), "orders", "bills", "idle")
    life.send("orders", 12)
    life.send("bills", 9, 700)
    life.send("gone", 4)
    life.transaction(encode_dtx_xid(7, b"global", b"branch"), "orders", "bills")
    life.transaction(b"", "orders", "bills")


def _go_on(life: _Life) -> None:
    life.delete("gone")
    life.queue(Queue("late", typed_map({}), "dead"))
    life.queue(Queue("ring"))
    life.exchange(Exchange("dead", True, "fanout"), "late", "orders")
    life.general(GeneralObject("domain", "somewhere", typed_map({"url": "host:5672"})))
    life.send("late", 7)
    life.take("orders", 3)
    life.send("orders", 6)
    for _ in range(_ROUND // 10):
        life.send("ring", 10, _BODY)
        life.take("ring", 9)
    life.send("ring", 5)


def _end(life: _Life) -> None:
    life.send("idle", 3)
    life.send("late", 3)
    life.queue(Queue("last"))
    life.exchange(Exchange("new", True, "direct"), "last", "late")
    life.send("last", 5)


# ---- qpidd's ----


def _legacy(directory: Path) -> Sequence[CampaignStore]:
    moments = [_version_1(directory / f"legacy-{bills}", bills) for bills in _MOMENTS]
    return [CampaignStore("told (version 1)", LEGACYSTORE, False, moments[-1], tuple(moments[:-1]))]


def _linear(directory: Path) -> Sequence[CampaignStore]:
    moments = [_line(directory / f"linear-{bills}", bills) for bills in _MOMENTS]
    return [CampaignStore("told (linearstore)", LINEARSTORE, False, moments[-1], tuple(moments[:-1]))]


_MOMENTS: Final = (UNPAID, 20, BILLS - 2, BILLS)  # how many bills had come


def _version_1(path: Path, bills: int) -> Path:
    version_1_store(path, bills=bills)
    _databases(path / "rhm/dat", bills)
    return path


def _line(path: Path, bills: int) -> Path:
    linear_store(path, bills=bills)
    _databases(path / "qls/dat2", bills)
    return path


def _databases(directory: Path, bills: int) -> None:
    """The topology of a store when so many bills had come: an exchange and its bindings are made on the way."""
    queues = {number: Queue(name) for number, name in enumerate(QUEUES.values(), 1)}
    exchanges = {10: Exchange("early", True, "direct")}
    bindings = [(10, Binding(number, record.name, record.name)) for number, record in queues.items()]
    if bills > min(_MOMENTS):
        exchanges[11] = Exchange("late", True, "fanout")
        bindings.append((11, Binding(1, queues[1].name, "")))
    if bills == max(_MOMENTS):
        bindings.append((10, Binding(1, queues[1].name, "another")))
    directory.mkdir(parents=True)
    for name, content in encode_databases(queues, exchanges, bindings, {}, random.Random(3).getrandbits).items():
        (directory / name).write_bytes(content)
