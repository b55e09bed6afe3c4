"""A broker's objects as RabbitMQ's management API describes them: its names of fields, from the classes of QMF.

    queue       messages = msgDepth, messages_unacknowledged = unackedMessages, the rest is ready. message_stats:
                publish = msgTotalEnqueues, deliver and deliver_get = acquires, redeliver = releases, ack = dequeues
                that are no discard (expired, dropped by a limit, rejected, purged, moved)
    connection  named PEER -> BROKER; user names are without the realm
    channel     a session: of AMQP 0-9-1 a channel, of 0-10 a session
    consumer    a subscription

    of these three, and of queues, the package `qstore` has classes that tell what qpidd's lack: `clientConnection`,
    `clientSession`, `clientSubscription` and `queueHead`, with the same keys

What a broker of this kind has not, such as Erlang's memory and reductions, is left out. Fields of RabbitMQ that its
tools read and that are unknown here are null, 0 or empty. README has the differences.
"""

from __future__ import annotations

import re
import ssl
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote_plus

from orjson import OPT_SORT_KEYS, dumps

from qstore.broker.management.console import Data
from qstore.broker.model.arguments import INTERNAL
from qstore.broker.protocols.amqp_0_9_1.arguments import client_key
from qstore.formats.broker_records.topology import split_name
from qstore.tools.console.amounts import plain, reference
from qstore.tools.web.amqp import OWN_PROPERTY
from qstore.tools.web.collector import Seen

Row = dict[str, Any]

