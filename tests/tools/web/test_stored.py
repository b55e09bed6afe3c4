"""The console of a store on disk: stores that a real qpidd wrote, whole and damaged."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from qstore.store.environment import tool_environment
from qstore.tools.qstore_console import make_stored_server
from qstore.tools.web.browser import HEADER
from qstore.tools.web.server import ServerSettings
from tests.support.fixtures import set_writable, unpack
from tests.support.opened_store import OpenedStore
from tests.support.processes import PATIENCE_SECONDS
from tests.tools.web.console_runs import Client

DAMAGED_AT = 1024
"""Offset of the second record in the first file of queue d.q1."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    found = unpack("legacy-d-dtx", tmp_path / "own").path
    set_writable(found, writable=True)
    return found


@contextlib.asynccontextmanager
async def console_of(path: Path) -> AsyncIterator[tuple[Client, tuple[str, str]]]:
    """A console of a store, and its login."""
    server = make_stored_server(path, ServerSettings(port=0))
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            token = server.entrance.rpartition("/")[2]
            yield Client(server, session), ("operator", token)
    finally:
        await server.close()


async def ended(client: Client, user: tuple[str, str], path: str) -> dict[str, Any]:
    """A report, once its job has ended."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found: dict[str, Any] = await client.get(f"qstore/stored/{path}", user=user)
            if found["job"]["state"] != "running":
                return found
            await asyncio.sleep(0.1)


async def job_ended(client: Client, user: tuple[str, str], number: int) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            rows = await client.get("qstore/stored/jobs", user=user)
            row: dict[str, Any] = next(each for each in rows if each["number"] == number)
            if row["state"] != "running":
                return row
            await asyncio.sleep(0.1)


def content_of(directory: Path) -> dict[str, str]:
    """What must not change."""
    files = sorted(each for each in directory.rglob("*") if each.is_file())
    return {str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def damage(store: Path) -> Path:
    """Break the header of a record."""
    file = next(store.rglob("d.q1/JournalData.0000.jdat"))
    with file.open("r+b") as opened:
        opened.seek(DAMAGED_AT)
        opened.write(b"XXXXXXXX")
    return file


async def test_only_the_token_gives_access(store: Path) -> None:
    async with console_of(store) as (client, user):
        for wrong in (("operator", ""), ("operator", "guess"), ("guest", "guest")):
            assert (await client.ask("GET", "/api/whoami", user=wrong)).status == 401
        assert (await client.get("whoami", user=user))["store"] == str(store)
        body = {"user": "operator", "password": user[1]}
        entered = await client.ask("POST", "/api/qstore/login", body, user=None, headers={HEADER: "1"})
        cookie = entered.headers["set-cookie"].partition(";")[0]
        page = {HEADER: "1", "Cookie": cookie}
        assert (await client.ask("GET", "/api/whoami", user=None, headers=page)).status == 200
        assert (await client.ask("GET", "/metrics", user=user)).status == 404
        assert (await client.ask("GET", "/api/overview", user=user)).status == 404


async def test_a_crashed_store_is_shown_and_not_changed(store: Path) -> None:
    before = content_of(store)
    async with console_of(store) as (client, user):
        found = (await ended(client, user, "check"))["found"]
        assert found["store"][0]["format"] == "legacystore"
        assert (found["store"][0]["outstanding"], found["store"][0]["in_doubt"]) == (27, 15)
        assert [row["queue"] for row in found["journal"]] == ["TplStore", "d.q1", "d.q2", "d.q3"]
        assert len(found["transaction"]) == 3
        plan = (await ended(client, user, "plan"))["found"]
        assert (plan["summary"][0]["messages"], plan["summary"][0]["lost"]) == (27, 0)
    assert content_of(store) == before


async def test_messages_and_records_come_in_pages(store: Path) -> None:
    async with console_of(store) as (client, user):
        path = "qstore/stored/queues/d.q1"
        first = await client.get(f"{path}/messages?page_size=10", user=user)
        second = await client.get(f"{path}/messages?page_size=10&page=2", user=user)
        assert (len(first["items"]), first["has_more"]) == (10, True)
        assert (len(second["items"]), second["has_more"]) == (4, False)
        rids = [row["rid"] for row in first["items"] + second["items"]]
        assert rids == sorted(set(rids))
        assert "body" not in first["items"][0] or first["items"][0]["body"] is None
        one = await client.get(f"{path}/messages/{rids[0]}", user=user)
        assert one["body"].startswith("d.q1/0|d.q1/0|")
        assert (await client.ask("GET", f"/api/{path}/messages/999999", user=user)).status == 404
        assert (await client.ask("GET", f"/api/{path}/messages/1x", user=user)).status == 400
        records = await client.get(f"{path}/records?page_size=500", user=user)
        assert {row["type"] for row in records["items"]} == {"enqueue", "dequeue", "filler"}
        unknown = await client.ask("GET", "/api/qstore/stored/queues/--help/messages", user=user)
        assert (unknown.status, unknown.value["error"]) == (409, "unusable")


async def test_queues_are_asked_for_by_the_names_that_the_tools_show(tmp_path: Path) -> None:
    """With bytes that are not UTF-8, a backslash before an x, and virtual hosts."""
    names = ["\udcff", "a\\xb", "host\x1fq"]
    keys = {"\\xff": "\\xff", "a\\x5cxb": "a\\x5cxb", "host\\x1fq": "q"}
    path = tmp_path / "named"
    opened = OpenedStore(tool_environment(), path)
    for name in names:
        journal = opened.make_queue(name)
        opened.enqueue(journal, b"a message")
        opened.flush(journal)
    opened.store.close()
    async with console_of(path) as (client, user):
        for key, shown in keys.items():
            found = await client.get(f"qstore/stored/queues/{quote(key, safe='')}/records", user=user)
            assert [row["queue"] for row in found["items"] if row["type"] == "enqueue"] == [shown]


async def test_damage_is_shown_with_the_bytes_around_it(store: Path) -> None:
    file = damage(store)
    async with console_of(store) as (client, user):
        (place,) = (await ended(client, user, "check"))["found"]["damage"]
        assert (Path(place["file"]), place["offset"], place["loses_nothing"]) == (file, DAMAGED_AT, False)
        query = f"file={place['file']}&offset={place['offset']}"
        found = await client.get(f"qstore/stored/bytes?{query}", user=user)
        content = b64decode(found["bytes"])
        assert content == file.read_bytes()[found["begin"] : found["begin"] + len(content)]
        assert content[DAMAGED_AT - found["begin"] :].startswith(b"XXXXXXXX")
        assert (await ended(client, user, "plan"))["found"]["summary"][0]["lost"] == 1


@pytest.mark.parametrize("file", ["/etc/passwd", "../../etc/passwd", "link", "", ".", "%00"])
async def test_no_file_outside_the_store_is_shown(store: Path, file: str) -> None:
    (store / "link").symlink_to("/etc/passwd")
    async with console_of(store) as (client, user):
        answer = await client.ask("GET", f"/api/qstore/stored/bytes?file={file}&offset=0", user=user)
        assert answer.status in (400, 404)


async def test_recovery_and_export_write_new_places_only(store: Path, tmp_path: Path) -> None:
    async with console_of(store) as (client, user):
        target, file = tmp_path / "saved", tmp_path / "orders.jsonl"
        for path, place in (("recover", target), ("export", file)):
            begun = await client.ask("POST", f"/api/qstore/stored/{path}", {"target": str(place)}, user=user)
            assert begun.status == 202
            row = await job_ended(client, user, begun.value["number"])
            assert (row["state"], row["error"]) == ("done", "")
            again = await client.ask("POST", f"/api/qstore/stored/{path}", {"target": str(place)}, user=user)
            assert (again.status, again.value["error"]) == (409, "conflict")
        assert file.read_text().count("\n") > 27
        for wrong in ("relative", str(store / "inside"), "/\0", ""):
            refused = await client.ask("POST", "/api/qstore/stored/recover", {"target": wrong}, user=user)
            assert refused.status == 400
        body = {"target": str(tmp_path / "other"), "decision": "perhaps"}
        assert (await client.ask("POST", "/api/qstore/stored/recover", body, user=user)).status == 400
    async with console_of(target) as (client, user):
        assert (await ended(client, user, "check"))["found"]["store"][0]["outstanding"] == 27


async def test_a_replay_creates_a_new_store(store: Path, tmp_path: Path) -> None:
    before = content_of(store)
    target = tmp_path / "again"
    async with console_of(store) as (client, user):
        path = "qstore/stored/queues/d.q1"
        rows = (await client.get(f"{path}/messages", user=user))["items"]
        rids = [row["rid"] for row in rows if row["state"] == "outstanding"]
        body = {"target": str(target), "queue": "d.q1", "destination": "d.again", "from_rid": rids[1], "limit": 3}
        begun = await client.ask("POST", "/api/qstore/stored/replay", body | {"outstanding": True}, user=user)
        assert begun.status == 202
        row = await job_ended(client, user, begun.value["number"])
        assert (row["state"], row["error"], row["summary"]["messages"]) == ("done", "", 3)
        assert (await client.ask("POST", "/api/qstore/stored/replay", body, user=user)).status == 409
        for wrong in (
            {"queue": ""}, {"target": str(store / "in")}, {"from_rid": "x"}, {"limit": -1}, {"outstanding": 3},
        ):  # fmt: skip
            asked = {**body, "target": str(tmp_path / "other"), **wrong}
            assert (await client.ask("POST", "/api/qstore/stored/replay", asked, user=user)).status == 400
        everything = {"target": str(tmp_path / "all"), "queue": "d.q1"}
        begun = await client.ask("POST", "/api/qstore/stored/replay", everything, user=user)
        whole = await job_ended(client, user, begun.value["number"])
        assert whole["summary"]["messages"] > len(rids)  # delivered ones, too
        unknown = {"target": str(tmp_path / "none"), "queue": "none"}
        begun = await client.ask("POST", "/api/qstore/stored/replay", unknown, user=user)
        failed = await job_ended(client, user, begun.value["number"])
        assert 'there is no queue "none"' in failed["error"]
        assert not (tmp_path / "none").exists()
    assert content_of(store) == before
    async with console_of(target) as (client, user):
        found = (await ended(client, user, "check"))["found"]
        queues = [row["queue"] for row in found["journal"] if row["role"] == "queue"]
        assert (queues, found["store"][0]["outstanding"]) == (["d.again"], 3)


async def test_a_directory_without_a_store_is_reported(tmp_path: Path) -> None:
    async with console_of(tmp_path) as (client, user):
        job = (await ended(client, user, "check"))["job"]
        assert job["state"] == "failed"
        assert str(tmp_path) in job["error"]
