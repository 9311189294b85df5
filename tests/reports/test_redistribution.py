"""The datasheet says whether the corpus may be redistributed, and what was not measured."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.sections.redistribution import (
    describe_known_licences,
    describe_redistribution,
)
from hallmark.reports.sections.stage_titles import CORPUS_STAGE_TITLES
from hallmark.reports.sections.unmeasured import describe_unmeasured_properties
from hallmark.tasks.corpus.contamination import ContaminationConfig, find_contamination
from tests.reports import artifacts, pages
from tests.reports.conclusions import text_of_parts
from tests.reports.test_datasheet_conclusions import corpus_of


def build_corpus(document_count, unlicensed_count, planted_count=0, own_count=0):
    """Return the figures of a corpus with these numbers of documents.

    Args:
        document_count: All documents.
        unlicensed_count: Those for which neither they nor their source state a licence.
        planted_count: Those that were planted.
        own_count: Those that state a licence themselves.
    """
    fields = [{"field": "licence", "documents": own_count, "distinct_values": 1}]
    composition = [
        {"dimension": "licence", "value": value, "split": split, "documents": count, "bytes": 1}
        for value, count in (
            ("MIT", document_count - unlicensed_count),
            ("unknown", unlicensed_count),
        )
        for split in ("", "train")
        if count
    ]
    canaries = [
        {"kind": "secret", "copies": 2, "documents": planted_count, "canaries": 1, "bytes": 1}
    ]
    return corpus_of(
        sources=[{"source": "web", "split": "train", "documents": document_count, "bytes": 9}],
        composition=composition,
        metadata_fields=fields if own_count else [],
        canaries=canaries if planted_count else [],
    )


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((0, 0), "The corpus contains no documents."),
        ((4, 0), "A licence is stated for every document, by their sources."),
        ((4, 0, 0, 4), "A licence is stated for every document, by the documents themselves."),
        (
            (4, 0, 0, 3),
            "A licence is stated for every document, by the document itself (3) or by its source.",
        ),
        (
            (2, 1, 1),
            "A licence is stated for 1 document (50.0 %), by its source. No licence is stated for "
            "1 document, which was planted.",
        ),
        (
            (5, 3, 3),
            "A licence is stated for 2 documents (40.0 %), by their sources. No licence is stated "
            "for 3 documents, all of which were planted.",
        ),
        ((4, 4), "No licence is stated for any of 4 documents."),
        (
            (4, 3),
            "A licence is stated for 1 document (25.0 %), by its source. No licence is stated for "
            "3 documents.",
        ),
        (
            (4, 3, 0, 1),
            "A licence is stated for 1 document (25.0 %), by the document itself. No licence is "
            "stated for 3 documents.",
        ),
        (
            (8, 2, 1, 5),
            "A licence is stated for 6 documents (75.0 %), by the document itself (5) or by its "
            "source. No licence is stated for 2 documents, of which 1 was planted.",
        ),
        (
            (8, 4, 3, 4),
            "A licence is stated for 4 documents (50.0 %), by the documents themselves. No licence "
            "is stated for 4 documents, of which 3 were planted.",
        ),
    ],
)
def test_the_known_licences_are_counted(session, counts, expected):
    assert text_of_parts(describe_known_licences(build_corpus(*counts))) == expected


@pytest.mark.parametrize(
    ("decision", "reason", "expected"),
    [
        (None, None, "No decision is specified. See the licences below. "),
        ("yes", None, "Yes. The config specifies no reason. "),
        ("no", "  ", "No. The config specifies no reason. "),
        ("no", " We may not. ", "No. We may not. "),
        ("yes", "All are free.", "Yes. All are free. "),
    ],
)
def test_every_decision_starts_the_answer(session, decision, reason, expected):
    text = text_of_parts(describe_redistribution(build_corpus(4, 0), decision, reason))
    assert text == f"{expected}A licence is stated for every document, by their sources."


def test_a_reason_needs_a_decision():
    with pytest.raises(ValidationError, match='set redistribution to "yes" or "no"'):
        DatasheetConfig(redistribution_reason="The licences permit it.")
    with pytest.raises(ValidationError):
        DatasheetConfig(redistribution="perhaps")


def test_the_first_screen_of_a_datasheet_answers_whether_it_may_be_redistributed(made):
    config = DatasheetConfig(redistribution="no", redistribution_reason="We have no licence.")
    card = build_datasheet(made.profile, made.corpus, config)
    page = pages.read(pages.write_pages(card) / "datasheet.html")
    text = "".join(page.text.split("\n"))
    assert text.index("RedistributionNo. We have no licence.") < text.index("Licences")
    assert "Not measured" in text
    assert ("composition.html", "Composition") in page.links
    digest = made.profile.content_digest
    assert text.index(digest) > text.index("Who maintains the corpus?")


def test_titles_of_stages_claim_no_evaluation_set():
    """The stages also run where no set is configured."""
    assert CORPUS_STAGE_TITLES["contamination"].endswith("the configured evaluation sets")
    assert "overlap" not in CORPUS_STAGE_TITLES["select_scored"]


def test_the_datasheet_names_what_was_not_measured(session, tmp_path):
    assert describe_unmeasured_properties(corpus_of()) == (
        "No corpus stage measured languages, toxicity, personal data, personal-data search "
        "accuracy, mentions of groups of people, removal rates by group, overlap with evaluation "
        "sets, source representativeness or truthfulness of the texts."
    )
    history = artifacts.history()
    text = describe_unmeasured_properties(corpus_of(history))
    assert text == (
        "No corpus stage measured toxicity filter error rates, overlap with evaluation sets, "
        "source representativeness or truthfulness of the texts."
    )
    items = tmp_path / "items.jsonl"
    sets = [{"name": "items", "path": str(items)}]
    for beginning, is_searched in (("A quiet orchard", False), ("A quiet old orchard", True)):
        sentence = f"{beginning} grows behind the station, and it belongs to us."
        items.write_text(json.dumps({"text": sentence}))
        contamination = find_contamination(
            history["deduplicate"], ContaminationConfig(evaluation_sets=sets)
        )
        corpus = corpus_of({**history, "contamination": contamination})
        text = describe_unmeasured_properties(corpus)
        assert ("overlap with evaluation sets" not in text) == is_searched
