"""Quarantined bytes: the records in them, the messages in those records, and their injection into a store.

A record is *proved* if its format's own check passes: version 2's checksum, with the salt of its file; the
linearstore's checksum and serial; version 1's tail, which is weaker. Other records are reported with everything that is
wrong:

    header            tail                          interpretation
    ----------------  ----------------------------  ------------------------------------------------------------------
    good              where the header says         the data between them; the checksum shows that some byte is wrong
    good              elsewhere, with its rid       the data up to there: the header's size is wrong
    good              missing                       as much data as the header says, or as there are bytes
    broken beginning  where the rest says           the data between them, as if the beginning were right
    none              of an enqueue, if any         the data up to there, if a message header is where data begin

Bytes after a record that is not proved may be part of its content, and are reported as such, unless they are proved by
a checksum that cannot be forged without knowing the salt.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

from qstore.formats.broker_records.message_header import Amqp10Message
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, decode_message_header, frames_problem, header_size
from qstore.formats.errors import BrokerRecordError, FormatError, RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qls import records as qls
from qstore.formats.quarantine_index import Injection, QuarantineEntry
from qstore.formats.rhm import records as rhm
from qstore.formats.rhm.compressed import Decompressor
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import COMPRESSED, EXTERNAL, PADDING, Kind
from qstore.store.environment import Environment
from qstore.store.errors import StoreError
from qstore.store.log_lines import LogLine
from qstore.store.repair.quarantine import Quarantine, QuarantineError, QuarantineMarks
from qstore.store.repair.stopped_messages import StoppedMessages, UnknownOutcomeError
from qstore.tools.dump.messages import Message

MAX_BYTES: Final = 1 << 27  # of an entry that is analyzed

_MAX_CANDIDATES: Final = 16  # places at which a tail is searched
_MAX_LOOKS: Final = 8  # budget: all of an entry's bytes this many times ...
_FREE: Final = 1 << 16  # ... plus this many bytes
_RID: Final = struct.Struct("<Q")
_WORD: Final = struct.Struct("<I")
_RHM, _QLS = b"RHM", b"QLS"

Header = rhm.RecordHeader | qls.RecordHeader


class Evidence(NamedTuple):
    """A record, or what is left of one.

    Attributes:
        offset: where it begins in the entry's bytes.
        format: "version 1", "version 2" or "linear".
        kind: its type.
        rid: its record id; None if unknown.
        dequeued_rid: for a dequeue, the record that it removes.
        xid: its transaction's id, or empty.
        start, end: for an enqueue, the bounds of its data; otherwise both are the end of its xid.
        problems: why it is not proved, one line each; empty if it is.
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
        """Whether the record's own check passes."""
        return not self.problems


class Judgement(NamedTuple):
    """What a record can be used for.

    Attributes:
        message: the message in it; None if there is none.
        problems: why it is not trustworthy; shown before it is injected anyway.
        refusal: why it cannot be injected at all; None if it can.
    """

    message: Message | None
    problems: tuple[str, ...]
    refusal: str | None


# ---------------------------------------------------------------------------------------------- records


