"""`qstore-size --from`: real stores, journals that are nearly full, damage."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from qstore.formats.rhm.geometry import Geometry
from tests.support.dump import queues, size
from tests.support.fixtures import StoreFixture, StoreOpener, snapshot
from tests.support.journal_builder import JournalBuilder

QUEUE_FIELDS = {
    "kind", "queue", "store_type", "outstanding", "in_doubt_dequeues", "in_doubt_enqueues", "record", "data",
    "message_header", "xid_share", "mean_xid_size", "live_bytes", "span", "capacity", "live_share", "span_share",
    "oldest_rid",    "oldest_state", "oldest_file", "oldest_offset", "limit", "used", "room", "fill",
    "near_threshold", "geometry", "depth", "footprint", "recommended_bytes", "recommended", "holds", "large_enough",
    "problem",
}  # fmt: skip


# ---- from stores that qpidd wrote ----


def test_counts_are_the_manifests(legacy_store: StoreFixture) -> None:
    before = snapshot(legacy_store.path)
    lines = queues(legacy_store.path)
    assert {name: line["outstanding"] for name, line in lines.items()} == {
        queue["name"]: queue["message_count"] for queue in legacy_store.recovered["queues"]
    }
    assert snapshot(legacy_store.path) == before


def test_schema(qpidd_store: StoreFixture) -> None:
    linear = qpidd_store.name.startswith("linear-")
    for line in queues(qpidd_store.path).values():
        assert set(line) == QUEUE_FIELDS
        assert line["store_type"] == ("linearstore" if linear else "legacystore")
        depth = line["outstanding"] + line["in_doubt_dequeues"] + line["in_doubt_enqueues"]
        assert line["depth"] == depth
        for name in ("record", "data", "message_header"):
            spread = line[name]
            assert (spread is None) == (depth == 0)
            assert spread is None or spread["least"] <= spread["mean"] <= spread["largest"]
        assert (line["recommended"] is None) == (depth == 0)
        assert line["geometry"]["capacity"] == line["capacity"]
        if linear:
            assert line["limit"] is line["near_threshold"] is line["large_enough"] is None
            assert set(line["geometry"]) == {"files", "file_size_kib", "capacity"}
        else:
            assert line["near_threshold"] is False
            assert set(line["geometry"]) == {"num_jfiles", "jfile_size_pgs", "capacity"}
            if depth and not line["xid_share"]:
                assert line["footprint"] == line["live_bytes"]
                assert line["recommended_bytes"] == 2 * max(line["footprint"], line["used"])
            fits = line["recommended_bytes"] <= line["capacity"] if depth else None
            assert line["large_enough"] is fits
            assert fits is not False or line["queue"] == "e.pinned"  # 52 % of it are held back by its oldest message


def test_a_table_of_queues(qpidd_store: StoreFixture) -> None:
    shown = size("--from", qpidd_store.path)
    assert shown.code == 0
    rows = shown.text.split("\n\n")[0].splitlines()[1:]
    for row, queue in zip(rows, queues(qpidd_store.path).values(), strict=True):
        assert row.startswith(queue["queue"])
        verdict = {True: "large enough", False: "too small", None: ("no messages", "grows as needed")}
        assert row.endswith(verdict[queue["large_enough"]])
    assert shown.text.startswith("QUEUE")


def test_geometry_as_it_was_declared(open_fixture: StoreOpener) -> None:
    lines = queues(open_fixture("legacy-a-clean").path)
    assert lines["fx.bigjrnl"]["geometry"] == {"num_jfiles": 5, "jfile_size_pgs": 2, "capacity": 655_360}
    assert lines["fx.plain"]["geometry"] == {"num_jfiles": 4, "jfile_size_pgs": 16, "capacity": 4_194_304}
    assert lines["fx.empty"]["oldest_file"] is None
    assert lines["fx.plain"]["oldest_file"].endswith("/fx.plain/JournalData.0000.jdat")


def test_another_depth(dtx: StoreFixture) -> None:
    lines = queues(dtx.path, "--depth", "100000")
    assert {line["depth"] for line in lines.values()} == {100_000}
    assert not any(line["large_enough"] for line in lines.values())
    assert lines["d.q1"]["outstanding"] == 6
    text = size("--from", dtx.path, "--depth", "100000").text
    assert text.count("too small") == 3


def test_transactions_are_counted_as_they_were_met(dtx: StoreFixture) -> None:
    """3 of 14 messages of d.q1 came under ids of 26 bytes: their records are padded, and each has its commit."""
    line = queues(dtx.path)["d.q1"]
    assert line["xid_share"] == pytest.approx(3 / 14)
    assert line["mean_xid_size"] == 26
    plain = line["live_bytes"] * 11 / 14
    assert line["footprint"] == -(-plain // 1) + 3 * (512 + 512)
    grouped = queues(dtx.path, "--transaction-depth", "3")["d.q1"]
    assert grouped["footprint"] < line["footprint"] < queues(dtx.path, "--count-dequeues")["d.q1"]["footprint"]


def test_commits_are_as_long_as_the_ids_that_were_met(tmp_path: Path) -> None:
    builder = JournalBuilder(1, Geometry.from_pages(4, 1))
    builder.enqueue(b"\0\0\0\0", xid=b"x" * 600)  # 648 → 768 → 1024
    builder.commit(b"x" * 600)  # 44 + 600 → 768 → 1024
    builder.flush()
    builder.write_to(tmp_path / "q")
    assert queues(tmp_path / "q")["q"]["footprint"] == 2048


def test_only_some_queues(dtx: StoreFixture) -> None:
    shown = size("--from", dtx.path, "--queue", "d.q3", "--queue", "d.q1", "--queue", "d.q9", "--json")
    assert [line["queue"] for line in shown.lines()] == ["d.q1", "d.q3"]
    assert shown.errors == 'notice: there is no queue "d.q9"\n'
    assert shown.code == 0


def test_a_prepared_list_has_no_queues(dtx: StoreFixture) -> None:
    shown = size("--from", dtx.path / "rhm" / "tpl")
    assert (shown.code, shown.text) == (0, "There are no queues.\n")


# ---- journals that are nearly full ----


def journal(directory: Path, version: int, messages: int, *, name: str = "q") -> Path:
    """A journal of 4 files of a page with that many messages of one block."""
    builder = JournalBuilder(version, Geometry.from_pages(4, 1), queue_name=name)
    builder.enqueue_many(messages, b"\0\0\0\0", flush_every=messages)
    builder.write_to(directory / name)
    return directory / name


@pytest.mark.parametrize(
    ("version", "messages", "near", "reported"),
    [
        (1, 1224, False, None),
        (1, 1232, True, "will be refused after 38.00 KiB more"),
        (1, 1536, True, "enqueues are refused: 192.00 KiB in use"),
        (2, 655, False, None),
        (2, 656, True, "will be refused after 40.80 KiB more"),
        (2, 819, True, "enqueues are refused: 204.75 KiB in use, the threshold is at 204.80 KiB"),
    ],
)
def test_queues_near_their_threshold_are_flagged(
    tmp_path: Path, version: int, messages: int, near: bool, reported: str | None
) -> None:
    path = journal(tmp_path, version, messages)
    assert queues(path)["q"]["near_threshold"] is near
    text = size("--from", path).text
    assert ("NEAR" in text or "REACHED" in text) is near
    assert ("q: enqueues" in text) is near
    assert reported is None or reported in text
    assert size("--from", path).code == 0


def test_an_old_message_that_holds_back_the_rest(tmp_path: Path) -> None:
    builder = JournalBuilder(1, Geometry.from_pages(4, 1))
    builder.enqueue_many(900, b"\0\0\0\0")
    for rid in range(2, 801):
        builder.dequeue(rid)
    builder.flush()
    builder.write_to(tmp_path / "q")
    text = size("--from", tmp_path / "q").text
    assert "REACHED" in text
    assert "the oldest message, 0x1 (outstanding, in " in text
    assert "JournalData.0000.jdat at 0x200), holds back 212.50 KiB, of which 12.62 KiB are still needed" in text


def test_version_2_relocates_and_reports_no_cause(tmp_path: Path) -> None:
    builder = JournalBuilder(2, Geometry.from_pages(4, 1))
    builder.enqueue_many(1330, b"\0\0\0\0", flush_every=1330)
    for rid in range(2, 1330, 2):
        builder.dequeue(rid)
    builder.flush()
    builder.write_to(tmp_path / "q")
    line = queues(tmp_path / "q")["q"]
    assert line["near_threshold"]
    assert line["span"] > 2 * line["live_bytes"]
    text = size("--from", tmp_path / "q").text
    assert "NEAR" in text
    assert "oldest message" not in text


def test_journal_too_small_for_its_content_is_reported(tmp_path: Path) -> None:
    path = journal(tmp_path, 1, 1100)
    assert queues(path)["q"]["large_enough"] is False
    assert size("--from", path).text.splitlines()[1].endswith("too small")


def test_a_depth_that_no_journal_holds(tmp_path: Path) -> None:
    path = journal(tmp_path, 1, 10)
    line = queues(path, "--depth", "10000000000")["q"]
    assert line["recommended"] is None
    assert "for 536,870,912 such messages" in line["problem"]
    assert line["large_enough"] is False
    shown = size("--from", path, "--depth", "10000000000")
    assert shown.code == 0
    assert "too many messages" in shown.text
    assert f"q: {line['problem']}\n" in shown.text


def test_an_empty_queue_has_nothing_to_size_from(tmp_path: Path) -> None:
    path = tmp_path / "q"
    JournalBuilder(2, Geometry.from_pages(4, 1)).write_to(path)
    line = queues(path, "--depth", "100")["q"]
    assert (line["recommended"], line["large_enough"], line["record"]) == (None, None, None)
    assert "there is no message to measure" in size("--from", path, "--depth", "100").text
    assert "there is no message to measure" not in size("--from", path).text


def test_one_file_by_itself(tmp_path: Path) -> None:
    path = journal(tmp_path, 1, 100) / "JournalData.0000.jdat"
    line = queues(path)["JournalData.0000.jdat"]
    assert line["limit"] is None
    assert (line["capacity"], line["outstanding"]) == (65_536, 100)


def test_names_cannot_harm_the_terminal(tmp_path: Path) -> None:
    builder = JournalBuilder(1, Geometry.from_pages(4, 1), queue_name="evil\x1b[2J\nqueue")
    builder.enqueue_many(1536, b"\0\0\0\0", flush_every=1536)
    builder.write_to(tmp_path / "q")
    shown = size("--from", tmp_path / "q")
    assert "\x1b" not in shown.text
    assert "evil\\x1b[2J\\x0aqueue: enqueues are refused" in shown.text


# ---- damage ----


def damaged(directory: Path) -> Path:
    path = journal(directory, 2, 100)
    builder = JournalBuilder(2, Geometry.from_pages(4, 1))
    for _ in range(10):
        builder.enqueue(b"\0\0\0\0" + b"x" * 500)
        builder.flush()
    record = builder.records[6]
    builder.files[0][record.offset + 100] ^= 1
    builder.write_to(path)
    return path


def test_damage_is_listed_and_the_rest_is_sized(tmp_path: Path) -> None:
    path = damaged(tmp_path)
    shown = size("--from", path, "--json")
    assert shown.code == 1
    (queue,) = shown.lines("queue_size")
    assert queue["outstanding"] == 9
    (damage,) = shown.lines("damage")
    assert damage["file"].endswith("JournalData.0000.jdat")
    assert "damage found in 1 place" in shown.errors
    table = size("--from", path)
    assert table.code == 1
    assert "DAMAGED FILE" in table.text


@pytest.mark.parametrize("seed", range(8))
def test_hostile_bytes(tmp_path: Path, seed: int) -> None:
    """Flipped bits, garbage and cuts in files and info file: a result, or one line with the reason."""
    rng = random.Random(seed)
    path = journal(tmp_path, 1 + seed % 2, 1000)
    for file in sorted(path.iterdir()):
        content = bytearray(file.read_bytes())
        for _ in range(rng.randrange(4)):
            at = rng.randrange(min(len(content), 70_000))
            content[at : at + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, rng.randbytes(8)])
        file.write_bytes(content[: rng.choice([len(content), len(content), rng.randrange(len(content))])])
    for form in ([], ["--json"]):
        size("--from", path, *form).assert_no_traceback()


def test_a_queue_without_journal(tmp_path: Path, open_fixture: StoreOpener) -> None:
    source = open_fixture("legacy-d-dtx").path
    (tmp_path / "rhm" / "jrnl").mkdir(parents=True)
    (tmp_path / "rhm" / "dat").symlink_to(source / "rhm" / "dat")
    shown = size("--from", tmp_path, "--json")
    assert shown.code == 1
    lines = shown.lines("queue_size")
    assert [line["queue"] for line in lines] == ["d.q1", "d.q2", "d.q3"]
    assert all(set(line) == QUEUE_FIELDS for line in lines)
    assert {line["outstanding"] for line in lines} == {None}
    assert size("--from", tmp_path).text.count("no journal") >= 3


def test_json_is_one_object_a_line(dtx: StoreFixture) -> None:
    shown = size("--from", dtx.path, "--json")
    assert [json.loads(line)["queue"] for line in shown.out.splitlines()] == ["d.q1", "d.q2", "d.q3"]


def test_notes_are_broken_between_words_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = journal(tmp_path, 1, 1232)
    whole = size("--from", path).text.splitlines()[-1]
    assert len(whole) > 80
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "80")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", size("--from", path).text).splitlines()
    assert " ".join(" ".join(lines).split()).endswith(whole)
    assert max(map(len, lines)) <= 80
