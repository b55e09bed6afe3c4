"""The example of store/USING.md runs any number of times."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.dump import dump
from tests.support.planted_damage import check
from tests.support.processes import PATIENCE_SECONDS

ROOT: Final = Path(__file__).parent.parent.parent
PLACE: Final = '"/var/lib/qstore"'


def example() -> str:
    code = re.search(r"^```python\n(.*?)^```", (ROOT / "store/USING.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert code is not None
    assert code[1].count(PLACE) == 1
    return code[1]


def test_it_runs_again_and_again_with_one_queue(tmp_path: Path) -> None:
    store = tmp_path / "store"
    code = example().replace(PLACE, repr(str(store)))
    store.mkdir()
    for run in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert len(re.findall(r"^orders \d+ b'hello'$", done.stdout, re.MULTILINE)) == run
        assert re.search(r"^\d+ is on disk$", done.stdout, re.MULTILINE)
    assert check(store).code == 0
    shown = dump(store, "--outstanding", "--json").lines()
    assert [(line["name"], line["messages"]) for line in shown if line["kind"] == "queue"] == [("orders", 3)]
