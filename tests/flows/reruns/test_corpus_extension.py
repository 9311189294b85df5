"""A run that extends the corpus of the smoke run."""

import json
import random
import shutil

import pyarrow.compute as pc
import pytest

from hallmark import open_run
from hallmark.flows.commands.purge import purge_document
from hallmark.flows.commands.trace import trace_document
from hallmark.flows.corpus_additions import open_corpus_documents, resolve_earlier_run_id
from hallmark.tasks.contract import UsageError
from tests.reports import pages
from tests.run_requests import resolve

pytestmark = pytest.mark.slow

CONFIG = """
name = "second"
earlier_run = "{earlier}"

[[ingest.sources]]
kind = "jsonl"
name = "more"
path = "{path}"
licence = "CC0"

[train_tokenizer]
vocab_size = 512

[pack]
context = 128
"""


@pytest.fixture(scope="module")
def grown(smoke, tmp_path_factory):
    """Extend the corpus of the smoke run with copies, near-duplicates and new documents.

    Returns the run, the path of its config, and the texts by their expected outcome."""
    folder = tmp_path_factory.mktemp("grown")
    documents = open_run(smoke.first, str(smoke.store))["deduplicate_near"]["documents"]
    rows = [r for r in documents.read(["text", "split"]).to_pylist() if len(r["text"].split()) > 80]
    chance = random.Random(1)
    words = sorted({word for row in rows for word in row["text"].split()})
    texts = {
        "exact duplicate": [f"{row['text']} \n" for row in rows[:3]],
        "near duplicate": [f"{row['text']} and more" for row in rows[3:8]],
        None: [" ".join(chance.choices(words, k=60)) for _ in range(60)],
    }
    lines = [json.dumps({"text": text}) for some in texts.values() for text in some]
    (folder / "more.jsonl").write_text("\n".join(lines))
    config = folder / "second.toml"
    # The start of the id is enough; run.json records the complete id.
    config.write_text(CONFIG.format(earlier=smoke.first[:-1], path=folder / "more.jsonl"))
    report = smoke.json("run", str(config), "--until", "pack")
    yield open_run(report["run"], str(smoke.store)), config, texts
    shutil.rmtree(smoke.store / "runs" / report["run"])


def test_new_documents_equal_to_earlier_ones_are_removed(smoke, grown):
    run, _, texts = grown
    assert run.earlier_run_name == smoke.first
    raw = {d["doc_id"]: d["text"] for d in run["ingest"]["documents"].read().to_pylist()}
    found = dict.fromkeys(raw.values())
    for label in ("deduplicate", "deduplicate_near"):
        for row in run[label]["ledger"].read().to_pylist():
            found[raw[row["doc_id"]]] = row["reason"]
            before = open_run(smoke.first, str(smoke.store))[label]["documents"]
            assert before.find_document_rows([row["matched_doc_id"]]).num_rows == 1
    assert found == {text: reason for reason, some in texts.items() for text in some}


def test_later_stages_read_the_whole_corpus(smoke, grown):
    run, _, texts = grown
    before = open_run(smoke.first, str(smoke.store))
    names = [f"{each['plant_canaries'].name}#documents" for each in (before, run)]
    for label in ("profile", "train_tokenizer", "pack"):
        assert run[label].manifest["lineage"]["documents"] == names
    rows = [each["plant_canaries"]["documents"].row_count for each in (before, run)]
    assert open_corpus_documents(run).row_count == sum(rows) and rows[1] == len(texts[None])
    books = run["pack"]["accounts"].read().filter(pc.field("unit") == "rows")
    assert pc.sum(books["input"]).as_py() == sum(rows)
    composition = run["profile"]["composition"].read().filter(pc.field("split") == "")
    languages = composition.filter(pc.field("dimension") == "language")
    assert pc.sum(languages["documents"]).as_py() == sum(rows)
    known = languages.filter(pc.field("value") != "unknown")
    assert pc.sum(known["documents"]).as_py() > rows[1]
    licences = composition.filter(pc.field("dimension") == "licence")
    assert "CC0" in licences["value"].to_pylist()
    sheet = pages.write_pages(run["datasheet"]) / "datasheet.html"
    head = pages.read(sheet).text.partition("Removed documents (including duplicates)")[0]
    last = f"it has 1 earlier addition and a last addition with {rows[1]} documents."
    assert last in head and "only the last addition: removal rates by group" in head
    (additions,) = [t for t in pages.read_whole_card(sheet).tables if t[0][0] == "addition"]
    assert [[cell.split()[0] for cell in row[:3]] for row in additions[1:]] == [
        [str(n), each["plant_canaries"].name, f"{count:,}"]
        for n, (each, count) in enumerate(zip((before, run), rows, strict=True), 1)
    ]
    rows = run["datasheet"]["answers"].read().to_pylist()
    answers = {row["question_id"]: row["answer"] for row in rows}
    last = "The last addition to the corpus: "
    assert answers["composition_sample"].startswith(f"{last}It is a selection. Hallmark read ")
    assert last not in answers["composition_count"]
    earlier = before["datasheet"]["answers"].read(["answer"])["answer"].to_pylist()
    assert not any(last in answer for answer in earlier)