DEFAULT_VHOST: Final = "/"
HEADERS: Final = "headers"
_DISCARDS: Final = (
    "discardsTtl", "discardsRing", "discardsLvq", "discardsSubscriber", "discardsPurge", "reroutes",
)  # fmt: skip
_is_console_queue: Final = re.compile(r"console\.[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


# ---- names ----


def vhost_of(data: Data) -> str:
    """The virtual host of an object."""
    key = reference(data.get("vhostRef"))
    return key.partition(",")[2] or DEFAULT_VHOST


def local(full: str) -> str:
    """The name in its virtual host of a queue or an exchange, from the key of its object."""
    return split_name(full)[1]


def user_name(identity: object) -> str:
    """A user's name without the realm."""
    text = identity if isinstance(identity, str) else ""
    name, at, _realm = text.rpartition("@")
    return name if at else text


def properties_key(key: str, arguments: Mapping[str, Any]) -> str:
    """What names a binding among those of one queue or exchange to one exchange, as a part of a path."""
    quoted = quote_plus(key, safe="").replace("~", "%7E")
    if not arguments:
        return quoted or "~"
    digest = sha256(dumps(plain(arguments), option=OPT_SORT_KEYS)).digest()[:6]
    return f"{quoted}~{urlsafe_b64encode(digest).decode().rstrip('=')}"


def is_internal_queue(data: Data) -> bool:
    """Whether it is the queue of answers of a management console, such as this one."""
    return bool(data.get("exclusive")) and _is_console_queue(local(data.key)) is not None


def is_own(data: Data) -> bool:
    """Whether a connection is one of a console's."""
    known = data.get("remoteProperties")
    return isinstance(known, dict) and OWN_PROPERTY in known


# ---- counters ----


def number(data: Data | None, name: str) -> int:
    """A number; 0 if there is none."""
    value = None if data is None else data.get(name)
    return value if isinstance(value, int) else 0


def with_rate(name: str, value: float, rate: float) -> Row:
    """A counter or level, with its rate."""
    return {name: value, f"{name}_details": {"rate": rate}}


def _acknowledged(data: Data) -> int:
    return max(0, number(data, "msgTotalDequeues") - sum(number(data, each) for each in _DISCARDS))


def idle(since: float | None) -> Row:
    """Since when an object is idle, as RabbitMQ writes it; nothing if it is not."""
    if since is None:
        return {}
    return {"idle_since": datetime.fromtimestamp(since, UTC).isoformat(timespec="milliseconds")}


def message_stats(seen: Seen, data: Data) -> Row:
    """The counters of a queue, or of all queues."""
    key, found = data.key, Row()
    rates = {
        "publish": ("msgTotalEnqueues",), "deliver": ("acquires",), "deliver_get": ("acquires",),
        "ack": ("msgTotalDequeues",), "redeliver": ("releases",),
    }  # fmt: skip
    for name, counters in rates.items():
        value = _acknowledged(data) if name == "ack" else sum(number(data, each) for each in counters)
        found |= with_rate(name, value, seen.rate(key, *counters))
    for name in ("deliver_no_ack", "get", "get_no_ack", "get_empty"):
        found |= with_rate(name, 0, 0.0)
    return found


def queue_totals(seen: Seen, data: Data, unacknowledged: int) -> Row:
    """The messages of all queues."""
    depth = number(data, "msgDepth")
    before = None if seen.base is None else seen.base.objects.get(data.key)
    growth = 0.0 if before is None or not seen.seconds else (depth - number(before, "msgDepth")) / seen.seconds
    return {
        **with_rate("messages", depth, round(growth, 2)),
        **with_rate("messages_ready", max(0, depth - unacknowledged), round(growth, 2)),
        **with_rate("messages_unacknowledged", unacknowledged, 0.0),
    }


# ---- queues, exchanges, bindings ----


def queue_row(seen: Seen, data: Data, node: str, applied: Mapping[str, Data], head: Data | None) -> Row:
    """A queue.

    Args:
        seen: the queues.
        data: the queue.
        node: the broker's name.
        applied: the policies that apply to queues.
        head: its `queueHead`; None if there is none.
    """
    values = data.values
    arguments = plain(values.get("arguments") or {})
    policy = applied.get(f"queue,{vhost_of(data)},{local(data.key)}")
    depth, size = number(data, "msgDepth"), number(data, "byteDepth")
    unacknowledged = min(depth, number(data, "unackedMessages"))
    ready = depth - unacknowledged
    paged, paged_bytes = number(data, "msgFtdDepth"), number(data, "byteFtdDepth")
    base = None if seen.base is None else seen.base.objects.get(data.key)
    change = 0.0 if base is None or not seen.seconds else round((depth - number(base, "msgDepth")) / seen.seconds, 2)
    held = number(base, "unackedMessages")
    change_held = 0.0 if base is None or not seen.seconds else round((unacknowledged - held) / seen.seconds, 2)
    has_members = arguments.get("x-queue-type") in ("quorum", "stream")
    return {
        **({"leader": node, "members": [node], "online": [node]} if has_members else {}),
        "name": local(data.key),
        "vhost": vhost_of(data),
        "durable": bool(values.get("durable")),
        "auto_delete": bool(values.get("autoDelete")),
        "exclusive": bool(values.get("exclusive")),
        "arguments": arguments,
        "type": arguments.get("x-queue-type") or "classic",
        "node": node,
        "state": "flow" if values.get("flowStopped") else "running",
        "policy": (policy.get("policy") or None) if policy else None,
        "operator_policy": (policy.get("operatorPolicy") or None) if policy else None,
        "effective_policy_definition": plain(policy.get("definition") or {}) if policy else {},
        "consumers": number(data, "consumerCount"),
        "consumer_utilisation": None,
        "consumer_capacity": None,
        "exclusive_consumer_tag": (head.get("exclusiveConsumer") or None) if head else None,
        "single_active_consumer_tag": (head.get("singleActiveConsumer") or None) if head else None,
        "recoverable_slaves": None,
        "head_message_timestamp": head.get("headCreatedAt") if head else None,
        **idle(seen.idle_since(data.key)),
        "memory": max(0, size - paged_bytes),
        **with_rate("messages", depth, change),
        **with_rate("messages_ready", ready, round(change - change_held, 2)),
        **with_rate("messages_unacknowledged", unacknowledged, change_held),
        "messages_ram": max(0, depth - paged),
        "messages_ready_ram": max(0, ready - paged),
        "messages_unacknowledged_ram": unacknowledged,
        "messages_persistent": number(data, "msgPersistEnqueues") - number(data, "msgPersistDequeues"),
        "messages_paged_out": paged,
        "message_bytes": size,
        "message_bytes_ready": size * ready // depth if depth else 0,
        "message_bytes_unacknowledged": size - (size * ready // depth) if depth else 0,
        "message_bytes_ram": max(0, size - paged_bytes),
        "message_bytes_persistent": number(data, "bytePersistEnqueues") - number(data, "bytePersistDequeues"),
        "message_bytes_paged_out": paged_bytes,
        "message_stats": message_stats(seen, data),
        "alternate_exchange": local(reference(values.get("altExchange"))) or None,
        "bindings": number(data, "bindingCount"),
        "discarded": {
            name.removeprefix("discards").lower(): number(data, name) for name in (*_DISCARDS, "discardsOverflow")
        },
        "user_who_performed_action": user_name(values.get("creator")),
    }


def exchange_row(seen: Seen, data: Data) -> Row:
    """An exchange."""
    values, name = data.values, local(data.key)
    received, routed = number(data, "msgReceives"), number(data, "msgRoutes")
    stats = {
        **with_rate("publish_in", received, seen.rate(data.key, "msgReceives")),
        **with_rate("publish_out", routed, seen.rate(data.key, "msgRoutes")),
    }
    arguments = plain(values.get("arguments") or {})
    is_internal = arguments.pop(INTERNAL, None) is not None
    alternate = local(reference(values.get("altExchange")))
    return {
        "name": name,
        "vhost": vhost_of(data),
        "type": values.get("type"),
        "durable": bool(values.get("durable")) or not name,
        "auto_delete": bool(values.get("autoDelete")),
        "internal": is_internal,
        "arguments": {"alternate-exchange": alternate, **arguments} if alternate else arguments,
        "policy": values.get("policy") or None,
        "user_who_performed_action": "",
        **({"message_stats": stats} if received else {}),
    }


def binding_row(vhost: str, source: str, destination: str, kind: str, key: str, arguments: Mapping[str, Any]) -> Row:
    """A binding."""
    shown = {name: value for name, value in plain(dict(arguments)).items() if name != "x-match" or value != "all"}
    return {
        "source": source,
        "vhost": vhost,
        "destination": destination,
        "destination_type": kind,
        "routing_key": key,
        "arguments": shown,
        "properties_key": properties_key(key, shown),
    }


def binding_rows(queues: Iterable[Data], exchanges: Iterable[Data]) -> Iterable[Row]:
    """All bindings.

    Args:
        queues: the bindings to queues.
        exchanges: those to exchanges.
    """
    for kind, field, found in (("queue", "queueRef", queues), ("exchange", "destinationRef", exchanges)):
        for data in found:
            vhost, source = split_name(reference(data.get("exchangeRef")))
            target = local(reference(data.get(field)))
            if kind == "queue" and _is_console_queue(target):
                continue
            key = client_key(str(data.get("bindingKey") or ""))
            yield binding_row(vhost, source, target, kind, key, data.get("arguments") or {})


# ---- connections, channels, consumers ----


def connection_name(peer: str, broker: str) -> str:
    """What a connection is called."""
    return f"{peer} -> {broker}"


@cache
def _suites() -> Mapping[str, Mapping[str, Any]]:
    """OpenSSL's name of a cipher suite -> its parts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    return {str(each["name"]): each for each in context.get_ciphers()}


def _suite(name: str) -> tuple[str | None, str | None, str | None]:
    """Key exchange, cipher and hash of a cipher suite, in Erlang's words; None if this machine does not know it."""
    found = _suites().get(name)
    if found is None:
        return None, None, None
    exchange, signature = (str(found[part]).partition("-")[2] for part in ("kea", "auth"))
    parts = dict.fromkeys(part.replace("-", "_") for part in (exchange, signature))
    digest = "aead" if found["aead"] else str(found["digest"]).replace("sha1", "sha")
    return "_".join(parts), str(found["symmetric"]).replace("-", "_"), digest


def _tls(details: Data | None) -> Row:
    """What a row of a connection has of TLS."""
    given = {} if details is None else details.values
    exchange, cipher, digest = _suite(str(given.get("tlsCipher") or ""))
    return {
        "ssl": bool(given.get("tls")),
        "ssl_protocol": str(given.get("tlsVersion") or "").lower() or None,
        "ssl_key_exchange": exchange,
        "ssl_cipher": cipher,
        "ssl_hash": digest,
        "peer_cert_subject": given.get("peerSubject") or None,
        "peer_cert_issuer": given.get("peerIssuer") or None,
        "peer_cert_validity": given.get("peerValidity") or None,
    }


def connection_row(seen: Seen, data: Data, broker: str, channels: int, node: str, details: Data | None = None) -> Row:
    """A connection.

    Args:
        seen: the connections.
        data: the connection.
        broker: host and port of the broker.
        channels: how many channels it has.
        node: the broker's name.
        details: its `clientConnection`; None if it is not needed.
    """
    values, peer = data.values, str(data.get("address"))
    host, _, port = peer.rpartition(":")
    local, _, local_port = broker.rpartition(":")
    known = plain(values.get("remoteProperties") or {})
    return {
        "name": connection_name(peer, broker),
        "vhost": vhost_of(data),
        "user": user_name(values.get("authIdentity")),
        "user_who_performed_action": user_name(values.get("authIdentity")),
        "user_provided_name": known.get("connection_name"),
        "node": node,
        "state": "closing" if values.get("closing") else "running",
        "type": "network",
        "protocol": values.get("protocol"),
        "auth_mechanism": values.get("saslMechanism"),
        **_tls(details),
        "peer_host": host.strip("[]"),
        "peer_port": int(port) if port.isdecimal() else 0,
        "host": local.strip("[]"),
        "port": int(local_port) if local_port.isdecimal() else 0,
        "channels": channels,
        "channel_max": number(details, "channelMax"),
        "frame_max": number(details, "frameMax"),
        "timeout": number(details, "heartbeat"),
        "connected_at": data.created // 1_000_000,
        "client_properties": known,
        **with_rate("recv_oct", number(data, "bytesFromClient"), seen.rate(data.key, "bytesFromClient")),
        **with_rate("send_oct", number(data, "bytesToClient"), seen.rate(data.key, "bytesToClient")),
        "recv_cnt": number(data, "framesFromClient"),
        "send_cnt": number(data, "framesToClient"),
        "send_pend": 0,
        "messages_received": number(data, "msgsFromClient"),
        "messages_sent": number(data, "msgsToClient"),
    }


def channel_row(
    data: Data,
    connection: Row | None,
    consumers: list[Data],
    node: str,
    details: Data | None = None,
    since: float | None = None,
) -> Row:
    """A channel.

    Args:
        data: the session.
        connection: the row of its connection.
        consumers: its subscriptions.
        node: the broker's name.
        details: its `clientSession`; None if it is not needed.
        since: since when it is idle, in seconds since 1970; None if it is not.
    """
    values, name = data.values, "" if connection is None else connection["name"]
    channel = number(data, "channelId")
    delivered = sum(number(each, "delivered") for each in consumers)
    return {
        "name": f"{name} ({channel})" if connection else str(values.get("name")),
        "number": channel,
        "vhost": vhost_of(data),
        "user": "" if connection is None else connection["user"],
        "user_who_performed_action": "" if connection is None else connection["user"],
        "node": node,
        "state": "running" if values.get("attached") else "detached",
        "connection_details": {
            "name": name,
            "peer_host": connection["peer_host"] if connection else "",
            "peer_port": connection["peer_port"] if connection else 0,
        },
        "consumer_count": len(consumers),
        "messages_unacknowledged": number(data, "unackedMessages"),
        "messages_unconfirmed": number(data, "framesOutstanding"),
        "messages_uncommitted": number(details, "txnPublished"),
        "acks_uncommitted": number(details, "txnSettled"),
        "prefetch_count": number(details, "prefetch"),
        "global_prefetch_count": number(details, "sharedPrefetch"),
        "transactional": bool(details and details.get("transactional")),
        "confirm": bool(details and details.get("confirms")),
        **idle(since),
        "message_stats": {**with_rate("deliver", delivered, 0.0), **with_rate("deliver_get", delivered, 0.0)},
    }


def _activity(details: Data | None) -> str:
    if details is None:
        return "up"
    if not details.get("active"):
        return "waiting"
    return "single_active" if details.get("singleActive") else "up"


def consumer_row(data: Data, channel: Row | None, vhost: str, about: Data | None) -> Row:
    """A consumer; `about` is its `clientSubscription`, None if it has ended."""
    details = {} if channel is None else channel["connection_details"]
    return {
        "consumer_tag": data.get("name"),
        "subscription": data.key,
        "queue": {"name": local(reference(data.get("queueRef"))), "vhost": vhost},
        "ack_required": bool(data.get("acknowledged")),
        "exclusive": bool(data.get("exclusive")),
        "active": _activity(about) != "waiting",
        "activity_status": _activity(about),
        "prefetch_count": None if about is None else number(about, "prefetch"),
        "arguments": plain(data.get("arguments") or {}),
        "channel_details": {
            "name": "" if channel is None else channel["name"],
            "number": 0 if channel is None else channel["number"],
            "connection_name": details.get("name", ""),
            "peer_host": details.get("peer_host", ""),
            "peer_port": details.get("peer_port", 0),
            "user": "" if channel is None else channel["user"],
            "node": "" if channel is None else channel["node"],
        },
    }
