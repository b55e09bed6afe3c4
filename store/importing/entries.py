"""The catalogue's new entries of an import, besides its queues: exchanges, bindings, other objects, the ledger's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from qstore.formats.broker_records.topology import (
    decode_exchange,
    decode_queue,
    encode_binding,
    encode_exchange,
    encode_general,
)
from qstore.formats.catalogue import BindingEntry, ExchangeEntry, GeneralEntry, Kind, QueueEntry
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.importing.ledger import PastImport, ledger_entry
from qstore.store.importing.plan import ImportPlan


def new_entries(
    catalogue: Catalogue,
    known: Mapping[str, QueueEntry],
    created: Iterable[QueueEntry],
    plan: ImportPlan,
    past: PastImport,
) -> list[ExchangeEntry | BindingEntry | GeneralEntry]:
    """The entries, with ids that are taken.

    Args:
        catalogue: the store's.
        known: its queues by name.
        created: the import's new queues.
        plan: the import.
        past: its entry in the ledger.

    Raises:
        CatalogueError: the catalogue cannot be read.
    """
    entries: list[ExchangeEntry | BindingEntry | GeneralEntry] = []
    exchanges: dict[str, int] = {}
    for entry in catalogue.exchanges():
        exchanges.setdefault(decode_exchange(entry.record).name, entry.exchange_id)
    for exchange in plan.exchanges:
        number = exchanges[exchange.name] = catalogue.take_id(Kind.EXCHANGE)
        entries.append(ExchangeEntry(number, encode_exchange(exchange)))
    queues = {name: entry.queue_id for name, entry in known.items()}
    queues.update((decode_queue(entry.record).name, entry.queue_id) for entry in created)
    for name, binding in plan.bindings:
        queue_id = queues[binding.queue_name]
        record = encode_binding(replace(binding, queue_id=queue_id))
        entries.append(BindingEntry(exchanges[name], queue_id, catalogue.take_id(Kind.BINDING), record))
    entries.extend(
        GeneralEntry(catalogue.take_id(Kind.GENERAL), encode_general(general))
        for general in (*plan.general, ledger_entry(past))
    )
    return entries
