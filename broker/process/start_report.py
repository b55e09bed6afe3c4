"""Tells how far a long start is: the log every few seconds, and the service manager each second.

systemd ends a service that is not ready in time (TimeoutStartSec=). Each message extends that time, as long as the
start makes progress (`EXTEND_TIMEOUT_USEC` of sd_notify(3)), and shows in `systemctl status` what it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from qstore.broker.log.logs import log_of
from qstore.broker.process import service_manager

_LOG: Final = log_of("Broker")

LOG_SECONDS: Final = 5.0
_NOTIFY_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 30.0
"""After a failure, which is a line in the log each time."""
EXTENSION_SECONDS: Final = 120
"""The next message may come so much later: rebuilding or converting a large journal is one step."""


class StartReport:
    """The progress of one start. Call it as often as there is any.

    Args:
        clock: seconds.
        notify: tells the service manager. Returns whether that was possible.
    """

    __slots__ = ("_clock", "_log_at", "_notify", "_notify_at")

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, notify: Callable[[str], bool] = service_manager.notify
    ) -> None:
        self._clock, self._notify = clock, notify
        self._log_at, self._notify_at = clock() + LOG_SECONDS, clock() + _NOTIFY_SECONDS

    def __call__(self, make_text: Callable[[], str]) -> None:
        """Tell what the text says, if it is time."""
        now = self._clock()
        if now < self._notify_at and now < self._log_at:
            return
        text = make_text()
        if now >= self._notify_at:
            is_told = self._notify(f"EXTEND_TIMEOUT_USEC={EXTENSION_SECONDS * 1_000_000}\nSTATUS=Starting: {text}")
            self._notify_at = now + (_NOTIFY_SECONDS if is_told else RETRY_SECONDS)
        if now >= self._log_at:
            self._log_at = now + LOG_SECONDS
            _LOG.notice("Starting: %s", text)
