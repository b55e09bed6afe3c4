"""Whether brokers with these stores can form a cluster, and what each does with its own: the rules, without any I/O.

From the Qpid wiki, "Persistent Cluster Restart Design Note", and the MRG 2 Messaging User Guide, 7.5:

1. All stores are empty: all begin empty, under one new cluster-id.
2. Otherwise at least one is clean. If none is, the brokers say `Cannot recover, no clean store` and end; also where
   some are dirty and all others empty, which the guide leaves open and the note does not.
3. All clean stores have the same shutdown-id: they stopped at the same point.
4. All that are not empty have the same cluster-id.
5. Clean stores are read. The others get an update from one that was; a store that is there already is discarded, which
   means that it becomes a backup.
6. Who joins a running cluster gets an update whatever its state; a cluster-id that it has must be the cluster's.
7. A store that is to be truncated counts as empty.

Two more, for what the documents do not think of, and what would lose everything unseen:

8. No store is clean where there is none: all would begin with nothing.
9. While no store is clean, none is there that never was in a cluster: it is not empty, and nothing says which broker's
   state all should have.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import store.log_lines as log_lines
from store.cluster.identity import NOBODY, Identity, State


class Action(StrEnum):
    """What a member does with its store."""

    BEGIN = "begins empty"
    RESTORE = "restores from its store"
    UPDATE = "gets an update"
    DISCARD = "sets its store aside and gets an update"
    TRUNCATE = "sets its store aside and begins empty"


class Member(NamedTuple):
    """A store whose broker is to be in the cluster.

    Attributes:
        name: what it is called in the text of a problem.
        identity: its ids.
        has_store: whether there is anything beside them.
        truncate: whether its broker is told to discard what it has (`--truncate yes`).
    """

    name: str
    identity: Identity
    has_store: bool
    truncate: bool = False

    @property
    def counts_as(self) -> Identity:
        """The identity that matters."""
        return NOBODY if self.truncate else self.identity

    @property
    def state(self) -> State:
        """The state that matters."""
        return self.counts_as.state


class Verdict(NamedTuple):
    """What the rules say.

    Attributes:
        problems: why not, one line each; none if it can be done.
        cluster_id: of the cluster; None if the members do not have one, or not the same.
        actions: what each member does, in their order; empty if it cannot be done.
        lacks_clean: whether one of the problems is that no store is marked clean.
    """

    problems: tuple[str, ...]
    cluster_id: UUID | None
    actions: tuple[Action, ...]
    lacks_clean: bool = False


def plan_start(members: Sequence[Member]) -> Verdict:
    """Whether these, and no others, can start a cluster."""
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
    """Whether that one can join a cluster that is running."""
    own = member.counts_as.cluster_id
    if own not in (None, cluster_id):
        problem = f"{member.name}: its cluster-id is {own}, and the cluster's {cluster_id}"
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
    return [f"{member.name}: it is marked clean, and there is no store" for member in clean if not member.has_store]


def _no_clean(members: Sequence[Member], used: Sequence[Member]) -> list[str]:
    """Rules 2 and 9."""
    problems = [log_lines.no_clean_store().text] if used else []
    return problems + [
        f"{member.name}: there is a store that never was in a cluster"
        for member in members
        if member.identity.state is State.EMPTY and member.has_store and not member.truncate
    ]


def _different(what: str, ids: Sequence[tuple[str, UUID | None]]) -> list[str]:
    """Rules 3 and 4: a problem that names who has which, unless all have the same."""
    by_id: dict[UUID | None, list[str]] = {}
    for name, each in ids:
        by_id.setdefault(each, []).append(name)
    if len(by_id) < 2:
        return []
    return [f"different {what}: " + "; ".join(f"{each} of {', '.join(names)}" for each, names in by_id.items())]
