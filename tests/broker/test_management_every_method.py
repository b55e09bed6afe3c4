"""Every method of every class is called, in both versions of QMF: it works, or the answer says why not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import pytest

from qstore.broker.log.status_log import StatusLog
from qstore.broker.management.classes import CLASSES, objects_of
from qstore.broker.management.outbox import VERSION_1
from qstore.broker.management.request import status_of
from qstore.broker.management.schema import ManagedClass
from qstore.broker.model.errors import NotImplementedByBrokerError
from qstore.broker.protocols.machine import ConnectionCounts, ConnectionLimits, SessionModes
from qstore.formats.amqp_0_10.maps import encode_value
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.formats.qmf.v1 import FIELDS, ObjectId, decode_message, encode, encode_message
from qstore.formats.values import EMPTY_MAP, TypedMap, typed_map, typed_value
from tests.broker.test_management_acl import use
from tests.broker.test_management_methods import XIDS, FakeLog, prepare
from tests.broker.test_qmf1 import ask, bodies, id_of
from tests.broker.wired_broker import Wired, wired
from tests.support.management_console import Console, take
from tests.support.profiles import seeds_of_the_day

_BROKER, _ACL, _HA, _OWN = "org.apache.qpid.broker", "org.apache.qpid.acl", "org.apache.qpid.ha", "qstore"
_NO_LINKS = "this broker cannot have links to other brokers: it has no network"
_GONE = "no object"  # of that class; what the method would answer is in `_UNREACHABLE`
_NONE: dict[str, Any] = {}

#: Package, class and method -> arguments of each call, and what its refusal says; empty if it works.
_CALLS: dict[tuple[str, str, str], list[tuple[dict[str, Any], str]]] = {
    (_BROKER, "broker", "echo"): [({"sequence": 7, "body": "hello"}, "")],
    (_BROKER, "broker", "connect"): [({"host": "h", "port": 5672, "transport": "tcp"}, _NO_LINKS)],
    (_BROKER, "broker", "queueMoveMessages"): [({"srcQueue": "q", "destQueue": "other", "qty": 1}, "")],
    (_BROKER, "broker", "setLogLevel"): [({"level": "notice+"}, "")],
    (_BROKER, "broker", "getLogLevel"): [(_NONE, "")],
    (_BROKER, "broker", "getTimestampConfig"): [(_NONE, "")],
    (_BROKER, "broker", "setTimestampConfig"): [({"receive": True}, "")],
    (_BROKER, "broker", "create"): [
        ({"type": "queue", "name": "made", "properties": {"durable": True, "qpid.max_count": 5}, "strict": True}, ""),
        ({"type": "exchange", "name": "made", "properties": {"exchange-type": "direct"}}, ""),
        ({"type": "topic", "name": "topic"}, ""),
        ({"type": "binding", "name": "made/made/key"}, ""),
        ({"type": "exchange_binding", "name": "made/topic/key", "properties": {"n": 1}}, ""),
        ({"type": "exchange_binding", "name": "made"}, "SOURCE/DESTINATION/KEY"),
        ({"type": "queue", "name": "x", "properties": {"colour": "red"}, "strict": True}, "unknown property: colour"),
        ({"type": "link", "name": "x"}, _NO_LINKS),
        ({"type": "bridge", "name": "x"}, _NO_LINKS),
        *(({"type": kind, "name": "x"}, _NO_LINKS) for kind in ("domain", "incoming", "outgoing")),
        ({"type": "QueuePolicy", "name": "^x-", "properties": {"qpid.max_count": 5}}, ""),
        ({"type": "TopicPolicy", "name": "^y-", "properties": {"exchange-type": "fanout"}}, ""),
        ({"type": "TopicPolicy", "name": "^x-"}, "a QueuePolicy with the name ^x- already exists"),
    ],
    (_BROKER, "broker", "delete"): [
        ({"type": "binding", "name": "made/made/key"}, ""),
        ({"type": "exchange_binding", "name": "made/topic/key"}, "is not bound"),
        ({"type": "exchange_binding", "name": "made/topic/key", "options": {"n": 1}}, ""),
        ({"type": "topic", "name": "topic"}, ""),
        ({"type": "exchange", "name": "made"}, ""),
        ({"type": "queue", "name": "made", "options": {"if_empty": True, "if_unused": True}}, ""),
        ({"type": "queue", "name": "made"}, "Queue not found: made"),
        ({"type": "link", "name": "x"}, _NO_LINKS),
        ({"type": "bridge", "name": "x"}, _NO_LINKS),
        *(({"type": kind, "name": "x"}, _NO_LINKS) for kind in ("domain", "incoming", "outgoing")),
        ({"type": "TopicPolicy", "name": "^x-"}, "No such TopicPolicy: ^x-"),
        ({"type": "QueuePolicy", "name": "^x-"}, ""),
        ({"type": "TopicPolicy", "name": "^y-", "options": {"n": 1}}, "unknown option of delete: n"),
        ({"type": "TopicPolicy", "name": "^y-"}, ""),
    ],
    (_BROKER, "broker", "query"): [({"type": "queue", "name": "q"}, "")],
    (_BROKER, "broker", "getLogHiresTimestamp"): [(_NONE, "")],
    (_BROKER, "broker", "setLogHiresTimestamp"): [({"logHires": True}, "")],
    (_BROKER, "broker", "queueRedirect"): [
        ({"sourceQueue": "q", "targetQueue": "other"}, ""), ({"sourceQueue": "q", "targetQueue": ""}, ""),
    ],
    (_BROKER, "broker", "shutdown"): [(_NONE, "")],
    (_BROKER, "queue", "purge"): [({"request": 1}, "")],
    (_BROKER, "queue", "reroute"): [({"request": 1, "exchange": "amq.fanout"}, "")],
    (_BROKER, "session", "solicitAck"): [(_NONE, "")],
    (_BROKER, "session", "resetLifespan"): [(_NONE, "")],
    (_BROKER, "session", "detach"): [(_NONE, "")],
    (_BROKER, "session", "close"): [(_NONE, "")],
    (_BROKER, "connection", "close"): [(_NONE, "")],
    (_BROKER, "link", "close"): [(_NONE, _GONE)],
    (_BROKER, "link", "bridge"): [({"src": "q", "dest": "x", "key": "k"}, _GONE)],
    (_BROKER, "bridge", "close"): [(_NONE, _GONE)],
    ("org.apache.qpid.legacystore", "journal", "expand"): [({"by": 1}, "a journal grows by itself")],
    (_ACL, "acl", "reloadACLFile"): [(_NONE, "")],
    (_ACL, "acl", "Lookup"): [({"userId": "kim@QPID", "action": "create", "object": "queue", "objectName": "q"}, "")],
    (_ACL, "acl", "LookupPublish"): [({"userId": "kim@QPID", "exchangeName": "x", "routingKey": "k"}, "")],
    (_HA, "haBroker", "promote"): [(_NONE, _GONE)],
    (_HA, "haBroker", "setBrokersUrl"): [({"url": "a"}, _GONE)],
    (_HA, "haBroker", "setPublicUrl"): [({"url": "a"}, _GONE)],
    (_HA, "haBroker", "replicate"): [({"broker": "a", "queue": "q"}, _GONE)],
    (_OWN, "transaction", "commit"): [(_NONE, "")],
    (_OWN, "transaction", "rollback"): [(_NONE, "")],
    (_OWN, "security", "reload"): [(_NONE, "")],
    (_OWN, "backup", "begin"): [(_NONE, "")],
    (_OWN, "backup", "copied"): [({"snapshot": 1, "queues": []}, "")],
    (_OWN, "backup", "end"): [({"snapshot": 1}, ""), ({"snapshot": 1}, "snapshot")],
    (_OWN, "log", "setStatus"): [({"status": True}, ""), ({"status": False}, "")],
    (_OWN, "log", "setStatusRules"): [({"rules": ["qpid.* = OFF"]}, ""), ({"rules": ["x"]}, "is not PATH=LEVEL")],
    (_OWN, "user", "exportPassword"): [(_NONE, _GONE)],
    (_OWN, "routing", "dryRun"): [
        ({"exchange": "", "routingKey": "q", "headers": {"a": 1}, "content": "x"}, ""),
        ({"exchange": "none", "routingKey": "q"}, "Exchange not found"),
        ({"vhost": "none", "exchange": "", "routingKey": "q"}, "Virtual host not found"),
    ],
    (_OWN, "shovel", "restart"): [(_NONE, _GONE)],
    (_OWN, "federationLink", "restart"): [(_NONE, _GONE)],
    (_OWN, "interlink", "restart"): [(_NONE, _GONE)],
    (_OWN, "log", "recent"): [({"after": 0, "count": 10}, "")],
}  # fmt: skip

#: Methods of classes that have no objects, and what they would answer.
_UNREACHABLE = {(_HA, "haBroker"): "in no cluster"}
_DEFAULTS = {"bool": False, "map": EMPTY_MAP, "sstr": "", "lstr": "", "list": ()}


class Machine:
    """A connection with a session, which remembers what was done to it."""

    def __init__(self) -> None:
        self.peer, self.done = "192.0.2.1:5", list[object]()
        self.user, self.mechanism, self.protocol = "kim@QPID", "PLAIN", "AMQP 0-10"
        self.vhost = DEFAULT_HOST
        self.is_outgoing, self.ssf, self.tls = False, 0, None
        self.created_at, self.is_closing, self.client_properties = 1.0, False, EMPTY_MAP
        self.counts, self.limits = ConnectionCounts(0, 0, 0, 0, 0, 0), ConnectionLimits(0, 0, 0)
        counters = dict.fromkeys(("timeout", "txn_starts", "txn_commits", "txn_rejects", "unsettled_count"), 0)
        session = SimpleNamespace(
            user="kim@QPID",
            vhost="/",
            name=b"work",
            subscriptions={},
            attached_links=(),
            credit=0,
            rate=None,
            **counters,
        )
        session.outstanding_commands = 0
        session.modes = SessionModes(
            confirms=True, is_transactional=False, prefetch=0, shared_prefetch=0, published=0, settled=0
        )
        self.sessions = {3: session}

    def force_close(self, text: str) -> None:
        self.done.append(text)

    def manage_session(self, channel: int, action: object) -> None:
        self.done.append((channel, action))

    def set_timestamps(self, *, is_on: bool) -> None:
        self.done.append(is_on)


class Stage:
    """A broker that has an object of every class that can have one."""

    def __init__(self, wired_broker: Wired, console: Console, directory: Path) -> None:
        self.wired, self.console, self.machine = wired_broker, console, Machine()
        self.endings: list[int] = []
        self._file = directory / "broker.acl"

    async def open(self) -> None:
        managed = self.console.managed
        use(self.wired, "acl allow all all", file=self._file)
        for name in ("q", "other"):
            await self.wired.topology.declare_queue(name, durable=True)
        await self.wired.publish("", "q", b"1", b"2", b"3")
        for xid in XIDS:
            await prepare(self.wired, xid, b"in doubt")
        managed.log, managed.status = FakeLog(), StatusLog()
        logins = SimpleNamespace(failures=0)
        clients = SimpleNamespace(pressure=SimpleNamespace(tight_journals=lambda _most: ["q"]))
        managed.security = SimpleNamespace(  # type: ignore[assignment]
            reload_security=lambda: ["a warning"], authentication=logins, clients=clients, certificate_expires=0
        )
        managed.shut_down = lambda: self.endings.append(1)
        self.console.machines.append(self.machine)

    async def in_version_1(self, of: ManagedClass, name: str, arguments: dict[str, Any]) -> str:
        """Call a method. Returns what its refusal says; empty if it works."""
        if next(objects_of(self.console.managed, of), None) is None:
            identity, class_hash = ObjectId(0, 1, 1, 0, 999_999), of.hash.bytes
        else:
            identity, class_hash = await id_of(self.console, of.name)
        rest = b"".join(
            encode(each.type, _typed(arguments.get(each.name, _DEFAULTS.get(each.type, 0))))
            for each in of.methods[name].arguments
            if "I" in each.direction
        )
        (reply,) = await ask(self.console, "M", identity, of.package, of.name, class_hash, name, rest=rest)
        reported = str(reply.fields["text"])
        assert (reply.fields["status"] == 0) == (reported == "OK")
        return "" if reported == "OK" else reported

    async def in_version_2(self, of: ManagedClass, name: str, arguments: dict[str, Any]) -> str:
        """Likewise."""
        key = next((each.key for each in objects_of(self.console.managed, of)), "none")
        reply = await self.console.call(name, f"{of.name}:{key}", package=of.package, **arguments)
        if reply.headers["qmf.opcode"] == "_exception":
            return str(reply.values["error_text"])
        results = reply.content["_arguments"]
        assert results.keys() >= {each.name for each in of.methods[name].arguments if each.direction == "O"}
        return ""


def _typed(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(typed_value, value))
    return typed_map(value) if isinstance(value, dict) else value


def test_every_method_is_in_the_table() -> None:
    assert {(of.package, of.name, name) for of in CLASSES for name in of.methods} == _CALLS.keys()


@pytest.mark.parametrize("version", [1, 2])
async def test_every_method_works_or_says_why_not(version: int, tmp_path: Path) -> None:
    by_name = {(of.package, of.name): of for of in CLASSES}
    async with wired(tmp_path / "store") as wired_broker:
        console = Console(wired_broker)
        await console.open()
        stage = Stage(wired_broker, console, tmp_path)
        await stage.open()
        call = stage.in_version_1 if version == 1 else stage.in_version_2
        for (package, class_name, method), calls in _CALLS.items():
            for arguments, refusal in calls:
                reported = await call(by_name[package, class_name], method, arguments)
                if refusal == _GONE:
                    assert reported, method
                elif refusal:
                    assert refusal in reported, (method, arguments)
                else:
                    assert reported == "", (method, arguments)
        assert len(stage.machine.done) == 5  # timestamps; solicit, detach and close; the connection
        while not stage.endings:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("package", "class_name"), _UNREACHABLE)
def test_methods_of_unreachable_classes_are_not_implemented(package: str, class_name: str) -> None:
    (of,) = (each for each in CLASSES if (each.package, each.name) == (package, class_name))

    async def call(name: str) -> None:
        await of.methods[name].call(None, None, TypedMap(), None)  # type: ignore[arg-type]

    for name in of.methods:
        with pytest.raises(NotImplementedByBrokerError, match=_UNREACHABLE[package, class_name]) as raised:
            asyncio.run(call(name))
        assert status_of(raised.value) == 3


# ---- malformed requests, in both versions of QMF ----
# A request of every kind, and a call of every method, with bits flipped, bytes cut, doubled or replaced, or with
# arguments of any type. The seeds are fixed; a failure names its request.


_REQUESTS: Final = 300  # of each seed
_ARGUMENTS: Final[dict[str, Any]] = {
    "bool": True,
    "map": {"type": "queue", "a": 1},
    "sstr": "q",
    "lstr": "other",
    "list": ["qpid.* = INFO"],
}
_PLAIN: Final[dict[str, Any]] = {"bool": True, "map": EMPTY_MAP, "sstr": "q", "lstr": "q", "list": ()}
_LEFT_OUT: Final = ("backup", "transaction")  # snapshots take files, and a transaction has one end only
_WHERE: Final = ["and", ["gt", "msgDepth", 0], ["not", ["re_match", "name", ["quote", "a.*"]]], ["exists", "name"]]
_FIELDS: Final[dict[str, Any]] = {
    "lstr": "label", "sstr": "org.apache.qpid.broker", "uint8": 1, "uint32": 1, "bin128": bytes(16), "absTime": 1,
    "uuid": UUID(int=1), "map": typed_map({"_class": "queue"}), "objId": ObjectId(0, 1, 1, 0, 1),
}  # fmt: skip


def anything(source: random.Random, depth: int = 0) -> Any:
    """A value of any type."""
    kinds = [None, True, -(1 << 63), (1 << 63) - 1, "q", "x" * 300, b"\xff\x00", 1.5]
    if depth < 3 and source.random() < 0.4:
        inner = [anything(source, depth + 1) for _ in range(source.randrange(4))]
        return inner if source.random() < 0.5 else {f"k{number}": each for number, each in enumerate(inner)}
    return source.choice(kinds)


def damaged(source: random.Random, body: bytes) -> bytes:
    """The bytes with a few faults; now and then with none."""
    changed = bytearray(body)
    for _ in range(source.choice((0, 1, 1, 2, 8))):
        at = source.randrange(len(changed) + 1)
        match source.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << source.randrange(8)
            case 1:
                del changed[at : at + source.choice((1, 4, 1 << 20))]
            case 2:
                changed[at:at] = source.randbytes(source.choice((1, 4, 64)))
            case 3:
                changed[at:at] = changed[at : at + 32]
            case 4:
                changed[at : at + 4] = source.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)))
    return bytes(changed)


def requests_2(stage: Stage, source: random.Random) -> Iterator[tuple[str, Any]]:
    """Sound requests of version 2, and calls with arguments of any type: opcode and content."""
    yield "_agent_locate_request", {}
    for what in ("SCHEMA_ID", "SCHEMA", "OBJECT", "OBJECT_ID"):
        yield "_query_request", {"_what": what, "_schema_id": {"_class_name": "queue"}, "_where": _WHERE}
    for of in CLASSES:
        name = next((each.key for each in objects_of(stage.console.managed, of)), "none")
        identity = {"_object_name": f"{of.package}:{of.name}:{name}"}
        yield "_query_request", {"_what": "OBJECT", "_object_id": identity}
        for method in of.methods.values() if of.name not in _LEFT_OUT else ():
            wanted = [each for each in method.arguments if "I" in each.direction]
            for given in (
                {each.name: _ARGUMENTS.get(each.type, 1) for each in wanted},
                {each.name: anything(source) for each in wanted},
            ):
                yield "_method_request", {"_object_id": identity, "_method_name": method.name, "_arguments": given}


async def requests_1(stage: Stage) -> list[bytes]:
    """Sound requests of version 1, and what agents and consoles send."""
    found = [
        encode_message(opcode, 7, *(_FIELDS[kind] for _, kind in fields), rest=bytes(8))
        for opcode, fields in FIELDS.items()
    ]
    for of in CLASSES:
        if next(objects_of(stage.console.managed, of), None) is None or of.name in _LEFT_OUT:
            continue
        identity, class_hash = await id_of(stage.console, of.name)
        for method in of.methods.values():
            wanted = (each.type for each in method.arguments if "I" in each.direction)
            rest = b"".join(encode(kind, _PLAIN.get(kind, 1)) for kind in wanted)
            found.append(encode_message("M", 7, identity, of.package, of.name, class_hash, method.name, rest=rest))
    return found


async def damage_2(stage: Stage, source: random.Random) -> None:
    """Requests of version 2, each of which is answered."""
    known = list(requests_2(stage, source))
    for _ in range(_REQUESTS):
        opcode, content = source.choice(known)
        body = damaged(source, encode_value(BY_NAME["map"], typed_value(content).value))
        replies = await stage.console.ask(opcode, body)
        assert replies, (opcode, body)
        assert all(reply.headers["qmf.opcode"].startswith("_") for reply in replies), (opcode, body)


async def damage_1(stage: Stage, source: random.Random) -> None:
    """Requests of version 1, which are answered or ignored."""
    known = await requests_1(stage)
    for _ in range(_REQUESTS):
        body = damaged(source, source.choice(known))
        for key in ("broker", "agent.1.0", source.choice(("agent.1.10", "schema.package", "console.obj.1.10.a.b"))):
            stage.console.send(None, body, exchange=VERSION_1, key=key)
        await stage.console.settle()
        assert all(decode_message(each) for each in bodies(stage.console.replies)), body


@pytest.mark.parametrize("damage", [damage_1, damage_2])
def test_damaged_requests_are_answered_or_ignored(damage: Any, tmp_path: Path) -> None:
    async def run(seed: int, directory: Path) -> None:
        directory.mkdir()
        async with wired(directory / "store") as wired_broker:
            console = Console(wired_broker)
            await console.open()
            stage = Stage(wired_broker, console, directory)
            await stage.open()
            await damage(stage, random.Random(seed))
            take(console.replies)
            (reply, *_) = await console.ask("_agent_locate_request", {})  # others are agents that were attached
            assert reply.headers["qmf.opcode"] == "_agent_locate_response"

    for seed in seeds_of_the_day(1):
        asyncio.run(run(seed, tmp_path / str(seed)))
