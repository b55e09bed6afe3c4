"""`qpid-tool`: its commands, from the command line, from a pipe, and on a terminal."""

from __future__ import annotations

import json
import re
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner

from qstore.broker.client import MessagingError
from qstore.broker.management.console import Argument, Console, Data, Method, NoObjectError, ObjectId
from qstore.tools import qpid_tool
from qstore.tools.qpid_tool import Identities, WordError, condition, is_number, method_arguments
from tests.support.forked import Forked
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import RunningBroker
from tests.support.terminal import Terminal
from tests.tools.management_runs import Runs, broker, url  # noqa: F401 (fixtures)
from tests.tools.test_commands import command


@pytest.fixture
def tool(url: str) -> Runs:  # noqa: F811
    return Runs(qpid_tool.command, url)


@pytest.fixture
def queue(tool: Runs, request: pytest.FixtureRequest) -> str:
    name = request.node.name
    tool.text("-e", f"call broker create queue {name} '{{x-a: 1}}'")
    return name


def test_one_shot_calls(tool: Runs) -> None:
    assert tool.lines("-e", "call broker echo 7 'hello world'") == [
        "OK: echo",
        "    sequence = 7",
        "    body = hello world",
    ]
    assert tool.json("-e", "call broker echo body=x") == [
        {"kind": "result", "method": "echo", "results": {"body": "x"}}
    ]
    assert "the argument sequence is uint32, not 'x'" in tool.fails("-e", "call broker echo x")
    assert "echo has only 2 arguments: sequence, body" in tool.fails("-e", "call broker echo 1 2 3")
    assert "the class broker has no method nosuch" in tool.fails("-e", "call broker nosuch")
    assert "there is no object" in tool.fails("-e", "call queue:nosuch purge 0")
    assert "call what?" in tool.fails("-e", "call broker")


def test_objects_of_any_package_are_found_by_their_class(tool: Runs) -> None:
    tool.text("-e", "call broker create queue kept '{durable: True}'")
    (journal,) = tool.json("-e", "show journal:kept")
    assert journal["object"] == "org.apache.qpid.legacystore:journal:kept"
    assert tool.json("-e", f"show {journal['object']}")[0]["name"] == "kept"
    assert "there is no object qstore:transaction:x" in tool.fails("-e", "show qstore:transaction:x")
    tool.text("-e", "call broker delete queue kept")


def test_numbers_of_objects(tool: Runs, queue: str) -> None:
    result = tool.result(
        stdin=f"list queue name={queue}\nshow 101\ncall 101 purge 0\nid\nlist 101-110\nquit\nnonsense\n"
    )
    assert (result.exit_code, result.stderr) == (0, "")
    text = result.stdout
    assert re.search(rf"^    101 +\d\d:\d\d:\d\d +- +{queue}$", text, re.MULTILINE)
    assert "Object of type org.apache.qpid.broker:queue: (last sample time:" in text
    assert re.search(r"^    config  arguments +\{x-a:1\}$", text, re.MULTILINE)
    assert re.search(r"^    inst    msgDepth +0 messages$", text, re.MULTILINE)
    assert "OK: purge" in text
    assert f"    101  org.apache.qpid.broker:queue:{queue}" in text
    assert text.count(queue) == 4


def test_lists(tool: Runs, queue: str) -> None:
    summary = tool.lines("-e", "list")
    assert summary[0] == "Summary of Objects by Type:"
    assert any(line.split() == ["org.apache.qpid.broker", "broker", "1", "0"] for line in summary)
    assert [each["name"] for each in tool.json("-e", f"list queue name~^{queue} msgDepth<1 durable=False active")] == [
        queue
    ]
    assert {
        "kind": "class",
        "package": "org.apache.qpid.broker",
        "class": "vhost",
        "active": 1,
        "deleted": 0,
    } in tool.json("-e", "list")
    assert tool.lines("-e", f"list queue name={queue} all")[0].startswith("Object of type")
    assert tool.json("-e", f"show queue:{queue}")[0]["arguments"] == {"x-a": 1}
    assert re.search(
        r"^    101 +20\d\d-\d\d-\d\d ", tool.text("-e", "set time-format long", "-e", "list broker"), re.MULTILINE
    )
    for line, complaint in (
        ("list nosuch", "there is no class nosuch"),
        ("list queue nonsense", "is not NAME=VALUE"),
        ("list queue 5", "give numbers alone"),
        ("show", "show what?"),
        ("show 5", "no object has the number 5"),
        ("show 5-9", "no object has a number from 5 to 9"),
        ("call 5-9 purge", "are several objects"),
        ("set nonsense", "set what?"),
        ("nonsense", "unknown command 'nonsense'"),
        ("list 'x", "no closing quotation"),
        ("agent 99", "there is no agent 99"),
        ("schema nosuch", "there is no class nosuch"),
    ):
        assert complaint in tool.fails("-e", line)


