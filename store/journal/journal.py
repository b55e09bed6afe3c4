"""One journal of any format, opened for reading: its records, and the data of its messages.

A compressed message reads as its data were enqueued: its content is decompressed on reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import qstore.formats.qls.records as qls
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.compressed import CompressedLayout, Decompressor, compressed_layout
from qstore.formats.rhm.geometry import FILE_HEADER_SIZE
from qstore.formats.rhm.headers import ENQUEUE_SIZES, HEADER_1, HEADER_2
from qstore.formats.rhm.jinf import JournalInfo
from qstore.formats.rhm.records import COMPRESSED, EXTERNAL, TAIL_SIZE, Kind, decode_tail, version_2_check
from qstore.store.damage import Damage
from qstore.store.disk import Disk
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.line.files import Line
from qstore.store.journal.reader import Gaps, JournalEnd, JournalReader, records_of
from qstore.store.journal.records import JournalRecords, RecordHeader, RecordSink
from qstore.store.journal.ring.files import Ring, RingFile
from qstore.store.journal.ring.records import Version2Records
from qstore.store.journal.stream import JournalStream

_BODY_CHUNK: Final = 1 << 20


class _EnqueueLayout(NamedTuple):
    """Layout of an enqueue header: format of flags, xid size and data size; its size; two of its flags.

    The flags say that the data are stored elsewhere, and that their content is compressed; 0 if the format has none.
    """

    unpack_sizes: Callable[[bytes, int], tuple[int, ...]]
    header_size: int
    external: int
    compressed: int


_ENQUEUES: Final = {
    JournalFormat.VERSION_1: _EnqueueLayout(ENQUEUE_SIZES[1].unpack_from, HEADER_1.size, EXTERNAL, 0),
    JournalFormat.VERSION_2: _EnqueueLayout(ENQUEUE_SIZES[2].unpack_from, HEADER_2.size, 0, COMPRESSED),
    JournalFormat.LINEAR: _EnqueueLayout(qls.ENQUEUE_SIZES.unpack_from, qls.HEADER.size, EXTERNAL, 0),
}


class MessageData:
    """The data of a compressed message, as they were enqueued.

    The message's header is read without decompressing the content.

    Args:
        read: reads a range of the stored data: offset, length.
        size: bytes of the stored data.
        decompressor: decompresses the content.

    Attributes:
        size: bytes of the data as they were enqueued.

    Raises:
        RhmError: they are damaged; `read` raises it too.
    """

    __slots__ = ("_content", "_decompressor", "_layout", "_read", "_stored", "size")

    def __init__(self, read: Callable[[int, int], bytes], size: int, decompressor: Decompressor) -> None:
        self._read, self._stored, self._decompressor = read, size, decompressor
        self._layout: CompressedLayout = compressed_layout(read, size)
        self._content: bytes | None = None
        self.size = self._layout.size

    @property
    def start(self) -> int:
        """Bytes before the content."""
        return self._layout.start

    def read(self, offset: int, length: int) -> bytes:
        """A range of the data as they were enqueued; `offset` + `length` are at most `size`."""
        start, end = self._layout.start, offset + length
        if end <= start:
            return self._read(offset, length)
        if self._content is None:
            self._content = self._decompressor.content(self._read, self._layout, self._stored)
        head = self._read(offset, start - offset) if offset < start else b""
        return head + self._content[max(offset - start, 0) : end - start]

    def whole(self) -> bytes:
        """All of the data as they were enqueued."""
        return self.read(0, self.size)


class _Passed:
    """A `RecordSink` for records that are known: it notes the id of the last one, and damage."""

    def __init__(self) -> None:
        self.last_rid = 0
        self.is_damaged = False

    def enqueue(self, rid: int, _place: int, _blocks: int = 0) -> None:
        """Note the record id."""
        self.last_rid = rid

    def dequeue(self, rid: int, _dequeued_rid: int, _place: int) -> None:
        """Note the record id."""
        self.last_rid = rid

    def record(self, header: RecordHeader, _place: int, _xid: bytes) -> None:
        """Note the record id."""
        self.last_rid = header.rid

    def damaged(self, _damage: Damage) -> None:
        """Something is wrong."""
        self.is_damaged = True


class Journal:
    """A journal that is only read.

    Attributes:
        name: the journal's id: its queue's name, or "TplStore".
        path: its directory, or its only file.
        base_name: the common prefix of its files' names; empty for a single file with another name.
        info: the content of its info file; None if unreadable.
        files: its files in order.
        format: its format; from the info file if the journal was never written to.
        stream: their bytes.
        is_being_deleted: version 2: whether it is marked as the journal of a queue being deleted.
        is_named_apart: version 2: whether only the copy of its info file has the name of its queue.
        is_single_file: whether this is one file of a journal, opened on its own.
        damage: damage to the info file and the file headers.
        continued: log offsets of records whose checksums cover only a part of them (`LinearRecords`).
        gaps: the stretches that the last walk skipped.
        notices: one line each for the user, about things that are not damage.
    """

    def __init__(
        self,
        disk: Disk,
        name: str,
        path: str,
        base_name: str,
        info: JournalInfo | None,
        files: Ring | Line,
        damage: list[Damage],
    ) -> None:
        self.name = name
        self.path = path
        self.base_name = base_name
        self.info = info
        self.files = files
        self.stream = JournalStream(disk, files.files, files.geometry)
        self.damage = damage
        self.continued: set[int] = set()
        self.gaps = Gaps()
        self.is_being_deleted = self.is_named_apart = False
        self.notices: list[str] = []
        self.is_single_file = path == files.files[0].path if files.files else False
        self.format = files.format or JournalFormat(info.version if info is not None else JournalFormat.VERSION_1)
        layout = _ENQUEUES[self.format]
        self._unpack_sizes, self._header_size = layout.unpack_sizes, layout.header_size
        self._external, self._compressed = layout.external, layout.compressed
        self._not_plain = layout.external | layout.compressed
        self._decompressor = Decompressor()
        self._records: JournalRecords | None = None  # for `holds`

    def walk(
        self, sink: RecordSink, *, every_record: bool = False, progress: Callable[[int], None] | None = None
    ) -> JournalEnd | None:
        """Pass each record to `sink`. Returns where and why the journal ends; None if nothing was ever written.

        Args:
            sink: receives the records.
            every_record: as in `JournalReader.walk`.
            progress: called at the beginning of each file with its log offset.
        """
        if self.files.format is None or not self.files.files:
            return None
        records = records_of(self.files, self.stream)
        reader = JournalReader(self.stream, records, progress)
        end = reader.walk(sink, every_record=every_record)
        self.gaps = reader.gaps
        for damage in self.stream.unreadable():
            sink.damaged(damage)
        self.notices.extend(records.notices)
        self.continued = records.continued
        for place in sorted(self.continued):
            file, offset = self.stream.locate(place)
            self.notices.append(
                f"{file.path}: the checksum of the record at 0x{offset:x} covers only its later part, as qpidd's "
                "writer produces it when it must wait within a record; the record is kept"
            )
        return end

    def walk_on(
        self,
        flush: int,
        begin: int,
        place: int,
        last_rid: int,
        sink: RecordSink,
        progress: Callable[[int], None] | None = None,
    ) -> JournalEnd | None:
        """As `walk`, but from `place` on: the records before it are known.

        Args:
            flush: number of the flush that begins at `begin`.
            begin: log offset.
            place: log offset where a record begins, or the journal ends.
            last_rid: of the last record before it that is not a filler.
            sink: receives the records.
            progress: as of `walk`.

        Returns:
            The end; None if no records lead to `place`, or anything is damaged: then only `walk` finds the content.
        """
        records = records_of(self.files, self.stream)
        assert isinstance(records, Version2Records)
        records.resume(flush)
        reader, before = JournalReader(self.stream, records, progress), _Passed()
        end = reader.go_on(begin, place, before)
        if before.is_damaged or before.last_rid != last_rid:
            return None
        if end == place:
            end = reader.go_on(place, self.stream.size, sink)
        if isinstance(end, int) or end.place < place:
            return None
        self.notices.extend(records.notices)
        return None if len(reader.gaps) or self.stream.has_unreadable else end

    def holds(self, rid: int, place: int) -> bool:
        """Version 2: whether the record at `place`, which was not read before, is the enqueue of that message."""
        if self._records is None:
            self._records = records_of(self.files, self.stream)
        verdict = JournalRecords.examine(self._records, place)
        header = verdict.header
        return verdict.problem is None and header is not None and (header.kind, header.rid) == (Kind.ENQUEUE, rid)

    @property
    def is_remnant(self) -> bool:
        """Whether a version-2 journal that is missing in the catalogue was being created or deleted.

        A journal's info file is created after its other files are synced: some of these may have no name yet, but each
        one with a name has its creation header.
        """
        if self.is_being_deleted:
            return True
        if not isinstance(self.files, Ring) or self.files.lacks_creation_header:
            return False
        return all(file.size < FILE_HEADER_SIZE or not file.used for file in self.files.files)

    @property
    def holds_everything(self) -> bool:
        """Whether everything ever written to the journal still exists: nothing was overwritten or given back."""
        files = self.files.files
        if not files or self.is_single_file:
            return False
        if self.format is JournalFormat.LINEAR:
            return files[0].number == 1
        if isinstance(self.files, Ring) and self.files.has_changed:
            return False  # new files may have come after the last one in any lap
        return files[0].number == 0 and len(files) < self.files.geometry.files

    def data_of_enqueue(self, place: int) -> tuple[int, int]:
        """Log offset and size in bytes of the stored data of the enqueue record at `place`."""
        window, at = self.stream.window(place, self._header_size)
        flags, xid_size, size = self._unpack_sizes(window, at)
        if flags & self._external:
            size = 0
        return place + self._header_size + xid_size, size

    def small_data(self, place: int) -> bytes | None:
        """The data of the enqueue record at `place` if they are uncompressed, and in the stream's window; else None."""
        window, at = self.stream.window(place, self._header_size)
        flags, xid_size, size = self._unpack_sizes(window, at)
        begin = at + self._header_size + xid_size
        end: int = begin + size
        return None if end > len(window) or flags & self._not_plain else window[begin:end]

    def is_compressed(self, place: int) -> bool:
        """Whether the content of the enqueue record at `place` is compressed."""
        if not self._compressed:
            return False
        window, at = self.stream.window(place, self._header_size)
        return bool(self._unpack_sizes(window, at)[0] & self._compressed)

    def compressed_data(self, place: int, size: int) -> MessageData:
        """The message in `size` bytes of compressed data at the log offset `place`.

        Raises:
            RhmError: they are damaged.
        """
        stream = self.stream
        return MessageData(lambda offset, count: stream.read_aside(place + offset, count), size, self._decompressor)

    def message_data(self, place: int) -> bytes:
        """The data of the enqueue record at `place` as they were enqueued. Raises RhmError if they are damaged."""
        at, size = self.data_of_enqueue(place)
        return self.compressed_data(at, size).whole() if self.is_compressed(place) else self.stream.read(at, size)

    def verifies(self, place: int, crc: int) -> bool:
        """Version 2: whether the checksum of the enqueue record at `place`, whose data's CRC-32C is `crc`, matches."""
        stream, header_size = self.stream, self._header_size
        window, at = stream.window(place, header_size)
        _, xid_size, size = self._unpack_sizes(window, at)
        after = at + header_size
        head = window[at:after]
        xid = stream.read_aside(place + header_size, xid_size) if xid_size else b""
        file = stream.files[place // stream.data_size]
        if not isinstance(file, RingFile) or file.header is None:
            return False
        end = after + xid_size + size
        tail = window[end : end + TAIL_SIZE]
        if len(tail) < TAIL_SIZE:
            tail = stream.read_aside(place + end - at, TAIL_SIZE)
        check, _ = decode_tail(tail, 0)
        return check == version_2_check(head, xid, crc, file.header.salt)

    def data_chunks(self, place: int, size: int) -> Iterator[bytes]:
        """`size` bytes of data from `place`, in pieces of at most 1 MiB."""
        end = place + size
        while place < end:
            chunk = self.stream.read(place, min(_BODY_CHUNK, end - place))
            yield chunk
            place += len(chunk)

    def close(self) -> None:
        """Close the files."""
        self.stream.close()
