"""Typed events of the broker, delivered to listeners.

The log is the first listener (`event_log`). An event is a value. If QMF has it, its QMF name is its class name with a
lower-case first letter (those of the store without `Journal`), and its first fields are the arguments of the QMF event;
`SessionCreated` and those after it are only for the operational log (`status_log`).

Source: the events in the QMF schemas of qpidd's broker, its ACL module and its store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from qstore.broker.model.caller import BROKER, Caller
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import EMPTY_MAP, TypedMap


class QueueDeclare(NamedTuple):
    """A queue was declared."""

    remote_host: str
    user: str
    queue: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    alternate: str
    arguments: TypedMap
    is_new: bool


class QueueDelete(NamedTuple):
    """A queue was deleted."""

    remote_host: str
    user: str
    queue: str


class ExchangeDeclare(NamedTuple):
    """An exchange was declared."""

    remote_host: str
    user: str
    exchange: str
    type_name: str
    alternate: str
    durable: bool
    auto_delete: bool
    arguments: TypedMap
    is_new: bool


class ExchangeDelete(NamedTuple):
    """An exchange was deleted."""

    remote_host: str
    user: str
    exchange: str


class Bind(NamedTuple):
    """A queue was bound to an exchange."""

    remote_host: str
    user: str
    exchange: str
    queue: str
    key: str
    arguments: TypedMap = EMPTY_MAP


class Unbind(NamedTuple):
    """A binding was removed."""

    remote_host: str
    user: str
    exchange: str
    queue: str
    key: str


class ExchangeBind(NamedTuple):
    """An exchange, the destination, was bound to another one, the source. Not sent to consoles."""

    remote_host: str
    user: str
    source: str
    destination: str
    key: str
    arguments: TypedMap = EMPTY_MAP


class ExchangeUnbind(NamedTuple):
    """A binding between exchanges has ended. Not sent to consoles."""

    remote_host: str
    user: str
    source: str
    destination: str
    key: str


class Subscribe(NamedTuple):
    """A consumer was added to a queue. Consoles do not get the last two fields."""

    remote_host: str
    user: str
    queue: str
    destination: str
    exclusive: bool
    arguments: TypedMap = EMPTY_MAP
    is_browsing: bool = False
    is_durable: bool = False


class Unsubscribe(NamedTuple):
    """A consumer was removed. Consoles do not get the queue."""

    remote_host: str
    user: str
    destination: str
    queue: str


class ClientConnect(NamedTuple):
    """A client has opened its connection. Consoles do not get the protocol."""

    remote_host: str
    user: str
    properties: TypedMap
    protocol: str = "AMQP 0-10"


class ClientConnectFail(NamedTuple):
    """A client was rejected. `user` is empty if unknown."""

    remote_host: str
    user: str
    reason: str
    properties: TypedMap


class ClientDisconnect(NamedTuple):
    """A client with an open connection has disconnected."""

    remote_host: str
    user: str
    properties: TypedMap


class QueueThresholdExceeded(NamedTuple):
    """A message was added to a queue whose depth is at its alert threshold, or above."""

    queue: str
    messages: int
    bytes: int


class QueueMessageTooLarge(NamedTuple):
    """A message was added to a queue that is larger than the queue's alert threshold."""

    queue: str
    bytes: int
    threshold: int


class QueueMessageTooOld(NamedTuple):
    """The oldest message of a queue, by its milliseconds there, is older than the queue's alert threshold."""

    queue: str
    age: int
    messages: int


class QueueConsumerTooSlow(NamedTuple):
    """A queue has too much for its consumers, and its policy for that is applied: disconnect, delete or cycle."""

    queue: str
    policy: str
    messages: int
    bytes: int


class QueueThresholdCrossedUpward(NamedTuple):
    """A queue's depth has reached its alert threshold."""

    queue: str
    messages: int
    bytes: int


class QueueThresholdCrossedDownward(NamedTuple):
    """A queue's depth is down to its lower alert threshold."""

    queue: str
    messages: int
    bytes: int


