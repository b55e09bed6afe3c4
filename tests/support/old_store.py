"""Small stores of version 1, qpidd's: laid out by hand, converted, or built of what another store leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from qstore.formats.broker_records.topology import (
    Binding,
    Exchange,
    GeneralObject,
    Link,
    Queue,
    encode_binding,
    encode_exchange,
    encode_general,
    encode_queue,
)
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.store.builders.store_build import BuildWatcher, BuiltQueue, JournalSource, QueueToBuild
from qstore.store.builders.version_1_build import Version1Build, highest_kept_rid
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.catalogue.topology import Topology
from qstore.store.damage import Damage
from qstore.store.disk import Disk, OsDisk
from qstore.store.environment import Environment, tool_environment
from qstore.store.inspect.offline import RecoveredStore, open_store
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.recovery import Outcome
from qstore.store.log_lines import LogLine
from qstore.store.parameters import StoreParameters
from qstore.store.repair.conversion import ConversionReport, convert
from tests.formats.bdb_files import Log, one_leaf
from tests.support.journal_builder import JournalBuilder

SMALL: Final = Geometry(4, 4096)


class OldStore:
    """A store of version 1.

    Attributes:
        journals: name -> journal of a queue. Each has record ids of its own.
        prepared: the transaction prepared list, which is written if there is anything in it.
        queues, exchanges, general: id -> record; bindings: exchange id and record. Where all are empty no topology is
            written, and the queues are those of the journals.
    """

    def __init__(self) -> None:
        self.journals: dict[str, JournalBuilder] = {}
        self.prepared = JournalBuilder(1, SMALL, queue_name="TplStore", base_name=TPL_BASE_NAME)
        self.queues: dict[int, Queue] = {}
        self.exchanges: dict[int, Exchange] = {}
        self.bindings: list[tuple[int, Binding]] = []
        self.general: dict[int, Link | GeneralObject] = {}

    def queue(self, name: str, geometry: Geometry = SMALL) -> JournalBuilder:
        """The journal of a queue, made on demand."""
        return self.journals.setdefault(name, JournalBuilder(1, geometry, queue_name=name))

    def files(self) -> dict[str, bytes]:
        """Path below the store directory -> content."""
        files = {}
        for number, (name, builder) in enumerate(self.journals.items()):
            builder.flush()
            for file, content in builder.contents().items():
                files[f"rhm/jrnl/{number:04x}/{name}/{file}"] = content
        if self.prepared.records:
            self.prepared.flush()
            files.update({f"rhm/tpl/{file}": content for file, content in self.prepared.contents().items()})
        if self.queues or self.exchanges or self.bindings or self.general:
            files.update({f"rhm/dat/{file}": content for file, content in self._topology().items()})
        return files

    def _topology(self) -> dict[str, bytes]:
        rows = {
            "queues": [(number, encode_queue(record)) for number, record in self.queues.items()],
            "exchanges": [(number, encode_exchange(record)) for number, record in self.exchanges.items()],
            "bindings": [(number, encode_binding(record)) for number, record in self.bindings],
            "general": [(number, encode_general(record)) for number, record in self.general.items()],
        }
        files = {"log.0000000001": Log().build()}
        for name, pairs in rows.items():
            files[f"{name}.db"] = one_leaf([(number.to_bytes(8, "little"), record) for number, record in pairs])
        return files

    def write(self, path: Path) -> Path:
        """Everything onto disk, below `path`, which is made."""
        for name, content in self.files().items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return path


# ---- conversion, and the content before and after ----


# Small journals where the old store says nothing: the disk is spared.
PARAMETERS: Final = StoreParameters(
    auto_expand=False, num_jfiles=4, jfile_size_pgs=1, tpl_num_jfiles=4, tpl_jfile_size_pgs=1
)


class Content(NamedTuple):
    """What a store has, whatever its version: without record ids."""

    queues: dict[str, list[tuple[int, bytes | None, bytes]]]
    records: dict[int, Any]
    exchanges: dict[int, Any]
    bindings: list[Any]
    general: dict[int, Any]
    in_doubt: list[tuple[bytes, bool | None, int | None, int | None]]


def content_of(path: Path, disk: Disk | None = None) -> Content:
    source = open_store(disk or OsDisk(), str(path))
    try:
        recovered = source.recover()
        queues = {}
        for queue in recovered.queues:
            messages = []
            for _, place, state, xid in queue.outstanding():
                assert queue.journal is not None
                data = b"".join(queue.journal.data_chunks(*queue.journal.data_of_enqueue(place)))
                messages.append((state, xid, data))
            queues[queue.name] = messages
        topology = source.topology
        in_doubt = [
            (each.xid, each.two_phase, each.enqueues, each.dequeues)
            for each in recovered.transactions
            if each.outcome.value == "in-doubt"
        ]
        if topology is None:
            return Content(queues, {}, {}, [], {}, in_doubt)
        records = {number: queue.record for number, queue in topology.queues.items()}
        bindings = [each._replace(entry=None) for each in topology.bindings]
        return Content(queues, records, topology.exchanges, bindings, topology.general, in_doubt)
    finally:
        source.close()


def directory_of(path: Path, environment: Environment | None = None) -> StoreDirectory:
    """The directory of the store at `path`."""
    return StoreDirectory(environment or tool_environment(), str(path), "0.1.0")


def converted(
    path: Path, parameters: StoreParameters = PARAMETERS, log: Callable[[LogLine], None] = print
) -> ConversionReport:
    """Convert the store at `path`."""
    return convert(tool_environment(), directory_of(path), parameters, log)


# ---- built of what recovery has found ----


class Watcher:
    """What was reported."""

    def __init__(self) -> None:
        self.results: dict[str, BuiltQueue] = {}
        self.damage: list[Damage] = []

    def left_out(self, queue: QueueToBuild, damage: Damage, place: int, end: int) -> None:
        self.damage.append(damage)

    def built(self, queue: QueueToBuild, result: BuiltQueue) -> None:
        self.results[queue.record.name] = result


def build_version_1(
    directory: str,
    recovered: RecoveredStore,
    watcher: BuildWatcher,
    *,
    destination: str | None = None,
    environment: Environment | None = None,
) -> list[str]:
    """Build a store of version 1 of all that was recovered, as it is; what should be known of it, one line each.

    Queues that no catalogue has get new ids. What recovery leaves out is not taken over.
    """
    topology = recovered.store.topology or Topology()
    queues = list(_numbered(recovered, topology))
    sources = [queue.source for queue in queues if queue.source is not None]
    build = Version1Build(
        environment or tool_environment(),
        directory,
        PARAMETERS,
        watcher,
        destination=destination,
        highest_rid=highest_kept_rid(sources),
    )
    for queue in queues:
        build.queue(queue)
    build.prepared_list([each.xid for each in recovered.transactions if each.outcome is Outcome.IN_DOUBT])
    numbers = {queue.number for queue in queues}
    exchanges = {exchange.name: number for number, exchange in topology.exchanges.items() if number}
    for number in exchanges.values():
        build.exchange(number, topology.exchanges[number])
    for binding in topology.bindings:
        if binding.exchange.name in exchanges and binding.record.queue_id in numbers:
            build.binding(exchanges[binding.exchange.name], binding.record)
    for number, general in topology.general.items():
        if number:
            build.general(number, general)
    build.finish()
    return build.notices


def _numbered(recovered: RecoveredStore, topology: Topology) -> Iterator[QueueToBuild]:
    """The queues by the ids that the catalogue has, then with new ones those that only a journal names."""
    known: dict[str, int] = {}
    for number, stored in topology.queues.items():
        if number:
            known.setdefault(stored.record.name, number)
    following = max([1, *known.values()])
    for name, record, journal, recovery, _ in recovered.queues:
        number = known.get(name, 0)
        if not number:
            following = number = following + 1
        source = None if journal is None or recovery is None else JournalSource(journal, recovery)
        is_ring = journal is not None and journal.format is not JournalFormat.LINEAR
        geometry = journal.files.geometry if journal is not None and is_ring else PARAMETERS.geometry
        yield QueueToBuild(number, record or Queue(name), source, geometry)
