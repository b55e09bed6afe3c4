"""`qstore-check`: verify stores, and report for each damaged place what recovery will do about it.

Exit codes: 0 no damage (what a crash leaves behind does not count), 1 damage was found, 2 something could not be
checked at all, or the command line is unusable.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import click
from rich.console import Console
from rich.text import Text

from qstore import __version__
from qstore.formats.wording import plural
from qstore.store.disk import OsDisk
from qstore.store.errors import advice
from qstore.store.inspect.check import ORPHAN, PREPARED_LIST, StoreCheck, check_store
from qstore.store.inspect.layout import UnusableInputError, holder_of_store
from qstore.store.inspect.offline import open_store
from qstore.tools.console.command import EXIT_DAMAGE, EXIT_UNUSABLE, JSON, SETTINGS, PathName, failing, run, say
from qstore.tools.console.progress import reading_progress
from qstore.tools.console.rows import (
    Cell,
    Column,
    Object,
    cells_of,
    plain_console,
    print_grid,
    print_json,
    print_some,
)
from qstore.tools.console.text import printable
from qstore.tools.dump.rows import (
    damage_object,
    journal_object,
    notice_object,
    show_damage,
    show_notices,
    store_object,
    transactions_of,
)
from qstore.tools.metrics import percent

_EPILOG = """
\b
Examples:
qstore-check /var/lib/qpidd                     one store: its journals and its catalogue
qstore-check /var/lib/qpidd /srv/broker2        several stores
qstore-check --paranoid /var/lib/qpidd          two independent passes
qstore-check --json /var/lib/qpidd | jq -r 'select(.kind == "damage") | .what'
qstore-check /var/lib/qpidd/rhm/jrnl/001c/orders    one journal

\b
Columns of the report:
RECORDS       records in the journal
OUTSTANDING   messages that a restart would deliver
IN DOUBT      messages that a prepared, undecided transaction would enqueue or dequeue
OPEN TX       open transactions
FILL          space in use, as a share of what may be used before enqueues are refused (about 80 % of a ring); for
              a linearstore, which has no such limit, live messages as a share of its files
OLDEST LIVE RECORD  the record that keeps a ring from being reused: one message that is never consumed can fill it

