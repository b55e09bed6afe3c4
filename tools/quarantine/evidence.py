"""What can be told of quarantined bytes: the records that stand in them, and the messages in those.

A record is *proved* where its format's own check holds: version 2's checksum, with the salt of its file, linear's
checksum and serial, version 1's tail, which is weaker. What is not proved is told all the same, with each thing that is
wrong with it:

    header            tail                          what is made of it
    ----------------  ----------------------------  ------------------------------------------------------------------
    good              where the header says         the data between them; the checksum says that some byte is wrong
    good              elsewhere, with its rid       the data up to there: the header's size is wrong
    good              nowhere                       the data as long as the header says, or as there are bytes
    broken beginning  where the rest says           the data between them, as if the beginning were right
    none              that of an enqueue, if any    the data up to there, if a message header stands where data begin

What stands behind a record that is not proved may be a part of its content, and is said to be, unless it is proved by a
checksum that nobody can forge who does not know the salt.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import sha256
from typing import Final, NamedTuple

from formats.broker_records.errors import BrokerRecordError
from formats.broker_records.message_header import Amqp10Message
from formats.broker_records.messages import HEADER_SIZE_BYTES, decode_message_header, frames_problem, header_size
from formats.errors import FormatError
from formats.qls import records as qls
from formats.rhm import records as rhm
from formats.rhm.geometry import BLOCK_SIZE
from formats.rhm.records import COMPRESSED, EXTERNAL, PADDING, Kind
from tools.dump.messages import Message

MOST_BYTES: Final = 1 << 27  # of an entry that is looked into

_MOST_CANDIDATES: Final = 16  # places at which a tail is looked for
_MOST_LOOKS: Final = 8  # at all of an entry's bytes ...
_FREE: Final = 1 << 16  # ... and so many bytes more
_RID: Final = struct.Struct("<Q")
_WORD: Final = struct.Struct("<I")
_RHM, _QLS = b"RHM", b"QLS"

Header = rhm.RecordHeader | qls.RecordHeader


class Evidence(NamedTuple):
    """A record, or what is left of one.

    Attributes:
        offset: where it begins in the entry's bytes.
        format: "version 1", "version 2" or "linear".
        kind: what it is.
        rid: its record id; None where it is not known.
        dequeued_rid: of a dequeue, the record that it removes.
        xid: its transaction's id, or empty.
        start, end: of an enqueue, where its data are; else both are where its xid ends.
        problems: why it is not proved, one line each; none if it is.
        flags: the flag bits of its header.
    """

    offset: int
    format: str
    kind: Kind
    rid: int | None
    dequeued_rid: int | None
    xid: bytes
    start: int
    end: int
    problems: tuple[str, ...]
    flags: int = 0

    @property
    def is_proved(self) -> bool:
        """Whether the record's own check holds."""
        return not self.problems


class Judgement(NamedTuple):
    """What a record is good for.

    Attributes:
        message: the message in it; None if there is none.
        problems: why it is not to be trusted; whoever injects it all the same has been told.
        refusal: why it cannot be injected at all; None if it can.
    """

    message: Message | None
    problems: tuple[str, ...]
    refusal: str | None


# ---------------------------------------------------------------------------------------------- records


