"""The lists of `qpid-stat`: one table for each, with the columns of the original.

A row is of one object, or of a subscription with its session, queue and connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from qstore.broker.management.console import Console, Data
from qstore.tools.console.tables import Column
from qstore.tools.management.amounts import compact, duration, plain, reference, shown
from qstore.tools.management.listing import json_object, print_json, print_listing, sorted_rows


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
