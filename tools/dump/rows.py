"""The content of stores as objects, and the columns of their tables: topology, journals, transactions, records, damage.

An object has the same fields in every command that shows it; `tools/README.md` lists them. Messages are in `messages`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from qstore.broker.protocols.amqp_0_9_1.arguments import client_key
from qstore.formats.broker_records.topology import (
    Bridge,
    Exchange,
    ExchangeBinding,
    GeneralObject,
    Link,
    exchange_binding_of,
    without_passwords,
)
from qstore.formats.broker_records.xids import decode_xid
from qstore.formats.plain import plain_map
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import (
    COMMIT_DECISION,
    COMPRESSED,
    EXTERNAL,
    LAST_OF_FLUSH,
    MOVED,
    OVERWRITE_INDICATOR,
    SEAL,
    TRANSIENT,
    Kind,
)
from qstore.formats.rhm.records import RecordHeader as RhmRecordHeader
from qstore.formats.wording import plural
from qstore.store.catalogue.topology import StoredBinding, Topology
from qstore.store.damage import Damage
from qstore.store.inspect.check import ORPHAN, QUEUE, JournalCheck, StoreCheck
from qstore.store.inspect.measure import Measurement
from qstore.store.inspect.offline import RecoveredQueue, RecoveredTransaction
from qstore.store.journal.records import RecordHeader
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING
from qstore.tools.console.rows import (
    MAX_SHOWN,
    Column,
    Object,
    Tables,
    field,
    hexadecimal,
    number,
    pairs,
    print_rest,
    print_some,
    print_wrapped,
    share,
    yes,
)
from qstore.tools.console.text import printable, sentence

_FLAG_NAMES = {
    OVERWRITE_INDICATOR: "overwrite-indicator",
    TRANSIENT: "transient",
    EXTERNAL: "external",
    MOVED: "moved",
    COMPRESSED: "compressed",
    LAST_OF_FLUSH: "last-of-flush",
    SEAL: "seal",
}


def exchange_object(exchange: Exchange) -> Object:
    """An exchange."""
    return {
        "kind": "exchange",
        "name": exchange.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "arguments": plain_map(exchange.arguments),
        "alternate_exchange": exchange.alternate_exchange or None,
    }


def queue_object(queue: RecoveredQueue) -> Object:
    """A queue; its arguments are null if no catalogue has them."""
    record = queue.record
    return {
        "kind": "queue",
        "name": queue.name,
        "arguments": None if record is None else plain_map(record.arguments),
        "alternate_exchange": None if record is None else record.alternate_exchange or None,
        "messages": queue.deliverable,
    }


def binding_object(binding: StoredBinding) -> Object:
    """A binding with its client's key.

    A fanout exchange has no keys: one that was given is stored, but not restored. Bindings of AMQP 0-9-1 clients to a
    headers exchange that differ only in their arguments are stored with different keys.
    """
    stored = binding.record.key
    key = {"fanout": "", "headers": client_key(stored)}.get(binding.exchange.type, stored)
    fields: Object = {
        "kind": "binding",
        "exchange": binding.exchange.name,
        "queue": binding.record.queue_name,
        "key": key,
        "arguments": plain_map(binding.record.arguments),
    }
    if key != stored:
        fields["stored_key"] = stored
    return fields


def exchange_binding_object(binding: ExchangeBinding) -> Object:
    """A binding between exchanges."""
    fields = binding._asdict()
    return {"kind": "exchange_binding", **fields, "arguments": plain_map(binding.arguments)}


def exchange_bindings(topology: Topology) -> list[ExchangeBinding]:
    """The bindings between exchanges of a store."""
    found = (exchange_binding_of(record) for record in topology.general.values())
    return [binding for binding in found if binding is not None]


def general_object(record: Link | Bridge | GeneralObject) -> Object:
    """A link, a bridge, a binding between exchanges, or another object. Passwords are not shown."""
    if isinstance(record, Link):
        return {
            "kind": "link",
            "name": record.name,
            "host": record.host,
            "port": record.port,
            "transport": record.transport,
            "durable": record.durable,
            "mechanism": record.mechanism,
            "user": record.user,
        }
    if isinstance(record, Bridge):
        return {
            "kind": "bridge",
            "name": record.name,
            "link": record.link_name or f"{record.link_host}:{record.link_port}",
            "source": record.source,
            "source_is_queue": record.source_is_queue,
            "source_is_local": record.source_is_local,
            "destination": record.destination,
            "key": record.key,
            "tag": record.tag,
            "excludes": record.excludes,
            "durable": record.durable,
            "dynamic": record.dynamic,
            "sync": record.sync,
            "credit": record.credit,
        }
    bound = exchange_binding_of(record)
    if bound is not None:
        return exchange_binding_object(bound)
    record = without_passwords(record)
    assert isinstance(record, GeneralObject)
    shown = {name: value for name, value in plain_map(record.properties).items() if "password" not in name.lower()}
    return {"kind": "object", "type": record.kind, "name": record.name, "properties": shown}


def transaction_object(transaction: RecoveredTransaction) -> Object:
    """An open transaction. If the prepared list does not have its type, the type is derived from its id."""
    xid = decode_xid(transaction.xid)
    distributed = transaction.two_phase if transaction.two_phase is not None else xid.kind == "dtx"
    show = distributed and xid.global_id is not None and xid.branch_id is not None
    return {
        "kind": "transaction",
        "xid": transaction.xid.hex(),
        "type": "dtx" if distributed else "local",
        "state": transaction.outcome.value,
        "format": xid.format if show else None,
        "global_id": xid.global_id.hex() if show and xid.global_id is not None else None,
        "branch_id": xid.branch_id.hex() if show and xid.branch_id is not None else None,
        "enqueues": transaction.enqueues,
        "dequeues": transaction.dequeues,
    }


def damage_object(damage: Damage) -> Object:
    """One damaged place."""
    return {
        "kind": "damage",
        "file": damage.file,
        "offset": damage.offset,
        "rid": damage.rid,
        "what": damage.what,
        "consequence": damage.consequence,
        "loses_nothing": not damage.costs,
        "damage_kind": damage.kind.label,
    }


def record_object(queue: str, header: RecordHeader, xid: bytes, file: str, offset: int) -> Object:
    """A record of a journal; the caller adds the content of an enqueue."""
    fields: Object = {
        "kind": "record",
        "queue": queue,
        "type": header.kind.label,
        "rid": header.rid if header.kind is not Kind.FILLER or _is_version_2(header) else None,
        "xid": xid.hex() or None,
        "flags": _flag_names(header),
        "flush": header.flush if isinstance(header, RhmRecordHeader) and header.version == 2 else None,
        "file": file,
        "offset": offset,
        "size": header.size,
        "checksum": _checksum_state(header),
    }
    if header.kind is Kind.DEQUEUE:
        fields["dequeued_rid"] = header.dequeued_rid
    if header.kind is Kind.FILLER:
        fields["blocks"] = header.size // BLOCK_SIZE
    return fields


def _flag_names(header: RecordHeader) -> list[str]:
    names = dict(_FLAG_NAMES)
    if header.kind is Kind.DEQUEUE:
        names[COMMIT_DECISION] = "commit"
    return [names.get(bit, f"0x{bit:04x}") for bit in (1 << i for i in range(16)) if header.flags & bit]


def _is_version_2(header: RecordHeader) -> bool:
    return isinstance(header, RhmRecordHeader) and header.version == 2


def _checksum_state(header: RecordHeader) -> str:
    """What the format let a shown record be verified by: a checksum, its tail's magic and rid, or nothing."""
    if _is_version_2(header):
        return "crc ok"
    if not header.has_tail:
        return "none"
    return "tail ok" if isinstance(header, RhmRecordHeader) else "adler ok"


