"""The README's quick start, pasted into a shell as a newcomer does."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import ROOT

_HEADING = "## Quick start"
_BLOCK = re.compile(r"```(sh|text)\n(.*?)```", re.DOTALL)
_ENVIRONMENT = "python3 -m venv .venv && . .venv/bin/activate && QSTORE_PURE=1 pip install .\n"
_DATA = "/tmp/qstore"  # where the README puts data; the log lies beside it


def quick_start() -> list[tuple[str, str]]:
    """The blocks of the section: their language and text."""
    text = (ROOT / "README.md").read_text()
    assert text.count(_HEADING) == 1
    section = text.partition(_HEADING)[2].partition("\n## ")[0]
    return _BLOCK.findall(section)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_the_quick_start(tmp_path: Path) -> None:
    blocks = quick_start()
    script = "".join(text for language, text in blocks if language == "sh")
    wanted = "".join(text for language, text in blocks if language == "text")
    # The environment is the one that runs the tests; data and port are this test's own.
    assert script.startswith(_ENVIRONMENT)
    assert script.count(_DATA) >= 4
    port = free_port()
    script = script.removeprefix(_ENVIRONMENT).replace(_DATA, str(tmp_path / "qstore"))
    script, count = re.subn(r"^(qpid-send|qpid-receive) ", rf"\1 -b 127.0.0.1:{port} ", script, flags=re.MULTILINE)
    assert count == 2
    variables = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "QPID_PORT": str(port),
        "QPID_PID_DIR": str(tmp_path),
    }
    lock = tmp_path / "qstore" / "lock"
    try:
        ran = subprocess.run(
            ["sh", "-ex", "-c", script],
            cwd=tmp_path,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_SECONDS,
        )
        assert ran.returncode == 0, ran.stderr
        said = [line for line in ran.stderr.splitlines() if not line.startswith("+ ")]
        assert (ran.stdout, said) == ("", wanted.splitlines())
        quit_again = subprocess.run(
            ["qpidd", "--data-dir", str(lock.parent), "--quit"], env=variables, capture_output=True, text=True
        )
        assert quit_again.returncode == 1
        assert "no broker is running" in quit_again.stderr
    finally:
        subprocess.run(["qpidd", "--data-dir", str(lock.parent), "--quit"], env=variables, capture_output=True)


def test_no_block_needs_another_environment() -> None:
    """One block makes and activates the environment; none after it reaches into the directory."""
    text = (ROOT / "README.md").read_text()
    assert text.count(".venv/bin/") == 1, [line for line in text.splitlines() if ".venv/bin/" in line]
    first = text.index(_ENVIRONMENT)
    assert text.index(".venv/bin/") > first


@pytest.mark.parametrize("name", ["LICENSE", "CHANGELOG.md"])
def test_top_level_files_are_shipped(name: str) -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert (ROOT / name).read_text().strip()
    assert name in project["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    assert f"]({name})" in (ROOT / "README.md").read_text()
