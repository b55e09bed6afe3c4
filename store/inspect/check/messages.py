"""The messages that recovery keeps, looked at.

A version-1 journal has no checksums, so bytes that went bad in a message show only if they break its structure. By
default the frames in front of the content are held against each other; `decode` takes the whole header apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from formats.broker_records.errors import BrokerRecordError
from formats.broker_records.messages import HEADER_SIZE_BYTES, decode_message_header, frames_problem, header_size
from store.damage import Damage
from store.damage_kinds import DamageKind
from store.inspect.offline import RecoveredQueue
from store.journal.format import JournalFormat
from store.journal.journal import Journal

_PREFIX: Final = 512  # bytes of a message that are looked at first
_MOST: Final = 1 << 24  # bytes of a header that are decoded: of an AMQP 1.0 message the header is all of it
_FLAGS_OFFSET: Final = 6  # in an enqueue's header
_PERSISTENT: Final = 2  # delivery mode


def message_damage(queue: RecoveredQueue, *, decode: bool) -> Iterator[Damage]:
    """The outstanding messages of a queue that are no messages.

    Args:
        queue: a queue, not the transaction prepared list.
        decode: decode each message's header, instead of only looking at its frames.
    """
    journal, recovery = queue.journal, queue.recovery
    if journal is None or recovery is None:
        return
    for rid, place, _ in recovery.messages.in_place_order():
        problem = _problem(journal, place, decode=decode)
        if problem is not None:
            file, offset = journal.stream.locate(place)
            yield Damage(file.path, offset, rid, DamageKind.MESSAGE_UNDECODABLE, problem=problem)


def false_transients(queue: RecoveredQueue, *, is_prepared_list: bool) -> Iterator[Damage]:
    """Version 1: records that are flagged transient, so that recovery ignores them, and cannot be.

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
    data_place, size = journal.data_of_enqueue(place)
    if not size:
        return None  # external, or a message without even a header
    try:
        start = _with_header(journal, data_place, size)
        problem = frames_problem(start, size)
        if problem is None and decode and len(start) < _MOST:
            decode_message_header(start[HEADER_SIZE_BYTES:])
    except BrokerRecordError as error:
        return error.what
    return problem


def _with_header(journal: Journal, data_place: int, size: int) -> bytes:
    """A message up to the end of its header, or to that of its data, but not more than `_MOST` bytes.

    Raises:
        BrokerRecordError: the data are too short even for the header's size.
    """
    prefix = journal.stream.read_aside(data_place, min(size, _PREFIX))
    end = min(HEADER_SIZE_BYTES + header_size(prefix), size, _MOST)
    return prefix[:end] if end <= len(prefix) else journal.stream.read_aside(data_place, end)
