"""Damage as a value: its kinds, the loss that each means, and its texts."""

from __future__ import annotations

import ast
import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Final

import pytest

from qstore.store.damage import CHECKSUM_KINDS, Damage, DamageKind, Effect, Loss

ROOT: Final = Path(__file__).parents[2]
#: Kind -> what is lost by it, for each of its effects in turn. Whether a recovery lost anything follows from this.
LOSSES: Final = """
    directory-unreadable          journal, journal, certainty
    path-unreadable               journal, journal
    journal-broken                journal, transactions
    journal-unreadable            journal, transactions
    second-journal                records
    queue-without-journal         journal
    orphaned-journal              journal, journal, journal, journal
    info-file-broken              topology
    info-file-checksum            topology
    info-file-unreadable          topology
    info-file-geometry            nothing
    info-file-base-name           nothing
    info-file-of-other-queue      nothing
    info-file-queue-name          nothing
    info-file-queue-record        topology
    file-cannot-be-opened         records
    file-size                     records, certainty
    file-header-broken            certainty, records, nothing, certainty, records
    file-header-checksum          certainty, records, nothing
    file-header-unreadable        certainty, records, nothing, certainty, records
    file-header-missing           certainty, records, nothing
    file-header-odd               nothing
    file-beyond-last              records
    file-of-other-version         records
    file-of-other-incarnation     records
    file-number                   nothing, nothing, records, records
    file-numbers-differ           nothing
    file-all-zeros                records
    file-empty                    records
    creation-header-missing       records
    overwrite-indicator           nothing
    file-of-other-lap             records
    first-flush                   records
    header-older                  certainty
    header-newer                  certainty
    link-leads-out                records
    link-is-none                  records
    linear-file-cannot-be-opened  records
    file-header-half-reset        nothing
    file-number-missing           certainty, records
    file-of-other-queue           records, nothing
    file-number-twice             records
    file-without-link             nothing, nothing
    file-in-pool                  nothing
    file-second-copy              records
    file-out-of-place             certainty
    file-data-size                nothing
    file-serial                   nothing
    file-missing                  records
    files-missing                 records
    pool-file-broken              certainty
    pool-file-unreadable          certainty
    pool-file-size                certainty
    pool-file-data-size           certainty
    pool-file-partition           certainty, nothing
    pool-file-half-reset          nothing
    pool-file-twice               records
    record-broken                 records, records
    record-checksum               records, records
    more-breaks                   records
    sectors-unreadable            records
    journal-breaks-off            records
    first-record-not-told         nothing
    first-record-before           nothing
    first-record-elsewhere        nothing
    first-record-outside          certainty
    flushes-missing               certainty
    record-flags                  certainty
    padding                       nothing
    rid-twice                     certainty
    more-rids-twice               certainty
    dequeued-twice                certainty
    dequeued-not-there            certainty
    transaction-not-open          certainty
    more-unfounded                certainty
    beginning-lost                records
    flushes-lost                  records
    seal-missing                  records
    rids-beyond-reserved          certainty
    message-undecodable           certainty, certainty
    content-damaged               records, certainty, records
    message-unreadable            records
    message-changed               records
    transient-message             records
    transient-prepared            records
    checksums-disagree            certainty
    counts-disagree               certainty
    messages-disagree             certainty
    prepared-list-no-directory    transactions
    prepared-list-missing         transactions
    prepared-list-needed          transactions
    prepared-list-blank           transactions
    prepared-list-gone            transactions
    store-file-missing            nothing
    store-file-broken             nothing
    store-file-checksum           nothing
    store-file-of-other-store     nothing
    close-record-missing          certainty
    close-record-broken           certainty
    close-record-checksum         certainty
    close-record-unreadable       certainty
    close-record-of-other-store   certainty
    old-incarnation               records
    other-flush                   records, certainty
    no-longer-empty               certainty
    no-record-left                journal, nothing
    other-message-count           records, certainty
    sync-record-broken            certainty
    sync-record-checksum          certainty
    sync-record-unreadable        certainty
    sync-record-of-other-store    certainty
    synced-flushes-lost           records
    synced-journal-blank          journal
    queue-gone                    topology
    empty-queue-gone              topology
    catalogue-missing             topology
    catalogue-broken              topology
    catalogue-not-believed        nothing, certainty
    catalogue-behind              topology
    topology-copy-unusable        nothing, nothing
    catalogue-copy-damaged        topology
    catalogue-entry               topology
    catalogue-reservation         nothing
    object-undecodable            topology
    object-without-id             topology
    name-twice                    topology
    queue-twice                   topology, topology
    queue-name-length             topology, topology
    environment-unreadable        topology
    environment-damaged           topology, nothing
    environment-without-log       topology
    environment-not-recovered     topology
    environment-key               topology
    unknown-queue                 topology
    unknown-queue-unnamed         topology
    unknown-queue-name-taken      topology
    unknown-journal-unreadable    journal
    unknown-journal               journal
    journal-not-in-use            journal, nothing
    recovery-unfinished           journal
    directory-without-journal     nothing
"""
PAIRS: Final = [(kind, effect) for kind in DamageKind for effect in kind.effects]


