from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import time
from itertools import product
from pathlib import Path

import pytest

from qstore.formats.bdb import Lsn
from qstore.store.catalogue import berkeley
from qstore.store.catalogue.berkeley import BerkeleyEnvironment, find_recovery_program, read_environment
from qstore.store.disk import OsDisk
from tests.formats.bdb_files import Log, one_leaf
from tests.support.fixtures import LEGACY_STORES, StoreFixture, StoreOpener, needs_recovery
from tests.support.profiles import today

CLEAN = ("legacy-a-clean", "legacy-e-wrap-clean")
NEVER_CHANGED = Lsn(0, 1)
QUEUE = (bytes([2, 0, 0, 0, 0, 0, 0, 0]), b"\2q1")


def read(directory: Path) -> BerkeleyEnvironment:
    return read_environment(OsDisk(), str(directory))


def names(rows: tuple[tuple[bytes, bytes], ...]) -> set[str]:
    """Queues' and exchanges' values begin with their name, preceded by its length."""
    return {value[1 : 1 + value[0]].decode() for _, value in rows}


def no_recovery_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(berkeley, "find_recovery_program", lambda: None)


def fake_recovery(path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(berkeley, "find_recovery_program", lambda: str(path))


def state(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        path.name: (path.stat().st_mtime_ns, path.stat().st_mode, path.read_bytes()) for path in directory.iterdir()
    }


# ---- the real qpidd's environments ----


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_environment_is_read_without_recovery(
    name: str, open_fixture: StoreOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_recovery_program(monkeypatch)
    fixture = open_fixture(name)
    environment = read(fixture.path / "rhm/dat")
    assert (environment.recovered, environment.notices, environment.damage) == (False, (), ())
    assert names(environment.queues) == {queue["name"] for queue in fixture.recovered["queues"]}
    wanted = {exchange["name"] for exchange in fixture.recovered["exchanges"]}
    assert wanted <= names(environment.exchanges)
    assert len(names(environment.exchanges) - wanted) in (0, 4)  # the four that every broker has
    assert len(environment.bindings) == len(fixture.recovered["bindings"])


@needs_recovery
def test_every_environment_has_its_queues(legacy_store: StoreFixture) -> None:
    directory = legacy_store.path / "rhm/dat"
    before = state(directory)
    environment = read(directory)
    assert names(environment.queues) == {queue["name"] for queue in legacy_store.recovered["queues"]}
    assert environment.recovered == (legacy_store.name not in CLEAN)
    assert (environment.notices, environment.damage) == ((), ())
    assert state(directory) == before


@needs_recovery
@pytest.mark.parametrize("name", [name for name in LEGACY_STORES if name not in CLEAN])
def test_a_recovered_environment_is_clean(name: str, open_fixture: StoreOpener, tmp_path: Path) -> None:
    copy = copied(open_fixture(name), tmp_path)
    environment = read(copy)
    program = find_recovery_program()
    assert program is not None
    subprocess.run([program, "-h", str(copy)], check=True)
    again = read(copy)
    assert not again.recovered
    assert (again.queues, again.exchanges, again.bindings) == (
        environment.queues,
        environment.exchanges,
        environment.bindings,
    )


def test_missing_recovery_program_gives_one_notice(open_fixture: StoreOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    no_recovery_program(monkeypatch)
    environment = read(open_fixture("legacy-b-crash1").path / "rhm/dat")
    assert not environment.recovered
    assert not environment.complete
    assert environment.damage == ()
    (notice,) = environment.notices
    assert "install Debian's db5.3-util" in notice
    assert "may be missing" in notice
    assert "\n" not in notice


@needs_recovery
def test_a_read_only_environment_is_read(open_fixture: StoreOpener, tmp_path: Path) -> None:
    copy = copied(open_fixture("legacy-b-crash1"), tmp_path)
    for path in copy.iterdir():
        path.chmod(0o400)
    copy.chmod(0o500)
    assert read(copy).recovered
    copy.chmod(0o700)


@needs_recovery
def test_interior_damage_of_the_log_is_reported(open_fixture: StoreOpener, tmp_path: Path) -> None:
    copy = copied(open_fixture("legacy-b-crash1"), tmp_path)
    log = bytearray((copy / "log.0000000001").read_bytes())
    log[53160] ^= 0x10  # inside the record at 53152, the first of the second queue's two
    (copy / "log.0000000001").write_bytes(log)
    environment = read(copy)
    assert environment.recovered
    assert names(environment.queues) == {"b.q1"}
    (damage,) = environment.damage
    assert (damage.file, damage.offset) == (str(copy / "log.0000000001"), 53152)


@needs_recovery
def test_damaged_log_does_not_remove_entries_of_the_files(open_fixture: StoreOpener, tmp_path: Path) -> None:
    copy = copied(open_fixture("legacy-a-clean"), tmp_path)
    log = bytearray((copy / "log.0000000001").read_bytes())
    log[9000] ^= 1  # in the transaction that created the databases: recovery removes them
    (copy / "log.0000000001").write_bytes(log)
    environment = read(copy)
    assert not environment.recovered
    assert len(environment.queues) == 10
    assert len(environment.damage) == 1
    assert "were read unrecovered" in environment.notices[0]


DATABASES = ("queues.db", "exchanges.db", "bindings.db", "general.db", "config.db", "mappings.db")
SPOILS = {
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "metadata": lambda content: bytes(4096) + content[4096:],
    "page": lambda content: content[:4096] + bytes(4096) + content[8192:],
    "short": lambda content: content[: 4096 + 99],
    "garbage": lambda content: random.Random(1).randbytes(len(content)),
}


@needs_recovery
@pytest.mark.parametrize(
    ("store", "name", "spoil"),
    today([*product(["legacy-a-clean", "legacy-b-crash1", "linear-d-dtx"], DATABASES, SPOILS)], 27),
)
def test_a_broken_file_is_damage_and_costs_nothing_that_the_log_has(
    store: str, name: str, spoil: str, open_fixture: StoreOpener, tmp_path: Path
) -> None:
    copy = copied(open_fixture(store), tmp_path)
    sound = read(copy)
    (copy / name).write_bytes(SPOILS[spoil]((copy / name).read_bytes()))
    environment = read(copy)
    for table in berkeley.TABLES:
        assert getattr(environment, table) == getattr(sound, table)
    assert environment.damage or (spoil == "page" and sound.recovered), (
        "a crash may leave a page that was never written"
    )
    assert all(damage.is_healed for damage in environment.damage)
    assert {Path(damage.file).name for damage in environment.damage} <= {name, "dat"}
    assert environment.complete


@needs_recovery
@pytest.mark.parametrize("name", DATABASES)
def test_a_file_of_another_store_is_seen(name: str, open_fixture: StoreOpener, tmp_path: Path) -> None:
    copy = copied(open_fixture("legacy-a-clean"), tmp_path)
    sound = read(copy)
    shutil.copyfile(open_fixture("legacy-e-wrap-clean").path / "rhm/dat" / name, copy / name)
    environment = read(copy)
    assert {damage.file for damage in environment.damage} == {str(copy / name)}
    assert "another store" in environment.damage[0].what
    assert all(getattr(environment, table) == getattr(sound, table) for table in berkeley.TABLES)


@needs_recovery
def test_an_older_file_of_the_same_store_is_seen(open_fixture: StoreOpener, tmp_path: Path) -> None:
    copy = copied(open_fixture("legacy-b-crash1"), tmp_path)
    older = (copy / "queues.db").read_bytes()
    program = find_recovery_program()
    assert program is not None
    subprocess.run([program, "-h", str(copy)], check=True)  # which ends with a checkpoint
    sound = read(copy)
    assert (sound.recovered, sound.damage) == (False, ())
    (copy / "queues.db").write_bytes(older)
    environment = read(copy)
    assert environment.queues == sound.queues
    assert [(Path(damage.file).name, damage.is_healed) for damage in environment.damage] == [("queues.db", True)] * len(
        environment.damage
    )
    assert "the file is older" in environment.damage[-1].what


@needs_recovery
def test_broken_file_with_a_cut_log_loses_only_its_own_entries(
    open_fixture: StoreOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copied(open_fixture("legacy-b-crash1"), tmp_path)
    sound = read(copy)
    monkeypatch.setattr(berkeley._Recovering, "_made_anew", lambda self, wrong: None)
    (copy / "config.db").write_bytes(b"")
    environment = read(copy)
    assert (environment.queues, environment.bindings) == (sound.queues, sound.bindings)
    assert [(damage.file, damage.is_healed) for damage in environment.damage] == [(str(copy / "config.db"), False)]
    (copy / "queues.db").write_bytes(b"")
    assert {Path(damage.file).name for damage in read(copy).damage} == {"config.db", "queues.db"}


def test_a_broken_file_is_damage_where_the_program_is_missing(
    open_fixture: StoreOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_recovery_program(monkeypatch)
    copy = copied(open_fixture("legacy-a-clean"), tmp_path)
    sound = read(copy)
    (copy / "config.db").write_bytes(b"")
    environment = read(copy)
    assert environment.queues == sound.queues, "what can be read is"
    assert [(damage.file, damage.is_healed) for damage in environment.damage] == [(str(copy / "config.db"), False)]
    assert not environment.complete
    assert "install Debian's db5.3-util" in environment.notices[0]


def copied(fixture: StoreFixture, tmp_path: Path) -> Path:
    """Databases and log, without the region files."""
    copy = tmp_path / "dat"
    copy.mkdir()
    for path in (fixture.path / ("qls/dat2" if fixture.name.startswith("linear") else "rhm/dat")).iterdir():
        if not path.name.startswith("__db."):
            shutil.copyfile(path, copy / path.name)
    return copy


# ---- environments made by hand ----


def make(directory: Path, log: Log | None, page_lsn: Lsn = NEVER_CHANGED) -> Path:
    directory.mkdir()
    for table in berkeley.TABLES:
        pairs = [QUEUE] if table == "queues" else []
        lsn = page_lsn if table == "queues" else NEVER_CHANGED
        (directory / f"{table}.db").write_bytes(one_leaf(pairs, lsn))
    if log is not None:
        (directory / "log.0000000001").write_bytes(log.build())
    return directory


def logged_change(name: str = "queues.db") -> tuple[Log, Lsn]:
    log = Log()
    log.register(0, name)
    offset = log.addrem(7, 0, 1)
    log.commit(7)
    return log, Lsn(1, offset)


def test_files_without_a_log_are_read_as_they_are(tmp_path: Path) -> None:
    environment = read(make(tmp_path / "dat", None))
    assert environment == BerkeleyEnvironment(
        (QUEUE,), (), (), (), recovered=False, complete=True, notices=(), damage=()
    )


def test_a_log_that_is_in_the_files_asks_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_recovery_program(monkeypatch)
    log, lsn = logged_change()
    assert read(make(tmp_path / "dat", log, lsn)).notices == ()
    assert "page 1 is older than the log" in read(make(tmp_path / "other", log)).notices[0]


def test_recovery_runs_on_a_private_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = logged_change()
    directory = make(tmp_path / "dat", log)
    (tmp_path / "recovered.db").write_bytes(one_leaf([QUEUE, QUEUE]))
    seen = tmp_path / "seen"
    fake_recovery(
        tmp_path / "recover",
        f'test "$1" = -h || exit 9; ls -ld "$2" > {seen}; ls "$2" >> {seen}; echo "$2" >> {seen}; '
        f'cp {tmp_path}/recovered.db "$2/queues.db"',
        monkeypatch,
    )
    before = state(directory)
    environment = read(directory)
    assert environment.recovered
    assert environment.queues == (QUEUE, QUEUE)
    mode, *listed, copy = seen.read_text().splitlines()
    assert mode.startswith("drwx------")
    assert {"queues.db", "log.0000000001"} <= set(listed)
    assert not Path(copy).exists()
    assert state(directory) == before


def test_a_failed_recovery_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = logged_change()
    fake_recovery(tmp_path / "recover", "echo 'BDB2527 Invalid log file' >&2; echo more >&2; exit 1", monkeypatch)
    environment = read(make(tmp_path / "dat", log))
    assert not environment.recovered
    assert environment.queues == (QUEUE,)
    (notice,) = environment.notices
    assert "failed: BDB2527 Invalid log file" in notice
    assert "\n" not in notice
    (damage,) = environment.damage  # other than where the program is missing
    assert "failed: BDB2527 Invalid log file" in damage.what
    assert not damage.is_healed


def test_a_recovery_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = logged_change()
    fake_recovery(tmp_path / "recover", "exec sleep 60", monkeypatch)
    started = time.monotonic()
    environment = read_environment(OsDisk(), str(make(tmp_path / "dat", log)), recovery_timeout=0.2)
    assert time.monotonic() - started < 60
    assert "did not end within 0.2 seconds" in environment.notices[0]


@pytest.mark.parametrize("name", ["/etc/queues.db", "../queues.db"])
def test_a_log_that_names_files_elsewhere_is_not_recovered(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    fake_recovery(tmp_path / "recover", f"touch {ran}", monkeypatch)
    log, _ = logged_change(name)
    environment = read(make(tmp_path / "dat", log))
    assert "outside of its directory" in environment.notices[0]
    assert not ran.exists()


def test_a_torn_log_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_recovery_program(monkeypatch)
    log, lsn = logged_change()
    last = log.last
    directory = make(tmp_path / "dat", log, lsn)
    (directory / "log.0000000001").write_bytes(bytes(log.data[:-20]) + bytes(100))
    notices = read(directory).notices
    assert f"breaks off at offset {last}" in notices[0]
    assert "install" in notices[1]


def test_damaged_and_missing_databases(tmp_path: Path) -> None:
    directory = make(tmp_path / "dat", None)
    data = bytearray((directory / "queues.db").read_bytes())
    data[4096 + 24] = 3
    (directory / "queues.db").write_bytes(data)
    (directory / "exchanges.db").unlink()
    (directory / "bindings.db").write_bytes(b"")
    (directory / "general.db").unlink()
    os.mkfifo(directory / "general.db")
    environment = read(directory)
    assert environment.queues == (QUEUE,)
    assert {Path(damage.file).name for damage in environment.damage} == {f"{table}.db" for table in berkeley.TABLES}
    assert stat.S_ISFIFO((directory / "general.db").stat().st_mode)


def test_files_that_are_too_large_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make(tmp_path / "dat", None)
    monkeypatch.setattr(berkeley, "MAX_DATABASE", 8191)
    environment = read(directory)
    assert len(environment.damage) == 4
    assert "8,192 bytes exceed the maximum of 8,191" in environment.damage[0].what


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")


def test_db_recover_counts_where_it_is_of_version_5_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_recovery_program() is None
    program = tmp_path / "db_recover"
    for version, found in (("Berkeley DB 5.3.28: (September  9, 2013)", True), ("Berkeley DB 18.1.32:", False)):
        program.write_text(f"#!/bin/sh\necho '{version}'\n")
        program.chmod(0o755)
        assert (find_recovery_program() == str(program)) == found
