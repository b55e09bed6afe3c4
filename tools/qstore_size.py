"""`qstore-size`: calculate how large a journal must be, by the published formulas or from the content of a store.

Exit codes: 0 success, 1 damage was found in the store (the sizes are shown anyway), 2 the input or the command line is
unusable, or no journal is large enough.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, Final

import click
from rich.console import Console

from qstore import __version__
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE
from qstore.formats.wording import plural
from qstore.store.disk import OsDisk
from qstore.store.errors import advice
from qstore.store.inspect.layout import UnusableInputError, holder_of_store
from qstore.store.inspect.measure import Measurement, Spread, measure
from qstore.store.inspect.offline import OfflineStore, RecoveredQueue, open_store
from qstore.store.inspect.sizing import (
    MAX_DEPTH,
    OVERHEADS,
    Choice,
    JournalSize,
    JournalTooLargeError,
    LineSize,
    MessageProfile,
    RecordSize,
    RingSize,
    Sizing,
    Transactions,
    Workload,
    footprint,
    size_for,
    size_journal,
)
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.records import MAX_XID_SIZE
from qstore.store.journal.write.space import depth_held
from qstore.tools.console.amounts import MAX_AMOUNT, exact, human, parse_amount, parse_count
from qstore.tools.console.command import EXIT_DAMAGE, JSON, QUEUES, SETTINGS, PathName, fail, failing, run
from qstore.tools.console.progress import reading_progress
from qstore.tools.console.rows import (
    Cell,
    Column,
    Object,
    note,
    print_json,
    print_line,
    print_steps,
    print_table,
    print_wrapped,
)
from qstore.tools.console.text import escape_name, printable, unescape_name
from qstore.tools.dump.messages import queues_named
from qstore.tools.dump.rows import STATES, damage_object, object_tables
from qstore.tools.metrics import percent

MAX_QUEUES = 1_000_000

_STORE_TYPES = {journal_format.label: journal_format for journal_format in JournalFormat}

_EPILOG = """
\b
Examples:
qstore-size --message-size 150 --header-size 75 --depth 25000
qstore-size --message-size 4K --header-size 200 --depth 100000 --queues 12
qstore-size --message-size 150 --header-size 75 --depth 25000 --transactions local --transaction-depth 10
qstore-size --message-size 150 --header-size 75 --depth 25000 --transactions distributed --xid-size 53
qstore-size --from /var/lib/qpidd                 each queue, for the messages that it holds
qstore-size --from /var/lib/qpidd --queue orders --depth 1000000 --json

\b
With --from the report shows, for each queue, the number and mean size of its messages, FILL (the share of the space
that may be used before enqueues are refused), NEAR from 80 % on, its present geometry and the recommended one. If an
old message keeps a legacystore's ring near its threshold, it is shown with file and offset.

