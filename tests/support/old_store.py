"""Small stores of version 1, qpidd's, laid out for tests: journals, prepared list and, if any, the topology."""

from __future__ import annotations

from pathlib import Path
from typing import Final

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
        """The journal of a queue, made if there is none."""
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
