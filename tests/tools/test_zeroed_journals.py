"""Journals that lost everything or went back in time: every reader and the broker report it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.rhm import store_file
from qstore.formats.rhm.file_header import FILE_HEADER_SIZE
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreDamagedError
from qstore.store.key_value import RocksKeyValue
from qstore.store.log_lines import Level
from qstore.store.parameters import OnDamage
from qstore.tools.qstore_check import command as check
from qstore.tools.qstore_dump import command as dump
from qstore.tools.qstore_recover import command as recover
from qstore.tools.qstore_resize import command as resize
from tests.support.opened_store import PARAMETERS, Calls, OpenedStore, enqueued
from tests.support.profiles import today

MESSAGE: Final = encode_message(b"x" * 3000)
ORDERS, PREPARED = "rhm/jrnl/1", "rhm/tpl"


def fill(opened: OpenedStore, count: int) -> None:
    """Messages for both queues, and a transaction of both that stays in doubt."""
    orders, bills = opened.journal("orders"), opened.journal("bills")
    for _ in range(count):
        opened.enqueue(orders, MESSAGE)
        opened.enqueue(bills, MESSAGE)
    opened.flush(orders, bills)


def prepare(opened: OpenedStore, xid: bytes) -> None:
    """A distributed transaction that stays in doubt."""
    calls = Calls()
    journals = (opened.journal("orders"), opened.journal("bills"))
    opened.store.transactions.prepare(xid, [enqueued(journal, MESSAGE) for journal in journals], [], calls)
    opened.wait(calls)


@pytest.fixture(params=["clean", "killed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store with messages, closed cleanly or copied as a kill leaves it; `earlier` beside it has it as it was."""
    path = tmp_path / "store"
    opened = OpenedStore(tool_environment(), path)
    opened.make_queue("orders")
    opened.make_queue("bills")
    opened.make_queue("empty")
    fill(opened, 5)
    assert opened.store.close()
    shutil.copytree(path, tmp_path / "earlier")
    for number in range(2):
        opened = OpenedStore(tool_environment(), path)
        fill(opened, 10)
        prepare(opened, b"branch %d" % number)
        if number == 0 or request.param == "clean":
            assert opened.store.close()
    if request.param == "clean":
        return path
    shutil.copytree(path, tmp_path / "killed")
    opened.store.close()
    return tmp_path / "killed"


def is_clean(path: Path) -> bool:
    return store_file.decode((path / "rhm/STORE").read_bytes()).clean_close


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def zero_written(path: Path, journal: str) -> None:
    """All files that a flush has entered."""
    for file in (path / journal).glob("*.jdat"):
        if file.read_bytes()[:64].strip(b"\0"):
            zero(file)


def zero_newest(path: Path, journal: str) -> None:
    """The last file that a flush has entered."""
    zero(max(file for file in (path / journal).glob("*.jdat") if file.read_bytes()[:64].strip(b"\0")))


def zero_content(path: Path, journal: str) -> None:
    """Everything but the files' header sectors."""
    for file in (path / journal).glob("*.jdat"):
        content = file.read_bytes()
        file.write_bytes(content[:FILE_HEADER_SIZE] + bytes(len(content) - FILE_HEADER_SIZE))


def put_back(path: Path, journal: str) -> None:
    """An older copy of the journal."""
    shutil.rmtree(path / journal)
    shutil.copytree(path.parent / "earlier" / journal, path / journal)


def run(command: object, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, list(arguments), catch_exceptions=False)  # type: ignore[arg-type]
    return result.exit_code, result.output


def assert_seen(path: Path) -> None:
    """Every reader reports it, and the broker refuses it or reports what is lost."""
    for options in ((), ("--paranoid",)):
        code, output = run(check, str(path), *options)
        assert code == 1, output
    assert run(dump, str(path), "--outstanding")[0] == 1
    code, output = run(recover, str(path), str(path.parent / "saved"), "--dry-run")
    assert code == 1, output
    assert "nothing was lost" not in output
    before = sorted((path / "rhm/jrnl").iterdir())
    refused = PARAMETERS.__class__(on_damage=OnDamage.REFUSE, tpl_num_jfiles=4, tpl_jfile_size_pgs=1)
    with pytest.raises(StoreDamagedError):
        OpenedStore(tool_environment(), path, refused)
    assert sorted((path / "rhm/jrnl").iterdir()) == before
    opened = OpenedStore(tool_environment(), path)
    assert [line for line in opened.lines if line.level is Level.CRITICAL]
    assert opened.store.close()
    code, output = run(check, str(path))
    assert code == 0, output


def test_sound_store_shows_no_damage(store: Path) -> None:
    """Readers find no damage in sound journals."""
    for options in ((), ("--paranoid",)):
        code, output = run(check, str(store), *options)
        assert code == 0, output
    assert run(dump, str(store), "--outstanding")[0] == 0
    assert run(recover, str(store), str(store.parent / "saved"), "--dry-run")[0] == 0
    opened = OpenedStore(tool_environment(), store)
    assert not [line for line in opened.lines if line.level is Level.CRITICAL]
    opened.store.close()


