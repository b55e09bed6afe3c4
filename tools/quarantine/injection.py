"""Injects messages from a quarantine into a store that is not in use.

All messages of an entry are enqueued in one transaction, so that they are in the queue together or not at all. The
entries are marked twice: before the first transaction as begun, and after the last with their new record ids, or, if
nothing was written, as before. Whenever a crash happens, an entry without a mark is in no queue, so none is injected
twice by mistake. The marks and the store are locked in the meantime.

Injected messages are marked as redelivered, as after a crash, because a consumer may have received them before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from qstore.formats.quarantine_index import Injection, QuarantineEntry
from qstore.formats.rhm.records import Kind
from qstore.store.environment import Environment
from qstore.store.errors import StoreError
from qstore.store.log_lines import LogLine
from qstore.store.repair.quarantine import Quarantine, QuarantineError, QuarantineMarks
from qstore.store.repair.stopped_messages import StoppedMessages, UnknownOutcomeError
from qstore.tools.quarantine.evidence import MAX_BYTES, Evidence, RecordFinder, data_of, judge

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
