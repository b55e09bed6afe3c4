"""The command `qpidd`: starts a broker, or finds or ends a running one.

    qpidd --load-module store                              in the foreground, on 127.0.0.1 and ::1, port 5672
    qpidd --load-module store --daemon --data-dir DIR      as a daemon; returns when it is listening
    qpidd --config FILE                                    with the options in FILE, by default /etc/qpidd.conf
    qpidd --check, qpidd --quit                            print the process id of a running broker; shut it down

Exit codes: 0 clean shutdown (SIGTERM, SIGINT), or the command succeeded; 1 otherwise. SIGHUP reopens the log file and
checks the user file.

Startup order, so that errors occur before any client can connect: options, log, data directory, user file, store and
recovery, sockets, pid file. Shutdown is in reverse order.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

from qstore import __version__
from qstore.broker.log.logs import LogError, log_of
from qstore.broker.network import socket_connection
from qstore.broker.process import daemon, service_manager
from qstore.broker.process.held_files import (
    DataDirectory,
    DataDirectoryError,
    default_data_directory,
    lock_path,
    user_directory,
)
from qstore.broker.process.modules import ModuleError
from qstore.broker.process.option_table import OptionError
from qstore.broker.process.options import Values, help_text
from qstore.broker.process.plan import StartPlan, has_lost_log, known_hosts_of, make_plan, settings_of, start_logging
from qstore.broker.process.runner import LoadedModule, Runner, StartError
from qstore.formats.wording import printable

_LOG: Final = log_of("Broker")

_UMASK: Final = 0o077
_CANNOT_START: Final = "Daemon startup failed: "  # Qpid C++ Broker Book, 1.12.5


def run(arguments: Sequence[str]) -> int:
    """Run the command. Returns the exit code."""
    try:
        plan = make_plan(arguments, os.environ)
        values = plan.values
        if values.switch("help"):
            return _print(help_text(plan.table))
        if values.switch("version"):
            return _print(f"qpidd (qstore) version {__version__} ({kind_of_modules()})")
        if values.switch("check") or values.switch("quit"):
            return _check_or_quit(plan)
        os.umask(_UMASK)
        return _run_daemon(plan) if plan.is_daemon else _run_broker(plan, None)
    except (OptionError, ModuleError, LogError, daemon.DaemonError) as error:
        _print_error(str(error))
        return 1


def _print(text: str) -> int:
    """Write to standard output. Returns the exit code."""
    if sys.stdout is None:
        return 0
    try:
        print(text, flush=True)  # noqa: T201
    except OSError as error:
        # The rest of the buffer cannot be written either; without this Python would report a second error at exit.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
        if isinstance(error, BrokenPipeError):
            return 0  # the reader, such as head, has closed the pipe
        _print_error(f"standard output: {error.strerror}")
        return 1
    return 0


def _print_error(text: str) -> None:
    """Write to standard error."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # the exit code still reports the error
            print(f"qpidd: {printable(text)}", file=sys.stderr, flush=True)  # noqa: T201


# ---- a running broker ----


def _check_or_quit(plan: StartPlan) -> int:
    """`--check` and `--quit`."""
    values = plan.values
    paths = _held_files(values)
    process = daemon.find(paths)
    if process is None:
        _print_error(f"no broker is running: nothing holds {' or '.join(paths)}")
        return 1
    if values.switch("quit"):
        daemon.end(process, values.seconds("wait"))
        return 0
    return _print(str(process))


def _held_files(values: Values) -> list[str]:
    """The pid files and lock files that a broker with these options would hold."""
    port, directory = values.number("port"), values.text("pid-dir")
    directories = daemon.pid_directories() if directory is None else (directory,)
    data_directory = values.text("data-dir")
    if data_directory is not None:
        data_directories = [data_directory]
    elif values.is_given("port") or directory is not None:
        data_directories = []  # a broker with the default directory may have another port
    else:
        data_directories = [user_directory(), default_data_directory(is_daemon=True)]
    pid_files = [] if data_directory is not None and directory is None else [
        daemon.pid_path(each, port) for each in directories
    ]  # fmt: skip
    return [*pid_files, *map(lock_path, dict.fromkeys(data_directories))]


def _run_daemon(plan: StartPlan) -> int:
    """Fork: the child becomes the daemon, and the parent waits until it is ready. Returns the exit code."""
    try:
        forked = daemon.fork(plan.values.seconds("wait"))
    except daemon.DaemonError as error:
        _print_error(_CANNOT_START + str(error))
        return 1
    if isinstance(forked, daemon.Child):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return _run_broker(plan, forked)
    if has_lost_log(plan.values):
        _print_error("the daemon is running without a log, since this system has no syslog; see --log-to-file")
    if plan.values.number("port") == 0:
        return _print(str(forked.port))
    return 0


