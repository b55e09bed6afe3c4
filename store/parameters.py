"""The store's options: one table, the values parsed from it, and how illegal numbers are corrected.

An illegal number never prevents a broker from starting. It is replaced by the nearest legal one (the smaller of two
that are equally near), and a warning is logged (MRG 2 Messaging User Guide, 6.3). The same holds for the numbers in a
queue's declaration. A value that is not a number, not yes or no, or not one of the words to choose from, is an error,
since there is no nearest legal value.

Two numbers depend on each other: a file must hold a whole number of pages of the write cache, because qpidd writes
incorrectly otherwise (formats/rhm/README.md, 3.1). File sizes are multiples of 64 KiB, so only a page of 128 KiB can be
too large. For the store's options the page size is reduced, as in qpidd (9 of that page). For a queue's declaration the
file size is adjusted, since the page size is the store's; the nearest size may be 64 KiB less than requested.

The documents disagree on some numbers; the table has these decisions:

    jfile-size-pgs, maximum         32768 in the documents; qpidd 1.40 takes 32767
    tpl-wcache-page-size, default   32 in MRG 2 Messaging User Guide, table 6.2; 4 in qpidd
    wcache-page-size 0              the minimum, 1, is nearest; qpidd takes 32
    wcache-page-size 3              2, by the rule for ties; qpidd takes 4
    a number out of range           corrected; qpidd 1.40 does not start, or refuses the queue

Options of older and other stores that have no effect here are accepted with any value, and a notice states why they
have none.

The last part of this module reads the arguments of a queue's declaration that concern its journal: its size, how far it
may grow, compression.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Any, Final

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import DEFAULT_FILES, MAX_FILES, MAX_PAGES, MAX_RING_FILES, PAGE_SIZE, Geometry
from qstore.formats.wording import printable
from qstore.store.log_lines import LogLine, above_maximum, below_minimum, no_effect, not_legal, not_needed
from qstore.store.sync.supervision import AUTO, SYNC_DRIVERS

_KIB: Final = 1024
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,40}")  # no meaningful number has more digits
_MAX_NUMBER: Final = 10**40
_SHOWN: Final = 60  # characters of a bad value that an error shows
_TRUTH: Final = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


class ParameterError(Exception):
    """A value is invalid, and no legal value is nearest to it. The text is one line for people."""


class OnDamage(StrEnum):
    """How recovery treats a journal with damage that a crash does not explain."""

    QUARANTINE = "quarantine"
    REFUSE = "refuse"


class Kind(Enum):
    """The type of an option's value."""

    NUMBER = auto()
    SWITCH = auto()  # yes or no
    CHOICE = auto()  # one of several words
    TEXT = auto()


class StoreOption(NamedTuple):
    """One option of the store.

    Attributes:
        name: its name on the command line, without `--`, and in the option file.
        kind: the type of its value.
        default: its value if not given; None if that is derived from something else.
        help: its purpose, in one line.
        source: where it is documented; "own" for options that only this store has.
        unit: the unit of a number.
        legal: the legal numbers, in order.
        rule: the requirement on a number within the range, as a warning words it; empty if each of them is legal.
        words: the words to choose from.
        alias: another name for it.
        not_needed: why it has no effect; empty if it has one.
    """

    name: str
    kind: Kind
    default: int | str | bool | None
    help: str
    source: str
    unit: str = ""
    legal: Sequence[int] = ()
    rule: str = ""
    words: Sequence[str] = ()
    alias: str = ""
    not_needed: str = ""

    @property
    def minimum(self) -> int | None:
        """The smallest legal number; None if the value is not a number."""
        return self.legal[0] if self.legal else None

    @property
    def maximum(self) -> int | None:
        """The largest legal number; None if the value is not a number."""
        return self.legal[-1] if self.legal else None

    @property
    def field(self) -> str:
        """The name of its attribute of `StoreParameters`."""
        return self.name.replace("-", "_")


