"""How much a run tests: hypothesis's profiles, and the part of all cases whose turn it is.

A run has one of three profiles, by `--hypothesis-profile NAME` or `HYPOTHESIS_PROFILE=NAME`:

    quick     the usual one, and that of a commit's CI: a fifth of the examples, the same ones each time, and of long
              lists of cases the part whose turn it is on one fixed day
    default   the examples that each test asks for, at random, and four times as many of the cases
    nightly   ten times the examples, at random, and all cases, with the seeds of today

A test that hypothesis feeds says with `examples` how many examples it is worth, if not 100. A test that goes through
many cases (calls at which a process is killed, seeds of histories) takes `today`, `today_of_each`, `is_due` or
`seeds_of_the_day`: each day has other cases, and after some days all have been run. `--seed-day N`, or
`QSTORE_SEED_DAY=N`, chooses a day, and `today` is today's; a failure tells the day. What has to find a planted bug does
not depend on it.
"""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, settings

T = TypeVar("T")

DAY: Final = "QSTORE_SEED_DAY"
TODAY: Final = "today"
FIXED_DAY: Final = 739_947
"""The day of runs that do not choose one, so that a commit's tests are the same each time."""
PROFILE: Final = "HYPOTHESIS_PROFILE"
_HUNDRED: Final = 100  # examples of a test that does not say how many, in the profile "default"
_FEWEST: Final = 10


class Amount(NamedTuple):
    """What a profile takes.

    Attributes:
        examples: of a test that does not say how many.
        cases: times as many as in "quick"; None: all of them.
    """

    examples: int
    cases: int | None


PROFILES: Final = {"quick": Amount(20, 1), "default": Amount(_HUNDRED, 4), "nightly": Amount(1000, None)}


def register() -> None:
    """Tell hypothesis the profiles, and load the one that the environment names."""
    for name, amount in PROFILES.items():
        # How long an example takes says nothing on a busy machine: a test that hangs is ended by CI.
        settings.register_profile(
            name,
            max_examples=amount.examples,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            print_blob=True,
            derandomize=name == "quick",
        )
    settings.load_profile(os.environ.get(PROFILE, "quick"))


def multiply(times: int) -> None:
    """Load a profile like the one that is loaded, with `times` as many examples, and none from earlier runs."""
    name = f"{settings.get_current_profile_name()}-with-examples-times-{times}"
    settings.register_profile(
        name, max_examples=settings.default.max_examples * times, database=None, derandomize=False
    )
    settings.load_profile(name)


def examples(count: int, *, suppress: Sequence[HealthCheck] = (), **more: Any) -> settings:
    """Settings for a test that is worth `count` examples: so many in "default", the profile's share in others."""
    given = settings.default
    return settings(
        max_examples=max(_FEWEST, count * given.max_examples // _HUNDRED),
        suppress_health_check=[*given.suppress_health_check, *suppress],
        **more,
    )


def times() -> int | None:
    """How many times as many cases as in "quick" the profile has; None: all of them."""
    name = settings.get_current_profile_name().partition("-with-")[0]  # as hypothesis's own options name theirs
    return PROFILES[name].cases


def is_nightly() -> bool:
    """Whether all cases are run."""
    return times() is None


def day() -> int:
    """The day whose turn it is: since 1 January of the year 1, or the one that was asked for."""
    return int(os.environ[DAY])


def choose_day(asked_for: str | None) -> None:
    """For this process, and for those that it starts."""
    chosen = asked_for or os.environ.get(DAY) or (TODAY if is_nightly() else str(FIXED_DAY))
    os.environ[DAY] = str(datetime.datetime.now(datetime.UTC).toordinal()) if chosen == TODAY else str(int(chosen))


def today(cases: Sequence[T], count: int) -> list[T]:
    """Some `count` of the cases, in order ("quick"; more or all in others): each has its turn within some days."""
    step = _days(-(-len(cases) // count))
    shuffled = random.Random(len(cases)).sample(range(len(cases)), len(cases))
    return [cases[number] for number in sorted(shuffled[day() % step :: step])]


def today_of_each(cases: Sequence[T], kind: Callable[[T], object], days: int) -> list[T]:
    """Of each kind of cases one in so many, in order, and one at least: each case has its turn within so many days."""
    kinds: dict[object, list[int]] = {}
    for number, case in enumerate(cases):
        kinds.setdefault(kind(case), []).append(number)
    chosen = [number for of_kind in kinds.values() for number in today(of_kind, -(-len(of_kind) // days))]
    return [cases[number] for number in sorted(chosen)]


def is_due(days: int) -> Callable[[], bool]:
    """Asked once for each of many cases: whether it is its turn, which comes every so many days ("quick")."""
    step, rng = _days(days), random.Random(days)
    turn = day() % step
    return lambda: rng.randrange(step) == turn


def _days(quick: int) -> int:
    """Within how many days all have their turn."""
    more = times()
    return 1 if more is None else -(-quick // more)


def only_on_its_day(number: int, days: int) -> pytest.MarkDecorator:
    """Marks a long test that runs on one of so many days, and on the fixed one ("nightly": each time).

    Args:
        number: which of the days: tests with different numbers run on different days.
        days: how many there are.
    """
    is_due = is_nightly() or day() == FIXED_DAY or day() % days == number
    return pytest.mark.skipif(not is_due, reason=f"runs on one of {days} days: --hypothesis-profile nightly has all")


def seeds_of_the_day(count: int) -> range:
    """`count` seeds that no other day has ("quick"; more in others)."""
    more = times()
    first = day() * 10_000
    return range(first, first + count * (10 if more is None else more))
