"""The classes link and bridge: connections to other brokers, and what they carry. There are none.

Source: the QMF schema of qpidd's broker.
"""

from __future__ import annotations

from typing import Final

from qstore.broker.management.methods.unavailable import not_available
from qstore.broker.management.objects.element import ManagedClass, always, arg, method, prop, stat, table
from qstore.broker.management.objects.names import PACKAGE

_NONE: Final = always(None)
_CALL: Final = not_available("this broker has no links to other brokers")

LINK_CLASS: Final = ManagedClass(
    PACKAGE,
    "link",
    (
        prop("vhostRef", "objId", "RC index parent", _NONE, "", "", "Vhost"),
        prop("name", "sstr", "RC index", _NONE),
        prop("host", "sstr", "RO", _NONE),
        prop("port", "uint16", "RO", _NONE),
        prop("transport", "sstr", "RO", _NONE),
        prop("durable", "bool", "RC", _NONE),
        prop("connectionRef", "objId", "RO", _NONE, "", "", "Connection"),
    ),
    (
        stat("state", "sstr", _NONE, "Operational state of the link"),
        stat("lastError", "lstr", _NONE, "Reason link is not operational"),
    ),
    table(
        (
            method("close", "", (), _CALL),
            method(
                "bridge",
                "Bridge messages over the link",
                (
                    arg("durable", "bool", "I"),
                    arg("src", "sstr", "I"),
                    arg("dest", "sstr", "I"),
                    arg("key", "lstr", "I"),
                    arg("tag", "sstr", "I"),
                    arg("excludes", "sstr", "I"),
                    arg("srcIsQueue", "bool", "I"),
                    arg("srcIsLocal", "bool", "I"),
                    arg("dynamic", "bool", "I"),
                    arg("sync", "uint16", "I"),
                    arg("credit", "uint32", "I", "granted to peer, 0 = infinite"),
                ),
                _CALL,
            ),
        )
    ),
)

BRIDGE_CLASS: Final = ManagedClass(
    PACKAGE,
    "bridge",
    (
        prop("linkRef", "objId", "RC index parent", _NONE, "", "", "Link"),
        prop("name", "sstr", "RC index", _NONE),
        prop("channelId", "uint16", "RO", _NONE),
        prop("durable", "bool", "RC", _NONE),
        prop("src", "sstr", "RC", _NONE),
        prop("dest", "sstr", "RC", _NONE),
        prop("key", "lstr", "RC", _NONE),
        prop("srcIsQueue", "bool", "RC", _NONE),
        prop("srcIsLocal", "bool", "RC", _NONE),
        prop("tag", "sstr", "RC", _NONE),
        prop("excludes", "sstr", "RC", _NONE),
        prop("dynamic", "bool", "RC", _NONE),
        prop("sync", "uint16", "RC", _NONE),
        prop("credit", "uint32", "RC", _NONE),
    ),
    (),
    table((method("close", "", (), _CALL),)),
)
