"""The errors of the client.

    MessagingError
        AddressError                an address string with a syntax error (with the position) or an invalid option
        UrlError                    an invalid broker URL or connection option
        UnsupportedError            the connection's protocol has no such operation
        ContentError                content or names that cannot be encoded, or bytes not of their content type
        ConnectionFailedError       the connection has failed, with all its sessions
            ConnectError            no connection could be opened; AuthenticationError is a subclass
            HeartbeatError          the broker has sent nothing for two heartbeat intervals
            ConnectionClosedError   closed by the application or by the broker
        SessionError                the session has ended, with the broker's code and text
            TransactionError        TransactionAborted (rolled back), TransactionUnknown (committed or not)
            SessionClosedError
        AcknowledgeUnknown          the connection was lost before the broker confirmed: messages may be redelivered
        LinkError                   one sender or receiver has failed
            NotFound                no such queue or exchange, and the address does not create it
            AssertionFailed         the queue or exchange is not as the address asserts
            LinkClosedError
            SendError               a message was not taken: MessageRejected, MessageReleased
        Timeout                     the given time has passed
            Empty                   fetch: no message arrived in time

The class shows the extent of the failure: after a link error the session remains usable, after a session error the
connection does. The names without "Error" are those of the Qpid Messaging API.
"""

from __future__ import annotations


class MessagingError(Exception):
    """Base class of the client's errors. The text is one line for the user."""


class AddressError(MessagingError):
    """An invalid address string.

    Attributes:
        position: offset of a syntax error in the text; None if an option is invalid.
    """

    def __init__(self, what: str, text: str, position: int | None = None) -> None:
        place = "" if position is None else f" at position {position}"
        super().__init__(f"address {text!r}: {what}{place}")
        self.position = position


class UrlError(MessagingError):
    """An invalid broker URL or connection option."""


class UnsupportedError(MessagingError):
    """The protocol of the connection has no such operation."""


class ContentError(MessagingError):
    """Content, a property or a name cannot be encoded, or a message's bytes are not of their content type."""


class ConnectionFailedError(MessagingError):
    """The connection has failed, with all its sessions."""


class ConnectError(ConnectionFailedError):
    """No connection could be opened."""


class AuthenticationError(ConnectError):
    """The broker has refused the credentials, or offers no SASL mechanism that the client can use."""


class HeartbeatError(ConnectionFailedError):
    """The broker has sent nothing for two heartbeat intervals."""


class ConnectionClosedError(ConnectionFailedError):
    """The connection was closed by the application, or by the broker with a reason."""


class ConnectionRedirected(ConnectionClosedError):  # noqa: N818 (as NotFound)
    """The broker has closed the connection, and named another one: it is not followed, even with `reconnect`.

    Attributes:
        host: the host to connect to; empty if the broker does not say it.
        port: its port; 0 if the broker does not say it.
    """

    def __init__(self, text: str, host: str = "", port: int = 0) -> None:
        super().__init__(text)
        self.host, self.port = host, port


class SessionError(MessagingError):
    """The broker has ended the session.

    Attributes:
        code: the execution error code or detach code; 0 if there is none.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class SessionClosedError(SessionError):
    """The session was closed by the application."""


class TransactionError(SessionError):
    """A transactional call has failed."""


class TransactionAborted(TransactionError):  # noqa: N818 (the API's name)
    """The transaction was rolled back, since its connection or session was lost."""


class TransactionUnknown(TransactionError):  # noqa: N818 (the API's name)
    """The connection was lost during the commit: the transaction may or may not be committed."""


class AcknowledgeUnknown(MessagingError):  # noqa: N818 (as TransactionUnknown)
    """The connection was lost before the broker confirmed acknowledgements: it may redeliver the messages."""


class LinkError(MessagingError):
    """A sender or receiver could not be created, or has failed."""


class NotFound(LinkError):  # noqa: N818 (the API's name)
    """The address's queue or exchange does not exist."""


class LinkRedirected(LinkError):  # noqa: N818 (as NotFound)
    """The broker has detached a sender or receiver, and named another node: it is not followed.

    Attributes:
        host, port: as of `ConnectionRedirected`.
        address: of the node there; empty if the broker does not say it.
    """

    def __init__(self, text: str, host: str = "", port: int = 0, address: str = "") -> None:
        super().__init__(text)
        self.host, self.port, self.address = host, port, address


class AssertionFailed(LinkError):  # noqa: N818 (the API's name)
    """The queue or exchange is not as the address asserts."""


class LinkClosedError(LinkError):
    """The sender or receiver is closed."""


class SendError(LinkError):
    """The broker has not taken a message; the sender remains usable."""


class MessageRejected(SendError):  # noqa: N818 (the API's name)
    """The broker has rejected a message, with its reason."""


class MessageReleased(SendError):  # noqa: N818 (the API's name)
    """The broker has not processed a message: no queue has taken it."""


class Timeout(MessagingError):  # noqa: N818 (the API's name)
    """The given time has passed."""


class Empty(Timeout):
    """No message arrived in time."""


class InterruptedByLoss(MessagingError):  # noqa: N818 (internal, never seen by the application)
    """The connection was lost during a command; the operation is repeated on the next connection."""
