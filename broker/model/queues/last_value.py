"""Last value queues: a new message displaces the one with the same key.

    argument                          key                  browsed messages           a new message
    --------------------------------  -------------------  -------------------------  ----------------------
    qpid.last_value_queue_key: NAME   the header NAME      are displaced              goes to the end
    qpid.last_value_queue             header qpid.LVQ_key  stay, hidden from other    takes the place of the
                                                           browsers                   one that it displaces
    qpid.last_value_queue_no_browse   header qpid.LVQ_key  are displaced              likewise

At the end browsers see a new message. In the place of the old one they may miss it, but the keys keep their order. A
message that is stored, or displaces a stored one, goes to the end nevertheless: there it is after a restart. Keys are
compared as text; a message without the key displaces nothing.

A message that a consumer holds counts as dequeued and is not displaced. If it is released, a newer message with its
key displaces it; without one it is the last value again.

Sources: Qpid C++ Broker Book, 1.2.1.2 and 1.6; MRG 2 Messaging User Guide, 3. qpidd ignores the durability of such a
queue (Broker Book, 1.2.1.2); here such queues may be durable, and have exactly the last values after a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qstore.broker.model.queues.entry import AVAILABLE, UNCOMMITTED, Entry
from qstore.broker.model.queues.limits import Displacement

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue


class LastValues(Displacement):
    """The last value of each key.

    Args:
        header: name of the header with the key.
        keeps_browsed: whether messages that were browsed are not displaced.
        keeps_place: whether a new message takes the place of the one that it displaces.

    Attributes:
        hidden: messages that were browsed, and have a newer one with their key: no other browser is shown them.
    """

    __slots__ = ("_header", "_keeps_browsed", "_keeps_place", "_keys", "_last", "hidden")

    def __init__(self, header: str, *, keeps_browsed: bool, keeps_place: bool = False) -> None:
        self._header, self._keeps_browsed, self._keeps_place = header, keeps_browsed, keeps_place
        self.hidden: set[Entry] = set()
        self._last: dict[str, Entry] = {}
        self._keys: dict[Entry, str] = {}

    @property
    def refers_to_entries(self) -> bool:
        """True: it references the last entry of each key."""
        return True

    def arrived(self, queue: Queue, entry: Entry) -> None:
        """Displace the message with the same key. A transaction may be committed after a newer one has arrived."""
        key = entry.message.header_text(self._header)
        if key is None:
            return
        self._keys[entry] = key
        before = self._last.get(key)
        if before is not None and before.position > entry.position:
            self._replace(queue, entry)
            return
        if before is None or before.state != AVAILABLE:
            self._last[key] = entry
        elif self._keeps_browsed and queue.is_browsed(before):
            self._last[key] = entry
            if self._keeps_place:
                self.hidden.add(before)
        elif self._keeps_place and entry.state == AVAILABLE and not (entry.rid or before.rid):
            before.message, entry.message = entry.message, before.message
            self._replace(queue, entry)
            queue.put_back(before)
        else:
            self._last[key] = entry
            self._replace(queue, before)

    def recovered(self, queue: Queue) -> None:
        """Displace all but the last message of each key."""
        for entry in queue.entries():
            if entry.state != UNCOMMITTED:
                self.arrived(queue, entry)

    def released(self, queue: Queue, entry: Entry) -> None:
        """Displace the released message if there is a newer one with its key."""
        key = self._keys.get(entry)
        if key is not None and self._last.setdefault(key, entry) is not entry:
            self._replace(queue, entry)

    def _replace(self, queue: Queue, entry: Entry) -> None:
        if self.displace(queue, entry):
            queue.counters.replaced += 1

    def removed(self, entry: Entry) -> None:
        """Forget the message."""
        self.hidden.discard(entry)
        key = self._keys.pop(entry, None)
        if key is not None and self._last.get(key) is entry:
            del self._last[key]