\b
Sizes are bytes, or have a suffix: K, M, G, T and KiB, MiB … are powers of 1024; KB, MB … are powers of 1000.
Exit codes: 0 success, 1 damage was found in the store (the sizes are shown anyway), 2 the input or the command line
is unusable, or no journal is large enough. Nothing is ever written.
"""


class _Number(click.ParamType[int]):
    """An option type for a number in a range.

    Args:
        name: the type's name in the help.
        parse: converts text to a number; raises ValueError with the reason.
        minimum, maximum: the inclusive bounds.
    """

    def __init__(self, name: str, parse: Callable[[str], int], minimum: int, maximum: int) -> None:
        self.name = name
        self._parse = parse
        self._minimum = minimum
        self._maximum = maximum

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            number = self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._minimum <= number <= self._maximum:
            self.fail(f"{value} is out of range: {self._minimum} to {self._maximum}", param, ctx)
        return number


_SIZE = _Number("size", parse_amount, 0, MAX_AMOUNT)
_XID_SIZE = _Number("size", parse_amount, 1, MAX_XID_SIZE)
_COUNT = _Number("n", parse_count, 1, MAX_DEPTH)
_QUEUES = _Number("n", parse_count, 1, MAX_QUEUES)


class _Described(NamedTuple):
    """The options that describe messages; None if not given."""

    message_size: int | None
    header_size: int | None
    transactions: str | None
    xid_size: int | None
    store_type: str | None
    queues: int | None


@click.command("qstore-size", epilog=_EPILOG, context_settings=SETTINGS)
@click.option("--message-size", type=_SIZE, help="Average size of a message's content in bytes.")
@click.option("--header-size", type=_SIZE, help="Average size of a message's header in bytes.")
@click.option(
    "--depth", type=_COUNT, help="Largest number of messages on the queue.  [default with --from: the present number]"
)
@click.option(
    "--transactions", type=click.Choice([kind.value for kind in Transactions]),
    help="Whether messages are published and consumed in transactions.  [default: none]",
)  # fmt: skip
@click.option(
    "--xid-size",
    type=_XID_SIZE,
    help="Size of a distributed transaction's id in bytes; a local transaction's id has 24.",
)
@click.option("--transaction-depth", type=_COUNT, help="Messages per transaction.  [default: 1]")
@click.option(
    "--count-dequeues", is_flag=True,
    help="Also count dequeue records: for a queue in steady flow, not one that fills up and is then emptied.",
)  # fmt: skip
@click.option("--queues", "queue_count", type=_QUEUES, help="Number of queues of this kind.  [default: 1]")
@click.option("--store-type", type=click.Choice(list(_STORE_TYPES)), help="Store format.  [default: qstore]")
@click.option(
    "--from", "source", type=PathName(readable=False), metavar="PATH",
    help="Measure the queues of this store (or journal) instead of describing the messages.",
)  # fmt: skip
@QUEUES
@JSON
@click.version_option(__version__, prog_name="qstore-size")
@click.pass_context
def command(
    context: click.Context,
    *,
    message_size: int | None,
    header_size: int | None,
    depth: int | None,
    transactions: str | None,
    xid_size: int | None,
    transaction_depth: int | None,
    count_dequeues: bool,
    queue_count: int | None,
    store_type: str | None,
    source: str | None,
    queues: tuple[str, ...],
    as_json: bool,
) -> None:
    """Calculate how large a queue's journal must be.

    Either describe the messages (--message-size, --header-size, --depth), or measure those in a store (--from). The
    recommended size follows qpidd's published formulas: the blocks of all messages at the queue's greatest depth,
    doubled, so that the threshold at about 80 %, where enqueues are refused, is not reached.
    """
    described = _Described(message_size, header_size, transactions, xid_size, store_type, queue_count)
    if source is None:
        workload = _workload(described, depth, transaction_depth, queues, count_dequeues=count_dequeues)
        _show_formula(workload, queue_count or 1, as_json=as_json)
        return
    for name, value in described._asdict().items():
        if value is not None:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} cannot be combined with --from, which measures the messages in a store.")
    wanted = Wanted(depth, transaction_depth or 1, count_dequeues)
    if _show_store(source, wanted, frozenset(map(unescape_name, queues)), as_json=as_json):
        context.exit(EXIT_DAMAGE)


# ---- by formula ----


def _workload(
    described: _Described,
    depth: int | None,
    transaction_depth: int | None,
    names: tuple[str, ...],
    *,
    count_dequeues: bool,
) -> Workload:
    """The workload described by the options. Raises UsageError if they are incomplete or contradict each other."""
    if described.message_size is None or described.header_size is None or depth is None:
        needed = {"--message-size": described.message_size, "--header-size": described.header_size, "--depth": depth}
        missing = ", ".join(name for name, value in needed.items() if value is None)
        raise click.UsageError(f"{missing} missing: describe the messages, or name a store with --from.")
    transactions = Transactions(described.transactions or Transactions.NONE.value)
    if names:
        raise click.UsageError("--queue requires --from; for several queues of a kind use --queues N.")
    if transactions is Transactions.DISTRIBUTED and described.xid_size is None:
        raise click.UsageError("--transactions distributed needs --xid-size.")
    if transactions is not Transactions.DISTRIBUTED and described.xid_size is not None:
        raise click.UsageError("--xid-size requires --transactions distributed; a local transaction's id has 24 bytes.")
    if transactions is Transactions.NONE and transaction_depth is not None:
        raise click.UsageError("--transaction-depth requires --transactions local or distributed.")
    return Workload(
        described.message_size,
        described.header_size,
        depth,
        transactions,
        described.xid_size,
        transaction_depth or 1,
        count_dequeues,
        _STORE_TYPES[described.store_type or JournalFormat.VERSION_2.label],
    )


def _show_formula(workload: Workload, queue_count: int, *, as_json: bool) -> None:
    try:
        sizing = size_journal(workload)
    except JournalTooLargeError as error:
        fail("qstore-size", str(error))
    with failing("qstore-size"):
        if as_json:
            print_json([sizing_object(sizing, queue_count)])
        else:
            print_sizing(Console(), sizing, queue_count)
            sys.stdout.flush()


# ---- from a store ----


def _show_store(path: str, wanted: Wanted, names: frozenset[str], *, as_json: bool) -> bool:
    """Show the sizes of a store's queues. Returns whether damage was found."""
    with failing("qstore-size", UnusableInputError, advise=advice):
        with reading_progress(OsDisk()) as disk:
            store = open_store(disk, path, holder_of_store)
            disk.expect("reading journals", store.size)
            recovered = store.recover()
            names = queues_named(names, store.queue_names())
            disk.expect("measuring", store.size)
            sizes = []
            for queue in recovered.queues:
                if not names or queue.name in names:
                    sizes.append(size_queue(queue, wanted))
                    if queue.journal is not None:
                        store.damage.extend(queue.journal.stream.unreadable())
                        queue.journal.close()
            disk.done()
        _show_sizes(store, sizes, as_json=as_json)
        store.close()
    for name in sorted(names - store.queue_names()):
        store.notices.append(f'there is no queue "{name}"')
    for notice in store.notices:
        note("notice", notice)
    if store.damage:
        count = len(store.damage)
        click.echo(f"damage found in {plural(count, 'place')}, listed above.", err=True)
    return bool(store.damage)


