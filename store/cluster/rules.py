"""The rules by which brokers with given stores can form a cluster, and the action of each on its store, without I/O.

From the Qpid wiki, "Persistent Cluster Restart Design Note", and the MRG 2 Messaging User Guide, 7.5:

1. All stores are empty: all start empty, under one new cluster-id.
2. Otherwise at least one is clean. If none is, the brokers log `Cannot recover, no clean store` and end; also if some
   are dirty and all others empty, which the guide leaves open but the note does not.
3. All clean stores have the same shutdown-id: they stopped at the same point.
4. All that are not empty have the same cluster-id.
5. Clean stores are recovered. The others get an update from one of them; an existing store is discarded, that is, it
   becomes a backup.
6. A broker that joins a running cluster gets an update in any state; if it has a cluster-id, that must be the
   cluster's.
7. A store to be truncated counts as empty.

Two more, for cases that the documents do not consider, and that would lose everything unnoticed:

8. A member without a store is not clean: all would start with nothing.
9. While no store is clean, none may exist that never was in a cluster: it is not empty, and nothing shows which
   broker's state all should have.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from uuid import UUID

import qstore.store.log_lines as log_lines
from qstore.formats.named_tuple import NamedTuple
from qstore.store.cluster.identity import NOBODY, ClusterIds, State


class Action(StrEnum):
    """A member's action on its store."""

    BEGIN = "starts empty"
    RESTORE = "restores from its store"
    UPDATE = "gets an update"
    DISCARD = "sets its store aside and gets an update"
    TRUNCATE = "sets its store aside and starts empty"


class Member(NamedTuple):
    """A store whose broker is to be in the cluster.

    Attributes:
        name: its name in the text of a problem.
        identity: its ids.
        has_store: whether there is a store in addition to them.
        truncate: whether its broker is to discard its content (`--truncate yes`).
    """

    name: str
    identity: ClusterIds
    has_store: bool
    truncate: bool = False

    @property
    def counts_as(self) -> ClusterIds:
        """The effective identity."""
        return NOBODY if self.truncate else self.identity

    @property
    def state(self) -> State:
        """The effective state."""
        return self.counts_as.state


class Verdict(NamedTuple):
    """The result of the rules.

    Attributes:
        problems: why it cannot be done, one line each; empty if it can.
        cluster_id: of the cluster; None if the members have none, or different ones.
        actions: each member's action, in their order; empty if it cannot be done.
        lacks_clean: whether one of the problems is that no store is marked clean.
    """

    problems: tuple[str, ...]
    cluster_id: UUID | None
    actions: tuple[Action, ...]
    lacks_clean: bool = False


def plan_start(members: Sequence[Member]) -> Verdict:
    """Whether these members, and no others, can start a cluster."""
    clean = [member for member in members if member.state is State.CLEAN]
    used = [member for member in members if member.state is not State.EMPTY]
    problems = [
        *_not_there(clean),
        *_different("cluster-ids", [(member.name, member.counts_as.cluster_id) for member in used]),
        *_different("shutdown-ids", [(member.name, member.counts_as.shutdown_id) for member in clean]),
        *(() if clean else _no_clean(members, used)),
    ]
    clusters = {member.counts_as.cluster_id for member in used}
    cluster_id = clusters.pop() if len(clusters) == 1 else None
    if problems:
        return Verdict(tuple(problems), cluster_id, (), lacks_clean=bool(used) and not clean)
    return Verdict((), cluster_id, tuple(_action(member, is_first=not used) for member in members))


def plan_join(cluster_id: UUID, member: Member) -> Verdict:
    """Whether that member can join a running cluster."""
    own = member.counts_as.cluster_id
    if own not in (None, cluster_id):
        problem = f"{member.name}: its cluster-id is {own}, but the cluster's is {cluster_id}"
        return Verdict((problem,), cluster_id, ())
    return Verdict((), cluster_id, (Action.DISCARD if member.has_store else Action.UPDATE,))


def _action(member: Member, *, is_first: bool) -> Action:
    if member.state is State.CLEAN:
        return Action.RESTORE
    if is_first:
        return Action.TRUNCATE if member.has_store else Action.BEGIN
    return Action.DISCARD if member.has_store else Action.UPDATE


def _not_there(clean: Sequence[Member]) -> list[str]:
    """Rule 8."""
    return [f"{member.name}: it is marked clean, but there is no store" for member in clean if not member.has_store]


def _no_clean(members: Sequence[Member], used: Sequence[Member]) -> list[str]:
    """Rules 2 and 9."""
    problems = [log_lines.no_clean_store().text] if used else []
    return problems + [
        f"{member.name}: its store never was in a cluster"
        for member in members
        if member.identity.state is State.EMPTY and member.has_store and not member.truncate
    ]


def _different(what: str, ids: Sequence[tuple[str, UUID | None]]) -> list[str]:
    """Rules 3 and 4: a problem that lists the ids and their members, unless all have the same."""
    by_id: dict[UUID | None, list[str]] = {}
    for name, each in ids:
        by_id.setdefault(each, []).append(name)
    if len(by_id) < 2:
        return []
    return [f"different {what}: " + "; ".join(f"{each} of {', '.join(names)}" for each, names in by_id.items())]
