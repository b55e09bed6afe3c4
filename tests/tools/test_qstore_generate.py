"""`qstore-generate`: what it makes is what it says, for the other tools too, in every format."""

from __future__ import annotations

import hashlib
import json
import os
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from qstore.store.key_value import RocksKeyValue
from qstore.tools.generate.fleet import (
    DamageKind,
    FleetSpec,
    MessageFactory,
    StoreFormat,
    body_text,
    parse_sizes,
    parse_spread,
    queue_prefix,
)
from tests.support.dump import dump
from tests.support.generated_fleet import assert_as_listed, generate, listed, make, unseen
from tests.support.planted_damage import check
from tests.support.profiles import examples, today

FORMATS = pytest.mark.parametrize("form", list(StoreFormat))
TODAYS_FORMAT = pytest.mark.parametrize("form", today(list(StoreFormat), 1))
SMALL = FleetSpec(queues=3, messages=400, transactions=0.5, in_doubt=2, spread=parse_spread("zipf:1"))


def spec(form: StoreFormat, **fields: object) -> FleetSpec:
    values = {name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__}
    return FleetSpec(**{**values, "format": form, **fields})


# ---- what is made ----


@FORMATS
def test_store_matches_its_list(form: StoreFormat, tmp_path: Path) -> None:
    store, lines = make(spec(form), tmp_path / "fleet")
    shown = assert_as_listed(store)
    whole = lines[-1]
    assert whole["kind"] == "store"
    assert whole["format"] == form.value
    assert whole["transactions"] == 2 == len(shown.lines("transaction"))
    assert whole["in_doubt_enqueues"] > 0
    assert whole["commits"] > 0
    assert whole["aborts"] > 0
    # Messages of transactions in doubt come on top.
    assert whole["sent"] == 400 + whole["in_doubt_enqueues"]
    assert 0.4 < whole["taken"] / whole["sent"] < 0.6
    assert [line["name"] for line in shown.lines("queue")] == ["queue.0001", "queue.0002", "queue.0003"]
    assert len(shown.lines("exchange")) == 2
    assert len(shown.lines("binding")) == 3


@examples(15, suppress=[HealthCheck.function_scoped_fixture])
@given(
    form=st.sampled_from(StoreFormat),
    seed=st.integers(-(1 << 70), 1 << 70),
    queues=st.integers(1, 3),
    messages=st.integers(0, 600),
    sizes=st.sampled_from(["0", "700", "uniform:0-9000", "lognormal:300,1.5"]),
    spread=st.sampled_from(["equal", "zipf:1.5", "9,1"]),
    dequeued=st.sampled_from([0.0, 0.4, 1.0]),
    transactions=st.sampled_from([0.0, 0.3, 1.0]),
    aborted=st.sampled_from([0.0, 0.5, 1.0]),
    in_doubt=st.integers(0, 3),
    exchanges=st.integers(0, 2),
    is_small=st.booleans(),
)
def test_any_fleet_matches_its_list(
    tmp_path_factory: pytest.TempPathFactory,
    form: StoreFormat,
    seed: int,
    queues: int,
    messages: int,
    sizes: str,
    spread: str,
    dequeued: float,
    transactions: float,
    aborted: float,
    in_doubt: int,
    exchanges: int,
    is_small: bool,
) -> None:
    wanted = FleetSpec(
        seed=seed,
        format=form,
        queues=queues,
        messages=messages,
        sizes=parse_sizes(sizes),
        spread=parse_spread(spread),
        dequeued=dequeued,
        transactions=transactions,
        aborted=aborted,
        in_doubt=in_doubt,
        exchanges=exchanges,
        num_jfiles=4 if is_small else None,
        jfile_size_pgs=1 if is_small else None,
    )
    store, lines = make(wanted, tmp_path_factory.mktemp("any") / "fleet")
    assert_as_listed(store)
    if not lines[-1]["refused"]:
        assert lines[-1]["sent"] == pytest.approx(messages + lines[-1]["in_doubt_enqueues"], abs=queues)


@pytest.mark.parametrize("form", [StoreFormat.QSTORE, StoreFormat.LEGACYSTORE])
def test_a_ring_goes_round_where_its_size_is_given(form: StoreFormat, tmp_path: Path) -> None:
    wanted = spec(form, queues=1, messages=1500, dequeued=0.98, num_jfiles=4, jfile_size_pgs=1)
    store, lines = make(wanted, tmp_path / "fleet")
    assert_as_listed(store)
    assert lines[-1]["sent"] - lines[-1]["in_doubt_enqueues"] == 1500  # of 1 KiB, and the ring has 256 KiB
    assert sum(path.stat().st_size for path in store.rglob("JournalData.*.jdat")) == 4 * (512 + 65536)


