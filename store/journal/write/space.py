"""The space of a ring: the order of its files, which are held, how much is free, and which records may be written.

Log offsets count blocks through an endless stream: offset // blocks per file is the file, counted over all laps, and
`FileRing` maps it to a file of the ring. The next record goes to `position`; the oldest file that holds a live record
is `oldest`, and the writer must not enter the next file that shares its number. The blocks between are free:

    free = (oldest + files) × file - position

`live_records` knows which records are live; their files are held until their removal is synced.

Three rules keep a ring of version 2 from filling up with messages that cannot be removed:

    threshold    live blocks, one more for the dequeue of each live record, and the blocks that open transactions need
                 for their outcome are at most 80 % of the ring, or the enqueue is refused. A ring of more than 160
                 files leaves only 32 of them, or 5 %
    drain        the free blocks hold a separate flush for the dequeue of each live record, and for each outcome
    compaction   the free blocks hold what compaction needs, and will again after each full pass of it

An enqueue is accepted if, after it, the first rule and one of the others hold. Then dequeues and outcomes always fit.

Drain: a dequeue takes one flush and leaves one message less, so the rule still holds.

Compaction copies the live records of the oldest file to the end, which frees the file; so a full pass removes all dead
records. In the worst case the first files of a pass are full of live records, and nothing is gained before the last.
Then the free blocks must hold one file, the overhang (the longest record), the dequeues that must be copied with their
messages, and the padding of the pass's flushes. After the pass the ring has only live records and that padding, so
there must be room for both in addition to the needs of the next pass:

    needs = file + longest + escorts + padding + margin        live + padding + needs <= ring

The margin is for removals during the pass, for seals and for restarts. A transaction's dequeue is accepted by the same
rules, and is refused if open transactions hold very much; enqueues leave a reserve for it. If the oldest file's copies
are smaller than the file, they are made even if this rule does not hold.

In a ring of legal size (files of 512 blocks or more) the first rule decides, so an empty ring accepts the full 80 %, or
more if it is long. That is because a long journal grows, in good time: a fifth of it would be room on the disk for
nothing. What a full pass of compaction needs is little more than two files and 1 % of the ring.
Only with four files, and rarely with five, are messages of five to eleven blocks refused earlier, at 74 % at worst,
because neither of the other rules holds. Such a ring can also be so full that no file can be copied: new messages then
wait until those of the oldest file are dequeued.

The threshold is qpidd's RHM_IORES_ENQCAPTHRESH. Each format has its own rule for it; all have a *limit*, the bytes that
may be in use, and the bytes in use:

    version 1   formats/rhm/README.md, 3.5. The writer must leave a reserve free before a file in which a live record
                begins: 20 % of the ring, rounded up to blocks, and at least one file.
                Everything from the beginning of the oldest live record's file to the end of the journal is in use, so
                one old message retains everything written after it, needed or not.
                qpidd's algorithm counts, file by file, how far the record to be enqueued and the reserve reach. It
                accepts exactly those that end at least a reserve before the first file with live records, which is
                computed here.
    version 2   The blocks of the live records, and one more for the dequeue of each, may be 80 % of the ring, or up to
                95 % of a long one (`version_2_limit`). Their offsets do not matter, since old ones are copied forward.
    linear      no ring, no limit: files are added as long as the disk has room.

Growth. While files are added or removed, the *anchor*, the file before which that happens, must not be entered again:
the free blocks end before it, even if it is free by now.

Pins. While a snapshot copies or follows the journal, the oldest file is pinned: it and all later ones count as held. A
pin must never cause a record to be refused, so it is broken when room is short, and its holder checks for that. If the
journal can grow (`spares_pins`), it gets more files first.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE, MAX_FILES, SECTOR_SIZE, Geometry
from qstore.store.errors import ThresholdError
from qstore.store.journal.files import JournalFormat
from qstore.store.log_lines import ENQCAPTHRESH

if TYPE_CHECKING:
    from fractions import Fraction


def blocks_of(packed: Sequence[int]) -> Sequence[int]:
    """The blocks of many records, packed.

    Short records are recognized by bytes, without a number for each: 3 ns a record instead of 36, of a start
    (tests.bench.bench_tricks).
    """
    if isinstance(packed, range):
        return [packed[0] & SIZE_MASK] * len(packed)
    if isinstance(packed, array) and sys.byteorder == "little":
        content, count = packed.tobytes(), len(packed)
        if content[1::8].count(0) == count and content[2::8].count(0) == count:
            return content[::8]
    return [each & SIZE_MASK for each in packed]


# ---- the order of the files ----


class FileRing:
    """The order of a ring's files, and their laps.

    The writer counts files through all laps. In a journal that never grew, that count modulo the number of files is the
    file's number, and the quotient is the lap. A ring grows or shrinks while it is in use, so the counts of existing
    content must not change:

        before      0    1    2    3          file 3 is the oldest that holds anything, file 1 is being written
                                ^ oldest
        insert      0    1    2    4    5    3

    New files are inserted right before an *anchor*, the oldest file, which is not entered again before that is done.
    They follow the free files of the lap, and get free numbers, so the info file lists the order. Everything from the
    anchor to the current file keeps its count; only the counts of free files change, which are not in use yet. Free
    files before the anchor can be removed.

    Args:
        numbers: their numbers. The first is where the overwrite indicator changes.
        origin: a file, counted over all laps, that is the first of them.
        lap: the lap that begins there; only its parity counts.

    Attributes:
        numbers: as above.
    """

    __slots__ = ("_lap", "_origin", "numbers")

    def __init__(self, numbers: Sequence[int], origin: int = 0, lap: int = 0) -> None:
        self.numbers = list(numbers)
        self._origin, self._lap = origin, lap

    def number(self, index: int) -> int:
        """The number of a file, given its count over all laps."""
        return self.numbers[(index - self._origin) % len(self.numbers)]

    def place(self, index: int) -> int:
        """Its position in the ring."""
        return (index - self._origin) % len(self.numbers)

    def indicator(self, index: int) -> int:
        """The overwrite indicator of its lap."""
        return (self._lap + (index - self._origin) // len(self.numbers)) & 1

    def insert(self, anchor: int, numbers: Sequence[int]) -> None:
        """Insert new files before the file `anchor`, counted over all laps; before the first means after the last."""
        lap, place = self.indicator(anchor), self.place(anchor)
        if place:
            self.numbers[place:place] = numbers
            place += len(numbers)
        else:
            self.numbers.extend(numbers)
        self._origin, self._lap = anchor - place, lap

    def remove(self, anchor: int, numbers: Iterable[int]) -> None:
        """Remove files that are free; `anchor` is not among them."""
        lap, kept, gone = self.indicator(anchor), self.number(anchor), set(numbers)
        self.numbers = [number for number in self.numbers if number not in gone]
        self._origin, self._lap = anchor - self.numbers.index(kept), lap

    def with_inserted(self, anchor: int, numbers: Sequence[int]) -> FileRing:
        """The ring after `insert`; this one does not change."""
        ring = self.copy()
        ring.insert(anchor, numbers)
        return ring

    def without(self, anchor: int, numbers: Iterable[int]) -> FileRing:
        """The ring after `remove`; this one does not change."""
        ring = self.copy()
        ring.remove(anchor, numbers)
        return ring

    @property
    def start(self) -> tuple[int, int]:
        """A file, counted over all laps, that is the first of `numbers`, and the lap that begins there."""
        return self._origin, self._lap

    def copy(self) -> FileRing:
        """An independent copy."""
        return FileRing(self.numbers, self._origin, self._lap)


# ---- the space ----

#: A live record's log offset and size as one number: offset << SIZE_BITS | blocks.
SIZE_BITS: Final = 24
MAX_BLOCKS: Final = (1 << SIZE_BITS) - 1  # of one record: 2 GiB less a block
SIZE_MASK: Final = MAX_BLOCKS
THRESHOLD_PERCENT: Final = 80  # of a ring (MRG 2 Messaging User Guide, 6.3)
_MAX_FREE_FILES: Final = 32  # of a long ring of version 2, instead of the rest ...
_MAX_PERCENT: Final = 95  # ... but no more than that may be in use: compaction would copy very much for each file
_SPARE_FLUSHES: Final = 64  # a large ring has room for this many seals, restarts and so on


class Pin:
    """Protects a file of a ring, and those after it, from being overwritten.

    Attributes:
        file: the file, counted over all laps.
        holds: whether it still protects them. The holder releases the pin by setting this to False, from any thread.
    """

    __slots__ = ("file", "holds")

    def __init__(self, file: int) -> None:
        self.file, self.holds = file, True


class Cut(NamedTuple):
    """The part of a journal that is on the disk at one moment.

    Attributes:
        first: the oldest file that holds live records, counted over all laps.
        end: log offset where the last flush ends.
        flush: its number.
        is_whole: whether nothing was ever overwritten, and no file after the end was ever entered.
        ring: the order of the files at that moment.
        pin: protects `first`, and all later files, from being overwritten.
    """

    first: int
    end: int
    flush: int
    is_whole: bool
    ring: FileRing
    pin: Pin


class RingSpace:
    """The held files and the free space of one ring.

    Args:
        geometry: number and size of the files; at least two files.
        alignment: bytes to which flushes are padded.
        chunk: blocks copied by a flush made only for copies.

    Attributes:
        files: number of files.
        file: blocks in one.
        flush: blocks of the smallest flush, which is also the maximum padding of a larger one.
        oldest: the oldest file that holds a live record, or the one in which the first unsynced flush begins.
        anchor: the file before which files are being added or removed, counted over all laps; -1 if none are.
        threshold: blocks that enqueues may fill, reserves included.
        margin: blocks kept for seals, restarts and the like.
        reserve: blocks that enqueues leave in addition, for the dequeues of open transactions.
        pins: the pins of snapshots, in order.
        spares_pins: whether the journal can grow instead of breaking a pin.
    """

    __slots__ = (
        "_chunk",
        "_held",
        "_padding",
        "anchor",
        "file",
        "files",
        "flush",
        "margin",
        "oldest",
        "pins",
        "reserve",
        "spares_pins",
        "threshold",
    )

    def __init__(self, geometry: Geometry, alignment: int, chunk: int) -> None:
        if geometry.files < 2:
            raise ValueError(f"a ring must have at least two files, not {geometry.files}")
        self.file = geometry.data_size // BLOCK_SIZE
        self.flush = alignment // BLOCK_SIZE
        self.oldest = 0
        self.anchor = -1
        self.margin = max(4 * self.flush, min(_SPARE_FLUSHES * self.flush, self.file // 8))
        self.reserve = self.file // 16
        self._chunk = chunk
        self._held: dict[int, int] = {}
        self.pins: list[Pin] = []
        self.spares_pins = False
        self.resize(geometry.files)

    def resize(self, files: int) -> None:
        """Set the number of files in the ring."""
        self.files = files
        self.threshold = version_2_limit(files, self.file)
        flushes = 2 * (files + 1) + files * self.file // self._chunk
        self._padding = (self.flush - 1) * flushes  # of one pass

    # ---- held files ----

    def hold(self, place: int, blocks: int) -> None:
        """Hold each file that a record at `place` touches once more."""
        held = self._held
        for index in range(place // self.file, (place + blocks - 1) // self.file + 1):
            held[index] = held.get(index, 0) + 1

    def hold_all(self, records: Sequence[int], lowest: int, highest: int) -> None:
        """As `hold`, for many records, packed: in one go if all of them are in one file, as most often, or are a run.

        Args:
            records: the records.
            lowest: not higher than any of them.
            highest: not lower than any of them; its blocks are those of a record.
        """
        held, file = self._held, self.file
        index = (lowest >> SIZE_BITS) // file
        if ((highest >> SIZE_BITS) + (highest & SIZE_MASK) - 1) // file == index:
            held[index] = held.get(index, 0) + len(records)
            return
        if isinstance(records, range):
            self.count_run(held, lowest >> SIZE_BITS, lowest & SIZE_MASK, len(records))
            return
        for packed in records:
            place = packed >> SIZE_BITS
            first, last = place // file, (place + (packed & SIZE_MASK) - 1) // file
            held[first] = held.get(first, 0) + 1
            for index in range(first + 1, last + 1):
                held[index] = held.get(index, 0) + 1

    def hold_placed(self, placed: dict[int, int]) -> None:
        """Hold each of these files once for each of the given number of records in it."""
        for index, count in placed.items():
            self._held[index] = self._held.get(index, 0) + count

    def count_run(self, counts: dict[int, int], place: int, blocks: int, count: int) -> None:
        """Add to `counts`, for each file, how many of `count` contiguous records touch it.

        Args:
            counts: file, counted over all laps -> number of records.
            place: log offset of the first.
            blocks: blocks of each.
            count: number of records.
        """
        file = self.file
        for index in range(place // file, (place + count * blocks - 1) // file + 1):
            first = max(0, (index * file - place) // blocks)
            end = min(count, -((place - (index + 1) * file) // blocks))
            counts[index] = counts.get(index, 0) + end - first

    def release_counted(self, counts: dict[int, int]) -> None:
        """As `release`, given the number of records in each file."""
        for index, count in counts.items():
            self._held[index] -= count

    def release(self, records: list[int]) -> None:
        """Release the files of records, packed, whose removal is synced."""
        held, file = self._held, self.file
        for packed in records:
            place, blocks = packed >> SIZE_BITS, packed & SIZE_MASK
            first = place // file
            held[first] -= 1
            for index in range(first + 1, (place + blocks - 1) // file + 1):
                held[index] -= 1

    def held_in(self, index: int) -> int:
        """How many live records touch a file, counted over all laps; those whose removal is not synced count, too."""
        return self._held.get(index, 0)

    def oldest_held(self) -> int:
        """The first file with a live record; the oldest one if there is none."""
        held = [index for index, count in self._held.items() if count]
        return min(held) if held else self.oldest

    def reclaim(self, unsynced: int) -> bool:
        """Free the files at the head that are not held, up to the one that contains the log offset `unsynced`.

        Returns:
            Whether there were any.
        """
        held, last = self._held, unsynced // self.file
        if self.pins:
            self.pins = [pin for pin in self.pins if pin.holds]
            last = min(last, min((pin.file for pin in self.pins), default=last))
        before = self.oldest
        while self.oldest < last and not held.get(self.oldest):
            held.pop(self.oldest, None)
            self.oldest += 1
        return self.oldest > before

    def pin(self) -> Pin:
        """Pin the oldest file."""
        self.pins = [pin for pin in self.pins if pin.holds]
        self.pins.append(Pin(self.oldest))
        return self.pins[-1]

    @property
    def is_pinned(self) -> bool:
        """Whether a snapshot holds files."""
        return any(pin.holds for pin in self.pins)

    def is_held_by_pins(self, unsynced: int) -> bool:
        """Whether the oldest file would be free without a pin."""
        first = min((pin.file for pin in self.pins if pin.holds), default=-1)
        return first == self.oldest < unsynced // self.file and not self._held.get(first)

    def break_pins(self, unsynced: int) -> bool:
        """Break the pins on the oldest pinned file, if nothing else holds it. Returns whether that frees anything."""
        if not self.pins:
            return False
        pins, before = self.pins, self.oldest
        first = min(pin.file for pin in pins)
        self.pins = [pin for pin in pins if pin.file > first]
        self.reclaim(unsynced)
        if self.oldest == before:
            self.pins = pins
            return False
        for pin in pins:
            pin.holds = pin.holds and pin.file > first
        return True

    @property
    def end(self) -> int:
        """The log offset that may not be passed."""
        first = self.oldest if self.anchor < 0 else min(self.oldest, self.anchor)
        return (first + self.files) * self.file

    def free(self, position: int) -> int:
        """Free blocks after the position, less the padding of this flush; negative if not even that has room."""
        return self.end - position - self.flush

    # ---- which records may be written ----

    def compaction_needs(self, largest: int, escorts: int) -> int:
        """Blocks that must be free for a pass of compaction, in the worst case.

        Args:
            largest: blocks of the longest record.
            escorts: blocks of the dequeues of open transactions.
        """
        return self.file + largest + escorts + self._padding + self.margin

    def compacts(self, live: int, largest: int, escorts: int) -> bool:
        """Whether a pass of compaction ends with `compaction_needs` blocks free if `live` blocks are live."""
        needs = self.compaction_needs(largest, escorts)
        return live + self._padding + needs + self.flush <= self.files * self.file

    def drains(self, free: int, records: int, outcomes: int) -> bool:
        """Whether `free` blocks hold the dequeue of each live record and the outcomes of open transactions."""
        return free >= self.draining_needs(records, outcomes)

    def draining_needs(self, records: int, outcomes: int) -> int:
        """Blocks that `drains` requires to be free."""
        return self.flush * records + outcomes + self.margin


# ---- the threshold, in all formats ----

NEAR_PERCENT: Final = 80  # of the limit


class Threshold(NamedTuple):
    """The threshold at which a journal refuses enqueues, and its use.

    Attributes:
        limit: maximum bytes in use.
        used: bytes in use.
    """

    limit: int
    used: int

    @property
    def room(self) -> int:
        """Bytes of blocks that enqueues may still fill. Version 2 needs one block more for each."""
        return max(self.limit - self.used, 0)

    @property
    def fill(self) -> float:
        """The bytes in use as a fraction of the limit; 1.0 for a limit of 0. Six decimals."""
        return round(self.used / self.limit, 6) if self.limit > 0 else 1.0

    @property
    def is_near(self) -> bool:
        """Whether 80 % or more of the limit is in use."""
        return self.used * 100 >= self.limit * NEAR_PERCENT

    @property
    def is_reached(self) -> bool:
        """Whether no message at all can be enqueued."""
        return self.room < BLOCK_SIZE


def enqueue_limit(geometry: Geometry, journal_format: JournalFormat) -> int | None:
    """Maximum bytes in use in a ring; None if there is no limit."""
    if journal_format is JournalFormat.LINEAR:
        return None
    if journal_format is JournalFormat.VERSION_1:
        return geometry.capacity - reserve_blocks(geometry) * BLOCK_SIZE
    return version_2_limit(geometry.files, geometry.data_size)


def version_2_limit(files: int, file: int) -> int:
    """How much of a ring of version 2 may be in use, in the unit of `file`, the size of a file: blocks or bytes."""
    ring = files * file
    return max(ring * THRESHOLD_PERCENT // 100, min(ring - _MAX_FREE_FILES * file, ring * _MAX_PERCENT // 100))


def reserve_blocks(geometry: Geometry) -> int:
    """Blocks that enqueues leave free in version 1: 20 % of the ring, rounded up, at least one file."""
    blocks = geometry.capacity // BLOCK_SIZE
    return max(-(-blocks * (100 - THRESHOLD_PERCENT) // 100), geometry.data_size // BLOCK_SIZE)


def threshold(
    geometry: Geometry, journal_format: JournalFormat, *, oldest: int | None, end: int, live: int, live_bytes: int
) -> Threshold | None:
    """The threshold and the use of a ring; None if nothing is ever refused.

    Args:
        geometry: the ring's.
        journal_format: its format.
        oldest: log offset of the oldest live record; None if there is none.
        end: log offset where the journal ends.
        live: number of live records.
        live_bytes: bytes of their blocks.
    """
    limit = enqueue_limit(geometry, journal_format)
    if limit is None:
        return None
    if journal_format is JournalFormat.VERSION_1:
        return Threshold(limit, _held_back(geometry, oldest, end))
    return Threshold(limit, live_bytes + live * BLOCK_SIZE)


def _held_back(geometry: Geometry, oldest: int | None, end: int) -> int:
    """Version 1: bytes from the beginning of the oldest live record's file to the writer's next position."""
    position = -(-end // SECTOR_SIZE) * SECTOR_SIZE  # it begins with fillers up to a sector's end
    present = position - position % geometry.data_size
    first = present if oldest is None else oldest - oldest % geometry.data_size
    return position - first


def depth_held(
    geometry: Geometry, journal_format: JournalFormat, *, record: Fraction, per_message: Fraction
) -> int | None:
    """Minimum number of messages that an empty journal accepts before it refuses more; None if it never does.

    Args:
        geometry: the ring's.
        journal_format: its format.
        record: bytes of a message's enqueue record, in whole blocks.
        per_message: bytes by which the journal grows for each message, including fillers, commits and so on.
    """
    limit = enqueue_limit(geometry, journal_format)
    if limit is None:
        return None
    if journal_format is JournalFormat.VERSION_1:
        # In the worst case the first message is at the end of its file, and all of that file is in use.
        return int(max(limit - geometry.data_size, 0) / per_message)
    return int(limit / (record + BLOCK_SIZE))


def threshold_error(title: str, reason: str) -> ThresholdError:
    """The error for an enqueue that exceeds a ring's threshold: first qpidd's sentence, then `reason`, then its code.

    Args:
        title: the journal's name: `queue "orders"`.
        reason: why there is no room, and what to do.
    """
    return ThresholdError(f"Enqueue capacity threshold exceeded on {title}. {reason} ({ENQCAPTHRESH})")


def over_threshold(title: str, files: int, pages: int) -> ThresholdError:
    """The same for a ring of fixed size, with advice on enlarging it.

    Args:
        title: the journal's name.
        files: number of files in its ring.
        pages: size of each file in pages of 64 KiB; 0 for less than one.
    """
    return threshold_error(
        title,
        "Consume messages; or stop the broker and enlarge the journal: qstore-resize DATA-DIR QUEUE "
        f"{twice(files, pages)}; or declare queues with a larger qpid.file_count or qpid.file_size",
    )


def twice(files: int, pages: int) -> str:
    """The option of qstore-resize that doubles a ring of this size."""
    return f"--num-jfiles {min(2 * files, MAX_FILES)}" if files < MAX_FILES else f"--jfile-size-pgs {2 * pages or 1}"
