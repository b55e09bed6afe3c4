"""Links and pool files of a linearstore harmed: what `qstore-check` says, and that it is true."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

import pytest

from tests.support.planted_damage import Finding, Original, Plant, Planted, Spot, examine, flip, linear_store, lost
from tests.support.planted_linear import (
    BILLS,
    DIRECTORY,
    LOST_FILE,
    NO_LIST,
    ORDERS_0,
    ORDERS_1,
    gap,
    link,
    remove,
    remove_with_link,
    unlink,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return linear_store(tmp_path_factory.mktemp("linear") / "store")


# ---- links, and the files that they mean ----

NO_LINK: Final = "the journal's directory has no link to this file"
NEEDED: Final = "the file is read at its position in the journal, because messages in it or before it are outstanding"
NO_PREPARED_LIST: Final = "prepared transactions are treated as never prepared"
SECOND: Final = "00000000-0000-4000-8000-000000000000.jrnl"
IN_USE: Final = "qls/p001/efp/16k/in_use"


def second_copy(planted: Planted, *, linked: bool) -> None:
    planted.write(f"{IN_USE}/{SECOND}", planted.read(planted.original.files["bills"][18]))
    if linked:
        (planted.path / DIRECTORY / SECOND).symlink_to(f"/var/lib/qpidd/{IN_USE}/{SECOND}")


def to_partition_2(planted: Planted) -> None:
    name = PurePosixPath(planted.original.files["bills"][18]).name
    directory = planted.path / IN_USE.replace("p001", "p002")
    directory.mkdir(parents=True)
    (planted.path / IN_USE / name).rename(directory / name)


def plants_of_links(original: Original) -> list[Plant]:
    """Those that name a link, whose name is known only with the store."""
    dangling = [
        Plant(
            f"file missing: {journal} {number}",
            remove(journal, number),
            [
                Finding(
                    Spot(link(original, journal, number), None),
                    "link points to a file that is not in the store",
                    LOST_FILE,
                ),
                *(gap(number) if journal == "bills" else []),
            ],
            changes,
        )
        for journal, number, changes in (
            ("orders", 0, ORDERS_0),
            ("orders", 1, ORDERS_1),
            ("prepared", 0, NO_LIST),
            *(("bills", number, changes) for number, changes in BILLS.items()),
        )
    ]
    moved = IN_USE.replace("p001", "p002") + "/" + PurePosixPath(original.files["bills"][18]).name
    return [
        *dangling,
        Plant(
            "the files of a pool missing",
            lambda planted: planted.remove(IN_USE),
            [
                Finding(Spot(link(original, "bills", number), None), "link points to a file that is not in", LOST_FILE)
                for number in BILLS
            ],
            lost(*(f"bill {number}" for number in range(34, 40))),
        ),
        Plant(
            "a file in another partition",
            to_partition_2,
            [
                Finding(
                    Spot(moved, 26),
                    "states partition 1, but the file is in partition 2",
                    "no data loss: its records are read",
                )
            ],
        ),
    ]


LINKS: Final = [
    *(
        Plant(
            f"link missing: {journal} {number}",
            unlink(journal, number),
            [Finding((journal, number, None), NO_LINK, consequence)],
        )
        for journal, number, consequence in (
            ("orders", 0, NEEDED),
            ("orders", 1, "the file is read at its position in the journal"),
            ("prepared", 0, NEEDED),
            ("bills", 17, NEEDED),
            ("bills", 18, "the file is read at its position in the journal"),
            ("bills", 20, "the file is read at its position in the journal"),
        )
    ),
    *(
        Plant(f"file and link missing: bills {number}", remove_with_link("bills", number), gap(number), BILLS[number])
        for number in (18, 19)
    ),
    Plant(
        "the queue's directory missing",
        lambda planted: planted.remove(DIRECTORY),
        [Finding(("bills", number, None), NO_LINK, NEEDED) for number in BILLS],
    ),
    Plant(
        "the prepared list's directory missing",
        lambda planted: planted.remove("qls/tpl2"),
        [Finding(("prepared", 0, None), NO_LINK, NEEDED)],
    ),
    Plant(
        "the prepared list missing",
        lambda planted: (remove("prepared", 0)(planted), planted.remove("qls/tpl2")),  # type: ignore[arg-type]
        [Finding(Spot("", None), "the transaction prepared list is missing, but journals hold", NO_PREPARED_LIST)],
        NO_LIST,
    ),
    Plant(
        "a second copy with a link",
        lambda planted: second_copy(planted, linked=True),
        [Finding(("bills", 18, None), "second copy of file 19, ", "it is not read")],
    ),
    Plant(
        "a second copy without one",
        lambda planted: second_copy(planted, linked=False),
        [Finding(Spot(f"{IN_USE}/{SECOND}", None), "second file with number 19, without a link", "it is not read")],
    ),
]


@pytest.mark.parametrize("plant", LINKS, ids=str)
def test_links(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")


def test_links_that_lead_nowhere(original: Original, tmp_path: Path) -> None:
    for number, plant in enumerate(plants_of_links(original)):
        examine(original, plant, tmp_path / f"store {number}")


# ---- the pool ----

POOL: Final = "qls/p001/efp/16k"
NOT_TAKEN: Final = "no journal can take the file"


def waiting(original: Original) -> str:
    """A file that waits in the pool, below the store directory."""
    return f"{POOL}/{min(path.name for path in (original.path / POOL).glob('*.jrnl'))}"


def plants_of_pool(original: Original) -> list[Plant]:
    file = waiting(original)
    half_reset = "file header is neither reset nor that of a journal file"
    rows = [
        ("magic", 0, 1, 0, "not a file header: magic 0x", NOT_TAKEN),
        ("version", 4, 1, 4, "unsupported journal version 3", NOT_TAKEN),
        ("flags", 6, 1, 6, "file header with unknown flags", "no data loss: this part is not used"),
        ("serial", 8, 1, 8, half_reset, "no data loss: qpidd resets the file"),
        ("rid", 16, 1, 16, half_reset, "no data loss: qpidd resets the file"),
        ("sectors", 24, 1, 24, "a file header of 0 sectors", NOT_TAKEN),
        ("partition", 26, 1, 26, "states partition 0, but the file is in partition 1", NOT_TAKEN),
        ("reserved", 28, 1, 28, "reserved field", "no data loss: this part is not used"),
        ("size", 32, 4, 32, "the pool is for another size", NOT_TAKEN),
        ("seconds", 48, 1, 48, half_reset, "no data loss: qpidd resets the file"),
        ("nanoseconds", 56, 1, 56, half_reset, "no data loss: qpidd resets the file"),
        ("number", 64, 1, 64, half_reset, "no data loss: qpidd resets the file"),
        ("size of the name", 72, 1, 72, half_reset, "no data loss: qpidd resets the file"),
    ]
    return [
        *(
            Plant(name, flip(Spot(file, at), mask), [Finding(Spot(file, told), what, consequence)])
            for name, at, mask, told, what, consequence in rows
        ),
        Plant(
            "longer",
            lambda planted: planted.write(file, planted.read(file) + bytes(4096)),
            [Finding(Spot(file, 20480), "file size is 24,576 bytes, but the pool's files have 20,480", NOT_TAKEN)],
        ),
        # What a crash, or qpidd's next start, explains.
        *(
            Plant(
                f"cut to {size} bytes",
                lambda planted, size=size: planted.write(file, planted.read(file)[:size]),
                notice="as if qpidd had been stopped while creating the file; no journal can take the file",
            )
            for size in (0, 100, 8192)
        ),
        Plant(
            "not reset",
            lambda planted: planted.write(file, planted.read(planted.original.files["bills"][17])),
            notice='still has the header written for queue "c.q2"; qpidd resets it',
        ),
        Plant(
            "returned",
            lambda planted: (planted.path / file).rename(planted.path / POOL / "returned" / Path(file).name),  # type: ignore[arg-type,return-value]
            notice="was being returned to the pool; qpidd leaves it there",
        ),
        Plant(
            "taken and not yet linked",
            lambda planted: (planted.path / file).rename(planted.path / IN_USE / Path(file).name),  # type: ignore[arg-type,return-value]
            notice="taken from the pool, but no journal has a link to it; it is not read",
        ),
    ]


def test_the_pool(original: Original, tmp_path: Path) -> None:
    for plant in plants_of_pool(original):
        examine(original, plant, tmp_path / plant.name)
