"""The evidence hash covers the rows of a card's tables and nothing else."""

import datetime
import decimal
import hashlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.reports.review.evidence_hash import compute_evidence_hash, hash_evidence_tables
from hallmark.tasks.contract import (
    HallmarkError,
    StageConfig,
    StageContext,
    column,
    stage,
    table_schema,
)

FIGURES = pa.table(
    {
        "id": ["a", "b", None],
        "value": [0.1, float("nan"), None],
        "n": pa.array([1, None, 3], pa.int64()),
        "evidence_filter": ['{"split": "train"}', "{}", ""],
    }
)
ANSWERS = pa.table({"question": ["Why?"], "answer": ["To show a card."]})
TABLES = {"figures": FIGURES, "answers": ANSWERS}


def replace_value(table, column_name, row, value):
    number = table.schema.get_field_index(column_name)
    values = table[column_name].to_pylist()
    values[row] = value
    return table.set_column(
        number, table.schema.field(number), pa.array(values, table.schema.field(number).type)
    )


def test_hash_is_that_of_these_lines():
    """Another pyarrow must give the same hash, or it would void every review."""
    lines = [
        "hallmark evidence 1",
        '{"columns":[["question","string"],["answer","string"]],"rows":1,"table":"answers"}',
        '["Why?","To show a card."]',
        '{"columns":[["id","string"],["value","double"],["n","int64"],'
        '["evidence_filter","string"]],"rows":3,"table":"figures"}',
        r'["a","0x1.999999999999ap-4",1,"{\"split\": \"train\"}"]',
        '["b","nan",null,"{}"]',
        '[null,null,3,""]',
    ]
    expected = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    assert hash_evidence_tables(TABLES, "card") == expected


@pytest.mark.parametrize(
    ("table", "column_name", "row", "value"),
    [
        ("figures", "value", 0, 0.1 + 2**-56),
        ("figures", "value", 1, None),
        ("figures", "value", 2, 0.0),
        ("figures", "n", 2, 4),
        ("figures", "evidence_filter", 0, '{"split": "test"}'),
        ("figures", "id", 2, ""),
        ("answers", "answer", 0, "To show a card. "),
    ],
)
def test_every_value_counts(table, column_name, row, value):
    changed = {**TABLES, table: replace_value(TABLES[table], column_name, row, value)}
    assert hash_evidence_tables(changed, "card") != hash_evidence_tables(TABLES, "card")


@pytest.mark.parametrize(
    "changed",
    [
        {"figures": FIGURES},
        {"figures": FIGURES, "sections": ANSWERS},
        {"figures": FIGURES.take([1, 0, 2]), "answers": ANSWERS},
        {"figures": FIGURES[:2], "answers": ANSWERS},
        {
            "figures": FIGURES.rename_columns(["id", "low", "n", "evidence_filter"]),
            "answers": ANSWERS,
        },
        {"figures": FIGURES.select(["value", "id", "n", "evidence_filter"]), "answers": ANSWERS},
        {
            "figures": FIGURES.set_column(2, "n", FIGURES["n"].cast(pa.float64())),
            "answers": ANSWERS,
        },
    ],
    ids=[
        "table missing",
        "table renamed",
        "rows swapped",
        "row missing",
        "column renamed",
        "columns swapped",
        "type changed",
    ],
)
def test_names_types_and_order_count(changed):
    assert hash_evidence_tables(changed, "card") != hash_evidence_tables(TABLES, "card")


def test_layout_of_the_files_does_not_count(tmp_path):
    """Row groups, compression, dictionaries, chunks and large strings are no content."""
    path = tmp_path / "figures.parquet"
    pq.write_table(FIGURES, path, row_group_size=1, compression="gzip", store_schema=False)
    stored = pq.read_table(path)
    encoded = FIGURES.set_column(0, "id", FIGURES["id"].dictionary_encode())
    large = FIGURES.cast(
        pa.schema(
            [
                pa.field(f.name, pa.large_string() if f.type == pa.string() else f.type)
                for f in FIGURES.schema
            ]
        )
    )
    parts = pa.concat_tables([FIGURES[:1], FIGURES[1:]])
    described = FIGURES.replace_schema_metadata({"style": "blue"})
    for figures in (stored, encoded, large, parts, described):
        same = {"answers": ANSWERS, "figures": figures, "telemetry": ANSWERS}
        assert hash_evidence_tables(same, "card") == hash_evidence_tables(TABLES, "card")


def test_nested_values_survive_parquet(tmp_path):
    """Arrow names the items of lists differently after a file was written and read."""
    evidence = pa.table(
        {
            "ids": pa.array([[1, 2], None], pa.list_(pa.int32())),
            "slice": pa.array([[("k", "v")], []], pa.map_(pa.string(), pa.string())),
            "point": pa.array([{"x": 1.5}, None], pa.struct([("x", pa.float32())])),
            "key": pa.array([b"\x00\xff", b""]),
            "day": pa.array([datetime.date(2026, 1, 2), None]),
            "price": pa.array([decimal.Decimal("1.50"), None]),
        }
    )
    path = tmp_path / "evidence.parquet"
    pq.write_table(evidence, path, store_schema=False)
    first, second = (
        hash_evidence_tables({"evidence": table}, "card")
        for table in (evidence, pq.read_table(path))
    )
    assert first == second


class CardConfig(StageConfig):
    style: str = "plain"
    value: float = 1.0


FIGURE_ROWS = table_schema(
    "Figures.", column("value", pa.float64(), "figure", "a value of the card", unit="share")
)


@stage(name="small_card", tables={"figures": FIGURE_ROWS, "other": FIGURE_ROWS})
def write_small_card(config: CardConfig, context: StageContext) -> None:
    context.get_table_writer("figures").write(pa.table({"value": [config.value]}))
    context.get_table_writer("other").write(pa.table({"value": [2.0]}))
    path = context.prepare_output_path("card.html")
    path.write_text(f"<style>{config.style}</style>")


@stage(name="no_card", tables={"other": FIGURE_ROWS})
def write_no_card(config: CardConfig, context: StageContext) -> None:
    context.get_table_writer("other").write(pa.table({"value": [2.0]}))


def test_a_style_sheet_does_not_count(session):
    card, restyled = write_small_card(CardConfig()), write_small_card(CardConfig(style="blue"))
    changed = write_small_card(CardConfig(value=1.5))
    assert card.content_digest != restyled.content_digest
    assert compute_evidence_hash(card) == compute_evidence_hash(restyled)
    assert compute_evidence_hash(card) != compute_evidence_hash(changed)


def test_an_artifact_without_evidence_is_refused(session):
    with pytest.raises(HallmarkError, match="is not a card that can be reviewed"):
        compute_evidence_hash(write_no_card(CardConfig()))
