"""`qstore-replay`: put messages of a store, an export or a backup on a queue again, from one on, in the same order.

Exit codes: 0 they were put there, or had been before, 1 damage was found, or messages cannot be sent, 2 the source, the
destination or the command line is unusable.
"""

from __future__ import annotations

import time
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import MessagingError
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.selectors.selector import Selector, compile_selector
from qstore.formats.wording import plural
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError, advice
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.log_lines import Level, LogLine
from qstore.store.repair.stopped_messages import store_of_version_2
from qstore.tools.console.broker_options import broker_url
from qstore.tools.console.moments import Moment
from qstore.tools.console.tables import note
from qstore.tools.console.text import printable, unescape_name
from qstore.tools.dump.selection import parse_rids
from qstore.tools.entry import EXIT_DAMAGE, PathName, failing, private_files, run
from qstore.tools.interchange.applying import import_into_broker, import_into_store
from qstore.tools.interchange.items import InterchangeError
from qstore.tools.replay.choice import Choice
from qstore.tools.replay.report import ReplayReport
from qstore.tools.replay.sources import Replay, open_replay

_PROGRAM: Final = "qstore-replay"

_EPILOG = """
\b
Examples:
qstore-replay /var/lib/qstore /var/lib/qstore --queue orders --to orders.again --from-rid 0x4711
qstore-replay /var/lib/qstore amqp://localhost --queue orders --since 2026-11-24T08:00:00Z --rate 500
qstore-replay orders.tar.zst /var/lib/qstore --queue orders --from-header orderId=A-1001
qstore-replay /backup/qstore /var/lib/qstore --queue orders --from-id 59f19d71-aab1-5fbb-bf07-b4ac737133e8
qstore-replay /var/lib/qpidd amqp://guest/guest@localhost --queue orders --all --dry-run

\b
SOURCE is a stopped store of any format, a file that qstore-export wrote, or a place of qstore-backup. Of stores and
backups, messages that were dequeued count as long as the journal has not overwritten them (--outstanding: they do not).
DEST is a stopped qstore store, or a running broker. The replay begins with the first message that fulfils all --from
options and --since; those that follow it are put on the queue in the order of delivery, behind what it has, marked as
redelivered. Nothing is taken out of SOURCE.

\b
Into a store all of them take effect at once; into a broker, in transactions, and after a kill the same command goes on
where it was. The ledger of qstore-import knows what was replayed: the same replay does not take place twice, unless
--again is given. To replay a queue of a store into itself builds its journal anew, without what was dequeued: to keep
that, choose another queue with --to.

\b
Exit codes: 0 they were put there, or had been before, 1 damage was found, or messages cannot be sent to a broker, 2
SOURCE, DEST or the command line is unusable.
"""


class _Header(click.ParamType[tuple[str, str]]):
    """A header and its value."""

    name = "NAME=VALUE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return unescape_name(name), text


class _Rid(click.ParamType[int]):
    """A record id."""

    name = "RID"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            first, last = parse_rids(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if first != last:
            self.fail(f"{value!r} is not one record id", param, ctx)
        return first


@click.command(_PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="SOURCE", type=PathName(readable=False))
@click.argument("destination", metavar="DEST|URL", type=PathName(readable=False))
@click.option("--queue", required=True, metavar="NAME", help="The queue in SOURCE whose messages are replayed.")
@click.option(
    "--to", "target", metavar="NAME", help="The queue in DEST on which they are put.  [default: the same name]"
)
@click.option("--from-rid", "rid", type=_Rid(), help="Begin with this record id, or the next one.")
@click.option("--from-id", "message_id", metavar="ID", help="Begin with the message with this message id.")
@click.option("--from-header", "header", type=_Header(), help="Begin with the first message with this header.")
@click.option("--since", type=Moment(), help="Begin with the first message with a timestamp at or after this time.")
@click.option("--all", "everything", is_flag=True, help="Begin with the first message there is.")
@click.option("--until", type=Moment(), help="End before the first message with a later timestamp.")
@click.option("--selector", metavar="TEXT", help="Of these, only messages that this selector of JMS selects.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only so many messages.")
@click.option("--outstanding", is_flag=True, help="Only messages that are still in the queue, not dequeued ones.")
@click.option("--backup", metavar="ID", help="SOURCE is a place of backups: use this one.  [default: the latest]")
@click.option("--dry-run", is_flag=True, help="Show what would be done; write nothing.")
@click.option("--again", is_flag=True, help="Do it although it was done before.")
@click.option(
    "--rate", type=click.FloatRange(0), default=0, metavar="N", help="Into a broker: at most N messages a second."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a report.")
@click.option("-q", "--quiet", is_flag=True, help="Show nothing but notices and damage.")
@click.version_option(__version__, prog_name=_PROGRAM)
@click.pass_context
def command(context: click.Context, /, source: str, destination: str, **values: Any) -> None:
    """Put messages of the queue --queue in SOURCE on a queue in DEST again, in the order of delivery."""
    starts = [values[name] for name in ("rid", "message_id", "header", "since")]
    if values["everything"] is any(each is not None for each in starts):
        raise click.UsageError(
            "tell with which message to begin: --from-rid, --from-id, --from-header, --since, or --all."
        )
    broker = broker_url(destination)
    if values["rate"] and broker is None:
        raise click.UsageError("--rate applies to a running broker.")
    queue = unescape_name(values["queue"])
    target = queue if values["target"] is None else unescape_name(values["target"])
    choice = Choice(
        queue, target, values["rid"], values["message_id"], values["header"], values["since"],
        values["until"], _selector(values["selector"]), values["limit"],
    )  # fmt: skip
    began, dry_run, again = time.monotonic(), values["dry_run"], values["again"]
    failures = (UnusableInputError, InterchangeError, StoreError, MessagingError)
    with failing(_PROGRAM, *failures, advise=advice), private_files():
        opened = open_replay(source, destination, choice, backup=values["backup"], is_whole=not values["outstanding"])
        with opened as replay:
            left_out = 0
            if broker is not None:
                sent = import_into_broker(replay.read, broker.text, rate=values["rate"], dry_run=dry_run, again=again)
                past, left_out = sent.past, sent.work.left_out
            else:
                store_of_version_2(tool_environment(), destination, __version__)
                past = import_into_store(replay.read, destination, dry_run=dry_run, again=again, log=_warn).past
    where = destination if broker is None else broker.shown
    report = ReplayReport(choice, replay.replayed, where, past, dry_run, left_out, time.monotonic() - began)
    _tell(replay, left_out)
    with failing(_PROGRAM):
        if values["as_json"]:
            report.show_json()
        elif not values["quiet"]:
            report.show()
    context.exit(EXIT_DAMAGE if replay.damage or left_out else 0)


def _tell(replay: Replay, left_out: int) -> None:
    notices = list(replay.notices)
    if replay.replayed.expired:
        notices.append(f"{plural(replay.replayed.expired, 'message')} have expired: a broker will drop them")
    if left_out:
        notices.append(f"{plural(left_out, 'message')} cannot be decoded, and were not sent")
    for notice in notices:
        note("notice", notice)
    for damage in replay.damage:
        note("damage", f"{damage.where}: {damage.what}")


def _selector(text: str | None) -> Selector | None:
    try:
        return compile_selector(text) if text and text.strip() else None
    except InvalidArgumentError as error:
        raise click.BadParameter(f"this is not a selector{error}", param_hint="--selector") from None


def _warn(line: LogLine) -> None:
    if line.level >= Level.WARNING:
        click.echo(f"{_PROGRAM}: {printable(line.text)}", err=True)


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