class RecordFinder:
    """Finds the records in the bytes of an entry.

    Forged sizes may have every block claim the rest of the bytes, so that looking is given up when all of them together
    have been looked at so many times.

    Args:
        raw: the bytes; records begin at blocks.
        salt: version 2: that of the file in which they stood; None if it is not known.

    Attributes:
        gave_up: whether looking was given up before the end.
    """

    def __init__(self, raw: bytes, salt: int | None) -> None:
        self._raw, self._salt = raw, salt
        self._budget = _MOST_LOOKS * len(raw) + _FREE
        self.gave_up = False

    def records(self) -> Iterator[Evidence]:
        """The records, fillers left out."""
        at, behind = 0, False
        while at < len(self._raw) and not self.gave_up:
            found = self._record_at(at)
            if found is None:
                behind = True  # even if it is empty: a record may have begun there that is longer than what was lost
                at += BLOCK_SIZE
                continue
            evidence, size = found
            is_good = evidence.is_proved
            if behind and not (is_good and evidence.format == "version 2"):
                evidence = evidence._replace(problems=(*evidence.problems, _BEHIND))
            if evidence.kind is not Kind.FILLER:
                yield evidence
            behind = behind or not is_good
            at += size
            if size < evidence.end - evidence.offset:
                self._spend(evidence.end - evidence.offset)  # whoever looks at it looks at what comes next, too

    def _spend(self, size: int) -> bool:
        """Whether so many bytes more may be looked at."""
        self._budget -= size
        self.gave_up = self.gave_up or self._budget < 0
        return not self.gave_up

    def _record_at(self, at: int) -> tuple[Evidence, int] | None:
        """The record that begins at `at`, and how far it reaches; None if there is none."""
        raw = self._raw
        magic = raw[at : at + 3]
        if magic not in (_RHM, _QLS):
            return None if at else self._broken_header(at, "its header is lost")
        try:
            header: Header = rhm.decode_header(raw, at) if magic == _RHM else qls.decode_header(raw, at)
        except FormatError as error:
            return self._broken_header(at, f"its header cannot be read: {error.what}")
        if at + header.header_size + header.xid_size > len(raw):
            return self._broken_header(at, f"its header says that its transaction id has {header.xid_size} bytes")
        doubt = self._doubt(at, header)
        if header.kind is Kind.FILLER and doubt is not None:
            return None
        return self._proved(at, header) if doubt is None else self._doubtful(at, header, doubt)

    def _proved(self, at: int, header: Header, *problems: str) -> tuple[Evidence, int]:
        """A record that is where its header says."""
        return self._evidence(at, header, at + header.tail_offset, problems), header.size

    def _doubtful(self, at: int, header: Header, doubt: str) -> tuple[Evidence, int]:
        """A record with a good header, and something else that is wrong."""
        start, end = at + header.header_size + header.xid_size, at + header.tail_offset
        tail = self._find_tail(at, header)
        if tail == end:
            return self._proved(at, header, doubt)
        if tail is not None and header.kind is Kind.ENQUEUE:
            moved = f"its header says {header.stored_size} bytes of data, and its tail stands behind {tail - start}"
            return self._evidence(at, header, tail, (moved,)), _blocks(tail - at)
        if end > len(self._raw):
            doubt = f"{end - len(self._raw)} of its {header.stored_size} bytes of data are missing, and its tail"
        return self._evidence(at, header, min(end, len(self._raw)), (doubt,)), BLOCK_SIZE

    def _evidence(self, at: int, header: Header, end: int, problems: tuple[str, ...]) -> Evidence:
        start = at + header.header_size + header.xid_size
        xid = self._raw[at + header.header_size : start]
        target = header.dequeued_rid if header.kind is Kind.DEQUEUE else None
        return Evidence(at, _format(header), header.kind, header.rid, target, xid, start, end, problems, header.flags)

    # ---- tails ----

    def _doubt(self, at: int, header: Header, beginning: bytes = b"") -> str | None:
        """Why a record is not proved; None if it is. `beginning` stands for the first bytes of its header."""
        end = at + header.tail_offset
        raw = self._raw
        if end > len(raw):
            return f"truncated {header.kind.label} record"
        if not self._spend(header.size):
            return "it is not verified: too much of the entry was looked at over and over"
        if beginning:
            raw, at = beginning + raw[at + len(beginning) : at + header.size], 0
        try:
            if isinstance(header, qls.RecordHeader):
                qls.decode_record(raw, at)
            elif header.version == 2 and self._salt is None:
                _, rid = rhm.decode_tail(raw, at + header.tail_offset)
                if rid != header.rid:
                    return f"{header.kind.label} record without its tail"
                return "its checksum cannot be proved: the salt of its file is not known"
            else:
                rhm.decode_record(raw, at, salt=self._salt or 0)
        except FormatError as error:
            is_checksum = _format(header) == "version 2" and error.offset == at + header.tail_offset
            return f"{header.kind.label} record fails its checksum" if is_checksum else error.what
        return None

    def _find_tail(self, at: int, header: Header) -> int | None:
        """Where a tail with the record's id stands; None if nowhere."""
        if not header.has_tail:
            return None
        before, size = (8, qls.TAIL_SIZE) if isinstance(header, qls.RecordHeader) else (4, rhm.TAIL_SIZE)
        key = _RID.pack(header.rid)
        if isinstance(header, qls.RecordHeader):
            key = _RID.pack(header.serial) + key
        elif header.version == 1:
            before, key = 0, _WORD.pack(rhm.version_1_check(header.kind)) + key
        end = at + header.tail_offset  # where it should be comes first
        if self._raw[end + before : end + size] == key:
            return end
        place = at + header.header_size + header.xid_size + before
        for _ in range(_MOST_CANDIDATES):
            found = self._raw.find(key, place)
            if not self._spend((len(self._raw) if found < 0 else found) - place) or found < 0:
                return None
            place, tail = found + 1, found - before
            if self._ends_record(at, tail + size) and self._may_be_tail(at, tail, header):
                return tail
        return None

    def _ends_record(self, at: int, end: int) -> bool:
        """Whether the rest of a block is padding."""
        return rhm.is_padding(self._raw[end : at + _blocks(end - at)])

    def _may_be_tail(self, at: int, tail: int, header: Header) -> bool:
        """Whether a tail belongs to the record: in version 2 an id alone is easily met with, so its checksum decides.

        It covers the header with the size that was there before it was damaged, so that one is put back.
        """
        if not isinstance(header, rhm.RecordHeader) or header.version == 1:
            return True
        if self._salt is None or header.kind is not Kind.ENQUEUE:
            return False
        mended = header._replace(data_size=tail - at - header.header_size - header.xid_size)
        return self._doubt(at, mended, rhm.encode_header(mended)) is None

    # ---- records without a good header ----

    def _broken_header(self, at: int, problem: str) -> tuple[Evidence, int] | None:
        """A message whose record has no good header; None if none can be told."""
        for beginning in _BEGINNINGS:
            head = beginning + self._raw[at + len(beginning) : at + qls.MAX_HEADER_SIZE]
            try:
                header: Header = rhm.decode_header(head) if beginning[:3] == _RHM else qls.decode_header(head)
            except FormatError:
                continue
            if self._doubt(at, header, beginning) is None:
                return self._proved(at, header, f"{problem}; with the first bytes that it should have, its tail holds")
        return self._headless(at, problem)

    def _headless(self, at: int, problem: str) -> tuple[Evidence, int] | None:
        """A message that is known by its own header, where data begin without a transaction id."""
        raw = self._raw
        for header_bytes, check, tail_size in _TAILS_OF_ENQUEUES:
            start = at + header_bytes
            data = _message_at(raw, start)
            if data is None or not self._spend(len(raw) - at):
                continue
            is_version_2 = header_bytes == rhm.MAX_HEADER_SIZE and raw[at + 4 : at + 5] == b"\2"
            label = "linear" if header_bytes == qls.MAX_HEADER_SIZE else "version 2" if is_version_2 else "version 1"
            tail = -1 if is_version_2 else raw.find(check, start + data)
            if tail >= 0 and tail + tail_size <= len(raw) and self._ends_record(at, tail + tail_size):
                (rid,) = _RID.unpack_from(raw, tail + tail_size - _RID.size)
                size = _blocks(tail + tail_size - at)
                return Evidence(at, label, Kind.ENQUEUE, rid, None, b"", start, tail, (problem,)), size
            end = max(len(raw.rstrip(PADDING)) - tail_size, start + data)
            problems = (
                problem,
                "it has no tail that tells where its data end, and is taken to reach up to the padding",
            )
            return Evidence(at, label, Kind.ENQUEUE, None, None, b"", start, end, problems), len(raw) - at
        return None


