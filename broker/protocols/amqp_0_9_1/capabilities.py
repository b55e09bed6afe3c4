"""What each end tells about itself when a connection begins: properties, and among these its capabilities.

A client uses an extension only if the broker names it; the broker uses one only if the client does.

Source: RabbitMQ, "Protocol extensions" and "Client properties and capabilities".
"""

from __future__ import annotations

import platform
import socket
from typing import Final

from qstore import __version__
from qstore.formats.values import TypedMap, typed_map

CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
"""Of the broker: the extensions of RabbitMQ that clients ask for, and whether it has them."""


def server_properties() -> TypedMap:
    """The broker's properties."""
    return typed_map(
        {
            "product": "qstore",
            "version": __version__,
            "platform": f"Python {platform.python_version()}",
            "cluster_name": socket.gethostname(),
            "capabilities": CAPABILITIES,
        }
    )


def capabilities_of(properties: TypedMap) -> frozenset[str]:
    """The names of the capabilities that a client has."""
    typed = properties.get("capabilities")
    if typed is None or not isinstance(typed.value, TypedMap):
        return frozenset()
    return frozenset(name for name, each in typed.value.entries if each.value is True)
