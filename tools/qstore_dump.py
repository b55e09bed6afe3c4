"""`qstore-dump`: show the content of a store, record by record or as recovery would leave it.

Exit codes: 0 everything could be read, 1 damage was found (everything else is shown), 2 the input or the command line
is unusable.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from qstore import __version__
from qstore.formats.rhm.records import RECORD_KINDS, Kind
from qstore.formats.wording import plural
from qstore.store.disk import OsDisk
from qstore.store.errors import advice
from qstore.store.inspect.layout import UnusableInputError, holder_of_store
from qstore.store.inspect.offline import OfflineStore, RecoveredStore, open_store
from qstore.tools.console.command import EXIT_DAMAGE, JSON, QUEUES, SETTINGS, PathName, fail, failing, run
from qstore.tools.console.progress import reading_progress
from qstore.tools.console.rows import JsonLines, Output, note
from qstore.tools.console.text import unescape_name
from qstore.tools.dump.dump import Sections, dump_records, dump_recovered
from qstore.tools.dump.messages import RIDS, BodyFileError, BodyForm, Selection, no_such_queue
from qstore.tools.dump.rows import object_tables

_MAX_NAMED: Final = 5  # transactions that an error lists

_EPILOG = """
\b
Examples:
qstore-dump /var/lib/qpidd                      every record of every journal
qstore-dump /var/lib/qpidd --outstanding        the messages that a restart would deliver
qstore-dump /var/lib/qpidd --outstanding --json --body none
qstore-dump /var/lib/qpidd --outstanding --queue orders --body files --body-dir /tmp/orders
qstore-dump /var/lib/qpidd --transactions       transactions in doubt, half committed or never prepared
qstore-dump /var/lib/qpidd --topology           exchanges, queues, bindings, links
qstore-dump /var/lib/qpidd/rhm/jrnl/001c/orders --type dequeue --rid 0x400..0x4ff
qstore-dump JournalData.0003.jdat               a single file

\b
Messages are listed in the order in which the broker that owns the store would deliver them.
Torn tails and stale bindings are normal after a crash: they are notices on standard error.
Without db5.3_recover (apt-get install db5.3-util) qpidd's newest queues and bindings may be missing after a crash;
a notice says so.

