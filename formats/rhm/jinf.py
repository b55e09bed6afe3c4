"""The journal info file, `<base>.jinf`: identity and size of a journal (formats/rhm/README.md, 4).

Version 1, qpidd's: one leaf `<name value="…" />` per line, in the order of `_VERSION_1_TEXT`, without escaping.
qpidd reads it by searching each line for a name, so a queue called "journal_version" or one with a quote in its
name misleads it. Here a leaf's name must be at the start of its line, and a queue's name, which the journal's directory
repeats, cannot be mistaken for another leaf: it may contain quotes, line ends and whole leaves.

Version 2: one flat JSON object on one line, sorted keys, ended by a newline, and in it under "crc32c" the CRC-32C of
the same line without that key. It contains the whole queue record, so that a journal directory alone restores its
queue.

    journal_version 2, queue_id, incarnation, queue_name, queue_record (base64), base_filename,
    number_jrnl_files, jrnl_file_size_sblks, flush_alignment, seconds, nanoseconds, crc32c

A journal that was made before a queue needed it has empty text as its queue_name and queue_record; a moment after a
queue has it, the file is replaced by one with both (store/live/journal_stock.py).

and, where they are needed:

    creation_headers      1, if each file was created with a header (formats/rhm/README.md, 8.2)
    ring                  the numbers of the files in the order of the ring, if that is not 0, 1, 2 …: "0-3,8,4-7"
    spare                 the numbers of files that may exist, but do not belong to the ring, in the same form
    initial_jrnl_files    how many files the journal was created with, if it has another number now
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from typing import Final

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.file_header import DEFAULT_FLUSH_ALIGNMENT
from qstore.formats.rhm.geometry import MAX_FILES, MAX_RING_FILES, SECTOR_SIZE, Geometry

DEFAULT_BASE_NAME: Final = "JournalData"
TPL_BASE_NAME: Final = "tpl"
MAX_JINF_SIZE: Final = 1 << 20  # bytes: a queue record is some KiB; nothing larger is read

# The geometry for which qpidd itself is compiled; another one is another format.
_SECTOR_BLOCKS, _BLOCK_BYTES = 4, 128
_NUMBER_LIMIT: Final = 1 << 48


class JournalInfo(NamedTuple):
    """The content of a `.jinf` file.

    Attributes:
        version: 1 or 2.
        queue_name: the journal's id: the queue's name, or "TplStore". Bytes that are not UTF-8 as surrogate escapes.
        base_name: common beginning of the file names.
        geometry: number and size of the files.
        directory: version 1: where the journal was created, with trailing slash.
        seconds, nanoseconds: when the journal was created.
        local_time: version 1: the same as text, in the local time of the writer.
        auto_expand_limit: version 1: the largest number of files if auto-expand is on, 0 for "no limit"; else None.
        write_page_sectors, write_pages, read_page_sectors, read_pages: version 1: caches; recovery ignores them.
        queue_id, incarnation: version 2: the queue's number and how often its journal was rebuilt.
        queue_record: version 2: the queue record as in the catalogue.
        flush_alignment: version 2: bytes to which flushes are padded.
        creation_headers: version 2: whether each file was created with a header, so that none can be all zeros.
        ring: version 2: the numbers of the files in the order of the ring; empty for 0, 1, 2 and so on.
        spare: version 2: numbers of files that may exist, but are not in the ring: they are being added or removed.
        initial_files: version 2: how many files the journal was created with; 0 for as many as it has.
    """

    version: int
    queue_name: str
    base_name: str
    geometry: Geometry
    directory: str = ""
    seconds: int = 0
    nanoseconds: int = 0
    local_time: str = ""
    auto_expand_limit: int | None = None
    write_page_sectors: int = 64
    write_pages: int = 32
    read_page_sectors: int = 128
    read_pages: int = 16
    queue_id: int = 0
    incarnation: int = 0
    queue_record: bytes = b""
    flush_alignment: int = DEFAULT_FLUSH_ALIGNMENT
    creation_headers: bool = False
    ring: tuple[int, ...] = ()
    spare: tuple[int, ...] = ()
    initial_files: int = 0

    @property
    def is_unnamed(self) -> bool:
        """Version 2: whether it is that of a queue's journal without the queue's name: it was made ahead."""
        return self.queue_id > 0 and not self.queue_record

    @property
    def has_changed_ring(self) -> bool:
        """Whether files were ever added to the ring, or removed."""
        return bool(self.ring or self.spare or self.initial_files)

    def numbers_of(self, files: int) -> Sequence[int]:
        """The numbers of the files in the order of the ring; 0, 1, 2 … if their number is wrong."""
        return self.numbers if files == self.geometry.files else range(files)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the files in the order of the ring."""
        return self.ring or tuple(range(self.geometry.files))


