"""Makes one store of a fleet: its journals, its catalogue, and the list of what is prepared.

A store is made as after a crash: nothing in it says that it was closed cleanly. Times, ids and salts come from the
store's seed, so that the same plan gives the same bytes; but for the files of version 2's catalogue, into which RocksDB
writes times and ids of its own: there the entries are the same.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from formats.broker_records.wiring import Binding, Exchange, Queue, encode_binding, encode_exchange, encode_queue
from formats.catalogue import BindingEntry, ExchangeEntry, Kind, QueueEntry
from formats.rhm.geometry import Geometry
from formats.rhm.jinf import DEFAULT_BASE_NAME, TPL_BASE_NAME
from store.builders.version_1_catalogue import encode_databases, write_databases
from store.builders.version_1_journal import journal_path, version_1_info
from store.catalogue.catalogue import Catalogue
from store.catalogue.store_directory import StoreDirectory
from store.environment import Environment, tool_environment
from store.journal.write.storage import remove_journal
from store.live.queue_journal import TPL_NAME
from store.live.taking_up import journal_info
from store.parameters import StoreParameters
from tools.generate.fleet import PREPARED_LINEAR, FleetSpec, QueuePlan, StoreFormat, StorePlan, prepared_geometry
from tools.generate.linear_journal import TPL_QUEUE, LinearJournal, pool_directory
from tools.generate.messages import BEGINNING
from tools.generate.ring_journals import GeneratedJournal, Version1Journal, Version2Journal
from tools.generate.seeds import seeded

_TICK: Final = 1_000_000  # nanoseconds from one look at the clock to the next
_EXCHANGE_TYPES: Final = ("direct", "topic", "fanout", "headers")
_SOFTWARE: Final = "generated"  # no version: the bytes do not change with it


def pinned_environment(seed: int, store: int) -> Environment:
    """That of a tool, with a clock and random numbers that depend on these alone."""
    source, ticks = seeded(seed, store, "environment"), count(BEGINNING * 1_000_000_000, _TICK)
    return replace(tool_environment(), clock=lambda: next(ticks), random_bits=source.getrandbits)


class GeneratedStore(Protocol):
    """A store that is made, of any format."""

    def journal(self, queue: QueuePlan) -> GeneratedJournal:
        """A new journal for a queue, empty. Raises OSError, StoreError."""

    def prepared_list(self) -> GeneratedJournal:
        """The journal of the transactions that are prepared, empty. Asked for if there is one, at most once."""

    def finish(self, plan: StorePlan, highest_rid: int) -> None:
        """Write the wiring, when all journals are finished. Raises OSError, StoreError, CatalogueError."""

    def close(self) -> None:
        """Let everything go. Twice is allowed."""


def new_store(spec: FleetSpec, environment: Environment, path: str) -> GeneratedStore:
    """A store that is made in the directory `path`, which is there and empty. Raises OSError, StoreError."""
    if spec.format is StoreFormat.QSTORE:
        return Version2Store(environment, path, prepared_geometry(spec))
    if spec.format is StoreFormat.LEGACYSTORE:
        return Version1Store(environment, path, prepared_geometry(spec))
    return LinearStore(environment, path)


def _wiring(plan: StorePlan) -> tuple[dict[int, Exchange], list[tuple[int, Binding]]]:
    """The exchanges by number, and the bindings with their exchanges' numbers."""
    types = _EXCHANGE_TYPES
    exchanges = {at: Exchange(name, True, types[(at - 1) % len(types)]) for at, name in enumerate(plan.exchanges, 1)}
    bindings = [(each.exchange, Binding(each.number, each.name, each.name)) for each in plan.queues if each.exchange]
    return exchanges, bindings