class Typing:
    """Lines that are typed one after the other, each once the condition in front of it holds."""

    def __init__(self, tmp_path: Path, url: str) -> None:  # noqa: F811
        self.output = tmp_path / "output"
        with self.output.open("wb") as output:
            self._process = Forked([*command("qpid-tool"), url], stdin=subprocess.PIPE, stdout=output, stderr=output)

    def type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def until(self, line: str, pattern: str) -> re.Match[str]:
        """Type a line again and again, until its output has a pattern."""
        end = time.monotonic() + PATIENCE_SECONDS
        while (found := re.search(pattern, self.output.read_text())) is None:
            assert time.monotonic() < end, self.output.read_text()
            self.type(line)
            time.sleep(0.1)
        return found

    def end(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(PATIENCE_SECONDS)


def test_deleted_objects_are_kept_with_their_time(tmp_path: Path) -> None:
    running = RunningBroker(tmp_path, "--mgmt-pub-interval", "1")
    running.start()
    try:
        typing = Typing(tmp_path, f"127.0.0.1:{running.port}")
        typing.type("call broker create queue kept {}")
        number = typing.until("list queue name=kept", r"(\d+) +\d\d:\d\d:\d\d +- +kept\n")[1]
        with Console(f"127.0.0.1:{running.port}") as console:
            _wait_until_published(console, "kept")
            console.call("broker", "delete", type="queue", name="kept")
        typing.until("list queue", rf"{number} +\d\d:\d\d:\d\d +\d\d:\d\d:\d\d +kept\n")
        typing.until(f"show {number}", r"config +name +kept\n")
        typing.until("list", r"org.apache.qpid.broker +queue +\d+ +[1-9]\n")
        before = len(typing.output.read_text())
        typing.type("list queue name=other")
        typing.type("list queue active name=kept")
        typing.type("schema vhost")
        typing.until("", r"Schema for class 'vhost'")
        assert typing.end() == 0
        assert "kept" not in typing.output.read_text()[before:]
    finally:
        running.kill()


def test_a_user_who_may_not_listen_has_no_deleted_objects(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("acl deny all bind exchange name=qmf.default.topic\nacl allow all all\n")
    running = RunningBroker(tmp_path, "--acl-file", str(rules))
    running.start()
    try:
        result = CliRunner().invoke(
            qpid_tool.command, [f"127.0.0.1:{running.port}"], input="call broker echo 7 x\nlist vhost\n"
        )
        assert result.exit_code == 0
        assert result.stderr.startswith("qpid-tool: deleted objects will not be listed: ")
        assert "OK: echo" in result.stdout
        assert "Object Summary:" in result.stdout
    finally:
        running.kill()


def _wait_until_published(console: Console, name: str) -> None:
    """Wait until a console has heard of a queue, so that it hears of its end."""
    with console.indications(events=False, heartbeats=False, objects=True) as changes:
        console.call("broker", "echo", sequence=1, body="")
        while (found := changes.next(PATIENCE_SECONDS)) is not None:
            if isinstance(found, Data) and found.key == name:
                return
    raise AssertionError(f"{name} was never published")


def test_schemas_and_agents(tool: Runs) -> None:
    text = tool.text("-e", "schema queue")
    assert text.startswith("Schema for class 'queue':\n")
    assert re.search(r"^    name +short-string +ReadCreate +index", text, re.MULTILINE)
    assert re.search(r"^    request +uint32 +I", text, re.MULTILINE)
    assert any(line.split()[:3] == ["org.apache.qpid.broker", "queue", "data"] for line in tool.lines("-e", "schema"))
    (schema,) = tool.json("-e", "schema queue")
    assert schema["methods"][0]["name"] == "purge"
    assert len(tool.json("-e", "schema")) > 10
    (agent,) = tool.json("-e", "agents")
    assert any(agent["name"] in line for line in tool.lines("-e", "agents"))
    assert "OK: echo" in tool.text("-e", "agent 1", "-e", "call broker echo 1 x", "-e", "agent", "-e", "id")
    assert "OK: echo" in tool.text("--agent", agent["name"], "-e", "call broker echo 1 x")
    assert "no answer from the agent nobody" in tool.fails("-t", "0.1", "-e", "agent nobody", "-e", "list queue")


def test_help(tool: Runs) -> None:
    assert any(line.split()[0] == "schema" for line in tool.lines("-e", "help")[3:])
    assert tool.lines("-e", "# a comment") == []


def test_the_connection_is_lost(tool: Runs) -> None:
    assert "closed by management" in tool.fails("-e", "call connection close", "-e", "list")


def test_on_a_terminal(url: str, tmp_path: Path) -> None:  # noqa: F811
    """Completion, history, Ctrl-C that ends nothing, and the end by ^D."""
    with Terminal([*command("qpid-tool"), url], tmp_path) as terminal:
        terminal.read_until("Management Tool for QPID")
        terminal.read_until("qpid: ")
        terminal.type("call bro\techo 5 he\n")
        terminal.read_until("call broker echo 5 he")
        terminal.read_until("sequence = 5")
        terminal.read_until("qpid: ")
        terminal.interrupt()
        terminal.read_until("qpid: ")
        terminal.type("nonsense\n")
        terminal.read_until("unknown command")
        terminal.read_until("qpid: ")
        terminal.type("\x04")
        terminal.read_until("Exiting...")
        assert terminal.code() == 0
    (history,) = tmp_path.rglob("*.history")
    assert "call broker echo 5 he" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


# ---- parts ----


def test_conditions() -> None:
    assert condition([]) is None
    assert condition(["a=1", "b!=x", "c>=1.5", "d~^x", "e=true"]) == [
        "and", ["eq", "a", 1], ["ne", "b", ["quote", "x"]], ["ge", "c", 1.5], ["re_match", "d", ["quote", "^x"]],
        ["eq", "e", True],
    ]  # fmt: skip
    with pytest.raises(WordError):
        condition(["=1"])


METHOD = Method(
    "m",
    (
        Argument("number", "uint32", "I"),
        Argument("flag", "bool", "IO"),
        Argument("out", "sstr", "O"),
        Argument("more", "map", "I"),
        Argument("items", "list", "I"),
        Argument("id", "uuid", "I"),
        Argument("share", "double", "I"),
        Argument("text", "lstr", "I"),
    ),
)


def test_arguments_have_the_types_of_the_schema() -> None:
    one = uuid.uuid4()
    words = ["0x10", "yes", "{a: 1}", "[1, x]", str(one), "1.5", "5"]
    expected = {"number": 16, "flag": True, "more": {"a": 1}, "items": [1, "x"], "id": one, "share": 1.5, "text": "5"}
    assert method_arguments(METHOD, words) == expected
    assert method_arguments(METHOD, ["text=a=b", "3", "flag=no"]) == {"text": "a=b", "number": 3, "flag": False}
    assert method_arguments(None, ["a=1", "b={c: d}", "e=x"]) == {"a": 1, "b": {"c": "d"}, "e": "x"}
    for words in (["x"], ["number=1.5"], ["1", "maybe"], ["id=1"], ["items=1"], ["more=x"], ["share=x"], ["1"] * 9):
        with pytest.raises(WordError):
            method_arguments(METHOD, words)
    with pytest.raises(WordError):
        method_arguments(None, ["x"])
    assert issubclass(WordError, MessagingError)


def test_numbers_last() -> None:
    numbers = Identities()
    first, second = ObjectId("a"), ObjectId("b")
    assert (numbers.number(first), numbers.number(second), numbers.number(first)) == (101, 102, 101)
    assert numbers.find(102) == second
    assert list(numbers.find_all("101-102")) == [first, second]
    with pytest.raises(NoObjectError):
        numbers.find(103)
    assert [is_number(word) for word in ("1", "1-2", "-2", "1-", "a", "", "1" * 10)] == [True, True, *[False] * 5]


def test_the_oldest_numbers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.tools.qpid_tool._MOST", 2)
    numbers = Identities()
    assert [numbers.number(ObjectId(name)) for name in "abca"] == [101, 102, 103, 104]
    assert [number for number, _ in numbers.items()] == [103, 104]


def test_json_lines_are_json(tool: Runs) -> None:
    for line in tool.lines("--json", "-e", "list broker", "-e", "id"):
        json.loads(line)
