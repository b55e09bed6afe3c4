"""Startup and shutdown of a broker: it runs until a signal arrives or its store fails.

Startup order, so that errors occur before any client can connect: user file, certificate, ACL file, store and recovery,
sockets, pid file. Shutdown is in reverse order: first the connections are closed, then the store; unacknowledged
messages remain in it. A failed recovery leaves the store as it was, not closed cleanly. A signal during startup takes
effect once the broker is listening. The duration of the shutdown is bounded (`watchdog`).

SIGTERM and SIGINT shut the broker down, SIGHUP reloads. A dedicated thread receives the signals (sigwaitinfo(2)); all
other threads block them. So they are handled and logged even while the event loop is blocked by a disk, and none of
them kills the process directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import LEVELS, LogError, log_of
from qstore.broker.log.sinks import Logging
from qstore.broker.log.status_log import StatusLog
from qstore.broker.model.broker import Broker
from qstore.broker.model.heap import leave_code
from qstore.broker.model.replication.source import prepare_replication, register_listener
from qstore.broker.model.store_protocol import Store, StoreLine, StoreModule
from qstore.broker.network.server import Server
from qstore.broker.process import daemon, service_manager
from qstore.broker.process.held_files import PidFile
from qstore.broker.process.helper import Helper, console_command
from qstore.broker.process.modules import ModuleError
from qstore.broker.process.option_table import OptionError
from qstore.broker.process.paging import Paging, PagingError
from qstore.broker.process.service_manager import StartReport
from qstore.broker.process.telemetry import Telemetry, TelemetryError
from qstore.broker.process.watchdog import LoopWatchdog, ShutdownWatchdog
from qstore.broker.protocols.amqp_0_10.message import new_transfer
from qstore.broker.protocols.stored_messages import restore_message
from qstore.broker.security.acl.control import AccessControl, control_access, read_rules
from qstore.broker.security.acl.rules import AclFileError, RuleSet
from qstore.broker.security.tls import ServerContexts, TlsConfigurationError
from qstore.broker.security.users.user_file import UserFileError, Users
from qstore.broker.settings import BrokerSettings
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.security.firewall import Firewall

_LOG: Final = log_of("Broker")
_SECURITY_LOG: Final = log_of("Security")
_STORE_LOG: Final = log_of("Store")

_STARTED_SECONDS: Final = 1.0  # after it listens: what the first clients need has run, too


class StartError(Exception):
    """The broker cannot start. The text is one line for the user."""


class LoadedModule(NamedTuple):
    """A store's module, and the values given for its options."""

    module: StoreModule
    values: Mapping[str, str]


