"""What an import did, or would do, as text and as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from qstore.formats.wording import plural
from qstore.store.importing.intake import Intake, QueueIntake
from qstore.store.importing.ledger import PastImport
from qstore.store.importing.plan import ImportPlan
from qstore.tools.check.report import plain_console
from qstore.tools.console.json_lines import JsonLines
from qstore.tools.console.tables import Column, print_grid
from qstore.tools.console.text import printable
from qstore.tools.interchange.broker_import import BrokerImport

_MAX_SHOWN: Final = 200  # queues


class ImportReport(NamedTuple):
    """An import.

    Attributes:
        where: the store or the broker.
        past: when it took place before; None if it did not.
        dry_run: whether it was only planned.
        seconds: what it took.
        queues: name -> its messages, and whether it is new.
        exchanges, bindings, others, transactions: numbers of what is created.
        left_out: number of messages that could not be sent.
        refused: number of exchanges, queues and bindings that the broker has refused.
        keeps_rids: whether record ids are kept.
        notices: one line each.
    """

    where: str
    past: PastImport | None
    dry_run: bool
    seconds: float
    queues: Mapping[str, tuple[QueueIntake, bool]]
    exchanges: int
    bindings: int
    others: int
    transactions: int
    left_out: int
    refused: int
    keeps_rids: bool
    notices: Sequence[str]

    @property
    def messages(self) -> int:
        """Number of messages."""
        return sum(queue.messages for queue, _ in self.queues.values()) if self.past is None else self.past.messages

    def summary(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "kind": "summary",
            "imported": self.past is None and not self.dry_run,
            "imported_before": None if self.past is None else self.past.at,
            "dry_run": self.dry_run,
            "messages": self.messages,
            "in_doubt": sum(queue.in_doubt for queue, _ in self.queues.values()),
            "transactions": self.transactions,
            "queues_created": sum(is_new for _, is_new in self.queues.values()),
            "exchanges_created": self.exchanges,
            "bindings_created": self.bindings,
            "objects_created": self.others,
            "messages_left_out": self.left_out,
            "objects_refused": self.refused,
            "record_ids_kept": self.keeps_rids,
        }


def report_of_plan(
    plan: ImportPlan, past: PastImport | None, where: str, seconds: float, *, dry_run: bool
) -> ImportReport:
    """The report of an import into a store."""
    queues = {name: (queue.intake, queue.entry is None) for name, queue in plan.queues.items()}
    created = len(plan.exchanges), len(plan.bindings), len(plan.general), len(plan.in_doubt)
    return ImportReport(where, past, dry_run, seconds, queues, *created, 0, 0, plan.keeps_rids, plan.notices)


def report_of_broker(
    work: BrokerImport, intake: Intake, past: PastImport | None, where: str, seconds: float, *, dry_run: bool
) -> ImportReport:
    """The report of an import into a broker."""
    changes = work.changes
    names = {**dict.fromkeys(changes.queues), **dict.fromkeys(intake.messages)}
    queues = {name: (intake.messages.get(name, QueueIntake()), name in changes.queues) for name in names}
    notices = list(changes.notices)
    if work.left_out:
        notices.append(f"{plural(work.left_out, 'message')} cannot be decoded, and were not sent")
    return ImportReport(
        where, past, dry_run, seconds, queues, changes.exchanges, changes.bindings, 0, 0,
        work.left_out, work.refused, False, notices,
    )  # fmt: skip


def show_json(report: ImportReport) -> None:
    """Print a report as JSON lines."""
    output = JsonLines(sys.stdout.buffer)
    for name, (queue, is_new) in report.queues.items():
        fields = {"created": is_new, "messages": queue.messages, "in_doubt": queue.in_doubt}
        output.show({"kind": "queue", "name": name, **fields})
    output.show(report.summary())
    output.flush()


def show(report: ImportReport) -> None:
    """Print a report as text."""
    where, past = printable(report.where), report.past
    if past is not None:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(past.at))
        what = f"{plural(past.messages, 'message')} of this export were imported into {where} at {at}"
        click.echo(f"nothing to do: {what}; --again imports them once more")
        return
    rows = [
        (
            printable(name),
            f"{queue.messages - queue.in_doubt:,}",
            f"{queue.in_doubt:,}",
            "new" if is_new else "added to",
        )
        for name, (queue, is_new) in list(report.queues.items())[:_MAX_SHOWN]
    ]
    columns = (
        Column("QUEUE", folds=True), Column("MESSAGES", number=True), Column("IN DOUBT", number=True), Column("")
    )  # fmt: skip
    if rows:
        print_grid(plain_console(), columns, rows)
    if len(report.queues) > _MAX_SHOWN:
        click.echo(f"… and {len(report.queues) - _MAX_SHOWN:,} more queues")
    created = f"{plural(report.exchanges, 'exchange')}, {plural(report.bindings, 'binding')}"
    what = f"{plural(report.messages, 'message')}, {created} and {plural(report.transactions, 'transaction')} in doubt"
    rids = "record ids are kept" if report.keeps_rids else "messages get new record ids"
    if report.dry_run:
        click.echo(f"{what} would be imported into {where}; {rids}; nothing was written")
    else:
        click.echo(f"{what} imported into {where} in {report.seconds:.1f} s; {rids}")
