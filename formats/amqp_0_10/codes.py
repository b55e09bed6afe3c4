"""Enumerations of AMQP 0-10: one for each domain of the specification with a fixed choice of numbers.

Decoded fields hold plain numbers: a peer may send an undefined one, for which `ErrorCode(number)` raises
ValueError.

Source: the AMQP 0-10 specification as XML, `<domain>` elements with an `<enum>`, in its order.
"""

from __future__ import annotations

from enum import IntEnum


class CloseCode(IntEnum):
    """connection.close-code: why a connection ends."""

    NORMAL = 200
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    FRAMING_ERROR = 501


class DetachCode(IntEnum):
    """session.detach-code: why a session was detached."""

    NORMAL = 0
    SESSION_BUSY = 1
    TRANSPORT_BUSY = 2
    NOT_ATTACHED = 3
    UNKNOWN_IDS = 4


class ErrorCode(IntEnum):
    """execution.error-code: why a command failed."""

    UNAUTHORIZED_ACCESS = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    RESOURCE_DELETED = 408
    ILLEGAL_STATE = 409
    COMMAND_INVALID = 503
    RESOURCE_LIMIT_EXCEEDED = 506
    NOT_ALLOWED = 530
    ILLEGAL_ARGUMENT = 531
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541
    INVALID_ARGUMENT = 542


class AcceptMode(IntEnum):
    """message.accept-mode: whether the receiver must accept a transferred message."""

    EXPLICIT = 0
    NONE = 1


class AcquireMode(IntEnum):
    """message.acquire-mode: whether a transferred message is acquired by the receiver at once."""

    PRE_ACQUIRED = 0
    NOT_ACQUIRED = 1


class RejectCode(IntEnum):
    """message.reject-code: why a message was rejected."""

    UNSPECIFIED = 0
    UNROUTABLE = 1
    IMMEDIATE = 2


class DeliveryMode(IntEnum):
    """message.delivery-mode: whether a message survives a restart of the broker."""

    NON_PERSISTENT = 1
    PERSISTENT = 2


class DeliveryPriority(IntEnum):
    """message.delivery-priority: the priority of a message."""

    LOWEST = 0
    LOWER = 1
    LOW = 2
    BELOW_AVERAGE = 3
    MEDIUM = 4
    ABOVE_AVERAGE = 5
    HIGH = 6
    HIGHER = 7
    VERY_HIGH = 8
    HIGHEST = 9


class FlowMode(IntEnum):
    """message.flow-mode: whether credit is given explicitly, or replenished as transfers are completed."""

    CREDIT = 0
    WINDOW = 1


class CreditUnit(IntEnum):
    """message.credit-unit: the unit of credit."""

    MESSAGE = 0
    BYTE = 1


class XaStatus(IntEnum):
    """dtx.xa-status: the outcome of a command on a branch of a distributed transaction."""

    XA_OK = 0
    XA_RBROLLBACK = 1
    XA_RBTIMEOUT = 2
    XA_HEURHAZ = 3
    XA_HEURCOM = 4
    XA_HEURRB = 5
    XA_HEURMIX = 6
    XA_RDONLY = 7


class ReturnCode(IntEnum):
    """file.return-code and stream.return-code: why a message was returned."""

    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
