"""Check that every column of every table has a description and a kind."""

import pytest

from hallmark.tasks.contract import (
    COLUMN_KINDS,
    describe_columns,
    get_table_meaning,
    is_partitioned,
)
from tests.test_architecture import list_project_stages

SCHEMAS = {
    f"{stage.name}.{name}": schema
    for stage in list_project_stages()
    for name, schema in stage.collect_table_schemas().items()
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_column_has_a_kind_and_a_description(name):
    schema = SCHEMAS[name]
    assert get_table_meaning(schema).endswith(".")
    for field, column in zip(schema, describe_columns(schema), strict=True):
        assert b"kind" in (field.metadata or {}), column.name
        assert column.kind in COLUMN_KINDS and column.meaning, column.name


@pytest.mark.parametrize("name", SCHEMAS)
def test_columns_that_judge_texts_are_scores(name):
    columns = {column.name: column for column in describe_columns(SCHEMAS[name])}
    for column in columns.values():
        if column.judged_by:
            assert "text" in column.kind
            judge = columns[column.judged_by]
            assert (judge.kind, judge.unit) == ("figure", "score")


@pytest.mark.parametrize("name", SCHEMAS)
def test_partitioned_tables_have_a_document_in_each_row(name):
    if is_partitioned(SCHEMAS[name]):
        assert SCHEMAS[name].names[0] == "doc_id"


def test_tables_about_documents_are_partitioned():
    cut = {name.partition(".")[2] for name, schema in SCHEMAS.items() if is_partitioned(schema)}
    assert cut == {
        "document_reads",
        "documents",
        "item_overlaps",
        "ledger",
        "origins",
        "signals",
        "signatures",
        "spans",
        "windows",
    }
    always = cut - {"spans"}  # those of packed sequences are in the sequences' order
    named = {name for name in SCHEMAS if name.partition(".")[2] in always}
    assert named - {name for name in SCHEMAS if is_partitioned(SCHEMAS[name])} == set()
