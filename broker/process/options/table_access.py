"""The options of access control and of the limits of users and hosts (Qpid C++ Broker Book, 1.5.2 and 1.5.3)."""

from __future__ import annotations

from typing import Final

from qstore.broker.process.options.option import Group, Kind, Option
from qstore.broker.security.acl.tables import MAX_QUOTA

ACCESS: Final = Group(
    "Access control options",
    (
        Option(
            "acl-file", Kind.TEXT, "FILE", "", "File with the rules for who may do what. Without it every user may do "
            "everything. A name without / at the beginning is looked for in the data directory first. The broker does "
            "not start if the file is missing or wrong; SIGHUP reads it again; see also qstore-acl",
        ),
        Option(
            "strict-acl-validation", Kind.TEXT, "MODE", "warn", "What becomes of rules in the ACL file that have no "
            "effect. none: nothing; warn: a line in the log each; fatal: the file is not used, so that the broker does "
            "not start, or keeps its rules", choices=("none", "warn", "fatal"),
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
