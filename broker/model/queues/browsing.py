"""Consumers that look at a queue's messages and take none: each has a cursor of its own, and sees every message once.

What somebody has acquired, or has expired, when the cursor comes to it is not shown; what comes back behind the cursor
is not shown again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.model.queues.consumer import NOT_FOR_ME, REFUSED, TAKEN, Consumer
from broker.model.queues.entry import AVAILABLE, END, GONE, Entry


def show(browser: Consumer, limit: int, clock: Callable[[], float]) -> None:
    """Show a browser what it has not seen and what stands before the position `limit`, for as long as it has credit."""
    while browser.is_waiting:
        entry = browser.cursor
        if entry.state == END or entry.position >= limit:
            return
        if entry.state == AVAILABLE and not (0 < entry.message.expires_at <= clock()):
            result = browser.deliver(entry)
            if result == REFUSED:
                browser.is_waiting = False
                return
            if result not in (TAKEN, NOT_FOR_ME):
                browser.is_waiting = False
        browser.cursor = entry.next if entry.state != GONE else browser.cursor


def step_off(browsers: Iterable[Consumer], entry: Entry, following: Entry) -> None:
    """An entry is gone: the browsers that had come to it go on with the one that followed it."""
    for browser in browsers:
        if browser.cursor is entry:
            browser.cursor = following
