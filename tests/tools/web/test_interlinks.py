"""Domains and links of AMQP 1.0 over the API: who may make them, what is shown of them, what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker
from tests.tools.web.console_runs import Client, console_on
from tests.tools.web.test_access import ADMIN, ask
from tests.tools.web.test_access import running as running_with_users
from tests.tools.web.test_shovels import CAROL, EVE, add_users, publish

__all__ = ["make_broker"]

running = running_with_users
SECRET = "very-secret"


async def link_becomes(client: Client, **wanted: Any) -> dict[str, Any]:
    for _ in range(600):
        row = dict(await ask(client, 200, "GET", "qstore/interlinks/incoming/in"))
        if row.items() >= wanted.items():
            return row
        await asyncio.sleep(0.1)
    raise AssertionError(f"the link is not {wanted}, but {row}")


async def test_a_link_moves_messages_of_another_broker(running: RunningBroker, make_broker: BrokerMaker) -> None:
    far = make_broker().start()
    async with console_on(f"127.0.0.1:{far.port}") as client:
        await ask(client, 201, "PUT", "queues/%2F/a", {"durable": True}, user=("guest", "guest"))
        body = {"properties": {"delivery_mode": 2}, "routing_key": "a", "payload": "x", "payload_encoding": "string"}
        await ask(client, 200, "POST", "exchanges/%2F/amq.default/publish", body, user=("guest", "guest"))
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await add_users(client)
        await ask(client, 201, "PUT", "queues/%2F/b", {"durable": True})
        domain = {"url": f"127.0.0.1:{far.port}", "username": "guest", "password": SECRET, "durable": True}
        link = {"domain": "far", "source": "a", "target": "b", "durable": True}
        for user, status in ((EVE, 401), (CAROL, 201)):
            await ask(client, status, "PUT", "qstore/domains/far", domain, user=user)
            await ask(client, status, "PUT", "qstore/interlinks/incoming/in", link, user=user)
        row = await link_becomes(client, state="running", messages_forwarded=1, messages_pending=0)
        assert row.items() >= {
            "name": "in", "direction": "incoming", "domain": "far", "source": "a", "target": "b", "durable": True,
            "user": "carol@QPID", "failures": 0,
        }.items()  # fmt: skip
        shown = await ask(client, 200, "GET", "qstore/domains", user=EVE)
        assert shown == [
            {"name": "far", "url": domain["url"], "sasl_mechanisms": "", "username": "guest", "durable": True}
        ]
        assert await ask(client, 200, "GET", "qstore/domains/far") == shown[0]
        assert [each["name"] for each in await ask(client, 200, "GET", "qstore/interlinks", user=EVE)] == ["in"]
        await publish(client, "b")
        await ask(client, 204, "DELETE", "qstore/interlinks/incoming/in/restart", user=CAROL)
        await link_becomes(client, state="running")

        for path in ("qstore/domains/far", "qstore/interlinks/incoming/in", "qstore/interlinks/incoming/in/restart"):
            await ask(client, 401, "DELETE", path, user=EVE)
        refused = await ask(client, 400, "DELETE", "qstore/domains/far", user=CAROL)
        assert "in use" in refused["reason"]
        await ask(client, 204, "DELETE", "qstore/interlinks/incoming/in", user=CAROL)
        await ask(client, 204, "DELETE", "qstore/domains/far", user=CAROL)
        for path in ("qstore/domains", "qstore/interlinks"):
            assert await ask(client, 200, "GET", path) == []
    assert SECRET not in running.log_text()


async def test_what_is_wrong_is_said(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 400, "PUT", "qstore/domains/d", {})
        refused = await ask(client, 400, "PUT", "qstore/domains/d", {"url": f"amqp://u:{SECRET}@h"})
        assert SECRET not in str(refused)
        refused = await ask(client, 400, "PUT", "qstore/domains/d", {"url": "h", "min_ssf": 56})
        assert "needs TLS" in refused["reason"]
        for wrong_ssf in ({"min_ssf": "much"}, {"max_ssf": -1}, {"min_ssf": 256}):
            await ask(client, 400, "PUT", "qstore/domains/d", {"url": "ssl:h:5671", **wrong_ssf})
        await ask(client, 201, "PUT", "qstore/domains/tls", {"url": "ssl:h:5671", "min_ssf": 56, "max_ssf": 0})
        assert 'Domain "tls": max_ssf 0 is ignored' in running.log_text()
        await ask(client, 204, "DELETE", "qstore/domains/tls")
        await ask(client, 201, "PUT", "qstore/domains/d", {"url": "127.0.0.1:1"})
        assert "already exists" in (await ask(client, 400, "PUT", "qstore/domains/d", {"url": "h"}))["reason"]
        link = {"domain": "d", "source": "a", "target": "b"}
        for wrong in ({"domain": "d"}, {**link, "source": ""}, {**link, "durable": True}, {**link, "durable": "yes"}):
            await ask(client, 400, "PUT", "qstore/interlinks/outgoing/o", wrong)
        await ask(client, 404, "PUT", "qstore/interlinks/outgoing/o", {**link, "domain": "none"})
        await ask(client, 404, "PUT", "qstore/interlinks/sideways/o", link)
        await ask(client, 201, "PUT", "qstore/interlinks/outgoing/o", link)
        for method, path in (
            ("GET", "interlinks/incoming/o"), ("DELETE", "interlinks/incoming/o"), ("DELETE", "domains/none"),
            ("DELETE", "interlinks/outgoing/none/restart"), ("GET", "domains/none"),
        ):  # fmt: skip
            await ask(client, 404, method, f"qstore/{path}")
        await ask(client, 204, "DELETE", "qstore/interlinks/outgoing/o")
        await ask(client, 204, "DELETE", "qstore/domains/d")
