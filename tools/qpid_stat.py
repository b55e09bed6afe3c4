"""`qpid-stat`: statistics of a broker and its objects, compatible with the command of the Qpid project.

Exit codes: 0 fine, 1 failed, or the named queue or the access control does not exist, 2 invalid command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from qstore import __version__
from qstore.broker.management.console import Console, Data, NoObjectError
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.amounts import clock, compact, duration, full, plain, reference, shown
from qstore.tools.console.broker import (
    EXIT_CODES,
    BrokerOptions,
    broker_options,
    json_object,
    main_of,
    run_on_console,
)
from qstore.tools.console.command import EXIT_FAILED, JSON, SETTINGS, say
from qstore.tools.console.rows import Column, print_json, print_listing

# ---- lists: one table for each class, with the columns of the original ----
#
# A row is of one object, or of a subscription with its session, queue and connection.


class Field(NamedTuple):
    """A column: its title, its value of a row, the text of a value, and how it is shown (see `tables.Column`)."""

    title: str
    value: Callable[[Any], Any]
    cell: Callable[[Any], str] = shown
    number: bool = False
    spare: bool = False
    folds: bool = False

    @property
    def column(self) -> Column:
        """As a table has it."""
        return Column(self.title, number=self.number, spare=self.spare, folds=self.folds)


class View(NamedTuple):
    """A list.

    Attributes:
        title: above the table.
        rows: asks for them.
        fields: the columns.
        to_json: a row as JSON.
    """

    title: str
    rows: Callable[[Console], Iterable[Any]]
    fields: tuple[Field, ...]
    to_json: Callable[[Any], dict[str, Any]]


class Choice(NamedTuple):
    """Which rows are shown: sorted by the title of a column, and how many; None: as they are, and all."""

    sort_by: str | None = None
    is_increasing: bool = False
    limit: int | None = None
    is_json: bool = False


def show_view(console: Console, view: View, choice: Choice) -> None:
    """Print a list. Raises ValueError if there is no such column."""
    rows = list(view.rows(console))
    fields = view.fields
    described: list[tuple[list[Any], Any]] = []
    for row in rows:
        values = [field.value(row) for field in fields]
        cells = row if choice.is_json else [field.cell(value) for field, value in zip(fields, values, strict=True)]
        described.append((values, cells))
    columns = [field.column for field in fields]
    chosen = sorted_rows(columns, described, choice.sort_by, is_increasing=choice.is_increasing, limit=choice.limit)
    if choice.is_json:
        print_json(view.to_json(row) for row in chosen)
    else:
        print_listing(view.title, columns, chosen)


_Row = TypeVar("_Row")


def sorted_rows(
    columns: Sequence[Column],
    rows: Sequence[tuple[Sequence[Any], _Row]],
    by: str | None,
    *,
    is_increasing: bool,
    limit: int | None,
) -> list[_Row]:
    """Rows, sorted by a column and cut to a limit.

    Args:
        columns: the columns.
        rows: the values of each row, in the order of the columns, and the row.
        by: the title of a column, in any case; None: as they are.
        is_increasing: whether the smallest comes first.
        limit: number of rows; None for all.

    Raises:
        ValueError: there is no such column; the text is for the user.
    """
    if by is not None:
        titles = [column.title.lower() for column in columns]
        if by.lower() not in titles:
            raise ValueError(
                f"there is no column {by!r}; the columns are {', '.join(column.title for column in columns)}"
            )
        index = titles.index(by.lower())
        rows = sorted(rows, key=lambda row: _key(row[0][index]), reverse=not is_increasing)
    return [shown for _, shown in rows][:limit]


def _key(value: Any) -> tuple[int, float, str]:
    """Sorts numbers before texts, and what is not there first."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, (int, float)):
        return 1, float(value), ""
    return 2, 0.0, str(value)


def value(name: str) -> Callable[[Any], Any]:
    """What reads a value of an object; None if it has none."""

    def read(data: Any) -> Any:
        return data.get(name)

    return read


def yes(flag: Any) -> str:
    """A flag in a table: Y, or nothing."""
    return "Y" if flag else ""


def _number(title: str, name: str, *, spare: bool = False) -> Field:
    return Field(title, value(name), compact, number=True, spare=spare)


def _of_class(name: str) -> Callable[[Console], Iterable[Data]]:
    return lambda console: console.query(name)


def _since(when: Callable[[Data], int]) -> Callable[[Any], Any]:
    return lambda data: max(0, time.time_ns() - when(data))


