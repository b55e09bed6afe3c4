"""Node policies of a broker that runs, made with `qpid-config`: what links make by them, over restarts and kills."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from proton.utils import BlockingConnection, LinkDetached

from qstore.tools import qpid_config
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker
from tests.system.shovels import managing

__all__ = ["make_broker"]


def config(broker: RunningBroker, *words: str) -> str:
    """Run `qpid-config`."""
    result = CliRunner().invoke(qpid_config.command, ("-b", f"127.0.0.1:{broker.port}", *words))
    assert result.exit_code == 0, result.output
    return result.output


def names(broker: RunningBroker, kind: str) -> set[str]:
    with managing(broker.port) as console:
        return {str(dict(each.values)["name"]) for each in console.query(kind)}


def attaches(broker: RunningBroker, name: str) -> bool:
    """Whether a sender to a name is attached; it is closed again."""
    connection = BlockingConnection(f"127.0.0.1:{broker.port}", timeout=60)
    try:
        connection.create_sender(name).close()
    except LinkDetached:
        return False
    finally:
        connection.close()
    return True


@pytest.mark.parametrize("is_killed", [False, True])
def test_durable_policies_are_there_after_a_restart(make_broker: BrokerMaker, is_killed: bool) -> None:
    broker = make_broker().start()
    config(broker, "add", "QueuePolicy", "^jobs-", "--durable", "--argument", "qpid.max_count=5")
    config(broker, "add", "TopicPolicy", "^news-", "--argument", "durable=true", "--argument", "exchange-type=fanout")
    config(broker, "add", "QueuePolicy", "^passing-")
    assert attaches(broker, "passing-1")
    assert names(broker, "queuePolicy") == {"^jobs-", "^passing-"}
    if is_killed:
        broker.kill()
    else:
        broker.stop()
    broker.start()
    assert names(broker, "queuePolicy") == {"^jobs-"}
    assert names(broker, "topicPolicy") == {"^news-"}
    assert [attaches(broker, each) for each in ("jobs-1", "news-1", "passing-2")] == [True, True, False]
    assert "jobs-1" in names(broker, "queue")
    assert "news-1" in names(broker, "exchange")
    config(broker, "del", "QueuePolicy", "^jobs-")
    config(broker, "del", "TopicPolicy", "^news-")
    assert not attaches(broker, "jobs-2")
    assert attaches(broker, "jobs-1")
