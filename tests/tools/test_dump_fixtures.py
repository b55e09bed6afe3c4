"""`--outstanding --json` shows of the fourteen stores what the real qpidd recovered from them, but for one.

The linearstore forgets, on recovery, which prepared branches are distributed, and commits them all
(formats/qls/README.md, 5), which breaks the promise of two-phase commit: its transaction manager may have decided
otherwise. The data byte of the branch's record in the prepared list still tells, so the branches stay in doubt here.
What is expected of that store is the manifest's "recovered by qpidd" without what those commits did.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import Counter
from typing import Any

import pytest

from qstore.formats.rhm.records import Kind
from tests.support.dump import Dump, Line, dump
from tests.support.fixtures import StoreFixture, StoreOpener, records_of

KINDS = ("legacy", "linear")
STANDARD_EXCHANGES = {
    "amq.direct": "direct",
    "amq.topic": "topic",
    "amq.fanout": "fanout",
    "amq.match": "headers",
}

# The manifest's names of header types, and what its client put on the wire for them
# (formats/broker_records/README.md, 2.2).
WIRE_TYPES = {
    "int": "int64",
    "str": "str16",
    "vbin": "vbin16",
    "double": "double",
    "bool": "boolean",
    "map": "map",
    "list": "list",
    "void": "void",
}
PROPERTIES = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "user_id", "app_id", "ttl", "expiration",
    "timestamp",
)  # fmt: skip
MESSAGE_FIELDS = {
    "kind", "queue", "rid", "state", "xid", "exchange", "routing_key", "message_id", "delivery_mode", "priority",
    "properties", "headers", "header_types", "body_length", "body_sha256", "body",
}  # fmt: skip


@pytest.fixture(scope="module")
def dumped(qpidd_store: StoreFixture) -> Dump:
    return dump(qpidd_store.path, "--outstanding", "--json")


def recovered(store: StoreFixture) -> dict[str, Any]:
    """What a right recovery leaves: what qpidd's did, without the branches in doubt that the linearstore commits."""
    found = store.recovered
    in_doubt = store.manifest.get("in_doubt_expected", [])
    if not store.name.startswith("linear-") or not in_doubt:
        return found
    branches = [store.manifest["branches"][name] for name in in_doubt]
    committed = {(queue, sn) for branch in branches for queue, numbers in branch["enqueues"].items() for sn in numbers}
    queues = []
    for queue in found["queues"]:
        messages = [entry for entry in queue["messages"] if (queue["name"], entry["sn"]) not in committed]
        queues.append({**queue, "messages": messages, "message_count": len(messages)})
    assert found["in_doubt_xids"] == []  # else qpidd does it right, and nothing is to be taken back
    return {**found, "queues": queues, "in_doubt_xids": [branch["xid"] for branch in branches]}


def sequence_numbers(store: StoreFixture) -> dict[str, list[int | None]]:
    """Queue name -> the sequence numbers of the messages that a right recovery leaves, in order."""
    queues = recovered(store)["queues"]
    return {queue["name"]: [message.get("sn") for message in queue["messages"]] for queue in queues}


def canonical(value: Any) -> str:
    """Text that is equal only for equal values of equal types (True is not 1 here, and 1 not 1.0)."""
    return json.dumps(value, sort_keys=True)


def plain(typed: dict[str, Any]) -> Any:
    """The value of a manifest's header."""
    match typed["t"]:
        case "void":
            return None
        case "vbin":
            return typed["hex"]
        case "list":
            return [plain(item) for item in typed["v"]]
        case "map":
            return {name: plain(item) for name, item in typed["v"].items()}
    return typed["v"]


def sequence_number(line: Line) -> int | None:
    number: int | None = line["headers"].get("sn")
    return number


# ---- the store as a whole ----


def test_no_damage(dumped: Dump) -> None:
    assert dumped.code == 0
    assert dumped.lines("damage") == []


