"""The options: how a command line is read, what values mean, and help."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.process.option_table import GROUPS, Effect, Given, Kind, Option, OptionError
from qstore.broker.process.options import Table, Values, help_text, read_arguments, words_of

TABLE = Table(GROUPS)
OPTIONS = [option for group in GROUPS for option in group.options]


def values(*arguments: str) -> Values:
    found = Values(TABLE, read_arguments(arguments, TABLE))
    found.check()
    return found


@pytest.mark.parametrize("arguments", [["--port", "7"], ["--port=7"], ["-p", "7"], ["-p7"], ["-p=7"]])
def test_forms_of_an_option_with_a_value(arguments: list[str]) -> None:
    assert values(*arguments).number("port") == 7


@pytest.mark.parametrize(
    ("arguments", "is_on"),
    [
        ([], True),
        (["--auth"], True),
        (["--auth", "yes"], True),
        (["--auth=true"], True),
        (["--auth", "1"], True),
        (["--auth", "no"], False),
        (["--auth=no"], False),
        (["--auth", "NO"], False),
        (["--auth=false"], False),
        (["--auth", "--trace"], True),
        (["--no-auth"], False),
        (["--no-auth", "yes"], False),
        (["--no-auth=NO"], True),
        (["--no-auth", "--trace"], False),
    ],
)
def test_forms_of_a_switch(arguments: list[str], is_on: bool) -> None:
    assert values(*arguments).switch("auth") is is_on


def test_forms_of_flags() -> None:
    assert not values().switch("daemon")
    for arguments in (["--daemon"], ["-d"], ["--daemon=yes"], ["-dc"]):
        assert values(*arguments).switch("daemon")
    assert not values("--daemon=no").switch("daemon")
    assert values("-dw", "5").seconds("wait") == 5
    assert values("-dw5").seconds("wait") == 5


def test_defaults_are_the_documents() -> None:
    found = values()
    numbers: Mapping[str, int] = {
        "port": 5672,
        "max-connections": 500,
        "default-flow-stop-threshold": 80,
        "default-flow-resume-threshold": 70,
        "default-event-threshold-ratio": 80,
        "dtx-default-timeout": 60,
        "dtx-max-timeout": 3600,
    }
    assert {name: found.number(name) for name in numbers} == numbers
    assert found.number("connection-backlog") == 512, "the documents' 10 makes 500 clients wait for half a minute"
    assert found.seconds("wait") == 10
    assert found.seconds("queue-purge-interval") == 600
    assert found.word("config") == "/etc/qpidd.conf"
    assert found.word("realm") == "QPID"
    assert found.word("default-message-group") == "qpid.no-group"
    assert found.word("syslog-name") == "qpidd"
    assert found.word("syslog-facility") == "LOG_DAEMON"
    assert found.switch("tcp-nodelay")
    assert not found.switch("enable-timestamp")
    parts = ("time", "level", "category", "source", "thread", "function", "hires-timestamp")
    assert [found.switch(f"log-{part}") for part in parts] == [True, True, True, False, False, False, False]
    assert (found.text("data-dir"), found.texts("interface")) == (None, ())


@pytest.mark.parametrize(
    ("word", "seconds"), [("10", 10), ("0.5", 0.5), ("10s", 10), ("250ms", 0.25), ("1us", 1e-6), ("1000ns", 1e-6)]
)
def test_durations(word: str, seconds: float) -> None:
    assert values("--wait", word).seconds("wait") == pytest.approx(seconds)


def test_an_option_that_is_repeatable() -> None:
    found = values("--interface", "127.0.0.1", "--interface=::1")
    assert found.texts("interface") == ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--prot", "1"], "--prot: unknown option; did you mean --port?"),
        (["--xyzzy"], "--xyzzy: unknown option; see --help"),
        (["-z"], "-z: unknown option"),
        (["queue"], '"queue": unexpected argument'),
        (["--"], '"--": unexpected argument'),
        (["-"], '"-": unexpected argument'),
        (["--port"], "--port requires a value: --port PORT"),
        (["--auth-realm"], "--auth-realm requires a value: --auth-realm REALM"),
        (["--port", "--trace"], "--port requires a value"),
        (["--port", "many"], '--port: "many" is not a number from 0 to 65,535'),
        (["--port", "65536"], "is not a number from"),
        (["--port", "-1"], "is not a number from"),
        (["--port", "٣"], "is not a number from"),
        (["--port", "9" * 5000], "is not a number from"),
        (["--max-connections", "0"], "is not a number from 1 to"),
        (["--port=1", "-p", "2"], "--port is given twice"),
        (["--realm=a", "--auth-realm=b"], "--auth-realm is given twice \\(a, then b\\); give it once"),
        (["--auth=no", "--auth", "maybe"], "--auth is given twice \\(no, then maybe\\); give it once"),
        (["--auth=no", "--no-auth"], "--no-auth is given twice"),
        (["--auth=perhaps"], '--auth: "perhaps" is neither yes nor no'),
        (["--no-auth=perhaps"], '--no-auth: "perhaps" is neither yes nor no'),
        (["--auth="], '--auth: "" is neither yes nor no'),
        (["--auth", "perhaps"], '--auth: "perhaps" is neither yes nor no'),
        (["--daemon=perhaps"], "neither yes nor no"),
        (["--wait", "soon"], '--wait: "soon" is not a duration'),
        (["--wait", "1m"], "is not a duration"),
        (["--wait", ""], "is not a duration"),
        (["--data-dir="], "--data-dir: the value must not be empty"),
        (["--known-hosts-url=amqp:tcp:a\udcff:1"], r'--known-hosts-url: "amqp:tcp:a.*:1" has control characters'),
        (["--realm=a\nb"], "--realm: .* has control characters, or others that cannot be printed"),
        (["--replication-queue=a\x01"], "--replication-queue: .* has control characters"),
        (["--transport", "rdma"], '--transport: "rdma" is not one of tcp'),
        (["--default-flow-stop-threshold", "101"], '"101" is not a number from 0 to 100'),
        (["--default-flow-stop-threshold", "50"], "--default-flow-resume-threshold is above"),
        (["--da\x1b[2Jta-dir=x"], r"--da\\x1b\[2Jta-dir: unknown option"),
        (["--" + "x" * 1000], "x…"),
    ],
)
def test_invalid_option_is_refused_with_a_hint(arguments: list[str], text: str) -> None:
    with pytest.raises(OptionError, match=text.replace("?", r"\?")) as refusal:
        values(*arguments)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 200


@given(st.lists(st.text(max_size=12) | st.sampled_from(["--port", "-p", "=", "--auth", "-dc", "--load-module"])))
def test_arbitrary_arguments_are_read_or_refused(arguments: list[str]) -> None:
    words_of("load-module", arguments)
    refusal = ""
    try:
        values(*arguments)
    except OptionError as error:
        refusal = str(error)
    assert refusal.isprintable()


def test_some_options_are_known_before_the_rest_is_read() -> None:
    arguments = ["--load-module", "a", "--num-jfiles", "8", "--load-module=b", "--unknown", "--no-module-dir"]
    assert words_of("load-module", arguments) == ["a", "b"]
    assert words_of("no-module-dir", arguments, has_value=False) == ["yes"]
    assert words_of("load-module", ["--load-module"]) == []
    assert words_of("load-module", ["--", "--load-module", "a"]) == []
    assert words_of("load-module", []) == []


# ---- options without effect, and options that are refused ----


def something_for(option: Option) -> str:
    """A value that asks for something."""
    if option.choices:
        return option.choices[0]
    samples = {
        Kind.FLAG: "yes", Kind.SWITCH: "yes", Kind.NUMBER: "70", Kind.SIZE: "7g", Kind.DURATION: "0.5",
        Kind.TEXT: "text",
    }  # fmt: skip
    return samples[option.kind]


@pytest.mark.parametrize("option", OPTIONS, ids=[option.name for option in OPTIONS])
def test_every_option_by_each_of_its_names(option: Option) -> None:
    text = something_for(option)
    for name in filter(None, (option.name, option.alias)):
        if option.effect in (Effect.REFUSED, Effect.REPLACED):
            with pytest.raises(OptionError, match=f"--{name} is not supported"):
                values(f"--{name}={text}")
            continue
        found = values(f"--{name}={text}")
        assert found.texts(option.name) == (text,)
        (line,) = [each for each in found.without_effect() if " has no effect: " not in each] or [""]
        assert line.startswith(f"Option {option.name} ") is (option.effect is not Effect.WORKS)
        assert line.endswith(option.reason)


def test_unsupported_option_may_be_switched_off() -> None:
    found = values("--require-encryption=no", "--ha-cluster", "no")
    assert found.without_effect() == []
    for arguments in (["--ssl-cert-db=/d"], ["--ha-cluster=yes"], ["--ssl-use-export-policy"]):
        with pytest.raises(OptionError):
            values(*arguments)


def test_options_without_effect_are_reported_without_their_values() -> None:
    found = values("--worker-threads", "4", "--port=1", "--ha-password", "hunter2")
    threads, password = found.without_effect()
    assert threads == "Option worker-threads is ignored: the broker has a single event loop"
    assert password.startswith("Option ha-password is ignored, since it is not supported yet: ")
    assert "hunter2" not in password


@pytest.mark.parametrize(
    ("without", "needed"),
    [
        (["--console-credentials", "f"], ["--console=yes"]),
        (["--telemetry-limit=5"], ["--telemetry=http://localhost:4318"]),
        (["--websocket-origin=*"], ["--websocket=yes"]),
        (["--create-replication-queue=yes"], ["--replication-queue=q"]),
        (["--replication-listener-name=x"], ["--replication-exchange-name=x"]),
        (["--replication-exchange-type=topic"], ["--replication-exchange-name=x"]),
        (["--strict-acl-validation=fatal"], ["--acl-file=f"]),
        (["--auth=no", "--auth-allow-cleartext=yes"], []),
        (["--mgmt-enable=no", "--mgmt-pub-interval=5"], []),
        (["--syslog-name=x"], ["--log-to-syslog=yes"]),
        (["--mgmt-qmf1=no", "--mgmt-qmf2=no", "--mgmt-publish=yes"], ["--mgmt-qmf2=yes"]),
        (["--sasl-mechanisms=GSSAPI", "--auth-allow-cleartext=yes"], ["--sasl-mechanisms=GSSAPI,PLAIN"]),
        (["--protocols=1.0", "--virtual-hosts=strict"], ["--protocols=amqp0-10 1.0"]),
        (["--protocols=0-10,0-9-1", "--rabbitmq-version=4.1.0"], ["--protocols=1.0"]),
        (["--no-data-dir", "--max-paging-size=1G"], ["--paging-dir=d"]),
        (["--no-data-dir", "--staging-threshold=1M"], ["--paging-dir=d"]),
        (
            ["--default-flow-stop-threshold=0", "--default-flow-resume-threshold=50"],
            ["--default-flow-stop-threshold=60"],
        ),
        (["--pid-dir=d"], ["--daemon"]),
        (["--wait=5"], ["--daemon"]),
        (["--daemon", "--log-to-stderr=yes"], ["--daemon=no"]),
        (["--daemon", "--log-to-stdout=yes"], ["--daemon=no"]),
        (["--daemon", "--log-output=stderr"], ["--log-output=file"]),
        (["--log-status-rule=qpid.*=OFF"], ["--log-status=yes"]),
        (["--access=permissions", "--acl-file=f"], ["--access=acl"]),
        (["--syslog-facility=LOG_USER"], ["--daemon"]),
        (["--daemon", "--log-to-file=f", "--syslog-name=x"], ["--log-output=syslog"]),
    ],
)
def test_an_option_that_needs_another_one_is_reported_without_it(without: list[str], needed: list[str]) -> None:
    (line,) = values(*without).without_effect()
    name = next(each for each in reversed(without) if each.startswith("--")).partition("=")[0].removeprefix("--")
    assert line.startswith(f"Option {name} has no effect: ")
    replaced = {each.partition("=")[0] for each in needed} | {"--auth", "--mgmt-enable"}
    switched_on = (each for each in without if each.partition("=")[0] not in replaced or each.endswith("=yes"))
    assert values(*switched_on, *needed).without_effect() == []


def test_events_of_queues_go_to_one_place_and_the_other_is_reported() -> None:
    given = ("--replication-exchange-name=x", "--replication-queue=q", "--create-replication-queue=yes")
    names = [each.split()[1] for each in values(*given).without_effect()]
    assert names == ["replication-queue", "create-replication-queue"]


def test_flow_control_can_be_switched_off_by_its_threshold_alone() -> None:
    assert values("--default-flow-stop-threshold=0").without_effect() == []


def test_an_option_that_asks_for_nothing_needs_none() -> None:
    assert values("--create-replication-queue=no", "--mgmt-enable=no", "--mgmt-qmf1=no").without_effect() == []


# ---- the table ----


CONFLICTS: Sequence[tuple[str, str]] = (
    ("realm", "auth-realm"),
    ("default-message-group", "default-msg-group"),
    ("max-queues-per-user", "queue-limit-per-user"),
    ("no-module-dir", "no-module"),
)


@pytest.mark.parametrize(("name", "other"), CONFLICTS)
def test_names_that_the_documents_do_not_agree_on(name: str, other: str) -> None:
    assert TABLE.by_name[name] is TABLE.by_name[other]


DOCUMENTED: Final = """
help version config port worker-threads max-connections connection-backlog staging-threshold mgmt-enable
mgmt-pub-interval ack daemon wait check quit enable-timestamp require-encryption default-flow-stop-threshold
default-flow-resume-threshold default-queue-limit default-msg-group default-message-group federation-tag
link-maintenance-interval link-heartbeat-interval known-hosts-url auth acl-file pid-dir interface transport tcp-nodelay
max-session-rate queue-purge-interval paging-dir
trace log-enable log-disable log-time log-level log-source log-thread log-function log-hires-timestamp log-category
log-prefix log-to-stderr log-to-stdout log-to-file log-to-syslog syslog-name syslog-facility log-output
module-dir load-module no-module-dir no-module data-dir no-data-dir no-auth realm auth-realm
connection-limit-per-user connection-limit-per-ip max-queues-per-user queue-limit-per-user
ssl-cert-db ssl-cert-password-file ssl-cert-name ssl-port ssl-require-client-authentication ssl-sasl-no-dict
ssl-use-export-policy replication-queue replication-listener-name create-replication-queue
replication-exchange-name replication-exchange-type
ha-cluster ha-queue-replication ha-brokers-url ha-public-url ha-replicate ha-username ha-password ha-mechanism
ha-backup-timeout cluster-cman cluster-mechanism cluster-name cluster-password cluster-size cluster-url
cluster-username default-event-threshold-ratio watchdog-interval strict-acl-validation cluster-update-url
"""
"""Qpid C++ Broker Book, 1.1, 1.4, 1.5, 1.7, 1.8 and 1.12; MRG 2 Messaging User Guide; Qpid wiki, "RASC", "FAQ"."""


def test_every_option_that_the_documents_name_is_known() -> None:
    assert [name for name in DOCUMENTED.split() if name not in TABLE.by_name] == []


def test_help_has_every_option_with_its_default() -> None:
    lines = help_text(TABLE).splitlines()
    assert lines[0] == "Usage: qpidd OPTIONS"
    for group in GROUPS:
        assert f"{group.title}:" in lines
        for option in group.options:
            (line,) = (line for line in lines if f"--{option.name} " in line + " " and line.startswith("  -"))
            assert not option.default or f"({option.default})" in line
    assert any(line.startswith("  -p [ --port ] PORT (5672)") for line in lines)
    assert any("(--no-auth:" in line for line in lines)
    assert max(map(len, lines)) <= 100


def test_the_table_is_sound() -> None:
    names = [name for option in OPTIONS for name in (option.name, option.alias, option.opposite) if name]
    assert len(set(names)) == len(names)
    assert len(TABLE.by_letter) == len([option for option in OPTIONS if option.short])
    for option in OPTIONS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", option.name)
        assert (option.value == "") is (option.kind is Kind.FLAG)
        assert (option.reason == "") is (option.effect is Effect.WORKS)
        assert not option.conflicts_with or TABLE.by_name[option.conflicts_with].conflicts_with == option.name
        assert not option.opposite or option.kind is Kind.SWITCH
        assert option.repeatable or not option.accumulates
        if option.default:
            Values(TABLE, {option.name: [Given(option.default, "here")]}).check()