CONNECTIONS: Final = View(
    "Connections",
    _of_class("connection"),
    (
        Field("connection", value("address"), folds=True),
        Field("cproc", value("remoteProcessName")),
        Field("cpid", value("remotePid"), spare=True),
        Field("mech", value("saslMechanism"), spare=True),
        Field("auth", value("authIdentity")),
        Field("connected", _since(lambda data: data.created), duration),
        Field("idle", _since(lambda data: data.updated), duration, spare=True),
        _number("msgIn", "msgsFromClient"),
        _number("msgOut", "msgsToClient"),
    ),
    json_object,
)

EXCHANGES: Final = View(
    "Exchanges",
    _of_class("exchange"),
    (
        Field("exchange", value("name"), folds=True),
        Field("type", value("type")),
        Field("dur", value("durable"), yes),
        _number("bind", "bindingCount"),
        _number("msgIn", "msgReceives"),
        _number("msgOut", "msgRoutes"),
        _number("msgDrop", "msgDrops"),
        _number("byteIn", "byteReceives", spare=True),
        _number("byteOut", "byteRoutes", spare=True),
        _number("byteDrop", "byteDrops", spare=True),
    ),
    json_object,
)

QUEUES: Final = View(
    "Queues",
    _of_class("queue"),
    (
        Field("queue", value("name"), folds=True),
        Field("dur", value("durable"), yes),
        Field("autoDel", value("autoDelete"), yes, spare=True),
        Field("excl", value("exclusive"), yes, spare=True),
        _number("msg", "msgDepth"),
        _number("msgIn", "msgTotalEnqueues"),
        _number("msgOut", "msgTotalDequeues"),
        _number("bytes", "byteDepth", spare=True),
        _number("bytesIn", "byteTotalEnqueues", spare=True),
        _number("bytesOut", "byteTotalDequeues", spare=True),
        _number("cons", "consumerCount"),
        _number("bind", "bindingCount"),
    ),
    json_object,
)


class _Subscription(NamedTuple):
    """A subscription with the objects to which it refers; empty ones for those that are gone meanwhile."""

    data: Data
    session: Mapping[str, Any]
    connection: Mapping[str, Any]


def _subscriptions(console: Console) -> Iterable[_Subscription]:
    sessions = {each.key: each.values for each in console.query("session")}
    connections = {each.key: each.values for each in console.query("connection")}
    for data in console.query("subscription"):
        session = sessions.get(reference(data.get("sessionRef")), {})
        yield _Subscription(data, session, connections.get(reference(session.get("connectionRef")), {}))


def _subscription_json(row: _Subscription) -> dict[str, Any]:
    more = {"connection": row.connection.get("address"), "unackedMessages": row.session.get("unackedMessages")}
    found = json_object(row.data)
    found.update(plain(more))
    return found


def _own(name: str) -> Callable[[Any], Any]:
    return lambda row: row.data.get(name)


SUBSCRIPTIONS: Final = View(
    "Subscriptions",
    _subscriptions,
    (
        Field("subscr", _own("name")),
        Field("queue", lambda row: reference(row.data.get("queueRef")), folds=True),
        Field("conn", lambda row: row.connection.get("address")),
        Field("procName", lambda row: row.connection.get("remoteProcessName"), spare=True),
        Field("procId", lambda row: row.connection.get("remotePid"), spare=True),
        Field("browse", _own("browsing"), yes, spare=True),
        Field("acked", _own("acknowledged"), yes, spare=True),
        Field("excl", _own("exclusive"), yes, spare=True),
        Field("creditMode", _own("creditMode"), spare=True),
        Field("delivered", _own("delivered"), compact, number=True),
        Field("sessUnacked", lambda row: row.session.get("unackedMessages"), compact, number=True),
    ),
    _subscription_json,
)


# ---- the broker, one queue, memory, access control ----

_ACL: Final = "org.apache.qpid.acl"

