"""The options of `qpidd`, as a table: help, sources and values are derived from it (`options`).

Options have qpidd's names, defaults and syntax (Qpid C++ Broker Book, 1.1 to 1.12). Where the documents have two names
for one option, both are accepted:

    realm                  also auth-realm             (1.1.4.1)
    auth                   no-auth is its opposite     (1.1.4.2)
    default-message-group  also default-msg-group      (1.11.5.1)
    no-module-dir          also no-module              (Qpid wiki, "Client configuration")
    log-output FILE        log-to-file FILE; and stderr, stdout, syslog are log-to-… (Qpid wiki, "RASC")

Those that make a broker less secure say so.

The table also has the options of qpidd that have no effect here, since existing command lines and files use them
(`Effect`). Options that only tune something are ignored, with a log line. Options that operators rely on for access
control or encryption are refused: a broker that started without them would be open where its operator believes it
closed. They are refused only if they enable something: `ha-cluster=no` and a limit of 0, which means none, are
accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from qstore.broker.log.logs import CATEGORIES, DEFAULT_RULE, LEVELS
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.security.acl.tables import MAX_QUOTA
from qstore.broker.settings import DEFAULT_TLS_PORT
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import printable

TRUTH: Final = {
    "yes": True,
    "true": True,
    "1": True,
    "on": True,
    "no": False,
    "false": False,
    "0": False,
    "off": False,
}
"""The words for yes and no, in lower case."""

YES_NO: Final = "yes|no"

PATHS: Final = ("FILE", "DIR")
"""The placeholders of paths, which may have any bytes but NUL."""

_SHOWN: Final = 60  # characters of a value that an error shows


class OptionError(Exception):
    """An option is unknown, invalid or not supported. The text is one line for the user."""


class Kind(Enum):
    """The type of an option's value."""

    FLAG = auto()  # given or not
    SWITCH = auto()  # yes or no
    NUMBER = auto()
    SIZE = auto()  # bytes, or with a unit of 1024: 512M, 4GiB
    DURATION = auto()  # seconds, or with a unit: 10s, 500ms (Qpid C++ Broker Book, table 1.28)
    TEXT = auto()


class Source(Enum):
    """The sources of options, highest precedence first."""

    COMMAND_LINE = auto()
    ENVIRONMENT = auto()
    FILE = auto()


class Effect(Enum):
    """Whether an option has an effect in this broker."""

    WORKS = auto()
    NOT_NEEDED = auto()
    LATER = auto()  # not supported yet; can be ignored safely
    REFUSED = auto()  # not supported yet; ignoring it would be unsafe
    REPLACED = auto()  # not supported, and refused; the reason names the replacement


class Option(NamedTuple):
    """One option.

    Attributes:
        name: the name, without `--`.
        kind: the type of its value.
        value: the placeholder for its value in --help; empty for a flag.
        default: the default as text; empty if there is none, or if it depends on other options.
        help: its text in --help.
        short: its letter; empty if it has none.
        alias: another name.
        opposite: a name for the opposite of a switch: `no-auth` is `auth=no`.
        conflicts_with: the option that excludes this one: the one from the source with higher precedence applies.
        repeatable: whether it may be given several times.
        accumulates: whether the values of all sources apply; otherwise only those of the highest source do.
        choices: the allowed values of a text; empty if any is allowed.
        minimum, maximum: bounds of a number, size or duration, inclusive.
        sources: the sources in which it is allowed.
        effect: whether it has an effect.
        reason: why it has no effect, or is refused.
    """

    name: str
    kind: Kind
    value: str
    default: str
    help: str
    short: str = ""
    alias: str = ""
    opposite: str = ""
    conflicts_with: str = ""
    repeatable: bool = False
    accumulates: bool = False
    choices: Sequence[str] = ()
    minimum: int = 0
    maximum: int = 1 << 53
    sources: Sequence[Source] = (Source.COMMAND_LINE, Source.ENVIRONMENT, Source.FILE)
    effect: Effect = Effect.WORKS
    reason: str = ""


