"""Declaring, deleting and asking about exchanges, as clients see it."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.values import typed_map
from tests.broker.protocols.world import Client, World


@pytest.fixture
def client() -> Client:
    client = World().open_client()
    for name in ("bound", "unbound"):
        client.declare(name)
    return client


def ask(client: Client, **asked: Any) -> set[str]:
    """What of a binding is said not to be there."""
    return {name for name, missing in client.call("exchange.bound", **asked).items() if missing}


class TestDeclare:
    @pytest.mark.parametrize("type_name", ["x-none", "Replication", "Direct", ""])
    def test_types_that_are_not_there(self, client: Client, type_name: str) -> None:
        at = client.command("exchange.declare", exchange="x", type=type_name)
        assert client.failure() == (ErrorCode.NOT_FOUND, at)
        assert client.exceptions[0]["description"] == f"Exchange type not implemented: {type_name}"
        assert "x" not in client.world.broker.default_host.exchanges

    def test_arguments_come_back(self, client: Client) -> None:
        arguments = typed_map({"qpid.msg_sequence": 1, "qpid.ive": True, "who.knows": "what"})
        client.command("exchange.declare", exchange="x", type="topic", durable=True, arguments=arguments)
        found = client.call("exchange.query", name="x")
        assert (found["type"], found["durable"], found["not_found"]) == ("topic", True, False)
        assert found["arguments"] == arguments

    def test_declaring_again_with_other_arguments_changes_nothing(self, client: Client) -> None:
        client.command("exchange.declare", exchange="x", type="direct")
        client.command("exchange.declare", exchange="x", type="direct", arguments=typed_map({"qpid.ive": 1}))
        assert len(client.call("exchange.query", name="x")["arguments"] or ()) == 0


class TestDelete:
    def test_if_unused_asks_for_bindings(self, client: Client) -> None:
        client.command("exchange.declare", exchange="x", type="fanout")
        client.command("exchange.bind", exchange="x", queue="bound", binding_key="")
        at = client.command("exchange.delete", exchange="x", if_unused=True)
        assert client.failure() == (ErrorCode.PRECONDITION_FAILED, at)
        assert "x" in client.world.broker.default_host.exchanges

    def test_if_unused_when_the_last_binding_is_gone(self, client: Client) -> None:
        client.command("exchange.declare", exchange="x", type="fanout")
        client.command("exchange.bind", exchange="x", queue="bound", binding_key="")
        client.command("exchange.unbind", exchange="x", queue="bound", binding_key="")
        client.command("exchange.delete", exchange="x", if_unused=True)
        client.sync()
        assert not client.exceptions
        assert "x" not in client.world.broker.default_host.exchanges

    def test_with_its_bindings_unless_it_is_asked(self, client: Client) -> None:
        client.command("exchange.declare", exchange="x", type="direct")
        client.command("exchange.bind", exchange="x", queue="bound", binding_key="k")
        client.command("exchange.delete", exchange="x")
        assert ask(client, exchange="x", queue="bound") == {"exchange_not_found"}


class TestBound:
    @pytest.mark.parametrize("exchange", ["amq.direct", "amq.topic"])
    def test_by_key(self, client: Client, exchange: str) -> None:
        client.command("exchange.bind", exchange=exchange, queue="bound", binding_key="k")
        assert ask(client, exchange=exchange) == set()
        assert ask(client, exchange=exchange, queue="bound") == set()
        assert ask(client, exchange=exchange, binding_key="k") == set()
        assert ask(client, exchange=exchange, queue="bound", binding_key="k") == set()
        assert ask(client, exchange=exchange, queue="unbound") == {"queue_not_matched"}
        assert ask(client, exchange=exchange, binding_key="other") == {"key_not_matched"}
        assert ask(client, exchange=exchange, queue="bound", binding_key="other") == {"key_not_matched"}
        assert ask(client, exchange=exchange, queue="unbound", binding_key="k") == {"queue_not_matched"}
        assert ask(client, exchange=exchange, queue="unbound", binding_key="other") == {
            "queue_not_matched",
            "key_not_matched",
        }

    def test_by_headers(self, client: Client) -> None:
        red, blue = (typed_map({"x-match": "all", "colour": colour}) for colour in ("red", "blue"))
        client.command("exchange.bind", exchange="amq.match", queue="bound", binding_key="k", arguments=red)
        asked: dict[str, Any] = {"exchange": "amq.match"}
        assert ask(client, **asked, arguments=red) == set()
        assert ask(client, **asked, arguments=blue) == {"args_not_matched"}
        assert ask(client, **asked, queue="bound", binding_key="k", arguments=red) == set()
        assert ask(client, **asked, queue="bound", binding_key="k", arguments=blue) == {"args_not_matched"}
        assert ask(client, **asked, queue="unbound", binding_key="other", arguments=blue) == {
            "queue_not_matched",
            "key_not_matched",
            "args_not_matched",
        }

    def test_fanout_asks_for_the_queue_alone(self, client: Client) -> None:
        client.command("exchange.bind", exchange="amq.fanout", queue="bound", binding_key="k")
        assert ask(client, exchange="amq.fanout", queue="bound", binding_key="other") == set()
        assert ask(client, exchange="amq.fanout", queue="unbound", binding_key="k") == {"queue_not_matched"}

    @pytest.mark.parametrize("exchange", [None, ""])
    def test_the_default_exchange_has_every_queue_under_its_name(self, client: Client, exchange: str | None) -> None:
        assert ask(client, exchange=exchange, queue="bound") == set()
        assert ask(client, exchange=exchange, binding_key="unbound") == set()
        assert ask(client, exchange=exchange, queue="bound", binding_key="bound") == set()
        assert ask(client, exchange=exchange, queue="bound", binding_key="unbound") == {"key_not_matched"}
        assert ask(client, exchange=exchange, queue="none") == {"queue_not_found"}

    def test_missing_exchange_and_queue_are_reported(self, client: Client) -> None:
        assert ask(client, exchange="none") == {"exchange_not_found"}
        assert ask(client, exchange="none", queue="bound", binding_key="k") == {"exchange_not_found"}
        assert ask(client, exchange="none", queue="none") == {"exchange_not_found", "queue_not_found"}
        assert ask(client, exchange="amq.direct", queue="none", binding_key="k") == {"queue_not_found"}
