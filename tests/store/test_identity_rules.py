"""Which brokers with stores form a cluster (MRG 2 Messaging User Guide, 7.5), for every mixture of three stores."""

from __future__ import annotations

from itertools import product
from uuid import UUID

import pytest

import qstore.store.log_lines as log_lines
from qstore.store.cluster.identity import NOBODY, ClusterIds, State
from qstore.store.cluster.rules import Action, Member, Verdict, plan_join, plan_start

C1, C2 = UUID(int=0xC1), UUID(int=0xC2)
S1, S2 = UUID(int=0x51), UUID(int=0x52)
NO_CLEAN_STORE = "Cannot recover, no clean store"
EMPTY, DIRTY, CLEAN = NOBODY, ClusterIds(C1, None), ClusterIds(C1, S1)
BEGIN, RESTORE, UPDATE, DISCARD, TRUNCATE = Action


def member(name: str, identity: ClusterIds, *, has_store: bool | None = None, truncate: bool = False) -> Member:
    there = identity.state is not State.EMPTY if has_store is None else has_store
    return Member(name, identity, there, truncate)


def members(*identities: ClusterIds) -> list[Member]:
    return [member("abcdef"[number], identity) for number, identity in enumerate(identities)]


@pytest.mark.parametrize(
    ("identities", "actions", "cluster_id"),
    [
        ((EMPTY, EMPTY), (BEGIN, BEGIN), None),
        ((EMPTY,), (BEGIN,), None),
        ((CLEAN, EMPTY), (RESTORE, UPDATE), C1),
        ((CLEAN, DIRTY), (RESTORE, DISCARD), C1),
        ((DIRTY, CLEAN, EMPTY), (DISCARD, RESTORE, UPDATE), C1),
        # qpid-cluster -k: all are clean, by the same shut-down
        ((CLEAN, CLEAN, CLEAN), (RESTORE, RESTORE, RESTORE), C1),
        # the last survivor of three
        ((DIRTY, DIRTY, CLEAN), (DISCARD, DISCARD, RESTORE), C1),
    ],
)
def test_a_cluster_can_start(
    identities: tuple[ClusterIds, ...], actions: tuple[Action, ...], cluster_id: UUID | None
) -> None:
    assert plan_start(members(*identities)) == Verdict((), cluster_id, actions)


@pytest.mark.parametrize("identities", [(DIRTY, DIRTY), (DIRTY, EMPTY), (DIRTY,), (EMPTY, DIRTY, EMPTY)])
def test_no_clean_store(identities: tuple[ClusterIds, ...]) -> None:
    verdict = plan_start(members(*identities))
    assert verdict == Verdict((NO_CLEAN_STORE,), C1, (), lacks_clean=True)
    assert log_lines.no_clean_store().text == NO_CLEAN_STORE


def test_clean_stores_of_different_shut_downs() -> None:
    verdict = plan_start(members(CLEAN, ClusterIds(C1, S2), CLEAN, DIRTY))
    assert verdict.problems == (f"different shutdown-ids: {S1} of a, c; {S2} of b",)
    assert verdict.cluster_id == C1
    assert verdict.actions == ()


@pytest.mark.parametrize("other", [ClusterIds(C2, None), ClusterIds(C2, S1)])
def test_stores_of_different_clusters(other: ClusterIds) -> None:
    verdict = plan_start(members(CLEAN, other, EMPTY))
    assert verdict == Verdict((f"different cluster-ids: {C1} of a; {C2} of b",), None, ())


def test_all_that_is_wrong_is_reported() -> None:
    verdict = plan_start(members(ClusterIds(C1, S1), ClusterIds(C2, S2)))
    assert [problem.partition(":")[0] for problem in verdict.problems] == [
        "different cluster-ids",
        "different shutdown-ids",
    ]
    assert len(plan_start(members(DIRTY, ClusterIds(C2, None))).problems) == 2


def test_a_clean_mark_on_nothing_is_nothing_to_start_from() -> None:
    verdict = plan_start([member("a", CLEAN, has_store=False), member("b", CLEAN)])
    assert verdict.problems == ("a: it is marked clean, but there is no store",)


def test_a_store_of_no_cluster() -> None:
    alone = member("a", EMPTY, has_store=True)
    assert plan_start([alone, member("b", EMPTY)]).problems == ("a: its store never was in a cluster",)
    assert plan_start([alone, member("b", DIRTY)]).problems == (
        NO_CLEAN_STORE,
        "a: its store never was in a cluster",
    )
    assert plan_start([alone, member("b", CLEAN)]) == Verdict((), C1, (DISCARD, RESTORE))


def test_truncate_discards_even_a_clean_store() -> None:
    clean = member("a", CLEAN, truncate=True)
    assert plan_start([clean, member("b", EMPTY)]) == Verdict((), None, (TRUNCATE, BEGIN))
    assert plan_start([clean, member("b", CLEAN)]) == Verdict((), C1, (DISCARD, RESTORE))
    assert plan_start([clean, member("b", DIRTY)]).problems == (NO_CLEAN_STORE,)
    assert plan_start([member("a", ClusterIds(C2, S2), truncate=True), member("b", CLEAN)]).problems == ()
    assert plan_start([member("a", EMPTY, has_store=True, truncate=True)]) == Verdict((), None, (TRUNCATE,))


def test_joining_member_always_gets_an_update() -> None:
    assert plan_join(C1, member("a", CLEAN)) == Verdict((), C1, (DISCARD,))
    assert plan_join(C1, member("a", DIRTY)) == Verdict((), C1, (DISCARD,))
    assert plan_join(C1, member("a", DIRTY, has_store=False)) == Verdict((), C1, (UPDATE,))
    assert plan_join(C1, member("a", EMPTY)) == Verdict((), C1, (UPDATE,))
    assert plan_join(C1, member("a", EMPTY, has_store=True)) == Verdict((), C1, (DISCARD,))
    assert plan_join(C2, member("a", CLEAN)).problems == (f"a: its cluster-id is {C1}, but the cluster's is {C2}",)
    assert plan_join(C2, member("a", CLEAN, truncate=True)).problems == ()


def test_every_mixture_of_three_against_the_rules_in_other_words() -> None:
    kinds = [
        EMPTY,
        ClusterIds(None, S1),
        *(ClusterIds(cluster, shut) for cluster in (C1, C2) for shut in (None, S1, S2)),
    ]
    possible = 0
    for mixture in product(kinds, repeat=3):
        used = [each for each in mixture if each.cluster_id]
        clean = [each for each in used if each.shutdown_id]
        good = not used or (
            len(clean) > 0 and len({each.shutdown_id for each in clean}) == 1 and len({each[0] for each in used}) == 1
        )
        verdict = plan_start(members(*mixture))
        assert good == (verdict.problems == ()), mixture
        assert len(verdict.actions) == (3 if good else 0)
        assert (NO_CLEAN_STORE in verdict.problems) == verdict.lacks_clean == bool(used and not clean)
        if good and used:
            assert verdict.actions.count(RESTORE) == len(clean)
            assert DISCARD in verdict.actions or len(used) == len(clean)
        possible += good
    assert possible > 50