class Runner:
    """Runs one broker.

    Args:
        settings: its settings.
        module: its store's module; None to store nothing.
        version: the software's version.
        pid_directory: directory of a daemon's pid file; None in the foreground.
        ready: called with the port when the broker is listening.
        log: the log of the process.
        build: the description of the build.
        configuration: path of the configuration file; empty if there is none.
        watchdog_seconds: after how long a hanging event loop is killed; 0: never.
        known_hosts: reads the option `known-hosts-url` again. Raises OptionError or ModuleError.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        module: LoadedModule | None,
        version: str,
        pid_directory: str | None,
        ready: Callable[[int], None],
        log: Logging,
        *,
        build: str = "",
        configuration: str = "",
        watchdog_seconds: float = 0.0,
        known_hosts: Callable[[], str] | None = None,
    ) -> None:
        self._known_hosts = known_hosts
        self._settings, self._module, self._version = settings, module, version
        self._pid_directory, self._ready, self._log = pid_directory, ready, log
        self._build, self._configuration, self._watchdog_seconds = build, configuration, watchdog_seconds
        self._status = StatusLog(is_on=settings.log_status, rules=settings.log_status_rules)
        self._life = LifeStatus(self._status, settings)
        self._store: Store | None = None
        self._server: Server | None = None
        self._steps = 0  # of the shutdown
        self._watchdog = ShutdownWatchdog(self._progress)
        self._loop_watchdog: LoopWatchdog | None = None
        self._is_up = self._has_failed = False
        self._rules: RuleSet | None = None
        self._firewall: Firewall | None = None
        self._access: AccessControl | None = None

    def run(self) -> bool:
        """Run the broker. Returns whether the shutdown was clean and nothing acknowledged is in doubt.

        Raises:
            StartError: the broker cannot start.
        """
        _check_users(self._settings)
        _check_certificate(self._settings)
        self._rules = _read_rules(self._settings)
        self._firewall = _read_firewall(self._settings)
        self._loop_watchdog = LoopWatchdog(self._watchdog_seconds, self._log.descriptors)
        gc.disable()  # recovered messages are many objects, without cycles; the server enables it
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                return runner.run(self._run())
        finally:
            gc.enable()
            self._loop_watchdog.close()

    async def _run(self) -> bool:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        Signals(partial(self._end, loop, ended), partial(_call_soon, loop, self._reload))
        began = time.monotonic()
        self._life.starting(self._version, self._build, self._configuration)
        report = StartReport()
        self._store = self._open_store(report)
        broker = Broker(self._settings, self._store, loop.call_soon, call_later=loop.call_later)
        self._status.follow(broker.events)
        self._access = control_access(broker, self._rules)
        broker.authorization.firewall = self._firewall
        paging = self._open_paging(broker, loop)
        telemetry = self._open_telemetry(broker)
        register_listener(broker, new_transfer)
        broker.recover(restore_message, report)
        self._access.recovered()
        _log_recovery(broker, time.monotonic() - began)
        await prepare_replication(broker)
        server = self._server = self._make_server(broker)
        self._life.exchanges(broker.default_host.exchanges.values())
        server.shut_down = partial(self._asked_to_end, ended)
        server.failed = partial(self._failed, ended)
        pid_file: PidFile | None = None
        console: Helper | None = None
        try:
            ports = await self._listen(server)
            pid_file = self._hold_pid_file(ports[0])
            self._ready(ports[0])
            broker.run()
            loop.call_later(_STARTED_SECONDS, leave_code)
            if self._settings.console is not None:
                console = Helper("console", "console", console_command(self._settings, ports[0]))
            if telemetry is not None:
                telemetry.start(loop)
            self._life.ready(server.listeners.transports)
            self._is_up = True
            if self._loop_watchdog is not None:
                server.beat = self._loop_watchdog.beat
                server.beat()
            await ended.wait()
            service_manager.notify("STOPPING=1")
        finally:
            self._begin_shutdown()
            if console is not None:
                console.close()
            server.listeners.close()
            self._life.stopping()
            try:
                await server.close()
            finally:
                self._steps += 1
                has_failed = self._has_failed or (self._store is not None and self._store.failure is not None)
                is_clean = broker.close()
                self._life.stopped(has_store=self._store is not None)
                if paging is not None:
                    paging.close()
                self._steps += 1
                if pid_file is not None:
                    _release(pid_file)
                if telemetry is not None:
                    telemetry.close()
                if console is not None:
                    console.wait()
        if is_clean:
            _LOG.notice("Shut down")
        else:
            _LOG.critical("Shut down, but the store was not closed cleanly: it will be recovered at the next start")
        return is_clean and not has_failed

    def _open_telemetry(self, broker: Broker) -> Telemetry | None:
        """Let sampled messages be traced, if there is an address for traces."""
        settings = self._settings
        if settings.telemetry is None:
            return None
        try:
            return Telemetry(settings.telemetry, settings.telemetry_limit, broker.tick)
        except TelemetryError as error:
            raise StartError(str(error)) from error

    def _open_paging(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> Paging | None:
        """Let messages go to paging files, if there is a directory for them."""
        settings = self._settings
        if settings.paging_directory is None:
            return None
        try:
            paging = Paging(settings.paging_directory, loop)
        except PagingError as error:
            raise StartError(str(error)) from error
        broker.queue_factory.use_paging(paging.directory, settings.max_paging_bytes)
        return paging

    def _make_server(self, broker: Broker) -> Server:
        try:
            return Server(broker, self._settings, self._version, self._log, self._status)
        except TlsConfigurationError as error:
            raise StartError(str(error)) from error

    def _failed(self, ended: asyncio.Event, what: str) -> None:
        self._has_failed = True
        if not ended.is_set():
            _LOG.critical("%s: shutting down", what)
            ended.set()

    def _asked_to_end(self, ended: asyncio.Event) -> None:
        """End the broker on behalf of management."""
        _LOG.notice("Shutting down, as management has asked")
        ended.set()

    # ---- signals: `_end` and `_progress` are called from any thread ----

    def _end(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
        try:
            if self._is_up:  # not during startup, when a long recovery must not trip the watchdog
                self._begin_shutdown()
        finally:
            _call_soon(loop, ended.set)

    def _progress(self) -> int:
        turns = 0 if self._server is None else self._server.broker.tick.turns.portions
        return self._steps + turns + (0 if self._store is None else self._store.progress)

    def _begin_shutdown(self) -> None:
        if self._loop_watchdog is not None:
            self._loop_watchdog.stop()
        if self._store is not None:
            self._store.will_close()
        self._watchdog.start()

    def _reload(self) -> None:
        """SIGHUP: reopen the log file, check the user file, and read the certificate and the known hosts again."""
        reloaded: list[str] = []
        try:
            self._log.reopen()
            reloaded.append("the log file")
        except LogError as error:
            _LOG.error("%s; log lines are lost until it can be written", error)
        path = self._settings.user_file
        if path is not None and self._settings.auth:
            try:
                for line in Users(path).check():
                    _SECURITY_LOG.warning("%s", line)
                _SECURITY_LOG.notice("%s: the user file is valid; it is read at every login", path)
                reloaded.append("the user file")
            except UserFileError as error:
                _SECURITY_LOG.error("%s", error)
        if self._access is not None and self._settings.acl_file is not None:
            self._access.start_reload()
        if self._server is not None:
            try:
                if self._settings.firewall_file is not None:
                    self._server.broker.authorization.firewall = _read_firewall(self._settings)
                    reloaded.append("the firewall")
            except StartError as error:
                _SECURITY_LOG.error("%s; the previous firewall stays in force", error)
            try:
                for line in self._server.reload_security():
                    _SECURITY_LOG.warning("%s", line)
                if self._settings.tls is not None:
                    reloaded.append("the certificate")
            except TlsConfigurationError as error:
                _SECURITY_LOG.error("%s; the previous certificate stays in use", error)
            _SECURITY_LOG.notice("Failed logins since the start: %d", self._server.authentication.failures)
            if self._known_hosts is not None:
                try:
                    if self._server.known_hosts.announce(self._known_hosts()):
                        reloaded.append("the known hosts")
                except (OptionError, ModuleError) as error:
                    _LOG.error("%s; the known hosts stay as they are", error)
        what = " and ".join(filter(None, (", ".join(reloaded[:-1]), *reloaded[-1:]))) or "nothing"
        _LOG.notice("Reloaded %s; changes of other options need a restart", what)

    def _open_store(self, report: StartReport) -> Store | None:
        if self._module is None:
            _LOG.warning(
                "No store is loaded: durable queues and persistent messages are lost when the broker ends; "
                "see --load-module store"
            )
            return None
        module, values = self._module
        try:
            store = module.open(values, self._settings.data_directory, self._version, _log_store_line, report)
        except module.errors as error:
            raise StartError(str(error)) from error
        if self._status.is_on:
            self._life.store_opened(module.title, store.metrics()["location"])
        return store

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
    """Call a function in the event loop, unless the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


