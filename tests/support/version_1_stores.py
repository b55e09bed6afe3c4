"""Stores of version 1 that are built of what any other store leaves behind."""

from __future__ import annotations

from collections.abc import Iterator

from qstore.formats.broker_records.topology import Queue
from qstore.store.builders.store_build import BuildWatcher, BuiltQueue, JournalSource, QueueToBuild
from qstore.store.builders.version_1_build import Version1Build, highest_kept_rid
from qstore.store.catalogue.topology import Topology
from qstore.store.damage import Damage
from qstore.store.environment import Environment, tool_environment
from qstore.store.inspect.offline import RecoveredStore
from qstore.store.journal.format import JournalFormat
from qstore.store.journal.recovery import Outcome
from tests.support.conversion import PARAMETERS


class Watcher:
    """What was told."""

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
    """The queues by the ids that the catalogue has, then with new ones those that only a journal tells of."""
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
