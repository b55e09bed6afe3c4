"""Garbage that stays in memory until it is collected: objects that hold each other.

A broker has that done seldom, and counts on there being next to none. The usual culprit is an error: it holds the
frames that it has passed, and one of them holds the error.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def collect_what_is_old() -> None:
    """Collect the garbage there is, and never look again at what is left: the next collection takes milliseconds."""
    gc.collect()
    gc.freeze()


@contextmanager
def no_collector() -> Iterator[None]:
    """Whatever is freed meanwhile is freed because it is unreferenced."""
    collect_what_is_old()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def no_garbage(*kinds: type) -> Iterator[None]:
    """Nothing of these kinds becomes garbage meanwhile, but goes when it is not used any more."""
    with no_collector():
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            yield
            gc.collect()
            left = [type(each).__qualname__ for each in gc.garbage if isinstance(each, kinds)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    assert not left, left
