"""The classes of AMQP 1.0: incoming and outgoing links, domains, topics, policies. There are none without AMQP 1.0.

Source: the QMF schema of qpidd's broker.
"""

from __future__ import annotations

from typing import Final

from qstore.broker.management.objects.element import ManagedClass, always, prop, stat
from qstore.broker.management.objects.names import PACKAGE

_NONE: Final = always(None)

INCOMING_CLASS: Final = ManagedClass(
    PACKAGE,
    "incoming",
    (
        prop("sessionRef", "objId", "RC parent", _NONE, "", "", "Session"),
        prop("containerid", "sstr", "RC index", _NONE),
        prop("name", "sstr", "RC index", _NONE),
        prop("source", "sstr", "RC", _NONE),
        prop("target", "sstr", "RC", _NONE),
        prop("domain", "sstr", "RC", _NONE),
    ),
    (stat("transfers", "count64", _NONE, "Messages transferred", "message"),),
)

OUTGOING_CLASS: Final = ManagedClass(
    PACKAGE,
    "outgoing",
    (
        prop("sessionRef", "objId", "RC parent", _NONE, "", "", "Session"),
        prop("containerid", "sstr", "RC index", _NONE),
        prop("name", "sstr", "RC index", _NONE),
        prop("source", "sstr", "RC", _NONE),
        prop("target", "sstr", "RC", _NONE),
        prop("domain", "sstr", "RC", _NONE),
    ),
    (stat("transfers", "count64", _NONE, "Messages transferred", "message"),),
)

DOMAIN_CLASS: Final = ManagedClass(
    PACKAGE,
    "domain",
    (
        prop("name", "sstr", "RC index", _NONE),
        prop("durable", "bool", "RC", _NONE),
        prop("url", "sstr", "RO", _NONE),
        prop("mechanisms", "sstr", "RO", _NONE),
        prop("username", "sstr", "RO", _NONE),
        prop("password", "sstr", "RO", _NONE),
    ),
    (),
)

TOPIC_CLASS: Final = ManagedClass(
    PACKAGE,
    "topic",
    (
        prop("name", "sstr", "RC index", _NONE),
        prop("exchangeRef", "objId", "RC", _NONE, "", "", "Exchange"),
        prop("durable", "bool", "RC", _NONE),
        prop("properties", "map", "RO", _NONE),
    ),
    (),
)

QUEUE_POLICY_CLASS: Final = ManagedClass(
    PACKAGE,
    "queuePolicy",
    (
        prop("name", "sstr", "RC index", _NONE),
        prop("properties", "map", "RO", _NONE),
    ),
    (),
)

TOPIC_POLICY_CLASS: Final = ManagedClass(
    PACKAGE,
    "topicPolicy",
    (
        prop("name", "sstr", "RC index", _NONE),
        prop("properties", "map", "RO", _NONE),
    ),
    (),
)