# ---- starting a broker ----


def _run_broker(plan: StartPlan, child: daemon.Child | None) -> int:
    """Run the broker until it is shut down. Returns the exit code."""
    report = _Report(plan, child)
    spare_addresses()
    with ExitStack() as opened:
        try:
            log = opened.enter_context(contextlib.closing(start_logging(plan.values, is_daemon=child is not None)))
        except (LogError, OptionError) as error:
            report.failed(str(error), is_logged=False)
            return 1
        for line in plan.warnings:
            _LOG.warning("%s", line)
        for line in plan.values.without_effect():
            _LOG.notice("%s", line)
        try:
            data_directory = _lock_data_directory(plan, opened)
            settings = settings_of(plan.values, data_directory)
            pid_directory = plan.values.text("pid-dir") or daemon.pid_directories()[0] if plan.is_daemon else None
            module = None if plan.module is None else LoadedModule(plan.module, plan.module_values)
            is_clean = Runner(
                settings, module, __version__, pid_directory, report.ready, log,
                build=kind_of_modules(), configuration=plan.configuration,
                watchdog_seconds=plan.values.number("watchdog-interval"),
                known_hosts=lambda: known_hosts_of(plan.again().values),
            ).run()  # fmt: skip
        except StartError as error:
            _LOG.critical("%s%s", _CANNOT_START, error)
            report.failed(str(error), title=_CANNOT_START)
            return 1
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            _LOG.critical("Unhandled exception: %s", what)
            _LOG.debug("%s", "".join(traceback.format_exception(error)))
            report.failed(what)
            return 1
        return 0 if is_clean else 1


def _lock_data_directory(plan: StartPlan, opened: ExitStack) -> str | None:
    """Lock the data directory. Returns its path; None with --no-data-dir."""
    if plan.data_directory is None:
        return None
    try:
        held = DataDirectory(plan.data_directory)
    except DataDirectoryError as error:
        raise StartError(str(error)) from error
    opened.callback(_release, held)
    return held.path


def _release(held: DataDirectory) -> None:
    error = held.release()
    if error is not None:
        _LOG.warning(
            "%s: the process id cannot be erased from the lock file: %s; this is harmless, since it is unlocked",
            error.filename,
            error.strerror,
        )


class _Report:
    """Reports the result of the start, to the parent of a daemon or to the user at the terminal.

    Args:
        plan: the start plan.
        child: the daemon's pipe to its parent; None in the foreground.
    """

    def __init__(self, plan: StartPlan, child: daemon.Child | None) -> None:
        self._child = child
        self._is_port_chosen = plan.values.number("port") == 0
        self._logs_to_stderr = plan.values.switch("log-to-stderr")
        self._is_reported = False

    def ready(self, port: int) -> None:
        """Report that the broker is listening on `port`."""
        self._is_reported = True
        service_manager.notify(f"READY=1\nSTATUS=Listening on port {port}")
        if self._child is not None:
            self._child.ready(port)
        elif self._is_port_chosen:
            _print(str(port))  # it is in the log as well

    def failed(self, text: str, *, title: str = "", is_logged: bool = True) -> None:
        """Report that the broker has failed, except on standard error if the log has already written it there.

        Args:
            text: the reason.
            title: text before it; the parent of a daemon adds its own.
            is_logged: whether the reason has been logged.
        """
        if self._child is not None:
            if not self._is_reported:
                self._child.failed(printable(text))
        elif not (is_logged and self._logs_to_stderr):
            _print_error(title + text)
        self._is_reported = True


def kind_of_modules() -> str:
    """Whether the modules that each message passes through are compiled."""
    return "compiled" if socket_connection.__file__.endswith(tuple(EXTENSION_SUFFIXES)) else "pure Python"


# ---- address space ----

_ARENA_MAX: Final = -8  # M_ARENA_MAX of malloc.h
_ARENAS: Final = 1
_STACK_BYTES: Final = 1 << 20  # of a thread
_ATTRIBUTE_BYTES: Final = 256  # more than a pthread_attr_t


def spare_addresses() -> None:
    """Reserve few addresses under a limit of the address space (`ulimit -v`). To be called before threads are started.

    glibc gives each thread an allocation arena of its own, and reserves 64 MiB of addresses for it, eight arenas for
    each processor at most (mallopt(3), M_ARENA_MAX), and 8 MiB for its stack. With the threads of the catalogue that is
    more than half a gigabyte, of which nothing is memory. A control group counts memory, and needs nothing of this.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    threading.stack_size(_STACK_BYTES)
    import ctypes  # not needed otherwise

    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    with contextlib.suppress(AttributeError):  # another C library
        libc.mallopt(_ARENA_MAX, _ARENAS)
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_STACK_BYTES))
        libc.pthread_setattr_default_np(attributes)
