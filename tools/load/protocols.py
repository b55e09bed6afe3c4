"""The protocols that load is generated in, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from qstore.broker.client.amqp_0_10 import machine as amqp_0_10
from qstore.broker.client.amqp_1_0 import machine as amqp_1_0
from qstore.broker.client.options import AMQP_0_10, AMQP_1_0, Destination
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.load.amqp_0_9_1 import BasicChannel, BasicWire
from qstore.tools.load.amqp_0_10 import TransferChannel
from qstore.tools.load.amqp_1_0 import LinkChannel
from qstore.tools.load.channel import LoadChannel
from qstore.tools.load.loop import Line, Loop, MakeWire

AMQP_0_9_1: Final = "amqp0-9-1"


class Protocol(NamedTuple):
    """A protocol: makes the client's end of a connection, and channels."""

    wire: MakeWire
    channel: Callable[[Line], LoadChannel]


PROTOCOLS: Final = {
    AMQP_0_9_1: Protocol(BasicWire, BasicChannel),
    AMQP_0_10: Protocol(
        lambda found, endpoint, has_output: amqp_0_10.WireConnection(
            found.options, found.credentials(endpoint), has_output
        ),
        TransferChannel,
    ),
    AMQP_1_0: Protocol(
        lambda found, endpoint, has_output: amqp_1_0.WireConnection(
            found.options, found.credentials(endpoint), has_output
        ),
        LinkChannel,
    ),
}


class Broker:
    """The broker that load is made for.

    Args:
        url: its URL.
        protocol: the name of the protocol.
        options: connection options by name.

    Raises:
        UrlError: the URL or an option is invalid.
    """

    def __init__(self, url: str, protocol: str, options: Mapping[str, Any]) -> None:
        self.protocol = protocol
        self._kind = PROTOCOLS[protocol]
        self._destination = Destination(url, options)

    def connect(self, loop: Loop) -> Line:
        """Begin to open a connection. Raises ConnectError."""
        return Line(loop, self._destination, self._kind.wire)

    def channel(self, line: Line) -> LoadChannel:
        """A channel on a connection that is open; it must be opened."""
        return self._kind.channel(line)