class Group(NamedTuple):
    """Options under one heading of --help."""

    title: str
    options: Sequence[Option]


class Given(NamedTuple):
    """A value that was given for an option.

    Attributes:
        text: the value.
        place: where it was given, for errors: `--port`, `QPID_PORT`, or `/etc/qpidd.conf, line 3: port`.
    """

    text: str
    place: str


def shown(text: str) -> str:
    """A value for an error message: printable and shortened."""
    return printable(text[:_SHOWN]) + ("…" if len(text) > _SHOWN else "")


# ---- the options ----

DEFAULT_FILE: Final = "/etc/qpidd.conf"
"""Qpid C++ Broker Book, 1.1.5."""

_FLAG, _SWITCH, _NUMBER, _DURATION, _TEXT = Kind.FLAG, Kind.SWITCH, Kind.NUMBER, Kind.DURATION, Kind.TEXT
_COMMAND_LINE: Final = (Source.COMMAND_LINE,)
_ONE_LOOP: Final = "the broker has a single event loop"

_RULE_HELP: Final = (
    f"RULE is LEVEL[+-][:PATTERN]. LEVEL is one of {' '.join(LEVELS)}; + means this level and above, - this level and "
    f"below. PATTERN is a category or a part of a function name. Categories: {' '.join(CATEGORIES)}. May be repeated"
)

