"""A checked store as text: a summary table, then damage, then notices, then one line with the totals."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console
from rich.text import Text

from qstore.formats.wording import plural
from qstore.store.damage import Damage
from qstore.store.inspect.check.check import ORPHAN, PREPARED_LIST, StoreCheck
from qstore.tools.check.objects import Object, journal_object, store_object, transactions_of
from qstore.tools.console.tables import Column, print_grid, print_wrapped
from qstore.tools.console.text import printable
from qstore.tools.metrics import percent

_MAX_SHOWN: Final = 200  # damaged places, and notices, shown per store; --json shows all
_FULL: Final = 1.0
_GAP: Final = 3  # spaces between columns
_PLAIN_WIDTH: Final = 160  # columns if standard output is not a terminal


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


def plain_console() -> Console:
    """Standard output; if it is not a terminal, as wide as the report needs."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


_NUMBERS: Final = ("RECORDS", "OUTSTANDING", "IN DOUBT", "OPEN TX", "FILL")
_OLDEST_TITLE: Final = "OLDEST LIVE RECORD"


def _show_journals(console: Console, check: StoreCheck) -> None:
    """Print the table. If the console is too narrow, places are printed below their rows, and then names above them."""
    journals = [journal_object(journal) for journal in check.journals]
    names, oldest = [_name(fields) for fields in journals], [_oldest(fields) for fields in journals]
    numbers = [
        [f"{journal.records:,}", *_numbers(fields)] for journal, fields in zip(check.journals, journals, strict=True)
    ]
    room = console.width - sum(
        max(map(len, (title, *map(str, column)))) + _GAP
        for title, column in zip((*_NUMBERS, "DAMAGE"), zip(*numbers, strict=True), strict=True)
    )
    name_width = max(len("QUEUE"), *(each.cell_len for each in names))
    has_places = room >= name_width + _GAP + max(len(_OLDEST_TITLE), *(each.cell_len for each in oldest))
    has_names = room >= name_width
    columns = [
        Column("QUEUE", width=0 if has_names else len("QUEUE")),
        *(Column(title, number=True) for title in _NUMBERS),
        *([Column(_OLDEST_TITLE)] if has_places else []),
        Column("DAMAGE", number=True),
    ]
    rows = [
        [name if has_names else "", *row[:-1], *([place] if has_places else []), row[-1]]
        for name, row, place in zip(names, numbers, oldest, strict=True)
    ]
    above = [None if has_names else name for name in names]
    places = [[f"oldest live record: {place}"] if place.plain != "-" and not has_places else [] for place in oldest]
    print_grid(console, columns, rows, (above, places))


def _numbers(fields: Object) -> list[str | Text]:
    return [
        _number(fields["outstanding"]),
        _in_doubt(fields),
        _number(fields["open_transactions"]),
        _fill(fields),
        Text(str(fields["damage"]), style="bold red") if fields["damage"] else Text("-"),
    ]


def _name(fields: Object) -> Text:
    name = printable(fields["queue"])
    if fields["role"] == PREPARED_LIST:
        return Text(f"{name} (prepared transactions)", style="dim")
    return Text(f"{name} (orphan)", style="yellow") if fields["role"] == ORPHAN else Text(name)


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


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


def _show_transactions(console: Console, check: StoreCheck) -> None:
    transactions = transactions_of(check)
    for fields in transactions[:_MAX_SHOWN]:
        what = f"{fields['type']} transaction {fields['xid']}: {fields['state']}"
        if fields["enqueues"] is not None:
            what += f", {fields['enqueues']} enqueued, {fields['dequeues']} dequeued"
        print_wrapped(console, what)
    show_rest(console, len(transactions), "transactions")


def show_damage(console: Console, damage: list[Damage]) -> None:
    """Print the damage."""
    for entry in damage[:_MAX_SHOWN]:
        where = printable(entry.file)
        where += "" if entry.offset is None else f" at 0x{entry.offset:x}"
        rid = "" if entry.rid is None else f"record 0x{entry.rid:x}: "
        text = Text("damage: ", style="bold red")
        text.append(f"{where}: {rid}{printable(entry.what)}", style="default not bold")
        print_wrapped(console, text)
        print_wrapped(console, f"        {printable(entry.consequence)}", style="dim", hang=0)
    show_rest(console, len(damage), "damages")


def show_notices(console: Console, notices: list[str]) -> None:
    """Print notices."""
    for notice in notices[:_MAX_SHOWN]:
        print_wrapped(console, f"notice: {printable(notice)}")
    show_rest(console, len(notices), "notices")


def show_rest(console: Console, count: int, what: str) -> None:
    """Print how many of `count` lines were omitted, if any."""
    if count > _MAX_SHOWN:
        console.print(Text(f"… and {count - _MAX_SHOWN:,} more {what}; --json shows all"), soft_wrap=True)


def _sum(store: Object, seconds: float) -> Text:
    count = store["damage"]
    found = f"damage in {plural(count, 'place')}" if count else "no damage"
    queues = plural(store["queues"], "queue")
    records = store["records"]
    speed = f", {records / seconds:,.0f} a second" if seconds >= 1 else ""
    text = f"{queues}, {plural(records, 'record')} in {seconds:.1f} s{speed}: {found}"
    return Text(text, style="bold red" if count else "bold green")
