"""The log: rules, lines, and where they go."""

from __future__ import annotations

import io
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qstore.broker.log.sinks
from qstore.broker.log.logs import (
    CATEGORIES,
    CRITICAL,
    DEBUG,
    ERROR,
    INFO,
    LEVELS,
    MAX_LINES,
    NOTICE,
    PERIOD_SECONDS,
    TRACE,
    WARNING,
    LogBudget,
    LogError,
    Rules,
    enabled_rules,
    log_of,
    parse_rule,
    printable,
)
from qstore.broker.log.sinks import LineFormat, Logging, Sinks
from qstore.broker.model.broker import Broker
from qstore.broker.settings import BrokerSettings

MakeLog = Callable[..., Logging]
PLAIN = LineFormat(time=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def make_log(path: Path) -> Iterator[MakeLog]:
    """Starts the log, by default to a file and without times."""
    made: list[Logging] = []

    def make(*enabled: str, disabled: tuple[str, ...] = (), parts: LineFormat = PLAIN) -> Logging:
        sinks = Sinks(stderr=False, file=str(path))
        made.append(Logging(Rules(enabled or ["notice+"], disabled), sinks, parts))
        return made[-1]

    yield make
    for log in made:
        log.close()


def shown(rules: Rules, category: str = "Broker", function: str = "broker.server.listen") -> list[str]:
    """The levels of which lines are shown."""
    return [name for name, level in LEVELS.items() if rules.shows(level, category, function)]


# ---- rules ----


@pytest.mark.parametrize(
    ("rule", "levels"),
    [
        ("warning+", ["warning", "error", "critical"]),
        ("warning-", ["trace", "debug", "info", "notice", "warning"]),
        ("notice", ["notice"]),
        ("trace+:Broker", list(LEVELS)),
        ("trace+:Network", []),
        ("notice:Broker", ["notice"]),
        ("debug:server", ["debug"]),
        ("debug:broker::server", ["debug"]),
        ("notice-:broker::server::listen", ["trace", "debug", "info", "notice"]),
        ("debug:framing", []),
        ("notice:qpid::", ["notice"]),
        ("notice:Network", []),
        ("notice-:server::listen", ["trace", "debug", "info", "notice"]),
        ("notice:qpid::broker::server::listen", ["notice"]),
        ("notice:qpid::broker::Broker::run", []),
        ("debug-:qmf::", []),
    ],
)
def test_rule_selects_levels(rule: str, levels: list[str]) -> None:
    assert shown(Rules([rule])) == levels


def test_disabling_rule_wins_over_enabling_rule() -> None:
    assert shown(Rules(["trace+"], ["warning-"])) == ["error", "critical"]
    assert shown(Rules(["trace+"], ["trace+:Broker"])) == []
    assert shown(Rules(["trace+"], ["trace+:Broker"]), "Network") == list(LEVELS)
    assert shown(Rules(["trace+:listen"], ["debug-:server"])) == ["info", "notice", "warning", "error", "critical"]
    assert shown(Rules(["trace+"], ["debug-:qmf::"])) == list(LEVELS)
    assert shown(Rules(["trace+"], ["trace:Broker"])) == list(LEVELS)[1:]
    assert shown(Rules(["trace+"], ["trace+:qpid::"])) == []
    assert shown(Rules([], [])) == []


def test_the_order_of_rules_does_not_matter() -> None:
    one, other = ["debug+:Broker", "error"], ["error", "debug+:Broker"]
    assert shown(Rules(one)) == shown(Rules(other))


def test_rules_that_stand_for_none() -> None:
    assert enabled_rules([], trace=False) == ["notice+"]
    assert enabled_rules(["info"], trace=False) == ["info"]
    assert shown(Rules(enabled_rules([], trace=True))) == list(LEVELS)


@pytest.mark.parametrize("rule", ["", "+", "warn", "notice++", "notice:", ":Broker", "Notice", "info +", "\x1b[2J"])
def test_rules_that_are_none(rule: str) -> None:
    with pytest.raises(LogError, match="is not a log rule") as refusal:
        parse_rule(rule)
    assert str(refusal.value).isprintable()


@given(st.sampled_from(list(LEVELS)), st.sampled_from(["", "+", "-"]), st.sampled_from(["", *CATEGORIES, "part"]))
def test_a_level_that_may_be_shown_is_not_below_the_lowest(level: str, sign: str, pattern: str) -> None:
    rules = Rules([f"{level}{sign}" + (f":{pattern}" if pattern else "")])
    for category in CATEGORIES:
        for number in LEVELS.values():
            if rules.shows(number, category, "a.part.b"):
                assert number >= rules.lowest(category)


# ---- lines ----


def test_lines_look_like_qpidd_s(make_log: MakeLog, path: Path) -> None:
    make_log(parts=LineFormat())
    log_of("Broker").notice("Broker running")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[Broker\] notice Broker running\n", path.read_text())


def test_every_level_by_its_name(make_log: MakeLog, path: Path) -> None:
    make_log("trace+")
    log = log_of("Network")
    for write in (log.trace, log.debug, log.info, log.notice, log.warning, log.error, log.critical):
        write("%d", 1)
    log.log(NOTICE, "two")
    assert path.read_text().splitlines() == [f"[Network] {name} 1" for name in LEVELS] + ["[Network] notice two"]


def test_line_shows_optional_parts(make_log: MakeLog, path: Path) -> None:
    parts = LineFormat(
        time=True,
        level=False,
        category=False,
        source=True,
        thread=True,
        function=True,
        hires_timestamp=True,
        prefix="> ",
    )
    make_log(parts=parts)
    log_of("Test").notice("text")
    where = r"test_logs\.py:\d+: test_logs\.test_line_shows_optional_parts: "
    stamp = rf"> \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{6}} \[{threading.get_ident()}\] "
    assert re.fullmatch(stamp + where + r"text\n", path.read_text())


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (Path(qstore.broker.__file__).parent / "model" / "queues" / "queue.py", "broker.queue"),
        ("/any/where/plug.py", "plug"),
    ],
)
def test_functions_have_their_module_s_name(make_log: MakeLog, path: Path, file: Path | str, name: str) -> None:
    make_log(parts=LineFormat(time=False, function=True))
    names: dict[str, Callable[..., None]] = {}
    exec(compile("def work(log):\n    log.notice('text')\n", str(file), "exec"), names)
    names["work"](log_of("Broker"))
    assert path.read_text() == f"[Broker] notice {name}.work: text\n"