_GENERAL: Final = Group(
    "Options",
    (
        Option(
            "help", _FLAG, "", "", "Show this help, including the options of all loaded modules", "h",
            sources=_COMMAND_LINE,
        ),
        Option("version", _FLAG, "", "", "Show the version", "v", sources=_COMMAND_LINE),
        Option(
            "config", _TEXT, "FILE", DEFAULT_FILE, "Read options from FILE, one name=value per line",
            sources=(Source.COMMAND_LINE, Source.ENVIRONMENT),
        ),
    ),
)  # fmt: skip
_MODULES: Final = Group(
    "Module options",
    (
        Option(
            "load-module", _TEXT, "NAME", "", "Load a module, such as store. May be repeated", repeatable=True,
            accumulates=True,
        ),
        Option(
            "module-dir", _TEXT, "DIR", "", "Load the modules that have the names of the .so files in DIR. By default "
            "no directory is searched", conflicts_with="no-module-dir",
        ),
        Option(
            "no-module-dir", _FLAG, "", "", "Load only the modules given with load-module", alias="no-module",
            conflicts_with="module-dir",
        ),
    ),
)  # fmt: skip
_BROKER: Final = Group(
    "Broker options",
    (
        Option(
            "data-dir", _TEXT, "DIR", "", "Directory for persistent data. Default: ~/.qpidd, or /var/lib/qpidd for a "
            "daemon", conflicts_with="no-data-dir",
        ),
        Option(
            "no-data-dir", _FLAG, "", "", "Use no data directory: nothing persistent is loaded or stored",
            conflicts_with="data-dir",
        ),
        Option("port", _NUMBER, "PORT", "5672", "Listen on PORT; 0 chooses a free port and prints it", "p",
               maximum=65_535),
        Option(
            "interface", _TEXT, "ADDRESS", "", "Listen on this address or host name. Default: the loopback addresses "
            "only. 0.0.0.0 and :: are all IPv4 and IPv6 addresses. May be repeated", repeatable=True,
        ),
        Option(
            "rabbitmq-version", _TEXT, "VERSION", "",
            "Tell AMQP 1.0 clients that this is RabbitMQ of this version, such as 4.1.0: RabbitMQ's own refuse any "
            "other broker",
        ),
        Option(
            "protocols", _TEXT, "VERSIONS", "", "Versions of AMQP to offer, separated by commas or spaces: 0-10, "
            "0-9-1, 1.0, 0-9, 0-8, or amqp0-10, amqp1.0. Default: all",
        ),
        Option("websocket", _SWITCH, YES_NO, "no", "Accept AMQP over WebSocket, too, on every port"),
        Option(
            "websocket-origin", _TEXT, "ORIGIN", "", "Let pages of this origin, such as https://example.com, connect "
            "over WebSocket; * is any. Default: none, only clients that are not browsers. May be repeated",
            repeatable=True,
        ),
        Option("max-connections", _NUMBER, "N", "500", "Maximum number of open connections", minimum=1,
               maximum=1_000_000),
        Option(
            "connection-backlog", _NUMBER, "N", "512", "Maximum number of connections that wait to be accepted; the "
            "system's limit is net.core.somaxconn. With qpidd's default of 10, many clients that connect at the same "
            "time wait for seconds", minimum=1, maximum=65_535,
        ),
        Option("max-negotiate-time", _NUMBER, "MS", "10000", "Time limit for opening a connection, in ms", minimum=1),
        Option("tcp-nodelay", _SWITCH, YES_NO, "yes", "Set TCP_NODELAY on connections, to send data without delay"),
        Option("transport", _TEXT, "NAME", "tcp", "Transport for connections", choices=("tcp",)),
        Option("max-message-size", Kind.SIZE, "SIZE", "256M", "Maximum size of a message, headers and content; "
               "at most a quarter of --broker-memory", minimum=1),
        Option("enable-timestamp", _SWITCH, YES_NO, "no", "Add the time of arrival to each message"),
        Option(
            "queue-purge-interval", _DURATION, "SECONDS", "600", "Interval between purges of expired messages from "
            "all queues; 0: never",
        ),
        Option(
            "watchdog-interval", _NUMBER, "SECONDS", "0", "Kill the broker when its event loop hangs for this "
            "time: a second process watches it from when it is ready until it shuts down. 0: never", maximum=86_400,
        ),
        Option("worker-threads", _NUMBER, "N", "", "Number of worker threads", effect=Effect.NOT_NEEDED,
               reason=_ONE_LOOP),
    ),
)  # fmt: skip
_QUEUES: Final = Group(
    "Queue options",
    (
        Option(
            "default-queue-limit", Kind.SIZE, "SIZE", "", "Limit of queues that declare none, in bytes or with K, M, G "
            f"or T: header, content, and {MESSAGE_OVERHEAD} bytes for each message; qpidd has 100M. 0: no limit. "
            "Default: what the disk has room for; 100M if there is no directory for a queue's messages",
        ),
        Option(
            "default-queue-policy", _TEXT, "WORD", "reject", "What durable queues with a limit of their own do there "
            "that declare no qpid.policy_type: reject messages, or flow_to_disk, as in MRG Messaging 1",
            choices=("reject", "flow_to_disk"),
        ),
        Option(
            "strict-durability", _SWITCH, YES_NO, "no", "Whether what is durable cannot depend on what is not: "
            "bindings to exchanges and alternate exchanges",
        ),
        Option(
            "broker-memory", Kind.SIZE, "SIZE", "", "Limit of the memory of all messages, in bytes or with K, M, G or "
            "T. From 90 % on publishers are throttled, at 100 % messages are refused. 0: no limit. Default: half of "
            "the memory that the machine, the control group and the process limits allow",
        ),
        Option(
            "queue-memory", Kind.SIZE, "SIZE", "", "Memory for a queue's messages; those beyond it are read back "
            "from the disk when they are delivered. 0: no limit. Default: an eighth of --broker-memory",
        ),
        Option(
            "paging-dir", _TEXT, "DIR", "", "Directory for messages that have left memory and that no journal has; it "
            "is emptied at the start. Default: paging, in the data directory",
        ),
        Option("max-paging-size", Kind.SIZE, "SIZE", "0", "Maximum size of a queue's paging file; 0: no limit"),
        Option(
            "staging-threshold", Kind.SIZE, "SIZE", "0", "Size beyond which messages leave memory if they are not "
            "consumed at once; 0: never",
        ),
        Option(
            "deliver-before-sync", _SWITCH, YES_NO, "no", "Deliver persistent messages while they are written to the "
            "disk, not after that. Publishers get their confirmations after that in both cases. For single queues: "
            "qpid.deliver_before_sync",
        ),
        Option(
            "default-flow-stop-threshold", _NUMBER, "PERCENT", "80", "Fill level of a queue, in percent of its limit, "
            "above which its publishers wait; 0: never", maximum=100,
        ),
        Option(
            "default-flow-resume-threshold", _NUMBER, "PERCENT", "70", "Fill level of a queue below which they resume; "
            "at most the stop threshold", maximum=100,
        ),
        Option(
            "default-event-threshold-ratio", _NUMBER, "PERCENT", "80", "Fill level of a queue, in percent of its "
            "limit, that raises an event and a warning in the log; 0: never", maximum=100,
        ),
        Option(
            "default-message-group", _TEXT, "NAME", "qpid.no-group", "Group of messages without a group, on queues "
            "with message groups", alias="default-msg-group",
        ),
    ),
)  # fmt: skip
_TRANSACTIONS: Final = Group(
    "Transaction options",
    (
        Option(
            "dtx-default-timeout", _NUMBER, "SECONDS", "60", "Time after which a distributed transaction is rolled "
            "back unless it is prepared; clients can set another one. 0: never", maximum=(1 << 32) - 1,
        ),
        Option(
            "dtx-max-timeout", _NUMBER, "SECONDS", "3600", "Maximum time that clients can set; 0: no limit",
            maximum=(1 << 32) - 1,
        ),
    ),
)  # fmt: skip
_MANAGEMENT: Final = Group(
    "Management options",
    (
        Option(
            "mgmt-enable", _SWITCH, YES_NO, "yes", "Answer management requests, and publish events", "m"
        ),
        Option("mgmt-publish", _SWITCH, YES_NO, "yes", "Publish what has changed to consoles, without being asked"),
        Option("mgmt-qmf1", _SWITCH, YES_NO, "yes", "Speak version 1 of the management protocol QMF"),
        Option("mgmt-qmf2", _SWITCH, YES_NO, "yes", "Speak version 2 of QMF"),
        Option("mgmt-pub-interval", _NUMBER, "SECONDS", "10", "Interval of heartbeats, and of publications",
               minimum=1, maximum=65_535),
        Option(
            "console", _TEXT, "yes|[ADDRESS:]PORT", "", "Serve the HTTP API (qstore-console) in a process beside the "
            "broker; yes: on 127.0.0.1:15672",
        ),
        Option(
            "console-credentials", _TEXT, "FILE", "", "File with USER:PASSWORD of the console at the broker, which "
            "only its owner may read",
        ),
        Option(
            "telemetry", _TEXT, "URL", "", "Send spans of sampled messages by OTLP over HTTP, as to "
            "http://localhost:4318/v1/traces",
        ),
        Option(
            "telemetry-limit", _NUMBER, "N", "200", "Spans that may begin in a second: further messages are not traced",
            minimum=1, maximum=100_000,
        ),
    ),
)  # fmt: skip
_REPLICATION: Final = Group(
    "Queue replication options",
    (
        Option(
            "replication-queue", _TEXT, "QUEUE", "", "Queue for the events of other queues, those declared with "
            "qpid.queue_event_generation",
        ),
        Option("create-replication-queue", _SWITCH, YES_NO, "no", "Create that queue, not durable, if it is missing"),
        Option("replication-listener-name", _TEXT, "NAME", "replicator", "Name of the event listener in the log"),
        Option(
            "replication-exchange-name", _TEXT, "EXCHANGE", "", "Exchange for the events, instead of a queue; created, "
            "not durable, if it is missing",
        ),
        Option("replication-exchange-type", _TEXT, "TYPE", "direct", "Type of that exchange"),
    ),
)  # fmt: skip
_DAEMON: Final = Group(
    "Daemon options",
    (
        Option("daemon", _FLAG, "", "", "Run as a daemon", "d"),
        Option(
            "pid-dir", _TEXT, "DIR", "",
            "Directory of the daemon's pid file. Default: /var/run/qpidd, or ~/.qpidd if not run by root",
        ),
        Option(
            "wait", _DURATION, "SECONDS", "10", "Maximum time to wait for the daemon to start or to shut down; after "
            "it an error is printed and the exit code is 1", "w",
        ),
        Option(
            "check", _FLAG, "", "", "Print the process id of the running broker; exit code 1 if none is running", "c",
            sources=_COMMAND_LINE,
        ),
        Option(
            "quit", _FLAG, "", "", "Shut down the running broker, and wait until it has ended", "q",
            sources=_COMMAND_LINE,
        ),
    ),
)  # fmt: skip
_LOGGING: Final = Group(
    "Logging options",
    (
        Option("trace", _FLAG, "", "", "Log everything", "t"),
        Option(
            "log-enable", _TEXT, "RULE", DEFAULT_RULE, f"Log messages that match RULE. {_RULE_HELP}", repeatable=True,
            accumulates=True,
        ),
        Option(
            "log-disable", _TEXT, "RULE", "", "Do not log messages that match RULE. May be repeated", repeatable=True,
            accumulates=True,
        ),
        Option("log-time", _SWITCH, YES_NO, "yes", "Log the time"),
        Option("log-level", _SWITCH, YES_NO, "yes", "Log the level"),
        Option("log-source", _SWITCH, YES_NO, "no", "Log the source file and line number"),
        Option("log-thread", _SWITCH, YES_NO, "no", "Log the thread id"),
        Option("log-function", _SWITCH, YES_NO, "no", "Log the function name"),
        Option("log-hires-timestamp", _SWITCH, YES_NO, "no", "Log the time with microseconds"),
        Option("log-category", _SWITCH, YES_NO, "yes", "Log the category"),
        Option("log-prefix", _TEXT, "STRING", "", "Prefix of all lines"),
        Option(
            "log-statistics", _TEXT, "SECONDS,...", "", "Log rates, totals, peaks and sizes of the broker, the store, "
            "virtual hosts, queues, exchanges, connections, sessions and subscriptions in each of these intervals: 60, "
            "or 60,3600. Default: never",
        ),
        Option(
            "log-status", _SWITCH, YES_NO, "no", "Log what becomes of the broker, connections, sessions, queues, "
            "exchanges, bindings and subscriptions, each with a message id (BRK-1004 : Ready)",
        ),
        Option(
            "log-status-rule", _TEXT, "RULE", "", "Show or hide lines of the operational log by what they are about: "
            "qpid.virtualhost.*.queue.orders=OFF. The last rule that matches counts. May be repeated", repeatable=True,
        ),
    ),
)  # fmt: skip
_SINKS: Final = Group(
    "Logging sink options",
    (
        Option("log-to-stderr", _SWITCH, YES_NO, "yes", "Log to standard error; a daemon never does"),
        Option("log-to-stdout", _SWITCH, YES_NO, "no", "Log to standard output; a daemon never does"),
        Option("log-to-file", _TEXT, "FILE", "", "Log to FILE"),
        Option("log-to-syslog", _SWITCH, YES_NO, "", "Log to syslog. Default for a daemon without a log file"),
        Option(
            "log-output", _TEXT, "FILE", "", "Log to FILE, stderr, stdout or syslog, and to the outputs that the "
            "options above enable explicitly, instead of the default outputs",
        ),
        Option("syslog-name", _TEXT, "NAME", "qpidd", "Name in syslog"),
        Option("syslog-facility", _TEXT, "LOG_XXX", "LOG_DAEMON", "Syslog facility"),
    ),
)  # fmt: skip


