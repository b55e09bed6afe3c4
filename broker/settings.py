"""What a broker runs with: the values of its options, and the limits that no option sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_UNFINISHED_BYTES: Final = 1 << 30
"""Of unfinished messages, over all connections, unless the memory ceiling allows less."""

LOOPBACK: Final = ("127.0.0.1", "::1")
"""Where a broker listens if it is not told otherwise."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings of one broker. Every count, size and time that a client could drive up has its limit here.

    Attributes:
        port: TCP port; 0 to have one chosen.
        interfaces: addresses or names of this host to listen on.
        backlog: connections that may wait to be accepted.
        data_directory: for what the broker itself keeps; None if it keeps nothing.
        auth: whether clients have to say who they are.
        realm: the part of a user's id after `@`.
        user_file: names and passwords; None if there are none.
        max_connections: at one time.
        negotiate_seconds: from the connection until `open`: then it is closed.
        max_frame: bytes of a frame, offered in `tune`. 65,535 is the most that 0-10 has (specification, 4.4.2).
        max_channels: of a connection, offered in `tune`.
        heartbeat_max_seconds: offered in `tune`; what a client asks for above it is lowered.
        max_message_bytes: of a message's content and headers; a larger one ends its session.
        max_unfinished_bytes: of the messages of which a part has come, over all connections; one too many ends its
            session. A quarter as much, or one message, is kept besides of those that were interrupted.
        session_timeout_max_seconds: how long a session that is detached is kept at most.
        max_detached_sessions: how many of them are kept at one time.
        password_checks: how many run at one time, beside the event loop.
        queue_limit_bytes: memory that a queue's messages take at most, if its declaration does not say; 0 for no limit.
        memory_bytes: memory that all messages together take at most; 0 for no ceiling.
        enable_timestamp: whether each message gets the time at which it arrives.
        tcp_nodelay: whether what is sent goes out at once, instead of waiting for more to go with it.
        queue_purge_seconds: between looks for messages that have expired on queues that nobody reads; 0 for never.
        flow_stop_percent, flow_resume_percent: of a queue's limit, above and below which publishers are stopped and
            go on; 0 and 0 for never.
        event_threshold_percent: of a queue's limit, from which an event is raised; 0 for never.
        default_message_group: the group of messages that name none, on a queue that has groups.
    """

    port: int = 5672
    interfaces: tuple[str, ...] = LOOPBACK
    backlog: int = 512
    data_directory: str | None = None
    auth: bool = True
    realm: str = "QPID"
    user_file: str | None = None
    max_connections: int = 500
    negotiate_seconds: float = 10.0
    max_frame: int = 65_535
    max_channels: int = 32_767
    heartbeat_max_seconds: int = 120
    max_message_bytes: int = 256 << 20
    max_unfinished_bytes: int = MAX_UNFINISHED_BYTES
    session_timeout_max_seconds: int = 86_400
    max_detached_sessions: int = 1_000
    password_checks: int = 4
    queue_limit_bytes: int = 100 << 20
    memory_bytes: int = 0
    enable_timestamp: bool = False
    tcp_nodelay: bool = True
    queue_purge_seconds: float = 600.0
    flow_stop_percent: int = 80
    flow_resume_percent: int = 70
    event_threshold_percent: int = 80
    default_message_group: str = "qpid.no-group"
