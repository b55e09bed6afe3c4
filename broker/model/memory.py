"""The memory ceiling: counts the memory of the broker's messages, and reacts when they take too much.

Usage is estimated as the size of every message on a queue or in an open transaction (header and content), a constant
for each (`MESSAGE_OVERHEAD`), and the bytes received of incomplete messages. A message on many queues is counted on
each, though its bytes are shared; so the estimate is capped at the resident size of the process.

    state    entered                          effect
    -------  -------------------------------  ---------------------------------------------------------------
    ample    below 80 % of the ceiling        above 70 %, queues included, messages move to the disk (`residency`)
    short    at 90 %                          backpressure: publishing connections are read only once a second, which
                                              still lets them settle deliveries
    full     at 100 %                         published messages are refused with resource-limit-exceeded, except those
                                              that a journal stores and that leave memory at once
                                              (`Router.leaves_memory`), and requests to management

From short and full the state returns to ample below 80 %. A count visits every queue. It runs each time queues and
transactions have grown by 1/128 of the ceiling, and twice a second while memory is short. There is no cost per message.

The ceiling leaves room for everything else. Where the process has a limit of its own (`ulimit -v`, strict overcommit),
memory also counts as full while the system would not give it 8 MiB more, which is probed each time peers have sent
256 KiB: CPython 3.11 to 3.13 need memory to unwind an exception to some handlers, and without any they try forever. If
an allocation fails nevertheless, a reserve is freed, so that the broker can log the failure, close affected clients,
and be shut down; memory counts as full until the reserve is restored.
"""

from __future__ import annotations

import enum
import math
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.errors import ResourceLimitExceededError

_LOG: Final = log_of("Broker")

MESSAGE_OVERHEAD: Final = 320
"""Bytes that a message on a queue takes beyond its header and content, as measured (OPERATING.md)."""

QUEUE_OVERHEAD: Final = 6 << 10
"""Bytes that a queue takes without its messages, as measured: 3 KiB, and as much again if it has a paging file."""

DEFAULT_SHARE: Final = 0.5
"""The default ceiling, as a fraction of the memory that machine, control group and resource limits allow."""

_SHORT, _AMPLE, _RELIEVE, _RELIEVED = 0.9, 0.8, 0.7, 0.65
_COUNTS_PER_CEILING: Final = 128
_RELIEFS_PER_CEILING: Final = 32  # while few messages can leave memory: finding them takes time
_MIN_STEP: Final = 64 * 1024  # bytes of growth between two counts
_RESERVE: Final = 4 << 20  # bytes that are freed when an allocation fails
_HEADROOM: Final = 2 * _RESERVE  # bytes that the process must still be able to get for messages to be accepted
_INPUT_PER_PROBE: Final = 256 << 10  # bytes that become some 3 MiB of objects where messages are empty
_QUIET_SECONDS: Final = 10.0  # between two log lines about failed allocations
_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_CGROUP_OF_PROCESS: Final = Path("/proc/self/cgroup")