# ---- authentication and encryption ----

_NO_CYRUS: Final = "the broker implements SASL itself, with the users of the user file"

SECURITY: Final = Group(
    "Authentication options",
    (
        Option("auth", _SWITCH, YES_NO, "yes", "Require clients to authenticate; see also user-file. Insecure: no "
               "lets everybody in, under any name", opposite="no-auth"),
        Option("realm", _TEXT, "REALM", "QPID", "Realm of all users: the part of a user id after @",
               alias="auth-realm"),
        Option(
            "user-file", _TEXT, "FILE", "", "File of user names and passwords, written by qstore-passwd. Without it, "
            "auth=yes accepts clients on this host only",
        ),
        Option(
            "sasl-mechanisms", _TEXT, "NAMES", "", "SASL mechanisms to offer, most preferred first, separated by "
            "commas. Default: those that all users can use. Insecure: ANONYMOUS lets everybody in",
        ),
        Option(
            "auth-allow-cleartext", _SWITCH, YES_NO, "no", "Offer PLAIN to clients on other hosts without TLS as well. "
            "Insecure: passwords are sent in the clear",
        ),
        Option("sasl-config", _TEXT, "DIR", "", "SASL configuration", effect=Effect.NOT_NEEDED, reason=_NO_CYRUS),
    ),
)  # fmt: skip
"""The options for logins and access."""