@pytest.mark.parametrize(
    "rule", ["notice", "notice:qpid::", "notice:Broker", "notice-:Broker::run", "notice:qpid::broker::Broker::run"]
)
def test_the_rules_that_qpidd_s_manual_has_for_its_line(make_log: MakeLog, path: Path, rule: str) -> None:
    """Qpid C++ Broker Book, 1.1.8.5: each of them is for the line "Broker running"."""
    model = Broker(BrokerSettings(), None, lambda work, *arguments: None)
    log = make_log(rule, parts=LineFormat(time=False, function=True))
    model.run()
    log.close()
    assert path.read_text() == "[Broker] notice broker.broker.Broker.run: Broker running\n"
    make_log("trace+", disabled=(rule,))
    model.run()
    assert path.read_text().count("\n") == 1


def test_a_rule_for_a_function(make_log: MakeLog, path: Path) -> None:
    make_log("debug+:for_a_function")
    log_of("Broker").debug("here")
    (lambda: log_of("Broker").debug("in it"))()
    _write_elsewhere()
    assert path.read_text() == "[Broker] debug here\n[Broker] debug in it\n"


def _write_elsewhere() -> None:
    log_of("Broker").debug("elsewhere")


@pytest.mark.parametrize("text", ["a\nb", "a\r\x1b[2Jb", "\udcff", "a\u2028b", "\0"])
def test_a_line_stays_one_line(make_log: MakeLog, path: Path, text: str) -> None:
    make_log()
    log_of("Protocol").notice("queue %s", text)
    (line,) = path.read_text().splitlines()
    assert line == f"[Protocol] notice queue {printable(text)}"
    assert line.isprintable()


