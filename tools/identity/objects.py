"""What `qpid-cluster-store --json` prints, one object a line.

kind       fields
---------  --------------------------------------------------------------------------------------------------
store      path, state, cluster_id, shutdown_id, store (`qstore`, `legacystore`, `linearstore` or null), roots,
closed_cleanly (of a qstore; otherwise null), backups, notices
change     path, change (`clean`, `discarded`, `none`), cluster_id, shutdown_id, backup
candidate  path, rank (from 1), last_write, queues, messages, transactions, damage
verdict    of (`start`, `join`), possible, cluster_id, problems, actions (path -> `begin`, `restore`, …)
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from qstore.store.cluster.identity import ClusterIds
from qstore.store.cluster.rules import Verdict
from qstore.tools.console.text import escape_name
from qstore.tools.identity.candidates import Candidate
from qstore.tools.identity.look import Look

Object = dict[str, Any]


def store_object(found: Look) -> Object:
    """A store."""
    return {
        "kind": "store",
        "path": escape_name(found.path),
        "state": found.identity.state.value,
        "cluster_id": _text(found.identity.cluster_id),
        "shutdown_id": _text(found.identity.shutdown_id),
        "store": None if found.kind is None else found.kind.value,
        "roots": found.roots,
        "closed_cleanly": found.closed_cleanly,
        "backups": [escape_name(backup.path) for backup in found.backups if backup.has_store],
        "notices": [escape_name(notice) for notice in found.notices],
    }


def change_object(path: str, change: str, identity: ClusterIds, backup: str | None = None) -> Object:
    """What was done."""
    return {
        "kind": "change",
        "path": escape_name(path),
        "change": change,
        "cluster_id": _text(identity.cluster_id),
        "shutdown_id": _text(identity.shutdown_id),
        "backup": None if backup is None else escape_name(backup),
    }


def candidate_object(rank: int, found: Candidate) -> Object:
    """A store that could be the one to start from."""
    fields = found._asdict()
    fields["path"] = escape_name(found.path)
    return {"kind": "candidate", "rank": rank, **fields}


def verdict_object(of: str, verdict: Verdict, paths: list[str]) -> Object:
    """Whether a cluster can be formed, or joined."""
    return {
        "kind": "verdict",
        "of": of,
        "possible": not verdict.problems,
        "cluster_id": _text(verdict.cluster_id),
        "problems": [escape_name(problem) for problem in verdict.problems],
        "actions": {
            escape_name(path): action.name.lower()
            for path, action in zip(paths, verdict.actions, strict=not verdict.problems)
        },
    }


def _text(uuid: UUID | None) -> str | None:
    return None if uuid is None else str(uuid)
