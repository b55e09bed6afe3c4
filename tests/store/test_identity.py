"""The identity of a store: its file, what changes it, backups; and that it is not used outside a cluster."""

from __future__ import annotations

import contextlib
import os
from itertools import product
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qstore.store.log_lines as log_lines
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.cluster.identity import (
    NOBODY,
    ClusterIds,
    IdentityError,
    State,
    StoreIdentity,
    backups_in,
    decode,
    encode,
    read_identity,
    stores_in,
)
from qstore.store.cluster.rules import Action, Member, Verdict, plan_join, plan_start
from qstore.store.disk import OsDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError
from tests.support.opened_store import OpenedStore

CLUSTER = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
SHUTDOWN = UUID("0f0e0d0c-0b0a-4908-8706-050403020100")
ZERO = "00000000-0000-0000-0000-000000000000"
DISK = OsDisk()


def identity_in(path: Path) -> StoreIdentity:
    return StoreIdentity(tool_environment(), str(path))


def with_store(path: Path, root: str = "rhm") -> Path:
    (path / root).mkdir(parents=True)
    (path / root / "content").write_text(root)
    return path


def status(path: Path) -> Path:
    return path / "cluster" / "store.status"


# ---- the file ----


@given(st.uuids() | st.none(), st.uuids() | st.none())
def test_identity_file_round_trip(cluster_id: UUID | None, shutdown_id: UUID | None) -> None:
    identity = ClusterIds(cluster_id, shutdown_id)
    if UUID(int=0) not in identity:
        assert decode(encode(identity)) == identity


def test_the_file_is_two_lines_as_qpidd_has_them() -> None:
    assert encode(ClusterIds(CLUSTER, SHUTDOWN)) == f"{CLUSTER}\n{SHUTDOWN}\n".encode()
    assert encode(ClusterIds(CLUSTER, None)) == f"{CLUSTER}\n{ZERO}\n".encode()
    assert encode(NOBODY) == f"{ZERO}\n{ZERO}\n".encode()
    assert len(encode(NOBODY)) == 74


@pytest.mark.parametrize(
    ("identity", "state"),
    [
        (NOBODY, State.EMPTY),
        (ClusterIds(None, SHUTDOWN), State.EMPTY),
        (ClusterIds(CLUSTER, None), State.DIRTY),
        (ClusterIds(CLUSTER, SHUTDOWN), State.CLEAN),
    ],
)
def test_the_ids_give_the_state(identity: ClusterIds, state: State) -> None:
    assert decode(encode(identity)).state is state


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        f"{CLUSTER}\n".encode(),
        f"{CLUSTER}\n{SHUTDOWN}"[:-1].encode(),
        f"{CLUSTER}\n{SHUTDOWN}\n{SHUTDOWN}\n".encode(),
        f"{{{CLUSTER}}}\n{SHUTDOWN}\n".encode(),
        f"{CLUSTER.hex}\n{SHUTDOWN}\n".encode(),
        f"{CLUSTER}\n{SHUTDOWN}\n".replace("0", "\uff10").encode(),
        f"{CLUSTER}\n{SHUTDOWN}\n".encode() + b" " * 5000,
        bytes(74),
    ],
)
def test_another_content_is_damage(content: bytes) -> None:
    with pytest.raises(IdentityError, match="damaged: it must hold two UUIDs"):
        decode(content)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_identity_or_damage(content: bytes) -> None:
    with contextlib.suppress(IdentityError):
        assert isinstance(decode(content), ClusterIds)


# ---- reading ----


def test_no_file_means_no_cluster(tmp_path: Path) -> None:
    assert read_identity(DISK, str(tmp_path)) == NOBODY
    (tmp_path / "cluster").mkdir()
    assert read_identity(DISK, str(tmp_path)) == NOBODY


