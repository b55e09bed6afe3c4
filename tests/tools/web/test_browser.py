"""What pages in a browser need from the server: logins by cookie, browsing, explained decisions, files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from qstore.tools.web.browser import COOKIE, HEADER, IDLE_SECONDS, LIFE_SECONDS, MAX_LOGINS, BrowserLogins
from qstore.tools.web.server import ServerSettings
from tests.support.certificates import Certificates
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker, one_broker
from tests.tools.web.console_runs import Answer, Client, console_on
from tests.tools.web.test_server import with_users

__all__ = ["make_broker"]

broker = pytest.fixture(one_broker, scope="module")
PAGE = {HEADER: "1"}
STATIC = Path("qstore/tools/web/static")


@pytest.fixture
def url(broker: RunningBroker) -> str:
    return f"127.0.0.1:{broker.port}"


async def log_in(client: Client, user: str = "guest", password: str = "guest") -> Answer:
    body = {"user": user, "password": password}
    return await client.ask("POST", "/api/qstore/login", body, user=None, headers=PAGE)


def cookie_of(answer: Answer) -> dict[str, str]:
    """The headers of a page that has this cookie."""
    return {**PAGE, "Cookie": answer.headers["set-cookie"].partition(";")[0]}


# ---- logins ----


async def test_a_cookie_stands_for_a_login_until_the_logout(url: str) -> None:
    async with console_on(url) as client:
        entered = await log_in(client)
        assert (entered.status, entered.value) == (200, {"name": "guest"})
        assert re.search(r"; Path=/api; .*HttpOnly; SameSite=Strict$", entered.headers["set-cookie"])
        page = cookie_of(entered)
        assert (await client.ask("GET", "/api/whoami", user=None, headers=page)).value["name"] == "guest"
        left = await client.ask("DELETE", "/api/qstore/login", user=None, headers=page)
        assert left.status == 204
        assert "Max-Age=0" in left.headers["set-cookie"]
        assert (await client.ask("GET", "/api/whoami", user=None, headers=page)).status == 401


async def test_a_cookie_alone_is_not_enough(url: str) -> None:
    async with console_on(url) as client:
        page = cookie_of(await log_in(client))
        del page[HEADER]
        answer = await client.ask("PUT", "/api/queues/%2F/forged", {}, user=None, headers=page)
        assert (answer.status, answer.headers["www-authenticate"][:5]) == (401, "Basic")


async def test_pages_are_not_asked_for_a_password_by_the_browser(url: str) -> None:
    async with console_on(url) as client:
        for headers in (PAGE, {**PAGE, "Cookie": f"{COOKIE}=nonsense"}, {**PAGE, "Cookie": '=;"'}):
            answer = await client.ask("GET", "/api/whoami", user=None, headers=headers)
            assert (answer.status, "www-authenticate" in answer.headers) == (401, False)


async def test_a_wrong_password_gives_no_cookie_and_is_not_repeated(make_broker: BrokerMaker, tmp_path: Path) -> None:
    secured = with_users(make_broker, tmp_path)
    async with console_on(f"127.0.0.1:{secured.port}", named=("reader", "reader")) as client:
        answer = await log_in(client, "reader", "wrong-word")
        assert (answer.status, "set-cookie" in answer.headers) == (401, False)
        assert b"wrong-word" not in answer.body
        assert (await log_in(client, "", "x")).status == 400
        assert (await log_in(client, "writer", "writer")).value == {"name": "writer"}


async def test_the_cookie_is_secure_with_tls(url: str, tmp_path: Path) -> None:
    settings = ServerSettings(certificate=Certificates(tmp_path).server())
    async with console_on(url, settings) as client:
        body = {"user": "guest", "password": "guest"}
        entered = await client.ask("POST", "/api/qstore/login", body, user=None, headers=PAGE, tls=False)
        assert entered.headers["set-cookie"].endswith("; Secure")


def test_logins_end_when_they_are_not_used_and_at_last() -> None:
    now = 0.0
    logins = BrowserLogins(clock=lambda: now)
    cookie = f"other=1; {COOKIE}={logins.add('u', 'p')}"
    for _ in range(2):
        now += IDLE_SECONDS
        assert logins.find(cookie) == ("u", "p")
    now += IDLE_SECONDS + 1
    assert logins.find(cookie) is None
    began = now
    cookie = f"{COOKIE}={logins.add('u', 'p')}"
    while now - began <= LIFE_SECONDS:
        assert logins.find(cookie) == ("u", "p")
        now += IDLE_SECONDS / 2
    assert logins.find(cookie) is None


def test_logins_are_bounded() -> None:
    logins = BrowserLogins()
    cookies = [f"{COOKIE}={logins.add(str(number), 'p')}" for number in range(MAX_LOGINS + 3)]
    assert [logins.find(cookie) is None for cookie in cookies] == [True] * 3 + [False] * MAX_LOGINS


# ---- messages ----


async def test_browsing_leaves_messages_as_they_are(url: str) -> None:
    async with console_on(url) as client:
        name = "browse 'these'; {x: \"y\"}"
        path = "browse%20'these'%3B%20%7Bx%3A%20%22y%22%7D"
        assert (await client.ask("PUT", f"/api/queues/%2F/{path}", {"durable": True})).status == 201
        for number in range(5):
            sent = {
                "properties": {"delivery_mode": 2, "content_type": "text/plain", "headers": {"n": number}},
                "routing_key": name, "payload": f"message {number}", "payload_encoding": "string",
            }  # fmt: skip
            assert (await client.ask("POST", "/api/exchanges/%2F/amq.default/publish", sent)).value["routed"]
        for _ in range(2):
            found = await client.get(f"qstore/queues/%2F/{path}/browse?count=3")
            assert [each["payload"] for each in found] == ["message 0", "message 1", "message 2"]
        assert not any(each["redelivered"] for each in found)
        assert all(each["durable"] for each in found)
        assert found[2]["headers"]["n"] == 2
        assert found[0]["properties"]["content_type"] == "text/plain"
        assert len(await client.get(f"qstore/queues/%2F/{path}/browse")) == 5
        row = await client.get(f"queues/%2F/{path}")
        assert (row["messages_ready"], row["messages_unacknowledged"]) == (5, 0)


async def test_large_and_binary_messages_are_shown_in_part(url: str) -> None:
    async with console_on(url) as client:
        await client.ask("PUT", "/api/queues/%2F/large", {})
        sent: dict[str, Any] = {"properties": {}, "routing_key": "large", "payload_encoding": "base64"}
        for payload in ("/w" + "A" * 200_000, "////"):
            await client.ask("POST", "/api/exchanges/%2F/amq.default/publish", {**sent, "payload": payload + "=="[:2]})
        found = await client.get("qstore/queues/%2F/large/browse")
        assert [each["payload_encoding"] for each in found] == ["base64"] * len(found)
        assert any(each["is_cut"] and each["payload_bytes"] > 65536 for each in found)
        assert all(len(each["payload"]) <= 90_000 for each in found)


async def test_a_stream_is_shown_and_browsed_from_its_beginning(url: str) -> None:
    async with console_on(url) as client:
        arguments = {"x-queue-type": "stream", "x-max-age": "1h"}
        made = await client.ask("PUT", "/api/queues/%2F/log", {"durable": True, "arguments": arguments})
        assert made.status == 201
        for number in range(5):
            body = {"routing_key": "log", "payload": str(number), "payload_encoding": "string", "properties": {}}
            await client.ask("POST", "/api/exchanges/%2F/amq.default/publish", body)
        for _ in range(2):
            found = await client.get("qstore/queues/%2F/log/browse?count=3")
            assert [(each["payload"], each["headers"]["x-stream-offset"]) for each in found] == [
                ("0", 0), ("1", 1), ("2", 2),
            ]  # fmt: skip
        row = await client.get("queues/%2F/log")
        assert (row["type"], row["durable"], row["arguments"]) == ("stream", True, arguments)
        for method, path, body in (
            ("POST", "get", {"ackmode": "ack_requeue_true", "count": 1, "encoding": "auto"}),
            ("DELETE", "contents", None),
        ):
            refused = await client.ask(method, f"/api/queues/%2F/log/{path}", body)
            assert refused.status == 400
            assert "not supported by stream 'log'" in str(refused.value)


async def test_an_unknown_queue_cannot_be_browsed(url: str) -> None:
    async with console_on(url) as client:
        assert (await client.ask("GET", "/api/qstore/queues/%2F/none/browse")).status == 404
        assert "none" not in [row["name"] for row in await client.get("queues")]


# ---- access ----


async def test_a_decision_is_explained(make_broker: BrokerMaker, tmp_path: Path) -> None:
    rules = tmp_path / "rules.acl"
    rules.write_text(
        "acl deny bob publish exchange name=shop routingkey=order.*\nacl allow all all\n", encoding="utf-8"
    )
    broker = make_broker("--acl-file", str(rules)).start()
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        asked = {"user": "bob", "action": "publish", "object": "exchange", "name": "shop"}
        denied = {**asked, "properties": {"routingkey": "order.new"}}
        assert (await client.ask("POST", "/api/qstore/access", denied)).value == {"result": "deny"}
        allowed = {**asked, "properties": {"routingkey": "other"}}
        assert (await client.ask("POST", "/api/qstore/access", allowed)).value == {"result": "allow"}


async def test_without_rules_there_is_nothing_to_explain(url: str) -> None:
    async with console_on(url) as client:
        answer = await client.ask(
            "POST", "/api/qstore/access", {"user": "bob", "action": "publish", "object": "exchange"}
        )
        assert (answer.status, answer.value["error"]) == (409, "no_rules")


# ---- files ----


async def test_all_files_are_served_and_need_no_login(url: str) -> None:
    async with console_on(url) as client:
        for file in STATIC.iterdir():
            answer = await client.ask("GET", f"/{file.name}", user=None)
            assert (answer.status, answer.body) == (200, file.read_bytes())
        assert (await client.ask("GET", "/", user=None)).body == (STATIC / "index.html").read_bytes()


def test_the_files_need_nothing_from_elsewhere_and_parse_no_text_as_html() -> None:
    for file in STATIC.iterdir():
        content = file.read_text()
        urls = set(re.findall(r"https?://[^\s\"']+", content)) - {"http://www.w3.org/2000/svg"}
        assert not urls, file
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", content)
        assert file.suffix != ".html" or not re.search(r"\son\w+=|<style|style=|<script(?![^>]*src=)", content)


def test_numbers_with_a_noun_know_the_singular() -> None:
    """`1 message is deleted`, by `plural` of kit.js: no page puts a number in front of a plural."""
    wrong = re.compile(
        r"\$\{count\([^}]*\)\} (?:messages|queues|consumers|bindings are|enqueues|dequeues|connections)\b"
    )
    found = [match[0] for page in sorted(STATIC.glob("*.js")) for match in wrong.finditer(page.read_text())]
    assert found == []
