"""Converting a store of version 1 as tests do it, and what is in a store before and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.disk import Disk, OsDisk
from qstore.store.environment import Environment, tool_environment
from qstore.store.inspect.offline import open_store
from qstore.store.log_lines import LogLine
from qstore.store.parameters import StoreParameters
from qstore.store.repair.conversion import ConversionReport, convert

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
