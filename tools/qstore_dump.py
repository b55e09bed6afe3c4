"""`qstore-dump`: show what is in a store, record by record or as recovery would leave it.

Exit codes: 0 all could be read, 1 damage was found (the rest is shown all the same), 2 the input or the command line
cannot be used.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from formats.rhm.records import RECORD_KINDS, Kind
from formats.wording import plural
from store.disk import OsDisk
from store.errors import advice
from store.inspect.in_use import holder_of_store
from store.inspect.layout import UnusableInputError
from store.inspect.offline import OfflineStore, RecoveredStore, open_store
from tools.console.json_lines import JsonLines
from tools.console.progress import reading_progress
from tools.console.text import escape_name, printable, unescape_name
from tools.dump.body_files import BodyFileError
from tools.dump.dump import Output, Sections, dump_recovered
from tools.dump.records import dump_records
from tools.dump.selection import BodyForm, Selection, parse_rids
from tools.dump.tables import Tables
from tools.entry import EXIT_DAMAGE, PathName, distribution_version, fail, failing, run

_MOST_NAMED: Final = 5  # queues or transactions that an error names

_EPILOG = """
\b
Examples:
qstore-dump /var/lib/qpidd                      every record of every journal
qstore-dump /var/lib/qpidd --outstanding        the messages that a restart would deliver
qstore-dump /var/lib/qpidd --outstanding --json --body none
qstore-dump /var/lib/qpidd --outstanding --queue orders --body files --body-dir /tmp/orders
qstore-dump /var/lib/qpidd --transactions       what is in doubt, half committed, never prepared
qstore-dump /var/lib/qpidd --wiring             queues, exchanges, bindings, links
qstore-dump /var/lib/qpidd/rhm/jrnl/001c/orders --type dequeue --rid 0x400..0x4ff
qstore-dump JournalData.0003.jdat               one file by itself

