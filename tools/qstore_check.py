"""`qstore-check`: verify stores, and say of each damage what recovery will make of it.

Exit codes: 0 no damage (what a crash leaves behind is none), 1 damage was found, 2 something could not be checked at
all, or the command line cannot be used.
"""

from __future__ import annotations

import sys
import time

import click
from rich.console import Console

from store.disk import OsDisk
from store.errors import advice
from store.inspect.check.check import StoreCheck, check_store
from store.inspect.in_use import holder_of_store
from store.inspect.layout import UnusableInputError
from store.inspect.offline import open_store
from tools.check.objects import journal_object, notice_object, store_object, transactions_of
from tools.check.report import plain_console, show_report
from tools.console.json_lines import JsonLines
from tools.console.progress import reading_progress
from tools.console.text import printable
from tools.dump.objects import damage_object
from tools.entry import EXIT_DAMAGE, EXIT_UNUSABLE, PathName, distribution_version, failing, run

_EPILOG = """
\b
Examples:
qstore-check /var/lib/qpidd                     one store, its journals and its catalogue
qstore-check /var/lib/qpidd /srv/broker2        several
qstore-check --paranoid /var/lib/qpidd          everything twice, with other code for the checksums
qstore-check --json /var/lib/qpidd | jq -r 'select(.kind == "damage") | .what'
qstore-check /var/lib/qpidd/rhm/jrnl/001c/orders

\b
FILL is what is in use of what may be before enqueues are refused (of a linearstore, which has no such limit: live
messages, of its files). The oldest live record is the one that keeps a ring from being reused.

\b
Exit codes: 0 no damage, 1 damage was found, 2 something could not be checked at all.
Torn tails, transactions in doubt or never prepared, stale bindings and the like are notices: a crash leaves them.
Nothing is ever written to the store.
"""


@click.command("qstore-check", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PathName(readable=False))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, instead of a report.")
@click.option("--paranoid", is_flag=True, help="Read everything twice, with a second implementation of the checksums.")
@click.version_option(distribution_version(), prog_name="qstore-check")
@click.pass_context
def command(context: click.Context, paths: tuple[str, ...], *, as_json: bool, paranoid: bool) -> None:
    """Verify message stores.

    Each PATH is a store directory (qpidd's legacystore or linearstore, or qstore's own), the directory of one
    journal, or one journal file. Headers, tails, checksums, overwrite indicators, the order of files, flushes and
    records, transactions, and the catalogue against the journals are checked; every damage is named with its file and
    offset, and with what recovery will do about it.
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
    """The console script."""
    run("qstore-check", command)


if __name__ == "__main__":
    main()