def _show_sizes(store: OfflineStore, sizes: list[QueueSize], *, as_json: bool) -> None:
    damages = [damage_object(damage) for damage in store.damage]
    if as_json:
        print_json([*map(queue_object, sizes), *damages])
        return
    console = Console()
    print_queues(console, sizes)
    if damages:
        console.file.write("\n")
    tables = object_tables(console)
    for fields in damages:
        tables.show(fields)
    tables.flush()


# ---- described messages: the published formulas, step by step ----

_DEQUEUES: Final = "not counted; for a queue in steady flow, not one that fills up first, use --count-dequeues"


def exact_number(value: Fraction) -> int | float:
    """A number for JSON: an integer if it is whole."""
    return value.numerator if value.denominator == 1 else float(value)


def choice_object(choice: Choice) -> Object:
    """The files of a journal, under the names of the options that set them."""
    if isinstance(choice, RingSize):
        options: Object = {"num_jfiles": choice.files, "jfile_size_pgs": choice.pages}
    else:
        options = {"files": choice.files, "file_size_kib": exact_number(Fraction(choice.file_size, 1024))}
    return {**options, "capacity": choice.capacity}


def sizing_object(sizing: Sizing, queues: int) -> Object:
    """The calculation as one JSON object."""
    workload, journal = sizing.workload, sizing.journal
    return {
        "kind": "sizing",
        "store_type": workload.journal_format.label,
        "message_size": workload.message_size,
        "header_size": workload.header_size,
        "depth": workload.depth,
        "transactions": workload.transactions.value,
        "xid_size": workload.xid_bytes or None,
        "transaction_depth": None if sizing.end is None else workload.transaction_depth,
        "count_dequeues": workload.count_dequeues,
        "enqueue": sizing.enqueue._asdict(),
        "dequeue": sizing.dequeue._asdict(),
        "end": None if sizing.end is None else sizing.end._asdict(),
        "bytes_per_message": exact_number(sizing.bytes_per_message),
        "footprint": journal.footprint,
        "recommended_bytes": journal.recommended,
        "recommended_pages": journal.pages,
        "recommended": choice_object(journal.choice),
        "holds": journal.held,
        "queues": queues,
        "capacity_of_all_queues": queues * journal.choice.capacity,
    }


