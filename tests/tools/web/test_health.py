"""What is wrong with a broker: alarms, checks, certificates, the log; and what one can do about a consumer."""

from __future__ import annotations

import asyncio
import datetime
import os
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from qstore.broker.client import MessagingError
from qstore.broker.client.aio import Connection
from qstore.broker.management.console import Data
from qstore.broker.security.tls import certificate_expiry
from qstore.tools import qstore_dump
from qstore.tools.qstore_passwd import command as qstore_passwd
from qstore.tools.web.health import alarms_of
from qstore.tools.web.server import ServerSettings
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker, one_broker
from tests.tools.web.console_runs import Client, console_on

__all__ = ["make_broker"]

broker = pytest.fixture(one_broker, scope="module")
MIB = 1 << 20
FINE = {
    "memoryLimit": 100 * MIB, "memoryUsed": MIB, "memoryState": "ample", "diskFree": 50 * MIB, "diskTotal": 100 * MIB,
    "diskKept": 5 * MIB, "slowedJournals": [], "storeFailure": "",
}  # fmt: skip


def state(**changed: Any) -> Data:
    return Data({**FINE, **changed})


@pytest.mark.parametrize(
    ("changed", "resource", "reported"),
    [
        (
            {"memoryState": "short", "memoryUsed": 90 * MIB},
            "memory",
            "90 of 100 MiB of memory, and publishers are",
        ),
        (
            {"memoryState": "full", "memoryUsed": 100 * MIB},
            "memory",
            "messages are refused: consume messages, or",
        ),
        ({"diskFree": 4 * MIB}, "disk", "has 4 MiB free, and journals no longer grow below 5 MiB"),
        ({"slowedJournals": ["orders"]}, "journal", "cannot grow"),
        ({"storeFailure": "EIO"}, "store", "can no longer write: EIO"),
    ],
)
def test_an_alarm_says_what_is_wrong(changed: dict[str, Any], resource: str, reported: str) -> None:
    (found,) = alarms_of(state(**changed), 10, 1024)
    assert (found.resource, found.is_warning) == (resource, False)
    assert reported in found.text


def test_an_alarm_of_a_journal_names_its_virtual_host_apart() -> None:
    found = alarms_of(state(slowedJournals=["orders", "blue\x1forders"]), 10, 1024)
    assert [(each.vhost, each.subject) for each in found] == [("/", "orders"), ("blue", "orders")]


def test_no_alarm_without_a_reason() -> None:
    assert alarms_of(state(), 10, 1024) == []
    assert alarms_of(state(diskFree=-1, memoryLimit=0), 0, 0) == []  # nothing is known
    assert alarms_of(None, 900, 1024) == []  # an older broker
    assert [each.resource for each in alarms_of(None, 1000, 1024)] == ["file_descriptor"]


async def metrics(client: Client) -> dict[str, float]:
    text = (await client.ask("GET", "/metrics", user=None)).body.decode()
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "alarms" in sample.name or "limit_bytes" in sample.name
    }


async def test_memory_and_disk_raise_alarms_everywhere(make_broker: BrokerMaker) -> None:
    running = make_broker("--broker-memory", "2M", "--max-paging-size", "1K", "--disk-free-limit", "95").start()
    async with console_on(f"127.0.0.1:{running.port}") as client:
        node = (await client.get("nodes"))[0]
        assert node["mem_limit"] == 2 * MIB
        assert not node["mem_alarm"]
        is_full = node["disk_free"] < node["disk_free_limit"]
        assert node["disk_free_alarm"] == is_full
        assert (await client.ask("PUT", "/api/queues/%2F/q", {})).status == 201
        body = {"properties": {}, "routing_key": "q", "payload": "x" * 60_000, "payload_encoding": "string"}
        for _ in range(40):
            answer = await client.ask("POST", "/api/exchanges/%2F/amq.default/publish", body)
            if answer.status != 200:
                break
        node = await client.becomes("nodes", lambda found: found[0]["mem_alarm"])
        for path in ("alarms", "local-alarms"):
            answer = await client.ask("GET", f"/api/health/checks/{path}")
            assert (answer.status, answer.value["status"]) == (503, "failed")
            assert "memory" in [each["resource"] for each in answer.value["alarms"]]
        found = await client.get("qstore/alarms")
        (memory,) = [each for each in found["alarms"] if each["resource"] == "memory"]
        assert (memory["level"], memory["since"] > 1.6e9) == ("alarm", True)
        assert found["resources"]["memory_limit"] == 2 * MIB
        assert found["resources"]["disk_total"] * 95 // 100 == found["resources"]["disk_limit"]
        reported = await metrics(client)
        assert reported["rabbitmq_alarms_memory_used_watermark"] == reported["qstore_alarmsmemory"] == 1
        assert reported["rabbitmq_alarms_free_disk_space_watermark"] == reported["qstore_alarmsdisk"] == is_full
        assert reported["rabbitmq_resident_memory_limit_bytes"] == 2 * MIB
        assert (await client.ask("DELETE", "/api/queues/%2F/q/contents")).status == 204
        await client.becomes("nodes", lambda found: not found[0]["mem_alarm"])


