"""`hallmark trace --text` finds the spans of a text that occur in the training text."""

import io
import json
import re
import shutil
import sys

import pyarrow.compute as pc
import pytest

from hallmark import open_run
from hallmark.flows.checkpoint_resolution import ResolvedCheckpoint, resolve_checkpoint
from hallmark.flows.commands.trace import read_text_file, render_text_trace, trace
from hallmark.flows.finding_trace import CONTEXT_CHARACTERS
from hallmark.flows.text_trace import (
    DOCUMENTS_PER_SPAN,
    MAX_TRACED_CHARACTERS,
    OccurrenceText,
    TextTracer,
    redact_occurrence,
)
from hallmark.reports.page.planted_secrets import PlantedSecret
from hallmark.reports.page.redaction import Redactor
from hallmark.tasks.contract import UsageError

pytestmark = pytest.mark.slow

# Redaction ------------------------------------------------------------------------------------

REDACTOR = Redactor([PlantedSecret("9 1 7 2 7 8 5", "wheels to ", " and lift")])


def redact(before, text, after, toxicity=0.0):
    return redact_occurrence(OccurrenceText(before, text, after), toxicity, REDACTOR)


def test_harmless_text_is_shown_with_a_short_context():
    shown = redact("x" * 99, "The lamp of the harbour", "y" * 99)
    context = CONTEXT_CHARACTERS
    assert shown == ("x" * context, "The lamp of the harbour", "y" * context)


def test_sensitive_values_are_redacted():
    shown = redact("Write to ", "jane.roe@example.org for the lamp", ", or call +44 20 7946 0958.")
    assert "jane" not in shown.text and "7946" not in shown.text_after
    assert shown.text == "[email masked] for the lamp"


def test_a_value_that_the_span_divides_is_redacted_on_both_sides():
    shown = redact("Write to jane.roe", "@example.org for the lamp", " of the harbour.")
    assert shown == ("Write to [email masked]", "[email masked] for the lamp", " of the harbour.")
    shown = redact("The wheels to 9 1 ", "7 2 7 8 5 and lift the lid", "")
    assert not re.search(r"\d", "".join(shown))


