"""`qstore-replay`: put messages of a store, an export or a backup on a queue again, from one on, in the same order.

Exit codes: 0 the messages were replayed, or had been before, 1 damage was found, or messages cannot be sent, 2 the
source, the destination or the command line is unusable.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import MessagingError
from qstore.broker.model.configuration import Record, object_of
from qstore.broker.model.selectors.candidate import Candidate
from qstore.broker.model.selectors.selector import Selector
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.broker_records.message_header import MessageHeader
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, decode_message_header, header_size
from qstore.formats.broker_records.topology import (
    DEFAULT_HOST,
    HOST_KIND,
    HOST_SEPARATOR,
    Binding,
    Bridge,
    Exchange,
    GeneralObject,
    Link,
    Queue,
    split_name,
)
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.records import TRANSIENT, Kind
from qstore.formats.wording import plural
from qstore.store.backup.repository import Manifest, Repository, backup_names, check_mark, read_manifest
from qstore.store.backup.restore import restore
from qstore.store.damage import Damage
from qstore.store.disk import OsWritableDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError, advice
from qstore.store.importing.intake import ImportedMessage
from qstore.store.importing.plan import PastImport
from qstore.store.inspect.layout import UnusableInputError, find_layout, holder_of_store
from qstore.store.inspect.offline import OfflineStore, RecoveredQueue, open_store
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.records import RecordHeader
from qstore.store.journal.recovery import LIVE, PENDING
from qstore.store.repair.stopped_messages import store_of_version_2
from qstore.tools.backup_places import open_repository
from qstore.tools.console.amounts import Moment
from qstore.tools.console.broker import broker_url
from qstore.tools.console.command import (
    AGAIN,
    BROKER_RATE,
    DRY_RUN,
    EXIT_DAMAGE,
    JSON,
    QUIET,
    SETTINGS,
    PathName,
    failing,
    log_printer,
    private_files,
    run,
)
from qstore.tools.console.progress import bytes_progress
from qstore.tools.console.rows import note, print_json
from qstore.tools.console.text import escape_name, printable, unescape_name
from qstore.tools.dump.messages import SELECTOR, no_such_queue, parse_rids
from qstore.tools.interchange.exporting import stored_data
from qstore.tools.interchange.files import read_export
from qstore.tools.interchange.importing import import_into_broker, import_into_store
from qstore.tools.interchange.items import InterchangeError, ItemSink

_PROGRAM: Final = "qstore-replay"

_EPILOG = """
\b
Examples:
qstore-replay /var/lib/qstore /var/lib/qstore --queue orders --to orders.again --from-rid 0x4711
qstore-replay /var/lib/qstore amqp://localhost --queue orders --since 2026-11-24T08:00:00Z --rate 500
qstore-replay orders.tar.zst /var/lib/qstore --queue orders --from-header orderId=A-1001
qstore-replay /var/lib/qstore /var/lib/again --queue orders --all --create
qstore-replay /backup/qstore /var/lib/qstore --queue orders --from-id 59f19d71-aab1-5fbb-bf07-b4ac737133e8
qstore-replay /var/lib/qpidd amqp://guest/guest@localhost --queue orders --all --dry-run

\b
SOURCE is a stopped store of any format, a file that qstore-export wrote, or a place of qstore-backup. Of stores and
backups, messages that were dequeued count as long as the journal has not overwritten them (--outstanding: they do not).
DEST is a stopped qstore store, or a running broker. The replay begins with the first message that matches all --from
options and --since; those that follow it are put on the queue in the order of delivery, behind what it has, marked as
redelivered. Nothing is taken out of SOURCE.

\b
Into a store all of them take effect at once; into a broker, in transactions, and after a kill the same command
continues where it stopped. The ledger of qstore-import knows what was replayed: the same replay does not take place
twice, unless --again is given. A replay of a queue of a store into itself rebuilds its journal without the dequeued
messages: to keep them, choose another queue with --to.

