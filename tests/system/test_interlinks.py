"""Links through domains between brokers that run, made with `qpid-config`: kills, restarts, what is shown of them."""

from __future__ import annotations

import random

import pytest
from click.testing import CliRunner

from qstore.broker.client import Connection, Empty, Message, MessagingError, Receiver, Sender
from qstore.tools import qpid_config, qstore_dump
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker
from tests.system.shovels import depth, drain, fill, managing, wait_until

__all__ = ["make_broker"]

SMALL = ("--link-maintenance-interval", "0.1")
KILLS = 6
BODIES = [b"%d" % number for number in range(2400)]


def config(broker: RunningBroker, *words: str) -> str:
    """Run `qpid-config`."""
    result = CliRunner().invoke(qpid_config.command, ("-b", f"127.0.0.1:{broker.port}", *words))
    assert result.exit_code == 0, result.output
    return result.output


def state_of(broker: RunningBroker, name: str) -> dict[str, object]:
    with managing(broker.port) as console:
        (found,) = [dict(each.values) for each in console.query("interlink") if each.get("name") == name]
    return found


def link(broker: RunningBroker, direction: str, source: str, target: str, *more: str) -> None:
    ends = ("--argument", "domain=far", "--argument", f"source={source}", "--argument", f"target={target}")
    config(broker, "add", direction, "l", *ends, *more)


@pytest.mark.parametrize("direction", ["incoming", "outgoing"])
def test_nothing_is_lost_when_either_broker_is_killed(make_broker: BrokerMaker, direction: str) -> None:
    chance = random.Random(7)
    here, far = make_broker(*SMALL).start(), make_broker().start()
    ports = {here: here.port, far: far.port}
    source, target = (far, here) if direction == "incoming" else (here, far)
    fill(source.port, "a", [])
    fill(target.port, "b", [])
    config(here, "add", "domain", "far", "--durable", "--argument", f"url=127.0.0.1:{far.port}")
    link(here, direction, "a", "b", "--durable")
    for kill in range(KILLS):
        begin, end = kill * len(BODIES) // KILLS, (kill + 1) * len(BODIES) // KILLS
        fill(ports[source], "a", BODIES[begin:end])
        victim = chance.choice((here, far))
        victim.kill()
        victim.launch("--port", str(ports[victim]))
        wait_until(lambda victim=victim: _answers(ports[victim]), "it is back")  # type: ignore[misc]

    def is_done() -> bool:
        found = state_of(here, "l")
        return found["state"] == "running" and not found["pending"] and not depth(ports[source], "a")

    here.port, far.port = ports[here], ports[far]
    wait_until(is_done, "all have moved")
    numbers = [int(body) for _, _, body in drain(ports[target], "b")]
    assert set(numbers) == set(range(len(BODIES)))
    first = list(dict.fromkeys(numbers))
    assert first == sorted(first), "messages come in order the first time"


def _answers(port: int) -> bool:
    try:
        with managing(port) as console:
            list(console.query("broker"))
    except Exception:
        return False
    return True


def test_what_is_made_is_shown_without_its_password_until_it_is_deleted(make_broker: BrokerMaker) -> None:
    here, far = make_broker(*SMALL, "--log-enable", "debug+").start(), make_broker().start()
    fill(here.port, "b", [])
    fill(far.port, "a", [b"1", b"2"])
    secret = ("--argument", "username=guest", "--argument", "password=very-secret")
    plain = ("--argument", "sasl_mechanisms=PLAIN SCRAM-SHA-256 ANONYMOUS")
    config(here, "add", "domain", "far", "--durable", "--argument", f"url=127.0.0.1:{far.port}", *secret, *plain)
    link(here, "incoming", "a", "b")
    wait_until(lambda: state_of(here, "l")["state"] == "running", "it runs")
    wait_until(lambda: depth(here.port, "b") == 2, "the messages have come")
    shown = config(here, "list", "domain") + config(here, "list", "interlink") + config(here, "list", "incoming")
    assert f"127.0.0.1:{far.port}" in shown
    assert "guest" in shown
    lines = [each for each in config(here, "list", "incoming").splitlines() if "far" in each.split()]
    assert len(lines) == 1
    assert lines[0].split()[-1] == "2"
    (there,) = [each for each in config(far, "list", "outgoing").splitlines() if each.split()[:1] == ["l"]]
    assert there.split()[-1] == "2"
    config(here, "del", "incoming", "l")
    wait_until(lambda: not [each for each in config(far, "list", "outgoing").splitlines() if "l" in each.split()], "")
    assert here.stop() == 0
    dumped = CliRunner().invoke(qstore_dump.command, ["--topology", str(here.data_directory)]).output
    assert "domain" in dumped
    for text in (here.log_text(), shown, dumped):
        assert "very-secret" not in text
    here.start()
    assert "far" in config(here, "list", "domain")
    config(here, "del", "domain", "far")
    assert "guest" not in config(here, "list", "domain")