def test_only_the_kinds_of_the_schema(dumped: Dump) -> None:
    assert {line["kind"] for line in dumped.lines()} <= {
        "exchange",
        "queue",
        "binding",
        "message",
        "transaction",
    }


def test_queues(qpidd_store: StoreFixture, dumped: Dump) -> None:
    expected = {
        queue["name"]: canonical([queue["arguments"], queue.get("alternate_exchange", ""), queue["message_count"]])
        for queue in recovered(qpidd_store)["queues"]
    }
    lines = dumped.lines("queue")
    assert {
        line["name"]: canonical([line["arguments"], line["alternate_exchange"] or "", line["messages"]])
        for line in lines
    } == expected
    assert len(lines) == len(expected)


def test_exchanges(qpidd_store: StoreFixture, dumped: Dump) -> None:
    def facts(exchange: dict[str, Any]) -> str:
        alternate = exchange.get("alternate_exchange") or ""
        return canonical([exchange["type"], exchange["durable"], exchange["arguments"], alternate])

    expected = {exchange["name"]: facts(exchange) for exchange in recovered(qpidd_store)["exchanges"]}
    for name, kind in STANDARD_EXCHANGES.items():
        expected[name] = facts({"type": kind, "durable": True, "arguments": {"qpid.replicate": "none"}})
    lines = dumped.lines("exchange")
    assert {line["name"]: facts(line) for line in lines} == expected
    assert len(lines) == len(expected)


def test_bindings(qpidd_store: StoreFixture, dumped: Dump) -> None:
    def facts(binding: dict[str, Any]) -> str:
        return canonical([binding[name] for name in ("exchange", "queue", "key", "arguments")])

    expected = Counter(map(facts, recovered(qpidd_store)["bindings"]))
    assert Counter(map(facts, dumped.lines("binding"))) == expected


def test_transactions_in_doubt(qpidd_store: StoreFixture, dumped: Dump) -> None:
    def facts(xid: dict[str, Any]) -> tuple[int, str, str]:
        return xid["format"], xid["global_id"], xid["branch_id"]

    lines = [line for line in dumped.lines("transaction") if line["state"] == "in-doubt"]
    assert sorted(map(facts, lines)) == sorted(map(facts, recovered(qpidd_store)["in_doubt_xids"]))
    assert all(line["type"] == "dtx" for line in lines)


# ---- messages ----


def test_messages_in_order(qpidd_store: StoreFixture, dumped: Dump) -> None:
    """Number, order and identity first: a difference here is easier to read than one in the next test."""
    for queue, numbers in sequence_numbers(qpidd_store).items():
        assert [sequence_number(line) for line in dumped.messages(queue, "outstanding")] == numbers
    expected_numbers = qpidd_store.manifest.get("expected_sn", {})
    for queue, numbers in expected_numbers.items():
        if "qpid.priorities" not in queue_arguments(qpidd_store, queue):
            assert [sequence_number(line) for line in dumped.messages(queue, "outstanding")] == numbers


def queue_arguments(store: StoreFixture, name: str) -> dict[str, Any]:
    (arguments,) = [queue["arguments"] for queue in store.recovered["queues"] if queue["name"] == name]
    found: dict[str, Any] = arguments
    return found


