"""Those of qpidd's options that this broker does not have, or not yet.

What would only tune something is accepted, and the log says that it has no effect. What somebody relies on, who is
let in or what is encrypted, is refused: a broker that starts without it would be open where it is thought closed. It
is refused only where it asks for something: `require-encryption=no` and a limit of 0, which is none, are as they are.
"""

from __future__ import annotations

from typing import Final

from broker.process.options.option import YES_NO, Effect, Group, Kind, Option

_FLAG, _SWITCH, _NUMBER, _DURATION, _TEXT = Kind.FLAG, Kind.SWITCH, Kind.NUMBER, Kind.DURATION, Kind.TEXT
_LATER, _NOT_NEEDED, _REFUSED = Effect.LATER, Effect.NOT_NEEDED, Effect.REFUSED

_NO_ACL: Final = "there are no access control lists, and everything would be allowed"
_NO_LIMITS: Final = "there are no limits for each user or address"
_NO_TLS: Final = "connections are not encrypted"
_NO_CLUSTER: Final = "a broker stands alone, and would not be a copy of another"
_NO_MANAGEMENT: Final = "the broker has no management yet"
_NO_LINKS: Final = "the broker has no links to others yet"
_NO_REPLICATION: Final = "queues are not replicated yet"
_NO_RATE: Final = "publishers are stopped by what the disk and the queues take, not by a rate"
_WHOLE: Final = "completions go out with the answers, and messages are in memory as a whole"

