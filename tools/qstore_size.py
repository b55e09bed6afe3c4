"""`qstore-size`: how large a journal has to be, by the published formulas or from what a store holds.

Exit codes: 0 fine, 1 damage was found in the store (the sizes are shown all the same), 2 the input or the command line
cannot be used, or no journal is large enough.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import click
from rich.console import Console

from formats.wording import plural
from store.disk import OsDisk
from store.errors import advice
from store.inspect.in_use import holder_of_store
from store.inspect.layout import UnusableInputError
from store.inspect.offline import OfflineStore, open_store
from store.inspect.sizing import MAX_DEPTH, JournalTooLargeError, Transactions, Workload, size_journal
from store.journal.format import JournalFormat
from store.journal.records import MAX_XID_SIZE
from tools.console.json_lines import JsonLines
from tools.console.progress import reading_progress
from tools.console.text import printable, unescape_name
from tools.dump.objects import damage_object
from tools.dump.tables import Tables
from tools.entry import EXIT_DAMAGE, PathName, distribution_version, fail, failing, run
from tools.size.amounts import MAX_AMOUNT, parse_amount, parse_count
from tools.size.formula import print_sizing, sizing_object
from tools.size.queues import QueueSize, Wanted, print_queues, queue_object, size_queue

MAX_QUEUES = 1_000_000

_STORE_TYPES = {journal_format.label: journal_format for journal_format in JournalFormat}

_EPILOG = """
\b
Examples:
qstore-size --message-size 150 --header-size 75 --depth 25000
qstore-size --message-size 4K --header-size 200 --depth 100000 --queues 12
qstore-size --message-size 150 --header-size 75 --depth 25000 --transactions local --transaction-depth 10
qstore-size --message-size 150 --header-size 75 --depth 25000 --transactions distributed --xid-size 53
qstore-size --from /var/lib/qpidd                 each queue for the messages that it holds
qstore-size --from /var/lib/qpidd --queue orders --depth 1000000 --json

\b
Sizes are bytes, or have a suffix: K, M, G, T and KiB, MiB … are powers of 1024; KB, MB … are powers of 1000.
Exit codes: 0 fine, 1 damage was found in the store, 2 unusable input, or no journal is large enough.
Nothing is ever written.
"""


class _Number(click.ParamType[int]):
    """A number within bounds.

    Args:
        name: what help shows for it.
        parse: makes a number of text; raises ValueError with what is wrong.
        least, most: the bounds.
    """

    def __init__(self, name: str, parse: Callable[[str], int], least: int, most: int) -> None:
        self.name = name
        self._parse = parse
        self._least = least
        self._most = most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            number = self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._least <= number <= self._most:
            self.fail(f"{value} is out of range: {self._least} to {self._most}", param, ctx)
        return number


_SIZE = _Number("size", parse_amount, 0, MAX_AMOUNT)
_XID_SIZE = _Number("size", parse_amount, 1, MAX_XID_SIZE)
_COUNT = _Number("n", parse_count, 1, MAX_DEPTH)
_QUEUES = _Number("n", parse_count, 1, MAX_QUEUES)


class _Told(NamedTuple):
    """The options that describe messages, by their names; None where one was not given."""

    message_size: int | None
    header_size: int | None
    transactions: str | None
    xid_size: int | None
    store_type: str | None
    queues: int | None


@click.command("qstore-size", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--message-size", type=_SIZE, help="Bytes of a message's content, on average.")
@click.option("--header-size", type=_SIZE, help="Bytes of a message's header, on average.")
@click.option("--depth", type=_COUNT, help="Messages on the queue at most; with --from, as many as there are.")
@click.option(
    "--transactions", type=click.Choice([kind.value for kind in Transactions]),
    help="Whether messages come and go in transactions.  [default: none]",
)  # fmt: skip
@click.option("--xid-size", type=_XID_SIZE, help="Bytes of a distributed transaction's id; a local one has 24.")
@click.option("--transaction-depth", type=_COUNT, help="Messages in a transaction.  [default: 1]")
@click.option(
    "--count-dequeues", is_flag=True,
    help="Count dequeue records too: for a queue in steady flow, not one that fills up and is then emptied.",
)  # fmt: skip
@click.option("--queues", "queue_count", type=_QUEUES, help="Queues like this.  [default: 1]")
@click.option(
    "--store-type", type=click.Choice(list(_STORE_TYPES)), help="What kind of store it is for.  [default: qstore]"
)
@click.option(
    "--from", "source", type=PathName(readable=False), metavar="PATH",
    help="Size each queue of this store (or journal) from the messages that it holds.",
)  # fmt: skip
@click.option(
    "--queue", "names", multiple=True, metavar="NAME", help="With --from, only this queue. May be given again."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, instead of tables.")
@click.version_option(distribution_version(), prog_name="qstore-size")
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
    """Say how large a queue's journal has to be.

    Either tell what the messages are like (--message-size, --header-size, --depth), or let them be measured in a store
    (--from). The size is that of qpidd's published formulas: the blocks of all messages at the queue's greatest depth,
    doubled, so that the threshold at about 80 %, where enqueues are refused, is not reached.
    """
    told = _Told(message_size, header_size, transactions, xid_size, store_type, queue_count)
    if source is None:
        workload = _workload(told, depth, transaction_depth, names, count_dequeues=count_dequeues)
        _show_formula(workload, queue_count or 1, as_json=as_json)
        return
    for name, value in told._asdict().items():
        if value is not None:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} does not go with --from, which measures the messages that are there.")
    wanted = Wanted(depth, transaction_depth or 1, count_dequeues)
    if _show_store(source, wanted, frozenset(map(unescape_name, names)), as_json=as_json):
        context.exit(EXIT_DAMAGE)


# ---- by formula ----


def _workload(
    told: _Told, depth: int | None, transaction_depth: int | None, names: tuple[str, ...], *, count_dequeues: bool
) -> Workload:
    """What was told of the messages, if it is complete and goes together."""
    if told.message_size is None or told.header_size is None or depth is None:
        needed = {"--message-size": told.message_size, "--header-size": told.header_size, "--depth": depth}
        missing = ", ".join(name for name, value in needed.items() if value is None)
        raise click.UsageError(f"{missing} missing: tell what the messages are like, or name a store with --from.")
    transactions = Transactions(told.transactions or Transactions.NONE.value)
    if names:
        raise click.UsageError("--queue goes with --from; for several queues of a kind say --queues N.")
    if transactions is Transactions.DISTRIBUTED and told.xid_size is None:
        raise click.UsageError("--transactions distributed needs --xid-size.")
    if transactions is not Transactions.DISTRIBUTED and told.xid_size is not None:
        raise click.UsageError(
            "--xid-size goes with --transactions distributed; a local transaction's id has 24 bytes."
        )
    if transactions is Transactions.NONE and transaction_depth is not None:
        raise click.UsageError("--transaction-depth goes with --transactions local or distributed.")
    return Workload(
        told.message_size,
        told.header_size,
        depth,
        transactions,
        told.xid_size,
        transaction_depth or 1,
        count_dequeues,
        _STORE_TYPES[told.store_type or JournalFormat.VERSION_2.label],
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
    """Show the sizes of a store's queues. Whether damage was found."""
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
        store.notices.append(f'there is no queue "{name}" here')
    for notice in store.notices:
        click.echo(f"notice: {printable(notice)}", err=True)
    if store.damage:
        count = len(store.damage)
        click.echo(f"{plural(count, 'damage')} found; {'it is' if count == 1 else 'they are'} listed.", err=True)
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
    """The console script."""
    run("qstore-size", command)


if __name__ == "__main__":
    main()
