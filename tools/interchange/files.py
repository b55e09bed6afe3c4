"""Export files: which form a file has, writing it whole or not at all, and reading it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import BinaryIO, Final, cast

import zstandard

from qstore.formats.wording import printable
from qstore.tools.interchange.archive import ArchiveWriter, read_archive
from qstore.tools.interchange.definitions import (
    DefinitionOptions,
    DefinitionsWriter,
    are_definitions,
    read_definitions,
)
from qstore.tools.interchange.items import ExportWriter, InterchangeError, ItemSink, ReadExport
from qstore.tools.interchange.java_broker import is_java_configuration, read_java_configuration
from qstore.tools.interchange.json_lines import JsonLinesWriter, read_json_lines
from qstore.tools.interchange.parquet import ParquetWriter, read_parquet

STANDARD_OUTPUT: Final = "-"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_PARQUET: Final = b"PAR1"
_TAR, _MAGIC_AT = b"ustar", 257
_JSON: Final = frozenset(b'{["-tfn0123456789'[at : at + 1] for at in range(17))
_LEVEL: Final = 3
_MAX_WINDOW: Final = 1 << 27  # bytes of memory that a compressed file may ask for
_BUFFER: Final = 1 << 20
_PARTIAL: Final = ".partial"


class Form(Enum):
    """The form of an export."""

    JSON = "json"
    JSON_ZSTD = "json.zst"
    PARQUET = "parquet"
    ARCHIVE = "archive"
    DEFINITIONS = "definitions"


_SUFFIXES: Final = {
    "definitions.json": Form.DEFINITIONS,
    ".jsonl": Form.JSON,
    ".json": Form.JSON,
    ".jsonl.zst": Form.JSON_ZSTD,
    ".json.zst": Form.JSON_ZSTD,
    ".parquet": Form.PARQUET,
    ".tar.zst": Form.ARCHIVE,
}
_WRITERS: Final[dict[Form, Callable[..., ExportWriter]]] = {
    Form.JSON: JsonLinesWriter,
    Form.JSON_ZSTD: JsonLinesWriter,
    Form.PARQUET: ParquetWriter,
    Form.ARCHIVE: ArchiveWriter,
    Form.DEFINITIONS: DefinitionsWriter,
}


def form_of(path: str) -> Form | None:
    """The form of a file by the ending of its name; None if it has no known one."""
    if path == STANDARD_OUTPUT:
        return Form.JSON
    return next((form for suffix, form in _SUFFIXES.items() if path.endswith(suffix)), None)


# ---- writing ----


@contextlib.contextmanager
def export_file(path: str, form: Form, *, with_passwords: bool) -> Iterator[ExportWriter]:
    """A writer to a file, which appears, synced, when the block ends without an error; until then it is PATH.partial.

    Args:
        path: the file, which must not exist; "-" for standard output.
        form: its form.
        with_passwords: whether to write the passwords of links.

    Raises:
        InterchangeError, OSError: it cannot be written.
    """
    if path == STANDARD_OUTPUT:
        with _compressed(sys.stdout.buffer, form) as stream:
            yield (writer := _WRITERS[form](stream, with_passwords=with_passwords))
            writer.finish()
        sys.stdout.buffer.flush()
        return
    if os.path.lexists(path):
        raise InterchangeError(f"{path}: exists; choose another name, or remove it")
    partial = Path(path + _PARTIAL)
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb", buffering=_BUFFER) as file:
            with _compressed(file, form) as stream:
                yield (writer := _WRITERS[form](stream, with_passwords=with_passwords))
                writer.finish()
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)  # unlike a rename, it does not replace a file that appeared in the meantime
    except FileExistsError:
        raise InterchangeError(f"{path}: exists; choose another name, or remove it") from None
    finally:
        partial.unlink(missing_ok=True)
    _sync_directory(Path(path).parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _compressed(file: BinaryIO, form: Form) -> Iterator[BinaryIO]:
    if form in (Form.JSON_ZSTD, Form.ARCHIVE):
        compressor = zstandard.ZstdCompressor(level=_LEVEL)  # exports have their own checksums
        with compressor.stream_writer(file, closefd=False) as stream:
            yield cast(BinaryIO, stream)
    else:
        yield file


# ---- reading ----


def read_export(
    path: str, sink: ItemSink, *, is_edited: bool = False, definitions: DefinitionOptions | None = None
) -> ReadExport:
    """Read an export of any form, which its first bytes show.

    Args:
        path: the file.
        sink: takes the items.
        is_edited: whether it was edited: JSON lines only.
        definitions: how RabbitMQ's definitions and the Java broker's configuration are read; None if they are not.

    Raises:
        InterchangeError: it is not an export, or damaged.
        OSError: it cannot be read.
    """
    if not Path(path).is_file():
        what = "this is not a file" if Path(path).exists() else "no such file"
        raise InterchangeError(f"{path}: {what}")
    try:
        with io.BufferedReader(io.FileIO(path), _BUFFER) as file:
            magic = file.read(len(_ZSTD))
            file.seek(0)
            if magic == _PARQUET:
                return read_parquet(Path(path), sink)
            begin = file.peek(_BUFFER).lstrip()
            if definitions is not None and begin.startswith(b"{") and are_definitions(begin):
                return read_definitions(file, sink, definitions)
            if definitions is not None and is_java_configuration(begin):
                return read_java_configuration(path, sink, definitions)
            if magic != _ZSTD:
                return _read_stream(file, sink, is_edited=is_edited)
            decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
            with decompressor.stream_reader(file, read_across_frames=True, closefd=False) as stream:
                buffered = io.BufferedReader(cast(io.FileIO, stream), _BUFFER)
                return _read_stream(buffered, sink, is_edited=is_edited)
    except zstandard.ZstdError as error:
        raise InterchangeError(f"{path}: the compressed data are damaged: {error}") from None
    except InterchangeError as error:
        raise InterchangeError(f"{path}: {error}") from None


def _read_stream(stream: io.BufferedReader[io.FileIO], sink: ItemSink, *, is_edited: bool) -> ReadExport:
    first = stream.peek(1)[:1]
    if first in (b"", b"{"):
        return read_json_lines(stream, sink, is_edited=is_edited)
    begin = stream.peek(_MAGIC_AT)[: _MAGIC_AT + len(_TAR)]
    if begin.lstrip()[:1] in _JSON and not begin.endswith(_TAR):
        shown = printable(begin[:20].decode("utf-8", "replace").strip())
        raise InterchangeError(
            f"this is neither an export nor definitions, which are objects of JSON: it begins with {shown}"
        )
    return read_archive(stream, sink)
