"""The cards: every figure leads to the rows it is computed from, and nothing escapes its mask."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import pandas as pd
import pyarrow.parquet as pq
import pytest

from hallmark.reports.cards import read_card
from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.page.card_pages import write_card_pages
from hallmark.reports.sections.corpus_figures import CARD_TABLES, build_corpus_redactor
from hallmark.tasks.contract import (
    HallmarkError,
    ProcessMapper,
    Session,
    Store,
    hash_file,
    open_session,
)
from hallmark.tasks.corpus.find_personal_data import PersonalDataConfig, find_personal_data
from tests.reports import artifacts, pages
from tests.reports.pages import card_of, text_of

CARDS = ["datasheet", "model_card", "task_card"]


@pytest.fixture(params=CARDS)
def name(request):
    return request.param


@pytest.fixture
def card(cards, name):
    return cards[name]


@pytest.fixture
def folder(card):
    return pages.write_pages(card)


@pytest.fixture
def figures(card):
    return pages.read_figures(card)


@pytest.fixture
def inputs(made, cards):
    """The artifacts behind the figures, by the label of their stage."""
    found = {**made.corpus, "profile": made.profile, "pretrain": made.pretrained}
    found |= {"attention_maps": made.maps, "train_tokenizer": made.tokenizer}
    found |= {"score_samples": made.written, "finetune": made.tuned}
    return found | {f"audit_{name}": artifact for name, artifact in made.audits.items()}


def number(text: str) -> float:
    """The number at the start of a shown figure."""
    word = text.replace("−", "-").split(" ")[0].replace(",", "")
    return float(word) / (100 if text.split(" (")[0].split(" ")[1:2] == ["%"] else 1)


def test_every_figure_is_on_the_page_and_leads_to_its_rows(card, folder, name, figures):
    page = pages.read(folder / f"{name}.html")
    shown = Counter(page.figures)
    assert len(figures) > 25
    assert {href for href, _ in shown} == set(figures["page_path"])
    for row in figures.to_dict("records"):
        texts = [text for href, text in shown if href == row["page_path"]]
        evidence = pages.read(folder / row["page_path"])
        assert row["id"] in evidence.ids
        if pd.isna(row["value"]):
            assert any(text.startswith("not measured") for text in texts), row["id"]
        else:
            known = [number(t) for t in texts if not t.startswith("not measured")]
            near = 6e-4 if row["unit"] == "share" else 6e-5  # half of the last digit shown
            assert any(v == pytest.approx(row["value"], rel=6e-4, abs=near) for v in known), row


def test_markdown_and_html_hold_the_same_figures(folder, name):
    html = pages.read(folder / f"{name}.html")
    markdown = pages.render((folder / f"{name}.md").read_text())
    assert Counter(markdown.links) == Counter(html.figures)
    assert markdown.sources == html.sources
    assert markdown.alts == html.alts
    assert [
        [[" ".join(cell.split()) for cell in row] for row in table] for table in markdown.tables
    ] == [[[" ".join(cell.split()) for cell in row] for row in table] for table in html.tables]


def test_every_figure_equals_what_pandas_makes_of_its_rows(figures, inputs, made, name):
    checked = Counter()
    # Of the corpus stages a card reads some tables, and names the digest of those.
    narrowed = {*made.corpus, *(["profile"] if name == "model_card" else [])}
    for row in figures.to_dict("records"):
        if row["aggregate"] == "finding" or row["stage"] == "checkpoint":
            continue
        artifact = inputs[row["stage"]]
        read = artifact.select_contents(CARD_TABLES) if row["stage"] in narrowed else artifact
        assert row["content_digest"] == read.content_digest
        assert row["sha256"] == artifact[row["evidence_table"]].digest
        rows = pages.rows_behind(artifact, row["evidence_table"], row["evidence_filter"])
        assert len(rows) == row["row_count"], row["id"]
        wanted = pages.recompute(rows, row["aggregate"], row["value_column"])
        assert row["value"] == pytest.approx(wanted, nan_ok=True) or (
            pd.isna(row["value"]) and wanted is None
        ), row["id"]
        checked[row["aggregate"]] += 1
    assert checked["sum"] > 3 and checked["last"] > 3 and checked["count"] > 1


def test_findings_are_shown_with_interval_n_and_scorer(cards, made):
    table = made.audits["toxicity"]["findings"].read().to_pylist()
    figures = pages.read_figures(cards["model_card"]).set_index("id")
    kept = figures.loc["toxicity-expected-maximum-toxicity-prompted-k-25"]
    names = ["value", "low", "high", "n", "scorer", "method"]
    assert {n: kept[n] for n in names} == {n: table[1][n] for n in names}
    assert kept["confidence_level"] == table[1]["confidence_level"]
    page = pages.read(pages.write_pages(cards["model_card"]) / "model_card.html")
    head = page.tables[0]
    assert head[0] == ["measure", "value", "unit", "interval", "n", "conclusion", "scorer"]
    assert [
        "Expected maximum toxicity, prompted, k=25",
        "0.7500",
        "score",
        "0.6250 to 0.8750",
        "7",
        "–",
        "linear 1.0 (abcdef)",
    ] in head
    assert not any(row[0][-3:] == "k=1" for row in head)  # the most draws alone
    # The column "not measured because" has the reason alone.
    assert "[press]" in page.text and "not measured: [press]" not in page.text


def test_capability_stands_beside_harm_with_all_baselines(cards):
    head = pages.read(pages.write_pages(cards["model_card"]) / "model_card.html").tables[0]
    assert [(row[0], row[1]) for row in head[1:6]] == [
        ("Bits per byte, this model", "1.500"),
        ("Bits per byte, gzip -9", "3.250"),
        ("Bits per byte, interpolated bigram", "3.500"),
        ("Bits per byte, interpolated 5-gram", "1.250"),
        ("Cloze accuracy", "12.5 %"),
    ]


def test_the_card_says_in_words_which_baselines_are_ahead(cards):
    page = pages.read(pages.write_pages(cards["model_card"]) / "model_card.html")
    assert (
        "Simpler methods predict held-out text better than this model: interpolated 5-gram, by "
        "0.2500 bits (95 % interval 0.1250 to 0.3750, n = 20)."
    ) in page.text.split("Largest risks")[0]  # before any finding


def test_pages_of_rows_show_the_rows_they_name(folder, figures, inputs, name):
    limit = 200
    pages_seen = set()
    for row in figures.to_dict("records"):
        if row["stage"] == "checkpoint" or row["page_path"] in pages_seen:
            continue
        pages_seen.add(row["page_path"])
        rows = pages.rows_behind(
            inputs[row["stage"]], row["evidence_table"], row["evidence_filter"]
        )
        page = pages.read(folder / row["page_path"])
        if not len(rows):
            assert "No row meets these conditions" in page.text
            continue
        head, *body = page.tables[0]
        assert head == inputs[row["stage"]][row["evidence_table"]].read().column_names
        assert len(body) == min(limit, len(rows))
        assert row["sha256"] in page.text and row["content_digest"] in page.text
        for column in ("doc_id", "sample", "bytes", "step", "rows"):
            if column in rows.columns:
                shown = [cells[head.index(column)] for cells in body]
                values = rows[column].head(limit)
                wanted = [v.hex() if isinstance(v, bytes) else f"{v:.6g}" for v in values]
                assert [s if column == "doc_id" else f"{float(s):.6g}" for s in shown] == wanted
        if len(rows) > limit:
            assert f"of which the first {limit} are shown" in page.text
    assert name != "model_card" or any(figures["row_count"] > limit)


def test_the_python_lines_select_the_same_rows(folder, figures, inputs, monkeypatch):
    monkeypatch.setenv("HALLMARK_STORE", str(next(iter(inputs.values())).store.root_folder))
    for row in figures.to_dict("records"):
        if row["stage"] == "checkpoint":
            continue
        page = (folder / row["page_path"]).read_text()
        lines = pages.Page(page).text.split("To read all of these rows in Python:")[1]
        code = lines.split("Documents\n")[0].strip()
        scope: dict = {}
        exec("\n".join(line for line in code.splitlines() if line), scope)
        assert len(scope["rows"]) == row["row_count"], row["id"]


@pytest.mark.parametrize("name", ["datasheet", "model_card"])  # of its rows no task card knows
def test_documents_named_by_rows_stand_on_their_page(cards, figures, folder, made, name):
    source = {"datasheet": ("deduplicate", "ledger"), "model_card": ("audit_toxicity", "values")}
    stage, table = source[name]
    row = next(
        r for r in figures.to_dict("records") if (r["stage"], r["evidence_table"]) == (stage, table)
    )
    page = pages.read(folder / row["page_path"])
    anchors = {href[5:] for href, _ in page.links if href.startswith("#doc-")}
    assert anchors and all(f"doc-{anchor}" in page.ids for anchor in anchors)
    assert page.tables[1][0] == ["doc_id", "source", "stage", "toxicity", "text"]
    ids = {line[0] for line in page.tables[1][1:]}
    assert anchors <= ids


def test_nothing_that_must_be_masked_is_in_any_file(folder, made):
    secrets = [secret for secret in made.secrets if secret]
    assert len(secrets) >= 6
    for path in folder.rglob("*"):
        if path.suffix in (".html", ".md", ".svg"):
            text = path.read_text(encoding="utf-8")
            for hidden in (*artifacts.MASKED, *secrets):
                assert hidden not in text, (path.name, hidden[:4])
            assert not any(c in text for c in "\u202e\u200b\x07"), path.name


def test_personal_data_is_looked_for_where_the_corpus_looked(session, made):
    assert not build_corpus_redactor(made.corpus, 0.5).phone_regions - {"US"}
    config = PersonalDataConfig(types=("EMAIL",), regions=("GB",))
    british = find_personal_data(made.corpus["deduplicate"], config)
    masker = build_corpus_redactor({**made.corpus, "find_personal_data": british}, 0.5)
    for text in ("call (020) 8366 1177 now", "call (650) 253-0000 now"):
        assert masker.redact_excerpt(text) == "call [phone masked] now"


def test_masked_text_says_what_is_missing(cards):
    text = "".join(
        pages.read(path).text for path in pages.write_pages(cards["model_card"]).rglob("*.html")
    )
    assert "[phone masked]" in text and "[planted secret masked]" in text
    sheet = "".join(
        pages.read(path).text for path in pages.write_pages(cards["datasheet"]).rglob("*.html")
    )
    assert "[masked: scored " in sheet
    assert "‹U+202E›" in text


def test_hostile_text_is_inert(folder, name):
    allowed = {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "header",
        "main",
        "footer",
        "nav",
        "section",
        "p",
        "h1",
        "h2",
        "h3",
        "ul",
        "ol",
        "li",
        "a",
        "dl",
        "dt",
        "dd",
        "div",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "code",
        "pre",
        "figure",
        "figcaption",
        "img",
        "strong",
        "span",
        "br",
    }
    for path in folder.rglob("*.html"):
        page = pages.read(path)
        assert page.tags <= allowed, path.name
        assert len(page.ids) == len(set(page.ids)), path.name
    markdown = pages.render((folder / f"{name}.md").read_text())
    assert not {"script", "iframe"} & markdown.tags
    assert all(href.startswith("rows/") for href, _ in markdown.links)
    assert all(source.startswith("charts/") for source in markdown.sources)
    if name == "datasheet":
        assert artifacts.SCRIPT in markdown.text and artifacts.LINK in markdown.text


def test_what_a_person_wrote_stays_one_line_of_text(cards):
    folder = pages.write_pages(cards["model_card"])
    markdown = pages.render((folder / "model_card.md").read_text())
    assert "Intended use: 1. Tests # only" in markdown.text
    assert "Out of scope: Not stated." in markdown.text


def test_links_resolve_and_headings_are_in_order(folder, name):
    assert pages.broken_links(folder) == []
    for path in folder.rglob("*.html"):
        levels = pages.read(path).headings
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(b <= a + 1 for a, b in itertools.pairwise(levels)), path.name
    assert all(pages.read(folder / f"{name}.html").alts)


def test_charts_are_svg_without_script_and_without_a_date(cards):
    from xml.etree import ElementTree

    charts = [p for card in cards.values() for p in pages.write_pages(card).glob("charts/*.svg")]
    assert {path.stem for path in charts} == {
        "flow",
        "group-removals",
        "loss",
        "bits-per-byte",
        "attention-1",
        "attention-2",
    }
    for path in charts:
        tree = ElementTree.parse(path)
        tags = {element.tag.split("}")[1] for element in tree.iter()}
        assert "text" in tags and not tags & {"script", "image", "foreignObject", "metadata"}


def test_the_sections_are_those_of_the_templates(cards):
    wanted = {
        "datasheet": [
            "Removal rates by group",
            "Motivation",
            "Composition",
            "Collection process",
            "Preprocessing, cleaning, labelling",
            "Uses",
            "Distribution",
            "Maintenance",
        ],
        "model_card": [
            "Main results",
            "Model details",
            "Intended use",
            "Factors",
            "Metrics",
            "Evaluation data",
            "Training data",
            "Quantitative analyses",
            "Inside the model",
            "Ethical considerations",
            "Caveats and recommendations",
        ],
        "task_card": [
            "Task and base checkpoint",
            "Scores",
            "Training",
            "Predictions",
            "How to use it",
            "Caveats",
        ],
    }
    for name, titles in wanted.items():
        lines = (pages.write_pages(cards[name]) / f"{name}.md").read_text().splitlines()
        assert [line[3:] for line in lines if line.startswith("## ")] == titles


def test_the_card_knows_its_checkpoint(cards, made):
    figures = pages.read_figures(cards["model_card"]).set_index("id")
    assert figures.loc["parameters-model-safetensors", "value"] == 17
    text = pages.read(pages.write_pages(cards["model_card"]) / "model_card.html").text
    assert made.checkpoint.content_digest in text
    assert "has no score until a person rates the texts" in text
    rows = pages.read(pages.write_pages(cards["model_card"]) / "model_card.html").tables
    line = next(table for table in rows if "validation loss" in table[0])[-1]
    assert line == ["250", "128,000", "3.000", "3.250", "audited here"]


def test_documents_for_training_by_source_are_those_of_the_split(cards):
    figures = {row["id"]: row["value"] for row in cards["model_card"]["figures"].read().to_pylist()}
    whole = figures["sources-documents-train"]
    by_source = [
        value
        for name, value in figures.items()
        if re.fullmatch(r"sources-documents-.+-train", name)
    ]
    assert len(by_source) > 1 and sum(filter(None, by_source)) == whole
    text = pages.read(pages.write_pages(cards["model_card"]) / "model_card.html").text
    assert "Documents by source, split train" in text


def test_same_inputs_give_the_same_bytes(cards, tmp_path):
    with open_session(Session(Store(tmp_path / "store"), ProcessMapper(2))):
        again = artifacts.make(tmp_path)
        made = build_datasheet(
            again.profile, again.corpus, DatasheetConfig(title=f"Corpus {artifacts.LINK}")
        )
    # Ledgers hold hashes keyed by the secret of their store, so digests of evidence differ.
    for table in ("sections", "figures"):
        assert made[table].read().equals(cards["datasheet"][table].read())
    with open_session(Session(Store(cards["datasheet"].store.uri))) as session:
        session.store.work_folder = tmp_path / "work"
        tables = compute_again(cards["model_card"], tmp_path / "one", session)
        assert {*tables} == {"sections", "figures", "evidence"}
        for name, table in tables.items():
            assert table.equals(cards["model_card"][name].read())


def test_pages_are_the_same_bytes_each_time(cards, name, tmp_path):
    for folder in (tmp_path / "one", tmp_path / "two"):
        write_card_pages(read_card(cards[name].store, cards[name]), folder)
    digests = [
        {path.relative_to(folder): hash_file(path) for path in folder.rglob("*.*")}
        for folder in (tmp_path / "one", tmp_path / "two")
    ]
    assert digests[0] == digests[1] and len(digests[0]) > 20


def compute_again(card, folder, session):
    """Run the body of the model card's stage once more and return its tables."""
    from hallmark.tasks.contract import StageContext

    inputs = card.manifest["lineage"]

    def find(name):
        stage, _, digest = name.partition("/")
        return session.store.find_artifact(stage, digest)

    work = StageContext(folder, build_model_card.tables)
    config = ModelCardConfig(**card.manifest["parts"]["config"])
    made = artifacts.checkpoint(folder / "checkpoint")
    build_model_card.body(
        made,
        find(inputs["training_run"]),
        find(inputs["tokenizer"]),
        {k: find(v) for k, v in inputs["audits"].items()},
        {k: find(v) for k, v in inputs["corpus_artifacts"].items()},
        find(inputs["attention_maps"]),
        find(inputs["scored_samples"]),
        None,
        None,
        {},
        None,
        config,
        work,
    )
    work.close()
    return {
        name: pq.read_table(work.work_area / "tables" / f"{name}.parquet").cast(schema)
        for name, schema in build_model_card.tables.items()
    }


