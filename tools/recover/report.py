"""The result of a recovery as text: a table of queues, then what needs attention, then one line with the totals."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from rich.console import Console
from rich.text import Text

from qstore.formats.rhm.geometry import FILE_HEADER_SIZE, PAGE_SIZE
from qstore.formats.wording import plural
from qstore.store.repair.recover.build import Recovery
from qstore.store.repair.recover.plan import LostBinding
from qstore.tools.check.report import show_damage, show_notices, show_rest
from qstore.tools.console.tables import Column, print_grid, print_wrapped
from qstore.tools.console.text import printable
from qstore.tools.recover.objects import Object, orphan_object, queue_object, resolved_object, summary_object
from qstore.tools.size.formula import number, pages

_MAX_SHOWN: Final = 200  # of each kind; --json shows all
_COLUMNS: Final = (
    Column("QUEUE", folds=True),
    *(Column(title, number=True) for title in ("MESSAGES", "IN DOUBT", "TORN TAIL", "QUARANTINED", "JOURNAL")),
)


def show_recovery(console: Console, recovery: Recovery, target: str | None, seconds: float, *, quiet: bool) -> None:
    """Print the report.

    Args:
        console: the output.
        recovery: the result.
        target: path of the new store; None if only the plan is shown.
        seconds: how long it took.
        quiet: show only what is lost or quarantined.
    """
    plan = recovery.plan
    queues = [queue_object(recovery, queue) for queue in plan.queues]
    if quiet:
        queues = [queue for queue in queues if queue["quarantined"]]
    if queues:
        print_grid(console, _COLUMNS, [_row(queue) for queue in queues])
    if not quiet:
        _show(console, [_transaction(resolved_object(each)) for each in plan.transactions], "transaction")
    orphans = [each for each in plan.orphans if each.transaction is None or not quiet]
    _show(console, [_orphan(orphan_object(each)) for each in orphans], "orphan")
    _show(console, [f"{printable(name)}: {what}" for name, what in plan.lost_exchanges], "lost exchange")
    bindings = [each for each in plan.lost_bindings if each.exchange is not None or not quiet]
    _show(console, [_binding(each) for each in bindings], "lost binding")
    show_damage(console, recovery.damage)
    if not quiet:
        show_notices(console, plan.notices)
        console.print(_sum(recovery, target, seconds), soft_wrap=True)


def _row(queue: Object) -> list[str | Text]:
    geometry = queue["geometry"]
    return [
        Text(printable(queue["name"])),
        f"{queue['messages']:,}",
        f"{queue['in_doubt']:,}",
        "cut" if queue["torn_tail"] else "-",
        f"{len(queue['quarantined']):,}" if queue["quarantined"] else "-",
        f"{geometry['files']} × {pages(number(Fraction(geometry['file_size'] - FILE_HEADER_SIZE, PAGE_SIZE)))}",
    ]


def _show(console: Console, lines: list[str], title: str) -> None:
    for line in lines[:_MAX_SHOWN]:
        print_wrapped(console, f"{title}: {line}")
    show_rest(console, len(lines), f"{title}s")


def _binding(lost: LostBinding) -> str:
    key = printable(lost.key or "")
    exchange = "" if lost.exchange is None else f" to {printable(lost.exchange)} with key {key}"
    return f"of queue {printable(lost.queue)}{exchange}: {lost.what}"


def _transaction(fields: Object) -> str:
    resolved = "" if fields["resolved"] is None else f", resolved: {fields['resolved']}"
    counts = "" if fields["enqueues"] is None else f", {fields['enqueues']} enqueued, {fields['dequeues']} dequeued"
    return f"{fields['type']} {fields['xid']}: {fields['state']}{counts}{resolved}"


def _orphan(fields: Object) -> str:
    into = fields["recovered_into"]
    becomes = "" if into is None else f', recovered into "{printable(into)}"'
    xid = "" if fields["xid"] is None else f" {fields['xid']}"
    where = f'of queue "{printable(fields["queue"])}" in {printable(str(fields["journal"]))}'
    return f"{fields['what']}{xid}, {where}: {fields['messages']:,} messages{becomes}"


def _sum(recovery: Recovery, target: str | None, seconds: float) -> Text:
    fields = summary_object(recovery)
    counts = f"{plural(fields['queues'], 'queue')}, {plural(fields['messages'], 'message')}"
    if fields["in_doubt"]:
        counts += f" and {fields['in_doubt']:,} in doubt"
    done = "would be recovered" if target is None else f"recovered into {printable(target)} in {seconds:.1f} s"
    if recovery.is_complete:
        return Text(f"{counts} {done}: nothing was lost", style="bold green")
    losses = plural(fields["lost"], "loss", "losses")
    lost = f"{losses}, {fields['quarantined']:,} quarantined, see above"
    return Text(f"{counts} {done}: {lost}", style="bold red")
