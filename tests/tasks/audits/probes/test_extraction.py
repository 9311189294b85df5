"""Test the probe extraction against known answers, closed forms and brute force."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from hallmark.tasks.audits.audit_tables import RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.inference import generate_responses
from hallmark.tasks.audits.judging.comparison_units import AuditUnits
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.measures import build_values_schema
from hallmark.tasks.audits.methods.exposure import compute_exposures
from hallmark.tasks.audits.probes.extraction import (
    PROBE,
    VALUE_FIELDS,
    build_window_requests,
)
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import (
    CANARIES,
    DOCUMENTS,
    EmptyConfig,
    Session,
    StageConfig,
    StageContext,
    Store,
    Table,
    fill_document_columns,
    folder_to_artifact,
    hash_texts,
    hash_to_ids,
    open_session,
    stage,
)
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig
from hallmark.tasks.measures.canaries import (
    draw_reference_secrets,
    generate_record_canaries,
    generate_secret_canaries,
)
from hallmark.tasks.measures.sampling import sample_documents
from hallmark.tasks.training.document_reads import DOCUMENT_READS
from hallmark.tasks.training.pretrain import CHECKPOINTS
from tests.builders import item_rows, row_dicts
from tests.findings import findings_to_rows
from tests.model.oracles import logits
from tests.tasks.audits.audit_runs import run_audit_stages
from tests.tasks.audits.conftest import TEXTS, make_own
from tests.tasks.audits.probes.test_extraction_measures import QUICK, build_responses


@pytest.fixture(scope="module")
def model(own_folder):
    return open_audited_model(own_folder, device="cpu")


def build_canaries(config, texts=()):
    """Build a table of secrets, records and passages: every second text has one copy."""
    fields = ("kind", "copies", "template", "text", "prompt", "secret")
    rows = [
        {"canary_id": canary.canary_id, "doc_ids": canary.compute_copy_doc_ids()}
        | {field: getattr(canary, field) for field in fields}
        for canary in generate_secret_canaries(config) + generate_record_canaries(config)
    ]
    for i, text in enumerate(texts):
        name, copies = bytes([i] * 16), i % 2
        parts = {"text": text, "prompt": text[:20], "secret": text[20:]}
        rows.append(
            parts
            | {"canary_id": name, "kind": "passage", "copies": copies, "template": ""}
            | {"doc_ids": [name] * copies}
        )
    return pa.Table.from_pylist(rows, schema=CANARIES)


@stage(name="fake_corpus", tables={"canaries": CANARIES, "documents": DOCUMENTS})
def fake_corpus(config: EmptyConfig, context: StageContext) -> None:
    canary_config = PlantCanariesConfig(
        secrets_per_count=2, records_per_count=2, copy_counts=(0, 4)
    )
    context.get_table_writer("canaries").write(build_canaries(canary_config, TEXTS))
    texts = [f"{t} {i}. {u}" for i in range(8) for t in TEXTS for u in TEXTS]
    texts += ["short"] * 20
    n = len(texts)
    doc_ids = hash_to_ids(map(str, range(n)))
    context.get_table_writer("documents").write(
        fill_document_columns(
            {
                "doc_id": doc_ids,
                "source": ["planted/canary" if i % 5 == 0 else "s" for i in range(n)],
                "cluster": doc_ids,
                "text": texts,
                "text_hash": hash_texts(pa.array(texts)),
                "toxicity": [0.0] * n,
                "split": [("train", "holdout", "validation")[i % 3] for i in range(n)],
            }
        )
    )


@pytest.fixture
def corpus(tmp_path):
    with open_session(Session(Store(tmp_path / "store"))):
        yield fake_corpus(EmptyConfig())


def run(folder, canaries=None, documents=None, config=QUICK, pretrained=None):
    """Return values, findings, and the artifacts of requests, responses and findings."""
    corpus = (None, canaries, documents)
    stages = run_audit_stages("extraction", folder, config, corpus, training_run=pretrained)
    return *stages[-1], stages[0], stages[1], stages[3]


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_findings_follow_from_values_and_values_from_the_model(request, corpus, folder):
    folder = request.getfixturevalue(folder)
    values, findings, request_set, response_set, audited = run(
        folder, corpus["canaries"], corpus["documents"]
    )
    assert values.schema == build_values_schema(PROBE.item_schema, VALUE_FIELDS)
    rows = values.to_pylist()
    exposure = [r for r in rows if r["measure"] == "exposure"]
    assert len(exposure) == 4
    model = open_audited_model(folder, device="cpu")
    for row in exposure:
        references = draw_reference_secrets(row["template"], 200, QUICK.seed, 9)
        assert row["secret"] not in references
        scores, _ = model.compute_log_likelihoods(
            [row["text"] + s for s in [row["secret"], *references]]
        )
        expected, rank = compute_exposures(scores[:1], scores[1:])
        assert row["rank"] == rank[0] and row["value"] == pytest.approx(expected[0])
        assert row["value"] == pytest.approx(math.log2(200 / row["rank"]))
        assert row["reference_count"] == 200 and row["cluster"] == row["canary_id"].hex()
        assert len(row["doc_ids"]) == row["copies"] and row["canary_id"]
    parts = {r["kind"] for r in rows}
    assert parts == {"canary", "record", "passage", "train", "holdout"}
    attempts = [r for r in rows if (r["measure"], r["kind"]) == ("extractable", "train")]
    assert len(attempts) == len({r["item"] for r in attempts})
    assert len({r["doc_ids"][0] for r in attempts}) == QUICK.documents_per_split
    assert {(r["token_start"], r["prefix_tokens"]) for r in attempts} == {
        (p, k) for p in (6, 14, 22) for k in (3, 6)
    }
    for row in findings.to_pylist():
        evidence = select_evidence(values, row["evidence_filter"]).to_pylist()
        assert len(evidence) == row["n"] and row["evidence_table"] == "values"
        if row["metric"] in ("exposure", "extractable", "leading_correct_share"):
            assert row["value"] == pytest.approx(np.mean([r["value"] for r in evidence]))
        if row["metric"] == "extractable":
            assert {r["value"] for r in evidence} <= {0, 1}
            assert row["clusters"] == len({(r["canary_id"], *r["doc_ids"]) for r in evidence})
            assert (row["null_value"], row["p"]) == (0, None)
        if not row["control"]:  # the comparison of two models uses the same units
            units = AuditUnits(audited).build_units_by_key(row)
            slopes = row["metric"] in (
                "extractable_slope_by_times_read",
                "extractable_slope_by_prefix",
            )
            assert (units is None) == slopes, row["metric"]
            if units is not None:
                unit_values = [unit.value for unit in units.values()]
                assert row["value"] == pytest.approx(np.mean(unit_values))
    assert {r["control"] for r in findings.to_pylist()} == {"", "positive", "negative"}
    requests = request_set["requests"].read().to_pylist()
    requested_ids = {doc_id for r in requests for doc_id in r["doc_ids"]}
    assert requested_ids == {d for r in rows for d in r["doc_ids"]}  # a purge must find them
    target_counts = {r["request"]: len(r["target_ids"]) for r in requests}
    assert response_set["responses"].row_count == sum(target_counts.values())
    assert sorted(target_counts.values())[-3:] == [1, 2 + 200, 2 + 200]


@pytest.mark.parametrize("kind", ["decoder", "prefix", "encoder_decoder", "transformers"])
def test_greedy_decoding_writes_the_tokens_that_rank_first(tmp_path, request, kind, session):
    """All tokens of a greedy text rank first; with one token changed, those before it do."""
    folder = request.getfixturevalue("gpt2_folder") if kind == "transformers" else None
    special = [f"<|sentinel_{n}|>" for n in range(4)]
    options = {
        "decoder": {},
        "prefix": {"objective": "prefix"},
        "encoder_decoder": {
            "special": special,
            "objective": "span_corruption",
            "architecture": "encoder_decoder",
        },
        "transformers": None,
    }[kind]
    folder = folder or make_own(tmp_path, **options)
    model = open_audited_model(folder, device="cpu")
    contexts, targets, leads = [], [], []
    for number, text in enumerate(TEXTS):
        context = model.prepend_bos_id(model.encode(text)[: 3 + number])
        (greedy,) = model.generate_token_ids([context], max_new_tokens=9, temperature=0)[0]
        changed = [*greedy[:number], (greedy[number] + 1) % 300 + 2, *greedy[number + 1 :]]
        contexts += [context] * 2
        targets += [greedy, changed]
        leads += [len(greedy), number]
    rank_statistics = [*model.compute_rank_statistics(contexts, targets)]
    for row, target, lead in zip(rank_statistics, targets, leads, strict=True):
        is_first = row.rank == 0
        assert int(is_first.cumprod().sum()) == lead and len(is_first) == len(target)
    log_probs = model.compute_target_log_probs(contexts, targets)
    if kind != "encoder_decoder":  # its decoder would write a long text in pieces
        for row, expected in zip(rank_statistics, log_probs, strict=True):
            np.testing.assert_allclose(row.log_probs, expected, atol=1e-4)


class TrainedConfig(StageConfig):
    content: str


@stage(name="fake_training", tables={"document_reads": DOCUMENT_READS, "checkpoints": CHECKPOINTS})
def fake_training(canaries: Table, config: TrainedConfig, context: StageContext) -> None:
    """Write three checkpoints and the reads of planted texts; the audit is of step 20.

    By then the first copy of each text was read twice, the second was begun but not completely
    read, and the third is only read later.
    """
    for step, content in [(10, "other"), (20, config.content), (30, "later")]:
        context.get_table_writer("checkpoints").write(
            {
                "step": [step],
                "tokens_seen": [0],
                "artifact": ["a"],
                "content_digest": [content],
                "loss": [0.0],
                "validation_loss": [0.0],
            }
        )
    for canary in canaries.read().to_pylist():
        reads = [(10, 0, 1), (20, 0, 2), (20, 1, 0), (30, 0, 5), (30, 2, 1)]
        for step, copy, times_read in reads if canary["doc_ids"] else ():
            row = {name: [0] for name in DOCUMENT_READS.names} | {"source": ["planted"]}
            if copy < len(canary["doc_ids"]):
                row |= {"doc_id": [canary["doc_ids"][copy]], "step": [step]}
                row |= {"times_read": [times_read]}
                context.get_table_writer("document_reads").write(row)


def test_values_have_the_number_of_reads_by_the_checkpoint_s_step(own_folder, corpus):
    content = folder_to_artifact(Path(own_folder), "checkpoint").content_digest
    trained = fake_training(corpus["canaries"], TrainedConfig(content=content))
    arguments = (own_folder, corpus["canaries"], corpus["documents"], QUICK)
    values, findings, request_set, response_set, _ = run(*arguments, trained)
    for row in values.to_pylist():
        planted = row["canary_id"] is not None
        assert row["times_read"] == (2 if planted and row["copies"] else 0), row["kind"]
    methods = {
        name_slice(r["slice"]): r["method"]
        for r in findings.to_pylist()
        if r["metric"] == "exposure"
    }
    assert (
        methods["copies=4"].split("; ")[-2]
        == "the text of each item, which can be part of a document, was read completely 2 times "
        "up to this checkpoint's step"
    )
    (method,) = {
        r["method"]
        for r in findings.to_pylist()
        if (r["metric"], name_slice(r["slice"])) == ("extractable", "record, copies=4")
    }
    assert (
        "; the model is prompted with all text before the secret; the text of each item, which can "
        "be part of a document, was read completely 2 times up to"
    ) in method
    unknown = fake_training(corpus["canaries"], TrainedConfig(content="unknown"))
    for pretrained in (None, unknown):
        values, findings, *artifacts, _ = run(*arguments, pretrained)
        # The model is not asked again.
        assert [a.name for a in artifacts] == [request_set.name, response_set.name]
        assert set(values["times_read"].to_pylist()) == {None}
        assert not any("read completely" in r["method"] for r in findings.to_pylist())


@stage(name="fake_reading", tables={"document_reads": DOCUMENT_READS, "checkpoints": CHECKPOINTS})
def fake_reading(documents: Table, config: TrainedConfig, context: StageContext) -> None:
    """Write that every second training document was read by step 10."""
    row = {"step": [10], "tokens_seen": [0], "artifact": ["a"], "content_digest": [config.content]}
    context.get_table_writer("checkpoints").write(row | {"loss": [0.0], "validation_loss": [0.0]})
    rows = documents.read(["doc_id", "split"]).sort_by("doc_id").to_pylist()
    for read_id in [row["doc_id"] for row in rows if row["split"] == "train"][::2]:
        row = {name: [0] for name in DOCUMENT_READS.names} | {"source": [""], "doc_id": [read_id]}
        context.get_table_writer("document_reads").write(row | {"step": [10], "times_read": [1]})


def test_training_documents_that_the_model_had_not_read_are_excluded(own_folder, corpus):
    content = folder_to_artifact(Path(own_folder), "checkpoint").content_digest
    arguments = (own_folder, corpus["canaries"], corpus["documents"], QUICK)
    every_value, *_ = run(*arguments)
    trained = fake_reading(corpus["documents"], TrainedConfig(content=content))
    values, findings, *_ = run(*arguments, trained)

    def list_read_counts(values, kind):
        rows = select_evidence(values, {"measure": "extractable", "kind": kind})
        return rows["times_read"].to_pylist()

    all_train, read_train = (list_read_counts(table, "train") for table in (every_value, values))
    assert 0 < len(read_train) < len(all_train)
    assert {*read_train} == {1}
    for kind in ("holdout", "passage", "record"):
        counts = [len(list_read_counts(table, kind)) for table in (every_value, values)]
        assert counts[0] == counts[1] > 0
    count = len(all_train) - len(read_train)
    note = f"training documents that the model had not yet read are excluded ({count} text"
    methods = [
        row["method"]
        for row in findings.to_pylist()
        if (row["metric"], dict(row["slice"]).get("kind")) == ("extractable", "train")
    ]
    assert methods and all(note in method for method in methods)


def test_a_text_that_the_model_would_write_is_extractable(own_folder, model, session):
    """One text is what the model writes; the other differs in the sixth token."""
    prompt = model.encode(TEXTS[0])[:6]
    context = model.prepend_bos_id(prompt)
    (greedy,) = model.generate_token_ids([context], max_new_tokens=8, temperature=0)[0]
    changed = [*greedy[:5], (greedy[5] + 1) % model.vocab_size, *greedy[6:]]
    builder = RequestBuilder()
    rows = [("a", greedy), ("b", changed)]
    for number, (name, target) in enumerate(rows):
        fields = {
            "kind": "passage",
            "copies": 1,
            "canary_id": bytes([number] * 16),
            "doc_ids": [],
            "template": "",
        }
        item = builder.add_item(name, name, **fields, secret=name, prefix_tokens=6, token_start=6)
        builder.request_log_probs(item, context, [target], rank_statistics=True)
    responses = ask_model(builder, own_folder)
    values, found = PROBE.compute_values_and_findings(responses, QUICK)
    findings = findings_to_rows(found)
    attempts = select_evidence(values, {"measure": "extractable"})
    assert attempts["leading_correct_tokens"].to_pylist() == [8, 5]
    assert attempts["target_tokens"].to_pylist() == [8, 8]
    assert attempts["value"].to_pylist() == [1, 0]
    by_draws = {
        name_slice(f["slice"]): f["value"]
        for f in findings
        if f["metric"] == "extractable_by_sampling"
    }
    shares = {f["metric"]: f["value"] for f in findings}
    assert shares["extractable"] == 0.5 and shares["leading_correct_share"] == (1 + 5 / 8) / 2
    probabilities = np.exp(attempts["log_likelihood"].to_numpy())
    assert by_draws == {
        f"passage, copies=1, prefix_tokens=6, draw_count={n}": np.mean(
            [1 - (1 - p) ** n >= 0.5 for p in probabilities]
        )
        for n in (1, 100, 10_000)
    }


def ask_model(builder, folder):
    requests = builder.build_requests_table()
    responses = generate_responses(open_audited_model(folder, device="cpu"), requests.to_pylist())
    return build_responses(builder, row_dicts(responses))


def test_prefixes_of_all_lengths_end_at_the_same_positions(model):
    text = " ".join(TEXTS)
    ids = model.encode(text)
    builder = RequestBuilder()
    document_fields = {
        "kind": "train",
        "copies": None,
        "canary_id": None,
        "cluster": b"x",
        "doc_ids": [b"x"],
        "template": "",
    }
    config = QUICK.model_copy(update={"max_windows": 2})
    build_window_requests(
        builder, model, [document_fields | {"text": t} for t in (text, "too short")], config
    )
    requests = row_dicts(builder.requests)
    positions = [(6, 3), (6, 6), (14, 3), (14, 6)]
    assert [r["context_ids"] for r in requests] == [
        [model.bos_id, *ids[p - k : p]] for p, k in positions
    ]
    assert [r["target_ids"] for r in requests] == [[ids[p : p + 8]] for p, _ in positions]
    items = [*item_rows(builder).values()]
    assert [(i["token_start"], i["prefix_tokens"]) for i in items] == positions
    assert (
        items[1]["text"] + items[1]["secret"]
        == model.decode(ids[:14])
        == requests[1]["source_text"]
    )
    assert len({i["cluster"] for i in items}) == 1
    # The last window just fits into the text.
    builder = RequestBuilder()
    build_window_requests(
        builder, model, [document_fields | {"text": model.decode(ids[:22])}], config
    )
    assert len(builder.requests) == 4


def test_greedy_continuation_is_the_argmax_at_each_step(model):
    start = model.prepend_bos_id(model.encode("The nurse"))
    ids = list(start)
    for _ in range(6):
        with torch.inference_mode():
            scores = logits(model.model, torch.tensor([ids]))[0, -1].clone()
            scores[1] = -math.inf  # the padding token is never written
        ids.append(int(scores.argmax()))
    (greedy,) = model.generate_token_ids([start], max_new_tokens=6, temperature=0)[0]
    assert greedy == ids[len(start) :]


def test_sampled_documents_depend_only_on_their_ids(corpus):
    def sample(count, key="key"):
        return sample_documents(corpus["documents"], "train", count, 14, key, len)

    sample_rows = sample(5)
    assert len(sample_rows) == 5 == len({document.doc_id for document in sample_rows})
    rows = {r["doc_id"]: r for r in corpus["documents"].read().to_pylist()}
    for document in sample_rows:
        row = rows[document.doc_id]
        assert row["split"] == "train" and row["source"] == "s" and len(row["text"]) >= 14
        assert (document.text, document.cluster) == (row["text"], row["cluster"])
    larger_sample = sample(20)
    assert (
        larger_sample[:5] == sample_rows
        and len(larger_sample) == 20
        and sample(5, "other") != sample_rows
    )


def test_documents_that_are_too_short_are_replaced(corpus):
    counted_texts = []

    def count_tokens(text):
        counted_texts.append(text)
        return len(text.split())

    texts = [r["text"] for r in corpus["documents"].read().to_pylist() if r["split"] == "train"]
    min_tokens = sorted(len(text.split()) for text in texts)[-3]
    sample = sample_documents(corpus["documents"], "train", 3, min_tokens, "key", count_tokens)
    assert len(sample) == 3
    assert all(len(document.text.split()) >= min_tokens for document in sample)
    assert set(counted_texts) <= set(texts)


def test_documents_have_the_kind_of_their_split(own_folder, corpus):
    values, *_ = run(own_folder, corpus["canaries"], corpus["documents"])
    splits = {r["doc_id"]: r["split"] for r in corpus["documents"].read().to_pylist()}
    attempts = [r for r in values.to_pylist() if r["kind"] in ("train", "holdout")]
    assert {r["kind"] for r in attempts} == {"train", "holdout"}
    assert all({splits[i] for i in r["doc_ids"]} == {r["kind"]} for r in attempts)


def test_without_a_corpus_nothing_is_measured(own_folder, session):
    values, findings, _, response_set, _ = run(own_folder)
    rows = findings.to_pylist()
    assert len(values) == response_set["responses"].row_count == 0
    assert [r["metric"] for r in rows] == ["exposure", "extractable"]
    assert all(r["value"] is None and r["method"].startswith("not measured") for r in rows)
    assert "the training corpus is not known" in rows[0]["method"]


def test_without_canaries_memorisation_is_measured_on_documents(own_folder, corpus):
    values, findings, *_ = run(own_folder, None, corpus["documents"])
    assert set(values["kind"].to_pylist()) == {"train", "holdout"}
    by_metric = {r["metric"]: r["value"] for r in findings.to_pylist()}
    assert by_metric["exposure"] is None and by_metric["extractable"] is not None


def test_a_masked_model_is_not_measured(bert_folder, corpus):
    values, findings, *_ = run(bert_folder, corpus["canaries"])
    assert len(values) == 0
    assert [r["metric"] for r in findings.to_pylist()] == ["exposure", "extractable"]
    assert all("masked language model" in r["method"] for r in findings.to_pylist())


def test_prefixes_that_do_not_fit_the_context_are_reported(own_folder, corpus):
    config = QUICK.model_copy(update={"prefix_tokens": (6, 100)})
    _, findings, *_ = run(own_folder, corpus["canaries"], None, config)
    rows = findings.to_pylist()
    (row,) = [r for r in rows if name_slice(r["slice"]) == "prefix_tokens=100"]
    assert row["value"] is None and "do not fit into the context of 48 tokens" in row["method"]
    assert any(
        r["metric"] == "extractable" and name_slice(r["slice"]).endswith("prefix_tokens=6")
        for r in rows
    )


def test_settings_that_give_the_same_items_ask_the_model_nothing_again(own_folder, corpus):
    arguments = (own_folder, corpus["canaries"], corpus["documents"])
    first = run(*arguments)
    second = run(*arguments, QUICK.model_copy(update={"stride_tokens": QUICK.suffix_tokens}))
    assert first[3].name == second[3].name and first[0] == second[0]
    assert first[2].name != second[2].name and first[2].content_digest == second[2].content_digest
