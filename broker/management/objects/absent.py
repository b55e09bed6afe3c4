"""The classes of qpidd's schema without objects here: topics of AMQP 1.0, and clusters.

Consoles get their schema and no objects; their methods are refused with the reason.

Sources: the QMF schemas of qpidd's broker, and of its module ha.
"""

from __future__ import annotations

from typing import Final

from qstore.broker.management.schema import (
    PACKAGE,
    ClassName,
    ManagedClass,
    always,
    arg,
    method,
    not_available,
    prop,
)

_NONE: Final = always(None)


# ---- AMQP 1.0 ----


# fmt: off
TOPIC_CLASS: Final = ManagedClass(
    ClassName(PACKAGE, "topic"),
    properties=(
        prop("name", "sstr", "RC index", _NONE),
        prop("exchangeRef", "objId", "RC", _NONE, "", "", "Exchange"),
        prop("durable", "bool", "RC", _NONE),
        prop("properties", "map", "RO", _NONE),
    ),
)
# fmt: on


# ---- clusters ----

_NO_CLUSTER: Final = not_available("this broker is in no cluster")


# fmt: off
MANAGEMENT_SETUP_STATE_CLASS: Final = ManagedClass(
    ClassName(PACKAGE, "managementSetupState"),
    properties=(
        prop("objectNum", "uint64", "RO", _NONE, "Deprecated"),
        prop("bootSequence", "uint16", "RO", _NONE, "Deprecated"),
    ),
)

HA_BROKER_CLASS: Final = ManagedClass(
    ClassName("org.apache.qpid.ha", "haBroker"),
    properties=(
        prop("name", "sstr", "RC index", _NONE, "Primary Key"),
        prop("status", "sstr", "RO", _NONE, "HA status: primary or backup"),
        prop("brokersUrl", "sstr", "RO", _NONE, "URL with address of each broker in the cluster."),
        prop("publicUrl", "sstr", "RO", _NONE, "URL advertized to clients to connect to the cluster."),
        prop("replicateDefault", "sstr", "RO", _NONE,
             "Replication for queues/exchanges with no qpid.replicate argument"),
        prop("members", "list", "RO", _NONE, "List of brokers in the cluster"),
        prop("systemId", "uuid", "RO", _NONE, "Identifies the system."),
    ),
    methods=(
        method("promote", "Promote a backup broker to primary.", (), _NO_CLUSTER),
        method("setBrokersUrl", "URL listing each broker in the cluster.", (arg("url", "sstr", "I"),), _NO_CLUSTER),
        method("setPublicUrl", "URL advertized to clients.", (arg("url", "sstr", "I"),), _NO_CLUSTER),
        method("replicate", "Replicate individual queue from remote broker.", (
            arg("broker", "sstr", "I"),
            arg("queue", "sstr", "I"),
        ), _NO_CLUSTER),
    ),
)
# fmt: on