\b
Exit codes: 0 the messages were replayed, or had been before, 1 damage was found, or messages cannot be sent to a
broker, 2 SOURCE, DEST or the command line is unusable.
"""


class _Header(click.ParamType[tuple[str, str]]):
    """A header and its value."""

    name = "NAME=VALUE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return unescape_name(name), text


class _Rid(click.ParamType[int]):
    """A record id."""

    name = "RID"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            first, last = parse_rids(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if first != last:
            self.fail(f"{value!r} is not one record id", param, ctx)
        return first


@click.command(_PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("source", metavar="SOURCE", type=PathName(readable=False))
@click.argument("destination", metavar="DEST|URL", type=PathName(readable=False))
@click.option("--queue", required=True, metavar="NAME", help="The queue in SOURCE whose messages are replayed.")
@click.option(
    "--to", "target", metavar="NAME", help="The queue in DEST on which they are put.  [default: the same name]"
)
@click.option("--from-rid", "rid", type=_Rid(), help="Begin with this record id, or the next one.")
@click.option("--from-id", "message_id", metavar="ID", help="Begin with the message with this message id.")
@click.option("--from-header", "header", type=_Header(), help="Begin with the first message with this header.")
@click.option("--since", type=Moment(), help="Begin with the first message with a timestamp at or after this time.")
@click.option("--all", "everything", is_flag=True, help="Begin with the first message there is.")
@click.option("--until", type=Moment(), help="End before the first message with a later timestamp.")
@SELECTOR
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N messages.")
@click.option("--outstanding", is_flag=True, help="Only messages that are still in the queue, not dequeued ones.")
@click.option(
    "--create",
    is_flag=True,
    help="Create the queue in DEST with its settings in SOURCE, and DEST, if they are missing.",
)
@click.option("--backup", metavar="ID", help="SOURCE is a place of backups: use this one.  [default: the latest]")
@DRY_RUN
@AGAIN
@BROKER_RATE
@JSON
@QUIET
@click.version_option(__version__, prog_name=_PROGRAM)
@click.pass_context
def command(context: click.Context, /, source: str, destination: str, **values: Any) -> None:
    """Put messages of a queue in SOURCE on a queue in DEST again, in the order of delivery."""
    starts = [values[name] for name in ("rid", "message_id", "header", "since")]
    if values["everything"] is any(each is not None for each in starts):
        raise click.UsageError("choose where to begin: --from-rid, --from-id, --from-header, --since, or --all.")
    broker = broker_url(destination)
    if values["rate"] and broker is None:
        raise click.UsageError("--rate applies to a running broker.")
    queue = unescape_name(values["queue"])
    target = queue if values["target"] is None else unescape_name(values["target"])
    choice = Choice(
        queue, target, values["rid"], values["message_id"], values["header"], values["since"],
        values["until"], values["selector"], values["limit"], values["create"],
    )  # fmt: skip
    began, dry_run, again = time.monotonic(), values["dry_run"], values["again"]
    failures = (UnusableInputError, InterchangeError, StoreError, MessagingError)
    with failing(_PROGRAM, *failures, advise=advice), private_files():
        opened = open_replay(source, destination, choice, backup=values["backup"], is_whole=not values["outstanding"])
        with opened as replay:
            left_out = 0
            if broker is not None:
                sent = import_into_broker(replay.read, broker.text, rate=values["rate"], dry_run=dry_run, again=again)
                past, left_out = sent.past, sent.left_out
            else:
                if Path(destination).exists() or not choice.creates:
                    store_of_version_2(tool_environment(), destination, __version__)
                past = import_into_store(
                    replay.read, destination, dry_run=dry_run, again=again, log=log_printer(_PROGRAM)
                ).past
    where = destination if broker is None else broker.shown
    report = ReplayReport(choice, replay.replayed, where, past, dry_run, left_out, time.monotonic() - began)
    _tell(replay, left_out)
    with failing(_PROGRAM):
        if values["as_json"]:
            report.show_json()
        elif not values["quiet"]:
            report.show()
    context.exit(EXIT_DAMAGE if replay.damage or left_out else 0)


def _tell(replay: Replay, left_out: int) -> None:
    notices = list(replay.notices)
    if replay.replayed.expired:
        notices.append(f"{plural(replay.replayed.expired, 'message')} have expired: a broker will drop them")
    if left_out:
        notices.append(f"{plural(left_out, 'message')} cannot be decoded, or are scheduled, and were not sent")
    for notice in notices:
        note("notice", notice)
    for damage in replay.damage:
        note("damage", f"{damage.where}: {damage.what}")


# ---- which messages are replayed ----


@dataclass(frozen=True, slots=True)
class Choice:
    """What is replayed: from the first message on that fulfils all of the first four, if they are given.

    Attributes:
        queue: the queue in the source.
        target: the queue on which the messages are put.
        rid: the first message's record id is this one or a later one.
        message_id: its message id.
        header: name and value, as text, of an application header that it has.
        since: its timestamp is this one or a later one, in seconds since 1970.
        until: it ends before the first message with a later timestamp.
        selector: only messages that it selects.
        limit: their largest number; None for all.
        creates: whether the target is created if it is missing.
    """

    queue: str
    target: str
    rid: int | None = None
    message_id: str | None = None
    header: tuple[str, str] | None = None
    since: int | None = None
    until: int | None = None
    selector: Selector | None = None
    limit: int | None = None
    creates: bool = False

    @property
    def text(self) -> str:
        """All of it, for the ledger."""
        selector = None if self.selector is None else self.selector.text
        return repr((self.queue, self.target, self.rid, self.message_id, self.header, self.since, self.until, selector,
                     self.limit))  # fmt: skip


@dataclass(slots=True)
class Replayed:
    """What passed.

    Attributes:
        seen: number of messages of the queue, up to the last one.
        messages: number of those that are replayed.
        rids: record ids of the first and the last of them; 0 if the source has none.
        expired: number of those whose time is over: a broker drops them.
        digest: of all of them.
    """

    seen: int = 0
    messages: int = 0
    rids: list[int] = field(default_factory=list)
    expired: int = 0
    digest: Any = field(default_factory=sha256)


class ReplaySink:
    """Passes on the messages that are replayed, as messages of the target; nothing else.

    Args:
        sink: receives them.
        choice: which.

    Attributes:
        replayed: what passed.
        queues: the names of the queues that were seen.
    """

    def __init__(self, sink: ItemSink, choice: Choice) -> None:
        self._sink, self._choice = sink, choice
        self._has_begun, self._has_ended = False, False
        self._now = time.time()
        self.replayed = Replayed()
        self.queues: set[str] = set()

    def queue(self, queue: Queue) -> None:
        """Its name counts; and what it is, if the target may have to be created."""
        self.queues.add(queue.name)
        if self._choice.creates and queue.name == self._choice.queue:
            host = split_name(self._choice.target)[0]
            if host != DEFAULT_HOST:
                self._sink.other(object_of(Record(HOST_KIND, (host,)), {}))
            self._sink.queue(replace(queue, name=self._choice.target, alternate_exchange=""))

    def exchange(self, exchange: Exchange) -> None:
        """Not replayed."""

    def binding(self, exchange: str, binding: Binding) -> None:
        """Not replayed."""

    def other(self, general: Link | Bridge | GeneralObject) -> None:
        """Not replayed."""

    def branch(self, xid: bytes) -> None:
        """Not replayed."""

    def message(self, message: ImportedMessage) -> None:
        """Pass on a message, if it is one of the queue's, and was delivered or can be."""
        choice, replayed = self._choice, self.replayed
        self.queues.add(message.queue)
        if message.queue != choice.queue or message.state == PENDING or self._has_ended:
            return
        replayed.seen += 1
        header = _header(message.data)
        if not self._has_begun:
            if not _begins(choice, message.rid, header):
                return
            self._has_begun = True
        moment = None if header is None else moment_of(header)
        if choice.until is not None and moment is not None and moment > choice.until:
            self._has_ended = True
            return
        if choice.selector is not None and not _selects(choice.selector, message):
            return
        self._pass(message, header)

    def _pass(self, message: ImportedMessage, header: MessageHeader | None) -> None:
        replayed = self.replayed
        if replayed.messages == self._choice.limit:
            self._has_ended = True
            return
        replayed.messages += 1
        replayed.rids[1:] = [message.rid]
        expires = None if header is None else header.expiration
        replayed.expired += bool(expires and expires < self._now)
        replayed.digest.update(b"%d %d " % (message.rid, len(message.data)))
        replayed.digest.update(message.data)
        self._sink.message(message._replace(queue=self._choice.target, rid=0, state=LIVE, xid=b"", is_redelivered=True))


