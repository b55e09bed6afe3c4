"""A process that kills itself at one of its calls: what a random moment is unlikely to hit."""

from __future__ import annotations

import itertools
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, Final

_CALLS: Final[tuple[tuple[Any, str], ...]] = (
    *((os, name) for name in ("pwrite", "fdatasync", "fsync", "rename", "unlink")),
    (socket.socket, "send"),
)


def die_at(number: int) -> None:
    """SIGKILL before the `number`th call from now on, counted from 1, that changes a file or sends something."""
    count = itertools.count(1)

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            if next(count) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return called

    for owner, name in _CALLS:
        setattr(owner, name, dying(getattr(owner, name)))
