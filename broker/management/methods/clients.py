"""Methods of connections and sessions: they are closed as if by an administrator of the client's own side.

Sessions that are detached by management wait for their timeout, as if the client had lost its connection. A session
that is detached can be closed, and its timeout begun anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qstore.broker.model.errors import PreconditionFailedError
from qstore.broker.protocols.machine import SessionAction

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ListedSession, ManagedBroker
    from qstore.broker.management.objects.element import Arguments, Results
    from qstore.broker.model.caller import Caller
    from qstore.broker.protocols.machine import Machine


async def close_connection(managed: ManagedBroker, machine: Machine, _arguments: Arguments, _caller: Caller) -> Results:
    """Close a connection."""
    machine.force_close("closed by management")
    managed.broker.tick.schedule()
    return {}


async def close_session(
    managed: ManagedBroker, listed: ListedSession, _arguments: Arguments, _caller: Caller
) -> Results:
    """End a session, attached or detached: what it has not settled is available again."""
    if listed.detached is not None:
        listed.detached.end()
        managed.broker.tick.schedule()
        return {}
    return _manage(managed, listed, SessionAction.CLOSE)


async def detach_session(
    managed: ManagedBroker, listed: ListedSession, _arguments: Arguments, _caller: Caller
) -> Results:
    """Detach a session."""
    return _manage(managed, listed, SessionAction.DETACH)


async def solicit_ack(managed: ManagedBroker, listed: ListedSession, _arguments: Arguments, _caller: Caller) -> Results:
    """Ask a client which commands it has completed."""
    return _manage(managed, listed, SessionAction.SOLICIT)


async def reset_lifespan(
    _managed: ManagedBroker, listed: ListedSession, _arguments: Arguments, _caller: Caller
) -> Results:
    """Begin the timeout of a detached session anew: that of an attached one has not begun."""
    if listed.detached is not None:
        listed.detached.extend()
    return {}


def _manage(managed: ManagedBroker, listed: ListedSession, action: SessionAction) -> Results:
    if listed.machine is None:
        raise PreconditionFailedError(f'session "{listed.key}" is detached')
    listed.machine.manage_session(listed.channel, action)
    managed.broker.tick.schedule()
    return {}
