"""What management does to a session: ends it, detaches it, or asks the client what it has completed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qstore.broker.model.errors import ResourceDeletedError
from qstore.broker.protocols.amqp_0_10.session import State
from qstore.broker.protocols.machine import SessionAction
from qstore.formats.amqp_0_10.codes import DetachCode

if TYPE_CHECKING:
    from qstore.broker.protocols.amqp_0_10.server_session import ServerSession


def manage(session: ServerSession, action: SessionAction) -> None:
    """Do this to a session, unless it is detached."""
    if session.state is not State.ATTACHED:
        return
    if action is SessionAction.CLOSE:
        session.fail([], ResourceDeletedError("closed by management"))
    elif action is SessionAction.DETACH:
        session.connection.hand_over(session, DetachCode.NORMAL)
    else:
        session.send_control("session.flush", expected=False, confirmed=False, completed=True)
