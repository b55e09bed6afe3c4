"""Sessions that one connection takes from another while a command of theirs is under way."""

from __future__ import annotations

from tests.broker.protocols.world import World


def test_all_connections_go_on_when_the_command_is_done() -> None:
    """A session that is taken over twice during a declaration: the connection in the middle is read again, too."""
    world = World()
    clients = [world.open_client(name=None) for _ in range(3)]
    clients[0].attach(b"wanted", timeout=60)
    clients[0].command("queue.declare", queue="q")
    for client in clients[1:]:
        client.control("session.attach", on=1, name=b"wanted", force=True)
    assert [client.machine.is_paused for client in clients] == [True] * 3
    world.run()
    assert [client.machine.is_paused for client in clients] == [False] * 3
    for number, client in enumerate(clients):
        client.attach(b"%d" % number, on=2)
        assert client.call("queue.query", on=2, queue="q")["queue"] == "q"
