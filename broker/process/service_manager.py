"""Notifies systemd of the broker's state, by the protocol of sd_notify(3), and reports the progress of a long start.

The service manager passes the address of a datagram socket in NOTIFY_SOCKET; a leading `@` means the NUL of an
abstract socket. Without it nothing is sent. WATCHDOG_USEC is the interval at which it expects a message
(sd_watchdog_enabled(3)).

systemd ends a service that is not ready in time (TimeoutStartSec=). Each message of a start extends that time, as long
as the start makes progress (`EXTEND_TIMEOUT_USEC` of sd_notify(3)), and `systemctl status` shows what it does. The log
has a line every few seconds.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
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


# ---- the progress of a start ----

_START_LOG: Final = log_of("Broker")
LOG_SECONDS: Final = 5.0
_NOTIFY_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 30.0
"""The pause after a failure, each of which is a line in the log."""
EXTENSION_SECONDS: Final = 120
"""The time until the next message: rebuilding or converting a large journal is one step."""


class StartReport:
    """The progress of one start. To be called whenever there is any.

    Args:
        clock: seconds.
        notify: notifies the service manager. Returns whether that was possible.
    """

    __slots__ = ("_clock", "_log_at", "_notify", "_notify_at")

    def __init__(self, clock: Callable[[], float] = time.monotonic, notify: Callable[[str], bool] = notify) -> None:
        self._clock, self._notify = clock, notify
        self._log_at, self._notify_at = clock() + LOG_SECONDS, clock() + _NOTIFY_SECONDS

    def __call__(self, make_text: Callable[[], str]) -> None:
        """Report the text, if it is time for a message."""
        now = self._clock()
        if now < self._notify_at and now < self._log_at:
            return
        text = make_text()
        if now >= self._notify_at:
            is_sent = self._notify(f"EXTEND_TIMEOUT_USEC={EXTENSION_SECONDS * 1_000_000}\nSTATUS=Starting: {text}")
            self._notify_at = now + (_NOTIFY_SECONDS if is_sent else RETRY_SECONDS)
        if now >= self._log_at:
            self._log_at = now + LOG_SECONDS
            _START_LOG.notice("Starting: %s", text)
