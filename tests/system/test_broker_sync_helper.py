"""A broker's sync helper is killed or stopped: nothing hangs, nothing acknowledged is lost, and the log says so."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Sequence
from typing import Final

import pytest

from tests.support.processes import PATIENCE_SECONDS, children_of, goes, is_running, stop_process
from tests.support.profiles import today
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import BrokerMaker, RunningBroker
from tests.system.broker_traffic import Actor
from tests.system.test_broker_killed import Story

BY_HELPER: Final = ("--sync", "process")


def helper_of(broker: RunningBroker) -> int:
    """The process id of the helper that runs, once there is one."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        running = [pid for pid in children_of(broker.pid) if is_running(pid)]
        if running:
            return running[0]
        time.sleep(0.005)
    raise AssertionError(f"there is no helper\n{broker.log_text()}")


def kill_helper(broker: RunningBroker) -> int:
    """SIGKILL, and wait until it is gone."""
    helper = helper_of(broker)
    os.kill(helper, signal.SIGKILL)
    assert goes(helper)
    return helper


def do_everything(broker: RunningBroker, number: int) -> None:
    """Declare, bind, publish, unbind and delete, all durable, each waited for."""
    with RawPeer(broker.port) as peer:
        for name in (f"kept-{number}", f"gone-{number}"):
            peer.declare(name)
            peer.call("exchange.bind", exchange="amq.direct", queue=name, binding_key=name)
            peer.publish(name, b"%d" % number)
            peer.sync()
        peer.call("exchange.unbind", exchange="amq.direct", queue=f"kept-{number}", binding_key=f"kept-{number}")
        peer.call("queue.delete", queue=f"gone-{number}")
        peer.end()


def test_a_helper_that_is_killed_at_rest(make_broker: BrokerMaker) -> None:
    broker = make_broker(*BY_HELPER).start()
    for number in range(3):
        helper = kill_helper(broker)
        do_everything(broker, number)
        assert f"sync helper process {helper} ended (killed by signal 9)" in broker.log_text()
    broker.restart()
    with RawPeer(broker.port) as peer:
        assert [peer.message_count(f"kept-{number}") for number in range(3)] == [1] * 3
        peer.end()
    assert broker.stop() == 0


def test_a_broker_whose_helper_was_just_killed_ends_cleanly(make_broker: BrokerMaker) -> None:
    broker = make_broker(*BY_HELPER).start()
    do_everything(broker, 0)
    os.kill(helper_of(broker), signal.SIGKILL)
    assert broker.stop() == 0, broker.log_text()


@pytest.mark.parametrize("seed", today(range(4), 1))
def test_helpers_that_are_killed_under_load_lose_nothing(make_broker: BrokerMaker, seed: int) -> None:
    broker = make_broker(*BY_HELPER, "--num-jfiles", "16", "--jfile-size-pgs", "32").start()
    story = Story(broker, seed)
    story.declare()
    for life in range(2):

        def end(actors: Sequence[Actor], life: int = life) -> None:
            for _ in range(8):
                story.wait_for_completed(200, actors)
                kill_helper(broker)
            story.wait_for_completed(200, actors)
            if life:
                broker.kill()
            else:
                assert broker.stop() == 0, broker.log_text()

        story.live(end)
        story.was_clean = not life
        assert broker.log_text().count("(killed by signal 9)") >= 3  # some while they started
        broker.start()
    story.drain()
    assert broker.stop() == 0


def take_descriptors(broker: RunningBroker) -> None:
    """Let it open no more: neither a socket nor a process can be made."""
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def test_a_broker_without_a_queue_ends_too(make_broker: BrokerMaker) -> None:
    """Its store may even be closed cleanly; that it had to end is in the exit code, so that it is started again."""
    broker = make_broker(*BY_HELPER).start()
    take_descriptors(broker)
    os.kill(helper_of(broker), signal.SIGKILL)
    assert broker.stop(0) == 1, broker.log_text()
    assert "The store has failed: shutting down" in broker.log_text()


def test_without_another_helper_the_broker_ends_and_says_why(make_broker: BrokerMaker) -> None:
    broker = make_broker(*BY_HELPER).start()
    with RawPeer(broker.port) as peer:
        peer.declare("orders")
        peer.publish("orders", b"acknowledged")
        peer.sync()
        take_descriptors(broker)
        os.kill(helper_of(broker), signal.SIGKILL)
        assert broker.stop(0) == 1, broker.log_text()
    log = broker.log_text()
    assert "nothing can be synced any more" in log
    assert "Traceback" not in log
    broker.start()
    with RawPeer(broker.port) as peer:
        assert peer.message_count("orders") == 1
        peer.end()
    assert broker.stop() == 0


@pytest.mark.parametrize("is_busy", today([False, True], 1))
def test_a_helper_that_is_stopped_does_not_hold_up_sigterm(make_broker: BrokerMaker, is_busy: bool) -> None:
    broker = make_broker(*BY_HELPER).start()
    do_everything(broker, 0)
    helper = helper_of(broker)
    with RawPeer(broker.port) as peer:
        if is_busy:
            stop_process(helper)
            peer.publish_all([peer.transfer_frames("kept-0", b"x" * 1000) for _ in range(500)])
            peer.send_command("queue.delete", queue="kept-0")  # waits for the disk, too
            time.sleep(0.5)
        else:
            stop_process(helper)
        began = time.monotonic()
        assert broker.stop() == 0, broker.log_text()
        assert time.monotonic() - began < PATIENCE_SECONDS
    assert f"sync helper process {helper} (stopped)" in broker.log_text()
    assert not is_running(helper)
    assert broker.start().stop() == 0