_CONVERT: Final = (
    "NSS databases are not read; export the certificate (pk12util -o broker.p12 -n NAME -d DIR), convert it "
    "(openssl pkcs12 -in broker.p12 -out broker.pem -nodes), and give --ssl-cert broker.pem"
)

TLS: Final = Group(
    "Encryption options",
    (
        Option("ssl-cert", _TEXT, "FILE", "", "Certificate of the broker, with those of intermediate authorities, in "
               "PEM format; enables TLS"),
        Option("ssl-key", _TEXT, "FILE", "", "Private key of the certificate, in PEM format, if it is not in its file"),
        Option("ssl-cert-password-file", _TEXT, "FILE", "", "File whose first line is the password of the private key"),
        Option("ssl-port", Kind.NUMBER, "PORT", str(DEFAULT_TLS_PORT), "Listen for TLS on PORT. If it is that of port, "
               "connections with and without TLS share it", maximum=65_535),
        Option("ssl-ca", _TEXT, "FILE", "", "Authorities of client certificates, in PEM format: clients are asked for "
               "one, and can log in with it (EXTERNAL)"),
        Option("ssl-require-client-authentication", _SWITCH, YES_NO, "no", "Refuse clients without a certificate"),
        Option("ssl-sasl-no-dict", _SWITCH, YES_NO, "no", "Over TLS, offer no SASL mechanisms open to dictionary "
               "attacks, which leaves EXTERNAL and GSSAPI"),
        Option("require-encryption", _SWITCH, YES_NO, "no", "Accept only connections that are encrypted, by TLS or "
               "by Kerberos. Insecure: no lets others read and change what is sent without"),
        Option("ssl-cert-db", _TEXT, "DIR", "", "Certificate database (NSS)", effect=Effect.REPLACED, reason=_CONVERT),
        Option("ssl-cert-name", _TEXT, "NAME", "", "Name of the certificate in that database", effect=Effect.REPLACED,
               reason=_CONVERT),
        Option("ssl-use-export-policy", _SWITCH, YES_NO, "", "Allow export ciphers", effect=Effect.REPLACED,
               reason="export ciphers are broken, and TLS has none of them any more"),
    ),
)  # fmt: skip
"""Encrypted connections."""


