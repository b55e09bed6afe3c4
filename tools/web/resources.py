"""The resources of the HTTP API: the table of paths, and what each answers.

`ROUTES` has a row for each method of each path: who may use it, the function, and what it is for. The dispatch, the
OpenAPI document and the page of the API are made from it.

    {vhost}, {name} …   a part of the path; `/` in it is written `%2F`
    role                whose users may use it: those with one of these tags, where users have tags. On a broker without
                        tags, all users may ask, and the broker decides what is done

What is read comes from the collector's samples, on which all requests draw; what is changed is done over connections of
the request's own user, so that the broker's rules decide. RabbitMQ has the paths, names, statuses and errors; those
below `/api/qstore` are this broker's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import re
import shutil
import time
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote, unquote

from qstore import __version__
from qstore.broker.client import MessagingError
from qstore.broker.management.console import AgentError, Data, NoObjectError
from qstore.broker.model.exchanges.plugged import plugged_names
from qstore.broker.model.exchanges.types import MANAGEMENT_EXCHANGES, TYPE_NAMES
from qstore.broker.protocols.amqp_0_9_1.arguments import exchange_name
from qstore.formats.amqp_0_9_1.codes import Amqp091Error, ReplyCode
from qstore.formats.amqp_0_9_1.properties import PROPERTIES, Properties
from qstore.formats.broker_records.topology import HOST_SEPARATOR, full_name, split_name
from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.plain import plain_map
from qstore.formats.quarantine_index import QuarantineEntry
from qstore.formats.values import TypedMap
from qstore.formats.wording import with_article
from qstore.store.disk import OsDisk
from qstore.store.repair.quarantine import Quarantine, QuarantineError
from qstore.tools.console.amounts import plain, reference
from qstore.tools.web import access, federation, health, rows
from qstore.tools.web.amqp import Got, LoginError, RefusedError, UnreachableError, table
from qstore.tools.web.calls import (
    Call,
    HttpError,
    Reply,
    Row,
    bad_request,
    boolean,
    columns,
    listed,
    mapping,
    not_found,
    text,
    wanted_columns,
    whole,
)
from qstore.tools.web.collector import LEVELS, SERIES, TOTAL, Collector, Sample, Seen, UnavailableError
from qstore.tools.web.logins import Logins, Session

if TYPE_CHECKING:
    from qstore.tools.web.browser import BrowserLogins

API_VERSION: Final = "3.10.0"
"""Of RabbitMQ, whose API this is."""
MAX_GET: Final = 1000
"""Messages of one request."""
MAX_GET_BYTES: Final = 32 << 20
_LEGACY: Final = "org.apache.qpid.legacystore"
_QSTORE: Final = "qstore"
_EXCHANGE_TYPES: Final = sorted({*TYPE_NAMES, *plugged_names()} - {"replication"})
_OWN_EXCHANGES: Final = frozenset(MANAGEMENT_EXCHANGES)
_STANDARD: Final = "amq."

Handler: TypeAlias = Callable[[Any, Call], Awaitable[Reply]]
"""Of an `Api`, or of another one, such as `stored.StoredApi`."""


class Route(NamedTuple):
    """A row of the table.

    Attributes:
        method: GET, PUT and so on.
        pattern: of the path below /api, `queues/{vhost}/{name}`.
        role: see the module; empty for everyone who may log in, `-` for everyone.
        handler: answers.
        summary: what it is for.
    """

    method: str
    pattern: str
    role: str
    handler: Handler
    summary: str


MANAGEMENT: Final = "management"
MONITORING: Final = "monitoring"
POLICYMAKER: Final = "policymaker"
ADMINISTRATOR: Final = "administrator"
_INCLUDED: Final[Mapping[str, frozenset[str]]] = {
    MANAGEMENT: frozenset((MANAGEMENT, MONITORING, POLICYMAKER, ADMINISTRATOR)),
    MONITORING: frozenset((MONITORING, ADMINISTRATOR)),
    POLICYMAKER: frozenset((POLICYMAKER, ADMINISTRATOR)),
    ADMINISTRATOR: frozenset((ADMINISTRATOR,)),
}
"""Role -> the tags that have it."""


class Resources:
    """The table, looked up."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._by_length: dict[int, list[tuple[list[str], dict[str, Route]]]] = defaultdict(list)
        patterns: dict[str, dict[str, Route]] = defaultdict(dict)
        for route in self.routes:
            patterns[route.pattern][route.method] = route
        for pattern, methods in patterns.items():
            parts = pattern.split("/")
            self._by_length[len(parts)].append((parts, methods))
        for found in self._by_length.values():  # literal parts before named ones
            found.sort(key=lambda each: [part[:1] == "{" for part in each[0]])

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
        """The route of a path below /api, and its named parts. Raises HttpError."""
        parts, allowed = raw_path.rstrip("/").split("/"), set[str]()
        for pattern, methods in self._by_length.get(len(parts), ()):
            named = _matched(pattern, parts)
            if named is None:
                continue
            route = methods.get(method) or (methods.get("GET") if method == "HEAD" else None)
            if route is not None:
                return route, named
            allowed.update(methods)
        if allowed:
            shown = ", ".join(sorted((*allowed, "OPTIONS")))
            raise HttpError(405, "method_not_allowed", "Method Not Allowed", {"Allow": shown})
        raise not_found()


