"""Redirection: the messages for a queue are put on another one, until that is cancelled or either is deleted.

It takes effect in the routes of all exchanges (`exchanges.route`), so that publishing pays nothing for it, and what is
promised is promised by the queue that gets the messages. Messages that are on the queue stay there. A queue is part of
one redirection at most, and it does not survive a restart, as in qpidd.

Source: qpidd, Broker.cpp, queueRedirect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InvalidArgumentError, PreconditionFailedError
from qstore.broker.model.events import QueueRedirect, QueueRedirectCancelled
from qstore.broker.model.topology.checks import check_private

if TYPE_CHECKING:
    from qstore.broker.model.authorization import Authorization
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.events import Events
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.topology.topology import Topology


class Redirections:
    """Redirects the queues of one broker.

    Args:
        topology: finds queues.
        exchanges: name -> exchange.
        authorization: checks operations.
        events: emits an event for every change.
    """

    def __init__(
        self, topology: Topology, exchanges: Mapping[str, Exchange], authorization: Authorization, events: Events
    ) -> None:
        self._topology, self._exchanges, self._authorization, self._events = topology, exchanges, authorization, events

    def redirect(self, source_name: str, target_name: str, caller: Caller) -> None:
        """Put the messages for one queue on another one from now on; without a target, no longer.

        Raises:
            InvalidArgumentError: a name is empty, or both are the same.
            UnauthorizedError: the caller is not allowed to, or may not publish to both queues.
            ResourceLockedError: one is exclusive to a connection of AMQP 0-9-1.
            NotFoundError: there is no such queue.
            PreconditionFailedError: they cannot be redirected; or, without a target, the queue is not.
        """
        self._authorization.check(caller, Action.REDIRECT, ObjectType.QUEUE, source_name, queuename=target_name)
        if target_name:
            for name in (source_name, target_name):  # messages for either may get there
                self._authorization.check_publish(caller, "", name)
        source = self._topology.find_queue(source_name)
        if target_name:
            target = self._topology.find_queue(target_name)
            check_private(source, caller)
            check_private(target, caller)
            _check(source, target)
            source.redirected_to, target.redirected_from = target, source
            self._forget_routes()
            self._events.emit(QueueRedirect(source.name, target.name))
        elif source.redirected_to is None:
            raise PreconditionFailedError(f'queue "{source_name}" is not redirected')
        else:
            self.cancel(source)

    def cancel(self, queue: Queue) -> None:
        """Cancel the redirection that a queue is a part of, if there is one."""
        source = queue.redirected_from or queue
        target = source.redirected_to
        if target is not None:
            source.redirected_to = target.redirected_from = None
            self._forget_routes()
            self._events.emit(QueueRedirectCancelled(source.name, target.name))

    def _forget_routes(self) -> None:
        for exchange in self._exchanges.values():
            exchange.forget_routes()


def _check(source: Queue, target: Queue) -> None:
    """Raise ModelError unless the messages for one queue can be put on the other."""
    if source is target:
        raise InvalidArgumentError(f'queue "{source.name}" is both source and target')
    for queue in (source, target):
        if queue.redirected_to is not None or queue.redirected_from is not None:
            raise PreconditionFailedError(f'queue "{queue.name}" is part of a redirection already')
        if queue.auto_delete:
            raise PreconditionFailedError(f'queue "{queue.name}" is deleted automatically, and cannot be redirected')
