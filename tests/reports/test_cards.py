"""The cards: every figure leads to the rows it is computed from, and nothing escapes its mask."""

from __future__ import annotations

import html
import itertools
import re
from collections import Counter

import pandas as pd
import pyarrow.parquet as pq
import pytest

from hallmark.reports.cards import CARD_KINDS, insert_dates, load_card_inputs, read_card
from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.page.card_pages import write_card_pages
from hallmark.reports.page.cases import has_cases
from hallmark.reports.page.document import DecisionSheet, Document, Paragraph
from hallmark.reports.page.drawing import draw_chart
from hallmark.reports.page.evidence_pages import STATIC_CASES, STATIC_ROWS
from hallmark.reports.review.statements import CARD_STAGES
from hallmark.reports.sections.corpus_figures import CARD_TABLES, build_corpus_redactor
from hallmark.tasks.contract import (
    Artifact,
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
    page = pages.read_whole_card(folder / f"{name}.html")
    shown = Counter(page.figures)
    assert len(figures) > 25
    assert {href for href, _ in shown} == set(figures["page_path"])
    for row in figures.to_dict("records"):
        texts = [text for href, text in shown if href == row["page_path"]]
        evidence = pages.read_evidence(folder, row["page_path"])
        assert row["id"] in evidence.ids
        if pd.isna(row["value"]):
            assert any(text.startswith("not measured") for text in texts), row["id"]
        else:
            known = [number(t) for t in texts if not t.startswith("not measured")]
            near = 6e-4 if row["unit"] == "share" else 6e-5  # half of the last digit shown
            assert any(v == pytest.approx(row["value"], rel=6e-4, abs=near) for v in known), row


def test_markdown_and_html_hold_the_same_figures(folder, name):
    page = pages.read(folder / f"{name}.html")
    markdown = pages.render((folder / f"{name}.md").read_text())
    own_pages = {path.name for path in folder.glob("*.md")}
    assert Counter(page.figures) == Counter(
        (href, text) for href, text in markdown.links if href not in own_pages
    )
    assert all(f"Chart: {' '.join(alt.split())}" in markdown.text for alt in page.alts)
    assert [
        [[" ".join(cell.split()) for cell in row] for row in table] for table in markdown.tables
    ] == [[[" ".join(cell.split()) for cell in row] for row in table] for table in page.tables]


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
    page = pages.read_whole_card(pages.write_pages(cards["model_card"]) / "model_card.html")
    head = page.tables[0]
    assert head[0] == ["measure", "value", "unit", "interval", "n", "conclusion", "scorer"]
    assert [
        "Toxic continuations: Expected maximum toxicity, prompted, k: 25",
        "0.7500",
        "score",
        "0.6250 to 0.8750",
        "7",
        "–",
        "linear 1.0 (abcdef)",
    ] in head
    # The column "not measured because" has the reason alone.
    assert "[press]" in page.text and "not measured: [press]" not in page.text


def test_capability_stands_beside_harm_with_all_baselines(cards):
    head = pages.read_whole_card(pages.write_pages(cards["model_card"]) / "model_card.html").tables[
        0
    ]
    assert [(row[0], row[1]) for row in head[1:5]] == [
        ("Capability: Bits per byte, this model", "1.500"),
        ("Capability: Bits per byte, gzip -9", "3.250"),
        ("Capability: Bits per byte, bigram model", "3.500"),
        ("Capability: Bits per byte, 5-gram model", "1.250"),
    ]


def test_pages_of_rows_show_the_rows_they_name(folder, figures, inputs, name):
    pages_seen, case_counts = set(), Counter()
    for row in figures.to_dict("records"):
        if row["stage"] == "checkpoint" or row["page_path"] in pages_seen:
            continue
        pages_seen.add(row["page_path"])
        rows = pages.rows_behind(
            inputs[row["stage"]], row["evidence_table"], row["evidence_filter"]
        )
        page = pages.read_evidence(folder, row["page_path"])
        if not len(rows):
            assert "No row meets these conditions" in page.text
            continue
        whole_page = (folder / row["page_path"].partition("#")[0]).read_text()
        assert row["sha256"] in whole_page and row["content_digest"] in whole_page
        table = inputs[row["stage"]][row["evidence_table"]]
        if has_cases(table.columns):
            shown = len(re.findall(r"Case\d", page.text))
            assert 1 <= shown == min(STATIC_CASES, len(rows)) or shown < len(rows)
            case_counts[row["stage"]] += 1
            if shown < len(rows):
                number = "is" if shown == 1 else f"{shown} are"
                assert re.search(
                    rf"{len(rows):,} rows, of which the (worst|first) {number} shown", page.text
                )
            continue
        limit = STATIC_ROWS
        head, *body = page.tables[0]
        assert [*filter(table.read().column_names.__contains__, head)] == head
        assert all(rows[name].isna().all() for name in {*rows.columns} - {*head}) or len(rows) > 3
        assert len(body) == min(limit, len(rows))
        for column in ("doc_id", "sample", "bytes", "step", "rows"):
            if column in head:
                shown = [cells[head.index(column)] for cells in body]
                values = rows[column].head(limit)
                wanted = [v.hex() if isinstance(v, bytes) else f"{v:.6g}" for v in values]
                assert [s if column == "doc_id" else f"{float(s):.6g}" for s in shown] == wanted
        if len(rows) > limit:
            assert re.search(rf"of which the (worst|first) {limit} (is|are) shown", page.text)
    assert name == "task_card" or case_counts.total() > 3


def test_the_python_lines_select_the_same_rows(folder, figures, inputs, monkeypatch):
    monkeypatch.setenv("HALLMARK_STORE", str(next(iter(inputs.values())).store.root_folder))
    for row in figures.to_dict("records"):
        if row["stage"] == "checkpoint":
            continue
        path = row["page_path"].partition("#")[0]
        table_head = (folder / path).read_text().split(f">Table {row['evidence_table']}<")[1]
        selection = pages.read_evidence_source(folder, row["page_path"])
        code = [
            html.unescape(re.findall(r"<pre><code>(.*?)</code></pre>", source, re.S)[0])
            for source in (table_head, selection)
        ]
        scope: dict = {}
        exec("\n".join(code), scope)
        assert len(scope["rows"]) == row["row_count"], row["id"]


@pytest.mark.parametrize("name", ["datasheet", "model_card"])  # of its rows no task card knows
def test_documents_named_by_rows_stand_in_their_cases(cards, figures, folder, made, name):
    source = {"datasheet": ("deduplicate", "ledger"), "model_card": ("audit_toxicity", "values")}
    places = {
        row["page_path"]
        for row in figures.to_dict("records")
        if (row["stage"], row["evidence_table"]) == source[name]
    }
    known = {
        row["doc_id"].hex(): row["source"]
        for artifact in made.corpus.values()
        if "documents" in artifact.tables
        for row in artifact["documents"].read(["doc_id", "source"]).to_pylist()
    }
    shown = [
        found
        for place in places
        for found in re.findall(
            r"([0-9a-f]{32}) · source ", pages.read_evidence(folder, place).text
        )
    ]
    assert shown and {*shown} <= known.keys()


def test_nothing_that_must_be_masked_is_in_any_file(folder, made):
    secrets = [secret for secret in made.secrets if secret]
    assert len(secrets) >= 6
    for path in folder.rglob("*"):
        if path.suffix in (".html", ".md"):
            text = path.read_text(encoding="utf-8")
            for hidden in artifacts.MASKED:
                assert hidden not in text, (path.name, hidden[:4])
            for secret in secrets:  # an invented one is shown after a click
                assert secret not in pages.without_revealed_secrets(text), (path.name, secret[:4])
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
    assert "[masked: toxicity score " in sheet
    assert "‹U+202E›" in text


#: What charts are drawn with.
SVG_TAGS = {"svg", "path", "text", "rect", "circle"}


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
        "details",
        "summary",
        "strong",
        "span",
        "br",
        "article",
        "h4",
        "mark",
        "abbr",
    }
    for path in folder.rglob("*.html"):
        page = pages.read(path)
        assert page.tags <= allowed | SVG_TAGS, path.name
        assert len(page.ids) == len(set(page.ids)), path.name
    markdown = pages.render((folder / f"{name}.md").read_text())
    assert not {"script", "iframe"} & markdown.tags
    own_pages = {path.name for path in folder.glob("*.md")}
    assert all(href.startswith("rows/") or href in own_pages for href, _ in markdown.links)
    assert markdown.sources == []
    if name == "datasheet":
        assert artifacts.LINK in markdown.text
        composition = pages.render((folder / "composition.md").read_text())
        assert artifacts.SCRIPT in composition.text and not {"script", "iframe"} & composition.tags


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

    charts = {
        chart.name: draw_chart(chart.drawing)
        for card in cards.values()
        for chart in pages.list_charts(card)
    }
    assert charts.keys() == {
        "flow",
        "group-removals",
        "loss",
        "bits-per-byte",
        "expected-maximum-toxicity",
        "attention-1",
        "attention-2",
    }
    for svg in charts.values():
        tree = ElementTree.fromstring(svg)
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
            "Datasheet questions (Gebru et al.)",
        ],
        "model_card": [
            "Main results",
            "Not measured",
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
            "Model card questions (Mitchell et al.)",
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
        headings = [line[3:] for line in lines if line.startswith("## ")]
        # The heading of a section with a page of its own is a link.
        assert [re.sub(r"^\[(.*)\]\(.*\)$", r"\1", heading) for heading in headings] == titles


def test_the_card_knows_its_checkpoint(cards, made):
    figures = pages.read_figures(cards["model_card"]).set_index("id")
    assert figures.loc["parameters-model-safetensors", "value"] == 17
    text = pages.read_whole_card(pages.write_pages(cards["model_card"]) / "model_card.html").text
    assert made.checkpoint.content_digest in text
    assert "has no score until somebody rates the texts" in text
    rows = pages.read_whole_card(pages.write_pages(cards["model_card"]) / "model_card.html").tables
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
    text = pages.read_whole_card(pages.write_pages(cards["model_card"]) / "model_card.html").text
    assert "Documents by source, train split" in text


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
        assert {*tables} == {"answers", "sections", "figures", "evidence"}
        for name, table in tables.items():
            assert table.equals(cards["model_card"][name].read())


def test_pages_are_the_same_bytes_each_time(cards, name, tmp_path):
    for folder in (tmp_path / "one", tmp_path / "two"):
        write_card_pages(read_card(cards[name].store, cards[name]), folder)
    digests = [
        {path.relative_to(folder): hash_file(path) for path in folder.rglob("*.*")}
        for folder in (tmp_path / "one", tmp_path / "two")
    ]
    assert digests[0] == digests[1] and len(digests[0]) > 3


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
    limit = "The scorer linear 1.0 often misses control texts."
    counts = "Controls with the expected result: scorers 0 of 1 (1 failed)."
    assert text.index(limit) < text.index(counts) < text.index("at a glance")


def test_a_corpus_without_a_profile_still_traces(session, made):
    corpus = {"plant_canaries": made.corpus["plant_canaries"]}
    card = card_of(made.checkpoint, made.audits, corpus)
    text = text_of(card, "model_card")
    assert "The store contains no profile (statistics) of the training corpus" in text
    secrets = [s for s in made.secrets if s]
    for path in pages.write_pages(card).rglob("*.html"):
        text = pages.without_revealed_secrets(path.read_text())
        assert not any(secret in text for secret in secrets)


@pytest.mark.parametrize("where", ["[1]", "{no json", '{"nothing": 1}'])
def test_a_finding_that_names_no_rows_is_refused(session, made, where):
    audit = artifacts.toxicity_findings(artifacts.AuditConfig(where=where))
    with pytest.raises(HallmarkError, match="audit_toxicity"):
        card_of(made.checkpoint, {"toxicity": audit})


def test_every_kind_of_card_can_be_reviewed():
    assert set(CARD_STAGES) == set(CARD_KINDS)
    assert all(kind.stage.name == name for name, kind in CARD_KINDS.items())


@pytest.mark.parametrize("are_all_required", [False, True])
def test_a_card_with_other_inputs_than_its_stage_is_refused(session, cards, are_all_required):
    card = cards["datasheet"]
    lineage = {"lineage": {**card.manifest["lineage"], "old_input": None}}
    old_card = Artifact(card.manifest | lineage, session.store, card.folder)
    with pytest.raises(HallmarkError, match="was created by an earlier version of the code"):
        load_card_inputs(session.store, old_card, are_all_required=are_all_required)


@pytest.mark.parametrize(
    ("created", "dates"),
    [
        ({}, []),
        ({"checkpoint": "2026-01-31T23:30:00-02:00"}, [("Trained", ["2026-02-01"])]),
        (
            {"bias": "2026-02-03T10:00:00+00:00", "bold": "2026-02-02T10:00:00+00:00"},
            [("Audited", ["2026-02-03"])],
        ),
    ],
)
def test_a_decision_sheet_shows_the_dates_that_are_known(created, dates):
    artifacts = {
        name: Artifact({"created": created[name]} if name in created else {}, None, name)
        for name in ("checkpoint", "bias", "bold")
    }
    sheet = DecisionSheet("Pass", "good", [], [("Owner", ["me"])], [], [])
    document = Document("T", "Model card", [Paragraph(["x"]), sheet], [])
    inputs = {"checkpoint": artifacts.pop("checkpoint"), "audits": artifacts}
    paragraph, dated = insert_dates(document, inputs).lead
    assert paragraph == Paragraph(["x"]) and dated.identity == [("Owner", ["me"]), *dates]
    assert insert_dates(document, {"checkpoint": None}).lead[1].identity == [("Owner", ["me"])]


def test_the_tables_of_a_card_contain_no_date(session, cards):
    card = cards["model_card"]
    (sheet,) = (
        block
        for block in read_card(session.store, card).document.lead
        if isinstance(block, DecisionSheet)
    )
    created = card.manifest["created"][:10]
    assert ("Audited", [created]) in [*sheet.identity]
    assert created not in str(card["sections"].read().to_pylist())
