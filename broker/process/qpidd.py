"""`qpidd`: starts a broker, or looks for one that runs.

    qpidd --load-module store                              in the foreground, on 127.0.0.1 and ::1, port 5672
    qpidd --load-module store --daemon --data-dir DIR      as a daemon; returns when it listens
    qpidd --config FILE                                    with the options that FILE has, /etc/qpidd.conf by default
    qpidd --check, qpidd --quit                            is it there, and: end it

Exit codes: 0 it was closed cleanly (SIGTERM, SIGINT), or what was asked for was done; 1 it was not. SIGHUP: the log's
file is opened anew, and the user file checked.

The order of a start, so that whatever can go wrong does before a client is let in: options, log, data directory, store
and recovery, user file, sockets, pid file. The end goes the other way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NoReturn

from broker.log.logs import LogError, log_of
from broker.process import daemon, service_manager
from broker.process.data_dir import DataDirectory, DataDirectoryError, default_data_directory, lock_path, user_directory
from broker.process.life import Life, LoadedModule, StartError
from broker.process.modules import ModuleError
from broker.process.options.help import help_text
from broker.process.options.option import OptionError
from broker.process.options.values import Values
from broker.process.plan import Plan, has_lost_log, make_plan, settings_of, start_logging
from formats.wording import printable

_LOG: Final = log_of("Broker")

_UMASK: Final = 0o077
_CANNOT_START: Final = "Daemon startup failed: "  # Qpid C++ Broker Book, 1.12.5


def run(arguments: Sequence[str]) -> int:
    """Do what a command line asks for. Returns the exit code."""
    try:
        plan = make_plan(arguments, os.environ)
        values = plan.values
        if values.switch("help"):
            return _tell(help_text(plan.table))
        if values.switch("version"):
            return _tell(f"qpidd (qstore) version {distribution_version()}")
        if values.switch("check") or values.switch("quit"):
            return _look(plan)
        os.umask(_UMASK)
        return _run_daemon(plan) if plan.is_daemon else _run_broker(plan, None)
    except (OptionError, ModuleError, LogError, daemon.DaemonError) as error:
        _say(str(error))
        return 1


def _tell(text: str) -> int:
    """Write to standard output. Returns the exit code."""
    if sys.stdout is None:
        return 0
    try:
        print(text, flush=True)  # noqa: T201
    except OSError as error:
        # What is still buffered cannot be written either, and Python would say so again as it ends.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
        if isinstance(error, BrokenPipeError):
            return 0  # a reader that has seen enough
        _say(f"standard output: {error.strerror}")
        return 1
    return 0


def _say(text: str) -> None:
    """Write to standard error."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # the exit code still tells
            print(f"qpidd: {printable(text)}", file=sys.stderr, flush=True)  # noqa: T201


# ---- a broker that runs ----


def _look(plan: Plan) -> int:
    """`--check` and `--quit`."""
    values = plan.values
    paths = _held_files(values)
    process = daemon.find(paths)
    if process is None:
        _say(f"no broker is running: nothing holds {' or '.join(paths)}")
        return 1
    if values.switch("quit"):
        daemon.end(process, values.seconds("wait"))
        return 0
    return _tell(str(process))


def _held_files(values: Values) -> list[str]:
    """The files that the broker which the options describe would hold."""
    port, directory = values.number("port"), values.text("pid-dir")
    directories = daemon.pid_directories() if directory is None else (directory,)
    data_directory = values.text("data-dir")
    if data_directory is not None:
        data_directories = [data_directory]
    elif values.is_given("port") or directory is not None:
        data_directories = []  # whoever has the default directory may listen elsewhere
    else:
        data_directories = [user_directory(), default_data_directory(is_daemon=True)]
    pid_files = [] if data_directory is not None and directory is None else [
        daemon.pid_path(each, port) for each in directories
    ]  # fmt: skip
    return [*pid_files, *map(lock_path, dict.fromkeys(data_directories))]


def _run_daemon(plan: Plan) -> int:
    """Become two processes: the daemon, and the one that waits until it is ready."""
    try:
        forked = daemon.fork(plan.values.seconds("wait"))
    except daemon.DaemonError as error:
        _say(_CANNOT_START + str(error))
        return 1
    if isinstance(forked, daemon.Child):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return _run_broker(plan, forked)
    if has_lost_log(plan.values):
        _say("the daemon runs, and its log goes nowhere: there is no syslog here; see --log-to-file")
    if plan.values.number("port") == 0:
        return _tell(str(forked.port))
    return 0


# ---- to be a broker ----


def _run_broker(plan: Plan, child: daemon.Child | None) -> int:
    """Be the broker until a signal ends it. Returns the exit code."""
    report = _Report(plan, child)
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
            data_directory = _taken_directory(plan, opened)
            settings = settings_of(plan.values, data_directory)
            pid_directory = plan.values.text("pid-dir") or daemon.pid_directories()[0] if plan.is_daemon else None
            module = None if plan.module is None else LoadedModule(plan.module, plan.module_values)
            is_clean = Life(settings, module, distribution_version(), pid_directory, report.ready, log.reopen).run()
        except StartError as error:
            _LOG.critical("%s%s", _CANNOT_START, error)
            report.failed(str(error), title=_CANNOT_START)
            return 1
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            _LOG.critical("Unexpected error: %s", what)
            _LOG.debug("%s", "".join(traceback.format_exception(error)))
            report.failed(what)
            return 1
        return 0 if is_clean else 1


def _taken_directory(plan: Plan, opened: ExitStack) -> str | None:
    """Hold the data directory, if there is to be one. Returns its path."""
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
            "%s: the process id in it cannot be erased: %s; it is not locked, so nobody heeds it",
            error.filename,
            error.strerror,
        )


class _Report:
    """Tells whoever started the broker how it went: the parent of a daemon, or a person at a terminal.

    Args:
        plan: what was asked for.
        child: the daemon's way to its parent; None in the foreground.
    """

    def __init__(self, plan: Plan, child: daemon.Child | None) -> None:
        self._child = child
        self._is_port_chosen = plan.values.number("port") == 0
        self._logs_to_stderr = plan.values.switch("log-to-stderr")
        self._is_told = False

    def ready(self, port: int) -> None:
        """The broker listens."""
        self._is_told = True
        service_manager.tell("READY=1")
        if self._child is not None:
            self._child.ready(port)
        elif self._is_port_chosen:
            _tell(str(port))  # the log tells it, too

    def failed(self, text: str, *, title: str = "", is_logged: bool = True) -> None:
        """It does not, or no longer. If the log has said so, and goes to standard error, that is enough.

        Args:
            text: why.
            title: what goes before it; a daemon's parent has its own.
            is_logged: whether the log has said so.
        """
        if self._child is not None:
            if not self._is_told:
                self._child.failed(printable(text))
        elif not (is_logged and self._logs_to_stderr):
            _say(title + text)
        self._is_told = True


def distribution_version() -> str:
    """The version of the installed package."""
    try:
        return version("qstore")
    except PackageNotFoundError:
        return "unknown"


def main() -> NoReturn:
    """The console script."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # it was closed by who started us: no file of the broker's is to take its place
            os.open(os.devnull, os.O_RDWR)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