def print_sizing(console: Console, sizing: Sizing, queues: int) -> None:
    """Print the steps of the calculation and the options to use."""
    flush = OVERHEADS[sizing.workload.journal_format].flush
    columns = (
        Column("record"),
        Column("bytes", number=True),
        Column(f"in blocks of {BLOCK_SIZE}", number=True),
        Column(f"in flushes of {flush:,}", number=True),
        Column("counted"),
    )
    print_steps(console, _parts(sizing))
    print_line(console)
    print_table(console, columns, _record_rows(sizing))
    print_line(console)
    print_steps(console, [*_steps(sizing), *_all_queues(sizing, queues)])
    print_line(console)
    print_steps(console, _options(sizing.journal.choice))


def _parts(sizing: Sizing) -> list[tuple[str, str]]:
    """What each record consists of."""
    workload = sizing.workload
    overheads = OVERHEADS[workload.journal_format]
    xid = f" + {workload.xid_bytes:,} transaction id" if workload.xid_bytes else ""
    message = f" + {workload.header_size:,} message header + {workload.message_size:,} message"
    parts = [
        ("an enqueue record", f"{overheads.enqueue} header and tail{xid}{message}"),
        ("a dequeue record", f"{overheads.dequeue} header and tail{xid}"),
    ]
    if sizing.end is not None:
        parts.append(("a commit or abort", f"{overheads.end} header and tail{xid}"))
    return parts


def _record_rows(sizing: Sizing) -> list[list[str]]:
    workload = sizing.workload
    rows = [
        _record_row("enqueue", sizing.enqueue, "each message"),
        _record_row("dequeue", sizing.dequeue, "each message" if workload.count_dequeues else "no"),
    ]
    if sizing.end is not None:
        count = workload.transaction_depth
        ends = "each message" if count == 1 else f"each {plural(count, 'message')}"
        rows.append(_record_row("commit, abort", sizing.end, ends + (", each way" if workload.count_dequeues else "")))
    return rows


def _record_row(name: str, size: RecordSize, counted: str) -> list[str]:
    return [name, f"{size.encoded:,}", f"{size.blocks:,}", f"{size.flushed:,}", counted]


def _steps(sizing: Sizing) -> list[tuple[str, str]]:
    workload, journal = sizing.workload, sizing.journal
    if sizing.end is None or workload.transaction_depth == 1:
        unit, count = "a message", 1
    else:
        unit, count = f"a transaction of {plural(workload.transaction_depth, 'message')}", workload.transaction_depth
    steps = [
        (f"{unit} takes", exact(footprint(sizing.profile, count, workload.journal_format))),
        (f"{plural(workload.depth, 'message')} take", exact(journal.footprint)),
        ("recommended", f"{exact(journal.recommended)}, {journal.pages:,} pages of 64 KiB: {_why(sizing)}"),
        ("the journal", f"{_files(journal.choice)}: {exact(journal.choice.capacity)}"),
    ]
    if journal.held is not None:
        steps.append(("enqueues are refused", f"not before {plural(journal.held, 'message')} are on the queue"))
    alone = _held_flushed_alone(sizing)
    if alone is not None:
        enough = "" if alone >= workload.depth else ": too few, plan for larger messages"
        what = f"not before {alone:,}, of {sizing.enqueue.flushed:,} bytes each{enough}"
        steps.append(("  if publishers wait for each", what))
    if not workload.count_dequeues:
        steps.append(("dequeues", _DEQUEUES))
    return steps


def _held_flushed_alone(sizing: Sizing) -> int | None:
    """Version 1 without transactions: how many messages the journal can hold if each is flushed by itself."""
    workload, choice = sizing.workload, sizing.journal.choice
    if workload.journal_format is not JournalFormat.VERSION_1 or sizing.end is not None:
        return None
    assert isinstance(choice, RingSize)
    size = sizing.enqueue.flushed + (sizing.dequeue.flushed if workload.count_dequeues else 0)
    return depth_held(
        choice.geometry, workload.journal_format, record=sizing.profile.record, per_message=Fraction(size)
    )


