"""Tables, their schemas and options."""

from __future__ import annotations

import pytest

from qstore.tools.spark.columns import TABLES, TYPES, OptionError, table_columns


def test_each_column_of_a_table_has_its_own_name_a_type_and_a_meaning() -> None:
    for columns in TABLES.values():
        names = [column.name for column in columns]
        assert len(set(names)) == len(names)
        assert all(column.type in TYPES and column.doc for column in columns)


def test_columns_come_in_the_order_in_which_they_are_asked_for() -> None:
    assert [column.name for column in table_columns("records", " rid, queue ,body")] == ["rid", "queue", "body"]


@pytest.mark.parametrize(
    ("table", "chosen", "what"),
    [
        ("recrods", None, "no table"),
        ("records", "rid,bdoy", 'no column "bdoy"'),
        ("records", "rid,rid", "twice"),
        ("queues", " , ", "no column"),
        ("queues", "rid", "no column"),
    ],
)
def test_unknown_table_or_column_is_a_one_line_error(table: str, chosen: str | None, what: str) -> None:
    with pytest.raises(OptionError, match=what) as raised:
        table_columns(table, chosen)
    assert "\n" not in str(raised.value)
