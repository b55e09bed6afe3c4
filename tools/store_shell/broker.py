"""A running broker, asked by management (QMF version 2) and over sessions of the client.

    whole queues            purge, move: the broker's own methods, which keep everything of a message
    selected messages       a transaction of the client: taken, sent to the other queue, committed together

A message that is sent gets the exchange "" and the name of its queue as its routing key, all else stays; its record id
is new anyway, and not known to clients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from qstore.broker.client import Connection, Empty, Message, Session
from qstore.broker.client.address import queue_address
from qstore.broker.management.console import AgentError, Console, Data
from qstore.formats.errors import BrokerRecordError
from qstore.formats.wording import plural
from qstore.store.importing.intake import ImportedMessage
from qstore.store.inspect.offline import RecoveredTransaction
from qstore.store.journal.recovery import Outcome
from qstore.store.repair.stopped_messages import MAX_COPIED_BYTES, MAX_COPIED_MESSAGES
from qstore.tools.console.amounts import plain, reference
from qstore.tools.console.broker import BrokerOptions
from qstore.tools.console.rows import Object
from qstore.tools.dump.messages import BodyForm, decode_message, message_object
from qstore.tools.dump.rows import transaction_object
from qstore.tools.interchange.broker import client_message, stored_message
from qstore.tools.store_shell.place import Advance, Plan, ShellError, Wanted

_PREFETCH: Final = 500
PORTION: Final = 500  # messages of a transaction that moves or removes
_PORTION_BYTES: Final = 8 << 20
_STATES: Final = {"PREPARED": Outcome.IN_DOUBT}
_IN_A_STORE: Final = "the broker has to be stopped for that: give the directory of its store"
#: What a journal is called by management -> by `qstore-check`.
_JOURNAL: Final = {"directory": "path", "currentFileCount": "files", "dataFileSize": "file_size"}


class BrokerPlace:
    """A broker, connected until it is closed.

    Args:
        options: how to reach it.
        title: its URL, without a password.

    Raises:
        MessagingError: it cannot be reached, or has no management.
    """

    def __init__(self, options: BrokerOptions, title: str) -> None:
        self._held = contextlib.ExitStack()
        self.notices: list[str] = []
        self.title = title
        try:
            self._connection = self._held.enter_context(Connection(options.url, **options.connection))
            self._console = self._held.enter_context(Console(self._connection, timeout=options.timeout))
        except BaseException:
            self._held.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._held.close()

    # ---- lists ----

    def queues(self, exchange: str | None) -> Iterable[Object]:
        """The queues; only those bound to an exchange, if one is given. The console's own is left out."""
        bound = None if exchange is None else {each.get("queue") for each in self.bindings(exchange)}
        return [
            {
                "kind": "queue",
                "name": each["name"],
                "arguments": plain(each.get("arguments") or {}),
                "alternate_exchange": reference(each.get("altExchange")) or None,
                "messages": each["msgDepth"],
            }
            for each in self._console.query("queue")
            if each["name"] != self._console.queue and (bound is None or each["name"] in bound)
        ]

    def exchanges(self) -> Iterable[Object]:
        """The exchanges."""
        return [
            {
                "kind": "exchange",
                "name": each["name"],
                "type": each["type"],
                "durable": bool(each["durable"]),
                "arguments": plain(each.get("arguments") or {}),
                "alternate_exchange": reference(each.get("altExchange")) or None,
            }
            for each in self._console.query("exchange")
        ]

    def bindings(self, exchange: str | None) -> Iterable[Object]:
        """The bindings; only those of an exchange, if one is given."""
        if exchange is not None and exchange not in {each["name"] for each in self.exchanges()}:
            raise ShellError(f'there is no exchange "{exchange}"; list exchanges shows what there is')
        found = [
            {
                "kind": "binding",
                "exchange": reference(each.get("exchangeRef")),
                "queue": reference(each.get("queueRef")),
                "key": each.get("bindingKey") or "",
                "arguments": plain(each.get("arguments") or {}),
            }
            for each in self._console.query("binding")
        ]
        onward = [
            {
                "kind": "exchange_binding",
                "source": reference(each.get("exchangeRef")),
                "destination": reference(each.get("destinationRef")),
                "key": each.get("bindingKey") or "",
                "arguments": plain(each.get("arguments") or {}),
            }
            for each in self._objects("exchange_binding")
        ]
        own = self._console.queue
        return [
            *(each for each in found if each["queue"] != own and exchange in (None, each["exchange"])),
            *(each for each in onward if exchange in (None, each["source"])),
        ]

    def transactions(self) -> Iterable[Object]:
        """The branches that the broker knows. qpidd does not list them."""
        for each in self._objects("transaction"):
            outcome = _STATES.get(each["state"], Outcome.UNPREPARED)
            yield transaction_object(RecoveredTransaction(bytes.fromhex(each["xid"]), outcome, True, None, None))

    def journals(self) -> Iterable[Object]:
        """The journals, as the broker's agent lists them."""
        for each in self._objects("journal"):
            fields = {name: each.get(known) for known, name in _JOURNAL.items()}
            yield {"kind": "journal", "role": "queue", "queue": each.get("name"), **fields}

    def _objects(self, class_name: str) -> list[Data]:
        try:
            return list(self._console.query(class_name))
        except AgentError:  # the broker has no such class
            return []

    # ---- messages ----

    def full_name(self, name: str) -> str:
        """As `Place.full_name`: a broker's names are those that people see."""
        return name

    def check(self, wanted: Wanted) -> int:
        """The number of messages in a queue that is selected. Raises ShellError if a selection is not possible."""
        if wanted.rids:
            raise ShellError("a broker does not show record ids: select messages with where, or first=N")
        return int(self._queue(wanted.queue)["msgDepth"])

    def _queue(self, name: str) -> Data:
        found = next(iter(self._console.query("queue", where=["eq", "name", ["quote", name]])), None)
        if found is None:
            raise ShellError(f'there is no queue "{name}"; list queues shows what there is')
        return found

    def messages(self, wanted: Wanted, form: BodyForm) -> Iterable[Object]:
        """The messages that are selected, browsed. Those that consumers hold are not seen."""
        self.check(wanted)
        with self._connection.session() as session:
            for message in _received(session, wanted, browse=True):
                stored = stored_message(wanted.queue, message)
                fields = message_object(wanted.queue, 0, "outstanding", None, decode_message(stored.data), form)
                yield {**fields, "rid": None, "redelivered": stored.is_redelivered}

    # ---- changes ----

    def _counted(self, wanted: Wanted) -> tuple[int, int | None]:
        """The number of selected messages, and their bytes; None for a whole queue, whose messages are not read."""
        depth = self.check(wanted)
        if wanted.selector is None:
            return (depth if wanted.first is None else min(depth, wanted.first)), None
        count = size = 0
        with self._connection.session() as session:
            for message in _received(session, wanted, browse=True):
                count, size = count + 1, size + len(message.header) + len(message.body)
        return count, size

    def plan_copy(self, wanted: Wanted, target: str, *, removes: bool) -> Plan:
        """Copying or moving messages to the end of a queue."""
        count, size = self._counted(wanted)
        self._queue(target)
        verb = "move" if removes else "copy"
        if removes and target == wanted.queue:
            raise ShellError(f'queue "{target}" is both source and destination')
        text = f"{verb} {_amount(count, size)} from {wanted.text} to queue {target}"
        fields = {"change": verb, "queue": wanted.queue, "destination": target, "messages": count, "bytes": size}
        apply: Callable[[Advance], Mapping[str, Any]] = partial(self._copy, wanted, target)
        if removes:
            work = self._move_all if wanted.selector is None else self._take
            apply = partial(work, wanted, target, count)
        return Plan(text, fields, False, count, apply)

    def plan_removal(self, wanted: Wanted, verb: str) -> Plan:
        """Removing messages."""
        count, size = self._counted(wanted)
        fields = {"change": verb, "queue": wanted.queue, "messages": count, "bytes": size}
        apply: Callable[[Advance], Mapping[str, Any]] = partial(self._purge, wanted, count)
        if wanted.selector is not None:
            apply = partial(self._take, wanted, None, count)
        return Plan(f"{verb} {_amount(count, size)} from {wanted.text}", fields, True, count, apply)

    def _move_all(self, wanted: Wanted, target: str, count: int, _advance: Advance) -> Mapping[str, Any]:
        # Not those that have come since the plan was shown.
        arguments = {"srcQueue": wanted.queue, "destQueue": target, "qty": count, "filter": {}}
        self._console.call("broker", "queueMoveMessages", arguments)
        return {}

    def _purge(self, wanted: Wanted, count: int, _advance: Advance) -> Mapping[str, Any]:
        self._console.call(self._queue(wanted.queue), "purge", {"request": count, "filter": {}})
        return {}

    def _copy(self, wanted: Wanted, target: str, advance: Advance) -> Mapping[str, Any]:
        """Copy messages in one transaction."""
        count = size = 0
        with self._connection.session(transactional=True) as session, self._connection.session() as browsing:
            sender = session.sender(queue_address(target))
            for message in _received(browsing, wanted, browse=True):
                count, size = count + 1, size + len(message.body)
                if count > MAX_COPIED_MESSAGES or size > MAX_COPIED_BYTES:
                    most = f"{MAX_COPIED_MESSAGES:,} messages and {MAX_COPIED_BYTES >> 20} MiB"
                    session.rollback()
                    raise ShellError(f"one copy has at most {most}: copy them in parts; nothing was changed")
                sender.send(_sendable(wanted.queue, message), sync=False)
            session.commit()
        advance(count)
        return {"messages": count}

    def _take(self, wanted: Wanted, target: str | None, count: int, advance: Advance) -> Mapping[str, Any]:
        """Move or remove this many messages, in transactions."""
        done = size = uncommitted = 0
        with self._connection.session(transactional=True) as session:
            sender = None if target is None else session.sender(queue_address(target))
            for message in _received(session, wanted, browse=False, limit=count):
                if sender is not None:
                    sender.send(_sendable(wanted.queue, message), sync=False)
                session.acknowledge(message, sync=False)
                uncommitted, size = uncommitted + 1, size + len(message.body)
                if uncommitted >= PORTION or size >= _PORTION_BYTES:
                    session.commit()
                    advance(uncommitted)
                    done, size, uncommitted = done + uncommitted, 0, 0
            session.commit()
            advance(uncommitted)
        return {"messages": done + uncommitted}

    def plan_message(self, message: ImportedMessage) -> Plan:
        """Adding a message."""
        self._queue(message.queue)

        def apply(_advance: Advance) -> Mapping[str, Any]:
            with self._connection.session() as session:
                session.sender(queue_address(message.queue)).send(client_message(message))
            return {}

        text = f"add {_amount(1, len(message.data))} to queue {message.queue}"
        fields = {"change": "inject", "destination": message.queue, "messages": 1, "bytes": len(message.data)}
        return Plan(text, fields, False, 1, apply)

    def plan_quarantine(self, directory: str | None, numbers: list[int], target: str | None) -> Plan:  # noqa: ARG002
        """Not possible."""
        raise ShellError(f"messages of a quarantine are added to a store: {_IN_A_STORE}")

    def plan_resolution(self, xid: bytes, *, commits: bool) -> Plan:
        """Deciding a branch in doubt."""
        found = next((each for each in self._objects("transaction") if each["xid"] == xid.hex()), None)
        if found is None or found["state"] not in _STATES:
            raise ShellError(f"there is no transaction {xid.hex()} in doubt; list transactions shows what there is")

        def apply(_advance: Advance) -> Mapping[str, Any]:
            self._console.call(found, "commit" if commits else "rollback")
            return {}

        fields = {"change": "resolve", "xid": xid.hex(), "commits": commits}
        return Plan(f"{'commit' if commits else 'roll back'} transaction {xid.hex()}", fields, True, 1, apply)


def _received(session: Session, wanted: Wanted, *, browse: bool, limit: int | None = None) -> Iterator[Message]:
    """The messages that are selected, browsed or taken, up to a limit."""
    options: dict[str, Any] = {"mode": "browse" if browse else "consume"}
    if wanted.selector is not None:
        options["link"] = {"selector": wanted.selector.text}
    left = min(each for each in (wanted.first, limit, 1 << 62) if each is not None)
    # What is prefetched but not needed would go back to the queue: not more than that is asked for.
    receiver = session.receiver(queue_address(wanted.queue, options), capacity=_PREFETCH if browse else 0)
    while left:
        try:
            yield receiver.fetch(0)
        except Empty:
            break
        left -= 1
    if browse:
        receiver.close()


def _sendable(queue: str, message: Message) -> Message:
    try:
        return client_message(stored_message(queue, message))
    except BrokerRecordError as error:
        text = f"a message cannot be sent again: {error.what}; nothing of this transaction was done"
        raise ShellError(text) from None


def _amount(count: int, size: int | None) -> str:
    return plural(count, "message") + ("" if size is None else f" ({size:,} bytes)")
