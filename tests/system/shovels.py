"""Shovels between brokers that run: setting and watching them, and queues that are filled and read."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika

from qstore.broker.management.console.blocking import Console
from tests.support.processes import PATIENCE_SECONDS

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def wait_until(is_true: Callable[[], Any], what: str) -> Any:
    """Wait until something holds, and return it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := is_true()):
        assert time.monotonic() < end, f"{what}: not within {PATIENCE_SECONDS} s"
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def managing(port: int) -> Iterator[Console]:
    with Console(f"127.0.0.1:{port}") as console:
        yield console


def set_shovel(console: Console, name: str, **value: Any) -> None:
    """Set a shovel; keys with underscores."""
    given = {key.replace("_", "-"): each for key, each in value.items()}
    properties = {"vhost": "/", "component": "shovel", "value": json.dumps(given)}
    console.call("broker", "create", {"type": "parameter", "name": name, "properties": properties, "strict": True})


def delete_shovel(console: Console, name: str) -> None:
    options = {"vhost": "/", "component": "shovel"}
    console.call("broker", "delete", {"type": "parameter", "name": name, "options": options})


def shovels(console: Console) -> dict[str, dict[str, Any]]:
    """Name -> values of each shovel."""
    return {str(each.get("name")): dict(each.values) for each in console.query("shovel")}


def wait_for_state(console: Console, name: str, state: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = shovels(console).get(name)
        return found if found is not None and found["state"] == state else None

    result: dict[str, Any] = wait_until(look, f"shovel {name} is {state}")
    return result


@contextlib.contextmanager
def channel_to(port: int) -> Iterator[Any]:
    parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
    with pika.BlockingConnection(parameters) as connection:
        yield connection.channel()


def fill(port: int, queue: str, bodies: list[bytes], properties: pika.BasicProperties = PERSISTENT) -> None:
    """Declare a durable queue, and publish messages with confirms."""
    with channel_to(port) as channel:
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", queue, body, properties, mandatory=True)


def drain(port: int, queue: str) -> list[tuple[Any, Any, bytes]]:
    """Take everything from a queue. It stays taken, also if the broker is killed next: only a commit promises that."""
    found = []
    with channel_to(port) as channel:
        channel.tx_select()
        while True:
            method, properties, body = channel.basic_get(queue)
            if method is None:
                break
            channel.basic_ack(method.delivery_tag)
            found.append((method, properties, body))
        channel.tx_commit()
    return found


def depth(port: int, queue: str) -> int:
    with channel_to(port) as channel:
        return int(channel.queue_declare(queue, passive=True).method.message_count)
