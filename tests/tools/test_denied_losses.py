"""Losses are never denied: check, recover and a start agree about files that were put back from an earlier time.

The stores are those of the damage campaign, which recorded how far they were synced, as brokers do every few seconds.
Damage is done where a single file shows nothing: the last record of the catalogue's second copy, the catalogue together
with that copy, a journal that ends earlier than it did. `look` runs all the tools on the result.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from qstore.formats.rhm.close_record import SyncedJournal, decode_synced, encode_synced
from qstore.formats.topology_copy import SECTOR, decode_topology
from qstore.store.catalogue.topology_copy import view_copy
from qstore.store.disk import OsDisk
from qstore.store.environment import tool_environment
from qstore.store.inspect.offline import open_store
from tests.support.damage_campaign.reading import Seen, look
from tests.support.damage_campaign.stores import QSTORE, CampaignStore, campaign_stores
from tests.support.fixtures import StoreOpener
from tests.support.opened_store import OpenedStore
from tests.support.profiles import today

pytestmark = pytest.mark.usefixtures("nothing_is_synced")

COPY: Final = "rhm/topology"
MOMENTS: Final = ("crashed", "closed", "again", "ended")
PAIRS: Final = [(older, name) for at, name in enumerate(MOMENTS) for older in ("first", *MOMENTS)[: at + 1]]


@pytest.fixture(scope="module")
def stores(open_fixture: StoreOpener, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CampaignStore]:
    made = campaign_stores(tmp_path_factory.mktemp("stores"), open_fixture)[QSTORE]
    return {store.name.split(" ")[0]: store for store in made if store.older}


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture(scope="module")
def undamaged(stores: dict[str, CampaignStore], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    scratch = tmp_path_factory.mktemp("undamaged") / "scratch"
    return {name: look(store.path, scratch, is_version_2=True) for name, store in stores.items()}


def copied(store: CampaignStore, path: Path) -> Path:
    shutil.copytree(store.path, path, symlinks=True)
    return path


def put_back(path: Path, older: Path, *names: str) -> None:
    """Files or directories as they were."""
    for name in names:
        if (path / name).is_dir():
            shutil.rmtree(path / name)
            shutil.copytree(older / name, path / name)
        else:
            shutil.copyfile(older / name, path / name)


def older_of(store: CampaignStore, name: str) -> Path:
    return next(path for path in store.older if path.name == name)


def kinds(seen: Seen) -> set[str]:
    return {line["damage_kind"] for line in seen.reported}


def content_of(seen: Seen) -> tuple[Any, ...]:
    return seen.content, seen.recovered, seen.lenient


def assert_reported(seen: Seen, *, loses: bool) -> None:
    """Everybody who looks says so; and that something is lost, where it is."""
    assert seen.faults == []
    assert seen.code == 1, seen.reported
    assert seen.recover_code == int(loses), seen.reported
    assert seen.refusing is None
    assert seen.critical


# ---- the catalogue and its second copy ----


@pytest.mark.parametrize("name", MOMENTS)
def test_no_undamaged_store_is_said_to_be_damaged(undamaged: dict[str, Seen], name: str) -> None:
    seen = undamaged[name]
    assert (seen.code, seen.recover_code, seen.reported, seen.critical, seen.faults) == (0, 0, [], [], [])


def last_record(content: bytes) -> range:
    """The offsets of the last record in a copy that holds more than the snapshot."""
    whole = decode_topology(content)
    begin = next(
        at
        for at in range(whole.end - SECTOR, SECTOR, -SECTOR)
        if decode_topology(content[:at] + bytes(len(content) - at)).batch == whole.batch - 1
    )
    return range(begin, whole.end)


@pytest.mark.parametrize("name", MOMENTS)
def test_every_flipped_bit_in_the_last_record_of_the_copy_is_seen(
    stores: dict[str, CampaignStore], tmp_path: Path, name: str
) -> None:
    path = copied(stores[name], tmp_path / "store")
    content = (path / COPY).read_bytes()
    least = decode_synced((path / "rhm/SYNCED").read_bytes()).batch
    record = last_record(content)
    sound = decode_topology(content)
    assert least == sound.batch
    for offset in record:
        if not content[offset] and not any(content[offset : record.stop]):
            break  # padding
        for bit in range(8):
            flipped = bytearray(content)
            flipped[offset] ^= 1 << bit
            (path / COPY).write_bytes(flipped)
            view = view_copy(OsDisk(), str(path / COPY), sound.store_id, least)
            assert view.problem, (offset, bit)


@pytest.mark.parametrize("name", MOMENTS)
def test_a_flipped_bit_in_the_last_record_of_the_copy_is_damage(
    stores: dict[str, CampaignStore], undamaged: dict[str, Seen], tmp_path: Path, scratch: Path, name: str
) -> None:
    path = copied(stores[name], tmp_path / "store")
    content = bytearray((path / COPY).read_bytes())
    content[last_record(bytes(content)).start + 30] ^= 4
    (path / COPY).write_bytes(content)
    seen = look(path, scratch, is_version_2=True)
    assert_reported(seen, loses=False)
    assert kinds(seen) == {"topology-copy-unusable"}
    assert content_of(seen) == content_of(undamaged[name])


@pytest.mark.parametrize("name", MOMENTS)
def test_with_a_broken_catalogue_the_lost_end_of_its_copy_is_a_loss(
    stores: dict[str, CampaignStore], undamaged: dict[str, Seen], tmp_path: Path, scratch: Path, name: str
) -> None:
    """A binding was in it, and nowhere else."""
    path = copied(stores[name], tmp_path / "store")
    content = bytearray((path / COPY).read_bytes())
    content[last_record(bytes(content)).start + 30] ^= 4
    (path / COPY).write_bytes(content)
    (path / "rhm/catalogue/CURRENT").unlink()
    seen = look(path, scratch, is_version_2=True)
    assert_reported(seen, loses=True)
    assert content_of(seen) != content_of(undamaged[name])


@pytest.mark.parametrize(("older", "name"), PAIRS)
def test_an_older_catalogue_with_an_older_copy_is_a_loss(
    stores: dict[str, CampaignStore], undamaged: dict[str, Seen], tmp_path: Path, scratch: Path, older: str, name: str
) -> None:
    store = stores[name]
    path = copied(store, tmp_path / "store")
    put_back(path, older_of(store, older), "rhm/catalogue", COPY)
    has_changed = (older_of(store, older) / COPY).read_bytes() != (store.path / COPY).read_bytes()
    seen = look(path, scratch, is_version_2=True)
    if not has_changed:
        assert content_of(seen) == content_of(undamaged[name])
        return
    assert_reported(seen, loses=True)
    assert "catalogue-behind" in kinds(seen)
    everything = [queue.name for queue in stores_queues(path)]
    assert set(everything) >= {queue.name for queue in stores_queues(store.path)}


def stores_queues(path: Path) -> Iterator[Any]:
    store = open_store(OsDisk(), str(path))
    yield from store.recover().queues
    store.close()


@pytest.mark.parametrize(("older", "name"), today(PAIRS, 4))
@pytest.mark.parametrize("part", ["rhm/catalogue", COPY])
def test_one_of_the_two_that_is_older_costs_nothing(
    stores: dict[str, CampaignStore],
    undamaged: dict[str, Seen],
    tmp_path: Path,
    scratch: Path,
    older: str,
    name: str,
    part: str,
) -> None:
    store = stores[name]
    path = copied(store, tmp_path / "store")
    put_back(path, older_of(store, older), part)
    seen = look(path, scratch, is_version_2=True)
    assert content_of(seen) == content_of(undamaged[name])
    if (older_of(store, older) / COPY).read_bytes() != (store.path / COPY).read_bytes():
        assert_reported(seen, loses=False)


def test_a_lost_queue_whose_journal_is_empty_is_a_loss(tmp_path: Path, scratch: Path) -> None:
    """Only a queue of the catalogue gets records: it is not taken for one that was being created."""
    path, older = tmp_path / "store", tmp_path / "older"
    OpenedStore(tool_environment(), path).store.close()
    shutil.copytree(path, older)
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("orders")
    opened.store.append.dequeue(journal, opened.enqueue(journal, b"message"))
    opened.flush(journal)
    opened.store._opened.close()  # as if it were killed
    put_back(path, older, "rhm/catalogue", COPY)
    (path / "rhm/SYNCED").unlink()  # older software
    seen = look(path, scratch, is_version_2=True)
    assert_reported(seen, loses=True)
    assert "empty-queue-gone" in kinds(seen)
    assert any(line.startswith("queue ") and "orders" in line for line in seen.lenient or [])


# ---- journals ----


def journals(path: Path) -> list[str]:
    return [str(each.relative_to(path)) for each in [*sorted((path / "rhm").glob("jrnl/*")), path / "rhm/tpl"]]


@pytest.mark.parametrize(("older", "name"), PAIRS)
def test_an_older_journal_is_a_loss(
    stores: dict[str, CampaignStore], undamaged: dict[str, Seen], tmp_path: Path, scratch: Path, older: str, name: str
) -> None:
    """The directory of each journal in turn; and each of its files that has another content."""
    store, moment = stores[name], older_of(stores[name], older)
    changes = []
    for journal in journals(store.path):
        files = sorted((store.path / journal).glob("*.jdat"))
        other = [
            str(file.relative_to(store.path))
            for file in files
            if (moment / file.relative_to(store.path)).is_file()
            and (moment / file.relative_to(store.path)).read_bytes() != file.read_bytes()
        ]
        if other:
            changes += [journal, *other]
    for number, change in enumerate(today(changes, 3) if changes else ()):
        path = copied(store, tmp_path / f"store-{number}")
        put_back(path, moment, change)
        seen = look(path, scratch, is_version_2=True)
        assert seen.faults == [], change
        if content_of(seen) != content_of(undamaged[name]):
            assert (seen.code, seen.recover_code, seen.refusing) == (1, 1, None), (change, seen.reported)
            assert seen.critical, change
        else:
            assert seen.code == 1 or os.path.basename(change).startswith("tpl"), (change, seen.reported)


@pytest.mark.parametrize("name", MOMENTS)
def test_an_older_journal_is_a_loss_without_the_store_file_too(
    stores: dict[str, CampaignStore], tmp_path: Path, scratch: Path, name: str
) -> None:
    """A broker refuses such a store, so that it is recovered: then of all times nothing may be denied."""
    store = stores[name]
    path = copied(store, tmp_path / "store")
    put_back(path, older_of(store, "first"), "rhm/jrnl/1")
    (path / "rhm/STORE").write_bytes(b"")
    seen = look(path, scratch, is_version_2=True)
    assert (seen.faults, seen.code, seen.recover_code, seen.refusing, seen.lenient) == ([], 1, 1, None, None)
    assert kinds(seen) & {"synced-flushes-lost", "other-flush"}


def test_a_record_that_is_damaged_is_said_to_be(
    stores: dict[str, CampaignStore], undamaged: dict[str, Seen], tmp_path: Path, scratch: Path
) -> None:
    path = copied(stores["again"], tmp_path / "store")
    content = bytearray((path / "rhm/SYNCED").read_bytes())
    content[40] ^= 1
    (path / "rhm/SYNCED").write_bytes(content)
    seen = look(path, scratch, is_version_2=True)
    assert_reported(seen, loses=True)
    assert kinds(seen) == {"sync-record-checksum"}
    assert content_of(seen) == content_of(undamaged["again"])


def test_a_record_of_another_store_is_not_believed(
    stores: dict[str, CampaignStore], tmp_path: Path, scratch: Path
) -> None:
    path = copied(stores["again"], tmp_path / "store")
    (path / "rhm/SYNCED").write_bytes(encode_synced(UUID(int=7), 1 << 40, [SyncedJournal(1, 1, 1, 1 << 40)]))
    seen = look(path, scratch, is_version_2=True)
    assert_reported(seen, loses=True)
    assert kinds(seen) == {"sync-record-of-other-store"}


def test_without_the_record_a_store_is_opened_as_before(
    stores: dict[str, CampaignStore], undamaged: dict[str, Seen], tmp_path: Path, scratch: Path
) -> None:
    """Older software does not write it."""
    for name in MOMENTS:
        path = copied(stores[name], tmp_path / name)
        (path / "rhm/SYNCED").unlink()
        seen = look(path, scratch, is_version_2=True)
        assert (seen.code, seen.recover_code, seen.critical) == (0, 0, [])
        assert content_of(seen) == content_of(undamaged[name])