def is_plain_ring(numbers: Sequence[int]) -> bool:
    """Whether the order of files is that of a ring that never grew: 0, 1, 2 and so on."""
    return all(number == place for place, number in enumerate(numbers))


def decode_jinf(content: bytes) -> JournalInfo:
    """Decode a `.jinf` file of either version.

    Raises:
        RhmError: it is empty, too large, of an unknown version, incomplete, or contradicts itself.
    """
    if not content.startswith(b"{") and not content.strip(b"\0 \r\n\t"):
        raise RhmError("journal info file is empty")
    if len(content) > MAX_JINF_SIZE:
        raise RhmError(f"journal info file has {len(content):,} bytes, more than {MAX_JINF_SIZE:,}", MAX_JINF_SIZE)
    return _decode_version_2(content) if content.startswith(b"{") else _decode_version_1(content)


def encode_jinf(info: JournalInfo) -> bytes:
    """The content of the `.jinf` file for `info`."""
    return _encode_version_1(info) if info.version == 1 else _encode_version_2(info)


# ---- version 1 ----

_VERSION_1_TEXT = """\
<?xml version="1.0" ?>
<jrnl>
  <journal_version value="1" />
  <journal_id>
    <id_string value="{queue_name}" />
    <directory value="{directory}" />
    <base_filename value="{base_name}" />
  </journal_id>
  <creation_time>
    <seconds value="{seconds}" />
    <nanoseconds value="{nanoseconds}" />
    <string value="{local_time}" />
  </creation_time>
  <journal_file_geometry>
    <number_jrnl_files value="{files}" />
    <auto_expand value="{auto_expand}" />
{auto_expand_limit}\
    <jrnl_file_size_sblks value="{sectors}" />
    <JRNL_SBLK_SIZE value="4" />
    <JRNL_DBLK_SIZE value="128" />
  </journal_file_geometry>
  <cache_geometry>
    <wcache_pgsize_sblks value="{write_page_sectors}" />
    <wcache_num_pages value="{write_pages}" />
    <JRNL_RMGR_PAGE_SIZE value="{read_page_sectors}" />
    <JRNL_RMGR_PAGES value="{read_pages}" />
  </cache_geometry>
</jrnl>
"""


def _encode_version_1(info: JournalInfo) -> bytes:
    limit = info.auto_expand_limit
    line = f'    <auto_expand_max_jrnl_files value="{limit}" />\n'
    text = _VERSION_1_TEXT.format(
        queue_name=info.queue_name,
        directory=info.directory,
        base_name=info.base_name,
        seconds=info.seconds,
        nanoseconds=info.nanoseconds,
        local_time=info.local_time,
        files=info.geometry.files,
        auto_expand="false" if limit is None else "true",
        auto_expand_limit="" if limit is None else line,
        sectors=info.geometry.data_size // SECTOR_SIZE,
        write_page_sectors=info.write_page_sectors,
        write_pages=info.write_pages,
        read_page_sectors=info.read_page_sectors,
        read_pages=info.read_pages,
    )
    return text.encode("utf-8", "surrogateescape")


