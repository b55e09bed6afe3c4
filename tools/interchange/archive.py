"""Exports as an archive: one tar file, compressed with zstd. Fast, exact, and `tar --zstd -xf` unpacks it.

    member                    content
    ------------------------  ----------------------------------------------------------------------------------------
    export.json               the header, as in JSON lines
    topology-000001.jsonl ... queues, exchanges, bindings and so on, as in JSON lines
    messages-000001.bin ...   messages of one queue, in order (below), up to 8 MiB or one message; numbered through
    end.json                  number of messages, and the SHA-256 of the names, sizes and contents of all members before

    messages:   u32 length of the queue's name | name, in UTF-8 or as it is stored, then for each message:
                u64 record id, u8 state, u8 redelivered, u16 length of its branch's id (0: none), u64 size | id | data
    state:      1 outstanding, 2 in-doubt-dequeue, 3 in-doubt-enqueue. All integers are little-endian.

Reading never creates a file. It accepts these members in this order and nothing else: a path, a link, a device, a
second form of header is an error, and so is everything after `end.json` but zeros. A member has at most 1 GiB, and the
window of the compression at most 128 MiB.
"""

from __future__ import annotations

import struct
import tarfile
from hashlib import sha256
from typing import Any, BinaryIO, Final

from orjson import OPT_APPEND_NEWLINE, dumps

from qstore.formats.wording import printable
from qstore.store.errors import StoreError
from qstore.store.importing.intake import MAX_RID, ImportedMessage
from qstore.store.journal.recovery import LIVE, PENDING
from qstore.tools.interchange.items import ExportHeader, InterchangeError, ItemSink, ReadExport, read_header
from qstore.tools.interchange.json_lines import MAX_XID, ObjectWriter, parse_object, pass_object

MAX_MEMBER: Final = 1 << 30
_CHUNK: Final = 8 << 20  # bytes of messages in a member
_BLOCK: Final = 512  # of a tar file
_HEADER, _END = "export.json", "end.json"
_MAX_NAME: Final = 1024  # bytes of a queue's name
_NAME: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<QBBHQ")


class ArchiveWriter(ObjectWriter):
    """Writes an export.

    Args:
        stream: takes the tar file; it compresses.
        with_passwords: whether to write the passwords of links.
    """

    def __init__(self, stream: BinaryIO, *, with_passwords: bool = False) -> None:
        super().__init__(with_passwords=with_passwords)
        self._stream, self._digest = stream, sha256()
        self._objects, self._chunk = bytearray(), bytearray()
        self._queue = ""
        self._members = self._messages = self._created = 0

    def begin(self, header: ExportHeader) -> None:
        """Write the beginning."""
        self._created = header.created
        self._member(_HEADER, dumps(header.as_object(), option=OPT_APPEND_NEWLINE))

    def message(self, message: ImportedMessage) -> None:
        """Write a message."""
        queue, rid, state, xid, is_redelivered, data = message
        if queue != self._queue or len(self._chunk) >= _CHUNK or self._objects:
            self._flush()
            self._queue = queue
        if not self._chunk:
            name = queue.encode("utf-8", "surrogateescape")
            self._chunk += _NAME.pack(len(name)) + name
        self._chunk += _HEAD.pack(rid, state, is_redelivered, len(xid), len(data))
        self._chunk += xid
        self._chunk += data
        if len(self._chunk) > MAX_MEMBER:
            raise InterchangeError(f'queue "{printable(queue)}", record 0x{rid:x} is larger than an archive can hold')
        self._messages += 1

    def finish(self) -> None:
        """Write the end."""
        self._flush()
        end = {"kind": "end", "messages": self._messages, "sha256": self._digest.hexdigest()}
        self._member(_END, dumps(end, option=OPT_APPEND_NEWLINE))
        self._stream.write(bytes(2 * _BLOCK))

    def write_object(self, fields: dict[str, Any]) -> None:
        """Write one object."""
        if self._chunk or len(self._objects) >= _CHUNK:
            self._flush()
        self._objects += dumps(fields, option=OPT_APPEND_NEWLINE)

    def _flush(self) -> None:
        for stem, content, suffix in (("topology", self._objects, "jsonl"), ("messages", self._chunk, "bin")):
            if content:
                self._members += 1
                self._member(f"{stem}-{self._members:06d}.{suffix}", content)
        self._objects, self._chunk = bytearray(), bytearray()

    def _member(self, name: str, content: bytes | bytearray) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = len(content), 0o600, self._created
        _add(self._digest, name, content)
        self._stream.write(info.tobuf(tarfile.USTAR_FORMAT))
        self._stream.write(content)
        self._stream.write(bytes(-len(content) % _BLOCK))


