"""What the client raises.

    MessagingError
        AddressError                an address string that cannot be read (with the position), or a wrong option
        UrlError                    a broker's URL, or an option of a connection, that cannot be used
        ContentError                content without an encoding, or bytes that are not what they are said to be
        ConnectionFailedError       the connection, with all its sessions
            ConnectError            none could be made; AuthenticationError among the reasons
            HeartbeatError          nothing was heard of the broker
            ConnectionClosedError   closed, by us or by the broker
        SessionError                the session ended, with the broker's code and text
            TransactionError        TransactionAborted (nothing happened), TransactionUnknown (it may have)
            SessionClosedError
        AcknowledgeUnknown          the connection was lost before the broker confirmed: messages may come again
        LinkError                   one sender or receiver
            NotFound                no such queue or exchange, and the address creates none
            AssertionFailed         there is one, but not as the address asserts
            LinkClosedError
        Timeout                     the time given was over
            Empty                   fetch: no message in that time

A subclass says how far the damage goes: after a link error the session goes on, after a session error the
connection does. The names without "Error" are those of the Qpid Messaging API.
"""

from __future__ import annotations


class MessagingError(Exception):
    """Anything that goes wrong in the client; its text is one line for people."""


class AddressError(MessagingError):
    """An address string that cannot be used.

    Attributes:
        position: where in the text, counted from 0; None where the error is in what an option says.
    """

    def __init__(self, what: str, text: str, position: int | None = None) -> None:
        place = "" if position is None else f" at position {position}"
        super().__init__(f"address {text!r}: {what}{place}")
        self.position = position


class UrlError(MessagingError):
    """A broker's URL, or an option of a connection, that cannot be used."""


class ContentError(MessagingError):
    """A message's content or properties cannot be encoded, or its bytes are not what they claim to be."""


class ConnectionFailedError(MessagingError):
    """The connection failed, with all its sessions."""


class ConnectError(ConnectionFailedError):
    """No connection could be made."""


class AuthenticationError(ConnectError):
    """The broker does not accept who we say we are, or shares no SASL mechanism with us."""


class HeartbeatError(ConnectionFailedError):
    """Nothing was heard of the broker for two heartbeat intervals."""


class ConnectionClosedError(ConnectionFailedError):
    """The connection is closed: by us, or by the broker, which said why."""


class SessionError(MessagingError):
    """The broker ended the session.

    Attributes:
        code: the execution error code or detach code, 0 where there is none.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class SessionClosedError(SessionError):
    """The session was closed by the application."""


class TransactionError(SessionError):
    """A transactional call that could not be done."""


class TransactionAborted(TransactionError):  # noqa: N818 (the API's name)
    """The transaction is rolled back: the connection or the session was lost in it."""


class TransactionUnknown(TransactionError):  # noqa: N818 (the API's name)
    """The connection was lost while the commit was under way: it may or may not have happened."""


class AcknowledgeUnknown(MessagingError):  # noqa: N818 (as TransactionUnknown)
    """The connection was lost before the broker confirmed what was acknowledged: it may deliver the messages again."""


class LinkError(MessagingError):
    """A sender or receiver could not be made, or can no longer be used."""


class NotFound(LinkError):  # noqa: N818 (the API's name)
    """No queue or exchange has the address's name."""


class AssertionFailed(LinkError):  # noqa: N818 (the API's name)
    """The node is not what the address asserts."""


class LinkClosedError(LinkError):
    """The sender or receiver is closed."""


class Timeout(MessagingError):  # noqa: N818 (the API's name)
    """The time that was given is over."""


class Empty(Timeout):
    """No message came in the time that was given."""
