"""Exports as JSON lines, plain or compressed with zstd: reading and writing.

The first line is the header, the last one counts and proves what came before:

    {"kind": "end", "messages": 27, "lines": 41, "sha256": "..."}

`lines` counts all lines but itself, `sha256` is that of their bytes. So a file that was cut anywhere, or changed, is
refused; one that was edited on purpose is accepted on demand, and then needs no last line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, BinaryIO, Final

from orjson import OPT_APPEND_NEWLINE, dumps

from qstore.store.errors import StoreError
from qstore.store.importing.intake import ImportedMessage
from qstore.tools.console.text import escape_name
from qstore.tools.interchange.items import ExportHeader, InterchangeError, ItemSink, ReadExport, read_header
from qstore.tools.interchange.message_lines import message_line, read_message
from qstore.tools.interchange.objects import ObjectWriter, parse_object, pass_object

MAX_LINE: Final = 1 << 29  # bytes: a message is in memory as a whole
MAX_OBJECT_LINE: Final = 1 << 24  # bytes of a line that is not a message
_BATCH: Final = 1 << 18  # bytes gathered before a write
_MESSAGE_BEGINS: Final = re.compile(rb'\s*\{\s*"kind"\s*:\s*"message"').match
_LONGEST_BEGIN: Final = 200  # bytes within which a long line must say that it is a message


class JsonLinesWriter(ObjectWriter):
    """Writes an export.

    Args:
        stream: takes it.
        with_passwords: whether to write the passwords of links.
    """

    def __init__(self, stream: BinaryIO, *, with_passwords: bool = False) -> None:
        super().__init__(with_passwords=with_passwords)
        self._stream = stream
        self._gathered, self._digest = bytearray(), sha256()
        self._lines = self._messages = 0

    def begin(self, header: ExportHeader) -> None:
        """Write the beginning."""
        self.write_object(header.as_object())

    def message(self, message: ImportedMessage) -> None:
        """Write a message."""
        line = message_line(message)
        if len(line) > MAX_LINE:
            text = f"a line of {len(line):,} bytes is over the limit of {MAX_LINE:,}: use an archive (.tar.zst)"
            raise InterchangeError(f'queue "{escape_name(message.queue)}", record 0x{message.rid:x}: {text}')
        self._messages += 1
        self._line(line)

    def finish(self) -> None:
        """Write the end."""
        self._flush()
        end = {"kind": "end", "messages": self._messages, "lines": self._lines, "sha256": self._digest.hexdigest()}
        self._stream.write(dumps(end, option=OPT_APPEND_NEWLINE))

    def write_object(self, fields: dict[str, Any]) -> None:
        """Write one object."""
        self._line(dumps(fields, option=OPT_APPEND_NEWLINE))

    def _line(self, line: bytes) -> None:
        self._lines += 1
        self._gathered += line
        if len(self._gathered) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        self._digest.update(self._gathered)
        self._stream.write(self._gathered)
        self._gathered = bytearray()


def read_json_lines(stream: BinaryIO, sink: ItemSink, *, is_edited: bool = False) -> ReadExport:
    """Read an export.

    Args:
        stream: the bytes, decompressed.
        sink: takes the items.
        is_edited: whether the file was edited, and its last line, if it has one, is not compared with it.

    Raises:
        InterchangeError: it is not valid; the text has the number of the line.
        OSError: it cannot be read.
    """
    digest, messages, number = sha256(), 0, 0
    header: ExportHeader | None = None
    for number, line in enumerate(_lines(stream), 1):
        try:
            if not line.endswith(b"\n") and not is_edited:
                raise InterchangeError("the line is cut off: the file is not complete")
            fields = parse_object(line)
            if header is None:
                header = read_header(fields)
            elif fields.get("kind") == "message":
                messages += 1
                sink.message(read_message(fields, line))
            elif fields.get("kind") == "end":
                if not is_edited:
                    _check_end(fields, messages, number - 1, digest.hexdigest())
                if stream.read(1):
                    raise InterchangeError("something follows the last line of the export")
                return ReadExport(header, digest.hexdigest())
            else:
                pass_object(fields, sink)
        except (InterchangeError, StoreError) as error:
            raise InterchangeError(f"line {number}: {error}") from None
        digest.update(line)
    if header is None:
        raise InterchangeError("the file is empty: it is not an export")
    if not is_edited:
        text = "the last line is missing: the file is not complete; --edited imports it nevertheless"
        raise InterchangeError(f"line {number}: {text}")
    return ReadExport(header, digest.hexdigest())


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    number = 0
    while line := stream.readline(MAX_OBJECT_LINE):
        number += 1
        if len(line) == MAX_OBJECT_LINE and not line.endswith(b"\n"):
            if not _MESSAGE_BEGINS(line[:_LONGEST_BEGIN]):
                raise InterchangeError(
                    f"line {number}: the line is longer than {MAX_OBJECT_LINE:,} bytes, and does not begin as a "
                    'message ("kind" has to be its first field): this is not an export'
                )
            line = _rest_of_message(stream, bytearray(line), number)
        yield line


def _rest_of_message(stream: BinaryIO, line: bytearray, number: int) -> bytes:
    while part := stream.readline(MAX_OBJECT_LINE):
        line += part
        if len(line) > MAX_LINE:
            raise InterchangeError(f"line {number}: the message is longer than {MAX_LINE:,} bytes")
        if part.endswith(b"\n"):
            break
    return bytes(line)


def _check_end(fields: dict[str, Any], messages: int, lines: int, digest: str) -> None:
    if (fields.get("messages"), fields.get("lines"), fields.get("sha256")) != (messages, lines, digest):
        text = "the file does not have the content that its last line states: it was changed or damaged"
        raise InterchangeError(f"{text}; --edited imports it nevertheless")
