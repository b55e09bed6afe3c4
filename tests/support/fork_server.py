"""A process that has qstore imported already, and forks: a fork takes a hundredth of what a start of Python takes.

`forked.py` starts it and asks it. A request is one packet on the socket that it was started with: a JSON object, and
with it the descriptors of the new process's standard streams and of a pipe. The pipe is told the process's id and, when
it has ended, its exit status; a line each.

The new process is what `python -m MODULE …` or `python -c CODE …` would be, but for its memory's history: it has no
descriptors but the three, the arguments, environment, working directory and limits that the request says, default
signal handlers, streams of its own, and it ends as Python ends. The module, which nobody has imported yet, is run as
`__main__`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
MAX_REQUEST: Final = 1 << 20
_DESCRIPTORS: Final = 4
_MAX_DESCRIPTOR: Final = 1 << 20


class Request(NamedTuple):
    """What a new process is to be.

    Attributes:
        arguments: what stands behind Python's name on a command line: `-m MODULE …` or `-c CODE …`.
        directory: the working directory.
        environment: all its variables.
        limits: of open files.
        is_leader: whether it gets a session of its own.
    """

    arguments: list[str]
    directory: str
    environment: dict[str, str]
    limits: tuple[int, int]
    is_leader: bool


def _import() -> None:
    """Import what the broker and the commands are made of, but leave each command to be run."""
    commands = [f"qstore.tools.{path.stem}" for path in sorted((ROOT / "tools").glob("q*.py"))]
    commands.append("qstore.broker.process.qpidd")
    for name in ("qstore.store.module", "qstore.broker.process.command", *commands):
        importlib.import_module(name)
    for name in commands:
        package, _, module = name.rpartition(".")
        delattr(sys.modules[package], module)
        del sys.modules[name]
    gc.collect()
    gc.freeze()


def serve(number: int) -> Request:
    """Fork as long as requests come. Returns in each new process, with its task."""
    control = socket.socket(fileno=number)
    running: dict[int, tuple[int, int]] = {}  # by the descriptor that tells of the end: process id, pipe
    poll = select.poll()
    poll.register(number, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != number:
                poll.unregister(ready)
                process, pipe = running.pop(ready)
                _, status = os.waitpid(process, 0)
                _tell(pipe, os.waitstatus_to_exitcode(status))
                os.close(pipe)
                os.close(ready)
                continue
            packet, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST, _DESCRIPTORS)
            if not packet:
                os._exit(0)  # all clients have ended
            *streams, pipe = descriptors
            process = os.fork()
            if not process:
                control.detach()
                _become(streams)
                return Request(**json.loads(packet))
            for each in streams:
                os.close(each)
            end = os.pidfd_open(process)
            running[end] = (process, pipe)
            poll.register(end, select.POLLIN)
            _tell(pipe, process)


def _tell(pipe: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, b"%d\n" % number)


def _become(streams: list[int]) -> None:
    """Take the standard streams, and leave everything else that is the server's."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(len(streams), _MAX_DESCRIPTOR)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        before: Any = getattr(sys, f"__{name}__")
        number = before.fileno()
        buffering = 1 if name == "stderr" or os.isatty(number) else -1
        stream = open(number, mode, buffering, before.encoding, before.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def run(request: Request) -> None:
    """Be that process."""
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.directory)
    resource.setrlimit(resource.RLIMIT_NOFILE, request.limits)
    if request.is_leader:
        os.setsid()
    kind, what, *arguments = request.arguments
    sys.argv[:] = [kind, *arguments]
    if kind == "-m":
        sys.path[0] = request.directory
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = ""
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), main.__dict__)


class _Ending:
    """The end of a process, but for the taking apart of all that was imported: that is most of what a fork costs."""

    def __init__(self) -> None:
        self._code: int | None = None  # None: the end is left to Python

    def run(self, request: Request) -> None:
        """Be the process, and note how it ends."""
        try:
            run(request)
            self._code = 0
        except SystemExit as error:
            self._code = error.code if isinstance(error.code, int) else int(error.code is not None)
            raise
        except KeyboardInterrupt:
            raise
        except BaseException:
            self._code = 1
            raise

    def leave(self) -> None:
        """The last of what is done at exit."""
        if self._code is None:
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            return  # Python has a word to say about that
        os._exit(self._code & 0xFF)


if __name__ == "__main__":
    ending = _Ending()
    atexit.register(ending.leave)  # before all others: they run the other way round
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the tests
    _import()
    ending.run(serve(int(sys.argv[1])))