def _add(digest: Any, name: str, content: bytes | bytearray) -> None:
    digest.update(f"{name} {len(content)}\n".encode())
    digest.update(content)


# ---- reading ----


def read_archive(stream: BinaryIO, sink: ItemSink) -> ReadExport:
    """Read an export.

    Args:
        stream: the tar file, decompressed.
        sink: takes the items.

    Raises:
        InterchangeError: it is not valid, or damaged; the text has the name of the member.
        OSError: it cannot be read.
    """
    digest, members, messages = sha256(), 0, 0
    header: ExportHeader | None = None
    while True:
        name, content = _next_member(stream)
        try:
            if header is None:
                if name != _HEADER:
                    raise InterchangeError(f"the first member of an export is {_HEADER}")
                header = read_header(parse_object(content))
            elif name == _END:
                end = parse_object(content)
                if (end.get("messages"), end.get("sha256")) != (messages, digest.hexdigest()):
                    raise InterchangeError("the archive does not have the content that is stated here: it was changed")
                _check_padding(stream)
                return ReadExport(header, digest.hexdigest())
            else:
                members += 1
                if name == f"topology-{members:06d}.jsonl":
                    for line in content.splitlines():
                        pass_object(parse_object(line), sink)
                elif name == f"messages-{members:06d}.bin":
                    messages += _messages(content, sink)
                else:
                    raise InterchangeError("an export has no such member here")
        except (InterchangeError, StoreError) as error:
            raise InterchangeError(f"member {printable(name)!r}: {error}") from None
        _add(digest, name, content)


def _next_member(stream: BinaryIO) -> tuple[str, bytes]:
    head = _exactly(stream, _BLOCK)
    if not any(head):
        raise InterchangeError(f"{_END} is missing: the archive is not complete")
    try:
        info = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError) as error:
        raise InterchangeError(f"the archive is damaged: {error}") from None
    if info.type != tarfile.REGTYPE or info.linkname:
        raise InterchangeError(f"member {printable(info.name)!r} is not a file: an export has files only")
    if not 0 <= info.size <= MAX_MEMBER:
        text = f"{info.size:,} bytes are more than the limit of {MAX_MEMBER:,}"
        raise InterchangeError(f"member {printable(info.name)!r}: {text}")
    content = _exactly(stream, info.size)
    if any(_exactly(stream, -info.size % _BLOCK)):
        raise InterchangeError(f"member {printable(info.name)!r} is not padded with zeros: the archive is damaged")
    return info.name, content


def _exactly(stream: BinaryIO, size: int) -> bytes:
    """The next bytes, read in pieces: a stated size takes no memory before the bytes are there."""
    pieces, left = [], size
    while left:
        piece = stream.read(min(left, 1 << 20))
        if not piece:
            raise InterchangeError("the archive is cut off: it is not complete")
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _check_padding(stream: BinaryIO) -> None:
    found = stream.read(2 * _BLOCK)
    if found != bytes(2 * _BLOCK) or stream.read(1):
        raise InterchangeError("the archive does not end after it, with two blocks of zeros")


def _messages(content: bytes, sink: ItemSink) -> int:
    """Pass the messages of a member to `sink`. Returns their number."""
    count, end = 0, len(content)
    try:
        (size,) = _NAME.unpack_from(content)
        at = _NAME.size + size
        if not 0 < size <= _MAX_NAME or at > end:
            raise InterchangeError("the name of the queue is not valid")
        queue = content[_NAME.size : at].decode("utf-8", "surrogateescape")
        while at < end:
            rid, state, redelivered, xid_size, size = _HEAD.unpack_from(content, at)
            data_at = at + _HEAD.size + xid_size
            at = data_at + size
            is_open = xid_size > 0
            if at > end or not LIVE <= state <= PENDING or redelivered > 1 or rid > MAX_RID or xid_size > MAX_XID:
                raise InterchangeError(f"message {count + 1} is not valid")
            if is_open is (state == LIVE):
                raise InterchangeError(f"message {count + 1} is in doubt without a branch, or has one without need")
            xid = content[data_at - xid_size : data_at]
            sink.message(ImportedMessage(queue, rid, state, xid, bool(redelivered), content[data_at:at]))
            count += 1
    except struct.error:
        raise InterchangeError("the messages end within a message") from None
    return count
