"""What all AMQP 0-9-1 connections of a broker share."""

from __future__ import annotations

from typing import Final

from qstore.broker.log.budget import LogBudget
from qstore.broker.log.logs import WARNING, log_of
from qstore.broker.model.broker import Broker
from qstore.broker.protocols.admission import Admission
from qstore.broker.protocols.budget import Budget

_HEADS: Final = 256 * 1024  # bytes: at most two frames, basic.publish and the content header


class Shared:
    """The shared state.

    Args:
        broker: the model.

    Attributes:
        broker: as above.
        budget: limits incomplete messages over all connections; there is room for at least one of the maximum size.
        admission: admits clients whose user is known.
        failed_logins: log lines about rejected clients.
    """

    def __init__(self, broker: Broker) -> None:
        settings = broker.settings
        self.broker = broker
        largest = settings.max_message_bytes + _HEADS
        self.budget = Budget(max(settings.max_unfinished_bytes, largest), largest, broker.tick.turns)
        self.admission = Admission(broker.authorization, broker.quotas)
        self.failed_logins = LogBudget(log_of("Security"), WARNING, "failed logins")
