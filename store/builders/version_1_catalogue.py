"""The catalogue of a store of version 1: everything but messages, as the database files of qpidd's legacystore.

    queues.db      id -> queue
    exchanges.db   id -> exchange
    bindings.db    id of the exchange -> binding, several for one id, sorted
    general.db     id -> link, bridge or another object
    config.db      empty; so is mappings.db, which permits several records for one key
    log.0000000001 an empty log

Ids are u64, little endian. qpidd creates the other files of an environment at its next start. Sources:
formats/bdb/README.md, 1, and formats/broker_records/README.md, 4.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from qstore.formats.bdb.writer import FILE_ID_SIZE, encode_btree, encode_empty_log
from qstore.formats.broker_records.topology import (
    Binding,
    Bridge,
    Exchange,
    GeneralObject,
    Link,
    Queue,
    encode_binding,
    encode_exchange,
    encode_general,
    encode_queue,
)
from qstore.store.disk import WritableDisk, write_new

_KEY: Final = struct.Struct("<Q")


def encode_databases(
    queues: Mapping[int, Queue],
    exchanges: Mapping[int, Exchange],
    bindings: Iterable[tuple[int, Binding]],
    general: Mapping[int, Link | Bridge | GeneralObject],
    random_bits: Callable[[int], int],
) -> dict[str, bytes]:
    """The contents of the database files and of the log, by name.

    Args:
        queues: id -> record. No id is 0.
        exchanges: id -> record.
        bindings: pairs of exchange id and record. Duplicates count once.
        general: id -> record.
        random_bits: returns random bits, for the files' ids.
    """
    rows: dict[str, Iterable[tuple[int, bytes]]] = {
        "queues": ((number, encode_queue(record)) for number, record in queues.items()),
        "exchanges": ((number, encode_exchange(record)) for number, record in exchanges.items()),
        "bindings": {(number, encode_binding(record)) for number, record in bindings},
        "general": ((number, encode_general(record)) for number, record in general.items()),
        "config": (),
        "mappings": (),
    }
    files = {
        f"{name}.db": encode_btree(
            [(_KEY.pack(number), record) for number, record in pairs],
            random_bits(8 * FILE_ID_SIZE).to_bytes(FILE_ID_SIZE, "little"),
            sorted_duplicates=name in ("bindings", "mappings"),
        )
        for name, pairs in rows.items()
    }
    return files | {"log.0000000001": encode_empty_log()}


def write_databases(disk: WritableDisk, directory: str, files: Mapping[str, bytes]) -> None:
    """Create `directory` with the database files in it, all synced except for its own name. Raises OSError."""
    disk.make_directory(directory)
    for name, content in files.items():
        write_new(disk, posixpath.join(directory, name), content)
    disk.sync_directory(directory)
