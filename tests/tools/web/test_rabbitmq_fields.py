"""What RabbitMQ 3.10's management API answers, as a table made by hand from its answers to one script of calls.

`STATUSES` has calls in order, and the statuses that RabbitMQ has for them. `FIELDS` has the fields that RabbitMQ's
tools and exporters read; those of Erlang, of clusters and of parts that are not here are left out (see the page of
`tools/web`).
"""

from __future__ import annotations

from typing import Any, Final

import pika
import pytest

from tests.support.running_broker import RunningBroker, one_broker
from tests.tools.web.console_runs import console_on

broker = pytest.fixture(one_broker, scope="module")

_BASIC: Final = {"properties": {}, "routing_key": "q1", "payload": "hi", "payload_encoding": "string"}
_GET: Final = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
STATUSES: Final[tuple[tuple[int, str, str, Any], ...]] = (
    (201, "PUT", "queues/%2F/q1", {"durable": True, "arguments": {"x-max-length": 100}}),
    (204, "PUT", "queues/%2F/q1", {"durable": True, "arguments": {"x-max-length": 100}}),
    (400, "PUT", "queues/%2F/q1", {"durable": True, "arguments": {"x-max-length": 5}}),
    (400, "PUT", "queues/%2F/q1", {"durable": False}),
    (400, "PUT", "queues/%2F/q1", {"durable": "maybe"}),
    (201, "PUT", "queues/%2F/q3", {}),
    (404, "PUT", "queues/nov/q3", {}),
    (201, "PUT", "exchanges/%2F/x1", {"type": "topic", "durable": True}),
    (204, "PUT", "exchanges/%2F/x1", {"type": "topic", "durable": True}),
    (400, "PUT", "exchanges/%2F/x1", {"type": "direct", "durable": True}),
    (400, "PUT", "exchanges/%2F/x2", {"type": "nonsense"}),
    (201, "PUT", "exchanges/%2F/x2", {"type": "fanout"}),
    (401, "PUT", "exchanges/%2F/amq.mine", {"type": "fanout"}),
    (201, "POST", "bindings/%2F/e/x1/q/q1", {"routing_key": "a.#", "arguments": {}}),
    (201, "POST", "bindings/%2F/e/x1/q/q1", {"routing_key": "b", "arguments": {"k": 1}}),
    (404, "POST", "bindings/%2F/e/x1/q/nq", {"routing_key": "a"}),
    (201, "POST", "bindings/%2F/e/x1/e/x2", {"routing_key": "z"}),
    (200, "GET", "bindings/%2F/e/x1/q/q1", None),
    (200, "GET", "bindings/%2F/e/x1/q/q1/a.%23", None),
    (404, "GET", "bindings/%2F/e/x1/q/q1/nokey", None),
    (200, "POST", "exchanges/%2F/amq.default/publish", _BASIC),
    (400, "POST", "exchanges/%2F/amq.default/publish", {"routing_key": "q1", "payload": "hi"}),
    (400, "POST", "exchanges/%2F/nox/publish", _BASIC),
    (400, "POST", "exchanges/%2F/amq.default/publish", {**_BASIC, "payload_encoding": "rot13"}),
    (200, "POST", "queues/%2F/q1/get", _GET),
    (400, "POST", "queues/%2F/q1/get", {"count": 5, "encoding": "auto"}),
    (404, "POST", "queues/%2F/nq/get", _GET),
    (404, "GET", "vhosts/nov", None),
    (404, "GET", "queues/nov", None),
    (404, "GET", "queues/%2F/nq", None),
    (404, "GET", "exchanges/%2F/nox", None),
    (404, "GET", "users/nouser", None),
    (200, "GET", "policies", None),
    (404, "GET", "policies/%2F/nopol", None),
    (200, "GET", "parameters", None),
    (200, "GET", "global-parameters", None),
    (200, "GET", "health/checks/alarms", None),
    (503, "GET", "health/checks/port-listener/9", None),
    (200, "GET", "health/checks/protocol-listener/amqp091", None),
    (503, "GET", "health/checks/protocol-listener/mqtt", None),
    (200, "GET", "health/checks/node-is-quorum-critical", None),
    (200, "GET", "healthchecks/node", None),
    (200, "GET", "aliveness-test/%2F", None),
    (404, "GET", "aliveness-test/nov", None),
    (404, "GET", "nope", None),
    (400, "GET", "queues?page=99&page_size=2", None),
    (400, "GET", "queues?page=0&page_size=2", None),
    (400, "GET", "queues?page=1&page_size=1000", None),
    (400, "GET", "queues?page=1&name=(&use_regex=true", None),
    (405, "POST", "overview", {}),
    (405, "PATCH", "overview", {}),
    (404, "DELETE", "connections/none", None),
    (404, "DELETE", "queues/%2F/nq/contents", None),
    (404, "DELETE", "queues/%2F/nq", None),
    (400, "DELETE", "exchanges/%2F/x1?if-unused=true", None),
    (401, "DELETE", "exchanges/%2F/amq.direct", None),
    (404, "DELETE", "bindings/%2F/e/x1/q/q1/nokey", None),
    (204, "DELETE", "bindings/%2F/e/x1/e/x2/z", None),
    (204, "DELETE", "exchanges/%2F/x1", None),
    (404, "DELETE", "exchanges/%2F/nox", None),
    (400, "DELETE", "queues/%2F/q1?if-empty=true", None),
    (204, "DELETE", "queues/%2F/q1/contents", None),
    (204, "DELETE", "queues/%2F/q1", None),
    (204, "DELETE", "queues/%2F/q3", None),
)