def test_the_files_of_older_brokers_are_read(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "cluster.uuid").write_text(str(CLUSTER))
    assert read_identity(DISK, str(tmp_path)) == ClusterIds(CLUSTER, None)
    (tmp_path / "cluster" / "shutdown.uuid").write_text(str(SHUTDOWN))
    assert read_identity(DISK, str(tmp_path)) == ClusterIds(CLUSTER, SHUTDOWN)
    identity_in(tmp_path).mark_dirty(CLUSTER)
    assert read_identity(DISK, str(tmp_path)) == ClusterIds(CLUSTER, None)
    (tmp_path / "cluster" / "cluster.uuid").write_text("")
    assert read_identity(DISK, str(tmp_path)) == ClusterIds(CLUSTER, None)
    status(tmp_path).unlink()
    with pytest.raises(IdentityError, match=r"cluster\.uuid: damaged"):
        read_identity(DISK, str(tmp_path))


def test_unreadable_identity_error_names_the_path(tmp_path: Path) -> None:
    status(tmp_path).mkdir(parents=True)
    with pytest.raises(IdentityError, match=r"cluster/store\.status: it is not a regular file"):
        read_identity(DISK, str(tmp_path))
    status(tmp_path).rmdir()
    os.mkfifo(status(tmp_path))
    with pytest.raises(IdentityError, match=r"cluster/store\.status: it is not a regular file"):
        read_identity(DISK, str(tmp_path))
    status(tmp_path).unlink()
    status(tmp_path).write_text("half a UUID")
    with pytest.raises(IdentityError, match=r"cluster/store\.status: damaged"):
        read_identity(DISK, str(tmp_path))


# ---- marking ----


def test_marks(tmp_path: Path) -> None:
    identity = identity_in(with_store(tmp_path))
    identity.mark_dirty(CLUSTER)
    assert status(tmp_path).read_text() == f"{CLUSTER}\n{ZERO}\n"
    assert identity.mark_clean(SHUTDOWN) == ClusterIds(CLUSTER, SHUTDOWN) == identity.read()
    identity.mark_dirty(CLUSTER)
    assert identity.read().state is State.DIRTY
    assert oct(status(tmp_path).stat().st_mode)[-3:] == "600"
    assert os.listdir(tmp_path / "cluster") == ["store.status"]
    assert identity.new_id() != identity.new_id()
    assert identity.new_id().version == 4


def test_a_missing_store_is_not_marked_clean(tmp_path: Path) -> None:
    identity = identity_in(tmp_path)
    identity.mark_dirty(CLUSTER)
    for make in (lambda: None, (tmp_path / "rhm").mkdir):
        make()
        with pytest.raises(IdentityError, match="there is no store"):
            identity.mark_clean(SHUTDOWN)
        assert identity.read() == ClusterIds(CLUSTER, None)


def test_the_cluster_must_be_known(tmp_path: Path) -> None:
    identity = identity_in(with_store(tmp_path))
    with pytest.raises(IdentityError, match="the cluster of this store is unknown"):
        identity.mark_clean(SHUTDOWN)
    assert not status(tmp_path).exists()
    assert identity.mark_clean(SHUTDOWN, CLUSTER) == ClusterIds(CLUSTER, SHUTDOWN)


def test_a_damaged_status_is_rewritten_where_the_cluster_is_said(tmp_path: Path) -> None:
    identity = identity_in(with_store(tmp_path))
    (tmp_path / "cluster").mkdir()
    status(tmp_path).write_text("")
    with pytest.raises(IdentityError, match="damaged"):
        identity.mark_clean(SHUTDOWN)
    assert status(tmp_path).read_text() == ""
    assert identity.mark_clean(SHUTDOWN, CLUSTER) == ClusterIds(CLUSTER, SHUTDOWN)


def test_a_file_that_a_crash_left_is_replaced(tmp_path: Path) -> None:
    identity = identity_in(with_store(tmp_path))
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "store.status.new").write_text("half")
    assert identity.read() == NOBODY
    identity.mark_dirty(CLUSTER)
    assert os.listdir(tmp_path / "cluster") == ["store.status"]


