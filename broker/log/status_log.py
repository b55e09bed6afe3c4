"""The operational log: one line for each step in the life of the broker and of what clients create in it.

    2026-11-20 12:00:00 +0000 MESSAGE [ ACTOR ] [ SUBJECT ] ID : TEXT

    ACTOR    who has caused it: con:1(guest@QPID@192.0.2.1:41234/)/ch:0, or mng:USER(ADDRESS) for a console;
             omitted if it is the broker itself
    SUBJECT  what it is about: vh(/), vh(/)/ms, vh(/)/qu(NAME), vh(/)/ex(NAME), vh(/)/ex(NAME)/qu(NAME)/bd(KEY),
             sub:1:qu(NAME); omitted if it is the actor, or the broker. Another virtual host is vh(/HOST)

It is off unless `--log-status` or management has switched it on. It watches the same events that QMF publishes, and
only while it is on; the steps of the process are written by `process/runner`. Nothing is written per message. The lines
go to the outputs of the log, whatever its rules are. Of each message that clients cause, at most MAX_LINES are written
in a minute, and then the number of further ones. Rules (`status_rules`) choose the objects that it is about.

Where this broker differs from the one that the messages were made for: a session is a
channel, and has no prefetch when it is created; its flow is stopped by message.stop and started again by message.flow;
management listens on the ports for clients; the options of the log are part of the broker's configuration file.

Source: Qpid wiki, "Operational Logging" (seed 004, lines 5733-6424).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from qstore.broker.log.logs import NOTICE, PERIOD_SECONDS, STATUS, LineLimit
from qstore.broker.log.status_rules import About, StatusRule
from qstore.broker.model.caller import BROKER, Caller
from qstore.broker.model.events import (
    Bind,
    BindingRemoved,
    ClientConnect,
    ClientDisconnect,
    ConsoleClosed,
    ConsoleOpened,
    ConsumerState,
    Event,
    Events,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    PublisherHeld,
    PublisherReleased,
    QueueDeclare,
    QueueDelete,
    QueueOverfull,
    QueueRecovered,
    QueueUnderfull,
    RecoveryBegun,
    RecoveryCompleted,
    SessionCreated,
    SessionEnded,
    SessionFlow,
    SessionPrefetch,
    Subscribe,
    Unbind,
    Unsubscribe,
)
from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.formats.values import TypedMap
from qstore.formats.wording import plural

STATUS_MESSAGES: Final[Mapping[str, str]] = {
    # BRK  the broker              CON  a connection      EXH  an exchange
    # MNG  management              CHN  a session         BND  a binding
    # VHT  the virtual host        QUE  a queue           SUB  a subscription
    # MST  the message store
    "BRK-1001": "Startup : Version: {} Build: {}",
    "BRK-1002": "Starting : Listening on {} port {}",
    "BRK-1003": "Shutting down : {} port {}",
    "BRK-1004": "Ready",
    "BRK-1005": "Stopped",
    "BRK-1006": "Using configuration : {}",
    "BRK-1007": "Using logging configuration : {}",
    "MNG-1001": "Startup",
    "MNG-1002": "Starting : {} : Listening on port {}",
    "MNG-1003": "Shutting down : {} : port {}",
    "MNG-1004": "Ready",
    "MNG-1005": "Stopped",
    "MNG-1006": "Using SSL Keystore : {}",
    "MNG-1007": "Open : User {}",
    "MNG-1008": "Close",
    "VHT-1001": "Created : {}",
    "VHT-1002": "Closed",
    "MST-1001": "Created : {}",
    "MST-1002": "Store location : {}",
    "MST-1003": "Closed",
    "MST-1004": "Recovery Start{}",
    "MST-1005": "Recovered {} for queue {}",
    "MST-1006": "Recovery Complete{}",
    "CON-1001": "Open : Client ID {} : Protocol Version : {}",
    "CON-1002": "Close",
    "CHN-1001": "Create : Prefetch {}",
    "CHN-1002": "Flow {}",
    "CHN-1003": "Close",
    "CHN-1004": "Prefetch Size (bytes) {} : Count {}",
    "CHN-1005": "Flow Control Enforced (Queue {})",
    "CHN-1006": "Flow Control Removed",
    "QUE-1001": "Create : {}",
    "QUE-1002": "Deleted",
    "QUE-1003": "Overfull : Size : {:,} {}, Capacity : {:,}",
    "QUE-1004": "Underfull : Size : {:,} {}, Resume Capacity : {:,}",
    "EXH-1001": "Create : {}Type:{} Name:{}",
    "EXH-1002": "Deleted",
    "BND-1001": "Create{}",
    "BND-1002": "Deleted",
    "SUB-1001": "Create{}",
    "SUB-1002": "Close",
    "SUB-1003": "State : {}",
}


# ---- the log ----

MAX_LINES: Final = 1000
"""Lines of one message that clients cause, per minute: when 1,000 clients connect, each has its line."""
_BY_CLIENTS: Final = ("CON", "CHN", "QUE", "EXH", "BND", "SUB", "MNG-1007", "MNG-1008")
_KINDS: Final = {
    "BRK": "broker", "MNG": "management", "VHT": "virtualhost", "MST": "messagestore", "CON": "connection",
    "CHN": "channel", "QUE": "queue", "EXH": "exchange", "BND": "binding", "SUB": "subscription",
}  # fmt: skip
"""The first letters of an id -> what the line is about."""
_NOTHING: Final[About] = {}
_HOST: Final = "vh(/)"
_STORE: Final = f"{_HOST}/ms"
_MAX_ARGUMENTS: Final = 1024  # characters
_LEVELS: Final = ("qpid.priorities", "x-qpid-priorities")
_CLIENT_IDS: Final = ("clientid", "qpid.client_id", "qpid.client_process")


class StatusLog:
    """The operational log of one broker.

    Args:
        is_on: whether it is on.
        clock: a monotonic one, in seconds.

    Attributes:
        rules: which objects it is about.
    """

    def __init__(
        self,
        *,
        is_on: bool = False,
        clock: Callable[[], float] = time.monotonic,
        rules: tuple[StatusRule, ...] = (),
    ) -> None:
        self._clock, self.rules = clock, rules
        self._limits = {number: LineLimit(MAX_LINES) for number in STATUS_MESSAGES if number.startswith(_BY_CLIENTS)}
        self._is_on, self._logger = is_on, logging.getLogger(STATUS)
        self._events: Events | None = None
        self._subscriptions: dict[tuple[int, str], int] = {}  # the id of a session, destination -> its number
        self._last_subscription = 0

    @property
    def is_on(self) -> bool:
        """Whether it is on."""
        return self._is_on

    def switch(self, *, is_on: bool) -> None:
        """Switch it on or off."""
        if is_on == self._is_on:
            return
        self.write_left_out(period=0.0)
        self._is_on = is_on
        if self._events is not None:
            if is_on:
                self._events.watch(self._on_event)
            else:
                self._events.ignore(self._on_event)
                self._subscriptions.clear()

    def follow(self, events: Events) -> None:
        """Watch a broker's events whenever it is on. Called once."""
        self._events = events
        if self._is_on:
            events.watch(self._on_event)

    def write(self, number: str, *values: object, actor: str = "", subject: str = "", about: About = _NOTHING) -> None:
        """Write a line, if it is on.

        Args:
            number: the id of the message.
            *values: its values.
            actor: who has caused it, as in the format above; empty to omit it.
            subject: its subject, likewise.
            about: the objects that rules may name.
        """
        if self._is_on and (not self.rules or self._shows(number, about)):
            limit = self._limits.get(number)
            if limit is not None:
                now = self._clock()
                self._write_left_out(number, limit, now)
                if not limit.admits(now):
                    return
            parts = "".join(f"[ {each} ] " for each in (actor, subject) if each)
            self._logger.log(NOTICE, "%s%s : %s", parts, number, STATUS_MESSAGES[number].format(*values))

    def _shows(self, number: str, about: About) -> bool:
        """Whether the last rule that matches shows the line; without one it is shown."""
        kind = _KINDS[number[:3]]
        about = {kind: (), **about}
        return next((rule.shows for rule in reversed(self.rules) if rule.matches(kind, about)), True)

    def write_left_out(self, period: float = PERIOD_SECONDS) -> None:
        """Write how many lines were left out, for each message whose period began that many seconds ago."""
        if self._is_on:
            for number, limit in self._limits.items():
                self._write_left_out(number, limit, self._clock(), period)

    def _write_left_out(self, number: str, limit: LineLimit, now: float, period: float = PERIOD_SECONDS) -> None:
        left_out, seconds = limit.ended(now, period)
        if left_out:
            lines = plural(left_out, "more line")
            self._logger.log(NOTICE, "%s : %s left out within %.0f seconds", number, lines, seconds)

    def host(self, number: str, *values: object) -> None:
        """Write a line about the virtual host."""
        self.write(number, *values, subject=_HOST, about={"virtualhost": (DEFAULT_HOST,)})

    def store(self, number: str, *values: object) -> None:
        """Write a line about the store."""
        self.write(number, *values, subject=_STORE, about={"virtualhost": (DEFAULT_HOST,)})

    def exchange(self, type_name: str, name: str, *, durable: bool, caller: Caller = BROKER) -> None:
        """Write that there is an exchange now."""
        host = caller.vhost or DEFAULT_HOST
        values = "Durable " if durable else "", type_name, name
        about = _about(caller, exchange=(name,), virtualhost=(host,))
        self.write("EXH-1001", *values, actor=caller.actor, subject=_exchange(name, host), about=about)

    def _on_event(self, event: Event, caller: Caller) -> None:
        write = _WRITERS.get(type(event))
        if write is not None:
            write(self, event, caller)

    # ---- connections and sessions ----

    def _connect(self, event: ClientConnect, caller: Caller) -> None:
        version = event.protocol.removeprefix("AMQP ")
        self.write("CON-1001", _client_id(event.properties), version, actor=caller.actor, about=_about(caller))

    def _disconnect(self, _event: ClientDisconnect, caller: Caller) -> None:
        self.write("CON-1002", actor=caller.actor, about=_about(caller))

    def _session_created(self, _event: SessionCreated, caller: Caller) -> None:
        self.write("CHN-1001", 0, actor=caller.actor, about=_about(caller))

    def _session_flow(self, event: SessionFlow, caller: Caller) -> None:
        text = "Started" if event.is_started else "Stopped"
        self.write("CHN-1002", text, actor=caller.actor, about=_about(caller))

    def _session_ended(self, _event: SessionEnded, caller: Caller) -> None:
        self.write("CHN-1003", actor=caller.actor, about=_about(caller))

    def _session_prefetch(self, event: SessionPrefetch, caller: Caller) -> None:
        self.write("CHN-1004", event.prefetch_size, event.prefetch_count, actor=caller.actor, about=_about(caller))

    def _publisher_held(self, event: PublisherHeld, caller: Caller) -> None:
        self.write("CHN-1005", event.queue, actor=caller.actor, about=_about(caller, queue=(event.queue,)))

    def _publisher_released(self, _event: PublisherReleased, caller: Caller) -> None:
        self.write("CHN-1006", actor=caller.actor, about=_about(caller))

    def _console_opened(self, event: ConsoleOpened, caller: Caller) -> None:
        self.write("MNG-1007", event.user, actor=caller.actor, about=_about(caller))

    def _console_closed(self, _event: ConsoleClosed, caller: Caller) -> None:
        self.write("MNG-1008", actor=caller.actor, about=_about(caller))

    def _subscribe(self, event: Subscribe, caller: Caller) -> None:
        self._last_subscription += 1
        number = self._subscriptions[id(caller), event.destination] = self._last_subscription
        arguments = _arguments(event.arguments, "Browser" if event.is_browsing else "")
        words = ["Durable"] if event.is_durable else []
        words += [f"Arguments : {arguments}"] if arguments else []
        text = f" : {' '.join(words)}" if words else ""
        self._subscription("SUB-1001", number, event.queue, caller, text)

    def _unsubscribe(self, event: Unsubscribe, caller: Caller) -> None:
        number = self._subscriptions.pop((id(caller), event.destination), 0)
        if not number:  # it began while the log was off
            self._last_subscription = number = self._last_subscription + 1
        self._subscription("SUB-1002", number, event.queue, caller)

    def _consumer_state(self, event: ConsumerState, caller: Caller) -> None:
        number = self._subscriptions.get((id(caller), event.destination))
        if number is None:  # it began while the log was off
            self._last_subscription += 1
            number = self._subscriptions[id(caller), event.destination] = self._last_subscription
        self._subscription("SUB-1003", number, event.queue, caller, "ACTIVE" if event.is_active else "SUSPENDED")

    def _subscription(self, message: str, number: int, queue: str, caller: Caller, *values: str) -> None:
        about = _about(caller, subscription=(str(number),), queue=(queue,))
        self.write(message, *values, actor=caller.actor, subject=f"sub:{number}:qu({queue})", about=about)

    # ---- queues, exchanges and bindings ----

    def _queue_declare(self, event: QueueDeclare, caller: Caller) -> None:
        if not event.is_new:
            return
        words = ["AutoDelete"] if event.auto_delete else []
        words.append("Durable" if event.durable else "Transient")
        levels = next((typed.value for name in _LEVELS if (typed := event.arguments.get(name)) is not None), None)
        if levels is not None:
            words.append(f"Priority:{levels}")
        if event.user:
            words.append(f"Owner:{event.user}")
        self._of_queue("QUE-1001", event.queue, caller, " ".join(words))

    def _queue_delete(self, event: QueueDelete, caller: Caller) -> None:
        self._of_queue("QUE-1002", event.queue, caller)

    def _of_queue(self, number: str, queue: str, caller: Caller, *values: str) -> None:
        about = _about(caller, queue=(queue,))
        self.write(number, *values, actor=caller.actor, subject=_queue(queue, caller.vhost), about=about)

    def _overfull(self, event: QueueOverfull | QueueUnderfull, _caller: Caller) -> None:
        number = "QUE-1003" if isinstance(event, QueueOverfull) else "QUE-1004"
        about = {"virtualhost": (event.host,), "queue": (event.queue,)}
        values = event.depth, event.unit, event.capacity
        self.write(number, *values, subject=_queue(event.queue, event.host), about=about)

    def _exchange_declare(self, event: ExchangeDeclare, caller: Caller) -> None:
        if event.is_new:
            self.exchange(event.type_name, event.exchange, durable=event.durable, caller=caller)

    def _exchange_delete(self, event: ExchangeDelete, caller: Caller) -> None:
        about = _about(caller, exchange=(event.exchange,))
        self.write("EXH-1002", actor=caller.actor, subject=_exchange(event.exchange, caller.vhost), about=about)

    def _bind(self, event: Bind, caller: Caller) -> None:
        arguments = _arguments(event.arguments)
        text = f" : Arguments : {arguments}" if arguments else ""
        self._bound("BND-1001", event, caller, text)

    def _unbind(self, event: Unbind | BindingRemoved, caller: Caller) -> None:
        self._bound("BND-1002", event, caller)

    def _bound(self, number: str, event: Bind | Unbind | BindingRemoved, caller: Caller, *values: str) -> None:
        about = _about(caller, exchange=(event.exchange,), queue=(event.queue,), binding=(event.key,))
        self.write(number, *values, actor=caller.actor, subject=_binding(event, caller.vhost), about=about)

    def _exchange_bind(self, event: ExchangeBind, caller: Caller) -> None:
        arguments = _arguments(event.arguments)
        text = f" : Arguments : {arguments}" if arguments else ""
        self._exchange_bound("BND-1001", event, caller, text)

    def _exchange_unbind(self, event: ExchangeUnbind, caller: Caller) -> None:
        self._exchange_bound("BND-1002", event, caller)

    def _exchange_bound(self, number: str, event: ExchangeBind | ExchangeUnbind, caller: Caller, *values: str) -> None:
        about = _about(caller, exchange=(event.source, event.destination), binding=(event.key,))
        self.write(number, *values, actor=caller.actor, subject=_exchange_binding(event, caller.vhost), about=about)

    # ---- recovery ----

    def _recovery_begun(self, event: RecoveryBegun, _caller: Caller) -> None:
        self.store("MST-1004", f" : {event.queue}" if event.queue else "")

    def _queue_recovered(self, event: QueueRecovered, _caller: Caller) -> None:
        self.store("MST-1005", f"{event.messages} message{'' if event.messages == 1 else 's'}", event.queue)
        self.store("MST-1006", f" : {event.queue}")

    def _recovery_completed(self, _event: RecoveryCompleted, _caller: Caller) -> None:
        self.store("MST-1006", "")


