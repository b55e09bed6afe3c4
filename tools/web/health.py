"""What is wrong with a broker: alarms, the checks that monitoring asks for, and the end of its log.

An alarm is a resource that the broker runs short of, so that it slows publishers down or refuses messages:

    memory           the messages take most of --broker-memory
    disk             the store's disk is fuller than disk-free-limit allows: journals no longer grow
    journal          a journal cannot grow: its publishers are slowed down
    store            the store can no longer write
    file_descriptor  nearly all descriptors of the broker's process are in use

A warning is a condition that may become an alarm, or needs attention: a journal that is nearly full, publishers of a
queue that wait, content that was set aside, a certificate that expires soon. Alarms fail the health checks; warnings
do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.management.console import Data
from qstore.broker.management.schema import BROKER, BROKER_NAME
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.broker_records.topology import split_name
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import plural
from qstore.tools.web.calls import Call, Reply, Row, bad_request
from qstore.tools.web.collector import UnavailableError

if TYPE_CHECKING:
    from qstore.tools.web.resources import Api

RESOURCES: Final = ("memory", "disk", "journal", "store", "file_descriptor")
NEAR: Final = 0.8
"""Of a journal's files: beyond it, it is nearly full."""
_FEW_DESCRIPTORS: Final = 0.95
CERTIFICATE_DAYS: Final = 30
"""A certificate that ends sooner is a warning."""
MAX_SHOWN: Final = 100
"""Warnings of one kind."""
_ALIVE: Final = "aliveness-test"
_LOG: Final = f"qstore:log:{BROKER.name_of(BROKER_NAME)}"
_OK: Final = {"status": "ok"}
_MIB: Final = 1 << 20


class Alarm(NamedTuple):
    """What is wrong.

    Attributes:
        resource: see the module, or of a warning `journal`, `queue`, `quarantine`, `certificate`.
        subject: the name of a queue, or empty.
        text: what is wrong, and what to do.
        is_warning: whether it is no alarm yet.
        vhost: the virtual host of the queue.
    """

    resource: str
    subject: str
    text: str
    is_warning: bool = False
    vhost: str = "/"


def alarms_of(state: Data | None, files: int, file_limit: int) -> list[Alarm]:
    """The alarms of a broker.

    Args:
        state: its object of the class alarms; None if it has none.
        files: open descriptors of its process; 0 if unknown.
        file_limit: how many it may have.
    """
    found: list[Alarm] = []
    if state is not None:
        values = state.values
        if values["memoryState"] != "ample":
            effect = "publishers are slowed down" if values["memoryState"] == "short" else "messages are refused"
            used, limit = values["memoryUsed"] // _MIB, values["memoryLimit"] // _MIB
            text = f"Messages take {used:,} of {limit:,} MiB of memory, and {effect}: consume messages, or raise"
            found.append(Alarm("memory", "", f"{text} --broker-memory."))
        if 0 <= values["diskFree"] < values["diskKept"]:
            free, kept = values["diskFree"] // _MIB, values["diskKept"] // _MIB
            text = f"The store's disk has {free:,} MiB free, and journals no longer grow below {kept:,} MiB"
            found.append(Alarm("disk", "", f"{text}: free some space, or consume messages (disk-free-limit)."))
        if values["storeFailure"]:
            text = f"The store can no longer write: {values['storeFailure']}"
            found.append(Alarm("store", "", f"{text}; restart the broker when the disk works again."))
        for name in values["slowedJournals"]:
            text = "Its journal is nearly full and cannot grow, so its publishers are slowed down: consume messages."
            vhost, queue = split_name(name)
            found.append(Alarm("journal", queue, text, vhost=vhost))
    if file_limit and files >= file_limit * _FEW_DESCRIPTORS:
        text = f"The broker has {files:,} of {file_limit:,} descriptors open: close connections, or raise the limit."
        found.append(Alarm("file_descriptor", "", text))
    return found