# ---- backups ----


@pytest.mark.parametrize("root", ["rhm", "qls"])
def test_discarded_stores_are_kept_the_highest_number_the_newest(tmp_path: Path, root: str) -> None:
    identity = identity_in(tmp_path)
    for number in range(1, 18):
        with_store(tmp_path, root)
        (tmp_path / root / "number").write_text(str(number))
        identity.mark_dirty(CLUSTER)
        identity.mark_clean(SHUTDOWN)
        assert identity.discard(CLUSTER) == str(tmp_path / f"_cluster.bak.{number:04x}")
        assert identity.read() == ClusterIds(CLUSTER, None)
        assert stores_in(DISK, str(tmp_path)) == []
    backups = backups_in(DISK, str(tmp_path))
    assert [backup.number for backup in backups] == list(range(1, 18))
    assert [Path(backup.path).name for backup in backups][8:10] == ["_cluster.bak.0009", "_cluster.bak.000a"]
    for backup in backups:
        assert (Path(backup.path) / root / "number").read_text() == str(backup.number)
        assert (Path(backup.path) / root / "content").read_text() == root
        # a store that was discarded is not one to start from
        assert read_identity(DISK, backup.path) == ClusterIds(CLUSTER, None)


def test_both_stores_go_to_one_backup(tmp_path: Path) -> None:
    with_store(with_store(tmp_path), "qls")
    backup = identity_in(tmp_path).discard()
    assert backup is not None
    assert stores_in(DISK, backup) == ["rhm", "qls"]


def test_discarding_nothing_changes_the_status_alone(tmp_path: Path) -> None:
    identity = identity_in(tmp_path)
    identity.mark_dirty(CLUSTER)
    assert identity.discard() is None
    assert identity.read() == NOBODY
    assert os.listdir(tmp_path) == ["cluster"]


def test_a_backup_that_a_crash_left_without_store_is_taken(tmp_path: Path) -> None:
    with_store(tmp_path)
    for number in (1, 2):
        (tmp_path / f"_cluster.bak.000{number}").mkdir()
    for name in ("_cluster.bak.1", "_cluster.bak.00ff0", "_cluster.bak.zzzz", "x_cluster.bak.0009"):
        (tmp_path / name).mkdir()
    (tmp_path / "_cluster.bak.0fff").write_text("no directory")
    assert identity_in(tmp_path).discard() == str(tmp_path / "_cluster.bak.0002")


def test_numbers_end(tmp_path: Path) -> None:
    with_store(with_store(tmp_path) / "_cluster.bak.ffff")
    identity = identity_in(tmp_path)
    identity.mark_dirty(CLUSTER)
    with pytest.raises(IdentityError, match="this is the highest number; move the backups elsewhere"):
        identity.discard()
    assert identity.read() == ClusterIds(CLUSTER, None)
    assert stores_in(DISK, str(tmp_path)) == ["rhm"]


def test_a_link_that_would_break_is_refused(tmp_path: Path) -> None:
    with_store(tmp_path / "elsewhere")
    data = tmp_path / "data"
    data.mkdir()
    (data / "rhm").symlink_to("../elsewhere/rhm")
    with pytest.raises(IdentityError, match=r"a link to .*make it an absolute one first"):
        identity_in(data).discard()
    assert os.listdir(data) == ["rhm"]
    (data / "rhm").unlink()
    (data / "rhm").symlink_to(tmp_path / "elsewhere" / "rhm")
    backup = identity_in(data).discard()
    assert backup is not None
    assert (Path(backup) / "rhm" / "content").read_text() == "rhm"


def test_a_damaged_status_does_not_hinder_discarding(tmp_path: Path) -> None:
    with_store(tmp_path)
    (tmp_path / "cluster").mkdir()
    status(tmp_path).write_text("?")
    backup = identity_in(tmp_path).discard()
    assert backup is not None
    assert os.listdir(backup) == ["rhm"]
    assert identity_in(tmp_path).read() == NOBODY