def _why(sizing: Sizing) -> str:
    doubled = 2 * sizing.journal.footprint
    if sizing.journal.recommended == doubled:
        return "double that"
    return f"more than double that ({doubled:,}), because the threshold counts a block for each dequeue"


def _files(choice: Choice) -> str:
    if isinstance(choice, LineSize):
        return f"{plural(choice.files, 'file')} of {choice.file_size // 1024:,} KiB from the pool"
    return f"{plural(choice.files, 'file')} of {pages(choice.pages)}"


def pages(count: int | float) -> str:
    """A number of pages."""
    return plural(count, "page")


def _all_queues(sizing: Sizing, queues: int) -> list[tuple[str, str]]:
    if queues == 1:
        return []
    return [(f"{queues:,} such queues", exact(queues * sizing.journal.choice.capacity))]


def _options(choice: Choice) -> list[tuple[str, str]]:
    if isinstance(choice, LineSize):
        size = choice.file_size // 1024
        return [
            ("for the broker", f"--efp-file-size {size}"),
            ("for one queue", f"qpid.efp_pool_file_size={size}"),
        ]
    return [
        ("for the broker", f"--num-jfiles {choice.files} --jfile-size-pgs {choice.pages}"),
        ("for one queue", f"qpid.file_count={choice.files} qpid.file_size={choice.pages}"),
    ]


# ---- measured messages: how full each journal is, and how large it should be ----

_NOTHING: Final = "-"
_HELD_BACK: Final = 2  # a span of this many times the live bytes is caused by the oldest message


class Wanted(NamedTuple):
    """The requested recommendation.

    Attributes:
        depth: number of messages; None for the present number.
        transaction_depth: operations per transaction, for messages that were enqueued in one.
        count_dequeues: whether dequeue records are counted (`store.inspect.sizing`).
    """

    depth: int | None
    transaction_depth: int
    count_dequeues: bool


@dataclass(frozen=True, slots=True)
class QueueSize:
    """The present and the recommended size of a queue's journal.

    Attributes:
        name: the queue's name.
        journal: its journal; None if it has none.
        measurement: the journal's content.
        depth: the number of messages for which it was sized.
        needed: the recommended size; None without messages to measure, or if none can be calculated.
        problem: why none can be calculated.
    """

    name: str
    journal: Journal | None = None
    measurement: Measurement | None = None
    depth: int = 0
    needed: JournalSize | None = None
    problem: str | None = None

    @property
    def large_enough(self) -> bool | None:
        """Whether the present journal has at least the recommended size, and is not near its threshold.

        None if unknown or not of fixed size.
        """
        if self.journal is None or self.measurement is None or self.journal.format is JournalFormat.LINEAR:
            return None
        threshold = self.measurement.threshold
        if self.problem is not None or (threshold is not None and threshold.is_near):
            return False
        return None if self.needed is None else self.measurement.capacity >= self.needed.recommended


def size_queue(queue: RecoveredQueue, wanted: Wanted) -> QueueSize:
    """Measure a queue's journal and size it for its messages.

    Raises:
        OSError: a file of it cannot be opened any more.
    """
    journal, recovery = queue.journal, queue.recovery
    if journal is None or recovery is None:
        return QueueSize(queue.name)
    measurement = measure(journal, recovery, queue.end)
    depth = measurement.depth if wanted.depth is None else wanted.depth
    if not measurement.depth:
        return QueueSize(queue.name, journal, measurement, depth)
    profile = MessageProfile(
        record=measurement.records.mean,
        transactional=measurement.xid_share,
        xid_size=ceil(measurement.xids.mean),
        transaction_depth=wanted.transaction_depth,
        count_dequeues=wanted.count_dequeues,
    )
    used = 0 if measurement.threshold is None else measurement.threshold.used
    try:
        needed = size_for(profile, depth, journal.format, journal.files.geometry.data_size, used=used)
    except JournalTooLargeError as error:
        return QueueSize(queue.name, journal, measurement, depth, problem=str(error))
    return QueueSize(queue.name, journal, measurement, depth, needed)