_FILES: Final = range(4, MAX_FILES + 1)
_FILE_PAGES: Final = range(1, MAX_PAGES + 1)
_PAGE_SIZES: Final = tuple(1 << power for power in range(8))  # KiB
_PAGES_BY_SIZE: Final = {1: 256, 2: 128, 4: 64, 8: 64, 16: 32, 32: 32, 64: 16, 128: 8}  # formats/rhm/README.md, 9
_OWN_TIMES: Final = 2
"""A queue's journal may have so many times qpidd's number of pages unsynced, as larger flushes are fewer. With 2 MiB
instead of 1, publishing 1 KiB takes between 4 and 18 % less processor time, compiled, on a busy machine
(`bench_checkouts`)."""
_PAGES: Final = range(4, max(_PAGES_BY_SIZE.values()) + 1)  # minimum: formats/qls/README.md, 7; maximum: qpidd's
_ALIGNMENTS: Final = (512, 4096)  # bytes: the sector sizes of disks

_TABLE: Final = "MRG 2 Messaging User Guide, table 6.2"
_OLD: Final = "Qpid C++ Broker Book, 1.1.6"
_MST: Final = 'Qpid wiki, "Configure Operational Status Logging"'
_EXPAND: Final = "formats/rhm/README.md, 7.2"
_RING: Final = "formats/rhm/README.md, 9"
_LINEAR: Final = "formats/qls/README.md, 7"
_ONE_MODE: Final = "messages are always written asynchronously, and only truncate deletes data."
_NO_TIMER: Final = "a flush starts as soon as the previous one is synced."
_NO_POOL: Final = "this store has no pool of empty files."

_NUMBER, _SWITCH, _CHOICE, _TEXT = Kind.NUMBER, Kind.SWITCH, Kind.CHOICE, Kind.TEXT
_COUNT: Final = StoreOption("num-jfiles", _NUMBER, DEFAULT_FILES, "Files in a journal", _TABLE, "files", _FILES)
_SIZE: Final = StoreOption(
    "jfile-size-pgs", _NUMBER, 24, "Size of a journal's files", _TABLE, "pages of 64 KiB", _FILE_PAGES
)
_PAGE: Final = StoreOption(
    "wcache-page-size", _NUMBER, 32, "Size of a page of the write cache", _TABLE, "KiB", _PAGE_SIZES, "a power of 2"
)
_CACHE: Final = StoreOption(
    "wcache-num-pages", _NUMBER, None, "Pages that may be unsynced in a journal", _LINEAR, "pages", _PAGES
)

_EXPANDS: Final = StoreOption("auto-expand", _SWITCH, True, "Add files to a journal before it is full", _EXPAND)
_MAX_FILES: Final = StoreOption(
    "auto-expand-max-jfiles",
    _NUMBER,
    0,
    "Files that a journal may grow to, 0 for no limit",
    _EXPAND,
    "files",
    range(MAX_RING_FILES + 1),
    alias="max-auto-expand-jfiles",
)
_MAX_SIZE: Final = StoreOption(
    "max-journal-size", _NUMBER, 0, "Size that a journal may grow to, 0 for no limit", "own", "MiB", range(1 << 20)
)

