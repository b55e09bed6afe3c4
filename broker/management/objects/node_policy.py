"""The classes queuePolicy and topicPolicy: which nodes are made for links of AMQP 1.0 (`model/node_policies`).

Source: the QMF schema of qpidd's broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter as of
from typing import TYPE_CHECKING, Final

from qstore.broker.management.schema import PACKAGE, ClassName, ManagedClass, prop
from qstore.broker.model.node_policies import QUEUE_POLICY, TOPIC_POLICY
from qstore.formats.broker_records.topology import DEFAULT_HOST

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.model.node_policies import NodePolicy


def _of_kind(kind: str) -> Callable[[ManagedBroker], Iterator[tuple[str, NodePolicy]]]:
    def policies(managed: ManagedBroker) -> Iterator[tuple[str, NodePolicy]]:
        return iter([each for each in managed.broker.node_policies.policies.items() if each[1].kind == kind])

    return policies


def _class_of(name: str, kind: str) -> ManagedClass:
    return ManagedClass(
        ClassName(PACKAGE, name),
        properties=(
            prop("name", "sstr", "RC index", of("pattern")),
            prop("properties", "map", "RO", of("given")),
        ),
        objects=_of_kind(kind),
        created=of("created_at"),
        belongs=lambda _: (DEFAULT_HOST, ""),
    )


QUEUE_POLICY_CLASS: Final = _class_of("queuePolicy", QUEUE_POLICY)
TOPIC_POLICY_CLASS: Final = _class_of("topicPolicy", TOPIC_POLICY)
