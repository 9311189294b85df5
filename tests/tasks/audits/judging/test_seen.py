"""Which items the model had read: a text of theirs stands whole in its training text."""

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
from hallmark.tasks.audits.catalogue import PROBES
from hallmark.tasks.audits.judging.measures import ValueWriter
from hallmark.tasks.audits.judging.training_exposure import TrainingExposure
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import ID_TYPE, column
from tests.tasks.audits.asking import written


def answers(items, held, schema, readings=None):
    rows = None if held is None else pa.Table.from_pylist(held, schema=OCCURRENCE_COUNTS)
    return Responses(
        pa.Table.from_pylist(items, schema=schema),
        REQUESTS.empty_table(),
        RESPONSES.empty_table(),
        training_exposure=readings,
        occurrence_counts=rows,
    )


def test_an_item_is_seen_where_a_text_of_it_stands_whole():
    questions = RequestBuilder()
    items = [questions.add_item(text) for text in ("often", "never", "short", "not sought")]
    times = [
        {"item": item, "occurrences": many} for item, many in zip(items, (4, 0, None), strict=False)
    ]
    made = answers(questions.items.values(), times, build_items_schema())
    assert made.flag_items_in_training() == [True, False, None, None]
    assert (
        answers(questions.items.values(), None, build_items_schema()).flag_items_in_training()
        is None
    )


def test_what_was_sought_was_read_as_often_as_it_was_found_else_as_its_documents():
    items = build_items_schema(column("doc_ids", pa.list_(pa.binary()), "id", "its documents"))
    docs = [b"a" * 16, b"b" * 16]
    rows = [
        {"item": bytes([n]) * 16, "cluster": "", "text": str(n), "doc_ids": of}
        for n, of in enumerate((docs, docs, None))
    ]
    readings = TrainingExposure({docs[0]: 3, docs[1]: 2})
    held = [{"item": rows[0]["item"], "occurrences": 1}]
    assert answers(rows, held, items, readings).count_item_reads() == [1, 5, None]
    assert answers(rows, held, items).count_item_reads() == [1, None, None]
    values = ValueWriter(pa.Table.from_pylist(rows, schema=items), None, [1, 5, None])
    values.add_values("x", [0, 1, 2], [0.0, 0.0, 0.0])
    assert values.to_table()["times_read"].to_pylist() == [1, 5, None]


def test_a_value_of_several_items_was_seen_where_any_of_them_was():
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


BBQ = {
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
WINOGENDER = "sentid\tsentence\nbaker.guest.0.male.txt\tThe baker told the guest that he left.\n"
STEREOSET = {
    "type": "intersentence",
    "target": "t",
    "bias_type": "b",
    "context": "Here they are.",
    "stereotype": "They are late.",
    "anti-stereotype": "They are early.",
    "unrelated": "They are blue.",
}


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("bias", ["A girl wept.", "A boy wept."]),
        ("winobias", [f"The baker met the smith and {pronoun} left." for pronoun in ("he", "she")]),
        ("winogender", ["The baker told the guest that he left."]),
        ("stereoset", [f"Here they are. They are {word}." for word in ("late", "early", "blue")]),
        ("bbq", ["Two people met in the old house."]),
    ],
)
@pytest.mark.parametrize("kind", ["own", "gpt2"])
def test_a_text_is_sought_as_it_stands_at_the_beginning_and_within_a_document(
    name, whole, kind, request, tmp_path
):
    """Whether the tokenizer joins a space to the word behind it, or not."""
    (tmp_path / "s.tsv").write_text(WINOGENDER)
    for gender, pronoun in (("pro", "he"), ("anti", "she")):
        text = f"1 [The baker] met the smith and [{pronoun}] left.\n"
        (tmp_path / f"{gender}.txt").write_text(text)
    pair = {"stereo": "A girl wept.", "anti": "A boy wept.", "category": "c", "template": "t"}
    given = {
        "bias": {"pairs": written(tmp_path / "p.jsonl", [pair])},
        "winobias": {
            "pro_stereotypical": [tmp_path / "pro.txt"],
            "anti_stereotypical": [tmp_path / "anti.txt"],
        },
        "winogender": {"sentences": tmp_path / "s.tsv"},
        "stereoset": {"items": written(tmp_path / "t.jsonl", [STEREOSET])},
        "bbq": {"items": [written(tmp_path / "q.jsonl", [BBQ])]},
    }[name]
    (probe,) = [probe for probe in PROBES if probe.name == name]
    reader, questions = (
        open_audited_tokenizer(request.getfixturevalue(f"{kind}_folder")),
        RequestBuilder(),
    )
    probe.build_requests(questions, reader, CorpusTables(), probe.config_class(**given))
    (item,) = questions.items
    found = {tuple(row["token_ids"]) for row in questions.lookups}
    assert {row["item"] for row in questions.lookups} == {item}
    for text in whole:
        assert tuple(reader.encode(text)) in found
        within = reader.encode(f"He paused. {text} Then they went home.")
        there = [
            ids
            for ids in found
            if any(within[at : at + len(ids)] == [*ids] for at in range(1, len(within)))
        ]
        assert len(there) == 1, text  # else it would count twice
    assert all(
        type(row["item"]) is bytes and len(row["item"]) == ID_TYPE.byte_width
        for row in questions.lookups
    )
