"""`qstore-check`: verify stores, and report for each damaged place what recovery will do about it.

Exit codes: 0 no damage (what a crash leaves behind does not count), 1 damage was found, 2 something could not be
checked at all, or the command line is unusable.
"""

from __future__ import annotations

import sys
import time

import click
from rich.console import Console

from qstore import __version__
from qstore.store.disk import OsDisk
from qstore.store.errors import advice
from qstore.store.inspect.check.check import StoreCheck, check_store
from qstore.store.inspect.in_use import holder_of_store
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.inspect.offline import open_store
from qstore.tools.check.objects import journal_object, notice_object, store_object, transactions_of
from qstore.tools.check.report import plain_console, show_report
from qstore.tools.console.json_lines import JsonLines
from qstore.tools.console.progress import reading_progress
from qstore.tools.console.text import printable
from qstore.tools.dump.objects import damage_object
from qstore.tools.entry import EXIT_DAMAGE, EXIT_UNUSABLE, PathName, failing, run

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


@click.command("qstore-check", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PathName(readable=False))
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per line instead of a report; tools/README.md lists the fields.",
)
@click.option(
    "--paranoid",
    is_flag=True,
    help="Read everything twice, the second time with independent checksum code, and also check padding and "
    "decode every "
    "outstanding message's header. 5 to 20 times slower.",
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
    output = JsonLines(sys.stdout.buffer) if as_json else None
    console = plain_console()
    for number, path in enumerate(paths):
        if number and output is None:
            console.print()
        code = max(code, _check(path, output, console, paranoid=paranoid))
    context.exit(code)


def _check(path: str, output: JsonLines | None, console: Console, *, paranoid: bool) -> int:
    began = time.monotonic()
    try:
        with reading_progress(OsDisk()) as disk:
            store = open_store(disk, path, holder_of_store)
            checked = check_store(disk, store, paranoid=paranoid, stage=disk.expect)
    except UnusableInputError as error:
        click.echo(f"qstore-check: {printable(str(error))}", err=True)
        return EXIT_UNUSABLE
    except OSError as error:
        click.echo(
            f"qstore-check: {printable(f'{error.filename or path}: {error.strerror or error}{advice(error)}')}",
            err=True,
        )
        return EXIT_UNUSABLE
    with failing("qstore-check"):
        if output is None:
            show_report(console, path, checked, time.monotonic() - began, paranoid=paranoid)
        else:
            _show_json(output, path, checked, paranoid=paranoid)
    return EXIT_DAMAGE if checked.damage else 0


def _show_json(output: JsonLines, path: str, checked: StoreCheck, *, paranoid: bool) -> None:
    output.show(store_object(path, checked, paranoid=paranoid))
    for journal in checked.journals:
        output.show(journal_object(journal))
    for fields in transactions_of(checked):
        output.show(fields)
    for damage in checked.damage:
        output.show(damage_object(damage))
    for notice in checked.notices:
        output.show(notice_object(notice))
    output.flush()


def main() -> None:
    """Console script entry point."""
    run("qstore-check", command)


if __name__ == "__main__":
    main()
