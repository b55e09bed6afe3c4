"""Makes a backup of a store: the bytes of its files, in chunks.

    1. the files of the source are cut into chunks of 4 MiB
    2. chunks that the repository does not have are compressed and written
    3. with `verify`, all of them are read back
    4. the manifest is written: only now there is a backup

An incremental backup writes only new chunks, like every backup; and it does not even read files that cannot have
changed since the one before: journals with the same incarnation and last flush, and of a running store also data files
with the same header that were full. Both only if each data file is the same version of the same file: a store that was
restored from an older backup continues with the same numbers and headers, and so does a new one at the same path.

After a kill the next backup finds the chunks that were written, and writes the others.

Files are read in chunks, several at a time, in threads, which do all of the work. The expensive part (reading, SHA-256,
zstd, writing) is done outside of Python's lock. A file is open until its last chunk was read; the consequences are
handled in the order of the files, by the calling thread.

Beside a running broker the threads keep a pace: they alternate between work and pauses, so that on average they occupy
no more processors than the quota.

    quota     between a small one, which the machine can always spare, and a large one
    up        while more of the processors is idle than the reserve; at most twice as much at a time
    down      at once, until the reserve is idle again

What counts is the time from the beginning to the end of the work on a chunk, waits for the disk included, because a
disk that is busy with a backup's writes makes the broker wait as well. Waiting for a processor does not count: the
threads have a low priority (`Effort.niceness`), and would otherwise get nothing done on a busy machine. Low priority
alone is not enough: at full speed a saturated broker on two processors kept 0.54 to 0.66 of its rate.

Processors that this process is kept off do not count, by taskset(1) or a control group (cpuset). A control group may
have a quota of processor time (`cpu.max` in version 2; `cpu.cfs_quota_us` and `cpuacct.usage` in version 1), as
containers often do: then the rest of the quota counts, if it is less than the idle time.
"""

from __future__ import annotations

import contextlib
import math
import os
import posixpath
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from datetime import UTC, datetime
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from threading import Lock, get_native_id
from types import TracebackType
from typing import Any, Final, Protocol

from qstore.formats.named_tuple import NamedTuple
from qstore.store.backup.repository import (
    CHUNK_SIZE,
    BackupFile,
    Manifest,
    Repository,
    backup_names,
    check_mark,
    chunk_name,
    known_chunks,
    packed,
    read_manifest,
    verify_chunks,
    write_manifest,
)
from qstore.store.backup.sources import Read, Source, SourceFile, SourceJournal
from qstore.store.environment import Environment
from qstore.store.errors import StoreError
from qstore.store.repair.stopped_store import reported_errors

# ---- processors: how many there are for this process, and how many of them are idle ----

_SCHEDULED: Final = Path("/proc/thread-self/schedstat")
_STATISTICS: Final = Path("/proc/stat")
_GROUPS: Final = Path("/proc/self/cgroup")
_GROUP_ROOT: Final = Path("/sys/fs/cgroup")
_IDLE: Final = 3  # of the numbers in the first line of /proc/stat, see proc(5)
_SEVERAL: Final = 8  # numbers there that are counted; those of guests are part of others
_MAX_FILE: Final = 4096  # bytes of a control group's file that are read