# ---- a checked store ----


STATES: Final = {LIVE: "outstanding", LOCKED: "in-doubt-dequeue", PENDING: "in-doubt-enqueue"}


def store_object(path: str, check: StoreCheck, *, paranoid: bool) -> Object:
    """The store as a whole."""
    queues = [journal for journal in check.journals if journal.role == QUEUE]
    return {
        "kind": "store",
        "path": path,
        "format": check.store.layout.kind.value,
        "paranoid": paranoid,
        "queues": len(queues),
        "orphans": sum(journal.role == ORPHAN for journal in check.journals),
        "records": check.records,
        "outstanding": sum(_measured(journal, "live") for journal in queues),
        "in_doubt": sum(_measured(journal, "locked") + _measured(journal, "pending") for journal in queues),
        "transactions": len(check.transactions),
        "damage": len(check.damage),
        "notices": len(check.notices),
    }


def _measured(journal: JournalCheck, name: str) -> int:
    return 0 if journal.measurement is None else int(getattr(journal.measurement, name))


def journal_object(check: JournalCheck) -> Object:
    """One journal; numbers are null if it could not be read."""
    journal, recovery, measurement, end = check.journal, check.queue.recovery, check.measurement, check.queue.end
    fields: Object = {
        "kind": "journal",
        "role": check.role,
        "queue": check.queue.name,
        "path": None if journal is None else journal.path,
        "format": None if journal is None else journal.format.label,
        "files": None if journal is None else journal.files.geometry.files,
        "file_size": None if journal is None else journal.files.geometry.file_size,
        "enqueues": None if recovery is None else recovery.enqueues,
        "dequeues": None if recovery is None else recovery.dequeues,
        "commits": None if recovery is None else recovery.commits,
        "aborts": None if recovery is None else recovery.aborts,
        "open_transactions": check.open_transactions,
        "highest_rid": None if recovery is None else recovery.highest_rid,
        "torn": None if end is None else end.torn,
        "sealed": None if end is None else end.sealed,
        "damage": check.damage,
    }
    fields.update(_MISSING if measurement is None else _measurement(measurement))
    return fields


