"""The life of a broker, in its process: it starts, works until a signal comes, and ends.

The order of a start, so that whatever can go wrong does before a client is let in: user file, store and recovery,
sockets, pid file. The end goes the other way: no more connections, then the store is closed, with the messages that
had been delivered. A recovery that fails leaves the store as it was, unclosed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from broker import daemon, service_manager
from broker.broker import Broker
from broker.logs import LEVELS, log_of
from broker.pid_file import PidFile
from broker.protocols.amqp_0_10.transfer import restore_message
from broker.security.users import UserFileError, Users
from broker.server import Server
from broker.settings import BrokerSettings
from broker.store_protocol import Store, StoreLine, StoreModule

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
    """

    def __init__(
        self,
        settings: BrokerSettings,
        module: LoadedModule | None,
        version: str,
        pid_directory: str | None,
        ready: Callable[[int], None],
    ) -> None:
        self._settings, self._module, self._version = settings, module, version
        self._pid_directory, self._ready = pid_directory, ready

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
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        broker = Broker(self._settings, self._open_store(), loop.call_soon)
        broker.recover(restore_message)
        server = Server(broker, self._settings)
        pid_file: PidFile | None = None
        try:
            ports = await self._listen(server)
            pid_file = self._hold_pid_file(ports[0])
            self._ready(ports[0])
            broker.run()
            await ended.wait()
            service_manager.tell("STOPPING=1")
        finally:
            try:
                await server.close()
            finally:
                is_clean = broker.close()
                if pid_file is not None:
                    pid_file.release(remove=True)
                for number in (signal.SIGTERM, signal.SIGINT):  # one more comes too late to matter
                    loop.remove_signal_handler(number)
                    signal.signal(number, signal.SIG_IGN)
        _LOG.notice("Shut down")
        return is_clean

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