def moment_of(header: MessageHeader) -> int | None:
    """When a message was sent, in seconds since 1970; None if it has no timestamp."""
    if header.amqp_1_0 is not None and header.amqp_1_0.creation_time is not None:
        return header.amqp_1_0.creation_time // 1000
    return header.timestamp


def _header(data: bytes) -> MessageHeader | None:
    """The decoded header; None if it cannot be decoded."""
    try:
        end = HEADER_SIZE_BYTES + header_size(data)
        return decode_message_header(data[HEADER_SIZE_BYTES:end]) if end <= len(data) else None
    except BrokerRecordError:
        return None


def _begins(choice: Choice, rid: int, header: MessageHeader | None) -> bool:
    if choice.rid is not None and rid < choice.rid:
        return False
    if choice.message_id is None and choice.header is None and choice.since is None:
        return True
    if header is None:
        return False
    if choice.message_id is not None and (header.message_id or "").lower() != choice.message_id.lower():
        return False
    if choice.header is not None:
        name, value = choice.header
        if name not in header.headers or _text(header.headers[name]) != value:
            return False
    moment = moment_of(header)
    return choice.since is None or (moment is not None and moment >= choice.since)


def _text(value: Any) -> str:
    return ("false", "true")[value] if isinstance(value, bool) else str(value)


