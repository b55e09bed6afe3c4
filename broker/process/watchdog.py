"""The watchdog of a running broker: a child process that kills it when its event loop stands still.

    broker    a byte from the timer of the event loop, each half second         ->  watchdog
    watchdog  SIGKILL, if none has come for the interval                        ->  broker

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
    then         the end                 has ended: `signals.Watchdog` looks after the shutdown

The process is forked before the broker has threads, sockets and messages, and closes all descriptors but those of the
log. It ends with the broker: the pipe is closed then, or it has another parent.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from qstore.broker.log.logs import log_of
from qstore.broker.process import service_manager

_LOG: Final = log_of("Broker")

_BEAT: Final = b"+"
_STOP: Final = b"-"
_STOPPED: Final = "Tt"
_STATES: Final = {"R": "running", "S": "waiting", "D": "waiting for a disk", "Z": "ending"}  # proc(5)
_MAX_STEP: Final = 1.0
_STEPS: Final = 8
_LOG_SECONDS: Final = 2.0  # for the line in the log: it may be on the disk that hangs
_INIT: Final = 1  # the first process of a container: no signal from inside kills it
_NAME: Final = "qpidd-watchdog"


class LoopWatchdog:
    """The broker's end.

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
            text = "Watchdog: process %d kills this broker if its event loop stands still for %g seconds"
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
            logger = threading.Thread(target=_LOG.critical, args=(text, broker, seconds, state), daemon=True)
            logger.start()
            logger.join(_LOG_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.kill(broker, signal.SIGKILL)
    finally:
        os._exit(0)


def _has_hung(broker: int, reading: int, seconds: float) -> bool:
    """Wait until the broker is silent for so long; False if it ends, or has told to stop."""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    step = min(seconds / _STEPS, _MAX_STEP)
    silence, is_armed, before = 0.0, False, time.monotonic()
    while silence < seconds:
        is_told = bool(poll.poll(step * 1000))
        now = time.monotonic()
        passed, before = min(now - before, 2 * step), now
        if os.getppid() != broker:
            return False
        if is_told:
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
