"""Conversations of AMQP 1.0 made by a seed, as `fuzzed_conversations` has for 0-10: what a hostile client might send.

Two sessions, each with links to and from a few queues and exchanges, subscriptions, dynamic nodes, the coordinator and
the node for management; messages of one frame and of several, in runs and not, scheduled, aborted, and with states.
`nonsense` gives fields values of any type.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from qstore.formats.amqp_1_0.composites import BY_NAME, OUTCOMES, Composite, encode_composite
from qstore.formats.amqp_1_0.frames import AMQP_HEADER, encode_frame
from qstore.formats.amqp_1_0.sections import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, data_section, encode_section
from qstore.formats.amqp_1_0.values import Described, Value, encode_value
from tests.support.sections_peer import address
from tests.system.fuzzed_conversations import EXCHANGES, NUMBERS, QUEUES

CONTAINER: Final = "fuzz"
LINKS: Final = ("l0", "l1", "l2", "l3")
SUBSCRIPTIONS: Final = tuple(f"{CONTAINER}_{name}" for name in LINKS)
"""The queues of subscriptions that may be left."""

_ADDRESSES: Final = (
    *QUEUES, *EXCHANGES, *(f"/queues/{name}" for name in QUEUES), "/exchanges/amq.direct/q0", "amq.topic/a.#",
    "/management", "amq.scheduled", "/queues/%zz", "nowhere", "é" * 90,
)  # fmt: skip
_SELECTORS: Final = ("a = 1", "colour LIKE 'r%' AND size > 2", "a =", "", "JMSXGroupID IN ('g', 'h')")
_PERFORMATIVES: Final = ("begin", "attach", "flow", "transfer", "disposition", "detach", "end")


class LinksConversation:
    """What one client sends.

    Args:
        source: of all chances.
        nonsense: how many of its performatives have fields that mean nothing; from 0 to 1.
        steps: how many things it does after it has opened the connection.

    Attributes:
        frames: what it sends, a piece for each performative.
    """

    def __init__(self, source: random.Random, nonsense: float, steps: int) -> None:
        self.source = source
        self.frames: list[bytes] = [AMQP_HEADER]
        self._next = {0: 0, 1: 0}
        self._do("open", 0, container_id=CONTAINER, max_frame_size=source.choice((512, 4096, 1 << 17)))
        for channel in self._next:
            self._begin(channel)
            for handle in range(4):
                self._attach(channel, handle)
        for _ in range(steps):
            channel = source.randrange(2)
            if source.random() < nonsense:
                self._anything(channel)
            else:
                source.choices(_STEPS, _WEIGHTS)[0](self, channel)
        if source.random() < 0.3:
            self._do("close", 0)

    def _do(self, name: str, channel: int, body: bytes = b"", /, **fields: Any) -> None:
        self.frames.append(encode_frame(channel, encode_composite(name, fields) + body))

    def _begin(self, channel: int) -> None:
        window = self.source.choice((0, 1, 100, 1 << 20))
        self._do("begin", channel, next_outgoing_id=0, incoming_window=window, outgoing_window=1 << 20)

    # ---- links ----

    def _attach(self, channel: int, handle: int | None = None) -> None:
        choice, chance = self.source.choice, self.source.random
        receives = chance() < 0.5
        if not receives and chance() < 0.15:
            node: Composite = Composite("coordinator", {})
        else:
            node = Composite("source" if receives else "target", self._terminus(receives=receives))
        self._do(
            "attach", channel, name=choice(LINKS), handle=self.source.randrange(4) if handle is None else handle,
            role=receives, snd_settle_mode=choice((0, 1, 2)), rcv_settle_mode=choice((0, 1)),
            source=node if receives else Composite("source", {}),
            target=Composite("target", {}) if receives else node,
            initial_delivery_count=None if receives else 0, max_message_size=choice((None, None, 50, 5000)),
        )  # fmt: skip

    def _terminus(self, *, receives: bool) -> dict[str, Any]:
        choice, chance = self.source.choice, self.source.random
        if chance() < 0.1:
            return {"dynamic": True}
        node: dict[str, Any] = {"address": None if chance() < 0.1 and not receives else address(choice(_ADDRESSES))}
        if chance() < 0.5:
            wanted = ("create-on-demand", "queue", "topic", "shared", "global", "durable", "auto-delete")
            node["capabilities"] = tuple(self.source.sample(wanted, self.source.randrange(4)))
        if receives and chance() < 0.3:
            node |= {"durable": choice((0, 2)), "expiry_policy": choice(("never", "session-end"))}
        if receives and chance() < 0.3:
            node["filter"] = (self._filter(),)
        return node

    def _filter(self) -> tuple[Value, Value]:
        kinds = {
            "apache.org:selector-filter:string": Value("string", self.source.choice(_SELECTORS)),
            "apache.org:legacy-amqp-topic-binding:string": Value("string", "a.#"),
            "apache.org:no-local-filter:list": Value("list", ()),
            "amqp:properties-filter": Value("map", ((Value("symbol", "subject"), Value("string", "&p:a")),)),
            "amqp:sql-filter": Value("string", "p.subject LIKE 'a%' OR [a] % 2 = 1 AND b IN ('x', 0x61)"),
            "amqp:application-properties-filter": Value("map", ((Value("string", "a"), Value("int", 1)),)),
            "amqp:none": Value("map", ()),
        }
        name = self.source.choice(list(kinds))
        return Value("symbol", "f"), Value("described", Described(Value("symbol", name), kinds[name]))

    def _detach(self, channel: int) -> None:
        handle = self.source.randrange(4)
        self._do("detach", channel, handle=handle, closed=self.source.random() < 0.5)
        self._attach(channel, handle)

    def _end(self, channel: int) -> None:
        self._do("end", channel)
        self._next[channel] = 0
        self._begin(channel)

    def _flow(self, channel: int) -> None:
        choice, chance = self.source.choice, self.source.random
        handle = choice((None, 0, 1, 2, 3))
        self._do(
            "flow", channel, next_incoming_id=choice((0, 0, 5, None)), incoming_window=choice((0, 10, 1 << 20)),
            next_outgoing_id=0, outgoing_window=1 << 20, handle=handle,
            delivery_count=None if handle is None else choice((0, 0, 3)),
            link_credit=None if handle is None else choice((0, 1, 10, 1000, 0xFFFF_FFFF)),
            drain=chance() < 0.2, echo=chance() < 0.2,
        )  # fmt: skip

    # ---- messages ----

    def _message(self) -> bytes:
        choice, chance = self.source.choice, self.source.random
        content = encode_composite(
            "header",
            {"durable": choice((None, True)), "priority": choice((None, 9)), "ttl": choice((None, None, 1, 9000))},
        )
        if chance() < 0.2:
            delay = (
                Value(choice(("uint", "ulong", "string")), choice((5, 300))) if chance() < 0.9 else Value("null", None)
            )
            if delay.type_name == "string":
                delay = Value("string", "soon")
            content += encode_section(
                MESSAGE_ANNOTATIONS, Value("map", ((Value("symbol", "x-opt-delivery-delay"), delay),))
            )
        if chance() < 0.3:
            fields = {
                "subject": choice(("a.b", "q0")),
                "to": address(choice(_ADDRESSES)),
                "group_id": choice((None, "g")),
            }
            content += encode_composite("properties", fields)
        if chance() < 0.3:
            pairs = ((Value("string", "a"), Value("int", 1)), (Value("string", "colour"), Value("string", "red")))
            content += encode_section(APPLICATION_PROPERTIES, Value("map", pairs))
        body = self.source.randbytes(16) * choice((0, 1, 4, 60, 300, choice((1, 5000))))
        return content + data_section(len(body)) + body

    def _transfers(self, channel: int) -> None:
        handle, message = self.source.randrange(4), self._message()
        settled = self.source.choice((None, True, False))
        for _ in range(self.source.choice((1, 1, 5, 40))):
            self._transfer(channel, handle, message, settled)

    def _transfer(self, channel: int, handle: int, message: bytes, settled: bool | None) -> None:
        choice, number = self.source.choice, self._next[channel]
        self._next[channel] = number + 1
        size = choice((len(message), len(message), 400, 100)) or 1
        parts = [message[at : at + size] for at in range(0, min(len(message), 20 * size), size)] or [b""]
        frames = b""
        for place, part in enumerate(parts):
            first = {"delivery_id": number, "delivery_tag": b"%06d" % number, "settled": settled} if not place else {}
            fields: dict[str, Any] = {"handle": handle, "more": place < len(parts) - 1, **first}
            if self.source.random() < 0.02:
                fields |= choice(({"aborted": True}, {"resume": True}, {"message_format": 7}, {"state": self._state()}))
            frames += encode_frame(channel, encode_composite("transfer", fields) + part)
        self.frames.append(frames)

    def _state(self) -> Composite:
        choice = self.source.choice
        name = choice((*OUTCOMES, "received", "transactional-state"))
        fields: dict[str, Any] = {}
        if name == "modified":
            annotations = choice(
                ((), ((Value("symbol", "x-a"), Value("int", 1)),), ((Value("symbol", "a"), Value("int", 1)),))
            )
            fields = {"delivery_failed": choice((None, True)), "undeliverable_here": choice((None, True))}
            fields["message_annotations"] = annotations or None
        elif name == "received":
            fields = {"section_number": 0, "section_offset": 0}
        elif name == "transactional-state":
            fields = {
                "txn_id": Value("binary", choice((b"", b"\0" * 8))),
                "outcome": choice((None, Composite("accepted", {}))),
            }
        return Composite(name, fields)

    def _settle(self, channel: int) -> None:
        first = self.source.randrange(20)
        state = None if self.source.random() < 0.1 else self._state()
        self._do(
            "disposition", channel, role=self.source.random() < 0.9, first=first,
            last=self.source.choice((None, first + 3, first + 100, 0xFFFF_FFFF)),
            settled=self.source.random() < 0.7, state=state,
        )  # fmt: skip

    # ---- anything ----

    def _anything(self, channel: int) -> None:
        """A performative with values of any type."""
        kind = BY_NAME[self.source.choice(_PERFORMATIVES)]
        values = tuple(self.source.choice(_VALUES) for _ in range(self.source.randrange(len(kind.fields) + 2)))
        self.frames.append(encode_frame(channel, kind.head + encode_value(Value("list", values))))


_VALUES: Final = (
    *(Value("uint", number) for number in NUMBERS), Value("boolean", True), Value("boolean", False),
    Value("null", None), Value("null", None), Value("string", "l0"), Value("symbol", "x"), Value("binary", b"000001"),
    Value("ulong", 1 << 63), Value("ubyte", 1), Value("list", ()), Value("map", ()),
    Value("described", Described(Value("ulong", BY_NAME["source"].code), Value("list", (Value("string", "q0"),)))),
    Value("described", Described(Value("ulong", BY_NAME["accepted"].code), Value("list", ()))),
)  # fmt: skip
_STEPS: Final[tuple[Callable[[LinksConversation, int], None], ...]]
_WEIGHTS: Final[tuple[int, ...]]
_STEPS, _WEIGHTS = zip(
    (LinksConversation._transfers, 8),
    (LinksConversation._flow, 5),
    (LinksConversation._settle, 4),
    (LinksConversation._attach, 2),
    (LinksConversation._detach, 2),
    (LinksConversation._end, 1),
    strict=True,
)