def _matched(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    named: dict[str, str] = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted[:1] == "{":
            try:
                named[wanted[1:-1]] = unquote(part, errors="strict")
            except UnicodeDecodeError:
                raise bad_request("the path is not UTF-8") from None
        elif wanted != part:
            return None
    return named


Inputs: TypeAlias = "tuple[Any, ...] | None"
"""What a row is made from; None to make it anew each time."""
_AT_ONCE: Final = 64
_SLICE_SECONDS: Final = 0.005


class SampledRows:
    """The rows of a class as of the newest samples, built once for all requests, in time slices.

    Those of objects that have not changed are used again: with 10,000 queues, most are idle.
    """

    def __init__(self) -> None:
        self._samples: tuple[Sample, ...] = ()
        self._rows: list[Row] = []
        self._known: dict[str, tuple[Inputs, Row | None]] = {}
        self._turn = asyncio.Lock()

    async def build(
        self,
        samples: tuple[Sample, ...],
        objects: Iterable[Data],
        inputs: Callable[[Data], Inputs],
        make: Callable[[Data], Row | None],
        order: Callable[[Row], Any] | None = None,
    ) -> list[Row]:
        """The rows of objects.

        Args:
            samples: those that the objects, and all else that `make` looks at, come from.
            objects: the objects.
            inputs: what the row of one is made from.
            make: makes it; None for none.
            order: by what they are sorted; as the objects are without it.
        """
        async with self._turn:
            if len(samples) == len(self._samples) and all(map(operator.is_, samples, self._samples)):
                return self._rows
            known, before, found = dict[str, tuple[Inputs, Row | None]](), self._known, list[Row]()
            end = time.perf_counter() + _SLICE_SECONDS
            for number, data in enumerate(objects):
                name = data.key if data.object_id is None else data.object_id.name
                given, last = inputs(data), before.get(name)
                row = last[1] if last is not None and given is not None and last[0] == given else make(data)
                known[name] = given, row
                if row is not None:
                    found.append(row)
                if number % _AT_ONCE == 0 and time.perf_counter() > end:
                    await asyncio.sleep(0)
                    end = time.perf_counter() + _SLICE_SECONDS
            if order is not None:
                found.sort(key=order)
            self._samples, self._rows, self._known = samples, found, known
            return found


class Api:
    """What the resources are about.

    Args:
        collector: the broker's objects.
        logins: the users.
        broker: host and port of the broker, as connections are named after it.
        listeners: what the console listens on: protocol, address, port.
        pages: the logins of pages in a browser.
        further: rows in addition to `ROUTES`.
        clock: seconds since 1970.

    Attributes:
        collector, logins, broker, listeners, pages: as above.
        now: the clock.
        certificate_expires: when the console's certificate does, in seconds since 1970; 0 if it has none.
        alarms_since: resource and queue of an alarm -> since when it is known.
    """

    def __init__(
        self,
        collector: Collector,
        logins: Logins,
        broker: str,
        listeners: list[tuple[str, str, int]],
        pages: BrowserLogins,
        further: Iterable[Route] = (),
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.collector, self.logins, self.broker, self.listeners = collector, logins, broker, listeners
        self.pages = pages
        self.now = clock
        self.certificate_expires = 0.0
        self.alarms_since: dict[tuple[str, str], float] = {}
        self._process: tuple[float, LocalProcess] | None = None
        self._sampled: dict[str, SampledRows] = {}
        self.resources = Resources((*ROUTES, *further))

    async def answer(self, route: Route, call: Call) -> Reply:
        """Answer a request. Raises HttpError, and nothing else that is expected."""
        try:
            if call.given is not None:
                await check_role(self, route.role, call.session)
                if route.role and route.method == "GET":
                    await access.check_reading(self, call.session)
                if route.role:
                    await self._look(call)
            return await route.handler(self, call)
        except RefusedError as error:
            raise refused(error) from None
        except LoginError:
            raise HttpError(401, "not_authorized", "Login failed") from None
        except (UnavailableError, UnreachableError) as error:
            raise HttpError(503, "service_unavailable", str(error)) from None
        except NoObjectError:
            raise not_found() from None
        except AgentError as error:
            raise _agent_error(error) from None
        except (FormatError, Amqp091Error) as error:
            raise bad_request(f"AMQP cannot carry this: {error}") from None
        except MessagingError as error:
            raise HttpError(503, "service_unavailable", str(error)) from None

    async def _look(self, call: Call) -> None:
        """Find out what the user sees. Raises HttpError: not what is in the virtual host of the path."""
        sight = call.session.sight = await access.sight_of(self, call.session)
        vhost = call.path.get("vhost")
        if sight is not None and vhost is not None and vhost not in sight.hosts:
            await self.check_vhost(vhost)  # one that is too new to be known here is not seen either
            sight.check_vhost(vhost)

    # ---- what is there ----

    async def node(self) -> str:
        """The broker's name as a node."""
        systems = await self.collector.get("system", 3600)
        return next((f"qstore@{data['nodeName']}" for data in systems), "qstore@localhost")

    async def process(self, age: float) -> LocalProcess:
        """The broker's process, if it is on this machine, as it was at most `age` seconds ago."""
        now = self.now()
        if self._process is None or not 0 <= now - self._process[0] < age:
            data = next(iter(await self.collector.get("broker", 60)))
            self._process = now, await asyncio.to_thread(local_process, str(data.get("dataDir") or ""))
        return self._process[1]

    async def journal_rows(self, age: float = 1.0) -> list[Row]:
        """All journals."""
        seen = await self.collector.get("journal", age)
        return await self._rows_of("journal").build(
            (seen.now,), seen, lambda data: (data.values,), journal_row, lambda row: (row["vhost"], row["name"])
        )

    async def quarantined(self) -> Row:
        """What the store has set aside, if it is on this machine and the console may read it."""
        data = next(iter(await self.collector.get("store", 5)), None)
        location = "" if data is None else str(data.get("location") or "")
        is_local = bool(location) and await asyncio.to_thread(Path(location, "rhm").is_dir)
        found = await asyncio.to_thread(quarantined, location) if is_local else dict(_NOTHING_ASIDE)
        return {"is_local": is_local, "location": location, **found}

    async def vhosts(self) -> list[str]:
        """The names of the virtual hosts."""
        return [str(data["name"]) for data in await self.collector.get("vhost")]

    async def check_vhost(self, name: str, reason: str = "Not Found") -> None:
        """Raise HttpError unless there is that virtual host."""
        if name not in await self.vhosts():
            raise not_found(reason)

    async def queue_rows(self, age: float = 1.0) -> list[Row]:
        """All queues."""
        seen, node = await self.collector.get("queue", age), await self.node()
        applied = await self.collector.get("appliedPolicy", max(age, 5.0))
        heads = (await self.collector.get("queueHead", age)).now
        policies, base = applied.now.objects, {} if seen.base is None else seen.base.objects

        def inputs(data: Data) -> Inputs:
            policy = policies.get(f"queue,{rows.vhost_of(data)},{rows.local(data.key)}")
            before = base.get(data.key)
            is_still = before is None or before.values == data.values  # all its rates are 0
            change = None if before is None or is_still else (before.values, seen.seconds)
            head = heads.objects.get(data.key)
            return (
                data.values,
                change,
                None if policy is None else policy.values,
                None if head is None else head.values,
                seen.idle_since(data.key),
            )

        return await self._rows_of("queue").build(
            (seen.now, applied.now, heads),
            (data for data in seen if not rows.is_internal_queue(data)),
            inputs,
            lambda data: rows.queue_row(seen, data, node, policies, heads.objects.get(data.key)),
            lambda row: (row["vhost"], row["name"]),
        )

    async def exchange_rows(self, age: float = 1.0) -> list[Row]:
        """All exchanges."""
        seen = await self.collector.get("exchange", age)
        return await self._rows_of("exchange").build(
            (seen.now,),
            seen,
            lambda _: None,
            lambda data: rows.exchange_row(seen, data),
            lambda row: (row["vhost"], row["name"]),
        )

    async def binding_rows(self) -> list[Row]:
        """All bindings."""
        queues, exchanges = await self.collector.get("binding"), await self.collector.get("exchange_binding")
        to_exchanges = exchanges.now.objects

        def row(data: Data) -> Row | None:
            of = [data]
            pair: tuple[list[Data], list[Data]] = ([], of) if to_exchanges.get(data.key) is data else (of, [])
            return next(iter(rows.binding_rows(*pair)), None)

        return await self._rows_of("binding").build(
            (queues.now, exchanges.now), chain(queues, exchanges), lambda data: (data.get("arguments") or {},), row
        )

    def _rows_of(self, what: str) -> SampledRows:
        return self._sampled.setdefault(what, SampledRows())

    async def _details(self, name: str, age: float, seen: Seen, *, are_wanted: bool = True) -> Mapping[str, Data]:
        """The objects of a class that tells more of clients, not older than those; none if they are not wanted.

        One of `seen` can be missing: it has ended meanwhile.
        """
        if not are_wanted:
            return {}
        found = (await self.collector.get(name, age)).now
        if found.clock >= seen.now.clock and found.objects.keys() >= seen.now.objects.keys():
            return found.objects
        return (await self.collector.get(name, 0.0, patience=0.0)).now.objects

    async def connection_rows(self, age: float = 1.0, *, with_own: bool = False, is_brief: bool = False) -> list[Row]:
        """The connections.

        Args:
            age: seconds that the sample may be old.
            with_own: with those of consoles of this kind.
            is_brief: without asking for what they have negotiated.
        """
        seen, sessions = await self.collector.get("connection", age), await self.collector.get("session", age)
        counts: dict[str, int] = defaultdict(int)
        for each in sessions:
            counts[reference(each.get("connectionRef"))] += 1
        node = await self.node()
        details = await self._details("clientConnection", age, seen, are_wanted=not is_brief)
        return [
            rows.connection_row(seen, data, self.broker, counts[data.key], node, details.get(data.key))
            for data in seen
            if with_own or not rows.is_own(data)
        ]

    async def channel_rows(self, age: float = 1.0, *, is_brief: bool = False) -> list[tuple[Data, Row]]:
        """The sessions and channels.

        Args:
            age: seconds that the sample may be old.
            is_brief: without asking for how they publish and consume.
        """
        node = await self.node()
        found_connections = await self.connection_rows(age, is_brief=True)
        connections = {f"{row['peer_host']}:{row['peer_port']}": row for row in found_connections}
        clients = await self.collector.get("connection", age)
        sessions, subscriptions = (
            await self.collector.get("session", age),
            await self.collector.get("subscription", age),
        )
        details = await self._details("clientSession", age, sessions, are_wanted=not is_brief)
        of: dict[str, list[Data]] = defaultdict(list)
        for each in subscriptions:
            of[reference(each.get("sessionRef"))].append(each)
        found = []
        for data in sessions:
            peer = reference(data.get("connectionRef"))
            connection = connections.get(peer.replace("[", "").replace("]", ""))
            if connection is not None:
                own, of_client = sessions.idle_since(data.key), clients.idle_since(peer)
                since = None if own is None or of_client is None else max(own, of_client)
                row = rows.channel_row(data, connection, of[data.key], node, details.get(data.key), since)
                found.append((data, row))
        return found

    async def consumer_rows(self) -> list[Row]:
        """The consumers."""
        channels = {data.key: row for data, row in await self.channel_rows(is_brief=True)}
        subscriptions = await self.collector.get("subscription")
        details = await self._details("clientSubscription", 1.0, subscriptions)
        found = []
        for each in subscriptions:
            channel = channels.get(reference(each.get("sessionRef")))
            if channel is not None:
                found.append(rows.consumer_row(each, channel, channel["vhost"], details.get(each.key)))
        return found

    async def find_queue(self, call: Call) -> tuple[Seen, Data]:
        """The queue that a path names, as it is now. Raises HttpError."""
        data = await self.collector.one("queue", full_name(call.path["vhost"], call.path["name"]))
        if data is None:
            raise not_found()
        seen = await self.collector.get("queue", 3600)
        return (seen if data.key in seen.now.objects else Seen(seen.now._replace(objects={data.key: data}), None)), data

    async def find_exchange(self, call: Call) -> tuple[Seen, Data]:
        """The exchange that a path names, likewise."""
        data = await self.collector.one("exchange", exchange_key(call.path["vhost"], own_exchange(call.path["name"])))
        if data is None:
            raise not_found()
        seen = await self.collector.get("exchange", 3600)
        return (seen if data.key in seen.now.objects else Seen(seen.now._replace(objects={data.key: data}), None)), data


def exchange_key(vhost: str, name: str) -> str:
    """The key of an exchange's object; the default one has no name."""
    return full_name(vhost, name) or ("" if vhost == rows.DEFAULT_VHOST else vhost + HOST_SEPARATOR)


def own_exchange(name: str) -> str:
    """The broker's name of an exchange in a path."""
    return "" if name == "amq.default" else exchange_name(name)


def refused(error: RefusedError) -> HttpError:
    """The answer to an operation that the broker has refused."""
    reason = error.text.partition(" - ")[2] or error.text
    if error.code == ReplyCode.ACCESS_REFUSED:
        return HttpError(401, "not_authorised", reason)
    if error.code == ReplyCode.NOT_FOUND:
        return not_found(error.text)
    if error.code in (ReplyCode.INTERNAL_ERROR, ReplyCode.CONNECTION_FORCED):
        return HttpError(503, "service_unavailable", reason)
    return bad_request(reason)


_FORBIDDEN_CODE: Final = 6
_UNKNOWN_OBJECT: Final = 1
_UNKNOWN_METHOD: Final = 2
_NOT_IMPLEMENTED: Final = 3
_INTERNAL: Final = "InternalError"
_NOT_FOUND: Final = "NotFoundError"
_UNAUTHORIZED: Final = ("UnauthorizedError", "ForbiddenError")


def _agent_error(error: AgentError) -> HttpError:
    """The answer to a method of management that the broker has refused."""
    kind = error.values.get("error_class")
    if error.code == _FORBIDDEN_CODE or kind in _UNAUTHORIZED:
        return HttpError(401, "not_authorised", str(error))
    if error.code == _UNKNOWN_OBJECT or kind == _NOT_FOUND:
        return not_found()
    if error.code in (_UNKNOWN_METHOD, _NOT_IMPLEMENTED):
        return HttpError(501, "not_implemented", str(error))
    if kind == _INTERNAL:
        return HttpError(503, "service_unavailable", str(error))
    return bad_request(str(error))


# ---- the broker ----


def _named(names: Iterable[str]) -> list[Row]:
    return [{"name": name, "description": f"AMQP {name} exchange", "enabled": True} for name in names]


def _samples(api: Api, call: Call, series: str) -> Row:
    """The points that the parameters lengths_age and msg_rates_age ask for, as RabbitMQ's fields have them."""
    found: Row = {}
    now = api.now()
    for prefix, wanted in (("lengths", SERIES[:LEVELS]), ("msg_rates", SERIES[LEVELS:])):
        age, step = call.count(f"{prefix}_age", 0), call.count(f"{prefix}_incr", 5)
        if not age:
            continue
        points = api.collector.history.points(series, age, now)
        thinned, last = [], 0
        for at, values in points:
            if at - last >= step:
                thinned.append((at, values))
                last = at
        for index, name in enumerate(SERIES):
            if name in wanted:
                found[name] = [{"sample": values[index], "timestamp": at * 1000} for at, values in reversed(thinned)]
    return found


def _with_samples(row: Row, samples: Mapping[str, list[Row]]) -> None:
    """Add points to the details of counters and levels."""
    stats = row.get("message_stats", {})
    for name, points in samples.items():
        for target in (row, row.get("queue_totals", {}), stats):
            details = target.get(f"{name}_details")
            if details is not None:
                details["samples"] = points
                if len(points) > 1:
                    first, last = points[0]["sample"], points[-1]["sample"]
                    seconds = (points[0]["timestamp"] - points[-1]["timestamp"]) / 1000
                    details["avg"] = sum(each["sample"] for each in points) / len(points)
                    details["avg_rate"] = max(0.0, first - last) / seconds if seconds else 0.0


async def overview(api: Api, call: Call) -> Reply:
    seen = await api.collector.get("broker")
    data = next(iter(seen))
    node = await api.node()
    queue_rows, exchanges = await api.queue_rows(), await api.exchange_rows()
    connections, channels = await api.connection_rows(is_brief=True), await api.channel_rows(is_brief=True)
    consumers = sum(row["consumer_count"] for _, row in channels)
    stats = rows.message_stats(seen, data)
    stats |= rows.with_rate(
        "drop_unroutable", rows.number(data, "discardsNoRoute"), seen.rate(data.key, "discardsNoRoute")
    )
    stats |= rows.with_rate("return_unroutable", 0, 0.0)
    churn = api.collector.churn
    names = {
        "connection_created": "connection_created", "connection_closed": "connection_closed",
        "channel_created": "session_created", "channel_closed": "session_closed", "queue_created": "queue_created",
        "queue_declared": "queue_created", "queue_deleted": "queue_closed",
    }  # fmt: skip
    churned: Row = {}
    for name, source in names.items():
        churned |= rows.with_rate(name, churn.get(source, 0), 0.0)
    row: Row = {
        "management_version": API_VERSION,
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [3600, 86400, 604800], "basic": [3600, 86400], "detailed": [3600]},
        "exchange_types": _named(_EXCHANGE_TYPES),
        "product_version": data.get("version") or __version__,
        "product_name": "qstore",
        "rabbitmq_version": API_VERSION,
        "cluster_name": await access.name_of_broker(api),
        "erlang_version": "",
        "erlang_full_version": "",
        "disable_stats": False,
        "enable_queue_totals": False,
        "message_stats": stats,
        "churn_rates": churned,
        "queue_totals": rows.queue_totals(seen, data, sum(each["messages_unacknowledged"] for each in queue_rows)),
        "object_totals": {
            "channels": len(channels),
            "connections": len(connections),
            "consumers": consumers,
            "exchanges": len(exchanges),
            "queues": len(queue_rows),
        },
        "statistics_db_event_queue": 0,
        "node": node,
        "listeners": await health.listeners(api),
        "contexts": [
            {"node": node, "description": "qstore-console", "path": "/", "ip": address, "port": str(port)}
            for _protocol, address, port in api.listeners
        ],
    }
    _with_samples(row, _samples(api, call, TOTAL))
    return Reply(value=row)


class LocalProcess(NamedTuple):
    """The broker's process, where it is on this machine.

    Attributes:
        pid, memory, files, sockets, file_limit: of the process; 0 where they cannot be read.
        disk_free: bytes on the file system of its data directory.
    """

    pid: int = 0
    memory: int = 0
    files: int = 0
    sockets: int = 0
    file_limit: int = 0
    disk_free: int = 0


def local_process(directory: str) -> LocalProcess:
    """Look at the process that holds a data directory."""
    found = LocalProcess()
    place = Path(directory)
    try:
        pid = int((place / "lock").read_text().split()[0])
        found = found._replace(disk_free=shutil.disk_usage(place).free)
        status = (Path("/proc") / str(pid) / "status").read_text()
        memory = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        found = found._replace(pid=pid, memory=int(memory[1]) << 10 if memory else 0)
        limits = (Path("/proc") / str(pid) / "limits").read_text()
        limit = re.search(r"^Max open files\s+(\d+)", limits, re.MULTILINE)
        names = [each.readlink().name for each in (Path("/proc") / str(pid) / "fd").iterdir()]
        sockets = sum(name.startswith("socket:") for name in names)
        return found._replace(files=len(names), sockets=sockets, file_limit=int(limit[1]) if limit else 0)
    except (OSError, ValueError, IndexError):
        return found


async def node_row(api: Api, age: float = 1.0) -> Row:
    """The broker as a node."""
    data = next(iter(await api.collector.get("broker", age)))
    allocated = next(iter(await api.collector.get("memory", age)), None)
    process, state = await api.process(age), next(iter(await api.collector.get("alarms", age)), None)
    found = {each.resource for each in await health.alarms(api, age)}
    free = rows.number(state, "diskFree") if state is not None else -1
    used = process.memory or rows.number(allocated, "malloc_arena") + rows.number(allocated, "malloc_hblkhd")
    churn = api.collector.churn
    levels = ("mem_used", "disk_free", "fd_used", "sockets_used", "proc_used")
    counters = [f"{name}_{what}" for name in ("connection", "channel") for what in ("created", "closed")]
    counters += ["queue_created", "queue_declared", "queue_deleted"]
    return {
        **{f"{name}_details": {"rate": 0.0} for name in (*levels, *counters)},
        "name": await api.node(),
        "type": "disc",
        "running": True,
        "partitions": [],
        "os_pid": str(process.pid or ""),
        "uptime": rows.number(data, "uptime") // 1_000_000,
        "processors": 1,
        "run_queue": 0,
        "rates_mode": "basic",
        "mem_used": used,
        "mem_calculation_strategy": "rss",
        "mem_limit": rows.number(state, "memoryLimit"),
        "mem_alarm": "memory" in found,
        "disk_free": free if free >= 0 else process.disk_free,
        "disk_free_limit": rows.number(state, "diskKept"),
        "disk_free_alarm": not found.isdisjoint(("disk", "store")),
        "fd_used": process.files,
        "fd_total": process.file_limit,
        "sockets_used": process.sockets,
        "sockets_total": rows.number(data, "maxConns"),
        "proc_used": 0,
        "proc_total": 0,
        "exchange_types": _named(_EXCHANGE_TYPES),
        "auth_mechanisms": [],
        "applications": [{"name": "qstore", "description": "qstore", "version": data.get("version") or ""}],
        "contexts": [],
        "log_files": [],
        "config_files": [],
        "enabled_plugins": ["rabbitmq_management", "rabbitmq_prometheus"],
        "db_dir": data.get("dataDir") or "",
        "net_ticktime": 0,
        "cluster_links": [],
        "connection_created": churn.get("connection_created", 0),
        "connection_closed": churn.get("connection_closed", 0),
        "channel_created": churn.get("session_created", 0),
        "channel_closed": churn.get("session_closed", 0),
        "queue_created": churn.get("queue_created", 0),
        "queue_declared": churn.get("queue_created", 0),
        "queue_deleted": churn.get("queue_closed", 0),
    }


async def nodes(api: Api, call: Call) -> Reply:
    row = await node_row(api)
    name = call.path.get("name")
    if name is None:
        return Reply(value=listed(call, [row]))
    if name != row["name"]:
        raise not_found()
    return Reply(value=row)


async def node_memory(api: Api, call: Call) -> Reply:
    row = (await nodes(api, call)).value
    allocated = next(iter(await api.collector.get("memory")), None)
    queues = await api.queue_rows(60)
    messages = sum(each["message_bytes_ram"] for each in queues)
    total = row["mem_used"]
    kinds = {
        "messages": messages,
        "allocated_unused": rows.number(allocated, "malloc_fordblks"),
        "other": max(0, total - messages - rows.number(allocated, "malloc_fordblks")),
    }
    return Reply(value={"memory": {**kinds, "total": {"rss": total, "allocated": total}, "strategy": "rss"}})


async def cluster_name(api: Api, _call: Call) -> Reply:
    return Reply(value={"name": await access.name_of_broker(api)})


async def whoami(api: Api, call: Call) -> Reply:
    return Reply(value={"name": call.session.user, "tags": await access.tags_of(api, call.session)})


async def check_role(api: Api, role: str, session: Session) -> None:
    """Raise HttpError unless a user has a role."""
    if role:
        await access.check_role(api, _INCLUDED[role], role, session)


async def auth(_api: Api, _call: Call) -> Reply:
    return Reply(value={"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})


async def extensions(_api: Api, _call: Call) -> Reply:
    return Reply(value=[])


async def nothing(_api: Api, call: Call) -> Reply:
    return Reply(value=listed(call, []))


# ---- virtual hosts ----


_OF_HOSTS: Final = frozenset(("name", "description", "tags"))
"""Fields for which queues and connections need not be looked at."""


async def _vhost_rows(api: Api, wanted: Sequence[Sequence[str]] = ()) -> list[Row]:
    """The virtual hosts; `wanted` are the columns that matter, all if it is empty."""
    is_plain = bool(wanted) and all(path[0] in _OF_HOSTS for path in wanted)
    node = await api.node()
    queues = [] if is_plain else await api.queue_rows()
    connections = [] if is_plain else await api.connection_rows(is_brief=True)
    found, about = [], await access.about_hosts(api)
    for data in await api.collector.get("vhost"):
        name = str(data["name"])
        told = about.get(name, {})
        description = str(told.get("description") or "")
        tags = [each for each in str(told.get("tags") or "").split(",") if each]
        mine = [each for each in queues if each["vhost"] == name]
        row: Row = {
            "name": name,
            "description": description or ("Default virtual host" if name == rows.DEFAULT_VHOST else ""),
            "tags": tags,
            "default_queue_type": "classic",
            "metadata": {"description": description, "tags": tags},
            "tracing": False,
            "cluster_state": {node: "running"},
        }
        for level in SERIES[:LEVELS]:
            change = round(sum(each[f"{level}_details"]["rate"] for each in mine), 2)
            row |= rows.with_rate(level, sum(each[level] for each in mine), change)
        stats: Row = {}
        for counter in ("publish", "deliver", "deliver_get", "ack", "redeliver"):
            value = sum(each["message_stats"][counter] for each in mine)
            rate = sum(each["message_stats"][f"{counter}_details"]["rate"] for each in mine)
            stats |= rows.with_rate(counter, value, round(rate, 2))
        here = [each for each in connections if each["vhost"] == name]
        for octets in ("recv_oct", "send_oct"):
            rate = sum(each[f"{octets}_details"]["rate"] for each in here)
            row |= rows.with_rate(octets, sum(each[octets] for each in here), round(rate, 2))
        found.append({**row, "message_stats": stats})
    return found


async def vhosts(api: Api, call: Call) -> Reply:
    name, sight = call.path.get("vhost"), call.sight
    wanted = wanted_columns(call) if name is None and "sort" not in call.query else []
    found = await _vhost_rows(api, wanted)
    if sight is not None:
        found = [each for each in found if each["name"] in sight.hosts]
    if name is None:
        return Reply(value=listed(call, found))
    row = next((each for each in found if each["name"] == name), None)
    if row is None:
        raise not_found()
    return Reply(value=row)


# ---- queues ----


def _light(row: Row, *, with_totals: bool) -> Row:
    names = ["name", "vhost", "durable", "auto_delete", "exclusive", "arguments", "type", "node", "state"]
    names += ["messages", "messages_ready", "messages_unacknowledged"] if with_totals else []
    return {name: row[name] for name in names}


async def queues(api: Api, call: Call) -> Reply:
    vhost = call.path.get("vhost")
    if vhost is not None:
        await api.check_vhost(vhost)
    found = await api.queue_rows()
    if vhost is not None:
        found = [row for row in found if row["vhost"] == vhost]
    if call.flag("disable_stats"):
        found = [_light(row, with_totals=call.flag("enable_queue_totals")) for row in found]
    return Reply(value=listed(call, found))


async def queue(api: Api, call: Call) -> Reply:
    seen, data = await api.find_queue(call)
    applied = await api.collector.get("appliedPolicy")
    head = await api.collector.one("queueHead", data.key, _QSTORE)
    row = rows.queue_row(seen, data, await api.node(), applied.now.objects, head)
    name = row["name"]
    row["consumer_details"] = [
        each for each in await api.consumer_rows() if each["queue"] == {"name": name, "vhost": row["vhost"]}
    ]
    row |= {"incoming": [], "deliveries": []}
    _with_samples(row, _samples(api, call, f"queue {data.key}"))
    wanted = wanted_columns(call)
    return Reply(value=columns(row, wanted) if wanted else row)


def _inequivalent(what: str, kind: str, name: str, vhost: str, given: object, current: object) -> HttpError:
    shown = [str(each).lower() if isinstance(each, bool) else str(each) for each in (given, current)]
    text = f"inequivalent arg '{what}' for {kind} '{name}' in vhost '{vhost}': received '{shown[0]}'"
    return bad_request(f"{text} but current is '{shown[1]}'")


async def put_queue(api: Api, call: Call) -> Reply:
    body, vhost, name = call.object(), call.path["vhost"], call.path["name"]
    durable, auto_delete = boolean(body, "durable"), boolean(body, "auto_delete")
    arguments = mapping(body, "arguments")
    await api.check_vhost(vhost, "vhost_not_found")
    is_there = await api.collector.one("queue", full_name(vhost, name))
    if is_there is not None:
        for what, given, current in (
            ("durable", durable, bool(is_there.get("durable"))),
            ("auto_delete", auto_delete, bool(is_there.get("autoDelete"))),
        ):
            if given != current:
                raise _inequivalent(what, "queue", name, vhost, given, current)
    async with call.session.channel(vhost) as channel:
        await channel.call(
            "queue.declare", queue=name, durable=durable, auto_delete=auto_delete, arguments=table(arguments)
        )
    api.collector.changed("queue", "binding")
    return Reply(204 if is_there is not None else 201)


async def delete_queue(api: Api, call: Call) -> Reply:
    await api.find_queue(call)
    async with call.session.channel(call.path["vhost"]) as channel:
        await channel.call(
            "queue.delete",
            queue=call.path["name"],
            if_unused=call.flag("if-unused"),
            if_empty=call.flag("if-empty"),
        )
    api.collector.changed("queue", "binding")
    return Reply(204)


async def purge_queue(api: Api, call: Call) -> Reply:
    await api.find_queue(call)
    async with call.session.channel(call.path["vhost"]) as channel:
        await channel.call("queue.purge", queue=call.path["name"])
    api.collector.changed("queue")
    return Reply(204)


async def queue_action(api: Api, call: Call) -> Reply:
    """RabbitMQ's actions concern replicas, which are not here."""
    call.object("action")
    await api.find_queue(call)
    raise bad_request("queues have no replicas: there is nothing to synchronise")


_ACK_MODES: Final = {
    "ack_requeue_true": (True, False),
    "ack_requeue_false": (False, False),
    "reject_requeue_true": (True, True),
    "reject_requeue_false": (False, True),
}
"""Mode -> whether messages go back, and whether the others are rejected."""


async def get_messages(api: Api, call: Call) -> Reply:
    body = call.object()
    if "ackmode" not in body and "requeue" in body:
        body["ackmode"] = "ack_requeue_true" if boolean(body, "requeue") else "ack_requeue_false"
    missing = [name for name in ("ackmode", "count", "encoding") if name not in body]
    if missing:
        raise bad_request(f"[{','.join(f'{{key_missing,{name}}}' for name in missing)}]")
    mode = _ACK_MODES.get(text(body, "ackmode"))
    if mode is None:
        raise bad_request(["invalid_ackmode", body["ackmode"]])
    encoding = text(body, "encoding")
    if encoding not in ("auto", "base64"):
        raise bad_request(["unsupported_encoding", encoding])
    truncate = whole(body, "truncate", MAX_GET_BYTES, MAX_GET_BYTES)
    await api.check_vhost(call.path["vhost"])
    async with call.session.channel(call.path["vhost"]) as channel:
        count = whole(body, "count", 1, MAX_GET)
        found = await channel.get(call.path["name"], count, (truncate, MAX_GET_BYTES), requeue=mode[0], reject=mode[1])
    api.collector.changed("queue")
    return Reply(value=[_message(each, encoding) for each in found])


def _message(got: Got, encoding: str) -> Row:
    properties = {
        name: plain_map(value) if isinstance(value, TypedMap) else value
        for (name, _kind), value in zip(PROPERTIES, got.properties, strict=True)
        if value is not None and name != "reserved"
    }
    payload, used = b64encode(got.body).decode(), "base64"
    if encoding == "auto":
        with contextlib.suppress(UnicodeDecodeError):
            payload, used = got.body.decode(), "string"
    return {
        "payload_bytes": got.size,
        "redelivered": got.redelivered,
        "exchange": got.exchange,
        "routing_key": got.routing_key,
        "message_count": got.left,
        "properties": properties or [],
        "payload": payload,
        "payload_encoding": used,
    }


# ---- exchanges ----


async def exchanges(api: Api, call: Call) -> Reply:
    vhost = call.path.get("vhost")
    if vhost is not None:
        await api.check_vhost(vhost)
    found = await api.exchange_rows()
    return Reply(value=listed(call, [row for row in found if vhost is None or row["vhost"] == vhost]))


async def exchange(api: Api, call: Call) -> Reply:
    seen, data = await api.find_exchange(call)
    return Reply(value={**rows.exchange_row(seen, data), "incoming": [], "outgoing": []})


async def put_exchange(api: Api, call: Call) -> Reply:
    body, vhost, name = call.object(), call.path["vhost"], call.path["name"]
    kind, durable = text(body, "type", "direct"), boolean(body, "durable")
    auto_delete, internal = boolean(body, "auto_delete"), boolean(body, "internal")
    await api.check_vhost(vhost, "vhost_not_found")
    is_there = await api.collector.one("exchange", exchange_key(vhost, own_exchange(name)))
    if is_there is not None:
        for what, given, current in (
            ("type", kind, is_there.get("type")),
            ("durable", durable, bool(is_there.get("durable"))),
            ("auto_delete", auto_delete, bool(is_there.get("autoDelete"))),
        ):
            if given != current:
                raise _inequivalent(what, "exchange", name, vhost, given, current)
    elif kind not in _EXCHANGE_TYPES:
        raise bad_request(f"unknown exchange type '{kind}'")
    async with call.session.channel(vhost) as channel:
        await channel.call(
            "exchange.declare",
            exchange=name,
            type=kind,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=table(mapping(body, "arguments")),
        )
    api.collector.changed("exchange")
    return Reply(204 if is_there is not None else 201)


async def delete_exchange(api: Api, call: Call) -> Reply:
    _, data = await api.find_exchange(call)
    if not (name := rows.local(data.key)) or name.startswith(_STANDARD):
        raise HttpError(401, "not_authorised", "Access refused.")
    async with call.session.channel(call.path["vhost"]) as channel:
        await channel.call("exchange.delete", exchange=call.path["name"], if_unused=call.flag("if-unused"))
    api.collector.changed("exchange", "binding", "exchange_binding")
    return Reply(204)


_INTEGERS: Final = ("delivery_mode", "priority", "timestamp")


def _properties(given: Row) -> Properties:
    """The properties of a message from JSON."""
    known = [name for name, _ in PROPERTIES]
    values: Row = {}
    for name, value in given.items():
        own = "reserved" if name == "cluster_id" else name
        if own not in known:
            continue
        if own == "headers":
            values[own] = table(mapping(given, "headers"))
        elif own in _INTEGERS:
            values[own] = whole(given, name, 0, (1 << 63) if own == "timestamp" else 255)
        elif isinstance(value, str):
            values[own] = value
        else:
            raise bad_request(["not_a_string", name])
    return Properties(**values)


def _payload(body: Row) -> bytes:
    """The content of a message from JSON."""
    encoding, payload = text(body, "payload_encoding"), text(body, "payload")
    if encoding == "base64":
        try:
            return b64decode(payload, validate=True)
        except ValueError:
            raise bad_request("the payload is not base64") from None
    if encoding == "string":
        return payload.encode("utf-8", "surrogatepass")
    raise bad_request(["unsupported_encoding", encoding])


async def dry_run(api: Api, call: Call) -> Reply:
    body = call.object("properties", "routing_key", "payload", "payload_encoding")
    await api.find_exchange(call)
    arguments = {
        "vhost": call.path["vhost"],
        "exchange": own_exchange(call.path["name"]),
        "routingKey": text(body, "routing_key"),
        "headers": mapping(mapping(body, "properties"), "headers"),
        "content": _payload(body),
    }
    console = await call.session.console()
    objects = [data async for data in console.query("routing", package=_QSTORE)]
    found = await console.call(objects[0], "dryRun", arguments)
    return Reply(value={"recipients": found["recipients"], "queues": list(found["queues"])})


async def publish(api: Api, call: Call) -> Reply:
    body = call.object("properties", "routing_key", "payload", "payload_encoding")
    content = _payload(body)
    properties = _properties(mapping(body, "properties"))
    await api.check_vhost(call.path["vhost"])
    try:
        async with call.session.channel(call.path["vhost"]) as channel:
            target = own_exchange(call.path["name"])
            is_routed = await channel.publish(target, text(body, "routing_key"), properties, content)
    except RefusedError as error:
        if error.code == ReplyCode.ACCESS_REFUSED:
            raise
        raise bad_request(f"{error.code} {error.text}") from None
    api.collector.changed("queue", "exchange")
    return Reply(value={"routed": is_routed})


# ---- bindings ----


async def _bindings(api: Api, call: Call, wanted: Callable[[Row], bool]) -> Reply:
    return Reply(value=listed(call, [row for row in await api.binding_rows() if wanted(row)]))


async def bindings(api: Api, call: Call) -> Reply:
    vhost = call.path.get("vhost")
    if vhost is not None:
        await api.check_vhost(vhost)
    return await _bindings(api, call, lambda row: vhost in (None, row["vhost"]))


async def queue_bindings(api: Api, call: Call) -> Reply:
    await api.find_queue(call)
    place = "queue", call.path["name"], call.path["vhost"]
    return await _bindings(api, call, lambda row: (row["destination_type"], row["destination"], row["vhost"]) == place)


async def bindings_of_source(api: Api, call: Call) -> Reply:
    _, data = await api.find_exchange(call)
    return await _bindings(
        api, call, lambda row: (row["source"], row["vhost"]) == (rows.local(data.key), call.path["vhost"])
    )


async def bindings_of_destination(api: Api, call: Call) -> Reply:
    _, data = await api.find_exchange(call)
    place = "exchange", rows.local(data.key), call.path["vhost"]
    return await _bindings(api, call, lambda row: (row["destination_type"], row["destination"], row["vhost"]) == place)


_KINDS: Final = {"q": "queue", "e": "exchange"}


def _between(call: Call) -> Callable[[Row], bool]:
    kind = _KINDS.get(call.path["kind"])
    if kind is None:
        raise not_found()
    target = call.path["destination"]
    target = own_exchange(target) if kind == "exchange" else target
    place = call.path["vhost"], own_exchange(call.path["source"]), kind, target
    return lambda row: (row["vhost"], row["source"], row["destination_type"], row["destination"]) == place


async def bindings_between(api: Api, call: Call) -> Reply:
    return await _bindings(api, call, _between(call))


async def post_binding(api: Api, call: Call) -> Reply:
    body, matches = call.object(), _between(call)
    del matches
    key, arguments = text(body, "routing_key"), mapping(body, "arguments")
    vhost, source, target = call.path["vhost"], own_exchange(call.path["source"]), call.path["destination"]
    await api.check_vhost(vhost, "vhost_not_found")
    async with call.session.channel(vhost) as channel:
        if call.path["kind"] == "q":
            await channel.call("queue.bind", queue=target, exchange=source, routing_key=key, arguments=table(arguments))
        else:
            await channel.call(
                "exchange.bind",
                destination=own_exchange(target),
                source=source,
                routing_key=key,
                arguments=table(arguments),
            )
    api.collector.changed("binding", "exchange_binding")
    named = rows.properties_key(key, arguments)
    return Reply(201, headers={"Location": f"{quote(target, safe='')}/{quote(named, safe='')}"})


async def _one_binding(api: Api, call: Call) -> Row:
    matches, wanted = _between(call), call.path["props"]
    for row in await api.binding_rows():
        if matches(row) and row["properties_key"] == wanted:
            return row
    for row in await api.binding_rows():  # a key that was decoded on the way
        if matches(row) and unquote(row["properties_key"]) == wanted:
            return row
    raise not_found()


async def one_binding(api: Api, call: Call) -> Reply:
    return Reply(value=await _one_binding(api, call))


async def delete_binding(api: Api, call: Call) -> Reply:
    api.collector.changed("binding", "exchange_binding")
    row = await _one_binding(api, call)
    arguments = table(row["arguments"])
    async with call.session.channel(call.path["vhost"]) as channel:
        if call.path["kind"] == "q":
            await channel.call(
                "queue.unbind",
                queue=row["destination"],
                exchange=row["source"],
                routing_key=row["routing_key"],
                arguments=arguments,
            )
        else:
            await channel.call(
                "exchange.unbind",
                destination=row["destination"],
                source=row["source"],
                routing_key=row["routing_key"],
                arguments=arguments,
            )
    api.collector.changed("binding", "exchange_binding")
    return Reply(204)


# ---- connections, channels, consumers ----


async def connections(api: Api, call: Call) -> Reply:
    found = await api.connection_rows(with_own=call.flag("with_consoles"))
    vhost, user = call.path.get("vhost"), call.path.get("user")
    if vhost is not None:
        await api.check_vhost(vhost)
    found = [row for row in found if vhost in (None, row["vhost"]) and user in (None, row["user"])]
    return Reply(value=listed(call, found))


async def _connection(api: Api, call: Call) -> Row:
    wanted = call.path["name"]
    for row in await api.connection_rows(with_own=True):
        if wanted in (row["name"], row["name"].partition(" -> ")[0]):
            if call.sight is not None:
                call.sight.check(row)
            return row
    raise not_found()


async def connection(api: Api, call: Call) -> Reply:
    return Reply(value=await _connection(api, call))


async def close_connection(api: Api, call: Call) -> Reply:
    row = await _connection(api, call)
    await _close(call, row)
    api.collector.changed("connection", "session", "subscription")
    return Reply(204)


async def _close(call: Call, row: Row) -> None:
    peer = row["name"].partition(" -> ")[0]
    await (await call.session.console()).call(f"connection:{peer}", "close")


async def close_connections_of_user(api: Api, call: Call) -> Reply:
    for row in await api.connection_rows(is_brief=True):
        if row["user"] == call.path["user"]:
            await _close(call, row)
    api.collector.changed("connection", "session", "subscription")
    return Reply(204)


async def channels(api: Api, call: Call) -> Reply:
    found = [row for _, row in await api.channel_rows()]
    vhost = call.path.get("vhost")
    if vhost is not None:
        await api.check_vhost(vhost)
    return Reply(value=listed(call, [row for row in found if vhost in (None, row["vhost"])]))


async def connection_channels(api: Api, call: Call) -> Reply:
    name = (await _connection(api, call))["name"]
    found = [row for _, row in await api.channel_rows() if row["connection_details"]["name"] == name]
    return Reply(value=listed(call, found))


async def channel(api: Api, call: Call) -> Reply:
    row = next((row for _, row in await api.channel_rows() if row["name"] == call.path["name"]), None)
    if row is None:
        raise not_found()
    if call.sight is not None:
        call.sight.check(row)
    found = [each for each in await api.consumer_rows() if each["channel_details"]["name"] == row["name"]]
    return Reply(value={**row, "consumer_details": found})


async def close_subscription(api: Api, call: Call) -> Reply:
    """Close one consumer. A session of AMQP 0-10 ends with it: the protocol has no other way to tell the client."""
    arguments: dict[str, Any] = {"type": "subscription", "name": call.path["key"], "options": {}}
    await (await call.session.console()).call("broker", "delete", arguments)
    api.collector.changed("session", "subscription", "queue")
    return Reply(204)


async def consumers(api: Api, call: Call) -> Reply:
    vhost = call.path.get("vhost")
    if vhost is not None:
        await api.check_vhost(vhost)
    found = await api.consumer_rows()
    return Reply(value=listed(call, [row for row in found if vhost in (None, row["queue"]["vhost"])]))


# ---- definitions ----


def _picked(row: Row, *names: str, with_vhost: bool) -> Row:
    return {name: row[name] for name in (("vhost", *names) if with_vhost else names)}


async def definitions(api: Api, call: Call) -> Reply:
    vhost, is_all = call.path.get("vhost"), "vhost" not in call.path
    if vhost is not None and vhost not in await api.vhosts():
        raise bad_request("vhost_not_found")
    of_vhost = [row for row in await api.queue_rows() if vhost in (None, row["vhost"])]
    found_exchanges = [row for row in await api.exchange_rows() if vhost in (None, row["vhost"])]
    found: Row = {
        "rabbit_version": API_VERSION,
        "rabbitmq_version": API_VERSION,
        "product_name": "qstore",
        "product_version": __version__,
    }
    if is_all:
        found |= {
            "users": await access.users_of(api, call),
            "vhosts": await access.rows_of(api, "vhosts"),
            "permissions": await access.rows_of(api, "permissions"),
            "topic_permissions": await access.rows_of(api, "topic-permissions"),
            "global_parameters": await access.global_rows(api),
        }
    queue_names = ("name", "durable", "auto_delete", "arguments")
    found |= {
        "parameters": [
            {name: value for name, value in row.items() if is_all or name != "vhost"}
            for row in await access.parameters_of(api, call, vhost)
        ],
        "policies": [
            {name: value for name, value in row.items() if is_all or name != "vhost"}
            for row in await access.rows_of(api, "policies")
            if vhost in (None, row["vhost"])
        ],
        "queues": [_picked(row, *queue_names, with_vhost=is_all) for row in of_vhost if not row["exclusive"]],
        "exchanges": [
            _picked(row, "name", "type", "durable", "auto_delete", "internal", "arguments", with_vhost=is_all)
            for row in found_exchanges
            if row["name"] and not row["name"].startswith(_STANDARD) and row["name"] not in _OWN_EXCHANGES
        ],
    }
    exclusive = {(row["vhost"], row["name"]) for row in of_vhost if row["exclusive"]}
    binding_names = ("source", "destination", "destination_type", "routing_key", "arguments")
    found["bindings"] = [
        _picked(row, *binding_names, with_vhost=is_all)
        for row in await api.binding_rows()
        if row["source"]
        and row["source"] not in _OWN_EXCHANGES
        and vhost in (None, row["vhost"])
        and not (row["destination_type"] == "queue" and (row["vhost"], row["destination"]) in exclusive)
    ]
    return Reply(value=found)


def _list_of(body: Row, name: str) -> list[Row]:
    found = body.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise bad_request(f"{name} is not a list of objects")
    return found


async def post_definitions(api: Api, call: Call) -> Reply:
    """Create what is missing. What is there stays, as in RabbitMQ."""
    body, only = call.object(), call.path.get("vhost")
    if only is not None:
        await api.check_vhost(only, "vhost_not_found")
    kinds = ("vhosts", "users", "permissions", "topic_permissions") if only is None else ()
    for kind in kinds:
        await access.import_all(api, call, kind.replace("_", "-"), _list_of(body, kind), None)
    steps: dict[str, list[tuple[str, Row]]] = defaultdict(list)
    for name in _IMPORTED:
        for each in _list_of(body, name):
            vhost = only if only is not None else text(each, "vhost", rows.DEFAULT_VHOST)
            steps[vhost].append(_import_step(name, each))
    there = {(row["vhost"], row["name"]) for row in await api.queue_rows()}
    known = {(row["vhost"], row["name"]) for row in await api.exchange_rows()}
    have = await api.vhosts()
    for vhost, operations in steps.items():
        if vhost not in have:
            raise bad_request(f"there is no virtual host '{vhost}'")
        async with call.session.channel(vhost) as channel:
            for method, arguments in operations:
                if method == "queue.declare" and (vhost, arguments["queue"]) in there:
                    continue
                if method == "exchange.declare" and (vhost, arguments["exchange"]) in known:
                    continue
                await channel.call(method, **arguments)
    await access.import_all(api, call, "policies", _list_of(body, "policies"), only)
    await access.import_parameters(api, call, _list_of(body, "parameters"), only)
    if only is None:
        await access.import_globals(api, call, _list_of(body, "global_parameters"))
    api.collector.changed("queue", "exchange", "binding", "exchange_binding")
    return Reply(204)


_IMPORTED: Final = ("exchanges", "queues", "bindings")


def _import_step(kind: str, given: Row) -> tuple[str, Row]:
    """The method that creates an object of definitions, and its arguments."""
    arguments = table(mapping(given, "arguments"))
    if kind == "bindings":
        bound = {"routing_key": text(given, "routing_key"), "arguments": arguments}
        source, target = own_exchange(text(given, "source")), text(given, "destination")
        if text(given, "destination_type", "queue") == "queue":
            return "queue.bind", {"queue": target, "exchange": source, **bound}
        return "exchange.bind", {"destination": own_exchange(target), "source": source, **bound}
    flags = {name: boolean(given, name) for name in ("durable", "auto_delete")}
    if kind == "queues":
        return "queue.declare", {"queue": text(given, "name"), **flags, "arguments": arguments}
    named = {"exchange": text(given, "name"), "type": text(given, "type", "direct")}
    return "exchange.declare", {**named, **flags, "arguments": arguments}


# ---- what RabbitMQ has not ----


def _shown(data: Data, *left_out: str) -> Row:
    """An object as its class in QMF has it."""
    return {name: value for name, value in plain(data.values).items() if name not in left_out}


async def store(api: Api, _call: Call) -> Reply:
    found = next(iter(await api.collector.get("store")), None)
    return Reply(value={} if found is None else _shown(found, "brokerRef"))


def journal_row(data: Data) -> Row:
    """A journal, and how full it is."""
    files, free = rows.number(data, "currentFileCount"), rows.number(data, "freeFileCount")
    size = rows.number(data, "dataFileSize")
    names = {
        "name": "name", "directory": "directory", "records": "recordDepth", "enqueues": "enqueues",
        "dequeues": "dequeues", "open_transactions": "txn", "outstanding_flushes": "outstandingAIOs",
        "waits_for_room": "writeWaitFailures", "shortages": "writeBusyFailures", "max_files": "maxFileCount",
        "available_files": "availableFileCount",
    }  # fmt: skip
    vhost, name = split_name(data.key)
    return {
        **{name: data.get(source) for name, source in names.items()},
        "name": name,
        "vhost": vhost,
        "files": files,
        "free_files": free,
        "file_size": size,
        "capacity": files * size,
        "fill": round((files - free) / files, 4) if files else 0.0,
    }


async def journals(api: Api, call: Call) -> Reply:
    return Reply(value=listed(call, await api.journal_rows()))


async def journal(api: Api, call: Call) -> Reply:
    key = full_name(call.query.get("vhost", rows.DEFAULT_VHOST), call.path["name"])
    data = await api.collector.one("journal", key, _LEGACY)
    if data is None:
        raise not_found()
    files = await api.collector.one("journalFiles", key, _QSTORE)
    return Reply(value={**journal_row(data), **({} if files is None else _files(files))})


def _files(data: Data) -> Row:
    """The files of a journal, and what keeps the oldest of them from being overwritten."""
    oldest: Row | None = None
    if data["oldestFile"] >= 0:
        oldest = {"rid": data["oldestRid"], "file": data["oldestFile"], "offset": data["oldestOffset"]}
    return {
        "ring": [{"file": file, "live": live} for file, live in zip(data["files"], data["live"], strict=True)],
        "ring_used": data["used"],
        "oldest": oldest,
        "held_by": data["heldBy"],
        "message_state": data["messageState"],
    }


MAX_QUARANTINED: Final = 10_000
"""Entries of a quarantine that are shown."""


_NOTHING_ASIDE: Final[Row] = {"files": [], "records": [], "problem": ""}


def quarantined(location: str) -> Row:
    """What a store has in its quarantines: whole files that a start set aside, and records that a recovery did."""
    place = Path(location)
    aside = place / "rhm" / "quarantine"
    found: Row = {"files": [], "records": [], "problem": ""}
    with contextlib.suppress(OSError):
        names = sorted(each.name for each in aside.iterdir())
        found["files"] = [{"name": name, "path": str(aside / name)} for name in names[:MAX_QUARANTINED]]
    if not (place / "quarantine").is_dir():
        return found
    try:
        for each in Quarantine(OsDisk(), str(place / "quarantine")).entries():
            if len(found["records"]) < MAX_QUARANTINED and isinstance(each, QuarantineEntry):
                found["records"].append({**each._asdict(), "injected": each.injected is not None})
    except (QuarantineError, OSError) as error:
        found["problem"] = str(error)
    return found


async def quarantine(api: Api, _call: Call) -> Reply:
    return Reply(value=await api.quarantined())


async def transactions(_api: Api, call: Call) -> Reply:
    """As the user of the request: a user sees those of others only with the right to."""
    console = await call.session.console()
    found = [_shown(data) async for data in console.query("transaction", package=_QSTORE)]
    return Reply(value=listed(call, [{**row, "in_doubt": row.get("state") == "PREPARED"} for row in found]))


async def end_transaction(api: Api, call: Call) -> Reply:
    console = await call.session.console()
    method = {"commit": "commit", "rollback": "rollback"}.get(call.path["outcome"])
    if method is None:
        raise not_found()
    await console.call(f"{_QSTORE}:transaction:{call.path['xid']}", method)
    api.collector.changed("queue", "transaction")
    return Reply(204)


async def object_of(api: Api, call: Call) -> Reply:
    """All objects of a class of QMF, as they are."""
    name = call.path["class"]
    if name not in OBJECTS:
        raise not_found()
    found = [{"object": data.key, **_shown(data)} for data in await api.collector.get(name)]
    return Reply(value=listed(call, found))


OBJECTS: Final = (
    "acl", "agent", "alarms", "backup", "binding", "bridge", "broker", "connection", "exchange", "exchange_binding",
    "flushes", "journal", "link", "log", "memory", "messageSizes", "queue", "security", "session", "store",
    "subscription", "system", "vhost", "virtual_host",
)  # fmt: skip
"""The classes that are shown as they are."""


async def move_messages(api: Api, call: Call) -> Reply:
    body = call.object("destination")
    await api.find_queue(call)
    arguments = {
        "srcQueue": full_name(call.path["vhost"], call.path["name"]),
        "destQueue": full_name(call.path["vhost"], text(body, "destination")),
        "qty": whole(body, "count", 0, (1 << 32) - 1),
    }
    await (await call.session.console()).call("broker", "queueMoveMessages", arguments)
    api.collector.changed("queue")
    return Reply(204)


async def history(api: Api, call: Call) -> Reply:
    """Points of all queues together, or of one: `age` seconds back."""
    name, vhost, sight = call.query.get("queue"), call.query.get("vhost", rows.DEFAULT_VHOST), call.session.sight
    if name is not None and sight is not None:
        sight.check_vhost(vhost)
    series = TOTAL if name is None else f"queue {full_name(vhost, name)}"
    points = api.collector.history.points(series, call.count("age", 3600), api.now())
    return Reply(value={"series": list(SERIES), "points": [[at, *values] for at, values in points]})


async def console_status(api: Api, _call: Call) -> Reply:
    return Reply(
        value={
            "version": __version__,
            "broker": api.broker,
            "interval": api.collector.interval,
            "sampling_seconds": round(api.collector.seconds, 3),
            "logins": api.logins.attempts,
            "failed_logins": api.logins.failures,
        }
    )


# ---- users, permissions, policies ----


def _of(act: Callable[[Api, str, Call], Awaitable[Reply]], kind: str) -> Handler:
    """The handler of a kind of `access`."""

    async def handle(api: Api, call: Call) -> Reply:
        return await act(api, kind, call)

    handle.__name__ = f"{act.__name__}_{kind}"
    return handle


def _routes_of(kind: str, role: str, path: str, what: str) -> Iterable[Route]:
    """The rows of a kind whose objects have a path of their own."""
    yield Route("GET", f"{kind}/{path}", role, _of(access.one_of, kind), f"One {what}")
    yield Route("PUT", f"{kind}/{path}", role, _of(access.put, kind), f"Create or replace {with_article(what)}")
    yield Route("DELETE", f"{kind}/{path}", role, _of(access.delete, kind), f"Delete {with_article(what)}")


# ---- the table ----


async def openapi(api: Api, _call: Call) -> Reply:
    paths: dict[str, Row] = {}
    for route in api.resources.routes:
        names = re.findall(r"{(\w+)}", route.pattern)
        operation: Row = {
            "operationId": f"{route.handler.__name__}-{route.method.lower()}-{len(paths)}",
            "summary": route.summary,
            "tags": [route.pattern.partition("/")[0]],
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ],
            "responses": {"default": {"$ref": "#/components/responses/Error"}, **_answers(route)},
        }
        if route.role:
            operation["x-role"] = route.role
        if route.method in ("PUT", "POST"):
            operation["requestBody"] = {"content": {"application/json": {"schema": {"type": "object"}}}}
        paths.setdefault(f"/{route.pattern}", {})[route.method.lower()] = operation
    return Reply(
        value={
            "openapi": "3.1.0",
            "info": {
                "title": "qstore",
                "version": __version__,
                "description": "RabbitMQ's management API, with qstore's additions under /qstore.",
            },
            "servers": [{"url": "/api"}],
            "security": [{"basic": []}],
            "paths": paths,
            "components": {
                "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
                "responses": {
                    "Error": {
                        "description": "The request is refused.",
                        "content": {
                            "application/json": {
                                "schema": {
                                    "type": "object",
                                    "properties": {"error": {"type": "string"}, "reason": {}},
                                    "required": ["error", "reason"],
                                }
                            }
                        },
                    }
                },
            },
        }
    )


def _answers(route: Route) -> Row:
    if route.method == "PUT":
        return {"201": {"description": "Created."}, "204": {"description": "Already there; now as given."}}
    if route.method == "DELETE":
        return {"204": {"description": "Deleted."}}
    return {"200": {"description": "The answer, if any.", "content": {"application/json": {"schema": {}}}}}


# fmt: off
ROUTES: Final = (
    Route("GET", "overview", MANAGEMENT, overview, "The broker: messages, rates, numbers of objects, listeners"),
    Route("GET", "cluster-name", MANAGEMENT, cluster_name, "The broker's name"),
    Route("PUT", "cluster-name", ADMINISTRATOR, access.put_cluster_name, "Set the broker's name"),
    Route("GET", "nodes", MONITORING, nodes, "The broker as a node: memory, disk, descriptors"),
    Route("GET", "nodes/{name}", MONITORING, nodes, "One node"),
    Route("GET", "nodes/{name}/memory", MONITORING, node_memory, "Memory use of the node, by purpose"),
    Route("GET", "extensions", MANAGEMENT, extensions, "Extensions of the console (always empty)"),
    Route("GET", "auth", "-", auth, "Login methods (OAuth is never enabled)"),
    Route("GET", "whoami", "", whoami, "The logged-in user and its tags"),
    Route("GET", "feature-flags", ADMINISTRATOR, nothing, "Feature flags (always empty)"),
    Route("GET", "deprecated-features", ADMINISTRATOR, nothing, "Deprecated features (always empty)"),

    Route("GET", "vhosts", MANAGEMENT, vhosts, "The virtual hosts"),
    Route("GET", "vhosts/{vhost}", MANAGEMENT, vhosts, "One virtual host"),
    Route("GET", "vhosts/{vhost}/connections", MANAGEMENT, connections, "Connections to a virtual host"),
    Route("GET", "vhosts/{vhost}/channels", MANAGEMENT, channels, "Channels in a virtual host"),

    Route("PUT", "vhosts/{name}", ADMINISTRATOR, _of(access.put, "vhosts"), "Create a virtual host"),
    Route("DELETE", "vhosts/{name}", ADMINISTRATOR, _of(access.delete, "vhosts"),
          "Delete a virtual host and everything in it"),
    Route("GET", "vhosts/{vhost}/permissions", ADMINISTRATOR, _of(access.all_of, "permissions"),
          "Permissions in a virtual host"),
    Route("GET", "vhosts/{vhost}/topic-permissions", ADMINISTRATOR, _of(access.all_of, "topic-permissions"),
          "Topic permissions in a virtual host"),
    Route("GET", "vhost-limits", MANAGEMENT, access.limits, "Limits of virtual hosts"),
    Route("GET", "vhost-limits/{vhost}", MANAGEMENT, access.limits, "Limits of one virtual host"),
    Route("PUT", "vhost-limits/{vhost}/{name}", ADMINISTRATOR, access.put_limit,
          "Set a limit of a virtual host: max-connections or max-queues"),
    Route("DELETE", "vhost-limits/{vhost}/{name}", ADMINISTRATOR, access.delete_limit,
          "Remove a limit of a virtual host"),

    Route("GET", "users", ADMINISTRATOR, _of(access.all_of, "users"), "The users"),
    *_routes_of("users", ADMINISTRATOR, "{name}", "user"),
    Route("POST", "users/bulk-delete", ADMINISTRATOR, access.delete_users, "Delete several users"),
    Route("GET", "users/without-permissions", ADMINISTRATOR, access.without_permissions,
          "Users without permissions in any virtual host"),
    Route("GET", "users/{user}/permissions", ADMINISTRATOR, _of(access.all_of, "permissions"), "Permissions of a user"),
    Route("GET", "users/{user}/topic-permissions", ADMINISTRATOR, _of(access.all_of, "topic-permissions"),
          "Topic permissions of a user"),
    Route("GET", "user-limits", ADMINISTRATOR, nothing, "Limits of users (always empty)"),
    Route("GET", "user-limits/{user}", ADMINISTRATOR, nothing, "Limits of one user (always empty)"),
    Route("GET", "permissions", ADMINISTRATOR, _of(access.all_of, "permissions"), "The permissions"),
    *_routes_of("permissions", ADMINISTRATOR, "{vhost}/{user}", "permission"),
    Route("GET", "topic-permissions", ADMINISTRATOR, _of(access.all_of, "topic-permissions"), "The topic permissions"),
    Route("GET", "topic-permissions/{vhost}/{user}", ADMINISTRATOR, _of(access.all_of, "topic-permissions"),
          "Topic permissions of a user in a virtual host"),
    Route("PUT", "topic-permissions/{vhost}/{user}", ADMINISTRATOR, _of(access.put, "topic-permissions"),
          "Create or replace a topic permission"),
    Route("DELETE", "topic-permissions/{vhost}/{user}", ADMINISTRATOR, _of(access.delete, "topic-permissions"),
          "Delete the topic permissions of a user in a virtual host"),

    Route("GET", "policies", MANAGEMENT, _of(access.all_of, "policies"), "The policies"),
    Route("GET", "policies/{vhost}", MANAGEMENT, _of(access.all_of, "policies"), "Policies of a virtual host"),
    *_routes_of("policies", POLICYMAKER, "{vhost}/{name}", "policy"),
    Route("GET", "operator-policies", MANAGEMENT, _of(access.all_of, "operator-policies"), "The operator policies"),
    Route("GET", "operator-policies/{vhost}", MANAGEMENT, _of(access.all_of, "operator-policies"),
          "Operator policies of a virtual host"),
    *_routes_of("operator-policies", ADMINISTRATOR, "{vhost}/{name}", "operator policy"),
    Route("GET", "parameters", POLICYMAKER, access.parameters, "Parameters of components"),
    Route("GET", "parameters/{component}", POLICYMAKER, access.parameters, "Parameters of one component"),
    Route("GET", "parameters/{component}/{vhost}", POLICYMAKER, access.parameters,
          "Parameters of one component in a virtual host"),
    Route("GET", "parameters/{component}/{vhost}/{name}", POLICYMAKER, access.parameter, "One parameter"),
    Route("PUT", "parameters/{component}/{vhost}/{name}", POLICYMAKER, access.put_parameter,
          "Create or replace a parameter"),
    Route("DELETE", "parameters/{component}/{vhost}/{name}", POLICYMAKER, access.delete_parameter,
          "Delete a parameter"),
    Route("GET", "global-parameters", POLICYMAKER, access.global_parameters, "Global parameters"),
    Route("GET", "global-parameters/{name}", POLICYMAKER, access.global_parameter, "One global parameter"),
    Route("PUT", "global-parameters/{name}", ADMINISTRATOR, access.put_global_parameter,
          "Create or replace a global parameter"),
    Route("DELETE", "global-parameters/{name}", ADMINISTRATOR, access.delete_global_parameter,
          "Delete a global parameter"),

    Route("GET", "federation-links", MONITORING, federation.links, "The links of federated exchanges and queues"),
    Route("GET", "federation-links/{vhost}", MONITORING, federation.links, "Federation links of a virtual host"),
    Route("GET", "federation-links/state/down", MONITORING, federation.links_down, "Federation links that do not run"),
    Route("GET", "federation-links/{vhost}/state/down", MONITORING, federation.links_down,
          "Federation links of a virtual host that do not run"),
    Route("DELETE", "federation-links/vhost/{vhost}/{id}/{node}/restart", POLICYMAKER, federation.restart_link,
          "Restart a federation link now"),
    Route("GET", "shovels", MONITORING, federation.shovels, "The shovels and their states"),
    Route("GET", "shovels/{vhost}", MONITORING, federation.shovels, "Shovels of a virtual host"),
    Route("GET", "shovels/vhost/{vhost}/{name}", MONITORING, federation.shovel, "One shovel"),
    Route("DELETE", "shovels/vhost/{vhost}/{name}", POLICYMAKER, federation.delete_shovel, "Delete a shovel"),
    Route("DELETE", "shovels/vhost/{vhost}/{name}/restart", POLICYMAKER, federation.restart_shovel,
          "Restart a shovel now"),

    Route("GET", "queues", MANAGEMENT, queues, "The queues, with paging, sorting, filters and selected columns"),
    Route("GET", "queues/{vhost}", MANAGEMENT, queues, "Queues of a virtual host"),
    Route("GET", "queues/{vhost}/{name}", MANAGEMENT, queue, "One queue, with its consumers, rates and history"),
    Route("PUT", "queues/{vhost}/{name}", MANAGEMENT, put_queue, "Declare a queue"),
    Route("DELETE", "queues/{vhost}/{name}", MANAGEMENT, delete_queue, "Delete a queue; options if-empty, if-unused"),
    Route("DELETE", "queues/{vhost}/{name}/contents", MANAGEMENT, purge_queue, "Purge a queue"),
    Route("GET", "queues/{vhost}/{name}/bindings", MANAGEMENT, queue_bindings, "Bindings of a queue"),
    Route("POST", "queues/{vhost}/{name}/get", MANAGEMENT, get_messages, "Get messages, and requeue them or not"),
    Route("POST", "queues/{vhost}/{name}/actions", POLICYMAKER, queue_action, "Actions on replicas (there are none)"),

    Route("GET", "exchanges", MANAGEMENT, exchanges, "The exchanges"),
    Route("GET", "exchanges/{vhost}", MANAGEMENT, exchanges, "Exchanges of a virtual host"),
    Route("GET", "exchanges/{vhost}/{name}", MANAGEMENT, exchange, "One exchange"),
    Route("PUT", "exchanges/{vhost}/{name}", MANAGEMENT, put_exchange, "Declare an exchange"),
    Route("DELETE", "exchanges/{vhost}/{name}", MANAGEMENT, delete_exchange, "Delete an exchange; option if-unused"),
    Route("POST", "exchanges/{vhost}/{name}/publish", MANAGEMENT, publish, "Publish a message to an exchange"),
    Route("POST", "exchanges/{vhost}/{name}/dry-run", MANAGEMENT, dry_run,
          "Find the queues that would get a message; nothing is published"),
    Route("GET", "exchanges/{vhost}/{name}/bindings/source", MANAGEMENT, bindings_of_source,
          "Bindings whose source is an exchange"),
    Route("GET", "exchanges/{vhost}/{name}/bindings/destination", MANAGEMENT, bindings_of_destination,
          "Bindings whose destination is an exchange"),

    Route("GET", "bindings", MANAGEMENT, bindings, "The bindings"),
    Route("GET", "bindings/{vhost}", MANAGEMENT, bindings, "Bindings of a virtual host"),
    Route("GET", "bindings/{vhost}/e/{source}/{kind}/{destination}", MANAGEMENT, bindings_between,
          "Bindings from an exchange to a queue (q) or an exchange (e)"),
    Route("POST", "bindings/{vhost}/e/{source}/{kind}/{destination}", MANAGEMENT, post_binding, "Create a binding"),
    Route("GET", "bindings/{vhost}/e/{source}/{kind}/{destination}/{props}", MANAGEMENT, one_binding, "One binding"),
    Route("DELETE", "bindings/{vhost}/e/{source}/{kind}/{destination}/{props}", MANAGEMENT, delete_binding,
          "Delete a binding"),

    Route("GET", "connections", MANAGEMENT, connections,
          "The connections; with_consoles=true includes those of consoles"),
    Route("GET", "connections/{name}", MANAGEMENT, connection, "One connection"),
    Route("DELETE", "connections/{name}", MANAGEMENT, close_connection, "Close a connection"),
    Route("GET", "connections/{name}/channels", MANAGEMENT, connection_channels, "Channels of a connection"),
    Route("GET", "connections/username/{user}", MANAGEMENT, connections, "Connections of a user"),
    Route("DELETE", "connections/username/{user}", ADMINISTRATOR, close_connections_of_user,
          "Close all connections of a user"),
    Route("GET", "channels", MANAGEMENT, channels, "The channels, and sessions of AMQP 0-10"),
    Route("GET", "channels/{name}", MANAGEMENT, channel, "One channel, with its consumers"),
    Route("GET", "consumers", MANAGEMENT, consumers, "The consumers"),
    Route("GET", "consumers/{vhost}", MANAGEMENT, consumers, "Consumers of a virtual host"),

    Route("GET", "definitions", ADMINISTRATOR, definitions,
          "Export all definitions; password_hashes=true includes users with their hashes"),
    Route("POST", "definitions", ADMINISTRATOR, post_definitions, "Import definitions: create what is missing"),
    Route("GET", "definitions/{vhost}", ADMINISTRATOR, definitions, "Export the definitions of a virtual host"),
    Route("POST", "definitions/{vhost}", ADMINISTRATOR, post_definitions, "Import definitions into a virtual host"),

    Route("GET", "health/checks/alarms", "", health.no_alarm, "Check that the broker answers and no alarm is on"),
    Route("GET", "health/checks/local-alarms", "", health.no_alarm, "Same as health/checks/alarms"),
    Route("GET", "health/checks/virtual-hosts", "", health.answers, "Check that all virtual hosts are running"),
    Route("GET", "health/checks/certificate-expiration/{within}/{unit}", "", health.certificates,
          "Check that no certificate expires within a number of days, weeks, months or years"),
    Route("GET", "health/checks/node-is-quorum-critical", "", health.critical, "Always passes: there is one node"),
    Route("GET", "health/checks/node-is-mirror-sync-critical", "", health.critical, "Always passes: there is one node"),
    Route("GET", "health/checks/port-listener/{port}", "", health.port_listener,
          "Check that the broker listens on a port"),
    Route("GET", "health/checks/protocol-listener/{protocol}", "", health.protocol_listener,
          "Check that a protocol is enabled"),
    Route("GET", "healthchecks/node", "", health.no_alarm, "Same as health/checks/alarms"),
    Route("GET", "aliveness-test/{vhost}", MANAGEMENT, health.aliveness,
          "Check a virtual host by sending a message through a queue"),

    Route("PUT", "qstore/users/{name}/tags", ADMINISTRATOR, access.set_tags, "Set the tags of a user"),
    Route("GET", "qstore/console", MANAGEMENT, console_status, "Statistics of the console itself"),
    Route("GET", "qstore/alarms", MONITORING, health.list_alarms, "Alarms and warnings"),
    Route("GET", "qstore/log", ADMINISTRATOR, health.log,
          "The last lines of the broker's log; parameters after, count"),
    Route("DELETE", "qstore/subscriptions/{key}", MANAGEMENT, close_subscription, "Close a consumer"),
    Route("GET", "qstore/domains", MONITORING, federation.domains, "Domains of AMQP 1.0, without their passwords"),
    Route("GET", "qstore/domains/{name}", MONITORING, federation.domain, "One domain"),
    Route("PUT", "qstore/domains/{name}", POLICYMAKER, federation.put_domain, "Create a domain"),
    Route("DELETE", "qstore/domains/{name}", POLICYMAKER, federation.delete_domain, "Delete a domain without links"),
    Route("GET", "qstore/interlinks", MONITORING, federation.interlinks, "Links of AMQP 1.0 through domains"),
    Route("GET", "qstore/interlinks/{direction}/{name}", MONITORING, federation.interlink,
          "One link through a domain, incoming or outgoing"),
    Route("PUT", "qstore/interlinks/{direction}/{name}", POLICYMAKER, federation.put_interlink,
          "Create a link through a domain"),
    Route("DELETE", "qstore/interlinks/{direction}/{name}", POLICYMAKER, federation.delete_interlink,
          "Delete a link through a domain"),
    Route("DELETE", "qstore/interlinks/{direction}/{name}/restart", POLICYMAKER, federation.restart_interlink,
          "Connect a link through a domain again now"),
    Route("GET", "qstore/store", MONITORING, store, "The store"),
    Route("GET", "qstore/journals", MONITORING, journals, "The journals of durable queues, with their fill levels"),
    Route("GET", "qstore/journals/{name}", MONITORING, journal, "The journal of a queue"),
    Route("GET", "qstore/quarantine", MONITORING, quarantine, "Quarantined records and files on this machine"),
    Route("GET", "qstore/transactions", MONITORING, transactions, "Branches of distributed transactions"),
    Route("POST", "qstore/transactions/{xid}/{outcome}", ADMINISTRATOR, end_transaction,
          "Commit or roll back a branch in doubt"),
    Route("POST", "qstore/queues/{vhost}/{name}/move", MANAGEMENT, move_messages, "Move messages to another queue"),
    Route("GET", "qstore/history", MANAGEMENT, history, "Samples for the plots of a queue or of all queues"),
    Route("GET", "qstore/objects/{class}", MONITORING, object_of, "The objects of a QMF class"),
    Route("GET", "openapi.json", "-", openapi, "This document"),
)
# fmt: on
