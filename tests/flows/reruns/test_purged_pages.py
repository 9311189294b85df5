"""The pages of a run report purged documents."""

import pytest

from hallmark.flows.commands.purge import purge_document
from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.site import build_site
from hallmark.reports.unredacted_site import write_unredacted_site
from hallmark.tasks.contract import (
    EmptyConfig,
    Session,
    StageContext,
    Store,
    Table,
    open_session,
    stage,
)
from hallmark.tasks.corpus.ingest import ingest
from tests.flows.reruns.test_purge import COPIED, SECRET, id_of, source
from tests.reports import artifacts, finetuning_artifacts, pages

RUN = "20260101-100000-aaaa"
SAID = (
    "1 document from the corpus was purged: its text is no longer in the store, but figures "
    "computed before the purge still include it, and a model trained on it retains what it learnt."
)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def made(store, tmp_path):
    with open_session(Session(store)):
        made = artifacts.curated(ingest(source(tmp_path)))
        made["profile"] = artifacts.profiled(made)
        made["datasheet"] = build_datasheet(made["profile"], made, DatasheetConfig())
        model = artifacts.checkpoint(tmp_path / "model")
        made["model_card"] = pages.card_of(model, corpus=dict(made))
    return made


def record(made, *labels):
    """Record a run with these stages, or with all."""
    stages = [
        {
            "label": label,
            "artifact": a.name,
            "stage": a.stage,
            "content": a.content_digest,
            "fingerprint": a.fingerprint,
            "cached": False,
            "seconds": 1.0,
        }
        for label, a in made.items()
        if not labels or label in labels
    ]
    return {
        "run": RUN,
        "flow": "pipeline",
        "config_name": "c",
        "status": "completed",
        "started": "2026-01-01T10:00:00+00:00",
        "ended": None,
        "stages": stages,
    }


def test_every_page_of_the_run_says_how_many_documents_were_purged(store, made, tmp_path):
    whole = build_site(store, [record(made)], tmp_path / "whole").parent
    assert not any("purged" in pages.read(path).text for path in whole.rglob("*.html"))
    one, both = id_of(made, SECRET), id_of(made, COPIED)
    for ids, words in ((one, SAID), (both, "3 documents from the corpus were purged: their texts")):
        for doc_id in ids:
            purge_document(store, doc_id.hex())
        # Also if the existing site has all of these pages.
        site = build_site(store, [record(made)], tmp_path / "site", previous_site=whole).parent
        found = [site / "runs" / RUN / "index.html"]
        for card in ("datasheet", "model_card"):
            found += (site / "runs" / RUN / card).rglob("*.html")
        assert len(found) > 10 and pages.broken_links(site) == []
        for path in found:
            assert words in pages.read(path).text, path
    assert "documents purged: 3" in pages.read(site / "index.html").text


def test_a_card_begins_with_the_purge_even_without_other_stages(store, made, tmp_path):
    """As for an audit of a model whose corpus an earlier run built."""
    [doc_id] = id_of(made, SECRET)
    purge_document(store, doc_id.hex())
    site = build_site(store, [record(made, "model_card")], tmp_path / "site").parent
    text = pages.read_whole_card(site / "runs" / RUN / "model_card" / "model_card.html").text
    assert " ".join(text.split()).startswith(
        f"Untitled model: model card Runs · This run · Model card Untitled model {SAID}"
    )
    assert SAID in pages.read(site / "runs" / RUN / "index.html").text


def test_an_unredacted_card_mentions_the_purge(store, made, tmp_path):
    [doc_id] = id_of(made, SECRET)
    purge_document(store, doc_id.hex())
    page = write_unredacted_site(store, record(made, "datasheet"), tmp_path / "clear")
    assert SAID in pages.read_whole_card(page.parent / "datasheet" / "datasheet.html").text


@stage(name="trained", tables={})
def trained(documents: Table, config: EmptyConfig, context: StageContext) -> None:
    context.prepare_output_path("model.txt").write_text("weights")


def test_the_card_of_a_fine_tuned_model_mentions_the_purge(store, made, tmp_path):
    """The base model of the fine-tuning was trained on the document."""
    (tmp_path / "rows.jsonl").write_text("{}\n")
    rows = {"task": {"kind": "classification"}, "data": {"path": str(tmp_path / "rows.jsonl")}}
    with open_session(Session(store)):
        base = trained(made["plant_canaries"], EmptyConfig())
        run = {
            "finetune": finetuning_artifacts.tuned(
                base, finetuning_artifacts.TunedConfig.model_validate(rows)
            )
        }
        run["task_card"] = finetuning_artifacts.card_of(run["finetune"])
    site = build_site(store, [record(run)], tmp_path / "whole").parent
    card = site / "runs" / RUN / "task_card" / "task_card.html"
    assert "purged" not in pages.read(card).text
    [doc_id] = id_of(made, SECRET)
    purge_document(store, doc_id.hex())
    site = build_site(store, [record(run)], tmp_path / "site").parent
    text = pages.read(site / "runs" / RUN / "task_card" / "task_card.html").text
    assert SAID in " ".join(text.split())
