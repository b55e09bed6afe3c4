"""`qstore-backup` and `qstore-restore`: every byte comes back, only new data are written, and damage is reported."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from click.testing import CliRunner, Result

from qstore.formats.values import typed_map
from qstore.store.backup.repository import (
    CHUNK_SIZE,
    DiskRepository,
    backup_names,
    check_mark,
    read_manifest,
    verify_chunks,
)
from qstore.store.disk import OsDisk, OsWritableDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError
from qstore.tools.qstore_backup import command as backup_command
from qstore.tools.qstore_check import command as check_command
from qstore.tools.qstore_restore import command as restore_command
from tests.support.dump import dump
from tests.support.fixtures import LEGACY_STORES, LINEAR_STORES, StoreFixture, StoreOpener, snapshot
from tests.support.forked import ROOT
from tests.support.opened_store import OpenedStore, message
from tests.support.profiles import today


def backup(*arguments: object) -> Result:
    return CliRunner().invoke(backup_command, [str(each) for each in arguments])


def restore(*arguments: object) -> Result:
    return CliRunner().invoke(restore_command, [str(each) for each in arguments])


def made(*arguments: object) -> dict[str, Any]:
    result = backup(*arguments, "--json")
    assert result.exit_code == 0, result.output
    line: dict[str, Any] = json.loads(result.stdout)
    return line


def refused(result: Result, text: str) -> None:
    assert result.exit_code == 2, result.output
    assert text in result.output
    assert result.output.count("\n") == 1, result.output


def bytes_of(store: Path) -> dict[str, bytes | None]:
    """All of a store's files and directories, without links."""
    return {
        str(path.relative_to(store)): None if path.is_dir() else path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.relative_to(store).parts[0] in ("rhm", "qls") and not path.is_symlink()
    }


@pytest.mark.parametrize("name", today(LEGACY_STORES + LINEAR_STORES, 3))
def test_a_round_trip_changes_no_byte(tmp_path: Path, open_fixture: StoreOpener, name: str) -> None:
    source = open_fixture(name).path
    before = snapshot(source)
    assert backup(source, tmp_path / "place", "--verify").exit_code == 0
    assert snapshot(source) == before
    result = restore(tmp_path / "place", tmp_path / "restored")
    assert result.exit_code == 0, result.output
    assert bytes_of(tmp_path / "restored") == bytes_of(source)
    links = [path for path in source.rglob("*") if path.is_symlink()]
    assert bool(links) is name.startswith("linear")
    for link in links:
        new = tmp_path / "restored" / link.relative_to(source)
        assert new.resolve(strict=True).is_relative_to(tmp_path / "restored")
        assert new.resolve().name == Path(os.readlink(link)).name
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "restored").rglob("*"))
    shown = [dump(path, "--outstanding", "--json").lines() for path in (source, tmp_path / "restored")]
    for lines in shown:
        lines[:] = [line for line in lines if line["kind"] != "damage"]
    assert shown[0] == shown[1]
    assert restore(tmp_path / "place", "--verify").exit_code == 0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A qstore store with two queues, closed cleanly."""
    opened = OpenedStore(tool_environment(), tmp_path / "store")
    for name in ("busy", "idle"):
        journal = opened.make_queue(name, arguments=typed_map({"qpid.max_count": 500}))
        for number in range(20):
            opened.enqueue(journal, message(f"{name} {number}".encode() * 100))
        opened.flush(journal)
    opened.store.close()
    return tmp_path / "store"


def enqueue(store: Path, queue: str, text: str) -> None:
    opened = OpenedStore(tool_environment(), store)
    opened.store.end_recovery()
    journal = opened.journal(queue)
    opened.enqueue(journal, message(text.encode()))
    opened.flush(journal)
    opened.store.close()


def test_incremental_backup_writes_only_new_data(tmp_path: Path, store: Path) -> None:
    place = tmp_path / "place"
    first = made(store, place)
    assert first["based_on"] is None
    again = made(store, place)
    assert (again["based_on"], again["new_bytes"]) == (first["id"], 0)
    old = bytes_of(store)
    enqueue(store, "busy", "new")
    third = made(store, place)
    assert third["based_on"] == again["id"]
    assert 0 < third["new_bytes"] < third["bytes"] // 2
    assert made(store, place, "--full")["new_bytes"] == 0
    for name, expected in ((first["id"], old), (third["id"], bytes_of(store))):
        assert restore(place, tmp_path / name, "--backup", name).exit_code == 0
        assert bytes_of(tmp_path / name) == expected
        check = CliRunner().invoke(check_command, [str(tmp_path / name), "--paranoid"])
        assert check.exit_code == 0, check.output


def test_a_journal_that_was_not_written_to_is_not_read(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flush number and the versions of its files are believed, unless everything is to be read."""
    place = tmp_path / "place"
    made(store, place)
    (data,) = (store / "rhm" / "jrnl" / "2").glob("*.0000.jdat")
    content = bytearray(data.read_bytes())
    content[5000] ^= 1
    with monkeypatch.context() as patched:  # a disk that does not tell that a file was written to
        patched.setattr(OsDisk, "version", lambda *_: "1-1")
        untold = tmp_path / "untold"
        made(store, untold)
        data.write_bytes(content)
        assert made(store, untold)["new_bytes"] == 0
        full = made(store, untold, "--full")
    again = made(store, place)
    for found in (full, again):
        assert 0 < found["new_bytes"] < found["bytes"] // 2
    for each in (place, untold):
        assert restore(each, tmp_path / f"restored {each.name}").exit_code == 0
        assert bytes_of(tmp_path / f"restored {each.name}") == bytes_of(store)


