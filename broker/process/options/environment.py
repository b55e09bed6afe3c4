"""Options in the environment: QPID_ and the option's name, in capitals, with _ for -.

    QPID_PORT=5673   QPID_LOG_ENABLE=info+   QPID_NO_DATA_DIR=1

A variable that is empty was not given. Clients read variables of these names, too, and some of those mean something
else there (Qpid C++ Broker Book, table 1.19; Qpid wiki, "Client configuration"): a broker that is started from a
client's environment is not to take a certificate, or a home directory, for its own. They are passed over. Any other
that is no option gets a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.process.options.config_file import Entry
from broker.process.options.option import shown

PREFIX: Final = "QPID_"

CLIENTS_OWN: Final = ("QPID_SSL_", "QPID_JAVA_", "QPID_PYTHON_", "QPID_JMX_", "QPID_CLI")
"""How those variables begin that belong to clients, or to other brokers."""

OTHERS_OWN: Final = frozenset({"QPID_HOME", "QPID_WORK", "QPID_OPTS", "QPID_LOG_SUFFIX", "QPID_ARGS", "QPID_PNAME"})
"""Further ones that belong to others."""


def read_environment(variables: Mapping[str, str]) -> tuple[Entry, ...]:
    """The options that variables give; whether there are such options is not known here."""
    return tuple(
        Entry(name.removeprefix(PREFIX).lower().replace("_", "-"), text, shown(name))
        for name, text in sorted(variables.items())
        if name.startswith(PREFIX) and text and name not in OTHERS_OWN and not name.startswith(CLIENTS_OWN)
    )
