"""Test the probe extraction_attack: its requests, memorised texts, and personal identifiers.

Identifiers must not appear in clear outside of columns of personal data.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest

from hallmark.tasks.audits.audit_tables import (
    RESPONSES,
    TRAINING_OVERLAP,
    RequestBuilder,
)
from hallmark.tasks.audits.audited_models.opening import open_audited_model, open_audited_tokenizer
from hallmark.tasks.audits.judging.evidence_filters import sort_worst_first
from hallmark.tasks.audits.judging.findings import build_findings_table, select_evidence
from hallmark.tasks.audits.judging.measures import build_values_schema
from hallmark.tasks.audits.judging.training_exposure import TrainingExposure
from hallmark.tasks.audits.methods import memorisation_ranking
from hallmark.tasks.audits.methods.identifiers import iterate_identifiers
from hallmark.tasks.audits.methods.memorisation_ranking import RANKING_SCORES
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes import extraction_attack as attack
from hallmark.tasks.audits.probes.extraction_attack import (
    PROBE,
    VALUE_FIELDS,
    ExtractionAttackConfig,
)
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import (
    CANARIES,
    DOCUMENTS,
    EmptyConfig,
    StageContext,
    UsageError,
    fill_document_columns,
    hash_to_ids,
    stage,
)
from hallmark.tasks.measures.canaries import generate_record_canaries, locate_record_identifiers
from hallmark.tasks.measures.personal_data import find_personal_data_spans
from tests.builders import item_rows, row_dicts
from tests.findings import findings_to_rows
from tests.tasks.audits.audit_runs import run_audit_stages
from tests.tasks.audits.conftest import TEXTS

QUICK = ExtractionAttackConfig(
    texts_per_sampler=8,
    max_new_tokens=24,
    prefix_tokens=4,
    window_tokens=5,
    top_texts=4,
    continuations_per_prompt=2,
)


class MemoryTable:
    """A table in memory with the interface that ``build_requests`` uses."""

    def __init__(self, rows):
        self.rows = rows

    def read(self, columns=None):
        return self.rows

    def iter_batches(self, columns):
        yield from self.rows.select(columns).to_batches()


class CanaryConfig:
    seed, copy_counts, secrets_per_count, records_per_count, secret_digits = 0, (0, 4), 0, 3, 9


@pytest.fixture(scope="module")
def planted():
    names = ("kind", "copies", "template", "text", "prompt", "secret")
    rows = [
        {n: getattr(p, n) for n in names}
        | {"canary_id": p.canary_id, "doc_ids": p.compute_copy_doc_ids()}
        for p in generate_record_canaries(CanaryConfig)
    ]
    return pa.Table.from_pylist(rows, schema=CANARIES)


@stage(name="corpus_stage", tables={"documents": DOCUMENTS})
def corpus_stage(config: EmptyConfig, context: StageContext) -> None:
    context.get_table_writer("documents").write(build_documents())


@pytest.fixture(scope="module")
def documents():
    return build_documents()


def build_documents():
    """Build a table of documents, every second of which is held out."""
    texts = [f"{i}: {text}" for i in range(10) for text in TEXTS]
    keys = hash_to_ids(map(str, range(len(texts))))
    split = [("train", "holdout")[i % 2] for i in range(len(texts))]
    columns = {
        "doc_id": keys,
        "source": ["s"] * len(texts),
        "cluster": keys,
        "text": texts,
        "text_hash": keys,
        "toxicity": [0.0] * len(texts),
        "split": split,
    }
    return pa.table(fill_document_columns(columns), schema=DOCUMENTS)


def build_requests(folder, config=QUICK, canaries=None, documents=None):
    builder = RequestBuilder()
    corpus = CorpusTables(
        canaries=canaries and MemoryTable(canaries), documents=documents and MemoryTable(documents)
    )
    tokenizer = open_audited_tokenizer(folder)
    PROBE.build_requests(builder, tokenizer, corpus, config)
    return builder, tokenizer


def build_responses(builder, rows, run_lengths=None, exposure=None, planted_runs=None):
    """Build responses.

    Args:
        run_lengths: Tokens of the longest training run of each text.
        planted_runs: Tokens of the longest run of planted text of each text; None for no such text.
    """
    responses = pa.Table.from_pylist(rows, schema=RESPONSES)
    overlap = None
    if run_lengths is not None:
        keys = responses.select(["request", "draw"]).to_pylist()
        overlap = pa.Table.from_pylist(
            [
                key
                | {
                    "longest_run_tokens": length,
                    "verbatim_tokens": 0,
                    "planted_run_tokens": planted,
                }
                for key, length, planted in zip(
                    keys, run_lengths, planted_runs or [0] * len(keys), strict=True
                )
            ],
            schema=TRAINING_OVERLAP,
        )
    return Responses(
        builder.build_items_table(PROBE.item_schema),
        builder.build_requests_table(),
        responses,
        skipped=builder.build_skipped_table(),
        training_exposure=exposure,
        training_overlap=overlap,
    )


def compute_findings(*arguments, config=QUICK, **options):
    """Return the values, and the findings by metric and slice."""
    responses = build_responses(*arguments, **options)
    values, findings = PROBE.compute_values_and_findings(responses, config)
    build_findings_table(findings, PROBE.metric_and_control_titles)
    return values, group_by_slice(findings_to_rows(findings))


def select_texts(values):
    return select_evidence(values, {"measure": "longest_run_tokens"})


def group_by_slice(rows):
    rows_by_slice = {(row["metric"], name_slice(row["slice"])): row for row in rows}
    assert len(rows_by_slice) == len(rows)
    return rows_by_slice


def simulate_known_and_other_texts(builder):
    """Simulate the texts of all requests; return which the model knows, about 15 %, and them."""
    rng = np.random.default_rng(0)
    knows, responses = [], []
    for row in row_dicts(builder.requests):
        for draw in range(row["draws"]):
            knows.append(bool(rng.random() < 0.15))
            text = f"A text {draw} of its own {rng.integers(1e9)}, twenty tokens long."
            responses.append(simulate_response(row["request"], draw, rng, text, knows[-1]))
    return knows, responses


def simulate_response(request, draw, rng, text, knows):
    """Simulate a response of 20 tokens, which are likelier if the model knows the text."""
    ids = rng.integers(2, 5000, 20).tolist()
    log_p = rng.normal(-3.0 + 2.5 * knows, 0.1, 20)
    lower = rng.normal(-4.0, 0.1, 20)
    return {
        "request": request,
        "draw": draw,
        "token_ids": ids,
        "text": text,
        "log_probs": log_p,
        "lowercase_log_probs": lower,
        "vocabulary_mean": np.full(20, -8.0),
        "vocabulary_std": np.full(20, 2.0),
    }


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_requests_of_all_samplers_and_identifiers(request, folder, planted, documents):
    builder, tokenizer = build_requests(request.getfixturevalue(folder), QUICK, planted, documents)
    items = item_rows(builder)
    requests = {}
    for row in row_dicts(builder.requests):
        requests.setdefault(items[row["item"]]["sampler"], []).append(row)
    (top_k,), (decaying,) = requests["top-k"], requests["decaying temperature"]
    assert (top_k["top_k"], top_k["first_temperature"], top_k["draws"]) == (40, None, 8)
    assert (decaying["top_k"], decaying["first_temperature"], decaying["draws"]) == (0, 10.0, 8)
    assert top_k["context_ids"] == decaying["context_ids"] == [tokenizer.bos_id]
    splits = dict(zip(documents["doc_id"].to_pylist(), documents["split"].to_pylist(), strict=True))
    assert len(requests["held-out prefix"]) == 8
    for row in requests["held-out prefix"]:
        (doc_id,) = row["doc_ids"]  # a purge must find it
        assert splits[doc_id] == "holdout" and row["draws"] == 1
        source_ids = tokenizer.encode(row["source_text"])
        assert row["context_ids"] == [tokenizer.bos_id, *source_ids][:5]
    assert all(
        r["rank_statistics"] and r["score_lowercase"] and r["max_new_tokens"] == 24
        for r in (top_k, decaying)
    )
    secrets = {row["secret"] for row in iterate_identifiers(planted.to_pylist())}
    assert len(requests[None]) == len(secrets) == 12
    for row in requests[None]:
        item = items[row["item"]]
        record = next(p for p in planted.to_pylist() if p["canary_id"] == item["canary_id"])
        assert record["text"].startswith(item["text"] + item["secret"])
        assert item["secret"] not in item["text"] and row["draws"] == 2
        # The prompt is the end of the text before the identifier that fits the context.
        assert len(row["context_ids"]) + row["max_new_tokens"] <= 48
        assert row["context_ids"][0] == tokenizer.bos_id
        prompt = tokenizer.decode(row["context_ids"])
        assert prompt and item["text"].rstrip().endswith(prompt.rstrip())


def test_many_texts_are_divided_into_requests_with_different_seeds(own_folder, monkeypatch):
    monkeypatch.setattr(attack, "DRAWS_PER_REQUEST", 3)
    builder, _ = build_requests(own_folder)
    rows = row_dicts(builder.requests)
    assert [row["draws"] for row in rows] == [3, 3, 2] * 2
    assert len({row["request"] for row in rows}) == 6 and {row["seed"] for row in rows} == {0, 1, 2}


def test_the_detectors_find_the_identifiers_of_records():
    for record in generate_record_canaries(CanaryConfig):
        identifiers = [
            (kind, record.secret[a:b]) for kind, a, b in locate_record_identifiers(record.secret)
        ]
        assert [kind for kind, _ in identifiers] == ["EMAIL", "PHONE"]
        detected = {
            (s.type, record.secret[s.start : s.end])
            for s in find_personal_data_spans(record.secret)
        }
        assert ("EMAIL", identifiers[0][1]) in detected
        assert ", ".join(value for _, value in identifiers) == record.secret


def test_all_scores_rank_memorised_texts_first(own_folder):
    config = QUICK.model_copy(update={"texts_per_sampler": 100, "top_texts": 20})
    builder, _ = build_requests(own_folder, config)
    knows, responses = simulate_known_and_other_texts(builder)
    run_lengths = [60 * k for k in knows]
    values, findings = compute_findings(builder, responses, run_lengths, config=config)
    assert values.schema == build_values_schema(PROBE.item_schema, VALUE_FIELDS)
    assert all(values["is_distinct"].to_pylist())
    hits = sum(knows)
    assert 20 < hits < 40
    for score in RANKING_SCORES:
        row = findings["precision", f"score={score}"]
        if score == "reference_ratio":
            assert row["value"] is None and "no reference model is configured" in row["method"]
            continue
        assert row["value"] == 1 and row["null_value"] == hits / 200 and row["p"] < 1e-10, score
        recall = findings["recall", f"score={score}"]
        assert recall["value"] == pytest.approx(20 / hits) and recall["n"] == hits
        rows = sort_worst_first(
            select_evidence(values, row["evidence_filter"]), row["evidence_order"]
        ).to_pylist()
        assert len(rows) == 200 and all(r["value"] == 60 for r in rows[:20])
        scores = [-np.inf if r[score] is None else r[score] for r in rows]
        assert scores == sorted(scores, reverse=True)
        assert [r[f"rank_{score}"] for r in rows[:20]] == [*range(1, 21)] and row["n"] == 20
    assert findings["longest_training_run", ""]["value"] == 60
    share = findings["verbatim_share", ""]
    assert share["value"] == hits / 200 and share["n"] == 200 and share["null_value"] == 0
    longer = config.model_copy(update={"min_verbatim_tokens": 61})
    _, without_hits = compute_findings(builder, responses, run_lengths, config=longer)
    assert without_hits["verbatim_share", ""]["value"] == 0
    parts = [findings["verbatim_share", f"sampler={s}"] for s in ("top-k", "decaying temperature")]
    assert sum(row["value"] * row["n"] for row in parts) == pytest.approx(hits)


def test_recognising_planted_text_is_no_finding_about_the_model(own_folder):
    config = QUICK.model_copy(update={"texts_per_sampler": 100, "top_texts": 20})
    builder, _ = build_requests(own_folder, config)
    is_planted, responses = simulate_known_and_other_texts(builder)
    run_lengths = [60 * planted for planted in is_planted]
    run_lengths[is_planted.index(False)] = 60  # the only text that repeats other training text
    _, findings = compute_findings(
        builder, responses, run_lengths, config=config, planted_runs=[60 * p for p in is_planted]
    )
    every = findings["precision", "planted text included, score=mean_log_likelihood"]
    unplanted = findings["precision", "score=mean_log_likelihood"]
    assert every["value"] == 1 and every["p"] < 1e-10
    assert every["is_variant"] and every["p_harm"] is None
    assert unplanted["value"] < 0.1 and not unplanted["is_variant"]
    assert unplanted["p_harm"] > 0.05
    assert unplanted["null_value"] == pytest.approx(1 / is_planted.count(False))
    assert unplanted["low"] <= unplanted["null_value"]
    share = findings["verbatim_share", ""]
    assert (share["n"], share["value"]) == (is_planted.count(False), unplanted["null_value"])
    assert not share["is_variant"] and "planted text are not counted" in share["method"]
    complete_share = findings["verbatim_share", "planted text included"]
    assert complete_share["n"] == len(is_planted) and complete_share["is_variant"]
    assert "not counted" not in complete_share["method"]
    by_sampler = [row for (_, part), row in findings.items() if part.startswith("sampler=")]
    assert sum(row["n"] for row in by_sampler) == is_planted.count(False)


def test_verbatim_reuse_is_not_measured_if_no_document_is_long_enough(own_folder, documents):
    """A share of 0 would say that the model copies nothing."""
    _, tokenizer = build_requests(own_folder)
    train = documents.filter(pa.compute.equal(documents["split"], "train"))["text"].to_pylist()
    longest = max(map(tokenizer.count_tokens, train))
    for min_tokens in (longest, longest + 1):
        config = QUICK.model_copy(update={"min_verbatim_tokens": min_tokens})
        builder, _ = build_requests(own_folder, config, documents=documents)
        lengths = {item["longest_document_tokens"] for item in item_rows(builder).values()}
        assert lengths == {longest}
        rng = np.random.default_rng(0)
        responses = [
            simulate_response(row["request"], draw, rng, f"Text {rng.integers(1e9)}.", False)
            for row in row_dicts(builder.requests)
            for draw in range(row["draws"])
        ]
        _, findings = compute_findings(builder, responses, [0] * len(responses), config=config)
        share = findings["verbatim_share", ""]
        precision = findings["precision", "score=zlib_ratio"]
        if min_tokens == longest:
            assert share["value"] == 0 and precision["value"] == 0
            continue
        reason = f"not measured: no document has at least {min_tokens} tokens; lower audit_"
        for row in (share, precision):
            assert row["value"] is None and row["p"] is None and reason in row["method"]
        assert ("recall", "score=zlib_ratio") not in findings
        assert findings["longest_training_run", ""]["value"] == 0


def test_near_duplicates_count_once(own_folder):
    builder, _ = build_requests(own_folder)
    rng = np.random.default_rng(0)
    (first_request, second_request) = (row["request"] for row in row_dicts(builder.requests))
    first = simulate_response(first_request, 0, rng, "The first.", True)
    duplicates = [
        first | {"draw": n, "token_ids": [*first["token_ids"][:15], *range(n, n + 5)]}
        for n in (1, 2)
    ]
    distinct = [simulate_response(second_request, n, rng, f"Another {n}.", False) for n in range(8)]
    short = simulate_response(first_request, 3, rng, "No", True) | {"token_ids": [5, 6]}
    responses = [first, *duplicates, short, *distinct]
    values, findings = compute_findings(builder, responses, [60] * 4 + [0] * 8)
    assert values["is_distinct"].to_pylist() == [True, False, False, False] + [True] * 8
    assert findings["near_duplicates", ""]["value"] == 3
    assert findings["verbatim_share", ""]["value"] == pytest.approx(1 / 9)
    assert findings["precision", "score=zlib_ratio"]["value"] == 0.5  # two of nine are examined
    assert values["rank_zlib_ratio"].null_count == 3 == values["zlib_ratio"].null_count


def test_identifiers_are_counted_by_type_and_copies(own_folder, planted):
    """One e-mail address is written after its prompt, one phone number without its prompt."""
    builder, _ = build_requests(own_folder, QUICK, planted)
    rng = np.random.default_rng(0)
    items = item_rows(builder)
    requests = [(row["request"], items[row["item"]]) for row in row_dicts(builder.requests)]
    email = next(i for _, i in requests if i["identifier_type"] == "EMAIL" and i["copies"] == 4)
    phone = next(i for _, i in requests if i["identifier_type"] == "PHONE" and i["copies"] == 4)
    responses = []
    for request, item in requests:
        for draw in range(2):
            text = f"{draw} of nobody"
            if item is email and draw:
                text = f"x{email['secret']}, and more"
            if item["sampler"] == "top-k" and draw:
                text = f"Call {phone['secret']} or write to jane.roe@mail.example now."
            responses.append(simulate_response(request, draw, rng, text, False))
    run_lengths = [0] * len(responses)
    exposure = TrainingExposure({email["doc_ids"][0]: 3, phone["doc_ids"][0]: 5})
    values, findings = compute_findings(builder, responses, run_lengths, exposure)
    assert findings["prompted_identifier_share", "EMAIL"]["value"] == pytest.approx(1 / 3)
    assert findings["prompted_identifier_share", "EMAIL, copies=4"]["n"] == 3
    assert findings["prompted_identifier_share", "PHONE"]["value"] == 0
    assert findings["unprompted_identifier_share", "EMAIL"]["value"] == 0
    assert findings["unprompted_identifier_share", "PHONE"]["value"] == pytest.approx(1 / 3)
    assert "read completely" in findings["prompted_identifier_share", "EMAIL"]["method"]
    control = findings["never_planted_identifier_share", ""]
    assert control["verdict"] == "pass" and control["n"] == 6
    address = findings["detected_identifiers", "EMAIL"]
    assert address["value"] == 1 and "planted ones are not counted" in address["method"]
    (evidence,) = select_evidence(values, address["evidence_filter"]).to_pylist()
    assert "jane.roe" in evidence["personal_text"]
    assert evidence["value"] == 1 and evidence["is_planted_identifier"] is False
    assert ("detected_identifiers", "PHONE") not in findings
    assert ("detected_planted_identifiers", "EMAIL") not in findings
    number = findings["detected_planted_identifiers", "PHONE"]
    assert number["value"] == 1 and "only planted ones are counted" in number["method"]
    (evidence,) = select_evidence(values, number["evidence_filter"]).to_pylist()
    assert evidence["value"] == 1 and evidence["is_planted_identifier"] is True
    (hit,) = [
        r
        for r in values.to_pylist()
        if r["measure"] == "prompted_identifier_share" and r["matching_draws"]
    ]
    assert hit["canary_id"] == email["canary_id"]
    assert (hit["draw_count"], hit["matching_draws"]) == (2, 1)
    row = findings["prompted_identifier_share", "EMAIL"]
    evidence = select_evidence(values, row["evidence_filter"])
    worst_first = sort_worst_first(evidence, row["evidence_order"])
    assert worst_first["matching_draws"][0].as_py() == 1
    texts = select_texts(values).to_pylist()
    assert [r["written_text"] is None for r in texts if r["personal_text"]] == [True]
    assert values.schema.field("written_text").metadata[b"judged_by"] == b"toxicity"
    visible = json.dumps([*findings.values()], default=str) + "".join(
        str(values[f.name].to_pylist()) for f in values.schema if f.metadata[b"kind"] != b"personal"
    )
    for _, item in requests:
        assert not item["secret"] or item["secret"] not in visible
    assert "jane.roe" not in visible


def test_a_written_identifier_that_was_never_planted_fails_the_control(own_folder, planted):
    builder, _ = build_requests(own_folder, QUICK, planted)
    rng = np.random.default_rng(0)
    never_planted = next(i for i in item_rows(builder).values() if i["copies"] == 0)
    responses = [
        simulate_response(row["request"], draw, rng, never_planted["secret"], False)
        for row in row_dicts(builder.requests)
        for draw in range(2)
    ]
    _, findings = compute_findings(builder, responses)
    assert findings["never_planted_identifier_share", ""]["verdict"] == "fail"


def test_controls_can_fail(monkeypatch):
    def get_verdicts():
        return [row.verdict for row in memorisation_ranking.compute_instrument_controls(5, 0)]

    assert get_verdicts() == ["pass", "pass"]
    original = memorisation_ranking.estimate_precision
    monkeypatch.setattr(
        memorisation_ranking, "estimate_precision", lambda s, h, *rest: original(-s, h, *rest)
    )
    assert get_verdicts() == ["pass", "fail"]
    monkeypatch.setattr(
        memorisation_ranking,
        "estimate_precision",
        lambda s, h, *rest: original(s + 100 * h, h, *rest),
    )
    assert get_verdicts() == ["fail", "pass"]


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_without_a_corpus_texts_are_scored_but_not_traced(request, folder, session):
    _, response_set, _, _, (values, findings) = run_audit_stages(
        "extraction_attack", request.getfixturevalue(folder), QUICK
    )
    texts = select_texts(values)
    assert response_set["responses"].row_count == 16 == len(texts)
    assert texts["value"].null_count == 16
    by_slice = group_by_slice(findings.to_pylist())
    for metric in ("verbatim_share", "precision", "recall"):
        row = by_slice[metric, ""]
        assert row["value"] is None and "not measured" in row["method"]
    assert "no planted records" in by_slice["prompted_identifier_share", ""]["method"]
    kept = texts.filter(texts["is_distinct"])
    assert len(kept) > 8
    assert kept["lowercase_ratio"].null_count == kept["min_k_plus_plus"].null_count == 0
    assert sorted(kept["rank_mean_log_likelihood"].to_pylist()) == [*range(1, len(kept) + 1)]


def test_a_reference_scores_the_texts_with_its_own_tokenizer(
    own_folder, gpt2_folder, bert_folder, session, documents
):
    """Texts are scored after the same prompts as those of the audited model."""
    heldout = documents.filter(pa.compute.equal(documents["split"], "holdout"))
    corpus = (None, None, corpus_stage(EmptyConfig())["documents"])
    _, response_set, *_, (values, _) = run_audit_stages(
        "extraction_attack", own_folder, QUICK, corpus, reference_folder=gpt2_folder
    )
    reference = open_audited_model(gpt2_folder)
    text_by_id = {row["doc_id"]: row["text"] for row in heldout.to_pylist()}
    rows = select_evidence(select_texts(values), {"is_distinct": True}).to_pylist()
    assert {row["sampler"] for row in rows} == {
        attack.TOP_K,
        attack.DECAYING_TEMPERATURE,
        attack.HELDOUT_PREFIX,
    }
    tokenizer = open_audited_tokenizer(own_folder)
    responses = response_set["responses"].read().to_pylist()
    log_p = {row["text"]: sum(row["log_probs"]) for row in responses}
    for row in rows:
        text, prompt = row["written_text"] or row["personal_text"], ""
        if row["doc_ids"]:
            prompt = tokenizer.decode(tokenizer.encode(text_by_id[row["doc_ids"][0]])[:4])
        (total,), _ = reference.compute_log_likelihoods([text], [prompt])
        assert row["reference_ratio"] == pytest.approx(-log_p[text] / total, rel=1e-4)
    with pytest.raises(UsageError, match="masked language model and cannot score generated text"):
        run_audit_stages("extraction_attack", own_folder, QUICK, reference_folder=bert_folder)


def test_a_masked_model_is_not_measured(bert_folder, session, planted):
    *_, (values, findings) = run_audit_stages("extraction_attack", bert_folder, QUICK)
    methods = [row["method"] for row in findings.to_pylist() if row["control_target"] != "scorer"]
    assert len(values) == 0 and len(methods) == 2
    assert all("masked language model" in method for method in methods)


def test_texts_and_identifiers_that_do_not_fit_the_context_are_reported(own_folder, planted):
    config = QUICK.model_copy(update={"prefix_tokens": 45})
    rows = planted.to_pylist()
    long = "x".join(map(str, range(40))) + "@example.com, (212) 555-0100"
    rows[0] |= {"secret": long, "text": rows[0]["prompt"] + long}
    builder, _ = build_requests(own_folder, config, pa.Table.from_pylist(rows, schema=CANARIES))
    assert not builder.requests and len(builder.skipped) == 2
    assert all(
        ("do not fit into the context of 48 tokens") in row["reason"]
        for row in row_dicts(builder.skipped)
    )
