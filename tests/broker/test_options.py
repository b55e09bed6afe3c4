"""The options: how a command line is read, what values mean, and help."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.options import GROUPS, OptionError, Table, Values, help_text, modules_named, read_arguments

TABLE = Table(GROUPS)


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
    assert found.number("port") == 5672
    assert found.number("max-connections") == 500
    assert found.number("connection-backlog") == 10
    assert found.seconds("wait") == 10
    assert found.word("realm") == "QPID"
    assert found.word("syslog-name") == "qpidd"
    assert [found.switch(f"log-{part}") for part in ("time", "level", "category", "source", "thread", "function")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
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
        (["--prot", "1"], "--prot is no option; do you mean --port?"),
        (["--xyzzy"], "--xyzzy is no option; see --help"),
        (["-z"], "-z is no option"),
        (["queue"], '"queue" is not expected here'),
        (["--"], '"--" is not expected here'),
        (["-"], '"-" is not expected here'),
        (["--port"], "--port needs a value: --port PORT"),
        (["--port", "--trace"], "--port needs a value"),
        (["--port", "many"], '--port: "many" is no number from 0 to 65,535'),
        (["--port", "65536"], "is no number from"),
        (["--port", "-1"], "is no number from"),
        (["--port", "٣"], "is no number from"),
        (["--port", "9" * 5000], "is no number from"),
        (["--max-connections", "0"], "is no number from 1 to"),
        (["--port=1", "-p", "2"], "--port is given twice"),
        (["--auth=perhaps"], '--auth: "perhaps" is neither yes nor no'),
        (["--auth", "perhaps"], '"perhaps" is not expected here'),
        (["--daemon=perhaps"], "neither yes nor no"),
        (["--wait", "soon"], '--wait: "soon" is no time'),
        (["--wait", "1m"], "is no time"),
        (["--data-dir="], "an empty value"),
        (["--da\x1b[2Jta-dir=x"], r"--da\\x1b\[2Jta-dir is no option"),
        (["--" + "x" * 1000], "x…"),
    ],
)
def test_what_is_refused(arguments: list[str], text: str) -> None:
    with pytest.raises(OptionError, match=text.replace("?", r"\?")) as refusal:
        values(*arguments)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 200


@given(st.lists(st.text(max_size=12) | st.sampled_from(["--port", "-p", "=", "--auth", "-dc", "--load-module"])))
def test_whatever_is_given(arguments: list[str]) -> None:
    modules_named(arguments)
    refusal = ""
    try:
        values(*arguments)
    except OptionError as error:
        refusal = str(error)
    assert refusal.isprintable()


def test_modules_are_known_before_the_rest_is_read() -> None:
    assert modules_named(["--load-module", "a", "--num-jfiles", "8", "--load-module=b", "--unknown"]) == ["a", "b"]
    assert modules_named(["--load-module"]) == []
    assert modules_named([]) == []


def test_options_without_effect_are_told() -> None:
    found = values("--worker-threads", "4", "--port=1", "--module-dir", "/usr/lib/qpid")
    threads, directory = found.not_needed()
    assert threads.startswith("option worker-threads is not needed here and has no effect: ")
    assert "module-dir" in directory


def test_help_has_every_option_with_its_default() -> None:
    lines = help_text(TABLE).splitlines()
    assert lines[0] == "Usage: qpidd OPTIONS"
    for group in GROUPS:
        assert f"{group.title}:" in lines
        for option in group.options:
            (line,) = (line for line in lines if f"--{option.name} " in line + " " and line.startswith("  -"))
            assert not option.default or f"({option.default})" in line
    assert any(line.startswith("  -p [ --port ] PORT (5672)") for line in lines)
    assert max(map(len, lines)) <= 100


def test_the_table_is_sound() -> None:
    options = [option for group in GROUPS for option in group.options]
    assert len(TABLE.by_name) == len(options)
    assert len(TABLE.by_letter) == len([option for option in options if option.short])
    for option in options:
        if option.default:
            Values(TABLE, {option.name: [option.default]}).check()