_MANAGEMENT: Final = Group(
    "Management options (later)",
    (
        Option("mgmt-enable", _SWITCH, YES_NO, "", "Management", "m", effect=_LATER, reason=_NO_MANAGEMENT),
        Option("mgmt-publish", _SWITCH, YES_NO, "", "Publishes objects", effect=_LATER, reason=_NO_MANAGEMENT),
        Option(
            "mgmt-pub-interval", _DURATION, "SECONDS", "", "Time between publications", effect=_LATER,
            reason=_NO_MANAGEMENT,
        ),
        Option("mgmt-qmf1", _SWITCH, YES_NO, "", "Version 1 of management", effect=_LATER, reason=_NO_MANAGEMENT),
        Option("mgmt-qmf2", _SWITCH, YES_NO, "", "Version 2 of management", effect=_LATER, reason=_NO_MANAGEMENT),
        Option("watchdog-interval", _NUMBER, "SECONDS", "", "Ends a broker that hangs", effect=_LATER,
               reason="systemd starts a broker again that has ended, and nothing looks whether one hangs"),
    ),
)  # fmt: skip
_FEDERATION: Final = Group(
    "Federation options (later)",
    (
        Option("federation-tag", _TEXT, "NAME", "", "The broker's name for others", effect=_LATER, reason=_NO_LINKS),
        Option("link-maintenance-interval", _DURATION, "SECONDS", "", "Time between looks at links", effect=_LATER,
               reason=_NO_LINKS),
        Option("link-heartbeat-interval", _DURATION, "SECONDS", "", "Heartbeat of links", effect=_LATER,
               reason=_NO_LINKS),
        Option("known-hosts-url", _TEXT, "URL", "", "Addresses that clients are told", effect=_LATER, reason=_NO_LINKS),
        Option("replication-queue", _TEXT, "QUEUE", "", "Queue of events", effect=_LATER, reason=_NO_REPLICATION),
        Option("replication-listener-name", _TEXT, "NAME", "", "Name of their listener", effect=_LATER,
               reason=_NO_REPLICATION),
        Option("create-replication-queue", _SWITCH, YES_NO, "", "Creates it", effect=_LATER, reason=_NO_REPLICATION),
    ),
)  # fmt: skip
_TUNING: Final = Group(
    "Options of flow (without effect)",
    (
        Option("staging-threshold", _NUMBER, "BYTES", "", "Stages larger messages to disk", effect=_NOT_NEEDED,
               reason=_WHOLE),
        Option("ack", _NUMBER, "N", "", "Frames between acknowledgements", effect=_NOT_NEEDED, reason=_WHOLE),
        Option("paging-dir", _TEXT, "DIR", "", "Directory of paged queues", effect=_LATER,
               reason="queues are not paged yet"),
        Option("max-session-rate", _NUMBER, "N", "", "Messages a second of a session", effect=_LATER, reason=_NO_RATE),
    ),
)  # fmt: skip
_SECURITY: Final = Group(
    "Security options (refused)",
    (
        Option("require-encryption", _SWITCH, YES_NO, "", "Takes encrypted connections only", effect=_REFUSED,
               reason=_NO_TLS),
        Option("acl-file", _TEXT, "FILE", "", "Who may do what", effect=_REFUSED, reason=_NO_ACL),
        Option("connection-limit-per-user", _NUMBER, "N", "", "Connections of a user", effect=_REFUSED,
               reason=_NO_LIMITS),
        Option("connection-limit-per-ip", _NUMBER, "N", "", "Connections from an address", effect=_REFUSED,
               reason=_NO_LIMITS),
        Option("max-queues-per-user", _NUMBER, "N", "", "Queues of a user", alias="queue-limit-per-user",
               effect=_REFUSED, reason=_NO_LIMITS),
        Option("ssl-cert-db", _TEXT, "DIR", "", "Certificates", effect=_REFUSED, reason=_NO_TLS),
        Option("ssl-cert-password-file", _TEXT, "FILE", "", "Their password", effect=_REFUSED, reason=_NO_TLS),
        Option("ssl-cert-name", _TEXT, "NAME", "", "The broker's certificate", effect=_REFUSED, reason=_NO_TLS),
        Option("ssl-port", _NUMBER, "PORT", "", "Port of encrypted connections", least=1, most=65_535, effect=_REFUSED,
               reason=_NO_TLS),
        Option("ssl-require-client-authentication", _SWITCH, YES_NO, "", "Clients need a certificate", effect=_REFUSED,
               reason=_NO_TLS),
        Option("ssl-sasl-no-dict", _SWITCH, YES_NO, "", "No mechanism whose passwords can be guessed", effect=_REFUSED,
               reason=_NO_TLS),
        Option("ssl-use-export-policy", _SWITCH, YES_NO, "", "Weak encryption", effect=_REFUSED, reason=_NO_TLS),
    ),
)  # fmt: skip
_HA: Final = Group(
    "Cluster options (later; joining one is refused)",
    (
        Option("ha-cluster", _SWITCH, YES_NO, "", "Joins a cluster", effect=_REFUSED, reason=_NO_CLUSTER),
        Option("cluster-name", _TEXT, "NAME", "", "Joins this cluster", effect=_REFUSED, reason=_NO_CLUSTER),
        *(
            Option(name, kind, YES_NO if kind is _SWITCH else value, "", what, effect=_LATER, reason=_NO_CLUSTER)
            for name, kind, value, what in (
                ("ha-queue-replication", _SWITCH, "", "Replicates queues without a cluster"),
                ("ha-brokers-url", _TEXT, "URL", "Addresses of all brokers"),
                ("ha-public-url", _TEXT, "URL", "Addresses for clients"),
                ("ha-replicate", _TEXT, "WHAT", "What is replicated"),
                ("ha-username", _TEXT, "USER", "User for other brokers"),
                ("ha-password", _TEXT, "PASSWORD", "Password for other brokers"),
                ("ha-mechanism", _TEXT, "NAME", "Mechanism for other brokers"),
                ("ha-backup-timeout", _DURATION, "SECONDS", "How long backups are waited for"),
                ("cluster-size", _NUMBER, "N", "Members that are waited for"),
                ("cluster-url", _TEXT, "URL", "Address for clients"),
                ("cluster-cman", _SWITCH, "", "Waits for a quorum"),
                ("cluster-username", _TEXT, "USER", "User for other brokers"),
                ("cluster-password", _TEXT, "PASSWORD", "Password for other brokers"),
                ("cluster-mechanism", _TEXT, "NAME", "Mechanism for other brokers"),
            )
        ),
    ),
)  # fmt: skip

OTHERS: Final = (_MANAGEMENT, _FEDERATION, _TUNING, _SECURITY, _HA)
"""All of them, in the order in which help shows them."""
