"""The client for AMQP 0-10 and 1.0, with the interface of the Qpid Messaging API.

    with Connection("localhost:5672") as connection:
        session = connection.session()
        sender = session.sender("orders; {create: always, node: {durable: true}}")
        sender.send(Message("hello", durable=True))     # returns when the broker has stored it durably
        receiver = session.receiver("orders")
        message = receiver.fetch(timeout=1)
        session.acknowledge(message)

The connection option `protocol` selects the protocol: `amqp0-10`, the default, or `amqp1.0`.

The core is written as coroutines that only ever wait for a change of its state. It has two interfaces: `blocking`
(exported by this package), in which each connection has a thread that reads and writes the socket, and `aio`, the same
calls as asyncio coroutines.

Modules, in the order in which they build on each other:

    errors, options, address, message   errors; URLs and options; the syntax of addresses; messages and their encoding
    links, session                      the core: senders and receivers, sessions, across reconnects
    amqp_0_10, amqp_1_0                 by protocol: sans-I/O `machine`, `links`, `session`; 1.0 has a `message`
    connection                          a connection, across reconnects
    blocking, aio                       the two interfaces, each with its driver of socket and clock
"""

from __future__ import annotations

from qstore.broker.client.blocking import Connection, Receiver, Sender, Session
from qstore.broker.client.errors import (
    AcknowledgeUnknown,
    AddressError,
    AssertionFailed,
    AuthenticationError,
    ConnectError,
    ConnectionClosedError,
    ConnectionFailedError,
    ConnectionRedirected,
    ContentError,
    Empty,
    HeartbeatError,
    LinkClosedError,
    LinkError,
    LinkRedirected,
    MessageRejected,
    MessageReleased,
    MessagingError,
    NotFound,
    SendError,
    SessionClosedError,
    SessionError,
    Timeout,
    TransactionAborted,
    TransactionError,
    TransactionUnknown,
    UnsupportedError,
    UrlError,
)
from qstore.broker.client.message import Message

__all__ = [
    "AcknowledgeUnknown",
    "AddressError",
    "AssertionFailed",
    "AuthenticationError",
    "ConnectError",
    "Connection",
    "ConnectionClosedError",
    "ConnectionFailedError",
    "ConnectionRedirected",
    "ContentError",
    "Empty",
    "HeartbeatError",
    "LinkClosedError",
    "LinkError",
    "LinkRedirected",
    "Message",
    "MessageRejected",
    "MessageReleased",
    "MessagingError",
    "NotFound",
    "Receiver",
    "SendError",
    "Sender",
    "Session",
    "SessionClosedError",
    "SessionError",
    "Timeout",
    "TransactionAborted",
    "TransactionError",
    "TransactionUnknown",
    "UnsupportedError",
    "UrlError",
]
