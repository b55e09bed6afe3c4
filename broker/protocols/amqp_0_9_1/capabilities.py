"""What each end tells about itself when a connection begins: properties, and among these its capabilities.

A client uses an extension only if the broker names it; the broker uses one only if the client does.

The broker names itself, and not RabbitMQ: clients that look at `product` and `version` do so to learn which of
RabbitMQ's releases, with their quirks and their kinds of queues, they are talking to, and this is none of them. It is
connection.start that has these properties, before anything is known about the client, so they are the same for all.

One client needs more than names. kombu, on which Celery is built, sets the prefetch count of its running consumers
again and again: for each task that waits for its time, and when the pool grows or shrinks. On RabbitMQ
3.3 to 3.13 it does so with `global=true`, on every other broker with `global=false`. RabbitMQ applies the latter to
later consumers only; if the broker did so here, a worker whose prefetch window is full of tasks that are due in an hour
would get nothing else for an hour. `adjusts_consumers` recognizes such clients, and only these.

Sources: RabbitMQ, "Protocol extensions", "Client properties and capabilities" and "Consumer Prefetch"; kombu 5.7,
`transport/pyamqp.py` (qos_semantics_matches_spec); Celery 5.7, `worker/consumer/tasks.py`.
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


_ADJUSTING: Final = "py-amqp"
"""The product whose connections change the prefetch count of running consumers: the client library of kombu."""


def server_properties() -> TypedMap:
    """The broker's properties: those that AMQP 0-9-1 asks for, and RabbitMQ's `cluster_name` and `capabilities`."""
    host = socket.gethostname()
    return typed_map(
        {
            "product": "qstore",
            "version": __version__,
            "platform": f"Python {platform.python_version()}",
            "copyright": "The authors of qstore",
            "information": "Licensed under the Apache License 2.0",
            "host": host,
            "cluster_name": host,
            "capabilities": CAPABILITIES,
        }
    )


def capabilities_of(properties: TypedMap) -> frozenset[str]:
    """The names of the capabilities that a client has."""
    typed = properties.get("capabilities")
    if typed is None or not isinstance(typed.value, TypedMap):
        return frozenset()
    return frozenset(name for name, each in typed.value.entries if each.value is True)


def adjusts_consumers(properties: TypedMap) -> bool:
    """Whether a client's basic.qos with `global=false` changes its channel's running consumers, too."""
    product = properties.get("product")
    return product is not None and product.value in (_ADJUSTING, _ADJUSTING.encode())
