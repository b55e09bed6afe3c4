"""Exports from a running broker: its durable topology, as management tells it, and the messages of its queues.

Messages are browsed, and stay; or taken: they are acknowledged when the file is complete and synced, so that a kill
leaves them in the broker. Those that others have acquired, and those of branches in doubt, are not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from qstore.broker.client import Connection, Empty, Session
from qstore.broker.client.address import queue_address
from qstore.broker.management.console import Console, Data
from qstore.broker.model.arguments import ALTERNATE, as_text
from qstore.broker.protocols.amqp_0_9_1.arguments import exchange_name
from qstore.formats.broker_records.exchange_bindings import ExchangeBinding, general_of
from qstore.formats.broker_records.topology import Binding, Exchange, Queue
from qstore.formats.values import TypedMap, typed_map
from qstore.store.importing.ledger import LEDGER_QUEUES
from qstore.tools.interchange.broker_messages import stored_message
from qstore.tools.interchange.exporting import ExportSelection
from qstore.tools.interchange.items import ExportWriter, InterchangeError
from qstore.tools.management.amounts import reference

_PREFETCH: Final = 1000
_ONWARD: Final = "exchange_binding"


class BrokerExport:
    """The export of a running broker.

    Args:
        connection: an open connection to it.
        selection: what is exported.
        take: whether messages are removed, by `taken`.

    Attributes:
        counts: queue -> number of messages written.
    """

    def __init__(self, connection: Connection, selection: ExportSelection, *, take: bool) -> None:
        self._selection, self._take = selection, take
        self._session: Session = connection.session()
        with Console(connection) as console:
            objects = {kind: list(console.query(kind)) for kind in ("queue", "exchange", "binding")}
            is_known = any(each.name == _ONWARD for each in console.classes())  # qpidd has none
            objects[_ONWARD] = list(console.query(_ONWARD)) if is_known else []
        self._objects = objects
        names = [queue["name"] for queue in objects["queue"] if self._is_chosen(queue)]
        unknown = selection.records.queues - set(names)
        if unknown:
            raise InterchangeError(f'there is no queue "{min(unknown)}" in the broker')
        self.counts: dict[str, int] = dict.fromkeys(names, 0)

    def _is_chosen(self, queue: Data) -> bool:
        if self._selection.records.queues:
            return self._selection.records.has_queue(queue["name"])
        return bool(queue["durable"]) and not queue.get("exclusive") and not queue["name"].startswith(LEDGER_QUEUES)

    def write(self, writer: ExportWriter, advance: Callable[[int], None]) -> None:
        """Write everything but beginning and end. Raises OSError, InterchangeError, MessagingError."""
        if self._selection.topology:
            self._topology(writer)
        if self._selection.messages:
            for name in self.counts:
                self._messages(name, writer, advance)

    def _topology(self, writer: ExportWriter) -> None:
        exchanges = {each["name"]: each for each in self._objects["exchange"] if each["durable"] and each["name"]}
        for name, each in exchanges.items():
            arguments = _table(each)
            alternate = reference(each.get("altExchange")) or _awaited(arguments)
            writer.exchange(Exchange(name, True, each["type"], arguments, alternate, bool(each.get("autoDelete"))))
        for each in self._objects["queue"]:
            if each["name"] in self.counts:
                alternate = reference(each.get("altExchange"))
                writer.queue(Queue(each["name"], _table(each), alternate, "", bool(each.get("autoDelete"))))
        for each in self._objects["binding"]:
            exchange, queue = reference(each.get("exchangeRef")), reference(each.get("queueRef"))
            if exchange in exchanges and queue in self.counts:
                writer.binding(exchange, Binding(0, queue, each.get("bindingKey") or "", _table(each)))

        for each in self._objects[_ONWARD] if not self._selection.records.queues else ():
            source, destination = reference(each.get("exchangeRef")), reference(each.get("destinationRef"))
            if source in exchanges and destination in exchanges:
                bound = ExchangeBinding(source, destination, each.get("bindingKey") or "", _table(each))
                writer.other(general_of(bound))

    def _messages(self, name: str, writer: ExportWriter, advance: Callable[[int], None]) -> None:
        options: dict[str, Any] = {"mode": "consume" if self._take else "browse"}
        if self._selection.selector is not None:
            options["link"] = {"selector": self._selection.selector.text}
        receiver = self._session.receiver(queue_address(name, options), capacity=_PREFETCH)
        for message in _until_empty(receiver.fetch):
            stored = stored_message(name, message)
            if self._selection.is_in_time(stored.data):
                writer.message(stored)
                self.counts[name] += 1
                advance(1)
        if not self._take:
            receiver.close()

    def taken(self) -> None:
        """Remove what was taken from the broker: the file is complete. Raises MessagingError."""
        if self._take:
            self._session.acknowledge()
        self._session.close()


def _awaited(arguments: TypedMap) -> str:
    """The name of an alternate exchange that an exchange was declared with over AMQP 0-9-1, and that does not exist."""
    typed = arguments.get(ALTERNATE)
    value = None if typed is None else as_text(typed.value)
    return exchange_name(value) if isinstance(value, str) else ""


def _until_empty(fetch: Callable[[float], Any]) -> Iterable[Any]:
    while True:
        try:
            yield fetch(0)
        except Empty:
            return


def _table(data: Data) -> Any:
    return typed_map(data.get("arguments") or {})
