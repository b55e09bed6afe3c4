"""Options in the environment: QPID_ and the option's name in capitals, with _ for -.

    QPID_PORT=5673   QPID_LOG_ENABLE=info+   QPID_NO_DATA_DIR=1

Empty variables are ignored. So are the variables of Qpid clients, some of which have the names of broker options but
another meaning (Qpid C++ Broker Book, table 1.19; Qpid wiki, "Client configuration"): a broker started from a client's
environment must not use that client's certificate or home directory. Any other unknown variable causes a warning if its
name is similar to that of an option (`sources`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qstore.broker.process.options.config_file import Entry
from qstore.broker.process.options.option import shown

PREFIX: Final = "QPID_"

CLIENTS_OWN: Final = ("QPID_SSL_", "QPID_JAVA_", "QPID_PYTHON_", "QPID_JMX_", "QPID_CLI")
"""Prefixes of the variables of clients and other brokers."""

OTHERS_OWN: Final = frozenset({"QPID_HOME", "QPID_WORK", "QPID_OPTS", "QPID_LOG_SUFFIX", "QPID_ARGS", "QPID_PNAME"})
"""Further variables of clients and other brokers."""


def read_environment(variables: Mapping[str, str]) -> tuple[Entry, ...]:
    """The options in the environment, known or not."""
    return tuple(
        Entry(name.removeprefix(PREFIX).lower().replace("_", "-"), text, shown(name))
        for name, text in sorted(variables.items())
        if name.startswith(PREFIX) and text and name not in OTHERS_OWN and not name.startswith(CLIENTS_OWN)
    )