def test_an_exception_is_on_the_same_line(make_log: MakeLog, path: Path) -> None:
    make_log()
    try:
        raise ValueError("x")
    except ValueError:
        log_of("Broker").exception("a %s", "command")
    (line,) = path.read_text().splitlines()
    assert line.startswith("[Broker] error a command: Traceback")
    assert line.endswith("ValueError: x")


def test_percent_signs_of_clients_are_text(make_log: MakeLog, path: Path) -> None:
    make_log()
    log_of("Broker").notice("%s", "100%s")
    assert path.read_text() == "[Broker] notice 100%s\n"


def test_hidden_line_is_not_formatted(make_log: MakeLog, path: Path) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    make_log("notice+", "debug+:Store")
    log = log_of("Broker")
    log.debug("%s", Costly())
    assert [log.is_on(level) for level in (TRACE, DEBUG, INFO, NOTICE, WARNING, ERROR, CRITICAL)] == [False] * 3 + [
        True
    ] * 4
    assert log_of("Store").is_on(DEBUG)
    assert path.read_text() == ""


# ---- where they go ----


def test_standard_error_and_output(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {"stderr": io.StringIO(), "stdout": io.StringIO()}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    for to_stderr, to_stdout in ((True, False), (False, True)):
        log = Logging(Rules(["notice+"]), Sinks(stderr=to_stderr, stdout=to_stdout), PLAIN)
        log_of("Broker").notice("to %s", "stderr" if to_stderr else "stdout")
        log.close()
    assert {name: stream.getvalue() for name, stream in streams.items()} == {
        "stderr": "[Broker] notice to stderr\n",
        "stdout": "[Broker] notice to stdout\n",
    }


def test_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    log = Logging(Rules(["notice+"]), Sinks(), PLAIN)
    log_of("Broker").notice("kept for management")
    assert log.recent.since(0, 10, 1000) == (1, ["[Broker] notice kept for management"])
    log.close()


def test_the_last_lines_are_kept_in_numbers_and_in_size(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(qstore.broker.log.sinks, "MAX_KEPT", 5)
    log = Logging(Rules(["trace+"]), Sinks(stderr=False, file=str(path)), PLAIN)
    recent, broker = log.recent, log_of("Broker")
    for number in range(8):
        broker.notice("line %d", number)
        broker.trace("not kept")
    lines = [f"[Broker] notice line {number}" for number in range(3, 8)]
    assert recent.since(0, 10, 1000) == (4, lines)
    assert recent.since(0, 2, 1000) == (7, lines[-2:])  # the newest, for who begins to look
    assert recent.since(4, 2, 1000) == (5, lines[1:3])  # those that follow, for who has seen some
    assert recent.since(1, 2, 1000) == (4, lines[:2])  # some of them are gone
    assert recent.since(8, 10, 1000) == (9, [])
    assert recent.since(3, 10, 1) == (4, lines[:1])
    monkeypatch.setattr(qstore.broker.log.sinks, "MAX_KEPT_CHARACTERS", 10_000)
    broker.notice("%s", "x" * 9_000)  # cut
    assert [len(line) for line in recent.since(8, 10, 100_000)[1]] == [4096]
    broker.notice("%s", "x" * 9_000)
    broker.notice("%s", "x" * 9_000)
    assert len(recent.since(0, 10, 100_000)[1]) == 2
    log.close()


def test_a_reader_that_is_gone_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", Gone())
    log = Logging(Rules(["notice+"]), Sinks(), PLAIN)
    monkeypatch.setattr(sys, "stderr", errors)
    log_of("Broker").notice("lost")
    log.close()
    assert errors.getvalue() == ""


def test_a_file_continues_and_may_be_renamed(make_log: MakeLog, path: Path) -> None:
    path.write_text("before\n")
    make_log()
    log_of("Broker").notice("one")
    path.rename(path.with_suffix(".1"))
    log_of("Broker").notice("two")
    assert path.with_suffix(".1").read_text() == "before\n[Broker] notice one\n"
    assert path.read_text() == "[Broker] notice two\n"


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cannot be written: Is a directory; see --log-to-file"):
        Logging(Rules(["notice+"]), Sinks(stderr=False, file=str(tmp_path)), PLAIN)


def test_syslog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "syslog")
    monkeypatch.setattr(qstore.broker.log.sinks, "_SYSLOG_ADDRESS", address)
    sinks = Sinks(stderr=False, syslog=True, syslog_name="broker1", syslog_facility="LOG_LOCAL3")
    with pytest.raises(LogError, match="this system has no syslog"):
        Logging(Rules(["notice+"]), sinks, PLAIN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(address)
        server.settimeout(30)
        log = Logging(Rules(["trace+"]), sinks, PLAIN)
        log_of("Broker").notice("one")
        log_of("Broker").trace("two")
        log.close()
        lines = [server.recv(1000), server.recv(1000)]
    assert lines == [b"<157>broker1: [Broker] notice one\0", b"<159>broker1: [Broker] trace two\0"]  # 19 * 8 + 5, + 7


def test_an_unknown_facility() -> None:
    with pytest.raises(LogError, match="LOG_X"):
        Logging(Rules(["notice+"]), Sinks(stderr=False, syslog=True, syslog_facility="LOG_X"), PLAIN)


def test_a_log_that_is_closed_leaves_nothing_behind(make_log: MakeLog, path: Path) -> None:
    make_log().close()
    log_of("Broker").info("nothing")
    assert path.read_text() == ""


def test_a_file_that_cannot_be_reopened_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "qpidd.log"
    path.parent.mkdir()
    log = Logging(Rules(["info+"]), Sinks(stderr=False, file=str(path)), LineFormat(time=False))
    try:
        log_of("Broker").info("first")
        path.rename(tmp_path / "old.log")
        log.reopen()
        log_of("Broker").info("second")
        shutil.rmtree(path.parent)
        log_of("Broker").info("lost")
        with pytest.raises(LogError, match="No such file or directory; see --log-to-file"):
            log.reopen()
        path.parent.mkdir()
        log_of("Broker").info("third")
    finally:
        log.close()
    assert (tmp_path / "old.log").read_text() == "[Broker] info first\n"
    assert path.read_text() == "[Broker] info third\n"


# ---- the budget of log lines that peers can cause ----


def test_a_flood_is_cut_off_counted_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "Security")
    budget = LogBudget(log_of("Security"), WARNING, "failed logins")
    for number in range(1000):
        budget.write(100.0, "login %d", number)
    budget.on_timer(100.0 + PERIOD_SECONDS - 1)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"login {number}" for number in range(MAX_LINES)]
    caplog.clear()
    budget.on_timer(100.0 + PERIOD_SECONDS)
    budget.write(100.0 + PERIOD_SECONDS, "login %d", 1000)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"{1000 - MAX_LINES} more failed logins within 60 seconds; log level debug+ shows each of them"),
        ("WARNING", "login 1000"),
    ]


def test_a_line_now_and_then_is_always_written(caplog: pytest.LogCaptureFixture) -> None:
    budget = LogBudget(log_of("Security"), WARNING, "failed logins")
    for number in range(10 * MAX_LINES):
        budget.write(number * PERIOD_SECONDS / MAX_LINES, "%s", "x")
    assert [record.getMessage() for record in caplog.records] == ["x"] * (10 * MAX_LINES)


def test_debug_shows_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "Security")
    budget = LogBudget(log_of("Security"), WARNING, "failed logins")
    for number in range(100):
        budget.write(0.0, "login %d", number)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING"] * MAX_LINES + ["DEBUG"] * (100 - MAX_LINES)
