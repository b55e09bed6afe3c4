"""`qstore-quarantine`: inspect records that a recovery could not save, and inject their messages into a store.

Exit codes: 0 success, 1 the quarantine itself is damaged, or not everything was injected, 2 the quarantine, the store
or the command line is unusable.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import click
from rich.console import Console
from rich.text import Text

from qstore import __version__
from qstore.formats.quarantine_index import QuarantineEntry, raw_name
from qstore.formats.rhm.records import Kind
from qstore.formats.wording import plural
from qstore.store.disk import OsDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError, StoreLockedError, advice
from qstore.store.repair.quarantine import INDEX, Quarantine, QuarantineError
from qstore.tools.console.command import (
    AGAIN,
    EXIT_DAMAGE,
    JSON,
    SETTINGS,
    PathName,
    examples,
    fail,
    failing,
    log_printer,
    run,
    say,
)
from qstore.tools.console.rows import (
    Column,
    JsonLines,
    Object,
    hexadecimal,
    number,
    plain_console,
    print_grid,
    print_json,
    print_wrapped,
)
from qstore.tools.console.text import printable, sentence, unescape_name
from qstore.tools.dump.messages import BodyForm, message_object
from qstore.tools.quarantine import (
    GAVE_UP,
    MAX_BYTES,
    Evidence,
    Injected,
    InjectionRequest,
    Judgement,
    RecordFinder,
    inject,
    injected_before,
    judge,
)

_PROGRAM = "qstore-quarantine"
_MAX_SHOWN = 50  # records shown per entry; --json shows all

_EPILOG = """
\b
Examples:
qstore-quarantine list /var/lib/saved/quarantine
qstore-quarantine show /var/lib/saved/quarantine 3
qstore-quarantine show /var/lib/saved/quarantine 3 --raw > record.bin
qstore-quarantine inject /var/lib/saved/quarantine 3 4 --store /var/lib/saved
qstore-quarantine inject /var/lib/saved/quarantine 5 --store /var/lib/saved --queue inspected --force