class Machine(Protocol):
    """The load of the machine, for a pace."""

    def now(self) -> float:
        """Seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def worked(self) -> float:
        """Seconds of processor time of this thread."""

    def waited(self) -> float:
        """Seconds that this thread has waited for a processor."""

    def processors(self) -> float:
        """The number that this process may occupy."""

    def idle(self) -> float | None:
        """The number of them that were idle since the last call; None if that is unknown."""


class Quota(NamedTuple):
    """The processor quota of a control group.

    Attributes:
        processors: how many.
        used: the file with its usage.
        unit: seconds that its number counts in.
    """

    processors: float
    used: Path
    unit: float

    def seconds(self) -> float | None:
        """Processor time that it has used; None if that cannot be read."""
        text = _text(self.used)
        number = text.partition("usage_usec")[2] if self.used.name == "cpu.stat" else text
        try:
            return int(number.split()[0]) * self.unit
        except (ValueError, IndexError):
            return None


class _Counted(NamedTuple):
    """A reading of the counters: idle time and all time of the machine, in any unit; seconds used of the quota."""

    at: float
    machine: tuple[int, int] | None
    used: float | None


class LinuxMachine:
    """The machine that this process runs on."""

    def __init__(self) -> None:
        self._allowed = os.sched_getaffinity(0)
        self._count = float(len(self._allowed))
        self._quota = min(_quotas(), default=None)
        self._last = self._counted()

    def now(self) -> float:
        """Seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def worked(self) -> float:
        """Seconds of processor time of this thread."""
        return time.thread_time()

    def waited(self) -> float:
        """The second number of /proc/thread-self/schedstat; 0 if the kernel has none."""
        try:
            return int(_SCHEDULED.read_bytes().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def processors(self) -> float:
        """Those of the machine, or of the quota."""
        return self._count if self._quota is None else min(self._count, self._quota.processors)

    def idle(self) -> float | None:
        """From /proc/stat, where waiting for a disk does not count as idle, and from the quota."""
        before, after = self._last, self._counted()
        if after.at <= before.at:
            return None
        self._last = after
        found = math.inf
        if before.machine and after.machine and after.machine[1] > before.machine[1]:
            idle, total = (new - old for old, new in zip(before.machine, after.machine, strict=True))
            found = self._count * max(0, idle) / total
        if self._quota is not None and before.used is not None and after.used is not None:
            used = (after.used - before.used) / (after.at - before.at)
            found = min(found, max(0.0, self._quota.processors - used))
        return found if found < math.inf else None

    def _counted(self) -> _Counted:
        used = None if self._quota is None else self._quota.seconds()
        return _Counted(self.now(), _machine_time(self._allowed), used)


def _machine_time(processors: Collection[int]) -> tuple[int, int] | None:
    """Of these processors; of all, if the kernel does not list each one by its number, as in some containers."""
    wanted = {b"cpu%d" % number for number in processors}
    try:
        with _STATISTICS.open("rb") as file:
            total, *each = (line.split() for line in takewhile(lambda line: line.startswith(b"cpu"), file))
        lines = [line for line in each if line[0] in wanted]
        numbers = [_numbers(line) for line in (lines if len(lines) == len(wanted) else [total])]
        return sum(line[_IDLE] for line in numbers), sum(map(sum, numbers))
    except (OSError, ValueError, IndexError):
        return None


def _numbers(line: Sequence[bytes]) -> list[int]:
    return [int(number) for number in line[1 : 1 + _SEVERAL]]


def _quotas() -> Iterator[Quota]:
    """Those of this process's control groups, and of the groups around them."""
    for line in _text(_GROUPS).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            root = _GROUP_ROOT
        elif "cpu" in controllers.split(","):
            root = _GROUP_ROOT / "cpu"
        else:
            continue
        group = root / path.lstrip("/")
        for each in (group, *group.parents):
            if not each.is_relative_to(root):
                break
            found = _of_version_1(each) if controllers else _of_version_2(each)
            if found is not None:
                yield found


def _of_version_2(group: Path) -> Quota | None:
    """`cpu.max`: microseconds of processor time in a period, and the period; "max" for no limit."""
    numbers = _text(group / "cpu.max").split()
    if len(numbers) != 2 or not all(number.isdigit() and int(number) for number in numbers):
        return None
    return Quota(int(numbers[0]) / int(numbers[1]), group / "cpu.stat", 1e-6)


def _of_version_1(group: Path) -> Quota | None:
    """The same in two files; -1 for no limit. The usage is in the group of the same path below `cpuacct`."""
    numbers = _text(group / "cpu.cfs_quota_us").strip(), _text(group / "cpu.cfs_period_us").strip()
    if not all(number.isdigit() and int(number) for number in numbers):
        return None
    accounted = _GROUP_ROOT / "cpuacct" / group.relative_to(_GROUP_ROOT / "cpu")
    return Quota(int(numbers[0]) / int(numbers[1]), accounted / "cpuacct.usage", 1e-9)


def _text(path: Path) -> str:
    """The content of a file of the kernel; empty if it does not exist."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE).decode("ascii", "replace")
    except OSError:
        return ""


# ---- the pace ----

RESERVE: Final = 0.4  # share of the machine's processors that stays idle, if it is
MIN_SHARE: Final = 1 / 16  # of the machine, for the backup
MAX_QUOTA: Final = 1.0  # processors: more would be of little use for a disk
LOOK_SECONDS: Final = 0.2  # between looks at the machine, which counts in hundredths of a second
MAX_PAUSE: Final = 2.0  # seconds


class Begun(NamedTuple):
    """When a thread has begun to work on a chunk, and the seconds that it had occupied the machine by then."""

    at: float
    spent: float


class Pace:
    """The pace of several threads.

    Args:
        machine: the machine.
        is_local: whether the threads wait for a disk of this machine, not for a remote service.

    Attributes:
        quota: processors that they may occupy now.
    """

    def __init__(self, machine: Machine, *, is_local: bool = True) -> None:
        self._machine, self._is_local = machine, is_local
        self._processors = machine.processors()
        self._least = min(MAX_QUOTA, self._processors * MIN_SHARE)
        self.quota = self._least
        self._lock = Lock()
        self._next = self._looked_at = machine.now()

    def wait(self) -> None:
        """Wait until the next piece of work may begin."""
        with self._lock:
            pause = self._next - self._machine.now()
        if pause > 0:
            self._machine.sleep(pause)

    def begin(self) -> Begun:
        """The calling thread begins to work on a chunk."""
        return Begun(self._machine.now(), self._spent())

    def end(self, begun: Begun) -> None:
        """It has done that."""
        occupied = max(0.0, self._spent() - begun.spent)
        now = self._machine.now()
        with self._lock:
            self._look(now)
            self._next = min(max(self._next, begun.at) + occupied / self.quota, now + MAX_PAUSE)

    def _spent(self) -> float:
        """Seconds that the calling thread has occupied the machine, from any moment on."""
        if self._is_local:
            return self._machine.now() - self._machine.waited()
        return self._machine.worked()

    def _look(self, now: float) -> None:
        """Adapt the quota from time to time."""
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at, idle = now, self._machine.idle()
        if idle is None:
            return
        wanted = self.quota + idle - RESERVE * self._processors
        self.quota = max(self._least, min(wanted, 2 * self.quota, MAX_QUOTA))


# ---- chunks ----

_AHEAD: Final = 2  # chunks for each thread
_ALIVE_SECONDS: Final = 5.0


class Effort(NamedTuple):
    """The share of the machine that a backup may take.

    Attributes:
        workers: threads that read, compress and write; 0 for none.
        niceness: of these threads, 0 to 19: the higher, the lower their priority. The system derives the
            priority of their reads and writes from it.
        max_rate: bytes that are read in a second, at most; 0 for no limit.
        pace: when they work and when they pause; None for no pauses.
    """

    workers: int = 0
    niceness: int = 0
    max_rate: int = 0
    pace: Pace | None = None


class _Done(NamedTuple):
    """A chunk: its id, its bytes, whether it was new, and then its compressed bytes."""

    digest: str
    size: int
    is_new: bool
    written: int


class _File(NamedTuple):
    """A file that is being read."""

    opened: ExitStack
    chunks: list[str]
    futures: deque[Future[_Done]]


class _Inline(Executor):
    """Does the work at once."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        """Call it."""
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **more))
        return future


class ChunkWriter:
    """Writes the chunks of files to a repository.

    Args:
        repository: where they go.
        known: the ids of chunks that it has. They are updated.
        effort: its share of the machine.
        advance: receives the bytes of each chunk that was read.

    Attributes:
        written: bytes of new chunks, compressed.
        new, reused: bytes in new chunks, and in those that were there.
        was_read: called when all files of a part were read.
        alive: called at least every few seconds.
    """

    def __init__(self, repository: Repository, known: set[str], effort: Effort, advance: Callable[[int], None]) -> None:
        self._repository, self._known, self._advance = repository, known, advance
        workers, niceness, self._max_rate, self._pace = effort
        stand_back = (_stand_back, (niceness,)) if niceness else ()
        self._pool: Executor = ThreadPoolExecutor(workers, "", *stand_back) if workers else _Inline()
        self._most, self._lock = _AHEAD * workers, Lock()
        self._read, self._began = 0, time.monotonic()
        self._waiting: deque[_File | SourceJournal] = deque()
        self._under_way = 0
        self.written = self.new = self.reused = 0
        self.was_read: Callable[[SourceJournal], None] = lambda _: None
        self.alive: Callable[[], None] = lambda: None

    def __enter__(self) -> ChunkWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        for each in self._waiting:
            if isinstance(each, _File):
                with contextlib.suppress(Exception):  # after an error: the outcome of the files does not matter
                    each.opened.close()

    def write(self, file: SourceFile, chunks: list[str]) -> None:
        """Begin to write a file. `chunks` gets the ids of its chunks. Raises StoreError, OSError."""
        with ExitStack() as opened:
            read = opened.enter_context(file.open())
            made = _File(opened.pop_all(), chunks, deque())
        self._waiting.append(made)
        for offset in range(0, file.size, CHUNK_SIZE):
            self._settle(self._most)
            size = min(CHUNK_SIZE, file.size - offset)
            self._keep_pace(size)
            made.futures.append(self._pool.submit(self._paced, read, offset, size))
            self._under_way += 1
        self._settle(self._most)

    def _keep_pace(self, size: int) -> None:
        """Wait until `size` bytes more do not exceed the rate."""
        self._read += size
        while self._max_rate and (ahead := self._began + self._read / self._max_rate - time.monotonic()) > 0:
            self.alive()
            time.sleep(min(ahead, _ALIVE_SECONDS))

    def end_of(self, part: SourceJournal) -> None:
        """The files that were passed to `write` since the last call are all of this part."""
        self._waiting.append(part)
        self._settle(self._most)

    def finish(self) -> None:
        """Wait until everything is written. Raises StoreError, OSError."""
        self._settle(-1)

    def _settle(self, most: int) -> None:
        """Handle finished chunks, in order, and wait until at most `most` are under way."""
        self.alive()
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, SourceJournal):
                self._waiting.popleft()
                self.was_read(first)
            elif first.futures:
                future = first.futures[0]
                if not future.done():
                    if self._under_way <= most:
                        return
                    while not wait((future,), _ALIVE_SECONDS).done:
                        self.alive()
                first.futures.popleft()
                self._finished(first, future.result())
            elif len(self._waiting) > 1 or most < 0:
                self._waiting.popleft()
                first.opened.close()
            else:
                return  # more of its chunks may come

    def _finished(self, file: _File, done: _Done) -> None:
        self._under_way -= 1
        file.chunks.append(done.digest)
        self.written += done.written
        self.new += done.size if done.is_new else 0
        self.reused += 0 if done.is_new else done.size
        self._advance(done.size)

    def _paced(self, read: Read, offset: int, size: int) -> _Done:
        """As `_chunk`, after the pause that is due."""
        if self._pace is None:
            return self._chunk(read, offset, size)
        self._pace.wait()
        begun = self._pace.begin()
        try:
            return self._chunk(read, offset, size)
        finally:
            self._pace.end(begun)

    def _chunk(self, read: Read, offset: int, size: int) -> _Done:
        """Read a chunk, and write it if it is new. Called in a thread. Raises StoreError, OSError."""
        content = read(offset, size)
        digest = sha256(content).hexdigest()
        with self._lock:
            is_new = digest not in self._known
            self._known.add(digest)
        written = 0
        if is_new:
            compressed = packed(content)
            self._repository.put(chunk_name(digest), compressed)
            written = len(compressed)
        return _Done(digest, size, is_new, written)


def _stand_back(niceness: int) -> None:
    """Raise the niceness of this thread to the given one, if it is lower."""
    thread = get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))


# ---- a backup ----

_NUMBER: Final = re.compile(r"[0-9]{6,12}")
_DATA_SUFFIX: Final = ".jdat"
_INLINE: Final = Effort()
_MAX_INFO: Final = 1 << 20  # bytes of a file that is read to see whether it has changed

#: Called with the name of each stage and its bytes, and then with numbers of bytes that are done.
Stage = Callable[[str, int], None]
Advance = Callable[[int], None]


class BackupResult(NamedTuple):
    """A backup that was made.

    Attributes:
        manifest: its manifest.
        written: bytes of new chunks, compressed.
        new, reused: bytes of files in chunks that were written, and in those that were there or not read again.
    """

    manifest: Manifest
    written: int
    new: int
    reused: int


class StoreBackup:
    """One backup. If its source was overtaken, `run` may be called again with another one.

    Args:
        environment: clock and random numbers.
        repository: where it goes, locked.
        software_version: recorded in it.
        effort: how much of the machine it may take.
        stage, advance: receive progress.
    """

    def __init__(
        self,
        environment: Environment,
        repository: Repository,
        software_version: str,
        *,
        effort: Effort = _INLINE,
        stage: Stage = lambda *_: None,
        advance: Advance = lambda _: None,
    ) -> None:
        self._environment, self._repository, self._software = environment, repository, software_version
        self._effort, self._stage, self._advance = effort, stage, advance
        self._reused = 0
        self._bases: list[_Base] = []
        self._attempt: _Attempt | None = None

    def run(self, source: Source, *, full: bool = False, verify: bool = False) -> BackupResult:
        """Make it.

        Args:
            source: the store.
            full: read everything, regardless of flush numbers.
            verify: read all of its chunks back before it counts.

        Raises:
            StoreError: it cannot be made; there is no new backup.
        """
        with reported_errors(source.store):
            check_mark(self._repository, create=True)
            seconds = self._environment.clock() // 1_000_000_000
            manifest = Manifest(
                self._next_identity(seconds), seconds, self._software, source.store, source.kind, source.root
            )
            manifest.live, manifest.directories, manifest.links = source.is_live, source.directories, source.links
            self._repository.sync()  # of an attempt before: else its last chunks are not known
            self._bases = self._found_bases(manifest, source, full=full)
            self._attempt, self._reused = _Attempt(source, manifest, []), 0
            self._stage("backing up", source.size)
            known = known_chunks(self._repository, source.alive)
            with ChunkWriter(self._repository, known, self._effort, self._advance) as writer:
                writer.was_read, writer.alive = source.was_read, source.alive
                for part in source.parts():
                    self._part(part, self._attempt, writer)
                writer.finish()
                source.check()
            self._repository.sync()
            if verify:
                self._stage("verifying", manifest.size)
                verify_chunks(self._repository, manifest, self._advance)
            manifest.files.sort()
            write_manifest(self._repository, manifest)
            return BackupResult(manifest, writer.written, writer.new, self._reused + writer.reused)

    def _next_identity(self, seconds: int) -> str:
        """An id that follows those of all other backups: their order does not depend on clocks."""
        names = backup_names(self._repository)
        number = 1 + max((int(found[0]) for name in names if (found := _NUMBER.match(name))), default=0)
        moment = datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")
        return f"{number:06d}-{moment}-{self._environment.random_bits(16):04x}"

    def _found_bases(self, manifest: Manifest, source: Source, *, full: bool) -> list[_Base]:
        """Earlier backups of the same store: in an attempt that was overtaken, and in the latest backup."""
        bases = [] if self._attempt is None else [self._attempt.confirmed()]
        for identity in () if full else reversed(backup_names(self._repository)):
            source.alive()
            try:
                before = read_manifest(self._repository, identity)
            except StoreError:
                continue  # a damaged one is reported when it is verified
            if before.store == manifest.store and before.live == manifest.live:
                bases.append(_Base(before.id, {tuple(each) for each in before.journals}, _by_path(before.files)))
                break
        return bases

    # ---- files ----

    def _part(self, part: SourceJournal, attempt: _Attempt, writer: ChunkWriter) -> None:
        """Back up the files of a journal, or all others."""
        manifest, made = attempt.manifest, list[BackupFile]()
        attempt.parts.append((part, made))
        unchanged = self._unchanged(part, manifest)
        for file in part.files:
            old = unchanged.get(file.path) or self._same_file(file, manifest)
            if old is not None:
                made.append(old._replace(mark=file.mark, version=file.version))
                self._reused += file.size
                self._advance(file.size)
            else:
                made.append(BackupFile(file.path, file.size, [], file.mark, file.version))
                writer.write(file, made[-1].chunks)
        manifest.files += made
        if part.key is not None:
            manifest.journals.append(list(part.key))
        writer.end_of(part)

    def _unchanged(self, part: SourceJournal, manifest: Manifest) -> dict[str, BackupFile]:
        """The data files of a journal that was not written to since they were backed up, by path."""
        for base in self._bases:
            if part.key is not None and part.key in base.journals:
                found = {file.path: base.files.get(file.path) for file in part.files}
                if all(_is_unchanged(file, found[file.path]) for file in part.files):
                    manifest.based_on = manifest.based_on or base.id
                    return {path: old for path, old in found.items() if old and path.endswith(_DATA_SUFFIX)}
        return {}

    def _same_file(self, file: SourceFile, manifest: Manifest) -> BackupFile | None:
        """A file of an earlier backup that is marked as the same."""
        for base in self._bases if file.mark else ():
            old = base.files.get(file.path)
            if old is not None and old.mark == file.mark and _is_same_version(file, old):
                manifest.based_on = manifest.based_on or base.id
                return old
        return None


class _Base(NamedTuple):
    """An earlier backup: its id, if there is one, the keys of its journals, its files by path."""

    id: str | None
    journals: set[tuple[int, ...]]
    files: dict[str, BackupFile]


class _Attempt(NamedTuple):
    """A backup that was begun: its source, its manifest, and the files of each part so far."""

    source: Source
    manifest: Manifest
    parts: list[tuple[SourceJournal, list[BackupFile]]]

    def confirmed(self) -> _Base:
        """The part of it that another attempt can use."""
        parts = [(part, files) for part, files in self.parts if self.source.is_confirmed(part)]
        keys = {tuple[int, ...](part.key) for part, _ in parts if part.key is not None}
        return _Base(None, keys, _by_path([file for _, files in parts for file in files]))


def _by_path(files: Sequence[BackupFile]) -> dict[str, BackupFile]:
    return {file.path: file for file in files}


def _is_same_version(file: SourceFile, old: BackupFile) -> bool:
    """Whether a data file was neither written to nor replaced."""
    return old.size == file.size and old.version == file.version != ""


def _is_unchanged(file: SourceFile, old: BackupFile | None) -> bool:
    """Whether a file of a journal that was not written to is as it was: its info file, which is read, may not be."""
    if old is None or old.size != file.size:
        return False
    if posixpath.splitext(file.path)[1] == _DATA_SUFFIX:
        return _is_same_version(file, old)
    if file.size > _MAX_INFO:
        return False
    with file.open() as read:
        return [sha256(read(0, file.size)).hexdigest()] == old.chunks
