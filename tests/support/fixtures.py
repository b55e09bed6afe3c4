"""Stores that the real qpidd left behind, from the archives in `tests/fixtures`.

Each archive holds one store directory and a manifest that says what the real qpidd recovered from it. Unpacked trees
are read-only and shared within a test process; a test that changes bytes takes a private copy, whose files are hard
links until they are replaced. So one of 30 MB of mostly zeros costs next to nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import zstandard

from qstore.formats.errors import RhmError
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET
from qstore.formats.rhm.records import Kind, RecordHeader, decode_record
from qstore.store.catalogue.berkeley import find_recovery_program

ARCHIVES: Final = Path(__file__).parent.parent / "fixtures"
LEGACY_STORES: Final = tuple(sorted(path.name.removesuffix(".tar.zst") for path in ARCHIVES.glob("legacy-*.tar.zst")))
LINEAR_STORES: Final = tuple(sorted(path.name.removesuffix(".tar.zst") for path in ARCHIVES.glob("linear-*.tar.zst")))
HAS_RECOVERY: Final = find_recovery_program() is not None
assert (len(LEGACY_STORES), len(LINEAR_STORES)) == (7, 7)

needs_recovery = pytest.mark.skipif(not HAS_RECOVERY, reason="needs db5.3_recover: Debian's db5.3-util")


@dataclass(frozen=True, slots=True)
class StoreFixture:
    """An unpacked store.

    Attributes:
        name: the archive's name.
        path: the store directory, the one that holds `rhm` or `qls`.
        manifest: what qpidd was told, and what it recovered.
    """

    name: str
    path: Path
    manifest: dict[str, Any]

    @property
    def recovered(self) -> dict[str, Any]:
        """Queues with their messages, exchanges, bindings and transactions in doubt, as the real qpidd has them."""
        recovered: dict[str, Any] = self.manifest["recovered_by_qpidd"]
        return recovered

    def sequence_numbers(self) -> dict[str, list[int | None]]:
        """Queue name -> the sequence numbers of the messages that qpidd recovered, in its order."""
        return {
            queue["name"]: [message.get("sn") for message in queue["messages"]] for queue in self.recovered["queues"]
        }


def unpack(name: str, directory: Path) -> StoreFixture:
    """Unpack the archive called `name` below `directory` and make the tree read-only. Holes stay holes."""
    archive = ARCHIVES / f"{name}.tar.zst"
    with (
        archive.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as plain,
        tarfile.open(fileobj=plain, mode="r|") as tar,
    ):
        tar.extractall(directory, filter=_member)
    root = directory / name
    manifest = json.loads((root / "manifest.json").read_text())
    set_writable(root, writable=False)
    return StoreFixture(name, root / manifest["data_dir"], manifest)


def _member(member: tarfile.TarInfo, directory: str) -> tarfile.TarInfo | None:
    """Links stay what they are: a linearstore's are absolute, and point nowhere here. All else as tarfile wants it."""
    if not member.issym():
        return tarfile.data_filter(member, directory)
    below = os.path.realpath(os.path.join(directory, os.path.dirname(member.name)))
    assert os.path.commonpath([below, os.path.realpath(directory)]) == os.path.realpath(directory)
    return member


def set_writable(root: Path, *, writable: bool) -> None:
    """Set or take away the write permissions of a whole tree; everybody may read it."""
    for directory, _, names in os.walk(root):
        os.chmod(directory, 0o755 if writable else 0o555)
        for name in names:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                os.chmod(path, 0o644 if writable else 0o444)


# ---- what a tree looks like ----

Snapshot = dict[str, tuple[int, int, int, str]]


def snapshot(root: Path) -> Snapshot:
    """Everything below `root`: mode, size, time of the last change, and digest of the content."""
    found: Snapshot = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        if path.is_symlink():
            digest = os.readlink(path)
        else:
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = (status.st_mode, status.st_size, status.st_mtime_ns, digest)
    return found


# ---- private copies ----


class PlacedRecord(NamedTuple):
    """A record and where it stands.

    Attributes:
        file: the journal file.
        offset: bytes from its start.
        header: the record's header.
        xid, data: what follows the header.
    """

    file: Path
    offset: int
    header: RecordHeader
    xid: bytes
    data: bytes


class StoreCopy:
    """A private copy of a store whose files may be replaced.

    Attributes:
        path: the store directory.
    """

    def __init__(self, source: Path, path: Path) -> None:
        self.path = path
        shutil.copytree(source, path, copy_function=os.link, symlinks=True)
        for directory, _, _ in os.walk(path):
            os.chmod(directory, 0o755)

    def replace(self, file: Path, content: bytes) -> None:
        """Give `file` another content; the store that was copied keeps its own. Zeros at the end become a hole."""
        assert file.is_relative_to(self.path)
        file.unlink(missing_ok=True)
        with file.open("wb") as out:
            out.write(content.rstrip(b"\0"))
            out.truncate(len(content))


def journal_directory(store: Path, queue: str) -> Path:
    """The directory of a queue's journal. A queue's name with slashes is a path."""
    (directory,) = (store / "rhm" / "jrnl").glob(f"*/{queue}")
    return directory


def journal_file(store: Path, queue: str) -> Path:
    """The first file of a queue's journal: in the stores of local and of distributed transactions it holds all."""
    return journal_directory(store, queue) / "JournalData.0000.jdat"


def written_files(root: Path) -> list[Path]:
    """The journal files below `root` that were written to: the others are all zero."""
    return [file for file in sorted(root.rglob("*.jdat")) if file.stat().st_blocks and any(file.read_bytes()[:4])]


def records_of(file: Path) -> Iterator[PlacedRecord]:
    """The records of a file whose first record begins in its first data sector, fillers left out."""
    content = file.read_bytes()
    offset = DATA_OFFSET
    while offset + BLOCK_SIZE <= len(content):
        try:
            header, xid, data = decode_record(content, offset)
        except RhmError:
            return
        if header.kind is not Kind.FILLER:
            yield PlacedRecord(file, offset, header, xid, data)
        offset += header.size


class CopyFactory(NamedTuple):
    """Makes private copies of one store in a directory of its own."""

    source: StoreFixture
    directory: Path

    @contextmanager
    def copy(self) -> Iterator[StoreCopy]:
        """A private copy that is gone at the end; one at a time."""
        path = self.directory / self.source.name
        try:
            yield StoreCopy(self.source.path, path)
        finally:
            shutil.rmtree(path)


StoreOpener = Callable[[str], StoreFixture]
CopyOpener = Callable[[str], CopyFactory]
