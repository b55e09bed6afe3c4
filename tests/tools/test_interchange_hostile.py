"""Exports that are cut off, damaged or made to harm: one line, exit code 2, and nothing is imported."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from qstore.store.importing.intake import Intake
from qstore.tools.interchange.files import read_export
from qstore.tools.interchange.items import InterchangeError
from qstore.tools.interchange.json_lines import MAX_OBJECT_LINE, read_json_lines
from tests.support.fixtures import StoreFixture
from tests.support.profiles import examples
from tests.tools.interchange_runs import FORMS, bring, export, lines_of, write_lines


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory, dtx: StoreFixture) -> dict[str, bytes]:
    directory = tmp_path_factory.mktemp("exports")
    for form in FORMS:
        assert export(dtx.path, directory / f"e.{form}").exit_code == 0
    return {form: (directory / f"e.{form}").read_bytes() for form in FORMS}


def refused(path: Path, content: bytes) -> str:
    """The one line with which an export is refused; the store stays empty."""
    path.write_bytes(content)
    result = bring(path, path.parent / "store")
    assert result.exit_code == 2, result.output
    assert result.output.count("\n") == 1, result.output
    assert not (path.parent / "store").exists()
    return result.output


def is_refused(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    problem = ""
    try:
        read_export(str(path), Intake(None))
    except InterchangeError as error:
        problem = str(error)
    assert "\n" not in problem
    return bool(problem)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_is_cut_anywhere(tmp_path: Path, exports: dict[str, bytes], form: str) -> None:
    content, path = exports[form], tmp_path / f"cut.{form}"
    ends = {*range(200), *range(len(content) - 300, len(content)), *range(0, len(content), 997)}
    assert [end for end in sorted(ends) if 0 <= end < len(content) and not is_refused(path, content[:end])] == []
    assert not is_refused(path, content)


@pytest.mark.parametrize("form", FORMS)
def test_a_byte_that_changed(tmp_path: Path, exports: dict[str, bytes], form: str) -> None:
    content, path = exports[form], tmp_path / f"changed.{form}"

    @examples(60)
    @given(st.integers(0, len(content) - 1), st.integers(1, 255))
    def check(at: int, bits: int) -> None:
        changed = bytearray(content)
        changed[at] ^= bits
        intake, whole = Intake(None), Intake(None)
        path.write_bytes(content)
        read_export(str(path), whole)
        if not is_refused(path, bytes(changed)):  # in what is not imported: a readable column, a member's time
            assert form in ("parquet", "tar.zst", "jsonl.zst")
            read_export(str(path), intake)
            assert (intake.messages.keys(), intake.size) == (whole.messages.keys(), whole.size)

    check()


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return zstandard.compress(file.getvalue())


HEADER = json.dumps({"kind": "export", "format": "qstore-export", "version": 1}).encode()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (member("../../etc/passwd"), "an export has no such member here"),
        (member("/etc/passwd"), "an export has no such member here"),
        (member("topology-000001.jsonl", tarfile.SYMTYPE, "/etc/passwd"), "is not a file"),
        (member("topology-000001.jsonl", tarfile.LNKTYPE, "export.json"), "is not a file"),
        (member("topology-000001.jsonl", tarfile.CHRTYPE), "is not a file"),
        (member("dir", tarfile.DIRTYPE), "is not a file"),
        (member("x" * 300), "is not a file"),
        (member("topology-000002.jsonl"), "an export has no such member here"),
        (member("messages-000001.bin"), "the messages end within a message"),
        (member("export.json"), "an export has no such member here"),
    ],
    ids=lambda value: value.name[:24] + str(value.type) if isinstance(value, tarfile.TarInfo) else "",
)
def test_members_that_an_export_does_not_have(tmp_path: Path, second: tarfile.TarInfo, text: str) -> None:
    content = archive((member("export.json"), HEADER), (second, b""))
    assert text in refused(tmp_path / "e.tar.zst", content)
    assert "passwd" not in {path.name for path in tmp_path.rglob("*")}


def test_a_member_that_states_more_than_there_is(tmp_path: Path) -> None:
    info = member("export.json")
    info.size = 1 << 30
    head = info.tobuf(tarfile.USTAR_FORMAT)
    assert "is cut off" in refused(tmp_path / "e.tar.zst", zstandard.compress(head + HEADER))
    info.size += 1
    head = info.tobuf(tarfile.USTAR_FORMAT)
    assert "more than the limit" in refused(tmp_path / "e.tar.zst", zstandard.compress(head + HEADER))


@pytest.mark.parametrize(
    ("begin", "limit"), [(b'{"', "the line is longer than 16,777,216 bytes"),
                         (b'{"kind": "message", "body": "', "the message is longer than 536,870,912 bytes")],
)  # fmt: skip
def test_a_bomb(tmp_path: Path, begin: bytes, limit: str) -> None:
    """A line, or a member, without end, which compresses to nothing: refused before it fills the memory."""
    compressor, size = zstandard.ZstdCompressor(), 1 << 29
    path = tmp_path / "bomb.jsonl.zst"
    with path.open("wb") as file, compressor.stream_writer(file, closefd=False) as stream:
        stream.write(begin)
        for _ in range(size >> 20):
            stream.write(bytes(1 << 20))
    assert path.stat().st_size < size >> 10
    assert limit in bring(path, tmp_path / "store").output


def test_a_window_that_asks_for_too_much_memory(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    compressed = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    content = compressed.compress(HEADER) + compressed.flush()
    assert "the compressed data are damaged" in refused(tmp_path / "e.jsonl.zst", content)


@pytest.mark.parametrize("version", [0, 2, "1", None, True])
def test_other_versions(tmp_path: Path, version: object) -> None:
    line = {"kind": "export", "format": "qstore-export", "version": version}
    text = refused(tmp_path / "e.jsonl", json.dumps(line).encode() + b"\n")
    assert "line 1: this export is of version" in text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the file is empty"),
        (b"{}\n", "line 1: this is not an export"),
        (b"[1]\n", "neither an export nor definitions, which are objects of JSON: it begins with [1]"),
        (b"null\n", "it begins with null"),
        (b"\n []", "it begins with []"),
        (b"{not json}\n", "line 1: this is not JSON"),
        (b"PAR1", ""),
        (b"\x28\xb5\x2f\xfdgarbage", "compressed data are damaged"),
        (b"\0" * 1024, "the archive is not complete"),
        (b'{"kind":"export","format":"qstore-export","version":1}\n' + b"[" * 5000 + b"\n", "line 2: this is not JSON"),
    ],
)
def test_file_that_is_not_an_export_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    assert text in refused(tmp_path / "e.jsonl", content)


def depth(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"type": "map", "value": {"a": value}}
    return value


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ({"kind": "wrong"}, "'wrong' is not a kind"),
        ({"kind": None}, "is not a kind"),
        ({"kind": "queue"}, "this queue is not valid"),
        ({"kind": "queue", "name": 5}, "name is not a text"),
        ({"kind": "queue", "name": "q", "arguments": {"a": depth(40)}}, "nested more than 32 deep"),
        ({"kind": "queue", "name": "q", "arguments": {"a": {"type": "int8", "value": 500}}}, "this queue is not valid"),
        ({"kind": "queue", "name": "q", "arguments": {"a": {"type": "nonsense", "value": 5}}}, "is not a type"),
        ({"kind": "queue", "name": "q", "arguments": {"a": {"type": "array", "of": "int8"}}}, "is not valid"),
        ({"kind": "queue", "record_base64": "!"}, "this queue is not valid"),
        ({"kind": "queue", "record_base64": "AAAA"}, "this queue is not valid: record_base64"),
        ({"kind": "binding", "queue": "q"}, "does not name its exchange"),
        ({"kind": "transaction", "xid": "zz"}, "not in hexadecimal"),
        ({"kind": "transaction", "xid": "00" * 2000}, "too long"),
        ({"kind": "message", "queue": "q", "rid": -1}, "is not valid"),
        ({"kind": "message", "queue": "q", "rid": 1 << 63}, "is not valid"),
        ({"kind": "message", "queue": "q", "state": "gone"}, "is not valid"),
        ({"kind": "message", "queue": "q", "body": 5}, "body is not a text"),
        ({"kind": "message", "queue": "q", "header_base64": "####"}, "a message is not valid"),
        ({"kind": "message", "queue": "q", "headers": {"a": {"type": "map", "value": 3}}}, "is not a JSON object"),
        ({"kind": "message", "queue": "q", "properties": {"ttl": -1}}, "a message is not valid"),
        ({"kind": "message", "queue": "q", "properties": {"reply_to": {}}}, "a message is not valid"),
        ({"kind": "message", "queue": "q", "properties": [1]}, "a message is not valid"),
        ({"kind": "message", "queue": "q", "headers": [1]}, "a message is not valid"),
        ({"kind": "message", "queue": "q", "exchange": 7}, "a message is not valid"),
        ({"kind": "message", "queue": "q", "priority": 700}, "a message is not valid"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_lines_that_are_not_valid(tmp_path: Path, line: dict[str, object], text: str) -> None:
    path = write_lines(tmp_path / "e.jsonl", [json.loads(HEADER), line])
    result = bring(path, tmp_path / "store", "--edited")
    assert result.exit_code == 2, result.output
    assert "line 2: " in result.output
    assert text in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[::-1],
        lambda lines: lines[:-1],
        lambda lines: [*lines, lines[-1]],
        lambda lines: lines[:5] + lines[6:],
        lambda lines: [lines[0], *lines],
    ],
)
def test_lines_that_are_moved(
    tmp_path: Path, exports: dict[str, bytes], change: Callable[[list[object]], list[object]]
) -> None:
    (tmp_path / "e.jsonl").write_bytes(exports["jsonl"])
    lines = change(lines_of(tmp_path / "e.jsonl"))  # type: ignore[arg-type]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    refused(tmp_path / "moved.jsonl", content)


def test_a_parquet_file_of_another_program(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(arrow.table({"a": [1, 2]}), tmp_path / "other.parquet")
    content = (tmp_path / "other.parquet").read_bytes()
    assert "this Parquet file is not an export" in refused(tmp_path / "e.parquet", content)


def test_an_endless_line_is_refused_before_it_fills_the_memory() -> None:
    class Endless(io.RawIOBase):
        """A file without a line break: what it was asked for, in bytes."""

        read_bytes = 0

        def __init__(self, begin: bytes) -> None:
            self._begin = begin

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            given = self._begin[: len(buffer)] or b"x" * len(buffer)
            self._begin = self._begin[len(given) :]
            buffer[: len(given)] = given
            self.read_bytes += len(given)
            return len(given)

    for begin in (b"", b'{"kind":"queue","name":"'):
        endless = Endless(begin)
        with pytest.raises(InterchangeError, match="line 1: the line is longer than"):
            read_json_lines(io.BufferedReader(endless), Intake(None))
        assert endless.read_bytes < 2 * MAX_OBJECT_LINE


def test_a_long_message_is_read_in_parts_and_an_endless_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.tools.interchange.json_lines.MAX_OBJECT_LINE", 300)
    monkeypatch.setattr("qstore.tools.interchange.json_lines.MAX_LINE", 1500)
    head = b'{"kind":"export","format":"qstore-export","version":1}\n'
    for size, fits in ((100, True), (1200, True), (1500, False), (5000, False)):
        intake = Intake(None)
        line = b'{"kind":"message","queue":"q","body":"' + b"x" * size + b'"}\n'
        stream = io.BufferedReader(cast(io.RawIOBase, io.BytesIO(head + line)))
        if fits:
            read_json_lines(stream, intake, is_edited=True)
            assert intake.messages["q"].messages == 1
        else:
            with pytest.raises(InterchangeError, match="line 2: the message is longer than 1,500 bytes"):
                read_json_lines(stream, intake, is_edited=True)
