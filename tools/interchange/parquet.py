"""Exports as one Parquet file: a row for each message, for Spark, DuckDB, pandas and the like.

Each message has the readable columns of `qstore-dump`, and `header` and `body`, its bytes as they are stored: these are
imported. The rest of the export is in the file's own metadata: `qstore.export` has the header, and everything but
messages, as JSON lines; `qstore.end` the number of messages and the SHA-256 of their imported columns and of
`qstore.export`.

Needs pyarrow (`pip install 'qstore[parquet]'`).
"""

from __future__ import annotations

import struct
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final

from orjson import OPT_APPEND_NEWLINE, JSONDecodeError, dumps, loads

from qstore.formats.wording import printable
from qstore.store.errors import StoreError
from qstore.store.importing.intake import MAX_RID, ImportedMessage
from qstore.store.journal.recovery import LIVE
from qstore.tools.console.rows import escape_fields
from qstore.tools.console.text import unescape_name
from qstore.tools.dump.messages import BodyForm, decode_message, message_object
from qstore.tools.dump.rows import STATES
from qstore.tools.interchange.items import ExportHeader, InterchangeError, ItemSink, ReadExport, read_header
from qstore.tools.interchange.json_lines import MAX_XID, ObjectWriter, parse_object, pass_object

_EXPORT, _END = b"qstore.export", b"qstore.end"
_GROUP_BYTES: Final = 8 << 20  # of messages in a row group, gathered in memory
_GROUP_ROWS: Final = 20_000
MAX_GROUP: Final = 1 << 31  # bytes of a row group that is read
_BATCH_ROWS: Final = 4096
_STATES: Final = {name: state for state, name in STATES.items()}
_HEAD: Final = struct.Struct("<IQBBII")
_TEXTS: Final = ("exchange", "routing_key", "message_id")
_NUMBERS: Final = ("delivery_mode", "priority")
_PROPERTIES: Final = ("content_type", "correlation_id", "user_id", "app_id")
_TIMES: Final = ("timestamp", "expiration")
_UNLIKE: Final = ("rid", "message_id", "header", "body")
"""Columns whose values are mostly different: a dictionary of them would only take memory."""
_IMPORTED: Final = ["queue", "rid", "state", "xid", "redelivered", "header", "body"]


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InterchangeError("Parquet files need pyarrow: pip install 'qstore[parquet]'") from None
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # others keep what they do not need any more
    return pyarrow


def _schema(arrow: Any) -> Any:
    text, number, octets = arrow.string(), arrow.int32(), arrow.binary()
    return arrow.schema(
        [
            arrow.field("queue", text, nullable=False),
            arrow.field("rid", arrow.uint64(), nullable=False),
            arrow.field("state", text, nullable=False),
            ("xid", octets),
            arrow.field("redelivered", arrow.bool_(), nullable=False),
            *((name, text) for name in _TEXTS),
            *((name, number) for name in _NUMBERS),
            *((name, text) for name in _PROPERTIES),
            *((name, arrow.int64()) for name in _TIMES),
            ("headers", text),
            arrow.field("body_length", arrow.int64(), nullable=False),
            ("header", octets),
            arrow.field("body", octets, nullable=False),
        ]
    )


class ParquetWriter(ObjectWriter):
    """Writes an export.

    Args:
        stream: takes it.
        with_passwords: whether to write the passwords of links.
    """

    def __init__(self, stream: BinaryIO, *, with_passwords: bool = False) -> None:
        super().__init__(with_passwords=with_passwords)
        self._arrow = _arrow()
        self._stream = stream
        self._schema = _schema(self._arrow)
        self._writer: Any = None
        self._objects, self._digest = bytearray(), sha256()
        self._columns: list[list[Any]] = [[] for _ in self._schema]
        self._gathered = self._messages = 0

    def begin(self, header: ExportHeader) -> None:
        """Write the beginning."""
        self.write_object(header.as_object())
        named = [field.name for field in self._schema if field.name not in _UNLIKE]
        self._writer = self._arrow.parquet.ParquetWriter(
            self._stream, self._schema, compression="zstd", use_dictionary=named
        )

    def message(self, message: ImportedMessage) -> None:
        """Write a message."""
        row = _row(message)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        _add(self._digest, message)
        self._messages += 1
        self._gathered += len(message.data)
        if self._gathered >= _GROUP_BYTES or len(self._columns[0]) >= _GROUP_ROWS:
            self._flush()

    def finish(self) -> None:
        """Write the end."""
        self._flush()
        self._digest.update(self._objects)
        end = dumps({"messages": self._messages, "sha256": self._digest.hexdigest()})
        self._writer.add_key_value_metadata({_EXPORT.decode(): bytes(self._objects).decode(), _END.decode(): end})
        self._writer.close()

    def write_object(self, fields: dict[str, Any]) -> None:
        """Write one object."""
        self._objects += dumps(fields, option=OPT_APPEND_NEWLINE)

    def _flush(self) -> None:
        if self._columns[0]:
            arrays = [
                self._arrow.array(column, field.type) for column, field in zip(self._columns, self._schema, strict=True)
            ]
            self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
            self._columns = [[] for _ in self._schema]
            self._gathered = 0


