"""The firewall's file and decisions, and the lookup of names."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.network import host_names
from qstore.broker.network.host_names import HostNames, resolve_name
from qstore.broker.security.firewall import FirewallError, Rule, read, read_file

SEEDS = """
# the example of the Java broker's manual, with both ways to write the pattern
default deny
allow host *.qpid.apache.org
allow host .*\\.Example\\.com, build[0-9]+
allow network 192.168.1.0/24, 10.0.0.0/8, 2001:db8::/32
vhost prod deny network 192.168.1.0/24
vhost open allow network 0.0.0.0/0
vhost shut default deny
vhost shut allow network 10.1.1.1
"""


@pytest.mark.parametrize(
    ("host", "name", "vhost", "admits"),
    [
        ("192.168.1.7", "", "/", True),
        ("192.168.2.7", "", "/", False),
        ("::ffff:192.168.1.7", "", "/", True),
        ("2001:db8:1::1", "", "/", True),
        ("2001:db9::1", "", "/", False),
        ("192.168.1.7", "", "prod", False),
        ("10.1.2.3", "", "prod", True),
        ("1.2.3.4", "WWW.qpid.apache.org", "prod", True),
        ("1.2.3.4", "qpid.apache.org", "/", False),
        ("1.2.3.4", "wwwXqpid.apache.org", "/", False),
        ("1.2.3.4", "www.qpid.apache.org.evil.example", "/", False),
        ("1.2.3.4", "a.example.COM", "/", True),
        ("1.2.3.4", "build12", "/", True),
        ("1.2.3.4", "build", "/", False),
        ("1.2.3.4", "", "open", True),
        ("1.2.3.4", "", "shut", False),
        ("10.2.2.2", "", "shut", False),
        ("10.1.1.1", "", "shut", True),
        ("", "", "/", False),
    ],
)
def test_decisions(host: str, name: str, vhost: str, admits: bool) -> None:
    assert read(SEEDS).admits(host, name, vhost) is admits


def test_a_client_is_kept_out_at_once_only_if_no_virtual_host_would_have_it() -> None:
    found = read("default deny\nallow network 10.0.0.0/8\nvhost blue allow network 192.0.2.1")
    assert [found.admits_somewhere(each, "") for each in ("10.1.1.1", "192.0.2.1", "192.0.2.2")] == [True, True, False]
    assert read("").admits_somewhere("192.0.2.1", "")


def test_rules_with_names_fail_closed() -> None:
    denies = read("deny host .*\\.evil\\.example")
    assert denies.admits("192.0.2.1", "good.example", "/")
    assert not denies.admits("192.0.2.1", "www.evil.example", "/")
    assert not denies.admits("192.0.2.1", "", "/")
    allows = read("allow host good\\.example\ndefault deny")
    assert allows.admits("192.0.2.1", "good.example", "/")
    assert not allows.admits("192.0.2.1", "", "/")


def test_names_are_needed_only_where_they_may_decide() -> None:
    found = read("allow network 10.0.0.0/8\nallow host x\ndefault deny")
    assert not found.needs_name("10.1.1.1")
    assert found.needs_name("192.0.2.1")
    assert read("vhost a deny host x").needs_name("192.0.2.1")
    assert not read("deny network 10.0.0.0/8").needs_name("192.0.2.1")
    closed = read("vhost a default deny\nallow network 192.0.2.1\nallow host x")
    assert not closed.needs_name("192.0.2.1")


def test_ipv4_networks_may_be_written_as_ipv6_ones() -> None:
    found = read("deny network ::ffff:10.0.0.0/104, ::ffff:192.0.2.1, 2001:db8::/32")
    denied = ("10.1.2.3", "::ffff:10.1.2.3", "192.0.2.1", "2001:db8::1%eth0")
    assert [found.admits(each, "", "/") for each in denied] == [False] * 4
    assert [found.admits(each, "", "/") for each in ("11.1.2.3", "192.0.2.2", "::1")] == [True] * 3
    assert not read("deny network ::ffff:0:0/96").admits("192.0.2.2", "", "/")


def test_a_repetition_in_a_pattern_is_not_two_patterns() -> None:
    found = read("deny host build[0-9]{1,2}\\.example, x{2,}, y{,3}z")
    assert [found.admits("192.0.2.1", each, "/") for each in ("build12.example", "xxx", "yyz")] == [False] * 3
    assert [found.admits("192.0.2.1", each, "/") for each in ("build123.example", "x", "2}")] == [True] * 3


def test_a_connection_costs_no_more_than_the_rules_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = read("\n".join([*(f"vhost v{each} deny network 10.0.0.0/8" for each in range(500)), "default deny",
                             *["allow network 10.0.0.0/8"] * 499]))  # fmt: skip
    tried: list[Rule] = []
    matches = Rule.matches

    def counted(rule: Rule, address: Any, name: str) -> bool:
        tried.append(rule)
        return matches(rule, address, name)

    monkeypatch.setattr(Rule, "matches", counted)
    assert not closed.needs_name("192.0.2.1")
    assert not closed.admits_somewhere("192.0.2.1", "")
    assert len(tried) <= 3 * 999


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("default deny\nopen", "line 2: 'open' is not allow or deny"),
        ("default", "line 1: '' is not allow or deny"),
        ("default deny\ndefault allow", "line 2: a second default"),
        ("default deny all", "line 1: 'all' is too much"),
        ("allow network 10.0.0.1/8", "line 1: '10.0.0.1/8' is not a network, such as 192.168.1.0/24"),
        ("allow network example.com", "is not a network"),
        ("allow network 10.0.0.0/8 11.0.0.0/8", "line 1: '11.0.0.0/8' is too much"),
        ("allow network", 'not "network" or "host"'),
        ("allow host a,,b", 'not "network" or "host"'),
        ("allow user a", 'not "network" or "host"'),
        ("allow host (", "not a regular expression"),
        ("allow host (a+)+b", "could take too long to match"),
        ("vhost", "'vhost' is not allow or deny"),
        ("deny network 1.1.1.1\n" * 1001, "line 1001: more than 1,000 rules"),
        ("deny network " + ",".join(["1.1.1.1"] * 1001), "line 1: not"),
    ],
)
def test_errors(text: str, reason: str) -> None:
    with pytest.raises(FirewallError) as caught:
        read(text)
    assert reason in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b"#" * (1 << 20) + b"#")
    for name, reason in (
        ("none", "No such file"), ("fifo", "not a file"), ("bytes", "not UTF-8"), ("large", "larger than 1,048,576"),
        ("a\0b", "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(FirewallError, match=reason):
            read_file(str(tmp_path / name))


# ---- names ----


def answers(records: dict[str, str], addresses: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the resolver know only this."""

    def reverse(address: str) -> tuple[str, list[str], list[str]]:
        if address not in records:
            raise socket.herror(1, "Unknown host")
        return records[address], [], [address]

    def forward(name: str, *_: Any, **__: Any) -> list[Any]:
        if name not in addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (each, 0)) for each in addresses[name]]

    monkeypatch.setattr(socket, "gethostbyaddr", reverse)
    monkeypatch.setattr(socket, "getaddrinfo", forward)