_MISSING: Object = dict.fromkeys(
    (
        "outstanding",
        "in_doubt_enqueues",
        "in_doubt_dequeues",
        "capacity",
        "live_bytes",
        "live_share",
        "span",
        "limit",
        "used",
        "fill",
    )
) | {"near_threshold": False, "oldest": None}


def _measurement(measurement: Measurement) -> Object:
    threshold, oldest = measurement.threshold, measurement.oldest
    return {
        "outstanding": measurement.live,
        "in_doubt_enqueues": measurement.pending,
        "in_doubt_dequeues": measurement.locked,
        "capacity": measurement.capacity,
        "live_bytes": measurement.live_bytes,
        "live_share": round(measurement.live_share, 6),
        "span": measurement.span,
        "limit": None if threshold is None else threshold.limit,
        "used": None if threshold is None else threshold.used,
        "fill": None if threshold is None else threshold.fill,
        "near_threshold": threshold is not None and threshold.is_near,
        "oldest": None
        if oldest is None
        else {"rid": oldest.rid, "file": oldest.path, "offset": oldest.offset, "state": STATES[oldest.state]},
    }


def notice_object(text: str) -> Object:
    """A notice."""
    return {"kind": "notice", "text": text}


def transactions_of(check: StoreCheck) -> list[Object]:
    """The open transactions."""
    return [transaction_object(transaction) for transaction in check.transactions]


def show_damage(console: Console, damage: list[Damage]) -> None:
    """Print the damage."""
    for entry in damage[:MAX_SHOWN]:
        where = printable(entry.file)
        where += "" if entry.offset is None else f" at 0x{entry.offset:x}"
        rid = "" if entry.rid is None else f"record 0x{entry.rid:x}: "
        text = Text("damage: ", style="bold red")
        text.append(f"{where}: {rid}{sentence(entry.what)}", style="default not bold")
        print_wrapped(console, text)
        print_wrapped(console, f"        {sentence(entry.consequence)}", style="dim", hang=0)
    print_rest(console, len(damage), "damages")


def show_notices(console: Console, notices: list[str]) -> None:
    """Print notices."""
    print_some(console, [f"notice: {sentence(notice)}" for notice in notices], "notices")


# ---- columns of the tables ----

_BODY_PREVIEW: Final = 60  # characters
_UUID_NAME: Final = re.compile(r"[0-9a-f-]{36}\.jrnl")


def _in_doubt(fields: Mapping[str, Any]) -> str:
    enqueues, dequeues = fields.get("in_doubt_enqueues"), fields.get("in_doubt_dequeues")
    return "" if enqueues is None or dequeues is None else f"{enqueues + dequeues:,}"


def _flags(fields: Mapping[str, Any]) -> str:
    return ",".join(fields["flags"])


def _file(fields: Mapping[str, Any]) -> str:
    name = printable(str(fields["file"]).rpartition("/")[2])
    # A linearstore's files are named by UUIDs; their first characters are enough to identify them.
    return f"{name[:8]}…{name[-5:]}" if _UUID_NAME.fullmatch(name) else name


def _body(fields: Mapping[str, Any]) -> str:
    for name, prefix in (("body", ""), ("body_hex", "hex:"), ("body_base64", "base64:"), ("body_file", "file:")):
        if name in fields:
            limit = None if name == "body_file" else _BODY_PREVIEW
            return printable(prefix + fields[name], limit)
    return ""


def _parts(fields: Mapping[str, Any]) -> str:
    """The name of an object; those of configuration records have several parts, such as a virtual host and a name."""
    name = fields["name"]
    try:
        parts = json.loads(name)
    except ValueError:
        parts = None
    if isinstance(parts, list) and parts and all(isinstance(part, str) for part in parts):
        return printable(" ".join(parts))
    return printable(name)