def test_a_value_that_the_context_cuts_off_is_redacted():
    before = "jane.roe@example.org " + "x " * (CONTEXT_CHARACTERS // 2 - 5)
    shown = redact(before, "The lamp of the harbour", "")
    assert "example" not in shown.text_before
    shown = redact("", "The lamp", " x" * (CONTEXT_CHARACTERS // 2 - 5) + " jane.roe@example.org")
    assert "jane" not in shown.text_after


@pytest.mark.parametrize("toxicity", [None, float("nan"), 0.5, 0.9])
def test_offensive_and_unscored_text_is_hidden(toxicity):
    shown = redact("Before ", "the lamp of the harbour", " after", toxicity)
    assert not re.search("Before|lamp|after", " ".join(shown))


def test_invisible_characters_are_written_out():
    shown = redact("\u202eBefore", "the\0 lamp", "\u200bafter")
    assert shown == ("‹U+202E›Before", "the‹U+0000› lamp", "‹U+200B›after")


def test_without_a_redactor_everything_is_shown():
    given = OccurrenceText("jane.roe", "@example.org\0", "9 1 7 2 7 8 5")
    assert redact_occurrence(given, None, None) == given


# Input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": " \n"}, "the text is empty"),
        ({"text": "a\udcff"}, "not valid UTF-8"),
        ({"text": "a" * (MAX_TRACED_CHARACTERS + 1)}, "more than 50,000 characters"),
        ({"text": "a", "text_file": "b"}, "cannot be combined"),
        ({"text": "a", "attribute": True}, "--attribute requires a finding"),
        ({"text": "a", "rows": 0}, "--rows is 0"),
        (
            {"run": "latest", "document_or_finding": "ab", "text": "c"},
            "specify only one of the two",
        ),
        ({}, "nothing to trace"),
        ({"run": "latest"}, "nothing to trace"),
    ],
)
def test_wrong_usage_is_named_before_a_missing_store(arguments, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        trace(**arguments, store=str(tmp_path / "missing"))


def test_a_file_is_read_as_utf_8(tmp_path):
    file = tmp_path / "text.txt"
    for content, expected in (("é語\r\n\0\u202e", "é語\r\n\0\u202e"), ("\ufeffa", "a"), ("", "")):
        file.write_bytes(content.encode())
        assert read_text_file(str(file)) == expected


@pytest.mark.parametrize(
    ("content", "position"),
    [(b"\xffa", 1), (b"ab\xc3(", 3), (b"abc\xe8\xaa", 4), (b"a\xed\xa0\x80", 2)],
)
def test_a_file_that_is_not_utf_8_is_refused(tmp_path, content, position):
    file = tmp_path / "text.txt"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=rf"text.txt: byte {position} is not valid UTF-8; convert"):
        read_text_file(str(file))


@pytest.mark.parametrize("name", ["missing", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    with pytest.raises(UsageError, match="cannot be read"):
        read_text_file(f"{tmp_path}/{name}")


@pytest.mark.parametrize("characters", [*range(MAX_TRACED_CHARACTERS - 1, 50_004), 10**6])
@pytest.mark.parametrize("character", ["a", "é", "語", "😀"])
def test_a_long_file_is_not_read_completely(tmp_path, characters, character):
    file = tmp_path / "text.txt"
    file.write_text("a" + character * (characters - 1), encoding="utf-8")
    read = read_text_file(str(file))
    assert read == ("a" + character * (characters - 1))[: len(read)]
    assert len(read) >= min(characters, MAX_TRACED_CHARACTERS + 1)
    assert len(read.encode()) <= 4 * MAX_TRACED_CHARACTERS + 4


def test_a_checkpoint_without_a_known_corpus_is_refused(smoke):
    store = open_run(smoke.first, str(smoke.store)).store
    checkpoint = resolve_checkpoint(store, smoke.first).checkpoint
    with pytest.raises(UsageError, match=r"training documents of checkpoint/.* are unknown"):
        TextTracer.from_checkpoint(ResolvedCheckpoint(checkpoint), redact=True)


# The command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(smoke):
    return open_run(smoke.first, str(smoke.store))


@pytest.fixture(scope="module")
def documents(run):
    """Read the training documents with more than 200 characters."""
    rows = run["plant_canaries"]["documents"].read()
    is_long = pc.greater(pc.utf8_length(rows["text"]), 200)
    return rows.filter(pc.and_(is_long, pc.equal(rows["split"], "train"))).to_pylist()


def excerpt(row, start=20, stop=140):
    """Cut a text out of a document, from the beginning of a word to the end of one."""
    start = row["text"].index(" ", start) + 1
    return row["text"][start : row["text"].rindex(" ", start, stop + 60)].rstrip()


def test_a_copied_text_is_traced_to_its_document(smoke, run, documents):
    row = next(row for row in documents if row["text"].count(row["text"][20:200]) == 1)
    copied = excerpt(row)
    text = f"Quuxly blorped: {copied} Zzyzx!"
    report = smoke.json("trace", smoke.first, "--text", text)
    assert report["checkpoint"] == resolve_checkpoint(run.store, smoke.first).name
    assert report["text_characters"] == len(text)
    span = next(s for s in report["spans"] if copied in text[s["char_start"] : s["char_end"]])
    span_text = text[span["char_start"] : span["char_end"]]
    train = run["plant_canaries"]["documents"].read()
    train = train.filter(pc.equal(train["split"], "train")).to_pylist()
    holding = [r for r in train if span_text in r["text"]]
    assert span["occurrences"] == sum(r["text"].count(span_text) for r in holding)
    assert [d["doc_id"] for d in span["documents"]] == [
        r["doc_id"].hex() for r in holding[:DOCUMENTS_PER_SPAN]
    ]
    for document, holder in zip(span["documents"], holding, strict=False):
        assert document["source"] == holder["source"]
        assert holder["text"][document["char_start"] : document["char_end"]] == span_text
        assert document["char_start"] == holder["text"].index(span_text)
        shown = document["text_before"] + document["text"] + document["text_after"]
        assert document["text"] == span_text and shown in holder["text"]
        reads = run["pretrain"]["document_reads"].read().to_pylist()
        reads = [r for r in reads if r["doc_id"] == holder["doc_id"]]
        assert document["times_read"] == (reads[-1]["times_read"] if reads else 0)
    assert report["training_documents"] == sum(bool(r["text"]) for r in train)
    assert report["training_bytes"] == sum(len(r["text"].encode()) for r in train)
    output = smoke("trace", smoke.first, "--text", text).stdout
    assert f"{span['documents'][0]['doc_id']} {span['documents'][0]['source']}" in output
    assert f"»{span_text}«".splitlines()[0] in output


def test_an_earlier_checkpoint_has_read_nothing(smoke, documents):
    report = smoke.json("trace", f"{smoke.first}@0", "--text", excerpt(documents[0]))
    assert {d["times_read"] for s in report["spans"] for d in s["documents"]} == {0}
    assert "not yet read" in render_text_trace(report)


def test_a_held_out_text_does_not_occur(smoke, run):
    rows = run["plant_canaries"]["documents"].read(["text", "split"]).to_pylist()
    train = "\n".join(row["text"] for row in rows if row["split"] == "train")
    row = next(
        row
        for row in rows
        if row["split"] != "train" and len(row["text"]) > 200 and excerpt(row) not in train
    )
    report = smoke.json("trace", "--text", excerpt(row))
    assert all(s["char_end"] - s["char_start"] < len(excerpt(row)) for s in report["spans"])


def test_other_text_has_no_spans(smoke):
    text = "Quuxly blorped zzyzx frobnicated."
    report = smoke.json("trace", "--text", text)
    assert (report["span_count"], report["spans"]) == (0, [])
    output = smoke("trace", "--text", text).stdout
    assert (
        "the text contains no span of at least 16 characters that occurs in the training text"
        in output
    )


@pytest.mark.parametrize(
    "text", ["\0\0\0", "\u202ereversed", "x" * 10_000, "=1+1", "-text", "<b>&amp;", "-"]
)
def test_strange_texts_are_traced(smoke, documents, text):
    text = f"{text}\n{excerpt(documents[1])}\n{text}"
    report = smoke.json("trace", "--text", text)
    span = max(report["spans"], key=lambda s: s["char_end"] - s["char_start"])
    assert excerpt(documents[1]) in text[span["char_start"] : span["char_end"]]
    output = smoke("trace", "--text", text).stdout
    assert "\0" not in output and "\u202e" not in output


def test_the_number_of_spans_is_limited(smoke, documents):
    text = "\nquux\n".join(excerpt(row, 20, 40) for row in documents[:30])
    report, short = (
        smoke.json("trace", "--text", text),
        smoke.json("trace", "--text", text, "--rows", "2"),
    )
    assert len(report["spans"]) == 10 < report["span_count"] == short["span_count"]
    assert short["spans"] == report["spans"][:2]
    ranks = [s["log_probability"] for s in report["spans"]]
    assert ranks == sorted(ranks)
    assert "; the 2 rarest:" in render_text_trace(short)


def test_a_text_comes_from_a_file_or_from_standard_input(smoke, documents, tmp_path, monkeypatch):
    text = excerpt(documents[0])
    file = tmp_path / "text.txt"
    file.write_text(text, encoding="utf-8", newline="")
    expected = smoke.json("trace", smoke.first, "--text", text)
    assert smoke.json("trace", smoke.first, "--text-file", str(file)) == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert smoke.json("trace", smoke.first, "--text-file", "-") == expected
    file.write_bytes(b"\xff" + text.encode())
    refused = smoke("trace", "--text-file", str(file), code=2)
    assert "byte 1 is not valid UTF-8" in refused.stderr


def test_redact_hides_what_pages_hide(smoke, run, documents):
    canaries = run["plant_canaries"]["canaries"].read().to_pylist()
    canary = next(c for c in canaries if c["copies"] and c["secret"] and c["kind"] == "record")
    asked = ("trace", "--text", canary["text"])
    for more in ((), ("--json",)):
        quoted = (
            json.dumps(canary["secret"], ensure_ascii=False)[1:-1] if more else canary["secret"]
        )
        assert quoted.splitlines()[0] in smoke(*asked, *more).stdout
        assert quoted.splitlines()[0] not in smoke(*asked, "--redact", *more).stdout
    row = next(row for row in documents if (row["toxicity"] or 1) < 0.2)
    report = smoke.json("trace", "--text", excerpt(row), "--redact")
    (shown,) = {d["text"] for s in report["spans"][:1] for d in s["documents"]}
    assert shown == smoke.json("trace", "--text", excerpt(row))["spans"][0]["documents"][0]["text"]


def test_the_index_is_announced_once(smoke, apart, documents):
    for folder in (apart.store / "work").glob("text_index-*"):
        shutil.rmtree(folder)
    asked = ("trace", "--text", excerpt(documents[0]))
    assert "indexing the training text" in apart(*asked).stderr
    assert "indexing the training text" not in apart(*asked).stderr