def test_some_backups_are_kept(tmp_path: Path, store: Path) -> None:
    place = tmp_path / "place"
    names = []
    for number in range(4):
        enqueue(store, "busy", f"{number}" * 3000)
        names.append(made(store, place)["id"])
    assert made(tmp_path / "store", place, "--keep", 2)["removed"] == names[:3]
    listed = restore(place, "--list", "--json")
    assert json.loads(listed.stdout.splitlines()[0])["id"] == names[3]
    assert restore(place, "--verify").exit_code == 0
    chunks = {path.name for path in place.glob("chunks/*/*")}
    assert chunks
    refused(restore(place, tmp_path / "gone", "--backup", names[0]), "no such backup; qstore-restore --list shows")


def test_backups_of_several_stores(tmp_path: Path, store: Path, local: StoreFixture) -> None:
    place = tmp_path / "place"
    made(store, place)
    made(local.path, place)
    refused(restore(place, tmp_path / "r"), "there are backups of 2 stores")
    assert restore(place, tmp_path / "r", "--store", store).exit_code == 0
    assert bytes_of(tmp_path / "r") == bytes_of(store)
    made(store, place, "--keep", 1)
    assert restore(place, tmp_path / "l", "--store", local.path).exit_code == 0


def test_a_url(tmp_path: Path, store: Path) -> None:
    pytest.importorskip("fsspec")
    url = f"memory://{tmp_path.name}/place"
    refused(restore(url, tmp_path / "r"), "there are no backups here")
    first = made(store, url)
    enqueue(store, "busy", "more")
    made(store, url, "--verify", "--keep", 1)
    assert restore(url, "--list").stdout.count("qstore") >= 1
    assert first["id"] not in restore(url, "--list").stdout
    assert restore(url, "--verify").exit_code == 0
    assert restore(url, tmp_path / "r").exit_code == 0
    assert bytes_of(tmp_path / "r") == bytes_of(store)
    refused(backup(store, "nonsense://x/y"), "nonsense://x/y: ")


# ---- what is refused ----


