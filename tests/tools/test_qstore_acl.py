"""`qstore-acl`: what is wrong with a file, and what it decides and why, for people and for scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from qstore.tools.qstore_acl import command

RULES = """# rules
group clerks anna@QPID bert@QPID
acl allow clerks create queue name=${user}-* durable=true queuemaxsizeupperlimit=1000
acl deny-log bert@QPID consume queue name=secret
acl allow clerks consume queue
acl allow all create connection host=10.0.0.0,10.0.0.255
acl deny all create connection
acl deny all all
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "broker.acl"
    path.write_text(RULES)
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(each) for each in arguments])


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_file_that_is_right(file: Path) -> None:
    done = invoke("check", file)
    assert done.exit_code == 0
    text = "version 2, 6 rules, 1 group, 0 quotas; messages are not checked: no rule is about publishing"
    assert done.output == f"{file}: {text}\n"


def test_rules_without_effect_and_errors(file: Path, tmp_path: Path) -> None:
    weak, wrong = tmp_path / "weak.acl", tmp_path / "wrong.acl"
    weak.write_text("acl allow all delete broker\nacl allow all publish exchange\n")
    wrong.write_text("acl x all all\n\nacl allow nobody eat\n")
    assert invoke("check", weak).exit_code == 1
    done = invoke("check", "--json", file, weak, wrong)
    assert done.exit_code == 2
    assert [(each["kind"], each.get("line")) for each in lines(done)] == [
        ("acl", None), ("warning", 1), ("acl", None), ("error", 1), ("error", 3)
    ]  # fmt: skip
    assert lines(done)[2]["checks_publish"] is True
    text = invoke("check", wrong).output.splitlines()
    assert text[0] == f"""{wrong}: error: line 1: Unknown ACL permission "x": 'acl x all all'"""
    missing = invoke("explain", tmp_path / "missing", "anna@QPID", "create", "queue")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "the ACL file cannot be read: No such file" in missing.stderr


@pytest.mark.parametrize(
    ("user", "question", "code", "text"),
    [
        ("anna@QPID", "create queue anna-1 durable=true queuemaxsize=1000", 0,
         "allow: rule 1 in line 3: allow clerks create queue name=${user}-* durable=true queuemaxsizeupperlimit=1000"),
        ("anna@QPID", "create queue anna-1 durable=true queuemaxsize=1001", 1, "queuemaxsizeupperlimit is not kept"),
        ("anna@QPID", "create queue bert-1 durable=true queuemaxsize=1", 1, "deny: rule 6 in line 8: deny all all all"),
        ("bert@QPID", "consume queue secret", 1, "deny-log: rule 2 in line 4"),
        ("bert@QPID", "consume queue name=open", 0, "allow: rule 3 in line 5"),
        ("bert@QPID", "create connection host=10.0.0.7", 0, "allow: rule 4 in line 6"),
        ("bert@QPID", "create connection host=10.0.1.7", 1, "deny: rule 5 in line 7"),
        ("eve@QPID", "publish exchange amq.topic routingkey=a", 0, "no rule is about publishing"),
        ("eve@QPID", "delete broker", 1, "the broker never asks about delete broker"),
        ("eve@QPID", "consume queue q durable=true", 1, "the broker never asks for durable here"),
    ],
)  # fmt: skip
def test_explain_names_the_deciding_rule(file: Path, user: str, question: str, code: int, text: str) -> None:
    done = invoke("explain", file, user, *question.split())
    assert done.exit_code == code
    assert text in done.output


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("eat queue", "eat queue: not an action (access bind"),
        ("create", "create: an action and an object are needed"),
        ("create queue q durable", "durable: not PROPERTY=VALUE"),
        ("create queue q colour=red", 'Unknown ACL property "colour"'),
    ],
)
def test_invalid_question_is_refused(file: Path, question: str, text: str) -> None:
    done = invoke("explain", file, "anna@QPID", *question.split())
    assert done.exit_code == 2
    assert text in done.stderr


def test_who_command_lists_users_and_permissions(file: Path) -> None:
    done = invoke("who", file, "consume", "queue", "secret")
    assert done.exit_code == 0
    assert [line.split()[:2] for line in done.output.splitlines()] == [
        ["anna@QPID", "allow"], ["bert@QPID", "deny-log"], ["all", "others"]
    ]  # fmt: skip
    found = lines(invoke("who", file, "--json", "consume", "queue", "secret"))
    assert [(each["user"], each["permission"], each["rule"], each["line"]) for each in found] == [
        ("anna@QPID", "allow", 3, 5), ("bert@QPID", "deny-log", 2, 4), (None, "deny", 6, 8)
    ]  # fmt: skip


def test_expectations(file: Path, tmp_path: Path) -> None:
    expected = tmp_path / "expected"
    good = "# comment\n\nallow anna@QPID consume queue q\ndeny bert@QPID consume queue secret\n"
    expected.write_text(f"{good}deny-log bert@QPID consume queue secret\n")
    done = invoke("test", file, expected)
    assert (done.exit_code, done.output) == (0, "3 expectations: all hold\n")
    expected.write_text(f"{good}allow-log anna@QPID consume queue q\n")
    done = invoke("test", file, expected)
    assert done.exit_code == 1
    rule = "rule 3 in line 5: allow clerks consume queue"
    assert done.output.splitlines() == [
        f"{expected}: line 5: allow-log anna@QPID consume queue q, but it is allow: {rule}",
        "3 expectations: 1 do not hold",
    ]
    assert [each["holds"] for each in lines(invoke("test", "--json", file, expected))] == [True, True, False]
    expected.write_text("allow anna@QPID\n")
    done = invoke("test", file, expected)
    assert done.exit_code == 2
    assert f"{expected}: line 1: : an action and an object are needed" in done.stderr


def test_lookups() -> None:
    done = invoke("lookups")
    assert done.exit_code == 0
    assert len(done.output.splitlines()) == 78
    assert " 3  access   exchange    name queuename routingkey\n    AMQP 0-10 query binding\n" in done.output
    assert [each["number"] for each in lines(invoke("lookups", "--json"))] == list(range(1, 40))
    assert "36  access   transaction name\n" in done.output


def test_declarations_that_forward_messages(tmp_path: Path) -> None:
    file = tmp_path / "ways.acl"
    file.write_text(
        "acl deny bob@QPID publish exchange name=kx routingkey=hot.#\nacl allow bob@QPID publish exchange\n"
    )
    asked = "explain", file, "bob@QPID", "publish", "exchange", "kx"
    assert invoke(*asked, "everyroutingkey=cold.#").output.startswith("allow: rule 2 in line 2")
    done = invoke(*asked, "everyroutingkey=#")
    assert (done.exit_code, done.output) == (
        1, "deny: rule 1 in line 1: deny bob@QPID publish exchange name=kx routingkey=hot.#\n"
    )  # fmt: skip
    assert invoke(*asked, "routingkey=#").exit_code == 0, "the key # itself"


def test_names_of_hosts(tmp_path: Path) -> None:
    file = tmp_path / "hosts.acl"
    file.write_text("acl allow all create connection host=no.such.host.invalid\nacl deny all create connection\n")
    assert invoke("check", "--offline", file).exit_code == 0
    assert invoke("explain", "--offline", file, "a@b", "create", "connection", "host=10.0.0.1").exit_code == 1
