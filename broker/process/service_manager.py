"""What systemd is told of the broker's state, by the protocol of sd_notify(3).

A service manager that wants to know names a datagram socket in NOTIFY_SOCKET; `@` stands for the NUL with which the
name of an abstract socket begins. Elsewhere nothing is done.
"""

from __future__ import annotations

import os
import socket
from typing import Final

from broker.log.logs import log_of

_LOG: Final = log_of("System")


def tell(state: str) -> None:
    """Tell the service manager, if there is one: `READY=1`, `STOPPING=1`."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.setblocking(False)
            manager.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
    except OSError as error:
        _LOG.warning("The service manager cannot be told %s: %s", state, error.strerror or error)
