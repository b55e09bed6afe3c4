"""The settings of a broker: the values of its options, and limits that have no option."""

from __future__ import annotations

from typing import Final

from qstore.broker.log.status_rules import StatusRule
from qstore.formats.named_tuple import NamedTuple

MAX_UNFINISHED_BYTES: Final = 1 << 30
"""Limit of the incomplete messages of all connections together, unless the memory ceiling is lower."""

QUEUE_LIMIT_BYTES: Final = 100 << 20
"""qpidd's default limit of a queue. Without --default-queue-limit it applies where memory is all that a queue has, to
queues that are declared with a policy for their limit and without a limit, and to transactions, which are in memory."""

LOOPBACK: Final = ("127.0.0.1", "::1")
"""The default interfaces to listen on."""


AUTO: Final = "auto"
PERMISSIONS: Final = "permissions"
"""Values of `BrokerSettings.access`; the third is "acl"."""

DEFAULT_TLS_PORT: Final = 5671


class TlsSettings(NamedTuple):
    """The settings of encrypted connections.

    Attributes:
        certificate_file: the broker's certificate, with those of intermediate authorities, in PEM format.
        key_file: its private key, in PEM format; None if it is in the same file.
        password_file: a file whose first line is the key's password; None if it has none.
        authority_file: the certificates of the authorities of clients' certificates, in PEM format; None to request no
            client certificates.
        requires_certificate: whether each client must have a certificate.
        port: TCP port; that of plain connections if both are equal.
    """

    certificate_file: str
    key_file: str | None = None
    password_file: str | None = None
    authority_file: str | None = None
    requires_certificate: bool = False
    port: int = DEFAULT_TLS_PORT