OPTIONS: Final = (
    StoreOption(
        "store-dir",
        _TEXT,
        None,
        "Directory of the store, by default the data directory",
        _TABLE,
        alias="store-directory",
    ),
    _COUNT,
    _SIZE,
    _PAGE,
    _CACHE,
    _COUNT._replace(name="tpl-num-jfiles", help="Files in the prepared list's journal"),
    _SIZE._replace(name="tpl-jfile-size-pgs", help="Size of the files of the prepared list's journal"),
    _PAGE._replace(
        name="tpl-wcache-page-size", default=4, help="Size of a page of the prepared list's write cache", source=_RING
    ),
    _CACHE._replace(name="tpl-wcache-num-pages", help="Pages that may be unsynced in the prepared list"),
    _EXPANDS,
    _MAX_FILES,
    _MAX_SIZE,
    StoreOption(
        "disk-free-limit", _NUMBER, 5, "Share of the disk that journals leave free", "own", "percent", range(96)
    ),
    StoreOption("truncate", _SWITCH, False, "Discard the content of the store before opening it", _TABLE),
    StoreOption(
        "on-damage", _CHOICE, OnDamage.QUARANTINE, "Quarantine damage, or refuse to start", "own", words=tuple(OnDamage)
    ),
    StoreOption("sync", _CHOICE, AUTO, "How journals are synced to disk", "own", words=SYNC_DRIVERS),
    StoreOption("flush-alignment", _NUMBER, 512, "Sector size of the disk", "own", "bytes", _ALIGNMENTS, "512 or 4096"),
    StoreOption("mst-log", _SWITCH, False, "Also log the Java broker's messages, MST-1001 to MST-1006", _MST),
    StoreOption("store-async", _SWITCH, True, "Write asynchronously", _OLD, not_needed=_ONE_MODE),
    StoreOption("store-force", _SWITCH, False, "Delete all data if the mode has changed", _OLD, not_needed=_ONE_MODE),
    StoreOption("journal-flush-timeout", _TEXT, "500ms", "Flush when idle for", _LINEAR, not_needed=_NO_TIMER),
    StoreOption("efp-partition", _NUMBER, 1, "Partition of the file pool", _LINEAR, not_needed=_NO_POOL),
    StoreOption("efp-file-size", _NUMBER, 2048, "Size of the pool's files in KiB", _LINEAR, not_needed=_NO_POOL),
    StoreOption("overwrite-before-return", _SWITCH, False, "Overwrite freed files", _LINEAR, not_needed=_NO_POOL),
)
"""All options, in the order in which help shows them."""

START: Final = Geometry.from_pages(4, 8)
"""The size with which a journal begins that may grow, and for which nothing sets a size: 2 MiB instead of 12.6 MB."""


@dataclass(frozen=True, slots=True)
class StoreParameters:
    """The values of the options, all of them legal if parsed by `parse_parameters`.

    Each attribute has the name of its option. `store_dir` is None if not given. The number of pages in a write cache
    defaults to twice qpidd's for the page size; in that of the prepared list to qpidd's. `starts_small`: nothing sets
    the size of a queue's journal.
    """

    store_dir: str | None = None
    num_jfiles: int = DEFAULT_FILES
    jfile_size_pgs: int = 24
    wcache_page_size: int = 32
    wcache_num_pages: int = _OWN_TIMES * _PAGES_BY_SIZE[32]
    tpl_num_jfiles: int = DEFAULT_FILES
    tpl_jfile_size_pgs: int = 24
    tpl_wcache_page_size: int = 4
    tpl_wcache_num_pages: int = _PAGES_BY_SIZE[4]
    auto_expand: bool = True
    auto_expand_max_jfiles: int = 0
    max_journal_size: int = 0
    disk_free_limit: int = 5
    truncate: bool = False
    on_damage: OnDamage = OnDamage.QUARANTINE
    sync: str = AUTO
    flush_alignment: int = 512
    mst_log: bool = False
    starts_small: bool = field(default=False, compare=False)

    @property
    def geometry(self) -> Geometry:
        """The size of a queue's journal whose declaration does not set one."""
        return START if self.starts_small else Geometry.from_pages(self.num_jfiles, self.jfile_size_pgs)

    @property
    def tpl_geometry(self) -> Geometry:
        """The size of the prepared list's journal."""
        return Geometry.from_pages(self.tpl_num_jfiles, self.tpl_jfile_size_pgs)

    @property
    def page_bytes(self) -> int:
        """Bytes in a page of a journal's write cache."""
        return self.wcache_page_size * _KIB

    @property
    def tpl_page_bytes(self) -> int:
        """Bytes in a page of the prepared list's write cache."""
        return self.tpl_wcache_page_size * _KIB

    @property
    def write_cache_bytes(self) -> int:
        """Maximum unsynced bytes of a journal."""
        return self.page_bytes * self.wcache_num_pages

    @property
    def tpl_write_cache_bytes(self) -> int:
        """Maximum unsynced bytes of the prepared list's journal."""
        return self.tpl_page_bytes * self.tpl_wcache_num_pages


