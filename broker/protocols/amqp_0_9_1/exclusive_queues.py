"""The queues that are exclusive to a connection: they are deleted with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.caller import BROKER, Caller
from qstore.broker.model.errors import ModelError
from qstore.broker.model.queues.queue import Queue
from qstore.broker.protocols.machine import Host

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker

_LOG: Final = log_of("Protocol")

Done = Callable[[ModelError | None], None]


class ExclusiveQueues:
    """The exclusive queues of one connection.

    Args:
        host: runs what takes time.
        broker: the model.
        owner: the connection.
    """

    __slots__ = ("_broker", "_host", "_owner", "_queues")

    def __init__(self, host: Host, broker: Broker, owner: Caller) -> None:
        self._host, self._broker, self._owner = host, broker, owner
        self._queues: dict[Queue, None] = {}

    def add(self, queue: Queue) -> None:
        """A queue was declared exclusive to the connection."""
        self._queues[queue] = None

    def delete(self, done: Done) -> None:
        """The connection ends: delete them, and call `done`, at once if there are none."""
        queues, self._queues = list(self._queues), {}
        if queues:
            self._host.run(self._delete(queues), done)
        else:
            done(None)

    async def _delete(self, queues: list[Queue]) -> None:
        for queue in queues:
            if self._broker.queues.get(queue.name) is queue and queue.owner is self._owner:
                try:
                    await self._broker.topology.delete_queue(queue.name, caller=BROKER)
                except ModelError as error:
                    _LOG.error('Exclusive queue "%s" was not deleted: %s', queue.name, error)
                    queue.owner = None
