"""Looks for the seeds that find planted bugs soonest: `python -m tests.faults.find_seeds [NAME …]`.

A change of the code, or of a workload, changes what a seed does. The tests then find the bugs by others, later: run
this, and write what it prints into the tests' tables of seeds.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

from tests.faults import test_branch_crashes, test_broker_crashes, test_journal_crashes, test_store_crashes
from tests.faults.broker_process import tiny_portions
from tests.faults.simulator import Planted
from tests.faults.store_simulation import tiny_rid_blocks

SOON: Final = 1.0  # seconds of processor time
PATIENCE: Final = 20.0  # likewise, for one bug, if a seed was found
TABLES: Final = {
    "WRITERS": test_journal_crashes.WRITERS,
    "GROWTH": test_journal_crashes.GROWTH,
    "RUNS": test_journal_crashes.RUNS,
    "stores: PLANTED": test_store_crashes.PLANTED,
    "PLANTED_LARGE": test_store_crashes.PLANTED_LARGE,
    "brokers: PLANTED": test_broker_crashes.PLANTED,
    "PLANTED_PAGING": test_broker_crashes.PLANTED_PAGING,
    "PLANTED_BASIC": test_broker_crashes.PLANTED_BASIC,
    "PLANTED_LINKS_RUNS": test_broker_crashes.PLANTED_LINKS_RUNS,
    "PLANTED_RUNS": test_broker_crashes.PLANTED_RUNS,
    "PLANTED_RUNS_READ": test_broker_crashes.PLANTED_RUNS_READ,
    "PLANTED_SORTING": test_broker_crashes.PLANTED_SORTING,
    "branches: PLANTED": test_branch_crashes.PLANTED,
}


def soonest(planted: Planted, name: str) -> tuple[float, int] | None:
    """The seconds that a seed takes to find a bug, and the seed; the first one that is soon, or else the best."""
    best: tuple[float, int] | None = None
    end = time.process_time() + PATIENCE
    for seed in dict.fromkeys((planted.finds.get(name, planted.seeds[0]), *planted.seeds)):
        began = time.process_time()
        if planted.is_found(name, [seed]):
            took = time.process_time() - began
            if best is None or took < best[0]:
                best = took, seed
            if took < SOON:
                break
        if best is not None and time.process_time() > end:
            break
    return best


def main() -> None:
    logging.disable(logging.CRITICAL)
    wanted = sys.argv[1:]
    with tiny_rid_blocks(), tiny_portions():
        for table, planted in TABLES.items():
            print(table)
            for name in planted.bugs:
                if not wanted or name in wanted:
                    best = soonest(planted, name)
                    shown = "NOT FOUND" if best is None else f"{best[1]},  # {best[0]:.1f} s"
                    if best is None or best[1] != planted.seeds[0]:
                        print(f'    "{name}": {shown}', flush=True)


if __name__ == "__main__":
    main()