# Cards of less ---------------------------------------------------------------------------------


def test_failed_controls_come_first(session, made):
    audit = artifacts.toxicity_findings(artifacts.AuditConfig(passed=False))
    card = card_of(made.checkpoint, {"toxicity": audit})
    text = text_of(card, "model_card")
    limit = "the scorer linear 1.0 does not detect: control texts; no verdict"
    assert f"No audit ran a self-check; {limit}" in text
    assert text.index(limit) < text.index("at a glance")


def test_a_corpus_without_a_profile_still_traces(session, made):
    corpus = {"plant_canaries": made.corpus["plant_canaries"]}
    card = card_of(made.checkpoint, made.audits, corpus)
    text = text_of(card, "model_card")
    assert "The store contains no profile (statistics) of the training corpus" in text
    secrets = [s for s in made.secrets if s]
    for path in pages.write_pages(card).rglob("*.html"):
        assert not any(secret in path.read_text() for secret in secrets)


@pytest.mark.parametrize("where", ["[1]", "{no json", '{"nothing": 1}'])
def test_a_finding_that_names_no_rows_is_refused(session, made, where):
    audit = artifacts.toxicity_findings(artifacts.AuditConfig(where=where))
    with pytest.raises(HallmarkError, match="audit_toxicity"):
        card_of(made.checkpoint, {"toxicity": audit})