def _row(message: ImportedMessage) -> list[Any]:
    decoded = decode_message(message.data)
    state = STATES[message.state]
    fields = escape_fields(message_object(message.queue, message.rid, state, None, decoded, BodyForm.NONE))
    properties = fields["properties"]
    header, body = _parts(message.data, is_decoded=decoded.header is not None)
    return [
        fields["queue"],
        message.rid,
        state,
        message.xid or None,
        message.is_redelivered,
        *(fields[name] for name in (*_TEXTS, *_NUMBERS)),
        *(properties[name] for name in (*_PROPERTIES, *_TIMES)),
        dumps(fields["headers"]).decode() if fields["headers"] else None,
        decoded.body_length,
        header,
        body,
    ]


def _parts(data: bytes, *, is_decoded: bool) -> tuple[bytes | None, bytes]:
    if not is_decoded:
        return None, data
    end = 4 + int.from_bytes(data[:4], "big")
    return data[4:end], data[end:]


def _add(digest: Any, message: ImportedMessage) -> None:
    queue = message.queue.encode("utf-8", "surrogateescape")
    state, xid, data = message.state, message.xid, message.data
    digest.update(_HEAD.pack(len(queue), message.rid, state, message.is_redelivered, len(xid), len(data)))
    digest.update(queue + xid)
    digest.update(data)


# ---- reading ----


def read_parquet(path: Path, sink: ItemSink) -> ReadExport:
    """Read an export.

    Args:
        path: the file.
        sink: takes the items.

    Raises:
        InterchangeError: it is not valid, or damaged.
        OSError: it cannot be read.
    """
    arrow = _arrow()
    digest, messages = sha256(), 0
    try:
        with path.open("rb") as stream, arrow.parquet.ParquetFile(stream) as file:
            metadata = file.metadata.metadata or {}
            if _EXPORT not in metadata or _END not in metadata:
                raise InterchangeError("this Parquet file is not an export")
            header, objects = _objects(metadata[_EXPORT], sink)
            names = {field.name: field.type for field in file.schema_arrow}
            wanted = _schema(arrow)
            if any(names.get(name) != wanted.field(name).type for name in _IMPORTED):
                raise InterchangeError("the columns of this Parquet file are not those of an export")
            for number in range(file.metadata.num_row_groups):
                if file.metadata.row_group(number).total_byte_size > MAX_GROUP:
                    raise InterchangeError(f"row group {number} is larger than {MAX_GROUP:,} bytes")
            for batch in file.iter_batches(_BATCH_ROWS, columns=_IMPORTED):
                for row in zip(*(batch.column(name).to_pylist() for name in _IMPORTED), strict=True):
                    messages += 1
                    message = _message(messages, *row)
                    _add(digest, message)
                    sink.message(message)
    except (arrow.ArrowException, StoreError, UnicodeDecodeError) as error:
        raise InterchangeError(_line(error)) from None
    except OSError as error:
        if error.filename is not None:
            raise
        raise InterchangeError(f"the file is damaged: {_line(error)}") from None  # Arrow raises it for that
    digest.update(objects)
    try:
        end = loads(metadata[_END])
    except JSONDecodeError:
        end = None
    if not isinstance(end, dict) or (end.get("messages"), end.get("sha256")) != (messages, digest.hexdigest()):
        raise InterchangeError("the file does not have the content that its metadata state: it was changed or damaged")
    return ReadExport(header, digest.hexdigest())


def _line(error: Exception) -> str:
    """The first line of Arrow's error."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _objects(content: bytes, sink: ItemSink) -> tuple[ExportHeader, bytes]:
    header: ExportHeader | None = None
    for number, line in enumerate(content.splitlines(), 1):
        try:
            fields = parse_object(line)
            if header is None:
                header = read_header(fields)
            else:
                pass_object(fields, sink)
        except InterchangeError as error:
            raise InterchangeError(f"metadata, line {number}: {error}") from None
    if header is None:
        raise InterchangeError("the metadata have no header of an export")
    return header, content


def _message(
    number: int, queue: Any, rid: Any, state: Any, xid: Any, redelivered: Any, header: Any, body: Any
) -> ImportedMessage:
    named = xid or b""
    known = _STATES.get(state)
    if known is None or not queue or rid is None or rid > MAX_RID or redelivered is None or body is None:
        raise InterchangeError(f"row {number} is not valid")
    if (known == LIVE) is bool(named) or len(named) > MAX_XID:
        shown = printable(named.hex()[:40])
        raise InterchangeError(f"row {number}: state {state} and transaction {shown!r} contradict each other")
    data = body if header is None else len(header).to_bytes(4, "big") + header + body
    return ImportedMessage(unescape_name(queue), rid, known, named, redelivered, data)