def expected_message(queue: str, message: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {name: message.get(name) for name in PROPERTIES}
    headers = message.get("headers", {})
    return {
        "queue": queue,
        "state": "outstanding",
        "xid": None,
        "exchange": message["exchange"],
        "routing_key": message["routing_key"],
        "message_id": message.get("message_id"),
        "delivery_mode": message["delivery_mode"],
        "priority": message.get("priority"),
        "properties": properties,
        "headers": {name: plain(typed) for name, typed in headers.items()},
        "header_types": {name: WIRE_TYPES[typed["t"]] for name, typed in headers.items()},
        "body_length": message["body_len"],
        "body_sha256": message["body_sha256"],
    }


def observed_message(line: Line, expected: dict[str, Any]) -> dict[str, Any]:
    observed = {name: line[name] for name in expected if name != "properties"}
    observed["properties"] = {name: line["properties"].get(name) for name in PROPERTIES}
    ttl, delivered = observed["properties"]["ttl"], expected["properties"]["ttl"]
    if ttl is not None and delivered is not None:
        # The broker took the time that the message had waited off the ttl that it delivered.
        assert delivered <= ttl < delivered + 60_000
        observed["properties"]["ttl"] = delivered
    return observed


def test_messages(qpidd_store: StoreFixture, dumped: Dump) -> None:
    for queue in recovered(qpidd_store)["queues"]:
        lines = dumped.messages(queue["name"], "outstanding")
        assert len(lines) == queue["message_count"] == len(queue["messages"])
        for line, message in zip(lines, queue["messages"], strict=True):
            expected = expected_message(queue["name"], message)
            assert canonical(observed_message(line, expected)) == canonical(expected)
            assert line["body"] == message["body"] if "body" in message else message["body_head"] in line["body"]


def test_message_lines_have_the_fields_of_the_schema(dumped: Dump) -> None:
    for line in dumped.lines("message"):
        assert set(line) == MESSAGE_FIELDS
        assert set(line["properties"]) <= set(PROPERTIES)
        assert set(line["headers"]) == set(line["header_types"])


def test_bodies_are_whole(dumped: Dump) -> None:
    for line in dumped.lines("message"):
        body = line["body"].encode()
        assert len(body) == line["body_length"]
        assert hashlib.sha256(body).hexdigest() == line["body_sha256"]


def test_bodies_and_ids_follow_the_rule_that_made_them(dumped: Dump) -> None:
    """A body repeats "queue/number|", of the queue that the message was first for; these two give its id."""
    long_enough = [line for line in dumped.lines("message") if "|" in line["body"]]
    assert len(long_enough) > 10
    for line in long_enough:
        piece = line["body"][: line["body"].index("|") + 1]
        assert line["body"] == (piece * line["body_length"])[: line["body_length"]]
        origin, _, number = piece[:-1].rpartition("/")
        assert line["headers"]["sn"] == int(number)
        assert line["message_id"] == str(uuid.uuid5(uuid.NAMESPACE_URL, f"qpid-fixture:{origin}/{number}"))


def test_record_ids_are_unique_in_a_queue(qpidd_store: StoreFixture, dumped: Dump) -> None:
    for queue in sequence_numbers(qpidd_store):
        rids = [line["rid"] for line in dumped.messages(queue)]
        assert len(set(rids)) == len(rids)
        assert all(rid > 0 for rid in rids)


# ---- single stores ----


def open_dump(open_fixture: StoreOpener, name: str) -> tuple[StoreFixture, Dump]:
    store = open_fixture(name)
    return store, dump(store.path, "--outstanding", "--json")


@pytest.mark.parametrize("kind", KINDS)
def test_every_property_of_one_message(open_fixture: StoreOpener, kind: str) -> None:
    _, dumped = open_dump(open_fixture, f"{kind}-a-clean")
    first, _, with_ttl, *_, bare = dumped.messages("fx.args")
    assert first["properties"]["reply_to"] == {"exchange": "amq.direct", "routing_key": "rk"}
    assert first["headers"]["bin"] == "00ff80"
    assert first["header_types"] == {
        "big": "int64", "bin": "vbin16", "empty": "str16", "f": "double", "i": "int64", "list": "list", "map": "map",
        "neg": "int64", "no": "boolean", "s": "str16", "sn": "int64", "t": "boolean", "u": "str16", "void": "void",
    }  # fmt: skip
    assert with_ttl["properties"]["ttl"] == 315_360_000_000  # as stored; the broker delivered less
    assert bare["body"] == "no message properties"
    assert (bare["headers"], bare["message_id"]) == ({}, None)
    assert bare["delivery_mode"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_priority_queue_is_in_delivery_order(open_fixture: StoreOpener, kind: str) -> None:
    _, dumped = open_dump(open_fixture, f"{kind}-a-clean")
    lines = dumped.messages("fx.prio")
    levels = [line["priority"] for line in lines]
    assert levels == sorted(levels, reverse=True)
    assert len(set(levels)) == 10
    for level in set(levels):
        rids = [line["rid"] for line in lines if line["priority"] == level]
        assert rids == sorted(rids)


@pytest.mark.parametrize("kind", KINDS)
def test_clean_store_has_no_transient_objects(open_fixture: StoreOpener, kind: str) -> None:
    _, dumped = open_dump(open_fixture, f"{kind}-a-clean")
    names = {line["name"] for line in dumped.lines("queue") + dumped.lines("exchange")}
    assert "fx.transient" not in names
    assert 5 not in [sequence_number(line) for line in dumped.messages("fx.args")]


@pytest.mark.parametrize("kind", KINDS)
def test_crash_while_publishing_and_consuming(open_fixture: StoreOpener, kind: str) -> None:
    """The publisher's and the consumer's own logs bound what may be there, whatever qpidd made of it."""
    store, dumped = open_dump(open_fixture, f"{kind}-b-crash1")
    published, consumed = store.manifest["publisher_log"], store.manifest["consumer_log"]["b.q2"]
    first = [sequence_number(line) for line in dumped.messages("b.q1")]
    assert first == list(range(len(first)))
    assert published["b.q1"]["acked"] <= len(first) <= published["b.q1"]["sent"]
    second = [line["headers"]["sn"] for line in dumped.messages("b.q2")]
    assert second == sorted(set(second))
    assert second[-1] < published["b.q2"]["sent"]
    assert set(range(published["b.q2"]["acked"])) - set(consumed["accept_sent_sn"]) <= set(second)


@pytest.mark.parametrize("name", [f"{kind}-c-midcommit{number}" for kind in KINDS for number in (1, 3)])
def test_crash_within_a_commit_is_all_or_nothing(open_fixture: StoreOpener, name: str) -> None:
    store, dumped = open_dump(open_fixture, name)
    shown = {queue: [sequence_number(line) for line in dumped.messages(queue)] for queue in ("c.q1", "c.q2")}
    assert shown in store.manifest["allowed_sn"].values()


def test_unprepared_transaction(open_fixture: StoreOpener) -> None:
    """The kill came before the prepare: what the journals hold of the transaction is listed, and dropped."""
    store, dumped = open_dump(open_fixture, "legacy-c-midcommit1")
    files = store.path.rglob("JournalData.0000.jdat")
    under_xid = [record for file in files for record in records_of(file) if record.xid]
    kinds = Counter(record.header.kind for record in under_xid)
    (xid,) = {record.xid for record in under_xid}
    (line,) = dumped.lines("transaction")
    assert line["xid"] == xid.hex()
    assert (line["type"], line["state"]) == ("local", "unprepared")
    assert (line["enqueues"], line["dequeues"]) == (kinds[Kind.ENQUEUE], kinds[Kind.DEQUEUE])
    assert kinds[Kind.ENQUEUE] > 0


@pytest.mark.parametrize(
    "name",
    [
        f"{kind}-{name}"
        for kind in KINDS
        for name in ("a-clean", "b-crash1", "c-localtx", "c-midcommit3", "e-wrap-clean")
    ],
)
def test_no_transaction_is_open(open_fixture: StoreOpener, name: str) -> None:
    _, dumped = open_dump(open_fixture, name)
    assert dumped.lines("transaction") == []
    assert {line["state"] for line in dumped.lines("message")} <= {"outstanding"}


@pytest.mark.parametrize("kind", KINDS)
def test_messages_in_doubt(open_fixture: StoreOpener, kind: str) -> None:
    store, dumped = open_dump(open_fixture, f"{kind}-d-dtx")
    expected = set()
    for name in store.manifest["in_doubt_expected"]:
        branch = store.manifest["branches"][name]
        xid = dtx_xid(branch["xid"])
        for part, state in (("enqueues", "in-doubt-enqueue"), ("dequeues", "in-doubt-dequeue")):
            expected |= {(queue, number, state, xid) for queue, numbers in branch[part].items() for number in numbers}
    in_doubt = [line for line in dumped.lines("message") if line["state"] != "outstanding"]
    assert {(line["queue"], sequence_number(line), line["state"], line["xid"]) for line in in_doubt} == expected
    assert len(in_doubt) == len(expected) == 15


@pytest.mark.parametrize("kind", KINDS)
def test_messages_in_doubt_stand_in_their_place(open_fixture: StoreOpener, kind: str) -> None:
    """Resolved by a restart, the branches leave the queues in this order: the real qpidd was asked both ways.

    The linearstore commits them whatever it is asked.
    """
    store, dumped = open_dump(open_fixture, f"{kind}-d-dtx")
    outcomes = store.manifest["verified_outcomes"]
    decisions = [("commit_all", "in-doubt-dequeue")]
    if kind == "legacy":
        decisions.append(("rollback_all", "in-doubt-enqueue"))
    for decision, gone in decisions:
        for queue, numbers in outcomes[decision]["after_decision_and_restart"].items():
            kept = [line for line in dumped.messages(queue) if line["state"] != gone]
            assert [sequence_number(line) for line in kept] == numbers


@pytest.mark.parametrize("kind", KINDS)
def test_record_ids(open_fixture: StoreOpener, kind: str) -> None:
    """Ten messages for each of three queues came first; then what each branch enqueued, in order."""
    _, dumped = open_dump(open_fixture, f"{kind}-d-dtx")
    shown = {(line["queue"], sequence_number(line)): line["rid"] for line in dumped.lines("message")}
    expected = {("d.q1", number): 1 + number for number in range(10)}
    expected |= {("d.q2", number): 11 + number for number in [0, *range(3, 10)]}
    expected |= {("d.q3", number): 21 + number for number in range(1, 10)}
    expected |= {("d.q1", 100): 31, ("d.q1", 101): 32, ("d.q1", 102): 33, ("d.q2", 100): 34}
    expected |= {("d.q3", 300 + index): 43 + index for index in range(5)}
    expected |= {("d.q2", 200 + index): 49 + index for index in range(3)}
    expected |= {("d.q3", 320): 67, ("d.q3", 321): 68}
    (last,) = [shown.pop(("d.q1", 150))]
    assert shown == expected
    assert last > 73


@pytest.mark.parametrize("kind", KINDS)
def test_branches_in_doubt(open_fixture: StoreOpener, kind: str) -> None:
    store, dumped = open_dump(open_fixture, f"{kind}-d-dtx")
    expected = []
    for name in store.manifest["in_doubt_expected"]:
        branch = store.manifest["branches"][name]
        counts = {part: sum(map(len, branch[part].values())) for part in ("enqueues", "dequeues")}
        line = {"kind": "transaction", "xid": dtx_xid(branch["xid"]), "type": "dtx", "state": "in-doubt"}
        expected.append({**line, **branch["xid"], **counts})
    assert dumped.lines("transaction") == expected


def dtx_xid(xid: dict[str, Any]) -> str:
    """The bytes of a branch's id as they stand in records, in hex (formats/broker_records/README.md, 3)."""
    global_id, branch_id = bytes.fromhex(xid["global_id"]), bytes.fromhex(xid["branch_id"])
    head = bytes.fromhex("06040700") + xid["format"].to_bytes(4, "big")
    raw: bytes = head + bytes([len(global_id)]) + global_id + bytes([len(branch_id)]) + branch_id
    return raw.hex()
