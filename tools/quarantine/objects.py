"""The content of a quarantine as JSON objects: entries, the records in them, problems of the index."""

from __future__ import annotations

from typing import Any

from qstore.formats.quarantine_index import IndexProblem, QuarantineEntry
from qstore.formats.rhm.records import Kind
from qstore.tools.dump.messages import message_object
from qstore.tools.dump.selection import BodyForm
from qstore.tools.quarantine.evidence import Evidence, Judgement
from qstore.tools.quarantine.injection import Injected

Object = dict[str, Any]


def entry_object(entry: QuarantineEntry, problem: str | None) -> Object:
    """An entry, with the problems of the file that holds its bytes."""
    injected = entry.injected
    return {
        "kind": "entry",
        **entry._asdict(),
        "injected": None if injected is None else {**injected._asdict(), "is_known": injected.is_known},
        "problem": problem,
    }


def problem_object(path: str, problem: IndexProblem) -> Object:
    """An unusable line of the index."""
    return {"kind": "damage", "file": path, "line": problem.line, "what": problem.what}


def record_object(queue: str, evidence: Evidence, judgement: Judgement) -> Object:
    """A record found in an entry, and what it can be used for."""
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
        values = message_object(queue, 0, "", None, judgement.message, BodyForm.TEXT)
        fields["message"] = {key: value for key, value in values.items() if key not in _REDUNDANT}
    return fields


# Fields of a message's object that the record's own object has, or that are unknown here.
_REDUNDANT = frozenset({"kind", "queue", "rid", "state", "xid"})


def injected_object(result: Injected) -> Object:
    """The result for an entry that was to be injected."""
    return {
        "kind": "injected" if result.failure is None else "refused",
        "number": result.entry.number,
        "queue": result.queue,
        "rids": list(result.rids),
        "problems": list(result.problems),
        "failure": result.failure,
    }
