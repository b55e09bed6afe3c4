"""The ledger of imports: which ones a store has had, so that none takes place twice.

An import is an object in the catalogue, of kind `qstore.import`: name, the import's id; properties, when it took place
(seconds since 1970) and how many messages it brought. It is written in the batch that makes the import effective.
Brokers ignore it. An import into a running broker is noted there by a queue instead, which has the id in its name.

The id is that of the content of what is imported, and of how it is changed on the way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from qstore.formats.broker_records.topology import Bridge, GeneralObject, Link
from qstore.formats.values import typed_map

LEDGER: Final = "qstore.import"
LEDGER_QUEUES: Final = f"{LEDGER}."
"""What the names of queues begin with that note an import into a running broker; the id follows."""


class PastImport(NamedTuple):
    """An import that took place.

    Attributes:
        identity: its id.
        at: seconds since 1970.
        messages: number of its messages.
    """

    identity: str
    at: int
    messages: int


def ledger_entry(past: PastImport) -> GeneralObject:
    """The object for the catalogue."""
    return GeneralObject(LEDGER, past.identity, typed_map({"at": past.at, "messages": past.messages}))


def find_import(general: Iterable[Link | Bridge | GeneralObject], identity: str) -> PastImport | None:
    """The import with that id; None if it did not take place."""
    for each in general:
        if isinstance(each, GeneralObject) and (each.kind, each.name) == (LEDGER, identity):
            at, messages = each.properties.get("at"), each.properties.get("messages")
            return PastImport(identity, at.value if at else 0, messages.value if messages else 0)
    return None
