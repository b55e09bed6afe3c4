"""`qstore-size`: calculate how large a journal must be, by the published formulas or from the content of a store.

Exit codes: 0 success, 1 damage was found in the store (the sizes are shown anyway), 2 the input or the command line is
unusable, or no journal is large enough.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import click
from rich.console import Console

from qstore import __version__
from qstore.formats.wording import plural
from qstore.store.disk import OsDisk
from qstore.store.errors import advice
from qstore.store.inspect.in_use import holder_of_store
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.inspect.offline import OfflineStore, open_store
from qstore.store.inspect.sizing import MAX_DEPTH, JournalTooLargeError, Transactions, Workload, size_journal
from qstore.store.journal.format import JournalFormat
from qstore.store.journal.records import MAX_XID_SIZE
from qstore.tools.console.json_lines import JsonLines
from qstore.tools.console.progress import reading_progress
from qstore.tools.console.tables import note
from qstore.tools.console.text import unescape_name
from qstore.tools.dump.objects import damage_object
from qstore.tools.dump.tables import Tables
from qstore.tools.entry import EXIT_DAMAGE, PathName, fail, failing, run
from qstore.tools.size.amounts import MAX_AMOUNT, parse_amount, parse_count
from qstore.tools.size.formula import print_sizing, sizing_object
from qstore.tools.size.queues import QueueSize, Wanted, print_queues, queue_object, size_queue

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


@click.command("qstore-size", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
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
@click.option("--queue", "names", multiple=True, metavar="NAME", help="With --from, only this queue. Repeatable.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line, with exact numbers, instead of tables."
)
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
    names: tuple[str, ...],
    as_json: bool,
) -> None:
    """Calculate how large a queue's journal must be.

    Either describe the messages (--message-size, --header-size, --depth), or measure those in a store (--from). The
    recommended size follows qpidd's published formulas: the blocks of all messages at the queue's greatest depth,
    doubled, so that the threshold at about 80 %, where enqueues are refused, is not reached.
    """
    described = _Described(message_size, header_size, transactions, xid_size, store_type, queue_count)
    if source is None:
        workload = _workload(described, depth, transaction_depth, names, count_dequeues=count_dequeues)
        _show_formula(workload, queue_count or 1, as_json=as_json)
        return
    for name, value in described._asdict().items():
        if value is not None:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} cannot be combined with --from, which measures the messages in a store.")
    wanted = Wanted(depth, transaction_depth or 1, count_dequeues)
    if _show_store(source, wanted, frozenset(map(unescape_name, names)), as_json=as_json):
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
            lines = JsonLines(sys.stdout.buffer)
            lines.show(sizing_object(sizing, queue_count))
            lines.flush()
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
        lines = JsonLines(sys.stdout.buffer)
        for fields in [*map(queue_object, sizes), *damages]:
            lines.show(fields)
        lines.flush()
        return
    console = Console()
    print_queues(console, sizes)
    if damages:
        console.file.write("\n")
    tables = Tables(console)
    for fields in damages:
        tables.show(fields)
    tables.flush()


def main() -> None:
    """Console script entry point."""
    run("qstore-size", command)


if __name__ == "__main__":
    main()
