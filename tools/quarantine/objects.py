"""What a quarantine holds as JSON objects: entries, the records in them, what is wrong with the index."""

from __future__ import annotations

from typing import Any

from formats.quarantine_index import IndexProblem, QuarantineEntry
from formats.rhm.records import Kind
from tools.dump.messages import message_object
from tools.dump.selection import BodyForm
from tools.quarantine.evidence import Evidence, Judgement
from tools.quarantine.injection import Injected

Object = dict[str, Any]


def entry_object(entry: QuarantineEntry, problem: str | None) -> Object:
    """An entry, with what is wrong with the file of its bytes."""
    injected = entry.injected
    return {
        "kind": "entry",
        **entry._asdict(),
        "injected": None if injected is None else {**injected._asdict(), "is_known": injected.is_known},
        "problem": problem,
    }


def problem_object(path: str, problem: IndexProblem) -> Object:
    """A line of the index that cannot be used."""
    return {"kind": "damage", "file": path, "line": problem.line, "what": problem.what}


def record_object(queue: str, evidence: Evidence, judgement: Judgement) -> Object:
    """A record that was found in an entry, and what it is good for."""
    fields: Object = {
        "kind": "record",
        "offset": evidence.offset,
        "format": evidence.format,
        "type": evidence.kind.label,
        "rid": evidence.rid,
        "xid": evidence.xid.hex() or None,
        "proved": evidence.is_proved,
        "problems": list(judgement.problems),
        "injectable": "no" if judgement.refusal else "forced" if judgement.problems else "yes",
        "refusal": judgement.refusal,
    }
    if evidence.dequeued_rid is not None:
        fields["dequeued_rid"] = evidence.dequeued_rid
    if evidence.kind is Kind.ENQUEUE and judgement.message is not None:
        told = message_object(queue, 0, "", None, judgement.message, BodyForm.TEXT)
        fields["message"] = {key: value for key, value in told.items() if key not in _TOLD_ALREADY}
    return fields


# Fields of a message's object that the record's own has, or that nothing here can tell.
_TOLD_ALREADY = frozenset({"kind", "queue", "rid", "state", "xid"})


def injected_object(result: Injected) -> Object:
    """What became of an entry that was to be injected."""
    return {
        "kind": "injected" if result.failure is None else "refused",
        "number": result.entry.number,
        "queue": result.queue,
        "rids": list(result.rids),
        "problems": list(result.problems),
        "failure": result.failure,
    }
