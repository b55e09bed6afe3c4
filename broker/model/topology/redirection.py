"""Redirection: messages for each of two queues are put on the other one.

It ends when it is cancelled at its source, when either queue is deleted, or when the broker stops. It takes effect in
the routes of all exchanges (`exchanges.route`), so that it costs publishing nothing. The queue that gets a message
determines whether it is stored. Messages on a queue stay there when a redirection begins or ends. A queue is part of
at most one redirection.

Sources: qpidd, Broker.cpp (queueRedirect) and Queue.cpp (deliver: both queues are each other's peer; the source is the
one at which the redirection is cancelled).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InvalidArgumentError, ModelError, PreconditionFailedError
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
    """Redirects the queues of one virtual host.

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
        """Put messages for each of two queues on the other one from now on; without a target, end that.

        Raises:
            InvalidArgumentError: a name is empty, or both are the same.
            UnauthorizedError: the caller is not allowed to, or may not publish to both queues.
            ResourceLockedError: one is exclusive to a connection of AMQP 0-9-1.
            NotFoundError: there is no such queue.
            PreconditionFailedError: they cannot be redirected; or, without a target, the queue is not the source.
        """
        peer = "" if target_name else self._peer_name(source_name)
        self._authorization.check(caller, Action.REDIRECT, ObjectType.QUEUE, source_name, queuename=target_name or peer)
        if target_name:
            for name in (source_name, target_name):  # messages for either may get there
                self._authorization.check_publish(caller, "", name)
        source = self._topology.find_queue(source_name)
        if target_name:
            target = self._topology.find_queue(target_name)
            check_private(source, caller)
            check_private(target, caller)
            _check(source, target)
            source.redirect_peer, target.redirect_peer = target, source
            source.is_redirect_source = True
            self._forget_routes(source, target)
            self._events.emit(QueueRedirect(source.name, target.name))
        elif source.redirect_peer is None:
            raise PreconditionFailedError(f'queue "{source_name}" is not redirected')
        elif not source.is_redirect_source:
            raise PreconditionFailedError(
                f'queue "{source_name}" is the target of a redirection; cancel it at its source, "{peer}"'
            )
        else:
            self.cancel(source)

    def _peer_name(self, name: str) -> str:
        """The name of the other queue of the redirection that a queue is a part of; empty if there is none."""
        try:
            peer = self._topology.find_queue(name).redirect_peer
        except ModelError:
            return ""
        return "" if peer is None else str(peer.name)

    def cancel(self, queue: Queue) -> None:
        """Cancel the redirection that a queue is a part of, if there is one."""
        peer = queue.redirect_peer
        if peer is not None:
            source, target = (queue, peer) if queue.is_redirect_source else (peer, queue)
            source.redirect_peer = target.redirect_peer = None
            source.is_redirect_source = False
            self._forget_routes(source, target)
            self._events.emit(QueueRedirectCancelled(source.name, target.name))

    def _forget_routes(self, *queues: Queue) -> None:
        concerned = dict.fromkeys((self._exchanges[""], *(each for queue in queues for each in queue.bound_to)))
        for exchange in concerned:
            exchange.forget_routes()


def _check(source: Queue, target: Queue) -> None:
    """Raise ModelError unless the messages for one queue can be put on the other, and the reverse."""
    if source is target:
        raise InvalidArgumentError(f'queue "{source.name}" is both source and target')
    for queue in (source, target):
        if queue.redirect_peer is not None:
            raise PreconditionFailedError(f'queue "{queue.name}" is already part of a redirection')
        if queue.auto_delete:
            raise PreconditionFailedError(f'queue "{queue.name}" is deleted automatically, and cannot be redirected')
