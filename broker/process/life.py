"""The life of a broker, in its process: it starts, works until a signal comes or its store fails, and ends.

The order of a start, so that whatever can go wrong does before a client is let in: user file, store and recovery,
sockets, pid file. The end goes the other way: no more connections, then the store is closed, with the messages that
had been delivered. A recovery that fails leaves the store as it was, unclosed. A signal that comes before the broker
listens has it end as soon as it does. The end takes a bounded time (`signals`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from broker.log.logs import LEVELS, LogError, log_of
from broker.model.broker import Broker
from broker.model.store_protocol import Store, StoreLine, StoreModule
from broker.network.server import Server
from broker.process import daemon, service_manager
from broker.process.pid_file import PidFile
from broker.process.signals import Signals, Watchdog
from broker.protocols.stored_messages import restore_message
from broker.security.users import UserFileError, Users
from broker.settings import BrokerSettings

_LOG: Final = log_of("Broker")
_SECURITY_LOG: Final = log_of("Security")
_STORE_LOG: Final = log_of("Store")


class StartError(Exception):
    """The broker cannot start. The text is one line for a person."""


class LoadedModule(NamedTuple):
    """A store's module, and what its options are set to."""

    module: StoreModule
    values: Mapping[str, str]


class Life:
    """One broker's.

    Args:
        settings: its settings.
        module: brings its store; None if nothing is to be kept.
        version: the software's.
        pid_directory: where a daemon's pid file goes; None if it is no daemon.
        ready: called with the port when the broker listens.
        reopen_log: opens the log's file anew.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        module: LoadedModule | None,
        version: str,
        pid_directory: str | None,
        ready: Callable[[int], None],
        reopen_log: Callable[[], None],
    ) -> None:
        self._settings, self._module, self._version = settings, module, version
        self._pid_directory, self._ready, self._reopen_log = pid_directory, ready, reopen_log
        self._store: Store | None = None
        self._steps = 0  # of the end
        self._watchdog = Watchdog(self._progress)
        self._is_up = self._has_failed = False

    def run(self) -> bool:
        """Live. Returns whether all that was promised is on the disk.

        Raises:
            StartError: the broker cannot start.
        """
        _check_users(self._settings)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(self._live())

    async def _live(self) -> bool:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        Signals(partial(self._end, loop, ended), partial(_call_soon, loop, self._reload))
        began = time.monotonic()
        self._store = self._open_store()
        broker = Broker(self._settings, self._store, loop.call_soon)
        broker.recover(restore_message)
        _log_recovery(broker, time.monotonic() - began)
        server = Server(broker, self._settings)
        server.failed = partial(self._failed, ended)
        pid_file: PidFile | None = None
        try:
            ports = await self._listen(server)
            pid_file = self._hold_pid_file(ports[0])
            self._ready(ports[0])
            broker.run()
            self._is_up = True
            await ended.wait()
            service_manager.tell("STOPPING=1")
        finally:
            self._will_end()
            try:
                await server.close()
            finally:
                self._steps += 1
                has_failed = self._has_failed or (self._store is not None and self._store.failure is not None)
                is_clean = broker.close()
                self._steps += 1
                if pid_file is not None:
                    _release(pid_file)
        if is_clean:
            _LOG.notice("Shut down")
        else:
            _LOG.critical("Shut down, and the store is not closed cleanly: it is recovered when it is opened again")
        return is_clean and not has_failed

    def _failed(self, ended: asyncio.Event, what: str) -> None:
        self._has_failed = True
        if not ended.is_set():
            _LOG.critical("%s: shutting down", what)
            ended.set()

    # ---- signals; the first two are called by any thread ----

    def _end(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
        if self._is_up:  # else it starts, which takes as long as there is to recover
            self._will_end()
        _call_soon(loop, ended.set)

    def _progress(self) -> int:
        return self._steps + (0 if self._store is None else self._store.progress)

    def _will_end(self) -> None:
        if self._store is not None:
            self._store.will_close()
        self._watchdog.start()

    def _reload(self) -> None:
        """SIGHUP: what can be read anew is, and what cannot is named."""
        try:
            self._reopen_log()
        except LogError as error:
            _LOG.error("%s; until it can be, lines are lost", error)
        path = self._settings.user_file
        if path is not None and self._settings.auth:
            try:
                for line in Users(path).check():
                    _SECURITY_LOG.warning("%s", line)
                _SECURITY_LOG.notice("%s: the user file is sound; it is read at every login", path)
            except UserFileError as error:
                _SECURITY_LOG.error("%s", error)
        _LOG.notice("Reloaded the log's file and the user file; for all other options restart the broker")

    def _open_store(self) -> Store | None:
        if self._module is None:
            _LOG.warning(
                "No store is loaded: durable queues and persistent messages are not kept when the broker ends; "
                "see --load-module store"
            )
            return None
        module, values = self._module
        try:
            return module.open(values, self._settings.data_directory, self._version, _log_store_line)
        except module.errors as error:
            raise StartError(str(error)) from error

    async def _listen(self, server: Server) -> list[int]:
        try:
            return await server.listen()
        except OSError as error:
            where = f"{', '.join(self._settings.interfaces)}, port {self._settings.port}"
            advice = "see --interface and --port"
            raise StartError(f"cannot listen on {where}: {_reason(error)}; {advice}") from error

    def _hold_pid_file(self, port: int) -> PidFile | None:
        if self._pid_directory is None:
            return None
        try:
            return daemon.hold_pid_file(self._pid_directory, port)
        except daemon.DaemonError as error:
            raise StartError(str(error)) from error


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call from the event loop, unless that has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


def _release(pid_file: PidFile) -> None:
    error = pid_file.release(remove=True)
    if error is not None:
        _LOG.warning(
            "%s: the pid file cannot be removed: %s; it is not locked, so nobody heeds it",
            error.filename,
            error.strerror,
        )


def _log_recovery(broker: Broker, seconds: float) -> None:
    """Say what came back, and how long it took to open the store and read it."""
    if broker.store is None:
        return
    queues = [queue for queue in broker.queues.values() if queue.durable]
    messages = sum(queue.message_count for queue in queues)
    crashed = "" if broker.store.was_clean or not queues else ", of a store that was not closed cleanly"
    text = "Recovered %s and %s in %.1f s%s"
    _LOG.notice(text, _counted(len(queues), "durable queue"), _counted(messages, "message"), seconds, crashed)
    if broker.in_doubt_messages:
        in_doubt = _counted(broker.in_doubt_messages, "message")
        _LOG.notice("Transactions in doubt hold %s, which nobody gets before they are settled", in_doubt)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _reason(error: OSError) -> str:
    """What the system says. The event loop has put its own words around it, and a name server has its own numbers."""
    number = None if isinstance(error, socket.gaierror) else error.errno
    return error.strerror or str(error) if number is None else os.strerror(number)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        _LOG.notice("uvloop is not installed: the broker works, and more slowly")
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _check_users(settings: BrokerSettings) -> None:
    if settings.user_file is None:
        return
    if not settings.auth:
        _SECURITY_LOG.warning("the user file is not used, since --auth is no: every name and password is accepted")
        return
    try:
        for line in Users(settings.user_file).check():
            _SECURITY_LOG.warning("%s", line)
    except UserFileError as error:
        raise StartError(str(error)) from error


def _log_store_line(line: StoreLine) -> None:
    _STORE_LOG.log(LEVELS[line.level], "%s", line.text)
