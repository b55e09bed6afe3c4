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

    errors, url, options, address, address_options    what users write, and what goes wrong
    content, message                                  messages, to bytes and back
    machine                                           the sans-I/O machines, with this client's errors
    driver, interruption, numbers                     what the core needs of the world, and of itself
    resolution                                        from addresses to queues and exchanges
    core_sender, core_receiver, core_session, core_connection
    threaded, blocking                                the face whose calls wait
    asyncio_driver, aio                               the face whose calls are awaited
"""

from __future__ import annotations

from broker.client.blocking import Connection, Receiver, Sender, Session
from broker.client.errors import (
    AcknowledgeUnknown,
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
    "AcknowledgeUnknown",
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
