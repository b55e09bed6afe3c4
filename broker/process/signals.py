"""The signals of a broker: SIGTERM and SIGINT end it, SIGHUP has it reload; and a bound for its end.

A thread of its own takes them (sigwaitinfo(2)), and all others have them blocked. So they are heard, and logged, also
while the event loop waits for a disk; and none of them ever ends the process by itself.

Whatever hangs then, the process ends: once `Watchdog.start` was called, it looks whether there is any progress, and
when there was none for PATIENCE_SECONDS it says so and ends the process where it stands. That is no worse for the store
than a crash, which loses nothing that was acknowledged.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final

from broker.log.logs import log_of

_LOG: Final = log_of("Broker")

PATIENCE_SECONDS: Final = 60.0
"""So long nothing may happen while the broker ends. The store's own patience with its disk is shorter."""
EXIT_CODE: Final = 1
_LOOK_SECONDS: Final = 1.0
_LOG_SECONDS: Final = 2.0
"""So long the last line may take: the log may be on the disk that hangs."""
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_ALL: Final = (*_ENDING, signal.SIGHUP)


class Signals:
    """Takes the signals from now on, until the process ends. To be made once, before any other thread is started.

    Args:
        end: called, in another thread, when the broker is to end: once.
        reload: called, in another thread, for each SIGHUP until then.
    """

    def __init__(self, end: Callable[[], None], reload: Callable[[], None]) -> None:
        self._end, self._reload = end, reload
        signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
        threading.Thread(target=self._take, name="signals", daemon=True).start()

    def _take(self) -> None:
        is_ending = False
        while True:
            found = signal.sigwaitinfo(_ALL)
            name = signal.Signals(found.si_signo).name
            sender = f" from process {found.si_pid}" if found.si_pid else ""
            if is_ending:
                _LOG.notice("%s%s: the broker is shutting down already", name, sender)
            elif found.si_signo == signal.SIGHUP:
                _LOG.notice("%s%s: reloading", name, sender)
                self._reload()
            else:
                _LOG.notice("%s%s: shutting down", name, sender)
                is_ending = True
                self._end()


class Watchdog:
    """Ends the process when it does not end by itself.

    Args:
        progress: a number that changes when something has happened.
        patience: seconds in which something has to happen.
    """

    def __init__(self, progress: Callable[[], int], patience: float = PATIENCE_SECONDS) -> None:
        self._progress, self._patience = progress, patience
        self._is_started = threading.Lock()

    def start(self) -> None:
        """From now on there has to be progress, until the process has ended. May be called again, by any thread."""
        if self._is_started.acquire(blocking=False):
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        pause = threading.Event()
        seen, idle = self._progress(), 0.0
        while idle < self._patience:
            pause.wait(_LOOK_SECONDS)
            now = self._progress()
            seen, idle = now, 0.0 if now != seen else idle + _LOOK_SECONDS
        teller = threading.Thread(target=self._tell, daemon=True)
        teller.start()
        teller.join(_LOG_SECONDS)
        os._exit(EXIT_CODE)

    def _tell(self) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        at = (
            ""
            if frame is None
            else " (at {0.filename}:{0.lineno}, {0.name})".format(traceback.extract_stack(frame)[-1])
        )
        _LOG.critical(
            "The broker does not end: nothing has happened for %g seconds%s. It is ended now, and the store is not "
            "closed cleanly: all that was acknowledged is kept; see whether its disk hangs",
            self._patience,
            at,
        )