class BrokerSettings(NamedTuple):
    """The settings of one broker, with a limit for every count, size and time that a client can influence.

    Attributes:
        port: TCP port; 0 lets the system choose one.
        protocols: the versions of AMQP to offer; empty for all.
        interfaces: addresses or names of this host to listen on.
        backlog: length of the queue of connections that wait to be accepted.
        data_directory: directory of the broker's persistent data; None to store nothing.
        auth: whether clients must authenticate.
        realm: the part of a user id after `@`.
        user_file: file of user names and passwords; None if there is none.
        sasl_mechanisms: the SASL mechanisms to offer, most preferred first; empty for all that are possible.
        auth_allow_cleartext: whether passwords may be sent in the clear by clients on other hosts without TLS.
        ssl_sasl_no_dict: whether mechanisms open to dictionary attacks are excluded over TLS.
        require_encryption: whether only connections with TLS are accepted.
        tls: encrypted connections; None for none.
        failed_login_seconds: time after which a failed login is answered.
        max_connections: limit of open connections.
        connections_per_host: limit of the connections of each host; 0 for none.
        connections_per_user, queues_per_user: limits for each user without a quota in the ACL file; 0 for none.
        acl_file: the file with the access rules; None to allow everything.
        firewall_file: the file with the hosts from which clients may connect; None for all.
        access: what decides on operations: `acl`, the ACL file; `permissions`, those of users; or `auto`, the ACL file
            if there is one, else permissions once one has been set.
        acl_validation: the treatment of rules there that have no effect: `none`, `warn` or `fatal`.
        strict_virtual_hosts: whether clients of AMQP 0-10 that name an unknown virtual host are refused, and not
            connected to the default one.
        negotiate_seconds: a connection that is not open after this time is closed.
        websocket: whether AMQP over WebSocket is accepted, too.
        websocket_origins: the origins of pages that may connect so; `*` is any.
        max_frame: maximum frame size in bytes, offered in `tune`; 0-10 allows 65,535 (specification, 4.4.2).
        max_channels: maximum channels per connection, offered in `tune`.
        heartbeat_max_seconds: maximum heartbeat interval, offered in `tune`; higher requests are lowered to it.
        max_message_bytes: maximum size of a message, content and headers; a larger one ends its session.
        max_unfinished_bytes: limit of the incomplete messages of all connections of a protocol; the message that
            exceeds it ends its session. Interrupted messages may take a quarter as much in addition, or one message.
        max_session_rate: messages a second that each session of a client may publish; 0 for no limit.
        session_timeout_max_seconds: maximum time for which a detached session is retained.
        max_detached_sessions: limit of detached sessions.
        password_checks: number of password checks that may run at the same time, outside the event loop.
        queue_limit_bytes: default limit of a queue's messages, and of those of a transaction; 0 for no limit; None if
            the disk is a queue's limit, and QUEUE_LIMIT_BYTES applies where there is no disk.
        default_queue_policy: what durable queues do at their limit that declare no policy: `reject` or `flow_to_disk`.
        strict_durability: whether what is durable may not depend on what is not: bindings and alternate exchanges.
        memory_bytes: limit of the memory of all messages; 0 for no limit.
        queue_memory_bytes: memory of a queue's messages beyond which they leave memory; 0 for no limit.
        paging_directory: where those are that no journal has; None to keep them in memory.
        max_paging_bytes: limit of the size of each paging file; 0 for no limit.
        staging_bytes: larger messages leave memory when they are not consumed at once; 0 to disable.
        deliver_before_sync: whether queues deliver a stored message before its record is on the disk, unless their
            declaration tells.
        enable_timestamp: whether each message gets its time of arrival.
        tcp_nodelay: whether to disable Nagle's algorithm, so that data is sent without delay.
        queue_purge_seconds: interval between purges of expired messages from all queues; 0 to disable.
        flow_stop_percent, flow_resume_percent: fill levels of a queue, in percent of its limit, above and below which
            its publishers are stopped and resumed; 0 and 0 to disable.
        event_threshold_percent: fill level of a queue, in percent of its limit, that raises an event; 0 to disable.
        dtx_default_timeout_seconds: time after which a distributed transaction is rolled back unless it is prepared; 0
            for never.
        dtx_max_timeout_seconds: the longest such time that a client may set; 0 for no limit.
        default_message_group: the group of messages without a group, on queues with message groups.
        rabbitmq_version: the version of RabbitMQ that AMQP 1.0 clients are told; empty for qstore's name and version.
        federation_tag: the broker's name in a federation; None for its permanent id.
        link_maintenance_seconds: interval between checks of links, and the shortest time until one is connected again.
        link_heartbeat_seconds: interval of the heartbeats on links; 0 for none.
        known_hosts: a URL with the addresses at which clients find this broker, or one in its place; empty for none.
        management: whether the management agent answers requests and publishes events.
        management_publish: whether it publishes changes unsolicited.
        management_version_1, management_version_2: whether it speaks QMF of this version.
        console: where a process beside the broker serves the HTTP API: `yes`, or address and port; None for nowhere.
        console_credentials: the file with its user and password; None for an anonymous one.
        telemetry: the URL to which spans of sampled messages are sent; None for nowhere.
        telemetry_limit: spans that may begin in a second.
        log_statistics: intervals in seconds in which statistics are logged.
        log_status: whether the operational log is on when the broker starts.
        log_status_rules: which objects it is about.
        heartbeat_seconds: interval of the management agent's heartbeats and publications.
        replication_queue, replication_exchange: the queue, or the exchange, for events of replicated queues; None for
            none.
        create_replication_queue: whether that queue is created if it is missing.
        replication_listener: the name of the listener that sends the events.
        replication_exchange_type: the type with which that exchange is created if it is missing.
    """

    port: int = 5672
    protocols: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = LOOPBACK
    backlog: int = 512
    data_directory: str | None = None
    auth: bool = True
    realm: str = "QPID"
    user_file: str | None = None
    sasl_mechanisms: tuple[str, ...] = ()
    auth_allow_cleartext: bool = False
    ssl_sasl_no_dict: bool = False
    require_encryption: bool = False
    tls: TlsSettings | None = None
    failed_login_seconds: float = 1.0
    websocket: bool = False
    websocket_origins: tuple[str, ...] = ()
    max_connections: int = 500
    connections_per_host: int = 0
    connections_per_user: int = 0
    queues_per_user: int = 0
    acl_file: str | None = None
    firewall_file: str | None = None
    access: str = AUTO
    acl_validation: str = "warn"
    strict_virtual_hosts: bool = False
    negotiate_seconds: float = 10.0
    max_frame: int = 65_535
    max_channels: int = 32_767
    heartbeat_max_seconds: int = 120
    max_message_bytes: int = 256 << 20
    max_unfinished_bytes: int = MAX_UNFINISHED_BYTES
    max_session_rate: int = 0
    session_timeout_max_seconds: int = 86_400
    max_detached_sessions: int = 1_000
    password_checks: int = 4
    queue_limit_bytes: int | None = None
    default_queue_policy: str = "reject"
    strict_durability: bool = False
    memory_bytes: int = 0
    queue_memory_bytes: int = 0
    paging_directory: str | None = None
    max_paging_bytes: int = 0
    staging_bytes: int = 0
    deliver_before_sync: bool = False
    enable_timestamp: bool = False
    tcp_nodelay: bool = True
    queue_purge_seconds: float = 600.0
    flow_stop_percent: int = 80
    flow_resume_percent: int = 70
    event_threshold_percent: int = 80
    dtx_default_timeout_seconds: int = 60
    dtx_max_timeout_seconds: int = 3_600
    default_message_group: str = "qpid.no-group"
    federation_tag: str | None = None
    rabbitmq_version: str = ""
    link_maintenance_seconds: float = 2.0
    link_heartbeat_seconds: int = 120
    known_hosts: str = ""
    management: bool = True
    management_publish: bool = True
    management_version_1: bool = True
    management_version_2: bool = True
    console: str | None = None
    console_credentials: str | None = None
    telemetry: str | None = None
    telemetry_limit: int = 200
    log_statistics: tuple[float, ...] = ()
    log_status: bool = False
    log_status_rules: tuple[StatusRule, ...] = ()
    heartbeat_seconds: int = 10
    replication_queue: str | None = None
    create_replication_queue: bool = False
    replication_listener: str = "replicator"
    replication_exchange: str | None = None
    replication_exchange_type: str = "direct"

    @property
    def transaction_bytes(self) -> int:
        """The limit of the messages that are published in a transaction; 0 for none."""
        return QUEUE_LIMIT_BYTES if self.queue_limit_bytes is None else self.queue_limit_bytes
