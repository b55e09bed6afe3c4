"""`qstore-generate`: create a fleet of stores with known content.

Exit codes: 0 the fleet is complete, 2 the command line is unusable, or the fleet cannot be created.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.text import Text

from qstore import __version__
from qstore.formats.wording import plural
from qstore.store.errors import StoreError, advice
from qstore.store.key_value import CatalogueError
from qstore.tools.console.amounts import human, parse_amount
from qstore.tools.console.command import DRY_RUN, JSON, SETTINGS, PathName, fail, failing, private_files, run
from qstore.tools.console.progress import writing_progress
from qstore.tools.console.rows import MAX_SHOWN, Column, number, plain_console, print_grid, print_json, print_rest
from qstore.tools.console.workers import WorkerKilledError
from qstore.tools.generate.fleet import DamageKind, FleetSpec, PlanError, StoreFormat, parse_sizes, parse_spread
from qstore.tools.generate.make import MANIFEST, Fields, check_place, make_fleet, planned_fields

_PROGRAM: Final = "qstore-generate"
_MESSAGES: Final = 10_000  # default number of messages in each store
_MAX_STORES: Final = 100_000
_MAX_QUEUES: Final = 9999
_MAX_IN_DOUBT: Final = 500  # capacity of a prepared list of default size
_Value = TypeVar("_Value")

_EPILOG = """
\b
Examples:
qstore-generate /tmp/fleet                                   one store with 10 queues and 10,000 messages
qstore-generate /tmp/fleet --stores 100 --messages 50000 --queues 20 --jobs 4
qstore-generate /srv/fleet --bytes 4GiB --stores 8           4 GiB of journals in total
qstore-generate /srv/fleet --bytes 4GiB --dry-run            show the amount only
qstore-generate /tmp/fleet --format legacystore --size lognormal:2K,1.2 --spread zipf:1.3
qstore-generate /tmp/fleet --stores 20 --damage 0.05 --damage-kind flip --damage-kind missing --seed 7
qstore-generate /tmp/fleet --num-jfiles 8 --jfile-size-pgs 1 --dequeued 0.95    rings that wrap around
jq -c 'select(.kind == "message")' /tmp/fleet/STORE-0001.jsonl                  the content of a store

\b
OUT/STORE-0001/        a store, as a broker's crash would leave it
OUT/STORE-0001.jsonl   its content, one JSON object per line (kinds queue, message, transaction, damage, store):
                       messages in delivery order, planted damage with file and offset
OUT/MANIFEST.jsonl     an index of all stores, written last: without it the fleet is incomplete
The same options and seed produce the same bytes, except for RocksDB's files (same entries) and the info files of
legacystores, which contain their directory and the local time.
For other tools name the stores as OUT/STORE-*/ with the final slash: the lists are next to them.