_Writer = Callable[[StatusLog, Any, Caller], None]

#: Event -> the function that writes its lines.
_WRITERS: Final[dict[type[Event], _Writer]] = {
    ClientConnect: StatusLog._connect,
    ClientDisconnect: StatusLog._disconnect,
    SessionCreated: StatusLog._session_created,
    SessionFlow: StatusLog._session_flow,
    SessionEnded: StatusLog._session_ended,
    SessionPrefetch: StatusLog._session_prefetch,
    PublisherHeld: StatusLog._publisher_held,
    PublisherReleased: StatusLog._publisher_released,
    ConsumerState: StatusLog._consumer_state,
    ConsoleOpened: StatusLog._console_opened,
    ConsoleClosed: StatusLog._console_closed,
    QueueOverfull: StatusLog._overfull,
    QueueUnderfull: StatusLog._overfull,
    Subscribe: StatusLog._subscribe,
    Unsubscribe: StatusLog._unsubscribe,
    QueueDeclare: StatusLog._queue_declare,
    QueueDelete: StatusLog._queue_delete,
    ExchangeDeclare: StatusLog._exchange_declare,
    ExchangeDelete: StatusLog._exchange_delete,
    Bind: StatusLog._bind,
    Unbind: StatusLog._unbind,
    BindingRemoved: StatusLog._unbind,
    ExchangeBind: StatusLog._exchange_bind,
    ExchangeUnbind: StatusLog._exchange_unbind,
    RecoveryBegun: StatusLog._recovery_begun,
    QueueRecovered: StatusLog._queue_recovered,
    RecoveryCompleted: StatusLog._recovery_completed,
}


