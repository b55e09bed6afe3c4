"""How often messages have returned to their queues: known after a restart, and after a kill.

A return is rare, and takes 32 bytes in the file `rhm/RETURNS`, which the background appends. It is not synced: a
process that is killed loses at most what is still waiting for the background, a machine that loses its power what the
kernel has not written yet, of half a minute as a rule. A clean close writes the file anew, with what it still needs,
and syncs it. There is no file as long as there is nothing to write. Each record is, in little endian:

    u64 queue id, u64 record id of a message, u32 number of messages: the others have the record ids that follow,
    u32 how often each of them has returned, u32 zero, u32 CRC-32C of the store id and the bytes before

Later records replace earlier ones. Those that are not valid are ignored, wherever they are: an end that is torn, a
block that was lost. So are messages that are no longer there: neither queue ids nor record ids are reused. The store
does without the file if it cannot be read, or written; messages are counted anew then.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from uuid import UUID

from qstore.formats.checksum import extend_crc32c
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.disk import WritableDisk, WritableFile, read_whole
from qstore.store.environment import Background
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import Level, LogLine

NAME: Final = "RETURNS"
MAX_COUNTS: Final = 1 << 16
"""Messages whose returns are kept over a restart, of all queues."""

_BODY: Final = struct.Struct("<QQIII")
_CRC: Final = struct.Struct("<I")
_RECORD_BYTES: Final = _BODY.size + _CRC.size
_MAX_SIZE: Final = 64 << 20
_MAX_RUN: Final = (1 << 32) - 1
_SPARE: Final = 1 << 18
"""Bytes of the file from which on it is written anew, if most of it is out of date."""

Counts = dict[int, dict[int, int]]
"""Queue id -> record id of a message -> how often it has returned."""


class Returns:
    """The returns of an open store's messages.

    Args:
        disk, directory: where the file is.
        store_id: the store's.
        journals: queue id -> journal, of the queues that there are; updated by others.
        background: writes the file.
        log: receives log lines.
    """

    def __init__(
        self,
        disk: WritableDisk,
        directory: StoreDirectory,
        store_id: UUID,
        journals: Mapping[int, QueueJournal],
        background: Background,
        log: Callable[[LogLine], None],
    ) -> None:
        self._disk, self._directory, self._store_id = disk, directory, store_id
        self._journals, self._background, self._log = journals, background, log
        self._counts: Counts = {}
        self._known = 0  # messages in these
        self._waiting: dict[tuple[int, int], int] = {}  # queue id, record id -> count: not yet written
        self._file: WritableFile | None = None
        self._end = 0  # bytes of the file
        self._is_writing = self._has_failed = self._is_closing = False

    def read(self, *, was_clean: bool) -> None:
        """Read the file, at a start; what has only been released is not known if the store was not closed cleanly."""
        path = self._directory.part(NAME)
        try:
            content = read_whole(self._disk, path, _MAX_SIZE) if self._disk.is_file(path) else b""
        except OSError as error:
            self._fail(error)
            return
        self._end = len(content) // _RECORD_BYTES * _RECORD_BYTES
        for queue_id, first, count, returns in _decoded(content, self._store_id):
            journal = self._journals.get(queue_id)
            if journal is None or not (returns or was_clean):
                continue
            for rid in range(first, first + min(count, MAX_COUNTS)):
                if journal.writer.records.where(rid) is not None:
                    self._set(queue_id, rid, returns)

    def forget_releases(self) -> None:
        """Forget what has only been released, so that there is room for what has returned.

        The broker reports it again at a close; until then a first return is shown by the mark alone.
        """
        for queue_id, counts in self._counts.items():
            self._counts[queue_id] = {rid: count for rid, count in counts.items() if count}
        self._known = sum(map(len, self._counts.values()))

    def of(self, queue_id: int) -> Mapping[int, int]:
        """Record ids of a queue's messages, and how often each has returned."""
        return self._counts.get(queue_id, {})

    def note(self, queue_id: int, rid: int, count: int | None) -> None:
        """Note how often a message has returned; None if it is gone."""
        if count is None:
            if self._counts.get(queue_id, {}).pop(rid, None) is not None:
                self._known -= 1
                self._waiting.pop((queue_id, rid), None)
        elif self._has_failed or queue_id not in self._journals or not self._set(queue_id, rid, count):
            return
        elif not self._is_closing:
            self._waiting[queue_id, rid] = count
            if not self._is_writing:
                self._write()

    def forget(self, queue_id: int) -> None:
        """Forget the messages of a queue that was deleted."""
        counts = self._counts.pop(queue_id, {})
        self._known -= len(counts)
        if self._waiting:
            for rid in counts:
                self._waiting.pop((queue_id, rid), None)

    def will_close(self) -> None:
        """Write nothing more in the background: `close` writes everything."""
        self._is_closing = True

    def close(self) -> None:
        """Write the file anew, once the background is idle; remove it if there is nothing to write."""
        self.let_go()
        path = self._directory.part(NAME)
        try:
            if self._known:
                self._directory.replace(NAME, _encoded(self._all(), self._store_id))
            elif self._disk.is_file(path):
                self._disk.remove(path)
                self._disk.sync_directory(self._directory.root)
        except OSError as error:
            self._fail(error)

    def let_go(self) -> None:
        """Close the file. The background is idle."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _set(self, queue_id: int, rid: int, count: int) -> bool:
        """Returns whether there is room for it."""
        of_queue = self._counts.setdefault(queue_id, {})
        if rid not in of_queue:
            if self._known >= MAX_COUNTS:
                return False
            self._known += 1
        of_queue[rid] = count
        return True

    def _all(self) -> list[tuple[int, int, int]]:
        return [(queue_id, rid, count) for queue_id, counts in self._counts.items() for rid, count in counts.items()]

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, {}
        self._is_writing = True
        if self._end >= _SPARE and self._end > 4 * _RECORD_BYTES * self._known:
            counts = self._all()
            self._background.run(lambda: self._replace(counts), self._written, self._fail)
        else:
            self._background.run(lambda: self._append(waiting), self._written, self._fail)

    def _replace(self, counts: list[tuple[int, int, int]]) -> int:
        content = _encoded(counts, self._store_id)
        self.let_go()
        self._directory.replace(NAME, content)
        return len(content)

    def _append(self, counts: Mapping[tuple[int, int], int]) -> int:
        path = self._directory.part(NAME)
        appended = _encoded([(queue_id, rid, count) for (queue_id, rid), count in counts.items()], self._store_id)
        if self._file is None:
            is_there = self._disk.is_file(path)
            self._file = self._disk.open_writable(path) if is_there else self._disk.create(path, 0)
        self._file.write(self._end, appended)
        return self._end + len(appended)

    def _written(self, end: int) -> None:
        self._end, self._is_writing = end, False
        if self._waiting and not self._is_closing:
            self._write()

    def _fail(self, error: Exception) -> None:
        self._has_failed, self._is_writing = True, False
        self._waiting.clear()
        text = f"how often messages have returned is not kept over a restart from now on: {error}"
        self._log(LogLine(Level.WARNING, text))


def _encoded(counts: list[tuple[int, int, int]], store_id: UUID) -> bytes:
    """The records of messages: queue id, record id, count. Consecutive ones with the same count are one."""
    records = bytearray()
    begin, length = 0, len(counts)
    while begin < length:
        queue_id, first, returns = counts[begin]
        end = begin + 1
        while end < length and counts[end] == (queue_id, first + end - begin, returns) and end - begin < _MAX_RUN:
            end += 1
        body = _BODY.pack(queue_id, first, end - begin, returns, 0)
        records += body + _CRC.pack(extend_crc32c(0, store_id.bytes + body))
        begin = end
    return bytes(records)


def _decoded(content: bytes, store_id: UUID) -> Iterator[tuple[int, int, int, int]]:
    """Queue id, first record id, number of messages and count of each valid record."""
    for at in range(0, len(content) - _RECORD_BYTES + 1, _RECORD_BYTES):
        body = content[at : at + _BODY.size]
        if _CRC.unpack_from(content, at + _BODY.size)[0] == extend_crc32c(0, store_id.bytes + body):
            queue_id, first, count, returns, _ = _BODY.unpack(body)
            yield queue_id, first, count, returns