# ---- access control ----

ACCESS: Final = Group(
    "Access control options",
    (
        Option(
            "acl-file", Kind.TEXT, "FILE", "", "File with the rules for who may do what. Without it every user may do "
            "everything, unless permissions are set. A name without / at the beginning is looked for in the data "
            "directory first. The broker does not start if the file is missing or wrong; SIGHUP reads it again; see "
            "also qstore-acl",
        ),
        Option(
            "firewall-file", Kind.TEXT, "FILE", "", "File with the hosts from which clients may connect, to the broker "
            "and to each virtual host: rules with networks and names of hosts. The broker does not start if it is "
            "missing or wrong; SIGHUP reads it again, for new connections",
        ),
        Option(
            "access", Kind.TEXT, "KIND", "auto", "What decides who may do what. acl: the ACL file; permissions: the "
            "permissions and tags of users, which are set while the broker runs, and without which a user may do "
            "nothing; auto: the ACL file if there is one, else permissions once one has been set",
            choices=("auto", "acl", "permissions"),
        ),
        Option(
            "strict-acl-validation", Kind.TEXT, "MODE", "warn", "What becomes of rules in the ACL file that have no "
            "effect. none: nothing; warn: a line in the log each; fatal: the file is not used, so that the broker does "
            "not start, or keeps its rules", choices=("none", "warn", "fatal"),
        ),
        Option(
            "virtual-hosts", Kind.TEXT, "MODE", "lax", "What becomes of clients of AMQP 0-10 that name a virtual host "
            "that does not exist. lax: they are connected to /, as by qpidd; strict: they are refused, as those of "
            "AMQP 0-9-1 always are", choices=("lax", "strict"),
        ),
        Option(
            "connection-limit-per-user", Kind.NUMBER, "N", "0", "Maximum number of connections of a user, unless the "
            "ACL file has a quota; 0: no limit", maximum=MAX_QUOTA,
        ),
        Option(
            "connection-limit-per-ip", Kind.NUMBER, "N", "0", "Maximum number of connections from one address; 0: no "
            "limit", maximum=MAX_QUOTA,
        ),
        Option(
            "max-queues-per-user", Kind.NUMBER, "N", "0", "Maximum number of queues that a user may create, unless the "
            "ACL file has a quota; 0: no limit", alias="queue-limit-per-user", maximum=MAX_QUOTA,
        ),
    ),
)  # fmt: skip


