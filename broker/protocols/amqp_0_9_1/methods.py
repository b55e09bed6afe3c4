"""Executes the methods of a client on an open channel, each by a function in a table.

`basic_methods` has class basic, and tx, confirm and channel; `topology_methods` has exchange and queue, which take
time: the connection's input is paused until they are done. basic.ack is decoded here, as it is frequent. basic.publish
has content, and comes by another way (`publish`).
"""

from __future__ import annotations

from typing import Final

from qstore.broker.protocols.amqp_0_9_1.acknowledgements import acknowledge
from qstore.broker.protocols.amqp_0_9_1.basic_methods import BASIC_METHODS
from qstore.broker.protocols.amqp_0_9_1.channel import Channel
from qstore.broker.protocols.amqp_0_9_1.errors import HardError
from qstore.broker.protocols.amqp_0_9_1.topology_methods import TOPOLOGY_METHODS
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.methods import ACK, decode_ack, decode_method

_METHODS: Final = {**BASIC_METHODS, **TOPOLOGY_METHODS}
_MISSING: Final = frozenset(("exchange.bound",))


def do_method(channel: Channel, payload: bytes) -> None:
    """Execute a method.

    Raises:
        Amqp091Error: it cannot be decoded.
        ProtocolError, ModelError: it has failed.
    """
    if payload[:4] == ACK:
        acknowledge(channel, *decode_ack(payload))
        return
    method, values = decode_method(payload)
    if method.name in _MISSING:
        raise HardError(ReplyCode.NOT_IMPLEMENTED, f"{method.name} is not implemented")
    do = _METHODS.get(method.name)
    if do is None:
        raise HardError(ReplyCode.COMMAND_INVALID, f"{method.name} is unexpected from a client")
    do(channel, values, payload)
