"""`qstore-generate`: make a fleet of stores with known content.

Exit codes: 0 the fleet is made, 2 the command line cannot be used, or the fleet cannot be made.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from store.errors import StoreError, advice
from store.key_value import CatalogueError
from tools.check.report import plain_console
from tools.console.json_lines import JsonLines
from tools.console.progress import writing_progress
from tools.entry import PathName, distribution_version, fail, failing, private_files, run
from tools.generate.fleet import DamageKind, FleetSpec, PlanError, StoreFormat
from tools.generate.make import Fields
from tools.generate.report import show_made, show_planned
from tools.generate.run import MANIFEST, MakerKilledError, check_place, make_fleet, planned_fields
from tools.generate.sizes import parse_sizes, parse_spread
from tools.size.amounts import parse_amount

_PROGRAM: Final = "qstore-generate"
_MESSAGES: Final = 10_000  # in each store, if nothing is said
_MOST_STORES: Final = 100_000
_MOST_QUEUES: Final = 9999
_MOST_IN_DOUBT: Final = 500  # that a prepared list of default size holds
_Value = TypeVar("_Value")

_EPILOG = """
\b
Examples:
qstore-generate /tmp/fleet                                   one store of 10 queues and 10,000 messages
qstore-generate /tmp/fleet --stores 100 --messages 50000 --queues 20 --jobs 4
qstore-generate /srv/fleet --bytes 4GiB --stores 8           journals of 4 GiB in sum
qstore-generate /srv/fleet --bytes 4GiB --dry-run            how much that would be
qstore-generate /tmp/fleet --format legacystore --size lognormal:2K,1.2 --spread zipf:1.3
qstore-generate /tmp/fleet --stores 20 --damage 0.05 --damage-kind flip --damage-kind missing --seed 7
qstore-generate /tmp/fleet --num-jfiles 8 --jfile-size-pgs 1 --dequeued 0.95    rings that go round
jq -c 'select(.kind == "message")' /tmp/fleet/STORE-0001.jsonl                  what is in it

\b
OUT/STORE-0001 is a store, as after a crash of its broker; OUT/STORE-0001.jsonl tells what is in it, a JSON object a
line (kinds queue, message, transaction, damage, store); OUT/MANIFEST.jsonl tells of all stores, and is written last.
The same options and the same seed make the same bytes, but for the catalogues of the format qstore (the same entries).

\b
Sizes: 1024, uniform:100-4K, lognormal:MEDIAN,SIGMA. Spread of messages over queues: zipf:EXPONENT, equal, 5,3,1.
Exit codes: 0 the fleet is made, 2 it cannot be made, or not so.
"""


def _parsed(parse: Callable[[str], _Value]) -> Callable[[click.Context, click.Parameter, str | None], _Value | None]:
    """Turns what an option says into its value."""

    def callback(_: click.Context, __: click.Parameter, text: str | None) -> _Value | None:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


_SHARE: Final = click.FloatRange(0, 1)


@click.command(_PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", metavar="OUT", type=PathName(readable=False))
@click.option("--stores", type=click.IntRange(1, _MOST_STORES), default=1, show_default=True, help="How many.")
@click.option(
    "--format",
    "format_",
    type=click.Choice([each.value for each in StoreFormat]),
    default=StoreFormat.QSTORE.value,
    show_default=True,
    help="Of the stores: this program's own, or one of qpidd's.",
)
@click.option("--queues", type=click.IntRange(1, _MOST_QUEUES), default=10, show_default=True, help="In each store.")
@click.option("--messages", type=click.IntRange(0), help=f"Sent in each store.  [default: {_MESSAGES}]")
@click.option(
    "--bytes", "total_bytes", metavar="SIZE", callback=_parsed(parse_amount), help="Of all journals; instead of that."
)
@click.option(
    "--size",
    "sizes",
    metavar="SIZES",
    default="1024",
    show_default=True,
    callback=_parsed(parse_sizes),
    help="Of the messages' bodies.",
)
@click.option(
    "--spread", default="zipf:1", show_default=True, callback=_parsed(parse_spread), help="Of messages over queues."
)
@click.option("--dequeued", type=_SHARE, default=0.5, show_default=True, help="Share of the messages taken again.")
@click.option("--transactions", type=_SHARE, default=0.1, show_default=True, help="Share of the messages sent in some.")
@click.option("--aborted", type=_SHARE, default=0.2, show_default=True, help="Share of the transactions.")
@click.option("--in-doubt", type=click.IntRange(0, _MOST_IN_DOUBT), default=0, show_default=True, help="In each store.")
@click.option("--exchanges", type=click.IntRange(0, 99), default=2, show_default=True, help="Durable, in each store.")
@click.option("--num-jfiles", type=click.IntRange(4, 64), help="Files of a journal.  [default: as needed]")
@click.option("--jfile-size-pgs", type=click.IntRange(1, 32767), help="Size of a file in 64 KiB.  [default: as needed]")
@click.option("--damage", type=_SHARE, default=0.0, show_default=True, help="Share of the journals that are damaged.")
@click.option(
    "--damage-kind",
    "damage_kinds",
    multiple=True,
    type=click.Choice([each.value for each in DamageKind]),
    help="Only these, several times.  [default: all]",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of all random numbers.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes.")
@click.option("--dry-run", is_flag=True, help="Show how much it would be; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, instead of a table.")
@click.version_option(distribution_version(), prog_name=_PROGRAM)
def command(
    directory: str,
    *,
    format_: str,
    damage_kinds: tuple[str, ...],
    jobs: int,
    dry_run: bool,
    as_json: bool,
    **wishes: Any,
) -> None:
    """Make a fleet of stores with known content in OUT, which is not there or empty.

    For tests, for benchmarks, and to plan capacity.
    """
    if wishes["messages"] is not None and wishes["total_bytes"] is not None:
        raise click.UsageError("--messages and --bytes contradict each other; give one of them")
    if wishes["total_bytes"] is None and wishes["messages"] is None:
        wishes["messages"] = _MESSAGES
    kinds = tuple(dict.fromkeys(map(DamageKind, damage_kinds))) or tuple(DamageKind)
    spec = FleetSpec(format=StoreFormat(format_), damage_kinds=kinds, **wishes)
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
    except (PlanError, StoreError, CatalogueError, MakerKilledError) as error:
        fail(_PROGRAM, str(error) + _left(directory))
    except OSError as error:
        fail(_PROGRAM, f"{error.filename or directory}: {error.strerror or error}{advice(error)}{_left(directory)}")
    except KeyboardInterrupt as error:
        error.add_note(_left(directory).removeprefix("; ") or f"{directory}: nothing was written")
        raise
    _show(made, directory, as_json=as_json, began=began)


def _left(directory: str) -> str:
    """What to say of a fleet that is not whole, where something of it is there."""
    try:
        names = {entry.name for entry in Path(directory).iterdir()}
    except OSError:
        return ""
    if MANIFEST in names or not any(name.startswith("STORE-") for name in names):
        return ""
    return f"; {directory} has no {MANIFEST}, so it is not a whole fleet: remove it, or name another directory"


def _show(stores: list[Fields], directory: str | None, *, as_json: bool, began: float) -> None:
    with failing(_PROGRAM):
        if as_json:
            output = JsonLines(sys.stdout.buffer)
            for store in stores:
                output.show(store)
            output.flush()
        elif directory is None:
            show_planned(plain_console(), stores)
        else:
            show_made(plain_console(), directory, stores, time.monotonic() - began)


def main() -> None:
    """The console script."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
