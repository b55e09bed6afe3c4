"""The time of day may be set at any time, by NTP after a boot for example: no duration depends on it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.codes import XaStatus
from qstore.formats.amqp_0_10.structs import BranchId
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import World, header
from tests.conformance.queue_clients import arguments, detach, pass_time
from tests.support.management_console import managed

YEAR: Final = 366 * 86_400.0
XID: Final = BranchId(1, b"global", b"branch")
HOUSE: Final = Path(__file__).parents[2]

TIME_OF_DAY: Final = {
    "broker/federation/peer.py": "when a connection was made, which is shown",
    "broker/federation/shovel.py": "since when a shovel is in its state, which is shown, and the time in x-shovelled",
    "broker/federation/upstreams.py": "since when a link is in its state, which is shown",
    "broker/log/sinks.py": "the time of a line in the log",
    "broker/management/agent_library.py": "when objects were created, changed and deleted, and the agent started",
    "broker/management/console/qmf_console.py": "times that callbacks are given",
    "broker/model/broker.py": "stamps: expirations of messages, which are stored, and times that are shown",
    "broker/model/queues/queue.py": "the same, of a queue without a broker",
    "broker/process/telemetry.py": "the beginnings and ends of spans, which collectors place in time",
    "broker/protocols/amqp_1_0/filters.py": "what UTC() in a filter of a client means",
    "broker/security/sasl/md5.py": "a part of the challenge, as RFC 2195 has it",
    "store/environment.py": "stamps in the files of a journal",
    "tools/console/amounts.py": "times that are shown",
    "tools/interchange/broker.py": "when an import was done, and what is left of the expirations of stored messages",
    "tools/load/clients.py": "when messages were sent, for receivers in other processes",
    "tools/messaging.py": "the timestamp of a message, with which its receiver shows how long it was under way",
    "tools/qpid_printevents.py": "when an event of its own has happened",
    "tools/qpid_stat.py": "how long ago something was, by the time that the broker has stamped",
    "tools/qstore_export.py": "when an export was made",
    "tools/qstore_import.py": "times that are shown",
    "tools/qstore_replay.py": "which stored messages have expired",
    "tools/spark/analysis.py": "when a report was made",
    "tools/web/collector.py": "when a sample was taken, for the axis of a plot; its rates use the monotonic clock",
    "tools/web/federation.py": "times that are shown",
    "tools/web/resources.py": "since when an alarm is on, and how long a certificate is valid",
}
"""The modules that read the time of day, and what for: stamps, never durations."""


@pytest.mark.parametrize("step", [YEAR, -YEAR])
def test_nothing_ends_early_or_late_when_the_time_of_day_is_set(step: float) -> None:
    world = World(BrokerSettings(auth=False, dtx_default_timeout_seconds=60))
    kept = world.open_client(timeout=60)
    kept.declare("timeout", auto_delete=True, exclusive=True, arguments=arguments({"qpid.auto_delete_timeout": 60}))
    detach(kept)
    owner = world.open_client(name=b"owner")
    owner.declare("unused", auto_delete=True, arguments=arguments({"qpid.auto_delete_timeout": 60}))
    owner.subscribe("unused")
    owner.command("message.cancel", destination="unused")
    owner.sync()
    classic = BasicClient(world).open()
    classic.call("queue.declare", queue="expires", arguments={"x-expires": 60_000})
    manager = world.open_client(name=b"manager")
    manager.command("dtx.select")
    assert manager.call("dtx.start", xid=XID)["status"] == XaStatus.XA_OK
    uptime = managed(world.broker).uptime

    def present() -> tuple[set[str], bool, bool]:
        branch = next(iter(world.broker.distributed.branches.values()))
        is_active = world.broker.distributed.status_of(branch).name == "OK"
        return (
            {*world.broker.default_host.queues},
            world.sessions.find(kept.machine.user, kept.machine.virtual_host, b"session") is not None,
            is_active,
        )

    before = present()
    assert before == ({"timeout", "unused", "expires"}, True, True)
    world.stepped += step
    pass_time(world, 1)
    assert present() == before
    assert managed(world.broker).uptime - uptime == 1_000_000_000
    pass_time(world, 58.9)
    assert present() == before
    pass_time(world, 0.2)
    assert present() == ({"timeout"}, False, False)  # whose time begins with the end of its session
    world.stepped -= step
    pass_time(world, 59.9)
    assert "timeout" in world.broker.default_host.queues
    pass_time(world, 0.2)
    assert "timeout" not in world.broker.default_host.queues


def test_messages_expire_by_the_time_of_day_since_their_expiration_is_stored() -> None:
    world = World()
    client = world.open_client()
    client.declare("q")
    client.command("message.transfer", header=header(routing_key="q", ttl=1000), body=b"x")
    client.sync()
    (entry,) = world.broker.default_host.queues["q"].entries()
    assert entry.message.expires_at == world.broker.clock() + 1
    world.stepped -= YEAR
    world.now += 10
    assert world.broker.expire() == 0
    world.run()
    world.stepped += YEAR
    assert world.broker.expire() == 1


def _readings(path: Path) -> Iterator[str]:
    """Where a module reads the time of day."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name in {
                "time.time",
                "time.time_ns",
                "datetime.now",
                "datetime.utcnow",
                "time.gmtime",
                "time.localtime",
            }:
                yield name


def test_only_stamps_are_taken_from_the_time_of_day() -> None:
    found = {
        path.relative_to(HOUSE).as_posix()
        for room in ("broker", "store", "formats", "tools")
        for path in sorted((HOUSE / room).rglob("*.py"))
        if any(_readings(path))
    }
    assert found == {*TIME_OF_DAY}
