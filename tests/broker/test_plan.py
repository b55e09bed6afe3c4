"""Consequences of the options: modules, settings, and where the log goes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import qstore.broker.log.sinks
import qstore.broker.process.plan
from qstore.broker.log.logs import Rules, log_of
from qstore.broker.log.sinks import LineFormat, Logging, Sinks
from qstore.broker.model.memory import default_ceiling
from qstore.broker.process.modules import ModuleError
from qstore.broker.process.option_table import OptionError
from qstore.broker.process.plan import StartPlan, make_plan, settings_of, start_logging
from qstore.broker.settings import BrokerSettings

OPTIONS = """
# of a module that is named in the same file
num-jfiles=9
load-module=store
store-directory=/somewhere
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "qpidd.conf"
    file.write_text("")
    return file


@pytest.fixture
def plan_of(file: Path) -> StartPlan:
    return make_plan(["--config", str(file)], {})


def test_a_module_s_options_stand_in_the_file_and_the_environment(file: Path) -> None:
    file.write_text(OPTIONS)
    plan = make_plan(["--config", str(file), "--tpl-num-jfiles", "5"], {"QPID_JFILE_SIZE_PGS": "2"})
    assert plan.module is not None
    assert plan.module_values == {
        "num-jfiles": "9", "store-dir": "/somewhere", "tpl-num-jfiles": "5", "jfile-size-pgs": "2",
    }  # fmt: skip
    assert plan.warnings == []


def test_options_of_a_module_that_is_not_loaded(file: Path) -> None:
    file.write_text("num-jfiles=9\n")
    plan = make_plan(["--config", str(file)], {})
    assert plan.module is None
    (warning,) = plan.warnings
    assert warning == (
        f"{file}, line 1: num-jfiles is ignored: it is an option of module store, which is not loaded: "
        "add --load-module store"
    )
    with pytest.raises(OptionError, match=r"--num-jfiles is an option of .* add --load-module store$"):
        make_plan(["--config", str(file), "--num-jfiles=9"], {})


def test_modules_of_a_directory(file: Path, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "msgstore.so").touch()
    (tmp_path / "modules" / "rdma.so").touch()
    arguments = ["--config", str(file), "--module-dir", str(tmp_path / "modules")]
    plan = make_plan(arguments, {})
    assert plan.module is not None
    assert len(plan.warnings) == 1
    assert make_plan([*arguments, "--no-module-dir"], {}).module is None
    with pytest.raises(ModuleError, match="cannot be read"):
        make_plan(["--config", str(file), "--module-dir", str(file)], {})


def test_settings_without_options_are_the_default_ones(plan_of: StartPlan) -> None:
    assert settings_of(plan_of.values, None) == BrokerSettings(
        memory_bytes=default_ceiling(), queue_memory_bytes=default_ceiling() // 8
    )


def test_no_message_is_larger_than_a_quarter_of_the_memory(file: Path) -> None:
    settings = settings_of(make_plan(["--config", str(file), "--broker-memory=64MiB"], {}).values, None)
    quarter = 16 << 20
    assert (settings.memory_bytes, settings.max_message_bytes, settings.max_unfinished_bytes) == (
        64 << 20, quarter, quarter,
    )  # fmt: skip
    without = settings_of(make_plan(["--config", str(file), "--broker-memory=0"], {}).values, None)
    assert without == BrokerSettings()


