"""Shovels and federation links, as RabbitMQ's API has them; domains and the links through them, which it has not.

The broker's management knows what they do, parameters and policies what they are to do. Domains, and the links of
AMQP 1.0 that the broker attaches through them, are objects of its management alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from qstore.broker.federation.interlinks import INCOMING, OUTGOING
from qstore.tools.console.amounts import plain
from qstore.tools.web import rows
from qstore.tools.web.calls import Call, Reply, Row, boolean, listed, not_found, text, whole

if TYPE_CHECKING:
    from qstore.broker.management.console import Data
    from qstore.tools.web.resources import Api

_PLACES: Final = (("src", "source"), ("dest", "destination"))
_NAMES: Final = {
    "uri": "uri", "queue": "queue", "exchange": "exchange", "exchange-key": "exchange_key", "protocol": "protocol",
    "address": "address",
}  # fmt: skip


def _time(nanoseconds: object) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(int(str(nanoseconds or 0)) // 10**9))


def _row(data: Data, node: str) -> Row:
    """A shovel. RabbitMQ shows its places while it runs, and the reason while it does not."""
    found: Row = {
        "node": node,
        "timestamp": _time(data.get("since")),
        "name": data.get("name"),
        "vhost": data.get("vhost"),
        "type": "dynamic",
        "state": data.get("state"),
        "blocked_status": "blocked" if data.get("blocked") else "running",
        "messages_forwarded": rows.number(data, "forwarded"),
        "messages_pending": rows.number(data, "pending"),
        "failures": rows.number(data, "failures"),
    }
    if rows.number(data, "remaining") >= 0:
        found["messages_remaining"] = rows.number(data, "remaining")
    if data.get("reason"):
        found["reason"] = data.get("reason")
    for prefix, name in _PLACES:
        place = plain(data.get(name) or {})
        found |= {f"{prefix}_{_NAMES[key]}": text for key, text in place.items() if key in _NAMES}
        found[f"{prefix}_protocol"] = place.get("protocol", "amqp091")
    return found


async def _rows(api: Api) -> list[Row]:
    node = await api.node()
    found = [_row(data, node) for data in await api.collector.get("shovel", 1.0)]
    return sorted(found, key=lambda row: (row["vhost"], row["name"]))


async def shovels(api: Api, call: Call) -> Reply:
    """The shovels: all, or those of a virtual host."""
    vhost = call.path.get("vhost")
    if vhost is not None:
        await api.check_vhost(vhost)
    return Reply(value=listed(call, [row for row in await _rows(api) if vhost in (None, row["vhost"])]))


async def _one(api: Api, call: Call) -> Row:
    wanted = call.path["vhost"], call.path["name"]
    row = next((row for row in await _rows(api) if (row["vhost"], row["name"]) == wanted), None)
    if row is None:
        raise not_found()
    return row


async def shovel(api: Api, call: Call) -> Reply:
    """One shovel."""
    return Reply(value=await _one(api, call))


async def restart_shovel(api: Api, call: Call) -> Reply:
    """Restart a shovel now."""
    await _one(api, call)
    console = await call.session.console()
    async for data in console.query("shovel"):
        if (data.get("vhost"), data.get("name")) == (call.path["vhost"], call.path["name"]):
            await console.call(data, "restart", {})
    api.collector.changed("shovel")
    return Reply(204)


async def delete_shovel(api: Api, call: Call) -> Reply:
    """Delete a shovel, with its parameter."""
    await _one(api, call)
    options = {"vhost": call.path["vhost"], "component": "shovel"}
    arguments: dict[str, Any] = {"type": "parameter", "name": call.path["name"], "options": options}
    await (await call.session.console()).call("broker", "delete", arguments)
    api.collector.changed("shovel")
    return Reply(204)


# ---- links of federated exchanges and queues ----


def _link_row(data: Data, node: str) -> Row:
    kind, state = str(data.get("kind")), str(data.get("state"))
    found: Row = {
        "node": node,
        kind: data.get("name"),
        f"upstream_{kind}": data.get("remote"),
        "type": kind,
        "vhost": data.get("vhost"),
        "upstream": data.get("upstream"),
        "id": data.get("id"),
        "status": state,
        "uri": data.get("uri"),
        "timestamp": _time(data.get("since")),
        "messages_forwarded": rows.number(data, "forwarded"),
        "messages_pending": rows.number(data, "pending"),
        "failures": rows.number(data, "failures"),
    }
    if kind == "queue":
        found["consumer_tag"] = data.get("consumerTag")
    if data.get("error"):
        found["error"] = data.get("error")
    return found


async def _link_rows(api: Api) -> list[Row]:
    node = await api.node()
    found = [_link_row(data, node) for data in await api.collector.get("federationLink", 1.0)]
    return sorted(found, key=lambda row: (row["vhost"], row["type"], row[row["type"]], row["upstream"]))


async def links(api: Api, call: Call) -> Reply:
    """The federation links: all, or those of a virtual host."""
    vhost = call.path.get("vhost")
    if vhost is not None:
        await api.check_vhost(vhost)
    return Reply(value=listed(call, [row for row in await _link_rows(api) if vhost in (None, row["vhost"])]))


async def links_down(api: Api, call: Call) -> Reply:
    """Those that do not run."""
    vhost = call.path.get("vhost")
    if vhost is not None:
        await api.check_vhost(vhost)
    found = [row for row in await _link_rows(api) if vhost in (None, row["vhost"]) and row["status"] != "running"]
    return Reply(value=listed(call, found))


async def restart_link(api: Api, call: Call) -> Reply:
    """Start a federation link again now."""
    wanted = call.path["vhost"], call.path["id"]
    console = await call.session.console()
    async for data in console.query("federationLink"):
        if (data.get("vhost"), data.get("id")) == wanted:
            await console.call(data, "restart", {})
            api.collector.changed("federationLink")
            return Reply(204)
    raise not_found()


# ---- domains, and the links of AMQP 1.0 through them ----

_DOMAIN: Final = "domain"
_INTERLINK: Final = "interlink"
_MOST_SSF: Final = (1 << 31) - 1


def _domain_row(data: Data) -> Row:
    return {
        "name": data.get("name"),
        "url": data.get("url"),
        "sasl_mechanisms": data.get("mechanisms"),
        "username": data.get("username"),
        "durable": bool(data.get("durable")),
    }


def _interlink_row(data: Data) -> Row:
    found: Row = {name: data.get(name) for name in ("name", "direction", "domain", "source", "target", "state")}
    found |= {
        "durable": bool(data.get("durable")),
        "user": data.get("creator"),
        "timestamp": _time(data.get("since")),
        "messages_forwarded": rows.number(data, "forwarded"),
        "messages_pending": rows.number(data, "pending"),
        "failures": rows.number(data, "failures"),
    }
    if data.get("reason"):
        found["reason"] = data.get("reason")
    return found


async def _domain_rows(api: Api) -> list[Row]:
    return sorted((_domain_row(data) for data in await api.collector.get(_DOMAIN, 1.0)), key=lambda row: row["name"])


async def _interlink_rows(api: Api) -> list[Row]:
    found = [_interlink_row(data) for data in await api.collector.get(_INTERLINK, 1.0)]
    return sorted(found, key=lambda row: (row["direction"], row["name"]))


def _named(call: Call, found: list[Row]) -> Row:
    row = next((row for row in found if row.items() >= call.path.items()), None)
    if row is None:
        raise not_found()
    return row


async def domains(api: Api, call: Call) -> Reply:
    """The domains, without their passwords."""
    return Reply(value=listed(call, await _domain_rows(api)))


async def domain(api: Api, call: Call) -> Reply:
    """One domain."""
    return Reply(value=_named(call, await _domain_rows(api)))


async def interlinks(api: Api, call: Call) -> Reply:
    """The links through domains."""
    return Reply(value=listed(call, await _interlink_rows(api)))


async def interlink(api: Api, call: Call) -> Reply:
    """One of them."""
    return Reply(value=_named(call, await _interlink_rows(api)))


async def put_domain(api: Api, call: Call) -> Reply:
    """Create a domain; one that exists stays, and that is an error."""
    body = call.object("url")
    properties: Row = {name: text(body, name) for name in ("url", "sasl_mechanisms", "username", "password")}
    properties |= {name: whole(body, name, 0, _MOST_SSF) for name in ("min_ssf", "max_ssf") if name in body}
    return await _create(api, call, _DOMAIN, properties, durable=boolean(body, "durable"))


async def put_interlink(api: Api, call: Call) -> Reply:
    """Create a link through a domain; likewise."""
    body = call.object("domain", "source", "target")
    properties = {name: text(body, name) for name in ("domain", "source", "target")}
    return await _create(api, call, _direction(call), properties, durable=boolean(body, "durable"))


async def _create(api: Api, call: Call, kind: str, given: Mapping[str, Any], *, durable: bool) -> Reply:
    properties = {name: value for name, value in given.items() if value != ""} | {"durable": durable}
    arguments = {"type": kind, "name": call.path["name"], "properties": properties, "strict": True}
    await (await call.session.console()).call("broker", "create", arguments)
    api.collector.changed(_DOMAIN, _INTERLINK)
    return Reply(201)


def _direction(call: Call) -> str:
    direction = call.path["direction"]
    if direction not in (INCOMING, OUTGOING):
        raise not_found()
    return direction


async def delete_domain(api: Api, call: Call) -> Reply:
    """Delete a domain, which must have no links."""
    return await _delete(api, call, _DOMAIN)


async def delete_interlink(api: Api, call: Call) -> Reply:
    """Delete a link through a domain."""
    return await _delete(api, call, _direction(call))


async def _delete(api: Api, call: Call, kind: str) -> Reply:
    arguments = {"type": kind, "name": call.path["name"], "options": {}}
    await (await call.session.console()).call("broker", "delete", arguments)
    api.collector.changed(_DOMAIN, _INTERLINK)
    return Reply(204)


async def restart_interlink(api: Api, call: Call) -> Reply:
    """Connect a link through a domain again now."""
    wanted = _direction(call), call.path["name"]
    console = await call.session.console()
    async for data in console.query(_INTERLINK):
        if (data.get("direction"), data.get("name")) == wanted:
            await console.call(data, "restart", {})
            api.collector.changed(_INTERLINK)
            return Reply(204)
    raise not_found()


async def metrics(api: Api, age: float) -> list[Metric]:
    """How many shovels and federation links there are in each state, and what each shovel has forwarded."""
    found = list(await api.collector.get("shovel", age))
    states = GaugeMetricFamily("qstore_shovels", "Shovels in this state", labels=("state",))
    for state in ("starting", "running", "terminated"):
        states.add_metric((state,), sum(data.get("state") == state for data in found))
    labels = ("vhost", "shovel")
    forwarded = CounterMetricFamily("qstore_shovel_messages", "Messages published to the destination", labels=labels)
    failures = CounterMetricFamily("qstore_shovel_failures", "Failures of the shovel", labels=labels)
    pending = GaugeMetricFamily(
        "qstore_shovel_pending_messages", "Messages not yet acknowledged at the source", labels=labels
    )
    for data in found:
        name = str(data.get("vhost")), str(data.get("name"))
        forwarded.add_metric(name, rows.number(data, "forwarded"))
        failures.add_metric(name, rows.number(data, "failures"))
        pending.add_metric(name, rows.number(data, "pending"))
    links = list(await api.collector.get("federationLink", age))
    link_states = GaugeMetricFamily("qstore_federation_links", "Federation links in this state", labels=("state",))
    for state in ("starting", "running", "error"):
        link_states.add_metric((state,), sum(data.get("state") == state for data in links))
    return [states, forwarded, failures, pending, link_states]