def test_stores_and_places_that_are_not_for_it(tmp_path: Path, store: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    refused(backup(store, tmp_path / "full"), "is not empty (file), and has no backups")
    refused(backup(store, tmp_path / "no" / "where"), "no such directory; create it first")
    refused(backup(store / "rhm" / "jrnl" / "1", tmp_path / "place"), "not a complete store")
    opened = OpenedStore(tool_environment(), store)
    refused(backup(store, tmp_path / "place"), "stop the broker first")
    opened.store.close()
    made(store, tmp_path / "place")
    refused(restore(tmp_path / "place", tmp_path / "full"), "is not empty; choose a new or empty directory")
    refused(restore(tmp_path / "place", store), "is not empty")
    (tmp_path / "r.restoring").mkdir()
    (tmp_path / "r.restoring" / "mine").touch()
    refused(restore(tmp_path / "place", tmp_path / "r"), "contains other files")
    assert (tmp_path / "r.restoring" / "mine").exists()
    mark = tmp_path / "place" / "qstore-backup.json"
    mark.write_text('{"format":"qstore-backup","version":2}')
    refused(restore(tmp_path / "place", tmp_path / "s"), "these backups are of another version")
    refused(backup(store, tmp_path / "place"), "these backups are of another version")


def rewrite(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest, with a checksum that matches."""
    (path,) = place.glob("backups/*.manifest")
    fields = json.loads(zstandard.decompress(path.read_bytes()[65:]))
    change(fields)
    content = json.dumps(fields).encode()
    path.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + zstandard.compress(content))


def set_in(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda fields: fields.__setitem__(name, value)


HOSTILE: list[Callable[[dict[str, Any]], object]] = [
    set_in("root", "../etc"),
    set_in("root", ""),
    set_in("version", 2),
    set_in("id", "other"),
    set_in("created", "now"),
    set_in("directories", ["../outside"]),
    set_in("directories", ["/etc"]),
    set_in("directories", ["a//b"]),
    set_in("directories", ["a/b"]),
    set_in("directories", [5]),
    set_in("directories", ["a", "a"]),
    set_in("files", [["../x", 0, []]]),
    set_in("files", [["x\0", 0, []]]),
    set_in("files", [["x", 5, []]]),
    set_in("files", [["x", -5, []]]),
    set_in("files", [["x", 1 << 60, []]]),
    set_in("files", [["x", 5, ["../../secret"]]]),
    set_in("files", [["x", 0, []], ["x", 0, []]]),
    set_in("files", [["x", 0, []], ["x/y", 0, []]]),
    set_in("files", "x"),
    set_in("links", [["l", "/etc/passwd"]]),
    set_in("links", [["l", "../../etc/passwd"]]),
    set_in("links", [["l", "jrnl"]]),
    set_in("journals", [[1]]),
    lambda fields: fields.pop("files"),
    lambda fields: fields.__setitem__("more", 1),
    lambda fields: (fields["links"].append(["jrnl/l", "STORE"]), fields["files"].append(["jrnl/l/x", 0, []])),
]


@pytest.mark.parametrize("change", HOSTILE, ids=map(str, range(len(HOSTILE))))
def test_hostile_manifests(tmp_path: Path, store: Path, change: Callable[[dict[str, Any]], object]) -> None:
    made(store, tmp_path / "place")
    rewrite(tmp_path / "place", change)
    before = {path for path in tmp_path.rglob("*") if "place" not in path.parts}
    refused(restore(tmp_path / "place", tmp_path / "r"), "the manifest is damaged")
    assert {path for path in tmp_path.rglob("*") if "place" not in path.parts} == before


def test_manifests_and_chunks_that_are_cut_or_changed(tmp_path: Path, store: Path) -> None:
    place = tmp_path / "place"
    made(store, place)
    (manifest,) = place.glob("backups/*.manifest")
    chunk = max(place.glob("chunks/*/*"), key=lambda path: path.stat().st_size)
    for path, text in ((manifest, "the manifest is damaged"), (chunk, "is damaged")):
        whole = path.read_bytes()
        changed = [whole[:end] for end in (0, 1, 64, 65, 66, len(whole) // 2, len(whole) - 1)]
        changed += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in (0, 64, len(whole) // 2)]
        changed += [whole + b"x", b"\x28\xb5\x2f\xfd" + b"\xff" * 60]
        for content in changed:
            path.write_bytes(content)
            result = restore(place, tmp_path / "r")
            assert result.exit_code == 2, result.output
            assert text in result.output
            assert result.output.count("\n") == 1
            assert not (tmp_path / "r").exists()
            assert restore(place, "--verify").exit_code == 1
        path.write_bytes(whole)
    chunk.rename(chunk.with_name("f" * 64))
    refused(restore(place, tmp_path / "r"), "is missing")
    chunk.with_name("f" * 64).rename(chunk)
    bomb = zstandard.compress(bytes(1 << 28))
    assert len(bomb) < CHUNK_SIZE
    whole = chunk.read_bytes()
    chunk.write_bytes(bomb)
    refused(restore(place, tmp_path / "r"), "it states an impossible size")
    chunk.write_bytes(whole)
    assert restore(place, tmp_path / "r").exit_code == 0, "goes on with what is there"
    assert bytes_of(tmp_path / "r") == bytes_of(store)


# ---- backups that are cut off or damaged ----


__all__ = ["store"]


def is_refused(path: Path, content: bytes, read: Callable[[], object], same: object = ...) -> bool:
    """Whether a file with this content is refused, in one line; or has the `same` meaning.

    Some changes of zstd's output leave what it unpacks to as it was: a match that is found elsewhere, too.
    """
    path.write_bytes(content)
    problem = ""
    try:
        if read() == same:
            return True
    except StoreError as error:
        problem = str(error)
    assert "\n" not in problem
    return bool(problem)


@pytest.mark.parametrize("part", ["the mark", "the manifest", "a chunk"])
def test_every_byte_counts(tmp_path: Path, store: Path, part: str) -> None:
    place = tmp_path / "place"
    made(store, place)
    repository = DiskRepository(OsWritableDisk(), str(place))
    (name,) = backup_names(repository)
    manifest = read_manifest(repository, name)
    path, read = {
        "the mark": (place / "qstore-backup.json", lambda: check_mark(repository)),
        "the manifest": (next(place.glob("backups/*.manifest")), lambda: read_manifest(repository, name)),
        "a chunk": (
            min(place.glob("chunks/*/*"), key=lambda chunk: chunk.stat().st_size),
            lambda: verify_chunks(repository, manifest, lambda _: None),
        ),
    }[part]
    whole = path.read_bytes().removesuffix(b"}\n") + b"}" if part == "the mark" else path.read_bytes()
    assert not is_refused(path, whole, read)
    assert [end for end in range(len(whole)) if not is_refused(path, whole[:end], read)] == []
    changed = [whole[:at] + bytes([whole[at] ^ 0x11]) + whole[at + 1 :] for at in range(len(whole))]
    assert [at for at, content in enumerate(changed) if not is_refused(path, content, read, manifest)] == []
    assert is_refused(path, whole + b"x", read)


# ---- an S3-compatible server (moto, on loopback) ----


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a server of its own."""
    # Here, and not when tests are collected: the packages take most of a second to import.
    pytest.importorskip("s3fs", reason="backups to S3 need s3fs: pip install -e '.[dev]'")
    pytest.importorskip("moto.server", reason="the S3 server of these tests is moto: pip install -e '.[dev]'")
    from boto3 import client
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    for name, value in (
        ("AWS_ENDPOINT_URL", endpoint), ("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_DEFAULT_REGION", "us-east-1"), ("AWS_EC2_METADATA_DISABLED", "true"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    client("s3", endpoint_url=endpoint).create_bucket(Bucket="bucket")
    yield "s3://bucket/backups"
    server.stop()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_store_at_s3(tmp_path: Path, store: Path, url: str) -> None:
    before = bytes_of(store)
    code = (
        "import sys, time, qstore.tools.backup_places as remote\n"
        "put, count = remote.RemoteRepository.put, []\n"
        "def stall(self, name, content):\n"
        "    put(self, name, content)\n"
        "    count.append(name)\n"
        "    if len(count) == 5:\n"
        "        print('stalled', flush=True)\n"
        "        time.sleep(600)\n"
        "remote.RemoteRepository.put = stall\n"
        "from qstore.tools.qstore_backup import main\nmain()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(store), url], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"stalled\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    refused(restore(url, tmp_path / "none"), "there is no backup")
    began = time.time()
    first = made(store, url, "--verify")
    assert first["written_bytes"] > 0
    assert first["new_bytes"] < first["bytes"]  # what was there before the kill was used
    assert first["created"] >= int(began)
    enqueue(store, "busy", "more")
    second = made(store, url)
    assert second["based_on"] == first["id"]
    assert restore(url, "--verify").exit_code == 0
    assert restore(url, tmp_path / "first", "--backup", first["id"]).exit_code == 0
    assert bytes_of(tmp_path / "first") == before
    kept = made(store, url, "--keep", "1")
    assert kept["removed"] == [first["id"], second["id"]]
    assert kept["removed_chunks"] > 0
    assert restore(url, tmp_path / "last").exit_code == 0
    assert bytes_of(tmp_path / "last") == bytes_of(store)
    refused(backup(store, "s3://no-such-bucket/x"), "no-such-bucket")
