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
from store.journal.journal import Journal
from store.offline import RecoveredQueue

_PREFIX: Final = 512  # bytes of a message that are looked at first
_MOST: Final = 1 << 24  # bytes of a header that are decoded: of an AMQP 1.0 message the header is all of it
_AS_IT_IS: Final = "it is delivered as it is: a consumer may fail on it"


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
            yield Damage(file.path, offset, rid, f"message header cannot be decoded: {problem}", _AS_IT_IS)


def _problem(journal: Journal, place: int, *, decode: bool) -> str | None:
    data_place, size = journal.data_of_enqueue(place)
    if not size:
        return None  # external, or a message without even a header
    prefix = journal.stream.read_aside(data_place, min(size, _PREFIX))
    try:
        end = HEADER_SIZE_BYTES + header_size(prefix)
        if len(prefix) < end <= size:
            prefix = journal.stream.read_aside(data_place, min(end, _MOST))
        problem = frames_problem(prefix, size)
        if problem is None and decode and end <= _MOST:
            decode_message_header(prefix[HEADER_SIZE_BYTES:end])
    except BrokerRecordError as error:
        return error.what
    return problem
