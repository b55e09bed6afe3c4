"""The options of this broker, with qpidd's names and defaults (Qpid C++ Broker Book, 1.1 to 1.12).

Where the documents have two names for one option, both are taken:

    realm                  also auth-realm             (1.1.4.1)
    auth                   no-auth is its opposite     (1.1.4.2)
    default-message-group  also default-msg-group      (1.11.5.1)
    no-module-dir          also no-module              (Qpid wiki, "Client configuration")
    log-output FILE        log-to-file FILE; and stderr, stdout, syslog are log-to-… (Qpid wiki, "RASC")

Those of qpidd's options that do nothing here are in `table_others`.
"""

from __future__ import annotations

from typing import Final

from broker.log.logs import CATEGORIES, DEFAULT_RULE, LEVELS
from broker.model.memory import MESSAGE_OVERHEAD
from broker.process.options.config_file import DEFAULT_FILE
from broker.process.options.option import YES_NO, Effect, Group, Kind, Option, Source
from broker.process.options.table_others import OTHERS

_FLAG, _SWITCH, _NUMBER, _DURATION, _TEXT = Kind.FLAG, Kind.SWITCH, Kind.NUMBER, Kind.DURATION, Kind.TEXT
_COMMAND_LINE: Final = (Source.COMMAND_LINE,)
_NO_CYRUS: Final = "the mechanisms are the broker's own, and users are in the user file"
_NO_FLOW: Final = "a queue that is full refuses messages, and does not stop publishers before that"
_ONE_LOOP: Final = "one event loop does all the work"

_RULE_HELP: Final = (
    f"RULE is LEVEL[+-][:PATTERN]. LEVEL is one of {' '.join(LEVELS)}; + is this level and above, - this level and "
    f"below. PATTERN is a category, or part of a function's name. Categories: {' '.join(CATEGORIES)}. May be repeated"
)