def _untouched(size: int) -> mmap.mmap:
    """Bytes that the system has granted, but that take no memory, because their pages are never touched."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)


class State(enum.Enum):
    """How much memory is available."""

    AMPLE = enum.auto()
    SHORT = enum.auto()
    FULL = enum.auto()


class MemoryCeiling:
    """The memory limit for the broker's messages.

    Args:
        limit: bytes; 0 for no ceiling.
        held: returns the current estimate, in bytes.
        queues: returns the bytes that the queues themselves take, which only makes messages leave memory sooner.
        resident: returns the resident bytes of the process.

    Attributes:
        limit: as above.
        used: bytes at the last count.
        state: AMPLE, SHORT or FULL.
        grown: bytes by which queues and transactions have grown since then; incremented by the code that adds messages.
        step: growth after which `count` is due.
        changed: called when the state leaves AMPLE or returns to it.
        relieve: moves messages out of memory to free the given number of bytes.
        unprobed: bytes that peers may send until `probe` is due; decremented by connections.
        has_headroom: whether the process can get more memory, as of the last probe.
    """

    __slots__ = (
        "_held", "_queues", "_quiet_until", "_relieve_from", "_reserve", "_resident", "changed", "grown",
        "has_headroom", "limit", "relieve", "state", "step", "unprobed", "used",
    )  # fmt: skip

    def __init__(
        self,
        limit: int,
        held: Callable[[], int],
        resident: Callable[[], int] | None = None,
        queues: Callable[[], int] = lambda: 0,
    ) -> None:
        self.limit, self._queues = limit, queues
        self._held, self._resident = held, resident or resident_bytes
        self.used = self.grown = self._relieve_from = 0
        self.step = max(limit // _COUNTS_PER_CEILING, _MIN_STEP) if limit else sys.maxsize
        self.state = State.AMPLE
        self.changed: Callable[[], None] = lambda: None
        self.relieve: Callable[[int], None] = lambda _excess: None
        self._reserve: mmap.mmap | None = _untouched(_RESERVE)
        self._quiet_until = -math.inf
        self.unprobed, self.has_headroom = _INPUT_PER_PROBE, True

    def probe(self) -> None:
        """Check that the process can get more memory; it is full otherwise, until `count` finds that it can again."""
        self.unprobed = _INPUT_PER_PROBE
        try:
            _untouched(_HEADROOM).close()
        except (OSError, MemoryError):
            self.has_headroom = False
            self._enter(State.FULL)
        else:
            self.has_headroom = True

    def count(self) -> None:
        """Count memory usage, and update the state."""
        self.grown = 0
        if self._reserve is None:
            try:
                _untouched(2 * _RESERVE).close()  # as much again, or it would be needed at once
                self._reserve = _untouched(_RESERVE)
            except (OSError, MemoryError):
                return
        self.probe()
        if not self.has_headroom:
            return
        if not self.limit:
            self._enter(State.AMPLE)
            return
        self.used = self._held()
        taken = self.used + self._queues()
        if taken >= max(self.limit * _RELIEVE, self._relieve_from):
            self.relieve(int(taken - self.limit * _RELIEVED))
            self.used = self._held()
            taken = self.used + self._queues()
            is_little = taken >= self.limit * _RELIEVE
            self._relieve_from = taken + self.limit // _RELIEFS_PER_CEILING if is_little else 0
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
        """Raise ResourceLimitExceededError if no message may be added."""
        if self.grown >= self.step:
            self.count()
        if self.state is State.FULL:
            if self.is_exhausted:
                raise ResourceLimitExceededError("the broker's memory is full: the system gives its process no more")
            raise ResourceLimitExceededError(
                f"the broker's memory is full: messages take {self.used} of {self.limit} bytes (--broker-memory)"
            )

    @property
    def is_exhausted(self) -> bool:
        """Whether an allocation has failed, and the reserve is not restored, or the process can get no more memory."""
        return self._reserve is None or not self.has_headroom

    def has_room(self, size: int, share: float) -> bool:
        """Whether `size` more bytes would stay below a share of the ceiling, estimated without a count."""
        if self.state is State.FULL:
            return False
        return not self.limit or self.used + self.grown + size < self.limit * share

    def free_reserve(self) -> None:
        """Free the reserve, which needs no memory."""
        self._reserve = None

    def exhausted(self, where: str) -> None:
        """Handle a failed allocation: free the reserve, and refuse messages until it is restored."""
        self.free_reserve()
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET_SECONDS
            _LOG.critical(
                "%s: out of memory: an allocation failed. Publishers are refused until memory is available again; "
                "lower --broker-memory (%d bytes) or raise the memory limit of the process", where, self.limit,
            )  # fmt: skip
        if self.state is not State.FULL:
            previous, self.state = self.state, State.FULL
            if previous is State.AMPLE:
                self.changed()

    def _enter(self, state: State) -> None:
        previous, self.state = self.state, state
        if previous is state:
            return
        share = 100 * self.used // (self.limit or 1)
        if not self.has_headroom:
            _LOG.critical(
                "Memory: the process is nearly out of memory: it cannot get %d MiB more. Publishers get "
                "resource-limit-exceeded until memory is available again; lower --broker-memory (%d bytes) or raise "
                "the memory limit of the process", _HEADROOM >> 20, self.limit,
            )  # fmt: skip
        elif state is State.FULL:
            _LOG.critical(
                "Memory: messages take %d bytes, %d%% of --broker-memory: publishers get resource-limit-exceeded until "
                "consumers have drained enough", self.used, share,
            )  # fmt: skip
        elif previous is State.AMPLE:
            _LOG.warning(
                "Memory: messages take %d bytes, %d%% of --broker-memory: backpressure, publishers are not read until "
                "consumers have drained enough", self.used, share,
            )  # fmt: skip
        elif state is State.AMPLE:
            _LOG.notice(
                "Memory: messages take %d bytes, %d%% of --broker-memory: backpressure has ended", self.used, share
            )
        if State.AMPLE in (previous, state):
            self.changed()


# ---- system limits ----


def resident_bytes() -> int:
    """Resident memory of this process (RSS), in bytes; the most that it has had if no file can be opened."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 – allocate as little as possible
            return int(file.read(256).split()[1]) * resource.getpagesize()
    except OSError:  # connections have taken all descriptors
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def default_ceiling() -> int:
    """Half of the memory available to this process: the least of machine, control group and resource limits."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits()]
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            limits.append(soft)
    return int(min(limits) * DEFAULT_SHARE)


def _group_limits() -> list[int]:
    """The memory limits of the process's control group (version 2 or 1) and its parents."""
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