# ---- JSON ----


def queue_object(size: QueueSize) -> Object:
    """A queue's sizes as one JSON object; unknown values are null."""
    fields: Object = {"kind": "queue_size", "queue": size.name}
    journal, measurement, needed = size.journal, size.measurement, size.needed
    fields["store_type"] = None if journal is None else journal.format.label
    fields |= dict.fromkeys(_MEASURED) if measurement is None else _measured_fields(measurement)
    fields["geometry"] = None if journal is None or measurement is None else _present(journal, measurement)
    return {
        **fields,
        "depth": size.depth,
        "footprint": None if needed is None else needed.footprint,
        "recommended_bytes": None if needed is None else needed.recommended,
        "recommended": None if needed is None else choice_object(needed.choice),
        "holds": None if needed is None else needed.held,
        "large_enough": size.large_enough,
        "problem": size.problem,
    }


_MEASURED: Final = (
    "outstanding", "in_doubt_dequeues", "in_doubt_enqueues", "record", "data", "message_header", "xid_share",
    "mean_xid_size", "live_bytes", "span", "capacity", "live_share", "span_share", "oldest_rid", "oldest_state",
    "oldest_file", "oldest_offset", "limit", "used", "room", "fill", "near_threshold",
)  # fmt: skip


def _measured_fields(measurement: Measurement) -> Object:
    oldest, threshold = measurement.oldest, measurement.threshold
    values: tuple[Any, ...] = (
        measurement.live,
        measurement.locked,
        measurement.pending,
        _spread_object(measurement.records),
        _spread_object(measurement.data),
        _spread_object(measurement.headers),
        float(measurement.xid_share),
        float(measurement.xids.mean) if measurement.xids.count else None,
        measurement.live_bytes,
        measurement.span,
        measurement.capacity,
        round(measurement.live_share, 6),
        round(measurement.span_share, 6),
        None if oldest is None else oldest.rid,
        None if oldest is None else STATES[oldest.state],
        None if oldest is None else escape_name(oldest.path),
        None if oldest is None else oldest.offset,
        None if threshold is None else threshold.limit,
        None if threshold is None else threshold.used,
        None if threshold is None else threshold.room,
        None if threshold is None else threshold.fill,
        None if threshold is None else threshold.is_near,
    )
    return dict(zip(_MEASURED, values, strict=True))


def _spread_object(spread: Spread) -> Object | None:
    if not spread.count:
        return None
    return {"least": spread.least, "mean": float(spread.mean), "largest": spread.largest}


