"""Rules for every command: options, paths, pipes and Ctrl-C; a name is found in pyproject's table."""

from __future__ import annotations

import importlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Final

import click
import pytest

from tests.support import forked
from tests.support.fixtures import unpack
from tests.support.forked import Forked
from tests.support.processes import PATIENCE_SECONDS, send_when_it_waits
from tests.support.running_broker import ROOT

SCRIPTS: Final[dict[str, str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]

#: Those that stand for commands of Apache's keep their exit codes: qpidd's for all that goes wrong is 1.
UNUSABLE: Final = {name: 1 if name == "qpidd" else 2 for name in SCRIPTS}
#: The arguments with which each takes a path; PATH stands for it. Those that take none are not here.
PATHS: Final = {
    "qpid-cluster-store": ["PATH"],
    "qstore-identity": ["PATH"],
    "qpid-qls-analyze": ["PATH"],
    "qpid-store-chk": ["PATH"],
    "qpid-store-resize": ["PATH"],
    "qpidd": ["--config", "PATH"],
    "qstore-acl": ["check", "PATH"],
    "qstore-analyze": ["PATH", "--out", "OUT"],
    "qstore-backup": ["PATH", "OUT"],
    "qstore-check": ["PATH"],
    "qstore-dump": ["PATH"],
    "qstore-export": ["PATH", "OUT.jsonl"],
    "qstore-generate": ["PATH"],
    "qstore-import": ["PATH", "OUT"],
    "qstore-passwd": ["--stdin", "PATH", "user"],
    "qstore-quarantine": ["list", "PATH"],
    "qstore-recover": ["PATH", "OUT"],
    "qstore-replay": ["PATH", "OUT", "--queue", "q", "--all"],
    "qstore-resize": ["PATH", "--auto"],
    "qstore-restore": ["PATH", "OUT"],
    "qstore-shell": ["PATH", "-c", "list all"],
    "qstore-size": ["--from", "PATH"],
}
WITHOUT_PATHS: Final = {
    "qpid-send", "qpid-receive", "qpid-config", "qpid-stat", "qpid-queue-stats", "qpid-tool", "qpid-printevents",
    "qpid-route", "spout", "drain", "qstore-console", "qstore-ctl", "qstore-perf",
    "qpid-ctrl", "qpid-events", "qpid-stats", "qpid-perftest", "qpid-latency-test",
    "qpid-txtest", "qpid-topic-listener", "qpid-topic-publisher", "lvqtest",
}  # fmt: skip
#: Other names of commands, whose help has their first names.
ALIASES: Final = {"qstore-identity", "qpid-events", "qpid-stats"}
#: Those that stand for Apache's print their usage in front of the line that tells what is wrong.
WITH_USAGE: Final = {"qpid-qls-analyze", "qpid-store-chk", "qpid-store-resize"}


def command(name: str) -> list[str]:
    """The command as its installed script runs it."""
    module, _, function = SCRIPTS[name].partition(":")
    code = f"import sys; sys.argv[0] = {name!r}; from {module} import {function}; sys.exit({function}())"
    return [sys.executable, "-c", code]


def run(name: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return forked.run(
        [*command(name), *arguments], given=stdin, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


def with_path(name: str, path: str, tmp_path: Path) -> list[str]:
    places = {"PATH": path, "OUT": str(tmp_path / "out")}
    return [places.get(word, word) for word in PATHS[name]]


def test_every_command_is_in_the_tables() -> None:
    assert set(SCRIPTS) - set(PATHS) == WITHOUT_PATHS


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_has_examples(name: str) -> None:
    shown = run(name, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    _, heading, examples = shown.stdout.partition("Examples:\n")
    assert heading
    assert re.search(rf"^ *{name} ", examples, re.MULTILINE) or name in ALIASES
    assert "xit code" in shown.stdout


def commands_of(name: str) -> dict[str, click.Command]:
    """The command and its subcommands, by what is typed; none for those that are not of click."""
    made = getattr(importlib.import_module(SCRIPTS[name].partition(":")[0]), "command", None)
    if not isinstance(made, click.Command):
        return {}
    return {name: made} | {f"{name} {each}": sub for each, sub in getattr(made, "commands", {}).items()}


SUBCOMMANDS: Final = [each.split() for name in SCRIPTS for each in commands_of(name) if " " in each]


@pytest.mark.parametrize("words", SUBCOMMANDS, ids=" ".join)
def test_help_of_a_subcommand_has_examples(words: list[str]) -> None:
    shown = run(*words, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert re.search(rf"Examples:\n +{' '.join(words)}", shown.stdout)


#: Options that mean different things in different commands; every other one has the same help wherever it is.
AMBIGUOUS: Final = {
    "--ack", "--backup", "--capacity", "--count", "--durable", "--exchange", "--exchanges", "--file",
    "--force", "--format", "--headers", "--id", "--if-empty", "--if-unused", "--in-doubt", "--limit",
    "--list", "--map", "--mechanism", "--messages", "--mode", "--outstanding", "--prefetch", "--priority",
    "--queue", "--queues", "--quiet", "--rate", "--realm", "--sequence", "--since", "--size", "--store",
    "--strict", "--timeout", "--topology", "--transactional", "--transactions", "--tx", "--until",
    "--verbose", "--verify", "--vhost",
}  # fmt: skip


def test_the_same_option_has_the_same_help_everywhere() -> None:
    texts = defaultdict[str, set[str]](set)
    for name in SCRIPTS:
        for made in commands_of(name).values():
            for option in (each for each in made.params if isinstance(each, click.Option)):
                for flag in option.opts:
                    texts[flag].add((option.help or "").partition("  [default")[0])
    assert {flag for flag, found in texts.items() if len(found) > 1 and flag.startswith("--")} == AMBIGUOUS


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_unknown_option(name: str) -> None:
    ended = run(name, "--no-such-option", *(["."] if name == "qpid-qls-analyze" else []))
    assert ended.returncode == UNUSABLE[name]
    *before, line = ended.stderr.splitlines()
    assert "no-such-option" in line
    assert not before or name in WITH_USAGE
    if name in PATHS.keys() - WITH_USAGE - {"qpidd", "qstore-identity"}:
        assert line.startswith(f"{name}: no such option '--no-such-option'")
        assert re.search(rf"[;?] [Ss]ee {name} --help$", line)
    assert ended.stdout == ""


@pytest.mark.parametrize("name", PATHS)
def test_a_missing_path(name: str, tmp_path: Path) -> None:
    path = f"{tmp_path}/none/such"
    ended = run(name, *with_path(name, path, tmp_path), stdin="secret\n")
    assert ended.returncode == UNUSABLE[name], ended
    *before, line = ended.stderr.splitlines()
    assert f"{tmp_path}/none" in line
    assert not before or name in WITH_USAGE
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_is_empty(name: str, tmp_path: Path) -> None:
    ended = run(name, *with_path(name, "", tmp_path), stdin="secret\n")
    assert ended.returncode == UNUSABLE[name], ended
    assert "Traceback" not in ended.stderr
    assert re.search(r'empty|""', ended.stderr.splitlines()[-1])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_reader_that_goes_away(name: str) -> None:
    script = Forked([*command(name), "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert script.stdout is not None
    assert script.stderr is not None
    script.stdout.close()
    assert script.stderr.read() == b""
    script.stderr.close()
    assert script.wait(PATIENCE_SECONDS) in (0, -signal.SIGPIPE)


@pytest.mark.parametrize("arguments", [["qstore-dump"], ["qstore-check"], ["qstore-check", "--json"]])
def test_a_report_whose_reader_goes_away(arguments: list[str], tmp_path: Path) -> None:
    store = unpack("legacy-d-dtx", tmp_path).path
    script = Forked(
        [*command(arguments[0]), *arguments[1:], str(store)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert script.stdout is not None
    assert script.stderr is not None
    script.stdout.close()
    assert b"Traceback" not in script.stderr.read()
    script.stderr.close()
    assert script.wait(PATIENCE_SECONDS) == -signal.SIGPIPE


# ---- Ctrl-C ----


def test_ctrl_c_at_a_prompt(tmp_path: Path) -> None:
    main, worker = pty.openpty()
    script = Forked(
        [*command("qstore-passwd"), str(tmp_path / "users"), "user"],
        stdin=worker, stdout=worker, stderr=worker, start_new_session=True,
    )  # fmt: skip
    os.close(worker)
    shown = b""
    end = time.monotonic() + PATIENCE_SECONDS
    while b"Password: " not in shown:
        assert select.select([main], [], [], max(0.0, end - time.monotonic()))[0], shown
        shown += os.read(main, 4096)
    send_when_it_waits(script, signal.SIGINT)
    assert script.wait(PATIENCE_SECONDS) == 128 + signal.SIGINT
    os.close(main)
    assert not (tmp_path / "users").exists()


_INTERRUPTED: Final = """
import os, signal, sys
import click
import {module} as module

def interrupted(*arguments, **options):
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()

for each in (module.command, *getattr(module.command, "commands", {{}}).values()):
    each.callback = interrupted
    each.params = []
sys.argv = [{name!r}, *{arguments!r}]
module.{function}()
"""


@pytest.mark.parametrize("name", [name for name in PATHS if name not in WITH_USAGE and name != "qpidd"])
def test_ctrl_c_at_work(name: str) -> None:
    module, _, function = SCRIPTS[name].partition(":")
    arguments = PATHS[name][:1] if name in ("qstore-acl", "qstore-quarantine") else []
    code = _INTERRUPTED.format(module=module, function=function, name=name, arguments=arguments)
    ended = forked.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ended.returncode == 128 + signal.SIGINT
    assert ended.stderr.strip().splitlines() == [f"{name}: interrupted"]


def test_a_password_that_cannot_be_asked_for(tmp_path: Path) -> None:
    ended = run("qstore-passwd", str(tmp_path / "users"), "user")
    assert ended.returncode == 2
    assert ended.stderr == (
        "qstore-passwd: no terminal to ask for the password; pass it on standard input with --stdin\n"
    )
