"""What the arguments of a queue's declaration say, read once.

    no-local                  the queue drops what its owner's connection publishes; that it is there is enough
    qpid.auto_delete_timeout  seconds that an auto-delete queue outlives its last use
    qpid.max_count            messages that it holds at most; 0 for no limit
    qpid.max_size             bytes of headers and content, likewise; without it the broker's limit holds
    qpid.policy_type          what is done at these two limits; only `reject`, which is done without it, is done here

A count is a whole number that is not negative, or a text of its digits; texts may come as bytes. Flow control and
alerts have more counts, which are checked here. What else a declaration may ask for, and what becomes of it, is in
`argument_table`. The queue keeps all its arguments as they came.

Sources: Qpid C++ Broker Book, 1.2.1; MRG 2 Messaging User Guide, 3; Qpid wiki, "Qpid extensions to AMQP".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.model.errors import InvalidArgumentError
from broker.model.queues.argument_table import as_text, shown
from formats.values import TypedMap

MAX_COUNT: Final = "qpid.max_count"
MAX_SIZE: Final = "qpid.max_size"
POLICY_TYPE: Final = "qpid.policy_type"
NO_LOCAL: Final = "no-local"
AUTO_DELETE_TIMEOUT: Final = "qpid.auto_delete_timeout"

REJECT: Final = "reject"
POLICIES: Final = (REJECT, "flow_to_disk", "ring", "ring_strict", "self-destruct")

#: Argument -> the largest value that it can have.
_COUNTS: Final = {
    MAX_COUNT: (1 << 64) - 1,
    MAX_SIZE: (1 << 64) - 1,
    AUTO_DELETE_TIMEOUT: (1 << 32) - 1,
    "qpid.flow_stop_count": (1 << 32) - 1,
    "qpid.flow_resume_count": (1 << 32) - 1,
    "qpid.flow_stop_size": (1 << 64) - 1,
    "qpid.flow_resume_size": (1 << 64) - 1,
    "qpid.alert_count": (1 << 64) - 1,
    "qpid.alert_size": (1 << 64) - 1,
    "qpid.alert_repeat_gap": (1 << 64) - 1,
    "x-qpid-maximum-message-count": (1 << 64) - 1,
    "x-qpid-maximum-message-size": (1 << 64) - 1,
    "x-qpid-minimum-alert-repeat-gap": (1 << 64) - 1,
}
_MOST_DIGITS: Final = 20  # of 2^64


class QueueArguments(NamedTuple):
    """What a queue is to be like.

    Attributes:
        most_messages: that it holds; 0 for no limit.
        most_bytes: of headers and content that it holds, 0 for no limit; None where nothing was said.
        policy: what is done at these limits.
        no_local: whether it drops what its owner's connection publishes.
        auto_delete_seconds: how long it stays when it is not used any more, if it is auto-delete.
    """

    most_messages: int = 0
    most_bytes: int | None = None
    policy: str = REJECT
    no_local: bool = False
    auto_delete_seconds: int = 0


#: Of a queue that was declared without any.
NO_ARGUMENTS: Final = QueueArguments()


def read_arguments(arguments: TypedMap) -> QueueArguments:
    """What the arguments of a declaration say.

    Raises:
        InvalidArgumentError: one cannot be understood.
    """
    given = {name: as_text(typed.value) for name, typed in arguments.entries}
    counts = {name: _count(name, given[name], most) for name, most in _COUNTS.items() if name in given}
    policy = given.get(POLICY_TYPE, REJECT)
    if policy not in POLICIES:
        raise InvalidArgumentError(f"{POLICY_TYPE} is {shown(policy)}, and not one of {', '.join(POLICIES)}")
    return QueueArguments(
        counts.get(MAX_COUNT, 0),
        counts.get(MAX_SIZE),
        policy,
        NO_LOCAL in given,
        counts.get(AUTO_DELETE_TIMEOUT, 0),
    )


def _count(name: str, value: object, most: int) -> int:
    count = value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS:
        count = int(value)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= most:
        raise InvalidArgumentError(f"{name} is {shown(value)}, and not a whole number of 0 to {most}")
    return count
