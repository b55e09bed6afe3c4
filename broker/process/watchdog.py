"""The watchdogs of a broker: of its event loop while it runs, and of its shutdown.

A child process kills the broker when its event loop hangs:

    broker    a byte from the timer of the event loop, each half second         ->  watchdog
    watchdog  SIGKILL, if none has arrived for the interval                    ->  broker

As qpidd's module of that name (`--watchdog-interval`). To the store this is a crash, which loses nothing that was
acknowledged; a service manager restarts the broker. systemd can do the same (`WatchdogSec=`), and is sent its own
messages from the same timer. When the watchdog counts:

    from         to                      it
    -----------  ----------------------  ----------------------------------------------------------------------------
    the start    the broker is ready     waits for the first byte: a recovery may take any time
    then         the shutdown begins     counts the time without a byte, in steps of its own: what it does not see, as
                                         while the machine is suspended or both processes are frozen, does not count.
                                         While the broker is stopped by a signal or a debugger (states T and t of
                                         proc(5)) nothing counts, and then it has the whole interval again
    then         the end                 has ended: `ShutdownWatchdog` watches the shutdown

The process is forked before the broker has threads, sockets and messages, and closes all descriptors but those of the
log. It ends with the broker: the pipe is closed then, or it has another parent.

The process ends even if the shutdown hangs: once `ShutdownWatchdog.start` was called, a thread checks for progress, and
when there was none for PATIENCE_SECONDS it logs this and terminates the process. For the store this, too, is a crash.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Final

from qstore.broker.log.logs import log_of
from qstore.broker.process import service_manager

_LOG: Final = log_of("Broker")

PATIENCE_SECONDS: Final = 60.0
"""Maximum time without progress during the shutdown. The store's own timeout for its disk is shorter."""
EXIT_CODE: Final = 1
_LOOK_SECONDS: Final = 1.0
_BEAT: Final = b"+"
_STOP: Final = b"-"
_STOPPED: Final = "Tt"
_STATES: Final = {"R": "running", "S": "waiting", "D": "waiting for a disk", "Z": "ending"}  # proc(5)
_MAX_STEP: Final = 1.0
_STEPS: Final = 8
_LOG_SECONDS: Final = 2.0  # maximum time for the last log line: the log may be on the disk that hangs
_INIT: Final = 1  # the first process of a container: no signal from inside kills it
_NAME: Final = "qpidd-watchdog"


class LoopWatchdog:
    """Kills the broker when its event loop hangs: the broker's end of the pipe.

    Args:
        seconds: the interval; 0 for no process.
        log_descriptors: the descriptors that the log needs.
    """

    def __init__(self, seconds: float, log_descriptors: Collection[int] = ()) -> None:
        self._process = self._pipe = -1
        self._is_stopped = False
        self._manager_seconds = service_manager.watchdog_seconds() / 2
        self._next_notice = 0.0
        broker = os.getpid()
        if seconds and broker == _INIT:
            _LOG.warning(
                "--watchdog-interval has no effect: this is process 1 of its container, which no process inside can "
                "kill; run the container with an init process (podman run --init)"
            )
        elif seconds:
            reading, self._pipe = os.pipe()
            self._process = os.fork()
            if not self._process:
                _be_watchdog(broker, reading, seconds, log_descriptors)
            os.close(reading)
            os.set_blocking(self._pipe, False)
            text = "Watchdog: process %d kills this broker if its event loop hangs for %g seconds"
            _LOG.info(text, self._process, seconds)

    def beat(self) -> None:
        """The event loop runs. Call it from there, at least each half second."""
        if self._pipe >= 0 and not self._is_stopped:
            try:
                os.write(self._pipe, _BEAT)
            except BlockingIOError:
                pass  # the pipe is full of them: the watchdog is stopped
            except OSError as error:
                text = "The watchdog has ended (%s): a broker that hangs will not be killed. Restart the broker"
                _LOG.error(text, error.strerror)
                self._close()
        if self._manager_seconds and time.monotonic() >= self._next_notice:
            self._next_notice = time.monotonic() + self._manager_seconds
            service_manager.notify("WATCHDOG=1")

    def stop(self) -> None:
        """End the watchdog; further calls do nothing. Thread-safe."""
        if self._pipe >= 0 and not self._is_stopped:
            self._is_stopped = True
            with contextlib.suppress(OSError):
                os.write(self._pipe, _STOP)

    def close(self) -> None:
        """End the watchdog, and wait until it has ended."""
        self.stop()
        self._close()

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._process, signal.SIGKILL)  # it may be stopped
                os.waitpid(self._process, 0)