_GENERAL: Final = Group(
    "Options",
    (
        Option(
            "help", _FLAG, "", "", "Displays this, with the options of all modules that are loaded", "h",
            sources=_COMMAND_LINE,
        ),
        Option("version", _FLAG, "", "", "Displays version information", "v", sources=_COMMAND_LINE),
        Option(
            "config", _TEXT, "FILE", DEFAULT_FILE, "Reads options from FILE: a line of name=value for each",
            sources=(Source.COMMAND_LINE, Source.ENVIRONMENT),
        ),
    ),
)  # fmt: skip
_MODULES: Final = Group(
    "Module options",
    (
        Option(
            "load-module", _TEXT, "NAME", "", "Loads a module, such as store. May be repeated", repeatable=True,
            adds_up=True,
        ),
        Option(
            "module-dir", _TEXT, "DIR", "", "Loads the modules that the .so files in DIR are named for. Without it no "
            "directory is searched", contrary="no-module-dir",
        ),
        Option(
            "no-module-dir", _FLAG, "", "", "Loads no modules but those of load-module", alias="no-module",
            contrary="module-dir",
        ),
    ),
)  # fmt: skip
_BROKER: Final = Group(
    "Broker options",
    (
        Option(
            "data-dir", _TEXT, "DIR", "", "Directory for persistent data: ~/.qpidd, or /var/lib/qpidd for a daemon, if "
            "it is not given", contrary="no-data-dir",
        ),
        Option(
            "no-data-dir", _FLAG, "", "", "No data directory: nothing persistent is loaded or stored",
            contrary="data-dir",
        ),
        Option("port", _NUMBER, "PORT", "5672", "Listens on PORT; 0 to have one chosen and printed", "p", most=65_535),
        Option(
            "interface", _TEXT, "ADDRESS", "", "Listens on this address or host name, else on the loopback addresses "
            "only. 0.0.0.0 and :: are all of IPv4 and IPv6. May be repeated", repeatable=True,
        ),
        Option("max-connections", _NUMBER, "N", "500", "Connections at one time", least=1, most=1_000_000),
        Option(
            "connection-backlog", _NUMBER, "N", "512", "Connections that wait to be accepted, as far as the system "
            "allows (net.core.somaxconn). With qpidd's default, 10, many clients that come at once wait for seconds",
            least=1, most=65_535,
        ),
        Option("max-negotiate-time", _NUMBER, "MS", "10000", "Until a connection must be open, in ms", least=1),
        Option("tcp-nodelay", _SWITCH, YES_NO, "yes", "Sends at once, and does not wait for more to go with it"),
        Option("transport", _TEXT, "NAME", "tcp", "Kind of connections", words=("tcp",)),
        Option("max-message-size", _NUMBER, "BYTES", "268435456", "Headers and content of a message at most", least=1),
        Option("enable-timestamp", _SWITCH, YES_NO, "no", "Messages get the time at which they arrive"),
        Option(
            "queue-purge-interval", _DURATION, "SECONDS", "600", "Time between looks for messages that have expired "
            "on queues that nobody reads; 0: never",
        ),
        Option("auth", _SWITCH, YES_NO, "yes", "Clients have to say who they are; see also user-file",
               opposite="no-auth"),
        Option("realm", _TEXT, "REALM", "QPID", "What follows the @ in a user's id", alias="auth-realm"),
        Option(
            "user-file", _TEXT, "FILE", "", "Names and passwords, made by qstore-passwd. Without it, auth lets clients "
            "of this host in and nobody else",
        ),
        Option("sasl-config", _TEXT, "DIR", "", "Configuration of SASL", effect=Effect.NOT_NEEDED, reason=_NO_CYRUS),
        Option("worker-threads", _NUMBER, "N", "", "Threads", effect=Effect.NOT_NEEDED, reason=_ONE_LOOP),
    ),
)  # fmt: skip
_QUEUES: Final = Group(
    "Queue options",
    (
        Option(
            "default-queue-limit", _NUMBER, "BYTES", "104857600", "Memory that a queue's messages take at most: "
            f"header, content, and {MESSAGE_OVERHEAD} bytes each; 0: no limit. qpid.max_size counts header and content",
        ),
        Option(
            "broker-memory", Kind.SIZE, "SIZE", "", "Memory that all messages take at most, in bytes or with K, M, G "
            "or T. Publishers are not read from 90 % on, and refused at 100 %. 0: no ceiling; not given: half of "
            "what the machine, the control group and the process's limits allow",
        ),
        Option(
            "default-flow-stop-threshold", _NUMBER, "PERCENT", "80", "Of a queue's limit, above which its publishers "
            "are stopped", most=100, effect=Effect.LATER, reason=_NO_FLOW,
        ),
        Option(
            "default-flow-resume-threshold", _NUMBER, "PERCENT", "70", "Of a queue's limit, below which they go on",
            most=100, effect=Effect.LATER, reason=_NO_FLOW,
        ),
        Option(
            "default-event-threshold-ratio", _NUMBER, "PERCENT", "80", "Of a queue's limit, from which an event is "
            "raised; 0: never", most=100, effect=Effect.LATER, reason="no events are raised yet",
        ),
        Option(
            "default-message-group", _TEXT, "NAME", "qpid.no-group", "Group of messages that name none",
            alias="default-msg-group", effect=Effect.LATER, reason="queues have no groups of messages yet",
        ),
    ),
)  # fmt: skip
_DAEMON: Final = Group(
    "Daemon options",
    (
        Option("daemon", _FLAG, "", "", "Runs as a daemon", "d"),
        Option(
            "pid-dir", _TEXT, "DIR", "",
            "Directory of the daemon's pid file: /var/run/qpidd, or ~/.qpidd if not run by root, if it is not given",
        ),
        Option(
            "wait", _DURATION, "SECONDS", "10", "Waits no longer for the daemon to be ready, or to end; then "
            "prints an error and returns 1", "w",
        ),
        Option(
            "check", _FLAG, "", "", "Prints the process id of a running broker and returns 0, else 1", "c",
            sources=_COMMAND_LINE,
        ),
        Option(
            "quit", _FLAG, "", "", "Tells a running broker to shut down, and waits until it has", "q",
            sources=_COMMAND_LINE,
        ),
    ),
)  # fmt: skip
_LOGGING: Final = Group(
    "Logging options",
    (
        Option("trace", _FLAG, "", "", "Logs everything", "t"),
        Option(
            "log-enable", _TEXT, "RULE", DEFAULT_RULE, f"Logs what the rule says. {_RULE_HELP}", repeatable=True,
            adds_up=True,
        ),
        Option(
            "log-disable", _TEXT, "RULE", "", "Does not log what the rule says", repeatable=True, adds_up=True,
        ),
        Option("log-time", _SWITCH, YES_NO, "yes", "Lines have the time"),
        Option("log-level", _SWITCH, YES_NO, "yes", "Lines have the level"),
        Option("log-source", _SWITCH, YES_NO, "no", "Lines have file and line of the source"),
        Option("log-thread", _SWITCH, YES_NO, "no", "Lines have the thread's id"),
        Option("log-function", _SWITCH, YES_NO, "no", "Lines have the function's name"),
        Option("log-hires-timestamp", _SWITCH, YES_NO, "no", "Times have microseconds"),
        Option("log-category", _SWITCH, YES_NO, "yes", "Lines have the category"),
        Option("log-prefix", _TEXT, "STRING", "", "Lines begin with this"),
    ),
)  # fmt: skip
_SINKS: Final = Group(
    "Logging sink options",
    (
        Option("log-to-stderr", _SWITCH, YES_NO, "yes", "Logs to standard error; never from a daemon"),
        Option("log-to-stdout", _SWITCH, YES_NO, "no", "Logs to standard output; never from a daemon"),
        Option("log-to-file", _TEXT, "FILE", "", "Logs to FILE"),
        Option("log-to-syslog", _SWITCH, YES_NO, "", "Logs to syslog: a daemon does, unless it logs to a file"),
        Option(
            "log-output", _TEXT, "FILE", "", "Logs to FILE, or to stderr, stdout or syslog, and where the options "
            "above say, but nowhere by default",
        ),
        Option("syslog-name", _TEXT, "NAME", "qpidd", "Name in syslog"),
        Option("syslog-facility", _TEXT, "LOG_XXX", "LOG_DAEMON", "Facility of syslog"),
    ),
)  # fmt: skip

GROUPS: Final = (_GENERAL, _MODULES, _BROKER, _QUEUES, _DAEMON, _LOGGING, _SINKS, *OTHERS)
"""All of the broker's own options, in the order in which help shows them."""