def test_a_name_counts_if_it_resolves_to_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    records = {"192.0.2.1": "a.example.", "192.0.2.2": "a.example", "192.0.2.3": "b.example", "192.0.2.4": "x" * 254}
    records["192.0.2.5"] = "192.0.2.5"
    known = {"a.example": ["192.0.2.1", "2001:db8::1"], "x" * 254: ["192.0.2.4"], "192.0.2.5": ["192.0.2.5"]}
    answers(records, known, monkeypatch)
    assert resolve_name("192.0.2.1") == resolve_name("::ffff:192.0.2.1".rpartition(":")[2]) == "a.example"
    assert [resolve_name(f"192.0.2.{each}") for each in range(2, 7)] == [""] * 5


async def test_lookups_do_not_block_the_event_loop_and_are_remembered() -> None:
    asked: list[str] = []
    release = threading.Event()

    def resolve(address: str) -> str:
        asked.append(address)
        release.wait(60)
        return f"{address}.example"

    names = HostNames(asyncio.get_running_loop(), resolve)
    found: list[str] = []
    for _ in range(3):
        names.look_up("192.0.2.1", found.append)
    await asyncio.sleep(0.01)  # the event loop turns while the resolver does not answer
    assert found == []
    release.set()
    while len(found) < 3:
        await asyncio.sleep(0.001)
    names.look_up("192.0.2.1", found.append)
    assert len(found) == 3  # never at once
    await asyncio.sleep(0)
    assert found == ["192.0.2.1.example"] * 4
    assert asked == ["192.0.2.1"]


async def test_a_resolver_that_does_not_answer_means_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_names, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(host_names, "MAX_WAITING", 6)
    release = threading.Event()
    names = HostNames(asyncio.get_running_loop(), lambda address: "late" if release.wait(60) else address)
    found: list[str] = []
    for each in range(9):
        names.look_up(f"192.0.2.{each}", found.append)
    while len(found) < 9:
        await asyncio.sleep(0.001)
    assert found == [""] * 9
    names.look_up("192.0.2.0", found.append)  # no second lookup while the first one goes on
    await asyncio.sleep(0)
    assert found == [""] * 10
    release.set()
    while found[-1] != "late":
        names.look_up("192.0.2.5", found.append)
        await asyncio.sleep(0.001)


async def test_a_defect_of_a_lookup_means_no_name_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_names, "MAX_REMEMBERED", 3)
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)
    asked: list[str] = []

    def resolve(address: str) -> str:
        asked.append(address)
        if address == "192.0.2.0":
            raise MemoryError
        return "name"

    names = HostNames(asyncio.get_running_loop(), resolve)
    found: list[str] = []
    for each in (0, 1, 2, 3, 3, 0):
        count = len(found)
        names.look_up(f"192.0.2.{each}", found.append)
        while len(found) == count:
            await asyncio.sleep(0.001)
    assert found == ["", "name", "name", "name", "name", ""]
    assert asked == [f"192.0.2.{each}" for each in (0, 1, 2, 3, 0)]


async def test_without_threads_there_is_no_name_until_there_are_some_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    names = HostNames(asyncio.get_running_loop(), lambda _address: "name")
    found: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for each in range(2 * host_names.THREADS):
            names.look_up(f"192.0.2.{each}", found.append)
            assert len(found) == each  # never at once
            await asyncio.sleep(0)
    assert found == [""] * 2 * host_names.THREADS
    names.look_up("192.0.2.99", found.append)
    while found[-1] == "":
        await asyncio.sleep(0.001)
    assert found[-1] == "name"
