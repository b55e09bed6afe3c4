"""The client with calls that wait: connections, sessions, senders and receivers.

Threads may share a connection and all that belongs to it. See `broker.client` for an example.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, Final

from broker.client.core_connection import ConnectionCore, ConnectionState
from broker.client.core_receiver import ReceiverCore
from broker.client.core_sender import SenderCore
from broker.client.core_session import SessionCore
from broker.client.errors import Empty, MessagingError
from broker.client.message import Message
from broker.client.threaded import ThreadedDriver

SENDER_CAPACITY: Final = 1000


class Connection:
    """A connection to a broker.

    Args:
        url: where the broker is, see `url`.
        options: see `options.ConnectionOptions`.

    Raises:
        UrlError: the URL or an option cannot be used.
    """

    def __init__(self, url: str = "localhost", **options: Any) -> None:
        self._core = ConnectionCore(url, options)
        self._driver = ThreadedDriver(self._core)
        self._core.driver = self._driver

    @classmethod
    def establish(cls, url: str = "localhost", **options: Any) -> Connection:
        """A connection that is open. Raises as the constructor and `open` do."""
        connection = cls(url, **options)
        connection.open()
        return connection

    def open(self) -> None:
        """Connect.

        Raises:
            ConnectError: there is no broker, or it does not let us in (AuthenticationError).
        """
        self._driver.start()
        try:
            self._driver.run(self._core.open())
        except BaseException:
            self._driver.stop()
            raise

    def session(self, name: str | None = None, *, transactional: bool = False) -> Session:
        """A new session.

        Args:
            name: None for one that is unique.
            transactional: all that is sent and acknowledged waits for `commit`.

        Raises:
            MessagingError: there is no connection, or the broker does not let us have a session.
        """
        return Session(self, self._driver.run(self._core.session(name, is_transactional=transactional)))

    @property
    def is_open(self) -> bool:
        """It was opened and not closed, and has not failed."""
        return self._core.state in (ConnectionState.OPEN, ConnectionState.CONNECTING)

    def close(self, timeout: float | None = None) -> None:
        """Close all sessions and the connection, after the broker has completed what was sent and acknowledged.

        Args:
            timeout: seconds to wait at most, None for no limit. With 0 nothing is waited for, nor said of what is left.

        Raises:
            Timeout: something is left undone; the text says what.
            ConnectionFailedError: the same, because the connection was lost.
            SessionError: the same, because the broker ended a session.
            LinkError: a sender or receiver had failed, and something is left undone.
        """
        try:
            self._driver.run(self._core.close(timeout))
        finally:
            self._driver.stop()

    def __enter__(self) -> Connection:
        if not self.is_open:
            self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an error nothing that is still under way is waited for.
        self.close(None if error is None else 0)


class Session:
    """A session: the order in which things are done, and the transaction that they are done in.

    Attributes:
        connection: what it belongs to.
    """

    def __init__(self, connection: Connection, core: SessionCore) -> None:
        self.connection = connection
        self._core = core
        self._driver = connection._driver
        self._receivers: dict[ReceiverCore, Receiver] = {}

    def sender(self, address: str, *, capacity: int = SENDER_CAPACITY) -> Sender:
        """A sender.

        Args:
            address: where to, see `address` and `address_options`.
            capacity: messages that the broker has not completed, at most.

        Raises:
            AddressError: the address cannot be used.
            NotFound, AssertionFailed: there is no such node, or not as the address asserts.
            MessagingError: the session or its connection has failed.
        """
        return Sender(self, self._driver.run(self._core.sender(address, capacity)))

    def receiver(self, address: str, *, capacity: int = 0) -> Receiver:
        """A receiver. Raises as `sender` does.

        Args:
            address: where from.
            capacity: messages that the broker may send ahead of `fetch`.
        """
        core = self._driver.run(self._core.receiver(address, capacity))
        receiver = self._receivers[core] = Receiver(self, core)
        return receiver

    def next_receiver(self, timeout: float | None = None) -> Receiver:
        """The receiver whose `fetch` has a message.

        Raises:
            Empty: none has, within so many seconds.
            MessagingError: the session or its connection has failed.
        """
        driver = self._driver
        deadline = None if timeout is None else driver.now() + timeout
        core = driver.run(self._core.next_receiver(deadline))
        if core is None:
            raise Empty("no receiver has a message")
        return self._receivers[core]

    def acknowledge(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Accept a message, or all that were fetched.

        Args:
            message: None for all.
            sync: wait until the broker has done it.

        Raises:
            AcknowledgeUnknown: the connection was lost before the broker confirmed it.
            MessagingError: the session or its connection has failed.
        """
        self._settle(message, "message.accept", sync=sync)

    def release(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Put a message back where it was, marked as redelivered; or all that were fetched. See `acknowledge`."""
        self._settle(message, "message.release", sync=sync, set_redelivered=True)

    def reject(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Refuse a message, or all that were fetched: the broker drops or reroutes them. See `acknowledge`."""
        self._settle(message, "message.reject", sync=sync, code=0)

    def _settle(self, message: Message | None, name: str, *, sync: bool, **values: Any) -> None:
        with self._driver.lock:
            number = self._core.settle(message, name, **values)
            if sync:
                self._driver.run(self._core.wait_done(number))

    def sync(self) -> None:
        """Wait until the broker has done all that was asked of it.

        Raises:
            AcknowledgeUnknown: a connection was lost before the broker confirmed what was acknowledged.
            MessagingError: the session or its connection has failed.
        """
        self._driver.run(self._core.sync())

    def commit(self) -> None:
        """Commit the transaction; another begins.

        Raises:
            TransactionAborted: it is rolled back.
            TransactionUnknown: the connection was lost meanwhile, and nobody knows.
            TransactionError: the session is not transactional.
        """
        self._driver.run(self._core.commit())

    def rollback(self) -> None:
        """Take the transaction back; another begins. What was received in it is delivered again.

        Raises:
            TransactionError: the session is not transactional.
            MessagingError: the session or its connection has failed.
        """
        self._driver.run(self._core.rollback())

    def close(self) -> None:
        """Close it, after the broker has completed what was sent and acknowledged.

        Raises:
            MessagingError: it, one of its links or its connection has failed, and something is left undone.
        """
        self._driver.run(self._core.close())

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # That error is the one to be seen, and nothing that is still under way is waited for.
        with contextlib.suppress(MessagingError):
            self._driver.run(self._core.close(self._driver.now()))


class Sender:
    """Sends messages to one address."""

    def __init__(self, session: Session, core: SenderCore) -> None:
        self.session = session
        self._core = core
        self._driver = session._driver

    @property
    def capacity(self) -> int:
        """Messages that the broker has not completed, at most."""
        return self._core.capacity

    def send(self, message: Message | Any, *, sync: bool = True, timeout: float | None = None) -> None:
        """Send a message.

        Args:
            message: a `Message`, or what one should contain.
            sync: wait until the broker has completed it: until it is on the disk, if it and its queue are durable.
            timeout: seconds to wait at most.

        Raises:
            Timeout: the time is over. If it was waiting for the broker, the message is sent all the same.
            ContentError: there is no encoding for it.
            MessagingError: the sender, its session or its connection has failed.
        """
        if not isinstance(message, Message):
            message = Message(message)
        core, driver = self._core, self._driver
        if not sync:
            with driver.lock:
                if core.try_send(message) is not None:
                    return
        driver.run(core.send(message, sync=sync, timeout=timeout))

    def sync(self, timeout: float | None = None) -> None:
        """Wait until the broker has completed all that was sent.

        Raises:
            Timeout: the time is over.
            MessagingError: the sender, its session or its connection has failed.
        """
        self._driver.run(self._core.sync(timeout))

    def unsettled(self) -> int:
        """Messages that the broker has not completed."""
        return self._core.unsettled

    @property
    def is_reliable(self) -> bool:
        """The broker confirms messages: the address does not say otherwise."""
        return self._core.target.reliable is not False

    def available(self) -> int:
        """Messages that can be sent without waiting."""
        return max(0, self._core.capacity - self._core.unsettled)

    def close(self) -> None:
        """Close it, after the broker has completed what was sent; delete the node if the address says so.

        Raises:
            MessagingError: it, its session or its connection has failed, and something is left undone.
        """
        self._driver.run(self._core.close())


class Receiver:
    """Receives messages from one address."""

    def __init__(self, session: Session, core: ReceiverCore) -> None:
        self.session = session
        self._core = core
        self._driver = session._driver

    @property
    def capacity(self) -> int:
        """Messages that the broker may send ahead of `fetch`."""
        return self._core.capacity

    @property
    def address(self) -> str:
        """The address with the name that it has got, to be used as a reply-to."""
        return self._core.address

    def fetch(self, timeout: float | None = None) -> Message:
        """The next message.

        Args:
            timeout: seconds to wait for one; None for as long as it takes.

        Raises:
            Empty: there is none.
            MessagingError: the receiver, its session or its connection has failed.
        """
        core, driver = self._core, self._driver
        with driver.lock:
            message = core.try_fetch()
        return driver.run(core.fetch(timeout)) if message is None else message

    def available(self) -> int:
        """Messages that have come and wait to be fetched."""
        return len(self._core.incoming)

    def close(self) -> None:
        """Close it; what waits here goes back to its queue. Delete the node if the address says so.

        Raises:
            MessagingError: it, its session or its connection has failed, and something is left undone.
        """
        self.session._receivers.pop(self._core, None)
        self._driver.run(self._core.close())
