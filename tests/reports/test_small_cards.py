"""Cards of little, of a foreign checkpoint or an empty corpus, and what only some corpora have."""

from __future__ import annotations

import pytest

from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.sections.composition import describe_declared_licences
from hallmark.reports.sections.corpus_figures import CorpusFigures
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import HallmarkError, Session, Store, open_session
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig, score_toxicity
from hallmark.tasks.corpus.toxicity.cascade import CascadeConfig
from hallmark.tasks.measures.scorers import ScorerConfig
from tests.reports import artifacts, pages
from tests.reports.pages import card_of, text_of
from tests.tasks.measures.detoxify_checkpoint import make_checkpoint


def test_a_foreign_checkpoint_gets_a_card(session, tmp_path):
    found = artifacts.checkpoint(tmp_path / "foreign", "gpt2")
    text = text_of(card_of(found), "model_card")
    assert "came without its training corpus" in text
    assert "has no training log" in text
    assert "No audit ran a control" in text
    for sentence in (
        AUDIT_DESCRIPTIONS["bias"].not_run_message,
        AUDIT_DESCRIPTIONS["capability"].not_run_message,
    ):
        assert text.count(sentence) == 1  # the first screen names the audit only
    assert "gpt2" in text


def test_a_checkpoint_without_config_or_safetensors_gets_a_card(session, tmp_path):
    from hallmark.tasks.contract import folder_to_artifact

    (tmp_path / "weights.bin").write_bytes(b"123")
    card = card_of(folder_to_artifact(tmp_path, "checkpoint"))
    text = text_of(card, "model_card")
    assert "no safetensors file" in text and "no config.json" in text
    assert card["figures"].row_count == 0


def test_a_damaged_checkpoint_is_named(session, tmp_path):
    from hallmark.tasks.contract import folder_to_artifact

    found = artifacts.checkpoint(tmp_path / "x", "damaged")  # no other test's: its card is made
    path = tmp_path / "x" / "model.safetensors"
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(HallmarkError, match="does not match the SHA-256 in its manifest"):
        card_of(found)
    with pytest.raises(HallmarkError, match="is not a valid safetensors file"):
        card_of(folder_to_artifact(tmp_path / "x", "checkpoint"))


def test_an_empty_corpus_gets_a_datasheet(session, cards):
    from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
    from hallmark.tasks.corpus.profile import ProfileConfig, profile_corpus
    from tests.tasks.corpora import given

    nothing = given([], kind="split")
    planted = plant_canaries(nothing, PlantCanariesConfig(enabled=False))
    history = {"plant_canaries": planted}
    made = profile_corpus(planted, planted, history, {}, ProfileConfig())
    text = text_of(build_datasheet(made, history, DatasheetConfig()), "datasheet")
    assert "The corpus contains 0 documents with 0 bytes of text" in text
    assert "Nothing was planted" in text and "The corpus is empty" in text
    assert text.count("Not stated.") >= 10
    assert "This corpus was not searched for personal data." in text
    assert "The corpus was not searched for personal data, so any document may contain it." in text
    unfit = "Until the planted documents are removed, the corpus is unsuitable for other uses."
    assert unfit not in text and unfit in text_of(cards["datasheet"], "datasheet")


def test_the_datasheet_says_what_a_cascade_cleared_and_may_have_missed(session, tmp_path):
    checkpoint, base = make_checkpoint(tmp_path)
    scorer = ScorerConfig(kind="detoxify", checkpoint=checkpoint, base_model_folder=base)
    cascade = CascadeConfig(
        clears_below=0.05, toxicity_threshold=0.01, min_recall=0.1, sample_size=20
    )
    config = ScoreToxicityConfig(scorer=scorer, cascade=cascade)
    corpus = artifacts.history()
    scores = score_toxicity(corpus["redact_spans"], None, config)
    corpus["score_toxicity"] = scores
    sheet = build_datasheet(artifacts.profiled(corpus), corpus, DatasheetConfig(title="A corpus"))
    (row,) = scores["cascade"].read().to_pylist()
    assert (
        row["sampled_documents"] == 20
        and row["cleared_documents"] > 0
        and 0.1 <= row["recall_lower_bound"] < 1
    )
    page = pages.read_whole_card(pages.write_pages(sheet) / "datasheet.html")
    said = " ".join(page.text.split())
    assert f"{row['cleared_documents']} documents were passed by alt-profanity-check" in said
    toxic = f"{row['toxic_documents']} documents were toxic (scores of 0.01 or above)"
    assert f"To check this, both scorers read 20 documents, of which {toxic}" in said
    assert "(estimate at 95 % confidence; required: 10 %)." in said
    lines = [
        line
        for table in page.tables
        for line in table[1:]
        if table[0] == ["documents", "outcome", "number"]
    ]
    cleared = [
        line
        for line in lines
        if line[0] == "judged harmless by the cheap scorer and therefore not scored"
    ]
    assert sum(int(line[2]) for line in cleared) == row["cleared_documents"]
    assert sum(int(line[2]) for line in lines) == corpus["redact_spans"]["documents"].row_count
    assert "could not be, or are in" not in said
    figures = {r["id"]: r for r in pages.read_figures(sheet).to_dict("records")}
    for name in (
        "cleared_documents",
        "sampled_documents",
        "toxic_documents",
        "missed_documents",
        "recall_lower_bound",
    ):
        slug = name.replace("_", "-")
        assert figures[f"cascade-{slug}"]["value"] == row[name]
        assert figures[f"cascade-{slug}"]["evidence_table"] == "cascade"
    assert figures["cascade-recall-lower-bound"]["n"] == row["toxic_documents"]