def _send_each(sender: Sender, bodies: list[bytes]) -> None:
    for body in bodies:
        sender.send(Message(body, durable=True), sync=True)


def test_what_a_client_sends_through_a_domain_is_there_when_it_is_accepted(make_broker: BrokerMaker) -> None:
    here, far = make_broker().start(), make_broker().start()
    port = far.port
    fill(port, "b", [])
    config(here, "add", "domain", "far", "--argument", f"url=127.0.0.1:{port}")
    options = {"protocol": "amqp1.0", "reconnect": False}
    with Connection(f"127.0.0.1:{here.port}", **options) as connection:
        sender = connection.session().sender("b@far", capacity=50)
        for body in BODIES[:500]:
            sender.send(Message(body, durable=True), sync=False)
        sender.sync()
        far.kill()
        with pytest.raises(MessagingError):
            _send_each(sender, BODIES[500:])
    far.launch("--port", str(port))
    wait_until(lambda: _answers(port), "it is back")
    with Connection(f"127.0.0.1:{here.port}", **options) as connection:
        connection.session().sender("b@far").send(Message(b"last", durable=True), sync=True)
    found = [body for _, _, body in drain(port, "b")]
    assert found[:500] == BODIES[:500]
    assert found[-1] == b"last"


def _fetch_for_ever(receiver: Receiver) -> None:
    while True:
        receiver.fetch(timeout=PATIENCE_SECONDS)


def test_what_a_client_receives_through_a_domain_is_gone_there_once_its_accept_is_answered(
    make_broker: BrokerMaker,
) -> None:
    """A broker that is killed, either one, takes no accept back that it has settled, and no other message."""
    here, far = make_broker().start(), make_broker().start()
    ports = {here: here.port, far: far.port}
    fill(far.port, "a", BODIES[:600])
    config(here, "add", "domain", "far", "--durable", "--argument", f"url=127.0.0.1:{ports[far]}")
    accepted: list[int] = []
    options = {"protocol": "amqp1.0", "reconnect": False}
    for victim, count in ((far, 200), (here, 200), (None, 200)):
        with Connection(f"127.0.0.1:{ports[here]}", **options) as connection:
            session = connection.session()
            receiver = session.receiver("a@far", capacity=50)
            for _ in range(count):
                message = receiver.fetch(timeout=PATIENCE_SECONDS)
                session.acknowledge(message, sync=True)
                accepted.append(int(message.content))
            if victim is None:
                with pytest.raises(Empty):
                    receiver.fetch(timeout=0)
                break
            receiver.fetch(timeout=PATIENCE_SECONDS)  # it stays in the domain
            victim.kill()
            with pytest.raises(MessagingError):
                _fetch_for_ever(receiver)
        victim.launch("--port", str(ports[victim]))
        wait_until(lambda victim=victim: _answers(ports[victim]), "it is back")  # type: ignore[misc]
    assert sorted(accepted) == [int(body) for body in BODIES[:600]]
    assert depth(ports[far], "a") == 0


def test_a_domain_that_is_not_there_yet_is_connected_when_it_comes(make_broker: BrokerMaker) -> None:
    here, far = make_broker(*SMALL).start(), make_broker().start()
    port = far.port
    fill(far.port, "b", [])
    assert far.stop() == 0
    fill(here.port, "a", [b"1"])
    config(here, "add", "domain", "far", "--argument", f"url=127.0.0.1:{port}", "--argument", "sasl_mechanisms=NONE")
    link(here, "outgoing", "a", "b")
    wait_until(lambda: state_of(here, "l")["failures"], "it has failed")
    assert "refused" in str(state_of(here, "l")["reason"]).lower()
    far.launch("--port", str(port))
    wait_until(lambda: not depth(here.port, "a"), "the message has gone")
    assert [body for _, _, body in drain(port, "b")] == [b"1"]
