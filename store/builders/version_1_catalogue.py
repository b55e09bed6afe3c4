"""What a store of version 1 knows besides messages, as the database files that qpidd's legacystore keeps it in.

    queues.db      id -> queue
    exchanges.db   id -> exchange
    bindings.db    id of the exchange -> binding, several for one id, sorted
    general.db     id -> link, bridge or another object
    config.db      nothing; nor in mappings.db, which could have several for one key
    log.0000000001 a log in which nothing was logged yet

Ids are u64, little endian. What else an environment has, qpidd makes at its next start. Sources:
formats/bdb/README.md, 1, and formats/broker_records/README.md, 4.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from formats.bdb.writer import FILE_ID_SIZE, encode_btree, encode_empty_log
from formats.broker_records.wiring import (
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
from store.writable_disk import WritableDisk, write_new

_KEY: Final = struct.Struct("<Q")


def encode_databases(
    queues: Mapping[int, Queue],
    exchanges: Mapping[int, Exchange],
    bindings: Iterable[tuple[int, Binding]],
    general: Mapping[int, Link | Bridge | GeneralObject],
    random_bits: Callable[[int], int],
) -> dict[str, bytes]:
    """The database files and the log by name.

    Args:
        queues: id -> record. No id is 0.
        exchanges: likewise.
        bindings: id of the exchange and record. The same one twice counts once.
        general: id -> record.
        random_bits: gives random bits, for the files' ids.
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
    """Make `directory` with the database files in it, all of it synced but its own name. Raises OSError."""
    disk.make_directory(directory)
    for name, content in files.items():
        write_new(disk, posixpath.join(directory, name), content)
    disk.sync_directory(directory)