class RecordFinder:
    """Finds the records in the bytes of an entry.

    Forged sizes can make every block claim the rest of the bytes, so the search is limited: it stops when it has
    examined a fixed multiple of the entry's bytes.

    Args:
        raw: the bytes; records begin at blocks.
        salt: version 2: the salt of the file they are from; None if unknown.

    Attributes:
        gave_up: whether the search stopped before the end.
    """

    def __init__(self, raw: bytes, salt: int | None) -> None:
        self._raw, self._salt = raw, salt
        self._budget = _MAX_LOOKS * len(raw) + _FREE
        self.gave_up = False

    def records(self) -> Iterator[Evidence]:
        """The records, without fillers."""
        at, after_broken = 0, False
        while at < len(self._raw) and not self.gave_up:
            found = self._record_at(at)
            if found is None:
                after_broken = True  # even if it is empty: a record longer than the lost bytes may have begun there
                at += BLOCK_SIZE
                continue
            evidence, size = found
            is_good = evidence.is_proved
            if after_broken and not (is_good and evidence.format == "version 2"):
                evidence = evidence._replace(problems=(*evidence.problems, _AFTER_BROKEN))
            if evidence.kind is not Kind.FILLER:
                yield evidence
            after_broken = after_broken or not is_good
            at += size
            if size < evidence.end - evidence.offset:
                self._spend(evidence.end - evidence.offset)  # its end was found by reading on

    def _spend(self, size: int) -> bool:
        """Take bytes from the budget; returns whether that was possible."""
        self._budget -= size
        self.gave_up = self.gave_up or self._budget < 0
        return not self.gave_up

    def _record_at(self, at: int) -> tuple[Evidence, int] | None:
        """The record that begins at `at`, and its end; None if there is none."""
        raw = self._raw
        magic = raw[at : at + 3]
        if magic not in (_RHM, _QLS):
            return None if at else self._broken_header(at, "its header is lost")
        try:
            header: Header = rhm.decode_header(raw, at) if magic == _RHM else qls.decode_header(raw, at)
        except FormatError as error:
            return self._broken_header(at, f"its header cannot be decoded: {error.what}")
        if at + header.header_size + header.xid_size > len(raw):
            return self._broken_header(at, f"its header says that its transaction id has {header.xid_size:,} bytes")
        doubt = self._doubt(at, header)
        if header.kind is Kind.FILLER and doubt is not None:
            return None
        return self._proved(at, header) if doubt is None else self._doubtful(at, header, doubt)

    def _proved(self, at: int, header: Header, *problems: str) -> tuple[Evidence, int]:
        """A record where its header says."""
        return self._evidence(at, header, at + header.tail_offset, problems), header.size

    def _doubtful(self, at: int, header: Header, doubt: str) -> tuple[Evidence, int]:
        """A record with a good header and another defect."""
        start, end = at + header.header_size + header.xid_size, at + header.tail_offset
        tail = self._find_tail(at, header)
        if tail == end:
            return self._proved(at, header, doubt)
        if tail is not None and header.kind is Kind.ENQUEUE:
            moved = f"its header says {header.stored_size:,} bytes of data, but its tail is after {tail - start}"
            return self._evidence(at, header, tail, (moved,)), _blocks(tail - at)
        if end > len(self._raw):
            doubt = f"{end - len(self._raw):,} of its {header.stored_size:,} bytes of data are missing, and its tail"
        return self._evidence(at, header, min(end, len(self._raw)), (doubt,)), BLOCK_SIZE

    def _evidence(self, at: int, header: Header, end: int, problems: tuple[str, ...]) -> Evidence:
        start = at + header.header_size + header.xid_size
        xid = self._raw[at + header.header_size : start]
        target = header.dequeued_rid if header.kind is Kind.DEQUEUE else None
        return Evidence(at, _format(header), header.kind, header.rid, target, xid, start, end, problems, header.flags)

    # ---- tails ----

    def _doubt(self, at: int, header: Header, beginning: bytes = b"") -> str | None:
        """Why a record is not proved; None if it is. `beginning` replaces the first bytes of its header."""
        end = at + header.tail_offset
        raw = self._raw
        if end > len(raw):
            return f"truncated {header.kind.label} record"
        if not self._spend(header.size):
            return "it is not verified: the limit for repeated examination of the same bytes was reached"
        if beginning:
            raw, at = beginning + raw[at + len(beginning) : at + header.size], 0
        try:
            if isinstance(header, qls.RecordHeader):
                qls.decode_record(raw, at)
            elif header.version == 2 and self._salt is None:
                _, rid = rhm.decode_tail(raw, at + header.tail_offset)
                if rid != header.rid:
                    return f"{header.kind.label} record without its tail"
                return "its checksum cannot be verified: the salt of its file is unknown"
            else:
                rhm.decode_record(raw, at, salt=self._salt or 0)
        except FormatError as error:
            is_checksum = _format(header) == "version 2" and error.offset == at + header.tail_offset
            return f"{header.kind.label} record fails its checksum" if is_checksum else error.what
        return None

    def _find_tail(self, at: int, header: Header) -> int | None:
        """Position of a tail with the record's id; None if there is none."""
        if not header.has_tail:
            return None
        before, size = (8, qls.TAIL_SIZE) if isinstance(header, qls.RecordHeader) else (4, rhm.TAIL_SIZE)
        key = _RID.pack(header.rid)
        if isinstance(header, qls.RecordHeader):
            key = _RID.pack(header.serial) + key
        elif header.version == 1:
            before, key = 0, _WORD.pack(rhm.version_1_check(header.kind)) + key
        end = at + header.tail_offset  # its expected position comes first
        if self._raw[end + before : end + size] == key:
            return end
        place = at + header.header_size + header.xid_size + before
        for _ in range(_MAX_CANDIDATES):
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
        """Whether a tail belongs to the record. In version 2 an id alone matches too easily, so the checksum decides.

        It covers the header with its original size, so the damaged one is replaced.
        """
        if not isinstance(header, rhm.RecordHeader) or header.version == 1:
            return True
        if self._salt is None or header.kind is not Kind.ENQUEUE:
            return False
        mended = header._replace(data_size=tail - at - header.header_size - header.xid_size)
        return self._doubt(at, mended, rhm.encode_header(mended)) is None

    # ---- records without a good header ----

    def _broken_header(self, at: int, problem: str) -> tuple[Evidence, int] | None:
        """A message whose record has no good header; None if none is recognized."""
        for beginning in _BEGINNINGS:
            head = beginning + self._raw[at + len(beginning) : at + qls.MAX_HEADER_SIZE]
            try:
                header: Header = rhm.decode_header(head) if beginning[:3] == _RHM else qls.decode_header(head)
            except FormatError:
                continue
            if self._doubt(at, header, beginning) is None:
                return self._proved(at, header, f"{problem}; with a corrected beginning of the header its tail matches")
        return self._headless(at, problem)

    def _headless(self, at: int, problem: str) -> tuple[Evidence, int] | None:
        """A message recognized by its own header, where data of a record without transaction id begin."""
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
                "no tail shows where its data end; they are assumed to reach up to the padding",
            )
            return Evidence(at, label, Kind.ENQUEUE, None, None, b"", start, end, problems), len(raw) - at
        return None


