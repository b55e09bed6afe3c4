"""The names of clients' hosts, which the firewall may need: looked up in threads, and remembered.

A name is that of the address (a PTR record, or /etc/hosts), if it resolves to the address again. The system's resolver
may take long, and cannot be cancelled: after ANSWER_SECONDS a lookup counts as failed, and its answer, if it still
comes, is remembered for the next time. At most MAX_WAITING addresses wait; further ones have no name. A failure is
remembered, too, for a shorter time, so that an address without a name costs a lookup only now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import OrderedDict, deque
from collections.abc import Callable
from threading import Thread
from typing import Final

from qstore.broker.security.acl.rules import read_address

THREADS: Final = 4
MAX_NAME: Final = 253
"""Characters of the name of a host (RFC 1035, section 2.3.4: 255 bytes on the wire)."""
ANSWER_SECONDS: Final = 5.0
MAX_WAITING: Final = 256
MAX_REMEMBERED: Final = 10_000
NAME_SECONDS: Final = 300.0
FAILURE_SECONDS: Final = 30.0


def resolve_name(address: str) -> str:
    """The name of an address that resolves to it; empty if there is none. Takes as long as the system's resolver."""
    wanted = read_address(address)
    try:
        name = socket.gethostbyaddr(address)[0].rstrip(".")
        if wanted is None or not 0 < len(name) <= MAX_NAME or read_address(name) is not None:
            return ""
        found = {read_address(str(each[4][0])) for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return ""
    return name if wanted in found else ""


class HostNames:
    """Looks up names.

    Args:
        loop: the event loop.
        resolve: the name of an address, or an empty text; called in a thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, resolve: Callable[[str], str] = resolve_name) -> None:
        self._loop, self._resolve = loop, resolve
        self._known: OrderedDict[str, tuple[float, str]] = OrderedDict()  # address -> until when, and the name
        self._waiting: dict[str, tuple[asyncio.TimerHandle, list[Callable[[str], None]]]] = {}
        self._under_way: set[str] = set()  # addresses, also those whose time is over
        self._queued: deque[str] = deque()  # those of them that no thread looks up yet
        self._threads = 0

    def look_up(self, address: str, done: Callable[[str], None]) -> None:
        """Call `done` with the name of an address, or an empty text; never before this method returns."""
        until, name = self._known.get(address, (0.0, ""))
        if until > self._loop.time():
            self._loop.call_soon(done, name)
        elif address in self._waiting:
            self._waiting[address][1].append(done)
        elif address in self._under_way or len(self._under_way) >= MAX_WAITING:
            self._loop.call_soon(done, "")
        else:
            self._waiting[address] = self._loop.call_later(ANSWER_SECONDS, self._answer, address, ""), [done]
            self._under_way.add(address)
            self._queued.append(address)
            self._begin()

    def _begin(self) -> None:
        while self._queued and self._threads < THREADS:
            self._threads += 1
            address = self._queued.popleft()
            # A thread of its own, which does not keep the process from ending.
            thread = Thread(target=self._work, args=(address,), name="reverse-dns", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system allows no further thread
                self._loop.call_soon(self._resolved, address, "")

    def _work(self, address: str) -> None:
        name = ""
        try:
            name = self._resolve(address)
        finally:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._resolved, address, name)

    def _resolved(self, address: str, name: str) -> None:
        self._threads -= 1
        self._under_way.discard(address)
        self._known.pop(address, None)
        self._known[address] = self._loop.time() + (NAME_SECONDS if name else FAILURE_SECONDS), name
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        self._answer(address, name)
        self._begin()

    def _answer(self, address: str, name: str) -> None:
        waiting = self._waiting.pop(address, None)
        if waiting is not None:
            timer, callbacks = waiting
            timer.cancel()
            for done in callbacks:
                done(name)
