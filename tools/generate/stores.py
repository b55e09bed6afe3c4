"""Creates one store of a fleet: its journals, its catalogue, and the prepared list.

A store is created as after a crash: it has no mark of a clean close. Times, ids and salts are derived from the store's
seed, so that the same plan produces the same bytes, except for the files of version 2's catalogue, into which RocksDB
writes its own times and ids: there only the entries are the same.
"""

from __future__ import annotations

import posixpath
from itertools import count
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from qstore.formats.broker_records.topology import (
    Binding,
    Exchange,
    Queue,
    encode_binding,
    encode_exchange,
    encode_queue,
)
from qstore.formats.catalogue import BindingEntry, ExchangeEntry, Kind, QueueEntry
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, TPL_BASE_NAME
from qstore.store.builders.version_1_build import encode_databases, journal_path, version_1_info, write_databases
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.environment import Environment, tool_environment
from qstore.store.journal.write.storage import remove_journal
from qstore.store.live.queue_journal import TPL_NAME, journal_info
from qstore.store.parameters import StoreParameters
from qstore.tools.generate.fleet import (
    BEGINNING,
    PREPARED_LINEAR,
    FleetSpec,
    QueuePlan,
    StoreFormat,
    StorePlan,
    prepared_geometry,
    seeded,
)
from qstore.tools.generate.linear_journals import TPL_QUEUE, LinearJournal, pool_directory
from qstore.tools.generate.ring_journals import GeneratedJournal, Version1Journal, Version2Journal

_TICK: Final = 1_000_000  # nanoseconds between two readings of the clock
_EXCHANGE_TYPES: Final = ("direct", "topic", "fanout", "headers")
_SOFTWARE: Final = "generated"  # no version, so that the bytes do not change with it


def pinned_environment(seed: int, store: int) -> Environment:
    """A tool's environment with a clock and random numbers that depend on the arguments only."""
    source, ticks = seeded(seed, store, "environment"), count(BEGINNING * 1_000_000_000, _TICK)
    return tool_environment()._replace(clock=lambda: next(ticks), random_bits=source.getrandbits)


class GeneratedStore(Protocol):
    """A store that is being created, of any format."""

    def journal(self, queue: QueuePlan) -> GeneratedJournal:
        """Create an empty journal for a queue. Raises OSError, StoreError."""

    def prepared_list(self) -> GeneratedJournal:
        """Create the empty prepared list. Called at most once, and only if there are prepared transactions."""

    def finish(self, plan: StorePlan, highest_rid: int) -> None:
        """Write the topology, after all journals are finished. Raises OSError, StoreError, CatalogueError."""

    def close(self) -> None:
        """Release all resources. May be called twice."""


def new_store(spec: FleetSpec, environment: Environment, path: str) -> GeneratedStore:
    """Start creating a store in the existing, empty directory `path`. Raises OSError, StoreError."""
    if spec.format is StoreFormat.QSTORE:
        return Version2Store(environment, path, prepared_geometry(spec))
    if spec.format is StoreFormat.LEGACYSTORE:
        return Version1Store(environment, path, prepared_geometry(spec))
    return LinearStore(environment, path)


def _topology(plan: StorePlan) -> tuple[dict[int, Exchange], list[tuple[int, Binding]]]:
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
        """Create an empty journal for a queue."""
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
        """Create the empty prepared list."""
        directory, alignment = self._new.prepared_list, self._parameters.flush_alignment
        info = journal_info(self._environment, TPL_NAME, self._prepared, alignment, base_name=TPL_BASE_NAME)
        remove_journal(self._environment.disk, directory)
        return Version2Journal(self._environment, directory, info)

    def finish(self, plan: StorePlan, highest_rid: int) -> None:
        """Write the topology."""
        catalogue = self._catalogue
        exchanges, bindings = _topology(plan)
        for number, exchange in exchanges.items():
            catalogue.create_exchange(ExchangeEntry(number, encode_exchange(exchange)))
        for number, binding in bindings:
            sequence = catalogue.take_id(Kind.BINDING)
            catalogue.create_binding(BindingEntry(number, binding.queue_id, sequence, encode_binding(binding)))
        # As after a run that reached that record id: all ids up to the end of its block are reserved.
        while catalogue.rid_high_water() <= highest_rid:
            catalogue.reserve_rids()
        self._new.write_topology(self._store_id, self._key_value)
        self.close()
        self._directory.finish_new(self._new, self._store_id)

    def close(self) -> None:
        """Close the catalogue."""
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
        """Create an empty journal for a queue."""
        directory = posixpath.join(self._root, "jrnl", journal_path(queue.name))
        Path(directory).parent.mkdir(exist_ok=True)
        parameters = self._parameters
        page, pages = parameters.page_bytes, parameters.wcache_num_pages
        info = version_1_info(
            self._environment, queue.name, directory, DEFAULT_BASE_NAME, queue.geometry, page, pages
        )  # fmt: skip
        return Version1Journal(self._environment, directory, info)

    def prepared_list(self) -> GeneratedJournal:
        """Create the empty prepared list."""
        directory, parameters = posixpath.join(self._root, "tpl"), self._parameters
        page, pages = parameters.tpl_page_bytes, parameters.tpl_wcache_num_pages
        info = version_1_info(self._environment, TPL_NAME, directory, TPL_BASE_NAME, self._prepared, page, pages)
        return Version1Journal(self._environment, directory, info)

    def finish(self, plan: StorePlan, highest_rid: int) -> None:  # noqa: ARG002 (qpidd looks in the journals)
        """Write the topology."""
        _write_databases(self._environment, posixpath.join(self._root, "dat"), plan)

    def close(self) -> None:
        """Nothing to release."""


class LinearStore:
    """A linearstore in the directory `path`. The links of its journals are absolute, as qpidd creates them."""

    def __init__(self, environment: Environment, path: str) -> None:
        self._environment = environment
        self._root = posixpath.join(path, "qls")
        self._linked: list[tuple[str, LinearJournal]] = []
        for name in ("jrnl2", "tpl2"):
            Path(self._root, name).mkdir(parents=True)

    def journal(self, queue: QueuePlan) -> GeneratedJournal:
        """Create an empty journal for a queue."""
        return self._journal(posixpath.join(self._root, "jrnl2", queue.name), queue.name, queue.geometry.data_size)

    def prepared_list(self) -> GeneratedJournal:
        """Create the empty prepared list."""
        return self._journal(posixpath.join(self._root, "tpl2"), TPL_QUEUE, PREPARED_LINEAR)

    def _journal(self, directory: str, queue: str, data_size: int) -> LinearJournal:
        Path(directory).mkdir(exist_ok=True)
        for name in ("in_use", "returned"):
            Path(pool_directory(self._root, data_size), name).mkdir(parents=True, exist_ok=True)
        journal = LinearJournal(self._environment, self._root, queue, data_size)
        self._linked.append((directory, journal))
        return journal

    def finish(self, plan: StorePlan, highest_rid: int) -> None:  # noqa: ARG002 (as above)
        """Write the topology, and link the files."""
        for directory, journal in self._linked:
            for path in journal.files():
                Path(directory, posixpath.basename(path)).symlink_to(Path(path).resolve())
        _write_databases(self._environment, posixpath.join(self._root, "dat2"), plan)

    def close(self) -> None:
        """Nothing to release."""


def _write_databases(environment: Environment, directory: str, plan: StorePlan) -> None:
    queues = {each.number: Queue(each.name) for each in plan.queues}
    exchanges, bindings = _topology(plan)
    files = encode_databases(queues, exchanges, bindings, {}, environment.random_bits)
    write_databases(environment.disk, directory, files)
