"""Random damage to stores of all three formats: losses are reported, but those that tools/README.md lists.

Each damage is done to a copy of a store whose content is known. Then `qstore-check`, `qstore-dump` and `qstore-recover`
look at it, and of version 2 the broker's store is opened, with both choices of on-damage. Where anything is not as it
was, check and recover must have said so by their exit codes, the store must refuse, or log a critical line; and nobody
may let out an exception, hang, or take memory without bound.

A sample runs always, a thousand damages with `-m soak`, which prints a table. One damage again:
DAMAGE=qstore/17 pytest tests/tools/test_damage_campaign.py -k one_damage -s
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.support.damage_campaign.damage import Damaged, DamageKind, FileKind, damage
from tests.support.damage_campaign.excuses import EXCUSES
from tests.support.damage_campaign.judging import Outcome, Verdict, judge
from tests.support.damage_campaign.reading import Seen, look
from tests.support.damage_campaign.stores import FORMATS, QSTORE, CampaignStore, campaign_stores
from tests.support.dump import ROOT
from tests.support.fixtures import StoreOpener
from tests.support.profiles import day, today

pytestmark = pytest.mark.usefixtures("nothing_is_synced")

SEED: Final = 15
SAMPLE: Final = 10  # damages of each format, each day others
LOSSY: Final = {"qstore": 3, "legacystore": 10, "linearstore": 3}
"""A damage of each format that loses messages, which has to be reported: every day's sample has it."""
WHOLE: Final = 334
_CHOSEN: Final = "DAMAGE"

Results = list[tuple[Damaged, Verdict]]


class Campaign:
    """Damages by number.

    Args:
        stores: by format.
        directory: where copies are made.
    """

    def __init__(self, stores: dict[str, list[CampaignStore]], directory: Path) -> None:
        self._stores, self._directory = stores, directory
        self._before: dict[str, Seen] = {}

    def one(self, format_: str, number: int) -> tuple[Damaged, Verdict, Seen]:
        """Do one damage, and see what comes of it."""
        source = random.Random(f"{SEED} {format_} {number}")
        store = source.choice(self._stores[format_])
        before = self._undamaged(store)
        damaged = damage(store, self._directory / "damaged", source)
        try:
            after = look(damaged.path, self._directory / "scratch", is_version_2=format_ == QSTORE)
            return damaged, judge(damaged, before, after), after
        finally:
            shutil.rmtree(damaged.path)

    def _undamaged(self, store: CampaignStore) -> Seen:
        if store.name not in self._before:
            seen = look(store.path, self._directory / "scratch", is_version_2=store.format == QSTORE)
            assert (seen.code, seen.recover_code, seen.faults, seen.critical) == (0, 0, [], []), store.name
            self._before[store.name] = seen
        return self._before[store.name]


@pytest.fixture(scope="module")
def campaign(open_fixture: StoreOpener, tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    directory = tmp_path_factory.mktemp("campaign")
    return Campaign(campaign_stores(directory, open_fixture), directory)


def run(campaign: Campaign, format_: str, numbers: Sequence[int]) -> Results:
    return [campaign.one(format_, number)[:2] for number in numbers]


def check_seen(format_: str, numbers: Sequence[int], results: Results) -> None:
    """Nothing went wrong, and damage was done that had to be seen."""
    bad = [
        f"DAMAGE={format_}/{number}: {damaged.store.name}, {damaged.file_kind}: {damaged.text}\n"
        f"  {verdict.outcome}: {verdict.text}"
        for number, (damaged, verdict) in zip(numbers, results, strict=True)
        if verdict.outcome in (Outcome.UNSEEN, Outcome.FAULT)
    ]
    assert not bad, "\n".join(bad)
    assert any(verdict.outcome is Outcome.LOSS_TOLD for _, verdict in results)


@pytest.mark.parametrize("format_", today(FORMATS, 1))
def test_no_loss_is_unseen_in_a_sample(campaign: Campaign, format_: str) -> None:
    first = day() * SAMPLE % (WHOLE - SAMPLE)
    numbers = [LOSSY[format_], *range(first, first + SAMPLE)]
    check_seen(format_, numbers, run(campaign, format_, numbers))


@pytest.mark.soak
def test_no_loss_is_unseen_in_a_thousand_damages(campaign: Campaign, capsys: pytest.CaptureFixture[str]) -> None:
    results = {format_: run(campaign, format_, range(WHOLE)) for format_ in FORMATS}
    with capsys.disabled():
        print()
        for format_, of_format in results.items():
            print(table(f"{format_}: {len(of_format)} damages", of_format, lambda damaged: damaged.kind, DamageKind))
            print(table("", of_format, lambda damaged: damaged.file_kind, FileKind))
    for format_, of_format in results.items():
        check_seen(format_, range(WHOLE), of_format)


def table(title: str, results: Results, key: Callable[[Damaged], str], rows: type[DamageKind] | type[FileKind]) -> str:
    """How often each outcome was, by kind of damage or of file."""
    counts = Counter((key(damaged), verdict.outcome) for damaged, verdict in results)
    lines = [f"{title:26}" + "".join(f"{outcome:>11}" for outcome in Outcome)]
    lines += [f"  {row:24}" + "".join(f"{counts[row, outcome] or '-':>11}" for outcome in Outcome) for row in rows]
    reasons = Counter(verdict.text for _, verdict in results if verdict.outcome is Outcome.EXCUSED)
    if title:
        lines[1:1] = [f"  excused {number}: {reason}" for reason, number in reasons.items()]
    return "\n".join(lines) + "\n"


@pytest.mark.skipif(_CHOSEN not in os.environ, reason=f"{_CHOSEN} names no damage")
def test_one_damage(campaign: Campaign) -> None:
    format_, _, number = os.environ[_CHOSEN].partition("/")
    damaged, verdict, seen = campaign.one(format_, int(number))
    print(f"\n{damaged.store.name}, {damaged.file_kind}: {damaged.text}\n{verdict.outcome}: {verdict.text}")
    print(f"check {seen.code}, recover {seen.recover_code}, critical {seen.critical}")
    for line in seen.reported:
        print(f"  {line['file']} {line['offset']}: {line['what']}: {line['consequence']}")
    assert verdict.outcome not in (Outcome.UNSEEN, Outcome.FAULT)


def test_readme_names_every_excuse() -> None:
    """No damage is excused for a reason that a user cannot read."""
    readme = (ROOT / "tools" / "README.md").read_text()
    begin = readme.index("What no check can detect:")
    named = " ".join(readme[begin : readme.index("\n## ", begin)].split())
    assert [each for each in EXCUSES if each not in named] == []