\b
SIZES:   a fixed size (1024), uniform:100-4K or lognormal:MEDIAN,SIGMA.
--spread of messages over queues: zipf:EXPONENT, equal, or weights (5,3,1).
Exit codes: 0 the fleet is complete, 2 the command line is unusable, or the fleet cannot be created, 130 interrupted
by Ctrl-C.
"""


def _parsed(parse: Callable[[str], _Value]) -> Callable[[click.Context, click.Parameter, str | None], _Value | None]:
    """Return an option callback that parses the value with `parse`."""

    def callback(_: click.Context, __: click.Parameter, text: str | None) -> _Value | None:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


_SHARE: Final = click.FloatRange(0, 1)


@click.command(_PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("directory", metavar="OUT", type=PathName(readable=False))
@click.option("--stores", type=click.IntRange(1, _MAX_STORES), default=1, show_default=True, help="Number of stores.")
@click.option(
    "--format",
    "format_",
    type=click.Choice([each.value for each in StoreFormat]),
    default=StoreFormat.QSTORE.value,
    show_default=True,
    help="Store format: qstore's own, or one of qpidd's.",
)
@click.option(
    "--queues",
    type=click.IntRange(1, _MAX_QUEUES),
    default=10,
    show_default=True,
    help="Number of queues in each store.",
)
@click.option(
    "--messages", type=click.IntRange(0), help=f"Number of messages sent in each store.  [default: {_MESSAGES}]"
)
@click.option(
    "--bytes",
    "total_bytes",
    metavar="SIZE",
    callback=_parsed(parse_amount),
    help="Total size of all journals; instead of --messages.",
)
@click.option(
    "--size",
    "sizes",
    metavar="SIZES",
    default="1024",
    show_default=True,
    callback=_parsed(parse_sizes),
    help="Size of message bodies: fixed, uniform:MIN-MAX or lognormal:MEDIAN,SIGMA.",
)
@click.option(
    "--spread",
    default="zipf:1",
    show_default=True,
    callback=_parsed(parse_spread),
    help="Distribution of messages over queues: zipf:EXPONENT, equal, or weights (5,3,1).",
)
@click.option(
    "--dequeued", type=_SHARE, default=0.5, show_default=True, help="Share of the messages that are dequeued."
)
@click.option(
    "--transactions",
    type=_SHARE,
    default=0.1,
    show_default=True,
    help="Share of the messages that are sent in transactions.",
)
@click.option(
    "--aborted", type=_SHARE, default=0.2, show_default=True, help="Share of the transactions that are aborted."
)
@click.option(
    "--in-doubt",
    type=click.IntRange(0, _MAX_IN_DOUBT),
    default=0,
    show_default=True,
    help="Number of transactions in doubt in each store.",
)
@click.option(
    "--exchanges",
    type=click.IntRange(0, 99),
    default=2,
    show_default=True,
    help="Number of durable exchanges in each store.",
)
@click.option("--num-jfiles", type=click.IntRange(4, 64), help="Number of files of each journal.  [default: as needed]")
@click.option(
    "--jfile-size-pgs",
    type=click.IntRange(1, 32767),
    help="Size of each file in pages of 64 KiB.  [default: as needed]",
)
@click.option("--damage", type=_SHARE, default=0.0, show_default=True, help="Share of the journals that are damaged.")
@click.option(
    "--damage-kind",
    "damage_kinds",
    multiple=True,
    type=click.Choice([each.value for each in DamageKind]),
    help="Only this kind of damage. Repeatable.  [default: all]",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of all random numbers.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Number of worker processes.")
@DRY_RUN
@JSON
@click.version_option(__version__, prog_name=_PROGRAM)
def command(
    directory: str,
    *,
    format_: str,
    damage_kinds: tuple[str, ...],
    jobs: int,
    dry_run: bool,
    as_json: bool,
    **parameters: Any,
) -> None:
    """Create a fleet of stores with known content in OUT, which must be empty or not exist.

    Meant for tests, benchmarks and capacity planning.
    """
    if parameters["messages"] is not None and parameters["total_bytes"] is not None:
        raise click.UsageError("--messages and --bytes cannot be combined")
    if parameters["total_bytes"] is None and parameters["messages"] is None:
        parameters["messages"] = _MESSAGES
    kinds = tuple(dict.fromkeys(map(DamageKind, damage_kinds))) or tuple(DamageKind)
    spec = FleetSpec(format=StoreFormat(format_), damage_kinds=kinds, **parameters)
    began = time.monotonic()
    try:
        planned = list(planned_fields(spec))
        if dry_run:
            _show(planned, None, as_json=as_json, began=began)
            return
        check_place(directory, planned)
        with (
            private_files(),
            writing_progress("writing stores", sum(each["journal_bytes"] for each in planned)) as written,
        ):
            made = list(make_fleet(spec, directory, jobs, written))
    except (PlanError, StoreError, CatalogueError) as error:
        fail(_PROGRAM, str(error) + _left(directory))
    except WorkerKilledError:
        fail(_PROGRAM, f"a process that was creating a store was killed, or ran out of memory{_left(directory)}")
    except OSError as error:
        fail(_PROGRAM, f"{error.filename or directory}: {error.strerror or error}{advice(error)}{_left(directory)}")
    except KeyboardInterrupt as error:
        error.add_note(_left(directory).removeprefix("; ") or f"{directory}: nothing was written")
        raise
    _show(made, directory, as_json=as_json, began=began)


def _left(directory: str) -> str:
    """Advice about an incomplete fleet; empty if nothing was written."""
    try:
        names = {entry.name for entry in Path(directory).iterdir()}
    except OSError:
        return ""
    if MANIFEST in names or not any(name.startswith("STORE-") for name in names):
        return ""
    return f"; {directory} has no {MANIFEST}, so the fleet is incomplete: remove it, or choose another directory"


def _show(stores: list[Fields], directory: str | None, *, as_json: bool, began: float) -> None:
    with failing(_PROGRAM):
        if as_json:
            print_json(stores)
        elif directory is None:
            show_planned(plain_console(), stores)
        else:
            show_made(plain_console(), directory, stores, time.monotonic() - began)


# ---- the report ----


def _in_doubt(store: Fields) -> str:
    return f"{store['in_doubt_enqueues'] + store['in_doubt_dequeues']:,}"


_STORE: Final = Column("STORE", lambda store: store["name"])
_QUEUES: Final = Column("QUEUES", number("queues"), number=True)
_JOURNALS: Final = Column("BYTES OF JOURNALS", lambda store: human(store["journal_bytes"]), number=True)
_MADE: Final = (
    _STORE,
    _QUEUES,
    Column("SENT", number("sent"), number=True),
    Column("DEQUEUED", number("taken"), number=True),
    Column("OUTSTANDING", number("outstanding"), number=True),
    Column("IN DOUBT", _in_doubt, number=True),
    Column("DAMAGE", number("damage"), number=True),
    Column("TORN", number("torn"), number=True),
    _JOURNALS,
)
_PLANNED: Final = (
    _STORE,
    _QUEUES,
    Column("MESSAGES (APPROX.)", number("expected_messages"), number=True),
    Column("DAMAGE (MAX.)", number("damage"), number=True),
    _JOURNALS,
)


def show_made(console: Console, directory: str, stores: Sequence[Fields], seconds: float) -> None:
    """Print what was created."""
    size = sum(store["journal_bytes"] for store in stores)
    rate = f"{human(int(size / seconds))}/s" if seconds > 0 else "immediately"
    _show_table(console, _MADE, stores, f"{human(size)} of journals in {directory} in {seconds:.1f} s ({rate})")


def show_planned(console: Console, stores: Sequence[Fields]) -> None:
    """Print what would be created."""
    size = sum(store["journal_bytes"] for store in stores)
    _show_table(console, _PLANNED, stores, f"{size:,} bytes of journals ({human(size)}), nothing written")


def _show_table(console: Console, columns: Sequence[Column], stores: Sequence[Fields], rest: str) -> None:
    print_grid(console, columns, stores[:MAX_SHOWN])
    print_rest(console, len(stores), "stores")
    console.print(Text(f"{plural(len(stores), 'store')}, {rest}"))


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
