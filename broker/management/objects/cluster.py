"""The classes of clusters: the state of high availability, and of joining. A broker without a cluster has none.

Sources: the QMF schemas of qpidd's broker, and of its module ha.
"""

from __future__ import annotations

from typing import Final

from qstore.broker.management.methods.unavailable import not_available
from qstore.broker.management.objects.element import ManagedClass, always, arg, method, prop, table
from qstore.broker.management.objects.names import PACKAGE

_HA: Final = "org.apache.qpid.ha"
_NONE: Final = always(None)
_CALL: Final = not_available("this broker is in no cluster")

MANAGEMENT_SETUP_STATE_CLASS: Final = ManagedClass(
    PACKAGE,
    "managementSetupState",
    (
        prop("objectNum", "uint64", "RO", _NONE, "Deprecated"),
        prop("bootSequence", "uint16", "RO", _NONE, "Deprecated"),
    ),
    (),
)

HA_BROKER_CLASS: Final = ManagedClass(
    _HA,
    "haBroker",
    (
        prop("name", "sstr", "RC index", _NONE, "Primary Key"),
        prop("status", "sstr", "RO", _NONE, "HA status: primary or backup"),
        prop("brokersUrl", "sstr", "RO", _NONE, "URL with address of each broker in the cluster."),
        prop("publicUrl", "sstr", "RO", _NONE, "URL advertized to clients to connect to the cluster."),
        prop(
            "replicateDefault", "sstr", "RO", _NONE, "Replication for queues/exchanges with no qpid.replicate argument"
        ),
        prop("members", "list", "RO", _NONE, "List of brokers in the cluster"),
        prop("systemId", "uuid", "RO", _NONE, "Identifies the system."),
    ),
    (),
    table(
        (
            method("promote", "Promote a backup broker to primary.", (), _CALL),
            method("setBrokersUrl", "URL listing each broker in the cluster.", (arg("url", "sstr", "I"),), _CALL),
            method("setPublicUrl", "URL advertized to clients.", (arg("url", "sstr", "I"),), _CALL),
            method(
                "replicate",
                "Replicate individual queue from remote broker.",
                (
                    arg("broker", "sstr", "I"),
                    arg("queue", "sstr", "I"),
                ),
                _CALL,
            ),
        )
    ),
)
