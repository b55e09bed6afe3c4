"""The options of qpidd that this broker does not support, or not yet.

Options that only tune something are ignored, with a log line. Options that operators rely on for access control or
encryption are refused: a broker that started without them would be open where its operator believes it closed. They
are refused only if they enable something: `ha-cluster=no` and a limit of 0, which means none, are accepted.
"""

from __future__ import annotations

from typing import Final

from qstore.broker.process.options.option import YES_NO, Effect, Group, Kind, Option

_FLAG, _SWITCH, _NUMBER, _DURATION, _TEXT = Kind.FLAG, Kind.SWITCH, Kind.NUMBER, Kind.DURATION, Kind.TEXT
_LATER, _NOT_NEEDED, _REFUSED = Effect.LATER, Effect.NOT_NEEDED, Effect.REFUSED

_NO_CLUSTER: Final = "the broker cannot join a cluster, and would not replicate another broker"
_NO_LINKS: Final = "the broker has no links to other brokers yet"
_NO_RATE: Final = "publishers are limited by the disk and by the limits of the queues, not by a rate"
_WHOLE: Final = "completions are sent with the replies, and messages are held in memory as a whole"

_FEDERATION: Final = Group(
    "Federation options (not supported yet)",
    (
        Option("federation-tag", _TEXT, "NAME", "", "Name of this broker in a federation", effect=_LATER,
               reason=_NO_LINKS),
        Option("link-maintenance-interval", _DURATION, "SECONDS", "", "Interval between checks of the links",
               effect=_LATER, reason=_NO_LINKS),
        Option("link-heartbeat-interval", _DURATION, "SECONDS", "", "Heartbeat interval of links", effect=_LATER,
               reason=_NO_LINKS),
        Option("known-hosts-url", _TEXT, "URL", "", "Broker addresses sent to clients", effect=_LATER,
               reason=_NO_LINKS),
    ),
)  # fmt: skip
_TUNING: Final = Group(
    "Flow control options (ignored)",
    (
        Option("ack", _NUMBER, "N", "", "Frames between acknowledgements", effect=_NOT_NEEDED, reason=_WHOLE),
        Option("max-session-rate", _NUMBER, "N", "", "Maximum messages per second of a session", effect=_LATER,
               reason=_NO_RATE),
    ),
)  # fmt: skip
_HA: Final = Group(
    "Cluster options (not supported yet; joining a cluster is refused)",
    (
        Option("ha-cluster", _SWITCH, YES_NO, "", "Join a cluster", effect=_REFUSED, reason=_NO_CLUSTER),
        Option("cluster-name", _TEXT, "NAME", "", "Join this cluster", effect=_REFUSED, reason=_NO_CLUSTER),
        *(
            Option(name, kind, YES_NO if kind is _SWITCH else value, "", what, effect=_LATER, reason=_NO_CLUSTER)
            for name, kind, value, what in (
                ("ha-queue-replication", _SWITCH, "", "Replicate queues without a cluster"),
                ("ha-brokers-url", _TEXT, "URL", "Addresses of all brokers"),
                ("ha-public-url", _TEXT, "URL", "Addresses for clients"),
                ("ha-replicate", _TEXT, "LEVEL", "Default replication level"),
                ("ha-username", _TEXT, "USER", "User name for connections to other brokers"),
                ("ha-password", _TEXT, "PASSWORD", "Password for connections to other brokers"),
                ("ha-mechanism", _TEXT, "NAME", "SASL mechanism for connections to other brokers"),
                ("ha-backup-timeout", _DURATION, "SECONDS", "Maximum time to wait for backups"),
                ("cluster-size", _NUMBER, "N", "Number of members to wait for"),
                ("cluster-url", _TEXT, "URL", "Addresses for clients"),
                ("cluster-update-url", _TEXT, "URL", "Addresses for updates of new members"),
                ("cluster-cman", _SWITCH, "", "Wait for a quorum of the cluster manager"),
                ("cluster-username", _TEXT, "USER", "User name for connections to other brokers"),
                ("cluster-password", _TEXT, "PASSWORD", "Password for connections to other brokers"),
                ("cluster-mechanism", _TEXT, "NAME", "SASL mechanism for connections to other brokers"),
            )
        ),
    ),
)  # fmt: skip

OTHERS: Final = (_FEDERATION, _TUNING, _HA)
"""All of them, in the order of --help."""