async def alarms(api: Api, age: float = 1.0) -> list[Alarm]:
    """The alarms of the broker now, and since when each is known. Raises UnavailableError."""
    state = next(iter(await api.collector.get("alarms", age)), None)
    process = await api.process(age)
    found = alarms_of(state, process.files, process.file_limit)
    now = api.now()
    known = {(each.resource, each.subject) for each in found}
    api.alarms_since = {each: at for each, at in api.alarms_since.items() if each in known}
    for each in known:
        api.alarms_since.setdefault(each, now)
    return found


async def is_on(api: Api, age: float, *resources: str) -> bool:
    """Whether there is an alarm of one of these."""
    return any(each.resource in resources for each in await alarms(api, age))


async def _warnings(api: Api) -> list[Alarm]:
    found: list[Alarm] = []
    journals = sorted(await api.journal_rows(5), key=lambda row: -row["fill"])
    for row in journals[:MAX_SHOWN]:
        if row["fill"] >= NEAR:
            text = f"Its journal is {row['fill']:.0%} full: consume messages, or enlarge it with qstore-resize."
            found.append(Alarm("journal", row["name"], text, is_warning=True, vhost=row["vhost"]))
    stopped = [row for row in await api.queue_rows(5) if row["state"] == "flow"]
    for row in stopped[:MAX_SHOWN]:
        text = "Its publishers wait until messages are consumed."
        found.append(Alarm("queue", row["name"], text, is_warning=True, vhost=row["vhost"]))
    aside = await api.quarantined()
    number = len(aside["files"]) + len(aside["records"])
    if number or aside["problem"]:
        entries = plural(number, "entry", "entries")
        text = aside["problem"] or f"Damage in the store was quarantined ({entries}): see the store's quarantine."
        found.append(Alarm("quarantine", "", text, is_warning=True))
    for what, at in await _certificates(api):
        days = (at - api.now()) / 86400
        if days < CERTIFICATE_DAYS:
            when = "has expired" if days < 0 else f"expires in {days:.0f} days"
            found.append(Alarm("certificate", "", f"The certificate of {what} {when}: renew it.", is_warning=True))
    return found


async def list_alarms(api: Api, _call: Call) -> Reply:
    """Alarms and warnings, with the numbers that they are about."""
    found = await alarms(api)
    state = next(iter(await api.collector.get("alarms")), None)
    process = await api.process(1.0)
    shown = [
        {
            "resource": each.resource, "queue": each.subject, "vhost": each.vhost, "text": each.text,
            "level": "warning" if each.is_warning else "alarm",
            "since": None if each.is_warning else int(api.alarms_since[each.resource, each.subject]),
        }
        for each in (*found, *await _warnings(api))
    ]  # fmt: skip
    values: Mapping[str, Any] = {} if state is None else state.values
    names = {
        "memory_limit": "memoryLimit", "memory_used": "memoryUsed", "memory_state": "memoryState",
        "disk_free": "diskFree", "disk_total": "diskTotal", "disk_limit": "diskKept",
    }  # fmt: skip
    numbers = {name: values.get(source) for name, source in names.items()}
    numbers |= {"files": process.files, "file_limit": process.file_limit, "resident": process.memory}
    return Reply(value={"alarms": shown, "resources": numbers})


# ---- the checks of RabbitMQ's API ----


def _failed(reason: str, **more: Any) -> Reply:
    return Reply(503, {"status": "failed", "reason": reason, **more})


async def answers(api: Api, _call: Call) -> Reply:
    """The broker answers."""
    try:
        await api.collector.get("broker")
    except UnavailableError as error:
        return _failed(str(error))
    return Reply(value=_OK)


async def no_alarm(api: Api, _call: Call) -> Reply:
    """The broker answers, and no alarm is on."""
    try:
        found = await alarms(api)
    except UnavailableError as error:
        return _failed(str(error))
    if not found:
        return Reply(value=_OK)
    node = await api.node()
    shown = [{"node": node, "resource": each.resource, "queue": each.subject, "text": each.text} for each in found]
    return _failed("There are alarms in effect in the cluster", alarms=shown)


