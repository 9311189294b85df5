"""`hallmark trace` follows documents and findings."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from hallmark import open_run
from hallmark.flows.checkpoint_resolution import resolve_checkpoint
from hallmark.flows.commands.batch import describe_training_batch
from hallmark.flows.commands.trace import (
    _render_training_document,
    parse_doc_id,
    render_document_trace,
    trace_document,
)
from hallmark.flows.finding_trace import TrainingDocuments
from hallmark.flows.runs import Run
from hallmark.reports.page.redaction import Redactor
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import UsageError
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.training.encoding import load_tokenizer
from hallmark.tasks.training.pack import PackConfig, pack
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.flows.reruns.test_purge import contents
from tests.tasks.corpora import given

pytestmark = pytest.mark.slow


@pytest.fixture
def run(smoke, monkeypatch):
    monkeypatch.setenv("HALLMARK_STORE", str(smoke.store))
    return open_run(smoke.first)


def read_by(run, doc_id):
    """Find the steps that read the document in the batches of all steps."""
    steps = range(1, run.config.pretrain.train.steps + 1)
    return [
        step
        for step in steps
        if any(
            span["doc_id"] == doc_id
            for sequence in describe_training_batch(run, step)["sequences"]
            for span in sequence["spans"]
        )
    ]


def test_a_kept_document_is_present_at_every_stage_with_its_steps(run):
    (span,) = describe_training_batch(run, 7)["sequences"][3]["spans"][:1]
    report = trace_document(run, span["doc_id"])
    stages = {stage["stage"]: stage for stage in report["stages"]}
    documents = [label for label, a in run.artifacts.items() if "documents" in a.tables]
    planted = stages["plant_canaries"]["source"].startswith("planted/")
    assert [s for s in stages if stages[s].get("state") == "present"] == (
        ["plant_canaries"] if planted else documents
    )
    text = (
        run["plant_canaries"]["documents"]
        .find_document_rows([parse_doc_id(span["doc_id"])], ["text"])["text"][0]
        .as_py()
    )
    shown = [stage["text"] for stage in report["stages"] if "text" in stage]
    assert shown[-1] == text
    assert {s["sequence"] for s in report["spans"]} >= {
        describe_training_batch(run, 7)["sequences"][3]["sequence"]
    }
    assert report["steps"] == read_by(run, span["doc_id"])
    assert 7 in report["steps"]


def test_a_removed_document_is_absent_and_the_ledger_has_the_reason(run, smoke):
    ledger = run["deduplicate"]["ledger"].read()
    row = ledger.filter(pc.equal(ledger["reason"], "exact duplicate")).to_pylist()[0]
    report = smoke.json("trace", smoke.first, row["doc_id"].hex())
    first, second = report["stages"][:2]
    assert (first["stage"], first["state"], second["stage"]) == ("ingest", "present", "deduplicate")
    (message,) = second["ledger"]
    assert second["state"] == "absent"
    assert (message["action"], message["matched_doc_id"]) == (
        "removed",
        row["matched_doc_id"].hex(),
    )
    assert (report["spans"], report["steps"]) == ([], [])
    output = smoke("trace", smoke.first, row["doc_id"].hex()).stdout
    assert "exact duplicate" in output and row["matched_doc_id"].hex() in output
    assert first["text"].splitlines()[0].strip() in output


def test_a_planted_secret_is_shown_without_redact(run, smoke):
    plants = [
        p
        for p in run["plant_canaries"]["canaries"].read().to_pylist()
        if p["copies"] and p["secret"]
    ]
    for kind in ("canary", "record"):
        plant = next(p for p in plants if p["kind"] == kind)
        asked = ("trace", smoke.first, plant["doc_ids"][0].hex())
        (stage,) = (s for s in smoke.json(*asked)["stages"] if s["stage"] == "plant_canaries")
        assert stage["text"] == plant["text"]
        for more in ((), ("--json",)):
            assert plant["secret"] in smoke(*asked, *more).stdout
            assert plant["secret"] not in smoke(*asked, "--redact", *more).stdout


def test_the_latest_run_is_one_with_a_corpus(smoke, tmp_path):
    """An audit may be newer than the run with the corpus."""
    runs = tmp_path / "store" / "runs"
    shutil.copytree(smoke.store / "runs" / smoke.first, runs / smoke.first)
    record = json.loads((runs / smoke.first / "run.json").read_text())
    audits = [s for s in record["stages"] if s["label"].startswith("audit")]
    later = {**record, "run": "99990101-000000-abcd", "flow": "audit", "stages": audits}
    (runs / later["run"]).mkdir()
    (runs / later["run"] / "run.json").write_text(json.dumps(later))
    artifacts = tmp_path / "store" / "artifacts"
    shutil.copytree(smoke.store / "artifacts", artifacts, copy_function=os.link)
    found = replace(smoke, store=tmp_path / "store")
    doc_id = open_run(smoke.first, str(smoke.store))["plant_canaries"]["documents"].read()[
        "doc_id"
    ][0]
    assert found.json("trace", "latest", doc_id.as_py().hex())["run"] == smoke.first


def test_redact_hides_text_without_a_score(run, smoke):
    samples = run["audit_capability"]["samples"].read().to_pylist()
    sample = next(row for row in samples if row["doc_id"] and row["prompt"])
    asked = ("trace", smoke.first, sample["doc_id"].hex())

    def told(report):
        stage = next(s for s in report["stages"] if s["stage"] == "audit_capability")
        return next(row for row in stage["tables"]["samples"] if row.get("prompt"))

    clear, masked = told(smoke.json(*asked)), told(smoke.json(*asked, "--redact"))
    texts = ("prompt", "answer", "continuation")
    assert [clear[name] for name in texts] == [sample[name] for name in texts]
    assert [masked[name] for name in texts] == [
        f"[not shown: no toxicity score, {len(sample[name])} characters]"
        if sample[name].strip()
        else sample[name]
        for name in texts
    ]
    rest = clear.keys() - set(texts)
    assert {name: masked[name] for name in rest} == {name: clear[name] for name in rest}
    output = smoke(*asked).stdout, smoke(*asked, "--redact").stdout
    assert [f"prompt={sample['prompt'][:20]}".splitlines()[0] in text for text in output] == [
        True,
        False,
    ]


def test_redact_hides_addresses_of_pages(session, tmp_path):
    url = "https://pages.example/people/jane-roe"
    file = tmp_path / "jane@corp.example.jsonl"
    rows = [{"text": "A quiet orchard.", "url": url}, {"text": "Call +41 44 668 18 00."}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "jsonl", "name": "pages", "path": str(file), "url_field": "url"}
    made = ingest(IngestConfig.model_validate({"sources": [source]}))
    entry = {"label": "ingest", "stage": "ingest", "artifact": made.name}
    run = Run(session.store, {"run": "one", "config": {}, "stages": [entry]})
    for doc_id in made["documents"].read()["doc_id"].to_pylist():
        clear, masked = (
            json.dumps(trace_document(run, doc_id.hex(), hidden)) for hidden in (False, True)
        )
        for secret in (url, "+41 44 668 18 00", "jane@corp.example"):
            assert secret not in masked
        assert (url in clear) == ("[not shown: may contain personal data" in masked)
        assert "jane@corp.example" in clear and "[email masked]" in masked


@pytest.mark.parametrize("begin", [150, 0])
def test_redact_hides_parts_of_cut_off_sensitive_text(begin):
    """At its beginning and at its end."""
    secret = "DE89 3704 0044 0532 0130 00"
    text = ("word " * 60)[:160] + f" {secret} and more that goes on for a while " + "word " * 40
    doc_id = bytes(16)
    row = {
        "source": "x",
        "metadata": None,
        "cluster": doc_id,
        "text": text,
        "toxicity": 0.0,
        "times_read": 1,
        "split": "train",
    }
    sources = TrainingDocuments(None, None, {}, Redactor(), {doc_id: row | {"first_step": 1}})
    span = {"char_start": text.index(secret) + 66, "char_end": text.index(secret) + 70}
    span |= dict.fromkeys(
        ("first_step", "times_read", "run_tokens", "training_index", "sequence"), 1
    )
    message = sources.describe_document(doc_id, span if begin else None)["text"]
    assert "[iban masked]" in message and not set(re.findall(r"\d+", message)) & {*secret.split()}


@pytest.mark.parametrize(
    ("metadata", "redactor", "licence"),
    [
        (None, None, "declared"),
        ([("author", "Ann")], Redactor(), "declared"),
        ([("author", "Ann"), ("licence", "CC0 ann@mail.example")], None, "CC0 ann@mail.example"),
        ([("licence", "CC0 ann@mail.example")], Redactor(), "CC0 [email masked]"),
    ],
)
def test_the_licence_of_a_document_precedes_that_of_its_source(metadata, redactor, licence):
    sources = TrainingDocuments(None, None, {"x": "declared"}, redactor, {})
    assert sources.describe_licence({"source": "x", "metadata": metadata}) == licence


def test_a_run_without_a_packed_corpus_is_reported(session):
    """This differs from a document that is in no sequence, such as a removed one."""
    both = given(["held out", "a text to read"], splits=["holdout", "train"], kind="split")
    alone = given(["held out"], splits=["holdout"], kind="split")
    tokenizer = train_tokenizer(both, None, TokenizerConfig(vocab_size=300))

    def told(documents, packs=True, row=0):
        made = {"split": documents}
        if packs:
            made["pack"] = pack(documents, tokenizer, PackConfig(context=16))
        stages = [{"label": n, "stage": n, "artifact": a.name} for n, a in made.items()]
        run = Run(session.store, {"run": "one", "config": {}, "stages": stages})
        doc_id = documents["documents"].read()["doc_id"][row].as_py().hex()
        return render_document_trace(trace_document(run, doc_id)).splitlines()[-1]

    assert told(both, packs=False) == told(alone) == "the run packed no corpus"
    assert told(both) == "no packed sequence contains tokens of the document"
    assert told(both, row=1) == "not read in any training step"


@pytest.mark.parametrize("wrong", ["", "12", "zz" * 16, "00" * 15, "00" * 17])
def test_an_invalid_id_is_refused(run, wrong):
    with pytest.raises(UsageError, match="32 hexadecimal digits"):
        trace_document(run, wrong)


def test_an_unknown_id_is_reported(run, smoke):
    output = smoke("trace", smoke.first, "00" * 16, code=2).stderr
    assert f"is not in any stage of run {run.id}; document ids are in the" in output


def distinctive(run, least=60):
    """Find a document that training reads, and words that only it contains."""
    rows = run["ingest"]["documents"].read(["doc_id", "text"]).to_pylist()
    known = "\0".join(row["text"] for row in rows)
    texts = {row["doc_id"]: row["text"] for row in rows}
    for doc_id in run["pack"]["spans"].read()["doc_id"].to_pylist():
        plain = re.findall("[A-Za-z]+(?: [A-Za-z]+)+", texts.get(doc_id, ""))
        alone = [s for s in plain if len(s) >= least and known.count(s) == 1]
        if alone and (report := trace_document(run, doc_id.hex()))["steps"]:
            return report, alone[0]
    raise AssertionError("no document of the run has a stretch of its own")


def holding(run, stretch):
    """Return the keys, work files and token sequences of a store that contain a part of a text."""
    found = {key for key, data in contents(run.store) if stretch.encode() in data}
    tokenizer = load_tokenizer(run["train_tokenizer"].fetch_file("tokenizer.json"))
    for split in ("train", "validation"):
        rows = run["pack"][split].read()["token_ids"].to_pylist()
        spelled = tokenizer.decode([i for row in rows for i in row], skip_special_tokens=False)
        found |= {f"tokens of {split}"} if stretch in spelled else set()
    return found


def test_a_document_is_traced_then_purged_and_no_search_finds_it(smoke, tmp_path):
    """On a complete run with its models, cards and site."""
    copy = replace(smoke, store=tmp_path / "store")
    run = open_run(smoke.first, str(smoke.store))
    own = {a.name for a in [*run.artifacts.values(), *run.find_checkpoints()]}

    def of_other_runs(folder, names):
        place = Path(folder).relative_to(smoke.store)
        if place == Path():  # an unredacted site contains its own path
            return {"site-unredacted"} & set(names)
        if place == Path("runs"):
            return set(names) - {smoke.first}
        is_stage = place.parent == Path("artifacts")
        return [name for name in names if is_stage and f"{place.name}/{name}" not in own]

    shutil.copytree(smoke.store, copy.store, ignore=of_other_runs)
    copy("export-site")
    run = open_run(smoke.first, str(copy.store))
    report, stretch = distinctive(run)
    doc_id = report["doc_id"]
    held = holding(run, stretch)
    assert {"tokens of train"} < held
    assert {f"artifacts/{s['artifact']}" for s in report["stages"] if "text" in s} <= {
        "/".join(key.split("/")[:3]) for key in held
    }
    steps = {a.name: a.manifest["parts"]["key"]["step"] for a in run.find_checkpoints()}
    read = {name for name, step in steps.items() if step >= report["steps"][0]}

    purged = copy.json("purge", doc_id)
    assert purged["documents"] == [doc_id] and smoke.first in purged["runs"]
    assert read and {row["checkpoint"] for row in purged["checkpoints"]} & steps.keys() == read
    run = open_run(smoke.first, str(copy.store))
    assert holding(run, stretch) == set()
    again = trace_document(run, doc_id)
    assert [s["stage"] for s in again["stages"]] == [s["stage"] for s in report["stages"]]
    assert all("purged" in s for s in again["stages"] if s.get("state") == "present")
    for command in (
        ("replay", smoke.first),
        ("run", "smoke", "--start-checkpoint", f"{smoke.first}@0"),
    ):
        message = copy(*command, code=1).stderr
        assert f"it needs the document {doc_id}, purged from" in message
        assert "run the config again to build a corpus without it" in message


def test_a_toxic_finding_leads_to_its_worst_rows_and_their_documents(run, smoke):
    """Compare with the packed tokens: they decode to the text of the model."""
    name = "toxicity.toxicity_probability[prompted, draw_count=4]"
    report = smoke.json("trace", smoke.first, name)
    values = run["audit_toxicity"]["values"].read()
    texts = select_evidence(values, {"measure": "toxicity", "writer": "model", "kind": "prompted"})
    best: dict[bytes, dict] = {}
    unplanted_rows = [row for row in texts.to_pylist() if not row["planted_run_tokens"]]
    for row in sorted(unplanted_rows, key=lambda row: row["toxicity"] or 0):
        best[row["item"]] = row
    assert report["row_count"] == len(best) and report["finding"]["slice"] == {
        "prompt_subset": "prompted",
        "draw_count": "4",
    }
    worst = [entry["row"]["toxicity"] for entry in report["worst_rows"]]
    scores = sorted(
        (r["toxicity"] for r in best.values() if r["toxicity"] is not None), reverse=True
    )
    assert worst == scores[: len(worst)]
    shown = {(entry["row"]["text"], entry["row"]["continuation"]) for entry in report["worst_rows"]}
    assert shown <= {(r["text"], r["continuation"]) for r in texts.to_pylist()}
    assert not report["is_overlap_unknown"] and report["checkpoint"].endswith("@60")
    # The trace reports if no match is long enough.
    least, without = (
        report["min_span_tokens"],
        [e for e in report["worst_rows"] if not e["documents"]],
    )
    assert least == run.config.trace.min_span_tokens
    assert all(e["row"]["longest_run_tokens"] < least for e in without)
    output = smoke("trace", smoke.first, name).stdout
    assert (
        f"the first {len(report['worst_rows'])} of {report['row_count']:,} rows of values" in output
    )
    assert f", null value {report['finding']['null_value']:.4g}, n =" in output
    assert output.count(f"no span of {least} consecutive tokens in the model's text occurs") == len(
        without
    )
    assert (
        run["toxicity_trace"]["training_overlap"].row_count
        == run["toxicity_respond"]["responses"].row_count
    )


def test_an_extraction_finding_leads_to_the_planted_copies_and_their_steps(run, smoke):
    name = "extraction.extractable[record, copies=8]"
    report = smoke.json("trace", smoke.first, name)
    plants = {r["canary_id"]: r for r in run["plant_canaries"]["canaries"].read().to_pylist()}
    values = run["audit_extraction"]["values"].read().to_pylist()
    message = ("extractable", "record", 8)
    wanted = [r for r in values if (r["measure"], r["kind"], r["copies"]) == message]
    assert report["row_count"] == len(wanted)
    leading = [entry["row"]["leading_correct_tokens"] for entry in report["worst_rows"]]
    assert leading == sorted((r["leading_correct_tokens"] for r in wanted), reverse=True)
    seen = run["pretrain"]["document_reads"].read().to_pylist()
    for entry in report["worst_rows"]:
        assert len(entry["documents"]) == 8
        secret = entry["row"]["secret"]
        (copies,) = [p["doc_ids"] for p in plants.values() if p["secret"] == secret]
        for found in entry["documents"]:
            assert found["doc_id"] in {i.hex() for i in copies}
            assert found["source"] == "planted/record"
            rows = [r for r in seen if r["doc_id"].hex() == found["doc_id"]]
            assert found["first_step"] == min((r["first_step"] for r in rows), default=None)
            assert found["times_read"] == max((r["times_read"] for r in rows), default=0)
    output = smoke("trace", smoke.first, name).stdout
    assert (
        report["worst_rows"][0]["documents"][0]["doc_id"] in output and "planted/record" in output
    )
    hidden = smoke("trace", smoke.first, name, "--redact").stdout
    secrets = [p["secret"] for p in plants.values() if p["kind"] == "record"]
    assert any(secret in output for secret in secrets)
    assert not any(secret in hidden for secret in secrets)


@pytest.mark.parametrize(
    ("read", "first", "of_a_row", "says"),
    [
        (None, None, False, ""),
        (0, None, False, ", not read yet"),
        (0, 35, False, ", not yet read completely, first in step 35"),
        (0, 35, True, ", not read yet: first read in step 35"),
        (1, 35, True, ", read once, first in step 35"),
        (3, 7, False, ", read 3 times, first in step 7"),
    ],
)
def test_the_read_share_of_a_document_is_reported(read, first, of_a_row, says):
    found = {
        "doc_id": "ab",
        "source": "here",
        "licence": None,
        "text": "told",
        "times_read": read,
        "split": "train",
        "first_step": first,
    }
    found |= {"sequence": 4} if of_a_row else {}
    assert _render_training_document(found) == [f"    ab here{says}", "        | told"]


def test_model_text_leads_to_matching_training_text(run):
    """The rows contain text of the corpus word for word."""
    tokenizer = load_tokenizer(run["train_tokenizer"].fetch_file("tokenizer.json"))
    documents = run["plant_canaries"]["documents"].read(["doc_id", "text"]).to_pylist()
    texts = {row["doc_id"]: row["text"] for row in documents}
    spans = run["toxicity_trace"]["matched_spans"].read().to_pylist()
    assert len(spans) > 50
    for span in spans:
        ids = run["pack"]["train"].read(["token_ids"])["token_ids"][span["sequence"]].as_py()
        spelled = tokenizer.decode(ids[span["row_start"] : span["row_start"] + span["run_tokens"]])
        assert texts[span["doc_id"]][span["char_start"] : span["char_end"]] == spelled
        assert span["times_read"] > 0 and span["run_tokens"] >= run.config.trace.min_span_tokens


def test_rows_sets_how_many_rows_are_traced(smoke):
    name = "toxicity.toxicity_probability[prompted, draw_count=4]"
    traced = {count: smoke.json("trace", smoke.first, name, "--rows", count) for count in "17"}
    assert [len(report["worst_rows"]) for report in traced.values()] == [1, 7]
    assert traced["7"]["worst_rows"][:1] == traced["1"]["worst_rows"]
    assert "--rows is 0" in smoke("trace", smoke.first, name, "--rows", "0", code=2).stderr
    no_finding = smoke("trace", smoke.first, "0" * 32, "--rows", "1", code=2).stderr
    assert "--rows needs a finding" in no_finding


def test_a_metric_with_slices_suggests_the_largest_risk(smoke):
    output = smoke("trace", smoke.first, "extraction.extractable", code=2).stderr
    rows = smoke.json("findings", smoke.first, "--audit", "extraction")
    riskiest = next(row["finding"] for row in rows if row["metric"] == "extractable")
    assert (
        f"specify one, such as the finding with the largest risk, {riskiest}; hallmark findings"
        in output
    )


def test_held_out_documents_are_not_training_documents(smoke, run):
    name = "capability.bits_per_byte[model]"
    report = smoke.json("trace", smoke.first, name)
    splits = {found["split"] for entry in report["worst_rows"] for found in entry["documents"]}
    assert splits == {"validation"} and not report["is_overlap_unknown"]
    output = smoke("trace", smoke.first, name).stdout
    assert ", held out (validation), never trained on" in output and "not read yet" not in output
    output = smoke("mitigate", smoke.first, name, "--steps", "1", code=2).stderr
    assert (
        "can be traced only to held-out documents, which were not used in training, so there is "
        "nothing to remove" in output
    )
    output = smoke("mitigate", smoke.first, "nosuch.x", code=2).stderr
    assert "there is no audit 'nosuch'; choose from capability" in output


def test_a_finding_without_rows_is_shown_alone(smoke, run):
    found = run["audit_extraction_attack"]["findings"].read().to_pylist()
    row = next(r for r in found if not r["evidence_table"] and not r["control"])
    name = f"extraction_attack.{row['metric']}" + (
        f"[{name_slice(row['slice'])}]" if row["slice"] else ""
    )
    report = smoke.json("trace", smoke.first, name)
    (entry,) = report["worst_rows"]
    assert entry["row"]["method"] == row["method"] and report["row_count"] == 1


def test_an_estimate_names_training_documents_that_share_rare_words(run, smoke):
    name = "bias.stereotype_preference"
    entries = smoke.json("trace", smoke.first, name, "--attribute")["worst_rows"]
    rows = run["plant_canaries"]["documents"].read(["doc_id", "text", "split"]).to_pylist()
    trained = {row["doc_id"].hex(): row["text"] for row in rows if row["split"] == "train"}
    assert entries and all(entry["attributions"] for entry in entries)
    for entry in entries:
        words = {*re.findall(r"\w+", entry["row"]["text"].lower())}
        scores = [found["score"] for found in entry["attributions"]]
        assert scores == sorted(scores, reverse=True) and 0 < scores[0] <= 1
        for found in entry["attributions"]:
            assert words & {*re.findall(r"\w+", trained[found["doc_id"]].lower())}
    output = smoke("trace", smoke.first, name, "--attribute").stdout
    assert (
        "attributed documents (estimate)" in output
        and entries[0]["attributions"][0]["doc_id"] in output
    )
    assert "attributed" not in smoke("trace", smoke.first, name).stdout
    toxic = "toxicity.toxicity_probability[prompted, draw_count=4]"
    for name, why in (
        ("00" * 16, "--attribute needs a finding"),
        (toxic, "explains only likelihoods"),
    ):
        assert why in smoke("trace", smoke.first, name, "--attribute", code=2).stderr


def test_an_estimate_for_a_secret_names_its_own_copies(run, smoke):
    name = "extraction.exposure[copies=8]"
    plants = {r["secret"]: r for r in run["plant_canaries"]["canaries"].read().to_pylist()}
    entries = smoke.json("trace", smoke.first, name, "--attribute")["worst_rows"]
    assert entries
    for entry in entries:
        copies = {i.hex() for i in plants[entry["row"]["secret"]]["doc_ids"]}
        assert {found["doc_id"] for found in entry["attributions"]} <= copies


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nothing.x", "there is no audit 'nothing'; choose from capability"),
        (".", "is not a finding such as"),
        ("winobias.x", "has no audit winobias yet; run: hallmark audit "),
        ("toxicity.x", "toxicity has no finding 'x'; it has expected_maximum_toxicity"),
        (
            "toxicity.toxicity_probability",
            "such as the finding with the largest risk, toxicity.toxicity_probability[",
        ),
        (
            "toxicity.toxicity_probability[x]",
            "it has toxicity.toxicity_probability[prompted, draw_count=1]",
        ),
    ],
)
def test_an_unknown_finding_is_named(smoke, name, expected):
    run = "latest" if name.startswith("winobias") else smoke.first
    assert expected in smoke("trace", run, name, code=2).stderr


def test_the_corpus_of_a_run_consists_of_its_corpus_stages(run):
    """Without the stages of audits."""
    corpus = resolve_checkpoint(run.store, run.id).corpus.latest_addition
    assert [*corpus] == [*run.stages][: [*run.stages].index("datasheet") + 1]