def _content(fields: Mapping[str, Any]) -> str:
    """A record's content, in one cell."""
    if "dequeued_rid" in fields:
        return f"of 0x{fields['dequeued_rid']:x}"
    if "prepared" in fields:
        return f"prepared, {fields['prepared']}"
    if "blocks" in fields:
        return plural(fields["blocks"], "block")
    message = fields.get("message")
    if message is None:
        return ""
    where = f"{message['exchange'] or ''}/{message['routing_key'] or ''}"
    return f"{printable(where)}  {plural(message['body_length'], 'byte')}  {_body(message)}".rstrip()


#: Kind of object -> its columns.
COLUMNS: Final[dict[str, tuple[Column, ...]]] = {
    "exchange": (
        Column("exchange", field("name"), width=24),
        Column("type", field("type"), width=8),
        Column("durable", yes("durable"), width=7),
        Column("alternate", field("alternate_exchange"), width=16),
        Column("arguments", pairs("arguments"), long=True),
    ),
    "queue": (
        Column("queue", field("name"), width=24),
        Column("messages", number("messages"), width=10, number=True),
        Column("alternate", field("alternate_exchange"), width=16),
        Column("arguments", pairs("arguments"), long=True),
    ),
    "binding": (
        Column("bound exchange", field("exchange"), width=24),
        Column("queue", field("queue"), width=24),
        Column("key", field("key"), width=16),
        Column("arguments", pairs("arguments"), long=True),
    ),
    "exchange_binding": (
        Column("source exchange", field("source"), width=24),
        Column("destination exchange", field("destination"), width=24),
        Column("key", field("key"), width=16),
        Column("arguments", pairs("arguments"), long=True),
    ),
    "link": (
        Column("link", field("name"), width=24),
        Column("host", field("host"), width=24),
        Column("port", field("port"), width=6, number=True),
        Column("transport", field("transport"), width=9),
        Column("mechanism", field("mechanism"), width=10),
        Column("user", field("user"), long=True),
    ),
    "bridge": (
        Column("bridge", field("name"), width=24),
        Column("link", field("link"), width=24),
        Column("source", field("source"), width=16),
        Column("destination", field("destination"), width=16),
        Column("key", field("key"), long=True),
    ),
    "object": (
        Column("object", _parts, width=24),
        Column("type", field("type"), width=16),
        Column("properties", pairs("properties"), long=True),
    ),
    "message": (
        Column("queue", field("queue"), width=20),
        Column("rid", hexadecimal("rid"), width=10),
        Column("state", field("state"), width=16),
        Column("exchange", field("exchange"), width=14),
        Column("routing key", field("routing_key"), width=14),
        Column("message id", field("message_id"), width=36, whole=True),
        Column("bytes", number("body_length"), width=8, number=True),
        Column("headers", pairs("headers"), width=24, long=True),
        Column("body", _body, long=True),
        Column("xid", field("xid"), apart=True),
    ),
    "journal": (
        Column("journal of", field("queue"), width=24),
        Column("files", number("files"), width=5, number=True),
        Column("file size", number("file_size"), width=10, number=True),
        Column("messages", number("outstanding"), width=10, number=True),
        Column("in doubt", _in_doubt, width=8, number=True),
        Column("fill", share("fill"), width=6, number=True),
        Column("damage", number("damage"), width=6, number=True),
        Column("path", field("path"), long=True),
    ),
    "transaction": (
        Column("state", field("state"), width=10),
        Column("type", field("type"), width=5),
        Column("format", field("format"), width=6, number=True),
        Column("global id", field("global_id"), width=24, whole=True),
        Column("branch id", field("branch_id"), width=24, whole=True),
        Column("enqueues", number("enqueues"), width=8, number=True),
        Column("dequeues", number("dequeues"), width=8, number=True),
        Column("xid", field("xid"), whole=True),
    ),
    "record": (
        Column("queue", field("queue"), width=16),
        Column("type", field("type"), width=7),
        Column("rid", hexadecimal("rid"), width=10),
        Column("file", _file, width=21),
        Column("offset", hexadecimal("offset"), width=10),
        Column("size", number("size"), width=8, number=True),
        Column("flush", field("flush"), width=8, number=True),
        Column("check", field("checksum"), width=7),
        Column("flags", _flags, width=13),
        Column("content", _content, width=40, long=True),
        Column("xid", field("xid"), whole=True),
    ),
    "damage": (
        Column("damaged file", field("file"), width=40, whole=True),
        Column("offset", hexadecimal("offset"), width=10),
        Column("rid", hexadecimal("rid"), width=10),
        Column("what is wrong", field("what"), width=40, whole=True),
        Column("consequence", field("consequence"), whole=True),
    ),
}


def object_tables(console: Console, *, fits: bool = False) -> Tables:
    """The objects of stores as tables."""
    return Tables(COLUMNS, console, fits=fits)
