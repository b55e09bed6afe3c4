"""Whether a store that was built reads back as what it was built from: the last step before it gets its name.

It is opened by the reader that all tools have, which verifies every checksum, and counted against the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from formats.broker_records.wiring import Binding, encode_binding
from formats.wording import plural
from store.builders.store_build import BuiltQueue
from store.errors import StoreError
from store.inspect.offline import OfflineStore, RecoveredStore
from store.journal.recovery import Outcome
from store.repair.recover.plan import Plan


def verify(path: str, plan: Plan, built: Mapping[str, BuiltQueue], opened: OfflineStore) -> None:
    """Read the new store at `path`, which is `opened`, and count.

    Raises:
        StoreError: it is not what was planned.
        OSError: it cannot be read.
    """
    recovered = opened.recover()
    difference = next((text for text in _differences(plan, built, opened, recovered) if text), None)
    if difference is not None:
        raise StoreError(f"{path}: the new store does not read back as it was written: {difference}; it is removed")


def _differences(
    plan: Plan, built: Mapping[str, BuiltQueue], opened: OfflineStore, recovered: RecoveredStore
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
    wiring = opened.wiring
    if wiring is None:
        found.append("there is no catalogue")
        return found
    bindings = ((each.exchange.name, each.record) for each in wiring.bindings)
    planned_bindings = ((plan.exchanges[number].name, binding) for number, binding in plan.bindings)
    for what, seen, planned in (
        ("exchanges", len(wiring.exchanges), len(plan.exchanges)),
        ("bindings", _different(bindings), _different(planned_bindings)),
        ("other objects", len(wiring.general), len(plan.general)),
    ):
        if seen != planned:
            found.append(f"{seen} {what} instead of {planned}")
    if Counter(each.record.name for each in wiring.queues.values()) != Counter(built.keys()):
        found.append("the catalogue has other queues")
    return found


def _different(bindings: Iterable[tuple[str, Binding]]) -> int:
    """How many bindings there are, each with its exchange: version 1 cannot have the same one twice."""
    return len({(exchange, encode_binding(binding)) for exchange, binding in bindings})
