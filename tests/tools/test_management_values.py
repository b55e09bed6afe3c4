"""Values from agents, of any kind, as tables, lines and JSON: without an error, and without control characters."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.management.console import AgentInfo, Data, Event, ObjectId, Schema, SchemaId
from qstore.broker.management.console.schema import Argument, Method, Property
from qstore.tools import qpid_tool
from qstore.tools.console.broker import json_object
from qstore.tools.console.rows import print_json
from qstore.tools.qpid_config import OPTIONS, attributes
from qstore.tools.qpid_printevents import of_event, of_heartbeat
from qstore.tools.qpid_stat import CONNECTIONS, EXCHANGES, QUEUES, sorted_rows
from qstore.tools.qpid_tool import Identities
from tests.support.profiles import examples

_TEXTS = st.sampled_from(["", "a", "a\x1b[2J", "\u202e", "\udcff", "a\nb", "org.apache.qpid.broker:queue:q", "ring"])
_NUMBERS = st.integers(-(2**63), 2**64 - 1)
_VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS | st.floats() | st.uuids() | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_TEXTS | st.sampled_from(["_object_name"]), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
_ARGUMENTS = st.dictionaries(st.sampled_from([option.argument for option in OPTIONS]) | _TEXTS, _VALUES, max_size=6)
_WORDS = "name durable exclusive altExchange msgDepth byteDepth type address remotePid bindingCount vhostRef"
_OBJECTS = st.dictionaries(st.sampled_from(_WORDS.split(" ")) | _TEXTS, _VALUES, max_size=8)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@contextmanager
def captured() -> Iterator[Callable[[], str]]:
    """Standard output, as text."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, write_through=True)
    with contextlib.redirect_stdout(stream):
        yield lambda: raw.getvalue().decode()
    stream.detach()


def safe(text: str) -> bool:
    return _CONTROL.search(text) is None


@given(_OBJECTS, _VALUES | _ARGUMENTS, _TEXTS, _NUMBERS)
@examples(200)
def test_anything_is_shown(values: dict[str, Any], arguments: Any, text: str, number: int) -> None:
    schema_id = SchemaId(text, text)
    data = Data({**values, "arguments": arguments}, ObjectId(text), schema_id, (number, number, number))
    for kind in ("queue", "exchange"):
        assert all(safe(each) for each in attributes(data, kind))
    for view in (CONNECTIONS, EXCHANGES, QUEUES):
        cells = [field.cell(field.value(data)) for field in view.fields]
        assert all(safe(cell) for cell in cells)
        columns = [field.column for field in view.fields]
        row = ([field.value(data) for field in view.fields], cells)
        for column in columns:
            assert sorted_rows(columns, [row, row], column.title, is_increasing=True, limit=1) == [cells]
    numbers = Identities()
    schema = Schema(
        schema_id,
        tuple(Property(name, text, text, text, text) for name in values),
        (Method(text, (Argument(text, text, text, text),), text), Method(text, ())),
    )
    agent = AgentInfo(text, text, text, text, number, number, number, values)
    with captured() as output:
        qpid_tool.show_contents(data, schema, numbers, is_long=True)
        qpid_tool.show_objects([data], numbers, is_long=False)
        qpid_tool.show_schema(schema)
        qpid_tool.show_classes([schema_id])
        qpid_tool.show_result(text, values)
        qpid_tool.show_identities(numbers)
        qpid_tool.show_agents([agent], text, is_long=True)
        qpid_tool.show_summary({(text, text): (1, 2)})
    assert safe(output())
    assert safe(of_event(Event(schema_id, values, text, number, number), "host").line(has_broker=True))
    assert safe(of_heartbeat(agent, "host").line(has_broker=False))


@given(_OBJECTS, _TEXTS)
def test_anything_is_json(values: dict[str, Any], text: str) -> None:
    with captured() as output:
        print_json([json_object(Data(values, ObjectId(text), SchemaId(text, text)))])
    (line,) = output().splitlines()
    assert isinstance(json.loads(line), dict)