class Version2Store:
    """A store of version 2 in the directory `path`; its prepared list has the geometry `prepared`."""

    def __init__(self, environment: Environment, path: str, prepared: Geometry) -> None:
        self._environment, self._parameters, self._prepared = environment, StoreParameters(), prepared
        self._directory = StoreDirectory(environment, path, _SOFTWARE)
        self._new = self._directory.begin_new(prepared, self._parameters.flush_alignment)
        self._store_id = UUID(int=environment.random_bits(128), version=4)
        self._key_value = environment.open_key_value(self._new.catalogue, create=True)
        self._is_open = True
        self._catalogue = Catalogue.create(self._key_value, self._store_id)

    def journal(self, queue: QueuePlan) -> GeneratedJournal:
        """A new journal for a queue."""
        record = encode_queue(Queue(queue.name))
        info = journal_info(
            self._environment,
            queue.name,
            queue.geometry,
            self._parameters.flush_alignment,
            queue_id=queue.number,
            incarnation=1,
            record=record,
        )
        journal = Version2Journal(self._environment, self._new.journal(queue.number), info)
        self._catalogue.create_queue(QueueEntry(queue.number, queue.number, 1, record))
        return journal

    def prepared_list(self) -> GeneratedJournal:
        """The journal of what is prepared."""
        directory, alignment = self._new.prepared_list, self._parameters.flush_alignment
        info = journal_info(self._environment, TPL_NAME, self._prepared, alignment, base_name=TPL_BASE_NAME)
        remove_journal(self._environment.disk, directory)
        return Version2Journal(self._environment, directory, info)

    def finish(self, plan: StorePlan, highest_rid: int) -> None:
        """Write the wiring."""
        catalogue = self._catalogue
        exchanges, bindings = _wiring(plan)
        for number, exchange in exchanges.items():
            catalogue.create_exchange(ExchangeEntry(number, encode_exchange(exchange)))
        for number, binding in bindings:
            sequence = catalogue.take_id(Kind.BINDING)
            catalogue.create_binding(BindingEntry(number, binding.queue_id, sequence, encode_binding(binding)))
        # As after a run that came to that record id: all up to the end of its block are reserved.
        while catalogue.rid_high_water() <= highest_rid:
            catalogue.reserve_rids()
        self._new.write_topology(self._store_id, self._key_value)
        self.close()
        self._directory.finish_new(self._new, self._store_id)

    def close(self) -> None:
        """Let the catalogue go."""
        if self._is_open:
            self._is_open = False
            self._key_value.close()


class Version1Store:
    """A legacystore in the directory `path`; its prepared list has the geometry `prepared`."""

    def __init__(self, environment: Environment, path: str, prepared: Geometry) -> None:
        self._environment, self._parameters, self._prepared = environment, StoreParameters(), prepared
        self._root = posixpath.join(path, "rhm")
        Path(self._root, "jrnl").mkdir(parents=True)

    def journal(self, queue: QueuePlan) -> GeneratedJournal:
        """A new journal for a queue."""
        directory = posixpath.join(self._root, "jrnl", journal_path(queue.name))
        Path(directory).parent.mkdir(exist_ok=True)
        parameters = self._parameters
        page, pages = parameters.page_bytes, parameters.wcache_num_pages
        info = version_1_info(
            self._environment, queue.name, directory, DEFAULT_BASE_NAME, queue.geometry, page, pages
        )  # fmt: skip
        return Version1Journal(self._environment, directory, info)

    def prepared_list(self) -> GeneratedJournal:
        """The journal of what is prepared."""
        directory, parameters = posixpath.join(self._root, "tpl"), self._parameters
        page, pages = parameters.tpl_page_bytes, parameters.tpl_wcache_num_pages
        info = version_1_info(self._environment, TPL_NAME, directory, TPL_BASE_NAME, self._prepared, page, pages)
        return Version1Journal(self._environment, directory, info)

    def finish(self, plan: StorePlan, highest_rid: int) -> None:  # noqa: ARG002 (qpidd looks in the journals)
        """Write the wiring."""
        _write_databases(self._environment, posixpath.join(self._root, "dat"), plan)

    def close(self) -> None:
        """Nothing is held."""


class LinearStore:
    """A linearstore in the directory `path`. The links of its journals are absolute, as qpidd makes them."""

    def __init__(self, environment: Environment, path: str) -> None:
        self._environment = environment
        self._root = posixpath.join(path, "qls")
        self._linked: list[tuple[str, LinearJournal]] = []
        for name in ("jrnl2", "tpl2"):
            Path(self._root, name).mkdir(parents=True)

    def journal(self, queue: QueuePlan) -> GeneratedJournal:
        """A new journal for a queue."""
        return self._journal(posixpath.join(self._root, "jrnl2", queue.name), queue.name, queue.geometry.data_size)

    def prepared_list(self) -> GeneratedJournal:
        """The journal of what is prepared."""
        return self._journal(posixpath.join(self._root, "tpl2"), TPL_QUEUE, PREPARED_LINEAR)

    def _journal(self, directory: str, queue: str, data_size: int) -> LinearJournal:
        Path(directory).mkdir(exist_ok=True)
        for name in ("in_use", "returned"):
            Path(pool_directory(self._root, data_size), name).mkdir(parents=True, exist_ok=True)
        journal = LinearJournal(self._environment, self._root, queue, data_size)
        self._linked.append((directory, journal))
        return journal

    def finish(self, plan: StorePlan, highest_rid: int) -> None:  # noqa: ARG002 (as above)
        """Write the wiring, and link the files."""
        for directory, journal in self._linked:
            for path in journal.files():
                Path(directory, posixpath.basename(path)).symlink_to(Path(path).resolve())
        _write_databases(self._environment, posixpath.join(self._root, "dat2"), plan)

    def close(self) -> None:
        """Nothing is held."""


def _write_databases(environment: Environment, directory: str, plan: StorePlan) -> None:
    queues = {each.number: Queue(each.name) for each in plan.queues}
    exchanges, bindings = _wiring(plan)
    files = encode_databases(queues, exchanges, bindings, {}, environment.random_bits)
    write_databases(environment.disk, directory, files)
