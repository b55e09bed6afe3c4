"""The blocking client: connections, sessions, senders and receivers.

It is thread-safe: threads may share a connection with its sessions. See `broker.client` for an example.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from qstore.broker.client.core_connection import ConnectionCore, ConnectionState
from qstore.broker.client.core_receiver import ReceiverCore
from qstore.broker.client.core_sender import SenderCore
from qstore.broker.client.core_session import SessionCore
from qstore.broker.client.errors import Empty, MessagingError
from qstore.broker.client.message import Message
from qstore.broker.client.threaded import ThreadedDriver

SENDER_CAPACITY: Final = 1000


class Connection:
    """A connection to a broker.

    Args:
        url: the broker's URL, see `url`.
        options: see `options.ConnectionOptions`.

    Raises:
        UrlError: the URL or an option is invalid.
    """

    def __init__(self, url: str = "localhost", **options: Any) -> None:
        self._core = ConnectionCore(url, options)
        self._driver = ThreadedDriver(self._core)
        self._core.driver = self._driver

    @classmethod
    def establish(cls, url: str = "localhost", **options: Any) -> Connection:
        """Create and open a connection. Raises as the constructor and `open` do."""
        connection = cls(url, **options)
        connection.open()
        return connection

    def open(self) -> None:
        """Connect.

        Raises:
            ConnectError: the broker cannot be reached, or has refused the connection (AuthenticationError).
        """
        self._driver.start()
        try:
            self._driver.run(self._core.open())
        except BaseException:
            self._driver.stop()
            raise

    def session(self, name: str | None = None, *, transactional: bool = False) -> Session:
        """Open a session.

        Args:
            name: the session's name; None for a unique one.
            transactional: whether messages and acknowledgements take effect at `commit`.

        Raises:
            MessagingError: the connection is closed or has failed, or the broker has refused the session.
        """
        return Session(self, self._driver.run(self._core.session(name, is_transactional=transactional)))

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and neither closed nor has failed."""
        return self._core.state in (ConnectionState.OPEN, ConnectionState.CONNECTING)

    def close(self, timeout: float | None = None) -> None:
        """Close all sessions and the connection, after the broker has completed all messages and acknowledgements.

        Args:
            timeout: maximum seconds to wait; None for no limit. With 0 unfinished operations are not reported.

        Raises:
            Timeout: operations are unfinished; the text lists them.
            ConnectionFailedError: operations are unfinished, because the connection was lost.
            SessionError: operations are unfinished, because the broker has ended a session.
            LinkError: operations are unfinished, because a sender or receiver has failed.
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
        # After an error do not wait for unfinished operations.
        self.close(None if error is None else 0)


class Session:
    """A session: an ordered sequence of operations, optionally in transactions.

    Attributes:
        connection: its connection.
    """

    def __init__(self, connection: Connection, core: SessionCore) -> None:
        self.connection = connection
        self._core = core
        self._driver = connection._driver
        self._receivers: dict[ReceiverCore, Receiver] = {}

    def sender(self, address: str, *, capacity: int = SENDER_CAPACITY) -> Sender:
        """Create a sender.

        Args:
            address: the address to send to, see `address` and `address_options`.
            capacity: maximum number of messages that the broker has not completed.

        Raises:
            AddressError: the address is invalid.
            NotFound, AssertionFailed: the queue or exchange does not exist, or is not as the address asserts.
            MessagingError: the session or its connection has failed.
        """
        return Sender(self, self._driver.run(self._core.sender(address, capacity)))

    def receiver(self, address: str, *, capacity: int = 0) -> Receiver:
        """Create a receiver. Raises as `sender` does.

        Args:
            address: the address to receive from.
            capacity: number of messages to prefetch.
        """
        core = self._driver.run(self._core.receiver(address, capacity))
        receiver = self._receivers[core] = Receiver(self, core)
        return receiver

    def next_receiver(self, timeout: float | None = None) -> Receiver:
        """Wait for a receiver with a message.

        Args:
            timeout: maximum seconds to wait; None for no limit.

        Raises:
            Empty: no message arrived in time.
            MessagingError: the session or its connection has failed.
        """
        driver = self._driver
        deadline = None if timeout is None else driver.now() + timeout
        core = driver.run(self._core.next_receiver(deadline))
        if core is None:
            raise Empty("no receiver has a message")
        return self._receivers[core]

    def acknowledge(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Accept a message, or all fetched messages.

        Args:
            message: the message; None for all.
            sync: whether to wait until the broker has completed it.

        Raises:
            AcknowledgeUnknown: the connection was lost before the broker confirmed it.
            MessagingError: the session or its connection has failed.
        """
        self._settle(message, "message.accept", sync=sync)

    def release(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Return a message, or all fetched messages, to the queue, marked as redelivered. See `acknowledge`."""
        self._settle(message, "message.release", sync=sync, set_redelivered=True)

    def reject(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Reject a message, or all fetched messages: the broker drops or reroutes them. See `acknowledge`."""
        self._settle(message, "message.reject", sync=sync, code=0)

    def _settle(self, message: Message | None, name: str, *, sync: bool, **values: Any) -> None:
        with self._driver.lock:
            number = self._core.settle(message, name, **values)
            if sync:
                self._driver.run(self._core.wait_done(number))

    def invoke(self, command: str, /, **values: Any) -> Mapping[str, Any]:
        """Send any command of AMQP 0-10, such as "queue.declare", and wait until the broker has completed it.

        Args:
            command: its class and name.
            values: its fields, with underscores in their names; maps are `TypedMap`.

        Returns:
            The fields of its result; empty if it has none.

        Raises:
            SessionError: the broker has refused it, and ended the session.
            MessagingError: the session or its connection has failed.
        """
        commands = self._core.commands
        return self._driver.run(commands.retry(lambda: commands.invoke_all([(command, values)])))[0]

    def sync(self) -> None:
        """Wait until the broker has completed all commands of the session.

        Raises:
            AcknowledgeUnknown: a connection was lost before the broker confirmed acknowledgements.
            MessagingError: the session or its connection has failed.
        """
        self._driver.run(self._core.sync())

    def commit(self) -> None:
        """Commit the transaction, and begin another.

        Raises:
            TransactionAborted: it was rolled back.
            TransactionUnknown: the connection was lost during the commit, so the outcome is unknown.
            TransactionError: the session is not transactional.
        """
        self._driver.run(self._core.commit())

    def rollback(self) -> None:
        """Roll the transaction back, and begin another. Messages received in it are delivered again.

        Raises:
            TransactionError: the session is not transactional.
            MessagingError: the session or its connection has failed.
        """
        self._driver.run(self._core.rollback())

    def close(self) -> None:
        """Close the session, after the broker has completed all messages and acknowledgements.

        Raises:
            MessagingError: operations are unfinished, because the session, a link or the connection has failed.
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
        # Do not hide the error by another one, and do not wait for unfinished operations.
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
        """Maximum number of messages that the broker has not completed."""
        return self._core.capacity

    def send(self, message: Message | Any, *, sync: bool = True, timeout: float | None = None) -> None:
        """Send a message.

        Args:
            message: a `Message`, or the content of one.
            sync: whether to wait until the broker has completed it, which includes durable storage if the message and
                its queue are durable.
            timeout: maximum seconds to wait; None for no limit.

        Raises:
            Timeout: the time has passed. The message may have been sent.
            ContentError: the message cannot be encoded.
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
        """Wait until the broker has completed all messages sent.

        Raises:
            Timeout: the time has passed.
            MessagingError: the sender, its session or its connection has failed.
        """
        self._driver.run(self._core.sync(timeout))

    @property
    def name(self) -> str:
        """The name of its queue or exchange."""
        return self._core.target.name

    def unsettled(self) -> int:
        """Number of messages that the broker has not completed."""
        return self._core.unsettled

    def settled(self) -> int:
        """Number of messages that the broker has completed."""
        return self._core.settled

    @property
    def is_reliable(self) -> bool:
        """Whether messages are confirmed by the broker, which is the default of an address."""
        return self._core.target.reliable is not False

    def available(self) -> int:
        """Number of messages that can be sent without waiting."""
        return max(0, self._core.capacity - self._core.unsettled)

    def close(self) -> None:
        """Close the sender, after the broker has completed all messages; delete the node if the address says so.

        Raises:
            MessagingError: operations are unfinished, because the sender, session or connection has failed.
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
        """Number of messages to prefetch."""
        return self._core.capacity

    @property
    def address(self) -> str:
        """The address with its actual name, for use as a reply-to."""
        return self._core.address

    def fetch(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Args:
            timeout: maximum seconds to wait; None for no limit.

        Raises:
            Empty: no message arrived in time.
            MessagingError: the receiver, its session or its connection has failed.
        """
        core, driver = self._core, self._driver
        with driver.lock:
            message = core.try_fetch()
        return driver.run(core.fetch(timeout)) if message is None else message

    def available(self) -> int:
        """Number of prefetched messages."""
        return len(self._core.incoming)

    def close(self) -> None:
        """Close the receiver; prefetched messages return to their queue. Delete the node if the address says so.

        Raises:
            MessagingError: operations are unfinished, because the receiver, session or connection has failed.
        """
        self.session._receivers.pop(self._core, None)
        self._driver.run(self._core.close())