def _release(pid_file: PidFile) -> None:
    error = pid_file.release(remove=True)
    if error is not None:
        _LOG.warning(
            "%s: the pid file cannot be removed: %s; this is harmless, since it is unlocked",
            error.filename,
            error.strerror,
        )


def _log_recovery(broker: Broker, seconds: float) -> None:
    """Log what was recovered, and the time it took to open and read the store."""
    if broker.store is None:
        return
    queues = [queue for queue in broker.all_queues() if queue.durable]
    messages = sum(queue.message_count for queue in queues)
    crashed = "" if broker.store.was_clean or not queues else "; the store was not closed cleanly"
    text = "Recovered %s and %s in %.1f s%s"
    _LOG.notice(text, _counted(len(queues), "durable queue"), _counted(messages, "message"), seconds, crashed)
    in_doubt = broker.distributed.branches
    if in_doubt:
        held = sum(branch.message_count for branch in in_doubt.values())
        text = "In doubt: %s with %s, until committed or rolled back; dtx.recover lists them"
        _LOG.notice(text, _counted(len(in_doubt), "transaction"), _counted(held, "message"))


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _reason(error: OSError) -> str:
    """The system's error text, without the event loop's additions. Name resolution has its own error numbers."""
    number = None if isinstance(error, socket.gaierror) else error.errno
    return error.strerror or str(error) if number is None else os.strerror(number)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        _LOG.notice("uvloop is not installed: the broker uses asyncio's event loop, which is slower")
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _check_users(settings: BrokerSettings) -> None:
    if settings.user_file is None:
        return
    if not settings.auth:
        _SECURITY_LOG.warning("The user file is ignored, since --auth is no: any user name and password is accepted")
        return
    try:
        for line in Users(settings.user_file).check():
            _SECURITY_LOG.warning("%s", line)
    except UserFileError as error:
        raise StartError(str(error)) from error


