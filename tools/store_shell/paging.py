"""Long output on a terminal: through a pager, as `git` and `psql` do it."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Final

from rich.console import Console

_DEFAULT: Final = ("less", "-FRX")  # ends by itself if everything fits the screen


class _PagerInput(io.TextIOWrapper):
    """The pager's standard input, with the width of the terminal on which it shows the text.

    Args:
        stream: the pipe.
        columns: the width in characters.
        has_colours: whether the pager is known to pass them on.
    """

    def __init__(self, stream: IO[bytes], columns: int, *, has_colours: bool) -> None:
        super().__init__(stream, errors="backslashreplace", write_through=True)
        self.columns, self.has_colours = columns, has_colours


def output_console() -> Console:
    """A console for standard output; within `paged` it is formatted for the terminal that the pager fills."""
    stream = sys.stdout
    if not isinstance(stream, _PagerInput):
        return Console(highlight=False)
    return Console(
        file=stream, force_terminal=True, width=stream.columns, no_color=not stream.has_colours, highlight=False
    )


@contextlib.contextmanager
def paged(*, is_wanted: bool) -> Iterator[None]:
    """Standard output of the block goes to the user's pager (PAGER, or less), if it is a terminal.

    Args:
        is_wanted: False for none.
    """
    command = _pager() if is_wanted and sys.stdout.isatty() and sys.stdin.isatty() else None
    if command is None:
        yield
        return
    sys.stdout.flush()
    before, broken = sys.stdout, signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a pager may end before the output
    with subprocess.Popen(command, stdin=subprocess.PIPE) as pager:  # noqa: S603 (the user's own choice)
        assert pager.stdin is not None
        columns = shutil.get_terminal_size().columns
        stream = _PagerInput(pager.stdin, columns, has_colours=command == list(_DEFAULT))
        sys.stdout = stream
        try:
            yield
        except BrokenPipeError:  # the user has seen enough
            pass
        finally:
            sys.stdout = before
            with contextlib.suppress(OSError):
                stream.close()
            while pager.poll() is None:
                with contextlib.suppress(KeyboardInterrupt):  # the pager has its own use for Ctrl-C
                    pager.wait()
            signal.signal(signal.SIGPIPE, broken)


def _pager() -> list[str] | None:
    chosen = os.environ.get("PAGER")
    try:
        command = list(_DEFAULT) if chosen is None else shlex.split(chosen)
    except ValueError:
        return None
    return command if command and command != ["cat"] and shutil.which(command[0]) else None