def test_settings(file: Path) -> None:
    arguments = [
        "--config", str(file), "--port=1", "--interface=::1", "--connection-backlog=2", "--no-auth", "--auth-realm=R",
        "--user-file=u", "--max-connections=3", "--max-negotiate-time=4500", "--max-message-size=5M",
        "--default-queue-limit=6", "--enable-timestamp", "--tcp-nodelay=no", "--queue-purge-interval=0.5",
        "--default-flow-stop-threshold=90", "--default-flow-resume-threshold=75", "--default-event-threshold-ratio=0",
        "--default-msg-group=EMPTY-GROUP", "--broker-memory=9G", "--queue-memory=7M",
        "--max-paging-size=5G", "--staging-threshold=11K", "--deliver-before-sync=yes",
        "--dtx-default-timeout=7", "--dtx-max-timeout=8",
        "--websocket", "--websocket-origin=https://a.example", "--websocket-origin=https://b.example",
        "--replication-queue=events", "--create-replication-queue=yes", "--replication-listener-name=mirror",
        "--replication-exchange-name=x", "--replication-exchange-type=topic",
    ]  # fmt: skip
    assert settings_of(make_plan(arguments, {}).values, "/data") == BrokerSettings(
        port=1, interfaces=("::1",), backlog=2, data_directory="/data", auth=False, realm="R", user_file="u",
        max_connections=3, negotiate_seconds=4.5, max_message_bytes=5 << 20, queue_limit_bytes=6, enable_timestamp=True,
        tcp_nodelay=False, queue_purge_seconds=0.5, flow_stop_percent=90, flow_resume_percent=75,
        event_threshold_percent=0, default_message_group="EMPTY-GROUP", memory_bytes=9 << 30,
        queue_memory_bytes=7 << 20, paging_directory="/data/paging", max_paging_bytes=5 << 30, staging_bytes=11 << 10,
        deliver_before_sync=True,
        replication_queue="events", create_replication_queue=True, replication_listener="mirror",
        replication_exchange="x", replication_exchange_type="topic",
        dtx_default_timeout_seconds=7, dtx_max_timeout_seconds=8,
        websocket=True, websocket_origins=("https://a.example", "https://b.example"),
    )  # fmt: skip


def test_the_directory_for_paging(file: Path) -> None:
    plan = make_plan(["--config", str(file), "--paging-dir=/pages"], {})
    assert (
        settings_of(plan.values, None).paging_directory
        == settings_of(plan.values, "/data").paging_directory
        == "/pages"
    )


def test_the_data_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for words, directory in (
        ([], "/home/somebody/.qpidd"),
        (["--daemon"], "/var/lib/qpidd"),
        (["--data-dir=d", "-d"], "d"),
        (["--no-data-dir"], None),
    ):
        plan = make_plan(["--config", str(file), *words], {})
        assert plan.data_directory == directory
        assert plan.is_daemon is ("-d" in words or "--daemon" in words)


# ---- the log ----


def sinks_of(monkeypatch: pytest.MonkeyPatch, file: Path, *words: str, is_daemon: bool, has_syslog: bool) -> Sinks:
    made: list[Sinks] = []

    def make(_rules: Rules, sinks: Sinks, _parts: LineFormat) -> Logging:
        made.append(sinks)
        return Logging(Rules([]), Sinks(stderr=False), LineFormat())

    monkeypatch.setattr(qstore.broker.process.plan, "Logging", make)
    monkeypatch.setattr(qstore.broker.process.plan, "has_syslog", lambda: has_syslog)
    start_logging(make_plan(["--config", str(file), *words], {}).values, is_daemon=is_daemon).close()
    return made[0]


@pytest.mark.parametrize(
    ("words", "is_daemon", "sinks"),
    [
        ([], False, Sinks(stderr=True)),
        (["--log-to-stderr=no"], False, Sinks(stderr=False)),
        (["--log-to-stdout"], False, Sinks(stdout=True)),
        (["--log-to-file=f"], False, Sinks(file="f")),
        (["--log-output=stderr"], False, Sinks()),
        (["--log-output=stdout"], False, Sinks(stderr=False, stdout=True)),
        (["--log-output=syslog"], False, Sinks(stderr=False, syslog=True)),
        (["--log-output=f"], False, Sinks(stderr=False, file="f")),
        (["--log-output=f", "--log-to-file=f", "--log-to-stderr"], False, Sinks(file="f")),
        ([], True, Sinks(stderr=False, syslog=True)),
        (["--log-to-stdout", "--log-to-stderr"], True, Sinks(stderr=False, syslog=True)),
        (["--log-to-file=f"], True, Sinks(stderr=False, file="f")),
        (["--log-output=f"], True, Sinks(stderr=False, file="f")),
        (["--log-to-file=f", "--log-to-syslog"], True, Sinks(stderr=False, file="f", syslog=True)),
        (["--log-to-syslog=no"], True, Sinks(stderr=False)),
        (
            ["--log-to-syslog", "--syslog-name=n", "--syslog-facility=LOG_LOCAL1"], False,
            Sinks(syslog=True, syslog_name="n", syslog_facility="LOG_LOCAL1"),
        ),
    ],
)  # fmt: skip
def test_where_the_log_goes(
    monkeypatch: pytest.MonkeyPatch, file: Path, words: list[str], is_daemon: bool, sinks: Sinks
) -> None:
    assert sinks_of(monkeypatch, file, *words, is_daemon=is_daemon, has_syslog=True) == sinks