# ---- options of qpidd that this broker does not support, or not yet ----

_LATER, _NOT_NEEDED, _REFUSED = Effect.LATER, Effect.NOT_NEEDED, Effect.REFUSED

_NO_CLUSTER: Final = "the broker cannot join a cluster, and would not replicate another broker"
_WHOLE: Final = "completions are sent with the replies, and messages are held in memory as a whole"

_FEDERATION: Final = Group(
    "Federation options",
    (
        Option("federation-tag", _TEXT, "NAME", "", "Name of this broker in a federation; by default its permanent id"),
        Option("link-maintenance-interval", _DURATION, "SECONDS", "2", "Interval between checks of links to other "
               "brokers; the shortest time until one is connected again"),
        Option("link-heartbeat-interval", _DURATION, "SECONDS", "120", "Heartbeat interval of links; one without a "
               "heartbeat for twice as long is connected again; 0: none"),
        Option("known-hosts-url", _TEXT, "URL", "none", "Addresses that are announced to clients, of this broker or "
               "of one that replaces it, such as amqp:tcp:one:5672,tcp:two:5672; none: announce nothing"),
    ),
)  # fmt: skip
_TUNING: Final = Group(
    "Flow control options",
    (
        Option("ack", _NUMBER, "N", "", "Frames between acknowledgements", effect=_NOT_NEEDED, reason=_WHOLE),
        Option("max-session-rate", _NUMBER, "N", "0", "Messages per second that each session of a client, or channel, "
               "may publish; 0: no limit", maximum=10_000_000),
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
GROUPS: Final = (
    _GENERAL,
    _MODULES,
    _BROKER,
    SECURITY,
    TLS,
    ACCESS,
    _QUEUES,
    _TRANSACTIONS,
    _MANAGEMENT,
    _REPLICATION,
    _DAEMON,
    _LOGGING,
    _SINKS,
    *OTHERS,
)
"""All options of the broker itself, in the order of --help."""