def _be_watchdog(broker: int, reading: int, seconds: float, log_descriptors: Collection[int]) -> None:
    """The child process. Does not return."""
    try:
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)  # they may be sent to the process group
        kept = {0, 1, 2, reading, *log_descriptors}
        for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if descriptor not in kept:
                with contextlib.suppress(OSError):  # the listing's own descriptor is already closed
                    os.close(descriptor)
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(_NAME)
        if _has_hung(broker, reading, seconds):
            state = _STATES.get(_state(broker), "in an unknown state")
            text = (
                "Watchdog: the event loop of process %d has not run for %g seconds (the process is %s): it is killed. "
                "Nothing that was acknowledged is lost; the store is recovered at the next start"
            )
            _log_in_time(partial(_LOG.critical, text, broker, seconds, state))
            with contextlib.suppress(ProcessLookupError):
                os.kill(broker, signal.SIGKILL)
    finally:
        os._exit(0)


def _has_hung(broker: int, reading: int, seconds: float) -> bool:
    """Wait until the broker is silent for `seconds`; False if it ends, or asks the watchdog to stop."""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    step = min(seconds / _STEPS, _MAX_STEP)
    silence, is_armed, before = 0.0, False, time.monotonic()
    while silence < seconds:
        has_input = bool(poll.poll(step * 1000))
        now = time.monotonic()
        passed, before = min(now - before, 2 * step), now
        if os.getppid() != broker:
            return False
        if has_input:
            received = os.read(reading, 4096)
            if not received or _STOP in received:
                return False
            is_armed, silence = True, 0.0
        elif _state(broker) in _STOPPED:
            silence = 0.0
        elif is_armed:
            silence += passed
    return True


def _state(process: int) -> str:
    """The state of a process, a letter of proc(5); "?" if it is not known."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"


def _log_in_time(write: Callable[[], object]) -> None:
    """Write a log line, and go on without it if that takes long, or there is no memory for a thread."""
    logger = threading.Thread(target=write, daemon=True)
    with contextlib.suppress(RuntimeError, MemoryError):
        logger.start()
        logger.join(_LOG_SECONDS)


# ---- the shutdown ----


class ShutdownWatchdog:
    """Terminates the process when its shutdown hangs.

    Args:
        progress: returns a number that changes when the shutdown makes progress.
        patience: maximum time without progress, in seconds.
    """

    def __init__(self, progress: Callable[[], int], patience: float = PATIENCE_SECONDS) -> None:
        self._progress, self._patience = progress, patience
        self._is_started = threading.Lock()

    def start(self) -> None:
        """Start to check for progress. Thread-safe; further calls do nothing.

        Without memory for a thread the shutdown goes on all the same, and the next call tries again.
        """
        if self._is_started.acquire(blocking=False):
            try:
                threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
            except (RuntimeError, MemoryError):
                self._is_started.release()
                _LOG.warning("A shutdown that hangs will not be noticed: no thread can be started to watch it")

    def _watch(self) -> None:
        pause = threading.Event()
        seen, idle = self._progress(), 0.0
        while idle < self._patience:
            pause.wait(_LOOK_SECONDS)
            now = self._progress()
            seen, idle = now, 0.0 if now != seen else idle + _LOOK_SECONDS
        _log_in_time(self._log)
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