def test_manual_recovery_as_the_documents_tell_it(tmp_path: Path) -> None:
    """MRG 2 Messaging User Guide, 7.5.4: the member that had discarded its store starts the cluster."""
    identity = identity_in(with_store(tmp_path))
    (tmp_path / "rhm" / "content").write_text("the good one")
    identity.mark_dirty(CLUSTER)
    identity.discard(CLUSTER)
    with_store(tmp_path)
    (tmp_path / "rhm").rename(tmp_path / "rhm.bak")
    (newest,) = backups_in(DISK, str(tmp_path))
    (Path(newest.path) / "rhm").rename(tmp_path / "rhm")
    assert identity.mark_clean(SHUTDOWN) == ClusterIds(CLUSTER, SHUTDOWN)
    assert (tmp_path / "rhm" / "content").read_text() == "the good one"


# ---- with a store ----


def test_outside_a_cluster_a_dirty_store_is_recovered_and_its_identity_left_alone(tmp_path: Path) -> None:
    environment = tool_environment()
    opened = OpenedStore(environment, tmp_path)
    queue = opened.make_queue("orders")
    for number in range(20):
        opened.enqueue(queue, b"%d" % number)
    opened.flush(queue)
    assert opened.store.close()
    for mark in ("dirty", "clean"):
        if mark == "dirty":
            identity_in(tmp_path).mark_dirty(CLUSTER)
        else:
            identity_in(tmp_path).mark_clean(SHUTDOWN)
        before = status(tmp_path).read_bytes()
        again = OpenedStore(environment, tmp_path)
        assert again.store.was_clean
        assert again.recovered_data() == {"orders": [b"%d" % number for number in range(20)]}
        assert again.store.close()
        assert status(tmp_path).read_bytes() == before
    assert backups_in(DISK, str(tmp_path)) == []


def test_marks_leave_the_store_s_own_mark_alone(tmp_path: Path) -> None:
    opened = OpenedStore(tool_environment(), tmp_path)
    assert opened.store.close()
    directory = StoreDirectory(tool_environment(), str(tmp_path), "test")
    for clean in (True, False):
        directory.mark(opened.store.store_id, clean=clean)
        before = directory.read_mark()
        identity_in(tmp_path).mark_dirty(CLUSTER)
        identity_in(tmp_path).mark_clean(SHUTDOWN)
        assert directory.read_mark() == before


def test_a_discarded_store_opens_where_it_is(tmp_path: Path) -> None:
    environment = tool_environment()
    opened = OpenedStore(environment, tmp_path)
    queue = opened.make_queue("orders")
    opened.enqueue(queue, b"kept")
    opened.flush(queue)
    opened.store.close()
    backup = identity_in(tmp_path).discard(CLUSTER)
    assert backup is not None
    new = OpenedStore(environment, tmp_path)
    assert new.recovered_data() == {}
    new.store.close()
    old = OpenedStore(environment, Path(backup))
    assert old.recovered_data() == {"orders": [b"kept"]}
    old.store.close()


def test_a_store_whose_making_a_crash_cut_short_gets_its_name_first(tmp_path: Path) -> None:
    opened = OpenedStore(tool_environment(), tmp_path)
    opened.store.close()
    (tmp_path / "rhm").rename(tmp_path / "rhm.new")
    identity = identity_in(tmp_path)
    identity.finish_interrupted()
    assert identity.discard() is not None
    assert sorted(os.listdir(tmp_path)) == ["_cluster.bak.0001", "cluster", "rhm.lock"]


def test_errors_are_store_errors_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "cluster").write_text("no directory")
    with pytest.raises(StoreError, match=r"^[^\n]*cluster: cannot be written: File exists$"):
        identity_in(tmp_path).mark_dirty(CLUSTER)


# ---- brokers that form a cluster: the rules of MRG 2 Messaging User Guide, 7.5 ----


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