#: Row -> the statistics of messages and of bytes; an empty name for none.
_STATISTICS: Final[tuple[tuple[str, str, str], ...]] = (
    ("queue-depth", "msgDepth", "byteDepth"),
    ("total-enqueues", "msgTotalEnqueues", "byteTotalEnqueues"),
    ("total-dequeues", "msgTotalDequeues", "byteTotalDequeues"),
    ("persistent-enqueues", "msgPersistEnqueues", "bytePersistEnqueues"),
    ("persistent-dequeues", "msgPersistDequeues", "bytePersistDequeues"),
    ("transactional-enqueues", "msgTxnEnqueues", "byteTxnEnqueues"),
    ("transactional-dequeues", "msgTxnDequeues", "byteTxnDequeues"),
    ("flow-to-disk-depth", "msgFtdDepth", "byteFtdDepth"),
    ("flow-to-disk-enqueues", "msgFtdEnqueues", "byteFtdEnqueues"),
    ("flow-to-disk-dequeues", "msgFtdDequeues", "byteFtdDequeues"),
    ("acquires", "acquires", ""),
    ("releases", "releases", ""),
    ("discards-no-route", "discardsNoRoute", ""),
    ("discards-ttl-expired", "discardsTtl", ""),
    ("discards-limit-overflow", "discardsOverflow", ""),
    ("discards-ring-overflow", "discardsRing", ""),
    ("discards-lvq-replace", "discardsLvq", ""),
    ("discards-subscriber-reject", "discardsSubscriber", ""),
    ("discards-purged", "discardsPurge", ""),
    ("reroutes", "reroutes", ""),
    ("abandoned", "abandoned", ""),
    ("abandoned-via-alt", "abandonedViaAlt", ""),
)


_OF_BROKER: Final = frozenset(("discards-no-route", "abandoned", "abandoned-via-alt"))


def _columns(*titles: str, numbers: Sequence[str] = ()) -> list[Column]:
    return [Column(title, number=title in numbers) for title in titles]


def _print_statistics(title: str, data: Data, *, is_broker: bool) -> None:
    rows = [
        (name, full(data.get(messages)), full(data.get(octets)) if octets else "")
        for name, messages, octets in _STATISTICS
        if is_broker or name not in _OF_BROKER
    ]
    print_listing(title, _columns("Statistic", "Messages", "Bytes", numbers=("Messages", "Bytes")), rows)


def _blank() -> None:
    click.echo()


def show_broker(console: Console, *, is_json: bool) -> None:
    """The broker: what it has, and its totals."""
    broker = console.find("broker")
    counts = {name: sum(1 for _ in console.query(name)) for name in ("connection", "session", "exchange", "queue")}
    if is_json:
        print_json([json_object(broker) | {f"{name}Count": count for name, count in counts.items()}])
        return
    titles = ("uptime", "cluster", "connections", "sessions", "exchanges", "queues")
    row = (duration(broker.get("uptime")), "<standalone>", *map(str, counts.values()))
    print_listing("Broker Summary:", _columns(*titles), [row])
    _blank()
    _print_statistics("Aggregate Broker Statistics:", broker, is_broker=True)


def show_queue(console: Console, name: str, *, is_json: bool) -> bool:
    """One queue. Returns whether it exists."""
    try:
        queue = console.find(f"queue:{name}")
    except NoObjectError:
        return False
    if is_json:
        print_json([json_object(queue)])
        return True
    titles = ("Name", "Durable", "AutoDelete", "Exclusive", "FlowStopped", "FlowStoppedCount", "Consumers", "Bindings")
    flags = [yes(queue.get(each)) or "N" for each in ("durable", "autoDelete", "exclusive", "flowStopped")]
    counts = [shown(queue.get(each)) for each in ("flowStoppedCount", "consumerCount", "bindingCount")]
    cells = [shown(queue.get("name")), *flags, *counts]
    print_listing("Properties:", _columns(*titles), [cells])
    _blank()
    optional = [("arguments", shown(queue.get("arguments"))), ("alt-exchange", shown(queue.get("altExchange")))]
    print_listing("Optional Properties:", _columns("Property", "Value"), optional)
    _blank()
    _print_statistics("Statistics:", queue, is_broker=False)
    return True


def show_memory(console: Console, *, is_json: bool) -> None:
    """The memory of the broker's process."""
    for data in console.query("memory"):
        if is_json:
            print_json([json_object(data)])
            continue
        rows = [(shown(name), full(value)) for name, value in data.values.items() if name != "name"]
        print_listing("Broker Memory Statistics:", _columns("Statistic", "Value", numbers=("Value",)), rows)


