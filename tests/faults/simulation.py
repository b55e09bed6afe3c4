"""Helpers of the tests of the simulated disk."""

from __future__ import annotations

from collections.abc import Callable

from qstore.store.disk import WritableDisk, WritableFile, read_whole
from tests.faults.simulated_disk import SECTOR, Call, SimulatedDisk

SEEDS = range(400)


def disk_with(content: bytes, seed: int = 0, *, sector: int = SECTOR, powersafe: bool = True) -> SimulatedDisk:
    """A disk with one synced file, `/file`."""
    disk = SimulatedDisk(seed, sector=sector, powersafe=powersafe)
    make(disk, "/file", content)
    disk.sync_directory("/")
    return disk


def make(disk: WritableDisk, path: str, content: bytes) -> None:
    """A file whose content is synced, and whose name is not."""
    file: WritableFile = disk.create(path, 0)
    file.write(0, content)
    file.sync()
    file.close()


def content_of(disk: WritableDisk, path: str = "/file") -> bytes:
    """All that is in a file."""
    return read_whole(disk, path, 1 << 20)


def letters(content: bytes) -> str:
    """The first letter of each sector; `~` where a sector is not all the same."""
    sectors = [content[at : at + SECTOR] for at in range(0, len(content), SECTOR)]
    return "".join(chr(sector[0]) if len(set(sector)) == 1 else "~" for sector in sectors)


def left_by(
    disk: SimulatedDisk, seed: int, change: Callable[[Callable[[], None]], None]
) -> list[tuple[SimulatedDisk, bool]]:
    """What is left at each kill point of a change, and whether it had been answered by then.

    Args:
        disk: what the broker works on.
        seed: of the crashes.
        change: makes the change, to its end; what it is given is to be called at the answer.
    """
    visited: list[tuple[SimulatedDisk, bool]] = []
    answers: list[int] = []

    def visit(call: Call) -> None:
        kills = (call.killed(seed + call.number, power_loss=power_loss) for power_loss in (False, True))
        visited.extend((each, bool(answers)) for each in kills)

    def answered() -> None:
        answers.append(1)
        for power_loss in (False, True):
            ended = disk.copy(seed, {})
            ended.crash(power_loss=power_loss)
            visited.append((ended, True))

    disk.watch = visit
    change(answered)
    disk.watch = None
    assert answers
    return visited


def outcomes(deed: Callable[[SimulatedDisk], None], *, power_loss: bool = True, content: bytes = b"") -> set[bytes]:
    """What `/file` is after a crash that follows `deed`, over the seeds."""
    found = set()
    for seed in SEEDS:
        disk = disk_with(content, seed)
        deed(disk)
        disk.crash(power_loss=power_loss)
        found.add(content_of(disk))
    return found


def tree(disk: SimulatedDisk, path: str) -> str:
    """The names in a directory, joined by spaces, each with what is in it."""
    parts = []
    for name in disk.names(path):
        below = path.rstrip("/") + "/" + name
        inner = f"({tree(disk, below)})" if disk.is_directory(below) else "=" + content_of(disk, below).decode()
        parts.append(name + inner)
    return " ".join(parts)
