"""The signals of a broker: SIGTERM and SIGINT shut it down, SIGHUP reloads. The shutdown has a watchdog.

A dedicated thread receives the signals (sigwaitinfo(2)); all other threads block them. So they are handled and logged
even while the event loop is blocked by a disk, and none of them kills the process directly.

The process ends even if the shutdown hangs: once `Watchdog.start` was called, a thread checks for progress, and when
there was none for PATIENCE_SECONDS it logs this and terminates the process. For the store this is the same as a crash,
which loses nothing that was acknowledged.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final

from qstore.broker.log.logs import log_of

_LOG: Final = log_of("Broker")

PATIENCE_SECONDS: Final = 60.0
"""Maximum time without progress during the shutdown. The store's own timeout for its disk is shorter."""
EXIT_CODE: Final = 1
_LOOK_SECONDS: Final = 1.0
_LOG_SECONDS: Final = 2.0
"""Maximum time for the last log line: the log may be on the disk that hangs."""
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_ALL: Final = (*_ENDING, signal.SIGHUP)


class Signals:
    """Handles the signals until the process ends. Create it once, before any other thread is started.

    Args:
        end: called once, in the signal thread, to shut the broker down.
        reload: called in the signal thread for each SIGHUP before that.
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
                _LOG.notice("%s%s: the broker is already shutting down", name, sender)
            elif found.si_signo == signal.SIGHUP:
                _LOG.notice("%s%s: reloading", name, sender)
                self._reload()
            else:
                _LOG.notice("%s%s: shutting down", name, sender)
                is_ending = True
                self._end()


class Watchdog:
    """Terminates the process when its shutdown hangs.

    Args:
        progress: returns a number that changes when the shutdown makes progress.
        patience: maximum time without progress, in seconds.
    """

    def __init__(self, progress: Callable[[], int], patience: float = PATIENCE_SECONDS) -> None:
        self._progress, self._patience = progress, patience
        self._is_started = threading.Lock()

    def start(self) -> None:
        """Start to check for progress. Thread-safe; further calls do nothing."""
        if self._is_started.acquire(blocking=False):
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        pause = threading.Event()
        seen, idle = self._progress(), 0.0
        while idle < self._patience:
            pause.wait(_LOOK_SECONDS)
            now = self._progress()
            seen, idle = now, 0.0 if now != seen else idle + _LOOK_SECONDS
        logger = threading.Thread(target=self._log, daemon=True)
        logger.start()
        logger.join(_LOG_SECONDS)
        os._exit(EXIT_CODE)

    def _log(self) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        at = (
            ""
            if frame is None
            else " (at {0.filename}:{0.lineno}, {0.name})".format(traceback.extract_stack(frame)[-1])
        )
        _LOG.critical(
            "The shutdown hangs: no progress for %g seconds%s. The process is terminated, and the store is not closed "
            "cleanly: nothing that was acknowledged is lost; check whether the store's disk hangs",
            self._patience,
            at,
        )