class _Leaves:
    """The `<name value="…" />` lines of a version-1 file.

    Only the queue's name and the directory, which ends with it, can have any content. So the version, which precedes
    them, is the first leaf of its name, and every other leaf the last of its name.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content

    def _values(self, name: str) -> list[bytes]:
        pattern = rb'^[ \t]*<%s value="(.*)" ?/>[ \t\r]*$' % name.encode()
        return re.findall(pattern, self._content, re.MULTILINE)

    def text(self, name: str, default: str | None = None, *, first: bool = False) -> str:
        if values := self._values(name):
            return values[0 if first else -1].decode("utf-8", "surrogateescape")
        if default is None:
            raise RhmError(f"journal info file has no value for {name}")
        return default

    def number(self, name: str, default: int | None = None, *, first: bool = False) -> int:
        text = self.text(name, None if default is None else str(default), first=first)
        if not re.fullmatch(r"[0-9]{1,15}", text):
            raise RhmError(f"journal info file: {name} is not a number: {text[:40]!r}")
        return int(text)

    def name_and_directory(self) -> tuple[str, str]:
        """The queue's name and the directory: the bytes between the first leaf's beginning and the last's end.

        If the name itself contains the border between the two, so does the directory: the middle one is the border.
        """
        begin = re.search(rb'^[ \t]*<id_string value="', self._content, re.MULTILINE)
        ends = list(re.finditer(rb'" ?/>[ \t\r]*\n[ \t]*<base_filename value="', self._content))
        if begin is None or not ends or ends[-1].start() < begin.end():
            return self.text("id_string"), self.text("directory", "")
        text = self._content[begin.end() : ends[-1].start()]
        borders = list(re.finditer(rb'" ?/>[ \t\r]*\n[ \t]*<directory value="', text))
        if not borders:
            return self.text("id_string"), ""
        border = borders[len(borders) // 2]
        name, directory = text[: border.start()], text[border.end() :]
        return name.decode("utf-8", "surrogateescape"), directory.decode("utf-8", "surrogateescape")


def _decode_version_1(content: bytes) -> JournalInfo:
    leaves = _Leaves(content)
    version = leaves.number("journal_version", first=True)
    if version != 1:
        raise RhmError(f"unsupported journal version {version} in journal info file")
    blocks, block = leaves.number("JRNL_SBLK_SIZE"), leaves.number("JRNL_DBLK_SIZE")
    if (blocks, block) != (_SECTOR_BLOCKS, _BLOCK_BYTES):
        raise RhmError(f"journal info file: sectors of {blocks:,} blocks of {block} bytes, not 4 of 128")
    expand = leaves.text("auto_expand", "false") == "true"
    queue_name, directory = leaves.name_and_directory()
    return JournalInfo(
        version=1,
        queue_name=queue_name,
        base_name=leaves.text("base_filename"),
        geometry=_geometry(leaves.number("number_jrnl_files"), leaves.number("jrnl_file_size_sblks")),
        directory=directory,
        seconds=leaves.number("seconds", 0),
        nanoseconds=leaves.number("nanoseconds", 0),
        local_time=leaves.text("string", ""),
        auto_expand_limit=leaves.number("auto_expand_max_jrnl_files", 0) if expand else None,
        write_page_sectors=leaves.number("wcache_pgsize_sblks", 64),
        write_pages=leaves.number("wcache_num_pages", 32),
        read_page_sectors=leaves.number("JRNL_RMGR_PAGE_SIZE", 128),
        read_pages=leaves.number("JRNL_RMGR_PAGES", 16),
    )


def _geometry(files: int, sectors: int, most: int = MAX_FILES) -> Geometry:
    if not 1 <= files <= most:
        raise RhmError(f"journal info file: {files:,} files is out of range (at most {most:,})")
    if not 1 <= sectors <= _NUMBER_LIMIT:
        raise RhmError(f"journal info file: file size of {sectors} sectors is out of range")
    return Geometry(files, sectors * SECTOR_SIZE)


# ---- version 2 ----


def _encode_version_2(info: JournalInfo) -> bytes:
    fields: dict[str, object] = {
        "journal_version": 2,
        "queue_id": info.queue_id,
        "incarnation": info.incarnation,
        "queue_name": info.queue_name,
        "queue_record": base64.b64encode(info.queue_record).decode(),
        "base_filename": info.base_name,
        "number_jrnl_files": info.geometry.files,
        "jrnl_file_size_sblks": info.geometry.data_size // SECTOR_SIZE,
        "flush_alignment": info.flush_alignment,
        "seconds": info.seconds,
        "nanoseconds": info.nanoseconds,
    }
    if info.creation_headers:
        fields["creation_headers"] = 1
    if info.ring:
        fields["ring"] = _ranges(info.ring)
    if info.spare:
        fields["spare"] = _ranges(info.spare)
    if info.initial_files:
        fields["initial_jrnl_files"] = info.initial_files
    fields["crc32c"] = extend_crc32c(0, _canonical(fields))
    return _canonical(fields)


def _canonical(fields: dict[str, object]) -> bytes:
    # ASCII only: a surrogate escape in a name becomes \udcXX and is restored when decoded.
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"


def _crc_as_written(content: bytes) -> int:
    """The checksum of the line as it stands: the true one, unless other software has written the line in another form.

    The key is looked for as bytes, for in a value its quotes are escaped. Encoding the fields again would take as long
    as all the rest (139 and 71 µs on a busy machine).
    """
    before, _, rest = content.partition(b'"crc32c":')
    return extend_crc32c(extend_crc32c(0, before), rest.partition(b",")[2] + b"\n")


def _decode_version_2(content: bytes) -> JournalInfo:
    content = content.rstrip()  # json takes as long for 3 KiB of spaces as for the rest
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        raise RhmError("journal info file is not JSON") from None
    if not isinstance(fields, dict):
        raise RhmError("journal info file is not a JSON object")
    version = fields.get("journal_version")
    if version != 2:
        raise RhmError(f"unsupported journal version {version!r:.40} in journal info file")
    if not all(isinstance(value, str | int) for value in fields.values()):
        raise RhmError("journal info file has values other than text and numbers")
    crc = fields.pop("crc32c", None)
    if crc != _crc_as_written(content) and crc != extend_crc32c(0, _canonical(fields)):
        raise RhmError("journal info file fails its checksum", fails_checksum=True)
    try:
        record = base64.b64decode(_text(fields, "queue_record"), validate=True)
    except (binascii.Error, ValueError):
        raise RhmError("journal info file: queue_record is not base64") from None
    files, sectors = _number(fields, "number_jrnl_files"), _number(fields, "jrnl_file_size_sblks")
    initial = _number(fields, "initial_jrnl_files") if "initial_jrnl_files" in fields else 0
    ring, spare = (_numbers(_text(fields, key)) if key in fields else () for key in ("ring", "spare"))
    if (ring and len(ring) != files) or len({*ring, *spare}) < len(ring) + len(spare):
        raise RhmError(f"journal info file: the ring does not consist of {files} different files")
    return JournalInfo(
        version=2,
        queue_name=_text(fields, "queue_name"),
        base_name=_text(fields, "base_filename"),
        geometry=_geometry(files, sectors, MAX_RING_FILES if initial else MAX_FILES),
        seconds=_number(fields, "seconds"),
        nanoseconds=_number(fields, "nanoseconds"),
        queue_id=_number(fields, "queue_id"),
        incarnation=_number(fields, "incarnation"),
        queue_record=record,
        flush_alignment=_number(fields, "flush_alignment"),
        creation_headers="creation_headers" in fields and _number(fields, "creation_headers") == 1,
        ring=ring,
        spare=spare,
        initial_files=initial,
    )


def _ranges(numbers: tuple[int, ...]) -> str:
    """Numbers as text, ascending stretches as ranges: "0-3,8,4-7"."""
    stretches: list[list[int]] = []
    for number in numbers:
        if stretches and number == stretches[-1][1] + 1:
            stretches[-1][1] = number
        else:
            stretches.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in stretches)


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers of `_ranges`. Raises RhmError: they are not numbers of files, or one is there twice."""
    numbers: dict[int, None] = {}
    for stretch in text.split(","):
        found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", stretch)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last < MAX_RING_FILES or not numbers.keys().isdisjoint(range(first, last + 1)):
            raise RhmError(f"journal info file: {text[:40]!r} is not a list of file numbers")
        numbers.update(dict.fromkeys(range(first, last + 1)))
    return tuple(numbers)


def _text(fields: dict[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise RhmError(f"journal info file: {name} is not text")
    return value


def _number(fields: dict[str, object], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RhmError(f"journal info file: {name} is not a number")
    return value