def made(kind: DamageKind, effect: Effect) -> Damage:
    return Damage("/f", 7, None, kind, effect, **dict.fromkeys(kind.all_names, 7))


def used(name: str) -> set[str]:
    """The members of an enumeration that some module other than its own names."""
    found = set()
    for room in ("store", "tools"):
        for path in (ROOT / room).rglob("*.py"):
            if path.name != "damage.py":
                nodes = ast.walk(ast.parse(path.read_text()))
                found |= {
                    node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == name
                }
    return found


def test_losses_of_each_kind_match_the_table() -> None:
    recorded = {
        kind: losses.replace(",", "").split()
        for kind, _, losses in (line.strip().partition(" ") for line in LOSSES.strip().splitlines())
    }
    assert {kind.label: [effect.loses.name.lower() for effect in kind.effects] for kind in DamageKind} == recorded


@pytest.mark.parametrize(("kind", "effect"), PAIRS, ids=[f"{kind.name}-{effect.name}" for kind, effect in PAIRS])
def test_every_damage_can_be_reported(kind: DamageKind, effect: Effect) -> None:
    damage = made(kind, effect)
    for text in (damage.what, damage.consequence):
        assert text
        assert not set(text) & set("{}%\n")
    assert damage.costs == (effect.loses is not Loss.NOTHING)
    assert pickle.loads(pickle.dumps(damage)) == damage
    assert hash(damage) == hash(made(kind, effect))


def test_every_kind_is_found_somewhere_and_every_effect_belongs_to_a_kind() -> None:
    assert {kind.name for kind in DamageKind} - used("DamageKind") == set()
    assert {effect for effect in Effect if not any(effect in kind.effects for kind in DamageKind)} == set()


def test_unusual_effects_are_used() -> None:
    others = {effect.name for kind in DamageKind for effect in kind.effects[1:]}
    assert others - used("Effect") == set()


def test_labels_are_stable_and_distinct() -> None:
    assert len({kind.label for kind in DamageKind}) == len(DamageKind)
    assert DamageKind.FILE_OF_OTHER_QUEUE.label == "file-of-other-queue"
    assert all(kind.label.endswith("checksum") for kind in CHECKSUM_KINDS)
    assert {kind for kind in DamageKind if kind.label.endswith("checksum")} == CHECKSUM_KINDS


def test_damage_text_shows_counts_and_omits_unknown_ones() -> None:
    kind, of = DamageKind.UNKNOWN_QUEUE, {"queue": "a (s) % {b}", "messages": 1}
    one = Damage("/f", None, None, kind, **of, transactions=None)
    assert one.what == 'queue "a (s) % {b}" is not in the catalogue, but its journal holds 1 message'
    two = Damage("/f", None, None, kind, queue="b", messages=2000, transactions=3)
    held = "but its journal holds 2000 messages and 3 open transactions"
    assert two.what == f'queue "b" is not in the catalogue, {held}'
    orphan = Damage("/f", None, None, DamageKind.ORPHANED_JOURNAL, queue="b", messages=2000)
    assert orphan.what == 'journal of queue "b", which is not in the catalogue, holds 2,000 messages'


def test_cost_depends_on_the_effect_and_not_on_names() -> None:
    shown = {"object": "queue", "number": 2, "first": 1, "name": "q", "shown": "believed and taken, in its place"}
    assert Damage("/f", None, None, DamageKind.NAME_TWICE, **shown).costs
    entry = Damage(
        "/f", None, None, DamageKind.FILE_OF_OTHER_QUEUE, Effect.READ_BY_NUMBER, recorded="lost", queue="lost"
    )
    assert not entry.costs


def test_another_effect_keeps_everything_else() -> None:
    damage = Damage("/f", 0, None, DamageKind.FILE_HEADER_BROKEN, problem="no magic")
    lost = damage.with_effect(Effect.SALT_LOST)
    assert (lost.file, lost.offset, lost.kind, lost.what) == ("/f", 0, DamageKind.FILE_HEADER_BROKEN, "no magic")
    assert (damage.loses, lost.loses) == (Loss.CERTAINTY, Loss.RECORDS)


def test_a_damage_is_whole_and_stays_as_it_is() -> None:
    with pytest.raises(AssertionError):
        Damage("/f", 0, None, DamageKind.FILE_SIZE, size=1)  # without what it should be
    with pytest.raises(AssertionError):
        Damage("/f", 0, None, DamageKind.FILE_EMPTY, later=1, number=2)  # of which no words speak
    with pytest.raises(AssertionError):
        Damage("/f", 0, None, DamageKind.FILE_EMPTY, Effect.NOTHING_READ, later=1)  # which it never comes to
    with pytest.raises(FrozenInstanceError):
        Damage("/f", 0, None, DamageKind.FILE_EMPTY, later=1).file = "/g"  # type: ignore[misc]
