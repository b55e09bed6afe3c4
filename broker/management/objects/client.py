"""The classes connection, session and subscription.

A connection or session is closed as if by an administrator of the client's own side. Sessions that are detached by
management wait for their timeout, as if the client had lost its connection. A session that is detached can be closed,
and its timeout restarted.

Source: the QMF schema of qpidd's broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter as of
from typing import TYPE_CHECKING, Final

from qstore.broker.management.schema import (
    CONNECTION,
    QUEUE,
    SESSION,
    SUBSCRIPTION,
    ManagedClass,
    Read,
    always,
    method,
    prop,
    stat,
    vhost_reference,
)
from qstore.broker.model.arguments import is_set
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import NotFoundError, PreconditionFailedError
from qstore.broker.protocols.machine import ConnectionCounts, SessionAction
from qstore.broker.security.acl.control import control_of
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ListedSession, ManagedBroker
    from qstore.broker.management.request import Arguments
    from qstore.broker.management.schema import Results
    from qstore.broker.model.caller import Caller
    from qstore.broker.protocols.machine import Machine, ManagedSubscription


# ---- connection ----


class _View(NamedTuple):
    """A connection and its counters."""

    machine: Machine
    counts: ConnectionCounts


def _look(machine: Machine) -> _View:
    counts = machine.counts
    if machine.is_outgoing:  # the client is this broker
        counts = ConnectionCounts(
            counts.frames_sent, counts.frames_received, counts.bytes_sent, counts.bytes_received,
            counts.messages_sent, counts.messages_received,
        )  # fmt: skip
    return _View(machine, counts)


def connections(managed: ManagedBroker) -> Iterator[tuple[str, Machine]]:
    """The connections by the keys of their objects."""
    return ((machine.peer, machine) for machine in managed.machines())


def _connected_at(machine: Machine) -> float:
    return machine.created_at


def _client_text(name: str) -> Read:
    """Reads a string from the properties that the client sent at login; None if it is missing."""

    def read(view: _View) -> str | None:
        typed = view.machine.client_properties.get(name)
        value = None if typed is None else typed.value
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        return value if isinstance(value, str) else None

    return read


def _client_number(name: str) -> Read:
    """Reads an integer from them, likewise."""

    def read(view: _View) -> int | None:
        typed = view.machine.client_properties.get(name)
        return typed.value if typed is not None and type(typed.value) is int else None

    return read


def _check_closing(managed: ManagedBroker, caller: Caller, owner: str) -> None:
    """Raise UnauthorizedError unless the caller may close what the clients of a user have."""
    control = control_of(managed.broker)
    if control is not None:
        control.check_closing(caller, owner)


async def close_connection(managed: ManagedBroker, machine: Machine, _arguments: Arguments, caller: Caller) -> Results:
    """Close a connection."""
    _check_closing(managed, caller, machine.user)
    machine.force_close("closed by management")
    managed.broker.tick.schedule()
    return {}


def _is_link(view: _View) -> bool:
    """Whether it is a link between two brokers, made by either."""
    typed = view.machine.client_properties.get("qpid.fed_link")
    return view.machine.is_outgoing or (typed is not None and is_set(typed.value))


# fmt: off
CONNECTION_CLASS: Final = ManagedClass(
    CONNECTION,
    properties=(
        prop("vhostRef", "objId", "RC index parent", lambda view: vhost_reference(view.machine.vhost), "", "", "Vhost"),
        prop("address", "sstr", "RC index", of("machine.peer")),
        prop("incoming", "bool", "RC", lambda view: not view.machine.is_outgoing),
        prop("SystemConnection", "bool", "RC", always(False), "Deprecated"),
        prop("userProxyAuth", "bool", "RO", always(False), "Deprecated"),
        prop("federationLink", "bool", "RO", _is_link, "Deprecated"),
        prop("authIdentity", "sstr", "RO", of("machine.user"), "authId of connection if authentication enabled"),
        prop("remoteProcessName", "lstr", "RO optional", _client_text("qpid.client_process"),
             "Name of executable running as remote client"),
        prop("remotePid", "uint32", "RO optional", _client_number("qpid.client_pid"), "Process ID of remote client"),
        prop("remoteParentPid", "uint32", "RO optional", _client_number("qpid.client_ppid"),
             "Parent Process ID of remote client"),
        prop("shadow", "bool", "RO", always(False), "Deprecated"),
        prop("saslMechanism", "sstr", "RO", of("machine.mechanism"), "SASL mechanism"),
        prop("saslSsf", "uint16", "RO", of("machine.ssf"), "SASL security strength factor"),
        prop("remoteProperties", "map", "RO", of("machine.client_properties"),
             "optional map of identifying information sent by the remote"),
        prop("protocol", "sstr", "RC", of("machine.protocol"), "protocol in use"),
    ),
    statistics=(
        stat("closing", "bool", of("machine.is_closing"), "This client is closing by management request"),
        stat("framesFromClient", "count64", of("counts.frames_received")),
        stat("framesToClient", "count64", of("counts.frames_sent")),
        stat("bytesFromClient", "count64", of("counts.bytes_received")),
        stat("bytesToClient", "count64", of("counts.bytes_sent")),
        stat("msgsFromClient", "count64", of("counts.messages_received")),
        stat("msgsToClient", "count64", of("counts.messages_sent")),
    ),
    methods=(
        method("close", "", (), close_connection),
    ),
    objects=connections, look=_look, created=_connected_at,
    belongs=lambda machine: (machine.vhost, machine.user),
)
# fmt: on


# ---- session ----


def sessions(managed: ManagedBroker) -> Iterator[tuple[str, ListedSession]]:
    """The sessions, likewise."""
    return ((attached.key, attached) for attached in managed.sessions())


async def close_session(
    managed: ManagedBroker, listed: ListedSession, _arguments: Arguments, caller: Caller
) -> Results:
    """End a session, attached or detached: its unsettled messages are available again."""
    _check_closing(managed, caller, listed.session.user)
    if listed.detached is not None:
        listed.detached.end()
        managed.broker.tick.schedule()
        return {}
    return _manage(managed, listed, SessionAction.CLOSE)


async def detach_session(
    managed: ManagedBroker, listed: ListedSession, _arguments: Arguments, caller: Caller
) -> Results:
    """Detach a session."""
    _check_closing(managed, caller, listed.session.user)
    return _manage(managed, listed, SessionAction.DETACH)


async def solicit_ack(managed: ManagedBroker, listed: ListedSession, _arguments: Arguments, _caller: Caller) -> Results:
    """Ask a client which commands it has completed."""
    return _manage(managed, listed, SessionAction.SOLICIT)


async def reset_lifespan(
    managed: ManagedBroker, listed: ListedSession, _arguments: Arguments, caller: Caller
) -> Results:
    """Begin the timeout of a detached session anew: that of an attached one has not begun."""
    _check_closing(managed, caller, listed.session.user)
    if listed.detached is not None:
        listed.detached.extend()
    return {}


def _manage(managed: ManagedBroker, listed: ListedSession, action: SessionAction) -> Results:
    if listed.machine is None:
        raise PreconditionFailedError(f'session "{listed.key}" is detached')
    listed.machine.manage_session(listed.channel, action)
    managed.broker.tick.schedule()
    return {}


# fmt: off
SESSION_CLASS: Final = ManagedClass(
    SESSION,
    properties=(
        prop("vhostRef", "objId", "RC index parent", lambda each: vhost_reference(each.session.vhost), "", "", "Vhost"),
        prop("name", "sstr", "RC index", of("key")),
        prop("fullName", "lstr", "RO optional", of("key")),
        prop("channelId", "uint16", "RO", of("channel")),
        prop("connectionRef", "objId", "RO", lambda attached: CONNECTION.reference(attached.peer), "", "",
             "Connection"),
        prop("detachedLifespan", "uint32", "RO", of("session.timeout"), "Deprecated", "second"),
        prop("attached", "bool", "RO", of("is_attached")),
        prop("expireTime", "absTime", "RO optional", of("expires_at")),
        prop("maxClientRate", "uint32", "RO optional", lambda listed: listed.session.rate and listed.session.rate.rate,
             "Deprecated", "msgs/sec"),
    ),
    statistics=(
        stat("unackedMessages", "uint64", of("session.unsettled_count"), "Unacknowledged messages in the session",
             "message"),
        stat("TxnStarts", "count64", of("session.txn_starts"), "Total transactions started ", "transaction"),
        stat("TxnCommits", "count64", of("session.txn_commits"), "Total transactions committed", "transaction"),
        stat("TxnRejects", "count64", of("session.txn_rejects"), "Total transactions rejected", "transaction"),
        stat("TxnCount", "count32", lambda attached: attached.open_transactions, "Current pending transactions",
             "transaction"),
        stat("clientCredit", "count32", of("session.credit"), "Deprecated", "message"),
        stat("framesOutstanding", "count32", of("session.outstanding_commands"), "Deprecated"),
    ),
    methods=(
        method("solicitAck", "", (), solicit_ack),
        method("detach", "", (), detach_session),
        method("resetLifespan", "", (), reset_lifespan),
        method("close", "", (), close_session),
    ),
    objects=sessions, belongs=lambda listed: (listed.session.vhost, listed.session.user),
)
# fmt: on


# ---- subscription ----


class Subscribed(NamedTuple):
    """A subscription, and its session."""

    attached: ListedSession
    subscription: ManagedSubscription


AT_ONCE: Final = 64
"""Subscriptions that are looked at before the time slice may end."""


def subscriptions(managed: ManagedBroker) -> Iterator[tuple[str, Subscribed]]:
    """The subscriptions, likewise."""
    for attached in managed.sessions():
        for subscription in list(attached.session.subscriptions.values()):
            names = SESSION.name_of(attached.key), QUEUE.name_of(subscription.queue.full_name), subscription.destination
            yield ",".join(names), Subscribed(attached, subscription)


async def close_subscription(managed: ManagedBroker, key: str, caller: Caller) -> None:
    """Close a subscription, as its client would: qpidd's class has no method for it.

    Raises:
        UnauthorizedError: the caller may not call a method `close` of the class, or not close those of this client.
        NotFoundError: there is none with this key.
    """
    of = SUBSCRIPTION_CLASS
    managed.broker.authorization.check(
        caller, Action.ACCESS, ObjectType.METHOD, "close", schemapackage=of.package, schemaclass=of.name
    )
    for number, (name, found) in enumerate(of.objects(managed)):
        if name == key:
            if not of.is_seen_by(managed, caller, found):
                break
            _check_closing(managed, caller, found.attached.session.user)
            found.attached.session.close_subscription(found.subscription.destination)
            managed.broker.tick.schedule()
            return
        if number % AT_ONCE == 0 and managed.slices.is_over:
            await managed.slices.next()
    raise NotFoundError(f"Object not found: {printable(key)}")


# fmt: off
SUBSCRIPTION_CLASS: Final = ManagedClass(
    SUBSCRIPTION,
    properties=(
        prop("sessionRef", "objId", "RC index parent", lambda each: SESSION.reference(each.attached.key), "", "",
             "Session"),
        prop("queueRef", "objId", "RC index", lambda each: QUEUE.reference(each.subscription.queue.full_name), "", "",
             "Queue"),
        prop("name", "sstr", "RC index", of("subscription.destination")),
        prop("browsing", "bool", "RC", lambda each: not each.subscription.acquires),
        prop("acknowledged", "bool", "RC", of("subscription.is_accepting")),
        prop("exclusive", "bool", "RC", lambda each: each.subscription.queue.exclusive_consumer is each.subscription),
        prop("creditMode", "sstr", "RO", lambda each: "WINDOW" if each.subscription.is_windowed else "CREDIT",
             "WINDOW or CREDIT"),
        prop("arguments", "map", "RC", of("subscription.arguments")),
    ),
    statistics=(
        stat("delivered", "count64", of("subscription.delivered"), "Messages delivered", "message"),
    ),
    objects=subscriptions,
    belongs=lambda each: (each.attached.session.vhost, each.attached.session.user),
)
# fmt: on