# ---- corrections ----
class Correction(NamedTuple):
    """A legal number, and the warnings about its correction.

    Attributes:
        value: the number to use.
        warnings: for the log; empty if the given number was legal.
    """

    value: int
    warnings: tuple[LogLine, ...]


def nearest(value: int, legal: Sequence[int]) -> int:
    """The number in `legal`, which is sorted, that is nearest to `value`; of two the smaller."""
    above = bisect_left(legal, value)
    if above == len(legal):
        return legal[-1]
    if above == 0 or legal[above] - value < value - legal[above - 1]:
        return legal[above]
    return legal[above - 1]


def correct_number(option: StoreOption, value: int) -> Correction:
    """The legal value of a number option that is nearest to `value`."""
    corrected = nearest(value, option.legal)
    if corrected == value:
        return Correction(value, ())
    if value < option.legal[0]:
        warning = below_minimum(option.name, value, corrected)
    elif value > option.legal[-1]:
        warning = above_maximum(option.name, value, corrected)
    else:
        warning = not_legal(option.name, value, option.rule, corrected)
    return Correction(corrected, (warning,))


def correct_page(name: str, page: int, file_pages: int) -> Correction:
    """The legal page size nearest to `page` that divides a file evenly.

    Args:
        name: the option that sets the page size.
        page: KiB, legal.
        file_pages: size of a file in pages of 64 KiB.
    """
    file = file_pages * PAGE_SIZE // _KIB
    corrected = nearest(page, [one for one in _PAGE_SIZES if file % one == 0])
    if corrected == page:
        return Correction(page, ())
    rule = f"a divisor of the journal file size of {file} KiB"
    return Correction(corrected, (not_legal(name, page, rule, corrected),))


