"""The store's options: how illegal numbers are corrected, and values that cannot be understood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.geometry import PAGE_SIZE, Geometry
from qstore.store.log_lines import Level, LogLine
from qstore.store.parameters import (
    OPTIONS,
    QUEUE_ARGUMENTS,
    START,
    Kind,
    OnDamage,
    ParameterError,
    StoreOption,
    StoreParameters,
    correct_file,
    correct_number,
    correct_page,
    nearest,
    parse_parameters,
    queue_geometry,
    store_directory,
)
from qstore.store.sync.supervision import SYNC_DRIVERS

NUMBERS = [option for option in OPTIONS if option.kind is Kind.NUMBER and not option.not_needed]
NOT_NEEDED = [option for option in OPTIONS if option.not_needed]
PAGE_SIZES = [1, 2, 4, 8, 16, 32, 64, 128]


def named(name: str) -> StoreOption:
    return next(option for option in OPTIONS if option.name == name)


def texts(lines: Sequence[LogLine]) -> list[str]:
    assert {line.level for line in lines} <= {Level.WARNING}
    return [line.text for line in lines]


def below(name: str, value: int, minimum: int) -> str:
    return (
        f"parameter {name} ({value}) is below allowable minimum ({minimum}); changing this parameter to minimum value."
    )


def above(name: str, value: int, maximum: int) -> str:
    return (
        f"parameter {name} ({value}) is above allowable maximum ({maximum}); changing this parameter to maximum value."
    )


def no_power(name: str, value: int, corrected: int) -> str:
    return f"parameter {name} ({value}) is not a power of 2; changing this parameter to {corrected}."


def no_sector(value: int, corrected: int) -> str:
    return f"parameter flush-alignment ({value}) is not 512 or 4096; changing this parameter to {corrected}."


def no_part(name: str, page: int, file: int, corrected: int) -> str:
    return (
        f"parameter {name} ({page}) is not a divisor of the journal file size of {file} KiB; "
        f"changing this parameter to {corrected}."
    )


# ---- MRG 2 Messaging User Guide, 6.3: numbers that are not legal ----


@pytest.mark.parametrize(
    ("name", "value", "corrected", "warning"),
    [
        (
            "num-jfiles",
            1,
            4,
            "parameter num-jfiles (1) is below allowable minimum (4); changing this parameter to minimum value.",
        ),
        (
            "num-jfiles",
            65,
            64,
            "parameter num-jfiles (65) is above allowable maximum (64); changing this parameter to maximum value.",
        ),
        ("num-jfiles", 3, 4, below("num-jfiles", 3, 4)),
        ("num-jfiles", -8, 4, below("num-jfiles", -8, 4)),
        ("num-jfiles", 4, 4, None),
        ("num-jfiles", 64, 64, None),
        ("jfile-size-pgs", 0, 1, below("jfile-size-pgs", 0, 1)),
        ("jfile-size-pgs", 1, 1, None),
        ("jfile-size-pgs", 32768, 32768, None),
        ("jfile-size-pgs", 32769, 32768, above("jfile-size-pgs", 32769, 32768)),
        (
            "wcache-page-size",
            3,
            2,
            "parameter wcache-page-size (3) is not a power of 2; changing this parameter to 2.",
        ),
        ("wcache-page-size", 5, 4, no_power("wcache-page-size", 5, 4)),
        ("wcache-page-size", 6, 4, no_power("wcache-page-size", 6, 4)),
        ("wcache-page-size", 7, 8, no_power("wcache-page-size", 7, 8)),
        ("wcache-page-size", 12, 8, no_power("wcache-page-size", 12, 8)),
        ("wcache-page-size", 24, 16, no_power("wcache-page-size", 24, 16)),
        ("wcache-page-size", 33, 32, no_power("wcache-page-size", 33, 32)),
        ("wcache-page-size", 48, 32, no_power("wcache-page-size", 48, 32)),
        ("wcache-page-size", 96, 64, no_power("wcache-page-size", 96, 64)),
        ("wcache-page-size", 97, 128, no_power("wcache-page-size", 97, 128)),
        ("wcache-page-size", 100, 128, no_power("wcache-page-size", 100, 128)),
        ("wcache-page-size", 129, 128, above("wcache-page-size", 129, 128)),
        ("wcache-page-size", 256, 128, above("wcache-page-size", 256, 128)),
        ("wcache-page-size", 0, 1, below("wcache-page-size", 0, 1)),
        *[("wcache-page-size", size, size, None) for size in PAGE_SIZES],
        ("wcache-num-pages", 3, 4, below("wcache-num-pages", 3, 4)),
        ("wcache-num-pages", 257, 256, above("wcache-num-pages", 257, 256)),
        ("tpl-num-jfiles", 1, 4, below("tpl-num-jfiles", 1, 4)),
        ("tpl-jfile-size-pgs", 40000, 32768, above("tpl-jfile-size-pgs", 40000, 32768)),
        ("tpl-wcache-page-size", 0, 1, below("tpl-wcache-page-size", 0, 1)),
        ("tpl-wcache-page-size", 6, 4, no_power("tpl-wcache-page-size", 6, 4)),
        ("tpl-wcache-num-pages", 0, 4, below("tpl-wcache-num-pages", 0, 4)),
        ("flush-alignment", 512, 512, None),
        ("flush-alignment", 4096, 4096, None),
        (
            "flush-alignment",
            1024,
            512,
            "parameter flush-alignment (1024) is not 512 or 4096; changing this parameter to 512.",
        ),
        ("flush-alignment", 513, 512, no_sector(513, 512)),
        ("flush-alignment", 2304, 512, no_sector(2304, 512)),
        ("flush-alignment", 2305, 4096, no_sector(2305, 4096)),
        ("flush-alignment", 0, 512, below("flush-alignment", 0, 512)),
        ("flush-alignment", 8192, 4096, above("flush-alignment", 8192, 4096)),
    ],
)
@pytest.mark.parametrize("form", [int, str], ids=["number", "text"])
def test_correction(name: str, value: int, corrected: int, warning: str | None, form: type) -> None:
    parameters, lines = parse_parameters({name: form(value)})
    assert getattr(parameters, named(name).field) == corrected
    assert texts(lines) == ([] if warning is None else [warning])


@given(st.sampled_from(NUMBERS), st.one_of(st.integers(-300, 300), st.integers(30_000, 35_000), st.integers()))
def test_a_correction_is_legal_nearest_and_final(option: StoreOption, value: int) -> None:
    corrected, warnings = correct_number(option, value)
    assert corrected in option.legal
    assert bool(warnings) == (corrected != value) == (value not in option.legal)
    assert correct_number(option, corrected) == (corrected, ())
    # Of a range only what is around the value can be nearer, and its ends.
    others = [
        *option.legal[:2],
        *option.legal[-2:],
        *(one for one in range(value - 2, value + 3) if one in option.legal),
    ]
    for other in others if len(option.legal) > 256 else option.legal:
        assert (abs(corrected - value), corrected) <= (abs(other - value), other)


@given(st.lists(st.integers(), min_size=1, max_size=20, unique=True).map(sorted), st.integers())
def test_nearest(legal: list[int], value: int) -> None:
    assert nearest(value, legal) == min(legal, key=lambda one: (abs(one - value), one))


# ---- files and pages ----


@pytest.mark.parametrize(
    ("page", "file_pages", "corrected"),
    [(128, 1, 64), (128, 2, 128), (128, 3, 64), (128, 24, 128), (128, 25, 64), (64, 1, 64), (1, 1, 1)],
)
def test_a_page_that_does_not_fit_the_file_is_made_smaller(page: int, file_pages: int, corrected: int) -> None:
    for prefix in ("", "tpl-"):
        name = f"{prefix}wcache-page-size"
        parameters, lines = parse_parameters({name: page, f"{prefix}jfile-size-pgs": file_pages})
        assert getattr(parameters, named(name).field) == corrected
        assert getattr(parameters, named(f"{prefix}jfile-size-pgs").field) == file_pages
        assert texts(lines) == ([] if corrected == page else [no_part(name, page, file_pages * 64, corrected)])


def test_corrections_follow_each_other() -> None:
    parameters, lines = parse_parameters({"jfile-size-pgs": "0", "wcache-page-size": "100"})
    assert (parameters.jfile_size_pgs, parameters.wcache_page_size, parameters.wcache_num_pages) == (1, 64, 32)
    assert texts(lines) == [
        below("jfile-size-pgs", 0, 1),
        no_power("wcache-page-size", 100, 128),
        no_part("wcache-page-size", 128, 64, 64),
    ]


@given(st.sampled_from(PAGE_SIZES), st.integers(1, 32768))
def test_pages_and_files_fit(page: int, file_pages: int) -> None:
    smaller, page_warnings = correct_page("page", page, file_pages)
    assert smaller in PAGE_SIZES
    assert file_pages * 64 % smaller == 0
    assert all(file_pages * 64 % one for one in PAGE_SIZES if smaller < one <= page)
    assert bool(page_warnings) == (smaller != page)
    assert correct_page("page", smaller, file_pages) == (smaller, ())

    size, file_warnings = correct_file("file", file_pages, page)
    assert 1 <= size <= 32768
    assert size * 64 % page == 0
    fitting = [one for one in range(max(1, file_pages - 2), min(32768, file_pages + 2) + 1) if one * 64 % page == 0]
    assert size == min(fitting, key=lambda one: (abs(one - file_pages), one))
    assert bool(file_warnings) == (size != file_pages)
    assert correct_file("file", size, page) == (size, ())


# ---- parameters ----


def test_defaults() -> None:
    parameters, lines = parse_parameters({})
    assert lines == ()
    assert parameters == StoreParameters()
    assert parameters.tpl_geometry == Geometry(8, 24 * PAGE_SIZE)
    assert parameters.tpl_geometry.capacity == 12_582_912
    assert (parameters.page_bytes, parameters.write_cache_bytes) == (32_768, 2_097_152)
    assert (parameters.tpl_page_bytes, parameters.tpl_write_cache_bytes) == (4_096, 262_144)
    assert (parameters.on_damage, parameters.sync, parameters.flush_alignment) == (OnDamage.QUARANTINE, "auto", 512)
    assert (parameters.truncate, parameters.mst_log, parameters.store_dir) == (False, False, None)


@pytest.mark.parametrize(
    ("options", "arguments", "expected"),
    [
        ({}, {}, START),
        ({}, {"qpid.auto_expand": True, "x": 1}, START),
        ({}, {"qpid.auto_expand": False}, Geometry.from_pages(8, 24)),
        ({}, {"qpid.file_count": 5}, Geometry.from_pages(5, 24)),
        ({}, {"qpid.file_size": 5}, Geometry.from_pages(8, 5)),
        ({"auto-expand": "no"}, {}, Geometry.from_pages(8, 24)),
        ({"auto-expand": "no"}, {"qpid.auto_expand": True}, Geometry.from_pages(8, 24)),
        ({"num-jfiles": 8}, {}, Geometry.from_pages(8, 24)),
        ({"jfile-size-pgs": 24}, {}, Geometry.from_pages(8, 24)),
    ],
)
def test_a_journal_that_may_grow_starts_small_unless_its_size_is_set(
    options: dict[str, object], arguments: dict[str, object], expected: Geometry
) -> None:
    parameters, _ = parse_parameters(options)
    assert queue_geometry(arguments, parameters) == (expected, ())
    assert parameters.geometry == (START if not options else Geometry.from_pages(8, 24))
    assert START.capacity == 2 << 20


def test_the_table_and_the_parameters_name_the_same() -> None:
    assert {option.field for option in OPTIONS if not option.not_needed} == {
        field.name for field in fields(StoreParameters) if field.compare
    }
    for option in OPTIONS:
        if not option.not_needed and option.default is not None:
            assert getattr(StoreParameters(), option.field) == option.default


def test_the_table_is_well_formed() -> None:
    names = [name for option in OPTIONS for name in (option.name, option.alias) if name]
    assert len(names) == len(set(names))
    for option in OPTIONS:
        assert option.help, option
        assert option.source, option
        if option.not_needed:
            continue
        assert (option.kind is Kind.NUMBER) == bool(option.legal) == bool(option.unit), option
        assert (option.kind is Kind.CHOICE) == bool(option.words), option
        if option.kind is Kind.NUMBER:
            assert (option.minimum, option.maximum) == (min(option.legal), max(option.legal))
            assert list(option.legal) == sorted(option.legal)
            assert option.default is None or option.default in option.legal
            assert bool(option.rule) == (not isinstance(option.legal, range)), option
    assert (named("truncate").minimum, named("truncate").maximum) == (None, None)


@pytest.mark.parametrize(
    ("page", "pages"), [(1, 256), (2, 128), (4, 64), (8, 64), (16, 32), (32, 32), (64, 16), (128, 8)]
)
def test_a_cache_has_twice_as_many_pages_as_qpidd_gives_it(page: int, pages: int) -> None:
    parameters, _ = parse_parameters({"wcache-page-size": page, "tpl-wcache-page-size": page})
    assert (parameters.wcache_num_pages, parameters.tpl_wcache_num_pages) == (min(2 * pages, 256), pages)
    assert parameters.write_cache_bytes == page * 1024 * min(2 * pages, 256)
    reported, _ = parse_parameters({"wcache-page-size": page, "wcache-num-pages": "5"})
    assert reported.write_cache_bytes == page * 1024 * 5


@pytest.mark.parametrize("name", ["store-dir", "store-directory"])
def test_store_directory(name: str) -> None:
    parameters, lines = parse_parameters({name: "/srv/a b"})
    assert (parameters.store_dir, lines) == ("/srv/a b", ())
    assert store_directory(parameters, "/var/lib/qpidd") == "/srv/a b"
    assert store_directory(parameters, None) == "/srv/a b"


def test_store_directory_is_the_data_directory_unless_it_is_given() -> None:
    assert store_directory(StoreParameters(), "/var/lib/qpidd") == "/var/lib/qpidd"
    for none in (None, ""):
        with pytest.raises(ParameterError, match="set store-dir"):
            store_directory(StoreParameters(), none)


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        *[(one, True) for one in ("yes", "YES", "true", "True", "1", " yes ", 1, True)],
        *[(one, False) for one in ("no", "No", "false", "FALSE", "0", "no\n", 0, False)],
    ],
)
def test_switches(value: object, meaning: bool) -> None:
    parameters, lines = parse_parameters({"truncate": value, "mst-log": value})
    assert (parameters.truncate, parameters.mst_log, lines) == (meaning, meaning, ())


def test_choices() -> None:
    for sync in SYNC_DRIVERS:
        assert parse_parameters({"sync": sync})[0].sync == sync
    parameters, _ = parse_parameters({"on-damage": "Refuse"})
    assert parameters.on_damage is OnDamage.REFUSE
    assert parse_parameters({"on-damage": OnDamage.QUARANTINE})[0].on_damage is OnDamage.QUARANTINE


@pytest.mark.parametrize("option", NOT_NEEDED, ids=lambda option: option.name)
@pytest.mark.parametrize("value", ["yes", "10ms", 16, False])
def test_options_without_use_are_accepted_with_a_notice(option: StoreOption, value: object) -> None:
    parameters, (line,) = parse_parameters({option.name: value})
    assert parameters == StoreParameters()
    assert line == (
        Level.NOTICE,
        f"option {option.name} is not needed here and has no effect: {option.not_needed}",
    )


def test_the_documents_options_are_known() -> None:
    assert {option.name for option in NOT_NEEDED} >= {"store-async", "store-force"}
    for alias, name in (("store-directory", "store-dir"), ("max-auto-expand-jfiles", "auto-expand-max-jfiles")):
        assert named(name).alias == alias
    assert parse_parameters({"max-auto-expand-jfiles": 16})[0] == StoreParameters(auto_expand_max_jfiles=16)


# ---- values that cannot be understood ----

LONG = "9" * 5000


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num-jfiles": "many"}, 'option num-jfiles: "many" is not a whole number: give one from 4 to 64'),
        ({"num-jfiles": ""}, 'option num-jfiles: "" is not a whole number: give one from 4 to 64'),
        ({"num-jfiles": "8.0"}, 'option num-jfiles: "8.0" is not a whole number: give one from 4 to 64'),
        ({"num-jfiles": "1_0"}, 'option num-jfiles: "1_0" is not a whole number: give one from 4 to 64'),
        ({"num-jfiles": "٨"}, 'option num-jfiles: "٨" is not a whole number: give one from 4 to 64'),
        ({"num-jfiles": "8\nx"}, 'option num-jfiles: "8\\nx" is not a whole number: give one from 4 to 64'),
        ({"num-jfiles": 8.0}, "option num-jfiles: a value of type float is not a whole number: give one from 4 to 64"),
        ({"num-jfiles": True}, 'option num-jfiles: "true" is not a whole number: give one from 4 to 64'),
        ({"num-jfiles": []}, "option num-jfiles: a value of type list is not a whole number: give one from 4 to 64"),
        ({"wcache-page-size": "32K"}, 'option wcache-page-size: "32K" is not a whole number: give one from 1 to 128'),
        ({"truncate": "maybe"}, 'option truncate: "maybe" is neither yes nor no'),
        ({"truncate": 2}, "option truncate: 2 is neither yes nor no"),
        ({"truncate": -1}, "option truncate: -1 is neither yes nor no"),
        ({"truncate": None}, "option truncate: a value of type NoneType is neither yes nor no"),
        ({"on-damage": "ignore"}, 'option on-damage: "ignore" is not one of quarantine, refuse'),
        ({"sync": 1}, "option sync: 1 is not one of auto, io-uring, process, thread, inline"),
        ({"store-dir": ""}, 'option store-dir: "" is not valid: give text without NUL characters'),
        ({"store-dir": "a\0b"}, 'option store-dir: "a\\x00b" is not valid: give text without NUL characters'),
        (
            {"store-dir": "a", "store-directory": "b"},
            "option store-dir is given twice, also as store-directory: give it once",
        ),
        ({"num_jfiles": 8}, 'option "num_jfiles" is unknown to the store: see --help for the known options'),
    ],
)
def test_errors(options: dict[str, object], error: str) -> None:
    with pytest.raises(ParameterError) as raised:
        parse_parameters(options)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    "value", [LONG, f"-{LONG}", 10**40, -(10**40), 10**5000], ids=["long", "negative", "41", "-41", "5001"]
)
def test_numbers_of_absurd_length(value: object) -> None:
    for name in ("num-jfiles", "truncate"):
        with pytest.raises(ParameterError) as raised:
            parse_parameters({name: value})
        assert len(str(raised.value)) < 160


def test_the_longest_number_is_corrected() -> None:
    assert parse_parameters({"num-jfiles": "9" * 40})[0].num_jfiles == 64
    assert parse_parameters({"num-jfiles": -(10**40) + 1})[0].num_jfiles == 4


ANY_VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec=None)),
    st.binary(),
    st.lists(st.integers()),
)


@given(st.dictionaries(st.sampled_from([option.name for option in OPTIONS]), ANY_VALUE))
def test_any_values_give_legal_parameters_or_one_line(options: dict[str, object]) -> None:
    try:
        parameters, lines = parse_parameters(options)
    except ParameterError as error:
        lines = (LogLine(Level.CRITICAL, str(error)),)
        parameters = StoreParameters()
    for option in NUMBERS:
        assert getattr(parameters, option.field) in option.legal
    assert parameters.geometry.data_size % parameters.page_bytes == 0
    assert parameters.tpl_geometry.data_size % parameters.tpl_page_bytes == 0
    assert all(line.text.isprintable() for line in lines)


# ---- queues ----


@pytest.mark.parametrize(
    ("arguments", "files", "pages", "warnings"),
    [
        ({}, 10, 30, []),
        ({"qpid.file_count": 12, "qpid.file_size": 20}, 12, 20, []),
        ({"qpid.file_count": "12", "qpid.file_size": " 20 "}, 12, 20, []),
        ({"qpid.file_count": 4}, 4, 30, []),
        ({"qpid.file_size": 1}, 10, 1, []),
        ({"qpid.file_count": 1}, 4, 30, [below("qpid.file_count", 1, 4)]),
        ({"qpid.file_count": 65}, 64, 30, [above("qpid.file_count", 65, 64)]),
        ({"qpid.file_size": 0}, 10, 1, [below("qpid.file_size", 0, 1)]),
        ({"qpid.file_size": 32769}, 10, 32768, [above("qpid.file_size", 32769, 32768)]),
        (
            {"qpid.file_count": -(1 << 63), "qpid.file_size": (1 << 64) - 1},
            4,
            32768,
            [below("qpid.file_count", -(1 << 63), 4), above("qpid.file_size", (1 << 64) - 1, 32768)],
        ),
        ({"qpid.max_count": "nonsense", "x": None}, 10, 30, []),
    ],
)
def test_queue_geometry(arguments: dict[str, Any], files: int, pages: int, warnings: list[str]) -> None:
    parameters, _ = parse_parameters({"num-jfiles": 10, "jfile-size-pgs": 30})
    geometry, lines = queue_geometry(arguments, parameters)
    assert geometry == Geometry.from_pages(files, pages)
    assert texts(lines) == warnings


@pytest.mark.parametrize(("asked", "got"), [(0, 2), (1, 2), (2, 2), (3, 2), (5, 4), (32767, 32766), (40000, 32768)])
def test_a_queue_whose_file_holds_no_whole_pages_is_corrected(asked: int, got: int) -> None:
    parameters, _ = parse_parameters({"wcache-page-size": 128})
    geometry, lines = queue_geometry({"qpid.file_size": asked}, parameters)
    assert geometry == Geometry.from_pages(8, got)
    legal = min(max(asked, 1), 32768)
    last = (
        f"parameter qpid.file_size ({legal}) is not a multiple of the write cache's page size of 128 KiB; "
        f"changing this parameter to {got}."
    )
    assert texts(lines)[-1:] == ([last] if legal != got else texts(lines)[-1:])
    assert len(lines) == (asked != legal) + (legal != got)


@pytest.mark.parametrize("value", ["", "many", b"8", 8.0, True, None, [8], {"a": 8}, 1e300, 10**41])
@pytest.mark.parametrize("argument", QUEUE_ARGUMENTS, ids=lambda argument: argument.name)
def test_queue_arguments_that_are_no_numbers(argument: StoreOption, value: object) -> None:
    with pytest.raises(ParameterError) as raised:
        queue_geometry({argument.name: value}, StoreParameters())
    text = str(raised.value)
    assert text.startswith(f"queue argument {argument.name}: ")
    assert text.endswith(f" is not a whole number: give one from {argument.minimum} to {argument.maximum}")
    assert text.isprintable()


@given(
    st.sampled_from(PAGE_SIZES),
    st.fixed_dictionaries({}, optional={"qpid.file_count": st.integers(), "qpid.file_size": st.integers()}),
)
def test_any_numbers_give_a_legal_queue(page: int, arguments: dict[str, int]) -> None:
    arguments = {name: value for name, value in arguments.items() if abs(value) < 10**40}
    parameters, _ = parse_parameters({"wcache-page-size": page})
    geometry, lines = queue_geometry(arguments, parameters)
    assert 4 <= geometry.files <= 64
    assert PAGE_SIZE <= geometry.data_size <= 32768 * PAGE_SIZE
    assert geometry.data_size % parameters.page_bytes == 0
    asked = (arguments.get("qpid.file_count", 8), arguments.get("qpid.file_size", 24)) if arguments else (4, 8)
    got = (geometry.files, geometry.data_size // PAGE_SIZE)
    assert bool(lines) == (asked != got)
    again = dict(zip(("qpid.file_count", "qpid.file_size"), got, strict=True))
    assert queue_geometry(again, parameters) == (geometry, ())
