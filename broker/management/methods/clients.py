"""Methods of connections and sessions: they are closed as if by an administrator of the client's own side.

Sessions that are detached by management wait for their timeout, as if the client had lost its connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qstore.broker.protocols.machine import SessionAction

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import AttachedSession, ManagedBroker
    from qstore.broker.management.objects.element import Arguments, Results
    from qstore.broker.model.caller import Caller
    from qstore.broker.protocols.machine import Machine


async def close_connection(managed: ManagedBroker, machine: Machine, _arguments: Arguments, _caller: Caller) -> Results:
    """Close a connection."""
    machine.force_close("closed by management")
    managed.broker.tick.schedule()
    return {}


async def close_session(
    managed: ManagedBroker, attached: AttachedSession, _arguments: Arguments, _caller: Caller
) -> Results:
    """End a session: what it has not settled is available again."""
    attached.machine.manage_session(attached.channel, SessionAction.CLOSE)
    managed.broker.tick.schedule()
    return {}


async def detach_session(
    managed: ManagedBroker, attached: AttachedSession, _arguments: Arguments, _caller: Caller
) -> Results:
    """Detach a session."""
    attached.machine.manage_session(attached.channel, SessionAction.DETACH)
    managed.broker.tick.schedule()
    return {}


async def solicit_ack(
    managed: ManagedBroker, attached: AttachedSession, _arguments: Arguments, _caller: Caller
) -> Results:
    """Ask a client which commands it has completed."""
    attached.machine.manage_session(attached.channel, SessionAction.SOLICIT)
    managed.broker.tick.schedule()
    return {}


async def reset_lifespan(
    _managed: ManagedBroker, _attached: AttachedSession, _arguments: Arguments, _caller: Caller
) -> Results:
    """Begin the timeout of a session anew: that of an attached one has not begun."""
    return {}