async def test_a_nearly_full_journal_is_a_warning_and_no_alarm(broker: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        arguments = {"qpid.file_count": 4, "qpid.file_size": 1, "qpid.auto_expand_max_jfiles": 4}
        assert (
            await client.ask("PUT", "/api/queues/%2F/full", {"durable": True, "arguments": arguments})
        ).status == 201
        body = {
            "properties": {"delivery_mode": 2}, "routing_key": "full", "payload": "x" * 20_000,
            "payload_encoding": "string",
        }  # fmt: skip
        while (await client.ask("POST", "/api/exchanges/%2F/amq.default/publish", body)).status == 200:
            pass
        found = await client.becomes("qstore/alarms", lambda found: found["alarms"])
        assert [(each["resource"], each["vhost"], each["queue"], each["level"]) for each in found["alarms"]] == [
            ("journal", "/", "full", "warning")
        ]
        assert await client.get("health/checks/alarms") == {"status": "ok"}
        await client.ask("DELETE", "/api/queues/%2F/full")


# ---- what holds a journal back ----


async def test_the_oldest_live_record_and_what_keeps_it(make_broker: BrokerMaker) -> None:
    running = make_broker().start()
    async with console_on(f"127.0.0.1:{running.port}") as client:
        assert (await client.ask("PUT", "/api/queues/%2F/q", {"durable": True})).status == 201
        empty = await client.get("qstore/journals/q")
        assert (empty["oldest"], empty["held_by"], empty["ring_used"]) == (None, "", 1)
        assert len(empty["ring"]) == empty["files"]
        message = {"properties": {"delivery_mode": 2}, "routing_key": "q", "payload_encoding": "string"}
        for payload in ("first", "second", "third"):
            await client.ask("POST", "/api/exchanges/%2F/amq.default/publish", {**message, "payload": payload})
        found = await client.get("qstore/journals/q")
        assert (found["held_by"], found["message_state"]) == ("message", "waiting")
        assert found["ring"][0]["live"] == 3
        async with Connection(f"127.0.0.1:{running.port}") as connection, await connection.session() as session:
            receiver = await session.receiver("q")
            got = await receiver.fetch(PATIENCE_SECONDS)
            assert got.body == b"first"
            held = await client.get("qstore/journals/q")
            assert (held["message_state"], held["oldest"]) == ("delivered", found["oldest"])
            await session.acknowledge()
        later = await client.becomes("qstore/journals/q", lambda row: row["oldest"] != found["oldest"])
    running.stop()
    dumped = CliRunner().invoke(
        qstore_dump.command, ["--json", "--outstanding", "--queue", "q", str(running.data_directory)]
    )
    assert f'"rid":{later["oldest"]["rid"]},' in dumped.output.replace(" ", "").splitlines()[-2]
    records = CliRunner().invoke(qstore_dump.command, ["--json", "--queue", "q", str(running.data_directory)])
    wanted = [
        line
        for line in records.output.replace(" ", "").splitlines()
        if f'"rid":{later["oldest"]["rid"]},' in line and '"type":"enqueue"' in line
    ]
    assert len(wanted) == 1
    assert f'"offset":{later["oldest"]["offset"]},' in wanted[0]


# ---- the log ----


async def test_administrators_see_the_log_without_secrets(make_broker: BrokerMaker, tmp_path: Path) -> None:
    file = tmp_path / "users"
    for name, tag in (("root", "administrator"), ("watcher", "monitoring")):
        made = CliRunner().invoke(qstore_passwd, ["--tags", tag, "--stdin", str(file), name], input=f"{name}\n")
        assert made.exit_code == 0, made.output
    running = make_broker(
        "--auth", "yes", "--user-file", os.fspath(file), "--log-enable", "debug+", "--log-enable", "trace+:Protocol"
    ).start()
    root, watcher = ("root", "root"), ("watcher", "watcher")
    async with console_on(f"127.0.0.1:{running.port}", named=root) as client:
        for user in (root, watcher):
            assert (await client.ask("GET", "/api/whoami", user=user)).status == 200
        first = (await client.ask("GET", "/api/qstore/log", user=root)).value
        assert any("Broker running" in line for line in first["lines"])
        assert (await client.ask("GET", "/api/qstore/log", user=watcher)).status == 401
        assert (await client.ask("GET", "/api/whoami", user=("root", "wrong-secret-1"))).status == 401
        body = {"password": "new-secret-2", "tags": ""}
        assert (await client.ask("PUT", "/api/users/bob", body, user=root)).status == 201
        assert (await client.ask("PUT", "/api/queues/%2F/told", {}, user=root)).status == 201
        new = (await client.ask("GET", f"/api/qstore/log?after={first['last']}&count=1000", user=root)).value
        assert new["first"] == first["last"] + 1
        assert any('Queue "told" created' in line for line in new["lines"])
        everything = (await client.ask("GET", "/api/qstore/log?count=1000", user=root)).value
        text = "\n".join(everything["lines"])
        assert "secret" not in text
        assert "RECV" not in text  # of a trace, which would push everything else out
        assert (await client.ask("GET", "/api/qstore/log?after=x", user=root)).status == 400


# ---- closing a consumer ----


async def test_one_consumer_is_closed(broker: RunningBroker) -> None:
    import aio_pika

    async with console_on(f"127.0.0.1:{broker.port}") as client:
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{broker.port}/")
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("consumed", durable=True)
            got: asyncio.Queue[str] = asyncio.Queue()

            def take(tag: str) -> Any:
                async def took(message: Any) -> None:
                    await message.ack()
                    await got.put(tag)

                return took

            for tag in ("one", "two"):
                await queue.consume(take(tag), consumer_tag=tag)
            rows = await client.becomes("consumers", lambda found: len(found) == 2)
            key = {row["consumer_tag"]: row["subscription"] for row in rows}["one"].replace("/", "%2F")
            assert (await client.ask("DELETE", f"/api/qstore/subscriptions/{key}")).status == 204
            assert (await client.ask("DELETE", f"/api/qstore/subscriptions/{key}")).status == 404
            await client.becomes("consumers", lambda found: [row["consumer_tag"] for row in found] == ["two"])
            for _ in range(4):
                await channel.default_exchange.publish(aio_pika.Message(b"x"), "consumed")
            assert {await asyncio.wait_for(got.get(), PATIENCE_SECONDS) for _ in range(4)} == {"two"}


async def test_closing_a_subscription_of_0_10_ends_its_session_only(broker: RunningBroker) -> None:
    def watches(row: dict[str, Any]) -> bool:
        return bool(row["queue"]["name"] == "watched")

    url = f"127.0.0.1:{broker.port}"
    async with console_on(url) as client, Connection(url) as connection:
        other = await connection.session()
        session = await connection.session()
        receiver = await session.receiver("watched; {create: always}", capacity=10)
        rows = await client.becomes("consumers", lambda found: any(map(watches, found)))
        (key,) = [row["subscription"] for row in rows if watches(row)]
        assert (await client.ask("DELETE", f"/api/qstore/subscriptions/{key.replace('/', '%2F')}")).status == 204
        with pytest.raises(MessagingError, match="closed by management"):
            await receiver.fetch(PATIENCE_SECONDS)
        await other.sync()


# ---- certificates ----


def certificate_until(directory: Path, days: int, name: str) -> str:
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    made = trustme.CA().issue_cert("127.0.0.1", not_after=end)
    path = directory / name
    path.write_bytes(made.private_key_and_cert_chain_pem.bytes())
    path.chmod(0o600)
    return str(path)


def test_the_end_of_a_certificate(tmp_path: Path) -> None:
    soon = certificate_until(tmp_path, 20, "soon.pem")
    left = certificate_expiry(soon) - datetime.datetime.now(datetime.UTC).timestamp()
    assert 19 * 86400 < left <= 20 * 86400
    late = certificate_until(tmp_path, 365 * 100, "late.pem")  # a time with four digits of the year
    assert certificate_expiry(late) > certificate_expiry(soon) + 10 * 365 * 86400
    both = tmp_path / "both.pem"
    both.write_bytes(Path(late).read_bytes() + Path(soon).read_bytes())
    assert certificate_expiry(str(both)) == certificate_expiry(soon)
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    for path in (str(broken), str(tmp_path / "none.pem"), os.devnull):
        assert certificate_expiry(path) == 0


async def test_certificates_that_end_soon_fail_a_check(make_broker: BrokerMaker, tmp_path: Path) -> None:
    of_broker = certificate_until(tmp_path, 20, "broker.pem")
    running = make_broker("--ssl-cert", of_broker, "--ssl-port", "0").start()
    own = certificate_until(tmp_path, 100, "console.pem")
    check = "/api/health/checks/certificate-expiration/"
    async with console_on(f"127.0.0.1:{running.port}", ServerSettings(certificate=own)) as client:

        async def ask(path: str) -> Any:
            return await client.ask("GET", check + path, tls=False)

        assert (await ask("2/weeks")).value == {"status": "ok"}
        answer = await ask("1/months")
        assert (answer.status, answer.value["reason"]) == (503, "Certificates expiring")
        assert [each["certificate"] for each in answer.value["expired"]] == ["the broker"]
        assert len((await ask("1/year")).value["expired"]) == 2
        for wrong in ("1/fortnights", "0/days", "x/days", "-1/days"):
            assert (await ask(wrong)).status == 400
        (warning,) = (await client.ask("GET", "/api/qstore/alarms", tls=False)).value["alarms"]
        assert (warning["resource"], warning["level"]) == ("certificate", "warning")
        assert "expires in 20 days" in warning["text"]