\b
Exit codes: 0 everything could be read, 1 damage was found (everything else is shown), 2 the input or the command line
is unusable, or the queue or transaction does not exist.
Nothing is ever written to the store: it may be on a read-only file system.
"""


class _Xid(click.ParamType[bytes]):
    """A transaction id in hexadecimal."""

    name = "hex"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        try:
            return bytes.fromhex(str(value).lower().removeprefix("0x"))
        except ValueError:
            self.fail(f"{value!r} is not a transaction id in hexadecimal", param, ctx)


@click.command("qstore-dump", epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("path", type=PathName(readable=False))
@click.option(
    "--outstanding", is_flag=True, help="Show what a restart would recover: topology, messages, open transactions."
)
@click.option("--transactions", is_flag=True, help="Show the open transactions, and what recovery would do with them.")
@click.option("--topology", is_flag=True, help="Show exchanges, queues, bindings, links, bridges and other objects.")
@JSON
@QUEUES
@RIDS
@click.option("--xid", "xids", type=_Xid(), multiple=True, metavar="HEX", help="Only this transaction. Repeatable.")
@click.option(
    "--type", "kinds", multiple=True, help="Only records of this type. Repeatable.",
    type=click.Choice(sorted(kind.label for kind in RECORD_KINDS)),
)  # fmt: skip
@click.option(
    "--body", "body", default="text", show_default=True, type=click.Choice([form.value for form in BodyForm]),
    help="Show bodies as text (base64 if they are not UTF-8), in hex, not at all, or as files in --body-dir.",
)  # fmt: skip
@click.option("--body-dir", type=PathName(path_type=Path), help="Directory for --body files.  [default: qstore-bodies]")
@click.version_option(__version__, prog_name="qstore-dump")
@click.pass_context
def command(
    context: click.Context,
    path: str,
    *,
    outstanding: bool,
    transactions: bool,
    topology: bool,
    as_json: bool,
    queues: tuple[str, ...],
    rids: tuple[int, int] | None,
    xids: tuple[bytes, ...],
    kinds: tuple[str, ...],
    body: str,
    body_dir: Path | None,
) -> None:
    """Show the content of a message store.

    PATH is a store directory (qpidd's, or qstore's own), the directory of one journal, or one journal file; the format
    and its version are detected. Without --outstanding, --transactions or --topology every record is listed in the
    order in which it was written.
    """
    form = BodyForm(body)
    if kinds and (outstanding or transactions or topology):
        raise click.UsageError(
            "--type selects records; it cannot be combined with --outstanding, --transactions or --topology."
        )
    if body_dir is not None and form is not BodyForm.FILES:
        raise click.UsageError("--body-dir requires --body files.")
    selection = Selection(
        queues=frozenset(unescape_name(name) for name in queues),
        rids=rids or Selection().rids,
        xids=frozenset(xids),
        kinds=frozenset(Kind[kind.upper()] for kind in kinds),
    )
    bodies = _body_directory(path, body_dir) if form is BodyForm.FILES else None
    sections = Sections(outstanding=outstanding, transactions=transactions, topology=topology)
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
        output = _RecordingOutput(_output(as_json=as_json))
        if recovered is None:
            dump_records(store, output, selection, form, bodies)
        else:
            dump_recovered(recovered, output, sections, selection, form, bodies)
        output.flush()
        store.close()
    for notice in store.notices:
        note("notice", notice)
    if store.damage:
        count = len(store.damage)
        click.echo(f"damage found in {plural(count, 'place')}, listed above.", err=True)
    if not sections.topology or outstanding or transactions:
        _check_xids(path, selection, output, recovered)
    if store.damage:
        context.exit(EXIT_DAMAGE)


def _check_queues(path: str, store: OfflineStore, selection: Selection) -> None:
    """Exit with an error if a requested queue does not exist."""
    unknown = selection.unknown_queues(store.queue_names())
    if unknown:
        fail("qstore-dump", no_such_queue(path, min(unknown), store.queue_names()))


def _check_xids(path: str, selection: Selection, output: _RecordingOutput, recovered: RecoveredStore | None) -> None:
    """Exit with an error if a requested transaction does not exist."""
    for xid in sorted(selection.xids):
        if xid.hex() in output.xids:
            continue
        if recovered is None:
            what = "no record has this id; --transactions lists the open transactions"
        else:
            known = [each.xid.hex() for each in recovered.transactions]
            listed = ", ".join(known[:_MAX_NAMED]) + (", …" if len(known) > _MAX_NAMED else "")
            what = (
                f"the open transactions are {listed}"
                if known
                else "no transaction is open; without --outstanding or --transactions all records are searched"
            )
        fail("qstore-dump", f"{path}: there is no transaction {xid.hex() or repr('')} in this view; {what}")


class _RecordingOutput:
    """An output that records the ids of the transactions it has shown.

    Attributes:
        max_body: see `Output`.
        xids: ids of the shown transactions, in hex.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self.max_body = output.max_body
        self.xids: set[str] = set()

    def show(self, fields: dict[str, Any]) -> None:
        """Print one object."""
        xid = fields.get("xid")
        if xid is not None:
            self.xids.add(xid)
        self._output.show(fields)

    def flush(self) -> None:
        """Print buffered output."""
        self._output.flush()


def _output(*, as_json: bool) -> Output:
    if as_json:
        return JsonLines(sys.stdout.buffer)
    return object_tables(Console())


def _body_directory(path: str, directory: Path | None) -> Path:
    """Directory for bodies; must be outside the store that is read."""
    target = (directory or Path("qstore-bodies")).resolve()
    if target.is_relative_to(_whole_store(Path(path).resolve())):
        raise click.UsageError(f"--body-dir {target} is inside the store that is read; choose a directory outside it.")
    return target


def _whole_store(path: Path) -> Path:
    """Directory of the store that `path` is part of, or may be part of."""
    above = [parent for parent in (path, *path.parents) if parent.name in ("rhm", "qls")]
    if above:
        return above[-1]
    return path if path.is_dir() else path.parent


def main() -> None:
    """Console script entry point."""
    run("qstore-dump", command)


if __name__ == "__main__":
    main()
