"""The options of this broker, with qpidd's names and defaults (Qpid C++ Broker Book, 1.1 to 1.12).

Where the documents have two names for one option, both are accepted:

    realm                  also auth-realm             (1.1.4.1)
    auth                   no-auth is its opposite     (1.1.4.2)
    default-message-group  also default-msg-group      (1.11.5.1)
    no-module-dir          also no-module              (Qpid wiki, "Client configuration")
    log-output FILE        log-to-file FILE; and stderr, stdout, syslog are log-to-… (Qpid wiki, "RASC")

The options of authentication and encryption are in `table_security`, those of qpidd that this broker does not support
in `table_others`.
"""

from __future__ import annotations

from typing import Final

from qstore.broker.log.logs import CATEGORIES, DEFAULT_RULE, LEVELS
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.process.options.config_file import DEFAULT_FILE
from qstore.broker.process.options.option import YES_NO, Effect, Group, Kind, Option, Source
from qstore.broker.process.options.table_access import ACCESS
from qstore.broker.process.options.table_others import OTHERS
from qstore.broker.process.options.table_security import SECURITY, TLS

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
            "protocols", _TEXT, "VERSIONS", "", "Versions of AMQP to offer, separated by commas or spaces: 0-10, "
            "0-9-1. Default: all",
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
        Option("max-message-size", Kind.SIZE, "SIZE", "256M", "Maximum size of a message, headers and content",
               minimum=1),
        Option("enable-timestamp", _SWITCH, YES_NO, "no", "Add the time of arrival to each message"),
        Option(
            "queue-purge-interval", _DURATION, "SECONDS", "600", "Interval between purges of expired messages from "
            "all queues; 0: never",
        ),
        Option(
            "watchdog-interval", _NUMBER, "SECONDS", "0", "Kill the broker when its event loop stands still for so "
            "long: a second process watches it from when it is ready until it shuts down. 0: never", maximum=86_400,
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
            "broker-memory", Kind.SIZE, "SIZE", "", "Limit of the memory of all messages, in bytes or with K, M, G or "
            "T. From 90 % on publishers are throttled, at 100 % messages are refused. 0: no limit. Default: half of "
            "the memory that the machine, the control group and the process limits allow",
        ),
        Option(
            "queue-memory", Kind.SIZE, "SIZE", "", "Memory of a queue's messages beyond which they leave it, and are "
            "read back from the disk when their turn comes. 0: no limit. Default: an eighth of --broker-memory",
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
            "disk, not after that. Publishers are told after that in both cases. For single queues: "
            "qpid.deliver_before_sync",
        ),
        Option(
            "default-flow-stop-threshold", _NUMBER, "PERCENT", "80", "Fill level of a queue, in percent of its limit, "
            "above which its publishers wait; 0: never", maximum=100,
        ),
        Option(
            "default-flow-resume-threshold", _NUMBER, "PERCENT", "70", "Fill level of a queue below which they go on; "
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
        Option("mgmt-qmf2", _SWITCH, YES_NO, "yes", "Speak version 2 of it"),
        Option("mgmt-pub-interval", _NUMBER, "SECONDS", "10", "Interval of heartbeats, and of publications",
               minimum=1, maximum=65_535),
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
            "log-status", _SWITCH, YES_NO, "no", "Log what becomes of the broker, connections, sessions, queues, "
            "exchanges, bindings and subscriptions, each with a message id (BRK-1004 : Ready)",
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