def test_a_daemon_without_syslog(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    assert sinks_of(monkeypatch, file, is_daemon=True, has_syslog=False) == Sinks(stderr=False)


def test_an_invalid_rule_is_reported_with_its_place(file: Path) -> None:
    file.write_text("log-enable=info+\nlog-disable=loud\n")
    with pytest.raises(OptionError, match=r'qpidd\.conf, line 2: log-disable: "loud" is not a log rule: give LEVEL'):
        make_plan(["--config", str(file)], {})
    with pytest.raises(OptionError, match='QPID_LOG_ENABLE: "x" is not a log rule'):
        make_plan([], {"QPID_LOG_ENABLE": "x"})


def test_a_log_with_two_files(file: Path) -> None:
    values = make_plan(["--config", str(file), "--log-output=a", "--log-to-file=b"], {}).values
    with pytest.raises(OptionError, match="name different files"):
        start_logging(values, is_daemon=False)


def test_a_line_in_syslog(monkeypatch: pytest.MonkeyPatch, file: Path, tmp_path: Path) -> None:
    address = str(tmp_path / "syslog")
    monkeypatch.setattr(qstore.broker.log.sinks, "_SYSLOG_ADDRESS", address)
    words = ["--log-output=syslog", "--syslog-name=broker1", "--syslog-facility=LOG_LOCAL3", "--log-time=no"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(address)
        server.settimeout(30)
        log = start_logging(make_plan(["--config", str(file), *words], {}).values, is_daemon=False)
        log_of("Broker").notice("one")
        log.close()
        assert server.recv(1000) == b"<157>broker1: [Broker] notice one\0"  # 19 * 8 + 5


def test_trace_logs_everything_that_is_not_disabled(file: Path, tmp_path: Path) -> None:
    words = ["--trace", "--log-disable=debug-:Store", f"--log-output={tmp_path}/log", "--log-time=no"]
    log = start_logging(make_plan(["--config", str(file), *words], {}).values, is_daemon=False)
    for category in ("Broker", "Store"):
        log_of(category).trace("one")
        log_of(category).info("two")
    log.close()
    assert (tmp_path / "log").read_text().splitlines() == [
        "[Broker] trace one", "[Broker] info two", "[Store] info two",
    ]  # fmt: skip


def test_qpidd_s_names_of_the_versions_of_amqp(file: Path) -> None:
    file.write_text("protocols=amqp0-10,amqp1.0 0-10\n")
    assert settings_of(make_plan(["--config", str(file)], {}).values, None).protocols == ("0-10", "1.0")
    file.write_text("protocols=amqp2.0\n")
    with pytest.raises(OptionError, match=r"--protocols: '2\.0' is not supported; the versions of AMQP are 0-10"):
        settings_of(make_plan(["--config", str(file)], {}).values, None)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--protocols= , ", "--protocols: the value must name at least one"),
        ("--sasl-mechanisms= ", "--sasl-mechanisms: the value must name at least one"),
        ("--rabbitmq-version=four", '--rabbitmq-version: "four" is not a release of RabbitMQ, such as 4.1.0'),
        ("--rabbitmq-version=4.1.0;x", "is not a release of RabbitMQ"),
    ],
)
def test_a_value_that_says_nothing_is_refused(file: Path, line: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        settings_of(make_plan(["--config", str(file), line], {}).values, None)


@pytest.mark.parametrize("version", ["4.1", "3.13.7", "4.1.0-rc.1", "4.1.0+alpha.1"])
def test_releases_of_rabbitmq(file: Path, version: str) -> None:
    values = make_plan(["--config", str(file), f"--rabbitmq-version={version}"], {}).values
    assert settings_of(values, None).rabbitmq_version == version


def test_intervals_of_statistics(file: Path) -> None:
    def intervals(*given: str) -> tuple[float, ...]:
        return settings_of(make_plan(["--config", str(file), *given], {}).values, None).log_statistics

    assert intervals() == ()
    assert intervals("--log-statistics", "3600,60s") == (60, 3600)
    for value in ("0.5", "60,x", "1,2,3,4,5", "9999999", ","):
        with pytest.raises(OptionError, match="is not one to 4 intervals of 1 to 604,800 seconds"):
            intervals("--log-statistics", value)
    with pytest.raises(OptionError, match="needs management"):
        intervals("--log-statistics", "60", "--mgmt-enable", "no")
