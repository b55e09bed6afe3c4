"""Declaration of the tables and their columns; schemas and documentation are derived from it.

Unsigned 64-bit numbers (record ids, times to live, as a forged store may contain them) are stored in a `bigint` with
the same bits: values above 2^63 - 1 become negative. Names that are not UTF-8 are escaped as by `qstore-dump`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: Column types: strings is an array of strings, map a map from strings to strings.
TYPES: Final = ("string", "long", "int", "boolean", "binary", "strings", "map")


class Column(NamedTuple):
    """A column.

    Attributes:
        name: its name.
        type: one of `TYPES`.
        doc: its definition.
    """

    name: str
    type: str
    doc: str


_STORE: Final = Column("store", "string", "the store's path, as found")
_QUEUE: Final = Column("queue", "string", 'the queue; "TplStore" for the transaction prepared list')

_PLACES: Final = (
    _STORE,
    Column("format", "string", "the journal's format: qstore, legacystore, linearstore"),
    _QUEUE,
    Column("journal", "string", "path of the journal's directory"),
    Column("file", "string", "path of the file in which the record begins"),
    Column("offset", "long", "bytes from the file's start to the record's header; null for the whole file"),
    Column("position", "long", "bytes from the start of the journal's oldest file, without file headers: the "
        "order in which records were written"),
)  # fmt: skip

_RECORD: Final = (
    Column("type", "string", "enqueue, dequeue, commit, abort, filler (on request), or damage"),
    Column("rid", "long", "record id"),
    Column("dequeued_rid", "long", "of a dequeue, the record id of the enqueue that it removes"),
    Column("xid", "string", "transaction id in hex; null outside transactions"),
    Column("prepared", "string", "of an enqueue in the prepared list: dtx or local"),
    Column("flags", "strings", "names of the flags, as in qstore-dump"),
    Column("flush", "long", "qstore: low 32 bits of the number of its flush"),
    Column("size", "long", "bytes on disk, with padding; of damage the bytes that were skipped, if known"),
    Column("checksum", "string", "what was verified: crc ok, adler ok, tail ok (qpidd's legacystore), none"),
    Column("damage", "string", "what is wrong; null if nothing is"),
    Column("damage_kind", "string", "the stable name of what is wrong: `file-size`, `record-broken`"),
    Column("consequence", "string", "of damage: how reading continues"),
)

MESSAGE_COLUMNS: Final = (
    Column("protocol", "string", "0-10, 0-9-1 or 1.0"),
    Column("exchange", "string", "the exchange to which the message was sent"),
    Column("routing_key", "string", "its routing key; AMQP 1.0: its subject"),
    Column("message_id", "string", "its id"),
    Column("durable", "boolean", "whether its delivery mode is persistent; null if it has none"),
    Column("priority", "int", "its priority"),
    Column("ttl", "long", "time to live, milliseconds"),
    Column("expiration", "long", "when it expires, seconds since 1970"),
    Column("timestamp", "long", "seconds since 1970, set by the publisher or the broker"),
    Column("content_type", "string", "its content type"),
    Column("content_encoding", "string", "its content encoding"),
    Column("correlation_id", "string", "its correlation id"),
    Column("reply_to", "string", "the reply address, or exchange and routing key as JSON"),
    Column("user_id", "string", "the publisher's user id"),
    Column("app_id", "string", "the application that sent it"),
    Column("headers", "map", "application headers; values that are not text are JSON"),
    Column("header_types", "map", "their types, with the protocol's names"),
    Column("body_length", "long", "bytes of the body"),
    Column("body", "binary", "the body, up to the option body_limit"),
)

#: Table -> its columns.
TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "records": (*_PLACES, *_RECORD, *MESSAGE_COLUMNS),
    "files": (
        _STORE,
        Column("kind", "string", "journal file; damage, notice (from reading the store); unusable (not a store)"),
        Column("format", "string", "the detected format: qstore, legacystore, linearstore, journal, journal file"),
        _QUEUE,
        Column("journal", "string", "path of the journal's directory"),
        Column("file", "string", "path of the file; of an unusable input its path"),
        Column("number", "int", "the file's number in its journal"),
        Column("age", "int", "its position in the order of writing, 0 the oldest"),
        Column("size", "long", "bytes of the file; null if it is missing"),
        Column("first_record", "long", "offset of its first record; null if no record begins in it, or unknown"),
        Column("first_flush", "long", "qstore: number of the first flush in it"),
        Column("written", "long", "when its header was created, nanoseconds since 1970"),
        Column("offset", "long", "of damage, its offset in the file"),
        Column("rid", "long", "of damage, the record id"),
        Column("reason", "string", "what is wrong, or worth knowing"),
        Column("damage_kind", "string", "of damage: its stable name: `file-size`, `record-broken`"),
        Column("consequence", "string", "of damage: how reading continues"),
    ),
    "queues": (
        _STORE,
        Column("format", "string", "the detected format: qstore, legacystore, linearstore, journal, journal file"),
        _QUEUE,
        Column("journal", "string", "path of its journal's directory; null if it has none"),
        Column("arguments", "map", "its arguments; values that are not text are JSON; null if no catalogue has them"),
        Column("alternate_exchange", "string", "its alternate exchange"),
        Column("files", "int", "number of files of its journal"),
        Column("file_size", "long", "bytes of each"),
        Column("messages", "long", "messages that a restart would deliver"),
    ),
    "exchanges": (
        _STORE,
        Column("exchange", "string", "its name"),
        Column("type", "string", "its type"),
        Column("durable", "boolean", "whether it is durable"),
        Column("arguments", "map", "its arguments; values that are not text are JSON"),
        Column("alternate_exchange", "string", "its alternate exchange"),
    ),
    "bindings": (
        _STORE,
        Column("exchange", "string", "the exchange that is bound"),
        _QUEUE,
        Column("key", "string", "the binding key"),
        Column("arguments", "map", "its arguments; values that are not text are JSON"),
    ),
    "transactions": (
        _STORE,
        Column("xid", "string", "transaction id in hex"),
        Column("type", "string", "dtx or local"),
        Column("state", "string", "what recovery does with it"),
        Column("xid_format", "long", "of a distributed one, the format of its id"),
        Column("global_id", "string", "of a distributed one, its global id in hex"),
        Column("branch_id", "string", "of a distributed one, its branch id in hex"),
        Column("enqueues", "long", "its undecided enqueues"),
        Column("dequeues", "long", "its undecided dequeues"),
    ),
}  # fmt: skip


class OptionError(ValueError):
    """An option of the data source is unusable; the text says why."""


def table_columns(table: str, chosen: str | None = None) -> tuple[Column, ...]:
    """The columns of a table.

    Args:
        table: its name.
        chosen: names of columns, separated by commas, in the requested order; None for all.

    Raises:
        OptionError: there is no such table or column, or a column is named twice.
    """
    columns = TABLES.get(table)
    if columns is None:
        raise OptionError(f'option table: there is no table "{table}"; the tables are {", ".join(TABLES)}')
    if chosen is None:
        return columns
    by_name = {column.name: column for column in columns}
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    for name in names:
        if name not in by_name:
            raise OptionError(f'option columns: table {table} has no column "{name}"; it has {", ".join(by_name)}')
    if not names or len(set(names)) != len(names):
        raise OptionError(f'option columns: "{chosen}" names no column, or one of them twice')
    return tuple(by_name[name] for name in names)