def _selects(selector: Selector, message: ImportedMessage) -> bool:
    try:
        return selector.matches(Candidate(restore_message(message.data), is_redelivered=message.is_redelivered))
    except BrokerRecordError:
        return False


# ---- stores, exports and backups ----
#
# A backup is restored to a temporary directory, in TMPDIR, and read there.

_JOURNALS: Final = (b"RHM", b"QLS")  # what their magics begin with


class Replay:
    """A replay from an opened source.

    Args:
        source: reads the source.
        choice: what is replayed.
        origin: what identifies the source in the ledger; None for the content of what is replayed.

    Attributes:
        replayed: what was read the last time.
        damage: the damage that was found.
        notices: one line each.
    """

    def __init__(self, source: _StoreSource | _ExportSource, choice: Choice, origin: str | None) -> None:
        self._source, self._choice, self._origin = source, choice, origin
        self.replayed = Replayed()
        self.damage, self.notices = source.damage, source.notices

    def read(self, sink: ItemSink) -> str:
        """Read what is replayed. Returns its identity for the ledger. Raises InterchangeError: there is nothing."""
        del self.damage[:], self.notices[:]
        passing = ReplaySink(sink, self._choice)
        self._source.read(passing, self._choice.queue)
        self.replayed = found = passing.replayed
        queue = self._choice.queue
        if queue not in passing.queues:
            for full in passing.queues:
                if full.replace(HOST_SEPARATOR, "/", 1) == queue:
                    typed = escape_name(full).replace(HOST_SEPARATOR, "\\x1f")
                    text = f'queue "{queue}" is one of a virtual host: write {typed}'
                    raise InterchangeError(f"{self._source.title}: {text}")
            raise InterchangeError(no_such_queue(self._source.title, queue, passing.queues))
        if not found.messages:
            text = f"none of {found.seen:,} messages of queue {queue} is what the replay begins with"
            raise InterchangeError(f"{self._source.title}: {text}, or selected after it")
        origin = found.digest.hexdigest() if self._origin is None else self._origin
        return hashlib.sha256(f"replay {origin} {self._choice.text}".encode("utf-8", "surrogateescape")).hexdigest()[
            :32
        ]


class _ExportSource:
    """An export of any form."""

    def __init__(self, path: str) -> None:
        self.title = self._path = path
        self.damage: list[Damage] = []
        self.notices: list[str] = []

    def read(self, sink: ReplaySink, _queue: str) -> None:
        """Read all of it: only so is it known to be whole."""
        read_export(self._path, sink)


