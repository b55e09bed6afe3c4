"""The published calculation for a described workload, shown step by step."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

from rich.console import Console

from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.wording import plural
from qstore.store.inspect.sizing import OVERHEADS, Choice, LineSize, RecordSize, RingSize, Sizing, footprint
from qstore.store.journal.format import JournalFormat
from qstore.store.journal.write.space import depth_held
from qstore.tools.console.tables import Column, print_line, print_steps, print_table
from qstore.tools.size.amounts import exact

Object = dict[str, Any]

_DEQUEUES: Final = "not counted; for a queue in steady flow, not one that fills up first, use --count-dequeues"


def number(value: Fraction) -> int | float:
    """A number for JSON: an integer if it is whole."""
    return value.numerator if value.denominator == 1 else float(value)


def choice_object(choice: Choice) -> Object:
    """The files of a journal, under the names of the options that set them."""
    if isinstance(choice, RingSize):
        options: Object = {"num_jfiles": choice.files, "jfile_size_pgs": choice.pages}
    else:
        options = {"files": choice.files, "file_size_kib": number(Fraction(choice.file_size, 1024))}
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
        "bytes_per_message": number(sizing.bytes_per_message),
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
