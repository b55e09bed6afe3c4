"""Checks the messages that recovery keeps.

A version-1 journal has no checksums, so corrupted bytes in a message are detected only if they break its structure. By
default the frames before the content are checked against each other; `decode` decodes the whole header.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, decode_message_header, frames_problem, header_size
from qstore.formats.rhm.errors import RhmError
from qstore.store.damage import Damage, DamageKind
from qstore.store.inspect.offline import RecoveredQueue
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal

_PREFIX: Final = 512  # bytes of a message read first
_MAX_HEADER_BYTES: Final = 1 << 24  # maximum header size decoded: an AMQP 1.0 message is all header
_FLAGS_OFFSET: Final = 6  # in an enqueue's header
_PERSISTENT: Final = 2  # delivery mode


def message_damage(queue: RecoveredQueue, *, decode: bool) -> Iterator[Damage]:
    """The outstanding messages of a queue that are not valid messages.

    Args:
        queue: a queue, not the transaction prepared list.
        decode: decode each message's header, instead of only checking its frames, and restore compressed content.
    """
    journal, recovery = queue.journal, queue.recovery
    if journal is None or recovery is None:
        return
    for rid, place, _ in recovery.messages.in_place_order():
        kind = DamageKind.MESSAGE_UNDECODABLE
        try:
            problem = _problem(journal, place, decode=decode)
        except RhmError as error:
            kind, problem = DamageKind.CONTENT_DAMAGED, error.what
        if problem is not None:
            file, offset = journal.stream.locate(place)
            yield Damage(file.path, offset, rid, kind, problem=problem)


def false_transients(queue: RecoveredQueue, *, is_prepared_list: bool) -> Iterator[Damage]:
    """Version 1: records that are flagged transient, so that recovery ignores them, but cannot be.

    Those are messages that are persistent by their own header, and all records of the transaction prepared list.
    """
    journal, recovery = queue.journal, queue.recovery
    if journal is None or recovery is None or journal.format is not JournalFormat.VERSION_1:
        return
    for place in recovery.transient_places:
        if is_prepared_list or _is_persistent(journal, place):
            file, offset = journal.stream.locate(place)
            kind = DamageKind.TRANSIENT_PREPARED if is_prepared_list else DamageKind.TRANSIENT_MESSAGE
            yield Damage(file.path, offset + _FLAGS_OFFSET, None, kind)


def _is_persistent(journal: Journal, place: int) -> bool:
    data_place, size = journal.data_of_enqueue(place)
    try:
        header = _with_header(journal, data_place, size)
        return decode_message_header(header[HEADER_SIZE_BYTES:]).delivery_mode == _PERSISTENT
    except BrokerRecordError:
        return False


def _problem(journal: Journal, place: int, *, decode: bool) -> str | None:
    """What is wrong with the message at `place`. Raises RhmError if its compressed content is damaged."""
    data_place, size = journal.data_of_enqueue(place)
    if not size:
        return None  # external, or a message without even a header
    if journal.is_compressed(place):
        compressed = journal.compressed_data(data_place, size)
        if decode:
            compressed.whole()
    try:
        start = _with_header(journal, data_place, size)
        problem = frames_problem(start, size)
        if problem is None and decode and len(start) < _MAX_HEADER_BYTES:
            decode_message_header(start[HEADER_SIZE_BYTES:])
    except BrokerRecordError as error:
        return error.what
    return problem


def _with_header(journal: Journal, data_place: int, size: int) -> bytes:
    """A message up to the end of its header, or of its data, but at most `_MAX_HEADER_BYTES` bytes.

    Raises:
        BrokerRecordError: the data are too short even for the header's size.
    """
    prefix = journal.stream.read_aside(data_place, min(size, _PREFIX))
    end = min(HEADER_SIZE_BYTES + header_size(prefix), size, _MAX_HEADER_BYTES)
    return prefix[:end] if end <= len(prefix) else journal.stream.read_aside(data_place, end)
