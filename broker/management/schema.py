"""The schema of the managed objects: the classes that this broker has, with the types of what they tell.

Each property is written `NAME:TYPE:ACCESS`, with `index` or `optional` and its unit behind it; a statistic
`NAME:TYPE:UNIT`; an argument of a method `NAME:TYPE:DIRECTION`. A statistic of the type hilo32 is three: its value, and
the highest and lowest value (`NAMEHigh`, `NAMELow`).

    access      RC: read, set when the object is created; RO: read; RW: read and written
    direction   I: argument; O: result; IO: both

Source: the QMF schema of qpidd's broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID, uuid5

PACKAGE: Final = "org.apache.qpid.broker"
_NAMESPACE: Final = UUID("8d1b0f6e-6a0c-5d0b-9a57-0f4f5a3f7c11")


class Property(NamedTuple):
    """A property of a class.

    Attributes:
        name, type, access, unit: as above; the unit may be empty.
        is_index: whether it is a part of an object's name.
        is_optional: whether objects may lack it.
    """

    name: str
    type: str
    access: str
    unit: str
    is_index: bool
    is_optional: bool


class Statistic(NamedTuple):
    """A statistic of a class. `unit` may be empty."""

    name: str
    type: str
    unit: str


class Argument(NamedTuple):
    """An argument of a method; or of an event, whose `direction` is empty."""

    name: str
    type: str
    direction: str = ""


class ManagedClass(NamedTuple):
    """A class of managed objects.

    Attributes:
        name: its name.
        properties, statistics: what its objects tell.
        methods: name -> arguments.
        hash: identifies the class as it is here.
    """

    name: str
    properties: tuple[Property, ...]
    statistics: tuple[Statistic, ...]
    methods: Mapping[str, tuple[Argument, ...]]
    hash: UUID


def _property(text: str) -> Property:
    name, kind, access, *rest = text.split(":")
    flags = [each for each in rest if each in ("index", "optional")]
    unit = next((each for each in rest if each not in flags), "")
    return Property(name, kind, access, unit, "index" in flags, "optional" in flags)


def _statistics(text: str) -> Iterable[Statistic]:
    for each in text.split():
        name, kind, *unit = each.split(":")
        if kind == "hilo32":
            for suffix in ("", "High", "Low"):
                yield Statistic(name + suffix, "uint32", "".join(unit))
        else:
            yield Statistic(name, kind, "".join(unit))


def _arguments(text: str) -> tuple[Argument, ...]:
    return tuple(Argument(*each.split(":")) for each in text.split())


def _class(name: str, properties: str, statistics: str = "", methods: Mapping[str, str] | None = None) -> ManagedClass:
    called = methods or {}
    described = "; ".join((name, properties, statistics, *(f"{method} {text}" for method, text in called.items())))
    return ManagedClass(
        name,
        tuple(_property(each) for each in properties.split()),
        tuple(_statistics(statistics)),
        {method: _arguments(text) for method, text in called.items()},
        uuid5(_NAMESPACE, described),
    )


_TOTALS: Final = """
msgTotalEnqueues:count64:message msgTotalDequeues:count64:message msgTxnEnqueues:count64:message
msgTxnDequeues:count64:message msgPersistEnqueues:count64:message msgPersistDequeues:count64:message
msgDepth:count64:message byteDepth:count64:octet byteTotalEnqueues:count64:octet byteTotalDequeues:count64:octet
byteTxnEnqueues:count64:octet byteTxnDequeues:count64:octet bytePersistEnqueues:count64:octet
bytePersistDequeues:count64:octet releases:count64:message acquires:count64:message discardsTtl:count64:message
discardsRing:count64:message discardsLvq:count64:message discardsOverflow:count64:message
discardsSubscriber:count64:message discardsPurge:count64:message reroutes:count64:message
"""

#: Name -> class.
CLASSES: Final = {
    each.name: each
    for each in (
        _class(
            "system",
            "systemId:uuid:RC:index osName:sstr:RO nodeName:sstr:RO release:sstr:RO version:sstr:RO machine:sstr:RO",
        ),
        _class(
            "memory",
            """name:sstr:RC:index malloc_arena:uint64:RO:optional malloc_ordblks:uint64:RO:optional
            malloc_hblks:uint64:RO:optional malloc_hblkhd:uint64:RO:optional malloc_uordblks:uint64:RO:optional
            malloc_fordblks:uint64:RO:optional malloc_keepcost:uint64:RO:optional""",
        ),
        _class(
            "broker",
            """name:sstr:RC:index systemRef:objId:RO port:uint16:RO workerThreads:uint16:RO maxConns:uint16:RO
            connBacklog:uint16:RO stagingThreshold:uint32:RO mgmtPublish:bool:RO mgmtPubInterval:uint16:RW:second
            version:sstr:RO dataDir:lstr:RO:optional""",
            f"""uptime:deltaTime queueCount:count64:queue {_TOTALS} discardsNoRoute:count64:message
            abandoned:count64:message abandonedViaAlt:count64:message""",
            {
                "echo": "sequence:uint32:IO body:lstr:IO",
                "queueMoveMessages": "srcQueue:sstr:I destQueue:sstr:I qty:uint32:I filter:map:I",
                "create": "type:sstr:I name:sstr:I properties:map:I strict:bool:I",
                "delete": "type:sstr:I name:sstr:I options:map:I",
                "getTimestampConfig": "receive:bool:O",
                "setTimestampConfig": "receive:bool:I",
                "query": "type:sstr:I name:sstr:I results:map:O",
            },
        ),
        _class("vhost", "brokerRef:objId:RC:index name:sstr:RC:index federationTag:sstr:RO"),
        _class(
            "queue",
            """vhostRef:objId:RC:index name:sstr:RC:index durable:bool:RC autoDelete:bool:RC exclusive:bool:RO
            arguments:map:RO altExchange:objId:RO:optional""",
            f"""{_TOTALS} consumerCount:hilo32:consumer bindingCount:hilo32:binding flowStopped:bool
            flowStoppedCount:count32 creator:sstr""",
            {
                "purge": "request:uint32:I filter:map:I",
                "reroute": "request:uint32:I useAltExchange:bool:I exchange:sstr:I filter:map:I",
            },
        ),
        _class(
            "exchange",
            """vhostRef:objId:RC:index name:sstr:RC:index type:sstr:RO durable:bool:RO autoDelete:bool:RO
            altExchange:objId:RO:optional arguments:map:RO""",
            """bindingCount:hilo32 msgReceives:count64 msgDrops:count64 msgRoutes:count64 byteReceives:count64
            byteDrops:count64 byteRoutes:count64""",
        ),
        _class(
            "connection",
            """vhostRef:objId:RC:index address:sstr:RC:index incoming:bool:RC SystemConnection:bool:RC
            userProxyAuth:bool:RO federationLink:bool:RO authIdentity:sstr:RO remoteProcessName:lstr:RO:optional
            remotePid:uint32:RO:optional remoteParentPid:uint32:RO:optional shadow:bool:RO saslMechanism:sstr:RO
            saslSsf:uint16:RO remoteProperties:map:RO protocol:sstr:RC""",
            """framesFromClient:count64 framesToClient:count64 bytesFromClient:count64 bytesToClient:count64
            msgsFromClient:count64 msgsToClient:count64""",
            {"close": ""},
        ),
        _class(
            "session",
            """vhostRef:objId:RC:index name:sstr:RC:index fullName:lstr:RO:optional channelId:uint16:RO
            connectionRef:objId:RO detachedLifespan:uint32:RO:second attached:bool:RO expireTime:absTime:RO:optional
            maxClientRate:uint32:RO:optional:msgs/sec""",
            """unackedMessages:uint64:message TxnStarts:count64:transaction TxnCommits:count64:transaction
            TxnRejects:count64:transaction TxnCount:count32:transaction""",
        ),
        _class(
            "subscription",
            """sessionRef:objId:RC:index queueRef:objId:RC:index name:sstr:RC:index browsing:bool:RC
            acknowledged:bool:RC exclusive:bool:RC creditMode:sstr:RO arguments:map:RC""",
            "delivered:count64:message",
        ),
        _class(
            "binding",
            """exchangeRef:objId:RC:index queueRef:objId:RC:index bindingKey:lstr:RC:index arguments:map:RC
            origin:sstr:RO:optional""",
            "msgMatched:count64",
        ),
    )
}

#: Argument of an event -> its type.
EVENT_ARGUMENTS: Final[Mapping[str, str]] = {
    "altEx": "sstr", "args": "map", "autoDel": "bool", "byteDepth": "count64", "dest": "sstr", "disp": "sstr",
    "durable": "bool", "exName": "sstr", "exType": "sstr", "excl": "bool", "key": "lstr", "msgDepth": "count64",
    "properties": "map", "qName": "sstr", "qTarget": "sstr", "reason": "lstr", "rhost": "sstr", "user": "sstr",
}  # fmt: skip