\b
Exit codes: 0 no damage, 1 damage was found, 2 something could not be checked at all.
Torn tails, transactions in doubt or never prepared, stale bindings, empty orphans and records already in
rhm/quarantine are normal after a crash: they are reported as notices and do not change the exit code. Journals with
messages in rhm/orphans are damage. Nothing is ever written to the store.
"""


@click.command("qstore-check", epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PathName(readable=False))
@JSON
@click.option(
    "--paranoid",
    is_flag=True,
    help="Read everything twice, the second time with independent checksum code, and also check padding and "
    "decode every outstanding message's header. 5 to 20 times slower.",
)
@click.version_option(__version__, prog_name="qstore-check")
@click.pass_context
def command(context: click.Context, paths: tuple[str, ...], *, as_json: bool, paranoid: bool) -> None:
    """Verify message stores.

    Each PATH is a store directory (qpidd's legacystore or linearstore, or qstore's own), the directory of one journal,
    or one journal file. The check covers file headers, record headers, tails, checksums, overwrite indicators, the
    order of files, flushes and records, duplicate record ids, dequeues of unknown records, transactions, the catalogue
    against the journals, orphaned directories, and a linearstore's file pools. Each damaged place is reported with its
    file and offset, and with what recovery will do about it. If a broker has the store open, the report says so and
    shows its process id: the result may then be inconsistent.
    """
    code = 0
    for number, path in enumerate(paths):
        if number and not as_json:
            click.echo()
        code = max(code, _check(path, as_json=as_json, paranoid=paranoid))
    context.exit(code)


def _check(path: str, *, as_json: bool, paranoid: bool) -> int:
    began = time.monotonic()
    try:
        with reading_progress(OsDisk()) as disk:
            store = open_store(disk, path, holder_of_store)
            checked = check_store(disk, store, paranoid=paranoid, stage=disk.expect)
    except UnusableInputError as error:
        say("qstore-check", str(error))
        return EXIT_UNUSABLE
    except OSError as error:
        say("qstore-check", f"{error.filename or path}: {error.strerror or error}{advice(error)}")
        return EXIT_UNUSABLE
    with failing("qstore-check"):
        if as_json:
            print_json(_objects(path, checked, paranoid=paranoid))
        else:
            show_report(plain_console(), path, checked, time.monotonic() - began, paranoid=paranoid)
    return EXIT_DAMAGE if checked.damage else 0


def _objects(path: str, checked: StoreCheck, *, paranoid: bool) -> Iterator[Object]:
    """The store, its journals, open transactions, damage and notices."""
    yield store_object(path, checked, paranoid=paranoid)
    yield from map(journal_object, checked.journals)
    yield from transactions_of(checked)
    yield from map(damage_object, checked.damage)
    yield from map(notice_object, checked.notices)


_FULL: Final = 1.0
_GAP: Final = 3  # spaces between columns


def show_report(console: Console, path: str, check: StoreCheck, seconds: float, *, paranoid: bool) -> None:
    """Print the report of one store."""
    store = store_object(path, check, paranoid=paranoid)
    console.print(Text(f"{printable(path)}: {store['format']}", style="bold"))
    if check.journals:
        _show_journals(console, check)
    _show_transactions(console, check)
    show_damage(console, check.damage)
    show_notices(console, check.notices)
    console.print(_sum(store, seconds))


def _name(fields: Object) -> Text:
    name = printable(fields["queue"])
    if fields["role"] == PREPARED_LIST:
        return Text(f"{name} (prepared transactions)", style="dim")
    return Text(f"{name} (orphan)", style="yellow") if fields["role"] == ORPHAN else Text(name)


def _count(name: str) -> Cell:
    return lambda fields: "?" if fields[name] is None else f"{fields[name]:,}"


def _in_doubt(fields: Object) -> str:
    if fields["outstanding"] is None:
        return "?"
    return f"{fields['in_doubt_enqueues'] + fields['in_doubt_dequeues']:,}"


def _fill(fields: Object) -> Text:
    if fields["capacity"] is None:
        return Text("?")
    if fields["fill"] is None:
        return Text("-")
    text = percent(fields["fill"])
    style = "bold red" if fields["fill"] >= _FULL else "yellow" if fields["near_threshold"] else ""
    return Text(text, style=style)


def _oldest(fields: Object) -> Text:
    oldest: dict[str, Any] | None = fields["oldest"]
    if oldest is None:
        return Text("-")
    name = printable(oldest["file"].rpartition("/")[2])
    state = "" if oldest["state"] == "outstanding" else f" ({oldest['state']})"
    return Text(f"0x{oldest['rid']:x} in {name} at 0x{oldest['offset']:x}{state}")


def _damage(fields: Object) -> Text:
    return Text(str(fields["damage"]), style="bold red") if fields["damage"] else Text("-")


_QUEUE: Final = Column("QUEUE", _name)
_NUMBERS: Final = (
    Column("RECORDS", _count("records"), number=True),
    Column("OUTSTANDING", _count("outstanding"), number=True),
    Column("IN DOUBT", _in_doubt, number=True),
    Column("OPEN TX", _count("open_transactions"), number=True),
    Column("FILL", _fill, number=True),
)
_OLDEST: Final = Column("OLDEST LIVE RECORD", _oldest)
_DAMAGE: Final = Column("DAMAGE", _damage, number=True)


def _show_journals(console: Console, check: StoreCheck) -> None:
    """Print the table. If the console is too narrow, places are printed below their rows, and then names above them."""
    journals = [journal_object(journal) | {"records": journal.records} for journal in check.journals]

    def width(column: Column) -> int:
        return max(len(column.title), *(len(str(cell)) for fields in journals for cell in cells_of([column], fields)))

    room = console.width - sum(width(column) + _GAP for column in (*_NUMBERS, _DAMAGE))
    has_places = room >= width(_QUEUE) + _GAP + width(_OLDEST)
    has_names = room >= width(_QUEUE)
    names = _QUEUE if has_names else Column("QUEUE", lambda _: "", width=len("QUEUE"))
    above = [None if has_names else _name(fields) for fields in journals]
    places = [[] if has_places or fields["oldest"] is None else [f"oldest live record: {_oldest(fields)}"]
              for fields in journals]  # fmt: skip
    columns = (names, *_NUMBERS, *([_OLDEST] if has_places else []), _DAMAGE)
    print_grid(console, columns, journals, (above, places))


def _show_transactions(console: Console, check: StoreCheck) -> None:
    lines = []
    for fields in transactions_of(check):
        line = f"{fields['type']} transaction {fields['xid']}: {fields['state']}"
        if fields["enqueues"] is not None:
            line += f", {fields['enqueues']} enqueued, {fields['dequeues']} dequeued"
        lines.append(line)
    print_some(console, lines, "transactions")


def _sum(store: Object, seconds: float) -> Text:
    count = store["damage"]
    found = f"damage in {plural(count, 'place')}" if count else "no damage"
    queues = plural(store["queues"], "queue")
    records = store["records"]
    speed = f", {records / seconds:,.0f} a second" if seconds >= 1 else ""
    text = f"{queues}, {plural(records, 'record')} in {seconds:.1f} s{speed}: {found}"
    return Text(text, style="bold red" if count else "bold green")


def main() -> None:
    """Console script entry point."""
    run("qstore-check", command)


if __name__ == "__main__":
    main()