_BEHIND: Final = "it stands behind something that is no good record, and may be a part of its content"

#: Magic, version and the byte after it, of an enqueue.
_BEGINNINGS: Final = (b"RHMe\1\0", b"RHMe\2\0", b"QLSe\2\0")


def _format(header: Header) -> str:
    return f"version {header.version}" if isinstance(header, rhm.RecordHeader) else "linear"


def _blocks(size: int) -> int:
    """Bytes of the blocks that so many bytes take."""
    return max(-(-size // BLOCK_SIZE), 1) * BLOCK_SIZE


#: Bytes of an enqueue's header, the check word of its tail, and the tail's bytes: of the journal, and of linear's.
_TAILS_OF_ENQUEUES: Final = (
    (rhm.MAX_HEADER_SIZE, _WORD.pack(rhm.version_1_check(Kind.ENQUEUE)), rhm.TAIL_SIZE),
    (qls.MAX_HEADER_SIZE, _WORD.pack(qls.MAGICS[Kind.ENQUEUE] ^ 0xFFFFFFFF), qls.TAIL_SIZE),
)


def _message_at(raw: bytes, start: int) -> int | None:
    """Bytes up to the content of the message whose data begin at `start`; None if none begins there."""
    try:
        size = HEADER_SIZE_BYTES + header_size(raw[start : start + HEADER_SIZE_BYTES])
        prefix = raw[start : start + size]
        if frames_problem(prefix, len(raw) - start) is not None:
            return None
        header = decode_message_header(prefix[HEADER_SIZE_BYTES:])
    except BrokerRecordError:
        return None
    return None if header.amqp_1_0 is not None and not header.amqp_1_0.sections else size


# ---------------------------------------------------------------------------------------------- messages


def judge(raw: bytes, evidence: Evidence) -> Judgement:
    """What a record that was found in `raw` is good for."""
    if evidence.kind is not Kind.ENQUEUE:
        return Judgement(None, evidence.problems, f"a record of type {evidence.kind.label} holds no message")
    if evidence.flags & EXTERNAL and evidence.format != "version 2":
        return Judgement(None, evidence.problems, "it is external: its data were never in the journal")
    if evidence.flags & COMPRESSED and evidence.format == "version 2":
        return Judgement(None, evidence.problems, "its content is compressed")
    message = _message(raw[evidence.start : evidence.end])
    problems = list(evidence.problems)
    if evidence.xid:
        problems.append(f"it was enqueued in transaction {evidence.xid.hex()}, whose outcome is not known here")
    if message.header is None:
        return Judgement(message, tuple(problems), f"its message header cannot be decoded: {message.problem}")
    told = message.header.content_length
    if told is not None and told != message.body_length:
        problems.append(f"its properties say {told} bytes of content, and there are {message.body_length}")
    return Judgement(message, tuple(problems), None)


def _message(data: bytes) -> Message:
    """The message in the data of an enqueue; where it cannot be decoded, its body is all of them."""
    problem, header, body = None, None, data
    try:
        start = HEADER_SIZE_BYTES + header_size(data)
        if start > len(data):
            problem = "the data are shorter than the header that they announce"
        else:
            header = decode_message_header(data[HEADER_SIZE_BYTES:start])
            body = data[start:] if header.amqp_1_0 is None else _sections(data, header.amqp_1_0)
    except BrokerRecordError as error:
        problem = error.what
    return Message(header, problem, len(body), sha256(body).hexdigest(), body, None)


def _sections(data: bytes, message: Amqp10Message) -> bytes:
    """The body of an AMQP 1.0 message: what its body sections hold, one after another."""
    places = ((HEADER_SIZE_BYTES + offset, size) for offset, size in message.body_sections)
    return b"".join(data[offset : offset + size] for offset, size in places)
