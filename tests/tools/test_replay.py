"""`qstore-replay`: which messages it puts on a queue again, in which order, and that it does so once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qstore.broker.client import Connection
from qstore.tools.qstore_backup import command as backup_command
from qstore.tools.qstore_replay import command as replay_command
from tests.support.dump import dump
from tests.support.fixtures import LEGACY_STORES, LINEAR_STORES, StoreFixture, StoreOpener, snapshot
from tests.support.profiles import today
from tests.support.running_broker import RunningBroker, one_broker
from tests.tools.interchange_runs import bring, export, held, of_kind, write_lines
from tests.tools.shell_runs import bodies, made, objects, text
from tests.tools.test_interchange import simple_lines


def replay(*arguments: object, code: int = 0) -> dict[str, Any]:
    """What it did, as JSON; or the line with which it fails."""
    result = CliRunner().invoke(replay_command, [str(each) for each in (*arguments, "--json")])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    if code == 2:
        return {"error": result.stderr.splitlines()[-1]}
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A store with empty queues `q` and `again`."""
    lines = [*simple_lines(0)[:2], {"kind": "queue", "name": "again"}]
    assert bring(write_lines(tmp_path / "target.jsonl", lines), tmp_path / "target", "--edited").exit_code == 0
    return tmp_path / "target"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An export of a queue with the messages 0 to 5: headers n and kind, timestamps 1000 to 1005, ids."""
    lines = simple_lines(6)
    for number, line in enumerate(line for line in lines if line["kind"] == "message"):
        line["properties"] = {"timestamp": 1000 + number, "expiration": 2000 if number == 5 else 4_000_000_000}
        line["message_id"] = f"00000000-0000-0000-0000-00000000000{number}"
        line["headers"] = {"n": number, "odd": bool(number % 2)}
    assert bring(write_lines(tmp_path / "in.jsonl", lines), tmp_path / "store", "--edited").exit_code == 0
    assert export(tmp_path / "store", tmp_path / "e.tar.zst").exit_code == 0
    return tmp_path / "e.tar.zst"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--all"], "012345"),
        (["--from-id", "00000000-0000-0000-0000-000000000003"], "345"),
        (["--from-header", "n=2"], "2345"),
        (["--from-header", "odd=true", "--limit", "2"], "12"),
        (["--from-header", "odd=true", "--selector", "odd = FALSE"], "24"),
        (["--since", "1970-01-01T00:16:44Z"], "45"),
        (["--since", "1001", "--until", "1003"], "123"),
        (["--from-rid", "3", "--since", "1001"], "2345"),
    ],
)
def test_where_it_begins_and_ends(target: Path, archive: Path, options: list[str], expected: str) -> None:
    done = replay(archive, target, "--queue", "q", "--to", "again", *options)
    assert (done["replayed"], done["messages"], done["expired"]) == (True, len(expected), int("5" in expected))
    lines = objects(target, "dump again")
    assert [line["body"] for line in lines] == list(expected)
    assert all(line["redelivered"] for line in lines)
    assert bodies(target, "q") == []


def test_it_happens_once(tmp_path: Path, target: Path, archive: Path) -> None:
    asked = archive, target, "--queue", "q", "--from-header", "n=4"
    assert replay(*asked, "--dry-run")["replayed"] is False
    assert bodies(target, "q") == []
    assert replay(*asked)["replayed"] is True
    repeated = replay(*asked)
    assert (repeated["replayed"], repeated["replayed_before"] is not None) == (False, True)
    assert bodies(target, "q") == ["4", "5"]
    assert replay(*asked, "--again")["replayed"] is True
    assert bodies(target, "q") == ["4", "5"] * 2
    assert (
        "nothing to do: 2 messages were put on queue q"
        in CliRunner().invoke(replay_command, list(map(str, asked))).stdout
    )
    (before,) = [line for line in of_kind(held(tmp_path / "store", tmp_path), "message") if line["body"] == "4"]
    again = of_kind(held(target, tmp_path), "message")[0]
    assert again == before | {"redelivered": True}  # all bytes of header and body


def test_messages_that_were_delivered(tmp_path: Path) -> None:
    store = made(tmp_path / "store")
    text(store, "delete orders where n IN (1, 3); move orders to old where n = 5", options=("--yes",))
    assert bodies(store, "orders") == ["0", "2", "4"]
    asked = store, store, "--queue", "orders", "--to", "old", "--from-header", "n=1"
    assert replay(*asked, "--outstanding", code=2)["error"].endswith("or selected after it")
    no_id = replay(store, store, "--queue", "orders", "--to", "old", "--from-id", "None", code=2)  # they have no id
    assert "none of 6 messages" in no_id["error"]
    assert replay(*asked)["messages"] == 5
    assert bodies(store, "old") == ["5", "1", "2", "3", "4", "5"]
    assert replay(*asked)["replayed"] is False
    # Into itself: the journal is built anew, so that what identifies the replay is not in it.
    asked = store, store, "--queue", "orders", "--from-header", "n=3"
    assert replay(*asked)["messages"] == 3
    assert bodies(store, "orders") == ["0", "2", "4", "3", "4", "5"]
    assert replay(store, store, "--queue", "orders", "--from-header", "n=3")["replayed"] is False
    assert bodies(store, "orders") == ["0", "2", "4", "3", "4", "5"]


@pytest.mark.parametrize("name", today(LEGACY_STORES + LINEAR_STORES, 3))
def test_real_journals(tmp_path: Path, target: Path, open_fixture: StoreOpener, name: str) -> None:
    """All enqueues whose transaction was not aborted and is not in doubt, in the order of the journal."""
    path = open_fixture(name).path
    before = snapshot(path)
    records = [line for line in dump(path, "--json").lines() if line["kind"] == "record"]
    recovered = dump(path, "--outstanding", "--json").lines()
    for queue in [line["name"] for line in recovered if line["kind"] == "queue"][:2]:
        own = [line for line in records if line["queue"] == queue and "transient" not in line["flags"]]
        committed = {line["xid"] for line in own if line["type"] == "commit"}
        kept = {line["rid"] for line in recovered if line["kind"] == "message" and line["queue"] == queue
                and line["state"] != "in-doubt-enqueue"}  # fmt: skip
        expected = [
            line["message"]["body_sha256"]
            for line in own
            if line["type"] == "enqueue" and (line["xid"] is None or line["xid"] in committed or line["rid"] in kept)
        ]
        if not expected:
            assert "error" in replay(path, target, "--queue", queue, "--to", "again", "--all", code=2)
            continue
        done = replay(path, target, "--queue", queue, "--to", "again", "--all")
        assert done["messages"] == len(expected)
        shown = objects(target, "dump again")
        assert [line["body_sha256"] for line in shown] == expected
        text(target, "purge again", options=("--yes",))
    assert snapshot(path) == before


def test_from_a_backup(tmp_path: Path, target: Path) -> None:
    store, place = made(tmp_path / "store"), tmp_path / "place"
    text(store, "delete orders first=4", options=("--yes",))
    assert CliRunner().invoke(backup_command, [str(store), str(place)]).exit_code == 0
    text(store, "purge orders", options=("--yes",))
    assert replay(place, target, "--queue", "orders", "--to", "q", "--from-header", "n=2")["messages"] == 4
    assert bodies(target, "q") == ["2", "3", "4", "5"]
    assert (
        "no such backup"
        in replay(place, target, "--queue", "orders", "--to", "q", "--all", "--backup", "x", code=2)["error"]
    )


def test_a_missing_queue_and_a_missing_store_are_created(archive: Path, target: Path, tmp_path: Path) -> None:
    for place, name in ((target, "new"), (tmp_path / "made", "q")):
        done = replay(archive, place, "--queue", "q", "--to", name, "--from-rid", "5", "--create")
        assert (done["replayed"], done["messages"]) == (True, 2)
        assert bodies(place, name) == ["4", "5"]
    assert bodies(target, "again") == []


# ---- into a broker ----

broker = pytest.fixture(one_broker, scope="module")


@pytest.fixture
def url(broker: RunningBroker) -> str:
    return f"amqp://127.0.0.1:{broker.port}"


def test_into_a_broker(url: str, archive: Path, broker: RunningBroker) -> None:
    assert "no such queue in the broker" in replay(archive, url, "--queue", "q", "--all", code=2)["error"]
    with Connection(url.removeprefix("amqp://")) as connection, connection.session() as session:
        session.invoke("queue.declare", queue="q", durable=True)
    asked = archive, url, "--queue", "q", "--from-header", "n=1", "--limit", "4", "--rate", "1000"
    assert replay(*asked)["messages"] == 4
    assert replay(*asked)["replayed"] is False
    lines = objects(url, "dump q")
    assert [line["body"] for line in lines] == ["1", "2", "3", "4"]
    assert all(line["redelivered"] for line in lines)
    assert "has this store open" in replay(broker.data_directory, url, "--queue", "q", "--all", code=2)["error"]


# ---- what is refused ----


def test_invalid_replay_is_refused(tmp_path: Path, target: Path, archive: Path) -> None:
    to = ("--queue", "q")
    for arguments, reported in (
        ((archive, target, *to), "choose where to begin"),
        ((archive, target, *to, "--all", "--since", "5"), "choose where to begin"),
        ((archive, target, *to, "--all", "--rate", "5"), "applies to a running broker"),
        ((archive, target, *to, "--all", "--selector", "n >"), "this is not a selector"),
        ((archive, target, *to, "--from-header", "n"), "is not NAME=VALUE"),
        ((archive, target, *to, "--from-rid", "5..6"), "is not one record id"),
        ((archive, target, *to, "--from-header", "n=9"), "none of 6 messages of queue q"),
        ((archive, target, "--queue", "nosuch", "--all"), 'there is no queue "nosuch"'),
        ((archive, target, *to, "--to", "nosuch", "--all"), "there is no such queue in the store"),
        ((archive, tmp_path / "nosuch", *to, "--all"), "there is no qstore store here"),
        ((tmp_path / "nosuch", target, *to, "--all"), "nosuch"),
        ((tmp_path, target, *to, "--all"), str(tmp_path)),
    ):
        assert reported in replay(*arguments, code=2)["error"], reported
    assert not (tmp_path / "nosuch").exists()
    content = archive.read_bytes()
    before = held(target, tmp_path)
    for number, broken in enumerate(
        (content[:-20], content[:100], b"", content[:60] + b"\0" * 40 + content[100:], b"\xff" * 99)
    ):
        file = tmp_path / f"broken{number}.tar.zst"
        file.write_bytes(broken)
        error = replay(file, target, "--queue", "q", "--all", code=2)["error"]
        assert str(file) in error
    assert held(target, tmp_path) == before


def test_branches_in_doubt(tmp_path: Path, target: Path, dtx: StoreFixture) -> None:
    """What a branch would dequeue was delivered; what it would enqueue was not."""
    messages = [line for line in of_kind(held(dtx.path, tmp_path), "message") if line["queue"] == "d.q1"]
    assert {line["state"] for line in messages} >= {"outstanding", "in-doubt-dequeue"}
    assert export(dtx.path, tmp_path / "e.jsonl").exit_code == 0
    expected = [line["body_sha256"] for line in messages if line["state"] != "in-doubt-enqueue"]
    assert replay(tmp_path / "e.jsonl", target, "--queue", "d.q1", "--to", "q", "--all")["messages"] == len(expected)
    assert [line["body_sha256"] for line in objects(target, "dump q")] == expected