def _about(caller: Caller, **objects: tuple[str, ...]) -> About:
    """What a line about these objects and their caller is about."""
    if caller is BROKER:
        return {"virtualhost": (DEFAULT_HOST,), **objects}
    address = caller.remote_host.rpartition(":")[0].strip("[]")
    names = (caller.user, caller.user.partition("@")[0], address)
    found = {"connection": names, "virtualhost": (caller.vhost or DEFAULT_HOST,), **objects}
    if "/ch:" in caller.actor:
        found["channel"] = (caller.actor.rpartition("/ch:")[2],)
    return found


def _in_host(host: str) -> str:
    return _HOST if host == DEFAULT_HOST else f"vh(/{host})"


def _queue(name: str, host: str) -> str:
    return f"{_in_host(host)}/qu({name})"


def _exchange(name: str, host: str) -> str:
    return f"{_in_host(host)}/ex({name})"


def _binding(event: Bind | Unbind | BindingRemoved, host: str) -> str:
    return f"{_exchange(event.exchange, host)}/qu({event.queue})/bd({event.key})"


def _exchange_binding(event: ExchangeBind | ExchangeUnbind, host: str) -> str:
    return f"{_exchange(event.source, host)}/ex({event.destination})/bd({event.key})"


def _arguments(arguments: TypedMap, *others: str) -> str:
    """Arguments as `key=value`, separated by blanks."""
    parts = [*(each for each in others if each), *(f"{name}={_text(typed.value)}" for name, typed in arguments.entries)]
    return " ".join(parts)[:_MAX_ARGUMENTS]


def _client_id(properties: TypedMap) -> str:
    given = (properties.get(name) for name in _CLIENT_IDS)
    return next((_text(typed.value)[:_MAX_ARGUMENTS] for typed in given if typed is not None), "")


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
