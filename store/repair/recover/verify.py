"""Checks that a new store reads back as planned: the last step before it is renamed.

It is opened by the reader that all tools use, which verifies every checksum, and compared with the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from qstore.formats.broker_records.topology import Binding, encode_binding
from qstore.formats.wording import plural
from qstore.store.builders.store_build import BuiltQueue
from qstore.store.errors import StoreError
from qstore.store.inspect.offline import OfflineStore, RecoveredStore
from qstore.store.journal.recovery import Outcome
from qstore.store.repair.recover.plan import RecoveryPlan


def verify(path: str, plan: RecoveryPlan, built: Mapping[str, BuiltQueue], opened: OfflineStore) -> None:
    """Read the new store at `path`, which is `opened`, and compare it with the plan.

    Raises:
        StoreError: it differs from the plan.
        OSError: it cannot be read.
    """
    recovered = opened.recover()
    difference = next((text for text in _differences(plan, built, opened, recovered) if text), None)
    if difference is not None:
        raise StoreError(f"{path}: the new store does not read back as written: {difference}; it was removed")


def _differences(
    plan: RecoveryPlan, built: Mapping[str, BuiltQueue], opened: OfflineStore, recovered: RecoveredStore
) -> list[str]:
    found = [f"{each.file}: {each.what}" for each in opened.damage]
    names = {queue.name: queue for queue in recovered.queues}
    if names.keys() != built.keys():
        found.append(f"{plural(len(names), 'queue')} instead of {len(built)}")
        return found
    for name, result in built.items():
        queue = names[name]
        total = 0 if queue.recovery is None else len(queue.recovery.messages)
        if (total, total - queue.deliverable) != (result.messages, result.in_doubt):
            found.append(f'queue "{name}" has {plural(total, "message")} instead of {result.messages}')
    in_doubt = sorted(each.xid for each in recovered.transactions if each.outcome is Outcome.IN_DOUBT)
    if in_doubt != sorted(plan.in_doubt) or len(recovered.transactions) != len(in_doubt):
        found.append(f"{plural(len(in_doubt), 'transaction')} in doubt instead of {len(plan.in_doubt)}")
    topology = opened.topology
    if topology is None:
        found.append("the catalogue is missing")
        return found
    bindings = ((each.exchange.name, each.record) for each in topology.bindings)
    planned_bindings = ((plan.exchanges[number].name, binding) for number, binding in plan.bindings)
    for what, seen, planned in (
        ("exchanges", len(topology.exchanges), len(plan.exchanges)),
        ("bindings", _different(bindings), _different(planned_bindings)),
        ("other objects", len(topology.general), len(plan.general)),
    ):
        if seen != planned:
            found.append(f"{seen} {what} instead of {planned}")
    if Counter(each.record.name for each in topology.queues.values()) != Counter(built.keys()):
        found.append("the catalogue has different queues")
    return found


def _different(bindings: Iterable[tuple[str, Binding]]) -> int:
    """Number of bindings, each with its exchange: version 1 cannot have duplicates."""
    return len({(exchange, encode_binding(binding)) for exchange, binding in bindings})
