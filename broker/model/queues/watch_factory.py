"""Makes the watch of a queue from its declaration, its capacity, and the broker's defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.queues.alerts import Alerts, alert_thresholds
from qstore.broker.model.queues.arguments import RING, RING_STRICT, SELF_DESTRUCT
from qstore.broker.model.queues.depth_watch import DepthWatch
from qstore.broker.model.queues.flow_control import (
    FlowControl,
    FlowDefaults,
    FlowThresholds,
    Stop,
    StoppedQueues,
    flow_thresholds,
)

if TYPE_CHECKING:
    from qstore.broker.model.events import Event
    from qstore.broker.model.queues.arguments import QueueArguments
    from qstore.broker.model.queues.capacity import Capacity

_LOG: Final = log_of("Model")
_NOT_KEPT_BELOW_LIMIT: Final = (RING, RING_STRICT, SELF_DESTRUCT)
_NO_DEFAULTS: Final = FlowDefaults()


class WatchFactory:
    """Makes the watches of one broker's queues.

    Args:
        stops: gets the stopped queues that a message is put on.
        flow_defaults: default thresholds of flow control. Rings have none (Qpid C++ Broker Book, 1.8.2), nor
            have queues that are to be deleted at their limit.
        alert_percent: default threshold of alerts, in percent of a queue's capacity; 0 for none.
        emit: passes an event to the listeners.
        monotonic: seconds of a monotonic clock.

    Attributes:
        stopped: the queues whose flow control is on.
    """

    def __init__(
        self,
        stops: list[Stop],
        flow_defaults: FlowDefaults,
        alert_percent: int,
        emit: Callable[[Event], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._stops, self._emit, self._monotonic = stops, emit, monotonic
        self._flow_defaults, self._alert_percent = flow_defaults, alert_percent
        self.stopped = StoppedQueues()

    def check(self, name: str, parsed: QueueArguments, capacity: Capacity) -> None:
        """Raise InvalidArgumentError if thresholds of the declaration contradict each other, or the capacity."""
        self._thresholds(name, parsed, capacity)

    def make(self, name: str, parsed: QueueArguments, capacity: Capacity) -> DepthWatch:
        """The watch of a queue. Contradictory thresholds, which only a recovered queue can have, are ignored."""
        try:
            thresholds = self._thresholds(name, parsed, capacity)
        except InvalidArgumentError as error:
            _LOG.warning("There is no flow control on a recovered queue: %s", error)
            thresholds = None
        alerts = alert_thresholds(parsed.alerts, capacity, self._alert_percent)
        return DepthWatch(
            self._stops,
            None if thresholds is None else FlowControl(thresholds, self.stopped),
            None if alerts is None else Alerts(alerts, self._emit, self._monotonic),
        )

    def _thresholds(self, name: str, parsed: QueueArguments, capacity: Capacity) -> FlowThresholds | None:
        defaults = _NO_DEFAULTS if parsed.policy in _NOT_KEPT_BELOW_LIMIT else self._flow_defaults
        return flow_thresholds(name, parsed.flow, capacity, defaults)