async def critical(api: Api, call: Call) -> Reply:
    found = await answers(api, call)
    return found if found.status != 200 else Reply(value={**_OK, "reason": "single node cluster"})


_UNITS: Final = {"day": 1, "week": 7, "month": 30, "year": 365}


async def _certificates(api: Api) -> list[tuple[str, float]]:
    """Which certificates there are, and when each expires, in seconds since 1970."""
    security = next(iter(await api.collector.get("security", 60)), None)
    broker = 0 if security is None else security.get("certificateExpires") or 0
    found = [("the broker", broker / 1e9), ("qstore-console", api.certificate_expires)]
    return [(what, at) for what, at in found if at]


async def certificates(api: Api, call: Call) -> Reply:
    """No certificate of the broker or of this console expires soon."""
    within, unit = call.path["within"], call.path["unit"].lower()
    days = _UNITS.get(unit.removesuffix("s"))
    if days is None:
        raise bad_request("Time unit not recognised. Use: days, weeks, months, years.")
    if not (within.isascii() and within.isdecimal() and 0 < len(within) < 6 and int(within)):
        raise bad_request("Invalid expiration value.")
    try:
        known = await _certificates(api)
    except UnavailableError as error:
        return _failed(str(error))
    end = api.now() + int(within) * days * 86400
    expiring = [{"certificate": what, "expires_at": int(at)} for what, at in known if at <= end]
    if expiring:
        return _failed("Certificates expiring", expired=expiring)
    return Reply(value=_OK)


async def listeners(api: Api) -> list[Row]:
    """What the broker and this console listen on."""
    node, data = await api.node(), next(iter(await api.collector.get("broker", 60)))
    host = api.broker.rpartition(":")[0].strip("[]")
    found: list[Row] = [
        {"node": node, "protocol": protocol, "ip_address": host, "port": data.get("port"), "socket_opts": {}}
        for protocol in ("amqp", "amqp0-10")
    ]
    for protocol, address, port in api.listeners:
        found.append({"node": node, "protocol": protocol, "ip_address": address, "port": port, "socket_opts": {}})
    return found


async def port_listener(api: Api, call: Call) -> Reply:
    if not call.path["port"].isdecimal():
        raise bad_request("the port is not a number")
    wanted, found = int(call.path["port"]), sorted({each["port"] for each in await listeners(api)})
    if wanted in found:
        return Reply(value={**_OK, "port": wanted})
    return _failed("No active listener", missing=wanted, ports=found)


_PROTOCOLS: Final = {"amqp091": "amqp", "amqp0-9-1": "amqp", "amqp0.9.1": "amqp"}


async def protocol_listener(api: Api, call: Call) -> Reply:
    wanted = _PROTOCOLS.get(call.path["protocol"], call.path["protocol"])
    found = sorted({each["protocol"] for each in await listeners(api)})
    if wanted in found:
        return Reply(value={**_OK, "protocol": wanted})
    return _failed("No active listener", missing=wanted, protocols=found)


async def aliveness(api: Api, call: Call) -> Reply:
    vhost = call.path["vhost"]
    await api.check_vhost(vhost)
    async with call.session.channel(vhost) as channel:
        await channel.call("queue.declare", queue=_ALIVE)
        await channel.publish("", _ALIVE, Properties(), b"test_message")
        found = await channel.get(_ALIVE, 1, (64, 64), requeue=False, reject=False)
    api.collector.changed("queue", "binding")
    return Reply(value=_OK) if found else _failed("no message has arrived")


# ---- the log ----


async def log(_api: Api, call: Call) -> Reply:
    """The last lines of the broker's log: after a number, or the newest. The broker checks the right to read them."""
    arguments = {"after": call.count("after", 0), "count": call.count("count", 500)}
    found = await (await call.session.console()).call(_LOG, "recent", arguments)
    return Reply(value={name: found[name] for name in ("first", "last", "lines")})
