"""AMQP 1.0: dispositions that are read together, and continue one another, are handled as one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.protocols.amqp_1_0.session import Session
from qstore.formats.amqp_1_0.composites import BY_NAME, Composite, encode_composite
from qstore.formats.amqp_1_0.frames import encode_frame
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.test_links_delivered_runs import FAILED, fill, left
from tests.broker.protocols.world import World
from tests.support.compiled import replaces
from tests.support.sections_peer import ACCEPTED, REJECTED, RELEASED

COUNT = 60


def frame(first: int, last: int | None, state: Composite | None, *, settled: bool, large: bool = False) -> bytes:
    """A disposition; with `large`, its numbers are in their longest form."""
    fields = {"role": True, "first": first, "last": last, "settled": settled, "state": state}
    whole = encode_composite("disposition", fields)
    if large:
        items = b"\x41" + b"".join(b"\x40" if each is None else b"\x70" + each.to_bytes(4) for each in (first, last))
        items += b"\x41" if settled else b"\x42"
        items += b"" if state is None else encode_composite(state.name, state.fields)
        count = 4 if state is None else 5
        whole = BY_NAME["disposition"].head + bytes((0xC0, len(items) + 1, count)) + items
    return encode_frame(0, whole)


def reading(next_delivery: int = 0) -> tuple[World, LinksClient]:
    """A client with unsettled deliveries: the first is single, the others are in runs."""
    world = World()
    make_queue(world)
    fill(world, COUNT)
    client = LinksClient(world).open().receiver("q", credit=0)
    client.machine.sessions[0].next_delivery = next_delivery
    client.credit(COUNT)
    assert len(client.messages()) == COUNT
    return world, client


def told(client: LinksClient) -> set[tuple[int, str]]:
    """The deliveries that the broker has settled, and their outcomes."""
    return {(number, state) for first, last, state in client.outcomes() for number in range(first, last + 1)}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("last_is_given", [False, True])
@pytest.mark.parametrize("settled", [False, True])
@replaces
def test_single_acceptances_are_handled_together(
    large: bool, last_is_given: bool, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, client = reading()
    seen: list[dict[str, Any]] = []
    sound = Session._on_disposition

    def noting(session: Session, fields: dict[str, Any]) -> None:
        seen.append(dict(fields))
        sound(session, fields)

    monkeypatch.setattr(Session, "_on_disposition", noting)
    frames = [
        frame(number, number if last_is_given else None, ACCEPTED, settled=settled, large=large)
        for number in range(COUNT)
    ]
    before = client.machine.assembler.frames
    client.send(b"".join(frames))
    client.sync()
    assert (seen[0]["first"], seen[-1]["last"]) == (0, COUNT - 1)
    assert len(seen) <= 2  # the first one has a number of no bytes
    assert client.machine.assembler.frames - before >= COUNT
    assert told(client) == (set() if settled else {(number, "accepted") for number in range(COUNT)})
    assert left(world) == 0


def test_ranges_over_the_end_of_numbers_are_joined() -> None:
    world, client = reading((1 << 32) - 20)
    client.send(
        frame((1 << 32) - 20, (1 << 32) - 1, ACCEPTED, settled=True) + frame(0, 9, ACCEPTED, settled=True, large=True)
    )
    client.sync()
    assert left(world) == COUNT - 30


_STEPS = st.lists(
    st.tuples(
        st.integers(-3, 3),  # where it begins, after the end of the one before
        st.integers(-2, 12),  # how many deliveries it has
        st.sampled_from([ACCEPTED, ACCEPTED, ACCEPTED, RELEASED, REJECTED, FAILED, None]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


@given(steps=_STEPS, cut=st.integers(0, 400))
def test_what_is_read_together_has_the_outcomes_of_what_is_read_singly(
    steps: list[tuple[int, int, Composite | None, bool, bool]], cut: int
) -> None:
    frames, at = [], 0
    for skipped, count, state, settled, large in steps:
        first = max(0, at + skipped)
        last = max(0, first + count - 1)
        at = max(at, last + 1)
        frames.append(frame(first, last, state, settled=settled, large=large))
    results = []
    whole = b"".join(frames)
    for parts in (frames, [whole], [whole[:cut], whole[cut:]]):
        world, client = reading()
        for part in parts:
            client.send(part)
        client.sync()
        session = client.machine.sessions[0]
        queue = world.broker.default_host.queues["q"]
        marked = sorted((entry.position, entry.is_redelivered) for entry in queue.available())
        results.append((told(client), left(world), session.unsettled_count, marked, queue.acquired_count))
    assert results[0] == results[1] == results[2]


def test_a_range_that_ends_before_it_begins_is_not_joined() -> None:
    """There is no delivery in it, and those of the range before it stay accepted."""
    world, client = reading()
    wrong = frame(19, 14, ACCEPTED, settled=True, large=True)
    client.send(frame(10, 18, ACCEPTED, settled=True, large=True) + wrong)
    client.sync()
    assert left(world) == COUNT - 9


@given(data=st.binary(max_size=40), at=st.integers(0, 60))
def test_a_damaged_disposition_is_not_joined(data: bytes, at: int) -> None:
    """Whatever follows one that is sound is handled as if it was read by itself."""
    sound = frame(0, 0, ACCEPTED, settled=True, large=True)
    following = frame(1, 3, ACCEPTED, settled=True, large=True)
    body = following[8:]
    damaged = body[:at] + data + body[at + len(data) :]
    results = []
    for parts in ([sound + encode_frame(0, damaged)], [sound, encode_frame(0, damaged)]):
        world, client = reading()
        for part in parts:
            client.send(part)
        world.run()
        results.append((left(world), client.machine.phase, [each.name for each in client.received]))
    assert results[0] == results[1]