def test_pairs_of_near_copies_stand_in_buckets_with_two_ends(session):
    corpus = artifacts.history()
    corpus["deduplicate_near"] = near = deduplicate_near(
        corpus["deduplicate"], {}, DeduplicateNearConfig()
    )
    sheet = build_datasheet(
        artifacts.profiled(corpus), corpus, DatasheetConfig(title="Near copies")
    )
    page = pages.read_whole_card(pages.write_pages(sheet) / "datasheet.html")
    (table,) = (
        table for table in page.tables if table[0] == ["Jaccard similarity", "stage", "pairs"]
    )
    found = near["pairs"].read()["similarity"].to_pylist()
    assert len(found) and 1.0 not in found
    for bucket, _, pairs in table[1:]:
        low, high = map(float, bucket.split(" to "))
        assert high == pytest.approx(low + 0.05)
        assert int(pairs) == sum(low - 1e-6 <= each < high - 1e-6 for each in found)
    labels = [row["label"] for row in sheet["figures"].read().to_pylist()]
    assert f"number of pairs with similarity {table[1][0]}, deduplicate_near" in labels


def test_what_sources_declare_is_on_the_datasheet(tmp_path):
    """Licence, origin and days of the collection; as text, not as markup."""
    (tmp_path / "a.txt").write_text("one letter")
    said = {"licence": "<b>CC0</b>", "origin": "a letter box", "collected_from": "2020-01-02"}
    place = {"kind": "text", "path": str(tmp_path / "a.txt")}
    sources = [{**place, "name": "said", **said}, {**place, "name": "mute"}]
    with open_session(Session(Store(tmp_path / "store"))):
        corpus = artifacts.history()
        profiled = artifacts.profiled(corpus)
        said_by_name = {}
        for name, given in (("both", sources), ("mute", sources[1:])):
            history = {**corpus, "ingest": ingest(IngestConfig(sources=given))}
            made = build_datasheet(profiled, history, DatasheetConfig())
            said_by_name[name] = pages.read_card_source(pages.write_pages(made) / "datasheet.html")
    assert "&lt;b&gt;CC0&lt;/b&gt;" in said_by_name["both"] and "<b>CC0" not in said_by_name["both"]
    assert "Declared by the sources: &lt;b&gt;CC0&lt;/b&gt; (said)." in said_by_name["both"]
    assert "Declared by the sources" not in said_by_name["mute"]
    assert "a letter box" in said_by_name["both"] and "2020-01-02" in said_by_name["both"]
    assert "Source declarations" not in said_by_name["mute"]
    # A source about which the config states nothing has a row, and the first screen names it.
    assert '<th scope="row">mute</th><td>not stated in the config</td>' in said_by_name["both"]
    assert "The config specifies no licence for mute." in said_by_name["both"]
    assert "The config specifies no licence" not in said_by_name["mute"]


@pytest.mark.parametrize(
    ("licences", "stated", "expected"),
    [
        ({"a": None}, None, "Not stated."),
        ({"a": None}, "CC0", "CC0"),
        ({"a": "MIT"}, None, "Declared by the sources: MIT (a)."),
        ({"a": "MIT"}, "CC0", "CC0"),
        (
            {"a": "MIT", "b": "MIT", "c": None},
            None,
            "Declared by the sources: MIT (a, b). The config specifies no licence for c.",
        ),
        ({"a": "MIT", "b": None}, "CC0", "CC0. The config specifies no licence for b."),
        (
            {"a": "MIT", **dict.fromkeys("bcdefgh")},
            "CC0",
            "CC0. The config specifies no licence for b, c, d, e, f and 2 other sources.",
        ),
        (
            {"a": "MIT", **dict.fromkeys("bcdefg")},
            "CC0",
            "CC0. The config specifies no licence for b, c, d, e, f and 1 other source.",
        ),
    ],
)
def test_every_branch_about_the_licences_of_sources(tmp_path, licences, stated, expected):
    (tmp_path / "a.txt").write_text("one letter")
    place = {"kind": "text", "path": str(tmp_path / "a.txt")}
    sources = [{**place, "name": name, "licence": text} for name, text in licences.items()]
    with open_session(Session(Store(tmp_path / "store"))):
        artifact = ingest(IngestConfig(sources=sources))
        corpus = CorpusFigures(FigureBook({"ingest": artifact}), {"ingest": artifact}, 30)
        assert "".join(describe_declared_licences(corpus, stated, "")) == expected


@pytest.mark.parametrize(
    ("unread_names", "sentence"),
    [
        ([], ""),
        (["b.pdf"], "1 file in the source folders was not read."),
        (["b.pdf", "in/c.zip"], "2 files in the source folders were not read."),
    ],
)
def test_the_number_of_files_that_were_not_read_is_on_the_datasheet(
    tmp_path, unread_names, sentence
):
    for name in ("a.txt", *unread_names):
        (tmp_path / "letters" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "letters" / name).write_text("one letter")
    source = {"kind": "text", "path": str(tmp_path / "letters"), "name": "s"}
    with open_session(Session(Store(tmp_path / "store"))):
        corpus = artifacts.history()
        profiled = artifacts.profiled(corpus)
        history = {**corpus, "ingest": ingest(IngestConfig(sources=[source]))}
        sheet = build_datasheet(profiled, history, DatasheetConfig())
        text = pages.read_card_source(pages.write_pages(sheet) / "datasheet.html")
    assert text.count("in the source folders") == bool(sentence) and sentence in text