@TODAYS_FORMAT
def test_as_many_transactions_in_doubt_as_may_be(form: StoreFormat, tmp_path: Path) -> None:
    store, _ = make(spec(form, in_doubt=500, messages=10), tmp_path / "fleet")
    assert len(assert_as_listed(store).lines("transaction")) == 500


def test_messages_match_the_factory(tmp_path: Path) -> None:
    store, lines = make(
        spec(StoreFormat.QSTORE, queues=1, in_doubt=0, sizes=parse_sizes("uniform:1-300")), tmp_path / "f"
    )
    text = body_text(1)
    factory = MessageFactory("queue.0001", "", "", queue_prefix(lines[-1]["seed"], 1), text)
    shown = dump(store, "--outstanding", "--json").lines("message")
    assert shown
    for message in shown:
        place = message["headers"]["seq"]
        body = factory.body(place, message["body_length"])
        assert message["body_sha256"] == hashlib.sha256(body).hexdigest()
        assert message["headers"]["producer"] == message["routing_key"] == "queue.0001"
        assert message["message_id"].endswith(f"{place:012x}")
        assert message["delivery_mode"] == 2
    assert len({message["priority"] for message in shown}) > 1


def test_a_body_may_be_larger_than_the_text_that_all_share() -> None:
    text = body_text(5)
    factory = MessageFactory("q", "", "q", 0, text)
    body = factory.body(3, 5 << 20)
    assert len(body) == 5 << 20
    assert body == (text[3 * 7919 :] + text * 5)[: 5 << 20]


@TODAYS_FORMAT
def test_journals_take_as_many_bytes_as_asked(form: StoreFormat, tmp_path: Path) -> None:
    wanted = spec(form, messages=None, total_bytes=6 << 20, queues=2, spread=parse_spread("equal"))
    store, lines = make(wanted, tmp_path / "fleet")
    assert_as_listed(store)
    journals = [path for path in store.rglob("*") if path.suffix in (".jdat", ".jrnl") and not path.is_symlink()]
    size = sum(path.stat().st_size for path in journals if "tpl" not in path.name)
    assert size == pytest.approx(6 << 20, rel=0.25)
    assert lines[-1]["sent"] > 2000
    assert not lines[-1]["refused"]


# ---- the same seed ----