\b
qstore-quarantine list, show or inject --help shows the options of each.
Exit codes: 0 success, 1 the quarantine itself is damaged, or not everything was injected, 2 the quarantine, the store
or the command line is unusable.
"""

_DIRECTORY = click.argument("directory", metavar="DIR", type=PathName(readable=False))


@click.group(_PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.version_option(__version__, prog_name=_PROGRAM)
def command() -> None:
    """Inspect damaged records that were quarantined, and inject their messages into a store.

    DIR is a quarantine directory, as created by qstore-recover (DEST/quarantine) or by a broker (STORE/rhm/quarantine):
    the bytes of each damaged place, and an index of them.
    """


@contextmanager
def _failures() -> Iterator[None]:
    """Report errors in one line and exit."""
    with failing(_PROGRAM, QuarantineError, StoreError, advise=advice):
        try:
            yield
        except StoreLockedError:
            fail(_PROGRAM, "the store is in use by a broker or another tool; stop that one first (qpidd --quit)")


# ---- list ----


@command.command(
    "list",
    context_settings=SETTINGS,
    epilog=examples(
        "qstore-quarantine list /var/lib/saved/quarantine",
        "qstore-quarantine list /var/lib/saved/quarantine --json | jq -c 'select(.problem != null)'",
    ),
)
@_DIRECTORY
@JSON
@click.pass_context
def list_entries(context: click.Context, directory: str, *, as_json: bool) -> None:
    """List the entries of the quarantine DIR.

    Files that are missing from the index, and unusable lines of the index, are also listed.
    """
    with _failures():
        damage = _list(Quarantine(OsDisk(), directory), as_json=as_json)
    context.exit(EXIT_DAMAGE if damage else 0)


def _list(quarantine: Quarantine, *, as_json: bool) -> int:
    """Returns the number of problems."""
    console, output = plain_console(), JsonLines(sys.stdout.buffer)
    rows: list[Object] = []
    entries = size = injected = unknown = 0
    damage: list[Object] = []
    unlisted = set(quarantine.raw_names())
    path = quarantine.path(INDEX)
    for entry in quarantine.entries():
        if not isinstance(entry, QuarantineEntry):
            damage.append(problem_object(path, entry.line, entry.what))
            if as_json:
                output.show(damage[-1])
            continue
        unlisted.discard(raw_name(entry.number))
        problem = None if entry.raw is None else quarantine.size_problem(entry)
        entries, size = entries + 1, size + entry.size
        if entry.injected is not None:
            unknown += not entry.injected.is_known
            injected += entry.injected.is_known
        if problem is not None:
            damage.append({"what": problem})
        fields = entry_object(entry, problem)
        if as_json:
            output.show(fields)
            continue
        rows.append(fields)
        if len(rows) >= MAX_ROWS:
            print_grid(console, _COLUMNS, rows)
            rows = []
    for name in sorted(unlisted):
        damage.append(problem_object(quarantine.path(name), None, "the index has no entry for this file"))
        if as_json:
            output.show(damage[-1])
    if as_json:
        summary = {"entries": entries, "bytes": size, "injected": injected, "unknown": unknown, "damage": len(damage)}
        output.show({"kind": "summary", **summary})
        output.flush()
        return len(damage)
    if rows:
        print_grid(console, _COLUMNS, rows)
    for problem_fields in damage:
        _line(console, f"damage: {sentence(_problem_text(problem_fields))}", "bold red")
    _line(console, f"{plural(entries, 'entry', 'entries')}, {size:,} bytes, {injected:,} injected")
    if unknown:
        text = f"{plural(unknown, 'entry', 'entries')} marked ?: an interrupted injection may have taken place"
        _line(console, f"{text}: look for the message with qstore-dump", "bold red")
    return len(damage)


# ---- show ----


@command.command(
    "show",
    context_settings=SETTINGS,
    short_help="Show an entry, the records in it, and their messages.",
    epilog=examples(
        "qstore-quarantine show /var/lib/saved/quarantine 3",
        "qstore-quarantine show /var/lib/saved/quarantine 3 --hex | less",
        "qstore-quarantine show /var/lib/saved/quarantine 3 --raw > record.bin",
    ),
)
@_DIRECTORY
@click.argument("number", type=click.IntRange(min=1))
@click.option("--raw", "form", flag_value="raw", help="Print only the bytes, unchanged.")
@click.option("--hex", "form", flag_value="hex", help="Print only the bytes, in hex.")
@JSON
@click.pass_context
def show(context: click.Context, directory: str, number: int, *, form: str | None, as_json: bool) -> None:
    """Show entry NUMBER of the quarantine DIR, the records in it, and their messages.

    A record is intact if its checksum matches (linearstore, and version 2 if the salt of its file is known) or its
    tail does (version 1). Other records are shown as far as they can be decoded, with everything that is wrong with
    them.
    """
    if form is not None and as_json:
        raise click.UsageError(f"--json and --{form} cannot be combined.")
    with _failures():
        quarantine = Quarantine(OsDisk(), directory)
        entry = quarantine.find([number]).get(number)
        if entry is None:
            fail(_PROGRAM, f"{directory}: there is no entry {number}; {_PROGRAM} list shows the entries")
        if form == "raw":
            for chunk in quarantine.raw(entry):
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            return
        if form == "hex":
            for line in hex_lines(quarantine.raw(entry)):
                click.echo(line)
            return
        problem = quarantine.raw_problem(entry)
        _show(quarantine, entry, problem, as_json=as_json)
    context.exit(EXIT_DAMAGE if problem is not None else 0)


def _show(quarantine: Quarantine, entry: QuarantineEntry, problem: str | None, *, as_json: bool) -> None:
    console, output = plain_console(), JsonLines(sys.stdout.buffer)
    if as_json:
        output.show(entry_object(entry, problem))
    else:
        show_entry(console, entry, problem)
    is_large = entry.size > MAX_BYTES
    raw = b""
    if not is_large:
        with suppress(QuarantineError):  # that the bytes cannot be read was reported above
            raw = b"".join(quarantine.raw(entry))
    count = 0
    finder = RecordFinder(raw, entry.salt)
    for count, evidence in enumerate(finder.records(), 1):
        fields = record_object(entry.queue, evidence, judge(raw, evidence))
        if as_json:
            output.show(fields)
        elif count <= _MAX_SHOWN:
            show_record(console, fields)
    if finder.gave_up:
        say(_PROGRAM, f"entry {entry.number}: {GAVE_UP}")
    if as_json:
        output.flush()
    elif is_large:
        click.echo(f"  not decoded: more than {MAX_BYTES:,} bytes; --raw prints them")
    elif not count:
        click.echo("  no record was recognized in it")
    elif count > _MAX_SHOWN:
        click.echo(f"  … and {count - _MAX_SHOWN:,} more records; --json shows all")


# ---- inject ----


@command.command(
    "inject",
    context_settings=SETTINGS,
    short_help="Inject the messages of entries into a store.",
    epilog=examples(
        "qstore-quarantine inject /var/lib/saved/quarantine 3 4 --store /var/lib/saved",
        "qstore-quarantine inject /var/lib/saved/quarantine 5 --store /var/lib/saved --queue inspected --force",
    ),
)
@_DIRECTORY
@click.argument("numbers", nargs=-1, required=True, metavar="NUMBER...", type=click.IntRange(min=1))
@click.option(
    "--store",
    required=True,
    type=PathName(readable=False),
    help="The store to inject into; no broker may have it open.",
)
@click.option(
    "--queue", metavar="NAME", help="The destination queue.  [default: the queue in which each entry was found]"
)
@click.option(
    "--force", is_flag=True, help="Also inject records that are not intact; what is wrong with them is reported."
)
@AGAIN
@JSON
@click.pass_context
def inject_entries(
    context: click.Context,
    directory: str,
    numbers: tuple[int, ...],
    *,
    store: str,
    queue: str | None,
    force: bool,
    again: bool,
    as_json: bool,
) -> None:
    """Inject the messages of entries NUMBER... into a store, at the end of their queue.

    They get new record ids and are durable when the command ends; the messages of one entry are injected all together
    or not at all. Injected entries are marked in the index and are skipped next time, except with --again.
    """
    request = InjectionRequest(numbers, None if queue is None else unescape_name(queue), force=force, again=again)
    with _failures():
        results = inject(tool_environment(), directory, store, request, __version__, log_printer(_PROGRAM))
        if as_json:
            print_json(map(injected_object, results))
        else:
            console = plain_console()
            for result in results:
                show_injected(console, result)
    context.exit(EXIT_DAMAGE if any(result.failure is not None for result in results) else 0)


# ---- JSON ----


def entry_object(entry: QuarantineEntry, problem: str | None) -> Object:
    """An entry, with the problems of the file that holds its bytes."""
    injected = entry.injected
    return {
        "kind": "entry",
        **entry._asdict(),
        "injected": None if injected is None else {**injected._asdict(), "is_known": injected.is_known},
        "problem": problem,
    }


def problem_object(path: str, line: int | None, what: str) -> Object:
    """An unusable line of the index, or a file that it does not have."""
    return {"kind": "damage", "file": path, "line": line, "what": what}


def _problem_text(fields: Object) -> str:
    if "file" not in fields:  # what is wrong with the file of an entry names it
        return str(fields["what"])
    line = "" if fields["line"] is None else f", line {fields['line']}"
    return f"{fields['file']}{line}: {fields['what']}"


def record_object(queue: str, evidence: Evidence, judgement: Judgement) -> Object:
    """A record found in an entry, and what it can be used for."""
    fields: Object = {
        "kind": "record",
        "offset": evidence.offset,
        "format": evidence.format,
        "type": evidence.kind.label,
        "rid": evidence.rid,
        "xid": evidence.xid.hex() or None,
        "proved": evidence.is_proved,
        "problems": list(judgement.problems),
        "injectable": "no" if judgement.refusal else "forced" if judgement.problems else "yes",
        "refusal": judgement.refusal,
    }
    if evidence.dequeued_rid is not None:
        fields["dequeued_rid"] = evidence.dequeued_rid
    if evidence.kind is Kind.ENQUEUE and judgement.message is not None:
        values = message_object(queue, 0, "", None, judgement.message, BodyForm.TEXT)
        fields["message"] = {key: value for key, value in values.items() if key not in _REDUNDANT}
    return fields


# Fields of a message's object that the record's own object has, or that are unknown here.
_REDUNDANT = frozenset({"kind", "queue", "rid", "state", "xid"})


def injected_object(result: Injected) -> Object:
    """The result for an entry that was to be injected."""
    return {
        "kind": "injected" if result.failure is None else "refused",
        "number": result.entry.number,
        "queue": result.queue,
        "rids": list(result.rids),
        "problems": list(result.problems),
        "failure": result.failure,
    }


# ---- text ----

MAX_ROWS: Final = 500  # of one table; a long list has several

_PREVIEW: Final = 300  # characters of a body
_MAX_HEADERS: Final = 40
_HEX_ROW: Final = 16


def _where(entry: Object) -> Text:
    return Text(f"{printable(entry['file'].rpartition('/')[2])} at 0x{entry['offset']:x}")


def _injected(entry: Object) -> Text:
    injected = entry["injected"]
    if injected is None:
        return Text("-")
    return Text("yes") if injected["is_known"] else Text("?", style="bold red")


def _what(entry: Object) -> Text:
    problem = entry["problem"]
    return Text(sentence(entry["what"])) if problem is None else Text(sentence(problem), style="bold red")


_COLUMNS: Final = (
    Column("ENTRY", lambda entry: str(entry["number"]), number=True),
    Column("QUEUE", lambda entry: Text(printable(entry["queue"])), folds=True),
    Column("RECORD", lambda entry: hexadecimal("rid")(entry) or "?", number=True),
    Column("BYTES", number("size"), number=True),
    Column("WHERE", _where, folds=True),
    Column("INJECTED", _injected),
    Column("WHAT", _what, folds=True),
)


def show_entry(console: Console, entry: QuarantineEntry, problem: str | None) -> None:
    """Print one entry, without its content."""
    rid = "" if entry.rid is None else f", record 0x{entry.rid:x}"
    _line(console, f"entry {entry.number}: queue {printable(entry.queue)}{rid}", "bold")
    _line(console, f"  {entry.size:,} bytes of {printable(entry.file)} at 0x{entry.offset:x}")
    _line(console, f"  {sentence(entry.what)}")
    if entry.injected is not None:
        _line(console, f"  {printable(injected_before(entry.injected))}", "yellow")
    if problem is not None:
        _line(console, f"  {sentence(problem)}", "bold red")


def show_record(console: Console, fields: Object) -> None:
    """Print a record found in an entry, and the message in it."""
    rid = "" if fields["rid"] is None else f" 0x{fields['rid']:x}"
    proved = "intact" if fields["proved"] else "not intact"
    _line(console, f"  at 0x{fields['offset']:x}: {fields['type']} record{rid}, {fields['format']}, {proved}", "bold")
    if "dequeued_rid" in fields:
        _line(console, f"    removes record 0x{fields['dequeued_rid']:x}")
    for problem in fields["problems"]:
        _line(console, f"    but {sentence(problem)}", "yellow")
    if "message" in fields:
        _show_message(console, fields["message"])
    if fields["injectable"] == "no":
        _line(console, f"    cannot be injected: {sentence(fields['refusal'])}", "red")
    else:
        forced = " with --force" if fields["injectable"] == "forced" else ""
        _line(console, f"    can be injected{forced}", "green")


def _show_message(console: Console, message: dict[str, Any]) -> None:
    for name in ("exchange", "routing_key", "message_id", "delivery_mode", "priority"):
        if message[name] not in (None, ""):
            _line(console, f"    {name.replace('_', ' '):14} {printable(str(message[name]))}")
    for name, value in message["properties"].items():
        if value is not None:
            _line(console, f"    {name.replace('_', ' '):14} {printable(str(value), _PREVIEW)}")
    headers = list(message["headers"].items())
    for name, value in headers[:_MAX_HEADERS]:
        _line(console, f"    header         {printable(f'{name}={value}', _PREVIEW)}")
    if len(headers) > _MAX_HEADERS:
        _line(console, f"    … and {len(headers) - _MAX_HEADERS} more headers; --json shows all")
    body = message.get("body", "")
    shown = f"base64:{message['body_base64']}" if "body_base64" in message else body
    _line(console, f"    {message['body_length']:,} bytes of body  {printable(shown, _PREVIEW)}".rstrip())


def hex_lines(chunks: Iterable[bytes]) -> Iterable[str]:
    """Bytes as lines of sixteen: offset, hex, text."""
    at, rest = 0, b""
    for chunk in chunks:
        piece = rest + chunk
        whole = len(piece) - len(piece) % _HEX_ROW
        for start in range(0, whole, _HEX_ROW):
            yield _hex_line(at + start, piece[start : start + _HEX_ROW])
        at, rest = at + whole, piece[whole:]
    if rest:
        yield _hex_line(at, rest)


def _hex_line(at: int, row: bytes) -> str:
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
    return f"{at:08x}  {row.hex(' '):{3 * _HEX_ROW - 1}}  {text}"


def show_injected(console: Console, result: Injected) -> None:
    """Print the result for an entry that was to be injected."""
    name = f"entry {result.entry.number}"
    if result.failure is not None:
        _line(console, f"{name}: not injected: {sentence(result.failure)}", "red")
    else:
        rids = ", ".join(f"0x{rid:x}" for rid in (result.rids[:1] if len(result.rids) > 1 else result.rids))
        count = plural(len(result.rids), "message")
        upwards = " and those after it" if len(result.rids) > 1 else ""
        _line(
            console, f"{name}: {count} at the end of queue {printable(result.queue)}, record {rids}{upwards}", "green"
        )
    for problem in result.problems:
        _line(console, f"    {sentence(problem)}", "yellow")


def _line(console: Console, text: str, style: str = "") -> None:
    print_wrapped(console, text, style=style)


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
