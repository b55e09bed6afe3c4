"""Who is called for which events."""

from __future__ import annotations

from qstore.broker.model.caller import BROKER, Caller
from qstore.broker.model.events import ClientDisconnect, Event, Events, QueueDelete, UserDeleted


def test_listeners_hear_the_kinds_that_they_name() -> None:
    events, heard = Events(), list[tuple[str, str]]()

    def hears(name: str, *kinds: type[Event]) -> None:
        events.listen(lambda event: heard.append((name, type(event).__name__)), *kinds)

    hears("all")
    hears("deleted", QueueDelete, UserDeleted)
    hears("gone", ClientDisconnect)
    deleted = QueueDelete("", "anna", "q")
    events.emit(deleted)
    assert heard == [("all", "QueueDelete"), ("deleted", "QueueDelete")]
    hears("later", QueueDelete)  # an event of this kind was passed on before
    heard.clear()
    events.emit(deleted)
    assert [name for name, _ in heard] == ["all", "deleted", "later"]


def test_those_that_watch_are_told_the_caller_until_they_ignore() -> None:
    events, seen = Events(), list[tuple[Event, Caller] | str]()

    class Watches:
        def on_event(self, event: Event, caller: Caller) -> None:
            seen.append((event, caller))

    watches, other = Watches(), Watches()
    events.watch(watches.on_event, QueueDelete)
    events.watch(other.on_event, ClientDisconnect)
    events.listen(lambda _: seen.append("listener"))
    deleted = QueueDelete("", "anna", "q")
    events.emit(deleted)
    assert seen == ["listener", (deleted, BROKER)]
    events.ignore(watches.on_event)
    seen.clear()
    events.emit(deleted)
    assert seen == ["listener"]