def contents(directory: Path) -> dict[str, str]:
    """Each file below a directory, but for RocksDB's, and where each link leads."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = os.fspath(path.readlink().relative_to(directory))
        elif path.is_file() and "catalogue" not in path.parts and path.suffix != ".jinf":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@TODAYS_FORMAT
def test_the_same_seed_makes_the_same_bytes(form: StoreFormat, tmp_path: Path) -> None:
    wanted = ["--format", form.value, "--stores", "2", "--queues", "2", "--messages", "200", "--in-doubt", "1"]
    wanted += ["--damage", "0.5", "--size", "uniform:0-3000"]
    fleets = []
    for name, jobs in (("one", "1"), ("two", "2")):
        assert generate(tmp_path / name, *wanted, "--jobs", jobs).exit_code == 0
        fleets.append(contents(tmp_path / name))
    assert fleets[0] == fleets[1]
    assert generate(tmp_path / "other", *wanted, "--seed", "2").exit_code == 0
    assert contents(tmp_path / "other") != fleets[0]


def test_the_same_seed_makes_the_same_catalogue(tmp_path: Path) -> None:
    entries = []
    for name in ("one", "two"):
        store, _ = make(spec(StoreFormat.QSTORE), tmp_path / name)
        map_ = RocksKeyValue.open(store / "rhm" / "catalogue", create=False)
        entries.append(list(map_.items(b"")))
        map_.close()
    assert entries[0] == entries[1]
    assert len(entries[0]) > 8


# ---- damage ----


@pytest.mark.parametrize(("form", "kind"), today([*product(StoreFormat, DamageKind)], 9))
def test_planted_damage_is_found(form: StoreFormat, kind: DamageKind, tmp_path: Path) -> None:
    planted = 0
    for seed in range(4):
        wanted = spec(form, seed=seed, damage=0.7, damage_kinds=(kind,), sizes=parse_sizes("uniform:0-2000"))
        store, lines = make(wanted, tmp_path / f"fleet-{seed}")
        assert unseen(store) == []
        damage = [line for line in lines if line["kind"] == "damage"]
        planted += sum(line["what"] == kind.value for line in damage)
        assert lines[-1]["damage"] + lines[-1]["torn"] == len(damage)
        for line in damage:
            assert (store / line["file"]).is_file() == (line["what"] != "missing")
    assert planted


@FORMATS
def test_a_torn_flush_is_not_damage(form: StoreFormat, tmp_path: Path) -> None:
    for seed in range(20):
        store, lines = make(spec(form, seed=seed, damage=1.0, damage_kinds=(DamageKind.TORN,)), tmp_path / f"{seed}")
        if lines[-1]["torn"] == 3:
            assert check(store).code == 0
            # What was not in the torn flush is still delivered.
            before = [line["message_id"] for line in listed(store, "message") if line["state"] == "outstanding"]
            after = {line["message_id"] for line in dump(store, "--outstanding", "--json").lines("message")}
            assert len(after & set(before)) > 0.7 * len(before)
            return
    pytest.fail("in none of the stores all journals were torn")


# ---- the command ----


def test_the_fleet_has_a_list(tmp_path: Path) -> None:
    done = generate(tmp_path / "fleet", "--stores", "3", "--queues", "2", "--messages", "50", "--json")
    assert done.exit_code == 0
    fleet, *stores = json_lines(tmp_path / "fleet" / "MANIFEST.jsonl")
    assert fleet["kind"] == "fleet"
    assert fleet["messages"] == 50
    assert fleet["sizes"] == {"kind": "fixed", "first": 1024, "last": 1024, "sigma": 0.0}
    assert [store["name"] for store in stores] == ["STORE-0001", "STORE-0002", "STORE-0003"]
    assert stores == json_lines(done.stdout_bytes)
    for store in stores:
        assert listed(tmp_path / "fleet" / store["name"])[-1] == store
    assert len({store["seed"] for store in stores}) == 3


def json_lines(source: Path | bytes) -> list[dict[str, object]]:
    content = source if isinstance(source, bytes) else source.read_bytes()
    return [json.loads(line) for line in content.splitlines()]


def test_a_table_for_people(tmp_path: Path) -> None:
    done = generate(tmp_path / "fleet", "--stores", "2", "--queues", "1", "--messages", "20")
    assert done.exit_code == 0
    assert "STORE-0002" in done.output
    assert "2 stores, " in done.output


def test_a_dry_run_writes_nothing_and_tells_the_size(tmp_path: Path) -> None:
    options = ["--stores", "2", "--queues", "3", "--bytes", "8MiB"]
    planned = generate(tmp_path / "fleet", *options, "--dry-run", "--json")
    assert planned.exit_code == 0
    assert not (tmp_path / "fleet").exists()
    expected = sum(store["journal_bytes"] for store in json_lines(planned.stdout_bytes))
    assert "nothing written" in generate(tmp_path / "fleet", *options, "--dry-run").output
    assert generate(tmp_path / "fleet", *options).exit_code == 0
    made = sum(path.stat().st_size for path in (tmp_path / "fleet").rglob("*.jdat"))
    assert made == expected
    assert expected == pytest.approx(9 << 20, rel=0.05)  # a MiB is the two prepared lists


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").write_text("mine")
    done = generate(tmp_path / "here")
    assert done.exit_code == 2
    assert "not empty" in done.stderr
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["file"]


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    assert generate(tmp_path / "here", "--queues", "1", "--messages", "5").exit_code == 0
    assert_as_listed(tmp_path / "here" / "STORE-0001")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--messages", "5", "--bytes", "1G"], "cannot be combined"),
        (["--size", "huge"], "is not a distribution of sizes"),
        (["--size", "uniform:9-3"], "is not a distribution of sizes"),
        (["--size", "17M"], "16 MiB"),
        (["--size", "lognormal:1K,9"], "is not a number from 0 to 5"),
        (["--spread", "1,0"], "is not a distribution over queues"),
        (["--spread", "zipf:x"], "is not a number from 0 to 10"),
        (["--bytes", "lots"], "is not a size"),
        (["--bytes", "900T"], "do not fit into a journal"),
        (["--damage", "2"], "not in the range"),
    ],
)
def test_impossible_options_are_refused_in_one_line(options: list[str], text: str, tmp_path: Path) -> None:
    done = generate(tmp_path / "fleet", *options)
    assert done.exit_code == 2
    assert text in done.stderr.replace("\n", " ")
    assert not (tmp_path / "fleet").exists()


def test_too_little_room_is_reported_before_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 50 << 20
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    done = generate(tmp_path / "fleet", "--bytes", "64MiB")
    assert done.exit_code == 2
    assert f"bytes are needed, and {free:,} are free; request less, or make room" in done.stderr
    assert not (tmp_path / "fleet").exists()


def test_a_missing_parent_is_reported(tmp_path: Path) -> None:
    done = generate(tmp_path / "none" / "fleet")
    assert done.exit_code == 2
    assert done.stderr == f"qstore-generate: {tmp_path}/none: there is no such directory; create it first\n"


def test_a_failing_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "/full/file")

    monkeypatch.setattr("qstore.store.disk.OsWritableDisk.create", fail)
    done = generate(tmp_path / "fleet", "--queues", "1", "--messages", "5")
    assert done.exit_code == 2
    assert "/full/file: a store cannot be created here: No space left on device" in done.stderr
    assert not (tmp_path / "fleet" / "MANIFEST.jsonl").exists()