HARMS = [*product([ORDERS, PREPARED, "rhm/jrnl/3"], [zero_written, zero_newest, put_back])]


@pytest.mark.parametrize(("journal", "harm"), today(HARMS, 5))
def test_changed_journal_is_reported_as_damage(store: Path, journal: str, harm: Callable[[Path, str], None]) -> None:
    if journal == "rhm/jrnl/3":
        for file in (store / journal).glob("*.jdat"):
            zero(file)
    else:
        harm(store, journal)
    assert run(dump, str(store))[0] == 1
    assert_seen(store)


@pytest.mark.parametrize("journal", [ORDERS, PREPARED])
def test_a_journal_with_only_headers_left(store: Path, journal: str) -> None:
    zero_content(store, journal)
    assert run(dump, str(store))[0] == 1
    assert_seen(store)


def test_only_the_headers_of_a_journal_that_was_never_closed(tmp_path: Path) -> None:
    """No record of a close shows it; but the files' headers name flushes of which there is nothing."""
    opened = OpenedStore(tool_environment(), tmp_path / "store")
    for name in ("orders", "bills"):
        opened.make_queue(name)
    for _ in range(3):
        fill(opened, 10)
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    opened.store.close()
    assert run(check, str(tmp_path / "killed"))[0] == 0
    zero_content(tmp_path / "killed", ORDERS)
    assert_seen(tmp_path / "killed")


def test_a_prepared_list_that_is_gone(store: Path) -> None:
    shutil.rmtree(store / PREPARED)
    assert_seen(store)


@pytest.mark.parametrize("how", ["gone", "zeroed", "of another store", "earlier", "cut short"])
def test_the_record_of_the_close_itself(store: Path, how: str) -> None:
    record = store / "rhm/CLOSED"
    content = record.read_bytes()
    if how == "gone":
        record.unlink()
    elif how == "zeroed":
        zero(record)
    elif how == "cut short":
        record.write_bytes(content[:-1])
    elif how == "earlier":
        shutil.copy(store.parent / "earlier/rhm/CLOSED", record)
    else:
        other = OpenedStore(tool_environment(), store.parent / "other")
        other.store.close()
        shutil.copy(store.parent / "other/rhm/CLOSED", record)
    if is_clean(store) or how not in ("gone", "earlier"):
        assert_seen(store)
    else:
        assert run(check, str(store))[0] == 0  # a store that was never closed has none


def test_a_store_that_was_closed_before_there_was_a_record(store: Path) -> None:
    (store / "rhm/CLOSED").unlink()
    mark = store_file.decode((store / "rhm/STORE").read_bytes())
    older = store_file.StoreFile(mark.store_id, mark.clean_close, mark.marked_at, mark.software_version)
    (store / "rhm/STORE").write_bytes(store_file.encode(older))
    test_sound_store_shows_no_damage(store)


def test_resizing_keeps_the_record(store: Path) -> None:
    """Of a resized journal, and of the prepared list, it states what they hold now."""
    geometry = ("--num-jfiles", "6", "--jfile-size-pgs", "2")
    code, output = run(resize, str(store), "orders", *geometry)
    assert code == 0, output
    code, output = run(resize, str(store), "--tpl", *geometry)
    assert code == 0, output
    test_sound_store_shows_no_damage(store)


def test_a_resized_journal_that_is_zeroed(store: Path) -> None:
    code, output = run(resize, str(store), "orders", "--num-jfiles", "6", "--jfile-size-pgs", "2")
    assert code == 0, output
    (resized,) = [path for path in (store / "rhm/jrnl").iterdir() if path.name not in ("2", "3")]
    zero_written(store, str(resized.relative_to(store)))
    code, output = run(resize, str(store), "orders", "--num-jfiles", "4", "--jfile-size-pgs", "4")
    assert code != 0, output
    assert_seen(store)


def test_a_queue_that_the_catalogue_has_lost(tmp_path: Path) -> None:
    """The record of the close knows it, even if its journal is gone too."""
    opened = OpenedStore(tool_environment(), tmp_path / "store")
    opened.make_queue("orders")
    opened.make_queue("bills")
    fill(opened, 5)
    assert opened.store.close()
    key_value = RocksKeyValue.open(tmp_path / "store/rhm/catalogue", create=False)
    Catalogue(key_value).delete_queue(1)
    key_value.close()
    shutil.rmtree(tmp_path / "store" / ORDERS)
    _, output = run(check, str(tmp_path / "store"))
    assert "queue 1 is missing; its journal 1 held 5 messages at the last clean close" in output
    assert_seen(tmp_path / "store")
