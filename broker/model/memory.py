"""The memory ceiling: how much the broker's messages take, and what happens when they take too much.

What is held is estimated as the size of every message on a queue or in an open transaction (header and content), a
constant for each (`MESSAGE_OVERHEAD`), and what has come of unfinished messages. A message on many queues is counted on
each, though its bytes are shared; so the estimate counts only as far as the process is really that large.

    state    entered                          what happens
    -------  -------------------------------  ---------------------------------------------------------------
    ample    below 80 % of the ceiling        nothing
    short    at 90 %                          connections that publish are not read, but for one read a second each,
                                              so that what they have accepted is still settled
    full     at 100 %                         each message that is published is refused: resource-limit-exceeded

From short and full the way back is below 80 %. Counting costs a look at every queue, and is done each time that queues
and transactions have grown by 1/128 of the ceiling, and twice a second while memory is short. Nothing is done for a
single message.

The ceiling leaves room for everything else. If an allocation fails all the same, a reserve is freed, so that the broker
can say so, close what was hit, and be shut down; memory counts as full until the reserve is there again.
"""

from __future__ import annotations

import enum
import math
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from broker.log.logs import log_of
from broker.model.errors import ResourceLimitExceededError

_LOG: Final = log_of("Broker")

MESSAGE_OVERHEAD: Final = 320
"""Bytes that a message on a queue takes besides its header and content: objects and links, as measured (README)."""

DEFAULT_SHARE: Final = 0.5
"""The part of the memory of machine, control group and resource limits that is the ceiling by default."""

_SHORT, _AMPLE = 0.9, 0.8
_COUNTS_PER_CEILING: Final = 128
_LEAST_STEP: Final = 64 * 1024  # bytes of growth between two counts
_RESERVE: Final = 4 << 20  # bytes that are freed when an allocation fails
_QUIET_SECONDS: Final = 10.0  # between two log lines about failed allocations
_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_CGROUP_OF_PROCESS: Final = Path("/proc/self/cgroup")


class State(enum.Enum):
    """How much memory there is."""

    AMPLE = enum.auto()
    SHORT = enum.auto()
    FULL = enum.auto()


class MemoryCeiling:
    """What the broker's messages may take.

    Args:
        limit: bytes; 0 for no ceiling.
        held: the estimate of what is held now, in bytes.
        resident: bytes of memory that the process has.

    Attributes:
        limit: as above.
        used: bytes, when they were last counted.
        state: AMPLE, SHORT or FULL.
        grown: bytes by which queues and transactions have grown since then; the code that adds messages adds to it.
        step: how much of that there may be before `count` is to be called.
        changed: called when it gets short, and when it is ample again.
    """

    __slots__ = (
        "_held", "_quiet_until", "_reserve", "_resident", "changed", "grown", "limit", "state", "step", "used",
    )  # fmt: skip

    def __init__(self, limit: int, held: Callable[[], int], resident: Callable[[], int] | None = None) -> None:
        self.limit = limit
        self._held, self._resident = held, resident or resident_bytes
        self.used = self.grown = 0
        self.step = max(limit // _COUNTS_PER_CEILING, _LEAST_STEP) if limit else sys.maxsize
        self.state = State.AMPLE
        self.changed: Callable[[], None] = lambda: None
        self._reserve = bytearray(_RESERVE)
        self._quiet_until = -math.inf

    def count(self) -> None:
        """Count what is held, and act on it."""
        self.grown = 0
        if not self._reserve:
            try:
                self._reserve = bytearray(2 * _RESERVE)  # as much is left besides, or it would be freed again at once
            except MemoryError:
                return
            del self._reserve[_RESERVE:]
        if not self.limit:
            self._enter(State.AMPLE)
            return
        self.used = self._held()
        if self.used >= self.limit * _AMPLE:
            self.used = min(self.used, self._resident())
        state = self.state
        if self.used >= self.limit:
            state = State.FULL
        elif self.used >= self.limit * _SHORT:
            state = State.SHORT if state is State.AMPLE else state
        elif self.used < self.limit * _AMPLE:
            state = State.AMPLE
        elif state is State.FULL:
            state = State.SHORT
        self._enter(state)

    def check(self) -> None:
        """Raises ResourceLimitExceededError if no message may be added."""
        if self.grown >= self.step:
            self.count()
        if self.state is State.FULL:
            raise ResourceLimitExceededError(
                f"the broker's memory is full: its messages take {self.used} of {self.limit} bytes (--broker-memory)"
            )

    def exhausted(self, where: str) -> None:
        """An allocation failed: free the reserve, and take nothing more before it is there again."""
        self._reserve = bytearray()
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET_SECONDS
            _LOG.critical(
                "%s: out of memory: the system refused an allocation. Publishers are refused until memory is free "
                "again; lower --broker-memory (%d bytes) or raise the limit of the process", where, self.limit,
            )  # fmt: skip
        if self.state is not State.FULL:
            was, self.state = self.state, State.FULL
            if was is State.AMPLE:
                self.changed()

    def _enter(self, state: State) -> None:
        was, self.state = self.state, state
        if was is state:
            return
        share = 100 * self.used // (self.limit or 1)
        if state is State.FULL:
            _LOG.critical(
                "Memory: messages take %d bytes, %d%% of --broker-memory: publishers get resource-limit-exceeded until "
                "consumers have taken enough", self.used, share,
            )  # fmt: skip
        elif was is State.AMPLE:
            _LOG.warning(
                "Memory: messages take %d bytes, %d%% of --broker-memory: backpressure, publishers are not read until "
                "consumers have taken enough", self.used, share,
            )  # fmt: skip
        elif state is State.AMPLE:
            _LOG.notice(
                "Memory: messages take %d bytes, %d%% of --broker-memory: publishers are read again", self.used, share
            )
        if State.AMPLE in (was, state):
            self.changed()


# ---- what the system has ----


def resident_bytes() -> int:
    """Bytes of memory that this process has (resident set)."""
    with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 – no more objects than it takes
        return int(file.read(256).split()[1]) * resource.getpagesize()


def default_ceiling() -> int:
    """Half of what this process may have: of the machine's memory, its control group's, or its own limits'."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits()]
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            limits.append(soft)
    return int(min(limits) * DEFAULT_SHARE)


def _group_limits() -> list[int]:
    """The memory limits of the control group (version 2, or 1) that this process is in, and of those around it."""
    try:
        lines = _CGROUP_OF_PROCESS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            root, name = _CGROUP_ROOT, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _CGROUP_ROOT / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        for each in (group, *group.parents):
            if not each.is_relative_to(root):
                break
            try:
                text = (each / name).read_text(encoding="ascii").strip()
            except (OSError, ValueError):
                continue
            if text.isdigit():
                limits.append(int(text))
    return limits
