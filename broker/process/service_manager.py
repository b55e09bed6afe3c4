"""Notifies systemd of the broker's state, by the protocol of sd_notify(3).

The service manager passes the address of a datagram socket in NOTIFY_SOCKET; a leading `@` stands for the NUL of an
abstract socket. Without it nothing is sent. In WATCHDOG_USEC it says how often it wants to hear from the broker
(sd_watchdog_enabled(3)).
"""

from __future__ import annotations

import os
import socket
from typing import Final

from qstore.broker.log.logs import log_of

_LOG: Final = log_of("System")


def watchdog_seconds() -> float:
    """The time without `WATCHDOG=1` after which the service manager ends this process; 0 if it does not do so."""
    given, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not given.isdecimal() or process not in ("", str(os.getpid())):
        return 0.0
    return int(given) / 1_000_000


def notify(state: str) -> bool:
    """Send a state to the service manager, if there is one: lines such as `READY=1`, `STOPPING=1`, `STATUS=text`.

    Returns:
        False if it cannot be sent, which is logged.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return True
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.setblocking(False)
            manager.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
    except OSError as error:
        _LOG.warning("Cannot send %s to the service manager: %s", state.partition("\n")[0], error.strerror or error)
        return False
    return True
