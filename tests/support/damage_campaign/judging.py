"""Whether a damage was seen: the content of the store before, and what the tools and the store make of it afterwards.

harmless   the content is the same, and nothing is said
told       the content is the same, and damage is reported
loss told  it is not the same, and everybody who looked said so
refused    nothing could be made of the store, and everybody who looked said so
excused    it is not the same, and a tool did not see it; none can, and tools/README.md says why (`excuses`)
UNSEEN     it is not the same, and a tool did not see it
FAULT      a traceback, a hang, too much memory, or an error that does not say where and why
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import NamedTuple

from tests.support.damage_campaign.damage import Damaged
from tests.support.damage_campaign.excuses import excuse
from tests.support.damage_campaign.reading import Seen


class Outcome(StrEnum):
    """What came of one damage."""

    HARMLESS = "harmless"
    TOLD = "told"
    LOSS_TOLD = "loss told"
    REFUSED = "refused"
    EXCUSED = "excused"
    UNSEEN = "UNSEEN"
    FAULT = "FAULT"


class Verdict(NamedTuple):
    """What came of one damage, with the excuse, or with what went wrong."""

    outcome: Outcome
    text: str = ""


def judge(damaged: Damaged, before: Seen, after: Seen) -> Verdict:
    """What came of a damage; `before` is of the undamaged store."""
    if after.faults:
        return Verdict(Outcome.FAULT, "; ".join(after.faults))
    unseen = list(_unseen(before, after))
    if unseen:
        reason = excuse(damaged)
        return Verdict(Outcome.UNSEEN, "; ".join(unseen)) if reason is None else Verdict(Outcome.EXCUSED, reason)
    if after.code == after.recover_code == 2:
        return Verdict(Outcome.REFUSED)
    if _differs(before, after):
        return Verdict(Outcome.LOSS_TOLD)
    return Verdict(Outcome.TOLD if after.code else Outcome.HARMLESS)


def _differs(before: Seen, after: Seen) -> bool:
    return before.content != after.content or before.recovered != after.recovered


def _unseen(before: Seen, after: Seen) -> list[str]:
    """Who did not see that the content is not what it was."""
    found = []
    if _differs(before, after):
        lost = differences(before, after)
        if after.code == 0:
            found.append(f"qstore-check sees no damage: {lost}")
        if after.recover_code == 0:
            found.append(f"qstore-recover says that nothing was lost: {lost}")
    if after.refusing is not None and after.refusing != before.refusing:
        found.append(f"on-damage refuse: opened: {_first(before.refusing or [], after.refusing)}")
    if after.lenient is not None and after.lenient != before.lenient and not after.critical:
        found.append(f"on-damage quarantine: nothing critical: {_first(before.lenient or [], after.lenient)}")
    return found


def differences(before: Seen, after: Seen) -> str:
    """The first things that are not as they were."""
    if before.content != after.content:
        return _first(before.content or [], after.content or [])
    old, new = before.recovered or {}, after.recovered or {}
    return "in DEST " + _first(
        [line for each in old.values() for line in each], [line for each in new.values() for line in each]
    )


def _first(before: list[str], after: list[str]) -> str:
    gone, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
    if not gone and not new:
        return "another order"
    shown = [f"-{each[:160]}" for each in list(gone)[:2]] + [f"+{each[:160]}" for each in list(new)[:2]]
    return f"{gone.total()} gone, {new.total()} new: {' '.join(shown)}"