\b
Exit codes: 0 everything could be read, 1 damage was found, 2 unusable input.
Nothing is ever written to the store: a read-only file system is as good as any.
"""


class _Rids(click.ParamType[tuple[int, int]]):
    """A range of record ids."""

    name = "A..B"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_rids(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Xid(click.ParamType[bytes]):
    """A transaction id in hex."""

    name = "hex"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        try:
            return bytes.fromhex(str(value).lower().removeprefix("0x"))
        except ValueError:
            self.fail(f"{value!r} is no transaction id in hex", param, ctx)


@click.command("qstore-dump", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("path", type=PathName(readable=False))
@click.option("--outstanding", is_flag=True, help="What recovery keeps: wiring, messages, open transactions.")
@click.option("--transactions", is_flag=True, help="The transactions that are open, and what recovery does with them.")
@click.option("--wiring", is_flag=True, help="Exchanges, queues, bindings, links, bridges and other objects.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, instead of tables.")
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Only this queue. May be given again.")
@click.option(
    "--rid", "rids", type=_Rids(), metavar="A..B", help="Only these record ids: A..B, A.., ..B or A; decimal or 0x…."
)
@click.option(
    "--xid", "xids", type=_Xid(), multiple=True, metavar="HEX", help="Only this transaction. May be given again."
)
@click.option(
    "--type", "kinds", multiple=True, help="Only records of this type. May be given again.",
    type=click.Choice(sorted(kind.label for kind in RECORD_KINDS)),
)  # fmt: skip
@click.option(
    "--body", "body", default="text", show_default=True, type=click.Choice([form.value for form in BodyForm]),
    help="Bodies as text (base64 where they are none), in hex, left out, or as files in --body-dir.",
)  # fmt: skip
@click.option(
    "--body-dir", type=PathName(path_type=Path), help="Where --body files puts them.  [default: qstore-bodies]"
)
@click.version_option(distribution_version(), prog_name="qstore-dump")
@click.pass_context
def command(
    context: click.Context,
    path: str,
    *,
    outstanding: bool,
    transactions: bool,
    wiring: bool,
    as_json: bool,
    queues: tuple[str, ...],
    rids: tuple[int, int] | None,
    xids: tuple[bytes, ...],
    kinds: tuple[str, ...],
    body: str,
    body_dir: Path | None,
) -> None:
    """Show what is in a message store.

    PATH is a store directory (qpidd's, or qstore's own), the directory of one journal, or one journal file: which of
    these it is, and of which version, is found by looking. Without --outstanding, --transactions or --wiring every
    record is listed in the order in which it was written.
    """
    form = BodyForm(body)
    if kinds and (outstanding or transactions or wiring):
        raise click.UsageError("--type selects records; it does not go with --outstanding, --transactions or --wiring.")
    if body_dir is not None and form is not BodyForm.FILES:
        raise click.UsageError("--body-dir goes with --body files.")
    selection = Selection(
        queues=frozenset(unescape_name(name) for name in queues),
        rids=rids or Selection().rids,
        xids=frozenset(xids),
        kinds=frozenset(Kind[kind.upper()] for kind in kinds),
    )
    bodies = _body_directory(path, body_dir) if form is BodyForm.FILES else None
    sections = Sections(outstanding=outstanding, transactions=transactions, wiring=wiring)
    with (
        failing("qstore-dump", UnusableInputError, BodyFileError, advise=advice),
        reading_progress(OsDisk()) as disk,
    ):
        store = open_store(disk, path, holder_of_store)
        disk.expect("reading journals", store.size)
        _check_queues(path, store, selection)
        recovered = store.recover() if any(sections) else None
        if outstanding:
            disk.expect("reading messages", store.size)
        if sys.stdout.isatty():
            disk.done()
        output = _Watched(_output(as_json=as_json))
        if recovered is None:
            dump_records(store, output, selection, form, bodies)
        else:
            dump_recovered(recovered, output, sections, selection, form, bodies)
        output.flush()
        store.close()
    for notice in store.notices:
        click.echo(f"notice: {printable(notice)}", err=True)
    if store.damage:
        count = len(store.damage)
        click.echo(f"{plural(count, 'damage')} found; {'it is' if count == 1 else 'they are'} listed.", err=True)
    if not sections.wiring or outstanding or transactions:
        _check_xids(path, selection, output, recovered)
    if store.damage:
        context.exit(EXIT_DAMAGE)


def _check_queues(path: str, store: OfflineStore, selection: Selection) -> None:
    """A queue that is asked for, and is not there, is no answer: say which there are."""
    known = {each: escape_name(each) for each in store.queue_names()}
    for name in sorted(selection.queues - known.keys()):
        shown = escape_name(name)
        near = difflib.get_close_matches(shown, known.values(), _MOST_NAMED)
        there = near or sorted(known.values())[:_MOST_NAMED]
        rest = f" and {len(known) - len(there):,} more" if len(known) > len(there) and not near else ""
        listed = ", ".join(f'"{each}"' for each in there) + rest
        what = "there are no queues" if not known else f"do you mean {listed}?" if near else f"there are {listed}"
        fail("qstore-dump", f'{path}: there is no queue "{shown}"; {what}')


def _check_xids(path: str, selection: Selection, output: _Watched, recovered: RecoveredStore | None) -> None:
    """The same for a transaction."""
    for xid in sorted(selection.xids):
        if xid.hex() in output.xids:
            continue
        if recovered is None:
            what = "no record has this id; --transactions shows those that are open"
        else:
            known = [each.xid.hex() for each in recovered.transactions]
            listed = ", ".join(known[:_MOST_NAMED]) + (", …" if len(known) > _MOST_NAMED else "")
            what = f"open are {listed}" if known else "none is open; leave the view out to search all records"
        fail("qstore-dump", f"{path}: there is no transaction {xid.hex() or repr('')} in what was asked for; {what}")


class _Watched:
    """An output that notes which transactions it has shown.

    Attributes:
        most_of_body: see `Output`.
        xids: those that were shown, in hex.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self.most_of_body = output.most_of_body
        self.xids: set[str] = set()

    def show(self, fields: dict[str, Any]) -> None:
        """Print one object."""
        xid = fields.get("xid")
        if xid is not None:
            self.xids.add(xid)
        self._output.show(fields)

    def flush(self) -> None:
        """Print what was held back."""
        self._output.flush()


def _output(*, as_json: bool) -> Output:
    if as_json:
        return JsonLines(sys.stdout.buffer)
    return Tables(Console())


def _body_directory(path: str, directory: Path | None) -> Path:
    """Where bodies go: never into the store that is read."""
    target = (directory or Path("qstore-bodies")).resolve()
    if target.is_relative_to(_whole_store(Path(path).resolve())):
        raise click.UsageError(f"--body-dir {target} lies in the store that is read; choose a place outside of it.")
    return target


def _whole_store(path: Path) -> Path:
    """The directory of the store of which `path` is, or may be, a part."""
    above = [parent for parent in (path, *path.parents) if parent.name in ("rhm", "qls")]
    if above:
        return above[-1]
    return path if path.is_dir() else path.parent


def main() -> None:
    """The console script."""
    run("qstore-dump", command)


if __name__ == "__main__":
    main()
