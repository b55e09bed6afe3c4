"""The AMQP 0-10 client, in the shape of the Qpid Messaging API.

    with Connection("localhost:5672") as connection:
        session = connection.session()
        sender = session.sender("orders; {create: always, node: {durable: true}}")
        sender.send(Message("hello", durable=True))     # returns when the broker has it on disk
        receiver = session.receiver("orders")
        message = receiver.fetch(timeout=1)
        session.acknowledge(message)

There is one core, written as coroutines that wait for one thing only: that something changed. Two faces drive it:
`blocking` (this package's names), whose connections each own a thread that reads and writes the socket, and `aio`,
the same calls as coroutines of asyncio.

Modules, in the order in which they build on each other:

    errors, url, options, address, address_options, content, message      values and texts
    driver                                                                 what a core needs of the world around it
    core_connection, core_session, resolution, core_links                  the core
    threaded, blocking; aio                                                its two faces
"""

from __future__ import annotations

from broker.client.blocking import Connection, Receiver, Sender, Session
from broker.client.errors import (
    AddressError,
    AssertionFailed,
    AuthenticationError,
    ConnectError,
    ConnectionClosedError,
    ConnectionFailedError,
    ContentError,
    Empty,
    HeartbeatError,
    LinkClosedError,
    LinkError,
    MessagingError,
    NotFound,
    SessionClosedError,
    SessionError,
    Timeout,
    TransactionAborted,
    TransactionError,
    TransactionUnknown,
    UrlError,
)
from broker.client.message import Message

__all__ = [
    "AddressError",
    "AssertionFailed",
    "AuthenticationError",
    "ConnectError",
    "Connection",
    "ConnectionClosedError",
    "ConnectionFailedError",
    "ContentError",
    "Empty",
    "HeartbeatError",
    "LinkClosedError",
    "LinkError",
    "Message",
    "MessagingError",
    "NotFound",
    "Receiver",
    "Sender",
    "Session",
    "SessionClosedError",
    "SessionError",
    "Timeout",
    "TransactionAborted",
    "TransactionError",
    "TransactionUnknown",
    "UrlError",
]
