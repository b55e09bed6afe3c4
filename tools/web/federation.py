"""Shovels, as RabbitMQ's API has them: the broker's management knows what they do, parameters what they are to do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from qstore.tools.console.amounts import plain
from qstore.tools.web import rows
from qstore.tools.web.calls import Call, Reply, Row, listed, not_found

if TYPE_CHECKING:
    from qstore.broker.management.console import Data
    from qstore.tools.web.resources import Api

_PLACES: Final = (("src", "source"), ("dest", "destination"))
_NAMES: Final = {
    "uri": "uri", "queue": "queue", "exchange": "exchange", "exchange-key": "exchange_key", "protocol": "protocol"
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
        found[f"{prefix}_protocol"] = "amqp091"
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


async def metrics(api: Api, age: float) -> list[Metric]:
    """How many shovels there are in each state, and what each has forwarded."""
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
    return [states, forwarded, failures, pending]