FIELDS: Final[dict[str, str]] = {
    "overview": """
        management_version rates_mode exchange_types product_version product_name rabbitmq_version
        cluster_name erlang_version message_stats.publish message_stats.publish_details.rate
        message_stats.drop_unroutable churn_rates.connection_created churn_rates.queue_declared
        queue_totals.messages queue_totals.messages_ready queue_totals.messages_unacknowledged_details.rate
        object_totals.channels object_totals.connections object_totals.consumers object_totals.exchanges
        object_totals.queues statistics_db_event_queue node listeners.protocol listeners.ip_address
        listeners.port contexts.description contexts.port
    """,
    "nodes": """
        name type running partitions os_pid fd_total fd_used sockets_total sockets_used mem_limit mem_alarm
        mem_used disk_free disk_free_limit disk_free_alarm proc_total proc_used uptime run_queue processors
        exchange_types applications.name db_dir log_files config_files enabled_plugins cluster_links
        rates_mode
    """,
    "vhosts": """
        name description tags default_queue_type metadata tracing cluster_state messages messages_ready
        messages_unacknowledged message_stats.publish recv_oct send_oct_details.rate
    """,
    "queues": """
        name vhost durable auto_delete exclusive arguments type node state policy operator_policy
        effective_policy_definition consumers consumer_utilisation consumer_capacity exclusive_consumer_tag
        single_active_consumer_tag head_message_timestamp memory messages messages_details.rate
        messages_ready messages_unacknowledged messages_ram messages_ready_ram messages_unacknowledged_ram
        messages_persistent messages_paged_out message_bytes message_bytes_ready
        message_bytes_unacknowledged message_bytes_ram message_bytes_persistent message_bytes_paged_out
        message_stats.deliver message_stats.deliver_get message_stats.ack message_stats.redeliver
        message_stats.publish message_stats.get message_stats.deliver_no_ack message_stats.get_no_ack
        message_stats.get_empty
    """,
    "queues/%2F/watched": """
        consumer_details.consumer_tag consumer_details.channel_details.connection_name incoming deliveries
    """,
    "exchanges": "name vhost type durable auto_delete internal arguments user_who_performed_action",
    "bindings": "source vhost destination destination_type routing_key arguments properties_key",
    "connections": """
        name vhost user user_provided_name node state type protocol auth_mechanism ssl peer_host peer_port
        host port channels connected_at client_properties recv_oct recv_oct_details.rate recv_cnt send_oct
        send_cnt send_pend
    """,
    "channels": """
        name number vhost user node state connection_details.name connection_details.peer_host
        consumer_count messages_unacknowledged messages_unconfirmed messages_uncommitted acks_uncommitted
        prefetch_count global_prefetch_count transactional confirm message_stats.deliver
    """,
    "consumers": """
        consumer_tag queue.name queue.vhost ack_required exclusive active activity_status prefetch_count
        arguments channel_details.name channel_details.number channel_details.connection_name
        channel_details.user
    """,
    "whoami": "name tags",
    "definitions": """
        rabbit_version rabbitmq_version product_name product_version users vhosts permissions
        topic_permissions parameters global_parameters policies queues.name queues.vhost queues.arguments
        exchanges bindings
    """,
    "definitions/%2F": "rabbit_version parameters policies queues.name exchanges bindings",
    "global-parameters": "name value",
    "health/checks/alarms": "status",
}