def _read_rules(settings: BrokerSettings) -> RuleSet | None:
    if settings.acl_file is None:
        return None
    try:
        return read_rules(settings.acl_file, settings.realm, settings.acl_validation)
    except AclFileError as error:
        raise StartError(str(error)) from error


def _read_firewall(settings: BrokerSettings) -> Firewall | None:
    if settings.firewall_file is None:
        return None
    from qstore.broker.security.firewall import FirewallError, read_file  # as the reader of the ACL file

    try:
        return read_file(settings.firewall_file)
    except FirewallError as error:
        raise StartError(str(error)) from error


def _check_certificate(settings: BrokerSettings) -> None:
    if settings.tls is not None:
        try:
            for line in ServerContexts(settings.tls).warnings():
                _SECURITY_LOG.warning("%s", line)
        except TlsConfigurationError as error:
            raise StartError(str(error)) from error


def _log_store_line(line: StoreLine) -> None:
    _STORE_LOG.log(LEVELS[line.level], "%s", line.text)


# ---- signals ----

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


# ---- the operational log ----

_AGENT: Final = "QMF agent"
_DEFAULT_EXCHANGE: Final = "<<default>>"


class LifeStatus:
    """Writes the steps of one broker's process to the operational log, in this order.

        BRK-1006, BRK-1007   the configuration file, if there is one; the options of the log are in it
        BRK-1001             version, and description of the build
        MNG-1001, MNG-1006   management, and its certificate; all MNG only if management is on
        VHT-1001             the virtual host
        MST-1001, MST-1002   the store and its location; then its recovery, from the model; all MST only if there is a
                             store
        EXH-1001             each exchange
        BRK-1002, MNG-1002   each port
        MNG-1004, BRK-1004   ready
        BRK-1003, MNG-1003   each port is closed
        MST-1003, VHT-1002   closed
        MNG-1005, BRK-1005   stopped

    Source: Qpid wiki, "Operational Logging" and its test specification (seed 004, lines 6187-8815).

    Args:
        log: the operational log.
        settings: of the broker.
    """

    def __init__(self, log: StatusLog, settings: BrokerSettings) -> None:
        self._log, self._settings = log, settings
        self._listening: Mapping[int, str] = {}

    def starting(self, version: str, build: str, configuration: str) -> None:
        """The process starts; `configuration` is the path of its configuration file, empty if there is none."""
        if configuration:
            self._log.write("BRK-1006", configuration)
            self._log.write("BRK-1007", configuration)
        self._log.write("BRK-1001", version, build)
        if self._settings.management:
            self._log.write("MNG-1001")
            if self._settings.tls is not None:
                self._log.write("MNG-1006", self._settings.tls.certificate_file)
        self._log.host("VHT-1001", "/")

    def store_opened(self, name: str, location: object) -> None:
        """The store is open, and will be recovered."""
        self._log.store("MST-1001", name)
        self._log.store("MST-1002", location)

    def exchanges(self, exchanges: Iterable[Exchange]) -> None:
        """These exchanges are there at the start."""
        for each in exchanges:
            self._log.exchange(each.type_name, each.name or _DEFAULT_EXCHANGE, durable=each.durable)

    def ready(self, listening: Mapping[int, str]) -> None:
        """Clients can connect. `listening` has the transports of each port, such as TCP and TCP/SSL."""
        self._listening = listening
        for port, transport in listening.items():
            self._log.write("BRK-1002", transport, port)
        if self._settings.management:
            for port in listening:
                self._log.write("MNG-1002", _AGENT, port)
            self._log.write("MNG-1004")
        self._log.write("BRK-1004")

    def stopping(self) -> None:
        """No client can connect any more."""
        for port, transport in self._listening.items():
            self._log.write("BRK-1003", transport, port)
        if self._settings.management:
            for port in self._listening:
                self._log.write("MNG-1003", _AGENT, port)

    def stopped(self, *, has_store: bool) -> None:
        """Everything is closed."""
        if has_store:
            self._log.store("MST-1003")
        self._log.host("VHT-1002")
        if self._settings.management:
            self._log.write("MNG-1005")
        self._log.write("BRK-1005")