#: Row -> the property of access control.
_ACL_ROWS: Final = (
    ("policy-file", "policyFile"),
    ("enforcing", "enforcingAcl"),
    ("has-transfer-acls", "transferAcl"),
    ("last-acl-load", "lastAclLoad"),
    ("acl-denials", "aclDenyCount"),
    ("connection-denials", "connectionDenyCount"),
    ("queue-quota-denials", "queueQuotaDenyCount"),
    ("max-connections", "maxConnections"),
    ("max-connections-per-ip", "maxConnectionsPerIp"),
    ("max-connections-per-user", "maxConnectionsPerUser"),
    ("max-queues-per-user", "maxQueuesPerUser"),
)


def show_acl(console: Console, *, is_json: bool) -> bool:
    """Access control. Returns whether the broker has it."""
    objects = list(console.query("acl", package=_ACL))
    for data in objects:
        if is_json:
            print_json([json_object(data)])
            continue
        rows = [(title, _acl_cell(data.get(name), is_time=name == "lastAclLoad")) for title, name in _ACL_ROWS]
        print_listing("ACL Policy Statistics:", _columns("Statistic", "Value"), rows)
    return bool(objects)


def _acl_cell(value: Any, *, is_time: bool) -> str:
    if isinstance(value, bool):
        return yes(value) or "N"
    return clock(value, is_long=True) if is_time and isinstance(value, int) else full(value)


PROGRAM: Final = "qpid-stat"

_EPILOG = f"""
\b
Examples:
qpid-stat -g                             the broker's totals
qpid-stat -q -S msg -L 10                the ten queues with the most messages
qpid-stat -q orders                      one queue
qpid-stat -c -b user/password@host:5672
qpid-stat -u --json | jq .queueRef

\b
{EXIT_CODES}
"""


class _Option(NamedTuple):
    """An option that chooses what is shown: its view, or None for one of `details`."""

    flags: tuple[str, ...]
    view: View | None
    help: str


_SHOWN: Final = {
    "general": _Option(("-g", "--general"), None, "Show the broker."),
    "connections": _Option(("-c", "--connections"), CONNECTIONS, "Show connections."),
    "exchanges": _Option(("-e", "--exchanges"), EXCHANGES, "Show exchanges."),
    "queues": _Option(("-q", "--queues"), QUEUES, "Show queues, or the one that is named."),
    "subscriptions": _Option(("-u", "--subscriptions"), SUBSCRIPTIONS, "Show subscriptions."),
    "memory": _Option(("-m", "--memory"), None, "Show the memory of the broker's process."),
    "acl": _Option(("--acl",), None, "Show access control."),
}


def _choices(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, option in reversed(_SHOWN.items()):
        function = click.option(*option.flags, name, is_flag=True, help=option.help)(function)
    return function


@click.command(PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("name", required=False)
@_choices
@click.option("-S", "--sort-by", metavar="COLUMN", help="Sort by the column with this heading.")
@click.option("-I", "--increasing", is_flag=True, help="Sort from the smallest to the largest value.")
@click.option("-L", "--limit", type=click.IntRange(1), metavar="N", help="Show at most N rows.")
@JSON
@broker_options
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Show statistics of a broker.

    NAME is a queue, with -q.
    """
    broker = BrokerOptions.take(values)
    wanted = [name for name in _SHOWN if values[name]]
    if not wanted:
        raise click.UsageError("choose what to show: -g, -c, -e, -q, -u, -m or --acl")
    if values["name"] is not None and "queues" not in wanted:
        raise click.UsageError("a name is for -q only")
    choice = Choice(values["sort_by"], values["increasing"], values["limit"], values["as_json"])
    missing: list[str] = []

    def work(console: Console) -> None:
        for name in wanted:
            view = _SHOWN[name].view
            if view is None or (name == "queues" and values["name"] is not None):
                missing.extend(_show_details(console, name, values["name"], is_json=choice.is_json))
                continue
            try:
                show_view(console, view, choice)
            except ValueError as error:
                missing.append(str(error))

    code = run_on_console(PROGRAM, broker, work)
    for text in missing:
        say(PROGRAM, text)
    context.exit(EXIT_FAILED if missing else code)


def _show_details(console: Console, what: str, queue: str, *, is_json: bool) -> list[str]:
    """Show one of the details. Returns what does not exist."""
    if what == "general":
        show_broker(console, is_json=is_json)
    elif what == "memory":
        show_memory(console, is_json=is_json)
    elif what == "acl" and not show_acl(console, is_json=is_json):
        return ["ACL Policy Module is not installed"]
    elif what == "queues" and not show_queue(console, queue, is_json=is_json):
        return [f"Queue '{queue}' not found"]
    return []


main = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
