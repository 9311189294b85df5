"""Test which items are in the training text: a text of theirs occurs there in full."""

import pyarrow as pa
import pytest

from hallmark.tasks.audits.audit_tables import (
    OCCURRENCE_COUNTS,
    REQUESTS,
    RESPONSES,
    RequestBuilder,
    build_items_schema,
)
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.judging.measures import ValueWriter
from hallmark.tasks.audits.judging.training_exposure import TrainingExposure
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import ID_TYPE, column
from tests.builders import item_rows, row_dicts
from tests.tasks.audits.audit_runs import write_json_lines


def make_responses(items, occurrence_rows, schema, exposure=None):
    occurrence_counts = (
        None
        if occurrence_rows is None
        else pa.Table.from_pylist(occurrence_rows, schema=OCCURRENCE_COUNTS)
    )
    return Responses(
        pa.Table.from_pylist(items, schema=schema),
        REQUESTS.empty_table(),
        RESPONSES.empty_table(),
        training_exposure=exposure,
        occurrence_counts=occurrence_counts,
    )


def test_an_item_is_in_training_if_a_text_of_it_occurs_in_full():
    builder = RequestBuilder()
    items = [builder.add_item(text) for text in ("often", "never", "short", "not sought")]
    occurrence_rows = [
        {"item": item, "occurrences": count}
        for item, count in zip(items, (4, 0, None), strict=False)
    ]
    responses = make_responses(item_rows(builder).values(), occurrence_rows, build_items_schema())
    assert responses.flag_items_in_training() == [True, False, None, None]
    assert (
        make_responses(
            item_rows(builder).values(), None, build_items_schema()
        ).flag_items_in_training()
        is None
    )


def test_item_reads_are_occurrences_else_document_reads():
    schema = build_items_schema(column("doc_ids", pa.list_(pa.binary()), "id", "its documents"))
    ids = [b"a" * 16, b"b" * 16]
    rows = [
        {"item": bytes([n]) * 16, "cluster": "", "text": str(n), "doc_ids": doc_ids}
        for n, doc_ids in enumerate((ids, ids, None))
    ]
    exposure = TrainingExposure({ids[0]: 3, ids[1]: 2})
    occurrence_rows = [{"item": rows[0]["item"], "occurrences": 1}]
    assert make_responses(rows, occurrence_rows, schema, exposure).count_item_reads() == [
        1,
        5,
        None,
    ]
    assert make_responses(rows, occurrence_rows, schema).count_item_reads() == [1, None, None]
    values = ValueWriter(pa.Table.from_pylist(rows, schema=schema), None, [1, 5, None])
    values.add_values("x", [0, 1, 2], [0.0, 0.0, 0.0])
    assert values.to_table()["times_read"].to_pylist() == [1, 5, None]


def test_a_group_is_in_training_if_any_item_is():
    rows = [{"item": bytes([n]) * 16, "cluster": "", "text": ""} for n in range(4)]
    values = ValueWriter(
        pa.Table.from_pylist(rows, schema=build_items_schema()), [True, False, None, None]
    )
    assert values.flag_groups_in_training([[1, 0], [1, 2], [2, 3], [2, 0]]) == [
        True,
        False,
        None,
        True,
    ]


BBQ_ITEM = {
    "question_index": "1",
    "question_polarity": "neg",
    "context_condition": "ambig",
    "category": "Age",
    "label": 2,
    "answer_info": {"ans0": ["a", "old"], "ans1": ["b", "new"], "ans2": ["no", "unknown"]},
    "additional_metadata": {"stereotyped_groups": ["Old"]},
    "context": "Two people met in the old house.",
    "question": "Who was late?",
    "ans0": "The old one",
    "ans1": "The young one",
    "ans2": "Not known",
}
WINOGENDER_TABLE = (
    "sentid\tsentence\nbaker.guest.0.male.txt\tThe baker told the guest that he left.\n"
)
STEREOSET_ITEM = {
    "type": "intersentence",
    "target": "t",
    "bias_type": "b",
    "context": "Here they are.",
    "stereotype": "They are late.",
    "anti-stereotype": "They are early.",
    "unrelated": "They are blue.",
}


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("bias", ["A girl wept.", "A boy wept."]),
        ("winobias", [f"The baker met the smith and {pronoun} left." for pronoun in ("he", "she")]),
        ("winogender", ["The baker told the guest that he left."]),
        ("stereoset", [f"Here they are. They are {word}." for word in ("late", "early", "blue")]),
        ("bbq", ["Two people met in the old house."]),
    ],
)
@pytest.mark.parametrize("kind", ["own", "gpt2"])
def test_lookups_include_the_text_within_and_at_the_start_of_a_document(
    name, texts, kind, request, tmp_path
):
    """Tokenizers may or may not join a space to the word after it."""
    (tmp_path / "s.tsv").write_text(WINOGENDER_TABLE)
    for gender, pronoun in (("pro", "he"), ("anti", "she")):
        text = f"1 [The baker] met the smith and [{pronoun}] left.\n"
        (tmp_path / f"{gender}.txt").write_text(text)
    pair = {"stereo": "A girl wept.", "anti": "A boy wept.", "category": "c", "template": "t"}
    settings = {
        "bias": {"pairs": write_json_lines(tmp_path / "p.jsonl", [pair])},
        "winobias": {
            "pro_stereotypical": [tmp_path / "pro.txt"],
            "anti_stereotypical": [tmp_path / "anti.txt"],
        },
        "winogender": {"sentences": tmp_path / "s.tsv"},
        "stereoset": {"items": write_json_lines(tmp_path / "t.jsonl", [STEREOSET_ITEM])},
        "bbq": {"items": [write_json_lines(tmp_path / "q.jsonl", [BBQ_ITEM])]},
    }[name]
    (probe,) = [probe for probe in PROBES if probe.name == name]
    tokenizer, builder = (
        open_audited_tokenizer(request.getfixturevalue(f"{kind}_folder")),
        RequestBuilder(),
    )
    probe.build_requests(builder, tokenizer, CorpusTables(), probe.config_class(**settings))
    (item,) = item_rows(builder)
    lookups = {tuple(row["token_ids"]) for row in row_dicts(builder.lookups)}
    assert {row["item"] for row in row_dicts(builder.lookups)} == {item}
    for text in texts:
        assert tuple(tokenizer.encode(text)) in lookups
        ids_within = tokenizer.encode(f"He paused. {text} Then they went home.")
        matches = [
            ids
            for ids in lookups
            if any(
                ids_within[start : start + len(ids)] == [*ids]
                for start in range(1, len(ids_within))
            )
        ]
        assert len(matches) == 1, text  # more would count an occurrence twice
    assert all(
        type(row["item"]) is bytes and len(row["item"]) == ID_TYPE.byte_width
        for row in row_dicts(builder.lookups)
    )