def test_an_earlier_document_is_traced_through_both_runs(smoke, grown):
    run, _, _ = grown
    spans = run["pack"]["spans"].read().to_pylist()
    first = open_run(smoke.first, str(smoke.store))["split"]["documents"].read(["doc_id"])
    earlier = set(first["doc_id"].to_pylist())
    doc_id = next(s["doc_id"] for s in spans if s["doc_id"] in earlier and s["split"] == "train")
    report = smoke.json("trace", run.id, doc_id.hex())
    assert {stage["run"] for stage in report["stages"]} == {smoke.first}
    assert report["stages"][-1]["stage"] == "plant_canaries" and report["spans"]
    purged = purge_document(run.store, doc_id.hex(), dry_run=True)
    assert {smoke.first, run.id} <= set(purged["runs"])


def test_documents_that_packing_skipped_are_found_for_each_addition(smoke, grown):
    run, _, _ = grown
    gone = run["pack"]["ledger"].read(["doc_id"])["doc_id"].to_pylist()
    added = {*run["plant_canaries"]["documents"].read(["doc_id"])["doc_id"].to_pylist()}
    assert {*gone} & added and {*gone} - added
    for doc_id in gone:
        packed = trace_document(run, doc_id.hex())["stages"][-1]
        assert packed["stage"] == "pack" and "holdout" in packed["ledger"][0]["reason"]


def test_a_forecast_finds_the_whole_corpus_in_the_store(smoke, grown):
    run, config, _ = grown
    report = smoke.json("run", str(config), "--until", "pack", "--dry-run")
    assert {row["state"] for row in report["stages"]} == {"store"}
    assert report["corpus"]["documents"] == {
        "value": open_corpus_documents(run).row_count,
        "is_exact": True,
    }


def test_incompatible_additions_are_refused_before_anything_runs(smoke, grown, monkeypatch):
    run, config, _ = grown
    monkeypatch.setenv("HALLMARK_STORE", str(smoke.store))
    for settings, words in (
        (["deduplicate_near.bands=20"], r"deduplicate_near\.bands is 20 but was 32"),
        (["split.seed=4"], r"split\.seed is 4 but was 0"),
        (
            ["plant_canaries.enabled=true"],
            r"already planted canaries .* set plant_canaries\.enabled=false",
        ),
        (["earlier_run=20000101-000000-abcd"], "has no run named '20000101-000000-abcd'"),
        (
            ['find_repeats.preferred_sources=["bokks"]'],
            "there is no source 'bokks'; choose from",
        ),
    ):
        with pytest.raises(UsageError, match=words):
            resolve(str(config), settings)
    resolve(
        str(config), ['deduplicate.preferred_sources=["documentation"]']
    )  # a source of the earlier corpus
    message = smoke("run", str(config), "--set", "split.seed=4", "--dry-run", code=2).stderr
    assert "split.seed is 4" in message
    to_itself = resolve(str(config), []).config.model_copy(update={"earlier_run": run.id})
    without = run.record | {"stages": run.record["stages"][:3]}
    monkeypatch.setattr(run.store, "get", lambda key: json.dumps(without).encode())
    with pytest.raises(UsageError, match="has no finished corpus"):
        resolve_earlier_run_id(run.store, to_itself)
    itself = run.record | {"config": run.record["config"] | {"earlier_run": run.id}}
    monkeypatch.setattr(run.store, "get", lambda key: json.dumps(itself).encode())
    with pytest.raises(UsageError, match="would extend itself"):
        resolve_earlier_run_id(run.store, to_itself)