def correct_file(name: str, file_pages: int, page: int) -> Correction:
    """The legal file size nearest to `file_pages` that holds a whole number of pages of the write cache.

    Args:
        name: the argument that sets the file size.
        file_pages: size of a file in pages of 64 KiB, legal.
        page: KiB of a page of the write cache.
    """
    step = max(1, page * _KIB // PAGE_SIZE)
    corrected = nearest(file_pages, range(step, MAX_PAGES + 1, step))
    if corrected == file_pages:
        return Correction(file_pages, ())
    rule = f"a multiple of the write cache's page size of {page} KiB"
    return Correction(corrected, (not_legal(name, file_pages, rule, corrected),))


# ---- from options to parameters ----
def parse_parameters(options: Mapping[str, object]) -> tuple[StoreParameters, tuple[LogLine, ...]]:
    """The store's parameters, and the lines to log about them.

    Args:
        options: the options given, by name or alias without dashes; a value is a text or its parsed form.

    Raises:
        ParameterError: a value is invalid, or an option is unknown or given under both of its names.
    """
    given = _by_name(options)
    values: dict[str, Any] = {}
    lines: list[LogLine] = []
    for option in OPTIONS:
        if option.name not in given:
            continue
        if option.not_needed:
            lines.append(not_needed(option.name, option.not_needed))
            continue
        values[option.field], warnings = _read(option, given[option.name])
        lines.extend(warnings)
    known = StoreParameters(**values)
    page = correct_page("wcache-page-size", known.wcache_page_size, known.jfile_size_pgs)
    tpl_page = correct_page("tpl-wcache-page-size", known.tpl_wcache_page_size, known.tpl_jfile_size_pgs)
    values |= {"wcache_page_size": page.value, "tpl_wcache_page_size": tpl_page.value}
    values["starts_small"] = known.auto_expand and values.keys().isdisjoint(("num_jfiles", "jfile_size_pgs"))
    values.setdefault("wcache_num_pages", min(_OWN_TIMES * _PAGES_BY_SIZE[page.value], _PAGES[-1]))
    values.setdefault("tpl_wcache_num_pages", _PAGES_BY_SIZE[tpl_page.value])
    if not known.auto_expand:
        of_growth = (option for option in (_MAX_FILES, _MAX_SIZE) if values.get(option.field))
        lines += [
            no_effect(each.name, f"journals do not grow, but for {GROWTH_ARGUMENTS[0].name}") for each in of_growth
        ]
    return StoreParameters(**values), (*lines, *page.warnings, *tpl_page.warnings)


def store_directory(parameters: StoreParameters, data_directory: str | None) -> str:
    """The directory of the store: the option's, or else the broker's data directory.

    Raises:
        ParameterError: neither is given.
    """
    directory = parameters.store_dir or data_directory
    if not directory:
        raise ParameterError("no directory for the store: set store-dir, or remove no-data-dir")
    return directory


def _by_name(options: Mapping[str, object]) -> dict[str, object]:
    """Replace aliases by the names of their options."""
    known = {name: option for option in OPTIONS for name in (option.name, option.alias) if name}
    given: dict[str, object] = {}
    for name, value in options.items():
        option = known.get(name)
        if option is None:
            raise ParameterError(f"option {shown(name)} is unknown to the store: see --help for the known options")
        if option.name in given:
            raise ParameterError(f"option {option.name} is given twice, also as {option.alias}: give it once")
        given[option.name] = value
    return given


# ---- values from text ----
def _read(option: StoreOption, value: object) -> tuple[object, tuple[LogLine, ...]]:
    """The parsed value, corrected, and the warnings."""
    match option.kind:
        case Kind.NUMBER:
            return correct_number(option, read_number("option", option, value))
        case Kind.SWITCH:
            return read_switch("option", option, value), ()
        case Kind.CHOICE:
            return _choice(option, value), ()
        case Kind.TEXT:
            return _text(option, value), ()


def read_number(what: str, option: StoreOption, value: object) -> int:
    """A whole number, not corrected yet. Raises ParameterError, whose text begins with `what`."""
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and -_MAX_NUMBER < value < _MAX_NUMBER:
        return int(value)
    raise ParameterError(
        f"{what} {option.name}: {shown(value)} is not a whole number: give one from {option.minimum} to "
        f"{option.maximum}"
    )


def read_switch(what: str, option: StoreOption, value: object) -> bool:
    """Yes or no. Raises ParameterError, whose text begins with `what`."""
    word = str(int(value)) if isinstance(value, int) and -1 < value < _MAX_NUMBER else value
    if isinstance(word, str) and word.strip().lower() in _TRUTH:
        return _TRUTH[word.strip().lower()]
    raise ParameterError(f"{what} {option.name}: {shown(value)} is neither yes nor no")


def _choice(option: StoreOption, value: object) -> str:
    if isinstance(value, str):
        for word in option.words:
            if value.strip().lower() == word:
                return word
    raise ParameterError(f"option {option.name}: {shown(value)} is not one of {', '.join(option.words)}")


def _text(option: StoreOption, value: object) -> str:
    if isinstance(value, str) and value and "\0" not in value:
        return value
    raise ParameterError(f"option {option.name}: {shown(value)} is not valid: give text without NUL characters")


def shown(value: object) -> str:
    """An invalid value as an error shows it: on one line and shortened. A hostile client may have sent it."""
    if isinstance(value, str):
        return f'"{printable(value[:_SHOWN])}{"…" if len(value) > _SHOWN else ""}"'
    if isinstance(value, bool):
        return f'"{str(value).lower()}"'
    if isinstance(value, int):
        return "a number with too many digits" if not -_MAX_NUMBER < value < _MAX_NUMBER else str(value)
    return f"a value of type {type(value).__name__}"


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
"""The arguments that limit its growth; likewise."""

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
    may_grow = _may_grow(arguments, parameters)
    told = []
    in_files = (files.value, (size.value << 20) // geometry.file_size)
    for option, given, limit in zip((max_files, max_size), (files.value, size.value), in_files, strict=True):
        if not given or option.name not in arguments:
            continue
        if may_grow and limit < geometry.files:
            told.append(no_effect(option.name, f"the journal begins with {geometry.files} files"))
        elif not may_grow:
            told.append(no_effect(option.name, "the journal does not grow, since auto-expand is no"))
    return max(min(limits), geometry.files) if may_grow else 0, (*files.warnings, *size.warnings, *told)


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
