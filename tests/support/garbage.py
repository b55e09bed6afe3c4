"""What is gone but stays in memory until somebody collects it: objects that hold each other.

A broker has that done seldom, and counts on there being next to none. The usual culprit is an error: it holds the
frames that it has passed, and one of them holds the error.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage(*kinds: type) -> Iterator[None]:
    """Nothing of these kinds becomes garbage meanwhile, but goes when it is not used any more."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        gc.collect()
        left = [type(each).__qualname__ for each in gc.garbage if isinstance(each, kinds)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left, left