class Allow(NamedTuple):
    """A rule with allow-log has allowed an operation."""

    user: str
    action: str
    object_type: str
    object_name: str
    arguments: TypedMap


class Deny(NamedTuple):
    """A rule with deny-log has denied an operation."""

    user: str
    action: str
    object_type: str
    object_name: str
    arguments: TypedMap


class ConnectionDeny(NamedTuple):
    """A connection was denied, by a limit or a rule. `user` is empty if unknown."""

    user: str
    remote_host: str


class QueueQuotaDeny(NamedTuple):
    """A user was denied another queue."""

    user: str
    queue: str


class AccessChanged(NamedTuple):
    """A user, a permission or a policy was changed.

    Attributes:
        remote_host, user: who has changed it.
        kind: user, permission, topic-permission, policy or operator-policy.
        name: its name.
        what: added, changed, set or deleted.
    """

    remote_host: str
    user: str
    kind: str
    name: str
    what: str


class UserDeleted(NamedTuple):
    """A user, given with the realm, was deleted, which `AccessChanged` has told."""

    user: str


class FileLoaded(NamedTuple):
    """The ACL file was reloaded. `user` is empty if a signal has requested it."""

    user: str


class FileLoadFailed(NamedTuple):
    """The ACL file could not be reloaded, and the rules are unchanged. `user` as above."""

    user: str
    reason: str


class QueueRedirect(NamedTuple):
    """Messages for a queue are put on another one from now on."""

    queue: str
    target: str


class QueueRedirectCancelled(NamedTuple):
    """They are put on the queue itself again."""

    queue: str
    target: str


class JournalCreated(NamedTuple):
    """The journal of a new durable queue was created. `file_size` is the size of one file's data, in bytes."""

    journal: str
    file_size: int
    files: int


class JournalRecovered(NamedTuple):
    """A journal was recovered: its messages, and those that branches in doubt enqueue and dequeue."""

    journal: str
    file_size: int
    files: int
    enqueues: int
    transactions: int
    transaction_enqueues: int
    transaction_dequeues: int


class JournalEnqThresholdExceeded(NamedTuple):
    """A journal has begun to refuse messages; it still accepts dequeues."""

    journal: str
    description: str


class JournalFull(NamedTuple):
    """A journal has begun to refuse everything."""

    journal: str
    description: str


class BrokerLinkUp(NamedTuple):
    """A link to another broker is open."""

    remote_host: str


class BrokerLinkDown(NamedTuple):
    """A link to another broker is lost or closed."""

    remote_host: str


class SessionCreated(NamedTuple):
    """The caller, a session, was created and attached."""


class SessionEnded(NamedTuple):
    """The caller, a session, has ended."""


class SessionFlow(NamedTuple):
    """The caller, a session, has taken away the credit of its subscriptions, or granted some again."""

    is_started: bool


class SessionPrefetch(NamedTuple):
    """The caller, a channel, has set how many bytes and messages its consumers may hold; 0 for any number."""

    prefetch_size: int
    prefetch_count: int


class PublisherHeld(NamedTuple):
    """The caller, a session, has published to a queue whose flow control is on, and waits."""

    queue: str


class PublisherReleased(NamedTuple):
    """No message of the caller, a session, waits for flow control any more."""


class ConsumerState(NamedTuple):
    """The caller, a session, has stopped one of its consumers, or lets it go on."""

    destination: str
    queue: str
    is_active: bool


class QueueOverfull(NamedTuple):
    """Flow control of a queue is on. `unit` is bytes or messages, `depth` what it has, `capacity` its threshold."""

    queue: str
    host: str
    unit: str
    depth: int
    capacity: int


class QueueUnderfull(NamedTuple):
    """Flow control of a queue is off again; as above, with the lower threshold."""

    queue: str
    host: str
    unit: str
    depth: int
    capacity: int


