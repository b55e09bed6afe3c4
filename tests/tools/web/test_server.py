"""The HTTP server on a real broker: logins, limits, headers, and the resources of queues, exchanges and bindings."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import ssl
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from qstore.store.disk import OsWritableDisk
from qstore.store.repair.quarantine import QuarantineWriter
from qstore.tools.web.collector import Collector
from qstore.tools.web.logins import MAX_FAILURES, Logins
from qstore.tools.web.server import MAX_BODY, ServerSettings
from tests.broker.client.conftest import own_broker
from tests.support.certificates import Certificates
from tests.support.fixtures import StoreOpener
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import ROOT, BrokerMaker, RunningBroker, make_broker, one_broker
from tests.system.test_broker_in_doubt import start_on
from tests.tools.web.console_runs import Client, console_on

__all__ = ["make_broker", "own_broker"]

broker = pytest.fixture(one_broker, scope="module")
MESSAGE = {"properties": {}, "routing_key": "", "payload": "", "payload_encoding": "string"}


@pytest.fixture
def url(broker: RunningBroker) -> str:
    return f"127.0.0.1:{broker.port}"


# ---- queues, exchanges, bindings, messages ----


async def test_the_life_of_a_queue(url: str) -> None:
    async with console_on(url) as client:
        path = "/api/queues/%2F/life%20of%2Fa"
        body = {"durable": True, "arguments": {"x-max-length": 10}}
        assert (await client.ask("PUT", path, body)).status == 201
        assert (await client.ask("PUT", path, body)).status == 204
        refused = await client.ask("PUT", path, {"durable": False})
        assert (refused.status, refused.value["error"]) == (400, "bad_request")
        assert refused.value["reason"] == (
            "inequivalent arg 'durable' for queue 'life of/a' in vhost '/': received 'false' but current is 'true'"
        )
        found = await client.get("queues/%2F/life%20of%2Fa")
        assert (found["name"], found["arguments"], found["durable"]) == ("life of/a", {"x-max-length": 10}, True)
        message = {
            "properties": {"delivery_mode": 2},
            "routing_key": "life of/a",
            "payload": "x",
            "payload_encoding": "string",
        }
        assert (await client.ask("POST", "/api/exchanges/%2F/amq.default/publish", message)).value == {"routed": True}
        found = await client.get("queues/%2F/life%20of%2Fa")
        assert (found["messages"], found["type"]) == (1, "classic")
        assert (await client.ask("DELETE", f"{path}?if-empty=true")).status == 400
        assert (await client.ask("DELETE", f"{path}/contents")).status == 204
        assert (await client.get("queues/%2F/life%20of%2Fa"))["messages_ready"] == 0
        assert (await client.ask("DELETE", f"{path}?if-empty=true")).status == 204
        assert (await client.ask("GET", path)).status == 404
        assert "life of/a" not in [row["name"] for row in await client.get("queues")]


async def test_messages_keep_their_properties(url: str) -> None:
    properties = {
        "content_type": "text/plain", "headers": {"h": 1, "t": ["x", {"y": None}]}, "delivery_mode": 2, "priority": 3,
        "correlation_id": "c", "reply_to": "r", "expiration": "600000", "message_id": "m", "timestamp": 1700000000,
        "type": "ty", "app_id": "ap",
    }  # fmt: skip
    async with console_on(url) as client:
        await client.ask("PUT", "/api/queues/%2F/props", {})
        body = {"properties": properties, "routing_key": "props", "payload_encoding": "base64"}
        for payload in (b"\xff\x00", b"text"):
            sent = {**body, "payload": base64.b64encode(payload).decode()}
            assert (await client.ask("POST", "/api/exchanges/%2F/amq.default/publish", sent)).value["routed"]
        want = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
        first, second = (await client.ask("POST", "/api/queues/%2F/props/get", want)).value
        assert first["properties"] == properties
        assert (first["payload"], first["payload_encoding"], first["message_count"]) == ("/wA=", "base64", 1)
        assert (second["payload"], second["payload_encoding"], second["redelivered"]) == ("text", "string", False)
        want = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto", "truncate": 1}
        (again,) = (await client.ask("POST", "/api/queues/%2F/props/get", want)).value
        assert (again["payload_bytes"], again["redelivered"], again["payload"]) == (2, True, "/w==")
        want = {"count": 9, "ackmode": "reject_requeue_false", "encoding": "auto"}
        assert len((await client.ask("POST", "/api/queues/%2F/props/get", want)).value) == 1
        assert (await client.ask("POST", "/api/queues/%2F/props/get", want)).value == []
        refused = await client.ask("POST", "/api/queues/%2F/none/get", want)
        assert (refused.status, refused.value["error"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("exchanges/%2F/amq.default/publish", {"routing_key": "x", "payload": ""}, 400,
         "[{key_missing,properties},{key_missing,payload_encoding}]"),
        ("exchanges/%2F/none/publish", MESSAGE,
         400, "404 NOT_FOUND - no exchange 'none' in vhost '/'"),
        ("exchanges/%2F/amq.default/publish",
         {"properties": {}, "routing_key": "", "payload": "", "payload_encoding": "rot13"}, 400,
         ["unsupported_encoding", "rot13"]),
        ("queues/%2F/none/get", {"count": 1, "encoding": "auto"}, 400, "[{key_missing,ackmode}]"),
        ("exchanges/%2F/amq.default/publish",
         {"properties": {"priority": "x"}, "routing_key": "", "payload": "", "payload_encoding": "string"}, 400,
         ["not_an_integer", "priority"]),
    ],
)  # fmt: skip
async def test_nonsensical_requests_are_refused(url: str, path: str, body: Any, status: int, reason: Any) -> None:
    async with console_on(url) as client:
        answer = await client.ask("POST", f"/api/{path}", body)
        assert (answer.status, answer.value["reason"]) == (status, reason)


async def test_exchanges_and_bindings(url: str) -> None:
    async with console_on(url) as client:
        assert (await client.ask("PUT", "/api/exchanges/%2F/x1", {"type": "topic", "durable": True})).status == 201
        assert (await client.ask("PUT", "/api/exchanges/%2F/x1", {"type": "topic", "durable": True})).status == 204
        assert (await client.ask("PUT", "/api/exchanges/%2F/x1", {"type": "direct", "durable": True})).status == 400
        assert (await client.ask("PUT", "/api/exchanges/%2F/x9", {"type": "nonsense"})).status == 400
        assert (await client.ask("PUT", "/api/exchanges/%2F/x2", {"type": "headers"})).status == 201
        await client.ask("PUT", "/api/queues/%2F/b1", {})
        for place, body, location in (
            ("e/x1/q/b1", {"routing_key": "a.#"}, "b1/a.%2523"),
            ("e/x1/q/b1", {"routing_key": "b b/%~"}, "b1/b%2Bb%252F%2525%257E"),
            ("e/x1/q/b1", {}, "b1/~"),
            ("e/x1/e/x2", {"routing_key": "z"}, "x2/z"),
        ):
            answer = await client.ask("POST", f"/api/bindings/%2F/{place}", body)
            assert (answer.status, answer.headers["location"]) == (201, location)
        await client.ask("POST", "/api/bindings/%2F/e/x2/q/b1", {"routing_key": "", "arguments": {"k": 1}})
        await client.ask("POST", "/api/bindings/%2F/e/x2/q/b1", {"routing_key": "", "arguments": {"k": 2}})
        assert (await client.ask("POST", "/api/bindings/%2F/e/x1/q/none", {})).status == 404
        found = await client.get("bindings/%2F/e/x1/q/b1")
        assert sorted(row["routing_key"] for row in found) == ["", "a.#", "b b/%~"]
        assert [row["destination"] for row in await client.get("exchanges/%2F/x1/bindings/source")].count("b1") == 3
        assert len(await client.get("exchanges/%2F/x2/bindings/destination")) == 1
        of_queue = await client.get("queues/%2F/b1/bindings")
        assert {"source": "", "routing_key": "b1"}.items() <= of_queue[0].items()
        both = [row for row in of_queue if row["source"] == "x2"]
        assert sorted(row["arguments"]["k"] for row in both) == [1, 2]
        assert len({row["properties_key"] for row in both}) == 2
        for row in [*found, *both]:
            quoted = row["properties_key"].replace("%", "%25")
            path = f"/api/bindings/%2F/e/{row['source']}/q/b1/{quoted}"
            assert (await client.ask("GET", path)).value == row
            assert (await client.ask("DELETE", path)).status == 204
            assert (await client.ask("GET", path)).status == 404
        assert (await client.ask("DELETE", "/api/bindings/%2F/e/x1/e/x2/z")).status == 204
        assert (await client.ask("DELETE", "/api/exchanges/%2F/amq.direct")).status == 401
        for name in ("x1", "x2"):
            assert (await client.ask("DELETE", f"/api/exchanges/%2F/{name}?if-unused=true")).status == 204
        assert (await client.ask("GET", "/api/exchanges/%2F/x1")).status == 404


async def test_overview_counts_and_measures(url: str) -> None:
    async with console_on(url) as client:
        await client.ask("PUT", "/api/queues/%2F/rates", {})
        body = {"properties": {}, "routing_key": "rates", "payload": "x", "payload_encoding": "string"}
        before = (await client.get("overview"))["message_stats"]["publish"]
        for _ in range(20):
            await client.ask("POST", "/api/exchanges/%2F/amq.default/publish", body)

        def is_seen(value: Any) -> bool:
            return bool(
                value["message_stats"]["publish"] >= before + 20 and value["message_stats"]["publish_details"]["rate"]
            )

        found = await client.becomes("overview", is_seen)
        assert found["object_totals"]["queues"] == len(await client.get("queues"))
        assert found["queue_totals"]["messages"] >= 20
        assert found["object_totals"]["connections"] == 0  # the console's own are not counted
        one = await client.becomes("queues/%2F/rates?lengths_age=60&msg_rates_age=60", lambda row: (
            row["message_stats"]["publish_details"].get("samples") and row["messages_details"].get("samples")
        ))  # fmt: skip
        assert one["message_stats"]["publish"] == 20
        assert one["messages_details"]["samples"][0]["sample"] in range(21)


async def test_definitions_go_to_another_broker(url: str, make_broker: BrokerMaker) -> None:
    other = make_broker().start()
    async with console_on(url) as client, console_on(f"127.0.0.1:{other.port}") as second:
        await client.ask("PUT", "/api/queues/%2F/defs", {"durable": True, "arguments": {"x-max-length": 5}})
        await client.ask("PUT", "/api/exchanges/%2F/defx", {"type": "fanout", "durable": True})
        await client.ask("PUT", "/api/exchanges/%2F/defy", {"type": "topic", "durable": True})
        await client.ask("POST", "/api/bindings/%2F/e/defx/q/defs", {"routing_key": "k"})
        await client.ask("POST", "/api/bindings/%2F/e/defx/e/defy", {"routing_key": "l"})
        found = await client.get("definitions")
        assert (await second.ask("POST", "/api/definitions", found)).status == 204
        assert (await second.ask("POST", "/api/definitions", found)).status == 204
        there = await second.get("definitions")
        for kind in ("queues", "exchanges", "bindings"):
            assert sorted(map(str, there[kind])) == sorted(map(str, found[kind]))
        of_vhost = await second.get("definitions/%2F")
        assert "vhost" not in of_vhost["queues"][0]
        assert (await second.ask("POST", "/api/definitions", {"queues": "x"})).status == 400


# ---- what RabbitMQ has not ----


async def test_branches_in_doubt_are_ended(make_broker: BrokerMaker, open_fixture: StoreOpener) -> None:
    running = start_on(make_broker, open_fixture("legacy-d-dtx"))
    async with console_on(f"127.0.0.1:{running.port}") as client:
        found = await client.get("qstore/transactions")
        assert len(found) > 1
        assert all(row["in_doubt"] for row in found)
        for number, outcome in ((0, "commit"), (1, "rollback")):
            path = f"/api/qstore/transactions/{found[number]['xid']}/{outcome}"
            assert (await client.ask("POST", path, {})).status == 204
            assert (await client.ask("POST", path, {})).status == 404
        left = [row["xid"] for row in await client.get("qstore/transactions")]
        assert left == [row["xid"] for row in found[2:]]


async def test_store_and_journals(broker: RunningBroker, url: str) -> None:
    async with console_on(url) as client:
        await client.ask("PUT", "/api/queues/%2F/j", {"durable": True})
        await client.ask("PUT", "/api/queues/%2F/k", {"durable": True})
        body = {**MESSAGE, "properties": {"delivery_mode": 2}, "routing_key": "j"}
        await client.ask("POST", "/api/exchanges/%2F/amq.default/publish", body)
        journal = await client.get("qstore/journals/j")
        assert (journal["records"], journal["enqueues"], 0 < journal["fill"] <= 1) == (1, 1, True)
        assert {"j", "k"} <= {row["name"] for row in await client.get("qstore/journals?sort=fill")}
        assert (await client.ask("GET", "/api/qstore/journals/none")).status == 404
        assert (await client.get("qstore/store"))["location"] == str(broker.data_directory)
        assert await client.get("qstore/transactions") == []
        assert (await client.ask("POST", "/api/qstore/transactions/00/commit", {})).status == 404
        assert (await client.ask("POST", "/api/qstore/queues/%2F/j/move", {"destination": "k"})).status == 204
        assert (await client.get("queues/%2F/k"))["messages"] == 1
        assert (await client.get("qstore/objects/backup"))[0]["snapshots"] == 0
        assert (await client.ask("GET", "/api/qstore/objects/nonsense")).status == 404
        assert (await client.get("qstore/console"))["failed_logins"] == 0


async def test_the_quarantine_of_a_store_here(broker: RunningBroker, url: str) -> None:
    aside = broker.data_directory / "rhm" / "quarantine"
    async with console_on(url) as client:
        empty = {"is_local": True, "location": str(broker.data_directory), "files": [], "records": [], "problem": ""}
        assert await client.get("qstore/quarantine") == empty
        (aside / "journal-7").mkdir(parents=True)
        with contextlib.closing(
            QuarantineWriter(OsWritableDisk(), str(broker.data_directory / "quarantine"))
        ) as writer:
            writer.add("orders", "JournalData.0000.jdat", 512, b"damaged", "a broken record", 5)
        found = await client.get("qstore/quarantine")
        assert [each["name"] for each in found["files"]] == ["journal-7"]
        (record,) = found["records"]
        assert (record["queue"], record["offset"], record["injected"]) == ("orders", 512, False)


# ---- who may ask ----


async def test_without_a_login_nothing_is_disclosed(url: str) -> None:
    async with console_on(url) as client:
        for path in ("/api/overview", "/api/queues", "/api/whoami", "/api/qstore/journals"):
            answer = await client.ask("GET", path, user=None)
            assert (answer.status, answer.value["error"]) == (401, "not_authorized")
            assert answer.headers["www-authenticate"].startswith("Basic ")
        assert (await client.ask("GET", "/api/openapi.json", user=None)).status == 200


def with_users(make_broker: BrokerMaker, tmp_path: Path, *options: str) -> RunningBroker:
    """A broker with the users reader and writer, whose passwords are their names."""
    from click.testing import CliRunner

    from qstore.tools.qstore_passwd import command

    file = tmp_path / "users"
    for name in ("reader", "writer"):
        made = CliRunner().invoke(command, [str(file), name, "--stdin"], input=f"{name}\n")
        assert made.exit_code == 0, made.output
    return make_broker("--auth", "yes", "--user-file", str(file), *options).start()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("host/v?username=root;password=secret;ssl_trustfile=here", {}),
        ("root/secret@host/v?ssl_trustfile=here", {}),
        ("amqp://host/v", {"username": "root", "password": "secret", "ssl_trustfile": "here"}),
    ],
)
async def test_visitors_have_the_options_of_the_console_but_not_its_user(url: str, options: dict[str, Any]) -> None:
    async with console_on(url, **options) as client:
        logins, collector = client.server._logins, client.server._api.collector
        assert isinstance(logins, Logins)
        assert isinstance(collector, Collector)
        assert logins._url == collector.url == "tcp:host:5672"
        assert logins._place.options.ssl_trustfile == logins._options["ssl_trustfile"] == "here"
        assert logins._options.keys().isdisjoint({"username", "password"})
        assert (collector._options["username"], collector._options["password"]) == ("root", "secret")


async def test_users_are_those_of_the_broker(make_broker: BrokerMaker, tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text(
        "acl allow writer@QPID all all\nacl allow reader@QPID access all\nacl deny reader@QPID create queue\n"
        "acl deny all all\n"
    )
    running = with_users(make_broker, tmp_path, "--acl-file", str(rules))
    async with console_on(f"127.0.0.1:{running.port}", named=("writer", "writer")) as client:
        assert (await client.get("whoami", user=("reader", "reader")))["name"] == "reader"
        answer = await client.ask("PUT", "/api/queues/%2F/q", {}, user=("reader", "reader"))
        assert (answer.status, answer.value["error"]) == (401, "not_authorised")
        assert (await client.ask("PUT", "/api/queues/%2F/q", {}, user=("writer", "writer"))).status == 201
        wrong = await client.ask("GET", "/api/whoami", user=("reader", "writer"))
        assert (wrong.status, wrong.value) == (401, {"error": "not_authorized", "reason": "Login failed"})


async def test_failed_logins_are_limited_and_valid_ones_stay(make_broker: BrokerMaker, tmp_path: Path) -> None:
    running = with_users(make_broker, tmp_path)
    async with console_on(f"127.0.0.1:{running.port}", named=("writer", "writer")) as client:
        assert (await client.ask("GET", "/api/whoami", user=("writer", "writer"))).status == 200
        for number in range(MAX_FAILURES):
            assert (await client.ask("GET", "/api/whoami", user=("writer", f"guess{number}"))).status == 401
        refused = await client.ask("GET", "/api/whoami", user=("writer", "one more"))
        assert refused.status == 429
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert (await client.ask("GET", "/api/whoami", user=("reader", "reader"))).status == 429
        assert (await client.ask("GET", "/api/whoami", user=("writer", "writer"))).status == 200
        assert "guess" not in running.log_text()


# ---- what is said beside the answer ----


async def test_every_answer_has_the_headers_of_security(url: str) -> None:
    async with console_on(url) as client:
        for method, path, user in (
            ("GET", "/", None), ("GET", "/api/overview", ("guest", "guest")), ("GET", "/api/overview", None),
            ("GET", "/api/none", None), ("POST", "/api/overview", None), ("GET", "/metrics", None),
            ("GET", "/none.js", None), ("OPTIONS", "/api/queues", None), ("HEAD", "/api/queues", ("guest", "guest")),
        ):  # fmt: skip
            headers = (await client.ask(method, path, user=user)).headers
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["cache-control"] in ("no-store", "no-cache")
            assert "access-control-allow-origin" not in headers


async def test_pages_of_other_servers_change_nothing(url: str) -> None:
    settings = ServerSettings(cors_origins=("https://friend.example",))
    async with console_on(url, settings) as client:
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            assert (await client.ask("PUT", "/api/queues/%2F/csrf", {}, headers=headers)).status == 403
        assert (await client.ask("GET", "/api/queues/%2F/csrf")).status == 404
        own = {"Origin": client.url, "Sec-Fetch-Site": "same-origin"}
        assert (await client.ask("PUT", "/api/queues/%2F/csrf", {}, headers=own)).status == 201
        friend = {"Origin": "https://friend.example", "Sec-Fetch-Site": "cross-site"}
        answer = await client.ask("DELETE", "/api/queues/%2F/csrf", headers=friend)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, "https://friend.example")
        preflight = await client.ask("OPTIONS", "/api/queues", headers=friend, user=None)
        assert "authorization" in preflight.headers["access-control-allow-headers"]


async def test_bodies_are_bounded(url: str) -> None:
    async with console_on(url) as client:
        answer = await client.ask("PUT", "/api/queues/%2F/big", raw=b" " * (MAX_BODY + 1))
        assert (answer.status, answer.value["error"]) == (413, "payload_too_large")
        assert (await client.ask("GET", "/api/queues/%2F/big")).status == 404
        assert (await client.ask("PUT", "/api/queues/%2F/big", raw=b"\xff")).status == 400
        assert (await client.ask("GET", "/api/queues/%ff/x")).status == 400
        assert (await client.ask("GET", "/api/" + "x" * 20000)).status == 400


async def test_sockets_are_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.tools.web.server.MAX_SOCKETS", 3)
    async with console_on(url) as client:
        place = "127.0.0.1", client.server.port
        held = [await asyncio.open_connection(*place) for _ in range(3)]
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection(*place)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        for _, each in (*held, (reader, writer)):
            each.close()
            with contextlib.suppress(ConnectionError):
                await each.wait_closed()
        await asyncio.sleep(0.1)
        assert (await client.ask("GET", "/api/whoami")).status == 200


async def test_files_of_the_console_are_served_and_no_others(url: str, tmp_path: Path) -> None:
    (tmp_path / "static" / "a").mkdir(parents=True)
    (tmp_path / "static" / "index.html").write_text("<!doctype html>")
    (tmp_path / "static" / "a" / "b.js").write_text("1")
    (tmp_path / "static" / "c.py").write_text("1")
    (tmp_path / "secret.txt").write_text("secret")
    async with console_on(url, ServerSettings(static=tmp_path / "static")) as client:
        for path, kind in (("/", "text/html"), ("/queues", "text/html"), ("/a/b.js", "text/javascript")):
            answer = await client.ask("GET", path, user=None)
            assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, kind)
        for path in (
            "/../secret.txt",
            "/%2e%2e/secret.txt",
            "/a/..%2f..%2fsecret.txt",
            "/c.py",
            "/a//b.js",
            "/none.js",
        ):
            assert (await client.ask("GET", path, user=None)).status == 404
        assert (await client.ask("POST", "/", user=None)).status == 405


async def test_over_tls(url: str, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    settings = ServerSettings(certificate=certificates.server())
    async with console_on(url, settings) as client:
        answer = await client.ask("GET", "/api/whoami", tls=ssl.create_default_context(cafile=certificates.trusted))
        assert answer.value["name"] == "guest"


async def test_unexpected_errors_are_logged_and_not_disclosed(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with console_on(url) as client:
        monkeypatch.setattr(client.server._api.resources, "find", lambda *_: 1 / 0)
        answer = await client.ask("GET", "/api/whoami")
        assert (answer.status, answer.value["error"]) == (500, "internal_error")
        assert "Zero" not in answer.value["reason"]
        assert "ZeroDivisionError" in caplog.text
        assert "Z3Vlc3Q6Z3Vlc3Q=" not in caplog.text  # guest:guest


async def test_a_broker_that_is_gone_is_503_and_comes_back(own_broker: RunningBroker) -> None:
    await asyncio.to_thread(own_broker.stop)
    async with console_on(f"127.0.0.1:{own_broker.port}") as client:
        answer = await client.ask("GET", "/api/overview")
        assert (answer.status, answer.value["error"]) == (503, "service_unavailable")
        assert (await client.ask("GET", "/metrics", user=None)).status == 503
        await asyncio.to_thread(own_broker.start)
        await client.becomes("overview", lambda value: value["queue_totals"]["messages"] == 0)
        assert (await client.ask("PUT", "/api/queues/%2F/kept", {"durable": True})).status == 201
        await asyncio.to_thread(own_broker.kill)
        async with asyncio.timeout(PATIENCE_SECONDS):  # what was sampled last is shown until the connection is lost
            while (await client.ask("GET", "/api/overview")).status != 503:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(own_broker.start)
        found = await client.becomes("queues")
        assert [row["name"] for row in found] == ["kept"]
        assert (await client.ask("PUT", "/api/queues/%2F/kept", {"durable": True})).status == 204


# ---- metrics ----


async def metrics(client: Client, path: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    answer = await client.ask("GET", path, user=None)
    assert answer.status == 200, answer.body
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


async def sizes_of_messages(client: Client, count: int) -> dict[str, float]:
    """The histogram of AMQP 0-9-1, once so many messages of 101 to 1,000 bytes are in it: a timer counts them."""
    name = "rabbitmq_message_size_bytes"
    while True:
        found = await metrics(client, "/metrics")
        buckets = {
            labels["le"].removesuffix(".0"): value
            for labels, value in found.get(f"{name}_bucket", [])
            if labels["protocol"] == "amqp091"
        }
        if buckets and buckets["1000"] - buckets["100"] >= count:
            for each in ("sum", "count"):
                buckets[each] = next(v for labels, v in found[f"{name}_{each}"] if labels["protocol"] == "amqp091")
            return buckets
        await asyncio.sleep(0.2)


async def test_metrics_are_parsed_and_right(url: str) -> None:
    async with console_on(url) as client:
        await client.ask("PUT", "/api/queues/%2F/m%22%5C1", {"durable": True})
        body = {
            "properties": {"delivery_mode": 2},
            "routing_key": 'm"\\1',
            "payload": "x" * 150,  # other tests send less than 100 bytes, which may be counted before these
            "payload_encoding": "string",
        }
        for _ in range(3):
            await client.ask("POST", "/api/exchanges/%2F/amq.default/publish", body)
        total = await metrics(client, "/metrics")
        assert total["rabbitmq_queues"][0][1] == len(await client.get("queues"))
        assert total["rabbitmq_queue_messages"][0][1] == sum(row["messages"] for row in await client.get("queues"))
        assert total["rabbitmq_build_info"][0][0]["rabbitmq_version"]
        assert total["qstore_store_sync_seconds_count"][0][1] == total["qstore_store_flush_bytes_count"][0][1] > 0
        buckets = [value for _, value in total["qstore_store_sync_seconds_bucket"]]
        assert buckets == sorted(buckets)
        assert buckets[-1] == total["qstore_store_sync_seconds_count"][0][1]
        assert total["qstore_store_flush_bytes_sum"][0][1] >= 512
        assert total["qstore_store_sync_seconds_sum"][0][1] > 0
        sizes = await sizes_of_messages(client, 3)
        assert sizes["1000"] == sizes["+Inf"] == sizes["count"]
        assert sizes["1000"] - sizes["100"] == 3
        assert 0 <= sizes["sum"] - 3 * 150 <= 100 * sizes["100"]
        each = await metrics(client, "/metrics/per-object")
        labels = {"vhost": "/", "queue": 'm"\\1'}
        assert (labels, 3.0) in each["rabbitmq_queue_messages"]
        assert (labels, 3.0) in each["rabbitmq_queue_messages_published_total"]
        assert (labels, 3.0) in each["qstore_journal_records"]
        some = await metrics(client, "/metrics/detailed?family=queue_coarse_metrics&family=nonsense")
        assert (labels, 3.0) in some["rabbitmq_detailed_queue_messages_ready"]
        assert all(name.startswith("rabbitmq_detailed_queue_messages") for name in some)
        assert await metrics(client, "/metrics/detailed?family=queue_coarse_metrics&vhost=none") == {}
        assert (await client.ask("GET", "/metrics/none", user=None)).status == 404


async def test_the_dashboard_draws_what_is_there(url: str) -> None:
    dashboard = json.loads((ROOT / "tools" / "packaging" / "qstore-dashboard.json").read_text())
    drawn = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", []))
    async with console_on(url) as client:
        there = await metrics(client, "/metrics")
    wanted = set(re.findall(r"\b(?:rabbitmq|qstore)_\w+", drawn))
    assert len(wanted) > 20
    assert wanted - there.keys() == set()
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(places) == len(set(places))


OVERVIEW = """
    identity_info build_info queue_messages_ready queue_messages_unacked queues queues_declared_total
    queues_created_total queues_deleted_total channels channels_opened_total channels_closed_total connections
    connections_opened_total connections_closed_total consumers process_resident_memory_bytes
    resident_memory_limit_bytes disk_space_available_bytes disk_space_available_limit_bytes process_max_fds
    process_open_fds process_max_tcp_sockets process_open_tcp_sockets global_publishers global_consumers
    global_messages_received_total global_messages_received_confirm_total global_messages_confirmed_total
    global_messages_routed_total global_messages_unroutable_dropped_total global_messages_unroutable_returned_total
    global_messages_redelivered_total global_messages_delivered_total global_messages_acknowledged_total
    global_messages_delivered_consume_manual_ack_total global_messages_delivered_consume_auto_ack_total
    global_messages_delivered_get_manual_ack_total global_messages_delivered_get_auto_ack_total
    global_messages_get_empty_total message_size_bytes_bucket
"""
"""Metrics that RabbitMQ's dashboard RabbitMQ-Overview asks for, without the prefix."""


async def test_rabbitmqs_dashboard_has_data(url: str) -> None:
    for path, endpoint in (("/metrics", "aggregated"), ("/metrics/per-object", "per-object")):
        async with console_on(url) as client:
            there = await metrics(client, path)
        assert {f"rabbitmq_{name}" for name in OVERVIEW.split()} - there.keys() == set()
        (identity,) = [labels for labels, _ in there["rabbitmq_identity_info"]]
        assert identity.keys() >= {"rabbitmq_node", "rabbitmq_cluster"}
        assert identity["rabbitmq_endpoint"] == endpoint  # the dashboard shows one of them


async def test_metrics_are_closed_where_others_can_reach_them(url: str) -> None:
    async with console_on(url, ServerSettings(open_metrics=False)) as client:
        assert (await client.ask("GET", "/metrics", user=None)).status == 401
        assert (await client.ask("GET", "/metrics")).status == 200
    async with console_on(url) as client:
        rebound = {"Host": "evil.example:15672"}
        assert (await client.ask("GET", "/metrics", user=None, headers=rebound)).status == 403