class _StoreSource:
    """A stopped store of any format.

    Args:
        path: where it is.
        title: what it is called.
        is_whole: whether messages that were dequeued count, as far as the journal still has them.
    """

    def __init__(self, path: str, title: str, *, is_whole: bool) -> None:
        self._path, self.title, self._is_whole = path, title, is_whole
        self.damage: list[Damage] = []
        self.notices: list[str] = []

    def read(self, sink: ReplaySink, name: str) -> None:
        """Read one queue."""
        with contextlib.closing(open_store(OsWritableDisk(), self._path)) as store:
            recovered = store.recover()
            for queue in recovered.queues:
                sink.queue(queue.record or Queue(queue.name))
                if queue.name == name and queue.journal is not None:
                    self._read(store, queue, queue.journal, sink)
            self.damage += store.damage
            self.notices += store.notices

    def _read(self, store: OfflineStore, queue: RecoveredQueue, journal: Journal, sink: ReplaySink) -> None:
        for rid, place in history(store, queue, journal) if self._is_whole else _outstanding(queue):
            data = stored_data(journal, rid, place, store.damage)
            if data is not None:
                sink.message(ImportedMessage(queue.name, rid, LIVE, b"", True, data))


def _outstanding(queue: RecoveredQueue) -> Iterator[tuple[int, int]]:
    return ((rid, place) for rid, place, state, _ in queue.outstanding() if state != PENDING)


@contextlib.contextmanager
def open_replay(path: str, destination: str, choice: Choice, *, backup: str | None, is_whole: bool) -> Iterator[Replay]:
    """Open a source.

    Args:
        path: a store, an export, or the place of backups.
        destination: the store or the broker into which messages are put.
        choice: what is replayed.
        backup: of the place, this backup; None for the latest.
        is_whole: whether messages of stores count that were dequeued.

    Raises:
        UnusableInputError, StoreError, InterchangeError, OSError: it has another format, or is in use.
    """
    disk = OsWritableDisk()
    is_place = backup is not None or "://" in path
    if not is_place and Path(path).is_file() and not _is_journal(path):
        yield Replay(_ExportSource(path), choice, None)
        return
    if not is_place:
        try:
            layout = find_layout(disk, path)
        except UnusableInputError:
            if not Path(path).is_dir():
                raise
            is_place = _is_repository(path)
            if not is_place:
                raise
        else:
            holder = holder_of_store(layout)
            if holder is not None:
                raise UnusableInputError(f"{path}: process {holder} has this store open: stop the broker first")
            # What is in the queue's own journal changes by the replay, and cannot identify it.
            is_same = choice.queue == choice.target and os.path.realpath(path) == os.path.realpath(destination)
            origin = os.path.realpath(path) if is_same else None
            replay = Replay(_StoreSource(path, path, is_whole=is_whole), choice, origin)
            yield replay
            return
    with tempfile.TemporaryDirectory(prefix="qstore-replay-") as scratch:
        repository = open_repository(disk, path)
        check_mark(repository)
        manifest = _manifest(repository, path, backup)
        restored = os.path.join(scratch, "store")  # noqa: PTH118 (as the disk names it)
        with bytes_progress() as (stage, advance):
            stage("restoring", manifest.size)
            restore(disk, repository, manifest, restored, advance)
        title = f"{path}, backup {manifest.id}"
        yield Replay(_StoreSource(restored, title, is_whole=is_whole), choice, None)


def _is_journal(path: str) -> bool:
    """Whether a file begins as a journal file of either format does."""
    with Path(path).open("rb") as file:
        return file.read(len(_JOURNALS[0])) in _JOURNALS


def _is_repository(path: str) -> bool:
    try:
        check_mark(open_repository(OsWritableDisk(), path))
    except StoreError:
        return False
    return True


def _manifest(repository: Repository, path: str, wanted: str | None) -> Manifest:
    """The backup that is wanted, or the latest, if it is clear of which store."""
    if wanted is not None:
        return read_manifest(repository, wanted)
    manifests = [read_manifest(repository, identity) for identity in backup_names(repository)]
    stores = {manifest.store for manifest in manifests}
    if not manifests:
        raise StoreError(f"{path}: there is no backup")
    if len(stores) > 1:
        raise StoreError(f"{path}: there are backups of {len(stores)} stores: choose one with --backup")
    return manifests[-1]