def has(value: Any, path: str) -> bool:
    """Whether a value has a field; of a list, its first entry."""
    for name in path.split("."):
        if isinstance(value, list):
            value = value[0] if value else {}
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True


async def test_the_statuses_are_rabbitmqs(broker: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        found = []
        for status, method, path, body in STATUSES:
            answer = await client.ask(method, f"/api/{path}", body)
            if answer.status != status:
                found.append((method, path, answer.status, answer.value, status))
            if answer.status >= 400 and "health" not in path:
                assert answer.value.keys() == {"error", "reason"}
        assert found == []


async def test_the_fields_are_there(broker: RunningBroker) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port, client_properties={"connection_name": "mine"})
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare("watched")
    channel.basic_consume("watched", lambda *_: None, consumer_tag="tag")
    channel.basic_publish("", "watched", b"x")
    try:
        async with console_on(f"127.0.0.1:{broker.port}") as client:
            await client.becomes("queues/%2F/watched", lambda row: row["messages_unacknowledged"] == 1)
            missing = {
                path: [name for name in fields.split() if not has(value, name)]
                for path, fields in FIELDS.items()
                if (value := await client.get(path)) is not None
            }
            assert {path: names for path, names in missing.items() if names} == {}
            (row,) = [row for row in await client.get("connections") if row["user_provided_name"] == "mine"]
            assert (row["user"], row["protocol"], row["channels"]) == ("guest", "AMQP 0-9-1", 1)
            (consumer,) = await client.get("consumers")
            assert (consumer["consumer_tag"], consumer["queue"]["name"]) == ("tag", "watched")
            name = row["name"].replace(" ", "%20").replace(">", "%3E").replace(":", "%3A")
            assert len(await client.get(f"connections/{name}/channels")) == 1
            assert (await client.ask("DELETE", f"/api/connections/{name}")).status == 204
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
                connection.process_data_events(5)
            client.server._api.collector.changed("connection")
            assert (await client.ask("GET", f"/api/connections/{name}")).status == 404
    finally:
        if connection.is_open:
            connection.close()


async def test_the_document_of_the_api_names_every_path(broker: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        document = await client.get("openapi.json", user=None)
        assert document["openapi"].startswith("3.")
        paths = document["paths"]
        assert {"/queues/{vhost}/{name}", "/overview", "/definitions", "/qstore/journals"} <= paths.keys()
        names = [each["operationId"] for methods in paths.values() for each in methods.values()]
        assert len(names) == len(set(names)) == len(client.server._api.resources.routes)
        for path, methods in paths.items():
            for operation in methods.values():
                assert operation["summary"]
                assert [f"{{{each['name']}}}" in path for each in operation["parameters"]].count(False) == 0
