"""`qpid-ctrl`: calls methods, and prints what they return."""

from __future__ import annotations

import pytest

from qstore.tools import qpid_config, qpid_ctrl
from tests.tools.management_runs import Runs, broker, url  # noqa: F401 (fixtures)


@pytest.fixture
def ctrl(url: str) -> Runs:  # noqa: F811
    return Runs(qpid_ctrl.command, url)


def test_log_levels_as_the_manual_shows_them(ctrl: Runs) -> None:
    ctrl.text("setLogLevel", "level=debug+:Broker !debug-:broker::Broker::ManagementMethod")
    assert ctrl.text("getLogLevel") == "level=debug+:Broker,!debug-:broker::Broker::ManagementMethod\n"
    ctrl.text("setLogLevel", "level=notice+")
    assert ctrl.json("getLogLevel") == [{"kind": "result", "method": "getLogLevel", "results": {"level": "notice+"}}]


def test_a_method_of_any_object(ctrl: Runs, url: str) -> None:  # noqa: F811
    Runs(qpid_config.command, url).text("add", "queue", "orders")
    assert ctrl.text("--class", "queue", "--id", "orders", "purge", "request=0") == ""
    assert ctrl.text("-c", "queue", "-p", "org.apache.qpid.broker", "-i", "orders", "purge", "0") == ""
    assert ctrl.lines("echo", "sequence=7", "body=hello") == ["sequence=7", "body=hello"]
    assert ctrl.fails("--class", "queue", "--id", "nosuch", "purge") == "qpid-ctrl: there is no object queue nosuch\n"
    assert "the class broker has no method nosuch; its methods are: " in ctrl.fails("nosuch")
    assert "the argument sequence is uint32, not 'x'" in ctrl.fails("echo", "sequence=x")
