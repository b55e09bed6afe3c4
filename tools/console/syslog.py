"""Lines of commands in the system's log, instead of on standard output.

Source: RFC 3164 for the numbers of facilities and priorities, as they are written to the local socket.
"""

from __future__ import annotations

import os
import socket
from logging.handlers import SysLogHandler
from typing import Final

import click

from qstore.tools.console.text import printable

_ADDRESS: Final = "/dev/log"
_FACILITIES: Final = SysLogHandler.facility_names
_MAX_BYTES: Final = 8192
INFO: Final = 6
"""The priority of what is neither good nor bad."""

SYSLOG: Final = click.option(
    "--syslog", "facility", is_flag=False, flag_value="daemon", metavar="[FACILITY]",
    type=click.Choice(sorted(_FACILITIES), case_sensitive=False),
    help="Write to the system's log, with this facility (daemon), instead of to standard output.",
)  # fmt: skip


class Syslog:
    """Writes to the system's log.

    Args:
        program: the name in front of each line.
        facility: a name such as `daemon` or `local0`.

    Raises:
        OSError: there is no such log.
    """

    def __init__(self, program: str, facility: str) -> None:
        self._prefix = f"{program}[{os.getpid()}]: "
        self._facility = _FACILITIES[facility.lower()]
        self._socket = self._connected()

    def write(self, priority: int, text: str) -> None:
        """Write a line; `priority`: 0 (emergency) to 7 (debug). Raises OSError."""
        line = f"<{self._facility << 3 | min(max(priority, 0), 7)}>{self._prefix}{printable(text)}"
        data = line.encode("utf-8", "replace")[:_MAX_BYTES]
        try:
            self._socket.send(data)
        except OSError:  # the log was started again
            self._socket.close()
            self._socket = self._connected()
            self._socket.send(data)

    @staticmethod
    def _connected() -> socket.socket:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            found.connect(_ADDRESS)
        except OSError as error:
            found.close()
            raise OSError(error.errno, error.strerror, _ADDRESS) from None
        return found

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def system_log(context: click.Context, program: str, facility: str | None) -> Syslog | None:
    """The system's log, as long as a command runs; None if `--syslog` is not given. Raises OSError."""
    if facility is None:
        return None
    log = Syslog(program, facility)
    context.call_on_close(log.close)
    return log
