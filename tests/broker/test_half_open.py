"""Which half-open connection is displaced, and that finding it takes the same time for any number of hosts."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.network.clients import HalfOpen


@dataclass(eq=False)
class Connection:
    """A connection that a test opens."""

    host: str
    is_half_open: bool = True


HOSTS = st.sampled_from("abcd")


@given(st.lists(st.tuples(st.sampled_from(["add", "add", "close", "open", "take"]), HOSTS, st.integers(0, 9))))
def test_the_oldest_of_the_host_with_the_most_is_taken(steps: list[tuple[str, str, int]]) -> None:
    half_open: HalfOpen[Connection] = HalfOpen()
    model: dict[str, list[Connection]] = {}
    for step, host, number in steps:
        own = model.setdefault(host, [])
        if step == "add":
            own.append(Connection(host))
            half_open.add(host, own[-1])
        elif step == "take":
            most = max(map(len, model.values()))
            taken = half_open.take()
            if not most:
                assert taken is None
            else:
                assert taken is not None
                assert len(model[taken.host]) == most
                assert model[taken.host].pop(0) is taken
        elif own:
            one = own.pop(number % len(own))
            one.is_half_open = False
            for _ in range(2):
                half_open.remove(host, one)


def test_connections_that_were_opened_are_passed_over() -> None:
    half_open: HalfOpen[Connection] = HalfOpen()
    connections = [Connection("a") for _ in range(5)]
    for each in connections:
        half_open.add("a", each)
        each.is_half_open = each is connections[3]
    assert half_open.take() is connections[3]
    assert half_open.take() is None


def test_a_hundred_thousand_hosts_take_no_longer_than_one() -> None:
    half_open: HalfOpen[Connection] = HalfOpen()
    for number in range(100_000):
        half_open.add(f"host{number}", Connection(f"host{number}"))
    began = time.process_time()
    for number in range(50_000):
        newcomer = Connection(f"new{number}")
        assert half_open.take() is not None
        half_open.add(newcomer.host, newcomer)
    assert time.process_time() - began < 2.0  # a search among the hosts takes 5 ms each time