_AFTER_BROKEN: Final = "it follows a record that is not intact, and may be part of that record's content"

#: Magic, version and the following byte of an enqueue.
_BEGINNINGS: Final = (b"RHMe\1\0", b"RHMe\2\0", b"QLSe\2\0")


def _format(header: Header) -> str:
    return f"version {header.version}" if isinstance(header, rhm.RecordHeader) else "linear"


def _blocks(size: int) -> int:
    """Size in bytes of the blocks that `size` bytes occupy."""
    return max(-(-size // BLOCK_SIZE), 1) * BLOCK_SIZE


#: Sizes of an enqueue's header, its tail's check word, and its tail, in bytes: of rhm journals, and of the
# linearstore.
_TAILS_OF_ENQUEUES: Final = (
    (rhm.MAX_HEADER_SIZE, _WORD.pack(rhm.version_1_check(Kind.ENQUEUE)), rhm.TAIL_SIZE),
    (qls.MAX_HEADER_SIZE, _WORD.pack(qls.MAGICS[Kind.ENQUEUE] ^ 0xFFFFFFFF), qls.TAIL_SIZE),
)


def _message_at(raw: bytes, start: int) -> int | None:
    """Bytes up to the content of the message whose data begin at `start`; None if no message begins there."""
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


def data_of(raw: bytes, evidence: Evidence) -> bytes:
    """The data of an enqueue that was found in `raw`, as they were enqueued.

    Raises:
        RhmError: their content is compressed and damaged.
    """
    data = raw[evidence.start : evidence.end]
    is_compressed = evidence.flags & COMPRESSED and evidence.format == "version 2"
    return Decompressor().restore(data) if is_compressed else data


def judge(raw: bytes, evidence: Evidence) -> Judgement:
    """What a record that was found in `raw` can be used for."""
    if evidence.kind is not Kind.ENQUEUE:
        return Judgement(None, evidence.problems, f"a record of type {evidence.kind.label} holds no message")
    if evidence.flags & EXTERNAL and evidence.format != "version 2":
        return Judgement(None, evidence.problems, "it is external: its data were never in the journal")
    try:
        message = _message(data_of(raw, evidence))
    except RhmError as error:
        return Judgement(None, evidence.problems, f"its content cannot be used: {error.what}")
    problems = list(evidence.problems)
    if evidence.xid:
        problems.append(f"it was enqueued in transaction {evidence.xid.hex()}, whose outcome is unknown")
    if message.header is None:
        return Judgement(message, tuple(problems), f"its message header cannot be decoded: {message.problem}")
    expected = message.header.content_length
    if expected is not None and expected != message.body_length:
        problems.append(f"its properties specify {expected:,} bytes of content, but there are {message.body_length:,}")
    return Judgement(message, tuple(problems), None)


def _message(data: bytes) -> Message:
    """The message in the data of an enqueue; if it cannot be decoded, its body is all of the data."""
    problem, header, body = None, None, data
    try:
        start = HEADER_SIZE_BYTES + header_size(data)
        if start > len(data):
            problem = "the data are shorter than the length of the message header in them"
        else:
            header = decode_message_header(data[HEADER_SIZE_BYTES:start])
            body = data[start:] if header.amqp_1_0 is None else _sections(data, header.amqp_1_0)
    except BrokerRecordError as error:
        problem = error.what
    return Message(header, problem, len(body), sha256(body).hexdigest(), body, None)


def _sections(data: bytes, message: Amqp10Message) -> bytes:
    """The body of an AMQP 1.0 message: the contents of its body sections, concatenated."""
    places = ((HEADER_SIZE_BYTES + offset, size) for offset, size in message.body_sections)
    return b"".join(data[offset : offset + size] for offset, size in places)


# ---- injection into a store that is not in use ----
#
# All messages of an entry are enqueued in one transaction, so that they are in the queue together or not at all. The
# entries are marked twice: before the first transaction as begun, and after the last with their new record ids, or, if
# nothing was written, as before. Whenever a crash happens, an entry without a mark is in no queue, so none is injected
# twice by mistake. The marks and the store are locked in the meantime.
#
# Injected messages are marked as redelivered, as after a crash, because a consumer may have received them before.

MAX_MESSAGES: Final = 10_000  # of one entry
MAX_CONTENT: Final = 1 << 30  # bytes of one entry: compressed content may be large

GAVE_UP: Final = "records appear to begin throughout it, nested in each other: the search was stopped"


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class InjectionRequest(NamedTuple):
    """What is to be injected, and how.

    Attributes:
        numbers: the entries, in the order of injection.
        queue: the destination queue; None for the one in which each was found.
        force: also inject what is not trustworthy.
        again: also inject what was injected before.
    """

    numbers: Sequence[int]
    queue: str | None = None
    force: bool = False
    again: bool = False


class Injected(NamedTuple):
    """The result for one entry.

    Attributes:
        entry: the entry.
        queue: the destination queue of its messages.
        rids: their new record ids; empty if they were not injected.
        problems: why they are not trustworthy.
        failure: why it was not injected; None if it was.
        is_known: whether it is certain that it was not.
    """

    entry: QuarantineEntry
    queue: str
    rids: Sequence[int]
    problems: Sequence[str]
    failure: str | None
    is_known: bool = True


class Judged(NamedTuple):
    """An analyzed entry: its messages, what is wrong with them, why it cannot be injected."""

    messages: Sequence[Evidence]
    problems: Sequence[str]
    failure: str | None


def inject(
    environment: Environment,
    directory: str,
    store_path: str,
    request: InjectionRequest,
    version: str,
    log: Callable[[LogLine], None],
) -> list[Injected]:
    """Enqueue messages of a quarantine at the end of queues; injected messages are durable on return.

    Args:
        environment: disk, clock and so on.
        directory: the quarantine directory.
        store_path: the store: the directory that contains `rhm`, or `rhm` itself.
        request: what is to be injected.
        version: version of this software.
        log: takes the store's log lines.

    Returns:
        The result for each entry, in order.

    Raises:
        QuarantineError: there is no such quarantine or entry, or it cannot be marked.
        StoreError: there is no such store, or it is in use or damaged, or cannot be written to.
    """
    with contextlib.ExitStack() as held:
        marks = QuarantineMarks(environment.disk, directory)
        held.callback(marks.release)
        quarantine = Quarantine(environment.disk, directory)
        entries = _entries(quarantine, request.numbers)
        store = held.enter_context(StoppedMessages(environment, store_path, version, log))
        return _Work(environment, quarantine, marks, store, request).do(entries)


def _entries(quarantine: Quarantine, numbers: Sequence[int]) -> list[QuarantineEntry]:
    found = quarantine.find(numbers)
    for number in numbers:
        if number not in found:
            raise QuarantineError(
                f"{quarantine.directory}: there is no entry {number}; qstore-quarantine list shows the entries"
            )
    return [found[number] for number in dict.fromkeys(numbers)]


class _Work:
    """One run on an opened store."""

    def __init__(
        self,
        environment: Environment,
        quarantine: Quarantine,
        marks: QuarantineMarks,
        store: StoppedMessages,
        request: InjectionRequest,
    ) -> None:
        self._environment, self._quarantine, self._marks = environment, quarantine, marks
        self._store, self._request = store, request
        if request.queue is not None:
            store.journal(request.queue)

    def do(self, entries: Iterable[QuarantineEntry]) -> list[Injected]:
        """Inject everything that can be injected."""
        judged = [(entry, self._judge(entry)) for entry in entries]
        begun = {entry.number: self._mark(entry, len(of.messages)) for entry, of in judged if of.failure is None}
        if begun:
            self._marks.mark(begun)
        results = [self._inject(entry, of) for entry, of in judged]
        ended = {
            each.entry.number: self._mark(each.entry, len(each.rids), each.rids[0])
            if each.rids
            else each.entry.injected
            for each in results
            if each.entry.number in begun and each.is_known
        }
        if ended:
            self._mark_ended(ended, [each.entry.number for each in results if each.rids])
        return results

    def _mark_ended(self, ended: Mapping[int, Injection | None], injected: Sequence[int]) -> None:
        """Mark entries a second time. On failure, report which are in the store and stay marked as begun."""
        try:
            self._marks.mark(ended)
        except QuarantineError as error:
            if not injected:
                raise
            numbers = ", ".join(map(str, injected))
            which = f"entries {numbers} are" if len(injected) > 1 else f"entry {numbers} are"
            text = f"the messages of {which} in {self._store.path}, but the index could not be updated"
            raise QuarantineError(f"{error}; {text}: do not inject them again") from error

    def _queue(self, entry: QuarantineEntry) -> str:
        return entry.queue if self._request.queue is None else self._request.queue

    def _mark(self, entry: QuarantineEntry, messages: int, first_rid: int | None = None) -> Injection:
        now = self._environment.clock()
        return Injection(self._store.path, self._queue(entry), now, messages, first_rid)

    def _judge(self, entry: QuarantineEntry) -> Judged:
        """Analyze an entry and check whether it can be injected."""
        judged = look_into(self._quarantine, entry)
        if judged.failure is not None:
            return judged
        if entry.injected is not None and not self._request.again:
            return judged._replace(failure=f"{injected_before(entry.injected)}; --again injects it again")
        if not self._store.has_queue(self._queue(entry)):
            return judged._replace(
                failure=f'there is no queue "{self._queue(entry)}" in the store; --queue names another'
            )
        if judged.problems and not self._request.force:
            return judged._replace(failure="it is not intact; --force injects it anyway")
        return judged

    def _inject(self, entry: QuarantineEntry, judged: Judged) -> Injected:
        result = Injected(entry, self._queue(entry), (), judged.problems, judged.failure)
        if judged.failure is not None:
            return result
        try:
            raw = b"".join(self._quarantine.raw(entry))
            messages = [data_of(raw, each) for each in judged.messages]
            rids = self._store.add(result.queue, messages, is_redelivered=True)
        except UnknownOutcomeError as error:
            return result._replace(failure=str(error), is_known=False)
        except (StoreError, QuarantineError) as refusal:
            return result._replace(failure=str(refusal))
        return result._replace(rids=rids)


# ---- objections to an entry ----


def injected_before(injection: Injection) -> str:
    """Describes where an entry was injected before."""
    at = (_EPOCH + timedelta(microseconds=injection.at // 1000)).strftime("%Y-%m-%d %H:%M:%S UTC")
    where = f'queue "{injection.queue}" of {injection.store}'
    if injection.first_rid is None:
        return (
            f"an injection into {where} was interrupted at {at}, and may have taken place: look for it with qstore-dump"
        )
    last = injection.first_rid + injection.messages - 1
    rids = f"record 0x{injection.first_rid:x}" + (f" to 0x{last:x}" if last > injection.first_rid else "")
    return f"it was injected into {where} at {at}, as {rids}"


def look_into(quarantine: Quarantine, entry: QuarantineEntry) -> Judged:
    """The messages of an entry, and what is wrong with them. Raises QuarantineError."""
    if entry.size > MAX_BYTES:
        return Judged((), (), f"{entry.size:,} bytes are more than the limit of {MAX_BYTES:,} for analysis")
    damage = quarantine.raw_problem(entry)
    if quarantine.size_problem(entry) is not None:
        return Judged((), (), damage)
    raw = b"".join(quarantine.raw(entry))
    messages: list[Evidence] = []
    size = 0
    removed: set[int | None] = set()
    problems = [] if damage is None else [damage]
    refusals = []
    finder = RecordFinder(raw, entry.salt)
    for evidence in finder.records():
        if evidence.kind is not Kind.ENQUEUE:
            removed.add(evidence.dequeued_rid)
            continue
        judgement = judge(raw, evidence)
        name = "a record" if evidence.rid is None else f"record 0x{evidence.rid:x}"
        problems += [f"{name}: {problem}" for problem in judgement.problems]
        if judgement.refusal is None:
            messages.append(evidence)
            size += judgement.message.body_length if judgement.message is not None else 0
        else:
            refusals.append(f"{name}: {judgement.refusal}")
        if len(messages) > MAX_MESSAGES:
            return Judged((), (), f"it contains more than {MAX_MESSAGES} messages")
        if size > MAX_CONTENT:
            return Judged((), (), f"its messages have more than {MAX_CONTENT} bytes of content once it is restored")
    if finder.gave_up:
        return Judged((), problems, GAVE_UP)
    problems += [
        f"record 0x{each.rid:x}: the entry also contains its dequeue" for each in messages if each.rid in removed
    ]
    if not messages:
        return Judged((), problems, "; ".join(["it contains no message that can be injected", *refusals[:1]]))
    return Judged(messages, [*problems, *refusals], None)
