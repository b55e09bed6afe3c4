"""`qpidd`: the console script; `command` does the work.

Python would collect garbage again and again while the modules are imported, which takes a tenth of the time of a start.
So the collector is off before the first of them; the server enables it when everything is recovered.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """The console script."""
    gc.disable()
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed by the parent process: no other file of the broker must get this descriptor
            os.open(os.devnull, os.O_RDWR)
    from qstore.broker.process.command import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