class ConsoleOpened(NamedTuple):
    """The caller, a connection, has sent its first request to management."""

    user: str


class ConsoleClosed(NamedTuple):
    """The connection of a console has ended."""


class BindingRemoved(NamedTuple):
    """A binding has ended with its queue or its exchange, or was replaced by another one."""

    exchange: str
    queue: str
    key: str


class RecoveryBegun(NamedTuple):
    """The recovery of a queue has begun; of the whole store if the name is empty."""

    queue: str = ""


class QueueRecovered(NamedTuple):
    """A queue was recovered, with the number of its messages."""

    queue: str
    messages: int


class RecoveryCompleted(NamedTuple):
    """The recovery of the whole store is complete."""


Event: TypeAlias = (
    QueueDeclare
    | QueueDelete
    | ExchangeDeclare
    | ExchangeDelete
    | Bind
    | Unbind
    | ExchangeBind
    | ExchangeUnbind
    | Subscribe
    | Unsubscribe
    | ClientConnect
    | ClientConnectFail
    | ClientDisconnect
    | QueueThresholdExceeded
    | QueueMessageTooLarge
    | QueueMessageTooOld
    | QueueConsumerTooSlow
    | QueueThresholdCrossedUpward
    | QueueThresholdCrossedDownward
    | Allow
    | Deny
    | ConnectionDeny
    | QueueQuotaDeny
    | AccessChanged
    | UserDeleted
    | FileLoaded
    | FileLoadFailed
    | QueueRedirect
    | QueueRedirectCancelled
    | JournalCreated
    | JournalRecovered
    | JournalEnqThresholdExceeded
    | JournalFull
    | BrokerLinkUp
    | BrokerLinkDown
    | SessionCreated
    | SessionEnded
    | SessionFlow
    | SessionPrefetch
    | PublisherHeld
    | PublisherReleased
    | ConsumerState
    | QueueOverfull
    | QueueUnderfull
    | ConsoleOpened
    | ConsoleClosed
    | BindingRemoved
    | RecoveryBegun
    | QueueRecovered
    | RecoveryCompleted
)
Listener: TypeAlias = Callable[[Event], None]
Watcher: TypeAlias = Callable[[Event, Caller], None]


class Events:
    """The events of one broker, and their listeners."""

    def __init__(self) -> None:
        self._listeners: list[tuple[Listener, tuple[type[Event], ...]]] = []
        self._watchers: list[tuple[Watcher, tuple[type[Event], ...]]] = []
        self._heard_by: dict[type[Event], tuple[list[Listener], list[Watcher]]] = {}  # of events that have happened

    def listen(self, listener: Listener, *kinds: type[Event]) -> None:
        """Call `listener` with every event of these kinds from now on, of all if none is named.

        They are called in the order in which they listen, before those that watch.
        """
        self._listeners.append((listener, kinds))
        self._heard_by.clear()

    def watch(self, watcher: Watcher, *kinds: type[Event]) -> None:
        """Likewise, with the caller of the operation, until `ignore`."""
        self._watchers.append((watcher, kinds))
        self._heard_by.clear()

    def ignore(self, watcher: Watcher) -> None:
        """End `watch`."""
        self._watchers = [(each, kinds) for each, kinds in self._watchers if each != watcher]
        self._heard_by.clear()

    def emit(self, event: Event, caller: Caller = BROKER) -> None:
        """Pass an event to all that listen to its kind, or watch it."""
        heard_by = self._heard_by.get(type(event)) or self._find(type(event))
        for listener in heard_by[0]:
            listener(event)
        for watcher in heard_by[1]:
            watcher(event, caller)

    def _find(self, kind: type[Event]) -> tuple[list[Listener], list[Watcher]]:
        listeners = [each for each, kinds in self._listeners if not kinds or kind in kinds]
        watchers = [each for each, kinds in self._watchers if not kinds or kind in kinds]
        self._heard_by[kind] = listeners, watchers
        return listeners, watchers
