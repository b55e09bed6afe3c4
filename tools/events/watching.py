"""Events of several brokers at the same time.

A broker that cannot be reached at the beginning is an error. A connection that is lost later is opened again, at
intervals that double up to `_LONGEST` seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from qstore.broker.client import ConnectionFailedError
from qstore.broker.management.console import AgentInfo, AnswerError, Event, aio
from qstore.tools.console.broker_options import BrokerOptions
from qstore.tools.events.lines import Happened, of_connection, of_event, of_heartbeat

_FIRST, _LONGEST = 1.0, 30.0

Show = Callable[[Happened], bool]
"""Prints it. Returns whether enough is printed."""


async def watch(
    brokers: Sequence[BrokerOptions],
    show: Show,
    complain: Callable[[str], None],
    *,
    has_heartbeats: bool,
    seconds: float | None,
) -> None:
    """Show the events of brokers, until enough is shown or the time is over.

    Args:
        brokers: the brokers.
        show: shows each event.
        complain: is told of events that cannot be read.
        has_heartbeats: whether heartbeats are shown, too.
        seconds: time limit; None for none.

    Raises:
        MessagingError: a broker cannot be reached, or has no management.
    """
    tasks = [asyncio.ensure_future(_watch_one(each, show, complain, has_heartbeats=has_heartbeats)) for each in brokers]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _watch_one(
    broker: BrokerOptions, show: Show, complain: Callable[[str], None], *, has_heartbeats: bool
) -> None:
    """Show the events of one broker until enough is shown."""
    has_connected, pause = False, _FIRST
    while True:
        try:
            async with aio.Console(broker.url, timeout=broker.timeout, **broker.connection) as console:
                has_connected, pause = True, _FIRST
                if await _follow(console, broker.url, show, complain, has_heartbeats=has_heartbeats):
                    return
        except ConnectionFailedError as error:
            if not has_connected:
                raise
            if pause == _FIRST and show(of_connection(broker.url, is_open=False, reason=str(error))):
                return
        await asyncio.sleep(pause)
        pause = min(_LONGEST, pause * 2)


async def _follow(
    console: aio.Console, url: str, show: Show, complain: Callable[[str], None], *, has_heartbeats: bool
) -> bool:
    """Show what comes on one connection. Returns whether enough is shown, else the connection is lost."""
    if show(of_connection(url, is_open=True)):
        return True
    while True:
        try:
            async with aclosing(console.indications(heartbeats=has_heartbeats)) as indications:
                async for each in indications:
                    if isinstance(each, AgentInfo):
                        is_enough = show(of_heartbeat(each, url))
                    else:
                        is_enough = isinstance(each, Event) and show(of_event(each, url))
                    if is_enough:
                        return True
        except AnswerError as error:
            complain(f"{url}: an indication that cannot be read: {error}")