def _present(journal: Journal, measurement: Measurement) -> Object:
    """The present files, under the names of the options that set them."""
    data_size = journal.files.geometry.data_size
    if journal.format is JournalFormat.LINEAR:
        return choice_object(LineSize(measurement.capacity // data_size, data_size))
    return {
        "num_jfiles": journal.files.geometry.files,
        "jfile_size_pgs": exact_number(Fraction(data_size, PAGE_SIZE)),
        "capacity": measurement.capacity,
    }


# ---- text ----


def _of_messages(cell: Callable[[Measurement], str]) -> Cell:
    """A cell of what was measured in a journal; `-` if there is none."""
    return lambda size: _NOTHING if size.journal is None or size.measurement is None else cell(size.measurement)


def _present_files(size: QueueSize) -> str:
    if size.journal is None or size.measurement is None:
        return _NOTHING
    return _files_cell(_present(size.journal, size.measurement))


_COLUMNS: Final = (
    Column("queue", lambda size: printable(size.name), folds=True),
    Column("outstanding", _of_messages(lambda found: f"{found.live:,}"), number=True),
    Column("in doubt", _of_messages(lambda found: f"{found.locked + found.pending:,}"), number=True, spare=True),
    Column("mean", _of_messages(lambda found: _mean_cell(found.records)), number=True, spare=True),
    Column("largest", _of_messages(lambda found: _largest_cell(found.records)), number=True, spare=True),
    Column("live bytes", _of_messages(lambda found: human(found.live_bytes)), number=True, spare=True),
    Column("capacity", _of_messages(lambda found: human(found.capacity)), number=True, spare=True),
    Column("live share", _of_messages(lambda found: percent(found.live_share)), number=True, spare=True),
    Column("span share", _of_messages(lambda found: percent(found.span_share)), number=True, spare=True),
    Column("fill", _of_messages(lambda found: _threshold_cell(found))),
    Column("journal", _present_files),
    Column(
        "recommended", lambda size: _NOTHING if size.needed is None else _files_cell(choice_object(size.needed.choice))
    ),
    Column("size", lambda size: _verdict(size)),
)


def print_queues(console: Console, sizes: list[QueueSize]) -> None:
    """A line for each queue, then notes about some of them."""
    if not sizes:
        print_line(console, "There are no queues.")
        return
    print_table(console, _COLUMNS, sizes)
    notes = [each for size in sizes for each in notes_about(size)]
    if notes:
        print_line(console)
    for text in notes:
        print_wrapped(console, text)


def _mean_cell(spread: Spread) -> str:
    return human(round(spread.mean)) if spread.count else _NOTHING


def _largest_cell(spread: Spread) -> str:
    return human(spread.largest) if spread.count else _NOTHING


def _threshold_cell(measurement: Measurement) -> str:
    threshold = measurement.threshold
    if threshold is None:
        return _NOTHING
    used = percent(threshold.fill)
    if threshold.is_reached:
        return f"{used} REACHED"
    return f"{used} NEAR" if threshold.is_near else used


def _files_cell(choice: Object) -> str:
    if "num_jfiles" in choice:
        return f"{choice['num_jfiles']} x {pages(choice['jfile_size_pgs'])}"
    return f"{choice['files']} x {choice['file_size_kib']:,} KiB"


def _verdict(size: QueueSize) -> str:
    if size.journal is None or size.measurement is None:
        return "no journal"
    if size.problem is not None:
        return "too many messages"
    if size.needed is None:
        return "no messages"
    if size.large_enough is None:
        return "grows as needed"
    return "large enough" if size.large_enough else "too small"


def notes_about(size: QueueSize) -> list[str]:
    """One line each: a threshold that is near, and why; a size that cannot be calculated; no messages to measure."""
    measurement = size.measurement
    if measurement is None:
        return []
    name = printable(size.name)
    notes = []
    threshold = measurement.threshold
    if threshold is not None and threshold.is_reached:
        notes.append(f"{name}: enqueues are refused: {human(threshold.used)} in use, the threshold is at "
                     f"{human(threshold.limit)}; consume messages, or make the journal larger")  # fmt: skip
    elif threshold is not None and threshold.is_near:
        notes.append(f"{name}: enqueues will be refused after {human(threshold.room)} more; consume messages, or make "
                     "the journal larger")  # fmt: skip
    if threshold is not None and threshold.is_near:
        notes.extend(_held_back(size, measurement))
    if size.problem is not None:
        notes.append(f"{name}: {size.problem}")
    if not measurement.depth and size.depth:
        notes.append(f"{name}: there is no message to measure; use --message-size and --header-size instead")
    return notes


def _held_back(size: QueueSize, measurement: Measurement) -> list[str]:
    """Version 1, which has no compaction: whether the oldest message is why the journal is nearly full."""
    oldest = measurement.oldest
    version_1 = size.journal is not None and size.journal.format is JournalFormat.VERSION_1
    if not version_1 or oldest is None or measurement.span < _HELD_BACK * measurement.live_bytes:
        return []
    what = (
        f"{printable(size.name)}: the oldest message, 0x{oldest.rid:x} ({STATES[oldest.state]}, in "
        f"{printable(oldest.path)} at 0x{oldest.offset:x}), holds back {human(measurement.span)}, of which "
        f"{human(measurement.live_bytes)} are still needed"
    )
    return [what]


def main() -> None:
    """Console script entry point."""
    run("qstore-size", command)


if __name__ == "__main__":
    main()