# ---- all messages that a journal still has, dequeued ones too ----
#
# A ring keeps what it has not overwritten yet. Messages of transactions count if their commit is in the journal, or if
# recovery keeps them. A record that compaction has moved counts once.


class _Enqueues:
    """A `RecordSink` that collects the messages of a journal."""

    def __init__(self) -> None:
        self.rids, self.places = array("Q"), array("Q")
        self._open: dict[bytes, list[tuple[int, int]]] = {}

    def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:  # noqa: ARG002
        """A message outside of any transaction."""
        self.rids.append(rid)
        self.places.append(place)

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        """A message that was delivered remains one."""

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        """A record of a transaction, or one that was moved."""
        if header.kind is Kind.ENQUEUE and not header.flags & TRANSIENT:
            if xid:
                self._open.setdefault(xid, []).append((header.rid, place))
            else:
                self.enqueue(header.rid, place)
        elif header.kind is Kind.COMMIT:
            for each in self._open.pop(xid, ()):
                self.enqueue(*each)
        elif header.kind is Kind.ABORT:
            self._open.pop(xid, None)

    def damaged(self, damage: Damage) -> None:
        """Recovery has reported it."""


def history(store: OfflineStore, queue: RecoveredQueue, journal: Journal) -> Iterator[tuple[int, int]]:
    """Record id and log offset of each message, in the queue's order."""
    enqueues = _Enqueues()
    store.walk(journal, enqueues)
    for rid, place, state, _ in queue.outstanding():
        if state != PENDING:
            enqueues.enqueue(rid, place)
    by_rid = dict(zip(enqueues.rids, enqueues.places, strict=True))
    if journal.format is JournalFormat.VERSION_2:
        yield from sorted(by_rid.items())
    else:  # qpidd's queues deliver in the order of the journal
        yield from sorted(by_rid.items(), key=lambda each: each[1])


# ---- the report ----


class ReplayReport(NamedTuple):
    """A replay.

    Attributes:
        choice: what was asked for.
        replayed: what was read.
        where: the store or the broker.
        past: when it took place before; None if it did not.
        dry_run: whether it was only planned.
        left_out: number of messages that could not be sent.
        seconds: what it took.
    """

    choice: Choice
    replayed: Replayed
    where: str
    past: PastImport | None
    dry_run: bool
    left_out: int
    seconds: float

    def show_json(self) -> None:
        """Print it as a JSON line."""
        rids = [rid or None for rid in (self.replayed.rids[:1] + self.replayed.rids[-1:])]
        print_json(
            [
                {
                    "kind": "replay",
                    "queue": self.choice.queue,
                    "destination": self.choice.target,
                    "replayed": self.past is None and not self.dry_run,
                    "replayed_before": None if self.past is None else self.past.at,
                    "dry_run": self.dry_run,
                    "messages": self.replayed.messages,
                    "first_rid": rids[0],
                    "last_rid": rids[1],
                    "expired": self.replayed.expired,
                    "messages_left_out": self.left_out,
                }
            ]
        )

    def show(self) -> None:
        """Print it as text."""
        replayed, where = self.replayed, printable(self.where)
        count, queue, target = plural(replayed.messages, "message"), self.choice.queue, self.choice.target
        if self.past is not None:
            at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.past.at))
            text = (
                f"{count} were put on queue {printable(target)} of {where} at {at}; --again puts them there once more"
            )
            click.echo(f"nothing to do: {text}")
            return
        first, last = replayed.rids[0], replayed.rids[-1]
        rids = f", record 0x{first:x} to 0x{last:x}," if first and last else ""
        text = f"{count} of queue {printable(queue)}{rids} {{}} on queue {printable(target)} of {where}"
        if self.dry_run:
            click.echo(text.format("would be put") + "; nothing was written")
        else:
            click.echo(text.format("put") + f" in {self.seconds:.1f} s")


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
