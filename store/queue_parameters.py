"""The arguments of a queue's declaration that concern its journal: its size, how far it may grow, compression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from qstore.formats.rhm.geometry import MAX_RING_FILES, Geometry
from qstore.store.log_lines import LogLine
from qstore.store.parameters import (
    OPTIONS,
    Correction,
    ParameterError,
    StoreParameters,
    correct_file,
    correct_number,
    read_number,
    read_switch,
    shown,
)

_OPTIONS: Final = {option.name: option for option in OPTIONS}
_SOURCE: Final = "MRG 2 Messaging User Guide, 6.3"

QUEUE_ARGUMENTS: Final = (
    _OPTIONS["num-jfiles"]._replace(name="qpid.file_count", help="Files in the queue's journal", source=_SOURCE),
    _OPTIONS["jfile-size-pgs"]._replace(
        name="qpid.file_size", help="Size of the files of the queue's journal", source=_SOURCE
    ),
)
"""The arguments of a queue's declaration that set the size of its journal; they default to the store's options."""

GROWTH_ARGUMENTS: Final = (
    _OPTIONS["auto-expand"]._replace(name="qpid.auto_expand"),
    _OPTIONS["auto-expand-max-jfiles"]._replace(name="qpid.auto_expand_max_jfiles", alias=""),
    _OPTIONS["max-journal-size"]._replace(name="qpid.max_journal_size"),
)
"""The arguments that say how far it may grow; likewise."""

COMPRESS: Final = "qpid.compress"
COMPRESS_WORDS: Final = ("none", "zstd")


def queue_geometry(arguments: Mapping[str, Any], parameters: StoreParameters) -> tuple[Geometry, tuple[LogLine, ...]]:
    """The size of a queue's journal, and the lines to log about it.

    Args:
        arguments: the arguments of the queue's declaration, as plain values.
        parameters: the store's, for whatever the declaration does not set.

    Raises:
        ParameterError: an argument is not a number; the text can be sent to the client.
    """
    count, size = QUEUE_ARGUMENTS
    if parameters.starts_small and not {count.name, size.name} & arguments.keys() and _may_grow(arguments, parameters):
        return parameters.geometry, ()
    files, pages = Correction(parameters.num_jfiles, ()), Correction(parameters.jfile_size_pgs, ())
    if count.name in arguments:
        files = correct_number(count, read_number("queue argument", count, arguments[count.name]))
    if size.name in arguments:
        pages = correct_number(size, read_number("queue argument", size, arguments[size.name]))
    fitting = correct_file(size.name, pages.value, parameters.wcache_page_size)
    return Geometry.from_pages(files.value, fitting.value), files.warnings + pages.warnings + fitting.warnings


def queue_max_files(
    arguments: Mapping[str, Any], parameters: StoreParameters, geometry: Geometry
) -> tuple[int, tuple[LogLine, ...]]:
    """How many files a queue's journal may grow to, 0 if it has a fixed size; and the lines to log about it.

    Args:
        arguments: those of the queue's declaration, as plain values.
        parameters: the store's, for whatever the declaration does not set.
        geometry: the size of the journal.
    """
    _, max_files, max_size = GROWTH_ARGUMENTS
    files, size = Correction(parameters.auto_expand_max_jfiles, ()), Correction(parameters.max_journal_size, ())
    if max_files.name in arguments:
        files = correct_number(max_files, read_number("queue argument", max_files, arguments[max_files.name]))
    if max_size.name in arguments:
        size = correct_number(max_size, read_number("queue argument", max_size, arguments[max_size.name]))
    limits = [MAX_RING_FILES]
    if files.value:
        limits.append(files.value)
    if size.value:
        limits.append((size.value << 20) // geometry.file_size)
    most = max(min(limits), geometry.files) if _may_grow(arguments, parameters) else 0
    return most, files.warnings + size.warnings


def _may_grow(arguments: Mapping[str, Any], parameters: StoreParameters) -> bool:
    expands = GROWTH_ARGUMENTS[0]
    given = arguments.get(expands.name)
    return parameters.auto_expand if given is None else read_switch("queue argument", expands, given)


def queue_compresses(arguments: Mapping[str, Any]) -> bool:
    """Whether the arguments of a queue's declaration, as plain values, say that its messages are compressed.

    Raises:
        ParameterError: the argument is not one of its words; the text can be sent to the client.
    """
    value = arguments.get(COMPRESS, COMPRESS_WORDS[0])
    if isinstance(value, bytes):  # the C++ client sends text as bytes
        value = value.decode("utf-8", "replace")
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in COMPRESS_WORDS:
        raise ParameterError(f"queue argument {COMPRESS}: {shown(value)} is not one of {', '.join(COMPRESS_WORDS)}")
    return word != COMPRESS_WORDS[0]
